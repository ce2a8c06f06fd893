"""Columns of CoNLL-U sentences as symbols of fairseq dictionaries."""

from __future__ import annotations

from typing import List

from rntn_plugins.data.conllu import Sentence
from rntn_plugins.data.heads import head_labels

#: columns that a model may read; ``char`` is the characters of FORM
INPUTS = ("lemma", "form", "upos", "xpos", "char")
#: columns with labels; the last three are the head of a word in the three encodings of :mod:`rntn_plugins.data.heads`
LABELS = ("upos", "xpos", "deprel", "head_position", "head_offset", "head_upos")
COLUMNS = tuple(dict.fromkeys(INPUTS + LABELS))
#: what separates the words of the column ``char``
WORD_END = "<w>"

SPACE = "\u2423"  # open box: stands for white space inside a symbol
RESERVED = ("<s>", "</s>", "<pad>", "<unk>", WORD_END)  # not words of a text where they are written out there
MISSING = "_"


def symbol(text: str) -> str:
    """A field as one symbol: without white space, and no name that fairseq keeps for itself."""
    text = "".join(SPACE if character.isspace() else character for character in text)
    return f"\\{text}" if text in RESERVED or text.startswith("madeupword") else text


def text_of(name: str) -> str:
    """The field that :func:`symbol` made a symbol of, where that was one without white space."""
    return name[1:] if symbol(name[1:]) == name else name


def column_symbols(sentence: Sentence, column: str) -> List[str]:
    """A sentence's column as symbols, one a word (``char``: one a character and :data:`WORD_END` after each word).

    A missing LEMMA (``_``) of a word whose FORM is not ``_`` is its FORM.

    Raises:
        ValueError: unknown column, or a column of heads of a sentence that is not parsed.
    """
    if column == "char":
        return [c for form in sentence.column("form") for c in (*map(symbol, form), WORD_END)]
    if column == "lemma":
        return [symbol(w.form if w.lemma == MISSING else w.lemma) for w in sentence.words]
    if column.startswith("head_"):
        if not sentence.parsed:
            raise ValueError(f"{sentence.name}:{sentence.first_line}: the sentence has no heads")
        return head_labels([w.head for w in sentence.words], column.removeprefix("head_"), sentence.column("upos"))
    if column not in COLUMNS:
        raise ValueError(f"column {column!r} is not one of {', '.join(COLUMNS)}")
    return [symbol(value) for value in sentence.column(column)]
