"""RESULTS.md: the papers' tables, figures and claims beside what scripts/reproduce.py measured.

    python scripts/reproduce.py report          # RESULTS.md and results/figures, from results/rows

The same results make the same bytes. Beside this file, numbers come from ``results.py``, tables from ``tables.py``,
claims from ``claims.py``, figures from ``figures.py`` and the words between them from ``texts.py``.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarking.charts import MATPLOTLIB_MISSING
from outputs import whole
from reproduction import figures, nearness, outstanding, tables
from reproduction.claims import Judged, judge
from reproduction.manifest import ROOT, Manifest, Row
from reproduction.readings import in_words, otherwise
from reproduction.results import Results
from reproduction.texts import CLAIMS, DAGGER, DOUBLE_DAGGER, HEAD, HEADLINES, PAPERS, SCHEDULES


def write_all(manifest: Manifest, results: Optional[Results] = None, root: Path = ROOT) -> List[Path]:
    """RESULTS.md and the figures below *root*.

    Returns:
        the files written; without matplotlib, which is said, no figures.
    Raises:
        Refused: a result that cannot be read, or of a run that is not in the manifest.
    """
    results = Results() if results is None else results
    results.hold_against(manifest)
    written: List[Path] = []
    try:
        written += figures.draw(manifest, results, root / figures.FOLDER)
    except ImportError:
        print(MATPLOTLIB_MISSING, file=sys.stderr)
    return [*written, write(manifest, results, root / "RESULTS.md")]


def write(manifest: Manifest, results: Results, out: Path = ROOT / "RESULTS.md") -> Path:
    """The page alone; its links are relative to its folder.

    Raises:
        Refused: as :func:`write_all`.
    """
    with whole(out) as part:
        part.write_text(page(manifest, results, out.parent), encoding="utf-8")
    return out


def page(manifest: Manifest, results: Results, base: Path) -> str:
    """The text of RESULTS.md with links from *base*.

    Raises:
        Refused: as :func:`write_all`.
    """
    results.hold_against(manifest)
    order = papers(manifest)
    judged = [judge(manifest, results, claim) for claim in manifest.claims]
    judged.sort(key=lambda each: order.index(each.claim["paper"]))
    marked = any(each.lacking(manifest.runs[each.run]) for each in results.all)
    rounded = any(each.precision for each in results.all)
    head = "\n".join([HEAD, *[DAGGER] * marked, *[DOUBLE_DAGGER] * rounded])
    parts = [head, machines(results), *headlines(manifest, judged), *nearness.section(manifest, results, order, base)]
    parts += outstanding.section(manifest, results, order, base)
    parts += ["## Summary", summary(manifest, results, judged)]
    for paper in order:
        parts += [f"## {paper}: {PAPERS[paper]}" if paper in PAPERS else f"## {paper}"]
        parts += paper_tables(manifest, results, paper, base) + paper_figures(manifest, results, paper)
    if judged:
        parts += ["## Claims", CLAIMS, tables.claims_table(manifest, judged)]
    parts += ["## Schedules", *schedules(manifest, results, base)]
    return "\n\n".join(part for part in parts if part) + "\n"


# ---- head ------------------------------------------------------------------------------------------------------------


def machines(results: Results) -> str:
    """What the results were measured on."""
    if not results.all:
        return "Nothing has been measured yet."
    found = Counter(machine(each.data.get("environment", {})) for each in results.all)
    lines = [f"- {name}: {count} result{'s' * (count > 1)}" for name, count in sorted(found.items())]
    changed = sum(bool(each.data.get("modified")) for each in results.all)
    if changed:
        lines.append(f"- of these, made with files that were not committed: {changed}")
    several = sum(each.interrupted for each in results.all)
    unknown = sum(each.unknown_calls for each in results.all)
    if several:
        known = f"; of {unknown} the file does not tell the code and machine of all" if unknown else ""
        lines.append(f"- of these, trained in several calls of the script: {several}{known}")
    return "\n".join(["Measured on:", "", *lines])


def machine(environment: Dict[str, Any]) -> str:
    """``AMD EPYC, AVX512, 2 cores, 1 thread; torch 2.13.0, fairseq 0.12.3, Python 3.11.7``."""
    versions = environment.get("versions", environment)
    cores, threads = environment.get("cores"), environment.get("threads")
    parts = [
        environment.get("gpu"),
        environment.get("processor") or "unknown processor",
        environment.get("instructions"),
    ]
    parts += [f"{cores} core{'s' * (cores > 1)}" if cores else None]
    parts += [f"{threads} thread{'s' * (threads > 1)}" if threads else None]
    programs = [("torch", "torch"), ("fairseq", "fairseq"), ("ve-fairseq", "fairseq"), ("python", "Python")]
    said = [f"{name} {versions[key]}" for key, name in programs if versions.get(key)]
    return "; ".join(filter(None, [", ".join(filter(None, parts)), ", ".join(said)]))


def headlines(manifest: Manifest, judged: Sequence[Judged]) -> List[str]:
    chosen = [each for each in judged if each.claim.get("headline")]
    if not chosen:
        return []
    verdicts = [each.holds for each in chosen]
    hold, fail, open_ = (verdicts.count(what) for what in (True, False, None))
    decided = [each for each in chosen if each.holds is not None and not is_time(each)]
    several = sum(each.seeds > 1 for each in decided)
    others = [each for each in decided if each.seeds == 1 and each.shorter is not None]
    unlike = sum(each.shorter.holds != each.holds for each in others)
    mixed = sum(bool(each.holds) and each.mixed for each in chosen)
    close = sum(bool(each.holds) and each.close for each in chosen)
    said = [f"{mixed} of these in the mean of the seeds, not with each"] * bool(mixed)
    said += [f"{close} by numbers that are equal within 0.5 %"] * bool(close)
    of_these = f" ({', '.join(said)})" if said else ""
    contrary = f" ({unlike} of these to the contrary)" if unlike else ""
    fewer = f", and {len(others)} more after fewer epochs{contrary}" if others else ""
    mingled = sum(each.mingled for each in decided)
    overlapping = f"; in {mingled} the seeds of the two sides overlap" * bool(mingled)
    readings = [otherwise(manifest, judged, each) for each in chosen]
    by = [[each.holds for each in chosen if (basis(each) or (None,))[0] == place] for place in range(3)]
    names = ("by full schedules", "by shortened or stopped ones", "of times")
    split = [f"{what} {found.count(True)} hold, {found.count(False)} not" for what, found in zip(names, by) if found]
    said = (
        f"Of {len(chosen)}: {hold} hold{of_these}, {fail} not, {open_} open; {'; '.join(split) or 'none decided'}. "
        f"By more than one seed: {several} of {len(decided)}{fewer}{overlapping}. {in_words(chosen, readings)}"
        "All comparisons are under [Claims](#claims)."
    )
    return ["## The main comparisons", HEADLINES, tables.headlines_table(manifest, chosen, readings), said]


def summary(manifest: Manifest, results: Results, judged: Sequence[Judged]) -> str:
    """Rows and claims by paper; a time is of some updates, and by no schedule."""
    kinds = ["hold, full", "do not, full", "hold, shortened or stopped", "do not, shortened or stopped", "times: hold",
             "times: do not", "open"]  # fmt: skip
    lines = []
    for paper in papers(manifest):
        rows = [row for row in manifest.rows if row.paper == paper and not row.aside]
        found = [basis(each) for each in judged if each.claim["paper"] == paper and "aside" not in each.claim]
        places = [kinds[:2], kinds[2:4], kinds[4:6]]
        sorts = [kinds[6] if each is None else places[each[0]][not each[1]] for each in found]
        lines.append([paper, *counted(manifest, results, rows), *map(sorts.count, kinds)])
    if len(lines) > 1:
        lines.append(["all", *(sum(column) for column in list(zip(*lines))[1:])])
    head = ["paper", "rows", "measured", "trained by the full schedule", f"claims: {kinds[0]}", *kinds[1:]]
    table = tables.markdown(head, [[str(cell) for cell in line] for line in lines])
    return "\n\n".join(filter(None, [table, certainty(judged), aside(manifest, results, judged)]))


def is_time(judged: Judged) -> bool:
    return judged.better is not None and judged.better.results[0].metric == "seconds"


def basis(judged: Judged) -> Optional[Tuple[int, bool]]:
    """What a verdict rests on (0: full schedules, 1: shortened or stopped ones, 2: times), and whether the claim
    holds; ``None``: it is open."""
    if judged.holds is None:
        return None
    return 2 if is_time(judged) else 0 if judged.whole else 1, judged.holds


def certainty(judged: Sequence[Judged]) -> str:
    """How much the verdicts in the summary's table rest on."""
    decided = [each for each in judged if each.holds is not None and "aside" not in each.claim]
    if not decided:
        return ""
    alone, close = sum(each.seeds == 1 for each in decided if not is_time(each)), sum(each.close for each in decided)
    return (
        f"Of the {len(decided)} claims decided {alone} rest on one seed, where a small difference may be chance; in "
        f"{close} the two numbers are equal within 0.5 %. What a shortened or stopped training shows is which model is "
        "ahead by then, not which is better in the end."
    )


