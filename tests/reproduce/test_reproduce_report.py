"""RESULTS.md from made-up results: what is shown, left empty and refused."""

import hashlib
import sys
from dataclasses import replace

import pytest
import reproduction.manifest as manifests
import reproduction.results
from made_up_results import drawn, line, measured_by_all, page_of, partial, result, verdict
from reproduction import report, tables
from reproduction.manifest import Refused


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
    assert line(page, "| all |") == ["all", "6", *"00000000", "5"]
    assert "Figures not measured, or but one point of them: Figure 9 (validation), Figure 10 (training)." in page


def test_a_row_has_a_line_for_every_kind_of_schedule(manifest, rows):
    """What a claim compares stands in the tables too."""
    result(rows, "gru", 110.0)
    result(rows, "gru", 99.0, "paper", epochs=12.0, **partial())
    page = page_of(manifest, rows)
    assert line(page, "GRURNN", "paper,")[4:7] == ["99.00", "+1.22 (+1.2 %)", "40 %, paper, 12 epochs, partial"]
    assert line(page, "GRURNN", "short,")[4:7] == ["110.00", "+12.22 (+12.5 %)", "10 %, short, 3 epochs"]
    assert page.index("99.00 |") < page.index("110.00 |") and line(page, "| T16 |", "| 3 |")[2] == "1"


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
    assert line(page_of(manifest, rows), "order 2")[4:7] == ["123", "125.3", "+2.3 (+1.8 %)"]


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
    file = result(
        rows, "gru", 110.0, commands={"train": "fairseq-train x --arch gru_lm --max-epoch 3 --lr 0.5".split()}
    )
    page = page_of(manifest, rows)
    short = line(page, "a tenth")
    assert short[2:6] == [
        "short", "3 epochs", "`--optimizer adagrad --lr 0.05`", "`--lr 0.05`, without `--lr 0.02 --lr-ratio 1.0`"
    ]  # fmt: skip
    assert short[6:] == ["`--sample-break-mode eos`", "a tenth", "1"]
    assert line(page, "30 is ours")[2] == "paper" and "--lr 7" not in page
    assert f"[{file.stem}](results/rows/{file.name}) was trained without `--optimizer adagrad --lr 0.05`" in page
    assert f"[short, 1](results/rows/{file.name}) † |" in page, "and is marked in its table"
    monkeypatch.setattr(reproduction.results, "SAME_RESULTS", ("--lr",))
    assert "was trained without `--optimizer adagrad`" in page_of(manifest, rows)


def test_a_schedule_made_longer_since_is_told(manifest, rows):
    flags = "--arch gru_lm --optimizer adagrad --lr 0.05 --max-epoch"
    result(rows, "gru", 110.0, commands={"train": ["fairseq-train", "x", *flags.split(), "3"]})
    page = page_of(manifest, rows)
    assert "was trained without" not in page and "† |" not in page
    result(rows, "gru", 110.0, commands={"train": ["fairseq-train", "x", *flags.split(), "2"]})
    assert "was trained without `--max-epoch 3`" in page_of(manifest, rows)


def test_what_was_the_default_then_is_not_missed(manifest, rows):
    pooled = ("--pooling", "scores")
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=pooled, once_default=pooled)
    flags = "--arch gru_lm --optimizer adagrad --lr 0.05 --max-epoch 3".split()
    result(rows, "gru", 110.0, commands={"train": ["fairseq-train", "x", *flags]})
    page, told = (
        page_of(manifest, rows),
        "\n- `--pooling scores`: [gru.short.seed1](results/rows/gru.short.seed1.json)\n",
    )
    assert "was trained without" not in page and page.endswith(told)
    result(rows, "gru", 110.0, commands={"train": ["fairseq-train", "x", *flags, "--pooling", "probabilities"]})
    assert "was trained without `--pooling scores`" in page_of(manifest, rows)
    result(rows, "gru", 110.0, commands={"train": ["fairseq-train", "x", *flags, "--pooling", "scores"]})
    assert "leave out" not in page_of(manifest, rows)


