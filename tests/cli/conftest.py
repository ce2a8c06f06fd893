"""A small corpus, binarised once a session."""

import pytest
from corpus import binarise


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
