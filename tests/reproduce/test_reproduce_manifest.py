"""rows.toml: what is refused, and with what message."""

import textwrap
import tomllib

import pytest
import reproduction.manifest
from reproduction.manifest import Refused, merged
from tiny_rows import ROWS

SWEEP = 'kind = "sweep"\nseries = [{{label = "f", points = [{}]}}]'


def test_flags_replace_those_of_the_same_name():
    flags = ("--lr", "1", "--clip-norm", "5", "--sentence-avg", "--adam-betas", "(0.9,0.9)")
    assert merged(flags, ("--lr", "0.5", "0.1")) == (*flags[2:], "--lr", "0.5", "0.1")
    assert merged(flags, ("--lr", "-1", "--sentence-avg")) == (*flags[2:4], *flags[5:], "--lr", "-1", "--sentence-avg")


@pytest.mark.parametrize("change, message", [
    (("epochs = 8", ""), "needs one of epochs and updates"),
    (('metric = "ppl"', 'metric = "bleu"'), "metric 'bleu' is none of"),
    (('id = "two"', 'id = "one"'), "two runs 'one'"),
    (('run = "one"', 'run = "three"'), "unknown run 'three'"),
    (('worse = "one"', 'worse = "three"'), "unknown run 'three'"),
    (('runs = ["two"]', 'runs = ["three"]'), "unknown run 'three'"),
    (('kind = "curves"', 'kind = "pie"'), "neither 'curves' nor 'sweep'"),
    (('published = 5.5', 'publisht = 5.5'), "unknown key 'publisht'"),
    (('schedule = "sgd"', 'schedule = "adam"'), "unknown schedule 'adam'"),
    (('data = "tiny"', ""), "'data' is missing"),
    (('data = "tiny"', "data = "), "rows.toml: "),
    (("epochs = 8", "epochs = 0"), "epochs = 0 must be a number above 0"),
    (("epochs = 2", 'epochs = "2"'), "epochs = '2' must be"),
    (("published = 5.5", 'published = "5.5"'), "published = '5.5' must be"),
    (("seeds = [1, 2]", 'seeds = ["a"]'), "must be whole numbers"),
    (("seeds = [1, 2]", "seeds = []"), "must be whole numbers"),
    (("seeds = [1, 2]", "seeds = [4294967296]"), "must be whole numbers from 0 to 4294967295"),
    (("published = 5.5", f"published = {'9' * 400}"), "published = 9+ must be a number above 0, and less than"),
    (("epochs = 8", f"epochs = {'9' * 400}"), "epochs = 9+ must be a number above 0"),
    (('runs = ["two"]', f"runs = {'[' * 5000}"), "nested too deeply"),
    (('kind = "curves"\nruns = ["two"]', 'kind = "sweep"\nseries = []'), "figure 'f' has no series"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format("")), "must be .x, run. each, with a number x"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format('["a", "two"]')), "with a number x"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format('[nan, "two"]')), "with a number x"),
    (('kind = "curves"\nruns = ["two"]', SWEEP.format(f'[{"9" * 400}, "two"]')), "with a number x"),
    (("[[claims]]", ROWS[ROWS.index("[[figures]]") : ROWS.index("[[claims]]")] + "[[claims]]"), "figure f: there 2 t"),
    (("[[figures]]", ROWS[ROWS.index("[[rows]]") : ROWS.index("[[figures]]")] + "[[figures]]"),
     "row P, Table 1, Elman, test PPL, one: there 2 times"),
    (("[[claims]]", 2 * ROWS[ROWS.index("[[claims]]") :] + "[[claims]]"), "claim P, GRU < Elman, two, one: there"),
    (('text = "GRU < Elman"', 'text = "GRU > Elman"'), "the better number, which of 'ppl' is the lower"),
    (("seeds = [1, 2]", "seeds = 1"), "must be whole numbers"),
    (('flags = "--hidden-size 6"', 'flags = ["--lr", "1"]'), "flags = .* must be some text"),
    (('schedule = "sgd"', "schedule = 3"), "schedule = 3 must be some text"),
    (('run = "one"', 'run = ["one"]'), "run = .* must be some text"),
    (("epochs = 8", "updates = 4.5"), "updates = 4.5 of schedule .* must be a whole number"),
    (('data = "tiny"', "data = 3"), "data = 3 must be some text"),
    (('command = "eval-lm"', 'command = "rm"'), "command 'rm' is none of eval-lm, generate"),
    (('runs = ["two"]', 'runs = "two"'), "must be a list of names"),
    (('id = "f"', 'id = "../f"'), "'../f' is no name"),
    (('runs = ["two"]', ""), "'runs' is missing"),
    (('runs = ["two"]', 'runs = ["two"]\nsubsets = "train"'), "unknown key 'subsets'"),
    (('runs = ["two"]', 'runs = ["two"]\ntables = {"Table 1" = 5}'), "must be some text"),
    (('better = "two"', ""), "'better' is missing"),
    (('where = "Table 1"', ""), "'where' is missing"),
    (('where = "Table 1"', "where = 1"), "where = 1 of a claim must be some text"),
    (('better = "two"', 'better = ["two"]'), "better = .* must be some text"),
    (('text = "GRU < Elman"', 'text = ""'), "text = '' of a claim must be some text"),
    (('better = "two"', 'better = "one"'), "compares 'one' with itself"),
    (('text = "GRU < Elman"', 'text = "GRU near Elman"\nwithin = 2'), "within = 2 of claim .* must be a share"),
    (('text = "GRU < Elman"', 'text = "GRU near Elman"\nwithin = inf'), "within = inf"),
    (('better = "two"', 'better = "two"\nwithin = 0.02'), "a sign without = leaves nothing"),
    (('better = "two"', 'better = "two"\nevaluate = 5'), "evaluate = 5 of a claim must be some text"),
    (('better = "two"', 'better = "two"\naside = " "'), "aside = ' ' of a claim must be some text"),
    (('better = "two"', 'better = "two"\nat_end = "yes"'), "at_end = 'yes' of claim .* must be true or false"),
    (('better = "two"', 'better = "two"\nheadline = 1'), "headline = 1 of claim .* must be true or false"),
    (('better = "two"', 'better = "two"\nepochs = 2'), "epochs of claim .* must be first or all"),
    (('better = "two"', 'better = "two"\nepochs = "all"\nat_end = true'), "without evaluate and at_end"),
    (('better = "two"', 'better = "two"\nevaluate = "--beam 9"'), "no row has 'two' scored with --beam 9"),
])  # fmt: skip
def test_bad_manifests(tmp_path, change, message):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "rows.toml").write_text(ROWS.replace(*change))
    with pytest.raises(Refused, match=message):
        reproduction.manifest.load(tmp_path)


def test_no_manifest(tmp_path):
    with pytest.raises(Refused, match="no rows.toml"):
        reproduction.manifest.load(tmp_path)


def test_the_format_that_is_described_is_one():
    """The example of the module's docstring is TOML, with all keys that a manifest may have."""
    example = reproduction.manifest.__doc__.partition("::\n")[2].partition("\nNames of runs")[0]
    found = tomllib.loads(textwrap.dedent(example))
    assert found["rows"][0]["published"] == 97.78 and found["figures"][0]["kind"] == "curves"
    assert {"tokens", "train_tokens"} <= found.keys() and found["claims"][0]["headline"] is True
