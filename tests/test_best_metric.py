"""When a choice of the best checkpoint is refused, and when not."""

import pytest
from fairseq.criterions.cross_entropy import CrossEntropyCriterion

from rntn_plugins.tasks.best_metric import BestMetricConfig, check_best_metric

LOWER, HIGHER = ["loss", "repaired"], ["las"]


class OwnCriterion(CrossEntropyCriterion):
    pass


def check(metric, maximize, kind=CrossEntropyCriterion, disable_validation=False):
    cfg = BestMetricConfig(
        best_checkpoint_metric=metric, maximize_best_checkpoint_metric=maximize, disable_validation=disable_validation
    )
    check_best_metric(cfg, kind.__new__(kind), LOWER, HIGHER)


@pytest.mark.parametrize("metric, maximize", [("loss", False), ("repaired", False), ("las", True)])
def test_what_is_right_passes(metric, maximize):
    check(metric, maximize)


@pytest.mark.parametrize("metric, maximize, message", [
    ("uas", True, "uas: validation logs loss, repaired, las$"),
    ("las", False, "las is better when higher: add --maximize"),
    ("repaired", True, "repaired is better when lower: leave out --maximize"),
])  # fmt: skip
def test_what_is_wrong_is_refused(metric, maximize, message):
    with pytest.raises(ValueError, match=f"--best-checkpoint-metric {message}"):
        check(metric, maximize)
    check(metric, maximize, disable_validation=True)  # nothing is chosen then
    check(metric, maximize, kind=OwnCriterion)  # which may log whatever it likes
