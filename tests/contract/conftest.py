"""Fixtures of the contract's tests."""

import pytest
import torch

from rntn_plugins.ops import products


@pytest.fixture
def avx512(monkeypatch):
    """The choice between a CPU's libraries as with AVX-512 that torch's BLAS does not use, if torch has oneDNN here."""
    if not products.by_onednn(torch.ones(1)):
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(products, "STEP_MATRIX", 0)
    monkeypatch.setattr(products, "AVX512", True)
    monkeypatch.setattr(products, "BLAS_AVX512", False)


@pytest.fixture
def all_by_onednn(avx512, monkeypatch):
    """Every product of float32 left to oneDNN, however small."""
    monkeypatch.setattr(products, "STEP_WORK", 0)
    monkeypatch.setattr(products, "SMALL_WORK", 0)
