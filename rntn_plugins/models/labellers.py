"""Models that read a sentence and put out labels at every step: basic RNN, BRNN and DBRNN (E18 §4)."""

import logging
from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from rntn_plugins.layers.bidirectional import BidirectionalStack, Dependent
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.layers.pooling import POOLINGS
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

logger = logging.getLogger(__name__)


@dataclass
class LabellerConfig(SentenceModelConfig):
    stretch: ChoiceEnum(["pad", "repeat"]) = flag(
        "pad",
        "how n words fill 2n steps when relations and heads are interleaved: 'pad' behind them (E18), or 'repeat' each "
        "word",
    )


@dataclass
class DBRNNConfig(LabellerConfig):
    upper_layers: int = flag(1, "recurrent layers of the upper forward and of the upper backward network each")
    pooling: ChoiceEnum(list(POOLINGS)) = flag(
        "weighted-scores",
        "how the two upper networks become one prediction: w^f s^f + w^b s^b on scores, with one weight a label "
        "('weighted-scores') or with matrices ('scores'), or a mixture of their probabilities with one weight a label",
    )


class LabelScores(nn.Module):
    """Scores of all labels from hidden vectors, one linear layer for each kind of label that a step puts out.

    Args:
        size: of the hidden vectors.
        kinds: ``[k, V]``, true where a label is of a kind. Tagging: all labels; parallel parsing: relations, heads.
    """

    def __init__(self, size: int, kinds: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, int(kind.sum())) for kind in kinds)

    def forward(self, hidden: Tensor) -> List[Tensor]:
        return [layer(hidden) for layer in self.layers]


