"""Matrix products by the faster of a CPU's two libraries.

torch's own products go to its BLAS. For float32 torch also has oneDNN, which on many processors with AVX-512 is up to
twice as quick for large matrices, and two to four times for the few rows of a recurrent step, whose matrix it can lay
out in blocks once for all steps. Without AVX-512 the BLAS is the quicker one, but for few rows and large matrices; and
so it is on Intel's processors with AVX-512, which MKL uses on these alone, and there for steps with a turned matrix.
Small products, other types and other devices are left to torch, and so is what it was told to round to bfloat16
(``--matmul-precision medium``) where it does, on a processor with AMX: its own products go to oneDNN then, without the
copies made here. A recurrent step's matrix is laid out all the same, if such a product rounds too (not in torch 2.6).
"""

from __future__ import annotations

import functools
import platform
from typing import Callable, Optional

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


def intel(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the processor is Intel's, so far as the system says."""
    try:
        with open(cpuinfo, errors="replace") as lines:
            return any(line.startswith("vendor_id") and "GenuineIntel" in line for line in lines)
    except OSError:
        return "GenuineIntel" in platform.processor()


AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
BLAS_AVX512 = AVX512 and torch.backends.mkl.is_available() and intel()  # whether torch's BLAS uses it too
STEP_WORK = 1_000_000  # multiply-adds of a step below which torch's own product is as quick
STEP_MATRIX = 0 if AVX512 else 500_000  # the same, by the numbers of its matrix
TURNED_MATRIX = 500_000  # the same where only a turned matrix gains
SMALL_WORK = 4_000_000  # multiply-adds of a single product below which torch's own is as quick
#: rows of the left matrix and least numbers of the right one for which oneDNN is quicker where else the BLAS is
FEW, LARGE = range(5, 257), 2**21
BLOCK = 2**20  # numbers at a time of a product that is computed apart from where it is wanted
ROWS = 64  # that it has at least: each block reads all of the other matrix
LONG = 16  # a matrix with this many times as many rows as columns takes too long to lay out

_linear = _lay_out = None
if torch.backends.mkldnn.is_available():
    _linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    _lay_out = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


def on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on a GPU that torch takes for one of CUDA's."""
    return tensor.device.type == "cuda"


def rounds() -> bool:
    """Whether torch's products of float32 matrices on the CPU round what they multiply to bfloat16, and so are quicker:
    it was told to, and is able to."""
    products = getattr(torch.backends.mkldnn, "matmul", None)  # torch 2.9
    precision = getattr(products, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return precision in ("bf16", "medium") and torch_rounds()


def precision_on_gpu() -> str:
    """What torch's products of float32 matrices on a GPU are computed in, as it was told: ``highest``, ``tf32`` …"""
    told = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # torch 2.9
    return told or torch.get_float32_matmul_precision()


def rounds_on_gpu() -> bool:
    """Whether torch was told to round what it multiplies on a GPU."""
    return precision_on_gpu() not in ("none", "ieee", "highest")


@functools.cache
def torch_rounds() -> bool:
    """Whether torch rounds where it is told to, which it must be told when this is first asked."""
    return _rounds(torch.mm)


@functools.cache
def onednn_rounds() -> bool:
    """The same of the products of :class:`Factor`, to be asked where :func:`rounds` holds."""
    return _rounds(lambda a, b: _linear(a, b.t().contiguous(), None, "none", [], ""))


def _rounds(multiply: Callable[[Tensor, Tensor], Tensor]) -> bool:
    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        a, b = (torch.full(shape, 1.001, dtype=torch.float32, device="cpu") for shape in ((64, 256), (256, 256)))
        return bool((multiply(a, b) - 256 * 1.001**2).abs().max() > 0.1)  # 1.001 in bfloat16 is 1


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
    if not (fits and is_quicker(a, b)):
        return a @ b if bias is None else torch.addmm(bias, a, b)
    return _product(a, b, bias).contiguous()


def product_into(out: Tensor, a: Tensor, b: Tensor, add: bool, scale: float = 1.0) -> None:
    """scale · a b, of ``[M, K]`` and ``[K, N]``, into *out* ``[M, N]`` or added to it, without autograd.

    Copies of *a* and of the result take about ``BLOCK`` numbers at a time, or those of ``ROWS`` rows if these are more.
    """
    if not is_quicker(a, b):
        out.addmm_(a, b, beta=float(add), alpha=scale)  # beta 0: what was there is not read
        return
    b = dense(b)
    copied = b.size(1) if a.is_contiguous() else max(b.shape)  # of each row
    blocks = -(-len(out) // max(ROWS, BLOCK // copied))
    rows = -(-len(out) // blocks)
    for part, lines in zip(out.split(rows), a.split(rows)):
        found = _product(lines, b)
        part.add_(found, alpha=scale) if add else torch.mul(found, scale, out=part)


def is_quicker(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN has the product of two matrices and is the quicker library for it."""
    if a.size(0) * b.numel() < SMALL_WORK or b.size(1) == 1 or not by_onednn(a, b) or rounds():
        return False
    few = a.size(0) in FEW and b.numel() >= LARGE
    if BLAS_AVX512:
        return few and b.size(1) > b.size(0) and a.stride(1) == 1
    return AVX512 or (few and (b.size(1) > b.size(0) or torch.get_num_threads() > 1))


def _product(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a b + bias by oneDNN, which may lie turned."""
    if bias is None and a.stride(0) == 1 and b.numel() + a.size(0) * b.size(1) < a.numel():
        return _linear(b.t().contiguous(), dense(a), None, "none", [], "").t()  # (bᵀ aᵀ)ᵀ has less to turn
    bias = None if bias is None else bias.contiguous()
    return _linear(a.contiguous(), dense(b.t()), bias, "none", [], "")


def dense(matrix: Tensor) -> Tensor:
    """A matrix without gaps between its rows or columns: with some, oneDNN has no quick product."""
    if matrix.stride(0) == 1:
        return matrix.t().contiguous().t()  # copied, if at all, the way it lies
    return matrix.contiguous()


class Factor:
    """A matrix s M ``[K, N]`` that the rows of every step are multiplied with, without autograd.

    Args:
        matrix: M; it must stay as it is as long as the factor is used.
        rows: how many rows a step has.
        scale: s.
    """

    def __init__(self, matrix: Tensor, rows: int, scale: float = 1.0) -> None:
        self.matrix, self.rows, self.scale = matrix, rows, scale
        large = matrix.numel() >= STEP_MATRIX and rows * matrix.numel() >= STEP_WORK
        if large and BLAS_AVX512 and not rounds():
            large = matrix.stride(0) == 1 and matrix.numel() >= TURNED_MATRIX
        self.onednn = rows > 1 and large and by_onednn(matrix) and (not rounds() or onednn_rounds())
        self._turned, self._uses = None, 0

    def times(self, x: Tensor, out: Tensor) -> Tensor:
        """s x M: ``[B, N]``, into *out*."""
        return out.copy_(self.of(x)) if self.onednn or self.scale != 1 else torch.mm(x, self.matrix, out=out)

    def of(self, x: Tensor) -> Tensor:
        """s x M: a new ``[B, N]``."""
        if self.onednn:
            return _linear(x.contiguous(), self._next(), None, "none", [], "")
        found = torch.mm(x, self.matrix)
        return found if self.scale == 1 else found.mul_(self.scale)

    def times_plus(self, x: Tensor, other: Tensor, out: Tensor) -> Tensor:
        """s x M + other: ``[B, N]``, into *out*, which may be *other*."""
        if not self.onednn:
            return torch.addmm(other, x, self.matrix, alpha=self.scale, out=out)
        return out.copy_(_linear.binary(x.contiguous(), other.contiguous(), self._next(), None, "add"))

    def _next(self) -> Tensor:
        """s Mᵀ for oneDNN's next product, from the second on in blocks: a single step is sooner done without."""
        self._uses += 1
        if self._uses == 1:
            turned = self.matrix.t()
            self._turned = dense(turned if self.scale == 1 else turned * self.scale)
        elif self._uses == 2 and self.matrix.size(0) <= LONG * self.matrix.size(1):
            self._turned = _lay_out(self._turned, self.rows)
        return self._turned
