"""A learning rate that is halved when validation improves too little from one epoch to the next (S18 §4)."""

import logging
import math
from dataclasses import dataclass, field
from typing import List

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

logger = logging.getLogger(__name__)

#: validation metrics in bits (their difference is a ratio of perplexities), and perplexity itself
IN_BITS = ("loss", "bpc")
AS_PERPLEXITY = ("ppl",)


@dataclass
class ValidationRatioConfig(FairseqDataclass):
    lr_ratio: float = field(
        default=1.003,
        metadata={"help": "shrink after an epoch whose previous/current validation perplexity is below this"},
    )
    lr_shrink: float = field(default=0.5, metadata={"help": "factor of the learning rate then"})
    stop_after: int = field(default=5, metadata={"help": "stop training after so many such epochs in a row (0: never)"})
    lr: List[float] = II("optimization.lr")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")


@register_lr_scheduler("validation_ratio", dataclass=ValidationRatioConfig)
class ValidationRatioSchedule(FairseqLRScheduler):
    """Shrink when previous/current validation perplexity < ``--lr-ratio``.

    S18: 1.003, halved, stop after 5 such epochs in a row. T16 ("when the cost of the development set is greater than
    in the previous epoch"): ``--lr-ratio 1.0 --stop-after 0``. The ratio is taken of the first validation subset's
    ``--best-checkpoint-metric`` (loss, bpc or ppl). Epochs without validation change nothing. One whose
    validation is NaN, or stays infinite, is no improvement; the next is compared with the last that was a number.

    Raises:
        ValueError: more than one ``--lr``, a ratio not above 0, a shrink factor outside (0, 1], another metric.
    """

    def __init__(self, cfg: ValidationRatioConfig, optimizer) -> None:
        super().__init__(cfg, optimizer)
        if len(cfg.lr) > 1:
            raise ValueError(f"--lr-scheduler validation_ratio takes one --lr, not {list(cfg.lr)}")
        if not 0 < cfg.lr_ratio < math.inf:
            raise ValueError(f"--lr-ratio {cfg.lr_ratio} must be above 0 and finite")
        if not 0 < cfg.lr_shrink <= 1:
            raise ValueError(f"--lr-shrink {cfg.lr_shrink} must be in (0, 1]")
        if cfg.best_checkpoint_metric not in IN_BITS + AS_PERPLEXITY:
            raise ValueError(
                f"--lr-scheduler validation_ratio needs --best-checkpoint-metric {', '.join(IN_BITS + AS_PERPLEXITY)}, "
                f"not {cfg.best_checkpoint_metric}"
            )
        self.lr, self.previous, self.poor_epochs = cfg.lr[0], None, 0
        self.optimizer.set_lr(self.lr)

    def state_dict(self) -> dict:
        return {"lr": self.lr, "previous": self.previous, "poor_epochs": self.poor_epochs}

    def load_state_dict(self, state: dict) -> None:
        self.lr, self.previous, self.poor_epochs = state["lr"], state["previous"], state["poor_epochs"]

    def gain(self, value: float) -> float:
        """log2 of previous/current perplexity; NaN where one of them is, or both are infinite."""
        if self.cfg.best_checkpoint_metric in AS_PERPLEXITY:
            return math.log2(self.previous) - math.log2(value)
        return self.previous - value

    def step(self, epoch, val_loss=None):
        """At the end of an epoch: compare, shrink."""
        super().step(epoch, val_loss)
        if val_loss is not None:
            gain = math.inf if self.previous is None else self.gain(val_loss)
            if not gain >= math.log2(self.cfg.lr_ratio):  # nor is it where validation is NaN
                self.lr *= self.cfg.lr_shrink
                self.poor_epochs += 1
                logger.info(f"validation ratio {2.0**gain:.4f}: learning rate {self.lr:g}")
            else:
                self.poor_epochs = 0
            if not math.isnan(val_loss):
                self.previous = val_loss
        return self.step_update(0)

    def step_update(self, num_updates):
        """The learning rate; once training should stop, one below any ``--stop-min-lr``, which fairseq stops at."""
        finished = 0 < self.cfg.stop_after <= self.poor_epochs
        lr = float("-inf") if finished else self.lr
        self.optimizer.set_lr(lr)
        return lr
