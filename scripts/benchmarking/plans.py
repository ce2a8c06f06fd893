"""Contenders and plans of scripts/benchmark.py: who computes a workload, and what each command measures."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import math
import re
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

from benchmarking.measure import LOOPS
from benchmarking.workloads import Workload, chosen, count_parameters, paper_sizes, workload

ROOT = Path(__file__).resolve().parents[2]
LARGEST_PEER = 4096  # units of a peer with equal parameters; one for the unrestricted RNTN would be of no use
PEER = "fairseq lstm_lm, equal parameters"

# ---- contenders: who computes it -------------------------------------------------------------------------------------


def positive_root(a: float, b: float, c: float) -> int:
    """The whole number nearest to the x > 0 with a x² + b x = c."""
    return max(1, round((-b + math.sqrt(b * b + 4 * a * c)) / (2 * a)))


def contender(group: str, role: str, kind: str, label: str, args, spec: dict) -> dict:
    """An entry of the results. *kind* is the same for all groups: the legend of the chart."""
    common = {
        "device": args.device, "threads": args.threads, "repeats": args.repeats, "steps": args.steps,
        "batch": args.batch, "least_seconds": 0.0 if args.quick else 0.2,
    }  # fmt: skip
    return {"group": group, "role": role, "kind": kind, "label": label, "spec": {**common, **spec}, "records": []}


def machine(args) -> dict:
    sizes = {"size": 64, "numbers": 2**12} if args.quick else {"size": 2048, "numbers": 2**26}
    return contender("machine", "machine", "machine", "GEMM and copy", args, {"kind": "machine", **sizes})


def our_layer(args, one: Workload, role: str, group: Optional[str] = None, only_kernels: bool = True, **more) -> dict:
    """*role*: a recurrence; with *only_kernels* it is skipped where it would be the naive loop again."""
    recurrence = "naive" if more else role
    spec = {
        "kind": "layer", "cell": one.cell, "input": one.input, "hidden": one.hidden, "vocabulary": one.vocabulary,
        "options": one.options, "recurrence": recurrence, "only_kernels": only_kernels, **more,
    }  # fmt: skip
    label = f"torch.compile, {more['compile']}" if more else label_of(role)
    return contender(group or one.name, role, label.split(" (")[0], label, args, spec)


def label_of(role: str) -> str:
    return f"{role} loop" if role in LOOPS else f"ours ({role})"


def gather_loop(args, one: Workload) -> dict:
    """The loop that public code has, for a cell with matrices per symbol: see ``benchmarking.measure.gather_loop``.

    One pass over a stack of ten thousand matrices takes seconds, so few are measured.
    """
    dense = dataclasses.replace(one, options={**one.options, "gradients": "dense"})
    found = our_layer(args, dense, "gather", only_kernels=False)
    found["spec"].update(repeats=min(args.repeats, 2), least_seconds=0.0)
    return found


def module_of(cell: str) -> str:
    """The torch layer that a cell is to be compared with."""
    return "LSTM" if "lstm" in cell else "GRU" if "gru" in cell else "RNN"


def torch_layer(args, one: Workload, role: str = "torch", parameters: Optional[int] = None) -> dict:
    """The peer at the same H, or at as many *parameters*."""
    module, hidden = module_of(one.cell), one.hidden
    if parameters is not None:
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[module]  # each has two biases
        hidden = positive_root(gates, gates * (one.input + 2), parameters)
    kind = "torch, same H" if parameters is None else "torch, equal parameters"
    spec = {"kind": "torch", "module": module, "input": one.input, "hidden": hidden}
    return contender(one.name, role, kind, f"nn.{module} {hidden}{kind.removeprefix('torch')}", args, spec)


def flash_layers(args, one: Workload) -> Iterator[dict]:
    """FlashRNN's exact kernels, and its fastest, which compute in half precision."""
    function = {"LSTM": "lstm", "GRU": "gru", "RNN": "elman"}[module_of(one.cell)]
    for backend, dtype in (("cuda", "float32"), ("cuda_fused", "bfloat16")):
        spec = {"kind": "flashrnn", "function": function, "backend": backend, "dtype": dtype, "input": one.input,
                "hidden": one.hidden}  # fmt: skip
        label = f"flashrnn {function}, {backend}, {dtype}"
        yield contender(one.name, f"flashrnn {backend}", f"flashrnn, {dtype}", label, args, spec)


