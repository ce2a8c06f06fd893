"""List the architectures, or every setting of one with its default.

    python scripts/describe.py                     # cells, their architectures and presets
    python scripts/describe.py gru_rntn_lm         # settings of one architecture: flags of fairseq-train
    python scripts/describe.py dbrnn_elstm1
    python scripts/describe.py --user-dir user_dir mgu_lm

(``fairseq-train --help`` stops before it knows which architecture is meant.)
"""

import argparse
import dataclasses
import inspect
import logging
import sys
import textwrap
from pathlib import Path

from outputs import reader_gone


def main() -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout's package, installed or not
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(prog="describe", description=__doc__.splitlines()[0])
    parser.add_argument("architecture", nargs="?", help="e.g. gru_rntn_lm; all of them are listed if left out")
    parser.add_argument("--user-dir", help="folder with further cells and architectures, as for fairseq-train")
    args = parser.parse_args()

    from fairseq import utils
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    from rntn_plugins import cell_names
    from rntn_plugins.registry import get_cell

    if args.user_dir:
        utils.import_user_module(args)
    ours = {name: model.cell for name, model in MODEL_REGISTRY.items() if getattr(model, "cell", None)}
    if args.architecture is None:
        for cell in cell_names():
            print(f"{cell}: {get_cell(cell).__doc__.strip().splitlines()[0]}")
            print(textwrap.indent("\n".join(name for name in ours if ours[name] == cell), "    "))
        return 0
    if args.architecture not in ours:
        parser.error(f"unknown architecture {args.architecture!r}; describe.py without a name lists them")
    cell = ours[args.architecture]
    model = MODEL_REGISTRY[args.architecture]
    print(f"--arch {args.architecture}: cell {cell}\n")
    if getattr(model, "macro", None):
        print(textwrap.indent(f"{model.macro}: {inspect.getdoc(model.__base__)}", "    "), "\n")
    print(textwrap.indent(get_cell(cell).__doc__.strip(), "    "), "\n")
    for field in dataclasses.fields(MODEL_DATACLASS_REGISTRY[args.architecture]):
        if not field.name.startswith("_"):
            default = getattr(field.default, "value", field.default)
            shown = "" if default is None else f" (default: {default})"
            if isinstance(default, bool):
                shown = " (on; the flag turns it off)" if default else " (off)"
            text = textwrap.fill(field.metadata["help"] + shown, 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
            print(f"    --{field.name.replace('_', '-')}\n{text}")
    return 0


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # less or head had enough
        reader_gone()
        code = 0
    sys.exit(code)
