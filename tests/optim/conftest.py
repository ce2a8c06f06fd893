"""Trainings that tests of optimisers and gradients share."""

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset
from small_trainings import READ, V, settings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), torch.Generator().manual_seed(1)
    dictionary = Dictionary()
    for number in range(V - dictionary.nspecial):
        dictionary.add_symbol(f"w{number}")
    dictionary.save(str(folder / "dict.txt"))
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), "mmap", len(dictionary))
    for length in torch.randint(1, 9, (60,), generator=random).tolist():
        words = torch.randint(dictionary.nspecial, READ, (length,), generator=random)
        builder.add_item(torch.cat([words, torch.tensor([dictionary.eos()])]).int())
    builder.finalize(str(folder / "train.idx"))
    return folder


@pytest.fixture(scope="module")
def of_sgd(data):
    return settings(data, "--arch", "rntn_lm", "--lr", 1, "--optimizer", "sgd")
