"""Fused GRU and LSTM with matrices that depend on the symbol.

The recurrent weights of their gates come in pieces, in the order of the gates: for G neighbouring gates that all
symbols share, one matrix ``[G·H, H]``; for a per-symbol gate its stack ``[K, H, H]`` and its biases ``[K, H]``. The
biases of shared gates are part of x.
"""

from __future__ import annotations

from typing import Iterator, List, Sequence

import torch
from torch import Tensor

from rntn_plugins.ops.gru import blend, factors
from rntn_plugins.ops.indexed import Occurrences, RowMatrices, at_index
from rntn_plugins.ops.products import Factor, product
from rntn_plugins.ops.recurrence import Kernel, every_state, every_step, flat, output_state, steps_of, turns


class Shared:
    """Neighbouring gates whose matrix W ``[G·H, H]`` is the same for all symbols."""

    def __init__(self, weight: Tensor, back: bool, rows: int) -> None:
        self.factor, self.width = Factor(weight if back else weight.t(), rows), weight.size(0)

    def inputs(self, x: Tensor, index: Tensor) -> Tensor:
        return x

    def times(self, t: int, h: Tensor, x: Tensor, out: Tensor) -> None:
        self.factor.times_plus(h, x, out=out)

    def back(self, t: int, d: Tensor, d_h: Tensor) -> None:
        self.factor.times_plus(d, d_h, out=d_h)

    def gradients(self, d: Tensor, h: Tensor, occurrences: Occurrences) -> List[Tensor]:
        return [product(d.t(), h)]


class PerSymbol:
    """A gate whose matrix and bias are of a stack U ``[K, H, H]`` and of b ``[K, H]``."""

    def __init__(self, stack: Tensor, bias: Tensor, matrices: RowMatrices) -> None:
        self.stack, self.bias, self.matrices, self.width = stack, bias, matrices, stack.size(1)

    def inputs(self, x: Tensor, index: Tensor) -> Tensor:
        return x + at_index(self.bias, index)

    def times(self, t: int, h: Tensor, x: Tensor, out: Tensor) -> None:
        self.matrices.times(t, self.stack, h, x, out)

    def back(self, t: int, d: Tensor, d_h: Tensor) -> None:
        d_h.add_(self.matrices.transposed_times(t, self.stack, d))

    def gradients(self, d: Tensor, h: Tensor, occurrences: Occurrences) -> List[Tensor]:
        return [occurrences.of_matrices(d, h), occurrences.of_rows(d)]


def pieces(tensors: Sequence[Tensor], index: Tensor, back: bool) -> Iterator[Shared | PerSymbol]:
    """The pieces of all gates of a kernel (see above), for the way forth or *back*."""
    rest, matrices = list(tensors), None
    while rest:
        weight = rest.pop(0)
        if weight.dim() == 2:
            yield Shared(weight, back, index.size(1))
        else:
            matrices = matrices or RowMatrices(index, weight)
            yield PerSymbol(weight, rest.pop(0), matrices)


class Gates:
    """The recurrent part of gates that see the same vector h.

    Args:
        pieces: their weights.
    """

    def __init__(self, pieces: Sequence[Shared | PerSymbol]) -> None:
        self.pieces = pieces
        self.widths = [piece.width for piece in pieces]

    def start(self, x: Tensor, index: Tensor, out: Tensor) -> None:
        """*out* ``[T, B, G·H]`` will be x plus the recurrent part."""
        parts = zip(self.pieces, x.split(self.widths, -1), out.split(self.widths, -1))
        self.each = [
            list(zip(piece.inputs(x_part, index).unbind(0), out_part.unbind(0))) for piece, x_part, out_part in parts
        ]

    def step(self, t: int, h: Tensor) -> None:
        for piece, each in zip(self.pieces, self.each):
            piece.times(t, h, *each[t])

    def start_back(self, d: Tensor) -> None:
        """*d* ``[T, B, G·H]`` will be the gradient of *out*."""
        self.d = d.split(self.widths, -1)
        self.each = [part.unbind(0) for part in self.d]

    def back(self, t: int, d_h: Tensor) -> None:
        """Add to the gradient of h."""
        for piece, each in zip(self.pieces, self.each):
            piece.back(t, each[t], d_h)

    def gradients(self, h: Tensor, occurrences: Occurrences) -> List[Tensor]:
        """The gradients of the weights, when the loop is done; h ``[T, B, H]``."""
        found = (piece.gradients(flat(d), flat(h), occurrences) for piece, d in zip(self.pieces, self.d))
        return [gradient for each in found for gradient in each]


def occurrences(kernel: Kernel) -> Occurrences:
    count = next(tensor.size(0) for tensor in kernel.inputs[2:] if tensor.dim() == 3)
    return Occurrences(kernel.inputs[1], count, kernel.sparse)


