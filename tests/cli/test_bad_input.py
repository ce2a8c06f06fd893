"""What a user gets wrong is answered in one clear line."""

import re

import pytest
import torch
from commands import TASK, TRAIN, USER_DIR, fairseq, last_error


@pytest.fixture
def untrained(data, tmp_path):
    """Flags that name a model after one update."""
    fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path,
            "--disable-validation")  # fmt: skip
    return "--path", tmp_path / "checkpoint_last.pt", "--cpu"


@pytest.mark.parametrize(
    "options, message",
    [
        (("--arch", "gur_lm"), r"invalid choice: 'gur_lm'"),
        (("--arch", "elman_lm", "--activation", "softplus"), r"--activation: invalid choice: 'softplus'"),
        (("--arch", "hornn_lm", "--order", 0), r"ValueError: HORNN: --order 0 must be at least 1$"),
        (
            ("--arch", "r_rntn_lm", "--num-matrices", 5000),
            r"ValueError: --num-matrices 5000 must be between 1 and the vocabulary size 32$",
        ),
        (
            ("--arch", "r_rntn_lm", "--num-matrices", 2, "--index-map", "MAP"),
            r"ValueError: .*map.txt: no line for the symbol 'w1' of the vocabulary$",
        ),
        (
            ("--arch", "gru_lm", "--share-decoder-input-output-embed", "--embed-dim", 5),
            r"ValueError: --share-decoder-input-output-embed needs .* --embed-dim 5 equal to --hidden-size 8$",
        ),
        (
            ("--arch", "gru_lm", "--adaptive-softmax-cutoff", "10,5"),
            r"ValueError: --adaptive-softmax-cutoff 10,5 must be increasing numbers below the vocabulary size 32$",
        ),
        (("--arch", "brnn_gru"), r"ValueError: this architecture labels .* --task conllu_tagging or conllu_parsing$"),
        (
            ("--arch", "seq2seq_gru"),
            r"ValueError: this architecture labels .* --task conllu_tagging or conllu_parsing$",
        ),
        (("--arch", "gru_lm", "--dropout", "1.5"), r"ValueError: --dropout 1.5 must be in \[0.0, 1.0\)$"),
        (("--arch", "gru_lm", "--layers", 0), r"ValueError: --layers 0 must be at least 1$"),
        (("--arch", "gru_lm", "--tokens-per-sample", 0), r"ValueError: --tokens-per-sample 0 must be at least 1$"),
        (
            ("--arch", "gru_lm", "--criterion", "rntn_adaptive_loss"),
            r"ValueError: --criterion rntn_adaptive_loss needs a model with --adaptive-softmax-cutoff$",
        ),
        (
            ("--arch", "gru_lm", "--lr-scheduler", "validation_ratio", "--best-checkpoint-metric", "accuracy"),
            r"ValueError: --lr-scheduler validation_ratio needs --best-checkpoint-metric loss, .*, not accuracy$",
        ),
        (
            ("--arch", "gru_lm", "--best-checkpoint-metric", "nll_loss"),
            r"ValueError: --best-checkpoint-metric nll_loss: validation logs loss, ppl$",
        ),
        (
            ("--arch", "gru_lm", "--best-checkpoint-metric", "ppl", "--maximize-best-checkpoint-metric"),
            r"ValueError: --best-checkpoint-metric ppl is better when lower: leave out --maximize-best-.*$",
        ),
    ],
)
def test_wrong_flags(options, message, data, tmp_path):
    (tmp_path / "map.txt").write_text("</s> 0\n<unk> 0\n" + "".join(f"w{i} 1\n" for i in range(24) if i != 1))
    options = [tmp_path / "map.txt" if option == "MAP" else option for option in options]
    output = fairseq("train", data, *TRAIN, *options, "--max-update", 1, "--save-dir", tmp_path, fails=True)
    assert re.search(message, last_error(output)), last_error(output)


