"""E18's Table 2 as architectures, and every macro model with every cell."""

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from rntn_plugins import cell_names, register_macro_model
from rntn_plugins.models._presets import SENTENCE_PRESETS
from rntn_plugins.models.macro_models import MACRO_MODELS
from rntn_plugins.registry import get_cell


def test_every_macro_model_has_every_cell():
    assert list(MACRO_MODELS) == ["basic", "brnn", "seq2seq", "seq2seq_attention", "dbrnn", "bi_attention"]
    cells = [name for name in cell_names() if get_cell(name).__module__.startswith("rntn_plugins.")]  # not other tests'
    assert len(cells) == 19
    for macro in MACRO_MODELS:
        for cell in cells:
            model = MODEL_REGISTRY[f"{macro}_{cell}"]
            assert (model.macro, model.cell) == (macro, cell) and issubclass(model, MACRO_MODELS[macro])


@pytest.mark.parametrize("macro", MACRO_MODELS)
@pytest.mark.parametrize("cell", ["lstm", "gru", "elstm1", "elstm2"])
@pytest.mark.parametrize("problem", ["pos", "dp"])
def test_table_2(macro, cell, problem):
    name = f"{macro}_{cell}_su_ud_{problem}"
    assert SENTENCE_PRESETS[name][:2] == (macro, cell)
    settings = MODEL_DATACLASS_REGISTRY[name]()
    assert (settings.embed_dim, settings.hidden_size, settings.layers, settings.dropout) == (512, 512, 1, 0.0)
    if cell.startswith("elstm"):
        assert settings.positions == 100
    if cell == "gru":
        assert settings.update_gate == "previous"  # (15)
    if cell in ("lstm", "elstm1"):
        assert settings.forget_bias == 1.0


def test_registering():
    assert register_macro_model("brnn_lstm", "brnn", "lstm") is MODEL_REGISTRY["brnn_lstm"]
    with pytest.raises(ValueError, match="unknown macro model 'bilstm'; known: basic, brnn,"):
        register_macro_model("bilstm_gru", "bilstm", "gru")
    with pytest.raises(ValueError, match="fairseq already has a model 'brnn_lstm'"):
        register_macro_model("brnn_lstm", "brnn", "gru")
    with pytest.raises(ValueError, match="units is no setting"):
        register_macro_model("brnn_lstm_wide", "brnn", "lstm", units=3)
