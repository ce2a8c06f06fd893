"""How near models come that were trained by a paper's own schedule to the numbers that it prints: in RESULTS.md.

The same model in several tables of a paper is one line; other readings of what a paper leaves open are lines of their
own (a row's ``reading_of``), after the one they read in another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple

from reproduction import tables
from reproduction.manifest import METRICS, ROOT, Manifest, Row, Run
from reproduction.results import Measured, Results

#: how much worse than the paper's number is near to it, as a share of it
NEAR = 0.02
WITHIN = f"within {100 * NEAR:g} %"
TEXT = f"""Every number that a paper prints of a model of ours that was trained by the paper's schedule, to its end or
not (*partial*, *diverged*), and whether ours is {WITHIN} of it or better. *Apart* is the difference as a share of the
paper's number. What a paper leaves open may be read in several ways, each of which has a line: that one of them comes
to the number does not show that the paper read it so. *Quoted* is what the paper has from elsewhere. *Why* leads to
what was found where ours is farther off. Numbers of shorter trainings alone are in the tables below."""


@dataclass(frozen=True)
class Line:
    """A number of a paper and ours for it, by one reading; *rows* of several tables."""

    rows: Tuple[Row, ...]
    run: Run
    found: Measured

    @property
    def apart(self) -> float:
        """Ours less the paper's, as a share of the paper's; infinite where ours diverged."""
        published = self.rows[0].published
        return (self.found.mean - published) / published

    @property
    def near(self) -> bool:
        worse = self.apart if METRICS[self.run.schedule.metric][1] else -self.apart
        return round(worse, 3) <= NEAR  # as it is shown

    @property
    def ended(self) -> bool:
        """Whether more training of it would change nothing: by its schedule it came to its end, or it diverged."""
        return self.found.complete or self.found.diverged

    @property
    def number(self) -> Tuple:
        """What the paper prints, whatever the reading."""
        row = self.rows[0]
        return row.paper, row.reading_of or row.run, row.published


def lines(manifest: Manifest, results: Results) -> List[Line]:
    """All that was trained by the paper's schedule and has a number there, in the manifest's order but for readings,
    which follow the line that they read in another way; nothing of what is counted, which needs no training, or
    timed."""
    found: Dict[Tuple, List[Row]] = {}
    for row in manifest.rows:
        if row.published is not None and not manifest.runs[row.run].untrained:
            found.setdefault((row.paper, row.run, row.evaluate, row.published), []).append(row)
    trained = ((rows, results.shown(run, evaluate, "paper")) for (_, run, evaluate, _), rows in found.items())
    each = [Line(tuple(rows), manifest.runs[rows[0].run], one) for rows, one in trained if one is not None]
    numbers = list(dict.fromkeys(line.number for line in each))
    return sorted(each, key=lambda line: numbers.index(line.number))


def section(manifest: Manifest, results: Results, order: Sequence[str], base: Path) -> Iterator[str]:
    """Heading, text, table and count; nothing where nothing was trained so.

    Args:
        order: of the papers.
        base: the folder that links start from.
    """
    found = sorted(lines(manifest, results), key=lambda line: order.index(line.rows[0].paper))
    if found:
        yield "## Whole schedules beside the papers' numbers"
        yield TEXT
        yield table(manifest, found, base)
        yield count(found)


def table(manifest: Manifest, found: Sequence[Line], base: Path) -> str:
    head = ["paper", "table", "row", "the paper's", "ours", "apart", "trained", f"{WITHIN} or better", "why"]
    return tables.markdown(head, [cells(manifest, line, base) for line in found])


def cells(manifest: Manifest, line: Line, base: Path) -> List[str]:
    row, metric = line.rows[0], line.run.schedule.metric
    alike = [each for each in manifest.rows if (each.paper, each.table) == (row.paper, row.table)]
    theirs = tables.table_decimals(manifest, row, alike)
    decimals = max(theirs, tables.claim_decimals(line.found))
    apart = f"{round(100 * line.apart, 1) + 0.0:+.1f} %" if math.isfinite(line.apart) else ""
    names = list(dict.fromkeys(each.table.removeprefix("Table ") for each in line.rows))
    return [
        row.paper, ", ".join(names), named(row, metric), tables.number(row.published, theirs) + ", quoted" * row.quoted,
        tables.ours(line.found, decimals), apart, tables.scored(line.found) + tables.marked(manifest, line.found),
        "yes" if line.near else "no", why(line, base),
    ]  # fmt: skip


def named(row: Row, metric: str) -> str:
    """The row's name, its column where that says more than the metric, and how it is scored if not plainly."""
    column = row.column.removesuffix(METRICS[metric][0]).removesuffix(", ")
    flags = f"scored with {tables.code(row.evaluate)}" if row.evaluate else ""
    return ", ".join(filter(None, [row.row, column, flags]))


def why(line: Line, base: Path) -> str:
    """A link to what was looked into."""
    places = dict.fromkeys(row.why for row in line.rows if row.why)
    recipe = ROOT / "tasks" / line.run.schedule.recipe
    return ", ".join(f"[why]({tables.relative(recipe / place, base)})" for place in places)


def count(found: Sequence[Line]) -> str:
    """How many numbers are met, by what; how many are not, and of how many that is open."""
    numbers: Dict[Tuple, List[Line]] = {}
    for line in found:
        numbers.setdefault(line.number, []).append(line)
    sorts = [sort(each) for each in numbers.values()]
    quoted = [sort(each) for each in numbers.values() if each[0].rows[0].quoted]
    of_these = f" ({quoted.count('met')} of these quoted)" if "met" in quoted else ""
    other = [each for each in sorts if each.startswith("other")]
    stopped = other.count("other before its end")
    before = f" ({stopped} of these stopped before its end)" * bool(stopped)
    said = [
        f"{sorts.count('met')} are met {WITHIN} or better by the recipe's training to its end{of_these}",
        f"{sorts.count('met before its end')} by one that was stopped before" * ("met before its end" in sorts),
        f"{len(other)} by another reading alone{before}" * bool(other),
        f"{sorts.count('missed')} by none",
        f"{sorts.count('open')} not yet, by trainings that were stopped before their ends" * ("open" in sorts),
    ]
    return f"Of {len(numbers)} numbers {', '.join(filter(None, said))}."


def sort(readings: Sequence[Line]) -> str:
    """What is true of a number: ``met`` or ``met before its end`` by the recipe's own reading, by an ``other`` one
    alone (or ``other before its end``), ``missed`` by trainings that came to their ends, or ``open``."""
    own = [line for line in readings if not line.rows[0].reading_of]
    for line in own:
        if line.near:
            return "met" if line.found.complete else "met before its end"
    near = [line for line in readings if line.near]
    if near:
        return "other" if any(line.found.complete for line in near) else "other before its end"
    return "missed" if any(line.ended for line in own or readings) else "open"
