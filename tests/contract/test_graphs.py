"""The loops of kernels as CUDA graphs, against the naive twin: on a GPU where there is one. Elsewhere a recording is
pretended, which does the work again and copies what it gives to where the first time left it."""

import contextlib
import contextvars
import gc
import itertools
import os

import pytest
import test_fused
import test_fused_attentive
import torch
from test_fused import VOCABULARY, evaluate, fused_cells, make, same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rntn_plugins.cells.base import Rows, Vocabulary, map_carry
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.ops import attentive, bilinear, elman, graphs, gru_rntn, recurrence
from rntn_plugins.registry import build_cell

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":  # as test_triton.py does
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
from rntn_plugins.ops import triton_cells, triton_kernels  # noqa: E402

STEPS, BATCH, INPUT, HIDDEN = 4, 3, 2, 5
#: exact where a pretended recording computes; on a GPU sums are in another order
TOLERANCE = 1e-10


class Moving(Recurrent):
    """Computes on DEVICE, by recordings if it is to, what it is given and asked for on the CPU."""

    def forward(self, x, tokens=None, lengths=None, carry=None):
        x = Rows(x.distinct.to(DEVICE), x.index.to(DEVICE), x.fixed) if isinstance(x, Rows) else x.to(DEVICE)
        tokens, lengths = (None if each is None else each.to(DEVICE) for each in (tokens, lengths))
        carry = None if carry is None else map_carry(lambda part: part.to(DEVICE), carry)
        pretended = DEVICE == "cpu" and self.recurrence == "auto"
        with recurrence.recorded_by(graphs.take) if pretended else contextlib.nullcontext():
            outputs, after = super().forward(x, tokens, lengths, carry)
        return outputs.cpu(), map_carry(lambda part: part.cpu(), after)


def pretended(work, device, pool):
    result, then = work(), contextvars.copy_context()

    def replay():
        for old, new in zip(graphs.tensors_in(result), graphs.tensors_in(then.run(work)), strict=True):
            if old.layout == torch.strided and not any(
                stride == 0 and size > 1 for stride, size in zip(old.stride(), old.shape)
            ):
                old.copy_(new)

    return replay, result


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """A new one; and recordings that are pretended where there is no GPU."""
    found = graphs.Library()
    monkeypatch.setattr(graphs, "_library", found)
    if DEVICE == "cpu":
        monkeypatch.setattr(graphs, "stream_of", lambda device: 0)
        monkeypatch.setattr(graphs, "rehearse", lambda work, device: work())
        monkeypatch.setattr(graphs, "record", pretended)
        monkeypatch.setattr(graphs, "new_pool", lambda: (0, 0))
        monkeypatch.setattr(graphs, "allocated", lambda device: 0)
        monkeypatch.setattr(graphs, "total_memory", lambda device: 2**40)
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
    """Whatever the values of inputs, symbols, lengths and weights, once the shape has come up often enough."""
    layer = layer_of(name, options)
    for number, lengths in enumerate([[4, 2, 0], [4, 4, 1], [0, 4, 3], [1, 0, 4], [4, 1, 4]]):
        compare(layer, use=("both", "outputs", "carry")[number % 3], seed=number)
        assert count(library) == (1 if number + 1 == graphs.OFTEN else 2 * (number + 1 > graphs.OFTEN))
        compare(layer, lengths, use=("carry", "both", "outputs")[number % 3], seed=10 + number)
        assert count(library) == 2 * (number + 1 >= graphs.OFTEN) and not library.broken
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(0.7).add_(0.01)


@pytest.mark.parametrize("name", ["gru_rntn", "lstm_rntn"])
@pytest.mark.parametrize("way", ["ByInput", "ByRow", "ByState"])
def test_ways_of_the_tensor_product(name, way, library, monkeypatch):
    """Those of a GPU; by state where by row would take too much of the room that is left."""
    taken = []
    for each in (bilinear.ByInput, bilinear.ByRow, bilinear.ByState):
        monkeypatch.setattr(each, "finish", lambda self, *given, each=each, finish=each.finish: taken.append(
            each.__name__) or finish(self, *given))  # fmt: skip
    monkeypatch.setattr(bilinear, "on_gpu", lambda _: True)
    monkeypatch.setattr(bilinear, "AS_MANY", 1)
    monkeypatch.setattr(bilinear, "FEW", 1)
    if way == "ByState":
        monkeypatch.setattr(graphs, "PART", graphs.total_memory(DEVICE))
    layer = Moving(build_cell(name, BATCH + 1, HIDDEN)).to(DEVICE, torch.float64)
    rehearsed, rehearse = [], graphs.rehearse
    monkeypatch.setattr(graphs, "rehearse", lambda *given: rehearsed.append(1) or rehearse(*given))
    for number in range(5):
        for lengths in (None, [4, 2, 0]):
            compare(layer, lengths, seed=number, distinct=5 if way == "ByInput" else 0)
            recorded = number + 1 >= graphs.OFTEN
            assert taken.pop() == (way if recorded or way == "ByInput" else "ByRow")
            layer.eval()
            with torch.no_grad():
                compare_without(layer, lengths, number, 5 if way == "ByInput" else 0)
    assert count(library) == 4 and len(rehearsed) == (6 if way == "ByState" else 4), "what has nothing to spare once"


