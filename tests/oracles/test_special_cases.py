"""What the papers say about their cells among themselves: special cases, closed forms; and PyTorch's own cells.

Two cells that should agree get the same numbers, parameter by parameter; their outputs are compared in float64, to
1e-12, or 1e-10 where a gate is driven into saturation.
"""

import numpy as np
import pytest
import torch
from numpy_cells import assign, parameters, randomise, sigmoid

from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.layers.recurrent import Recurrent

STEPS, BATCH, INPUT, HIDDEN = 9, 3, 5, 6
SYMBOLS = ["</s>", "<unk>", *"abcdefghi"]
COUNTS = torch.tensor([90, 70, 8, 50, 2, 40, 9, 60, 10, 3, 1])
VOCABULARY = Vocabulary(len(SYMBOLS), SYMBOLS, COUNTS)
SATURATED = 60.0  # σ(60) is 1 to the last bit; random sums of weights stay far below it

GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(STEPS, BATCH, INPUT))
TOKENS = GENERATOR.integers(len(SYMBOLS), size=(STEPS, BATCH))


def build(name, values=None, **options):
    """A cell with the parameters *values*, or random ones."""
    cell = build_cell(name, INPUT, HIDDEN, VOCABULARY, **options).double()
    return randomise(cell, seed=2) if values is None else assign(cell, values)


@torch.no_grad()
def outputs(cell):
    return Recurrent(cell)(torch.from_numpy(X), torch.from_numpy(TOKENS))[0].numpy()


def agree(one, other, tolerance=1e-12):
    found, expected = outputs(one), outputs(other)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


# ---- T16: tensors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update_gate", ["candidate", "previous"])
@pytest.mark.parametrize("form", ["asymmetric", "full"])
def test_gru_rntn_with_zero_tensor_is_gru(form, update_gate):
    p = parameters(build("gru_rntn", form=form, update_gate=update_gate))
    p["weight_tensor"][...] = 0.0
    plain = build("gru", without(p, "weight_tensor"), update_gate=update_gate)
    agree(build("gru_rntn", p, form=form, update_gate=update_gate), plain)


@pytest.mark.parametrize("peephole", ["full", "diagonal"])
def test_lstm_rntn_with_zero_tensor_is_peephole_lstm(peephole):
    p = parameters(build("lstm_rntn", peephole=peephole))
    p["weight_tensor"][...] = 0.0
    plain = build("lstm_peephole", without(p, "weight_tensor"), peephole=peephole)
    agree(build("lstm_rntn", p, peephole=peephole), plain)


def test_full_form_with_only_the_input_by_state_block_is_the_asymmetric_form():
    """T16 (17) with a tensor that is zero outside the block [x, r⊙h] is (18)."""
    p = parameters(build("gru_rntn", form="asymmetric"))
    tensor = np.zeros((INPUT + HIDDEN, INPUT + HIDDEN, HIDDEN))
    tensor[:INPUT, INPUT:] = p["weight_tensor"]
    agree(build("gru_rntn", {**p, "weight_tensor": tensor}, form="full"), build("gru_rntn", p, form="asymmetric"))


def test_full_form_adds_up_both_blocks_of_products_of_input_and_state():
    """The block [r⊙h, x] holds the same products as [x, r⊙h], transposed."""
    p = parameters(build("gru_rntn", form="asymmetric"))
    tensor = np.zeros((INPUT + HIDDEN, INPUT + HIDDEN, HIDDEN))
    tensor[:INPUT, INPUT:] = 0.25 * p["weight_tensor"]
    tensor[INPUT:, :INPUT] = 0.75 * p["weight_tensor"].transpose(1, 0, 2)
    agree(build("gru_rntn", {**p, "weight_tensor": tensor}, form="full"), build("gru_rntn", p, form="asymmetric"))


def test_peephole_lstm_with_zero_peepholes_is_lstm():
    p = parameters(build("lstm_peephole"))
    p["weight_c"][...] = p["weight_co"][...] = 0.0
    agree(build("lstm_peephole", p), build("lstm", without(p, "weight_c", "weight_co")))


