"""``--gradients row-sparse``: fairseq's trainer does with such gradients what it does with dense ones."""

import contextlib
import copy
import multiprocessing
import socket

import pytest
import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.models import distributed_fairseq_model
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from small_trainings import ADAGRAD, Watch, same, settings, train, trained

from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.cells.restricted_gated import RestrictedGRU
from rntn_plugins.cells.rntn import RNTN, IndexedMatrix, WithMatrix
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.models._presets import PRESETS
from rntn_plugins.ops.indexed import read
from rntn_plugins.optim import row_sparse
from rntn_plugins.optim.row_sparse import RowSparseDataParallel, check_run, row_values, teach_fairseq
from rntn_plugins.optim.update_rows import tables_of

K = 20
#: flags of a model and of its optimiser
RUNS = {
    "sgd": ("--arch", "rntn_lm", "--optimizer", "sgd", "--lr", 1, "--update-freq", 2),
    "adagrad": ("--arch", "r_gru_lm", "--num-matrices", K, *ADAGRAD, "--update-freq", 2),
    "adagrad_tf": ("--arch", "r_rntn_lm", "--num-matrices", K, "--optimizer", "adagrad_tf", "--lr", 0.1),
    "max_norm_sgd": ("--arch", "m_rnn_lm", "--optimizer", "max_norm_sgd", "--lr", 1, "--max-norm", 0.4),
    "naive": ("--arch", "rntn_lm", *ADAGRAD, "--recurrence", "naive"),
}


@pytest.mark.parametrize("run", RUNS)
def test_training_is_that_of_dense_gradients(run, data, tmp_path):
    for gradients in ("dense", "row-sparse"):
        train(data, *RUNS[run], "--gradients", gradients, "--save-dir", tmp_path / gradients)
    same(trained(tmp_path / "dense"), trained(tmp_path / "row-sparse"))


# ---- an update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["sgd", "adagrad"])
def test_an_update_reads_and_writes_only_rows_that_occurred(optimiser, data, tmp_path, monkeypatch):
    """K·H² is far above all other sizes here."""
    count, size = 500, 16
    watches, train_step = [], Trainer.train_step

    def watched(self, samples):
        self.optimizer  # noqa: B018  (made at its first use, with all its state)
        watches.append(Watch(count * size * size))
        with watches[-1]:
            return train_step(self, samples)

    monkeypatch.setattr(Trainer, "train_step", watched)
    model = ("--arch", "r_rntn_lm", "--num-matrices", count, "--hidden-size", size)
    saving = ("--save-dir", tmp_path, "--no-save", "--max-update", 2)
    for gradients in ("row-sparse", "dense"):
        train(data, *model, "--gradients", gradients, "--optimizer", optimiser, "--lr", 0.1, *saving)
    # they read lines of the kernels' choice, or only the type
    harmless = {"sparse_sampled_addmm", "_embedding_bag", "new_empty"}
    assert all(watch.found <= harmless for watch in watches[:2]), watches[0].found
    assert all(len(watch.found - harmless) >= 3 for watch in watches[2:])  # scaling, norm, step


def parameter_with(*gradients) -> torch.nn.Parameter:
    """A parameter ``[9, 2]`` after a backward pass for each of the gradients, given as lists of rows."""
    parameter = torch.nn.Parameter(torch.zeros(9, 2))
    for rows in gradients:
        values = torch.arange(2.0 * len(rows)).view(-1, 2) + 1
        gradient = torch.sparse_coo_tensor(torch.tensor([rows]), values, (9, 2), check_invariants=True)
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return parameter


@pytest.mark.parametrize("gradients", [[[1, 4, 7]], [[7, 1, 4]], [[1, 4], [4, 7]], [[1, 4, 4]], [[4, 4, 2], [1]], [[]]])
def test_clipping_and_scaling_are_those_of_dense_gradients(gradients):
    sparse, dense, other = parameter_with(*gradients), parameter_with(*gradients), torch.nn.Parameter(torch.ones(3))
    dense.grad, other.grad = dense.grad.to_dense(), torch.ones(3)
    norms = [utils.clip_grad_norm_(parameters, 0.5) for parameters in ([sparse], [dense])]
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad)
    optimiser = FairseqOptimizer(None)
    optimiser._optimizer = torch.optim.SGD([sparse, dense, other], lr=0.1)
    optimiser.multiply_grads(torch.tensor(3.0))
    optimiser.multiply_grads(0.5)
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad)
    assert other.grad.tolist() == [1.5] * 3
    torch.testing.assert_close(utils.clip_grad_norm_([sparse, other], 0), utils.clip_grad_norm_([dense, other], 0))


