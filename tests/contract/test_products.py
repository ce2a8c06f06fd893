"""Matrix products by oneDNN against torch's own, at sizes where it is asked; and which way a tensor product goes."""

import pytest
import torch

from rntn_plugins.ops import bilinear, products
from rntn_plugins.ops.inputs import Rows, project
from rntn_plugins.ops.products import LONG, SMALL_WORK, STEP_WORK, Factor, by_onednn, product, product_into

needs_onednn = pytest.mark.skipif(not by_onednn(torch.ones(1)), reason="torch has no oneDNN here")


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


@needs_onednn
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_products(turned, gaps):
    size = 170
    assert size**3 >= SMALL_WORK
    a, b = torch.randn(2, size, size)
    a, wide = a.t() if turned else a, torch.randn(size, size + 3)
    if gaps:  # some layouts have no quick product: they must be laid out anew, and give the same
        wide[:, :size] = b
        b = wide[:, :size]
    bias = torch.randn(size)
    close(product(a, b), a @ b)
    for each in (bias, torch.randn(2 * size)[::2], torch.randn(1).expand(size), torch.randn(1)):
        close(product(a, b, each), a @ b + each)


@pytest.mark.parametrize("shape", [(3000, 60, 25), (300, 150, 100), (4, 3, 5)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("block", [1, 2**12, 2**20])
def test_products_into(shape, turned, block, monkeypatch):
    """In blocks or at once; what was there is added to, or not even read."""
    monkeypatch.setattr(products, "BLOCK", block)
    rows, inner, columns = shape
    a = torch.randn(inner, rows).t() if turned else torch.randn(rows, inner)
    b, out = torch.randn(inner, columns), torch.full((rows, columns), float("nan"))
    product_into(out, a, b, add=False)
    close(out, a @ b)
    product_into(out, a, b, add=True)
    close(out, 2 * (a @ b))


@needs_onednn
@pytest.mark.parametrize("rows, columns", [(300, 620), (620, 300), (20 * LONG, 600), (LONG * 110, 105)])
def test_factors(rows, columns):
    """Matrices large enough, laid out anew or not; rows with gaps, results into what was added."""
    assert 20 * rows * columns >= STEP_WORK
    matrix, x, other = torch.randn(rows, columns), torch.randn(20, 2 * rows)[:, :rows], torch.randn(20, columns)
    for each in (matrix, matrix.t().contiguous().t()):
        factor = Factor(each, 20)
        assert factor.onednn
        for _ in range(2):  # before and after the matrix is laid out
            close(factor.of(x), x @ matrix)
            close(factor.times(x, out=torch.empty(20, columns)), x @ matrix)
            close(factor.times_plus(x, other, out=torch.empty(20, columns)), x @ matrix + other)
            into = other.clone()
            assert factor.times_plus(x, into, out=into) is into
            close(into, x @ matrix + other)


@needs_onednn
def test_a_matrix_is_laid_out_for_its_second_product():
    matrix, x = torch.randn(300, 620), torch.randn(20, 300)
    factor = Factor(matrix, 20)
    close(factor.of(x), x @ matrix)
    assert factor.turned.data_ptr() == matrix.data_ptr(), "a single step reads the matrix where it lies"
    close(factor.of(x), x @ matrix)
    assert factor.turned.is_mkldnn


@needs_onednn
def test_the_smaller_matrix_is_turned():
    """For a turned left matrix much larger than what else there is; the product is contiguous, as gradients must be."""
    a, b = torch.randn(60, 3000).t(), torch.randn(60, 25)
    assert a.size(0) * b.numel() >= SMALL_WORK and a.numel() > b.numel() + 3000 * 25
    found = product(a, b)
    close(found, a @ b)
    assert found.is_contiguous()


@pytest.mark.parametrize("tensor", [torch.randn(600, 600, dtype=torch.float64), torch.randn(3, 4)])
def test_other_types_and_small_ones_are_left_to_torch(tensor):
    factor = Factor(tensor, 4)
    assert not factor.onednn
    x = torch.randn(4, len(tensor), dtype=tensor.dtype)
    assert torch.equal(factor.of(x), x @ tensor) and torch.equal(product(x, tensor), x @ tensor)


@pytest.mark.parametrize("size", [5, 210])
@pytest.mark.parametrize("repeat", [False, True])
def test_projection(size, repeat):
    """Values and gradients of inputs, weight and bias."""
    index = torch.randint(0, 90, (12, 10))
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((90, size), (2 * size, size), (2 * size,)))
    found = project(Rows(x, index) if repeat else x[index], weight, bias)
    wanted = torch.nn.functional.linear(x[index], weight, bias)
    close(found, wanted)
    d = torch.randn_like(found)
    for a, b in zip(*(torch.autograd.grad(out, (x, weight, bias), d) for out in (found, wanted))):
        close(a, b)


@pytest.mark.parametrize("batch, inputs, by_row", [(20, 128, True), (20, 32, False), (1, 32, True), (64, 128, False)])
def test_way_of_the_tensor_product_by_sizes(batch, inputs, by_row):
    tensor = torch.empty(inputs, 8, 8)
    assert bilinear.by_row(35, batch, tensor, keep=True) == by_row
    assert not bilinear.by_row(1, batch, tensor, keep=True), "a step of generation"
    assert bilinear.by_input(35 * batch // 2, 35, batch, tensor) == by_row
    assert bilinear.by_input(35 * batch // 4, 35, batch, tensor)
