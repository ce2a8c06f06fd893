"""The papers' claims judged by made-up results."""

from dataclasses import replace

import pytest
import reproduction.results
from made_up_results import line, page_of, partial, result, verdict
from reproduction import report
from reproduction.claims import judge
from reproduction.results import ROWS


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


def test_a_setting_of_both_that_one_was_trained_without(manifest, rows):
    """It is marked where one side has it, and decides nothing where both do."""
    without = {"commands": {"train": ["fairseq-train", "--fast"]}}
    for run, flag in (("rntn", "--bias"), ("gru", "--other")):
        manifest.runs[run] = replace(manifest.runs[run], flags=(flag, "1"))
        result(rows, run, {"rntn": 100.0, "gru": 110.0}[run], **without)
    said = line(page_of(manifest, rows), "GRURNTN < GRU")
    assert said[4] == "holds, 1 of 1 seed" and said[3].count(" †") == 2
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=("--bias", "1"))
    assert verdict(manifest, rows).holds is True
    result(rows, "rntn", 100.0, commands={"train": ["fairseq-train", "--bias", "1"]})
    assert verdict(manifest, rows).said == "open: never trained alike"


def test_the_furthest_common_training_is_compared(manifest, rows):
    for run, short, paper in (("rntn", 120.0, 90.0), ("gru", 110.0, 97.0)):
        result(rows, run, short)
        result(rows, run, paper, "paper", epochs=30.0)
    result(rows, "gru", 80.0, "paper", seed=2, epochs=30.0)
    judged = verdict(manifest, rows)
    assert judged.holds is True and judged.worse.mean == 97.0 and judged.better.kind == "paper"


def test_a_shorter_training_of_more_seeds_is_told(manifest, rows):
    """Beside the longer one, whose verdict stands."""
    manifest.claims[0]["headline"] = True
    for run, first, second, medium in (("rntn", 120.0, 116.0, 90.0), ("gru", 110.0, 118.0, 97.0)):
        result(rows, run, first)
        result(rows, run, medium, "medium", epochs=9.0)
        assert verdict(manifest, rows).shorter is None
        result(rows, run, second, seed=2)
    judged = verdict(manifest, rows)
    assert (judged.said, judged.seeds, judged.better.mean) == ("holds, 1 of 1 seed", 1, 90.0)
    assert judged.shorter.said == "does not hold in the mean, 1 of 2 seeds" and judged.shorter.better.mean == 118.0
    said = "holds, 1 of 1 seed; trained for 3 epochs: does not hold in the mean, 1 of 2 seeds"
    page = page_of(manifest, rows)
    assert line(page, "GRURNTN < GRU", "87.40")[3:] == ["90.00; 97.00", "30 %, medium, 9 epochs", said]
    assert line(page, "GRURNTN < GRU", "Table 1")[3:] == [
        "`rntn` 90.00 (30 %, medium, 9 epochs); `gru` 97.00 (30 %, medium, 9 epochs); by a shorter training of "
        "more seeds (10 %, short, 3 epochs): `rntn` 118.00 (116.00–120.00), `gru` 114.00 (110.00–118.00)", said,
    ]  # fmt: skip
    assert (
        "Of 1: 1 hold, 0 not, 0 open; by shortened or stopped ones 1 hold, 0 not. "
        "By more than one seed: 0 of 1, and 1 more" in page
    )
    assert "1 more after fewer epochs (1 of these to the contrary). All" in page
    for run, value in (("rntn", 91.0), ("gru", 98.0)):
        result(rows, run, value, "medium", seed=2, epochs=9.0)
    page = page_of(manifest, rows)
    assert verdict(manifest, rows).shorter is None and "shorter training of" not in page
    assert "By more than one seed: 1 of 1. All" in page


