"""Macro models with the tasks of CoNLL-U files: batches, decoding, learning, checkpoints."""

import io
import logging
import math
import random
import re
import shutil
from argparse import Namespace
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary, indexed_dataset
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq_cli import preprocess
from omegaconf import OmegaConf

import rntn_plugins  # noqa: F401  (registers models and tasks)
from rntn_plugins.criterions.label_cross_entropy import LabelCrossEntropy
from rntn_plugins.data.columns import COLUMNS, column_symbols
from rntn_plugins.data.conllu import parse_conllu
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.models.common import SentenceEmbedding
from rntn_plugins.models.macro_models import MACRO_MODELS
from rntn_plugins.tasks.conllu_parsing import ConlluParsingConfig, ConlluParsingTask
from rntn_plugins.tasks.conllu_tagging import ConlluTaggingConfig, ConlluTaggingTask

LABELLERS = [name for name, macro in MACRO_MODELS.items() if not macro.predicts_end]
DECODERS = [name for name, macro in MACRO_MODELS.items() if macro.predicts_end]
CELLS = {
    "lstm": {},
    "elstm1": {"positions": 5},
    "r_rntn": {"num_matrices": 3, "index_map": "mod"},
    "hornn": {"order": 3},
    "clockwork": {"periods": "1,2,3"},
}
#: name: task, its settings, the model's settings
LAYOUTS = {
    "tagging": ("tagging", {}, {}),
    "tagging-fixed": ("tagging", {"fixed_length": 8}, {}),
    "interleaved": ("parsing", {}, {}),
    "interleaved-fixed": ("parsing", {"fixed_length": 7}, {}),
    "repeat": ("parsing", {}, {"stretch": "repeat"}),
    "repeat-fixed": ("parsing", {"fixed_length": 7}, {"stretch": "repeat"}),
    "parallel": ("parsing", {"label_layout": "parallel"}, {}),
    "parallel-fixed": ("parsing", {"label_layout": "parallel", "fixed_length": 8}, {}),
}
FOR_LABELLERS = ("repeat", "repeat-fixed", "parallel", "parallel-fixed")
TASKS = {
    "tagging": (ConlluTaggingTask, ConlluTaggingConfig),
    "parsing": (ConlluParsingTask, ConlluParsingConfig),
}
EXACT = {"rtol": 1e-10, "atol": 1e-10}
FLOAT = {"rtol": 1e-5, "atol": 1e-5}  # probabilities are float32


# ---- data -----------------------------------------------------------------------------------------------------------


def random_heads(words: int, choose: random.Random):
    """A tree, projective or not."""
    order = choose.sample(range(1, words + 1), words)
    heads = {word: choose.choice(order[:at]) if at else 0 for at, word in enumerate(order)}
    return [heads[word] for word in range(1, words + 1)]


def conllu(sentences) -> str:
    """Text of sentences of ``(form, lemma, upos, xpos, head, deprel)``."""
    blocks = []
    for words in sentences:
        lines = [
            "\t".join((str(number), form, lemma, upos, xpos, "_", str(head), deprel, "_", "_"))
            for number, (form, lemma, upos, xpos, head, deprel) in enumerate(words, 1)
        ]
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)


def write_data(folder, text: str, columns=COLUMNS, most: int = 6):
    """A data folder with one split, ``train``; heads are the positions up to *most*."""
    folder.mkdir()
    (folder / "train.conllu").write_text(text, encoding="utf-8")
    sentences = parse_conllu(text, "made up").sentences
    log = logging.getLogger("fairseq_cli.preprocess")
    handlers = list(log.handlers)
    for column in columns:
        place = folder / column
        place.mkdir()
        lines = [" ".join(column_symbols(sentence, column)) + "\n" for sentence in sentences]
        (place / "train.txt").write_text("".join(lines), encoding="utf-8")
        arguments = ["--only-source", "--destdir", str(place), "--padding-factor", "1", "--workers", "1"]
        arguments += ["--trainpref", str(place / "train.txt")]
        if column == "head_position":
            (place / "all.txt").write_text("".join(f"{position} 1\n" for position in range(most + 1)))
            arguments += ["--srcdict", str(place / "all.txt")]
        preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    for handler in set(log.handlers) - set(handlers):
        log.removeHandler(handler)
        handler.close()
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """24 sentences of 1 to 6 words, four of each length, 8 lemmas of unequal frequency."""
    choose = random.Random(1)
    sentences = []
    for length in range(1, 7):
        for _ in range(4):
            words = []
            for head in random_heads(length, choose):
                lemma = choose.choices("abcdefgh", weights=(64, 32, 16, 8, 4, 4, 2, 2))[0]
                form = lemma * choose.randint(1, 3) + choose.choice(("", "s", "ed"))
                relation = "root" if head == 0 else choose.choice(("det", "obj", "nmod:poss", "nsubj"))
                words.append((form, lemma, choose.choice("WXYZ"), choose.choice("PQ"), head, relation))
            sentences.append(words)
    choose.shuffle(sentences)
    return write_data(tmp_path_factory.mktemp("macro") / "small", conllu(sentences))


