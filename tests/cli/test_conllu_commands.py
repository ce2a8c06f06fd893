"""Tagging and parsing of CoNLL-U with fairseq's commands; most of them run inside this process."""

import math
import re
import shutil
from functools import partial

import pytest
import torch
from commands import USER_DIR, fairseq, last_error, losses, two_workers, validation
from conllu_setup import (
    PARSING,
    SMALL,
    TAGGING,
    inside,
    once,
    prepare,
    scored,
    splits,
    treebank,
    unparsed,
)

from rntn_plugins.data.conllu import parse_conllu, read_conllu
from rntn_plugins.data.trees import is_tree

CHARACTERS = ("--char-embed-dim", 6, "--char-filters", 8)
#: task, options, measure of the best checkpoint, epochs
MODELS = {
    "parser": (
        PARSING, ("--arch", "brnn_gru", "--label-layout", "parallel", "--head-encoding", "upos", "--input-columns",
                  "form,char,upos", *CHARACTERS), "las", 4,
    ),
    "tagger": (TAGGING, ("--arch", "dbrnn_elstm1"), "label_accuracy", 5),
    "tagger2": (TAGGING, ("--arch", "dbrnn_elstm1", "--seed", 2), "label_accuracy", 2),
    "decoder": (PARSING, ("--arch", "seq2seq_attention_lstm"), "las", 10),
    "decoder2": (PARSING, ("--arch", "seq2seq_attention_lstm", "--seed", 2), "las", 3),
    "lemmas": (PARSING, ("--arch", "brnn_gru", "--stretch", "repeat"), "las", 6),
    "forms": (PARSING, ("--arch", "brnn_gru", "--input-columns", "form"), "las", 1),
}  # fmt: skip
SENTENCES = 23


def flags(metric: str) -> tuple:
    return ("--best-checkpoint-metric", metric, "--maximize-best-checkpoint-metric")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return once(tmp_path_factory, "conllu", prepare) / "bin"


@pytest.fixture(scope="session")
def model(data, tmp_path_factory):
    """A function from a name in ``MODELS`` to the folder of its checkpoints and ``train.log``; trained when needed."""

    def make(folder, name):
        task, options, metric, epochs = MODELS[name]
        options = (*options, *flags(metric), "--save-dir", folder, "--max-epoch", epochs)
        (folder / "train.log").write_text(inside("train", data, *task, *SMALL, *options))

    return lambda name: once(tmp_path_factory, f"conllu-{name}", lambda folder: make(folder, name))


@pytest.fixture
def generate(data, model, tmp_path):
    """Run ``fairseq-generate`` with a model: what it prints and the file it writes. No flag of training is given."""

    def run(name, *options, data=data, fails=False, checkpoint=None):
        output = tmp_path / "out.conllu"
        path = checkpoint or model(name) / "checkpoint_best.pt"
        printed = inside("generate", data, *MODELS[name][0], "--path", path, "--conllu-output", output,
                         "--num-workers", 0, *options, fails=fails)  # fmt: skip
        return printed, output.read_bytes() if output.exists() else b""

    return run


def lines(output: str, kind: str) -> dict:
    """Sentence number -> the fields behind it, of lines like ``T-3``; of H, D and P the first hypothesis."""
    found = {}
    for number, rest in re.findall(rf"^{kind}-(\d+)\t(.*)$", output, re.M):
        found.setdefault(int(number), rest.split("\t"))
    return found


def labels(output: str) -> dict:
    return {number: fields[1].split() for number, fields in lines(output, "H").items()}


def scores(output: str) -> dict:
    return {number: [float(score) for score in fields[0].split()] for number, fields in lines(output, "P").items()}


def printed_scores(output: str) -> dict:
    """The measures in the last line."""
    (line,) = re.findall(r"^Generate test with beam=\d+: (.*)$", output, re.M)
    assert "BLEU" not in line
    found = re.findall(r"(label accuracy|UAS|LAS|UPOS accuracy) ([\d.]+) %", line)
    return {name: float(value) for name, value in found}


def accuracy(output: str) -> float:
    """Equal labels of H and T, by hand."""
    pairs = [
        (guess, true)
        for number, fields in lines(output, "T").items()
        for guess, true in zip(labels(output)[number], fields[0].split(), strict=True)
    ]
    return 100 * sum(guess == true for guess, true in pairs) / len(pairs)


def changed_columns(before: bytes, after: bytes) -> set:
    """The columns of words in which two files differ; nothing else may."""
    found = set()
    for one, other in zip(before.split(b"\n"), after.split(b"\n"), strict=True):
        old, new = one.split(b"\t"), other.split(b"\t")
        if len(old) == 10 and old[0].isdigit():
            assert len(new) == 10
            found |= {column for column in range(10) if old[column] != new[column]}
        else:
            assert one == other
    return found


