"""What labellers and encoder-decoders share: settings, embedding of a sentence's columns, initialisation."""

import logging
import math
from dataclasses import dataclass
from typing import Dict, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from rntn_plugins.cells.base import INITIALISATIONS, Cell, fill_
from rntn_plugins.layers.attention import AdditiveAttention
from rntn_plugins.layers.characters import CharacterConvolution, CharacterLSTM
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.models.recurrent_decoder import fingerprint
from rntn_plugins.models.settings import Recurrence, check_range, flag, recurrence_flag

logger = logging.getLogger(__name__)

TAG_COLUMNS = ("upos", "xpos")


@dataclass
class SentenceModelConfig(FairseqDataclass):
    """Settings that all models of CoNLL-U sentences share; a cell's own options are added to them."""

    embed_dim: int = flag(256, "size E of the embeddings of lemmas, forms and decoder inputs")
    tag_embed_dim: int = flag(64, "size of the embeddings of UPOS and XPOS as inputs")
    char_embed_dim: int = flag(32, "size of the embeddings of characters")
    char_encoder: ChoiceEnum(["convolution", "lstm"]) = flag(
        "convolution", "how a word's characters become a vector: a convolution, or an LSTM in both directions"
    )
    char_filters: int = flag(64, "size of the vector of a word's characters: the filters of the convolution")
    char_width: int = flag(3, "how many characters a filter of the convolution sees")
    freeze_vectors: bool = flag(False, "do not train pretrained vectors that the data folder holds")
    hidden_size: int = flag(256, "H: units of every recurrent layer, in each direction")
    layers: int = flag(1, "number of recurrent layers (of the DBRNN's lower part, of encoder and decoder each)")
    dropout: float = flag(0.0, "dropout probability wherever a more specific flag is not given")
    dropout_embedding: Optional[float] = flag(None, "dropout on the embeddings (default: --dropout)")
    dropout_between: Optional[float] = flag(None, "dropout between recurrent layers (default: --dropout)")
    dropout_output: Optional[float] = flag(None, "dropout on the soft-max input (default: --dropout)")
    word_dropout: float = flag(
        0.0,
        "A: in training a lemma or form that occurs c times becomes <unk> with probability A / (A + c), so that <unk> "
        "is learnt (Kiperwasser and Goldberg 2016 take 0.25)",
    )
    init: ChoiceEnum(INITIALISATIONS) = flag(
        "orthogonal",
        "initialisation of recurrent layers, embeddings, soft-max and attention ('orthogonal': of recurrent layers, "
        "the others are uniform in ±0.1 then); biases are zero, tensors and gates as their cell says, what reads "
        "characters and what pools as PyTorch or the paper has it",
    )
    init_scale: float = flag(1.0, "gain of orthogonal, bound of uniform, or standard deviation of normal weights")
    init_embedding: Optional[float] = flag(
        None,
        "bound of uniform embeddings of the input columns but characters, and of what is read where the words have "
        "ended (default: as --init and --init-scale say, and 0); 1.732 has variance 1, as TensorFlow 1's "
        "EmbeddingWrapper has it by itself",
    )
    recurrence: Recurrence = recurrence_flag()


def check_settings(cfg) -> None:
    """``ValueError`` naming flag, value and range of the first shared setting that is out of range."""
    for name in ("embed_dim", "tag_embed_dim", "char_embed_dim", "char_filters", "char_width", "hidden_size", "layers"):
        check_range(name, getattr(cfg, name), 1)
    for name in ("dropout", "dropout_embedding", "dropout_between", "dropout_output"):
        if getattr(cfg, name) is not None:
            check_range(name, getattr(cfg, name), 0.0, 1.0)
    check_range("word_dropout", cfg.word_dropout, 0.0)
    if cfg.init_embedding is not None:
        check_range("init_embedding", cfg.init_embedding, 0.0, math.inf)
    if str(cfg.char_encoder) == "lstm" and cfg.char_width != SentenceModelConfig.char_width:
        logger.warning("--char-width has no effect: it is of the convolution, and --char-encoder is lstm")


def check_task(task) -> None:
    """``ValueError`` unless it is a task of labels for the words of sentences."""
    if not hasattr(task, "input_columns"):
        raise ValueError(
            "this architecture labels the words of sentences: it needs --task conllu_tagging or conllu_parsing"
        )


def dropout_at(cfg, place: str) -> float:
    """The dropout probability at ``embedding``, ``between`` or ``output``."""
    own = getattr(cfg, f"dropout_{place}")
    return cfg.dropout if own is None else own