def make_task(kind: str, folder, **settings):
    task, config = TASKS[kind]
    return task.setup_task(config(data=str(folder), dataset_impl=None, **settings))


def make_model(task, macro: str, cell: str = "lstm", **settings):
    """A model of small sizes unless told otherwise."""
    name = f"{macro}_{cell}"
    sizes = {"embed_dim": 4, "tag_embed_dim": 3, "char_embed_dim": 3, "char_filters": 4, "hidden_size": 6}
    config = MODEL_DATACLASS_REGISTRY[name](**{**sizes, **CELLS.get(cell, {}), **settings})
    config._name = name
    return task.build_model(OmegaConf.structured(config))


def randomised(model, seed: int = 6):
    """Every parameter random, so that no filler, pooling or padding keeps its neutral start; evaluation, float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.double().eval().parameters():
            spread = 0.2 if parameter.dim() == 1 else 0.9  # what is read decides, not the biases
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator, dtype=torch.double))
    return model


def prepared(folder, layout: str, macro: str, cell: str = "lstm", **settings):
    """A task with its data and a random model."""
    kind, task_settings, model_settings = LAYOUTS[layout]
    columns = "lemma,xpos,char"
    task = make_task(kind, folder, **{"input_columns": columns, **task_settings, **settings.pop("task", {})})
    model = randomised(make_model(task, macro, cell, **model_settings, **settings))
    task.load_dataset("train")
    return task, model


def batch_of(task, indices):
    dataset = task.datasets["train"]
    return dataset.collater([dataset[index] for index in indices])


def one_of_each_length(task):
    """Indices of sentences of 3, 1, 6, 2, 5 and 4 words."""
    words = task.datasets["train"].words.tolist()
    return [words.index(length) for length in (3, 1, 6, 2, 5, 4)]


def outputs(model, sample):
    """Scores of all outputs, ``[B, L, V]``."""
    with torch.no_grad():
        logits, extra = model(**sample["net_input"])
    found = {"combined": logits, **extra.get("branches", {})}
    if extra.get("objective") is not None:
        found["objective"] = extra["objective"]
    return found


def rows(sample, model):
    """How many scores each sentence has."""
    return [length + model.predicts_end for length in sample["net_input"]["target_lengths"].tolist()]


# ---- batches --------------------------------------------------------------------------------------------------------


def fits(macro: str, layout: str) -> bool:
    """Decoders have one label after the other; bi-attention has both at once, so nothing is stretched."""
    stretched = layout.startswith("repeat")
    return not (macro in DECODERS and layout in FOR_LABELLERS) and not (macro == "bi_attention" and stretched)


@pytest.mark.parametrize("macro, layout", [pair for pair in product(MACRO_MODELS, LAYOUTS) if fits(*pair)])
@pytest.mark.parametrize("cell", CELLS)
def test_a_sentence_in_a_batch_is_as_alone(small_data, macro, cell, layout):
    task, model = prepared(small_data, layout, macro, cell)
    chosen = one_of_each_length(task)
    whole = batch_of(task, chosen)
    together = outputs(model, whole)
    for row, (index, length) in enumerate(zip(chosen, rows(whole, model))):
        sample = batch_of(task, [index])
        assert rows(sample, model) == [length]
        alone = outputs(model, sample)
        assert set(alone) == set(together)
        for name, scores in alone.items():
            assert scores.shape[:2] == (1, length)
            finite = scores[scores.isfinite()]
            assert finite.std() > 0.02 or length == 1
            torch.testing.assert_close(scores[0], together[name][row, :length], **EXACT)


@pytest.mark.parametrize("macro", LABELLERS)
def test_an_odd_length_cuts_a_word_in_two(small_data, macro):
    """--fixed-length 7 keeps the relation of the fourth word, not its head."""
    task, model = prepared(small_data, "parallel", macro, task={"fixed_length": 7})
    sample = batch_of(task, one_of_each_length(task))
    criterion = LabelCrossEntropy(task, sentence_avg=False)
    loss, _, _ = criterion(model, sample)
    assert loss.isfinite() and all(scores.size(1) == 7 for scores in outputs(model, sample).values())


@pytest.mark.parametrize("layout", ["tagging", "interleaved"])
@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_predictions_do_not_depend_on_the_order(small_data, macro, layout):
    task, model = prepared(small_data, layout, macro)
    generator = task.build_generator([model], Namespace(beam=3))
    everything = list(range(len(task.datasets["train"])))

    def predictions(*batches):
        found = {}
        for indices in batches:
            sample = batch_of(task, indices)
            _, predicted = task.predict(generator, [model], sample)
            found.update(zip(sample["id"].tolist(), (prediction["columns"] for prediction in predicted)))
        return found

    expected = predictions(everything)
    assert predictions(everything[::-1]) == expected
    shuffled = random.Random(2).sample(everything, len(everything))
    assert predictions(shuffled[:7], shuffled[7:8], shuffled[8:]) == expected
    said = {str(columns) for columns in expected.values()}
    assert len(said) > 8 or (macro, layout) == ("seq2seq", "tagging")  # one a length would be 6: it says X to all


# ---- decoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("macro", DECODERS)
@pytest.mark.parametrize("layout", ["tagging", "interleaved", "interleaved-fixed"])
def test_a_decoder_reads_the_labels_before(small_data, macro, layout):
    task, _ = prepared(small_data, layout, macro)
    sample = batch_of(task, one_of_each_length(task))
    end, pad = task.target_dictionary.eos(), task.target_dictionary.pad()
    for read, target, length in zip(
        sample["net_input"]["prev_output_tokens"].tolist(), sample["target"].tolist(),
        sample["net_input"]["target_lengths"].tolist(),
    ):  # fmt: skip
        labels = target[:length]
        assert not {end, pad} & set(labels)
        filler = [pad] * (len(target) - length - 1)
        assert read == [end, *labels, *filler] and target == [*labels, end, *filler]


@pytest.mark.parametrize(
    "macro, settings",
    [
        ("seq2seq", {}),
        ("seq2seq", {"layers": 2}),
        ("seq2seq_attention", {}),
        ("seq2seq_attention", {"layers": 2, "bidirectional_encoder": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("cell", CELLS)
def test_label_by_label_is_teacher_forcing(small_data, macro, cell, settings):
    task, model = prepared(small_data, "interleaved", macro, cell, **settings)
    sample = batch_of(task, one_of_each_length(task))
    net_input = dict(sample["net_input"])
    whole = outputs(model, sample)["combined"]
    previous = net_input.pop("prev_output_tokens")
    state, order = {}, torch.arange(len(previous))
    with torch.no_grad():
        encoder_out = model.encoder(**net_input)
        for t in range(previous.size(1)):
            logits, _ = model.decoder(previous[order][:, : t + 1], encoder_out, incremental_state=state)
            assert logits.size(1) == 1
            torch.testing.assert_close(logits[:, 0], whole[order, t], **EXACT)
            if t in (1, 4, 5):
                move = torch.tensor([2, 2, 0, 1, 5, 3])
                model.decoder.reorder_incremental_state(state, move)
                encoder_out = model.encoder.reorder_encoder_out(encoder_out, move)
                order = order[move]


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("layout", ["tagging", "interleaved", "interleaved-fixed"])
@pytest.mark.parametrize("macro, cell", [(macro, cell) for macro in DECODERS for cell in ("lstm", "elstm1")])
def test_scores_of_the_search_are_teacher_forcing(small_data, macro, cell, layout, beam, free):
    """Of all hypotheses of all sentences, searched in one batch, against reading each of them alone."""
    task, model = prepared(small_data, layout, macro, cell, task={"free_decoding": free})
    chosen = one_of_each_length(task)
    sample = batch_of(task, chosen)
    generator = task.build_generator([model], Namespace(beam=beam))
    hypotheses, _ = task.predict(generator, [model], sample)
    behind = generator.log_probabilities(sample, hypotheses)  # of every label, behind the best hypothesis
    for row, (found, *_) in enumerate(hypotheses):
        put_out = found["tokens"][: int(sample["net_input"]["target_lengths"][row])]
        scores = behind[row, : len(put_out)].gather(1, put_out.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(scores, found["positional_scores"][: len(put_out)], **FLOAT)
    for index, beams, length in zip(chosen, hypotheses, rows(sample, model)):
        assert 1 <= len(beams) <= beam and (len(beams) == beam or not free)
        assert len({tuple(found["tokens"].tolist()) for found in beams}) == len(beams)
        assert [float(found["score"]) for found in beams] == sorted((float(f["score"]) for f in beams), reverse=True)
        for found in beams:
            tokens = found["tokens"]
            assert free or len(tokens) == length
            net_input = batch_of(task, [index])["net_input"]
            net_input["prev_output_tokens"] = torch.cat([torch.tensor([task.target_dictionary.eos()]), tokens[:-1]])[
                None
            ]
            with torch.no_grad():
                log_probs = model.get_normalized_probs(model(**net_input), log_probs=True)[0]
            expected = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
            torch.testing.assert_close(found["positional_scores"], expected, **FLOAT)
            torch.testing.assert_close(found["score"], expected.mean(), **FLOAT)


@pytest.mark.parametrize("macro", DECODERS)
def test_a_wide_beam_finds_the_best(small_data, macro):
    """Two words have 16 sequences of tags."""
    task, model = prepared(small_data, "tagging", macro)
    words = task.datasets["train"].words
    tags = task.label_kinds[0].nonzero().squeeze(1).tolist()
    tags.remove(task.target_dictionary.unk())
    generator = task.build_generator([model], Namespace(beam=7))
    end = task.target_dictionary.eos()
    for index in np.flatnonzero(words == 2).tolist():
        sample = batch_of(task, [index])
        (beams,), _ = task.predict(generator, [model], sample)
        every = torch.tensor([[end, *pair] for pair in product(tags, repeat=2)])
        net_input = batch_of(task, [index] * len(every))["net_input"]
        net_input["prev_output_tokens"] = every
        with torch.no_grad():
            log_probs = model.get_normalized_probs(model(**net_input), log_probs=True)
        put_out = torch.cat([every[:, 1:], torch.full((len(every), 1), end)], 1)
        totals = log_probs.gather(2, put_out.unsqueeze(2)).squeeze(2).sum(1)
        assert beams[0]["tokens"].tolist() == put_out[int(totals.argmax())].tolist()
        torch.testing.assert_close(beams[0]["score"] * 3, totals.max(), **FLOAT)


def well_formed(task, tokens, words: int) -> bool:
    """Relation and head in turn, heads 0 to n and not the word itself, 2n of them."""
    names = [task.target_dictionary[token] for token in tokens]
    relations = {"root", "det", "obj", "nmod:poss", "nsubj"}
    heads = [{str(head) for head in range(words + 1)} - {str(word)} for word in range(1, words + 1)]
    return (
        len(names) == 2 * words
        and set(names[::2]) <= relations
        and all(name in allowed for name, allowed in zip(names[1::2], heads))
    )


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_only_labels_that_can_stand_there(small_data, macro, beam):
    for free in (False, True):
        task, model = prepared(small_data, "interleaved", macro, task={"free_decoding": free})
        everything = list(range(len(task.datasets["train"])))
        sample = batch_of(task, everything)
        generator = task.build_generator([model], Namespace(beam=beam))
        hypotheses, predictions = task.predict(generator, [model], sample)
        right = []
        for row, words in enumerate(sample["words"].tolist()):
            for found in hypotheses[row]:
                tokens = found["tokens"].tolist()
                if model.predicts_end:
                    assert tokens.pop() == task.target_dictionary.eos()
                right.append(well_formed(task, tokens, words))
            columns = predictions[row]["columns"]  # whatever comes out is written as a tree
            assert len(columns["head"]) == len(columns["deprel"]) == words
            assert [name for head, name in zip(columns["head"], columns["deprel"]) if head == 0] == ["root"]
        assert all(right) if not free else (not all(right) or macro == "bi_attention")


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_only_tags_of_the_treebank(small_data, macro):
    task, model = prepared(small_data, "tagging", macro)
    sample = batch_of(task, range(24))
    hypotheses, predictions = task.predict(task.build_generator([model], Namespace(beam=5)), [model], sample)
    for (found, *_), prediction, words in zip(hypotheses, predictions, sample["words"].tolist()):
        names = [task.target_dictionary[token] for token in found["tokens"].tolist()][:words]
        assert prediction == {"columns": {"upos": names}} and set(names) <= set("WXYZ")


@pytest.mark.parametrize("layout", ["tagging", "interleaved", "parallel"])
def test_the_outputs_of_the_dbrnn(small_data, layout):
    chosen = {}
    for name in ("combined", "forward", "backward"):
        task, model = prepared(small_data, layout, "dbrnn", task={"dbrnn_output": name, "free_decoding": True})
        sample = batch_of(task, one_of_each_length(task))
        hypotheses, _ = task.predict(task.build_generator([model], Namespace(beam=1)), [model], sample)
        scores = torch.log_softmax(outputs(model, sample)[name], -1)
        for row, (length, (found,)) in enumerate(zip(rows(sample, model), hypotheses)):
            best, tokens = scores[row, :length].max(-1)
            assert found["tokens"].equal(tokens)
            torch.testing.assert_close(found["positional_scores"].double(), best, **FLOAT)
            torch.testing.assert_close(found["score"].double(), best.mean(), **FLOAT)
        chosen[name] = torch.cat([found["tokens"] for (found,) in hypotheses]).tolist()
    assert len(set(map(tuple, chosen.values()))) == 3


@pytest.mark.parametrize("macro", [name for name in MACRO_MODELS if name != "dbrnn"])
def test_other_models_have_no_other_outputs(small_data, macro):
    with pytest.raises(ValueError, match="--dbrnn-output forward: only the DBRNN has that output"):
        prepared(small_data, "tagging", macro, task={"dbrnn_output": "forward"})


@pytest.mark.parametrize("macro", LABELLERS)
def test_labellers_have_no_prefix(small_data, macro):
    task, model = prepared(small_data, "tagging", macro)
    generator = task.build_generator([model], Namespace(beam=1))
    with pytest.raises(ValueError, match="--prefix-size"):
        task.predict(generator, [model], batch_of(task, [0]), prefix_tokens=torch.tensor([[5]]))


@pytest.mark.parametrize("macro", LABELLERS)
def test_labellers_do_not_search(small_data, macro):
    task, model = prepared(small_data, "tagging", macro)
    for name, value in (("sampling", True), ("nbest", 2), ("temperature", 0.5), ("lenpen", 2.0), ("unkpen", 1.0)):
        with pytest.raises(ValueError, match=f"--{name} needs an encoder-decoder"):
            task.build_generator([model], Namespace(beam=1, **{name: value}))
    usual = {"sampling": False, "nbest": 1, "temperature": 1.0, "lenpen": 1, "unkpen": 0, "print_alignment": False}
    assert task.build_generator([model], Namespace(beam=5, **usual)).models[0] is model


@pytest.mark.parametrize("place", ["embedding", "between", "output"])
@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_retained_dropout(small_data, macro, place):
    """In generation that of every place is kept, or that of the parts that are named, or none."""

    def parts(**kept):
        """The owners of dropout that is kept, and whether two passes differ."""
        task, model = prepared(small_data, "tagging", macro, layers=2, **{f"dropout_{place}": 0.5})
        model.make_generation_fast_(**kept)
        assert not model.training and not any(type(part) is torch.nn.Dropout for part in model.modules())
        one, other = (outputs(model, batch_of(task, range(6)))["combined"] for _ in range(2))
        return {part.owner for part in model.modules() if getattr(part, "retained", False)}, not one.equal(other)

    owners, differ = parts(retain_dropout=True)
    assert differ and "SentenceEmbedding" in owners
    assert parts() == parts(retain_dropout=True, retain_dropout_modules="Elsewhere") == (set(), False)
    named = sorted(owners)[:2]
    assert parts(retain_dropout=True, retain_dropout_modules=",".join(named))[0] == set(named)
    assert parts(retain_dropout=True, retain_dropout_modules=named)[0] == set(named)


def test_symbols_and_labels_of_training_are_counted(small_data):
    """Words without their sentences' ends, labels with them."""
    task = make_task("tagging", small_data)
    sentences = parse_conllu((small_data / "train.conllu").read_text(), "made up").sentences
    lemmas, tags = (Counter(word for sentence in sentences for word in sentence.column(column))
                    for column in ("lemma", "upos"))  # fmt: skip
    for counts, dictionary, expected in (
        (task.count_source_symbols(), task.source_dictionary, lemmas),
        (task.count_labels(), task.target_dictionary, {**tags, "</s>": len(sentences)}),
    ):
        assert {dictionary[index]: int(n) for index, n in enumerate(counts) if n} == expected
        assert len(counts) == len(dictionary)


