"""What scripts/reproduce.py promises of its runs: which result stays, what is complete, flags, signals, words."""

import argparse
import dataclasses
import os
import re
import shlex
import signal
import time
from pathlib import Path

import outputs
import pytest
import reproduce
import reproduction.calls
import reproduction.checkpoints
import reproduction.logs
import reproduction.manifest
import reproduction.process
import reproduction.run
from reproduction.manifest import Refused
from tiny_rows import ROWS, result

VALIDATED = "10:00 | INFO | valid | epoch {0:03} | valid on 'valid' subset | ppl 7.5 | num_updates {1}\n"


def training_of(kind="short", data=None, budget=None, seed=1, run="one"):
    settings = reproduce.Settings(kind, data or {}, budget, 1, False)
    return reproduce.Training(reproduction.manifest.load().runs[run], seed, settings)


def written(training, complete=True, share=1.0, updates=100, ppl=5.0):
    training.result.parent.mkdir(parents=True, exist_ok=True)
    found = {"complete": complete, "stopped": "schedule", "epochs": 2 * share, "updates": updates, "of_schedule": share,
             "of_paper": share / 4, "test": {"": {"ppl": ppl}}}  # fmt: skip
    made = {"commit": "abc", "modified": False, "environment": {}, "calls": []}
    return reproduction.run.write(training, found, "", made)


def test_which_result_stays(place):
    """A whole training's takes the place of any, whatever the schedule was before; a shorter one's of no longer one."""
    training = training_of()
    name = training.name
    written(training, updates=208)
    assert "kept" not in written(training, updates=104, ppl=6.0)
    assert result(place, name)["updates"] == 104
    found = written(training, complete=False, share=0.9, updates=999, ppl=4.0)
    assert found["kept"]["updates"] == 999 and found["updates"] == 104 and result(place, name)["updates"] == 104
    training.result.unlink()
    written(training, complete=False, share=0.5, updates=50)
    assert "kept" in written(training, complete=False, share=0.4, updates=60)
    assert "kept" not in written(training, complete=False, share=0.5, updates=50, ppl=4.5)
    assert result(place, name)["test"][""]["ppl"] == 4.5


def test_a_result_that_is_not_kept_is_told(place, monkeypatch):
    training = training_of()
    kept = {"complete": True, "epochs": 2.0, "updates": 208, "of_paper": 0.25, "test": {"": {"ppl": 5.0}}}
    new = {**kept, "complete": False, "updates": 99, "test": {"": {"ppl": 9.5}}}
    monkeypatch.setattr(reproduce, "carry_out", lambda *_: {**kept, "metric": "ppl", "kept": {**new, "metric": "ppl"}})
    said = reproduce.one(training, reproduction.manifest.load())
    assert said.startswith("test PPL 9.5; partial") and "an earlier result went further: test PPL 5; complete" in said


def test_a_log_that_is_not_whole_is_refused(place, monkeypatch):
    monkeypatch.setattr(reproduction.run, "saved", lambda folder: (52, 1.0))
    log = "".join(VALIDATED.format(epoch, 26 * epoch) for epoch in (1, 2))
    assert reproduction.run.described(training_of(), log, "")["complete"]
    for lost in ("", VALIDATED.format(1, 26)):
        with pytest.raises(Refused, match="its log ends after .* updates, its checkpoint has 52: remove "):
            reproduction.run.described(training_of(), lost, "")


def test_fairseq_logs_six_digits(place, monkeypatch):
    """Of more than a million updates a log names fewer, or more, than the checkpoint has."""
    for made in (1_234_564, 1_060_768):
        monkeypatch.setattr(reproduction.run, "saved", lambda folder, made=made: (made, 1.0))
        log = VALIDATED.format(2, f"{made:g}") + f"reproduce: goes on after updates {made}\n"
        assert reproduction.run.described(training_of(), log, "")["updates"] == float(f"{made:g}")
    training = training_of()
    training.folder.mkdir(parents=True)
    (training.folder / "train.log").write_text(
        "x | train_inner | epoch 002: 3 / 26 loss=3, num_updates=1.23e+06, lr=1\n"
    )
    assert reproduce.progress(training)[1].startswith("1,230,000 updates")