def aside(manifest: Manifest, results: Results, judged: Sequence[Judged]) -> str:
    """The claims and rows that the summary's table leaves out, by the reason."""
    groups: Dict[str, List[Optional[bool]]] = {}
    for each in judged:
        if "aside" in each.claim:
            groups.setdefault(each.claim["aside"], []).append(each.holds)
    groups.update({row.aside: [] for row in manifest.rows if row.aside and row.aside not in groups})
    said = []
    for why, verdicts in groups.items():
        hold, fail, open_ = (verdicts.count(what) for what in (True, False, None))
        claims = f"{len(verdicts)} claims ({hold} hold, {fail} do not, {open_} open)" if verdicts else ""
        rows = [row for row in manifest.rows if row.aside == why]
        measured = counted(manifest, results, rows)[1]
        known = f"{len(rows)} row{'s' * (len(rows) > 1)} ({measured} measured)" if rows else ""
        said.append(f"{' and '.join(filter(None, [claims, known]))} {tables.safe(why)}")
    return f"Not counted here: {'; '.join(said)}." if said else ""


def counted(manifest: Manifest, results: Results, rows: Sequence[Row]) -> List[int]:
    """All rows, those measured, those of models trained by the paper's whole schedule."""
    found = [(manifest.runs[row.run].schedule, results.shown(row.run, row.evaluate)) for row in rows]
    trained = [each for schedule, each in found if each and schedule.metric != "seconds" and not schedule.script]
    return [len(rows), sum(each is not None for _, each in found), sum(each.full for each in trained)]


