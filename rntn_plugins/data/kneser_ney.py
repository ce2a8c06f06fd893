"""Interpolated modified Kneser-Ney n-gram models. Pure NumPy, no fairseq.

Chen and Goodman 1998, *An Empirical Study of Smoothing Techniques for Language Modeling* (TR-10-98, Harvard
University), section 3, after Kneser and Ney 1995. With h' the context h without its first word:

    p(w | h) = max(a(hw) - D(a(hw)), 0) / sum_v a(hv)  +  g(h) p(w | h')
    g(h)     = (D1 N1(h) + D2 N2(h) + D3 N3+(h)) / sum_v a(hv),    N_i(h): how many words v have a(hv) = i
    D1 = 1 - 2Y n2/n1,  D2 = 2 - 3Y n3/n2,  D3+ = 3 - 4Y n4/n3,  Y = n1 / (n1 + 2 n2),  n_i: n-grams with a = i

The recursion ends with 1 / (number of symbols a text can hold). a is the plain count at the highest order; below it is
the number of different words that stand before the n-gram, but the plain count of n-grams that begin a sentence, as no
word stands before them (SRILM and KenLM do the same). Every order has discounts of its own; no n-gram is cut off.

A text is one array of symbols, ``</s>`` after every sentence. The ``</s>`` before a sentence is its start symbol, as
everywhere in fairseq: it is in contexts what the literature calls ``<s>``, and no context goes further back.

Shapes: N order, V vocabulary, M_n different n-grams of n words.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence

import numpy as np

#: what KenLM takes for D1, D2, D3+ where they cannot be estimated and it is told to go on
FALLBACK = (0.5, 1.0, 1.5)


class NGrams(NamedTuple):
    """All n-grams of one length n, as a level of a trie.

    The number of an n-gram is its place here; what stands before a single word is the empty context, number 0.
    """

    keys: np.ndarray  # [M_n] int64, sorted: number of the first n - 1 words among the (n-1)-grams, times V, + last word
    counts: np.ndarray  # [M_n] int32: a


def count_ngrams(tokens: np.ndarray, order: int, vocabulary: int, end: int) -> List[NGrams]:
    """All n-grams of a text, n = 1 .. N, with their adjusted counts a.

    Args:
        tokens: the text ``[number of tokens]``, its last symbol *end*.
        order: N, at least 1.
        vocabulary: V.
        end: ``</s>``.
    """
    text = np.concatenate([[end], tokens]).astype(np.int64)
    place = np.arange(len(text))
    last_end = np.maximum.accumulate(np.where(text == end, place, 0))
    behind = place - np.concatenate([[0], last_end[:-1]])  # how far back the sentence's start symbol is
    levels: List[NGrams] = []
    numbers = np.zeros(len(text), dtype=np.int64)  # of the (n-1)-gram that ends here
    for n in range(1, order + 1):
        here = np.flatnonzero(behind >= max(1, n - 1))  # an n-gram ends here whose last word is predicted
        before = numbers[here - 1]
        keys, first, inverse, raw = np.unique(
            before * vocabulary + text[here], return_index=True, return_inverse=True, return_counts=True
        )
        if levels:
            different = np.bincount(numbers[here[first]], minlength=len(levels[-1].keys))
            levels[-1] = NGrams(levels[-1].keys, np.where(different, different, levels[-1].counts).astype(np.int32))
        levels.append(NGrams(keys, raw.astype(np.int32)))
        numbers = np.full(len(text), -1, dtype=np.int64)
        numbers[here] = inverse
        if n == 1:
            numbers[0] = np.searchsorted(keys, end)  # is never predicted, but is a context
    return levels


def estimate_discounts(counts: np.ndarray, order: int) -> np.ndarray:
    """D1, D2, D3+ of the n-grams of one length from their a.

    Raises:
        ValueError: no n-gram has a = 1, 2 or 3, or a discount is below 0 (none is above the count it is taken from).
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).astype(np.float64)
    missing = [str(i) for i in (1, 2, 3) if not n[i]]
    reason = f"none has the count {' or '.join(missing)}"
    if not missing:
        y = n[1] / (n[1] + 2 * n[2])
        discounts = np.array([i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)])
        if (discounts >= 0).all():
            return discounts
        reason = f"D1, D2, D3+ would be {', '.join(f'{value:.3f}' for value in discounts)}"
    raise ValueError(
        f"too little text, or too few different symbols, to estimate the discounts of {order}-grams: {reason}; "
        f"--discount-fallback takes {FALLBACK} for such"
    )