def test_progress_of_a_training_that_went_back(place):
    training = training_of()
    training.folder.mkdir(parents=True)
    log = training.folder / "train.log"
    line = "x | train_inner | epoch 002: 3 / 26 loss=3, num_updates={}, lr=1\n"
    log.write_text(line.format(40) + "reproduce: goes on after updates 26\n")
    assert reproduce.progress(training)[1] == "26 updates, 50 % of the schedule"
    log.write_text(log.read_text() + line.format(39))
    assert reproduce.progress(training)[1] == "39 updates, 75 % of the schedule"
    log.write_text("10:00 | INFO | valid | epoch 001 | ppl 7\n")  # cut off
    assert reproduce.progress(training) == (0, "0 updates")


def test_a_log_without_a_checkpoint_is_put_aside(place):
    training = training_of()
    training.folder.mkdir(parents=True)
    log = training.folder / "train.log"
    log.write_text("of before\n")
    assert reproduction.run.begun(training, ["x", "--lr", "1"], {}, log) == "" and not log.exists()
    assert log.with_suffix(".old.log").read_text() == "of before\n"


def test_flags_of_a_training(place, corpus):
    flags = training_of("paper", {"tiny": str(corpus)}, seed=7).train_flags()
    given = dict(zip(flags, flags[1:]))
    assert given["--seed"] == "7" and given["--distributed-world-size"] == "1" and given["--max-epoch"] == "8"
    assert given["--save-dir"].endswith("one.paper.seed7")


def test_the_budget_is_for_trainings(place, monkeypatch):
    assert reproduction.run.budget(training_of(budget=36.0)) == ["--stop-time-hours", "0.010000"]
    assert reproduction.run.budget(training_of()) == []
    rows = place / "tasks" / "tiny" / "rows.toml"
    rows.write_text(ROWS.replace("[schedules.sgd]\n", '[schedules.sgd]\nscript = "scripts/kneser_ney.py"\n', 1))
    assert reproduction.run.budget(training_of(budget=36.0)) == []


