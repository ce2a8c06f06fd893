"""The architecture ``kneser_ney_lm``: an n-gram model that fairseq's commands score as they score a neural one.

``scripts/kneser_ney.py`` counts it and writes its checkpoint; there is nothing to train. The formulas are in
:mod:`rntn_plugins.data.kneser_ney`.
"""

from dataclasses import dataclass
from typing import Optional, Sequence

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqIncrementalDecoder, FairseqLanguageModel, register_model
from torch import Tensor, nn

from rntn_plugins.data.kneser_ney import KneserNey, NGrams
from rntn_plugins.models.recurrent_decoder import fingerprint
from rntn_plugins.models.settings import check_range, flag
from rntn_plugins.symbols import is_filler

#: rows of probabilities of the whole vocabulary that are in memory at once in double precision
ROWS = 256
ORDERS = 101  # below it
ADVICE = "scripts/kneser_ney.py DATA_BIN --output FILE counts a text and writes a checkpoint"


@dataclass
class KneserNeyLMConfig(FairseqDataclass):
    order: int = flag(5, "N: a word is predicted from the N - 1 words before it")


@register_model("kneser_ney_lm", dataclass=KneserNeyLMConfig)
class KneserNeyLanguageModel(FairseqLanguageModel):
    """Interpolated modified Kneser-Ney, Chen and Goodman 1998."""

    @classmethod
    def build_model(cls, cfg, task):
        """A model without counts: they come from a checkpoint, or from :meth:`estimate`."""
        check_range("order", cfg.order, 1, ORDERS)
        return cls(KneserNeyDecoder(cfg.order, task.source_dictionary))

    def estimate(self, tokens: np.ndarray, fallback: Optional[Sequence[float]] = None) -> KneserNey:
        """Count a training text (see :meth:`KneserNey.estimate`)."""
        decoder = self.decoder
        tables = KneserNey.estimate(tokens, decoder.order, decoder.possible, decoder.dictionary.eos(), fallback)
        decoder.take(tables)
        return tables


class KneserNeyDecoder(FairseqIncrementalDecoder):
    """From symbols to log-probabilities of the next symbol, by tables.

    The state dict holds the tables as whole numbers, which no change of precision touches, and the discounts. What
    follows from them is computed in double precision on the CPU when they are loaded.

    Args:
        order: N.
        dictionary: the symbols.
    """

    def __init__(self, order: int, dictionary) -> None:
        super().__init__(dictionary)
        self.order = order
        self.possible = np.array([not is_filler(dictionary, index) for index in range(len(dictionary))])
        for n in range(1, order + 1):
            self.register_buffer(f"keys_{n}", torch.zeros(0, dtype=torch.int64))
            self.register_buffer(f"counts_{n}", torch.zeros(0, dtype=torch.int32))
        # fairseq asks a model's parameters where the model is, so there has to be one
        self.discounts = nn.Parameter(torch.zeros(order, 3, dtype=torch.float64))
        self.register_buffer("dictionary_version", torch.tensor(fingerprint(dictionary)))
        self.tables: Optional[KneserNey] = None

    def take(self, tables: KneserNey) -> None:
        """Become this model."""
        for n, level in enumerate(tables.levels, 1):
            setattr(self, f"keys_{n}", torch.from_numpy(level.keys))
            setattr(self, f"counts_{n}", torch.from_numpy(level.counts))
        self.discounts.data = torch.from_numpy(tables.discounts)
        self.tables = tables

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, src_lengths=None, stream=None):
        """
        Args:
            prev_output_tokens: symbols ``[B, T]``, padded on the right, ``</s>`` before every sentence.
            incremental_state: given in generation: only the next symbol's probabilities are asked for. Nothing is kept
                in it, as the symbols hold all that the model knows.
            src_lengths: valid symbols of each row ``[B]``; counted if left out.
            stream: where the last N - 1 symbols are kept from block to block, so that a sentence may be cut anywhere.
        Returns:
            log p ``[B, T, V]`` (in generation ``[B, 1, V]``), and a dict without content.
        """
        if self.training and torch.is_grad_enabled():
            raise ValueError(f"kneser_ney_lm is not trained: {ADVICE}")
        if self.tables is None:
            raise ValueError(f"kneser_ney_lm has no counts yet: {ADVICE}")
        tokens, known = prev_output_tokens.cpu(), self.order - 1
        stored = None
        if incremental_state is not None:
            tokens, stream = tokens[:, -max(1, known) :], None
        elif stream is not None:
            stored = stream.get(self)
        before = tokens.new_full((len(tokens), known), self.dictionary.pad()) if stored is None else stored[0]
        line = torch.cat([before, tokens], dim=1)
        if stream is not None:
            lengths = tokens.ne(self.dictionary.pad()).sum(1) if src_lengths is None else src_lengths.cpu()
            stream.put(self, [line.gather(1, lengths[:, None] + torch.arange(known))])
        contexts = self.tables.contexts(line.numpy())[..., known:]
        if incremental_state is not None:
            contexts = contexts[..., -1:]
        return self.log_probabilities(contexts).to(prev_output_tokens.device), {"attn": None}

    def log_probabilities(self, contexts: np.ndarray) -> Tensor:
        """log p after contexts ``[N, B, T]``: ``[B, T, V]``, -inf for symbols that no text can hold."""
        flat = contexts.reshape(self.order, -1)
        found = torch.empty(flat.shape[1], len(self.possible))
        for at in range(0, len(found), ROWS):
            found[at : at + ROWS] = torch.from_numpy(self.tables.distributions(flat[:, at : at + ROWS]))
        return found.log_().view(*contexts.shape[1:], -1)

    def max_positions(self) -> int:
        """No limit but memory."""
        return int(1e6)

    def upgrade_state_dict_named(self, state_dict, name):
        """Refuse a checkpoint of another dictionary or order."""
        prefix = f"{name}." if name else ""
        stored = state_dict.get(f"{prefix}dictionary_version")
        if stored is not None and int(stored) != int(self.dictionary_version):
            raise ValueError("the checkpoint was made with another dictionary than the data folder's")
        discounts = state_dict.get(f"{prefix}discounts")
        if discounts is not None and len(discounts) != self.order:
            raise ValueError(f"--order {self.order}, but the counts of the checkpoint are of order {len(discounts)}")
        return state_dict

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Make room for the tables, whose size only the checkpoint knows, load them, and compute the rest."""
        for name, buffer in list(self.named_buffers(recurse=False)):
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        keys, counts = ([getattr(self, f"{part}_{n}") for n in range(1, self.order + 1)] for part in ("keys", "counts"))
        if all(map(len, keys)):
            levels = [NGrams(key.cpu().numpy(), count.cpu().numpy()) for key, count in zip(keys, counts)]
            self.tables = KneserNey(levels, self.discounts.detach().cpu().numpy(), self.possible, self.dictionary.eos())
