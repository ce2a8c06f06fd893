"""``--recurrence triton``: the package triton is imported when it is asked for, and no earlier."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ContextManager

from rntn_plugins.ops.recurrence import taking


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
