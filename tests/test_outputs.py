"""What the scripts share of their output, and that a reader who has gone is no error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import outputs  # noqa: E402
import reproduce  # noqa: E402


@pytest.mark.parametrize("file, message", [
    ("x.xyz", "--out x.xyz must end with one of .png, .svg, .pdf"),
    ("x", "must end with"),
    ("none/x.png", "--out none/x.png: there is no folder none"),
])  # fmt: skip
def test_pictures_that_cannot_be_written(file, message):
    with pytest.raises(ValueError, match=message):
        outputs.check_picture("--out", file)
    outputs.check_picture("--out", "x.PNG")


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """Root may write everywhere but on a read-only file system, and a test makes none."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.W_OK and Path(path) != tmp_path)
    with pytest.raises(ValueError, match=f"--json {tmp_path}/a.json: cannot be written there"):
        outputs.check_file("--json", f"{tmp_path}/a.json")
    (tmp_path / "a.json").touch()
    outputs.check_file("--json", f"{tmp_path}/a.json")


def test_told_apart():
    by_stem, by_folder = (lambda path: path.stem), (lambda path: path.parent.name)
    assert outputs.told_apart(["x/a.log", "x/b.log"], by_stem, by_folder) == ["a", "b"]
    assert outputs.told_apart(["x/a.log", "y/a.log"], by_stem, by_folder) == ["x", "y"]
    assert outputs.told_apart(["x/a.log", "x/a.txt"], by_stem, by_folder) == ["x/a.log", "x/a.txt"]


def without_reader(*command) -> subprocess.CompletedProcess:
    """A script of ours that writes into a pipe which nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *map(str, command)], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    finally:
        os.close(writer)


@pytest.mark.parametrize("command", [["reproduce.py", "list"], ["reproduce.py", "status", "--all"], ["describe.py"]])
def test_a_reader_that_has_gone_is_no_error(command):
    done = without_reader(ROOT / "scripts" / command[0], *command[1:])
    assert done.returncode == 0 and "roken pipe" not in done.stderr and "Traceback" not in done.stderr


def test_the_chart_is_drawn_all_the_same(tmp_path):
    saved = tmp_path / "bars.json"
    saved.write_bytes((ROOT / "results" / "benchmarks" / "bars.json").read_bytes())
    done = without_reader(ROOT / "scripts" / "benchmark_report.py", saved)
    assert done.returncode == 0 and "error" not in done.stderr and (tmp_path / "bars.svg").exists()


def test_a_run_that_a_reader_ended_is_an_error(monkeypatch, capsys):
    def gone(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(reproduce, "run", gone)
    assert reproduce.main(["run", "s18-s-rnn-100"]) == 2
    assert "Broken pipe" in capsys.readouterr().err


def test_parts_that_killed_processes_left_are_removed(tmp_path):
    """Not those of processes that are at it, nor of other files."""
    file = tmp_path / "a[1].json"
    names = [f"a[1].json.{os.getppid()}.part", "a[1].json.999999999.part", "a[1].json.x.part", "a1.json.999999999.part"]
    for name in names:
        (tmp_path / name).write_text("a part")
    with outputs.whole(file) as part:
        part.write_text("whole")
    assert file.read_text() == "whole"
    assert sorted(each.name for each in tmp_path.glob("*.part")) == sorted([names[0], names[3]])