class RestrictedGRU(Kernel):
    """The GRU with the reset gate before the matrix: S18 (6)-(9).

    Args:
        update_gate: as of :class:`~rntn_plugins.ops.gru.GRU`.
        sparse: whether the gradients of stacks and their biases are sparse tensors.

    Inputs: x ``[T, B, 3H]`` (reset, update, candidate), index ``[T, B]``, the pieces of the gates in that order, none
    of them both update's and candidate's. Carry: h.
    """

    saved = ("hs", "rz", "gated", "candidates")

    def __init__(self, update_gate: str, sparse: bool) -> None:
        self.update_gate, self.sparse = update_gate, sparse

    def recurrent(self, back: bool) -> None:
        *gates, candidate = pieces(self.inputs[2:], self.inputs[1], back)
        self.gates, self.candidate = Gates(gates), Gates([candidate])

    def start(self, carry, keep):
        x, index = self.inputs[:2]
        batch, size = carry[0].shape
        self.hs = output_state(self, carry[0])
        self.states = (steps_of(self.hs),)
        self.rz = every_step(self, keep, batch, 2 * size)
        self.gated = every_step(self, keep, batch, size)
        self.candidates = every_step(self, keep, batch, size)
        self.recurrent(back=False)
        self.gates.start(x[..., : 2 * size], index, self.rz)
        self.candidate.start(x[..., 2 * size :], index, self.candidates)
        parts = (self.rz, *self.rz.chunk(2, dim=-1), self.gated, self.candidates)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def step(self, t):
        h, after = self.states[0][t], self.states[0][t + 1]
        rz, r, z, gated, candidate = self.each[t]
        self.gates.step(t, h)
        rz.sigmoid_()
        self.candidate.step(t, torch.mul(r, h, out=gated))
        candidate.tanh_()
        blend(h, candidate, z, self.update_gate, after)

    def start_gradients(self):
        """Buffers of the backward pass, handed to the gates; returns the states before each step ``[T, B, H]``."""
        before = self.hs[:-1]
        size = before.size(-1)
        self.d_x = before.new_empty(*before.shape[:-1], 3 * size)
        self.recurrent(back=True)
        self.gates.start_back(self.d_x[..., : 2 * size])
        self.candidate.start_back(self.d_x[..., 2 * size :])
        self.d_gated = before.new_empty(before.shape[1:])
        return before

    def start_back(self):
        before = self.start_gradients()
        size = before.size(-1)
        to_before = factors(before, self.rz, self.candidates, "tanh", self.update_gate, out=self.d_x)
        parts = (*self.d_x.chunk(3, dim=-1), self.rz[..., :size], to_before)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def back(self, t, d_states, d_output):
        d_h, d_gated = d_states[0], self.d_gated
        d_r, d_z, d_c, r, to_before = self.each[t]
        d_c.mul_(d_h)
        d_z.mul_(d_h)
        self.candidate.back(t, d_gated.zero_())
        d_r.mul_(d_gated)
        self.gates.back(t, d_h.mul_(to_before).addcmul_(d_gated, r))

    def finish(self):
        found = occurrences(self)
        gates, candidate = self.gates.gradients(self.hs[:-1], found), self.candidate.gradients(self.gated, found)
        return self.d_x, None, *gates, *candidate


class RestrictedLSTM(Kernel):
    """The LSTM without peepholes: S18 (10)-(15).

    Args:
        sparse: whether the gradients of stacks and their biases are sparse tensors.

    Inputs: x ``[T, B, 4H]`` (input, forget, output, cell), index ``[T, B]``, the pieces of the gates in that order.
    Carry: h, c.
    """

    saved = ("hs", "cs", "pre", "squashed")

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def recurrent(self, back: bool) -> None:
        self.gates = Gates(list(pieces(self.inputs[2:], self.inputs[1], back)))

    def start(self, carry, keep):
        x, index = self.inputs[:2]
        batch, size = carry[0].shape
        self.hs = output_state(self, carry[0])
        self.cs = every_state(self, carry[1], keep)
        self.states = (steps_of(self.hs), turns(self.cs, self.steps))
        self.pre = every_step(self, keep, batch, 4 * size)
        self.squashed = every_step(self, keep, batch, size)  # tanh(c_t)
        self.recurrent(back=False)
        self.gates.start(x, index, self.pre)
        parts = (self.pre[..., : 3 * size], *self.pre.chunk(4, dim=-1), self.squashed)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def step(self, t):
        (h, c), (h_after, c_after) = ((state[t] for state in self.states), (state[t + 1] for state in self.states))
        i_f_o, i, f, o, candidate, squashed = self.each[t]
        self.gates.step(t, h)
        i_f_o.sigmoid_()
        candidate.tanh_()
        torch.mul(f, c, out=c_after).addcmul_(i, candidate)
        torch.tanh(c_after, out=squashed)
        torch.mul(o, squashed, out=h_after)

    def start_back(self):
        i, f, o, candidate = self.pre.chunk(4, dim=-1)
        # until the loop comes by: slopes of each gate's pre-activation, as factors of d_c (of d_h for o)
        self.d_x = torch.empty_like(self.pre)
        to_i, to_f, to_o, to_c = self.d_x.chunk(4, dim=-1)
        torch.mul(candidate, i, out=to_i).addcmul_(to_i, i, value=-1)
        torch.mul(self.cs[:-1], f, out=to_f).addcmul_(to_f, f, value=-1)
        torch.mul(self.squashed, o, out=to_o).addcmul_(to_o, o, value=-1)
        torch.addcmul(i, i, candidate * candidate, value=-1, out=to_c)
        to_cell = torch.addcmul(o, o, self.squashed * self.squashed, value=-1)
        self.recurrent(back=True)
        self.gates.start_back(self.d_x)
        size = self.cs.size(-1)
        parts = (self.d_x[..., : 2 * size].unflatten(-1, (2, size)), to_o, to_c, to_cell, f)
        self.each = list(zip(*(part.unbind(0) for part in parts)))

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        d_i_f, d_o, d_candidate, to_cell, f = self.each[t]
        d_o.mul_(d_h)
        d_c.addcmul_(d_h, to_cell)
        d_i_f.mul_(d_c.unsqueeze(1))
        d_candidate.mul_(d_c)
        d_c.mul_(f)
        self.gates.back(t, d_h.zero_())

    def finish(self):
        return self.d_x, None, *self.gates.gradients(self.hs[:-1], occurrences(self))