def papers(manifest: Manifest) -> List[str]:
    """All papers, the four in the order above."""
    named = [each["paper"] for each in (*map(vars, manifest.rows), *manifest.figures, *manifest.claims)]
    return [paper for paper in PAPERS if paper in named] + [each for each in dict.fromkeys(named) if each not in PAPERS]


# ---- body ------------------------------------------------------------------------------------------------------------


def paper_tables(manifest: Manifest, results: Results, paper: str, base: Path) -> List[str]:
    by_table: Dict[str, List[Row]] = {}
    for row in manifest.rows:
        if row.paper == paper:
            by_table.setdefault(row.table, []).append(row)
    parts = []
    for name, rows in sorted(by_table.items(), key=lambda each: tables.numbered(each[0])):
        columns = dict.fromkeys(row.column for row in rows)
        parts += [f"### {name}: {', '.join(columns)}" if len(columns) == 1 else f"### {name}"]
        parts += [tables.rows_table(manifest, results, rows, base)]
    return parts


def paper_figures(manifest: Manifest, results: Results, paper: str) -> List[str]:
    """The figures that have a measured run, each with what it shows; the names of the others."""
    parts, missing = [], []
    of_paper = [figure for figure in manifest.figures if figure["paper"] == paper]
    for figure in sorted(of_paper, key=lambda each: tables.numbered(each["figure"])):
        drawing = figures.plan(manifest, results, figure)
        if drawing is None:
            missing.append(f"{figure['figure']} ({figures.subject(figure)})")
            continue
        file = (figures.FOLDER / f"{figure['id']}.png").as_posix()
        parts += [f"### {figure['figure']}: {figures.subject(figure)}"]
        parts += [f"![{figures.title(manifest, drawing)}]({file})", caption(drawing), figure.get("note", "")]
    return parts + [f"Figures not measured, or but one point of them: {', '.join(missing)}."] * bool(missing)


def caption(drawing: figures.Drawing) -> str:
    """Which runs it shows, by what they were trained with, and which it does not."""
    groups: Dict[str, List[str]] = {}
    for run, found in drawing.drawn.items():
        seeds = ", ".join(str(result.seed) for result in found.results)
        rounded = any(result.precision for result in found.results)
        groups.setdefault(f"Drawn ({tables.share(found)}; seed {seeds}{' ‡' * rounded})", []).append(run)
    groups["Left out, as measured by another schedule or only partly"] = drawing.other
    groups["Not measured"] = drawing.missing
    return " ".join(f"{what}: {', '.join(f'`{run}`' for run in runs)}." for what, runs in groups.items() if runs)


def schedules(manifest: Manifest, results: Results, base: Path) -> List[str]:
    if not results.all:
        return ["None was used yet."]
    outdated = tables.outdated(manifest, results, base)
    parts = [SCHEDULES, tables.schedules_table(manifest, results)]
    if outdated:
        parts += ["Trained with other flags than `tasks/*/rows.toml` has now:", "\n".join(outdated)]
    rounded = tables.rounded(results, base)
    if rounded:
        parts += ["Trained, in part at least, with products that round what they multiply (scored without):",
                  "\n".join(rounded)]  # fmt: skip
    unsaid = tables.unsaid(manifest, results, base)
    if unsaid:
        parts += ["Flags that the commands of some results leave out, as they were the presets' own then:",
                  "\n".join(unsaid)]  # fmt: skip
    return parts
