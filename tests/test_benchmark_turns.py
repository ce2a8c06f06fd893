"""scripts/benchmark.py updates --in-turns: trainings that stand still but in their turns."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from benchmarking import processes  # noqa: E402

#: takes its turns: writes its name for every update and has an entry of the log after every second
TURNS = """
import sys, time
name, updates, end = sys.argv[1:]
print("num. shared model params: 12,345 (num. trained: 12,345)", flush=True)
for number in range(1, int(updates) + 1):
    with open("order", "a") as file:
        file.write(name)
    time.sleep(0.02)
    if number % 2 == 0:
        entry = '{"wps": "1400.0", "wpb": "700", "num_updates": "%d"}' % number
        print("2026-01-01 10:00:02 | INFO | train_inner | " + entry, flush=True)
        time.sleep(0.3)  # it is stopped before it does more
exec(end)
"""


@pytest.fixture
def turns(tmp_path, monkeypatch):
    """Records of trainings that are given as name, updates and how they end, and the order of their updates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "training_command", lambda spec, _: [sys.executable, "-c", TURNS, *spec["given"]])

    Path("order").touch()

    def run(*trainings: tuple, timeout: float = 600, skip: int = 4) -> tuple:
        specs = [{"given": given, "interval": 2, "skip": skip, "threads": 1} for given in trainings]
        return processes.side_by_side(specs, timeout, tmp_path), Path("order").read_text()

    return run


def test_trainings_take_turns(turns):
    """The first four updates are warm-up; then they go on by two, forth and back, to the end of each."""
    (a, b), order = turns(("a", "10", ""), ("b", "8", ""))
    assert order == "aaaabbbb" + "aabb" + "bbaa" + "aa"
    assert [len(each["seconds"]) for each in (a, b)] == [3, 2] and a["parameters"] == 12_345 and a["memory"] > 2**20
    assert all(0.02 <= seconds < 1 for each in (a, b) for seconds in each["seconds"]), "the other's time is not its own"
    assert not a["kernel"] and 0 < a["process_cpu_seconds"] < 60


def test_a_sample_is_the_time_of_an_update(turns, monkeypatch):
    """Of the turn's two; and the turn in which a training starts never counts."""
    monkeypatch.setattr(processes, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    (a,), _ = turns(("a", "6", ""), skip=0)
    assert a["seconds"] == [0.5, 0.5]


def test_environment_of_a_training(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    environment = processes.environment_of({"threads": 3}, tmp_path)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["PYTHONPATH"] == f"{SCRIPTS.parent}{os.pathsep}mine" and environment["TMPDIR"] == str(tmp_path)


def test_a_training_that_fails_leaves_the_others(turns):
    (a, b, c), order = turns(
        ("a", "6", "sys.exit('out of words')"), ("b", "6", ""), ("c", "4", "import os; os.kill(os.getpid(), 9)")
    )
    assert a == {"failed": "out of words"}
    assert c["failed"].startswith("ended by SIGKILL, out of memory? after: ") and '"num_updates": "4"' in c["failed"], c
    assert len(b["seconds"]) == 1 and order == "aaaabbbbcccc" + "aabb"
    ((short,), _) = turns(("a", "2", ""))  # shorter than the warm-up
    assert short["failed"].endswith('"num_updates": "2"}')


def test_a_training_that_hangs_is_ended(turns):
    (a,), _ = turns(("a", "0", "time.sleep(600)"), timeout=3)
    assert a == {"failed": "took longer than 3 s"}


def test_trainings_end_with_ctrl_c(turns, monkeypatch):
    started, warm_up = [], processes.Training.warm_up

    def interrupted(self):
        started.append(self.child)
        warm_up(self)
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(processes.Training, "warm_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turns(("a", "4", "time.sleep(600)"), ("b", "4", "time.sleep(600)"))
    assert [child.returncode for child in started] == [-signal.SIGKILL] * 2


def state(pid: int) -> str:
    """Of a process, as ``/proc`` has it: ``T`` is stopped, ``Z`` has ended; empty without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def wait_for(pid: int, states: tuple) -> bool:
    deadline = time.monotonic() + 60
    while state(pid) not in states and time.monotonic() < deadline:
        time.sleep(0.05)
    return state(pid) in states


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc")
def test_a_process_ends_with_what_it_started(tmp_path, monkeypatch):
    script = tmp_path / "scripts/benchmarking/measure.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        "import pathlib, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\nchild.wait()\n"
    )
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    assert processes.in_process({"threads": 1}, 5, tmp_path) == {"failed": "took longer than 5 s"}
    pid = int((tmp_path / "pid").read_text())
    if not wait_for(pid, ("", "Z")):
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("it goes on")


#: a benchmark of two such trainings that says their processes' numbers; the second stands still while the first hangs
BENCHMARK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from benchmarking import processes
processes.training_command = lambda spec, _: [sys.executable, "-c", sys.argv[2], *spec["given"]]
warm_up = processes.Training.warm_up
def told(self):
    warm_up(self)
    print(self.child.pid, flush=True)
processes.Training.warm_up = told
given = [("a", "4", "time.sleep(600)"), ("b", "4", "")]
specs = [{"given": each, "interval": 2, "skip": 4, "threads": 1} for each in given]
processes.side_by_side(specs, 600, Path.cwd())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc")
def test_what_stands_still_ends_with_a_benchmark_that_is_killed(tmp_path):
    command = [sys.executable, "-c", BENCHMARK, str(SCRIPTS), TURNS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True) as killed:
        pids = [int(killed.stdout.readline()) for _ in range(2)]
        stood_still = wait_for(pids[1], ("T",))
        killed.kill()
    ended = wait_for(pids[1], ("", "Z"))
    for pid in pids if not ended else pids[:1]:
        os.kill(pid, signal.SIGKILL)
    assert stood_still and ended
