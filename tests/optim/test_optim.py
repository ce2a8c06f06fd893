"""The schedule and the optimisers that the papers need beyond fairseq's own, and steps in one pass."""

import math
from argparse import ArgumentParser

import pytest
import torch
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.utils import eval_str_list
from small_trainings import train, trained

from rntn_plugins import build_cell, cell_names
from rntn_plugins.cells.base import Vocabulary
from rntn_plugins.optim.adagrad_tf import AdagradTF, AdagradTFConfig
from rntn_plugins.optim.max_norm import MaxNormSGD, MaxNormSGDConfig
from rntn_plugins.optim.one_pass import fits
from rntn_plugins.optim.validation_ratio import ValidationRatioConfig, ValidationRatioSchedule


def schedule(**settings):
    optimizer = MaxNormSGD(MaxNormSGDConfig(lr=[1.0]), [torch.zeros(1)])
    config = ValidationRatioConfig(lr=[1.0], best_checkpoint_metric="loss")
    for name, value in settings.items():
        setattr(config, name, value)
    return ValidationRatioSchedule(config, optimizer), optimizer


def test_halving_below_the_ratio():
    """S18: previous/current < 1.003. Bits 7.0 -> 6.99 is a ratio of 2^0.01 = 1.007, 6.99 -> 6.986 of 1.0028."""
    rule, optimizer = schedule()
    rates = [rule.step(epoch, bits) for epoch, bits in enumerate([7.0, 6.99, 6.986, 6.9, 7.1], 1)]
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.25] and optimizer.get_lr() == 0.25


def test_perplexity_as_the_metric():
    rule, _ = schedule(best_checkpoint_metric="ppl")
    assert [rule.step(e, ppl) for e, ppl in enumerate([100.0, 99.0, 98.9, 98.0], 1)] == [1.0, 1.0, 0.5, 0.5]


def test_halving_only_when_worse():
    """T16: ratio 1.0; equal cost keeps the rate."""
    rule, _ = schedule(lr_ratio=1.0, stop_after=0)
    rates = [rule.step(e, bits) for e, bits in enumerate([7.0, 7.0, 7.1, 7.05, 7.2, 7.3, 7.4, 7.5, 7.6], 1)]
    assert rates[:5] == [1.0, 1.0, 0.5, 0.5, 0.25] and rates[-1] == 0.25 / 16


@pytest.mark.parametrize("metric", ["loss", "ppl"])
def test_validation_that_is_no_number_is_no_improvement(metric):
    rule, _ = schedule(best_checkpoint_metric=metric, stop_after=0)
    rates = [rule.step(e, value) for e, value in enumerate([8.0, math.nan, 7.0, math.inf, math.inf, 7.0, 6.0], 1)]
    assert rates == [1.0, 0.5, 0.5, 0.25, 0.125, 0.125, 0.125]


def test_validation_may_fall_by_thousands_of_bits():
    rule, _ = schedule()
    assert [rule.step(e, bits) for e, bits in enumerate([3736.8, 1.0, 3000.0], 1)] == [1.0, 1.0, 0.5]


def test_stops_after_five_poor_epochs_in_a_row():
    rule, optimizer = schedule()
    rates = [rule.step(epoch, 7.0) for epoch in range(1, 7)]
    assert rates[:5] == [1.0, 0.5, 0.25, 0.125, 0.0625] and rates[5] == float("-inf")
    assert optimizer.get_lr() == float("-inf"), "a run that is finished stays so when it is started again"


def test_a_good_epoch_starts_the_count_anew():
    rule, _ = schedule(stop_after=2)
    for epoch, bits in enumerate([7.0, 7.0, 6.0, 6.0], 1):
        assert rule.step(epoch, bits) > 0
    assert rule.step(5, 6.0) == float("-inf")


def test_epochs_without_validation_change_nothing():
    rule, _ = schedule()
    rule.step(1, 7.0)
    assert rule.step(2, None) == 1.0 and rule.previous == 7.0


