"""The papers' language models as architectures, named like fairseq's own (cell, ``lm``, author, corpus).

Each preset is one published row: sizes, dropout, initialisation and the equations' conventions. Training flags
(optimiser, schedule, batch) are not part of a fairseq architecture; the recipes in ``tasks/`` have them.
"""

from typing import Any, Dict

from rntn_plugins.models.macro_models import MACRO_MODELS, register_all_macro_models, register_macro_model
from rntn_plugins.models.recurrent_lm import register_all, register_language_model

# T16, "Experiment Models": embeddings 128 (words) and 32 (characters), orthogonal weights (here those of the recurrent
# layer, see --init). Dropout's place is not said: here the embeddings and the soft-max input.
T16_WORD_TENSOR = {"embed_dim": 128, "hidden_size": 256, "dropout": 0.5, "init": "orthogonal", "init_scale": 1.0}
T16_WORD_BASELINE = {**T16_WORD_TENSOR, "dropout": 0.6}
T16_CHAR = {"embed_dim": 32, "hidden_size": 256, "dropout": 0.25, "init": "orthogonal", "init_scale": 1.0}

# S18 §4, simple networks: the embedding is the input matrix, σ, dropout 0.5 on the soft-max input, N(0, 0.001). Taken
# as the standard deviation; a variance of 0.001 would be 0.032.
S18_SIMPLE = {
    "activation": "sigmoid", "identity_input": True, "dropout": 0.0, "dropout_output": 0.5,
    "init": "normal", "init_scale": 0.001,
}  # fmt: skip
# S18 §4, gated networks: embeddings of 650, dropout on all non-recurrent connections, U(-0.05, 0.05). The rate is
# that of the simple networks ("the same as above"), and of the medium model of Zaremba et al. 2014.
S18_GATED = {"embed_dim": 650, "dropout": 0.5, "init": "uniform", "init_scale": 0.05}

# H16 §6.1: no dropout, N(0, 0.1); sigmoid (ReLU is the other reading: --activation relu).
H16 = {"dropout": 0.0, "init": "normal", "init_scale": 0.1}


def salle_simple(cell_size: int, **more: Any) -> Dict[str, Any]:
    return {**S18_SIMPLE, "embed_dim": cell_size, "hidden_size": cell_size, **more}


def salle_gated(hidden_size: int, **more: Any) -> Dict[str, Any]:
    return {**S18_GATED, "hidden_size": hidden_size, **more}


def soltani(size: int, **more: Any) -> Dict[str, Any]:
    return {**H16, "embed_dim": size, "hidden_size": size, **more}


#: architecture: (cell, settings)
PRESETS: Dict[str, tuple] = {
    # T16, Table II (words)
    "gru_lm_tjandra_ptb_word": ("gru", {**T16_WORD_BASELINE, "hidden_size": 860}),
    "gru_rntn_lm_tjandra_ptb_word": ("gru_rntn", T16_WORD_TENSOR),
    "lstm_peephole_lm_tjandra_ptb_word": ("lstm_peephole", {**T16_WORD_BASELINE, "hidden_size": 740}),
    "lstm_rntn_lm_tjandra_ptb_word": ("lstm_rntn", T16_WORD_TENSOR),
    # T16, Table I (characters)
    "gru_lm_tjandra_ptb_char": ("gru", {**T16_CHAR, "hidden_size": 820}),
    "gru_rntn_lm_tjandra_ptb_char": ("gru_rntn", T16_CHAR),
    "lstm_peephole_lm_tjandra_ptb_char": ("lstm_peephole", {**T16_CHAR, "hidden_size": 600}),
    "lstm_rntn_lm_tjandra_ptb_char": ("lstm_rntn", T16_CHAR),
    # S18, Table 1: PTB
    "elman_lm_salle_ptb": ("elman", salle_simple(100)),
    "elman_lm_salle_ptb_h150": ("elman", salle_simple(150)),
    "r_rntn_lm_salle_ptb": ("r_rntn", salle_simple(100, num_matrices=100)),
    "r_rntn_lm_salle_ptb_h150": ("r_rntn", salle_simple(150, num_matrices=100)),
    "rntn_lm_salle_ptb": ("rntn", salle_simple(100, gradients="row-sparse")),
    "m_rnn_lm_salle_ptb": ("m_rnn", salle_simple(100, factor_size=100)),
    "gru_lm_salle_ptb": ("gru", salle_gated(244, update_gate="previous")),
    "gru_lm_salle_ptb_h650": ("gru", salle_gated(650, update_gate="previous")),
    "r_gru_lm_salle_ptb": ("r_gru", salle_gated(244, num_matrices=100)),
    "lstm_lm_salle_ptb": ("lstm", salle_gated(254)),
    "lstm_lm_salle_ptb_h650": ("lstm", salle_gated(650)),
    "r_lstm_lm_salle_ptb": ("r_lstm", salle_gated(254, num_matrices=100)),
    # S18, Table 1: text8
    "elman_lm_salle_text8": ("elman", salle_simple(100)),
    "elman_lm_salle_text8_h150": ("elman", salle_simple(150)),
    "r_rntn_lm_salle_text8": ("r_rntn", salle_simple(100, num_matrices=376)),
    "r_rntn_lm_salle_text8_h150": ("r_rntn", salle_simple(150, num_matrices=376)),
    "rntn_lm_salle_text8": ("rntn", salle_simple(100, gradients="row-sparse")),
    "m_rnn_lm_salle_text8": ("m_rnn", salle_simple(100, factor_size=100)),
    # H16, Tables 6.2-6.5: PTB with 400 units, text8 with 500
    **{
        f"{cell}_lm_soltani_{corpus}": (cell, soltani(size, **settings))
        for corpus, size in (("ptb", 400), ("text8", 500))
        for cell, settings in (
            ("elman", {"activation": "sigmoid"}),
            ("lstm", {}),
            ("hornn", {"order": 3, "activation": "sigmoid"}),
            ("hornn_max", {"order": 3, "activation": "sigmoid"}),
            ("hornn_fofe", {"order": 3, "activation": "sigmoid", "forgetting_factor": 0.6}),
            ("hornn_gated", {"order": 3, "activation": "sigmoid"}),
        )
    },
}

# E18, Table 2, for both problems (POS tagging, dependency parsing), I_t = [X_t, h_{t-1}]; --gate-input x makes the
# models of Tables 3 and 5. Initialisation and dropout are not stated: the defaults. Table 2's fixed lengths are the
# task's --fixed-length 100. E18 (15) has the GRU's z_t before h_{t-1}; forget gates start with a bias of 1 in its
# authors' code (github.com/yuanhangsu/ELSTM-DBRNN).
E18 = {"embed_dim": 512, "hidden_size": 512, "layers": 1}
E18_CELLS = {
    "lstm": {"forget_bias": 1.0}, "gru": {"update_gate": "previous"}, "elstm1": {"forget_bias": 1.0}, "elstm2": {},
}  # fmt: skip

#: architecture: (macro model, cell, settings)
SENTENCE_PRESETS: Dict[str, tuple] = {
    f"{macro}_{cell}_su_ud_{problem}": (macro, cell, {**E18, **settings})
    for macro in MACRO_MODELS
    for cell, settings in E18_CELLS.items()
    for problem in ("pos", "dp")
}

register_all()
register_all_macro_models()
for name, (cell, settings) in PRESETS.items():
    register_language_model(name, cell, **settings)
for name, (macro, cell, settings) in SENTENCE_PRESETS.items():
    register_macro_model(name, macro, cell, **settings)
