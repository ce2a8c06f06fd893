"""Fused LSTM with peepholes, and LSTMRNTN."""

from __future__ import annotations

import torch

from rntn_plugins.ops.bilinear import Product, saved_by_product, tensor_product
from rntn_plugins.ops.lstm import LSTM
from rntn_plugins.ops.products import product
from rntn_plugins.ops.recurrence import flat


class PeepholeLSTM(LSTM):
    """The LSTM with peepholes: T16 (3)-(7).

    Args:
        full: the peepholes are matrices, not diagonals.

    Inputs: x ``[T, B, 4H]`` (input, forget, cell, output), W ``[4H, H]``, W_c ``[2H, H]`` (input, forget), W_co
    ``[H, H]``; diagonal peepholes are ``[2, H]`` and ``[1, H]``. Carry: h, c.
    """

    def __init__(self, full: bool) -> None:
        self.full = full

    def start(self, carry, keep):
        super().start(carry, keep)
        if self.full:
            self.peeps = [self.factor_class(weight.t(), carry[0].size(0)) for weight in self.inputs[2:4]]
        else:
            self.peeps = [*self.inputs[2], *self.inputs[3]]

    def step(self, t):
        h, c = (state[t] for state in self.states)
        h_after, c_after = (state[t + 1] for state in self.states)
        x, gates, i_f, i, f, candidate, o, squashed = self.each[t]
        self.recur.times_plus(h, x, out=gates)
        self.candidate_part(t, h, candidate)
        candidate.tanh_()
        if self.full:
            self.peeps[0].times_plus(c, i_f, out=i_f)
        else:
            i.addcmul_(c, self.peeps[0])
            f.addcmul_(c, self.peeps[1])
        i_f.sigmoid_()
        torch.mul(f, c, out=c_after).addcmul_(i, candidate)
        if self.full:
            self.peeps[1].times_plus(c_after, o, out=o)
        else:
            o.addcmul_(c_after, self.peeps[2])
        o.sigmoid_()
        torch.tanh(c_after, out=squashed)
        torch.mul(o, squashed, out=h_after)

    def candidate_part(self, t, h, candidate):
        """Add to the candidate's pre-activation; LSTMRNTN has its tensor product here."""

    def start_back(self):
        super().start_back()
        self.d_if = self.d_x[..., : 2 * self.cs.size(-1)].unbind(0)
        self.d_candidate = self.d_x.chunk(4, dim=-1)[2].unbind(0)
        if self.full:
            self.peeps = [self.factor_class(weight, self.d_x.size(1)) for weight in self.inputs[2:4]]

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        d_x, d_ifc, d_o, to_cell, f = self.each[t]
        weight_c, weight_co = self.inputs[2:4]
        d_o.mul_(d_h)
        d_c.addcmul_(d_h, to_cell)
        if self.full:
            self.peeps[1].times_plus(d_o, d_c, out=d_c)
        else:
            d_c.addcmul_(d_o, weight_co[0])
        d_ifc.mul_(d_c.unsqueeze(1))
        d_c.mul_(f)
        if self.full:
            self.peeps[0].times_plus(self.d_if[t], d_c, out=d_c)
        else:
            d_c.add_((d_ifc[:, :2] * weight_c).sum(1))
        self.recur.times(d_x, out=d_h)
        self.candidate_back(t, self.d_candidate[t], d_h)

    def candidate_back(self, t, d_candidate, d_h):
        """Add to the gradient of h_{t-1} what comes through :meth:`candidate_part`."""

    def finish(self):
        d_x, d_weight = super().finish()
        size = self.cs.size(-1)
        d_if, d_o = d_x[..., : 2 * size], d_x[..., 3 * size :]
        if self.full:
            d_c = product(flat(d_if).t(), flat(self.cs[:-1]))
            d_co = product(flat(d_o).t(), flat(self.cs[1:]))
        else:
            d_c = (d_if.unflatten(-1, (2, size)) * self.cs[:-1].unsqueeze(2)).sum((0, 1))
            d_co = (d_o * self.cs[1:]).sum((0, 1)).unsqueeze(0)
        return d_x, d_weight, d_c, d_co


class LSTMRNTN(PeepholeLSTM):
    """Peephole LSTM whose candidate adds x_t W_tsr h_{t-1}: T16 (19)-(20).

    Inputs: those of :class:`PeepholeLSTM`, then what :func:`~rntn_plugins.ops.bilinear.tensor_product` takes: x itself
    ``[T, B, I]`` and W_tsr ``[I, H, H]``; or distinct inputs, W_tsr and their index. Carry: h, c.
    """

    @property
    def saved(self):
        return (*PeepholeLSTM.saved, *saved_by_product(self.inputs[4:]))

    def made_product(self, keep: bool) -> Product:
        return tensor_product(*self.inputs[4:], keep=keep)

    def start(self, carry, keep):
        super().start(carry, keep)
        self.product = self.made_product(keep)
        self.product.start(self, keep)

    def candidate_part(self, t, h, candidate):
        self.product.add(t, h, candidate)

    def start_back(self):
        super().start_back()
        self.product = self.made_product(keep=True)
        self.product.start_back(self)

    def candidate_back(self, t, d_candidate, d_h):
        self.product.back(t, self.hs[t], d_candidate, d_h)

    def finish(self):
        found = self.product.finish(self.hs[:-1], self.d_x.chunk(4, dim=-1)[2])
        return (*super().finish(), *found, *[None] * (len(self.inputs) - 6))
