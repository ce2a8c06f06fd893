"""Bi-directional attention with agreement (Cheng et al. 2016), E18's comparison for dependency parsing."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn

from rntn_plugins.layers.attention import AdditiveAttention
from rntn_plugins.layers.attentive import Attentive
from rntn_plugins.layers.bidirectional import reverse_valid
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.models.common import SentenceModelConfig, dropout_at
from rntn_plugins.models.labellers import Labeller, LabelScores, build_bidirectional
from rntn_plugins.models.settings import check_range, flag


@dataclass
class BiAttentionConfig(SentenceModelConfig):
    attention_size: Optional[int] = flag(None, "A: size of the attention's hidden layer (default: --hidden-size)")


class BiAttention(Labeller):
    """The parser of Cheng et al. 2016 (*Bi-directional Attention with Agreement for Dependency Parsing*, EMNLP).

    A bidirectional network reads the root and the words: the memory m_0 ... m_n. Two query networks, left to right and
    right to left, read the words again, each with the soft headword m̃ of the word before it::

        q_t = RNN([x_t; m̃_{t-1}], q_{t-1})    u_tj = v' tanh(C m_j + D q_t)    a_t = softmax(u_t)    m̃_t = Σ_j a_tj m_j

    a_tj is the probability that m_j is the head of word t. Both directions are trained to find it, -log a^l - log a^r,
    and agree on the head with the highest product; the relation is predicted from both q_t and both m̃_t. Cheng et al.
    use GRUs and more input features; E18 gives it nothing but the input sequence. In tagging the attention is not
    trained to find anything, and a tag is predicted as a relation is.

    Heads have to be positions (``--head-encoding position``). Relation and head of a word come out together, whichever
    ``--label-layout`` the task has.
    """

    Config = BiAttentionConfig

    @classmethod
    def build_model(cls, cfg, task):
        if task.labels_per_word == 2 and task.settings["head_encoding"] != "position":
            raise ValueError("bi_attention points at heads: it needs --head-encoding position")
        return super().build_model(cfg, task)

    def kinds(self, task) -> Tensor:
        """Tags, or relations and heads, whatever the layout."""
        if task.labels_per_word == 1:
            return task.label_kinds
        self.names = [int(task.target_dictionary[index]) for index in task.heads.nonzero().squeeze(1).tolist()]
        relations = task.relations.clone()
        relations[task.target_dictionary.unk()] = True
        return torch.stack([relations, task.heads])

    def build_middle(self, cfg, cells, kinds):
        size = cfg.hidden_size if cfg.attention_size is None else cfg.attention_size
        check_range("attention_size", size, 1)
        self.root = nn.Parameter(torch.zeros(self.embed.output_size))
        self.memory = build_bidirectional(cfg, cells, self.embed.output_size)
        width = self.memory.output_size

        def query():
            sizes = [self.embed.output_size + width] + [cfg.hidden_size] * (cfg.layers - 1)
            stack = RecurrentStack(cells(sizes), dropout_at(cfg, "between"))
            return Attentive(stack, AdditiveAttention(cfg.hidden_size, width, size))

        self.forward_query, self.backward_query = query(), query()
        self.scores = LabelScores(2 * (cfg.hidden_size + width), kinds[:1])
        if len(kinds) == 2:  # position of each head's label
            self.register_buffer("positions", torch.tensor(self.names), persistent=False)

    def middle(self, x, tokens, lengths):
        memory, mask = self.remember(x, tokens, lengths)
        ahead, ahead_weights = self.ask(self.forward_query, x, tokens, memory, mask)
        back, back_weights = self.ask(
            self.backward_query, reverse_valid(x, lengths), reverse_valid(tokens, lengths), memory, mask
        )
        back, back_weights = reverse_valid(back, lengths), reverse_valid(back_weights, lengths)
        scores = self.scores(self.dropout_output(torch.cat([ahead, back], dim=-1)))
        if self.per_step == 1:
            return {"combined": scores}
        heads = self.heads(ahead_weights) + self.heads(back_weights)
        return {"combined": [*scores, heads], "objective": [torch.log_softmax(scores[0], -1), heads]}

    def remember(self, x: Tensor, tokens: Tensor, lengths: Optional[Tensor]):
        """The memory of root and words ``[1 + T, B, M]`` and its padding ``[1 + T, B]``."""
        batch = x.size(1)
        x = torch.cat([self.root.expand(1, batch, -1), x])
        tokens = torch.cat([tokens.new_full((1, batch), self.end), tokens])
        memory, _ = self.memory(x, tokens, None if lengths is None else lengths + 1)
        steps = torch.arange(len(x), device=x.device).unsqueeze(1)
        mask = torch.zeros_like(tokens, dtype=torch.bool) if lengths is None else steps > lengths
        return memory, mask

    def ask(self, query: Attentive, x: Tensor, tokens: Tensor, memory: Tensor, mask: Tensor):
        """Queries and soft headwords ``[T, B, H + M]``, and attention weights ``[T, B, 1 + T]``."""
        carry = query.initial_carry(*memory.shape[1:])
        outputs, weights, _ = query(x, tokens, memory, query.attention.project(memory), mask, carry)
        return outputs, weights.transpose(1, 2)

    def heads(self, weights: Tensor) -> Tensor:
        """Log-probabilities of the heads' labels ``[T, B, K]``; least where there is no such word."""
        tiny = torch.finfo(weights.dtype).tiny
        missing = int(self.positions.max()) + 1 - weights.size(-1)
        if missing > 0:
            weights = nn.functional.pad(weights, (0, missing))
        return weights[..., self.positions].clamp_min(tiny).log()