class DictionaryCheck(nn.Module):
    """Refuses a checkpoint that was trained with other dictionaries, before torch lists every mismatched shape."""

    def __init__(self, dictionaries: Dict[str, object]) -> None:
        super().__init__()
        self.names = list(dictionaries)
        for name, dictionary in dictionaries.items():
            # "version" in the name keeps averages of weights (EMA) away from it
            self.register_buffer(f"{name}_version", torch.tensor(fingerprint(dictionary)))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        stored = [key.removeprefix(prefix).removesuffix("_version") for key in state_dict if key.startswith(prefix)]
        if stored and stored != self.names:
            raise ValueError(
                f"the checkpoint was trained with the columns {', '.join(stored)}, not with {', '.join(self.names)}"
            )
        for name in stored:
            if int(state_dict[f"{prefix}{name}_version"]) != int(getattr(self, f"{name}_version")):
                raise ValueError(
                    f"the checkpoint was trained with another dictionary of {name!r} than the data folder's"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


class SentenceEmbedding(nn.Module):
    """The embeddings of a sentence's input columns, concatenated.

    Args:
        cfg: a :class:`SentenceModelConfig`.
        task: has ``input_columns`` (names in order), ``dictionaries`` (by column) and ``vectors(column)``.
    """

    def __init__(self, cfg, task) -> None:
        super().__init__()
        self.columns = [column for column in task.input_columns if column != "char"]
        self.first = task.source_column
        dictionaries = {column: task.dictionaries[column] for column in task.input_columns}
        self.embed = nn.ModuleDict()
        self.vectors = nn.ModuleDict()
        self.output_size = 0
        for column in self.columns:
            dictionary = dictionaries[column]
            size = cfg.tag_embed_dim if column in TAG_COLUMNS else cfg.embed_dim
            self.embed[column] = nn.Embedding(len(dictionary), size, dictionary.pad())
            self.output_size += size
            vectors = task.vectors(column)
            if vectors is not None:
                table = torch.from_numpy(vectors)
                self.vectors[column] = nn.Embedding.from_pretrained(
                    table, freeze=cfg.freeze_vectors, padding_idx=dictionary.pad()
                )
                self.output_size += table.size(1)
        if cfg.freeze_vectors and not self.vectors:
            logger.warning("--freeze-vectors has no effect: the data folder has no pretrained vectors of these columns")
        self.characters = None
        if "char" in task.input_columns:
            symbols = dictionaries["char"]
            sizes = (len(symbols), symbols.pad(), cfg.char_embed_dim, cfg.char_filters)
            if str(cfg.char_encoder) == "lstm":
                self.characters = CharacterLSTM(*sizes)
            else:
                self.characters = CharacterConvolution(*sizes, cfg.char_width)
            self.output_size += cfg.char_filters
        self.dropout = Dropout(dropout_at(cfg, "embedding"), self)
        self.check = DictionaryCheck({**dictionaries, "labels": task.target_dictionary})
        self.unknown = {column: dictionaries[column].unk() for column in self.columns}
        self.word_dropout = cfg.word_dropout
        for column in self.columns:
            counts = torch.tensor(dictionaries[column].count)
            counts[: dictionaries[column].nspecial] = 2**62  # never dropped
            # whole numbers stay exact when the model is turned into half precision
            self.register_buffer(f"{column}_counts", counts, persistent=False)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for column in self.columns:
            stored = state_dict.get(f"{prefix}vectors.{column}.weight")
            stored = 0 if stored is None else stored.size(1)
            own = self.vectors[column].embedding_dim if column in self.vectors else 0
            if stored != own and any(key.startswith(prefix) for key in state_dict):
                raise ValueError(
                    f"the checkpoint was trained with {stored or 'no'} values of a pretrained vector for {column}, "
                    f"the data folder has {own or 'none'}"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, src_tokens: Tensor, columns: Optional[Dict[str, Tensor]], characters: Optional[Tensor]):
        """
        Args:
            src_tokens: symbols of the first column, ``[B, S]``.
            columns: symbols of the others, ``[B, S]`` each.
            characters: ``[B, S, C]``, if characters are an input.
        Returns:
            ``[B, S, E']``, and the symbols of the first column ``[B, S]`` after word dropout, for cells
            whose matrices depend on the symbol.
        """
        parts, read = [], src_tokens
        for column in self.columns:
            tokens = src_tokens if column == self.first else columns[column]
            counts = getattr(self, f"{column}_counts")[tokens]
            hidden = counts == 0  # words that have a pretrained vector and no training
            if self.training and self.word_dropout and column not in TAG_COLUMNS:
                draw = 1 - torch.rand(tokens.shape, device=tokens.device)  # above 0
                hidden |= draw * (self.word_dropout + counts) < self.word_dropout
            dropped = tokens.masked_fill(hidden, self.unknown[column])
            if column == self.first:
                read = dropped
            parts.append(self.embed[column](dropped))
            if column in self.vectors:
                parts.append(self.vectors[column](tokens))
        if self.characters is not None:
            parts.append(self.characters(characters))
        return self.dropout(torch.cat(parts, dim=-1)), read


@torch.no_grad()
def initialise(model: nn.Module, scheme: str, scale: float, embedding: Optional[float] = None) -> None:
    """Fill the weights of cells, embeddings, linear layers and attentions; biases and padding with zero.

    Pretrained vectors, poolings and what makes vectors of characters' embeddings keep what they have.

    Args:
        embedding: bound of uniform embeddings of the input columns (not of characters) and of fillers; ``None``:
            embeddings are as *scheme* and *scale* have them, fillers as they are.
    """
    around = (scheme, scale) if scheme != "orthogonal" else ("uniform", 0.1)
    inside_cells = {id(part) for cell in model.modules() if isinstance(cell, Cell) for part in cell.modules()}
    for module in model.modules():
        if isinstance(module, Cell):
            module.initialise(scheme, scale)
        elif id(module) in inside_cells:
            continue
        elif isinstance(module, SentenceEmbedding):
            inside_cells |= {id(part) for part in module.vectors.modules()}
        elif isinstance(module, nn.Embedding):
            fill_(module.weight, *around)
            if module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
        elif isinstance(module, nn.Linear):
            fill_(module.weight, *around)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, AdditiveAttention):
            for weight in module.parameters():
                fill_(weight.unsqueeze(0) if weight.dim() == 1 else weight, *around)
    if embedding is None:
        return
    for module in model.modules():
        if isinstance(module, SentenceEmbedding):
            if not module.embed:
                logger.warning("--init-embedding has no effect on characters, the only input column")
            for table in module.embed.values():
                fill_(table.weight, "uniform", embedding)
                table.weight[table.padding_idx] = 0
        if getattr(module, "filler", None) is not None:
            fill_(module.filler, "uniform", embedding)
