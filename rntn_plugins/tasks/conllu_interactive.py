"""What ``fairseq-interactive`` needs to read sentences that take several lines and have several columns."""

import contextlib
import itertools
import os
import stat
import sys
from collections import deque
from typing import Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

from fairseq import utils

from rntn_plugins.data.conllu import Sentence


class Waiting:
    """Batches between their making and their use: fairseq-interactive forgets all of a batch but its ``src_tokens``."""

    def __init__(self) -> None:
        self.batches: Deque[dict] = deque()
        self.texts: Dict[int, str] = {}  # of what is read in one go, by number
        self.wanted = 0
        self.asked = False

    def watch(self, dataset, sentences: List[Sentence]) -> None:
        """Keep the batches that a dataset of *sentences* makes."""
        self.texts, self.wanted = {}, len(sentences)
        collate: Callable[[list], dict] = dataset.collater

        def collater(items):
            batch = collate(items)
            batch["sentences"] = [sentences[item["id"]] for item in items]
            self.batches.append(batch)
            return batch

        dataset.collater = collater

    def whole(self, sample: dict) -> dict:
        """The batch of which fairseq kept the source."""
        batch = self.batches.popleft()
        source = sample["net_input"]["src_tokens"]
        assert source.cpu().equal(batch["net_input"]["src_tokens"])
        return utils.move_to_cuda(batch, source.device) if source.is_cuda else batch

    def answer(self, batch: dict, columns: List[dict]) -> None:
        """What the columns of the sentences of a batch become."""
        self.asked = True
        for index, sentence, new in zip(batch["id"].tolist(), batch["sentences"], columns):
            self.texts[index] = sentence.with_columns(**new)

    def ready(self) -> str:
        """The sentences in the order they were read in, once all have been answered; nothing before that."""
        if len(self.texts) < self.wanted:
            return ""
        return "".join(self.texts[index] for index in sorted(self.texts))


#: device and number of the files that fairseq-interactive has read from
read_from: Set[Optional[Tuple[int, int]]] = set()


def identity(file) -> Optional[Tuple[int, int]]:
    """Device and number of a file, of its path or its descriptor; ``None`` for a terminal or a pipe."""
    found = os.stat(file)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def check_not_read(path: str) -> None:
    """``ValueError`` where what is appended to a file would be read from it again."""
    if os.path.exists(path) and identity(path) in read_from - {None}:
        raise ValueError(f"--conllu-output {path} is the file that is read")


def read_lines(source: str, size: int) -> Iterator[List[str]]:
    """Lines without their ends, *size* at a time, from a file (``-``: standard input), and an empty line behind them,
    which ends the last sentence. fairseq's own strips them of tabs and spaces, which may be columns."""
    with contextlib.ExitStack() as stack:
        file = sys.stdin if source == "-" else stack.enter_context(open(source, encoding="utf-8-sig"))
        with contextlib.suppress(OSError, ValueError):  # something in memory
            read_from.add(identity(file.fileno()))
        lines = (line.rstrip("\r\n") for line in file)
        while found := list(itertools.islice(lines, size)):
            yield found
    yield [""]


def read_lines_as_they_are() -> None:
    """Let ``fairseq-interactive`` read by :func:`read_lines`."""
    for name in ("__main__", "fairseq_cli.interactive"):
        module = sys.modules.get(name)
        if hasattr(module, "buffered_read"):
            module.buffered_read = read_lines
