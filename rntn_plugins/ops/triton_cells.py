"""Twins of fused kernels whose steps take Triton's kernels in place of chains of small operations.

A twin computes what its parent does, keeps what its parent keeps and finishes as its parent does; the steps differ.
What these launch, a product with a shared matrix being one, is counted in the docstrings: ``way forth + way back``.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Type, Union

import torch
from torch import Tensor

from rntn_plugins.ops import bilinear, elman, elstm, gru, gru_rntn, lstm, lstm_peephole, restricted_gated, rntn
from rntn_plugins.ops import triton_kernels as kernels
from rntn_plugins.ops.indexed import at_index
from rntn_plugins.ops.products import Factor, rounds_on_gpu
from rntn_plugins.ops.recurrence import Kernel, is_recorded, output_state, steps_of

#: rows of a step for which Triton's product is quicker than cuBLAS's (measured in float32), at most
FEW_ROWS = 16
#: the same where both sides of the matrix are multiples of 16: several numbers are then read at a time
FEW_EVEN_ROWS = 20
#: numbers of the matrix, at most
FEW_NUMBERS = 2**20


def dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied if its columns are not next to each other in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def every(*buffers: Tensor) -> List[tuple]:
    """For every step its part of each buffer ``[T, ...]``."""
    return list(zip(*(buffer.unbind(0) for buffer in buffers)))


class FewRows(Factor):
    """As its parent; products of a few rows by Triton within recordings, where it is quicker than cuBLAS and its start
    from Python costs nothing.

    Not where torch was told to round such products to TensorFloat32 or less, nor in half precision: cuBLAS has quicker
    ones there.
    """

    def __init__(self, matrix: Tensor, rows: int, scale: float = 1.0) -> None:
        super().__init__(matrix, rows, scale)
        exact = matrix.dtype == torch.float64 or (matrix.dtype == torch.float32 and not rounds_on_gpu())
        most = FEW_ROWS if any(side % 16 for side in matrix.shape) else FEW_EVEN_ROWS
        small = rows <= most and matrix.numel() <= FEW_NUMBERS
        self.few = is_recorded() and small and 1 in matrix.stride() and exact and scale == 1

    def times(self, x: Tensor, out: Tensor) -> Tensor:
        if not self.few:
            return super().times(x, out)
        kernels.few_rows_times(x, self.matrix, out)
        return out

    def times_plus(self, x: Tensor, other: Tensor, out: Tensor) -> Tensor:
        if not self.few:
            return super().times_plus(x, other, out)
        kernels.few_rows_times(x, self.matrix, out, other)
        return out


class Twin(Kernel):
    """What all twins share: they run on their tensors' device, on memory laid out as the kernels ask for."""

    adds_d_output = True
    factor_class = FewRows

    def forward(self, carry, ragged, keep):
        x, *others = self.inputs
        self.inputs = (dense_rows(x), *others)
        with torch.cuda.device_of(x):
            return super().forward(carry, ragged, keep)

    def backward(self, d_outputs, d_final, ragged):
        d_outputs = None if d_outputs is None else dense_rows(d_outputs)
        with torch.cuda.device_of(d_final[0]):
            return super().backward(d_outputs, [d.contiguous() for d in d_final], ragged)


# ---- LSTM ------------------------------------------------------------------------------------------------------------


class LSTM(Twin, lstm.LSTM):
    """2 + 2 launches a step; 1 + 1 where the gates do not see h."""

    def step(self, t):
        (h, c), (h_after, c_after) = ((state[t] for state in self.states), (state[t + 1] for state in self.states))
        x, gates, *_, squashed = self.each[t]
        if self.recur is not None:
            self.recur.times(h, out=gates)
        kernels.lstm_step(x, gates, c, c_after, squashed, h_after, recur=self.recur is not None)

    def start_back(self):
        self.d_x = torch.empty_like(self.gates)
        self.each = every(self.gates, self.cs[:-1], self.squashed, self.d_x)
        self.recur = self.factor_class(self.inputs[1], self.d_x.size(1)) if len(self.inputs) > 1 else None
        self.zeros = torch.zeros_like(self.squashed[0])

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        gates, c, squashed, d_x = self.each[t]
        kernels.lstm_back(d_h, d_output, d_c, gates, c, squashed, d_x)
        if self.recur is not None:
            self.recur.times(d_x, out=d_h)
        else:
            d_states[0] = self.zeros


