"""Whether the papers' claims hold: the first of two runs has the better number, or one near the other's.

Two results are compared only if both were trained with the same kind of schedule, and either for equally many epochs
(within 1 %) or both to the end, where a rule of stopping may have been sooner for one of them, or one is no training.
A model of counts, which is no training, is also beaten by one that is not at its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from reproduce_manifest import KINDS, METRICS, OR_EQUAL, Manifest, Refused
from reproduce_results import Measured, Result, Results, alike, measured, near, rank, ruled

EQUAL = 0.005  # how far apart two numbers of a claim with one of these signs may be, as a share of the second
Pair = Tuple[Result, Result]


@dataclass(frozen=True)
class Judged:
    """A claim and what was measured.

    Attributes:
        better, worse: what was compared; of an open claim, what there is.
        holds: ``None`` if it is open.
        said: the same in words, with the seeds or the reason.
    """

    claim: Dict[str, Any]
    better: Optional[Measured]
    worse: Optional[Measured]
    holds: Optional[bool]
    said: str


def judge(manifest: Manifest, results: Results, claim: Dict[str, Any]) -> Judged:
    """
    Raises:
        Refused: the claim is about two metrics.
    """
    first, second = (manifest.runs[claim[name]].schedule for name in ("better", "worse"))
    if first.metric != second.metric:
        raise Refused(f"claim {claim['text']!r}: one run has {first.metric!r}, the other {second.metric!r}")
    pairs = compared(manifest, results, claim)
    scored = (claim["evaluate"], ())
    lower = METRICS[first.metric][1]
    if pairs:
        sides = [[side[seed] for seed in sorted(side)] for side in by_seed(pairs)]
        better, worse = (measured(side, flags) for side, flags in zip(sides, scored))
        holds = agrees(claim, better.mean, worse.mean, lower)
    if not pairs or not holds and unfinished(manifest, *pairs[0]):
        shown = [results.shown(claim[name], flags) for name, flags in zip(("better", "worse"), scored)]
        return Judged(claim, *shown, None, f"open: {why_open(results, claim, *shown)}")
    held = sum(agrees(claim, one.value(claim["evaluate"]), other.value(), lower) for one, other in pairs)
    paired = all(same_seed(manifest, *pair) for pair in pairs)
    said = in_words(holds, held, len(pairs), paired, "median" if first.metric == "seconds" else "seed")
    return Judged(claim, better, worse, holds, said)


def compared(manifest: Manifest, results: Results, claim: Dict[str, Any]) -> List[Pair]:
    """The pairs that may be compared: of equal seeds if there are such; all of the kind and share of the best pair."""
    sides = [[each for kind in KINDS for each in results.of(claim[name], kind) if each.value(flags) is not None]
             for name, flags in (("better", claim["evaluate"]), ("worse", ()))]  # fmt: skip
    found = [(one, other) for one in sides[0] for other in sides[1] if comparable(manifest, one, other)]
    found = [pair for pair in found if same_seed(manifest, *pair)] or found
    best = max(found, key=lambda pair: min(map(rank, pair)), default=None)
    return [pair for pair in found if alike(pair[0], best[0]) and alike(pair[1], best[1])]


def comparable(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether two results show which model is better, or would if *one* is."""
    if of_counts(manifest, other):
        return whole(other)
    if of_counts(manifest, one):  # its epoch is none of training
        return whole(one) and whole(other)
    if one.kind != other.kind:
        return False
    if near(one.epochs, other.epochs):
        return True
    lengths = [manifest.runs[each.run].schedule.of(each.kind) for each in (one, other)]
    same = len({(length.epochs, length.updates) for length in lengths}) == 1
    return ruled(one, other) and (one.kind == "paper" or same)


def unfinished(manifest: Manifest, *sides: Result) -> bool:
    """Whether a model of counts is compared with a training that is not at its end and may yet be better."""
    return of_counts(manifest, *sides) and not all(map(whole, sides))


def whole(result: Result) -> bool:
    return result.kind == "paper" and result.complete


def of_counts(manifest: Manifest, *sides: Result) -> bool:
    """Whether one is a model of counts, which is made without training and without chance."""
    return any(manifest.runs[each.run].schedule.script for each in sides)


def same_seed(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether nothing but the models differ; a model of counts is the same with every seed."""
    return one.seed == other.seed or of_counts(manifest, one, other)


def by_seed(pairs: List[Pair]) -> List[Dict[int, Result]]:
    return [{result.seed: result for result in side} for side in zip(*pairs)]


def agrees(claim: Dict[str, Any], one: float, other: float, lower: bool) -> bool:
    """Whether two numbers are as the claim says: by its sign *one* better, or that or near *other*, or (without a
    sign) just near.

    Args:
        lower: whether the lower number is the better.
    """
    tolerant = any(sign in claim["text"] for sign in OR_EQUAL)
    tolerance = claim.get("within", EQUAL if tolerant else None)
    if tolerance is not None and math.isfinite(other) and abs(one - other) <= tolerance * abs(other):
        return True
    return (tolerant or "within" not in claim) and (one < other if lower else one > other)


def in_words(holds: bool, held: int, count: int, paired: bool, what: str) -> str:
    said = "holds" if holds else "does not hold"
    if not paired:
        return f"{said}, means of different {what}s"
    mixed = " in the mean" if held not in (0, count) else ""
    return f"{said}{mixed}, {held} of {count} {what}{'s' * (count > 1)}"


def why_open(results: Results, claim: Dict[str, Any], better: Optional[Measured], worse: Optional[Measured]) -> str:
    missing = [claim[name] for name, each in (("better", better), ("worse", worse)) if each is None]
    if not missing:
        return "never trained alike"
    if missing[0] == claim["better"] and results.shown(missing[0]):
        return f"`{missing[0]}` not scored with `{' '.join(claim['evaluate'])}`"
    return "not measured" if len(missing) == 2 else f"`{missing[0]}` not measured"
