"""How fast the cells are, layer by layer, training and generating, against other implementations and the floor.

    python scripts/benchmark.py bars                          # the project's requirements: measured, met or missed
    python scripts/benchmark.py cells --cells gru_rntn r_rntn # one layer, forward and backward, at the papers' sizes
    python scripts/benchmark.py cells --compile               # and torch.compile of the naive loop
    python scripts/benchmark.py updates                       # fairseq-train on a made-up corpus, fairseq's lstm_lm too
    python scripts/benchmark.py updates --data data-bin/ptb   # … on a binarised text
    python scripts/benchmark.py updates --dense-gradients --batch 1 --sample-break-mode eos   # gradients by rows or not
    python scripts/benchmark.py generation                    # fairseq's generator: 20 and 200 tokens, beam 1 and 5
    python scripts/benchmark.py scaling                       # how the cost grows with H, K, N, T and B
    python scripts/benchmark.py cells --list                  # what would be measured

Every contender runs in a process of its own (with ``--one-process`` they share one, which starts once), all in turn,
and that over several rounds: noise of a shared machine hits all alike, and ratios are taken within a round. With
``updates --in-turns`` they take turns of a few updates, for a machine whose speed changes within seconds, and the ratio
of a round is the median of those of turns beside each other. Prints a table, saves JSON (all samples) and a chart in
``--output``.

Memory of a layer is the growth of the process's highest resident size (``VmHWM``, set back through
``/proc/self/clear_refs``; ``ru_maxrss`` where that is missing) during the second forward and backward pass over what it
held before it (parameters, inputs); on CUDA that of ``torch.cuda.max_memory_allocated`` during the second to the fifth,
in which what ``auto`` records is made. Of ``fairseq-train`` it is ``ru_maxrss`` of the whole process. The floor is
described in ``benchmarking/floor.py``.

``generation`` is ``fairseq-generate``'s own way with models of random weights (``measure_generation`` in
``benchmarking/measure.py``). "a token, 200 / 20" is the time of a token of a text of 200 over that of one of 20: 1
where a step does not depend on how much was generated before it, less where what a call costs once is spread over more
tokens. "over bare steps" is the generator's time over that of the model's steps alone: what above 1 is not the model's.

The JSON file: ``what``, ``arguments``, ``environment`` (versions, machine, commit), ``complete``, and ``contenders``,
each with the ``group`` and ``role`` it is found by, its ``spec`` (all sizes and flags) and its ``records``, one per
round, with all samples (``seconds``, ``cpu_seconds``) and ``memory`` in bytes, or ``failed`` or ``skipped`` and why;
``points`` (scaling) and ``bars`` name the groups they are about.

Here are the command line, the rounds and the saving. In ``benchmarking``, what starts processes and ends them is in
``processes.py``, what runs in the process of a contender in ``measure.py``, what there is to measure in
``workloads.py`` and ``plans.py``, numbers and charts of what was saved in ``results.py`` and ``charts.py``. Its tables
are those of ``benchmark_report.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import logging
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, List, Optional, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]
import benchmark_report  # noqa: E402
from benchmarking import charts  # noqa: E402  (beside this file)
from benchmarking.measure import measure_here  # noqa: E402
from benchmarking.plans import PLANS  # noqa: E402
from benchmarking.processes import in_process, side_by_side  # noqa: E402

SCHEMA = 1
#: what --recurrence may be: those of the cells, and a loop that only layers have
KNOWN = ("auto", "naive", "fused", "triton", "gather")


def write_corpus(folder: Path, vocabulary: int, tokens: int) -> str:
    """Zipf-distributed words in sentences of 1 to 39, binarised; V counts <unk> and </s>, as the papers do."""
    import numpy as np
    import torch
    from fairseq.data import Dictionary, indexed_dataset

    folder.mkdir()
    dictionary, generator = Dictionary(), np.random.default_rng(1)
    words = vocabulary - 2
    shares = 1.0 / np.arange(1, words + 1)
    text = generator.choice(words, tokens, p=shares / shares.sum())
    for word, count in enumerate(np.bincount(text, minlength=words)):
        dictionary.add_symbol(f"w{word}", n=max(int(count), 1))
    dictionary.save(str(folder / "dict.txt"))
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), "mmap", len(dictionary))
    ends = np.cumsum(generator.integers(1, 40, size=tokens // 20 + 1))
    for sentence in np.split(text, ends[ends < tokens]):
        builder.add_item(torch.tensor([*(sentence + dictionary.nspecial), dictionary.eos()]))
    builder.finalize(str(folder / "train.idx"))
    return str(folder)


def prepare(contenders: List[dict], folder: Path) -> None:
    """Corpora for whole models, one a vocabulary, long enough for one epoch."""
    specs = [each["spec"] for each in contenders if "corpus_tokens" in each["spec"]]
    for vocabulary in {spec["vocabulary"] for spec in specs}:
        using = [spec for spec in specs if spec["vocabulary"] == vocabulary]
        tokens = max(spec["corpus_tokens"] for spec in using)
        path = write_corpus(folder / f"words{vocabulary}", vocabulary, tokens)
        for spec in using:
            spec["data"] = path


def stopped(record: dict) -> str:
    """Why a contender has no samples; empty if it has."""
    return record.get("failed") or record.get("skipped") or ""


def still_running(contenders: List[dict]) -> List[dict]:
    """One that failed or has nothing to measure is not tried again."""
    return [each for each in contenders if not each["records"] or not stopped(each["records"][-1])]


def found_in(record: dict) -> str:
    return f"{1000 * statistics.median(record['seconds']):.3g} ms" if record.get("seconds") else stopped(record)


def run_rounds(contenders: List[dict], rounds: int, measure: Callable, save: Callable) -> None:
    """Every contender in turn, round by round, every second round backwards; *save* after each round."""
    for number in range(1, rounds + 1):
        running = still_running(contenders)
        for position, each in enumerate(running if number % 2 else running[::-1], 1):
            where = f"round {number} of {rounds}, {position} of {len(running)}"
            print(f"{where}: {each['group']}, {each['label']}", end=" ", file=sys.stderr, flush=True)
            record = measure(each["spec"])
            each["records"].append({"round": number, **record})
            print(f"… {found_in(record)}", file=sys.stderr, flush=True)
        save()


def run_rounds_in_turns(contenders: List[dict], rounds: int, measure: Callable, save: Callable) -> None:
    """Every round measures all contenders at once, *measure* (:func:`side_by_side`) their specs; *save* after each."""
    for number in range(1, rounds + 1):
        running = still_running(contenders)[:: 1 if number % 2 else -1]
        print(f"round {number} of {rounds}: {len(running)} in turns", file=sys.stderr, flush=True)
        for each, record in zip(running, measure([each["spec"] for each in running])):
            each["records"].append({"round": number, **record})
            print(f"  {each['group']}, {each['label']} … {found_in(record)}", file=sys.stderr, flush=True)
        save()


#: a change elsewhere, in results say, changes nothing that is measured
CODE = ("rntn_plugins", "scripts", "setup.cfg", "constraints.txt")


def environment(args, code: Sequence[str] = CODE) -> dict:
    """Versions, machine and commit, and how many files of *code* are not as committed."""
    import torch

    def git(*command: str) -> Optional[str]:
        result = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else None

    def version(package: str) -> Optional[str]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)

    from rntn_plugins import __version__

    changed = git("status", "--porcelain", *code) or ""
    model = platform.processor()
    with contextlib.suppress(OSError, TypeError):
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    packages = ("torch", "numpy", "ve-fairseq", "triton", "flashrnn")
    return {
        "versions": {"python": platform.python_version(), "rntn_plugins": __version__,
                     **{package: version(package) for package in packages}},
        "commit": git("rev-parse", "HEAD"), "changed_files": len(changed.splitlines()),
        "processor": model, "instructions": torch.backends.cpu.get_cpu_capability(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "threads": args.threads,
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None, "cuda": torch.version.cuda,
    }  # fmt: skip


def parse(arguments: Optional[List[str]]):
    parser = argparse.ArgumentParser(
        prog="benchmark",
        description="Speed and memory of cells, training updates and generation, against peers and the floor.",
    )
    parser.add_argument("what", choices=tuple(PLANS), metavar="WHAT", help=", ".join(PLANS))
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="cells or architectures (default: the papers')")
    parser.add_argument("--list", action="store_true", help="list what would be measured")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a process (default: the cores it may use)")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often every contender has its turn (default: 5)")
    parser.add_argument("--repeats", type=int, metavar="N", help="samples in one turn; not for updates (default: 5)")
    parser.add_argument("--batch", type=int, metavar="B", help="rows of a batch (default: 20)")
    parser.add_argument("--steps", type=int, metavar="T", help="steps of a sequence (default: 35)")
    parser.add_argument("--updates", type=int, metavar="N",
                        help="updates, bars: training updates in a turn, a quarter warm-up (default: 40)")  # fmt: skip
    parser.add_argument("--data", metavar="FOLDER", help="updates: a binarised text (default: one is made up)")
    parser.add_argument("--sample-break-mode", choices=("none", "eos"),
                        help="updates: as fairseq-train's (default: none)")  # fmt: skip
    parser.add_argument("--no-peers", dest="peers", action="store_false",
                        help="updates: without fairseq's lstm_lm")  # fmt: skip
    parser.add_argument("--dense-gradients", action="store_true",
                        help="updates: cells with matrices by symbol with --gradients dense as well; those of "
                             "'auto' are dense too in batches of over 2 K symbols")  # fmt: skip
    parser.add_argument("--recurrence", nargs="+", metavar="NAME",
                        help="implementations of ours: naive, auto, fused, … (default: naive auto); not for bars and "
                             "generation, which compare given ones")  # fmt: skip
    parser.add_argument("--compile", nargs="?", const="loop", choices=("loop", "step"),
                        help="cells: torch.compile of the whole naive loop, or of its step, as well")  # fmt: skip
    parser.add_argument("--in-turns", action="store_true",
                        help="updates, on a CPU: all contenders of a round are in memory, and each trains for a moment "
                             "while the others stand still, so that a machine whose speed changes changes it for "
                             "all alike; --timeout is that of a moment")  # fmt: skip
    parser.add_argument("--one-process", action="store_true",
                        help="layers: all in one process, where starts outlast turns; no --timeout, "
                             "and memory means something on CUDA alone")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=1800, metavar="SECONDS",
                        help="longest turn of a contender (default: %(default)s)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two rounds: to see that everything runs")
    parser.add_argument("--output", metavar="DIR",
                        help="default: results/benchmarks; with --quick runs/benchmarks")  # fmt: skip
    args = parser.parse_args(arguments)
    args.output = args.output or ("runs/benchmarks" if args.quick else "results/benchmarks")
    given = {name for name in ("steps", "repeats") if getattr(args, name) is not None}
    defaults = {"rounds": (5, 2), "repeats": (5, 2), "batch": (20, 3), "steps": (35, 4),
                "threads": (len(os.sched_getaffinity(0)), 1)}  # fmt: skip
    for name, (usual, quick) in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else usual)
    if args.updates is not None and (args.quick or args.what not in ("updates", "bars")):
        raise ValueError("--updates is for the commands updates and bars, without --quick, which has its own")
    args.updates = 40 if args.updates is None else args.updates
    for name in (*defaults, "updates", "timeout"):
        if not 1 <= getattr(args, name) < math.inf:
            raise ValueError(f"--{name} {getattr(args, name)} must be at least 1 and finite")
    if args.what == "generation" and "steps" in given:
        raise ValueError("--steps is not for the command generation, which has lengths of its own")
    if args.what == "updates" and "repeats" in given:
        raise ValueError("--repeats is not for the command updates: --updates are its samples")
    if args.cells and args.what == "bars":
        raise ValueError("--cells: the bars are about given cells; measure others with the command cells")
    for name, is_given in (
        ("--data", args.data), ("--sample-break-mode", args.sample_break_mode), ("--no-peers", not args.peers),
        ("--dense-gradients", args.dense_gradients), ("--in-turns", args.in_turns),
    ):  # fmt: skip
        if is_given and args.what != "updates":
            raise ValueError(f"{name} is for the command updates")
    if args.in_turns and args.device != "cpu":
        raise ValueError("--in-turns is for --device cpu: a GPU computes on while its process stands still")
    if args.compile and args.what != "cells":
        raise ValueError("--compile is for the command cells")
    if args.recurrence and args.what in ("bars", "generation"):
        raise ValueError(f"--recurrence is not for the command {args.what}, which compares given ones")
    args.recurrence = args.recurrence or ["naive", "auto"]
    known = KNOWN if args.what == "cells" else [name for name in KNOWN if name != "gather"]
    for name in args.recurrence:
        if name not in known:
            raise ValueError(f"--recurrence {name} is none of {', '.join(known)}")
    if args.data and not (Path(args.data) / "train.idx").is_file():
        raise ValueError(f"--data {args.data}: no binarised text, whose train.idx would be there")
    return args


def without_folders(results: str) -> str:
    """Saved results speak of this checkout's files and of made-up corpora without the folders they lay in."""
    return re.sub(r'"[^"]*/(words\d+)"', r'"\1"', results.replace(f"{ROOT}/", ""))


