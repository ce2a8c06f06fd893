"""Matrices that depend on the symbol: row b of step t uses number ``index[t, b]`` of a stack ``[K, H, H]``.

No matrix is copied for a row that uses it, and a stack's gradient is one product for each matrix that occurred, after
the loop. It can be a row-sparse tensor: then K costs nothing, only what occurred does.
"""

from __future__ import annotations

import functools
import warnings
from typing import List, Tuple

import torch
from torch import Tensor

from rntn_plugins.ops.scratch import scratch

with warnings.catch_warnings():  # once in a process torch says that its compressed sparse tensors are in beta
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0], [], [], (0, 0))

OUTER = 2**25  # numbers of the outer products that are computed at a time


def products_in_place(stack: Tensor) -> bool:
    """Whether torch has the sparse products of :class:`RowMatrices`, and they are fast."""
    return stack.device.type == "cpu" and stack.dtype in (torch.float32, torch.float64)


class RowMatrices:
    """Products of the rows of a step with a matrix each.

    On a CPU both are sparse operations on the stack as it lies in memory, K·H lines of H numbers. U h: of the products
    of all lines with all rows, ``[B, K·H]``, just the H that a row asks for. Uᵀ d: a sum of H lines weighed by d.
    A single row is multiplied with its matrix. Elsewhere, and in half precision, the matrices of a step are gathered
    into one buffer, made when it is first needed (the kernels of :mod:`~rntn_plugins.ops.triton_kernels` need none).

    Args:
        index: ``[T, B]``, 0 to K-1.
        stack: one of the stacks ``[K, H, H]`` that the products will be asked for.
    """

    def __init__(self, index: Tensor, stack: Tensor) -> None:
        (steps, batch), (count, size) = index.shape, stack.shape[:2]
        self.in_place, self.single = products_in_place(stack), None
        if not self.in_place:
            self.index, self.gathered = index.unbind(0), None
            return
        if batch == 1:
            self.single = index.flatten().tolist()
            return
        lines = index.int().contiguous().unsqueeze(-1) * size + torch.arange(size, dtype=torch.int32)
        self.lines = lines.view(steps, batch * size).unbind(0)
        self.starts = torch.arange(0, batch * size + 1, size, dtype=torch.int32)
        shape, values = (batch, count * size), stack.new_empty(batch * size)
        self.asked = torch.sparse_csr_tensor(
            self.starts, lines[0].flatten().clone(), values, shape, check_invariants=False
        )
        self.columns, self.values = self.asked.col_indices(), self.asked.values().view(batch, size)

    def gather(self, t: int, stack: Tensor) -> Tensor:
        """The matrices of step *t*: ``[B, H, H]``."""
        if self.gathered is None:
            self.gathered = stack.new_empty(len(self.index[t]), *stack.shape[1:])
        return torch.index_select(stack, 0, self.index[t], out=self.gathered)

    def times(self, t: int, stack: Tensor, h: Tensor, x: Tensor, out: Tensor) -> Tensor:
        """x + U h: ``[B, H]``, into *out*, which may be *x* but not *h*."""
        if not self.in_place:
            matrices = self.gather(t, stack).transpose(1, 2)
            torch.baddbmm(x.unsqueeze(1), h.unsqueeze(1), matrices, out=out.unsqueeze(1))
            return out
        if self.single is not None:
            return torch.addmm(x, h, stack[self.single[t]].t(), out=out)
        self.columns.copy_(self.lines[t])
        self.values.copy_(x)
        torch.sparse.sampled_addmm(self.asked, h, stack.flatten(0, 1).t(), out=self.asked)
        return out.copy_(self.values)

    def transposed_times(self, t: int, stack: Tensor, d: Tensor) -> Tensor:
        """Uᵀ d: ``[B, H]``."""
        if not self.in_place:
            return torch.bmm(d.unsqueeze(1), self.gather(t, stack)).squeeze(1)
        if self.single is not None:
            return d @ stack[self.single[t]]
        return torch.embedding_bag(
            stack.flatten(0, 1), self.lines[t], self.starts[:-1], per_sample_weights=d.reshape(-1)
        )[0]