def test_rows_in_order_are_not_copied():
    ordered, mixed = parameter_with([1, 4]), parameter_with([4, 1, 4])
    memory = ordered.grad._values().data_ptr()
    assert row_values(ordered).data_ptr() == memory and ordered.grad.is_coalesced()
    assert row_values(mixed).tolist() == [[3.0, 4.0], [6.0, 8.0]] and mixed.grad.is_coalesced()


def taught() -> list:
    step = (FairseqOptimizer.multiply_grads, FairseqOptimizer.step, Trainer.train_step)
    return [utils.clip_grad_norm_, Trainer.__init__, *step]


def test_fairseq_is_taught_once():
    teach_fairseq()
    known = taught()
    teach_fairseq()
    assert known == taught()
    assert distributed_fairseq_model.LegacyDistributedDataParallel is RowSparseDataParallel
    assert not any(hasattr(each.__wrapped__, "knows_rows") for each in known)


def test_gradients_scaled_by_one_are_left(monkeypatch):
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([3.0, 4.0])

    class Optimizer(FairseqOptimizer):
        params = [parameter]

        def __init__(self):
            pass

    for scale, expected in ((1, [3, 4]), (0.5, [1.5, 2]), (torch.tensor(2.0), [3, 4])):
        Optimizer().multiply_grads(scale)
        assert parameter.grad.tolist() == expected
    monkeypatch.setattr(Optimizer, "params", None)  # whoever reads it does something
    Optimizer().multiply_grads(1.0)


# ---- data parallel ---------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_two_processes(work, *arguments) -> None:
    """``work(rank, address, *arguments)`` in forks of this process, which has imported everything already."""
    address, fork = f"tcp://127.0.0.1:{free_port()}", multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(rank, address, *arguments), daemon=True) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, 0]


def train_as(rank, address, data, *flags):
    train(
        data, *flags, "--distributed-backend", "gloo", "--distributed-no-spawn", "--distributed-world-size", 2,
        "--distributed-rank", rank, "--distributed-init-method", address, "--device-id", 0,
    )  # fmt: skip


def test_two_workers_are_one_with_twice_the_batch(data, tmp_path):
    flags = (*RUNS["adagrad"], "--sample-break-mode", "eos", "--gradients")
    parallel = ("--batch-size", 2, "--ddp-backend", "legacy_ddp", "--save-dir", tmp_path / "two")
    in_two_processes(train_as, data, *flags, "row-sparse", *parallel)
    train(data, *flags, "dense", "--save-dir", tmp_path / "one")
    same(trained(tmp_path / "one"), trained(tmp_path / "two"))


#: for each worker, the rows of every backward pass since the last update
OF_WORKERS = [([[1, 4, 7]], [[4, 8]]), ([[2, 3], [3, 5]], [[0]]), ([], [[5, 2]]), ([[]], [[1]]), ([], [])]


class Holder(torch.nn.Module):
    index_tables, row_sparse = ("table",), True

    def __init__(self, gradients) -> None:
        super().__init__()
        self.table, self.other = parameter_with(*gradients), torch.nn.Parameter(torch.zeros(2))


def reduce_as(rank, address):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for gradients in OF_WORKERS:
        found = []
        for parallel in (RowSparseDataParallel, LegacyDistributedDataParallel):
            module = Holder(gradients[rank])
            if parallel is LegacyDistributedDataParallel and module.table.grad is not None:
                module.table.grad = module.table.grad.to_dense()
            module.other.grad = torch.ones(2) + rank
            wrapped = parallel(module, torch.distributed.group.WORLD)
            wrapped.accumulate_grads = True
            wrapped.all_reduce_grads()
            assert module.other.grad.tolist() == [1.0 + rank] * 2
            wrapped.accumulate_grads = False
            wrapped.all_reduce_grads()
            found.append(
                [torch.zeros(9, 2) if g is None else g.to_dense() for g in (module.table.grad, module.other.grad)]
            )
        torch.testing.assert_close(*found, atol=0, rtol=0)
        assert wrapped.buffer.numel() == 20
    module = Holder([])  # whose gradient is dense on one worker, as where the table is read in two ways
    module.table.grad = torch.ones(9, 2) if rank else torch.ones(9, 2).to_sparse(1)
    RowSparseDataParallel(module, torch.distributed.group.WORLD).all_reduce_grads()
    torch.testing.assert_close(module.table.grad.to_dense(), torch.ones(9, 2))
    torch.distributed.destroy_process_group()


