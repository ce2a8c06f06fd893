"""RESULTS.md, from made-up results: comparisons by other readings of a paper, and what whole trainings would take."""

import pytest
from made_up_results import MANIFEST, RUNS, line_of, page_of, partial, result, with_more
from reproduction.manifest import Refused
from reproduction.tables import per_cent

READINGS = """
[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNN, streams"
column = "test PPL"
published = 97.78
run = "streams"
reading_of = "gru"
aside = "of words read as streams"
[[runs]]
id = "streams"
arch = "gru_lm"
schedule = "t16"
[[claims]]
paper = "T16"
where = "Table 1"
text = "streams: GRURNTN < GRU"
better = "rntn"
worse = "streams"
aside = "of words read as streams"
"""


def loaded(folder, more=READINGS, given=None):
    manifest = with_more(folder, more, given)
    manifest.claims[0]["headline"] = True
    return manifest


def comparisons(page):
    """Of a page the text and the table of the main comparisons."""
    start = page.index("## The main comparisons")
    return page[start : page.index("\n## ", start)]


@pytest.mark.parametrize("value, said, against", [(98.0, "does not hold, 0", 1), (120.0, "holds, 1", 0)])
def test_a_comparison_by_another_reading(tmp_path, rows, value, said, against):
    manifest = loaded(tmp_path / "repository")
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0)
    assert "read otherwise" not in comparisons(page_of(manifest, rows)).partition("| paper")[2], "not measured"
    result(rows, "streams", value)
    shown = comparisons(page_of(manifest, rows))
    assert line_of(shown, "GRURNTN < GRU")[-2:] == [
        "holds, 1 of 1 seed", f"streams: GRURNTN < GRU (3 epochs): {said} of 1 seed"
    ]  # fmt: skip
    assert f"By other readings of the paper 1 are judged too, {against} of them to the contrary. All" in shown


@pytest.mark.parametrize(
    "change",
    [
        ('reading_of = "gru"\n', ""),  # no row says that this is a reading of the GRU's
        ('worse = "streams"', 'worse = "lstm"'),  # of another model
        ('worse = "streams"', 'worse = "gru"'),  # the comparison itself, once more
        ('text = "streams: GRURNTN < GRU"', 'text = "streams: GRURNTN <= GRU"\nwithin = 0.5'),  # another claim
        ('worse = "streams"', 'worse = "streams"\nat_end = true'),
        ('worse = "streams"', 'worse = "streams"\nepochs = "first"'),
        ('worse = "streams"\naside = "of words read as streams"', 'worse = "streams"'),  # counted with the others
        ('[[claims]]\npaper = "T16"', '[[claims]]\npaper = "H16"'),
        (  # LSTM near GRU is said of another way of scoring
            'text = "streams: GRURNTN < GRU"\nbetter = "rntn"\nworse = "streams"',
            'text = "LSTM near GRU: within 3 %"\nbetter = "lstm"\nworse = "streams"\nwithin = 0.03',
        ),
    ],
)
def test_what_is_no_other_reading(tmp_path, rows, change):
    assert READINGS.count(change[0]) == 1
    manifest = loaded(tmp_path / "repository", READINGS.replace(*change))
    manifest.claims[2]["headline"] = True
    for run in ("gru", "lstm", "streams"):
        for kind, epochs in (("short", 3.0), ("paper", 30.0)):
            result(rows, run, 110.0, kind, epochs=epochs, test={"": {"ppl": 110.0}, "--beam 1": {"ppl": 110.0}})
            result(rows, "rntn", 100.0, kind, epochs=epochs)
    assert "By other readings" not in page_of(manifest, rows)


def test_several_readings_and_an_open_comparison(tmp_path, rows):
    second = READINGS.replace("streams", "blocks").replace("< GRU", "<= GRU")
    manifest = loaded(tmp_path / "repository", READINGS + second)
    result(rows, "rntn", 100.0)
    result(rows, "gru", 110.0, "medium", epochs=9.0)
    for run, value in (("streams", 98.0), ("blocks", 120.0)):
        result(rows, run, value)
    shown = comparisons(page_of(manifest, rows))
    said = (
        "streams: GRURNTN < GRU (3 epochs): does not hold, 0 of 1 seed; blocks: GRURNTN <= GRU (3 epochs): holds, 1 of"
    )
    assert line_of(shown, "| GRURNTN < GRU")[-1].startswith(said) and "1 open" in shown
    assert "By other readings of the paper 1 are judged too, 0 of them to the contrary. All" in shown
    for run, value in (("rntn", 100.0), ("gru", 110.0)):
        result(rows, run, value, "medium", epochs=9.0)
    shown = comparisons(page_of(manifest, rows))
    assert "judged too, 1 of them to the contrary (1 of these by shorter trainings). All" in shown
    result(rows, "rntn", 100.0, "medium", epochs=9.0)
    result(rows, "streams", 98.0, "medium", epochs=9.0)
    assert "judged too, 1 of them to the contrary. All" in comparisons(page_of(manifest, rows))


