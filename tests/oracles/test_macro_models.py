"""The macro models of E18 against NumPy loops, and where their losses' gradients go."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from numpy_cells import ORACLES, f_mod, parameters, randomise
from numpy_macro_models import (
    LABELLERS,
    NO_SUCH_HEAD,
    STEPS,
    Settings,
    additive_attention,
    character_vector,
    read_all,
    seq2seq,
)

import rntn_plugins  # noqa: F401  (registers the models)
from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.criterions.label_cross_entropy import LabelCrossEntropy
from rntn_plugins.layers.attention import AdditiveAttention
from rntn_plugins.layers.characters import CharacterConvolution
from rntn_plugins.models.macro_models import MACRO_MODELS

LENGTHS = [4, 1, 5, 3]
PAD, EOS = 1, 2
MATRICES = 3
POSITIONS = (2, 0, 3, 1)  # the heads' labels, in the order of the dictionary
LAYOUTS = ("tagging", "interleaved", "parallel")
COLUMNS = ("lemma", "upos", "char")
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def dictionary(symbols: int, prefix: str) -> Dictionary:
    found = Dictionary()
    for number in range(symbols):
        found.add_symbol(f"{prefix}{number}")
    return found


class Task:
    """What models ask of a task, without files."""

    def __init__(self, layout: str = "tagging", fixed_length=None) -> None:
        self.input_columns, self.source_column, self.fixed_length = list(COLUMNS), "lemma", fixed_length
        self.dictionaries = {"lemma": dictionary(7, "l"), "upos": dictionary(3, "u"), "char": dictionary(6, "c")}
        self.source_dictionary, self.target_dictionary = self.dictionaries["lemma"], dictionary(2, "relation")
        for head in POSITIONS:
            self.target_dictionary.add_symbol(str(head))
        self.labels_per_word = 1 if layout == "tagging" else 2
        size = len(self.target_dictionary)  # 4 specials, then 6 labels: in parsing 2 relations and 4 heads
        self.settings = {"head_encoding": "position"}
        labels = torch.arange(size)
        self.relations, self.heads = (labels > 3) & (labels < 6), labels > 5
        self.label_kinds = torch.zeros(2 if layout == "parallel" else 1, size, dtype=torch.bool)
        self.label_kinds[:, 3:] = True
        if layout == "parallel":
            self.label_kinds[0, 6:] = self.label_kinds[1, 4:6] = False

    def vectors(self, column):
        return np.zeros((len(self.dictionaries[column]), 2), np.float32) if column == "lemma" else None

    def count_source_symbols(self):
        return torch.tensor([0, 1, 90, 7, 50, 3, 20, 8, 30, 2, 60])

    def count_labels(self):
        return torch.tensor([0, 1, 40, 6, 3, 80, 10, 5, 70, 9])


def build(macro: str, cell: str, task: Task, **settings):
    """A model whose every parameter is random, in evaluation mode and float64."""
    config = MODEL_DATACLASS_REGISTRY[f"{macro}_{cell}"](
        embed_dim=3, tag_embed_dim=2, char_embed_dim=2, char_filters=3, hidden_size=4, **settings
    )
    model = MODEL_REGISTRY[f"{macro}_{cell}"].build_model(config, task)
    return randomise(model.double().eval(), seed=5)


def cell_settings(cell: str) -> dict:
    return {
        "r_rntn": {"num_matrices": MATRICES, "index_map": "mod"},
        "elstm1": {"positions": 4},
        "gru": {"update_gate": "previous"},
    }.get(cell, {})


def options_of(cell: str, counts) -> dict:
    """The options of the cell's oracle."""
    vocabulary = Vocabulary(len(counts), [str(i) for i in range(len(counts))], counts)
    options = dataclasses.asdict(build_cell(cell, 3, 4, vocabulary, **cell_settings(cell)).options)
    return {**options, "f": f_mod(counts.tolist(), MATRICES)}


def sentences(task: Task):
    generator = np.random.default_rng(8)
    found = []
    for length in LENGTHS:
        sentence = {c: generator.integers(4, len(task.dictionaries[c]), length) for c in ("lemma", "upos")}
        sentence["char"] = [list(generator.integers(4, 10, generator.integers(1, 6))) for _ in range(length)]
        found.append(sentence)
    return found


def padded(rows, value=PAD):
    return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], True, value)


