"""How exactly processors compute: denormal numbers, and products of matrices."""

from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass

PRECISIONS = ("highest", "high", "medium")


@dataclass
class ArithmeticConfig(FairseqDataclass):
    keep_denormals: bool = field(
        default=False,
        metadata={"help": "on a CPU, compute with numbers nearer to 0 than 1.2e-38 (float32), which on some takes many "
                  "times as long where a model makes them, as saturated gates do; by default they are 0"},
    )  # fmt: skip
    matmul_precision: Optional[ChoiceEnum(PRECISIONS)] = field(
        default=None,
        metadata={"help": "of products of float32 matrices, as torch.set_float32_matmul_precision has it: 'high' "
                  "rounds what is multiplied to TensorFloat32 on GPUs that can, 'medium' also to bfloat16 on CPUs that "
                  "multiply that faster (those with AMX); sums stay float32; default: as torch is set, which is "
                  "'highest', without rounding"},
    )  # fmt: skip


def set_arithmetic(cfg: ArithmeticConfig) -> None:
    """Set torch as *cfg* says, from now on: denormal numbers in this thread and those it starts, the precision of
    products, if *cfg* has one, in the process.

    A thread takes the first over from the one that starts it, so this must be called before torch has computed anything
    with its threads: first of all in a task. Python's and NumPy's numbers in these threads follow it too. What a
    processor cannot do is left out.

    Raises:
        ValueError: a precision that torch has not.
    """
    precision = None if cfg.matmul_precision is None else str(cfg.matmul_precision)
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"--matmul-precision {precision} is none of {', '.join(PRECISIONS)}")
    torch.set_flush_denormal(not cfg.keep_denormals)
    if precision is not None:
        torch.set_float32_matmul_precision(precision)
