"""Dependency parsing of CoNLL-U files as sequence labelling."""

from dataclasses import dataclass, field, replace
from typing import List, Optional

import numpy as np
import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from torch import Tensor

from rntn_plugins.data.columns import text_of
from rntn_plugins.data.conllu import read_conllu
from rntn_plugins.data.conllu_dataset import Labels, WithoutEnd
from rntn_plugins.data.heads import ENCODINGS, labels_of_word
from rntn_plugins.data.label_dictionary import LabelDictionary, join_dictionaries
from rntn_plugins.data.trees import greedy_or_best_tree, is_tree
from rntn_plugins.metrics import same_relation
from rntn_plugins.tasks.conllu_task import ConlluConfig, ConlluTask
from rntn_plugins.tasks.label_generation import Allowed

ROOT_RELATION = "root"
UNSPECIFIED = "dep"  # UD's relation for what cannot be told


@dataclass
class ConlluParsingConfig(ConlluConfig):
    label_layout: Optional[ChoiceEnum(["interleaved", "parallel"])] = field(
        default=None,
        metadata={"help": "'interleaved' (default): one sequence of 2n labels, relation and head of each word in turn "
                  "(E18); 'parallel': labellers put out both at every word, with a classifier for each"},
    )  # fmt: skip
    head_encoding: Optional[ChoiceEnum(list(ENCODINGS))] = field(
        default=None,
        metadata={"help": "the label of a head: its 'position' (default; E18), its signed 'offset', or 'upos': the "
                  "k-th word with its UPOS to the left or right (Strzyz et al. 2019; needs UPOS in the data)"},
    )  # fmt: skip


