"""The four papers' tables and figures, run again by the ordinary fairseq commands.

    python scripts/reproduce.py list [NAME ...]                      # what there is: runs, and the rows they are for
    python scripts/reproduce.py run t16-word-gru-rntn --budget 30m   # train for 30 minutes, or 30 more; score
    python scripts/reproduce.py run "S18:Table 1" --schedule short   # all runs of a table, by its shortened schedule
    python scripts/reproduce.py status                               # what was run, and how far
    python scripts/reproduce.py report                               # RESULTS.md and results/figures

A NAME is a run, a paper (T16, S18, E18, H16), one of its tables or figures (``"H16:Table 6.2"``), or ``headlines``: the
runs of the comparisons that the report begins with. Runs, rows and schedules stand in ``tasks/*/rows.toml`` (format:
``scripts/reproduction/manifest.py``). A run trains with ``fairseq-train``, on a GPU if there is one (``--jobs`` take
several in turn), in ``runs/NAME.SCHEDULE.seedN``; started again it goes on there. It is scored with
``fairseq-eval-lm`` or ``fairseq-generate`` and written, with curve, log, machine, versions and commit, to
``results/rows``, where a result never gives way to one of a shorter training, nor an exact one to one with rounded
products (``--matmul-precision``). A training that the budget stopped is marked as partial, and so is one by a schedule
that has become longer since; both go on where they ended.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import logging
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import reproduction.manifest as manifests
from outputs import reader_gone, say
from reproduction.logs import GOES_ON, curve, epochs_done
from reproduction.manifest import KINDS, METRICS, SEEDS, Manifest, Refused
from reproduction.process import at_work, kill_all, relative, start_anew, stop_all, take_gpu
from reproduction.results import validated
from reproduction.run import carry_out, earlier
from reproduction.tables import length, per_cent
from reproduction.training import PRECISIONS, Settings, Training

LOOK = 30  # seconds from look to look at the logs
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """``90s``, ``30m``, ``1.5h``, ``2d``."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)([smhd])", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 90s, 30m, 1.5h or 2d")
    return float(match[1]) * UNITS[match[2]]


