"""Recurrent neural tensor networks whose matrices depend on the symbol.

S18: Salle & Villavicencio 2018; RNTN and m-RNN are due to Sutskever, Martens & Hinton 2011.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.cells.base import ACTIVATIONS, Cell, Hidden, IdentityOrLinear, option
from rntn_plugins.cells.index_map import UNKNOWN, build_map
from rntn_plugins.ops import rntn as ops
from rntn_plugins.ops.indexed import read
from rntn_plugins.ops.recurrence import run
from rntn_plugins.registry import register_cell

logger = logging.getLogger(__name__)


def num_matrices_option():
    return option(100, "K, the number of recurrence matrices (at most V)", least=1)


def index_map_option():
    return option("rank", "f: 'rank', min(rank, K), S18 (5); 'mod', rank mod K, S18 (16); or a file of 'symbol index'")


def identity_input_option():
    return option(False, "add the input itself instead of W_h x_t (I = H; S18: the embedding is the only input matrix)")


GRADIENTS = ("auto", "dense", "row-sparse")


def gradients_option():
    return option(
        "auto",
        "gradients of the parameters with a row for each symbol or index (U, b; v of m_rnn). 'row-sparse': of the rows "
        "that occur in a batch, and the optimiser touches no others, so that memory and time do not depend on K; for "
        "--optimizer sgd, adagrad, adagrad_tf and max_norm_sgd without momentum and weight decay, in full precision. "
        "'auto': the same where the step is the same up to the order of sums, and quicker, else dense. That is with "
        "these optimisers, on a CPU, in one process, with one batch an update of up to 2K target symbols (K = V for "
        "rntn and m_rnn), if one of the parameters has 2^18 numbers or more, and none is shared, computed from others, "
        "or hooked. 'dense': of all rows; for your own code that works on gradients in an update, and for Jacobians",
        choices=GRADIENTS,
    )


class IndexedMatrix(nn.Module):
    """K matrices and K biases, one of each per class of symbols: U^{f(i(x))} and b^{f(i(x))} of S18 (4).

    ``index_of_symbol`` [V] is part of the state dict, so that a checkpoint keeps the map it was trained with.

    =========  ================  =========
    symbol     attribute         shape
    =========  ================  =========
    U          weight            [K, H, H]
    b          bias              [K, H]
    f          index_of_symbol   [V]
    =========  ================  =========

    Args:
        row_sparse: whether gradients of U and b are sparse tensors with rows for the indices that occurred only.
    """

    index_tables = ("weight", "bias")

    def __init__(self, hidden_size: int, index_of_symbol: Tensor, num_matrices: int, row_sparse: bool) -> None:
        super().__init__()
        self.row_sparse = row_sparse
        self.weight = nn.Parameter(torch.empty(num_matrices, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(num_matrices, hidden_size))
        self.register_buffer("index_of_symbol", index_of_symbol)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        stored = state_dict.get(f"{prefix}index_of_symbol")
        own = self.index_of_symbol
        if stored is not None and own[0] != UNKNOWN and stored.shape == own.shape and not stored.to(own).equal(own):
            logger.warning(
                "the checkpoint's map from symbols to matrices is kept; it is not what --index-map gives for this data"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def index(self, tokens: Tensor) -> Tensor:
        """f of the symbols: ``[T, B]``, 0 to K-1."""
        if self.index_of_symbol[0] == UNKNOWN:
            raise ValueError(
                "the map from symbols to matrices is not known: no checkpoint was loaded, and there was no training "
                "text to count or no file named by --index-map"
            )
        return self.index_of_symbol[tokens]

    def forward(self, tokens: Tensor, row_sparse: Optional[bool] = None):
        """Matrices and biases of the symbols: ``[T, B] -> [T, B, H, H], [T, B, H]``.

        Their gradients are sparse tensors or dense ones as *row_sparse* says; where it says nothing, as this module was
        made.
        """
        index = self.index(tokens)
        row_sparse = self.row_sparse if row_sparse is None else row_sparse
        return read(self.weight, index, row_sparse), read(self.bias, index, row_sparse)


class IndexedCell(Cell):
    """A cell with *tables*, parameters ``[K, ...]`` of which it reads the rows of its symbols; one of its options is
    :func:`gradients_option`.

    It names those of its own in ``index_tables`` (a subclass that has more: those of its parent as well), and so do its
    modules (:class:`IndexedMatrix`). It reads them by :func:`rntn_plugins.ops.indexed.read` with ``self.row_sparse``.
    """

    token_indexed = True
    index_tables: Sequence[str] = ()
    #: set by :mod:`rntn_plugins.optim.update_rows` in updates where sparse gradients are the same step, and quicker
    row_sparse_update = False

    @property
    def gradients(self) -> str:
        return str(getattr(self.options, "gradients", "dense"))

    @property
    def row_sparse(self) -> bool:
        """Whether the tables' gradients are sparse tensors with rows for what occurred only."""
        return self.row_sparse_update or self.gradients == "row-sparse"

    @property
    def adapts_gradients(self) -> bool:
        """Whether ``row_sparse_update`` may be set."""
        return self.gradients == "auto"

    def __getstate__(self) -> dict:
        """A copy that is made in an update does not stay as the update has it."""
        return {name: value for name, value in super().__getstate__().items() if name != "row_sparse_update"}


def apply_each(matrices: Tensor, vectors: Tensor) -> Tensor:
    """A matrix of its own for every row: ``[B, H, H], [B, H] -> [B, H]``."""
    return torch.bmm(matrices, vectors.unsqueeze(-1)).squeeze(-1)


