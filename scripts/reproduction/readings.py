"""The main comparisons by other readings of what a paper leaves open: claims that are counted apart, of the same rows.

A claim counted apart (``aside``) reads another in its own way if its runs are those of the other or of rows that say of
themselves that they read one of the other's in another way (``reading_of``).
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from reproduction.claims import Judged
from reproduction.manifest import Manifest


def otherwise(manifest: Manifest, judged: Sequence[Judged], one: Judged) -> List[Judged]:
    """Those of *judged* that are decided and read what *one* compares in another way."""
    read = {row.run: row.reading_of for row in manifest.rows if row.reading_of}
    return [
        each
        for each in judged
        if "aside" in each.claim and each.holds is not None and runs(each.claim) != runs(one.claim)
        and compares(each.claim, read) == compares(one.claim, {})
    ]  # fmt: skip


def runs(claim: Dict[str, Any]) -> Tuple[str, str]:
    return claim["better"], claim["worse"]


def compares(claim: Dict[str, Any], read: Dict[str, str]) -> tuple:
    """What a claim says of which rows of the paper.

    Args:
        read: by the runs of other readings those that they read in another way.
    """
    how = (claim["evaluate"], *(claim.get(name) for name in ("within", "epochs", "at_end")))
    return claim["paper"], *(read.get(run, run) for run in runs(claim)), *how


def in_words(chosen: Sequence[Judged], readings: Sequence[Sequence[Judged]]) -> str:
    """How many of the comparisons have other readings, and how many are decided otherwise by one; empty if none has."""
    known = sum(map(bool, readings))
    against = [(one, opposed(one, others)) for one, others in zip(chosen, readings) if opposed(one, others)]
    sooner = sum(all(shorter(one, other) for other in others) for one, others in against)
    of_these = f" ({sooner} of these by shorter trainings)" if sooner else ""
    said = f"By other readings of the paper {known} are judged too, {len(against)} of them to the contrary{of_these}. "
    return said if known else ""


def opposed(one: Judged, others: Sequence[Judged]) -> List[Judged]:
    """Those of a decided comparison's other readings by which it is decided otherwise."""
    return [each for each in others if one.holds is not None and each.holds != one.holds]


def shorter(one: Judged, other: Judged) -> bool:
    """Whether the other was trained for fewer epochs, by the side of either that had fewest."""
    epochs = [min(result.epochs for side in (each.better, each.worse) for result in side.results)
              for each in (one, other)]  # fmt: skip
    return epochs[0] > 1.01 * epochs[1]
