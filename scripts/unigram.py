"""Perplexity of a unigram model: what a language model has to beat before context helps at all.

    python scripts/unigram.py data-bin/ptb                     # prints: unigram model on test: 82,430 tokens, ...
    python scripts/unigram.py data-bin/ptb --subset valid

The probabilities are the symbols' shares of the training split with one added to every count (add-one smoothing), so
that no symbol is impossible. ``<s>``, ``<pad>`` and fairseq's fillers, which no text holds, have none.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import List, Optional, Tuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, installed or not


def load_counts(folder: str, split: str, dictionary, combine: bool = False) -> np.ndarray:
    """How often each symbol occurs in a split, ``[V]``.

    Args:
        combine: read ``train1``, ``train2``, ... as well, as training does.

    Raises:
        ValueError: no such split, an empty one, or one that was binarised with another dictionary.
    """
    from rntn_plugins.data.binarised import load_binarised
    from rntn_plugins.data.lm_dataset import Corpus

    path = os.path.join(folder, split)
    sentences = load_binarised(path, dictionary, combine=combine)
    if sentences is None:
        raise ValueError(f"{folder}: no split {split!r} here ({split}.bin and {split}.idx)")
    return np.bincount(Corpus(sentences, path, dictionary).tokens, minlength=len(dictionary))


def unigram_bits(train: np.ndarray, test: np.ndarray, possible: np.ndarray) -> Tuple[float, int]:
    """The bits of all of *test* under the smoothed shares of *train*, and the number of its tokens.

    Args:
        train, test: counts ``[V]``.
        possible: which symbols a text can hold ``[V]``; *test* must hold no other.
    """
    smoothed = np.where(possible, train + 1.0, 0.0)
    seen = test > 0
    bits = -np.log2(smoothed[seen] / smoothed.sum())
    return float(bits @ test[seen]), int(test.sum())


def evaluate(folder: str, subset: str) -> str:
    """The line to print."""
    from rntn_plugins import is_filler
    from rntn_plugins.data.binarised import load_dictionary
    from rntn_plugins.metrics import perplexity

    dictionary = load_dictionary(folder, "fairseq-preprocess --only-source")
    possible = np.array([not is_filler(dictionary, index) for index in range(len(dictionary))])
    train = load_counts(folder, "train", dictionary, combine=True)
    bits, tokens = unigram_bits(train, load_counts(folder, subset, dictionary), possible)
    return (
        f"unigram model on {subset}: {tokens:,} tokens, {bits / tokens:.2f} bits, "
        f"perplexity {perplexity(bits, tokens):.2f}"
    )


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, or 2 after one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="unigram", description="Perplexity of an add-one smoothed unigram model.")
    parser.add_argument("data", metavar="DATA_BIN", help="folder that fairseq-preprocess --only-source wrote")
    parser.add_argument("--subset", default="test", help="split to evaluate (default: test)")
    args = parser.parse_args(arguments)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        print(evaluate(args.data, args.subset))
    except ValueError as error:
        print(f"unigram: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
