"""The four papers' tables and figures, run again by the ordinary fairseq commands.

    python scripts/reproduce.py list [NAME ...]                      # what there is: runs, and the rows they are for
    python scripts/reproduce.py run t16-word-gru-rntn --budget 30m   # train for 30 minutes, or 30 more; score
    python scripts/reproduce.py run "S18:Table 1" --schedule short   # all runs of a table, by its shortened schedule
    python scripts/reproduce.py status                               # what was run, and how far
    python scripts/reproduce.py report                               # RESULTS.md and results/figures

A NAME is a run, a paper (T16, S18, E18, H16), one of its tables or figures (``"H16:Table 6.2"``), or ``headlines``: the
runs of the comparisons that the report begins with. Runs, rows and schedules stand in ``tasks/*/rows.toml`` (format:
``scripts/reproduce_manifest.py``). A run trains with ``fairseq-train``, on a GPU if there is one (``--jobs`` take
several in turn), in ``runs/NAME.SCHEDULE.seedN``; started again it goes on there. It is scored with
``fairseq-eval-lm`` or ``fairseq-generate`` and written, with curve, log, machine, versions and commit, to
``results/rows``, where a result never gives way to one of a shorter training. A training that the budget stopped is
marked as partial.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import List, Optional

import reproduce_manifest as manifests
from outputs import reader_gone
from reproduce_logs import curve
from reproduce_manifest import KINDS, METRICS, SEEDS, Manifest, Refused
from reproduce_process import at_work, relative, start_anew, stop_all, take_gpu
from reproduce_run import carry_out, earlier
from reproduce_tables import length
from reproduce_training import Settings, Training

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """``90s``, ``30m``, ``1.5h``, ``2d``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 90s, 30m, 1.5h or 2d")
    return float(match[1]) * UNITS[match[2]]


