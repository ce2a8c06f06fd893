"""Word vectors from hierarchical (Brown) clusters, as text of word2vec for ``scripts/prepare_conllu.py --vectors``.

    pip install -e '.[clusters]'                                     # tables of English, German and Spanish
    python scripts/cluster_vectors.py --language en --output en.vec.gz
    python scripts/cluster_vectors.py --paths brown-paths.txt --output clusters.vec    # your own clusters

Brown clusters (Brown et al. 1992) are the leaves of a binary tree; a word is known by the path of bits to its leaf, and
words that share a prefix of the path stand in similar contexts. Parsers and taggers read prefixes of several lengths as
features (Koo, Carreras, Collins 2008). Here every prefix of every length has a fixed random vector of +1 and -1, and a
word's vector is those of its prefixes side by side: a linear map can read each of them. Train with
``--freeze-vectors``, so that words of the training text and others stay alike.

``--language`` reads the tables of the package spacy-lookups-data (MIT licence; words that no cluster has are left out);
``--paths`` the output of the usual programs, lines of ``path <tab> word [<tab> count]``.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import sys
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from prepare_lm import Parser, Refused, at_least_one, package, run  # noqa: E402

LANGUAGES = ("de", "en", "es")
LARGEST = 10_000  # bits of a prefix, values of a vector
UMASK = os.umask(0)
os.umask(UMASK)


def table_paths(language: str) -> Dict[str, str]:
    """Words and paths of a table of the package. It keeps a path as a number whose lowest bit is the path's first,
    which loses the zeros at its end; :func:`vectors` puts them back."""
    folder = Path(package("spacy_lookups_data", "clusters").__file__).parent
    with gzip.open(folder / "data" / f"{language}_lexeme_cluster.json.gz", "rt", encoding="utf-8") as file:
        table = json.load(file)
    return {word: format(number, "b")[::-1] for word, number in table.items() if number and word.strip()}


def file_paths(path: str) -> Dict[str, str]:
    """Words and paths of a file of ``path <tab> word`` lines, plain or packed by gzip."""
    found: Dict[str, str] = {}
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                bits, *rest = line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").rstrip("\r\n").split("\t")
                if not bits.strip() and not rest:
                    continue
                if not rest or not bits or set(bits) - {"0", "1"}:
                    raise Refused(f"{path}:{number}: not 'path <tab> word', the path of 0 and 1")
                if rest[0].strip():
                    found.setdefault(rest[0], bits)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Refused(f"cannot read {path}: {error}") from None
    if not found:
        raise Refused(f"{path} has no words")
    return found


def vectors(paths: Dict[str, str], lengths: List[int], size: int, seed: int) -> Iterator[Tuple[str, np.ndarray]]:
    """Each word and its vector, ``[len(lengths) * size]`` of +1 and -1.

    Zeros after a path that is shorter than a prefix never make it another cluster's: no leaf is above another.
    """
    random, codes = np.random.default_rng(seed), {}
    for word, bits in paths.items():
        keys = [(length, bits[:length].ljust(length, "0")) for length in lengths]
        for key in keys:
            if key not in codes:
                codes[key] = random.integers(0, 2, size) * 2 - 1
        yield word, np.concatenate([codes[key] for key in keys])


@contextmanager
def new_file(path: str):
    """A text file, packed if its name ends in ``.gz``, that appears under its name when it is whole."""
    target = Path(path).resolve()  # a link stays a link
    if target.exists() and not target.is_file():
        raise Refused(f"{path} is there and no file")
    if not target.parent.is_dir():
        raise Refused(f"{path}: there is no folder {target.parent}")
    number, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(number, "wb") as raw:
            # no name and no time inside: the same input gives the same bytes
            packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file:
                yield file
        os.chmod(part, 0o666 & ~UMASK)
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.remove(part)


def get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cluster_vectors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--language", choices=LANGUAGES, help="the clusters of spacy-lookups-data for this language")
    source.add_argument(
        "--paths", metavar="FILE", help="clusters of your own: lines of 'path <tab> word [<tab> count]'"
    )
    add("--output", required=True, metavar="FILE", help="where the vectors go, text of word2vec, plain or .gz")
    add(
        "--prefixes", nargs="+", type=at_least_one, default=[4, 6, 10, 20], metavar="BITS",
        help="lengths of the prefixes that have a vector (default: 4 6 10 20)",
    )  # fmt: skip
    add("--size", type=at_least_one, default=16, metavar="N", help="values of a prefix's vector (default: 16)")
    add("--seed", type=int, default=1, help="of the random vectors (default: 1)")
    return parser


def write(args: argparse.Namespace) -> None:
    dimension = len(args.prefixes) * args.size
    if args.paths is not None and Path(args.paths).resolve() == Path(args.output).resolve():
        raise Refused(f"--output {args.output} is the file that is read")
    if args.seed < 0:
        raise Refused(f"--seed {args.seed} must be at least 0")
    if dimension > LARGEST or max(args.prefixes) > LARGEST:
        raise Refused(f"prefixes of {max(args.prefixes)} bits and {dimension} values a word: at most {LARGEST} of both")
    paths = table_paths(args.language) if args.language else file_paths(args.paths)
    with new_file(args.output) as file:
        file.write(f"{len(paths)} {dimension}\n")
        for word, values in vectors(paths, args.prefixes, args.size, args.seed):
            word = "".join("\u00a0" if character.isspace() else character for character in word)
            file.write(f"{word} {' '.join(map(str, values))}\n")
    print(
        f"wrote {args.output}: {len(paths):,} words of {len(set(paths.values())):,} clusters, {dimension} values each"
    )


def main(arguments: Optional[List[str]] = None) -> int:
    """Exit code 0, or 2 after one line that says what is wrong."""
    args = get_parser().parse_args(arguments)
    return run("cluster_vectors", write, args, args.output)


if __name__ == "__main__":
    sys.exit(main())
