"""A cell over time, and layers of cells on top of each other."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from rntn_plugins.cells.base import Carry, Cell, Inputs, Rows, each_step, expand, zip_carry
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.ops.graphs import as_asked
from rntn_plugins.ops.recurrence import rows
from rntn_plugins.ops.triton_choice import check_triton


def hold_still(valid: Tensor, after: Carry, before: Carry) -> Carry:
    """The carry *after* a step where a row is valid ``[B]``, the one *before* it elsewhere."""
    return zip_carry(lambda new, old: torch.where(rows(valid, new), new, old), after, before)


RECURRENCES = ("auto", "naive", "fused", "triton")


class Recurrent(nn.Module):
    """Unrolls a cell over time. Rows shorter than T keep their carry still on the padding and put out zeros there."""

    #: 'naive': the cell's ``step`` in a loop; 'fused': its kernel, if it has one, for more than one step
    #: (or for one, if it has kept what that needs);
    #: 'triton': likewise, with the small operations of a step as Triton kernels; 'auto': 'fused', and on a GPU its
    #: loops as CUDA graphs, for shapes that come up often
    recurrence = "auto"

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def takes_kernels(self) -> bool:
        """Whether sequences go by kernels: not under ``torch.compile`` and ``torch.export``, which mistake them."""
        return self.recurrence != "naive" and not torch.compiler.is_compiling()

    def forward(
        self, x: Inputs, tokens: Optional[Tensor] = None, lengths: Optional[Tensor] = None, carry: Carry = None
    ) -> Tuple[Tensor, Carry]:
        """
        Args:
            x: inputs ``[T, B, I]``, or the :class:`~rntn_plugins.ops.inputs.Rows` that they are.
            tokens: symbols ``[T, B]``, for token-indexed cells.
            lengths: valid steps of each row ``[B]``, 0 to T; ``None``: all T.
            carry: the state to go on from; ``None``: the initial one.
        Returns:
            outputs ``[T, B, H]`` and the carry after each row's last valid step.
        Raises:
            ValueError: 'triton' without the package triton, or on a device that is none for it.
        """
        steps, batch_size = x.shape[:2]
        if carry is None:
            carry = self.cell.initial_carry(batch_size)
        if steps == 0:
            return self.cell.zeros(0, batch_size, self.cell.hidden_size), carry
        shortest = steps if lengths is None else int(lengths.min())
        if shortest >= steps:
            lengths = None
        kept = isinstance(x, Rows) and x.fixed and self.cell.keeps_fixed_inputs
        # for a single step the kernel is the slower one, unless what it has kept saves more
        if self.takes_kernels() and self.cell.has_fused and (steps > 1 or kept):
            if isinstance(x, Rows) and not self.cell.takes_rows:
                x = x.expand()
            with as_asked(self.recurrence, x.device):
                return self.cell.fused(x, tokens, carry, lengths)
        projected = self.cell.project(expand(x), tokens)
        outputs: List[Tensor] = []
        for t, at_step in enumerate(each_step(projected)):
            y, after = self.cell.step(at_step, carry)
            if t >= shortest:
                after = hold_still(lengths > t, after, carry)
                y = y * rows(lengths > t, y)
            carry = after
            outputs.append(y)
        return torch.stack(outputs), carry


def choose_recurrence(model: nn.Module, how: str) -> Dict[str, str]:
    """Set :attr:`Recurrent.recurrence` of all layers of a model.

    Returns:
        for each kind of cell, ``fused``, ``triton`` or ``naive``: what sequences will take (single steps are naive, but
        for those that use what a cell has kept).
    Raises:
        ValueError: ``fused`` or ``triton`` for a cell that has no kernel, ``triton`` without the package, or an unknown
            name.
    """
    if how not in RECURRENCES:
        raise ValueError(f"--recurrence {how} is not one of {', '.join(RECURRENCES)}")
    if how == "triton":
        check_triton()
    kernels = how if how == "triton" else "fused"
    taken = {}
    for layer in model.modules():
        if isinstance(layer, Recurrent):
            name = type(layer.cell).__name__
            if how in ("fused", "triton") and not layer.cell.has_fused:
                raise ValueError(f"--recurrence {how}: the cell {name} has no fused recurrence; take auto or naive")
            layer.recurrence = how
            taken[name] = kernels if how != "naive" and layer.cell.has_fused else "naive"
    return taken


class RecurrentStack(nn.Module):
    """Recurrent layers on top of each other, with dropout on the connections between them."""

    def __init__(self, cells: List[Cell], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Recurrent(cell) for cell in cells)
        self.dropout = Dropout(dropout, self)

    @property
    def hidden_size(self) -> int:
        return self.layers[-1].cell.hidden_size

    def initial_carry(self, batch_size: int) -> Carry:
        return tuple(layer.cell.initial_carry(batch_size) for layer in self.layers)

    def forward(self, x, tokens=None, lengths=None, carry: Carry = None) -> Tuple[Tensor, Carry]:
        """As :meth:`Recurrent.forward`; the carry is a tuple, one carry a layer."""
        before = carry if carry is not None else self.initial_carry(x.shape[1])
        after = []
        for number, layer in enumerate(self.layers):
            if number:
                x = self.dropout(x)
            x, layer_carry = layer(x, tokens, lengths, before[number])
            after.append(layer_carry)
        return x, tuple(after)
