"""Mends of fairseq 0.12.3 for today's torch and numpy. Importing this module applies them, once.

torch >= 2.6 loads checkpoints with ``weights_only``, which is right: a hostile checkpoint must not run code. fairseq's
hold one class it does not know, ``argparse.Namespace``; allowing that class keeps loading safe.

For the same reason workers could not hand a loaded checkpoint's settings to each other (fairseq sends them through
``torch.load``); what comes from a worker of the same run is sent as torch sends objects.

fairseq saves a checkpoint at the end of an epoch *before* it tells the schedule what validation gave, so a run resumed
from it never learns that: a halving would be lost at every restart. The result is in the checkpoint; it is handed over.

``fairseq-generate`` scores what it generates by BLEU unless told otherwise, which says nothing of labels; a dictionary
that brings its own scorer is scored by that.

numpy >= 2 has no ``np.compat.long``, which two fairseq modules use (``--sample-break-mode eos`` of fairseq's own
language modelling task, and length bucketing). Only those modules get a numpy that still has it; numpy itself is left
alone.

fairseq seeds torch anew before every update, on all kinds of accelerator, there or not: for each that is not, torch
notes the seed with a trace of the caller, 1 ms in all, a tenth of a small model's update. Only what is there is seeded.

``--no-repeat-ngram-size`` on a CPU compares the end of a buffer that is not full yet, and so bans nothing; the last
symbols that were put out are compared, without the one that starts every text. Symbols of a prompt stay possible,
whatever they repeat.

``--store-ema`` averages a model's integers too (which matrix a word has), which torch refuses; they are copied.

``--update-freq`` changed by a run that goes on in the middle of an epoch: fairseq counts the groups of batches from the
epoch's start, though those left begin where it goes on. If they do not come out even the last batches stay unread, the
epoch counts as not ended, and is trained once more. The groups that are left are counted.

A binarised file that is cut off: the half-made reader of fairseq closes what it had not opened, and its complaint of
that follows the message that says what is wrong. What was not opened is left alone.

Row-sparse gradients, which fairseq's trainer does not know, are a matter of their own:
:mod:`rntn_plugins.optim.row_sparse`.
"""

from __future__ import annotations

import argparse
import functools
import math
import types

import numpy
import torch

from rntn_plugins.optim.row_sparse import teach_fairseq


class NumpyWithCompat(types.ModuleType):
    """numpy, plus ``compat.long``."""

    compat = types.SimpleNamespace(long=int)

    def __getattr__(self, name: str):
        return getattr(numpy, name)


def allow_fairseq_checkpoints() -> None:
    torch.serialization.add_safe_globals([argparse.Namespace])


def broadcast_object(obj, src_rank: int, group, dist_device: torch.device):
    """An object of the worker *src_rank*, on all workers of the group."""
    holder = [obj]
    torch.distributed.broadcast_object_list(holder, src=src_rank, group=group, device=dist_device)
    return holder[0]


def mend_broadcasts() -> None:
    from fairseq.distributed import utils

    utils._broadcast_object_slow = broadcast_object


def tell_schedules_on_resume() -> None:
    from fairseq import checkpoint_utils

    original = checkpoint_utils.load_checkpoint
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def load_checkpoint(cfg, trainer, **kwargs):
        extra_state, epoch_itr = original(cfg, trainer, **kwargs)
        between_epochs = epoch_itr.iterations_in_epoch == 0 and epoch_itr.epoch > 1
        if extra_state is not None and between_epochs and not (cfg.reset_lr_scheduler or cfg.reset_optimizer):
            if extra_state.get("val_loss") is not None:
                trainer.lr_step(epoch_itr.epoch - 1, extra_state["val_loss"])
        return extra_state, epoch_itr

    checkpoint_utils.load_checkpoint = load_checkpoint


def restore_numpy_compat() -> None:
    if hasattr(numpy, "compat"):
        return
    from fairseq.data import language_pair_dataset, token_block_dataset

    for module in (language_pair_dataset, token_block_dataset):
        module.np = NumpyWithCompat("numpy")


