"""Output layer and cross-entropy in one, and the criterion that uses it, against what they replace."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from stub_task import StubTask, build
from torch.utils._python_dispatch import TorchDispatchMode

from rntn_plugins.cells.base import carry_tensors
from rntn_plugins.ops import linear_cross_entropy as module
from rntn_plugins.ops.linear_cross_entropy import linear_cross_entropy, rows_of_chunk

PAD = 1


def inputs(count, symbols, size, dtype=torch.float64, seed=0, never=(), ignored=0.3):
    """Features, weight, bias (-inf for *never*) and targets, some of them to be ignored; more gradients than one."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, size, generator=random, dtype=dtype)
    weight = torch.randn(symbols, size, generator=random, dtype=dtype)
    bias = torch.randn(symbols, generator=random, dtype=dtype)
    bias[list(never)] = float("-inf")
    likely = torch.tensor([symbol for symbol in range(symbols) if symbol not in never])
    target = likely[torch.randint(len(likely), (count,), generator=random)]
    target[torch.rand(count, generator=random) < ignored] = PAD
    return [tensor.requires_grad_() for tensor in (features, weight, bias)], target


def naive(features, weight, bias, target, ignore_index):
    log_probs = F.log_softmax(F.linear(features, weight, bias), dim=-1)
    return F.nll_loss(log_probs, target, ignore_index=ignore_index, reduction="sum")


def gradients(loss, tensors):
    return torch.autograd.grad(loss, tensors)


