"""How this package's tasks compute: numbers below 1.2e-38 as 0, or kept on request; products as exactly as asked."""

import subprocess
import sys

import pytest
import torch
from stub_task import StubTask

from rntn_plugins.ops import products
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


@pytest.mark.parametrize(
    "flags, keep, precision",
    [
        ([], False, None),
        (["--keep-denormals"], True, None),
        (["--matmul-precision", "medium"], False, "medium"),
    ],
)
def test_the_flags(flags, keep, precision):
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    parser = options.get_eval_lm_parser("rntn_language_modeling")
    arguments = options.parse_args_and_arch(parser, ["nowhere", "--path", "nowhere", *flags])
    task = convert_namespace_to_omegaconf(arguments).task
    assert task.keep_denormals is keep and task.matmul_precision == precision


@pytest.mark.parametrize("make", [make_language_modelling, make_tagging])
def test_products_are_as_exact_as_asked(make, folder):
    make(folder)
    assert torch.get_float32_matmul_precision() == "highest"
    make(folder, matmul_precision="medium")
    assert torch.get_float32_matmul_precision() == "medium"
    make(folder)  # leaves what was set, here or by a user's own program, as it is
    assert torch.get_float32_matmul_precision() == "medium"
    with pytest.raises(ValueError, match="--matmul-precision low is none of highest, high, medium"):
        make(folder, matmul_precision="low")


def test_medium_products_round_what_they_multiply(folder):
    make_language_modelling(folder, matmul_precision="medium")
    if not products.rounds():
        pytest.skip("this processor has no quicker products")
    a, b = torch.randn(64, 300), torch.randn(300, 500)
    rounded = a.bfloat16().double() @ b.bfloat16().double()
    exact = a.double() @ b.double()
    found = (a @ b).double()
    assert (found - rounded).norm() < 1e-6 * exact.norm() < (found - exact).norm() < 4e-3 * exact.norm()
