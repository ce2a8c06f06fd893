"""Runs commands, each in a process of its own that need not import torch, fairseq and the package first:
``python forking.py``.

It reads one JSON object a line. A command (``program``: a module or a script's path; ``arguments``, ``folder``, and
the files ``stdin``, ``stdout``, ``stderr``) it starts and answers with the process's number; ``{"wait": number}`` it
answers with that process's exit code.
"""

import argparse
import json
import logging
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

import fairseq.dataclass.utils
import fairseq.options
import fairseq.sequence_generator
import fairseq.tasks
import fairseq.trainer
import fairseq.utils
import torch._dynamo  # noqa: F401 (the first optimiser imports it)

LONGEST = 300  # seconds


def run(program: str, arguments: list) -> int:
    """As ``python -m program arguments``, or ``python program arguments`` for a script."""
    logging.root.handlers.clear()  # importing fairseq left one; its commands set up their own
    sys.argv = [program, *arguments]
    try:
        if program.endswith(".py"):
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def child(wanted: dict) -> None:
    signal.alarm(LONGEST)
    if wanted["program"] == "fairseq_cli.hydra_train":  # else hydra looks for its settings beside this file
        os.environ["HYDRA_MAIN_MODULE"] = wanted["program"]
    os.chdir(wanted["folder"])
    for number, (name, how) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))):
        os.dup2(os.open(wanted[name], how), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    code = run(wanted["program"], wanted["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def warm() -> None:
    """A command's settings, read once: hydra's grammar remembers what it has seen, half a second of each later."""
    flags = ["data", "--task", "rntn_language_modeling", "--arch", "gru_lm", "--optimizer", "adagrad"]
    settings = fairseq.options.parse_args_and_arch(fairseq.options.get_training_parser(), flags)
    fairseq.dataclass.utils.convert_namespace_to_omegaconf(settings)


def serve() -> None:
    for line in sys.stdin:
        wanted = json.loads(line)
        if "wait" in wanted:
            print(os.waitstatus_to_exitcode(os.waitpid(wanted["wait"], 0)[1]), flush=True)
            continue
        number = os.fork()
        if not number:
            child(wanted)
        print(number, flush=True)


if __name__ == "__main__":
    fairseq.utils.import_user_module(argparse.Namespace(user_dir=sys.argv[1]))
    warm()
    serve()
