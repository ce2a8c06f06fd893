"""What all fused recurrences share: the loop over time, padding, and the hand-over to autograd.

Autograd records every small operation of a Python loop, and adds each step's weight gradient to a sum of the matrix's
size. Here one :class:`torch.autograd.Function` stands for the whole sequence: the forward loop writes into buffers made
once, the backward loop computes gradients of pre-activations only, and each weight gradient is one matrix product over
all steps. Letters as in :mod:`rntn_plugins.cells.base`: T steps, B batch, H hidden size.

Padding: after a row's last valid step its carry is put aside and set to zero, so that its outputs are zero from there
on and nothing can overflow. Gradients need no masks inside the loop then: those of padded steps are zero, and that of
the carry put aside enters at the row's last valid step.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Callable, Iterator, List, Optional, Protocol, Sequence, Tuple, Type

import torch
from torch import Tensor

from rntn_plugins.ops.autograd import graph_is_kept
from rntn_plugins.ops.products import Factor

# ---- what a recording asks for ---------------------------------------------------------------------------------------


@dataclass
class Recording:
    """
    Attributes:
        spare: whether kernels are to keep as little as they can, not what makes them quick.
        spares: whether there was anything that they could have done without, or did.
    """

    spare: bool
    spares: bool = False


_recording: ContextVar[Optional[Recording]] = ContextVar("recording", default=None)


@contextlib.contextmanager
def recording(spare: bool) -> Iterator[Recording]:
    """Within, and in this thread alone, kernels run to be recorded."""
    token = _recording.set(Recording(spare))
    try:
        yield _recording.get()
    finally:
        _recording.reset(token)


def is_recorded() -> bool:
    """Whether what is launched now will be launched again without Python: its start then costs nothing."""
    return _recording.get() is not None


def may_keep() -> bool:
    """Whether a kernel may keep what makes it quick but could be done without."""
    now = _recording.get()
    if now is not None:
        now.spares = True
    return now is None or not now.spare


# ---- sequences and kernels -------------------------------------------------------------------------------------------


class Ragged:
    """Rows of different lengths.

    Args:
        lengths: valid steps of each row ``[B]``, 0 to T.
        steps: T.
        shortest: no row is shorter; found out, which waits for the device, if it is not said.
    """

    def __init__(self, lengths: Tensor, steps: int, shortest: Optional[int] = None) -> None:
        lengths = lengths.long().clamp(max=steps)
        self.lengths, self.steps = lengths, steps
        self.shortest = int(lengths.min()) if shortest is None else shortest
        clock = torch.arange(steps, device=lengths.device).unsqueeze(1)
        self.padding = lengths <= clock  # [T, B]
        self.last = lengths == clock + 1  # [T, B]: is t the last valid step?

    def padded(self, t: int, like: Tensor) -> Optional[Tensor]:
        """Which rows are past their end at step *t*, to broadcast over ``[B, ...]``; ``None``: no row."""
        return rows(self.padding[t], like) if t >= self.shortest else None

    def ends(self, t: int, like: Tensor) -> Optional[Tensor]:
        """Which rows have their last valid step at *t*, likewise."""
        return rows(self.last[t], like) if t >= self.shortest - 1 else None


def rows(condition: Tensor, like: Tensor) -> Tensor:
    """A condition per row, ``[B]``, shaped to broadcast over *like* ``[B, ...]``."""
    return condition.view(-1, *[1] * (like.dim() - 1))


class Kernel:
    """A cell over time. A subclass writes down one step forward and one step backward.

    It is made anew for each forward and each backward pass, with the settings it needs; between the two only the
    tensors named in :attr:`saved` live on (autograd keeps them, so that checkpointing and hooks see them).

    Attributes:
        saved: names of the attributes that the backward pass needs, beside the inputs.
        unread: which inputs (by number) the backward pass does without; they are ``None`` there. Usually the first one,
            the inputs' share of the pre-activations.
        output_is_state: whether the output of a step is the first carried tensor after it.
        adds_d_output: whether, where it is, :meth:`back` adds the output's gradient to the state's itself.
        factor_class: of matrices that the rows of every step are multiplied with, where a twin may have another.
        recordable: for kernels from elsewhere to set, each in its own class: whether the loops launch the same
            operations on the same memory whatever the values are (those of lengths, with a shortest of 0, as well), and
            ask the host nothing, so that :mod:`~rntn_plugins.ops.graphs` may record them. Those of this package do.
        inputs: tensors ``[T, B, ...]`` and weights, in an order of the kernel's own.
        steps: T.
        states: for every carried tensor a list of T + 1 tensors: ``states[i][t]`` is its value before step t.
        outputs: ``[T, B, H]``.
    """

    saved: Sequence[str] = ()
    unread: Sequence[int] = (0,)
    output_is_state = True
    adds_d_output = False
    factor_class: Type[Factor] = Factor
    recordable = False

    inputs: Sequence[Optional[Tensor]]
    steps: int
    states: Sequence[List[Tensor]]
    outputs: Tensor

    # ---- what a kernel defines ---------------------------------------------------------------------------------------

    def start(self, carry: Sequence[Tensor], keep: bool) -> None:
        """Allocate :attr:`states`, :attr:`outputs` and all that is :attr:`saved`.

        Args:
            carry: the tensors ``[B, ...]`` before the first step (the caller copies them into ``states[i][0]``).
            keep: whether a backward pass will follow; if not, what it alone needs must not be kept.
        """
        raise NotImplementedError

    def step(self, t: int) -> None:
        """Compute ``states[i][t + 1]`` (and output t, where it is not a state)."""
        raise NotImplementedError

    def start_back(self) -> None:
        """Prepare the backward pass: buffers, and what can be computed for all steps at once."""
        raise NotImplementedError

    def back(self, t: int, d_states: List[Tensor], d_output: Optional[Tensor]) -> None:
        """Replace the gradients of ``states[i][t + 1]`` by those of ``states[i][t]``: in place, or in the list.

        Args:
            d_output: the gradient of output t, ``None`` for zero. Where the output is a state, ``d_states[0]`` has it,
                unless :attr:`adds_d_output`.
        """
        raise NotImplementedError

    def finish(self) -> Sequence[Optional[Tensor]]:
        """The gradients of the inputs, in their order, when the loop is done."""
        raise NotImplementedError

    # ---- the loops ---------------------------------------------------------------------------------------------------

    def forward(self, carry: Sequence[Tensor], ragged: Optional[Ragged], keep: bool) -> List[Tensor]:
        """Fill :attr:`outputs`; returns the carry after each row's last valid step."""
        self.start(carry, keep)
        for state, first in zip(self.states, carry):
            state[0].copy_(first)
        final = [first.clone() for first in carry] if ragged else []
        for t in range(self.steps):
            self.step(t)
            if ragged is not None and t >= ragged.shortest - 1:
                for number, state in enumerate(self.states):
                    final[number] = torch.where(ragged.ends(t, state[t + 1]), state[t + 1], final[number])
                    if t >= ragged.shortest:
                        state[t + 1].masked_fill_(ragged.padded(t, state[t + 1]), 0)
                if t >= ragged.shortest and not self.output_is_state:
                    self.outputs[t].masked_fill_(ragged.padded(t, self.outputs[t]), 0)
        return final or [state[self.steps].clone() for state in self.states]

    def step_back(self, t: int, d_states: List[Tensor], d_output: Optional[Tensor]) -> None:
        """:meth:`back` with the gradient of output t where that wants it."""
        if self.output_is_state and not self.adds_d_output:
            if d_output is not None:
                d_states[0].add_(d_output)
            d_output = None
        self.back(t, d_states, d_output)

    def backward(
        self, d_outputs: Optional[Tensor], d_final: Sequence[Tensor], ragged: Optional[Ragged]
    ) -> List[Tensor]:
        """The gradients of the carry before the first step; those of the inputs are then ready to :meth:`finish`."""
        self.start_back()
        if d_outputs is not None and ragged is not None:
            d_outputs = d_outputs.masked_fill(ragged.padding.unsqueeze(-1), 0)
        each = [None] * self.steps if d_outputs is None else d_outputs.unbind(0)
        d_states = [torch.zeros_like(d) if ragged else d.clone() for d in d_final]
        for t in range(self.steps - 1, -1, -1):
            if ragged is not None and t >= ragged.shortest - 1:
                for number, d in enumerate(d_final):
                    d_states[number] = torch.where(ragged.ends(t, d), d, d_states[number])
            self.step_back(t, d_states, each[t])
        if ragged is not None and ragged.shortest == 0:
            empty = ragged.lengths == 0
            return [torch.where(rows(empty, d), d, d_state) for d, d_state in zip(d_final, d_states)]
        return d_states


