"""fairseq's adaptive soft-max, giving no probability to symbols that never occur."""

from __future__ import annotations

import logging
import math
from typing import List

import torch
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class MaskColumns(nn.Module):
    """Adds -inf to the scores of some columns."""

    def __init__(self, never: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(len(never)).masked_fill(never, float("-inf")), persistent=False)

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.mask


class MaskedAdaptiveSoftmax(AdaptiveSoftmax):
    """
    Args:
        vocab_size, input_dim, cutoff, dropout, factor: as fairseq's ``AdaptiveSoftmax`` (Grave et al. 2017).
        never: which symbols get no probability, ``[V]`` (bool).
    """

    def __init__(
        self, vocab_size: int, input_dim: int, cutoff: List[int], never: Tensor, dropout: float, factor: float
    ):
        super().__init__(vocab_size, input_dim, list(cutoff), dropout, factor=factor)
        tails = [never[start:end] for start, end in zip(self.cutoff, self.cutoff[1:])]
        # a tail of nothing but such symbols is ruled out as a whole, by its entry in the head
        empty = torch.tensor([bool(tail.all()) for tail in tails])
        self.head = nn.Sequential(self.head, MaskColumns(torch.cat([never[: self.cutoff[0]], empty])))
        for layers, tail, nothing in zip(self.tail, tails, empty):
            if not nothing:
                layers.append(MaskColumns(tail))

    def get_log_prob(self, input: Tensor, target=None) -> Tensor:
        """Log-probabilities of all symbols, for evaluation; ``ValueError`` in training, where they have no gradient."""
        if self.training and torch.is_grad_enabled():
            raise ValueError("a model with --adaptive-softmax-cutoff is trained with --criterion rntn_adaptive_loss")
        return super().get_log_prob(input, target)


def check_factor(factor: float, tails: int, size: int) -> None:
    """Check ``--adaptive-softmax-factor``: the k-th tail of the adaptive soft-max has ``int(H / factor ** k)`` units.

    Raises:
        ValueError: a factor that is not above 0. A tail without units, whose symbols are equally probable for ever, is
            only warned of: models that have one work otherwise.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"--adaptive-softmax-factor {factor} must be above 0")
    units = float(size)
    for number in range(1, tails + 1):
        units /= factor
        if units < 1:
            logger.warning(
                f"--adaptive-softmax-factor {factor}: tail {number} of {tails} has no units (H / factor^{number}, H = "
                f"{size}), so that its symbols are all equally probable; take a smaller factor or fewer cutoffs"
            )
            return