def test_a_shorter_training_is_told_but_decides_nothing_of_whole_ones(manifest, rows):
    for run in ("rntn", "gru"):
        for seed in (1, 2):
            result(rows, run, 100.0, seed=seed)
    manifest.claims[0]["at_end"] = True
    assert verdict(manifest, rows).holds is None and verdict(manifest, rows).shorter is None
    for run, value in (("rntn", 90.0), ("gru", 100.0)):
        result(rows, run, value, "paper", epochs=30.0)
    found = verdict(manifest, rows)
    assert found.holds and found.seeds == 1
    assert found.shorter.said == "does not hold, 0 of 2 seeds"


@pytest.mark.parametrize(
    "one, other, mingled",
    [
        ((100.0, 106.0), (105.0, 110.0), True),
        ((100.0, 105.0), (105.0, 110.0), True),
        ((105.0, 110.0), (100.0, 105.0), True),
        ((100.0, 104.0), (105.0, 110.0), False),
        ((105.0, 110.0), (100.0, 104.0), False),
        ((100.0, 110.0), (103.0, 104.0), True),
    ],
)
def test_seeds_of_the_two_sides_overlap(manifest, rows, one, other, mingled):
    manifest.claims[0]["headline"] = True
    for seed, (first, second) in enumerate(zip(one, other), 1):
        result(rows, "rntn", first, seed=seed)
        result(rows, "gru", second, seed=seed)
    assert verdict(manifest, rows).mingled is mingled
    said = "; in 1 the seeds of the two sides overlap" * mingled
    assert f"By more than one seed: 1 of 1{said}. All" in page_of(manifest, rows)


def test_rounds_of_times_are_no_seeds(manifest, rows):
    """They overlap too, which is another matter."""
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "curve": []}
    manifest.runs["time-gru"] = replace(manifest.runs["time-lstm"], id="time-gru", arch="gru_lm")
    for run, ratio in (("time-gru", 1.05), ("time-lstm", 1.04)):
        result(rows, run, 0, "paper", **timed, test={"": {"ratio": ratio, "low": 1.0, "high": 1.06}})
    sides = {"better": "time-gru", "worse": "time-lstm"}
    manifest.claims[0].update({**sides, "text": "time: GRU as LSTM, within 10 %", "within": 0.1, "headline": True})
    assert verdict(manifest, rows).holds
    assert "By more than one seed: 0 of 0. All" in page_of(manifest, rows)


def test_whole_trainings_are_compared_where_the_rule_ended_one(manifest, rows):
    result(rows, "rntn", 90.0, "paper", epochs=14.0, stopped="rule", of_paper=1.0)
    result(rows, "gru", 97.0, "paper", epochs=30.0)
    assert verdict(manifest, rows).said == "holds, 1 of 1 seed"
    result(rows, "gru", 97.0, "paper", epochs=20.0, **partial())
    assert verdict(manifest, rows).said == "holds, 1 of 1 seed, in validation up to epoch 20"


def falling(first, last, epochs):
    """A training stopped after so many epochs, its validations from the first to the last in equal steps."""
    values = [first + (last - first) * epoch / max(epochs - 1, 1) for epoch in range(epochs)]
    return {**course(*values, epochs=epochs + 0.5, updates=100 * epochs + 50), "complete": False, "stopped": "budget"}


