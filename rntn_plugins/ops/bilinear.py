"""The tensor products of gated recurrent neural tensor networks."""

from __future__ import annotations

import torch
from torch import Tensor

from rntn_plugins.ops.recurrence import Kernel, every_step, flat

ROWS = 128  # T·B rows whose outer products are summed into the tensor's gradient in one matrix product


class Bilinear:
    """``out[b, k] += Σ_ij left[b, i] W[i, j, k] right[b, j]`` over the steps of a kernel.

    What the backward pass needs, ``W right`` of all steps, is kept in ``slices``, ``[T, B, I', H]``. The product of W
    with all inputs could be had before the loop, but would fill [T, B, J, H], and the operations are as many.

    Args:
        tensor: W ``[I', J, H]``.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.by_right = tensor.transpose(0, 1).reshape(tensor.size(1), -1)  # [J, I'·H]

    def start(self, kernel: Kernel, batch: int, keep: bool) -> Tensor:
        """Allocate and return the slices."""
        left, _, out = self.shape
        self.slices = every_step(kernel, keep, batch, left, out)
        self.each = list(self.slices.unbind(0))
        return self.slices

    def add(self, t: int, left: Tensor, right: Tensor, out: Tensor) -> None:
        """Add step *t* to ``out`` [B, H]."""
        slices = self.each[t]
        torch.mm(right, self.by_right, out=slices.flatten(1))
        out.unsqueeze(1).baddbmm_(left.unsqueeze(1), slices)

    def start_back(self, slices: Tensor) -> None:
        self.each = list(slices.unbind(0))
        steps, batch, left, out = slices.shape
        self.window = max(1, min(steps, ROWS // max(1, batch)))
        self.outer = slices.new_empty(self.window, batch, left, out)
        self.gradient = torch.zeros_like(self.by_right)
        self.waiting = 0

    def back(self, t: int, left: Tensor, rights: Tensor, d_out: Tensor, d_left: Tensor, d_right: Tensor) -> None:
        """Step *t*, from the last to the first: into ``d_left`` [B, I'], and added to ``d_right`` [B, J].

        Args:
            rights: the right sides of all steps, ``[T, B, J]``.
            d_out: ``[B, H]``.
        """
        torch.bmm(self.each[t], d_out.unsqueeze(2), out=d_left.unsqueeze(2))
        self.waiting += 1
        outer = self.outer[-self.waiting]
        torch.mul(left.unsqueeze(2), d_out.unsqueeze(1), out=outer)
        d_right.addmm_(outer.flatten(1), self.by_right.t())
        if self.waiting == self.window or t == 0:
            done = self.outer[-self.waiting :].flatten(2)
            self.gradient.addmm_(flat(rights[t : t + self.waiting]).t(), flat(done))
            self.waiting = 0

    def finish(self) -> Tensor:
        """The tensor's gradient ``[I', J, H]``."""
        left, right, out = self.shape
        return self.gradient.view(right, left, out).transpose(0, 1).contiguous()
