"""``--recurrence triton`` against the naive twin: on a GPU where there is one, elsewhere by Triton's interpreter."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import test_fused_attentive
import torch
from test_fused import evaluate, make, same, variants

import rntn_plugins
from rntn_plugins import build_cell
from rntn_plugins.cells.base import Rows, map_carry
from rntn_plugins.layers.recurrent import Recurrent, choose_recurrence
from rntn_plugins.ops import bilinear, hornn, lstm, recurrence, triton_choice
from rntn_plugins.ops.triton_choice import by_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if (
    DEVICE == "cpu"
):  # before the first import of Triton, which other tests cause while they run, but none when collected
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
from rntn_plugins.ops import triton_cells, triton_kernels  # noqa: E402

CELLS = ["lstm", "lstm_peephole", "lstm_rntn", "gru", "gru_rntn", "elstm1", "elstm2", "r_gru", "r_lstm", "rntn",
         "r_rntn", "m_rnn", "elman", "srn"]  # fmt: skip
SHAPES = [  # steps, batch, I, H, lengths, what the loss depends on, distinct inputs
    (3, 2, 2, 5, [2, 0], "both", 0),
    (2, 2, 3, 3, None, "outputs", 3),
    (2, 1, 2, 1, None, "carry", 0),
]


class Moving(Recurrent):
    """Computes on DEVICE what it is given and asked for on the CPU."""

    def forward(self, x, tokens=None, lengths=None, carry=None):
        x = Rows(x.distinct.to(DEVICE), x.index.to(DEVICE), x.fixed) if isinstance(x, Rows) else x.to(DEVICE)
        tokens, lengths = (None if each is None else each.to(DEVICE) for each in (tokens, lengths))
        carry = None if carry is None else map_carry(lambda part: part.to(DEVICE), carry)
        outputs, after = super().forward(x, tokens, lengths, carry)
        return outputs.cpu(), map_carry(lambda part: part.cpu(), after)


#: cells whose activations are left to the kernels of others
SAME_ACTIVATIONS = ("gru_rntn", "r_rntn", "m_rnn", "srn")


def variants_of(name) -> list:
    """The options that the steps depend on (how gradients of stacks are stored is no matter of theirs)."""
    found = [options for options in variants(name) if options.get("gradients") != "row-sparse"]
    if name in SAME_ACTIVATIONS:
        found = [options for options in found if options.get("activation") == found[0].get("activation")]
    return found


def layer_of(name, input_size, hidden, options=None, dtype=torch.float64) -> Recurrent:
    options = next(variants(name)) if options is None else options
    return Moving(make(name, options, input_size, hidden).cell).to(DEVICE, dtype)


def both(layer, steps, batch, lengths, use, distinct=0, hows=("triton", "naive")):
    lengths = None if lengths is None else torch.tensor(lengths)
    return [evaluate(layer, how, steps, batch, lengths, use, distinct) for how in hows]


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """The kernels that recurrences by Triton took."""
    found, twin = [], triton_cells.twin
    monkeypatch.setattr(triton_cells, "twin", lambda *given: found.append(twin(*given)) or found[-1])
    return found


def test_the_interpreter_is_there():
    assert triton_kernels.INTERPRETED == (DEVICE == "cpu"), "something imported triton before TRITON_INTERPRET was set"


@pytest.mark.parametrize("name", CELLS)
def test_same_function_as_the_naive_twin(name, taken):
    """The first of a cell's variants in all shapes, every other one in one of the smaller ones."""
    shapes = itertools.cycle(SHAPES[1:])
    for number, options in enumerate(variants_of(name)):
        for steps, batch, input_size, hidden, *given in SHAPES if number == 0 else [next(shapes)]:
            same(*both(layer_of(name, input_size, hidden, options), steps, batch, *given))
    assert taken and all(kernel in triton_cells.TWINS.values() for kernel in taken)


