"""Trainings that were interrupted, and what their results tell of it."""

import dataclasses
import json
import math
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import reproduce
import reproduction.calls
import reproduction.checkpoints
import reproduction.logs
import reproduction.manifest
import reproduction.run
import reproduction.training
import torch
from reproduction.manifest import Refused
from tiny_rows import call_forked, result

COMPLETE = {
    "complete": True, "stopped": "schedule", "epochs": 8.0, "of_schedule": 1.0, "of_paper": 1.0,
    "test": {"": {"ppl": 3.0}},
}  # fmt: skip


def training_of(place, kind="paper"):
    return reproduce.Training(reproduction.manifest.load().runs["one"], 1, reproduce.Settings(kind, {}, None, 1, False))


def call_of(place, updates, commit="abc1234", changed=0, **more):
    where = {"commit": commit, "changed_files": changed, "processor": "x", **more}
    folder = training_of(place).folder
    folder.mkdir(parents=True, exist_ok=True)
    return reproduction.calls.Calls(folder, updates, folder / "train.log", where)


@pytest.mark.parametrize("changed", [0, 2])
def test_whose_code_it_was(place, changed):
    training = training_of(place)
    training.result.parent.mkdir()
    made = call_of(place, 0, changed=changed).ended(12.34, 5)
    assert made.pop("wall") == 12.3
    written = reproduction.run.write(training, {"complete": True, "of_schedule": 1.0, "updates": 5}, "", made)
    assert written["commit"] == "abc1234" and written["modified"] == (changed > 0) and written["calls"] == []
    assert written["environment"] == {"processor": "x"} and result(place, "one.paper.seed1") == written


def test_all_calls_of_a_training_are_told(place):
    """Those whose updates count, and the one that scored; the code is that of the last that trained."""
    log = training_of(place).folder / "train.log"
    call_of(place, 0, "first", changed=1)  # killed
    log.write_text("to its last line")
    os.utime(log, (time.time() + 100,) * 2)
    call_of(place, 100, "second").ended(7, 100)  # no update
    call_of(place, 100, "third").ended(8, 150)
    made = call_of(place, 150, "fourth").ended(2, 150)
    assert [(each["commit"], each["updates"]) for each in made["calls"]] == [
        ("first", 0), ("third", 100), ("fourth", 150),
    ]  # fmt: skip
    assert made["commit"] == "third" and made["modified"] is True and 110 < made["wall"] < 120
    assert made["started"] == made["calls"][0]["started"]
    made = call_of(place, 40, "fifth").ended(1, 60)  # from an older checkpoint: what was made after it is lost
    assert [each["commit"] for each in made["calls"]] == ["first", "fifth"]
    assert call_of(place, 0, "sixth").ended(1, 9)["calls"] == []  # anew


@pytest.mark.parametrize("damage", [None, "", "[", "[3]", '{"a": 1}', "[]", '[{"commit": "x"}]', "[" * 100_000,
    {"wall": "x"}, {"wall": math.nan}, {"updates": "x"}, {"updates": 1.5}, {"updates": -1}, {"modified": []},
    {"commit": 5}, {"started": 5}, {"started": "now"}, {"environment": 5}])  # fmt: skip
def test_calls_that_nothing_is_known_of(place, damage):
    """Of a training that was begun before they were written down, or whose file is damaged."""
    call_of(place, 0).ended(1, 5)
    file = training_of(place).folder / "calls.json"
    if isinstance(damage, dict):
        damage = json.dumps([{**json.loads(file.read_text())[0], **damage}])
    file.unlink() if damage is None else file.write_text(damage)
    made = call_of(place, 5, "known").ended(1, 9)
    assert made["calls"][0] == reproduction.calls.UNKNOWN and len(made["calls"]) == 2 and made["commit"] == "known"
    assert made["modified"] is None and made["started"] is None and made["wall"] is None