def test_gradients_of_workers_with_different_rows_or_none():
    in_two_processes(reduce_as)


# ---- what it does not go with ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimiser, named",
    [
        ("adam", "--optimizer adam"),
        ("sgd --momentum 0.9", "--momentum 0.9"),
        ("adagrad --weight-decay 0.1", "--weight-decay 0.1"),
        ("adagrad_tf --weight-decay 0.1", "--weight-decay 0.1"),
        ("max_norm_sgd --momentum 0.9 --wd 0.1", "--momentum 0.9, --weight-decay 0.1"),
        ("sgd", None),
    ],
)
def test_optimisers_that_do_not_go_with_it_are_named(optimiser, named, data):
    check(settings(data, "--arch", "rntn_lm", "--lr", 1, "--optimizer", *optimiser.split()), named)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"common.fp16": True}, "--fp16"),
        ({"common.bf16": True}, "--bf16"),
        ({"common.amp": True}, "--amp"),
        ({"optimization.use_bmuf": True}, "--use-bmuf"),
        ({"distributed_training.zero_sharding": "os"}, "--zero-sharding os"),
        ({"distributed_training.ddp_backend": "fully_sharded"}, "--ddp-backend fully_sharded"),
        ({"distributed_training.distributed_world_size": 2}, "--ddp-backend pytorch_ddp"),
        (
            {"distributed_training.distributed_world_size": 2, "distributed_training.ddp_backend": "slowmo"},
            "--ddp-backend slowmo",
        ),
        ({"distributed_training.distributed_world_size": 2, "distributed_training.ddp_backend": "no_c10d"}, None),
    ],
)
def test_other_flags_that_do_not_go_with_it_are_named(changes, named, of_sgd):
    cfg = copy.deepcopy(of_sgd)
    for key, value in changes.items():
        OmegaConf.update(cfg, key, value)
    check(cfg, named)


def check(cfg, named):
    sparse, dense = (build_cell("rntn", 2, 2, Vocabulary(3), gradients=how) for how in ("row-sparse", "dense"))
    check_run(cfg, dense)
    if named is None:
        check_run(cfg, sparse)
        return
    with pytest.raises(ValueError) as error:
        check_run(cfg, sparse)
    assert f"--gradients row-sparse does not go with {named}: take" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_error_comes_before_training(data, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "train_step", lambda *_: pytest.fail("it trained"))
    flags = ("--arch", "rntn_lm", "--gradients", "row-sparse", "--save-dir", tmp_path)
    with pytest.raises(ValueError, match="does not go with --optimizer adam: take --gradients auto"):
        train(data, *flags, "--optimizer", "adam", "--lr", 0.1)


def test_the_flags_named_exist():
    """Optimisers and back ends of the error message."""
    from fairseq.dataclass.constants import DDP_BACKEND_CHOICES
    from fairseq.optim import OPTIMIZER_REGISTRY

    assert set(row_sparse.OPTIMISERS) <= set(OPTIMIZER_REGISTRY)
    assert set(row_sparse.DATA_PARALLEL) <= {str(choice.value) for choice in DDP_BACKEND_CHOICES}


def test_matrices_by_themselves(data):
    """Copied, and with parameters that were put in the place of others, they stay as they were made."""
    of_adam = settings(data, "--arch", "rntn_lm", "--lr", 1, "--optimizer", "adam")
    for made in (True, False):
        matrices = copy.deepcopy(IndexedMatrix(2, torch.arange(3), 3, made))
        matrices.load_state_dict(matrices.state_dict(), assign=True)
        sum(part.sum() for part in matrices(torch.tensor([[0, 2]]))).backward()
        assert [weight.grad.is_sparse for weight in matrices.parameters()] == [made, made]
        with pytest.raises(ValueError, match="--optimizer adam") if made else contextlib.nullcontext():
            check_run(of_adam, torch.nn.Sequential(matrices))


class Scales(torch.nn.Module):
    index_tables = ("scale",)

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3, 2))


class WithScales(RNTN):
    """A cell with a table in a module of its own, beside those it has from its parent."""

    def build(self):
        super().build()
        self.more = Scales()

    def project(self, x, tokens=None):
        x, matrix = super().project(x, tokens)
        return WithMatrix(x * read(self.more.scale, tokens, self.row_sparse), matrix)


