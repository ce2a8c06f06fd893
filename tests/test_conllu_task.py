"""Tagging and parsing tasks without commands: labels of heads, columns, lines, batches, trees, scores, the file."""

import itertools
import math
import os
import pickle
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import scoring
from fairseq.data import Dictionary
from omegaconf import OmegaConf

import rntn_plugins  # noqa: F401
from rntn_plugins.criterions.label_cross_entropy import LabelCrossEntropy
from rntn_plugins.data.columns import COLUMNS, WORD_END, column_symbols, symbol, text_of
from rntn_plugins.data.conllu import ConlluError, parse_conllu, read_conllu
from rntn_plugins.data.conllu_dataset import ConlluDataset, Labels, WithoutEnd, Words, cut_words, stack_words
from rntn_plugins.data.conllu_lines import ConlluLines
from rntn_plugins.data.heads import ENCODINGS, head_labels, labels_of_word
from rntn_plugins.data.label_dictionary import LabelDictionary, become, join_dictionaries
from rntn_plugins.data.predicted_file import PredictedFile
from rntn_plugins.data.trees import is_tree
from rntn_plugins.tasks import conllu_interactive
from rntn_plugins.tasks.conllu_parsing import ConlluParsingConfig, ConlluParsingTask
from rntn_plugins.tasks.conllu_tagging import ConlluTaggingConfig, ConlluTaggingTask
from rntn_plugins.tasks.label_generation import Allowed

# ---- labels of heads -------------------------------------------------------------------------------------------------


