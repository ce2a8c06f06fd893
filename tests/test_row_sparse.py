"""``--gradients row-sparse``: fairseq's trainer does with such gradients what it does with dense ones."""

import copy
import math
import multiprocessing
import socket
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from fairseq_cli import train as fairseq_train
from omegaconf import OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.cells.rntn import MRNN, RNTN, per_index
from rntn_plugins.layers.recurrent import Recurrent
from rntn_plugins.models._presets import PRESETS
from rntn_plugins.optim import row_sparse, update_rows
from rntn_plugins.optim.row_sparse import RowSparseDataParallel, check_run, row_values, teach_fairseq

V, K = 600, 20
READ = 60  # symbols that the text is made of
#: AdaGrad's steps do not shrink with the gradient, and where that is nearly zero they magnify its rounding
ADAGRAD = ("--optimizer", "adagrad", "--lr", 0.01)
#: flags of a model and of its optimiser
RUNS = {
    "sgd": ("--arch", "rntn_lm", "--optimizer", "sgd", "--lr", 1, "--update-freq", 2),
    "adagrad": ("--arch", "r_gru_lm", "--num-matrices", K, *ADAGRAD, "--update-freq", 2),
    "adagrad_tf": ("--arch", "r_rntn_lm", "--num-matrices", K, "--optimizer", "adagrad_tf", "--lr", 0.1),
    "max_norm_sgd": ("--arch", "m_rnn_lm", "--optimizer", "max_norm_sgd", "--lr", 1, "--max-norm", 0.4),
    "naive": ("--arch", "rntn_lm", *ADAGRAD, "--recurrence", "naive"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), torch.Generator().manual_seed(1)
    dictionary = Dictionary()
    for number in range(V - dictionary.nspecial):
        dictionary.add_symbol(f"w{number}")
    dictionary.save(str(folder / "dict.txt"))
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), "mmap", len(dictionary))
    for length in torch.randint(1, 9, (60,), generator=random).tolist():
        words = torch.randint(dictionary.nspecial, READ, (length,), generator=random)
        builder.add_item(torch.cat([words, torch.tensor([dictionary.eos()])]).int())
    builder.finalize(str(folder / "train.idx"))
    return folder


def settings(data, *flags):
    """The settings of ``fairseq-train``."""
    shared = (
        "--task", "rntn_language_modeling", "--cpu", "--batch-size", 4, "--tokens-per-sample", 6, "--num-workers", 0,
        "--embed-dim", 5, "--hidden-size", 6, "--max-update", 6, "--disable-validation", "--clip-norm", 0.3,
    )  # fmt: skip
    arguments = [str(argument) for argument in (data, *shared, *flags)]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=arguments))


def train(data, *flags):
    """``fairseq-train`` in this process."""
    distributed_utils.call_main(settings(data, *flags), fairseq_train.main)


def trained(folder) -> dict:
    """Name -> parameter, and what the optimiser keeps of it."""
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    kept = state["last_optimizer_state"]["state"].items()
    return {**state["model"], **{f"{number} {key}": value for number, one in kept for key, value in one.items()}}


