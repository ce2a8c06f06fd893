"""Numbers of what scripts/benchmark.py saved: per round, ratios within a round, the floor, and whether a bar is met."""

from __future__ import annotations

import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from benchmarking.floor import counted

OURS = ("auto", "fused", "triton", "naive")  # the first that ran is "ours"


class Spread(NamedTuple):
    """The median of the rounds, and the lowest and highest."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Optional[Spread]:
    return Spread(statistics.median(values), min(values), max(values)) if values else None


class Results:
    """Saved results. A *group* is what is measured (a layer, a training run), a *role* who computes it."""

    def __init__(self, data: dict) -> None:
        self.data = data
        self.entries = {(entry["group"], entry["role"]): entry for entry in data["contenders"]}
        self.groups = list(dict.fromkeys(entry["group"] for entry in data["contenders"] if entry["group"] != "machine"))

    def roles(self, group: str) -> List[str]:
        return [role for entry_group, role in self.entries if entry_group == group]

    def entry(self, group: str, role: str) -> Optional[dict]:
        return self.entries.get((group, self.ours(group) if role == "ours" else role))

    def ours(self, group: str) -> str:
        """The role that stands for us: the kernel where there is one (the first that was tried, if none ran)."""
        tried = [role for role in OURS if (group, role) in self.entries]
        return next((role for role in tried if self.values(group, role)), next(iter(tried), "naive"))

    def has_kernel(self, group: str) -> bool:
        """Whether ours is more than the naive loop."""
        entry = self.entry(group, "ours")
        return any(record.get("kernel") for record in (entry or {}).get("records", []))

    def values(self, group: str, role: str, field: str = "seconds") -> Dict[int, float]:
        """One number a round (the median of its samples), in ascending order of rounds."""
        if role == "floor":
            return self.floor(group)
        entry = self.entry(group, role) if role == "ours" else self.entries.get((group, role))
        found = {}
        for record in entry["records"] if entry else []:
            value = record.get(field)
            if value is not None:
                found[record["round"]] = statistics.median(value) if isinstance(value, list) else value
        return dict(sorted(found.items()))

    def floor(self, group: str) -> Dict[int, float]:
        """Counted operations over the GEMM rate plus counted bytes over the copy rate, both measured in that round."""
        gemm, copy = (self.values("machine", "machine", field) for field in ("gemm", "copy"))
        entry = next((self.entries[group, role] for role in OURS if self.values(group, role)), None)
        if entry is None or "cell" not in entry["spec"]:
            return {}
        distinct = next(record["distinct"] for record in entry["records"] if "distinct" in record)
        work = counted(entry["spec"], distinct)
        return {n: work[0] / gemm[n] + work[1] / copy[n] for n in gemm if n in copy} if work else {}

    def ratios(self, top: Tuple[str, str], bottom: Tuple[str, str], field: str = "seconds") -> List[float]:
        """Top over bottom, each (group, role), round by round: of the two numbers of a round, or, where contenders took
        turns (``updates --in-turns``), the median of what each turn was over the other's beside it."""
        above, below = self.values(*top, field), self.values(*bottom, field)
        shared = [number for number in above if below.get(number)]
        if shared and field == "seconds" and self.data.get("arguments", {}).get("in_turns"):
            turns = [{record["round"]: record[field] for record in self.entry(*side)["records"] if field in record}
                     for side in (top, bottom)]  # fmt: skip
            return [statistics.median(one / other for one, other in zip(turns[0][number], turns[1][number]))
                    for number in shared]  # fmt: skip
        return [above[number] / below[number] for number in shared]

    def within(self, group: str, role: str, top: str, bottom: str) -> List[float]:
        """One number of a contender over another of its numbers, round by round."""
        above, below = (self.values(group, role, field) for field in (top, bottom))
        return [above[number] / below[number] for number in above if below.get(number)]

    def state(self, group: str, role: str) -> str:
        """``failed: …`` and why, if it did (for "ours": any of ours)."""
        entries = [self.entries.get((group, each)) for each in (OURS if role == "ours" else (role,))]
        failed = [record["failed"] for entry in entries if entry for record in entry["records"] if "failed" in record]
        return f"failed: {failed[0]}"[:80] if failed else ""


def rate(per: float, seconds: Dict[int, float]) -> Optional[Spread]:
    return spread([per / value for value in seconds.values()])


def layer_tokens(entry: dict) -> float:
    return entry["spec"]["steps"] * entry["spec"]["batch"]


def judge(results: Results, bar: dict) -> Tuple[Optional[Spread], bool]:
    """A bar's measured ratio (seconds, if it has no second contender), and whether the median meets its limit."""
    if bar["bottom"] is None:
        numbers = spread([value * bar["scale"] for value in results.values(*bar["top"]).values()])
    else:
        numbers = spread(results.ratios(bar["top"], bar["bottom"], bar["field"]))
    if numbers is None or bar["limit"] is None:
        return numbers, False
    return numbers, numbers.median >= bar["limit"] if bar["least"] else numbers.median <= bar["limit"]
