"""Numbers below 1.2e-38: 0 in this package's tasks, kept on request."""

import subprocess
import sys

import pytest
import torch
from stub_task import StubTask

from rntn_plugins.tasks.conllu_tagging import ConlluTaggingConfig, ConlluTaggingTask
from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingConfig, RNTNLanguageModelingTask

SIZE = 1 << 22
#: prints how many of SIZE products are kept; with the argument "late" torch has started its threads before the task
THREADS = f"""
import sys, torch
torch.set_num_threads(2)
from fairseq.data import Dictionary
from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingConfig, RNTNLanguageModelingTask

if "late" in sys.argv:
    torch.ones({SIZE})
RNTNLanguageModelingTask(RNTNLanguageModelingConfig(data="nowhere"), Dictionary())
print(int((torch.full(({SIZE},), 1e-30) * 1e-10).count_nonzero()))
"""


needs_flushing = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor always keeps them")


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
def test_all_threads_that_start_later_do():
    def kept(*arguments):
        run = subprocess.run([sys.executable, "-c", THREADS, *arguments], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return int(run.stdout.split()[-1])

    assert kept() == 0
    if torch.backends.openmp.is_available():  # the other half: what the documentation says of a late task
        assert kept("late") == SIZE // 2


@needs_flushing
@pytest.mark.parametrize("flags, keep", [([], False), (["--keep-denormals"], True)])
def test_the_flag(flags, keep):
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    parser = options.get_eval_lm_parser("rntn_language_modeling")
    arguments = options.parse_args_and_arch(parser, ["nowhere", "--path", "nowhere", *flags])
    assert convert_namespace_to_omegaconf(arguments).task.keep_denormals is keep
