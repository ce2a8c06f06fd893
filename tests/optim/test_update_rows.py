"""Gradients as rows where that changes nothing: large embeddings, and ``--gradients auto``."""

import copy
import math
import pickle
from argparse import Namespace

import pytest
import torch
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from small_trainings import ADAGRAD, V, Watch, same, train, trained
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.parametrize import register_parametrization

from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.cells.rntn import MRNN
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.optim import row_sparse, update_rows
from rntn_plugins.optim.row_sparse import check_run
from rntn_plugins.optim.update_rows import tables_of
from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingTask

# ---- embeddings ------------------------------------------------------------------------------------------------------

WIDE = 64  # V times that is far above all other sizes
ALIKE = {
    "sgd": ("--optimizer", "sgd", "--lr", 1),
    "adagrad": (*ADAGRAD, "--sample-break-mode", "eos"),
    "adagrad_tf": ("--optimizer", "adagrad_tf", "--lr", 0.1, "--clip-norm", 0),
    "max_norm_sgd": ("--optimizer", "max_norm_sgd", "--lr", 1, "--max-norm", 0.4, "--clip-value", 0.01),
    "dropout": (*ADAGRAD, "--dropout", 0.3),
}


@pytest.fixture
def all_large(monkeypatch):
    for name in ("LEAST", "LEAST_ROWS"):
        monkeypatch.setattr(update_rows, name, 0)


@pytest.fixture
def sparse_updates(monkeypatch):
    """For every update, whether a gradient was sparse."""
    found, original = [], FairseqOptimizer.multiply_grads

    def multiply_grads(self, c):
        found.append(any(row_sparse.is_row_sparse(parameter) for parameter in self.params))
        return original(self, c)

    monkeypatch.setattr(FairseqOptimizer, "multiply_grads", multiply_grads)
    return found


@pytest.mark.parametrize("run", ALIKE)
def test_embeddings_train_as_with_dense_gradients(run, data, tmp_path, monkeypatch):
    """And what is done with the gradient is done with rows alone."""
    watches, train_step = [], Trainer.train_step

    def watched(self, samples):
        self.optimizer  # noqa: B018  (made at its first use, with all its state)
        watches.append(Watch(V * WIDE))
        with watches[-1]:
            return train_step(self, samples)

    monkeypatch.setattr(Trainer, "train_step", watched)
    monkeypatch.setattr(update_rows, "LEAST_ROWS", V)
    for least in (V * WIDE + 1, V * WIDE):
        monkeypatch.setattr(update_rows, "LEAST", least)
        train(data, "--arch", "gru_lm", "--embed-dim", WIDE, *ALIKE[run], "--save-dir", tmp_path / str(least))
    same(trained(tmp_path / str(V * WIDE + 1)), trained(tmp_path / str(V * WIDE)))
    half = len(watches) // 2
    first = int(run == "max_norm_sgd")  # bounds what it finds
    reads = {"embedding", "index", "index_put_", "sparse_sampled_addmm", "_embedding_bag", "new_empty"}
    assert all(watch.found <= reads for watch in watches[half + first :]), watches[half + first].found
    assert all(len(watch.found - reads) >= 2 for watch in watches[:half])


@pytest.mark.parametrize(
    "flags, expected",
    [
        ((), True),
        (("--optimizer", "adam"), False),
        (("--momentum", 0.9), False),
        (("--weight-decay", 0.1), False),
        (("--update-freq", 2), False),
        (("--hidden-size", 5, "--share-decoder-input-output-embed"), False),
    ],
)
def test_where_embeddings_have_sparse_gradients(flags, expected, data, tmp_path, all_large, sparse_updates):
    train(data, "--arch", "gru_lm", "--optimizer", "sgd", "--lr", 0.1, *flags, "--save-dir", tmp_path, "--no-save")
    assert sparse_updates == [expected] * 6


