"""Recurrent language models: an architecture ``<cell>_lm`` for every cell of the registry, and presets of them."""

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_REGISTRY, FairseqLanguageModel

from rntn_plugins.cells.base import INITIALISATIONS
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.models.architectures import register_architecture
from rntn_plugins.models.recurrent_decoder import RecurrentDecoder
from rntn_plugins.models.settings import (
    Recurrence,
    build_cells,
    check_range,
    config_class,
    flag,
    recurrence_flag,
    set_recurrence,
)
from rntn_plugins.models.symbol_counts import count_symbols
from rntn_plugins.registry import cell_names

logger = logging.getLogger(__name__)


@dataclass
class RecurrentLMConfig(FairseqDataclass):
    """Settings that all recurrent language models share; a cell's own options are added to them."""

    embed_dim: int = flag(256, "size E of the symbol embeddings")
    hidden_size: int = flag(256, "H: units of every recurrent layer")
    layers: int = flag(1, "number of recurrent layers")
    dropout: float = flag(0.0, "dropout probability wherever a more specific flag is not given")
    dropout_embedding: Optional[float] = flag(None, "dropout on the embeddings (default: --dropout)")
    dropout_between: Optional[float] = flag(None, "dropout between recurrent layers (default: --dropout)")
    dropout_output: Optional[float] = flag(None, "dropout on the soft-max input (default: --dropout)")
    share_decoder_input_output_embed: bool = flag(False, "tie input and output embeddings (needs E = H)")
    adaptive_softmax_cutoff: Optional[str] = flag(
        None, "comma-separated cutoffs: fairseq's adaptive soft-max, trained with --criterion rntn_adaptive_loss"
    )
    adaptive_softmax_dropout: float = flag(0.0, "dropout in the tails of the adaptive soft-max")
    adaptive_softmax_factor: float = flag(4.0, "by how much each tail of the adaptive soft-max is narrower")
    init: ChoiceEnum(INITIALISATIONS) = flag(
        "orthogonal",
        "initialisation of all weights ('orthogonal': of the recurrent layers; embeddings and soft-max are uniform "
        "in ±0.1 then); biases are zero but for --init-output-bias, tensors and gates as their cell says",
    )
    init_output_bias: ChoiceEnum(("zero", "unigram")) = flag(
        "zero",
        "start of the soft-max's bias: 'zero', or 'unigram', log((n + 1) / (N + V)) of a symbol that is n of the N "
        "tokens of the split 'train', V being the dictionary's size, so that the recurrent layers need not learn first "
        "which symbols are common",
    )
    init_scale: float = flag(1.0, "gain of orthogonal, bound of uniform, or standard deviation of normal weights")
    recurrence: Recurrence = recurrence_flag()


class RecurrentLanguageModel(FairseqLanguageModel):
    """A language model with the cell of its class attribute ``cell``."""

    cell: str = ""

    @classmethod
    def build_model(cls, cfg, task):
        """Construct the model for a task with a dictionary (this package's or fairseq's ``language_modeling``)."""
        check_range("layers", cfg.layers, 1)
        for name in ("dropout", "dropout_embedding", "dropout_between", "dropout_output", "adaptive_softmax_dropout"):
            if getattr(cfg, name) is not None:
                check_range(name, getattr(cfg, name), 0.0, 1.0)
        if cfg.share_decoder_input_output_embed and (cfg.embed_dim != cfg.hidden_size or cfg.adaptive_softmax_cutoff):
            raise ValueError(
                f"--share-decoder-input-output-embed needs the full soft-max and --embed-dim {cfg.embed_dim} equal to "
                f"--hidden-size {cfg.hidden_size}"
            )
        unigram = str(cfg.init_output_bias) == "unigram"
        if unigram and cfg.adaptive_softmax_cutoff:
            raise ValueError("--init-output-bias unigram needs the full soft-max, not --adaptive-softmax-cutoff")
        dictionary = task.source_dictionary
        count = lru_cache(None)(lambda: count_symbols(task))
        stack = build_stack(cls.cell, cfg, dictionary, count)
        set_recurrence(stack, cfg.recurrence)
        decoder = RecurrentDecoder(cfg, dictionary, stack)
        if unigram and count() is not None:
            decoder.predict_unigrams(count())
        elif unigram:
            logger.warning("--init-output-bias unigram: no training text, so the bias has to come from a checkpoint")
        return cls(decoder)


def build_stack(cell: str, cfg, dictionary, count: Callable) -> RecurrentStack:
    """``cfg.layers`` layers of a cell; *count* gives how often each symbol occurs in training."""
    sizes = [cfg.embed_dim] + [cfg.hidden_size] * (cfg.layers - 1)
    cells = build_cells(cell, cfg, sizes, dictionary, count)
    return RecurrentStack(cells, cfg.dropout if cfg.dropout_between is None else cfg.dropout_between)


def register_language_model(name: str, cell: str, **defaults) -> type:
    """Register an architecture: a recurrent language model with a cell and the given default settings.

    ``register_language_model("my_lm", cell="my_cell", hidden_size=300)`` makes ``--arch my_lm`` and
    ``+model._name=my_lm`` (hydra) known to fairseq. Registering the same name and cell again changes nothing.

    Raises:
        ValueError: fairseq has another model of that name, or a default is unknown.
    """
    known = MODEL_REGISTRY.get(name)
    if known is not None:
        if getattr(known, "cell", None) == cell:
            return known
        raise ValueError(f"fairseq already has a model {name!r}: {known.__module__}.{known.__name__}")
    settings = config_class(name, RecurrentLMConfig, cell, **defaults)
    model = type(name, (RecurrentLanguageModel,), {"cell": cell, "__doc__": f"Language model with the cell {cell!r}."})
    return register_architecture(name, settings, model)


def architecture_name(cell: str) -> str:
    """``<cell>_lm``, or ``plain_<cell>_lm`` where fairseq has a model of that name (``lstm_lm``)."""
    name = f"{cell}_lm"
    known = MODEL_REGISTRY.get(name)
    return name if known is None or issubclass(known, RecurrentLanguageModel) else f"plain_{name}"


def register_all() -> None:
    """An architecture for every cell registered so far."""
    for cell in cell_names():
        register_language_model(architecture_name(cell), cell)
