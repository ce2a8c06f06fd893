"""The numbers and the picture that scripts/memory.py writes, from what ``rntn_plugins.layers.memory`` found."""

from __future__ import annotations

from typing import Dict, Optional

import torch
from torch import Tensor

SHARES = (0.5, 0.1, 0.01)

# ---- numbers ---------------------------------------------------------------------------------------------------------


def plain(values: Tensor) -> list:
    """Numbers for JSON, ``None`` for what is not known."""
    return [value if value == value else None for value in values.tolist()]


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
    """The first lag from which on the median stays below a share; ``None`` if it does not."""
    known = [value for value in median if value is not None]
    above = [lag for lag, value in enumerate(known) if value >= share]
    first = above[-1] + 1 if above else 0
    return first if first < len(known) else None


def describe(analysis) -> dict:
    """The JSON of one model."""
    output = with_relative(analysis.output)
    layers = []
    for layer in analysis.layers:
        scale = None if layer.scale is None else layer.scale.double().cpu()
        layers.append({
            "cell": layer.cell, "c": with_relative(layer.state), "gates": curve(layer.kept),
            "scaled_gates": curve(layer.scaled), "scale": curve(scale),
            "matrix_powers": curve(layer.powers), "matrix_bound": curve(layer.bound),
        })  # fmt: skip
    return {
        "positions": plain((~analysis.output.isnan()).sum(1)),
        "h": output,
        "falls_to": {str(share): falls_to(output["relative"]["median"], share) for share in SHARES},
        "layers": layers,
    }


def summary(entry: dict) -> str:
    lags = [f"{float(share):.0%} at lag {'-' if lag is None else lag}" for share, lag in entry["falls_to"].items()]
    return f"{entry['name']} ({entry['layers'][-1]['cell']}): a token's influence falls below {', '.join(lags)}"


# ---- picture ---------------------------------------------------------------------------------------------------------


def lines_of(entry: dict) -> Dict[str, list]:
    """(label, curve, style) of a model in each of the four panels."""
    layers, name = entry["layers"], entry["name"]
    panels = {"h": [(name, entry["h"]["relative"], "-")], "c": [], "gates": [], "scale": []}
    for number, layer in enumerate(layers, 1):
        label = name if len(layers) == 1 else f"{name}, layer {number}"
        if layer["c"]:
            panels["c"].append((label, layer["c"]["relative"], "-"))
        for key, says, style in (("gates", "", "-"), ("scaled_gates", ", times s", "--"), ("matrix_powers", ", $W_c^k$",
                                 "-"), ("matrix_bound", ", bound", ":")):  # fmt: skip
            if layer[key]:
                panels["gates"].append((label + says, layer[key], style))
        if layer["scale"]:
            panels["scale"].append((label, layer["scale"], "-"))
    return panels


TITLES = {
    "h": (r"$\|\partial h_t / \partial x_{t-k}\|$ relative to lag 0", "lag k", "log"),
    "c": (r"$\|\partial c_t / \partial x_{t-k}\|$ relative to lag 0", "lag k", "log"),
    "gates": (r"product of gates $t-k+1 \ldots t$, mean of the units", "lag k", "log"),
    "scale": ("scale s, quartiles of the units", "position", "linear"),
}


def draw(result: dict, file: str) -> None:
    """A panel for everything that any of the models has."""
    from matplotlib import pyplot

    models = [lines_of(entry) for entry in result["models"]]
    used = [panel for panel in TITLES if any(lines[panel] for lines in models)]
    rows, columns = -(-len(used) // 2), min(2, len(used))
    figure, grid = pyplot.subplots(rows, columns, figsize=(6 * columns, 4 * rows), layout="constrained", squeeze=False)
    for axes, panel in zip(grid.flat, used):
        title, across, scale = TITLES[panel]
        for number, lines in enumerate(models):
            for label, values, style in lines[panel]:
                # zero and the unknown have no place on a logarithmic scale
                clean = {key: [v if v and (v > 0 or scale == "linear") else float("nan") for v in some]
                         for key, some in values.items()}  # fmt: skip
                at = range(len(clean["median"])) if panel != "scale" else range(1, len(clean["median"]) + 1)
                axes.plot(at, clean["median"], style, color=f"C{number % 10}", label=label)
                if "low" in clean and style == "-":
                    axes.fill_between(at, clean["low"], clean["high"], color=f"C{number % 10}", alpha=0.15)
        axes.set(title=title, xlabel=across, yscale=scale)
        if scale == "log":
            axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-9))  # what is less moves nothing
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    for axes in grid.flat[len(used) :]:
        axes.remove()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
