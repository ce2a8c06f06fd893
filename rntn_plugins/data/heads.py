"""Heads of words as labels: absolute positions (E18), relative offsets, relative parts of speech (Strzyz et al. 2019).

In each encoding a head of a word has exactly one label, so the score of a label is the score of an arc. Word 0 is the
root; its label is ``0`` in all of them.

========  ==========================================================================  =======================
encoding  the label of head h for word d                                              example
========  ==========================================================================  =======================
position  h                                                                           ``7``
offset    h - d, signed                                                               ``-2``, ``+1``
upos      the k-th word with h's UPOS, to the right (+) or to the left (-) of d       ``+1@NOUN``, ``-2@VERB``
========  ==========================================================================  =======================

(M. Strzyz, D. Vilares, C. Gómez-Rodríguez, *Viable Dependency Parsing as Sequence Labeling*, NAACL 2019.)
"""

from __future__ import annotations

from collections import Counter
from typing import List, Optional, Sequence

ENCODINGS = ("position", "offset", "upos")
ROOT = "0"


def labels_of_word(word: int, count: int, encoding: str, upos: Optional[Sequence[str]] = None) -> List[Optional[str]]:
    """The label of every head of one word.

    Args:
        word: d, from 1.
        count: n, the words of the sentence.
        encoding: one of ``ENCODINGS``.
        upos: the words' parts of speech (for ``upos`` only).
    Returns:
        ``n + 1`` labels, by head 0 to n; ``None`` for the word itself.
    """
    if encoding == "position":
        labels = [str(head) for head in range(count + 1)]
    elif encoding == "offset":
        labels = [ROOT, *(f"{head - word:+d}" for head in range(1, count + 1))]
    elif encoding == "upos":
        labels = [ROOT] + [None] * count
        for sign, heads in (("-", range(word - 1, 0, -1)), ("+", range(word + 1, count + 1))):
            seen: Counter = Counter()
            for head in heads:
                tag = upos[head - 1]
                seen[tag] += 1
                labels[head] = f"{sign}{seen[tag]}@{tag}"
    else:
        raise ValueError(f"head encoding {encoding!r} is not one of {', '.join(ENCODINGS)}")
    labels[word] = None
    return labels


def head_labels(heads: Sequence[int], encoding: str, upos: Optional[Sequence[str]] = None) -> List[str]:
    """The label of each word's head; *heads* are 0 to n, by word."""
    return [
        labels_of_word(word, len(heads), encoding, upos)[head] for word, head in enumerate(heads, 1)
    ]  # fmt: skip
