"""The small manifests, loaded, and empty folders for results."""

import random
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("scripts", "tests/cli")]
import commands  # noqa: E402
import reproduce  # noqa: E402
import reproduction.manifest as manifests  # noqa: E402
import reproduction.run  # noqa: E402
from made_up_results import MANIFEST, RUNS  # noqa: E402
from reproduction import report  # noqa: E402
from reproduction.claims import judge  # noqa: E402
from reproduction.process import start_anew  # noqa: E402
from tiny_rows import ROWS, call_forked  # noqa: E402


@pytest.fixture(autouse=True)
def not_stopped():
    """What a test stopped does not keep the next from starting."""
    start_anew()


@pytest.fixture
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks") / "ptb_word_lm"
    folder.mkdir()
    (folder / "rows.toml").write_text(MANIFEST.replace("RUNS", RUNS), encoding="utf-8")
    return manifests.load(folder.parent)


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "results" / "rows"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def judged(manifest, rows):
    """Judges the first claim as one about epochs."""

    def judge_it(which="all"):
        return judge(manifest, report.Results(rows), {**manifest.claims[0], "epochs": which})

    return judge_it


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    for split, count in (("train", 60), ("valid", 8), ("test", 8)):
        lines = (" ".join(rng.choices("abcdefg", k=rng.randint(1, 6))) for _ in range(count))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    texts = [part for split in ("train", "valid", "test") for part in (f"--{split}pref", folder / f"{split}.txt")]
    commands.fairseq("preprocess", "--only-source", *texts, "--destdir", folder / "bin", "--workers", 1)
    return folder / "bin"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the manifest, for checkpoints and results."""
    (tmp_path / "tasks" / "tiny").mkdir(parents=True)
    (tmp_path / "tasks" / "tiny" / "rows.toml").write_text(ROWS)
    load = manifests.load
    monkeypatch.setattr(manifests, "load", lambda: load(tmp_path / "tasks"))
    monkeypatch.setattr(reproduction.run, "call", call_forked)
    settings = reproduce.Settings

    def within(*given, **named):
        return settings(*given, **{**named, "runs": tmp_path / "runs", "results": tmp_path / "results"})

    monkeypatch.setattr(reproduce, "Settings", within)
    return tmp_path
