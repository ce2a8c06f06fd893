"""AdaGrad with an accumulator that starts above zero, as TensorFlow's does (E18's experiments)."""

from dataclasses import dataclass, field
from typing import List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II


@dataclass
class AdagradTFConfig(FairseqDataclass):
    initial_accumulator_value: float = field(
        default=0.1, metadata={"help": "what the sum of squared gradients starts at (torch's and fairseq's adagrad: 0)"}
    )
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay", "argparse_alias": "--wd"})
    lr: List[float] = II("optimization.lr")


@register_optimizer("adagrad_tf", dataclass=AdagradTFConfig)
class AdagradTF(FairseqOptimizer):
    """As fairseq's ``adagrad``, θ ← θ − lr · g / √s with s ← s + g² (Duchi et al. 2011), but s starts at a, not at 0.

    With a = 0 the first step of every weight is ±lr, however small its gradient: at E18's rate of 0.5 that is many
    times the weights themselves. With TensorFlow's a = 0.1 it is lr · g / √(0.1 + g²), plain SGD at 3.2 · lr while the
    gradients are small. Unlike ``adagrad`` it has a dataclass, so ``fairseq-hydra-train`` knows it too.

    Raises:
        ValueError: a negative accumulator.
    """

    def __init__(self, cfg: AdagradTFConfig, params) -> None:
        super().__init__(cfg)
        if cfg.initial_accumulator_value < 0:
            raise ValueError(f"--initial-accumulator-value {cfg.initial_accumulator_value} must be at least 0")
        self._optimizer = torch.optim.Adagrad(
            params, initial_accumulator_value=cfg.initial_accumulator_value, **self.optimizer_config
        )

    @property
    def optimizer_config(self) -> dict:
        # Not the accumulator's start, which is in the state.
        return {"lr": self.cfg.lr[0], "weight_decay": self.cfg.weight_decay}

    @property
    def supports_flat_params(self) -> bool:
        return False
