"""A small treebank with every odd construct of CoNLL-U, and fairseq's commands run inside this process."""

import contextlib
import fcntl
import fileinput
import importlib.util
import io
import logging
import random
import re
import subprocess
import sys
import warnings
from importlib import import_module
from unittest import mock

from commands import MODULES, ROOT, USER_DIR

TAGGING = (*USER_DIR, "--task", "conllu_tagging", "--cpu")
PARSING = (*USER_DIR, "--task", "conllu_parsing", "--cpu")
#: small and quick; every update logged as one JSON line
SMALL = (
    "--optimizer", "adam", "--lr", "0.02", "--clip-norm", "5", "--batch-size", "8", "--log-format", "json",
    "--log-interval", "1", "--embed-dim", "12", "--tag-embed-dim", "6", "--hidden-size", "16", "--num-workers", "0",
    "--no-epoch-checkpoints",
)  # fmt: skip

# ---- the treebank ----------------------------------------------------------------------------------------------------

NOUNS = [("dog", "dogs"), ("cat", "cats"), ("house", "houses"), ("tree", "trees"), ("boat", "boats")]
VERBS = [("see", "sees"), ("like", "likes"), ("hear", "hears"), ("know", "knows")]


def noun_phrase(relation: str, depth: int = 0) -> list:
    """Words ``[form, lemma, upos, xpos, head, deprel]`` in order, the noun's head ``None``; heads are word objects."""
    lemma, plural = random.choice(NOUNS)
    many = random.random() < 0.4
    noun = [plural if many else lemma, lemma, "NOUN", "NNS" if many else "NN", None, relation]
    words = [["the", "the", "DET", "DT", noun, "det"]]
    if random.random() < 0.4:
        adjective = random.choice(["old", "red", "small"])
        words.append([adjective, adjective, "ADJ", "JJ", noun, "amod"])
    words.append(noun)
    if depth < 2 and random.random() < 0.3:
        inner = noun_phrase(random.choice(["nmod", "nmod:poss"]), depth + 1)
        other = next(word for word in inner if word[4] is None)
        other[4] = noun
        words += [["of", "of", "ADP", "IN", other, "case"], *inner]
    return words


def rows(words: list) -> list:
    """Lines of ten columns, DEPS and MISC filled."""
    number = {id(word): at for at, word in enumerate(words, 1)}
    lines = []
    for at, (form, lemma, upos, xpos, head, relation) in enumerate(words, 1):
        head = 0 if head is None else number[id(head)]
        fields = [at, form, lemma, upos, xpos, "_", head, relation, f"{head}:{relation}", f"Gloss={form}|Id={at}"]
        lines.append("\t".join(map(str, fields)))
    return lines


def sentence() -> list:
    lemma, form = random.choice(VERBS)
    verb = [form, lemma, "VERB", "VBZ", None, "root"]
    subject, object_ = noun_phrase("nsubj"), noun_phrase("obj") if random.random() < 0.7 else []
    for phrase in (subject, object_):
        for word in phrase:
            if word[4] is None:
                word[4] = verb
    return rows([*subject, verb, *object_, [".", ".", "PUNCT", ".", verb, "punct"]])


ODD = """\
# newdoc id = odd
# sent_id = odd-1\t with a tab
#no space, # twice
# text = vámonos  al mar
0.1\tél\tél\tPRON\t_\t_\t_\t_\t1:nsubj\tCopyOf=2
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tvamos\t_\tVERB\tVBZ\tMood=Imp|Number=Plur\t0\troot\t0:root\t_
2\tnos\tnosotros\tPRON\tPP\t_\t1\tobj\t1:obj|2.1:dep\tGloss=a=b|X|Y=|=Z
2.1\tquizás\tquizás\tADV\t_\t_\t_\t_\t1:advmod\t_
# a comment between words
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\u00a0b  c\ta  b\tADP\tIN\t_\t5\tcase\t5:case\t_
4\t<s>\t</s>\tDET\tDT\t_\t5\tdet\t5:det\tx  y\u00a0
5\tmar\tmadeupword0000\tNOUN\tNN\t_\t1\tobl:arg\t1:obl\t_
6\t_\t_\tNOUN\tNN\t_\t5\tappos\t5:appos\t_

"""
SHORT = "# text = Hush\n1\tHush\thush\tINTJ\tUH\t_\t0\troot\t0:root\t_\n\n\n"
STEP = "1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n2\tknow\tknow\tVERB\tVBP\t_\t0\troot\t_\tSpaceAfter=No\n\n"
TAIL = "# what follows the last sentence\n\n"


