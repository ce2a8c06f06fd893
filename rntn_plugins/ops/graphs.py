"""The loops of kernels as CUDA graphs, which ``--recurrence auto`` takes on a GPU.

There a recurrent step takes some microseconds, and launching its operations several times that. A CUDA graph holds all
launches of a loop and makes them at once. It reads and writes the same memory each time: inputs are copied there, and
what others may keep (outputs, the carry, gradients) is copied from there. What the backward pass needs stays there, so
that a graph is taken from its forward pass until the backward pass is over, or autograd lets go of it; another sequence
of the same shape meanwhile takes another one. The gradients of weights, one product each, are computed after the loop
as ever.

A graph is of one shape, and made when that has come up :data:`OFTEN` times with none free. Where rows are of different
lengths, every step looks which of them are at their end, so that the lengths may change. Within a graph a cell's kernel
is its twin of Triton's, where these work.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from rntn_plugins.ops.recurrence import Kernel, Ragged, recorded_by
from rntn_plugins.ops.triton_choice import by_triton, twin_on

logger = logging.getLogger(__name__)

OFTEN = 3
MOST = 256  # graphs there are at most
SHARE = 8  # of a GPU's memory they take no more than this part
SHAPES = 4096  # that are counted, before the counts begin anew


def as_asked(how: str, device: torch.device) -> ContextManager[None]:
    """Within, and in this thread alone, kernels run as *how* says (``auto``, ``fused`` or ``triton``) on a device.

    Raises:
        ValueError: ``triton`` without the package; within, on a device on which its kernels do not run.
    """
    if how == "triton":
        return by_triton()
    return recorded_by(take) if how == "auto" and device.type == "cuda" else contextlib.nullcontext()


# ---- CUDA ------------------------------------------------------------------------------------------------------------

#: where what is to be replayed on a stream is recorded
_aside: Dict[Tuple[torch.device, int], torch.cuda.Stream] = {}


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def usable() -> bool:
    """Whether graphs can be made and replayed now: not while others record one, and not where hooks are to see what is
    saved for the backward pass (as those that compute it again)."""
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return not hooked and not torch.cuda.is_current_stream_capturing()


def rehearse(work: Callable[[], Any], device: torch.device) -> None:
    """Do *work* where it will be recorded: libraries load and compilers run before that."""
    current = torch.cuda.current_stream(device)
    aside = _aside.setdefault((device, current.cuda_stream), torch.cuda.Stream(device))
    aside.wait_stream(current)
    with torch.cuda.stream(aside):
        work()
    current.wait_stream(aside)


def record(work: Callable[[], Any], device: torch.device, pool: Optional[tuple]) -> tuple:
    """Record what *work* launches, after :func:`rehearse`.

    Args:
        pool: the memory of an earlier recording, which this one reads.
    Returns:
        what launches it again; what *work* returned, whose tensors that fills again; the memory.
    """
    graph = torch.cuda.CUDAGraph()
    aside = _aside[device, stream_of(device)]
    with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
        result = work()
    return graph.replay, result, graph.pool()


def memory(device: torch.device) -> Tuple[int, int]:
    """Bytes in use, and all there are."""
    return torch.cuda.memory_allocated(device), torch.cuda.get_device_properties(device).total_memory


# ---- recordings ------------------------------------------------------------------------------------------------------


def tensors_in(value: Any, seen: Optional[set] = None) -> Iterator[Tensor]:
    """All tensors in a container, or an object of this package."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        ours = type(value).__module__.startswith("rntn_plugins.")
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for part in list(vars(value).values()) if ours and hasattr(value, "__dict__") else list(parts):
            yield from tensors_in(part, seen)


