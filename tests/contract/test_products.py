"""Matrix products by oneDNN against torch's own, at sizes where it is asked; and which way a tensor product goes."""

import importlib.util
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rntn_plugins.ops import bilinear, lstm, products, recurrence
from rntn_plugins.ops.inputs import Rows, project
from rntn_plugins.ops.linear_cross_entropy import linear_cross_entropy
from rntn_plugins.ops.products import LONG, STEP_WORK, Factor, product, product_into


def refuse(*args, **kwargs):
    raise OSError


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_products(turned, gaps, avx512):
    size = 170
    assert size**3 >= products.SMALL_WORK
    a, b = torch.randn(2, size, size)
    a, wide = a.t() if turned else a, torch.randn(size, size + 3)
    if gaps:  # some layouts have no quick product: they must be laid out anew, and give the same
        wide[:, :size] = b
        b = wide[:, :size]
    bias = torch.randn(size)
    close(product(a, b), a @ b)
    for each in (bias, torch.randn(2 * size)[::2], torch.randn(1).expand(size), torch.randn(1)):
        close(product(a, b, each), a @ b + each)


@pytest.fixture
def asked(monkeypatch, avx512):
    """The shapes of the operands of every product that oneDNN is asked for."""
    shapes, linear = [], products._linear

    def recorded(x, weight, *others):
        shapes.append((tuple(x.shape), tuple(weight.shape)))
        return linear(x, weight, *others)

    monkeypatch.setattr(products, "_linear", recorded)
    return shapes


@pytest.mark.parametrize(
    "turned, block, blocks", [(0, 2**12, 20), (1, 2**12, 47), (0, 2**16, 2), (1, 2**20, 1), (1, 2, 50)]
)
def test_products_into(turned, block, blocks, monkeypatch, asked):
    """In blocks of one size or at once; what was there is added to, or not even read."""
    monkeypatch.setattr(products, "BLOCK", block)
    a = torch.randn(60, 3170).t() if turned else torch.randn(3170, 60)
    b, wide = torch.randn(60, 25), torch.full((3170, 30), float("nan"))
    out = wide[:, 2:27]
    product_into(out, a, b, add=False, scale=0.5)
    close(out, a @ b / 2)
    product_into(out, a, b, add=True)
    close(out, 1.5 * (a @ b))
    assert len(asked) == 2 * blocks and wide.isnan().sum() == 3170 * 5


def test_blocks_copy_a_matrix_with_gaps_once(monkeypatch, asked):
    monkeypatch.setattr(products, "BLOCK", 2**12)
    copies, dense = [], products.dense

    def recorded(matrix):
        found = dense(matrix)
        copies.extend([found] if found.data_ptr() != matrix.data_ptr() else [])
        return found

    monkeypatch.setattr(products, "dense", recorded)
    a, b, out = torch.randn(3170, 60), torch.randn(60, 30)[:, :25], torch.empty(3170, 25)
    product_into(out, a, b, add=False)
    close(out, a @ b)
    assert len(asked) == 20 and len(copies) == 1


def test_small_products_into():
    out = torch.full((4, 5), float("nan"))
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    product_into(out, a, b, add=False, scale=3.0)
    product_into(out, a, b, add=True)
    close(out, 4 * (a @ b))


def test_the_soft_max_goes_by_onednn(monkeypatch, asked):
    """All three of its products; in chunks, and in blocks of symbols."""
    monkeypatch.setattr(products, "SMALL_WORK", 1)
    monkeypatch.setattr(products, "BLOCK", 2**9)
    features, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((50, 16), (90, 16), (90,)))
    target = torch.randint(90, (50,))
    found = linear_cross_entropy(features, weight, bias, target, -1, chunk=20)
    wanted = torch.nn.functional.cross_entropy(features @ weight.t() + bias, target, reduction="sum")
    close(found, wanted)
    gradients = torch.autograd.grad(found, (features, weight, bias))
    for a, b in zip(gradients, torch.autograd.grad(wanted, (features, weight, bias))):
        close(a, b)
        assert a.is_contiguous()
    rows = [x[0] for x, _ in asked if x[1] == 16]
    assert rows == [20, 20, 10] and len(asked) > 3 * len(rows)