# ---- buffers ---------------------------------------------------------------------------------------------------------


def output_state(kernel: Kernel, first: Tensor) -> Tensor:
    """The buffer ``[T + 1, B, H]`` of a state that is the output as well; sets ``kernel.outputs``."""
    buffer = first.new_empty(kernel.steps + 1, *first.shape)
    kernel.outputs = buffer[1:]
    return buffer


def steps_of(buffer: Tensor) -> List[Tensor]:
    return list(buffer.unbind(0))


def every_step(kernel: Kernel, keep: bool, *shape: int) -> Tensor:
    """A buffer ``[T, *shape]`` for the backward pass; without one to come, all T steps are the same memory."""
    like = kernel.inputs[0]
    if keep:
        return like.new_empty(kernel.steps, *shape)
    return like.new_empty(1, *shape).expand(kernel.steps, *shape)


def every_state(kernel: Kernel, first: Tensor, keep: bool) -> Tensor:
    """A state's buffer ``[T + 1, B, ...]``; without a backward pass two tensors take turns (pick it apart with
    :func:`turns`)."""
    return first.new_empty(kernel.steps + 1 if keep else 2, *first.shape)


def turns(buffer: Tensor, steps: int) -> List[Tensor]:
    """The T + 1 tensors of a buffer of :func:`every_state`."""
    parts = buffer.unbind(0)
    return [parts[t % len(parts)] for t in range(steps + 1)]


