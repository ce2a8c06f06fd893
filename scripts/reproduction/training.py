"""Which training a run with a seed is: its folders, and the flags of the commands that carry it out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from reproduction.checkpoints import BEST
from reproduction.manifest import ROOT, Refused, Run, Schedule, length_flags, merged
from reproduction.process import relative

ON_CPU = "--cpu"
#: the data are in memory: a process that loads them costs more than it spares (updates of one sentence take 1.25 times
#: as long, see docs/performance.md)
NO_WORKERS = "--num-workers=0"
PRECISION = "--matmul-precision"
PRECISIONS = ("highest", "high", "medium")
#: what a script that binarises wrote: its file, there the hashes of the texts, and the name of what is counted
PREPARED = (("prepare_lm.json", "text", "tokens"), ("prepare_conllu.json", "digests", "words"))


def read_json(file: Path) -> Any:
    """What a file of JSON has; ``None``: nothing that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def prepared(folder: Path) -> Tuple[Dict[str, str], Dict[str, int]]:
    """What the script that binarised a folder wrote down, by split: the hashes of the texts, and how many tokens (or
    words) there are; nothing where that is not known."""
    for name, hashes, key in PREPARED:
        said = read_json(folder / name)
        if said is None:
            continue
        texts, statistics = (said.get(part) if isinstance(said, dict) else None for part in (hashes, "statistics"))
        texts = texts if isinstance(texts, dict) else {}
        statistics = statistics if isinstance(statistics, dict) else {}
        counts = {split: each.get(key) for split, each in statistics.items() if isinstance(each, dict)}
        known = {split: digest for split, digest in texts.items() if isinstance(digest, str)}
        return known, {split: count for split, count in counts.items() if type(count) is int}
    return {}, {}


def tokens_of(folder: Path, split: str) -> Optional[int]:
    """How many tokens (or words) a split of a binarised folder has, as the script that made it wrote down, or by the
    index of a language model's; ``None``: not known.

    Raises:
        Refused: the index is damaged.
    """
    count = prepared(folder)[1].get(split)
    if count is not None or not (folder / f"{split}.idx").is_file():
        return count
    from rntn_plugins.data.binarised import load_binarised

    try:
        text = load_binarised(str(folder / split), None)  # kept: sizes are of its file in memory
    except ValueError as error:
        raise Refused(str(error)) from None
    if text is None:
        raise Refused(f"{folder} has a {split}.idx, but no {split}.bin")
    return int(text.sizes.sum())


def digests(folder: Path) -> Dict[str, str]:
    """SHA-256 of every split's text, as the script that binarised it wrote down, or else of the binarised files."""
    files = [file for file in sorted(folder.glob("*.bin")) if file.is_file()]
    return prepared(folder)[0] or {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@dataclass(frozen=True)
class Settings:
    """How the runs of one command go.

    Attributes:
        data: binarised folders by name, from the repository's root; others are ``data-bin/NAME``.
        budget: seconds of training added to what there is, at most; ``None``: to the end of the schedule.
        cuda: whether there is a GPU to train on.
        matmul_precision: of products in training (scores are always computed with torch's own); ``None``: torch's own.
        rounds: whether this machine's products round what they multiply then.
    """

    kind: str
    data: Dict[str, str]
    budget: Optional[float]
    threads: int
    cuda: bool
    matmul_precision: Optional[str] = None
    rounds: bool = False
    runs: Path = ROOT / "runs"
    results: Path = ROOT / "results" / "rows"


@dataclass(frozen=True)
class Training:
    """A run with a seed, and where it lies."""

    run: Run
    seed: int
    settings: Settings

    @property
    def schedule(self) -> Schedule:
        return self.run.schedule.of(self.settings.kind)

    @property
    def name(self) -> str:
        return f"{self.run.id}.{self.settings.kind}.seed{self.seed}"

    @property
    def folder(self) -> Path:
        return self.settings.runs / self.name

    @property
    def result(self) -> Path:
        return self.settings.results / f"{self.name}.json"

    @property
    def data(self) -> str:
        """
        Raises:
            Refused: the folder is not there, or, as the script that made it wrote down, of another corpus.
        """
        name = self.schedule.data
        folder = self.settings.data.get(name, f"data-bin/{name}")
        shown = (ROOT / folder).resolve() if folder.startswith("..") else folder
        if not any((ROOT / folder / file).is_file() for file in ("dict.txt", "prepare_conllu.json")):
            raise Refused(
                f"{self.run.id}: no binarised folder {shown}: prepare it as tasks/{self.schedule.recipe}/README.md "
                f"says, or name it with --data {name}=FOLDER"
            )
        for split, name, counted in (("test", "test", self.schedule.tokens),
                                     ("train", "training", self.schedule.train_tokens)):  # fmt: skip
            said = tokens_of(ROOT / folder, split) if counted else None
            if said and said != counted:
                raise Refused(
                    f"{self.run.id}: {shown} is another corpus: its {name} set has {said:,} tokens, that of "
                    f"tasks/{self.schedule.recipe} {counted:,}"
                )
        return folder

    # ---- commands ----------------------------------------------------------------------------------------------------

    def common(self) -> List[str]:
        """One process wherever it runs: more would make larger batches than the row's."""
        device = () if self.settings.cuda else (ON_CPU,)
        task = ("--task", self.schedule.task)
        return ["--user-dir", "rntn_plugins", *task, "--distributed-world-size", "1", *device, NO_WORKERS]

    def train_flags(self) -> List[str]:
        """Of fairseq-train, but for the budget; or of the script that makes the model."""
        schedule = self.schedule
        if schedule.script:
            return [self.data, "--output", relative(self.folder / BEST), *merged(schedule.train, self.run.flags)]
        flags = merged(merged(length_flags(schedule), schedule.train), self.run.flags)
        precision = self.settings.matmul_precision
        return [
            self.data, *self.common(), *([f"{PRECISION}={precision}"] if precision else []),
            "--arch", self.run.arch, *flags, "--seed", str(self.seed),
            "--save-dir", relative(self.folder), "--no-epoch-checkpoints", "--log-format", "simple",
            "--log-interval", "25",
        ]  # fmt: skip

    def score_flags(self, more: Sequence[str], subset: str) -> List[str]:
        flags = merged(self.schedule.evaluate, tuple(more))
        path = relative(self.folder / BEST)
        output = (
            ["--conllu-output", relative(self.folder / f"{subset}.conllu")] if "conllu" in self.schedule.task else []
        )
        return [self.data, *self.common(), "--path", path, "--gen-subset", subset, *output, *flags]