HEAD_DEPREL_DEPS, UPOS = {6, 7, 8}, {3}


def parsed(text) -> list:
    return parse_conllu(text.decode() if isinstance(text, bytes) else text).sentences


# ---- train, validate, generate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parser", "tagger", "decoder"])
def test_best_checkpoint_and_validate(name, model, data):
    """The best checkpoint is that of the best validation, and a new validation of it gives the same scores."""
    task, _, metric, epochs = MODELS[name]
    log = validation((model(name) / "train.log").read_text())
    values = [float(entry[f"valid_{metric}"]) for entry in log]
    assert len(values) == epochs and max(values) > values[0] + 20
    assert all("valid_label_accuracy" in entry for entry in log)
    assert all(("valid_uas" in entry) == (metric == "las") for entry in log)
    state = torch.load(model(name) / "checkpoint_best.pt", weights_only=True)
    assert state["extra_state"]["val_loss"] == max(values)

    output = inside("validate", data, *task, "--path", model(name) / "checkpoint_best.pt", "--batch-size", 3,
                    "--log-format", "json")  # fmt: skip
    (fresh,) = validation(output)
    best = log[values.index(max(values))]
    for measure in ("loss", "nll_loss", "label_accuracy", "uas", "las", "repaired"):
        assert fresh.get(f"valid_{measure}") == best.get(f"valid_{measure}"), measure


@pytest.mark.parametrize("name", ["parser", "tagger", "decoder"])
def test_generate(name, data, generate, tmp_path):
    tagging = name == "tagger"
    output, file = generate(name, "--batch-size", 5)
    everything = list(range(SENTENCES))
    assert all(sorted(lines(output, kind)) == everything for kind in "STHDP")
    assert not re.search(r"^H-.*(<unk>|<pad>|</?s>)", output, re.M)

    original = (data / "test.conllu").read_bytes()
    assert changed_columns(original, file) == (UPOS if tagging else HEAD_DEPREL_DEPS)
    gold, found = parsed(original), parsed(file)  # which refuses what is no tree
    assert len(found) == SENTENCES

    known = set(read_conllu(data / "train.conllu").sentences[0].column("upos")) | {"ADJ", "ADP"}
    for number in everything:
        truth, guess = lines(output, "T")[number][0].split(), labels(output)[number]
        if tagging:
            assert truth == [tag if tag in known else "<<unk>>" for tag in gold[number].column("upos")]
            assert guess == found[number].column("upos")
        if name == "decoder":
            heads = [int(head) for head in guess[1::2]]
            assert [head for head in truth[1::2]] == gold[number].column("head")
            if is_tree(heads):
                assert guess[1::2] == found[number].column("head")
                for head, relation, written in zip(heads, guess[::2], found[number].column("deprel")):
                    assert relation == written or (relation == "root") == (head != 0)

    own = printed_scores(output)
    assert output.splitlines()[-1].startswith("Generate test with beam=5: ")
    if not tagging:
        assert "_" not in {deprel for sentence in found for deprel in sentence.column("deprel")}
        assert all(is_tree([word.head for word in sentence.words]) for sentence in found)
        assert own["label accuracy"] == round(accuracy(output), 2)
    (tmp_path / "system.conllu").write_bytes(file)
    official = scored(data / "test.conllu", tmp_path / "system.conllu", tmp_path)
    for measure in ("UPOS",) if tagging else ("UAS", "LAS"):
        assert official[measure] == own.get(measure, own.get("UPOS accuracy")), measure
    assert 20 < official["UPOS" if tagging else "LAS"] < 99, "a model that has learnt, and not everything"

    for size in (1, 64):
        again, same = generate(name, "--batch-size", size)
        assert same == file and labels(again) == labels(output)
        for number in everything:
            assert scores(again)[number] == pytest.approx(scores(output)[number], abs=2e-3)


