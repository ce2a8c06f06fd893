"""Gated recurrent neural tensor networks: GRURNTN and LSTMRNTN (T16: Tjandra et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.cells.base import ACTIVATIONS, Hidden, option
from rntn_plugins.cells.gru import GRU, interpolate, update_gate_option
from rntn_plugins.cells.lstm import PeepholeLSTM, forget_bias_option, peephole_option, peephole_scale_option
from rntn_plugins.ops import gru_rntn as gru_ops
from rntn_plugins.ops import lstm_peephole as lstm_ops
from rntn_plugins.ops.bilinear import KeptSlices, by_input
from rntn_plugins.ops.inputs import Rows, expand, project
from rntn_plugins.ops.products import on_gpu
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell


def tensor_scale_option():
    return option(0.01, "standard deviation of the tensor's initial values (small: its input is a product)", least=0.0)


class WithInput(NamedTuple):
    """The projected inputs and the inputs themselves, which the tensor product needs."""

    gates: Tensor  # [T, B, G·H]
    x: Tensor  # [T, B, I]


def bilinear(left: Tensor, tensor: Tensor, right: Tensor) -> Tensor:
    """``out[b, k] = Σ_ij left[b, i] tensor[i, j, k] right[b, j]``: ``[B, I'], [I', J, H], [B, J] -> [B, H]``."""
    slices = (left @ tensor.flatten(1)).unflatten(1, tensor.shape[1:])  # [B, J, H]
    return torch.bmm(right.unsqueeze(1), slices).squeeze(1)


def tensor_inputs(x, tensor: Tensor, kept: KeptSlices, form: str = "asymmetric") -> tuple:
    """What the kernels read of the product: x ``[T, B, I]`` and the tensor; or, where inputs repeat, the distinct ones
    ``[U, I]``, the tensor, which of them each is ``[T, B]``, and the product of these two if it is *kept*."""
    if not isinstance(x, Rows) or form != "asymmetric":
        return expand(x), tensor
    few = by_input(len(x.distinct), *x.index.shape, tensor)
    if not torch.is_grad_enabled() and (few or not on_gpu(tensor)):
        return x.distinct, tensor, x.index, *([kept.of(x.distinct, tensor)] if x.fixed else [])
    return (x.distinct, tensor, x.index) if few else (x.expand(), tensor)


class WithTensor:
    """What both cells add to the cell they extend: the tensor, and the inputs beside what that projects."""

    def add_tensor(self, left: int, right: int) -> None:
        self.weight_tensor = self.matrix(left, right, self.hidden_size)
        self.kept = KeptSlices()

    def initialise(self, scheme, scale):
        super().initialise(scheme, scale)
        nn.init.normal_(self.weight_tensor, std=self.options.tensor_init_scale)

    def train(self, mode=True):
        if mode:
            self.kept.clear()
        return super().train(mode)

    def project(self, x, tokens=None):
        return WithInput(super().project(x), x)


@dataclass
class GRURNTNOptions:
    form: str = option(
        "asymmetric", "'asymmetric', x W_tsr (r⊙h), T16 (18), or 'full', [x; r⊙h] W_tsr [x; r⊙h], T16 (17)",
        choices=("asymmetric", "full"),
    )  # fmt: skip
    update_gate: str = update_gate_option("candidate")
    activation: str = option("tanh", "nonlinearity f of the candidate", choices=tuple(ACTIVATIONS))
    tensor_init_scale: float = tensor_scale_option()


@register_cell("gru_rntn")
class GRURNTN(WithTensor, GRU):
    """GRU whose candidate adds a tensor product of input and gated previous state.

    T16 eq. (18); ``form=full`` is eq. (17) with [x_t; r_t ⊙ h_{t-1}] on both sides of the tensor::

        h~_t = f(x_t W_tsr (r_t ⊙ h_{t-1})^T + x_t W_xh + (r_t ⊙ h_{t-1}) W_hh + b_h)

    gates and h_t as in :class:`~rntn_plugins.cells.gru.GRU`, whose attributes it shares.

    ======  =============  ==========================================
    symbol  attribute      shape
    ======  =============  ==========================================
    W_tsr   weight_tensor  [I, H, H], full form [I+H, I+H, H];
                           [i, j, k]: left, right, slice k of the paper
    ======  =============  ==========================================
    """

    Options = GRURNTNOptions
    has_fused = takes_rows = True

    def build(self) -> None:
        super().build()
        full = self.options.form == "full"
        self.keeps_fixed_inputs = not full
        left = self.input_size + self.hidden_size if full else self.input_size
        right = left if full else self.hidden_size
        self.add_tensor(left, right)

    def step(self, projected, carry):
        r, z = self.gate_values(projected.gates, carry)
        gated = r * carry.h
        if self.options.form == "full":
            both = torch.cat([projected.x, gated], dim=-1)
            product = bilinear(both, self.weight_tensor, both)
        else:
            product = bilinear(projected.x, self.weight_tensor, gated)
        x = projected.gates[:, 2 * self.hidden_size :]
        candidate = self.activation(product + x + F.linear(gated, self.weight_hh))
        h = interpolate(z, carry.h, candidate, self.options.update_gate)
        return h, Hidden(h)

    def memory(self, projected, carry):
        return super().memory(projected.gates, carry)

    def fused(self, x, tokens, carry, lengths):
        options = self.options
        factors = tensor_inputs(x, self.weight_tensor, self.kept, options.form)
        inputs = (project(x, self.weight_ih, self.bias), self.weight_hh_gates, self.weight_hh, *factors)
        settings = (str(options.activation), str(options.update_gate), options.form == "full")
        outputs, carry = run(gru_ops.GRURNTN, settings, inputs, carry, lengths)
        return outputs, Hidden(*carry)


@dataclass
class LSTMRNTNOptions:
    peephole: str = peephole_option()
    peephole_init_scale: float = peephole_scale_option()
    forget_bias: float = forget_bias_option()
    tensor_init_scale: float = tensor_scale_option()


@register_cell("lstm_rntn")
class LSTMRNTN(WithTensor, PeepholeLSTM):
    """Peephole LSTM whose candidate adds a tensor product of input and previous output.

    T16 eqs. (19)-(20)::

        c~_t = tanh(x_t W_tsr h_{t-1}^T + x_t W_xc + h_{t-1} W_hc + b_c)

    everything else as in :class:`~rntn_plugins.cells.lstm.PeepholeLSTM`, whose attributes it shares; W_tsr is
    ``weight_tensor`` [I, H, H], [i, j, k] being left, right and slice.
    """

    Options = LSTMRNTNOptions
    has_fused = takes_rows = True
    keeps_fixed_inputs = True

    def build(self) -> None:
        super().build()
        self.add_tensor(self.input_size, self.hidden_size)

    def gate_inputs(self, projected):
        return projected.gates

    def candidate(self, pre, projected, carry):
        return torch.tanh(bilinear(projected.x, self.weight_tensor, carry.h) + pre)

    kernel = lstm_ops.LSTMRNTN

    def fused(self, x, tokens, carry, lengths):
        beside = tensor_inputs(x, self.weight_tensor, self.kept)
        return self.recur(project(x, self.weight_ih, self.bias), carry, lengths, beside=beside)
