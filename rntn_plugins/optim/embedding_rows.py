"""Gradients of embeddings as the rows that occurred, in trainings on a CPU where that changes nothing but the time.

A batch has some hundred symbols of the ten thousand and more of a vocabulary. The dense gradient of their embedding is
nonetheless written, scaled, added up for the norm, and stepped through as a whole. With SGD without momentum and
AdaGrad, both without weight decay, rows whose gradient is zero stay as they are, so torch's sparse gradients
(``nn.Embedding.sparse``) give the same step. :mod:`~rntn_plugins.optim.row_sparse` decides where that is so, and has
fairseq's trainer know them. Nothing of it is in a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from typing import List

from torch import nn

LEAST = 2**18  # numbers in an embedding that gain; what is smaller stays in the processor's cache


def large_embeddings(model: nn.Module) -> List[nn.Embedding]:
    """Trained embeddings whose weight is nobody else's, such as a tied output layer's."""
    holders = Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
    return [
        module
        for module in model.modules()
        if type(module) is nn.Embedding
        and module.weight.requires_grad
        and module.weight.numel() >= LEAST
        and holders[id(module.weight)] == 1
        and not module.scale_grad_by_freq
    ]


def take_rows(model: nn.Module) -> None:
    """Have sparse gradients in the large embeddings of a model."""
    for module in large_embeddings(model):
        module.sparse = True