def test_the_commands_themselves(data, tmp_path):
    """As a user types them, each in a process of its own: the same numbers as inside this one."""
    options = (*PARSING, *SMALL, "--arch", "brnn_gru", "--head-encoding", "offset", "--max-epoch", 2, *flags("las"))
    ours = inside("train", data, *options, "--save-dir", tmp_path / "inside")
    alone = partial(fairseq, alone=True)
    theirs = alone("train", data, *options, "--save-dir", tmp_path / "own")
    assert losses(ours) == losses(theirs) and len(losses(ours)) == 18
    assert [entry["valid_las"] for entry in validation(ours)] == [entry["valid_las"] for entry in validation(theirs)]
    generated = []
    for run, folder in ((inside, "inside"), (alone, "own")):
        output = run("generate", data, *PARSING, "--path", tmp_path / folder / "checkpoint_best.pt", "--conllu-output",
                     tmp_path / f"{folder}.conllu", "--num-workers", 0)  # fmt: skip
        generated.append((labels(output), printed_scores(output), (tmp_path / f"{folder}.conllu").read_bytes()))
    assert generated[0] == generated[1]


@pytest.mark.parametrize(
    "name, options",
    [
        ("parser", ("--label-layout", "interleaved")),
        ("parser", ("--head-encoding", "position")),
        ("parser", ("--input-columns", "form")),
        ("tagger", ("--tag-column", "xpos")),
        ("decoder", ("--fixed-length", "40")),
    ],
)
def test_contradicting_the_checkpoint(name, options, generate):
    output, file = generate(name, *options, fails=True)
    flag, value = options
    assert re.match(rf"ValueError: {flag} {value}: the checkpoint was trained with(out)? {flag}", last_error(output))
    assert file == b""


def test_repeating_what_the_checkpoint_says(generate):
    same = ("--label-layout", "parallel", "--head-encoding", "upos", "--input-columns", "form,char,upos")
    assert generate("parser", *same)[1] == generate("parser")[1]


# ---- generate --------------------------------------------------------------------------------------------------------


def test_branches_are_those_of_the_model(data, model, generate):
    """``--dbrnn-output``, against the model that ``from_pretrained`` gives in Python."""
    from fairseq.models import MODEL_REGISTRY

    hub = MODEL_REGISTRY["dbrnn_elstm1"].from_pretrained(
        str(model("tagger")), "checkpoint_best.pt", data_name_or_path=str(data)
    )
    network, task = hub.models[0], hub.task
    task.load_dataset("test")
    dataset = task.dataset("test")
    batch = dataset.collater([dataset[index] for index in range(SENTENCES)])
    with torch.no_grad():
        combined, extra = network(**batch["net_input"])
    assert set(extra["branches"]) == {"forward", "backward"}
    seen = []
    for branch, logits in {"combined": combined, **extra["branches"]}.items():
        output, file = generate("tagger", "--dbrnn-output", branch, "--free-decoding")
        for number, length in enumerate(batch["net_input"]["target_lengths"].tolist()):
            best = [task.target_dictionary[index] for index in logits[number, :length].argmax(-1).tolist()]
            assert [label.replace("<unk>", "?") for label in labels(output)[number]] == [
                label.replace("<unk>", "?") for label in best
            ]
        assert printed_scores(output)["UPOS accuracy"] == round(accuracy(output), 2)
        seen.append(scores(output)[0])
        assert changed_columns((data / "test.conllu").read_bytes(), file) == UPOS
    assert len({tuple(one) for one in seen}) == 3
    assert scores(generate("tagger")[0])[0] == seen[0], "combined is the default"


def well_formed(found: list, heads: set) -> bool:
    """Relations and heads in turn, no head outside the sentence, no word its own head."""
    words = len(found) // 2
    return len(found) % 2 == 0 and all(
        relation not in heads and head in heads and int(head) <= words and int(head) != word
        for word, (relation, head) in enumerate(zip(found[::2], found[1::2]), 1)
    )


@pytest.mark.parametrize("name", ["lemmas", "decoder2"])
def test_free_decoding(name, data, generate):
    heads = {line.split()[0] for line in (data / "head_position" / "dict.txt").read_text().splitlines()}
    lengths = [2 * len(sentence.words) for sentence in read_conllu(data / "test.conllu").sentences]
    held, _ = generate(name)
    assert all(well_formed(found, heads) for found in labels(held).values())
    assert [len(found) for _, found in sorted(labels(held).items())] == lengths
    free, file = generate(name, "--free-decoding")
    assert not all(well_formed(found, heads) for found in labels(free).values()), "else this test says nothing"
    assert changed_columns((data / "test.conllu").read_bytes(), file) == HEAD_DEPREL_DEPS
    assert len(parsed(file)) == SENTENCES
    if name == "lemmas":
        assert printed_scores(free)["label accuracy"] == round(accuracy(free), 2)


