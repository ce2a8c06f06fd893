"""Evaluation measures as pure functions."""

from __future__ import annotations

import math


def perplexity(total_bits: float, num_tokens: int) -> float:
    """2 to the mean number of bits per token (T16 eq. 27, H16 eq. 4.2).

    Raises:
        ValueError: no token was evaluated (a mean of nothing is not perplexity 1).
    """
    if num_tokens < 1:
        raise ValueError("no token was evaluated")
    try:
        return 2.0 ** (total_bits / num_tokens)
    except OverflowError:
        return math.inf


def bits_per_character(bits_per_token: float) -> float:
    """T16 eq. 28: with one character a token, the mean number of bits itself (``</s>`` counts as a character)."""
    return round(bits_per_token, 4)


def same_relation(one: str, other: str) -> bool:
    """Whether two dependency relations are the same but for subtypes (``nmod:poss`` and ``nmod``), as LAS counts."""
    return one.split(":")[0] == other.split(":")[0]
