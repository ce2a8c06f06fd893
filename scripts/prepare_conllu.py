"""From treebanks in CoNLL-U to the binarised folder that fairseq-train reads, for tagging and dependency parsing.

    python scripts/prepare_conllu.py --train en-train.conllu --valid en-dev.conllu --test en-test.conllu --dest DEST
    python scripts/prepare_conllu.py --folder UD_English --dest data-bin/ud-en     # *-ud-{train,dev,test}.conllu there
    python scripts/prepare_conllu.py --turkish web --dest data-bin/tr-web          # from a PyPI package

Writes ``DEST/{train,valid,test}.conllu`` (the files as they are; sentence i of a bin is sentence i there), a folder
``DEST/COLUMN`` with ``dict.txt`` and the binarised splits for each column of ``rntn_plugins.data.columns``, and last
``DEST/prepare_conllu.json`` with the options: a folder without that file is not complete. Run again, the command reuses
a complete folder; one made with other options is an error.

- Dictionaries are of the training split, by count. ``head_position`` has 0 to the length of the longest sentence of all
  splits; what training lacks of them has count 0.
- UPOS and DEPREL that training lacks are an error; with ``--unseen-labels keep`` they become ``<unk>``, which no model
  predicts. XPOS and heads are only counted: with large tag sets and long sentences that is usual.
- A split where every HEAD is ``_`` has no bins of heads and relations: it can be parsed, but not scored.
- ``--vectors``: a dictionary word has the vector of itself or else of its lower-cased form. Words that would be
  ``<unk>`` (rare in training, or only in the other splits) join the dictionary if they have one.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import lzma
import math
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from prepare_lm import SPLITS, Parser, Refused, at_least_one, flag, folder, package, run  # noqa: E402

WORDS = ("form", "lemma")
HEADS = ("deprel", "head_position", "head_offset", "head_upos")
LABELS = ("upos", "xpos", *HEADS)
MUST_BE_SEEN = ("upos", "deprel")
RECORD = "prepare_conllu.json"
HEADER = re.compile(rb"\d{1,18} \d{1,18}")  # of a file of vectors
UNFINISHED = ".prepare_conllu-unfinished"
COPIES = [f"{split}.conllu" for split in SPLITS]
COLUMN_FILES = ["dict.txt", "vectors.npy"] + [f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx")]
OPTIONS = ("turkish", "skip_invalid", "unseen_labels", "min_count", "vectors_column", "vector_words")
MOST_SHOWN = 10  # skipped sentences of a split


class Part(NamedTuple):
    """One split."""

    treebank: object  # what is left of the file, and what was skipped
    columns: Dict[str, List[List[str]]]  # symbols of each sentence; without HEADS if not parsed


# ---- reading ---------------------------------------------------------------------------------------------------------


def source_paths(args) -> Dict[str, str]:
    if args.turkish:  # its data lie beside the package, whose own reader fails with protobuf >= 4
        data = Path(package("turkish_treebanks", "samples").__file__).resolve().parents[1] / "data"
        return dict.fromkeys(SPLITS, str(data / f"{args.turkish}.conllu"))
    if not args.folder:
        return {split: getattr(args, split) for split in SPLITS}
    paths = {}
    for split, name in zip(SPLITS, ("train", "dev", "test")):
        found = sorted(map(str, Path(args.folder).glob(f"*-ud-{name}.conllu")))
        if len(found) != 1:
            what = f"{len(found)} files" if found else "no file"
            raise Refused(f"{args.folder} has {what} *-ud-{name}.conllu, not one; or give --train, --valid and --test")
        paths[split] = found[0]
    return paths


def turkish_splits(treebank) -> dict:
    """Of ten sentences eight, one and one, as the package cuts them; malformed ones take part."""
    found = [(sentence.first_line, "sentences", sentence) for sentence in treebank.sentences]
    found += [(malformed.line, "malformed", malformed) for malformed in treebank.malformed]
    parts = {split: treebank._replace(sentences=[], malformed=[]) for split in SPLITS}
    for number, (_, kind, item) in enumerate(sorted(found, key=lambda entry: entry[0])):
        getattr(parts[{8: "valid", 9: "test"}.get(number % 10, "train")], kind).append(item)
    return parts


def check(treebank, name: str, skip_invalid: bool):
    """The treebank without unparsed sentences, if others are parsed; sentences to skip are refused or shown."""
    from rntn_plugins.data.conllu import Malformed

    skipped, sentences = list(treebank.malformed), treebank.sentences
    if len({sentence.parsed for sentence in sentences}) == 2:
        reason = "the sentence has no heads, but others have; a split has heads throughout or nowhere"
        skipped += [Malformed(s.name, s.first_line, reason) for s in sentences if not s.parsed]
        sentences = [sentence for sentence in sentences if sentence.parsed]
    skipped.sort(key=lambda malformed: malformed.line)
    if skipped and not skip_invalid:
        raise Refused(f"{skipped[0]} (--skip-invalid leaves such sentences out)")
    for malformed in skipped[:MOST_SHOWN]:
        print(f"skipped: {malformed}")
    if len(skipped) > MOST_SHOWN:
        print(f"... and {len(skipped) - MOST_SHOWN:,} more")
    if not sentences:
        raise Refused(f"{name} is empty: there is no sentence in it" + (" that is not skipped" if skipped else ""))
    return treebank._replace(sentences=sentences, malformed=skipped)


def read_splits(args, paths: Dict[str, str]) -> Dict[str, Part]:
    from rntn_plugins.data.columns import COLUMNS, column_symbols
    from rntn_plugins.data.conllu import ConlluError, read_conllu

    try:
        if args.turkish:
            treebanks = turkish_splits(read_conllu(paths["train"], skip_invalid=True))
        else:
            treebanks = {split: read_conllu(path, skip_invalid=True) for split, path in paths.items()}
    except ConlluError as error:  # not UTF-8
        raise Refused(str(error)) from None
    parts = {}
    for split, treebank in treebanks.items():
        treebank = check(treebank, paths[split], args.skip_invalid)
        sentences = treebank.sentences
        present = [column for column in COLUMNS if sentences[0].parsed or column not in HEADS]
        columns = {column: [column_symbols(sentence, column) for sentence in sentences] for column in present}
        parts[split] = Part(treebank, columns)
    return parts


def unseen_labels(parts: Dict[str, Part], split: str, keep: bool) -> Dict[str, int]:
    """How many labels of a split training lacks, by column."""
    part, unseen = parts[split], Counter()
    for column in [column for column in LABELS if column in part.columns and column in parts["train"].columns]:
        seen = {label for labels in parts["train"].columns[column] for label in labels}
        for sentence, labels in zip(part.treebank.sentences, part.columns[column]):
            for word, label in zip(sentence.words, labels):
                if label not in seen and column in MUST_BE_SEEN and not keep:
                    what = f"{sentence.name}:{word.line}: {column.upper()} {label!r} never occurs in training"
                    raise Refused(f"{what} (--unseen-labels keep makes it <unk>, which counts as wrong)")
                unseen[column] += label not in seen
    return +unseen


# ---- word vectors ----------------------------------------------------------------------------------------------------


def vector_lines(path: str) -> Iterator[Tuple[str, List[float]]]:
    """Words and values of a text file of word2vec or fastText; every line is checked."""
    dimension = said = None
    read = 0
    try:
        with {".gz": gzip.open, ".xz": lzma.open}.get(Path(path).suffix, open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                word, *values = line.rstrip(b" \r\n").split(b" ")
                if number == 1 and len(values) == 1 and HEADER.fullmatch(line.strip()):
                    said, dimension = int(word), int(values[0])  # a header: how many words, how many values
                    continue
                dimension = dimension or max(1, len(values))
                if len(values) != dimension:
                    raise Refused(f"{path}:{number}: {len(values)} values after the word, must be {dimension}")
                try:
                    numbers = [float(value) for value in values]
                except ValueError as error:
                    raise Refused(f"{path}:{number}: {error}") from None
                if not all(math.isfinite(value) and abs(value) < 3e38 for value in numbers):  # of float32
                    raise Refused(f"{path}:{number}: a value is not finite")
                read += 1
                yield word.decode("utf-8", errors="replace"), numbers
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise Refused(f"cannot read {path}: {error}") from None
    if said is not None and read < said:
        print(f"note: {path} ends after {read:,} words; its first line says {said:,}", file=sys.stderr)


def read_vectors(path: str, symbols: set, first: int) -> dict:
    """Vectors, in the file's order, of its *first* words, the *symbols* and their lower-cased forms."""
    import numpy as np

    from rntn_plugins.data.columns import symbol

    wanted = symbols | {word.lower() for word in symbols}
    rows: dict = {}
    for text, values in vector_lines(path):
        word = symbol(text)
        if word and word not in rows and (len(rows) < first or word in wanted):
            rows[word] = np.array(values, dtype=np.float32)
    if not rows:
        raise Refused(f"{path} has no vector of any word of the treebank")
    return rows


