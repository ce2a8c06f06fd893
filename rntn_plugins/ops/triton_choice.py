"""Triton's kernels where they are asked for, or work; the package triton is imported then, and no earlier."""

from __future__ import annotations

import functools
import logging
import os
from importlib.util import find_spec
from typing import ContextManager, Type

import torch

from rntn_plugins.ops.recurrence import Kernel, taking

logger = logging.getLogger(__name__)


def check_triton() -> None:
    """
    Raises:
        ValueError: there is no package triton here.
    """
    if find_spec("triton") is None:
        raise ValueError("--recurrence triton needs the package triton: pip install triton")


def by_triton() -> ContextManager[None]:
    """Within, and in this thread alone, :func:`~rntn_plugins.ops.recurrence.run` takes the twin of a kernel that has
    one in :mod:`~rntn_plugins.ops.triton_cells`.

    Raises:
        ValueError: without the package triton; within, on a device on which its kernels do not run.
    """
    check_triton()
    from rntn_plugins.ops.triton_cells import twin

    return taking(twin)


@functools.cache
def works_on(device: torch.device) -> bool:
    """Whether this is a GPU by NVIDIA and one of Triton's kernels, tried once, computes what it should there.

    It may not: Triton compiles its launchers with a C compiler and Python's header files. A kernel that fails is
    warned of. :data:`os.environ` may say ``TRITON_INTERPRET=1``, which is for tests: nothing is tried then.
    """
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return False
    try:
        from rntn_plugins.ops import triton_kernels

        x, sums = torch.linspace(-2, 2, 12, device=device).view(2, 2, 3)
        out, expected = torch.empty_like(x), torch.tanh(x + sums)
        with torch.cuda.device(device):
            triton_kernels.activation(x, sums, out, "tanh")
        difference = float((out - expected).abs().max())
    except Exception as error:  # of compilers, drivers, the package itself
        first = next(iter(str(error).splitlines()), "")
        logger.warning(f"no Triton on {device}, CUDA graphs go without: {type(error).__name__}: {first}")
        return False
    if not difference < 1e-5:
        logger.warning(f"Triton computes wrongly on {device}, CUDA graphs go without: off by {difference:g}")
        return False
    return True


def twin_on(kernel: Type[Kernel], device: torch.device) -> Type[Kernel]:
    """The twin of a kernel where :func:`works_on`, and if it has one; else itself."""
    if not works_on(device):
        return kernel
    from rntn_plugins.ops.triton_cells import TWINS

    return TWINS.get(kernel, kernel)
