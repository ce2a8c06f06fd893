"""What was not trained as long as in the papers, and how long that would take: in RESULTS.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from reproduction import tables
from reproduction.manifest import ROOT, Manifest, Run, grouped
from reproduction.results import Result, Results
from reproduction.texts import OUTSTANDING

#: flags that make an update take longer
COSTLY = ("--fixed-length",)


def section(manifest: Manifest, results: Results, order: Sequence[str], base: Path) -> Iterator[str]:
    """Heading, text, table, and what has no result at all; nothing where nothing is left.

    Args:
        order: of the papers.
        base: the folder that links start from.
    """
    left = outstanding(manifest, results)
    begun = {place: [run for run in runs if results.of(run.id)] for place, runs in left.items()}
    places = sorted(filter(begun.get, begun), key=lambda each: (order.index(each[0]), tables.numbered(each[1])))
    lines = [line(*place, begun[place], results) for place in places]
    nothing = [run for place, runs in left.items() for run in runs if run not in begun[place]]
    if results.all and (lines or nothing):
        yield "## What was not trained to its end"
        if lines:
            yield OUTSTANDING
            head = ["paper", "table", "models", "hours each", "hours of all", "timed on", "without"]
            yield tables.markdown(head, lines)
        if nothing:
            yield without(nothing, base)


def outstanding(manifest: Manifest, results: Results) -> Dict[Tuple[str, str], List[Run]]:
    """By paper and table the runs, each once, that no training took to the end of the paper's schedule, or until it
    diverged; what is counted or timed needs none."""
    found: Dict[Tuple[str, str], List[Run]] = {}
    seen = set()
    for row in manifest.rows:
        run = manifest.runs[row.run]
        ended = any(each.complete or each.diverged for each in results.of(run.id, "paper"))
        if row.aside or run.untrained or run.id in seen or ended:
            continue
        seen.add(run.id)
        found.setdefault((row.paper, row.table), []).append(run)
    return found


def longest(results: Results, run: Run) -> Optional[Result]:
    """The result of most updates whose time is known, on a CPU if there is one."""
    timed = [each for each in results.of(run.id) if each.updates and each.epochs and seconds(each)]
    return max(timed, key=lambda each: (not gpu(each), each.updates), default=None)


def seconds(result: Result) -> float:
    """What its training took; 0 if that is not known."""
    return result.data.get("seconds", {}).get("train") or 0.0


def hours(result: Result, run: Run) -> float:
    """How long the paper's schedule would take it."""
    paper = run.schedule
    updates = paper.updates or paper.epochs * result.updates / result.epochs
    return updates * seconds(result) / result.updates / 3600


def line(paper: str, table: str, runs: Sequence[Run], results: Results) -> List[str]:
    timed = [(run, found) for run, found in ((run, longest(results, run)) for run in runs) if found]
    each = [hours(found, run) for run, found in timed]
    low, high = (shortly(end(each)) if each else "" for end in (min, max))
    counts = Counter("GPU" if gpu(found) else "CPU" for _, found in timed)
    on = " and ".join(f"{what} ({counts[what]})" for what in sorted(counts))
    span = low if low == high else f"{low}–{high}"
    less = dict.fromkeys(flag for run, found in timed for flag in cheaper(run, found))
    return [paper, table.removeprefix("Table "), str(len(runs)), span, shortly(sum(each)) if each else "", on,
            tables.code(list(less))]  # fmt: skip


def cheaper(run: Run, result: Result) -> List[str]:
    """The flags of the paper's schedule without which it was timed, and an update takes less."""
    form = run.schedule.of(result.kind)
    return [flag for flag in grouped(run.schedule.train) if flag not in grouped(form.train) and flag.startswith(COSTLY)]


def shortly(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def gpu(result: Result) -> Optional[str]:
    return result.data.get("environment", {}).get("gpu")


def without(runs: Sequence[Run], base: Path) -> str:
    """``No result at all: 12 models on `text8` ([recipe](...)).``"""
    said = []
    for (data, recipe), count in Counter((run.schedule.data, run.schedule.recipe) for run in runs).items():
        page = tables.relative(ROOT / "tasks" / recipe / "README.md", base)
        said.append(f"{count} model{'s' * (count > 1)} on `{data}` ([recipe]({page}))")
    return f"No result at all: {', '.join(said)}."
