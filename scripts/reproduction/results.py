"""Results that scripts/reproduce.py wrote: reading them, and which of them stand for a run.

A result is ``results/rows/<run>.<kind>.seed<N>.json``. Its *kind* is ``paper`` (the paper's schedule) or that of a
shorter form in ``tasks/*/rows.toml``, its *share* how much of the paper's schedule was trained, 0 to 1.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from reproduction.manifest import KINDS, METRICS, ROOT, Manifest, Refused, Run, grouped, wanted
from reproduction.training import PRECISIONS

ROWS = ROOT / "results" / "rows"
EPOCHS = 100_000  # at most
#: flags that leave a training what it is
SAME_RESULTS = ("--batch-size-valid",)


@dataclass(frozen=True)
class Result:
    """A run trained once.

    Attributes:
        complete: the schedule, or the paper's own rule of stopping, came to its end.
        share: of the paper's schedule.
        test: by the flags of the scoring, joined by spaces.
        data: the whole of the file.
    """

    file: Path
    run: str
    kind: str
    seed: int
    metric: str
    complete: bool
    stopped: str
    epochs: float
    updates: int
    share: float
    test: Dict[str, Dict[str, Any]]
    curve: List[Dict[str, Any]]
    data: Dict[str, Any]

    def value(self, evaluate: Sequence[str] = ()) -> Optional[float]:
        """The test score, ``None`` where that was not scored; infinitely bad where training diverged."""
        value = self.test.get(" ".join(evaluate), {}).get(key_of(self.metric))
        return None if value is None else self.bad(value)

    def bad(self, value: float) -> float:
        """*value*, or, of a training that diverged, the worst there is."""
        return (math.inf if METRICS[self.metric][1] else -math.inf) if math.isnan(value) else value

    def points(self, subset: str, metric: str) -> List[Tuple[float, float]]:
        """(epochs, value) of the curve; epochs are fractional, by the updates made. What an epoch had in training when
        it was stopped within gives way to the whole of it."""
        epoch = self.epochs / self.updates if self.updates else 0.0
        last = {point["epoch"]: point for point in self.curve if "train" in point}
        points = [point for point in self.curve if subset != "train" or point is last.get(point["epoch"])]
        found = [(point["updates"] * epoch, point.get(subset, {}).get(metric)) for point in points]
        return [(place, value) for place, value in found if value is not None]

    @property
    def validations(self) -> Dict[int, float]:
        """By epoch, of those trained to their end: what validation said of the metric (:func:`validated`)."""
        epoch, key = self.epochs / max(self.updates, 1), validated(self.metric)
        ends = [point for point in self.curve if point["updates"] * epoch > point["epoch"] - 0.01]
        return {each["epoch"]: self.bad(each["valid"][key]) for each in ends if key in each.get("valid", {})}

    @property
    def best(self) -> Optional[float]:
        """After how many epochs the checkpoint that is scored was written, as fairseq chooses it by what the training
        was told to choose by: the last of equals, and whatever follows a NaN; ``None`` if that is not known."""
        flags = dict(re.split("[ =]", each + " ", maxsplit=1) for each in grouped(self.command))
        key = flags.get("--best-checkpoint-metric", "loss").strip()
        better = max if "--maximize-best-checkpoint-metric" in flags else min
        points = self.points("valid", key) or self.points("valid", "ppl" if key == "loss" else key)
        best = found = None
        for place, value in points:
            best = value if best is None else better(value, best)  # in this order: NaN, then what follows it
            found = place if value == best else found
        return found

    @property
    def diverged(self) -> bool:
        """Whether training undid what it had done: the last validation is not finite, or more than ten times the best,
        of what is better the lower (a share of right labels has a worst, about which it may waver)."""
        points = [value for _, value in self.points("valid", validated(self.metric))]
        if not points or not METRICS[self.metric][1]:
            return False
        known = [value for value in points if math.isfinite(value)]
        return not math.isfinite(points[-1]) or points[-1] > 10 * min(known)

    @property
    def interrupted(self) -> bool:
        """Whether several calls trained it. Older files do not tell them: it took longer then than from the start of
        the last one to its end."""
        if "calls" in self.data:
            begins = [*(call["updates"] for call in self.data["calls"]), self.updates]
            return sum(end > begin for begin, end in zip(begins, begins[1:])) > 1
        train, ends = self.data.get("seconds", {}).get("train"), [self.data.get(key) for key in ("started", "finished")]
        if not train or not all(ends):
            return False
        started, finished = map(datetime.datetime.fromisoformat, ends)
        return (finished - started).total_seconds() < train

    @property
    def precision(self) -> Optional[str]:
        return precision(self.data)

    @property
    def unknown_calls(self) -> bool:
        """Whether of some of them commit and machine are not known."""
        calls = self.data.get("calls")
        return self.interrupted if calls is None else any(call["commit"] is None for call in calls)

    @property
    def command(self) -> List[str]:
        return self.data.get("commands", {}).get("train", [])

    def unsaid(self, run: Run) -> List[str]:
        """Flags that the command that trained it leaves out, as they were the default then."""
        return [flag for flag in grouped(run.once_default) if self.command and flag.split()[0] not in self.command]

    def lacking(self, run: Run) -> List[str]:
        """Flags that the manifest has for the run now, and the command that trained it had not, but for those that say
        only how results are computed."""
        if not self.command:
            return []
        schedule = run.schedule.of(self.kind)
        if self.metric == "seconds":  # scripts/benchmark.py --cells REFERENCE ARCH ...
            cells = {cell for each in grouped(self.command) if each.startswith("--cells ") for cell in each.split()[1:]}
            text = [] if "--data" in self.command else [f"--data data-bin/{schedule.data}"]  # but one that is made up
            return (
                text
                + [cell for cell in (schedule.train[0], run.arch) if cell not in cells]
                + [flag for flag in grouped(schedule.train[1:]) if flag not in grouped(self.command)]
            )
        had = grouped(self.command) + self.unsaid(run)
        return [flag for flag in wanted(run, self.kind) if flag not in had and flag.split()[0] not in SAME_RESULTS]


@dataclass(frozen=True)
class Measured:
    """Results of one run that differ by their seeds, in ascending order of these, and a value of each."""

    results: Tuple[Result, ...]
    values: Tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def kind(self) -> str:
        return self.results[0].kind

    @property
    def share(self) -> float:
        return min(result.share for result in self.results)

    @property
    def complete(self) -> bool:
        return all(result.complete for result in self.results)

    @property
    def diverged(self) -> bool:
        return any(result.diverged for result in self.results)

    @property
    def full(self) -> bool:
        """Whether it was trained as and as long as in the paper; a measurement of time is the same in every kind."""
        same = self.kind == "paper" or self.results[0].metric == "seconds"
        return same and self.complete and self.share > 0.999

    @property
    def spread(self) -> Optional[Tuple[float, float]]:
        """The lowest and highest: of the seeds, or else of the rounds of a measurement of time."""
        if len(self.values) > 1:
            return min(self.values), max(self.values)
        scores = self.results[0].test.get("", {})
        return (scores["low"], scores["high"]) if {"low", "high"} <= scores.keys() else None


class Results:
    """All results of a folder.

    Raises:
        Refused: a file that is no result, or in the folder's place; the message names it.
    """

    def __init__(self, folder: Path = ROWS) -> None:
        if folder.exists() and not folder.is_dir():
            raise Refused(f"{folder} is no folder")
        self.all = [read(file) for file in sorted(folder.glob("*.json"))]

    def hold_against(self, manifest: Manifest) -> None:
        """Take how long they trained as shares of the manifest's schedules as they are now.

        Raises:
            Refused: a result of a run that the manifest has not, or has with another metric, or not in this kind.
        """
        for result in self.all:
            run = manifest.runs.get(result.run)
            if run is None:
                raise Refused(f"{result.file}: unknown run {result.run!r}: no tasks/*/rows.toml has it")
            if run.schedule.metric != result.metric:
                raise Refused(f"{result.file}: metric {result.metric!r}, but {run.id!r} has {run.schedule.metric!r}")
            if result.kind not in run.schedule.kinds:
                raise Refused(f"{result.file}: the schedule of {run.id!r} has no {result.kind} form")
        self.all = [by_now(result, manifest.runs[result.run]) for result in self.all]

    def of(self, run: str, kind: Optional[str] = None) -> List[Result]:
        return [each for each in self.all if each.run == run and kind in (None, each.kind)]

    def shown(self, run: str, evaluate: Sequence[str] = (), kind: Optional[str] = None) -> Optional[Measured]:
        """What stands for a run: of each seed the best, and of these all that were trained like the best one."""
        scored = [each for each in self.of(run, kind) if each.value(evaluate) is not None]
        seeds = {each.seed: each for each in sorted(scored, key=rank)}
        best = [seeds[seed] for seed in sorted(seeds)]
        return measured([each for each in best if alike(each, max(best, key=rank))], evaluate)


def by_now(result: Result, run: Run) -> Result:
    """A result beside the manifest's schedule, which may have become another length since."""
    if run.untrained or (result.stopped == "rule" and result.kind == "paper"):
        return result
    of_paper, of_schedule = (
        round(schedule.share(result.epochs, result.updates), 6)
        for schedule in (run.schedule, run.schedule.of(result.kind))
    )
    if result.stopped == "rule":
        of_schedule = 1.0
    complete = result.complete and of_schedule > 0.999
    data = {**result.data, "of_paper": of_paper, "of_schedule": of_schedule, "complete": complete}
    return replace(result, share=of_paper, complete=complete, data=data)