def vector_of(word: str, rows: dict):
    row = rows.get(word)
    return rows.get(word.lower()) if row is None else row


# ---- binarising ------------------------------------------------------------------------------------------------------


def make_dictionary(column: str, texts: Dict[str, List[List[str]]], longest: int, args, rows: dict):
    """The dictionary that fairseq-preprocess would make of the training split, but for what stands at the top."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    counts = Counter(symbol for line in texts["train"] for symbol in line)
    if column == "head_position":
        for position in map(str, range(longest + 1)):
            dictionary.add_symbol(position, counts[position])
        return dictionary
    for symbol in sorted(counts):
        dictionary.add_symbol(symbol, counts[symbol])
    dictionary.finalize(threshold=args.min_count if column in WORDS else 1, padding_factor=1)
    known = [s for lines in texts.values() for line in lines for s in line if rows and vector_of(s, rows) is not None]
    for symbol in dict.fromkeys([*known, *list(rows)[: args.vector_words]]):
        if symbol not in dictionary:
            dictionary.add_symbol(symbol, counts[symbol])
    if len(dictionary) == dictionary.nspecial:
        raise Refused(f"--min-count {args.min_count} leaves no {column}: none is as frequent in the training split")
    return dictionary


def preprocess(folder: Path, files: Dict[str, Path]) -> None:
    """fairseq-preprocess with the dictionary in *folder*; in this process, since each of its own would take seconds."""
    from fairseq import options
    from fairseq_cli import preprocess as cli

    command = ["--only-source", "--destdir", str(folder), "--srcdict", str(folder / "dict.txt"), "--workers", "1"]
    command += ["--padding-factor", "1", *(f"--{split}pref={path}" for split, path in files.items())]
    level, handlers = cli.logger.level, list(cli.logger.handlers)
    cli.logger.setLevel(logging.WARNING)
    try:
        cli.main(options.get_preprocessing_parser().parse_args(command))
    finally:
        cli.logger.setLevel(level)
        for handler in set(cli.logger.handlers).difference(handlers):  # of a log file in the folder
            cli.logger.removeHandler(handler)
            handler.close()


def binarise_column(work: Path, column: str, parts: Dict[str, Part], args, statistics: dict) -> None:
    """Make the folder of a column, read it back and add to the statistics."""
    import numpy as np
    from fairseq.data import Dictionary, data_utils

    folder, rows = work / column, {}
    texts = {split: part.columns[column] for split, part in parts.items() if column in part.columns}
    if args.vectors is not None and column == args.vectors_column:
        symbols = {symbol for lines in texts.values() for line in lines for symbol in line}
        rows = read_vectors(args.vectors, symbols, args.vector_words)
    folder.mkdir()
    longest = max(statistics[split]["longest"] for split in SPLITS)
    make_dictionary(column, texts, longest, args, rows).save(str(folder / "dict.txt"))
    files = {split: work / f"{column}.{split}.txt" for split in texts}
    for split, lines in texts.items():
        content = "".join(" ".join(line) + "\n" for line in lines)
        files[split].write_text(content, encoding="utf-8", newline="\n")
    preprocess(folder, files)

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    statistics["dictionaries"][column] = len(dictionary)
    if rows:
        found = {index: vector_of(dictionary[index], rows) for index in range(dictionary.nspecial, len(dictionary))}
        found = {index: row for index, row in found.items() if row is not None}
        dimension = len(next(iter(rows.values())))
        table = np.zeros((len(dictionary), dimension), dtype=np.float32)
        for index, row in found.items():
            table[index] = row
        np.save(folder / "vectors.npy", table)
        statistics["vectors"] = {"column": column, "dimension": dimension, "words": len(found), "tokens": {}}
    for split, lines in texts.items():
        written = data_utils.load_indexed_dataset(str(folder / split), dictionary)
        symbols = [[dictionary.index(symbol) for symbol in line] for line in lines]
        if [sentence.tolist() for sentence in written] != [[*line, dictionary.eos()] for line in symbols]:
            raise Refused(f"fairseq-preprocess did not write column {column} of {split} as it is")
        counts = Counter(index for line in symbols for index in line)
        statistics[split]["unknown"][column] = counts[dictionary.unk()]
        statistics[split]["symbols"][column] = sum(counts.values())
        if rows:
            statistics["vectors"]["tokens"][split] = sum(counts[index] for index in found)


def binarise(dest: Path, record: dict, parts: Dict[str, Part], args) -> dict:
    """Make everything in a folder of its own and move it to *dest* when it is whole, the record last."""
    from rntn_plugins.data.columns import COLUMNS
    from rntn_plugins.data.conllu import write_conllu

    statistics: dict = {"dictionaries": {}, "vectors": None}
    for split, part in parts.items():
        lengths = [len(sentence.words) for sentence in part.treebank.sentences]
        statistics[split] = {
            "sentences": len(lengths), "words": sum(lengths), "longest": max(lengths), "unknown": {}, "symbols": {},
            "skipped": len(part.treebank.malformed), "parsed": "deprel" in part.columns,
            "unseen": unseen_labels(parts, split, args.unseen_labels == "keep"),
        }  # fmt: skip
    dest.mkdir(parents=True, exist_ok=True)
    work = dest / UNFINISHED
    shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    try:
        work.mkdir()
        for split, (treebank, _) in parts.items():
            write_conllu(work / f"{split}.conllu", treebank, [sentence.text for sentence in treebank.sentences])
        for column in parts["train"].columns:
            binarise_column(work, column, parts, args, statistics)
        possible = [*COPIES, *(f"{column}/{name}" for column in COLUMNS for name in COLUMN_FILES)]
        made = [name for name in possible if (work / name).exists()]
        record["statistics"] = statistics
        record["files"] = {name: (work / name).stat().st_size for name in made}
        (work / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (dest / RECORD).unlink(missing_ok=True)
        for name in possible:  # vectors, for example, of other options
            (dest / name).unlink(missing_ok=True)
        for name in [*made, RECORD]:
            (dest / name).parent.mkdir(exist_ok=True)
            os.replace(work / name, dest / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return statistics


def share(number: int, total: int) -> str:
    return f"{number:,} ({100 * number / total:.2f} %)"


def table(statistics: dict) -> str:
    columns = ("lemma", "form", "char")
    head = f"{'split':<6}{'sentences':>10}{'words':>11}{'skipped':>9}{'longest':>9}"
    lines = [head + "".join(f"{'unknown ' + column:>17}" for column in columns)]
    for split in SPLITS:
        row = statistics[split]
        words, symbols = row["words"], row["symbols"]
        totals = {**symbols, "char": symbols["char"] - words}  # without the ends of words
        numbers = f"{split:<6}{row['sentences']:>10,}{words:>11,}{row['skipped']:>9,}{row['longest']:>9,}"
        lines.append(numbers + "".join(f"{share(row['unknown'][column], totals[column]):>17}" for column in columns))
    for split in SPLITS:
        row = statistics[split]
        if not row["parsed"]:
            more = ", so no columns of heads: for tagging only" if split == "train" else ""
            lines.append(f"{split}: no heads{more}")
        if row["unseen"]:
            labels = ", ".join(f"{column} {share(n, row['words'])}" for column, n in row["unseen"].items())
            lines.append(f"{split}: labels that training lacks: {labels}")
    sizes = ", ".join(f"{column} {size:,}" for column, size in statistics["dictionaries"].items())
    lines.append(f"dictionaries, each with <s>, <pad>, </s> and <unk>: {sizes}")
    found = statistics["vectors"]
    if found:
        words = share(found["words"], statistics["dictionaries"][found["column"]] - 4)
        tokens = ", ".join(f"{split} {share(n, statistics[split]['words'])}" for split, n in found["tokens"].items())
        of = f"{found['column']} vectors of {found['dimension']} values"
        lines.append(f"{of}: {words} of the dictionary; tokens: {tokens}")
    return "\n".join(lines)


def reusable(dest: Path, record: dict, named: Dict[str, str]) -> Optional[dict]:
    """The statistics of the finished folder *dest*, or ``None`` if it has to be made.

    Raises:
        Refused: *dest* was made with other options or from other files, or is none of ours.
    """
    advice = "choose another --dest, or --force to make it anew"
    try:
        found = json.loads((dest / RECORD).read_text(encoding="utf-8"))
        options, digests, files, statistics = (dict(found[k]) for k in ("options", "digests", "files", "statistics"))
    except FileNotFoundError:
        present = [name for name in [*COPIES, "form/dict.txt"] if (dest / name).exists()]
        if present:
            raise Refused(f"{dest} has {present[0]} but no {RECORD}: not finished, or not ours; {advice}") from None
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(f"{dest / RECORD} is damaged; {advice}") from None
    for name, wanted in record["options"].items():
        was = options.get(name)
        if was != wanted:
            raise Refused(f"{dest} was made with {flag(name, was)}, not with {flag(name, wanted)}; {advice}")
    for name, wanted in record["digests"].items():
        if digests.get(name) != wanted:
            raise Refused(f"{dest} was made from another file than {named[name]}; {advice}")
    for name, size in files.items():
        if not (dest / name).is_file() or (dest / name).stat().st_size != size:
            print(f"{dest}: {name} is missing or was changed; making everything anew")
            return None
    try:
        table(statistics)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise Refused(f"{dest / RECORD} is damaged; {advice}") from None
    return statistics


# ---- the command line ------------------------------------------------------------------------------------------------


def get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="prepare_conllu", description="From CoNLL-U to a fairseq data-bin for tagging and parsing.")
    add = parser.add_argument
    for split in SPLITS:
        add(f"--{split}", metavar="FILE", help=f"the {split} split")
    add("--folder", metavar="DIR", help="instead: a folder with *-ud-train.conllu, *-ud-dev.conllu, *-ud-test.conllu")
    add("--turkish", choices=("web", "wiki"), help="instead: from the PyPI package turkish-treebanks, with its splits")
    add("--dest", required=True, type=folder, metavar="DIR", help="where to write: the folder to train on")
    add("--skip-invalid", action="store_true", help="leave out sentences that are malformed, or alone have no heads")
    add(
        "--unseen-labels", choices=("error", "keep"), default="error",
        help="UPOS and DEPREL that training lacks: an error, or kept as <unk>, which counts as wrong "
        "(default: error; XPOS and heads are always kept)",
    )  # fmt: skip
    add(
        "--min-count", type=at_least_one, default=1, metavar="N",
        help="lemmas and forms rarer than N in training become <unk>, unless they have a vector (default: 1)",
    )  # fmt: skip
    add("--vectors", metavar="FILE", help="word vectors, text of word2vec or fastText, plain, .gz or .xz")
    add("--vectors-column", choices=WORDS, help="with --vectors: whose vectors they are (default: form)")
    add(
        "--vector-words", type=at_least_one, metavar="N",
        help="with --vectors: the first N words of the file join the dictionary, for other texts (default: none)",
    )  # fmt: skip
    add("--force", action="store_true", help="make everything anew, whatever is in --dest")
    return parser


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    """Arguments with the defaults of vectors; an option that would have no effect is an error."""
    parser = get_parser()
    args = parser.parse_args(arguments)
    given = [name for name in (*SPLITS, "folder", "turkish") if getattr(args, name) is not None]
    if given not in (list(SPLITS), ["folder"], ["turkish"]):
        found = " and ".join(f"--{name}" for name in given) or "none of them"
        parser.error(f"give --train, --valid and --test, or --folder, or --turkish; there is {found}")
    for name in ("vectors_column", "vector_words"):
        if getattr(args, name) is not None and args.vectors is None:
            parser.error(f"--{name.replace('_', '-')} goes with --vectors only")
    if args.vectors is not None:
        args.vectors_column = args.vectors_column or "form"
    args.vector_words = args.vector_words or 0
    return args


def prepare(args: argparse.Namespace) -> None:
    dest, paths = Path(args.dest), source_paths(args)
    named = {**paths, "vectors": args.vectors} if args.vectors is not None else paths
    for path in named.values():
        if Path(path).resolve() in [(dest / name).resolve() for name in COPIES]:
            raise Refused(f"{path} is a file that this command writes; choose another --dest")
    digests = dict.fromkeys((*SPLITS, "vectors"))
    for name, path in named.items():
        with open(path, "rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    record = {"options": {name: getattr(args, name) for name in OPTIONS}, "digests": digests}
    statistics = None if args.force else reusable(dest, record, named)
    if statistics is not None:
        print(f"{dest} is complete and made with these options: reused (--force makes it anew)")
    else:
        statistics = binarise(dest, record, read_splits(args, paths), args)
        print(f"wrote {dest}")
    print(table(statistics))


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, or 2 after one line that says what is wrong."""
    args = parse(arguments)
    return run("prepare_conllu", prepare, args, args.dest)


if __name__ == "__main__":
    sys.exit(main())
