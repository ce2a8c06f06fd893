"""The papers' models have the papers' numbers of parameters.

A paper's vocabulary of V words includes <unk> and the end of sentence. fairseq's dictionary holds two symbols more, <s>
and <pad>, each with its rows in the embedding and the soft-max (and, in the RNTN and m-RNN, its matrix or factors). The
parameters of those two are no part of a paper's model, so every count is compared twice, for a dictionary of V symbols
in all and for the real one of V + 2: the printed digits must come out of both.
"""

from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from rntn_plugins import build_cell
from rntn_plugins.cells import base
from rntn_plugins.models._presets import PRESETS
from rntn_plugins.registry import get_cell

PTB, CHARACTERS, SALLE_TEXT8, SOLTANI_TEXT8 = 10_000, 50, 37_751, 44_000
NOT_IN_PAPERS = 2  # <s> and <pad>

# Millions of parameters as printed, as many digits as printed; "about 12" and "about 13" of T16 likewise.
PRINTED = {
    # T16, "Experiment Models"
    "gru_lm_tjandra_ptb_word": (PTB, "12"),
    "gru_rntn_lm_tjandra_ptb_word": (PTB, "12"),
    "lstm_peephole_lm_tjandra_ptb_word": (PTB, "13"),
    "lstm_rntn_lm_tjandra_ptb_word": (PTB, "13"),
    "gru_lm_tjandra_ptb_char": (CHARACTERS, (2.1, 2.35)),  # one "about 2.2" for 2.14 and 2.33 million
    "gru_rntn_lm_tjandra_ptb_char": (CHARACTERS, (2.1, 2.35)),
    "lstm_peephole_lm_tjandra_ptb_char": (CHARACTERS, "2.6"),
    "lstm_rntn_lm_tjandra_ptb_char": (CHARACTERS, "2.6"),
    # S18, Table 1
    "elman_lm_salle_ptb": (PTB, "2"),
    "r_rntn_lm_salle_ptb": (PTB, "3"),
    "rntn_lm_salle_ptb": (PTB, "103"),
    "m_rnn_lm_salle_ptb": (PTB, "3"),
    "elman_lm_salle_ptb_h150": (PTB, "3"),
    "r_rntn_lm_salle_ptb_h150": (PTB, "5.3"),
    "gru_lm_salle_ptb": (PTB, "9.6"),
    "gru_lm_salle_ptb_h650": (PTB, "15.5"),
    "r_gru_lm_salle_ptb": (PTB, "15.5"),
    "lstm_lm_salle_ptb": (PTB, "10"),
    "lstm_lm_salle_ptb_h650": (PTB, "16.4"),
    "r_lstm_lm_salle_ptb": (PTB, "16.4"),
    "elman_lm_salle_text8": (SALLE_TEXT8, "7.6"),
    "r_rntn_lm_salle_text8": (SALLE_TEXT8, "11.4"),
    "rntn_lm_salle_text8": (SALLE_TEXT8, "388"),
    "m_rnn_lm_salle_text8": (SALLE_TEXT8, "11.4"),
    "elman_lm_salle_text8_h150": (SALLE_TEXT8, "11.4"),
    "r_rntn_lm_salle_text8_h150": (SALLE_TEXT8, "19.8"),
    # H16 §6.2.2
    "elman_lm_soltani_ptb": (PTB, "8.3"),
    "lstm_lm_soltani_ptb": (PTB, "9.3"),
    "hornn_lm_soltani_ptb": (PTB, "8.6"),
    "hornn_max_lm_soltani_ptb": (PTB, "8.6"),
    "hornn_fofe_lm_soltani_ptb": (PTB, "8.6"),
    "hornn_gated_lm_soltani_ptb": (PTB, "9.6"),
    # H16 prints no counts for text8
    "elman_lm_soltani_text8": (SOLTANI_TEXT8, None),
    "lstm_lm_soltani_text8": (SOLTANI_TEXT8, None),
    "hornn_lm_soltani_text8": (SOLTANI_TEXT8, None),
    "hornn_max_lm_soltani_text8": (SOLTANI_TEXT8, None),
    "hornn_fofe_lm_soltani_text8": (SOLTANI_TEXT8, None),
    "hornn_gated_lm_soltani_text8": (SOLTANI_TEXT8, None),
}