def test_names_of_relations_that_training_lacks(small_data, tmp_path):
    """They are in the text alone; LAS needs them, since a new subtype counts as its relation."""
    folder = shutil.copytree(small_data, tmp_path / "data")
    words = [("a", "a", "W", "P", 0, "root"), ("b", "b", "X", "P", 1, "obj:new"), ("c", "c", "X", "P", 1, "det")]
    text = conllu([words[:2], words, [words[0]]])
    (folder / "test.conllu").write_text(text)
    for column in COLUMNS:
        dictionary = Dictionary.load(str(folder / column / "dict.txt"))
        builder = indexed_dataset.make_builder(str(folder / column / "test.bin"), "mmap", len(dictionary))
        for sentence in parse_conllu(text, "made up").sentences:
            line = " ".join(column_symbols(sentence, column))
            builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
        builder.finalize(str(folder / column / "test.idx"))
    task = make_task("parsing", folder)
    labels = task.load_labels("test")
    assert [label.names for label in labels] == [["root", "obj:new"], ["root", "obj:new", "det"], ["root"]]
    assert labels[0].relations.tolist() == [task.target_dictionary.index("root"), task.target_dictionary.unk()]
    assert all(label.names is None for label in task.load_labels("train"))


@pytest.mark.parametrize("average", [False, True])
def test_the_criterion_counts_sentences_or_labels(small_data, average):
    task = make_task("tagging", small_data)
    cfg = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": average})
    assert task.build_criterion(cfg).sentence_avg == average


