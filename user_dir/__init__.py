"""A cell of one's own, trained with ``fairseq-train ... --user-dir user_dir --arch mgu_lm``. See README.md."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rntn_plugins import register_cell, register_language_model, register_macro_models
from rntn_plugins.cells.base import ACTIVATIONS, Cell, Hidden, option


@dataclass
class MGUOptions:
    activation: str = option("tanh", "nonlinearity of the candidate h~", choices=tuple(ACTIVATIONS))


@register_cell("mgu")
class MGU(Cell):
    """Minimal gated unit (Zhou, Wu, Zhang, Zhou 2016, "Minimal Gated Unit for Recurrent Neural Networks").

    A GRU whose one gate f_t both resets and updates::

        f_t  = σ(W_f [x_t; h_{t-1}] + b_f)
        h~_t = tanh(W_xh x_t + W_hh (f_t ⊙ h_{t-1}) + b_h)
        h_t  = (1 - f_t) ⊙ h_{t-1} + f_t ⊙ h~_t

    ===========================  ==============  =======  =================
    symbol                       attribute       shape    blocks of H rows
    ===========================  ==============  =======  =================
    W_f, columns of x_t; W_xh    weight_ih       [2H, I]  forget, candidate
    b_f, b_h                     bias            [2H]     forget, candidate
    W_f, columns of h_{t-1}      weight_hh_gate  [H, H]
    W_hh                         weight_hh       [H, H]
    ===========================  ==============  =======  =================
    """

    Options = MGUOptions

    def build(self):
        size = self.hidden_size
        self.weight_ih = self.matrix(2 * size, self.input_size)
        self.bias = self.matrix(2 * size)
        self.weight_hh_gate = self.matrix(size, size)
        self.weight_hh = self.matrix(size, size)

    def project(self, x, tokens=None):
        return F.linear(x, self.weight_ih, self.bias)  # all steps in one matrix product: [T, B, 2H]

    def step(self, projected, carry):
        for_gate, for_candidate = projected.chunk(2, dim=-1)  # each [B, H]
        f = torch.sigmoid(for_gate + F.linear(carry.h, self.weight_hh_gate))
        candidate = self.activation(for_candidate + F.linear(f * carry.h, self.weight_hh))
        h = (1 - f) * carry.h + f * candidate
        return h, Hidden(h)


register_language_model("mgu_lm", cell="mgu")
register_macro_models("mgu")  # basic_mgu, brnn_mgu, dbrnn_mgu, seq2seq_mgu, ... for tagging and parsing
