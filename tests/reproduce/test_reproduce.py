"""Rows of a small manifest, trained and scored by the real commands."""

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
import benchmark  # noqa: E402
import commands  # noqa: E402
import reproduce  # noqa: E402
import reproduce_calls  # noqa: E402
import reproduce_checkpoints  # noqa: E402
import reproduce_logs  # noqa: E402
import reproduce_manifest  # noqa: E402
import reproduce_process  # noqa: E402
import reproduce_run  # noqa: E402
import reproduce_training  # noqa: E402
from reproduce_manifest import Refused, merged  # noqa: E402

ROWS = """
data = "tiny"
task = "rntn_language_modeling"
command = "eval-lm"

[schedules.sgd]
train = "--optimizer sgd --lr 1 --batch-size 2 --tokens-per-sample 5 --embed-dim 4 --hidden-size 5 --num-workers 0"
metric = "ppl"
epochs = 8
[schedules.sgd.short]
train = "--lr 0.5 --lr-scheduler fixed"
epochs = 2
because = "shortened"

[[runs]]
id = "one"
arch = "elman_lm"
schedule = "sgd"
[[runs]]
id = "two"
arch = "gru_lm"
schedule = "sgd"
flags = "--hidden-size 6"
seeds = [1, 2]

[[rows]]
paper = "P"
table = "Table 1"
row = "Elman"
column = "test PPL"
published = 5.5
run = "one"
[[rows]]
paper = "P"
table = "Table 2"
row = "GRU, by sentences"
column = "test PPL"
run = "two"
evaluate = "--sample-break-mode eos"
[[figures]]
id = "f"
paper = "P"
figure = "Figure 1"
title = "curves"
kind = "curves"
runs = ["two"]
[[claims]]
paper = "P"
where = "Table 1"
text = "GRU < Elman"
better = "two"
worse = "one"
"""


SWEEP = 'kind = "sweep"\nseries = [{{label = "f", points = [{}]}}]'


def call_forked(command, flags, threads, log, lock=None):
    """In place of a new interpreter for every command."""
    code, said = commands.forked(command, *flags, cwd=ROOT)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        out.write(said)
    return code, said


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
    load = reproduce_manifest.load
    monkeypatch.setattr(reproduce_manifest, "load", lambda: load(tmp_path / "tasks"))
    monkeypatch.setattr(reproduce_run, "call", call_forked)
    settings = reproduce.Settings

    def within(*given, **named):
        return settings(*given, **{**named, "runs": tmp_path / "runs", "results": tmp_path / "results"})

    monkeypatch.setattr(reproduce, "Settings", within)
    return tmp_path


def result(place, name):
    return json.loads((place / "results" / f"{name}.json").read_text())


def test_a_measurement_of_time_has_the_papers_sizes(place, monkeypatch, capsys):
    """The flags beside the reference reach the benchmark, which knows them."""
    rows = place / "tasks" / "tiny" / "rows.toml"
    timing = ROWS.replace('"elman_lm"\nschedule = "sgd"', '"elman_lm"\nschedule = "time"')
    schedule = '[schedules.time]\ntrain = "gru_lm --batch 20 --steps 30"\nmetric = "seconds"\nupdates = 40\n\n[[runs]]'
    rows.write_text(timing.replace("[[runs]]", schedule, 1))
    asked = []

    def call(command, flags, threads, *rest):
        asked.append((command, benchmark.parse(flags)))
        assert threads == 3
        return 1, "no"

    monkeypatch.setattr(reproduce_run, "call", call)
    assert (
        reproduce.main(["run", "one", "--threads", "3"]) != 0 and "benchmark.py failed: no" in capsys.readouterr().out
    )
    ((command, args),) = asked
    assert command == "scripts/benchmark.py" and (args.batch, args.steps, args.updates) == (20, 30, 40)
    assert args.threads == 3
    assert args.cells == ["gru_lm", "elman_lm"]


