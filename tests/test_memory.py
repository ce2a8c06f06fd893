"""The memory analysis: Jacobians against numerical derivatives, factors against E18's closed forms, and the command."""

import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Cell, Vocabulary, each_step
from rntn_plugins.layers import memory, windows
from rntn_plugins.layers.bidirectional import BidirectionalStack
from rntn_plugins.layers.recurrent import Recurrent, RecurrentStack
from rntn_plugins.layers.windows import Text, cells_of, draw_positions, inputs_of, join, read, reading_layers
from rntn_plugins.registry import get_cell

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "cli")]
import memory as script  # noqa: E402
import memory_report as report  # noqa: E402
from commands import TRAIN  # noqa: E402
from conllu_setup import SMALL, TAGGING, inside, prepare, splits  # noqa: E402
from corpus import binarise  # noqa: E402

T, B, I, H, V = 6, 3, 3, 4, 9  # noqa: E741
VOCABULARY = Vocabulary(V, [f"w{i}" for i in range(V)], torch.arange(V, 0, -1))
LENGTHS = torch.tensor([T, 4, 2])
#: cells whose step has a factor that E18 analyses, where their state keeps it
GATED = {name: "c" if "lstm" in name else "h" for name in cell_names() if "lstm" in name or "gru" in name}

CASES = [(name, {}) for name in cell_names() if "gru" not in name]
CASES += [(name, {"update_gate": z}) for name in GATED if "gru" in name for z in ("previous", "candidate")]


def make(name: str, size: int = I, **options) -> Cell:
    """A cell in float64 with random parameters, biases too."""
    torch.manual_seed(1)
    if hasattr(get_cell(name).Options(), "num_matrices"):
        options["num_matrices"] = 4
    cell = build_cell(name, size, H, VOCABULARY, **options).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter, std=0.5)
    return cell


def text(steps: int = T, lengths=LENGTHS) -> Text:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(steps, len(lengths), I, generator=generator, dtype=torch.float64)
    return Text(x, torch.randint(0, V, (steps, len(lengths)), generator=generator), lengths)


def everywhere(read_text: Text):
    """Rows and steps of all positions."""
    places = [(row, step) for row, length in enumerate(read_text.lengths.tolist()) for step in range(length)]
    return torch.tensor(places).unbind(1)


def exact(cells, windows):
    return memory.jacobian_norms(cells, windows, H, torch.Generator())


def numerical(layers, some: Text, row: int, t: int, k: int, layer: int, eps: float = 1e-5):
    """Norms of ∂h_t/∂x_{t-k} and of a layer's ∂c_t/∂x_{t-k} from central differences of the whole sequence."""
    found = []
    for unit in range(I):
        pair = []
        for sign in (1, -1):
            x = some.x[: t + 1, row : row + 1].clone()
            x[t - k, 0, unit] += sign * eps
            y, carries = layers(x, some.tokens[: t + 1, row : row + 1])
            carry = carries[layer] if isinstance(layers, RecurrentStack) else carries
            pair.append((y[-1, 0], getattr(carry, "c", y[-1])[0]))
        found.append([(plus - minus) / (2 * eps) for plus, minus in zip(*pair)])
    return [torch.stack(columns).norm().item() for columns in zip(*found)]


# ---- Jacobians -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*cell_names(), "two layers"])
def test_jacobians_against_numerical_derivatives(name):
    """The windows start in the middle of the sequences, with the state that these have there."""
    if name == "two layers":
        layers = RecurrentStack([make("srn"), make("lstm", H)])
    else:
        layers = Recurrent(make(name))
    cells, some, lags = cells_of(layers), text(), 3
    rows, ends = everywhere(some)
    output, states = exact(cells, read(cells, some, rows, ends, lags))
    assert output.shape == (lags + 1, T + 4 + 2) and len(states) == len(cells)
    for layer, state in enumerate(states):
        assert (state is None) == (not hasattr(cells[layer].initial_carry(1), "c"))
        for place, (row, t) in enumerate(zip(rows.tolist(), ends.tolist())):
            for k in range(lags + 1):
                if k > t:  # the sequence does not reach that far back
                    assert output[k, place].isnan() and (state is None or state[k, place].isnan())
                    continue
                expected = numerical(layers, some, row, t, k, layer)
                assert math.isclose(output[k, place], expected[0], rel_tol=1e-6, abs_tol=1e-8)
                if state is not None:
                    assert math.isclose(state[k, place], expected[1], rel_tol=1e-6, abs_tol=1e-8)


