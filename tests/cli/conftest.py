"""A small corpus, binarised once a session."""

import random

import pytest
from commands import fairseq

WORDS = [f"w{i}" for i in range(24)]


def sentences(count: int, seed: int):
    """A random walk on words: each has three likely successors, so that there is something to learn."""
    random.seed(seed)
    for _ in range(count):
        word, line = random.choice(WORDS), []
        for _ in range(random.randint(1, 14)):
            line.append("<unk>" if random.random() < 0.03 else word)
            word = WORDS[(WORDS.index(word) * 3 + random.choice([1, 2, 5])) % len(WORDS)]
        yield " ".join(line)


def binarise(folder, words=str):
    for split, count, seed in (("train", 160, 1), ("valid", 30, 2), ("test", 31, 3)):
        lines = [words(line) for line in sentences(count, seed)]
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in lines))
    fairseq(
        "preprocess", "--only-source", "--trainpref", folder / "train.txt", "--validpref", folder / "valid.txt",
        "--testpref", folder / "test.txt", "--destdir", folder / "bin", "--padding-factor", 8,
    )  # fmt: skip
    return folder / "bin"


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data-bin of words, its dictionary filled up to a multiple of 8."""
    return binarise(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def characters(tmp_path_factory):
    """The same text as characters."""
    return binarise(tmp_path_factory.mktemp("characters"), lambda line: " ".join("_".join(line.split())))


@pytest.fixture(scope="session")
def test_tokens(data):
    """Tokens of the test split, ``</s>`` included."""
    lines = (data.parent / "test.txt").read_text().splitlines()
    return sum(len(line.split()) + 1 for line in lines)