def test_beams(generate):
    narrow, _ = generate("decoder2", "--beam", 1)
    wide, file = generate("decoder2", "--beam", 4, "--nbest", 4)
    printed_scores(wide)
    total = 0
    for number in range(SENTENCES):
        found = [float(score) for score in re.findall(rf"^H-{number}\t(\S+)", wide, re.M)]
        texts = re.findall(rf"^H-{number}\t\S+\t(.*)$", wide, re.M)
        assert len(found) == len(set(texts)) == 4 and found == sorted(found, reverse=True)
        total += found[0] - float(lines(narrow, "H")[number][0])
    assert total > 0, "a wide beam finds better hypotheses on the whole"
    assert len(parsed(file)) == SENTENCES


@pytest.mark.parametrize("names, first", [(("tagger", "tagger2"), None), (("decoder", "decoder2"), 1)])
def test_ensembles(names, first, model, generate):
    """The mean of probabilities: where the models agree on a label (all of them or the first), its score shows it."""
    paths = [model(name) / "checkpoint_best.pt" for name in names]
    outputs = [generate(names[0], "--beam", 1, checkpoint=path)[0] for path in paths]
    both, file = generate(names[0], "--beam", 1, checkpoint=":".join(map(str, paths)))
    assert len(parsed(file)) == SENTENCES
    compared = 0
    for number in range(SENTENCES):
        chosen = [labels(output)[number][:first] for output in (*outputs, both)]
        values = [scores(output)[number] for output in (*outputs, both)]
        for at, triple in enumerate(zip(*chosen)):
            if len(set(triple)) == 1:
                one, two, mean = (value[at] for value in values)
                assert mean == pytest.approx(math.log2((2**one + 2**two) / 2), abs=2e-3)
                compared += abs(one - two) > 0.1
    assert compared > 5