@pytest.mark.skipif(DEVICE == "cpu", reason="on CPUs test_fused.py compares them")
@pytest.mark.parametrize("name", [*CELLS, "hornn", "hornn_fofe", "hornn_gated", "hornn_max"])
def test_fused_on_a_gpu(name):
    """All of a cell's variants, in float64 and, the first of them, in float32."""
    shapes = itertools.cycle(SHAPES)
    for number, options in enumerate(variants(name)):
        for steps, batch, input_size, hidden, *given in SHAPES if number == 0 else [next(shapes)]:
            layer = layer_of(name, input_size, hidden, options)
            same(*both(layer, steps, batch, *given, hows=("fused", "naive")))
    single = layer_of(name, 3, 5, dtype=torch.float32)
    same(*both(single, 3, 2, [3, 1], "both", hows=("fused", "naive")), tolerance=1e-4)


@pytest.mark.parametrize("name", ["lstm_peephole", "elstm1", "gru", "rntn", "elman"])
def test_more_columns_than_a_block_has(name, monkeypatch):
    for size, value in (("BLOCK", 4), ("LINES", 4), ("ALONG", 2), ("DOWN", 2), ("ACROSS", 4),
                        ("ROWS", 2), ("COLUMNS", 4), ("DEEP", 2)):  # fmt: skip
        monkeypatch.setattr(triton_kernels, size, value)
    options = variants_of(name)[-1]
    record_every_thread(monkeypatch)
    same(*both(layer_of(name, 2, 5, options), 2, 2, None, "both"))


@pytest.fixture
def in_recording():
    with recurrence.recording(spare=False):
        yield


def record_every_thread(monkeypatch):
    """As within recordings, and autograd's own thread for a GPU, which none reaches, too."""
    monkeypatch.setattr(triton_cells, "is_recorded", lambda: True)


@pytest.mark.parametrize("name, each", [("lstm", 2), ("lstm_peephole", 6), ("gru", 4), ("elstm1", 2), ("m_rnn", 4),
                                        ("elman", 2), ("srn", 2), ("r_gru", 0)])  # fmt: skip