def measured(results: Sequence[Result], evaluate: Sequence[str] = ()) -> Optional[Measured]:
    if not results:
        return None
    return Measured(tuple(results), tuple(result.value(evaluate) for result in results))


def rank(result: Result) -> tuple:
    """What is trained further is better; then what came to its end; then the paper's schedule."""
    return result.share, result.complete, result.kind == "paper"


def precision(data: Dict[str, Any]) -> Optional[str]:
    """Of a result's products in training (``--matmul-precision``), the least that a call that made updates had and by
    which its machine rounds; ``None``: none was rounded."""
    calls = data.get("calls", [])
    ends = [*(call["updates"] for call in calls[1:]), data["updates"]]
    trained = [call for call, end in zip(calls, ends) if end > call["updates"]]
    where = [each.get("environment", {}) for each in (data, *trained)]
    had = [each.get("matmul_precision") for each in where if each.get("rounds", True)]
    return max((each for each in had if each not in (None, PRECISIONS[0])), key=PRECISIONS.index, default=None)


def near(one: float, other: float) -> bool:
    """Equal within 1 %."""
    return abs(one - other) <= 0.01 * max(abs(one), abs(other))


def ruled(one: Result, other: Result) -> bool:
    """Whether both came to their end, one at least by the rule, which may be sooner with another seed or model."""
    return one.complete and other.complete and "rule" in (one.stopped, other.stopped)


