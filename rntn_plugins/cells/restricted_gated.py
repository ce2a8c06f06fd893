"""GRU and LSTM with matrices that depend on the symbol: r-GRU and r-LSTM (S18 §3)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import List, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.cells.base import Hidden, option
from rntn_plugins.cells.gru import GRU, interpolate, update_gate_option
from rntn_plugins.cells.index_map import build_map
from rntn_plugins.cells.lstm import LSTM, HiddenAndCell, forget_bias_option
from rntn_plugins.cells.rntn import (
    IndexedCell,
    IndexedMatrix,
    apply_each,
    gradients_option,
    index_map_option,
    num_matrices_option,
)
from rntn_plugins.ops import restricted_gated as ops
from rntn_plugins.ops.inputs import project
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell


class GatesWithMatrices(NamedTuple):
    """Pre-activations of all gates and, for per-symbol gates, their matrices (in the cell's gate order)."""

    x: Tensor  # [T, B, G·H]
    matrices: Tensor  # [T, B, P, H, H], P per-symbol gates


def parse_gates(text: str, allowed, cell: str) -> tuple:
    """``--indexed-gates`` as a tuple in the cell's own order."""
    asked = [part.strip() for part in str(text).split(",") if part.strip()]
    unknown = [part for part in asked if part not in allowed]
    if unknown or not asked:
        raise ValueError(f"{cell}: --indexed-gates {text!r} must be a comma-separated choice of {', '.join(allowed)}")
    return tuple(gate for gate in allowed if gate in asked)


def key(gate: str) -> str:
    """A gate's name in a module dict (``update`` alone is a method of those)."""
    return f"{gate}_gate"


class IndexedGates(nn.Module):
    """Recurrent matrices and biases of G gates, some shared by all symbols, some one per class of symbols.

    ==========================  =====================  =========
    symbol                      attribute              shape
    ==========================  =====================  =========
    U_h^g of a shared gate      shared.g_gate          [H, H]
    b_h^g of a shared gate      shared_bias.g_gate     [H]
    U_h^g of a per-symbol gate  indexed.g_gate.weight  [K, H, H]
    b_h^g of a per-symbol gate  indexed.g_gate.bias    [K, H]
    ==========================  =====================  =========
    """

    def __init__(
        self, gates, indexed, hidden_size: int, index_of_symbol: Tensor, num_matrices: int, row_sparse: bool
    ) -> None:
        super().__init__()
        self.gates = tuple(gates)
        self.indexed_gates = tuple(indexed)
        self.indexed, self.shared, self.shared_bias = nn.ModuleDict(), nn.ParameterDict(), nn.ParameterDict()
        for gate in gates:
            if gate in indexed:
                matrix = IndexedMatrix(hidden_size, index_of_symbol.clone(), num_matrices, row_sparse)
                self.indexed[key(gate)] = matrix
            else:
                self.shared[key(gate)] = nn.Parameter(torch.empty(hidden_size, hidden_size))
                self.shared_bias[key(gate)] = nn.Parameter(torch.empty(hidden_size))

    def project(self, x: Tensor, tokens: Tensor, row_sparse: Optional[bool] = None) -> GatesWithMatrices:
        """Add the biases to ``x`` [T, B, G·H] and fetch the per-symbol matrices."""
        biases, matrices = [], []
        for gate in self.gates:
            if gate in self.indexed_gates:
                matrix, bias = self.indexed[key(gate)](tokens, row_sparse)
                matrices.append(matrix)
            else:
                bias = self.shared_bias[key(gate)].expand(*tokens.shape, -1)
            biases.append(bias)
        return GatesWithMatrices(x + torch.cat(biases, dim=-1), torch.stack(matrices, dim=2))

    def recur(self, gate: str, projected: GatesWithMatrices, h: Tensor) -> Tensor:
        """U^g h for one step: ``[B, H] -> [B, H]``."""
        if gate in self.indexed_gates:
            return apply_each(projected.matrices[:, self.indexed_gates.index(gate)], h)
        return F.linear(h, self.shared[key(gate)])

    def bias_of(self, gate: str) -> Tensor:
        return self.indexed[key(gate)].bias if gate in self.indexed_gates else self.shared_bias[key(gate)]

    def index(self, tokens: Tensor) -> Tensor:
        """f of the symbols, which is the same for all gates: ``[T, B]``."""
        return self.indexed[key(self.indexed_gates[0])].index(tokens)

    def shared_biases(self) -> Tensor:
        """The biases of all gates ``[G·H]``, zero for per-symbol ones."""
        biases = [self.bias_of(gate) for gate in self.gates]
        return torch.cat([bias if bias.dim() == 1 else bias.new_zeros(bias.size(1)) for bias in biases])

    def pieces(self, *gates: str) -> List[Tensor]:
        """Recurrent weights as :mod:`rntn_plugins.ops.restricted_gated` takes them."""
        found: List[Tensor] = []
        for is_indexed, group in itertools.groupby(gates, key=self.indexed_gates.__contains__):
            if is_indexed:
                for gate in group:
                    found += [self.indexed[key(gate)].weight, self.indexed[key(gate)].bias]
            else:
                found.append(torch.cat([self.shared[key(gate)] for gate in group]))
        return found


class GatedRestrictedCell(IndexedCell):
    """What r-GRU and r-LSTM share: gates with shared or per-symbol matrices."""

    gates: tuple = ()

    def build(self) -> None:
        name = type(self).__name__
        indexed = parse_gates(self.options.indexed_gates, self.gates, name)
        count = self.options.num_matrices
        index = build_map(self.options.index_map, self.vocabulary, count)
        self.weight_ih = self.matrix(len(self.gates) * self.hidden_size, self.input_size)
        self.recurrent = IndexedGates(self.gates, indexed, self.hidden_size, index, count, self.row_sparse)

    def initialise(self, scheme, scale):
        super().initialise(scheme, scale)
        for gate in self.gates:
            nn.init.zeros_(self.recurrent.bias_of(gate))

    def project(self, x, tokens: Optional[Tensor] = None):
        return self.recurrent.project(F.linear(x, self.weight_ih), tokens, self.row_sparse)

    def fused_inputs(self, x, tokens):
        """The inputs that the kernels of both cells begin with: x W + b ``[T, B, G·H]`` and f of the symbols."""
        return project(x, self.weight_ih, self.recurrent.shared_biases()), self.recurrent.index(tokens)


@dataclass
class RestrictedGRUOptions:
    num_matrices: int = num_matrices_option()
    index_map: str = index_map_option()
    indexed_gates: str = option("candidate", "gates with a matrix per symbol: any of reset,update,candidate")
    update_gate: str = update_gate_option("previous")
    gradients: str = gradients_option()


@register_cell("r_gru")
class RestrictedGRU(GatedRestrictedCell):
    """r-GRU: a GRU whose candidate's U_h^h and b_h^h are per symbol.

    S18 §3, eqs. (6)-(9), with (4)'s indexing; ``--indexed-gates`` picks other gates (its future work)::

        r_t  = σ(W_h^r x_t + U_h^r h_{t-1} + b_h^r)
        z_t  = σ(W_h^z x_t + U_h^z h_{t-1} + b_h^z)
        h~_t = tanh(W_h^h x_t + U_h^{h, f(i(x_t))} (r_t ⊙ h_{t-1}) + b_h^{h, f(i(x_t))})
        h_t  = z_t ⊙ h_{t-1} + (1 - z_t) ⊙ h~_t

    ``weight_ih`` [3H, I]: reset, update, candidate; the rest in ``recurrent`` (:class:`IndexedGates`).
    """

    Options = RestrictedGRUOptions
    gates = ("reset", "update", "candidate")

    def gate_values(self, projected, carry):
        """r_t, z_t and the candidate's input, ``[B, H]`` each."""
        x_r, x_z, x_h = projected.x.chunk(3, dim=-1)
        r = torch.sigmoid(x_r + self.recurrent.recur("reset", projected, carry.h))
        z = torch.sigmoid(x_z + self.recurrent.recur("update", projected, carry.h))
        return r, z, x_h

    def step(self, projected, carry):
        r, z, x_h = self.gate_values(projected, carry)
        candidate = torch.tanh(x_h + self.recurrent.recur("candidate", projected, r * carry.h))
        h = interpolate(z, carry.h, candidate, self.options.update_gate)
        return h, Hidden(h)

    memory = GRU.memory

    has_fused = takes_rows = True

    def fused(self, x, tokens, carry, lengths):
        weights = (*self.recurrent.pieces("reset", "update"), *self.recurrent.pieces("candidate"))
        settings = (str(self.options.update_gate), self.row_sparse)
        outputs, carry = run(ops.RestrictedGRU, settings, (*self.fused_inputs(x, tokens), *weights), carry, lengths)
        return outputs, Hidden(*carry)


@dataclass
class RestrictedLSTMOptions:
    num_matrices: int = num_matrices_option()
    index_map: str = index_map_option()
    indexed_gates: str = option("cell", "gates with a matrix per symbol: any of input,forget,output,cell")
    forget_bias: float = forget_bias_option()
    gradients: str = gradients_option()


@register_cell("r_lstm")
class RestrictedLSTM(GatedRestrictedCell):
    """r-LSTM: an LSTM whose candidate's U_h^c and b_h^c are per symbol.

    S18 §3, eqs. (10)-(15), with (4)'s indexing::

        c~_t = tanh(W_h^c x_t + U_h^{c, f(i(x_t))} h_{t-1} + b_h^{c, f(i(x_t))})

    everything else as in :class:`~rntn_plugins.cells.lstm.LSTM`. ``weight_ih`` [4H, I]: input, forget, output, cell;
    the rest in ``recurrent`` (:class:`IndexedGates`).
    """

    Options = RestrictedLSTMOptions
    gates = ("input", "forget", "output", "cell")

    initial_carry = LSTM.initial_carry

    def initialise(self, scheme, scale):
        super().initialise(scheme, scale)
        nn.init.constant_(self.recurrent.bias_of("forget"), self.options.forget_bias)

    def gate_values(self, projected, carry):
        """i_t, f_t, o_t and c~_t, ``[B, H]`` each."""
        pre = zip(self.gates, projected.x.chunk(4, dim=-1))
        i, f, o, candidate = (x + self.recurrent.recur(gate, projected, carry.h) for gate, x in pre)
        return torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o), torch.tanh(candidate)

    def step(self, projected, carry):
        i, f, o, candidate = self.gate_values(projected, carry)
        c = i * candidate + f * carry.c
        h = o * torch.tanh(c)
        return h, HiddenAndCell(h, c)

    memory = LSTM.memory

    has_fused = takes_rows = True

    def fused(self, x, tokens, carry, lengths):
        inputs = (*self.fused_inputs(x, tokens), *self.recurrent.pieces(*self.gates))
        outputs, carry = run(ops.RestrictedLSTM, (self.row_sparse,), inputs, carry, lengths)
        return outputs, HiddenAndCell(*carry)
