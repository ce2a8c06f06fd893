"""scripts/benchmark.py at tiny sizes: what it measures, counts, plans, saves and says."""

import gc
import json
import math
import os
import signal
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary, data_utils
from fairseq.models.lstm import LSTMDecoder
from matplotlib.figure import Figure

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.layers.recurrent import RECURRENCES, Recurrent

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import benchmark  # noqa: E402
import benchmark_report as report  # noqa: E402
from benchmarking import charts, floor, plans, results, workloads  # noqa: E402
from benchmarking import measure as measuring  # noqa: E402

SIZES = {"steps": 4, "batch": 3, "device": "cpu", "threads": 1, "repeats": 2, "least_seconds": 0.0}
CELLS = {one.cell: one.tiny() for one in workloads.paper_sizes()}


@pytest.fixture(autouse=True)
def nothing_old_is_garbage():
    """Measuring collects garbage first, which takes long among the many objects of fairseq's modules."""
    gc.freeze()
    yield
    gc.unfreeze()


def arguments(what: str, *more: str):
    return benchmark.parse([what, *more])


def layer(cell: str, recurrence: str = "naive", **more) -> dict:
    spec = plans.our_layer(arguments("cells", "--quick"), CELLS[cell], recurrence)["spec"]
    return {**spec, "positions": 100, **more}


# ---- counted work ----------------------------------------------------------------------------------------------------


def parameters_of(cell: str):
    one = CELLS[cell]
    return build_cell(cell, one.input, one.hidden, Vocabulary(30, None, torch.ones(30)), **one.options).parameters()


@pytest.mark.parametrize("cell", cell_names())
def test_counted_parameters_are_those_of_the_cell(cell):
    """Shared ones and K times the table's entry; of E18's scales only the positions in use."""
    one = CELLS[cell]
    positions = one.options.get("positions", 4)
    work = floor.layer_work(layer(cell, steps=positions))
    entries = one.options.get("num_matrices", 30)
    count = sum(p.numel() for p in parameters_of(cell))
    assert work.shared + entries * work.table == count == workloads.count_parameters(one)


@pytest.mark.parametrize("cell", ["elman", "srn", "gru", "lstm", "lstm_peephole", "hornn", "hornn_fofe", "hornn_gated"])
def test_every_matrix_is_one_product_a_row(cell):
    matrices = sum(p.numel() for p in parameters_of(cell) if p.dim() > 1)
    assert floor.layer_work(layer(cell)).products == matrices


def test_products_by_hand():
    """I 6, H 8; the tensor's slices x W [H, H] are summed with h; a clockwork module runs every period-th step."""
    assert floor.layer_work(layer("gru_rntn")).products == 3 * 8 * (6 + 8) + 6 * 8 * 8 + 8 * 8
    spec = layer("gru_rntn")
    spec["options"] = {**spec["options"], "form": "full"}
    assert floor.layer_work(spec).products == 3 * 8 * (6 + 8) + 14 * 14 * 8 + 14 * 8
    assert floor.layer_work(layer("r_rntn")) == floor.Work(8 * 8, 0, 8 * 8 + 8)  # S18: no input matrix
    spec = layer("clockwork", steps=8)  # periods 1, 2, 4, 8, two units each
    read = [2 * (spec["input"] + spec["hidden"] - offset) for offset in (0, 2, 4, 6)]
    assert floor.layer_work(spec).products == sum(size / period for size, period in zip(read, (1, 2, 4, 8)))
    assert floor.layer_work({**spec, "cell": "a_users_cell"}) is None


def test_operations_and_bytes_by_hand():
    """T·B = 12 rows; each product twice forward and four times backward; 4 bytes a number, each moved twice."""
    operations, moved = floor.counted(layer("elman"), 0)  # S18's and H16's: input 8 where it is added as it is
    one = CELLS["elman"]
    work = floor.layer_work(layer("elman"))
    assert operations == 6 * 12 * work.products
    assert moved == 8 * (work.shared + 12 * (one.input + one.hidden))
    more = floor.counted(layer("r_rntn"), 3)[1] - floor.counted(layer("r_rntn"), 2)[1]
    assert more == 8 * (8 * 8 + 8)  # one more matrix and bias in use


