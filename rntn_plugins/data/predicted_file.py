"""The CoNLL-U file with a model's predictions."""

from __future__ import annotations

import logging
from typing import Dict, List

from rntn_plugins.data.conllu import read_conllu, write_conllu

logger = logging.getLogger(__name__)


class PredictedFile:
    """Collects the predicted columns of sentences in any order; writes them into a copy of the original file.

    Args:
        original: path of the file that was read.
        path: where to write.
        sentences: how many there are.
    """

    def __init__(self, original: str, path: str, sentences: int) -> None:
        self.original, self.path = original, path
        self.wanted = set(range(sentences))
        self.columns: Dict[int, Dict[str, List]] = {}

    def only(self, wanted: set, shard: str) -> None:
        """Another process predicts the other sentences: write these only, into a file with *shard* in its name."""
        self.wanted = wanted
        self.path = f"{self.path}.{shard}"

    def put(self, index: int, columns: Dict[str, List]) -> bool:
        """What the columns of a sentence become; with the last one the file is written. Whether it was."""
        self.columns[index] = columns
        complete = len(self.columns) == len(self.wanted)
        if complete:
            self.write()
        return complete

    def write(self) -> None:
        treebank = read_conllu(self.original)
        texts = (treebank.sentences[index].with_columns(**self.columns[index]) for index in sorted(self.columns))
        write_conllu(self.path, treebank, texts)
        logger.info(f"wrote {len(self.columns):,} sentences to {self.path}")