def test_state_round_trip():
    rule, _ = schedule()
    for bits in (7.0, 7.0, 7.0):
        rule.step(1, bits)
    other, optimizer = schedule()
    other.load_state_dict(rule.state_dict())
    assert other.step_update(0) == 0.25 and optimizer.get_lr() == 0.25
    assert other.step(4, 7.0) == rule.step(4, 7.0) == 0.125


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"lr_ratio": 0.0}, "--lr-ratio 0.0 must be above 0"),
        ({"lr_shrink": 1.5}, r"--lr-shrink 1.5 must be in \(0, 1\]"),
        ({"best_checkpoint_metric": "uas"}, "not uas"),
        ({"lr": [1.0, 0.5]}, "takes one --lr"),
    ],
)
def test_bad_schedules(settings, message):
    with pytest.raises(ValueError, match=message):
        schedule(**settings)


def optimiser(parameters, **settings):
    config = MaxNormSGDConfig(lr=[0.1])
    for name, value in settings.items():
        setattr(config, name, value)
    return MaxNormSGD(config, parameters)


def test_rows_are_bounded_and_biases_are_not():
    torch.manual_seed(0)
    matrix, stack, bias = (torch.nn.Parameter(5 * torch.randn(shape)) for shape in ((4, 3), (2, 4, 3), (6,)))
    short = torch.nn.Parameter(torch.full((2, 3), 0.01))
    untouched = short.detach().clone()
    for parameter in (matrix, stack, bias, short):
        parameter.grad = torch.zeros_like(parameter)
    before = matrix.detach().clone()
    optimiser([matrix, stack, bias, short], max_norm=1.5).step()
    assert matrix.norm(dim=1).max() <= 1.5 + 1e-6 and stack.norm(dim=-1).max() <= 1.5 + 1e-6
    assert bias.norm() > 1.5 and torch.equal(short, untouched)
    torch.testing.assert_close(matrix / matrix.norm(dim=1, keepdim=True), before / before.norm(dim=1, keepdim=True))