def test_a_twin_that_fails_when_there_is_little_room(library, monkeypatch, caplog):
    """The kernel itself then keeps as little."""

    class Twin(gru_rntn.GRURNTN):
        def backward(self, *given):
            if bilinear.may_keep():
                return super().backward(*given)
            raise NotImplementedError("no compiler")

    monkeypatch.setattr(graphs, "twin_on", lambda kernel, device: Twin)
    monkeypatch.setattr(graphs, "PART", graphs.total_memory(DEVICE))
    monkeypatch.setattr(bilinear, "on_gpu", lambda _: True)
    monkeypatch.setattr(bilinear, "AS_MANY", 1)
    layer = Moving(build_cell("gru_rntn", BATCH + 1, HIDDEN)).to(DEVICE, torch.float64)
    for number in range(5):
        compare(layer, seed=number)
    said = "no Triton in CUDA graphs of Twin: NotImplementedError: no compiler"
    assert [record.getMessage() for record in caplog.records] == [said] and count(library) == 1
    ((loops,),) = library.found.values()
    assert isinstance(loops.behind.product, bilinear.ByState)


def compare_without(layer, lengths, seed, distinct):
    """Without gradients."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS, BATCH, layer.cell.input_size, dtype=torch.float64, generator=random)
    if distinct:
        x = Rows(x.flatten(0, 1)[:distinct], torch.randint(distinct, (STEPS, BATCH), generator=random))
    lengths = None if lengths is None else torch.tensor(lengths)
    found = []
    for layer.recurrence in ("auto", "naive"):
        outputs, carry = layer(x, lengths=lengths)
        found.append([outputs, *carry])
    same(*found, TOLERANCE)


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
    """Outputs, carries and gradients, of what goes straight into a kernel too, lie in memory of their own."""
    kept = []
    for _ in range(6):
        x, weight, h = (torch.randn(*shape, dtype=torch.float64, device=DEVICE, requires_grad=True)
                        for shape in ((STEPS, BATCH, HIDDEN), (HIDDEN, HIDDEN), (BATCH, HIDDEN)))  # fmt: skip
        with recurrence.recorded_by(graphs.take):
            outputs, (after,) = recurrence.run(elman.Elman, ("tanh",), [x, weight], [h])
        gradients = torch.autograd.grad(outputs.square().sum() + after.square().sum(), [x, weight, h])
        kept.append([(each.detach(), each.detach().clone()) for each in (outputs, after, *gradients)])
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
    for number in range(5):
        compare(layer, seed=number)
    assert count(library) == 1


@pytest.mark.parametrize("name", ["lstm", "gru", "elstm1"])
def test_with_attention(name, library):
    shape = test_fused_attentive.SHAPES[3]
    network = test_fused_attentive.make(name, next(test_fused.variants(name)), shape).to(DEVICE)
    for number in range(5):
        with recurrence.recorded_by(graphs.take) if DEVICE == "cpu" else contextlib.nullcontext():
            recorded = test_fused_attentive.evaluate(network, "auto", shape, seed=number)
        same(recorded, test_fused_attentive.evaluate(network, "naive", shape, seed=number), TOLERANCE)
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


def times(layer, number, steps=STEPS, tolerance=TOLERANCE):
    for seed in range(number):
        same(*(evaluate(layer, how, steps, BATCH, None, "both", seed=seed) for how in ("auto", "naive")), tolerance)


def test_how_many(library, monkeypatch):
    """At most MOST; those that are stale give way, and those that nobody holds are released when asked for."""
    monkeypatch.setattr(graphs, "MOST", 1)
    layer = layer_of("elman")
    times(layer, 4, steps=3)
    times(layer, 4, steps=5)
    assert [key[-3][0][0] for key in library.found] == [3]
    library.sequences += graphs.STALE
    times(layer, 1, steps=3)
    times(layer, 1, steps=5)
    assert [key[-3][0][0] for key in library.found] == [3]  # it was taken a moment ago
    library.sequences += graphs.STALE + 1
    times(layer, 1, steps=5)
    assert [key[-3][0][0] for key in library.found] == [5]
    layer.recurrence, x = "auto", torch.randn(5, BATCH, INPUT, dtype=torch.float64).requires_grad_()
    with recurrence.recorded_by(graphs.take) if DEVICE == "cpu" else contextlib.nullcontext():
        outputs = layer(x, carry=layer.cell.initial_carry(BATCH))[0]
    graphs.release()
    assert count(library) == 1
    del outputs
    gc.collect()
    graphs.release()
    assert count(library) == 0
    monkeypatch.setattr(graphs, "SHAPES", 2)
    for steps in range(5, 10):
        evaluate(layer, "auto", steps, BATCH, None, "both")
    assert len(library.missed) <= 3


def test_how_large(library, monkeypatch):
    """Of the memory, and of what each sequence would copy."""
    layer = layer_of("elman")
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "total_memory", lambda device: graphs.SHARE * graphs.SEGMENTS - 1)
        times(layer, 4)
        assert not library.found and graphs.NEVER not in library.missed.values()
        used = iter([0, 2])
        patch.setattr(graphs, "allocated", lambda device: next(used))
        patch.setattr(graphs, "total_memory", lambda device: graphs.SHARE * (graphs.SEGMENTS + 1))
        times(layer, 4)
        assert not library.found and list(library.missed.values()) == [graphs.NEVER + 3]  # the first sets it
    library.missed.clear()
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "LARGE", HIDDEN * HIDDEN * 8 - 1)
        times(layer, 4)
        assert not library.found
    library.missed.clear()
    times(layer, 4)
    assert count(library) == 1 and next(iter(library.found.values()))[0].bytes >= graphs.SEGMENTS


def test_where_none_can_be_made(library, monkeypatch, caplog):
    """What fails while it is recorded is the end of all recordings, and its first cause is said."""

    def fails(*_):
        try:
            raise ZeroDivisionError("by nothing\nat all")
        finally:
            raise RuntimeError("previous error during capture")

    monkeypatch.setattr(graphs, "record", fails)
    for name in ("elman", "gru"):
        times(layer_of(name), 4)
    said = "no CUDA graphs, --recurrence auto goes without: ZeroDivisionError: by nothing"
    assert [record.getMessage() for record in caplog.records] == [said] and not library.found


def test_what_fails_before_it_is_recorded(library, monkeypatch, caplog):
    """A twin gives way to the kernel itself; too little memory, or a kernel that fails, to no recording of it."""
    rehearse = graphs.rehearse

    class Twin(elman.Elman):
        def forward(self, *given):
            raise NotImplementedError("no compiler")

    monkeypatch.setattr(graphs, "twin_on", lambda kernel, device: {elman.Elman: Twin}.get(kernel, kernel))
    layer = layer_of("elman")
    times(layer, 5)
    said = "no Triton in CUDA graphs of Twin: NotImplementedError: no compiler"
    assert [record.getMessage() for record in caplog.records] == [said] and count(library) == 1
    for error in (torch.cuda.OutOfMemoryError("none left"), ValueError("of the kernel")):

        def fails(work, device, error=error):
            raise error

        monkeypatch.setattr(graphs, "rehearse", fails)
        times(layer, 5, steps=STEPS + 1)
        assert count(library) == 1 and min(library.missed.values()) < 0 and not library.broken
        library.missed.clear()
    monkeypatch.setattr(graphs, "rehearse", rehearse)
    times(layer, 5, steps=STEPS + 1)
    assert count(library) == 2


def test_kernels_from_elsewhere(library, monkeypatch):
    """Only those that say of themselves that they may be; and what they give lies in memory of its own, too."""

    class Mine(elman.Elman):
        pass

    Mine.__module__ = "user_dir.kernels"
    monkeypatch.setattr("rntn_plugins.cells.elman.ops.Elman", Mine)
    layer = layer_of("elman")
    times(layer, 5)
    assert not library.found
    Mine.recordable = True
    kept = []
    for seed in range(5):
        kept.append((evaluate(layer, "auto", STEPS, BATCH, None, "both", seed=seed),
                     evaluate(layer, "naive", STEPS, BATCH, None, "both", seed=seed)))  # fmt: skip
    assert count(library) == 1
    for found, expected in kept:
        same(found, expected, TOLERANCE)
    assert not graphs.recordable(type("Other", (Mine,), {"__module__": "user_dir.kernels"}))


def test_by_the_twins_of_triton(monkeypatch):
    monkeypatch.setattr(graphs, "twin_on", lambda kernel, device: (kernel, device))
    assert graphs.twinned(elman.Elman, ("tanh",), "gpu") == ((elman.Elman, "gpu"), ("tanh",))
    inner = (elman.Elman, ("tanh",), 2)
    assert graphs.twinned(attentive.Attentive, inner, "gpu") == (attentive.Attentive, ((inner[0], "gpu"), *inner[1:]))


def test_what_torch_does_not_say(monkeypatch):
    """Before 2.8 it does not tell of hooks on saved tensors; a setting of torch's is a shape of its own."""
    assert graphs.usable()
    monkeypatch.setattr(graphs, "_hooks", None)
    assert not graphs.usable()
    before = graphs.settings_of_torch()
    torch.use_deterministic_algorithms(True)
    try:
        assert graphs.settings_of_torch() != before
    finally:
        torch.use_deterministic_algorithms(False)
    assert graphs.settings_of_torch() == before


