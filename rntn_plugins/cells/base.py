"""The contract every recurrent cell fulfils.

Letters used for shapes throughout: T time steps, B batch, I input size, H hidden size, V vocabulary, K matrices,
N order. Sequences are time-major (``[T, B, ...]``), everything a cell carries is batch-first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rntn_plugins.ops.graphs import possible as graphs_possible  # noqa: F401  (for models)
from rntn_plugins.ops.inputs import Inputs, Rows, expand, project  # noqa: F401  (Rows: for layers and models)
from rntn_plugins.ops.products import on_gpu  # noqa: F401  (for models)
from rntn_plugins.ops.recurrence import run

ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}

Carry = Any  # a NamedTuple of tensors whose first dimension is B
Projected = Union[Tensor, Tuple[Tensor, ...]]  # tensors [T, B, ...]


def option(default, help: str, choices: Optional[Sequence[str]] = None, least=None, most=None):
    """A field of a cell's ``Options``: its default, help text and allowed values (checked at construction)."""
    return field(default=default, metadata={"help": help, "choices": choices, "least": least, "most": most})


@dataclass
class NoOptions:
    """For cells without options of their own."""


def check_options(cell_name: str, options) -> None:
    """Raise ``ValueError`` naming flag, value and allowed range for the first option out of range."""
    for f in fields(options):
        value, meta = getattr(options, f.name), f.metadata
        flag = "--" + f.name.replace("_", "-")
        if meta.get("choices") and str(value) not in meta["choices"]:
            raise ValueError(f"{cell_name}: {flag} {value} is not one of {', '.join(meta['choices'])}")
        low, high = meta.get("least"), meta.get("most")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{cell_name}: {flag} {value} must be a finite number")
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"between {low} and {high}" if None not in (low, high) else f"at least {low}"
            raise ValueError(f"{cell_name}: {flag} {value} must be {allowed}")


class Vocabulary(NamedTuple):
    """What a token-indexed cell has to know of the symbols.

    Attributes:
        size: V.
        symbols: the V symbols in index order (needed for map files only).
        counts: how often each symbol occurs in the training text, ``[V]`` (needed for rank maps only; ``None`` when
            a checkpoint will supply the map).
    """

    size: int
    symbols: Optional[Sequence[str]] = None
    counts: Optional[Tensor] = None


def map_carry(fn: Callable[[Tensor], Tensor], carry: Carry) -> Carry:
    """Apply *fn* to every tensor of a carry (or of nested tuples of carries) and keep the structure."""
    if isinstance(carry, Tensor):
        return fn(carry)
    mapped = [map_carry(fn, part) for part in carry]
    return type(carry)(*mapped) if hasattr(carry, "_fields") else tuple(mapped)


def zip_carry(fn: Callable[[Tensor, Tensor], Tensor], one: Carry, other: Carry) -> Carry:
    """Like :func:`map_carry` for two carries of the same structure."""
    if isinstance(one, Tensor):
        return fn(one, other)
    mapped = [zip_carry(fn, a, b) for a, b in zip(one, other)]
    return type(one)(*mapped) if hasattr(one, "_fields") else tuple(mapped)


def carry_tensors(carry: Carry) -> list:
    """The tensors of a carry in a fixed order."""
    found: list = []
    map_carry(lambda tensor: found.append(tensor) or tensor, carry)
    return found


def each_step(projected: Projected) -> Sequence[Projected]:
    """What :meth:`Cell.project` computed for every time step: ``[B, ...]`` tensors."""
    if isinstance(projected, Tensor):
        return projected.unbind(0)
    count = next(len(part) for part in projected if part is not None)
    parts = [[None] * count if part is None else part.unbind(0) for part in projected]
    make = type(projected) if hasattr(projected, "_fields") else lambda *picked: picked
    return [make(*picked) for picked in zip(*parts)]


class Hidden(NamedTuple):
    """The carry of cells whose only state is their output."""

    h: Tensor  # [B, H]


