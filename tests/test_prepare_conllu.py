"""scripts/prepare_conllu.py: what is written, read back; reuse and every error, on small files."""

import gzip
import importlib.util
import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rntn_plugins.data.columns import COLUMNS, column_symbols
from rntn_plugins.data.conllu import read_conllu

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "prepare_conllu.py"
SPEC = importlib.util.spec_from_file_location("prepare_conllu", SCRIPT)
prepare_conllu = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prepare_conllu)

SPLITS = ("train", "valid", "test")
HEADS = ("deprel", "head_position", "head_offset", "head_upos")


@pytest.fixture(autouse=True)
def undo_search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def sentence(*words: str) -> str:
    """CoNLL-U of words like ``form/lemma/UPOS/XPOS/head/deprel``."""
    lines = []
    for number, (form, lemma, upos, xpos, head, deprel) in enumerate((word.split("/") for word in words), 1):
        lines.append("\t".join((str(number), form, lemma, upos, xpos, "_", head, deprel, "_", "_")))
    return "# a comment\n" + "\n".join(lines) + "\n\n"


DOGS = sentence("Dogs/dog/NOUN/NNS/2/nsubj", "bark/bark/VERB/VB/0/root")
THE_DOG = sentence("The/the/DET/DT/2/det", "dog/dog/NOUN/NN/3/nsubj", "barks/bark/VERB/VBZ/0/root")
ZEBRAS = sentence("the/the/DET/DT/2/det", "zebras/zebra/NOUN/NNS/3/nsubj", "bark/bark/VERB/VB/0/root",
                  "a/a/DET/DT/6/det", "b/b/NOUN/NN/4/nsubj", "c/c/NOUN/NN/2/nsubj")  # fmt: skip
UNPARSED = sentence("Dogs/dog/NOUN/NNS/_/_", "bark/bark/VERB/VB/_/_")
MALFORMED = sentence("Dogs/dog/NOUN/NNS/2/nsubj", "bark/bark/VERB/VB/1/root")  # no root
CORPUS = {"train": DOGS + THE_DOG + DOGS, "valid": THE_DOG, "test": DOGS + ZEBRAS}


def write(folder: Path, **changed) -> list:
    """Files of the three splits, as arguments."""
    folder.mkdir(exist_ok=True)
    arguments = []
    for split, text in {**CORPUS, **changed}.items():
        path = folder / f"{split}.conllu"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        arguments += [f"--{split}", path]
    return arguments


def run(*arguments) -> int:
    return prepare_conllu.main([str(argument) for argument in arguments])


def refused(capsys, *arguments) -> str:
    """The message of a refusal: exit code 2 and one line on stderr."""
    try:
        code = run(*arguments)
    except SystemExit as ended:  # argparse
        code = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2 and len(lines) == 1 and lines[0].startswith("prepare_conllu: error: "), lines
    return lines[0].removeprefix("prepare_conllu: error: ")


def dictionary(folder: Path, column: str):
    from fairseq.data import Dictionary

    return Dictionary.load(str(folder / column / "dict.txt"))


def decoded(folder: Path, column: str, split: str) -> list:
    """A column of a split as text."""
    from fairseq.data import data_utils

    symbols = dictionary(folder, column)
    sentences = data_utils.load_indexed_dataset(str(folder / column / split), symbols)
    return [symbols.string(sentence, include_eos=True) for sentence in sentences]


