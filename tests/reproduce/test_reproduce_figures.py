"""The figures drawn from made-up results."""

import math
from dataclasses import replace

from made_up_results import drawn, measured_by_all, page_of, partial, result
from reproduction import figures, report


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


def test_each_line_of_a_sweep_has_its_own_schedule(manifest, rows):
    """Unless they have a point in common."""
    for run in ("gru", "rntn"):
        result(rows, run, 110.0)
    result(rows, "gru", 95.0, "medium", epochs=9.0)
    for run in ("plain", "other"):
        result(rows, run, 90.0, "paper", epochs=30.0)
    plan, axes = drawn(manifest, rows, 2)
    assert axes.get_title() == "H16 Figure 6.1: by order (the paper's schedule; short schedule, 3 of 30 epochs)"
    assert [axes.lines[place].get_ydata().tolist() for place in (0, 2)] == [[110, 110], [90, 90]]
    assert legend(axes) == ["f (short schedule, 3 of 30 epochs)", "g (the paper's schedule)", "published"]
    assert figures.joined([["a", "b"], ["c"], ["d", "e"], ["e", "b"]]) == [["c"], ["a", "b", "d", "e"]]


def test_a_sweep_needs_two_points_of_a_line(manifest, rows):
    for run in ("gru", "plain"):
        result(rows, run, 110.0)
    assert figures.plan(manifest, report.Results(rows), manifest.figures[2]) is None
    assert "or but one point of them: Figure 6.1 (by order)" in page_of(manifest, rows)
    result(rows, "other", 100.0)
    plan, axes = drawn(manifest, rows, 2)
    assert legend(axes) == ["f", "g", "published"] and set(plan.drawn) == {"gru", "plain", "other"}


def test_a_line_of_a_sweep_breaks_where_a_point_was_not_measured(manifest, rows):
    for run, value in (("plain", 90.0), ("lstm", 70.0), ("gru", 110.0)):
        result(rows, run, value)
    ours = drawn(manifest, rows, 2)[1].lines[2]
    assert ours.get_xdata().tolist() == [1, 10, 100] and str(ours.get_ydata().tolist()) == "[90.0, nan, 70.0]"
    result(rows, "other", math.nan)
    assert str(drawn(manifest, rows, 2)[1].lines[2].get_ydata().tolist()) == "[90.0, nan, 70.0]"


def test_legend_names(manifest):
    assert figures.names(manifest, {"paper": "H16", "runs": ["gru", "other"]}) == {
        "gru": "GRU, PPL, order 2", "other": "GRU, PPL, order 3"
    }  # fmt: skip
    rows = [replace(row, column="PPL", table=f"Table {place}") for place, row in enumerate(manifest.rows[3:5])]
    two = replace(manifest, rows=rows)
    assert figures.names(two, {"paper": "H16", "runs": ["gru", "other"], "tables": {"Table 1": "I = x"}}) == {
        "gru": "GRU, PPL (Table 0)", "other": "GRU, PPL (I = x)"
    }  # fmt: skip
    assert figures.names(manifest, {"paper": "T16", "runs": ["gru", "chars"]}) == {"gru": "GRURNN", "chars": "chars"}


def test_an_epoch_that_was_stopped_within_is_drawn_once(rows):
    """In training: by the whole of it. Validations stand where they were made."""
    curve = [
        {"epoch": 1, "updates": 50, "train": {"ppl": 300.0}, "valid": {"ppl": 280.0}},
        {"epoch": 2, "updates": 70, "train": {"ppl": 90.0}, "valid": {"ppl": 200.0}},
        {"epoch": 2, "updates": 100, "train": {"ppl": 150.0}, "valid": {"ppl": 190.0}},
        {"epoch": 3, "updates": 120, "train": {"ppl": 99.0}},
    ]
    result(rows, "gru", 99.0, "paper", epochs=2.4, updates=120, curve=curve, **partial())
    (found,) = report.Results(rows).all
    assert found.points("train", "ppl") == [(1.0, 300.0), (2.0, 150.0), (2.4, 99.0)]
    assert [value for _, value in found.points("valid", "ppl")] == [280.0, 200.0, 190.0]


def test_the_published_point_is_of_the_plain_scoring(manifest):
    """Not of a row that scores the same training otherwise."""
    (plain,) = [row for row in manifest.rows if row.run == "gru" and row.paper == "H16"]
    assert plain.published and not plain.evaluate
    otherwise = replace(plain, evaluate=("--dbrnn-output", "forward"), published=1.0)
    for rows in ([otherwise, *manifest.rows], [*manifest.rows, otherwise]):
        assert figures.published(replace(manifest, rows=rows), "H16", "gru") == plain.published
    assert figures.published(replace(manifest, rows=[otherwise]), "H16", "gru") is None
