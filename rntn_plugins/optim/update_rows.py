"""Gradients as the rows that occurred, in updates on a CPU where that changes nothing but the time.

A batch has some hundred symbols of the ten thousand and more of a vocabulary, a sentence twenty. The dense gradient of
their embedding, or of the matrices that a cell has for every symbol, is nonetheless written, scaled, added up for the
norm, and stepped through as a whole. With SGD without momentum and AdaGrad, both without weight decay, rows whose
gradient is zero stay as they are, so sparse gradients (torch's of ``nn.Embedding.sparse``, a cell's own) give the same
step, up to the order of sums. :mod:`~rntn_plugins.optim.row_sparse` decides where that is so, and has fairseq's trainer
know them. Gradients are sparse during such an update only, and a checkpoint has nothing of it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from torch import nn

LEAST = 2**18  # numbers in a parameter that gains; what is smaller stays in the processor's cache
LEAST_ROWS = 2**12  # of an embedding: with fewer, most rows occur
MOST_SYMBOLS = 2  # in a batch, for each matrix of a stack: with more, most matrices occur, and there is nothing to gain


class Table(NamedTuple):
    """A parameter ``[K, ...]`` of which a module reads rows.

    Attributes:
        module: the one whose parameter it is.
        name: what it is called there.
        weight: the parameter.
    """

    module: nn.Module
    name: str
    weight: nn.Parameter

    def unchanged(self) -> bool:
        """Whether it is the module's parameter still, and nobody hooked it, who would expect a dense gradient."""
        hooks = self.weight._backward_hooks or self.weight._post_accumulate_grad_hooks
        return self.module._parameters.get(self.name) is self.weight and not hooks


@dataclass
class Switched:
    """A module whose gradients can be sparse, all or none.

    Attributes:
        module: the module.
        switch: its attribute that makes them so.
        tables: what has them then.
        most: the largest number of symbols in a batch with which it gains.
    """

    module: nn.Module
    switch: str
    tables: Sequence[Table]
    most: float = float("inf")


def large_embeddings(model: nn.Module) -> List[Switched]:
    """Those whose weight is large, a parameter, and nobody else's, such as a tied output layer's."""
    found = []
    for module in model.modules():
        if type(module) is not nn.Embedding or module.sparse or module.scale_grad_by_freq:
            continue
        tables = own_tables(model, [(module, "weight")])
        if tables and module.num_embeddings >= LEAST_ROWS and tables[0].weight.numel() >= LEAST:
            found.append(Switched(module, "sparse", tables))
    return found


def large_cells(model: nn.Module) -> List[Switched]:
    """Cells that have a large table, and whose tables are all parameters of their own."""
    found = []
    for module in model.modules():
        tables = own_tables(model, tables_of(module)) if getattr(module, "adapts_gradients", False) else None
        largest = max((table.weight for table in tables or ()), key=lambda weight: weight.numel(), default=None)
        if largest is not None and largest.numel() >= LEAST:
            found.append(Switched(module, "row_sparse_update", tables, most=MOST_SYMBOLS * largest.size(0)))
    return found


def tables_of(module: nn.Module) -> List[Tuple[nn.Module, str]]:
    """What a module and those within it name in ``index_tables``: who has it, and its name there."""
    return [(holder, name) for holder in module.modules() for name in getattr(holder, "index_tables", ())]


def parameter_of(holder: nn.Module, name: str) -> Optional[nn.Parameter]:
    """What a module has by this name; ``None`` if that is no parameter (weight normalisation computes it).

    Raises:
        ValueError: it has nothing by this name.
    """
    if not hasattr(holder, name):
        raise ValueError(f"{type(holder).__name__}.index_tables names {name!r}, which it has not")
    return holder._parameters.get(name)


def own_tables(model: nn.Module, named: Sequence[Tuple[nn.Module, str]]) -> Optional[List[Table]]:
    """The parameters of these names; ``None`` if one is none, or another module's too."""
    holders = Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
    found = [Table(holder, name, parameter_of(holder, name)) for holder, name in named]
    return found if all(table.weight is not None and holders[id(table.weight)] == 1 for table in found) else None


@contextmanager
def sparse_where_quicker(found: Sequence[Switched], symbols: float) -> Iterator[None]:
    """Within, those modules have sparse gradients that gain by them in a batch of so many symbols.

    Not those with a table that has become another, or was hooked. Hooks that come within see sparse gradients, and so
    do those of the node that adds gradients up, of which a parameter does not know. An embedding that is copied within
    (fairseq's moving average is, once) is a copy with sparse gradients; a cell is not.
    """
    chosen = [one for one in found if symbols <= one.most and all(table.unchanged() for table in one.tables)]
    for one in chosen:
        setattr(one.module, one.switch, True)
    try:
        yield
    finally:
        for one in chosen:
            setattr(one.module, one.switch, False)
