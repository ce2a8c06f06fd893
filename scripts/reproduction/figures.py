"""The papers' figures, drawn from what scripts/reproduce.py measured, as PNG and SVG.

A figure of curves draws one kind of schedule, the one by which most of its runs were measured, and says so in its
title; a sweep one for each line (or lines with a point in common), with either complete trainings only or partial ones
only, as its points are compared.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from outputs import whole
from reproduction.manifest import KINDS, ROOT, Manifest, Row, runs_of
from reproduction.results import Measured, Results, measured, rank

FOLDER = Path("results") / "figures"
NAMES = {
    "ppl": "perplexity", "bpc": "bits per character", "upos_accuracy": "UPOS accuracy, %",
    "label_accuracy": "right labels, %", "seconds": "time of an update, ratio", "valid": "validation",
    "train": "training",
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """What a figure can show.

    Attributes:
        drawn: by run, in the figure's order.
        other: runs that were measured otherwise than *drawn* and so are left out.
        missing: runs that were not measured.
    """

    figure: Dict[str, Any]
    metric: str
    drawn: Dict[str, Measured]
    other: List[str]
    missing: List[str]


def plan(manifest: Manifest, results: Results, figure: Dict[str, Any]) -> Optional[Drawing]:
    """``None`` where none of its runs was measured, or no two of a sweep's line."""
    runs = list(dict.fromkeys(runs_of(figure)))
    metric = manifest.runs[runs[0]].schedule.metric
    metric = figure.get("metric", metric) if figure["kind"] == "curves" else metric
    lines = [runs] if figure["kind"] == "curves" else joined([run for _, run in s["points"]] for s in figure["series"])
    found = [alike(results, figure, metric, line) for line in lines]
    if not any(found) or (figure["kind"] == "sweep" and max(map(len, found)) < 2):
        return None
    drawn = {run: each[run] for run in runs for each in found if run in each}  # in one of them
    measured_runs = {run for run in runs if results.of(run)}
    other = [run for run in runs if run in measured_runs and run not in drawn]
    return Drawing(figure, metric, drawn, other, [run for run in runs if run not in measured_runs])


def joined(lines: Iterable[List[str]]) -> List[List[str]]:
    """Those with a run in common as one."""
    found: List[List[str]] = []
    for line in lines:
        apart = [each for each in found if not set(each) & set(line)]
        together = [run for each in found if each not in apart for run in each]
        found = [*apart, list(dict.fromkeys([*together, *line]))]
    return found


def alike(results: Results, figure: Dict[str, Any], metric: str, runs: Sequence[str]) -> Dict[str, Measured]:
    """Of runs that stand beside each other those measured by one kind of schedule: that by which most are."""
    groups: Dict[Tuple[str, bool], Dict[str, Measured]] = {}
    for run in runs:
        for kind in KINDS:
            if figure["kind"] == "curves":
                found = furthest(results, figure.get("subset", "valid"), metric, run, kind)
            else:
                found = results.shown(run, kind=kind)
            if found:
                complete = figure["kind"] == "curves" or found.complete
                groups.setdefault((kind, complete), {})[run] = found
    if not groups:
        return {}
    best = max(groups, key=lambda each: (len(groups[each]), each[1], sum(one.share for one in groups[each].values())))
    return groups[best]


def furthest(results: Results, subset: str, metric: str, run: str, kind: str) -> Optional[Measured]:
    """The furthest training that has a curve; of several seeds the first."""
    able = [each for each in results.of(run, kind) if each.points(subset, metric)]
    return measured([max(able, key=rank)]) if able else None


# ---- words -----------------------------------------------------------------------------------------------------------


def title(manifest: Manifest, drawing: Drawing) -> str:
    figure = drawing.figure
    return f"{figure['paper']} {figure['figure']}: {subject(figure)} ({budget(manifest, drawing)})"


def subject(figure: Dict[str, Any]) -> str:
    """Its title without paper and number."""
    return figure["title"].removeprefix(f"{figure['paper']} {figure['figure']}: ")


def budget(manifest: Manifest, drawing: Drawing) -> str:
    """``short schedule, 3 of 30 epochs``; a range where the runs differ, one after the other where the kinds do."""
    if drawing.metric == "seconds":
        return "timed side by side"
    kinds = {kind: [each for each in drawing.drawn.values() if each.kind == kind] for kind in KINDS}
    return "; ".join(budget_of(manifest, kind, found) for kind, found in kinds.items() if found)


def budget_of(manifest: Manifest, kind: str, all_measured: Sequence[Measured]) -> str:
    name = "the paper's schedule" if kind == "paper" else f"{kind} schedule"
    if all(each.full for each in all_measured):
        return name
    trained = [result for each in all_measured for result in each.results]
    lengths = [manifest.runs[result.run].schedule for result in trained]
    partial = "" if all(each.complete for each in all_measured) else ", partial"
    for unit in ("epochs", "updates"):
        whole = [getattr(length, unit) for length in lengths]
        if all(whole):
            return f"{name}, {extent([getattr(each, unit) for each in trained])} of {extent(whole)} {unit}{partial}"
    return f"{name}, {extent([100 * result.share for result in trained])} %{partial}"


def extent(numbers: Sequence[float]) -> str:
    """``4``, ``3–4`` or ``3.25–1,000``."""
    return "–".join(dict.fromkeys(plain(number) for number in (min(numbers), max(numbers))))


def amount(numbers: Sequence[float], unit: str) -> str:
    """``1 epoch`` or ``2–3 epochs``."""
    text = extent(numbers)
    return f"{text} {unit.removesuffix('s') if text == '1' else unit}"