def pair(text: str) -> List[str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER, for example ptb=data-bin/ptb")
    if ":" in folder:
        raise argparse.ArgumentTypeError(f"{folder!r}: a colon separates folders for fairseq-train")
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
    if len(data) < len(args.data):
        raise Refused("--data: two folders of one name")
    threads = args.threads or max(1, cores // args.jobs)
    precision = args.matmul_precision
    rounds = bool(precision) and rounding(precision, cuda)
    return Settings(args.schedule, data, args.budget, threads, cuda, precision, rounds)


def rounding(precision: str, cuda: bool) -> bool:
    """Whether this machine's products round what they multiply at a precision. It is set for a moment in this process:
    not to be asked in several threads."""
    import torch

    from rntn_plugins.ops import products

    if cuda:
        return precision != PRECISIONS[0] and torch.cuda.get_device_capability() >= (8, 0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        return products.rounds()
    finally:
        torch.set_float32_matmul_precision(before)


# ---- commands --------------------------------------------------------------------------------------------------------


def trainings(manifest: Manifest, args, settings: Settings) -> List[Training]:
    """What is to run, in the order of the names. Of papers, tables and figures what has no such schedule is left out,
    and what counts or times, which is the same with every seed, has one; both is said.

    Raises:
        Refused: before anything runs, for an unknown name, or data that are not there, or where a run that is named
            itself, or all of them, have no such schedule.
    """
    known = {run.schedule.data for run in manifest.runs.values()}
    for name in settings.data.keys() - known:
        raise Refused(f"--data {name}: no run has such data; there are {', '.join(sorted(known))}")
    found: List[Training] = []
    chosen = manifest.select(args.names)
    without = [run for run in chosen if settings.kind not in run.schedule.kinds]
    if len(without) < len(chosen) and not {run.id for run in without} & set(args.names):
        chosen = [run for run in chosen if run not in without]
        if without:
            say(f"left out, without a {settings.kind} schedule: {', '.join(run.id for run in without)}")
    for run in chosen:
        seeds = args.seeds or run.seeds
        if run.untrained and (args.seeds or settings.budget or settings.matmul_precision):
            say(f"{run.id}: no training; --seeds, --budget and --matmul-precision do not change it")
        for number in dict.fromkeys(run.seeds[:1] if run.untrained else seeds):
            training = Training(run, number, settings)
            training.schedule, training.data  # noqa: B018 (raise where there is none)
            found.append(training)
    return found


def run(manifest: Manifest, args) -> int:
    settings = settings_of(args)
    todo = trainings(manifest, args, settings)
    start_anew()
    say(f"{len(todo)} to run, {args.jobs} at a time with {settings.threads} threads, "
        f"{'GPU' if settings.cuda else 'CPU'}")  # fmt: skip
    trained = sum(not training.run.untrained for training in todo)
    if settings.cuda and min(args.jobs, trained) > len(gpus()) and turns():
        say("trainings on one GPU take turns; with CUDA's multi-process service (nvidia-cuda-mps-control -d, before "
            "this) they run side by side, and are quicker")  # fmt: skip
    failed, told = 0, {training.name: progress(training)[0] for training in todo}
    own = {"initializer": take_gpu, "initargs": (itertools.cycle(gpus()),)} if settings.cuda else {}
    with ending_all(), concurrent.futures.ThreadPoolExecutor(args.jobs, **own) as pool:
        try:
            going = {pool.submit(one, training, manifest): training for training in todo}
            left = set(going)
            while left:
                done, left = concurrent.futures.wait(left, LOOK, concurrent.futures.FIRST_COMPLETED)
                for each in done:
                    training, number = going[each], len(going) - len(left)
                    try:
                        said = each.result()
                    except Refused as error:
                        failed, said = failed + 1, f"failed: {error}"
                    except Exception as error:  # ours; the others go on
                        failed, said = failed + 1, f"failed: {type(error).__name__}: {error}"
                        if isinstance(error, OSError) and not error.filename:  # a full disk, a limit of sizes
                            said += f", in {relative(training.folder)} or {relative(settings.results)}"
                    say(f"[{number}/{len(todo)}] {training.name}: {said}")
                for each in left:
                    training = going[each]
                    validations, said = progress(training) if each.running() else (0, "")
                    if validations > told[training.name]:
                        told[training.name] = validations
                        say(f"{training.name}: {said}")
        except BaseException as error:  # a signal; or a mistake of ours, which is not to wait for all trainings
            if isinstance(error, KeyboardInterrupt):
                say("stopping: trainings save where they are; another signal ends them at once")
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
    return 1 if failed else 0


@contextlib.contextmanager
def ending_all() -> Iterator[None]:
    """The first signal that ends us raises ``KeyboardInterrupt``, as Ctrl-C does, so that our commands end too; one
    after it kills those that are still at it. What was to be ignored (``nohup``) is from the start."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}

    def set_all(handler) -> None:
        for number, usual in before.items():
            if usual != signal.SIG_IGN:
                signal.signal(number, handler)

    def interrupt(number: int, frame) -> None:
        set_all(lambda *_: kill_all())  # and not SIG_IGN, which a command that is started meanwhile would inherit
        raise KeyboardInterrupt

    set_all(interrupt)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def progress(training: Training) -> Tuple[int, str]:
    """By its log how often a training was validated, and how far it is: ``3,984 updates, 50 % of the schedule;
    validation: ppl 151.2``."""
    log = training.folder / "train.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    points = curve(text)
    valid = [point for point in points if "valid" in point]
    _, went_on, since = text.rpartition(GOES_ON)  # what was made after that checkpoint is lost
    numbers = re.findall(r"num_updates=(\d{1,15}(?:\.\d+)?(?:e\+\d\d)?)(?![\w.])", since)[-1:]
    numbers = numbers or re.findall(r"^\d{1,15}\b", since) * bool(went_on)
    updates = max([int(float(number)) for number in numbers]
                  + [point["updates"] for point in points[-1:]], default=0)  # fmt: skip
    if not updates:
        return 0, "0 updates"
    now = [*points, {"epoch": 1, "updates": updates}]
    share = training.schedule.share(epochs_done(now, text), updates)
    key = validated(training.schedule.metric)
    value = valid[-1]["valid"].get(key) if valid else None
    said = f"; validation: {key} {value:g}" if value is not None else ""
    return len(valid), f"{updates:,} updates, {per_cent(share)} of the schedule{said}"


def gpus() -> List[str]:
    """Those that torch sees, by the names CUDA knows them by; jobs take them in turn."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def turns() -> bool:
    """Whether processes on one GPU take turns, though there is CUDA's multi-process service, by which they need not.

    Its pipes lie where ``CUDA_MPS_PIPE_DIRECTORY`` says, or else in CUDA's default folder.
    """
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return bool(shutil.which("nvidia-cuda-mps-control")) and not os.path.exists(f"{pipes}/control")


def one(training: Training, manifest: Manifest) -> str:
    """Carry out a training; what to say of it."""
    say(f"{training.name}: started; its log is {training.folder}/train.log")
    result = carry_out(training, manifest.evaluations(training.run.id))
    if "kept" in result:
        as_far = result["complete"] and result["kept"]["complete"]
        better = "is as long, without rounded products" if as_far else "went further"
        return f"{summary(result['kept'])}; not kept, as an earlier result {better}: {summary(result)}"
    return summary(result)


def summary(result: dict) -> str:
    """One line of a result."""
    test = result["test"][""]
    if "ratio" in test:
        return f"{test['ratio']:.3g} times the time of {test['reference']}"
    end = "complete" if result["complete"] else "partial"
    return (
        f"{METRICS[result['metric']][0]} {test[result['metric']]:g}; {end}, {result['epochs']:.2f} epochs, "
        f"{result['updates']:,} updates, {per_cent(result['of_paper'])} of the paper's schedule"
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
    who = at_work(training.folder)
    if training.result.is_file():
        try:
            result = earlier(training)
        except Refused as error:
            return "damaged", str(error)
        more = f"; {who} is at work on it: {progress(training)[1]}" if who else ""
        return "complete" if result["complete"] else "partial", summary(result) + more
    if (training.folder / "train.log").is_file():
        return (
            "begun",
            f"begun, {progress(training)[1]}; {f'{who} is at work on it' if who else 'run it again to go on'}",
        )
    return "not run", ""


def report(manifest: Manifest, args) -> int:
    import reproduction.report

    results = reproduction.results.Results()
    for path in reproduction.report.write_all(manifest, results):
        print(f"wrote {os.path.relpath(path)}")
    if not results.all:
        print(f"reproduce: no results in {relative(reproduction.results.ROWS)}: it says that nothing was measured",
              file=sys.stderr)  # fmt: skip
    return 0


def parse(arguments: Optional[List[str]]):
    parser = argparse.ArgumentParser(
        prog="reproduce", description="Run rows of the papers' tables again, and report.",
        epilog="NAME: a run, a paper (T16), a table or figure of one (\"H16:Table 6.2\"), or headlines.",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    lists = commands.add_parser("list", help="what there is")
    runs = commands.add_parser("run", help="train, score and write down", epilog=parser.epilog)
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
                     "help": "training time of each, from now, the scoring after it not counted: 90s, 30m, 1.5h "
                             "(default: to the schedule's end)"},
        "--seeds": {"type": seed, "nargs": "+", "metavar": "N", "help": "default: those of rows.toml"},
        "--data": {"type": pair, "action": "append", "default": [], "metavar": "NAME=FOLDER",
                   "help": "where a binarised corpus lies (default: data-bin/NAME)"},
        "--jobs": {"type": positive, "default": 1, "metavar": "N", "help": "trainings at a time (default: 1)"},
        "--threads": {"type": positive, "metavar": "N", "help": "of each (default: the cores, shared by the jobs)"},
        "--device": {"choices": ("cpu", "cuda"), "help": "default: cuda where torch sees a GPU"},
        "--matmul-precision": {"choices": PRECISIONS, "help": "of products in training, as fairseq-train has it here; "
                               "scores are computed without (default: torch's, highest)"},
    }.items():  # fmt: skip
        runs.add_argument(flag, **settings)
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0; 1 if a run failed; 2 after one line that says what is wrong."""
    args = parse(arguments)
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it lets everybody speak
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal without Unicode cannot show
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
    except ModuleNotFoundError as error:
        print(f"reproduce: error: {error}; pip install -e .", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        then = "; the same command goes on from the last checkpoint" if args.command == "run" else ""
        print(f"reproduce: stopped{then}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
