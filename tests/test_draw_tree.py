"""scripts/draw_tree.py: pictures, read back by walking along their characters, and errors."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "draw_tree.py"
sys.path.insert(0, str(SCRIPT.parent))
SPEC = importlib.util.spec_from_file_location("draw_tree", SCRIPT)
draw_tree = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(draw_tree)

FOX = "The quick brown fox jumps over the lazy dog ."
FOX_TREE = [4, 4, 4, 5, 0, 9, 9, 9, 5, 5]
FOX_PICTURE = """\
      ┌─────► The    X  det
      │ ┌───► quick  X  det
      │ │ ┌─► brown  X  det
    ┌─┴─┴─┴─► fox    X  det
┌─┬─┴───────● jumps  X  det
│ │   ┌─────► over   X  det
│ │   │ ┌───► the    X  det
│ │   │ │ ┌─► lazy   X  det
│ └───┴─┴─┴─► dog    X  det
└───────────► .      X  det
"""
HEARING = "A hearing is scheduled on the issue today"  # today belongs to scheduled, issue to hearing: they cross
HEARING_TREE = [2, 4, 4, 0, 7, 7, 2, 4]
HEARING_PICTURE = """\
        ┌─► A          X  det
┌─┬─────┴─► hearing    X  det
│ │     ┌─► is         X  det
└─┼─┬───┴─● scheduled  X  det
  │ │ ┌───► on         X  det
  │ │ │ ┌─► the        X  det
  └─┼─┴─┴─► issue      X  det
    └─────► today      X  det
