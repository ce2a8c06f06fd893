"""Fused GRURNTN."""

from __future__ import annotations

import torch

from rntn_plugins.ops.bilinear import ByState, saved_by_product, tensor_product
from rntn_plugins.ops.gru import GRU


class GRURNTN(GRU):
    """GRU whose candidate adds x_t W_tsr (r_t ⊙ h_{t-1}): T16 (18).

    Args:
        activation, update_gate: as for :class:`~rntn_plugins.ops.gru.GRU`.
        full: [x_t; r_t ⊙ h_{t-1}] on both sides of the tensor, T16 (17).

    Inputs: those of the GRU, then what :func:`~rntn_plugins.ops.bilinear.tensor_product` takes: x itself ``[T, B, I]``
    and W_tsr ``[I, H, H]``, or ``[I+H, I+H, H]``; or distinct inputs, W_tsr and their index. Carry: h.
    """

    def __init__(self, activation: str, update_gate: str, full: bool) -> None:
        super().__init__(activation, update_gate)
        self.full = full

    @property
    def saved(self):
        return (*GRU.saved, *(["both"] if self.full else saved_by_product(self.inputs[3:])))

    def sides(self, keep: bool) -> None:
        """The product and the right sides of its steps."""
        self.rights = self.both if self.full else self.gated
        self.right = self.rights.unbind(0)
        factors = self.inputs[3:]
        self.product = ByState(self.both, factors[1]) if self.full else tensor_product(*factors, keep=keep)

    def start(self, carry, keep):
        super().start(carry, keep)
        if self.full:
            x = self.inputs[3]
            self.both = torch.cat([x, x.new_empty(*x.shape[:2], carry[0].size(1))], dim=-1)
        self.sides(keep)
        self.product.start(self, keep)

    def candidate_part(self, t, x, gated, out):
        super().candidate_part(t, x, gated, out)
        if self.full:
            self.right[t][:, -gated.size(1) :] = gated
        self.product.add(t, self.right[t], out)
        return out

    def start_back(self):
        super().start_back()
        self.sides(True)
        self.product.start_back(self)
        self.d_right = torch.empty_like(self.right[0])

    def candidate_back(self, t, d_candidate):
        d_gated = super().candidate_back(t, d_candidate)
        if not self.full:
            self.product.back(t, self.right[t], d_candidate, d_gated)
            return d_gated
        self.product.back(t, self.right[t], d_candidate, self.d_right.zero_())
        d_left = self.product.d_x[t].add_(self.d_right)
        return d_gated.add_(d_left[:, -d_gated.size(1) :])

    def finish(self):
        d_x, d_tensor = self.product.finish(self.rights, self.d_x.chunk(3, dim=-1)[2])
        d_x = d_x[..., : self.inputs[3].size(-1)]
        return (*super().finish(), d_x, d_tensor, *[None] * (len(self.inputs) - 5))