def test_what_the_verdicts_rest_on(manifest, rows):
    """By full schedules and shortened ones; of one seed, and almost equal."""
    result(rows, "gru", 110.0)
    result(rows, "rntn", 110.4)
    result(rows, "lstm", 107.0, test={"": {"ppl": 107.0}, "--beam 1": {"ppl": 120.0}})
    page = page_of(manifest, rows)
    assert line(page, "| T16 |", "| 3 |")[4:] == ["0", "0", "2", "2", "0", "0", "1"]
    assert "Of the 4 claims decided 4 rest on one seed" in page and "in 1 the two numbers are equal within" in page
    for run in ("gru", "rntn"):
        result(rows, run, 111.0, seed=2)
        result(rows, run, 90.0 + len(run), "paper", epochs=30.0)
    page = page_of(manifest, rows)
    assert line(page, "| T16 |", "| 3 |")[4:] == ["0", "1", "2", "1", "0", "0", "1"]
    assert "Of the 4 claims decided 4 rest on one seed" in page and "in 0 the two" in page
    manifest.claims.append(
        {**manifest.claims[0], "text": "time: LSTM <= LSTM", "better": "time-lstm", "worse": "time-lstm"}
    )
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "parameters": None}
    result(rows, "time-lstm", 0, "paper", **timed, test={"": {"ratio": 2.5}}, curve=[])
    page = page_of(manifest, rows)
    assert "Of the 5 claims decided 4 rest on one seed" in page
    assert line(page, "| T16 |", "| 3 |")[4:] == ["0", "1", "2", "1", "1", "0", "1"]


def test_the_report_begins_with_the_headlines(manifest, rows):
    """With the papers' numbers as their tables print them, and what is not there left out."""
    page = page_of(manifest, rows)
    assert "main comparisons" not in page
    for claim in (manifest.claims[0], manifest.claims[2], manifest.claims[4]):
        claim["headline"] = True
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0)
    result(rows, "gru", 112.0, seed=2)
    page = page_of(manifest, rows)
    shown = page[page.index("## The main comparisons") : page.index("## Summary")]
    assert line(shown, "GRURNTN") == [
        "T16", "GRURNTN < GRU", "87.40; 97.78", "100.00; 110.00", "10 %, short, 3 epochs", "holds, 1 of 1 seed"
    ]  # fmt: skip
    cells = ["T16", "LSTM near GRU: within 3 %", "108.26; 97.78", "–; 111.00 (110.00–112.00)"]
    assert line(shown, "LSTM near")[:4] == cells and line(shown, "LSTM near")[5] == "open: `lstm` not measured"
    assert line(shown, "N-gram")[2] == "97.78; –"
    assert (
        "Of 3: 1 hold, 0 not, 2 open; by shortened or stopped ones 1 hold, 0 not. By more than one seed: 0 of 1."
        in shown
    )
    assert "LSTM <= GRU" not in shown
    result(rows, "rntn", 120.0, seed=2)
    result(rows, "counts", 90.0, "paper", epochs=1.0, of_paper=1.0)
    result(rows, "gru", 95.0, "paper", epochs=30.0)
    page = page_of(manifest, rows)
    said = "Of 3: 1 hold (1 of these in the mean of the seeds, not with each), 1 not, 1 open; "
    assert (
        f"{said}by full schedules 0 hold, 1 not; by shortened or stopped ones 1 hold, 0 not. "
        "By more than one seed: 1 of 2; in 1 the seeds of the two sides overlap." in page
    )
    result(rows, "rntn", 111.0, seed=2)
    assert "Of 3: 1 hold, 1 not, 1 open; by full" in page_of(manifest, rows)
    result(rows, "rntn", 130.0, seed=2)
    assert "Of 3: 0 hold, 2 not, 1 open; by full schedules 0 hold, 1 not; by shortened" in page_of(manifest, rows)


def test_trainings_of_several_calls_are_counted(manifest, rows):
    """Older files do not tell them: the training took longer than the last call."""
    times = {"started": "2026-01-01T10:00:00", "finished": "2026-01-01T11:00:00"}
    result(rows, "gru", 110.0, **times, seconds={"train": 3500.0, "wall": 3600.0}, calls=[])
    result(rows, "gru", 110.0, seed=2, **times, seconds={"train": 3500.0})
    assert "several calls" not in page_of(manifest, rows)
    calls = [{"updates": updates, "commit": commit} for updates, commit in ((0, "a"), (300, "b"))]
    result(rows, "rntn", 110.0, **times, seconds={"train": 3500.0, "wall": None}, calls=calls)
    assert "several calls" not in page_of(manifest, rows), "the second has scored only"
    calls[1]["updates"] = 7
    result(rows, "rntn", 110.0, **times, seconds={"train": 3500.0, "wall": None}, calls=calls)
    assert "- of these, trained in several calls of the script: 1\n" in page_of(manifest, rows)
    result(rows, "gru", 110.0, seed=2, **times, seconds={"train": 3700.0})
    calls[0]["commit"] = None
    result(rows, "rntn", 110.0, seed=2, **{**times, "started": None}, calls=calls)
    said = "trained in several calls of the script: 3; of 2 the file does not tell the code and machine of all\n"
    assert said in page_of(manifest, rows)


