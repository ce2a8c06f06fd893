"""fairseq generators of label sequences: one pass for labellers, beam search that can be held to the right labels."""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional

import numpy as np
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn


class Allowed(NamedTuple):
    """Which labels may stand where in one sentence."""

    any_of: Tensor  # [L, V], true where a label may stand
    arcs: Optional[np.ndarray] = None  # parsing: the label of head h for word d, [n, n + 1], -1 where there is none


class Scores:
    """A scorer for ``fairseq-generate`` that prints what the task has counted."""

    def __init__(self, task) -> None:
        self.task = task

    def add(self, reference, hypothesis) -> None:
        """Nothing: the task has counted already."""

    def add_string(self, reference, hypothesis) -> None:
        """Nothing: the task has counted already."""

    def result_string(self) -> str:
        return self.task.summary()

    def __deepcopy__(self, memo) -> Scores:
        return self  # an EMA copies the model with its dictionaries, which hold this


class LabelGenerator(nn.Module):
    """Labels of models that put out all of them at once: the best label at each position.

    Several models: the mean of their probabilities.

    Args:
        models: labellers.
        output: ``combined``, or ``forward`` or ``backward`` of the DBRNN.
    Raises:
        ValueError: a model without that output.
    """

    symbols_to_strip_from_output: set = set()

    def __init__(self, models, output: str = "combined") -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.output = output
        self.latest: Optional[Tensor] = None  # what generate() has computed for its sample
        self.eval()

    @torch.no_grad()
    def log_probabilities(self, sample: dict, hypotheses=None) -> Tensor:
        """``[B, L, V]``; with the *hypotheses* of the latest sample, what they were found with."""
        if hypotheses is not None:
            return self.latest
        return mean_log_probabilities([self.one(model, sample) for model in self.models])

    def one(self, model, sample: dict) -> Tensor:
        logits, extra = model(**sample["net_input"])
        if self.output != "combined":
            if self.output not in extra["branches"]:
                raise ValueError(f"--dbrnn-output {self.output}: only the DBRNN has that output")
            logits = extra["branches"][self.output]
        return model.get_normalized_probs((logits, extra), log_probs=True)

    def generate(self, models, sample: dict, allowed: Optional[List[Tensor]] = None, **kwargs) -> List[List[dict]]:
        """Hypotheses in fairseq's form, one a sentence.

        Args:
            allowed: labels that may stand at each position, ``[L, V]`` each; ``None``: any that the model knows.
        """
        if kwargs.get("prefix_tokens") is not None or kwargs.get("constraints") is not None:
            raise ValueError("--prefix-size and --constraints need an encoder-decoder: this model has no prefix")
        log_probabilities = self.latest = self.log_probabilities(sample)
        found = []
        for row, length in enumerate(sample["net_input"]["target_lengths"].tolist()):
            scores = log_probabilities[row, :length]
            if allowed is not None:
                scores = scores.masked_fill(~allowed[row][:length].to(scores.device), -math.inf)
            best, tokens = scores.max(-1)
            found.append([hypothesis(tokens, best)])
        return found


def hypothesis(tokens: Tensor, scores: Tensor) -> dict:
    empty = torch.empty(0)
    return {
        "tokens": tokens,
        "score": scores.mean() if len(scores) else scores.new_zeros(()),
        "attention": empty,
        "alignment": empty,
        "positional_scores": scores,
    }


def mean_log_probabilities(each: List[Tensor]) -> Tensor:
    return each[0] if len(each) == 1 else torch.logsumexp(torch.stack(each), 0) - math.log(len(each))


class LabelSequenceGenerator(SequenceGenerator):
    """fairseq's beam search over labels, which can be held to the labels that may stand at each position."""

    def __init__(self, models, tgt_dict, **kwargs) -> None:
        super().__init__(models, tgt_dict, **kwargs)
        self.allowed: Dict[int, Tensor] = {}
        self.lengths: Dict[int, int] = {}
        self.prefix = 0
        self.unrestricted = self.search.step
        self.search.step = self.restricted
        self.search.stop_on_max_len = True  # with few allowed labels a wide beam may not fill up

    def restricted(self, step, lprobs, scores=None, prev_output_tokens=None, original_batch_idxs=None, **kwargs):
        """One step of the search, other labels than the allowed ones at -inf; behind the last position only the end."""
        for row, sentence in enumerate(original_batch_idxs.tolist()):
            if step < self.prefix:
                continue  # these labels are given, whatever they are
            if step >= self.lengths[sentence]:
                end = lprobs[row, :, self.eos].clone()
                lprobs[row].fill_(-math.inf)
                lprobs[row, :, self.eos] = end
            elif self.allowed:
                lprobs[row].masked_fill_(~self.allowed[sentence][step].to(lprobs.device), -math.inf)
        return self.unrestricted(step, lprobs, scores, prev_output_tokens, original_batch_idxs, **kwargs)

    @torch.no_grad()
    def generate(self, models, sample: dict, allowed: Optional[List[Tensor]] = None, **kwargs) -> List[List[dict]]:
        """As fairseq's; *allowed* as in :meth:`LabelGenerator.generate`."""
        sentences = sample["id"].tolist()
        self.allowed = {} if allowed is None else dict(zip(sentences, allowed))
        self.lengths = dict(zip(sentences, sample["net_input"]["target_lengths"].tolist()))
        prefix = kwargs.get("prefix_tokens")
        self.prefix = 0 if prefix is None else prefix.size(1)
        return super().generate(models, sample, **kwargs)

    @torch.no_grad()
    def log_probabilities(self, sample: dict, hypotheses: List[List[dict]]) -> Tensor:
        """Of every label at every position behind the best hypothesis so far, ``[B, L, V]``."""
        lengths = sample["net_input"]["target_lengths"].tolist()
        previous = sample["net_input"]["src_tokens"].new_full((len(lengths), max(lengths)), self.pad)
        for row, (length, found) in enumerate(zip(lengths, hypotheses)):
            tokens = found[0]["tokens"][: length - 1]
            previous[row, :length] = self.eos  # also where a hypothesis ended too early
            previous[row, 1 : len(tokens) + 1] = tokens
        net_input = {**sample["net_input"], "prev_output_tokens": previous}
        return mean_log_probabilities(
            [model.get_normalized_probs(model(**net_input), log_probs=True) for model in self.model.models]
        )
