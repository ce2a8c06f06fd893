"""tasks/*/rows.toml: what is printed in the papers, and flags that fairseq takes."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest
from fairseq import options
from fairseq.models import MODEL_REGISTRY

import rntn_plugins  # noqa: F401 (registers tasks, optimisers and architectures)
from rntn_plugins.models._presets import PRESETS, SENTENCE_PRESETS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import reproduction.manifest as manifests  # noqa: E402
from reproduction import nearness, report  # noqa: E402
from reproduction.claims import agrees  # noqa: E402

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

# Every number as the papers print it: paper, table and columns, then the rows; -: none
PRINTED = """
T16; Table I; test BPC
GRURNN: 1.39
LSTMRNN: 1.37
GRURNTN: 1.33
LSTMRNTN: 1.34

T16; Table II; test PPL
GRURNN: 97.78
LSTMRNN: 108.26
LSTMRNN, the others' rate: 108.26
GRURNTN: 87.38
LSTMRNTN: 96.97
LSTMRNTN, the LSTM's rate: 96.97
GRURNN, dropout on the soft-max input: 97.78
GRURNTN, dropout on the soft-max input: 87.38
GRURNN, streams: 97.78
GRURNTN, streams: 87.38
N-gram, as the paper quotes it: 141

S18; Table 1; PTB, test PPL; text8, test PPL
s-RNN, H 100: 146.7 236.4
r-RNTN f, H 100: 131.2 190.1
RNTN, H 100: 128.8 -
RNTN, H 100, wider start: 128.8 -
m-RNN, H 100: 164.2 895
m-RNN, H 100, wider start: 164.2 -
s-RNN, H 150: 133.7 207.9
r-RNTN f, H 150: 126.4 171.7
GRU, H 244: 92.2 -
GRU, H 650: 90.3 -
r-GRU f, H 244: 87.5 -
LSTM, H 254: 88.8 -
LSTM, H 650: 84.6 -
r-LSTM f, H 254: 87.1 -

E18; Table 5; LSTM; ELSTM-I; ELSTM-II
Basic RNN: 15.14 38.36 42.52
BRNN: 14.74 39.24 35.78
Seq2seq: 24.37 30.04 35.67
Seq2seq with Attention: 21.56 60.19 45.15
DBRNN Combined: 25.26 54.39 53.8
DBRNN Forward: 25.71 53.67 52.61
DBRNN Combined, matrices: 25.26 54.39 53.8
DBRNN Forward, matrices: 25.71 53.67 52.61

E18; Table 6; LSTM; GRU; ELSTM-I; ELSTM-II
Basic RNN: 44.12 47.49 54.52 56.02
BRNN: 32.46 27.83 54.14 47.72
Seq2seq: 27.67 29.94 40.85 48.73
Seq2seq with Attention: 31.47 53.7 66.72 51.24
DBRNN Combined: 56.89 51.32 60.3 58.28
DBRNN Forward: 58.3 53.17 59.81 58.05
DBRNN Combined, probabilities pooled: 56.89 51.32 60.3 58.28
DBRNN Forward, probabilities pooled: 58.3 53.17 59.81 58.05
DBRNN Combined, matrices: 56.89 51.32 60.3 58.28
DBRNN Forward, matrices: 58.3 53.17 59.81 58.05
BRNN, embeddings of variance 1: 32.46 - 54.14 -
Seq2seq with Attention, embeddings of variance 1: 31.47 - 66.72 -
DBRNN Combined, embeddings of variance 1: 56.89 - 60.3 -
Bi-attention: - 61.29 - -

E18; Table 3; LSTM; ELSTM-I; ELSTM-II
Basic RNN: 85.38 85.3 84.35
BRNN: 88.49 82.84 79.14
Seq2seq: 25.83 24.87 31.43
Seq2seq with Attention: 27.97 78.98 42.05
DBRNN Combined: 89.16 83.69 81.08
DBRNN Forward: 88.93 83.54 81.08
DBRNN Combined, matrices: 89.16 83.69 81.08
DBRNN Forward, matrices: 88.93 83.54 81.08
BRNN, embeddings of variance 1: 88.49 82.84 79.14
DBRNN Combined, embeddings of variance 1: 89.16 83.69 81.08

E18; Table 4; LSTM; GRU; ELSTM-I; ELSTM-II
Basic RNN: 86.98 87.09 85.57 85.56
BRNN: 88.94 89.26 83.48 82.57
Seq2seq: 24.73 33.79 34.09 52.96
Seq2seq with Attention: 34.1 73.65 80.9 54.53
DBRNN Combined: 89.67 89.74 84.25 84.41
DBRNN Forward: 89.46 89.53 84.05 84.44
DBRNN Combined, matrices: 89.67 89.74 84.25 84.41
DBRNN Forward, matrices: 89.46 89.53 84.05 84.44

H16; Table 6.2; 2nd order, test PPL; 3rd order, test PPL; 4th order, test PPL
HORNN: 111 108 109
Max HORNN: 110 109 108
FOFE HORNN: 103 101 100
Gated HORNN: 102 100 100