def test_validation_of_trainings_that_were_stopped_at_unlike_lengths(manifest, rows):
    """The best up to the last epoch that both have, whichever is ahead and whatever the tests say."""
    for better, worse, said, means in (
        ((100.0, 300.0, 3), (150.0, 310.0, 5), "holds, 1 of 1 seed, in validation up to epoch 3", (100.0, 150.0)),
        ((300.0, 100.0, 3), (310.0, 90.0, 5), "holds, 1 of 1 seed, in validation up to epoch 3", (100.0, 200.0)),
        (
            (300.0, 100.0, 5),
            (310.0, 190.0, 3),
            "does not hold, 0 of 1 seed, in validation up to epoch 3",
            (200.0, 190.0),
        ),
        (
            (300.0, 100.0, 5),
            (150.0, 120.0, 1),
            "does not hold, 0 of 1 seed, in validation up to epoch 1",
            (300.0, 150.0),
        ),
        ((300.0, float("nan"), 5), (310.0, 190.0, 3), "does not hold, 0 of 1 seed, in validation up to epoch 3", None),
    ):
        for run, (first, last, epochs), value in (("rntn", better, 500.0), ("gru", worse, 1.0)):
            result(rows, run, value, "paper", **falling(first, last, epochs))
        judged = verdict(manifest, rows)
        assert judged.said == said and not judged.whole and "epochs" not in judged.claim
        assert means is None or (judged.better.mean, judged.worse.mean) == means
    claim = manifest.claims[0]
    assert judge(manifest, report.Results(rows), {**claim, "at_end": True}).holds is None
    assert judge(manifest, report.Results(rows), {**claim, "evaluate": ("--beam", "1")}).holds is None
    near = judge(manifest, report.Results(rows), {**claim, "within": 0.9, "text": "GRURNTN near GRU"})
    assert near.holds is False and "in validation up to epoch 3" in near.said
    (rows / "gru.paper.seed1.json").unlink()
    result(rows, "gru", 1.0, "paper", **{**falling(310.0, 190.0, 3), "epochs": 0.5})  # no epoch to its end
    assert verdict(manifest, rows).said == "open: never trained alike"


def test_validation_where_a_rule_ended_one_training_and_the_other_was_stopped(manifest, rows):
    """What the rule ended gains no more."""
    result(rows, "gru", 97.0, "paper", **{**course(300.0, 107.0, 110.0), "stopped": "rule", "complete": True})
    for last, holds in ((101.0, True), (108.0, False)):
        result(rows, "rntn", 96.0, "paper", **falling(300.0, last, 6))
        judged = verdict(manifest, rows)
        assert judged.holds is holds and judged.said.endswith("in validation up to epoch 6")
        assert (judged.better.mean, judged.worse.mean) == (last, 107.0)


def test_the_best_validation_begins_anew_after_a_nan(manifest, rows):
    """As fairseq's choice of a checkpoint does."""
    stopped = {"complete": False, "stopped": "budget", "epochs": 4.5, "updates": 450}
    result(rows, "rntn", 1.0, "paper", **{**course(100.0, float("nan"), 150.0, 160.0), **stopped})
    result(rows, "gru", 1.0, "paper", **falling(120.0, 112.0, 5))
    judged = verdict(manifest, rows)
    assert judged.holds is False and judged.better.mean == 150.0


def test_more_seeds_that_validation_decides_are_not_told_beside_test_scores(manifest, rows):
    for run, value in (("rntn", 90.0), ("gru", 91.0)):
        result(rows, run, value, "paper", seed=1, epochs=30.0)
        for seed in (2, 3):
            epochs = {"rntn": 20, "gru": 25}[run]
            result(rows, run, value, "paper", seed=seed, **falling(300.0, value + 90, epochs))
    assert verdict(manifest, rows).said == "holds, 1 of 1 seed" and verdict(manifest, rows).shorter is None


def test_no_seed_is_left_out_for_what_it_says(manifest, rows):
    for seed, better, worse in ((1, 100.0, 110.0), (2, 120.0, 110.0), (3, 121.0, 110.0)):
        result(rows, "rntn", 96.0, "paper", seed=seed, **falling(300.0, better, 3))
        result(rows, "gru", 97.0, "paper", seed=seed, **falling(300.0, worse, 5))
    assert verdict(manifest, rows).said == "holds, 3 of 3 seeds, in validation up to epoch 3"
    result(rows, "gru", 97.0, "paper", seed=1, **falling(112.0, 108.0, 5))
    for seed in (2, 3):
        result(rows, "gru", 97.0, "paper", seed=seed, **falling(100.0, 90.0, 5))
    judged = verdict(manifest, rows)
    assert judged.said == "does not hold in the mean, 1 of 3 seeds, in validation up to epoch 3" and judged.mixed


