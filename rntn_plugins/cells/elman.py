"""Simple recurrent networks: the Elman network and the SRN with a linear state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from rntn_plugins.cells.base import ACTIVATIONS, Cell, Hidden, IdentityOrLinear, option
from rntn_plugins.ops import elman as ops
from rntn_plugins.ops.inputs import project
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell


@dataclass
class ElmanOptions:
    activation: str = option("sigmoid", "nonlinearity f", choices=tuple(ACTIVATIONS))
    identity_input: bool = option(
        False, "add the input itself instead of W_in x_t (I = H; the embedding is then the only input matrix, as S18)"
    )


@register_cell("elman")
class Elman(Cell):
    """The Elman network (s-RNN).

    S18 (Salle & Villavicencio 2018) eq. (1), H16 (Soltani 2016) eqs. (3.1), (5.1)::

        h_t = f(W_in x_t + W_h h_{t-1} + b)

    ===========  ============  ======
    symbol       attribute     shape
    ===========  ============  ======
    W_in (W_h)   input.weight  [H, I]
    W_h (U_h)    weight_hh     [H, H]
    b (b_h)      input.bias    [H]
    ===========  ============  ======

    (S18's names in brackets.) f is the logistic function in S18; H16 leaves sigmoid or ReLU open.
    """

    Options = ElmanOptions

    def build(self) -> None:
        self.input = IdentityOrLinear(self.input_size, self.hidden_size, self.options.identity_input, "elman")
        self.weight_hh = self.matrix(self.hidden_size, self.hidden_size)
        if self.options.identity_input:
            self.has_recur = False

    def project(self, x, tokens=None):
        return self.input(x)

    def step(self, projected, carry):
        h = self.activation(projected + F.linear(carry.h, self.weight_hh))
        return h, Hidden(h)

    has_fused = takes_rows = has_recur = True

    def fused(self, x, tokens, carry, lengths):
        return self.recur(self.input.fused(x), carry, lengths)

    def input_weights(self):
        return self.input.weight, self.input.bias

    def recur(self, projected, carry, lengths, run=run):
        inputs, settings = (projected, self.weight_hh), (str(self.options.activation),)
        outputs, carry = run(ops.Elman, settings, inputs, carry, lengths)
        return outputs, Hidden(*carry)


class LinearState(NamedTuple):
    c: Tensor  # [B, H]


@dataclass
class SRNOptions:
    activation: str = option("tanh", "output nonlinearity f", choices=tuple(ACTIVATIONS))


@register_cell("srn")
class SRN(Cell):
    """Elman's simple recurrent network with linear hidden state.

    E18 (Su et al. 2018) eqs. (1)-(2); the linear c_t is carried, not h_t::

        c_t = W_c c_{t-1} + W_in X_t        (the bias is part of W_in)
        h_t = f(c_t)

    ======  ============  ======
    symbol  attribute     shape
    ======  ============  ======
    W_in    weight_ih     [H, I]
    W_c     weight_cc     [H, H]
    bias    bias          [H]
    ======  ============  ======
    """

    Options = SRNOptions

    def build(self) -> None:
        self.weight_ih = self.matrix(self.hidden_size, self.input_size)
        self.weight_cc = self.matrix(self.hidden_size, self.hidden_size)
        self.bias = self.matrix(self.hidden_size)

    def initial_carry(self, batch_size):
        return LinearState(self.zeros(batch_size, self.hidden_size))

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def step(self, projected, carry):
        c = projected + F.linear(carry.c, self.weight_cc)
        return self.activation(c), LinearState(c)

    def memory_weights(self):
        return {"matrix": self.weight_cc}

    has_fused = takes_rows = has_recur = True

    def fused(self, x, tokens, carry, lengths):
        return self.recur(project(x, self.weight_ih, self.bias), carry, lengths)

    def input_weights(self):
        return self.weight_ih, self.bias

    def recur(self, projected, carry, lengths, run=run):
        inputs, settings = (projected, self.weight_cc), (str(self.options.activation),)
        outputs, carry = run(ops.SRN, settings, inputs, carry, lengths)
        return outputs, LinearState(*carry)
