"""What scripts/benchmark.py runs in a process of its own: measures one contender.

A layer of ours, a peer, the machine's rates, whole training updates, or generation. Reads its spec (all sizes and
flags) from standard input and writes a record of samples to standard output, both JSON. A layer needs no fairseq.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Callable, Dict, List, Optional

ROOT = Path(__file__).resolve().parents[2]
LOOPS = ("naive", "gather")  # recurrences that are no kernel


def load_cells() -> None:
    """This checkout's cells; without fairseq, which the package imports but a layer does not need."""
    if "rntn_plugins" not in sys.modules:
        package = types.ModuleType("rntn_plugins")
        package.__path__ = [str(ROOT / "rntn_plugins")]
        sys.modules["rntn_plugins"] = package
    for file in sorted((ROOT / "rntn_plugins" / "cells").glob("[!_]*.py")):
        importlib.import_module(f"rntn_plugins.cells.{file.stem}")


def synchroniser(device: str) -> Callable:
    """What waits until everything that was started has been computed."""
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None


def seconds_of(run: Callable, device: str) -> float:
    synchronise = synchroniser(device)
    synchronise()
    start = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - start


def passes_a_sample(spec: dict, seconds: Callable) -> int:
    """How many passes last ``least_seconds`` together; *seconds*: takes one and says how long that was."""
    if not spec["least_seconds"]:
        return 1
    return max(1, min(1000, math.ceil(spec["least_seconds"] / max(seconds(), 1e-6))))


class PeakMemory:
    """The highest use of memory above that at construction."""

    def __init__(self, device: str) -> None:
        import torch

        gc.collect()
        self.cuda = torch.cuda if device == "cuda" else None
        self.kernel_counts = False
        if self.cuda:
            self.cuda.reset_peak_memory_stats()
        else:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
                self.kernel_counts = True
        self.before = self.peak()

    def peak(self) -> int:
        if self.cuda:
            return self.cuda.max_memory_allocated()
        if self.kernel_counts:
            return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def grown(self) -> int:
        return max(self.peak() - self.before, 0)


def measure_passes(forward: Callable, parameters, x, width: int, spec: dict) -> dict:
    """Time and memory of ``forward(x)`` and its backward pass.

    Args:
        parameters: their gradients, and that of *x*, are freed before every pass, outside the time.
        width: size of the outputs ``[T, B, width]``.
    """
    import torch

    leaves = [*parameters, x]
    gradient = torch.randn(*x.shape[:2], width, device=x.device, dtype=x.dtype)
    synchronise = synchroniser(spec["device"])

    def one_pass() -> tuple:
        for leaf in leaves:
            leaf.grad = None
        synchronise()
        wall, cpu = time.perf_counter(), time.process_time()
        forward(x).backward(gradient)
        synchronise()
        return time.perf_counter() - wall, time.process_time() - cpu

    first, _ = one_pass()  # libraries load, threads start, torch.compile compiles
    for leaf in leaves:
        leaf.grad = None
    if "rntn_plugins.ops.scratch" in sys.modules:  # what our kernels keep from pass to pass counts
        sys.modules["rntn_plugins.ops.scratch"].release()
    memory = PeakMemory(spec["device"])
    for _ in range(4 if spec["device"] == "cuda" else 1):  # there, until what comes up often is recorded as a graph
        one_pass()
    found: Dict[str, object] = {"memory": memory.grown()}
    passes = passes_a_sample(spec, lambda: one_pass()[0])
    samples = [[one_pass() for _ in range(passes)] for _ in range(spec["repeats"])]
    for number, name in enumerate(("seconds", "cpu_seconds")):
        found[name] = [statistics.fmean(taken[number] for taken in sample) for sample in samples]
    if spec.get("compile"):
        found["compile_seconds"] = max(first - statistics.median(found["seconds"]), 0.0)
    return {**found, "passes": passes, "parameters": sum(p.numel() for p in parameters)}


