"""The papers' tables, figures and claims as data: ``tasks/*/rows.toml``.

A file describes one recipe::

    data = "ptb"                                  # --data ptb=FOLDER names the binarised folder
    tokens = 82430                                # what scoring counts on its test set; 0 or none: not known
    train_tokens = 929589                         # likewise what its training set has
    task = "rntn_language_modeling"
    command = "eval-lm"                           # or "generate": what scores a model

    [schedules.t16]                               # how a paper trains
    train = "--optimizer adagrad --lr 0.02 ..."   # flags of fairseq-train
    evaluate = "--sample-break-mode eos"          # flags of the scoring command
    metric = "ppl"                                # of METRICS below
    epochs = 40                                   # the full schedule; or: updates = 140000
    data = "ptb-other"                            # if not that of the file; tokens and train_tokens likewise
    script = "scripts/kneser_ney.py"              # makes the model instead of fairseq-train: SCRIPT DATA --output FILE
    because = "why so many, where the paper does not say"
    [schedules.t16.short]                         # a shorter one, the same for all rows that are compared
    drop = "--lr-ratio --stop-after"              # flags of those above that it goes without, values and all
    train = "--lr 0.05"                           # flags that are added, or take the place of those above
    epochs = 4
    [schedules.t16.medium]                        # one between the two, in the same way; likewise long, above medium

    [[runs]]                                      # a training
    id = "gru-860"
    arch = "gru_lm_tjandra_ptb_word"
    schedule = "t16"
    flags = ""                                    # of this training alone
    once_default = ""                             # those of them that results may lack: they were the default then
    seeds = [1, 2]                                # default: [1]

    [[rows]]                                      # a number of a table
    paper = "T16"
    table = "Table II"
    row = "GRURNN"
    column = "test PPL"
    published = 97.78                             # left out where the paper has no number
    run = "gru-860"
    evaluate = ""                                 # flags of this row's scoring alone
    note = ""                                     # shown in a column of the report
    why = "notes.md#thirty-epochs"                # where the recipe's folder tells why ours is not near; default: none
    reading_of = "gru-860"                        # the run of the row whose number this reads in another way
    quoted = true                                 # the paper has the number from elsewhere; default: false
    aside = "of another reading"                  # why the summary counts it apart; default: it does not

    [[figures]]                                   # curves of validations or of training, or points of several runs
    id = "t16-figure-9"
    paper = "T16"
    figure = "Figure 9"
    title = "..."
    kind = "curves"
    subset = "valid"
    metric = "ppl"
    runs = ["gru-860"]
    note = ""                                     # shown below it
    tables = {"Table 5" = "I = x"}                # what the legend says in place of a table's name, where it needs one
    # in place of kind, subset, metric and runs:
    # kind = "sweep"
    # x = "K"
    # series = [{label = "f", points = [[1, "s-rnn-100"], [100, "r-rntn-100"]]}]

    [[claims]]                                    # what a paper says of two runs: the first has the better number
    paper = "T16"
    where = "§V-B, Table II"                      # where the paper says it
    text = "GRURNTN < GRU"
    better = "gru-rntn-256"
    worse = "gru-860"
    evaluate = ""                                 # flags of the first one's scoring alone, as of a row
    within = 0.02                                 # with <= or >= in the text: or worse by at most 2 % of the second;
                                                  # without a sign: the two are at most that far apart
    at_end = true                                 # said of whole trainings: open as long as one is not
    epochs = "all"                                # of the validation after every epoch instead of the test; or "first"
    aside = "in the table alone"                  # why the summary counts it apart; default: it does not
    headline = true                               # one of the few that the report begins with

Names of runs are unique in all files. A figure or claim may name runs of other recipes' files.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[2]
#: metric: (heading, whether lower is better)
METRICS = {
    "ppl": ("test PPL", True),
    "bpc": ("test BPC", True),
    "upos_accuracy": ("UPOS accuracy, %", False),
    "label_accuracy": ("right labels, %", False),
    "seconds": ("time of an update", True),
}


#: of a schedule's forms, the longest first: the paper's, and three that are shorter
KINDS = ("paper", "long", "medium", "short")
SCORING = ("eval-lm", "generate")
CLAIM = ("paper", "where", "text", "better", "worse")
TOKENS = ("tokens", "train_tokens")
OR_EQUAL = ("<=", ">=", "≤", "≥")
HEADLINES = "headlines"
SEEDS = 2**32  # numpy's bound
#: what the script itself tells fairseq-train
OURS = ("--arch", "--max-epoch", "--max-update", "--seed", "--save-dir", "--stop-time-hours", "--user-dir", "--task")
LARGEST = 1e15  # no number of a paper, schedule or corpus is; a whole number may have hundreds of digits in TOML


class Refused(Exception):
    """Something the user has to change; the message is shown as one line."""


@dataclass(frozen=True)
class Schedule:
    """How a paper trains and scores; the others of ``KINDS`` are the schedule's own shorter forms."""

    name: str
    recipe: str
    data: str
    task: str
    command: str
    metric: str
    train: Tuple[str, ...]
    evaluate: Tuple[str, ...]
    epochs: Optional[float]
    updates: Optional[int]
    because: str
    tokens: int = 0
    train_tokens: int = 0
    script: str = ""
    long: Optional[Schedule] = None
    medium: Optional[Schedule] = None
    short: Optional[Schedule] = None

    @property
    def kinds(self) -> List[str]:
        """Those of ``KINDS`` that it has."""
        return [kind for kind in KINDS if kind == "paper" or getattr(self, kind)]

    def of(self, kind: str) -> Schedule:
        """
        Raises:
            Refused: it has no such form.
        """
        if kind not in self.kinds:
            others = " or ".join(f"--schedule {each}" for each in self.kinds)
            raise Refused(f"{self.recipe}: schedule {self.name!r} has no {kind} form: {others}")
        return self if kind == "paper" else getattr(self, kind)

    def share(self, epochs: float, updates: int) -> float:
        """The share of this schedule that so much training is."""
        return min(1.0, epochs / self.epochs if self.epochs else updates / self.updates)