def test_threads_of_a_command(place, tmp_path, monkeypatch):
    script = tmp_path / "show.py"
    script.write_text("import os; print(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'])")
    assert reproduction.process.call(str(script), [], 3, tmp_path / "log") == (0, "3 3\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for jobs, threads in ((1, 8), (3, 2), (9, 1)):
        asked = reproduce.parse(["run", "one", "--jobs", str(jobs), "--device", "cpu"])
        assert reproduce.settings_of(asked).threads == threads


def test_what_has_no_such_schedule_is_left_out(place, corpus, capsys):
    """Of a table, unless nothing is left; a run that is named itself is refused."""
    rows = place / "tasks" / "tiny" / "rows.toml"
    medium = '[schedules.other]\ntrain = "--lr 1"\nmetric = "ppl"\nepochs = 3\n[schedules.other.medium]\nepochs = 2\n'
    text = ROWS.replace("[[runs]]", f"{medium}[[runs]]", 1)
    rows.write_text(text.replace('arch = "gru_lm"\nschedule = "sgd"', 'arch = "gru_lm"\nschedule = "other"'))

    def asked(*names):
        args = reproduce.parse(["run", *names, "--schedule", "medium", "--data", f"tiny={corpus}", "--device", "cpu"])
        return [
            each.run.id for each in reproduce.trainings(reproduction.manifest.load(), args, reproduce.settings_of(args))
        ]

    assert asked("P") == ["two", "two"] and capsys.readouterr().out == "left out, without a medium schedule: one\n"
    for names in (["one"], ["P", "one"], ["P:Table 1"]):
        with pytest.raises(Refused, match="'sgd' has no medium form"):
            asked(*names)


def only_time_one(place):
    """The run ``one`` becomes one that is timed, not trained."""
    timing = ROWS.replace('"elman_lm"\nschedule = "sgd"', '"elman_lm"\nschedule = "time"')
    schedule = '[schedules.time]\ntrain = "gru_lm"\nmetric = "seconds"\nupdates = 4\n[[runs]]'
    (place / "tasks" / "tiny" / "rows.toml").write_text(timing.replace("[[runs]]", schedule, 1))


def test_what_is_no_training_has_one_seed(place, corpus, capsys):
    only_time_one(place)
    args = reproduce.parse(["run", "P", "--seeds", "2", "3", "--data", f"tiny={corpus}", "--device", "cpu"])
    found = reproduce.trainings(reproduction.manifest.load(), args, reproduce.settings_of(args))
    assert [(each.run.id, each.seed) for each in found] == [("one", 1), ("two", 2), ("two", 3)]
    assert capsys.readouterr().out == "one: no training; --seeds, --budget and --matmul-precision do not change it\n"


@pytest.mark.parametrize(
    "line",
    [
        "x | INFO | train_inner | epoch 001:     13 / 26 loss=3, num_updates=1.2.3, lr=1",
        "x | INFO | train_inner | epoch 001:     13 / 26 loss=3, num_updates=9e+999, lr=1",
        f"x | INFO | train_inner | epoch 001:     13 / 26 loss=3, num_updates={'9' * 400}, lr=1",
        f"{reproduction.logs.GOES_ON}{'9' * 400}",
        "x | INFO | valid | epoch 001 | valid on 'valid' subset | ppl 7.5",
        "x | INFO | valid | epoch 001 | valid on 'valid' subset | ppl 7.5 | num_updates -5",
        "x | INFO | valid | epoch 001 | valid on 'valid' subset | ppl 7.5 | num_updates nan",
        "x | INFO | valid | epoch 001 | valid on 'valid' subset | ppl 7.5 | num_updates inf",
        "x | INFO | valid | epoch 000 | valid on 'valid' subset | ppl 7.5 | num_updates 26",
    ],
)
def test_progress_by_a_damaged_log(line, place):
    training = training_of()
    training.folder.mkdir(parents=True)
    (training.folder / "train.log").write_text(line + "\n")
    assert reproduce.progress(training) == (0, "0 updates")
    nothing = "x | INFO | train_inner | epoch 001:     1 / 0 loss=3, num_updates=1, lr=1\n"
    (training.folder / "train.log").write_text(nothing + line + "\n" + VALIDATED.format(1, 26))
    assert reproduce.progress(training)[1].startswith("26 updates, ")
    assert reproduce.main(["status", "one"]) == 0


def test_progress_of_a_training(place, capsys):
    training = training_of()
    assert reproduce.progress(training) == (0, "0 updates")
    training.folder.mkdir(parents=True)
    log = training.folder / "train.log"
    log.write_text("x | INFO | train_inner | epoch 001:     13 / 26 loss=3, num_updates=13, lr=1\n")
    assert reproduce.progress(training) == (0, "13 updates, 25 % of the schedule")
    log.write_text(log.read_text() + VALIDATED.format(1, 26))
    assert reproduce.progress(training) == (1, "26 updates, 50 % of the schedule; validation: ppl 7.5")
    stopped = "Stopping training due to cumulative_training_time: 0.1 > stop_time_hours: 0.1 hour(s)\n"
    log.write_text(stopped + VALIDATED.format(1, 6))  # before the first line about its updates
    assert reproduce.progress(training) == (1, "6 updates, 0 % of the schedule; validation: ppl 7.5")
    log.write_text(stopped + "".join(VALIDATED.format(*each) for each in ((1, 6), (1, 26), (2, 39))))
    assert reproduce.progress(training)[1].startswith("39 updates, 75 % of the schedule")
    log.write_text(VALIDATED.format(1, 26))
    assert reproduce.main(["status", "one"]) == 0
    assert "begun, 26 updates, 50 % of the schedule; validation: ppl 7.5; run it again" in capsys.readouterr().out


def test_a_training_that_goes_on_is_told_beside_its_result(place, capsys):
    training = training_of()
    file = place / "tasks" / "result.json"
    written(training, complete=False, share=0.5)
    file = training.result
    with reproduction.process.alone(training.folder):
        (training.folder / "train.log").write_text(VALIDATED.format(1, 26))
        assert reproduce.state(training)[1].endswith(
            "is at work on it: 26 updates, 50 % of the schedule; validation: ppl 7.5"
        )
    assert file.is_file() and "at work" not in reproduce.state(training)[1]


def test_validations_are_told_as_they_come(place, corpus, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "LOOK", 0.02)
    done = {"test": {"": {"ratio": 1.0, "reference": ""}}}

    def carry_out(training, evaluations):
        training.folder.mkdir(parents=True)
        (training.folder / "train.log").write_text(VALIDATED.format(1, 26))
        for _ in range(500):
            if "26 updates" in "".join(said):
                return done
            time.sleep(0.02)
        raise Refused("not told")

    said = []
    monkeypatch.setattr(reproduce, "say", said.append)
    monkeypatch.setattr(reproduce, "carry_out", carry_out)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--schedule", "short"]) == 0
    assert said.count("one.short.seed1: 26 updates, 50 % of the schedule; validation: ppl 7.5") == 1


SERVICE = "nvidia-cuda-mps-control"


@pytest.mark.parametrize("gpus, files, asked, told", [
    (["0"], [SERVICE], ["one", "two", "--jobs", "2"], True),
    (["0"], [], ["one", "two", "--jobs", "2"], False),
    (["0"], [SERVICE, "control"], ["one", "two", "--jobs", "2"], False),
    (["0"], [SERVICE], ["one", "two", "--jobs", "1"], False),
    (["0"], [SERVICE], ["one", "two", "--seeds", "1", "--jobs", "2"], False),
    (["0", "1"], [SERVICE], ["one", "two", "--jobs", "2"], False),
    ([], [SERVICE], ["one", "two", "--jobs", "2"], False),
])  # fmt: skip
def test_several_on_one_gpu(place, corpus, monkeypatch, gpus, files, asked, told):
    """Who lets trainings (``two``, by two seeds) take turns on a GPU is told of the service by which they need not."""
    only_time_one(place)
    tools, said, settings = place / "tools", [], reproduce.settings_of
    tools.mkdir()
    for file in files:
        (tools / file).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tools))
    monkeypatch.setattr(reproduce, "settings_of", lambda args: dataclasses.replace(settings(args), cuda=bool(gpus)))
    monkeypatch.setattr(reproduce, "gpus", lambda: gpus)
    monkeypatch.setattr(reproduce, "say", said.append)
    monkeypatch.setattr(reproduce, "carry_out", lambda *_: {"test": {"": {"ratio": 1.0, "reference": ""}}})
    others = ["--data", f"tiny={corpus}", "--device", "cpu"]
    assert reproduce.main(["run", *asked, *others]) == 0
    assert told == any("multi-process service" in line for line in said)


