"""Encoder-decoders over any cell: sequence to sequence, without and with attention (E18 §4.1)."""

from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor, nn

from rntn_plugins.cells.base import Carry, carry_tensors, map_carry
from rntn_plugins.layers.attention import AdditiveAttention
from rntn_plugins.layers.attentive import Attentive, AttentiveCarry
from rntn_plugins.layers.bidirectional import BidirectionalStack
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.models.common import (
    SentenceEmbedding,
    SentenceModelConfig,
    check_settings,
    check_task,
    dropout_at,
    initialise,
)  # fmt: skip
from rntn_plugins.models.settings import build_cells, check_range, flag, set_recurrence
from rntn_plugins.symbols import is_filler


@dataclass
class Seq2SeqAttentionConfig(SentenceModelConfig):
    bidirectional_encoder: bool = flag(
        False, "attend to both directions of a bidirectional encoder; the decoder starts from the forward one's state"
    )
    attention_size: Optional[int] = flag(None, "A: size of the attention's hidden layer (default: --hidden-size)")


class SentenceEncoder(FairseqEncoder):
    """Reads a sentence, first word first; puts out what it remembers of each word and its last state.

    Sutskever et al. (2014) and Vinyals et al. (2015), whom E18 names, read the last word first; E18 does not say.

    With ``--fixed-length N`` the filler behind the words is read too, and attended to, as E18 does.
    """

    def __init__(self, cfg, task, cells) -> None:
        super().__init__(task.source_dictionary)
        self.fixed_length = task.fixed_length
        self.embed = SentenceEmbedding(cfg, task)
        self.filler = None if self.fixed_length is None else nn.Parameter(torch.zeros(self.embed.output_size))
        between = dropout_at(cfg, "between")
        sizes = [self.embed.output_size]
        if getattr(cfg, "bidirectional_encoder", False):
            sizes += [2 * cfg.hidden_size] * (cfg.layers - 1)
            self.stack = BidirectionalStack(list(zip(cells(sizes), cells(sizes))), between)
            self.output_size = self.stack.output_size
        else:
            sizes += [cfg.hidden_size] * (cfg.layers - 1)
            self.stack = RecurrentStack(cells(sizes), between)
            self.output_size = cfg.hidden_size
        self.dropout = Dropout(dropout_at(cfg, "output"), self)

    def forward(self, src_tokens, src_lengths, columns=None, characters=None, target_lengths=None):
        """
        Args:
            src_tokens, src_lengths, columns, characters: as for a labeller.
        Returns:
            ``memory`` ``[S, B, M]``, ``mask`` ``[S, B]`` (true on padding) and ``carry``, the tensors of the state
            after the last word, ``[B, ...]`` each.
        """
        x, tokens = self.embed(src_tokens, columns, characters)
        x, tokens, lengths = x.transpose(0, 1), tokens.t(), src_lengths  # time-major from here
        mask = torch.arange(x.size(0), device=x.device).unsqueeze(1) >= lengths  # [S, B]
        if self.fixed_length is not None:
            missing = self.fixed_length - x.size(0)
            x = torch.where(mask.unsqueeze(2), self.filler, x)
            x = torch.cat([x, self.filler.expand(missing, x.size(1), -1)])
            tokens = torch.cat([tokens, tokens.new_full((missing, tokens.size(1)), self.dictionary.pad())])
            lengths, mask = None, mask.new_zeros(len(x), x.size(1))
        memory, carry = self.stack(x, tokens, lengths)
        if isinstance(self.stack, BidirectionalStack):
            carry = tuple(ahead for ahead, _ in carry)
        return {"memory": [self.dropout(memory)], "mask": [mask], "carry": carry_tensors(carry)}

    def reorder_encoder_out(self, encoder_out: Dict[str, List[Tensor]], new_order: Tensor):
        """Beam search: row i goes on from what was row ``new_order[i]``."""
        return {
            name: [tensor.index_select(0 if name == "carry" else 1, new_order) for tensor in tensors]
            for name, tensors in encoder_out.items()
        }

    def max_positions(self) -> int:
        """No limit but memory."""
        return int(1e6)


def continued(own: Carry, tensors: List[Tensor]) -> Carry:
    """A carry whose vectors are the encoder's last ones (a flat list); its counters stay as they are."""
    given = iter(tensors)

    def choose(mine: Tensor) -> Tensor:
        last = next(given)
        return last if last.is_floating_point() else mine

    return map_carry(choose, own)


