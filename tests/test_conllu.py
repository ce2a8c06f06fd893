"""CoNLL-U is read for its words, refused where it is malformed, and written back with every byte it had."""

import os

import pytest

from rntn_plugins.data.conllu import (
    COLUMNS,
    ConlluError,
    Malformed,
    Treebank,
    Word,
    parse_conllu,
    read_conllu,
    sentence_from_words,
    write_conllu,
)


def row(identifier, form="w", head="_", deprel="_", **others) -> str:
    fields = {**dict.fromkeys(COLUMNS, "_"), "id": identifier, "form": form, "head": head, "deprel": deprel, **others}
    return "\t".join(map(str, fields.values()))


def block(*lines) -> str:
    return "\n".join(lines) + "\n\n"


def tree(*heads) -> str:
    """A sentence with these heads."""
    return block(*(row(at, head=head, deprel="dep") for at, head in enumerate(heads, 1)))


def joined(treebank: Treebank) -> str:
    return "".join([treebank.head, *(sentence.text for sentence in treebank.sentences), treebank.tail])


ODD = block(
    "# sent_id = 1",
    "#comment",
    "# text = vámonos  al\u00a0mar ",
    "# text = twice",
    "#",
    "# \t",
    row("0.1", "él", deps="1:nsubj"),
    row("1-2", "vámonos", misc="SpaceAfter=No"),
    row(1, "vamos", 0, "root", lemma="ir", upos="VERB", xpos="V", feats="Mood=Imp|Number=Plur", deps="0:root"),
    row(2, "nos", 1, "obj", lemma="_", upos="PRON", deps="1:obj", misc="Gloss=a=b|X|Y=|=Z"),
    row("2.1", "quizás", deps="1:advmod"),
    row("2.2", deps="2.1:dep"),
    "# between",
    row("3-3", "a l"),
    row(3, "a  l", 4, "case", lemma="\u2003a\u00a0", upos="ADP", misc="x  y "),
    row(4, "_", 1, "obl:arg", lemma="mar\u2028\x0b\x85", upos="NOUN", deps="1:obl|3.1:x", misc="\u00a0"),
)
UNTAGGED = block(row(1, "Hi"), row(2, "_"))
SHORT = block("# text = Hi", row(1, "#Hi", 0, "root"))

FILES = {
    "odd": ODD,
    "several": ODD + UNTAGGED + SHORT,
    "no blank line at the end": SHORT + ODD[:-1],
    "no newline at the end": SHORT + ODD[:-2],
    "crlf": (ODD + SHORT).replace("\n", "\r\n"),
    "crlf, no newline at the end": (ODD + SHORT).replace("\n", "\r\n")[:-3],
    "mixed line ends": SHORT + (SHORT + "\n").replace("\n", "\r\n") + ODD.replace("\n", "\r\n", 9),
    "byte order mark": "\ufeff" + SHORT + UNTAGGED,
    "blank lines": "\n\r\n" + SHORT + "\n\n" + UNTAGGED + "\r\n",
    "stray comments": "# newdoc\n\n" + SHORT + "# newpar\n\n\n" + UNTAGGED,
    "comments at the end": SHORT + "\n# end\n\n#",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_every_byte_comes_back(tmp_path, text):
    source, target = tmp_path / "in.conllu", tmp_path / "out.conllu"
    source.write_bytes(text.encode())
    treebank = read_conllu(source)
    assert treebank.sentences and not treebank.malformed
    assert joined(treebank) == text
    write_conllu(target, treebank, [sentence.text for sentence in treebank.sentences])
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_columns_put_back_change_nothing(text):
    for sentence in parse_conllu(text).sentences:
        columns = {name: sentence.column(name) for name in ("form", "lemma", "upos", "xpos", "deprel")}
        assert sentence.with_columns(**columns) == sentence.text
        assert sentence.with_columns() == sentence.text


def cells(text):
    """By line: the columns of a line of tokens, or else the line."""
    for line in text.split("\n"):
        yield [line] if line.startswith("#") or "\t" not in line else line.split("\t")


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    "names", [["upos"], ["form"], ["head", "deprel"], ["misc"], ["lemma", "feats", "xpos", "deps"]]
)
def test_only_the_named_columns_of_words_change(text, names):
    for sentence in parse_conllu(text).sentences:
        new = {name: [f"new {name} {at}" for at in range(len(sentence.words))] for name in names}
        before, after = list(cells(sentence.text)), list(cells(sentence.with_columns(**new)))
        assert len(before) == len(after)
        at = 0
        for old_cells, new_cells in zip(before, after):
            expected = list(old_cells)
            if len(old_cells) == 10 and old_cells[0].isdigit():
                line_end = "\r" if old_cells[-1].endswith("\r") else ""
                for name in names:
                    expected[COLUMNS.index(name)] = new[name][at] + (line_end if name == "misc" else "")
                if "head" in names:
                    expected[COLUMNS.index("deps")] = "_"
                at += 1
            assert new_cells == expected
        assert at == len(sentence.words)