def counts(folder: Path, column: str) -> list:
    return (folder / column / "dict.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The corpus prepared by the command as a user types it, from another folder; and what it printed."""
    folder = tmp_path_factory.mktemp("conllu")
    write(folder / "source")
    for split, name in zip(SPLITS, ("train", "dev", "test")):
        (folder / "source" / f"{split}.conllu").rename(folder / "source" / f"xy-ud-{name}.conllu")
    command = [sys.executable, str(SCRIPT), "--folder", "source", "--dest", "made/here"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


# ---- what is written -------------------------------------------------------------------------------------------------


def test_layout(made):
    here = made[0] / "made/here"
    files = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    names = ["dict.txt", *(f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx"))]
    expected = {f"{column}/{name}" for column in COLUMNS for name in names}
    assert files == expected | {f"{split}.conllu" for split in SPLITS} | {"prepare_conllu.json"}


def test_bins_hold_the_columns(made):
    folder, _ = made
    for split, text in CORPUS.items():
        copy = folder / "made/here" / f"{split}.conllu"
        assert copy.read_bytes() == text.encode()
        for column in COLUMNS:
            known = dictionary(folder / "made/here", column)
            lines = [column_symbols(sentence, column) for sentence in read_conllu(copy).sentences]
            lines = [" ".join([s if s in known else "<unk>" for s in line] + ["</s>"]) for line in lines]
            assert decoded(folder / "made/here", column, split) == lines, (column, split)
    here = folder / "made/here"
    assert decoded(here, "form", "test")[1] == "<unk> <unk> bark <unk> <unk> <unk> </s>"
    assert decoded(here, "lemma", "test")[1] == "the <unk> bark <unk> <unk> <unk> </s>"
    assert decoded(here, "head_position", "test")[1] == "2 3 0 6 4 2 </s>"
    assert decoded(here, "head_offset", "test")[1] == "+1 +1 0 <unk> <unk> <unk> </s>"
    assert decoded(here, "char", "train")[0] == "D o g s <w> b a r k <w> </s>"


def test_dictionaries(made):
    here = made[0] / "made/here"
    assert counts(here, "form") == ["Dogs 2", "bark 2", "The 1", "barks 1", "dog 1"]
    assert counts(here, "head_position") == ["0 3", "1 0", "2 3", "3 1", "4 0", "5 0", "6 0"]  # the longest has 6 words
    assert dictionary(here, "head_position").count[5] == 0
    assert counts(here, "upos") == ["NOUN 3", "VERB 3", "DET 1"]


def test_table(made):
    printed = made[1]
    table = [line.split() for line in printed.splitlines()]
    assert ["train", "3", "7", "0", "3", *["0", "(0.00", "%)"] * 3] in table
    assert ["valid", "1", "3", "0", "3", *["0", "(0.00", "%)"] * 3] in table
    # "the" is known as a lemma, not as a form; of 24 characters (ends of words do not count) t, z and c are unknown
    assert ["test", "2", "8", "0", "6", "4", "(50.00", "%)", "5", "(62.50", "%)", "3", "(12.50", "%)"] in table
    unseen = "head_position 2 (25.00 %), head_offset 3 (37.50 %), head_upos 3 (37.50 %)"
    assert f"test: labels that training lacks: {unseen}\n" in printed and "valid: labels" not in printed
    assert "form 9, upos 7, xpos 9," in printed and "head_position 11," in printed
    assert len(printed.splitlines()) == 7  # nothing of fairseq's


@pytest.mark.parametrize("head", ["\ufeff", ""])
def test_bytes_are_kept(tmp_path, head):
    text = (head + DOGS + THE_DOG.rstrip("\n")).replace("\n", "\r\n" if head else "\n").encode()
    arguments = write(tmp_path / "source", train=text)
    assert run(*arguments, "--dest", tmp_path / "made", "--unseen-labels", "keep") == 0
    assert (tmp_path / "made/train.conllu").read_bytes() == text
    assert decoded(tmp_path / "made", "form", "train") == ["Dogs bark </s>", "The dog barks </s>"]


def test_min_count(tmp_path, capsys):
    command = (*write(tmp_path / "source"), "--dest", tmp_path / "made")
    assert run(*command, "--min-count", 2) == 0
    assert counts(tmp_path / "made", "form") == ["Dogs 2", "bark 2"]
    assert counts(tmp_path / "made", "lemma") == ["bark 3", "dog 3"]
    assert decoded(tmp_path / "made", "form", "valid") == ["<unk> <unk> <unk> </s>"]
    assert len(counts(tmp_path / "made", "upos")) == 3 and "D 2" in counts(tmp_path / "made", "char")
    message = refused(capsys, *command, "--min-count", 4, "--force")
    assert message == "--min-count 4 leaves no lemma: none is as frequent in the training split"
    assert counts(tmp_path / "made", "form") == ["Dogs 2", "bark 2"]  # a failure leaves the old ones


# ---- malformed, unparsed and unseen ----------------------------------------------------------------------------------


def test_malformed_sentences(tmp_path, capsys):
    source = tmp_path / "source"
    command = (*write(source, train=DOGS + MALFORMED * 12 + THE_DOG), "--dest", tmp_path / "made")
    message = refused(capsys, *command)
    assert message.startswith(f"{source}/train.conllu:6: words with head 0: none")
    assert message.endswith("(--skip-invalid leaves such sentences out)") and not (tmp_path / "made").exists()
    assert run(*command, "--skip-invalid") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[2] for line in lines[:10]] == [str(6 + 4 * n) for n in range(10)]
    assert lines[0].startswith(f"skipped: {source}/train.conllu:6: words") and lines[10] == "... and 2 more"
    assert "train          2          5       12        3" in "\n".join(lines)
    assert (tmp_path / "made/train.conllu").read_text() == DOGS + THE_DOG
    assert decoded(tmp_path / "made", "form", "train") == ["Dogs bark </s>", "The dog barks </s>"]
    message = refused(capsys, *write(source, valid=MALFORMED), "--dest", tmp_path / "made", "--skip-invalid", "--force")
    assert message == f"{source}/valid.conllu is empty: there is no sentence in it that is not skipped"


def test_unparsed_splits(tmp_path, capsys):
    made = tmp_path / "made"
    assert run(*write(tmp_path / "source"), "--dest", made) == 0 and (made / "deprel/test.bin").exists()
    assert run(*write(tmp_path / "source", test=UNPARSED), "--dest", made, "--force") == 0
    assert "test: no heads\n" in capsys.readouterr().out
    assert decoded(made, "upos", "test") == ["NOUN VERB </s>"]
    for column in HEADS:
        assert sorted(path.name for path in (made / column).iterdir()) == [
            "dict.txt", "train.bin", "train.idx", "valid.bin", "valid.idx"
        ]  # fmt: skip
    # tagging only: no dictionary of heads can be made
    arguments = write(tmp_path / "source", train=UNPARSED + THE_DOG.replace("\t2\tdet", "\t_\t_"))
    assert "word 1 has head _ but others have one" in refused(capsys, *arguments, "--dest", made, "--force")
    arguments = write(tmp_path / "source", train=UNPARSED, valid=UNPARSED, test=DOGS)
    assert run(*arguments, "--dest", tmp_path / "tags") == 0
    printed = capsys.readouterr().out
    assert "train: no heads, so no columns of heads: for tagging only\nvalid: no heads\n" in printed
    assert {path.name for path in (tmp_path / "tags").iterdir() if path.is_dir()} == set(COLUMNS) - set(HEADS)


def test_a_split_with_some_heads(tmp_path, capsys):
    command = (*write(tmp_path / "source", train=DOGS + UNPARSED + THE_DOG + UNPARSED), "--dest", tmp_path / "made")
    message = refused(capsys, *command)
    assert message.startswith(f"{tmp_path}/source/train.conllu:5: the sentence has no heads, but others have")
    assert run(*command, "--skip-invalid") == 0
    assert capsys.readouterr().out.count("skipped: ") == 2
    assert (tmp_path / "made/train.conllu").read_text() == DOGS + THE_DOG


def test_unseen_labels(tmp_path, capsys):
    odd = sentence("Wow/wow/INTJ/UH/2/discourse", "dogs/dog/NOUN/FW/0/root")
    command = (*write(tmp_path / "source", valid=DOGS + odd), "--dest", tmp_path / "made")
    place = f"{tmp_path}/source/valid.conllu:6: "
    hint = "never occurs in training (--unseen-labels keep makes it <unk>, which counts as wrong)"
    assert refused(capsys, *command) == f"{place}UPOS 'INTJ' {hint}"
    assert run(*command, "--unseen-labels", "keep") == 0
    expected = "valid: labels that training lacks: upos 1 (25.00 %), xpos 2 (50.00 %), deprel 1 (25.00 %)\n"
    assert expected in capsys.readouterr().out
    assert decoded(tmp_path / "made", "upos", "valid") == ["NOUN VERB </s>", "<unk> NOUN </s>"]
    assert decoded(tmp_path / "made", "deprel", "valid")[1] == "<unk> root </s>"
    arguments = write(tmp_path / "source", valid=odd.replace("INTJ", "NOUN"))
    assert f"valid.conllu:2: DEPREL 'discourse' {hint}" in refused(capsys, *arguments, "--dest", tmp_path / "other")
    arguments = write(tmp_path / "source", valid=odd.replace("INTJ", "NOUN").replace("discourse", "det"))
    assert run(*arguments, "--dest", tmp_path / "other") == 0  # XPOS is no error
    assert "valid: labels that training lacks: xpos 2 (100.00 %)" in capsys.readouterr().out


# ---- word vectors ----------------------------------------------------------------------------------------------------

VECTORS = "bark 1 2\nzebras 3 4\nthe 5 6 \nbark 7 8\nother 9 10\nco\u00a0co 11 12\nmore .5 -1e-1\n"


@pytest.mark.parametrize("kind", ["plain", "header", "gz", "xz"])
def test_vectors(tmp_path, capsys, kind):
    said = {"header": 8}.get(kind, 7)
    data = (VECTORS if kind == "plain" else f"{said} 2\n" + VECTORS).encode()
    path = tmp_path / {"gz": "vectors.gz", "xz": "vectors.xz"}.get(kind, "vectors")
    path.write_bytes({"gz": gzip.compress, "xz": lzma.compress}.get(kind, bytes)(data))
    coco = sentence("co\u00a0co/co/NOUN/NN/2/nsubj", "bark/bark/VERB/VB/0/root")
    command = [*write(tmp_path / "source", valid=coco), "--vectors", path, "--dest", tmp_path / "made"]
    assert run(*command, "--min-count", 2, *(("--vector-words", 4) if kind == "gz" else ())) == 0
    # "The" is rare, but lower-cased it has a vector
    words = ["Dogs 2", "bark 2", "The 1", "co\u2423co 0", "the 0", "zebras 0"]
    words += ["other 0"] if kind == "gz" else []  # the fourth, since "bark" is there twice
    assert counts(tmp_path / "made", "form") == words
    vectors = np.load(tmp_path / "made/form/vectors.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (4 + len(words), 2)
    expected = [[0, 0]] * 4 + [[0, 0], [1, 2], [5, 6], [11, 12], [5, 6], [3, 4], [9, 10]]
    assert vectors.tolist() == expected[: len(vectors)]
    assert decoded(tmp_path / "made", "form", "test")[1] == "the zebras bark <unk> <unk> <unk> </s>"
    share = "6 (85.71 %)" if kind == "gz" else "5 (83.33 %)"
    tokens = "train 3 (42.86 %), valid 2 (100.00 %), test 4 (50.00 %)"
    shown = capsys.readouterr()
    assert f"form vectors of 2 values: {share} of the dictionary; tokens: {tokens}\n" in shown.out
    note = f"note: {path} ends after 7 words; its first line says 8\n"
    assert [line for line in shown.err.splitlines(True) if line.startswith("note")] == [note] * (kind == "header")
    if kind == "plain":
        assert run(*command[:-4], "--dest", tmp_path / "made", "--force") == 0  # nothing of them is left behind
        assert not (tmp_path / "made/form/vectors.npy").exists()
        assert "zebras" not in dictionary(tmp_path / "made", "form")


def test_vectors_of_lemmas_and_other_vectors(tmp_path, capsys):
    path = tmp_path / "vectors"
    path.write_text(VECTORS)
    command = [*write(tmp_path / "source"), "--vectors", path, "--dest", tmp_path / "made"]
    assert run(*command, "--vectors-column", "lemma") == 0
    assert np.load(tmp_path / "made/lemma/vectors.npy").tolist() == [[0, 0]] * 4 + [[1, 2], [0, 0], [5, 6]]
    assert "was made with --vectors-column lemma, not with --vectors-column form" in refused(capsys, *command)
    path.write_text("the 1 2\n")
    message = refused(capsys, *command, "--vectors-column", "lemma")
    assert message.startswith(f"{tmp_path}/made was made from another file than {path}; choose")


@pytest.mark.parametrize(
    "text, message",
    [
        ("bark 1 2\nthe 1\n", ":2: 1 values after the word, must be 2"),
        ("2 3\nbark 1 2\n", ":2: 2 values after the word, must be 3"),
        ("bark 1 2\n\n", ":2: 0 values after the word, must be 2"),
        ("bark\n", ":1: 0 values after the word, must be 1"),
        ("bark 1 2\nnever 1 x\n", ":2: could not convert string to float: b'x'"),
        ("bark 1 2\nnever 1 nan\n", ":2: a value is not finite"),
        ("bark 1 1e300\n", ":1: a value is not finite"),
        (f"{'9' * 5000} {'9' * 5000}\n", ":1: a value is not finite"),
        ("", " has no vector of any word of the treebank"),
        ("1 2\nnever 1 2\n", " has no vector of any word of the treebank"),
    ],
)
def test_wrong_vectors(tmp_path, capsys, monkeypatch, text, message):
    monkeypatch.setattr(prepare_conllu, "preprocess", None)  # not reached, where forms are the second column
    monkeypatch.setattr("rntn_plugins.data.columns.COLUMNS", ("form",))
    path = tmp_path / "vectors"
    path.write_text(text)
    arguments = ("--vectors", path, "--dest", tmp_path / "made")
    assert refused(capsys, *write(tmp_path / "source"), *arguments) == f"{path}{message}"
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize("name", ["v.gz", "v.xz"])
@pytest.mark.parametrize("damage", ["cut off", "changed", "not compressed"])
def test_damaged_archives(tmp_path, name, damage):
    data = (gzip.compress if name == "v.gz" else lzma.compress)(VECTORS.encode())
    changed = data[:10] + b"\xff" * 4 + data[14:]  # behind what says that it is of gzip
    (tmp_path / name).write_bytes({"cut off": data[:-5], "changed": changed}.get(damage, VECTORS.encode()))
    with pytest.raises(prepare_conllu.Refused, match=f"^cannot read .*{name}: "):
        list(prepare_conllu.vector_lines(tmp_path / name))


def test_words_of_vectors_may_be_any_bytes(tmp_path):
    path = tmp_path / "vectors"
    path.write_bytes(b"\xff\xfe 1 2\n 3 4\nbark 5 6\n")
    rows = prepare_conllu.read_vectors(path, {"bark"}, 5)
    assert {word: row.tolist() for word, row in rows.items()} == {"\ufffd\ufffd": [1, 2], "bark": [5, 6]}


# ---- the record ------------------------------------------------------------------------------------------------------


def test_complete_results_are_reused(made, capsys, monkeypatch):
    folder, printed = made
    monkeypatch.setattr(prepare_conllu, "binarise", None)  # must not be called
    again = ("--folder", folder / "source", "--dest", folder / "made/here")
    assert run(*again) == 0
    out = capsys.readouterr().out
    assert "is complete and made with these options: reused" in out
    assert out.splitlines()[1:] == printed.splitlines()[1:]  # the same table
    advice = "choose another --dest, or --force to make it anew"
    for options, message in (
        (["--min-count", 2], "--min-count 1, not with --min-count 2"),
        (["--skip-invalid"], "no --skip-invalid, not with --skip-invalid"),
        (["--unseen-labels", "keep"], "--unseen-labels error, not with --unseen-labels keep"),
    ):
        assert refused(capsys, *again, *options) == f"{folder}/made/here was made with {message}; {advice}"
    other = write(folder / "other", valid=DOGS)
    message = refused(capsys, *other, "--dest", folder / "made/here")
    assert message == f"{folder}/made/here was made from another file than {folder}/other/valid.conllu; {advice}"


def test_damaged_and_forced_results_are_made_anew(made, capsys, monkeypatch):
    folder, calls = made[0], []
    monkeypatch.setattr(prepare_conllu, "table", lambda statistics: "")
    monkeypatch.setattr(prepare_conllu, "binarise", lambda *arguments: calls.append(1))
    again = ("--folder", folder / "source", "--dest", folder / "made/here")
    assert run(*again, "--force") == 0 and len(calls) == 1
    file = folder / "made/here/upos/valid.bin"
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1])
        assert run(*again) == 0 and len(calls) == 2
        assert "upos/valid.bin is missing or was changed" in capsys.readouterr().out
        file.unlink()
        assert run(*again) == 0 and len(calls) == 3
        assert "upos/valid.bin is missing or was changed" in capsys.readouterr().out
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("statistics", [{}, {"train": None}, {"dictionaries": 3}])
def test_damaged_records_of_finished_folders(made, capsys, statistics):
    folder = made[0]
    record = folder / "made/here/prepare_conllu.json"
    content = record.read_text()
    try:
        known = json.loads(content)
        known["statistics"] = {**known["statistics"], **statistics} if statistics else {}
        record.write_text(json.dumps(known))
        again = ("--folder", folder / "source", "--dest", folder / "made/here")
        assert "prepare_conllu.json is damaged; choose another --dest" in refused(capsys, *again)
    finally:
        record.write_text(content)


def test_unfinished_or_foreign_folders_are_not_trusted(tmp_path, capsys):
    command = (*write(tmp_path / "source"), "--dest", tmp_path / "dest")
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest/train.conllu").write_text("mine")
    message = refused(capsys, *command)
    assert "has train.conllu but no prepare_conllu.json: not finished, or not ours; choose another --dest" in message
    (tmp_path / "dest/prepare_conllu.json").write_text("{")
    assert "prepare_conllu.json is damaged" in refused(capsys, *command)
    (tmp_path / "dest/prepare_conllu.json").write_text("[" * 200_000)
    assert "prepare_conllu.json is damaged" in refused(capsys, *command)
    message = refused(capsys, *write(tmp_path / "dest"), "--dest", tmp_path / "dest", "--force")
    assert message == f"{tmp_path}/dest/train.conllu is a file that this command writes; choose another --dest"


def test_failures_leave_nothing_that_looks_complete(made, tmp_path, capsys, monkeypatch):
    def fails(folder, files):
        raise prepare_conllu.Refused("no space left")

    monkeypatch.setattr(prepare_conllu, "preprocess", fails)
    source, here = made[0] / "source", made[0] / "made/here"
    (tmp_path / "new" / prepare_conllu.UNFINISHED / "form").mkdir(parents=True)  # of a run that was killed
    assert refused(capsys, "--folder", source, "--dest", tmp_path / "new") == "no space left"
    assert list((tmp_path / "new").iterdir()) == []
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert refused(capsys, "--folder", source, "--dest", here, "--force") == "no space left"
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_being_replaced_does_not_look_complete(made, tmp_path, capsys, monkeypatch):
    here, replace, replaced = tmp_path / "here", os.replace, []
    shutil.copytree(made[0] / "made/here", here)

    def full(source, destination):
        if Path(destination).parent == here:
            replaced.append(Path(destination).name)
            if len(replaced) == 2:
                raise OSError(28, "No space left on device")
        replace(source, destination)

    monkeypatch.setattr(prepare_conllu, "binarise_column", lambda *arguments: None)
    monkeypatch.setattr(os, "replace", full)
    command = (*write(tmp_path / "source", valid=DOGS), "--dest", here)
    assert "No space left on device" in refused(capsys, *command, "--force")
    assert replaced == ["train.conllu", "valid.conllu"]
    assert not (here / prepare_conllu.RECORD).exists()
    assert "not finished, or not ours" in refused(capsys, *command)


def test_what_fairseq_wrote_is_checked(made, tmp_path, capsys, monkeypatch):
    original = prepare_conllu.preprocess

    def loses_a_word(folder, files):
        if folder.name == "xpos":
            files["valid"].write_text("DT NN\n")
        original(folder, files)

    monkeypatch.setattr(prepare_conllu, "preprocess", loses_a_word)
    message = refused(capsys, "--folder", made[0] / "source", "--dest", tmp_path / "new")
    assert message == "fairseq-preprocess did not write column xpos of valid as it is"


# ---- sources and options ---------------------------------------------------------------------------------------------


def test_sources(tmp_path, capsys, monkeypatch):
    message = refused(capsys, "--folder", tmp_path, "--dest", tmp_path / "dest")
    assert message.startswith(f"{tmp_path} has no file *-ud-train.conllu, not one; or give --train")
    for name in ("a-ud-train", "b-ud-train"):
        (tmp_path / f"{name}.conllu").write_text(DOGS)
    message = refused(capsys, "--folder", tmp_path, "--dest", tmp_path / "dest")
    assert "has 2 files *-ud-train.conllu, not one" in message
    arguments = write(tmp_path / "source")
    arguments[3] = tmp_path / "nothing.conllu"
    assert refused(capsys, *arguments, "--dest", "d") == f"{tmp_path}/nothing.conllu: No such file or directory"
    monkeypatch.setitem(sys.modules, "turkish_treebanks", None)
    message = refused(capsys, "--turkish", "web", "--dest", tmp_path / "dest")
    assert message == "the package turkish_treebanks is not installed: pip install 'rntn-plugins[samples]'"


@pytest.mark.parametrize(
    "text, message",
    [
        (b"", " is empty: there is no sentence in it"),
        (b"# only a comment\n\n", " is empty: there is no sentence in it"),
        (DOGS.encode() + b"# caf\xe9\n", ":5: byte 0xe9 is not UTF-8; a CoNLL-U file is"),
    ],
)
def test_unusable_files(tmp_path, capsys, text, message):
    arguments = write(tmp_path / "source", test=text)
    assert refused(capsys, *arguments, "--dest", tmp_path / "dest") == f"{tmp_path}/source/test.conllu{message}"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give --train, --valid and --test, or --folder, or --turkish; there is none of them"),
        (["--train", "a", "--test", "b"], "there is --train and --test"),
        (["--folder", "a", "--turkish", "web"], "there is --folder and --turkish"),
        (["--turkish", "blog"], "invalid choice: 'blog'"),
        (["--folder", "a", "--min-count", "0"], "'0' must be a whole number, at least 1"),
        (["--folder", "a", "--vectors-column", "lemma"], "--vectors-column goes with --vectors only"),
        (["--folder", "a", "--vector-words", "9"], "--vector-words goes with --vectors only"),
    ],
)
def test_command_line_errors(capsys, arguments, message):
    assert message in refused(capsys, *arguments, "--dest", "d")


