"""Row-sparse gradients in fairseq's trainer: ``--gradients row-sparse``.

Such a gradient is a sparse tensor ``[K, ...]`` with values ``[U, ...]`` for the U rows that occurred. torch's SGD and
AdaGrad take them, and everything between the backward pass and them is taught to here: fairseq's scaling has no effect
on sparse gradients (it scales a copy), its clipping takes the norm of values that may yet have to be added up, and its
data parallel sums dense buffers. Other runs are changed in three things: gradients whose scale is 1 (one worker,
``--sentence-avg``, one sentence) are not gone through to scale them; on CPUs torch's SGD and AdaGrad take one pass
(:mod:`~rntn_plugins.optim.one_pass`); and there large embeddings, and the matrices of cells with ``--gradients auto``,
have sparse gradients where the step is the same with them (:mod:`~rntn_plugins.optim.update_rows`).
"""

from __future__ import annotations

import functools
import math
import numbers
from types import SimpleNamespace
from typing import Callable, Iterator, List

import torch
from fairseq import trainer, utils
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from fairseq.optim import FairseqOptimizer
from torch import Tensor, nn

from rntn_plugins.optim.one_pass import in_one_pass
from rntn_plugins.optim.update_rows import (
    large_cells,
    large_embeddings,
    parameter_of,
    sparse_where_quicker,
    tables_of,
)

OPTIMISERS = ("sgd", "adagrad", "adagrad_tf", "max_norm_sgd")
DATA_PARALLEL = ("legacy_ddp", "no_c10d")


def is_row_sparse(parameter) -> bool:
    """Whether a parameter has a sparse gradient now."""
    return parameter.grad is not None and parameter.grad.is_sparse


@torch.no_grad()
def row_values(parameter) -> Tensor:
    """The values ``[U, ...]`` of a sparse gradient, every row there once; changing them changes the gradient.

    Autograd forgets that rows are in order; it is cheaper to look than to sort and copy them.
    """
    gradient = parameter.grad
    if not gradient.is_coalesced():
        rows = gradient._indices()
        if len(rows) == 1 and bool((rows[0, 1:] > rows[0, :-1]).all()):
            gradient._coalesced_(True)
        else:
            parameter.grad = gradient = gradient.coalesce()
    return gradient._values()


def clips_rows(original: Callable) -> Callable:
    """``utils.clip_grad_norm_`` that sees the values of a sparse gradient in its place."""

    def clip_grad_norm_(params, *args, **kwargs):
        params = [params] if isinstance(params, Tensor) else list(params)
        return original([values_only(p) if is_row_sparse(p) else p for p in params], *args, **kwargs)

    return clip_grad_norm_


def values_only(parameter) -> SimpleNamespace:
    shown = SimpleNamespace(grad=row_values(parameter))
    if hasattr(parameter, "expert"):
        shown.expert = parameter.expert
    return shown


def scales_rows(original: Callable) -> Callable:
    """``FairseqOptimizer.multiply_grads`` for dense and sparse gradients, which a scale of 1 leaves alone."""

    def multiply_grads(self, c):
        if not torch.is_tensor(c) and c == 1:
            return
        found = [(p, row_values(p), p.grad) for p in self.params if is_row_sparse(p)]
        for parameter, values, _ in found:
            values.mul_(c.to(values.device) if torch.is_tensor(c) else c)
            parameter.grad = None
        original(self, c)
        for parameter, _, gradient in found:
            parameter.grad = gradient

    return multiply_grads


def row_sparse_tables(model: nn.Module) -> List[nn.Parameter]:
    """The parameters whose gradients are row-sparse in every backward pass of a training.

    Raises:
        ValueError: one is not there, or computed from other parameters, whose gradients are dense.
    """
    found = {}
    for module in filter(reads_row_sparse, model.modules()):
        for holder, name in tables_of(module):
            parameter = parameter_of(holder, name)
            if parameter is None:
                raise ValueError(
                    f"--gradients row-sparse does not go with a computed {type(holder).__name__}.{name} (weight "
                    "normalisation, parametrization): take --gradients auto"
                )
            found[id(parameter)] = parameter
    return list(found.values())


def reads_row_sparse(module: nn.Module) -> bool:
    """Whether it was made to read parameters with row-sparse gradients."""
    return bool(getattr(module, "row_sparse", False))


class RowSparseDataParallel(LegacyDistributedDataParallel):
    """``--ddp-backend legacy_ddp`` in which workers exchange the rows that occurred, not all K."""

    def __init__(self, module, process_group, buffer_size: int = 2**28) -> None:
        super().__init__(module, process_group, buffer_size)
        self.row_sparse = [parameter for parameter in row_sparse_tables(module) if parameter.requires_grad]
        apart = {id(parameter) for parameter in self.row_sparse}
        self.per_device_params = [[p for p in params if id(p) not in apart] for params in self.per_device_params]
        self.buffer_size = min(self.buffer_size, sum(p.numel() for params in self.per_device_params for p in params))

    def all_reduce_grads(self) -> None:
        super().all_reduce_grads()
        if not self.accumulate_grads:
            for parameter in self.row_sparse:
                self.add_up_rows(parameter)

    @torch.no_grad()
    def add_up_rows(self, parameter: nn.Parameter) -> None:
        """The workers' mean gradient, as for dense ones, on all workers: a row for each that any worker has."""
        if parameter.grad is not None and not parameter.grad.is_sparse:  # it was read in another way as well
            parameter.grad = parameter.grad.to_sparse(1)
        if parameter.grad is None:
            values, rows = parameter.new_zeros(0, *parameter.shape[1:]), parameter.new_zeros(0, dtype=torch.long)
        else:
            values, rows = row_values(parameter), parameter.grad.indices()[0]
        counts = torch.cat(self.from_all(rows.new_tensor([len(rows)]))).tolist()
        if max(counts) == 0:
            return
        padded_rows = rows.new_zeros(max(counts))
        padded_values = values.new_zeros(max(counts), *values.shape[1:])
        padded_rows[: len(rows)] = rows
        torch.div(values, self.world_size, out=padded_values[: len(rows)])
        rows, values = (
            torch.cat([part[:count] for part, count in zip(self.from_all(padded), counts)])
            for padded in (padded_rows, padded_values)
        )
        gradient = torch.sparse_coo_tensor(rows.unsqueeze(0), values, parameter.shape, check_invariants=False)
        parameter.grad = gradient.coalesce()

    def from_all(self, tensor: Tensor) -> list:
        """The tensors of all workers, of equal shapes, in the order of their ranks."""
        return distributed_utils.all_gather(tensor, self.process_group)