@pytest.mark.parametrize("place", ["embedding", "between", "output"])
@pytest.mark.parametrize("macro", [name for name in MACRO_MODELS if name != "seq2seq"])  # which reads no memory
def test_every_dropout_acts(small_data, macro, place):
    """Each by itself, on all outputs where it is the soft-max's; ``--dropout`` is the default of all."""
    more = {"upper_layers": 2} if macro == "dbrnn" else {}
    _, model = prepared(small_data, "tagging", macro, layers=2, dropout=0.5, **more)
    assert {part.p for part in model.modules() if isinstance(part, Dropout)} == {0.5}
    task, model = prepared(small_data, "tagging", macro, layers=2, **{f"dropout_{place}": 0.5}, **more)
    sample = batch_of(task, range(6))
    parts = [part for part in model.modules() if isinstance(part, Dropout) and part.p]
    assert parts
    for part in parts:
        model.eval()
        part.train()
        one, other = outputs(model, sample), outputs(model, sample)
        differ = [not one[name].equal(other[name]) for name in one]
        assert all(differ) if place == "output" else any(differ), part.owner


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_initialisation(small_data, macro):
    task = make_task("tagging", small_data)
    model = make_model(task, macro, init="uniform", init_scale=0.01)
    matrices = [p for name, p in model.named_parameters() if p.dim() > 1 and "pool" not in name]
    assert 0.009 < max(p.abs().max() for p in matrices) <= 0.01
    tables = [part.weight for part in make_model(task, macro).modules() if isinstance(part, torch.nn.Embedding)]
    assert tables and all(0.09 < table.abs().max() <= 0.1 for table in tables)


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_initialisation_of_what_is_read(small_data, macro):
    """Embeddings of the input columns and fillers; a decoder's embeddings of labels are not among them."""
    task = make_task("tagging", small_data, fixed_length=9, input_columns="lemma,xpos")
    model = make_model(task, macro, init_embedding=1.5)
    (embedding,) = (part for part in model.modules() if isinstance(part, SentenceEmbedding))
    tables = list(embedding.embed.values())
    (filler,) = (parameter for name, parameter in model.named_parameters() if name.endswith("filler"))
    assert len(tables) == 2 and all(not table.weight[table.padding_idx].any() for table in tables)
    assert all(0.5 < weight.abs().max() <= 1.5 for weight in (filler, *(table.weight for table in tables)))
    read = {id(table) for table in tables}
    others = [part for part in model.modules() if isinstance(part, torch.nn.Embedding) and id(part) not in read]
    assert len(others) == (macro in DECODERS) and all(part.weight.abs().max() <= 0.1 for part in others)
    for bound in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match=re.escape(f"--init-embedding {bound} must be in [0.0, inf)")):
            make_model(task, macro, init_embedding=bound)


