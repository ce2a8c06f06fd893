"""tasks/*/rows.toml: what is printed in the papers, and flags that fairseq takes."""

import sys
from functools import cache
from pathlib import Path

import pytest
from fairseq import options
from fairseq.models import MODEL_REGISTRY

import rntn_plugins  # noqa: F401 (registers tasks, optimisers and architectures)
from rntn_plugins.models._presets import PRESETS, SENTENCE_PRESETS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import reproduce_manifest as manifests  # noqa: E402
from reproduce_claims import agrees  # noqa: E402

MANIFEST = manifests.load()
TIMED = [run for run in MANIFEST.runs.values() if run.schedule.metric == "seconds"]
TRAINED = [run for run in MANIFEST.runs.values() if run not in TIMED]
PARSERS = {
    "train": options.get_training_parser,
    "eval-lm": options.get_eval_lm_parser,
    "generate": options.get_generation_parser,
}
#: what the runner adds to the flags of training
ADDED = (
    "--user-dir", "--task", "--arch", "--cpu", "--num-workers", "--seed", "--save-dir", "--max-epoch", "--max-update"
)  # fmt: skip

# Typed from the papers, not from the files: (paper, table, row, column): number
PRINTED = {
    ("T16", "Table I", "GRURNTN", "test BPC"): 1.33,
    ("T16", "Table I", "LSTMRNN", "test BPC"): 1.37,
    ("T16", "Table II", "GRURNN", "test PPL"): 97.78,
    ("T16", "Table II", "LSTMRNTN", "test PPL"): 96.97,
    ("S18", "Table 1", "s-RNN, H 100", "PTB, test PPL"): 146.7,
    ("S18", "Table 1", "r-RNTN f, H 150", "PTB, test PPL"): 126.4,
    ("S18", "Table 1", "r-LSTM f, H 254", "PTB, test PPL"): 87.1,
    ("S18", "Table 1", "GRU, H 650", "PTB, test PPL"): 90.3,
    ("S18", "Table 1", "m-RNN, H 100", "text8, test PPL"): 895.0,
    ("S18", "Table 1", "r-RNTN f, H 100", "text8, test PPL"): 190.1,
    ("S18", "Table 1", "RNTN, H 100", "text8, test PPL"): None,
    ("H16", "Table 6.2", "Max HORNN", "4th order, test PPL"): 108,
    ("H16", "Table 6.2", "FOFE HORNN", "2nd order, test PPL"): 103,
    ("H16", "Table 6.4", "LSTM", "test PPL"): 117,
    ("H16", "Table 6.4", "Gated HORNN (3rd order)", "test PPL"): 100,
    ("H16", "Table 6.5", "RNN", "test PPL"): 184,
    ("H16", "Table 6.5", "Max HORNN (3rd order)", "test PPL"): 163,
    ("E18", "Table 3", "BRNN", "ELSTM-I"): 82.84,
    ("E18", "Table 3", "DBRNN Forward", "LSTM"): 88.93,
    ("E18", "Table 4", "Seq2seq with Attention", "GRU"): 73.65,
    ("E18", "Table 4", "DBRNN Forward", "ELSTM-II"): 84.44,
    ("E18", "Table 5", "Basic RNN", "LSTM"): 15.14,
    ("E18", "Table 5", "DBRNN Combined", "ELSTM-II"): 53.80,
    ("E18", "Table 6", "BRNN", "GRU"): 27.83,
    ("E18", "Table 6", "Seq2seq", "ELSTM-II"): 48.73,
    ("E18", "Table 6", "Bi-attention", "GRU"): 61.29,
}
#: numbers of each table that are of a model of ours; the DBRNN's twice in Table 6, by two readings of how it pools
SIZES = {
    ("T16", "Table I"): 4, ("T16", "Table II"): 4 + 1, ("S18", "Table 1"): 12 + 6, ("H16", "Table 6.2"): 4 * 3,
    ("H16", "Table 6.3"): 6, ("H16", "Table 6.4"): 6 + 1, ("H16", "Table 6.5"): 6, ("E18", "Table 3"): 6 * 3,
    ("E18", "Table 4"): 6 * 4, ("E18", "Table 5"): 6 * 3, ("E18", "Table 6"): 6 * 4 + 1 + 8,
}  # fmt: skip


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_tables_are_complete():
    cells = [(row.paper, row.table, row.row, row.column) for row in MANIFEST.rows]
    assert len(set(cells)) == len(cells)
    tables = [cell[:2] for cell in cells]
    assert {table: tables.count(table) for table in tables} == SIZES