@cache
def dictionary(size):
    """A fairseq dictionary of *size* symbols, its four special ones included."""
    filled = Dictionary()
    for number in range(size - len(filled)):
        filled.add_symbol(f"w{number}")
    assert len(filled) == size
    return filled


@pytest.fixture(autouse=True)
def no_initialisation(monkeypatch):
    """Only counts matter here, and filling an RNTN's 37,751 matrices one by one takes half a minute, even on meta."""
    monkeypatch.setattr(base, "fill_", lambda weight, scheme, scale: None)


def model_of(name, symbols):
    """The registered model itself, on the meta device: all its parameters, none of their memory."""
    task = SimpleNamespace(
        source_dictionary=dictionary(symbols), target_dictionary=dictionary(symbols), cfg=None, args=None
    )
    with torch.device("meta"):
        model = MODEL_REGISTRY[name].build_model(MODEL_DATACLASS_REGISTRY[name](), task)
    assert all(parameter.is_meta for parameter in model.parameters())
    return model


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def is_printed_as(number, printed):
    """Whether *number* of parameters gives the digits *printed*, in millions, by rounding or by truncation."""
    millions, digits = Decimal(number) / 1_000_000, Decimal(printed)
    return digits in [millions.quantize(digits, rounding) for rounding in (ROUND_HALF_UP, ROUND_DOWN)]


def test_is_printed_as():
    assert is_printed_as(8_650_400, "8.6") and is_printed_as(8_650_400, "8.7") and is_printed_as(9_970_000, "10")
    assert not is_printed_as(8_700_000, "8.6") and not is_printed_as(8_549_999, "8.6") and is_printed_as(9_970_000, "9")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_number_of_parameters_is_the_papers(name):
    vocabulary, printed = PRINTED[name]
    for symbols in (vocabulary, vocabulary + NOT_IN_PAPERS):
        number = count(model_of(name, symbols))
        if isinstance(printed, str):
            assert is_printed_as(number, printed), f"{number:,}, the paper prints {printed} M"
        elif printed:
            low, high = printed
            assert low * 1e6 <= number <= high * 1e6, f"{number:,}, expected {low} M to {high} M"


def test_every_preset_is_counted():
    assert set(PRINTED) == set(PRESETS)


def test_presets_have_the_papers_sizes():
    """Embedding and hidden sizes: T16 "Experiment Models", S18 §4, H16 §6.1.7."""
    sizes = {name: (settings["embed_dim"], settings["hidden_size"]) for name, (_, settings) in PRESETS.items()}
    tjandra = {"gru": (860, 820), "gru_rntn": (256, 256), "lstm_peephole": (740, 600), "lstm_rntn": (256, 256)}
    for cell, (words, characters) in tjandra.items():
        assert sizes[f"{cell}_lm_tjandra_ptb_word"] == (128, words)
        assert sizes[f"{cell}_lm_tjandra_ptb_char"] == (32, characters)
    for name, (embed, hidden) in sizes.items():
        if "_salle_" in name and name.startswith(("gru", "lstm", "r_gru", "r_lstm")):
            expected = 650 if name.endswith("_h650") else 244 if "gru" in name else 254
            assert (embed, hidden) == (650, expected), name
        elif "_salle_" in name:
            assert embed == hidden == (150 if name.endswith("_h150") else 100), name
        elif "_soltani_" in name:
            assert embed == hidden == (500 if name.endswith("text8") else 400), name


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_settings_reach_the_model(name):
    """What a preset says is what the registered architecture builds."""
    cell, settings = PRESETS[name]
    model = model_of(name, 500)
    (layer,) = model.decoder.stack.layers
    built = layer.cell
    assert type(built) is get_cell(cell)
    assert (built.input_size, built.hidden_size) == (settings["embed_dim"], settings["hidden_size"])
    for option in vars(built.options):
        if option in settings:
            assert str(getattr(built.options, option)) == str(settings[option]), option
    rate = settings.get("dropout_output", settings["dropout"])
    assert (model.decoder.dropout_embedding.p, model.decoder.dropout_output.p) == (settings["dropout"], rate)


