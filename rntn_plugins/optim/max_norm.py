"""SGD with a bound on the norm of every unit's weight vector and hard clipping (H16 §6.1.5, §6.1.7)."""

import math
from dataclasses import dataclass, field
from typing import List

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import Tensor


@dataclass
class MaxNormSGDConfig(FairseqDataclass):
    momentum: float = field(default=0.0, metadata={"help": "momentum factor"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay", "argparse_alias": "--wd"})
    max_norm: float = field(
        default=0.0, metadata={"help": "largest L2 norm of a unit's incoming weights, a row of a matrix (0: no bound)"}
    )
    max_norm_of: ChoiceEnum(["all", "hidden"]) = field(
        default="all",
        metadata={
            "help": "which rows --max-norm bounds: of 'all' matrices, embeddings (a symbol's row) and soft-max among "
            "them, or of the 'hidden' layer alone: what recurrent cells have"
        },
    )
    clip_value: float = field(
        default=0.0,
        metadata={"help": "largest absolute value of a gradient's element, after --clip-norm (0: no limit)"},
    )
    lr: List[float] = II("optimization.lr")


@register_optimizer("max_norm_sgd", dataclass=MaxNormSGDConfig)
class MaxNormSGD(FairseqOptimizer):
    """As fairseq's ``sgd``, every element of a gradient brought to within ± ``--clip-value`` first; then every row of
    every weight matrix longer than ``--max-norm`` is scaled back to it. That holds from the start: initial weights are
    scaled back too.

    H16 bounds the *squared* norm, ‖w‖² ≤ c: give √c. A matrix [out, in] holds a unit's incoming weights in a row; in
    stacks, [K, H, H], the last dimension is bounded. Vectors (biases) are left alone. H16 says it of "each hidden
    unit", of which ``--max-norm-of hidden`` is the narrow reading: rows of embeddings and of the soft-max have no bound
    then; all that a recurrent cell has in two dimensions and more still has (the tables of token-indexed cells too).
    Unlike ``sgd`` it has a dataclass, so ``fairseq-hydra-train`` knows it too.

    Raises:
        ValueError: a bound or limit that is negative or no finite number; a bound on parameters that fairseq has
            flattened, or ``hidden`` and such as it has copied (half precision); ``hidden`` without a bound or without a
            recurrent cell.
    """

    def __init__(self, cfg: MaxNormSGDConfig, params) -> None:
        super().__init__(cfg)
        for name in ("max_norm", "clip_value"):
            if not 0 <= getattr(cfg, name) < math.inf:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(cfg, name)} must be at least 0 and finite")
        params = list(params)
        self.matrices = [parameter for parameter in params if parameter.dim() >= 2]  # with rows to bound
        if str(cfg.max_norm_of) == "hidden":
            self.matrices = [matrix for matrix in self.matrices if getattr(matrix, "of_hidden_units", False)]
            if cfg.max_norm == 0:
                raise ValueError("--max-norm-of hidden says what --max-norm bounds, which is not given")
            if not self.matrices:
                raise ValueError(
                    "--max-norm-of hidden sees no matrix of a recurrent cell; it does not go with --fp16 and --bf16, "
                    "whose copies of parameters fairseq steps instead"
                )
        elif cfg.max_norm > 0 and not self.matrices:
            raise ValueError("--max-norm sees no matrix; with --fp16 or --bf16 add --fp16-no-flatten-grads")
        self.bounded = False  # whether every row is within the bound, but for those that the last step changed
        self._optimizer = torch.optim.SGD(params, **self.optimizer_config)
        self.bound_rows()
        self.bounded = False  # the rows of a checkpoint may come yet

    @property
    def optimizer_config(self) -> dict:
        return {"lr": self.cfg.lr[0], "momentum": self.cfg.momentum, "weight_decay": self.cfg.weight_decay}

    def step(self, closure=None, scale=1.0, groups=None):
        if scale != 1:
            self.multiply_grads(1 / scale)
        self.clip_elements()
        super().step(closure, 1.0, groups)
        self.bound_rows()

    @torch.no_grad()
    def clip_elements(self) -> None:
        limit = self.cfg.clip_value
        for parameter in self.params if limit else ():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                parameter.grad.values().clamp_(-limit, limit)
            elif parameter.grad is not None:
                parameter.grad.clamp_(-limit, limit)

    @torch.no_grad()
    def bound_rows(self) -> None:
        """Scale back every row that is too long; where gradients are row-sparse, only what a step changed can be."""
        if self.cfg.max_norm == 0:
            return
        for parameter in self.matrices:
            if self.bounded and parameter.grad is not None and parameter.grad.is_sparse:
                changed = parameter.grad.coalesce().indices()[0]
                rows = parameter[changed]
                parameter[changed] = rows.mul_(self.factors(rows))
            else:
                parameter.mul_(self.factors(parameter))
        self.bounded = True

    def factors(self, rows: Tensor) -> Tensor:
        """What brings rows within the bound: ``[..., D] -> [..., 1]``."""
        return self.cfg.max_norm / rows.norm(dim=-1, keepdim=True).clamp(min=self.cfg.max_norm)