def test_twins_take_products_of_few_rows_in_recordings(name, each, monkeypatch):
    """Forth and back; elsewhere Python takes longer to start one than cuBLAS's."""
    taken, launcher = [], triton_kernels.few_rows_times
    monkeypatch.setattr(triton_kernels, "few_rows_times", lambda *given: taken.append(1) or launcher(*given))
    layer = layer_of(name, 2, 3)
    same(*both(layer, 4, 2, [4, 3], "both"))
    assert not taken
    record_every_thread(monkeypatch)
    same(*both(layer, 4, 2, [4, 3], "both"))
    assert len(taken) == 4 * each


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("rows, depth, size", [(1, 1, 1), (9, 5, 17), (16, 131, 6), (20, 16, 32)])
def test_products_of_few_rows(rows, depth, size, dtype, tolerance, turned, in_recording):
    x = torch.randn(rows, depth + 2, dtype=dtype, device=DEVICE)[:, 1:-1]
    matrix = torch.randn(size, depth, dtype=dtype, device=DEVICE).t()
    matrix = matrix if turned else matrix.contiguous()
    other, out = torch.randn(2, rows, size + 3, dtype=dtype, device=DEVICE)[..., 2:-1].unbind(0)
    factor = triton_cells.FewRows(matrix, rows)
    assert factor.few and not triton_cells.FewRows(matrix, rows, 0.5).few
    expected = x @ matrix
    torch.testing.assert_close(factor.times(x, out), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    expected = expected + other
    assert factor.times_plus(x, other, other) is other
    torch.testing.assert_close(other, expected, rtol=tolerance, atol=tolerance)


def test_other_products_are_left_to_torch(monkeypatch, in_recording):
    def few(*shape, rows=20, scale=1.0, dtype=torch.float32):
        return triton_cells.FewRows(torch.empty(*shape, dtype=dtype, device=DEVICE), rows, scale).few

    assert few(2**10, 2**10) and few(2, 3, rows=16) and few(2, 3, rows=16, dtype=torch.float64)
    assert not few(2**10, 2**10 + 16) and not few(16, 16, rows=21) and not few(16, 16, scale=0.5)
    assert not any(few(*shape, rows=17) for shape in ((16, 15), (15, 16)))
    assert not few(16, 16, dtype=torch.float16) and not triton_cells.FewRows(torch.empty(4, 6)[::2, ::2], 1).few
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    monkeypatch.setattr(torch.backends.cuda, "matmul", None)
    assert not few(16, 16) and few(16, 16, dtype=torch.float64)


def test_every_kernel_has_a_twin_but_the_higher_order_ones_and_that_with_attention():
    bare = {
        kernel
        for kernel in recurrence.Kernel.__subclasses__() + [sub for kernel in recurrence.Kernel.__subclasses__()
                                                            for sub in kernel.__subclasses__()]
        if kernel.__module__.startswith("rntn_plugins.ops.") and ".triton_" not in kernel.__module__
    }  # fmt: skip
    without = {kernel.__name__ for kernel in bare - set(triton_cells.TWINS)}
    assert without == {"HORNN", "MaxHORNN", "GatedHORNN", "Attentive"}
    layer = layer_of("hornn", 2, 3)
    same(*both(layer, 3, 2, None, "both"))  # by its fused kernel


@pytest.mark.parametrize("name", ["lstm", "lstm_peephole", "gru", "elstm1", "elman", "srn"])
def test_with_attention_the_network_has_its_twin(name, taken):
    shape = test_fused_attentive.SHAPES[3]
    network = test_fused_attentive.make(name, next(variants(name)), shape).to(DEVICE)
    same(*(test_fused_attentive.evaluate(network, how, shape) for how in ("triton", "naive")))
    assert taken[0] in triton_cells.TWINS.values()


def test_float32_and_no_lstm_of_torch(monkeypatch):
    monkeypatch.setattr(lstm, "by_torch", None)
    for name in ("lstm", "gru", "rntn"):
        same(*both(layer_of(name, 3, 5, dtype=torch.float32), 3, 2, None, "both"), tolerance=1e-5)


@pytest.mark.parametrize("name, dtype, tolerance", [("lstm", torch.float16, 0.02), ("r_gru", torch.bfloat16, 0.1)])
def test_half_precision(name, dtype, tolerance):
    """Computed in float32, rounded when it is stored."""
    layer = layer_of(name, 3, 5, dtype=dtype)
    same(*both(layer, 2, 2, None, "both", hows=("triton", "fused")), tolerance)


def test_autocast():
    layer, x = layer_of("lstm", 2, 3, dtype=torch.float32), torch.randn(3, 2, 2)
    layer.recurrence = "triton"
    exact = layer(x)[0]
    with torch.autocast(DEVICE, torch.bfloat16):
        outputs = layer(x)[0]
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs, exact, rtol=0.05, atol=0.05)  # the projection has the 8 bits of bfloat16


@pytest.mark.parametrize("way", ["ByInput", "ByRow", "ByState"])
@pytest.mark.parametrize("name", ["gru_rntn", "lstm_rntn"])
def test_ways_of_the_tensor_product(name, way, monkeypatch):
    """By row is taken on a GPU alone."""
    taken = []
    twin = getattr(triton_cells if way != "ByState" else bilinear, way)
    monkeypatch.setattr(twin, "back", lambda *given, back=twin.back: taken.append(way) or back(*given))
    monkeypatch.setattr(bilinear, "on_gpu", lambda _: True)
    monkeypatch.setattr(bilinear, "AS_MANY", 1)
    monkeypatch.setattr(bilinear, "FEW", 1 if way == "ByInput" else 100)
    monkeypatch.setattr(bilinear, "KEPT", 0 if way == "ByState" else bilinear.KEPT)
    for steps, batch, *lengths in (4, 2), (5, 3, [5, 0, 2]):
        layer = layer_of(name, 5, 3)
        del taken[:]
        same(*both(layer, steps, batch, *lengths or [None], "both", distinct=3 if way == "ByInput" else 0))
        assert taken == [way] * steps


