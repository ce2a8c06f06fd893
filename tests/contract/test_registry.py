"""Names, duplicates and options of the registry."""

import dataclasses
import math

import fairseq.models
import pytest
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from rntn_plugins import build_cell, cell_names, register_cell, register_language_model, registry
from rntn_plugins.cells.base import Cell, Vocabulary
from rntn_plugins.models.architectures import LateNode
from rntn_plugins.registry import get_cell

VOCABULARY = Vocabulary(9, [f"w{i}" for i in range(9)], torch.arange(9))


def test_unknown_cell_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown cell 'gur'; known cells: clockwork, elman, .*, srn"):
        build_cell("gur", 3, 4)


def test_duplicates_raise_and_repeats_do_not():
    with pytest.raises(ValueError, match="cell 'gru' is already registered by rntn_plugins.cells.gru.GRU"):

        @register_cell("gru")
        class Another(Cell):
            pass

    assert register_cell("gru")(get_cell("gru")) is get_cell("gru")
    with pytest.raises(ValueError, match="does not derive from"):
        register_cell("odd")(dict)


def test_fairseq_names_are_not_shadowed():
    with pytest.raises(ValueError, match="fairseq already has a model 'lstm_lm'"):
        register_language_model("lstm_lm", "lstm")
    with pytest.raises(ValueError, match="hiden_size is no setting of the cell 'gru'"):
        register_language_model("typo_lm", "gru", hiden_size=3)


@pytest.mark.parametrize(
    "defaults",
    [{"hidden_size": "three hundred"}, {"layers": 2.5}, {"dropout": None}, {"init": "xavier"}, {"update_gate": "new"}],
)
def test_wrong_defaults_are_refused_at_once(defaults):
    (setting,) = defaults
    with pytest.raises(ValidationError, match=setting):
        register_language_model("wrong_lm", "gru", **defaults)
    assert "wrong_lm" not in fairseq.models.MODEL_REGISTRY


def test_settings_of_all_architectures_can_be_read():
    store = ConfigStore.instance()
    names = [name for name in store.list("model") if isinstance(store.repo["model"][name], LateNode)]
    assert len(names) > 200
    for name in names:
        assert store.load(f"model/{name}").node._name == name.removesuffix(".yaml")


def test_an_option_named_like_a_shared_setting_is_refused():
    from rntn_plugins.models.common import SentenceModelConfig
    from rntn_plugins.models.recurrent_lm import RecurrentLMConfig
    from rntn_plugins.models.settings import config_class

    class Clashing(get_cell("gru")):
        @dataclasses.dataclass
        class Options:
            layers: int = 1

    register_cell("clashing")(Clashing)
    try:
        for shared in (RecurrentLMConfig, SentenceModelConfig):
            with pytest.raises(
                ValueError, match="its option layers has the name of a setting that all its models share"
            ):
                config_class("clashing_lm", shared, "clashing")
    finally:
        registry._CELLS.pop("clashing")


def test_every_cell_has_an_architecture():
    from fairseq.models import ARCH_MODEL_REGISTRY

    for cell in cell_names():
        name = "plain_lstm_lm" if cell == "lstm" else f"{cell}_lm"
        assert ARCH_MODEL_REGISTRY[name].cell == cell
    assert ARCH_MODEL_REGISTRY["lstm_lm"].__module__ == "fairseq.models.lstm_lm"


