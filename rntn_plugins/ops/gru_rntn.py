"""Fused GRURNTN."""

from __future__ import annotations

import torch

from rntn_plugins.ops.bilinear import Bilinear
from rntn_plugins.ops.gru import GRU


class GRURNTN(GRU):
    """GRU whose candidate adds x_t W_tsr (r_t ⊙ h_{t-1}): T16 (18).

    Args:
        activation, update_gate: as for :class:`~rntn_plugins.ops.gru.GRU`.
        full: [x_t; r_t ⊙ h_{t-1}] on both sides of the tensor, T16 (17).

    Inputs: those of the GRU, then x itself ``[T, B, I]`` and W_tsr ``[I, H, H]``, or ``[I+H, I+H, H]``. Carry: h.
    """

    def __init__(self, activation: str, update_gate: str, full: bool) -> None:
        super().__init__(activation, update_gate)
        self.full = full
        self.saved = (*GRU.saved, "slices", *(["both"] if full else []))

    def start(self, carry, keep):
        super().start(carry, keep)
        _, _, _, x, tensor = self.inputs
        self.bilinear = Bilinear(tensor)
        self.slices = self.bilinear.start(self, x.size(1), keep)
        if self.full:
            self.both = torch.cat([x, x.new_empty(*x.shape[:2], carry[0].size(1))], dim=-1)
        self.sides()

    def sides(self):
        """The left and right sides of the tensor, and where x and the gated state lie in them."""
        x = self.inputs[3]
        self.left = (self.both if self.full else x).unbind(0)
        self.rights = self.both if self.full else self.gated
        self.right = self.rights.unbind(0)

    def candidate_part(self, t, x, gated, out):
        super().candidate_part(t, x, gated, out)
        if self.full:
            self.left[t][:, -gated.size(1) :] = gated
        self.bilinear.add(t, self.left[t], self.right[t], out)
        return out

    def start_back(self, needs):
        super().start_back(needs)
        x, tensor = self.inputs[3:]
        self.bilinear = Bilinear(tensor)
        self.bilinear.start_back(self.slices)
        self.sides()
        self.d_left = torch.empty_like(self.both if self.full else x)
        self.d_lefts = self.d_left.unbind(0)
        self.d_right = torch.empty_like(self.right[0])

    def candidate_back(self, t, d_candidate):
        d_gated = super().candidate_back(t, d_candidate)
        if not self.full:
            self.bilinear.back(t, self.left[t], self.rights, d_candidate, self.d_lefts[t], d_gated)
            return d_gated
        self.d_right.zero_()
        self.bilinear.back(t, self.left[t], self.rights, d_candidate, self.d_lefts[t], self.d_right)
        self.d_lefts[t].add_(self.d_right)
        return d_gated.add_(self.d_lefts[t][:, -d_gated.size(1) :])

    def finish(self):
        return (*super().finish(), self.d_left[..., : self.inputs[3].size(-1)], self.bilinear.finish())