def flat(tensor: Tensor) -> Tensor:
    """``[T, B, D]`` as ``[T·B, D]``."""
    return tensor.flatten(0, 1)


# ---- autograd --------------------------------------------------------------------------------------------------------


class Fused(torch.autograd.Function):
    """A kernel as one node of the graph."""

    @staticmethod
    def forward(ctx, kernel_class, settings, lengths, keep, count, *tensors):
        ctx.recorded = None
        if (take := _take.get()) is not None:
            recorded = take(kernel_class, settings, tensors, lengths, count, keep)
            if recorded is not None:
                ctx.recorded, ctx.device_type = recorded if keep else None, tensors[0].device.type
                ctx.set_materialize_grads(False)
                return tuple(recorded.forward(tensors, lengths))
        kernel = kernel_class(*settings)
        kernel.inputs, carry = tensors[:count], tensors[count:]
        kernel.steps = tensors[0].size(0)
        ragged = None if lengths is None else Ragged(lengths, kernel.steps)
        final = kernel.forward(carry, ragged, keep)
        if keep:
            ctx.kernel_class, ctx.settings, ctx.count = kernel_class, settings, count
            ctx.steps = kernel.steps
            ctx.carry_like = [(first.shape, first.dtype, first.device) for first in carry]
            read = [None if number in kernel.unread else tensor for number, tensor in enumerate(kernel.inputs)]
            ctx.save_for_backward(lengths, *read, *(getattr(kernel, name) for name in kernel.saved))
            ctx.set_materialize_grads(False)
        return (kernel.outputs.detach(), *final)

    @staticmethod
    def backward(ctx, d_outputs, *d_final):
        if torch.is_grad_enabled():  # by create_graph: what follows would be taken for constant
            raise RuntimeError("fused recurrences have no second derivatives: take --recurrence naive")
        if ctx.recorded is not None:
            with torch.autocast(ctx.device_type, enabled=False):
                gradients = ctx.recorded.backward(d_outputs, d_final)
            if not graph_is_kept():
                ctx.recorded = GONE
            return (None, None, None, None, None, *gradients)
        kernel = ctx.kernel_class(*ctx.settings)
        lengths, *tensors = ctx.saved_tensors
        kernel.inputs, kernel.steps = tensors[: ctx.count], ctx.steps
        for name, tensor in zip(kernel.saved, tensors[ctx.count :]):
            setattr(kernel, name, tensor)
        ragged = None if lengths is None else Ragged(lengths, kernel.steps)
        d_final = [
            torch.zeros(shape, dtype=dtype, device=device) if d is None else d
            for d, (shape, dtype, device) in zip(d_final, ctx.carry_like)
        ]
        with torch.autocast(ctx.carry_like[0][2].type, enabled=False):
            d_carry = kernel.backward(d_outputs, d_final, ragged)
            return (None, None, None, None, None, *kernel.finish(), *d_carry)


