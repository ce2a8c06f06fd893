"""Whether the papers' claims hold: the first of two runs has the better number, or one near the other's.
Compared are test scores, or what validation said after every epoch or the first.

Two results are compared only if both were trained with the same kind of schedule, and either for equally many epochs
(within 1 %) or both to the end, where a rule of stopping may have been sooner for one of them. Of two that the paper's
schedule trained for unlike lengths validation is compared, the best that either had up to the last epoch that both
have; whatever it says, so that a model whose epochs take longer is neither better nor worse off. A model of counts is
no training: it is beaten by whatever is better, and beats what was trained as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from reproduction.manifest import KINDS, METRICS, OR_EQUAL, Manifest, Refused, grouped, wanted
from reproduction.results import Measured, Result, Results, alike, measured, near, rank, ruled

EVERY = 2  # epochs at least that a claim about every epoch is judged by
BEST = "best"  # the epochs of a claim about test scores where trainings of unlike lengths are judged by validation
LONGEST = 1000  # epochs; no training has as many
EQUAL = 0.005  # how far apart two numbers of a claim with one of these signs may be, as a share of the second
Pair = Tuple[Result, Result]


@dataclass(frozen=True)
class Judged:
    """A claim and what was measured.

    Attributes:
        better, worse: what was compared; of an open claim, what there is.
        holds: ``None`` if it is open.
        said: the same in words, with the seeds or the reason.
        longer: of either side a longer training than the one compared, to which the other side has no equal.
        shorter: the longest shorter training of both that more seeds had than the one compared, judged likewise (of a
            claim about whole trainings too, which it does not decide).
        mixed: whether not every seed (or median of a time) that both sides have says what their mean does.
        seeds: of what is decided, the fewer of the seeds (or medians) of either side that was trained.
        curves: of a claim about epochs, or where validation decides, by epoch the mean over the seeds of what either
            side's validations said, or just the best up to the last; the means of ``better`` and ``worse`` are those
            of the last epoch then.
    """

    claim: Dict[str, Any]
    better: Optional[Measured]
    worse: Optional[Measured]
    holds: Optional[bool]
    said: str
    longer: Tuple[Measured, ...] = ()
    curves: Tuple[Dict[int, float], ...] = ()
    shorter: Optional[Judged] = None
    mixed: bool = False
    seeds: int = 0

    @property
    def whole(self) -> bool:
        """Whether both sides are trained as and as long as in the paper."""
        return all(each is not None and each.full for each in (self.better, self.worse))

    @property
    def close(self) -> bool:
        """Whether the two numbers are equal within 0.5 %."""
        one, other = (each.mean if each else math.inf for each in (self.better, self.worse))
        return math.isfinite(other) and abs(one - other) <= EQUAL * abs(other)

    @property
    def mingled(self) -> bool:
        """Whether the seeds of the one side and those of the other, of which each has several, overlap."""
        spreads = [each.spread if each else None for each in (self.better, self.worse)]
        return None not in spreads and spreads[0][0] <= spreads[1][1] and spreads[1][0] <= spreads[0][1]


def judge(manifest: Manifest, results: Results, claim: Dict[str, Any]) -> Judged:
    """
    Raises:
        Refused: the claim is about two metrics.
    """
    first, second = (manifest.runs[claim[name]].schedule for name in ("better", "worse"))
    if first.metric != second.metric:
        raise Refused(f"claim {claim['text']!r}: one run has {first.metric!r}, the other {second.metric!r}")
    shown = [results.shown(claim[name], flags) for name, flags in zip(("better", "worse"), (claim["evaluate"], ()))]
    reason = None
    groups = compared(manifest, results, claim)
    for place, (of, pairs) in enumerate(groups):
        found, reason = decided(manifest, of, pairs)
        if found is None:
            continue
        sides = zip(shown, (found.better, found.worse))
        longer = (best for best, side in sides if best and best.share > 1.01 * side.share)
        sooner = [({name: of[name] for name in of if name != "at_end"}, pairs) for of, pairs in groups[place + 1 :]]
        others = (decided(manifest, *later)[0] for later in sooner)
        shorter = next((other for other in others if other and other.seeds > found.seeds
                        and other.claim.get("epochs") != BEST), None)  # fmt: skip
        return replace(found, claim=claim, longer=tuple(longer), shorter=shorter)
    return Judged(claim, *shown, None, f"open: {reason or why_open(results, claim, *shown)}")


def decided(manifest: Manifest, claim: Dict[str, Any], pairs: List[Pair]) -> Tuple[Optional[Judged], Optional[str]]:
    """What these pairs say of a claim, or else why they do not say it yet."""
    metric, scored = manifest.runs[claim["better"]].schedule.metric, (claim["evaluate"], ())
    lower = METRICS[metric][1]
    sides = [[side[seed] for seed in sorted(side)] for side in by_seed(pairs)]
    curves = shared([mean([numbers(claim, each, flags) for each in side]) for side, flags in zip(sides, scored)])
    holds = agree(claim, curves, lower)
    reason = early(manifest, claim, pairs, holds)
    if reason is not None:
        return None, reason
    held = sum(agree(claim, [numbers(claim, *each) for each in zip(pair, scored)], lower) for pair in pairs)
    paired = all(same_seed(manifest, *pair) for pair in pairs)
    mixed = paired and held != (len(pairs) if holds else 0)
    said = in_words(holds, held, len(pairs), paired, "median" if metric == "seconds" else "seed")
    better, worse = (measured(side, flags) for side, flags in zip(sides, scored))
    if metric == "seconds" and not clear(claim, better, worse, holds):
        return None, "the rounds of the measurement differ by more than the two times"
    if "epochs" in claim:
        last = max(curves[0])
        better, worse = (replace(side, values=tuple(numbers(claim, each, ())[last] for each in side.results))
                         for side in (better, worse))  # fmt: skip
        if claim["epochs"] == BEST:
            said += f", in validation up to epoch {last}"
            curves = [{last: curve[last]} for curve in curves]
        elif not holds:
            said += f", not after epoch {fails(claim, curves, lower)[0]}"
    curves = curves if "epochs" in claim else []
    seeds = min((len(side) for side in sides if not of_counts(manifest, side[0])), default=1)
    return Judged(claim, better, worse, holds, said, curves=tuple(curves), mixed=mixed, seeds=seeds), None


def clear(claim: Dict[str, Any], better: Measured, worse: Measured, holds: bool) -> bool:
    """Whether two times say the same of a claim in all of their rounds, the slowest of the one and the fastest of the
    other too."""
    low, high = ([(found.spread or (found.mean, found.mean))[end] for found in (better, worse)] for end in (0, 1))
    return all(agrees(claim, *pair, True) == holds for pair in ((low[0], high[1]), (high[0], low[1])))


def numbers(claim: Dict[str, Any], result: Result, evaluate: Sequence[str]) -> Dict[int, float]:
    """What a claim compares of a result: by epoch what its validations said, or that of the checkpoint that would be
    scored then (the best so far, as fairseq has it: after a NaN it begins anew; a training that its rule ended keeps
    its last), or else its test score as of epoch 0."""
    if "epochs" not in claim:
        value = result.value(evaluate)
        return {} if value is None else {0: value}
    known, whole = result.validations, math.floor(result.epochs + 0.01)
    if claim["epochs"] == "first":
        return {1: known[1]} if 1 in known else {}
    enough = whole >= (1 if claim["epochs"] == BEST else EVERY)
    if not enough or set(known) != set(range(1, whole + 1)):
        return {}
    if claim["epochs"] != BEST:
        return known
    better, best, found = min if METRICS[result.metric][1] else max, math.nan, {}
    for epoch in range(1, whole + 1):
        best = better(best, known[epoch]) if math.isfinite(best) and math.isfinite(known[epoch]) else known[epoch]
        found[epoch] = best
    if result.stopped == "rule":
        found.update((epoch, best) for epoch in range(whole + 1, LONGEST))
    return found


def shared(curves: Sequence[Dict[int, float]]) -> List[Dict[int, float]]:
    """The same of the epochs that all have."""
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [{epoch: curve[epoch] for epoch in common} for curve in curves]


def mean(curves: Sequence[Dict[int, float]]) -> Dict[int, float]:
    """Epoch by epoch, of those that all have."""
    common = shared(curves)
    return {epoch: sum(curve[epoch] for curve in common) / len(common) for epoch in common[0]}


def agree(claim: Dict[str, Any], curves: Sequence[Dict[int, float]], lower: bool) -> bool:
    """Whether the two are as the claim says after every epoch that both have."""
    return not fails(claim, curves, lower)


def fails(claim: Dict[str, Any], curves: Sequence[Dict[int, float]], lower: bool) -> List[int]:
    """The epochs, of those that both have (or of these the last), after which they are not."""
    one, other = shared(curves)
    epochs = list(one)[-1 if claim.get("epochs") == BEST else 0 :]
    return [epoch for epoch in epochs if not agrees(claim, one[epoch], other[epoch], lower)]


def compared(manifest: Manifest, results: Results, claim: Dict[str, Any]) -> List[Tuple[Dict[str, Any], List[Pair]]]:
    """The pairs that may be compared, those trained furthest first, and what is judged of them: the claim, or that of
    the best validation up to the last epoch that both have."""
    groups = [(claim, pairs) for pairs in alike_pairs(manifest, results, claim)]
    if not {"epochs", "at_end"} & claim.keys() and not claim["evaluate"]:
        by_validation = {**claim, "epochs": BEST}
        groups += [(by_validation, pairs) for pairs in alike_pairs(manifest, results, by_validation)]
    return sorted(groups, key=lambda group: max(common_rank(manifest, *pair) for pair in group[1]), reverse=True)


def alike_pairs(manifest: Manifest, results: Results, claim: Dict[str, Any]) -> List[List[Pair]]:
    """The pairs, of equal seeds if there are such: all of the kind and share of the best pair, then of the second best
    and so on."""
    sides = [[each for kind in KINDS for each in results.of(claim[name], kind) if numbers(claim, each, flags)]
             for name, flags in (("better", claim["evaluate"]), ("worse", ()))]  # fmt: skip
    found = [(one, other) for one in sides[0] for other in sides[1] if comparable(manifest, claim, one, other)]
    found = [pair for pair in found if same_seed(manifest, *pair)] or found
    groups: List[List[Pair]] = []
    for best in sorted(found, key=lambda pair: common_rank(manifest, *pair), reverse=True):
        if not any(best in group for group in groups):
            groups.append([pair for pair in found if alike(pair[0], best[0]) and alike(pair[1], best[1])])
    if claim.get("at_end") or any(of_counts(manifest, *pair) for pair in found):
        # a seed almost at its end is not there
        groups = [[pair for pair in group if at_end(manifest, *pair)] or group for group in groups]
    return groups


def common_rank(manifest: Manifest, one: Result, other: Result) -> tuple:
    """How far both of a pair were trained."""
    return min(map(rank, trained(manifest, one, other) or (one, other)))


def comparable(manifest: Manifest, claim: Dict[str, Any], one: Result, other: Result) -> bool:
    """Whether two results may show which model is better."""
    last = claim.get("epochs") == BEST
    if of_counts(manifest, one, other):  # its epoch is none of training
        return not last and all(each.complete for each in (one, other) if of_counts(manifest, each))
    if one.kind != other.kind or set_apart(manifest, one, other):
        return False
    if last:
        return one.kind == "paper" and not as_long(manifest, one, other) and one_schedule(manifest, one, other)
    return as_long(manifest, one, other) or ("epochs" in claim and one_schedule(manifest, one, other))


def as_long(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether both were trained for equally many epochs, or to the end, where a rule of stopping ended one."""
    lengths = [manifest.runs[each.run].schedule.of(each.kind) for each in (one, other)]
    same = len({(length.epochs, length.updates) for length in lengths}) == 1
    return near(one.epochs, other.epochs) or (ruled(one, other) and (one.kind == "paper" or same))


