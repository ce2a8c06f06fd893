"""The gated recurrent unit, with the reset gate before the matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rntn_plugins.cells.base import ACTIVATIONS, Cell, Hidden, option
from rntn_plugins.ops import gru as ops
from rntn_plugins.ops.inputs import project
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell

UPDATE_GATES = ("candidate", "previous")


def update_gate_option(default: str):
    return option(
        default,
        "what z_t weighs: 'candidate', h_t = (1-z) h_{t-1} + z h~ (T16), "
        "or 'previous', h_t = z h_{t-1} + (1-z) h~ (S18, E18, H16)",
        choices=UPDATE_GATES,
    )


def interpolate(z, previous, candidate, update_gate: str):
    """h_t from the update gate z, in the convention asked for (see ``--update-gate``)."""
    if update_gate == "candidate":
        return previous + z * (candidate - previous)
    return candidate + z * (previous - candidate)


def kept_of(z, update_gate: str):
    """What :func:`interpolate` multiplies h_{t-1} by."""
    return 1 - z if update_gate == "candidate" else z


@dataclass
class GRUOptions:
    update_gate: str = update_gate_option("candidate")
    activation: str = option("tanh", "nonlinearity f of the candidate", choices=tuple(ACTIVATIONS))


@register_cell("gru")
class GRU(Cell):
    """Gated recurrent unit (Cho et al. 2014).

    T16 (Tjandra et al. 2016) eqs. (8)-(11); S18 eqs. (6)-(9) and E18 (12)-(15) with z and 1-z exchanged::

        r_t  = σ(W_xr x_t + W_hr h_{t-1} + b_r)
        z_t  = σ(W_xz x_t + W_hz h_{t-1} + b_z)
        h~_t = f(W_xh x_t + W_hh (r_t ⊙ h_{t-1}) + b_h)
        h_t  = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ h~_t

    The reset gate acts *before* the matrix W_hh; ``torch.nn.GRU`` applies it after, so the two are different
    functions. T16 prints b_r in the z_t equation of its baseline; its (17) has b_z, which is meant.

    ================  ================  =======  =====================
    symbol            attribute         shape    blocks of H rows
    ================  ================  =======  =====================
    W_xr, W_xz, W_xh  weight_ih         [3H, I]  reset, update, candidate
    b_r, b_z, b_h     bias              [3H]     reset, update, candidate
    W_hr, W_hz        weight_hh_gates   [2H, H]  reset, update
    W_hh              weight_hh         [H, H]
    ================  ================  =======  =====================
    """

    Options = GRUOptions

    def build(self) -> None:
        size = self.hidden_size
        self.weight_ih = self.matrix(3 * size, self.input_size)
        self.bias = self.matrix(3 * size)
        self.weight_hh_gates = self.matrix(2 * size, size)
        self.weight_hh = self.matrix(size, size)

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)

    def gate_values(self, projected, carry):
        """r_t and z_t, ``[B, H]`` each, from all gates' inputs ``[B, 3H]``."""
        gates = torch.sigmoid(projected[:, : 2 * self.hidden_size] + F.linear(carry.h, self.weight_hh_gates))
        return gates.chunk(2, dim=-1)

    def step(self, projected, carry):
        r, z = self.gate_values(projected, carry)
        candidate = self.activation(projected[:, 2 * self.hidden_size :] + F.linear(r * carry.h, self.weight_hh))
        h = interpolate(z, carry.h, candidate, self.options.update_gate)
        return h, Hidden(h)

    def memory(self, projected, carry):
        return {"kept": kept_of(self.gate_values(projected, carry)[1], self.options.update_gate)}

    has_fused = takes_rows = has_recur = True

    def fused(self, x, tokens, carry, lengths):
        return self.recur(project(x, self.weight_ih, self.bias), carry, lengths)

    def input_weights(self):
        return self.weight_ih, self.bias

    def recur(self, projected, carry, lengths, run=run):
        inputs = (projected, self.weight_hh_gates, self.weight_hh)
        settings = (str(self.options.activation), str(self.options.update_gate))
        outputs, carry = run(ops.GRU, settings, inputs, carry, lengths)
        return outputs, Hidden(*carry)
