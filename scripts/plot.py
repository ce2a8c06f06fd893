"""Convergence curves from fairseq's training logs.

    fairseq-train … | tee gru.log
    python scripts/plot.py gru.log gru_rntn.log --metric ppl --out curves.png

Reads the validation lines of logs in fairseq's ``simple``, ``tqdm`` and ``json`` formats (one run a file, resumed runs
appended) and draws the metric over the updates, one line a file. The ending of ``--out`` chooses PNG, SVG or PDF.
Needs matplotlib: ``pip install 'rntn-plugins[plots]'``.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import List, Tuple

from outputs import check_picture, told_apart

#: ends of the names of metrics that are better the higher
HIGHER = ("accuracy", "las", "uas", "bleu")


def validations(text: str, subset: str, metric: str) -> List[Tuple[int, float]]:
    """(updates, value) of every validation in a log, in order; a repeated one (a resumed run) counts once, the last.

    Raises:
        ValueError: a validation whose numbers are none; the message has the number of the line.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        as_json = re.search(rf"\| {re.escape(subset)} \| (\{{.*\}})", line)
        if as_json:
            try:
                entry = json.loads(as_json[1])
            except json.JSONDecodeError:
                raise ValueError(f"line {number}: a validation that is no JSON") from None
            updates, value = entry.get(f"{subset}_num_updates"), entry.get(f"{subset}_{metric}")
        elif f"| {subset} | epoch" in line:
            parts = dict(part.rsplit(" ", 1) for part in map(str.strip, line.split("|")) if " " in part)
            updates, value = parts.get("num_updates"), parts.get(metric)
        else:
            continue
        if updates is not None and value is not None:
            try:
                found[int(updates)] = float(value)
            except (OverflowError, TypeError, ValueError):
                raise ValueError(f"line {number}: num_updates {updates!r}, {metric} {value!r}: no numbers") from None
    return sorted(found.items())


def best(metric: str, points: List[Tuple[int, float]]) -> float:
    """The highest of what is better the higher, else the lowest; NaN alone is worse than any number."""
    found = [value for _, value in points if not math.isnan(value)] or [math.nan]
    return max(found) if metric.endswith(HIGHER) else min(found)


def names_of(logs: List[str]) -> List[str]:
    """What tells the logs apart: the file's name, or its folder's, or the whole path where it must be."""
    return told_apart(logs, lambda path: path.stem, lambda path: path.parent.name)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="plot", description=__doc__.splitlines()[0])
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="log of a training run; its name, or its folder's, is the legend"
    )
    parser.add_argument("--metric", default="ppl", help="ppl, loss, bpc, … (default: %(default)s)")
    parser.add_argument("--subset", default="valid", help="which validation subset (default: %(default)s)")
    parser.add_argument("--out", default="curves.png", metavar="FILE", help="picture to write (default: %(default)s)")
    args = parser.parse_args(arguments)
    try:
        check_picture("--out", args.out)
    except ValueError as error:
        parser.error(str(error))
    try:
        import matplotlib
    except ImportError:
        parser.error("matplotlib is not installed: pip install 'rntn-plugins[plots]'")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, label in zip(args.logs, names_of(args.logs)):
        try:
            text = Path(name).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            parser.error(f"cannot read {name}: {error.strerror}")
        try:
            points = validations(text, args.subset, args.metric)
        except ValueError as error:
            parser.error(f"{name}: {error}")
        if not points:
            parser.error(f"{name}: no validation on {args.subset!r} with {args.metric!r} in this log")
        axes.plot(*zip(*points), marker="o", markersize=3, label=label)
        print(f"{name}: {len(points)} validations, best {args.metric} {best(args.metric, points):g}")
    axes.set(xlabel="updates", ylabel=f"{args.subset} {args.metric}")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(args.out, dpi=150)
    except OSError as error:
        parser.error(f"cannot write {args.out}: {error.strerror}")
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
