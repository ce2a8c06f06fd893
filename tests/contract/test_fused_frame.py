"""What all fused recurrences promise beside the right numbers: memory, checkpointing, autocast, --recurrence."""

import gc
import logging
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.layers.recurrent import RECURRENCES, Recurrent, RecurrentStack, choose_recurrence
from rntn_plugins.models import settings
from rntn_plugins.ops.inputs import Rows
from rntn_plugins.registry import get_cell

T, B, I, H = 5, 3, 4, 6  # noqa: E741
CELLS = ["lstm", "srn", "gru_rntn"]  # with two carried tensors, with an output that is no state, with a tensor product


def make(name: str) -> Recurrent:
    torch.manual_seed(0)
    layer = Recurrent(build_cell(name, I, H)).double()
    layer.recurrence = "fused"
    return layer


def inputs():
    return torch.randn(T, B, I, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)


def gradients(layer, outputs, x):
    return torch.autograd.grad(outputs.square().sum(), [x, *layer.parameters()], retain_graph=True)


@pytest.mark.parametrize("name", CELLS)
def test_checkpointing_recomputes(name):
    layer, x = make(name), inputs()
    expected = gradients(layer, layer(x)[0], x)
    for reentrant in (False, True):
        outputs = checkpoint(lambda value: layer(value)[0], x, use_reentrant=reentrant)
        if reentrant:
            outputs.square().sum().backward()
            found = [x.grad, *(parameter.grad for parameter in layer.parameters())]
        else:
            found = gradients(layer, outputs, x)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def buffers(layer, x) -> int:
    """Bytes that autograd keeps for the backward pass, parameters and input left out."""
    kept = {}
    known = {tensor.data_ptr() for tensor in (x, *layer.parameters())}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    return sum(kept.values())


@pytest.mark.parametrize("name", CELLS)
def test_no_more_is_kept_than_by_the_naive_loop(name):
    """But for a copy of the carry before the first step; all of it through hooks, so that checkpointing frees it."""
    layer, x = make(name), inputs()
    fused = buffers(layer, x)
    layer.recurrence = "naive"
    assert 0 < fused <= buffers(layer, x) * (T + 1) / T
    layer.recurrence = "fused"
    with torch.no_grad():
        assert buffers(layer, x) == 0
    assert layer(x.detach())[0].requires_grad


@pytest.mark.parametrize("name", CELLS)
def test_two_backward_passes_and_no_cycle(name):
    layer, x = make(name), inputs()
    outputs, _ = layer(x)
    for one, other in zip(gradients(layer, outputs, x), gradients(layer, outputs, x), strict=True):
        assert one.equal(other)
    gc.collect()
    gc.disable()
    try:
        node = weakref.ref(outputs.grad_fn)
        del outputs, _
        assert node() is None, "outputs and the graph hold each other: memory until the garbage collector comes"
    finally:
        gc.enable()


@pytest.mark.parametrize("name", CELLS)
def test_second_derivatives_are_refused(name):
    layer, x = make(name), inputs()
    (gradient,) = torch.autograd.grad(layer(x)[0].sum(), x)
    assert gradient.any()
    with pytest.raises(RuntimeError, match="no second derivatives: take --recurrence naive"):
        torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)


@pytest.mark.parametrize("name", [*CELLS, "elstm1"])
def test_odd_batches(name):
    """No row at all, lengths beyond the end (which count as all steps), other types of lengths."""
    layer, x = make(name), inputs()
    lengths = torch.tensor([9, 2, 0])
    found = {}
    for layer.recurrence in ("naive", "fused"):
        empty = x[:, :0].detach().requires_grad_()
        torch.autograd.grad(layer(empty)[0].sum(), empty)
        outputs, carry = layer(x, None, lengths)
        found[layer.recurrence] = [outputs, *carry, *gradients(layer, outputs, x)]
        for kind in (torch.int32, torch.uint8, torch.float64):
            assert layer(x, None, lengths.to(kind))[0].equal(outputs)
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other)


def test_outputs_changed_in_place_are_noticed():
    layer, x = make("gru"), inputs()
    outputs, _ = layer(x)
    changed = outputs.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()


