"""Triton kernels for the parts of a recurrent step that are no product with a shared matrix, and for such products of a
few rows; all others stay torch's.

A kernel adds the inputs' share x itself to what a product has left in a buffer, so that no copy of x comes before the
product. Letters as in :mod:`rntn_plugins.cells.base`: B batch, H hidden size, G gates.

What all launchers ask for: tensors of one type on one device, which is the current one; columns next to each other in
memory; and that tensors ``[B, H]`` have no gaps between their rows, where no stride of theirs is passed on (x and
gradients of outputs have one). The kernels compute in float64 for float64, else in float32. σ and tanh are computed
from exp(-|a|), which cannot overflow; their absolute error is that of rounding a number near 1.
"""

from __future__ import annotations

from typing import Optional, Tuple

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # columns of a program that works element by element
LINES, ALONG = 16, 128  # lines of a matrix that a program multiplies with a vector, and how much of them at a time
DOWN, ACROSS = 32, 64  # the same for a transposed matrix: lines at a time, and columns of a program
ROWS, COLUMNS, DEEP = 8, 8, 128  # of a program with a shared matrix: rows, columns, and how much of both at a time

# ---- what the kernels are made of ------------------------------------------------------------------------------------


@triton.jit
def _load(pointer, mask):
    value = tl.load(pointer, mask=mask, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    return value


@triton.jit
def _sigmoid(a):
    e = tl.exp(-tl.abs(a))
    return tl.where(a < 0, e, 1.0) / (1.0 + e)


@triton.jit
def _tanh(a):
    e = tl.exp(-2.0 * tl.abs(a))
    return tl.where(a < 0, e - 1.0, 1.0 - e) / (1.0 + e)


@triton.jit
def _activate(a, ACTIVATION: tl.constexpr):
    if ACTIVATION == "tanh":
        value = _tanh(a)
    elif ACTIVATION == "sigmoid":
        value = _sigmoid(a)
    elif ACTIVATION == "relu":
        value = tl.where(a < 0, 0.0, a)
    else:
        value = a
    return value


@triton.jit
def _slope(value, ACTIVATION: tl.constexpr):
    if ACTIVATION == "tanh":
        slope = 1.0 - value * value
    elif ACTIVATION == "sigmoid":
        slope = value - value * value
    else:
        slope = tl.where(value > 0, 1.0, 0.0).to(value.dtype)
    return slope


@triton.jit
def _sum(x, recurrent, mask, RECUR: tl.constexpr):
    value = _load(x, mask)
    if RECUR:
        value += tl.load(recurrent, mask=mask, other=0.0)
    return value


@triton.jit
def _d_state(d_state, d_output, mask, HAS_OUTPUT: tl.constexpr):
    value = _load(d_state, mask)
    if HAS_OUTPUT:
        value += tl.load(d_output, mask=mask, other=0.0)
    return value


#: whether Triton was first imported with TRITON_INTERPRET=1: then the kernels run on CPUs, slowly
INTERPRETED = not isinstance(_load, triton.JITFunction)


def _grid(like: Tensor) -> Tuple[Tuple[int, int], int, int]:
    """Programs, H and the columns of a program, for *like* ``[B, H]``."""
    rows, size = like.shape
    block = min(BLOCK, 1 << (size - 1).bit_length())
    return (rows, -(-size // block)), size, block


def _or_else(tensor: Optional[Tensor], other: Tensor) -> Tuple[Tensor, int, bool]:
    """A tensor ``[B, H]``, the stride of its rows and ``True``; where it is missing, something that is not read."""
    return (other, 0, False) if tensor is None else (tensor, tensor.stride(0), True)


# ---- LSTM ------------------------------------------------------------------------------------------------------------


@triton.jit
def _lstm_step(
    x, gates, c, c_after, squashed, h, peeps, peep, x_row, gates_row, size,
    INPUT: tl.constexpr, FORGET: tl.constexpr, CELL: tl.constexpr, OUTPUT: tl.constexpr,
    RECUR: tl.constexpr, PEEPS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here, x_here, gates_here = row * size + column, x + row * x_row + column, gates + row * gates_row + column
    if PART != "output":
        before = _load(c + here, mask)
        i = _sum(x_here + INPUT * size, gates_here + INPUT * size, mask, RECUR)
        f = _sum(x_here + FORGET * size, gates_here + FORGET * size, mask, RECUR)
        if PEEPS:
            i += before * _load(peeps + column, mask)
            f += before * _load(peeps + size + column, mask)
        i, f = _sigmoid(i), _sigmoid(f)
        candidate = _tanh(_sum(x_here + CELL * size, gates_here + CELL * size, mask, RECUR))
        after = f * before + i * candidate
        tl.store(gates_here + INPUT * size, i, mask=mask)
        tl.store(gates_here + FORGET * size, f, mask=mask)
        tl.store(gates_here + CELL * size, candidate, mask=mask)
        tl.store(c_after + here, after, mask=mask)
    else:
        after = _load(c_after + here, mask)
    if PART != "cell":
        o = _sum(x_here + OUTPUT * size, gates_here + OUTPUT * size, mask, RECUR)
        if PEEPS:
            o += after * _load(peep + column, mask)
        o, flat = _sigmoid(o), _tanh(after)
        tl.store(gates_here + OUTPUT * size, o, mask=mask)
        tl.store(squashed + here, flat, mask=mask)
        tl.store(h + here, o * flat, mask=mask)


@triton.jit
def _lstm_back(
    d_h, d_output, d_c, gates, c, squashed, d_x, peeps, peep, d_output_row, gates_row, size,
    INPUT: tl.constexpr, FORGET: tl.constexpr, CELL: tl.constexpr, OUTPUT: tl.constexpr,
    HAS_OUTPUT: tl.constexpr, PEEPS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here, gates_here, d_x_here = row * size + column, gates + row * gates_row + column, d_x + row * gates_row + column
    d_after = _load(d_c + here, mask)
    if PART != "cell":
        d = _d_state(d_h + here, d_output + row * d_output_row + column, mask, HAS_OUTPUT)
        o, flat = _load(gates_here + OUTPUT * size, mask), _load(squashed + here, mask)
        d_o = d * flat * (o - o * o)
        d_after += d * (o - o * flat * flat)
        if PEEPS:
            d_after += d_o * _load(peep + column, mask)
        tl.store(d_x_here + OUTPUT * size, d_o, mask=mask)
    if PART != "output":
        before = _load(c + here, mask)
        i, f = _load(gates_here + INPUT * size, mask), _load(gates_here + FORGET * size, mask)
        candidate = _load(gates_here + CELL * size, mask)
        d_i = d_after * candidate * (i - i * i)
        d_f = d_after * before * (f - f * f)
        tl.store(d_x_here + INPUT * size, d_i, mask=mask)
        tl.store(d_x_here + FORGET * size, d_f, mask=mask)
        tl.store(d_x_here + CELL * size, d_after * (i - i * candidate * candidate), mask=mask)
        d_after *= f
        if PEEPS:
            d_after += d_i * _load(peeps + column, mask) + d_f * _load(peeps + size + column, mask)
    tl.store(d_c + here, d_after, mask=mask)


Order = Tuple[int, int, int, int]
IN_ORDER = (0, 1, 2, 3)


def lstm_step(
    x: Tensor, gates: Tensor, c: Tensor, c_after: Tensor, squashed: Tensor, h: Tensor, order: Order = IN_ORDER,
    recur: bool = True, peeps: Optional[Tuple[Tensor, Tensor]] = None, part: str = "all",
) -> None:  # fmt: skip
    """One step of an LSTM from its pre-activations: S18 (10)-(15), with peepholes T16 (3)-(7).

    Args:
        x: ``[B, 4H]``.
        gates: ``[B, 4H]``, the recurrent part of the pre-activations, replaced by the gates' values.
        c: ``[B, H]``, before the step.
        c_after, squashed, h: ``[B, H]``, where c, tanh(c) and h after the step go.
        order: which blocks of x and the gates belong to input, forget, cell and output.
        recur: whether there is a recurrent part; if not, *gates* is not read.
        peeps: diagonal peepholes ``[2, H]`` (input, forget) and ``[1, H]`` (output).
        part: ``cell``, up to *c_after*, ``output``, from there on, or ``all``; between the two parts peepholes that
            are matrices add to the output gate's pre-activation.
    """
    grid, size, block = _grid(c)
    _lstm_step[grid](
        x, gates, c, c_after, squashed, h, *(peeps or (x, x)), x.stride(0), gates.stride(0), size,
        *order, recur, peeps is not None, part, block,
    )  # fmt: skip


def lstm_back(
    d_h: Tensor, d_output: Optional[Tensor], d_c: Tensor, gates: Tensor, c: Tensor, squashed: Tensor, d_x: Tensor,
    order: Order = IN_ORDER, peeps: Optional[Tuple[Tensor, Tensor]] = None, part: str = "all",
) -> None:  # fmt: skip
    """The way back through :func:`lstm_step`, up to the products with weights.

    Args:
        d_h: ``[B, H]``, the gradient of h after the step, but for what comes from the output alone.
        d_output: that, ``[B, H]``, or ``None`` for zero.
        d_c: ``[B, H]``, the gradient of c after the step, replaced by that of c before it.
        gates, c, squashed: of the way forth; c before the step.
        d_x: where the gradient of the pre-activations goes, ``[B, 4H]`` in memory as *gates*.
        order, peeps: as there.
        part: ``output``, up to *d_c* of what the output gate has not fed yet, ``cell``, from there on, or ``all``.
    """
    grid, size, block = _grid(c)
    output, output_row, has_output = _or_else(d_output, d_h)
    _lstm_back[grid](
        d_h, output, d_c, gates, c, squashed, d_x, *(peeps or (c, c)), output_row, gates.stride(0), size,
        *order, has_output, peeps is not None, part, block,
    )  # fmt: skip


# ---- ELSTM -----------------------------------------------------------------------------------------------------------


@triton.jit
def _elstm_step(
    x, gates, scale, bias, c, c_after, squashed, h, x_row, gates_row, scale_row, size,
    FORGETS: tl.constexpr, RECUR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here, x_here, gates_here = row * size + column, x + row * x_row + column, gates + row * gates_row + column
    i = _sigmoid(_sum(x_here, gates_here, mask, RECUR))
    candidate = _tanh(_sum(x_here + size, gates_here + size, mask, RECUR))
    o = _sigmoid(_sum(x_here + 2 * size, gates_here + 2 * size, mask, RECUR))
    after = _load(c + here, mask)
    if FORGETS:
        f = _sigmoid(_sum(x_here + 3 * size, gates_here + 3 * size, mask, RECUR))
        after *= f
        tl.store(gates_here + 3 * size, f, mask=mask)
    after += _load(scale + row * scale_row + column, mask) * i * candidate
    flat = _tanh(after + _load(bias + column, mask))
    tl.store(gates_here, i, mask=mask)
    tl.store(gates_here + size, candidate, mask=mask)
    tl.store(gates_here + 2 * size, o, mask=mask)
    tl.store(c_after + here, after, mask=mask)
    tl.store(squashed + here, flat, mask=mask)
    tl.store(h + here, o * flat, mask=mask)


@triton.jit
def _elstm_back(
    d_h, d_output, d_c, gates, scale, c, squashed, d_x, d_squashed, d_cell, d_output_row, gates_row, scale_row, size,
    FORGETS: tl.constexpr, HAS_OUTPUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here, gates_here, d_x_here = row * size + column, gates + row * gates_row + column, d_x + row * gates_row + column
    d = _d_state(d_h + here, d_output + row * d_output_row + column, mask, HAS_OUTPUT)
    i, candidate = _load(gates_here, mask), _load(gates_here + size, mask)
    o, flat = _load(gates_here + 2 * size, mask), _load(squashed + here, mask)
    d_flat = d * (o - o * flat * flat)
    d_after = _load(d_c + here, mask) + d_flat
    d_new = d_after * _load(scale + row * scale_row + column, mask)
    tl.store(d_squashed + here, d_flat, mask=mask)
    tl.store(d_cell + here, d_after, mask=mask)
    tl.store(d_x_here, d_new * candidate * (i - i * i), mask=mask)
    tl.store(d_x_here + size, d_new * (i - i * candidate * candidate), mask=mask)
    tl.store(d_x_here + 2 * size, d * flat * (o - o * o), mask=mask)
    if FORGETS:
        f = _load(gates_here + 3 * size, mask)
        tl.store(d_x_here + 3 * size, d_after * _load(c + here, mask) * (f - f * f), mask=mask)
        d_after *= f
    tl.store(d_c + here, d_after, mask=mask)


def elstm_step(
    x: Tensor, gates: Tensor, scale: Tensor, bias: Tensor, c: Tensor, c_after: Tensor, squashed: Tensor, h: Tensor,
    recur: bool,
) -> None:  # fmt: skip
    """One step of an ELSTM: E18 (20)-(23).

    Args:
        x, gates: ``[B, 4H]`` (input, cell, output, forget) or ``[B, 3H]`` without the last, otherwise as of
            :func:`lstm_step`.
        scale: s ``[B, H]`` or ``[1, H]``.
        bias: b ``[H]``.
        c, c_after, squashed, h, recur: as there, with tanh(c + b).
    """
    grid, size, block = _grid(c)
    _elstm_step[grid](
        x, gates, scale, bias, c, c_after, squashed, h,
        x.stride(0), gates.stride(0), scale.stride(0) if scale.size(0) > 1 else 0, size,
        x.size(1) == 4 * size, recur, block,
    )  # fmt: skip


def elstm_back(
    d_h: Tensor, d_output: Optional[Tensor], d_c: Tensor, gates: Tensor, scale: Tensor, c: Tensor, squashed: Tensor,
    d_x: Tensor, d_squashed: Tensor, d_cell: Tensor,
) -> None:  # fmt: skip
    """The way back through :func:`elstm_step`, up to the product with W; as :func:`lstm_back`.

    Args:
        d_squashed, d_cell: where the gradients of c + b and of c after the step go, ``[B, H]``.
    """
    grid, size, block = _grid(c)
    output, output_row, has_output = _or_else(d_output, d_h)
    _elstm_back[grid](
        d_h, output, d_c, gates, scale, c, squashed, d_x, d_squashed, d_cell,
        output_row, gates.stride(0), scale.stride(0) if scale.size(0) > 1 else 0, size,
        gates.size(1) == 4 * size, has_output, block,
    )  # fmt: skip


# ---- GRU -------------------------------------------------------------------------------------------------------------


@triton.jit
def _gru_gates(x, rz, h, gated, x_row, rz_row, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here, x_here, rz_here = row * size + column, x + row * x_row + column, rz + row * rz_row + column
    r = _sigmoid(_sum(x_here, rz_here, mask, True))
    z = _sigmoid(_sum(x_here + size, rz_here + size, mask, True))
    tl.store(rz_here, r, mask=mask)
    tl.store(rz_here + size, z, mask=mask)
    tl.store(gated + here, r * _load(h + here, mask), mask=mask)


@triton.jit
def _gru_blend(
    x, candidate, rz, h, after, x_row, rz_row, size,
    ACTIVATION: tl.constexpr, OF_CANDIDATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here = row * size + column
    new = _activate(_sum(x + row * x_row + column, candidate + here, mask, True), ACTIVATION)
    share, before = _load(rz + row * rz_row + size + column, mask), _load(h + here, mask)
    if not OF_CANDIDATE:
        share = 1.0 - share
    tl.store(candidate + here, new, mask=mask)
    tl.store(after + here, before + share * (new - before), mask=mask)


@triton.jit
def _gru_back(
    d_h, d_output, rz, candidate, h, d_x, d_output_row, rz_row, d_x_row, size,
    ACTIVATION: tl.constexpr, OF_CANDIDATE: tl.constexpr, HAS_OUTPUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here, d_x_here = row * size + column, d_x + row * d_x_row + column
    d = _d_state(d_h + here, d_output + row * d_output_row + column, mask, HAS_OUTPUT)
    new, z = _load(candidate + here, mask), _load(rz + row * rz_row + size + column, mask)
    d_z = d * (new - _load(h + here, mask)) * (z - z * z)
    share = z
    if not OF_CANDIDATE:
        d_z = -d_z
        share = 1.0 - z
    tl.store(d_x_here + size, d_z, mask=mask)
    tl.store(d_x_here + 2 * size, d * share * _slope(new, ACTIVATION), mask=mask)
    tl.store(d_h + here, d * (1.0 - share), mask=mask)


@triton.jit
def _gru_reset_back(d_gated, rz, h, d_h, d_x, rz_row, d_x_row, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here = row * size + column
    d, r = _load(d_gated + here, mask), _load(rz + row * rz_row + column, mask)
    tl.store(d_x + row * d_x_row + column, d * _load(h + here, mask) * (r - r * r), mask=mask)
    tl.store(d_h + here, _load(d_h + here, mask) + d * r, mask=mask)


def gru_gates(x: Tensor, rz: Tensor, h: Tensor, gated: Tensor) -> None:
    """The first half of a GRU's step, up to r ⊙ h: T16 (8)-(9).

    Args:
        x: ``[B, 2H]``, of reset and update gate.
        rz: ``[B, 2H]``, their recurrent part, replaced by their values.
        h: ``[B, H]``, before the step.
        gated: where r ⊙ h goes, ``[B, H]``.
    """
    grid, size, block = _grid(h)
    _gru_gates[grid](x, rz, h, gated, x.stride(0), rz.stride(0), size, block)


def gru_blend(
    x: Tensor, candidate: Tensor, rz: Tensor, h: Tensor, after: Tensor, activation: str, update_gate: str
) -> None:
    """The second half: T16 (10)-(11).

    Args:
        x: ``[B, H]``, of the candidate.
        candidate: ``[B, H]``, its recurrent part, replaced by its value.
        rz, h: as of :func:`gru_gates`.
        after: where h after the step goes, ``[B, H]``.
        activation, update_gate: as of :class:`~rntn_plugins.ops.gru.GRU`.
    """
    grid, size, block = _grid(h)
    of_candidate = update_gate == "candidate"
    _gru_blend[grid](
        x, candidate, rz, h, after, x.stride(0), rz.stride(0), size, activation, of_candidate, block
    )  # fmt: skip


def gru_back(
    d_h: Tensor, d_output: Optional[Tensor], rz: Tensor, candidate: Tensor, h: Tensor, d_x: Tensor, activation: str,
    update_gate: str,
) -> None:  # fmt: skip
    """The way back through :func:`gru_blend`.

    Args:
        d_h: ``[B, H]``, the gradient of h after the step, but for what comes from the output alone; replaced by what
            of it reaches h before the step itself.
        d_output: the rest, ``[B, H]``, or ``None`` for zero.
        rz, candidate, h: of the way forth.
        d_x: ``[B, 3H]``; its second and third block, of update gate and candidate, are set.
    """
    grid, size, block = _grid(h)
    output, output_row, has_output = _or_else(d_output, d_h)
    _gru_back[grid](
        d_h, output, rz, candidate, h, d_x, output_row, rz.stride(0), d_x.stride(0), size,
        activation, update_gate == "candidate", has_output, block,
    )  # fmt: skip


def gru_reset_back(d_gated: Tensor, rz: Tensor, h: Tensor, d_h: Tensor, d_x: Tensor) -> None:
    """The way back through :func:`gru_gates`, when :func:`gru_back` has gone its part.

    Args:
        d_gated: ``[B, H]``, the gradient of r ⊙ h.
        rz, h: of the way forth.
        d_h: ``[B, H]``, to which is added what comes through r ⊙ h.
        d_x: ``[B, 3H]``; its first block, of the reset gate, is set.
    """
    grid, size, block = _grid(h)
    _gru_reset_back[grid](d_gated, rz, h, d_h, d_x, rz.stride(0), d_x.stride(0), size, block)


# ---- activations -----------------------------------------------------------------------------------------------------


@triton.jit
def _activation(
    x, sums, out, x_row, size, KEEP_SUMS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here = row * size + column
    value = _sum(x + row * x_row + column, sums + here, mask, True)
    if KEEP_SUMS:
        tl.store(sums + here, value, mask=mask)
    tl.store(out + here, _activate(value, ACTIVATION), mask=mask)


@triton.jit
def _activation_back(
    d_h, d_output, value, d_x, d_output_row, size,
    LINEAR: tl.constexpr, HAS_OUTPUT: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    here = row * size + column
    slope = _slope(_load(value + here, mask), ACTIVATION)
    if LINEAR:
        d = _load(d_h + here, mask)
        if HAS_OUTPUT:
            d += _load(d_output + row * d_output_row + column, mask) * slope
    else:
        d = _d_state(d_h + here, d_output + row * d_output_row + column, mask, HAS_OUTPUT) * slope
    tl.store(d_x + here, d, mask=mask)


def activation(x: Tensor, sums: Tensor, out: Tensor, name: str, keep_sums: bool = False) -> None:
    """f(x + sums), all ``[B, H]``, into *out*, which may be *sums*; with *keep_sums*, x + sums into *sums*."""
    grid, size, block = _grid(out)
    _activation[grid](x, sums, out, x.stride(0), size, keep_sums, name, block)


def activation_back(
    d_h: Tensor, d_output: Optional[Tensor], value: Tensor, d_x: Tensor, name: str, linear: bool = False
) -> None:
    """The way back through :func:`activation`: (d_h + d_output) f', all ``[B, H]``, into *d_x*.

    Args:
        d_h: the gradient of f's *value*, but for what comes from the output alone; of the sums, if *linear*.
        d_output: the rest, always of *value*; or ``None`` for zero.
    """
    grid, size, block = _grid(value)
    output, output_row, has_output = _or_else(d_output, d_h)
    _activation_back[grid](d_h, output, value, d_x, output_row, size, linear, has_output, name, block)


# ---- a shared matrix and a few rows ----------------------------------------------------------------------------------


@triton.jit
def _few_rows_times(
    x, matrix, other, out, rows, size, depth, x_row, line_stride, column_stride, other_row, out_row,
    ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    sums = tl.zeros([ROWS, COLUMNS, DEEP], dtype=wide)
    for start in range(0, depth, DEEP):
        line = start + tl.arange(0, DEEP)
        within = (line < depth)[None, :]
        left = _load(x + row[:, None] * x_row + line[None, :], (row < rows)[:, None] & within)
        at_matrix = matrix + column[:, None] * column_stride + line[None, :] * line_stride
        right = _load(at_matrix, (column < size)[:, None] & within)
        sums += left[:, None, :] * right[None, :, :]
    total = tl.sum(sums, 2)
    mask = (row < rows)[:, None] & (column < size)[None, :]
    if ADD:
        total += _load(other + row[:, None] * other_row + column[None, :], mask)
    tl.store(out + row[:, None] * out_row + column[None, :], total, mask=mask)


def few_rows_times(x: Tensor, matrix: Tensor, out: Tensor, other: Optional[Tensor] = None) -> None:
    """x M + other, into *out*. Every program reads all of some rows of x and of some columns of M.

    Args:
        x: ``[B, K]``.
        matrix: M ``[K, N]``, which may lie turned.
        out: ``[B, N]``, not *x*.
        other: ``[B, N]``, may be *out*; ``None``: zero.
    """
    (rows, depth), size = x.shape, matrix.size(1)
    deep = min(DEEP, 1 << (depth - 1).bit_length())
    other, other_row, add = _or_else(other, out)
    _few_rows_times[(-(-size // COLUMNS), -(-rows // ROWS))](
        x, matrix, other, out, rows, size, depth, x.stride(0), *matrix.stride(), other_row, out.stride(0),
        add, ROWS, COLUMNS, deep,
    )  # fmt: skip


# ---- a matrix for every row ------------------------------------------------------------------------------------------


@triton.jit
def _matrices_times(
    stack, index, vectors, x, bias, out, vectors_row, x_row, out_row, size,
    HAS_X: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, LINES: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(index + row).to(tl.int64)
    line = tl.program_id(1) * LINES + tl.arange(0, LINES)
    mask = line < size
    wide = tl.float64 if stack.dtype.element_ty == tl.float64 else tl.float32
    sums = tl.zeros([LINES, ALONG], dtype=wide)
    for start in range(0, size, ALONG):
        column = start + tl.arange(0, ALONG)
        vector = _load(vectors + row * vectors_row + column, column < size)
        part = stack + number * size * size + line[:, None] * size + column[None, :]
        sums += _load(part, mask[:, None] & (column < size)[None, :]) * vector[None, :]
    total = tl.sum(sums, 1)
    if HAS_X:
        total += _load(x + row * x_row + line, mask)
    if HAS_BIAS:
        total += _load(bias + number * size + line, mask)
    tl.store(out + row * out_row + line, _activate(total, ACTIVATION), mask=mask)


@triton.jit
def _transposed_times(
    stack, index, vectors, d_output, values, products, out, vectors_row, d_output_row, out_row, size,
    ADD: tl.constexpr, HAS_OUTPUT: tl.constexpr, ACTIVATION: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(index + row).to(tl.int64)
    column = tl.program_id(1) * ACROSS + tl.arange(0, ACROSS)
    mask = column < size
    wide = tl.float64 if stack.dtype.element_ty == tl.float64 else tl.float32
    sums = tl.zeros([DOWN, ACROSS], dtype=wide)
    for start in range(0, size, DOWN):
        line = start + tl.arange(0, DOWN)
        within = line < size
        at_output = d_output + row * d_output_row + line
        vector = _d_state(vectors + row * vectors_row + line, at_output, within, HAS_OUTPUT)
        if ACTIVATION is not None:
            here = row * size + line
            vector *= _slope(_load(values + here, within), ACTIVATION)
            if tl.program_id(1) == 0:
                tl.store(products + here, vector, mask=within)
        part = stack + number * size * size + line[:, None] * size + column[None, :]
        sums += _load(part, within[:, None] & mask[None, :]) * vector[:, None]
    total = tl.sum(sums, 0)
    if ADD:
        total += _load(out + row * out_row + column, mask)
    tl.store(out + row * out_row + column, total, mask=mask)


def matrices_times(
    stack: Tensor, index: Tensor, vectors: Tensor, out: Tensor, x: Optional[Tensor] = None,
    bias: Optional[Tensor] = None, activation: Optional[str] = None,
) -> None:  # fmt: skip
    """f(x + U_k h + b_k) for every row, with k = index[b]: S18 (4). The stack is read where it lies.

    Args:
        stack: U ``[K, H, H]``, without gaps.
        index: ``[B]``, likewise.
        vectors: h ``[B, H]``.
        out: ``[B, H]``, not *vectors*.
        x: ``[B, H]``, may be *out*; ``None``: zero.
        bias: b ``[K, H]``, without gaps; ``None``: zero.
        activation: name of f; ``None``: none.
    """
    rows, size = vectors.shape
    lines, along = (min(most, 1 << (size - 1).bit_length()) for most in (LINES, ALONG))
    x, x_row, has_x = _or_else(x, out)
    _matrices_times[(rows, -(-size // lines))](
        stack, index, vectors, x, stack if bias is None else bias, out, vectors.stride(0), x_row, out.stride(0), size,
        has_x, bias is not None, activation, lines, along,
    )  # fmt: skip


def transposed_times(stack: Tensor, index: Tensor, vectors: Tensor, out: Tensor, add: bool = False) -> None:
    """U_kᵀ d for every row; arguments as of :func:`matrices_times`.

    Args:
        add: add to *out*.
    """
    grid, size, blocks = _transposed_grid(vectors)
    _transposed_times[grid](
        stack, index, vectors, vectors, vectors, vectors, out, vectors.stride(0), 0, out.stride(0), size,
        add, False, None, *blocks,
    )  # fmt: skip


def transposed_activation_back(
    stack: Tensor, index: Tensor, d_h: Tensor, d_output: Optional[Tensor], value: Tensor, d_x: Tensor, out: Tensor,
    name: str,
) -> None:  # fmt: skip
    """The way back through :func:`matrices_times` with an activation: d_x = (d_h + d_output) f', and U_kᵀ d_x into
    *out*, which must not be *d_h*; the rest as of :func:`activation_back`."""
    grid, size, blocks = _transposed_grid(value)
    output, output_row, has_output = _or_else(d_output, d_h)
    _transposed_times[grid](
        stack, index, d_h, output, value, d_x, out, d_h.stride(0), output_row, out.stride(0), size,
        False, has_output, name, *blocks,
    )  # fmt: skip


def _transposed_grid(like: Tensor) -> Tuple[Tuple[int, int], int, Tuple[int, int]]:
    rows, size = like.shape
    down, across = (min(most, 1 << (size - 1).bit_length()) for most in (DOWN, ACROSS))
    return (rows, -(-size // across)), size, (down, across)