def test_settings_without_effect_are_said(small_data, caplog):
    tagging, parallel = make_task("tagging", small_data), make_task("parsing", small_data, label_layout="parallel")
    characters = make_task("tagging", small_data, input_columns="char")
    for task, settings, message in (
        (tagging, {"freeze_vectors": True}, "--freeze-vectors has no effect"),
        (characters, {"init_embedding": 1.0}, "--init-embedding has no effect"),
        (tagging, {"stretch": "repeat"}, "--stretch repeat has no effect"),
        (parallel, {"stretch": "repeat"}, "--stretch repeat has no effect"),
        (tagging, {"char_encoder": "lstm", "char_width": 5}, "--char-width has no effect"),
    ):
        caplog.clear()
        make_model(task, "brnn", **settings)
        assert [text for text in caplog.messages if text.startswith(message)] and "no effect" in caplog.text
    caplog.clear()
    make_model(make_task("parsing", small_data), "brnn", stretch="repeat", char_width=5)
    assert "no effect" not in caplog.text


@pytest.mark.parametrize("macro", DECODERS)
def test_a_decoder_has_at_most_a_matrix_a_label(small_data, macro):
    task = make_task("tagging", small_data)
    labels = len(task.target_dictionary)
    assert labels < len(task.source_dictionary)
    model = make_model(task, macro, "r_rntn", num_matrices=labels + 2)
    sizes = [len(value) for name, value in model.named_parameters() if name.endswith("recurrence.weight")]
    assert sizes == [labels + 2, labels]
    with pytest.raises(ValueError, match="must be between 1 and the vocabulary size"):
        make_model(task, macro, "r_rntn", num_matrices=len(task.source_dictionary) + 1)


