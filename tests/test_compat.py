"""The mends of fairseq for today's numpy and torch."""

import argparse
import gc
import struct
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch

import rntn_plugins  # noqa: F401


def test_numpy_itself_is_left_alone():
    from fairseq.data import token_block_dataset

    assert int(numpy.__version__.split(".")[0]) < 2 or not hasattr(numpy, "compat")
    assert token_block_dataset.np.compat.long is int or hasattr(numpy, "compat")
    assert token_block_dataset.np.zeros is numpy.zeros


def test_sentence_blocks_of_fairseq():
    from fairseq.data import TokenBlockDataset

    lines = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    blocks = TokenBlockDataset(lines, [3, 2], None, pad=1, eos=2, break_mode="eos")
    assert [block.tolist() for block in blocks] == [[5, 6, 2], [7, 2]]


def test_checkpoints_load_safely(tmp_path):
    torch.save({"args": argparse.Namespace(lr=[0.1])}, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", weights_only=True)["args"].lr == [0.1]


def test_seeds_are_those_of_torch(monkeypatch):
    from fairseq import utils

    torch.manual_seed(7)
    torch_rand = torch.rand(3)
    before = torch.get_rng_state()
    with utils.set_torch_seed(7):
        assert torch.equal(torch.rand(3), torch_rand)
    assert torch.equal(torch.get_rng_state(), before)

    seeded = []
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeded.append(("all", seed)))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: seeded.append(("cuda", seed)))
    for there, expected in ((None, []), ("cuda", [("cuda", 7)]), ("xpu", [("all", 7)])):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda there=there: there is not None)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda there=there: there and torch.device(there))
        del seeded[:]
        with utils.set_torch_seed(7):
            assert there == "xpu" or torch.equal(torch.rand(3), torch_rand)
        assert seeded == expected  # what is not there costs nothing


@pytest.mark.parametrize("updates, epoch, told", [(0, 3, [(2, 7.0)]), (5, 3, []), (0, 1, [])])
def test_schedules_are_told_of_a_validation_only_between_epochs(updates, epoch, told, monkeypatch):
    """In mid-epoch the rate was already lowered by the epoch before, and before the first there is none."""
    from fairseq import checkpoint_utils

    from rntn_plugins import compat

    loop, calls = SimpleNamespace(iterations_in_epoch=updates, epoch=epoch), []
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", lambda cfg, trainer: ({"val_loss": 7.0}, loop))
    compat.tell_schedules_on_resume()
    trainer = SimpleNamespace(lr_step=lambda *arguments: calls.append(arguments))
    cfg = SimpleNamespace(reset_lr_scheduler=False, reset_optimizer=False)
    assert checkpoint_utils.load_checkpoint(cfg, trainer) == ({"val_loss": 7.0}, loop) and calls == told


def blocked(n, rows, lprobs=None, spare=4):
    """Which symbols are ruled out for each row, the buffer being *spare* symbols longer than what is there."""
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    block = NGramRepeatBlock(n, use_extension=False)
    tokens = torch.tensor([[*row, *[1] * spare] for row in rows])
    lprobs = torch.zeros(len(rows), 9) if lprobs is None else lprobs
    after = block(tokens, lprobs.clone(), 1, len(rows), len(rows[0]) - 1)
    return [torch.isneginf(row).nonzero().flatten().tolist() for row in after]


def test_what_would_repeat_an_ngram_is_ruled_out():
    assert blocked(2, [[2, 5, 6, 5], [2, 5, 6, 7]]) == [[6], []]
    assert blocked(2, [[2, 5, 6, 5, 7, 5]]) == [[6, 7]]
    assert blocked(3, [[2, 5, 6, 7, 5, 6], [2, 5, 6, 7, 6, 5]]) == [[7], []]
    assert blocked(1, [[2, 5, 6]]) == [[5, 6]], "the end stays possible"
    assert blocked(3, [[2, 2, 5]]) == [[]], "what starts a text is no part of it"
    assert blocked(4, [[2, 5, 6]]) == [[]]


def test_a_prompt_may_repeat_itself():
    forced = torch.full((1, 9), float("-inf"))
    forced[0, 6] = -1.0
    assert blocked(2, [[2, 5, 6, 5]], forced) == [[0, 1, 2, 3, 4, 5, 7, 8]], "as it was"


@pytest.mark.parametrize("single", [False, True])
def test_moving_averages_leave_integers_alone(single):
    """``--store-ema`` of a model with a map from words to matrices."""
    from fairseq.dataclass.configs import EMAConfig
    from fairseq.models.ema import build_ema

    class Counting(torch.nn.Linear):
        def get_extra_state(self):
            return {"calls": 0}

        def set_extra_state(self, state):
            pass

    model = (torch.nn.Linear if single else Counting)(2, 2)  # fairseq's single precision knows tensors only
    model.register_buffer("index_map", torch.tensor([0, 1, 1]))
    ema = build_ema(model, EMAConfig(store_ema=True, ema_decay=0.75, ema_fp32=single), "cpu")
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(4.0)
    model.index_map[2] = 2
    ema.step(model)
    torch.testing.assert_close(ema.get_model().weight, before + 1.0)
    assert ema.get_model().index_map.tolist() == [0, 1, 2]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("read, size", [(0, 2), (6, 2), (7, 2), (7, 3), (16, 4), (18, 5), (19, 2)])
def test_groups_of_what_is_left_of_an_epoch(read, size, skip):
    """Of an epoch of 19 batches that goes on after *read*: all that are left are read, and then it has ended."""
    from fairseq.data.iterators import CountingIterator, GroupedIterator

    batches = CountingIterator(range(read, 19), start=read)
    groups = GroupedIterator(batches, size, skip_remainder_batch=skip)
    left = list(range(read, 19))
    expected = [left[at : at + size] for at in range(0, len(left), size)]
    if skip and expected and len(expected[-1]) < size:
        del expected[-1]
    assert groups.n == -(-read // size) and len(groups) == groups.n + len(expected)
    assert list(groups) == expected and not batches.has_next()


def test_a_reader_of_a_cut_file_goes_quietly(tmp_path, monkeypatch):
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    (tmp_path / "x.bin").write_bytes(bytes(8))
    for index in (b"MMIDIDX\0\0", b"MMIDIDX\0\0" + bytes([1] + [0] * 7 + [4]) + bytes([9] + [0] * 7) * 2):
        (tmp_path / "x.idx").write_bytes(index)
        with pytest.raises((ValueError, struct.error)) as raised:
            MMapIndexedDataset(str(tmp_path / "x"))
        del raised
        gc.collect()
    assert said == []