@pytest.mark.parametrize(
    "first, then",
    [
        (("sgd", "--weight-decay", 1e-3), ("sgd",)),
        (("sgd", "--momentum", 0.9), ("sgd",)),
        (("adagrad_tf", "--weight-decay", 1e-3), ("adagrad_tf",)),
        (("max_norm_sgd", "--weight-decay", 1e-3), ("max_norm_sgd",)),
        (("sgd",), ("sgd", "--optimizer-overrides", "{'momentum': 0.9}")),
        (("sgd",), ("sgd", "--momentum", 0.9)),
    ],
)
def test_resuming_with_the_settings_of_a_checkpoint(first, then, data, tmp_path, monkeypatch, all_large):
    """fairseq takes an optimiser's settings from there."""
    flags = ("--arch", "gru_lm", "--lr", 0.1, "--optimizer")
    for kind, least in (("dense", 10**9), ("rows", 0)):
        monkeypatch.setattr(update_rows, "LEAST", least)
        train(data, *flags, *first, "--save-dir", tmp_path / kind, "--max-update", 3)
        train(data, *flags, *then, "--save-dir", tmp_path / kind)
    same(trained(tmp_path / "dense"), trained(tmp_path / "rows"))
    assert not any(torch.is_tensor(value) and value.is_sparse for value in trained(tmp_path / "rows").values())


def test_embeddings_are_sparse_during_an_update_only(all_large):
    embed = torch.nn.Embedding(9, 2)
    found = update_rows.large_embeddings(torch.nn.Sequential(embed))
    with pytest.raises(RuntimeError, match="in between"), update_rows.sparse_where_quicker(found, 10**6):
        assert embed.sparse
        raise RuntimeError("in between")
    assert not embed.sparse
    handle = embed.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with update_rows.sparse_where_quicker(found, 1):
        assert not embed.sparse
    handle.remove()
    with update_rows.sparse_where_quicker(found, 1):
        assert embed.sparse


def test_embeddings_that_stay_dense(monkeypatch):
    class Own(torch.nn.Embedding):
        pass

    tied = torch.nn.Linear(2, 9)
    models = {
        "plain": [torch.nn.Embedding(9, 2)],
        "another class": [Own(9, 2)],
        "by frequency": [torch.nn.Embedding(9, 2, scale_grad_by_freq=True)],
        "sparse anyway": [torch.nn.Embedding(9, 2, sparse=True)],
        "tied": [torch.nn.Embedding(9, 2, _weight=tied.weight), tied],
        "narrow": [torch.nn.Embedding(9, 1)],
        "few": [torch.nn.Embedding(8, 3)],
    }
    models["tied"][0].weight = tied.weight
    models["computed"] = [torch.nn.utils.parametrizations.weight_norm(torch.nn.Embedding(9, 2))]
    monkeypatch.setattr(update_rows, "LEAST", 18)
    monkeypatch.setattr(update_rows, "LEAST_ROWS", 9)
    found = [name for name, parts in models.items() if update_rows.large_embeddings(torch.nn.Sequential(*parts))]
    assert found == ["plain"]


# ---- matrices by symbol, --gradients auto ----------------------------------------------------------------------------


def test_large_cells(monkeypatch):
    monkeypatch.setattr(update_rows, "LEAST", 3 * 2 * 2)
    vocabulary = Vocabulary(3, counts=torch.tensor([3, 2, 1]))

    def found(cell, **changes):
        built = build_cell(cell, 2, 2, vocabulary, **changes)
        return [(one.module is built, one.switch, one.most) for one in update_rows.large_cells(built)]

    for cell in ("rntn", "r_rntn", "r_gru", "r_lstm"):
        count = {} if cell == "rntn" else {"num_matrices": 3}
        assert found(cell, **count) == [(True, "row_sparse_update", 6)], cell
        assert found(cell, **count, gradients="dense") == found(cell, **count, gradients="row-sparse") == []
    assert found("m_rnn") == [] and found("m_rnn", factor_size=4) == [(True, "row_sparse_update", 6)]
    assert found("r_rntn", num_matrices=2) == [] and found("gru") == []
    one, other = (build_cell("rntn", 2, 2, vocabulary) for _ in range(2))
    other.recurrence.bias = one.recurrence.bias
    assert update_rows.large_cells(torch.nn.Sequential(one, other)) == []


