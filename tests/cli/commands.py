"""Real fairseq commands as subprocesses."""

import json
import os
import re
import subprocess
import sys
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


def fairseq(name: str, *args, fails: bool = False, stdin: str = None, cwd=None) -> str:
    """Run ``fairseq-<name>``; its output. Fails the test unless the command succeeds (or *fails*, if that is due)."""
    result = subprocess.run(
        command(name, *args), input=stdin, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=300
    )
    output = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, output[-3000:]
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