def plain(number: float) -> str:
    """``4``, ``3.25`` or ``140,000``."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def names(manifest: Manifest, figure: Dict[str, Any]) -> Dict[str, str]:
    """What a legend calls the runs: their row in a table; if rows share a name with the column too, the table (or what
    the figure says for it) or the id."""
    rows = {}
    for row in sorted(manifest.rows, key=lambda row: (row.paper != figure["paper"], bool(row.evaluate))):
        rows.setdefault(row.run, row)
    runs = dict.fromkeys(runs_of(figure))
    for form in ("{row}", "{row}, {column}", "{row}, {column} ({table})", "{row} ({run})"):
        found = {run: form.format(**called(rows[run], figure)) if run in rows else run for run in runs}
        if len(set(found.values())) == len(found):
            break
    return found


def called(row: Row, figure: Dict[str, Any]) -> Dict[str, Any]:
    """A row's parts, with the figure's words for its table."""
    return {**vars(row), "table": figure.get("tables", {}).get(row.table, row.table)}


def published(manifest: Manifest, paper: str, run: str) -> Optional[float]:
    """What the paper has for a run, by its plain scoring."""
    rows = [row for row in manifest.rows if row.run == run and row.paper == paper and not row.evaluate]
    return next((row.published for row in rows if row.published is not None), None)


# ---- pictures --------------------------------------------------------------------------------------------------------


def picture(manifest: Manifest, drawing: Drawing):
    """The figure as matplotlib's ``Figure`` with one ``Axes``."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = page.add_subplot()
    (curves if drawing.figure["kind"] == "curves" else sweep)(axes, manifest, drawing)
    axes.set_title(title(manifest, drawing), fontsize=9, wrap=True)
    axes.grid(alpha=0.3)
    return page


def style(number: int) -> Dict[str, str]:
    return {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4]}


def curves(axes, manifest: Manifest, drawing: Drawing) -> None:
    """A line a run, the metric over the epochs."""
    from matplotlib.ticker import LogFormatter, MaxNLocator

    subset = drawing.figure.get("subset", "valid")
    labels = names(manifest, drawing.figure)
    for number, (run, found) in enumerate(drawing.drawn.items()):
        points = [point for point in found.results[0].points(subset, drawing.metric) if math.isfinite(point[1])]
        axes.plot(*(zip(*points) if points else ((), ())), marker="o", markersize=2, label=labels[run], **style(number))
    axes.set(xlabel="epochs", ylabel=f"{NAMES.get(subset, subset)} {NAMES.get(drawing.metric, drawing.metric)}")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if subset == "train" and drawing.metric == "ppl":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    if len(drawing.drawn) > 1:
        axes.legend(fontsize=7, ncols=1 + len(drawing.drawn) // 12)


def sweep(axes, manifest: Manifest, drawing: Drawing) -> None:
    """A line a series, the test score over x, and how far trained where lines differ; it breaks at points that were not
    measured. Hollow: what the paper has."""
    from matplotlib.lines import Line2D

    figure, any_published = drawing.figure, False
    for number, series in enumerate(figure["series"]):
        points = sorted(series["points"])
        ours = broken([(x, drawing.drawn[run].mean if run in drawing.drawn else math.nan) for x, run in points])
        theirs = [(x, published(manifest, figure["paper"], run)) for x, run in points]
        theirs = [(x, y) for x, y in theirs if y is not None]
        if ours:
            runs = {run: drawing.drawn[run] for _, run in points if run in drawing.drawn}
            trained = budget(manifest, replace(drawing, drawn=runs))
            label = series["label"] if trained == budget(manifest, drawing) else f"{series['label']} ({trained})"
            axes.plot(*zip(*ours), marker="o", markersize=4, label=label, **style(number))
        if theirs:
            any_published = True
            label = None if ours else f"{series['label']} (published)"
            axes.plot(*zip(*theirs), "o", markersize=7, color=f"C{number % 10}", markerfacecolor="none", label=label)
    values = [x for series in figure["series"] for x, _ in series["points"]]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    name = NAMES.get(drawing.metric, drawing.metric)
    axes.set(xlabel=figure.get("x", ""), ylabel=name if drawing.metric == "seconds" else f"test {name}")
    hollow = Line2D([], [], marker="o", linestyle="none", color="black", markerfacecolor="none", label="published")
    axes.legend(handles=[*axes.get_legend_handles_labels()[0], *[hollow] * any_published], fontsize=7)


def broken(points: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """From the first to the last that is known; NaN, where a line breaks, for what is not, or diverged."""
    known = [place for place, (_, y) in enumerate(points) if math.isfinite(y)]
    return [(x, y if math.isfinite(y) else math.nan) for x, y in points[known[0] : known[-1] + 1]] if known else []


def draw(manifest: Manifest, results: Results, folder: Path = ROOT / FOLDER) -> List[Path]:
    """Write every figure that has a measured run; ``ImportError`` without matplotlib.

    Returns:
        the files, a PNG and an SVG of each, the same bytes for the same results.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq lets everybody log everything
    import matplotlib

    written = []
    for figure in manifest.figures:
        drawing = plan(manifest, results, figure)
        if drawing is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        files = folder / f"{figure['id']}.png", folder / f"{figure['id']}.svg"
        with matplotlib.rc_context({"svg.hashsalt": figure["id"]}):
            page = picture(manifest, drawing)
            for file, how in zip(files, ({"dpi": 120, "metadata": {"Software": None}},
                                         {"metadata": {"Date": None, "Creator": None}})):  # fmt: skip
                with whole(file) as part:
                    page.savefig(part, format=file.suffix[1:], **how)
        written += files
    return written