# ---- measuring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell, recurrence", [("gru", "naive"), ("gru", "auto"), ("rntn", "naive"), ("r_gru", "naive")])
def test_a_layer_is_measured(cell, recurrence):
    record = measuring.measure(layer(cell, recurrence))
    assert len(record["seconds"]) == len(record["cpu_seconds"]) == 2 and min(record["seconds"]) > 0
    assert record["memory"] >= 0 and record["parameters"] == sum(p.numel() for p in parameters_of(cell))
    assert record["kernel"] == (recurrence == "auto")
    most = {"rntn": 12, "r_gru": 5}.get(cell, 0)  # T·B tokens, K matrices
    assert min(most, 1) <= record["distinct"] <= most


def uses(outputs, parameter) -> int:
    """How often autograd will add to the gradient of a parameter."""
    found, seen, left = 0, set(), [outputs.grad_fn]
    while left:
        node = left.pop()
        for after, _ in node.next_functions:
            found += getattr(after, "variable", None) is parameter
            if after is not None and after not in seen:
                seen.add(after)
                left.append(after)
    return found


@pytest.mark.parametrize("cell", ["rntn", "r_rntn", "r_gru", "r_lstm", "m_rnn"])
def test_the_gather_loop_adds_a_dense_gradient_every_step(cell):
    one = CELLS[cell]
    spec = plans.gather_loop(arguments("cells"), one)
    assert (spec["label"], spec["spec"]["repeats"], spec["spec"]["least_seconds"]) == ("gather loop", 2, 0.0)
    layer = Recurrent(
        build_cell(cell, one.input, one.hidden, Vocabulary(30, None, torch.ones(30)), **spec["spec"]["options"])
    )
    layer.recurrence = "naive"
    (stack,) = (
        p for name, p in layer.named_parameters() if name.endswith(("recurrence.weight", "_gate.weight", "factors"))
    )
    x, tokens = torch.randn(4, 3, one.input), torch.randint(30, (4, 3))
    gradients = []
    for run, times in ((layer, 1), (measuring.gather_loop(layer), 4)):
        outputs, _ = run(x, tokens)
        assert uses(outputs, stack) == times
        gradients.append((outputs, torch.autograd.grad(outputs.square().sum(), stack)[0]))
    (outputs, gradient), (same, same_gradient) = gradients
    assert same_gradient.layout == torch.strided
    torch.testing.assert_close(same, outputs)
    torch.testing.assert_close(same_gradient, gradient)


def test_a_gather_loop_is_measured():
    for cell in ("rntn", "r_lstm"):
        spec = plans.gather_loop(arguments("cells", "--quick"), CELLS[cell])["spec"]
        assert spec["options"]["gradients"] == "dense"
        record = measuring.measure(spec)
        assert len(record["seconds"]) == 2 and min(record["seconds"]) > 0 and not record["kernel"]


def test_memory_is_that_of_a_pass():
    """A pass that fills 64 MiB and lets go of them."""
    memory = measuring.PeakMemory("cpu")
    torch.ones(2**24).sum()
    assert 0.9 * 2**26 < memory.grown() < 1.2 * 2**26


def test_peers_are_measured():
    args = arguments("cells", "--quick")
    for module, cell in (("LSTM", "elstm1"), ("GRU", "r_gru"), ("RNN", "hornn")):
        spec = plans.torch_layer(args, CELLS[cell])["spec"]
        assert spec["module"] == module and spec["hidden"] == 8
        assert len(measuring.measure(spec)["seconds"]) == 2
    machine = measuring.measure(plans.machine(args)["spec"])
    assert len(machine["gemm"]) == len(machine["copy"]) == 2 and min(machine["gemm"] + machine["copy"]) > 0