def test_a_damaged_checkpoint_gives_way_to_a_whole_one(tmp_path):
    """fairseq copies the file that it wrote: a process that is killed leaves a part of it."""
    mend, last = reproduction.checkpoints.mend, tmp_path / "checkpoint_last.pt"
    assert mend(tmp_path) is None and reproduction.checkpoints.saved(tmp_path) == (0, 0.0)
    for name, updates in (("1_20", 20), ("best", 30), ("last", 30)):
        state = {"optimizer_history": [{"num_updates": updates}], "extra_state": {"previous_training_time": 2.5}}
        torch.save({**state, "model": torch.ones(9999)}, tmp_path / f"checkpoint_{name}.pt")
    assert mend(tmp_path) is None
    whole = last.read_bytes()
    last.write_bytes(whole[:20000])
    with pytest.raises(Refused, match="checkpoint_last.pt is damaged"):
        reproduction.checkpoints.saved(tmp_path)
    assert "checkpoint_best.pt took its place, of after 30 updates" in mend(tmp_path)
    assert reproduction.checkpoints.saved(tmp_path) == (30, 2.5)
    for name in ("best", "last"):
        (tmp_path / f"checkpoint_{name}.pt").write_bytes(whole[:20000])
    assert "checkpoint_1_20.pt took its place" in mend(tmp_path)
    assert reproduction.checkpoints.saved(tmp_path) == (20, 2.5) and not list(tmp_path.glob("*.part"))
    last.unlink()
    assert "checkpoint_last.pt was not there: checkpoint_1_20.pt took its place" in mend(tmp_path)
    (tmp_path / "checkpoint_best.pt").write_bytes(whole)  # written, and not copied yet
    assert "checkpoint_last.pt was older: checkpoint_best.pt took its place, of after 30" in mend(tmp_path)
    assert last.read_bytes() == whole and mend(tmp_path) is None
    for each in tmp_path.iterdir():
        each.write_bytes(b"")
    assert mend(tmp_path) is None


def test_a_checkpoint_that_cannot_be_read_now_stays(tmp_path, monkeypatch):
    for name, updates in (("best", 30), ("last", 3000)):
        state = {"optimizer_history": [{"num_updates": updates}], "extra_state": {}}
        torch.save(state, tmp_path / f"checkpoint_{name}.pt")
    usual = torch.load

    def load(path, **more):
        if "last" in path.name:
            raise OSError(24, "Too many open files")
        return usual(path, **more)

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(OSError, match="Too many open files"):
        reproduction.checkpoints.mend(tmp_path)
    monkeypatch.undo()
    assert reproduction.checkpoints.saved(tmp_path) == (3000, 0.0) and len(list(tmp_path.iterdir())) == 2


def test_a_damaged_best_checkpoint_is_named(place, corpus, capsys):
    """The training has ended, and nothing would write it again."""
    run = ["run", "one", "--schedule", "short", "--data", f"tiny={corpus}"]
    assert reproduce.main(run) == 0
    best = place / "runs" / "one.short.seed1" / "checkpoint_best.pt"
    best.write_bytes(best.read_bytes()[:3000])
    capsys.readouterr()
    assert reproduce.main(run) == 1
    said = capsys.readouterr().out
    assert "checkpoint_best.pt is damaged" in said and "one.short.seed1 to begin anew" in said


def test_it_goes_on_with_the_same_text_only(place, corpus, tmp_path, capsys):
    other, run = tmp_path / "other", ["run", "one", "--budget", "0.01s", "--data"]
    shutil.copytree(corpus, other)
    assert reproduce.main([*run, f"tiny={corpus}"]) == 0 and reproduce.main([*run, f"tiny={other}"]) == 0
    found = result(place, "one.paper.seed1")["data"]
    assert found == {"name": "tiny", "sha256": reproduction.training.digests(corpus)}
    (other / "train.bin").write_bytes((corpus / "train.bin").read_bytes()[::-1])
    capsys.readouterr()
    assert reproduce.main([*run, f"tiny={other}"]) == 1
    assert "was begun with other data than " in capsys.readouterr().out


