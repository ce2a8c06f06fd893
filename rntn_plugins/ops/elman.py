"""Fused Elman network and SRN."""

from __future__ import annotations

from rntn_plugins.ops.activations import ACTIVATE, slope
from rntn_plugins.ops.products import product
from rntn_plugins.ops.recurrence import Kernel, every_state, flat, output_state, steps_of, turns


class Elman(Kernel):
    """h_t = f(x_t + W h_{t-1}).

    Args:
        activation: name of f.

    Inputs: x ``[T, B, H]``, W ``[H, H]``. Carry: h.
    """

    saved = ("hs",)

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def start(self, carry, keep):
        x, weight = self.inputs
        self.hs = output_state(self, carry[0])
        self.states = (steps_of(self.hs),)
        self.recur = self.factor_class(weight.t(), x.size(1))
        self.x, self.activate = x.unbind(0), ACTIVATE[self.activation]

    def step(self, t):
        h = self.states[0]
        self.activate(self.recur.times_plus(h[t], self.x[t], out=h[t + 1]))

    def start_back(self):
        self.d_x = slope(self.activation, self.hs[1:])  # slopes, until the loop comes by
        self.each = self.d_x.unbind(0)
        self.recur = self.factor_class(self.inputs[1], self.d_x.size(1))

    def back(self, t, d_states, d_output):
        d_x = self.each[t].mul_(d_states[0])
        self.recur.times(d_x, out=d_states[0])

    def finish(self):
        return self.d_x, product(flat(self.d_x).t(), flat(self.hs[:-1]))


class SRN(Kernel):
    """c_t = x_t + W c_{t-1}, h_t = f(c_t): the linear state is carried.

    Args:
        activation: name of f.

    Inputs: x ``[T, B, H]``, W ``[H, H]``. Carry: c.
    """

    saved = ("cs", "hs")
    output_is_state = False

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def start(self, carry, keep):
        x, weight = self.inputs
        self.cs = every_state(self, carry[0], keep)
        self.states = (turns(self.cs, self.steps),)
        self.hs = carry[0].new_empty(x.shape)
        self.outputs = self.hs.view(self.hs.shape)
        self.each = list(zip(x.unbind(0), self.hs.unbind(0)))
        self.recur, self.activate = self.factor_class(weight.t(), x.size(1)), ACTIVATE[self.activation]

    def step(self, t):
        c = self.states[0]
        x, h = self.each[t]
        self.recur.times_plus(c[t], x, out=c[t + 1])
        self.activate(h.copy_(c[t + 1]))

    def start_back(self):
        self.d_x = slope(self.activation, self.hs)  # slopes, until the loop comes by
        self.each = self.d_x.unbind(0)
        self.recur = self.factor_class(self.inputs[1], self.d_x.size(1))

    def back(self, t, d_states, d_output):
        d_x = self.each[t]
        if d_output is None:
            d_x.copy_(d_states[0])
        else:
            d_x.mul_(d_output).add_(d_states[0])
        self.recur.times(d_x, out=d_states[0])

    def finish(self):
        return self.d_x, product(flat(self.d_x).t(), flat(self.cs[:-1]))