def test_probes_estimate_the_norm():
    probes = memory.make_probes(3, 5, 7, torch.Generator().manual_seed(1))
    assert probes.shape == (3, 5, 7)
    gram = torch.einsum("mrh,nrh->rmn", probes, probes)
    torch.testing.assert_close(gram, torch.eye(3, dtype=torch.float64).expand(5, 3, 3))
    assert not torch.equal(probes[:, 0], probes[:, 1]), "every position its own"
    jacobian = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    many = memory.make_probes(2, 20_000, 7, torch.Generator().manual_seed(3))
    estimates = (many @ jacobian).square().sum((0, 2)) * 7 / 2
    assert math.isclose(estimates.mean(), jacobian.square().sum(), rel_tol=0.02)
    unit = memory.make_probes(9, 2, 7, torch.Generator()).double()
    assert torch.equal((unit @ jacobian).square().sum((0, 2)), jacobian.square().sum().expand(2))


def test_analysis_does_not_depend_on_how_windows_are_grouped():
    layers, some = Recurrent(make("elstm1")), text()
    whole = memory.analyse(layers, [some], lags=3, positions=99, probes=H)
    with mock.patch.object(memory, "ROWS", 2):
        parts = memory.analyse(layers, [some], lags=3, positions=99, probes=H)
    torch.testing.assert_close(whole.output, parts.output, equal_nan=True)
    apart = [Text(some.x[:, row : row + 1], some.tokens[:, row : row + 1], LENGTHS[row : row + 1]) for row in range(B)]
    done = []
    split = memory.analyse(layers, apart, lags=3, positions=99, probes=H, progress=lambda *state: done.append(state))
    torch.testing.assert_close(whole.output, split.output, equal_nan=True)
    for name in ("state", "kept", "scaled"):
        one, other = (getattr(found.layers[0], name) for found in (whole, split))
        torch.testing.assert_close(one, other, equal_nan=True)
    assert done == [(12, 12)]
    few = [memory.analyse(layers, [some], 3, 5, 2, seed).output for seed in (1, 1, 2)]
    assert few[0].shape == (4, 5) and torch.equal(few[0].nan_to_num(), few[1].nan_to_num())
    assert not torch.equal(few[0].nan_to_num(), few[2].nan_to_num())


def test_positions():
    texts = [text(), text(9, torch.tensor([0, 9]))]
    found = draw_positions(texts, 99, torch.Generator().manual_seed(1))
    for (drawn, rows, steps), some in zip(found, texts, strict=True):
        assert drawn is some
        assert torch.equal(torch.stack([rows, steps]), torch.stack(everywhere(some))), "all there are, each once"
    counts = torch.zeros(2, 9)
    for seed in range(300):
        for drawn, rows, steps in draw_positions(texts, 2, torch.Generator().manual_seed(seed)):
            if drawn is texts[1]:
                counts[rows, steps] += 1
    assert not counts[0].any() and (counts[1] > 12).all() and (counts[1] < 48).all()  # 600 / 21 each
    with pytest.raises(ValueError, match="not one token"):
        memory.analyse(Recurrent(make("gru")), [text(2, torch.tensor([0, 0]))])
    for name in ("lags", "positions", "probes"):
        with pytest.raises(ValueError, match=f"--{name} 0 must be at least 1"):
            memory.analyse(Recurrent(make("gru")), [text()], **{name: 0})


# ---- factors ---------------------------------------------------------------------------------------------------------


def step_of(cell: Cell, steps: int = 3):
    """What the third step is given."""
    some = text()
    projected, carry = cell.project(some.x, some.tokens), cell.initial_carry(B)
    for at_step in each_step(projected)[:steps]:
        _, carry = cell.step(at_step, carry)
    return each_step(projected)[steps], carry


