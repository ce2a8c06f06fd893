"""Fused extended LSTM."""

from __future__ import annotations

import torch

from rntn_plugins.ops.products import product
from rntn_plugins.ops.recurrence import Kernel, every_state, every_step, flat, output_state, steps_of, turns


class ELSTM(Kernel):
    """The LSTM with its input scaled position by position: E18 (20)-(23).

    Args:
        forget_gate: ELSTM-I has one, ELSTM-II has not.

    Inputs: x ``[T, B, 4H]`` (input, cell, output, forget) or ``[T, B, 3H]`` without the last, s ``[T, B, H]`` or
    ``[T, 1, H]``, b ``[H]``, and W ``[4H, H]`` or ``[3H, H]``, left out where the gates do not see h. Carry: h, c.
    """

    saved = ("hs", "cs", "gates", "squashed")

    def __init__(self, forget_gate: bool) -> None:
        self.forget_gate = forget_gate

    def split(self, gates):
        """The blocks of ``[..., G·H]``: input, cell, output, and the forget gate's, or ``None``."""
        blocks = gates.split(self.inputs[2].size(0), dim=-1)
        return blocks if self.forget_gate else (*blocks, None)

    def start(self, carry, keep):
        x, s, self.bias = self.inputs[:3]
        batch, size = carry[0].shape
        self.hs = output_state(self, carry[0])
        self.cs = every_state(self, carry[1], keep)
        self.states = (steps_of(self.hs), turns(self.cs, self.steps))
        self.gates = every_step(self, keep, batch, x.size(-1))
        self.squashed = every_step(self, keep, batch, size)  # tanh(c_t + b)
        i, candidate, o, f = self.split(self.gates)
        parts = (x, s, self.gates, self.gates[..., 2 * size :], i, candidate, o, o if f is None else f, self.squashed)
        self.each = list(zip(*(part.unbind(0) for part in parts)))
        self.news = torch.empty_like(carry[1])
        self.recur = self.factor_class(self.inputs[3].t(), batch) if len(self.inputs) > 3 else None

    def step(self, t):
        (h, c), (h_after, c_after) = ((state[t] for state in self.states), (state[t + 1] for state in self.states))
        x, s, gates, o_f, i, candidate, o, f, squashed = self.each[t]
        if self.recur is None:
            gates.copy_(x)
        else:
            self.recur.times_plus(h, x, out=gates)
        i.sigmoid_()
        candidate.tanh_()
        o_f.sigmoid_()
        torch.mul(i, candidate, out=self.news)
        if self.forget_gate:
            torch.mul(f, c, out=c_after).addcmul_(s, self.news)
        else:
            torch.addcmul(c, s, self.news, out=c_after)
        torch.add(c_after, self.bias, out=squashed).tanh_()
        torch.mul(o, squashed, out=h_after)

    def start_back(self):
        s = self.inputs[1]
        i, candidate, o, f = self.split(self.gates)
        # until the loop comes by: slopes of each gate's pre-activation, as factors of d_c (of d_h for o)
        self.d_x = torch.empty_like(self.gates)
        to_i, to_c, to_o, to_f = self.split(self.d_x)
        torch.mul(i, candidate, out=to_i).mul_(s).addcmul_(to_i, i, value=-1)
        torch.mul(candidate, candidate, out=to_c).neg_().add_(1).mul_(i).mul_(s)
        torch.mul(self.squashed, o, out=to_o).addcmul_(to_o, o, value=-1)
        if self.forget_gate:
            torch.mul(self.cs[:-1], f, out=to_f).addcmul_(to_f, f, value=-1)
        self.d_squashed = (self.squashed * self.squashed).neg_().add_(1).mul_(o)  # likewise
        self.d_cs = torch.empty_like(self.squashed)
        self.recur = self.factor_class(self.inputs[3], self.d_x.size(1)) if len(self.inputs) > 3 else None
        d_of_c = self.d_x[..., : 2 * s.size(-1)].unflatten(-1, (2, s.size(-1)))
        forget = (to_o, o) if f is None else (to_f, f)  # what stands for them is not read
        parts = (self.d_x, d_of_c, to_o, self.d_squashed, self.d_cs, *forget)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def back(self, t, d_states, d_output):
        d_h, d_after = d_states
        d_x, d_of_c, d_o, d_squashed, d_c, d_f, f = self.each[t]
        d_squashed.mul_(d_h)
        torch.add(d_after, d_squashed, out=d_c)
        d_of_c.mul_(d_c.unsqueeze(1))
        d_o.mul_(d_h)
        if self.forget_gate:
            d_f.mul_(d_c)
            torch.mul(d_c, f, out=d_after)
        else:
            d_states[1] = d_c
        if self.recur is not None:
            self.recur.times(d_x, out=d_h)
        else:
            d_h.zero_()

    def finish(self):
        d_bias = self.d_squashed.sum(dim=(0, 1))
        i, candidate, _, _ = self.split(self.gates)
        d_s = torch.mul(self.d_cs, i, out=self.d_squashed).mul_(candidate)  # d_cs may have become the carry's gradient
        if self.inputs[1].size(1) == 1:
            d_s = d_s.sum(dim=1, keepdim=True)
        gradients = (self.d_x, d_s, d_bias)
        if len(self.inputs) == 3:
            return gradients
        return (*gradients, product(flat(self.d_x).t(), flat(self.hs[:-1])))