def test_published_numbers():
    published = {(row.paper, row.table, row.row, row.column): row.published for row in MANIFEST.rows}
    assert {cell: published[cell] for cell in PRINTED} == PRINTED
    assert [cell for cell, number in published.items() if number is None] == [
        ("S18", "Table 1", "RNTN, H 100", "text8, test PPL")
    ]


def test_times_are_ratios_to_the_rnns():
    """H16 Table 6.3, to three digits."""
    ratios = {row.row.removesuffix(" (3rd order)"): row.published for row in MANIFEST.rows if row.table == "Table 6.3"}
    seconds = {"RNN": 80, "LSTM": 198, "HORNN": 121, "Max HORNN": 122, "FOFE HORNN": 120, "Gated HORNN": 225}
    assert set(ratios) == set(seconds)
    for name, ratio in ratios.items():
        assert abs(ratio - seconds[name] / 80) <= 0.005 + 1e-9


@cache
def printed(run, evaluate=()):
    """The number of a run's output, or None."""
    numbers = {row.published for row in MANIFEST.rows if (row.run, row.evaluate) == (run, evaluate)}
    assert len(numbers) <= 1, run  # the same training in two tables
    return numbers.pop() if numbers else None


@pytest.mark.parametrize("claim", MANIFEST.claims, ids=lambda claim: claim["text"])
def test_claims_hold_for_the_papers_own_numbers(claim):
    better, worse = MANIFEST.runs[claim["better"]], MANIFEST.runs[claim["worse"]]
    assert better.schedule == worse.schedule or worse.schedule.script, "trained alike"
    numbers = printed(better.id, claim["evaluate"]), printed(worse.id)
    lower = manifests.METRICS[better.schedule.metric][1]
    signs = (" < ", " <= ") if lower else (" > ", " >= ")
    if "within" in claim:
        assert f"within {100 * claim['within']:g} %" in claim["text"]
    else:
        assert any(sign in claim["text"] for sign in signs)
    if None not in numbers:
        if "within" in claim:
            assert agrees(claim, *numbers, lower)
        else:
            assert numbers[0] < numbers[1] if lower else numbers[0] > numbers[1]


def test_claims_are_made_once():
    made = [(claim["better"], claim["evaluate"], claim["worse"], "within" in claim) for claim in MANIFEST.claims]
    assert len(set(made)) == len(made) == len({claim["text"] for claim in MANIFEST.claims})


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_every_preset_is_run():
    """Bi-attention stands in E18's Table 6 only, with one cell; the Kneser-Ney model in two tables as a yardstick."""
    in_tables = {name for name, (macro, *_) in SENTENCE_PRESETS.items() if macro != "bi_attention"}
    assert {run.arch for run in MANIFEST.runs.values()} == {
        *PRESETS, *in_tables, "bi_attention_gru_su_ud_dp", "kneser_ney_lm"
    }  # fmt: skip


def test_every_run_is_for_something():
    """And no training is there twice."""
    asked = [row.run for row in MANIFEST.rows] + [run for each in MANIFEST.figures for run in manifests.runs_of(each)]
    assert set(asked) == set(MANIFEST.runs)
    trainings = [(run.arch, run.schedule, run.flags) for run in MANIFEST.runs.values()]
    assert len(set(trainings)) == len(trainings)


def test_schedules():
    recipes_without = set()
    for schedule in MANIFEST.schedules.values():
        forms = [schedule.of(kind) for kind in schedule.kinds]
        assert not set(ADDED) & {part for form in forms for part in form.train}
        if forms == [schedule]:
            recipes_without.add(schedule.recipe)
        elif schedule.metric != "seconds" and not schedule.script:
            assert all(form.because.startswith("shortened: ") for form in forms[1:])
            lengths = [(form.epochs or 0, form.updates or 0) for form in forms]
            assert lengths == sorted(set(lengths), reverse=True)
        assert schedule.because or schedule.recipe.startswith("ud_")  # E18 prints the number of updates
    assert recipes_without == {"text8_word_lm"}


