"""Rows of a small manifest, trained and scored by the real commands."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import benchmark
import pytest
import reproduce
import reproduction.logs
import reproduction.manifest
import reproduction.process
import reproduction.run
import reproduction.training
import torch
from reproduction.manifest import Refused
from tiny_rows import ROOT, ROWS, result


def test_a_measurement_of_time_has_the_papers_sizes(place, corpus, monkeypatch, capsys):
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

    monkeypatch.setattr(reproduction.run, "call", call)
    run = ["run", "one", "--threads", "3", "--data", f"tiny={corpus}"]
    assert reproduce.main(run) != 0 and "benchmark.py failed: no" in capsys.readouterr().out
    ((command, args),) = asked
    assert command == "scripts/benchmark.py" and (args.batch, args.steps, args.updates) == (20, 30, 40)
    assert args.threads == 3 and args.data == reproduce.relative(corpus) and not args.peers and args.in_turns
    assert args.cells == ["gru_lm", "elman_lm"]


@pytest.mark.parametrize("cuda, left", [(False, "updates-cuda.json"), (True, "updates.json")])
def test_a_measurement_of_time_is_of_its_own_device(cuda, left, place, corpus, monkeypatch):
    """Not what an earlier call left, nor that of the other device."""
    folder = place / "runs" / "one"
    training = SimpleNamespace(
        folder=folder, schedule=SimpleNamespace(train=("gru_lm",), updates=40), data=str(corpus), name="one",
        run=SimpleNamespace(arch="elman_lm"), settings=SimpleNamespace(cuda=cuda, threads=1),
    )  # fmt: skip
    folder.mkdir(parents=True)
    for name in ("updates.json", "updates-cuda.json"):
        (folder / name).write_text('{"of": "an earlier call"}')
    asked = []
    monkeypatch.setattr(reproduction.run, "call", lambda *call: (0, f"said nothing {asked.append(call) or ''}"))
    with pytest.raises(Refused, match="benchmark.py failed: said nothing"):
        reproduction.run.timed(training, 0)
    assert ("--in-turns" in asked[0][1]) == (not cuda), "a GPU computes on while its process stands still"
    assert [file.name for file in folder.glob("*.json")] == [left]


MORE = (2.0, 0.5, 1.0)  # seconds beside the reference's 0.5, by rounds


def test_a_measurement_of_time_keeps_its_log(place, corpus, monkeypatch, capsys):
    rows = place / "tasks" / "tiny" / "rows.toml"
    timing = ROWS.replace('"elman_lm"\nschedule = "sgd"', '"elman_lm"\nschedule = "time"')
    schedule = '[schedules.time]\ntrain = "gru_lm --batch 2 --steps 3"\nmetric = "seconds"\nupdates = 8\n\n[[runs]]'
    rows.write_text(timing.replace("[[runs]]", schedule, 1))

    def call(command, flags, threads, log, *rest):
        arguments = benchmark.parse(flags)
        found = [{"group": f"update {cell}", "role": "auto",
                  "records": [{"round": number, "seconds": [0.5 + place * more]} for number, more in enumerate(MORE)]}
                 for place, cell in enumerate(arguments.cells)]  # fmt: skip
        file = ROOT / arguments.output / "updates.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"contenders": found}))
        return 0, f"a table\nwrote {ROOT}/x\n"

    monkeypatch.setattr(reproduction.run, "call", call)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--device", "cpu"]) == 0
    found = result(place, "one.paper.seed1")
    ratio = {"ratio": 3.0, "low": 2.0, "high": 5.0, "reference": "gru_lm"}
    assert found["seconds"]["wall"] >= 0 and found["test"][""] == ratio
    assert (place / "results" / "one.paper.seed1.log").read_text() == "a table\n"


@pytest.mark.parametrize("rounds", [True, False])
def test_products_in_training_may_be_rounded(rounds, place, corpus, monkeypatch):
    monkeypatch.setattr(reproduce, "rounding", lambda *_: rounds)
    run = ["run", "one", "--data", f"tiny={corpus}", "--schedule", "short", "--seeds", "1"]
    assert reproduce.main([*run, "--matmul-precision", "medium"]) == 0
    found = result(place, "one.short.seed1")
    assert found["environment"]["matmul_precision"] == "medium" and found["environment"]["rounds"] == rounds
    assert reproduction.results.precision(found) == ("medium" if rounds else None)
    assert "--matmul-precision=medium" in found["commands"]["train"]
    assert not any("precision" in word for command in found["commands"]["score"].values() for word in command)
    log = (place / "runs" / "one.short.seed1" / "train.log").read_text()
    assert "'matmul_precision': medium" in log
    assert reproduce.main(run) == 0  # which makes no updates, but scores: how it was trained is not changed by that
    again = result(place, "one.short.seed1")
    assert len(again["calls"]) == 2 and again["commands"] == found["commands"]
    assert reproduction.results.precision(again) == ("medium" if rounds else None)


def test_a_scoring_call_does_not_tell_how_products_were_in_training(place, corpus, monkeypatch):
    monkeypatch.setattr(reproduce, "rounding", lambda *_: True)
    run = ["run", "one", "--data", f"tiny={corpus}", "--schedule", "short", "--seeds", "1"]
    for more in ([], ["--matmul-precision", "medium"]):
        assert reproduce.main([*run, *more]) == 0
        found = result(place, "one.short.seed1")
        assert reproduction.results.precision(found) is None
        assert not any("precision" in word for word in found["commands"]["train"])


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_whether_products_round_is_asked_and_leaves_no_trace(precision):
    torch.set_float32_matmul_precision("highest")
    rounds = reproduce.rounding(precision, False)
    assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision(precision)
    a, b = torch.full((64, 256), 1.001), torch.full((256, 256), 1.001)
    assert rounds == bool(((a @ b) - 256 * 1.001**2).abs().max() > 0.1)
    settings = reproduce.settings_of(
        reproduce.parse(["run", "one", "--matmul-precision", precision, "--device", "cpu"])
    )
    assert settings.matmul_precision == precision and settings.rounds == rounds


@pytest.mark.parametrize("first, second, kept", [(None, "medium", "first"), ("medium", None, "second")])
def test_rounded_products_do_not_take_the_place_of_exact_ones(first, second, kept, place, corpus, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "rounding", lambda *_: True)
    run = ["run", "one", "--data", f"tiny={corpus}", "--schedule", "short", "--seeds", "1"]
    for precision in (first, second):
        shutil.rmtree(place / "runs", ignore_errors=True)
        file = place / "results" / "one.short.seed1.json"
        if file.exists():  # as by an older command: on a GPU, in another order
            found = json.loads(file.read_text())
            command = [word for word in found["commands"]["train"] if word != "--cpu"]
            place_of_seed = command.index("--seed")
            found["commands"]["train"] = [*command[:2], *command[place_of_seed:], *command[2:place_of_seed]]
            file.write_text(json.dumps(found))
        assert reproduce.main([*run, *(["--matmul-precision", precision] if precision else [])]) == 0
    assert reproduction.results.precision(result(place, "one.short.seed1")) is None
    said = capsys.readouterr().out
    assert ("not kept, as an earlier result is as long, without rounded products: " in said) == (kept == "first")
    rows = place / "tasks" / "tiny" / "rows.toml"  # by another schedule they do
    rows.write_text(rows.read_text().replace("--lr 1", "--lr 2").replace("--lr 0.5", "--lr 2"))
    shutil.rmtree(place / "runs")
    assert reproduce.main([*run, "--matmul-precision", "medium"]) == 0
    assert reproduction.results.precision(result(place, "one.short.seed1")) == "medium"


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


CONFIG = "2026-01-01 10:00:00 | INFO | fairseq_cli.train | {'optimization': {'max_update': 0, 'stop_time_hours': 0}}\n"

SAYS = "2026-01-01 10:00:00 | INFO | fairseq_cli.train | {}\n"


@pytest.mark.parametrize("says, stopped, complete, of_paper", [
    ("stopping training because current learning rate (-inf) is smaller than or equal to", "rule", True, 1.0),
    ("Stopping training due to num_updates: 52 >= max_update: 52", "schedule", False, 0.25),
    ("Stopping training due to cumulative_training_time: 0.1 > stop_time_hours: 0.1 hour(s)", "budget", False, 0.25),
    ("early stop since valid performance hasn't improved for last 1 runs", "schedule", False, 0.25),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["paper", "short"])
def test_why_training_stopped(place, says, stopped, complete, of_paper, kind):
    """Complete is what came to the end of its schedule, 8 epochs or 2, or that the rule ended."""
    settings = reproduce.Settings(kind, {}, None, 1, False)
    if kind == "short":
        complete, of_paper = stopped != "budget", 0.25
    training = reproduce.Training(reproduction.manifest.load().runs["one"], 1, settings)
    log = CONFIG + "".join(f"10:00 | INFO | train | epoch {n:03} | ppl 7 | num_updates {26 * n}\n" for n in (1, 2))
    found = reproduction.run.described(training, log + SAYS.format(says), CONFIG + SAYS.format(says))
    assert found["stopped"] == stopped and found["complete"] == complete and found["of_paper"] == of_paper
    assert found["epochs"] == 2 and found["updates"] == 52


@pytest.mark.parametrize("value", ["nan", "inf", "7.25"])
def test_scores_of_models_that_diverged(value):
    text = (
        f"x | INFO | fairseq_cli.eval_lm | Evaluated 1,234 tokens in 1s\nx | Loss (base 2): nan, Perplexity: {value}\n"
    )
    found = reproduction.logs.read_score("ppl", text)
    assert str(found["ppl"]) == value and found["tokens"] == 1234
    with pytest.raises(Refused, match="printed no ppl"):
        reproduction.logs.read_score("ppl", "nothing")


GENERATED = "x | INFO | fairseq_cli.generate | Generate test with beam=1: "


@pytest.mark.parametrize("metric, text, value, tokens", [
    ("ppl", "x | Evaluated 1,234 tokens in 1s\nx | Loss (base 2): 1.25, Perplexity: 2.38", 2.38, 1234),
    ("bpc", "x | Evaluated 1,234 tokens in 1s\nx | Loss (base 2): 1.25, Perplexity: 2.38", 1.25, 1234),
    ("upos_accuracy", f"{GENERATED}UPOS accuracy 50.00 % (7 of 1,400)", 50.0, 1400),
    ("label_accuracy", f"{GENERATED}label accuracy 62.50 %, UAS 70.00 %, LAS 50.00 % (1,234 words), repaired 3 of 40 "
                       "sentences (7.50 %)", 62.5, 1234),
])  # fmt: skip
def test_scores_as_the_commands_print_them(metric, text, value, tokens):
    found = reproduction.logs.read_score(metric, text)
    assert (found[metric], found["tokens"], found["line"]) == (value, tokens, text.splitlines()[-1].split(" | ")[-1])


def test_the_last_score_counts():
    text = "x | Loss (base 2): 9, Perplexity: 512\nx | Evaluated 7 tokens\nx | Loss (base 2): 1.25, Perplexity: 2.38"
    assert reproduction.logs.read_score("ppl", text)["ppl"] == 2.38


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


def test_a_command_that_was_killed(place, corpus, capsys, monkeypatch):
    monkeypatch.setattr(reproduction.run, "call", lambda *_: (-9, "train_inner | epoch 002: 153 / 222 loss=8.93"))
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
    said = "fairseq-train failed (killed by SIGKILL, as a system does that is out of memory); see "
    assert said in capsys.readouterr().out
    assert [reproduction.run.ended_by(code) for code in (0, 1, -15, -99)] == [
        "", "", "killed by SIGTERM", "killed by signal 99",
    ]  # fmt: skip


@pytest.mark.parametrize("free, why", [(0, "no space left on the device of "), (2**30, "with PathManager.open(")])
def test_a_command_that_fails_on_a_full_disk(place, corpus, capsys, monkeypatch, free, why):
    """fairseq's words on it are cut off, as they go to the same disk."""
    monkeypatch.setattr(reproduction.run, "call", lambda *_: (1, "with PathManager.open("))
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
    said = ": its test set has {:,} tokens, that of tasks/tiny 99"
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
    monkeypatch.setattr(reproduction.training, "tokens_of", lambda *_: None)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}", "--schedule", "short"]) == 1
    assert "is another corpus" in capsys.readouterr().out and not list((place / "results").iterdir())