def treebank(count: int, seed: int) -> list:
    random.seed(seed)
    return ["".join(f"{line}\n" for line in ["# x", *sentence()]) + "\n" for _ in range(count)]


def unparsed(text: str) -> str:
    """The text without heads, relations and DEPS of its words."""
    lines = []
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) == 10 and fields[0].isdigit():
            fields[6:9] = "_" * 3
        lines.append("\t".join(fields))
    return "\n".join(lines)


def splits() -> dict:
    """The texts. The test split has 23 sentences, words, relations and a tag that training lacks, and a tail."""
    test = treebank(19, 3)
    dos = [text.replace("\n", "\r\n") for text in (STEP, *test[9:12], ODD)]
    test = [ODD, *test[:9], SHORT, *dos, *test[12:], TAIL]
    return {"train": "".join(treebank(72, 1)), "valid": "".join(treebank(16, 2)), "test": "".join(test)}


def prepare(folder, name: str = "bin", **changed):
    """A data-bin of the treebank, made by ``scripts/prepare_conllu.py``."""
    specification = importlib.util.spec_from_file_location("prepare_conllu", ROOT / "scripts" / "prepare_conllu.py")
    script = importlib.util.module_from_spec(specification)
    with mock.patch.object(sys, "path", list(sys.path)):
        specification.loader.exec_module(script)
    folder.mkdir(exist_ok=True, parents=True)
    arguments = ["--dest", str(folder / name), "--unseen-labels", "keep"]
    for split, text in {**splits(), **changed}.items():
        (folder / f"{split}.conllu").write_text(text, encoding="utf-8", newline="")
        arguments += [f"--{split}", str(folder / f"{split}.conllu")]
    with contextlib.redirect_stdout(io.StringIO()):
        assert script.main(arguments) == 0
    return folder / name


def scored(gold, system, folder) -> dict:
    """F1 in per cent of each measure of the official scorer (``udtools``), which takes neither comments between words
    nor two blank lines."""
    files = []
    for name, path in (("gold", gold), ("system", system)):
        text = path.read_bytes().decode().replace("\r\n", "\n")
        text = re.sub(r"^#.*\n", "", text, flags=re.M)
        files.append(folder / f"{name}.scorer.conllu")
        files[-1].write_text(re.sub(r"\n\n+", "\n\n", text).strip("\n") + "\n\n", encoding="utf-8", newline="")
    command = [sys.executable, "-c", "from udtools.cli import main_eval; main_eval()", "--no-enhanced", "-v", *files]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {name: float(f1) for name, f1 in re.findall(r"^(\w+) *\|[^|]+\|[^|]+\| *([\d.]+)", table, re.M)}


# ---- commands --------------------------------------------------------------------------------------------------------


def inside(command: str, *arguments, fails: bool = False, stdin: str = "") -> str:
    """What ``fairseq-<command>`` prints, run in this process, which saves the seconds of its imports.

    A failure's last line is that of its traceback.
    """
    from fairseq import checkpoint_utils

    module = import_module(MODULES[command])
    output, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    failed, level = False, root.level
    root.setLevel(logging.INFO)
    logging.getLogger("fairseq").setLevel(logging.NOTSET)  # scripts of this package make it quiet
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # fairseq keeps it in the process, not in the trainer
    with (
        mock.patch.object(sys, "argv", [f"fairseq-{command}", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        mock.patch.object(root, "handlers", [handler]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        warnings.catch_warnings(action="ignore"),
    ):
        try:
            module.cli_main()
        except (Exception, SystemExit) as raised:
            failed = True
            if not isinstance(raised, SystemExit):
                print(f"{type(raised).__name__}: {raised}")
        finally:
            root.setLevel(level)
            fileinput.close()  # also where reading was broken off
    assert failed == fails, output.getvalue()[-3000:]
    return output.getvalue()


def once(tmp_path_factory, name: str, make):
    """A folder that the first of all pytest-xdist workers fills with ``make(folder)``, and the others only read."""
    base = tmp_path_factory.getbasetemp()
    if base.name.startswith("popen-gw"):
        base = base.parent
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = base / name
        if not (folder / "complete").exists():
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
        return folder