def test_default_file(data, generate, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside("generate", data, *PARSING, "--path", model("lemmas") / "checkpoint_best.pt", "--quiet")
    (found,) = tmp_path.iterdir()
    assert found.name == "test.predicted.conllu" and found.read_bytes() == generate("lemmas")[1]


@pytest.mark.parametrize("name", ["parser", "decoder"])
def test_unparsed_test_split(name, generate, tmp_path_factory):
    """The same sentences without heads get the same trees."""
    bare = once(tmp_path_factory, "unparsed", lambda folder: prepare(folder, test=unparsed(splits()["test"]))) / "bin"
    output, file = generate(name, data=bare)
    assert not lines(output, "T") and "Generate test" not in output and "BLEU" not in output
    assert sorted(lines(output, "H")) == list(range(SENTENCES))
    assert file == generate(name)[1]


def test_shards(generate, data, tmp_path):
    """Two processes write the sentences of the whole file into two files."""
    whole = [sentence.text for sentence in parsed(generate("lemmas")[1])]
    found = []
    for rank in (0, 1):
        output, _ = generate("lemmas", "--distributed-world-size", 2, "--distributed-rank", rank, "--batch-size", 4)
        part = parsed((tmp_path / f"out.conllu.{rank + 1}-of-2").read_bytes())
        assert 0 < len(part) == len(lines(output, "H"))
        found += [sentence.text for sentence in part]
    assert sorted(found) == sorted(whole)


# ---- interactive -----------------------------------------------------------------------------------------------------

BLOCK = "# one\n1\tdogs\tdog\tNOUN\tNNS\t_\t_\t_\t_\tx=1\n2\tknow\tknow\tVERB\tVBZ\t_\t_\t_\t_\t_\n"
LAST = (
    "1-2\tal\t_\t_\t_\t_\t_\t_\t_\t_\n1\ta\t_\tADP\t_\t_\t2\tcase\t2:case\t_\n2\tmar\tsea\tNOUN\t_\t_\t0\troot\t_\tlast"
)
MIXED = f"{BLOCK}\nthe dog sees the cat .\n\n\nhush\n{LAST}"


def interactive(model, data, name, text, *options, fails=False, run=inside):
    path = model(name) / "checkpoint_best.pt"
    output = run("interactive", data, *MODELS[name][0], "--path", path, *options, stdin=text, fails=fails)
    return output.split("press return:\n", 1)[1] if run is inside and not fails else output  # else it has two parts


def conllu_of(output: str) -> str:
    return "".join(
        f"{line}\n"
        for line in output.split("\n")[:-1]
        if not re.match(r"[SWHDP]-\d+\t|\d{4}-.*\| (INFO|WARNING) \|", line)
    )


def test_interactive_reads_blocks_and_plain_lines(model, data):
    output = interactive(model, data, "lemmas", MIXED)
    text = conllu_of(output)
    block, plain, hush, last = parsed(text)
    assert changed_columns(BLOCK.encode(), block.text[:-1].encode()) == {6, 7}
    assert plain.column("form") == "the dog sees the cat .".split() and hush.column("form") == ["hush"]
    assert changed_columns(LAST.encode(), last.text[:-2].encode()) <= HEAD_DEPREL_DEPS and "2:case" not in last.text
    sources = [fields[0] for _, fields in sorted(lines(output, "S").items())]
    assert sources == ["dog know", "the dog <unk> the cat .", "<unk>", "<unk> <unk>"], "the form where no lemma is"
    assert len(lines(output, "H")) == len(lines(output, "P")) == 4
    assert len(labels(output)[min(labels(output))]) == 4


def test_interactive_as_a_command(model, data):
    """In a process of its own the end of the input ends a block, too."""
    output = interactive(model, data, "lemmas", MIXED, run=partial(fairseq, alone=True))
    inside_this = interactive(model, data, "lemmas", MIXED)
    assert labels(output) == labels(inside_this) and len(labels(output)) == 4
    text = conllu_of(inside_this)
    assert output.startswith(BLOCK[:6]) and conllu_of(output)[: len(text)] == text


@pytest.mark.parametrize("name", ["parser", "decoder"])
def test_interactive_predicts_what_generate_predicts(name, model, data, generate):
    text = (data / "test.conllu").read_bytes().decode().replace("\r\n", "\n")
    found = parsed(conllu_of(interactive(model, data, name, unparsed(text), "--beam", 5)))
    expected = parsed(generate(name, "--beam", 5, "--batch-size", 1)[1])
    assert len(found) == SENTENCES
    for one, other in zip(found, expected):
        assert one.column("head") == other.column("head") and one.column("deprel") == other.column("deprel")


@pytest.mark.parametrize("to_file", [False, True])
def test_interactive_keeps_the_order_of_the_input(to_file, model, data, tmp_path):
    text = "a b c d e\na b c\na\na b\nx y z\nx\n"
    options = ("--buffer-size", 4, "--batch-size", 2, *(("--conllu-output", tmp_path / "o") if to_file else ()))
    output = interactive(model, data, "lemmas", text, *options)
    found = parsed((tmp_path / "o").read_bytes() if to_file else conllu_of(output))
    assert len(lines(output, "H")) == 6
    assert [" ".join(sentence.column("form")) for sentence in found] == text.splitlines()


def test_interactive_writes_a_file(model, data, tmp_path):
    output = interactive(model, data, "lemmas", MIXED, "--conllu-output", tmp_path / "o.conllu")
    assert not conllu_of(output).strip() and len(lines(output, "H")) == 4
    assert len(read_conllu(tmp_path / "o.conllu").sentences) == 4


def test_interactive_takes_a_byte_order_mark_for_none(model, data):
    found = parsed(conllu_of(interactive(model, data, "lemmas", f"\ufeff{BLOCK}\n")))
    assert [sentence.column("form") for sentence in found] == [["dogs", "know"]] and "# one" in found[0].text


def test_interactive_keeps_what_stands_at_the_end_of_a_line(model, data):
    text = BLOCK.replace("x=1", "x\u00a0")
    assert "\tx\u00a0\n" in conllu_of(interactive(model, data, "lemmas", f"{text}\n"))
    error = last_error(interactive(model, data, "lemmas", BLOCK.replace("x=1", "x=1\t"), fails=True))
    assert "input:2: number of columns: 11" in error


def test_interactive_does_not_read_what_it_writes(model, data, tmp_path):
    file = tmp_path / "both.conllu"
    file.write_text(f"{BLOCK}\n")
    options = ("--input", file, "--conllu-output", file)
    assert "is the file that is read" in last_error(interactive(model, data, "lemmas", "", *options, fails=True))
    assert file.read_text() == f"{BLOCK}\n"


def test_interactive_blocks_end_with_an_empty_line(model, data):
    error = last_error(interactive(model, data, "lemmas", f"{BLOCK}the dog\nthe cat\n", fails=True))
    assert re.search(r"ConlluError: input:\d+: number of columns: 1", error), error


LONG = (
    r"ValueError: input: sentence 1 has 40 words, and the model's labels are the positions 0 to \d+: train with "
    "--head-encoding offset, or with --fixed-length to cut sentences off$"
)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("lemmas", "hello\n\n1\ta\tb\n\nmore\n", r"ConlluError: input:3: number of columns: 3; a line has 10"),
        (
            "lemmas",
            f"{BLOCK}\n# c\n{BLOCK}".replace("# c\n# one\n1", "# c\n2"),
            "ConlluError: input:6: id 2 where 1 ",
        ),
        ("parser", "the dog\n", r"ValueError: .*the model's heads are relative to UPOS, and this sentence has none"),
        ("lemmas", "w " * 40 + "\n", LONG),
    ],
    ids=["columns", "ids", "no UPOS", "too long"],
)
def test_interactive_errors(name, text, message, model, data):
    error = last_error(interactive(model, data, name, text, fails=True))
    assert re.match(message, error), error


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, options",
    [
        (PARSING, ("--arch", "seq2seq_attention_lstm")),
        (TAGGING, ("--arch", "dbrnn_elstm1", "--sentence-avg", "--word-dropout", 0.25)),
    ],
)
def test_resuming_in_mid_epoch(task, options, data, tmp_path):
    """Epochs have 9 updates; the run of 12 stops in the second, its checkpoint is of update 10."""

    def run(folder, updates, *more):
        return losses(inside("train", data, *task, *SMALL, *options, "--dropout", 0.3, "--disable-validation",
                             "--save-dir", tmp_path / folder, "--max-update", updates, *more))  # fmt: skip

    whole = run("whole", 20)
    run("cut", 12, "--save-interval-updates", 5)
    shutil.copy(tmp_path / "cut" / "checkpoint_2_10.pt", tmp_path / "cut" / "checkpoint_last.pt")
    resumed = run("cut", 20)
    assert sorted(resumed) == list(range(11, 21))
    assert resumed == {update: whole[update] for update in resumed}


