"""Running commands: one at work in a folder, and none left over when we end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, Optional, Sequence, Set, Tuple

from reproduction.manifest import ROOT, Refused

LOCK = "lock"
#: modules, or scripts
COMMANDS = {
    "train": "scripts/reproduction/stoppable.py",
    "eval-lm": "fairseq_cli.eval_lm",
    "generate": "fairseq_cli.generate",
}
#: with these glibc keeps memory that was freed, and torch asks for large pages: gradients and AdaGrad's intermediate
#: results, tens of MB, are asked for again in every update, and clearing new pages takes long
KEEP_MEMORY = {
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}
#: commands that run now, in any thread
_going: Set[subprocess.Popen] = set()
_starting = threading.Lock()  # held while a command is started, or the end of all of them declared
_stopped = threading.Event()
_worker = threading.local()


def take_gpu(names: Iterator[str]) -> None:
    """The next name (``CUDA_VISIBLE_DEVICES``) is what this thread's commands see from now on."""
    _worker.gpu = next(names)


def allocator(command: str) -> Dict[str, str]:
    """The variables of :data:`KEEP_MEMORY` as a command will see them: the user's own, ours only in training."""
    own = {name: os.environ[name] for name in KEEP_MEMORY if name in os.environ}
    return {**KEEP_MEMORY, **own} if command == "train" else own


def call(command: str, flags: Sequence[str], threads: int, log: Path, lock: Optional[int] = None) -> Tuple[int, str]:
    """Run one of fairseq's commands, or a script, in the repository's root, its output appended to *log*.

    Args:
        lock: what :func:`alone` gave: held as long as the command lives, even if we are killed.
    Returns:
        its exit code and what it printed.
    Raises:
        Refused: after :func:`stop_all`.
    """
    environment: Dict[str, str] = {**os.environ, **allocator(command)}
    environment.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    if hasattr(_worker, "gpu"):
        environment["CUDA_VISIBLE_DEVICES"] = _worker.gpu
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        start = out.tell()
        program = COMMANDS.get(command, command)
        program = [sys.executable, *([] if program.endswith(".py") else ["-m"]), program, *flags]
        with _starting:
            if _stopped.is_set():
                raise Refused("stopped")
            process = subprocess.Popen(
                program,
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[] if lock is None else [lock],
            )
            _going.add(process)
        try:
            code = process.wait()
        finally:
            stop(process)
    with log.open("rb") as written:
        written.seek(start)
        return code, written.read().decode("utf-8", errors="replace")


def stop(*processes: subprocess.Popen) -> None:
    """End commands that may have ended, all at once."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        _going.discard(process)


def kill_all() -> None:
    """End at once what :func:`stop_all` waits for."""
    for process in list(_going):
        process.kill()


def stop_all() -> None:
    """End what runs, in whatever thread, and start nothing more; who waits for it sees it fail, or, of a training, end
    where it was (``stoppable.py``)."""
    with _starting:
        _stopped.set()
    stop(*list(_going))


def start_anew() -> None:
    """Commands may be started, whatever was stopped before."""
    _stopped.clear()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[int]:
    """To be at work in a folder without another; the lock's file descriptor.

    Raises:
        Refused: another process is at work in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as lock:
        for left in reversed(range(20)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # perhaps for the moment that :func:`at_work` takes
                if not left:
                    who = at_work(folder) or "another process"
                    raise Refused(f"{who} is at work in {relative(folder)}") from None
                time.sleep(0.01)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock.fileno()


def at_work(folder: Path) -> Optional[str]:
    """Who is at work in a folder: ``process 123, or a command that it left,``; ``None``: nobody is."""
    try:
        with (folder / LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                number = lock.read(20).strip()
                return f"process {number}, or a command that it left," if number.isdigit() else "another process"
    except OSError:
        return None


def relative(path: Path) -> str:
    """From the repository's root, which the commands run in."""
    return os.path.relpath(path, ROOT)
