"""The best tree against the enumeration of all trees, compared in exact arithmetic."""

import itertools
import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest

from rntn_plugins.data.trees import best_tree, greedy_or_best_tree, is_tree

INF, NAN = math.inf, math.nan


def hangs_on_the_root(heads, word) -> bool:
    """Walks up from a word, at most n steps."""
    for _ in heads:
        if word != 0:
            word = heads[word - 1]
    return word == 0


@lru_cache
def all_trees(n):
    """Every tree with one word on the root, straight from the definition."""
    return [
        heads
        for heads in itertools.product(range(n + 1), repeat=n)
        if heads.count(0) == 1 and all(hangs_on_the_root(heads, word) for word in range(1, n + 1))
    ]


def value(scores, heads):
    """Fewer forbidden arcs first, then the sum of the others, as fractions."""
    taken = [float(scores[d, h]) for d, h in enumerate(heads)]
    taken = [min(score, np.finfo(np.float64).max) for score in taken if not math.isnan(score) and score != -INF]
    return len(taken) - len(heads), sum(map(Fraction, taken))


def check_best(scores):
    n, before = len(scores), np.array(scores)
    heads = best_tree(scores)
    assert heads.dtype == np.int64 and heads.shape == (n,)
    assert tuple(heads) in all_trees(n)
    best = max(value(scores, tree) for tree in all_trees(n))
    assert value(scores, heads) == best
    assert (best_tree(scores) == heads).all() and np.array_equal(scores, before, equal_nan=True)
    heads, repaired = greedy_or_best_tree(scores)
    assert heads.dtype == np.int64 and value(scores, heads) == best
    usable = np.where(np.isnan(scores) | np.eye(n, n + 1, 1, dtype=bool), -INF, scores)
    assert repaired == (tuple(usable.argmax(axis=1)) not in all_trees(n))


def sprinkle(random, scores, *what):
    """Some scores replaced by others."""
    for something in what:
        scores[random.rand(*scores.shape) < random.choice([0.2, 0.5])] = something
    return scores


def mixed(random, *shape):
    return random.randn(*shape) * random.choice([1e30, 1.0, 1e-3], shape)


