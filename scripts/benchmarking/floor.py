"""Counted work of a layer: floating point operations and bytes of a forward and backward pass.

The floor is the least time that they can take, at the rates of GEMM and copy that scripts/benchmark.py measures: of
GEMM with whichever of torch's libraries is the faster here (on a CPU its BLAS or oneDNN), whatever ours computes with.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Callable, Dict, NamedTuple, Optional, Tuple


class Work(NamedTuple):
    """What a layer needs for one row (one step of one sequence), and its parameters.

    Attributes:
        products: multiply-adds of the forward pass: m·n for every matrix [m, n] that the row is multiplied with.
        shared: parameters that all rows use.
        table: parameters of one entry of the token-indexed tables (a matrix and its bias, or a factor vector).
        kept: numbers, beside inputs and outputs, that the backward pass needs of the forward pass.
    """

    products: float
    shared: float
    table: float = 0
    kept: float = 0


def elman(s) -> Work:
    """W_in x (unless the input is added as it is) and W_h h."""
    matrices = s.h * s.h + (0 if s.identity_input else s.h * s.i)
    return Work(matrices, matrices + s.h)


def srn(s) -> Work:
    matrices = s.h * (s.i + s.h)
    return Work(matrices, matrices + s.h, kept=s.h)


def gru(s) -> Work:
    """r, z and the candidate, each from x and h."""
    matrices = 3 * s.h * (s.i + s.h)
    return Work(matrices, matrices + 3 * s.h, kept=3 * s.h)


def lstm(s) -> Work:
    """Three gates and the candidate, from x and (unless gate_input=x) h; they and c are kept."""
    matrices = 4 * s.h * (s.i + (s.h if s.gate_input == "xh" else 0))
    return Work(matrices, matrices + 4 * s.h, kept=5 * s.h)


def lstm_peephole(s) -> Work:
    """The LSTM and three peepholes from c, full or diagonal."""
    peepholes = 3 * s.h * (s.h if s.peephole == "full" else 1)
    matrices = 4 * s.h * (s.i + s.h) + peepholes
    return Work(matrices, matrices + 4 * s.h, kept=5 * s.h)


def with_tensor(base: Callable) -> Callable:
    """A base cell and left · W_tsr [left, right, H] · right: I·J·H products for the slices, J·H for their sum."""

    def work(s) -> Work:
        full = getattr(s, "form", "asymmetric") == "full"
        left, right = (s.i + s.h, s.i + s.h) if full else (s.i, s.h)
        tensor, cell = left * right * s.h, base(s)
        return cell._replace(products=cell.products + tensor + right * s.h, shared=cell.shared + tensor)

    return work


def rntn(s) -> Work:
    """W_in x and a matrix of its own for every row."""
    inputs = 0 if s.identity_input else s.h * s.i
    return Work(inputs + s.h * s.h, inputs, table=s.h * s.h + s.h)


def m_rnn(s) -> Work:
    """W_in x, U_rh h [F] and U_lh [H, F]; U_rh h is kept."""
    factor = s.factor_size or s.h
    matrices = (0 if s.identity_input else s.h * s.i) + 2 * factor * s.h
    return Work(matrices, matrices + s.h, table=factor, kept=factor)


def restricted(base: Callable) -> Callable:
    """A gated cell, P of whose gates have a recurrent matrix and bias per symbol."""

    def work(s) -> Work:
        s.gate_input = "xh"
        cell, per_symbol = base(s), len(s.indexed_gates.split(",")) * (s.h * s.h + s.h)
        return cell._replace(shared=cell.shared - per_symbol, table=per_symbol)

    return work


def elstm(gates: int) -> Callable:
    """All gates from x and h, s_t for every position in use, and the output bias; gates and c are kept."""

    def work(s) -> Work:
        matrices = gates * s.h * (s.i + (s.h if s.gate_input == "xh" else 0))
        return Work(matrices, matrices + (gates + 1 + min(s.t, s.positions)) * s.h, kept=(gates + 1) * s.h)

    return work


def hornn(s) -> Work:
    """W_in x and N recurrent matrices."""
    matrices = s.h * (s.i + s.order * s.h)
    return Work(matrices, matrices + s.h)


def hornn_max(s) -> Work:
    """As the HORNN; which path was the largest is kept."""
    return hornn(s)._replace(kept=s.h)


def hornn_gated(s) -> Work:
    """As the HORNN, and for each of N gates a matrix for x and one for h; gates and paths are kept."""
    matrices = s.h * (s.i + s.order * s.h) + s.order * s.h * (s.i + s.h)
    return Work(matrices, matrices + (1 + s.order) * s.h, kept=2 * s.order * s.h)


def clockwork(s) -> Work:
    """Every module reads x, itself and slower modules, at its own ticks only."""
    periods = [int(period) for period in s.periods.split(",")]
    products = shared = offset = 0.0
    for number, period in enumerate(periods):
        size = s.h // len(periods) + (number < s.h % len(periods))
        block = size * (s.i + s.h - offset)
        products, shared, offset = products + block * math.ceil(s.t / period) / s.t, shared + block, offset + size
    return Work(products, shared + s.h)


FAMILIES: Dict[str, Callable] = {
    "elman": elman, "srn": srn, "gru": gru, "lstm": lstm, "lstm_peephole": lstm_peephole,
    "gru_rntn": with_tensor(gru), "lstm_rntn": with_tensor(lstm_peephole),
    "rntn": rntn, "r_rntn": rntn, "m_rnn": m_rnn, "r_gru": restricted(gru), "r_lstm": restricted(lstm),
    "elstm1": elstm(4), "elstm2": elstm(3), "clockwork": clockwork,
    "hornn": hornn, "hornn_max": hornn_max, "hornn_fofe": hornn, "hornn_gated": hornn_gated,
}  # fmt: skip


def layer_work(spec: dict) -> Optional[Work]:
    """The work of a layer at the sizes of a measurement; ``None`` for a cell whose family is not known here."""
    family = FAMILIES.get(spec["cell"])
    sizes = SimpleNamespace(i=spec["input"], h=spec["hidden"], t=spec["steps"], **spec["options"])
    return family(sizes) if family else None


def counted(spec: dict, distinct: int) -> Optional[Tuple[float, float]]:
    """Floating point operations and bytes of one forward and backward pass over T·B rows in float32.

    Operations: each product costs a multiplication and an addition, once forward and twice backward (gradient of what
    the matrix was multiplied with, and of the matrix): ``6 · T·B · products``.

    Bytes that have to move at least once each: parameters in use read and their gradients written (of a table only the
    *distinct* entries that occur), inputs read and their gradients written, outputs written and their gradients read,
    kept numbers written and read: ``4 · 2 · (shared + distinct · table + T·B · (I + H + kept))``.
    """
    work, rows = layer_work(spec), spec["steps"] * spec["batch"]
    if work is None:
        return None
    numbers = work.shared + distinct * work.table + rows * (spec["input"] + spec["hidden"] + work.kept)
    return 6.0 * rows * work.products, 8.0 * numbers