def test_validation_at_unlike_lengths_by_shortened_or_other_schedules_is_not_compared(manifest, rows):
    for kind in ("medium", "short"):
        for run, epochs in (("rntn", 3), ("gru", 5)):
            result(rows, run, 100.0, kind, **falling(300.0, 100.0, epochs))
        assert verdict(manifest, rows).said == "open: never trained alike"
    for run, epochs in (("rntn", 3), ("gru", 5)):
        result(rows, run, 100.0, "paper", **falling(300.0, 100.0, epochs))
    assert verdict(manifest, rows).holds is True
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=("--bias", "1"))  # of a model
    assert verdict(manifest, rows).holds is True
    name = next(part for part in manifest.runs["gru"].schedule.train if part.startswith("--"))
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=(name, "9"))  # its own
    assert verdict(manifest, rows).holds is True
    full = manifest.runs["gru"].schedule
    other = replace(full, train=(*full.train, name, "9"))
    manifest.runs["gru"] = replace(manifest.runs["gru"], flags=(), schedule=other)
    assert verdict(manifest, rows).said == "open: never trained alike"


def test_what_validation_decided_in_the_tables(manifest, rows):
    """More seeds of a shorter training are told beside it; in the page's first table too."""
    manifest.claims[0]["headline"] = True
    for run, value, epochs in (("rntn", 90.0, 3), ("gru", 97.0, 5)):
        result(rows, run, value, "paper", **falling(300.0, value, epochs))
        for seed in (1, 2):
            result(rows, run, value + 20, seed=seed)
    page = page_of(manifest, rows)
    said = "holds, 1 of 1 seed, in validation up to epoch 3; trained for 3 epochs: holds, 2 of 2 seeds"
    shown = line(page, "GRURNTN < GRU", "Table 1")
    assert shown[4] == said
    assert shown[3] == (
        "`rntn` 90.00 in validation up to epoch 3 (12 %, paper, 3.5 epochs, partial); "
        "`gru` 198.50 in validation up to epoch 3 (18 %, paper, 5.5 epochs, partial); "
        "by a shorter training of more seeds (10 %, short, 3 epochs): `rntn` 110.00 (110.00–110.00), "
        "`gru` 117.00 (117.00–117.00)"
    )
    assert line(page, "GRURNTN < GRU", "87.40")[5] == said
    assert (
        "Of 1: 1 hold, 0 not, 0 open; by shortened or stopped ones 1 hold, 0 not. "
        "By more than one seed: 0 of 1, and 1 more" in page
    )
    result(rows, "rntn", 200.0, seed=1)
    assert "1 more after fewer epochs (1 of these to the contrary)" in page_of(manifest, rows)


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
    assert (judged().said, judged().seeds) == ("holds in the mean, 1 of 2 seeds", 2)  # counted without chance, once
    result(rows, "gru", 170.0, seed=2)
    assert judged().said == judged(turned).said == NOT_YET
    result(rows, "gru", 130.0, seed=2)
    result(rows, "gru", 125.0, "paper", epochs=30.0)
    said = "holds, 1 of 1 seed; trained for 3 epochs: holds, 2 of 2 seeds"  # counting had no epochs
    assert line(page_of(manifest, rows), manifest.claims[4]["text"])[-1] == said


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


def course(*values, **more):
    """A curve of validations, one an epoch and one before the first's end."""
    curve = [{"epoch": 1, "updates": 50, "valid": {"ppl": 40.0}}]
    for epoch, value in enumerate(values, start=1):
        curve.append({"epoch": epoch, "updates": 100 * epoch, "valid": {"ppl": value}, "train": {"ppl": 9.0}})
    return {"curve": curve, "epochs": float(len(values)), **more}


def test_claims_about_epochs(rows, judged):
    """The test's numbers have no part in them, nor have validations before an epoch's end."""
    result(rows, "rntn", 500.0, **course(300.0, 200.0, 150.0, 140.0))
    assert judged().said == "open: `gru` not measured"
    result(rows, "gru", 110.0, **course(310.0, 210.0, 160.0, 140.2))
    assert [judged(which).said for which in ("first", "all")] == ["holds, 1 of 1 seed"] * 2
    assert judged().close and not judged("first").close
    assert (judged().better.mean, judged("first").worse.mean) == (140.0, 310.0)
    assert not judged().whole
    result(rows, "gru", 110.0, **course(310.0, 190.0, 140.0, 150.0))
    assert judged("first").holds is True
    assert judged().said == "does not hold, 0 of 1 seed, not after epoch 2"


