"""Large buffers whose memory is used again."""

import gc
import threading

import pytest
import torch

from rntn_plugins.ops import scratch as module
from rntn_plugins.ops.scratch import scratch


@pytest.fixture(autouse=True)
def nothing_free(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module, "_free", [])


def test_memory_is_used_again_when_nobody_uses_it():
    like = torch.ones(1)
    tensor = scratch(like, 3, 4)
    place, view = tensor.data_ptr(), tensor[1].t()
    del tensor
    assert scratch(like, 3, 4).data_ptr() != place, "a view is in use"
    del view
    assert scratch(like, 2, 5).data_ptr() == place, "a smaller one fits"


def test_type_and_shape_are_as_asked_for():
    like = torch.ones(1, dtype=torch.float64)
    tensor = scratch(like, 3, 0, 4), scratch(like, 2, 4)
    assert [(each.dtype, each.shape) for each in tensor] == [(like.dtype, (3, 0, 4)), (like.dtype, (2, 4))]
    assert scratch(torch.ones(1, device="meta"), 5).device.type == "meta"


def test_no_more_memory_than_was_in_use():
    like = torch.ones(1)
    for size in (10, 20, 5, 30, 40, 7):
        scratch(like, size)
    assert [len(memory) for memory in module._free] == [160], "larger ones took the smaller ones' place"
    both = [scratch(like, 40), scratch(like, 2)]
    del both
    assert sorted(len(memory) for memory in module._free) == [8, 160]
    module.release()
    assert not module._free


def test_what_autograd_keeps_is_not_used_again():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            kept = scratch(x, *x.shape).copy_(x)
            ctx.save_for_backward(kept)
            return x * x

        @staticmethod
        def backward(ctx, d):
            return 2 * ctx.saved_tensors[0] * d

    first, second = (torch.full((4,), float(number), requires_grad=True) for number in (1, 2))
    losses = [Square.apply(x).sum() for x in (first, second)]
    losses[0].backward(retain_graph=True)
    Square.apply(second)
    losses[0].backward()
    losses[1].backward()
    assert first.grad.tolist() == [4.0] * 4 and second.grad.tolist() == [4.0] * 4
    del losses
    gc.collect()
    assert len(module._free) == 3


def test_threads_do_not_share_memory():
    like, wrong = torch.ones(1), []

    def work(number):
        for _ in range(300):
            tensor = scratch(like, 50).fill_(number)
            if not (tensor == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(module._free) <= 8, "two a thread"