def test_presets_have_the_papers_training_independent_settings():
    """Dropout, initialisation and conventions, as printed."""
    for name, (cell, settings) in PRESETS.items():
        initialisation = (settings["init"], settings["init_scale"])
        if "_tjandra_" in name:
            word_rate = 0.5 if cell.endswith("_rntn") else 0.6
            assert settings["dropout"] == (word_rate if name.endswith("_word") else 0.25), name
            assert settings["init"] == "orthogonal", name
            assert settings.get("update_gate", "candidate") == "candidate", name  # T16 (11)
        elif "_salle_" in name and "gru" not in cell and "lstm" not in cell:
            assert initialisation == ("normal", 0.001), name
            assert (settings["dropout"], settings["dropout_output"]) == (0.0, 0.5), name
            assert settings["activation"] == "sigmoid" and settings["identity_input"], name
        elif "_salle_" in name:
            assert initialisation == ("uniform", 0.05), name
            assert cell != "gru" or settings["update_gate"] == "previous", name  # S18 (9)
        else:
            assert initialisation == ("normal", 0.1) and settings["dropout"] == 0.0, name
            assert settings.get("forgetting_factor", 0.6) == 0.6 and settings.get("order", 3) == 3, name
        if cell.startswith("r_"):
            assert settings["num_matrices"] == (376 if "text8" in name else 100), name  # S18 Table 1


TJANDRA = [f"{cell}_lm_tjandra_ptb" for cell in ("gru", "gru_rntn", "lstm_peephole", "lstm_rntn")]
SALLE = ["elman", "r_rntn", "rntn", "m_rnn", "gru", "r_gru", "lstm", "r_lstm"]
SOLTANI = ["elman", "lstm", "hornn", "hornn_max", "hornn_fofe", "hornn_gated"]
ASKED_FOR = [
    *[f"{name}_word" for name in TJANDRA],
    *[f"{name}_char" for name in TJANDRA],
    *[f"{cell}_lm_salle_ptb" for cell in SALLE],
    *[f"{cell}_lm_salle_ptb_h150" for cell in ("elman", "r_rntn")],
    *[f"{cell}_lm_salle_ptb_h650" for cell in ("gru", "lstm")],
    *[f"{cell}_lm_salle_text8" for cell in ("elman", "r_rntn", "rntn", "m_rnn")],
    *[f"{cell}_lm_salle_text8_h150" for cell in ("elman", "r_rntn")],
    *[f"{cell}_lm_soltani_{corpus}" for cell in SOLTANI for corpus in ("ptb", "text8")],
]


@pytest.mark.parametrize("name", ASKED_FOR)
def test_every_published_row_is_an_architecture(name):
    assert name in PRESETS and name in MODEL_REGISTRY and name in MODEL_DATACLASS_REGISTRY


@pytest.mark.parametrize("M, N, T", [(5, 7, 3), (1, 1, 1), (512, 512, 100), (650, 254, 35)])
def test_cells_have_the_numbers_of_parameters_of_e18_table_1(M, N, T):
    """E18 Table 1: inputs of size M, N units, T positions."""
    gate = N * (M + N + 1)
    table = {
        "lstm": (4 * gate, {}),
        "gru": (3 * gate, {}),
        "elstm1": (4 * gate + N * (T + 1), {"positions": T}),
        "elstm2": (3 * gate + N * (T + 1), {"positions": T}),
    }
    for name, (expected, options) in table.items():
        with torch.device("meta"):
            assert count(build_cell(name, M, N, **options)) == expected, name