def test_which_text_it_was(corpus, tmp_path):
    """As the binarising script wrote down, or of the binarised files."""
    found = reproduction.training.digests(corpus)
    assert list(found) == ["test.bin", "train.bin", "valid.bin"]
    assert found["test.bin"] == hashlib.sha256((corpus / "test.bin").read_bytes()).hexdigest()
    (tmp_path / "prepare_lm.json").write_text("[]")
    (tmp_path / "prepare_conllu.json").write_text('{"digests": {"train": "1f", "vectors": null}}')
    (tmp_path / "x.bin").mkdir()
    assert reproduction.training.prepared(tmp_path) == ({}, {}), "a list"
    (tmp_path / "prepare_lm.json").write_text("[" * 100_000)
    assert reproduction.training.digests(tmp_path) == {"train": "1f"}
    for count in ("true", "98.5", "NaN", '"98"', "[98]", "null"):
        (tmp_path / "prepare_lm.json").write_text(
            f'{{"text": {{"a": [1], "b": "2e"}}, "statistics": {{"test": {{"tokens": {count}}}}}}}'
        )
        assert reproduction.training.prepared(tmp_path) == ({"b": "2e"}, {})


def test_another_training_text_is_refused(place, corpus, capsys):
    """As a part of it would have other, fewer words."""
    rows = place / "tasks" / "tiny" / "rows.toml"
    count = sum(len(line.split()) + 1 for line in (corpus.parent / "train.txt").read_text().splitlines())
    text, run = rows.read_text(), ["run", "one", "--data", f"tiny={corpus}", "--schedule", "short", "--budget", "0.01s"]
    rows.write_text("train_tokens = 99\n" + text)
    assert reproduce.main(run) == 2
    assert f": its training set has {count} tokens, that of tasks/tiny 99" in capsys.readouterr().err
    rows.write_text(f"train_tokens = {count}\n" + text)
    assert reproduce.main(run) == 0


