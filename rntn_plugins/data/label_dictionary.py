"""Dictionaries of labels."""

from __future__ import annotations

from typing import List

import torch
from fairseq.data import Dictionary
from torch import Tensor


class LabelDictionary(Dictionary):
    """A dictionary of labels; what is generated with it is scored by its *scorer*, not by BLEU (see ``compat``)."""

    scorer = None


def join_dictionaries(first: Dictionary, second: Dictionary, into: Dictionary) -> List[Tensor]:
    """Put the symbols of two dictionaries into an empty one, with their counts; ``old index -> new index`` of each.

    Raises:
        ValueError: a symbol is in both (relations and heads share one soft-max).
    """
    maps = []
    for dictionary in (first, second):
        moved = torch.arange(len(dictionary))
        for index in range(dictionary.nspecial, len(dictionary)):
            name = dictionary[index]
            if name in into.indices:
                raise ValueError(f"{name!r} is a relation and the label of a head; rename the relation")
            moved[index] = into.add_symbol(name, n=dictionary.count[index])
        maps.append(moved)
    return maps


def become(dictionary: Dictionary, other: Dictionary) -> None:
    """Give a dictionary that others hold already another one's symbols."""
    scorer = getattr(dictionary, "scorer", None)
    dictionary.__dict__.update(other.__dict__)
    if scorer is not None:
        dictionary.scorer = scorer
