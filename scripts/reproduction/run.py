"""One training of the manifest by the ordinary fairseq commands, scored and written down.

Checkpoints and the log lie in ``runs/<run>.<schedule>.seed<N>``, where an interrupted training goes on. What is kept is
``results/rows/<the same name>.json``, written by :func:`write`, and the log's lines beside it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import reproduction.results
from outputs import say, whole
from reproduction.calls import Calls, whose
from reproduction.checkpoints import BEST, LAST, checkpoints, mend, saved
from reproduction.logs import GOES_ON, STOPS, curve, epochs_done, kept_lines, last_line, read_score
from reproduction.manifest import ROOT, Refused
from reproduction.process import allocator, alone, call, relative
from reproduction.results import by_now
from reproduction.training import NO_WORKERS, ON_CPU, PRECISION, Settings, Training, digests, read_json

sys.path.insert(0, str(ROOT))  # this checkout's package, installed or not

FLAGS, DATA = "flags.json", "data.json"  # with and on what a training was begun
NO_SPACE = 2**20  # bytes: with fewer free ones no checkpoint is written


def carry_out(training: Training, evaluations: Sequence[Tuple[str, ...]]) -> dict:
    """Train (or go on), score, and write the result unless there is a better one.

    Args:
        evaluations: flags of the scorings, the plain one first.
    Returns:
        the result; where an earlier one is kept as it was better, this in ``kept``.
    Raises:
        Refused: a command failed, and the message says where its output is; or another process is at this training.
    """
    earlier(training)  # so that a damaged one, or a folder that cannot be written, is no surprise after the training
    training.result.parent.mkdir(parents=True, exist_ok=True)
    for file in (training.result, log_of(training)):
        if file.is_dir():
            raise Refused(f"{relative(file)} is a folder")
    with tempfile.TemporaryFile(dir=training.result.parent):
        pass  # something can be written there
    with alone(training.folder) as lock:
        if training.schedule.metric == "seconds":
            where = environment(training.settings, "scripts/benchmark.py")
            return write(training, *timed(training, lock), whose(where))
        return trained(training, evaluations, lock)


def trained(training: Training, evaluations: Sequence[Tuple[str, ...]], lock: int) -> dict:
    """As :func:`carry_out`, of a training by fairseq."""
    clock, log = time.monotonic(), training.folder / "train.log"
    command, flags = training.schedule.script or "fairseq-train", training.train_flags()
    program = command.removeprefix("fairseq-")
    data = digests(ROOT / training.data)
    if not training.schedule.script:
        check_the_same(training, flags, data)
        mended = mend(training.folder)
        if mended:
            say(f"{training.name}: {mended}")
    there = earlier(training)
    check_the_same_text(training, there, data)
    done = saved(training.folder)[0]
    if there and done < there["updates"] and not training.schedule.script:
        say(f"{training.name}: {relative(training.result)} is of {there['updates']:,} updates; this training "
            f"{f'goes on from update {done:,}' if done else 'begins at the first'}, and what comes of it is kept only "
            "if it goes as far")  # fmt: skip
    calls = Calls(training.folder, done, log, environment(training.settings, program))
    before = begun(training, flags, data, log)
    code, said = 0, ""
    if not whole_already(training):
        code, said = call(program, [*flags, *budget(training)], training.settings.threads, log, lock)
    if code:
        raise failed(training, command, said, log, code)
    if not training.schedule.script:
        saved(training.folder, BEST)  # which no more training would mend: it says so
    scorings = {" ".join(more): training.score_flags(more, "test") for more in evaluations}
    scores = {key: score(training, each, lock) for key, each in scorings.items()}
    check_tokens(training, scores)
    valid = score(training, training.score_flags((), "valid"), lock)
    log_of_all = before + said
    came = described(training, log_of_all, said)
    made = calls.ended(time.monotonic() - clock, came["updates"])
    seconds = {"train": round(saved(training.folder)[1], 1), "wall": made.pop("wall")}
    flags = with_precision(flags, made["environment"].get("matmul_precision"))  # which this call may not have trained
    found = {
        **came, "curve": curve(log_of_all), "valid": valid, "test": scores, "seconds": seconds,
        "commands": {"train": named(training, [command, *flags]),
                     "score": {key: named(training, [f"fairseq-{training.schedule.command}", *each])
                               for key, each in scorings.items()}},
        "data": {"name": training.schedule.data, "sha256": data},
        "started": made.pop("started"),
    }  # fmt: skip
    return write(training, found, log_of_all, made)


def named(training: Training, command: List[str]) -> List[str]:
    """A command with the usual folder in place of one outside of the repository, which is of this machine."""
    usual = f"data-bin/{training.schedule.data}"
    folder = training.settings.data.get(training.schedule.data, usual)
    outside = folder.startswith("..") or os.path.isabs(folder)
    return [part.replace(folder, usual) if outside else part for part in command]


def check_the_same(training: Training, flags: List[str], data: Dict[str, str]) -> None:
    """
    Raises:
        Refused: it was begun with other flags (device and precision may differ, the data lie elsewhere, and the
            schedule have become longer), or another text.
    """
    if not checkpoints(training.folder):
        return
    anew = f"remove {relative(training.folder)} to begin anew"
    before, data_before = (read_json(training.folder / name) for name in (FLAGS, DATA))
    (others_before, length_before), (others, length) = map(without_length, (before, compared(flags)))
    if others_before != others or length_before > length:
        said = " ".join(map(str, before)) if isinstance(before, list) else "not known"
        raise Refused(f"{training.name} was begun with other flags ({said}): {anew}")
    if data_before not in (None, data):
        raise Refused(f"{training.name} was begun with other data than {training.data}, by their hashes: {anew}")


def check_the_same_text(training: Training, before: Optional[dict], data: Dict[str, str]) -> None:
    """
    Raises:
        Refused: the result that there is was made of another text.
    """
    had = (before or {}).get("data", {}).get("sha256", {})
    if any(had[split] != data[split] for split in had.keys() & data.keys()):
        raise Refused(
            f"{training.name}: {training.data} is another corpus than that of {relative(training.result)}, by the "
            "hashes of both: move that file away to replace it"
        )


def compared(flags: List[str]) -> List[str]:
    """Those that have to stay as they were, and the length, which may grow."""
    return [flag for flag in flags[1:] if flag not in (ON_CPU, NO_WORKERS) and not flag.startswith(PRECISION)]


def without_length(flags: Any) -> Tuple[Any, float]:
    """Flags without the length of the schedule, of which no scheduler in the manifest makes anything, and that."""
    if not (isinstance(flags, list) and all(isinstance(flag, str) for flag in flags)):
        return flags, 0.0
    place = next((place for place, flag in enumerate(flags[:-1]) if flag in ("--max-epoch", "--max-update")), None)
    if place is None or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", flags[place + 1]):
        return flags, 0.0
    return [*flags[:place], *flags[place + 2 :]], float(flags[place + 1])


def with_precision(flags: List[str], precision: Optional[str]) -> List[str]:
    """The flags of a training, as of a call with this precision of products."""
    others = [flag for flag in flags if not flag.startswith(PRECISION)]
    place = others.index("--arch") if "--arch" in others else 0
    return [*others[:place], f"{PRECISION}={precision}", *others[place:]] if precision else others


def begun(training: Training, flags: List[str], data: Dict[str, str], log: Path) -> str:
    """The log of what was trained before, to which a line is added that says how much of it counts; without a
    checkpoint none of it does, and it is put aside."""
    if not (training.folder / LAST).is_file():
        if log.is_file():
            os.replace(log, log.with_suffix(".old.log"))
        for name, given in ((FLAGS, compared(flags)), (DATA, data)):
            (training.folder / name).write_text(json.dumps(given) + "\n", encoding="utf-8")
        return ""
    updates, _ = saved(training.folder)
    (training.folder / FLAGS).write_text(json.dumps(compared(flags)) + "\n", encoding="utf-8")  # it may be longer now
    cut_to_lines(log)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{GOES_ON}{updates}\n")
    return log.read_text(encoding="utf-8", errors="replace")


def cut_to_lines(log: Path) -> None:
    """Cuts off a last line without an end: what an interrupted machine or a full disk has left of it may say something
    else than the whole line."""
    text = log.read_bytes() if log.is_file() else b""
    if not text.endswith(b"\n"):
        log.write_bytes(text[: text.rfind(b"\n") + 1])


def whole_already(training: Training) -> bool:
    """Whether all updates of the schedule are made, and only the scoring is missing. fairseq-train notices that after
    an update: it would make one more (the end of epochs it notices before)."""
    updates = training.schedule.updates
    return bool(updates) and not training.schedule.script and saved(training.folder)[0] >= updates


def budget(training: Training) -> List[str]:
    """The flag that stops training; fairseq counts the time of all calls."""
    if training.settings.budget is None or training.schedule.script:
        return []
    hours = (saved(training.folder)[1] + training.settings.budget) / 3600
    return ["--stop-time-hours", f"{max(hours, 1e-6):.6f}"]


def score(training: Training, flags: List[str], lock: int) -> dict:
    log = training.folder / "score.log"
    code, said = call(training.schedule.command, flags, training.settings.threads, log, lock)
    if code:
        raise failed(training, f"fairseq-{training.schedule.command}", said, log, code)
    return read_score(training.schedule.metric, said)


def failed(training: Training, command: str, said: str, log: Path, code: int) -> Refused:
    """What to say of a command that failed: on a full disk its own last words are cut off, and so is its log; killed,
    it had none."""
    told = re.search(STOPS["signal"], said) if code > 0 else None
    if told:
        name = told[0].rpartition(" ")[2]
        return Refused(f"{training.name}: stopped by {name}; the same command goes on from the last checkpoint")
    full = shutil.disk_usage(training.folder).free < NO_SPACE
    why = f"no space left on the device of {relative(training.folder)}" if full else ended_by(code) or last_line(said)
    return Refused(f"{training.name}: {command} failed ({why}); see {relative(log)}")


def ended_by(code: int) -> str:
    """The signal that an exit code tells of; empty: none."""
    if code >= 0:
        return ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + ", as a system does that is out of memory" * (name == "SIGKILL")


def check_tokens(training: Training, scores: dict) -> None:
    """
    Raises:
        Refused: the test set is not the row's.
    """
    for each in scores.values():
        if training.schedule.tokens and each["tokens"] != training.schedule.tokens:
            raise Refused(
                f"{training.name}: {training.data} is another corpus: {each['tokens']:,} scored on its test set, "
                f"{training.schedule.tokens:,} on that of tasks/{training.schedule.recipe}"
            )


def described(training: Training, log: str, said: str) -> dict:
    """How far the training came: complete, where the schedule or its rule ended it.

    Raises:
        Refused: the log does not tell it.
    """
    if training.schedule.script:
        all_of_it = {"epochs": 1.0, "updates": 0, "of_schedule": 1.0, "of_paper": 1.0, "parameters": None}
        return {"complete": True, "stopped": "schedule", **all_of_it}
    points = curve(log)
    updates, made = points[-1]["updates"] if points else 0, saved(training.folder)[0]
    if updates < float(f"{made:g}"):  # the log has six digits
        raise Refused(
            f"{training.name}: its log ends after {updates:,} updates, its checkpoint has {made:,}: "
            f"remove {relative(training.folder)} to begin anew"
        )
    epochs = epochs_done(points, log)
    stopped = next((name for name, words in STOPS.items() if re.search(words, said)), "schedule")
    of_schedule = training.schedule.share(epochs, updates)
    of_paper = training.run.schedule.share(epochs, updates)
    complete = stopped == "rule" or (stopped == "schedule" and of_schedule > 0.999)
    if stopped == "rule":
        of_schedule = 1.0
        of_paper = 1.0 if training.settings.kind == "paper" else of_paper
    parameters = re.search(r"num\. shared model params: ([\d,]+)", log)
    return {
        "complete": complete, "stopped": stopped, "epochs": round(epochs, 3), "updates": updates,
        "of_schedule": round(of_schedule, 6), "of_paper": round(of_paper, 6),
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
    }  # fmt: skip


def timed(training: Training, lock: int) -> Tuple[dict, str]:
    """The time of an update of this architecture over that of the schedule's reference, side by side on its text; and
    what the benchmark printed."""
    output = training.folder
    output.mkdir(parents=True, exist_ok=True)
    reference, *sizes = training.schedule.train
    cells = list(dict.fromkeys([reference, training.run.arch]))
    flags = [
        "updates", "--data", training.data, "--cells", *cells, *sizes, "--recurrence", "auto", "--no-peers",
        "--rounds", "5",
        "--updates", str(training.schedule.updates), "--threads", str(training.settings.threads),
        "--device", "cuda" if training.settings.cuda else "cpu", *([] if training.settings.cuda else ["--in-turns"]),
        "--output", relative(output),
    ]  # fmt: skip
    file = output / f"updates{'-cuda' * training.settings.cuda}.json"
    file.unlink(missing_ok=True)  # of an earlier call
    started = datetime.datetime.now()
    code, said = call("scripts/benchmark.py", flags, training.settings.threads, output / "train.log", lock)
    if code or not file.is_file():
        raise Refused(f"{training.name}: benchmark.py failed: {ended_by(code) or last_line(said)}")
    from benchmarking.results import Results

    results = Results(json.loads(file.read_text(encoding="utf-8")))
    group = {cell: next(name for name in results.groups if name.split()[-1] == cell) for cell in cells}
    ratios = results.ratios((group[training.run.arch], "auto"), (group[reference], "auto"))
    return {
        "complete": True, "stopped": "schedule", "epochs": 0.0, "updates": training.schedule.updates,
        "of_schedule": 1.0, "of_paper": 1.0, "parameters": None, "curve": [], "valid": {},
        "test": {"": {"ratio": round(statistics.median(ratios), 4), "low": round(min(ratios), 4),
                      "high": round(max(ratios), 4), "reference": reference}},
        "seconds": {"wall": round((datetime.datetime.now() - started).total_seconds(), 1)},
        "commands": {"train": named(training, ["scripts/benchmark.py", *flags]), "score": {}},
        "started": started.isoformat(timespec="seconds"),
    }, said  # fmt: skip


def environment(settings: Settings, command: str) -> dict:
    """Machine, versions and commit, as the benchmark writes them, and how the command allocates memory."""
    import benchmark

    asked = SimpleNamespace(threads=settings.threads, device="cuda" if settings.cuda else "cpu")
    precision = settings.matmul_precision
    return {
        **benchmark.environment(asked, (*benchmark.CODE, "tasks")), "allocator": allocator(command),
        **({"matmul_precision": precision, "rounds": settings.rounds} if precision and command == "train" else {}),
    }  # fmt: skip


def earlier(training: Training) -> Optional[dict]:
    """The result that there is, whole or partial by the schedule as it is now.

    Raises:
        Refused: it is damaged.
    """
    if not training.result.is_file():
        return None
    return by_now(reproduction.results.read(training.result), training.run).data


def write(training: Training, found: dict, log: str, made: dict) -> dict:
    """The result's file, unless there is one of a training that went further, or was as long and exact (:func:`exact`).

    Args:
        made: ``commit``, ``modified``, ``environment`` and, of a training, ``calls``.
    """
    result = {
        "schema": 1, "run": training.run.id, "recipe": training.schedule.recipe, "arch": training.run.arch,
        "schedule": training.settings.kind, "seed": training.seed, "metric": training.schedule.metric, **found,
        "finished": datetime.datetime.now().isoformat(timespec="seconds"), **made,
    }  # fmt: skip
    file, before = training.result, earlier(training)
    if before and (further(before, result) or exact(training, before, result)):
        return {**before, "kept": result}
    files = {file: json.dumps(result, indent=1) + "\n"}
    if log:
        files[log_of(training)] = kept_lines(*named(training, [log]), every=training.run.untrained)
    with contextlib.ExitStack() as parts:  # they take their places in reverse order: the result says that all is there
        for each, text in files.items():
            parts.enter_context(whole(each)).write_text(text, encoding="utf-8")
    return result


def log_of(training: Training) -> Path:
    return training.result.with_suffix(".log")


def exact(training: Training, one: dict, other: dict) -> bool:
    """Whether *one*, the result that there is, was trained as the manifest says now without rounded products, and
    *other* with."""
    precisions = [reproduction.results.precision(each) for each in (one, other)]
    if not (one["complete"] and other["complete"] and precisions[0] is None and precisions[1]):
        return False
    return not reproduction.results.read(training.result).lacking(training.run)


def further(one: dict, other: dict) -> bool:
    """Whether *one* was trained further than *other*; of two whole trainings neither was, as the schedule may have
    become another since."""
    if one["complete"] and other["complete"]:
        return False
    return (one["complete"], one["of_schedule"], one["updates"]) > (
        other["complete"], other["of_schedule"], other["updates"]
    )  # fmt: skip
