"""What cells start from."""

import dataclasses
import math

import pytest
import torch

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.registry import get_cell

VOCABULARY = Vocabulary(5, list("abcde"), torch.arange(5))


@pytest.mark.parametrize("name", ["gru_rntn", "lstm_rntn"])
def test_tensor_init_scale_is_the_tensors(name):
    cell = build_cell(name, 40, 30, tensor_init_scale=0.2)
    for scheme, scale in (("uniform", 1.0), ("orthogonal", 1.0), ("normal", 3.0)):
        cell.initialise(scheme, scale)
        assert abs(cell.weight_tensor.std() - 0.2) < 0.01


def make(name: str, input_size: int, hidden_size: int, **options):
    names = [field.name for field in dataclasses.fields(get_cell(name).Options)]
    small = {"num_matrices": 2, "forget_bias": 0.0, **options}
    small = {option: value for option, value in small.items() if option in names}
    return build_cell(name, input_size, hidden_size, VOCABULARY, **small)


@pytest.mark.parametrize("name", cell_names())
def test_biases_start_with_zero(name):
    """But for what an option has another start for: the forget gate's, as ``--forget-bias`` says."""
    cell = make(name, 3, 4)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.fill_(7.0)
    cell.initialise("uniform", 0.5)
    for key, value in cell.named_parameters():
        assert not (value == 7).any(), key
        assert "bias" not in key or not value.any(), key


@pytest.mark.parametrize("name", ["gru", "lstm", "r_gru", "hornn"])
def test_every_block_is_orthogonal_by_itself(name):
    cell = make(name, 4, 4)
    cell.initialise("orthogonal", 0.5)
    for key, value in cell.named_parameters():
        if value.dim() > 1 and "bias" not in key:
            for block in value.detach().reshape(-1, 4, 4):
                torch.testing.assert_close(block @ block.t(), 0.25 * torch.eye(4), atol=1e-6, rtol=0, msg=key)


@pytest.mark.parametrize("scale", [-0.1, math.inf, math.nan])
@pytest.mark.parametrize("scheme", ["orthogonal", "uniform", "normal"])
def test_scales_of_the_start_are_numbers_from_0(scheme, scale):
    with pytest.raises(ValueError, match="--init-scale .* must be at least 0 and finite"):
        build_cell("elman", 4, 3).initialise(scheme, scale)
