"""The papers' recurrences as plain NumPy loops: oracles for the torch cells.

Written from the printed equations, one row and one step at a time, without any thought of speed. T16: Tjandra et al.
2016; S18: Salle & Villavicencio 2018; E18: Su et al. 2018; H16: Soltani 2016. Every oracle takes

    p        the cell's parameters by name, float64 (names, shapes and block order: the tables in the cells' docstrings)
    x        inputs [T, B, I]
    tokens   symbols [T, B], or None
    o        the cell's options by name; for cells with one matrix per class of symbols also ``f``, the class of every
             symbol counted from 0 (see f_rank, f_mod)

and returns outputs [T, B, H], all states being zero before the first step. T16 writes row vectors (x W), the other
papers column vectors (W x); each oracle keeps its paper's side, hence the transposes in T16's.
"""

import numpy as np


def sigmoid(a):
    return 1.0 / (1.0 + np.exp(-a))


def relu(a):
    return np.where(a > 0.0, a, 0.0)


ACTIVATIONS = {"tanh": np.tanh, "sigmoid": sigmoid, "relu": relu}


def every_row(x, row):
    """Outputs [T, B, H] from ``row(b)``, a generator of the outputs [H] of batch row b."""
    return np.stack([np.stack(list(row(b))) for b in range(x.shape[1])], axis=1)


# ---- simple networks ------------------------------------------------------------------------------------------------


def elman(p, x, tokens, o):
    """S18 (1), H16 (5.1): h_t = f(W_h x_t + U_h h_{t-1} + b_h); with identity_input x_t stands for W_h x_t."""
    f, U_h, b_h = ACTIVATIONS[o["activation"]], p["weight_hh"], p["input.bias"]
    W_h = np.eye(len(b_h)) if o["identity_input"] else p["input.weight"]

    def row(b):
        h = np.zeros(len(b_h))
        for t in range(len(x)):
            h = f(W_h @ x[t, b] + U_h @ h + b_h)
            yield h

    return every_row(x, row)


def srn(p, x, tokens, o):
    """E18 (1)-(2): c_t = W_c c_{t-1} + W_in X_t, h_t = f(c_t); the bias belongs to W_in, X_t being [X_t; 1]."""
    f, W_c = ACTIVATIONS[o["activation"]], p["weight_cc"]
    W_in = np.column_stack([p["weight_ih"], p["bias"]])

    def row(b):
        c = np.zeros(len(W_c))
        for t in range(len(x)):
            c = W_c @ c + W_in @ np.append(x[t, b], 1.0)
            yield f(c)

    return every_row(x, row)


# ---- gated networks and their tensor products -----------------------------------------------------------------------


def tensor_product(left, W_tsr, right):
    """left W_tsr^[1:d] right^T of T16 (18): component k is the sum over i, j of left_i W_tsr[i, j, k] right_j."""
    product = np.zeros(W_tsr.shape[2])
    for k in range(W_tsr.shape[2]):
        for i in range(len(left)):
            for j in range(len(right)):
                product[k] += left[i] * W_tsr[i, j, k] * right[j]
    return product


def new_state(z, previous, candidate, update_gate):
    """h_t: T16 (11) weighs the candidate with z_t, S18 (9) and E18 (15) weigh the previous state with it."""
    if update_gate == "candidate":
        return (1.0 - z) * previous + z * candidate
    return z * previous + (1.0 - z) * candidate


def gru(p, x, tokens, o, product=lambda x_t, gated: 0.0):
    """T16 (8)-(11); *product* of x_t and r_t ⊙ h_{t-1} is what (17) and (18) add to the candidate."""
    f = ACTIVATIONS[o["activation"]]
    W_xr, W_xz, W_xh = (block.T for block in np.split(p["weight_ih"], 3))
    b_r, b_z, b_h = np.split(p["bias"], 3)
    W_hr, W_hz = (block.T for block in np.split(p["weight_hh_gates"], 2))
    W_hh = p["weight_hh"].T

    def row(b):
        h = np.zeros(len(b_h))
        for t in range(len(x)):
            x_t = x[t, b]
            r = sigmoid(x_t @ W_xr + h @ W_hr + b_r)
            z = sigmoid(x_t @ W_xz + h @ W_hz + b_z)
            candidate = f(product(x_t, r * h) + x_t @ W_xh + (r * h) @ W_hh + b_h)
            h = new_state(z, h, candidate, o["update_gate"])
            yield h

    return every_row(x, row)


def gru_rntn(p, x, tokens, o):
    """T16 (18), x_t W_tsr (r_t ⊙ h_{t-1})^T, or (17) with [x_t, r_t ⊙ h_{t-1}] on both sides."""
    W_tsr = p["weight_tensor"]

    def asymmetric(x_t, gated):
        return tensor_product(x_t, W_tsr, gated)

    def full(x_t, gated):
        both = np.append(x_t, gated)
        return tensor_product(both, W_tsr, both)

    return gru(p, x, tokens, o, {"asymmetric": asymmetric, "full": full}[o["form"]])