class Cell(nn.Module):
    """One step of a recurrent network. A cell knows nothing of lengths, direction, layers or fairseq.

    Subclasses define ``Options`` (a dataclass of :func:`option` fields), their parameters, :meth:`project`,
    :meth:`step` and, if the state is more than ``h``, :meth:`initial_carry`.

    Args:
        input_size: I, at least 1.
        hidden_size: H, at least 1.
        options: an instance of ``Options`` (defaults if left out).
        vocabulary: the symbols, for token-indexed cells.
    """

    Options = NoOptions
    #: whether :meth:`project` needs the tokens, because matrices depend on the symbol
    token_indexed = False

    def __init__(
        self, input_size: int, hidden_size: int, options=None, vocabulary: Optional[Vocabulary] = None
    ) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{type(self).__name__}: {name} {size} must be at least 1")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.options = options if options is not None else self.Options()
        check_options(type(self).__name__, self.options)
        if self.token_indexed and vocabulary is None:
            raise ValueError(f"{type(self).__name__}: its matrices depend on the symbol, so it needs a vocabulary")
        self.vocabulary = vocabulary
        self.build()
        for parameter in self.parameters():
            parameter.of_hidden_units = True  # for --max-norm-of, which sees parameters alone
        self.initialise("uniform", 1.0 / math.sqrt(hidden_size))

    # ---- what a cell defines -------------------------------------------------------------------------------------

    def build(self) -> None:
        """Create the parameters (sizes are set; values come from :meth:`initialise`)."""
        raise NotImplementedError

    def project(self, x: Tensor, tokens: Optional[Tensor] = None) -> Projected:
        """Everything that does not depend on the carry, for all steps at once.

        Args:
            x: inputs ``[T, B, I]``.
            tokens: the symbols the inputs stand for, ``[T, B]`` (token-indexed cells only).
        Returns:
            a tensor or a tuple of tensors ``[T, B, ...]``; ``step`` receives it without the T dimension.
        """
        raise NotImplementedError

    def step(self, projected: Projected, carry: Carry) -> Tuple[Tensor, Carry]:
        """One step of the paper: ``(output [B, H], new carry)``."""
        raise NotImplementedError

    #: whether :meth:`fused` keeps what it computes from inputs that are the same in the next call (``Rows.fixed``)
    keeps_fixed_inputs = False
    #: whether :meth:`fused` exists (for these options); not inherited, since a subclass computes something else
    has_fused = False
    #: whether :meth:`fused` takes inputs as :class:`~rntn_plugins.ops.inputs.Rows` too; not inherited either
    takes_rows = False
    #: whether inputs are seen as x Wᵀ + b of :meth:`input_weights` alone (with these options) and :meth:`recur` goes on
    #: from there, so that a network can feed a part of them step by step; not inherited either
    has_recur = False

    def __init_subclass__(cls, **arguments) -> None:
        super().__init_subclass__(**arguments)
        for name in ("has_fused", "takes_rows", "has_recur"):
            if name not in vars(cls):
                setattr(cls, name, False)
        if "step" in vars(cls):  # another step remembers otherwise
            for name in ("memory", "memory_weights"):
                if name not in vars(cls):
                    setattr(cls, name, vars(Cell)[name])

    def fused(
        self, x: Inputs, tokens: Optional[Tensor], carry: Carry, lengths: Optional[Tensor]
    ) -> Tuple[Tensor, Carry]:
        """All steps by a kernel of :mod:`rntn_plugins.ops`: what :meth:`project` and a loop of :meth:`step` compute.

        Arguments and result as of :meth:`rntn_plugins.layers.recurrent.Recurrent.forward`, T at least 1. The inputs are
        :class:`~rntn_plugins.ops.inputs.Rows` only if :attr:`takes_rows`: see :func:`~rntn_plugins.ops.inputs.project`.
        """
        raise NotImplementedError

    def input_weights(self) -> Tuple[Tensor, Optional[Tensor]]:
        """W ``[D, I]`` and b ``[D]``, or ``None`` for no bias, of a cell that sees its inputs as x Wᵀ + b alone."""
        raise NotImplementedError

    def recur(
        self, projected: Tensor, carry: Carry, lengths: Optional[Tensor], run: Callable = run
    ) -> Tuple[Tensor, Carry]:
        """What :meth:`fused` does when the inputs are projected.

        Args:
            projected: x Wᵀ + b of :meth:`input_weights`, ``[T, B, D]``.
            carry, lengths: as for :meth:`fused`.
            run: what runs the kernel, called as :func:`rntn_plugins.ops.recurrence.run` is: for networks that find a
                part of an input only when the step before it is done.
        """
        raise NotImplementedError

    def memory(self, projected: Projected, carry: Carry) -> Dict[str, Tensor]:
        """What a step does to what the cell remembers, element by element (E18 §2-3); nothing for most cells.

        A class with a ``step`` of its own does not inherit it. :mod:`rntn_plugins.layers.memory` reads it.

        Args:
            projected, carry: as for :meth:`step`.
        Returns:
            any of ``kept``, what the step multiplies the state before it by: the forget gate, E18 (8), or the update
            gate, E18 (19), in the cell's own convention; and ``scale``, what it multiplies the new input by: s_t,
            E18 (24). ``[B, H]`` each.
        """
        return {}

    def memory_weights(self) -> Dict[str, Tensor]:
        """The same as far as it is learnt and depends on no text: any of ``matrix``, what every step multiplies the
        state by, ``[H, H]`` (W_c, E18 (3)), and ``scale``, s of every position, ``[positions, H]`` (E18 (24))."""
        return {}

    def initial_carry(self, batch_size: int) -> Carry:
        """The state before the first step: zeros, on the parameters' device and of their type."""
        return Hidden(self.zeros(batch_size, self.hidden_size))

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def matrix(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter."""
        return nn.Parameter(torch.empty(*shape))

    def zeros(self, *shape: int) -> Tensor:
        reference = next(p for p in self.parameters() if p.is_floating_point())
        return reference.new_zeros(shape)

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        return ACTIVATIONS[str(self.options.activation)]

    def initialise(self, scheme: str, scale: float) -> None:
        """Fill the parameters: weights by *scheme* (see :func:`fill_`), biases with zero.

        Matrices of several gates stacked on each other, ``[G·H, ...]``, and stacks of matrices, ``[K, H, H]``, are
        filled one square block (or gate) at a time, which matters for ``orthogonal``.
        """
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                for block in parameter.data.split(self.hidden_size):
                    fill_(block, scheme, scale)
            elif scheme == "orthogonal":
                for block in parameter.data:
                    fill_(block, scheme, scale)
            else:  # at once: a stack may hold ten thousand matrices
                fill_(parameter.data, scheme, scale)

    def extra_repr(self) -> str:
        shown = "".join(f", {f.name}={getattr(self.options, f.name)}" for f in fields(self.options))
        return f"{self.input_size}, {self.hidden_size}{shown}"


INITIALISATIONS = ("orthogonal", "uniform", "normal")


@torch.no_grad()
def fill_(weight: Tensor, scheme: str, scale: float) -> None:
    """Fill one matrix in place: ``orthogonal`` with gain *scale* (Saxe et al. 2014), ``uniform`` in ±*scale*,
    ``normal`` with standard deviation *scale*.

    Raises:
        ValueError: unknown scheme, or a scale that is negative or no finite number.
    """
    if not 0 <= scale < math.inf:
        raise ValueError(f"--init-scale {scale} must be at least 0 and finite")
    if scheme == "orthogonal":
        nn.init.orthogonal_(weight, gain=scale)
    elif scheme == "uniform":
        nn.init.uniform_(weight, -scale, scale)
    elif scheme == "normal":
        nn.init.normal_(weight, std=scale)
    else:
        raise ValueError(f"--init {scheme} is not one of {', '.join(INITIALISATIONS)}")


class IdentityOrLinear(nn.Module):
    """W x + b, or x + b where the input is already W x (an embedding of size H: S18 writes the one-hot x_t)."""

    def __init__(self, input_size: int, hidden_size: int, identity: bool, owner: str, bias: bool = True) -> None:
        super().__init__()
        if identity and input_size != hidden_size:
            raise ValueError(f"{owner}: --identity-input needs inputs of size H={hidden_size}, not {input_size}")
        self.weight = None if identity else nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            return F.linear(x, self.weight, self.bias)
        return x if self.bias is None else x + self.bias

    def fused(self, x: Inputs) -> Tensor:
        """The same by :func:`~rntn_plugins.ops.inputs.project`."""
        return self(expand(x)) if self.weight is None else project(x, self.weight, self.bias)