class LabelDecoder(FairseqIncrementalDecoder):
    """Predicts a label from the labels before it, starting from the encoder's last state (Sutskever et al. 2014)."""

    def __init__(self, cfg, dictionary, cells, memory_size: int) -> None:
        super().__init__(dictionary)
        self.embed_tokens = nn.Embedding(len(dictionary), cfg.embed_dim, dictionary.pad())
        self.dropout_embedding = Dropout(dropout_at(cfg, "embedding"), self)
        self.build_network(cfg, cells, memory_size)
        self.dropout_output = Dropout(dropout_at(cfg, "output"), self)
        never = torch.tensor([is_filler(dictionary, index) for index in range(len(dictionary))])
        self.register_buffer("never", torch.zeros(len(dictionary)).masked_fill(never, float("-inf")), persistent=False)

    def build_network(self, cfg, cells, memory_size: int) -> None:
        sizes = [cfg.embed_dim] + [cfg.hidden_size] * (cfg.layers - 1)
        self.network = RecurrentStack(cells(sizes), dropout_at(cfg, "between"))
        self.output_projection = nn.Linear(cfg.hidden_size, len(self.dictionary))

    def initial_carry(self, encoder_out: dict) -> Carry:
        """The encoder's state where it is a vector; counters (of positions, of time steps) start anew."""
        return continued(self.network.initial_carry(encoder_out["mask"][0].size(1)), encoder_out["carry"])

    def run(self, x: Tensor, tokens: Tensor, encoder_out: dict, carry: Carry):
        """``[T, B, E]`` to outputs ``[T, B, H']``, attention weights ``[T, S, B]`` or ``None``, and the carry."""
        outputs, carry = self.network(x, tokens, None, carry)
        return outputs, None, carry

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, **unused):
        """
        Args:
            prev_output_tokens: the end symbol and the labels so far, ``[B, T]``, padded on the right.
            encoder_out: what the encoder gave.
            incremental_state: given in generation: only the last label is read, the state comes from here.
        Returns:
            logits ``[B, T, V]`` and a dict with the attention weights ``attn`` ``[B, T, S]`` (or ``None``).
        """
        tokens = prev_output_tokens.t()
        carry = self.initial_carry(encoder_out)
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, "carry")
            if saved is not None:
                stored = iter([saved[str(number)] for number in range(len(saved))])
                tokens, carry = tokens[-1:], map_carry(lambda _: next(stored), carry)
        x = self.dropout_embedding(self.embed_tokens(tokens))
        outputs, weights, carry = self.run(x, tokens, encoder_out, carry)
        if incremental_state is not None:
            saved = {str(number): tensor for number, tensor in enumerate(carry_tensors(carry))}
            self.set_incremental_state(incremental_state, "carry", saved)
        logits = self.output_projection(self.dropout_output(outputs)) + self.never
        attention = None if weights is None else weights.permute(2, 0, 1)
        return logits.transpose(0, 1), {"attn": attention}

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Beam search: row i goes on from what was row ``new_order[i]``."""
        saved = self.get_incremental_state(incremental_state, "carry")
        if saved is not None:
            moved: Dict[str, Optional[Tensor]] = {key: part.index_select(0, new_order) for key, part in saved.items()}
            self.set_incremental_state(incremental_state, "carry", moved)

    def max_positions(self) -> int:
        """No limit but memory."""
        return int(1e6)


class AttentiveLabelDecoder(LabelDecoder):
    """The same with the attention of Vinyals et al. 2015 over the encoder's outputs."""

    def build_network(self, cfg, cells, memory_size):
        size = cfg.hidden_size if cfg.attention_size is None else cfg.attention_size
        check_range("attention_size", size, 1)
        sizes = [cfg.embed_dim + memory_size] + [cfg.hidden_size] * (cfg.layers - 1)
        stack = RecurrentStack(cells(sizes), dropout_at(cfg, "between"))
        self.network = Attentive(stack, AdditiveAttention(cfg.hidden_size, memory_size, size))
        self.output_projection = nn.Linear(cfg.hidden_size + memory_size, len(self.dictionary))

    def initial_carry(self, encoder_out):
        memory = encoder_out["memory"][0]
        layers, context = self.network.initial_carry(*memory.shape[1:])
        return AttentiveCarry(continued(layers, encoder_out["carry"]), context)

    def run(self, x, tokens, encoder_out, carry):
        memory, mask = encoder_out["memory"][0], encoder_out["mask"][0]
        if "projected" not in encoder_out:
            encoder_out["projected"] = [self.network.attention.project(memory)]
        return self.network(x, tokens, memory, encoder_out["projected"][0], mask, carry)


class Seq2Seq(FairseqEncoderDecoderModel):
    """Sequence to sequence (Sutskever et al. 2014), one cell in encoder and decoder."""

    cell: str = ""
    Config = SentenceModelConfig
    Decoder = LabelDecoder
    #: the last of its labels is the end symbol
    predicts_end = True
    outputs = ("combined",)

    @classmethod
    def build_model(cls, cfg, task):
        check_task(task)
        check_settings(cfg)

        def encoder_cells(sizes):
            return build_cells(cls.cell, cfg, sizes, task.source_dictionary, task.count_source_symbols)

        def decoder_cells(sizes):
            return build_cells(cls.cell, cfg, sizes, task.target_dictionary, task.count_labels, few=True)

        encoder = SentenceEncoder(cfg, task, encoder_cells)
        model = cls(encoder, cls.Decoder(cfg, task.target_dictionary, decoder_cells, encoder.output_size))
        initialise(model, str(cfg.init), cfg.init_scale, cfg.init_embedding)
        set_recurrence(model, cfg.recurrence)
        return model

    def forward(self, src_tokens, src_lengths, prev_output_tokens, **inputs):
        """Logits ``[B, L + 1, V]``, the end included, and a dict with the attention weights."""
        encoder_out = self.encoder(src_tokens, src_lengths, **inputs)
        return self.decoder(prev_output_tokens, encoder_out=encoder_out)

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        """Probabilities of the labels, or their logarithms, ``[B, L + 1, V]``."""
        logits = net_output[0].float()
        return torch.log_softmax(logits, -1) if log_probs else torch.softmax(logits, -1)


class Seq2SeqAttention(Seq2Seq):
    """Sequence to sequence with the attention of Vinyals et al. 2015, one cell in encoder and decoder."""

    Config = Seq2SeqAttentionConfig
    Decoder = AttentiveLabelDecoder
