"""What scripts/benchmark.py saved, as tables.

    python scripts/benchmark_report.py results/benchmarks/cells.json        # table, and the charts beside it anew

Numbers come from ``benchmarking/results.py``, the chart from ``benchmarking/charts.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Callable, List, Optional, Sequence

from benchmarking import charts
from benchmarking.results import Results, Spread, judge, layer_tokens, rate, spread
from outputs import reader_gone


def short(value: float) -> str:
    """Three digits or so."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def shown(numbers: Optional[Spread], scale: float = 1.0) -> str:
    if numbers is None:
        return "–"
    median, low, high = (short(number * scale) for number in numbers)
    return f"{median} ({low}–{high})" if low != high else median


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded to be read as it is."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)


def measured_rows(results: Results, own: Callable[[str, str], str]) -> List[List[str]]:
    """A row for every contender of every group, of those that ran or failed; *own*: the column before the last."""
    rows = []
    for group in results.groups:
        for role in results.roles(group):
            entry, seconds = results.entries[group, role], results.values(group, role)
            if not seconds:
                if results.state(group, role):
                    rows.append([group, entry["label"], results.state(group, role), "", "", "", "", ""])
                continue
            this, ours = (group, role), (group, "ours")
            compiling = max(results.values(group, role, "compile_seconds").values(), default=0)
            rows.append([
                group,
                entry["label"] + (f", compiled in {compiling:.0f} s" if compiling else ""),
                shown(rate(layer_tokens(entry), seconds)),
                shown(spread(list(seconds.values())), 1000),
                shown(spread(results.ratios((group, "naive"), this))),
                "" if role == results.ours(group) else shown(spread(results.ratios(this, ours))),
                own(group, role),
                shown(spread(list(results.values(group, role, "memory").values())), 2**-20),
            ])  # fmt: skip
    return rows


def cells_table(results: Results) -> str:
    gemm, copy = (spread(list(results.values("machine", "machine", field).values())) for field in ("gemm", "copy"))
    head = ["layer", "contender", "tokens/s", "ms", "× as fast as naive", "ours × as fast", "over the floor", "MiB"]
    rates = f"GEMM {shown(gemm, 1e-9)} Gflop/s, copy {shown(copy, 1e-9)} GB/s (read and written)"
    rows = measured_rows(results, lambda *this: shown(spread(results.ratios(this, (this[0], "floor")))))
    return f"{table(head, rows)}\n\n{rates}"


def updates_table(results: Results) -> str:
    head = ["training", "contender", "tokens/s", "ms an update", "× as fast as naive", "ours × as fast", "parameters",
            "MiB (process)"]  # fmt: skip

    def parameters(*this: str) -> str:
        return f"{next(iter(results.values(*this, 'parameters').values()), 0):,}"

    return table(head, measured_rows(results, parameters))


def generation_table(results: Results) -> str:
    """Tokens are counted as ``fairseq-generate`` does: one text for each of the batch, prefix and ``</s>`` included."""
    sizes = results.data["contenders"][0]["spec"]
    short_length, length = sizes["lengths"]
    head = ["generation", "contender", "parameters", f"tokens/s, {short_length} long", f"tokens/s, {length} long",
            f"a token, {length} / {short_length}", "ms a step", "over bare steps", "ours × as fast"]  # fmt: skip
    rows = []
    for (group, role), entry in results.entries.items():
        steps, batch, prefix = (entry["spec"][name] for name in ("steps", "batch", "prefix"))
        short_steps = prefix + short_length + 1
        seconds, short_seconds = (results.values(group, role, field) for field in ("seconds", "short_seconds"))
        if not seconds:
            rows.append([group, entry["label"], results.state(group, role), "", "", "", "", "", ""])
            continue
        ratios = results.within(group, role, "seconds", "short_seconds")
        rows.append([
            group, entry["label"], f"{next(iter(results.values(group, role, 'parameters').values())):,}",
            shown(rate(short_steps * batch, short_seconds)), shown(rate(steps * batch, seconds)),
            shown(spread(ratios), short_steps / steps), shown(spread(list(seconds.values())), 1000 / steps),
            shown(spread(results.within(group, role, "seconds", "step_seconds"))),
            "" if role == results.ours(group) else shown(spread(results.ratios((group, role), (group, "ours")))),
        ])  # fmt: skip
    what = f"prefix of {sizes['prefix']} tokens; tokens and steps: prefix, {short_length} or {length}, and </s>"
    return f"{table(head, rows)}\n\n{what}"