def run(args) -> int:
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device here")
    plan = PLANS[args.what](args)
    contenders = plan["contenders"]
    if args.list:
        for each in contenders:
            sizes = {name: value for name, value in each["spec"].items() if name in ("input", "hidden", "vocabulary")}
            print(f"{each['group']}: {each['label']}", *(f"{name} {value}" for name, value in sizes.items()), sep=", ")
        return 0
    stem = Path(args.output) / (args.what + ("-cuda" if args.device == "cuda" else ""))
    stem.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "schema": SCHEMA, "what": args.what,
        "arguments": {name: value for name, value in vars(args).items() if name != "output"},
        "environment": environment(args), "started": datetime.datetime.now().isoformat(timespec="seconds"),
        "complete": False, **plan,
    }  # fmt: skip

    def save() -> None:
        part = stem.with_suffix(".json.part")
        part.write_text(without_folders(json.dumps(data, indent=1)) + "\n", encoding="utf-8")
        part.replace(stem.with_suffix(".json"))

    try:
        with tempfile.TemporaryDirectory() as folder:
            prepare(contenders, Path(folder))
            if args.in_turns:
                together = lambda specs: side_by_side(specs, args.timeout, Path(folder))  # noqa: E731
                run_rounds_in_turns(contenders, args.rounds, together, save)
            else:
                apart = lambda spec: in_process(spec, args.timeout, Path(folder))  # noqa: E731
                run_rounds(contenders, args.rounds, measure_here if args.one_process else apart, save)
        data["complete"] = True
    except KeyboardInterrupt:
        print("\ninterrupted: what was measured so far", file=sys.stderr)
    data["finished"] = datetime.datetime.now().isoformat(timespec="seconds")
    save()
    print(benchmark_report.render(data))
    files = [stem.with_suffix(".json")]
    try:
        files += charts.draw(data, stem)
    except ImportError:
        print(charts.MATPLOTLIB_MISSING)
    print("wrote", *files)
    return 0 if data["complete"] else 130


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, 2 after one line that says what is wrong, or 130 after Ctrl-C."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)  # or what is measured would go on without us
    try:
        return run(parse(arguments))
    except (ValueError, OSError) as error:
        print(f"benchmark: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before anything was measured
        return 130
    finally:
        signal.signal(signal.SIGTERM, usual)


if __name__ == "__main__":
    sys.exit(main())
