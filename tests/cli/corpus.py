"""A small corpus that has something to learn, binarised."""

import random

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