def test_diagonal_peepholes_are_full_ones_off_the_diagonal_zero():
    p = parameters(build("lstm_peephole", peephole="diagonal"))
    full = {**p, "weight_c": np.concatenate([np.diag(row) for row in p["weight_c"]])}
    full["weight_co"] = np.diag(p["weight_co"][0])
    agree(build("lstm_peephole", full, peephole="full"), build("lstm_peephole", p, peephole="diagonal"))


# ---- S18: matrices per symbol -------------------------------------------------------------------------------------


def test_r_rntn_with_one_matrix_is_the_s_rnn():
    """S18 §4: K = 1 "corresponds to the s-RNN"."""
    p = parameters(build("r_rntn", num_matrices=1))
    simple = {
        "input.weight": p["input.weight"],
        "input.bias": p["recurrence.bias"][0],
        "weight_hh": p["recurrence.weight"][0],
    }
    agree(build("r_rntn", p, num_matrices=1), build("elman", simple, activation="sigmoid"))


def test_r_rntn_with_a_matrix_per_symbol_is_the_rntn(tmp_path):
    """S18 §4: K = V "corresponds to the unrestricted RNTN"."""
    identity = tmp_path / "map.txt"
    identity.write_text("".join(f"{symbol} {i}\n" for i, symbol in enumerate(SYMBOLS)), encoding="utf-8")
    options = {"num_matrices": len(SYMBOLS), "index_map": str(identity)}
    p = parameters(build("r_rntn", **options))
    agree(build("r_rntn", p, **options), build("rntn", p))


def test_r_rntn_with_a_matrix_per_rank_is_the_rntn_reordered():
    """K = V with (5): the commonest symbol has the first matrix."""
    options = {"num_matrices": len(SYMBOLS), "index_map": "rank"}
    p = parameters(build("r_rntn", **options))
    by_rank = np.argsort(-COUNTS.numpy())  # symbol of rank 1, 2, ...
    q = {name: value.copy() for name, value in p.items()}
    for rank, symbol in enumerate(by_rank):
        q["recurrence.weight"][symbol] = p["recurrence.weight"][rank]
        q["recurrence.bias"][symbol] = p["recurrence.bias"][rank]
    agree(build("r_rntn", p, **options), build("rntn", q))


def test_m_rnn_is_the_rntn_with_factored_matrices():
    """S18 §2: U_h^{i(x_t)} = U_lh diag(v_{x_t}) U_rh, one bias for all symbols."""
    p = parameters(build("m_rnn", factor_size=4))
    matrices = [p["weight_left"] @ np.diag(v) @ p["weight_right"] for v in p["factors"]]
    q = {
        "input.weight": p["input.weight"],
        "recurrence.weight": np.stack(matrices),
        "recurrence.bias": np.stack([p["input.bias"]] * len(SYMBOLS)),
    }
    agree(build("m_rnn", p, factor_size=4), build("rntn", q))


def gate_values(p, gate, indexed):
    """U and b of a gate of r-GRU or r-LSTM with K = 1."""
    if gate in indexed.split(","):
        name = f"recurrent.indexed.{gate}_gate"
        return p[f"{name}.weight"][0], p[f"{name}.bias"][0]
    return p[f"recurrent.shared.{gate}_gate"], p[f"recurrent.shared_bias.{gate}_gate"]


@pytest.mark.parametrize("update_gate", ["candidate", "previous"])
@pytest.mark.parametrize("indexed", ["candidate", "reset", "reset,update,candidate"])
def test_r_gru_with_one_matrix_is_gru(indexed, update_gate):
    options = {"num_matrices": 1, "indexed_gates": indexed, "update_gate": update_gate}
    p = parameters(build("r_gru", **options))
    (U_r, b_r), (U_z, b_z), (U_h, b_h) = (gate_values(p, gate, indexed) for gate in ("reset", "update", "candidate"))
    plain = {
        "weight_ih": p["weight_ih"],
        "bias": np.concatenate([b_r, b_z, b_h]),
        "weight_hh_gates": np.concatenate([U_r, U_z]),
        "weight_hh": U_h,
    }
    agree(build("r_gru", p, **options), build("gru", plain, update_gate=update_gate))