def left(page):
    return page.partition("## What was not trained to its end")[2].partition("\n## ")[0]


FIXED = """
[schedules.fixed]
train = "--lr 7 --fixed-length 100"
metric = "ppl"
updates = 6000
[schedules.fixed.short]
drop = "--fixed-length"
updates = 100
because = "shortened"
[[runs]]
id = "fixed"
arch = "lstm_lm"
schedule = "fixed"
[[rows]]
paper = "H16"
table = "Table 6.1"
row = "LSTM"
column = "test PPL"
published = 100.0
run = "fixed"
"""


def test_the_time_of_whole_trainings(tmp_path, rows):
    """By the longest training of each model, a CPU's where there is one; of another reading none."""
    given = MANIFEST.replace("RUNS", FIXED.partition("[[runs]]")[0] + RUNS)
    manifest = loaded(tmp_path / "repository", READINGS + "[[runs]]" + FIXED.partition("[[runs]]")[2], given)
    result(rows, "gru", 110.0, seconds={"train": 360.0})  # 300 updates of 3,000
    result(rows, "gru", 110.0, "medium", epochs=9.0, seconds={"train": 2160.0})
    gpu = {"environment": {"gpu": "NVIDIA H200", "processor": "Xeon"}}
    result(rows, "gru", 108.0, "paper", epochs=12.0, seconds={"train": 12.0}, **partial(), **gpu)
    result(rows, "streams", 110.0, seconds={"train": 360.0})
    shown = left(page_of(manifest, rows))
    assert line_of(shown, "T16") == ["T16", "II", "1", "2.0", "2.0", "CPU (1)", ""]
    assert "No result at all: 4 models on `ptb` ([recipe](" in shown, "rntn, lstm, other, fixed"
    result(rows, "rntn", 100.0, "paper", epochs=12.0, seconds={"train": 120.0}, **partial(), **gpu)
    shown = left(page_of(manifest, rows))
    assert line_of(shown, "T16") == ["T16", "II", "2", "0.1–2.0", "2.1", "CPU (1) and GPU (1)", ""]
    result(rows, "other", 100.0, seconds={"train": 36000.0})
    result(rows, "fixed", 100.0, epochs=1.0, seconds={"train": 60.0})  # 100 updates of 6,000
    shown = left(page_of(manifest, rows))
    assert line_of(shown, "6.2") == ["H16", "6.2", "1", "100", "100", "CPU (1)", ""]
    assert line_of(shown, "6.1") == ["H16", "6.1", "1", "1.0", "1.0", "CPU (1)", "`--fixed-length 100`"]
    assert shown.index("| T16") < shown.index("| H16 | 6.1") < shown.index("| H16 | 6.2")
    result(rows, "rntn", 100.0, "paper", epochs=12.0, **partial(), curve=[
        {"epoch": 1, "updates": 100, "valid": {"ppl": 100.0}}, {"epoch": 2, "updates": 200, "valid": {"ppl": 1e9}}
    ])  # fmt: skip
    assert line_of(left(page_of(manifest, rows)), "T16")[2] == "1", "it diverged"
    for run in ("gru", "other"):
        result(rows, run, 100.0, "paper", epochs=30.0)
    result(rows, "fixed", 100.0, "paper", epochs=60.0)
    result(rows, "gru", 100.0, "paper", seed=2, epochs=12.0, **partial())
    shown = left(page_of(manifest, rows))
    assert "hours" not in shown and "No result at all: 1 model on `ptb`" in shown, "another seed's end is enough"


@pytest.mark.parametrize(
    "more",
    [
        {"epochs": 0.0, "updates": 300, "curve": []},
        {"updates": 0, "curve": []},
        *({"seconds": given} for given in ({}, {"train": None}, {"train": 0.0})),
    ],
)
def test_a_training_whose_time_is_not_known(tmp_path, rows, more):
    result(rows, "gru", 110.0, **{"seconds": {"train": 360.0}, **more})
    shown = left(page_of(loaded(tmp_path / "repository"), rows))
    assert line_of(shown, "T16") == ["T16", "II", "1", "", "", "", ""] and "No result at all: 3 models" in shown


@pytest.mark.parametrize("took", [True, -5, "5", float("nan"), float("inf")])
def test_a_time_that_is_none(tmp_path, rows, took):
    result(rows, "gru", 110.0, seconds={"train": took})
    with pytest.raises(Refused, match="the seconds of the training are no number from 0"):
        page_of(loaded(tmp_path / "repository"), rows)


def test_nothing_is_left_where_nothing_was_begun(tmp_path, rows):
    assert "No result at all" not in page_of(loaded(tmp_path / "repository"), rows)


@pytest.mark.parametrize(
    "share, said",
    [(1.0, "100 %"), (0.998, "99 %"), (0.67, "67 %"), (0.1, "10 %"), (0.0536, "5.4 %"), (0.0014, "0.14 %"),
     (1e-7, "below 0.01 %"), (0.0, "0 %")],
)  # fmt: skip
def test_shares_of_a_schedule(share, said):
    assert per_cent(share) == said
