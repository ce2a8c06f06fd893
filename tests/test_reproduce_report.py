"""RESULTS.md and its figures from made-up results: what is shown, compared, left empty, refused and drawn."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import reproduce_figures as figures  # noqa: E402
import reproduce_manifest as manifests  # noqa: E402
import reproduce_report as report  # noqa: E402
import reproduce_results  # noqa: E402
import reproduce_tables as tables  # noqa: E402
from reproduce_claims import judge  # noqa: E402
from reproduce_manifest import Refused  # noqa: E402

MANIFEST = """
data = "ptb"
task = "rntn_language_modeling"
command = "eval-lm"

[schedules.t16]
train = "--optimizer adagrad --lr 0.02 --lr-ratio 1.0"
evaluate = "--sample-break-mode eos"
metric = "ppl"
epochs = 30
because = "30 is ours"
[schedules.t16.short]
drop = "--lr-ratio"
train = "--lr 0.05"
epochs = 3
because = "a tenth"
[schedules.t16.medium]
epochs = 9
because = "three tenths"

[schedules.time]
train = "reference"
metric = "seconds"
updates = 40

[schedules.unused]
train = "--lr 7"
metric = "bpc"
epochs = 2

[schedules.counts]
script = "scripts/kneser_ney.py"
train = "--order 5"
metric = "ppl"
epochs = 1
[schedules.counts.short]
epochs = 1

RUNS
[[runs]]
id = "counts"
arch = "kneser_ney_lm"
schedule = "counts"
[[runs]]
id = "time-lstm"
arch = "lstm_lm"
schedule = "time"
[[runs]]
id = "chars"
arch = "lstm_lm"
schedule = "unused"