def test_a_table_in_a_module_of_the_cell(data):
    cell = WithScales(2, 2, WithScales.Options(gradients="row-sparse"), Vocabulary(3))
    layer = Recurrent(cell)
    layer.recurrence = "naive"
    layer(torch.randn(2, 2, 2), torch.tensor([[0, 2], [2, 2]]))[0].sum().backward()
    sparse = {id(parameter) for parameter in layer.parameters() if parameter.grad.is_sparse}
    assert len(sparse) == 3 and {id(parameter) for parameter in row_sparse.row_sparse_tables(layer)} == sparse
    stacked = torch.nn.Sequential(layer, cell)  # held twice, and there once
    assert len(row_sparse.row_sparse_tables(stacked)) == 3
    with pytest.raises(ValueError, match="--optimizer adam"):
        check_run(settings(data, "--arch", "rntn_lm", "--lr", 1, "--optimizer", "adam"), layer)
    torch.nn.utils.parametrizations.weight_norm(cell.more, "scale")
    with pytest.raises(ValueError, match="--gradients row-sparse does not go with a computed Parametrized"):
        row_sparse.row_sparse_tables(layer)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "weights"), [("m_rnn_lm", ["factors"]), ("r_rntn_lm", ["recurrence.weight", "recurrence.bias"])]
)
def test_the_option_is_in_the_checkpoint_and_can_change_when_resuming(arch, weights, data, tmp_path):
    flags = ("--arch", arch, *ADAGRAD, "--store-ema", "--gradients")
    train(data, *flags, "dense", "--save-dir", tmp_path / "cut", "--max-update", 3)
    train(data, *flags, "row-sparse", "--save-dir", tmp_path / "cut")
    train(data, *flags, "dense", "--save-dir", tmp_path / "whole")
    same(trained(tmp_path / "whole"), trained(tmp_path / "cut"))
    files = [tmp_path / run / "checkpoint_last.pt" for run in ("whole", "cut")]
    same(*(torch.load(file, weights_only=True)["extra_state"]["ema"] for file in files))
    (model,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task([str(files[1])])
    assert str(cfg.model.gradients) == "row-sparse"
    found = {id(parameter) for parameter in row_sparse.row_sparse_tables(model)}
    marked = [name for name, parameter in model.named_parameters() if id(parameter) in found]
    assert marked == [f"decoder.stack.layers.0.cell.{weight}" for weight in weights]


def test_unrestricted_rntn_presets_have_it_unless_told_otherwise(data):
    have = {name for name, (_, preset) in PRESETS.items() if preset.get("gradients") == "row-sparse"}
    assert have == {"rntn_lm_salle_ptb", "rntn_lm_salle_text8"}
    flags = ("--arch", "rntn_lm_salle_ptb", "--optimizer", "sgd", "--lr", 0.1)
    assert str(settings(data, *flags).model.gradients) == "row-sparse"
    assert str(settings(data, *flags, "--gradients", "dense").model.gradients) == "dense"


@pytest.mark.parametrize("gradients", ["auto", "dense", "row-sparse"])
@pytest.mark.parametrize("parent", [RNTN, RestrictedGRU])
def test_a_cell_of_ones_own_need_not_ask(parent, gradients):
    """It calls its matrices by the tokens alone."""

    class Own(parent):
        def project(self, x, tokens=None):
            if parent is RestrictedGRU:
                return self.recurrent.project(F.linear(x, self.weight_ih), tokens)
            matrix, bias = self.recurrence(tokens)
            return WithMatrix(self.input(x) + bias, matrix)

    vocabulary = Vocabulary(5, counts=torch.arange(5, 0, -1))
    count = {} if parent is RNTN else {"num_matrices": 5}
    cell, other = (one(3, 3, one.Options(gradients=gradients, **count), vocabulary) for one in (Own, parent))
    x, tokens = torch.randn(4, 2, 3), torch.randint(0, 3, (4, 2))
    layers = [Recurrent(one) for one in (cell, other)]
    layers[1].load_state_dict(layers[0].state_dict())
    for layer in layers:
        layer.recurrence = "naive"
        layer(x, tokens)[0].square().sum().backward()
    sparse = [getattr(module, name).grad.is_sparse for module, name in tables_of(cell)]
    assert sparse == [gradients == "row-sparse"] * 2
    for one, expected in zip(layers[0].parameters(), layers[1].parameters()):
        torch.testing.assert_close(one.grad.to_dense(), expected.grad.to_dense())