@pytest.mark.parametrize("name, options", CASES)
def test_factors_are_values_of_the_step(name, options):
    cell = make(name, **options)
    given, carry = step_of(cell)
    factors = cell.memory(given, carry)
    assert ("kept" in factors) == (name in GATED) and ("scale" in factors) == name.startswith("elstm")
    if name not in GATED or name == "elstm2":
        assert name != "elstm2" or (factors["kept"] == 1).all()
        return
    seen, gate = [], torch.sigmoid
    with mock.patch.object(torch, "sigmoid", lambda x: seen.append(gate(x)) or seen[-1]):
        cell.step(given, carry)
    blocks = [block for gates in seen for block in gates.split(H, dim=-1)]
    if options.get("update_gate") == "candidate":
        blocks = [1 - block for block in blocks]
    assert any(torch.equal(factors["kept"], block) for block in blocks)


@pytest.mark.parametrize("name, options", [case for case in CASES if case[0] in GATED])
def test_factors_are_derivatives_of_the_direct_path(name, options):
    """∂c_t/∂c_{t-1} with h_{t-1} held still and no peephole; of a GRU ∂h_t/∂h_{t-1} of E18's simplified one, (18)."""
    cell = make(name, **options)
    with torch.no_grad():
        for key, parameter in cell.named_parameters():
            if any(part in key for part in ("weight_hh", "weight_c", "recurrent", "tensor")):
                parameter.zero_()
    given, carry = step_of(cell)

    def state_after(state):
        return getattr(cell.step(given, carry._replace(**{GATED[name]: state}))[1], GATED[name])

    jacobian = torch.autograd.functional.jacobian(state_after, getattr(carry, GATED[name]))
    expected = torch.diag_embed(cell.memory(given, carry)["kept"])
    for row in range(B):
        torch.testing.assert_close(jacobian[row, :, row], expected[row], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "elstm1", "elstm2"])
def test_the_state_is_e18s_sum(name):
    """E18 (8) and (24): c_t = Σ_k s_{t-k} [Π_{j=t-k+1..t} f_j] σ(W_i I_{t-k}) tanh(W_in I_{t-k})."""
    cell, some = make(name), text(lengths=torch.tensor([T] * B))
    rows, ends = everywhere(some)
    windows = read([cell], some, rows, ends, T - 1)
    new, carry = [], cell.initial_carry(B)
    states = []
    for at_step in cell.project(some.x):
        values = cell.gate_values(at_step, carry)
        new.append(values[0] * (values[2] if name == "lstm" else values[1]))
        carry = cell.step(at_step, carry)[1]
        states.append(carry.c)
    (factors,) = windows.factors
    product = memory.products(factors["kept"], windows.lengths)
    assert torch.equal(product[0], torch.ones_like(product[0]))
    summands = product * memory.by_lag(torch.stack(new)[:, rows], windows.lengths)
    if "scale" in factors:
        summands = summands * memory.by_lag(factors["scale"], windows.lengths)
    torch.testing.assert_close(summands.nansum(0), torch.stack(states)[ends, rows])
    kept, scaled = memory.fading(factors, windows.lengths)
    torch.testing.assert_close(kept, product.mean(-1), equal_nan=True)
    if name != "lstm":
        by_hand = (memory.by_lag(factors["scale"], windows.lengths) * product).abs().mean(-1)
        torch.testing.assert_close(scaled, by_hand, equal_nan=True)
        assert torch.equal(memory.weights(cell, 2)[0], cell.scale)
    if name == "elstm2":
        assert (product.isnan() | (product == 1)).all(), "without a forget gate everything is kept"


