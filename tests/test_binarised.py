"""Binarised text in each of fairseq's formats."""

import re
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset
from stub_task import build

from rntn_plugins.data.binarised import load_binarised, load_dictionary
from rntn_plugins.data.lm_dataset import Corpus
from rntn_plugins.models.symbol_counts import count_symbols
from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingConfig, RNTNLanguageModelingTask

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


def test_a_language_model_starts_at_the_frequencies_of_a_folder(tmp_path, dictionary):
    write(tmp_path, "mmap", dictionary)
    task = SimpleNamespace(cfg=SimpleNamespace(data=str(tmp_path)), source_dictionary=dictionary)
    bias = build("gru_lm", task, init_output_bias="unigram").decoder.output_projection.bias
    assert bias.exp().tolist() == pytest.approx([(n + 1) / 17 for n in (0, 0, 4, 0, 3, 2, 1)])
    for ending in ("bin", "idx"):  # another shard of the same text, as training reads it
        (tmp_path / f"train1.{ending}").write_bytes((tmp_path / f"train.{ending}").read_bytes())
    bias = build("gru_lm", task, init_output_bias="unigram").decoder.output_projection.bias
    assert bias.exp().tolist() == pytest.approx([(2 * n + 1) / 27 for n in (0, 0, 4, 0, 3, 2, 1)])


@pytest.mark.parametrize("read", [None, "lazy", "cached"])
def test_files_that_were_cut_short(read, tmp_path, dictionary):
    path = write(tmp_path, "lazy", dictionary)
    content = open(f"{path}.bin", "rb").read()
    open(f"{path}.bin", "wb").write(content[:-1])
    with pytest.raises(ValueError, match=r"train is empty or damaged.*: train.bin has 39 bytes of 40$"):
        load_binarised(path, dictionary, read)


@pytest.mark.parametrize("read", [None, "lazy"])
def test_several_workers_read_the_same_file(read, tmp_path, dictionary):
    """And several files as one split."""
    write(tmp_path, "lazy", dictionary)
    (tmp_path / "train1.bin").write_bytes((tmp_path / "train.bin").read_bytes())
    (tmp_path / "train1.idx").write_bytes((tmp_path / "train.idx").read_bytes())
    sentences = load_binarised(str(tmp_path / "train"), dictionary, read, combine=True)
    loader = torch.utils.data.DataLoader(sentences, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [sentence.tolist() for sentence in loader] == SENTENCES * 2
    assert all(part.data_file is None for part in sentences.datasets), "no file that workers would share"


def test_another_format_is_not_called_damage_alone(tmp_path, dictionary):
    path = write(tmp_path, "mmap", dictionary)
    with pytest.raises(ValueError, match="train is empty or damaged, or not made by --dataset-impl lazy: "):
        load_binarised(path, dictionary, "lazy")


@pytest.mark.parametrize("content, said", [
    (None, "{folder}: no dict.txt here; is it a folder written by a tool?"),
    (b"a 1\nb\n", "{folder}/dict.txt: Incorrect dictionary format, expected '<token> <cnt> [flags]'"),
    (b"a 1\nb many\n", "{folder}/dict.txt: Incorrect dictionary format, expected '<token> <cnt> [flags]'"),
    (b"a 1\n\xff 1\n", "{folder}/dict.txt: Incorrect encoding detected in {folder}/dict.txt"),
])  # fmt: skip
def test_a_damaged_dictionary_is_named(content, said, tmp_path):
    if content is not None:
        (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(said.format(folder=tmp_path))):
        load_dictionary(str(tmp_path), "a tool")


def test_a_dictionary_is_read_as_it_was_written(dictionary, tmp_path):
    dictionary.save(str(tmp_path / "dict.txt"))
    again = load_dictionary(str(tmp_path), "a tool")
    assert again.symbols == dictionary.symbols and again.count[4:] == dictionary.count[4:]


def test_folders_of_data_are_read_in_turn(dictionary, tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write(folder, "mmap", dictionary)
    builder = indexed_dataset.make_builder(str(folders[1] / "train.bin"), "mmap", len(dictionary))
    builder.add_item(torch.IntTensor([4, 2]))
    builder.finalize(str(folders[1] / "train.idx"))
    cfg = RNTNLanguageModelingConfig(data=":".join(map(str, folders)), dataset_impl=None)
    task, sizes = RNTNLanguageModelingTask(cfg, dictionary), []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        sizes.append(len(task.dataset("train")))
    assert sizes == [10, 2, 10]