def test_where_the_service_would_be(monkeypatch):
    """In CUDA's own place where the variable is empty."""
    monkeypatch.setattr(reproduce.shutil, "which", lambda name: f"/bin/{name}")
    for folder, there in (("", "/tmp/nvidia-mps/control"), ("/somewhere", "/somewhere/control")):
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", folder)
        for running in (True, False):
            monkeypatch.setattr(os.path, "exists", lambda path, yes=running, pipe=there: yes and path == pipe)
            assert reproduce.turns() != running


def test_signals():
    """The first that ends us raises KeyboardInterrupt, the others none; afterwards all is as before; nohup is nohup."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    try:
        for number in numbers:
            with reproduce.ending_all():
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), number)
                for another in numbers:
                    os.kill(os.getpid(), another)
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 3
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with reproduce.ending_all():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for number, usual in zip(numbers, before):
            signal.signal(number, usual)


def test_all_commands_are_ended_before_any_is_waited_for(monkeypatch):
    order = []

    class Command:
        def __init__(self, name):
            self.name = name

        def terminate(self):
            order.append(f"end {self.name}")

        def wait(self):
            order.append(f"wait {self.name}")

    monkeypatch.setattr(reproduction.process, "_going", {Command("a"), Command("b")})
    reproduction.process.stop_all()
    assert sorted(order[:2]) == ["end a", "end b"] and sorted(order[2:]) == ["wait a", "wait b"]
    assert not reproduction.process._going


def test_code_that_is_not_known():
    where = {"commit": None, "changed_files": 0, "processor": "x"}
    assert reproduction.calls.whose(where) == {"commit": None, "modified": None, "environment": {"processor": "x"}}
    assert reproduction.calls.whose({**where, "commit": "abc"})["modified"] is False and len(where) == 3
    call = {**reproduction.calls.UNKNOWN, "started": "0001-01-01T00:00:00"}
    assert not reproduction.calls.is_call(call)
    assert reproduction.calls.is_call({**call, "started": "2026-01-01T00:00:00"})


def test_folders_of_this_machine_are_not_kept(place, corpus, monkeypatch):
    folder = reproduce.relative(corpus)
    training = training_of(data={"tiny": folder})
    command = ["fairseq-train", folder, "--lr", "1", f"{folder}/train"]
    assert reproduction.run.named(training, command) == [
        "fairseq-train",
        "data-bin/tiny",
        "--lr",
        "1",
        "data-bin/tiny/train",
    ]
    line = "2026-01-01 10:00:00 | INFO | x | of {}/words\n"
    monkeypatch.setenv("HOME", "/home/someone")
    assert reproduction.logs.kept_lines(line.format("/home/someone") + line.format("/data")) == line.format("/data")
    monkeypatch.setenv("HOME", "/")
    assert reproduction.logs.kept_lines(line.format("/data")) == line.format("/data")
    own = "2026-01-01 10:00:00 | INFO | x | Saved checkpoint runs/one/checkpoint_last.pt (epoch 1)\n"
    others = own.replace("runs/one", "/there/runs/one")
    assert reproduction.logs.kept_lines(others + own) == own, "of a training that began on another machine"


def test_checkpoints_of_other_names_are_no_training(tmp_path):
    for name in ("best", "last", "3", "1_200", "foreign", "last.old", "1_2_3"):
        (tmp_path / f"checkpoint_{name}.pt").touch()
    names = [path.stem.removeprefix("checkpoint_") for path in reproduction.checkpoints.checkpoints(tmp_path)]
    assert names == ["1_200", "3", "best", "last"]


def test_a_file_that_cannot_be_written_as_a_whole_stays(tmp_path):
    file = tmp_path / "page"
    file.write_text("before")
    with pytest.raises(OSError, match="page") as caught, outputs.whole(file) as part:
        part.write_text("half")
        raise OSError(28, "No space left on device")
    assert caught.value.errno == 28 and file.read_text() == "before" and list(tmp_path.iterdir()) == [file]
    with outputs.whole(file) as part:
        part.write_text("after")
    assert file.read_text() == "after" and list(tmp_path.iterdir()) == [file]


def test_a_result_that_is_a_folder_is_no_surprise_after_training(place, corpus, monkeypatch, capsys):
    (place / "results" / "one.short.seed1.json").mkdir(parents=True)
    monkeypatch.setattr(reproduction.run, "call", lambda *_: pytest.fail("trained"))
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--schedule", "short"]) == 1
    assert "one.short.seed1.json is a folder" in capsys.readouterr().out


def test_words_that_nobody_reads(monkeypatch, capsys):
    outputs.say("heard")
    assert capsys.readouterr().out == "heard\n"

    def full(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("builtins.print", full)
    outputs.say("nothing")


def test_a_missing_package_is_one_line(place, monkeypatch, capsys):
    def settings_of(args):
        raise ModuleNotFoundError("No module named 'fairseq'")

    monkeypatch.setattr(reproduce, "settings_of", settings_of)
    assert reproduce.main(["run", "one"]) == 2
    assert capsys.readouterr().err == "reproduce: error: No module named 'fairseq'; pip install -e .\n"


@pytest.mark.parametrize("text", ["0s", "3", "1h30m", "١s", f"{10**12}s", "-1s"])
def test_times_that_are_none(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        reproduce.seconds(text)


def test_data_folders(place, corpus, capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["run", "one", "--data", "tiny=/a:b"])
    assert "a colon separates folders" in capsys.readouterr().err
    assert reproduce.main(["run", "one", "--data", "tiny=a", "--data", "tiny=b"]) == 2
    assert "two folders of one name" in capsys.readouterr().err


@pytest.mark.parametrize("what, instead, said", [
    ('id = "one"', 'id = "headlines"', "is no name of a run"),
    ("--lr 1 ", "--lr 1 --seed 9 ", "--seed of schedule 'sgd'"),
    ("--hidden-size 6", "--max-epoch=3", "--max-epoch=3 of run 'two'"),
    ('data = "tiny"', 'data = "tiny"\ntokens = 3.5', "tokens = 3.5 must be a whole number"),
    ('kind = "curves"', 'kind = "curves"\nsubset = "test"', "subset 'test' of figure 'f'"),
])  # fmt: skip
def test_rows_that_contradict_the_script(place, what, instead, said):
    file = place / "tasks" / "tiny" / "rows.toml"
    assert what in ROWS
    file.write_text(ROWS.replace(what, instead, 1))
    with pytest.raises(Refused, match=said):
        reproduction.manifest.load()


def test_the_commands_that_help_names_are_able(capsys, monkeypatch):
    """Those of the script's own docstring, and the README's, with the papers' manifest."""
    monkeypatch.setattr(reproduce.Training, "data", "data-bin/any")
    text = reproduce.__doc__ + (Path(reproduce.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^ +python scripts/reproduce.py (run .*)$", text)
    assert len(lines) > 4
    for line in lines:
        args = reproduce.parse([*shlex.split(line, comments=True), "--device", "cpu"])
        assert reproduce.trainings(reproduction.manifest.load(), args, reproduce.settings_of(args))
