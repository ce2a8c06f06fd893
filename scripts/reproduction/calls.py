"""Which calls of scripts/reproduce.py a training is made of: when, by which code, on which machine.

A training that was interrupted goes on in a later call, perhaps elsewhere and by other code. Every call is written to
``calls.json`` in the training's folder before it begins, and its time when it has ended; of one that was killed, by the
next.
"""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any, Dict, List

from outputs import whole
from reproduction.training import read_json

FILE = "calls.json"
#: in place of the calls that nothing is known of, as of a training begun before they were written down
UNKNOWN = {"started": None, "updates": 0, "commit": None, "modified": None, "environment": {}, "wall": None}


class Calls:
    """The calls of one training, in order; each an object with

    - ``started``: local time, to the second
    - ``updates``: those of the checkpoint that it went on from
    - ``commit``, ``modified``: of the code, and whether files of it were not committed
    - ``environment``: machine, versions and threads
    - ``wall``: seconds of training, validation and scoring; of a call that was killed, up to the last line of its log

    Args:
        folder: the training's.
        updates: those of the checkpoint that is there; 0: the training begins, and earlier calls count for nothing.
        log: what the call before wrote last.
        where: ``scripts/benchmark.py``'s environment of this call, with ``commit`` and ``changed_files``.
    """

    def __init__(self, folder: Path, updates: int, log: Path, where: Dict[str, Any]) -> None:
        self.file = folder / FILE
        self.all = self.read() if updates else []
        if self.all and self.all[-1]["wall"] is None and self.all[-1]["started"] and log.is_file():
            begun = moment(self.all[-1]["started"])
            self.all[-1]["wall"] = round(max(0.0, log.stat().st_mtime - begun), 1)
        self.all.append({
            "started": datetime.datetime.now().isoformat(timespec="seconds"), "updates": updates, **whose(where),
            "wall": None,
        })  # fmt: skip
        self.save()

    def read(self) -> List[Dict[str, Any]]:
        """Those before; if nothing is known of them, one that says so."""
        found = read_json(self.file)
        able = isinstance(found, list) and found and all(map(is_call, found))
        return found if able else [dict(UNKNOWN)]

    def save(self) -> None:
        with whole(self.file) as part:
            part.write_text(json.dumps(self.all) + "\n", encoding="utf-8")

    def ended(self, wall: float, updates: int) -> Dict[str, Any]:
        """What a result says of its calls.

        Args:
            wall: seconds that this call took.
            updates: those of the training by now.
        Returns:
            ``started`` (of the first call), ``commit`` and ``environment`` (of the last that trained), ``modified``
            (whether any was, or ``None``: not known); ``calls``: where there were several those that made updates
            which count, and the last, which scored (one alone is not listed: ``[]``); ``wall`` of all together,
            ``None`` where one is not known.
        """
        self.all[-1]["wall"] = round(wall, 1)
        self.save()
        kept = [*(each["updates"] for each in self.all), updates]
        kept = [min(kept[place:]) for place in range(1, len(kept))]  # what later calls went back before is lost
        training = [each for each, reached in zip(self.all, kept) if reached > each["updates"]] or self.all[-1:]
        counted = training if training[-1] is self.all[-1] else [*training, self.all[-1]]
        modified = {each["modified"] for each in counted}
        walls = [each["wall"] for each in self.all]
        return {
            "started": counted[0]["started"],
            "commit": training[-1]["commit"],
            "modified": True if True in modified else None if None in modified else False,
            "environment": training[-1]["environment"],
            "calls": counted if len(counted) > 1 else [],
            "wall": None if None in walls else round(sum(walls), 1),
        }


def whose(where: Dict[str, Any]) -> Dict[str, Any]:
    """Code and machine from ``scripts/benchmark.py``'s environment: ``commit``, ``modified`` (``None``: not known, as
    without git) and ``environment``."""
    where = dict(where)
    commit, changed = where.pop("commit"), where.pop("changed_files")
    return {"commit": commit, "modified": None if commit is None else bool(changed), "environment": where}


def moment(text: str) -> float:
    """Seconds since 1970 of a time in ISO format; ``ValueError`` or ``OverflowError`` if it is none."""
    return datetime.datetime.fromisoformat(text).timestamp()


def is_call(given: Any) -> bool:
    """Whether it is an object as :class:`Calls` writes it."""
    if not isinstance(given, dict) or given.keys() != UNKNOWN.keys():
        return False
    try:
        moment(given["started"] or "2000-01-01")
    except (OSError, OverflowError, TypeError, ValueError):
        return False
    wall = given["wall"]
    return (
        type(given["updates"]) is int
        and given["updates"] >= 0
        and isinstance(given["commit"], (str, type(None)))
        and isinstance(given["modified"], (bool, type(None)))
        and isinstance(given["environment"], dict)
        and (wall is None or (type(wall) in (int, float) and 0 <= wall < math.inf))
    )