def scaling_table(results: Results) -> str:
    head = ["layer", "axis", "value", "tokens/s, ours", "ms, ours", "tokens/s, naive", "naive / ours", "MiB, ours"]
    rows = []
    for point in results.data["points"]:
        group = point["group"]
        ours, naive, entry = results.values(group, "ours"), results.values(group, "naive"), results.entry(group, "ours")
        if ours:
            rows.append([
                point["base"], point["axis"], str(point["value"]), shown(rate(layer_tokens(entry), ours)),
                shown(spread(list(ours.values())), 1000), shown(rate(layer_tokens(entry), naive)),
                shown(spread(results.ratios((group, "naive"), (group, "ours")))),
                shown(spread(list(results.values(group, "ours", "memory").values())), 2**-20),
            ])  # fmt: skip
    return table(head, rows)


def bars_table(results: Results) -> str:
    rows = []
    for bar in results.data["bars"]:
        numbers, met = judge(results, bar)
        limited = bar["limit"] is not None
        required = f"{'≥' if bar['least'] else '≤'} {bar['limit']:g}{'' if bar['bottom'] else ' s'}" if limited else ""
        verdict = "not measured" if numbers is None else "" if not limited else "met" if met else "missed"
        groups = [end[0] for end in (bar["top"], bar["bottom"]) if end and end[1] == "ours"]
        loops = numbers is not None and not all(map(results.has_kernel, groups))
        failures = [results.state(*end) for end in (bar["top"], bar["bottom"]) if end and end[1] != "floor"]
        note = next(filter(None, failures), "no kernel: the naive loop" if loops else "")
        rows.append([bar["what"], required, shown(numbers), verdict, note])
    return table(["what", "required", "measured", "", "note"], rows)


TABLES = {
    "cells": cells_table, "updates": updates_table, "generation": generation_table, "scaling": scaling_table,
    "bars": bars_table,
}  # fmt: skip


def render(data: dict) -> str:
    """The table, and what else a reader has to know of it."""
    notes = ["median (lowest–highest) of the rounds; ratios are taken within a round"]
    notes += ["in turns: a round's ratio is the median of those of turns beside each other"] * bool(
        data["arguments"].get("in_turns")
    )
    notes += ["--quick: tiny sizes, so these numbers say nothing of speed"] * bool(data["arguments"]["quick"])
    notes += ["interrupted: not all rounds were run"] * (not data["complete"])
    return "\n".join([TABLES[data["what"]](Results(data)), "", *notes])


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, or 2 after one line that says what is wrong."""
    parser = argparse.ArgumentParser(
        prog="benchmark_report", description="Table of saved measurements; the charts beside FILE are drawn anew."
    )
    parser.add_argument("results", metavar="FILE", help="JSON file that scripts/benchmark.py wrote")
    file = Path(parser.parse_args(arguments).results)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        table = render(data)
        try:
            drawn = " ".join(map(str, ["wrote", *charts.draw(data, file.with_suffix(""))]))
        except ImportError:
            drawn = charts.MATPLOTLIB_MISSING
        print(table, drawn, sep="\n", flush=True)
    except BrokenPipeError:  # less or head had enough
        reader_gone()
    except OSError as error:
        print(f"benchmark_report: error: cannot read {file}: {error.strerror}", file=sys.stderr)
        return 2
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        print(f"benchmark_report: error: {file} holds no results of scripts/benchmark.py", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