def lstm(p, x, tokens, o):
    """E18 (6)-(7), S18 (10)-(15): I_t = [X_t; h_{t-1}] or X_t, biases inside the matrices (I_t ends with a 1)."""
    columns = [p["weight_ih"]] + ([p["weight_hh"]] if o["gate_input"] == "xh" else []) + [p["bias"][:, None]]
    W_i, W_f, W_in, W_o = np.split(np.column_stack(columns), 4)

    def row(b):
        h = c = np.zeros(len(W_i))
        for t in range(len(x)):
            I_t = np.concatenate([x[t, b], h, [1.0]] if o["gate_input"] == "xh" else [x[t, b], [1.0]])
            c = sigmoid(W_f @ I_t) * c + sigmoid(W_i @ I_t) * np.tanh(W_in @ I_t)
            h = sigmoid(W_o @ I_t) * np.tanh(c)
            yield h

    return every_row(x, row)


def lstm_peephole(p, x, tokens, o, product=lambda x_t, h: 0.0):
    """T16 (3)-(7); *product* of x_t and h_{t-1} is what (19) adds to the candidate. Diagonal peepholes: Gers 2000."""
    W_xi, W_xf, W_xc, W_xo = (block.T for block in np.split(p["weight_ih"], 4))
    W_hi, W_hf, W_hc, W_ho = (block.T for block in np.split(p["weight_hh"], 4))
    b_i, b_f, b_c, b_o = np.split(p["bias"], 4)
    if o["peephole"] == "full":
        W_ci, W_cf = (block.T for block in np.split(p["weight_c"], 2))
        W_co = p["weight_co"].T
    else:
        W_ci, W_cf, W_co = np.diag(p["weight_c"][0]), np.diag(p["weight_c"][1]), np.diag(p["weight_co"][0])

    def row(b):
        h = c = np.zeros(len(b_i))
        for t in range(len(x)):
            x_t = x[t, b]
            i = sigmoid(x_t @ W_xi + h @ W_hi + c @ W_ci + b_i)
            f = sigmoid(x_t @ W_xf + h @ W_hf + c @ W_cf + b_f)
            candidate = np.tanh(product(x_t, h) + x_t @ W_xc + h @ W_hc + b_c)
            c = f * c + i * candidate
            o_t = sigmoid(x_t @ W_xo + h @ W_ho + c @ W_co + b_o)  # sees the new c_t
            h = o_t * np.tanh(c)
            yield h

    return every_row(x, row)


def lstm_rntn(p, x, tokens, o):
    """T16 (19)-(20): the tensor product of x_t and h_{t-1} in the candidate of the peephole LSTM."""
    return lstm_peephole(p, x, tokens, o, lambda x_t, h: tensor_product(x_t, p["weight_tensor"], h))


# ---- matrices that depend on the symbol (S18) -----------------------------------------------------------------------


def rank(counts, w):
    """rank(w) of S18 §3, from 1, when the vocabulary is sorted by decreasing frequency (frequencies all different)."""
    return 1 + sum(1 for count in counts if count > counts[w])


def f_rank(counts, K):
    """S18 (5), f(w) = min(rank(w), K) between 1 and K, stored from 0."""
    return [min(rank(counts, w), K) - 1 for w in range(len(counts))]


def f_mod(counts, K):
    """S18 (16), f_mod(w) = rank(w) mod K, between 0 and K - 1."""
    return [rank(counts, w) % K for w in range(len(counts))]


def r_rntn(p, x, tokens, o):
    """S18 (4): h_t = σ(W_h x_t + U_h^{f(i(x_t))} h_{t-1} + b_h^{f(i(x_t))})."""
    f, U_h, b_h = ACTIVATIONS[o["activation"]], p["recurrence.weight"], p["recurrence.bias"]
    W_h = np.eye(b_h.shape[1]) if o["identity_input"] else p["input.weight"]

    def row(b):
        h = np.zeros(b_h.shape[1])
        for t in range(len(x)):
            k = o["f"][tokens[t, b]]
            h = f(W_h @ x[t, b] + U_h[k] @ h + b_h[k])
            yield h

    return every_row(x, row)


def rntn(p, x, tokens, o):
    """S18 (3), with (4)'s bias per symbol: every symbol is a class of its own."""
    return r_rntn(p, x, tokens, {**o, "f": range(len(p["recurrence.weight"]))})


