"""torch's optimisers in one pass over the memory, on CPUs.

SGD with momentum and AdaGrad go through parameters, gradients and state once for every operation of their formulas,
unless they are told ``fused``, which fairseq's ``--optimizer sgd`` and ``adagrad`` cannot be. On a CPU the step then
takes a quarter of the time; the formula is the same.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer

KINDS = tuple(kind for kind in (SGD, Adagrad) if "fused" in inspect.signature(kind).parameters)


def fits(parameter: nn.Parameter) -> bool:
    """Whether torch's fused step is there for a parameter and right: it does not check that layouts agree."""
    gradient = parameter.grad
    return (
        parameter.device.type == "cpu"
        and parameter.dtype in (torch.float32, torch.float64)
        and gradient.dtype == parameter.dtype
        and gradient.layout == torch.strided
        and parameter.is_contiguous()
        and gradient.is_contiguous()
    )


def gains(optimizer: Optimizer, group: dict, parameters: list) -> bool:
    """Whether the step of a group is more than one pass without; SGD's momentum has to be there already, and dense."""
    if type(optimizer) is Adagrad:
        return True
    if group["momentum"] == 0:
        return group["weight_decay"] != 0
    buffers = [optimizer.state[parameter].get("momentum_buffer") for parameter in parameters]
    return all(buffer is not None and buffer.is_contiguous() for buffer in buffers)


@contextmanager
def fused_where_right(optimizer: Optimizer) -> Iterator[None]:
    """Within, steps of an optimiser are in one pass wherever that is right and gains something; its state, which goes
    into checkpoints, does not tell."""
    groups = optimizer.param_groups if type(optimizer) in KINDS else ()
    for group in groups:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        group["fused"] = (gains(optimizer, group, parameters) and all(map(fits, parameters))) or None
    try:
        yield
    finally:
        for group in groups:
            group["fused"] = None


@contextmanager
def without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """As if they had none."""
    held = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


def in_one_pass(original: Callable) -> Callable:
    """``FairseqOptimizer.step`` within :func:`fused_where_right`.

    One sparse gradient would keep the others from it: AdaGrad, whose parameters do not know of each other, takes a step
    for either kind.
    """

    def step(self, closure=None, *args, **kwargs):
        given = [parameter for parameter in self.params if parameter.grad is not None]
        sparse = [parameter for parameter in given if parameter.grad.is_sparse]
        dense = [parameter for parameter in given if not parameter.grad.is_sparse]
        apart = type(self.optimizer) is Adagrad and closure is None and sparse and dense
        for others in (sparse, dense) if apart else ((),):
            with without_gradients(others), fused_where_right(self.optimizer):
                original(self, closure, *args, **kwargs)

    return step