[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNN"
column = "test PPL"
published = 97.78
run = "gru"
[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNTN"
column = "test PPL"
published = 87.4
run = "rntn"
[[rows]]
paper = "T16"
table = "Table II"
row = "LSTMRNN"
column = "test PPL"
published = 108.26
run = "lstm"
evaluate = "--beam 1"
note = "by|beam"
[[rows]]
paper = "H16"
table = "Table 6.2"
row = "GRU"
column = "PPL, order 2"
published = 123
run = "gru"
[[rows]]
paper = "H16"
table = "Table 6.2"
row = "GRU"
column = "PPL, order 3"
run = "other"
[[rows]]
paper = "H16"
table = "Table 6.3"
row = "LSTM"
column = "time over the RNN's"
published = 2.48
run = "time-lstm"

[[figures]]
id = "t16-figure-9"
paper = "T16"
figure = "Figure 9"
title = "T16 Figure 9: validation"
kind = "curves"
subset = "valid"
metric = "ppl"
runs = ["gru", "rntn", "lstm", "plain"]
[[figures]]
id = "t16-figure-10"
paper = "T16"
figure = "Figure 10"
title = "training"
kind = "curves"
subset = "train"
runs = ["gru"]
[[figures]]
id = "h16-figure-6.1"
paper = "H16"
figure = "Figure 6.1"
title = "by order"
kind = "sweep"
x = "order"
series = [
    { label = "f", points = [[1, "gru"], [100, "rntn"]] },
    { label = "g", points = [[1, "plain"], [10, "other"], [100, "lstm"]] },
]
[[figures]]
id = "never"
paper = "H16"
figure = "Figure 7"
title = "characters"
kind = "curves"
runs = ["chars"]

[[claims]]
paper = "T16"
where = "Table 1"
text = "GRURNTN < GRU"
better = "rntn"
worse = "gru"
[[claims]]
paper = "T16"
where = "Table 1"
text = "LSTM <= GRU"
better = "lstm"
worse = "gru"
[[claims]]
paper = "T16"
where = "§V"
text = "LSTM near GRU: within 3 %"
better = "lstm"
worse = "gru"
evaluate = "--beam 1"
within = 0.03
[[claims]]
paper = "T16"
where = "§V"
text = "no gain: LSTM <= GRU, within 3 %"
better = "lstm"
worse = "gru"
within = 0.03
[[claims]]
paper = "T16"
where = "§V"
text = "GRU < N-gram"
better = "gru"
worse = "counts"
"""
NAMES = ("gru", "rntn", "lstm", "plain", "other")
RUNS = "".join(f'[[runs]]\nid = "{name}"\narch = "{name}_lm"\nschedule = "t16"\n' for name in NAMES)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks") / "ptb_word_lm"
    folder.mkdir()
    (folder / "rows.toml").write_text(MANIFEST.replace("RUNS", RUNS), encoding="utf-8")
    return manifests.load(folder.parent)


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "results" / "rows"
    folder.mkdir(parents=True)
    return folder


def result(rows, run, value, kind="short", seed=1, epochs=3.0, **more):
    """A result's file, complete unless it says otherwise."""
    curve = [
        {"epoch": epoch, "updates": 100 * epoch, "train": {"ppl": 400 / epoch}, "valid": {"ppl": value + 90 / epoch}}
        for epoch in range(1, int(epochs) + 1)
    ]
    whole = {
        "schema": 1, "run": run, "recipe": "ptb_word_lm", "arch": f"{run}_lm", "schedule": kind, "seed": seed,
        "metric": "ppl", "complete": True, "stopped": "schedule", "epochs": epochs, "updates": int(100 * epochs),
        "of_schedule": 1.0, "of_paper": epochs / 30, "parameters": 12535058, "curve": curve, "valid": {"ppl": value},
        "test": {"": {"ppl": value}}, "commit": "abc1234", "modified": False,
        "environment": {"processor": "AMD EPYC", "cores": 2, "threads": 1, "gpu": None, "torch": "2.13.0"}, **more,
    }  # fmt: skip
    file = rows / f"{run}.{kind}.seed{seed}.json"
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


def partial(**more):
    return {"complete": False, "stopped": "budget", "of_schedule": 0.3, **more}


def line(page, *words):
    """The cells of the one line of a table that has all the words."""
    found = [each for each in page.splitlines() if each.startswith("| ") and all(word in each for word in words)]
    assert len(found) == 1, found
    return [cell.strip() for cell in found[0].strip("|").split(" | ")]


def page_of(manifest, rows):
    return report.page(manifest, report.Results(rows), rows.parents[1])


def verdict(manifest, rows, claim=0):
    return judge(manifest, report.Results(rows), manifest.claims[claim])


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_row(manifest, rows):
    result(rows, "gru", 110.474)
    assert line(page_of(manifest, rows), "GRURNN")[:-1] == [
        "GRURNN", "`gru_lm`", "12,535,058", "97.78", "110.47", "+12.69 (+13.0 %)", "10 %, short, 3 epochs", "1",
        "[short, 1](results/rows/gru.short.seed1.json)",
    ]  # fmt: skip


def test_nothing_measured(manifest, rows):
    page = page_of(manifest, rows)
    cells = ["LSTMRNN", "`lstm_lm`, scored with `--beam 1`", "", "108.26", "", "", "", "", "", "by\\|beam"]
    assert line(page, "LSTMRNN") == cells
    assert line(page, "PPL, order 3") == ["GRU", "PPL, order 3", "`other_lm`", *[""] * 7]
    assert "Nothing has been measured yet." in page and "![" not in page
    assert line(page, "| all |") == ["all", "6", "0", "0", "0", "0", "5"]
    assert "Figures not measured: Figure 9 (validation), Figure 10 (training)." in page


def test_the_better_budget_is_shown(manifest, rows):
    result(rows, "gru", 110.0)
    result(rows, "gru", 99.0, "paper", epochs=12.0, **partial())
    assert line(page_of(manifest, rows), "GRURNN")[4:7] == [
        "99.00",
        "+1.22 (+1.2 %)",
        "40 %, paper, 12 epochs, partial",
    ]
    result(rows, "gru", 105.0, "paper", epochs=2.0, **partial())
    assert line(page_of(manifest, rows), "GRURNN")[6] == "10 %, short, 3 epochs"


def test_full_schedule_ended_by_the_rule(manifest, rows):
    result(rows, "gru", 97.0, "paper", epochs=17.0, stopped="rule", of_paper=1.0)
    page = page_of(manifest, rows)
    assert line(page, "GRURNN")[6] == "100 %, paper, 17 epochs, by its rule"
    assert line(page, "| T16 |", "| 3 |")[:4] == ["T16", "3", "1", "1"]


def test_seeds(manifest, rows):
    result(rows, "gru", 110.0)
    result(rows, "gru", 112.0, seed=2)
    result(rows, "gru", 150.0, seed=3, epochs=1.0, **partial())
    cells = line(page_of(manifest, rows), "GRURNN")
    assert cells[4] == "111.00 (110.00–112.00)" and cells[7] == "1, 2" and cells[8].count("](") == 2


def test_seeds_of_which_the_rule_ended_one_sooner(manifest, rows):
    result(rows, "gru", 110.0)
    result(rows, "gru", 112.0, seed=2, epochs=2.0, stopped="rule")
    assert line(page_of(manifest, rows), "GRURNN")[6:8] == ["6.7 %, short, 2–3 epochs, by its rule", "1, 2"]


def test_only_its_own_scoring_fills_a_row(manifest, rows):
    result(rows, "lstm", 120.0)
    assert line(page_of(manifest, rows), "LSTMRNN")[4] == ""
    result(rows, "lstm", 120.0, test={"": {"ppl": 120.0}, "--beam 1": {"ppl": 101.0}})
    assert line(page_of(manifest, rows), "LSTMRNN")[4] == "101.00"


def test_decimals_follow_the_table(manifest, rows):
    result(rows, "gru", 125.26)
    assert line(page_of(manifest, rows), "order 2")[4:7] == ["123", "125.3", "+2.3 (+1.9 %)"]


def test_times_are_ratios(manifest, rows):
    scores = {"ratio": 2.5, "low": 2.4, "high": 2.6, "reference": "elman_lm"}
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "parameters": None}
    result(rows, "time-lstm", 0, "paper", **timed, test={"": scores})
    cells = ["", "2.48", "2.50 (2.40–2.60)", "+0.02 (+0.8 %)", "40 updates timed"]
    assert line(page_of(manifest, rows), "2.48")[2:7] == cells


def test_diverged(manifest, rows):
    result(rows, "gru", float("nan"))
    result(rows, "rntn", 110.0)
    assert line(page_of(manifest, rows), "GRURNN")[4:6] == ["diverged", ""]
    assert verdict(manifest, rows).holds is True
    first, second = drawn(manifest, rows, 0)[1].lines
    assert len(first.get_xdata()) == 0 and len(second.get_xdata()) == 3


def test_medium_schedules(manifest, rows):
    """A row shows what is trained further; a claim compares what both have; a figure draws what most have."""
    for run, value in (("gru", 110.0), ("rntn", 115.0)):
        result(rows, run, value)
    result(rows, "rntn", 95.0, "medium", epochs=9.0)
    page = page_of(manifest, rows)
    shown = "[medium, 1](results/rows/rntn.medium.seed1.json)"
    assert "30 %, medium, 9 epochs" in line(page, shown) and "three tenths" in page
    assert verdict(manifest, rows).holds is False
    assert drawn(manifest, rows, 0)[1].get_title().endswith("(short schedule, 3 of 30 epochs)")
    result(rows, "gru", 97.0, "medium", epochs=9.0)
    said = verdict(manifest, rows)
    assert said.holds is True and (said.better.kind, said.worse.kind) == ("medium", "medium")
    assert drawn(manifest, rows, 0)[1].get_title().endswith("(medium schedule, 9 of 30 epochs)")


def test_schedules_in_use(manifest, rows, monkeypatch):
    file = result(rows, "gru", 110.0, commands={"train": "fairseq-train x --arch gru_lm --lr 0.5".split()})
    page = page_of(manifest, rows)
    short = line(page, "a tenth")
    assert short[2:6] == [
        "short", "3 epochs", "`--optimizer adagrad --lr 0.05`", "`--lr 0.05`, without `--lr 0.02 --lr-ratio 1.0`"
    ]  # fmt: skip
    assert short[6:] == ["`--sample-break-mode eos`", "a tenth", "1"]
    assert line(page, "30 is ours")[2] == "paper" and "--lr 7" not in page
    assert f"[{file.stem}](results/rows/{file.name}) was trained without `--optimizer adagrad --lr 0.05`" in page
    monkeypatch.setattr(reproduce_results, "SAME_RESULTS", ("--lr",))
    assert "was trained without `--optimizer adagrad`" in page_of(manifest, rows)


def test_what_is_no_training_is_not_held_against_one(manifest, rows):
    """A model of counts has no --arch; neither it nor a measurement of time is a model trained by a full schedule."""
    command = "python scripts/kneser_ney.py x --order 5".split()
    result(rows, "counts", 141.0, "paper", epochs=1.0, of_paper=1.0, commands={"train": command})
    page = page_of(manifest, rows)
    assert "was trained without" not in page
    row = manifests.Row("T16", "Table II", "N-gram", "test PPL", 141, "counts")
    results = report.Results(rows)
    assert report.counted(manifest, results, [row, *manifest.rows]) == [7, 1, 0]
    result(rows, "gru", 97.0, "paper", epochs=30.0)
    assert report.counted(manifest, report.Results(rows), [row, *manifest.rows]) == [7, 3, 2]


def test_machines(manifest, rows):
    result(rows, "gru", 110.0)
    result(rows, "gru", 110.0, seed=2, modified=True)
    new = {"processor": "Xeon", "cores": 16, "threads": 16, "gpu": "H200", "versions": {"ve-fairseq": "0.12.3"}}
    result(rows, "rntn", 110.0, environment=new)
    page = page_of(manifest, rows)
    assert "- AMD EPYC, 2 cores, 1 thread; torch 2.13.0: 2 results\n" in page
    assert "- H200, Xeon, 16 cores, 16 threads; fairseq 0.12.3: 1 result\n" in page
    assert "not committed: 1" in page


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_claims_of_paired_seeds(manifest, rows):
    for seed, better, worse in ((1, 100.0, 110.0), (2, 104.0, 109.0)):
        result(rows, "rntn", better, seed=seed)
        result(rows, "gru", worse, seed=seed)
    result(rows, "gru", 50.0, seed=3)
    judged = verdict(manifest, rows)
    assert judged.holds is True and judged.said == "holds, 2 of 2 seeds"
    assert (judged.better.mean, judged.worse.mean) == (102.0, 109.5)
    result(rows, "rntn", 115.0, seed=2)
    assert verdict(manifest, rows).said == "holds in the mean, 1 of 2 seeds"
    result(rows, "rntn", 130.0, seed=1)
    judged = verdict(manifest, rows)
    assert judged.holds is False and judged.said == "does not hold, 0 of 2 seeds"


def test_claims_table(manifest, rows):
    result(rows, "rntn", 100.0)
    assert line(page_of(manifest, rows), "GRURNTN < GRU")[1:] == [
        "Table 1", "GRURNTN < GRU", "`rntn` 100.00 (10 %, short, 3 epochs)", "open: `gru` not measured"
    ]  # fmt: skip
    result(rows, "gru", 110.0)
    assert line(page_of(manifest, rows), "GRURNTN < GRU")[1:] == [
        "Table 1", "GRURNTN < GRU",
        "`rntn` 100.00 (10 %, short, 3 epochs); `gru` 110.00 (10 %, short, 3 epochs)", "holds, 1 of 1 seed",
    ]  # fmt: skip
    assert line(page_of(manifest, rows), "LSTM near GRU")[1:3] == [
        "§V",
        "LSTM near GRU: within 3 % (scored with `--beam 1`)",
    ]


def test_unlike_trainings_are_not_compared(manifest, rows):
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0, "paper", epochs=3.0, **partial())
    assert verdict(manifest, rows).said == "open: never trained alike"
    result(rows, "gru", 110.0, epochs=2.9, **partial())
    assert verdict(manifest, rows).holds is None
    result(rows, "gru", 110.0, epochs=2.98, **partial())
    assert verdict(manifest, rows).holds is True