def test_architectures_are_registered_as_fairseq_does_it():
    """But for the settings in hydra's store, which nothing reads before they are asked for."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY, register_model

    ours = register_language_model("late_lm", "gru", hidden_size=300)
    settings = MODEL_DATACLASS_REGISTRY["late_lm"]
    theirs = register_model("early_lm", dataclass=settings)(type("early_lm", (MODEL_REGISTRY["gru_lm"],), {}))
    try:
        store = ConfigStore.instance()
        late, early = (store.repo["model"][f"{name}.yaml"] for name in ("late_lm", "early_lm"))
        assert "node" not in vars(late) and ours.__dict__["__dataclass"] is theirs.__dict__["__dataclass"] is settings
        assert "late_lm.yaml" in store.list("model")
        loaded = store.load("model/late_lm.yaml")
        expected = dict(OmegaConf.to_container(early.node), _name="late_lm")
        assert OmegaConf.to_container(loaded.node) == expected and expected["hidden_size"] == 300
        assert OmegaConf.get_type(loaded.node) is settings
        loaded.node.hidden_size = 7
        assert store.load("model/late_lm.yaml").node.hidden_size == 300
        for part in ("group", "package", "provider"):
            assert getattr(loaded, part) == getattr(early, part)
        assert loaded.name == "late_lm.yaml"
        for registry_of in (fairseq.models.ARCH_MODEL_NAME_REGISTRY, fairseq.models.ARCH_MODEL_INV_REGISTRY):
            assert registry_of["late_lm"] in ("late_lm", ["late_lm"])
        assert fairseq.models.ARCH_CONFIG_REGISTRY["late_lm"](loaded.node) is None
    finally:
        for registry_of in (
            MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY, fairseq.models.ARCH_MODEL_REGISTRY,
            fairseq.models.ARCH_MODEL_NAME_REGISTRY, fairseq.models.ARCH_MODEL_INV_REGISTRY,
            fairseq.models.ARCH_CONFIG_REGISTRY,
        ):  # fmt: skip
            for name in ("late_lm", "early_lm"):
                del registry_of[name]
        for name in ("late_lm", "early_lm"):
            del store.repo["model"][f"{name}.yaml"]


@pytest.mark.parametrize(
    "cell, options, message",
    [
        ("elman", {"activation": "softplus"}, "--activation softplus is not one of tanh, sigmoid, relu"),
        ("gru", {"update_gate": "new"}, "--update-gate new is not one of candidate, previous"),
        ("gru_rntn", {"form": "half"}, "--form half is not one of asymmetric, full"),
        ("lstm_peephole", {"peephole": "none"}, "--peephole none is not one of full, diagonal"),
        ("hornn", {"order": 0}, "--order 0 must be at least 1"),
        ("hornn_fofe", {"forgetting_factor": 1.5}, "--forgetting-factor 1.5 must be between 0.0 and 1.0"),
        ("elstm1", {"positions": 0}, "--positions 0 must be at least 1"),
        ("elstm2", {"gate_input": "h"}, "--gate-input h is not one of xh, x"),
        ("r_rntn", {"num_matrices": 10}, "--num-matrices 10 must be between 1 and the vocabulary size 9"),
        ("r_gru", {"num_matrices": 0}, "--num-matrices 0 must be at least 1"),
        ("r_gru", {"num_matrices": 2, "indexed_gates": "cell"}, "--indexed-gates 'cell' must be a comma-separated"),
        ("r_lstm", {"num_matrices": 2, "indexed_gates": ""}, "--indexed-gates '' must be a comma-separated choice"),
        ("r_rntn", {"num_matrices": 2, "index_map": "nowhere.txt"}, "nowhere.txt: neither 'rank' nor 'mod' nor a file"),
        ("elman", {"identity_input": True}, "--identity-input needs inputs of size H=4, not 3"),
        ("m_rnn", {"factor_size": -1}, "--factor-size -1 must be at least 0"),
        ("clockwork", {"periods": "1,1,2"}, "--periods '1,1,2' must be increasing whole numbers of at least 1"),
        ("clockwork", {"periods": "0,2"}, "must be increasing whole numbers"),
        ("clockwork", {"periods": f"1,{2**63}"}, "--periods '1,9223372036854775808' must be below 2^63"),
        ("clockwork", {"periods": "fast"}, "must be increasing whole numbers"),
        ("clockwork", {"periods": "1,2,3,4,5"}, "asks for more modules than H = 4 units"),
        ("gru", {"order": 2}, "cell 'gru' has no option order; its options: update_gate, activation"),
        ("gru_rntn", {"tensor_init_scale": -1.0}, "--tensor-init-scale -1.0 must be at least 0"),
        ("lstm_rntn", {"tensor_init_scale": math.inf}, "--tensor-init-scale inf must be a finite number"),
        ("lstm_peephole", {"peephole_init_scale": -0.5}, "--peephole-init-scale -0.5 must be at least 0"),
        ("lstm_peephole", {"peephole_init_scale": math.nan}, "--peephole-init-scale nan must be a finite number"),
    ],
)
def test_options_out_of_range(cell, options, message):
    with pytest.raises(ValueError) as error:
        build_cell(cell, 3, 4, VOCABULARY, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_sizes_and_vocabulary_are_needed():
    with pytest.raises(ValueError, match="hidden_size 0 must be at least 1"):
        build_cell("gru", 3, 0)
    with pytest.raises(ValueError, match="needs a vocabulary"):
        build_cell("rntn", 3, 4)


def test_every_option_has_a_help_text():
    for cell in cell_names():
        for field in dataclasses.fields(get_cell(cell).Options):
            assert len(field.metadata["help"]) > 10, (cell, field.name)


def test_every_cell_cites_its_paper():
    for cell in cell_names():
        text = get_cell(cell).__doc__
        assert any(paper in text for paper in ("T16", "S18", "E18", "H16")), cell