@dataclass(frozen=True)
class Run:
    """A training."""

    id: str
    arch: str
    schedule: Schedule
    flags: Tuple[str, ...]
    seeds: Tuple[int, ...]
    once_default: Tuple[str, ...] = ()

    @property
    def untrained(self) -> bool:
        """Whether it counts or measures time: the same with every seed, and without a length."""
        return bool(self.schedule.script) or self.schedule.metric == "seconds"


@dataclass(frozen=True)
class Row:
    """A number of a table."""

    paper: str
    table: str
    row: str
    column: str
    published: Optional[float]
    run: str
    evaluate: Tuple[str, ...] = ()
    note: str = ""
    why: str = ""
    aside: str = ""
    reading_of: str = ""
    quoted: bool = False


@dataclass
class Manifest:
    """All recipes' files together; in their order."""

    schedules: Dict[Tuple[str, str], Schedule] = field(default_factory=dict)
    runs: Dict[str, Run] = field(default_factory=dict)
    rows: List[Row] = field(default_factory=list)
    figures: List[Dict[str, Any]] = field(default_factory=list)
    claims: List[Dict[str, Any]] = field(default_factory=list)

    def evaluations(self, run: str) -> List[Tuple[str, ...]]:
        """The scorings that rows ask of a training, each as its flags; the plain one first."""
        asked = [row.evaluate for row in self.rows if row.run == run]
        return list(dict.fromkeys([(), *asked]))

    def select(self, names: List[str]) -> List[Run]:
        """Runs by their names, by a paper ("T16") or by a table or figure ("T16:Table II"), without repetition;
        ``HEADLINES``: those of the claims that the report begins with.

        Raises:
            Refused: nothing of that name.
        """
        found: Dict[str, Run] = {}
        for name in names:
            paper, _, place = name.partition(":")
            figures = [each for each in self.figures if each["paper"] == paper and place in ("", each["figure"])]
            drawn = [run for figure in figures for run in runs_of(figure)]
            asked = [row.run for row in self.rows if row.paper == paper and place in ("", row.table)]
            headlines = [each for each in self.claims if name == HEADLINES and each.get("headline")]
            claims = headlines or [each for each in self.claims if (each["paper"], "") == (paper, place)]
            said = [each[side] for each in claims for side in ("better", "worse")]
            chosen = [name] if name in self.runs else asked + drawn + said
            if not chosen:
                raise Refused(f"no run, paper, table or figure {name!r}, nor headlines: `reproduce.py list` shows them")
            found.update((run, self.runs[run]) for run in chosen)
        return list(found.values())