def test_the_furthest_common_training_is_compared(manifest, rows):
    for run, short, paper in (("rntn", 120.0, 90.0), ("gru", 110.0, 97.0)):
        result(rows, run, short)
        result(rows, run, paper, "paper", epochs=30.0)
    result(rows, "gru", 80.0, "paper", seed=2, epochs=30.0)
    judged = verdict(manifest, rows)
    assert judged.holds is True and judged.worse.mean == 97.0 and judged.better.kind == "paper"


def test_whole_trainings_are_compared_where_the_rule_ended_one(manifest, rows):
    result(rows, "rntn", 90.0, "paper", epochs=14.0, stopped="rule", of_paper=1.0)
    result(rows, "gru", 97.0, "paper", epochs=30.0)
    assert verdict(manifest, rows).holds is True
    result(rows, "gru", 97.0, "paper", epochs=20.0, **partial())
    assert verdict(manifest, rows).holds is None


def test_different_seeds_if_there_are_no_others(manifest, rows):
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0, seed=2)
    assert verdict(manifest, rows).said == "holds, means of different seeds"


@pytest.mark.parametrize("value, holds", [(110.4, True), (111.0, False)])
def test_almost_equal(manifest, rows, value, holds):
    result(rows, "gru", 110.0)
    result(rows, "lstm", value)
    result(rows, "rntn", 110.0)
    assert verdict(manifest, rows, 1).holds is holds and verdict(manifest, rows, 0).holds is False