def layer_contenders(args, one: Workload) -> Iterator[dict]:
    """Everyone who computes one layer."""
    yield from (our_layer(args, one, recurrence) for recurrence in args.recurrence)
    if "gradients" in one.options:
        yield gather_loop(args, one)
    if args.compile:
        yield our_layer(args, one, "compiled", compile=args.compile)
    yield torch_layer(args, one)
    equal = torch_layer(args, one, "torch_equal", count_parameters(one))
    if equal["spec"]["hidden"] <= LARGEST_PEER and equal["spec"]["hidden"] != one.hidden:
        yield equal
    if args.device == "cuda" and importlib.util.find_spec("flashrnn"):
        yield from flash_layers(args, one)


def training_flags(one: Workload) -> List[str]:
    """The optimiser of the paper, see tasks/ptb_word_lm/README.md; for others AdaGrad as T16's recipes had it."""
    if "_soltani_" in one.name:
        return ["--sentence-avg", "--optimizer", "max_norm_sgd", "--momentum", "0.9", "--weight-decay", "1e-5",
                "--max-norm", "4", "--lr", "0.4", "--clip-norm", "5"]  # fmt: skip
    if "_salle_" in one.name:
        rate = ["--lr", "0.1"] if "identity_input" in one.options else ["--lr", "1", "--clip-norm", "5"]
        return ["--sentence-avg", "--optimizer", "sgd", *rate]
    return ["--optimizer", "adagrad", "--lr", "0.02", "--clip-norm", "5"]


def model_flags(one: Workload, role: str) -> List[str]:
    """Task and model of a preset (*role*: its recurrence)."""
    flags = ["--task", "rntn_language_modeling", "--arch", one.name, "--embed-dim", str(one.input)]
    flags += ["--hidden-size", str(one.hidden), *([] if role == "auto" else ["--recurrence", role])]
    for name in ("num_matrices", "factor_size", "gradients"):
        flags += [f"--{name.replace('_', '-')}", str(one.options[name])] if name in one.options else []
    return flags


def peer_size(one: Workload) -> int:
    """Units of fairseq's ``lstm_lm`` with as many parameters as the whole model."""
    symbols = one.vocabulary + 2  # with <s> and <pad>
    ours = count_parameters(dataclasses.replace(one, vocabulary=symbols)) + symbols * (one.input + one.hidden + 1)
    return positive_root(4, 4 * one.input + 8 + symbols, ours - symbols * one.input - symbols)


def peer_flags(one: Workload, hidden: int) -> List[str]:
    """Task and model of fairseq's ``lstm_lm`` with *hidden* units."""
    rates = [one.settings[f"dropout_{place}"] for place in ("embedding", "output")]
    inside, outside = (str(one.settings["dropout"] if rate is None else rate) for rate in rates)
    return [
        "--task", "language_modeling", "--sample-break-mode", "none", "--required-batch-size-multiple", "1",
        "--arch", "lstm_lm", "--decoder-embed-dim", str(one.input), "--decoder-hidden-size", str(hidden),
        "--decoder-out-embed-dim", str(hidden), "--decoder-dropout-in", inside, "--decoder-dropout-out", outside,
    ]  # fmt: skip


def whole_model(args, one: Workload, role: str, group: str, flags: List[str], spec: dict) -> dict:
    """A contender with a model in it: a preset, or (*role* ``lstm_lm``) fairseq's with as many parameters.

    *flags* are those beside task and model; ``corpus_tokens`` of *spec* says how much text is made up for it, unless
    it has ``data``.
    """
    spec = {**spec, "vocabulary": one.vocabulary}
    if role == "lstm_lm":
        hidden = spec["hidden"] = peer_size(one)
        spec["flags"] = [*peer_flags(one, hidden), *flags]
        return contender(group, role, PEER, f"fairseq lstm_lm {one.input}/{hidden}", args, spec)
    spec["flags"] = [*flags, *model_flags(one, role)]
    return contender(group, role, label_of(role).split(" (")[0], label_of(role), args, spec)


