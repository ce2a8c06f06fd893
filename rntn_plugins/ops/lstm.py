"""Fused long short-term memory."""

from __future__ import annotations

from typing import List, Tuple

import torch
from torch import Tensor

from rntn_plugins.ops.products import by_onednn, product, rounds
from rntn_plugins.ops.recurrence import (
    Kernel,
    every_state,
    every_step,
    flat,
    others_are_taken,
    output_state,
    steps_of,
    turns,
)


class LSTM(Kernel):
    """The LSTM without peepholes: S18 (10)-(15), E18 (6)-(7).

    Inputs: x ``[T, B, 4H]`` (input, forget, cell, output), W ``[4H, H]``, or x alone where the gates do not see h.
    Carry: h, c.
    """

    saved = ("hs", "cs", "gates", "squashed")

    def start(self, carry, keep):
        x = self.inputs[0]
        batch, size = carry[0].shape
        self.hs = output_state(self, carry[0])
        self.cs = every_state(self, carry[1], keep)
        self.states = (steps_of(self.hs), turns(self.cs, self.steps))
        self.gates = every_step(self, keep, batch, 4 * size)
        self.squashed = every_step(self, keep, batch, size)  # tanh(c_t)
        i, f, candidate, o = self.gates.chunk(4, dim=-1)
        parts = (x, self.gates, self.gates[..., : 2 * size], i, f, candidate, o, self.squashed)
        self.each = list(zip(*(part.unbind(0) for part in parts)))
        self.recur = self.factor_class(self.inputs[1].t(), batch) if len(self.inputs) > 1 else None

    def step(self, t):
        (h, c), (h_after, c_after) = ((state[t] for state in self.states), (state[t + 1] for state in self.states))
        x, gates, i_f, i, f, candidate, o, squashed = self.each[t]
        if self.recur is None:
            gates.copy_(x)
        else:
            self.recur.times_plus(h, x, out=gates)
        i_f.sigmoid_()
        candidate.tanh_()
        o.sigmoid_()
        torch.mul(f, c, out=c_after).addcmul_(i, candidate)
        torch.tanh(c_after, out=squashed)
        torch.mul(o, squashed, out=h_after)

    def start_back(self):
        i, f, candidate, o = self.gates.chunk(4, dim=-1)
        # until the loop comes by: slopes of each gate's pre-activation, as factors of d_c (of d_h for o)
        self.d_x = torch.empty_like(self.gates)
        to_i, to_f, to_c, to_o = self.d_x.chunk(4, dim=-1)
        torch.mul(candidate, i, out=to_i).addcmul_(to_i, i, value=-1)
        torch.mul(self.cs[:-1], f, out=to_f).addcmul_(to_f, f, value=-1)
        torch.addcmul(i, i, candidate * candidate, value=-1, out=to_c)
        torch.mul(self.squashed, o, out=to_o).addcmul_(to_o, o, value=-1)
        self.to_cell = torch.addcmul(o, o, self.squashed * self.squashed, value=-1)
        self.recur = self.factor_class(self.inputs[1], self.d_x.size(1)) if len(self.inputs) > 1 else None
        size = self.cs.size(-1)
        parts = (self.d_x, self.d_x[..., : 3 * size].unflatten(-1, (3, size)), to_o, self.to_cell, f)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        d_x, d_ifc, d_o, to_cell, f = self.each[t]
        d_o.mul_(d_h)
        d_c.addcmul_(d_h, to_cell)
        d_ifc.mul_(d_c.unsqueeze(1))
        d_c.mul_(f)
        if self.recur is not None:
            self.recur.times(d_x, out=d_h)
        else:
            d_h.zero_()

    def finish(self):
        if len(self.inputs) == 1:
            return (self.d_x,)
        return self.d_x, product(flat(self.d_x).t(), flat(self.hs[:-1]))


#: multiply-adds of a step from which this kernel is the quicker one where torch's products round, in training and else
ROUNDED_WORK = {True: 3_000_000, False: 16_000_000}


def torch_is_quicker(weight_hh: Tensor, *carry: Tensor) -> bool:
    """Whether :func:`by_torch` takes oneDNN's LSTM, one call for all steps: what this kernel computes, but quicker.
    Its products never round."""
    if not by_onednn(weight_hh, *carry) or torch.is_autocast_enabled("cpu") or others_are_taken():
        return False
    trains = torch.is_grad_enabled() and weight_hh.requires_grad
    return len(carry[0]) * weight_hh.numel() < ROUNDED_WORK[trains] or not rounds()


def by_torch(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, carry: Tuple[Tensor, Tensor]
) -> Tuple[Tensor, List[Tensor]]:
    """``torch.nn.LSTM``'s function, whose gates come in the same order, over inputs ``[T, B, I]``, all of them valid.

    Returns:
        outputs ``[T, B, H]`` and the carry after the last step, as :func:`rntn_plugins.ops.recurrence.run`.
    """
    weights = [weight_ih, weight_hh, bias, torch.zeros_like(bias)]  # torch has two biases
    before = [state.unsqueeze(0) for state in carry]
    outputs, *after = torch.lstm(x, before, weights, True, 1, 0.0, True, False, False)
    return outputs, [state.squeeze(0) for state in after]