@pytest.mark.parametrize("value, holds", [(113.2, True), (106.8, True), (113.4, False), (106.6, False)])
def test_near(manifest, rows, value, holds):
    """Both ways, and by the scoring that the claim names."""
    result(rows, "gru", 110.0)
    result(rows, "lstm", 90.0)
    assert verdict(manifest, rows, 2).said == "open: `lstm` not scored with `--beam 1`"
    result(rows, "lstm", 90.0, test={"": {"ppl": 90.0}, "--beam 1": {"ppl": value}})
    judged = verdict(manifest, rows, 2)
    assert (judged.holds, judged.better.mean, judged.worse.mean) == (holds, value, 110.0)
    result(rows, "gru", float("nan"))
    assert verdict(manifest, rows, 2).holds is False  # a number is not near one that diverged


@pytest.mark.parametrize("value, holds", [(50.0, True), (113.2, True), (113.4, False)])
def test_better_or_near(manifest, rows, value, holds):
    result(rows, "gru", 110.0)
    result(rows, "lstm", value)
    assert verdict(manifest, rows, 3).holds is holds


NOT_YET = "open: not trained to the end, where it may be better"


def test_counts_are_compared_with_whole_trainings(manifest, rows):
    def judged():
        return verdict(manifest, rows, 4)

    result(rows, "gru", 150.0)
    result(rows, "counts", 141.0, "paper", epochs=1.0, of_paper=1.0, **partial())
    assert judged().said == "open: never trained alike"  # the counts of the whole corpus or none
    result(rows, "counts", 141.0, "paper", epochs=1.0, of_paper=1.0)
    assert judged().said == NOT_YET
    for epochs in (1.0, 9.0):
        result(rows, "gru", 150.0, "paper", epochs=epochs, **partial())
        assert judged().said == NOT_YET
    result(rows, "gru", 97.0, "paper", seed=2, epochs=30.0)
    assert judged().said == "holds, 1 of 1 seed"
    result(rows, "gru", 150.0, "paper", epochs=30.0)
    assert judged().said == "holds in the mean, 1 of 2 seeds" and judged().better.mean == 123.5
    result(rows, "gru", 100.0, "short", epochs=1.0)
    assert judged().better.mean == 123.5