def parse(command, schedule, *flags):
    """fairseq's reading of the flags; argparse ends the test if there is one that it does not know."""
    given = ["folder", "--task", schedule.task, *flags]
    return options.parse_args_and_arch(PARSERS[command](), given)


@pytest.mark.parametrize("kind", manifests.KINDS)
def test_fairseq_takes_the_flags_of_training(kind):
    for run in TRAINED:
        if kind in run.schedule.kinds:
            schedule = run.schedule.of(kind)
            args = parse("train", schedule, "--arch", run.arch, *manifests.merged(schedule.train, run.flags))
            assert args.arch == run.arch
            for name, value in zip(run.flags[::2], run.flags[1::2]):
                assert str(getattr(args, name[2:].replace("-", "_"))) == value


def test_fairseq_takes_the_flags_of_scoring():
    asked = {(run.schedule, more) for run in TRAINED for more in MANIFEST.evaluations(run.id)}
    for schedule, more in asked:
        args = parse(schedule.command, schedule, "--path", "model", *manifests.merged(schedule.evaluate, more))
        assert args.path == "model"
    outputs = {more for _, more in asked if more}
    assert outputs == {("--dbrnn-output", "forward")}
    assert all("dbrnn" in row.run for row in MANIFEST.rows if row.evaluate)


def test_shortened_rates():
    """fairseq's --force-anneal N: the N-th epoch is the first with a lower rate."""
    from fairseq.optim.lr_scheduler.fixed_schedule import FixedLRSchedule

    def rates(recipe, name):
        short = MANIFEST.schedules[recipe, name].short
        args = parse("train", short, "--arch", "elman_lm", *short.train)
        schedule = FixedLRSchedule.__new__(FixedLRSchedule)
        schedule.cfg = args
        return [schedule.get_next_lr(epoch) for epoch in range(1, short.epochs + 1)]

    assert rates("ptb_word_lm", "t16") == [0.02, 0.01]
    assert rates("ptb_word_lm", "s18-simple") == [0.1, 0.1, 0.05]
    assert rates("ptb_word_lm", "s18-gated") == [1, 1, 1, 1, 0.5, 0.25]
    assert rates("ptb_word_lm", "h16") == [0.1, 0.1, 0.05, 0.025]


def test_sentences_have_their_own_length_in_shorter_forms():
    epoch = 628
    expected = {"paper": (140_000, 100), "medium": (12 * epoch, None), "short": (3 * epoch, None)}
    for recipe, task, kinds in (
        ("ud_pos_tagging", "conllu_tagging", ["paper", "short"]),
        ("ud_dependency_parsing", "conllu_parsing", ["paper", "medium", "short"]),
    ):
        schedule = MANIFEST.schedules[recipe, "e18"]
        assert schedule.task == task and schedule.kinds == kinds
        for kind in kinds:
            form = schedule.of(kind)
            length = parse("train", form, "--arch", "brnn_lstm", *form.train).fixed_length
            assert (form.updates, length) == expected[kind]


def test_timed_runs_name_their_reference():
    """Table 6.3's schedule: the architecture that times are divided by, and the benchmark's sizes."""
    assert len(TIMED) == 6
    for run in TIMED:
        reference, *sizes = run.schedule.train
        assert reference == "elman_lm_soltani_ptb" and not run.flags and run.arch in MODEL_REGISTRY
        assert sizes == "--batch 20 --steps 30".split()  # H16 §6.1.4: 20 subsequences of 30


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_figures():
    by_id = {figure["id"]: figure for figure in MANIFEST.figures}
    assert len(by_id) == len(MANIFEST.figures)
    drawn = {(figure["paper"], figure["figure"]) for figure in MANIFEST.figures}
    assert drawn == {
        ("T16", "Figure 8"), ("T16", "Figure 9"), ("S18", "Figure 1"), ("H16", "Figure 6.1"),
        *(("E18", f"Figure {number}") for number in range(4, 13)),
    }  # fmt: skip
    for figure in MANIFEST.figures:
        if figure["kind"] == "curves":
            assert set(figure) == {"id", "paper", "figure", "title", "kind", "subset", "metric", "runs"}
            of_e18 = figure["paper"] == "E18"
            metric = "bpc" if figure["id"] == "t16-figure-8" else "ppl"
            assert (figure["subset"], figure["metric"]) == ("train" if of_e18 else "valid", metric)
        else:
            assert set(figure) == {"id", "paper", "figure", "title", "kind", "x", "series"}
            for series in figure["series"]:
                assert set(series) == {"label", "points"}
                assert series["points"] == sorted(series["points"])


