"""Numbers too small for a processor's quick arithmetic are taken for 0."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass


@dataclass
class DenormalsConfig(FairseqDataclass):
    keep_denormals: bool = field(
        default=False,
        metadata={"help": "on a CPU, compute with numbers nearer to 0 than 1.2e-38 (float32), which on some takes many "
                  "times as long where a model makes them, as saturated gates do; by default they are 0"},
    )  # fmt: skip


def flush_denormals(cfg: DenormalsConfig) -> None:
    """Make denormal numbers 0 in this thread and those it starts, or keep them, as *cfg* says, from now on.

    A thread takes this over from the one that starts it, so it must be called before torch has computed anything with
    its threads: first of all in a task. Python's and NumPy's numbers in these threads follow it too. What a processor
    cannot do is left out.
    """
    torch.set_flush_denormal(not cfg.keep_denormals)
