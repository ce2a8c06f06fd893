"""How far back a token still moves what a trained model makes of the text (the memory analysis of E18 §2-3).

    python scripts/memory.py data-bin/ptb checkpoints/lstm/checkpoint_best.pt checkpoints/gru_rntn/checkpoint_best.pt
    python scripts/memory.py data-bin/ud-en checkpoints/tagger/checkpoint_best.pt --lags 40 --out memory.svg

For every lag k: the norm of the Jacobian ∂h_t/∂x_{t-k} of the recurrent layers' output with respect to their input k
steps before, the same for the cell state c, the product of the forget or update gates between the two, and the scales s
of the ELSTM; medians and quartiles over random positions t of a split. One line a model; ``--json`` keeps the numbers.
docs/memory.md says how to read them. Of bidirectional models it is the forward direction, of encoder-decoders the
encoder. Needs matplotlib: ``pip install 'rntn-plugins[plots]'``.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import pickle
import sys
from argparse import Namespace
from pathlib import Path
from typing import List, Optional

import numpy as np
import torch
from memory_report import describe, draw, summary
from outputs import check_file, check_picture, told_apart
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, installed or not

STREAMS = 20
SENTENCES = 16
#: lags, positions or probes: more would be gigabytes for nothing
LARGEST = 100_000
#: tokens read for each position, so that positions come from all over the split and not from its first lines
TOKENS = 50


# ---- text ------------------------------------------------------------------------------------------------------------


def load(checkpoint: str, data: str):
    """Model and task of a checkpoint, its recurrent layers and their name.

    Raises:
        ValueError: there is none, its data are others, or it has no such layers.
    """
    from fairseq import checkpoint_utils

    from rntn_plugins.layers.windows import reading_layers

    overrides = {"data": data, "recurrence": "naive"}  # a model of Triton kernels must load where there are none
    try:
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], overrides)
        return model.float().eval(), task, *reading_layers(model)
    except (ValueError, OSError) as error:
        cut = isinstance(error, OSError) and error.errno == errno.EINVAL  # which seeking before the start raises
        raise ValueError(f"{checkpoint}: {'it is cut off' if cut else error}") from None
    except Exception as error:  # pickle, zip files and fairseq's registries raise all kinds
        said = [type(error).__name__]
        if not isinstance(error, pickle.UnpicklingError):  # torch advises to load without a check of what it would run
            said += str(error).strip().splitlines()[:1]
        raise ValueError(
            f"{checkpoint} cannot be loaded ({': '.join(said)}); is it a checkpoint of fairseq, and does "
            "its model need --user-dir?"
        ) from None


def read_texts(model, layers, task, subset: str, tokens: int, lags: int, seed: int) -> list:
    """What the layers read of a split: about *tokens* steps of it, or all. Language models read contiguous streams (or
    sentences, as they were trained), other models sentences in a random order."""
    from rntn_plugins.data.lm_dataset import BlockDataset, Corpus, make_plan
    from rntn_plugins.layers.windows import Text, inputs_of

    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    dataset, found, count = task.dataset(subset), [], 0
    if isinstance(dataset, Corpus):
        rows = max(1, min(STREAMS, len(dataset) // (4 * (lags + 1))))  # streams much longer than the lags
        plan = make_plan(dataset, task.args.sample_break_mode, rows, task.args.tokens_per_sample)
        blocks = BlockDataset(dataset, plan, task.dictionary.eos(), task.dictionary.pad())
        batches = (blocks[number] for number in plan.order(np.random.RandomState(seed)))  # shuffles sentences only
    else:
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).split(SENTENCES)
        batches = (dataset.collater([dataset[index] for index in some.tolist()]) for some in order)
    if lags >= sum(dataset.sizes):
        raise ValueError(f"--lags {lags}: {subset} has only {sum(dataset.sizes):,} tokens")
    for batch in batches:
        x, symbols, lengths = inputs_of(model, layers, **batch["net_input"])
        if lengths is None:
            lengths = steps_of(model, batch["net_input"]).clamp(max=len(x))
        text = Text(x, symbols, lengths)
        if batch.get("first", True):
            found.append([text])
        else:  # goes on where the block before it ended
            found[-1].append(text)
        count += int(lengths.sum())
        if count >= tokens:
            break
    return [Text(torch.cat([x for x, _, _ in blocks]),
                 None if blocks[0].tokens is None else torch.cat([symbols for _, symbols, _ in blocks]),
                 sum(lengths for _, _, lengths in blocks)) for blocks in found]  # fmt: skip


def steps_of(model, net_input: dict) -> Tensor:
    """Where all steps of a fixed length are read: those that put out a label, or in encoders the words, ``[B]``."""
    if hasattr(model, "per_step"):
        return -(-net_input["target_lengths"] // model.per_step)
    return net_input["src_lengths"]


# ---- command ---------------------------------------------------------------------------------------------------------


def names_of(checkpoints: List[str]) -> List[str]:
    """What tells the checkpoints apart: their folder, with the file's name or as a whole path where it must be."""
    return told_apart(checkpoints, lambda path: path.parent.name, lambda path: f"{path.parent.name}/{path.stem}")