SCORES = {
    "normal": lambda random, *shape: random.randn(*shape),
    "tied": lambda random, *shape: random.randint(-2, 3, shape),
    "nan": lambda random, *shape: sprinkle(random, random.randn(*shape), NAN),
    "-inf": lambda random, *shape: sprinkle(random, random.randn(*shape), -INF),
    "+inf": lambda random, *shape: sprinkle(random, 1e200 * random.randn(*shape), INF, -INF),
    "nan and -inf, tied": lambda random, *shape: sprinkle(random, random.randint(-2, 3, shape) * 1.0, NAN, -INF),
    "root dear": lambda random, *shape: random.randn(*shape) - 50 * np.eye(1, shape[1]),
    "root cheap": lambda random, *shape: random.randn(*shape) + 50 * np.eye(1, shape[1]),
    "self arcs cheap": lambda random, *shape: random.randn(*shape) + 50 * np.eye(*shape, 1),
    "huge": mixed,
    "huge, all negative": lambda random, *shape: -abs(mixed(random, *shape)),
    "all magnitudes": lambda random, *shape: random.randn(*shape) * 10.0 ** random.randint(-320, 308, shape),
    "float32": lambda random, *shape: mixed(random, *shape).astype(np.float32),
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("n, times", [(1, 5), (2, 30), (3, 60), (4, 40), (5, 15)])
def test_best_of_all_trees(kind, n, times):
    random = np.random.RandomState(n)
    for _ in range(times):
        check_best(SCORES[kind](random, n, n + 1))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("score", [-INF, NAN, INF, 0.0])
def test_all_scores_alike(n, score):
    check_best(np.full((n, n + 1), score))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_forbidden_arcs_rather_than_two_from_the_root(n):
    scores = np.full((n, n + 1), -INF)
    scores[:, 0] = 0.0
    check_best(scores)
    scores[0, 2] = -1.0
    check_best(scores)


def test_number_of_trees():
    assert [len(all_trees(n)) for n in range(1, 6)] == [n ** (n - 1) for n in range(1, 6)]


def test_differences_below_the_rounding_of_a_sum_count():
    """In a sum with 1e30 floats lose 1e-3, and so does a cycle of 1e30 that is opened."""
    scores = np.full((3, 4), -1.0)
    scores[0, 2] = scores[1, 1] = 1e30  # words 1 and 2 want each other
    scores[0, 3], scores[1, 3], scores[2, 0] = 1e-3, 2e-3, 0.0
    assert best_tree(scores).tolist() == [2, 3, 0]
    scores[0, 3] = 3e-3
    assert best_tree(scores).tolist() == [3, 1, 0]


def test_float32_is_read_as_it_is():
    scores = np.float32([[0, -1, 16777216, 0], [0, 16777216, -1, 1], [0, 0, 0, -1]])  # 2**24 + 1 is no float32
    check_best(scores)
    assert best_tree(scores).tolist() == [2, 3, 0]


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("n", [6, 17, 60])
def test_always_a_tree_and_no_worse_after_a_change_of_one_arc(kind, n):
    scores = SCORES[kind](np.random.RandomState(n), n, n + 1)
    heads = best_tree(scores)
    assert is_tree(heads)
    best = value(scores, heads)
    random = np.random.RandomState(0)
    for _ in range(500):
        changed = np.where(np.arange(n) == random.randint(n), random.randint(n + 1), heads)
        assert not is_tree(changed) or value(scores, changed) <= best


@pytest.mark.parametrize("n", [7, 30])
def test_adding_to_all_scores_of_a_word_changes_nothing(n):
    random = np.random.RandomState(n)
    scores = random.randint(-1000, 1000, (n, n + 1))
    assert (best_tree(scores) == best_tree(scores + random.randint(-5000, 5000, (n, 1)))).all()


def test_long_sentence():
    """Cycle within cycle, a thousand deep, without recursion."""
    n = 1000
    scores = np.full((n, n + 1), -1e6)
    scores[np.arange(n - 1), np.arange(n - 1) + 2] = 5.0  # every word wants the next,
    scores[np.arange(1, n), np.arange(1, n)] = 10.0 + np.arange(1, n)  # ... but more the one before
    assert is_tree(best_tree(scores))


def test_greedy_tree_is_kept():
    chain, star = [0, 1, 2, 3], [2, 0, 2, 2]
    for tree in (chain, star):
        scores = np.random.RandomState(1).randn(4, 5)
        scores[np.arange(4), tree] = 9.0
        heads, repaired = greedy_or_best_tree(scores)
        assert heads.tolist() == tree and repaired is False
        assert best_tree(scores).tolist() == tree


@pytest.mark.parametrize(
    "greedy, best",
    [
        ([2, 1, 0, 3], [2, 3, 0, 3]),  # a cycle beside the root
        ([2, 3, 1, 1], [2, 3, 0, 1]),  # no root, a cycle of three
        ([0, 0, 2, 3], [0, 1, 2, 3]),  # two roots
        ([0, 0, 0, 0], [0, 1, 1, 1]),
        ([2, 1, 4, 3], [2, 3, 4, 0]),  # two cycles
    ],
)
def test_repair(greedy, best):
    scores = np.zeros((4, 5))
    scores[np.arange(4), best] = 1.0
    scores[np.arange(4), greedy] = 1.5
    assert (scores.argmax(axis=1) == greedy).all()
    heads, repaired = greedy_or_best_tree(scores)
    assert repaired is True and heads.tolist() == best


def test_greedy_takes_neither_nan_nor_self_arcs():
    heads, repaired = greedy_or_best_tree(np.array([[1.0, 9.0, 0.0], [NAN, 2.0, 9.0]]))
    assert heads.tolist() == [0, 1] and repaired is False


def test_no_words_and_one():
    assert best_tree(np.zeros((0, 1))).shape == (0,) and best_tree(np.zeros((0, 1))).dtype == np.int64
    heads, repaired = greedy_or_best_tree(np.zeros((0, 1)))
    assert heads.shape == (0,) and repaired is False
    assert best_tree([[NAN, 3.0]]).tolist() == [0]


@pytest.mark.parametrize("shape", [(0,), (3,), (0, 0), (3, 3), (3, 5), (4, 3), (1, 2, 3)])
@pytest.mark.parametrize("decode", [best_tree, greedy_or_best_tree])
def test_wrong_shape(shape, decode):
    with pytest.raises(ValueError) as error:
        decode(np.zeros(shape))
    assert str(shape) in str(error.value) and "[n, n + 1]" in str(error.value)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_is_tree(n):
    trees = set(all_trees(n)) if n else set()
    for heads in itertools.product(range(-1, n + 2), repeat=n):
        assert is_tree(heads) is (heads in trees), heads
        assert is_tree(np.array(heads, dtype=np.int32)) is (heads in trees)


@pytest.mark.parametrize("n", [2, 3, 7, 8, 9, 1000])
def test_is_tree_of_chains_and_long_cycles(n):
    assert is_tree(list(range(n))) and is_tree([*range(2, n + 1), 0])
    assert not is_tree([0, *range(3, n + 1), 2])
