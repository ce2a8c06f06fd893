"""Recurrent language models: an architecture ``<cell>_lm`` for every cell of the registry, and presets of them."""

import dataclasses
import logging
import os
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_REGISTRY, FairseqLanguageModel, register_model

from rntn_plugins.cells.base import INITIALISATIONS, Vocabulary
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.models.recurrent_decoder import RecurrentDecoder
from rntn_plugins.models.symbol_counts import count_symbols
from rntn_plugins.registry import build_cell, cell_names, get_cell

logger = logging.getLogger(__name__)


def flag(default, help: str):
    return field(default=default, metadata={"help": help})


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
        "in ±0.1 then); biases are zero, tensors and gates as their cell says",
    )
    init_scale: float = flag(1.0, "gain of orthogonal, bound of uniform, or standard deviation of normal weights")


def check_range(name: str, value, least, most=None) -> None:
    if value < least or (most is not None and value >= most):
        allowed = f"at least {least}" if most is None else f"in [{least}, {most})"
        raise ValueError(f"--{name.replace('_', '-')} {value} must be {allowed}")


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
        dictionary = task.source_dictionary
        stack = build_stack(cls.cell, cfg, task, dictionary)
        return cls(RecurrentDecoder(cfg, dictionary, stack))


def build_stack(cell: str, cfg, task, dictionary) -> RecurrentStack:
    """``cfg.layers`` layers of a cell, its options taken from the fields of *cfg* that bear their names."""
    cell_class = get_cell(cell)
    options = {f.name: plain(getattr(cfg, f.name)) for f in dataclasses.fields(cell_class.Options)}
    vocabulary = None
    if cell_class.token_indexed:
        counts = count_symbols(task)
        map_file = options.get("index_map", "rank")
        if map_file not in ("rank", "mod") and not os.path.exists(map_file):
            # A checkpoint has its map inside and must load where the file is not; only a fresh model needs the file.
            logger.warning(f"--index-map {map_file}: no such file here, so the map has to come from a checkpoint")
            options["index_map"], counts = "rank", None
        vocabulary = Vocabulary(len(dictionary), dictionary.symbols, counts)
    sizes = [cfg.embed_dim] + [cfg.hidden_size] * (cfg.layers - 1)
    cells = [build_cell(cell, size, cfg.hidden_size, vocabulary, **options) for size in sizes]
    return RecurrentStack(cells, cfg.dropout if cfg.dropout_between is None else cfg.dropout_between)


def plain(value):
    """An enumeration's member as the string it stands for; anything else as it is."""
    return str(value) if isinstance(value, str) else value


def config_class(name: str, cell: str, **defaults) -> type:
    """The settings of one architecture: shared ones, the cell's own, with the *defaults* of a preset.

    Raises:
        ValueError: a default that is no setting of the cell, or an option named like a shared setting.
    """
    options = get_cell(cell).Options
    shared, own = ({f.name for f in dataclasses.fields(part)} for part in (RecurrentLMConfig, options))
    if shared & own:
        clash = ", ".join(sorted(shared & own))
        raise ValueError(f"cell {cell!r}: its option {clash} has the name of a setting of all language models")
    unknown = sorted(set(defaults) - shared - own)
    if unknown:
        raise ValueError(f"{name}: {', '.join(unknown)} is no setting of the cell {cell!r}")
    added = []
    for f in dataclasses.fields(options):
        kind = ChoiceEnum(f.metadata["choices"]) if f.metadata.get("choices") else type(f.default)
        added.append((f.name, kind, flag(defaults.pop(f.name, f.default), f.metadata["help"])))
    for f in dataclasses.fields(RecurrentLMConfig):
        if f.name in defaults:
            added.append((f.name, f.type, flag(defaults[f.name], f.metadata["help"])))
    return dataclasses.make_dataclass(f"{name}_config", added, bases=(RecurrentLMConfig,))


def register_language_model(name: str, cell: str, **defaults) -> type:
    """Register an architecture: a recurrent language model with a cell and the given default settings.

    ``register_language_model("my_lm", cell="my_cell", hidden_size=300)`` makes ``--arch my_lm`` and
    ``model=my_lm`` (hydra) known to fairseq. Registering the same name and cell again changes nothing.

    Raises:
        ValueError: fairseq has another model of that name, or a default is unknown.
    """
    known = MODEL_REGISTRY.get(name)
    if known is not None:
        if getattr(known, "cell", None) == cell:
            return known
        raise ValueError(f"fairseq already has a model {name!r}: {known.__module__}.{known.__name__}")
    settings = config_class(name, cell, **defaults)
    model = type(name, (RecurrentLanguageModel,), {"cell": cell, "__doc__": f"Language model with the cell {cell!r}."})
    return register_model(name, dataclass=settings)(model)


def architecture_name(cell: str) -> str:
    """``<cell>_lm``, or ``plain_<cell>_lm`` where fairseq has a model of that name (``lstm_lm``)."""
    name = f"{cell}_lm"
    known = MODEL_REGISTRY.get(name)
    return name if known is None or issubclass(known, RecurrentLanguageModel) else f"plain_{name}"


def register_all() -> None:
    """An architecture for every cell registered so far."""
    for cell in cell_names():
        register_language_model(architecture_name(cell), cell)
