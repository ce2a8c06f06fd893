"""Numbers below 1.2e-38: 0 in this package's tasks, kept on request."""

import subprocess
import sys

import pytest
import torch
from stub_task import StubTask

from rntn_plugins.tasks.conllu_tagging import ConlluTaggingConfig, ConlluTaggingTask
from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingConfig, RNTNLanguageModelingTask

THREADS = """
import torch
torch.set_num_threads(2)
from fairseq.data import Dictionary
from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingConfig, RNTNLanguageModelingTask

RNTNLanguageModelingTask(RNTNLanguageModelingConfig(data="nowhere"), Dictionary())
print(int((torch.full((1 << 22,), 1e-30) * 1e-10).count_nonzero()))
"""


needs_flushing = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor always keeps them")


@pytest.fixture(autouse=True)
def as_before():
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def folder(tmp_path):
    """Dictionaries of two columns, enough for a tagging task."""
    for column in ("lemma", "upos"):
        (tmp_path / column).mkdir()
        (tmp_path / column / "dict.txt").write_text("a 1\n")
    return tmp_path


def make_language_modelling(folder, **settings):
    config = RNTNLanguageModelingConfig(data=str(folder), **settings)
    return RNTNLanguageModelingTask(config, StubTask("ab").source_dictionary)


def make_tagging(folder, **settings):
    return ConlluTaggingTask.setup_task(ConlluTaggingConfig(data=str(folder), dataset_impl=None, **settings))


def product() -> float:
    return float(torch.tensor([1e-30]) * 1e-10)


@needs_flushing
@pytest.mark.parametrize("make", [make_language_modelling, make_tagging])
def test_tasks_take_them_for_zero(make, folder):
    assert product() > 0
    make(folder)
    assert product() == 0
    assert float(torch.tensor([1.2e-38])) > 0 and float(torch.tensor([1e-300], dtype=torch.float64)) > 0
    make(folder, keep_denormals=True)
    assert product() > 0


@needs_flushing
def test_all_threads_do():
    run = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "0"
