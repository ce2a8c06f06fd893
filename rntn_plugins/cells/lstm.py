"""Long short-term memory, without and with peepholes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.cells.base import Cell, option
from rntn_plugins.ops import lstm as ops
from rntn_plugins.ops import lstm_peephole as peephole_ops
from rntn_plugins.ops.inputs import expand, project
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell

GATE_INPUTS = ("xh", "x")


class HiddenAndCell(NamedTuple):
    h: Tensor  # [B, H]
    c: Tensor  # [B, H]


def forget_bias_option(default: float = 0.0):
    return option(default, "initial value of the forget gate's bias b_f (E18's authors use 1)")


def gate_input_option():
    return option("xh", "what the gates see: 'xh', I_t = [X_t; h_{t-1}], or 'x', I_t = X_t (E18)", choices=GATE_INPUTS)


@dataclass
class LSTMOptions:
    forget_bias: float = forget_bias_option()
    gate_input: str = gate_input_option()


@register_cell("lstm")
class LSTM(Cell):
    """LSTM without peepholes.

    S18 eqs. (10)-(15), E18 eqs. (6)-(7), H16 §3.2.2 (which prints no biases)::

        i_t = σ(W_i I_t + b_i)      f_t = σ(W_f I_t + b_f)      o_t = σ(W_o I_t + b_o)
        c~_t = tanh(W_c I_t + b_c)                              I_t = [x_t; h_{t-1}], or x_t alone (E18)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ c~_t
        h_t = o_t ⊙ tanh(c_t)

    ==================  ===========  =======  ============================
    symbol              attribute    shape    blocks of H rows
    ==================  ===========  =======  ============================
    W, columns of x_t   weight_ih    [4H, I]  input, forget, cell, output
    W, columns of h     weight_hh    [4H, H]  input, forget, cell, output (absent for gate_input=x)
    b                   bias         [4H]     input, forget, cell, output
    ==================  ===========  =======  ============================
    """

    Options = LSTMOptions

    def build(self) -> None:
        size = self.hidden_size
        self.weight_ih = self.matrix(4 * size, self.input_size)
        self.weight_hh = self.matrix(4 * size, size) if self.options.gate_input == "xh" else None
        self.bias = self.matrix(4 * size)

    def initialise(self, scheme, scale):
        Cell.initialise(self, scheme, scale)
        nn.init.constant_(self.bias.data[self.hidden_size : 2 * self.hidden_size], self.options.forget_bias)

    def initial_carry(self, batch_size):
        return HiddenAndCell(self.zeros(batch_size, self.hidden_size), self.zeros(batch_size, self.hidden_size))

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def gate_values(self, projected, carry):
        """i_t, f_t, c~_t and o_t, ``[B, H]`` each."""
        pre = projected if self.weight_hh is None else projected + F.linear(carry.h, self.weight_hh)
        i, f, candidate, o = pre.chunk(4, dim=-1)
        return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(candidate), torch.sigmoid(o)

    def step(self, projected, carry):
        i, f, candidate, o = self.gate_values(projected, carry)
        c = f * carry.c + i * candidate
        h = o * torch.tanh(c)
        return h, HiddenAndCell(h, c)

    def memory(self, projected, carry):
        return {"kept": self.gate_values(projected, carry)[1]}

    has_fused = takes_rows = has_recur = True

    def fused(self, x, tokens, carry, lengths):
        if self.weight_hh is not None and lengths is None and ops.torch_is_quicker(self.weight_hh, *carry):
            outputs, carry = ops.by_torch(expand(x), self.weight_ih, self.weight_hh, self.bias, carry)
            return outputs, HiddenAndCell(*carry)
        return self.recur(project(x, self.weight_ih, self.bias), carry, lengths)

    def input_weights(self):
        return self.weight_ih, self.bias

    def recur(self, projected, carry, lengths, run=run):
        inputs = [projected] if self.weight_hh is None else [projected, self.weight_hh]
        outputs, carry = run(ops.LSTM, (), inputs, carry, lengths)
        return outputs, HiddenAndCell(*carry)


PEEPHOLES = ("full", "diagonal")


def peephole_option():
    return option(
        "full", "W_ci, W_cf, W_co: 'full' matrices (T16's parameter counts) or 'diagonal' vectors", choices=PEEPHOLES
    )


def peephole_scale_option():
    return option(
        1.0, "peepholes start at this times what --init gives (0: at first no gate sees the memory cell)", least=0.0
    )


@dataclass
class PeepholeOptions:
    peephole: str = peephole_option()
    peephole_init_scale: float = peephole_scale_option()
    forget_bias: float = forget_bias_option()


@register_cell("lstm_peephole")
class PeepholeLSTM(Cell):
    """LSTM with peepholes from the memory cell to the gates.

    T16 eqs. (3)-(7)::

        i_t = σ(W_xi x_t + W_hi h_{t-1} + W_ci c_{t-1} + b_i)
        f_t = σ(W_xf x_t + W_hf h_{t-1} + W_cf c_{t-1} + b_f)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ tanh(W_xc x_t + W_hc h_{t-1} + b_c)
        o_t = σ(W_xo x_t + W_ho h_{t-1} + W_co c_t + b_o)
        h_t = o_t ⊙ tanh(c_t)

    W_ci, W_cf and W_co are full matrices: only they give the paper's 13 M (words) and 2.6 M (characters) parameters.

    ======================  ===========  =================  ============================
    symbol                  attribute    shape              blocks of H rows
    ======================  ===========  =================  ============================
    W_xi, W_xf, W_xc, W_xo  weight_ih    [4H, I]            input, forget, cell, output
    W_hi, W_hf, W_hc, W_ho  weight_hh    [4H, H]            input, forget, cell, output
    b_i, b_f, b_c, b_o      bias         [4H]               input, forget, cell, output
    W_ci, W_cf              weight_c     [2H, H] or [2, H]  input, forget
    W_co                    weight_co    [H, H] or [1, H]   output
    ======================  ===========  =================  ============================
    """

    Options = PeepholeOptions

    def build(self) -> None:
        size = self.hidden_size
        self.weight_ih = self.matrix(4 * size, self.input_size)
        self.weight_hh = self.matrix(4 * size, size)
        self.bias = self.matrix(4 * size)
        full = self.options.peephole == "full"
        self.weight_c = self.matrix(2 * size if full else 2, size)
        self.weight_co = self.matrix(size if full else 1, size)

    def initialise(self, scheme, scale):
        LSTM.initialise(self, scheme, scale)
        for weight in (self.weight_c, self.weight_co):
            weight.data.mul_(self.options.peephole_init_scale)

    initial_carry = LSTM.initial_carry

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def peep(self, c: Tensor, weight: Tensor) -> Tensor:
        """c through full matrices or diagonal ones: ``[B, G·H]``."""
        if self.options.peephole == "full":
            return F.linear(c, weight)
        return (c.unsqueeze(1) * weight).flatten(1)

    def candidate(self, pre: Tensor, projected, carry) -> Tensor:
        """c~_t from its pre-activation; LSTMRNTN adds the tensor product here."""
        return torch.tanh(pre)

    def gate_values(self, projected, carry):
        """i_t, f_t and the pre-activations of c~_t and o_t, which depend on more than these two; ``[B, H]`` each."""
        x = self.gate_inputs(projected)
        pre_i, pre_f, pre_c, pre_o = (x + F.linear(carry.h, self.weight_hh)).chunk(4, dim=-1)
        peep_i, peep_f = self.peep(carry.c, self.weight_c).chunk(2, dim=-1)
        return torch.sigmoid(pre_i + peep_i), torch.sigmoid(pre_f + peep_f), pre_c, pre_o

    def step(self, projected, carry):
        i, f, pre_c, pre_o = self.gate_values(projected, carry)
        c = f * carry.c + i * self.candidate(pre_c, projected, carry)
        o = torch.sigmoid(pre_o + self.peep(c, self.weight_co))
        h = o * torch.tanh(c)
        return h, HiddenAndCell(h, c)

    memory = LSTM.memory

    def gate_inputs(self, projected) -> Tensor:
        """The part of ``project``'s result that the gates add: ``[B, 4H]``."""
        return projected

    has_fused = takes_rows = has_recur = True
    kernel = peephole_ops.PeepholeLSTM
    input_weights = LSTM.input_weights

    def fused(self, x, tokens, carry, lengths):
        return self.recur(project(x, self.weight_ih, self.bias), carry, lengths)

    def recur(self, projected, carry, lengths, run=run, beside=()):
        """*beside*: what LSTMRNTN's kernel reads too."""
        inputs = (projected, self.weight_hh, self.weight_c, self.weight_co, *beside)
        outputs, carry = run(self.kernel, (self.options.peephole == "full",), inputs, carry, lengths)
        return outputs, HiddenAndCell(*carry)