def test_the_rate_of_gemm_is_that_of_the_faster_library(monkeypatch):
    a, b = torch.randn(2, 8, 8)
    ways = measuring.gemms(a, b)
    for way, expected in zip(ways, (a @ b, a @ b.t())):
        torch.testing.assert_close(way(), expected)
    assert len(ways) == 1 + (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"))
    spec = plans.machine(arguments("cells", "--quick"))["spec"]
    work = 2 * spec["size"] ** 3
    for both in (True, False):
        monkeypatch.setattr(measuring, "gemms", lambda a, b, both=both: [lambda: time.sleep(0.1), int][: 1 + both])
        assert (min(measuring.measure(spec)["gemm"]) > work / 0.1) == both


@pytest.mark.parametrize("cell, gates, biases, states", [("lstm", 4, 4, 2), ("gru", 3, 4, 1), ("elman", 1, 1, 1)])
def test_flashrnn_gets_what_it_expects(monkeypatch, cell, gates, biases, states):
    def flashrnn(inputs, recur, bias, states, function, backend, dtype):
        assert inputs.shape == (3, 4, gates, 1, 8) and recur.shape == (gates, 1, 8, 8) and bias.shape == (biases, 1, 8)
        assert states.shape == (len(states), 3, 1, 1, 8) and function == cell and dtype in ("float32", "bfloat16")
        outputs = (inputs.sum(2) + recur.sum() + bias.sum()).expand(len(states), 3, 4, 1, 8)
        return outputs, outputs[:, :, -1:]

    monkeypatch.setitem(sys.modules, "flashrnn", types.SimpleNamespace(flashrnn=flashrnn))
    for each in plans.flash_layers(arguments("cells", "--quick"), CELLS[cell]):
        assert "failed" not in measuring.measure(each["spec"])


def test_failures_are_reported():
    assert measuring.measure(layer("gru", options={"activation": "none"}))["failed"].startswith("ValueError: ")
    assert measuring.measure({"kind": "flashrnn"})["failed"].startswith("ModuleNotFoundError: No module named 'flash")


def test_a_process_of_its_own(tmp_path):
    """It needs no fairseq; a contender that takes too long is ended."""
    record = benchmark.in_process(layer("elman", "auto"), 600, tmp_path)
    assert len(record["seconds"]) == 2 and record["kernel"]
    assert benchmark.in_process(layer("elman"), 0.01, tmp_path) == {"failed": "took longer than 0.01 s"}


def test_all_in_one_process(tmp_path, monkeypatch, capsys):
    monkeypatch.delattr(benchmark, "in_process")
    given = ["cells", "--quick", "--one-process", "--cells", "elman_lm", "--rounds", "1", "--output", str(tmp_path)]
    assert benchmark.main(given) == 0
    data = json.loads((tmp_path / "cells.json").read_text())
    layers = [each for each in data["contenders"] if each["role"] != "machine"]
    assert {each["role"] for each in layers} >= {"naive", "auto", "torch"}
    assert all(len(record["seconds"]) == 2 and "memory" in record for each in layers for record in each["records"])


# ---- training updates ------------------------------------------------------------------------------------------------

LOG = """2026-01-01 10:00:00 | INFO | fairseq_cli.train | num. shared model params: 12,345 (num. trained: 12,345)
2026-01-01 10:00:00 | INFO | m | --recurrence auto takes fused for GRU
2026-01-01 10:00:01 | INFO | train_inner | {"wps": "9.0", "ups": "0.01", "wpb": "700", "num_updates": "5"}
2026-01-01 10:00:02 | INFO | train_inner | {"wps": "1400.0", "ups": "2", "wpb": "700", "num_updates": "10"}
2026-01-01 10:00:03 | INFO | train_inner | {"wps": "2800.0", "ups": "4", "wpb": "700", "num_updates": "15"}
"""


def test_times_of_a_log():
    assert measuring.update_times(LOG, 5) == {"seconds": [0.5, 0.25], "parameters": 12_345, "kernel": True}
    assert measuring.update_times("killed", 5)["seconds"] == []


IN_TURNS = ("updates", "--quick", "--in-turns", "--no-peers", "--recurrence", "auto", "--cells")


def test_updates_in_turns(pretend, monkeypatch):
    """Through fairseq-train itself."""
    monkeypatch.delattr(benchmark, "in_process")
    (each,) = pretend(*IN_TURNS, "elman_lm", "--rounds", "1")["contenders"]
    (record,) = each["records"]
    assert "failed" not in record, record
    assert len(record["seconds"]) == 2 and min(record["seconds"]) > 0 and record["memory"] > 2**26
    assert record["kernel"] and record["round"] == 1 and record["parameters"] > 0


def test_rounds_in_turns(pretend, monkeypatch, capsys):
    """Every round in the other's order; one that failed is not tried again."""
    asked = []

    def side_by_side(specs, timeout, scratch):
        asked.append([spec["flags"][spec["flags"].index("--arch") + 1] for spec in specs])
        assert timeout == 1800 and scratch.is_dir()
        return [{"failed": "no"} if arch == "gru_lm" else pretended(spec) for arch, spec in zip(asked[-1], specs)]

    monkeypatch.setattr(benchmark, "side_by_side", side_by_side)
    data = pretend(*IN_TURNS, "gru_lm", "elman_lm", "hornn_lm", "--rounds", "3")
    assert asked == [["gru_lm", "elman_lm", "hornn_lm"], ["hornn_lm", "elman_lm"], ["elman_lm", "hornn_lm"]]
    rounds = [[record["round"] for record in each["records"]] for each in data["contenders"]]
    assert rounds == [[1], [1, 2, 3], [1, 2, 3]]
    assert "round 2 of 3: 2 in turns" in capsys.readouterr().err and data["arguments"]["in_turns"]


def test_ratios_of_turns(pretend, monkeypatch, capsys):
    """A machine twice as slow in the second half: of turns beside each other a third more and never less, where the
    medians of all turns are as apart as the two speeds (0.02 to 0.01)."""
    turns = {"elman_lm": [0.01, 0.01, 0.01, 0.02, 0.02], "gru_lm": [0.01, 0.0133, 0.0266, 0.0266, 0.0266]}

    def side_by_side(specs, timeout, scratch):
        archs = [spec["flags"][spec["flags"].index("--arch") + 1] for spec in specs]
        return [{**pretended(spec), "seconds": turns[arch]} for spec, arch in zip(specs, archs)]

    monkeypatch.setattr(benchmark, "side_by_side", side_by_side)
    data = pretend(*IN_TURNS, "elman_lm", "gru_lm", "--rounds", "2")
    sides = ("update gru_lm", "auto"), ("update elman_lm", "auto")
    assert results.Results(data).ratios(*sides) == pytest.approx([1.33, 1.33])
    assert "in turns: a round's ratio" in capsys.readouterr().out
    data["arguments"]["in_turns"] = False
    assert results.Results(data).ratios(*sides) == pytest.approx([2.66, 2.66])
    assert results.Results(data).ratios(*sides, "memory") == pytest.approx([1.0, 1.0])


def test_turns_are_short():
    one = workloads.workload("elman_lm")
    for given, found in (((), (100, 200)), (("--in-turns",), (20, 200))):
        spec = plans.update(arguments("updates", "--updates", "800", *given), one, "auto")["spec"]
        assert (spec["interval"], spec["skip"]) == found


def test_corpus(tmp_path):
    folder = benchmark.write_corpus(tmp_path / "words", 30, 500)
    dictionary = Dictionary.load(f"{folder}/dict.txt")
    assert len(dictionary) == 32  # 30 as the papers count, and <s> and <pad>
    text = data_utils.load_indexed_dataset(f"{folder}/train", dictionary)
    assert 500 < sum(len(sentence) for sentence in text) < 600
    assert all(sentence[-1] == dictionary.eos() and sentence[:-1].min() >= 4 for sentence in text)


def test_peers_have_as_many_parameters():
    for cell in ("gru_rntn", "elstm1", "r_rntn"):
        one = CELLS[cell]
        count = workloads.count_parameters(one)
        spec = plans.torch_layer(arguments("cells", "--quick"), one, "torch_equal", count)["spec"]
        counts = [
            sum(p.numel() for p in getattr(torch.nn, spec["module"])(one.input, spec["hidden"] + d).parameters())
            - count
            for d in (-1, 0, 1)
        ]
        assert abs(counts[1]) == min(map(abs, counts))
    one = CELLS["gru_rntn"]
    dictionary = Dictionary()
    for word in range(one.vocabulary - 2):
        dictionary.add_symbol(f"w{word}")

    def peer(size: int) -> int:
        decoder = LSTMDecoder(dictionary, one.input, size, size, 1, attention=False, encoder_output_units=0)
        return sum(p.numel() for p in decoder.parameters())

    count = workloads.count_parameters(one) + 32 * (one.input + one.hidden + 1)
    size = plans.update(arguments("updates", "--quick"), one, "lstm_lm")["spec"]["hidden"]
    assert abs(peer(size) - count) == min(abs(peer(size + d) - count) for d in (-1, 0, 1))


def test_flags_of_every_training_are_fairseqs():
    for each in plans.PLANS["updates"](arguments("updates"))["contenders"]:
        args = options.parse_args_and_arch(options.get_training_parser(), ["data", *each["spec"]["flags"]])
        assert args.batch_size == 20 and args.tokens_per_sample == 35
        assert each["role"] in (args.arch, getattr(args, "recurrence", "auto"))


def test_updates_on_a_given_text(tmp_path):
    """The same for all that are measured, without a process that loads it; its break mode is everybody's."""
    folder = benchmark.write_corpus(tmp_path / "text", 30, 500)
    asked = ("updates", "--quick", "--cells", "r_rntn_lm_salle_ptb", "--data", folder, "--sample-break-mode", "eos")
    contenders = plans.PLANS["updates"](arguments(*asked))["contenders"]
    assert [each["role"] for each in contenders] == ["naive", "auto", "lstm_lm"]
    for each in contenders:
        assert each["spec"]["data"] == folder and "corpus_tokens" not in each["spec"]
        args = options.parse_args_and_arch(options.get_training_parser(), ["data", *each["spec"]["flags"]])
        assert str(args.sample_break_mode) == "eos" and args.num_workers == 0
    benchmark.prepare(contenders, tmp_path)
    assert [each["spec"]["data"] for each in contenders] == [folder] * 3
    ours = plans.PLANS["updates"](arguments(*asked, "--no-peers"))["contenders"]
    assert [each["role"] for each in ours] == ["naive", "auto"]


def test_updates_with_dense_gradients():
    """Of the cells that have others."""
    asked = ("updates", "--quick", "--no-peers", "--recurrence", "auto", "--dense-gradients", "--cells")
    found = {}
    for each in plans.PLANS["updates"](arguments(*asked, "r_rntn_lm_salle_ptb", "rntn", "gru_lm"))["contenders"]:
        args = options.parse_args_and_arch(options.get_training_parser(), ["data", *each["spec"]["flags"]])
        found[args.arch, each["role"]] = str(getattr(args, "gradients", "-"))
    assert found == {
        ("r_rntn_lm_salle_ptb", "auto"): "auto",
        ("r_rntn_lm_salle_ptb", "dense"): "dense",
        ("rntn_lm_salle_ptb", "auto"): "row-sparse",
        ("rntn_lm_salle_ptb", "dense"): "dense",
        ("gru_lm", "auto"): "-",
    }


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", plans.PLANS)
@pytest.mark.parametrize("more", [(), ("--quick",)])
def test_plans(what, more):
    """Nothing twice; every bar and every point has its contenders."""
    plan = plans.PLANS[what](arguments(what, *more))
    entries = {(each["group"], each["role"]) for each in plan["contenders"]}
    assert len(entries) == len(plan["contenders"]) > 2 and json.dumps(plan)
    for bar in plan.get("bars", ()):
        for group, role in (bar["top"], bar["bottom"]):
            assert {"ours": (group, "auto"), "floor": ("machine", "machine")}.get(role, (group, role)) in entries
    for point in plan.get("points", ()):
        assert {(point["group"], "naive"), (point["group"], "auto")} <= entries


def test_cells_at_the_papers_sizes():
    found = {one.name: (one.cell, one.input, one.hidden, one.vocabulary) for one in workloads.paper_sizes()}
    assert found["gru_rntn_lm_tjandra_ptb_word"] == ("gru_rntn", 128, 256, 10_000)
    assert found["gru_rntn_lm_tjandra_ptb_char"] == ("gru_rntn", 32, 256, 50)
    assert found["r_lstm_lm_salle_ptb"] == ("r_lstm", 650, 254, 10_000)
    assert found["hornn_gated_lm_soltani_ptb"] == ("hornn_gated", 400, 400, 10_000)
    assert found["basic_elstm1_su_ud_pos"][:3] == ("elstm1", 512, 512)
    assert {cell for cell, *_ in found.values()} == set(cell_names())
    rntn = workloads.workload("rntn_lm_salle_text8")
    assert (rntn.vocabulary, rntn.resized(hidden=50).input) == (37_751, 50)


def test_list(capsys):
    assert benchmark.main(["cells", "--cells", "r_gru", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "r_gru_lm_salle_ptb: naive loop, input 650, hidden 244, vocabulary 10000"
    assert "gather loop" in lines[3] and "nn.GRU 244, same H" in lines[4] and len(lines) == 6


# ---- whole runs ------------------------------------------------------------------------------------------------------

TIMES = {"naive": 6.0, "auto": 2.0, "torch": 3.0, "gather": 240.0}


def pretended(spec, timeout=None, scratch=None) -> dict:
    """Seconds that are known; GEMM and copy at a rate of one."""
    if spec["kind"] == "machine":
        return {"gemm": [1e3], "copy": [1e3]}
    role = spec.get("recurrence", "torch")
    if spec["kind"] == "generation":
        return {"seconds": [9.0], "short_seconds": [3.0], "step_seconds": [4.5], "parameters": 1234}
    if spec["kind"] == "update":
        role = "naive" if "naive" in spec["flags"] else "torch" if "lstm_lm" in spec["flags"] else "auto"
    if spec.get("cell") == "elman" and role == "auto":
        return {"skipped": "no kernel"}
    if spec.get("compile"):
        return {"failed": "RuntimeError: no compiler"}
    return {"seconds": [TIMES[role]] * 3, "memory": 2**20, "distinct": 1, "kernel": role == "auto", "parameters": 1234}


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "in_process", pretended)
    draw = charts.draw

    def run(*command: str, code: int = 0, chart: bool = False) -> dict:
        monkeypatch.setattr(charts, "draw", draw if chart else lambda data, stem: [])
        assert benchmark.main([*command, "--output", str(tmp_path / "out")]) == code
        data = json.loads((tmp_path / "out" / f"{command[0]}.json").read_text())
        for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")) if chart else ():
            assert (tmp_path / "out" / command[0]).with_suffix(ending).read_bytes().startswith(start)
        return data

    return run


@pytest.fixture
def drawn(monkeypatch):
    """The figure of a chart. Rendering takes long, so that one chart has to do for it: that of test_cells."""
    draw, figures = charts.draw, []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, dpi: figures.append(figure))

    def run(data: dict) -> Figure:
        assert [str(file) for file in draw(data, Path("chart"))] == ["chart.png", "chart.svg"]
        return figures[-1]

    return run


def cells_of(line: str) -> list:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_cells(pretend, capsys):
    data = pretend(
        "cells", "--quick", "--cells", "gru_rntn_lm_tjandra_ptb_char", "elman_lm_salle_ptb", "--compile", chart=True
    )
    assert data["schema"] == 1 and data["complete"] and data["environment"]["versions"]["torch"] == torch.__version__
    assert data["environment"]["threads"] == 1 and data["arguments"]["rounds"] == 2
    out, err = capsys.readouterr()
    assert "--quick: tiny sizes" in out and "round 2 of 2" in err
    rows = {tuple(cells_of(line)[:2]): cells_of(line)[2:] for line in out.splitlines() if line.startswith("| ")}
    char = "gru_rntn_lm_tjandra_ptb_char"
    least = sum(part / 1e3 for part in floor.counted(layer("gru_rntn", input=6), 1))
    assert rows[char, "ours (auto)"] == ["6.00", "2,000", "3.00", "", report.short(2 / least), "1.00"]
    assert rows[char, "naive loop"][3] == "3.00" and rows[char, "nn.GRU 8, same H"][2:4] == ["2.00", "1.50"]
    assert rows[char, "torch.compile, loop"][0] == "failed: RuntimeError: no compiler"
    assert ("elman_lm_salle_ptb", "ours (auto)") not in rows
    entries = results.Results(data).entries
    assert len(entries[char, "naive"]["records"]) == 2 and len(entries[char, "compiled"]["records"]) == 1


def test_updates_and_scaling(pretend, drawn, capsys):
    pretend("updates", "--quick", "--cells", "gru_rntn")
    assert "| 1,234" in capsys.readouterr().out
    data = pretend("scaling", "--quick", "--cells", "hornn", "r_rntn_lm_salle_ptb")
    assert {point["axis"] for point in data["points"]} == {"H", "K", "N", "T", "B"}
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.startswith("| ")]) == 2 + len(data["points"])
    assert "hornn_lm_soltani_ptb, H 8, N 2, T 4, B 3" in {point["group"] for point in data["points"]}
    axes = {one.get_xlabel(): one for one in drawn(data).axes}
    assert axes.keys() == {"H", "K", "N", "T", "B"} and {line.get_label() for line in axes["H"].lines} >= {
        "hornn_lm_soltani_ptb", "r_rntn_lm_salle_ptb"
    }  # fmt: skip
    milliseconds = {(line.get_linestyle(), y) for one in axes.values() for line in one.lines for y in line.get_ydata()}
    assert milliseconds == {("-", 2000.0), ("--", 6000.0)}
    assert [list(line.get_xdata()) for line in axes["H"].lines] == [[4, 8]] * 4


