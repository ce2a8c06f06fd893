"""Trainings that are told to stop: they save where they are, and go on as if they had not been stopped."""

import os
import signal
import threading
import time

import commands
import pytest
import reproduce
import reproduction.checkpoints
import reproduction.logs
import reproduction.process
import reproduction.run
import torch
from tiny_rows import ROOT


@pytest.fixture
def log(place, monkeypatch):
    """That of a training that takes long, in a process of its own."""
    monkeypatch.setattr(reproduction.run, "call", reproduction.process.call)
    rows = place / "tasks" / "tiny" / "rows.toml"
    rows.write_text(rows.read_text().replace("epochs = 8", "epochs = 50000"))
    return place / "runs" / "one.paper.seed1" / "train.log"


def run_until(log, words, stop, corpus):
    """Runs it; *stop* is called when the log has the words."""

    def watch():
        while not (log.is_file() and words in log.read_text()):
            time.sleep(0.01)
        stop()

    threading.Thread(target=watch).start()
    return reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--device", "cpu"])


def test_a_training_that_is_stopped_saves_where_it_is(log, place, corpus, capsys):
    """By SIGTERM within an epoch, long before its end; nothing is scored or written then."""
    assert run_until(log, "num_updates=", lambda: os.kill(os.getpid(), signal.SIGTERM), corpus) == 130
    stopped = log.read_text().partition("Stopping training due to SIGTERM")[2]
    made = reproduction.checkpoints.saved(log.parent)[0]
    assert made > 0 and f"num_updates {made}" in stopped and "| valid |" not in stopped
    assert "stopping: trainings save where they are" in capsys.readouterr().out
    assert not list((place / "results").glob("*.json")) and not reproduction.process._going


def test_a_training_that_was_stopped_by_another_is_not_scored(log, place, corpus, capsys):
    """By a signal to its process alone, as an administrator may send it."""

    def stop():
        for process in list(reproduction.process._going):
            process.terminate()

    assert run_until(log, "begin validation", stop, corpus) == 1
    said = "one.paper.seed1: failed: one.paper.seed1: stopped by SIGTERM; the same command goes on from the last check"
    assert said in capsys.readouterr().out and not list((place / "results").glob("*.json"))
    assert reproduction.checkpoints.saved(log.parent)[0] > 0


def test_how_far_a_training_is_that_was_stopped_soon():
    """Before the first line of progress it is not known how long an epoch is."""
    ended = "x | INFO | train | epoch 001 | loss 3 | ppl 8 | num_updates 5\n"
    log = f"x | INFO | fairseq_cli.train | Stopping training due to SIGTERM\n{ended}"
    assert reproduction.logs.epochs_done(reproduction.logs.curve(ended), ended) == 1.0
    assert reproduction.logs.epochs_done(reproduction.logs.curve(log), log) == 0.0


STOPPED = """
import os, signal, sys
sys.path.insert(0, {scripts!r})
from fairseq_cli import train
from reproduction.stoppable import stoppable

usual = train.validate_and_save

def at_update(cfg, trainer, *rest):
    if trainer.get_num_updates() == {update}:
        os.kill(os.getpid(), signal.SIGTERM)
    return usual(cfg, trainer, *rest)

train.validate_and_save = at_update
stopped = stoppable(train)
train.cli_main()
sys.exit(128 + stopped[0] if stopped else 0)
"""


@pytest.mark.parametrize("update, saved", [(10, 10), (26, 27)])
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(update, saved, corpus, tmp_path):
    """Within an epoch of 26 updates; at its end with the next update, as a schedule may have to take a step first."""
    flags = [
        corpus, *commands.USER_DIR, *commands.TASK, "--cpu", "--arch", "gru_lm", "--batch-size", "2", "--optimizer",
        "sgd", "--lr", "0.5", "--lr-scheduler", "validation_ratio", "--tokens-per-sample", "5", "--max-epoch", "3",
        "--embed-dim", "4", "--hidden-size", "5", "--num-workers", "0",
        "--log-format", "simple",
    ]  # fmt: skip
    driver = tmp_path / "driver.py"
    driver.write_text(STOPPED.format(scripts=str(ROOT / "scripts"), update=update))
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    code, said = commands.forked(str(driver), *flags, "--save-dir", parts)
    assert code == 143 and "Stopping training due to SIGTERM" in said, said[-2000:]
    assert reproduction.checkpoints.saved(parts)[0] == saved
    commands.fairseq("train", *flags, "--save-dir", parts)
    commands.fairseq("train", *flags, "--save-dir", whole)
    for name in (reproduction.checkpoints.LAST, reproduction.checkpoints.BEST):
        one, other = (torch.load(folder / name, weights_only=False) for folder in (parts, whole))
        assert one["extra_state"]["val_loss"] == other["extra_state"]["val_loss"]
        assert all(torch.equal(one["model"][key], other["model"][key]) for key in other["model"])
