"""The small manifest, loaded, and an empty folder for results."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import reproduce_manifest as manifests  # noqa: E402
from made_up_results import MANIFEST, RUNS  # noqa: E402
from reproduce_process import start_anew  # noqa: E402


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