class PeepholeLSTM(Twin, lstm_peephole.PeepholeLSTM):
    """2 + 2 launches a step with diagonal peepholes, 5 + 5 with full ones."""

    def step(self, t):
        h, c = (state[t] for state in self.states)
        h_after, c_after = (state[t + 1] for state in self.states)
        x, gates, i_f, _, _, candidate, o, squashed = self.each[t]
        self.recur.times(h, out=gates)
        self.candidate_part(t, h, candidate)
        if not self.full:
            kernels.lstm_step(x, gates, c, c_after, squashed, h_after, peeps=self.inputs[2:4])
            return
        self.peeps[0].times_plus(c, i_f, out=i_f)
        kernels.lstm_step(x, gates, c, c_after, squashed, h_after, part="cell")
        self.peeps[1].times_plus(c_after, o, out=o)
        kernels.lstm_step(x, gates, c, c_after, squashed, h_after, part="output")

    def start_back(self):
        self.d_x = torch.empty_like(self.gates)
        size = self.squashed.size(-1)
        self.each = every(
            self.gates, self.cs[:-1], self.squashed, self.d_x, self.d_x[..., : 2 * size], *self.d_x.chunk(4, dim=-1)[2:]
        )
        self.recur, *self.peeps = (
            self.factor_class(weight, self.d_x.size(1)) for weight in self.inputs[1 : 4 if self.full else 2]
        )  # fmt: skip

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        gates, c, squashed, d_x, d_if, d_candidate, d_o = self.each[t]
        given = (d_h, d_output, d_c, gates, c, squashed, d_x)
        if self.full:
            kernels.lstm_back(*given, part="output")
            self.peeps[1].times_plus(d_o, d_c, out=d_c)
            kernels.lstm_back(*given, part="cell")
            self.peeps[0].times_plus(d_if, d_c, out=d_c)
        else:
            kernels.lstm_back(*given, peeps=self.inputs[2:4])
        self.recur.times(d_x, out=d_h)
        self.candidate_back(t, d_candidate, d_h)


class LSTMRNTN(lstm_peephole.LSTMRNTN, PeepholeLSTM):
    """Those of :class:`PeepholeLSTM` and of the tensor product: 2 + 3 launches by state, 1 + 1 by input or row."""

    def made_product(self, keep):
        return in_place(super().made_product(keep))


class ELSTM(Twin, elstm.ELSTM):
    """2 + 2 launches a step; 1 + 1 where the gates do not see h."""

    def start(self, carry, keep):
        x, scale, bias, *weight = self.inputs
        self.inputs = (x, dense_rows(scale), dense_rows(bias), *weight)
        super().start(carry, keep)

    def step(self, t):
        (h, c), (h_after, c_after) = ((state[t] for state in self.states), (state[t + 1] for state in self.states))
        x, scale, gates, *_, squashed = self.each[t]
        if self.recur is not None:
            self.recur.times(h, out=gates)
        kernels.elstm_step(x, gates, scale, self.bias, c, c_after, squashed, h_after, self.recur is not None)

    def start_back(self):
        self.d_squashed, self.d_cs = torch.empty_like(self.squashed), torch.empty_like(self.squashed)
        self.d_x = torch.empty_like(self.gates)
        scale = dense_rows(self.inputs[1])
        self.each = every(self.gates, scale, self.cs[:-1], self.squashed, self.d_x, self.d_squashed, self.d_cs)
        self.recur = self.factor_class(self.inputs[3], self.d_x.size(1)) if len(self.inputs) > 3 else None
        self.zeros = torch.zeros_like(self.squashed[0])

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        gates, scale, c, squashed, d_x, d_squashed, d_cell = self.each[t]
        kernels.elstm_back(d_h, d_output, d_c, gates, scale, c, squashed, d_x, d_squashed, d_cell)
        if self.recur is not None:
            self.recur.times(d_x, out=d_h)
        else:
            d_states[0] = self.zeros


# ---- GRU -------------------------------------------------------------------------------------------------------------