def test_lengths_changed_in_place_are_noticed():
    layer, x, lengths = make("gru"), inputs(), torch.tensor([T, 2, 1])
    outputs, _ = layer(x, None, lengths)
    lengths.fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_compiled_layers_run_the_loop(monkeypatch):
    """Kernels write into buffers in ways that torch.compile does not see."""
    layer, x, lengths = make("gru"), inputs().detach(), torch.tensor([T, 2, 1])
    wanted, _ = layer(x, None, lengths)
    monkeypatch.delattr(type(layer.cell), "fused")
    with torch.no_grad():
        found, _ = torch.compile(layer, backend="aot_eager")(x, None, lengths)
        with pytest.raises((AttributeError, NotImplementedError)):
            layer(x)
    torch.testing.assert_close(found, wanted)


def test_carries_are_not_changed():
    layer, x = make("lstm"), inputs()
    carry = layer.cell.initial_carry(B)
    for lengths in (None, torch.tensor([T, 2, 0])):
        layer(x, None, lengths, carry)[0].sum().backward()
        assert not any(part.any() for part in carry)


@pytest.mark.parametrize("name", CELLS)
def test_autocast(name):
    layer, x = make(name).float(), inputs().detach().float().requires_grad_()
    exact = gradients(layer, layer(x)[0], x)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = layer(x)
        assert outputs.dtype == torch.float32
        assert make(name)(inputs())[0].dtype == torch.float64
    for one, other in zip(gradients(layer, outputs, x), exact, strict=True):
        # the projection's inputs have the 8 bits of bfloat16, whatever follows
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * float(other.abs().max()))


def test_choice_of_the_recurrence(caplog, monkeypatch):
    monkeypatch.setattr(settings, "announced", set())
    stack = RecurrentStack([build_cell("gru", 8, 8), build_cell("clockwork", 8, 8)])
    assert choose_recurrence(stack, "auto") == {"GRU": "fused", "Clockwork": "naive"}
    assert choose_recurrence(stack, "naive") == {"GRU": "naive", "Clockwork": "naive"}
    assert [layer.recurrence for layer in stack.layers] == ["naive", "naive"]
    with pytest.raises(
        ValueError, match="--recurrence fused: the cell Clockwork has no fused recurrence; take auto or naive"
    ):
        choose_recurrence(stack, "fused")
    with pytest.raises(ValueError, match="--recurrence quick is not one of auto, naive, fused, triton"):
        choose_recurrence(stack, "quick")
    for gpu, hooks, graphs in ((False, print, ""), (True, None, ""), (True, print, ", on a GPU as CUDA graphs")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        monkeypatch.setattr("rntn_plugins.ops.graphs._hooks", hooks)
        settings.announced.clear()
        caplog.clear()
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                settings.set_recurrence(stack, settings.Recurrence("auto"))
        assert caplog.messages == [
            f"--recurrence auto takes fused for GRU{graphs}", "--recurrence auto takes naive for Clockwork"
        ]  # fmt: skip
    assert RECURRENCES == ("auto", "naive", "fused", "triton")


def test_every_cell_of_the_papers_but_the_clockwork_has_one():
    vocabulary = Vocabulary(3, ["a", "b", "c"], torch.ones(3))
    sized = {
        name: {"num_matrices": 2} if hasattr(get_cell(name).Options(), "num_matrices") else {} for name in cell_names()
    }
    without = [name for name in cell_names() if not build_cell(name, 4, 4, vocabulary, **sized[name]).has_fused]
    assert without == ["clockwork"]


def test_a_subclass_does_not_inherit_it():
    """It computes something else, which the kernel would not know."""

    class Other(get_cell("gru")):
        def step(self, projected, carry):
            h, carry = super().step(projected, carry)
            return 2 * h, carry

    layer, x = Recurrent(Other(I, H)).double(), inputs()
    assert not Other.has_fused and get_cell("gru").has_fused
    first = layer.cell.step(layer.cell.project(x)[0], layer.cell.initial_carry(B))[0]
    assert layer(x)[0][0].equal(first)


def test_single_symbols_take_the_naive_step(monkeypatch):
    layer = make("gru")
    monkeypatch.setattr(layer.cell, "fused", None)
    for layer.recurrence in ("auto", "fused"):
        layer(inputs()[:1])
        with pytest.raises(TypeError):
            layer(inputs())


@pytest.mark.parametrize("name", ["gru_rntn", "lstm_rntn"])
def test_products_that_are_kept_go_with_training(name):
    """They are of weights that training changes."""
    layer = Recurrent(build_cell(name, 3, 4)).eval()
    with torch.no_grad():
        layer(Rows(torch.randn(5, 3), torch.tensor([[0, 1]]), fixed=True))
    assert layer.eval().cell.kept.kept is not None
    assert layer.train().cell.kept.kept is None