def test_constant_forget_gate():
    """The linear special case: gates that see neither h nor x, and the same input at every step. The memory is f^k."""
    f = 0.7
    cell = make("lstm", gate_input="x")
    with torch.no_grad():
        cell.weight_ih[H : 2 * H] = 0
        cell.bias[H : 2 * H] = math.log(f / (1 - f))
    some = text(lengths=torch.tensor([T]))
    some = some._replace(x=some.x[:1, :1].expand(T, 1, I))
    windows = read([cell], some, torch.tensor([0]), torch.tensor([T - 1]), 9)
    expected = torch.tensor([f**k if k < T else math.nan for k in range(10)], dtype=torch.float64)
    _, (state,) = exact([cell], windows)
    torch.testing.assert_close(state[:, 0] / state[0, 0], expected, equal_nan=True)
    kept, scaled = memory.fading(windows.factors[0], windows.lengths)
    torch.testing.assert_close(kept[:, 0], expected, equal_nan=True)
    assert scaled is None


def test_linear_network():
    """SRN, E18 (3)-(5): ∂c_t/∂X_{t-k} = W_c^k W_in, and ‖W_c^k‖ is at most λ_max^k."""
    cell, some = make("srn"), text()
    _, (state,) = exact([cell], read([cell], some, torch.tensor([0]), torch.tensor([T - 1]), T - 1))
    power = torch.eye(H, dtype=torch.float64)
    _, powers, bound = memory.weights(cell, T - 1)
    for k in range(T):
        torch.testing.assert_close(state[k, 0], (power @ cell.weight_ih).norm())
        torch.testing.assert_close(powers[k], torch.linalg.svdvals(power)[0])
        power = power @ cell.weight_cc
    torch.testing.assert_close(bound, torch.linalg.svdvals(cell.weight_cc)[0] ** torch.arange(T))
    assert (powers <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["r_rntn", "elstm1"])
def test_windows_are_read_piece_by_piece(name, monkeypatch):
    """Each piece of a text with its own symbols and positions."""
    cells, some = cells_of(Recurrent(make(name))), text()
    rows, ends = everywhere(some)
    whole = exact(cells, read(cells, some, rows, ends, 3))
    for size in (1, 4):
        monkeypatch.setattr(windows, "PIECE", size)
        output, states = exact(cells, read(cells, some, rows, ends, 3))
        torch.testing.assert_close(output, whole[0], equal_nan=True)
        for state, expected in zip(states, whole[1]):
            assert state is expected is None or torch.allclose(state, expected, equal_nan=True)


def test_curves_are_medians_and_quartiles():
    norms = torch.stack([torch.arange(5.0), torch.arange(5.0) ** 2])
    assert report.curve(norms) == {"median": [2, 4], "low": [1, 1], "high": [3, 9]}
    assert report.curve(torch.tensor([3.0, float("nan")])) == {"median": [3, None]} and report.curve(None) is None
    relative = report.with_relative(norms[:, 1:])["relative"]
    assert relative["median"] == [1, 2.5] and relative["low"] == [1, 1.75]


def test_the_picture_has_shares_of_lag_0():
    """As its titles say."""
    layer = memory.Layer("LSTM", torch.tensor([[8.0], [4.0]]), None, None, None, None, None)
    entry = report.describe(memory.Analysis(torch.tensor([[4.0], [1.0]]), (layer,)))
    panels = report.lines_of({"name": "x", **entry})
    assert [panels[panel][0][1]["median"] for panel in ("h", "c")] == [[1, 0.25], [1, 0.5]]
    assert not panels["gates"] and not panels["scale"]


def test_another_step_does_not_inherit_the_factor():
    class Other(get_cell("lstm")):
        def step(self, projected, carry):
            return carry.h, carry

    class Same(get_cell("elstm1")):
        pass

    assert Other.memory is Cell.memory and Same.memory is get_cell("elstm1").memory
    assert Same.memory_weights is get_cell("elstm1").memory_weights


# ---- models ----------------------------------------------------------------------------------------------------------


