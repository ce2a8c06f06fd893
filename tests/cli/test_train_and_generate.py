"""train -> resume -> eval-lm -> generate with real commands."""

import re

import pytest
from commands import ROOT, TASK, TRAIN, USER_DIR, evaluated, fairseq, losses, validation

CELLS = {
    "gru_rntn_lm": (),
    "r_rntn_lm": ("--num-matrices", 5, "--index-map", "mod"),
    "elstm1_lm": ("--positions", 4, "--layers", 2, "--dropout-between", 0.2),
    "hornn_gated_lm": ("--share-decoder-input-output-embed", "--embed-dim", 8, "--dropout-output", 0.3),
    "plain_lstm_lm": ("--adaptive-softmax-cutoff", "8,16", "--adaptive-softmax-factor", 2, "--criterion",
                      "rntn_adaptive_loss"),
}  # fmt: skip


@pytest.mark.parametrize("arch", CELLS)
def test_train_resume_evaluate_generate(arch, data, test_tokens, tmp_path):
    options = ("--arch", arch, "--save-dir", tmp_path, *CELLS[arch])
    first = fairseq("train", data, *TRAIN, *options, "--max-epoch", 2)
    trained = losses(first)
    assert list(trained) == list(range(1, len(trained) + 1))
    second = fairseq("train", data, *TRAIN, *options, "--max-epoch", 3)
    resumed = losses(second)
    assert min(resumed) == len(trained) + 1, "goes on where the first run stopped"
    bits = [float(entry["valid_loss"]) for entry in validation(first) + validation(second)]
    assert len(bits) == 3 and bits[-1] < bits[0]

    checkpoint = ("--path", tmp_path / "checkpoint_last.pt", "--cpu")
    tokens, loss = evaluated(fairseq("eval-lm", data, *USER_DIR, *TASK, *checkpoint))
    assert tokens == test_tokens
    assert 0 < loss < bits[0] + 0.3

    output = fairseq("generate", data, *USER_DIR, *TASK, *checkpoint, "--prefix-size", 2, "--beam", 3, "--nbest", 2)
    prompts = re.findall(r"^T-(\d+)\t(.*)$", output, re.M)
    assert len(prompts) == 31, "every sentence of the test set is a prompt"
    for number, text in prompts:
        hypotheses = re.findall(rf"^H-{number}\t\S+\t(.*)$", output, re.M)
        assert len(hypotheses) == 2
        start = text.replace("<<unk>>", "<unk>").split()[:2]
        assert all(hypothesis.split()[: len(start)] == start for hypothesis in hypotheses)
    assert "madeupword" not in output and "<pad>" not in "".join(re.findall(r"^H-.*$", output, re.M))


def test_interactive_continues_and_samples(data, tmp_path):
    fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--save-dir", tmp_path, "--max-epoch", 1)
    output = fairseq(
        "interactive", data, *USER_DIR, *TASK, "--path", tmp_path / "checkpoint_best.pt", "--cpu", "--sampling",
        "--beam", 4, "--nbest", 4, "--max-len-b", 9, "--seed", 7, stdin="w1 w4\n\nw7\n",
    )  # fmt: skip
    for number, prompt in ((0, "w1 w4"), (1, ""), (2, "w7")):
        texts = re.findall(rf"^H-{number}\t\S+\t(.*)$", output, re.M)
        assert len(texts) == 4 and all(text.startswith(prompt) for text in texts)
    assert len(set(re.findall(r"^H-1\t\S+\t(.*)$", output, re.M))) > 1, "samples differ"


def test_characters_are_scored_in_bits_per_character(characters, tmp_path):
    options = ("--arch", "gru_rntn_lm_tjandra_ptb_char", "--save-dir", tmp_path, "--max-epoch", 1)
    (entry,) = validation(fairseq("train", characters, *TRAIN, *options))
    assert abs(float(entry["valid_bpc"]) - float(entry["valid_loss"])) < 1e-3
    output = fairseq(
        "interactive", characters, *USER_DIR, *TASK, "--path", tmp_path / "checkpoint_best.pt", "--cpu", "--beam", 1,
        "--bpe", "ptb_characters", "--max-len-b", 20, stdin="w1 w2\n",
    )  # fmt: skip
    assert re.search(r"^H-0\t\S+\tw 1 _ w 2", output, re.M) and re.search(r"^D-0\t\S+\tw1 w2", output, re.M)