def test_initial_weights_are_bounded():
    weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    MaxNormSGD(MaxNormSGDConfig(lr=[0.1], max_norm=1.0), [weight])
    torch.testing.assert_close(weight.detach(), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_weights_of_a_checkpoint_are_bounded_in_rows_that_do_not_occur_too():
    """They come when the optimiser is there already."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = MaxNormSGD(MaxNormSGDConfig(lr=[0.1], max_norm=1.0), [weight])
    weight.data.fill_(5.0)
    weight.grad = torch.sparse_coo_tensor([[1]], [[0.0, 0.0]], (2, 2)).coalesce()
    optimizer.step()
    torch.testing.assert_close(weight.detach().norm(dim=1), torch.ones(2))


def test_without_a_bound_it_is_sgd():
    torch.manual_seed(0)
    ours, theirs = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    one = optimiser([ours], momentum=0.9, weight_decay=0.01)
    two = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(4):
        ours.grad = theirs.grad = torch.randn(3, 3)
        one.step()
        two.step()
    assert torch.equal(ours, theirs)


def test_a_zero_row_stays_zero():
    zero = torch.nn.Parameter(torch.zeros(2, 3))
    zero.grad = torch.zeros(2, 3)
    optimiser([zero], max_norm=1.0).step()
    assert not zero.any()


def test_flattened_parameters_are_refused():
    with pytest.raises(ValueError, match="sees no matrix; with --fp16 or --bf16 add --fp16-no-flatten-grads"):
        optimiser([torch.nn.Parameter(torch.zeros(9))], max_norm=1.0)


def test_a_bound_of_hidden_units_leaves_symbols_and_labels_alone():
    matrix, other = (torch.nn.Parameter(torch.full((2, 4), 3.0)) for _ in range(2))
    matrix.of_hidden_units = True
    matrix.grad, other.grad = torch.zeros(2, 4), torch.zeros(2, 4)
    optimiser([other, matrix], max_norm=1.5, max_norm_of="hidden").step()
    torch.testing.assert_close(matrix.detach(), torch.full((2, 4), 0.75))
    assert torch.equal(other.detach(), torch.full((2, 4), 3.0))


def test_a_bound_of_hidden_units_needs_some():
    with pytest.raises(ValueError, match="--max-norm-of hidden sees no matrix of a recurrent cell"):
        optimiser([torch.nn.Parameter(torch.zeros(2, 3))], max_norm=1.0, max_norm_of="hidden")
    with pytest.raises(ValueError, match="--max-norm-of hidden sees no matrix .* does not go with --fp16"):
        optimiser([torch.nn.Parameter(torch.zeros(6))], max_norm=1.0, max_norm_of="hidden")
    with pytest.raises(ValueError, match="--max-norm-of hidden says what --max-norm bounds, which is not given"):
        optimiser([torch.nn.Parameter(torch.zeros(2, 3))], max_norm_of="hidden")


@pytest.mark.parametrize("cell", cell_names())
def test_matrices_of_every_cell_are_of_hidden_units(cell):
    layer = torch.nn.ModuleDict({"cell": build_cell(cell, 3, 4, Vocabulary(200)), "linear": torch.nn.Linear(4, 200)})
    for name, parameter in layer.named_parameters():
        assert getattr(parameter, "of_hidden_units", False) == name.startswith("cell.")


@pytest.mark.parametrize("of, expected", [("all", ["cell", "embedding", "soft-max"]), ("hidden", ["cell"])])
def test_what_a_training_bounds(of, expected, data, tmp_path):
    flags = ("--arch", "hornn_lm", "--optimizer", "max_norm_sgd", "--lr", 1, "--max-norm", 0.02, "--max-norm-of", of)
    train(data, *flags, "--save-dir", tmp_path)
    rows = {"cell": [], "embedding": [], "soft-max": []}
    for name, parameter in trained(tmp_path).items():
        if parameter.dim() >= 2:
            place = "embedding" if "embed_tokens" in name else "soft-max" if "output_projection" in name else "cell"
            rows[place] += parameter.flatten(0, -2).norm(dim=-1).tolist()
    assert len(rows["cell"]) == 6 + 3 * 6  # W_in and three W_hn
    assert [place for place, lengths in rows.items() if max(lengths) <= 0.02 + 1e-6] == expected


def test_negative_bounds_are_refused():
    with pytest.raises(ValueError, match="--max-norm -1.0 must be at least 0"):
        optimiser([torch.zeros(1)], max_norm=-1.0)
    for bad in (math.inf, math.nan):
        with pytest.raises(ValueError, match=f"--max-norm {bad} must be at least 0 and finite"):
            MaxNormSGD(MaxNormSGDConfig(max_norm=bad, lr=[0.1]), [torch.zeros(1, 2)])
    with pytest.raises(ValueError, match="--clip-value -1.0 must be at least 0"):
        optimiser([torch.zeros(1)], clip_value=-1.0)


def test_hard_clipping_is_of_elements():
    dense, rows, without = (torch.nn.Parameter(torch.zeros(3)) for _ in range(3))
    dense.grad = torch.tensor([7.0, -0.5, -9.0])
    rows.grad = torch.sparse_coo_tensor([[2, 0, 2]], [4.0, -9.0, 3.0], (3,), check_invariants=False)
    optimiser([dense, rows, without], clip_value=5.0).step()
    torch.testing.assert_close(dense.detach(), torch.tensor([-0.5, 0.05, 0.5]))
    torch.testing.assert_close(rows.detach(), torch.tensor([0.5, 0.0, -0.5]))  # 4 + 3 is clipped, not 4 and 3
    assert not without.any()


def test_hard_clipping_is_of_gradients_without_their_scale():
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([100.0, 1.0, -1000.0])
    optimiser([parameter], clip_value=5.0).step(scale=100.0)
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.1, -0.001, 0.5]))


# ---- AdaGrad with TensorFlow's start ---------------------------------------------------------------------------------


def test_adagrad_tf_by_hand():
    """s_0 = a, s_t = s_{t-1} + g^2, step lr * g / sqrt(s_t)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    ours = AdagradTF(AdagradTFConfig(lr=[0.5]), [weight])
    expected, total = weight.detach().clone(), torch.full((2,), 0.1, dtype=torch.float64)
    for gradient in ([1e-3, 2.0], [0.3, -0.5], [0.0, 1.0]):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        ours.step()
        total += weight.grad**2
        expected -= 0.5 * weight.grad / total.sqrt()
    torch.testing.assert_close(weight.detach(), expected, atol=1e-9, rtol=0)


def test_adagrad_tf_from_zero_is_adagrad_and_its_first_step_is_the_rate():
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([1e-6, -3.0, 2.0])
    AdagradTF(AdagradTFConfig(lr=[0.5], initial_accumulator_value=0.0), [weight]).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.5, 0.5, -0.5]), atol=1e-4, rtol=0)