def test_train_score_and_write_down(place, corpus, capsys):
    assert reproduce.main(["run", "P", "--data", f"tiny={corpus}", "--schedule", "short", "--seeds", "1"]) == 0
    one, two = (result(place, f"{name}.short.seed1") for name in ("one", "two"))
    for each in (one, two):
        assert each["complete"] and each["stopped"] == "schedule" and each["epochs"] == 2
        assert each["of_schedule"] == 1 and each["of_paper"] == 0.25
        assert [point["epoch"] for point in each["curve"]] == [1, 2]
        assert all(point[split]["ppl"] > 1 for point in each["curve"] for split in ("train", "valid"))
        assert each["valid"]["ppl"] == pytest.approx(min(point["valid"]["ppl"] for point in each["curve"]), rel=0.05)
        assert 0 < each["seconds"]["train"] < each["seconds"]["wall"]
        assert each["environment"]["versions"]["torch"] and each["parameters"] > 100
        assert each["commands"]["train"][0] == "fairseq-train" and "--seed" in each["commands"]["train"]
    assert set(one["test"]) == {""} and set(two["test"]) == {"", "--sample-break-mode eos"}
    assert one["test"][""]["tokens"] == two["test"]["--sample-break-mode eos"]["tokens"] > 20
    asked = two["commands"]["score"]["--sample-break-mode eos"]
    assert asked[0] == "fairseq-eval-lm" and asked[-2:] == ["--sample-break-mode", "eos"]
    assert asked[asked.index("--path") + 1].endswith("two.short.seed1/checkpoint_best.pt")
    flags = two["commands"]["train"]
    assert flags[flags.index("--lr") + 1] == "0.5" and flags[flags.index("--hidden-size") + 1] == "6"
    log = (place / "results" / "one.short.seed1.log").read_text()
    assert "valid | epoch 002" in log and str(ROOT) not in log and sys.prefix not in log
    capsys.readouterr()
    assert reproduce.main(["status"]) == 0
    said = capsys.readouterr().out
    assert "short, seed 1: test PPL" in said and "2 complete, 0 partial, 0 begun, 0 damaged, 0 not run" in said
    assert reproduce.main(["list", "P:Table 1"]) == 0
    said = capsys.readouterr().out
    assert "one  (elman_lm; tiny; 8 epochs, short 2 epochs)" in said and "Elman, test PPL: 5.5" in said
    assert "two" not in said
    assert reproduce.main(["list", "two"]) == 0 and "\n    P Figure 1\n" in capsys.readouterr().out


COMPLETE = {
    "complete": True, "stopped": "schedule", "epochs": 8.0, "of_schedule": 1.0, "of_paper": 1.0,
    "test": {"": {"ppl": 3.0}},
}  # fmt: skip


def training_of(place, kind="paper"):
    return reproduce.Training(reproduce_manifest.load().runs["one"], 1, reproduce.Settings(kind, {}, None, 1, False))


def call_of(place, updates, commit="abc1234", changed=0, **more):
    where = {"commit": commit, "changed_files": changed, "processor": "x", **more}
    folder = training_of(place).folder
    folder.mkdir(parents=True, exist_ok=True)
    return reproduce_calls.Calls(folder, updates, folder / "train.log", where)


@pytest.mark.parametrize("changed", [0, 2])
def test_whose_code_it_was(place, changed):
    training = training_of(place)
    training.result.parent.mkdir()
    made = call_of(place, 0, changed=changed).ended(12.34, 5)
    assert made.pop("wall") == 12.3
    written = reproduce_run.write(training, {"complete": True, "of_schedule": 1.0, "updates": 5}, "", made)
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
    assert made["calls"][0] == reproduce_calls.UNKNOWN and len(made["calls"]) == 2 and made["commit"] == "known"
    assert made["modified"] is None and made["started"] is None and made["wall"] is None


def test_a_damaged_checkpoint_gives_way_to_a_whole_one(tmp_path):
    """fairseq copies the file that it wrote: a process that is killed leaves a part of it."""
    mend, last = reproduce_checkpoints.mend, tmp_path / "checkpoint_last.pt"
    assert mend(tmp_path) is None and reproduce_checkpoints.saved(tmp_path) == (0, 0.0)
    for name, updates in (("1_20", 20), ("best", 30), ("last", 30)):
        state = {"optimizer_history": [{"num_updates": updates}], "extra_state": {"previous_training_time": 2.5}}
        torch.save({**state, "model": torch.ones(9999)}, tmp_path / f"checkpoint_{name}.pt")
    assert mend(tmp_path) is None
    whole = last.read_bytes()
    last.write_bytes(whole[:20000])
    with pytest.raises(Refused, match="checkpoint_last.pt is damaged"):
        reproduce_checkpoints.saved(tmp_path)
    assert "checkpoint_best.pt took its place, of after 30 updates" in mend(tmp_path)
    assert reproduce_checkpoints.saved(tmp_path) == (30, 2.5)
    for name in ("best", "last"):
        (tmp_path / f"checkpoint_{name}.pt").write_bytes(whole[:20000])
    assert "checkpoint_1_20.pt took its place" in mend(tmp_path)
    assert reproduce_checkpoints.saved(tmp_path) == (20, 2.5) and not list(tmp_path.glob("*.part"))
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
        reproduce_checkpoints.mend(tmp_path)
    monkeypatch.undo()
    assert reproduce_checkpoints.saved(tmp_path) == (3000, 0.0) and len(list(tmp_path.iterdir())) == 2


