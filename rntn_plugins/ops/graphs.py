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

While a graph is being made, no other thread may record one or draw random numbers on that GPU. What else frees the
workspaces of cuBLAS (``torch.compile(mode="reduce-overhead")`` does) must not be in one process with graphs:
``--recurrence fused`` has none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import types
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from rntn_plugins.ops.products import precision_on_gpu
from rntn_plugins.ops.recurrence import Kernel, Ragged, recorded_by, recording
from rntn_plugins.ops.triton_choice import by_triton, twin_on

logger = logging.getLogger(__name__)

OFTEN = 3
MOST = 256  # graphs there are at most
SHARE = 8  # of a GPU's memory they take no more than this part
PART = 16  # of what is left of that, a graph that could do with less takes no more than this part
SEGMENTS = 22 * 2**20  # bytes that the memory of a graph may be larger than what lies in it
LARGE = 2**26  # bytes of an input (weights, mostly) that are too many to copy for each sequence
STALE = 10_000  # a graph that has not been taken for as many sequences gives way to another
SHAPES = 4096  # that are counted, before the counts begin anew
NEVER = -(2**62)  # the count of a shape that is not to have one


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
#: torch 2.8 has it
_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def possible() -> bool:
    """Whether this torch can make graphs that know of hooks, and has a GPU for them."""
    return _hooks is not None and torch.cuda.is_available()


def on(device: torch.device) -> ContextManager[None]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def usable() -> bool:
    """Whether graphs can be made and replayed on the current device now: not while others record one, and not where
    hooks are to see what is saved for the backward pass (as those that compute it again), or may be, for all torch says
    before 2.8."""
    return _hooks is not None and _hooks(True) is None and not torch.cuda.is_current_stream_capturing()


def settings_of_torch() -> tuple:
    """Those that change what an operation launches."""
    return precision_on_gpu(), torch.are_deterministic_algorithms_enabled()


def rehearse(work: Callable[[], Any], device: torch.device) -> Any:
    """Do *work* where it will be recorded, and return what it does: libraries load and compilers run before that."""
    current = torch.cuda.current_stream(device)
    aside = _aside.setdefault((device, current.cuda_stream), torch.cuda.Stream(device))
    aside.wait_stream(current)
    with torch.cuda.stream(aside):
        result = work()
    current.wait_stream(aside)
    return result


def new_pool() -> tuple:
    """Memory for recordings that belong together."""
    return torch.cuda.graph_pool_handle()


def record(work: Callable[[], Any], device: torch.device, pool: tuple) -> tuple:
    """Record what *work* launches, after :func:`rehearse`.

    Returns:
        what launches it again, and what *work* returned, whose tensors that fills again.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    aside = _aside[device, current.cuda_stream]
    try:
        with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
            result = work()
    except Exception:
        torch.cuda.set_stream(current)  # torch leaves these three as they are while it records
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        with contextlib.suppress(Exception):
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
        raise
    return graph.replay, result


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device)


def total_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory


# ---- recordings ------------------------------------------------------------------------------------------------------

NO_CONTAINERS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def tensors_in(value: Any, seen: Optional[set] = None) -> Iterator[Tensor]:
    """All tensors in a container, or in the attributes of an object."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, NO_CONTAINERS):
        seen.add(id(value))
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for part in [*parts, *getattr(value, "__dict__", {}).values()]:
            yield from tensors_in(part, seen)


class NoRoom(Exception):
    """There is no memory for it.

    Args:
        spares: whether less would do.
    """

    def __init__(self, spares: bool) -> None:
        super().__init__(spares)
        self.spares = spares


class NotRehearsed(Exception):
    """It fails before anything is recorded; the cause says how."""


