"""What all tests share."""

import logging

import pytest
import torch

torch.set_num_threads(1)  # before any work: tests fork, and a fork waits for ever for threads that it does not have


@pytest.fixture(autouse=True)
def logs_as_usual():
    """Scripts make fairseq and the package quiet; the next test in the same process may read what they say."""
    for name in ("fairseq", "rntn_plugins"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def arithmetic_as_torch_has_it():
    """Tasks change this for their thread, or the process; the next test in the same one may count on it."""
    of_products = [torch.backends.mkldnn, torch.backends.cuda]
    of_products = [each.matmul for each in of_products if hasattr(getattr(each, "matmul", None), "fp32_precision")]
    before = [each.fp32_precision for each in of_products]  # torch 2.9
    yield
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    for each, precision in zip(of_products, before):
        each.fp32_precision = precision