def test_dest_is_needed(capsys):
    assert "the following arguments are required: --dest" in refused(capsys, "--turkish", "web")


def test_turkish_splits(tmp_path, monkeypatch):
    """Sentences 8, 18, ... and 9, 19, ... of the file, from 0, and a malformed one keeps its number."""
    package = SimpleNamespace(__file__=str(tmp_path / "turkish_treebanks/__init__.py"))
    monkeypatch.setitem(sys.modules, "turkish_treebanks", package)
    (tmp_path / "data").mkdir()
    sentences = [sentence(f"w{number}/_/NOUN/NN/0/root") for number in range(21)]
    sentences[3] = MALFORMED
    (tmp_path / "data/web.conllu").write_text("".join(sentences).rstrip("\n"))
    assert run("--turkish", "web", "--skip-invalid", "--dest", tmp_path / "made") == 0
    expected = {"train": [0, 1, 2, 4, 5, 6, 7, *range(10, 18), 20], "valid": [8, 18], "test": [9, 19]}
    for split, numbers in expected.items():
        text = "".join(sentences[number] for number in numbers)
        assert (tmp_path / "made" / f"{split}.conllu").read_text().rstrip("\n") == text.rstrip("\n")
    assert decoded(tmp_path / "made", "form", "train")[-1] == "w20 </s>"
    assert len(counts(tmp_path / "made", "lemma")) == 16  # a missing lemma is the form


@pytest.mark.parametrize("name, sizes", [("web", (2033, 254, 254)), ("wiki", (1848, 231, 231))])
def test_turkish_package(name, sizes):
    pytest.importorskip("turkish_treebanks")
    args = prepare_conllu.parse(["--turkish", name, "--dest", "unused"])
    parts = prepare_conllu.turkish_splits(read_conllu(prepare_conllu.source_paths(args)["train"]))
    assert tuple(len(parts[split].sentences) for split in SPLITS) == sizes
