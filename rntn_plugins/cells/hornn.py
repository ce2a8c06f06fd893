"""Higher-order RNNs and their pooling functions (H16: Soltani 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rntn_plugins.cells.base import ACTIVATIONS, Cell, option
from rntn_plugins.ops import hornn as ops
from rntn_plugins.ops.inputs import project
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell


class History(NamedTuple):
    """The last N outputs, the latest first."""

    states: Tensor  # [B, N, H]


def order_option():
    return option(3, "N, how many preceding states feed back (1: the Elman network)", least=1)


def activation_option():
    return option("sigmoid", "nonlinearity f (H16 does not say which of sigmoid and ReLU)", choices=tuple(ACTIVATIONS))


@dataclass
class HORNNOptions:
    order: int = order_option()
    activation: str = activation_option()


@register_cell("hornn")
class HORNN(Cell):
    """Higher-order RNN of order N.

    H16 eq. (5.3)::

        h_t = f(W_in x_t + Σ_{n=1..N} W_hn h_{t-n} + b)

    States before the first step are zero. H16 prints no bias; as in (2.7) each layer has one.

    ======  ==========  =========
    symbol  attribute   shape
    ======  ==========  =========
    W_in    weight_ih   [H, I]
    W_hn    weight_hh   [N, H, H], n-1 first
    b       bias        [H]
    ======  ==========  =========
    """

    Options = HORNNOptions

    def build(self) -> None:
        self.weight_ih = self.matrix(self.hidden_size, self.input_size)
        self.weight_hh = self.matrix(self.options.order, self.hidden_size, self.hidden_size)
        self.bias = self.matrix(self.hidden_size)

    def initial_carry(self, batch_size):
        return History(self.zeros(batch_size, self.options.order, self.hidden_size))

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def feedback(self, states: Tensor) -> Tensor:
        """W_hn h_{t-n} for every n: ``[B, N, H] -> [N, B, H]``."""
        return torch.bmm(states.transpose(0, 1), self.weight_hh.transpose(1, 2))

    def pool(self, feedback: Tensor, projected, states: Tensor) -> Tensor:
        """The paths combined, ``[N, B, H] -> [B, H]``; the plain HORNN adds them."""
        return feedback.sum(dim=0)

    def input_part(self, projected) -> Tensor:
        return projected

    def step(self, projected, carry):
        pooled = self.pool(self.feedback(carry.states), projected, carry.states)
        h = self.activation(self.input_part(projected) + pooled)
        return h, History(torch.cat([h.unsqueeze(1), carry.states[:, :-1]], dim=1))

    has_fused = takes_rows = True

    def fused(self, x, tokens, carry, lengths):
        return self.over_time(ops.HORNN, (project(x, self.weight_ih, self.bias), self.weight_hh), carry, lengths)

    def over_time(self, kernel, inputs, carry, lengths, *settings):
        """Run a kernel; *settings* are those beside order and activation."""
        settings = (self.options.order, str(self.options.activation), *settings)
        outputs, carry = run(kernel, settings, inputs, carry, lengths)
        return outputs, History(*carry)


@register_cell("hornn_max")
class MaxHORNN(HORNN):
    """HORNN with max-based pooling, element by element. H16 eq. (5.4)::

    h_t = f(W_in x_t + max_{n=1..N} (W_hn h_{t-n}) + b)
    """

    has_fused = takes_rows = True

    def pool(self, feedback, projected, states):
        return feedback.amax(dim=0)

    def fused(self, x, tokens, carry, lengths):
        return self.over_time(ops.MaxHORNN, (project(x, self.weight_ih, self.bias), self.weight_hh), carry, lengths)


@dataclass
class FOFEOptions:
    order: int = order_option()
    forgetting_factor: float = option(0.6, "α, the weight of the n-th path being α^n, between 0 and 1", least=0.0,
                                      most=1.0)  # fmt: skip
    activation: str = activation_option()


@register_cell("hornn_fofe")
class FOFEHORNN(HORNN):
    """HORNN with FOFE-based pooling (a fixed forgetting factor α). H16 eq. (5.5)::

    h_t = f(W_in x_t + Σ_{n=1..N} α^n W_hn h_{t-n} + b)
    """

    Options = FOFEOptions
    has_fused = takes_rows = True

    def pool(self, feedback, projected, states):
        powers = torch.arange(1, len(feedback) + 1, device=feedback.device, dtype=feedback.dtype)
        return torch.einsum("n,nbh->bh", self.options.forgetting_factor**powers, feedback)

    def fused(self, x, tokens, carry, lengths):
        inputs = (project(x, self.weight_ih, self.bias), self.weight_hh)
        return self.over_time(ops.HORNN, inputs, carry, lengths, float(self.options.forgetting_factor))


class WithGates(NamedTuple):
    x: Tensor  # [T, B, H]
    gates: Tensor  # [T, B, N·H]


@register_cell("hornn_gated")
class GatedHORNN(HORNN):
    """HORNN with a trained gate on every path.

    H16 eqs. (5.6)-(5.7); each gate has its own two matrices (its 9.6 M parameters need both per gate)::

        h_t = f(W_in x_t + Σ_{n=1..N} r_n ⊙ (W_hn h_{t-n}) + b)
        r_n = σ(W_1n^g x_t + W_2n^g h_{t-n} + b_n^g)

    ======  ===============  =========
    symbol  attribute        shape
    ======  ===============  =========
    W_1n^g  gate_weight_ih   [N·H, I]
    W_2n^g  gate_weight_hh   [N, H, H]
    b_n^g   gate_bias        [N·H]
    ======  ===============  =========

    and those of :class:`HORNN`.
    """

    has_fused = takes_rows = True

    def build(self) -> None:
        super().build()
        order, size = self.options.order, self.hidden_size
        self.gate_weight_ih = self.matrix(order * size, self.input_size)
        self.gate_weight_hh = self.matrix(order, size, size)
        self.gate_bias = self.matrix(order * size)

    def project(self, x, tokens=None):
        return WithGates(super().project(x), F.linear(x, self.gate_weight_ih, self.gate_bias))

    def input_part(self, projected):
        return projected.x

    def pool(self, feedback, projected, states):
        from_input = projected.gates.unflatten(1, (self.options.order, self.hidden_size)).transpose(0, 1)
        from_state = torch.bmm(states.transpose(0, 1), self.gate_weight_hh.transpose(1, 2))
        return (torch.sigmoid(from_input + from_state) * feedback).sum(dim=0)

    def fused(self, x, tokens, carry, lengths):
        gates = project(x, self.gate_weight_ih, self.gate_bias)
        inputs = (project(x, self.weight_ih, self.bias), self.weight_hh, gates, self.gate_weight_hh)
        return self.over_time(ops.GatedHORNN, inputs, carry, lengths)