def test_adagrad_tf_decays_weights_as_torch_does():
    ours, torchs = (torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5])) for _ in range(2))
    optimizers = (
        AdagradTF(AdagradTFConfig(lr=[0.5], weight_decay=0.1), [ours]),
        torch.optim.Adagrad([torchs], lr=0.5, weight_decay=0.1, initial_accumulator_value=0.1),
    )
    for weight, optimizer in zip((ours, torchs), optimizers):
        weight.grad = torch.zeros(3)  # what moves is by the decay alone
        optimizer.step()
    torch.testing.assert_close(ours, torchs)
    assert (ours.abs() < torch.tensor([1.0, 2.0, 0.5])).all()


def test_adagrad_tf_goes_on_from_its_state():
    """A resumed run neither starts the accumulator anew nor counts its start twice."""

    def run(weight, optimizer, times):
        for _ in range(times):
            weight.grad = weight.detach() * 0.3
            optimizer.step()

    whole, parts = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    run(whole, AdagradTF(AdagradTFConfig(lr=[0.1]), [whole]), 4)
    first = AdagradTF(AdagradTFConfig(lr=[0.1]), [parts])
    run(parts, first, 2)
    second = AdagradTF(AdagradTFConfig(lr=[0.1]), [parts])
    second.load_state_dict(first.state_dict())
    run(parts, second, 2)
    assert torch.equal(whole, parts)


def test_adagrad_tf_refuses_a_negative_start():
    with pytest.raises(ValueError, match="--initial-accumulator-value -1.0 must be at least 0"):
        AdagradTF(AdagradTFConfig(lr=[0.1], initial_accumulator_value=-1.0), [torch.nn.Parameter(torch.ones(1))])


# ---- one pass --------------------------------------------------------------------------------------------------------

BUILT = {  # fairseq's optimiser by its flags, torch's that it stands for, whether one pass gains
    "sgd": (["--lr", "0.3"], torch.optim.SGD, {}, False),
    "sgd decay": (["--lr", "0.3", "--weight-decay", "0.1"], torch.optim.SGD, {"weight_decay": 0.1}, True),
    "sgd momentum": (["--lr", "0.3", "--momentum", "0.9"], torch.optim.SGD, {"momentum": 0.9}, True),
    "adagrad": (["--lr", "0.3", "--weight-decay", "0.1"], torch.optim.Adagrad, {"weight_decay": 0.1}, True),
}


def built(name: str, parameters):
    parser = ArgumentParser()
    parser.add_argument("--lr", type=eval_str_list)
    kind = OPTIMIZER_REGISTRY[name.split()[0]]
    kind.add_args(parser)
    return kind(parser.parse_args(BUILT[name][0]), parameters)


def parameters_of(*sizes):
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in sizes]


@pytest.fixture
def fused(monkeypatch):
    """Whether each step of torch's optimisers was in one pass."""
    steps = []

    def recorded(whole):
        def step(self, closure=None):
            steps.append(self.param_groups[0]["fused"])
            return whole(self, closure)

        return step

    for kind in (torch.optim.SGD, torch.optim.Adagrad):
        monkeypatch.setattr(kind, "step", recorded(kind.step))
    return steps


@pytest.mark.parametrize("name", BUILT)
def test_one_pass_is_torchs_step(name, fused):
    """Whichever parameters have gradients, and whatever their layout, which that of the momentum may keep."""
    _, kind, settings, gains = BUILT[name]
    sizes = [(3, 4), (5,), (2, 2)]
    ours, theirs = parameters_of(*sizes), parameters_of(*sizes)
    optimizer, reference = built(name, ours), kind(theirs, lr=0.3, **settings)
    for step in range(8):
        for number, (one, other) in enumerate(zip(ours, theirs)):
            gradient = torch.randn_like(one)
            if step in (5, 6) and number == 0:  # as a matrix turned round
                gradient = torch.randn(4, 3, dtype=torch.float64).t()
            one.grad = other.grad = None if number == 1 and step in (0, 1, 3) else gradient
        optimizer.step()
        assert optimizer.optimizer.state_dict()["param_groups"][0]["fused"] is None, "checkpoints do not tell"
        reference.step()
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    first = "momentum" in name  # there is none of it before a parameter's first step
    expected = [not first, True, not first, True, True, False, False, True] if gains else [False] * 8
    assert [bool(each) for each in fused[::2]] == expected and not any(fused[1::2])