def runs_of(figure: dict) -> List[str]:
    """The runs that a figure draws."""
    return [*figure.get("runs", []), *(run for series in figure.get("series", []) for _, run in series["points"])]


def merged(flags: Tuple[str, ...], more: Tuple[str, ...]) -> Tuple[str, ...]:
    """Flags with others added; one of the same name takes the place of the first."""
    return (*without(flags, [part for part in more if is_flag(part)]), *more)


def without(flags: Tuple[str, ...], names: Sequence[str]) -> Tuple[str, ...]:
    """Flags but for those of the given names, with their values."""
    kept, dropping = [], False
    for part in flags:
        if is_flag(part):
            dropping = part in names
        if not dropping:
            kept.append(part)
    return tuple(kept)


def wanted(run: Run, kind: str) -> List[str]:
    """The flags that the manifest has for a run now, each with its value."""
    schedule = run.schedule.of(kind)
    arch = () if schedule.script else ("--arch", run.arch)
    return grouped(merged(merged((*arch, *length_flags(schedule)), schedule.train), run.flags))


def length_flags(schedule: Schedule) -> Tuple[str, ...]:
    """How fairseq-train is told a schedule's length; no script is."""
    if schedule.script:
        return ()
    return ("--max-update", str(schedule.updates)) if schedule.updates else ("--max-epoch", f"{schedule.epochs:g}")


def grouped(flags: Sequence[str]) -> List[str]:
    """``--lr 0.1 --cpu`` as ``["--lr 0.1", "--cpu"]``, without what stands before the first flag."""
    starts = [place for place, part in enumerate(flags) if is_flag(part)]
    return [" ".join(flags[start:end]) for start, end in zip(starts, [*starts[1:], len(flags)])]


def is_flag(part: str) -> bool:
    return part.startswith("--") and not part[2:3].isdigit()


def load(folder: Path = ROOT / "tasks") -> Manifest:
    """
    Raises:
        Refused: a file that cannot be read or contradicts itself; the message names it.
    """
    manifest = Manifest()
    files = sorted(folder.glob("*/rows.toml"))
    if not files:
        raise Refused(f"no rows.toml in the folders of {folder}")
    for file in files:
        try:
            add(manifest, file)
        except RecursionError:
            raise Refused(f"{file}: nested too deeply") from None
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError, tomllib.TOMLDecodeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise Refused(f"{file}: {what}") from None
    check(manifest)
    return manifest


