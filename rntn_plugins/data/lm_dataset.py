"""fairseq adapters of :mod:`rntn_plugins.data.streams`."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq.data import EpochBatchIterator, FairseqDataset
from torch import Tensor

from rntn_plugins.data.streams import ContiguousStreams, Sentences, ShuffledBlocks, block_arrays
from rntn_plugins.symbols import is_filler


class CarrySlot:
    """Where models leave their state for the next block of the same streams, each model of an ensemble its own.

    It travels with the batch (``net_input["stream"]``), so the state is passed explicitly and never lives in a module.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self, carry: Optional[List[Tensor]] = None) -> None:
        """Start from zero, or from a state that a checkpoint kept (the tensors of a carry)."""
        self.carries: Dict[int, List[Tensor]] = {}
        self.restored = carry

    def get(self, owner) -> Optional[List[Tensor]]:
        """Where *owner* (a decoder) goes on from; ``None``: from zero."""
        return self.carries.get(id(owner), self.restored)

    def put(self, owner, carry: List[Tensor]) -> None:
        """Leave *owner*'s state after a block."""
        self.carries[id(owner)] = carry

    @property
    def carry(self) -> Optional[List[Tensor]]:
        """The state of the only model there is (in training)."""
        return next(iter(self.carries.values()), self.restored)


class Corpus(FairseqDataset):
    """A binarised split as one array of symbols.

    Args:
        sentences: fairseq's indexed dataset: one tensor a sentence, ``</s>`` last.
        name: for messages.
        dictionary: the symbols.
    Raises:
        ValueError: the split has no symbols, or some that no text may hold: ``<s>``, ``<pad>``, fillers of the
            dictionary (models give them no probability), or indices that the dictionary does not have.
    """

    def __init__(self, sentences: Sequence[Tensor], name: str, dictionary) -> None:
        self.name = name
        self.lengths = np.asarray([len(sentence) for sentence in sentences], dtype=np.int64)
        self.lengths = self.lengths[self.lengths > 0]
        if not len(self.lengths):
            raise ValueError(f"{name}: the corpus is empty, there is not one token to read")
        self.tokens = np.concatenate([sentence.numpy() for sentence in sentences]).astype(np.int32)
        check_symbols(self.tokens, name, dictionary)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> int:
        return int(self.tokens[index])

    @property
    def sizes(self) -> np.ndarray:
        return self.lengths


def check_symbols(tokens: np.ndarray, name: str, dictionary) -> None:
    """Raise ``ValueError`` if a text holds a symbol that it cannot hold (see :class:`Corpus`)."""
    present = np.unique(tokens)
    if present[-1] >= len(dictionary):
        raise ValueError(
            f"{name}: symbol number {present[-1]}, but dict.txt has only {len(dictionary)}; is it of this data?"
        )
    for index in present.tolist():
        if is_filler(dictionary, index):
            raise ValueError(
                f"{name}: the text holds {dictionary[index]!r}, a symbol that fairseq keeps for itself; rename it"
            )


class BlockDataset(FairseqDataset):
    """The blocks one worker reads, each item a whole batch.

    Args:
        corpus: the text.
        plan: :class:`ContiguousStreams`, :class:`ShuffledBlocks` or :class:`Sentences`.
        eos, pad: indices of ``</s>`` and ``<pad>``.
    """

    def __init__(self, corpus: Corpus, plan, eos: int, pad: int) -> None:
        self.corpus, self.plan, self.eos, self.pad = corpus, plan, eos, pad

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, number: int) -> dict:
        block = self.plan[number]
        inputs, targets, lengths = block_arrays(self.corpus.tokens, block, self.eos, self.pad)
        return {
            "id": torch.arange(len(lengths)),
            "nsentences": len(lengths),
            "ntokens": int(lengths.sum()),
            "net_input": {"src_tokens": torch.from_numpy(inputs), "src_lengths": torch.from_numpy(lengths)},
            "target": torch.from_numpy(targets),
            "first": block.first,
        }

    def collater(self, samples: List[dict]) -> dict:
        (sample,) = samples
        return sample


class BlockIterator(EpochBatchIterator):
    """fairseq's epoch iterator, reading blocks in the plan's order (one block a batch, streams never shuffled)."""

    def __init__(self, dataset: BlockDataset, seed: int, **kwargs) -> None:
        batches = [[number] for number in range(len(dataset))]
        super().__init__(dataset, dataset.collater, batches, seed=seed, **kwargs)

    def ordered_batches(self, epoch, fix_batches_to_gpus, shuffle):
        generator = np.random.RandomState((self.seed + epoch) % 2**32) if shuffle else None
        return [[number] for number in self.dataset.plan.order(generator)]


def make_plan(
    corpus: Corpus, break_mode: str, rows: int, block: int, num_shards: int = 1, shard: int = 0,
    shuffled: Optional[int] = None,
):  # fmt: skip
    """The plan of one of *num_shards* workers with *rows* rows each; *shuffled*: blocks drawn with that seed."""
    shape = (rows * num_shards, block, shard * rows, (shard + 1) * rows)
    if break_mode == "eos":
        return Sentences(corpus.lengths, *shape)
    if shuffled is not None:
        return ShuffledBlocks(len(corpus), *shape, seed=shuffled)
    return ContiguousStreams(len(corpus), *shape)