def test_claims_about_epochs_of_several_seeds(rows, judged):
    result(rows, "rntn", 1.0, **course(300.0, 200.0))
    result(rows, "gru", 1.0, **course(310.0, 190.0))
    result(rows, "rntn", 1.0, seed=2, **course(280.0, 150.0))
    result(rows, "gru", 1.0, seed=2, **course(300.0, 250.0))
    assert judged().said == "holds in the mean, 1 of 2 seeds"
    result(rows, "gru", 1.0, seed=2, **course(275.0, 250.0))
    assert judged().said == "holds in the mean, 0 of 2 seeds"  # one not after epoch 1, one not after epoch 2
    result(rows, "gru", 1.0, **course(310.0, 90.0))
    assert judged().said == "does not hold, 0 of 2 seeds, not after epoch 2"
    lacking = course(275.0, 250.0)
    del lacking["curve"][-1]  # of a seed that lacks an epoch nothing is known
    result(rows, "gru", 1.0, seed=2, **lacking)
    assert judged().said == "does not hold, 0 of 1 seed, not after epoch 2"
    assert judged("first").said == "holds in the mean, 1 of 2 seeds"


def test_claims_about_epochs_that_nothing_is_known_of(rows, judged):
    """An epoch that was not trained to its end is none, and one epoch is not every epoch."""
    result(rows, "rntn", 1.0, **course(300.0, 200.0))
    result(rows, "gru", 1.0, **course(310.0, 210.0, updates=210, epochs=1.9))  # 110.5 updates an epoch
    assert judged().holds is None and judged("first").holds is None
    result(rows, "rntn", 1.0, **course(300.0))
    result(rows, "gru", 1.0, **course(310.0))
    assert judged("first").holds is True
    assert judged().said == "open: no validation after several epochs"
    result(rows, "gru", 1.0, **course(310.0, epochs=0.4, updates=100))
    assert judged("first").said == "open: no validation after the first epoch"
    result(rows, "gru", 1.0, curve=[], epochs=1.0)
    assert judged("first").said == "open: no validation after the first epoch"
    result(rows, "gru", 1.0, **course(310.0, 210.0))
    assert judged("first").said == "holds, 1 of 1 seed"  # of the first both have had the same


def test_claims_about_the_epochs_that_both_have(manifest, rows, judged):
    """Of however many the schedule is the same until then; not where the two have different ones."""
    result(rows, "rntn", 1.0, **course(300.0, 200.0))
    result(rows, "gru", 1.0, **course(310.0, 210.0, 100.0))
    assert judged().said == "holds, 1 of 1 seed" and judged().better.mean == 200.0
    assert list(judged().curves[1]) == [1, 2]
    full = manifest.runs["gru"].schedule
    other = replace(full, short=replace(full.short, train=(*full.short.train, "--lr", "9")))
    manifest.runs["gru"] = replace(manifest.runs["gru"], schedule=other)
    assert judged().said == "open: never trained alike"


def test_claims_about_epochs_of_what_diverged(rows, judged):
    result(rows, "rntn", 1.0, **course(300.0, 200.0))
    result(rows, "gru", 1.0, **course(float("nan"), float("nan")))
    assert judged().holds is True and judged("first").holds is True
    result(rows, "rntn", 1.0, **course(300.0, float("nan")))
    assert judged().holds is False and judged("first").holds is True


def test_claims_about_epochs_of_tags():
    """Validation has them as labels."""
    file = next(ROWS.glob("e18-pos-basic-lstm-x.short.seed1.json"))
    found = reproduction.results.read(file)
    assert list(found.validations) == [1, 2, 3]
    assert found.validations[2] == found.curve[1]["valid"]["label_accuracy"]


