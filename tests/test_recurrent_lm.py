"""The language model around the cells: probabilities, state, generation, dropout."""

import copy
import math
import re

import pytest
import torch
from stub_task import StubTask, build

from rntn_plugins import cell_names
from rntn_plugins.cells import gated_rntn
from rntn_plugins.cells.base import Rows
from rntn_plugins.cells.index_map import rank_map, ranks
from rntn_plugins.data.lm_dataset import CarrySlot
from rntn_plugins.models import recurrent_decoder, recurrent_lm
from rntn_plugins.models.recurrent_lm import architecture_name
from rntn_plugins.ops import bilinear
from rntn_plugins.ops.products import product
from rntn_plugins.registry import get_cell

TASK = StubTask([f"w{i}" for i in range(9)], fillers=3)  # V = 16: 4 specials, 9 words, 3 fillers
V, PAD, EOS = 16, 1, 2


def model_of(cell: str, **settings):
    torch.manual_seed(3)
    if hasattr(get_cell(cell).Options(), "num_matrices"):
        settings["num_matrices"] = 4
    if "adaptive_softmax_cutoff" in settings:
        settings.setdefault("adaptive_softmax_factor", 2.0)
    model = build(architecture_name(cell), TASK, **{"embed_dim": 5, "hidden_size": 6, **settings})
    for name, buffer in model.named_buffers():
        if name.endswith("index_of_symbol") and buffer[0] < 0:
            buffer.copy_(rank_map(ranks(torch.arange(V)), 4))
    return model