def test_batches_are_new_in_every_epoch(data, tmp_path):
    output = inside("train", data, *TAGGING, *SMALL, "--arch", "brnn_gru", "--lr", 0, "--max-epoch", 3, "--save-dir",
                    tmp_path, "--disable-validation", "--no-save")  # fmt: skip
    found = list(losses(output).values())
    epochs = [sorted(found[start : start + 9]) for start in (0, 9, 18)]
    assert epochs[0] != epochs[1] != epochs[2], "sentences of one length are put together anew"


def test_two_workers(data, tmp_path):
    """As one worker that takes two batches an update: the same losses, and the same scores of the validation."""
    options = (*PARSING, *SMALL, "--arch", "brnn_gru", "--batch-size", 4, "--max-epoch", 1, *flags("las"))
    one = inside("train", data, *options, "--update-freq", 2, "--save-dir", tmp_path / "one")
    two = two_workers(data, *options, "--save-dir", tmp_path / "two")
    assert losses(two) == pytest.approx(losses(one), abs=2e-3) and len(losses(one)) == 9
    (ours,), (theirs,) = validation(one), validation(two)
    for measure in ("label_accuracy", "uas", "las", "repaired"):
        assert ours[f"valid_{measure}"] == theirs[f"valid_{measure}"], measure


def test_hydra(data, generate, tmp_path):
    settings = [
        f"common.user_dir={USER_DIR[1]}", "common.cpu=true", "common.log_format=json", f"+task.data={data}",
        "+task._name=conllu_tagging", "+task.tag_column=upos", "+task.input_columns='form,xpos'",
        "+model._name=brnn_gru", "+model.embed_dim=6", "+model.tag_embed_dim=4", "+model.hidden_size=8",
        "criterion._name=label_cross_entropy", "+optimizer._name=adam",
        "optimization.lr=[0.05]", "optimization.max_epoch=3", "dataset.batch_size=8", "dataset.num_workers=0",
        "checkpoint.best_checkpoint_metric=label_accuracy", "checkpoint.maximize_best_checkpoint_metric=true",
        f"checkpoint.save_dir={tmp_path / 'save'}", f"hydra.run.dir={tmp_path}",
    ]  # fmt: skip
    output = fairseq("hydra-train", *settings, cwd=tmp_path, alone=True)
    values = [float(value) for value in re.findall(r'"valid_label_accuracy": "([\d.]+)"', output)]
    assert len(values) == 3 and max(values) > 60
    best = tmp_path / "save" / "checkpoint_best.pt"
    assert torch.load(best, weights_only=True)["extra_state"]["val_loss"] == max(values)
    output, _ = generate("tagger", checkpoint=best)
    assert printed_scores(output)["UPOS accuracy"] > 60


def test_averages_of_weights(data, tmp_path):
    inside("train", data, *PARSING, *SMALL, "--arch", "seq2seq_lstm", "--store-ema", "--max-update", 2, "--save-dir",
           tmp_path)  # fmt: skip


