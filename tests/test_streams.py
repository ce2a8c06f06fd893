"""Every token is predicted exactly once, whatever the streams, blocks and workers."""

import numpy as np
import pytest

from rntn_plugins.data.lm_dataset import BlockDataset, BlockIterator, make_plan
from rntn_plugins.data.streams import ContiguousStreams, Sentences, ShuffledBlocks, block_arrays

EOS, PAD = 2, 1


def corpus(n: int) -> np.ndarray:
    """Distinct symbols, so that every position can be recognised."""
    return np.arange(100, 100 + n, dtype=np.int32)


def predicted(plan, tokens):
    found = []
    for number in plan.order():
        inputs, targets, lengths = block_arrays(tokens, plan[number], EOS, PAD)
        for row, length in enumerate(lengths):
            found.extend(zip(inputs[row, :length], targets[row, :length]))
            assert (targets[row, length:] == PAD).all() and (inputs[row, length:] == PAD).all()
    return sorted(found, key=lambda pair: pair[1])


def everything(tokens):
    return list(zip([EOS, *tokens[:-1]], tokens))


@pytest.mark.parametrize("plan", [ContiguousStreams, ShuffledBlocks])
@pytest.mark.parametrize("n", [1, 2, 19, 20, 101])
@pytest.mark.parametrize("rows", [1, 2, 7, 30])
@pytest.mark.parametrize("block", [1, 3, 35, 1000])
def test_every_token_is_predicted_once(plan, n, rows, block):
    tokens = corpus(n)
    assert predicted(plan(n, rows, block), tokens) == everything(tokens)


@pytest.mark.parametrize("plan", [ContiguousStreams, ShuffledBlocks])
@pytest.mark.parametrize("workers, rows", [(2, 3), (3, 2), (6, 1)])
def test_workers_read_disjoint_text_in_equally_many_blocks(plan, workers, rows):
    tokens = corpus(101)
    whole = plan(101, workers * rows, 4)
    shards = [plan(101, workers * rows, 4, w * rows, (w + 1) * rows) for w in range(workers)]
    assert {len(shard) for shard in shards} == {len(whole)}
    assert sorted(sum((predicted(shard, tokens) for shard in shards), []), key=lambda p: p[1]) == everything(tokens)
    for number in range(len(whole)):
        assert np.concatenate([shard[number].starts for shard in shards]).tolist() == whole[number].starts.tolist()


def test_blocks_of_a_stream_follow_each_other():
    plan = ContiguousStreams(103, 4, 5)
    assert [plan[i].first for i in range(len(plan))] == [True] + [False] * (len(plan) - 1)
    for number in range(1, len(plan)):
        assert (plan[number].starts == plan[number - 1].ends).all()


def test_shuffled_blocks_are_from_anywhere_and_start_anew():
    plan, other = (ShuffledBlocks(1000, 4, 5, seed=seed) for seed in (1, 2))
    assert len(plan) == 50 and all(plan[number].first for number in range(50))
    starts = np.stack([plan[number].starts for number in range(50)])
    assert sorted(starts.ravel()) == list(range(0, 1000, 5))
    assert (np.diff(starts, axis=1) > 0).mean() < 0.6 and abs(np.diff(starts, axis=1)).mean() > 200
    assert (starts != np.stack([other[number].starts for number in range(50)])).mean() > 0.9


def test_batches_of_shuffled_blocks_come_in_another_order():
    plan = ShuffledBlocks(1000, 4, 5)
    one, two = (plan.order(np.random.RandomState(seed)) for seed in (1, 2))
    assert plan.order() == sorted(one) == sorted(two) == list(range(50))
    assert one != two and plan.order() not in (one, two)


LENGTHS = [3, 1, 12, 5, 5, 2, 30, 4, 1]


@pytest.mark.parametrize("rows", [1, 2, 4, 20])
@pytest.mark.parametrize("block", [1, 4, 100])
def test_sentences_are_predicted_once(rows, block):
    tokens = corpus(sum(LENGTHS))
    assert predicted(Sentences(LENGTHS, rows, block), tokens) == everything(tokens)


def test_sentence_groups_start_anew_and_go_on():
    plan = Sentences(LENGTHS, 2, 4)
    for number in range(len(plan)):
        if not plan[number].first:
            assert (plan[number].starts == plan[number - 1].ends).all()
    starts = np.concatenate([[0], np.cumsum(LENGTHS)[:-1]])
    for number in range(len(plan)):
        if plan[number].first:
            used = plan[number].starts[plan[number].ends > plan[number].starts]
            assert set(used) <= set(starts), "a state from zero only at a sentence's start"


def test_shuffling_keeps_the_pieces_of_a_group_together():
    plan = Sentences(LENGTHS, 2, 4)
    order = plan.order(np.random.RandomState(1))
    assert sorted(order) == list(range(len(plan))) and order != list(range(len(plan)))
    for before, after in zip(order, order[1:]):
        assert plan[after].first or after == before + 1


def test_sentence_workers_have_equally_many_blocks():
    tokens = corpus(sum(LENGTHS))
    shards = [Sentences(LENGTHS, 4, 4, 0, 2), Sentences(LENGTHS, 4, 4, 2, 4)]
    assert len(shards[0]) == len(shards[1]) == len(Sentences(LENGTHS, 4, 4))
    assert sorted(sum((predicted(s, tokens) for s in shards), []), key=lambda p: p[1]) == everything(tokens)


def test_a_plan_is_drawn_with_its_seed():
    """Blocks with the seed of the run, sentences with that and the epoch."""
    kind = type("Text", (), {"lengths": np.array([3] * 20), "tokens": corpus(60), "__len__": lambda self: 60})
    text = kind()

    def starts(seed):
        plan = make_plan(text, "none", 2, 5, shuffled=seed)
        return [plan[number].starts.tolist() for number in range(len(plan))]

    assert starts(1) == starts(1) != starts(2)
    blocks = BlockDataset(text, make_plan(text, "eos", 2, 5), EOS, PAD)
    orders = {(seed, epoch): BlockIterator(blocks, seed).ordered_batches(epoch, False, True)
              for seed in (1, 7) for epoch in (1, 2)}  # fmt: skip
    assert len({str(order) for order in orders.values()}) == 4
    assert all(sorted(order) == [[number] for number in range(len(blocks))] for order in orders.values())
    assert BlockIterator(blocks, 1).ordered_batches(2, False, True) == orders[1, 2]


def test_streams_are_equally_long_but_for_one_symbol():
    plan = ContiguousStreams(22, 4, 100)
    assert (plan[0].ends - plan[0].starts).tolist() == [5, 6, 5, 6]


def test_sentences_that_stand_together_are_of_like_length():
    plan = Sentences([3, 1, 12, 5, 5, 2, 30, 4, 1], 2, 100)
    lengths = [(plan[number].ends - plan[number].starts).tolist() for number in range(len(plan))]
    assert lengths == [[1, 1], [2, 3], [4, 5], [5, 12], [30, 0]]
