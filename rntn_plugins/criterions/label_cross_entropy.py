"""Cross-entropy of labels, summed over all outputs of a model."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II


@dataclass
class LabelCrossEntropyConfig(FairseqDataclass):
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("label_cross_entropy", dataclass=LabelCrossEntropyConfig)
class LabelCrossEntropy(FairseqCriterion):
    """e + e_f + e_b for the DBRNN (E18 §4.2), e alone for models with one output, -log a^l - log a^r and the relations'
    cross-entropy for bi-attention (Cheng et al. 2016).

    E18 sends each of the three errors back by itself; their gradients add up to the sum's. Clipping and AdaGrad's
    scaling act on what has been added up: one update a batch, not one an error.

    ``loss`` is that sum, ``nll_loss`` and ``ppl`` are those of the model's prediction, all in bits per label; branches
    have their own, ``loss_forward`` and ``loss_backward``.
    """

    def __init__(self, task, sentence_avg: bool) -> None:
        super().__init__(task)
        self.sentence_avg = sentence_avg

    def forward(self, model, sample, reduce=True):
        """Returns the loss, what to divide its gradient by, and what to log."""
        logits, extra = model(**sample["net_input"])
        target = model.get_targets(sample, (logits, extra))

        def cross_entropy(scores):
            return F.cross_entropy(
                scores.float().flatten(0, 1), target.flatten(), ignore_index=self.padding_idx,
                reduction="sum" if reduce else "none",
            )  # fmt: skip

        nll_loss = loss = cross_entropy(logits)
        objective = extra.get("objective")
        if objective is not None:
            loss = F.nll_loss(
                objective.float().flatten(0, 1), target.flatten(), ignore_index=self.padding_idx,
                reduction="sum" if reduce else "none",
            )  # fmt: skip
        log = {}
        for name, scores in extra.get("branches", {}).items():
            branch = cross_entropy(scores)
            loss = loss + branch
            log[f"loss_{name}"] = branch.detach().sum()
        rows = target.size(0)
        sample_size = rows if self.sentence_avg else sample["ntokens"]
        log.update(
            loss=loss.detach().sum(), nll_loss=nll_loss.detach().sum(), ntokens=sample["ntokens"], nsentences=rows,
            sample_size=sample_size,
        )  # fmt: skip
        return loss, sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        """Bits per label, whatever the gradient is divided by (``--sentence-avg``)."""
        labels = sum(log["ntokens"] for log in logging_outputs)
        if not labels:
            return
        names = [name for name in logging_outputs[0] if name == "nll_loss" or name.startswith("loss")]
        for name in names:
            total = sum(log[name] for log in logging_outputs)
            metrics.log_scalar(name, float(total) / labels / math.log(2), labels, round=3)
        metrics.log_derived("ppl", lambda meters: 2 ** min(float(meters["nll_loss"].avg), 100))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