GENERATION = ("generation", "--quick", "--cells", "r_rntn_lm_salle_ptb")


def test_generation_by_hand(pretend, drawn, capsys):
    """2 + 6 + 1 steps in 9 s, 2 + 3 + 1 in 3 s, 9 of the model alone in 4.5 s."""
    data = pretend(*GENERATION)
    rows = [cells_of(line) for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[0][3:6] == ["tokens/s, 3 long", "tokens/s, 6 long", "a token, 6 / 3"]
    assert rows[2][1:] == ["ours", "1,234", "2.00", "1.00", "2.00", "1,000", "2.00", ""]
    assert rows[3][1].startswith("fairseq lstm_lm 8/") and rows[3][2:] == [*rows[2][2:-1], "1.00"]
    groups = [f"r_rntn_lm_salle_ptb, beam {beam}, batch {batch}" for beam in (1, 2) for batch in (1, 3)]
    assert [row[0] for row in rows[2::2]] == groups and rows[4][3] == "6.00"
    (axes,) = drawn(data).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == groups
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"ours", plans.PEER}


def test_generation(pretend, monkeypatch, capsys):
    """Every sentence as long as asked for, or the record says that it failed."""
    monkeypatch.setattr(benchmark, "in_process", lambda spec, timeout, scratch: measuring.measure(spec))
    data = pretend(*GENERATION, "--rounds", "1")
    for each in data["contenders"]:
        (record,) = each["records"]
        times = [record[name] for name in ("seconds", "short_seconds", "step_seconds")]
        assert all(len(samples) == 2 and 0 < min(samples) < math.inf for samples in times)
    ours, peer = (data["contenders"][i]["records"][0]["parameters"] for i in (0, 1))
    assert abs(ours / peer - 1) < 0.1
    rows = [cells_of(line) for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 8 and all(float(number.split()[0].replace(",", "")) > 0 for number in rows[2][2:-1])


def test_bars(pretend, drawn, capsys):
    data = pretend("bars", "--quick")
    rows = {cells_of(line)[0]: cells_of(line)[1:] for line in capsys.readouterr().out.splitlines() if line[0:2] == "| "}
    assert rows["GRURNTN, PTB words: naive / ours"] == ["≥ 6", "3.00", "missed", ""]
    assert rows["RNTN, K 10,000: gather loop / ours"] == ["≥ 100", "120", "met", ""]
    assert rows["RNTN, K 10,000: naive / ours"] == ["", "3.00", "", ""]
    assert rows["GRURNTN, PTB characters: naive / ours"] == ["≥ 3", "3.00", "met", ""]
    assert rows["GRU 650: ours / torch"] == ["≤ 1", "0.67", "met", ""]
    assert rows["GRURNTN, PTB words, epoch: ours / naive"] == ["≤ 0.25", "0.33", "missed", ""]
    assert rows["memory, r_gru_lm_salle_ptb: ours / naive"] == ["≤ 1", "1.00", "met", ""]
    (axes,) = drawn(data).axes
    labels, widths = [label.get_text() for label in axes.get_yticklabels()], [bar.get_width() for bar in axes.patches]
    assert labels == [name for name, row in rows.items() if row[2] in ("met", "missed")]
    margins = dict(zip(labels, widths))
    assert margins["GRURNTN, PTB words: naive / ours"] == 0.5 and margins["GRU 650: ours / torch"] == pytest.approx(1.5)
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"met", "missed"}