def binarise(folder, train, others="a b\n"):
    folder.mkdir(exist_ok=True)
    for split, text in (("train", train), ("valid", others), ("test", others)):
        (folder / f"{split}.txt").write_text(text)
    fairseq(
        "preprocess", "--only-source", "--trainpref", folder / "train.txt", "--validpref", folder / "valid.txt",
        "--testpref", folder / "test.txt", "--destdir", folder / "bin",
    )  # fmt: skip
    return folder / "bin"


def test_empty_corpora(tmp_path):
    """An empty split is an error, never perplexity 1."""
    data = binarise(tmp_path / "a", "a b\n" * 20, others="")
    output = fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path, fails=True)
    assert re.search(r"ValueError: .*valid: the corpus is empty, there is not one token to read$", last_error(output))
    fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path,
            "--disable-validation")  # fmt: skip
    output = fairseq("eval-lm", data, *USER_DIR, *TASK, "--path", tmp_path / "checkpoint_last.pt", "--cpu", fails=True)
    assert re.search(r"ValueError: .*test: the corpus is empty", last_error(output)) and "Perplexity" not in output


@pytest.mark.parametrize("file, keep", [("train.bin", -2), ("valid.bin", -2), ("train.idx", -8), ("train.idx", 0)])
def test_damaged_files_are_named(file, keep, tmp_path):
    data = binarise(tmp_path / "a", "a b\n" * 20)
    content = (data / file).read_bytes()
    (data / file).write_bytes(content[:keep])
    output = fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path, fails=True)
    assert f"ValueError: {data / file.split('.')[0]} is empty or damaged: " in output


def test_a_folder_without_dictionary(tmp_path):
    output = fairseq("train", tmp_path, *TRAIN, "--arch", "gru_lm", "--save-dir", tmp_path, fails=True)
    assert "no dict.txt here; is it a folder written by fairseq-preprocess --only-source?" in last_error(output)


def test_a_dictionary_that_does_not_match_the_checkpoint(data, tmp_path):
    fairseq("train", data, *TRAIN, "--arch", "r_rntn_lm", "--num-matrices", 3, "--max-update", 1, "--save-dir",
            tmp_path, "--disable-validation")  # fmt: skip
    checkpoint = ("--path", tmp_path / "checkpoint_last.pt", "--cpu")
    smaller = binarise(tmp_path / "smaller", "a b\n" * 20)
    output = fairseq("eval-lm", smaller, *USER_DIR, *TASK, *checkpoint, fails=True)
    assert last_error(output).endswith("the checkpoint has 32 symbols, the dictionary of the data folder 8")
    renamed = binarise(tmp_path / "renamed", "".join(f"v{i}\n" for i in range(24)))
    output = fairseq("eval-lm", renamed, *USER_DIR, *TASK, *checkpoint, fails=True)
    assert "the checkpoint was trained with another dictionary of 32 symbols" in last_error(output)


class Hostile:
    def __reduce__(self):
        import os

        return os.system, ("touch HOSTILE",)


def test_a_hostile_checkpoint_cannot_run_code(data, tmp_path):
    torch.save({"model": Hostile(), "args": None}, tmp_path / "bad.pt")
    output = fairseq(
        "eval-lm", data, *USER_DIR, *TASK, "--path", tmp_path / "bad.pt", "--cpu", fails=True, cwd=tmp_path
    )
    assert "Weights only load failed" in output and not (tmp_path / "HOSTILE").exists()


@pytest.mark.parametrize("symbol", ["<s>", "<pad>", "madeupword0000"])
def test_reserved_symbols_in_the_text(symbol, tmp_path):
    data = binarise(tmp_path, f"a b {symbol} c\n" * 5)
    output = fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path, fails=True)
    assert f"train: the text holds {symbol!r}, a symbol that fairseq keeps for itself" in last_error(output)