def test_models_that_a_task_refuses(small_data):
    for macro in DECODERS:
        with pytest.raises(ValueError, match="--label-layout parallel"):
            make_model(make_task("parsing", small_data, label_layout="parallel"), macro)
    config = MODEL_DATACLASS_REGISTRY["gru_lm"](embed_dim=2, hidden_size=2)
    config._name = "gru_lm"
    with pytest.raises(ValueError, match="macro models"):
        make_task("tagging", small_data).build_model(OmegaConf.structured(config))


# ---- learning -------------------------------------------------------------------------------------------------------


def treebank(count: int, by_prefix: bool, seed: int) -> str:
    """Distinct sentences of 2 to 6 words, 8 lemmas, every sentence with an analysis drawn at random.

    *by_prefix*: the tag, relation and head of a word are drawn for the words up to it, and its head is one of them, so
    that a network that reads from left to right can know them.
    """
    choose = random.Random(seed)
    lengths = [2] * 14 + [3] * 16 + [4] * 12 + [5] * 5 + [6] * 3
    sentences, drawn = {}, {}
    while len(sentences) < count:
        length = lengths[len(sentences) % len(lengths)]
        lemmas = tuple(choose.choices("abcdefgh", k=length))
        heads, words = random_heads(length, choose), []
        for at, head in enumerate(heads, 1):
            if by_prefix:
                head = choose.randint(1, at - 1) if at > 1 else 0
            label = (choose.choice("WXYZ"), head, "root" if head == 0 else choose.choice(("det", "obj", "nsubj")))
            if by_prefix:
                label = drawn.setdefault(lemmas[:at], label)
            words.append((lemmas[at - 1], lemmas[at - 1], label[0], "_", *label[1:]))
        sentences.setdefault(lemmas, words)
    return conllu(sentences.values())


