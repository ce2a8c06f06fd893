"""The checkpoint that a training goes on from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import List, Optional, Tuple

from reproduce_manifest import Refused
from reproduce_process import relative

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


def saved(folder: Path) -> Tuple[int, float]:
    """Updates and fairseq's count of the training time (seconds) in the last checkpoint; 0 without one.

    Raises:
        Refused: it is damaged.
    """
    path = folder / LAST
    if not path.is_file():
        return 0, 0.0
    try:
        return read(path)
    except Damaged as error:
        raise Refused(f"{relative(path)} is damaged ({error}): remove {relative(folder)} to begin anew") from None


class Damaged(Exception):
    """No checkpoint of fairseq; the message says why."""


def read(path: Path) -> Tuple[int, float]:
    """
    Raises:
        Damaged: it cannot be loaded.
    """
    import torch

    import rntn_plugins  # noqa: F401 (lets torch load fairseq's checkpoints)

    if not path.stat().st_size:
        raise Damaged("it is empty")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        seconds = float(state["extra_state"].get("previous_training_time", 0.0))
        return int(state["optimizer_history"][-1]["num_updates"]), seconds
    except Exception as error:  # torch raises many kinds
        raise Damaged(next(iter(str(error).splitlines()), type(error).__name__)) from None


def mend(folder: Path) -> Optional[str]:
    """Where the last checkpoint is damaged, the best of the others takes its place. fairseq writes one file as a whole
    and copies it to the other names: a process that is killed meanwhile leaves a part of the copy.

    Returns:
        what was done, to be told; ``None`` where nothing was to do, or could be done.
    """
    last = folder / LAST
    if not last.is_file():
        return None
    try:
        read(last)
        return None
    except Damaged as error:
        why = error
    whole: List[Tuple[int, float, Path]] = []
    for path in folder.glob("checkpoint_*.pt"):
        try:
            whole.append((*read(path), path))
        except Damaged:
            continue
    if not whole:
        return None
    updates, _, path = max(whole)
    part = last.with_suffix(".part")
    shutil.copyfile(path, part)
    os.replace(part, last)
    return f"{LAST} was damaged ({why}): {path.name} took its place, of after {updates:,} updates"
