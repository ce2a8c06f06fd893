"""Whether the papers' claims hold: the first of two runs has the better number, or one near the second's.

Two results are compared only if both were trained with the same kind of schedule, and either for equally many epochs
(within 1 %) or both to the end, where a rule of stopping may have been sooner for one of them, or one is no training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from reproduce_manifest import METRICS, Manifest, Refused
from reproduce_results import KINDS, Measured, Result, Results, alike, measured, near, rank, ruled

EQUAL = 0.005  # how far apart two numbers of a claim with "<=" may be, as a share of the second
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
    if not pairs:
        shown = [results.shown(claim[name], flags) for name, flags in zip(("better", "worse"), scored)]
        return Judged(claim, *shown, None, f"open: {why_open(claim, *shown)}")
    sides = [[side[seed] for seed in sorted(side)] for side in by_seed(pairs)]
    better, worse = (measured(side, flags) for side, flags in zip(sides, scored))
    holds = agrees(claim, better.mean, worse.mean, METRICS[first.metric][1])
    held = sum(
        agrees(claim, one.value(claim["evaluate"]), other.value(), METRICS[first.metric][1]) for one, other in pairs
    )
    return Judged(claim, better, worse, holds, in_words(pairs, holds, held))


def compared(manifest: Manifest, results: Results, claim: Dict[str, Any]) -> List[Pair]:
    """The pairs that may be compared: of equal seeds if there are such; all of the kind and share of the best pair."""
    found = []
    for kind in KINDS:
        sides = [[each for each in results.of(claim[name], kind) if each.value(flags) is not None]
                 for name, flags in (("better", claim["evaluate"]), ("worse", ()))]  # fmt: skip
        found += [(one, other) for one in sides[0] for other in sides[1] if comparable(manifest, one, other)]
    found = [pair for pair in found if pair[0].seed == pair[1].seed] or found
    best = max(found, key=lambda pair: min(map(rank, pair)), default=None)
    return [pair for pair in found if alike(pair[0], best[0]) and alike(pair[1], best[1])]


def comparable(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether two results of the same kind of schedule show which model is better."""
    if near(one.epochs, other.epochs):
        return True
    lengths = [manifest.runs[each.run].schedule.of(each.kind) for each in (one, other)]
    if any(length.script for length in lengths):  # a model of counts, which has no epochs
        return one.kind == "paper" and one.complete and other.complete
    same = len({(length.epochs, length.updates) for length in lengths}) == 1
    return ruled(one, other) and (one.kind == "paper" or same)


def by_seed(pairs: List[Pair]) -> List[Dict[int, Result]]:
    return [{result.seed: result for result in side} for side in zip(*pairs)]


def agrees(claim: Dict[str, Any], one: float, other: float, lower: bool) -> bool:
    """Whether two numbers are as the claim says: *one* better, or near *other* where it says so.

    Args:
        lower: whether the lower number is the better.
    """
    tolerance = claim.get("within", EQUAL if any(sign in claim["text"] for sign in ("<=", ">=", "≤", "≥")) else None)
    if tolerance is not None and abs(one - other) <= tolerance * abs(other):
        return True
    return "within" not in claim and (one < other if lower else one > other)


def in_words(pairs: List[Pair], holds: bool, held: int) -> str:
    said = "holds" if holds else "does not hold"
    if any(one.seed != other.seed for one, other in pairs):
        return f"{said}, means of different seeds"
    mixed = " in the mean" if held not in (0, len(pairs)) else ""
    return f"{said}{mixed}, {held} of {len(pairs)} seed{'s' * (len(pairs) > 1)}"


def why_open(claim: Dict[str, Any], better: Optional[Measured], worse: Optional[Measured]) -> str:
    missing = [claim[name] for name, each in (("better", better), ("worse", worse)) if each is None]
    if not missing:
        return "never trained alike"
    return "not measured" if len(missing) == 2 else f"`{missing[0]}` not measured"