def test_a_budget_is_added_to_what_there_is(place, monkeypatch):
    settings = reproduce.Settings("paper", {}, 1800.0, 1, False)
    training = reproduce.Training(reproduction.manifest.load().runs["one"], 1, settings)
    assert reproduction.run.budget(training) == ["--stop-time-hours", "0.500000"]
    monkeypatch.setattr(reproduction.run, "saved", lambda folder: (7, 3600.0))
    assert reproduction.run.budget(training) == ["--stop-time-hours", "1.500000"]


def test_what_came_after_the_last_checkpoint_does_not_count():
    line = "10:00 | INFO | valid | epoch {:03} | ppl {} | num_updates {}\n"
    log = line.format(1, 9, 10) + line.format(2, 8, 20) + f"{reproduction.logs.GOES_ON}10\n" + line.format(2, 7, 15)
    points = reproduction.logs.curve(log)
    assert [(point["updates"], point["valid"]["ppl"]) for point in points] == [(10, 9), (15, 7)]
    assert reproduction.logs.curve(f"{log}{reproduction.logs.GOES_ON}1x\n") == points


@pytest.mark.parametrize("unfinished", [f"{reproduction.logs.GOES_ON}1", "10:00 | INFO | train_inn"])
def test_a_log_that_ends_within_a_line(place, tmp_path, unfinished):
    """As a full disk or a power cut leaves it: what is known of the line says nothing, and what follows counts."""
    (tmp_path / "dict.txt").write_text("")
    settings = reproduce.Settings("paper", {"tiny": str(tmp_path)}, None, 1, False)
    training = reproduce.Training(reproduction.manifest.load().runs["one"], 1, settings)
    training.folder.mkdir(parents=True)
    flags, log = training.train_flags(), training.folder / "train.log"
    reproduction.run.begun(training, flags, {}, log)
    reproduction.run.check_the_same(training, flags, {})
    state = {"optimizer_history": [{"num_updates": 20}], "extra_state": {}}
    torch.save(state, training.folder / "checkpoint_last.pt")
    line = "10:00 | INFO | valid | epoch {:03} | ppl {} | num_updates {}\n"
    whole = "".join(line.format(at, 9, 10 * at) for at in (1, 2, 3))
    log.write_text(whole + unfinished)
    said = reproduction.run.begun(training, flags, {}, log)
    assert said == f"{whole}{reproduction.logs.GOES_ON}20\n" == log.read_text()
    assert [point["updates"] for point in reproduction.logs.curve(said + line.format(3, 8, 30))] == [10, 20, 30]
    assert [point["updates"] for point in reproduction.logs.curve(said)] == [10, 20]


def test_a_checkpoint_that_was_cut_off(place, corpus, capsys):
    run = ["run", "one", "--data", f"tiny={corpus}"]
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    last = place / "runs" / "one.paper.seed1" / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:3000])
    assert reproduce.main(run) == 0
    assert "one.paper.seed1: checkpoint_last.pt was damaged (" in capsys.readouterr().out
    whole = result(place, "one.paper.seed1")
    assert whole["complete"] and [each["updates"] == 0 for each in whole["calls"]] == [True, False]
    log = (place / "results" / "one.paper.seed1.log").read_text()
    assert f"{reproduction.logs.GOES_ON}{whole['calls'][1]['updates']}\n" in log


def test_a_result_is_written_whole_or_not_at_all(place, monkeypatch):
    """Its log too: of a result that was there before both stay."""
    training, folder = training_of(place), place / "results"
    folder.mkdir()
    found, made = {**COMPLETE, "updates": 5}, call_of(place, 0).ended(1, 5)
    reproduction.run.write(training, found, "2026-01-01 10:00:00 | INFO | first", made)
    before = {file.name: file.read_text() for file in folder.iterdir()}
    assert sorted(before) == ["one.paper.seed1.json", "one.paper.seed1.log"] and "first" in before[sorted(before)[1]]
    usual = Path.write_text

    def full(file, text, **more):
        usual(file, text[:9], **more)
        if ".json" in file.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        reproduction.run.write(training, {**found, "updates": 7}, "2026-01-01 10:00:00 | INFO | second", made)
    assert {file.name: file.read_text() for file in folder.iterdir()} == before


