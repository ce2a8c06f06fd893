"""Fused gated recurrent unit."""

from __future__ import annotations

import torch
from torch import Tensor

from rntn_plugins.ops.activations import ACTIVATE, slope
from rntn_plugins.ops.products import product
from rntn_plugins.ops.recurrence import Kernel, every_step, flat, output_state, steps_of


def blend(h: Tensor, candidate: Tensor, z: Tensor, update_gate: str, out: Tensor) -> None:
    """h_t: ``candidate``, (1-z) h + z h~, or ``previous``, z h + (1-z) h~."""
    if update_gate == "candidate":
        torch.lerp(h, candidate, z, out=out)
    else:
        torch.lerp(candidate, h, z, out=out)


def factors(before: Tensor, rz: Tensor, candidates: Tensor, activation: str, update_gate: str, out: Tensor) -> Tensor:
    """For all steps at once, how the gradients of a step depend on each other.

    Args:
        out: ``[T, B, 3H]``, where gradients of pre-activations will be; receives by which factor that of r ⊙ h_{t-1}
            reaches the reset gate's, and that of h_t the update gate's and the candidate's.
    Returns:
        by which factor the gradient of h_t reaches h_{t-1} itself, ``[T, B, H]``.
    """
    r, z = rz.chunk(2, dim=-1)
    to_reset, to_update, to_candidate = out.chunk(3, dim=-1)
    share, rest = (z, 1 - z) if update_gate == "candidate" else (1 - z, z)  # of the candidate
    torch.mul(slope("sigmoid", r), before, out=to_reset)
    torch.sub(candidates, before, out=to_update).mul_(share).mul_(rest)
    if update_gate != "candidate":
        to_update.neg_()
    torch.mul(slope(activation, candidates), share, out=to_candidate)
    return rest


class GRU(Kernel):
    """The GRU with the reset gate before the matrix: T16 (8)-(11).

    Args:
        activation: name of f.
        update_gate: ``candidate``, h_t = (1-z) h_{t-1} + z h~, or ``previous``, the other way round.

    Inputs: x ``[T, B, 3H]`` (reset, update, candidate), W of the gates ``[2H, H]``, W of the candidate ``[H, H]``.
    Carry: h.
    """

    saved = ("hs", "rz", "gated", "candidates")

    def __init__(self, activation: str, update_gate: str) -> None:
        self.activation, self.update_gate = activation, update_gate

    def start(self, carry, keep):
        x, gates, candidate = self.inputs[:3]
        batch, size = carry[0].shape
        self.hs = output_state(self, carry[0])
        self.states = (steps_of(self.hs),)
        self.rz = every_step(self, keep, batch, 2 * size)
        self.gated = every_step(self, keep, batch, size)
        self.candidates = every_step(self, keep, batch, size)
        parts = (*x.split([2 * size, size], dim=-1), self.rz, *self.rz.chunk(2, dim=-1), self.gated, self.candidates)
        self.each = list(zip(*(part.unbind(0) for part in parts)))
        self.to_gates, self.to_candidate = self.factor_class(gates.t(), batch), self.factor_class(candidate.t(), batch)
        self.activate = ACTIVATE[self.activation]

    def step(self, t):
        h, after = self.states[0][t], self.states[0][t + 1]
        x_rz, x_h, rz, r, z, gated, candidate = self.each[t]
        self.to_gates.times_plus(h, x_rz, out=rz).sigmoid_()
        torch.mul(r, h, out=gated)
        self.activate(self.candidate_part(t, x_h, gated, candidate))
        blend(h, candidate, z, self.update_gate, after)

    def candidate_part(self, t, x, gated, out):
        """The candidate's pre-activation, into *out*."""
        return self.to_candidate.times_plus(gated, x, out=out)

    def start_back(self):
        before = self.hs[:-1]
        size = before.size(-1)
        self.d_x = before.new_empty(*before.shape[:-1], 3 * size)  # factors, until the loop comes by
        to_before = factors(before, self.rz, self.candidates, self.activation, self.update_gate, out=self.d_x)
        parts = (*self.d_x.chunk(3, dim=-1), self.d_x[..., : 2 * size], self.rz[..., :size], to_before)
        self.each = list(zip(*(part.unbind(0) for part in parts)))
        self.d_gated = before.new_empty(before.shape[1:])
        self.of_gates, self.of_candidate = (self.factor_class(weight, before.size(1)) for weight in self.inputs[1:3])

    def back(self, t, d_states, d_output):
        d_h = d_states[0]
        d_r, d_z, d_c, d_rz, r, to_before = self.each[t]
        d_c.mul_(d_h)
        d_z.mul_(d_h)
        d_gated = self.candidate_back(t, d_c)
        d_r.mul_(d_gated)
        self.of_gates.times_plus(d_rz, d_h.mul_(to_before).addcmul_(d_gated, r), out=d_h)

    def candidate_back(self, t, d_candidate):
        """The gradient of r ⊙ h from that of the candidate's pre-activation."""
        return self.of_candidate.times(d_candidate, out=self.d_gated)

    def finish(self):
        size = self.gated.size(-1)
        d_flat = flat(self.d_x)
        return (
            self.d_x,
            product(d_flat[:, : 2 * size].t(), flat(self.hs[:-1])),
            product(d_flat[:, 2 * size :].t(), flat(self.gated)),
        )