def test_counts_are_beaten_by_a_training_before_its_end(manifest, rows):
    """By the mean of the seeds, and however one that was trained further did; but they beat none."""

    def judged(claim=manifest.claims[4]):
        return judge(manifest, report.Results(rows), claim)

    turned = {**manifest.claims[4], "better": "counts", "worse": "gru"}
    near = {**manifest.claims[4], "text": "GRU near N-gram", "within": 0.3}
    result(rows, "counts", 141.0, "short", epochs=1.0, of_paper=1.0)  # counting is the same by any schedule
    result(rows, "gru", 120.0)
    assert judged().said == "holds, 1 of 1 seed" and judged().better.kind == "short"
    assert judged(turned).said == "does not hold, 0 of 1 seed"
    assert judged(near).said == NOT_YET  # and may leave
    result(rows, "gru", 150.0, "paper", epochs=9.0, **partial())
    assert judged().said == "holds, 1 of 1 seed" and judged().better.kind == "short"
    result(rows, "gru", 150.0, seed=2)
    assert judged().said == "holds in the mean, 1 of 2 seeds"
    result(rows, "gru", 170.0, seed=2)
    assert judged().said == judged(turned).said == NOT_YET


@pytest.mark.parametrize("whole", [1, 2])
def test_the_order_of_seeds_does_not_decide(manifest, rows, whole):
    """Nor that 29.9 of 30 epochs are as much as 30, but not the end, nor what was trained less."""
    result(rows, "counts", 141.0, "paper", epochs=1.0, of_paper=1.0)
    result(rows, "gru", 150.0, "paper", seed=whole, epochs=30.0)
    result(rows, "gru", 130.0, "paper", seed=3 - whole, epochs=29.9, **partial())
    result(rows, "gru", 110.0, seed=3)
    assert verdict(manifest, rows, 4).said == "does not hold, 0 of 1 seed"