def alike(one: Result, other: Result) -> bool:
    """Whether two results of a run may be averaged: the same kind of schedule, and the same share of it."""
    return one.kind == other.kind and (near(one.share, other.share) or ruled(one, other))


def key_of(metric: str) -> str:
    return "ratio" if metric == "seconds" else metric


def validated(metric: str) -> str:
    """What validation has of a metric; of tags fairseq's log has the labels that are right."""
    return {"upos_accuracy": "label_accuracy"}.get(metric, key_of(metric))


def read(file: Path) -> Result:
    """
    Raises:
        Refused: it is no result; the message is one line with the file's name.
    """
    try:
        return understood(file, json.loads(file.read_text(encoding="utf-8")))
    except KeyError as error:
        raise Refused(f"{file}: no result of scripts/reproduce.py: {error} is missing") from None
    except RecursionError:
        raise Refused(f"{file}: no result of scripts/reproduce.py: nested too deeply") from None
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise Refused(f"{file}: no result of scripts/reproduce.py: {error}") from None


def numbers_of(result: Result) -> Iterator[Tuple[str, Any]]:
    """All that has to be a number, and what it is."""
    data, where = result.data, result.data.get("environment", {})
    known = [("parameters", data.get("parameters")), *((name, where.get(name)) for name in ("cores", "threads"))]
    yield from ((name, data[name]) for name in ("seed", "updates"))
    yield from ((name, value) for name, value in known if value is not None)
    for scores in (result.test[""], *result.test.values()):
        yield "test", scores[key_of(result.metric)]
    for point in result.curve:
        yield from ((f"{name} of the curve", point[name]) for name in ("epoch", "updates"))
        for subset in ("train", "valid"):
            yield from ((subset, value) for value in dict(point.get(subset, {})).values())