def test_it_goes_on_with_the_same_text_only(place, corpus, tmp_path, capsys):
    other, run = tmp_path / "other", ["run", "one", "--budget", "0.01s", "--data"]
    shutil.copytree(corpus, other)
    assert reproduce.main([*run, f"tiny={corpus}"]) == 0 and reproduce.main([*run, f"tiny={other}"]) == 0
    found = result(place, "one.paper.seed1")["data"]
    assert found == {"name": "tiny", "sha256": reproduce_training.digests(corpus)}
    (other / "train.bin").write_bytes((corpus / "train.bin").read_bytes()[::-1])
    capsys.readouterr()
    assert reproduce.main([*run, f"tiny={other}"]) == 1
    assert "was begun with other data than " in capsys.readouterr().out


def test_a_budget_is_added_to_what_there_is(place, monkeypatch):
    settings = reproduce.Settings("paper", {}, 1800.0, 1, False)
    training = reproduce.Training(reproduce_manifest.load().runs["one"], 1, settings)
    assert reproduce_run.budget(training) == ["--stop-time-hours", "0.500000"]
    monkeypatch.setattr(reproduce_run, "saved", lambda folder: (7, 3600.0))
    assert reproduce_run.budget(training) == ["--stop-time-hours", "1.500000"]


CONFIG = "2026-01-01 10:00:00 | INFO | fairseq_cli.train | {'optimization': {'max_update': 0, 'stop_time_hours': 0}}\n"
SAYS = "2026-01-01 10:00:00 | INFO | fairseq_cli.train | {}\n"


@pytest.mark.parametrize("says, stopped, complete, of_paper", [
    ("stopping training because current learning rate (-inf) is smaller than or equal to", "rule", True, 1.0),
    ("Stopping training due to num_updates: 52 >= max_update: 52", "schedule", True, 0.25),
    ("Stopping training due to cumulative_training_time: 0.1 > stop_time_hours: 0.1 hour(s)", "budget", False, 0.25),
    ("done training in 3.1 seconds", "schedule", True, 0.25),
])  # fmt: skip
def test_why_training_stopped(place, says, stopped, complete, of_paper):
    settings = reproduce.Settings("paper", {}, None, 1, False)
    training = reproduce.Training(reproduce_manifest.load().runs["one"], 1, settings)
    log = CONFIG + "".join(f"10:00 | INFO | train | epoch {n:03} | ppl 7 | num_updates {26 * n}\n" for n in (1, 2))
    found = reproduce_run.described(training, log + SAYS.format(says), CONFIG + SAYS.format(says))
    assert found["stopped"] == stopped and found["complete"] == complete and found["of_paper"] == of_paper
    assert found["epochs"] == 2 and found["updates"] == 52


def test_what_came_after_the_last_checkpoint_does_not_count():
    line = "10:00 | INFO | valid | epoch {:03} | ppl {} | num_updates {}\n"
    log = line.format(1, 9, 10) + line.format(2, 8, 20) + f"{reproduce_logs.GOES_ON}10\n" + line.format(2, 7, 15)
    points = reproduce_logs.curve(log)
    assert [(point["updates"], point["valid"]["ppl"]) for point in points] == [(10, 9), (15, 7)]
    assert reproduce_logs.curve(f"{log}{reproduce_logs.GOES_ON}1x\n") == points


@pytest.mark.parametrize("unfinished", [f"{reproduce_logs.GOES_ON}1", "10:00 | INFO | train_inn"])
def test_a_log_that_ends_within_a_line(place, tmp_path, unfinished):
    """As a full disk or a power cut leaves it: what is known of the line says nothing, and what follows counts."""
    (tmp_path / "dict.txt").write_text("")
    settings = reproduce.Settings("paper", {"tiny": str(tmp_path)}, None, 1, False)
    training = reproduce.Training(reproduce_manifest.load().runs["one"], 1, settings)
    training.folder.mkdir(parents=True)
    flags, log = training.train_flags(), training.folder / "train.log"
    reproduce_run.begun(training, flags, {}, log)
    reproduce_run.check_the_same(training, flags, {})
    state = {"optimizer_history": [{"num_updates": 20}], "extra_state": {}}
    torch.save(state, training.folder / "checkpoint_last.pt")
    line = "10:00 | INFO | valid | epoch {:03} | ppl {} | num_updates {}\n"
    whole = "".join(line.format(at, 9, 10 * at) for at in (1, 2, 3))
    log.write_text(whole + unfinished)
    said = reproduce_run.begun(training, flags, {}, log)
    assert said == f"{whole}{reproduce_logs.GOES_ON}20\n" == log.read_text()
    assert [point["updates"] for point in reproduce_logs.curve(said + line.format(3, 8, 30))] == [10, 20, 30]
    assert [point["updates"] for point in reproduce_logs.curve(said)] == [10, 20]