@pytest.mark.parametrize("indexed", ["cell", "forget", "input,forget,output,cell"])
def test_r_lstm_with_one_matrix_is_lstm(indexed):
    options = {"num_matrices": 1, "indexed_gates": indexed}
    p = parameters(build("r_lstm", **options))
    W_i, W_f, W_o, W_c = np.split(p["weight_ih"], 4)
    (U_i, b_i), (U_f, b_f), (U_o, b_o), (U_c, b_c) = (
        gate_values(p, gate, indexed) for gate in ("input", "forget", "output", "cell")
    )
    plain = {
        "weight_ih": np.concatenate([W_i, W_f, W_c, W_o]),
        "weight_hh": np.concatenate([U_i, U_f, U_c, U_o]),
        "bias": np.concatenate([b_i, b_f, b_c, b_o]),
    }
    agree(build("r_lstm", p, **options), build("lstm", plain))


# ---- H16: orders and clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh"])
@pytest.mark.parametrize("name", ["hornn", "hornn_max"])
def test_order_one_is_the_elman_network(name, activation):
    """H16 §5.1: "regular RNNs may be viewed as 1st-order HORNNs"; the maximum of one path is that path."""
    p = parameters(build(name, order=1, activation=activation))
    p["weight_hh"] *= 0.4  # keeps relu from growing
    simple = {"input.weight": p["weight_ih"], "input.bias": p["bias"], "weight_hh": p["weight_hh"][0]}
    agree(build(name, p, order=1, activation=activation), build("elman", simple, activation=activation))


@pytest.mark.parametrize("order", [1, 3])
def test_fofe_without_forgetting_is_hornn(order):
    """H16 (5.5) with α = 1 is (5.3)."""
    p = parameters(build("hornn_fofe", order=order))
    agree(build("hornn_fofe", p, order=order, forgetting_factor=1.0), build("hornn", p, order=order))


def test_fofe_is_hornn_with_scaled_matrices():
    """H16 (5.5): α^n goes into W_hn, the nearest path having α, not 1."""
    p = parameters(build("hornn_fofe", order=3))
    scaled = {**p, "weight_hh": np.stack([0.6**n * p["weight_hh"][n - 1] for n in (1, 2, 3)])}
    agree(build("hornn_fofe", p, order=3, forgetting_factor=0.6), build("hornn", scaled, order=3))


@pytest.mark.parametrize("order", [1, 3])
def test_gated_hornn_with_open_gates_is_hornn(order):
    p = parameters(build("hornn_gated", order=order))
    p["gate_bias"][...] = SATURATED
    plain = without(p, "gate_weight_ih", "gate_weight_hh", "gate_bias")
    agree(build("hornn_gated", p, order=order), build("hornn", plain, order=order), 1e-10)


def test_clockwork_with_one_module_is_the_elman_network():
    p = parameters(build("clockwork", periods="1"))
    simple = {"input.weight": p["weight_ih"], "input.bias": p["bias"], "weight_hh": p["weight_hh.0"]}
    agree(build("clockwork", p, periods="1"), build("elman", simple, activation="tanh"))


