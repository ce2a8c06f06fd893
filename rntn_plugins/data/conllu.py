"""CoNLL-U files, read for their words and written back byte for byte but for the columns a model predicts.

The ``conllu`` package says what an id and a head mean. Its reader of whole lines also cuts at two spaces, trims and
reorders comments, so lines and columns are cut here: lines at ``\\n`` (or ``\\r\\n``), columns at tabs, nowhere else.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from operator import index
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from conllu.exceptions import ParseException
from conllu.parser import parse_id_value, parse_int_value

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
ID, FORM, UPOS, XPOS, FEATS, HEAD, DEPREL = map(
    COLUMNS.index, ("id", "form", "upos", "xpos", "feats", "head", "deprel")
)
EMPTY = "_"
BOM = "\ufeff"


class Word(NamedTuple):
    """One syntactic word: a line whose id is an integer. Multiword ranges and empty nodes are no words."""

    form: str
    lemma: str
    upos: str
    xpos: str
    head: Optional[int]  # 1..n, 0 for the root, None where it is "_"
    deprel: str  # "_" where missing
    line: int  # in the file, from 1


class Malformed(NamedTuple):
    """What is wrong with a sentence, and where."""

    name: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line}: {self.reason}"


class ConlluError(ValueError):
    """A malformed sentence; the message is ``name:line: reason``."""

    def __init__(self, malformed: Malformed) -> None:
        super().__init__(malformed)
        self.malformed = malformed


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and its block of the file, from its comments to the blank lines that end it."""

    words: List[Word]
    text: str  # exactly as in the file
    first_line: int  # of the text in the file, from 1
    name: str  # of the file, for messages

    @property
    def parsed(self) -> bool:
        """Whether all words have a head."""
        return all(word.head is not None for word in self.words)

    def column(self, name: str) -> List[str]:
        """``form``, ``lemma``, ``upos``, ``xpos``, ``head`` or ``deprel`` of each word.

        Raises:
            ValueError: a name that is none of these.
        """
        if name not in Word._fields[:-1]:
            raise ValueError(f"column {name!r}: choose from {', '.join(Word._fields[:-1])}")
        return [EMPTY if value is None else str(value) for value in (getattr(word, name) for word in self.words)]

    def with_columns(self, **columns: Sequence) -> str:
        """The text with these columns of its words replaced and every other byte kept.

        A value is a string, or for a head also an integer. New heads make DEPS of the words ``_``, unless given. That
        heads form a tree is for the caller to see to.

        Raises:
            ValueError: an unknown column, not one value for each word, or a value no column can hold.
        """
        for name, values in columns.items():
            if name not in COLUMNS[1:]:
                raise ValueError(f"column {name!r}: choose from {', '.join(COLUMNS[1:])}")
            if len(values) != len(self.words):
                raise ValueError(f"column {name!r}: {len(values)} values for {len(self.words)} words")
            values = [str(index(value)) if name == "head" and not isinstance(value, str) else value for value in values]
            columns[name] = [_checked(value, f"column {name!r}") for value in values]
        if "head" in columns:
            columns.setdefault("deps", [EMPTY] * len(self.words))
        lines = list(_lines(self.text))
        for number, word in enumerate(self.words):
            line = lines[word.line - self.first_line]
            content = _content(line)
            fields = content.split("\t")
            for name, values in columns.items():
                fields[COLUMNS.index(name)] = values[number]
            lines[word.line - self.first_line] = "\t".join(fields) + line[len(content) :]
        return "".join(lines)


class Treebank(NamedTuple):
    """A file: head, the texts of its sentences and tail joined are its text, if nothing was malformed."""

    sentences: List[Sentence]
    malformed: List[Malformed]  # one for each sentence left out
    head: str  # a byte order mark or nothing
    tail: str  # what follows the last sentence


