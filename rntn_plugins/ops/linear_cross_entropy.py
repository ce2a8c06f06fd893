"""Output layer and cross-entropy in one: the logits of all rows never exist at the same time.

A large soft-max is costly in memory, and in time spent on moving it, beside its three matrix products: logits,
log-probabilities and the gradients of both are ``[N, V]`` each. Here some rows at a time go through one buffer, which
holds their logits, then log-probabilities, then probabilities, then the gradients of the logits, from which those of
features, weights and biases follow at once. The backward pass has but to scale them.

Letters: N rows, H features, V symbols.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from rntn_plugins.ops.autograd import graph_is_kept
from rntn_plugins.ops.products import on_gpu, product, product_into

#: A chunk has as many rows as keep the buffer below this many numbers (a processor's cache, roughly) ...
NUMBERS = 2**22
#: ... but at least this many: with fewer, matrix products get slow.
ROWS = 256


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, target: Tensor, ignore_index: int, chunk: Optional[int] = None
) -> Tensor:
    """The sum of -log p(target) over all rows, p = softmax(features · weightᵀ + bias); natural logarithm, a scalar.

    Args:
        features: ``[N, H]``.
        weight: ``[V, H]``.
        bias: ``[V]``, -inf for symbols that have no probability.
        target: ``[N]``.
        ignore_index: rows with this target count for nothing, and cost nothing but on a GPU, which would have to wait
            until the host knows which they are.
        chunk: rows to compute at a time; chosen by V if left out.

    Half precision and autocast compute in float32. There are no second derivatives
    (``RuntimeError`` under ``create_graph``).
    """
    tensors = [features, weight, bias]
    device = features.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return linear_cross_entropy(*(tensor.float() for tensor in tensors), target, ignore_index, chunk)
    if features.dtype in (torch.float16, torch.bfloat16):
        tensors = [tensor.float() for tensor in tensors]
    needs = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
    return LinearCrossEntropy.apply(*tensors, target, ignore_index, chunk, needs)


class LinearCrossEntropy(torch.autograd.Function):
    """The sum as one node of the graph."""

    @staticmethod
    def forward(ctx, features, weight, bias, target, ignore_index, chunk, needs):
        if on_gpu(features):
            loss, gradients = in_chunks(features, weight, bias, target, chunk, needs, ignore_index)
            ctx.save_for_backward(*gradients)
            return loss
        real = target.ne(ignore_index).nonzero().squeeze(1)
        if len(real) == len(target):
            loss, gradients = in_chunks(features, weight, bias, target, chunk, needs)
        else:
            chosen = features.index_select(0, real)
            loss, gradients = in_chunks(chosen, weight, bias, target.index_select(0, real), chunk, needs)
            if gradients[0] is not None:
                gradients[0] = torch.zeros_like(features).index_copy_(0, real, gradients[0])
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx, d_loss):
        if torch.is_grad_enabled():  # by create_graph: what follows would be taken for constant
            raise RuntimeError("linear_cross_entropy has no second derivatives")
        gradients = ctx.saved_tensors
        # who gets them may keep them and add to them: only the last pass may give them away as they are
        if d_loss.is_cuda or d_loss != 1 or graph_is_kept():
            gradients = [None if gradient is None else gradient * d_loss for gradient in gradients]
        return (*gradients, None, None, None, None)


def in_chunks(
    features: Tensor, weight: Tensor, bias: Tensor, target: Tensor, chunk: Optional[int], needs: Sequence[bool],
    ignore_index: Optional[int] = None,
) -> Tuple[Tensor, List[Optional[Tensor]]]:  # fmt: skip
    """The loss and the gradients of features, weight and bias, each only where it is needed; without the rows of the
    target *ignore_index*, if it is given."""
    ignored = None if ignore_index is None else target.eq(ignore_index).unsqueeze(1)
    if ignored is not None:
        target = target.masked_fill(ignored.squeeze(1), 0)  # a symbol, which ignore_index need not be
    count, symbols = len(features), len(weight)
    rows = min(chunk or rows_of_chunk(count, symbols), count)
    losses = features.new_empty(count, 1)
    d_features = torch.empty_like(features) if needs[0] else None
    d_weight = (torch.empty_like if count else torch.zeros_like)(weight) if needs[1] else None
    d_bias = torch.zeros_like(bias) if needs[2] else None
    one_each = features.new_ones(rows, 1)
    for start in range(0, count, rows or 1):
        x, labels = features[start : start + rows], target[start : start + rows].unsqueeze(1)
        scores = None  # free the last chunk's
        scores = product(x, weight.t(), bias)
        torch.log_softmax(scores, 1, out=scores)
        torch.gather(scores, 1, labels, out=losses[start : start + rows])
        if not any(needs):
            continue
        torch.softmax(scores, 1, out=scores)  # of log-probabilities: their exponential, quicker than torch.exp
        ones = one_each[: len(x)]
        scores.scatter_add_(1, labels, -ones)
        if ignored is not None:
            scores.masked_fill_(ignored[start : start + rows], 0)
            if d_weight is not None:
                x = x.masked_fill(ignored[start : start + rows], 0)  # it may be infinite there
        if d_features is not None:
            product_into(d_features[start : start + rows], scores, weight, add=False)
        if d_weight is not None:
            product_into(d_weight, scores.t(), x, add=start > 0)
        if d_bias is not None:
            d_bias.addmv_(scores.t(), ones.squeeze(1))  # the sum of the rows, quicker than sum(0)
    if ignored is not None:
        losses.masked_fill_(ignored, 0)
    return -losses.sum(), [d_features, d_weight, d_bias]


def rows_of_chunk(count: int, symbols: int) -> int:
    """How many of *count* rows go together: as few chunks as the limits above allow, all of one size."""
    chunks = -(-count // max(ROWS, NUMBERS // symbols))
    return -(-count // max(chunks, 1))
