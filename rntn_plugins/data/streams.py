"""How a corpus is cut into blocks for truncated back-propagation through time. Pure NumPy, no fairseq.

A corpus is one array of N symbols in text order, ``</s>`` after every sentence. Each symbol is a target exactly once,
for any number of streams and any block length; its input is the symbol before it (``</s>`` before the first).
"""

from __future__ import annotations

from typing import List, NamedTuple

import numpy as np


class Block(NamedTuple):
    """What a worker reads at one step of training: a range of targets for each of its B rows."""

    starts: np.ndarray  # [B], first target of each row
    ends: np.ndarray  # [B], one past the last; equal to the start where a row has nothing left
    first: bool  # whether the state starts from zero here


class ContiguousStreams:
    """The corpus as ``streams`` contiguous pieces whose lengths differ by at most one, read side by side.

    Args:
        num_tokens: N, at least 1.
        streams: B over all workers together, at least 1.
        block: T, the length of a block, at least 1.
        row_from, row_to: the streams this worker reads.
    """

    def __init__(self, num_tokens: int, streams: int, block: int, row_from: int = 0, row_to: int = None) -> None:
        bounds = np.arange(streams + 1, dtype=np.int64) * num_tokens // streams
        longest = int(np.diff(bounds).max())
        self.starts, self.ends = bounds[:-1][row_from:row_to], bounds[1:][row_from:row_to]
        self.block_length = block
        self.num_blocks = -(-longest // block)

    def __len__(self) -> int:
        return self.num_blocks

    def __getitem__(self, number: int) -> Block:
        starts = np.minimum(self.starts + number * self.block_length, self.ends)
        return Block(starts, np.minimum(starts + self.block_length, self.ends), number == 0)

    def order(self, shuffle_with: np.random.RandomState = None) -> List[int]:
        """Streams are always read in text order."""
        return list(range(self.num_blocks))


class ShuffledBlocks:
    """Blocks of T symbols side by side, B at a time, each from a zero state and from anywhere in the corpus.

    Which blocks stand side by side is drawn once; epochs differ in the order of such batches.

    Args:
        num_tokens: N, at least 1.
        rows, block, row_from, row_to: as for :class:`ContiguousStreams`.
        seed: of the draw; the same for all workers.
    """

    def __init__(
        self, num_tokens: int, rows: int, block: int, row_from: int = 0, row_to: int = None, seed: int = 1
    ) -> None:
        count = -(-num_tokens // block)
        places = np.full(-(-count // rows) * rows, num_tokens, dtype=np.int64)  # what is left over has nothing
        places[:count] = np.random.RandomState(seed % 2**32).permutation(count) * block
        self.starts = places.reshape(-1, rows)[:, row_from:row_to]
        self.num_tokens, self.block_length = num_tokens, block

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> Block:
        starts = self.starts[number]
        return Block(starts, np.minimum(starts + self.block_length, self.num_tokens), True)

    def order(self, shuffle_with: np.random.RandomState = None) -> List[int]:
        """Numbers of batches, shuffled if a generator is given."""
        order = list(range(len(self)))
        if shuffle_with is not None:
            shuffle_with.shuffle(order)
        return order


class Sentences:
    """Sentences side by side, B at a time, the state starting from zero with each group of B.

    Sentences longer than T go on in the next block with their state. Groups are made of sentences of similar length.

    Args:
        lengths: of the sentences in text order, ``</s>`` included, each at least 1.
        rows, block, row_from, row_to: as for :class:`ContiguousStreams`.
    """

    def __init__(self, lengths: np.ndarray, rows: int, block: int, row_from: int = 0, row_to: int = None) -> None:
        lengths = np.asarray(lengths, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        by_length = np.argsort(lengths, kind="stable")
        self.block_length = block
        self.row_from, self.row_to = row_from, rows if row_to is None else row_to
        self.groups, self.pieces = [], []  # pieces: (group, number of the piece)
        for at in range(0, len(by_length), rows):
            chosen = by_length[at : at + rows]
            starts, ends = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
            starts[: len(chosen)], ends[: len(chosen)] = offsets[chosen], offsets[chosen] + lengths[chosen]
            blocks = -(-int(lengths[chosen].max()) // block)
            self.pieces.extend((len(self.groups), piece) for piece in range(blocks))
            self.groups.append((starts[self.row_from : self.row_to], ends[self.row_from : self.row_to]))

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, number: int) -> Block:
        group, piece = self.pieces[number]
        starts, ends = self.groups[group]
        starts = np.minimum(starts + piece * self.block_length, ends)
        return Block(starts, np.minimum(starts + self.block_length, ends), piece == 0)

    def order(self, shuffle_with: np.random.RandomState = None) -> List[int]:
        """Block numbers, groups shuffled if a generator is given, the pieces of a group always in order."""
        by_group: List[List[int]] = [[] for _ in self.groups]
        for number, (group, _) in enumerate(self.pieces):
            by_group[group].append(number)
        if shuffle_with is not None:
            shuffle_with.shuffle(by_group)
        return [number for group in by_group for number in group]


def block_arrays(corpus: np.ndarray, block: Block, first_input: int, pad: int):
    """Inputs, targets ``[B, T']`` (T' the longest row, at least 1; padded with *pad*) and lengths ``[B]``.

    Args:
        first_input: the symbol before the corpus begins, ``</s>``.
    """
    lengths = block.ends - block.starts
    width = max(1, int(lengths.max()))
    inputs = np.full((len(lengths), width), pad, dtype=np.int64)
    targets = np.full((len(lengths), width), pad, dtype=np.int64)
    for row, (start, end) in enumerate(zip(block.starts, block.ends)):
        if start == end:
            continue
        targets[row, : end - start] = corpus[start:end]
        inputs[row, 0] = corpus[start - 1] if start > 0 else first_input
        inputs[row, 1 : end - start] = corpus[start : end - 1]
    return inputs, targets, lengths