def test_a_longer_training_of_one_side_is_told(manifest, rows):
    result(rows, "gru", 110.0)
    result(rows, "rntn", 115.0)
    result(rows, "rntn", 95.0, "medium", epochs=9.0)
    cells = line(page_of(manifest, rows), "GRURNTN < GRU")
    assert "`rntn` 115.00 (10 %, short, 3 epochs); `gru` 110.00" in cells[3] and cells[4].startswith("does not hold")
    assert cells[3].endswith("by a longer training, not compared: `rntn` 95.00 (30 %, medium, 9 epochs)")
    result(rows, "gru", 97.0, "medium", epochs=9.0)
    assert "longer" not in line(page_of(manifest, rows), "GRURNTN < GRU")[3]


def test_tables_and_figures_come_in_the_papers_order():
    assert sorted(["Table 6.10", "Table 6.4"], key=tables.numbered) == ["Table 6.4", "Table 6.10"]
    assert sorted(["Table II", "Table I"], key=tables.numbered) == ["Table I", "Table II"]


def test_a_schedule_that_became_longer_makes_what_was_whole_partial(manifest, rows):
    result(rows, "gru", 97.0, "paper", epochs=20.0, of_paper=1.0)
    result(rows, "rntn", 95.0, "paper", epochs=17.0, of_paper=1.0, stopped="rule")
    result(rows, "rntn", 99.0, "short", epochs=3.0, of_paper=0.15)
    page = page_of(manifest, rows)
    assert "67 %, paper, 20 epochs, partial" in page and "100 %, paper, 17 epochs, by its rule" in page
    assert "10 %, short, 3 epochs |" in page, "of 30 epochs now"
    results = report.Results(rows)
    assert results.shown("gru").full
    results.hold_against(manifest)
    assert not results.shown("gru").full and results.shown("rntn").full


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
    new = {
        "processor": "Xeon",
        "instructions": "AVX512",
        "cores": 16,
        "threads": 16,
        "gpu": "H200",
        "versions": {"ve-fairseq": "0.12.3"},
    }
    result(rows, "rntn", 110.0, environment=new)
    page = page_of(manifest, rows)
    assert "- AMD EPYC, 2 cores, 1 thread; torch 2.13.0: 2 results\n" in page
    assert "- H200, Xeon, AVX512, 16 cores, 16 threads; fairseq 0.12.3: 1 result\n" in page
    assert "not committed: 1" in page