def test_a_turned_momentum_takes_torchs_own_step(fused):
    (one,), (other,) = parameters_of((3, 4)), parameters_of((3, 4))
    optimizer, reference = built("sgd momentum", [one]), torch.optim.SGD([other], lr=0.3, **BUILT["sgd momentum"][2])
    for step in range(3):
        gradient = torch.randn(3, 4, dtype=torch.float64)
        one.grad = other.grad = gradient.t().contiguous().t() if step == 0 else gradient
        optimizer.step()
        reference.step()
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    assert not optimizer.optimizer.state[one]["momentum_buffer"].is_contiguous() and not any(fused)


def test_sparse_gradients_and_half_precision_take_torchs_own_step():
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = built("adagrad", [weight])
    optimizer.param_groups[0]["weight_decay"] = 0
    weight.grad = torch.sparse_coo_tensor([[1]], [[1.0, -2.0]], (3, 2)).coalesce()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([[1, 1], [0.7, 1.3], [1, 1]]))
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    assert not fits(half) and optimizer.param_groups[0]["fused"] is None


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_a_sparse_gradient_does_not_keep_the_others_from_one_pass(name, monkeypatch):
    ours, theirs = parameters_of((4, 2), (3,), (2, 2)), parameters_of((4, 2), (3,), (2, 2))
    optimizer, reference = built(name, ours), BUILT[name][1](theirs, lr=0.3)
    optimizer.param_groups[0]["weight_decay"] = 0
    steps, whole = [], type(optimizer.optimizer).step

    def step(self, closure=None):
        steps.append(([p.grad is not None for p in self.param_groups[0]["params"]], self.param_groups[0]["fused"]))
        return whole(self, closure)

    for _ in range(3):
        for one, other in zip(ours[:2], theirs):
            one.grad = other.grad = torch.randn_like(one)
        ours[0].grad[1] = 0
        theirs[0].grad = ours[0].grad.clone()
        ours[0].grad = ours[0].grad.to_sparse(1)
        given = [p.grad for p in ours]
        with monkeypatch.context() as patched:
            patched.setattr(type(optimizer.optimizer), "step", step)
            optimizer.step()
        assert all(p.grad is gradient for p, gradient in zip(ours, given))
        reference.step()
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    apart = [([False, True, False], True), ([True, False, False], None)]
    assert steps == 3 * (apart if name == "adagrad" else [([True, True, False], None)])


def test_a_step_saved_in_one_pass_goes_on_in_several(fused):
    first, second = parameters_of((2, 3)), parameters_of((2, 3))
    optimizer, reference = built("sgd momentum", first), built("sgd momentum", second)
    for step in range(4):
        if step == 2:
            state = optimizer.state_dict()
            optimizer = built("sgd momentum", first)
            optimizer.load_state_dict(state)
        first[0].grad = torch.randn(2, 3, dtype=torch.float64)
        second[0].grad = first[0].grad.clone() if step < 2 else first[0].grad.t().contiguous().t()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(first, second, atol=1e-12, rtol=0)
    assert fused == [None, None, True, True, True, None, True, None]


def test_the_bound_and_the_accumulators_start_are_kept(fused):
    """Ours take one pass too."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    for optimizer in (
        AdagradTF(AdagradTFConfig(lr=[0.1]), [weight]),
        MaxNormSGD(MaxNormSGDConfig(lr=[0.1], momentum=0.9, max_norm=1.0), [weight]),
    ):
        for _ in range(2):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        assert fused[-1]
    assert weight.detach().norm(dim=1).max() <= 1 + 1e-6