def add(manifest: Manifest, file: Path) -> None:
    """The entries of one file."""
    given = tomllib.loads(file.read_text(encoding="utf-8"))
    recipe = file.parent.name
    for name, settings in given.pop("schedules").items():
        manifest.schedules[recipe, name] = read_schedule(name, recipe, given, settings)
    for entry in tables(given, "runs"):
        complete(entry, "id", "arch", "schedule")
        texts(entry, "id", "arch", "schedule", "flags", "once_default")
        schedule = manifest.schedules.get((recipe, entry["schedule"]))
        if schedule is None:
            raise ValueError(f"run {entry['id']!r} has the unknown schedule {entry['schedule']!r}")
        if entry["id"] in manifest.runs:
            raise ValueError(f"there are two runs {entry['id']!r}")
        known(entry, "id", "arch", "schedule", "flags", "once_default", "seeds")
        named(entry["id"])
        if entry["id"] == HEADLINES:
            raise ValueError(f"{HEADLINES!r} is no name of a run: it stands for those of the main comparisons")
        seeds = entry.get("seeds", [1])
        able = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed < SEEDS for seed in seeds)
        if not able or not seeds:
            raise ValueError(
                f"seeds = {seeds!r} of run {entry['id']!r} must be whole numbers from 0 to {SEEDS - 1}, one at least"
            )
        flags, once_default = (words(entry.get(name, "")) for name in ("flags", "once_default"))
        reserved(flags, f"run {entry['id']!r}")
        manifest.runs[entry["id"]] = Run(entry["id"], entry["arch"], schedule, flags, tuple(seeds), once_default)
    for entry in tables(given, "rows"):
        complete(entry, "paper", "table", "row", "column", "run")
        optional = ("evaluate", "note", "why", "aside", "reading_of")
        texts(entry, "paper", "table", "row", "column", "run", *optional)
        known(entry, "paper", "table", "row", "column", "published", "run", "quoted", *optional)
        if not isinstance(entry.get("quoted", False), bool):
            raise ValueError(f"quoted = {entry['quoted']!r} must be true or false")
        above_zero(entry, "published")
        published = entry.get("published")
        manifest.rows.append(
            Row(**{**entry, "published": published, "evaluate": words(entry.get("evaluate", ""))})
        )  # fmt: skip
    for figure in tables(given, "figures"):
        read_figure(figure)
        manifest.figures.append(figure)
    for claim in tables(given, "claims"):
        read_claim(claim)
        manifest.claims.append({**claim, "evaluate": words(claim.get("evaluate", ""))})
    for name in TOKENS:
        above_zero(given, name)
        whole_number(given, name)
    known(given, "data", "task", "command", *TOKENS)
    texts(given, "data", "task", "command")
    if given["command"] not in SCORING:
        raise ValueError(f"command {given['command']!r} is none of {', '.join(SCORING)}")


def read_figure(figure: dict) -> None:
    """Check that it is complete."""
    complete(figure, "id", "paper", "figure", "title", "kind")
    known(
        figure, "id", "paper", "figure", "title", "kind", "subset", "metric", "runs", "tables", "x", "series", "note"
    )  # fmt: skip
    if not all(isinstance(said, str) for said in dict(figure.get("tables", {})).values()):
        raise ValueError(f"tables of figure {figure['id']!r} must be some text each")
    texts(figure, "id", "paper", "figure", "title", "kind", "subset", "metric", "x", "note")
    if figure.get("subset", "valid") not in ("train", "valid"):
        raise ValueError(f"subset {figure['subset']!r} of figure {figure['id']!r} is neither 'train' nor 'valid'")
    named(figure["id"])
    if figure["kind"] == "curves":
        complete(figure, "runs")
        runs = figure["runs"]
        if not isinstance(runs, list) or not runs or not all(isinstance(run, str) for run in runs):
            raise ValueError(f"runs = {runs!r} of figure {figure['id']!r} must be a list of names")
    elif figure["kind"] == "sweep":
        complete(figure, "series")
        if not isinstance(figure["series"], list) or not figure["series"]:
            raise ValueError(f"figure {figure['id']!r} has no series")
        for series in figure["series"]:
            complete(series, "label", "points")
            texts(series, "label")
            points = series["points"]
            if not isinstance(points, list) or not points or not all(map(is_point, points)):
                raise ValueError(f"the points of figure {figure['id']!r} must be [x, run] each, with a number x")
    else:
        raise ValueError(f"figure {figure['id']!r}: kind {figure['kind']!r} is neither 'curves' nor 'sweep'")


def is_point(given: Any) -> bool:
    """``[x, run]``"""
    if not (isinstance(given, list) and len(given) == 2 and isinstance(given[1], str)):
        return False
    return type(given[0]) in (int, float) and abs(given[0]) < LARGEST