@pytest.fixture(scope="session")
def treebanks(tmp_path_factory):
    """Folders, by whether what is to the left of a word says all of it."""
    columns = ("lemma", "upos", "deprel", "head_position")
    folder = tmp_path_factory.mktemp("learn")
    return {
        by_prefix: write_data(folder / str(by_prefix), treebank(50, by_prefix, seed=7), columns)
        for by_prefix in (True, False)
    }


def fit(task, model, sample, rate: float, most: int) -> int:
    """Adam on one batch until every label is the likeliest in all outputs; the steps it took."""
    criterion = LabelCrossEntropy(task, sentence_avg=False)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    known = sample["target"].ne(task.target_dictionary.pad())
    model.train()
    for step in range(most):
        loss, size, log = criterion(model, sample)
        optimiser.zero_grad()
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if float(log["loss"]) / size < 0.1:
            found = outputs(model, sample)
            if all(scores.argmax(-1).eq(sample["target"])[known].all() for scores in found.values()):
                return step + 1
    return most


@pytest.mark.parametrize(
    "macro, layout",
    [pair for pair in product(MACRO_MODELS, ("tagging", "interleaved", "parallel")) if fits(*pair)],
)
def test_learns_fifty_sentences_by_heart(treebanks, macro, layout):
    kind, settings, _ = LAYOUTS[layout]
    task = make_task(kind, treebanks[macro == "basic"], **settings)
    torch.manual_seed(1)
    model = make_model(task, macro, embed_dim=16, hidden_size=32)
    task.load_dataset("train")
    sample = batch_of(task, range(50))
    steps = fit(task, model, sample, rate=0.03, most=400)
    hypotheses, predictions = task.predict(task.build_generator([model.eval()], Namespace(beam=1)), [model], sample)
    counts = task.count(sample, hypotheses, predictions)
    assert counts["right_labels"] == counts["labels"], f"{counts} after {steps} steps"
    if kind == "parsing":
        assert counts["right_arcs"] == counts["right_heads"] == counts["words"]
        assert counts["labels"] == 2 * counts["words"] and counts["repaired"] == 0


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_a_checkpoint_holds_the_whole_model(small_data, macro):
    task, model = prepared(small_data, "interleaved", macro, "r_rntn")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other_task, other = prepared(small_data, "interleaved", macro, "r_rntn")
    randomised(other, seed=4)
    sample, again = batch_of(task, range(24)), batch_of(other_task, range(24))
    expected = outputs(model, sample)["combined"]
    assert not outputs(other, again)["combined"].equal(expected)
    other.load_state_dict(torch.load(file))
    assert outputs(other, again)["combined"].equal(expected)


@pytest.fixture(scope="session")
def other_data(tmp_path_factory, small_data):
    """The same treebank with another name for a lemma, and for a tag: dictionaries of the same size."""
    text, folder = (small_data / "train.conllu").read_text(), tmp_path_factory.mktemp("other")
    lemmas = re.sub(r"(?m)^(\d+\t\w+\t)b\t", r"\1q\t", text)
    assert lemmas != text
    return {
        "lemma": write_data(folder / "lemma", lemmas),
        "labels": write_data(folder / "labels", text.replace("\tW\t", "\tV\t")),
    }


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_a_checkpoint_with_another_dictionary_is_refused(small_data, other_data, macro):
    state = prepared(small_data, "tagging", macro)[1].state_dict()
    for name, folder in other_data.items():
        _, model = prepared(folder, "tagging", macro)
        with pytest.raises(ValueError, match=f"another dictionary of '{name}'"):
            model.load_state_dict(state)
    columns = ",".join(prepared(small_data, "tagging", macro)[0].input_columns)
    for other in ("form,xpos", ",".join(reversed(columns.split(",")))):
        _, model = prepared(small_data, "tagging", macro, task={"input_columns": other})
        with pytest.raises(ValueError, match=f"columns {columns},labels, not with {other},labels".replace(",", ", ?")):
            model.load_state_dict(state)


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_a_checkpoint_with_other_vectors_is_refused(small_data, data_with_vectors, macro):
    plain, given = (prepared(folder, "tagging", macro)[1] for folder in (small_data, data_with_vectors))
    for model, state, what in (
        (plain, given.state_dict(), "5 values of a pretrained vector for lemma, the data folder has none"),
        (given, plain.state_dict(), "no values of a pretrained vector for lemma, the data folder has 5"),
    ):
        with pytest.raises(ValueError, match=f"trained with {what}"):
            model.load_state_dict(state)
        model.load_state_dict(model.state_dict())


# ---- words ----------------------------------------------------------------------------------------------------------


def embedding_of(model):
    return model.encoder.embed if model.predicts_end else model.embed


def watch(module) -> list:
    """The inputs that a module will get."""
    seen: list = []
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    return seen


