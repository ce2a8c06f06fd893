"""Runs fairseq's commands, each in a process of its own that need not import fairseq first: ``python forking.py``.

It reads one JSON object a line (``module``, ``arguments``, ``folder``, and the files ``stdin``, ``stdout``, ``stderr``)
and answers with the exit code. The package under test is not imported here: that a command does itself.
"""

import json
import logging
import os
import runpy
import signal
import sys
import traceback

import fairseq.options
import fairseq.sequence_generator
import fairseq.tasks
import fairseq.trainer  # noqa: F401

LONGEST = 300  # seconds


def run(module: str, arguments: list) -> int:
    """As ``python -m module arguments``."""
    logging.root.handlers.clear()  # importing fairseq left one; its commands set up their own
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
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
    os.chdir(wanted["folder"])
    for number, (name, how) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))):
        os.dup2(os.open(wanted[name], how), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    code = run(wanted["module"], wanted["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    for line in sys.stdin:
        number = os.fork()
        if not number:
            child(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