def test_a_budget_stops_and_the_next_goes_on(place, corpus, capsys):
    run = ["run", "one", "--data", f"tiny={corpus}"]
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    partial = result(place, "one.paper.seed1")
    assert not partial["complete"] and partial["stopped"] == "budget" and 0 <= partial["of_paper"] < 0.2
    said = capsys.readouterr().out
    assert "partial" in said and "kept only if" not in said
    assert reproduce.main(run) == 0
    assert "kept only if" not in capsys.readouterr().out
    whole = result(place, "one.paper.seed1")
    assert whole["complete"] and whole["of_paper"] == 1 and whole["epochs"] == 8
    assert whole["updates"] > partial["updates"] and len(whole["curve"]) >= 8
    updates = [point["updates"] for point in whole["curve"]]
    assert updates == sorted(set(updates)), "went on, and did not begin anew"
    for file in (place / "runs" / "one.paper.seed1").glob("*"):
        file.unlink()
    capsys.readouterr()
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    said = capsys.readouterr().out
    assert "not kept, as an earlier result went further: test PPL" in said
    begins = "this training begins at the first, and what comes of it is kept only if it goes as far"
    assert f".json is of {whole['updates']:,} updates; {begins}" in said and said.index(begins) < said.index("not kept")
    assert result(place, "one.paper.seed1") == whole
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    assert re.search(r"this training goes on from update [1-9][0-9]*, and what comes", capsys.readouterr().out)


def test_an_interrupted_training_is_begun(place, corpus, monkeypatch, capsys):
    def interrupted(command, flags, threads, log, lock):
        call_forked(command, [*flags, "--max-epoch", "1"], threads, log)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduction.run, "call", interrupted)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert reproduce.main(["status"]) == 0
    said = capsys.readouterr().out
    assert "begun, 26 updates, 12 % of the schedule; validation: ppl " in said and "; run it again to go on" in said
    assert "1 begun" in said


def test_a_whole_training_is_scored_without_an_update_more(place, corpus, monkeypatch):
    rows = place / "tasks" / "tiny" / "rows.toml"
    rows.write_text(rows.read_text().replace("epochs = 2\n", "updates = 7\n"))
    called = []

    def call(command, *given, **named):
        called.append(command)
        if called == ["train", "eval-lm"]:
            raise KeyboardInterrupt
        return call_forked(command, *given, **named)

    monkeypatch.setattr(reproduction.run, "call", call)
    run = ["run", "one", "--data", f"tiny={corpus}", "--schedule", "short"]
    assert reproduce.main(run) == 130 and reproduce.main(run) == 0
    assert called == ["train", "eval-lm", "eval-lm", "eval-lm"]
    found = result(place, "one.short.seed1")
    assert found["updates"] == 7 and found["complete"] and found["stopped"] == "schedule" and found["of_schedule"] == 1


def test_what_was_begun_goes_on_with_the_same_flags_only(place, corpus, capsys):
    run = ["run", "one", "--data", f"tiny={corpus}", "--budget", "0.01s"]
    assert reproduce.main(run) == 0
    rows = place / "tasks" / "tiny" / "rows.toml"
    rows.write_text(rows.read_text().replace("--lr 1", "--lr 2"))
    capsys.readouterr()
    assert reproduce.main(run) == 1
    said = capsys.readouterr().out
    assert "was begun with other flags" in said and "--lr 1" in said and "to begin anew" in said