@pytest.mark.parametrize("value", ["nan", "inf", "7.25"])
def test_scores_of_models_that_diverged(value):
    text = (
        f"x | INFO | fairseq_cli.eval_lm | Evaluated 1,234 tokens in 1s\nx | Loss (base 2): nan, Perplexity: {value}\n"
    )
    found = reproduce_logs.read_score("ppl", text)
    assert str(found["ppl"]) == value and found["tokens"] == 1234
    with pytest.raises(Refused, match="printed no ppl"):
        reproduce_logs.read_score("ppl", "nothing")


def test_damaged_files(place, corpus, capsys):
    run = ["run", "one", "--data", f"tiny={corpus}", "--budget", "0.01s"]
    assert reproduce.main(run) == 0
    file, folder = place / "results" / "one.paper.seed1.json", place / "runs" / "one.paper.seed1"
    whole = file.read_text()
    file.write_text(whole[:50])
    capsys.readouterr()
    assert reproduce.main(["status"]) == 0 and "1 damaged" in capsys.readouterr().out
    assert reproduce.main(run) == 1 and "one.paper.seed1.json: no result" in capsys.readouterr().out
    file.write_text(whole)
    (folder / "flags.json").unlink()
    assert reproduce.main(run) == 1 and "begun with other flags (not known)" in capsys.readouterr().out
    for name in ("last", "best"):
        (folder / f"checkpoint_{name}.pt").write_text("not a checkpoint")
    (folder / "flags.json").write_text(json.dumps([flag for flag in json.loads(whole)["commands"]["train"][2:]
                                                   if flag not in ("--cpu", "--num-workers=0")]))  # fmt: skip
    assert reproduce.main(run) == 1
    said = capsys.readouterr().out
    assert "checkpoint_last.pt is damaged (" in said and "([" not in said and "to begin anew" in said
    (folder / "checkpoint_last.pt").write_bytes(b"")
    assert reproduce.main(run) == 1
    assert "checkpoint_last.pt is damaged (it is empty): remove" in capsys.readouterr().out


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
    assert f"{reproduce_logs.GOES_ON}{whole['calls'][1]['updates']}\n" in log


@pytest.mark.parametrize("named", [False, True])
def test_files_that_cannot_be_written(place, corpus, capsys, monkeypatch, named):
    """Python names no file where the disk is full."""
    error = PermissionError(13, "Permission denied", "x.json") if named else OSError(28, "No space left on device")

    def carry_out(training, evaluations):
        raise error

    monkeypatch.setattr(reproduce, "carry_out", carry_out)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
    said = capsys.readouterr().out.splitlines()[-1].partition("failed: ")[2]
    runs, results = map(reproduce.relative, (place / "runs/one.paper.seed1", place / "results"))
    expected = f"OSError: [Errno 28] No space left on device, in {runs} or {results}"
    assert said == ("PermissionError: [Errno 13] Permission denied: 'x.json'" if named else expected)


@pytest.mark.parametrize("free, why", [(0, "no space left on the device of "), (2**30, "with PathManager.open(")])
def test_a_command_that_fails_on_a_full_disk(place, corpus, capsys, monkeypatch, free, why):
    """fairseq's words on it are cut off, as they go to the same disk."""
    monkeypatch.setattr(reproduce_run, "call", lambda *_: (1, "with PathManager.open("))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
    assert f"failed: one.paper.seed1: fairseq-train failed ({why}" in capsys.readouterr().out


def test_a_form_of_the_schedule_that_is_not_there(place, corpus, capsys):
    assert reproduce.main(["list", "one"]) == 0
    assert "(elman_lm; tiny; 8 epochs, short 2 epochs)" in capsys.readouterr().out
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--schedule", "medium"]) == 2
    assert "'sgd' has no medium form: --schedule paper or --schedule short" in capsys.readouterr().err
    assert not (place / "runs").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fairseq's readers of a damaged index
def test_another_corpus_is_refused(place, corpus, tmp_path, capsys, monkeypatch):
    """Before the training, by what the binarising script wrote or by the index; at the latest when it is scored."""
    rows, binarised = place / "tasks" / "tiny" / "rows.toml", tmp_path / "bin"
    rows.write_text("tokens = 99\n" + rows.read_text())
    shutil.copytree(corpus, binarised)
    run = ["run", "one", "--data", f"tiny={binarised}", "--schedule", "short"]
    said = ": {:,} to score in its test set, 99 in that of tasks/tiny"
    count = sum(len(line.split()) + 1 for line in (corpus.parent / "test.txt").read_text().splitlines())
    assert reproduce.main(run) == 2 and said.format(count) in capsys.readouterr().err
    (binarised / "prepare_lm.json").write_text('{"statistics": {"test": {"tokens": 98}}}')
    assert reproduce.main(run) == 2 and said.format(98) in capsys.readouterr().err
    (binarised / "prepare_lm.json").unlink()
    (binarised / "test.idx").write_bytes(b"no index")
    assert reproduce.main(run) == 2 and "bin/test is empty or damaged: " in capsys.readouterr().err
    index = (corpus / "test.idx").read_bytes()
    for place_of_byte in range(len(index)):  # told, or another number of tokens
        (binarised / "test.idx").write_bytes(
            index[:place_of_byte] + bytes([index[place_of_byte] ^ 240]) + index[place_of_byte + 1 :]
        )
        assert reproduce.main(run) == 2 and capsys.readouterr().err.startswith("reproduce: error: ")
    (binarised / "test.bin").unlink()
    assert reproduce.main(run) == 2 and "bin has a test.idx, but no test.bin" in capsys.readouterr().err
    assert not (place / "runs").exists()
    monkeypatch.setattr(reproduce_training, "test_tokens", lambda folder: None)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--schedule", "short"]) == 1
    assert "is another corpus" in capsys.readouterr().out and not list((place / "results").iterdir())


