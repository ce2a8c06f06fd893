"""scripts/cluster_vectors.py: paths and prefixes by hand, the package's numbers, errors."""

import gzip
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "cluster_vectors.py"
SPEC = importlib.util.spec_from_file_location("cluster_vectors", SCRIPT)
cluster_vectors = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(cluster_vectors)

PATHS = "0010\tthe\t99\n0010\ta\t98\n0011\tan\n1100\tdog\t7\n\n111\tcat\t8\r\n110011\tthe\t1\n0010\tnew\u00a0york\n"


def run(*arguments) -> int:
    return cluster_vectors.main([str(argument) for argument in arguments])


def read(path: Path):
    """The header, and the vectors by word."""
    header, *lines = (
        (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode().splitlines()
    )
    return header, {line.split(" ")[0]: np.array(line.split(" ")[1:], dtype=int) for line in lines}


@pytest.mark.parametrize("name", ["out.vec", "out.vec.gz"])
def test_words_that_share_a_prefix_share_its_vector(tmp_path, capsys, name):
    (tmp_path / "paths").write_text(PATHS, encoding="utf-8", newline="")
    command = ["--paths", tmp_path / "paths", "--prefixes", 2, 4, "--size", 24, "--output", tmp_path / name]
    assert run(*command) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / name}: 6 words of 4 clusters, 48 values each\n"
    header, found = read(tmp_path / name)
    assert header == "6 48" and list(found) == ["the", "a", "an", "dog", "cat", "new\u00a0york"]
    assert all(vector.shape == (48,) and set(vector) == {1, -1} for vector in found.values())
    short, long = ({word: tuple(vector[part]) for word, vector in found.items()} for part in (slice(24), slice(24, 48)))
    assert short["the"] == short["a"] == short["an"] != short["dog"] == short["cat"]
    assert long["the"] == long["a"] == long["new\u00a0york"] and len(set(long.values())) == 4
    assert not set(short.values()) & set(long.values())
    before = (tmp_path / name).read_bytes()
    assert run(*command) == 0 and (tmp_path / name).read_bytes() == before  # the same bytes every time
    assert run(*command, "--seed", 2) == 0 and (tmp_path / name).read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["paths", name])


def test_a_path_that_lost_its_zeros_has_them_again():
    """Shorter than the prefix, ``11`` is that of ``1100``."""
    found = dict(cluster_vectors.vectors({"cat": "11", "dog": "1100001"}, [4], 24, 1))
    assert found["cat"].tolist() == found["dog"].tolist()


def test_numbers_of_the_package(tmp_path, monkeypatch):
    """Their lowest bit is the first of the path; 0 means no cluster."""
    (tmp_path / "data").mkdir()
    table = {"the": 0b01011, "rare": 0, "dog": 0b10, "\n\n": 5, "new york": 0b110}
    (tmp_path / "data/en_lexeme_cluster.json.gz").write_bytes(gzip.compress(json.dumps(table).encode()))
    (tmp_path / "__init__.py").touch()
    package = type("package", (), {"__file__": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(cluster_vectors, "package", lambda name, extra: package)
    assert cluster_vectors.table_paths("en") == {"the": "1101", "dog": "01", "new york": "011"}
    assert run("--language", "en", "--output", tmp_path / "out.vec") == 0
    header, found = read(tmp_path / "out.vec")
    assert header == "3 64" and list(found) == ["the", "dog", "new\u00a0york"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("0010 the\n", ":1: not 'path <tab> word', the path of 0 and 1"),
        ("0010\tthe\n012\ta\n", ":2: not 'path <tab> word', the path of 0 and 1"),
        ("0010\t \n", " has no words"),
        ("\n", " has no words"),
    ],
)
def test_wrong_paths(tmp_path, capsys, text, message):
    (tmp_path / "paths").write_text(text)
    assert run("--paths", tmp_path / "paths", "--output", tmp_path / "out.vec") == 2
    assert capsys.readouterr().err == f"cluster_vectors: error: {tmp_path}/paths{message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["paths"]


def test_other_ways_of_writing_paths(tmp_path):
    """A byte order mark, gzip, odd line ends inside a word, a link as output, a word of white space."""
    plain = "\ufeff01\tthe\n10\ta\u2028b\n11\t\u2028\n"
    (tmp_path / "paths").write_text(plain, encoding="utf-8")
    (tmp_path / "paths.gz").write_bytes(gzip.compress(plain.encode()))
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "link.part").write_text("mine")
    for source in ("paths", "paths.gz"):
        assert run("--paths", tmp_path / source, "--output", tmp_path / "link", "--size", 2) == 0
        assert list(read(tmp_path / "real")[1]) == ["the", "a\u00a0b"] and (tmp_path / "link").is_symlink()
    names = ["link", "link.part", "paths", "paths.gz", "real"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names and (tmp_path / "link.part").read_text() == "mine"
    (tmp_path / "paths.gz").write_bytes(gzip.compress(plain.encode())[:-9])
    assert run("--paths", tmp_path / "paths.gz", "--output", tmp_path / "new") == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--output", "FOLDER"], "FOLDER is there and no file"),
        (["--output", "FOLDER/paths"], "--output FOLDER/paths is the file that is read"),
        (["--output", "FOLDER/none/x"], "FOLDER/none/x: there is no folder FOLDER/none"),
        (["--seed", "-1"], "--seed -1 must be at least 0"),
        (["--size", "1000000000000"], "prefixes of 20 bits and 4000000000000 values a word: at most 10000 of both"),
        (["--prefixes", "99999999999999999999"],
         "prefixes of 99999999999999999999 bits and 16 values a word: at most 10000 of both"),
    ],
)  # fmt: skip
def test_wrong_options(tmp_path, capsys, arguments, message):
    (tmp_path / "paths").write_bytes(PATHS.encode())
    given = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    output = [] if "--output" in given else ["--output", tmp_path / "out"]
    assert run("--paths", tmp_path / "paths", *output, *given) == 2
    assert capsys.readouterr().err == f"cluster_vectors: error: {message.replace('FOLDER', str(tmp_path))}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["paths"]
    assert (tmp_path / "paths").read_bytes() == PATHS.encode()


def test_other_errors(tmp_path, capsys, monkeypatch):
    assert run("--paths", tmp_path / "none", "--output", tmp_path / "out.vec") == 2
    assert capsys.readouterr().err == f"cluster_vectors: error: {tmp_path}/none: No such file or directory\n"
    monkeypatch.setitem(__import__("sys").modules, "spacy_lookups_data", None)
    assert run("--language", "en", "--output", tmp_path / "out.vec") == 2
    assert capsys.readouterr().err.endswith("pip install 'rntn-plugins[clusters]'\n")
