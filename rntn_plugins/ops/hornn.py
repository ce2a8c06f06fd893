"""Fused higher-order recurrent networks.

h_t depends on N earlier states, each through a path of its own: W_n h_{t-n}. At step t the states h_{t-n} … h_{t-1} are
all that path n needs for the n steps t … t+n-1. So it is computed for a run of n steps at once, with one matrix product
at every n-th step, and on the way back likewise: the products are as few and as large as the order allows.

One buffer ``[N + T, B, H]`` holds the first history, the oldest state first, and then the outputs: the states n steps
before each step are a piece of it. Runs are slices of the T·B rows of ``[T, B, ...]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rntn_plugins.ops.activations import ACTIVATE, slope
from rntn_plugins.ops.products import Factor, product_into
from rntn_plugins.ops.recurrence import Kernel, flat


class HORNN(Kernel):
    """h_t = f(x_t + Σ_{n=1..N} α^n W_n h_{t-n}).

    Args:
        order: N.
        activation: name of f.
        factor: α.

    Inputs: x ``[T, B, H]``, W ``[N, H, H]``. Carry: the history ``[B, N, H]``, the latest state first.
    """

    saved = ("hs",)

    def __init__(self, order: int, activation: str, factor: float = 1.0) -> None:
        self.order, self.activation, self.factor = order, activation, factor

    # ---- one path ----------------------------------------------------------------------------------------------------

    def start(self, carry, keep):
        self.ahead = self.factors(self.inputs[1].transpose(1, 2))

    def factors(self, weights):
        """α^n W_n for every path, and for the n steps that it is computed for at once."""
        batch, by_path = self.hs.size(1), enumerate(weights.unbind(0), 1)
        return [Factor(weight, n * batch, self.factor**n) for n, weight in by_path]

    def feed(self, n: int, run: slice) -> None:
        """Compute path n for a run of at most n steps, whose outputs (``before[0]``) are pre-activations so far."""
        here = self.before[0][run]
        self.ahead[n - 1].times_plus(self.before[n][run], here, out=here)

    def pool(self, t: int) -> None:
        """What is left to do for the pre-activation of step t when all its paths are there."""

    def start_back(self):
        self.ways_back = self.factors(self.inputs[1])

    def feed_back(self, n: int, run: slice) -> None:
        """Its way back: from the gradients of pre-activations (``d_before[0]``) to those of the states n before."""
        self.add_back(self.ways_back[n - 1], self.d_before[0][run], n, run)

    def add_back(self, factor: Factor, d_path: Tensor, n: int, run: slice) -> None:
        """Add the gradients of a path, times its matrix, to those of the states n before."""
        d_before = self.d_before[n][run]
        factor.times_plus(d_path, d_before, out=d_before)

    def finish(self):
        return self.d_x, self.weight_gradient([flat(self.d_x)] * self.order)

    def weight_gradient(self, d_paths):
        """``[N, H, H]`` from the gradients of every W_n h_{t-n}, each ``[T·B, H]``."""
        gradient = torch.empty_like(self.inputs[1])
        for n, (part, d_path, before) in enumerate(zip(gradient, d_paths, self.shifted(self.hs)[1:]), 1):
            product_into(part, d_path.t(), before, add=False, scale=self.factor**n)
        return gradient

    def shifted(self, buffer):
        """Of a buffer ``[N + T, B, H]`` what belongs to n = 0 … N steps before every step: ``[T·B, H]`` each."""
        return [flat(buffer[self.order - n :][: self.steps]) for n in range(self.order + 1)]

    # ---- all steps ---------------------------------------------------------------------------------------------------

    def forward(self, carry, ragged, keep):
        x, (history,) = self.inputs[0], carry
        self.hs = x.new_empty(self.order + self.steps, *x.shape[1:])
        self.hs[: self.order] = history.transpose(0, 1).flip(0)
        self.before = self.shifted(self.hs)
        self.outputs = self.hs[self.order :]
        self.outputs.copy_(x)
        self.start(carry, keep)
        batch, activate = x.size(1), ACTIVATE[self.activation]
        for t, h in enumerate(self.outputs.unbind(0)):
            for n in range(1, self.order + 1):
                if t % n == 0:
                    self.feed(n, slice(t * batch, min(t + n, self.steps) * batch))
            self.pool(t)
            activate(h)
            if ragged is not None and t >= ragged.shortest:
                h.masked_fill_(ragged.padded(t, h), 0)
        return [self.hs[self.last(ragged)]]

    def backward(self, d_outputs, d_final, ragged):
        d_hs = torch.zeros_like(self.hs)  # of states; where the loop has passed, of pre-activations
        self.d_x = d_hs[self.order :]
        if d_outputs is not None:
            self.d_x.copy_(d_outputs)
            if ragged is not None:
                self.d_x.masked_fill_(ragged.padding.unsqueeze(-1), 0)
        d_hs[self.last(ragged)] += d_final[0]
        self.d_before = self.shifted(d_hs)
        self.start_back()
        batch, slopes = d_hs.size(1), slope(self.activation, self.hs[self.order :])
        each = list(zip(self.d_x.unbind(0), slopes.unbind(0)))
        for t in range(self.steps - 1, -1, -1):
            d_h, slope_t = each[t]
            d_h.mul_(slope_t)
            for n in range(1, self.order + 1):
                rest = (self.steps - t) % n
                if rest == 0 or t == 0:
                    self.feed_back(n, slice(t * batch, (t + (rest or n)) * batch))
        return [d_hs[: self.order].flip(0).transpose(0, 1)]

    def last(self, ragged):
        """Where the buffer holds the history after each row's last valid step: indices to a ``[B, N, H]``."""
        batch, device = self.hs.size(1), self.hs.device
        ends = ragged.lengths if ragged else torch.full((batch,), self.steps, device=device)
        back = torch.arange(self.order - 1, -1, -1, device=device)
        return ends.unsqueeze(1) + back, torch.arange(batch, device=device).unsqueeze(1)


