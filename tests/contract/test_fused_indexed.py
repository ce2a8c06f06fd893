"""Kernels with matrices per symbol: row-sparse gradients, many matrices, what is kept, and what torch has not got."""

import pytest
import torch

from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.ops import indexed as indexed_products
from rntn_plugins.ops.indexed import Occurrences, products_in_place
from rntn_plugins.ops.restricted_gated import RestrictedGRU, RestrictedLSTM
from rntn_plugins.ops.rntn import RNTN, MultiplicativeRNN

V, K, SIZE, STEPS, BATCH = 30, 20, 4, 6, 3
CELLS = {
    "rntn": {},
    "r_rntn": {"num_matrices": K},
    "m_rnn": {"factor_size": 3},
    "r_gru": {"num_matrices": K},
    "r_lstm": {"num_matrices": K, "indexed_gates": "forget,cell"},
}


def make(name: str, sparse: bool, how: str = "fused", vocabulary_size: int = V) -> Recurrent:
    torch.manual_seed(1)
    vocabulary = Vocabulary(vocabulary_size, counts=torch.arange(vocabulary_size, 0, -1))
    gradients = "row-sparse" if sparse else "dense"
    layer = Recurrent(build_cell(name, SIZE, SIZE, vocabulary, gradients=gradients, **CELLS[name])).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    layer.recurrence = how
    return layer


def run(layer: Recurrent, seed: int = 2, symbols: int = V) -> torch.Tensor:
    """A loss over random inputs; the symbols are 5 and above, so that some never occur."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS, BATCH, SIZE, generator=random, dtype=torch.float64)
    tokens = torch.randint(5, symbols, (STEPS, BATCH), generator=random)
    layer.tokens = tokens
    return layer(x, tokens)[0].pow(2).sum()


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def gradients(layer: Recurrent):
    return {name: parameter.grad for name, parameter in layer.named_parameters()}


def same(one, other):
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def indexed(name: str) -> bool:
    return name.split(".")[-1] == "factors" or "recurrence" in name or ".indexed." in name


@pytest.fixture(params=CELLS)
def name(request):
    return request.param


@pytest.mark.parametrize("how", ["naive", "fused"])
def test_sparse_gradients_are_the_dense_ones(name, how):
    sparse, dense = make(name, True, how), make(name, False)
    run(sparse).backward()
    run(dense).backward()
    for parameter, gradient in gradients(dense).items():
        found = gradients(sparse)[parameter]
        assert not gradient.is_sparse and found.is_sparse == indexed(parameter)
        same(found.to_dense(), gradient)


@pytest.mark.parametrize("how", ["naive", "fused"])
def test_only_what_occurred_has_a_row(name, how):
    layer = make(name, True, how)
    run(layer).backward()
    maps = [buffer for buffer_name, buffer in layer.named_buffers() if buffer_name.endswith("index_of_symbol")]
    occurred = (maps[0][layer.tokens] if maps else layer.tokens).unique()
    for parameter, gradient in gradients(layer).items():
        if indexed(parameter):
            assert gradient.sparse_dim() == 1 and gradient.coalesce().indices().squeeze(0).tolist() == occurred.tolist()


def test_two_backward_passes_add_up(name):
    sparse, dense = make(name, True), make(name, False)
    for layer in (sparse, dense):
        run(layer, seed=2).backward()
        run(layer, seed=3).backward()
    for parameter, gradient in gradients(dense).items():
        same(gradients(sparse)[parameter].to_dense(), gradient)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adagrad])
def test_optimisers_take_the_same_steps(name, optimiser):
    sparse, dense = make(name, True), make(name, False)
    for layer in (sparse, dense):
        steps = optimiser(layer.parameters(), lr=0.1)
        for seed in range(3):
            steps.zero_grad()
            run(layer, seed).backward()
            steps.step()
    for one, other in zip(sparse.parameters(), dense.parameters()):
        same(one, other)


def test_batch_first_memory(name):
    """What a model gets by transposing ``[B, T]`` tokens and their embeddings."""
    x, tokens = normal(BATCH, STEPS, SIZE).transpose(0, 1), torch.randint(V, (BATCH, STEPS)).t()
    layers = make(name, False), make(name, False, "naive")
    losses = [layer(x, tokens)[0].pow(2).sum() for layer in layers]
    for loss in losses:
        loss.backward()
    same(*losses)
    same(*(gradients(layer) for layer in layers))


@pytest.mark.parametrize("name", ["rntn", "m_rnn"])
def test_many_matrices(name):
    fused, naive = make(name, True, vocabulary_size=3000), make(name, False, "naive", 3000)
    losses = [run(layer, symbols=3000) for layer in (fused, naive)]
    same(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(fused.parameters(), naive.parameters()):
        same(one.grad.to_dense(), other.grad)


@pytest.mark.parametrize("name", ["rntn", "r_gru", "r_lstm", "m_rnn"])
def test_frozen_matrices_leave_the_other_gradients_alone(name):
    frozen, free = make(name, True), make(name, False)
    for parameter_name, parameter in frozen.named_parameters():
        parameter.requires_grad_(not indexed(parameter_name))
    for layer in (frozen, free):
        run(layer).backward()
    for parameter, gradient in gradients(frozen).items():
        if indexed(parameter):
            assert gradient is None
        else:
            same(gradient, gradients(free)[parameter])


def kept(kernel) -> int:
    """Bytes of what the backward pass needs, beside the outputs."""
    outputs = kernel.outputs.untyped_storage().data_ptr()
    storages = [getattr(kernel, name).untyped_storage() for name in kernel.saved]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() != outputs}.values())


@pytest.mark.parametrize("kernel", [RNTN, MultiplicativeRNN, RestrictedGRU, RestrictedLSTM])
def test_without_gradients_nothing_is_kept_for_them(kernel, monkeypatch):
    cell = {RNTN: "r_rntn", MultiplicativeRNN: "m_rnn", RestrictedGRU: "r_gru", RestrictedLSTM: "r_lstm"}[kernel]
    layer, start, found = make(cell, False), kernel.start, []

    def watched(self, carry, keep):
        start(self, carry, keep)
        found.append(kept(self))

    monkeypatch.setattr(kernel, "start", watched)
    x, tokens = normal(STEPS, BATCH, SIZE), torch.full((STEPS, BATCH), 7)
    with torch.no_grad():
        layer(x[:3], tokens[:3])
        layer(x, tokens)
    assert found[0] == found[1]
    layer(x, tokens)
    assert found[2] > found[1] or kernel is RNTN  # which needs its outputs only


def test_an_unknown_map_is_the_naive_twins_error():
    for how in ("naive", "fused"):
        for cell in ("r_rntn", "r_gru", "r_lstm"):
            layer = Recurrent(build_cell(cell, SIZE, SIZE, Vocabulary(V), **CELLS[cell])).double()
            layer.recurrence = how
            with pytest.raises(ValueError, match="map from symbols to matrices is not known"):
                run(layer)


@pytest.mark.parametrize("name", ["rntn", "r_gru", "r_lstm"])
def test_gathered_matrices_do_the_same(name, monkeypatch):
    """Where torch's sparse products are missing, as in half precision."""
    assert not products_in_place(torch.empty(1, dtype=torch.bfloat16))
    layers = make(name, False), make(name, False)
    losses = [run(layers[0])]
    losses[0].backward()
    monkeypatch.setattr("rntn_plugins.ops.indexed.products_in_place", lambda stack: False)
    losses.append(run(layers[1]))
    losses[1].backward()
    same(*losses)
    same(*(gradients(layer) for layer in layers))