@pytest.mark.parametrize("name", ["lstm", "gru_rntn", "rntn", "srn"])
def test_without_gradients(name):
    layer, lengths = layer_of(name, 2, 3).eval(), torch.tensor([3, 1])
    x, tokens = torch.randn(3, 2, 2, dtype=torch.float64), torch.randint(0, 4, (3, 2))
    table = Rows(torch.randn(4, 2, dtype=torch.float64), tokens, fixed=True)  # some cells keep what it gives
    for inputs, steps in ((x, slice(None)), (x[:, :0], slice(None)), (table, slice(None)), (table, slice(1))):
        if steps == slice(1):
            inputs, tokens, lengths = table._replace(index=table.index[:1]), tokens[:1], None
        batch = inputs.shape[1]
        found = {}
        for layer.recurrence in ("triton", "naive"):
            with torch.no_grad():
                given = None if lengths is None or batch == 0 else lengths
                outputs, carry = layer(inputs, tokens[:, :batch], given, layer.cell.initial_carry(batch))
            found[layer.recurrence] = [outputs, *carry]
        same(*found.values())


def test_odd_strides():
    """Inputs, gradients and states whose columns are not next to each other."""
    layer = layer_of("gru", 3, 3)
    layer.cell.register_parameter("weight_ih", torch.nn.Parameter(layer.cell.weight_ih.detach().t().clone().t()))
    found = {}
    for layer.recurrence in ("triton", "naive"):
        x = torch.arange(18, dtype=torch.float64).view(3, 2, 3).div(9).transpose(0, 2)[:, :, :3].requires_grad_()
        h = torch.ones(1, 1, dtype=torch.float64).expand(2, 3).requires_grad_()
        outputs, (after,) = layer(x, carry=type(layer.cell.initial_carry(2))(h))
        gradients = torch.autograd.grad(outputs.sum() + (after.t() @ after).sum(), [x, h, *layer.parameters()])
        found[layer.recurrence] = [outputs, after, *gradients]
    same(*found.values())


COMPILE = """
import runpy, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

VALUES = {
    "BLOCK": 256, "LINES": 16, "ALONG": 128, "DOWN": 32, "ACROSS": 64, "PART": "all", "ACTIVATION": "tanh",
    "INPUT": 0, "FORGET": 1, "CELL": 2, "OUTPUT": 3, "ROWS": 8, "COLUMNS": 8, "DEEP": 128,
}
for name, kernel in sorted(runpy.run_path(sys.argv[1]).items()):
    names = getattr(kernel, "arg_names", [])
    if "size" in names:
        constants = {each: VALUES.get(each, True) for each in names if each.isupper()}
        numbers = ("size", "rows", "depth", *(each for each in names if each.endswith(("_row", "_stride"))))
        types = {each: "i32" if each in numbers else "*fp32" for each in names}
        types.update({each: "constexpr" for each in constants}, **({"index": "*i64"} if "index" in names else {}))
        source = ASTSource(kernel, types, {(names.index(each),): value for each, value in constants.items()})
        print(name, len(triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]))
"""


