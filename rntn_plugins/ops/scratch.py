"""Large buffers whose memory is used from pass to pass.

The first touch of every page of fresh memory costs more than writing it, and the allocator gives blocks beyond 32 MB
back to the system each time: a buffer of 180 MB may cost a training step more than the products that fill it.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from typing import List

import torch
from torch import Tensor

SMALL = 2**25  # bytes below which the allocator may keep memory by itself
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}

_free: List[mmap.mmap] = []  # anybody may append at any time, a finalizer in the midst of anything
_taking = threading.Lock()


def scratch(like: Tensor, *shape: int) -> Tensor:
    """``like.new_empty(*shape)``; on a CPU, if large, in memory that becomes free for the next call as soon as no
    tensor uses it any more. There is never more of it than was once in use at the same time. It cannot be resized."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < SMALL or not size:
        return like.new_empty(*shape)
    memory = _take(size)
    lease = memoryview(memory)[:size]
    tensor = torch.frombuffer(lease, dtype=like.dtype)  # its storage holds on to the lease
    weakref.finalize(lease, _free.append, memory).atexit = False
    return tensor.view(*shape)


def release() -> None:
    """Give memory that nobody uses back to the system."""
    with _taking:
        _free.clear()


def _take(size: int) -> mmap.mmap:
    """Free memory of at least this many bytes: the smallest that fits, else new in exchange for a free one."""
    with _taking:
        free = sorted([_free.pop() for _ in range(len(_free))], key=len)
        fits = next((number for number, memory in enumerate(free) if len(memory) >= size), None)
        found = free.pop(-1 if fits is None else fits) if free else None
        _free.extend(free)
    if fits is not None:
        return found
    del found  # before there is more
    return mmap.mmap(-1, size, **PRIVATE)
