"""What recurrent layers read: their inputs on real text, and the steps before chosen positions of it.

Letters as in :mod:`rntn_plugins.cells.base`, and K lags, P positions. The window of a position t holds the steps from
t - K on, or from the start of its sequence, to t: at most W = K + 1.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from rntn_plugins.cells.base import Carry, Cell, each_step, expand, map_carry, zip_carry
from rntn_plugins.layers.bidirectional import Bidirectional
from rntn_plugins.layers.recurrent import Recurrent, RecurrentStack

PIECE = 16  # steps projected at a time: some cells pick a matrix for every step


def reading_layers(model: nn.Module) -> Tuple[nn.Module, str]:
    """The recurrent layers that read a model's embedded input from left to right, and their name in the model.

    A stack of one-directional layers is one network. In a bidirectional one all layers but the first read what both
    directions put out, so it is the forward direction of the first.

    Raises:
        ValueError: the model has no recurrent layer of this package.
    """
    for name, module in model.named_modules():  # in the order they were made in: what reads the input comes first
        if isinstance(module, (RecurrentStack, Recurrent)):
            return module, name
        if isinstance(module, Bidirectional):
            return module.forward_layer, f"{name}.forward_layer"
    raise ValueError(f"{type(model).__name__} has no recurrent layer of rntn_plugins")


def cells_of(layers: nn.Module) -> List[Cell]:
    """The cells of a :class:`RecurrentStack` or a :class:`Recurrent`, from the input on."""
    return [layer.cell for layer in getattr(layers, "layers", [layers])]


class Reached(Exception):
    """Ends a forward pass at the layers whose inputs are wanted."""


@torch.no_grad()
def inputs_of(model: nn.Module, layers: nn.Module, **inputs) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """What *layers* are given when the model reads *inputs*: x ``[T, B, I]``, tokens ``[T, B]`` and lengths ``[B]``
    (these two may be ``None``). The rest of the model is not run.

    Raises:
        ValueError: the model does not get there.
    """

    def stop(module, args, kwargs):
        raise Reached(inspect.signature(module.forward).bind(*args, **kwargs).arguments)

    hook = layers.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(**inputs)
    except Reached as reached:
        (found,) = reached.args
        return expand(found["x"]), found.get("tokens"), found.get("lengths")
    finally:
        hook.remove()
    raise ValueError(f"{type(model).__name__} does not use its first recurrent layers")


class Text(NamedTuple):
    """Sequences side by side; each starts from the initial state."""

    x: Tensor  # [T, B, I]
    tokens: Optional[Tensor]  # [T, B]
    lengths: Tensor  # [B]


def draw_positions(texts: Sequence[Text], count: int, generator: torch.Generator) -> List[Tuple[Text, Tensor, Tensor]]:
    """*count* different positions (or all, if there are fewer), each step of each sequence with the same probability:
    texts, with rows and steps ``[P']`` of the positions in them."""
    lengths = torch.cat([text.lengths for text in texts])
    ends = lengths.cumsum(0)
    chosen = torch.randperm(int(ends[-1]), generator=generator)[:count].sort().values
    row = torch.searchsorted(ends, chosen, right=True)  # in all texts
    step, found, first = chosen - (ends - lengths)[row], [], 0
    for text in texts:
        here = (row >= first) & (row < first + len(text.lengths))
        if here.any():
            found.append((text, row[here] - first, step[here]))
        first += len(text.lengths)
    return found


class Windows(NamedTuple):
    """What the cells read before some positions, with the states they started from and the factors they computed."""

    x: Tensor  # [W, P, I]; behind the end of a shorter window is anything
    tokens: Optional[Tensor]  # [W, P]
    lengths: Tensor  # [P], steps in each window
    carries: Tuple[Carry, ...]  # of every layer
    factors: Tuple[Dict[str, Tensor], ...]  # of every layer, what Cell.memory gave: [W, P, H] each

    def part(self, rows: slice) -> Windows:
        """Some of the positions, for unrolling: without the factors."""
        tokens = None if self.tokens is None else self.tokens[:, rows]
        carries = map_carry(lambda tensor: tensor[rows], self.carries)
        return Windows(self.x[:, rows], tokens, self.lengths[rows], carries, ())


@torch.no_grad()
def read(cells: Sequence[Cell], text: Text, rows: Tensor, ends: Tensor, lags: int) -> Windows:
    """Step through a text and keep the windows of positions, given by their rows ``[P]`` and steps t ``[P]``."""
    starts = (ends - lags).clamp(min=0)
    steps = int(ends.max()) + 1
    places = (starts + torch.arange(lags + 1).unsqueeze(1)).clamp(max=steps - 1)  # [W, P]
    inputs, tokens = text.x[:steps], None if text.tokens is None else text.tokens[:steps]
    carries, factors = [], []
    for cell in cells:
        # copies: tensors of an initial carry may be one and the same
        carry, kept = cell.initial_carry(inputs.size(1)), map_carry(torch.clone, cell.initial_carry(len(rows)))
        outputs, found = [], defaultdict(list)
        for start in range(0, steps, PIECE):
            piece = slice(start, start + PIECE)
            for at_step in each_step(cell.project(inputs[piece], None if tokens is None else tokens[piece])):
                here = (starts == len(outputs)).nonzero().squeeze(1)
                zip_carry(lambda into, now, here=here: into.index_copy_(0, here, now[rows[here]]), kept, carry)
                for name, value in cell.memory(at_step, carry).items():
                    found[name].append(value)
                y, carry = cell.step(at_step, carry)
                outputs.append(y)
        inputs = torch.stack(outputs)
        carries.append(kept)
        factors.append({name: torch.stack(values)[places, rows] for name, values in found.items()})
    read_tokens = None if tokens is None else tokens[places, rows]
    return Windows(text.x[places, rows], read_tokens, ends - starts + 1, tuple(carries), tuple(factors))


def join(parts: Sequence[Windows]) -> Windows:
    """Windows of several texts as one."""

    def cat(one: Windows, other: Windows) -> Windows:
        tokens = None if one.tokens is None else torch.cat([one.tokens, other.tokens], dim=1)
        carries = zip_carry(lambda a, b: torch.cat([a, b]), one.carries, other.carries)
        factors = [
            {name: torch.cat([a[name], b[name]], dim=1) for name in a} for a, b in zip(one.factors, other.factors)
        ]
        x, lengths = torch.cat([one.x, other.x], dim=1), torch.cat([one.lengths, other.lengths])
        return Windows(x, tokens, lengths, carries, tuple(factors))

    joined, *rest = parts
    for part in rest:
        joined = cat(joined, part)
    return joined
