"""Recurrent language models: an architecture ``<cell>_lm`` for every cell of the registry, and presets of them."""

import dataclasses
import hashlib
import logging
import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import (
    MODEL_REGISTRY,
    FairseqIncrementalDecoder,
    FairseqLanguageModel,
    register_model,
)
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from rntn_plugins.cells.base import INITIALISATIONS, Vocabulary, carry_tensors, fill_, map_carry
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.models.adaptive_softmax import MaskedAdaptiveSoftmax
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


class RecurrentDecoder(FairseqIncrementalDecoder):
    """Embedding, recurrent layers, soft-max.

    Args:
        cfg: a :class:`RecurrentLMConfig` with the cell's options.
        dictionary: the symbols.
        stack: the recurrent layers.
    """

    def __init__(self, cfg, dictionary, stack: RecurrentStack) -> None:
        super().__init__(dictionary)
        size, vocabulary = stack.hidden_size, len(dictionary)

        def dropout(place: Optional[float]) -> FairseqDropout:
            return FairseqDropout(cfg.dropout if place is None else place, module_name=type(self).__name__)

        self.embed_tokens = nn.Embedding(vocabulary, cfg.embed_dim, dictionary.pad())
        self.dropout_embedding = dropout(cfg.dropout_embedding)
        self.stack = stack
        self.dropout_output = dropout(cfg.dropout_output)
        never = torch.tensor([is_filler(dictionary, i) for i in range(vocabulary)])
        self.output_projection = None
        if cfg.adaptive_softmax_cutoff:
            cutoff = parse_cutoff(cfg.adaptive_softmax_cutoff, vocabulary)
            self.adaptive_softmax = MaskedAdaptiveSoftmax(
                vocabulary, size, cutoff, never, cfg.adaptive_softmax_dropout, factor=cfg.adaptive_softmax_factor
            )
        else:
            self.output_projection = nn.Linear(size, vocabulary)
            if cfg.share_decoder_input_output_embed:
                self.output_projection.weight = self.embed_tokens.weight
            mask = torch.zeros(vocabulary).masked_fill(never, float("-inf"))
            self.register_buffer("never_predicted", mask, persistent=False)
        self.register_buffer("dictionary_fingerprint", torch.tensor(fingerprint(dictionary)))
        self.initialise(str(cfg.init), cfg.init_scale)

    def initialise(self, scheme: str, scale: float) -> None:
        for layer in self.stack.layers:
            layer.cell.initialise(scheme, scale)
        if scheme == "orthogonal":  # of a tall matrix it would make rows near zero, which learn very slowly at first
            scheme, scale = "uniform", 0.1
        fill_(self.embed_tokens.weight, scheme, scale)
        if self.output_projection is not None:
            if self.output_projection.weight is not self.embed_tokens.weight:
                fill_(self.output_projection.weight, scheme, scale)
            nn.init.zeros_(self.output_projection.bias)
        with torch.no_grad():
            self.embed_tokens.weight[self.embed_tokens.padding_idx] = 0

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, src_lengths=None, stream=None):
        """
        Args:
            prev_output_tokens: symbols ``[B, T]``, padded on the right.
            incremental_state: given in generation: only the last symbol is read, the state comes from here.
            src_lengths: valid symbols of each row ``[B]``; counted if left out.
            stream: an object whose ``carry`` (a list of tensors, or ``None`` for zeros) is where this block starts; it
                is set to the state after the block.
        Returns:
            logits ``[B, T, V]`` (features ``[B, T, H]`` for the adaptive soft-max) and a dict with the ``carry``.
        """
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, src_lengths=src_lengths, stream=stream
        )
        return self.output_layer(x), extra

    def extract_features(
        self, prev_output_tokens, encoder_out=None, incremental_state=None, src_lengths=None, stream=None
    ):
        """As :meth:`forward`, without the output layer: ``[B, T, H]``."""
        stored: Optional[List[Tensor]] = None
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, "carry")
            stored = None if saved is None else [saved[str(i)] for i in range(len(saved))]
            # the first call reads the whole prefix, later ones only the symbol chosen last
            tokens = prev_output_tokens if stored is None else prev_output_tokens[:, -1:]
            lengths = None
        else:
            tokens = prev_output_tokens
            lengths = tokens.ne(self.dictionary.pad()).sum(1) if src_lengths is None else src_lengths
            stored = stream.carry if stream is not None else None

        tokens = tokens.t()  # time-major from here: [T, B]
        carry = None if stored is None else self.restore_carry(stored, tokens.size(1))
        x = self.dropout_embedding(self.embed_tokens(tokens))
        x, carry = self.stack(x, tokens, lengths, carry)
        x = self.dropout_output(x)

        if incremental_state is not None:
            saved = {str(i): tensor for i, tensor in enumerate(carry_tensors(carry))}
            self.set_incremental_state(incremental_state, "carry", saved)
        elif stream is not None:
            stream.carry = [tensor.detach() for tensor in carry_tensors(carry)]
        return x.transpose(0, 1), {"attn": None, "carry": carry}  # fairseq looks for "attn"

    def restore_carry(self, stored: List[Tensor], batch_size: int):
        """The carry from its flat list of tensors; ``ValueError`` where the number of rows differs."""
        template = self.stack.initial_carry(batch_size)
        expected = carry_tensors(template)
        if [tensor.shape for tensor in stored] != [tensor.shape for tensor in expected]:
            raise ValueError(
                f"the stored state has {stored[0].size(0)} rows, this batch {batch_size}: resume with the --batch-size "
                "of the checkpoint, or --reset-dataloader to start the epoch anew"
            )
        tensors = iter([tensor.to(like.device) for tensor, like in zip(stored, expected)])
        return map_carry(lambda _: next(tensors), template)

    def output_layer(self, features: Tensor, **kwargs) -> Tensor:
        """Logits ``[..., V]``, -inf for symbols that never occur; the features for the adaptive soft-max."""
        if self.adaptive_softmax is not None:
            return features
        bias = self.output_projection.bias + self.never_predicted
        return F.linear(features, self.output_projection.weight, bias)

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Beam search: row i goes on from what was row ``new_order[i]``."""
        saved = self.get_incremental_state(incremental_state, "carry")
        if saved is not None:
            moved: Dict[str, Tensor] = {key: tensor.index_select(0, new_order) for key, tensor in saved.items()}
            self.set_incremental_state(incremental_state, "carry", moved)

    def max_positions(self) -> int:
        """No limit but memory."""
        return int(1e6)

    def upgrade_state_dict_named(self, state_dict, name):
        """Refuse a checkpoint of another dictionary before torch lists every mismatched shape."""
        prefix = f"{name}." if name else ""
        weight = state_dict.get(f"{prefix}embed_tokens.weight")
        stored = state_dict.get(f"{prefix}dictionary_fingerprint")
        here = len(self.dictionary)
        if weight is not None and weight.size(0) != here:
            raise ValueError(f"the checkpoint has {weight.size(0)} symbols, the dictionary of the data folder {here}")
        if stored is not None and int(stored) != int(self.dictionary_fingerprint):
            raise ValueError(
                f"the checkpoint was trained with another dictionary of {here} symbols than the data folder's"
            )
        return state_dict


def is_filler(dictionary, index: int) -> bool:
    """Symbols that no text holds: ``<s>``, ``<pad>``, and fairseq's fillers up to a multiple of 8."""
    return index in (dictionary.bos(), dictionary.pad()) or dictionary[index].startswith("madeupword")


def fingerprint(dictionary) -> int:
    """A number that two different dictionaries do not share (64 bits of SHA-256 of the symbols in order)."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def parse_cutoff(text: str, vocabulary: int) -> List[int]:
    """``--adaptive-softmax-cutoff`` as increasing numbers below V."""
    try:
        cutoff = [int(part) for part in str(text).split(",")]
    except ValueError:
        cutoff = []
    if not cutoff or any(a >= b for a, b in zip([0, *cutoff], [*cutoff, vocabulary])):
        raise ValueError(
            f"--adaptive-softmax-cutoff {text} must be increasing numbers below the vocabulary size {vocabulary}"
        )
    return cutoff


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
