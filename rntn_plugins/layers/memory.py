"""How far back an input still moves the output of recurrent layers: the memory analysis of E18 §2-3, measured.

E18 (Su et al. 2018) calls memory the function that maps an element of the sequence to the current output. Of a trained
network that is the Jacobian ∂h_t/∂x_{t-k} at every lag k, and ∂c_t/∂x_{t-k} where the cell has a state c apart from h.
What E18 itself compares is the factor by which the direct path from c_{t-k} to c_t fades: W_c^k (3), the product of the
forget gates (8) or update gates (19), and s_{t-k} times that product (24). :func:`analyse` measures them on real text.

Letters as in :mod:`rntn_plugins.layers.windows`. Whatever goes by lag is NaN where a sequence does not reach that far
back.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from rntn_plugins.cells.base import Cell
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.layers.windows import Text, Windows, cells_of, draw_positions, join, read

ROWS = 32  # windows unrolled at a time: tensor cells keep H² numbers of every row and step


class Layer(NamedTuple):
    """What is known of one layer; ``None`` where its cell has no such thing."""

    cell: str  # the name of its class
    state: Optional[Tensor]  # [W, P], ‖∂c_t/∂x_{t-k}‖
    kept: Optional[Tensor]  # [W, P], mean over the units of Π_{j=t-k+1..t} of what a step kept, E18 (8), (19)
    scaled: Optional[Tensor]  # [W, P], mean over the units of |s_{t-k} times that product|, E18 (24)-(25)
    scale: Optional[Tensor]  # [positions, H], s
    powers: Optional[Tensor]  # [W], ‖W_c^k‖₂, E18 (3)
    bound: Optional[Tensor]  # [W], λ_max^k, E18 (5)


class Analysis(NamedTuple):
    """The result of :func:`analyse`."""

    output: Tensor  # [W, P], ‖∂h_t/∂x_{t-k}‖, h the output of the last layer, x the input of the first
    layers: Tuple[Layer, ...]


def analyse(
    layers: nn.Module, texts: Sequence[Text], lags: int = 60, positions: int = 200, probes: int = 16, seed: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Analysis:  # fmt: skip
    """The memory of recurrent layers at random positions of real text.

    Args:
        layers: a ``RecurrentStack`` or a ``Recurrent`` (see :func:`~rntn_plugins.layers.windows.reading_layers`).
        texts: what they read (see :func:`~rntn_plugins.layers.windows.inputs_of`).
        lags: K, at least 1.
        positions: P, at least 1; all there are, if fewer.
        probes: vector-Jacobian products for each Jacobian, at least 1; with H or more its norm is exact.
        seed: of positions and probes.
        progress: told how many positions are done, of how many.
    Raises:
        ValueError: a number below 1, or texts without a token.
    """
    for name, value in (("lags", lags), ("positions", positions), ("probes", probes)):
        if value < 1:
            raise ValueError(f"--{name} {value} must be at least 1")
    if not sum(int(text.lengths.sum()) for text in texts):
        raise ValueError("there is not one token to read")
    generator, cells = torch.Generator().manual_seed(seed), cells_of(layers)
    drawn = draw_positions(texts, positions, generator)
    windows = join([read(cells, text, rows, ends, lags) for text, rows, ends in drawn])
    outputs, states = [], [[] for _ in cells]
    for start in range(0, len(windows.lengths), ROWS):
        output, of_states = jacobian_norms(cells, windows.part(slice(start, start + ROWS)), probes, generator)
        outputs.append(output)
        for into, state in zip(states, of_states):
            into.append(state)
        progress(min(start + ROWS, len(windows.lengths)), len(windows.lengths))
    found = []
    for cell, state, factors in zip(cells, states, windows.factors):
        state = None if state[0] is None else torch.cat(state, dim=1)
        found.append(Layer(type(cell).__name__, state, *fading(factors, windows.lengths), *weights(cell, lags)))
    return Analysis(torch.cat(outputs, dim=1), tuple(found))


# ---- Jacobians -------------------------------------------------------------------------------------------------------


def jacobian_norms(
    cells: Sequence[Cell], windows: Windows, probes: int, generator: torch.Generator
) -> Tuple[Tensor, List[Optional[Tensor]]]:
    """Frobenius norms of ∂h_t/∂x_{t-k}, and for every layer of ∂c_t/∂x_{t-k} (``None`` where its state has no ``c``):
    ``[W, P]`` by lag.

    Vector-Jacobian products of autograd through the cells' own steps: H of them for the exact norm, or as many random
    ones as *probes* says (:func:`make_probes`).
    """
    y = x = windows.x.detach().requires_grad_()
    states: List[Optional[Tensor]] = []
    with torch.enable_grad():
        for cell, carry in zip(cells, windows.carries):
            layer = Recurrent(cell)
            layer.recurrence = "naive"
            y, after = layer(y, windows.tokens, windows.lengths, carry)
            states.append(getattr(after, "c", None))
        last = y[windows.lengths - 1, torch.arange(y.size(1))]

    def norms(output: Tensor) -> Tensor:
        squares, vectors = 0, make_probes(probes, *output.shape, generator).to(output.dtype)
        for vector in vectors:
            (found,) = torch.autograd.grad(output, x, vector, retain_graph=True)
            squares = squares + found.double().square().sum(-1)  # in float32 squares of small ones would vanish
        return by_lag((squares * (output.size(1) / len(vectors))).sqrt(), windows.lengths)

    return norms(last), [None if state is None else norms(state) for state in states]


def make_probes(count: int, rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Vectors to multiply *rows* Jacobians J of *size* outputs with from the left: ``[count, rows, size]``.

    Orthonormal ones v in random directions: every direction has the same share in them, so that Σ ‖v J‖² · size / count
    is the squared Frobenius norm of J in expectation (a Hutchinson estimate; orthogonal vectors vary less than
    independent ones). Every row has its own, so that errors average out over positions. From ``count = size`` on unit
    vectors make it exact.
    """
    if count >= size:
        return torch.eye(size).unsqueeze(1).expand(size, rows, size)
    drawn = torch.randn(rows, size, count, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.permute(2, 0, 1)


# ---- factors ---------------------------------------------------------------------------------------------------------


def by_lag(values: Tensor, lengths: Tensor) -> Tensor:
    """Values of the steps of windows, ``[W, P, ...]``, as those of the lags 0 to K."""
    source = lengths - 1 - torch.arange(len(values)).unsqueeze(1)  # [W, P]
    found = values[source.clamp(min=0), torch.arange(values.size(1))]
    return found.masked_fill((source < 0).view(*source.shape, *[1] * (values.dim() - 2)), float("nan"))


def products(kept: Tensor, lengths: Tensor) -> Tensor:
    """Π_{j=t-k+1..t} of what the steps kept, element by element: ``[W, P, H]`` by step to ``[W, P, H]`` by lag k. It is
    1 at lag 0."""
    factors = by_lag(kept.double(), lengths)
    before = torch.cat([torch.ones_like(factors[:1]), factors[:-1]])
    return torch.where(factors.isnan(), factors, before.cumprod(0))


def fading(factors: Dict[str, Tensor], lengths: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """``kept`` and ``scaled`` of a :class:`Layer`, from what ``Cell.memory`` gave at every step."""
    if "kept" not in factors:
        return None, None
    product = products(factors["kept"], lengths)
    if "scale" not in factors:
        return product.mean(-1), None
    return product.mean(-1), (by_lag(factors["scale"], lengths) * product).abs().mean(-1)


@torch.no_grad()
def weights(cell: Cell, lags: int) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """``scale``, ``powers`` and ``bound`` of a :class:`Layer`."""
    found = cell.memory_weights()
    scale, matrix = found.get("scale"), found.get("matrix")
    if matrix is None:
        return scale, None, None
    powers = [torch.eye(len(matrix), dtype=torch.float64)]
    for _ in range(lags):
        powers.append(powers[-1] @ matrix.double())
    norms = torch.linalg.matrix_norm(torch.stack(powers), 2)
    return scale, norms, norms[1] ** torch.arange(lags + 1)
