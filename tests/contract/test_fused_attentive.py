"""Recurrences that look at a memory, in one kernel, against the loop over their steps."""

import pytest
import torch
from test_fused import VOCABULARY, same, variants
from torch.utils.checkpoint import checkpoint

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import carry_tensors, map_carry
from rntn_plugins.cells.elman import Elman
from rntn_plugins.cells.lstm import LSTM
from rntn_plugins.layers.attention import AdditiveAttention
from rntn_plugins.layers.attentive import Attentive, AttentiveCarry
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.registry import get_cell

SHAPES = [  # T, S, B, I, H, M, A, padding of the memory's rows
    (5, 6, 3, 4, 7, 5, 3, None),
    (4, 3, 4, 3, 2, 4, 6, [0, 2, 1, 0]),
    (2, 1, 1, 1, 1, 1, 1, None),
    (3, 5, 2, 2, 3, 3, 2, [4, 0]),
]


def cells():
    for name in cell_names():
        for options in variants(name):
            if not options.get("identity_input"):
                if build_cell(name, 4, 4, VOCABULARY, **options).has_recur:
                    yield pytest.param(name, options, id="-".join([name, *map(str, options.values())]))


def make(name, options, shape, layers=1):
    torch.manual_seed(1)
    _, _, _, given, hidden, memory, size, _ = shape
    sizes = [given + memory] + [hidden] * (layers - 1)
    stack = RecurrentStack([build_cell(name, i, hidden, VOCABULARY, **options) for i in sizes])
    network = Attentive(stack, AdditiveAttention(hidden, memory, size)).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return network


def evaluate(network, how, shape, use=(0, 1, 2, 3, 4, 5), run=None, seed=2):
    """Outputs, weights and final carry, and the gradients of everything for a random function of those in *use*."""
    steps, places, batch, size, _, width, _, padding = shape
    for layer in network.stack.layers:
        layer.recurrence = how
    random = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        numbers = torch.randn(*sizes, generator=random, dtype=torch.float64)
        return numbers.to(network.attention.score_weight).requires_grad_()

    x, memory, context = normal(steps, batch, size), normal(places, batch, width), normal(batch, width)
    before = network.initial_carry(batch, width)
    layers = map_carry(lambda part: normal(*part.shape) if part.is_floating_point() else part + 2, before.layers)
    mask = None if padding is None else torch.arange(places).unsqueeze(1) >= places - torch.tensor(padding)
    mask = mask if mask is None or seed % 2 == 0 else mask & (torch.arange(places).unsqueeze(1) >= places - 1)
    tokens = torch.randint(0, len(VOCABULARY.symbols), (steps, batch), generator=random)
    mask, tokens = (part if part is None else part.to(x.device) for part in (mask, tokens))
    carry = AttentiveCarry(layers, context)
    given = (x, tokens, memory, network.attention.project(memory), mask, carry)
    outputs, weights, after = network(*given) if run is None else run(network, *given)
    results = [outputs, weights, *carry_tensors(after)]
    weighed = [torch.randn(part.shape, generator=random, dtype=torch.float64).to(x.device) for part in results]
    chosen = [(a * b).sum() for n, (a, b) in enumerate(zip(results, weighed)) if a.is_floating_point() and n in use]
    floats = [part for part in carry_tensors(carry) if part.is_floating_point()]
    leaves = [x, memory, *floats, *network.parameters()]
    gradients = torch.autograd.grad(sum(chosen), leaves, allow_unused=True)
    return [*results, *(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients))]


def nodes(network, shape):
    """The names of the graph's nodes behind the outputs."""
    found, names = [evaluate_outputs(network, shape).grad_fn], []
    while found:
        current = found.pop()
        names.append(type(current).__name__)
        found += [follow for follow, _ in current.next_functions if follow is not None]
    return names


def evaluate_outputs(network, shape):
    return evaluate_all(network, shape)[0]


def evaluate_all(network, shape):
    """Outputs, weights and the carry's tensors, for other numbers."""
    steps, places, batch, given, _, width, _, _ = shape
    x, memory = torch.randn(steps, batch, given).double(), torch.randn(places, batch, width).double()
    tokens = torch.zeros(steps, batch, dtype=torch.long)
    carry = network.initial_carry(batch, width)
    *results, after = network(x, tokens, memory, network.attention.project(memory), None, carry)
    return [*results, *carry_tensors(after)]


@pytest.mark.parametrize("name, options", cells())
def test_same_function_as_the_loop(name, options):
    for shape, use in zip(SHAPES, [(0, 1, 2, 3, 4, 5), (0,), (1,), (2, 3, 5)]):
        network = make(name, options, shape)
        assert "FusedBackward" in nodes(network, shape)
        same(*(evaluate(network, how, shape, use) for how in ("fused", "naive")))


def test_which_cells_it_takes():
    taken = {name for name in cell_names() if get_cell(name).has_recur}
    assert taken == {"elman", "srn", "gru", "lstm", "lstm_peephole", "elstm1", "elstm2"}


@pytest.mark.parametrize("name, layers, options", [("lstm", 2, {}), ("hornn", 1, {}), ("gru_rntn", 1, {}),
                                                   ("elman", 1, {"identity_input": True})])  # fmt: skip
def test_what_it_does_not_take_goes_by_the_loop(name, layers, options):
    shape = (3, 4, 2, 2, 5, 3, 2, None)
    network = make(name, options, shape, layers)
    same(*(evaluate(network, how, shape) for how in ("auto", "naive")))