def test_fixed_length_is_said_and_kept(data, tmp_path, generate):
    """Six labels a sentence: three words are parsed, the others hang on the word before them."""
    output = inside("train", data, *PARSING, *SMALL, "--arch", "brnn_gru", "--fixed-length", 6, "--max-update", 9,
                    "--save-dir", tmp_path)  # fmt: skip
    longer = sum(len(sentence.words) > 3 for sentence in read_conllu(data / "train.conllu").sentences)
    assert f"train: {longer} of 72 sentences are longer than --fixed-length 6 allows and are cut off" in output
    output, file = generate("lemmas", checkpoint=tmp_path / "checkpoint_last.pt")
    assert max(len(found) for found in labels(output).values()) == 6
    for sentence in parsed(file):
        relations = sentence.column("deprel")[3:]
        assert relations == ["dep"] * len(relations)
    assert changed_columns((data / "test.conllu").read_bytes(), file) == HEAD_DEPREL_DEPS


# ---- what a user gets wrong ------------------------------------------------------------------------------------------

BRNN, SEQ2SEQ = ("--arch", "brnn_gru"), ("--arch", "seq2seq_gru")


@pytest.mark.parametrize(
    "task, options, message",
    [
        (
            TAGGING,
            (*BRNN, "--input-columns", "feats"),
            "--input-columns feats: give each of lemma, form, upos, x",
        ),
        (PARSING, (*BRNN, "--input-columns", "form,form"), "--input-columns form,form: give each of .* at most once$"),
        (
            TAGGING,
            (*BRNN, "--input-columns", "form,upos"),
            "--input-columns: the model would read upos, which",
        ),
        (
            TAGGING,
            (*BRNN, "--tag-column", "xpos", "--input-columns", "xpos"),
            "--input-columns: the model would read x",
        ),
        (PARSING, (*BRNN, "--fixed-length", 1), "--fixed-length 1 must be at least 2$"),
        (TAGGING, (*BRNN, "--fixed-length", 0), "--fixed-length 0 must be at least 1$"),
        (PARSING, (*SEQ2SEQ, "--label-layout", "parallel"), "--label-layout parallel is for labellers: a decoder"),
        (PARSING, (*SEQ2SEQ, "--dbrnn-output", "forward"), "--dbrnn-output forward: only the DBRNN has that output$"),
        (PARSING, (*BRNN, "--dbrnn-output", "backward"), "--dbrnn-output backward: only the DBRNN has that output$"),
        (PARSING, (*BRNN, "--hidden-size", 0), "--hidden-size 0 must be at least 1$"),
        (PARSING, ("--arch", "lstm"), "--task conllu_parsing needs one of this package's macro models"),
        (
            TAGGING,
            (*BRNN, "--best-checkpoint-metric", "las", "--maximize-best-checkpoint-metric"),
            "--best-checkpoint-metric las: validation logs loss, nll_loss, ppl, label_accuracy$",
        ),
        (
            PARSING,
            (*BRNN, "--best-checkpoint-metric", "las"),
            "--best-checkpoint-metric las is better when higher: add --maximize-best-checkpoint-metric$",
        ),
        (
            PARSING,
            ("--arch", "dbrnn_gru", "--best-checkpoint-metric", "loss_forward", "--maximize-best-checkpoint-metric"),
            "--best-checkpoint-metric loss_forward is better when lower: leave out --maximize-best-checkpoint-metric$",
        ),
        (TAGGING, ("--arch", "gru_lm"), "--task conllu_tagging needs one of this package's macro models"),
    ],
)
def test_wrong_flags(task, options, message, data, tmp_path):
    small = list(map(str, SMALL))
    if options[1] in ("lstm", "gru_lm"):  # which lack some flags of ours
        for flag in ("--tag-embed-dim", "--embed-dim", "--hidden-size"):
            del small[small.index(flag) : small.index(flag) + 2]
    output = inside("train", data, *task, *small, *options, "--max-update", 1, "--save-dir", tmp_path, fails=True)
    assert re.match("ValueError: " + message, last_error(output)), last_error(output)


@pytest.mark.parametrize("criterion", ["label_smoothed_cross_entropy", "rntn_adaptive_loss"])
def test_other_criteria_are_refused(criterion, data, tmp_path):
    output = inside("train", data, *PARSING, *SMALL, *BRNN, "--label-layout", "parallel", "--criterion", criterion,
                    "--max-update", 1, "--save-dir", tmp_path, fails=True)  # fmt: skip
    assert re.match(f"ValueError: --criterion {criterion}", last_error(output))


@pytest.mark.parametrize("kind", ["empty", "language model"])
def test_another_folder_than_ours(kind, tmp_path):
    if kind == "language model":
        (tmp_path / "dict.txt").write_text("a 1\n")
    for task in (TAGGING, PARSING):
        output = inside("train", tmp_path, *task, *SMALL, *BRNN, "--save-dir", tmp_path / "save", fails=True)
        assert re.match(
            f"ValueError: {tmp_path}/lemma: no dict.txt here; is it a folder written by scripts", last_error(output)
        )