def same(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


# ---- the function ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["cpu", "gpu"])
def way(request, monkeypatch):
    """Both ways to leave rows out: on a CPU and, as if this were one, on a GPU."""
    monkeypatch.setattr(module, "on_gpu", lambda _: not request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("scale", [1.0, -0.7])
@pytest.mark.parametrize("chunk", [1, 4, 5, 100, None])
@pytest.mark.parametrize("count, symbols, size", [(13, 7, 3), (20, 2, 1), (1, 9, 4), (9, 31, 2)])
def test_loss_and_gradients(count, symbols, size, chunk, scale):
    tensors, target = inputs(count, symbols, size, seed=count)
    loss, expected = linear_cross_entropy(*tensors, target, PAD, chunk) * scale, naive(*tensors, target, PAD) * scale
    assert loss.shape == ()
    same(loss, expected)
    same(gradients(loss, tensors), gradients(expected, tensors))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("ignore_index", [-100, 7, 10**6])
def test_what_is_ignored_need_be_no_symbol_and_no_number(ignore_index):
    """Its features may be anything."""
    (features, weight, bias), target = inputs(13, 7, 3)
    ignored = target == PAD
    target[ignored] = ignore_index
    expected = naive(features, weight, bias, target, ignore_index)
    wanted = gradients(expected, (features, weight, bias))
    changed = features.detach().clone()
    changed[ignored] = torch.tensor([math.nan, math.inf, -math.inf], dtype=changed.dtype)
    loss = linear_cross_entropy(changed.requires_grad_(), weight, bias, target, ignore_index, 4)
    same(loss, expected)
    same(gradients(loss, (changed, weight, bias)), wanted)


def test_one_symbol():
    tensors, target = inputs(5, 1, 3, ignored=0)
    loss = linear_cross_entropy(*tensors, target, PAD, 2)
    assert loss == 0 and not any(gradient.any() for gradient in gradients(loss, tensors))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("count", [0, 6])
def test_nothing_to_predict(count):
    tensors, target = inputs(count, 7, 3, ignored=1.1)
    loss = linear_cross_entropy(*tensors, target, PAD)
    assert loss == 0
    for tensor, gradient in zip(tensors, gradients(loss, tensors)):
        assert gradient.shape == tensor.shape and not gradient.any()


@pytest.mark.usefixtures("way")
def test_symbols_without_probability():
    never = [0, PAD, 8]
    tensors, target = inputs(12, 9, 3, never=never)
    loss = linear_cross_entropy(*tensors, target, PAD, 5)
    same(loss, naive(*tensors, target, PAD))
    d_features, d_weight, d_bias = gradients(loss, tensors)
    assert not d_weight[never].any() and not d_bias[never].any()
    same((d_features, d_weight, d_bias), gradients(naive(*tensors, target, PAD), tensors))
    assert d_features[target != PAD].any() and not d_features[target == PAD].any()
    target[3] = 8
    assert linear_cross_entropy(*tensors, target, PAD) == float("inf")


def test_large_scores_overflow_nothing():
    tensors, target = inputs(12, 9, 3, dtype=torch.float32)
    for tensor in tensors:
        tensor.data.mul_(300)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    loss, expected = linear_cross_entropy(*tensors, target, PAD, 5), naive(*exact, target, PAD)
    assert loss > 1e4
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    for one, other in zip(gradients(loss, tensors), gradients(expected, exact)):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-2)


def test_bias_with_a_constant_mask_and_tied_weight():
    """The gradients reach the parameter behind the mask, and an embedding that is the weight as well."""
    (weight, bias), mask = inputs(0, 9, 3)[0][1:], torch.zeros(9, dtype=torch.float64)
    mask[[0, 4]] = float("-inf")
    read, target = torch.tensor([3, 5, 3, 0, 8]), torch.tensor([5, 3, PAD, 8, 2])
    losses = [
        function(weight[read].tanh(), weight, bias + mask, target, PAD) for function in (linear_cross_entropy, naive)
    ]
    same(*losses)
    same(*(gradients(loss, (weight, bias)) for loss in losses))


def test_several_backward_passes():
    """Also where nothing but views lies between an input and the function, and where gradients are changed in place."""
    (features, weight, bias), target = inputs(12, 7, 3)
    expected = gradients(naive(features, weight, bias, target, PAD), (features, weight, bias))
    loss = linear_cross_entropy(features.t().t(), weight.view(7, 3), bias, target, PAD, 5)
    for number, last in ((1, False), (2, False), (3, True)):
        loss.backward(retain_graph=not last)
        same([tensor.grad for tensor in (features, weight, bias)], [gradient * number for gradient in expected])
    loss = linear_cross_entropy(features.t().t(), weight.view(7, 3), bias, target, PAD, 5)
    for last in (False, True):
        for tensor in (features, weight, bias):
            tensor.grad = None
        loss.backward(retain_graph=not last)
        same([tensor.grad for tensor in (features, weight, bias)], expected)
        for tensor in (features, weight, bias):
            tensor.grad.zero_()


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_inputs(frozen):
    tensors, target = inputs(12, 7, 3)
    tensors[frozen].requires_grad_(False)
    learning = [tensor for tensor in tensors if tensor.requires_grad]
    loss = linear_cross_entropy(*tensors, target, PAD, 5)
    same(gradients(loss, learning), gradients(naive(*tensors, target, PAD), learning))


def test_no_second_derivative():
    tensors, target = inputs(4, 7, 3)
    loss = linear_cross_entropy(*tensors, target, PAD)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(loss, tensors[:1], create_graph=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_compute_in_float32(dtype):
    tensors, target = inputs(12, 7, 3, dtype=torch.float32)
    expected = linear_cross_entropy(*tensors, target, PAD)
    with torch.autocast("cpu", dtype):
        loss = linear_cross_entropy(*tensors, target, PAD)
    same(loss, expected, 0)
    same(gradients(loss, tensors), gradients(expected, tensors), 0)
    halves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    loss, expected = (function(*halves, target, PAD) for function in (linear_cross_entropy, naive))
    assert loss.dtype == torch.float32 and [gradient.dtype for gradient in gradients(loss, halves)] == [dtype] * 3
    same(loss, expected.float(), 0.02)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


def test_only_a_chunk_of_the_logits_at_a_time():
    tensors, target = inputs(40, 50, 3)
    kept = []
    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        loss = linear_cross_entropy(*tensors, target, PAD, 5)
        assert {tuple(tensor.shape) for tensor in kept} == {(40, 3), (50, 3), (50,)}
        loss.backward()
    assert largest.numbers == 5 * 50
    with Largest() as largest:
        naive(*tensors, target, PAD).backward()
    assert largest.numbers == 40 * 50


def test_nothing_is_kept_or_computed_without_gradients():
    tensors, target = inputs(40, 50, 30)
    expected = linear_cross_entropy(*tensors, target, PAD, 5)
    with torch.no_grad(), Largest() as largest:
        loss = linear_cross_entropy(*tensors, target, PAD, 5)
    assert torch.equal(loss, expected) and not loss.requires_grad
    assert largest.numbers <= 50 * 30, "the weight itself, transposed"
    plain = [tensor.detach() for tensor in tensors]
    assert torch.equal(linear_cross_entropy(*plain, target, PAD, 5), expected)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700, 2240, 10**6])
