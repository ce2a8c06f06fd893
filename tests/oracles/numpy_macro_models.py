"""The macro models of E18 section 4 as plain NumPy loops: one sentence at a time, no batch, no padding of batches.

Written from the printed equations: E18 (26)-(31) and Fig. 3 for the dependent bidirectional network; Sutskever et al.
2014 and Vinyals et al. 2015 for the encoder-decoders; Cheng et al. 2016 for bi-attention. Every oracle takes

    p         the model's parameters by name, float64
    sentence  a dict: symbols ``[n]`` by column, and ``char``, a list of n lists of characters
    s         the settings, see :class:`Settings`
"""

from dataclasses import dataclass, field
from typing import Optional

import numpy as np
from numpy_cells import ORACLES, sigmoid


@dataclass
class Settings:
    cell: str
    options: dict  # the cell's, as the oracles of cells take them
    label_options: dict = field(default_factory=dict)  # the same for the decoder's cells
    columns: tuple = ("lemma",)  # what is read, in order
    first: str = "lemma"  # the column whose symbols index token-indexed cells
    vectors: tuple = ()  # columns with a second, pretrained table
    pad: int = 1
    layers: int = 1
    upper_layers: int = 1
    pooling: str = "weighted-scores"
    kinds: tuple = ()  # for each label that a step puts out: the labels it can be
    labels: int = 0  # V
    labels_per_word: int = 1
    stretch: str = "pad"
    fixed_length: Optional[int] = None
    bidirectional_encoder: bool = False
    attention: bool = False
    end: int = 2
    positions: tuple = ()  # the heads that the labels of the second kind stand for