def test_a_schedule_that_became_longer(place, corpus, capsys):
    """What was whole by it is partial: it gives way to more, though that is partial too, not to less, and goes on."""
    run = ["run", "one", "--data", f"tiny={corpus}", "--schedule", "short", "--seeds", "1"]
    assert reproduce.main(run) == 0
    before, rows = result(place, "one.short.seed1"), place / "tasks" / "tiny" / "rows.toml"
    shorter = rows.read_text()
    rows.write_text(shorter.replace("epochs = 2\n", "epochs = 4\n", 1))
    capsys.readouterr()
    assert reproduce.main(["status", "one"]) == 0
    assert "partial, 2.00 epochs" in capsys.readouterr().out
    shutil.move(place / "runs", place / "aside")
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    assert "not kept, as an earlier result went further" in capsys.readouterr().out
    assert result(place, "one.short.seed1") == before
    training = training_of(place, "short")
    more = {**before, "complete": False, "epochs": 3.0, "of_schedule": 0.75, "updates": before["updates"] * 1.5}
    assert not reproduction.run.further(reproduction.run.earlier(training), more)
    shutil.rmtree(place / "runs")
    shutil.move(place / "aside", place / "runs")
    assert reproduce.main(run) == 0
    after = result(place, "one.short.seed1")
    assert after["epochs"] == 4 and after["complete"] and after["curve"][:2] == before["curve"]
    assert [call["updates"] for call in after["calls"]] == [0, before["updates"]]
    flags = place / "runs" / "one.short.seed1" / "flags.json"
    whole = flags.read_text()
    assert '"--max-epoch", "4"' in whole
    for damaged in (whole.replace('"4"', '"x"'), whole.replace('"--max-epoch", "4"', '"--max-epoch"'), "[4]", ""):
        flags.write_text(damaged)
        assert reproduce.main(run) == 1 and "was begun with other flags" in capsys.readouterr().out
    flags.write_text(whole)
    rows.write_text(shorter)
    assert reproduce.main(run) == 1 and "was begun with other flags" in capsys.readouterr().out


@pytest.mark.parametrize("precision", [None, "medium"])
def test_begun_on_a_cpu_it_may_go_on_on_a_gpu_or_with_other_products(precision, place, tmp_path):
    run = reproduction.manifest.load().runs["one"]
    for cuda in (False, True):
        (tmp_path / "dict.txt").write_text("")
        settings = reproduce.Settings("paper", {"tiny": str(tmp_path)}, None, 1, cuda, precision if cuda else None)
        training = reproduce.Training(run, 1, settings)
        training.folder.mkdir(parents=True, exist_ok=True)
        flags = training.train_flags()
        assert ("--cpu" in flags) != cuda
        if cuda:
            state = {"optimizer_history": [{"num_updates": 7}], "extra_state": {}}
            torch.save(state, training.folder / "checkpoint_last.pt")
        reproduction.run.check_the_same(training, flags, {})
        said = reproduction.run.begun(training, flags, {}, training.folder / "train.log")
    assert said == f"{reproduction.logs.GOES_ON}7\n"


def test_a_call_that_scored_only_does_not_tell_the_machine_of_the_training(place):
    call_of(place, 0, "first", gpu="H100").ended(5, 100)
    made = call_of(place, 100, "second", gpu=None, changed=1).ended(2, 100)
    assert made["environment"]["gpu"] == "H100" and made["commit"] == "first"


def test_flags_of_a_run_and_of_a_row_go_before_the_schedules(place, tmp_path):
    (tmp_path / "dict.txt").write_text("")
    settings = reproduce.Settings("short", {"tiny": str(tmp_path)}, None, 1, False)
    run = reproduction.manifest.load().runs["two"]
    flags = reproduce.Training(run, 1, settings).train_flags()
    assert [flags[at + 1] for at, flag in enumerate(flags) if flag == "--hidden-size"] == ["6"]
    short = dataclasses.replace(run.schedule.short, evaluate=("--beam", "5"))
    run = dataclasses.replace(run, schedule=dataclasses.replace(run.schedule, short=short))
    flags = reproduce.Training(run, 1, settings).score_flags(("--beam", "1"), "test")
    assert [flags[at + 1] for at, flag in enumerate(flags) if flag == "--beam"] == ["1"]