def test_a_result_of_another_text_does_not_take_the_place_of_the_first(place, corpus, tmp_path, capsys):
    run = ["run", "one", "--schedule", "short", "--seeds", "1"]
    assert reproduce.main([*run, "--data", f"tiny={corpus}"]) == 0
    before = (place / "results" / "one.short.seed1.json").read_bytes()
    shutil.rmtree(place / "runs")
    shutil.copytree(corpus, tmp_path / "other")
    shutil.copyfile(corpus / "valid.bin", tmp_path / "other" / "train.bin")
    shutil.copyfile(corpus / "valid.idx", tmp_path / "other" / "train.idx")
    assert reproduce.main([*run, "--data", f"tiny={tmp_path / 'other'}"]) == 1
    assert "other is another corpus than that of " in capsys.readouterr().out
    assert (place / "results" / "one.short.seed1.json").read_bytes() == before
    assert not list((place / "runs").glob("*/*.pt"))


def test_results_that_cannot_be_written_are_no_surprise_after_training(place, corpus, monkeypatch, capsys):
    (place / "results").write_text("no folder")
    monkeypatch.setattr(reproduction.run, "call", lambda *_: pytest.fail("trained"))
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
    assert "one.paper.seed1: failed: FileExistsError" in capsys.readouterr().out