def test_sparse_gradients_are_coalesced():
    occurrences = Occurrences(torch.tensor([[4, 1], [1, 7]]), 9, True)
    gradient = occurrences.of_matrices(normal(4, 2), normal(4, 3))
    assert gradient.is_coalesced() and gradient.shape == (9, 2, 3) and gradient.indices().tolist() == [[1, 4, 7]]


def test_gradients_of_matrices_by_outer_products(monkeypatch):
    """What a GPU takes, in blocks of two rows, against a product for each matrix."""
    monkeypatch.setattr(indexed_products, "OUTER", 2 * 3 * 5)
    torch.manual_seed(1)
    occurrences = Occurrences(torch.tensor([[4, 1], [1, 7], [0, 4], [4, 4]]), 9, False)
    d, h = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)
    torch.testing.assert_close(occurrences.of_outer_products(d, h), occurrences.of_matrices(d, h))
    half = (each.bfloat16() for each in (d, h))
    found = occurrences.of_outer_products(*half)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), occurrences.of_matrices(d, h), rtol=0.02, atol=0.02)


def test_half_precision_is_summed_in_single():
    """700 times 1/256 in bfloat16 would stop at 1."""
    occurrences, ones = Occurrences(torch.zeros(700, 1, dtype=torch.long), 1, False), torch.ones(700, 1)
    total = torch.zeros(1, 1, 1, dtype=torch.bfloat16)
    for _ in range(700):
        total += 1 / 256
    assert total.item() == 1
    (found,) = occurrences.of_outer_products(ones.bfloat16(), ones.bfloat16() / 256).flatten().tolist()
    assert found == pytest.approx(700 / 256, rel=0.01)