def gather_loop(layer) -> Callable:
    """The loop that public code has: every step of it gathers its rows' matrices, ``U[index_t]`` ``[B, H, H]``.

    Under autograd each step's backward pass then adds a gradient of the size of the whole stack ``[K, H, H]`` (given
    ``gradients="dense"``). The naive loop gathers once, before it, and adds one such gradient.
    """
    import torch

    def run(x, tokens) -> tuple:
        carry, outputs = None, []
        for x_t, tokens_t in zip(x.split(1), tokens.split(1)):
            y, carry = layer(x_t, tokens_t, None, carry)
            outputs.append(y)
        return torch.cat(outputs), carry

    return run


def measure_layer(spec: dict) -> dict:
    """One layer of a registered cell over random inputs; token-indexed cells read Zipf-distributed tokens."""
    import torch

    load_cells()
    from rntn_plugins.cells.base import Vocabulary
    from rntn_plugins.layers.recurrent import Recurrent
    from rntn_plugins.registry import build_cell

    torch.manual_seed(1)
    size, shape = spec["vocabulary"], (spec["steps"], spec["batch"])
    frequencies = 1.0 / torch.arange(1, size + 1)
    cell = build_cell(
        spec["cell"], spec["input"], spec["hidden"], Vocabulary(size, None, frequencies), **spec["options"]
    )
    if spec["only_kernels"] and spec["recurrence"] not in LOOPS and not cell.has_fused:
        return {"skipped": "no kernel"}
    layer = Recurrent(cell).to(spec["device"])
    layer.recurrence = "naive" if spec["recurrence"] in LOOPS else spec["recurrence"]
    x = torch.randn(*shape, spec["input"], device=spec["device"], requires_grad=True)
    tokens, distinct = None, 0
    if cell.token_indexed:
        tokens = torch.multinomial(frequencies, math.prod(shape), replacement=True)
        tokens = tokens.view(shape[::-1]).to(spec["device"]).t()  # batch-first memory, as models pass it on
        maps = [buffer for name, buffer in layer.named_buffers() if name.endswith("index_of_symbol")]
        distinct = (maps[0][tokens] if maps else tokens).unique().numel()
    run = gather_loop(layer) if spec["recurrence"] == "gather" else layer
    if spec.get("compile") == "loop":
        run = torch.compile(layer, dynamic=False)
    elif spec.get("compile") == "step":
        cell.step = torch.compile(cell.step, dynamic=False)
    found = measure_passes(lambda x: run(x, tokens)[0], list(cell.parameters()), x, spec["hidden"], spec)
    return {**found, "distinct": distinct, "kernel": spec["recurrence"] not in LOOPS and bool(cell.has_fused)}


def measure_torch(spec: dict) -> dict:
    """torch.nn.LSTM, GRU or RNN (on CUDA: cuDNN)."""
    import torch

    torch.manual_seed(1)
    layer = getattr(torch.nn, spec["module"])(spec["input"], spec["hidden"]).to(spec["device"])
    x = torch.randn(spec["steps"], spec["batch"], spec["input"], device=spec["device"], requires_grad=True)
    return measure_passes(lambda x: layer(x)[0], list(layer.parameters()), x, spec["hidden"], spec)


def measure_flashrnn(spec: dict) -> dict:
    """FlashRNN with one head and the input projection that it leaves to its caller."""
    import torch
    from flashrnn import flashrnn

    torch.manual_seed(1)
    size, dtype, device = spec["hidden"], getattr(torch, spec["dtype"]), spec["device"]
    gates, biases, states = {"lstm": (4, 4, 2), "gru": (3, 4, 1), "elman": (1, 1, 1)}[spec["function"]]

    def parameter(*shape: int):
        return torch.randn(*shape, device=device, dtype=dtype).div_(math.sqrt(size)).requires_grad_()

    project, recur = parameter(gates * size, spec["input"]), parameter(gates, 1, size, size)
    bias = parameter(biases, 1, size)
    first = torch.zeros(states, spec["batch"], 1, 1, size, device=device, dtype=dtype)
    x = torch.randn(spec["steps"], spec["batch"], spec["input"], device=device, dtype=dtype, requires_grad=True)

    def forward(x):
        inputs = torch.nn.functional.linear(x.transpose(0, 1), project).unflatten(2, (gates, 1, size))
        outputs, _ = flashrnn(
            inputs, recur, bias, states=first, function=spec["function"], backend=spec["backend"], dtype=spec["dtype"]
        )
        return outputs[0].squeeze(2).transpose(0, 1)

    return measure_passes(forward, [project, recur, bias], x, size, spec)


