"""Fused cells that look far back: ties between paths, sequences shorter than the order, positions of each row's own."""

import pytest
import torch

from rntn_plugins import build_cell
from rntn_plugins.cells.base import carry_tensors
from rntn_plugins.cells.elstm import PositionedCell
from rntn_plugins.cells.hornn import History
from rntn_plugins.layers.recurrent import Recurrent

HORNNS = ["hornn", "hornn_max", "hornn_fofe", "hornn_gated"]
ELSTMS = ["elstm1", "elstm2"]


def make(name: str, input_size: int, hidden_size: int, **options) -> Recurrent:
    torch.manual_seed(3)
    layer = Recurrent(build_cell(name, input_size, hidden_size, **options)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def evaluate(layer: Recurrent, how: str, x, carry, lengths=None):
    """Outputs, final carry and the gradients of x, carry and parameters, computed twice from one graph."""
    layer.recurrence = how
    outputs, after = layer(x, None, lengths, carry)
    results = [outputs, *carry_tensors(after)]
    loss = sum((a * torch.linspace(-1, 1, a.numel()).view_as(a)).sum() for a in results if a.is_floating_point())
    leaves = [leaf for leaf in [x, *carry_tensors(carry), *layer.parameters()] if leaf.requires_grad]
    gradients = torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True)
    for first, second in zip(gradients, torch.autograd.grad(loss, leaves, materialize_grads=True)):
        assert torch.equal(first, second)
    return [*results, *gradients]


def same(layer: Recurrent, x, carry, lengths=None, tolerance=1e-10):
    fused, naive = (evaluate(layer, how, x, carry, lengths) for how in ("fused", "naive"))
    for a, b in zip(fused, naive, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", HORNNS)
@pytest.mark.parametrize("steps, order, lengths", [(2, 5, None), (3, 4, [3, 0, 1]), (1, 3, [1, 0, 1]), (11, 4, None)])
def test_any_order(name, steps, order, lengths):
    layer = make(name, 2, 3, order=order)
    lengths = None if lengths is None else torch.tensor(lengths)
    same(layer, normal(steps, 3, 2), History(normal(3, order, 3)), lengths)


@pytest.mark.parametrize("name", HORNNS)
def test_pieces_shorter_than_the_order_make_the_whole(name):
    layer = make(name, 2, 3, order=5)
    x = normal(9, 2, 2)
    whole, last = layer(x)
    carry, pieces = None, []
    for piece in x.split([2, 1, 4, 2]):
        y, carry = layer(piece, carry=carry)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces), whole)
    torch.testing.assert_close(carry.states, last.states)


@pytest.mark.parametrize("name", [*HORNNS, *ELSTMS])
@pytest.mark.parametrize("lengths", [None, [11, 0, 5]])
def test_the_same_without_a_backward_pass(name, lengths):
    layer, x = make(name, 2, 3), normal(11, 3, 2)
    lengths = None if lengths is None else torch.tensor(lengths)
    results = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            outputs, after = layer(x, None, lengths)
            results.append([outputs, *carry_tensors(after)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("lengths", [None, [5, 2]])
def test_tied_paths_share_the_gradient(lengths):
    """Small integers, so that paths tie exactly, some two by two and some all three."""
    layer = make("hornn_max", 3, 4, order=3, activation="relu")
    with torch.no_grad():
        layer.cell.weight_hh.copy_(torch.randint(-1, 2, (3, 4, 4)))
        layer.cell.weight_hh[2] = layer.cell.weight_hh[0]
        layer.cell.weight_ih.copy_(torch.randint(-1, 2, (4, 3)))
        layer.cell.bias.fill_(1)
    x = torch.randint(0, 2, (5, 2, 3)).double().requires_grad_()
    history = torch.ones(2, 3, 4, dtype=torch.float64, requires_grad=True)
    same(layer, x, History(history), None if lengths is None else torch.tensor(lengths))


def test_after_a_history_of_zeros_every_path_has_an_equal_share():
    layer = make("hornn_max", 2, 3, order=4)
    history = torch.zeros(1, 4, 3, dtype=torch.float64, requires_grad=True)
    h, _ = layer(normal(1, 1, 2), carry=History(history))
    h.sum().backward()
    share = (h * (1 - h)).detach() / 4  # the logistic function's slope, shared by four
    torch.testing.assert_close(history.grad[0], (share @ layer.cell.weight_hh).squeeze(1))


@pytest.mark.parametrize("name", ELSTMS)
@pytest.mark.parametrize("gate_input", ["xh", "x"])
@pytest.mark.parametrize("positions", [[4, 4, 4], [0, 3, 17], [4, 1, 2]])
@pytest.mark.parametrize("lengths", [None, [8, 0, 3]])
def test_positions_wrap_round_row_by_row(name, gate_input, positions, lengths):
    layer = make(name, 2, 3, gate_input=gate_input, positions=5)
    carry = PositionedCell(normal(3, 3), normal(3, 3), torch.tensor(positions))
    same(layer, normal(8, 3, 2), carry, None if lengths is None else torch.tensor(lengths))


@pytest.mark.parametrize("name", [*HORNNS, *ELSTMS])
def test_single_precision(name):
    layer = make(name, 4, 6).float()
    x = torch.randn(7, 3, 4, requires_grad=True)
    same(layer, x, layer.cell.initial_carry(3), torch.tensor([7, 2, 5]), tolerance=1e-4)