def test_one_at_a_time(place, corpus, capsys):
    folder = place / "runs" / "one.paper.seed1"
    assert reproduction.process.at_work(folder) is None
    for known in (True, False):
        with reproduction.process.alone(folder):
            (folder / "train.log").write_text("")
            if not known:
                (folder / "lock").write_text("")
            who = f"process {os.getpid()}, or a command that it left," if known else "another process"
            assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 1
            assert f"{who} is at work in " in capsys.readouterr().out
            assert reproduce.main(["status"]) == 0 and f"0 updates; {who} is at work on it" in capsys.readouterr().out
        assert reproduction.process.at_work(folder) is None
    assert reproduce.main(["status"]) == 0 and "run it again to go on" in capsys.readouterr().out


def test_a_signal_ends_what_runs(place, corpus, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setitem(reproduction.process.COMMANDS, "train", "http.server")  # something that does not end by itself
    found, folder = [], tmp_path / "folder"
    with reproduction.process.alone(folder) as lock:
        thread = threading.Thread(
            target=lambda: found.append(reproduction.process.call("train", ["0"], 1, tmp_path / "log", lock))
        )
        thread.start()
        while not reproduction.process._going:
            time.sleep(0.01)
    with pytest.raises(Refused, match="a command that it left"), reproduction.process.alone(folder):
        pass  # as if we had been killed: the command holds the lock
    reproduction.process.stop_all()
    thread.join(20)
    assert found and found[0][0] != 0 and not reproduction.process._going
    with reproduction.process.alone(folder), pytest.raises(Refused, match="stopped"):
        reproduction.process.call("train", ["0"], 1, tmp_path / "log")  # by a thread that was not at it yet
    reproduction.process.start_anew()
    assert reproduction.process.call("train", ["--help"], 1, tmp_path / "log")[0] == 0


def test_sigterm_is_ctrl_c(place, corpus, monkeypatch, capsys):
    """It ends the command that runs, and those that would follow are not begun."""
    monkeypatch.setitem(reproduction.process.COMMANDS, "train", "http.server")  # something that does not end by itself
    calls = []

    def carry_out(training, evaluations):
        log = place / "log"
        threading.Thread(target=kill).start()
        calls.append(reproduction.process.call("train", ["0"], 1, log)[0])
        calls.append(reproduction.process.call("eval-lm", [], 1, log))

    def kill():
        while not reproduction.process._going:
            time.sleep(0.01)
        (process,) = reproduction.process._going
        os.kill(os.getpid(), signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()  # where it was not ended, the test would wait for ever

    monkeypatch.setattr(reproduce, "carry_out", carry_out)
    usual = signal.getsignal(signal.SIGTERM)
    assert reproduce.main(["run", "one", "--data", f"tiny={corpus}"]) == 130
    assert signal.getsignal(signal.SIGTERM) == usual
    assert calls == [-signal.SIGTERM]  # not killed as it did not end


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
        seen.append(reproduction.process.call(str(script), [], 1, tmp_path / f"{training.name}.log"))
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


def test_a_real_call_runs_in_the_root_and_is_logged(tmp_path):
    code, said = reproduction.process.call("eval-lm", ["nowhere", "--path", "none.pt", "--user-dir", "rntn_plugins"], 1,
                                    tmp_path / "a" / "log")  # fmt: skip
    assert code and said == (tmp_path / "a" / "log").read_text() and "nowhere" in said


def test_trainings_keep_memory_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    names = ("THP_MEM_ALLOC_ENABLE", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    script = tmp_path / "show.py"
    script.write_text(f"import os; print([os.environ.get(name) for name in {names}])")
    monkeypatch.setitem(reproduction.process.COMMANDS, "train", "show")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log"
    assert reproduction.process.call("train", [], 1, log) == (0, "['1', '7', '8589934592']\n")
    assert reproduction.process.call(str(script), [], 1, log) == (0, "[None, '7', None]\n")  # a measurement, say
    assert reproduction.process.allocator("train") == dict(zip(names, ("1", "7", "8589934592")))
    assert reproduction.process.allocator("eval-lm") == {"MALLOC_MMAP_MAX_": "7"}