class GRU(Twin, gru.GRU):
    """4 + 4 launches a step."""

    def step(self, t):
        h, after = self.states[0][t], self.states[0][t + 1]
        x_rz, x_h, rz, _, _, gated, candidate = self.each[t]
        self.to_gates.times(h, out=rz)
        kernels.gru_gates(x_rz, rz, h, gated)
        self.candidate_part(t, x_h, gated, candidate)
        kernels.gru_blend(x_h, candidate, rz, h, after, self.activation, self.update_gate)

    def candidate_part(self, t, x, gated, out):
        """The candidate's pre-activation but for x, into *out*."""
        return self.to_candidate.times(gated, out=out)

    def start_back(self):
        before = self.hs[:-1]
        size = before.size(-1)
        self.d_x = before.new_empty(*before.shape[:-1], 3 * size)
        d_rz, d_candidate = self.d_x.split([2 * size, size], dim=-1)
        self.each = every(before, self.rz, self.candidates, self.d_x, d_rz, d_candidate)
        self.d_gated = before.new_empty(before.shape[1:])
        self.of_gates, self.of_candidate = (self.factor_class(weight, before.size(1)) for weight in self.inputs[1:3])

    def back(self, t, d_states, d_output):
        d_h = d_states[0]
        h, rz, candidate, d_x, d_rz, d_candidate = self.each[t]
        kernels.gru_back(d_h, d_output, rz, candidate, h, d_x, self.activation, self.update_gate)
        d_gated = self.candidate_back(t, d_candidate)
        kernels.gru_reset_back(d_gated, rz, h, d_h, d_x)
        self.of_gates.times_plus(d_rz, d_h, out=d_h)


class GRURNTN(gru_rntn.GRURNTN, GRU):
    """Those of :class:`GRU` and of the tensor product, as for :class:`LSTMRNTN`."""

    def sides(self, keep):
        super().sides(keep)
        self.product = in_place(self.product)


# ---- matrices of symbols ---------------------------------------------------------------------------------------------


class ByInput(bilinear.ByInput):
    """The products with a matrix for every distinct input; 1 + 1 launches a step."""

    def start_back(self, kernel):
        self.slices, self.numbers = kernel.slices.contiguous(), self.index.contiguous().unbind(0)

    def add(self, t, h, out):
        kernels.transposed_times(self.slices, self.numbers[t], h, out, add=True)

    def back(self, t, h, d_out, d_h):
        kernels.matrices_times(self.slices, self.numbers[t], d_out, d_h, x=d_h)


class ByRow(bilinear.ByRow):
    """The products with a matrix for every row; 1 + 1 launches a step."""

    def start(self, kernel, keep):
        super().start(kernel, keep)
        self.every_row = torch.arange(self.x.size(1), device=self.x.device)

    def add(self, t, h, out):
        kernels.transposed_times(self.at(t), self.every_row, h, out, add=True)

    def start_back(self, kernel):
        super().start_back(kernel)
        self.every_row = torch.arange(self.x.size(1), device=self.x.device)

    def back(self, t, h, d_out, d_h):
        kernels.matrices_times(self.slices[t], self.every_row, d_out, d_h, x=d_h)


def in_place(product: bilinear.Product) -> bilinear.Product:
    """The tensor product itself; if it is by input or by row, as :class:`ByInput` or :class:`ByRow`, to be started
    anew."""
    if isinstance(product, bilinear.ByInput):
        return ByInput(product.x, product.tensor, product.index, product.slices)
    return ByRow(product.x, product.tensor) if isinstance(product, bilinear.ByRow) else product


class Gates(restricted_gated.Gates):
    """The recurrent part of gates but for x; one launch for each piece.

    Args:
        pieces: their weights.
        index: ``[T, B]``.
    """

    def __init__(
        self, pieces: Sequence[Union[restricted_gated.Shared, restricted_gated.PerSymbol]], index: Tensor
    ) -> None:
        super().__init__(pieces)
        self.numbers = index.contiguous().unbind(0)

    def start(self, x: Tensor, index: Tensor, out: Tensor) -> None:
        """*out* ``[T, B, G·H]`` will be the recurrent part, with the biases of symbols."""
        self.each = [part.unbind(0) for part in out.split(self.widths, -1)]

    def step(self, t: int, h: Tensor) -> None:
        for piece, out in zip(self.pieces, self.each):
            if isinstance(piece, restricted_gated.Shared):
                piece.factor.times(h, out=out[t])
            else:
                kernels.matrices_times(piece.stack, self.numbers[t], h, out[t], bias=piece.bias)

    def back(self, t: int, d_h: Tensor, add: bool = True) -> None:
        """Add to the gradient of h; or set it."""
        for piece, d in zip(self.pieces, self.each):
            if not isinstance(piece, restricted_gated.Shared):
                kernels.transposed_times(piece.stack, self.numbers[t], d[t], d_h, add)
            elif add:
                piece.factor.times_plus(d[t], d_h, out=d_h)
            else:
                piece.factor.times(d[t], out=d_h)
            add = True


