"""Sentences from lines that come one by one."""

from __future__ import annotations

import logging
from typing import Iterable, List

from rntn_plugins.data.conllu import ConlluError, Sentence, parse_conllu, sentence_from_words

logger = logging.getLogger(__name__)


class ConlluLines:
    """Collects lines and gives out the sentences that are complete.

    A line with a tab belongs to a CoNLL-U sentence, which ends with an empty line, and so do the lines that start with
    ``#`` before it; any other line is a sentence of its own, its words separated by white space. Lines like
    ``#hashtag first`` wait for the next line, which says what they are; ``# with a space`` is always a comment.
    """

    def __init__(self) -> None:
        self.block: List[str] = []
        self.count = 0  # lines read so far
        self.sentences = 0

    def read(self, lines: Iterable[str]) -> List[Sentence]:
        """The sentences that these lines complete.

        Raises:
            ConlluError: a malformed CoNLL-U sentence; the line number counts from the start of the input.
        """
        found = []
        for line in lines:
            self.count += 1
            line = line.rstrip("\r\n")
            if self.count == 1:
                line = line.removeprefix("\ufeff")  # a byte order mark
            if self.block and "\t" not in line and not line.startswith("#") and all(map(is_hashtag, self.block)):
                found += [self.plain(hashtags) for hashtags in self.block]
                self.block = []
            if "\t" in line or line.startswith("#") or (self.block and line):  # in a block: one more line, if malformed
                self.block.append(line)
                continue
            if self.block:
                found += self.finish()
            if line.split():
                found.append(self.plain(line))
        return found

    def plain(self, line: str) -> Sentence:
        self.sentences += 1
        return sentence_from_words(line.split(), self.sentences)

    def finish(self) -> List[Sentence]:
        text, before = "\n".join(self.block) + "\n\n", self.count - 1 - len(self.block)
        self.block = []
        try:
            sentences = parse_conllu(text, "input").sentences
        except ConlluError as error:
            raise ConlluError(error.malformed._replace(line=error.malformed.line + before)) from None
        if not sentences:
            logger.warning(f"input:{before + 1}: comments without words are left out")
        self.sentences += len(sentences)
        return sentences


def is_hashtag(line: str) -> bool:
    """Whether a line starts with ``#`` and a word, as comments of a treebank seldom do."""
    return line.startswith("#") and line[1:2] not in ("", " ", "#")