def test_a_split_that_is_not_there(generate, data):
    output, _ = generate("lemmas", "--gen-subset", "nothing", fails=True)
    assert last_error(output) == f"FileNotFoundError: Dataset not found: nothing ({data})"


@pytest.mark.parametrize("column, old, new", [("lemma", "house", "horse"), ("labels", "amod", "adjm")])
def test_another_dictionary(column, old, new, generate, tmp_path):
    other = prepare(tmp_path / "other", train=splits()["train"].replace(old, new), test="".join(treebank(2, 9)))
    output, _ = generate("decoder", data=other, fails=True)
    message = f"ValueError: the checkpoint was trained with another dictionary of '{column}' than the data folder's"
    assert last_error(output) == message


@pytest.mark.parametrize(
    "name, options",
    [
        ("lemmas", ("--prefix-size", 1)),
        ("lemmas", ("--dbrnn-output", "forward")),
        ("decoder", ("--dbrnn-output", "forward")),
    ],
)
def test_options_that_a_model_has_not(name, options, generate):
    output, _ = generate(name, *options, fails=True)
    assert re.match(rf"ValueError: {options[0]} .*", last_error(output))


@pytest.mark.parametrize("names", [("forms", "lemmas"), ("lemmas", "forms"), ("lemmas", "decoder")])
def test_ensembles_that_do_not_fit_are_refused(names, model, generate):
    """Other input columns, or a labeller together with an encoder-decoder."""
    paths = ":".join(str(model(name) / "checkpoint_best.pt") for name in names)
    output, file = generate("lemmas", checkpoint=paths, fails=True)
    assert last_error(output).startswith("ValueError: ") and file == b""


@pytest.mark.parametrize("command", ["train", "validate"])
def test_validation_needs_heads(command, model, tmp_path_factory, tmp_path):
    changed = {"valid": unparsed(splits()["valid"])}
    bare = once(tmp_path_factory, "unparsed-valid", lambda folder: prepare(folder, **changed)) / "bin"
    options = (*SMALL, *BRNN, "--save-dir", tmp_path, "--max-update", 1)
    if command == "validate":
        options = ("--path", model("lemmas") / "checkpoint_best.pt", "--batch-size", 4)
    error = last_error(inside(command, bare, *PARSING, *options, fails=True))
    assert re.match(r"ValueError: .*valid.conllu: .*no heads", error), error


@pytest.mark.parametrize("flags", [("--score-reference",), ("--no-repeat-ngram-size", 1), ("--print-alignment",)],
                         ids=lambda flags: flags[0])  # fmt: skip
def test_what_has_no_meaning_for_labels(flags, generate):
    output, _ = generate("decoder", *flags, fails=True)
    assert f"{flags[0]} has no meaning for labels" in last_error(output)


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_of_no_sentences(size, generate):
    output, _ = generate("lemmas", "--batch-size", size, fails=True)
    assert f"ValueError: --batch-size {size} must be at least 1" in last_error(output)


def test_the_data_are_not_overwritten(model, data, tmp_path):
    gold = (data / "test.conllu").read_bytes()
    for name in ("train", "test"):
        output = inside("generate", data, *PARSING, "--path", model("lemmas") / "checkpoint_best.pt", "--conllu-output",
                        data / f"{name}.conllu", fails=True)  # fmt: skip
        assert "is a file of the data folder" in last_error(output)
    assert (data / "test.conllu").read_bytes() == gold


def test_a_file_that_cannot_be_written(model, data, tmp_path):
    output = inside("generate", data, *PARSING, "--path", model("lemmas") / "checkpoint_best.pt", "--conllu-output",
                    tmp_path / "none" / "x", fails=True)  # fmt: skip
    assert "--conllu-output" in last_error(output) and not lines(output, "H")
    output = inside("generate", data, *PARSING, "--path", model("lemmas") / "checkpoint_best.pt", "--conllu-output",
                    tmp_path, fails=True)  # fmt: skip
    assert last_error(output) == f"ValueError: --conllu-output {tmp_path} is a folder" and not lines(output, "H")


def test_labels_are_not_scored_as_text(model, data):
    output = inside("eval-lm", data, *PARSING, "--path", model("lemmas") / "checkpoint_best.pt", fails=True)
    assert re.match("ValueError: fairseq-eval-lm is for language models: .* fairseq-generate", last_error(output))
