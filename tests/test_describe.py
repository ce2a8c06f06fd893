"""scripts/describe.py lists what fairseq-train takes."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from commands import forked  # noqa: E402


def describe(*args, code=0) -> str:
    result, output = forked(ROOT / "scripts" / "describe.py", *args, cwd=ROOT)
    assert result == code, output
    return output


def test_all_architectures():
    text = describe()
    assert "gru_rntn: GRU whose candidate adds a tensor product" in text and "    lstm_lm_salle_ptb_h650" in text
    for flag in ("--task conllu_tagging: One tag a word", "--optimizer adagrad_tf: ",
                 "--lr-scheduler validation_ratio: ", "--criterion rntn_cross_entropy: "):  # fmt: skip
        assert flag in text
    assert "--task language_modeling" not in text and "--optimizer adam:" not in text  # fairseq's own


def test_one_architecture_with_its_own_defaults():
    text = describe("r_gru_lm_salle_ptb")
    for expected in ("--num-matrices", "--indexed-gates", "--hidden-size", "(default: 244)", "(default: 1)", "S18"):
        assert expected in text
    assert "--order" not in text


def test_of_a_user():
    assert "Minimal gated unit" in describe("--user-dir", "user_dir", "mgu_lm")


def test_folders_of_users_that_cannot_be_read(tmp_path):
    (tmp_path / "__init__.py").write_text("def f(:\n")
    for folder, message in (
        ("nowhere", ": there is no such folder"),
        ("README.md", " cannot be imported (ModuleNotFoundError: No module named 'README')"),
        (tmp_path, " cannot be imported (SyntaxError: "),
    ):
        said = describe("--user-dir", folder, code=2)
        assert f"describe: error: --user-dir {folder}{message}" in said and "Traceback" not in said


def test_choices():
    text = " ".join(describe("dbrnn_lstm").split())
    assert "pretrained vectors that the data folder holds (off)" in text
    assert "one of pad, repeat (default: pad)" in text and "one of convolution, lstm (default: convolution)" in text


def test_task_and_optimiser():
    text = " ".join(describe("conllu_parsing").split())
    assert "--task conllu_parsing" in text and "--head-encoding" in text and "one of position, offset, upos" in text
    assert " data folder that scripts/prepare_conllu.py wrote" in text and "--dataset-impl" not in text
    text = describe("adagrad_tf")
    assert "--initial-accumulator-value" in text and "(default:\n        0.1)" in text and "Duchi et al. 2011" in text


def test_unknown():
    assert "unknown name 'gur_lm'" in describe("gur_lm", code=2)