class WithMatrix(NamedTuple):
    x: Tensor  # [T, B, H]
    matrix: Tensor  # [T, B, H, H]


@dataclass
class RNTNOptions:
    activation: str = option("sigmoid", "nonlinearity", choices=tuple(ACTIVATIONS))
    identity_input: bool = identity_input_option()
    gradients: str = gradients_option()


@register_cell("rntn")
class RNTN(IndexedCell):
    """Recurrent neural tensor network: a recurrence matrix and a bias for every symbol.

    S18 eqs. (3)-(4) with K = V::

        h_t = σ(W_h x_t + U_h^{i(x_t)} h_{t-1} + b_h^{i(x_t)})

    (3) prints one b_h; Table 1's 103 M parameters need one a symbol, as in (4).

    ======  ==================  =========
    symbol  attribute           shape
    ======  ==================  =========
    W_h     input.weight        [H, I]
    U_h     recurrence.weight   [K, H, H]
    b_h     recurrence.bias     [K, H]
    ======  ==================  =========
    """

    Options = RNTNOptions

    def index_of_symbol(self):
        """f as a tensor [V] and K."""
        return torch.arange(self.vocabulary.size), self.vocabulary.size

    def build(self) -> None:
        name = type(self).__name__
        self.input = IdentityOrLinear(self.input_size, self.hidden_size, self.options.identity_input, name, bias=False)
        self.recurrence = IndexedMatrix(self.hidden_size, *self.index_of_symbol(), self.row_sparse)

    def initialise(self, scheme, scale):
        super().initialise(scheme, scale)
        nn.init.zeros_(self.recurrence.bias)

    def project(self, x, tokens=None):
        matrix, bias = self.recurrence(tokens, self.row_sparse)
        return WithMatrix(self.input(x) + bias, matrix)

    def step(self, projected, carry):
        h = self.activation(projected.x + apply_each(projected.matrix, carry.h))
        return h, Hidden(h)

    has_fused = takes_rows = True

    def fused(self, x, tokens, carry, lengths):
        index = self.recurrence.index(tokens)
        inputs = (self.input.fused(x), index, self.recurrence.weight, self.recurrence.bias)
        settings = (str(self.options.activation), self.row_sparse)
        outputs, carry = run(ops.RNTN, settings, inputs, carry, lengths)
        return outputs, Hidden(*carry)


@dataclass
class RestrictedRNTNOptions:
    num_matrices: int = num_matrices_option()
    index_map: str = index_map_option()
    activation: str = option("sigmoid", "nonlinearity", choices=tuple(ACTIVATIONS))
    identity_input: bool = identity_input_option()
    gradients: str = gradients_option()


@register_cell("r_rntn")
class RestrictedRNTN(RNTN):
    """Restricted RNTN: K < V matrices, the commonest symbols have their own.

    S18 eqs. (4), (5), (16)::

        h_t = σ(W_h x_t + U_h^{f(i(x_t))} h_{t-1} + b_h^{f(i(x_t))})

    f(w) = min(rank(w), K) or rank(w) mod K over the *training text*, ``</s>`` and ``<unk>`` included. K = 1 is the
    s-RNN, K = V the RNTN (its matrices in the order of the map). Attributes as in :class:`RNTN`.
    """

    Options = RestrictedRNTNOptions
    has_fused = takes_rows = True

    def index_of_symbol(self):
        count = self.options.num_matrices
        return build_map(self.options.index_map, self.vocabulary, count), count


class WithFactor(NamedTuple):
    x: Tensor  # [T, B, H]
    factor: Tensor  # [T, B, F]


@dataclass
class MRNNOptions:
    factor_size: int = option(0, "F, the size of the factor vectors v_x (0: F = H)", least=0)
    activation: str = option("sigmoid", "nonlinearity", choices=tuple(ACTIVATIONS))
    identity_input: bool = identity_input_option()
    gradients: str = gradients_option()


@register_cell("m_rnn")
class MRNN(IndexedCell):
    """Multiplicative RNN: the RNTN's matrix factored as U_lh diag(v_x) U_rh.

    S18 §2 (Sutskever et al. 2011)::

        h_t = σ(W_h x_t + U_lh diag(v_{x_t}) U_rh h_{t-1} + b_h)

    ======  =============  ======
    symbol  attribute      shape
    ======  =============  ======
    W_h     input.weight   [H, I]
    b_h     input.bias     [H]
    U_lh    weight_left    [H, F]
    U_rh    weight_right   [F, H]
    v       factors        [V, F]
    ======  =============  ======
    """

    Options = MRNNOptions
    index_tables = ("factors",)

    def build(self) -> None:
        size = self.hidden_size
        factor_size = self.options.factor_size or size
        self.input = IdentityOrLinear(self.input_size, size, self.options.identity_input, "m_rnn")
        self.weight_left = self.matrix(size, factor_size)
        self.weight_right = self.matrix(factor_size, size)
        self.factors = nn.Parameter(torch.empty(self.vocabulary.size, factor_size))

    def project(self, x, tokens=None):
        return WithFactor(self.input(x), read(self.factors, tokens, self.row_sparse))

    def step(self, projected, carry):
        inner = projected.factor * F.linear(carry.h, self.weight_right)
        h = self.activation(projected.x + F.linear(inner, self.weight_left))
        return h, Hidden(h)

    has_fused = takes_rows = True

    def fused(self, x, tokens, carry, lengths):
        inputs = (self.input.fused(x), tokens, self.weight_left, self.weight_right, self.factors)
        settings = (str(self.options.activation), self.row_sparse)
        outputs, carry = run(ops.MultiplicativeRNN, settings, inputs, carry, lengths)
        return outputs, Hidden(*carry)