def test_claims_about_epochs_in_the_table(manifest, rows):
    for count, said in (
        (2, "`rntn` 300.00, 299.00 in validation after epochs 1, 2 (6.7 %, short, 2 epochs, partial)"),
        (3, "`rntn` 300.00, 299.00, 298.00 in validation after epochs 1, 2, 3 (10 %, short, 3 epochs)"),
        (4, "`rntn` 300.00 … 297.00 in validation after epochs 1 … 4 (13 %, short, 4 epochs)"),
    ):
        for run, first in (("rntn", 300.0), ("gru", 310.0)):
            result(rows, run, 100.0, **course(*(first - epoch for epoch in range(count))))
        manifest.claims[0]["epochs"] = "all"
        shown = line(page_of(manifest, rows), "GRURNTN < GRU")
        assert shown[3].partition(";")[0] == said and shown[4] == "holds, 1 of 1 seed"
    result(rows, "rntn", 90.0, "paper", **course(*[50.0] * 30))
    manifest.claims[0]["epochs"] = "first"
    assert line(page_of(manifest, rows), "GRURNTN < GRU")[3] == (
        "`rntn` 300.00 in validation after epoch 1 (13 %, short, 4 epochs); "
        "`gru` 310.00 in validation after epoch 1 (13 %, short, 4 epochs); "
        "by a longer training, not compared: `rntn` (100 %, paper, 30 epochs, best after 0.5)"
    )


def test_claims_aside_are_counted_apart(manifest, rows):
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0)
    judged = [verdict(manifest, rows)]
    whole = line(report.summary(manifest, report.Results(rows), judged), "T16")
    judged.append(judge(manifest, report.Results(rows), {**manifest.claims[0], "aside": "in a table alone"}))
    shown = report.summary(manifest, report.Results(rows), judged)
    assert line(shown, "T16") == whole and whole[-5:] == ["1", "0", "0", "0", "0"]
    assert shown.endswith("\n\nNot counted here: 1 claims (1 hold, 0 do not, 0 open) in a table alone.")
    judged.append(judge(manifest, report.Results(rows), {**manifest.claims[0], "aside": "a\n# <b>"}))
    assert report.summary(manifest, report.Results(rows), judged).endswith(
        "; 1 claims (1 hold, 0 do not, 0 open) a # &lt;b>."
    )


def test_rows_aside_are_counted_apart(manifest, rows):
    result(rows, "gru", 110.0)
    manifest.rows[0] = replace(manifest.rows[0], aside="of another reading")
    shown = report.summary(manifest, report.Results(rows), [])
    assert line(shown, "T16")[1:3] == ["2", "0"]
    assert shown.endswith("Not counted here: 1 row (1 measured) of another reading.")


@pytest.mark.parametrize("low, high, said", [(1.05, 1.09, True), (1.05, 1.11, None), (1.11, 1.3, False)])
def test_a_time_is_decided_where_all_rounds_agree(manifest, rows, low, high, said):
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "curve": []}
    manifest.runs["time-gru"] = replace(manifest.runs["time-lstm"], id="time-gru", arch="gru_lm")
    result(rows, "time-gru", 0, "paper", **timed, test={"": {"ratio": (low + high) / 2, "low": low, "high": high}})
    result(rows, "time-lstm", 0, "paper", **timed, test={"": {"ratio": 1.0, "low": 1.0, "high": 1.0}})
    sides = {"better": "time-gru", "worse": "time-lstm"}
    claim = {**manifest.claims[0], **sides, "text": "time: GRU as LSTM, within 10 %", "within": 0.1}
    assert judge(manifest, report.Results(rows), claim).holds is said
    result(rows, "time-lstm", 0, "paper", **timed, test={"": {"ratio": 1.2, "low": 1.1, "high": 1.3}})
    claim = {**manifest.claims[0], **sides, "text": "time: GRU < LSTM"}
    found = judge(manifest, report.Results(rows), claim)
    assert found.holds is (True if high < 1.1 else None)
    assert high < 1.1 or found.said == "open: the rounds of the measurement differ by more than the two times"
