"""Draws the dependency trees of a CoNLL-U file for a terminal.

    python scripts/draw_tree.py dev.conllu --count 2            # the first two sentences
    python scripts/draw_tree.py dev.conllu --sentences 1,4-6

    # text = She reads old books
      ┌─► She    PRON  nsubj
    ┌─┴─● reads  VERB  root
    │ ┌─► old    ADJ   amod
    └─┴─► books  NOUN  obj

Of the arcs that meet a line the leftmost comes from the word's head, and the others go to its dependents; ``●`` is the
root, whose arcs all go to dependents. Arcs that cross without meeting are drawn ``┼``. Multiword tokens and empty nodes
are left out. Plain characters are used where the output cannot take these, and with ``--ascii``, which terminals need
that draw ``─`` two cells wide (some East Asian ones).
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import unicodedata
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

import conllu
from conllu.exceptions import ParseException
from outputs import reader_gone

BOXES = "─│┌└┬┴┼►●"
ASCII = "-|.'.'+>*"
TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # embeddings, overrides and isolates


def arc_columns(heads: Sequence[int]) -> Dict[int, int]:
    """The column of the arc to every word that has a head, 0 next to the words: ``{dependent: column}``.

    Shorter arcs come first, but the arc to a word only after those to its dependents, so that it is the outermost of
    its line. An arc lies outside of all earlier ones whose lines it shares, and so crosses none in a projective tree.

    Args:
        heads: of the words 1 to n, ``[n]``, 0 for none.

    Raises:
        ValueError: the heads make a cycle.
    """
    waiting = {word: (min(word, head), max(word, head)) for word, head in enumerate(heads, 1) if head}
    columns: Dict[int, int] = {}
    lines = [-1] * (len(heads) + 1)  # the outermost column used so far on every line
    while waiting:
        ready = waiting.keys() - {heads[word - 1] for word in waiting}
        if not ready:
            raise ValueError(f"its heads make a cycle: {' '.join(map(str, sorted(waiting)))}")
        word = min(ready, key=lambda each: (waiting[each][1] - waiting[each][0], each))
        top, bottom = waiting.pop(word)
        columns[word] = 1 + max(lines[top : bottom + 1])
        lines[top : bottom + 1] = [columns[word]] * (bottom + 1 - top)
    return columns


def draw_arcs(heads: Sequence[int]) -> List[str]:
    """What stands before the words: one string per word, all of one length.

    Args, raises: as :func:`arc_columns`.
    """
    columns = arc_columns(heads)
    width = 2 * (max(columns.values(), default=-1) + 1)
    ends: List[Dict[int, str]] = [{} for _ in heads]  # of every line, where an arc ends
    passing: List[Set[int]] = [set() for _ in heads]  # ... and where one goes by
    for word, column in columns.items():
        at = width - 2 * (column + 1)
        top, bottom = sorted((word, heads[word - 1]))
        ends[top - 1][at], ends[bottom - 1][at] = "┬", "┴"
        for line in range(top, bottom - 1):
            passing[line].add(at)
    drawn = []
    for line, head in enumerate(heads):
        start = min(ends[line], default=width)
        cells = ["─" if at > start else " " for at in range(width)]
        for at in passing[line]:
            cells[at] = "┼" if at > start else "│"
        for at, end in ends[line].items():
            cells[at] = end
        if start < width:
            cells[start] = "┌" if cells[start] == "┬" else "└"
        drawn.append("".join(cells) + ("►" if head else "●"))
    return drawn


def cells(text: str) -> int:
    """How many cells of a terminal a text fills."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in ("Mn", "Me", "Cf") for character in text)


def pad(text: str, width: int) -> str:
    """Filled with blanks to *width* cells."""
    return text + " " * (width - cells(text))


def visible(text: str) -> str:
    """Without characters that a terminal would obey, or that turn round what stands behind them."""

    def obeyed(character: str) -> bool:
        return unicodedata.category(character) == "Cc" or unicodedata.bidirectional(character) in TURNING

    return "".join("\ufffd" if obeyed(character) else character for character in text)


def cut(text: str, width: int) -> str:
    """What fits into *width* cells, ``>`` in the last of them if something is missing; 0 for no limit."""
    if not width or cells(text) <= width:
        return text
    filled = itertools.accumulate(map(cells, text))
    return text[: next(end for end, used in enumerate(filled) if used > width - 1)] + ">"