class Loops:
    """The loops of a kernel over inputs and a carry of given shapes, recorded.

    Args:
        kernel: the class.
        settings: for its constructor.
        tensors: inputs, *count* of them, and the carry, as the next ones will be.
        lengths: of rows ``[B]``, if they differ.
        keep: whether a backward pass will follow.
        room: bytes it may take.
        spare: whether it is to take as few as it can.

    Raises:
        NoRoom: it would take more, or there are not as many.
        NotRehearsed: the kernel fails.
    """

    def __init__(
        self,
        kernel: Type[Kernel],
        settings: tuple,
        tensors: Sequence[Tensor],
        lengths: Optional[Tensor],
        count: int,
        keep: bool,
        room: int,
        spare: bool = False,
    ) -> None:
        self.kernel, self.settings, self.count, self.keep = kernel, settings, count, keep
        self.free, self.last = True, 0
        device = tensors[0].device
        with torch.inference_mode(False), torch.no_grad(), recording(spare) as asked:
            before = allocated(device)
            try:
                self.tensors = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
                self.lengths = None if lengths is None else torch.empty_like(lengths).copy_(lengths)
                rehearsed = rehearse(self.both_ways, device)
            except torch.cuda.OutOfMemoryError as error:
                raise NoRoom(asked.spares) from error
            except Exception as error:
                raise NotRehearsed from error
            self.bytes = max(0, allocated(device) - before) + SEGMENTS
            del rehearsed
            if self.bytes > (room // PART if asked.spares and not spare else room):
                raise NoRoom(asked.spares)
            pool = new_pool()
            self.replay, (self.ahead, self.final) = record(self.way, device, pool)
            self.outputs = self.ahead.outputs
            if keep:
                self.d_outputs, *self.d_final = (torch.zeros_like(each) for each in (self.outputs, *self.final))
                self.replay_back, (self.behind, self.d_carry) = record(
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

    def both_ways(self) -> list:
        """All that is made on them."""
        ahead, final = self.way()
        if not self.keep:
            return [ahead, final]
        d_outputs, *d_final = (torch.zeros_like(each) for each in (ahead.outputs, *final))
        return [ahead, final, d_outputs, d_final, self.way_back(ahead, d_outputs, d_final)]

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


class Taken:
    """Loops in the hands of one sequence, until this object is gone."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.forward, self.backward = loops.forward, loops.backward

    def __del__(self) -> None:
        self.loops.free = True


def recordable(kernel: Type[Kernel]) -> bool:
    """Whether its loops launch the same whatever the values are: those of this package do, others say so
    (:attr:`Kernel.recordable`, which classes do not inherit)."""
    return kernel.__module__.startswith("rntn_plugins.ops.") or vars(kernel).get("recordable", False)


def twinned(kernel: Type[Kernel], settings: tuple, device: torch.device) -> Tuple[Type[Kernel], tuple]:
    """A kernel by Triton where it, or the one that it steps (its first setting), has a twin."""
    if settings and isinstance(settings[0], type) and issubclass(settings[0], Kernel):
        return kernel, (twin_on(settings[0], device), *settings[1:])
    return twin_on(kernel, device), settings


def first_cause(error: BaseException) -> str:
    """What went wrong first: what is raised while a recording fails says little."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


class Library:
    """All recordings."""

    def __init__(self) -> None:
        self.found: Dict[tuple, List[Loops]] = {}
        self.missed: Dict[tuple, int] = {}
        self.sequences = 0
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
        device = tensors[0].device
        with on(device):
            if self.broken or not recordable(kernel) or not usable():
                return None
            shapes = ((each.shape, each.dtype) for each in (*tensors, *([] if lengths is None else [lengths])))
            key = (kernel, settings, keep, count, device, stream_of(device), settings_of_torch(), *shapes)
            with self.lock:
                self.sequences += 1
                loops = next((loops for loops in self.found.get(key, ()) if loops.free), None)
                if loops is None and self.wanted(key, tensors):
                    loops = self.made(key, kernel, settings, tensors, lengths, count, keep)
                if loops is None:
                    return None
                loops.free, loops.last = False, self.sequences
                return Taken(loops)

    def wanted(self, key: tuple, tensors: Sequence[Tensor]) -> bool:
        """Whether a recording is to be made for a sequence that found none."""
        if len(self.missed) > SHAPES:
            self.missed.clear()
        self.missed[key] = self.missed.get(key, 0) + 1
        if any(each.numel() * each.element_size() > LARGE for each in tensors):
            self.missed[key] = NEVER
        return self.missed[key] >= OFTEN

    def room(self, device: torch.device) -> int:
        """Bytes for one more."""
        ours = [loops for each in self.found.values() for loops in each]
        taken = sum(loops.bytes for loops in ours if loops.tensors[0].device == device)
        return total_memory(device) // SHARE - taken if len(ours) < MOST else 0

    def made(self, key, kernel, settings, tensors, lengths, count, keep) -> Optional[Loops]:
        """New loops, if they can be; where recording them fails, none are from then on."""
        device = tensors[0].device
        self.drop(lambda loops: loops.free and self.sequences - loops.last > STALE)
        room = self.room(device)
        if room < SEGMENTS:
            return None
        ways, spare = list(dict.fromkeys([twinned(kernel, settings, device), (kernel, settings)])), False
        while ways:
            kernel, settings = ways[0]
            try:
                loops = Loops(kernel, settings, tensors, lengths, count, keep, room, spare)
            except NoRoom as error:
                if spare or not error.spares:
                    break
                spare = True
            except NotRehearsed as error:
                ways = ways[1:]
                if ways:
                    logger.warning(f"no Triton in CUDA graphs of {kernel.__name__}: {first_cause(error)}")
            except Exception as error:
                self.broken = True
                logger.warning(f"no CUDA graphs, --recurrence auto goes without: {first_cause(error)}")
                return None
            else:
                self.missed[key] = 0
                self.found.setdefault(key, []).append(loops)
                return loops
        self.missed[key] = NEVER
        return None

    def drop(self, which: Callable[[Loops], bool]) -> None:
        found = {key: [loops for loops in each if not which(loops)] for key, each in self.found.items()}
        self.found = {key: each for key, each in found.items() if each}


_library = Library()


def release() -> None:
    """Give back the memory of all recordings that no sequence has taken."""
    with _library.lock:
        _library.drop(lambda loops: loops.free)


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