def net_input(task: Task):
    """All sentences as one batch, words and characters padded on the right."""
    read = sentences(task)
    characters = torch.full((len(read), max(LENGTHS), 5), PAD)
    for row, sentence in enumerate(read):
        for at, word in enumerate(sentence["char"]):
            characters[row, at, : len(word)] = torch.tensor(word)
    lengths = torch.tensor(LENGTHS)
    most = 10**9 if task.fixed_length is None else task.fixed_length
    return {
        "src_tokens": padded([sentence["lemma"] for sentence in read]),
        "src_lengths": lengths,
        "target_lengths": (lengths * task.labels_per_word).clamp(max=most),
        "columns": {"upos": padded([sentence["upos"] for sentence in read])},
        "characters": characters,
    }


def settings_of(task: Task, cell: str, **more) -> Settings:
    return Settings(
        cell, options_of(cell, task.count_source_symbols()), options_of(cell, task.count_labels()), COLUMNS, "lemma",
        ("lemma",), PAD, kinds=tuple(kind.nonzero().squeeze(1).tolist() for kind in task.label_kinds),
        labels=len(task.target_dictionary), labels_per_word=task.labels_per_word, fixed_length=task.fixed_length,
        positions=POSITIONS, **more,
    )  # fmt: skip


# ---- labellers ------------------------------------------------------------------------------------------------------

CASES = [
    (macro, cell, layout, {})
    for macro in LABELLERS
    for cell in ("lstm", "gru", "elstm1", "r_rntn")
    for layout in LAYOUTS
] + [
    (macro, "elstm1", layout, settings)
    for macro in LABELLERS
    for layout in LAYOUTS
    for settings in (
        {"layers": 2},
        {"fixed_length": 6},
        {"fixed_length": 10, "layers": 2},
        *([{"stretch": "repeat"}, {"stretch": "repeat", "fixed_length": 6}, {"stretch": "repeat", "fixed_length": 12}]
          if layout == "interleaved" and macro != "bi_attention" else []),
        *([{"pooling": "probabilities"}, {"pooling": "scores"}, {"upper_layers": 2},
           {"layers": 2, "upper_layers": 2, "pooling": "probabilities", "fixed_length": 8}]
          if macro == "dbrnn" else []),
    )
]  # fmt: skip


def case_id(case):
    macro, cell, layout, settings = case
    return "-".join([macro, cell, layout, *(f"{key}={value}" for key, value in settings.items())])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_labeller_follows_the_paper(case):
    macro, cell, layout, settings = case
    settings = dict(settings)
    task = Task(layout, settings.pop("fixed_length", None))
    model = build(macro, cell, task, **settings, **cell_settings(cell))
    batch = net_input(task)
    with torch.no_grad():
        logits, extra = model(**batch)
    found = {"combined": logits, **extra["branches"]}
    if extra["objective"] is not None:
        found["objective"] = extra["objective"]
    p, s = parameters(model), settings_of(task, cell, **settings)
    if macro == "bi_attention" and layout != "tagging":  # relations and heads whatever the layout
        s.kinds = (3, 4, 5), (6, 7, 8, 9)
    for row, sentence in enumerate(sentences(task)):
        expected = LABELLERS[macro](p, sentence, s)
        assert set(expected) == set(found)
        labels = int(batch["target_lengths"][row])
        for name, values in expected.items():
            assert values.shape == (labels, len(task.target_dictionary))
            finite = values[values > NO_SUCH_HEAD]
            assert finite.std() > 0.1 and np.abs(finite).max() < 50  # the comparison is about something
            np.testing.assert_allclose(found[name][row, :labels].numpy(), values, **TOLERANCE, err_msg=name)


def test_pooling_starts_without_a_preference():
    """Each direction counts one half before training."""
    for pooling in ("scores", "weighted-scores", "probabilities"):
        task = Task("parallel")
        torch.manual_seed(0)
        config = MODEL_DATACLASS_REGISTRY["dbrnn_lstm"](hidden_size=4, pooling=pooling)
        model = MODEL_REGISTRY["dbrnn_lstm"].build_model(config, task)
        logits, extra = model(**net_input(task))
        ahead, back = extra["branches"]["forward"], extra["branches"]["backward"]
        if pooling != "probabilities":
            expected = (ahead + back) / 2
        else:
            expected = ((ahead.softmax(-1) + back.softmax(-1)) / 2).log()
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=0)