class KneserNey:
    """A model: tables of counts and discounts, and what follows from them.

    Args:
        levels: the n-grams of each length, N of them.
        discounts: D1, D2, D3+ of each length, ``[N, 3]``.
        possible: which symbols a text can hold, ``[V]`` (bool); the others get no probability.
        end: ``</s>``.
    """

    def __init__(self, levels: Sequence[NGrams], discounts: np.ndarray, possible: np.ndarray, end: int) -> None:
        self.levels, self.discounts = list(levels), np.asarray(discounts, dtype=np.float64)
        self.possible, self.end = np.asarray(possible), end
        # What follows from an n-gram or a context; the last entry, which number -1 finds, is for those never seen
        self.gains: List[np.ndarray] = []  # [M_n + 1]: the first term of p
        self.backoffs: List[np.ndarray] = []  # [M_(n-1) + 1]: g
        self.starts: List[np.ndarray] = []  # [M_(n-1) + 1]: where the n-grams of a context begin
        self.sizes: List[np.ndarray] = []  # [M_(n-1) + 1]: how many they are
        contexts = 1
        for (keys, counts), three in zip(self.levels, self.discounts):
            context = keys // len(self.possible)
            discount = np.concatenate([[0.0], three])[np.minimum(counts, 3)]
            total = np.bincount(context, counts, contexts)
            sizes = np.bincount(context, minlength=contexts)
            backoff = np.ones(contexts + 1)  # of contexts that nothing followed, and of unknown ones
            np.divide(np.bincount(context, discount, contexts), total, out=backoff[:-1], where=total > 0)
            self.gains.append(np.append((counts - discount) / total[context], 0.0))
            self.backoffs.append(backoff)
            self.starts.append(np.append(np.cumsum(sizes) - sizes, 0))
            self.sizes.append(np.append(sizes, 0))
            contexts = len(keys)
        unigram = np.where(self.possible, self.backoffs[0][0] / self.possible.sum(), 0.0)
        unigram[self.levels[0].keys] += self.gains[0][:-1]
        self.unigram = unigram  # [V]: p(w)

    @property
    def order(self) -> int:
        return len(self.levels)

    @classmethod
    def estimate(
        cls,
        tokens: np.ndarray,
        order: int,
        possible: np.ndarray,
        end: int,
        fallback: Optional[Sequence[float]] = None,
    ) -> KneserNey:
        """The model of a text.

        Args:
            tokens: symbols, *end* after every sentence.
            fallback: D1, D2, D3+ for a length whose discounts cannot be estimated; without it that is an error.
        Raises:
            ValueError: the order is below 1, the text is empty, does not end with *end*, holds a symbol that is not
                possible, or is too small.
        """
        if order < 1:
            raise ValueError(f"--order {order} must be at least 1")
        tokens = np.asarray(tokens)
        if not len(tokens) or tokens[-1] != end:
            raise ValueError("the training text is empty, or its last sentence has no end symbol")
        if tokens.min() < 0 or tokens.max() >= len(possible) or not np.asarray(possible)[tokens].all():
            raise ValueError("the training text holds a symbol that no text can hold; is dict.txt of this data?")
        levels = count_ngrams(tokens, order, len(possible), end)
        discounts = []
        for n, level in enumerate(levels, 1):
            try:
                discounts.append(estimate_discounts(level.counts, n))
            except ValueError:
                if fallback is None:
                    raise
                discounts.append(np.asarray(fallback, dtype=np.float64))
        return cls(levels, np.stack(discounts), possible, end)

    def find(self, n: int, context: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The numbers of the n-grams that *words* make after contexts of n - 1 words (numbers); -1: never occurred."""
        keys = self.levels[n - 1].keys
        wanted = np.where(context < 0, -1, context * len(self.possible) + words)
        if not len(keys):
            return np.full(wanted.shape, -1)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, at, -1)

    def contexts(self, symbols: np.ndarray) -> np.ndarray:
        """What each position of a text knows of the words before the next one.

        Args:
            symbols: ``[..., T]``, sentences with ``</s>`` before them.
        Returns:
            ``[N, ..., T]``: the number of the n-gram that ends here, for n = 0 .. N - 1; -1 if it never occurred in
            training, or would go further back than the array.
        """
        symbols = np.asarray(symbols)
        numbers = [np.zeros(symbols.shape, dtype=np.int64)]
        for n in range(1, self.order):
            before = np.concatenate([np.full_like(numbers[-1][..., :1], -1), numbers[-1][..., :-1]], axis=-1)
            numbers.append(self.find(n, before if n > 1 else numbers[0], symbols))
        return np.stack(numbers)

    def probabilities(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """p of possible *words* ``[...]`` after contexts ``[N, ...]`` (from :meth:`contexts`), ``[...]``."""
        found = np.where(self.possible[words], 1.0 / self.possible.sum(), 0.0)
        for n, context in enumerate(contexts, 1):
            found = self.gains[n - 1][self.find(n, context, words)] + self.backoffs[n - 1][context] * found
        return found

    def distributions(self, contexts: np.ndarray) -> np.ndarray:
        """p of all symbols after contexts ``[N, R]``, ``[R, V]``; every row sums to one."""
        weight = np.ones(contexts.shape[1])  # of the order below
        parts = []
        for n in range(self.order, 1, -1):
            context = contexts[n - 1]
            sizes = self.sizes[n - 1][context]
            rows = np.repeat(np.arange(len(context)), sizes)
            entries = np.arange(len(rows)) + np.repeat(self.starts[n - 1][context] - np.cumsum(sizes) + sizes, sizes)
            words = self.levels[n - 1].keys[entries] % len(self.possible)
            parts.append((rows, words, self.gains[n - 1][entries] * weight[rows]))
            weight = weight * self.backoffs[n - 1][context]
        found = weight[:, None] * self.unigram
        for rows, words, share in reversed(parts):  # a word is at most once in a row of a part
            found[rows, words] += share
        return found

    def bits(self, tokens: np.ndarray) -> float:
        """-log2 p of a whole text, every symbol predicted once, ``</s>`` too."""
        tokens = np.asarray(tokens)
        contexts = self.contexts(np.concatenate([[self.end], tokens[:-1]]))
        return float(-np.log2(self.probabilities(contexts, tokens)).sum())
