"""Extended LSTM cells with a trainable scale per position (E18: Su, Huang, Kuo 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.cells.base import Cell, option
from rntn_plugins.cells.lstm import forget_bias_option, gate_input_option
from rntn_plugins.ops import elstm as ops
from rntn_plugins.ops.inputs import project
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell


class PositionedCell(NamedTuple):
    h: Tensor  # [B, H]
    c: Tensor  # [B, H]
    position: Tensor  # [B], int64: how many steps each row has taken


def positions_option():
    return option(100, "T of E18's Table 1: how many positions have a scale s_t of their own; later ones wrap round",
                  least=1)  # fmt: skip


@dataclass
class ELSTM1Options:
    gate_input: str = gate_input_option()
    positions: int = positions_option()
    forget_bias: float = forget_bias_option()


@register_cell("elstm1")
class ELSTM1(Cell):
    """ELSTM-I: an LSTM whose input is scaled by a trainable vector s_t per position.

    E18 eqs. (20)-(21)::

        c_t = σ(W_f I_t) c_{t-1} + s_t σ(W_i I_t) tanh(W_in I_t)
        h_t = σ(W_o I_t) tanh(c_t + b)

    I_t = [X_t; h_{t-1}] or X_t; the gates' biases are part of their matrices (Table 1 counts them). s_t starts at 1
    and positions past the last wrap round, both as in the authors' code. With s = 1, b = 0 this is the LSTM.

    ======================  ===========  =======  ============================
    symbol                  attribute    shape    blocks of H rows
    ======================  ===========  =======  ============================
    W, columns of X_t       weight_ih    [4H, I]  input, W_in, output, forget
    W, columns of h_{t-1}   weight_hh    [4H, H]  input, W_in, output, forget (absent for gate_input=x)
    biases                  bias         [4H]     input, W_in, output, forget
    s                       scale        [T, H]
    b                       output_bias  [H]
    ======================  ===========  =======  ============================

    ELSTM-II has no forget block.
    """

    Options = ELSTM1Options
    forget_gate = True

    def build(self) -> None:
        rows = (4 if self.forget_gate else 3) * self.hidden_size
        self.weight_ih = self.matrix(rows, self.input_size)
        self.weight_hh = self.matrix(rows, self.hidden_size) if self.options.gate_input == "xh" else None
        self.bias = self.matrix(rows)
        self.scale = self.matrix(self.options.positions, self.hidden_size)
        self.output_bias = self.matrix(self.hidden_size)

    def initialise(self, scheme, scale):
        super().initialise(scheme, scale)
        nn.init.ones_(self.scale)
        if self.forget_gate:
            nn.init.constant_(self.bias.data[3 * self.hidden_size :], self.options.forget_bias)

    def initial_carry(self, batch_size):
        zeros = self.zeros(batch_size, self.hidden_size)
        return PositionedCell(zeros, zeros, torch.zeros(batch_size, dtype=torch.long, device=zeros.device))

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def gate_values(self, projected, carry):
        """Input gate, tanh(W_in I_t), output gate, forget gate (ELSTM-II: ``None``) and s_t, ``[B, H]`` each."""
        pre = projected if self.weight_hh is None else projected + F.linear(carry.h, self.weight_hh)
        s = self.scale[carry.position % self.options.positions]
        pre = pre.split(self.hidden_size, dim=-1)
        f = torch.sigmoid(pre[3]) if self.forget_gate else None
        return torch.sigmoid(pre[0]), torch.tanh(pre[1]), torch.sigmoid(pre[2]), f, s

    def step(self, projected, carry):
        i, candidate, o, f, s = self.gate_values(projected, carry)
        c = s * i * candidate + (carry.c if f is None else f * carry.c)
        h = o * torch.tanh(c + self.output_bias)
        return h, PositionedCell(h, c, carry.position + 1)

    def memory(self, projected, carry):
        *_, f, s = self.gate_values(projected, carry)
        return {"kept": torch.ones_like(s) if f is None else f, "scale": s}

    def memory_weights(self):
        return {"scale": self.scale}

    has_fused = takes_rows = has_recur = True

    def fused(self, x, tokens, carry, lengths):
        return self.recur(project(x, self.weight_ih, self.bias), carry, lengths)

    def input_weights(self):
        return self.weight_ih, self.bias

    def recur(self, projected, carry, lengths, run=run):
        steps = projected.size(0)
        inputs = [projected, self.scales(carry.position, steps), self.output_bias]
        if self.weight_hh is not None:
            inputs.append(self.weight_hh)
        outputs, (h, c) = run(ops.ELSTM, (self.forget_gate,), inputs, (carry.h, carry.c), lengths)
        passed = steps if lengths is None else lengths.long().clamp(max=steps)
        return outputs, PositionedCell(h, c, carry.position + passed)

    def scales(self, position: Tensor, steps: int) -> Tensor:
        """s_t of *steps* steps from the positions ``[B]`` on: ``[T, B, H]``, or ``[T, 1, H]`` if these are equal."""
        if bool((position == position[:1]).all()):
            position = position[:1]
        clock = torch.arange(steps, device=position.device).unsqueeze(1)
        return F.embedding((position + clock) % self.options.positions, self.scale)


@dataclass
class ELSTM2Options:
    gate_input: str = gate_input_option()
    positions: int = positions_option()


@register_cell("elstm2")
class ELSTM2(ELSTM1):
    """ELSTM-II: ELSTM-I without the forget gate.

    E18 eqs. (22)-(23)::

        c_t = c_{t-1} + s_t σ(W_i I_t) tanh(W_in I_t)
        h_t = σ(W_o I_t) tanh(c_t + b)

    Attributes as in :class:`ELSTM1`, with three blocks of rows.
    """

    Options = ELSTM2Options
    has_fused = takes_rows = has_recur = True
    forget_gate = False