def same(one: dict, other: dict, tolerance=1e-6):
    assert one.keys() == other.keys()
    torch.testing.assert_close(other, one, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("run", RUNS)
def test_training_is_that_of_dense_gradients(run, data, tmp_path):
    for gradients in ("dense", "row-sparse"):
        train(data, *RUNS[run], "--gradients", gradients, "--save-dir", tmp_path / gradients)
    same(trained(tmp_path / "dense"), trained(tmp_path / "row-sparse"))


# ---- an update -------------------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Names of the operations that read or write a dense tensor of *size* numbers, but for views of it and for
    additions of sparse tensors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.found = size, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [part for part in tree_leaves((args, kwargs, result)) if isinstance(part, torch.Tensor)]
        whole = any(part.layout == torch.strided and part.numel() >= self.size for part in tensors)
        if whole and not function.is_view and not any(part.layout == torch.sparse_coo for part in tensors):
            self.found.add(function.overloadpacket.__name__)
        return result


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
    parameter.row_sparse = True
    for rows in gradients:
        values = torch.arange(2.0 * len(rows)).view(-1, 2) + 1
        gradient = torch.sparse_coo_tensor(torch.tensor([rows]), values, (9, 2), check_invariants=True)
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return parameter


@pytest.mark.parametrize("gradients", [[[1, 4, 7]], [[7, 1, 4]], [[1, 4], [4, 7]], [[4, 4, 2], [1]], [[]]])
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


@pytest.fixture(scope="module")
def of_sgd(data):
    return settings(data, "--arch", "rntn_lm", "--lr", 1, "--optimizer", "sgd")


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
    marked = [name for name, parameter in model.named_parameters() if hasattr(parameter, "row_sparse")]
    assert marked == [f"decoder.stack.layers.0.cell.{weight}" for weight in weights]


def test_unrestricted_rntn_presets_have_it_unless_told_otherwise(data):
    have = {name for name, (_, preset) in PRESETS.items() if preset.get("gradients") == "row-sparse"}
    assert have == {"rntn_lm_salle_ptb", "rntn_lm_salle_text8"}
    flags = ("--arch", "rntn_lm_salle_ptb", "--optimizer", "sgd", "--lr", 0.1)
    assert str(settings(data, *flags).model.gradients) == "row-sparse"
    assert str(settings(data, *flags, "--gradients", "dense").model.gradients) == "dense"


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
    with pytest.raises(RuntimeError, match="in between"), update_rows.by_rows(found, 10**6):
        assert embed.sparse
        raise RuntimeError("in between")
    assert not embed.sparse
    handle = embed.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with update_rows.by_rows(found, 1):
        assert not embed.sparse
    handle.remove()
    with update_rows.by_rows(found, 1):
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


def test_large_stacks(monkeypatch):
    monkeypatch.setattr(update_rows, "LEAST", 3 * 2 * 2)
    vocabulary = Vocabulary(3, counts=torch.tensor([3, 2, 1]))

    def found(cell, **changes):
        built = build_cell(cell, 2, 2, vocabulary, **changes)
        return [(one.module is built, one.switch, one.most) for one in update_rows.large_stacks(built)]

    for cell in ("rntn", "r_rntn", "r_gru", "r_lstm"):
        count = {} if cell == "rntn" else {"num_matrices": 3}
        assert found(cell, **count) == [(True, "by_rows", 6)], cell
        assert found(cell, **count, gradients="dense") == found(cell, **count, gradients="row-sparse") == []
    assert found("m_rnn") == [] and found("m_rnn", factor_size=4) == [(True, "by_rows", 6)]
    assert found("r_rntn", num_matrices=2) == [] and found("gru") == []
    one, other = (build_cell("rntn", 2, 2, vocabulary) for _ in range(2))
    other.recurrence.bias = one.recurrence.bias
    assert update_rows.large_stacks(torch.nn.Sequential(one, other)) == []
    normed = build_cell("rntn", 2, 2, vocabulary)
    torch.nn.utils.parametrizations.weight_norm(normed.recurrence, "weight")
    torch.nn.utils.parametrizations.weight_norm(normed.recurrence, "bias")
    assert update_rows.large_stacks(normed) == []


@pytest.mark.parametrize("cell, indexed", [("r_gru", "update,candidate"), ("r_lstm", "cell"), ("r_lstm", "input,cell")])
def test_what_a_cell_has_by_symbol(cell, indexed):
    vocabulary = Vocabulary(3, counts=torch.tensor([3, 2, 1]))
    built = build_cell(cell, 2, 2, vocabulary, num_matrices=3, indexed_gates=indexed)
    found = {id(weight) for weight in built.per_index()}
    names = {name.split(".")[-2].removesuffix("_gate") for name, one in built.named_parameters() if id(one) in found}
    assert names == set(indexed.split(",")) and len(found) == 2 * len(names)


@pytest.mark.parametrize("recurrence", ["fused", "naive"])
@pytest.mark.parametrize("cell", ["rntn", "r_rntn", "m_rnn", "r_gru", "r_lstm"])
def test_cells_have_sparse_gradients_while_the_switch_is_on(cell, recurrence):
    count = {"num_matrices": 20} if cell.startswith("r_") else {}
    vocabulary = Vocabulary(30, counts=torch.arange(30, 0, -1))
    layer = Recurrent(build_cell(cell, 4, 4, vocabulary, **count)).double()
    layer.recurrence = recurrence
    x, tokens = torch.randn(5, 2, 4).double(), torch.randint(0, 12, (5, 2))
    found = {}
    for on in (False, True, False):
        layer.cell.by_rows = on
        layer.zero_grad()
        layer(x, tokens)[0].square().sum().backward()
        for weight in layer.cell.per_index():
            assert weight.grad.is_sparse == on
        found[on] = [weight.grad.to_dense() for weight in layer.parameters()]
    torch.testing.assert_close(found[True], found[False])


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
    found = update_rows.large_stacks(cell)
    with update_rows.by_rows(found, 6):
        assert cell.by_rows and not copy.deepcopy(cell).by_rows
    assert not cell.by_rows
    with update_rows.by_rows(found, 7):
        assert not cell.by_rows
    cell.recurrence.bias.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with update_rows.by_rows(found, 6):
        assert not cell.by_rows


def test_a_cell_of_ones_own():
    """That reads its own table, and does without the argument that ``IndexedMatrix`` has."""

    class Own(MRNN):
        def build(self):
            super().build()
            self.more = per_index(self.row_sparse, 3, 2)

    class Another(RNTN):
        def project(self, x, tokens=None):
            matrix, bias = self.recurrence(tokens)
            return x + bias + matrix.sum(-1)

    own = Own(2, 2, Own.Options(), Vocabulary(3))
    assert {id(weight) for weight in own.per_index()} == {id(own.factors), id(own.more)}
    another = Another(2, 2, Another.Options(), Vocabulary(3))
    assert another.project(torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 2)


@pytest.mark.parametrize(
    "samples, expected",
    [
        ([{"ntokens": 5}], 5),
        ([{"ntokens": torch.tensor(5)}], 5),
        ([{"ntokens": None}], math.inf),
        ([{}], math.inf),
        ([(torch.ones(2),)], math.inf),
        ([torch.ones(2)], math.inf),
        (["DUMMY"], math.inf),
        ([None], math.inf),
        ([], math.inf),
    ],
)
def test_symbols_of_any_batch(samples, expected):
    assert row_sparse.symbols_of(samples) == expected


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
