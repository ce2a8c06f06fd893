"""Workloads of scripts/benchmark.py: the layers of the papers' models and their sizes."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Sequence

QUICK = ("gru_lm_tjandra_ptb_char", "r_rntn_lm_salle_ptb")  # of --quick
VOCABULARIES = {"_char": 50, "salle_text8": 37_751, "soltani_text8": 44_000}  # a paper's V; words of PTB: 10,000
OTHER_SIZES = {"srn": 512, "clockwork": 400}  # cells without a preset: as E18's and H16's other models


@dataclasses.dataclass(frozen=True)
class Workload:
    """A layer at the sizes of a published model (or of an architecture's defaults)."""

    name: str
    cell: str
    input: int
    hidden: int
    vocabulary: int
    options: dict
    settings: dict  # the architecture's, for whole models

    def resized(self, **changes) -> Workload:
        """With other sizes; the input follows H where it is added as it is. Options are given by their names."""
        options = {**self.options, **{name: value for name, value in changes.items() if name in self.options}}
        sizes = {name: value for name, value in changes.items() if name in ("input", "hidden", "vocabulary")}
        if self.options.get("identity_input") and "hidden" in sizes:
            sizes["input"] = sizes["hidden"]
        return dataclasses.replace(self, options=options, **sizes)

    def tiny(self) -> Workload:
        caps = {"input": 6, "hidden": 8, "vocabulary": 30, "num_matrices": 5, "factor_size": 5, "order": 3}
        now = {**self.options, "input": self.input, "hidden": self.hidden, "vocabulary": self.vocabulary}
        return self.resized(**{name: min(cap, now[name]) for name, cap in caps.items() if name in now})


def workload(architecture: str) -> Workload:
    """The layer of one of this package's architectures; ``ValueError`` if there is none of that name."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    from rntn_plugins.registry import get_cell

    cell = getattr(MODEL_REGISTRY.get(architecture), "cell", None)
    if cell is None:
        raise ValueError(f"--cells {architecture}: neither a cell nor an architecture; scripts/describe.py lists both")
    config = MODEL_DATACLASS_REGISTRY[architecture]()
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name[0] != "_"}
    settings = {name: str(value) if isinstance(value, str) else value for name, value in settings.items()}
    options = {f.name: settings[f.name] for f in dataclasses.fields(get_cell(cell).Options)}
    vocabulary = next((size for part, size in VOCABULARIES.items() if part in architecture), 10_000)
    return Workload(architecture, cell, config.embed_dim, config.hidden_size, vocabulary, options, settings)


def paper_sizes() -> List[Workload]:
    """Every registered cell: PTB models of T16, S18 and H16, E18's sizes, and what no paper's model has."""
    from fairseq.models import MODEL_REGISTRY

    from rntn_plugins import cell_names

    presets = [name for name, model in MODEL_REGISTRY.items() if getattr(model, "cell", None) and "_ptb" in name]
    found = [workload(name) for name in presets]
    su = [f"basic_{cell}_su_ud_pos" for cell in cell_names()]
    found += [workload(name) for name in su if name in MODEL_REGISTRY]
    for cell in cell_names():
        if cell not in {one.cell for one in found}:
            size = OTHER_SIZES.get(cell)
            plain = workload(f"{cell}_lm")
            found.append(plain.resized(input=size, hidden=size) if size else plain)
    return found


def chosen(args, default: Sequence[str] = ()) -> List[Workload]:
    """``--cells`` (names of cells or architectures), or the *default* architectures, or everything."""
    everything = {one.name: one for one in paper_sizes()}
    found: Dict[str, Workload] = {}
    for name in args.cells or (QUICK if args.quick else default) or everything:
        of_cell = [one for one in everything.values() if one.cell == name]
        for one in of_cell or [everything.get(name) or workload(name)]:
            found[one.name] = one.tiny() if args.quick else one
    return list(found.values())


def count_parameters(one: Workload) -> int:
    """Of the layer."""
    import torch

    from rntn_plugins import build_cell
    from rntn_plugins.cells.base import Vocabulary

    def build():
        vocabulary = Vocabulary(one.vocabulary, None, torch.ones(one.vocabulary))
        return build_cell(one.cell, one.input, one.hidden, vocabulary, **one.options)

    try:
        with torch.device("meta"):  # takes no memory
            cell = build()
    except (RuntimeError, NotImplementedError):  # a cell that reads values while it is built
        cell = build()
    return sum(parameter.numel() for parameter in cell.parameters())