# ---- encoder-decoders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", sorted(STEPS))
def test_the_steps_are_those_of_the_cells_oracles(cell):
    generator = np.random.default_rng(1)
    x, tokens = generator.normal(size=(6, 3)), generator.integers(0, 11, 6)
    counts = Task().count_source_symbols()
    options = options_of(cell, counts)
    vocabulary = Vocabulary(len(counts), [str(i) for i in range(len(counts))], counts)
    p = parameters(randomise(build_cell(cell, 3, 4, vocabulary, **cell_settings(cell)).double(), 2))
    outputs, _ = read_all(p, x, tokens, cell, options, (np.zeros(4),) * STEPS[cell][1])
    np.testing.assert_allclose(outputs, ORACLES[cell](p, x[:, None], tokens[:, None], options)[:, 0], **TOLERANCE)


def previous_labels(lengths):
    """The end symbol, then labels 4 to 9."""
    generator = np.random.default_rng(4)
    return [np.concatenate([[EOS], generator.integers(4, 10, int(length))]) for length in lengths]


ENCODERS = [{}, {"layers": 2}, {"fixed_length": 6}]
BIDIRECTIONAL = [{"bidirectional_encoder": True, "layers": 2}, {"fixed_length": 6, "bidirectional_encoder": True}]


@pytest.mark.parametrize(
    "macro, settings",
    [("seq2seq", settings) for settings in ENCODERS]
    + [("seq2seq_attention", settings) for settings in ENCODERS + BIDIRECTIONAL],
    ids=str,
)
@pytest.mark.parametrize("cell", sorted(STEPS))
def test_encoder_decoder_follows_the_paper(macro, cell, settings):
    settings = dict(settings)
    task = Task("interleaved", settings.pop("fixed_length", None))
    attention = macro == "seq2seq_attention"
    model = build(macro, cell, task, **settings, **cell_settings(cell), **({"attention_size": 5} if attention else {}))
    if attention:
        model.decoder.network.attention.score_weight.data *= 20  # words get weights that differ
    batch = net_input(task)
    previous = previous_labels(batch["target_lengths"])
    with torch.no_grad():
        logits, extra = model(**batch, prev_output_tokens=padded(previous))
    p, s = parameters(model), settings_of(task, cell, attention=attention, **settings)
    for row, (sentence, labels) in enumerate(zip(sentences(task), previous)):
        expected, looks = seq2seq(p, sentence, labels, (0, PAD), s)
        np.testing.assert_allclose(logits[row, : len(labels)].numpy(), expected, **TOLERANCE)
        assert expected[np.isfinite(expected)].std() > 0.1
        if attention:
            seen = looks.shape[1]
            np.testing.assert_allclose(extra["attn"][row, : len(labels), :seen].numpy(), looks, **TOLERANCE)
            assert not extra["attn"][row, : len(labels), seen:].any()
            assert looks.std() > 0.005 or seen == 1
        else:
            assert extra["attn"] is None


# ---- layers ---------------------------------------------------------------------------------------------------------


def test_additive_attention_follows_the_paper():
    generator = np.random.default_rng(3)
    attention = randomise(AdditiveAttention(query_size=3, memory_size=4, attention_size=5).double(), 7)
    query, memory = generator.normal(size=(4, 3)), generator.normal(size=(6, 4, 4))
    lengths = [6, 1, 4, 5]
    mask = torch.arange(6).unsqueeze(1) >= torch.tensor(lengths)
    tensors = torch.from_numpy(query), torch.from_numpy(memory)
    with torch.no_grad():
        context, weights = attention(*tensors, attention.project(tensors[1]), mask)
        whole, _ = attention(*tensors, attention.project(tensors[1]))
    p = parameters(attention)
    for row, length in enumerate(lengths):
        expected, a = additive_attention(p, query[row], memory[:length, row])
        np.testing.assert_allclose(context[row].numpy(), expected, **TOLERANCE)
        np.testing.assert_allclose(weights[:length, row].numpy(), a, **TOLERANCE)
        assert not weights[length:, row].any()
        np.testing.assert_allclose(whole[row], additive_attention(p, query[row], memory[:, row])[0], **TOLERANCE)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_character_convolution_follows_the_paper(width):
    convolution = CharacterConvolution(symbols=9, pad=PAD, embed_dim=3, size=4, width=width).double()
    randomise(convolution, 9)
    words = [[4, 5, 6], [], [7], [8, 8, 4, 5, 6, 7, 4], [4, 5, 6], [5, 4]]
    characters = padded(words)
    with torch.no_grad():
        found = convolution(characters.view(2, 3, -1).long()).view(6, -1)
    p = parameters(convolution)
    for row, word in zip(found.numpy(), words):
        np.testing.assert_allclose(row, character_vector(p, word, PAD), **TOLERANCE)


