"""Gradients as the rows that occurred, in updates on a CPU where that changes nothing but the time.

A batch has some hundred symbols of the ten thousand and more of a vocabulary, a sentence twenty. The dense gradient of
their embedding, or of the matrices that a cell has for every symbol, is nonetheless written, scaled, added up for the
norm, and stepped through as a whole. With SGD without momentum and AdaGrad, both without weight decay, rows whose
gradient is zero stay as they are, so sparse gradients (torch's of ``nn.Embedding.sparse``, a cell's own) give the same
step. :mod:`~rntn_plugins.optim.row_sparse` decides where that is so, and has fairseq's trainer know them. Gradients are
sparse during such an update only, and a checkpoint has nothing of it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, List, Sequence

from torch import nn

LEAST = 2**18  # numbers in a parameter that gains; what is smaller stays in the processor's cache
LEAST_ROWS = 2**12  # of an embedding: with fewer, most rows occur
MOST_SYMBOLS = 2  # in a batch, for each matrix of a stack: with more, most matrices occur, and there is nothing to gain


@dataclass
class Switched:
    """A module whose gradients can be sparse.

    Attributes:
        module: the module.
        switch: its attribute that makes them so.
        weights: the parameters that have them then, rows first.
        most: the largest number of symbols in a batch with which it gains.
    """

    module: nn.Module
    switch: str
    weights: Sequence[nn.Parameter]
    most: float = float("inf")


def large_embeddings(model: nn.Module) -> List[Switched]:
    """Those whose weight is a parameter and nobody else's, such as a tied output layer's."""
    return [
        Switched(module, "sparse", [module.weight])
        for module in model.modules()
        if type(module) is nn.Embedding
        and not module.sparse
        and not module.scale_grad_by_freq
        and module.num_embeddings >= LEAST_ROWS
        and module.weight.numel() >= LEAST
        and held_once(model, [module.weight])
    ]


def large_stacks(model: nn.Module) -> List[Switched]:
    """Cells with matrices by symbol that are large together."""
    found = []
    for module in model.modules():
        weights = module.per_index() if getattr(module, "adapts_gradients", False) else []
        if weights and max(weight.numel() for weight in weights) >= LEAST and held_once(model, weights):
            found.append(Switched(module, "by_rows", weights, most=MOST_SYMBOLS * weights[0].size(0)))
    return found


def held_once(model: nn.Module, weights: Sequence[nn.Parameter]) -> bool:
    """Whether each is a parameter of one module: not of two, nor computed from others (weight normalisation)."""
    holders = Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
    return all(holders[id(weight)] == 1 for weight in weights)


@contextmanager
def by_rows(found: Sequence[Switched], symbols: int) -> Iterator[None]:
    """In here the modules have sparse gradients that gain by them in a batch of so many symbols.

    Those do not whose weights somebody hooked, who expects dense ones.
    """
    chosen = [one for one in found if symbols <= one.most and not any(map(hooked, one.weights))]
    for one in chosen:
        setattr(one.module, one.switch, True)
    try:
        yield
    finally:
        for one in chosen:
            setattr(one.module, one.switch, False)


def hooked(weight: nn.Parameter) -> bool:
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)