@pytest.mark.parametrize("rows, columns", [(300, 620), (620, 300), (20 * LONG, 600), (LONG * 110, 105)])
def test_factors(rows, columns, avx512):
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
        assert factor._turned.is_mkldnn == (rows <= LONG * columns)


def test_a_matrix_is_laid_out_for_its_second_product(avx512):
    matrix, x = torch.randn(300, 620), torch.randn(20, 300)
    factor = Factor(matrix, 20)
    close(factor.of(x), x @ matrix)
    assert factor._turned.data_ptr() == matrix.data_ptr(), "a single step reads the matrix where it lies"
    close(factor.of(x), x @ matrix)
    assert factor._turned.is_mkldnn


@pytest.mark.parametrize("size", [9, 300])
def test_scaled_factors(size, avx512):
    matrix, x, other = torch.randn(size, size), torch.randn(20, size), torch.randn(20, size)
    factor = Factor(matrix, 20, scale=0.6)
    for _ in range(2):
        close(factor.of(x), 0.6 * (x @ matrix))
        close(factor.times(x, out=torch.empty(20, size)), 0.6 * (x @ matrix))
        close(factor.times_plus(x, other, out=torch.empty(20, size)), 0.6 * (x @ matrix) + other)


@pytest.mark.parametrize("gaps", [0, 7])
def test_the_smaller_matrix_is_turned(gaps, asked):
    """For a turned left matrix much larger than what else there is; the product is contiguous, as gradients must be."""
    a, b = torch.randn(60, 3000 + gaps)[:, :3000].t(), torch.randn(60, 25)
    found = product(a, b)
    close(found, a @ b)
    assert found.is_contiguous() and asked == [((25, 60), (3000, 60))]
    product(a[:, :40], torch.randn(40, 2900))
    assert asked[1:] == [((3000, 40), (2900, 40))], "here the left one is the smaller"


def test_copies_go_the_way_a_matrix_lies():
    for matrix in (torch.randn(4, 9)[:, :6], torch.randn(4, 9)[:, :6].t(), torch.randn(9, 4).t()):
        found = products.dense(matrix)
        assert torch.equal(found, matrix)
        assert (found if matrix.stride(1) == 1 else found.t()).is_contiguous()
    assert found.data_ptr() == matrix.data_ptr(), "without gaps there is nothing to copy"


