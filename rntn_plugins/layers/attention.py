"""Additive attention over a memory."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """The attention of Vinyals et al. 2015 (*Grammar as a Foreign Language*), after Bahdanau et al. 2015::

        u_j = v' tanh(W1 m_j + W2 d)      a = softmax(u)      d' = sum_j a_j m_j

    ======  ================  ======
    symbol  attribute         shape
    ======  ================  ======
    W1      memory_weight     [A, M]
    W2      query_weight      [A, Q]
    v       score_weight      [A]
    ======  ================  ======
    """

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__()
        self.memory_weight = nn.Parameter(torch.empty(attention_size, memory_size))
        self.query_weight = nn.Parameter(torch.empty(attention_size, query_size))
        self.score_weight = nn.Parameter(torch.empty(attention_size))

    def project(self, memory: Tensor) -> Tensor:
        """W1 m for all of the memory, once: ``[S, B, M] -> [S, B, A]``."""
        return memory @ self.memory_weight.t()

    def scores(self, query: Tensor, projected: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """u, -inf on the padding: ``[S, B]``.

        Args:
            query: d, ``[B, Q]``.
            projected: what :meth:`project` gave, ``[S, B, A]``.
            mask: true on padding, ``[S, B]``.
        """
        u = torch.tanh(projected + query @ self.query_weight.t()) @ self.score_weight
        return u if mask is None else u.masked_fill(mask, float("-inf"))

    def forward(
        self, query: Tensor, memory: Tensor, projected: Tensor, mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """
        Args:
            query, projected, mask: as for :meth:`scores`.
            memory: ``[S, B, M]``.
        Returns:
            the context d', ``[B, M]``, and the weights a, ``[S, B]``.
        """
        weights = torch.softmax(self.scores(query, projected, mask), dim=0)
        return torch.einsum("sb,sbm->bm", weights, memory), weights
