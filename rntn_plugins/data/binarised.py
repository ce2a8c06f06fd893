"""Binarised text and its dictionary, read so that damage is told where it lies."""

from __future__ import annotations

import os
import struct
from typing import Optional, Sequence

from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import IndexedCachedDataset
from torch import Tensor


def load_dictionary(folder: str, made_by: str) -> Dictionary:
    """The symbols of a binarised folder's ``dict.txt``.

    Args:
        made_by: what writes such folders, for the message.

    Raises:
        ValueError: there is none or it is damaged: fairseq names no file, and some of its errors are plain Exceptions.
    """
    file = os.path.join(folder, "dict.txt")
    if not os.path.isfile(file):
        raise ValueError(f"{folder}: no dict.txt here; is it a folder written by {made_by}?")
    try:
        return Dictionary.load(file)
    except Exception as error:
        raise ValueError(f"{file}: {error}") from None


def load_binarised(
    path: str, dictionary, impl: Optional[str] = None, combine: bool = False
) -> Optional[Sequence[Tensor]]:
    """fairseq's indexed dataset of a split, one tensor a sentence; ``None``: no such split.

    Args:
        path: of the ``.bin`` and ``.idx``, without their endings.
        impl: as ``--dataset-impl``; ``lazy`` is read as ``cached``, the same file, since fairseq's lazy reader mixes up
            sentences where several data workers share one file.
        combine: read ``path1``, ``path2``, ... as well.

    Raises:
        ValueError: an empty or damaged split, or one of another *impl*: fairseq itself tells neither the path nor,
            often, anything else.
    """
    if os.path.exists(f"{path}.bin") and os.path.getsize(f"{path}.bin") == 0:  # fairseq cannot even open it
        raise ValueError(f"{path} is empty or damaged: no bytes in {os.path.basename(path)}.bin")
    try:
        reader = "cached" if str(impl) == "lazy" else impl
        sentences = data_utils.load_indexed_dataset(path, dictionary, reader, combine=combine)
        for part in getattr(sentences, "datasets", [sentences] if sentences is not None else []):
            if isinstance(part, IndexedCachedDataset):
                there, wanted = os.path.getsize(f"{part.path}.bin"), int(part.data_offsets[-1]) * part.element_size
                if there < wanted:  # fairseq would read what happens to be in memory
                    raise ValueError(f"{os.path.basename(part.path)}.bin has {there} bytes of {wanted}")
                part.prefetch(range(len(part)))  # nothing can be read by index before
            if len(part):
                part[len(part) - 1]  # a file that was cut short opens, but its last sentence is not in it
    except (AssertionError, LookupError, OSError, OverflowError, ValueError, struct.error) as error:
        reason = str(error).strip().splitlines()
        what = "empty or damaged" + (f", or not made by --dataset-impl {impl}" if impl else "")
        raise ValueError(f"{path} is {what}: {reason[0] if reason else type(error).__name__}") from None
    return sentences