def gemms(a, b) -> List[Callable]:
    """The ways that torch has to multiply two square matrices: its BLAS, and on a CPU oneDNN (a bᵀ), if it is there.

    Which is the faster depends on processor and size.
    """
    import torch

    ways = [lambda: torch.mm(a, b)]
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if a.device.type == "cpu" and has_onednn:
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    return ways


def measure_machine(spec: dict) -> dict:
    """Floating point operations per second of a square GEMM, bytes read and written per second of a copy.

    Every sample of the GEMM is the rate of the fastest way to compute it (:func:`gemms`), so that the floor is that of
    the machine and not of one library.
    """
    import torch

    size, numbers = spec["size"], spec["numbers"]
    a, b = torch.randn(2, size, size, device=spec["device"])
    source = torch.randn(numbers, device=spec["device"])
    target = torch.empty_like(source)
    found: Dict[str, list] = {"gemm": [], "copy": []}
    for number in range(spec["repeats"] + 1):
        for name, work, ways in (
            ("gemm", 2.0 * size**3, gemms(a, b)),
            ("copy", 8.0 * numbers, [lambda: target.copy_(source)]),
        ):
            least = min(seconds_of(run, spec["device"]) for run in ways)
            if number:  # the first is warm-up
                found[name].append(work / least)
    return found


def training_command(spec: dict, folder: str) -> List[str]:
    """``fairseq-train`` as a user calls it, which saves and validates nothing and logs in JSON."""
    return [
        sys.executable, "-m", "fairseq_cli.train", spec["data"], "--save-dir", folder, "--no-save", "--seed", "1",
        "--disable-validation", "--log-format", "json", "--log-interval", str(spec["interval"]),
        "--max-update", str(spec["updates"]), *spec["flags"], *(["--cpu"] if spec["device"] == "cpu" else []),
    ]  # fmt: skip