class Loops:
    """The loops of a kernel over inputs and a carry of given shapes, recorded.

    Args:
        kernel: the class.
        settings: for its constructor.
        tensors: inputs, *count* of them, and the carry, as the next ones will be.
        lengths: of rows ``[B]``, if they differ.
        keep: whether a backward pass will follow.
    """

    def __init__(
        self,
        kernel: Type[Kernel],
        settings: tuple,
        tensors: Sequence[Tensor],
        lengths: Optional[Tensor],
        count: int,
        keep: bool,
    ) -> None:
        self.kernel, self.settings, self.count, self.keep = kernel, settings, count, keep
        self.free = True
        device = tensors[0].device
        with torch.inference_mode(False), torch.no_grad():
            self.tensors = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
            self.lengths = None if lengths is None else torch.empty_like(lengths).copy_(lengths)
            rehearse(self.both_ways, device)
            self.replay, (self.ahead, self.final), pool = record(self.way, device, None)
            self.outputs = self.ahead.outputs
            if keep:
                self.d_outputs, *self.d_final = (torch.zeros_like(each) for each in (self.outputs, *self.final))
                self.replay_back, (self.behind, self.d_carry), _ = record(
                    lambda: self.way_back(self.ahead, self.d_outputs, self.d_final), device, pool
                )
        if keep:
            self.done = dict(vars(self.behind))
            everything = tensors_in([self.tensors, self.ahead, self.behind, self.d_outputs, self.d_final])
            self.ours = {each.untyped_storage().data_ptr() for each in everything if each.layout == torch.strided}

    def made(self, inputs: Sequence[Optional[Tensor]]) -> Kernel:
        kernel = self.kernel(*self.settings)
        kernel.inputs, kernel.steps = inputs, self.tensors[0].size(0)
        return kernel

    def ragged(self) -> Optional[Ragged]:
        return None if self.lengths is None else Ragged(self.lengths, self.tensors[0].size(0), shortest=0)

    def way(self) -> Tuple[Kernel, List[Tensor]]:
        """The kernel after its loop, and the carry after it."""
        kernel = self.made(self.tensors[: self.count])
        return kernel, kernel.forward(self.tensors[self.count :], self.ragged(), self.keep)

    def way_back(self, ahead: Kernel, d_outputs: Tensor, d_final: Sequence[Tensor]) -> Tuple[Kernel, List[Tensor]]:
        """A kernel that is ready to finish, and the gradients of the carry before the first step."""
        kernel = self.made([None if number in ahead.unread else each for number, each in enumerate(ahead.inputs)])
        for name in ahead.saved:
            setattr(kernel, name, getattr(ahead, name))
        return kernel, kernel.backward(d_outputs, d_final, self.ragged())

    def both_ways(self) -> None:
        ahead, final = self.way()
        if self.keep:
            self.way_back(ahead, torch.zeros_like(ahead.outputs), [torch.zeros_like(each) for each in final])

    def copied(self, tensor: Optional[Tensor]) -> Optional[Tensor]:
        """A gradient, in memory that the next replay leaves alone."""
        if tensor is None or tensor.layout != torch.strided or tensor.untyped_storage().data_ptr() not in self.ours:
            return tensor
        return tensor.clone()

    def forward(self, tensors: Sequence[Tensor], lengths: Optional[Tensor]) -> List[Tensor]:
        """Outputs and the carry after the last step, from inputs and the carry before the first."""
        with torch.no_grad(), on(tensors[0].device):
            if self.lengths is not None:
                self.lengths.copy_(lengths)
            for ours, tensor in zip(self.tensors, tensors):
                ours.copy_(tensor)
            self.replay()
            return [each.clone() for each in (self.outputs, *self.final)]

    def backward(self, d_outputs: Optional[Tensor], d_final: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
        """The gradients of inputs and carry; ``None``: zero."""
        with on(self.tensors[0].device):
            for ours, d in zip((self.d_outputs, *self.d_final), (d_outputs, *d_final)):
                ours.zero_() if d is None else ours.copy_(d)
            self.replay_back()
            kernel = object.__new__(self.kernel)
            vars(kernel).update(self.done)
            return [*map(self.copied, kernel.finish()), *(each.clone() for each in self.d_carry)]


def on(device: torch.device) -> ContextManager[None]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Taken:
    """Loops in the hands of one sequence, until this object is gone."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.forward, self.backward = loops.forward, loops.backward

    def __del__(self) -> None:
        self.loops.free = True


class Library:
    """All recordings."""

    def __init__(self) -> None:
        self.found: Dict[tuple, List[Loops]] = {}
        self.missed: Dict[tuple, int] = {}
        self.bytes: Dict[torch.device, int] = {}
        self.broken = False
        self.lock = threading.RLock()

    def take(
        self,
        kernel: Type[Kernel],
        settings: tuple,
        tensors: Sequence[Tensor],
        lengths: Optional[Tensor],
        count: int,
        keep: bool,
    ) -> Optional[Taken]:
        """Loops of these shapes that are free; ``None``: there are none, or not yet."""
        if self.broken or not kernel.recordable or not usable():
            return None
        device = tensors[0].device
        shapes = ((each.shape, each.dtype) for each in (*tensors, *([] if lengths is None else [lengths])))
        key = (kernel, settings, keep, count, device, stream_of(device), *shapes)
        with self.lock:
            for loops in self.found.get(key, ()):
                if loops.free:
                    loops.free = False
                    return Taken(loops)
            self.missed = {} if len(self.missed) > SHAPES else self.missed
            self.missed[key] = self.missed.get(key, 0) + 1
            if self.missed[key] < OFTEN or not self.has_room(device):
                return None
            loops = self.add(key, Loops, (twin_on(kernel, device), settings, tensors, lengths, count, keep))
            if loops is None:
                return None
            loops.free = False
            return Taken(loops)

    def has_room(self, device: torch.device) -> bool:
        number = sum(map(len, self.found.values()))
        return number < MOST and self.bytes.get(device, 0) * SHARE < memory(device)[1]

    def add(self, key: tuple, make: Callable[..., Loops], given: tuple) -> Optional[Loops]:
        """New loops; where they cannot be made, none are from then on."""
        device = given[2][0].device
        before = memory(device)[0]
        try:
            with on(device):
                loops = make(*given)
        except Exception as error:  # of CUDA, its libraries and compilers: without graphs there still is a way
            self.broken = True
            first = next(iter(str(error).splitlines()), "")
            logger.warning(f"no CUDA graphs, --recurrence auto goes without: {type(error).__name__}: {first}")
            return None
        self.bytes[device] = self.bytes.get(device, 0) + max(0, memory(device)[0] - before)
        self.missed[key] = 0
        self.found.setdefault(key, []).append(loops)
        return loops


_library = Library()


def take(
    kernel: Type[Kernel],
    settings: tuple,
    tensors: Sequence[Tensor],
    lengths: Optional[Tensor],
    count: int,
    keep: bool,
) -> Optional[Taken]:
    """As :meth:`Library.take`, of the one of this process."""
    return _library.take(kernel, settings, tensors, lengths, count, keep)
