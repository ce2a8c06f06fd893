"""Cross-entropy through the adaptive soft-max, every token counted."""

from dataclasses import dataclass

import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig
from omegaconf import II


@dataclass
class RNTNAdaptiveLossConfig(AdaptiveLossConfig):
    distributed_world_size: int = II("distributed_training.distributed_world_size")


@register_criterion("rntn_adaptive_loss", dataclass=RNTNAdaptiveLossConfig)
class RNTNAdaptiveLoss(AdaptiveLoss):
    """Cross-entropy through fairseq's adaptive soft-max (Grave et al. 2017).

    fairseq's own ``adaptive_loss`` compares targets *within a tail* with the index of ``<pad>``, so that the symbol
    at that place of every tail is never trained; here padding is taken out first and every other token counts.

    Raises:
        ValueError: the model has no adaptive soft-max; several workers without ``--ddp-backend legacy_ddp`` (a tail
            that no target of a batch needs has no gradient, which torch's own DDP does not accept).
    """

    @classmethod
    def build_criterion(cls, cfg: RNTNAdaptiveLossConfig, task):
        if cfg.distributed_world_size > 1 and str(cfg.ddp_backend) in ("c10d", "pytorch_ddp"):
            raise ValueError("--criterion rntn_adaptive_loss with several workers needs --ddp-backend legacy_ddp")
        return cls(task, cfg.sentence_avg)

    def forward(self, model, sample, reduce=True):
        adaptive_softmax = getattr(model.decoder, "adaptive_softmax", None)
        if adaptive_softmax is None:
            raise ValueError("--criterion rntn_adaptive_loss needs a model with --adaptive-softmax-cutoff")
        features = model(**sample["net_input"])[0]
        target = model.get_targets(sample, features)
        real = target.ne(self.padding_idx)
        scores, clusters = adaptive_softmax(features[real].unsqueeze(0), target[real])
        parts = [
            F.cross_entropy(score, cluster, reduction="sum")
            for score, cluster in zip(scores, clusters)
            if cluster is not None
        ]
        loss = sum(parts)
        ntokens = int(real.sum())
        sample_size = target.size(0) if self.sentence_avg else ntokens
        logging_output = {
            "loss": loss.data,
            "ntokens": ntokens,
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        return loss, sample_size, logging_output
