"""Which matrix a symbol uses."""

import pytest
import torch

from rntn_plugins import build_cell
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.cells.index_map import build_map, ranks

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "the", "a", "cat"]
COUNTS = torch.tensor([0, 0, 40, 30, 50, 20, 20])
VOCABULARY = Vocabulary(7, SYMBOLS, COUNTS)


def test_ranks_count_special_symbols_and_break_ties_by_index():
    assert ranks(COUNTS).tolist() == [6, 7, 2, 3, 1, 4, 5]


@pytest.mark.parametrize("k, expected", [(1, [0] * 7), (3, [2, 2, 1, 2, 0, 2, 2]), (7, [5, 6, 1, 2, 0, 3, 4])])
def test_rank_map_is_min_of_rank_and_k(k, expected):
    assert build_map("rank", VOCABULARY, k).tolist() == expected


def test_mod_map_is_rank_modulo_k():
    assert build_map("mod", VOCABULARY, 3).tolist() == [0, 1, 2, 0, 1, 1, 2]


def test_map_file(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("the 0\na 0\n\ncat 2\n</s> 1\n<unk>\t1\nunrelated 2\n")
    assert build_map(str(file), VOCABULARY, 3).tolist() == [0, 0, 1, 1, 0, 0, 2]
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # a byte order mark, as some editors write it
    assert build_map(str(file), VOCABULARY, 3).tolist() == [0, 0, 1, 1, 0, 0, 2]


@pytest.mark.parametrize(
    "text, message",
    [
        ("the 0\n", "no line for the symbol '</s>' of the vocabulary"),
        ("the\n", ":1: expected 'symbol index', found 'the'"),
        ("the 0\na x\n", ":2: expected 'symbol index', found 'a x'"),
        ("the 3\n", ":1: index 3 is not between 0 and K-1 = 2"),
        ("the -1\n", ":1: expected 'symbol index'"),
        ("the 1\nthe 1\n", ":2: symbol 'the' has two lines"),
    ],
)
def test_bad_map_files_name_file_and_line(tmp_path, text, message):
    file = tmp_path / "classes.txt"
    file.write_text(text)
    with pytest.raises(ValueError) as error:
        build_map(str(file), VOCABULARY, 3)
    assert message in str(error.value) and "classes.txt" in str(error.value) and "\n" not in str(error.value)


def test_binary_map_file(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_bytes(b"the 0\n\xff\xfe 1\n")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        build_map(str(file), VOCABULARY, 3)


def test_a_map_without_counts_comes_from_the_checkpoint():
    trained = build_cell("r_rntn", 2, 2, VOCABULARY, num_matrices=3)
    loaded = build_cell("r_rntn", 2, 2, Vocabulary(7, SYMBOLS), num_matrices=3)
    x, tokens = torch.randn(1, 1, 2), torch.tensor([[4]])
    with pytest.raises(ValueError, match="the map from symbols to matrices is not known"):
        loaded.project(x, tokens)
    loaded.load_state_dict(trained.state_dict())
    assert loaded.recurrence.index_of_symbol.tolist() == [2, 2, 1, 2, 0, 2, 2]
    loaded.project(x, tokens)


def test_a_map_of_a_checkpoint_is_kept_and_said_to_be(caplog):
    """It is what its matrices were trained with; another --index-map does not change it."""
    state, other = (build_cell("r_rntn", 2, 2, VOCABULARY, num_matrices=3, index_map=kind) for kind in ("rank", "mod"))
    unknown = build_cell("r_rntn", 2, 2, VOCABULARY._replace(counts=None), num_matrices=3, index_map="mod")
    for cell in (unknown, build_cell("r_rntn", 2, 2, VOCABULARY, num_matrices=3)):
        cell.load_state_dict(state.state_dict())
    assert not caplog.messages
    other.load_state_dict(state.state_dict())
    assert other.recurrence.index_of_symbol.tolist() == [2, 2, 1, 2, 0, 2, 2]
    assert caplog.messages == [
        "the checkpoint's map from symbols to matrices is kept; it is not what --index-map gives for this data"
    ]


def test_a_map_file_need_not_name_fillers(tmp_path):
    (tmp_path / "map").write_text("</s> 1\n<unk> 1\nthe 2\n")
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "the", "madeupword0000"]
    assert build_map(str(tmp_path / "map"), Vocabulary(6, symbols), 3).tolist() == [0, 0, 1, 1, 2, 0]
