"""The checkpoints of a training: the one that it goes on from, and the one that is scored."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import List, Optional, Tuple

from outputs import whole
from reproduction.manifest import Refused
from reproduction.process import relative

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


def saved(folder: Path, name: str = LAST) -> Tuple[int, float]:
    """Updates and fairseq's count of the training time (seconds) in a checkpoint; 0 without one.

    Raises:
        Refused: it is damaged.
    """
    path = folder / name
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
        Damaged: it is not whole, or something else.
        OSError, MemoryError: it cannot be read now.
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
        passing = isinstance(error, OSError) and error.errno != errno.EINVAL  # which seeking before a cut file raises
        if passing or isinstance(error, (MemoryError, UnicodeError)):  # a name that the locale cannot say
            raise
        raise Damaged(next(iter(str(error).splitlines()), type(error).__name__)) from None


def checkpoints(folder: Path) -> List[Path]:
    """Those of names that fairseq gives: the best, the last, after an epoch, after updates of an epoch."""
    names = re.compile(r"checkpoint_(best|last|\d+|\d+_\d+)\.pt")
    return sorted(path for path in folder.glob("checkpoint_*.pt") if names.fullmatch(path.name))


def mend(folder: Path) -> Optional[str]:
    """Where another checkpoint is of more updates than the last, or that is damaged or not there, the furthest takes
    its place. fairseq writes one file as a whole, the best where it is that, and copies it to the other names: a
    process that is killed meanwhile leaves a part of the copy, or what was there before. A damaged one is put aside.

    Returns:
        what was done, to be told; ``None`` where nothing was to do, or could be done.
    """
    last, able, why = folder / LAST, [], "was not there"
    for path in checkpoints(folder):
        try:
            able.append((read(path)[0], path == last, path))
        except Damaged as error:
            why = f"was damaged ({error})" if path == last else why
    if not able or max(able)[1]:
        return None
    updates, _, path = max(able)
    if any(is_last for _, is_last, _ in able):
        why = "was older"
    elif last.exists():
        os.replace(last, last.with_suffix(".damaged"))
    with whole(last) as part:
        shutil.copyfile(path, part)
    return f"{LAST} {why}: {path.name} took its place, of after {updates:,} updates"