def test_which_text_it_was(corpus, tmp_path):
    """As the binarising script wrote down, or of the binarised files."""
    found = reproduce_training.digests(corpus)
    assert list(found) == ["test.bin", "train.bin", "valid.bin"]
    assert found["test.bin"] == hashlib.sha256((corpus / "test.bin").read_bytes()).hexdigest()
    (tmp_path / "prepare_lm.json").write_text("[]")
    (tmp_path / "prepare_conllu.json").write_text('{"digests": {"train": "1f", "vectors": null}}')
    (tmp_path / "x.bin").mkdir()
    assert reproduce_training.prepared(tmp_path) == ({}, None), "a list"
    (tmp_path / "prepare_lm.json").write_text("[" * 100_000)
    assert reproduce_training.digests(tmp_path) == {"train": "1f"}
    for count in ("true", "98.5", "NaN", '"98"', "[98]", "null"):
        (tmp_path / "prepare_lm.json").write_text(
            f'{{"text": {{"a": [1], "b": "2e"}}, "statistics": {{"test": {{"tokens": {count}}}}}}}'
        )
        assert reproduce_training.prepared(tmp_path) == ({"b": "2e"}, None)


def test_a_result_is_written_whole_or_not_at_all(place, monkeypatch):
    """Its log too: of a result that was there before both stay."""
    training, folder = training_of(place), place / "results"
    folder.mkdir()
    found, made = {**COMPLETE, "updates": 5}, call_of(place, 0).ended(1, 5)
    reproduce_run.write(training, found, "2026-01-01 10:00:00 | INFO | first", made)
    before = {file.name: file.read_text() for file in folder.iterdir()}
    assert sorted(before) == ["one.paper.seed1.json", "one.paper.seed1.log"] and "first" in before[sorted(before)[1]]
    usual = Path.write_text

    def full(file, text, **more):
        usual(file, text[:9], **more)
        if ".json" in file.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        reproduce_run.write(training, {**found, "updates": 7}, "2026-01-01 10:00:00 | INFO | second", made)
    assert {file.name: file.read_text() for file in folder.iterdir()} == before


def test_results_that_cannot_be_written_are_no_surprise_after_training(place, corpus, monkeypatch, capsys):
    (place / "results").write_text("no folder")
    monkeypatch.setattr(reproduce_run, "call", lambda *_: pytest.fail("trained"))
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
    assert "one.paper.seed1: failed: FileExistsError" in capsys.readouterr().out


def test_a_budget_stops_and_the_next_goes_on(place, corpus, capsys):
    run = ["run", "one", "--data", f"tiny={corpus}"]
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    partial = result(place, "one.paper.seed1")
    assert not partial["complete"] and partial["stopped"] == "budget" and 0 <= partial["of_paper"] < 0.2
    assert "partial" in capsys.readouterr().out
    assert reproduce.main(run) == 0
    whole = result(place, "one.paper.seed1")
    assert whole["complete"] and whole["of_paper"] == 1 and whole["epochs"] == 8
    assert whole["updates"] > partial["updates"] and len(whole["curve"]) >= 8
    updates = [point["updates"] for point in whole["curve"]]
    assert updates == sorted(set(updates)), "went on, and did not begin anew"
    for file in (place / "runs" / "one.paper.seed1").glob("*"):
        file.unlink()
    capsys.readouterr()
    assert reproduce.main([*run, "--budget", "0.01s"]) == 0
    assert "an earlier result went further and is kept" in capsys.readouterr().out
    assert result(place, "one.paper.seed1") == whole


def test_an_interrupted_training_is_begun(place, corpus, monkeypatch, capsys):
    def interrupted(command, flags, threads, log, lock):
        call_forked(command, [*flags, "--max-epoch", "1"], threads, log)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce_run, "call", interrupted)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert reproduce.main(["status"]) == 0
    said = capsys.readouterr().out
    assert "updates; run it again to go on" in said and "1 begun" in said


