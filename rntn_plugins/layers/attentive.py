"""A recurrent network that looks at a memory at every step."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from rntn_plugins.cells.base import Carry
from rntn_plugins.layers.attention import AdditiveAttention
from rntn_plugins.layers.recurrent import Recurrent, RecurrentStack
from rntn_plugins.ops import attentive as ops
from rntn_plugins.ops.graphs import as_asked
from rntn_plugins.ops.inputs import project
from rntn_plugins.ops.recurrence import run, taken


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_pre_hooks or module._forward_hooks or module._backward_hooks)


class AttentiveCarry(NamedTuple):
    layers: Carry
    context: Tensor  # [B, M]


class Attentive(nn.Module):
    """Recurrent layers whose output asks an attention for a context, which is read with the next input.

    Vinyals et al. 2015: the context d'_t beside d_t is what predictions are made from and what the next step is fed::

        d_t = RNN([x_t; d'_{t-1}])        d'_t = attention(d_t, memory)        output [d_t; d'_t]

    d'_0 is zero. The first layer's cell has inputs of size I + M.
    """

    def __init__(self, stack: RecurrentStack, attention: AdditiveAttention) -> None:
        super().__init__()
        self.stack, self.attention = stack, attention

    def initial_carry(self, batch_size: int, memory_size: int) -> AttentiveCarry:
        carry = self.stack.initial_carry(batch_size)
        return AttentiveCarry(carry, self.attention.score_weight.new_zeros(batch_size, memory_size))

    def forward(
        self, x: Tensor, tokens: Optional[Tensor], memory: Tensor, projected: Tensor, mask: Optional[Tensor],
        carry: AttentiveCarry,
    ) -> Tuple[Tensor, Tensor, AttentiveCarry]:  # fmt: skip
        """
        Args:
            x: inputs ``[T, B, I]``.
            tokens: symbols ``[T, B]``, for token-indexed cells.
            memory: ``[S, B, M]``, and *projected*, what ``attention.project`` made of it, ``[S, B, A]``.
            mask: true on the memory's padding, ``[S, B]``.
            carry: the state to go on from.
        Returns:
            outputs ``[T, B, H + M]``, attention weights ``[T, S, B]`` and the carry after the last step.
        """
        if self.is_fused(x):
            return self.fused(x, memory, projected, mask, carry)
        layers, context = carry
        outputs, weights = [], []
        for t in range(x.size(0)):
            step = torch.cat([x[t], context], dim=-1).unsqueeze(0)
            d, layers = self.stack(step, None if tokens is None else tokens[t : t + 1], None, layers)
            context, a = self.attention(d[0], memory, projected, mask)
            outputs.append(torch.cat([d[0], context], dim=-1))
            weights.append(a)
        return torch.stack(outputs), torch.stack(weights), AttentiveCarry(layers, context)

    def is_fused(self, x: Tensor) -> bool:
        """Whether :meth:`fused` takes these inputs: a single layer, of a cell that has ``recur``, and no part of
        this network changed by a subclass or a hook."""
        layer, *others = self.stack.layers
        parts = ((self.stack, RecurrentStack), (layer, Recurrent), (self.attention, AdditiveAttention))
        if others or not all(type(part) is kind and not has_hooks(part) for part, kind in parts):
            return False
        return layer.takes_kernels() and layer.cell.has_recur and x.size(0) > 1

    def fused(self, x, memory, projected, mask, carry):
        """All steps by one kernel: only the context's part of an input has to wait for the step before it."""
        layer, attention = self.stack.layers[0], self.attention
        weight, bias = layer.cell.input_weights()
        of_given, of_context = weight.split([x.size(-1), memory.size(-1)], dim=1)
        beside = [of_context, memory, projected, attention.query_weight, attention.score_weight]
        if mask is not None:
            beside.append(mask)
        context = carry.context

        def run_attentive(kernel, settings, inputs, before, lengths):
            nonlocal context
            settings = (taken(kernel, x.device), settings, len(inputs))
            outputs, (*after, context) = run(ops.Attentive, settings, [*inputs, *beside], [*before, context], lengths)
            return outputs, after

        with as_asked(layer.recurrence, x.device):
            outputs, after = layer.cell.recur(project(x, of_given, bias), carry.layers[0], None, run_attentive)
        outputs, weights = outputs.split([outputs.size(-1) - len(memory), len(memory)], dim=-1)
        return outputs, weights.transpose(1, 2), AttentiveCarry((after,), context)