class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x


COMPUTED = {
    "all": lambda cell: [register_parametrization(*table, Twice()) for table in tables_of(cell)],
    "first": lambda cell: torch.nn.utils.parametrizations.weight_norm(*tables_of(cell)[0]),
    "last": lambda cell: register_parametrization(*tables_of(cell)[-1], Twice()),
}


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("cell", ["rntn", "m_rnn", "r_gru"])
def test_cells_with_a_computed_table_stay_dense(cell, computed, data, tmp_path, monkeypatch, sparse_updates):
    monkeypatch.setattr(update_rows, "LEAST_ROWS", 10**9)
    monkeypatch.setattr(update_rows, "LEAST", 0)
    build_model = RNTNLanguageModelingTask.build_model

    def with_computed(self, *args, **kwargs):
        model = build_model(self, *args, **kwargs)
        COMPUTED[computed](model.decoder.stack.layers[0].cell)
        return model

    monkeypatch.setattr(RNTNLanguageModelingTask, "build_model", with_computed)
    count = ("--num-matrices", 40, "--indexed-gates", "update,candidate") if cell == "r_gru" else ()
    model = ("--arch", f"{cell}_lm", "--optimizer", "sgd", "--lr", 0.1, *count, "--max-update", 2)
    train(data, *model, "--save-dir", tmp_path, "--no-save")
    assert sparse_updates == [False] * 2
    with pytest.raises(ValueError, match="--gradients row-sparse does not go with a computed"):
        train(data, *model, "--gradients", "row-sparse", "--save-dir", tmp_path, "--no-save")


@pytest.mark.parametrize("cell, indexed", [("r_gru", "update,candidate"), ("r_lstm", "cell"), ("r_lstm", "input,cell")])
def test_what_a_cell_has_by_symbol(cell, indexed):
    vocabulary = Vocabulary(3, counts=torch.tensor([3, 2, 1]))
    built = build_cell(cell, 2, 2, vocabulary, num_matrices=3, indexed_gates=indexed)
    found = {id(getattr(module, name)) for module, name in tables_of(built)}
    names = {name.split(".")[-2].removesuffix("_gate") for name, one in built.named_parameters() if id(one) in found}
    assert names == set(indexed.split(",")) and len(found) == 2 * len(names)


def layer_of(cell, recurrence):
    """A layer, its input and tokens."""
    count = {"num_matrices": 20} if cell.startswith("r_") else {}
    vocabulary = Vocabulary(30, counts=torch.arange(30, 0, -1))
    layer = Recurrent(build_cell(cell, 4, 4, vocabulary, **count)).double()
    layer.recurrence = recurrence
    return layer, torch.randn(5, 2, 4).double(), torch.randint(0, 12, (5, 2))


@pytest.mark.parametrize("recurrence", ["fused", "naive"])
@pytest.mark.parametrize("cell", ["rntn", "r_rntn", "m_rnn", "r_gru", "r_lstm"])
def test_cells_have_sparse_gradients_while_the_switch_is_on(cell, recurrence):
    layer, x, tokens = layer_of(cell, recurrence)
    found = {}
    for on in (False, True, False):
        layer.cell.row_sparse_update = on
        layer.zero_grad()
        layer(x, tokens)[0].square().sum().backward()
        for module, name in tables_of(layer.cell):
            assert getattr(module, name).grad.is_sparse == on
        found[on] = [weight.grad.to_dense() for weight in layer.parameters()]
    torch.testing.assert_close(found[True], found[False])


def penalised(layer, x, tokens):
    """Gradients of the squared norm of gradients by all weights."""
    weights = list(layer.parameters())
    first = torch.autograd.grad(layer(x, tokens)[0].square().sum(), weights, create_graph=True)
    penalties = torch.autograd.grad(sum(one.square().sum() for one in first), weights)
    return [penalty.to_dense() for penalty in penalties]


