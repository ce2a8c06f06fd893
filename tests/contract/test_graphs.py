"""The loops of kernels as CUDA graphs, against the naive twin: on a GPU where there is one. Elsewhere a recording is
pretended, which does the work again and copies what it gives to where the first time left it."""

import contextlib
import gc

import pytest
import test_fused
import test_fused_attentive
import torch
from test_fused import VOCABULARY, evaluate, fused_cells, make, same

from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.ops import graphs, recurrence
from rntn_plugins.registry import build_cell

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, BATCH, INPUT, HIDDEN = 4, 3, 2, 5
#: exact where a pretended recording computes; on a GPU sums are in another order
TOLERANCE = 1e-10


class Moving(Recurrent):
    """Computes on DEVICE, by recordings if it is to, what it is given and asked for on the CPU."""

    def forward(self, x, tokens=None, lengths=None, carry=None):
        from rntn_plugins.cells.base import Rows, map_carry

        x = Rows(x.distinct.to(DEVICE), x.index.to(DEVICE), x.fixed) if isinstance(x, Rows) else x.to(DEVICE)
        tokens, lengths = (None if each is None else each.to(DEVICE) for each in (tokens, lengths))
        carry = None if carry is None else map_carry(lambda part: part.to(DEVICE), carry)
        pretended = DEVICE == "cpu" and self.recurrence == "auto"
        with recurrence.recorded_by(graphs.take) if pretended else contextlib.nullcontext():
            outputs, after = super().forward(x, tokens, lengths, carry)
        return outputs.cpu(), map_carry(lambda part: part.cpu(), after)


def pretended(work, device, pool):
    result = work()

    def replay():
        for old, new in zip(graphs.tensors_in(result), graphs.tensors_in(work()), strict=True):
            if old.layout == torch.strided and not any(
                stride == 0 and size > 1 for stride, size in zip(old.stride(), old.shape)
            ):
                old.copy_(new)

    return replay, result, (0, 0)


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """A new one; and recordings that are pretended where there is no GPU."""
    found = graphs.Library()
    monkeypatch.setattr(graphs, "_library", found)
    if DEVICE == "cpu":
        monkeypatch.setattr(graphs, "stream_of", lambda device: 0)
        monkeypatch.setattr(graphs, "rehearse", lambda work, device: work())
        monkeypatch.setattr(graphs, "record", pretended)
        monkeypatch.setattr(graphs, "memory", lambda device: (0, 2**30))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


def layer_of(name, options=None, dtype=torch.float64) -> Recurrent:
    cell = make(name, options, INPUT, HIDDEN).cell if options is not None else make_plain(name)
    return Moving(cell).to(DEVICE, dtype)


def make_plain(name):
    torch.manual_seed(1)
    return build_cell(name, INPUT, HIDDEN, VOCABULARY)


def count(library) -> int:
    return sum(map(len, library.found.values()))


def compare(layer, lengths=None, use="both", tolerance=TOLERANCE, **more):
    lengths = None if lengths is None else torch.tensor(lengths)
    same(*(evaluate(layer, how, STEPS, BATCH, lengths, use, **more) for how in ("auto", "naive")), tolerance)


@pytest.mark.parametrize("name, options", fused_cells())
def test_same_function_as_the_naive_twin(name, options, library):
    """Whatever the values of inputs, lengths and weights, once the shape has come up often enough."""
    layer = layer_of(name, options)
    for number, lengths in enumerate([[4, 2, 0], [4, 4, 1], [0, 4, 3], [1, 0, 4], [4, 1, 4]]):
        compare(layer, use=("both", "outputs", "carry")[number % 3])
        assert count(library) == (1 if number + 1 == graphs.OFTEN else 2 * (number + 1 > graphs.OFTEN))
        compare(layer, lengths, use=("carry", "both", "outputs")[number % 3])
        assert count(library) == 2 * (number + 1 >= graphs.OFTEN) and not library.broken
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(0.7).add_(0.01)


def test_two_sequences_at_a_time(library):
    """Each has a recording of its own until its backward pass is over; gradients may be asked for twice."""
    layer = layer_of("gru")
    for _ in range(3):
        compare(layer)
    layer.recurrence = "auto"
    inputs = [torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64).requires_grad_() for _ in range(5)]
    outputs = [layer(x)[0] for x in inputs]
    (both,) = library.found.values()
    assert [loops.free for loops in both] == [False, False]
    found = [torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for x, y in zip(inputs, outputs)]
    losses = [y.square().sum() for y in outputs]
    again = [torch.autograd.grad(loss, x)[0] for x, loss in zip(inputs, losses)]
    with pytest.raises(RuntimeError, match="second (time|backward pass)"):
        outputs[0].sum().backward()
    layer.recurrence = "naive"
    expected = [layer(x)[0] for x in inputs]
    same(outputs, expected, TOLERANCE)
    exact = [torch.autograd.grad(y.square().sum(), x)[0] for x, y in zip(inputs, expected)]
    same(found, exact, TOLERANCE)
    same(again, exact, TOLERANCE)
    assert all(loops.free for loops in both) and losses  # though these hold on to the graph
    layer.recurrence = "auto"
    outputs = layer(inputs[0])[0]
    assert [loops.free for loops in both] == [False, True]
    del outputs
    gc.collect()
    assert [loops.free for loops in both] == [True, True]