def test_a_whole_training_is_scored_without_an_update_more(place, corpus, monkeypatch):
    rows = place / "tasks" / "tiny" / "rows.toml"
    rows.write_text(rows.read_text().replace("epochs = 2\n", "updates = 7\n"))
    called = []

    def call(command, *given, **named):
        called.append(command)
        if called == ["train", "eval-lm"]:
            raise KeyboardInterrupt
        return call_forked(command, *given, **named)

    monkeypatch.setattr(reproduce_run, "call", call)
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


def test_begun_on_a_cpu_it_may_go_on_on_a_gpu(place, tmp_path):
    run = reproduce_manifest.load().runs["one"]
    for cuda in (False, True):
        (tmp_path / "dict.txt").write_text("")
        training = reproduce.Training(run, 1, reproduce.Settings("paper", {"tiny": str(tmp_path)}, None, 1, cuda))
        training.folder.mkdir(parents=True, exist_ok=True)
        flags = training.train_flags()
        assert ("--cpu" in flags) != cuda
        if cuda:
            state = {"optimizer_history": [{"num_updates": 7}], "extra_state": {}}
            torch.save(state, training.folder / "checkpoint_last.pt")
        reproduce_run.check_the_same(training, flags, {})
        said = reproduce_run.begun(training, flags, {}, training.folder / "train.log")
    assert said == f"{reproduce_logs.GOES_ON}7\n"


def test_one_at_a_time(place, corpus, capsys):
    folder = place / "runs" / "one.paper.seed1"
    assert reproduce_process.at_work(folder) is None
    for known in (True, False):
        with reproduce_process.alone(folder):
            (folder / "train.log").write_text("")
            if not known:
                (folder / "lock").write_text("")
            who = f"process {os.getpid()}, or a command that it left," if known else "another process"
            assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
            assert f"{who} is at work in " in capsys.readouterr().out
            assert reproduce.main(["status"]) == 0 and f"0 updates; {who} is at work on it" in capsys.readouterr().out
        assert reproduce_process.at_work(folder) is None
    assert reproduce.main(["status"]) == 0 and "run it again to go on" in capsys.readouterr().out