@pytest.mark.parametrize("model", ["gru_rntn_lm", "r_gru_lm_salle_ptb"])
def test_hydra(model, data, tmp_path):
    settings = [
        f"common.user_dir={ROOT / 'rntn_plugins'}", "common.cpu=true", "common.log_format=json",
        "common.log_interval=1", f"+task.data={data}", "+task._name=rntn_language_modeling",
        "+task.tokens_per_sample=6", f"+model._name={model}",
        "+model.embed_dim=6", "+model.hidden_size=8", "+optimizer._name=max_norm_sgd", "+optimizer.max_norm=2.0",
        "~lr_scheduler", "+lr_scheduler._name=validation_ratio", "optimization.lr=[0.5]", "optimization.max_epoch=2",
        "dataset.batch_size=4", "dataset.num_workers=0", f"checkpoint.save_dir={tmp_path / 'save'}",
        f"hydra.run.dir={tmp_path}",
    ]  # fmt: skip
    if model == "r_gru_lm_salle_ptb":
        settings.append("+model.num_matrices=5")
    output = fairseq("hydra-train", *settings, cwd=tmp_path, alone=model == "gru_rntn_lm")
    bits = [float(found) for found in re.findall(r'"valid_loss": "([0-9.]+)"', output)]
    assert len(bits) == 2 and bits[1] < 5, output[-2000:]
    checkpoint = ("--path", tmp_path / "save" / "checkpoint_best.pt", "--cpu", "--batch-size", 4)
    tokens, loss = evaluated(fairseq("eval-lm", data, *USER_DIR, *TASK, *checkpoint, "--gen-subset", "valid"))
    assert tokens > 0 and abs(loss - min(bits)) < 2e-3


@pytest.mark.parametrize("break_mode", ["none", "eos"])
def test_fairseq_own_language_modelling_task(break_mode, data, test_tokens, tmp_path):
    """The architectures train under fairseq's task too, on numpy 2 as well, and eval-lm's default task scores them."""
    own = ("--task", "language_modeling", "--sample-break-mode", break_mode)
    output = fairseq("train", data, *TRAIN, *own, "--arch", "r_rntn_lm", "--num-matrices", 5, "--save-dir", tmp_path,
                     "--max-epoch", 2)  # fmt: skip
    bits = [float(entry["valid_loss"]) for entry in validation(output)]
    assert bits[1] < bits[0]
    checkpoint = ("--path", tmp_path / "checkpoint_best.pt", "--cpu")
    assert (
        evaluated(fairseq("eval-lm", data, *USER_DIR, *checkpoint, "--sample-break-mode", break_mode))[0] == test_tokens
    )


def test_sentence_mode(data, test_tokens, tmp_path):
    """S18's s-RNN experiments: one sentence at a time in short pieces; any batch size gives the same score."""
    options = ("--sample-break-mode", "eos", "--tokens-per-sample", 5)
    fairseq("train", data, *TRAIN, "--arch", "elman_lm_salle_ptb", "--hidden-size", 6, "--max-update", 60,
            "--batch-size", 1, "--save-dir", tmp_path, *options)  # fmt: skip
    checkpoint = (*TASK, "--path", tmp_path / "checkpoint_best.pt", "--cpu")
    one = evaluated(fairseq("eval-lm", data, *USER_DIR, *checkpoint, *options, "--batch-size", 1))
    many = evaluated(
        fairseq("eval-lm", data, *USER_DIR, *checkpoint, "--sample-break-mode", "eos", "--tokens-per-sample", 50)
    )
    assert one[0] == many[0] == test_tokens and abs(one[1] - many[1]) < 1e-3