def pair(text: str) -> List[str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER, for example ptb=data-bin/ptb")
    return [name, folder]


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def seed(text: str) -> int:
    if not text.isdigit() or int(text) >= SEEDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {SEEDS - 1}")
    return int(text)


def settings_of(args) -> Settings:
    """From the command line; what is not there is found out."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cuda = args.device == "cuda" if args.device else torch.cuda.is_available()
    if cuda and not torch.cuda.is_available():
        raise Refused("--device cuda: torch sees no GPU here")
    data = {name: relative(Path(folder).resolve()) for name, folder in args.data}
    return Settings(args.schedule, data, args.budget, args.threads or max(1, cores // args.jobs), cuda)


# ---- commands --------------------------------------------------------------------------------------------------------


def trainings(manifest: Manifest, args, settings: Settings) -> List[Training]:
    """What is to run, in the order of the names.

    Raises:
        Refused: before anything runs, for an unknown name, or data or a schedule that is not there.
    """
    known = {run.schedule.data for run in manifest.runs.values()}
    for name in settings.data.keys() - known:
        raise Refused(f"--data {name}: no run has such data; there are {', '.join(sorted(known))}")
    found = []
    for run in manifest.select(args.names):
        for seed in dict.fromkeys(args.seeds or run.seeds):
            training = Training(run, seed, settings)
            if training.schedule.metric != "seconds":
                training.data  # noqa: B018 (raises where there is none)
            found.append(training)
    return found


def run(manifest: Manifest, args) -> int:
    settings = settings_of(args)
    todo = trainings(manifest, args, settings)
    start_anew()
    signal.signal(signal.SIGTERM, interrupt)
    print(f"{len(todo)} to run, {args.jobs} at a time with {settings.threads} threads, "
          f"{'GPU' if settings.cuda else 'CPU'}", flush=True)  # fmt: skip
    failed = 0
    own = {"initializer": take_gpu, "initargs": (itertools.cycle(gpus()),)} if settings.cuda else {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs, **own) as pool:
        going = {pool.submit(one, training, manifest): training for training in todo}
        try:
            for number, done in enumerate(concurrent.futures.as_completed(going), 1):
                try:
                    said = done.result()
                except Refused as error:
                    failed, said = failed + 1, f"failed: {error}"
                except Exception as error:  # ours; the others go on
                    failed, said = failed + 1, f"failed: {type(error).__name__}: {error}"
                    if isinstance(error, OSError) and not error.filename:  # a full disk, a limit of sizes
                        said += f", in {relative(going[done].folder)} or {relative(settings.results)}"
                print(f"[{number}/{len(todo)}] {going[done].name}: {said}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
    return 1 if failed else 0


def gpus() -> List[str]:
    """Those that torch sees, by the names CUDA knows them by; jobs take them in turn."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def interrupt(number: int, frame) -> None:
    """A signal that ends us ends our commands too, as Ctrl-C does."""
    raise KeyboardInterrupt


def one(training: Training, manifest: Manifest) -> str:
    """Carry out a training; what to say of it."""
    # the line and its end in one piece, since others print at the same time
    print(f"{training.name}: started; its log is {training.folder}/train.log\n", end="", flush=True)
    result = carry_out(training, manifest.evaluations(training.run.id))
    return ("an earlier result went further and is kept; " if result.get("kept") else "") + summary(result)


def summary(result: dict) -> str:
    """One line of a result."""
    test = result["test"][""]
    if "ratio" in test:
        return f"{test['ratio']:.3g} times the time of {test['reference']}"
    end = "complete" if result["complete"] else "partial"
    return (
        f"{METRICS[result['metric']][0]} {test[result['metric']]:g}; {end}, {result['epochs']:.2f} epochs, "
        f"{result['updates']:,} updates, {100 * result['of_paper']:.0f} % of the paper's schedule"
    )


def show(manifest: Manifest, args) -> int:
    chosen = manifest.select(args.names) if args.names else list(manifest.runs.values())
    for training in chosen:
        schedule = training.schedule
        lengths = [f"{f'{kind} ' * (kind != 'paper')}{length(schedule.of(kind))}" for kind in schedule.kinds]
        print(f"{training.id}  ({training.arch}; {schedule.data}; {', '.join(lengths)})")
        said = [
            f"{row.paper} {row.table}: {row.row}, {row.column}: "
            f"{'no number' if row.published is None else f'{row.published:g}'}"
            for row in manifest.rows if row.run == training.id
        ]  # fmt: skip
        said += [f"{figure['paper']} {figure['figure']}" for figure in manifest.figures
                 if training.id in manifests.runs_of(figure)]  # fmt: skip
        said = said or [f"{claim['paper']} {claim['where']}: {claim['text']}" for claim in manifest.claims
                        if training.id in (claim["better"], claim["worse"])]  # fmt: skip
        for line in said:
            print(f"    {line}")
    return 0


def status(manifest: Manifest, args) -> int:
    chosen = manifest.select(args.names) if args.names else list(manifest.runs.values())
    settings = {kind: Settings(kind, {}, None, 1, False) for kind in KINDS}
    counts = dict.fromkeys(("complete", "partial", "begun", "damaged", "not run"), 0)
    for each in chosen:
        lines = []
        for kind in each.schedule.kinds:
            for seed in seeds_of(each, kind, settings[kind]):
                training = Training(each, seed, settings[kind])
                what, said = state(training)
                if what != "not run":
                    counts[what] += 1
                    lines.append(f"    {kind}, seed {seed}: {said}")
        counts["not run"] += not lines
        if lines or args.all:
            print("\n".join([each.id, *(lines or ["    not run"])]))
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 0


def seeds_of(run, kind: str, settings: Settings) -> List[int]:
    """The manifest's, and those that were run beside them."""
    places = [*settings.results.glob(f"{run.id}.{kind}.seed*.json"), *settings.runs.glob(f"{run.id}.{kind}.seed*")]
    found = (re.fullmatch(r"seed(\d+)", place.name.removesuffix(".json").rpartition(".")[2]) for place in places)
    return sorted({*run.seeds, *(int(each[1]) for each in found if each)})


def state(training: Training) -> tuple:
    """Of a training: complete, partial, begun or not run, and what to say."""
    if training.result.is_file():
        try:
            result = earlier(training)
        except Refused as error:
            return "damaged", str(error)
        return "complete" if result["complete"] else "partial", summary(result)
    log = training.folder / "train.log"
    if log.is_file():
        points = curve(log.read_text(encoding="utf-8", errors="replace"))
        who = at_work(training.folder)
        then = f"{who} is at work on it" if who else "run it again to go on"
        return "begun", f"begun, {points[-1]['updates'] if points else 0:,} updates; {then}"
    return "not run", ""


def report(manifest: Manifest, args) -> int:
    import reproduce_report

    for path in reproduce_report.write_all(manifest):
        print(f"wrote {os.path.relpath(path)}")
    return 0


def parse(arguments: Optional[List[str]]):
    parser = argparse.ArgumentParser(
        prog="reproduce", description="Run rows of the papers' tables again, and report.",
        epilog="NAME: a run, a paper (T16), a table or figure of one (\"H16:Table 6.2\"), or headlines.",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    lists = commands.add_parser("list", help="what there is")
    runs = commands.add_parser("run", help="train, score and write down")
    states = commands.add_parser("status", help="what was run, and how far")
    commands.add_parser("report", help="write RESULTS.md and results/figures")
    for each, wanted in ((lists, "*"), (states, "*"), (runs, "+")):
        what = "a run, a paper, a table or figure of one, or headlines"
        each.add_argument("names", nargs=wanted, metavar="NAME", help=what)
    states.add_argument("--all", action="store_true", help="what was not run as well")
    for flag, settings in {
        "--schedule": {"choices": KINDS, "default": "paper",
                       "help": "the paper's, or a shortened one, alike for all rows compared (default: paper)"},
        "--budget": {"type": seconds, "metavar": "TIME",
                     "help": "training time of each, from now: 90s, 30m, 1.5h (default: to the schedule's end)"},
        "--seeds": {"type": seed, "nargs": "+", "metavar": "N", "help": "default: those of rows.toml"},
        "--data": {"type": pair, "action": "append", "default": [], "metavar": "NAME=FOLDER",
                   "help": "where a binarised corpus lies (default: data-bin/NAME)"},
        "--jobs": {"type": positive, "default": 1, "metavar": "N", "help": "trainings at a time (default: 1)"},
        "--threads": {"type": positive, "metavar": "N", "help": "of each (default: the cores, shared by the jobs)"},
        "--device": {"choices": ("cpu", "cuda"), "help": "default: cuda where torch sees a GPU"},
    }.items():  # fmt: skip
        runs.add_argument(flag, **settings)
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0; 1 if a run failed; 2 after one line that says what is wrong."""
    args = parse(arguments)
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it lets everybody speak
    try:
        code = {"list": show, "run": run, "status": status, "report": report}[args.command](manifests.load(), args)
        sys.stdout.flush()
        return code
    except (Refused, OSError) as error:
        if isinstance(error, BrokenPipeError) and args.command in ("list", "status"):  # less or head had enough
            reader_gone()
            return 0
        print(f"reproduce: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reproduce: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
