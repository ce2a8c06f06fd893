"""Real fairseq commands, each in a process of its own."""

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "train": "fairseq_cli.train",
    "hydra-train": "fairseq_cli.hydra_train",
    "eval-lm": "fairseq_cli.eval_lm",
    "generate": "fairseq_cli.generate",
    "interactive": "fairseq_cli.interactive",
    "preprocess": "fairseq_cli.preprocess",
    "validate": "fairseq_cli.validate",
}
USER_DIR = ("--user-dir", str(ROOT / "rntn_plugins"))
TASK = ("--task", "rntn_language_modeling")
#: small and quick; every update logged as one JSON line
TRAIN = (
    *USER_DIR, *TASK, "--cpu", "--optimizer", "adagrad", "--lr", "0.1", "--clip-norm", "5", "--batch-size", "4",
    "--tokens-per-sample", "6", "--log-format", "json", "--log-interval", "1", "--embed-dim", "6", "--hidden-size", "8",
    "--num-workers", "0",
)  # fmt: skip


def environment() -> dict:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def command(name: str, *args) -> list:
    return [sys.executable, "-m", MODULES[name], *map(str, args)]


#: these start processes that import the main module again, find their configuration beside it, or log elsewhere if
#: fairseq is imported first
NOT_FORKED = ("hydra-train", "interactive", "--distributed-world-size", "--nprocs-per-node")


@functools.cache
def forking() -> subprocess.Popen:
    """The process that runs commands (see ``forking.py``), one for each process of tests."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forking.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip
    atexit.register(process.kill)
    return process


def forked(name: str, *args, stdin: str, cwd) -> tuple:
    """Exit code and output of a command that need not import fairseq first."""
    with tempfile.TemporaryDirectory() as folder:
        files = {part: str(Path(folder) / part) for part in ("stdin", "stdout", "stderr")}
        for part, file in files.items():
            Path(file).write_text(stdin or "" if part == "stdin" else "", encoding="utf-8")
        wanted = {"module": MODULES[name], "arguments": [*map(str, args)], "folder": str(cwd or Path.cwd()), **files}
        print(json.dumps(wanted), file=forking().stdin, flush=True)
        code = int(forking().stdout.readline())
        return code, "".join(Path(files[part]).read_text(encoding="utf-8") for part in ("stdout", "stderr"))


def fairseq(name: str, *args, fails: bool = False, stdin: str = None, cwd=None) -> str:
    """Run ``fairseq-<name>``; its output. Fails the test unless the command succeeds (or *fails*, if that is due)."""
    if {name, *map(str, args)} & {*NOT_FORKED}:
        result = subprocess.run(
            command(name, *args), input=stdin, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=300
        )
        code, output = result.returncode, result.stdout + result.stderr
    else:
        code, output = forked(name, *args, stdin=stdin, cwd=cwd)
    assert (code != 0) == fails, output[-3000:]
    return output


def start(name: str, *args) -> subprocess.Popen:
    return subprocess.Popen(
        command(name, *args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )


def entries(output: str) -> list:
    """The JSON entries of all updates of a training log."""
    return [json.loads(line) for line in re.findall(r"train_inner \| (\{.*\})", output)]


def losses(output: str) -> dict:
    """Update number -> loss in bits."""
    return {int(entry["num_updates"]): float(entry["loss"]) for entry in entries(output)}


def validation(output: str) -> list:
    """The JSON entries of all validations."""
    return [json.loads(line) for line in re.findall(r"\| valid \| (\{.*\})", output)]


def evaluated(output: str) -> tuple:
    """Tokens and loss in bits that ``fairseq-eval-lm`` printed."""
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", output)[1].replace(",", ""))
    return tokens, float(re.search(r"Loss \(base 2\): ([\d.]+)", output)[1])


def last_error(output: str) -> str:
    """The last line of a failed command: what a user reads first."""
    return output.strip().splitlines()[-1]