class RestrictedGRU(Twin, restricted_gated.RestrictedGRU):
    """2 + 2 launches a step, and one for each piece of the gates' weights on each way."""

    def recurrent(self, back):
        super().recurrent(back)
        self.gates, self.candidate = (Gates(gates.pieces, self.inputs[1]) for gates in (self.gates, self.candidate))

    def start(self, carry, keep):
        super().start(carry, keep)
        size = carry[0].size(1)
        self.x = every(*self.inputs[0].split([2 * size, size], dim=-1))

    def step(self, t):
        h, after = self.states[0][t], self.states[0][t + 1]
        (rz, _, _, gated, candidate), (x_rz, x_h) = self.each[t], self.x[t]
        self.gates.step(t, h)
        kernels.gru_gates(x_rz, rz, h, gated)
        self.candidate.step(t, gated)
        kernels.gru_blend(x_h, candidate, rz, h, after, "tanh", self.update_gate)

    def start_back(self):
        self.each = every(self.start_gradients(), self.rz, self.candidates, self.d_x)

    def back(self, t, d_states, d_output):
        d_h = d_states[0]
        h, rz, candidate, d_x = self.each[t]
        kernels.gru_back(d_h, d_output, rz, candidate, h, d_x, "tanh", self.update_gate)
        self.candidate.back(t, self.d_gated, add=False)
        kernels.gru_reset_back(self.d_gated, rz, h, d_h, d_x)
        self.gates.back(t, d_h)


class RestrictedLSTM(Twin, restricted_gated.RestrictedLSTM):
    """1 + 1 launches a step, and one for each piece of the gates' weights on each way."""

    order = (0, 1, 3, 2)  # the blocks of input, forget, cell and output

    def recurrent(self, back):
        super().recurrent(back)
        self.gates = Gates(self.gates.pieces, self.inputs[1])

    def start(self, carry, keep):
        super().start(carry, keep)
        self.each = every(self.inputs[0], self.pre, self.squashed)

    def step(self, t):
        (h, c), (h_after, c_after) = ((state[t] for state in self.states), (state[t + 1] for state in self.states))
        x, pre, squashed = self.each[t]
        self.gates.step(t, h)
        kernels.lstm_step(x, pre, c, c_after, squashed, h_after, self.order)

    def start_back(self):
        self.d_x = torch.empty_like(self.pre)
        self.recurrent(back=True)
        self.gates.start_back(self.d_x)
        self.each = every(self.pre, self.cs[:-1], self.squashed, self.d_x)

    def back(self, t, d_states, d_output):
        d_h, d_c = d_states
        kernels.lstm_back(d_h, d_output, d_c, *self.each[t], self.order)
        self.gates.back(t, d_h, add=False)


class RNTN(Twin, rntn.RNTN):
    """1 + 1 launches a step."""

    def start(self, carry, keep):
        x, index, stack, bias = self.inputs
        self.hs = output_state(self, carry[0])
        self.states = (steps_of(self.hs),)
        self.each = every(x, index.contiguous())
        self.stack, self.bias = stack.contiguous(), bias.contiguous()

    def step(self, t):
        h, (x, numbers) = self.states[0], self.each[t]
        kernels.matrices_times(self.stack, numbers, h[t], h[t + 1], x, self.bias, self.activation)

    def start_back(self):
        after = self.hs[1:]
        self.stack = self.inputs[2].contiguous()
        self.d_x = torch.empty_like(after)
        self.each = every(self.inputs[1].contiguous(), after, self.d_x)
        self.d_hs = after.new_empty(2, *after.shape[1:]).unbind(0)  # they take turns

    def back(self, t, d_states, d_output):
        numbers, after, d_x = self.each[t]
        before = self.d_hs[t % 2]
        kernels.transposed_activation_back(
            self.stack, numbers, d_states[0], d_output, after, d_x, before, self.activation
        )  # fmt: skip
        d_states[0] = before


