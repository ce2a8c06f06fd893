"""The processes of scripts/benchmark.py: one that measures a contender alone, or trainings that take turns."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional

from benchmarking.measure import last_line, training_command, update_times, used

ROOT = Path(__file__).resolve().parents[2]


def environment_of(spec: dict, scratch: Path) -> Dict[str, str]:
    """Of a process that computes on ``spec["threads"]`` threads; what it writes is in *scratch*."""
    threads = str(spec["threads"])
    return {
        **os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
    }  # fmt: skip


def killed_by(returncode: int) -> str:
    name = signal.Signals(-returncode).name
    return f"ended by {name}" + (", out of memory?" if name == "SIGKILL" else "")


def in_process(spec: dict, timeout: float, scratch: Path) -> dict:
    """Measure in a new process, which ends (with what it started) on Ctrl-C and when it takes too long."""
    child = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "benchmarking" / "measure.py")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment_of(spec, scratch),
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = child.communicate(json.dumps(spec), timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {timeout:g} s"}
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if child.returncode < 0:
        return {"failed": killed_by(child.returncode)}
    try:
        return json.loads(last_line(out, limit=None))
    except ValueError:
        return {"failed": last_line(err) or f"ended with {child.returncode}"}


class Training:
    """A ``fairseq-train`` that stands still (``SIGSTOP``) but in its turns, which end with a line of its log.

    It has a process group of its own, but our session: should we be killed, the system ends (``SIGHUP``, ``SIGCONT``)
    what stands still. In a session of its own it would stand there for ever.
    """

    def __init__(self, spec: dict, timeout: float, scratch: Path) -> None:
        self.spec, self.timeout = spec, timeout
        self.log: List[str] = []
        self.samples: List[float] = []
        self.failed = ""
        self.child = subprocess.Popen(
            training_command(spec, tempfile.mkdtemp(dir=scratch)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=environment_of(spec, scratch), process_group=0,
        )  # fmt: skip

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self.child.pid, number)

    def kill(self) -> None:
        self.failed = f"took longer than {self.timeout:g} s"
        self.signal(signal.SIGKILL)

    def turn(self) -> Optional[int]:
        """Train until the log has its next entry, then stand still: how many updates were made, ``None`` at the end.

        The time, until it stands, is a sample. What it computes after that entry and before it stands, it has
        done in its next turn: nothing is lost in the sum.
        """
        timer = threading.Timer(self.timeout, self.kill)
        timer.start()
        try:
            start = time.perf_counter()
            self.signal(signal.SIGCONT)
            for line in self.child.stdout:
                self.log.append(line)
                entry = re.search(r'train_inner \| .*"num_updates": "(\d+)"', line)
                if entry:
                    seconds = time.perf_counter() - start
                    self.signal(signal.SIGSTOP)
                    self.samples.append(seconds / self.spec["interval"])
                    return int(entry[1])
        finally:
            timer.cancel()
        return None

    def warm_up(self) -> None:
        """Start, and train the updates that do not count."""
        made: Optional[int] = 0
        while made is not None and made < max(self.spec["skip"], 1):
            made = self.turn()
        self.samples.clear()

    def end(self) -> dict:
        """Its record, once it has nothing more to do."""
        while self.turn() is not None:
            pass
        _, status, usage = os.wait4(self.child.pid, 0)
        self.child.returncode = os.waitstatus_to_exitcode(status)
        said = "".join(self.log)
        if self.failed or self.child.returncode < 0:
            return {"failed": self.failed or f"{killed_by(self.child.returncode)} after: {last_line(said)}"}
        if self.child.returncode or not self.samples:
            return {"failed": last_line(said) or f"fairseq-train ended with {self.child.returncode}"}
        return {**update_times(said, self.spec["skip"]), "seconds": self.samples, **used(usage)}

    def close(self) -> None:
        if self.child.returncode is None:
            self.signal(signal.SIGKILL)
            self.child.wait()
        self.child.stdout.close()


def side_by_side(specs: List[dict], timeout: float, scratch: Path) -> List[dict]:
    """Trainings of one round, a record each: all start, one by one, and then take turns until all have ended.

    A turn is ``interval`` updates; every second turn goes through them backwards, so that no one is always the first.

    Args:
        timeout: seconds of the longest turn, and of a start.
    """
    trainings: List[Training] = []
    try:
        for spec in specs:
            trainings.append(Training(spec, timeout, scratch))
            trainings[-1].warm_up()
        running = list(trainings)
        while running:
            running = [each for each in running if each.turn() is not None][::-1]
        return [each.end() for each in trainings]
    finally:
        for each in trainings:
            each.close()
