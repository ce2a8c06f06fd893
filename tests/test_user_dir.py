"""The worked example of a user's own cell: its equations, its gradients, the contract, and training it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
import commands  # noqa: E402

USER_DIR = ROOT / "user_dir"
T, B, I, H = 6, 3, 4, 5  # noqa: E741


def sigmoid(a):
    import numpy as np

    return 1 / (1 + np.exp(-a))


def make(**options):
    """The cell in float64 with random parameters, and inputs ``[T, B, I]``."""
    import torch

    import user_dir  # noqa: F401
    from rntn_plugins import build_cell

    torch.manual_seed(1)
    cell = build_cell("mgu", I, H, **options).double()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return cell, torch.randn(T, B, I, dtype=torch.float64)


def check_equations():
    """Output and carry against a loop over steps and rows in NumPy, written from the paper."""
    import numpy as np

    from rntn_plugins.layers.recurrent import Recurrent

    functions = {"tanh": np.tanh, "sigmoid": sigmoid, "relu": lambda a: np.maximum(a, 0)}
    for name, function in functions.items():
        cell, x = make(activation=name)
        outputs, carry = Recurrent(cell)(x)
        p = {key: value.detach().numpy() for key, value in cell.named_parameters()}
        W_fx, W_xh = np.split(p["weight_ih"], 2)
        b_f, b_h = np.split(p["bias"], 2)
        W_f = np.concatenate([W_fx, p["weight_hh_gate"]], axis=1)  # acts on [x_t; h_{t-1}]
        for row in range(B):
            h = np.zeros(H)
            for t in range(T):
                x_t = x[t, row].numpy()
                f = sigmoid(W_f @ np.concatenate([x_t, h]) + b_f)
                candidate = function(W_xh @ x_t + p["weight_hh"] @ (f * h) + b_h)
                h = (1 - f) * h + f * candidate
                assert np.abs(outputs[t, row].detach().numpy() - h).max() < 1e-10
            assert np.abs(carry.h[row].detach().numpy() - h).max() < 1e-10


def check_gradients():
    """Input, initial state and every parameter."""
    import torch
    from torch.func import functional_call

    from rntn_plugins.cells.base import Hidden
    from rntn_plugins.layers.recurrent import Recurrent

    cell, x = make()
    layer = Recurrent(cell)
    names = [name for name, _ in layer.named_parameters()]
    h = torch.randn(B, H, dtype=torch.float64)

    def outputs(x, h, *values):
        return functional_call(layer, dict(zip(names, values)), (x,), {"carry": Hidden(h)})[0]

    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x[:3], h, *layer.parameters())]
    assert torch.autograd.gradcheck(outputs, leaves)


def check_refusal():
    try:
        make(activation="swish")
    except ValueError as error:
        assert "--activation swish is not one of tanh, sigmoid, relu" in str(error)
    else:
        raise AssertionError("an unknown activation was accepted")


def run_as_user(*command, cwd) -> str:
    """With nothing on the search path."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    return output


def test_equations_gradients_and_options():
    """In a process of its own: importing user_dir here would add a cell to every test of the registry."""
    code, said = commands.forked(__file__)
    assert code == 0, said[-3000:]


def test_the_contract_holds_as_the_readme_says():
    command = re.search(r"python -m (pytest -p user_dir .*)", (USER_DIR / "README.md").read_text())[1].split()
    code, said = commands.forked(*command, "-p", "no:cacheprovider", cwd=ROOT)
    assert code == 0 and re.search(r"\d+ passed", said) and "failed" not in said, said[-3000:]


def test_the_example_is_short():
    assert len((USER_DIR / "__init__.py").read_text().splitlines()) <= 60


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A binarised text with something to learn: four sentences over and over."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = ["the cat sat on the mat", "a dog saw the cat", "the dog ran", "a cat ran on the mat and sat"]
    prefixes = []
    for split, times in (("train", 40), ("valid", 3), ("test", 2)):
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in lines * times))
        prefixes += [f"--{split}pref", folder / f"{split}.txt"]
    commands.fairseq("preprocess", "--only-source", "--padding-factor", 1, "--destdir", folder / "bin", *prefixes)
    return folder / "bin"


def test_training(corpus, tmp_path):
    """As a user in a folder of their own, with nothing on the search path: the loss falls, the option arrives."""
    output = run_as_user(
        "-m", "fairseq_cli.train", corpus, "--user-dir", USER_DIR, "--task", "rntn_language_modeling",
        "--arch", "mgu_lm", "--activation", "relu", "--embed-dim", 12, "--hidden-size", 16, "--optimizer", "adam",
        "--lr", 0.02, "--batch-size", 4, "--tokens-per-sample", 10, "--max-epoch", 2, "--cpu", "--num-workers", 0,
        "--log-format", "json", "--log-interval", 1, "--save-dir", tmp_path / "checkpoints", "--no-epoch-checkpoints",
        cwd=tmp_path,
    )  # fmt: skip
    assert "MGU(12, 16, activation=relu)" in output
    losses = [float(json.loads(line)["loss"]) for line in re.findall(r"train_inner \| (\{.*\})", output)]
    assert len(losses) > 30 and losses[-1] < 0.5 * losses[0], losses
    valid = [json.loads(line) for line in re.findall(r"\| valid \| (\{.*\})", output)]
    assert float(valid[-1]["valid_ppl"]) < 4  # of 14 symbols
    # the checkpoint is read again, by the command of the README
    output = run_as_user(
        "-m", "fairseq_cli.eval_lm", corpus, "--user-dir", USER_DIR, "--task", "rntn_language_modeling", "--cpu",
        "--path", tmp_path / "checkpoints/checkpoint_best.pt", "--gen-subset", "test", cwd=tmp_path,
    )  # fmt: skip
    assert "Evaluated 52 tokens" in output, output[-2000:]


if __name__ == "__main__":
    check_equations()
    check_gradients()
    check_refusal()