def test_layers_that_read_the_input():
    stack = RecurrentStack([make("gru"), make("gru", H)])
    both = BidirectionalStack([(make("lstm"), make("lstm")), (make("lstm", 2 * H), make("lstm", 2 * H))])
    assert reading_layers(nn.Sequential(nn.Linear(2, 2), stack)) == (stack, "1")
    found, name = reading_layers(nn.ModuleDict({"network": both}))
    assert found is both.layers[0].forward_layer and name == "network.layers.0.forward_layer"
    with pytest.raises(ValueError, match="Linear has no recurrent layer"):
        reading_layers(nn.Linear(2, 2))
    some = text()
    x, tokens, lengths = inputs_of(both, found, x=some.x, lengths=LENGTHS)
    assert torch.equal(x, some.x) and tokens is None and torch.equal(lengths, LENGTHS)
    assert not found._forward_pre_hooks
    with pytest.raises(ValueError, match="does not use"):
        inputs_of(nn.Identity(), found, input=some.x)
    joined = join([read(cells_of(found), part, torch.tensor([0]), torch.tensor([1]), 2) for part in (some, some)])
    assert joined.x.shape == (3, 2, I) and joined.lengths.tolist() == [2, 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function from a name to data and checkpoint, trained for a few updates when needed."""
    folder, found = tmp_path_factory.mktemp("memory"), {}

    def language_model(name, *options):
        inside("train", found["words"], *TRAIN, "--arch", name, "--max-update", 3, "--disable-validation", "--save-dir",
               folder / name, *options)  # fmt: skip

    def tagger(name, *options):
        inside("train", found["treebank"], *TAGGING, *SMALL, "--arch", name, "--max-update", 3, "--disable-validation",
               "--save-dir", folder / name, *options)  # fmt: skip

    def get(name, *options):
        sentences = "_lm" not in name
        data = "treebank" if sentences else "words"
        if data not in found:
            found[data] = prepare(folder / "conllu") if sentences else binarise(folder)
        if name not in found:
            (tagger if sentences else language_model)(name, *options)
            found[name] = folder / name / "checkpoint_last.pt"
        return str(found[data]), str(found[name])

    return get


def test_two_language_models(trained, tmp_path, capsys):
    data, elstm = trained("elstm1_lm")
    _, hornn = trained("hornn_lm", "--layers", "2")
    out, numbers = tmp_path / "memory.png", tmp_path / "memory.json"
    arguments = [data, elstm, hornn, "--lags", "9", "--positions", "40", "--probes", "8", "--out", str(out)]
    assert script.main([*arguments, "--json", str(numbers)]) == 0
    printed = capsys.readouterr()
    assert out.read_bytes().startswith(b"\x89PNG") and printed.out.splitlines()[-1] == f"wrote {out}"
    assert "elstm1_lm (ELSTM1): a token's influence falls below 50% at lag" in printed.out
    assert "elstm1_lm: 32 of 40 positions" in printed.err and "elstm1_lm: 40 of 40 positions" in printed.err
    result = json.loads(numbers.read_text())
    one, other = result["models"]
    assert (result["lags"], one["name"], other["network"]) == (9, "elstm1_lm", "decoder.stack")
    assert one["positions"][0] == 40 and len(one["positions"]) == 10
    assert one["h"]["relative"]["median"][0] == 1 and all(value > 0 for value in one["h"]["median"])
    for low, middle, high in zip(*(one["h"][key] for key in ("low", "median", "high"))):
        assert low <= middle <= high
    (layer,) = one["layers"]
    assert layer["cell"] == "ELSTM1" and len(layer["scale"]["median"]) == 100 and layer["matrix_powers"] is None
    assert layer["c"]["relative"]["median"][0] == layer["gates"]["median"][0] == 1
    assert [part["cell"] for part in other["layers"]] == ["HORNN", "HORNN"]
    assert all(part["gates"] is None and part["c"] is None for part in other["layers"])
    first = numbers.read_bytes()
    assert script.main([*arguments, "--json", str(numbers)]) == 0 and numbers.read_bytes() == first, "seeded"


@pytest.mark.parametrize("break_mode", ["none", "eos"])
def test_text_of_language_models(trained, break_mode):
    """Streams and sentences are those that the task reads, each in text order."""
    data, checkpoint = trained("elstm1_lm")
    model, task, layers, _ = script.load(checkpoint, data)
    assert not any(part.training for part in model.modules())
    task.args.sample_break_mode = break_mode
    texts = script.read_texts(model, layers, task, "valid", 10**6, 5, 1)
    corpus = torch.from_numpy(task.dataset("valid").tokens).long()
    assert sum(int(some.lengths.sum()) for some in texts) == len(corpus)
    end, pieces = task.dictionary.eos(), []
    for some in texts:
        torch.testing.assert_close(some.x, model.decoder.embed_tokens(some.tokens))
        pieces += [some.tokens[:length, row] for row, length in enumerate(some.lengths.tolist())]
    pieces = [piece for piece in pieces if len(piece)]
    if break_mode == "none":
        assert len(texts) == 1 and torch.equal(torch.cat(pieces), torch.cat([torch.tensor([end]), corpus[:-1]]))
    else:
        assert all(piece[0] == end and not (piece[1:] == end).any() for piece in pieces)
    if break_mode == "none":  # streams are much longer than the lags, and fewer for that
        for lags, streams in ((5, min(20, len(corpus) // 24)), (len(corpus) // 12 - 1, 3), (len(corpus) - 1, 1)):
            (some,) = script.read_texts(model, layers, task, "valid", 10**6, lags, 1)
            assert some.x.size(1) == streams
    few = script.read_texts(model, layers, task, "valid", 40, 5, 1)
    assert 40 <= sum(int(some.lengths.sum()) for some in few) < len(corpus)


@pytest.mark.parametrize(
    "name, options, network",
    [
        ("dbrnn_gru", ("--dropout", "0.5"), "network.lower.layers.0.forward_layer"),
        ("seq2seq_attention_srn", ("--fixed-length", "12"), "encoder.stack"),
    ],
)
def test_models_of_sentences(trained, tmp_path, name, options, network):
    data, checkpoint = trained(name, *options)
    out, numbers = tmp_path / "memory.svg", tmp_path / "memory.json"
    arguments = [data, checkpoint, "--lags", "6", "--positions", "30", "--out", str(out), "--json", str(numbers)]
    assert script.main(arguments) == 0
    assert out.read_bytes().startswith(b"<?xml")
    (entry,) = json.loads(numbers.read_text())["models"]
    assert entry["network"] == network and entry["positions"][0] == 30 > entry["positions"][6]
    (layer,) = entry["layers"]
    assert (layer["gates"] is None) == (layer["matrix_bound"] is not None) == ("srn" in name)
    model, task, layers, _ = script.load(checkpoint, data)
    texts = script.read_texts(model, layers, task, "valid", 10**6, 6, 1)
    words = sum(min(12 if "seq" in name else 99, sum(line[:1].isdigit() for line in sentence.splitlines()))
                for sentence in splits()["valid"].split("\n\n"))  # fmt: skip
    assert sum(int(some.lengths.sum()) for some in texts) == words, "padding is no position"


def test_steps_of_a_fixed_length():
    given = {"src_lengths": torch.tensor([3, 2]), "target_lengths": torch.tensor([6, 4])}
    assert script.steps_of(SimpleNamespace(per_step=1), given).tolist() == [6, 4]
    assert script.steps_of(SimpleNamespace(per_step=2), given).tolist() == [3, 2]
    assert script.steps_of(SimpleNamespace(), given).tolist() == [3, 2]


def test_numbers_that_are_not_known():
    nan = math.nan
    norms = torch.tensor([[2.0, 4.0, 0.0], [1.0, 1.0, 1.0], [0.5, nan, nan], [nan, nan, nan]])
    found = report.with_relative(norms)
    assert found["median"] == [2.0, 1.0, 0.5, None]
    assert found["relative"]["median"] == [1.0, 0.375, 0.25, None], "nothing is relative to zero"
    assert report.falls_to([1, 0.4, 0.6, None, 0.2], 0.5) == 4 and report.falls_to([1, 0.8], 0.5) is None
    layer = memory.Layer("LSTM", *[None] * 6)
    found = report.describe(memory.Analysis(torch.cat([norms, norms, norms, norms], dim=1), (layer,)))
    assert found["positions"] == [12, 12, 4, 0] and found["reach"] == 2, "four positions are too few to draw"
    assert found["falls_to"] == {"0.5": 1, "0.1": None, "0.01": None}
    few = report.describe(memory.Analysis(norms[:, [0, 0, 0, 0, 2]], (layer,)))  # of five positions
    assert few["positions"] == [5, 5, 4, 0] and few["reach"] == 3 and few["falls_to"]["0.01"] is None
    alone = report.describe(memory.Analysis(norms[:, :1], (layer,)))
    assert alone["positions"] == [1, 1, 1, 0] and alone["reach"] == 3
    assert report.summary({"name": "few", **few}).endswith("1% at no lag up to 2")
    assert script.names_of(["a/lstm/best.pt", "a/gru/best.pt"]) == ["lstm", "gru"]
    assert script.names_of(["a/lstm/best.pt", "a/lstm/last.pt"]) == ["lstm/best", "lstm/last"]
    assert script.names_of(["a/lstm/best.pt", "b/lstm/best.pt"]) == ["a/lstm/best.pt", "b/lstm/best.pt"]


@pytest.mark.parametrize(
    "now, why",
    [(0.0, "half of the tokens or more do not move the output"), (math.nan, "diverged"), (math.inf, "diverged")],
)
def test_models_without_an_influence(now, why):
    """Shares of nothing are not said to fall."""
    norms = torch.tensor([[now] * 20, [0.0 if now == 0 else now] * 20])
    entry = report.describe(memory.Analysis(norms, (memory.Layer("LSTM", *[None] * 6),)))
    assert why in report.summary({"name": "x", **entry}) and "falls" not in report.summary({"name": "x", **entry})


def refused(capsys, *arguments) -> str:
    assert script.main([str(argument) for argument in arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("positions")]
    assert len(lines) == 1 and lines[0].startswith("memory: error: "), lines
    return lines[0].removeprefix("memory: error: ")


def test_errors(trained, tmp_path, capsys):
    data, checkpoint = trained("elstm1_lm")
    sentences, tagger = trained("dbrnn_gru", "--dropout", "0.5")
    assert "nowhere.pt" in refused(capsys, data, tmp_path / "nowhere.pt")
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"no checkpoint")
    assert f"{broken} cannot be loaded (UnpicklingError); is it a checkpoint" in refused(capsys, data, broken)
    assert "no dict.txt here" in refused(capsys, tmp_path, checkpoint)
    assert str(tagger) in refused(capsys, data, tagger)
    assert "Dataset not found: dev" in refused(capsys, data, checkpoint, "--subset", "dev")
    assert "Dataset not found: dev" in refused(capsys, sentences, tagger, "--subset", "dev")
    assert "--lags 0 must be from 1 to 100,000" in refused(capsys, data, checkpoint, "--lags", 0)
    assert "--lags 1000000000 must be from 1 to 100,000" in refused(capsys, data, checkpoint, "--lags", 10**9)
    assert re.search(r"--lags 99999: valid has only \d+ tokens$", refused(capsys, data, checkpoint, "--lags", 99999))
    assert f"--json {tmp_path} is a folder" in refused(capsys, data, checkpoint, "--json", tmp_path)
    same = ("--json", tmp_path / "m.svg", "--out", tmp_path / "x" / ".." / "m.svg")
    (tmp_path / "x").mkdir()
    assert "--out are the same file" in refused(capsys, data, checkpoint, *same)
    assert "must end with one of .png, .svg, .pdf" in refused(capsys, data, checkpoint, "--out", "memory.txt")
    assert "--json nowhere/m.json: there is no folder nowhere" in refused(
        capsys, data, checkpoint, "--json", "nowhere/m.json"
    )
    said = f"--user-dir {tmp_path / 'nowhere'}: there is no such folder"
    assert said in refused(capsys, data, checkpoint, "--user-dir", tmp_path / "nowhere")
    assert "--seed -1: no number from 0" in refused(capsys, data, checkpoint, "--seed", -1)
    cut = tmp_path / "cut.pt"
    cut.write_bytes(Path(checkpoint).read_bytes()[:3000])
    said = refused(capsys, data, cut)
    assert str(cut) in said and ("it is cut off" in said or "cannot be loaded" in said)
    with pytest.raises(SystemExit) as raised:
        script.main([data])
    assert raised.value.code == 2
