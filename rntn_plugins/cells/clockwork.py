"""The clockwork RNN, which H16 (Soltani 2016) discusses beside its own networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.cells.base import ACTIVATIONS, Cell, option
from rntn_plugins.registry import register_cell


class Clocked(NamedTuple):
    h: Tensor  # [B, H]
    time: Tensor  # [B], int64: how many steps each row has taken


@dataclass
class ClockworkOptions:
    periods: str = option("1,2,4,8", "clock periods of the modules, fast ones first, comma-separated")
    activation: str = option("tanh", "nonlinearity f", choices=tuple(ACTIVATIONS))


@register_cell("clockwork")
class Clockwork(Cell):
    """Clockwork RNN: modules that run at different clocks.

    H16 §3.2.4 describes it in words; the formula, and that t starts at 0, are from Koutník et al. 2014. The hidden
    layer is split into modules g with periods p_1 < p_2 < …, as equal in size as H allows (fast ones take what is
    left over). A module is fully connected within; it reads itself and slower modules, never faster ones::

        h_t^g = f(W_in^g x_t + Σ_{g' ≥ g} W_h^{g g'} h_{t-1}^{g'} + b^g)    if t mod p_g = 0, t = 0, 1, …
        h_t^g = h_{t-1}^g                                                   otherwise

    ==========  ============  ==================================
    symbol      attribute     shape
    ==========  ============  ==================================
    W_in        weight_ih     [H, I]
    W_h^{g g'}  weight_hh.g   [H_g, H - H_1 - … - H_{g-1}]
    b           bias          [H]
    ==========  ============  ==================================
    """

    Options = ClockworkOptions

    def build(self) -> None:
        text = str(self.options.periods)
        try:
            periods = [int(part) for part in text.split(",")]
        except ValueError:
            periods = []
        if not periods or periods[0] < 1 or any(a >= b for a, b in zip(periods, periods[1:])):
            raise ValueError(f"clockwork: --periods {text!r} must be increasing whole numbers of at least 1")
        if periods[-1] >= 2**63:  # of a counter of steps
            raise ValueError(f"clockwork: --periods {text!r} must be below 2^63")
        if len(periods) > self.hidden_size:
            raise ValueError(f"clockwork: --periods {text!r} asks for more modules than H = {self.hidden_size} units")
        size, count = self.hidden_size, len(periods)
        self.sizes = [size // count + (g < size % count) for g in range(count)]
        self.offsets = [sum(self.sizes[:g]) for g in range(count)]
        unit_periods = torch.tensor(periods).repeat_interleave(torch.tensor(self.sizes))
        self.register_buffer("unit_periods", unit_periods, persistent=False)
        self.weight_ih = self.matrix(size, self.input_size)
        self.weight_hh = nn.ParameterList(self.matrix(n, size - o) for n, o in zip(self.sizes, self.offsets))
        self.bias = self.matrix(size)

    def initial_carry(self, batch_size):
        h = self.zeros(batch_size, self.hidden_size)
        return Clocked(h, torch.zeros(batch_size, dtype=torch.long, device=h.device))

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def step(self, projected, carry):
        read = [F.linear(carry.h[:, offset:], weight) for offset, weight in zip(self.offsets, self.weight_hh)]
        h = self.activation(projected + torch.cat(read, dim=-1))
        ticks = carry.time.unsqueeze(1) % self.unit_periods == 0
        h = torch.where(ticks, h, carry.h)
        return h, Clocked(h, carry.time + 1)