@pytest.mark.parametrize("symbols", [1, 50, 10_000, 44_000])
def test_chunks_are_few_and_of_one_size(count, symbols):
    rows = rows_of_chunk(count, symbols)
    assert (rows > 0) == (count > 0) and rows <= count
    if count:
        chunks = -(-count // rows)
        assert chunks * rows - count < chunks
        assert rows == count or rows * symbols > 2**20


# ---- the criterion ---------------------------------------------------------------------------------------------------

STUB = StubTask([f"w{i}" for i in range(9)], fillers=3)


def make_task():
    from rntn_plugins.tasks.rntn_language_modeling import RNTNLanguageModelingConfig, RNTNLanguageModelingTask

    return RNTNLanguageModelingTask(RNTNLanguageModelingConfig(data="nowhere"), STUB.source_dictionary)


def make_model(name="gru_lm", **settings):
    torch.manual_seed(5)
    return build(name, STUB, embed_dim=6, hidden_size=6, dropout_output=0.3, **settings)


def blocks():
    """Two blocks of three streams, the second one shorter in places."""
    line = torch.randint(4, 13, (3, 9), generator=torch.Generator().manual_seed(6))
    for first, start, end in ((True, 0, 5), (False, 5, 8)):
        tokens, target = line[:, start:end].clone(), line[:, start + 1 : end + 1].clone()
        lengths = torch.full((3,), end - start)
        if not first:
            tokens[2, 1:], target[2, 1:], lengths[2] = PAD, PAD, 1
        yield {
            "net_input": {"src_tokens": tokens, "src_lengths": lengths},
            "target": target,
            "ntokens": int(target.ne(PAD).sum()),
            "first": first,
        }


def criteria(task, sentence_avg=False):
    """fairseq's ``cross_entropy``, and what the task makes of it."""
    from fairseq.criterions.cross_entropy import CrossEntropyCriterion

    config = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": sentence_avg})
    return CrossEntropyCriterion(task, sentence_avg), task.build_criterion(config)


OPTIMIZER = SimpleNamespace(backward=lambda loss: loss.backward())


def train(task, model, criterion):
    """Results of both blocks, and the gradients of their sum."""
    model.zero_grad()
    torch.manual_seed(7)
    results = [task.train_step(sample, model, criterion, OPTIMIZER, 0) for sample in blocks()]
    return results, [parameter.grad for parameter in model.parameters()]


def compare(one, other):
    (results, grads), (expected_results, expected_grads) = one, other
    for (loss, size, log), (expected, expected_size, expected_log) in zip(results, expected_results):
        torch.testing.assert_close(loss, expected, atol=0, rtol=1e-6, check_dtype=False)
        assert size == expected_size and list(log) == list(expected_log)
        for name, value in log.items():
            assert type(value) is type(expected_log[name]) and abs(value - expected_log[name]) < 1e-5
    for gradient, expected in zip(grads, expected_grads, strict=True):
        assert expected is not None
        same(gradient, expected, 2e-6)


@pytest.mark.parametrize("sentence_avg", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_the_task_trains_and_validates_as_with_cross_entropy(share, sentence_avg):
    from rntn_plugins.criterions.rntn_cross_entropy import RNTNCrossEntropy

    task, model = make_task(), make_model(share_decoder_input_output_embed=share)
    theirs, ours = criteria(task, sentence_avg)
    assert type(ours) is RNTNCrossEntropy and ours.sentence_avg == sentence_avg
    calls = []
    model.register_forward_hook(lambda module, args, kwargs, output: calls.append(output[0].shape), with_kwargs=True)
    found, expected = train(task, model, ours), train(task, model, theirs)
    compare(found, expected)
    assert found[0][1][1] == (3 if sentence_avg else 7)
    assert [len(shape) for shape in calls] == [0, 0, 3, 3], "ours asks for the loss, fairseq's for logits"
    model.eval()
    results = [[task.valid_step(sample, model, criterion) for sample in blocks()] for criterion in (ours, theirs)]
    compare((results[0], []), (results[1], []))


def test_validation_leaves_the_training_state_alone():
    task, model = make_task(), make_model()
    criterion = criteria(task)[1]
    train(task, model, criterion)
    before = [tensor.clone() for tensor in carry_tensors(task.training_slot.carry)]
    model.eval()
    for sample in blocks():
        sample["net_input"]["src_tokens"] = sample["net_input"]["src_tokens"].flip(0)
        task.valid_step(sample, model, criterion)
    assert before and all(map(torch.equal, carry_tensors(task.training_slot.carry), before))
    after = carry_tensors(task.evaluation_slot.carry)
    assert len(after) == len(before) and not any(map(torch.equal, after, before))


def test_the_log_is_that_of_cross_entropy():
    from fairseq.logging import metrics

    task, model = make_task(), make_model()
    logged = []
    for criterion in criteria(task, sentence_avg=True):
        logs = [log for _, _, log in train(task, model, criterion)[0]]
        with metrics.aggregate(new_root=True) as aggregator:
            task.reduce_metrics(logs, criterion)
        logged.append(aggregator.get_smoothed_values())
    assert logged[0].keys() == logged[1].keys() >= {"loss", "ppl"}
    for name, value in logged[0].items():
        assert abs(float(value) - float(logged[1][name])) < 2e-3, name


def test_what_schedules_compare_has_five_digits():
    """A schedule is handed the logged loss: with three digits an epoch 0.05 % better looks as good as the last."""
    from fairseq.logging import metrics

    task, seen = make_task(), []
    criterion, _ = criteria(task)
    for bits in (6.75049, 6.74951):
        log = {"loss": torch.tensor(100 * bits * math.log(2)), "ntokens": 100, "nsentences": 5, "sample_size": 5}
        with metrics.aggregate(new_root=True) as aggregator:
            task.reduce_metrics([log], criterion)
        seen.append(float(aggregator.get_smoothed_values()["loss"]))
    assert [round(abs(value - bits), 5) for value, bits in zip(seen, (6.75049, 6.74951))] == [0, 0]


def test_losses_of_single_tokens_are_those_of_cross_entropy():
    task, model = make_task(), make_model()
    (sample, _), (theirs, ours) = blocks(), criteria(task)
    found, expected = (criterion(model, without_first(sample), reduce=False)[0] for criterion in (ours, theirs))
    assert found.shape == (15,) and torch.equal(found, expected)


def without_first(sample):
    return {name: value for name, value in sample.items() if name != "first"}


def test_checkpoints_of_either_criterion_go_on_with_the_other():
    theirs, ours = criteria(make_task())
    assert type(ours).__name__ == type(theirs).__name__, "what fairseq's trainer compares"


def fairseq_lstm():
    from fairseq.models.lstm_lm import LSTMLanguageModel, base_architecture

    args = SimpleNamespace(dropout=0.0, decoder_embed_dim=6, decoder_hidden_size=6, decoder_out_embed_dim=6)
    args.max_target_positions = args.tokens_per_sample = 9
    args.criterion = "cross_entropy"
    base_architecture(args)
    return LSTMLanguageModel.build_model(args, make_task()).eval()


def own_probabilities():
    """A model that scores symbols in a way of its own."""
    model = make_model()

    class Doubled(type(model.decoder)):
        def output_layer(self, features, **kwargs):
            return 2 * super().output_layer(features)

    model.decoder.__class__ = Doubled
    return model


@pytest.mark.parametrize("make", [fairseq_lstm, lambda: make_model(adaptive_softmax_cutoff="5,14"), own_probabilities])
def test_other_models_get_cross_entropy_itself(make):
    model, (theirs, ours) = make(), criteria(make_task())
    with torch.no_grad():
        for sample in blocks():
            sample = without_first(sample)
            found, expected = ours(model, sample), theirs(model, sample)
            assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


@pytest.fixture
def one_worker():
    """A process group of this process alone."""
    group = torch.distributed
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    yield group.group.WORLD
    group.destroy_process_group()


@pytest.mark.parametrize("wrapper", ["legacy_ddp", "pytorch_ddp"])
def test_data_parallel_workers(wrapper, one_worker):
    """The loss comes from the wrapper's forward pass; every parameter has a gradient, even with nothing to predict."""
    from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper

    task, model = make_task(), make_model()
    theirs, ours = criteria(task)
    expected = train(task, model, theirs)
    model.zero_grad()
    if wrapper == "legacy_ddp":
        wrapped = LegacyDistributedDataParallel(model, one_worker)
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    calls = []
    wrapped.register_forward_hook(lambda module, args, output: calls.append(output[0].shape))
    proxy = ModuleProxyWrapper(wrapped)
    compare(train(task, proxy, ours), expected)
    assert calls == [(), ()]
    sample = next(blocks())
    sample["target"].fill_(PAD)
    model.zero_grad()
    loss, _, _ = task.train_step(sample, proxy, ours, OPTIMIZER, 0, ignore_grad=True)
    assert loss == 0 and not any(parameter.grad.any() for parameter in model.parameters())
