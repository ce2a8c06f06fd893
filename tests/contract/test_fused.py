"""Every fused recurrence against its naive twin: outputs, final carry, all gradients."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Rows, Vocabulary, carry_tensors, map_carry
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.ops import bilinear, scratch
from rntn_plugins.registry import get_cell

K, V = 4, 11
VOCABULARY = Vocabulary(V, [f"w{i}" for i in range(V)], torch.tensor([0, 0, 9, 7, 5, 5, 4, 3, 2, 1, 1]))
#: options with more values than one that change what is computed, beside those with choices
VALUES = {
    "num_matrices": [K], "order": [3, 1], "identity_input": [False], "positions": [3], "forgetting_factor": [0.6],
    "factor_size": [0, 4], "indexed_gates": [None, "all"],
}  # fmt: skip


def variants(name: str):
    """Every combination of a cell's options that changes what it computes."""
    options = get_cell(name).Options()
    named = {}
    for field in dataclasses.fields(options):
        if field.metadata.get("choices"):
            named[field.name] = list(field.metadata["choices"])
        elif field.name in VALUES:
            named[field.name] = VALUES[field.name]
    for values in itertools.product(*named.values()):
        chosen = dict(zip(named, values))
        if "indexed_gates" in chosen:
            gates = get_cell(name).gates
            chosen["indexed_gates"] = ",".join(gates) if chosen["indexed_gates"] else options.indexed_gates
        yield chosen


def make(name: str, options: dict, input_size: int, hidden_size: int) -> Recurrent:
    torch.manual_seed(1)
    layer = Recurrent(build_cell(name, input_size, hidden_size, VOCABULARY, **options)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return layer


def evaluate(layer: Recurrent, how: str, steps: int, batch: int, lengths, use, distinct=0, seed=2):
    """Outputs, final carry and the gradients of x, initial carry and parameters of a random function of what *use*
    names; with so many *distinct* inputs, if any number is given."""
    layer.recurrence = how
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=layer.cell.zeros(1).dtype)

    leaf = normal(*([distinct] if distinct else [steps, batch]), layer.cell.input_size).requires_grad_()
    x = Rows(leaf, torch.randint(0, distinct, (steps, batch), generator=random)) if distinct else leaf
    tokens = torch.randint(0, V, (batch, steps), generator=random).t()  # models turn batch-first ones round
    carry = map_carry(
        lambda part: normal(*part.shape).requires_grad_() if part.is_floating_point() else part + 2,
        layer.cell.initial_carry(batch),
    )
    outputs, after = layer(x, tokens, lengths, carry)
    results = [outputs, *carry_tensors(after)]
    weighed = [normal(*part.shape) for part in results]
    pairs = {"outputs": slice(0, 1), "carry": slice(1, None), "both": slice(None)}[use]
    loss = sum((a * b).sum() for a, b in zip(results[pairs], weighed[pairs]) if a.is_floating_point())
    leaves = [leaf, *(part for part in carry_tensors(carry) if part.is_floating_point()), *layer.parameters()]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    gradients = [torch.zeros_like(leaf) if g is None else g.to_dense() for leaf, g in zip(leaves, gradients)]
    return [*results, *gradients]


def same(one, other, tolerance=1e-10):
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and a.isfinite().all()
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


SHAPES = [  # steps, batch, I, H, lengths
    (6, 3, 5, 7, None),
    (6, 4, 5, 3, [6, 2, 0, 4]),
    (5, 3, 2, 4, [4, 4, 3]),
    (5, 1, 3, 5, [4]),
    (1, 1, 3, 5, None),
    (4, 2, 1, 1, [4, 4]),
]


def fused_cells():
    for name in cell_names():
        for options in variants(name):
            if make(name, options, 4, 4).cell.has_fused:
                yield pytest.param(name, options, id="-".join([name, *map(str, options.values())]))


@pytest.fixture(autouse=True)
def however_few(monkeypatch):
    """Tensor products go by inputs wherever these repeat."""
    monkeypatch.setattr(bilinear, "FEW", 1)


