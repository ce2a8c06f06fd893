"""``--best-checkpoint-metric`` looked at before the first epoch, not when validation has nothing of that name."""

from dataclasses import dataclass
from typing import Iterable

from fairseq.dataclass import FairseqDataclass
from omegaconf import II


@dataclass
class BestMetricConfig(FairseqDataclass):
    """The flags of the choice of checkpoint_best.pt, as a task sees them."""

    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")
    disable_validation: bool = II("dataset.disable_validation")


def check_best_metric(cfg: BestMetricConfig, criterion, lower: Iterable[str], higher: Iterable[str] = ()) -> None:
    """Refuse a metric that validation will not log, and one whose worst value would be taken for the best.

    fairseq raises ``KeyError`` after the first epoch for the one, and says nothing of the other.

    Args:
        criterion: one from elsewhere than fairseq or this package may log anything; then nothing is refused.
        lower: the metrics that validation logs and that are better when lower.
        higher: those that are better when higher.

    Raises:
        ValueError: ``--best-checkpoint-metric`` is in neither, or ``--maximize-best-checkpoint-metric`` is the wrong
            way round for it.
    """
    if cfg.disable_validation or not type(criterion).__module__.startswith(("fairseq.", "rntn_plugins.")):
        return
    lower, higher, name = tuple(lower), tuple(higher), cfg.best_checkpoint_metric
    if name not in lower + higher:
        raise ValueError(f"--best-checkpoint-metric {name}: validation logs {', '.join(lower + higher)}")
    if name in higher and not cfg.maximize_best_checkpoint_metric:
        raise ValueError(
            f"--best-checkpoint-metric {name} is better when higher: add --maximize-best-checkpoint-metric"
        )
    if name in lower and cfg.maximize_best_checkpoint_metric:
        raise ValueError(
            f"--best-checkpoint-metric {name} is better when lower: leave out --maximize-best-checkpoint-metric"
        )