def analyse(args: Namespace) -> dict:
    """All models, as ``--json`` writes them."""
    from rntn_plugins.layers.memory import analyse

    for name in ("lags", "positions", "probes"):
        if not 1 <= getattr(args, name) <= LARGEST:
            raise ValueError(f"--{name} {getattr(args, name)} must be from 1 to {LARGEST:,}")
    found = []
    for name, checkpoint in zip(names_of(args.checkpoints), args.checkpoints):

        def progress(done: int, of: int, name: str = name) -> None:
            print(f"{name}: {done} of {of} positions", file=sys.stderr)

        model, task, layers, which = load(checkpoint, args.data)
        texts = read_texts(model, layers, task, args.subset, TOKENS * args.positions, args.lags, args.seed)
        result = analyse(layers, texts, args.lags, args.positions, args.probes, args.seed, progress)
        found.append({"name": name, "checkpoint": checkpoint, "network": which, **describe(result)})
        print(summary(found[-1]))
    return {"subset": args.subset, "lags": args.lags, "probes": args.probes, "seed": args.seed, "models": found}


def check_outputs(args: Namespace) -> None:
    """``ValueError`` before the work where it could not be written."""
    check_picture("--out", args.out)
    if args.json:
        check_file("--json", args.json)
        if os.path.realpath(args.json) == os.path.realpath(args.out):
            raise ValueError(f"--json {args.json} and --out are the same file")
    try:
        import matplotlib
    except ImportError:
        raise ValueError("matplotlib is not installed: pip install 'rntn-plugins[plots]'") from None
    matplotlib.use("Agg")


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, 130 when interrupted, or 2 after one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="memory", description=__doc__.splitlines()[0])
    parser.add_argument("data", metavar="DATA_BIN", help="binarised data that the models were trained on")
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="trained model; its folder is the legend")
    parser.add_argument("--subset", default="valid", help="split whose text is read (default: %(default)s)")
    parser.add_argument("--lags", type=int, default=60, help="K: how far back to look (default: %(default)s)")
    parser.add_argument(
        "--positions", type=int, default=200, help="how many random positions of the text (default: %(default)s)"
    )
    parser.add_argument(
        "--probes", type=int, default=16,
        help="products that estimate the norm of each Jacobian; the hidden size or more: exact (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of positions and probes (default: %(default)s)")
    parser.add_argument("--out", default="memory.png", metavar="FILE", help="picture: PNG, SVG or PDF (default: "
                        "%(default)s)")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="where to write the numbers")
    parser.add_argument("--user-dir", help="folder with further cells and architectures, as for fairseq-train")
    args = parser.parse_args(arguments)

    for name in ("fairseq", "rntn_plugins", "matplotlib"):  # fairseq lets everybody speak
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from fairseq import utils

        import rntn_plugins  # noqa: F401  (registers the models)

        if not 0 <= args.seed < 2**32:
            raise ValueError(f"--seed {args.seed}: no number from 0 to {2**32 - 1}")
        if args.user_dir:
            try:
                utils.import_user_module(args)
            except FileNotFoundError:
                raise ValueError(f"--user-dir {args.user_dir}: there is no such folder") from None
        check_outputs(args)
        result = analyse(args)
        if args.json:
            Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(f"wrote {args.json}")
        draw(result, args.out)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"memory: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("memory: interrupted", file=sys.stderr)
        return 130
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