class Watch(TorchDispatchMode):
    """Refuses what cannot be recorded: what asks the host, tensors on the host, indices that are masks."""

    ASKING = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select",
              "equal", "is_nonzero", "repeat_interleave", "bincount", "_pin_memory"}  # fmt: skip

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        name, result = function._schema.name.split("::")[1], function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        assert name not in self.ASKING and all(each.device.type == "meta" for each in tensors), name
        if name.startswith(("index.", "index_put", "_index_put")) or name == "index":
            assert all(each is None or each.dtype != torch.bool for each in args[1]), name
        return result


LAUNCHERS = [name for name, value in vars(triton_kernels).items()
             if callable(value) and not name.startswith("_") and value.__module__ == triton_kernels.__name__
             and name not in ("Optional", "Tuple")]  # fmt: skip


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("name, options", fused_cells())
def test_loops_ask_nothing_of_the_host(name, options, triton, monkeypatch):
    """On tensors without values nothing can be asked. Tensor products go by state here."""
    loops_on_nothing(make(name, options, INPUT, HIDDEN), triton, monkeypatch)


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("name", ["gru_rntn", "lstm_rntn"])
@pytest.mark.parametrize("way", ["ByInput", "ByRow"])
def test_nor_do_the_ways_of_the_tensor_product(name, way, triton, monkeypatch):
    monkeypatch.setattr(bilinear, "on_gpu", lambda _: True)
    monkeypatch.setattr(bilinear, "AS_MANY", 1)
    monkeypatch.setattr(bilinear, "FEW", 1)
    made, start = [], getattr(bilinear, way).start
    monkeypatch.setattr(getattr(bilinear, way), "start", lambda *given: made.append(1) or start(*given))
    layer = make(name, {}, BATCH + 1, HIDDEN)
    loops_on_nothing(layer, triton, monkeypatch, distinct=5 if way == "ByInput" else 0)
    assert len(made) == 6


def loops_on_nothing(layer, triton, monkeypatch, **more):
    seen = []
    with recurrence.recorded_by(lambda *given: seen.append(given)):
        for lengths in (None, torch.tensor([4, 0, 2])):
            evaluate(layer, "fused", STEPS, BATCH, lengths, "both", **more)
    assert len(seen) == 2
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: contextlib.nullcontext())
    if triton:
        assert len(LAUNCHERS) == 14
        for launcher in LAUNCHERS:
            monkeypatch.setattr(triton_kernels, launcher, lambda *_, **__: None)
    for (kernel, settings, tensors, lengths, number, _), keep in itertools.product(seen, (True, False)):
        loops = object.__new__(graphs.Loops)
        loops.kernel = triton_cells.TWINS.get(kernel, kernel) if triton else kernel
        loops.settings, loops.count, loops.keep = settings, number, keep
        loops.tensors = [each.detach().to("meta") for each in tensors]
        loops.lengths = None if lengths is None else lengths.to("meta")
        with torch.no_grad(), Watch(), recurrence.recording(spare=False):
            loops.both_ways()


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