def one_schedule(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether epoch by epoch both were trained by the same schedule; a run's own flags may be others."""
    schedules = [manifest.runs[each.run].schedule.of(one.kind) for each in (one, other)]
    lengths = [(schedule.epochs, schedule.updates) for schedule in schedules]
    flags = [sorted(grouped(schedule.train)) for schedule in schedules]
    return one.metric != "seconds" and lengths[0] == lengths[1] and flags[0] == flags[1]


def set_apart(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether just one was trained with a setting that both runs have in the manifest now."""
    if "seconds" in (one.metric, other.metric):
        return False
    runs = [manifest.runs[each.run] for each in (one, other)]
    both = set(wanted(runs[0], one.kind)) & set(wanted(runs[1], other.kind))
    return bool(both & (set(one.lacking(runs[0])) ^ set(other.lacking(runs[1]))))


def early(manifest: Manifest, claim: Dict[str, Any], pairs: List[Pair], holds: bool) -> Optional[str]:
    """Why the pairs do not show yet whether the claim holds, ``None`` if they do.

    Before its end a training shows what more training cannot change: that it is better than a model of counts.

    Args:
        holds: whether it does by these pairs.
    """
    if all(at_end(manifest, *pair) for pair in pairs):
        return None
    if claim.get("at_end"):
        return "said of whole trainings"
    first, second = (of_counts(manifest, side) for side in pairs[0])
    if (first or second) and (is_near(claim) or (holds if first else not holds)):
        return "not trained to the end, where it may be better"
    return None


def at_end(manifest: Manifest, *sides: Result) -> bool:
    """Whether all that was trained was trained by the paper's schedule to its end."""
    return all(each.kind == "paper" and each.complete for each in trained(manifest, *sides))


def trained(manifest: Manifest, *sides: Result) -> List[Result]:
    return [each for each in sides if not of_counts(manifest, each)]


def of_counts(manifest: Manifest, *sides: Result) -> bool:
    """Whether one is a model of counts, which is made without training and without chance."""
    return any(manifest.runs[each.run].schedule.script for each in sides)


def same_seed(manifest: Manifest, one: Result, other: Result) -> bool:
    """Whether the models differ, but not the seed; a model of counts is the same with every one."""
    return one.seed == other.seed or of_counts(manifest, one, other)


def by_seed(pairs: List[Pair]) -> List[Dict[int, Result]]:
    return [{result.seed: result for result in side} for side in zip(*pairs)]


def agrees(claim: Dict[str, Any], one: float, other: float, lower: bool) -> bool:
    """Whether two numbers are as the claim says: by its sign *one* better, or that or near *other*, or (without a
    sign) just near.

    Args:
        lower: whether the lower number is the better.
    """
    tolerant = signed(claim)
    tolerance = claim.get("within", EQUAL if tolerant else None)
    if tolerance is not None and math.isfinite(other) and abs(one - other) <= tolerance * abs(other):
        return True
    return not is_near(claim) and (one < other if lower else one > other)


def signed(claim: Dict[str, Any]) -> bool:
    return any(sign in claim["text"] for sign in OR_EQUAL)


def is_near(claim: Dict[str, Any]) -> bool:
    """Whether it says no more than that two numbers are near each other."""
    return "within" in claim and not signed(claim)


def in_words(holds: bool, held: int, count: int, paired: bool, what: str) -> str:
    said = "holds" if holds else "does not hold"
    if not paired:
        return f"{said}, means of different {what}s"
    mixed = " in the mean" if held != (count if holds else 0) else ""
    return f"{said}{mixed}, {held} of {count} {what}{'s' * (count > 1)}"


def why_open(results: Results, claim: Dict[str, Any], better: Optional[Measured], worse: Optional[Measured]) -> str:
    missing = [claim[name] for name, each in (("better", better), ("worse", worse)) if each is None]
    if not missing:
        seen = all(any(numbers(claim, each, ()) for each in results.of(claim[name])) for name in ("better", "worse"))
        if "epochs" in claim and not seen:
            return "no validation after " + ("the first epoch" if claim["epochs"] == "first" else "several epochs")
        return "never trained alike"
    if missing[0] == claim["better"] and results.shown(missing[0]):
        return f"`{missing[0]}` not scored with `{' '.join(claim['evaluate'])}`"
    return "not measured" if len(missing) == 2 else f"`{missing[0]}` not measured"