def draw(sentence: conllu.TokenList, name: str, plain: bool = False) -> List[str]:
    """The heading and a line per word.

    Args:
        name: what to call the sentence if it has neither text nor sent_id.
        plain: ASCII instead of box characters.

    Raises:
        ValueError: a word has not ten columns or another id than its place, a head is missing or no word of the
            sentence, or the heads make a cycle.
    """
    if any("id" not in token for token in sentence):  # CoNLL-U Plus, as "# global.columns" may say
        raise ValueError("its columns are without ID")
    words = [token for token in sentence if isinstance(token["id"], int)]
    for number, word in enumerate(words, 1):
        if word["id"] != number:
            raise ValueError(f"word {number} has the id {word['id']}")
        if "misc" not in word:
            raise ValueError(f"word {number} has not ten columns")
    line_of = {0: 0, **{word["id"]: line for line, word in enumerate(words, 1)}}
    for word in words:
        if word.get("head") is None:
            raise ValueError(f"word {word['id']} has no head")
        if word["head"] not in line_of:
            raise ValueError(f"the head of word {word['id']} is {word['head']}, and there is no such word")
    arcs = draw_arcs([line_of[word["head"]] for word in words])
    if plain:
        arcs = [line.translate(str.maketrans(BOXES, ASCII)) for line in arcs]
    texts = [[visible(word.get(field) or "_") for field in ("form", "upos", "deprel")] for word in words]
    widths = [max(map(cells, column)) for column in zip(*texts)]
    rows = [f"{line} {'  '.join(map(pad, text, widths))}".rstrip() for line, text in zip(arcs, texts)]
    named = [f"{key} = {sentence.metadata[key]}" for key in ("text", "sent_id") if key in sentence.metadata]
    return [visible(f"# {(named or [name])[0]}"), *rows]


def ranges(text: str) -> List[Tuple[int, int]]:
    """``"1,4-6"`` as ``[(1, 1), (4, 6)]``."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9]\d*)\s*(?:-\s*([1-9]\d*)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise argparse.ArgumentTypeError(f"{part!r} is neither a number from 1 nor a range such as 4-6")
        found.append((first, last))
    return found


def limit(text: str) -> int:
    """A number, 0 for no limit."""
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return int(text)


def sentences(file: str) -> Iterator[conllu.TokenList]:
    """
    Raises:
        ValueError: what is wrong with the file, in one line with its name.
    """
    number = 0
    try:
        with open(file, encoding="utf-8-sig") as lines:
            for sentence in conllu.parse_incr(lines):
                if not sentence:  # comments alone
                    continue
                number += 1
                yield sentence
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not UTF-8") from None
    except (ParseException, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ValueError(f"{file}: sentence {number + 1}: not CoNLL-U: {error}") from None


def drawings(file: str, chosen: Optional[List[Tuple[int, int]]], count: int, plain: bool) -> Iterator[List[str]]:
    """The drawings of the chosen sentences, in the order of the file, which is read no further than needed.

    Args:
        chosen: ranges of numbers, None for all.
        count: of drawings, 0 for no limit.
        plain: as for :func:`draw`.

    Raises:
        ValueError: what is wrong with the file or a sentence, or that there is no such sentence.
    """
    number = drawn = 0
    last = max(last for _, last in chosen) if chosen else None
    for number, sentence in enumerate(sentences(file), 1):
        if chosen is None or any(first <= number <= last for first, last in chosen):
            try:
                drawing = draw(sentence, f"sentence {number}", plain)
            except ValueError as error:
                raise ValueError(f"{file}: sentence {number}: {error}") from None
            yield drawing
            drawn += 1
        if 0 < count == drawn or number == last:
            return
    if number == 0:
        raise ValueError(f"{file}: no sentences")
    if last:
        raise ValueError(f"{file}: no sentence {last}, the last is {number}")


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, or 1 after one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="draw_tree", description="Draws the dependency trees of a CoNLL-U file.")
    parser.add_argument("file", metavar="FILE", help="CoNLL-U file with heads")
    parser.add_argument("--sentences", type=ranges, metavar="1,4-6", help="which, by number from 1 (default: all)")
    parser.add_argument("--count", type=limit, default=0, metavar="N", help="the first N of them (default: 0, all)")
    parser.add_argument("--width", type=limit, default=0, metavar="N", help="cut lines to N cells (default: 0, do not)")
    parser.add_argument("--ascii", action="store_true", help="plain characters, for outputs that take no others")
    args = parser.parse_args(arguments)
    encoding = sys.stdout.encoding or "utf-8"
    plain = args.ascii or BOXES.encode(encoding, "replace").decode(encoding) != BOXES
    try:
        for number, lines in enumerate(drawings(args.file, args.sentences, args.count, plain)):
            if number:
                print()
            for line in lines:
                print(cut(line, args.width).encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # less or head had enough
        reader_gone()
    except ValueError as error:
        print(f"draw_tree: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