def understood(file: Path, data: Any) -> Result:
    """A file's content; ``KeyError``, ``TypeError`` or ``ValueError`` if it is no result."""
    if not isinstance(data, dict):
        raise ValueError("not an object")
    if data["schema"] != 1:
        raise ValueError(f"schema {data['schema']!r} is unknown (known: 1)")
    for name, known in (("schedule", KINDS), ("metric", METRICS)):
        if data[name] not in known:
            raise ValueError(f"{name} {data[name]!r} is none of {', '.join(known)}")
    where, commands = data.get("environment", {}), data.get("commands", {})
    versions = where.get("versions", {})
    text = data.get("data", {})
    hashes = text.get("sha256", {}) if isinstance(text, dict) else None
    if not all(isinstance(part, dict) for part in (where, versions, commands, hashes)):
        raise ValueError("environment, versions, commands or the data's sha256 are no objects")
    result = Result(
        file, data["run"], data["schedule"], int(data["seed"]), data["metric"], data["complete"],
        data["stopped"], float(data["epochs"]), int(data["updates"]), float(data["of_paper"]), data["test"],
        data.get("curve", []), data,
    )  # fmt: skip
    if not isinstance(result.complete, bool):
        raise ValueError(f"complete: {result.complete!r} is neither true nor false")
    for name in ("seed", "epochs", "updates", "of_paper", "of_schedule"):
        value = data[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"{name}: {value!r} is no number from 0")
    if result.epochs > EPOCHS:
        raise ValueError(f"epochs: {result.epochs!r}, and no training has more than {EPOCHS:,}")
    if not isinstance(data.get("calls", []), list):
        raise ValueError("calls: no list")
    for name in ("seed", "updates"):
        if data[name] != int(data[name]):
            raise ValueError(f"{name}: {data[name]!r} is no whole number")
    for name in ("processor", "instructions", "gpu"):
        if not isinstance(where.get(name) or "", str):
            raise ValueError(f"{name} of the environment: {where[name]!r} is no text")
    for point in result.curve:
        if not all(isinstance(part, dict) for part in (point, point.get("train", {}), point.get("valid", {}))):
            raise ValueError("a point of the curve, or its train or valid, is no object")
        for name in ("epoch", "updates"):
            if type(point[name]) is not int or point[name] < 1:
                raise ValueError(f"{name} of the curve: {point[name]!r} is no whole number above 0")
    name = f"{result.run}.{result.kind}.seed{result.seed}.json"
    if file.name != name:
        raise ValueError(f"by its content it should be named {name}")
    for name, value in numbers_of(result):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}: {value!r} is no number")
        float(value)  # OverflowError: a whole number of hundreds of digits
    for call in data.get("calls", []):
        if type(call["updates"]) is not int or not isinstance(call["commit"] or "", str):
            raise ValueError("updates or commit of a call: no whole number, or no text")
    for each in (where, *(call.get("environment", {}) for call in data.get("calls", []))):
        if each.get("matmul_precision") not in (None, *PRECISIONS):
            raise ValueError(f"matmul_precision {each['matmul_precision']!r} is none of {', '.join(PRECISIONS)}")
    took = data.get("seconds", {}).get("train")
    if took is not None and (type(took) not in (int, float) or not 0 <= took < math.inf):
        raise ValueError(f"the seconds of the training are no number from 0: {took!r}")
    result.interrupted  # noqa: B018 (ValueError: started or finished is no time)
    if not (isinstance(result.command, list) and all(isinstance(word, str) for word in result.command)):
        raise ValueError("the command of the training is no list of words")
    return result