def test_what_more_training_cannot_change(manifest, rows):
    """A training that is ahead of the counts, or as near as the claim lets it be; not one that the counts are near."""

    def judged(text, better, worse, **more):
        claim = {**manifest.claims[4], "text": text, "better": better, "worse": worse, **more}
        return judge(manifest, report.Results(rows), claim).said

    result(rows, "counts", 141.0, "paper", epochs=1.0, of_paper=1.0)
    result(rows, "gru", 141.5)
    assert judged("GRU <= N-gram", "gru", "counts") == "holds, 1 of 1 seed"
    assert judged("GRU < N-gram", "gru", "counts") == NOT_YET
    for value, within in ((140.8, {}), (138.0, {"within": 0.03})):
        result(rows, "gru", value)
        assert judged("N-gram <= GRU", "counts", "gru", **within) == NOT_YET
    result(rows, "gru", 130.0)
    assert judged("N-gram <= GRU", "counts", "gru", within=0.03) == "does not hold, 0 of 1 seed"
    assert judged("N-gram near N-gram", "counts", "counts", within=0.03) == "holds, 1 of 1 seed"


def test_what_is_said_of_the_end_is_open_before(manifest, rows):
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0)
    claim = {**manifest.claims[0], "at_end": True}
    assert judge(manifest, report.Results(rows), claim).said == "open: said of whole trainings"
    result(rows, "rntn", 120.0, "paper", epochs=30.0)
    result(rows, "gru", 110.0, "paper", epochs=30.0)
    assert judge(manifest, report.Results(rows), claim).said == "does not hold, 0 of 1 seed"
    for run in ("rntn", "gru"):  # a seed that is not there yet says nothing
        result(rows, run, 100.0, "paper", seed=2, epochs=29.9, **partial())
    assert judge(manifest, report.Results(rows), claim).said == "does not hold, 0 of 1 seed"
    for run in ("rntn", "gru"):
        (rows / f"{run}.paper.seed1.json").unlink()
    assert judge(manifest, report.Results(rows), claim).said == "open: said of whole trainings"  # the short one holds