@pytest.fixture
def data_with_vectors(small_data, tmp_path):
    folder = tmp_path / "vectors"
    shutil.copytree(small_data, folder)
    size = len((folder / "lemma" / "dict.txt").read_text().splitlines()) + 4
    np.save(folder / "lemma" / "vectors.npy", np.random.default_rng(1).normal(size=(size, 5)).astype(np.float32))
    return folder


@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_word_dropout_takes_rare_words_in_training(data_with_vectors, macro):
    task = make_task("tagging", data_with_vectors, input_columns="lemma,form,xpos")
    torch.manual_seed(0)
    model = make_model(task, macro, word_dropout=2.0)
    task.load_dataset("train")
    sample = batch_of(task, list(range(24)) * 50)
    embedding = embedding_of(model)
    columns = {"lemma": sample["net_input"]["src_tokens"], **sample["net_input"]["columns"]}
    seen = {column: watch(embedding.embed[column]) for column in columns}
    known = watch(embedding.vectors["lemma"])
    with torch.no_grad():
        model.eval()(**sample["net_input"])
        assert all(seen[column].pop().equal(tokens) for column, tokens in columns.items())
        model.train()(**sample["net_input"])
    assert all(tokens.equal(columns["lemma"]) for tokens in known) and len(known) == 2
    assert seen.pop("xpos").pop().equal(columns["xpos"])
    for column in ("lemma", "form"):
        dictionary, tokens, read = task.dictionaries[column], columns[column], seen[column].pop()
        changed = read.ne(tokens)
        assert read[changed].eq(dictionary.unk()).all()
        assert not changed[tokens.eq(dictionary.pad())].any()
        for word in range(dictionary.nspecial, len(dictionary)):
            here = tokens.eq(word)
            expected, count = 2.0 / (2.0 + dictionary.count[word]), int(here.sum())
            assert count == 50 * dictionary.count[word]
            deviation = (expected * (1 - expected) / count) ** 0.5
            assert abs(float(changed[here].float().mean()) - expected) < 4.5 * deviation, dictionary[word]


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("macro", MACRO_MODELS)
def test_pretrained_vectors(data_with_vectors, macro, freeze):
    table = torch.from_numpy(np.load(data_with_vectors / "lemma" / "vectors.npy"))
    for scheme in ("orthogonal", "uniform", "normal"):
        task = make_task("tagging", data_with_vectors)
        model = make_model(task, macro, freeze_vectors=freeze, init=scheme)
        vectors = embedding_of(model).vectors["lemma"].weight
        assert vectors.equal(table)  # initialisation leaves them alone
        learnt = embedding_of(model).embed["lemma"].weight
        assert learnt[4:].any(1).all() and not learnt[task.source_dictionary.pad()].any()
    task.load_dataset("train")
    criterion = LabelCrossEntropy(task, sentence_avg=False)
    optimiser = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    loss, size, _ = criterion(model, batch_of(task, range(24)))
    (loss / size).backward()
    optimiser.step()
    assert vectors.requires_grad is not freeze and vectors.equal(table) is freeze
    assert embedding_of(model).output_size == 4 + 5
    assert outputs(model.eval(), batch_of(task, [0]))["combined"].isfinite().any()


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1000.0])
def test_words_that_training_lacks_are_unknown_but_for_their_vector(data_with_vectors, alpha):
    """Such words have count 0; their own embeddings would be the random ones of the initialisation."""
    with (data_with_vectors / "lemma" / "dict.txt").open("a") as file:
        file.write("unseen 0\n")
    table = np.load(data_with_vectors / "lemma" / "vectors.npy")
    np.save(data_with_vectors / "lemma" / "vectors.npy", np.concatenate([table, table[4:5] * 2]))
    task = make_task("tagging", data_with_vectors)
    model = randomised(make_model(task, "brnn", word_dropout=alpha))
    task.load_dataset("train")
    sample = batch_of(task, range(24))
    unseen, unknown = task.source_dictionary.index("unseen"), task.source_dictionary.unk()
    sample["net_input"]["src_tokens"][:, 0] = unseen
    read, known = watch(model.embed.embed["lemma"]), watch(model.embed.vectors["lemma"])
    for kind in (torch.float32, torch.bfloat16):
        for train in (False, True):
            model.to(kind).train(train)(**sample["net_input"])
            tokens = read.pop()
            assert tokens[:, 0].eq(unknown).all() and known.pop()[:, 0].eq(unseen).all()
            assert train or tokens[:, 1:].equal(sample["net_input"]["src_tokens"][:, 1:])


def test_vectors_are_read(data_with_vectors):
    """Two tables, two predictions."""
    task = make_task("tagging", data_with_vectors)
    model = randomised(make_model(task, "brnn"))
    task.load_dataset("train")
    before = outputs(model, batch_of(task, range(24)))["combined"]
    model.embed.vectors["lemma"].weight.data *= 2
    assert not outputs(model, batch_of(task, range(24)))["combined"].allclose(before)
