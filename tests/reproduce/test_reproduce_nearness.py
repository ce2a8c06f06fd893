"""RESULTS.md's table of whole schedules beside the papers' numbers, from made-up results."""

import pytest
import reproduction.manifest as manifests
from made_up_results import MANIFEST, RUNS, beside, page_of, partial, result, with_more
from reproduction.results import Measured, read

READINGS = """
[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNN, streams"
column = "test PPL"
published = 97.78
run = "streams"
reading_of = "gru"
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


def whole(rows, run, value, **more):
    return result(rows, run, value, "paper", epochs=30.0, **more)


def test_nothing_without_a_whole_schedule(manifest, rows):
    result(rows, "gru", 97.0)
    timed = {"metric": "seconds", "epochs": 0.0, "updates": 40, "of_paper": 1.0, "parameters": None}
    ratio = {"ratio": 2.5, "low": 2.4, "high": 2.6, "reference": "elman_lm"}
    result(rows, "time-lstm", 0, "paper", **timed, test={"": ratio})  # its row has a number, and it was not trained
    assert "## Whole schedules" not in page_of(manifest, rows)


@pytest.mark.parametrize(
    "value, apart, near",
    [
        (97.0, "-0.8 %", "yes"),
        (99.7, "+2.0 %", "yes"),
        (99.78, "+2.0 %", "yes"),
        (99.8, "+2.1 %", "no"),
        (97.779, "+0.0 %", "yes"),
        (50.0, "-48.9 %", "yes"),
    ],
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
    assert "Of 2 numbers 2 are met within 2 % or better by the recipe's training to its end, 0 by none." in page


def test_other_readings_are_counted_apart(readings, rows):
    """The recipe's own reading decides; one that was stopped is open, unless another comes to the number."""
    of_two = "Of 2 numbers 1 are met within 2 % or better by the recipe's training to its end, "  # H16's 123 is
    whole(rows, "gru", 110.0)
    assert of_two + "1 by none." in page_of(readings, rows)
    result(rows, "streams", 99.0, "paper", epochs=12.0, **partial())
    page = page_of(readings, rows)
    assert of_two + "1 by another reading alone (1 of these stopped before its end), 0 by none." in page
    assert beside(page, "streams")[6:8] == ["40 %, paper, 12 epochs, partial", "yes"]
    whole(rows, "streams", 99.0)
    assert of_two + "1 by another reading alone, 0 by none." in page_of(readings, rows)
    table = page.partition("## Whole schedules")[2]
    assert table.index("GRURNN |") < table.index("streams") < table.index("| H16 |")
    result(rows, "gru", 99.0, "paper", epochs=12.0, **partial())
    assert (
        "Of 2 numbers 0 are met within 2 % or better by the recipe's training to its end, 2 by one that was stop"
        in (page_of(readings, rows))
    )


def test_equal_numbers_of_two_models_are_two(tmp_path, rows):
    """As H16's gated HORNNs of order 3 and 4, of one architecture, which have 100 both."""
    two = READINGS.replace('reading_of = "gru"\n', "")
    both = with_more(tmp_path, two)
    whole(rows, "gru", 110.0)
    whole(rows, "streams", 99.0)
    said = "Of 3 numbers 2 are met within 2 % or better by the recipe's training to its end, 1 by none."
    assert said in page_of(both, rows)


LATER = READINGS.replace("streams", "later").replace('reading_of = "gru"\n', "").replace("97.78", "70")


def test_papers_stand_together(tmp_path, rows):
    """A row of T16's that stands after those of H16."""
    for run in ("gru", "later"):
        whole(rows, run, 99.0)
    page = page_of(with_more(tmp_path, LATER), rows)
    lines = page.partition("## Whole schedules")[2].partition("\n## ")[0].splitlines()
    assert [line[2:5] for line in lines if line.startswith("| ")][2:] == ["T16", "T16", "T16", "H16"]


def test_a_reading_may_be_scored_otherwise(tmp_path, rows):
    """It stays one of the same number."""
    other = with_more(tmp_path, READINGS.replace('reading_of = "gru"', 'reading_of = "gru"\nevaluate = "--beam 1"'))
    whole(rows, "gru", 99.0)
    whole(rows, "streams", 99.0, test={"": {"ppl": 99.0}, "--beam 1": {"ppl": 120.0}})
    page = page_of(other, rows)
    assert beside(page, "streams")[2:5] == ["GRURNN, streams, scored with `--beam 1`", "97.78", "120.00"]
    assert "Of 2 numbers 2 are met within 2 % or better by the recipe's training to its end, 0 by none." in page