"""


def conllu(heads, forms=None, comments=()) -> str:
    forms = forms or [f"w{word}" for word in range(1, len(heads) + 1)]
    words = enumerate(zip(forms, heads), 1)
    lines = [*comments, *(f"{word}\t{form}\t_\tX\t_\t_\t{head}\tdet\t_\t_" for word, (form, head) in words)]
    return "\n".join(lines) + "\n\n"


def run(tmp_path, capsys, text, *arguments) -> str:
    """What the script prints for a file."""
    file = tmp_path / "trees.conllu"
    file.write_text(text, encoding="utf-8")
    assert draw_tree.main([str(file), *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def refused(tmp_path, capsys, text, *arguments) -> str:
    file = tmp_path / "trees.conllu"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert draw_tree.main([str(file), *arguments]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"draw_tree: error: {file}: "), lines
    return lines[0].removeprefix(f"draw_tree: error: {file}: ")


def read_back(picture):
    """The heads of a picture of arcs, found by walking from every arrow; nothing may be left over."""
    seen = set()

    def step(line, at, allowed):
        assert at >= 0 and 0 <= line < len(picture) and picture[line][at] in allowed, (line, at, picture)
        seen.add((line, at))
        return picture[line][at]

    heads = []
    for line, drawn in enumerate(picture):
        at = len(drawn) - 1
        is_root = step(line, at, "►●") == "●"
        while at > 0 and picture[line][at - 1] != " " and picture[line][at] not in "┌└":
            at -= 1
            step(line, at, "─┬┴┼┌└")
        if is_root:  # from here arcs only start
            heads.append(0)
            assert at == len(drawn) - 1 or drawn[at] in "┌└"
            continue
        down = step(line, at, "┌└") == "┌"
        end = line
        while True:
            end += 1 if down else -1
            if step(end, at, "│┼┴└" if down else "│┼┬┌") not in "│┼":
                break
        heads.append(end + 1)
    inked = {(line, at) for line, drawn in enumerate(picture) for at, cell in enumerate(drawn) if cell != " "}
    assert seen == inked, sorted(inked - seen)
    return heads


def random_tree(random, n):
    """Any tree of n words, crossing or not."""
    order = random.permutation(n) + 1
    heads = [0] * n
    for at in range(1, n):
        heads[order[at] - 1] = int(order[random.randint(at)])
    return heads


def random_projective_tree(random, n):
    heads = [0] * n

    def hang(first, last, head):
        if first > last:
            return
        root = random.randint(first, last + 1)
        heads[root - 1] = head
        middle = random.randint(root, last + 1)  # up to two dependents to the right
        hang(first, root - 1, root)
        hang(root + 1, middle, root)
        hang(middle + 1, last, root)

    hang(1, n, 0)
    return heads


def crossing(heads) -> bool:
    arcs = [sorted((word, head)) for word, head in enumerate(heads, 1) if head]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 30, 60])
@pytest.mark.parametrize("kind", [random_tree, random_projective_tree])
def test_a_picture_can_be_read_back(n, kind):
    random = np.random.RandomState(n)
    for _ in range(30):
        heads = kind(random, n)
        picture = draw_tree.draw_arcs(heads)
        assert len(picture) == n and len(set(map(len, picture))) == 1
        assert read_back(picture) == heads
        assert [line[-1] for line in picture] == ["►" if head else "●" for head in heads]


@pytest.mark.parametrize("n", [5, 12, 30])
def test_lines_cross_where_arcs_do_and_never_in_a_projective_tree(n):
    random = np.random.RandomState(n)
    for _ in range(50):
        assert "┼" not in "".join(draw_tree.draw_arcs(random_projective_tree(random, n)))
        heads = random_tree(random, n)
        assert "┼" in "".join(draw_tree.draw_arcs(heads)) or not crossing(heads)


def test_several_roots_are_drawn():
    for heads in ([0, 0, 0], [0, 1, 0, 3], [2, 0, 5, 5, 0]):
        assert read_back(draw_tree.draw_arcs(heads)) == heads


def test_short_arcs_are_near_the_words():
    columns = draw_tree.arc_columns([0, 1, 1, 1, 1])
    assert columns == {2: 0, 3: 1, 4: 2, 5: 3}
    assert draw_tree.arc_columns([2, 0, 2, 3]) == {1: 0, 4: 0, 3: 1}


def test_projective_picture(tmp_path, capsys):
    comments = ["# sent_id = s1", "# text = The quick brown fox jumps over the lazy dog."]
    text = conllu(FOX_TREE, FOX.split(), comments)
    assert run(tmp_path, capsys, text) == comments[1] + "\n" + FOX_PICTURE
    assert read_back([line[:13] for line in FOX_PICTURE.splitlines()]) == FOX_TREE


def test_crossing_picture(tmp_path, capsys):
    text = "\ufeff" + conllu(HEARING_TREE, HEARING.split(), ["# sent_id = s2"])  # a byte order mark is no text
    assert run(tmp_path, capsys, text) == "# sent_id = s2\n" + HEARING_PICTURE
    assert read_back([line[:11] for line in HEARING_PICTURE.splitlines()]) == HEARING_TREE


def test_ascii_leaves_the_words_alone(tmp_path, capsys):
    assert run(tmp_path, capsys, conllu([2, 0, 2], ["a", "─►", "…"]), "--ascii") == (
        "# sentence 1\n  .-> a   X  det\n.-'-* ─►  X  det\n'---> …   X  det\n"
    )


def test_choice_of_sentences(tmp_path, capsys):
    text = "".join(conllu([0], [f"s{number}"]) for number in range(1, 8))

    def drawn(*arguments):
        blocks = run(tmp_path, capsys, text, *arguments).split("\n\n")
        return [int(block.splitlines()[0].removeprefix("# sentence ")) for block in blocks]

    assert drawn() == drawn("--count", "0") == list(range(1, 8))
    assert drawn("--sentences", "1,4-6") == drawn("--sentences", "5-6, 4,1,1") == [1, 4, 5, 6]
    assert drawn("--count", "2") == [1, 2] and drawn("--count", "20") == list(range(1, 8))
    assert drawn("--sentences", "3-7", "--count", "2") == [3, 4]


def test_the_file_is_read_no_further_than_needed(tmp_path, capsys):
    text = conllu([0]) + conllu([0, 1]) + "this is no CoNLL-U\n"
    for arguments in (["--count", "2"], ["--sentences", "1-2"]):
        assert run(tmp_path, capsys, text, *arguments).count("●") == 2


def test_ranges_and_empty_nodes_are_skipped(tmp_path, capsys):
    text = (
        "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n1\tde\t_\tADP\t_\t_\t3\tcase\t_\t_\n2\tle\t_\tDET\t_\t_\t3\tdet\t_\t_\n"
        "2.1\tvu\t_\tVERB\t_\t_\t_\t_\t_\t_\n3\tpain\t_\t_\t_\t_\t0\troot\t_\t_\n"
    )
    assert run(tmp_path, capsys, text) == (
        "# sentence 1\n┌───► de    ADP  case\n│ ┌─► le    DET  det\n└─┴─● pain  _    root\n"
    )


def test_wide_and_combining_characters_are_aligned(tmp_path, capsys):
    lines = run(tmp_path, capsys, conllu([2, 0, 2], ["日Ａ", "e\u0301", "abcd"])).splitlines()[1:]
    assert lines == ["  ┌─► 日Ａ  X  det", "┌─┴─● e\u0301     X  det", "└───► abcd  X  det"]
    # an accent, what encloses the letter before it, and a joiner, which has no width
    assert [draw_tree.cells(text) for text in ("e\u0301", "a\u20dd", "a\u200d", "日\u0301a")] == [1, 1, 1, 3]


def test_width(tmp_path, capsys):
    text = conllu([2, 0], ["日本語", "abc"], ["# text = 日本語 abc"])
    assert run(tmp_path, capsys, text, "--width", "9") == "# text =>\n┌─► 日本>\n└─● abc >\n"
    assert run(tmp_path, capsys, text, "--width", "8") == "# text >\n┌─► 日>\n└─● abc>\n"
    whole = run(tmp_path, capsys, text)
    assert ">" not in whole and run(tmp_path, capsys, text, "--width", "19") == whole


def test_long_lines_are_cut_in_their_length(tmp_path, capsys):
    """Not in the square of it: 20,000 characters took a minute so."""
    for text in ("ab日\u0301cd", "日本", "\u0301\u0301\u0301", "e\u0301e\u0301e\u0301"):
        for width in range(1, draw_tree.cells(text)):
            prefixes = [text[:end] for end in range(len(text)) if draw_tree.cells(text[:end]) < width]
            assert draw_tree.cut(text, width) == prefixes[-1] + ">"
    start = time.process_time()
    assert draw_tree.cut("long " * 100_000, 80) == ("long " * 16)[:79] + ">"
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "encoding, expected", [("utf-8", "└─● é"), ("latin-1", "'-* é"), ("ascii", "'-* ?"), ("gb18030", "└─● é")]
)
def test_plain_characters_where_the_output_takes_no_others(tmp_path, encoding, expected):
    file = tmp_path / "trees.conllu"
    file.write_text(conllu([2, 0], ["e", "é"]), encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, str(SCRIPT), str(file)], env=environment, capture_output=True, check=True)
    assert expected in done.stdout.decode(encoding) and done.stderr == b""


@pytest.mark.parametrize("sentences", [1, 300])
def test_a_reader_that_has_gone_is_no_error(tmp_path, sentences):
    """Less or head, whether the output fills the buffer or not."""
    file = tmp_path / "trees.conllu"
    file.write_text(conllu(FOX_TREE) * sentences, encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(file)], env=environment, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert done.stderr == b"" and done.returncode == 0


def test_errors(tmp_path, capsys):
    assert draw_tree.main([str(tmp_path / "none.conllu")]) == 1
    assert capsys.readouterr().err == f"draw_tree: error: {tmp_path}/none.conllu: No such file or directory\n"
    assert draw_tree.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"draw_tree: error: {tmp_path}: Is a directory\n"
    assert draw_tree.main([f"{tmp_path}/two\nlines"]) == 1
    assert capsys.readouterr().err == f"draw_tree: error: {tmp_path}/two lines: No such file or directory\n"
    good = conllu([0])
    assert refused(tmp_path, capsys, "") == "no sentences"
    assert refused(tmp_path, capsys, "# only\n\n# comments\n\n") == "no sentences"
    assert (
        refused(tmp_path, capsys, "# a block of comments\n\n" + good, "--sentences", "2")
        == "no sentence 2, the last is 1"
    )
    assert refused(tmp_path, capsys, good * 3, "--sentences", "2-4") == "no sentence 4, the last is 3"
    assert refused(tmp_path, capsys, good + conllu([2, "_"])) == "sentence 2: word 2 has no head"
    assert refused(tmp_path, capsys, "1\tonly\n") == "sentence 1: word 1 has not ten columns"
    plus = "# global.columns = FORM MISC\na\t_\n\n"
    assert refused(tmp_path, capsys, plus) == "sentence 1: its columns are without ID"
    assert refused(tmp_path, capsys, "# global.columns = ID FORM MISC\n1\ta\t_\n\n") == "sentence 1: word 1 has no head"
    message = "sentence 1: the head of word 2 is 3, and there is no such word"
    assert refused(tmp_path, capsys, conllu([0, 3])) == message
    assert refused(tmp_path, capsys, conllu([2, 1, 0, 1])) == "sentence 1: its heads make a cycle: 1 2"
    assert refused(tmp_path, capsys, conllu([0, 2])) == "sentence 1: its heads make a cycle: 2"
    assert refused(tmp_path, capsys, good + "a b\n").startswith("sentence 2: not CoNLL-U: ")
    assert refused(tmp_path, capsys, "1\té\n".encode("latin-1")) == "not UTF-8"
    assert refused(tmp_path, capsys, conllu([0, 1]).replace("\n2\t", "\n1\t")) == "sentence 1: word 2 has the id 1"
    assert refused(tmp_path, capsys, good + conllu(["9" * 5000])).startswith("sentence 2: not CoNLL-U: ")


def test_control_characters_are_not_obeyed(tmp_path, capsys):
    file = tmp_path / "red.conllu"
    file.write_text("# text = \x1b[31mred\n1\t\x1b[31mred\t" + "_\t" * 4 + "0\troot\t_\t_\n\n")
    assert draw_tree.main([str(file)]) == 0
    drawn = capsys.readouterr().out
    assert "\x1b" not in drawn and drawn.count("\ufffd[31mred") == 2
    assert draw_tree.visible("a\u202eb\u2067c\u2069 \u05d0\u200d") == "a\ufffdb\ufffdc\ufffd \u05d0\u200d"


@pytest.mark.parametrize(
    "arguments", [["--sentences", "0"], ["--sentences", "3-1"], ["--sentences", "1,,2"], ["--count", "-1"], []]
)
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        draw_tree.main([*arguments, "file"] if arguments else [])
    assert stopped.value.code == 2 and "error: " in capsys.readouterr().err
