"""What depends on the inputs alone, for all steps at once, and inputs that repeat."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rntn_plugins.ops.products import by_onednn, is_quicker, product


class Rows(NamedTuple):
    """Inputs ``[T, B, I]`` that repeat, as embeddings of symbols do: ``x[t, b] = distinct[index[t, b]]``.

    What is computed from an input alone then costs what the distinct ones cost.
    """

    distinct: Tensor  # [U, I]
    index: Tensor  # [T, B], 0 to U-1
    fixed: bool = False  # whether the next inputs will have the same distinct ones: what they give is worth keeping

    @property
    def shape(self) -> Tuple[int, int, int]:
        return (*self.index.shape, self.distinct.size(1))

    @property
    def device(self) -> torch.device:
        return self.index.device

    def expand(self) -> Tensor:
        """``[T, B, I]``."""
        return F.embedding(self.index, self.distinct)


Inputs = Union[Tensor, Rows]


def expand(x: Inputs) -> Tensor:
    return x.expand() if isinstance(x, Rows) else x


class Project(torch.autograd.Function):
    """x Wᵀ + b of distinct rows ``[U, I]``, then the rows of *index*, if there is one."""

    @staticmethod
    def forward(ctx, x, weight, bias, index):
        ctx.save_for_backward(x, weight, index)
        out = product(x, weight.t(), bias)
        return out if index is None else out.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx, d):
        x, weight, index = ctx.saved_tensors
        with torch.autocast(d.device.type, enabled=False):
            if index is not None:
                d = d.new_zeros(len(x), d.size(1)).index_add_(0, index, d)
            d_x = product(d, weight) if ctx.needs_input_grad[0] else None
            d_weight = product(d.t(), x) if ctx.needs_input_grad[1] else None
            return d_x, d_weight, d.sum(0) if ctx.needs_input_grad[2] else None, None


def project(x: Inputs, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """x Wᵀ + b for autograd: ``[T, B, I], [O, I], [O] -> [T, B, O]``, as ``torch.nn.functional.linear``.

    Raises:
        RuntimeError: in the backward pass, for second derivatives (``create_graph``).
    """
    rows, index = (x.distinct, x.index) if isinstance(x, Rows) else (x.flatten(0, 1), None)
    ours = is_quicker(rows, weight.t()) if index is None else by_onednn(rows, weight)
    if ours and not torch.is_autocast_enabled(rows.device.type):
        out = Project.apply(rows, weight, bias, None if index is None else index.flatten())
    else:
        out = F.linear(rows, weight, bias)
        out = out if index is None else F.embedding(index.flatten(), out)
    return out.unflatten(0, x.shape[:2])
