"""One training of the manifest by the ordinary fairseq commands, scored and written down.

Checkpoints and the log lie in ``runs/<run>.<schedule>.seed<N>``, where an interrupted training goes on. What is kept is
``results/rows/<the same name>.json``, written by :func:`write`, and the log's lines beside it.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Iterator, List, Sequence, Set, Tuple

from reproduce_logs import STOPS, curve, epochs_done, kept_lines, last_line, read_score
from reproduce_manifest import ROOT, Refused
from reproduce_training import Settings, Training, relative

sys.path.insert(0, str(ROOT))  # this checkout's package, installed or not

COMMANDS = {"train": "fairseq_cli.train", "eval-lm": "fairseq_cli.eval_lm", "generate": "fairseq_cli.generate"}
#: commands that run now, in any thread
_going: Set[subprocess.Popen] = set()


def call(command: str, flags: Sequence[str], threads: int, log: Path) -> Tuple[int, str]:
    """Run a fairseq command in the repository's root, its output appended to *log*.

    Returns:
        its exit code and what it printed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        start = out.tell()
        program = [sys.executable, "-m", COMMANDS[command], *flags]
        process = subprocess.Popen(program, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment)
        _going.add(process)
        try:
            code = process.wait()
        finally:
            stop(process)
    with log.open("rb") as written:
        written.seek(start)
        return code, written.read().decode("utf-8", errors="replace")


def stop(process: subprocess.Popen) -> None:
    """End a command that may have ended."""
    process.terminate()
    process.wait()
    _going.discard(process)


def stop_all() -> None:
    """End what runs, in whatever thread; who waits for it sees it fail."""
    for process in list(_going):
        stop(process)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """
    Raises:
        Refused: another process is at work in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another process is at work in {relative(folder)}") from None
        yield


# ---- the whole -------------------------------------------------------------------------------------------------------


def carry_out(training: Training, evaluations: Sequence[Tuple[str, ...]]) -> dict:
    """Train (or go on), score, and write the result unless there is a better one.

    Args:
        evaluations: flags of the scorings, the plain one first.
    Returns:
        the result; with ``kept`` true where an earlier one was better.
    Raises:
        Refused: a command failed, and the message says where its output is; or another process is at this training.
    """
    with alone(training.folder):
        if training.schedule.metric == "seconds":
            return write(training, timed(training), "")
        return trained(training, evaluations)


def trained(training: Training, evaluations: Sequence[Tuple[str, ...]]) -> dict:
    """As :func:`carry_out`, of a training by fairseq."""
    started, clock, log = datetime.datetime.now(), time.monotonic(), training.folder / "train.log"
    flags = training.train_flags()
    same_as_before(training, flags)
    before = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    budget = []
    if training.settings.budget is not None:
        budget = ["--stop-time-hours", f"{(saved_seconds(training.folder) + training.settings.budget) / 3600:.6f}"]
    code, said = call("train", [*flags, *budget], training.settings.threads, log)
    if code:
        raise Refused(f"{training.name}: fairseq-train failed ({last_line(said)}); see {relative(log)}")
    scores, scorings = {}, {}
    for more in evaluations:
        key = " ".join(more)
        scorings[key] = training.score_flags(more, "test")
        scores[key] = score(training, scorings[key])
    valid = score(training, training.score_flags((), "valid"))
    whole = before + said
    found = {
        **described(training, whole, said), "curve": curve(whole), "valid": valid, "test": scores,
        "seconds": {"train": round(saved_seconds(training.folder), 1), "wall": round(time.monotonic() - clock, 1)},
        "commands": {"train": ["fairseq-train", *flags],
                     "score": {key: [f"fairseq-{training.schedule.command}", *each] for key, each in scorings.items()}},
        "started": started.isoformat(timespec="seconds"),
    }  # fmt: skip
    return write(training, found, whole)


def same_as_before(training: Training, flags: List[str]) -> None:
    """What was begun goes on with the flags that it was begun with (the data may lie elsewhere, and the device differ).

    Raises:
        Refused: other flags.
    """
    kept, wanted = training.folder / "flags.json", [flag for flag in flags[1:] if flag != "--cpu"]
    if (training.folder / "checkpoint_last.pt").is_file() and kept.is_file():
        begun = json.loads(kept.read_text(encoding="utf-8"))
        if begun != wanted:
            raise Refused(
                f"{training.name} was begun with other flags than rows.toml has now ({' '.join(begun)}): remove "
                f"{relative(training.folder)} to begin anew"
            )
    kept.write_text(json.dumps(wanted) + "\n", encoding="utf-8")


def saved_seconds(folder: Path) -> float:
    """fairseq's own count of the training time in the last checkpoint; 0 without one."""
    path = folder / "checkpoint_last.pt"
    if not path.is_file():
        return 0.0
    import torch

    import rntn_plugins  # noqa: F401 (lets torch load fairseq's checkpoints)

    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return float(state.get("extra_state", {}).get("previous_training_time", 0.0))