def under(p, prefix):
    """The parameters whose names start with *prefix*, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in p.items() if name.startswith(prefix + ".")}


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


# ---- what is read ---------------------------------------------------------------------------------------------------


def character_vector(p, characters, pad):
    """max over the positions j of W [e_{j-side} ... e_{j-side+width-1}] + b; outside the word stands the padding."""
    embedding, W, b = p["embed.weight"], p["convolution.weight"], p["convolution.bias"]
    filters, size, width = W.shape
    side = width // 2
    if len(characters) == 0:
        return np.zeros(filters)
    best = np.full(filters, -np.inf)
    for j in range(len(characters)):
        for f in range(filters):
            total = b[f]
            for w in range(width):
                at = j + w - side
                symbol = characters[at] if 0 <= at < len(characters) else pad
                for e in range(size):
                    total += W[f, e, w] * embedding[symbol, e]
            best[f] = max(best[f], total)
    return best


def word_vectors(p, sentence, s):
    """The concatenated embeddings of each word, ``[n, E']``."""
    rows = []
    for word in range(len(sentence[s.first])):
        parts = []
        for column in s.columns:
            if column == "char":
                continue
            symbol = sentence[column][word]
            parts.append(p[f"embed.embed.{column}.weight"][symbol])
            if column in s.vectors:
                parts.append(p[f"embed.vectors.{column}.weight"][symbol])
        if "char" in s.columns:
            parts.append(character_vector(under(p, "embed.characters"), sentence["char"][word], s.pad))
        rows.append(np.concatenate(parts))
    return np.stack(rows)


def steps_read(p, sentence, s, per_step):
    """Input vectors ``[T, E']`` and symbols ``[T]`` of every step; how many labels are put out."""
    x, tokens = list(word_vectors(p, sentence, s)), list(sentence[s.first])
    labels = len(x) * s.labels_per_word
    if s.labels_per_word > per_step and s.stretch == "repeat":
        x, tokens = [v for v in x for _ in range(2)], [t for t in tokens for _ in range(2)]
    if s.fixed_length is None:
        steps = labels // per_step
    else:
        steps, labels = s.fixed_length, min(labels, s.fixed_length)
    while len(x) < steps:
        x.append(p["filler"])
        tokens.append(s.pad)
    return np.stack(x[:steps]), np.array(tokens[:steps]), labels


# ---- networks over a sentence ---------------------------------------------------------------------------------------


def over_time(p, x, tokens, s):
    """Outputs ``[T, H]`` of a cell, c_0 = 0."""
    return ORACLES[s.cell](p, x[:, None], tokens[:, None], s.options)[:, 0]


def backwards(p, x, tokens, s):
    """E18 (30), the states c_{t+1}: from the last step to the first."""
    return over_time(p, x[::-1], tokens[::-1], s)[::-1]


def brnn(p, x, tokens, s, layers):
    """E18 (30): h_t = [h_t^f; h_t^b], layer by layer."""
    for layer in range(layers):
        ahead = over_time(under(p, f"{layer}.forward_layer.cell"), x, tokens, s)
        back = backwards(under(p, f"{layer}.backward_layer.cell"), x, tokens, s)
        x = np.concatenate([ahead, back], axis=1)
    return x


def one_direction(p, x, tokens, s, layers, run=over_time):
    for layer in range(layers):
        x = run(under(p, f"{layer}.cell"), x, tokens, s)
    return x


def scores_of(p, hidden, kinds):
    """W h + b for each kind of label."""
    return [hidden @ p[f"layers.{k}.weight"].T + p[f"layers.{k}.bias"] for k in range(len(kinds))]


# ---- labellers ------------------------------------------------------------------------------------------------------


def in_order(scores, s, labels):
    """Scores by kind, ``[T, K]`` each, as rows of all V labels in the order they are put out; -inf for other kinds."""
    rows = []
    for t in range(len(scores[0])):
        for kind, part in zip(s.kinds, scores):
            row = np.full(s.labels, -np.inf)
            row[list(kind)] = part[t]
            rows.append(row)
    return np.stack(rows[:labels])


def basic_labeller(p, sentence, s):
    x, tokens, labels = steps_read(p, sentence, s, len(s.kinds))
    hidden = one_direction(under(p, "stack.layers"), x, tokens, s, s.layers)
    return {"combined": in_order(scores_of(under(p, "scores"), hidden, s.kinds), s, labels)}


def brnn_labeller(p, sentence, s):
    x, tokens, labels = steps_read(p, sentence, s, len(s.kinds))
    hidden = brnn(under(p, "stack.layers"), x, tokens, s, s.layers)
    return {"combined": in_order(scores_of(under(p, "scores"), hidden, s.kinds), s, labels)}


def pooled(p, ahead, back, pooling):
    """E18 (26), p_t = W^f p_t^f + W^b p_t^b, of scores, by matrices or, (33), by one weight a class; or of
    probabilities, a and 1 - a for each class, normalised."""
    if pooling == "scores":
        return p["forward_weight"] @ ahead + p["backward_weight"] @ back
    if pooling == "weighted-scores":
        return p["forward_weight"] * ahead + p["backward_weight"] * back
    a = sigmoid(p["weight"])
    mixture = a * softmax(ahead) + (1.0 - a) * softmax(back)
    return np.log(mixture / mixture.sum())


def dbrnn_labeller(p, sentence, s):
    """E18 (30)-(31), Fig. 3."""
    x, tokens, labels = steps_read(p, sentence, s, len(s.kinds))
    h = brnn(under(p, "network.lower.layers"), x, tokens, s, s.layers)
    u_f = one_direction(under(p, "network.upper_forward.layers"), h, tokens, s, s.upper_layers)
    # the whole stack reads from the last step to the first
    u_b = one_direction(under(p, "network.upper_backward.layers"), h, tokens, s, s.upper_layers, run=backwards)
    p_f = scores_of(under(p, "forward_scores"), u_f, s.kinds)
    p_b = scores_of(under(p, "backward_scores"), u_b, s.kinds)
    combined = []
    for k in range(len(s.kinds)):
        weights = under(p, f"pooling.{k}")
        combined.append(np.stack([pooled(weights, p_f[k][t], p_b[k][t], s.pooling) for t in range(len(x))]))
    return {name: in_order(part, s, labels) for name, part in
            (("combined", combined), ("forward", p_f), ("backward", p_b))}  # fmt: skip


# ---- encoder-decoders -----------------------------------------------------------------------------------------------


def step_lstm(p, t, x, token, state, o):
    """E18 (6)-(7)."""
    h, c = state
    W_i, W_f, W_in, W_o = np.split(np.column_stack([p["weight_ih"], p["weight_hh"], p["bias"]]), 4)
    I_t = np.concatenate([x, h, [1.0]])
    c = sigmoid(W_f @ I_t) * c + sigmoid(W_i @ I_t) * np.tanh(W_in @ I_t)
    h = sigmoid(W_o @ I_t) * np.tanh(c)
    return h, (h, c)


def step_elstm1(p, t, x, token, state, o):
    """E18 (20)-(21); t counts from 0."""
    h, c = state
    W_i, W_in, W_o, W_f = np.split(np.column_stack([p["weight_ih"], p["weight_hh"], p["bias"]]), 4)
    I_t = np.concatenate([x, h, [1.0]])
    c = sigmoid(W_f @ I_t) * c + p["scale"][t % o["positions"]] * sigmoid(W_i @ I_t) * np.tanh(W_in @ I_t)
    h = sigmoid(W_o @ I_t) * np.tanh(c + p["output_bias"])
    return h, (h, c)


def step_gru(p, t, x, token, state, o):
    """E18 (12)-(15), or with the update gate weighing the candidate (Tjandra et al. 2016)."""
    (h,) = state
    W_r, W_z, W = np.split(p["weight_ih"], 3)
    b_r, b_z, b = np.split(p["bias"], 3)
    U_r, U_z = np.split(p["weight_hh_gates"], 2)
    z, r = sigmoid(W_z @ x + U_z @ h + b_z), sigmoid(W_r @ x + U_r @ h + b_r)
    candidate = np.tanh(W @ x + p["weight_hh"] @ (r * h) + b)
    kept = z if o["update_gate"] == "previous" else 1.0 - z
    h = kept * h + (1.0 - kept) * candidate
    return h, (h,)


def step_r_rntn(p, t, x, token, state, o):
    """Salle & Villavicencio 2018 (4)."""
    (h,) = state
    k = o["f"][token]
    h = sigmoid(p["input.weight"] @ x + p["recurrence.weight"][k] @ h + p["recurrence.bias"][k])
    return h, (h,)


#: one step, and how many vectors a state has
STEPS = {"lstm": (step_lstm, 2), "elstm1": (step_elstm1, 2), "gru": (step_gru, 1), "r_rntn": (step_r_rntn, 1)}


def read_all(p, x, tokens, cell, o, state):
    """Outputs and the last state of one layer; its steps are counted from 0."""
    outputs = []
    for t in range(len(x)):
        h, state = STEPS[cell][0](p, t, x[t], tokens[t], state, o)
        outputs.append(h)
    return np.stack(outputs), state


def encode(p, sentence, s):
    """The memory ``[S, M]`` and each layer's state after the last step (of the forward direction, if there are two)."""
    x, tokens = list(word_vectors(p, sentence, s)), list(sentence[s.first])
    while s.fixed_length is not None and len(x) < s.fixed_length:
        x.append(p["filler"])
        tokens.append(s.pad)
    x, states = np.stack(x), []
    for layer in range(s.layers):
        given = x
        if s.bidirectional_encoder:
            cells = [under(p, f"stack.layers.{layer}.{way}_layer.cell") for way in ("forward", "backward")]
        else:
            cells = [under(p, f"stack.layers.{layer}.cell")]
        H = cells[0]["weight_hh" if "weight_hh" in cells[0] else "recurrence.weight"].shape[-1]
        start = (np.zeros(H),) * STEPS[s.cell][1]
        ahead, state = read_all(cells[0], given, tokens, s.cell, s.options, start)
        states.append(state)
        x = ahead
        if s.bidirectional_encoder:
            back, _ = read_all(cells[1], given[::-1], tokens[::-1], s.cell, s.options, start)
            x = np.concatenate([ahead, back[::-1]], axis=1)
    return x, states


def additive_attention(p, query, memory):
    """Vinyals et al. 2015: u_j = v' tanh(W1 m_j + W2 d), a = softmax(u), d' = sum_j a_j m_j, number by number."""
    W1, W2, v = p["memory_weight"], p["query_weight"], p["score_weight"]
    u = np.zeros(len(memory))
    for j in range(len(memory)):
        for a in range(len(v)):
            inner = 0.0
            for m in range(memory.shape[1]):
                inner += W1[a, m] * memory[j, m]
            for q in range(len(query)):
                inner += W2[a, q] * query[q]
            u[j] += v[a] * np.tanh(inner)
    a = np.exp(u) / np.exp(u).sum()
    context = np.zeros(memory.shape[1])
    for j in range(len(memory)):
        for m in range(memory.shape[1]):
            context[m] += a[j] * memory[j, m]
    return context, a


def seq2seq(p, sentence, previous, never, s):
    """Scores ``[L, V]`` behind each of the *previous* labels, and the attention's weights ``[L, S]``."""
    memory, states = encode(under(p, "encoder"), sentence, s)
    d = under(p, "decoder")
    layers = under(d, "network.stack.layers" if s.attention else "network.layers")
    context = np.zeros(memory.shape[1])
    rows, looks = [], []
    for t, label in enumerate(previous):  # counted from 0 again
        x = d["embed_tokens.weight"][label]
        if s.attention:
            x = np.concatenate([x, context])
        for layer in range(s.layers):
            cell = under(layers, f"{layer}.cell")
            x, states[layer] = STEPS[s.cell][0](cell, t, x, label, states[layer], s.label_options)
        if s.attention:
            context, a = additive_attention(under(d, "network.attention"), x, memory)
            looks.append(a)
            x = np.concatenate([x, context])
        row = d["output_projection.weight"] @ x + d["output_projection.bias"]
        row[list(never)] = -np.inf
        rows.append(row)
    return np.stack(rows), np.array(looks)


# ---- bi-attention (Cheng et al. 2016) -------------------------------------------------------------------------------

#: twice the logarithm of the least normal float64: the score of a head that is no word of the sentence
NO_SUCH_HEAD = 2.0 * np.log(2.0**-1022)


def soft_heads(p, x, tokens, memory, s):
    """Of one direction: [q_t; m_t] at every t, m_t the soft headword that the next step reads, and the weights a_t."""
    layers = [under(p, f"stack.layers.{layer}.cell") for layer in range(s.layers)]
    H = p["attention.query_weight"].shape[1]
    states, headword = [(np.zeros(H),) * STEPS[s.cell][1] for _ in layers], np.zeros(memory.shape[1])
    outputs, weights = [], []
    for t in range(len(x)):
        q = np.concatenate([x[t], headword])
        for number, cell in enumerate(layers):
            q, states[number] = STEPS[s.cell][0](cell, t, q, tokens[t], states[number], s.options)
        headword, a = additive_attention(under(p, "attention"), q, memory)
        outputs.append(np.concatenate([q, headword]))
        weights.append(a)
    return np.stack(outputs), np.stack(weights)


def bi_attention_labeller(p, sentence, s):
    """Relations from the queries and soft headwords of both directions, heads by the product of their attentions."""
    x, tokens, labels = steps_read(p, sentence, s, s.labels_per_word)
    read, symbols = np.concatenate([[p["root"]], x]), np.concatenate([[s.end], tokens])
    memory = brnn(under(p, "memory.layers"), read, symbols, s, s.layers)
    ahead, a_l = soft_heads(under(p, "forward_query"), x, tokens, memory, s)
    back, a_r = soft_heads(under(p, "backward_query"), x[::-1], tokens[::-1], memory, s)
    back, a_r = back[::-1], a_r[::-1]
    (scores,) = scores_of(under(p, "scores"), np.concatenate([ahead, back], axis=1), s.kinds[:1])
    if len(s.kinds) == 1:
        return {"combined": in_order([scores], s, labels)}
    heads = np.full((len(x), len(s.positions)), NO_SUCH_HEAD)
    for t in range(len(x)):
        for k, position in enumerate(s.positions):
            if position <= len(x):
                heads[t, k] = np.log(a_l[t, position] * a_r[t, position])
    logarithms = np.stack([np.log(softmax(row)) for row in scores])
    return {"combined": in_order([scores, heads], s, labels), "objective": in_order([logarithms, heads], s, labels)}


LABELLERS = {
    "basic": basic_labeller,
    "brnn": brnn_labeller,
    "dbrnn": dbrnn_labeller,
    "bi_attention": bi_attention_labeller,
}