@pytest.mark.parametrize("capability, single", [("AVX512", True), ("AVX2", False), ("DEFAULT", False)])
def test_without_avx512_only_few_rows_and_large_matrices_go_by_onednn(capability, single, avx512, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    spec = importlib.util.spec_from_file_location("products_elsewhere", products.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    for mkl, processor in itertools.product((True, False), ("GenuineIntel", "AuthenticAMD")):
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda mkl=mkl: mkl)
        monkeypatch.setattr("platform.processor", lambda processor=processor: processor)
        with monkeypatch.context() as hidden:
            hidden.setattr("builtins.open", refuse)
            spec.loader.exec_module(elsewhere)
        assert elsewhere.BLAS_AVX512 == (single and mkl and processor == "GenuineIntel")
    assert not elsewhere.BLAS_AVX512
    wide, few, many = torch.empty(256, 10_000), torch.empty(13, 256), torch.empty(600, 256)
    assert elsewhere.is_quicker(few, wide) and elsewhere.is_quicker(many, wide) == single
    assert elsewhere.is_quicker(many, torch.empty(256, 400)) == single
    for threads in (1, 2):  # more than one share a product that is not wide better
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert elsewhere.is_quicker(torch.empty(13, 10_000), wide.t()) == (single or threads > 1)
    assert not elsewhere.is_quicker(few[:1], wide) and not elsewhere.is_quicker(few, wide[:, :1])
    assert elsewhere.Factor(torch.randn(400, 400), 20).onednn == single
    assert elsewhere.Factor(torch.randn(400, 1600), 20).onednn
    assert not elsewhere.Factor(torch.randn(400, 1600), 1).onednn and not elsewhere.Factor(torch.randn(9, 9), 20).onednn


@pytest.mark.parametrize("rounded", [False, True])
def test_where_the_blas_uses_avx512_too_less_goes_by_onednn(rounded, avx512, monkeypatch):
    """Where torch's products do not round; where they do, those of steps go by oneDNN as on other processors."""
    monkeypatch.setattr(products, "BLAS_AVX512", True)
    monkeypatch.setattr(products, "torch_rounds", lambda: True)
    monkeypatch.setattr(products, "onednn_rounds", lambda: True)
    torch.set_float32_matmul_precision("medium" if rounded else "highest")
    large, small = torch.randn(800, 700), torch.randn(300, 310)
    for rows in (20, 600):
        assert not products.is_quicker(torch.empty(rows, 800), large)
        assert not products.is_quicker(torch.empty(rows, 700), large.t())
    wide, few = torch.empty(256, 10_000), torch.empty(13, 256)
    assert products.is_quicker(few, wide) != rounded
    for a, b in ((torch.empty(300, 256), wide), (torch.empty(256, 13).t(), wide), (torch.empty(13, 10_000), wide.t())):
        assert not products.is_quicker(a, b)
    assert Factor(large.t(), 20).onednn
    for matrix in (large, small, small.t()):
        assert Factor(matrix, 20).onednn == rounded
    x = torch.randn(20, 700)
    factor = Factor(large.t(), 20)
    for _ in range(2):
        assert (factor.of(x) - x @ large.t()).norm() < 8e-3 * factor.of(x).norm()  # rounded, where this one does


def test_whose_the_processor_is(tmp_path, monkeypatch):
    for number, (vendor, said) in enumerate((("GenuineIntel", True), ("AuthenticAMD", False))):
        listed = tmp_path / str(number)
        listed.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: GenuineIntel's friend\n")
        assert products.intel(str(listed)) is said
        monkeypatch.setattr("platform.processor", lambda vendor=vendor: f"x86 Family 6, {vendor}")
        assert products.intel(str(tmp_path / "none")) is said


@pytest.mark.parametrize("precision, able", [("highest", True), ("high", True), ("medium", False), ("medium", True)])
def test_what_torch_rounds_and_multiplies_faster_is_left_to_it(precision, able, avx512, monkeypatch):
    monkeypatch.setattr(products, "torch_rounds", lambda: able)
    torch.set_float32_matmul_precision(precision)
    rounded = precision == "medium" and able
    few, matrix = torch.randn(20, 600), torch.randn(600, 700)
    assert products.is_quicker(few, matrix) != rounded
    for laid_out_rounds in (True, False):
        monkeypatch.setattr(products, "onednn_rounds", lambda: laid_out_rounds)  # noqa: B023
        assert Factor(matrix, 20).onednn == (laid_out_rounds or not rounded)
    into = torch.empty(20, 700)
    product_into(into, few, matrix, add=False)
    wanted = few.double() @ matrix.double()
    for found in (product(few, matrix), into, Factor(matrix, 20).of(few)):
        assert (found - wanted).norm() < 4e-3 * wanted.norm()  # rounded, where this processor does


def test_the_choice_does_not_hang_on_when_it_is_first_made(avx512):
    """By what products do here, asked once before torch is told to round and once after."""
    for probe in (products.torch_rounds, products.onednn_rounds):
        probe.cache_clear()
    few, matrix = torch.randn(20, 600), torch.randn(600, 700)
    with FakeTensorMode() as fake:
        assert Factor(fake.from_tensor(matrix), 20).onednn and products.is_quicker(few, matrix)
    torch.set_float32_matmul_precision("medium")
    with FakeTensorMode():
        rounds = products.rounds()
    assert rounds == products._rounds(torch.mm) == (not products.is_quicker(few, matrix))
    assert Factor(matrix, 20).onednn == (not rounds or products._rounds(products._product))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    "trains, rows, units, small",
    [
        (True, 20, 128, True),
        (True, 20, 254, False),
        (True, 1, 650, True),
        (False, 20, 254, True),
        (False, 64, 254, False),
    ],
)
def test_large_lstms_go_by_the_kernel_where_torch_rounds(trains, rows, units, small, rounded, avx512, monkeypatch):
    monkeypatch.setattr(lstm, "rounds", lambda: rounded)
    weight, carry = torch.empty(4 * units, units, requires_grad=True), [torch.empty(rows, units)] * 2
    with torch.set_grad_enabled(trains):
        assert lstm.torch_is_quicker(weight, *carry) == (small or not rounded)