def read_claim(claim: dict) -> None:
    """Check that it is complete and does not contradict itself."""
    known(claim, *CLAIM, "evaluate", "within", "at_end", "epochs", "aside", "headline")
    complete(claim, *CLAIM)
    for name in (*CLAIM, "evaluate", "aside"):
        if not isinstance(claim.get(name, ""), str) or (name != "evaluate" and not claim.get(name, "-").strip()):
            raise ValueError(f"{name} = {claim[name]!r} of a claim must be some text")
    text, within = claim["text"], claim.get("within")
    for name in ("at_end", "headline"):
        if not isinstance(claim.get(name, False), bool):
            raise ValueError(f"{name} = {claim[name]!r} of claim {text!r} must be true or false")
    if "epochs" in claim and (claim["epochs"] not in ("first", "all") or {"evaluate", "at_end"} & claim.keys()):
        raise ValueError(f"epochs of claim {text!r} must be first or all, and without evaluate and at_end")
    if claim["better"] == claim["worse"]:
        raise ValueError(f"claim {text!r} compares {claim['better']!r} with itself")
    if within is not None and not (type(within) is float and 0 < within < 1):
        raise ValueError(f"within = {within!r} of claim {text!r} must be a share between 0 and 1, as 0.02 for 2 %")
    if within is not None and re.search(r"[<>](?!=)", text):
        raise ValueError(f"claim {text!r}: a sign without = leaves nothing to within")


def read_schedule(name: str, recipe: str, common: dict, settings: dict) -> Schedule:
    settings = dict(settings)
    shorter = {kind: settings.pop(kind) for kind in KINDS[1:] if kind in settings}
    for kind, form in shorter.items():
        if not isinstance(form, dict):
            raise ValueError(f"{kind} = {form!r} of schedule {name!r} must be a table")
    known(settings, "train", "evaluate", "metric", "epochs", "updates", "because", "data", "script", *TOKENS)
    texts(settings, "train", "evaluate", "metric", "because", "data", "script")
    for form in (settings, *shorter.values()):
        texts(form, "drop", "train", "because")
        for number in ("updates", *TOKENS):
            whole_number(form, number, f" of schedule {name!r}")
        reserved(words(form.get("train", "")), f"schedule {name!r}")
        above_zero(form, "epochs", "updates", *TOKENS)
    if (settings.get("epochs") is None) == (settings.get("updates") is None):
        raise ValueError(f"schedule {name!r} needs one of epochs and updates")
    if settings["metric"] not in METRICS:
        raise ValueError(f"schedule {name!r}: metric {settings['metric']!r} is none of {', '.join(METRICS)}")
    full = Schedule(
        name, recipe, settings.get("data", common["data"]), common["task"], common["command"], settings["metric"],
        words(settings["train"]), words(settings.get("evaluate", "")), settings.get("epochs"), settings.get("updates"),
        " ".join(settings.get("because", "").split()),
        *(settings.get(name, 0 if "data" in settings else common.get(name, 0)) for name in TOKENS),
        settings.get("script", ""),
    )  # fmt: skip
    return replace(full, **{kind: shortened(full, kind, form) for kind, form in shorter.items()})


def shortened(full: Schedule, kind: str, form: dict) -> Schedule:
    """A shorter form of a schedule."""
    known(form, "drop", "train", "epochs", "updates", "because")
    what = f"the {kind} form of schedule {full.name!r}"
    dropped = words(form.get("drop", ""))
    for flag in dropped:
        if flag not in full.train:
            raise ValueError(f"{what} drops {flag}, which the schedule has not")
    epochs, updates = form.get("epochs"), form.get("updates")
    if (epochs is None) == (updates is None):
        raise ValueError(f"{what} needs one of epochs and updates")
    train = merged(without(full.train, dropped), words(form.get("train", "")))
    return replace(full, train=train, epochs=epochs, updates=updates, because=" ".join(form.get("because", "").split()))


