"""Every cell against its oracle: NumPy loops written from the papers' equations."""

import dataclasses
from itertools import chain, combinations, product

import numpy as np
import pytest
import torch
from numpy_cells import ORACLES, f_mod, f_rank, parameters, randomise

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.registry import get_cell

STEPS, BATCH, INPUT = 7, 3, 5
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefg"]
# All different: the papers do not say who comes first among equally frequent words.
COUNTS = [3, 1, 90, 70, 8, 50, 2, 40, 9, 60, 10]
ACTIVATIONS = ("tanh", "sigmoid", "relu")
UPDATE_GATES = ("candidate", "previous")
# What only initialisation reads (the parameters here are random anyway), and how gradients are stored.
NO_VALUES = {"forget_bias", "peephole_init_scale", "tensor_init_scale", "gradients"}


def subsets(gates):
    """Every choice of at least one gate, as the flag's text."""
    return [",".join(some) for some in chain(*(combinations(gates, n) for n in range(1, len(gates) + 1)))]


def grid(**values):
    """Every combination of the options' values."""
    return [dict(zip(values, combination)) for combination in product(*values.values())]


MAPS = grid(num_matrices=[1, 4, len(SYMBOLS)], index_map=["rank", "mod", "file"])
POSITIONS = [1, 3, STEPS, 100]  # fewer than T: wrapping round
ORDERS = [1, 2, 4]

CASES = {
    "clockwork": grid(periods=["1", "1,2", "1,2,4,8", "2,3,5"], activation=ACTIVATIONS),
    "elman": grid(activation=ACTIVATIONS, identity_input=[False, True]),
    "elstm1": grid(gate_input=["xh", "x"], positions=POSITIONS),
    "elstm2": grid(gate_input=["xh", "x"], positions=POSITIONS),
    "gru": grid(update_gate=UPDATE_GATES, activation=ACTIVATIONS),
    "gru_rntn": grid(form=["asymmetric", "full"], update_gate=UPDATE_GATES, activation=ACTIVATIONS),
    "hornn": grid(order=ORDERS, activation=ACTIVATIONS),
    "hornn_fofe": grid(order=ORDERS, activation=ACTIVATIONS, forgetting_factor=[0.6, 1.0])
    + grid(order=[4], activation=["tanh"], forgetting_factor=[0.0, 0.3]),
    "hornn_gated": grid(order=ORDERS, activation=ACTIVATIONS),
    "hornn_max": grid(order=ORDERS, activation=ACTIVATIONS),
    "lstm": grid(gate_input=["xh", "x"]),
    "lstm_peephole": grid(peephole=["full", "diagonal"]),
    "lstm_rntn": grid(peephole=["full", "diagonal"]),
    "m_rnn": grid(factor_size=[0, 4, 9], activation=ACTIVATIONS) + grid(factor_size=[4], identity_input=[True]),
    "r_gru": grid(indexed_gates=subsets(["reset", "update", "candidate"]), num_matrices=[4], update_gate=UPDATE_GATES)
    + MAPS,
    "r_lstm": grid(indexed_gates=subsets(["input", "forget", "output", "cell"]), num_matrices=[4]) + MAPS,
    "r_rntn": grid(num_matrices=[4], activation=ACTIVATIONS, identity_input=[False, True]) + MAPS,
    "rntn": grid(activation=ACTIVATIONS, identity_input=[False, True]),
    "srn": grid(activation=ACTIVATIONS),
}


def write_map(path, num_matrices):
    """A map file, tab-separated for one symbol and with its lines in another order than the symbols; and the map."""
    f = [(5 * w + 2) % num_matrices for w in range(len(SYMBOLS))]
    lines = [f"{symbol} {k}" for symbol, k in zip(SYMBOLS, f)]
    lines[4] = lines[4].replace(" ", "\t")
    path.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")
    return f


def case_id(case):
    name, options, hidden_size = case
    return "-".join([name, f"H{hidden_size}", *(f"{key}={value}" for key, value in options.items())])


@pytest.mark.parametrize("case", [(n, o, h) for n in CASES for o in CASES[n] for h in (6, 7)], ids=case_id)
def test_cell_follows_the_paper(case, tmp_path):
    name, options, hidden_size = case
    input_size = hidden_size if options.get("identity_input") else INPUT
    options = dict(options)
    f = None
    if "num_matrices" in options:
        num_matrices, index_map = options["num_matrices"], options.get("index_map", "rank")
        if index_map == "file":
            f = write_map(tmp_path / "map.txt", num_matrices)
            options["index_map"] = str(tmp_path / "map.txt")
        else:
            f = {"rank": f_rank, "mod": f_mod}[index_map](COUNTS, num_matrices)

    vocabulary = Vocabulary(len(SYMBOLS), SYMBOLS, torch.tensor(COUNTS))
    cell = build_cell(name, input_size, hidden_size, vocabulary, **options).double()
    # relu has no ceiling and feeds its own growth through sums of paths or products; small weights keep it near 1
    randomise(cell, seed=hidden_size, deviation=0.2 if options.get("activation") == "relu" else 0.5)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS, BATCH, input_size))
    tokens = generator.permutation(2 * len(SYMBOLS))[: STEPS * BATCH].reshape(STEPS, BATCH) % len(SYMBOLS)

    expected = ORACLES[name](parameters(cell), x, tokens, {**dataclasses.asdict(cell.options), "f": f})
    with torch.no_grad():
        found, _ = Recurrent(cell)(torch.from_numpy(x), torch.from_numpy(tokens))
    assert expected.shape == (STEPS, BATCH, hidden_size)
    assert 0.05 < np.abs(expected).max() < 50.0  # the comparison is about something
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