@pytest.mark.skipif(not products.by_onednn(torch.ones(1)), reason="torch has no oneDNN here")
@pytest.mark.parametrize("multiply", [torch.mm, lambda a, b: products._product(a, b)])
def test_whether_products_round(multiply):
    """What the choice goes by is what a product does."""
    torch.set_float32_matmul_precision("highest")
    assert not products._rounds(multiply) and not products.rounds()
    torch.set_float32_matmul_precision("medium")
    a, b = torch.randn(70, 300), torch.randn(300, 90)
    exact, rounded = a.double() @ b.double(), (a.bfloat16().double() @ b.bfloat16().double())
    nearer = (multiply(a, b) - rounded).norm() < (multiply(a, b) - exact).norm()
    assert products._rounds(multiply) == bool(nearer)
    assert not products._rounds(lambda a, b: a.double() @ b.double())
    assert products._rounds(lambda a, b: a.bfloat16().float() @ b.bfloat16().float())


@pytest.mark.parametrize("tensor", [torch.randn(600, 600, dtype=torch.float64), torch.randn(3, 4)])
def test_other_types_and_small_ones_are_left_to_torch(tensor, avx512):
    factor = Factor(tensor, 4)
    assert not factor.onednn
    x = torch.randn(4, len(tensor), dtype=tensor.dtype)
    assert torch.equal(factor.of(x), x @ tensor) and torch.equal(product(x, tensor), x @ tensor)


@pytest.mark.parametrize("size", [5, 210])
@pytest.mark.parametrize("repeat", [False, True])
def test_projection(size, repeat, avx512):
    """Values and gradients of inputs, weight and bias."""
    index = torch.randint(0, 90, (12, 10))
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((90, size), (2 * size, size), (2 * size,)))
    found = project(Rows(x, index) if repeat else x[index], weight, bias)
    assert ("Project" in found.grad_fn.next_functions[0][0].name()) == (repeat or size > 5)
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

    assert not bilinear.by_input(35 * batch, 34, batch, tensor), "more than rows"


@pytest.mark.parametrize("batch, inputs, by_row", [(20, 64, True), (20, 63, False), (65, 64, False), (65, 65, True)])
def test_way_of_the_tensor_product_on_a_gpu(batch, inputs, by_row, monkeypatch):
    tensor = torch.empty(inputs, 8, 8, device="meta")
    assert not bilinear.by_row(35, batch, tensor, keep=True), "another accelerator"
    monkeypatch.setattr(bilinear, "on_gpu", lambda _: True)
    assert bilinear.by_row(35, batch, tensor, keep=True) == by_row
    assert not bilinear.by_row(1, batch, tensor, keep=True), "a step of generation"
    many = bilinear.KEPT // (4 * 8 * 8 * batch) + 1
    assert not bilinear.by_row(many, batch, tensor, keep=True) and bilinear.by_row(many, batch, tensor, False) == by_row
    with recurrence.recording(spare=False):
        assert bilinear.by_row(35, batch, tensor, keep=True) == by_row
    with recurrence.recording(spare=True):
        assert not bilinear.by_row(35, batch, tensor, keep=True)
        assert bilinear.by_row(35, batch, tensor, keep=False) == by_row
    assert bilinear.by_input(35 * batch, 35, batch, tensor) == by_row
    assert not bilinear.by_input(35 * batch + 1, 35, batch, tensor)
