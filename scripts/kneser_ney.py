"""An n-gram language model as a fairseq checkpoint: the yardstick of neural models, scored as they are.

    python scripts/kneser_ney.py data-bin/ptb --output kn5.pt
    fairseq-eval-lm data-bin/ptb --user-dir rntn_plugins --task rntn_language_modeling --sample-break-mode eos \
        --path kn5.pt

Interpolated modified Kneser-Ney (Chen and Goodman 1998), no n-gram cut off, over the symbols of dict.txt that a text
can hold. The perplexities printed here are computed from the tables, not by fairseq's evaluation, which gives the same.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from pathlib import Path
from typing import List, Optional

import numpy as np
from outputs import check_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, installed or not


def load_tokens(task, split: str) -> Optional[np.ndarray]:
    """The symbols of a split, ``</s>`` after every sentence; ``None`` if there is no such split.

    Raises:
        ValueError: an empty or damaged one, or one that was binarised with another dictionary.
    """
    try:
        task.load_dataset(split, combine=split == "train")  # train1, train2, ... as well, as training does
    except FileNotFoundError:
        return None
    return task.dataset(split).tokens


def settings(folder: str, order: int):
    """fairseq's configuration with this task and model."""
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY
    from omegaconf import OmegaConf

    cfg = OmegaConf.structured(FairseqConfig)
    task, model = "rntn_language_modeling", "kneser_ney_lm"
    cfg.task = TASK_DATACLASS_REGISTRY[task](_name=task, data=folder, sample_break_mode="eos")
    cfg.criterion = CRITERION_DATACLASS_REGISTRY["cross_entropy"](_name="cross_entropy")  # for fairseq-validate
    cfg.model = MODEL_DATACLASS_REGISTRY[model](_name=model, order=order)
    return cfg


def save(model, cfg, file: str) -> None:
    """Write a checkpoint that holds nothing but tensors and plain values, so that it loads with ``weights_only``."""
    import torch
    from omegaconf import OmegaConf

    checkpoint = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": [
            {
                "criterion_name": "CrossEntropyCriterion",
                "optimizer_name": "none",
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "task_state": {},
        "extra_state": {"epoch": 0, "train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
    part, content = f"{file}.part", io.BytesIO()
    torch.save(checkpoint, content)
    try:
        with open(part, "wb") as output:  # torch has no clear words for a full disk
            output.write(content.getbuffer())
        os.replace(part, file)
    except OSError as error:
        raise OSError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        if os.path.exists(part):
            os.remove(part)


def run(folder: str, output: str, order: int, fallback: bool) -> None:
    """Count, say what was counted, and write the checkpoint."""
    from fairseq import tasks

    import rntn_plugins  # noqa: F401  (registers task and model)
    from rntn_plugins.data.kneser_ney import FALLBACK
    from rntn_plugins.metrics import perplexity

    check_file("--output", output)
    cfg = settings(folder, order)
    try:
        task = tasks.setup_task(cfg.task)
    except ValueError:
        raise
    except Exception as error:  # fairseq raises plain Exception for a bad dict.txt
        raise ValueError(f"{folder}: {error}") from None
    tokens = load_tokens(task, "train")
    if tokens is None:
        raise ValueError(f"{folder}: no split 'train' here (train.bin and train.idx)")
    model = task.build_model(cfg.model)
    tables = model.estimate(tokens, FALLBACK if fallback else None)
    print(f"train: {len(tokens):,} tokens; {int(tables.possible.sum()):,} symbols that a text can hold")
    for n, (level, discounts) in enumerate(zip(tables.levels, tables.discounts), 1):
        values = " ".join(f"{value:.4f}" for value in discounts)
        print(f"{n}-grams: {len(level.keys):,}, discounts D1 D2 D3+ {values}")
    for split in ("valid", "test"):
        tokens = load_tokens(task, split)
        if tokens is None:
            print(f"{split}: no such split")
            continue
        bits = tables.bits(tokens)
        score = perplexity(bits, len(tokens))
        print(f"{split}: {len(tokens):,} tokens, {bits / len(tokens):.4f} bits, perplexity {score:.2f}")
    save(model, cfg, output)
    print(f"wrote {output}")


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, 130 when interrupted, or 2 after one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="kneser_ney", description="A Kneser-Ney model as a fairseq checkpoint.")
    parser.add_argument("data", metavar="DATA_BIN", help="folder that fairseq-preprocess --only-source wrote")
    parser.add_argument("--output", required=True, metavar="FILE", help="checkpoint to write")
    parser.add_argument("--order", type=int, default=5, help="N: words are predicted from N - 1 words (default: 5)")
    parser.add_argument(
        "--discount-fallback",
        action="store_true",
        help="where a text is too small (or has too few symbols, as with characters) to estimate discounts, take "
        "0.5, 1 and 1.5, as KenLM does, instead of stopping",
    )
    args = parser.parse_args(arguments)
    for name in ("fairseq", "rntn_plugins"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        run(args.data, args.output, args.order, args.discount_fallback)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"kneser_ney: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kneser_ney: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