def test_a_signal_ends_what_runs(place, corpus, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setitem(reproduce_process.COMMANDS, "train", "http.server")  # something that does not end by itself
    found, folder = [], tmp_path / "folder"
    with reproduce_process.alone(folder) as lock:
        thread = threading.Thread(
            target=lambda: found.append(reproduce_process.call("train", ["0"], 1, tmp_path / "log", lock))
        )
        thread.start()
        while not reproduce_process._going:
            time.sleep(0.01)
    with pytest.raises(Refused, match="a command that it left"), reproduce_process.alone(folder):
        pass  # as if we had been killed: the command holds the lock
    reproduce_process.stop_all()
    thread.join(20)
    assert found and found[0][0] != 0 and not reproduce_process._going
    with reproduce_process.alone(folder), pytest.raises(Refused, match="stopped"):
        reproduce_process.call("train", ["0"], 1, tmp_path / "log")  # by a thread that was not at it yet
    reproduce_process.start_anew()
    assert reproduce_process.call("train", ["--help"], 1, tmp_path / "log")[0] == 0


def test_sigterm_is_ctrl_c(place, corpus, monkeypatch, capsys):
    """It ends the command that runs, and those that would follow are not begun."""
    monkeypatch.setitem(reproduce_process.COMMANDS, "train", "http.server")  # something that does not end by itself
    calls = []

    def carry_out(training, evaluations):
        log = place / "log"
        threading.Thread(target=kill).start()
        calls.append(reproduce_process.call("train", ["0"], 1, log)[0])
        calls.append(reproduce_process.call("eval-lm", [], 1, log))

    def kill():
        while not reproduce_process._going:
            time.sleep(0.01)
        (process,) = reproduce_process._going
        os.kill(os.getpid(), signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()  # where it was not ended, the test would wait for ever

    monkeypatch.setattr(reproduce, "carry_out", carry_out)
    usual, started = signal.getsignal(signal.SIGTERM), time.monotonic()
    try:
        assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 130
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert len(calls) == 1 and calls[0] != 0 and time.monotonic() - started < 15


def test_a_failing_command_is_reported_and_the_others_run(place, corpus, monkeypatch, capsys):
    rows = place / "tasks" / "tiny" / "rows.toml"
    wrong = 'arch = "elman_lm"\nflags = "--tokens-per-sample -1"'
    rows.write_text(rows.read_text().replace('arch = "elman_lm"', wrong))
    assert reproduce.main(["run", "P", "--data", f"tiny={corpus}", "--schedule", "short", "--seeds", "1"]) == 1
    said = capsys.readouterr().out
    assert "one.short.seed1: failed: " in said and "--tokens-per-sample -1" in said and "train.log" in said
    assert not (place / "results" / "one.short.seed1.json").exists() and result(place, "two.short.seed1")["complete"]


@pytest.mark.parametrize("arguments, message", [
    (["run", "nothing"], "no run, paper, table or figure 'nothing', nor headlines"),
    (["run", "P:Table 9"], "no run, paper, table or figure 'P:Table 9'"),
    (["run", "one"], "no binarised folder data-bin/tiny: prepare it as tasks/tiny/README.md says"),
    (["run", "one", "--device", "cuda"], "torch sees no GPU"),
    (["run", "one", "--data", "tiyn=x"], "--data tiyn: no run has such data; there are tiny"),
])  # fmt: skip
def test_errors_are_one_line(place, arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert reproduce.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_jobs_take_the_gpus_in_turn(place, corpus, tmp_path, monkeypatch):
    script, both, seen = tmp_path / "show.py", threading.Barrier(2), []
    script.write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")

    def carry_out(training, evaluations):
        both.wait(60)
        seen.append(reproduce_process.call(str(script), [], 1, tmp_path / f"{training.name}.log"))
        return {"test": {"": {"ratio": 1.0, "reference": ""}}}

    monkeypatch.setattr(reproduce, "carry_out", carry_out)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5e,7")
    asked = ["run", "two", "--data", f"tiny={corpus}", "--schedule", "short", "--jobs", "2"]
    assert reproduce.main(asked) == 0 and sorted(seen) == [(0, "3\n"), (0, "GPU-5e\n")]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert reproduce.gpus() == ["0", "1"]


@pytest.mark.parametrize(
    "arguments",
    [["--budget", "0m"], ["--budget", "soon"], ["--jobs", "0"], ["--data", "ptb"], ["--seeds=-1"],
     ["--seeds", "4294967296"]],
)  # fmt: skip
def test_bad_values(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        reproduce.main(["run", "one", *arguments])
    assert arguments[0].split("=")[0] in capsys.readouterr().err


def test_flags_replace_those_of_the_same_name():
    flags = ("--lr", "1", "--clip-norm", "5", "--sentence-avg", "--adam-betas", "(0.9,0.9)")
    assert merged(flags, ("--lr", "0.5", "0.1")) == (*flags[2:], "--lr", "0.5", "0.1")
    assert merged(flags, ("--lr", "-1", "--sentence-avg")) == (*flags[2:4], *flags[5:], "--lr", "-1", "--sentence-avg")


@pytest.mark.parametrize("change, message", [
    (("epochs = 8", ""), "needs one of epochs and updates"),
    (('metric = "ppl"', 'metric = "bleu"'), "metric 'bleu' is none of"),
    (('id = "two"', 'id = "one"'), "two runs 'one'"),
    (('run = "one"', 'run = "three"'), "unknown run 'three'"),
    (('worse = "one"', 'worse = "three"'), "unknown run 'three'"),
    (('runs = ["two"]', 'runs = ["three"]'), "unknown run 'three'"),
    (('kind = "curves"', 'kind = "pie"'), "neither 'curves' nor 'sweep'"),
    (('published = 5.5', 'publisht = 5.5'), "unknown key 'publisht'"),
    (('schedule = "sgd"', 'schedule = "adam"'), "unknown schedule 'adam'"),
    (('data = "tiny"', ""), "'data' is missing"),
    (('data = "tiny"', "data = "), "rows.toml: "),
    (("epochs = 8", "epochs = 0"), "epochs = 0 must be a number above 0"),
    (("epochs = 2", 'epochs = "2"'), "epochs = '2' must be"),
    (("published = 5.5", 'published = "5.5"'), "published = '5.5' must be"),
    (("seeds = [1, 2]", 'seeds = ["a"]'), "must be whole numbers"),
    (("seeds = [1, 2]", "seeds = []"), "must be whole numbers"),
    (("seeds = [1, 2]", "seeds = [4294967296]"), "must be whole numbers from 0 to 4294967295"),
    (("published = 5.5", f"published = {'9' * 400}"), "published = 9+ must be a number above 0, and less than"),
    (("epochs = 8", f"epochs = {'9' * 400}"), "epochs = 9+ must be a number above 0"),
    (('runs = ["two"]', f"runs = {'[' * 5000}"), "nested too deeply"),
    (('kind = "curves"\nruns = ["two"]', 'kind = "sweep"\nseries = []'), "figure 'f' has no series"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format("")), "must be .x, run. each, with a number x"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format('["a", "two"]')), "with a number x"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format('[nan, "two"]')), "with a number x"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format(f'[{"9" * 400}, "two"]')), "with a number x"),
    (("[[claims]]", ROWS[ROWS.index("[[figures]]") : ROWS.index("[[claims]]")] + "[[claims]]"), "figure f: there 2 t"),
    (("[[figures]]", ROWS[ROWS.index("[[rows]]") : ROWS.index("[[figures]]")] + "[[figures]]"),
     "row P, Table 1, Elman, test PPL, one: there 2 times"),
    (("[[claims]]", 2 * ROWS[ROWS.index("[[claims]]") :] + "[[claims]]"), "claim P, GRU < Elman, two, one: there"),
    (('text = "GRU < Elman"', 'text = "GRU > Elman"'), "the better number, which of 'ppl' is the lower"),
    (("seeds = [1, 2]", "seeds = 1"), "must be whole numbers"),
    (('flags = "--hidden-size 6"', 'flags = ["--lr", "1"]'), "flags = .* must be some text"),
    (('schedule = "sgd"', "schedule = 3"), "schedule = 3 must be some text"),
    (('run = "one"', 'run = ["one"]'), "run = .* must be some text"),
    (("epochs = 8", "updates = 4.5"), "updates = 4.5 of schedule .* must be a whole number"),
    (('data = "tiny"', "data = 3"), "data = 3 must be some text"),
    (('command = "eval-lm"', 'command = "rm"'), "command 'rm' is none of eval-lm, generate"),
    (('runs = ["two"]', 'runs = "two"'), "must be a list of names"),
    (('id = "f"', 'id = "../f"'), "'../f' is no name"),
    (('runs = ["two"]', ""), "'runs' is missing"),
    (('runs = ["two"]', 'runs = ["two"]\nsubsets = "train"'), "unknown key 'subsets'"),
    (('runs = ["two"]', 'runs = ["two"]\ntables = {"Table 1" = 5}'), "must be some text"),
    (('better = "two"', ""), "'better' is missing"),
    (('where = "Table 1"', ""), "'where' is missing"),
    (('where = "Table 1"', "where = 1"), "where = 1 of a claim must be some text"),
    (('better = "two"', 'better = ["two"]'), "better = .* must be some text"),
    (('text = "GRU < Elman"', 'text = ""'), "text = '' of a claim must be some text"),
    (('better = "two"', 'better = "one"'), "compares 'one' with itself"),
    (('text = "GRU < Elman"', 'text = "GRU near Elman"\nwithin = 2'), "within = 2 of claim .* must be a share"),
    (('text = "GRU < Elman"', 'text = "GRU near Elman"\nwithin = inf'), "within = inf"),
    (('better = "two"', 'better = "two"\nwithin = 0.02'), "a sign without = leaves nothing"),
    (('better = "two"', 'better = "two"\nevaluate = 5'), "evaluate = 5 of a claim must be some text"),
    (('better = "two"', 'better = "two"\naside = " "'), "aside = ' ' of a claim must be some text"),
    (('better = "two"', 'better = "two"\nat_end = "yes"'), "at_end = 'yes' of claim .* must be true or false"),
    (('better = "two"', 'better = "two"\nheadline = 1'), "headline = 1 of claim .* must be true or false"),
    (('better = "two"', 'better = "two"\nepochs = 2'), "epochs of claim .* must be first or all"),
    (('better = "two"', 'better = "two"\nepochs = "all"\nat_end = true'), "without evaluate and at_end"),
    (('better = "two"', 'better = "two"\nevaluate = "--beam 9"'), "no row has 'two' scored with --beam 9"),
])  # fmt: skip
def test_bad_manifests(tmp_path, change, message):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "rows.toml").write_text(ROWS.replace(*change))
    with pytest.raises(Refused, match=message):
        reproduce_manifest.load(tmp_path)


def test_no_manifest(tmp_path):
    with pytest.raises(Refused, match="no rows.toml"):
        reproduce_manifest.load(tmp_path)


def test_a_real_call_runs_in_the_root_and_is_logged(tmp_path):
    code, said = reproduce_process.call("eval-lm", ["nowhere", "--path", "none.pt", "--user-dir", "rntn_plugins"], 1,
                                    tmp_path / "a" / "log")  # fmt: skip
    assert code and said == (tmp_path / "a" / "log").read_text() and "nowhere" in said


def test_trainings_keep_memory_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    names = ("THP_MEM_ALLOC_ENABLE", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    script = tmp_path / "show.py"
    script.write_text(f"import os; print([os.environ.get(name) for name in {names}])")
    monkeypatch.setitem(reproduce_process.COMMANDS, "train", "show")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log"
    assert reproduce_process.call("train", [], 1, log) == (0, "['1', '7', '8589934592']\n")
    assert reproduce_process.call(str(script), [], 1, log) == (0, "[None, '7', None]\n")  # a measurement, say
    assert reproduce_process.allocator("train") == dict(zip(names, ("1", "7", "8589934592")))
    assert reproduce_process.allocator("eval-lm") == {"MALLOC_MMAP_MAX_": "7"}