def update(args, one: Workload, role: str) -> dict:
    """Training updates."""
    samples = 40 if args.in_turns else 8
    interval, skip = max(1, args.updates // samples), args.updates // 4
    updates, interval, skip = (6, 2, 2) if args.quick else (args.updates, interval, skip)
    flags = ["--user-dir", str(ROOT / "rntn_plugins"), "--batch-size", str(args.batch), "--tokens-per-sample",
             str(args.steps), *training_flags(one)]  # fmt: skip
    spec: Dict[str, object] = {"kind": "update", "updates": updates, "interval": interval, "skip": skip}
    if args.data:
        spec["data"] = args.data
        flags += ["--num-workers", "0"]  # as scripts/reproduce.py trains
    else:
        spec["corpus_tokens"] = (updates + 5) * args.batch * args.steps
    if args.sample_break_mode:
        flags += ["--sample-break-mode", args.sample_break_mode]
    return whole_model(args, one, role, f"update {one.name}", flags, spec)


def dense_update(args, one: Workload) -> dict:
    """As :func:`update`, ours, with the gradients that everybody's are where nothing is known of symbols."""
    dense = dataclasses.replace(one, options={**one.options, "gradients": "dense"})
    return {**update(args, dense, "auto"), "role": "dense", "kind": "dense gradients", "label": "ours, dense gradients"}


def generation(args, one: Workload, role: str, beam: int, batch: int) -> dict:
    """Generation of *batch* texts side by side; ``steps`` are those of the longer ones."""
    prefix, lengths = (2, (3, 6)) if args.quick else (5, (20, 200))
    steps = prefix + lengths[1] + 1  # and </s>
    spec = {"kind": "generation", "beam": beam, "batch": batch, "prefix": prefix, "lengths": lengths, "steps": steps,
            "corpus_tokens": 1000 if args.quick else 50_000}  # fmt: skip
    flags = ["--tokens-per-sample", str(steps)]  # the longest that fairseq's model lets the generator generate
    found = whole_model(args, one, role, f"{one.name}, beam {beam}, batch {batch}", flags, spec)
    return {**found, "label": "ours"} if role == "auto" else found  # single steps hardly differ by recurrence


# ---- plans: the contenders of a command, and what the report needs beside them ---------------------------------------

SCALED = (
    "gru_rntn_lm_tjandra_ptb_word", "lstm_rntn_lm_tjandra_ptb_word", "r_rntn_lm_salle_ptb", "rntn_lm_salle_ptb",
    "r_gru_lm_salle_ptb", "hornn_lm_soltani_ptb", "hornn_gated_lm_soltani_ptb", "lstm_lm_salle_ptb",
)  # fmt: skip
GENERATING = ("gru_lm_salle_ptb", "lstm_lm_salle_ptb", "gru_rntn_lm_tjandra_ptb_word", "r_rntn_lm_salle_ptb")


def plan_cells(args) -> dict:
    return {"contenders": [machine(args), *(each for one in chosen(args) for each in layer_contenders(args, one))]}


def language_models(args, default: Sequence[str] = ()) -> List[Workload]:
    """The chosen ones."""
    models = [one for one in chosen(args, default) if "_lm" in one.name]
    if not models:
        raise ValueError(f"{args.what}: no language model among --cells {' '.join(args.cells)}")
    return models


def with_fair_peers(found: List[dict]) -> dict:
    return {"contenders": [one for one in found if one["spec"].get("hidden", 0) <= LARGEST_PEER]}


def plan_updates(args) -> dict:
    roles, found = (*args.recurrence, *(["lstm_lm"] if args.peers else [])), []
    for one in language_models(args):
        found += [update(args, one, role) for role in roles]
        if args.dense_gradients and "gradients" in one.options:
            found.append(dense_update(args, one))
    return with_fair_peers(found)


def plan_generation(args) -> dict:
    found = []
    for one in language_models(args, GENERATING):
        for beam, batch in itertools.product((1, 2) if args.quick else (1, 5), sorted({1, args.batch})):
            found += [generation(args, one, role, beam, batch) for role in ("auto", "lstm_lm")]
    return with_fair_peers(found)


def plan_scaling(args) -> dict:
    """One size at a time, the others as published."""
    found, points = {}, []
    for one in chosen(args, SCALED):
        factors = (0.5, 1) if args.quick else (0.25, 0.5, 1, 2)
        axes = {"H": [("hidden", round(one.hidden * factor)) for factor in factors]}
        matrices = "num_matrices" if "num_matrices" in one.options else "vocabulary" if one.cell == "rntn" else None
        if matrices:
            axes["K"] = [(matrices, count) for count in (1, 10, 100, 1000, 10_000) if count <= one.vocabulary]
        if "order" in one.options:
            axes["N"] = [("order", order) for order in ((1, 2) if args.quick else (1, 2, 3, 4, 6))]
        axes["T"] = [("steps", round(args.steps * factor)) for factor in (*factors, *(() if args.quick else (4,)))]
        axes["B"] = [("batch", batch) for batch in sorted({1, args.batch // 4 or 1, args.batch, 4 * args.batch})]
        for axis, values in axes.items():
            for name, value in values:
                sized = one.resized(**{name: value})
                sizes = argparse.Namespace(**{**vars(args), **({name: value} if name in ("steps", "batch") else {})})
                many = {**sized.options, "vocabulary": sized.vocabulary}.get(matrices)
                shape = {"H": sized.hidden, "K": many, "N": sized.options.get("order"), "T": sizes.steps}
                shape = [f"{letter} {size}" for letter, size in {**shape, "B": sizes.batch}.items() if size]
                group = ", ".join([one.name, *shape])  # the published sizes are a point on every axis
                points.append({"base": one.name, "axis": axis, "value": value, "group": group})
                for role in args.recurrence:
                    found.setdefault((group, role), our_layer(sizes, sized, role, group))
    return {"contenders": list(found.values()), "points": points}


def plan_bars(args) -> dict:
    """The requirements, row by row: two ends (group, role), their ratio and its limit (``None``: no requirement)."""
    found, bars, layers = {}, [], {}

    def preset(name: str, size: int = 0) -> Workload:
        one = workload(name)
        if size:
            one = dataclasses.replace(one.resized(input=size, hidden=size), name=f"{one.cell} {size}")
        one = one.tiny() if args.quick else one
        return layers.setdefault(one.name, one)

    def end(one: Workload, role: str, whole: bool) -> tuple:
        """A contender, entered once."""
        asked = {"ours": "auto"}.get(role, role)
        if role == "floor":
            found.setdefault("machine", machine(args))
        elif whole:
            found.setdefault(("update", one.name, asked), update(args, one, asked))
        elif role == "torch":
            found.setdefault((one.name, asked), torch_layer(args, one))
        elif role == "gather":
            found.setdefault((one.name, asked), gather_loop(args, one))
        else:
            found.setdefault((one.name, asked), our_layer(args, one, asked, only_kernels=False))
        return (f"update {one.name}" if whole else one.name, role)

    def bar(
        what: str, limit: Optional[float], top: tuple, bottom: Optional[tuple], whole=False, least=False, scale=1.0
    ) -> None:
        ends = [end(*point, whole) if point else None for point in (top, bottom)]
        bars.append({"what": what, "limit": limit, "least": least, "top": ends[0], "bottom": ends[1], "scale": scale,
                     "field": "seconds"})  # fmt: skip

    tjandra, lstm_tensor = preset("gru_rntn_lm_tjandra_ptb_word"), preset("lstm_rntn_lm_tjandra_ptb_word")
    for one, name in ((tjandra, "GRURNTN"), (lstm_tensor, "LSTMRNTN")):
        bar(f"{name}, PTB words: naive / ours", 6, (one, "naive"), (one, "ours"), least=True)
        bar(f"{name}, PTB words: ours / floor", 2, (one, "ours"), (one, "floor"))
    characters = preset("gru_rntn_lm_tjandra_ptb_char")
    bar("GRURNTN, PTB characters: naive / ours", 3, (characters, "naive"), (characters, "ours"), least=True)
    for gates in ("gru", "lstm"):
        one, plain, name = preset(f"r_{gates}_lm_salle_ptb"), preset(f"{gates}_lm_salle_ptb"), gates.upper()
        bar(f"r-{name}, K 100: naive / ours", 6, (one, "naive"), (one, "ours"), least=True)
        bar(f"r-{name}, K 100: gather loop / ours", None, (one, "gather"), (one, "ours"))
        bar(f"r-{name}, K 100: ours / our {name}", 1.6, (one, "ours"), (plain, "ours"))
    restricted, simple = preset("r_rntn_lm_salle_ptb"), preset("elman_lm_salle_ptb")
    bar("r-RNTN, K 100, update: ours / our s-RNN", 1.25, (restricted, "ours"), (simple, "ours"), whole=True)
    rntn = preset("rntn_lm_salle_ptb")
    bar("RNTN, K 10,000: gather loop / ours", 100, (rntn, "gather"), (rntn, "ours"), least=True)
    bar("RNTN, K 10,000: naive / ours", None, (rntn, "naive"), (rntn, "ours"))
    bar("RNTN: K 10,000 / K 100", 2, (rntn, "ours"), (restricted, "ours"))
    elman = preset("elman_lm_soltani_ptb")
    for cell, name, limit in (("hornn", "HORNN", 1.3), ("hornn_gated", "gated HORNN", 2.0)):
        bar(f"{name}, order 3, update: ours / our RNN", limit, (preset(f"{cell}_lm_soltani_ptb"), "ours"),
            (elman, "ours"), whole=True)  # fmt: skip
    for cell in ("lstm", "gru"):
        for size in (200, 650, 860):
            one = preset(f"{cell}_lm_salle_ptb", size)
            bar(f"{cell.upper()} {size}: ours / torch", 1.0, (one, "ours"), (one, "torch"))
    bar("GRURNTN, PTB words, update: ours / lstm_lm", 1.0, (tjandra, "ours"), (tjandra, "lstm_lm"), whole=True)
    bar("GRURNTN, PTB words, epoch: ours / naive", 0.25, (tjandra, "ours"), (tjandra, "naive"), whole=True)
    for one in layers.values():
        if {(one.name, "naive"), (one.name, "auto")} <= found.keys():
            bar(f"memory, {one.name}: ours / naive", 1.0, (one, "ours"), (one, "naive"))
            bars[-1]["field"] = "memory"
    if args.device == "cuda":
        bar("GPU: GRURNTN, PTB words: naive / ours", 20, (tjandra, "naive"), (tjandra, "ours"), least=True)
        for size in (200, 650, 860):
            one = preset("lstm_lm_salle_ptb", size)
            bar(f"GPU: LSTM {size}: cuDNN / ours", 0.8, (one, "torch"), (one, "ours"), least=True)
        for one in paper_sizes():
            if re.search(r"_lm_(tjandra_ptb_word|salle_ptb|soltani_ptb)", one.name):
                one = preset(one.name)
                bar(f"GPU: PTB epoch of {one.name}", 15, (one, "ours"), None, whole=True, scale=EPOCH)
    return {"contenders": list(found.values()), "bars": bars}


EPOCH = 929_589 / (20 * 35)  # updates of a PTB epoch, B 20, T 35
PLANS = {
    "cells": plan_cells, "updates": plan_updates, "generation": plan_generation, "scaling": plan_scaling,
    "bars": plan_bars,
}  # fmt: skip
