"""A fused recurrence whose every step looks at a memory."""

from __future__ import annotations

from typing import Type

import torch

from rntn_plugins.ops.products import Factor, product
from rntn_plugins.ops.recurrence import Kernel, every_state, every_step, flat, steps_of


class Attentive(Kernel):
    """A kernel that is fed the context of the step before, and whose output asks an additive attention for the next::

        d_t = RNN(x_t + W_c d'_{t-1})    u_tj = v' tanh(p_j + W_q d_t)    a_t = softmax(u_t)    d'_t = Σ_j a_tj m_j

    It steps another kernel, the RNN, which must read its first input, ``[T, B, D]``, one step at a time, and keep the
    gradient of it, as far as it is there, as ``d_x``. The tanh of all pairs t, j are computed once more on the way back
    instead of being kept; what is summed over the steps (gradients of matrices and of the memory) is one product each.

    Args:
        kernel: the RNN's class, and
        settings: the values for its constructor.
        count: how many inputs it has.

    Inputs: those of the RNN, then W_c ``[D, M]``, m ``[S, B, M]``, p ``[S, B, A]``, W_q ``[A, H]``, v ``[A]`` and, if
    there is padding, true on it ``[S, B]``. Carry: the RNN's, d' ``[B, M]``. Outputs: d_t, d'_t and a_t beside each
    other, ``[T, B, H + M + S]``. All rows are T steps long.
    """

    output_is_state = False

    def __init__(self, kernel: Type[Kernel], settings: tuple, count: int) -> None:
        self.inner, self.count = kernel(*settings), count

    @property
    def saved(self):
        return ("queries", "contexts", "weights", *self.inner.saved)

    def give_inner(self, x):
        """The RNN its inputs, and this kernel the names of its own."""
        self.inner.inputs, self.inner.steps = (x, *self.inputs[1 : self.count]), self.steps
        self.of_context, memory, projected, self.of_query, self.v, *mask = self.inputs[self.count :]
        self.memory, self.projected = (part.transpose(0, 1).contiguous() for part in (memory, projected))
        self.mask = mask[0].t() if mask else None
        self.pairs = torch.empty_like(self.projected)  # [B, S, A]: tanh of a step and every place of the memory

    def forward(self, carry, ragged, keep):
        assert ragged is None, "rows of different lengths"
        with torch.cuda.device_of(carry[0]):  # for an RNN by Triton
            final = super().forward(carry, ragged, keep)
        self.outputs = torch.cat([self.queries, self.contexts[1:], self.weights], dim=-1)
        return final

    def start(self, carry, keep):
        x = self.inputs[0]
        fed = x.new_empty(1, *x.shape[1:]).expand(x.shape)  # read in the same step: all steps are the same memory
        self.give_inner(fed)
        self.inner.start(carry[:-1], keep)
        self.queries = self.inner.outputs
        for name in self.inner.saved:
            setattr(self, name, getattr(self.inner, name))
        batch = x.size(1)
        self.contexts = every_state(self, carry[-1], True)
        self.weights = every_step(self, True, batch, self.memory.size(1))
        self.states = (*self.inner.states, steps_of(self.contexts))
        self.each = list(zip(x.unbind(0), fed.unbind(0), self.queries.unbind(0), self.weights.unbind(0)))
        self.to_input, self.to_query = Factor(self.of_context.t(), batch), Factor(self.of_query.t(), batch)

    def step(self, t):
        before, after = self.states[-1][t], self.states[-1][t + 1]
        x, fed, query, weights = self.each[t]
        self.to_input.times_plus(before, x, out=fed)
        self.inner.step(t)
        self.compare(self.to_query.of(query))
        scores = torch.mv(self.pairs.flatten(0, 1), self.v).view_as(weights)
        if self.mask is not None:
            scores.masked_fill_(self.mask, float("-inf"))
        torch.softmax(scores, -1, out=weights)
        torch.bmm(weights.unsqueeze(1), self.memory, out=after.unsqueeze(1))

    def compare(self, query):
        """tanh(p_j + q) of all places: ``[B, A] -> [B, S, A]``, into :attr:`pairs`."""
        return torch.add(self.projected, query.unsqueeze(1), out=self.pairs).tanh_()

    def backward(self, d_outputs, d_final, ragged):
        with torch.cuda.device_of(d_final[0]):
            return super().backward(d_outputs, [d.contiguous() for d in d_final], ragged)

    def start_back(self):
        self.give_inner(None)
        for name in self.inner.saved:
            setattr(self.inner, name, getattr(self, name))
        self.inner.start_back()
        self.d_contexts = torch.empty_like(self.contexts[1:])
        self.d_queries = self.v.new_empty(*self.queries.shape[:2], len(self.v))  # of W_q d_t
        self.d_v = torch.zeros_like(self.v)
        self.d_pairs = torch.zeros_like(self.pairs)  # but for v
        self.from_input = Factor(self.of_context, self.memory.size(0))
        self.from_query = Factor(self.of_query, self.memory.size(0))
        projected = product(flat(self.queries), self.of_query.t()).unflatten(0, self.queries.shape[:2])
        self.each = list(zip(projected.unbind(0), self.weights.unbind(0), self.d_contexts.unbind(0), self.d_queries))

    def back(self, t, d_states, d_output):
        *d_inner, d_context = d_states
        query, weights, d_context_kept, d_query = self.each[t]
        if d_output is not None:
            d_d, d_seen, d_weights = d_output.split([self.queries.size(-1), d_context.size(-1), weights.size(-1)], -1)
            d_context.add_(d_seen)
        d_context_kept.copy_(d_context)
        d_scores = torch.bmm(self.memory, d_context.unsqueeze(2)).squeeze(2)
        if d_output is not None:
            d_scores.add_(d_weights)
        d_scores.mul_(weights)
        d_scores.addcmul_(weights, d_scores.sum(-1, keepdim=True), value=-1)
        self.pairs_back(query, d_scores, d_query)
        d_asking = self.from_query.of(d_query)
        self.inner.step_back(t, d_inner, d_asking if d_output is None else d_asking.add_(d_d))
        d_states[:] = *d_inner, self.from_input.times(self.inner.d_x[t], out=d_context)

    def pairs_back(self, query, d_scores, d_query):
        """From the gradient of u_t to that of W_q d_t, and to what v and p get of it."""
        pairs = self.compare(query)
        self.d_v.addmv_(pairs.flatten(0, 1).t(), d_scores.flatten())
        slopes = pairs.mul_(pairs).neg_().add_(1)
        self.d_pairs.addcmul_(slopes, d_scores.unsqueeze(2))
        torch.bmm(d_scores.unsqueeze(1), slopes, out=d_query.unsqueeze(1))
        d_query.mul_(self.v)

    def finish(self):
        d_x, *d_inner = self.inner.finish()
        d_memory = torch.bmm(self.weights.permute(1, 2, 0), self.d_contexts.transpose(0, 1))
        return (
            d_x,
            *d_inner,
            product(flat(d_x).t(), flat(self.contexts[:-1])),
            d_memory.transpose(0, 1),
            self.d_pairs.mul_(self.v).transpose(0, 1),
            product(flat(self.d_queries).t(), flat(self.queries)),
            self.d_v,
            *[None] * (len(self.inputs) - self.count - 5),
        )
