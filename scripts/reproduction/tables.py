"""The Markdown tables of RESULTS.md: rows of the papers' tables, claims, schedules."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from reproduction.claims import Judged, trained
from reproduction.figures import amount, plain
from reproduction.manifest import KINDS, Manifest, Row, Run, Schedule, grouped
from reproduction.results import Measured, Result, Results, validated
from reproduction.training import PRECISION

#: decimals at least; more where a paper's table has more
DECIMALS = {"ppl": 1, "bpc": 2, "upos_accuracy": 2, "label_accuracy": 2, "seconds": 2}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a column without a heading is left out."""
    kept = [place for place, name in enumerate(head) if name]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(safe(line[place]) for place in kept) + " |" for line in lines)


def safe(text: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("|", "\\|").replace("\n", " ")


def code(flags: Sequence[str]) -> str:
    text = " ".join(flags)
    return f"`{text}`" if text else ""


def number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else "diverged"


def decimals_of(value: float) -> int:
    return len(repr(value).partition(".")[2])


def numbered(name: str) -> List[int]:
    """The numbers in a table's or figure's name, to sort by: ``Table 6.10`` after ``Table 6.9``, ``II`` after ``I``."""
    return [int(digits) for digits in re.findall(r"\d+", name)] or [len(name)]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def share(found: Measured) -> str:
    """``10 %, short, 4 epochs``: how long it was trained."""
    if found.results[0].metric == "seconds":
        return f"{amount([result.updates for result in found.results], 'updates')} timed"
    ended = ", by its rule" if any(result.stopped == "rule" for result in found.results) else ""
    epochs = amount([result.epochs for result in found.results], "epochs")
    stopped = "" if found.complete else ", diverged" if found.diverged else ", partial"
    return f"{per_cent(found.share)}, {found.kind}, {epochs}{ended}{stopped}"


def per_cent(share: float) -> str:
    """``5.4 %``, ``67 %``, and ``100 %`` of the whole alone."""
    if share > 0.999:
        return "100 %"
    if 0 < share < 1e-4:
        return "below 0.01 %"
    return f"{min(100 * share, 99):.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def scored(found: Measured) -> str:
    """How long it was trained and, where a seed is scored as it was earlier, when each was."""
    known = [(result.best, result.epochs) for result in found.results if result.best is not None]
    said = [tuple(plain(round(number, 2)) for number in pair) for pair in sorted(known)]
    bests = dict.fromkeys(best for best, _ in said)
    best = f", best after {' and '.join(bests)}" if any(best != end for best, end in said) else ""
    return share(found) + best


def ours(found: Measured, decimals: int) -> str:
    text = number(found.mean, decimals)
    if found.spread is None:
        return text
    return f"{text} ({number(found.spread[0], decimals)}–{number(found.spread[1], decimals)})"


def difference(found: Measured, published: float, decimals: int) -> str:
    """Ours, rounded, less the paper's, and its share of the paper's before rounding: ``+1.23 (+1.3 %)``."""
    if not math.isfinite(found.mean) or not published:
        return ""
    apart = round(round(found.mean, decimals) - published, max(decimals, decimals_of(published))) + 0.0
    of_theirs = round(100 * (found.mean - published) / published, 1) + 0.0
    return f"{apart:+.{decimals}f} ({of_theirs:+.1f} %)"


def links(results: Sequence[Result], run: Run, base: Path) -> str:
    """A link to the JSON of each seed, relative to *base*, with :func:`marks`."""
    return ", ".join(f"[{each.kind}, {each.seed}]({relative(each.file, base)}){marks(run, each)}" for each in results)


def marks(run: Run, *results: Result) -> str:
    """`` †``: one was trained with other flags than the manifest has now; `` ‡``: with products that were rounded."""
    lacking, rounded = any(each.lacking(run) for each in results), any(each.precision for each in results)
    return " †" * lacking + " ‡" * rounded


def relative(file: Path, base: Path) -> str:
    return Path(os.path.relpath(file, base)).as_posix()


# ---- tables ----------------------------------------------------------------------------------------------------------


def rows_table(manifest: Manifest, results: Results, rows: Sequence[Row], base: Path) -> str:
    """A table of a paper, all of its rows, each once for every kind of schedule it was measured by; empty cells where
    nothing was measured."""
    columns, notes = len({row.column for row in rows}) > 1, any(row.note for row in rows)
    head = ["model", "column" * columns, "preset", "parameters", "paper", "ours", "difference",
            "share of the schedule", "seeds", "results", "note" * notes]  # fmt: skip
    lines = []
    for row in rows:
        each = [results.shown(row.run, row.evaluate, kind) for kind in KINDS]
        lines += [row_cells(manifest, found, row, rows, base) for found in filter(None, each)] or [
            row_cells(manifest, None, row, rows, base)
        ]
    return markdown(head, lines)


def row_cells(manifest: Manifest, found: Optional[Measured], row: Row, rows: Sequence[Row], base: Path) -> List[str]:
    """A line of a table: a row as it was measured by one kind of schedule, if it was."""
    run = manifest.runs[row.run]
    metric = run.schedule.metric
    theirs = table_decimals(manifest, row, rows)
    decimals = max(theirs, DECIMALS[metric])
    paper = "" if row.published is None else number(row.published, theirs)
    absent = [] if found is None else [each.lacking(run) for each in found.results]
    flags = [flag for flag in grouped(run.flags) if not absent or not all(flag in lacking for lacking in absent)]
    preset = code([run.arch, *flags]) + (f", scored with {code(row.evaluate)}" if row.evaluate else "")
    cells = [row.row, row.column, preset]
    if found is None:
        return [*cells, "", paper, "", "", "", "", "", row.note]
    parameters = next((result.data["parameters"] for result in found.results if result.data.get("parameters")), None)
    return [
        *cells, f"{parameters:,}" if parameters else "", paper, ours(found, decimals),
        "" if row.published is None else difference(found, row.published, decimals),
        scored(found), ", ".join(str(result.seed) for result in found.results), links(found.results, run, base),
        row.note,
    ]  # fmt: skip


def table_decimals(manifest: Manifest, row: Row, rows: Sequence[Row]) -> int:
    """With how many decimals a paper's table, of these rows, prints numbers of the row's metric."""
    metric = manifest.runs[row.run].schedule.metric
    alike = [each.published for each in rows if manifest.runs[each.run].schedule.metric == metric]
    return max((decimals_of(each) for each in alike if each is not None), default=0)


def claim_decimals(found: Measured) -> int:
    """One more than in the tables where those are few for a comparison."""
    return {"bpc": 3}.get(found.results[0].metric, 2)


def course(found: Measured, curve: Dict[int, float], best: bool = False) -> str:
    """``233.67, 207.11 in validation after epochs 1, 2``; of more than three epochs the first and the last.

    Args:
        best: the numbers are the best up to then.
    """
    epochs, metric = sorted(curve), found.results[0].metric
    shown, dots = (epochs, ", ") if len(epochs) <= 3 else (epochs[:: len(epochs) - 1], " … ")
    said = dots.join(number(curve[epoch], claim_decimals(found)) for epoch in shown)
    what = f" ({code([validated(metric)])})" * (validated(metric) != metric)
    after = "up to" if best else "after"
    return f"{said} in validation{what} {after} epoch{'s' * (len(shown) > 1)} {dots.join(map(str, shown))}"


def marked(manifest: Manifest, found: Measured) -> str:
    return marks(manifest.runs[found.results[0].run], *found.results)


def claims_table(manifest: Manifest, judged: Sequence[Judged]) -> str:
    rows = []
    for each in judged:
        sides = [(each.claim[name], found) for name, found in (("better", each.better), ("worse", each.worse))]
        said = [f"`{run}` {ours(found, claim_decimals(found))} ({scored(found)}){marked(manifest, found)}"
                for run, found in sides if found]  # fmt: skip
        if each.curves:
            best = "epochs" not in each.claim  # of a claim about test scores, where validation decides
            courses = [course(found, curve, best) for (_, found), curve in zip(sides, each.curves)]
            said = [f"`{run}` {text} ({share(found)}){marked(manifest, found)}"
                    for (run, found), text in zip(sides, courses)]  # fmt: skip
        for found in each.longer:
            numbers = "" if each.curves else f" {ours(found, claim_decimals(found))}"
            how_long = f"({scored(found)}){marked(manifest, found)}"
            said += [f"by a longer training, not compared: `{found.results[0].run}`{numbers} {how_long}"]
        if each.shorter and "epochs" not in each.claim:
            pair = [f"`{run}` {ours(found, claim_decimals(found))}{marked(manifest, found)}"
                    for (run, _), found in zip(sides, (each.shorter.better, each.shorter.worse))]  # fmt: skip
            said += [f"by a shorter training of more seeds ({share(each.shorter.better)}): {', '.join(pair)}"]
        flags = each.claim["evaluate"]
        claim = each.claim["text"] + (f" (scored with {code(flags)})" if flags else "")
        rows.append([each.claim["paper"], each.claim["where"], claim, "; ".join(said), verdict(manifest, each)])
    return markdown(["paper", "where", "claim", "ours", "verdict"], rows)


def headlines_table(manifest: Manifest, judged: Sequence[Judged], readings: Sequence[Sequence[Judged]]) -> str:
    """The claims that the report begins with: the paper's two numbers, the two that were measured, how these were
    trained, and the verdict; where one is not there, ``–``.

    Args:
        readings: of each the same by other readings of the paper, which have a column of their own.
    """
    rows = []
    for each, others in zip(judged, readings):
        claim, found = each.claim, (each.better, each.worse)
        theirs = [printed(manifest, claim["paper"], claim["better"], claim["evaluate"]),
                  printed(manifest, claim["paper"], claim["worse"])]  # fmt: skip
        numbers = [ours(side, claim_decimals(side)) if side else "–" for side in found]
        lengths = dict.fromkeys(share(side) + marked(manifest, side) for side in found if side)
        compared = ("; ".join(said) for said in (theirs, numbers, lengths))
        read = "; ".join(reading(manifest, other) for other in others)
        rows.append([claim["paper"], claim["text"], *compared, verdict(manifest, each), read])
    head = ["paper", "comparison", "the paper's", "ours", "trained", "verdict", "read otherwise" * any(readings)]
    return markdown(head, rows)


def reading(manifest: Manifest, judged: Judged) -> str:
    """``blocks: HORNN < RNN (40 epochs ‡): does not hold, 0 of 1 seed``: a comparison by another reading."""
    sides = (judged.better, judged.worse)
    results = trained(manifest, *(each for side in sides for each in side.results))
    marks_of = max((marked(manifest, side) for side in sides), key=len)
    timed = judged.better.results[0].metric == "seconds"
    epochs = "" if timed else f" ({amount([result.epochs for result in results], 'epochs')}{marks_of})"
    return f"{judged.claim['text']}{epochs}: {judged.said}"


def verdict(manifest: Manifest, judged: Judged) -> str:
    """``holds, 1 of 1 seed; trained for 3 epochs: does not hold, 0 of 2 seeds``: also by more seeds, shorter."""
    said = judged.said + ", equal within 0.5 %" * (judged.holds is not None and judged.close)
    if judged.shorter is None:
        return said
    sides = (judged.shorter.better, judged.shorter.worse)
    epochs = [result.epochs for result in trained(manifest, *(each for side in sides for each in side.results))]
    return f"{said}; trained for {amount(epochs, 'epochs')}: {judged.shorter.said}"


def printed(manifest: Manifest, paper: str, run: str, evaluate: Sequence[str] = ()) -> str:
    """The number that a paper's table has for a run, as it prints it; ``–`` if none has."""
    for row in manifest.rows:
        if (row.paper, row.run, row.evaluate) == (paper, run, tuple(evaluate)) and row.published is not None:
            rows = [each for each in manifest.rows if (each.paper, each.table) == (paper, row.table)]
            return number(row.published, table_decimals(manifest, row, rows))
    return "–"


# ---- schedules -------------------------------------------------------------------------------------------------------


def used(manifest: Manifest, results: Results) -> Dict[Schedule, Dict[str, int]]:
    """The schedules by which something was measured, in the manifest's order, and how many results of each kind."""
    counts: Dict[tuple, Dict[str, int]] = {}
    for result in results.all:
        schedule = manifest.runs[result.run].schedule
        kinds = counts.setdefault((schedule.recipe, schedule.name), dict.fromkeys(KINDS, 0))
        kinds[result.kind] += 1
    return {schedule: counts[place] for place, schedule in manifest.schedules.items() if place in counts}


def length(schedule: Schedule) -> str:
    return amount([schedule.updates], "updates") if schedule.updates else amount([schedule.epochs], "epochs")


def schedules_table(manifest: Manifest, results: Results) -> str:
    """The paper's form of every schedule in use, and the shorter ones that are."""
    rows = []
    for schedule, counts in used(manifest, results).items():
        for kind in KINDS:
            if kind == "paper" or counts[kind]:
                form = schedule.of(kind)
                rows.append([
                    schedule.recipe, schedule.name, kind, length(form), code(form.train), changes(schedule, form),
                    code(form.evaluate), form.because, str(counts[kind]),
                ])  # fmt: skip
    head = ["recipe", "schedule", "kind", "length", "training", "not the paper's", "scoring", "because", "results"]
    return markdown(head, rows)


def changes(schedule: Schedule, form: Schedule) -> str:
    """What a shorter form has beside the paper's flags, and goes without."""
    before, after = grouped(schedule.train), grouped(form.train)
    more = code([flag for flag in after if flag not in before])
    less = code([flag for flag in before if flag not in after])
    return ", ".join(filter(None, [more, less and f"without {less}"]))


def outdated(manifest: Manifest, results: Results, base: Path) -> List[str]:
    """A line for each result whose training had other flags than the manifest says now."""
    lines = []
    for result in results.all:
        lacking = result.lacking(manifest.runs[result.run])
        if lacking:
            name = result.file.stem
            lines.append(f"- [{name}]({relative(result.file, base)}) was trained without {code(lacking)}")
    return lines


def rounded(results: Results, base: Path) -> List[str]:
    """A line for each precision by which products of trainings were rounded, with the results."""
    found: Dict[str, List[str]] = {}
    for result in results.all:
        if result.precision:
            found.setdefault(result.precision, []).append(f"[{result.file.stem}]({relative(result.file, base)})")
    return [f"- {code([f'{PRECISION} {name}'])}: {', '.join(files)}" for name, files in sorted(found.items())]


def unsaid(manifest: Manifest, results: Results, base: Path) -> List[str]:
    """A line for each flag that the command of a training does not name and was the default then, with the results."""
    found: Dict[str, List[str]] = {}
    for result in results.all:
        for flag in result.unsaid(manifest.runs[result.run]):
            found.setdefault(flag, []).append(f"[{result.file.stem}]({relative(result.file, base)})")
    return [f"- {code([flag])}: {', '.join(names)}" for flag, names in found.items()]