@register_task("conllu_parsing", dataclass=ConlluParsingConfig)
class ConlluParsingTask(ConlluTask):
    """Relation and head of every word: 2n labels for n words (E18 §5.1).

    Whatever a model puts out, the parse of a sentence is a tree with one root: where its labels are none, the maximum
    spanning arborescence over the scores of its labels is taken, and the sentence counts as repaired.

    The log of validations has, in per cent, ``label_accuracy`` (E18: right labels of all 2n), ``uas`` and ``las`` (over
    all words, subtypes of relations ignored, as by the official scorer of the CoNLL 2018 shared task), ``repaired``.
    """

    SETTINGS = {**ConlluTask.SETTINGS, "label_layout": "interleaved", "head_encoding": "position"}
    COUNTS = (*ConlluTask.COUNTS, "words", "right_heads", "right_arcs", "repaired")
    MEASURES = {
        **ConlluTask.MEASURES,
        "uas": ("right_heads", "words"),
        "las": ("right_arcs", "words"),
        "repaired": ("repaired", "sentences"),
    }
    LOWER = ("repaired",)
    labels_per_word = 2

    def read_labels(self, target: LabelDictionary) -> None:
        if not self.bin.has("deprel") and self.bin.has("lemma"):
            raise ValueError(f"{self.bin.folder}: its training sentences have no heads, so there is nothing to learn")
        relations, heads = self.bin.dictionary("deprel"), self.bin.dictionary(self.head_column)
        self.moved = join_dictionaries(relations, heads, target)
        kinds = torch.zeros(2, len(target), dtype=torch.bool)
        for kind, moved, dictionary in zip(kinds, self.moved, (relations, heads)):
            kind[moved[dictionary.nspecial :]] = True
        self.relations, self.heads = kinds  # what may be put out
        kinds = kinds.clone()
        kinds[:, target.unk()] = True  # what has a score
        parallel = self.settings["label_layout"] == "parallel"
        self.label_kinds = kinds if parallel else kinds.any(0, keepdim=True)
        root = (
            torch.tensor([symbol.split(":")[0].lower() == ROOT_RELATION for symbol in target.symbols]) & self.relations
        )
        self.root_relations = root

    @property
    def head_column(self) -> str:
        return f"head_{self.settings['head_encoding']}"

    def build_model(self, cfg, from_checkpoint=False):
        model = super().build_model(cfg, from_checkpoint)
        if model.predicts_end and self.settings["label_layout"] == "parallel":
            raise ValueError("--label-layout parallel is for labellers: a decoder puts out one label after the other")
        return model

    # ---- gold --------------------------------------------------------------------------------------------------------

    def load_labels(self, split: str) -> Optional[List[Labels]]:
        impl = self.impl
        columns = []
        for name in ("deprel", self.head_column, "head_position"):
            columns.append(self.bin.column(name, split, self.bin.dictionary(name), impl))
        if any(column is None for column in columns):
            return None
        positions = self.bin.dictionary("head_position")
        number = [int(name) if name.isdigit() else -1 for name in positions.symbols]
        labels = []
        for relation, head, position in zip(
            WithoutEnd(columns[0], self.moved[0]), WithoutEnd(columns[1], self.moved[1]), WithoutEnd(columns[2])
        ):
            heads = torch.tensor([number[index] for index in position.tolist()])
            labels.append(Labels(torch.stack([relation, head], 1).view(-1), heads, relation))
        if any(self._target.unk() in label.relations for label in labels):
            sentences = read_conllu(self.bin.conllu(split)).sentences
            labels = [replace(label, names=s.column("deprel")) for label, s in zip(labels, sentences)]
        return labels

    def load_tags(self, split: str) -> Optional[List[List[str]]]:
        if self.settings["head_encoding"] != "upos":
            return None
        tags = self.bin.dictionary("upos")
        column = self.bin.column("upos", split, tags, self.impl)
        if (sum(len(sentence) for sentence in column) - len(column)) and any(
            tags.unk() in sentence for sentence in column
        ):  # the names of unknown tags are not in the binarised data
            return self.tags_of(read_conllu(self.bin.conllu(split)).sentences)
        return [[tags[index] for index in sentence.tolist()] for sentence in WithoutEnd(column)]

    def tags_of(self, sentences):
        if self.settings["head_encoding"] != "upos":
            return None
        for sentence in sentences:
            if set(sentence.column("upos")) == {"_"}:
                raise ValueError(
                    f"{sentence.name}:{sentence.first_line}: the model's heads are relative to UPOS, and this sentence "
                    "has none; tag it first"
                )
        return [sentence.column("upos") for sentence in sentences]

    def check_lengths(self, dataset, split):
        super().check_lengths(dataset, split)
        if self.settings["head_encoding"] != "position":
            return
        most = max(int(self._target[index]) for index in self.heads.nonzero().squeeze(1).tolist())
        longest = int(dataset.words.argmax())
        if dataset.words[longest] > most and self.fixed_length is None:
            raise ValueError(
                f"{split}: sentence {longest + 1} has {dataset.words[longest]} words, and the model's labels are the "
                f"positions 0 to {most}: train with --head-encoding offset, or with --fixed-length to cut sentences off"
            )

    # ---- predictions -------------------------------------------------------------------------------------------------

    def allowed_labels(self, sample, row):
        words, upos = int(sample["words"][row]), sample["upos"][row]
        index, unknown = self._target.indices, -1
        arcs = np.array(
            [
                [unknown if label is None else index.get(label, unknown) for label in
                 labels_of_word(word, words, self.settings["head_encoding"], upos)]
                for word in range(1, words + 1)
            ]
        )  # fmt: skip
        allowed = torch.zeros(2 * words, len(self._target), dtype=torch.bool)
        allowed[::2] = self.relations
        for word, labels in enumerate(arcs):
            known = labels[labels >= 0]
            if len(known):
                allowed[2 * word + 1, known] = True
            else:
                allowed[2 * word + 1] = self.heads  # no head of this word has a label: whatever comes is repaired
        return Allowed(allowed[: int(sample["net_input"]["target_lengths"][row])], arcs)

    def columns_of(self, sample, row, tokens, scores, allowed):
        words = int(sample["words"][row])
        heads, repaired = self.tree(tokens[1::2].tolist(), scores[1::2], allowed.arcs)
        relations = self.relations_of(heads, tokens[::2].tolist(), scores[::2])
        names = [self._target[index] for index in relations] + [UNSPECIFIED] * (words - len(relations))
        written = {"head": heads, "deprel": [text_of(name) for name in names]}
        return {"columns": written, "heads": heads, "relations": names, "repaired": repaired}

    def tree(self, labels: List[int], scores: Tensor, arcs: np.ndarray):
        """The heads ``[n]`` of the best tree, and whether the labels were none.

        Args:
            labels: the heads' labels that the model chose, at most one a word.
            scores: of all labels at these words, ``[n', V]``; words behind n' were cut off and hang on the one before.
        """
        words = len(arcs)
        chosen = [np.flatnonzero(row == label) for row, label in zip(arcs, labels)]
        if len(labels) == words and all(len(found) == 1 for found in chosen):
            heads = [int(found[0]) for found in chosen]
            if is_tree(heads):
                return heads, False
        table = np.full((words, words + 1), -np.inf)
        known = scores.double().numpy()
        for word, row in enumerate(arcs):
            if word < len(known):
                table[word] = np.where(row >= 0, known[word][row], -np.inf)
            else:
                table[word, word] = 0.0
        heads, _ = greedy_or_best_tree(table)
        return heads.tolist(), True

    def relations_of(self, heads: List[int], labels: List[int], scores: Tensor) -> List[int]:
        """The relations' labels: the model's where they can be, else the best that can (``root`` goes with head 0)."""
        found = []
        for word, line in enumerate(scores):
            fitting = self.relations
            if self.root_relations.any() and not self.root_relations.equal(self.relations):
                fitting = self.root_relations if heads[word] == 0 else self.relations & ~self.root_relations
            if word < len(labels) and fitting[labels[word]]:
                found.append(labels[word])
            else:
                choice = fitting.nonzero().squeeze(1)
                found.append(int(choice[line[choice].argmax()]))
        return found

    # ---- scores ------------------------------------------------------------------------------------------------------

    def count(self, sample, hypotheses, predictions):
        found = super().count(sample, hypotheses, predictions)
        found["repaired"] = sum(prediction["repaired"] for prediction in predictions)
        for gold, prediction in zip(sample.get("gold", ()), predictions):
            names = gold.names or [self._target[relation] for relation in gold.relations.tolist()]
            for head, relation, right, true in zip(
                prediction["heads"], prediction["relations"], gold.heads.tolist(), names
            ):
                found["words"] += 1
                found["right_heads"] += head == right
                found["right_arcs"] += head == right and same_relation(relation, true)
        return found

    def summary(self) -> str:
        totals = self.totals
        share = f"repaired {totals['repaired']:,} of {totals['sentences']:,} sentences"
        share += f" ({100 * totals['repaired'] / max(1, totals['sentences']):.2f} %)"
        if not totals["words"]:
            return share
        right = {name: 100 * totals[of] / totals[whole] for name, (of, whole) in self.MEASURES.items()}
        return (
            f"label accuracy {right['label_accuracy']:.2f} %, UAS {right['uas']:.2f} %, LAS {right['las']:.2f} % "
            f"({totals['words']:,} words), {share}"
        )