class Labeller(BaseFairseqModel):
    """The frame of all labellers: embedding, what a subclass puts in the middle, scores.

    A step puts out k labels, k = 1, or 2 for relation and head of a word in parallel. If a word has more labels than a
    step puts out (relations and heads interleaved), its n words are stretched over the 2n steps (``--stretch``).
    With ``--fixed-length N`` all N steps are read, padding too, as E18 does.
    """

    cell: str = ""
    Config = LabellerConfig
    #: the decoders of fairseq expect an end symbol behind the labels; labellers do not put one out
    predicts_end = False
    #: the names of its predictions
    outputs = ("combined",)

    @classmethod
    def build_model(cls, cfg, task):
        check_task(task)
        check_settings(cfg)
        return cls(cfg, task)

    def __init__(self, cfg, task) -> None:
        super().__init__()
        self.labels = len(task.target_dictionary)
        kinds = self.kinds(task)
        self.per_step = len(kinds)
        self.stretched = task.labels_per_word // self.per_step
        self.fixed_length = task.fixed_length
        self.pad, self.end = task.target_dictionary.pad(), task.target_dictionary.eos()
        self.stretch = str(getattr(cfg, "stretch", None))  # bi-attention never stretches
        if self.stretch == "repeat" and self.stretched == 1:
            logger.warning("--stretch repeat has no effect: every step puts out all labels of its word")
        for number, kind in enumerate(kinds):
            self.register_buffer(f"kind{number}", kind.nonzero().squeeze(1), persistent=False)
        self.embed = SentenceEmbedding(cfg, task)
        # what the model reads where the words have ended but the labels have not
        self.filler = nn.Parameter(torch.zeros(self.embed.output_size))
        self.dropout_output = Dropout(dropout_at(cfg, "output"), self)

        def cells(sizes):
            return build_cells(self.cell, cfg, sizes, task.source_dictionary, task.count_source_symbols)

        self.build_middle(cfg, cells, kinds)
        initialise(self, str(cfg.init), cfg.init_scale, cfg.init_embedding)
        set_recurrence(self, cfg.recurrence)

    # ---- what a labeller defines ----------------------------------------------------------------------------------

    def kinds(self, task) -> Tensor:
        """Which labels each of the k outputs of a step may be, ``[k, V]``."""
        return task.label_kinds

    def build_middle(self, cfg, cells, kinds) -> None:
        """Create the recurrent layers and scores; ``cells(input_sizes)`` gives a list of cells."""
        raise NotImplementedError

    def middle(self, x: Tensor, tokens: Tensor, lengths: Optional[Tensor]) -> Dict[str, List[Tensor]]:
        """``[T, B, E]`` to the scores of each branch, a list by kind; ``combined`` is the model's prediction.

        ``objective``, where there is one, are the log-probabilities that training makes large (default: ``combined``).
        """
        raise NotImplementedError

    # ---- fairseq -----------------------------------------------------------------------------------------------------

    def forward(self, src_tokens, src_lengths, target_lengths, columns=None, characters=None, prev_output_tokens=None):
        """
        Args:
            src_tokens: symbols of the first input column, ``[B, S]``, padded on the right.
            src_lengths: words of each sentence, ``[B]``.
            target_lengths: labels of each sentence, ``[B]``.
            columns: the other input columns, ``[B, S]`` each.
            characters: ``[B, S, C]``, where characters are an input.
        Returns:
            logits of the labels ``[B, L, V]``, -inf where a label is of another kind, and a dict with those of the
            other ``branches``.
        """
        x, tokens = self.embed(src_tokens, columns, characters)
        x, tokens = x.transpose(0, 1), tokens.t()  # time-major from here
        labels = int(target_lengths.max())
        lengths, steps = src_lengths, -(-labels // self.per_step)
        if self.fixed_length is not None:
            lengths, steps_read = None, self.fixed_length
        elif self.stretched > 1:
            lengths, steps_read = target_lengths, steps
        else:
            steps_read = steps
        if self.stretched > 1 and self.stretch == "repeat":
            x, tokens = x.repeat_interleave(self.stretched, 0), tokens.repeat_interleave(self.stretched, 0)
            src_lengths = src_lengths * self.stretched
        x, tokens = self.fill(x, tokens, src_lengths, steps_read)
        branches = {name: self.assemble(scores)[:, :labels] for name, scores in
                    self.middle(x, tokens, lengths).items()}  # fmt: skip
        extra = {"attn": None, "objective": branches.pop("objective", None), "branches": branches}
        return branches.pop("combined"), extra

    def fill(self, x: Tensor, tokens: Tensor, lengths: Tensor, steps: int):
        """Cut or fill up to *steps*: the filler's vector and the padding symbol behind each row's words."""
        missing = steps - x.size(0)
        if missing > 0:
            x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
            tokens = torch.cat([tokens, tokens.new_full((missing, tokens.size(1)), self.pad)])
        x, tokens = x[:steps], tokens[:steps]
        beyond = torch.arange(steps, device=x.device).unsqueeze(1) >= lengths  # [T, B]
        return torch.where(beyond.unsqueeze(2), self.filler, x), tokens

    def assemble(self, scores: List[Tensor]) -> Tensor:
        """Scores by kind, ``[T, B, K]`` each, to logits over all labels in the order of the targets, ``[B, L, V]``."""
        steps, rows = scores[0].shape[:2]
        logits = scores[0].new_full((rows, steps, self.per_step, self.labels), float("-inf"))
        for number, part in enumerate(scores):
            logits[:, :, number, getattr(self, f"kind{number}")] = part.transpose(0, 1)
        return logits.view(rows, steps * self.per_step, self.labels)

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        """Probabilities of the combined prediction, or their logarithms, ``[B, L, V]``."""
        logits = net_output[0].float()
        return torch.log_softmax(logits, -1) if log_probs else torch.softmax(logits, -1)

    def get_targets(self, sample, net_output):
        return sample["target"]

    def max_positions(self):
        """No limit but memory."""
        return None


class Basic(Labeller):
    """The basic one-directional RNN of E18."""

    def build_middle(self, cfg, cells, kinds):
        sizes = [self.embed.output_size] + [cfg.hidden_size] * (cfg.layers - 1)
        self.stack = RecurrentStack(cells(sizes), dropout_at(cfg, "between"))
        self.scores = LabelScores(self.stack.hidden_size, kinds)

    def middle(self, x, tokens, lengths):
        hidden, _ = self.stack(x, tokens, lengths)
        return {"combined": self.scores(self.dropout_output(hidden))}


def build_bidirectional(cfg, cells, input_size: int) -> BidirectionalStack:
    sizes = [input_size] + [2 * cfg.hidden_size] * (cfg.layers - 1)
    return BidirectionalStack(list(zip(cells(sizes), cells(sizes))), dropout_at(cfg, "between"))


class BRNN(Labeller):
    """The bidirectional RNN (Schuster and Paliwal 1997)."""

    def build_middle(self, cfg, cells, kinds):
        self.stack = build_bidirectional(cfg, cells, self.embed.output_size)
        self.scores = LabelScores(self.stack.output_size, kinds)

    def middle(self, x, tokens, lengths):
        hidden, _ = self.stack(x, tokens, lengths)
        return {"combined": self.scores(self.dropout_output(hidden))}


class DBRNN(Labeller):
    """The dependent bidirectional RNN (E18 eqs. (26)-(31), Fig. 3).

    A lower BRNN feeds an upper forward and an upper backward network, each with its own soft-max; the two predictions
    are pooled. The three outputs are ``combined``, ``forward`` and ``backward``; each has its cross-entropy in training
    (criterion ``label_cross_entropy``): that of the forward output reaches the upper forward network and the lower
    BRNN, that of the backward output the upper backward one and the lower BRNN, that of the combined output everything.
    No prediction is fed back: E18 conditions p^f and p^b on predicted labels in the text after (26), but its (31) and
    its Fig. 3 do not.
    """

    Config = DBRNNConfig
    outputs = ("combined", "forward", "backward")

    def build_middle(self, cfg, cells, kinds):
        check_range("upper_layers", cfg.upper_layers, 1)
        between = dropout_at(cfg, "between")
        lower = build_bidirectional(cfg, cells, self.embed.output_size)
        sizes = [lower.output_size] + [cfg.hidden_size] * (cfg.upper_layers - 1)
        self.network = Dependent(
            lower, RecurrentStack(cells(sizes), between), RecurrentStack(cells(sizes), between), between
        )
        self.forward_scores = LabelScores(cfg.hidden_size, kinds)
        self.backward_scores = LabelScores(cfg.hidden_size, kinds)
        self.pooling = nn.ModuleList(POOLINGS[str(cfg.pooling)](int(kind.sum())) for kind in kinds)

    def middle(self, x, tokens, lengths):
        ahead, back = self.network(x, tokens, lengths)
        ahead = self.forward_scores(self.dropout_output(ahead))
        back = self.backward_scores(self.dropout_output(back))
        combined = [pool(*pair) for pool, *pair in zip(self.pooling, ahead, back)]
        return {"combined": combined, "forward": ahead, "backward": back}