def test_products_that_were_rounded_are_told(manifest, rows):
    xeon = {"processor": "Xeon"}
    result(rows, "gru", 110.0, environment={**xeon, "matmul_precision": "highest"})
    page = page_of(manifest, rows)
    assert "--matmul-precision" not in page and "‡" not in page
    call = {"started": "2026-01-01T00:00:00", "updates": 0, "commit": None, "modified": None, "wall": 1.0}
    rounded = {**call, "environment": {**xeon, "matmul_precision": "medium"}}
    result(rows, "rntn", 110.0, environment=xeon, calls=[rounded, {**call, "updates": 100, "environment": xeon}])
    scored = {**rounded, "updates": 300}  # by a call that made no updates
    result(rows, "plain", 110.0, environment=xeon, calls=[{**call, "environment": xeon}, scored])
    unable = {**xeon, "matmul_precision": "medium", "rounds": False}
    result(rows, "lstm", 110.0, environment=unable)
    result(rows, "gru", 110.0, seed=2, environment={**xeon, "matmul_precision": "high"})
    page = page_of(manifest, rows)
    assert [each for each in page.splitlines() if each.startswith("- `--matmul-precision")] == [
        f"- `--matmul-precision {how}`: [{name}](results/rows/{name}.json)"
        for how, name in (("high", "gru.short.seed2"), ("medium", "rntn.short.seed1"))
    ]
    assert "- **‡**: trained, in part" in page
    assert "(results/rows/gru.short.seed2.json) ‡" in page and "(results/rows/gru.short.seed1.json) ‡" not in page
    assert "10 %, short, 3 epochs) ‡" in line(page, "GRURNTN < GRU")[3]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text[:40], "Unterminated string|Expecting"),
        (lambda text: "[]", "not an object"),
        (lambda text: text.replace('"schema": 1', '"schema": 9'), "schema 9 is unknown"),
        (lambda text: text.replace('"of_paper"', '"of_papers"'), "'of_paper' is missing"),
        (lambda text: text.replace('"test": {"": {"ppl"', '"test": {"": {"bpc"'), "'ppl' is missing"),
        (lambda text: text.replace('"seed": 1', '"seed": 2'), "should be named gru.short.seed2.json"),
        (
            lambda text: text.replace('"schedule": "short"', '"schedule": "brief"'),
            "'brief' is none of paper, long, medium",
        ),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "commands": {"train": null}'), "no list of words"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "commands": {"train": [5]}'), "no list of words"),
        (lambda text: text.replace('"ppl": 400.0', '"ppl": "x"'), "train: 'x' is no number"),
        (lambda text: text.replace('{"ppl": 110.0}}', '{"ppl": "110"}}'), "test: '110' is no number"),
        (lambda text: text.replace('"test": {"":', '"test": {"--beam 1":'), "'' is missing"),
        (lambda text: text.replace('"parameters": ', '"parameters": "many", "x": '), "'many' is no number"),
        (lambda text: text.replace('"cores": 2', '"cores": "2"'), "cores: '2' is no number"),
        (lambda text: text.replace('"of_schedule": 1.0, ', ""), "'of_schedule' is missing"),
        (lambda text: text.replace('"epoch": 2', '"epoch": Infinity'), "epoch of the curve: inf is no whole number"),
        (lambda text: text.replace('"epoch": 2', '"epoch": 0'), "epoch of the curve: 0 is no whole number"),
        (lambda text: text.replace('"epoch": 2, ', ""), "'epoch' is missing"),
        (lambda text: text.replace('"updates": 200', '"updates": 2.5'), "updates of the curve: 2.5 is no whole number"),
        (lambda text: text.replace('"train": {"ppl": 400.0}', '"train": [["ppl", 3.0]]'), "is no object"),
        (lambda text: text.replace('"seed": 1', '"seed": Infinity'), "infinity"),
        (lambda text: text.replace('"of_paper": ', '"of_paper": NaN, "x": '), "of_paper: nan is no number from 0"),
        (lambda text: text.replace('"updates": 300, ', '"updates": 1.5, '), "updates: 1.5 is no whole number"),
        (lambda text: text.replace('"epochs": ', '"epochs": -1, "x": '), "epochs: -1 is no number from 0"),
        (lambda text: text.replace('"complete": ', '"complete": "no", "x": '), "'no' is neither true nor false"),
        (lambda text: text.replace('{"ppl": 110.0}}', '{"ppl": 1' + 400 * "0" + "}}"), "too large"),
        (lambda text: text.replace('"processor": "AMD EPYC"', '"processor": 5'), "processor .*: 5 is no text"),
        (lambda text: text.replace('"cores": 2', '"matmul_precision": "low"'), "precision 'low' is none of highest"),
        (lambda text: text.replace('"updates": 300, ', f'"updates": {"9" * 400}, '), "too large"),
        (lambda text: text.replace('"updates": 200', f'"updates": {"9" * 400}'), "too large"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "calls": [5]'), "not subscriptable"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "calls": 5'), "calls: no list"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "calls": {}'), "calls: no list"),
        (lambda text: text.replace('"epochs": 3.0', '"epochs": 1e308'), "no training has more than 100,000"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "calls": [{}]'), "'updates' is missing"),
        (lambda text: text.replace('"seed": 1', '"seed": 1, "seconds": {"train": "x"}'), "training are no number"),
        (
            lambda text: text.replace(
                '"seed": 1', '"seed": 1, "seconds": {"train": 1}, "started": "now", "finished": "now"'
            ),
            "Invalid isoformat",
        ),
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
    file = result(rows, run, 110.0, **({"metric": "seconds", "test": {"": {"ratio": 2}}} if run == "time-lstm" else {}))
    with pytest.raises(Refused, match=message) as refused:
        report.write(manifest, report.Results(rows), rows.parents[1] / "RESULTS.md")
    assert str(file) in str(refused.value)


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


def test_almost_whole_is_not_whole(manifest, rows):
    result(rows, "gru", 97.0, "paper", epochs=29.99, **partial(of_schedule=0.9997))
    page = page_of(manifest, rows)
    assert line(page, "| T16 |", "| 3 |")[2:4] == ["1", "0"]
    result(rows, "gru", 97.0, "paper", epochs=29.9, **partial())
    assert line(page_of(manifest, rows), "GRURNN")[6] == "99 %, paper, 29.9 epochs, partial, best after 29"


def test_difference_is_of_the_number_shown(manifest, rows):
    result(rows, "gru", 97.785)
    assert line(page_of(manifest, rows), "GRURNN")[4:6] == ["97.78", "+0.00 (+0.0 %)"]


def test_flags_that_one_seed_had_are_shown(manifest, rows):
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=("--bias", "1"))
    result(rows, "gru", 110.0, commands={"train": ["fairseq-train", "--bias", "1"]})
    result(rows, "gru", 110.0, seed=2, commands={"train": ["fairseq-train", "--fast"]})
    assert line(page_of(manifest, rows), "GRURNN")[1] == "`gru_lm --bias 1`"