H16; Table 6.4; test PPL
RNN: 123
LSTM: 117
HORNN (3rd order): 108
Max HORNN (3rd order): 109
FOFE HORNN (3rd order): 101
Gated HORNN (3rd order): 100
KN 5-gram, as the paper quotes it: 141
RNN, blocks: 123
LSTM, blocks: 117
HORNN (3rd order), blocks: 108
Max HORNN (3rd order), blocks: 109
FOFE HORNN (3rd order), blocks: 101
Gated HORNN (3rd order), blocks: 100

H16; Table 6.3; time over the RNN's
RNN: 1
LSTM: 2.48
HORNN (3rd order): 1.51
Max HORNN (3rd order): 1.53
FOFE HORNN (3rd order): 1.5
Gated HORNN (3rd order): 2.81

H16; Table 6.5; test PPL
RNN: 184
LSTM: 156
HORNN (3rd order): 172
Max HORNN (3rd order): 163
FOFE HORNN (3rd order): 154
Gated HORNN (3rd order): 144
"""
#: numbers of each table that are of a model of ours; T16's LSTMs of words with two rates each, its GRUs by two
#: readings of the state and two places of dropout, S18's m-RNN and RNTN by two starts, the DBRNN's by two readings of
#: how it pools, in Table 6 by three; in Tables 3 and 6 some by two starts of the embeddings
SIZES = {
    ("T16", "Table I"): 4, ("T16", "Table II"): 10 + 1, ("S18", "Table 1"): 14 + 6, ("H16", "Table 6.2"): 4 * 3,
    ("H16", "Table 6.3"): 6, ("H16", "Table 6.4"): 2 * 6 + 1, ("H16", "Table 6.5"): 6, ("E18", "Table 3"): 10 * 3,
    ("E18", "Table 4"): 8 * 4, ("E18", "Table 5"): 8 * 3, ("E18", "Table 6"): 10 * 4 + 1 + 6,
}  # fmt: skip


def test_the_committed_report_is_that_of_the_committed_results():
    assert report.page(MANIFEST, report.Results(), ROOT) == (ROOT / "RESULTS.md").read_text(encoding="utf-8")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_tables_are_complete():
    cells = [(row.paper, row.table, row.row, row.column) for row in MANIFEST.rows]
    assert len(set(cells)) == len(cells)
    tables = [cell[:2] for cell in cells]
    assert {table: tables.count(table) for table in tables} == SIZES


def printed_numbers():
    for table in PRINTED.strip().split("\n\n"):
        (paper, name, *columns), *rows = (line.split("; ") for line in table.splitlines())
        for (row,) in rows:
            model, _, numbers = row.rpartition(": ")
            for column, number in zip(columns, numbers.split(), strict=True):
                if number != "-":
                    yield (paper, name, model, column), float(number)


def test_published_numbers():
    published = {(row.paper, row.table, row.row, row.column): row.published for row in MANIFEST.rows}
    assert {cell: number for cell, number in published.items() if number is not None} == dict(printed_numbers())
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
    if None not in numbers and "epochs" not in claim:  # no paper prints numbers of its curves
        if "within" in claim:
            assert agrees(claim, *numbers, lower)
        else:
            assert numbers[0] < numbers[1] if lower else numbers[0] > numbers[1]


def test_claims_are_made_once():
    made = [(claim["better"], claim["evaluate"], claim["worse"], "within" in claim, claim.get("epochs"))
            for claim in MANIFEST.claims]  # fmt: skip
    assert len(set(made)) == len(made) == len({claim["text"] for claim in MANIFEST.claims})


@pytest.mark.parametrize("task", ["pos", "dp"])
def test_what_tables_say_of_the_basic_rnn_is_claimed_either_way(task):
    """E18's tables have it now behind, now ahead of the BRNN and the DBRNN: one claim a pair, not of one way alone."""
    pairs = {(run.id, run.id.replace("-basic-", f"-{macro}-")) for run in MANIFEST.runs.values()
             if run.id.startswith(f"e18-{task}-basic-") for macro in ("brnn", "dbrnn")}  # fmt: skip
    claimed = [(claim["better"], claim["worse"]) for claim in MANIFEST.claims if "epochs" not in claim]
    assert len(pairs) == 14 and all(claimed.count(pair) + claimed.count(pair[::-1]) == 1 for pair in pairs)


