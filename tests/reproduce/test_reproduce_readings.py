"""RESULTS.md, from made-up results: comparisons by other readings of a paper, and what whole trainings would take."""

import pytest
import reproduction.manifest as manifests
from made_up_results import MANIFEST, RUNS, line_of, page_of, partial, result

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


def loaded(folder, more=READINGS):
    file = folder / "tasks" / "ptb_word_lm" / "rows.toml"
    file.parent.mkdir(parents=True)
    file.write_text(MANIFEST.replace("RUNS", RUNS) + more, encoding="utf-8")
    manifest = manifests.load(file.parents[1])
    manifest.claims[0]["headline"] = True
    return manifest


def comparisons(page):
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
        "holds, 1 of 1 seed", f"words read as streams (3 epochs): {said} of 1 seed"
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
    ],
)
def test_what_is_no_other_reading(tmp_path, rows, change):
    assert READINGS.count(change[0]) == 1
    manifest = loaded(tmp_path / "repository", READINGS.replace(*change))
    for run in ("gru", "lstm", "streams"):
        for kind, epochs in (("short", 3.0), ("paper", 30.0)):
            result(rows, run, 110.0, kind, epochs=epochs)
            result(rows, "rntn", 100.0, kind, epochs=epochs)
    assert "By other readings" not in page_of(manifest, rows)


def left(page):
    return page.partition("## What was not trained to its end")[2].partition("\n## ")[0]


def test_the_time_of_whole_trainings(tmp_path, rows):
    """By the longest training of each model, a CPU's where there is one; of another reading none."""
    manifest = loaded(tmp_path / "repository")
    result(rows, "gru", 110.0, seconds={"train": 360.0})  # 300 updates of 3,000
    result(rows, "gru", 110.0, "medium", epochs=9.0, seconds={"train": 2160.0})
    gpu = {"environment": {"gpu": "NVIDIA H200", "processor": "Xeon"}}
    result(rows, "gru", 108.0, "paper", epochs=12.0, seconds={"train": 12.0}, **partial(), **gpu)
    result(rows, "streams", 110.0, seconds={"train": 360.0})
    shown = left(page_of(manifest, rows))
    assert line_of(shown, "T16") == ["T16", "II", "1", "2.0", "2.0", "CPU (1)"]
    assert "No result at all: 3 models on `ptb` ([recipe](" in shown, "rntn, lstm, other"
    result(rows, "rntn", 100.0, "paper", epochs=12.0, seconds={"train": 120.0}, **partial(), **gpu)
    shown = left(page_of(manifest, rows))
    assert line_of(shown, "T16") == ["T16", "II", "2", "0.1–2.0", "2.1", "CPU (1) and GPU (1)"]
    result(rows, "other", 100.0, seconds={"train": 36000.0})
    assert line_of(left(page_of(manifest, rows)), "H16") == ["H16", "6.2", "1", "100", "100", "CPU (1)"]
    for run in ("gru", "rntn", "other"):
        result(rows, run, 100.0, "paper", epochs=30.0)
    shown = page_of(manifest, rows)
    assert "## What was not trained" not in shown and "No result at all: 1 model on `ptb`" in shown


def test_nothing_is_left_where_nothing_was_begun(tmp_path, rows):
    assert "No result at all" not in page_of(loaded(tmp_path / "repository"), rows)