def functional(layer, x, tokens):
    """Gradients of each row of a batch, by ``torch.func``."""

    def loss(weights, x, tokens):
        return functional_call(layer, weights, (x.unsqueeze(1), tokens.unsqueeze(1)))[0].square().sum()

    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    return list(vmap(grad(loss), in_dims=(None, 1, 1))(weights, x, tokens).values())


def forward_mode(layer, x, tokens):
    """The derivative of the outputs along a direction of all weights."""
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    along = {name: torch.linspace(-1, 1, weight.numel()).view_as(weight).double() for name, weight in weights.items()}
    return list(jvp(lambda weights: functional_call(layer, weights, (x, tokens))[0], (weights,), (along,)))


@pytest.mark.parametrize("differentiate", [penalised, functional, forward_mode])
@pytest.mark.parametrize("cell", ["rntn", "m_rnn", "r_gru"])
def test_naive_cells_have_further_derivatives_while_the_switch_is_on(cell, differentiate):
    layer, x, tokens = layer_of(cell, "naive")
    expected = differentiate(layer, x, tokens)
    layer.cell.row_sparse_update = True
    found = differentiate(layer, x, tokens)
    assert sum(float(one.abs().sum()) for one in expected) > 0.01
    torch.testing.assert_close(found, expected)


ADAPTS = {
    "sgd": ("--arch", "rntn_lm", "--optimizer", "sgd", "--lr", 1),
    "adagrad": ("--arch", "r_gru_lm", "--num-matrices", 40, *ADAGRAD),
    "adagrad_tf": ("--arch", "r_rntn_lm", "--num-matrices", 40, "--optimizer", "adagrad_tf", "--lr", 0.1),
    "max_norm_sgd": ("--arch", "m_rnn_lm", "--optimizer", "max_norm_sgd", "--lr", 1, "--max-norm", 0.4),
    "naive": ("--arch", "r_lstm_lm", "--num-matrices", 40, *ADAGRAD, "--recurrence", "naive"),
}


@pytest.mark.parametrize("run", ADAPTS)
def test_auto_trains_as_dense_gradients_do(run, data, tmp_path, monkeypatch, sparse_updates):
    """Without large embeddings, so that what is sparse is the cell's."""
    monkeypatch.setattr(update_rows, "LEAST_ROWS", 10**9)
    monkeypatch.setattr(update_rows, "LEAST", 0)
    train(data, *ADAPTS[run], "--save-dir", tmp_path / "auto")
    assert sparse_updates == [True] * 6
    train(data, *ADAPTS[run], "--gradients", "dense", "--save-dir", tmp_path / "dense")
    assert sparse_updates[6:] == [False] * 6
    same(trained(tmp_path / "dense"), trained(tmp_path / "auto"))


@pytest.mark.parametrize(
    "flags, expected",
    [
        ((), True),
        (("--num-matrices", 11), False),  # a batch has 24 symbols
        (("--num-matrices", 12), True),
        (("--optimizer", "adam"), False),
        (("--momentum", 0.9), False),
        (("--weight-decay", 0.1), False),
        (("--update-freq", 2), False),
        (("--gradients", "dense"), False),
    ],
)
def test_where_matrices_have_sparse_gradients(flags, expected, data, tmp_path, monkeypatch, sparse_updates):
    monkeypatch.setattr(update_rows, "LEAST_ROWS", 10**9)
    monkeypatch.setattr(update_rows, "LEAST", 0)
    model = ("--arch", "r_rntn_lm", "--num-matrices", 40, "--optimizer", "sgd", "--lr", 0.1, "--max-update", 4)
    train(data, *model, *flags, "--save-dir", tmp_path, "--no-save")
    assert sparse_updates == [expected] * 4


def test_a_hook_on_one_weight_keeps_all_of_its_cell_dense(monkeypatch):
    monkeypatch.setattr(update_rows, "LEAST", 0)
    cell = build_cell("rntn", 2, 2, Vocabulary(3))
    found = update_rows.large_cells(cell)
    cell.compile()
    with update_rows.sparse_where_quicker(found, 6):
        assert cell.row_sparse_update
        for copied in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
            assert not copied.row_sparse_update
    assert not cell.row_sparse_update
    with update_rows.sparse_where_quicker(found, 7):
        assert not cell.row_sparse_update
    for register in (cell.recurrence.bias.register_hook, cell.recurrence.bias.register_post_accumulate_grad_hook):
        handle = register(lambda _: None)
        with update_rows.sparse_where_quicker(found, 6):
            assert not cell.row_sparse_update
        handle.remove()
        with update_rows.sparse_where_quicker(found, 6):
            assert cell.row_sparse_update


