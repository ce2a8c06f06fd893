"""Part-of-speech tagging of CoNLL-U files."""

from dataclasses import dataclass, field
from typing import List, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task

from rntn_plugins.data.columns import text_of
from rntn_plugins.data.conllu_dataset import Labels, WithoutEnd
from rntn_plugins.data.label_dictionary import LabelDictionary
from rntn_plugins.tasks.conllu_task import ConlluConfig, ConlluTask
from rntn_plugins.tasks.label_generation import Allowed


@dataclass
class ConlluTaggingConfig(ConlluConfig):
    tag_column: Optional[ChoiceEnum(["upos", "xpos"])] = field(
        default=None,
        metadata={"help": "the column to predict: upos or xpos (default: upos; after training: the checkpoint's)"},
    )


@register_task("conllu_tagging", dataclass=ConlluTaggingConfig)
class ConlluTaggingTask(ConlluTask):
    """One tag a word (E18 §5.1: UPOS from lemmas).

    The log of validations has ``label_accuracy`` in per cent: right tags over all words.
    """

    SETTINGS = {**ConlluTask.SETTINGS, "tag_column": "upos"}

    def read_labels(self, target: LabelDictionary) -> None:
        self.tag_column = self.settings["tag_column"]
        if self.tag_column in self.input_columns:
            raise ValueError(f"--input-columns: the model would read {self.tag_column}, which it is to predict")
        tags = self.bin.dictionary(self.tag_column)
        for index in range(tags.nspecial, len(tags)):
            target.add_symbol(tags[index], n=tags.count[index])
        if target.symbols[target.nspecial :] == ["_"]:
            raise ValueError(f"{self.bin.folder}: the treebank has no {self.tag_column.upper()}, only _")
        self.label_kinds = torch.ones(1, len(target), dtype=torch.bool)
        self.label_kinds[:, [target.bos(), target.pad(), target.eos()]] = False

    def load_labels(self, split: str) -> Optional[List[Labels]]:
        tags = self.bin.column(self.tag_column, split, self._target, self.impl)
        return None if tags is None else [Labels(sentence) for sentence in WithoutEnd(tags)]

    def allowed_labels(self, sample, row):
        allowed = self.label_kinds[0].clone()
        allowed[self._target.unk()] = False
        return Allowed(allowed.expand(int(sample["net_input"]["target_lengths"][row]), -1))

    def columns_of(self, sample, row, tokens, scores, allowed):
        choice = allowed.any_of[0].nonzero().squeeze(1)
        best = choice[scores[:, choice].argmax(-1)]
        usable = torch.zeros(len(best), dtype=torch.bool)
        usable[: len(tokens)] = allowed.any_of[0][tokens]
        chosen = torch.where(usable, torch.nn.functional.pad(tokens, (0, len(best) - len(tokens))), best)
        tags = [text_of(self._target[index]) for index in chosen.tolist()]
        tags += ["_"] * (int(sample["words"][row]) - len(tags))  # cut off by --fixed-length
        return {"columns": {self.tag_column: tags}}

    def summary(self) -> str:
        totals = self.totals
        if not totals["labels"]:
            return f"{totals['sentences']:,} sentences"
        return (
            f"{self.tag_column.upper()} accuracy {100 * totals['right_labels'] / totals['labels']:.2f} % "
            f"({totals['right_labels']:,} of {totals['labels']:,})"
        )