def tables(given: dict, name: str) -> List[dict]:
    """The entries under ``[[name]]``, taken out."""
    entries = given.pop(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{name} must be tables: [[{name}]]")
    return entries


def texts(entry: dict, *names: str) -> None:
    for name in names:
        if not isinstance(entry.get(name, ""), str):
            raise ValueError(f"{name} = {entry[name]!r} must be some text")


def complete(entry: dict, *names: str) -> None:
    for name in names:
        if name not in entry:
            raise ValueError(f"{name!r} is missing in {entry!r}")


def above_zero(entry: dict, *names: str) -> None:
    for name in names:
        value = entry.get(name)
        if value is not None and not (type(value) in (int, float) and 0 < value < LARGEST):
            raise ValueError(f"{name} = {shortly(value)} must be a number above 0, and less than {LARGEST:g}")


def whole_number(entry: dict, name: str, where: str = "") -> None:
    if type(entry.get(name, 1)) is not int:
        raise ValueError(f"{name} = {shortly(entry[name])}{where} must be a whole number")


def reserved(flags: Sequence[str], what: str) -> None:
    for flag in flags:
        if flag.partition("=")[0] in OURS:
            raise ValueError(f"{flag} of {what}: epochs, updates, seeds, arch and task stand for such flags")


def shortly(value: Any) -> str:
    return f"{value!r:.60}"


def named(name: str) -> None:
    """It becomes a file's name."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"{name!r} is no name: letters, digits, - and . only")


def words(flags: str) -> Tuple[str, ...]:
    return tuple(shlex.split(flags))


def known(entry: dict, *names: str) -> None:
    for name in entry:
        if name not in names:
            raise ValueError(f"unknown key {name!r} (known: {', '.join(names)})")


def check(manifest: Manifest) -> None:
    """That all runs that are named exist, in whatever file, nothing is there twice, and claims say which is better."""
    unique("row", [(row.paper, row.table, row.row, row.column, row.run, *row.evaluate) for row in manifest.rows])
    unique("figure", [(figure["id"],) for figure in manifest.figures])
    compared = ("paper", "text", "better", "worse")
    unique("claim", [(*(each[name] for name in compared), each.get("epochs", ""), *each["evaluate"])
                     for each in manifest.claims])  # fmt: skip
    for row in manifest.rows:
        if row.run not in manifest.runs:
            raise Refused(f"{row.paper} {row.table}, {row.row}: unknown run {row.run!r}")
        same = [(each.paper, each.run, each.published) for each in manifest.rows if not each.reading_of]
        if row.reading_of and (row.paper, row.reading_of, row.published) not in same:
            raise Refused(
                f"{row.paper} {row.table}, {row.row}: reading_of {row.reading_of!r}, which has no row with this number"
            )
        if row.reading_of == row.run:
            raise Refused(f"{row.paper} {row.table}, {row.row}: reading_of {row.reading_of!r}, which is its own run")
    for figure in manifest.figures:
        for run in runs_of(figure):
            if run not in manifest.runs:
                raise Refused(f"figure {figure['id']!r}: unknown run {run!r}")
    for claim in manifest.claims:
        for name in ("better", "worse"):
            if claim[name] not in manifest.runs:
                raise Refused(f"claim {claim['text']!r}: unknown run {claim[name]!r}")
        metric = manifest.runs[claim["better"]].schedule.metric
        wrong = ">≥" if METRICS[metric][1] else "<≤"
        if any(sign in claim["text"] for sign in wrong):
            raise Refused(
                f"claim {claim['text']!r}: the first run has the better number, which of {metric!r} is the "
                f"{'lower' if METRICS[metric][1] else 'higher'}"
            )
        if claim["evaluate"] not in manifest.evaluations(claim["better"]):
            flags = " ".join(claim["evaluate"])
            raise Refused(f"claim {claim['text']!r}: no row has {claim['better']!r} scored with {flags}")


def unique(what: str, keys: List[Tuple[Any, ...]]) -> None:
    """
    Raises:
        Refused: one is there twice.
    """
    for key, count in Counter(keys).items():
        if count > 1:
            raise Refused(f"{what} {', '.join(filter(None, map(str, key)))}: there {count} times")
