"""One test of the cell contract over the whole registry: a new cell is tested by existing."""

import pytest
import torch

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Vocabulary, carry_tensors, each_step, map_carry
from rntn_plugins.layers.recurrent import Recurrent, RecurrentStack
from rntn_plugins.registry import get_cell

T, B, I, H, V = 7, 3, 5, 6, 11  # noqa: E741
K = 4
VOCABULARY = Vocabulary(V, [f"w{i}" for i in range(V)], torch.tensor([0, 0, 9, 7, 5, 5, 4, 3, 2, 1, 1]))


def make(name: str) -> Recurrent:
    """A cell over time in float64, every parameter random (fresh cells have zero biases, which would hide errors)."""
    torch.manual_seed(1)
    options = {"num_matrices": K} if hasattr(get_cell(name).Options(), "num_matrices") else {}
    layer = Recurrent(build_cell(name, I, H, VOCABULARY, **options)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return layer


def inputs(batch: int = B, steps: int = T):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(steps, batch, I, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, V, (steps, batch), generator=generator)


@pytest.fixture(params=cell_names())
def layer(request):
    return make(request.param)


def close(one, other, tolerance=1e-12):
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def close_carries(one, other):
    assert type(one) is type(other)
    for a, b in zip(carry_tensors(one), carry_tensors(other), strict=True):
        close(a, b)


def test_shapes_and_batch_first_carry(layer):
    x, tokens = inputs()
    carry = layer.cell.initial_carry(B)
    assert hasattr(carry, "_fields"), "a carry is a NamedTuple"
    for tensor in carry_tensors(carry):
        assert tensor.size(0) == B and not tensor.any(), "carries are batch-first and start at zero"
    outputs, after = layer(x, tokens)
    assert outputs.shape == (T, B, H)
    assert [t.shape for t in carry_tensors(after)] == [t.shape for t in carry_tensors(carry)]


def test_unrolling_is_stepping(layer):
    x, tokens = inputs()
    projected, carry, outputs = layer.cell.project(x, tokens), layer.cell.initial_carry(B), []
    for at_step in each_step(projected):
        y, carry = layer.cell.step(at_step, carry)
        outputs.append(y)
    unrolled, after = layer(x, tokens)
    close(unrolled, torch.stack(outputs))
    close_carries(after, carry)


def test_one_step_at_a_time_is_the_whole(layer):
    """Generation: project and step single symbols."""
    x, tokens = inputs()
    whole, final = layer(x, tokens)
    carry, pieces = None, []
    for t in range(T):
        y, carry = layer(x[t : t + 1], tokens[t : t + 1], carry=carry)
        pieces.append(y)
    close(torch.cat(pieces), whole)
    close_carries(carry, final)


@pytest.mark.parametrize("cut", [1, 4])
def test_chunks_are_the_whole(layer, cut):
    x, tokens = inputs()
    whole, final = layer(x, tokens)
    first, carry = layer(x[:cut], tokens[:cut])
    second, after = layer(x[cut:], tokens[cut:], carry=carry)
    close(torch.cat([first, second]), whole)
    close_carries(after, final)


def test_rows_do_not_see_each_other(layer):
    x, tokens = inputs()
    whole, final = layer(x, tokens)
    for row in range(B):
        alone, after = layer(x[:, row : row + 1], tokens[:, row : row + 1])
        close(alone, whole[:, row : row + 1])
        close_carries(after, map_carry(lambda tensor, row=row: tensor[row : row + 1], final))


def test_padding_is_ignored(layer):
    x, tokens = inputs()
    lengths = torch.tensor([T, 3, 0])
    outputs, after = layer(x, tokens, lengths)
    other = x.clone()
    other[3:, 1], other[:, 2] = 1e3, -1e3
    others, other_after = layer(other, tokens, lengths)
    close(outputs, others)
    close_carries(after, other_after)
    assert not outputs[3:, 1].any() and not outputs[:, 2].any(), "padding puts out zeros"
    for row, length in enumerate(lengths.tolist()):
        alone, alone_after = layer(x[:length, row : row + 1], tokens[:length, row : row + 1])
        close(outputs[:length, row : row + 1], alone)
        close_carries(alone_after, map_carry(lambda tensor, row=row: tensor[row : row + 1], after))


def test_padding_gets_no_gradient(layer):
    x, tokens = inputs()
    x.requires_grad_()
    layer(x, tokens, torch.tensor([T, 3, 0]))[0].square().sum().backward()
    assert not x.grad[3:, 1].any() and not x.grad[:, 2].any()
    assert x.grad[:3, 1].any() and x.grad[:, 0].any()


def test_reordered_carries_go_on_reordered(layer):
    """Beam search: rows chosen, dropped and doubled."""
    x, tokens = inputs()
    order = torch.tensor([2, 0, 0])
    _, carry = layer(x[:4], tokens[:4])
    moved = map_carry(lambda tensor: tensor.index_select(0, order), carry)
    outputs, _ = layer(x[4:, order], tokens[4:, order], carry=moved)
    close(outputs, layer(x[4:], tokens[4:], carry=carry)[0][:, order])


@pytest.mark.parametrize("lengths", [None, [3, 2, 0]])
def test_gradients(layer, lengths):
    x, tokens = inputs(steps=3)
    x.requires_grad_()
    parameters = [p for p in layer.parameters()]
    lengths = None if lengths is None else torch.tensor(lengths)
    _, start = layer(*inputs(steps=2))
    floats = [t.detach().requires_grad_() for t in carry_tensors(start) if t.is_floating_point()]

    def run(x, *tensors):
        given = iter(tensors[: len(floats)])
        carry = map_carry(lambda t: next(given) if t.is_floating_point() else t, start)
        outputs, after = layer(x, tokens, lengths, carry)
        return (outputs, *[t for t in carry_tensors(after) if t.is_floating_point()])

    assert torch.autograd.gradcheck(run, (x, *floats, *parameters), eps=1e-6, atol=1e-6)


def test_every_parameter_is_used(layer):
    steps = 10  # the slowest default module of the clockwork RNN reads itself at the ninth step
    x, _ = inputs(steps=steps)
    tokens = torch.arange(steps * B).view(steps, B) % V
    layer(x, tokens)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        if name != "cell.scale":  # E18's positions past T are not reached
            assert parameter.grad is not None and parameter.grad.any(), name


def test_state_dict_round_trip(layer):
    x, tokens = inputs()
    copy = make(next(n for n in cell_names() if get_cell(n) is type(layer.cell)))
    for parameter in copy.parameters():
        torch.nn.init.zeros_(parameter)
    copy.load_state_dict(layer.state_dict(), strict=True)
    close(copy(x, tokens)[0], layer(x, tokens)[0], 0.0)


def test_initialisations(layer):
    for scheme, scale in (("orthogonal", 1.0), ("uniform", 0.05), ("normal", 0.1)):
        for parameter in layer.parameters():
            torch.nn.init.constant_(parameter, float("nan"))
        layer.cell.initialise(scheme, scale)
        assert all(p.isfinite().all() for p in layer.parameters()), "initialise fills every parameter"
    with pytest.raises(ValueError, match="--init xavier is not one of orthogonal"):
        layer.cell.initialise("xavier", 1.0)


def test_no_state_is_kept_in_the_module(layer):
    x, tokens = inputs()
    once = layer(x, tokens)[0]
    layer(x.flip(0), tokens.flip(0))
    close(layer(x, tokens)[0], once, 0.0)


def test_layers_on_top_of_each_other(layer):
    name = next(n for n in cell_names() if get_cell(n) is type(layer.cell))
    options = {"num_matrices": K} if hasattr(layer.cell.options, "num_matrices") else {}
    cells = [build_cell(name, size, H, VOCABULARY, **options) for size in (I, H)]
    stack = RecurrentStack(cells).double()
    x, tokens = inputs()
    whole, final = stack(x, tokens)
    below, first = stack.layers[0](x, tokens)
    above, second = stack.layers[1](below, tokens)
    close(whole, above)
    for got, expected in zip(final, (first, second), strict=True):
        close_carries(got, expected)


#: parameters of each cell at sizes I, H with default options (order N = 3, K matrices of V symbols, 100 positions)
PARAMETERS = {
    "elman": H * I + H * H + H,
    "srn": H * I + H * H + H,
    "gru": 3 * H * (I + H + 1),
    "lstm": 4 * H * (I + H + 1),
    "lstm_peephole": 4 * H * (I + H + 1) + 3 * H * H,
    "gru_rntn": 3 * H * (I + H + 1) + I * H * H,
    "lstm_rntn": 4 * H * (I + H + 1) + 3 * H * H + I * H * H,
    "rntn": H * I + V * (H * H + H),
    "r_rntn": H * I + K * (H * H + H),
    "m_rnn": H * I + H + 2 * H * H + V * H,
    "r_gru": 3 * H * I + 2 * (H * H + H) + K * (H * H + H),
    "r_lstm": 4 * H * I + 3 * (H * H + H) + K * (H * H + H),
    "elstm1": 4 * H * (I + H + 1) + H * (100 + 1),
    "elstm2": 3 * H * (I + H + 1) + H * (100 + 1),
    "hornn": H * I + 3 * H * H + H,
    "hornn_max": H * I + 3 * H * H + H,
    "hornn_fofe": H * I + 3 * H * H + H,
    "hornn_gated": H * I + 3 * H * H + H + 3 * (H * I + H * H + H),
    "clockwork": H * I + H + 2 * 6 + 2 * 4 + 1 * 2 + 1 * 1,  # modules of 2, 2, 1, 1 units reading 6, 4, 2, 1
}


def test_parameter_counts():
    assert set(PARAMETERS) <= set(cell_names())
    for name, expected in PARAMETERS.items():
        assert sum(p.numel() for p in make(name).parameters()) == expected, name