def m_rnn(p, x, tokens, o):
    """S18 §2: (3) with U_h^{i(x_t)} factored into U_lh diag(v_{x_t}) U_rh."""
    f, b_h, v = ACTIVATIONS[o["activation"]], p["input.bias"], p["factors"]
    W_h = np.eye(len(b_h)) if o["identity_input"] else p["input.weight"]

    def row(b):
        h = np.zeros(len(b_h))
        for t in range(len(x)):
            U_h = p["weight_left"] @ np.diag(v[tokens[t, b]]) @ p["weight_right"]
            h = f(W_h @ x[t, b] + U_h @ h + b_h)
            yield h

    return every_row(x, row)


def matrix_and_bias(p, o, gate, token):
    """U_h and b_h of a gate for a symbol: per class (4) where indexed_gates names the gate, else shared by all."""
    if gate in o["indexed_gates"].split(","):
        k, name = o["f"][token], f"recurrent.indexed.{gate}_gate"
        return p[f"{name}.weight"][k], p[f"{name}.bias"][k]
    return p[f"recurrent.shared.{gate}_gate"], p[f"recurrent.shared_bias.{gate}_gate"]


def r_gru(p, x, tokens, o):
    """S18 (6)-(9) with (4)'s indexing of U and b."""
    W_r, W_z, W_h = np.split(p["weight_ih"], 3)

    def row(b):
        h = np.zeros(len(W_r))
        for t in range(len(x)):
            x_t = x[t, b]
            (U_r, b_r), (U_z, b_z), (U_h, b_h) = (
                matrix_and_bias(p, o, gate, tokens[t, b]) for gate in ("reset", "update", "candidate")
            )
            r = sigmoid(W_r @ x_t + U_r @ h + b_r)
            z = sigmoid(W_z @ x_t + U_z @ h + b_z)
            candidate = np.tanh(W_h @ x_t + U_h @ (r * h) + b_h)
            h = new_state(z, h, candidate, o["update_gate"])
            yield h

    return every_row(x, row)


def r_lstm(p, x, tokens, o):
    """S18 (10)-(15) with (4)'s indexing of U and b."""
    W_i, W_f, W_o, W_c = np.split(p["weight_ih"], 4)

    def row(b):
        h = c = np.zeros(len(W_i))
        for t in range(len(x)):
            x_t = x[t, b]
            (U_f, b_f), (U_i, b_i), (U_o, b_o), (U_c, b_c) = (
                matrix_and_bias(p, o, gate, tokens[t, b]) for gate in ("forget", "input", "output", "cell")
            )
            f_t = sigmoid(W_f @ x_t + U_f @ h + b_f)
            i_t = sigmoid(W_i @ x_t + U_i @ h + b_i)
            o_t = sigmoid(W_o @ x_t + U_o @ h + b_o)
            candidate = np.tanh(W_c @ x_t + U_c @ h + b_c)
            c = i_t * candidate + f_t * c
            h = o_t * np.tanh(c)
            yield h

    return every_row(x, row)


# ---- extended LSTM (E18) --------------------------------------------------------------------------------------------


def elstm(p, x, tokens, o, forget_gate):
    """E18 (20)-(21), or (22)-(23) without the forget gate; step t (from 0) has row t mod positions of s."""
    columns = [p["weight_ih"]] + ([p["weight_hh"]] if o["gate_input"] == "xh" else []) + [p["bias"][:, None]]
    W_i, W_in, W_o, *W_f = np.split(np.column_stack(columns), 4 if forget_gate else 3)
    s, bias = p["scale"], p["output_bias"]

    def row(b):
        h = c = np.zeros(len(bias))
        for t in range(len(x)):
            I_t = np.concatenate([x[t, b], h, [1.0]] if o["gate_input"] == "xh" else [x[t, b], [1.0]])
            kept = sigmoid(W_f[0] @ I_t) * c if forget_gate else c
            c = kept + s[t % o["positions"]] * sigmoid(W_i @ I_t) * np.tanh(W_in @ I_t)
            h = sigmoid(W_o @ I_t) * np.tanh(c + bias)
            yield h

    return every_row(x, row)


def elstm1(p, x, tokens, o):
    """E18 (20)-(21)."""
    return elstm(p, x, tokens, o, forget_gate=True)


def elstm2(p, x, tokens, o):
    """E18 (22)-(23)."""
    return elstm(p, x, tokens, o, forget_gate=False)


# ---- higher orders, clocks (H16) ------------------------------------------------------------------------------------


def hornn(p, x, tokens, o, pool=lambda paths, states, x_t: sum(paths)):
    """H16 (5.3); *pool* combines the paths W_hn h_{t-n}, n = 1..N, in (5.4)-(5.6)."""
    f, W_in, W_h, bias = ACTIVATIONS[o["activation"]], p["weight_ih"], p["weight_hh"], p["bias"]
    N = o["order"]

    def row(b):
        h = {t: np.zeros(len(bias)) for t in range(-N, 0)}  # what precedes the first step
        for t in range(len(x)):
            states = [h[t - n] for n in range(1, N + 1)]
            paths = [W_h[n - 1] @ h[t - n] for n in range(1, N + 1)]
            h[t] = f(W_in @ x[t, b] + pool(paths, states, x[t, b]) + bias)
            yield h[t]

    return every_row(x, row)


