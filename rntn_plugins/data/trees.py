"""The best dependency tree for scores of arcs. Pure NumPy, no fairseq.

A sentence has n words, numbered from 1; its tree is the head of every word, 0 where the head is the root. Exactly one
word hangs on the root, as in Universal Dependencies.

The algorithm is that of Chu and Liu ("On the shortest arborescence of a directed graph", 1965) and Edmonds ("Optimum
branchings", 1967): every word takes its cheapest head, a cycle becomes one node, and the arcs into it cost what they
cost more than the arc of the cycle which they replace. Grown along one path it takes O(n²) (Tarjan, "Finding optimum
branchings", 1977). It alone would let several words hang on the root (Zmigrod, Vieira and Cotterell, "Please mind the
root: decoding arborescences for dependency parsing", 2020); here the number of arcs from the root is the leading digit
of the cost. Costs are integers of any length, so that no sum and no difference is ever rounded.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np


def is_tree(heads: Sequence[int]) -> bool:
    """Whether one word hangs on the root and all the others below it; no words are no tree.

    Args:
        heads: of the words 1 to n, ``[n]``.
    """
    up = np.concatenate([[0], np.asarray(heads, dtype=np.int64)])  # the root is its own head
    words = len(up) - 1
    if (up < 0).any() or (up > words).any() or (up[1:] == 0).sum() != 1:
        return False
    for _ in range(words.bit_length()):
        up = up[up]  # twice as many steps at a time
    return not up.any()


def best_tree(scores: np.ndarray) -> np.ndarray:
    """The tree with the fewest forbidden arcs and, among those, the highest sum of the scores of its other arcs.

    Forbidden are scores of -inf and NaN; +inf counts as the largest finite float64. No word is ever its own head. Of
    equally good trees it is always the same one.

    Args:
        scores: of head h for word d at ``[d - 1, h]``, ``[n, n + 1]``.

    Returns:
        The heads ``[n]``, int64.

    Raises:
        ValueError: another shape.
    """
    return _cheapest_tree(_costs(_checked(scores)))


def greedy_or_best_tree(scores: np.ndarray) -> Tuple[np.ndarray, bool]:
    """The best head of every word if these are a tree, else :func:`best_tree`; and whether it had to be repaired.

    Args, raises: as :func:`best_tree`.
    """
    scores = _checked(scores)
    heads = scores.argmax(axis=1)
    if len(heads) == 0 or is_tree(heads):
        return heads, False
    return _cheapest_tree(_costs(scores)), True


def _checked(scores: np.ndarray) -> np.ndarray:
    """The scores in float64, forbidden arcs and self arcs -inf, none +inf."""
    scores = np.array(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != scores.shape[0] + 1:
        raise ValueError(
            f"scores of a tree are [n, n + 1], one row per word and one column per head, not {scores.shape}"
        )
    words = np.arange(len(scores))
    scores[words, words + 1] = -np.inf
    return np.nan_to_num(scores, copy=False, nan=-np.inf, posinf=np.finfo(np.float64).max, neginf=-np.inf)


def _costs(scores: np.ndarray) -> np.ndarray:
    """Python integers ``[n, n + 1]``, none negative, whose sum ranks trees by root arcs, forbidden arcs, score."""
    forbidden = np.isneginf(scores)
    mantissas, exponents = np.frexp(np.where(forbidden, 0.0, scores))
    shifts = (exponents - exponents.min(initial=0)).astype(object)
    integers = np.ldexp(mantissas, 53).astype(np.int64).astype(object) << shifts  # all times the same power of two
    costs = np.where(forbidden, 0, integers.max(initial=0) - integers)
    words = len(scores)
    one_forbidden = words * costs.max(initial=0) + 1  # more than the scores of any tree
    costs[forbidden] += one_forbidden
    costs[:, 0] += (words + 1) * one_forbidden
    return costs


def _cheapest_tree(costs: np.ndarray) -> np.ndarray:
    """Heads ``[n]`` of the cheapest tree of costs ``[n, n + 1]``.

    Nodes are the root 0, the words 1 to n, and the cycles from n + 1 on, a cycle after its members. A word that is
    its own cheapest head is a cycle of one.
    """
    words = len(costs)
    never = 1 + costs.max(initial=0)
    columns = np.arange(words + 1)
    outermost = np.arange(words + 1)  # the node that now holds each word
    into = {word: costs[word - 1] for word in range(1, words + 1)}  # node: the cost of each head [n + 1] ...
    enters = {word: np.full(words + 1, word) for word in range(1, words + 1)}  # ... and the word it would enter at
    arcs = {}  # node: its head and the word it enters at
    inside = {}  # cycle: the member that holds each word
    finished = {0}  # nodes that hang on the root
    for start in range(1, words + 1):
        path, node = [], int(outermost[start])  # each node hangs on the next
        while node not in finished:
            if node in path:
                at = path.index(node)
                cycle, path, node = path[at:], path[:at], words + len(inside) + 1
                dearer = np.stack([into[member] - into[member][arcs[member][0]] for member in cycle])
                cheapest = dearer.argmin(axis=0)
                held = np.isin(outermost, cycle)
                into[node] = np.where(held, never, dearer[cheapest, columns])
                enters[node] = np.stack([enters[member] for member in cycle])[cheapest, columns]
                inside[node] = outermost.copy()
                outermost[held] = node
                for member in cycle:
                    del into[member], enters[member]
            path.append(node)
            head = int(into[node].argmin())
            arcs[node] = head, int(enters[node][head])
            node = int(outermost[head])
        finished.update(path)
    for cycle in sorted(inside, reverse=True):  # outer cycles first: the arc into a cycle replaces that of one member
        arcs[int(inside[cycle][arcs[cycle][1]])] = arcs[cycle]
    return np.array([arcs[word][0] for word in range(1, words + 1)], dtype=np.int64)