def read_conllu(path, skip_invalid: bool = False) -> Treebank:
    """Read a file of UTF-8; see :func:`parse_conllu`.

    Raises:
        FileNotFoundError: no such file.
        ConlluError: a malformed sentence, or bytes that are no UTF-8 (also with *skip_invalid*).
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte 0x{data[error.start]:02x} is not UTF-8; a CoNLL-U file is"
        raise ConlluError(Malformed(str(path), data.count(b"\n", 0, error.start) + 1, reason)) from None
    return parse_conllu(text, str(path), skip_invalid)


def parse_conllu(text: str, name: str = "<text>", skip_invalid: bool = False) -> Treebank:
    """The sentences of a text.

    Args:
        name: for messages.
        skip_invalid: leave malformed sentences out and list the first problem of each.

    Raises:
        ConlluError: the first malformed sentence, unless *skip_invalid*.
    """
    head = BOM if text.startswith(BOM) else ""
    treebank = Treebank([], [], head, "")
    for first_line, lines, has_tokens in _blocks(text[len(head) :]):
        if not has_tokens:  # only the last block
            return treebank._replace(tail="".join(lines))
        try:
            words = _words(lines, first_line, name)
        except ConlluError as error:
            if not skip_invalid:
                raise
            treebank.malformed.append(error.malformed)
        else:
            treebank.sentences.append(Sentence(words, "".join(lines), first_line, name))
    return treebank


def write_conllu(path, treebank: Treebank, sentences: Iterable[str]) -> None:
    """Write the texts of sentences between head and tail of a treebank; all of the file or nothing."""
    unfinished = f"{path}.{os.getpid()}.tmp"
    try:
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            file.write(treebank.head)
            file.writelines(sentences)
            file.write(treebank.tail)
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise


def sentence_from_words(forms: Sequence[str], number: int = 1) -> Sentence:
    """A sentence without annotation.

    Args:
        number: of the sentence in what is read, for messages.

    Raises:
        ValueError: no forms, or a form no column can hold.
    """
    name = f"<sentence {number}>"
    if not forms:
        raise ValueError(f"{name}: no words; at least 1")
    rest = "\t".join([EMPTY] * (len(COLUMNS) - 2))
    lines = [f"{at}\t{_checked(form, name)}\t{rest}\n" for at, form in enumerate(forms, 1)]
    words = [Word(form, EMPTY, EMPTY, EMPTY, None, EMPTY, at) for at, form in enumerate(forms, 1)]
    return Sentence(words, "".join(lines) + "\n", 1, name)


def _checked(value: str, where: str) -> str:
    if not isinstance(value, str) or not value or any(character in value for character in "\t\n\r"):
        raise ValueError(f"{where}: {value!r}; a value is a string, not empty, without tab and line end")
    return value


def _lines(text: str) -> Iterator[str]:
    return io.StringIO(text, newline="\n")  # unlike splitlines, not at other line ends of Unicode


def _content(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _blocks(text: str) -> Iterator[Tuple[int, List[str], bool]]:
    """First line, lines and whether any is no comment and not blank; so it is in all blocks but perhaps the last."""
    first_line, lines, has_tokens, ended = 1, [], False, False
    for number, line in enumerate(_lines(text), 1):
        blank = not _content(line)
        if ended and not blank:
            yield first_line, lines, True
            first_line, lines, has_tokens = number, [], False
        lines.append(line)
        has_tokens = has_tokens or not (blank or line.startswith("#"))
        ended = has_tokens and blank
    yield first_line, lines, has_tokens


def _words(lines: List[str], first_line: int, name: str) -> List[Word]:
    """The words of a block; ConlluError at its first problem in columns and ids, or else in the tree."""
    words: List[Word] = []
    ids = _Ids()
    token_lines = []
    for number, line in enumerate(lines, first_line):
        line = _content(line)
        if not line or line.startswith("#"):
            continue
        token_lines.append(number)
        try:
            fields = _fields(line)
            if ids.is_word(fields[ID], number):
                words.append(Word(*fields[FORM:FEATS], _head(fields[HEAD]), fields[DEPREL], number))
        except ValueError as error:
            raise ConlluError(Malformed(name, number, str(error))) from None
    problem = ids.problem_at_end(token_lines[0]) or _problem_of_tree(words)
    if problem:
        raise ConlluError(Malformed(name, *problem))
    return words


def _fields(line: str) -> List[str]:
    fields = line.split("\t")
    if not line.strip(" \t"):
        raise ValueError("a line of nothing but spaces; the line that ends a sentence has none")
    if len(fields) != len(COLUMNS):
        raise ValueError(f"number of columns: {len(fields)}; a line has {len(COLUMNS)}, separated by tabs")
    if "" in fields:
        raise ValueError(f"column {COLUMNS[fields.index('')].upper()} is empty; where there is no value stands _")
    if not fields[FORM].strip() or "\r" in fields[FORM]:
        raise ValueError(f"FORM {fields[FORM]!r}: it is nothing but white space, or has a carriage return")
    for column in (UPOS, XPOS, DEPREL):
        if fields[column].split() != [fields[column]]:
            raise ValueError(
                f"{COLUMNS[column].upper()} {fields[column]!r}: white space; only FORM, LEMMA and MISC may hold any"
            )
    return fields


def _head(text: str) -> Optional[int]:
    try:
        return parse_int_value(text)
    except (ParseException, ValueError):
        raise ValueError(f"head {text!r} is not an integer; a head is 0, the id of a word, or _") from None


class _Ids:
    """The ids of a sentence, told line by line, each checked against those before it."""

    def __init__(self) -> None:
        self.seen = set()
        self.words = self.empty_nodes = 0  # the last word, the empty nodes since
        self.range_end = self.range_line = 0  # of the last range

    def is_word(self, text: str, line: int) -> bool:
        """Whether this id is that of a word. ValueError if it may not stand here."""
        try:
            parts = parse_id_value(text)
        except (ParseException, ValueError):
            parts = None
        parts = (parts,) if isinstance(parts, int) else parts or ()
        if "".join(map(str, parts)) != text:  # the package takes 01.1
            raise ValueError(f"id {text!r} is no word (3), range of words (3-4, not 4-3) or empty node (3.1)")
        if text in self.seen:
            raise ValueError(f"id {text} for the second time; ids are distinct")
        self.seen.add(text)
        if len(parts) == 1:
            if parts[0] != self.words + 1:
                raise ValueError(f"id {text} where {self.words + 1} is due; words are numbered 1, 2, 3 and so on")
            self.words, self.empty_nodes = self.words + 1, 0
        elif parts[1] == "-":
            if parts[0] != self.words + 1:
                raise ValueError(f"range {text} before word {self.words + 1}; a range stands before its first word")
            if parts[0] <= self.range_end:
                raise ValueError(f"range {text} overlaps one that ends at {self.range_end}; ranges are disjoint")
            self.range_end, self.range_line = parts[2], line
        else:
            if (parts[0], parts[2]) != (self.words, self.empty_nodes + 1):
                due = f"{self.words}.{self.empty_nodes + 1}"
                raise ValueError(f"empty node {text} where only {due} can be; 3.1 follows word 3, 3.2 follows 3.1")
            self.empty_nodes += 1
        return len(parts) == 1

    def problem_at_end(self, first_token_line: int) -> Optional[Tuple[int, str]]:
        if self.range_end > self.words:
            return self.range_line, f"range ends at {self.range_end}; the last word is {self.words}"
        if self.words == 0:
            return first_token_line, "no words; a sentence has at least 1"
        return None


def _problem_of_tree(words: List[Word]) -> Optional[Tuple[int, str]]:
    """Line and reason of the first problem of the heads; None for a tree, or no tree at all."""
    heads = [word.head for word in words]
    if all(head is None for head in heads):
        return None
    for number, word in enumerate(words, 1):
        if word.head is None:
            return word.line, f"word {number} has head _ but others have one; all words have a head or none"
        if not 0 <= word.head <= len(words):
            return word.line, f"head {word.head} of word {number} is out of range; 0 to {len(words)}"
        if word.head == number:
            return word.line, f"word {number} is its own head; 0 is the head of the root"
        if word.deprel == EMPTY:
            return word.line, f"word {number} has a head but deprel _; a word with a head has a deprel"
    roots = [number for number, head in enumerate(heads, 1) if head == 0]
    if len(roots) != 1:
        line = words[roots[1] - 1].line if roots else words[0].line
        return line, f"words with head 0: {roots or 'none'}; exactly 1 is the root"
    cycle = _cycle(heads)
    if cycle:
        return words[cycle[0] - 1].line, f"words {cycle} are a cycle, each the head of the one before; heads are a tree"
    return None


def _cycle(heads: List[int]) -> List[int]:
    """The words, counted from 1, of the first cycle there is."""
    rooted = {0}
    for word in range(1, len(heads) + 1):
        path: Dict[int, None] = {}  # a set in order
        while word not in rooted and word not in path:
            path[word] = None
            word = heads[word - 1]
        if word not in rooted:
            return list(path)[list(path).index(word) :]
        rooted.update(path)
    return []
