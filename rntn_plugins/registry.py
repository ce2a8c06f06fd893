"""The registry of recurrent cells: names to classes.

A cell becomes usable everywhere (language models, labellers, encoder-decoders) by registering it::

    @register_cell("my_cell")
    class MyCell(Cell): ...
"""

from __future__ import annotations

from dataclasses import fields
from typing import Callable, Dict, Optional, Type

from rntn_plugins.cells.base import Cell, Vocabulary

_CELLS: Dict[str, Type[Cell]] = {}


def register_cell(name: str) -> Callable[[Type[Cell]], Type[Cell]]:
    """Class decorator that makes a cell known as *name*.

    Registering the same class again (a second import of one file) changes nothing.

    Raises:
        ValueError: *name* already belongs to another class, or the class is no ``Cell``.
    """

    def decorate(cls: Type[Cell]) -> Type[Cell]:
        if not (isinstance(cls, type) and issubclass(cls, Cell)):
            raise ValueError(f"cell {name!r}: {cls!r} does not derive from rntn_plugins.cells.base.Cell")
        known = _CELLS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"cell {name!r} is already registered by {known.__module__}.{known.__qualname__}")
        _CELLS[name] = cls
        return cls

    return decorate


def cell_names() -> list:
    """All registered names, sorted."""
    return sorted(_CELLS)


def get_cell(name: str) -> Type[Cell]:
    """The class registered as *name*; ``ValueError`` with the known names if there is none."""
    try:
        return _CELLS[name]
    except KeyError:
        raise ValueError(f"unknown cell {name!r}; known cells: {', '.join(cell_names())}") from None


def build_cell(
    name: str, input_size: int, hidden_size: int, vocabulary: Optional[Vocabulary] = None, **options
) -> Cell:
    """Construct a registered cell.

    Args:
        name: a registered name.
        input_size: I, the size of each input vector.
        hidden_size: H, the size of the hidden state.
        vocabulary: needed by cells whose matrices depend on the symbol (``cls.token_indexed``).
        options: values for the fields of ``cls.Options``.

    Raises:
        ValueError: unknown cell, unknown option, or an option's value out of range.
    """
    cls = get_cell(name)
    known = [field.name for field in fields(cls.Options)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"cell {name!r} has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}")
    return cls(input_size, hidden_size, cls.Options(**options), vocabulary)