class MultiplicativeRNN(Twin, rntn.MultiplicativeRNN):
    """4 + 4 launches a step."""

    def step(self, t):
        h, after = self.states[0][t], self.states[0][t + 1]
        x, factor, inner, outer = self.each[t]
        torch.mul(factor, self.right.times(h, out=inner), out=outer)
        kernels.activation(x, self.left.times(outer, out=after), after, self.activation)

    def start_back(self):
        index, left, right, factors = self.inputs[1:]
        self.d_x, self.d_outer, self.d_inner = map(torch.empty_like, (self.hs[1:], self.inner, self.inner))
        self.each = every(self.hs[1:], at_index(factors, index), self.d_x, self.d_outer, self.d_inner)
        self.left, self.right = (self.factor_class(weight, self.d_x.size(1)) for weight in (left, right))

    def back(self, t, d_states, d_output):
        value, factor, d_x, d_outer, d_inner = self.each[t]
        kernels.activation_back(d_states[0], d_output, value, d_x, self.activation)
        torch.mul(factor, self.left.times(d_x, out=d_outer), out=d_inner)
        self.right.times(d_inner, out=d_states[0])


# ---- Elman network and SRN -------------------------------------------------------------------------------------------


class Elman(Twin, elman.Elman):
    """2 + 2 launches a step."""

    def step(self, t):
        h = self.states[0]
        kernels.activation(self.x[t], self.recur.times(h[t], out=h[t + 1]), h[t + 1], self.activation)

    def start_back(self):
        after = self.hs[1:]
        self.d_x = torch.empty_like(after)
        self.each = every(after, self.d_x)
        self.recur = self.factor_class(self.inputs[1], self.d_x.size(1))

    def back(self, t, d_states, d_output):
        value, d_x = self.each[t]
        kernels.activation_back(d_states[0], d_output, value, d_x, self.activation)
        self.recur.times(d_x, out=d_states[0])


class SRN(Twin, elman.SRN):
    """2 + 2 launches a step."""

    def step(self, t):
        c, (x, h) = self.states[0], self.each[t]
        kernels.activation(x, self.recur.times(c[t], out=c[t + 1]), h, self.activation, keep_sums=True)

    def start_back(self):
        self.d_x = torch.empty_like(self.hs)
        self.each = every(self.hs, self.d_x)
        self.recur = self.factor_class(self.inputs[1], self.d_x.size(1))

    def back(self, t, d_states, d_output):
        h, d_x = self.each[t]
        kernels.activation_back(d_states[0], d_output, h, d_x, self.activation, linear=True)
        self.recur.times(d_x, out=d_states[0])


#: the twin of every kernel that has one; the others have no chain of small operations that one would save
TWINS: Dict[Type[Kernel], Type[Kernel]] = {
    lstm.LSTM: LSTM,
    lstm_peephole.PeepholeLSTM: PeepholeLSTM,
    lstm_peephole.LSTMRNTN: LSTMRNTN,
    elstm.ELSTM: ELSTM,
    gru.GRU: GRU,
    gru_rntn.GRURNTN: GRURNTN,
    restricted_gated.RestrictedGRU: RestrictedGRU,
    restricted_gated.RestrictedLSTM: RestrictedLSTM,
    rntn.RNTN: RNTN,
    rntn.MultiplicativeRNN: MultiplicativeRNN,
    elman.Elman: Elman,
    elman.SRN: SRN,
}


def twin(kernel: Type[Kernel], device: torch.device) -> Type[Kernel]:
    """The twin of a kernel, or itself where it has none.

    Raises:
        ValueError: for a device on which Triton's kernels do not run.
    """
    if device.type != "cuda" and not kernels.INTERPRETED:
        raise ValueError("--recurrence triton needs a CUDA device (or TRITON_INTERPRET=1, to test)")
    return TWINS.get(kernel, kernel)
