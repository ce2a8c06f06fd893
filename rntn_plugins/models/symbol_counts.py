"""How often each symbol occurs in a binarised training text."""

from __future__ import annotations

import os
from typing import Optional

import numpy as np
import torch
from fairseq import utils

from rntn_plugins.data.binarised import load_binarised

CHUNK = 10_000  # sentences counted at a time


def count_symbols(task) -> Optional[torch.Tensor]:
    """Counts of all symbols of the task's dictionary in its training split, ``[V]``; ``None`` if it has none.

    ``dict.txt`` does not help: fairseq drops the counts of special symbols, and ``</s>`` and ``<unk>`` are among the
    commonest. Works for every fairseq task with a ``data`` folder.
    """
    settings = getattr(task, "args", None) or getattr(task, "cfg", None)
    data = getattr(settings, "data", None)
    if not data:
        return None
    counts = np.zeros(len(task.source_dictionary), dtype=np.int64)
    found = False
    for folder in utils.split_paths(data):
        path = os.path.join(folder, "train")
        if os.path.exists(f"{path}.bin") and os.path.getsize(f"{path}.bin") == 0:
            continue  # the task says that it is empty
        sentences = load_binarised(path, task.source_dictionary, combine=True)
        for at in range(0, len(sentences or ()), CHUNK):
            chunk = [sentences[i].numpy() for i in range(at, min(at + CHUNK, len(sentences)))]
            found_here = np.bincount(np.concatenate(chunk), minlength=len(counts))
            if len(found_here) > len(counts):
                raise ValueError(f"{path}: symbol number {len(found_here) - 1}, but dict.txt has only {len(counts)}")
            counts += found_here
            found = True
    return torch.from_numpy(counts) if found else None