def test_slow_clockwork_module_neither_ticks_nor_hears_the_fast_one():
    """What a fast module computes must never reach a slower one, which moves at its own clock only."""
    p = parameters(build("clockwork", periods="1,3"))
    before = outputs(build("clockwork", p, periods="1,3"))
    slow = before[:, :, HIDDEN // 2 :]
    for t in range(1, STEPS):
        assert np.array_equal(slow[t], slow[t - 1]) == (t % 3 != 0)
    fast = HIDDEN // 2
    p["weight_ih"][:fast] += 1.0
    p["bias"][:fast] += 1.0
    p["weight_hh.0"] += 1.0
    after = outputs(build("clockwork", p, periods="1,3"))
    assert np.array_equal(after[:, :, fast:], slow) and not np.allclose(after[:, :, :fast], before[:, :, :fast])


# ---- E18: scales and closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("gate_input", ["xh", "x"])
def test_elstm1_with_unit_scale_is_lstm(gate_input):
    """E18 (20)-(21) with s = 1, b = 0 is (6)-(7)."""
    options = {"gate_input": gate_input, "positions": 4}
    p = parameters(build("elstm1", **options))
    p["scale"][...], p["output_bias"][...] = 1.0, 0.0

    def in_lstm_order(blocks):  # from input, W_in, output, forget
        W_i, W_in, W_o, W_f = np.split(blocks, 4)
        return np.concatenate([W_i, W_f, W_in, W_o])

    plain = {name: in_lstm_order(value) for name, value in without(p, "scale", "output_bias").items()}
    agree(build("elstm1", p, **options), build("lstm", plain, gate_input=gate_input))


@pytest.mark.parametrize("gate_input", ["xh", "x"])
def test_elstm2_is_elstm1_with_the_forget_gate_open(gate_input):
    """E18 (22) is (20) with σ(W_f I_t) = 1."""
    options = {"gate_input": gate_input, "positions": 4}
    p = parameters(build("elstm1", **options))
    forget = slice(3 * HIDDEN, None)
    p["bias"][forget] = SATURATED
    three = {name: value[: 3 * HIDDEN] for name, value in p.items() if name not in ("scale", "output_bias")}
    three |= {name: p[name] for name in ("scale", "output_bias")}
    agree(build("elstm2", three, **options), build("elstm1", p, **options), 1e-10)


def test_srn_closed_form():
    """E18 (4): c_t = Σ_{k=1..t} W_c^(t-k) W_in X_k, the bias being part of W_in; (9): h_t = φ(c_t)."""
    cell = build("srn")
    p = parameters(cell)
    found = outputs(cell)
    for b in range(BATCH):
        for t in range(STEPS):
            c = np.zeros(HIDDEN)
            for k in range(t + 1):
                c += np.linalg.matrix_power(p["weight_cc"], t - k) @ (p["weight_ih"] @ X[k, b] + p["bias"])
            np.testing.assert_allclose(found[t, b], np.tanh(c), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "elstm1", "elstm2"])
def test_lstm_closed_form(name):
    """E18 (8) and (10), I_t = X_t: the forget gates' products are the memory; (24) with s_k and b for the ELSTM."""
    cell = build(name, gate_input="x", **({} if name == "lstm" else {"positions": STEPS}))
    p = parameters(cell)
    blocks = np.split(np.column_stack([p["weight_ih"], p["bias"]]), 3 if name == "elstm2" else 4)
    order = {"lstm": "ifco", "elstm1": "icof", "elstm2": "ico"}[name]
    W = dict(zip(order, blocks))
    s, bias = p.get("scale", np.ones((STEPS, HIDDEN))), p.get("output_bias", np.zeros(HIDDEN))
    found = outputs(cell)
    for b in range(BATCH):
        I_of = [np.append(X[t, b], 1.0) for t in range(STEPS)]
        for t in range(STEPS):
            c = np.zeros(HIDDEN)
            for k in range(t + 1):
                memory = np.ones(HIDDEN)
                for j in range(k + 1, t + 1):
                    memory *= sigmoid(W["f"] @ I_of[j]) if "f" in W else 1.0
                c += s[k] * memory * sigmoid(W["i"] @ I_of[k]) * np.tanh(W["c"] @ I_of[k])
            h = sigmoid(W["o"] @ I_of[t]) * np.tanh(c + bias)
            np.testing.assert_allclose(found[t, b], h, rtol=0, atol=1e-12)