def test_a_cell_of_ones_own_goes_by_the_loop():
    class Louder(LSTM):
        def step(self, projected, carry):
            h, carry = super().step(projected, carry)
            return 2 * h, carry

    class Wider(Elman):
        def project(self, x, tokens=None):
            return 2 * super().project(x)

    assert not Louder(3, 2).has_recur and not Wider(3, 2).has_recur


def test_a_single_step_goes_by_the_loop():
    network, shape = make("lstm", {}, SHAPES[0]), (1, *SHAPES[0][1:])
    assert "FusedBackward" not in nodes(network, shape)
    same(*(evaluate(network, how, shape) for how in ("fused", "naive")))


def test_steps_one_by_one_are_all_steps_at_once():
    shape = SHAPES[1]
    network = make("elstm1", {}, shape)

    def by_steps(network, x, tokens, memory, projected, mask, carry):
        outputs, weights = [], []
        for t in range(len(x)):
            output, weight, carry = network(x[t : t + 1], tokens[t : t + 1], memory, projected, mask, carry)
            outputs.append(output)
            weights.append(weight)
        return torch.cat(outputs), torch.cat(weights), carry

    same(evaluate(network, "auto", shape), evaluate(network, "auto", shape, run=by_steps))


def test_under_checkpointing():
    shape = SHAPES[0]
    network = make("gru", {}, shape)

    def run(network, *inputs):
        return checkpoint(network, *inputs, use_reentrant=False)

    same(evaluate(network, "fused", shape), evaluate(network, "fused", shape, run=run))


@pytest.mark.parametrize("name, options", cells())
def test_without_gradients_and_under_inference_mode(name, options):
    shape = SHAPES[0]
    network = make(name, options, shape)
    torch.manual_seed(3)
    wanted = evaluate_all(network, shape)
    for mode in (torch.no_grad, torch.inference_mode):
        torch.manual_seed(3)
        with mode():
            same(evaluate_all(network, shape), wanted, tolerance=1e-12)


@pytest.mark.parametrize("name, options", cells())
def test_by_onednn(name, options, all_by_onednn):
    """Float32, with every product left to oneDNN."""
    shape = SHAPES[1]
    network = make(name, options, shape)
    wanted = evaluate(network, "naive", shape)
    found = evaluate(network.float(), "fused", shape)
    same([part.double() if part.is_floating_point() else part for part in found], wanted, tolerance=1e-4)


def test_changed_parts_and_hooks_go_by_the_loop():
    class Scaled(AdditiveAttention):
        def scores(self, query, projected, mask=None):
            return 2 * super().scores(query, projected, mask)

    class Halved(RecurrentStack):
        def forward(self, *inputs):
            y, carry = super().forward(*inputs)
            return y / 2, carry

    shape = SHAPES[0]
    for part, kind in (("attention", Scaled), ("stack", Halved)):
        network = make("lstm", {}, shape)
        getattr(network, part).__class__ = kind
        same(*(evaluate(network, how, shape) for how in ("auto", "naive")))
    network, calls = make("lstm", {}, shape), []
    network.attention.register_forward_hook(lambda *_: calls.append(1))
    evaluate(network, "auto", shape)
    assert len(calls) == shape[0]


def test_backward_twice_and_gradcheck():
    steps, places, batch, given, _, width, size, _ = shape = SHAPES[3]
    network = make("elstm2", {}, shape)
    x, memory = torch.randn(steps, batch, given).double(), torch.randn(places, batch, width).double()
    mask = torch.arange(places).unsqueeze(1) >= torch.tensor([1, places])

    def function(x, memory, context):
        carry = AttentiveCarry(network.stack.initial_carry(batch), context)
        outputs, weights, after = network(x, None, memory, network.attention.project(memory), mask, carry)
        return outputs, weights, after.context

    inputs = [part.requires_grad_() for part in (x, memory, torch.randn(batch, width).double())]
    assert torch.autograd.gradcheck(function, inputs)
    outputs, weights, _ = function(*inputs)
    loss = outputs.pow(2).sum() + weights.pow(3).sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    same(first, torch.autograd.grad(loss, inputs, retain_graph=True))
    with pytest.raises(RuntimeError, match="recurrence naive"):
        torch.autograd.grad(loss, inputs, create_graph=True)


def test_bfloat16_autocast_is_float32_but_for_rounding():
    """A loop in float32 gives outputs up to 1.5 and gradients up to 2.4; bfloat16 has three digits."""
    network = make("lstm", {}, SHAPES[0]).float()
    results = []
    for how, autocast in (("fused", True), ("naive", False)):
        network.stack.layers[0].recurrence = how
        torch.manual_seed(3)
        x, memory = torch.randn(5, 3, 4), torch.randn(6, 3, 5)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            carry = network.initial_carry(3, 5)
            outputs, _, _ = network(x, None, memory, network.attention.project(memory), None, carry)
        network.zero_grad()
        outputs.float().pow(2).sum().backward()
        results.append([outputs.float(), network.stack.layers[0].cell.weight_ih.grad])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0)


def test_it_keeps_less_for_the_backward_pass_than_the_loop():
    shape = (30, 40, 4, 8, 16, 16, 32, None)
    network = make("lstm", {}, shape)

    def kept(how):
        network.stack.layers[0].recurrence, tensors = how, []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensors.append(tensor) or tensor, lambda t: t):
            outputs = evaluate_outputs(network, shape)
        memory = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return outputs, sum(memory.values())

    assert kept("fused")[1] < kept("naive")[1] / 3