def own_cells():
    """The package's cells: other tests and users' own code may register more."""
    return [name for name in cell_names() if get_cell(name).__module__.startswith("rntn_plugins.")]


def test_every_cell_has_an_oracle():
    assert set(own_cells()) == set(ORACLES) == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_option_is_compared(name):
    """Every allowed value of an option with choices, at least two values of any other."""
    fields = dataclasses.fields(get_cell(name).Options)
    assert {key for options in CASES[name] for key in options} == {field.name for field in fields} - NO_VALUES
    for field in fields:
        if field.name in NO_VALUES:
            continue
        compared = {options.get(field.name, field.default) for options in CASES[name]}
        assert len(compared) > 1 and compared >= set(field.metadata.get("choices") or ())


@pytest.mark.parametrize(
    "name, defaults",
    [
        ("elman", {"activation": "sigmoid", "identity_input": False}),  # S18 (1): σ
        ("srn", {"activation": "tanh"}),  # E18 (9)
        ("gru", {"update_gate": "candidate", "activation": "tanh"}),  # T16 (11)
        ("gru_rntn", {"update_gate": "candidate", "activation": "tanh", "form": "asymmetric"}),  # T16 (18)
        ("lstm_peephole", {"peephole": "full"}),  # T16's parameter counts
        ("lstm_rntn", {"peephole": "full"}),
        ("lstm", {"gate_input": "xh"}),  # S18 (10)-(13), E18 (6)
        ("rntn", {"activation": "sigmoid"}),  # S18 (3)
        ("r_rntn", {"activation": "sigmoid", "num_matrices": 100, "index_map": "rank"}),  # S18 (4)-(5), §4
        ("r_gru", {"update_gate": "previous", "indexed_gates": "candidate", "num_matrices": 100}),  # S18 (9), §3
        ("r_lstm", {"indexed_gates": "cell", "num_matrices": 100}),  # S18 §3
        ("elstm1", {"positions": 100}),  # E18 Table 2
        ("elstm2", {"positions": 100}),
        ("hornn_fofe", {"forgetting_factor": 0.6, "order": 3}),  # H16 §6.1.7
    ],
)
def test_defaults_are_the_papers(name, defaults):
    options = dataclasses.asdict(get_cell(name).Options())
    assert {key: options[key] for key in defaults} == defaults


@pytest.mark.parametrize("name", ["elstm1", "elstm2"])
def test_initial_scale_and_output_bias(name):
    """E18's authors start s_t at 1 and b at 0."""
    cell = build_cell(name, 4, 3, positions=5)
    assert torch.equal(cell.scale, torch.ones(5, 3)) and torch.equal(cell.output_bias, torch.zeros(3))


@pytest.mark.parametrize(
    "name, forget_bias",
    [
        ("lstm", lambda p, size: p["bias"][size : 2 * size]),
        ("lstm_peephole", lambda p, size: p["bias"][size : 2 * size]),
        ("lstm_rntn", lambda p, size: p["bias"][size : 2 * size]),
        ("elstm1", lambda p, size: p["bias"][3 * size :]),
        ("r_lstm", lambda p, size: p["recurrent.shared_bias.forget_gate"]),
    ],
)
def test_forget_bias_is_the_forget_gates(name, forget_bias):
    """--forget-bias must reach the block of rows that the oracles read as f_t, and no other bias."""
    vocabulary = Vocabulary(len(SYMBOLS), SYMBOLS, torch.tensor(COUNTS))
    more = {"num_matrices": 4} if name == "r_lstm" else {}
    p = parameters(build_cell(name, 4, 3, vocabulary, forget_bias=1.5, **more))
    assert (forget_bias(p, 3) == 1.5).all()
    assert sum((value == 1.5).sum() for value in p.values()) == 3


@pytest.mark.parametrize("peephole", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["lstm_peephole", "lstm_rntn"])
def test_peephole_init_scale_is_the_peepholes(name, peephole):
    def start(scale):
        torch.manual_seed(1)
        cell = build_cell(name, 4, 3, peephole=peephole, peephole_init_scale=scale)
        cell.initialise("normal", 1.0)
        return parameters(cell)

    whole, half = start(1.0), start(0.5)
    for key in whole:
        factor = 0.5 if key in ("weight_c", "weight_co") else 1.0
        assert np.array_equal(half[key], factor * whole[key]), key
    assert whole["weight_c"].all() and not start(0.0)["weight_c"].any()
