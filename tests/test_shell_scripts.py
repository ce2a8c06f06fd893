"""scripts/*.sh as far as they come without installing anything."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: makes environments whose pip does nothing
PYTHON = """#!/bin/bash
case "$*" in
"-m venv --clear .venv" | "-m venv .venv")
  case "$*" in *--clear*) rm -rf .venv ;; esac
  mkdir -p .venv/bin
  echo '#!/bin/bash' >.venv/bin/python
  chmod +x .venv/bin/python
  echo made ;;
-c*) exit 0 ;;
*) exit 1 ;;
esac
"""


def shell(*command, **environment):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, env={**os.environ, **environment}
    )  # fmt: skip


@pytest.mark.parametrize("minutes", ["0", "0.0", "2m", "-1", "", "1e3", "."])
@pytest.mark.parametrize("name", ["TRAIN_MINUTES", "LABEL_MINUTES"])
def test_minutes_that_are_none(name, minutes):
    if minutes == "":
        minutes = " "  # an empty one is the default
    ended = shell("bash", "scripts/quickstart.sh", **{name: minutes}, PYTHON="/none")
    assert ended.returncode == 2 and ended.stderr == f"{name}={minutes} must be a number above 0\n"


@pytest.mark.parametrize("minutes", ["1", "0.5", "10", "007"])
def test_minutes(minutes, tmp_path):
    """The next thing that is wrong is the Python."""
    for each in ("scripts/quickstart.sh", "scripts/environment.sh"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text((ROOT / each).read_text(encoding="utf-8"), encoding="utf-8")
    ended = shell("bash", str(tmp_path / "scripts/quickstart.sh"), TRAIN_MINUTES=minutes, PYTHON="/none")
    assert ended.returncode == 1 and "Python 3.11 or 3.12 is needed" in ended.stderr


def test_the_folder_is_that_of_the_checkout(tmp_path):
    (tmp_path / "scripts").mkdir()
    ended = shell("bash", "-c", "source scripts/environment.sh; pwd -P", CDPATH=str(tmp_path))
    assert ended.stdout == f"{ROOT}\n"


@pytest.mark.parametrize("broken", ["no pip", "no interpreter", "dangling"])
def test_a_broken_environment_is_mended(tmp_path, broken):
    """As a first run that was interrupted leaves one behind; pip installs nothing here. What is installed is kept
    where there is a Python to run it."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/environment.sh").write_text((ROOT / "scripts/environment.sh").read_text(encoding="utf-8"))
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/installed").touch()
    if broken == "dangling":
        (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "gone")
    if broken == "no pip":
        (tmp_path / ".venv/bin/python").write_text("#!/bin/bash\nexit 1\n")
        (tmp_path / ".venv/bin/python").chmod(0o755)
    command = "source scripts/environment.sh; install_into_venv test; echo ready"
    for times in (1, 0):
        ended = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path,
            env={**os.environ, "PYTHON": str(python)},
        )  # fmt: skip
        assert ended.returncode == 0 and ended.stdout.count("made\n") == times and "ready\n" in ended.stdout
    assert (tmp_path / ".venv/installed").exists() == (broken == "no pip")
