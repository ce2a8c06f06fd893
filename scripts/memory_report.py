"""The numbers and the picture that scripts/memory.py writes, from what ``rntn_plugins.layers.memory`` found."""

from __future__ import annotations

import math
from typing import Dict, Optional

import torch
from torch import Tensor

SHARES = (0.5, 0.1, 0.01)
FEW = 10  # the median of fewer positions (of fewer than 20: of less than half of them) is left out of picture, summary

# ---- numbers ---------------------------------------------------------------------------------------------------------


def plain(values: Tensor) -> list:
    """Numbers for JSON, ``None`` for what is not known (or, of a model that diverged, infinite)."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def curve(values: Optional[Tensor]) -> Optional[Dict[str, list]]:
    """Median and quartiles over the positions, ``[W, P]`` to W numbers each; of numbers for each lag, these."""
    if values is None:
        return None
    if values.dim() == 1:
        return {"median": plain(values)}
    low, median, high = values.double().nanquantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=1)
    return {"median": plain(median), "low": plain(low), "high": plain(high)}


def with_relative(norms: Optional[Tensor]) -> Optional[dict]:
    """The norms, and each position's as shares of its own at lag 0 (unknown where that is zero)."""
    if norms is None:
        return None
    return {**curve(norms), "relative": curve(norms / norms[:1].masked_fill(norms[:1] == 0, float("nan")))}


def falls_to(median: list, share: float) -> Optional[int]:
    """The first lag from which on the median is known to stay below a share; ``None`` if it does not."""
    first = 1 + max((lag for lag, value in enumerate(median) if value is None or value >= share), default=-1)
    return first if first < len(median) else None


def describe(analysis) -> dict:
    """The JSON of one model."""
    output, layers = with_relative(analysis.output), []
    positions = (~analysis.output.isnan()).sum(1)
    reach = int((positions >= min(FEW, max(1, int(positions[0]) // 2))).sum())
    for layer in analysis.layers:
        scale = None if layer.scale is None else layer.scale.double().cpu()
        layers.append({
            "cell": layer.cell, "c": with_relative(layer.state), "gates": curve(layer.kept),
            "scaled_gates": curve(layer.scaled), "scale": curve(scale),
            "matrix_powers": curve(layer.powers), "matrix_bound": curve(layer.bound),
        })  # fmt: skip
    return {
        "positions": plain(positions),
        "reach": reach,
        "h": output,
        "falls_to": {str(share): falls_to(output["relative"]["median"][:reach], share) for share in SHARES},
        "layers": layers,
    }


def summary(entry: dict) -> str:
    who = f"{entry['name']} ({entry['layers'][-1]['cell']})"
    now = entry["h"]["median"][0]
    if not now:  # not known: infinite, or no number
        why = "half of the tokens or more do not move the output" if now == 0 else "the model has diverged"
        return f"{who}: no influence to compare with, as at lag 0 {why}"
    reach = entry["reach"] - 1
    lags = [
        f"{float(share):.0%} at {f'no lag up to {reach}' if lag is None else f'lag {lag}'}"
        for share, lag in entry["falls_to"].items()
    ]
    return f"{who}: a token's influence falls below {', '.join(lags)}"


# ---- picture ---------------------------------------------------------------------------------------------------------


def lines_of(entry: dict) -> Dict[str, list]:
    """(label, curve, style, strength) of a model in each of the four panels; lower layers are fainter."""
    layers, name = entry["layers"], entry["name"]
    panels = {"h": [(name, entry["h"]["relative"], "-", 1.0)], "c": [], "gates": [], "scale": []}
    for number, layer in enumerate(layers, 1):
        label, strength = name if len(layers) == 1 else f"{name}, layer {number}", number / len(layers)
        if layer["c"]:
            panels["c"].append((label, layer["c"]["relative"], "-", strength))
        for key, says, style in (("gates", "", "-"), ("scaled_gates", ", times s", "--"), ("matrix_powers", ", $W_c^k$",
                                 "-"), ("matrix_bound", ", bound", ":")):  # fmt: skip
            if layer[key]:
                panels["gates"].append((label + says, layer[key], style, strength))
        if layer["scale"]:
            panels["scale"].append((label, layer["scale"], "-", strength))
    return panels


TITLES = {
    "h": (r"$\|\partial h_t / \partial x_{t-k}\|$ relative to lag 0", "lag k", "log"),
    "c": (r"$\|\partial c_t / \partial x_{t-k}\|$ relative to lag 0", "lag k", "log"),
    "gates": (r"direct path (product of gates), mean of the units", "lag k", "log"),
    "scale": ("scale s, quartiles of the units", "position", "linear"),
}


def positive(values: list) -> list:
    """Zero and the unknown, which have no place on a logarithmic scale, as NaN."""
    return [value if value else float("nan") for value in values]


def draw(result: dict, file: str) -> None:
    """A panel for everything that any of the models has."""
    from matplotlib import pyplot

    models = [lines_of(entry) for entry in result["models"]]
    used = [panel for panel in TITLES if any(lines[panel] for lines in models)]
    rows, columns = -(-len(used) // 2), min(2, len(used))
    figure, grid = pyplot.subplots(rows, columns, figsize=(6 * columns, 4 * rows), layout="constrained", squeeze=False)
    for axes, panel in zip(grid.flat, used):
        title, across, scale = TITLES[panel]
        for number, (lines, entry) in enumerate(zip(models, result["models"])):
            for label, values, style, strength in lines[panel]:
                if panel != "scale":
                    values = {
                        key: positive(some[: entry["reach"]]) for key, some in values.items() if key != "relative"
                    }
                at = range(len(values["median"])) if panel != "scale" else range(1, len(values["median"]) + 1)
                axes.plot(at, values["median"], style, color=f"C{number % 10}", alpha=strength, label=label)
                if "low" in values and style == "-":
                    axes.fill_between(at, values["low"], values["high"], color=f"C{number % 10}", alpha=0.15 * strength)
        axes.set(title=title, xlabel=across, yscale=scale)
        if scale == "log":
            axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-9))  # what is less moves nothing
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    for axes in grid.flat[len(used) :]:
        axes.remove()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
