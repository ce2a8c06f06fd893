"""Which checkpoint was scored, and by which flags: what RESULTS.md says of it."""

from dataclasses import replace
from types import SimpleNamespace

import reproduction.results
from fairseq import checkpoint_utils
from made_up_results import page_of, result
from reproduction import report, tables


def after(rows, values, command=(), key="loss", **more):
    """What is said of the scored checkpoint of a training of an epoch for each value."""
    curve = [{"epoch": at, "updates": 100 * at, "valid": {key: value}} for at, value in enumerate(values, 1)]
    more = {"epochs": float(len(values)), "curve": curve, "commands": {"train": ["fairseq-train", *command]}, **more}
    result(rows, "gru", 100.0, **more)
    return tables.scored(report.Results(rows).shown("gru")).partition(", best after ")[2]


def test_the_epoch_of_the_scored_checkpoint(rows, monkeypatch, tmp_path):
    """The one that fairseq would have kept, said only where it is not the last."""
    values = [
        [110.0, 100.0, 100.0, 105.0], [110.0, 100.0], [100.0, float("nan"), 105.0, 107.0], [float("nan"), 3.0, 4.0],
        [float("inf"), float("inf"), 5.0, 6.0], [1.0, 2.0, 3.0],
    ]  # fmt: skip
    said = ["3", "", "3", "2", "3", "1"]
    for each, expected in zip(values, said):
        assert after(rows, each) == expected
        assert kept(each, False, monkeypatch, tmp_path) == int(expected or len(each))
    chosen = "--best-checkpoint-metric label_accuracy --maximize-best-checkpoint-metric".split()
    assert after(rows, [30.0, 40.0, 35.0], command=chosen, key="label_accuracy") == "2"
    assert kept([30.0, 40.0, 35.0], True, monkeypatch, tmp_path) == 2
    joined = ["--best-checkpoint-metric=label_accuracy", chosen[2]]
    assert after(rows, [30.0, 40.0, 35.0], command=joined, key="label_accuracy") == "2"
    assert after(rows, [7.0, 5.0, 6.0], key="ppl") == "2"  # which falls as the loss does
    assert after(rows, [5.0] + [6.0] * 222) == "1" and after(rows, [6.0] * 221 + [5.0, 6.0]) == "222"
    assert after(rows, [float("nan")] * 2) == after(rows, []) == ""
    assert after(rows, [5.0, 6.0, 4.0]) == "" and after(rows, [5.0, 4.0, 6.0], seed=2) == "2 and 3"
    assert after(rows, [5.0, 4.0, 6.0], epochs=3.0004) == "2"
    after(rows, [6.0] * 999 + [5.0, 6.0])
    assert after(rows, [5.0, 4.0] + [6.0] * 999, seed=2) == "2 and 1,000"


def test_tables_say_what_was_scored(manifest, rows):
    after(rows, [5.0, 4.0, 6.0])
    after(rows, [5.0, 4.0, 6.0], seed=2, epochs=3.0004)  # a little more than the other
    result(rows, "rntn", 90.0)
    page = page_of(manifest, rows)
    assert "| 10 %, short, 3 epochs, best after 2 | 1, 2 |" in page
    assert "`gru` 100.00 (100.00–100.00) (10 %, short, 3 epochs, best after 2)" in page


def test_times_measured_otherwise_than_now_are_told(manifest, rows):
    command = (
        "scripts/benchmark.py updates --data data-bin/ptb --cells reference lstm_lm --rounds 3 --updates 40".split()
    )
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "test": {"": {"ratio": 2.5}}}
    file = result(rows, "time-lstm", 0, "paper", **timed, commands={"train": command})
    run = manifest.runs["time-lstm"]
    assert reproduction.results.read(file).lacking(run) == []
    schedule = replace(run.schedule, train=("gru_lm", "--batch", "20", "--steps", "30"))
    lacking = reproduction.results.read(file).lacking(replace(run, schedule=schedule))
    assert lacking == ["gru_lm", "--batch 20", "--steps 30"]
    made_up = [part for part in command if part not in ("--data", "data-bin/ptb")]
    file = result(rows, "time-lstm", 0, "paper", **timed, commands={"train": made_up})
    assert reproduction.results.read(file).lacking(run) == ["--data data-bin/ptb"]


def kept(values, maximize, monkeypatch, tmp_path):
    """After which of the values fairseq's own function writes checkpoint_best."""
    monkeypatch.setattr(checkpoint_utils.save_checkpoint, "best", None, raising=False)
    del checkpoint_utils.save_checkpoint.best
    flags = dict(
        save_dir=str(tmp_path), maximize_best_checkpoint_metric=maximize, best_checkpoint_metric="m", patience=-1,
        no_save=False, no_epoch_checkpoints=True, save_interval=1, save_interval_updates=0, no_last_checkpoints=True,
        keep_best_checkpoints=0, no_save_optimizer_state=False, keep_last_epochs=-1, keep_interval_updates=-1,
        keep_interval_updates_pattern=-1, checkpoint_suffix="", write_checkpoints_asynchronously=False,
    )  # fmt: skip
    written, names = [], []
    monkeypatch.setattr(
        checkpoint_utils.PathManager, "copy", lambda source, to, overwrite=False: names.append(to) or True
    )
    trainer = SimpleNamespace(
        data_parallel_rank=0, should_save_checkpoint_on_current_rank=True, checkpoint_suffix="", task=None,
        always_call_state_dict_during_save_checkpoint=False, consolidate_optimizer=lambda: None, is_base_moe=False,
        get_num_updates=lambda: 0, save_checkpoint=lambda name, state: names.append(name),
    )  # fmt: skip
    for place, value in enumerate(values, 1):
        loop = SimpleNamespace(epoch=place, end_of_epoch=lambda: True, state_dict=dict)
        checkpoint_utils.save_checkpoint(SimpleNamespace(**flags), trainer, loop, value)
        written += [place] if any("best" in name for name in names) else []
        names.clear()
    return written[-1]