def score(training: Training, flags: List[str]) -> dict:
    log = training.folder / "score.log"
    code, said = call(training.schedule.command, flags, training.settings.threads, log)
    if code:
        command = f"fairseq-{training.schedule.command}"
        raise Refused(f"{training.name}: {command} failed ({last_line(said)}); see {relative(log)}")
    return read_score(training.schedule.metric, said)


def described(training: Training, log: str, said: str) -> dict:
    """How far the training came."""
    points = curve(log)
    updates = points[-1]["updates"] if points else 0
    epochs = epochs_done(points, log)
    stopped = next((name for name, words in STOPS.items() if words in said), "schedule")
    complete = stopped != "budget"
    of_schedule = training.schedule.share(epochs, updates)
    of_paper = training.run.schedule.share(epochs, updates)
    if stopped == "rule":
        of_schedule = 1.0
        of_paper = 1.0 if training.settings.kind == "paper" else of_paper
    parameters = re.search(r"num\. shared model params: ([\d,]+)", log)
    return {
        "complete": complete, "stopped": stopped, "epochs": round(epochs, 3), "updates": updates,
        "of_schedule": round(of_schedule, 4), "of_paper": round(of_paper, 4),
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
    }  # fmt: skip


def timed(training: Training) -> dict:
    """The time of an update of this architecture over that of the schedule's reference, side by side."""
    output = training.folder
    output.mkdir(parents=True, exist_ok=True)
    reference = training.schedule.train[0]
    cells = list(dict.fromkeys([reference, training.run.arch]))
    command = [
        sys.executable, "scripts/benchmark.py", "updates", "--cells", *cells, "--recurrence", "auto", "--rounds", "3",
        "--updates", str(training.schedule.updates), "--threads", str(training.settings.threads),
        "--device", "cuda" if training.settings.cuda else "cpu", "--output", relative(output),
    ]  # fmt: skip
    started = datetime.datetime.now()
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    file = next(iter(output.glob("updates*.json")), None)
    if process.returncode or file is None:
        raise Refused(f"{training.name}: benchmark.py failed: {last_line(process.stderr)}")
    from benchmark_results import Results

    results = Results(json.loads(file.read_text(encoding="utf-8")))
    group = {cell: next(name for name in results.groups if name.split()[-1] == cell) for cell in cells}
    ratios = results.ratios((group[training.run.arch], "auto"), (group[reference], "auto"))
    return {
        "complete": True, "stopped": "schedule", "epochs": 0.0, "updates": training.schedule.updates,
        "of_schedule": 1.0, "of_paper": 1.0, "parameters": None, "curve": [], "valid": {},
        "test": {"": {"ratio": round(statistics.median(ratios), 4), "low": round(min(ratios), 4),
                      "high": round(max(ratios), 4), "reference": reference}},
        "seconds": {}, "commands": {"train": ["python", *command[1:]], "score": {}},
        "started": started.isoformat(timespec="seconds"),
    }  # fmt: skip


def environment(settings: Settings) -> dict:
    """Machine, versions and commit, as the benchmark writes them."""
    import benchmark

    return benchmark.environment(SimpleNamespace(threads=settings.threads, device="cuda" if settings.cuda else "cpu"))


def write(training: Training, found: dict, log: str) -> dict:
    """The result's file, unless there is one of a training that went further."""
    where = environment(training.settings)
    result = {
        "schema": 1, "run": training.run.id, "recipe": training.schedule.recipe, "arch": training.run.arch,
        "schedule": training.settings.kind, "seed": training.seed, "metric": training.schedule.metric, **found,
        "finished": datetime.datetime.now().isoformat(timespec="seconds"), "commit": where.pop("commit"),
        "modified": bool(where.pop("changed_files")), "environment": where,
    }  # fmt: skip
    file = training.result
    if file.is_file():
        earlier = json.loads(file.read_text(encoding="utf-8"))
        if further(earlier, result):
            return {**earlier, "kept": True}
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(part, file)
    if log:
        file.with_suffix(".log").write_text(kept_lines(log), encoding="utf-8")
    return result


def further(one: dict, other: dict) -> bool:
    """Whether *one* was trained further than *other*."""
    return (one["complete"], one["of_schedule"], one["updates"]) > (
        other["complete"], other["of_schedule"], other["updates"]
    )  # fmt: skip