def test_sweeps():
    """Each point's run has the value it is drawn at."""
    by_id = {figure["id"]: figure for figure in MANIFEST.figures}
    for series in by_id["s18-figure-1"]["series"]:
        for count, name in series["points"]:
            run = MANIFEST.runs[name]
            cell, settings = PRESETS[run.arch]
            given = dict(zip(run.flags[::2], run.flags[1::2]))
            if count == 1:
                simple = series["label"].startswith("r-RNTN")
                assert cell == ("elman" if simple else series["label"].removeprefix("r-").removesuffix(" f").lower())
            elif count == 10_000:
                assert cell == "rntn"
            else:
                assert int(given.get("--num-matrices", settings["num_matrices"])) == count
                assert given.get("--index-map", "rank") == ("mod" if series["label"] == "r-RNTN f_mod" else "rank")
    (series,) = by_id["h16-figure-6.1"]["series"]
    assert [alpha for alpha, _ in series["points"]] == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    for alpha, name in series["points"]:
        assert MANIFEST.runs[name].flags in (("--forgetting-factor", str(alpha)), () if alpha == 0.6 else None)


# ---- the format's shorter forms --------------------------------------------------------------------------------------


def test_a_form_is_a_table(tmp_path):
    file = tmp_path / "recipe" / "rows.toml"
    file.parent.mkdir()
    head = 'data = "d"\ntask = "t"\ncommand = "eval-lm"\n[schedules.one]\ntrain = ""\nmetric = "ppl"\nepochs = 5\n'
    for line, message in (
        ("medium = 3", "medium = 3 of schedule 'one' must be a table"),
        ('paper = "T16"', "unknown key 'paper'"),
        ("[schedules.one.paper]\nepochs = 1", "unknown key 'paper'"),
    ):
        file.write_text(f"{head}{line}\n")
        with pytest.raises(manifests.Refused, match=message):
            manifests.load(tmp_path)


def test_shorter_forms(tmp_path):
    """Of rows.toml: they go without flags of the schedule, and have others; what a schedule has not is said."""
    text = """
    data = "ptb"
    task = "rntn_language_modeling"
    command = "eval-lm"
    [schedules.one]
    train = "--lr 1 --lr-ratio 1.0 --sentence-avg --stop-after 0"
    metric = "ppl"
    epochs = 5
    [schedules.one.short]
    drop = "--lr-ratio --sentence-avg"
    train = "--lr 2"
    epochs = 1
    [schedules.one.medium]
    updates = 30
    [schedules.two]
    train = "--lr 1"
    metric = "ppl"
    epochs = 5
    [schedules.two.medium]
    epochs = 2
    [[runs]]
    id = "run"
    arch = "elman_lm"
    schedule = "one"
    [[runs]]
    id = "other"
    arch = "elman_lm"
    schedule = "two"
    """
    file = tmp_path / "recipe" / "rows.toml"
    file.parent.mkdir()
    file.write_text(text)
    runs = manifests.load(tmp_path).runs
    schedule = runs["run"].schedule
    assert schedule.train == ("--lr", "1", "--lr-ratio", "1.0", "--sentence-avg", "--stop-after", "0")
    assert schedule.of("short").train == ("--stop-after", "0", "--lr", "2")
    medium = schedule.of("medium")
    assert medium.train == schedule.train and (medium.epochs, medium.updates) == (None, 30)
    assert schedule.kinds == ["paper", "medium", "short"] and schedule.of("paper") is schedule
    assert runs["other"].schedule.of("medium").epochs == 2
    with pytest.raises(manifests.Refused, match="'two' has no short form: --schedule paper or --schedule medium$"):
        runs["other"].schedule.of("short")
    for change in ("", "epochs = 1\nupdates = 30"):
        file.write_text(text.replace("updates = 30", change))
        with pytest.raises(manifests.Refused, match="the medium form of schedule 'one' needs one of epochs and upd"):
            manifests.load(tmp_path)
    file.write_text(text.replace('drop = "--lr-ratio', 'drop = "--ratio'))
    with pytest.raises(manifests.Refused, match="drops --ratio, which the schedule has not"):
        manifests.load(tmp_path)
