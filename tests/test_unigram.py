"""scripts/unigram.py against counts done by hand, and its errors."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "unigram.py"
SPEC = importlib.util.spec_from_file_location("unigram", SCRIPT)
unigram = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(unigram)

TEXT = {"train": ["a b a", "a <unk>"], "test": ["a c", "b"], "valid": ["a"]}  # c is not in train


def write(folder: Path, padding_factor: int = 1, **splits) -> Path:
    """Binarise sentences as fairseq-preprocess does."""
    dictionary = Dictionary()
    for sentence in splits["train"]:
        dictionary.encode_line(sentence)
    dictionary.finalize(padding_factor=padding_factor)
    dictionary.save(str(folder / "dict.txt"))
    for split, sentences in splits.items():
        builder = indexed_dataset.make_builder(str(folder / f"{split}.bin"), "mmap", len(dictionary))
        for sentence in sentences:
            builder.add_item(dictionary.encode_line(sentence, add_if_not_exist=False))
        builder.finalize(str(folder / f"{split}.idx"))
    return folder


@pytest.mark.parametrize("padding_factor", [1, 8])
def test_perplexity_by_hand(tmp_path, capsys, padding_factor):
    """Four symbols can occur (a, b, <unk>, </s>), whatever the fillers."""
    folder = write(tmp_path, padding_factor, **TEXT)
    assert len(Dictionary.load(str(folder / "dict.txt"))) == (6 if padding_factor == 1 else 8)
    assert unigram.main([str(folder)]) == 0
    # train: a 3, b 1, <unk> 1, </s> 2, each and one, of 11; test: a <unk> </s> b </s>
    product = (4 / 11) * (2 / 11) * (3 / 11) * (2 / 11) * (3 / 11)
    bits = -math.log2(product) / 5
    expected = f"unigram model on test: 5 tokens, {bits:.2f} bits, perplexity {product ** (-1 / 5):.2f}\n"
    assert capsys.readouterr().out == expected
    assert unigram.main([str(folder), "--subset", "valid"]) == 0
    assert capsys.readouterr().out.startswith("unigram model on valid: 2 tokens, ")


def test_probabilities_sum_to_one():
    train, possible = np.array([0, 0, 5, 0, 7, 2]), np.array([False, False, True, True, True, True])
    bits = [unigram.unigram_bits(train, one, possible)[0] for one in np.eye(6, dtype=np.int64)[2:]]
    assert math.isclose(sum(2.0**-b for b in bits), 1.0)
    total, tokens = unigram.unigram_bits(train, np.array([0, 0, 1, 1, 1, 1000]), possible)
    assert tokens == 1003 and math.isclose(total, sum(bits[:3]) + 1000 * bits[3])


def test_training_shards_count_too(tmp_path):
    folder = write(tmp_path, **{**TEXT, "train1": ["b b b"]})
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    counts = unigram.load_counts(str(folder), "train", dictionary, combine=True)
    assert counts[dictionary.index("b")] == 4 and counts.sum() == 11
    # a 3, b 4, <unk> 1, </s> 3, each and one, of 15
    product = (4 / 15) * (2 / 15) * (4 / 15) * (5 / 15) * (4 / 15)
    assert unigram.evaluate(str(folder), "test").endswith(f", perplexity {product ** (-1 / 5):.2f}")


def refused(capsys, *arguments) -> str:
    assert unigram.main([str(argument) for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("unigram: error: "), lines
    return lines[0].removeprefix("unigram: error: ")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fairseq's half-opened files
def test_errors(tmp_path, capsys):
    assert "no dict.txt here" in refused(capsys, tmp_path)
    folder = write(tmp_path, **TEXT, empty=[])
    assert f"{folder}: no split 'dev' here" in refused(capsys, folder, "--subset", "dev")
    assert "empty is empty or damaged" in refused(capsys, folder, "--subset", "empty")
    dictionary = folder / "dict.txt"
    kept = dictionary.read_text()
    dictionary.write_text("a 3\n")
    assert "train: symbol number 5, but dict.txt has only 5" in refused(capsys, folder)
    dictionary.write_text("a\n")
    assert "dict.txt: Incorrect dictionary format" in refused(capsys, folder)
    dictionary.write_bytes(b"\xff 3\n")
    assert "dict.txt: Incorrect encoding" in refused(capsys, folder)
    dictionary.write_text(kept)
    builder = indexed_dataset.make_builder(str(folder / "padded.bin"), "mmap", 6)
    builder.add_item(torch.tensor([4, 1, 2]))
    builder.finalize(str(folder / "padded.idx"))
    assert "a symbol that fairseq keeps for itself" in refused(capsys, folder, "--subset", "padded")
    (folder / "train.idx").write_bytes(b"")
    assert "train is empty or damaged" in refused(capsys, folder)