def score_labels_as_labels() -> None:
    from fairseq import scoring

    original = scoring.build_scorer
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def build_scorer(choice, tgt_dict):
        own = getattr(tgt_dict, "scorer", None)
        default = getattr(choice, "_name", choice) == "bleu"
        return own if own is not None and default else original(choice, tgt_dict)

    scoring.build_scorer = build_scorer


def seed_what_is_there() -> None:
    from fairseq import utils

    original = utils.set_torch_seed
    if original.__module__ == __name__ or not hasattr(torch, "accelerator"):
        return

    class set_torch_seed(original):  # fairseq's name and use, as a context too
        __doc__ = original.__doc__

        def __init__(self, seed: int) -> None:
            there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            if utils.xm is not None or (there is not None and there.type != "cuda"):
                super().__init__(seed)
                return
            self.rng_state = utils.get_rng_state()
            torch.default_generator.manual_seed(seed)
            if there is not None:
                torch.cuda.manual_seed_all(seed)

    utils.set_torch_seed = set_torch_seed


def ban_repeated_ngrams(block, tokens, lprobs, bsz: int, beam_size: int, step: int):
    """fairseq's ``NGramRepeatBlock`` without its CUDA extension: -inf for what would repeat n symbols.

    Args:
        block: has n, ``no_repeat_ngram_size``.
        tokens: ``[B * beams, T]``, of which the first ``step + 1`` are there, ``</s>`` before all others.
        lprobs: ``[B * beams, V]``, changed in place. A row of which nothing would be left (a prompt's symbol, the end
            at the greatest length) stays as it is.
    """
    n = block.no_repeat_ngram_size
    for row, before in zip(lprobs, tokens[:, 1 : step + 1].tolist()):
        last = before[max(0, len(before) - n + 1) :]
        banned = {before[at + n - 1] for at in range(len(before) - n + 1) if before[at : at + n - 1] == last}
        if banned:
            allowed = row.clone()
            allowed[list(banned)] = float("-inf")
            if not torch.isneginf(allowed).all():
                row.copy_(allowed)
    return lprobs


def mend_ngram_blocks() -> None:
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    NGramRepeatBlock._no_repeat_ngram = ban_repeated_ngrams


def average_numbers_only() -> None:
    from fairseq.models.ema import EMA

    original = EMA.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def __init__(self, model, *args, **kwargs):
        original(self, model, *args, **kwargs)
        state = self.model.state_dict()  # of tensors, and what modules add to it
        integers = {key for key, value in state.items() if torch.is_tensor(value) and not value.is_floating_point()}
        self.skip_keys = integers | set(self.skip_keys)

    EMA.__init__ = __init__


def count_groups_that_are_left() -> None:
    from fairseq.data import iterators

    original = iterators.GroupedIterator.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def __init__(self, iterable, chunk_size, skip_remainder_batch=False):
        read = getattr(iterable, "n", 0)
        if read % chunk_size == 0:
            original(self, iterable, chunk_size, skip_remainder_batch)
            return
        left = len(iterable) - read
        before, groups = (math.ceil(batches / chunk_size) for batches in (read, left))
        if skip_remainder_batch:
            groups = left // chunk_size
            iterable.take(read + groups * chunk_size)
        chunks = iterators._chunk_iterator(iterable, chunk_size, skip_remainder_batch)
        iterators.CountingIterator.__init__(self, chunks, start=before, total=before + groups)
        self.chunk_size = chunk_size

    iterators.GroupedIterator.__init__ = __init__


def close_what_was_opened() -> None:
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    for reader in (MMapIndexedDataset, MMapIndexedDataset.Index):
        original = reader.__del__
        if hasattr(original, "__wrapped__"):
            continue

        @functools.wraps(original)
        def __del__(self, original=original):
            if hasattr(self, "_bin_buffer_mmap"):
                original(self)

        reader.__del__ = __del__


allow_fairseq_checkpoints()
average_numbers_only()
close_what_was_opened()
count_groups_that_are_left()
mend_ngram_blocks()
score_labels_as_labels()
mend_broadcasts()
tell_schedules_on_resume()
restore_numpy_compat()
seed_what_is_there()
teach_fairseq()
