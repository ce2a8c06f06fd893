"""Which of two models' trainings a verdict compares, and what it counts of them."""

from dataclasses import replace

from made_up_results import result, verdict
from test_reproduce_claims import course, falling


def test_a_rule_does_not_make_unlike_forms_alike(manifest, rows):
    full = manifest.runs["gru"].schedule
    result(rows, "rntn", 100.0, epochs=2.0, stopped="rule")
    result(rows, "gru", 110.0)
    assert verdict(manifest, rows).holds is True  # both to the end of one form
    manifest.runs["gru"] = replace(manifest.runs["gru"], schedule=replace(full, short=replace(full.short, epochs=6)))
    result(rows, "gru", 110.0, epochs=6.0)
    assert verdict(manifest, rows).said == "open: never trained alike"


def test_epochs_of_forms_of_unlike_lengths(manifest, rows, judged):
    full = manifest.runs["gru"].schedule
    manifest.runs["gru"] = replace(manifest.runs["gru"], schedule=replace(full, short=replace(full.short, epochs=6)))
    result(rows, "rntn", 1.0, **course(300.0, 200.0, 150.0))
    result(rows, "gru", 1.0, **course(310.0, 210.0, 160.0, 150.0, 140.0, 130.0))
    assert judged().said == "open: never trained alike"


def test_different_seeds_are_neither_mixed_nor_several(manifest, rows):
    result(rows, "rntn", 100.0)
    result(rows, "rntn", 115.0, seed=2)
    result(rows, "gru", 110.0, seed=3)
    found = verdict(manifest, rows)
    assert found.said == "holds, means of different seeds" and not found.mixed and found.seeds == 1


def test_an_epoch_that_lacks_a_hundredth_counts(rows, judged):
    result(rows, "rntn", 1.0, **course(300.0, 200.0, epochs=1.995, updates=200))
    result(rows, "gru", 1.0, **course(310.0, 210.0))
    assert judged().said == "holds, 1 of 1 seed"


def test_the_pair_of_which_both_are_trained_further(manifest, rows):
    for run, value in (("rntn", 100.0), ("gru", 110.0)):
        result(rows, run, value, "medium", epochs=9.0)
    result(rows, "rntn", 1.0, "paper", **falling(300.0, 100.0, 5))
    result(rows, "gru", 1.0, "paper", **falling(200.0, 100.0, 20))
    assert verdict(manifest, rows).better.kind == "medium"


def test_counts_have_no_validation(manifest, rows):
    result(rows, "counts", 141.0, "paper", epochs=1.0, of_paper=1.0)
    result(rows, "gru", 150.0, "paper", **falling(200.0, 100.0, 5))
    assert verdict(manifest, rows, 4).said == "open: not trained to the end, where it may be better"


def test_the_order_of_flags_does_not_matter(manifest, rows):
    full = manifest.runs["gru"].schedule
    train = tuple(word for flag in ("--lr-ratio 1.0", "--optimizer adagrad", "--lr 0.02") for word in flag.split())
    manifest.runs["gru"] = replace(manifest.runs["gru"], schedule=replace(full, train=train))
    for run, epochs in (("rntn", 3), ("gru", 5)):
        result(rows, run, 100.0, "paper", **falling(300.0 if run == "rntn" else 310.0, 100.0, epochs))
    assert verdict(manifest, rows).holds is not None