def hornn_max(p, x, tokens, o):
    """H16 (5.4): the largest of the paths in each dimension."""

    def pool(paths, states, x_t):
        return np.array([max(path[k] for path in paths) for k in range(len(paths[0]))])

    return hornn(p, x, tokens, o, pool)


def hornn_fofe(p, x, tokens, o):
    """H16 (5.5): path n weighs α^n."""
    alpha = o["forgetting_factor"]

    def pool(paths, states, x_t):
        return sum(alpha**n * path for n, path in enumerate(paths, 1))

    return hornn(p, x, tokens, o, pool)


def hornn_gated(p, x, tokens, o):
    """H16 (5.6)-(5.7): r_n = σ(W_1n^g x_t + W_2n^g h_{t-n}), with a bias, gates path n."""
    W_1, W_2 = np.split(p["gate_weight_ih"], o["order"]), p["gate_weight_hh"]
    bias = np.split(p["gate_bias"], o["order"])

    def pool(paths, states, x_t):
        total = 0.0
        for n, (path, state) in enumerate(zip(paths, states)):
            r_n = sigmoid(W_1[n] @ x_t + W_2[n] @ state + bias[n])
            total = total + r_n * path
        return total

    return hornn(p, x, tokens, o, pool)


def clockwork(p, x, tokens, o):
    """H16 §3.2.4 (Koutník et al. 2014): module g runs when t mod p_g = 0 and reads itself and slower modules.

    The modules are laid out fastest first, the first H mod G of the G modules one unit larger than the others.
    """
    f, W_in, bias = ACTIVATIONS[o["activation"]], p["weight_ih"], p["bias"]
    periods = [int(period) for period in o["periods"].split(",")]
    size, count = len(bias), len(periods)
    units, start = [], 0  # the units of each module
    for g in range(count):
        stop = start + size // count + (1 if g < size % count else 0)
        units.append(range(start, stop))
        start = stop

    W_h = np.zeros((size, size))  # block upper triangular: a row of zeros towards every faster module
    for g in range(count):
        slower_or_itself = [j for module in units[g:] for j in module]
        for row_of_block, i in enumerate(units[g]):
            for column_of_block, j in enumerate(slower_or_itself):
                W_h[i, j] = p[f"weight_hh.{g}"][row_of_block, column_of_block]

    def row(b):
        h = np.zeros(size)
        for t in range(len(x)):
            new = h.copy()
            for g in range(count):
                if t % periods[g] == 0:
                    for i in units[g]:
                        new[i] = f(W_in[i] @ x[t, b] + W_h[i] @ h + bias[i])
            h = new
            yield h

    return every_row(x, row)


ORACLES = {
    "clockwork": clockwork,
    "elman": elman,
    "elstm1": elstm1,
    "elstm2": elstm2,
    "gru": gru,
    "gru_rntn": gru_rntn,
    "hornn": hornn,
    "hornn_fofe": hornn_fofe,
    "hornn_gated": hornn_gated,
    "hornn_max": hornn_max,
    "lstm": lstm,
    "lstm_peephole": lstm_peephole,
    "lstm_rntn": lstm_rntn,
    "m_rnn": m_rnn,
    "r_gru": r_gru,
    "r_lstm": r_lstm,
    "r_rntn": r_rntn,
    "rntn": rntn,
    "srn": srn,
}


# ---- between torch and NumPy ----------------------------------------------------------------------------------------


def parameters(cell):
    """Copies of a cell's parameters by name."""
    return {name: parameter.detach().numpy().copy() for name, parameter in cell.named_parameters()}


def randomise(cell, seed, deviation=0.5):
    """Give *every* parameter of a cell normal values, so that no bias, scale or tensor keeps its neutral start."""
    generator = np.random.default_rng(seed)
    for parameter in cell.parameters():
        parameter.detach().numpy()[...] = generator.normal(0.0, deviation, tuple(parameter.shape))
    return cell


def assign(cell, values):
    """Set a cell's parameters by name; every parameter must be named, none may be left over."""
    known = dict(cell.named_parameters())
    if set(known) != set(values):
        raise ValueError(f"parameters {sorted(known)}, values for {sorted(values)}")
    for name, parameter in known.items():
        if tuple(parameter.shape) != np.shape(values[name]):
            raise ValueError(f"{name}: shape {tuple(parameter.shape)}, values of shape {np.shape(values[name])}")
        parameter.detach().numpy()[...] = values[name]
    return cell
