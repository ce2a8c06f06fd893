"""Charts of what scripts/benchmark.py saved, as PNG and SVG."""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from typing import Dict, List

from benchmarking.results import Results, Spread, judge, layer_tokens, rate

MATPLOTLIB_MISSING = "no chart: matplotlib is not installed: pip install 'rntn-plugins[plots]'"


def grouped_bars(axes, groups: Dict[str, Dict[str, Spread]], marks: Dict[str, float], label: str) -> None:
    """Horizontal bars with whiskers for the spread, a line for each group's *mark*."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    colours = {name: f"C{number % 10}" for number, name in enumerate(names)} | {"met": "tab:green", "missed": "tab:red"}
    height, position, ticks = 0.8, 0.0, []
    for group, bars in groups.items():
        first = position
        for name, numbers in bars.items():
            error = [[numbers.median - numbers.low], [numbers.high - numbers.median]]
            axes.barh(position, numbers.median, height, xerr=error, color=colours[name], capsize=2)
            position += height
        ticks.append((first + position - height) / 2)
        if group in marks:
            axes.plot([marks[group]] * 2, [first - height / 2, position - height / 2], color="black", linewidth=2)
        position += 0.6
    axes.set_yticks(ticks, list(groups), fontsize=8)
    axes.invert_yaxis()
    handles = [axes.barh(0, 0, color=colours[name]) for name in names]
    if marks:
        handles, names = [*handles, axes.plot([], [], color="black")[0]], [*names, "floor"]
    axes.legend(handles, names, fontsize=8)
    axes.set(xlabel=label, xscale="log")
    axes.grid(axis="x", alpha=0.3)


def bar_figure(pyplot, results: Results):
    """Tokens per second of every contender; for the bars, how far on the right side of each requirement."""
    groups: Dict[str, Dict[str, Spread]] = {}
    marks: Dict[str, float] = {}
    if "bars" in results.data:
        label = "measured against required (right of 1: met)"
        for bar in results.data["bars"]:
            numbers, met = judge(results, bar)
            if numbers and bar["limit"] is not None and min(numbers) > 0:
                margin = [value / bar["limit"] if bar["least"] else bar["limit"] / value for value in numbers]
                groups[bar["what"]] = {"met" if met else "missed": Spread(margin[0], *sorted(margin[1:]))}
    else:
        label = "tokens per second (forward and backward)" if results.data["what"] == "cells" else "tokens per second"
        for group in results.groups:
            for role in results.roles(group):
                entry, seconds = results.entries[group, role], results.values(group, role)
                if seconds:
                    groups.setdefault(group, {})[entry["kind"]] = rate(layer_tokens(entry), seconds)
                    floor = results.floor(group)
                    if floor:
                        marks[group] = layer_tokens(entry) / statistics.median(floor.values())
    bars = sum(map(len, groups.values()))
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.2 * bars + 0.15 * len(groups)), layout="constrained")
    grouped_bars(axes, groups, marks, label)
    if "bars" in results.data:
        axes.axvline(1, color="black", linewidth=1)
    return figure


def line_figure(pyplot, results: Results):
    """Milliseconds over H, K, N, T and B: ours drawn through, the naive loop dashed."""
    points = results.data["points"]
    names, bases = (list(dict.fromkeys(point[key] for point in points)) for key in ("axis", "base"))
    figure, grid = pyplot.subplots(1, len(names), figsize=(4 * len(names), 4.5), layout="constrained", squeeze=False)
    for axes, name in zip(grid[0], names):
        for number, base in enumerate(bases):
            for role, style in (("ours", "-"), ("naive", "--")):
                line = []
                for point in points:
                    seconds = results.values(point["group"], role)
                    if (point["axis"], point["base"]) == (name, base) and seconds:
                        line.append((point["value"], 1000 * statistics.median(seconds.values())))
                if line:
                    label = base if role == "ours" else None
                    axes.plot(*zip(*line), style, marker="o", markersize=3, color=f"C{number % 10}", label=label)
        axes.set(xlabel=name, xscale="log", yscale="log", ylabel="ms, forward and backward (dashed: naive loop)")
        values = sorted({point["value"] for point in points if point["axis"] == name})
        axes.set_xticks(values, values, fontsize=7)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    return figure


def draw(data: dict, stem: Path) -> List[Path]:
    """Write the chart as PNG and SVG; ``ImportError`` without matplotlib."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq lets everybody log everything
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = (line_figure if data["what"] == "scaling" else bar_figure)(pyplot, Results(data))
    written = [stem.with_suffix(ending) for ending in (".png", ".svg")]
    for file in written:
        figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return written