def test_open_as_long_as_the_recipes_own_is(readings, rows):
    """Whether another reading misses the number to its end, or is all there is."""
    result(rows, "gru", 130.0, "paper", epochs=12.0, **partial())
    whole(rows, "streams", 110.0)
    assert "0 by none, 2 not yet" in page_of(readings, rows)
    (rows / "gru.paper.seed1.json").unlink()
    assert "Of 1 numbers 0 are met within 2 % or better by the recipe's training to its end, 1 by none." in page_of(
        readings, rows
    )


def test_quoted_numbers_are_marked_and_counted(tmp_path, rows):
    text = MANIFEST.replace("RUNS", RUNS).replace("published = 123\n", "published = 123\nquoted = true\n")
    file = tmp_path / "tasks" / "ptb_word_lm" / "rows.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    whole(rows, "gru", 99.0)
    page = page_of(manifests.load(file.parents[1]), rows)
    assert beside(page, "| H16 |")[3] == "123, quoted"
    assert "2 are met within 2 % or better by the recipe's training to its end (1 of these quoted), 0 by none." in page


def test_marks_of_other_flags(manifest, rows):
    whole(rows, "gru", 99.0, commands={"train": "fairseq-train x --arch gru_lm --max-epoch 30 --lr 0.5".split()})
    assert beside(page_of(manifest, rows), "| II |")[6] == "100 %, paper, 30 epochs †"


def test_open_until_a_training_comes_to_its_end(manifest, rows):
    result(rows, "rntn", 99.0, "paper", epochs=12.0, **partial())
    said = "0 by none, 1 not yet, by trainings that were stopped before their ends."
    assert said in page_of(manifest, rows)


def test_diverged(manifest, rows):
    whole(rows, "rntn", float("nan"))
    assert beside(page_of(manifest, rows), "GRURNTN")[4:8] == ["diverged", "", "100 %, paper, 30 epochs", "no"]


@pytest.mark.parametrize(
    "metric, values, said",
    [
        ("ppl", [300.0, 250.0, float("nan")], True),
        ("ppl", [300.0, float("inf"), float("inf")], True),
        ("ppl", [300.0, 200.0, 9e4, 9e4, 9e4], True),
        ("ppl", [300.0, 9e4], True),
        ("ppl", [300.0, 200.0, 2001.0], True),
        ("ppl", [300.0, 200.0, 2000.0], False),
        ("ppl", [9e4, 300.0, 250.0, 700.0], False),
        ("ppl", [float("nan"), 300.0], False),
        ("ppl", [], False),
        ("label_accuracy", [90.0, 3.0], False),
        ("label_accuracy", [3.0, 90.0], False),
    ],
)
def test_what_diverged(metric, values, said, rows):
    curve = [{"epoch": n, "updates": 100 * n, "valid": {metric: value}} for n, value in enumerate(values, 1)]
    file = result(rows, "gru", 99.0, "paper", metric=metric, curve=curve, test={"": {metric: 99.0}})
    found = read(file)
    assert found.diverged == said
    steady = result(rows, "gru", 99.0, "paper", seed=2)
    assert Measured((read(steady), found), (99.0, 99.0)).diverged == said


def test_a_training_that_undid_itself_is_not_open(manifest, rows):
    curve = [{"epoch": epoch, "updates": 100 * epoch, "valid": {"ppl": 90.0**epoch}} for epoch in (1, 2, 3)]
    result(rows, "rntn", 99.0, "paper", epochs=3.0, curve=curve, **partial())
    page = page_of(manifest, rows)
    assert beside(page, "GRURNTN")[6] == "10 %, paper, 3 epochs, diverged, best after 1"
    assert page.count("3 epochs, diverged") > 1 and "3 epochs, partial" not in page
    assert "recipe's training to its end, 1 by none." in page


def test_why_leads_into_the_recipe(readings, rows):
    result(rows, "streams", 110.0, "paper", epochs=12.0, **partial())
    cells = beside(page_of(readings, rows), "streams")
    assert cells[-1].endswith("tasks/ptb_word_lm/notes.md#streams)") and cells[-1].startswith("[why](")


@pytest.mark.parametrize(
    "was, given, message",
    [
        ('why = "notes.md#streams"', "why = 3", "why = 3 must be some text"),
        ('reading_of = "gru"', 'reading_of = "rntn"', "Table II, GRURNN, streams: reading_of 'rntn', which has no row"),
        ('reading_of = "gru"', 'reading_of = "streams"', "reading_of 'streams', which has no row with this number"),
        ('reading_of = "gru"', 'quoted = "yes"', "quoted = 'yes' must be true or false"),
    ],
)
def test_what_the_manifest_may_not_say(tmp_path, was, given, message):
    with pytest.raises(manifests.Refused, match=message):
        with_more(tmp_path, READINGS.replace(was, given))
