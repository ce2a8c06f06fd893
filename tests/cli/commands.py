"""Real fairseq commands, each in a process of its own."""

import atexit
import functools
import json
import os
import re
import signal
import socket
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


@functools.cache
def forking() -> subprocess.Popen:
    """The process that runs commands (see ``forking.py``), one for each process of tests."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forking.py"), USER_DIR[1]], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip
    atexit.register(process.kill)
    return process


def ask(**wanted) -> int:
    print(json.dumps(wanted), file=forking().stdin, flush=True)
    return int(forking().stdout.readline())


def together(name: str, *runs, stdin: str = "", cwd=None) -> list:
    """Exit code and output of a command (see ``MODULES``) or script, run side by side with each of these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number, arguments in enumerate(runs):
            files = {part: str(Path(folder) / f"{part}{number}") for part in ("stdin", "stdout", "stderr")}
            for part, file in files.items():
                Path(file).write_text(stdin or "" if part == "stdin" else "", encoding="utf-8")
            program = {"program": str(MODULES.get(name, name)), "arguments": [*map(str, arguments)]}
            started.append((ask(**program, folder=str(cwd or Path.cwd()), **files), files))
        codes = [ask(wait=process) for process, _ in started]
        said = ["".join(Path(f[part]).read_text(encoding="utf-8") for part in ("stdout", "stderr")) for _, f in started]
        return list(zip(codes, said))


def forked(name: str, *args, stdin: str = "", cwd=None) -> tuple:
    """Exit code and output of a command or script that need not import torch, fairseq and the package first."""
    return together(name, args, stdin=stdin, cwd=cwd)[0]


def two_workers(data, *options) -> str:
    """What the first of two data-parallel ``fairseq-train`` prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = (
        data, *options, "--distributed-backend", "gloo", "--distributed-no-spawn", "--distributed-world-size", 2,
        "--distributed-init-method", f"tcp://127.0.0.1:{port}", "--device-id", 0, "--ddp-backend", "legacy_ddp",
    )  # fmt: skip
    workers = together("train", *((*shared, "--distributed-rank", rank) for rank in (0, 1)))
    assert [code for code, _ in workers] == [0, 0], workers[0][1][-3000:] + workers[1][1][-3000:]
    return workers[0][1]


def fairseq(name: str, *args, fails: bool = False, stdin: str = None, cwd=None, alone: bool = False) -> str:
    """Run ``fairseq-<name>``; its output. Fails the test unless the command succeeds (or *fails*, if that is due).

    *alone*: as a user starts it, with nothing imported (that changes where fairseq logs).
    """
    if alone:
        result = subprocess.run(
            command(name, *args), input=stdin, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=300
        )
        code, output = result.returncode, result.stdout + result.stderr
    else:
        code, output = forked(name, *args, stdin=stdin, cwd=cwd)
    assert (code != 0) == fails, output[-3000:]
    return output


def kill_when(words: str, name: str, *args) -> tuple:
    """Exit code of a command that is killed as soon as it prints these words, and what it printed till then."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        files = {"stdin": os.devnull, "stdout": str(pipe), "stderr": str(pipe)}
        process = ask(program=MODULES[name], arguments=[*map(str, args)], folder=str(Path.cwd()), **files)
        said = ""
        with pipe.open(encoding="utf-8") as output:
            for line in output:
                said += line
                if words in line:
                    os.kill(process, signal.SIGKILL)
                    break
        return ask(wait=process), said


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
