"""A small manifest, results for it, and what is read off the report."""

import json

import reproduction.manifest as manifests
from reproduction import figures, report
from reproduction.claims import judge

MANIFEST = """
data = "ptb"
task = "rntn_language_modeling"
command = "eval-lm"

[schedules.t16]
train = "--optimizer adagrad --lr 0.02 --lr-ratio 1.0"
evaluate = "--sample-break-mode eos"
metric = "ppl"
epochs = 30
because = "30 is ours"
[schedules.t16.short]
drop = "--lr-ratio"
train = "--lr 0.05"
epochs = 3
because = "a tenth"
[schedules.t16.medium]
epochs = 9
because = "three tenths"

[schedules.time]
train = "reference"
metric = "seconds"
updates = 40

[schedules.unused]
train = "--lr 7"
metric = "bpc"
epochs = 2

[schedules.counts]
script = "scripts/kneser_ney.py"
train = "--order 5"
metric = "ppl"
epochs = 1
[schedules.counts.short]
epochs = 1

RUNS
[[runs]]
id = "counts"
arch = "kneser_ney_lm"
schedule = "counts"
[[runs]]
id = "time-lstm"
arch = "lstm_lm"
schedule = "time"
[[runs]]
id = "chars"
arch = "lstm_lm"
schedule = "unused"

[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNN"
column = "test PPL"
published = 97.78
run = "gru"
[[rows]]
paper = "T16"
table = "Table II"
row = "GRURNTN"
column = "test PPL"
published = 87.4
run = "rntn"
[[rows]]
paper = "T16"
table = "Table II"
row = "LSTMRNN"
column = "test PPL"
published = 108.26
run = "lstm"
evaluate = "--beam 1"
note = "by|beam"
[[rows]]
paper = "H16"
table = "Table 6.2"
row = "GRU"
column = "PPL, order 2"
published = 123
run = "gru"
[[rows]]
paper = "H16"
table = "Table 6.2"
row = "GRU"
column = "PPL, order 3"
run = "other"
[[rows]]
paper = "H16"
table = "Table 6.3"
row = "LSTM"
column = "time over the RNN's"
published = 2.48
run = "time-lstm"

[[figures]]
id = "t16-figure-9"
paper = "T16"
figure = "Figure 9"
title = "T16 Figure 9: validation"
kind = "curves"
subset = "valid"
metric = "ppl"
runs = ["gru", "rntn", "lstm", "plain"]
[[figures]]
id = "t16-figure-10"
paper = "T16"
figure = "Figure 10"
title = "training"
kind = "curves"
subset = "train"
runs = ["gru"]
[[figures]]
id = "h16-figure-6.1"
paper = "H16"
figure = "Figure 6.1"
title = "by order"
kind = "sweep"
x = "order"
series = [
    { label = "f", points = [[1, "gru"], [100, "rntn"]] },
    { label = "g", points = [[1, "plain"], [10, "other"], [100, "lstm"]] },
]
[[figures]]
id = "never"
paper = "H16"
figure = "Figure 7"
title = "characters"
kind = "curves"
runs = ["chars"]

[[claims]]
paper = "T16"
where = "Table 1"
text = "GRURNTN < GRU"
better = "rntn"
worse = "gru"
[[claims]]
paper = "T16"
where = "Table 1"
text = "LSTM <= GRU"
better = "lstm"
worse = "gru"
[[claims]]
paper = "T16"
where = "§V"
text = "LSTM near GRU: within 3 %"
better = "lstm"
worse = "gru"
evaluate = "--beam 1"
within = 0.03
[[claims]]
paper = "T16"
where = "§V"
text = "no gain: LSTM <= GRU, within 3 %"
better = "lstm"
worse = "gru"
within = 0.03
[[claims]]
paper = "T16"
where = "§V"
text = "GRU < N-gram"
better = "gru"
worse = "counts"
"""
NAMES = ("gru", "rntn", "lstm", "plain", "other")
RUNS = "".join(f'[[runs]]\nid = "{name}"\narch = "{name}_lm"\nschedule = "t16"\n' for name in NAMES)


def with_more(folder, more, given=None):
    """The manifest above (or one that is *given*), with more entries, from a file below *folder*."""
    file = folder / "tasks" / "ptb_word_lm" / "rows.toml"
    file.parent.mkdir(parents=True)
    file.write_text((given or MANIFEST.replace("RUNS", RUNS)) + more, encoding="utf-8")
    return manifests.load(file.parents[1])


def result(rows, run, value, kind="short", seed=1, epochs=3.0, **more):
    """A result's file, complete unless it says otherwise."""
    curve = [
        {"epoch": epoch, "updates": 100 * epoch, "train": {"ppl": 400 / epoch}, "valid": {"ppl": value + 90 / epoch}}
        for epoch in range(1, int(epochs) + 1)
    ]
    whole = {
        "schema": 1, "run": run, "recipe": "ptb_word_lm", "arch": f"{run}_lm", "schedule": kind, "seed": seed,
        "metric": "ppl", "complete": True, "stopped": "schedule", "epochs": epochs, "updates": int(100 * epochs),
        "of_schedule": 1.0, "of_paper": epochs / 30, "parameters": 12535058, "curve": curve, "valid": {"ppl": value},
        "test": {"": {"ppl": value}}, "commit": "abc1234", "modified": False,
        "environment": {"processor": "AMD EPYC", "cores": 2, "threads": 1, "gpu": None, "torch": "2.13.0"}, **more,
    }  # fmt: skip
    file = rows / f"{run}.{kind}.seed{seed}.json"
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


def partial(**more):
    return {"complete": False, "stopped": "budget", "of_schedule": 0.3, **more}


def line(page, *words):
    """The cells of the one line of a table that has all the words, but for what is said of whole schedules."""
    for heading in ("## Whole schedules", "## What was not trained"):
        before, _, rest = page.partition(heading)
        page = before + rest[rest.find("\n## ") :]
    return line_of(page, *words)


def beside(page, *words):
    """The same of the table of whole schedules."""
    rest = page.partition("## Whole schedules")[2]
    return line_of(rest[: rest.find("\n## ")], *words)


def line_of(text, *words):
    found = [each for each in text.splitlines() if each.startswith("| ") and all(word in each for word in words)]
    assert len(found) == 1, found
    return [cell.strip() for cell in found[0].strip("|").split(" | ")]


def page_of(manifest, rows):
    return report.page(manifest, report.Results(rows), rows.parents[1])


def verdict(manifest, rows, claim=0):
    return judge(manifest, report.Results(rows), manifest.claims[claim])


def measured_by_all(rows):
    for run, value in (("gru", 110.0), ("rntn", 100.0), ("plain", 90.0)):
        result(rows, run, value)
    result(rows, "lstm", 80.0, "paper", epochs=12.0, **partial())


def drawn(manifest, rows, number):
    plan = figures.plan(manifest, report.Results(rows), manifest.figures[number])
    return plan, figures.picture(manifest, plan).axes[0]