def test_a_kernel_that_fails_is_not_taken_for_the_loop(pretend, monkeypatch, capsys):
    def broken(spec, timeout, scratch):
        kernel = spec.get("cell") == "r_gru" and spec["recurrence"] == "auto"
        return {"failed": "RuntimeError: view"} if kernel else pretended(spec)

    monkeypatch.setattr(benchmark, "in_process", broken)
    pretend("bars", "--quick")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| r-GRU, K 100: naive"))
    assert cells_of(line)[3:] == ["missed", "failed: RuntimeError: view"]


def test_bars_of_a_gpu():
    plan = plans.PLANS["bars"](arguments("bars", "--device", "cuda"))
    epochs = {bar["what"]: bar for bar in plan["bars"] if bar["bottom"] is None}
    assert len(epochs) == 22 and math.isclose(
        epochs["GPU: PTB epoch of r_gru_lm_salle_ptb"]["scale"], 1328, rel_tol=1e-3
    )
    for each in plan["contenders"]:
        each["records"] = [{"round": 1, **pretended(each["spec"])}]
    numbers, met = results.judge(results.Results(plan), epochs["GPU: PTB epoch of r_gru_lm_salle_ptb"])
    assert 2650 < numbers.median < 2660 and not met


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(pretend, monkeypatch, capsys, number):
    calls, usual, ctrl_c = [], signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it

    def stopped(spec, timeout, scratch):
        calls.append(spec)
        if len(calls) == 5:
            os.kill(os.getpid(), number)
        return pretended(spec)

    monkeypatch.setattr(benchmark, "in_process", stopped)
    try:
        data = pretend("cells", "--quick", "--cells", "gru_lm_tjandra_ptb_char", code=130)
    finally:
        signal.signal(signal.SIGINT, ctrl_c)
    assert signal.getsignal(signal.SIGTERM) == usual
    assert not data["complete"] and sum(len(each["records"]) for each in data["contenders"]) == 4
    assert "interrupted: not all rounds were run" in capsys.readouterr().out