def test_shuffled_blocks(data, tmp_path):
    """Training alone has them: validation, also of the training text, and evaluation read streams."""
    options = ("--batch-size", 4, "--tokens-per-sample", 6, "--max-epoch", 2, "--valid-subset", "valid,train")
    train = ("train", data, *TRAIN, "--arch", "gru_lm", *options)
    output = fairseq(*train, "--shuffle-blocks", "--save-dir", tmp_path)
    bits = [float(entry["valid_loss"]) for entry in validation(output)]
    assert bits[1] < bits[0]
    found, expected = losses(output), losses(fairseq(*train, "--no-save"))
    assert len(found) == len(expected) and abs(found[1] - expected[1]) > 1e-3, "the same batches"
    checkpoint = (*TASK, "--path", tmp_path / "checkpoint_last.pt", "--cpu", "--batch-size", 4)
    for subset, entry in (("valid", -1), ("train", -2)):  # the last entry of train is of training
        last = re.findall(rf'"{subset}_loss": "([0-9.]+)"', output)[entry]
        tokens, loss = evaluated(fairseq("eval-lm", data, *USER_DIR, *checkpoint, "--gen-subset", subset))
        assert tokens > 0 and abs(loss - float(last)) < 2e-3
    both = fairseq("validate", data, *USER_DIR, *checkpoint, "--valid-subset", "valid", "--sample-break-mode", "eos")
    assert "valid on 'valid' subset" in both


def test_a_checkpoint_needs_neither_map_file_nor_training_text(data, test_tokens, tmp_path):
    """The map from symbols to matrices is part of the checkpoint."""
    import shutil

    file = tmp_path / "map.txt"
    file.write_text("</s> 0\n<unk> 1\n" + "".join(f"w{i} {i % 3}\n" for i in range(24)))
    options = ("--arch", "r_lstm_lm", "--num-matrices", 3, "--index-map", file, "--save-dir", tmp_path)
    output = fairseq("train", data, *TRAIN, *options, "--max-update", 5)
    (bits,) = [float(entry["valid_loss"]) for entry in validation(output)]
    file.unlink()
    for name in ("dict.txt", "valid.bin", "valid.idx"):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        shutil.copy(data / name, tmp_path / "elsewhere" / name)
    checkpoint = ("--path", tmp_path / "checkpoint_best.pt", "--cpu", "--batch-size", 4, "--gen-subset", "valid")
    loss = evaluated(fairseq("eval-lm", tmp_path / "elsewhere", *USER_DIR, *TASK, *checkpoint))[1]
    assert abs(loss - bits) < 2e-3, "the score of the validation during training"
    output = fairseq("train", data, *TRAIN, *options, "--save-dir", tmp_path / "new", "--max-update", 1, fails=True)
    assert "no file named by --index-map" in output


@pytest.mark.parametrize("size", [1, 2])
def test_no_ngram_is_repeated(size, data, tmp_path):
    """But for a prompt that repeats itself."""
    fairseq("train", data, *TRAIN, "--arch", "gru_lm", "--save-dir", tmp_path, "--max-epoch", 1)
    prompt = "w1 w4 w1 w4 w1".split()
    output = fairseq(
        "interactive", data, *USER_DIR, *TASK, "--path", tmp_path / "checkpoint_best.pt", "--cpu", "--beam", 2,
        "--nbest", 2, "--max-len-b", 16, "--min-len", 12, "--no-repeat-ngram-size", size,
        stdin=" ".join(prompt) + "\nw7\n",
    )  # fmt: skip
    texts = [text.split() for text in re.findall(r"^H-0\t\S+\t(.*)$", output, re.M)]
    assert len(texts) == 2 and all(len(text) >= 12 for text in texts)
    for text in texts:
        assert text[: len(prompt)] == prompt
        ngrams = [tuple(text[at : at + size]) for at in range(len(text) - size + 1)]
        for at in range(len(prompt) - size + 1, len(ngrams)):
            assert ngrams[at] not in ngrams[:at]
