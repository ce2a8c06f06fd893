"""Recurrent layers that read a sequence in both directions (Schuster and Paliwal 1997)."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from rntn_plugins.cells.base import Carry, Cell
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.layers.recurrent import Recurrent, RecurrentStack


def reverse_valid(x: Tensor, lengths: Optional[Tensor]) -> Tensor:
    """Each row's valid steps in reverse order; its padding stays behind them.

    Args:
        x: ``[T, B, ...]``.
        lengths: valid steps of each row ``[B]``; ``None``: all T.
    """
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(x.size(0), device=x.device).unsqueeze(1)  # [T, 1]
    source = lengths.to(x.device).unsqueeze(0) - 1 - steps  # [T, B]
    source = torch.where(source < 0, steps, source)
    return x.gather(0, source.view(*source.shape, *[1] * (x.dim() - 2)).expand_as(x))


class Bidirectional(nn.Module):
    """A forward and a backward recurrent layer side by side; outputs are concatenated."""

    def __init__(self, forward_cell: Cell, backward_cell: Cell) -> None:
        super().__init__()
        self.forward_layer = Recurrent(forward_cell)
        self.backward_layer = Recurrent(backward_cell)

    def forward(
        self, x: Tensor, tokens: Optional[Tensor] = None, lengths: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tuple[Carry, Carry]]:
        """
        Args:
            x: inputs ``[T, B, I]``.
            tokens: symbols ``[T, B]``, for token-indexed cells.
            lengths: valid steps of each row ``[B]``; ``None``: all T.
        Returns:
            outputs ``[T, B, 2H]`` (forward, backward), and the carries after the last valid step of the forward and
            after the first step of the backward direction.
        """
        ahead, carry_ahead = self.forward_layer(x, tokens, lengths)
        mirrored = None if tokens is None else reverse_valid(tokens, lengths)
        back, carry_back = self.backward_layer(reverse_valid(x, lengths), mirrored, lengths)
        return torch.cat([ahead, reverse_valid(back, lengths)], dim=-1), (carry_ahead, carry_back)


class BidirectionalStack(nn.Module):
    """Bidirectional layers on top of each other, with dropout on the connections between them."""

    def __init__(self, pairs: Sequence[Tuple[Cell, Cell]], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bidirectional(*pair) for pair in pairs)
        self.dropout = Dropout(dropout, self)

    @property
    def output_size(self) -> int:
        last = self.layers[-1]
        return last.forward_layer.cell.hidden_size + last.backward_layer.cell.hidden_size

    def forward(self, x, tokens=None, lengths=None) -> Tuple[Tensor, List[Tuple[Carry, Carry]]]:
        """As :meth:`Bidirectional.forward`; the carries are a list, one pair a layer."""
        carries = []
        for number, layer in enumerate(self.layers):
            if number:
                x = self.dropout(x)
            x, pair = layer(x, tokens, lengths)
            carries.append(pair)
        return x, carries


class Dependent(nn.Module):
    """The dependent bidirectional RNN (E18 eqs. (30)-(31), Fig. 3) up to its two hidden sequences.

    A lower bidirectional branch feeds an upper forward and an upper backward network; the caller gives each its own
    soft-max and pools the two.

    ============================  ================================================
    symbol                        attribute
    ============================  ================================================
    F_l^f, F_l^b                  lower (E18: one layer)
    F_u^f                         upper_forward
    F_u^b                         upper_backward
    ============================  ================================================
    """

    def __init__(
        self, lower: BidirectionalStack, upper_forward: RecurrentStack, upper_backward: RecurrentStack, dropout: float
    ) -> None:
        super().__init__()
        self.lower, self.upper_forward, self.upper_backward = lower, upper_forward, upper_backward
        self.dropout = Dropout(dropout, self)

    def forward(self, x, tokens=None, lengths=None) -> Tuple[Tensor, Tensor]:
        """
        Args:
            x, tokens, lengths: as for :meth:`Bidirectional.forward`.
        Returns:
            outputs of the upper forward and the upper backward network, ``[T, B, H]`` each, both in text order.
        """
        h, _ = self.lower(x, tokens, lengths)
        h = self.dropout(h)
        ahead, _ = self.upper_forward(h, tokens, lengths)
        mirrored = None if tokens is None else reverse_valid(tokens, lengths)
        back, _ = self.upper_backward(reverse_valid(h, lengths), mirrored, lengths)
        return ahead, reverse_valid(back, lengths)