def test_recurrences_are_those_of_the_cells():
    assert set(benchmark.KNOWN) == {*RECURRENCES, "gather"}


def test_quick_results_do_not_take_the_place_of_measured_ones():
    assert arguments("cells").output == "results/benchmarks"
    assert arguments("cells", "--quick").output == "runs/benchmarks"
    assert arguments("cells", "--quick", "--output", "x").output == "x"


def test_saved_results_can_be_shown_again(pretend, tmp_path, capsys):
    pretend("cells", "--quick")
    table = capsys.readouterr().out.partition("\nwrote")[0]
    assert report.main([str(tmp_path / "out" / "cells.json")]) == 0
    assert capsys.readouterr().out.partition("\nwrote")[0] == table
    (tmp_path / "other.json").write_text("[]")
    for file, message in (("no.json", "cannot read"), ("other.json", "holds no results of scripts/benchmark.py")):
        assert report.main([str(tmp_path / file)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, message",
    [
        (["cells", "--cells", "nope"], "--cells nope: neither a cell nor an architecture"),
        (["bars", "--cells", "gru"], "the bars are about given cells"),
        (["cells", "--data", "x"], "--data is for the command updates"),
        (["generation", "--no-peers"], "--no-peers is for the command updates"),
        (["scaling", "--dense-gradients"], "--dense-gradients is for the command updates"),
        (["cells", "--in-turns"], "--in-turns is for the command updates"),
        (["updates", "--in-turns", "--device", "cuda"], "--in-turns is for --device cpu"),
        (["updates", "--compile"], "--compile is for the command cells"),
        (["bars", "--recurrence", "auto"], "--recurrence is not for the command bars"),
        (["generation", "--recurrence", "auto"], "--recurrence is not for the command generation"),
        (["bars", "--sample-break-mode", "eos"], "--sample-break-mode is for the command updates"),
        (["updates", "--data", "nowhere"], "--data nowhere: no binarised text"),
        (["cells", "--rounds", "0"], "--rounds 0 must be at least 1"),
        (["cells", "--timeout", "nan"], "--timeout nan must be at least 1 and finite"),
        (["cells", "--recurrence", "naive", "fusde"], "--recurrence fusde is none of auto, naive, fused, triton, gath"),
        (["updates", "--recurrence", "gather"], "--recurrence gather is none of auto, naive, fused, triton"),
        (["updates", "--quick", "--updates", "50"], "--updates is for the commands updates and bars, without --quick"),
        (["cells", "--updates", "3"], "--updates is for the commands updates and bars"),
        (["generation", "--steps", "3"], "--steps is not for the command generation"),
        (["updates", "--repeats", "3"], "--repeats is not for the command updates: --updates are its samples"),
        (["updates", "--cells", "basic_gru"], "updates: no language model among --cells basic_gru"),
        (["generation", "--cells", "basic_gru"], "generation: no language model among --cells basic_gru"),
    ],
)
def test_errors(command, message, capsys):
    assert benchmark.main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("benchmark: error: ") and message in lines[0]