@pytest.mark.parametrize("name, options", fused_cells())
def test_same_function_as_the_naive_twin(name, options):
    for (steps, batch, input_size, hidden, lengths), use in zip(SHAPES, itertools.cycle(["both", "outputs", "carry"])):
        layer = make(name, options, input_size, hidden)
        lengths = None if lengths is None else torch.tensor(lengths)
        same(*(evaluate(layer, how, steps, batch, lengths, use) for how in ("fused", "naive")))
    lengths = torch.tensor([4, 0, 2])
    same(*(evaluate(make(name, options, 3, 4), how, 4, 3, lengths, "both", distinct=5) for how in ("fused", "naive")))


@pytest.mark.parametrize("name", ["gru_rntn", "lstm_rntn"])
@pytest.mark.parametrize("way, on_gpu", [("ByRow", False), ("ByRow", True), ("ByState", False), ("ByState", True)])
def test_ways_of_the_tensor_product(name, way, on_gpu, monkeypatch):
    """By row, in blocks of two steps and one line and in memory used again, or all steps at once as a GPU has them; by
    state, where by row has no memory."""
    taken = []
    monkeypatch.setattr(bilinear, "on_gpu", lambda _: on_gpu)
    monkeypatch.setattr(bilinear, "AS_MANY", 0)
    for each in (bilinear.ByRow, bilinear.ByState):
        monkeypatch.setattr(each, "finish", lambda self, *given, each=each, finish=each.finish: taken.append(
            each.__name__) or finish(self, *given))  # fmt: skip
    monkeypatch.setattr(bilinear, "VERY_MANY", 0)
    monkeypatch.setattr(bilinear, "KEPT", 0 if way == "ByState" else bilinear.KEPT)
    monkeypatch.setattr(scratch, "SMALL", 0)
    for steps, batch, input_size, hidden, lengths in [
        (5, 3, 5, 7, None),
        (6, 4, 5, 3, [6, 2, 0, 4]),
        (2, 1, 1, 1, None),
    ]:
        monkeypatch.setattr(bilinear, "BLOCK", 2 * batch * hidden**2)
        monkeypatch.setattr(bilinear, "ON_GPU" if on_gpu else "CACHED", steps * batch * hidden)
        lengths = None if lengths is None else torch.tensor(lengths)
        layer = make(name, {}, input_size, hidden)
        for _ in range(2):
            same(*(evaluate(layer, how, steps, batch, lengths, "both") for how in ("fused", "naive")))
    assert taken == [way] * 6


@pytest.mark.parametrize("block, windows", [(1, [1] * 5), (2, [3, 2]), (4, [5]), (9, [5])])
def test_windows_of_the_tensor_product(block, windows, monkeypatch):
    """The first is a step longer than the others; where one step is large already, it is not two."""
    rows, product = [], bilinear.product
    monkeypatch.setattr(bilinear, "product", lambda a, b: rows.append(len(a)) or product(a, b))
    monkeypatch.setattr(bilinear, "BLOCK", block * 3 * 4**2)
    by_row = bilinear.ByRow(torch.randn(5, 3, 2), torch.randn(2, 4, 4))
    by_row.start(SimpleNamespace(), keep=False)
    h, out = torch.randn(5, 3, 4), torch.zeros(5, 3, 4)
    for t in range(5):
        by_row.add(t, h[t], out[t])
    assert rows == [3 * steps for steps in windows]
    torch.testing.assert_close(out, torch.einsum("tbi,ijk,tbj->tbk", by_row.x, by_row.tensor, h))


@pytest.mark.parametrize("name", cell_names())
def test_same_function_by_onednn(name, all_by_onednn):
    """Float32, with every product left to oneDNN, and plain LSTMs to its own."""
    layer = make(name, next(variants(name)), 5, 6).float()
    if layer.cell.has_fused:
        for distinct, lengths in ((0, None), (4, torch.tensor([4, 1, 3]))):
            found = (evaluate(layer, how, 4, 3, lengths, "both", distinct) for how in ("fused", "naive"))
            same(*found, tolerance=1e-4)
