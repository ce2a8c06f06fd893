"""Binarised text in each of fairseq's formats."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset

from rntn_plugins.data.binarised import load_binarised
from rntn_plugins.data.lm_dataset import Corpus
from rntn_plugins.models.symbol_counts import count_symbols

SENTENCES = [[4, 5, 2], [5, 2], [2], [6, 4, 4, 2]]


@pytest.fixture
def dictionary():
    found = Dictionary()
    for word in "abc":
        found.add_symbol(word)
    return found


def write(folder, impl, dictionary):
    path = str(folder / "train")
    builder = indexed_dataset.make_builder(f"{path}.bin", impl, len(dictionary))
    for sentence in SENTENCES:
        builder.add_item(torch.IntTensor(sentence))
    builder.finalize(f"{path}.idx")
    return path


@pytest.mark.parametrize("written, read", [
    ("mmap", None), ("mmap", "mmap"), ("lazy", None), ("lazy", "lazy"), ("lazy", "cached"), ("cached", None),
    ("cached", "cached"),
])  # fmt: skip
def test_formats(written, read, tmp_path, dictionary):
    path = write(tmp_path, written, dictionary)
    sentences = load_binarised(path, dictionary, read)
    assert [sentence.tolist() for sentence in sentences] == SENTENCES
    assert Corpus(sentences, path, dictionary).tokens.tolist() == sum(SENTENCES, [])
    task = SimpleNamespace(cfg=SimpleNamespace(data=str(tmp_path)), source_dictionary=dictionary)
    assert count_symbols(task).tolist() == [0, 0, 4, 0, 3, 2, 1]


def test_another_format_is_not_called_damage_alone(tmp_path, dictionary):
    path = write(tmp_path, "mmap", dictionary)
    with pytest.raises(ValueError, match="train is empty or damaged, or not made by --dataset-impl lazy: "):
        load_binarised(path, dictionary, "lazy")
