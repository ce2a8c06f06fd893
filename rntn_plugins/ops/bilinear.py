"""The tensor products of gated recurrent neural tensor networks: ``out[b, k] += Σ_ij x[b, i] W[i, j, k] h[b, j]``.

There are two orders of the sums. :class:`ByState` contracts W with x and h at every step: a large product for the few
rows of a batch, and nothing to keep. The others contract W with the inputs first, which gives a matrix ``[H, H]`` for
each: :class:`ByRow`, in the loop for the rows of some steps at a time (on a GPU for all of them before it), and
:class:`ByInput` before it, for inputs that repeat; its cost follows the number of distinct ones.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from rntn_plugins.ops.indexed import Occurrences, RowMatrices
from rntn_plugins.ops.products import Factor, on_gpu, product
from rntn_plugins.ops.recurrence import Kernel, flat, is_recorded, may_keep
from rntn_plugins.ops.scratch import scratch

SAMPLE = 4096  # values of a tensor that are compared to see whether it has changed
CACHED = 2**21  # numbers of a block of outer products, which stays in a processor's cache
ON_GPU = 2**25  # the same on a GPU, where fewer launches count for more
BLOCK = 7_000_000  # numbers of x W that are computed at a time, but for one step more at first
KEPT = 2**28  # bytes of x W that may be kept for the backward pass
MANY = 4, 64  # times as many inputs as rows in a step, and inputs: where by row beats by state (measured)
VERY_MANY = 8  # or so many times as many, whatever their number
AS_MANY = 64  # inputs, and as many as rows in a step: the same on a GPU (measured in float32)
FEW = 3  # times as many inputs as distinct ones: where by input beats by state


def outer_block(like: Tensor) -> int:
    return ON_GPU if on_gpu(like) else CACHED


class ByState:
    """The outer products of x and h with W ``[I'·J, H]``, as it lies in memory, for every step. Nothing is kept.

    Args:
        x: the left side ``[T, B, I']``; step t is read when it is added.
        tensor: W ``[I', J, H]``.
    """

    saved = ()

    def __init__(self, x: Tensor, tensor: Tensor) -> None:
        self.x, self.each_x, self.shape = x, x.unbind(0), tensor.shape
        self.matrix = tensor.flatten(0, 1)
        self.outer = x.new_empty(x.size(1), *tensor.shape[:2])

    def start(self, kernel: Kernel, keep: bool) -> None:
        self.factor = Factor(self.matrix, self.x.size(1))

    def add(self, t: int, h: Tensor, out: Tensor) -> None:
        """Add the product of step *t* to *out* ``[B, H]``; h ``[B, J]``."""
        torch.mul(self.each_x[t].unsqueeze(2), h.unsqueeze(1), out=self.outer)
        self.factor.times_plus(self.outer.flatten(1), out, out=out)

    def start_back(self, kernel: Kernel) -> None:
        self.factor = Factor(self.matrix.t(), self.x.size(1))
        self.d_x = torch.empty_like(self.x)
        self.each_d_x = self.d_x.unbind(0)

    def back(self, t: int, h: Tensor, d_out: Tensor, d_h: Tensor) -> None:
        """Sets ``d_x[t]``, and adds to *d_h* ``[B, J]``, given *d_out* ``[B, H]``."""
        d_outer = self.factor.of(d_out).view_as(self.outer)
        torch.bmm(h.unsqueeze(1), d_outer.transpose(1, 2), out=self.each_d_x[t].unsqueeze(1))
        d_h.unsqueeze(1).baddbmm_(self.each_x[t].unsqueeze(1), d_outer)

    def finish(self, hs: Tensor, d_outs: Tensor) -> Tuple[Tensor, Tensor]:
        """The gradients of x and W; hs ``[T, B, J]``, d_outs ``[T, B, H]``."""
        left, right, out = self.shape
        x, h, d_outs = flat(self.x).t().contiguous(), flat(hs).t().contiguous(), flat(d_outs).contiguous()
        gradient = torch.empty_like(self.matrix)
        block = max(1, min(left, outer_block(h) // max(1, h.numel())))
        outer = h.new_empty(block, *h.shape)
        for first in range(0, left, block):
            part = x[first : first + block]
            torch.mul(part.unsqueeze(1), h, out=outer[: len(part)])
            rows = slice(first * right, (first + len(part)) * right)
            gradient[rows] = product(outer[: len(part)].flatten(0, 1), d_outs)
        return self.d_x, gradient.view(self.shape)


class ByRow:
    """x W for every row, some steps at a time as the loop goes; it is kept for the backward pass. If it is kept, a GPU
    computes all of it before the loop.

    Args:
        x: ``[T, B, I]``.
        tensor: W ``[I, J, H]``.
    """

    saved = ("slices",)

    def __init__(self, x: Tensor, tensor: Tensor) -> None:
        self.x, self.tensor = x, tensor

    def start(self, kernel: Kernel, keep: bool) -> None:
        """Sets on *kernel* what the backward pass reads: ``slices`` ``[T, B, J, H]``."""
        steps, batch = self.x.shape[:2]
        self.block = min(steps, max(1, BLOCK // max(1, batch * self.tensor[0].numel())))
        # the first window is the longest: the others find room where it was, though small things lie there too; in
        # recordings, whose memory is counted when the last one is there, all are as long as that, or nearly
        self.more = 1 if self.block > 1 and not is_recorded() else 0
        if is_recorded():
            self.block = -(-steps // -(-steps // self.block))
        self.matrix, self.after = self.tensor.flatten(1), 0
        self.slices = kernel.slices = scratch(self.x, steps, batch, *self.tensor.shape[1:]) if keep else None
        if keep and on_gpu(self.x):
            torch.mm(flat(self.x), self.matrix, out=flat(self.slices).flatten(1))
            self.first, self.after, self.ready = 0, steps, self.slices

    def at(self, t: int) -> Tensor:
        """x W of step *t* ``[B, J, H]``."""
        if t == self.after:
            self.first, self.after = t, t + self.block + (self.more if t == 0 else 0)
            part = self.x[t : self.after]
            self.ready = None  # its memory is for the next
            self.ready = product(flat(part), self.matrix).view(*part.shape[:2], *self.tensor.shape[1:])
            if self.slices is not None:
                self.slices[t : self.after] = self.ready
        return self.ready[t - self.first]

    def add(self, t: int, h: Tensor, out: Tensor) -> None:
        out.unsqueeze(1).baddbmm_(h.unsqueeze(1), self.at(t))

    def start_back(self, kernel: Kernel) -> None:
        self.slices = kernel.slices.unbind(0)

    def back(self, t: int, h: Tensor, d_out: Tensor, d_h: Tensor) -> None:
        d_h.unsqueeze(1).baddbmm_(d_out.unsqueeze(1), self.slices[t].transpose(1, 2))

    def finish(self, hs: Tensor, d_outs: Tensor) -> Tuple[Tensor, Tensor]:
        """Of a block of x W's lines at a time: its gradient h d, and with that those of x and W."""
        left, right, out = self.tensor.shape
        x, h, d_outs = flat(self.x), flat(hs), flat(d_outs).unsqueeze(1)
        d_x, d_tensor, turned = torch.zeros_like(x), scratch(self.tensor, left, right, out), x.t().contiguous()
        block = max(1, min(right, outer_block(x) // max(1, len(x) * out)))
        memory = x.new_empty(len(x) * block * out)
        for first in range(0, right, block):
            lines = slice(first, min(first + block, right))
            part = h[:, lines].unsqueeze(2)
            d_slices = torch.mul(part, d_outs, out=memory[: part.numel() * out].view(*part.shape[:2], out)).flatten(1)
            d_tensor[:, lines] = product(turned, d_slices).view(left, -1, out)
            d_x += product(d_slices, self.tensor[:, lines].flatten(1).t())
        return d_x.view(self.x.shape), d_tensor


class ByInput:
    """x W for every distinct input before the loop, then h.

    Args:
        x: the distinct inputs ``[U, I]``.
        tensor: W ``[I, H, H]``.
        index: which of them each one is ``[T, B]``.
        slices: x W, if it is there already.
    """

    saved = ("slices",)

    def __init__(self, x: Tensor, tensor: Tensor, index: Tensor, slices: Optional[Tensor] = None) -> None:
        self.x, self.tensor, self.index, self.slices = x, tensor, index, slices

    def start(self, kernel: Kernel, keep: bool) -> None:
        """Sets on *kernel* what the backward pass reads: ``slices`` ``[U, H, H]``."""
        kernel.slices = slices_of(self.x, self.tensor) if self.slices is None else self.slices
        self.start_back(kernel)

    def add(self, t: int, h: Tensor, out: Tensor) -> None:
        out.add_(self.matrices.transposed_times(t, self.slices, h))

    def start_back(self, kernel: Kernel) -> None:
        self.slices, self.matrices = kernel.slices, RowMatrices(self.index, kernel.slices)

    def back(self, t: int, h: Tensor, d_out: Tensor, d_h: Tensor) -> None:
        self.matrices.times(t, self.slices, d_out, d_h, out=d_h)

    def finish(self, hs: Tensor, d_outs: Tensor) -> Tuple[Tensor, Tensor]:
        d_slices = Occurrences(self.index, len(self.x), False).of_matrices(flat(hs), flat(d_outs)).flatten(1)
        d_tensor = product(self.x.t(), d_slices).view(self.tensor.shape)
        return product(d_slices, self.tensor.flatten(1).t()), d_tensor


Product = Union[ByState, ByRow, ByInput]


def slices_of(x: Tensor, tensor: Tensor) -> Tensor:
    """x W: ``[U, I], [I, H, H] -> [U, H, H]``, without autograd and autocast."""
    block, shape = max(1, BLOCK // max(1, tensor[0].numel())), (len(x), *tensor.shape[1:])
    with torch.autocast(x.device.type, enabled=False):
        if len(x) <= block or on_gpu(x):
            return product(x, tensor.flatten(1)).view(shape)
        slices = scratch(x, *shape)
        for part, out in zip(x.split(block), slices.split(block)):
            out.copy_(product(part, tensor.flatten(1)).view_as(out))
    return slices


class Kept(NamedTuple):
    """Slices and what they were computed from: versions, the inputs, and a sample of the tensor's values."""

    versions: list
    x: Tensor
    sample: Tensor
    slices: Tensor


class KeptSlices:
    """x W of a table of inputs, U·H² numbers, computed anew only when one of the two has changed.

    What torch counts as a change is seen (in place, by a checkpoint), and so is what it does not, through ``.data`` or
    in another process, if it changes the table or a good part of the tensor, as optimisers and averages of weights do.
    """

    kept: Optional[Kept] = None

    def clear(self) -> None:
        self.kept = None

    def of(self, x: Tensor, tensor: Tensor) -> Tensor:
        """``[U, I], [I, H, H] -> [U, H, H]``."""
        versions = [
            (each.data_ptr(), each.dtype, each.shape, None if each.is_inference() else each._version)
            for each in (x, tensor)
        ]
        sample, kept = tensor.flatten()[:: max(1, tensor.numel() // SAMPLE)], self.kept  # once: threads may share it
        if kept is None or kept.versions != versions or not (x.equal(kept.x) and sample.equal(kept.sample)):
            kept = Kept(versions, x.detach().clone(), sample.detach().clone(), slices_of(x, tensor))
            self.kept = kept
        return kept.slices

    def __deepcopy__(self, memo) -> KeptSlices:
        return KeptSlices()

    def __reduce__(self):
        return KeptSlices, ()


def kept_size(inputs: int, tensor: Tensor) -> int:
    """Bytes of x W."""
    return inputs * tensor[0].numel() * tensor.element_size()


def by_row(steps: int, batch: int, tensor: Tensor, keep: bool) -> bool:
    """Whether :class:`ByRow` is quicker than :class:`ByState`, and its memory is there if it has to *keep* x W."""
    left, device = tensor.size(0), tensor.device.type
    if on_gpu(tensor):
        many = left >= max(batch, AS_MANY)
    else:
        many = device == "cpu" and (left >= VERY_MANY * batch or left >= max(MANY[0] * batch, MANY[1]))
    if not many or steps == 1:
        return False
    return not keep or (kept_size(steps * batch, tensor) <= KEPT and may_keep())


def by_input(distinct: int, steps: int, batch: int, tensor: Tensor) -> bool:
    """Whether :class:`ByInput`, which has to keep x W, is quicker than the other two, and its memory is there."""
    rows = steps * batch
    few = FEW * distinct <= rows or (distinct <= rows and by_row(steps, batch, tensor, keep=False))
    return few and kept_size(distinct, tensor) <= KEPT


def kind(inputs: Sequence[Tensor], keep: bool) -> type:
    """How to compute the product of ``x, W``, or of ``distinct x, W, index``."""
    if len(inputs) > 2:
        return ByInput
    x, tensor = inputs
    return ByRow if by_row(*x.shape[:2], tensor, keep) else ByState


def tensor_product(
    x: Tensor, tensor: Tensor, index: Optional[Tensor] = None, slices: Optional[Tensor] = None, keep: bool = True
) -> Product:
    """By inputs ``[U, I]`` if there is an index; else with x ``[T, B, I']``, which may depend on the states, by them,
    or, if it does not, by row where that is quicker."""
    if index is None:
        return kind((x, tensor), keep)(x, tensor)
    return ByInput(x, tensor, index, slices)


def saved_by_product(inputs: Sequence[Tensor]) -> Tuple[str, ...]:
    """What a kernel saves for the product of ``x, W`` or ``x, W, index``."""
    return kind(inputs, True).saved
