"""``fairseq-train`` in this process over a small text, and what it left."""

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq_cli import train as fairseq_train
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

V = 600
READ = 60  # symbols that the text is made of
#: AdaGrad's steps do not shrink with the gradient, and where that is nearly zero they magnify its rounding
ADAGRAD = ("--optimizer", "adagrad", "--lr", 0.01)


def settings(data, *flags):
    """The settings of ``fairseq-train``."""
    shared = (
        "--task", "rntn_language_modeling", "--cpu", "--batch-size", 4, "--tokens-per-sample", 6, "--num-workers", 0,
        "--embed-dim", 5, "--hidden-size", 6, "--max-update", 6, "--disable-validation", "--clip-norm", 0.3,
    )  # fmt: skip
    arguments = [str(argument) for argument in (data, *shared, *flags)]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=arguments))


def train(data, *flags):
    """``fairseq-train`` in this process."""
    distributed_utils.call_main(settings(data, *flags), fairseq_train.main)


def trained(folder) -> dict:
    """Name -> parameter, and what the optimiser keeps of it."""
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    kept = state["last_optimizer_state"]["state"].items()
    return {**state["model"], **{f"{number} {key}": value for number, one in kept for key, value in one.items()}}


def same(one: dict, other: dict, tolerance=1e-6):
    assert one.keys() == other.keys()
    torch.testing.assert_close(other, one, atol=tolerance, rtol=tolerance)


class Watch(TorchDispatchMode):
    """Names of the operations that read or write a dense tensor of *size* numbers, but for views of it and for
    additions of sparse tensors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.found = size, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [part for part in tree_leaves((args, kwargs, result)) if isinstance(part, torch.Tensor)]
        whole = any(part.layout == torch.strided and part.numel() >= self.size for part in tensors)
        if whole and not function.is_view and not any(part.layout == torch.sparse_coo for part in tensors):
            self.found.add(function.overloadpacket.__name__)
        return result