def test_every_paper_has_headlines():
    """Whole groups of them: what a paper says of several cells is not shown of one alone."""
    chosen = [claim for claim in MANIFEST.claims if claim.get("headline")]
    assert {claim["paper"] for claim in chosen} == {"T16", "S18", "E18", "H16"} and len(chosen) <= 51
    assert all("basic RNN" in claim["text"] for claim in chosen if "aside" in claim)  # some in the tables alone
    groups = [
        r"DP, xh: (basic RNN > BRNN|DBRNN > basic RNN), \S+",
        r"DP, xh: DBRNN > (BRNN|seq2seq), \S+", r"DP, xh: ELSTM-I+ > LSTM, (seq2seq|DBRNN).*",
        r"POS, xh: DBRNN > BRNN, \S+", r"(\w+ )?HORNN < L?(RNN|STM)", r"(words|characters): (\w+)NTN < \2NN",
    ]  # fmt: skip
    for form in groups:
        said = [claim for claim in MANIFEST.claims if "aside" not in claim or "basic RNN" in claim["text"]]
        group = [claim for claim in said if re.fullmatch(form, claim["text"])]
        assert len(group) >= 4 and all(claim.get("headline") for claim in group), form
    assert {run.id for run in MANIFEST.select(["headlines"])} > {"t16-word-gru", "h16-lstm", "s18-time-s-rnn-100"}


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
    asked += [claim[side] for claim in MANIFEST.claims for side in ("better", "worse")]
    assert set(asked) == set(MANIFEST.runs)
    trainings = [(run.arch, run.schedule, run.flags) for run in MANIFEST.runs.values()]
    assert len(set(trainings)) == len(trainings)


def test_a_papers_runs_are_those_of_its_claims_too():
    chosen = {run.id for run in MANIFEST.select(["S18"])}
    assert {run.id for run in TIMED if run.schedule.name == "time-s18"} < chosen and "t16-word-gru" not in chosen
    assert not {run.id for run in MANIFEST.select(["S18:Table 1"])} & {run.id for run in TIMED}


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
                read = getattr(args, name[2:].replace("-", "_"))
                assert str(read[0] if isinstance(read, list) else read) == value  # of --lr there may be several


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

    def rates(recipe, name, kind="short"):
        form = MANIFEST.schedules[recipe, name].of(kind)
        args = parse("train", form, "--arch", "elman_lm", *form.train)
        schedule = FixedLRSchedule.__new__(FixedLRSchedule)
        schedule.cfg = args
        return [schedule.get_next_lr(epoch) for epoch in range(1, form.epochs + 1)]

    assert rates("ptb_word_lm", "t16") == [0.1, 0.05]
    assert rates("ptb_word_lm", "t16", "medium") == [0.1] * 5 + [0.05, 0.025, 0.0125, 0.00625, 0.003125]
    assert rates("ptb_word_lm", "s18-simple") == [0.1, 0.1, 0.05]
    assert rates("ptb_word_lm", "s18-gated") == [1, 1, 1, 1, 0.5, 0.25]
    assert rates("ptb_word_lm", "h16") == [0.1, 0.1, 0.05, 0.025]
    assert rates("ptb_word_lm", "h16", "medium") == [0.1] * 5 + [0.05, 0.025, 0.0125, 0.00625]


def test_sentences_have_their_own_length_in_shorter_forms():
    epoch = 628
    expected = {
        "paper": (140_000, 100),
        "long": (24 * epoch, None),
        "medium": (12 * epoch, None),
        "short": (3 * epoch, None),
    }
    for recipe, task, kinds in (
        ("ud_pos_tagging", "conllu_tagging", ["paper", "medium", "short"]),
        ("ud_dependency_parsing", "conllu_parsing", ["paper", "long", "medium", "short"]),
    ):
        schedule = MANIFEST.schedules[recipe, "e18"]
        assert schedule.task == task and schedule.kinds == kinds
        for kind in kinds:
            form = schedule.of(kind)
            length = parse("train", form, "--arch", "brnn_lstm", *form.train).fixed_length
            assert (form.updates, length) == expected[kind]


def test_timed_runs_name_their_reference():
    """The architecture that times are divided by, and the benchmark's sizes."""
    schedules = {  # H16 §6.1.4: 20 subsequences of 30; S18 without mini-batches, in pieces of 20 words
        "time": ["elman_lm_soltani_ptb", *"--batch 20 --steps 30".split()],
        "time-s18": ["elman_lm_salle_ptb", *"--batch 1 --steps 20 --sample-break-mode eos".split()],
    }
    assert [run.schedule.name for run in TIMED] == ["time-s18"] * 3 + ["time"] * 6
    for run in TIMED:
        assert list(run.schedule.train) == schedules[run.schedule.name]
        assert not run.flags and run.arch in MODEL_REGISTRY


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
            mixed = {"seq2seq", "basic"} <= {part for run in figure["runs"] for part in run.split("-")}
            assert ("note" in figure) == mixed  # what the losses of decoders and labellers are of is told
            assert set(figure) - {"tables", "note"} == {
                "id",
                "paper",
                "figure",
                "title",
                "kind",
                "subset",
                "metric",
                "runs",
            }
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


def test_what_is_far_from_the_paper_says_why():
    """A whole schedule that misses the paper's number leads to a heading of its recipe."""
    far = [line for line in nearness.lines(MANIFEST, report.Results()) if not line.near]
    assert len(far) > 10
    for line in far:
        places = {row.why for row in line.rows}
        assert len(places) == 1 and all(places), line.run.id
        file, _, heading = places.pop().partition("#")
        text = (ROOT / "tasks" / line.run.schedule.recipe / file).read_text(encoding="utf-8")
        assert heading in map(anchor, re.findall(r"^#+ (.*)$", text, re.MULTILINE)), line.run.id


def anchor(heading):
    """How GitHub names a heading in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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
