"""What was not trained as long as in the papers, and how long that would take: in RESULTS.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from reproduction import tables
from reproduction.manifest import ROOT, Manifest, Run
from reproduction.results import Result, Results
from reproduction.texts import OUTSTANDING


def section(manifest: Manifest, results: Results, order: Sequence[str], base: Path) -> Iterator[str]:
    """Heading, text, table, and what has no result at all; nothing where nothing is left.

    Args:
        order: of the papers.
        base: the folder that links start from.
    """
    left = outstanding(manifest, results)
    measured = {place: [run for run in runs if longest(results, run)] for place, runs in left.items()}
    places = sorted(filter(measured.get, measured), key=lambda each: (order.index(each[0]), tables.numbered(each[1])))
    lines = [line(*place, measured[place], results) for place in places]
    nothing = [run for place, runs in left.items() for run in runs if run not in measured[place]]
    if lines:
        yield "## What was not trained to its end"
        yield OUTSTANDING
        yield tables.markdown(["paper", "table", "models", "hours each", "hours of all", "timed on"], lines)
    if results.all and nothing:
        yield without(nothing, base)


def outstanding(manifest: Manifest, results: Results) -> Dict[Tuple[str, str], List[Run]]:
    """By paper and table the runs, each once, that have no result of the paper's whole schedule; what is counted or
    timed needs none."""
    found: Dict[Tuple[str, str], List[Run]] = {}
    seen = set()
    for row in manifest.rows:
        run, whole = manifest.runs[row.run], results.shown(row.run, row.evaluate, "paper")
        if row.aside or run.untrained or run.id in seen or (whole is not None and whole.complete):
            continue
        seen.add(run.id)
        found.setdefault((row.paper, row.table), []).append(run)
    return found


def longest(results: Results, run: Run) -> Optional[Result]:
    """The result of most updates whose time is known, on a CPU if there is one."""
    timed = [each for each in results.of(run.id) if each.updates and each.data.get("seconds", {}).get("train")]
    return max(timed, key=lambda each: (not gpu(each), each.updates), default=None)


def hours(result: Result, run: Run) -> float:
    """How long the paper's schedule would take it."""
    paper = run.schedule
    updates = paper.updates or paper.epochs * result.updates / result.epochs
    return updates * result.data["seconds"]["train"] / result.updates / 3600


def line(paper: str, table: str, runs: Sequence[Run], results: Results) -> List[str]:
    timed = [longest(results, run) for run in runs]
    each = [hours(result, run) for result, run in zip(timed, runs)]
    low, high = (shortly(end(each)) for end in (min, max))
    counts = Counter("GPU" if gpu(one) else "CPU" for one in timed)
    on = " and ".join(f"{what} ({counts[what]})" for what in sorted(counts))
    span = low if low == high else f"{low}–{high}"
    return [paper, table.removeprefix("Table "), str(len(runs)), span, shortly(sum(each)), on]


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