def tokens(batch: int, steps: int):
    return torch.randint(4, 13, (batch, steps), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("settings", [
    {}, {"adaptive_softmax_cutoff": "5,14"}, {"adaptive_softmax_cutoff": "8,13"},
    {"adaptive_softmax_cutoff": "5,10", "adaptive_softmax_factor": 4.0},  # a tail without units
])  # fmt: skip
def test_fillers_get_no_probability(settings):
    model = model_of("gru", **settings)
    probabilities = model.get_normalized_probs(model(tokens(2, 3)), log_probs=False)
    assert probabilities.shape == (2, 3, V)
    torch.testing.assert_close(probabilities.sum(-1).double(), torch.ones(2, 3).double(), atol=1e-6, rtol=0)
    never = [0, PAD, 13, 14, 15]
    assert not probabilities[..., never].any()
    assert (probabilities[..., EOS] > 0).all()


@pytest.mark.parametrize("cell", cell_names())
def test_generation_is_teacher_forcing(cell):
    """One symbol at a time with an incremental state, beams reordered, against reading the whole line."""
    model, line = model_of(cell, layers=2), tokens(3, 7)
    whole = model.get_normalized_probs(model(line), log_probs=True)
    state, order = {}, torch.arange(3)
    for t in range(7):
        output = model.decoder(line[order][:, : t + 1], incremental_state=state)
        step = model.get_normalized_probs(output, log_probs=True)[:, -1]
        torch.testing.assert_close(step, whole[order, t], atol=1e-6, rtol=0)
        if t in (2, 4):
            move = torch.tensor([1, 1, 0])
            model.decoder.reorder_incremental_state(state, move)
            order = order[move]


@pytest.mark.parametrize("cell", ["gru_rntn", "r_lstm", "elstm1", "hornn_gated", "clockwork"])
def test_beam_search_scores_are_teacher_forcing(cell):
    from fairseq.sequence_generator import SequenceGenerator

    model = model_of(cell, layers=2, init="normal", init_scale=0.7)
    generator = SequenceGenerator([model], TASK.target_dictionary, beam_size=4, max_len_b=8)
    prompts = tokens(3, 2)
    hypotheses = generator.generate([model], {"net_input": {"src_tokens": prompts}}, prefix_tokens=prompts)
    for prompt, beams in zip(prompts, hypotheses):
        assert len(beams) == 4
        for beam in beams:
            line = beam["tokens"]
            assert line[:2].tolist() == prompt.tolist()
            read = torch.cat([torch.tensor([EOS]), line[:-1]]).unsqueeze(0)
            log_probs = model.get_normalized_probs(model(read), log_probs=True)[0]
            expected = log_probs.gather(-1, line.unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(beam["positional_scores"], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cell", cell_names())
def test_state_carried_over_blocks(cell):
    model, line, slot = model_of(cell, layers=2), tokens(3, 8), CarrySlot()
    whole = model(line)[0]
    pieces = [model(line[:, at : at + 3], src_lengths=None, stream=slot)[0] for at in (0, 3, 6)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-12, rtol=0)
    assert all(not tensor.requires_grad for tensor in slot.carry), "back-propagation stops at the block's edge"
    torch.testing.assert_close(model(line)[0], whole, atol=0, rtol=0)


def test_evaluation_does_not_disturb_training_state():
    model, train, valid = model_of("gru"), CarrySlot(), CarrySlot()
    model(tokens(2, 3), stream=train)
    before = [tensor.clone() for tensor in train.carry]
    model.eval()
    model(tokens(5, 4), stream=valid)
    assert all(torch.equal(a, b) for a, b in zip(before, train.carry)) and valid.carry[0].size(0) == 5


def test_models_of_an_ensemble_keep_their_states_apart():
    one, other, slot = model_of("gru"), model_of("lstm"), CarrySlot()
    line = tokens(2, 6)
    for model in (one, other):
        model(line[:, :3], stream=slot)
    for model in (one, other):
        torch.testing.assert_close(model(line[:, 3:], stream=slot)[0], model(line)[0][:, 3:], atol=1e-12, rtol=0)


def test_the_adaptive_softmax_names_its_criterion():
    model = model_of("gru", adaptive_softmax_cutoff="5,10").train()
    with pytest.raises(ValueError, match="is trained with --criterion rntn_adaptive_loss"):
        model.get_normalized_probs(model(tokens(1, 2)), log_probs=True)


def test_padding_on_the_right_is_found_by_itself():
    model, line = model_of("lstm"), tokens(2, 6)
    line[1, 4:] = PAD
    padded, alone = model(line)[0], model(line[1:, :4])[0]
    torch.testing.assert_close(padded[1:, :4], alone, atol=1e-12, rtol=0)


def test_tied_embeddings_are_one_parameter():
    torch.manual_seed(0)
    model = build("gru_lm", TASK, embed_dim=6, hidden_size=6, share_decoder_input_output_embed=True)
    untied = build("gru_lm", TASK, embed_dim=6, hidden_size=6)
    count = lambda m: sum(p.numel() for p in m.parameters())  # noqa: E731
    assert count(untied) - count(model) == V * 6
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight


@pytest.mark.parametrize("place", ["dropout_embedding", "dropout_between", "dropout_output"])
def test_each_dropout_flag_acts_alone(place):
    quiet = {"dropout_embedding": 0.0, "dropout_between": 0.0, "dropout_output": 0.0}
    line = tokens(2, 4)
    model = model_of("gru", layers=2, dropout=0.9, **{**quiet, place: 0.5})
    torch.testing.assert_close(model(line)[0], model(line)[0], atol=0, rtol=0)  # none in evaluation
    model.train()
    words = slice(2, 13)  # the others' scores are -inf
    assert (model(line)[0] - model(line)[0])[..., words].abs().max() > 1e-3
    off = model_of("gru", layers=2, dropout=0.9, **quiet).train()
    torch.testing.assert_close(off(line)[0], off(line)[0], atol=0, rtol=0)


@pytest.mark.parametrize("place", ["embedding", "between", "output"])
def test_retained_dropout(place):
    """fairseq's --retain-dropout: in generation too."""
    line, words = tokens(2, 4), slice(2, 13)
    model = model_of("gru", layers=2, **{f"dropout_{place}": 0.5})
    model.make_generation_fast_(retain_dropout=True)
    assert not model.training and (model(line)[0] - model(line)[0])[..., words].abs().max() > 1e-3
    owner = "RecurrentStack" if place == "between" else "RecurrentDecoder"
    for named, kept in ((owner, True), ("Recurrent", False)):
        model = model_of("gru", layers=2, **{f"dropout_{place}": 0.5})
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=named)
        assert model(line)[0].equal(model(line)[0]) is not kept


@pytest.mark.parametrize("cell", ["gru", "gru_rntn", "r_rntn"])
def test_symbols_that_repeat_are_embedded_once(cell, monkeypatch):
    """Where dropout does not tell them apart; losses and gradients are the same."""
    line, found = tokens(4, 20), []
    line[1, 15:] = PAD
    for share in (recurrent_decoder.MOST_DISTINCT, 0):
        monkeypatch.setattr(recurrent_decoder, "MOST_DISTINCT", share)
        model = model_of(cell).train()
        assert isinstance(model.decoder.embed(line.t()), Rows) == bool(share)
        loss = model(line)[0][..., 4:13].square().sum()
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for repeated, each in zip(*found):
        torch.testing.assert_close(repeated, each, atol=1e-5, rtol=1e-4)
    monkeypatch.undo()
    model = model_of(cell, dropout_embedding=0.5)
    assert isinstance(model.decoder.embed(line.t()), Rows)
    assert isinstance(model.train().decoder.embed(line.t()), torch.Tensor)


@pytest.mark.parametrize("cell", ["gru_rntn", "lstm_rntn"])
def test_products_of_a_small_vocabulary_are_kept_in_evaluation(cell, monkeypatch):
    """And made anew when a weight changes; with none kept, probabilities are the same."""
    computed, line = [], tokens(2, 5)
    monkeypatch.setattr(bilinear, "product", lambda *arguments: computed.append(1) or product(*arguments))

    def scores(model):
        with torch.no_grad():
            return model(line)[0][..., 4:13], model(line[:, :1], incremental_state={})[0][..., 4:13]

    model = model_of(cell)
    first = scores(model)
    assert len(computed) == 1
    scores(model)
    copy.deepcopy(model)
    assert len(computed) == 1
    for parameter in (model.decoder.embed_tokens.weight, model.decoder.stack.layers[0].cell.weight_tensor):
        before = len(computed)
        with torch.no_grad():
            parameter.mul_(1.5)
        changed = scores(model)
        assert len(computed) == before + 1 and not torch.allclose(first[0], changed[0])
    parameter.data.mul_(0.5)  # which torch does not count
    changed = scores(model)
    assert len(computed) == before + 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores(model)
    torch.testing.assert_close(scores(model), changed)
    with torch.inference_mode():
        torch.testing.assert_close(scores(copy.deepcopy(model)), changed)
    monkeypatch.setattr(recurrent_decoder, "FEW_SYMBOLS", 0)
    torch.testing.assert_close(scores(model), changed, atol=1e-6, rtol=1e-5)
    monkeypatch.undo()
    model.decoder.embed_tokens.register_forward_hook(lambda module, inputs, output: output * 0)
    assert not torch.allclose(scores(model)[0], changed[0])


@pytest.mark.parametrize("cell, repeat", [("gru_rntn", True), ("lstm_rntn", True), ("gru", False), ("r_rntn", False)])
def test_on_a_gpu_all_symbols_of_a_small_vocabulary_are_the_inputs_of_tensor_cells(cell, repeat, monkeypatch):
    """There the host need not wait for how many there are, and shapes stay the same. All else is as without."""
    line, found = tokens(4, 20), []
    line[1, 15:] = PAD
    monkeypatch.setattr(recurrent_decoder, "MOST_DISTINCT", 0)
    monkeypatch.setattr(bilinear, "AS_MANY", 1)
    for gpu in (False, True):
        for module in (recurrent_decoder, gated_rntn, bilinear):
            monkeypatch.setattr(module, "on_gpu", lambda _, gpu=gpu: gpu)
        model = model_of(cell, embed_dim=6, share_decoder_input_output_embed=True).train()
        loss = model(line)[0][..., 4:13].square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            model.eval()
            found.append([loss, *gradients, model(line)[0][..., 4:13], model(line[:, :1])[0][..., 4:13]])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    symbols = line.t()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            x = model.decoder.embed(symbols)
        assert isinstance(x, Rows) == repeat
        if repeat:
            assert len(x.distinct) == V and x.index is symbols and not x.fixed and x.distinct.requires_grad == grad
    assert isinstance(model.decoder.embed(symbols[:1]), torch.Tensor), "a step of generation"
    monkeypatch.setattr(recurrent_decoder, "FEW_SYMBOLS", V - 1)
    assert isinstance(model.decoder.embed(symbols), torch.Tensor)
    monkeypatch.undo()
    assert isinstance(model.to("meta").decoder.embed(symbols.to("meta")), torch.Tensor), "another accelerator"


@pytest.mark.parametrize("few", [True, False])
def test_without_gradients_products_by_input_are_few_on_a_gpu(few, monkeypatch):
    """They are not kept there, but computed for each sequence."""
    monkeypatch.setattr(gated_rntn, "on_gpu", lambda _: True)
    monkeypatch.setattr(gated_rntn, "by_input", lambda distinct, steps, batch, tensor: few)
    x = Rows(torch.zeros(9, 2), torch.zeros(5, 3, dtype=torch.long))
    with torch.no_grad():
        inputs = gated_rntn.tensor_inputs(x, torch.zeros(2, 4, 4), None)
    assert [tuple(each.shape) for each in inputs] == ([(9, 2), (2, 4, 4), (5, 3)] if few else [(5, 3, 2), (2, 4, 4)])


def test_general_dropout_is_the_default_of_the_places():
    model = build("gru_lm", TASK, dropout=0.25, dropout_output=0.5, layers=2)
    places = (model.decoder.dropout_embedding.p, model.decoder.stack.dropout.p, model.decoder.dropout_output.p)
    assert places == (0.25, 0.25, 0.5)


def test_initialisation_schemes():
    bound = build("gru_lm", TASK, embed_dim=8, hidden_size=8, init="uniform", init_scale=0.05)
    weights = [p for p in bound.parameters() if p.dim() > 1]
    assert 0.045 < max(p.abs().max() for p in weights) <= 0.05
    usual = build("gru_lm", TASK, embed_dim=40, hidden_size=40).decoder
    for table in (usual.embed_tokens.weight, usual.output_projection.weight):
        assert 0.09 < table.abs().max() <= 0.1
    orthogonal = build("gru_lm", TASK, embed_dim=8, hidden_size=8, init="orthogonal", init_scale=1.0)
    block = orthogonal.decoder.stack.layers[0].cell.weight_hh
    torch.testing.assert_close(block @ block.t(), torch.eye(8, dtype=torch.float64), atol=1e-6, rtol=0)
    normal = build("gru_lm", TASK, embed_dim=80, hidden_size=80, init="normal", init_scale=0.1)
    assert abs(normal.decoder.stack.layers[0].cell.weight_ih.std() - 0.1) < 0.005


def test_the_soft_max_starts_at_the_unigrams(monkeypatch):
    counts = torch.tensor([0, 0, 7, 1, *range(10, 19), 0, 0, 0])
    monkeypatch.setattr(recurrent_lm, "count_symbols", lambda task: counts)
    assert not model_of("gru").decoder.output_projection.bias.any()
    model = model_of("gru", init_output_bias="unigram")
    bias = torch.tensor([math.log((int(n) + 1) / (134 + V)) for n in counts], dtype=torch.float64)
    torch.testing.assert_close(model.decoder.output_projection.bias.data, bias, atol=1e-6, rtol=0)
    with torch.no_grad():
        model.decoder.output_projection.weight.zero_()
    probabilities = model.get_normalized_probs(model(tokens(1, 2)), log_probs=False)[0, 1]
    allowed = [2, 3, *range(4, 13)]
    expected = torch.zeros(V, dtype=torch.float64)
    expected[allowed] = (counts[allowed].double() + 1) / (counts[allowed] + 1).sum()
    torch.testing.assert_close(probabilities.double(), expected, atol=1e-6, rtol=0)


def test_without_a_training_text_the_checkpoint_brings_the_bias(caplog):
    assert not model_of("gru", init_output_bias="unigram").decoder.output_projection.bias.any()
    assert "the bias has to come from a checkpoint" in caplog.text


def test_unigrams_need_the_full_soft_max():
    with pytest.raises(ValueError, match="--init-output-bias unigram needs the full soft-max"):
        model_of("gru", init_output_bias="unigram", adaptive_softmax_cutoff="5,14")


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_the_factor_of_the_adaptive_softmax(factor):
    with pytest.raises(ValueError, match=f"--adaptive-softmax-factor {re.escape(str(factor))} must be above 0"):
        model_of("gru", adaptive_softmax_cutoff="5,10", adaptive_softmax_factor=factor)


@pytest.mark.parametrize("factor, without", [(2.4, None), (2.5, 2), (7.0, 1)])
def test_tails_of_the_adaptive_softmax_without_units_are_warned_of(factor, without, caplog):
    """H is 6."""
    model = model_of("gru", adaptive_softmax_cutoff="5,10", adaptive_softmax_factor=factor)
    units = [tail[0].out_features for tail in model.decoder.adaptive_softmax.tail]
    assert [number for number, size in enumerate(units, 1) if not size][:1] == ([without] if without else [])
    assert f"tail {without} of 2 has no units" in caplog.text if without else "units" not in caplog.text


def test_the_adaptive_loss_is_the_exact_cross_entropy():
    """Every token counts: also the ones that stand at <pad>'s index within a tail."""
    from rntn_plugins.criterions.rntn_adaptive_loss import RNTNAdaptiveLoss

    model = model_of("gru", adaptive_softmax_cutoff="5,10")
    criterion = RNTNAdaptiveLoss(type("Task", (), {"target_dictionary": TASK.target_dictionary})(), False)
    line = torch.arange(4, 13).view(1, -1)  # every word once, index 1 of both tails among them
    target = torch.cat([line[:, 1:], torch.tensor([[PAD]])], dim=1)
    sample = {"net_input": {"src_tokens": line}, "target": target, "ntokens": 8}
    loss, size, log = criterion(model, sample)
    log_probs = model.get_normalized_probs(model(line), log_probs=True)
    expected = -log_probs[0, :-1].gather(-1, target[:, :-1].t()).sum()
    assert size == log["ntokens"] == 8 and math.isclose(loss.item(), expected.item(), rel_tol=1e-6)


@pytest.mark.parametrize("average, expected", [(True, 3), (False, 9)])
def test_the_adaptive_loss_counts_sentences_or_tokens(average, expected):
    from rntn_plugins.criterions.rntn_adaptive_loss import RNTNAdaptiveLoss

    model = model_of("gru", adaptive_softmax_cutoff="5,10")
    criterion = RNTNAdaptiveLoss(type("Task", (), {"target_dictionary": TASK.target_dictionary})(), average)
    lines = torch.arange(4, 13).view(3, 3)
    _, size, log = criterion(model, {"net_input": {"src_tokens": lines}, "target": lines, "ntokens": 9})
    assert size == log["sample_size"] == expected and log["ntokens"] == 9


def test_dropout_of_the_adaptive_softmax():
    model = model_of("gru", adaptive_softmax_cutoff="5,10", adaptive_softmax_dropout=0.5)
    tails = model.decoder.adaptive_softmax.tail
    assert [part.p for tail in tails for part in tail if hasattr(part, "p")] == [0.5, 0.5]


def test_loading_in_python(tmp_path):
    """``from_pretrained``: scores and samples without the command line."""
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent / "cli"))
    from commands import TRAIN, fairseq
    from corpus import binarise

    data = binarise(tmp_path)
    fairseq("train", data, *TRAIN, "--arch", "gru_rntn_lm", "--max-update", 3, "--save-dir", tmp_path,
            "--disable-validation")  # fmt: skip
    from fairseq.models import MODEL_REGISTRY

    hub = MODEL_REGISTRY["gru_rntn_lm"].from_pretrained(
        str(tmp_path), "checkpoint_last.pt", data_name_or_path=str(data), cpu=True
    )
    (scored,) = hub.score(["w1 w2 w3"])
    assert scored["positional_scores"].numel() == 3 and (scored["positional_scores"] < 0).all()
    text = hub.sample(["w1 w2"], beam=1, max_len_b=6)[0]
    assert text.startswith("w1 w2")
    scored = hub.score("w1 w2\nw3 w4", replace_newline_with_eos=True)
    assert scored["positional_scores"].numel() == 5, "an end within a text is scored like a word"
    with pytest.raises(ValueError, match="prompt 'w1.* within it ends every hypothesis"):
        hub.sample(["w1 </s> w2"], beam=1, max_len_b=6)