def test_what_is_open_is_not_equal(manifest, rows):
    result(rows, "rntn", 110.0)
    result(rows, "gru", 110.1, "medium", epochs=9.0)
    assert line(page_of(manifest, rows), "GRURNTN < GRU")[4] == "open: never trained alike"


def test_counts_of_the_report(manifest, rows):
    manifest.claims[0]["headline"] = True
    result(rows, "gru", 110.0)
    result(rows, "rntn", 110.4)
    assert "Of 1: 0 hold, 1 not, 0 open; by shortened" in page_of(manifest, rows)
    manifest.claims[0]["aside"] = "in a table alone"
    assert "claims decided" not in page_of(manifest, rows)
    times = {"text": "time: LSTM <= LSTM", "better": "time-lstm", "worse": "time-lstm", "headline": True}
    manifest.claims.append({**manifest.claims[1], **times})
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "parameters": None}
    result(rows, "time-lstm", 0, "paper", **timed, test={"": {"ratio": 2.5}}, curve=[])
    page = page_of(manifest, rows)
    assert "of times 1 hold, 0 not. By more than one seed: 0 of 1. All" in page
    assert "Of the 1 claims decided 0 rest on one seed" in page


def test_a_papers_own_number(manifest, rows):
    manifest.claims.append({**manifest.claims[0], "paper": "H16", "better": "gru", "worse": "rntn", "headline": True})
    assert line(page_of(manifest, rows), "| H16 |", "GRURNTN < GRU", "123")[2] == "123; –"


def test_a_schedule_that_became_shorter_does_not_make_a_stopped_training_whole(manifest, rows):
    result(rows, "gru", 97.0, "paper", epochs=30.0, **partial())  # of 60 then
    results = report.Results(rows)
    results.hold_against(manifest)
    assert not results.shown("gru").complete and report.counted(manifest, results, manifest.rows)[2] == 0


def test_marks_in_all_places_of_claims(manifest, rows):
    manifest.claims[0]["headline"] = True
    without = {"commands": {"train": ["fairseq-train", "--fast"]}}
    for run, value in (("rntn", 100.0), ("gru", 110.0)):
        result(rows, run, value, "medium", epochs=9.0, **without)
        for seed in (1, 2):
            result(rows, run, value, seed=seed, **without)
    result(rows, "rntn", 90.0, "paper", epochs=30.0, **without)
    page = page_of(manifest, rows)
    assert line(page, "GRURNTN < GRU", "Table 1")[3].count(" †") == 5  # two, the longer one and two shorter ones
    assert line(page, "GRURNTN < GRU", "87.40")[4] == "30 %, medium, 9 epochs †"


def test_of_a_result_without_its_command_nothing_is_told(manifest, rows):
    pooled = ("--pooling", "scores")
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=pooled, once_default=pooled)
    result(rows, "gru", 110.0)
    assert "leave out" not in page_of(manifest, rows)