#: which kernel to run in place of another, on what device
Choice = Callable[[Type[Kernel], torch.device], Type[Kernel]]
_choice: ContextVar[Optional[Choice]] = ContextVar("choice", default=None)


@contextlib.contextmanager
def taking(choose: Choice) -> Iterator[None]:
    """Within, and in this thread alone, :func:`run` takes the kernels that *choose* gives for those it is given; their
    backward passes take them too, wherever they run."""
    token = _choice.set(choose)
    try:
        yield
    finally:
        _choice.reset(token)


class Recorded(Protocol):
    """What computes a sequence in place of :class:`Kernel`; kept until its backward pass is over."""

    def forward(self, tensors: Sequence[Tensor], lengths: Optional[Tensor]) -> List[Tensor]:
        """From inputs and carry to outputs and carry."""

    def backward(self, d_outputs: Optional[Tensor], d_final: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
        """From their gradients (``None``: zero) to those of inputs and carry."""


class Gone:
    """What is left of a recorded sequence after its backward pass."""

    def backward(self, d_outputs, d_final):
        raise RuntimeError("a second backward pass through a recurrence: the first has to be told retain_graph=True")


GONE = Gone()
#: for a kernel, its settings, inputs and carry, lengths, how many are inputs, and whether a backward pass will follow
Take = Callable[[Type[Kernel], tuple, Sequence[Tensor], Optional[Tensor], int, bool], Optional[Recorded]]
_take: ContextVar[Optional[Take]] = ContextVar("take", default=None)


@contextlib.contextmanager
def recorded_by(take: Take) -> Iterator[None]:
    """Within, and in this thread alone, sequences are computed by what *take* gives, if anything."""
    token = _take.set(take)
    try:
        yield
    finally:
        _take.reset(token)


def taken(kernel: Type[Kernel], device: torch.device) -> Type[Kernel]:
    """The kernel that :func:`run` takes for one here."""
    choose = _choice.get()
    return kernel if choose is None else choose(kernel, device)


def others_are_taken() -> bool:
    """Whether this is within :func:`taking`."""
    return _choice.get() is not None


def run(
    kernel: Type[Kernel],
    settings: tuple,
    inputs: Sequence[Tensor],
    carry: Sequence[Tensor],
    lengths: Optional[Tensor] = None,
) -> Tuple[Tensor, List[Tensor]]:
    """Run a kernel over all steps.

    Args:
        kernel: the class.
        settings: plain Python values for its constructor.
        inputs: what the kernel reads, the first ``[T, B, ...]`` with T at least 1.
        carry: the state before the first step, tensors ``[B, ...]``.
        lengths: valid steps of each row ``[B]``, 0 to T; ``None``: all T.
    Returns:
        outputs ``[T, B, H]``, zero after a row's last valid step, and the carry after that step.

    Under autocast what comes in half precision is computed in float32.

    Raises:
        RuntimeError: in the backward pass, for second derivatives (``create_graph``).
        ValueError: within :func:`taking`, for what the choice refuses.
    """
    tensors = [*inputs, *carry]
    device = inputs[0].device.type
    if torch.is_autocast_enabled(device):
        tensors = [tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors]
        with torch.autocast(device, enabled=False):
            return run(kernel, settings, tensors[: len(inputs)], tensors[len(inputs) :], lengths)
    kernel = taken(kernel, inputs[0].device)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    outputs, *final = Fused.apply(kernel, settings, lengths, keep, len(inputs), *tensors)
    return outputs, final
