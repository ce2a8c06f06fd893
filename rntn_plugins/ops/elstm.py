"""Fused extended LSTM."""

from __future__ import annotations

import torch

from rntn_plugins.ops.products import Factor, product
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
        self.recur = Factor(self.inputs[3].t(), batch) if len(self.inputs) > 3 else None

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

    def start_back(self, needs):
        s = self.inputs[1]
        i, candidate, o, f = self.split(self.gates)
        self.slopes = torch.empty_like(self.gates)  # of each gate's pre-activation, as a factor of d_c (of d_h for o)
        to_i, to_c, to_o, to_f = self.split(self.slopes)
        self.news = i * candidate
        torch.mul(s, self.news, out=to_i).addcmul_(to_i, i, value=-1)
        torch.addcmul(i, self.news, candidate, value=-1, out=to_c).mul_(s)
        torch.mul(self.squashed, o, out=to_o).addcmul_(to_o, o, value=-1)
        if self.forget_gate:
            torch.mul(self.cs[:-1], f, out=to_f).addcmul_(to_f, f, value=-1)
        self.d_squashed = torch.addcmul(
            o, o, self.squashed * self.squashed, value=-1
        )  # slopes, until the loop comes by
        self.d_cs = torch.empty_like(self.news)
        self.d_x = torch.empty_like(self.gates)
        self.recur = Factor(self.inputs[3], self.d_x.size(1)) if len(self.inputs) > 3 else None
        # the blocks that c feeds are computed in one go; with a forget gate the output gate's lies between and is
        # overwritten
        blocks = (4 if self.forget_gate else 2, s.size(-1))
        of_c = (gates[..., : blocks[0] * blocks[1]].unflatten(-1, blocks) for gates in (self.d_x, self.slopes))
        parts = (self.d_x, *of_c, self.split(self.d_x)[2], to_o, self.d_squashed, self.d_cs, o if f is None else f)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def back(self, t, d_states, d_output):
        d_h, d_after = d_states
        d_x, d_of_c, slopes, d_o, to_o, d_squashed, d_c, f = self.each[t]
        d_squashed.mul_(d_h)
        torch.add(d_after, d_squashed, out=d_c)
        torch.mul(slopes, d_c.unsqueeze(1), out=d_of_c)
        torch.mul(d_h, to_o, out=d_o)
        if self.forget_gate:
            torch.mul(d_c, f, out=d_after)
        else:
            d_states[1] = d_c
        if self.recur is not None:
            self.recur.times(d_x, out=d_h)
        else:
            d_h.zero_()

    def finish(self):
        d_s = self.news.mul_(self.d_cs)
        if self.inputs[1].size(1) == 1:
            d_s = d_s.sum(dim=1, keepdim=True)
        gradients = (self.d_x, d_s, self.d_squashed.sum(dim=(0, 1)))
        if len(self.inputs) == 3:
            return gradients
        return (*gradients, product(flat(self.d_x).t(), flat(self.hs[:-1])))