def test_the_compiler_takes_what_the_interpreter_takes(tmp_path):
    """It needs no GPU to compile for one."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, triton_kernels.__file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 13


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_it_is_asked_for_within_its_forward_pass_alone(monkeypatch):
    layer, seen = layer_of("gru", 2, 3), []
    layer.recurrence = "triton"
    monkeypatch.setattr(triton_cells, "twin", lambda *_: seen.append(recurrence.others_are_taken()) or 1 / 0)

    def elsewhere():
        seen.append(recurrence.others_are_taken())

    with pytest.raises(ZeroDivisionError):
        layer(torch.zeros(2, 1, 2, dtype=torch.float64))
    elsewhere()
    with by_triton():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == [True, False, False]


def one_line(error) -> str:
    (line,) = str(error.value).splitlines()
    return line


def test_errors(monkeypatch):
    gru, clockwork = (Recurrent(build_cell(name, 8, 8)) for name in ("gru", "clockwork"))
    assert choose_recurrence(gru, "triton") == {"GRU": "triton"} and gru.recurrence == "triton"
    with pytest.raises(ValueError) as error:
        choose_recurrence(clockwork, "triton")
    expected = "--recurrence triton: the cell Clockwork has no fused recurrence; take auto or naive"
    assert one_line(error) == expected

    monkeypatch.setattr(triton_kernels, "INTERPRETED", False)
    for name in ("gru", "hornn"):
        layer = Recurrent(build_cell(name, 8, 8))
        choose_recurrence(layer, "triton")
        layer(torch.zeros(1, 2, 8))  # single steps are naive
        with pytest.raises(ValueError) as error:
            layer(torch.zeros(2, 2, 8))
        assert one_line(error) == "--recurrence triton needs a CUDA device (or TRITON_INTERPRET=1, to test)"

    monkeypatch.setitem(sys.modules, "triton", None)
    for ask in (lambda: choose_recurrence(gru, "triton"), lambda: gru(torch.zeros(2, 2, 8))):
        with pytest.raises(ValueError) as error:
            ask()
        assert one_line(error) == "--recurrence triton needs the package triton: pip install triton"
    for how in ("auto", "fused"):
        choose_recurrence(gru, how)
        gru(torch.zeros(2, 2, 8))


@pytest.fixture
def untried():
    triton_choice.works_on.cache_clear()
    yield
    triton_choice.works_on.cache_clear()


def test_twins_for_graphs(untried, monkeypatch):
    device = torch.device(DEVICE)
    assert triton_choice.twin_on(lstm.LSTM, device) is (lstm.LSTM if DEVICE == "cpu" else triton_cells.LSTM)
    with monkeypatch.context() as patch:
        patch.setattr(triton_choice, "works_on", lambda _: True)
        assert triton_choice.twin_on(lstm.LSTM, device) is triton_cells.LSTM
        assert triton_choice.twin_on(hornn.MaxHORNN, device) is hornn.MaxHORNN


def test_graphs_go_without_it_where_it_fails(untried, monkeypatch, caplog):
    """A GPU is tried once, and not by the interpreter; whatever fails there, and wrong results, are warned of."""
    tried = []
    pretended = type("GPU", (), {"type": "cuda", "__str__": lambda _: "cuda:0"})()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not triton_choice.works_on(torch.device("cpu"))
    if DEVICE == "cpu":
        assert not triton_choice.works_on(pretended) and not caplog.records  # TRITON_INTERPRET is set
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    linspace = torch.linspace
    monkeypatch.setattr(torch, "linspace", lambda *given, device: linspace(*given, device=DEVICE))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())

    def outcome(activation) -> tuple:
        triton_choice.works_on.cache_clear()
        caplog.clear()
        monkeypatch.setattr(triton_kernels, "activation", activation)
        worked = [triton_choice.works_on(pretended) for _ in range(2)]
        assert worked[0] == worked[1]
        return worked[0], [record.getMessage() for record in caplog.records]

    def fails(*_):
        tried.append(1)
        raise RuntimeError("no C compiler\nat all")

    right = triton_kernels.activation
    assert outcome(right) == (True, [])
    said = "no Triton on cuda:0, CUDA graphs go without: RuntimeError: no C compiler"
    assert outcome(fails) == (False, [said]) and len(tried) == 1
    worked, (said,) = outcome(lambda x, sums, out, name: out.fill_(2))
    assert not worked and said.startswith("Triton computes wrongly on cuda:0, CUDA graphs go without: off by ")
    worked, (said,) = outcome(lambda x, sums, out, name: out.fill_(float("nan")))
    assert not worked and said.endswith("off by nan")


def test_triton_is_imported_when_it_is_asked_for():
    """By :mod:`rntn_plugins.ops.triton_choice`, in functions."""
    package = Path(rntn_plugins.__file__).parent
    allowed = ("rntn_plugins.ops.triton_choice import", "by_triton", "check_triton", "twin_on")
    for file in package.rglob("*.py"):
        if file.name not in ("triton_cells.py", "triton_kernels.py"):
            for line in file.read_text(encoding="utf-8").splitlines():
                for name in allowed:
                    line = line.replace(name, "")
                assert not line.startswith(("import", "from")) or "triton" not in line, file
