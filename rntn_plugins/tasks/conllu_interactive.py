"""What ``fairseq-interactive`` needs to read sentences that take several lines and have several columns."""

import sys
from collections import deque
from typing import Callable, Deque, Dict, List

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


def end_input_with_an_empty_line() -> None:
    """Let the end of what ``fairseq-interactive`` reads end the last sentence, as an empty line does."""
    for name in ("__main__", "fairseq_cli.interactive"):
        module = sys.modules.get(name)
        read = getattr(module, "buffered_read", None)
        if read is None or hasattr(read, "ends_with_an_empty_line"):
            continue

        def buffered_read(*args, read=read):
            yield from read(*args)
            yield [""]

        buffered_read.ends_with_an_empty_line = True
        module.buffered_read = buffered_read
