"""Recurrent cells beyond LSTM for fairseq. Importing the package registers everything with fairseq.

It is both an installed package and the folder to give as ``--user-dir``.
"""

from rntn_plugins import compat  # noqa: F401  (first: it mends fairseq)
from rntn_plugins.cells import clockwork, elman, elstm, gated_rntn, gru, hornn, lstm, restricted_gated, rntn  # noqa: F401
from rntn_plugins.criterions import label_cross_entropy, rntn_adaptive_loss, rntn_cross_entropy  # noqa: F401
from rntn_plugins.data import ptb_characters  # noqa: F401
from rntn_plugins.models import _presets, kneser_ney_lm  # noqa: F401
from rntn_plugins.models.macro_models import register_macro_model, register_macro_models
from rntn_plugins.models.recurrent_lm import register_language_model
from rntn_plugins.optim import adagrad_tf, max_norm, validation_ratio  # noqa: F401
from rntn_plugins.registry import build_cell, cell_names, register_cell
from rntn_plugins.symbols import is_filler
from rntn_plugins.tasks import conllu_parsing, conllu_tagging, rntn_language_modeling  # noqa: F401
from rntn_plugins.version import __version__

__all__ = [
    "__version__",
    "build_cell",
    "cell_names",
    "is_filler",
    "register_cell",
    "register_language_model",
    "register_macro_model",
    "register_macro_models",
]
