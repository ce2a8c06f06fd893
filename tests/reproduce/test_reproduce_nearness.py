"""RESULTS.md's table of whole schedules beside the papers' numbers, from made-up results."""

import pytest
import reproduction.manifest as manifests
from made_up_results import MANIFEST, RUNS, beside, page_of, partial, result

READINGS = """
[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNN, streams"
column = "test PPL"
published = 97.78
run = "streams"
why = "notes.md#streams"
[[runs]]
id = "streams"
arch = "gru_lm"
schedule = "t16"
[[rows]]
paper = "T16"
table = "Table IV"
row = "GRU"
column = "test PPL"
published = 97.78
run = "gru"
"""


@pytest.fixture
def readings(tmp_path):
    """The GRU's number in two tables, and by two readings."""
    return with_more(tmp_path, READINGS)


def with_more(folder, more):
    file = folder / "tasks" / "ptb_word_lm" / "rows.toml"
    file.parent.mkdir(parents=True)
    file.write_text(MANIFEST.replace("RUNS", RUNS) + more, encoding="utf-8")
    return manifests.load(file.parents[1])


def whole(rows, run, value, **more):
    return result(rows, run, value, "paper", epochs=30.0, **more)


def test_nothing_without_a_whole_schedule(manifest, rows):
    result(rows, "gru", 97.0)
    result(rows, "counts", 141.0, "paper", epochs=1.0)  # needs no training
    assert "## Whole schedules" not in page_of(manifest, rows)


@pytest.mark.parametrize(
    "value, apart, near",
    [(97.0, "-0.8 %", "yes"), (99.7, "+2.0 %", "yes"), (99.8, "+2.1 %", "no"), (50.0, "-48.9 %", "yes")],
)
def test_within_two_per_cent_or_better(manifest, rows, value, apart, near):
    whole(rows, "gru", value)
    cells = beside(page_of(manifest, rows), "| II |")
    assert cells[:5] == ["T16", "II", "GRURNN", "97.78", f"{value:.2f}"]
    assert cells[5:8] == [apart, "100 %, paper, 30 epochs", near]


def test_higher_is_better_of_accuracies(tmp_path, rows):
    text = MANIFEST.replace("RUNS", RUNS).replace('metric = "ppl"', 'metric = "label_accuracy"')
    text = text.replace("LSTM <= GRU", "LSTM >= GRU").replace(" < ", " > ")
    file = tmp_path / "tasks" / "ud" / "rows.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    labels = manifests.load(file.parents[1])
    for run, value in (("gru", 97.78 * 0.97), ("rntn", 99.0)):
        curve = [{"epoch": 30, "updates": 3000, "valid": {"label_accuracy": value}}]
        test = {"": {"label_accuracy": value}}
        whole(rows, run, value, metric="label_accuracy", test=test, curve=curve)
    page = page_of(labels, rows)
    assert beside(page, "GRURNN")[5:8:2] == ["-3.0 %", "no"]
    assert beside(page, "GRURNTN")[5:8:2] == ["+13.3 %", "yes"]


def test_shorter_ones_do_not_count(manifest, rows):
    whole(rows, "gru", 110.0)
    result(rows, "gru", 97.0, "medium", epochs=9.0)
    assert beside(page_of(manifest, rows), "| II |")[4] == "110.00"


def test_one_line_for_a_number_in_several_tables(readings, rows):
    whole(rows, "gru", 99.0)
    page = page_of(readings, rows)
    assert beside(page, "97.78")[:3] == ["T16", "II, IV", "GRURNN"]
    assert beside(page, "| H16 |")[1:5] == ["6.2", "GRU, PPL, order 2", "123", "99.00"]
    assert "Of 2 numbers 2 are met within 2 % or better by a training to its end, 0 by none." in page


def test_a_number_is_met_by_any_of_its_readings(readings, rows):
    """One that came to its end decides; none is missed as long as no training came to its end."""
    of_two = "Of 2 numbers 1 are met within 2 % or better by a training to its end, "  # H16's 123 is
    whole(rows, "gru", 110.0)
    assert of_two + "1 by none." in page_of(readings, rows)
    result(rows, "streams", 99.0, "paper", epochs=12.0, **partial())
    page = page_of(readings, rows)
    assert of_two + "1 by one that was stopped before, 0 by none." in page
    assert beside(page, "streams")[6:8] == ["40 %, paper, 12 epochs, partial", "yes"]
    whole(rows, "streams", 99.0)
    assert "Of 2 numbers 2 are met within 2 % or better by a training to its end, 0 by none." in page_of(readings, rows)


def test_open_until_a_training_comes_to_its_end(manifest, rows):
    result(rows, "rntn", 99.0, "paper", epochs=12.0, **partial())
    said = "0 by none, 1 not yet, by trainings that were stopped before their ends."
    assert said in page_of(manifest, rows)


def test_diverged(manifest, rows):
    whole(rows, "rntn", float("nan"))
    assert beside(page_of(manifest, rows), "GRURNTN")[4:8] == ["diverged", "", "100 %, paper, 30 epochs", "no"]


def test_why_leads_into_the_recipe(readings, rows):
    result(rows, "streams", 110.0, "paper", epochs=12.0, **partial())
    cells = beside(page_of(readings, rows), "streams")
    assert cells[-1].endswith("tasks/ptb_word_lm/notes.md#streams)") and cells[-1].startswith("[why](")


def test_why_must_be_some_text(tmp_path):
    with pytest.raises(manifests.Refused, match="why = 3 must be some text"):
        with_more(tmp_path, READINGS.replace('"notes.md#streams"', "3"))