class MaxHORNN(HORNN):
    """h_t = f(x_t + max_{n=1..N} W_n h_{t-n}), element by element; paths that tie share the gradient equally.

    Inputs and carry as of :class:`HORNN`.
    """

    saved = ("hs", "shares")

    def start(self, carry, keep):
        super().start(carry, keep)
        x = self.inputs[0]
        self.keep = keep  # if not, every path has room for one run
        self.paths = x.new_empty(self.order, self.steps if keep else self.order, *x.shape[1:])
        self.path_rows, self.path_steps = zip(*((flat(path), path.unbind(0)) for path in self.paths))
        self.largest = torch.empty_like(x[0])

    def feed(self, n, run):
        out = self.path_rows[n - 1][run if self.keep else slice(run.stop - run.start)]
        self.ahead[n - 1].times(self.before[n][run], out=out)

    def pool(self, t):
        largest, *others = (path[t if self.keep else t % n] for n, path in enumerate(self.path_steps, 1))
        for path in others:
            largest = torch.maximum(largest, path, out=self.largest)
        self.outputs[t].add_(largest)

    def forward(self, carry, ragged, keep):
        final = super().forward(carry, ragged, keep)
        if keep:
            self.shares = self.paths.eq_(self.paths.amax(dim=0))
            self.shares.div_(self.shares.sum(dim=0))
        return final

    def start_back(self):
        super().start_back()
        self.d_paths = [flat(path) for path in torch.empty_like(self.shares)]
        self.share_rows = [flat(share) for share in self.shares]

    def feed_back(self, n, run):
        d_path = torch.mul(self.d_before[0][run], self.share_rows[n - 1][run], out=self.d_paths[n - 1][run])
        self.add_back(self.ways_back[n - 1], d_path, n, run)

    def finish(self):
        return self.d_x, self.weight_gradient(self.d_paths)


class GatedHORNN(HORNN):
    """h_t = f(x_t + Σ_{n=1..N} σ(g_{n,t} + G_n h_{t-n}) ⊙ W_n h_{t-n}).

    Inputs: x ``[T, B, H]``, W ``[N, H, H]``, g ``[T, B, N·H]``, G ``[N, H, H]``. Carry as of :class:`HORNN`.
    """

    saved = ("hs", "paths", "gates")
    unread = (0, 2)

    def start(self, carry, keep):
        super().start(carry, keep)
        g, gate_weight = self.inputs[2:]
        self.keep = keep  # if not, every path has room for one run
        self.paths, self.gates = (g.new_empty(self.steps if keep else self.order, *g.shape[1:]) for _ in range(2))
        self.each_n = list(zip(*map(self.columns, (g, self.paths, self.gates))))
        self.ahead_to_gate = self.factors(gate_weight.transpose(1, 2))

    def columns(self, buffer):
        """``[T, B, N·H]`` as N tensors ``[T·B, H]``."""
        return flat(buffer).chunk(self.order, dim=-1)

    def feed(self, n, run):
        g, paths, gates = self.each_n[n - 1]
        here = run if self.keep else slice(run.stop - run.start)
        before, path, gate = self.before[n][run], paths[here], gates[here]
        self.ahead[n - 1].times(before, out=path)
        self.ahead_to_gate[n - 1].times_plus(before, g[run], out=gate).sigmoid_()
        self.before[0][run].addcmul_(gate, path)

    def start_back(self):
        super().start_back()
        self.back_from_gate = self.factors(self.inputs[3])
        self.d_paths = torch.empty_like(self.paths)
        self.d_g = self.gates * self.paths  # slopes, until the loop comes by
        self.d_g.addcmul_(self.d_g, self.gates, value=-1)
        self.each_n = list(zip(*map(self.columns, (self.gates, self.d_paths, self.d_g))))

    def feed_back(self, n, run):
        d_after = self.d_before[0][run]
        gate, d_path, d_g = (buffer[run] for buffer in self.each_n[n - 1])
        torch.mul(d_after, gate, out=d_path)
        d_g.mul_(d_after)
        self.add_back(self.ways_back[n - 1], d_path, n, run)
        self.add_back(self.back_from_gate[n - 1], d_g, n, run)

    def finish(self):
        d_weight, d_gate_weight = (self.weight_gradient(self.columns(d)) for d in (self.d_paths, self.d_g))
        return self.d_x, d_weight, self.d_g, d_gate_weight