def test_label_smoothing_is_refused(data, tmp_path):
    output = fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path,
                     "--criterion", "label_smoothed_cross_entropy", fails=True)  # fmt: skip
    assert "ValueError: --criterion label_smoothed_cross_entropy gives probability to all" in last_error(output)


def test_evaluating_with_another_break_mode_is_said(data, tmp_path):
    fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path,
            "--disable-validation", "--sample-break-mode", "eos")  # fmt: skip
    checkpoint = ("--path", tmp_path / "checkpoint_last.pt", "--cpu")
    warning = "the model was trained with --sample-break-mode eos, this is --sample-break-mode none"
    assert warning in fairseq("eval-lm", data, *USER_DIR, *TASK, *checkpoint)
    assert "was trained with" not in fairseq(
        "eval-lm", data, *USER_DIR, *TASK, *checkpoint, "--sample-break-mode", "eos"
    )


def test_shuffled_blocks_of_sentences_are_refused(data, tmp_path):
    output = fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--max-update", 1, "--save-dir", tmp_path,
                     "--sample-break-mode", "eos", "--shuffle-blocks", fails=True)  # fmt: skip
    assert "ValueError: --shuffle-blocks is of --sample-break-mode none; with eos" in last_error(output)


@pytest.mark.parametrize("flag", ["--constraints", "--print-alignment", "--match-source-len"])
def test_what_needs_a_source_is_refused(flag, data, untrained):
    output = fairseq("generate", data, *USER_DIR, *TASK, *untrained,
                     "--prefix-size", 1, flag, fails=True)  # fmt: skip
    assert f"ValueError: {flag} needs a source sentence: a language model has none" in last_error(output)


@pytest.mark.parametrize("flags, message", [
    (("--diverse-beam-groups", 2), "--diverse-beam-groups would also change the scores of the prompt's own words"),
    (("--diversity-rate", 0.5), "--diversity-rate would also change the scores of the prompt's own words"),
    (("--max-tokens", 2), "--max-tokens 2: a sentence has "),
])  # fmt: skip
def test_what_generation_cannot_do(flags, message, data, untrained):
    output = fairseq("generate", data, *USER_DIR, *TASK, *untrained,
                     "--prefix-size", 1, *flags, fails=True)  # fmt: skip
    assert f"ValueError: {message}" in last_error(output)


def test_prompts_with_symbols_of_no_text(data, untrained):
    reserved = "the text holds '<"
    for prompt, message in (("<s> w1", reserved), ("w1 <pad> w2", reserved), ("w1 </s> w2", "'</s>' within it ends")):
        output = fairseq("interactive", data, *USER_DIR, *TASK, *untrained,
                         stdin=f"{prompt}\n", fails=True)  # fmt: skip
        assert re.search(f"ValueError: prompt '.*w1.*': {message}", last_error(output))


@pytest.mark.parametrize("flags, message", [
    (("--max-tokens", 5), "--max-tokens 5: not one block of text fits"),
    (("--batch-size", 0), "--batch-size 0: not one block of text fits"),
])  # fmt: skip
def test_limits_of_evaluation(flags, message, data, untrained):
    output = fairseq("eval-lm", data, *USER_DIR, *TASK, *untrained,
                     "--tokens-per-sample", 6, *flags, fails=True)  # fmt: skip
    assert message in last_error(output)


def test_a_shard_that_is_not_there(data, untrained):
    output = fairseq("eval-lm", data, *USER_DIR, *TASK, *untrained,
                     "--num-shards", 2, "--shard-id", 3, fails=True)  # fmt: skip
    assert "ValueError: --shard-id 3 must be from 0 to 1 (--num-shards 2)" in last_error(output)


def test_context_window_is_refused(data, untrained):
    output = fairseq("eval-lm", data, *USER_DIR, *TASK, *untrained,
                     "--context-window", 3, "--tokens-per-sample", 10, fails=True)  # fmt: skip
    assert "--context-window has no meaning here" in last_error(output)
