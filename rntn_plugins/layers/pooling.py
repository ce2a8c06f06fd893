"""Two predictions of the same labels made one (E18 eq. (26))."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PooledScores(nn.Module):
    """s = W^f s^f + W^b s^b on unnormalised scores, soft-max afterwards.

    E18 writes eq. (26) on probabilities; as they are not normalised there, the loss -log p has no lower bound (scaling
    W up lowers it for ever). The authors' code pools scores, with matrices [K, K] as here; theirs start at random and
    have a bias, here the branches' own biases do as much. Both start as 1/2 I.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.forward_weight = nn.Parameter(torch.eye(labels) / 2)
        self.backward_weight = nn.Parameter(torch.eye(labels) / 2)

    def forward(self, forward_scores: Tensor, backward_scores: Tensor) -> Tensor:
        """Scores ``[..., K]`` of the two branches to scores ``[..., K]``."""
        return forward_scores @ self.forward_weight.t() + backward_scores @ self.backward_weight.t()


class WeightedScores(nn.Module):
    """s_k = w^f_k s^f_k + w^b_k s^b_k on unnormalised scores, soft-max afterwards.

    E18's (33) and (34) read the weights of (26) so, one a class; on scores for the reason that `PooledScores` gives.
    Both start as 1/2.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.forward_weight = nn.Parameter(torch.full((labels,), 0.5))
        self.backward_weight = nn.Parameter(torch.full((labels,), 0.5))

    def forward(self, forward_scores: Tensor, backward_scores: Tensor) -> Tensor:
        """Scores ``[..., K]`` of the two branches to scores ``[..., K]``."""
        return forward_scores * self.forward_weight + backward_scores * self.backward_weight


class PooledProbabilities(nn.Module):
    """p_k = a_k p^f_k + (1 - a_k) p^b_k, a_k = σ(weight_k), normalised: eq. (26), one weight a class."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(labels))

    def forward(self, forward_scores: Tensor, backward_scores: Tensor) -> Tensor:
        """Scores ``[..., K]`` of the two branches to logarithms of probabilities ``[..., K]``."""
        ahead = torch.log_softmax(forward_scores, -1) + nn.functional.logsigmoid(self.weight)
        back = torch.log_softmax(backward_scores, -1) + nn.functional.logsigmoid(-self.weight)
        return torch.log_softmax(torch.logaddexp(ahead, back), -1)


POOLINGS = {"weighted-scores": WeightedScores, "scores": PooledScores, "probabilities": PooledProbabilities}
