"""Gradients of embeddings as the rows that occurred, in updates on a CPU where that changes nothing but the time.

A batch has some hundred symbols of the ten thousand and more of a vocabulary. The dense gradient of their embedding is
nonetheless written, scaled, added up for the norm, and stepped through as a whole. With SGD without momentum and
AdaGrad, both without weight decay, rows whose gradient is zero stay as they are, so torch's sparse gradients
(``nn.Embedding.sparse``) give the same step. :mod:`~rntn_plugins.optim.row_sparse` decides where that is so, and has
fairseq's trainer know them. An embedding is sparse during such an update only, and a checkpoint has nothing of it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Iterator, List

from torch import nn

LEAST = 2**18  # numbers in an embedding that gains; what is smaller stays in the processor's cache
LEAST_ROWS = 2**12  # with fewer, most rows occur


def large_embeddings(model: nn.Module) -> List[nn.Embedding]:
    """Those whose weight is nobody else's, such as a tied output layer's."""
    holders = Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
    return [
        module
        for module in model.modules()
        if type(module) is nn.Embedding
        and not module.sparse
        and not module.scale_grad_by_freq
        and module.num_embeddings >= LEAST_ROWS
        and module.weight.numel() >= LEAST
        and holders[id(module.weight)] == 1
    ]


@contextmanager
def by_rows(embeddings: List[nn.Embedding]) -> Iterator[None]:
    """In here the embeddings have sparse gradients, but for those that somebody hooked, who expects dense ones."""
    chosen = [module for module in embeddings if not hooked(module.weight)]
    for module in chosen:
        module.sparse = True
    try:
        yield
    finally:
        for module in chosen:
            module.sparse = False


def hooked(weight: nn.Parameter) -> bool:
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)