# ---- gradients (E18 4.2) --------------------------------------------------------------------------------------------


def gradients(model, loss):
    """The gradient of every parameter, zeros where there is none."""
    model.zero_grad()
    loss.backward()
    return {n: torch.zeros_like(q) if q.grad is None else q.grad.clone() for n, q in model.named_parameters()}


def targets(task: Task, lengths):
    """A label of the right kind at each position."""
    kinds = [kind.nonzero().squeeze(1).tolist()[1:] for kind in task.label_kinds]
    return padded([[kinds[at % len(kinds)][at % len(kinds[at % len(kinds)])] for at in range(n)] for n in lengths])


UPPER = {
    "forward": ("network.upper_forward.", "forward_scores."),
    "backward": ("network.upper_backward.", "backward_scores."),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pooling", ["scores", "weighted-scores", "probabilities"])
def test_each_error_reaches_what_it_should(layout, pooling):
    """e_f: upper forward and lower; e_b: upper backward and lower; e: everything. The criterion is their sum."""
    task = Task(layout)
    model = build("dbrnn", "gru", task, pooling=pooling, layers=2, upper_layers=2)
    batch = net_input(task)
    target = targets(task, batch["target_lengths"].tolist())

    def branch(name):
        logits, extra = model(**batch)
        scores = {"combined": logits, **extra["branches"]}[name]
        loss = torch.nn.functional.cross_entropy(
            scores.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum"
        )
        return gradients(model, loss)

    by_loss = {name: branch(name) for name in ("combined", "forward", "backward")}
    for name, other in (("forward", "backward"), ("backward", "forward")):
        for key, gradient in by_loss[name].items():
            nothing = key.startswith((*UPPER[other], "pooling."))
            never = key == "filler" and layout != "interleaved"  # nothing is filled up
            assert bool(gradient.any()) is not (nothing or never), f"{name}: {key}"
    for key, gradient in by_loss["combined"].items():
        assert bool(gradient.any()) is not (key == "filler" and layout != "interleaved"), key

    sample = {"net_input": batch, "target": target, "ntokens": int(batch["target_lengths"].sum())}
    criterion = LabelCrossEntropy(SimpleNamespace(target_dictionary=task.target_dictionary), sentence_avg=False)
    loss, size, log = criterion(model, sample)
    assert size == sample["ntokens"]
    total = gradients(model, loss)
    for key, gradient in total.items():
        parts = sum(by_loss[name][key] for name in by_loss)
        torch.testing.assert_close(gradient, parts, atol=1e-5, rtol=1e-5, msg=key)
    assert float(log["loss"]) == pytest.approx(
        float(log["nll_loss"]) + float(log["loss_forward"]) + float(log["loss_backward"])
    )


@pytest.mark.parametrize("layout", ["interleaved", "parallel"])
def test_bi_attention_learns_both_directions(layout):
    """-log a^l - log a^r of the right head, -log p of the right relation; a product of both in the prediction only."""
    task = Task(layout)
    model = build("bi_attention", "lstm", task)
    batch = net_input(task)
    heads = [[0], [2, 0], [0, 1, 2], [2, 0, 2, 3], [1, 3, 0, 2, 1]]
    label = {position: 6 + number for number, position in enumerate(POSITIONS)}
    target = padded([[v for head in heads[n - 1] for v in (4, label[head])] for n in LENGTHS])
    sample = {"net_input": batch, "target": target, "ntokens": int(batch["target_lengths"].sum())}
    criterion = LabelCrossEntropy(SimpleNamespace(target_dictionary=task.target_dictionary), sentence_avg=False)
    loss, _, _ = criterion(model, sample)
    s = settings_of(task, "lstm")
    s.kinds = (3, 4, 5), (6, 7, 8, 9)
    expected = 0.0
    for sentence, right in zip(sentences(task), target.tolist()):
        objective = LABELLERS["bi_attention"](parameters(model), sentence, s)["objective"]
        expected -= sum(objective[at, right[at]] for at in range(len(objective)))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert all(gradient.any() or key == "filler" for key, gradient in gradients(model, loss).items())


def test_every_macro_model_has_an_oracle():
    assert set(MACRO_MODELS) == set(LABELLERS) | {"seq2seq", "seq2seq_attention"}