class Occurrences:
    """Gradients of tensors whose first dimension is the index.

    Args:
        index: ``[T, B]``, 0 to K-1.
        count: K.
        sparse: whether gradients are sparse tensors with a row for each number that occurred, or dense ones.
    """

    def __init__(self, index: Tensor, count: int, sparse: bool) -> None:
        self.count, self.sparse = count, sparse
        self.index = index.flatten()

    @functools.cached_property
    def counted(self) -> Tuple[Tensor, Tensor, List[int]]:
        """The numbers that occurred ``[U]``, which of them each one is ``[T·B]``, and how often each occurred."""
        found, number_of, sizes = torch.unique(self.index, return_inverse=True, return_counts=True)
        return found, number_of, sizes.tolist()

    def of_rows(self, d: Tensor) -> Tensor:
        """The gradient of a tensor ``[K, ...]`` whose rows were read, from those of the rows read ``[T·B, ...]``."""
        if self.sparse:
            found, number_of, _ = self.counted
            return self.rows(d.new_zeros(len(found), *d.shape[1:]).index_add_(0, number_of, d))
        return d.new_zeros(self.count, *d.shape[1:]).index_add_(0, self.index, d)

    def of_matrices(self, d: Tensor, h: Tensor) -> Tensor:
        """The gradient of a stack, from those of the products U h ``[T·B, H]`` and the vectors h ``[T·B, H]``.

        On a GPU a dense one is a sum of outer products, some rows at a time: many products of a few rows each are
        many launches, and the host would have to wait for their sizes. The order of the sum is not the same every time
        there, unless torch is told to be deterministic, which takes the products.
        """
        if d.is_cuda and not self.sparse and not torch.are_deterministic_algorithms_enabled():
            return self.of_outer_products(d, h)
        found, _, sizes = self.counted
        order = self.index.argsort()
        d_parts = d.index_select(0, order).t().split(sizes, 1)
        h_parts = h.index_select(0, order).split(sizes)
        numbers = range(len(sizes)) if self.sparse else found.tolist()
        values = scratch(d, len(sizes) if self.sparse else self.count, d.size(1), h.size(1))
        done = 0
        for number, d_part, h_part in zip(numbers, d_parts, h_parts):
            if number > done:
                values[done:number] = 0
            torch.mm(d_part, h_part, out=values[number])
            done = number + 1
        values[done:] = 0
        return self.rows(values) if self.sparse else values

    def of_outer_products(self, d: Tensor, h: Tensor) -> Tensor:
        """As :meth:`of_matrices`; half precision is summed in single."""
        wide = torch.float64 if d.dtype == torch.float64 else torch.float32
        total = d.new_zeros(self.count, d.size(1), h.size(1), dtype=wide)
        block = max(1, OUTER // max(1, d.size(1) * h.size(1)))
        for index, d_part, h_part in zip(self.index.split(block), d.split(block), h.split(block)):
            total.index_add_(0, index, d_part.to(wide).unsqueeze(2) * h_part.to(wide).unsqueeze(1))
        return total.to(d.dtype)

    def rows(self, values: Tensor) -> Tensor:
        """*values* ``[U, ...]`` as the rows that occurred of a sparse tensor ``[K, ...]``."""
        shape = (self.count, *values.shape[1:])
        indices = self.counted[0].unsqueeze(0).clone()  # several gradients must not share them
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False, is_coalesced=True)


def transforming() -> bool:
    """Whether this is within a transform of :mod:`torch.func`, which know no sparse gradients."""
    return torch._C._are_functorch_transforms_active()


class SparseRead(torch.autograd.Function):
    """``rows[index]`` for autograd, with a row-sparse gradient; with a dense one where that is to be differentiated in
    its turn (``create_graph``)."""

    @staticmethod
    def forward(ctx, rows, index):
        ctx.save_for_backward(index)
        ctx.count = rows.size(0)
        return rows[index]

    @staticmethod
    def backward(ctx, d):
        (index,) = ctx.saved_tensors
        d_rows = d.reshape(index.numel(), *d.shape[index.dim() :])
        if torch.is_grad_enabled():
            return d.new_zeros(ctx.count, *d_rows.shape[1:]).index_add(0, index.flatten(), d_rows), None
        return Occurrences(index, ctx.count, True).of_rows(d_rows), None


def read(rows: Tensor, index: Tensor, sparse: bool) -> Tensor:
    """``rows[index]``: ``[K, ...], [T, B] -> [T, B, ...]``, for use under autograd.

    Args:
        sparse: whether the gradient of *rows* is a row-sparse tensor; within :mod:`torch.func` it is dense.
    """
    return SparseRead.apply(rows, index) if sparse and not transforming() else rows[index]


def at_index(rows: Tensor, index: Tensor) -> Tensor:
    """``rows[index]``: ``[K, D], [T, B] -> [T, B, D]``."""
    return rows.index_select(0, index.flatten()).view(*index.shape, -1)
