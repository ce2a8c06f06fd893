"""What fairseq's commands say: curves of training and validation, scores, how far a training came, why it stopped."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict, List

from reproduction.manifest import LARGEST, ROOT, Refused

#: what the last line of a scoring command says: metric, pattern, and the tokens it counted
SCORES = {
    "ppl": r"Loss \(base 2\): \S+, Perplexity: (?P<value>[\d.]+|nan|inf)",
    "bpc": r"Loss \(base 2\): (?P<value>[\d.]+|nan|inf), Perplexity",
    "upos_accuracy": r"accuracy (?P<value>[\d.]+) %",
    "label_accuracy": r"label accuracy (?P<value>[\d.]+) %",
}
TOKENS = r"Evaluated ([\d,]+) tokens|\(([\d,]+) words\)|\([\d,]+ of ([\d,]+)\)"
#: why fairseq-train stopped, by what it says
STOPS = {
    "budget": r"Stopping training due to cumulative_training_time",
    "rule": r"stopping training because current learning rate",
    "schedule": r"Stopping training due to num_updates",
    "signal": r"Stopping training due to SIG[A-Z0-9]+",
}
#: written into a log where a training goes on, with the updates of its checkpoint
GOES_ON = "reproduce: goes on after updates "
KEPT_LINES = re.compile(rf"^\S+ \S+ \| INFO \| (?!fairseq_cli\.train \| \{{|train_inner)|^{GOES_ON}")


def numbers(line: str) -> Dict[str, float]:
    """``| loss 6.8 | ppl 111.02`` as a dictionary."""
    found = {}
    for part in line.split("|"):
        name, _, value = part.strip().rpartition(" ")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            continue
    return found


def curve(log: str) -> List[dict]:
    """What training and validation logged, by updates: ``epoch``, ``updates``, ``train``, ``valid``; without what came
    after a checkpoint that training went on from."""
    points: Dict[int, dict] = {}
    for line in log.splitlines():
        goes_on = re.fullmatch(rf"{GOES_ON}(\d{{1,15}})", line)
        if goes_on:
            kept = max(int(goes_on[1]), float(f"{int(goes_on[1]):g}"))  # fairseq logs six digits
            points = {updates: point for updates, point in points.items() if updates <= kept}
        match = re.search(r"\| INFO \| (train|valid) \| epoch (\d{1,9})\b", line)
        values = numbers(line) if match else {}
        made = values.pop("num_updates", 0)
        if not match or not int(match[2]) or not 1 <= made < LARGEST:  # a line that was cut off or damaged
            continue
        updates = int(made)
        point = points.setdefault(updates, {"epoch": int(match[2]), "updates": updates})
        point[match[1]] = {name: value for name, value in values.items() if not name.startswith("epoch")}
    return [points[updates] for updates in sorted(points)]


def read_score(metric: str, text: str) -> dict:
    """What a scoring command found: the metric, ``tokens``, and the ``line`` that says so.

    Raises:
        Refused: it says nothing of the kind.
    """
    for line in reversed(text.splitlines()):
        match = re.search(SCORES[metric], line)
        if match:
            said = "\n".join(text.splitlines()[-30:])
            tokens = re.search(TOKENS, said)
            count = next((part for part in tokens.groups() if part), "0") if tokens else "0"
            return {metric: float(match["value"]), "tokens": int(count.replace(",", "")),
                    "line": line.split(" | ")[-1].strip()}  # fmt: skip
    raise Refused(f"the scoring command printed no {metric}: {last_line(text)}")


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")[:300]


def kept_lines(log: str, every: bool = False) -> str:
    """The log without configuration, model and warnings of libraries, which name folders of this machine; nor those of
    another, on which the training began, that name where its checkpoints were.

    Args:
        every: all lines but those that name such folders: a script's log.
    """
    folders = {str(folder) for folder in (ROOT, Path(sys.prefix), Path.home()) if folder != Path(folder.anchor)}
    secret = re.compile("|".join([*map(re.escape, folders), r"(?<!\S)/\S+/checkpoint\S*\.pt"]))
    lines = [line for line in log.splitlines() if (every or KEPT_LINES.match(line)) and not secret.search(line)]
    return "\n".join(lines) + "\n"


def epochs_done(points: List[dict], log: str) -> float:
    """By updates; how many an epoch has stands in the progress lines, or else is known when the first has ended."""
    if not points:
        return 0.0
    length = re.search(r"train_inner \| epoch \d+:\s+\d+ / (0*[1-9]\d*)", log)
    if length:
        return points[-1]["updates"] / int(length[1])
    ends = [one for one, after in zip(points, points[1:]) if after["epoch"] > one["epoch"]]
    stops = re.findall("|".join(STOPS.values()), log)
    if not ends and stops and re.match(f"{STOPS['budget']}|{STOPS['signal']}", stops[-1]):
        return 0.0  # not known to have come to the end of the first
    ended = ends[-1]["updates"] / ends[-1]["epoch"] if ends else points[0]["updates"] / points[0]["epoch"]
    return points[-1]["updates"] / ended