def test_tables_that_change_between_updates(monkeypatch):
    """Parameters that were put in their place, weight normalisation: what is there now decides."""
    monkeypatch.setattr(update_rows, "LEAST", 0)
    for change in ("assign", "weight_norm"):
        cell = build_cell("rntn", 2, 2, Vocabulary(3))
        found = update_rows.large_cells(cell)
        with update_rows.sparse_where_quicker(found, 6):
            assert cell.row_sparse_update
        if change == "assign":
            cell.load_state_dict(copy.deepcopy(cell.state_dict()), assign=True)
        else:
            torch.nn.utils.parametrizations.weight_norm(cell.recurrence, "weight")
        with update_rows.sparse_where_quicker(found, 6):
            assert not cell.row_sparse_update


def test_a_cell_with_a_table_of_its_own(monkeypatch):
    """Its rows are the largest, and their number counts."""
    monkeypatch.setattr(update_rows, "LEAST", 0)

    class Own(MRNN):
        index_tables = (*MRNN.index_tables, "more")

        def build(self):
            super().build()
            self.more = torch.nn.Parameter(torch.zeros(7, 2))

    own = Own(2, 2, Own.Options(), Vocabulary(3))
    assert [name for _, name in tables_of(own)] == ["factors", "more"]
    assert [one.most for one in update_rows.large_cells(own)] == [14]
    Own.index_tables = ("factor",)
    with pytest.raises(ValueError, match="Own.index_tables names 'factor', which it has not"):
        update_rows.large_cells(own)


@pytest.mark.parametrize(
    "sample, expected",
    [
        ({"ntokens": 5}, 5),
        ({"ntokens": 5.0}, 5),
        ({"ntokens": torch.tensor(5)}, 5),
        ({"ntokens": torch.tensor([5])}, 5),
        ({"ntokens": torch.tensor([5, 6])}, math.inf),
        ({"ntokens": torch.tensor(5j)}, math.inf),
        ({"ntokens": [5]}, math.inf),
        ({"ntokens": "5"}, math.inf),
        ({"ntokens": None}, math.inf),
        ({}, math.inf),
        ((torch.ones(2),), math.inf),
        (torch.ones(2), math.inf),
        ("DUMMY", math.inf),
        (None, math.inf),
    ],
)
def test_symbols_of_any_batch(sample, expected):
    assert row_sparse.symbols_of(sample) == expected


def test_a_trainer_from_before(data, tmp_path, monkeypatch):
    """One that was made before the package was imported has nothing to switch."""
    monkeypatch.setattr(row_sparse, "large_embeddings", lambda _: pytest.fail("it looked"))
    monkeypatch.setattr(Trainer, "__init__", Trainer.__init__.__wrapped__)
    train(data, "--arch", "gru_lm", "--optimizer", "sgd", "--lr", 0.1, "--save-dir", tmp_path, "--no-save")


def test_auto_takes_any_optimiser(of_sgd):
    cfg = copy.deepcopy(of_sgd)
    OmegaConf.update(cfg, "common.fp16", True)
    check_run(cfg, build_cell("rntn", 2, 2, Vocabulary(3)))


def test_several_workers_and_other_devices_have_dense_gradients(of_sgd):
    def suits(device, **changes):
        cfg = copy.deepcopy(of_sgd)
        for key, value in changes.items():
            OmegaConf.update(cfg, f"distributed_training.{key}", value)
        return row_sparse.suits_rows(Namespace(cfg=cfg, device=torch.device(device)))

    assert suits("cpu") and not suits("cuda")
    assert not suits("cpu", distributed_world_size=2, ddp_backend="legacy_ddp")