def test_heads_may_be_integers_and_come_with_deps():
    (sentence,) = parse_conllu(tree(0, 1)).sentences
    assert sentence.with_columns(head=[2, 0]) == tree(2, 0)
    with_deps = sentence.with_columns(head=["2", "0"], deps=["2:dep", "0:root"])
    assert [line.split("\t")[6:9] for line in with_deps.split("\n")[:2]] == [
        ["2", "dep", "2:dep"],
        ["0", "dep", "0:root"],
    ]


@pytest.mark.parametrize(
    "columns, reason",
    [
        ({"upos": ["X"]}, "1 values for 2 words"),
        ({"upos": ["X", "Y", "Z"]}, "3 values for 2 words"),
        ({"upos": ["X", ""]}, "empty"),
        ({"upos": ["X", "a\tb"]}, "tab"),
        ({"upos": ["X", "a\nb"]}, "line end"),
        ({"misc": ["X", "a\r"]}, "line end"),
        ({"upos": ["X", 3]}, "string"),
        ({"id": ["1", "2"]}, "'id'.*choose from form"),
        ({"pos": ["X", "Y"]}, "'pos'.*choose from form"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, reason):
    (sentence,) = parse_conllu(tree(0, 1)).sentences
    with pytest.raises(ValueError, match=reason):
        sentence.with_columns(**columns)


def test_words_are_the_lines_with_integer_ids():
    treebank = parse_conllu("\ufeff# stray\n\n" + ODD + UNTAGGED + "# end\n", name="odd.conllu")
    assert (treebank.head, treebank.tail) == ("\ufeff", "# end\n")
    first, second = treebank.sentences
    assert first.words == [
        Word("vamos", "ir", "VERB", "V", 0, "root", 11),
        Word("nos", "_", "PRON", "_", 1, "obj", 12),
        Word("a  l", "\u2003a\u00a0", "ADP", "_", 4, "case", 17),
        Word("_", "mar\u2028\x0b\x85", "NOUN", "_", 1, "obl:arg", 18),
    ]
    assert first.parsed and not second.parsed
    assert (first.first_line, second.first_line) == (1, 20)
    assert first.text == "# stray\n\n" + ODD and second.text == UNTAGGED
    assert first.name == second.name == "odd.conllu"
    assert first.column("head") == ["0", "1", "4", "1"] and second.column("head") == ["_", "_"]
    assert second.column("form") == ["Hi", "_"]
    assert [word.line for word in second.words] == [20, 21]
    with pytest.raises(ValueError, match="'line'.*choose from form"):
        first.column("line")


NINE, ELEVEN = row(2).rsplit("\t", 1)[0], row(2) + "\t_"
MALFORMED = {  # lines of a sentence, which of them is at fault, a part of the reason
    "nine columns": ([row(1), NINE], 2, "columns: 9; a line has 10"),
    "eleven columns": ([row(1), ELEVEN], 2, "columns: 11; a line has 10"),
    "spaces for tabs": ([row(1).replace("\t", "  ")], 1, "columns: 1;"),
    "a space in UPOS": ([row(1), row(2, upos="NO UN")], 2, "UPOS 'NO UN': white space; only FORM, LEMMA and MISC"),
    "a space behind XPOS": ([row(1, xpos="N\u00a0")], 1, r"XPOS 'N\xa0': white space"),
    "a relation of spaces": ([row(1), row(2, head=1, deprel="  ")], 2, "DEPREL '  ': white space"),
    "spaces within": (["# c", row(1), "  ", row(2)], 3, "nothing but spaces"),
    "spaces at the end": ([row(1), " "], 2, "nothing but spaces"),
    "indented comment": ([" # c", row(1)], 1, "columns: 1;"),
    "a form of white space": ([row(1), row(2, "\u00a0")], 2, "FORM '\\xa0': it is nothing but white space"),
    "a carriage return in a form": ([row(1, "a\rb")], 1, "FORM 'a\\rb': it is nothing but white space, or has a"),
    "empty form": ([row(1), row(2, "")], 2, "FORM is empty"),
    "empty misc": ([row(1, misc="")], 1, "MISC is empty"),
    "empty column of a range": ([row("1-2", upos=""), row(1), row(2)], 1, "UPOS is empty"),
    "byte order mark within": (["\ufeff" + row(1)], 1, "id '\\ufeff1'"),
    "id of letters": ([row("x")], 1, "id 'x' is no word"),
    "id missing": ([row(1), row("_")], 2, "id '_' is no word"),
    "id with a zero": ([row("01")], 1, "id '01' is no word"),
    "id with a space": ([row("1 ")], 1, "id '1 ' is no word"),
    "id of other digits": ([row("١")], 1, "is no word"),
    "id beyond measure": ([row("9" * 5000)], 1, "is no word"),
    "negative id": ([row("-1")], 1, "id '-1' is no word"),
    "id twice": ([row(1), row(2), row(2)], 3, "id 2 for the second time"),
    "range twice": ([row("1-2"), row("1-2"), row(1), row(2)], 2, "id 1-2 for the second time"),
    "empty node twice": ([row(1), row("1.1"), row("1.1")], 3, "id 1.1 for the second time"),
    "starts at 0": ([row(0), row(1)], 1, "id 0 where 1 is due"),
    "starts at 2": ([row(2)], 1, "id 2 where 1 is due"),
    "gap": ([row(1), "# c", row(3)], 3, "id 3 where 2 is due"),
    "order": ([row(1), row(3), row(2)], 2, "id 3 where 2 is due"),
    "range backwards": ([row("2-1"), row(1), row(2)], 1, "id '2-1' is no word"),
    "range of three": ([row("1-2-3"), row(1)], 1, "id '1-2-3' is no word"),
    "range too early": ([row("2-3"), row(1), row(2), row(3)], 1, "range 2-3 before word 1"),
    "range too late": ([row(1), row("1-2"), row(2)], 2, "range 1-2 before word 2"),
    "ranges nested": ([row("1-3"), row(1), row("2-3"), row(2), row(3)], 3, "range 2-3 overlaps"),
    "ranges from one word": ([row("1-2"), row("1-3"), row(1), row(2), row(3)], 2, "range 1-3 overlaps"),
    "ranges that share a word": ([row("1-2"), row(1), row("2-3"), row(2), row(3)], 3, "range 2-3 overlaps"),
    "range beyond the end": ([row(1), row("2-3"), row(2)], 2, "range ends at 3; the last word is 2"),
    "range at the end": ([row(1), row("2-2")], 2, "range ends at 2; the last word is 1"),
    "empty node too early": ([row("1.1"), row(1)], 1, "empty node 1.1 where only 0.1"),
    "empty node too late": ([row(1), row(2), row("1.1")], 3, "empty node 1.1 where only 2.1"),
    "empty node left out": ([row(1), row("1.2")], 2, "empty node 1.2 where only 1.1"),
    "empty node from 0": ([row(1), row("1.0")], 2, "id '1.0' is no word"),
    "empty node with a zero": ([row(1), row("01.1")], 2, "id '01.1' is no word"),
    "no words": (["# c", row("0.1")], 2, "no words"),
    "head of letters": ([row(1, head="x")], 1, "head 'x' is not an integer"),
    "head of a fraction": ([row(1, head=0, deprel="root"), row(2, head="1.1")], 2, "head '1.1' is not an integer"),
    "head with a sign": ([row(1, head="+0")], 1, "head '+0' is not an integer"),
    "head with a space": ([row(1, head="0 ")], 1, "head '0 ' is not an integer"),
    "head beyond measure": ([row(1, head="9" * 5000)], 1, "is not an integer"),
    "head too large": ([row(1, head=3, deprel="d"), row(2, head=0, deprel="d")], 1, "head 3 of word 1 is out of range"),
    "head negative": (
        [row(1, head=0, deprel="d"), row(2, head=-1, deprel="d")],
        2,
        "head -1 of word 2 is out of range",
    ),
    "own head": ([row(1, head=0, deprel="d"), row(2, head=2, deprel="d")], 2, "word 2 is its own head"),
    "first head missing": ([row(1), row(2, head=0, deprel="d")], 1, "word 1 has head _"),
    "second head missing": ([row(1, head=0, deprel="d"), row(2)], 2, "word 2 has head _"),
    "deprel missing": ([row(1, head=0, deprel="d"), "# c", row(2, head=1)], 3, "word 2 has a head but deprel _"),
    "two roots": (tree(0, 1, 0).split("\n")[:3], 3, "head 0: [1, 3]; exactly 1"),
    "no root": (tree(2, 1).split("\n")[:2], 1, "head 0: none; exactly 1"),
    "cycle of two": (tree(0, 3, 2).split("\n")[:3], 2, "words [2, 3] are a cycle"),
    "cycle with a tail": (tree(3, 0, 4, 5, 3).split("\n")[:5], 3, "words [3, 4, 5] are a cycle"),
}


@pytest.mark.parametrize("lines, at_fault, reason", MALFORMED.values(), ids=MALFORMED)
def test_malformed_sentences_are_refused_with_file_line_and_reason(lines, at_fault, reason):
    before, after = ODD + "\n", UNTAGGED + "# end"
    text = before + block(*lines) + after
    line = before.count("\n") + at_fault
    with pytest.raises(ConlluError) as caught:
        parse_conllu(text, name="some.conllu")
    assert str(caught.value).startswith(f"some.conllu:{line}: ")
    assert reason in str(caught.value)

    treebank = parse_conllu(text, name="some.conllu", skip_invalid=True)
    assert [sentence.text for sentence in treebank.sentences] == [before, UNTAGGED]
    assert treebank.tail == "# end"
    assert [str(problem) for problem in treebank.malformed] == [str(caught.value)]
    assert treebank.sentences[1].first_line == text[: text.index(UNTAGGED)].count("\n") + 1


def test_each_skipped_sentence_is_listed_once_by_its_first_problem():
    text = block(row(1), row(3), row(5, "")) + SHORT + tree(7, 2, 9) + tree(0, 0)
    treebank = parse_conllu(text, skip_invalid=True)
    assert [sentence.text for sentence in treebank.sentences] == [SHORT]
    assert [(problem.name, problem.line) for problem in treebank.malformed] == [
        ("<text>", 2),
        ("<text>", 8),
        ("<text>", 13),
    ]
    assert str(Malformed("a", 2, "why")) == "a:2: why"


def test_first_malformed_sentence_is_raised():
    with pytest.raises(ValueError, match="^<text>:1: id 2 where 1"):
        parse_conllu(block(row(2)) + block(row(3)))


@pytest.mark.parametrize("text", ["", "\ufeff", "\n\r\n", "# only\n# comments", "# c\n\n# d\n\n"])
def test_without_words_there_are_no_sentences(text):
    treebank = parse_conllu(text)
    assert treebank.sentences == [] and treebank.malformed == [] and joined(treebank) == text


@pytest.mark.parametrize("skip_invalid", [False, True])
def test_bytes_that_are_not_utf8_are_refused_with_file_and_line(tmp_path, skip_invalid):
    path = tmp_path / "latin.conllu"
    path.write_bytes(SHORT.encode() + row(1, "caf\u00e9").encode("latin-1") + b"\n\n")
    with pytest.raises(ValueError, match=r"latin\.conllu:4: byte 0xe9"):
        read_conllu(path, skip_invalid)


def test_malformed_file_is_named_by_its_path(tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text("\ufeff" + SHORT + block("# c", row(2)), encoding="utf-8")
    with pytest.raises(ConlluError) as caught:
        read_conllu(path)
    assert str(caught.value).startswith(f"{path}:5: id 2")
    assert caught.value.malformed == read_conllu(path, skip_invalid=True).malformed[0]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_conllu(tmp_path / "nowhere.conllu")


def test_writing_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "out.conllu"
    path.write_text("old")
    treebank = parse_conllu("\ufeff" + UNTAGGED + SHORT.replace("\n", "\r\n") + "# end")
    write_conllu(path, treebank, (s.with_columns(upos=["X"] * len(s.words)) for s in treebank.sentences))
    written = block(row(1, "Hi", upos="X"), row(2, "_", upos="X"))
    written += block("# text = Hi", row(1, "#Hi", 0, "root", upos="X")).replace("\n", "\r\n")
    assert path.read_bytes() == ("\ufeff" + written + "# end").encode()
    assert os.listdir(tmp_path) == ["out.conllu"]


@pytest.mark.parametrize("failure", ["raised", "no UTF-8"])
def test_writing_that_fails_leaves_the_old_file(tmp_path, failure):
    path = tmp_path / "out.conllu"
    path.write_text("old")

    def sentences():
        yield SHORT * 10000
        if failure == "raised":
            raise RuntimeError
        yield "\udc80"

    with pytest.raises((RuntimeError, UnicodeEncodeError)):
        write_conllu(path, parse_conllu(""), sentences())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.conllu"]


def test_sentence_from_words_reads_as_what_it_is():
    sentence = sentence_from_words(["#a", "_", "b\u00a0 c"], number=7)
    assert sentence.text == block(row(1, "#a"), row(2, "_"), row(3, "b\u00a0 c"))
    (read,) = parse_conllu(sentence.text).sentences
    assert (read.words, read.text, read.first_line) == (sentence.words, sentence.text, sentence.first_line)
    assert not sentence.parsed
    assert "7" in sentence.name
    assert sentence.with_columns(head=[0, 1, 1], deprel=["root", "x", "y"]) == block(
        row(1, "#a", 0, "root"), row(2, "_", 1, "x"), row(3, "b\u00a0 c", 1, "y")
    )


@pytest.mark.parametrize("forms", [[], ["a", ""], ["a\tb"], ["a\n"], ["\r"]])
def test_forms_no_column_can_hold_are_refused(forms):
    with pytest.raises(ValueError, match="<sentence 3>"):
        sentence_from_words(forms, number=3)