def test_simplified_gru_closed_form():
    """E18 (19): with U_z = U_r = U = 0 the update gate plays the forget gate's role."""
    p = parameters(build("gru", update_gate="previous"))
    p["weight_hh"][...] = p["weight_hh_gates"][...] = 0.0
    found = outputs(build("gru", p, update_gate="previous"))
    _, W_z, W = np.split(np.column_stack([p["weight_ih"], p["bias"]]), 3)
    for b in range(BATCH):
        I_of = [np.append(X[t, b], 1.0) for t in range(STEPS)]
        for t in range(STEPS):
            h = np.zeros(HIDDEN)
            for k in range(t + 1):
                memory = np.ones(HIDDEN)
                for j in range(k + 1, t + 1):
                    memory *= sigmoid(W_z @ I_of[j])
                h += memory * (1.0 - sigmoid(W_z @ I_of[k])) * np.tanh(W @ I_of[k])
            np.testing.assert_allclose(found[t, b], h, rtol=0, atol=1e-12)


# ---- PyTorch's own cells --------------------------------------------------------------------------------------------


@torch.no_grad()
def torch_outputs(layer, weight_ih, weight_hh, bias_ih, bias_hh):
    values = {"weight_ih_l0": weight_ih, "weight_hh_l0": weight_hh, "bias_ih_l0": bias_ih, "bias_hh_l0": bias_hh}
    return assign(layer, values)(torch.from_numpy(X))[0].numpy()


def test_lstm_is_torch_lstm():
    """torch.nn.LSTM orders its gates i, f, g, o and has two biases that only occur as their sum."""
    cell = build("lstm")
    p = parameters(cell)
    W_i, W_f, W_c, W_o = np.split(p["weight_ih"], 4)
    U_i, U_f, U_c, U_o = np.split(p["weight_hh"], 4)
    b_i, b_f, b_c, b_o = np.split(p["bias"], 4)
    bias = np.concatenate([b_i, b_f, b_c, b_o])
    found = torch_outputs(
        torch.nn.LSTM(INPUT, HIDDEN).double(),
        np.concatenate([W_i, W_f, W_c, W_o]),
        np.concatenate([U_i, U_f, U_c, U_o]),
        0.25 * bias,
        0.75 * bias,
    )
    np.testing.assert_allclose(found, outputs(cell), rtol=0, atol=1e-12)


def test_elman_is_torch_rnn():
    for activation in ("tanh", "relu"):
        cell = build("elman", activation=activation)
        with torch.no_grad():
            cell.weight_hh *= 0.4  # keeps relu from growing
        p = parameters(cell)
        layer = torch.nn.RNN(INPUT, HIDDEN, nonlinearity=activation).double()
        found = torch_outputs(layer, p["input.weight"], p["weight_hh"], p["input.bias"], np.zeros(HIDDEN))
        np.testing.assert_allclose(found, outputs(cell), rtol=0, atol=1e-12)


def gru_and_torch_gru(reset_bias):
    """Outputs of our GRU and of torch.nn.GRU (gates r, z, n; z weighs the previous state) with the same numbers."""
    p = parameters(build("gru", update_gate="previous"))
    if reset_bias is not None:
        p["bias"][:HIDDEN] = reset_bias
    found = torch_outputs(
        torch.nn.GRU(INPUT, HIDDEN).double(),
        p["weight_ih"],
        np.concatenate([p["weight_hh_gates"], p["weight_hh"]]),
        p["bias"],
        np.zeros(3 * HIDDEN),
    )
    return outputs(build("gru", p, update_gate="previous")), found


def test_gru_is_not_torch_gru():
    """torch.nn.GRU's reset gate acts on U h, the papers' on h: T16 (10), S18 (8), E18 (14)."""
    ours, torchs = gru_and_torch_gru(reset_bias=None)
    np.testing.assert_allclose(ours[0], torchs[0], rtol=0, atol=1e-12)  # no previous state yet to gate
    assert np.abs(ours[1:] - torchs[1:]).max() > 1e-2


def test_gru_is_torch_gru_while_the_reset_gate_is_open():
    ours, torchs = gru_and_torch_gru(reset_bias=SATURATED)
    np.testing.assert_allclose(ours, torchs, rtol=0, atol=1e-10)