def conflicts(cfg) -> Iterator[str]:
    """The flags of a run that row-sparse gradients cannot serve."""
    name = getattr(cfg.optimizer, "_name", cfg.optimizer)
    if name not in OPTIMISERS:
        yield f"--optimizer {name}"
    for setting in ("momentum", "weight_decay"):
        value = getattr(cfg.optimizer, setting, 0)
        if value:
            yield f"--{setting.replace('_', '-')} {value}"
    for setting in ("fp16", "bf16", "amp"):
        if getattr(cfg.common, setting):
            yield f"--{setting}"
    if cfg.optimization.use_bmuf:
        yield "--use-bmuf"
    parallel = cfg.distributed_training
    if parallel.zero_sharding != "none":
        yield f"--zero-sharding {parallel.zero_sharding}"
    alone = parallel.distributed_world_size == 1 and parallel.ddp_backend != "fully_sharded"
    if not alone and parallel.ddp_backend not in DATA_PARALLEL:
        yield f"--ddp-backend {parallel.ddp_backend}"


def check_run(cfg, model: nn.Module) -> None:
    """Look whether a model can be trained with a run's settings.

    Raises:
        ValueError: naming the flags that a model with row-sparse gradients cannot be trained with, or its parameter.
    """
    row_sparse_tables(model)
    if any(map(reads_row_sparse, model.modules())):
        found = ", ".join(conflicts(cfg))
        if found:
            raise ValueError(
                f"--gradients row-sparse does not go with {found}: take --gradients auto, or --optimizer sgd, "
                "adagrad, adagrad_tf or max_norm_sgd without momentum and weight decay, full precision, and "
                "--ddp-backend legacy_ddp"
            )


def checks_run(original: Callable) -> Callable:
    """``Trainer.__init__`` that calls :func:`check_run`."""

    def __init__(self, cfg, task, model, *args, **kwargs):
        original(self, cfg, task, model, *args, **kwargs)
        check_run(self.cfg, model)
        self.can_be_sparse = [*large_embeddings(model), *large_cells(model)] if suits_rows(self) else []

    return __init__


def suits_rows(of: trainer.Trainer) -> bool:
    """Whether sparse gradients can be the same step, and a quicker one: in one process on a CPU."""
    alone = of.cfg.distributed_training.distributed_world_size == 1
    return alone and of.device.type == "cpu" and not any(conflicts(of.cfg))


def plain(optimizer: FairseqOptimizer) -> bool:
    """Whether a row without a gradient stays as it is; a checkpoint's settings are in the groups, not in the flags."""
    return not any(group.get(name) for group in optimizer.param_groups for name in ("momentum", "weight_decay"))


def steps_by_rows(original: Callable) -> Callable:
    """``Trainer.train_step`` in which embeddings and cells have sparse gradients where those suit.

    Not over several batches: torch puts their rows one after the other, and by and by that costs more than all rows.
    """

    def train_step(self, samples, *args, **kwargs):
        found = getattr(self, "can_be_sparse", ())  # a trainer may be older than this
        if not found or len(samples) != 1 or not plain(self.optimizer):
            return original(self, samples, *args, **kwargs)
        with sparse_where_quicker(found, symbols_of(samples[0])):
            return original(self, samples, *args, **kwargs)

    return train_step


def symbols_of(sample) -> float:
    """How many a batch has, by fairseq's count; without end where a task's batches do not tell."""
    count = sample.get("ntokens") if isinstance(sample, dict) else None
    if isinstance(count, numbers.Real) or (torch.is_tensor(count) and count.numel() == 1 and not count.is_complex()):
        return float(count)
    return math.inf


def teach(owner, name: str, wrap: Callable) -> None:
    """Replace a function by what *wrap* makes of it, once."""
    original = getattr(owner, name)
    if not hasattr(original, "knows_rows"):
        wrapped = functools.wraps(original)(wrap(original))
        wrapped.knows_rows = True
        setattr(owner, name, wrapped)


def teach_fairseq() -> None:
    """Make fairseq's clipping, scaling, data parallel and trainer know row-sparse gradients, and steps be one pass."""
    teach(utils, "clip_grad_norm_", clips_rows)
    teach(FairseqOptimizer, "multiply_grads", scales_rows)
    teach(FairseqOptimizer, "step", in_one_pass)
    teach(trainer.Trainer, "__init__", checks_run)
    teach(trainer.Trainer, "train_step", steps_by_rows)
    distributed_fairseq_model.LegacyDistributedDataParallel = RowSparseDataParallel