def test_claims_aside_are_counted_apart(manifest, rows):
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0)
    judged = [verdict(manifest, rows)]
    whole = line(report.summary(manifest, report.Results(rows), judged), "T16")
    judged.append(judge(manifest, report.Results(rows), {**manifest.claims[0], "aside": "in a table alone"}))
    shown = report.summary(manifest, report.Results(rows), judged)
    assert line(shown, "T16") == whole and whole[-3:] == ["1", "0", "0"]
    assert shown.endswith("\n\nClaims that are not counted here: 1 in a table alone (1 hold, 0 do not, 0 open).")
    judged.append(judge(manifest, report.Results(rows), {**manifest.claims[0], "aside": "a\n# <b>"}))
    assert report.summary(manifest, report.Results(rows), judged).endswith("; 1 a # &lt;b> (1 hold, 0 do not, 0 open).")


def after(rows, values, command=(), key="loss", **more):
    """What is said of the scored checkpoint of a training of an epoch for each value."""
    curve = [{"updates": 100 * at, "valid": {key: value}} for at, value in enumerate(values, 1)]
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


def test_tables_say_what_was_scored(manifest, rows):
    after(rows, [5.0, 4.0, 6.0])
    after(rows, [5.0, 4.0, 6.0], seed=2, epochs=3.0004)  # a little more than the other
    result(rows, "rntn", 90.0)
    page = page_of(manifest, rows)
    assert "| 10 %, short, 3 epochs, best after 2 | 1, 2 |" in page
    assert "`gru` 100.00 (100.00–100.00) (10 %, short, 3 epochs, best after 2)" in page


def test_times_measured_otherwise_than_now_are_told(manifest, rows):
    command = "scripts/benchmark.py updates --cells reference lstm_lm --rounds 3 --updates 40".split()
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "test": {"": {"ratio": 2.5}}}
    file = result(rows, "time-lstm", 0, "paper", **timed, commands={"train": command})
    run = manifest.runs["time-lstm"]
    assert reproduce_results.read(file).lacking(run) == []
    schedule = replace(run.schedule, train=("gru_lm", "--batch", "20", "--steps", "30"))
    lacking = reproduce_results.read(file).lacking(replace(run, schedule=schedule))
    assert lacking == ["gru_lm", "--batch 20", "--steps 30"]


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


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text[:40], "Unterminated string|Expecting"),
        (lambda text: "[]", "not an object"),
        (lambda text: text.replace('"schema": 1', '"schema": 9'), "schema 9 is unknown"),
        (lambda text: text.replace('"of_paper"', '"of_papers"'), "'of_paper' is missing"),
        (lambda text: text.replace('"test": {"": {"ppl"', '"test": {"": {"bpc"'), "'ppl' is missing"),
        (lambda text: text.replace('"seed": 1', '"seed": 2'), "should be named gru.short.seed2.json"),
        (lambda text: text.replace('"schedule": "short"', '"schedule": "long"'), "'long' is none of paper, medium"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "commands": {"train": null}'), "no list of words"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "commands": {"train": [5]}'), "no list of words"),
        (lambda text: text.replace('"ppl": 400.0', '"ppl": "x"'), "could not convert string to float"),
    ],
)
def test_malformed_results_are_refused(rows, change, message):
    file = result(rows, "gru", 110.0)
    file.write_text(change(file.read_text()))
    with pytest.raises(Refused, match=message) as refused:
        report.Results(rows)
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "run, message",
    [
        ("gur", "unknown run 'gur'"),
        ("chars", "metric 'ppl', but 'chars' has 'bpc'"),
        ("time-lstm", "the schedule of 'time-lstm' has no short form"),
    ],
)
def test_what_the_manifest_has_not_is_refused(manifest, rows, run, message):
    file = result(rows, run, 110.0, **({"metric": "seconds", "test": {}} if run == "time-lstm" else {}))
    with pytest.raises(Refused, match=message) as refused:
        report.write(manifest, report.Results(rows), rows.parents[1] / "RESULTS.md")
    assert str(file) in str(refused.value)


