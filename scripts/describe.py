"""List what fairseq-train takes from this package, or every setting of one of them with its default.

    python scripts/describe.py                         # cells, their architectures and presets; tasks, optimisers, …
    python scripts/describe.py gru_rntn_lm             # settings of one architecture: flags of fairseq-train
    python scripts/describe.py dbrnn_elstm1
    python scripts/describe.py rntn_language_modeling  # flags of a task (or criterion, optimizer, lr-scheduler)
    python scripts/describe.py --user-dir user_dir mgu_lm

(``fairseq-train --help`` stops before it knows which architecture is meant.)
"""

import argparse
import dataclasses
import enum
import inspect
import logging
import sys
import textwrap
from pathlib import Path
from typing import Dict, Optional, Tuple, get_args

from outputs import reader_gone

KINDS = ("criterion", "optimizer", "lr_scheduler")


def main() -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, installed or not
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="describe", description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="e.g. gru_rntn_lm or conllu_parsing; all are listed if left out")
    parser.add_argument("--user-dir", help="folder with further cells and architectures, as for fairseq-train")
    args = parser.parse_args()

    from fairseq import utils
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    import rntn_plugins  # noqa: F401
    from rntn_plugins.registry import get_cell

    if args.user_dir:
        try:
            utils.import_user_module(args)
        except FileNotFoundError:
            parser.error(f"--user-dir {args.user_dir}: there is no such folder")
        except Exception as error:  # whatever a user's code may raise
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            parser.error(f"--user-dir {args.user_dir} cannot be imported ({said})")
    ours = {name: model.cell for name, model in MODEL_REGISTRY.items() if getattr(model, "cell", None)}
    others = others_of_ours()
    if args.name is None:
        list_all(ours, others)
        return 0
    if args.name in others:
        kind, described, settings = others[args.name]
        print(f"--{kind.replace('_', '-')} {args.name}\n")
        print(textwrap.indent(inspect.getdoc(described) or "", "    "), "\n")
        show_settings(settings)
        return 0
    if args.name not in ours:
        parser.error(f"unknown name {args.name!r}; describe.py without a name lists them")
    cell, model = ours[args.name], MODEL_REGISTRY[args.name]
    print(f"--arch {args.name}: cell {cell}\n")
    if getattr(model, "macro", None):
        print(textwrap.indent(f"{model.macro}: {inspect.getdoc(model.__base__)}", "    "), "\n")
    print(textwrap.indent(get_cell(cell).__doc__.strip(), "    "), "\n")
    show_settings(MODEL_DATACLASS_REGISTRY[args.name])
    return 0


def others_of_ours() -> Dict[str, Tuple[str, type, Optional[type]]]:
    """What is no architecture and not fairseq's own: kind, class and settings by name."""
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    registries = [("task", TASK_REGISTRY, TASK_DATACLASS_REGISTRY)]
    registries += [(kind, *(REGISTRIES[kind][part] for part in ("registry", "dataclass_registry"))) for kind in KINDS]
    return {
        name: (kind, found, settings.get(name))
        for kind, classes, settings in registries
        for name, found in classes.items()
        if found.__module__.split(".")[0] not in ("fairseq", "fairseq_cli", "examples")
    }


def list_all(architectures: Dict[str, str], others: Dict[str, Tuple[str, type, Optional[type]]]) -> None:
    from rntn_plugins import cell_names
    from rntn_plugins.registry import get_cell

    for cell in cell_names():
        print(f"{cell}: {get_cell(cell).__doc__.strip().splitlines()[0]}")
        names = (name for name, its_cell in architectures.items() if its_cell == cell)
        print(textwrap.indent("\n".join(names), "    "))
    for name, (kind, found, _) in sorted(others.items(), key=lambda item: item[1][0]):
        said = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
        print(textwrap.fill(f"--{kind.replace('_', '-')} {name}: {said}", 120, subsequent_indent="    "))


def show_settings(settings: Optional[type]) -> None:
    """The flags that fairseq makes of a dataclass."""
    for field in dataclasses.fields(settings) if settings else ():
        default = getattr(field.default, "value", field.default)
        if field.name.startswith("_") or "help" not in field.metadata or str(default).startswith("${"):
            continue
        shown = f"; one of {', '.join(choices)}" if (choices := choices_of(field.type)) else ""
        if isinstance(default, bool):
            shown += " (on; the flag turns it off)" if default else " (off)"
        elif default is not None and default is not dataclasses.MISSING and str(default) != "???":
            shown += f" (default: {default})"
        text = textwrap.fill(
            field.metadata["help"] + shown, 100, initial_indent=" " * 8, subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )  # fmt: skip
        print(f"    {'' if field.name == 'data' else '--'}{field.name.replace('_', '-')}\n{text}")


def choices_of(kind) -> list:
    """What an option of the type may be, if it is one of a few; the type may be an Optional."""
    return next(
        ([str(member.value) for member in one] for one in (kind, *get_args(kind))
         if isinstance(one, type) and issubclass(one, enum.Enum)), []
    )  # fmt: skip


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # less or head had enough
        reader_gone()
        code = 0
    sys.exit(code)