def test_head_labels_by_hand():
    """Worked out by hand from the definitions (relative positions, and relative positions of parts of speech): a noun's
    determiner hangs on the first noun to the right, the object on the first verb to the left."""
    upos = ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "ADP", "NOUN", "PUNCT"]
    heads = [3, 3, 4, 0, 6, 4, 8, 6, 4]
    assert head_labels(heads, "position") == ["3", "3", "4", "0", "6", "4", "8", "6", "4"]
    assert head_labels(heads, "offset") == ["+2", "+1", "+1", "0", "+1", "-2", "+1", "-2", "-5"]
    assert head_labels(heads, "upos", upos) == [
        "+1@NOUN", "+1@NOUN", "+1@VERB", "0", "+1@NOUN", "-1@VERB", "+1@NOUN", "-1@NOUN", "-1@VERB",
    ]  # fmt: skip
    far = [0, 1, 1, 1, 1]  # -k counts the words of that tag on the way, the nearest first
    assert head_labels(far, "upos", ["N", "N", "N", "V", "N"]) == ["0", "-1@N", "-2@N", "-3@N", "-3@N"]
    assert labels_of_word(3, 5, "upos", list("NVNNV")) == ["0", "-1@N", "-1@V", None, "+1@N", "+1@V"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("words", [1, 2, 5])
def test_every_head_has_its_own_label(encoding, words):
    for upos in itertools.product("NV", repeat=words):
        for word in range(1, words + 1):
            labels = labels_of_word(word, words, encoding, upos)
            assert len(labels) == words + 1 and labels[word] is None and labels[0] == "0"
            others = [label for label in labels if label is not None]
            assert len(set(others)) == len(others) == words
            for head in set(range(words + 1)) - {word}:
                heads = [0] * words
                heads[word - 1] = head
                assert labels.index(head_labels(heads, encoding, upos)[word - 1]) == head


def test_unknown_encoding():
    with pytest.raises(ValueError, match="head encoding 'absolute' is not one of position, offset, upos"):
        labels_of_word(1, 1, "absolute")


# ---- columns ---------------------------------------------------------------------------------------------------------


def block(*words: str) -> str:
    """CoNLL-U of words like ``form|lemma|UPOS|head|deprel``."""
    rows = [word.split("|") for word in words]
    lines = [f"{at}\t{f}\t{lem}\t{u}\t_\t_\t{h}\t{r}\t_\t_" for at, (f, lem, u, h, r) in enumerate(rows, 1)]
    return "\n".join(lines) + "\n\n"


def test_columns_as_symbols():
    (sentence,) = parse_conllu(
        block("New York|New York|PROPN|2|nsubj", "</s>|_|VERB|0|root", "_|_|SYM|2|dep", "<w>|madeupword1|X|2|dep:x")
    ).sentences
    assert column_symbols(sentence, "form") == ["New␣York", "\\</s>", "_", "\\<w>"]
    assert column_symbols(sentence, "lemma") == ["New␣York", "\\</s>", "_", "\\madeupword1"]
    assert column_symbols(sentence, "deprel") == ["nsubj", "root", "dep", "dep:x"]
    characters = column_symbols(sentence, "char")
    assert characters == [*"New␣York", WORD_END, *"</s>", WORD_END, "_", WORD_END, *"<w>", WORD_END]
    assert characters.count(WORD_END) == 4, "a word that is spelt like it is three characters"
    assert column_symbols(sentence, "head_position") == ["2", "0", "2", "2"]
    assert column_symbols(sentence, "head_upos") == ["+1@VERB", "0", "-1@VERB", "-1@VERB"]
    with pytest.raises(ValueError, match="column 'feats' is not one of lemma, form"):
        column_symbols(sentence, "feats")


@pytest.mark.parametrize(
    "text", ["a b", "a\u00a0b", "a\u2028b", " ", "\u3000", "<s>", "<pad>", "<unk>", "madeupwordx", "ab"]
)
def test_symbols_survive_a_dictionary(text, tmp_path):
    assert text_of(symbol(text)) == text or any(map(str.isspace, text))
    dictionary, one = Dictionary(), symbol(text)
    index = dictionary.add_symbol(one)
    assert index >= dictionary.nspecial and len(one.split()) == 1
    dictionary.save(str(tmp_path / "dict.txt"))
    again = Dictionary.load(str(tmp_path / "dict.txt"))
    assert again.encode_line(f"{one} {one}", add_if_not_exist=False).tolist() == [index, index, again.eos()]


def test_no_heads_no_labels():
    (sentence,) = parse_conllu(block("a|a|X|_|_")).sentences
    with pytest.raises(ValueError, match="<text>:1: the sentence has no heads"):
        column_symbols(sentence, "head_offset")


# ---- lines of fairseq-interactive ------------------------------------------------------------------------------------


def test_lines():
    lines = ConlluLines()
    first = block("a|a|X|_|_", "b|b|X|_|_")[:-1].split("\n")[:-1]
    assert lines.read(["# text = a", first[0]]) == []
    assert lines.read([first[1]]) == []
    (sentence,) = lines.read([""])
    assert sentence.column("form") == ["a", "b"] and sentence.text.startswith("# text = a\n1\ta")
    assert lines.read(["", "  "]) == []
    (one, two) = lines.read(["  New   York ", "x"])
    assert one.column("form") == ["New", "York"] and two.column("form") == ["x"]
    with pytest.raises(ConlluError, match="^input:10: number of columns: 1"):
        lines.read([first[0], "plain", ""])
    assert lines.read(["# only a comment", ""]) == []
    with pytest.raises(ConlluError, match="^input:15: id 3 where 2 is due"):
        lines.read([first[0], first[1].replace("2", "3", 1), ""])
    (after,) = lines.read(["goes on"])
    assert after.column("form") == ["goes", "on"]


def test_sentences_may_begin_with_a_hashtag():
    lines = ConlluLines()
    token = block("a|a|X|_|_")[:-2]
    assert lines.read(["#MeToo is trending"]) == []
    found = lines.read(["I like it", "#a", "#b c", ""])
    assert [sentence.column("form") for sentence in found] == [
        ["#MeToo", "is", "trending"], ["I", "like", "it"], ["#a"], ["#b", "c"],
    ]  # fmt: skip
    assert [sentence.name for sentence in found] == [f"<sentence {number}>" for number in (1, 2, 3, 4)]
    (commented,) = lines.read(["#newdoc", token, ""])
    assert commented.text == f"#newdoc\n{token}\n\n"
    assert lines.read(["# newdoc", "#", "##", ""]) == []
    with pytest.raises(ConlluError, match="^input:14: number of columns: 1"):
        lines.read(["# text = a", "1 a a X _ _ 0 root _ _", ""])
    with pytest.raises(ConlluError, match="^input:17: number of columns: 1"):
        lines.read(["## a heading, no hashtag", "plain", ""])


def test_what_is_read_is_known_as_a_file(tmp_path, monkeypatch):
    """A terminal, a pipe or /dev/null may be read and written at the same time, a file not."""
    monkeypatch.setattr(conllu_interactive, "read_from", set())
    text = tmp_path / "text"
    text.write_text("a\n\tb \n\n")
    assert list(conllu_interactive.read_lines(str(text), 2)) == [["a", "\tb "], [""], [""]]
    assert list(conllu_interactive.read_lines(os.devnull, 2)) == [[""]]
    conllu_interactive.check_not_read(os.devnull)
    conllu_interactive.check_not_read(str(tmp_path / "new"))
    (tmp_path / "link").symlink_to(text)
    for path in (text, tmp_path / "link"):
        with pytest.raises(ValueError, match=f"^--conllu-output {path} is the file that is read"):
            conllu_interactive.check_not_read(str(path))


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_words_of_characters():
    end, pad = 9, 1
    words = cut_words(torch.tensor([4, 5, end, 6, end, end, 7, 8, 4, end]), end, pad)
    assert words.tolist() == [[4, 5, 1], [6, 1, 1], [1, 1, 1], [7, 8, 4]]
    stacked = stack_words([words, torch.tensor([[5]])], pad)
    assert stacked.shape == (2, 4, 3)
    assert stacked[0].equal(words) and stacked[1].tolist() == [[5, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert stack_words([torch.zeros(1, 0, dtype=torch.long)], pad).tolist() == [[[pad]]], "never without a column"


def dataset(lengths, **options):
    columns = {name: [torch.arange(4, 4 + n) for n in lengths] for name in ("form", "upos")}
    labels = [Labels(torch.arange(2 * n) + 4, torch.zeros(n), torch.zeros(n)) for n in lengths]
    options = {"with_end": False, "labels_per_word": 2, **options}
    return ConlluDataset(columns, None, labels, None, source="form", pad=1, end=2, **options)


def collate(data):
    return data.collater([data[index] for index in range(len(data))])


def test_batches_are_padded_on_the_right():
    batch = collate(dataset([1, 3]))
    assert batch["net_input"]["src_tokens"].tolist() == [[4, 1, 1], [4, 5, 6]]
    assert batch["net_input"]["columns"]["upos"].tolist() == [[4, 1, 1], [4, 5, 6]]
    assert batch["target"].tolist() == [[4, 5, 1, 1, 1, 1], [4, 5, 6, 7, 8, 9]]
    assert batch["ntokens"] == 8 and batch["net_input"]["target_lengths"].tolist() == [2, 6]
    batch = collate(dataset([1, 3], with_end=True))
    assert batch["target"].tolist()[0] == [4, 5, 2, 1, 1, 1, 1] and batch["ntokens"] == 10
    assert batch["net_input"]["prev_output_tokens"].tolist()[0] == [2, 4, 5, 1, 1, 1, 1]


def test_labels_of_a_data_worker_take_no_open_files():
    """A tensor that is sent to another process stays in shared memory, an open file, as long as the dataset lives."""
    data = dataset([2, 3])
    labels = collate(data)["gold"] + [Labels(torch.tensor([4, 5]), names=["x"])]
    sent = pickle.loads(ForkingPickler.dumps(labels))
    for one, other in zip(labels, sent, strict=True):
        assert type(other) is Labels and one.names == other.names
        for name in ("targets", "heads", "relations"):
            before, after = getattr(one, name), getattr(other, name)
            assert (before is None and after is None) or (before.equal(after) and not before.is_shared())


@pytest.mark.parametrize("with_end", [False, True])
def test_fixed_length_cuts_words_and_labels(with_end):
    data = dataset([1, 2, 3, 7], fixed_length=5, with_end=with_end)
    assert data.truncated == 2, "6 and 14 labels do not fit, 4 do"
    batch = collate(data)
    assert batch["net_input"]["src_lengths"].tolist() == [1, 2, 3, 5]
    assert batch["net_input"]["target_lengths"].tolist() == [2, 4, 5, 5]
    assert batch["net_input"]["src_tokens"].size(1) == 5 and batch["words"].tolist() == [1, 2, 3, 7]
    assert batch["ntokens"] == 16 + 4 * with_end == int(batch["target"].ne(1).sum())
    assert dataset([1, 2, 3, 7]).truncated == 0
    assert dataset([3, 6], fixed_length=5, labels_per_word=1).truncated == 1


def test_order_by_length():
    plain = dataset([3, 1, 3, 2, 3])
    assert plain.ordered_indices().tolist() == [1, 3, 0, 2, 4] and plain.can_reuse_epoch_itr_across_epochs
    mixed = dataset([3, 1, 3, 2, 3], shuffle=True)
    np.random.seed(0)
    orders = {tuple(mixed.ordered_indices().tolist()) for _ in range(50)}
    assert {order[:2] for order in orders} == {(1, 3)} and len(orders) == 6
    assert not mixed.can_reuse_epoch_itr_across_epochs


def test_sentences_without_their_end():
    column = [torch.tensor([5, 4, 2], dtype=torch.int32), torch.tensor([4, 2], dtype=torch.int32)]
    assert [found.tolist() for found in WithoutEnd(column)] == [[5, 4], [4]]
    moved = torch.tensor([0, 1, 2, 3, 8, 9])
    assert [found.tolist() for found in WithoutEnd(column, moved)] == [[9, 8], [8]]
    dictionary = Dictionary()
    end = dictionary.add_symbol(WORD_END)
    character = dictionary.add_symbol("a")
    words = Words([torch.tensor([character, character, end, character, end, dictionary.eos()])], dictionary)
    assert words[0].tolist() == [[character, character], [character, dictionary.pad()]] and len(words) == 1


def test_joining_dictionaries():
    relations, heads, both = Dictionary(), Dictionary(), LabelDictionary()
    for name in ("root", "obj"):
        relations.add_symbol(name, n=3)
    heads.add_symbol("0", n=7)
    one, two = join_dictionaries(relations, heads, both)
    assert both.symbols[4:] == ["root", "obj", "0"] and both.count[4:] == [3, 3, 7]
    assert one.tolist() == [0, 1, 2, 3, 4, 5] and two.tolist() == [0, 1, 2, 3, 6]
    heads.add_symbol("obj")
    with pytest.raises(ValueError, match="'obj' is a relation and the label of a head; rename the relation"):
        join_dictionaries(relations, heads, LabelDictionary())


def test_dictionaries_keep_their_scorer():
    held, other = LabelDictionary(), LabelDictionary()
    held.scorer = "mine"
    other.add_symbol("x")
    become(held, other)
    assert held.index("x") == 4 and held.scorer == "mine" and other.scorer is None


# ---- criterion -------------------------------------------------------------------------------------------------------


class Fixed(torch.nn.Module):
    """A model with given outputs."""

    def __init__(self, logits, branches):
        super().__init__()
        self.output = torch.nn.Parameter(logits), {"branches": branches}

    def forward(self, **_):
        return self.output

    def get_targets(self, sample, _):
        return sample["target"]


@pytest.mark.parametrize("average", [False, True])
def test_criterion(average):
    torch.manual_seed(0)
    target = torch.tensor([[4, 5, 6], [5, 1, 1]])
    outputs = [torch.randn(2, 3, 7) for _ in range(3)]
    sample = {"target": target, "ntokens": 4, "net_input": {}}

    def nll(logits):
        p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(-1, keepdims=True)
        return -sum(math.log(p[row, at, target[row, at]]) for row, at in ((0, 0), (0, 1), (0, 2), (1, 0)))

    criterion = LabelCrossEntropy(SimpleNamespace(target_dictionary=Dictionary()), average)
    model = Fixed(outputs[0], {"forward": outputs[1], "backward": outputs[2]})
    loss, size, log = criterion(model, sample)
    each = [nll(logits) for logits in outputs]
    assert float(loss) == pytest.approx(sum(each), rel=1e-5) and size == log["sample_size"] == (2 if average else 4)
    assert float(log["nll_loss"]) == pytest.approx(each[0], rel=1e-5)

    from fairseq.logging import metrics

    with metrics.aggregate() as found:
        LabelCrossEntropy.reduce_metrics([log, log])
    values = found.get_smoothed_values()
    bits = [one / 4 / math.log(2) for one in each]
    assert values["loss"] == pytest.approx(sum(bits), abs=1e-3) and values["nll_loss"] == pytest.approx(
        bits[0], abs=1e-3
    )
    assert values["loss_forward"] == pytest.approx(bits[1], abs=1e-3)
    assert values["loss_backward"] == pytest.approx(bits[2], abs=1e-3)
    assert float(values["ppl"]) == pytest.approx(2 ** bits[0], rel=1e-3), "of the prediction alone"

    shorter = {**sample, "target": torch.tensor([[4, 1, 1], [1, 1, 1]]), "ntokens": 1}
    less = criterion(model, shorter)[2]
    with metrics.aggregate() as found:
        LabelCrossEntropy.reduce_metrics([log, less])
    of_all = (each[0] + float(less["nll_loss"])) / 5 / math.log(2)
    assert found.get_smoothed_values()["nll_loss"] == pytest.approx(of_all, abs=1e-3), "of tokens, not of batches"


# ---- tasks -----------------------------------------------------------------------------------------------------------

SYMBOLS = {
    "lemma": ["a", "b"],
    "upos": ["NOUN", "VERB"],
    "deprel": ["root", "obj", "nmod", "nmod:poss"],
    "head_position": [str(number) for number in range(6)],
    "head_offset": ["0", "-1", "+1", "-2", "+2"],
    "head_upos": ["0", "+1@NOUN", "-1@NOUN", "+1@VERB", "-1@VERB"],
}


@pytest.fixture
def folder(tmp_path):
    for column, symbols in SYMBOLS.items():
        (tmp_path / column).mkdir()
        (tmp_path / column / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    return tmp_path


@pytest.fixture
def parsing(folder):
    def make(**settings):
        return ConlluParsingTask(ConlluParsingConfig(data=str(folder), dataset_impl=None, **settings))

    return make


def sample_of(task, words, upos=None, length=None):
    return {"words": torch.tensor([words]), "upos": [upos],
            "net_input": {"target_lengths": torch.tensor([2 * words if length is None else length])}}  # fmt: skip


def names(task, mask) -> list:
    return [task.target_dictionary[index] for index in mask.nonzero().squeeze(1).tolist()]


def test_allowed_labels(parsing):
    task = parsing()
    allowed = task.allowed_labels(sample_of(task, 3), 0)
    assert names(task, allowed.any_of[0]) == SYMBOLS["deprel"]
    assert [names(task, allowed.any_of[at]) for at in (1, 3, 5)] == [["0", "2", "3"], ["0", "1", "3"], ["0", "1", "2"]]
    task = parsing(head_encoding="upos")
    allowed = task.allowed_labels(sample_of(task, 2, ["NOUN", "VERB"]), 0)
    assert names(task, allowed.any_of[1]) == ["0", "+1@VERB"] and names(task, allowed.any_of[3]) == ["0", "-1@NOUN"]
    assert task.allowed_labels(sample_of(task, 2, ["NOUN", "VERB"], length=3), 0).any_of.shape[0] == 3


def predicted(task, found, words=None, scores=None):
    """What becomes of labels (names) of a sentence; by default the model is sure of them."""
    tokens = torch.tensor([task.target_dictionary.index(name) for name in found])
    if scores is None:
        scores = torch.full((len(tokens), len(task.target_dictionary)), -5.0)
        scores[range(len(tokens)), tokens] = -0.1
    words = len(found) // 2 if words is None else words
    sample = sample_of(task, words, length=len(found))
    return task.columns_of(sample, 0, tokens, scores, task.allowed_labels(sample, 0))


def test_trees_of_labels(parsing):
    task = parsing()
    kept = predicted(task, ["obj", "2", "root", "0", "nmod:poss", "2"])
    assert kept["columns"] == {"head": [2, 0, 2], "deprel": ["obj", "root", "nmod:poss"]} and not kept["repaired"]
    cycle = predicted(task, ["obj", "2", "obj", "1", "nmod", "2"])
    assert is_tree(cycle["heads"]) and cycle["repaired"] and cycle["heads"][2] == 2
    root = cycle["heads"].index(0)
    assert [name == "root" for name in cycle["relations"]] == [at == root for at in range(3)]
    two_roots = predicted(task, ["root", "0", "root", "0"])
    assert is_tree(two_roots["heads"]) and two_roots["repaired"] and two_roots["relations"].count("root") == 1
    wrong = predicted(task, ["2", "obj", "root", "0"])  # a head where a relation is due and the other way round
    assert wrong["heads"] == [2, 0] and wrong["repaired"] and wrong["relations"][1] == "root"


def test_root_goes_with_head_0_only(parsing):
    """A tree is kept; its relations are replaced where they cannot be, by the best that can."""
    task = parsing()
    found = ["root", "2", "obj", "0", "nmod", "2"]
    tokens = [task.target_dictionary.index(name) for name in found]
    scores = torch.full((6, len(task.target_dictionary)), -5.0)
    scores[range(6), tokens] = -0.1
    scores[0, task.target_dictionary.index("nmod:poss")] = -1.0
    result = predicted(task, found, scores=scores)
    assert result["heads"] == [2, 0, 2] and not result["repaired"]
    assert result["relations"] == ["nmod:poss", "root", "nmod"]


def relations_are(folder, *symbols):
    (folder / "deprel/dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))


def test_root_is_known_by_its_relation(parsing, folder):
    """Whatever its subtype, and in capitals too."""
    relations_are(folder, "ROOT:main", "rooted", "obj")
    result = predicted(parsing(), ["ROOT:main", "2", "rooted", "0"])
    assert result["heads"] == [2, 0] and result["relations"][1] == "ROOT:main" != result["relations"][0]


@pytest.mark.parametrize("symbols", [("root",), ("obj", "nmod")])
def test_with_and_without_root_alone_all_relations_fit(parsing, folder, symbols):
    relations_are(folder, *symbols)
    found = [symbols[-1], "2", symbols[0], "0"]
    assert predicted(parsing(), found)["relations"] == found[::2]


def test_relations_are_written_as_they_were_read(parsing, folder):
    relations_are(folder, "root", symbol("<pad>"), "obj")
    assert predicted(parsing(), [symbol("<pad>"), "2", "root", "0"])["columns"]["deprel"] == ["<pad>", "root"]


def test_data_without_heads_teaches_no_parser(parsing, folder):
    (folder / "deprel/dict.txt").unlink()
    with pytest.raises(ValueError, match=f"^{folder}: its training sentences have no heads"):
        parsing()


def test_sentences_longer_than_there_are_positions(parsing):
    longest = SimpleNamespace(words=np.array([2, 6, 3]), truncated=0)
    parsing(head_encoding="offset").check_lengths(longest, "valid")
    parsing(fixed_length=4).check_lengths(longest, "valid")  # they are cut off
    with pytest.raises(ValueError, match="^valid: sentence 2 has 6 words, .* positions 0 to 5: train with"):
        parsing().check_lengths(longest, "valid")
    parsing().check_lengths(SimpleNamespace(words=np.array([2, 5]), truncated=0), "valid")


def test_heads_by_tags_need_tags(parsing):
    def sentences(text):
        return parse_conllu(text, "x").sentences

    task = parsing(head_encoding="upos")
    some = sentences(block("a|a|X|_|_", "b|b|_|_|_"))
    assert task.tags_of(some) == [["X", "_"]] and parsing().tags_of(some) is None
    with pytest.raises(ValueError, match="^x:4: the model's heads are relative to UPOS, and this sentence has none"):
        task.tags_of(sentences(block("a|a|X|_|_", "b|b|_|_|_") + block("a|a|_|_|_", "b|b|_|_|_")))


def test_sentences_cut_off(parsing):
    """Words behind the labels hang on the word before them; an odd label at the end has no head."""
    task = parsing(fixed_length=4)
    result = predicted(task, ["obj", "2", "root", "0"], words=5)
    assert result["heads"] == [2, 0, 2, 3, 4] and result["relations"] == ["obj", "root", "dep", "dep", "dep"]
    result = predicted(parsing(fixed_length=3), ["obj", "2", "root"], words=3)
    assert is_tree(result["heads"]) and result["relations"][2] == "dep" and len(result["relations"]) == 3
    longer = predicted(parsing(fixed_length=2), ["root", "0"], words=9)  # more words than there are positions
    assert longer["heads"] == [0, *range(1, 9)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers(parsing, value):
    """A model that has diverged writes trees as well."""
    task = parsing()
    for found in (["obj", "2", "obj", "1", "nmod", "2"], ["0", "root"] * 3):
        scores = torch.full((6, len(task.target_dictionary)), value)
        result = predicted(task, found, scores=scores)
        assert is_tree(result["heads"]) and set(result["relations"]) <= set(SYMBOLS["deprel"])


def test_heads_without_a_label(parsing):
    """No head of a word is in the dictionary: whatever the model says, there is a tree."""
    task = parsing(head_encoding="upos")
    sample = sample_of(task, 2, ["INTJ", "X"])
    allowed = task.allowed_labels(sample, 0)
    assert allowed.arcs.tolist() == [[task.target_dictionary.index("0"), -1, -1]] * 2
    tokens = torch.tensor([task.target_dictionary.index(name) for name in ("obj", "0", "obj", "0")])
    scores = torch.zeros(4, len(task.target_dictionary))
    result = task.columns_of(sample, 0, tokens, scores, allowed)
    assert is_tree(result["heads"]) and result["repaired"]


def gold_of(task, relations, heads):
    index = task.target_dictionary.index
    relations, heads = torch.tensor([index(name) for name in relations]), torch.tensor(heads)
    labels = torch.stack([relations, torch.tensor([index(str(int(head))) for head in heads])], 1).view(-1)
    return Labels(labels, heads, relations)


def test_scores_of_parses(parsing):
    """LAS is blind to subtypes, an unknown relation is wrong, label accuracy counts labels as they are."""
    task = parsing()
    found = ["nmod", "2", "root", "0", "nmod:poss", "2", "obj", "3"]
    prediction = predicted(task, found)
    gold = gold_of(task, ["nmod:poss", "root", "obj", "never seen"], [2, 0, 2, 3])
    assert gold.relations[3] == task.target_dictionary.unk()
    tokens = torch.tensor([task.target_dictionary.index(name) for name in found])
    sample = {**sample_of(task, 4), "gold": [gold]}
    counts = task.count(sample, [[{"tokens": tokens}]], [prediction])
    assert {name: counts[name] for name in ("words", "right_heads", "right_arcs")} == {
        "words": 4, "right_heads": 4, "right_arcs": 2,
    }  # fmt: skip
    assert (counts["labels"], counts["right_labels"]) == (8, 5)
    unknown = tokens.clone()
    unknown[6] = task.target_dictionary.unk()
    assert task.count(sample, [[{"tokens": unknown}]], [prediction])["right_labels"] == 5, "<unk> is never right"
    assert task.count(sample, [[{"tokens": tokens[:3]}]], [prediction])["right_labels"] == 2, "too few labels"
    task.totals += counts
    assert task.summary() == (
        "label accuracy 62.50 %, UAS 100.00 %, LAS 50.00 % (4 words), repaired 0 of 1 sentences (0.00 %)"
    )
    assert parsing().summary() == "repaired 0 of 0 sentences (0.00 %)"
    named = replace(gold, names=["nmod:poss", "root", "obj", "obj:new"])  # unseen in training, but it is an obj
    assert task.count({**sample, "gold": [named]}, [[{"tokens": tokens}]], [prediction])["right_arcs"] == 3


def test_a_right_relation_to_another_head_is_no_right_arc(parsing):
    task = parsing()
    found = ["nmod", "3", "root", "0", "obj", "2"]
    gold = gold_of(task, ["nmod", "root", "nmod"], [2, 0, 2])
    tokens = torch.tensor([task.target_dictionary.index(name) for name in found])
    counts = task.count({**sample_of(task, 3), "gold": [gold]}, [[{"tokens": tokens}]], [predicted(task, found)])
    assert (counts["words"], counts["right_heads"], counts["right_arcs"]) == (3, 2, 1)


def test_all_workers_count_the_same(parsing):
    """fairseq adds up what workers log, so the names must not depend on what a batch gets right."""
    task = parsing()
    sample = {**sample_of(task, 2), "gold": [gold_of(task, ["root", "obj"], [0, 1])]}
    names = []
    for found in (["root", "0", "obj", "1"], ["nmod", "2", "root", "0"]):
        tokens = torch.tensor([task.target_dictionary.index(name) for name in found])
        names.append(set(task.count(sample, [[{"tokens": tokens}]], [predicted(task, found)])))
    assert names[0] == names[1] == set(task.COUNTS)


def test_words_cut_off_count(parsing):
    """UAS and LAS are of all words, label accuracy of the labels that are put out."""
    task = parsing(fixed_length=4)
    prediction = predicted(task, ["obj", "2", "root", "0"], words=3)
    gold = gold_of(task, ["obj", "root", "obj"], [2, 0, 2])
    tokens = torch.tensor([task.target_dictionary.index(name) for name in ("obj", "2", "root", "0")])
    counts = task.count({**sample_of(task, 3, length=4), "gold": [gold]}, [[{"tokens": tokens}]], [prediction])
    assert (counts["labels"], counts["right_labels"]) == (4, 4)
    assert (counts["words"], counts["right_heads"], counts["right_arcs"]) == (3, 3, 2)


def test_metrics_are_of_all_batches(parsing):
    from fairseq.logging import metrics

    task = parsing()

    class Criterion:
        reduce_metrics = staticmethod(lambda logs: None)

    logs = [
        {"words": 1, "right_heads": 1, "right_arcs": 1, "labels": 2, "right_labels": 2, "sentences": 1, "repaired": 0},
        {"words": 9, "right_heads": 3, "right_arcs": 1, "labels": 18, "right_labels": 3, "sentences": 1, "repaired": 1},
    ]
    for log in logs:
        log.update(ntokens=1, nsentences=1)
    with metrics.aggregate() as found:
        task.reduce_metrics(logs, Criterion())
    values = found.get_smoothed_values()
    assert {name: values[name] for name in ("label_accuracy", "uas", "las", "repaired")} == {
        "label_accuracy": 25, "uas": 40, "las": 20, "repaired": 50,
    }  # fmt: skip


def test_tags(folder):
    task = ConlluTaggingTask(ConlluTaggingConfig(data=str(folder), dataset_impl=None))
    sample = sample_of(task, 2, length=2)
    allowed = task.allowed_labels(sample, 0)
    assert isinstance(allowed, Allowed) and [names(task, row) for row in allowed.any_of] == [SYMBOLS["upos"]] * 2
    unk, noun, verb = (task.target_dictionary.index(name) for name in ("<unk>", "NOUN", "VERB"))
    scores = torch.full((2, len(task.target_dictionary)), -9.0)
    scores[0, verb] = -1.0
    for tokens in (torch.tensor([unk, noun]), torch.tensor([task.target_dictionary.eos(), noun])):
        assert task.columns_of(sample, 0, tokens, scores, allowed)["columns"] == {"upos": ["VERB", "NOUN"]}
    short = task.columns_of(sample, 0, torch.tensor([verb]), scores, allowed)
    assert short["columns"]["upos"][0] == "VERB" and short["columns"]["upos"][1] in SYMBOLS["upos"]
    worst = torch.full((2, len(task.target_dictionary)), -math.inf)  # of a model that has diverged
    assert task.columns_of(sample, 0, torch.tensor([unk, unk]), worst, allowed)["columns"] == {"upos": ["NOUN", "NOUN"]}
    cut = sample_of(task, 3, length=1)
    found = task.columns_of(cut, 0, torch.tensor([noun]), scores[:1], task.allowed_labels(cut, 0))
    assert found["columns"] == {"upos": ["NOUN", "_", "_"]}
    sample["gold"] = [Labels(torch.tensor([noun, unk]))]
    task.totals += task.count(sample, [[{"tokens": torch.tensor([noun, unk])}]], [{}])
    assert task.summary() == "UPOS accuracy 50.00 % (1 of 2)"


def test_settings_of_a_checkpoint(parsing):
    task = parsing()
    source, target = task.source_dictionary, task.target_dictionary
    assert "+1@NOUN" not in target.indices and task.state_dict()["head_encoding"] == "position"
    stored = {"input_columns": "upos", "fixed_length": 7, "label_layout": "parallel", "head_encoding": "upos"}
    task.load_state_dict(stored)
    assert task.state_dict() == stored and task.input_columns == ["upos"] and task.fixed_length == 7
    assert task.target_dictionary is target and task.source_dictionary is source, "fairseq holds these two already"
    assert "+1@NOUN" in target.indices and "NOUN" in source.indices
    assert task.label_kinds.shape == (2, len(target)) and target.scorer.task is task
    given = parsing(head_encoding="offset")
    message = "--head-encoding offset: the checkpoint was trained with --head-encoding upos"
    with pytest.raises(ValueError, match=message):
        given.load_state_dict(stored)


# ---- the file --------------------------------------------------------------------------------------------------------


def test_predicted_file(tmp_path):
    text = (
        "\ufeff" + block("a|a|X|0|root") + block("b|b|X|0|root").replace("\n", "\r\n") + block("c|c|X|0|root") + "# end"
    )
    (tmp_path / "in").write_bytes(text.encode())
    file = PredictedFile(str(tmp_path / "in"), str(tmp_path / "out"), 3)
    for index in (2, 0):
        file.put(index, {"upos": [f"T{index}"]})
        assert not (tmp_path / "out").exists()
    file.put(1, {"upos": ["T1"]})
    expected = text.replace("a\ta\tX", "a\ta\tT0").replace("b\tb\tX", "b\tb\tT1").replace("c\tc\tX", "c\tc\tT2")
    assert (tmp_path / "out").read_bytes() == expected.encode()


def test_shards_of_the_predicted_file(tmp_path):
    (tmp_path / "in").write_text("".join(block(f"{form}|x|X|0|root") for form in "abc"))
    for shard, wanted in (("1-of-2", {0, 2}), ("2-of-2", {1})):
        file = PredictedFile(str(tmp_path / "in"), str(tmp_path / "out"), 3)
        file.only(wanted, shard)
        for index in sorted(wanted, reverse=True):
            file.put(index, {"upos": [str(index)]})
    found = {path.name: read_conllu(path).sentences for path in tmp_path.glob("out*")}
    assert {name: [sentence.column("form") for sentence in part] for name, part in found.items()} == {
        "out.1-of-2": [["a"], ["c"]], "out.2-of-2": [["b"]],
    }  # fmt: skip
    assert found["out.1-of-2"][1].column("upos") == ["2"]


# ---- fairseq's other tasks -------------------------------------------------------------------------------------------


def test_other_tasks_are_scored_as_before(parsing):
    """Only a dictionary with a scorer of its own is scored by that, and only where nothing else was asked for."""
    from fairseq.scoring.bleu import Scorer

    words = Dictionary()
    words.add_symbol("x")
    bleu, chrf = OmegaConf.create({"_name": "bleu"}), OmegaConf.create({"_name": "chrf"})
    scorer = scoring.build_scorer(bleu, words)
    assert isinstance(scorer, Scorer)
    line = torch.tensor([4, 4, 4, 4, 4, words.eos()], dtype=torch.int32)
    scorer.add(line, line)
    assert scorer.score() == pytest.approx(100) and "BLEU4" in scorer.result_string()
    task = parsing()
    task.totals.update(sentences=3, repaired=1)
    for choice in (bleu, "bleu"):
        own = scoring.build_scorer(choice, task.target_dictionary)
        assert own.result_string() == "repaired 1 of 3 sentences (33.33 %)"
    assert type(scoring.build_scorer(chrf, task.target_dictionary)).__name__ == "ChrFScorer"


def test_every_column_is_named_once():
    assert len(set(COLUMNS)) == len(COLUMNS) == 9
