"""The macro models of E18 with every cell: architectures ``<macro>_<cell>``."""

from __future__ import annotations

from typing import Dict

from fairseq.models import MODEL_REGISTRY

from rntn_plugins.models.architectures import register_architecture
from rntn_plugins.models.bi_attention import BiAttention
from rntn_plugins.models.encoder_decoder import Seq2Seq, Seq2SeqAttention
from rntn_plugins.models.labellers import BRNN, DBRNN, Basic
from rntn_plugins.models.settings import config_class
from rntn_plugins.registry import cell_names

MACRO_MODELS: Dict[str, type] = {
    "basic": Basic,
    "brnn": BRNN,
    "seq2seq": Seq2Seq,
    "seq2seq_attention": Seq2SeqAttention,
    "dbrnn": DBRNN,
    "bi_attention": BiAttention,
}


def register_macro_model(name: str, macro: str, cell: str, **defaults) -> type:
    """Register an architecture: a macro model with a cell and the given default settings.

    ``register_macro_model("brnn_mine", macro="brnn", cell="my_cell", layers=2)`` makes ``--arch brnn_mine`` known to
    fairseq. Registering the same name, macro model and cell again changes nothing.

    Raises:
        ValueError: unknown macro model, cell or default, or fairseq has another model of that name.
    """
    if macro not in MACRO_MODELS:
        raise ValueError(f"unknown macro model {macro!r}; known: {', '.join(MACRO_MODELS)}")
    base = MACRO_MODELS[macro]
    known = MODEL_REGISTRY.get(name)
    if known is not None:
        if getattr(known, "cell", None) == cell and getattr(known, "macro", None) == macro:
            return known
        raise ValueError(f"fairseq already has a model {name!r}: {known.__module__}.{known.__name__}")
    settings = config_class(name, base.Config, cell, **defaults)
    summary = base.__doc__.strip().splitlines()[0]
    model = type(name, (base,), {"cell": cell, "macro": macro, "__doc__": f"{summary} Cell {cell!r}."})
    return register_architecture(name, settings, model)


def register_macro_models(cell: str) -> None:
    """Register ``<macro>_<cell>`` for every macro model: ``basic_…``, ``brnn_…``, ``dbrnn_…`` and so on."""
    for macro in MACRO_MODELS:
        register_macro_model(f"{macro}_{cell}", macro, cell)


def register_all_macro_models() -> None:
    """Every macro model with every cell registered so far."""
    for cell in cell_names():
        register_macro_models(cell)
