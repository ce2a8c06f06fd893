"""Which recurrence matrix a symbol uses: the function f of S18, eqs. (4), (5) and (16)."""

from __future__ import annotations

import os
from typing import Sequence

import torch
from torch import Tensor

from rntn_plugins.cells.base import Vocabulary

#: a map that a checkpoint still has to fill in
UNKNOWN = -1


def ranks(counts: Tensor) -> Tensor:
    """rank(w) from 1 (commonest) to V, by decreasing unigram frequency; ties go to the smaller index.

    Args:
        counts: occurrences in the training text, special symbols included, ``[V]``.
    """
    order = torch.argsort(counts, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(1, counts.numel() + 1)
    return rank


def rank_map(rank: Tensor, num_matrices: int) -> Tensor:
    """f(w) = min(rank(w), K), S18 (5), as an index from 0 to K-1."""
    return rank.clamp(max=num_matrices) - 1


def mod_map(rank: Tensor, num_matrices: int) -> Tensor:
    """f_mod(w) = rank(w) mod K, S18 (16): 0 to K-1."""
    return rank % num_matrices


def read_map(path: str, symbols: Sequence[str], num_matrices: int) -> Tensor:
    """Read a map file: one ``symbol index`` a line, index from 0 to K-1, every symbol of the vocabulary once.

    ``<s>``, ``<pad>`` and fairseq's ``madeupword…`` fillers never occur in text; without a line they share matrix 0.

    Raises:
        ValueError: naming file and line (malformed, out of range, repeated) or the first missing symbol.
    """
    indices = {symbol: i for i, symbol in enumerate(symbols)}
    mapped = torch.full((len(symbols),), UNKNOWN, dtype=torch.long)
    try:
        lines = open(path, encoding="utf-8-sig").read().splitlines()
    except OSError as error:
        raise ValueError(f"--index-map {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--index-map {path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        symbol, _, index = line.rstrip().rpartition(" ") if "\t" not in line else line.rstrip().rpartition("\t")
        if not symbol or not index.isdecimal():
            raise ValueError(f"{path}:{number}: expected 'symbol index', found {line!r}")
        if symbol not in indices:
            continue  # a map may serve several vocabularies
        if not 0 <= int(index) < num_matrices:
            raise ValueError(f"{path}:{number}: index {index} is not between 0 and K-1 = {num_matrices - 1}")
        if mapped[indices[symbol]] != UNKNOWN:
            raise ValueError(f"{path}:{number}: symbol {symbol!r} has two lines")
        mapped[indices[symbol]] = int(index)
    for symbol, i in indices.items():
        if mapped[i] == UNKNOWN:
            if symbol in ("<s>", "<pad>") or symbol.startswith("madeupword"):
                mapped[i] = 0
            else:
                raise ValueError(f"{path}: no line for the symbol {symbol!r} of the vocabulary")
    return mapped


def build_map(kind: str, vocabulary: Vocabulary, num_matrices: int) -> Tensor:
    """The map as a tensor ``[V]`` of indices from 0 to K-1.

    Args:
        kind: ``rank``, ``mod``, or the path of a map file (see :func:`read_map`).
        vocabulary: with counts for ``rank`` and ``mod`` (all :data:`UNKNOWN` without, until a checkpoint is loaded),
            with symbols for a file.
        num_matrices: K.

    Raises:
        ValueError: K outside 1..V, or a bad map file.
    """
    if not 1 <= num_matrices <= vocabulary.size:
        raise ValueError(f"--num-matrices {num_matrices} must be between 1 and the vocabulary size {vocabulary.size}")
    if kind not in ("rank", "mod"):
        if vocabulary.symbols is None:
            raise ValueError(f"--index-map {kind}: the symbols of the vocabulary are not known here")
        if not os.path.exists(kind):
            raise ValueError(f"--index-map {kind}: neither 'rank' nor 'mod' nor a file")
        return read_map(kind, vocabulary.symbols, num_matrices)
    if vocabulary.counts is None:
        return torch.full((vocabulary.size,), UNKNOWN, dtype=torch.long)
    rank = ranks(vocabulary.counts)
    return rank_map(rank, num_matrices) if kind == "rank" else mod_map(rank, num_matrices)
