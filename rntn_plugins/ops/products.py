"""Matrix products by the faster of a CPU's two libraries.

torch's own products go to its BLAS. For float32 torch also has oneDNN, which on many processors is quicker by a third
for large matrices, and two to four times for the few rows of a recurrent step, whose matrix it can lay out in blocks
once for all steps. Small products, other types and other devices are left to torch.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

STEP_WORK = 2_000_000  # multiply-adds of a step below which torch's own product is as quick
SMALL_WORK = 4_000_000  # the same of a single product
BLOCK = 2**22  # numbers of a product that is computed apart from where it is wanted, at a time
LONG = 16  # a matrix with this many times as many rows as columns takes too long to lay out

_linear = _lay_out = None
if torch.backends.mkldnn.is_available():
    _linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    _lay_out = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


def by_onednn(*tensors: Tensor) -> bool:
    """Whether oneDNN has products of these tensors."""
    return (
        _linear is not None
        and _lay_out is not None
        and torch.backends.mkldnn.enabled
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    )


def product(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a b + bias: ``[M, K], [K, N], [N] -> [M, N]``, contiguous, without autograd."""
    fits = bias is None or (by_onednn(bias) and bias.shape == b.shape[1:])
    if not (fits and gains(a, b)):
        return a @ b if bias is None else torch.addmm(bias, a, b)
    return _product(a, b, bias).contiguous()


def product_into(out: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """a b into *out* ``[M, N]``, or added to it, with little memory beside it."""
    if not gains(a, b):
        out.addmm_(a, b, beta=float(add))  # beta 0: what was there is not read
        return
    rows = -(-BLOCK // out.size(1))
    for part, lines in zip(out.split(rows), a.split(rows)):
        found = _product(lines, b)
        part.add_(found) if add else part.copy_(found)


def gains(a: Tensor, b: Tensor) -> bool:
    return a.size(0) * b.numel() >= SMALL_WORK and by_onednn(a, b)


def _product(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a b + bias by oneDNN, which may lie turned."""
    if bias is None and not a.is_contiguous() and b.numel() + a.size(0) * b.size(1) < a.numel():
        return _linear(b.t().contiguous(), dense(a), None, "none", [], "").t()  # (bᵀ aᵀ)ᵀ has less to turn
    bias = None if bias is None else bias.contiguous()
    return _linear(a.contiguous(), dense(b.t()), bias, "none", [], "")


def dense(matrix: Tensor) -> Tensor:
    """A matrix without gaps between its rows or columns: with some, oneDNN has no quick product."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


class Factor:
    """A matrix M ``[K, N]`` that the rows of every step are multiplied with, without autograd.

    Args:
        matrix: M.
        rows: how many rows a step has.
    """

    def __init__(self, matrix: Tensor, rows: int) -> None:
        self.matrix, self.rows, self.uses = matrix, rows, 0
        self.onednn = rows > 1 and rows * matrix.numel() >= STEP_WORK and by_onednn(matrix)

    def laid_out(self) -> Tensor:
        """Mᵀ for oneDNN, from the second product on in blocks: a single step is sooner done without."""
        self.uses += 1
        if self.uses == 1:
            self.turned = dense(self.matrix.t())
        elif self.uses == 2 and self.matrix.size(0) <= LONG * self.matrix.size(1):
            self.turned = _lay_out(self.turned, self.rows)
        return self.turned

    def times(self, x: Tensor, out: Tensor) -> Tensor:
        """x M: ``[B, N]``, into *out*."""
        return out.copy_(self.of(x)) if self.onednn else torch.mm(x, self.matrix, out=out)

    def of(self, x: Tensor) -> Tensor:
        """x M: a new ``[B, N]``."""
        if not self.onednn:
            return torch.mm(x, self.matrix)
        return _linear(x.contiguous(), self.laid_out(), None, "none", [], "")

    def times_plus(self, x: Tensor, other: Tensor, out: Tensor) -> Tensor:
        """x M + other: ``[B, N]``, into *out*, which may be *other*."""
        if not self.onednn:
            return torch.addmm(other, x, self.matrix, out=out)
        return out.copy_(_linear.binary(x.contiguous(), other.contiguous(), self.laid_out(), None, "add"))