def measured_by_all(rows):
    for run, value in (("gru", 110.0), ("rntn", 100.0), ("plain", 90.0)):
        result(rows, run, value)
    result(rows, "lstm", 80.0, "paper", epochs=12.0, **partial())


def test_same_results_same_bytes(manifest, rows, tmp_path):
    measured_by_all(rows)
    sums = []
    for _ in range(2):
        files = report.write_all(manifest, report.Results(rows), tmp_path)
        sums.append([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
        assert max(file.stat().st_size for file in files) < 150_000
    assert sums[0] == sums[1]
    stems = ("t16-figure-9", "t16-figure-10", "h16-figure-6.1")
    assert [name for name, _ in sums[0]] == [
        *(f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")), "RESULTS.md"
    ]  # fmt: skip
    assert (tmp_path / "results/figures/t16-figure-9.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results/figures/t16-figure-9.svg").read_bytes().startswith(b"<?xml")
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "](results/figures/h16-figure-6.1.png)" in page and str(tmp_path) not in page


def test_without_matplotlib(manifest, rows, tmp_path, monkeypatch, capsys):
    measured_by_all(rows)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.write_all(manifest, report.Results(rows), tmp_path) == [tmp_path / "RESULTS.md"]
    assert "matplotlib is not installed" in capsys.readouterr().err


# ---- figures ---------------------------------------------------------------------------------------------------------


def drawn(manifest, rows, number):
    plan = figures.plan(manifest, report.Results(rows), manifest.figures[number])
    return plan, figures.picture(manifest, plan).axes[0]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_curves(manifest, rows):
    measured_by_all(rows)
    plan, axes = drawn(manifest, rows, 0)
    assert axes.get_title() == "T16 Figure 9: validation (short schedule, 3 of 30 epochs)"
    assert legend(axes) == ["GRURNN", "GRURNTN", "plain"] and len(axes.lines) == 3
    assert axes.lines[0].get_xydata().tolist() == [[1, 200], [2, 155], [3, 140]]
    assert (plan.other, plan.missing) == (["lstm"], []) and axes.get_yscale() == "linear"
    assert "Left out, as measured by another schedule or only partly: `lstm`." in page_of(manifest, rows)


def test_training_perplexity_is_logarithmic(manifest, rows):
    result(rows, "gru", 110.0, "paper", epochs=4.0, **partial())
    axes = drawn(manifest, rows, 1)[1]
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "training perplexity"
    assert axes.get_title() == "T16 Figure 10: training (the paper's schedule, 4 of 30 epochs, partial)"


def test_sweep(manifest, rows):
    measured_by_all(rows)
    result(rows, "gru", 112.0, seed=2)
    plan, axes = drawn(manifest, rows, 2)
    first, hollow, second = axes.lines
    assert first.get_xydata().tolist() == [[1, 111], [100, 100]] and second.get_xydata().tolist() == [[1, 90]]
    assert hollow.get_xydata().tolist() == [[1, 123]] and hollow.get_markerfacecolor() == "none"
    assert legend(axes) == ["f", "g", "published"] and axes.get_xscale() == "log"
    assert (plan.other, plan.missing) == (["lstm"], ["other"])


def test_partial_points_are_not_drawn_among_complete_ones(manifest, rows):
    measured_by_all(rows)
    result(rows, "lstm", 80.0, epochs=2.0, **partial())
    assert drawn(manifest, rows, 2)[0].other == ["lstm"]
    for run in ("gru", "rntn", "plain", "other"):
        result(rows, run, 80.0, epochs=2.0, **partial())
    assert drawn(manifest, rows, 2)[1].get_title().endswith("(short schedule, 2 of 30 epochs, partial)")


def test_legend_names(manifest):
    assert figures.names(manifest, {"paper": "H16", "runs": ["gru", "other"]}) == {
        "gru": "GRU, PPL, order 2", "other": "GRU, PPL, order 3"
    }  # fmt: skip
    assert figures.names(manifest, {"paper": "T16", "runs": ["gru", "chars"]}) == {"gru": "GRURNN", "chars": "chars"}
