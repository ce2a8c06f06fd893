"""Fused RNTN, restricted RNTN and multiplicative RNN."""

from __future__ import annotations

import torch

from rntn_plugins.ops.activations import ACTIVATE, slope
from rntn_plugins.ops.indexed import Occurrences, RowMatrices, at_index
from rntn_plugins.ops.products import product
from rntn_plugins.ops.recurrence import Kernel, every_step, flat, output_state, steps_of


class RNTN(Kernel):
    """h_t = f(x_t + U_k h_{t-1} + b_k), with k = index[t, b] for row b: S18 (4).

    Args:
        activation: name of f.
        sparse: whether the gradients of U and b are sparse tensors.

    Inputs: x ``[T, B, H]``, index ``[T, B]``, U ``[K, H, H]``, b ``[K, H]``. Carry: h.
    """

    saved = ("hs",)

    def __init__(self, activation: str, sparse: bool) -> None:
        self.activation, self.sparse = activation, sparse

    def start(self, carry, keep):
        x, index, stack, bias = self.inputs
        self.hs = output_state(self, carry[0])
        self.states = (steps_of(self.hs),)
        self.x = (x + at_index(bias, index)).unbind(0)
        self.matrices, self.activate = RowMatrices(index, stack), ACTIVATE[self.activation]

    def step(self, t):
        h = self.states[0]
        self.activate(self.matrices.times(t, self.inputs[2], h[t], self.x[t], out=h[t + 1]))

    def start_back(self):
        self.matrices = RowMatrices(*self.inputs[1:3])
        self.d_x = slope(self.activation, self.hs[1:])  # slopes, until the loop comes by
        self.each = self.d_x.unbind(0)

    def back(self, t, d_states, d_output):
        d_x = self.each[t].mul_(d_states[0])
        d_states[0] = self.matrices.transposed_times(t, self.inputs[2], d_x)

    def finish(self):
        _, index, stack, _ = self.inputs
        occurrences, d = Occurrences(index, stack.size(0), self.sparse), flat(self.d_x)
        return self.d_x, None, occurrences.of_matrices(d, flat(self.hs[:-1])), occurrences.of_rows(d)


class MultiplicativeRNN(Kernel):
    """h_t = f(x_t + L (v_k ⊙ R h_{t-1})), with k = index[t, b] for row b: S18 §2.

    Args:
        activation: name of f.
        sparse: whether the gradient of v is a sparse tensor.

    Inputs: x ``[T, B, H]``, index ``[T, B]``, L ``[H, F]``, R ``[F, H]``, v ``[V, F]``. Carry: h.
    """

    saved = ("hs", "inner", "outer")

    def __init__(self, activation: str, sparse: bool) -> None:
        self.activation, self.sparse = activation, sparse

    def start(self, carry, keep):
        x, index, left, right, factors = self.inputs
        batch, size = carry[0].size(0), factors.size(1)
        self.hs = output_state(self, carry[0])
        self.states = (steps_of(self.hs),)
        self.inner = every_step(self, keep, batch, size)  # R h
        self.outer = every_step(self, keep, batch, size)  # v ⊙ R h
        parts = (x, at_index(factors, index), self.inner, self.outer)
        self.each = list(zip(*(part.unbind(0) for part in parts)))
        self.left, self.right = self.factor_class(left.t(), batch), self.factor_class(right.t(), batch)
        self.activate = ACTIVATE[self.activation]

    def step(self, t):
        h, after = self.states[0][t], self.states[0][t + 1]
        x, factor, inner, outer = self.each[t]
        torch.mul(factor, self.right.times(h, out=inner), out=outer)
        self.activate(self.left.times_plus(outer, x, out=after))

    def start_back(self):
        self.left, self.right = (self.factor_class(weight, self.hs.size(1)) for weight in self.inputs[2:4])
        self.d_x = slope(self.activation, self.hs[1:])  # slopes, until the loop comes by
        self.d_outer, self.d_inner = torch.empty_like(self.inner), torch.empty_like(self.inner)
        parts = (self.d_x, self.d_outer, at_index(self.inputs[4], self.inputs[1]), self.d_inner)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def back(self, t, d_states, d_output):
        d_x, d_outer, factor, d_inner = self.each[t]
        d_x.mul_(d_states[0])
        torch.mul(factor, self.left.times(d_x, out=d_outer), out=d_inner)
        self.right.times(d_inner, out=d_states[0])

    def finish(self):
        _, index, _, _, factors = self.inputs
        return (
            self.d_x,
            None,
            product(flat(self.d_x).t(), flat(self.outer)),
            product(flat(self.d_inner).t(), flat(self.hs[:-1])),
            Occurrences(index, factors.size(0), self.sparse).of_rows(flat(self.d_outer * self.inner)),
        )