def test_what_it_gave_stays_as_it_was(library):
    """Outputs, carries and gradients of leaves lie in memory of their own."""
    layer = layer_of("gru_rntn").to(DEVICE)
    layer.recurrence = "auto"
    kept = []
    for _ in range(6):
        x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64, device=DEVICE, requires_grad=True)
        outputs, (h,) = Recurrent.forward(layer, x) if DEVICE == "cuda" else layer(x)
        gradients = torch.autograd.grad(outputs.sum() + h.sum(), [x, *layer.parameters()])
        kept.append([(each, each.clone()) for each in (outputs, h, *gradients)])
    assert count(library) == 1
    assert all(each.equal(copy) for one in kept for each, copy in one)


def test_without_gradients(library):
    layer = layer_of("lstm").eval()
    x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64)
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        for _ in range(4):
            found = {}
            for layer.recurrence in ("auto", "naive"):
                with mode():
                    outputs, (h, c) = layer(x)
                found[layer.recurrence] = [outputs.clone(), h.clone(), c.clone()]
            same(*found.values(), TOLERANCE)
            x = x + 1
    assert count(library) == 1
    compare(layer)  # and then with gradients


def test_gradients_by_rows(library):
    cell = build_cell("r_rntn", INPUT, INPUT, VOCABULARY, gradients="row-sparse", num_matrices=4)
    layer = Moving(cell).to(DEVICE, torch.float64)
    for _ in range(5):
        compare(layer)
    assert count(library) == 1


@pytest.mark.parametrize("name", ["lstm", "gru", "elstm1"])
def test_with_attention(name, library):
    shape = test_fused_attentive.SHAPES[3]
    network = test_fused_attentive.make(name, next(test_fused.variants(name)), shape).to(DEVICE)
    for _ in range(5):
        with recurrence.recorded_by(graphs.take) if DEVICE == "cpu" else contextlib.nullcontext():
            recorded = test_fused_attentive.evaluate(network, "auto", shape)
        same(recorded, test_fused_attentive.evaluate(network, "naive", shape), TOLERANCE)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(0.9)
    assert count(library) == 1


def test_what_goes_without(library, monkeypatch):
    """Single steps, hooks on what is saved, and being recorded by others."""
    layer = layer_of("gru")
    for _ in range(4):
        same(*(evaluate(layer, how, 1, BATCH, None, "both") for how in ("auto", "naive")))
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            compare(layer)
    assert not library.missed
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(4):
        compare(layer)
    assert not library.missed and not library.found


def test_limits(library, monkeypatch):
    monkeypatch.setattr(graphs, "MOST", 1)
    layer = layer_of("elman")
    for steps in (3, 4):
        for _ in range(4):
            same(*(evaluate(layer, how, steps, BATCH, None, "both") for how in ("auto", "naive")))
    assert count(library) == 1
    monkeypatch.setattr(graphs, "MOST", 64)
    library.bytes = {torch.device(DEVICE, 0 if DEVICE == "cuda" else None): 2**50}
    compare(layer)
    assert count(library) == 1
    library.bytes.clear()
    compare(layer)
    assert count(library) == 2
    monkeypatch.setattr(graphs, "SHAPES", 2)
    for steps in range(5, 10):
        evaluate(layer, "auto", steps, BATCH, None, "both")
    assert len(library.missed) <= 3


def test_where_none_can_be_made(library, monkeypatch, caplog):
    monkeypatch.setattr(graphs, "rehearse", lambda *_: 1 / 0)
    layer = layer_of("elman")
    for _ in range(5):
        compare(layer)
    said = "no CUDA graphs, --recurrence auto goes without: ZeroDivisionError: division by zero"
    assert [record.getMessage() for record in caplog.records] == [said] and not library.found


def test_no_second_derivatives(library):
    layer = layer_of("gru")
    layer.recurrence = "auto"
    for _ in range(4):
        x = torch.randn(STEPS, BATCH, INPUT, dtype=torch.float64).requires_grad_()
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU")
@pytest.mark.parametrize("name", ["lstm", "gru", "gru_rntn", "r_lstm", "hornn_gated", "elman"])
def test_at_a_size_of_a_paper(name, library):
    """float32, H 254, 100 matrices: by Triton's kernels within the graph."""
    torch.manual_seed(1)
    cell = build_cell(name, 254, 254, Vocabulary(1000, None, 1.0 / torch.arange(1, 1001)))
    layer = Recurrent(cell).to(DEVICE)
    tokens = torch.randint(0, 1000, (35, 20), device=DEVICE)
    for _ in range(5):
        x, found = torch.randn(35, 20, 254, device=DEVICE, requires_grad=True), []
        for layer.recurrence in ("auto", "naive"):
            outputs, _ = layer(x, tokens)
            gradients = torch.autograd.grad(outputs.square().sum(), [x, *layer.parameters()], allow_unused=True)
            found.append([outputs, *(each.to_dense() for each in gradients if each is not None)])
        for a, b in zip(*found, strict=True):
            assert float((a - b).norm() / b.norm()) < 1e-4
    assert count(library) == 1