def measure_update(spec: dict) -> dict:
    """``fairseq-train`` as a user runs it, timed by its own log."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            training_command(spec, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    found = update_times(result.stdout, spec["skip"])
    if result.returncode or not found["seconds"]:
        return {"failed": last_line(result.stdout) or f"fairseq-train ended with {result.returncode}"}
    return {**found, **used(resource.getrusage(resource.RUSAGE_CHILDREN))}


def used(usage) -> dict:
    """The highest resident size in bytes, and the seconds of processors, of the whole ``fairseq-train``."""
    return {"memory": usage.ru_maxrss * 1024, "process_cpu_seconds": usage.ru_utime + usage.ru_stime}


def update_times(log: str, skip: int) -> dict:
    """Seconds an update (words a batch over words a second: the log has both with a decimal), and parameters.

    Every line of the log after the first *skip* updates is a sample.
    """
    entries = [json.loads(line) for line in re.findall(r"train_inner \| (\{.*\})", log)]
    count = re.search(r"num\. shared model params: ([\d,]+)", log)
    return {
        "seconds": [float(e["wpb"]) / float(e["wps"]) for e in entries if int(e["num_updates"]) > skip],
        "parameters": int(count[1].replace(",", "")) if count else None,
        "kernel": "--recurrence auto takes fused" in log,
    }


def measure_generation(spec: dict) -> dict:
    """Text from a language model with random weights, by fairseq's generator as ``fairseq-generate`` calls it.

    No sentence may end before its length. The generator takes a step for every symbol: of the prefix, of what it
    generates, and ``</s>``; a step is B · beam rows.

    ``seconds``: a call at the longer of the two lengths, ``steps`` steps. ``short_seconds``: one at the shorter.
    ``step_seconds``: as many steps as the longer takes of the bare model, one symbol a row from its incremental state
    to the logits, without normalising, searching and reordering.
    """
    import torch
    from fairseq import options, tasks
    from fairseq.dataclass.configs import GenerationConfig

    import rntn_plugins  # noqa: F401  (registers its models with fairseq)

    torch.manual_seed(1)
    args = options.parse_args_and_arch(options.get_training_parser(), [spec["data"], *spec["flags"]])
    task = tasks.setup_task(args)
    model, words = task.build_model(args).to(spec["device"]), task.source_dictionary
    model.prepare_for_inference_(types.SimpleNamespace(generation=GenerationConfig(beam=spec["beam"])))
    shape = (spec["batch"], spec["prefix"])
    prefix = torch.randint(words.nspecial, len(words), shape, device=spec["device"])
    symbols = prefix.new_full((spec["batch"] * spec["beam"], 1), words.eos())

    def generation(length: int) -> Callable:
        most = spec["prefix"] + length
        settings = GenerationConfig(beam=spec["beam"], min_len=most, max_len_b=most)
        generator = task.build_generator([model], settings)

        def run() -> None:
            found = task.inference_step(generator, [model], {"net_input": {"src_tokens": prefix}}, prefix_tokens=prefix)
            lengths = {len(beam["tokens"]) for beams in found for beam in beams}
            if lengths != {most + 1}:
                raise ValueError(f"generated {sorted(lengths)} symbols and not {most + 1}")

        return run

    @torch.no_grad()
    def bare_steps() -> None:
        state: dict = {}
        for _ in range(spec["steps"]):
            model.decoder(symbols, incremental_state=state)

    short, long = map(generation, spec["lengths"])
    runs = {"seconds": long, "short_seconds": short, "step_seconds": bare_steps}

    def seconds(name: str) -> float:
        return seconds_of(runs[name], spec["device"])

    for name in runs:  # warm-up
        seconds(name)
    passes = {name: passes_a_sample(spec, lambda name=name: seconds(name)) for name in runs}
    found: Dict[str, object] = {name: [] for name in runs}
    for _ in range(spec["repeats"]):
        for name in runs:
            found[name].append(statistics.fmean(seconds(name) for _ in range(passes[name])))
    return {**found, "passes": passes, "parameters": sum(p.numel() for p in model.parameters())}


MEASURES = {
    "layer": measure_layer, "torch": measure_torch, "flashrnn": measure_flashrnn, "machine": measure_machine,
    "update": measure_update, "generation": measure_generation,
}  # fmt: skip


def measure(spec: dict) -> dict:
    """Samples of one contender, or why there are none."""
    try:
        return MEASURES[spec["kind"]](spec)
    except Exception as error:  # whatever a peer raises, the others are still to be measured
        return {"failed": f"{type(error).__name__}: {last_line(str(error), first=True)}"}


def measure_here(spec: dict) -> dict:
    """As :func:`measure`, and what it took is free again for the next."""
    import torch

    torch.set_num_threads(spec["threads"])
    found = measure(spec)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if "rntn_plugins.ops.graphs" in sys.modules:
        sys.modules["rntn_plugins.ops.graphs"].release()
    if spec["device"] == "cuda":
        torch.cuda.empty_cache()
    return found


def last_line(text: str, first: bool = False, limit: Optional[int] = 200) -> str:
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return lines[0 if first else -1].strip()[:limit]


def measure_and_print() -> int:
    """The measurement process: a spec on standard input, one line of JSON on standard output."""
    spec = json.load(sys.stdin)
    if spec["kind"] != "update":
        import torch

        torch.set_num_threads(spec["threads"])
    print(json.dumps(measure(spec)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(measure_and_print())
