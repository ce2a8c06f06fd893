"""A manifest of two small models, and what runs them within the process of the test."""

import json
from pathlib import Path

import commands

ROOT = Path(__file__).resolve().parents[2]

ROWS = """
data = "tiny"
task = "rntn_language_modeling"
command = "eval-lm"

[schedules.sgd]
train = "--optimizer sgd --lr 1 --batch-size 2 --tokens-per-sample 5 --embed-dim 4 --hidden-size 5 --num-workers 0"
metric = "ppl"
epochs = 8
[schedules.sgd.short]
train = "--lr 0.5 --lr-scheduler fixed"
epochs = 2
because = "shortened"

[[runs]]
id = "one"
arch = "elman_lm"
schedule = "sgd"
[[runs]]
id = "two"
arch = "gru_lm"
schedule = "sgd"
flags = "--hidden-size 6"
seeds = [1, 2]

[[rows]]
paper = "P"
table = "Table 1"
row = "Elman"
column = "test PPL"
published = 5.5
run = "one"
[[rows]]
paper = "P"
table = "Table 2"
row = "GRU, by sentences"
column = "test PPL"
run = "two"
evaluate = "--sample-break-mode eos"
[[figures]]
id = "f"
paper = "P"
figure = "Figure 1"
title = "curves"
kind = "curves"
runs = ["two"]
[[claims]]
paper = "P"
where = "Table 1"
text = "GRU < Elman"
better = "two"
worse = "one"
"""


def call_forked(command, flags, threads, log, lock=None):
    """In place of a new interpreter for every command."""
    code, said = commands.forked(command, *flags, cwd=ROOT)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        out.write(said)
    return code, said


def result(place, name):
    return json.loads((place / "results" / f"{name}.json").read_text())
