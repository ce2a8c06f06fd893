"""Settings of architectures: dataclasses made of shared fields and the options of a cell, and cells built from them."""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import field
from typing import Callable, List, Optional, Sequence

from fairseq.dataclass import ChoiceEnum
from omegaconf import OmegaConf
from torch import Tensor, nn

from rntn_plugins.cells.base import Cell, Vocabulary, graphs_possible
from rntn_plugins.layers.recurrent import RECURRENCES, choose_recurrence
from rntn_plugins.registry import build_cell, get_cell

logger = logging.getLogger(__name__)


def flag(default, help: str):
    return field(default=default, metadata={"help": help})


def check_range(name: str, value, least, most=None) -> None:
    if not value >= least or (most is not None and not value < most):  # NaN is neither
        allowed = f"at least {least}" if most is None else f"in [{least}, {most})"
        raise ValueError(f"--{name.replace('_', '-')} {value} must be {allowed}")


def plain(value):
    """An enumeration's member as the string it stands for; anything else as it is."""
    return str(value) if isinstance(value, str) else value


def build_cells(
    cell: str, cfg, sizes: Sequence[int], dictionary, count: Callable[[], Optional[Tensor]], few: bool = False
) -> List[Cell]:
    """Cells of ``cfg.hidden_size``, one for each input size; their options are the fields of *cfg* of the same names.

    Args:
        dictionary: the symbols, for token-indexed cells.
        count: how often each symbol occurs in training, asked only for token-indexed cells; ``None``: not known.
        few: whether a dictionary with fewer symbols than ``--num-matrices`` has one matrix a symbol; by default it is
            refused.
    """
    cell_class = get_cell(cell)
    options = {f.name: plain(getattr(cfg, f.name)) for f in dataclasses.fields(cell_class.Options)}
    vocabulary = None
    if cell_class.token_indexed:
        counts = count()
        if few and options.get("num_matrices", 0) > len(dictionary):
            logger.info(
                f"--num-matrices {options['num_matrices']}: the decoder has one for each of {len(dictionary)} labels"
            )
            options["num_matrices"] = len(dictionary)
        map_file = options.get("index_map", "rank")
        if map_file not in ("rank", "mod") and not os.path.exists(map_file):
            # A checkpoint has its map inside and must load where the file is not; only a fresh model needs the file.
            logger.warning(f"--index-map {map_file}: no such file here, so the map has to come from a checkpoint")
            options["index_map"], counts = "rank", None
        vocabulary = Vocabulary(len(dictionary), dictionary.symbols, counts)
    return [build_cell(cell, size, cfg.hidden_size, vocabulary, **options) for size in sizes]


def recurrence_flag():
    return flag(
        "auto",
        "how recurrent layers run: 'naive', step by step through autograd; 'fused', all steps with a backward pass of "
        "their own (the same function, faster); 'triton', fused, with the pointwise parts of a step as Triton kernels, "
        "on CUDA; 'auto', fused where the cell has it, on a GPU as CUDA graphs",
    )


Recurrence = ChoiceEnum(RECURRENCES)
announced: set = set()


def set_recurrence(model: nn.Module, how) -> None:
    """Obey ``--recurrence``; what 'auto' takes is said once.

    Raises:
        ValueError: ``fused`` or ``triton`` for a cell that has none, or ``triton`` without the package triton.
    """
    for cell, taken in choose_recurrence(model, plain(how)).items():
        if str(how) == "auto" and (cell, taken) not in announced:
            announced.add((cell, taken))
            graphs = ", on a GPU as CUDA graphs" if taken == "fused" and graphs_possible() else ""
            logger.info(f"--recurrence auto takes {taken} for {cell}{graphs}")


def config_class(name: str, shared: type, cell: str, **defaults) -> type:
    """The settings of one architecture: the *shared* ones, the cell's own, with the *defaults* of a preset.

    Raises:
        ValueError: a default that is no setting of the cell, or an option named like a shared setting.
        omegaconf.errors.ValidationError: a default of the wrong type, or that is none of the choices.
    """
    options = get_cell(cell).Options
    common, own = ({f.name for f in dataclasses.fields(part)} for part in (shared, options))
    if common & own:
        clash = ", ".join(sorted(common & own))
        raise ValueError(f"cell {cell!r}: its option {clash} has the name of a setting that all its models share")
    unknown = sorted(set(defaults) - common - own)
    if unknown:
        raise ValueError(f"{name}: {', '.join(unknown)} is no setting of the cell {cell!r}")
    asked, added = set(defaults), []
    for f in dataclasses.fields(options):
        kind = ChoiceEnum(f.metadata["choices"]) if f.metadata.get("choices") else type(f.default)
        added.append((f.name, kind, flag(defaults.pop(f.name, f.default), f.metadata["help"])))
    for f in dataclasses.fields(shared):
        if f.name in defaults:
            added.append((f.name, f.type, flag(defaults[f.name], f.metadata["help"])))
    given = [entry for entry in added if entry[0] in asked]
    if given:  # a wrong one is refused here; all else is read when a command asks for the architecture
        OmegaConf.structured(dataclasses.make_dataclass(f"{name}_config", given))
    described = {"__doc__": f"Settings of {name}."}  # without one dataclasses writes the signature out
    return dataclasses.make_dataclass(f"{name}_config", added, bases=(shared,), namespace=described)
