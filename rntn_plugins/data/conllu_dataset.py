"""fairseq adapters of binarised CoNLL-U columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils
from torch import Tensor

from rntn_plugins.data.binarised import load_binarised, load_dictionary
from rntn_plugins.data.columns import WORD_END


class DataBin:
    """A folder that ``scripts/prepare_conllu.py`` wrote: one sub-folder a column, the CoNLL-U files beside them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def has(self, column: str) -> bool:
        return os.path.exists(os.path.join(self.folder, column, "dict.txt"))

    def dictionary(self, column: str) -> Dictionary:
        """The symbols of a column; ``ValueError`` if the folder does not have it or it is damaged."""
        return load_dictionary(os.path.join(self.folder, column), "scripts/prepare_conllu.py")

    def column(self, column: str, split: str, dictionary: Dictionary, impl=None) -> Optional[Sequence[Tensor]]:
        """A column of a split, one tensor a sentence, ``</s>`` last; ``None`` if the split has no such column.

        Raises:
            ValueError: it is damaged.
        """
        path = os.path.join(self.folder, column, split)
        return load_binarised(path, dictionary, impl)

    def conllu(self, split: str) -> str:
        """Path of a split's CoNLL-U file."""
        return os.path.join(self.folder, f"{split}.conllu")

    def vectors(self, column: str) -> Optional[np.ndarray]:
        """Pretrained vectors of a column's symbols, ``[V, D]``, or ``None``."""
        path = os.path.join(self.folder, column, "vectors.npy")
        return np.load(path) if os.path.exists(path) else None


@dataclass(frozen=True)
class Labels:
    """The gold labels of a sentence. No tuple: fairseq would move its tensors to the GPU, where nothing needs them.

    They go to another process by value. Sent as tensors, those of every sentence that a data worker has read would stay
    in shared memory, each an open file of the worker: more than a system allows after some thousand sentences.
    """

    targets: Tensor  # [L]
    heads: Optional[Tensor] = None  # [n], 0 to n (parsing)
    relations: Optional[Tensor] = None  # [n] (parsing)
    names: Optional[List[str]] = None  # of the relations, where some are unknown to the dictionary

    def __reduce__(self):
        arrays = (None if tensor is None else tensor.numpy() for tensor in (self.targets, self.heads, self.relations))
        return _labels, (*arrays, self.names)


def _labels(targets: np.ndarray, heads: Optional[np.ndarray], relations: Optional[np.ndarray], names) -> Labels:
    tensors = (None if array is None else torch.from_numpy(array) for array in (targets, heads, relations))
    return Labels(*tensors, names)


class ConlluDataset(FairseqDataset):
    """Sentences with their input columns and, where known, labels.

    Args:
        columns: word columns by name, the first one the source: each a sequence of ``[n]`` tensors.
        characters: words of characters, a sequence of ``[n, C]`` tensors, or ``None``.
        labels: one :class:`Labels` a sentence, or ``None``.
        upos: parts of speech of each sentence (names), if the decoding of heads needs them.
        pad, end: indices in the dictionary of labels (``<pad>`` is the same in all dictionaries).
        with_end: whether targets end with *end* (encoder-decoders).
        labels_per_word: 1, or 2 in parsing.
        fixed_length: N: at most N words are read and N labels put out.
        shuffle: a new order of sentences of the same length in every epoch.
    """

    def __init__(
        self, columns: Dict[str, Sequence[Tensor]], characters, labels, upos, *, source: str, pad: int, end: int,
        with_end: bool, labels_per_word: int, fixed_length: Optional[int] = None, shuffle: bool = False,
    ):  # fmt: skip
        self.columns, self.characters, self.labels, self.upos = columns, characters, labels, upos
        self.source, self.pad, self.end, self.with_end = source, pad, end, with_end
        self.labels_per_word, self.fixed_length, self.shuffle = labels_per_word, fixed_length, shuffle
        self.words = np.asarray([len(sentence) for sentence in columns[source]], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict:
        index = int(index)
        limit = self.fixed_length
        item = {
            "id": index,
            "words": int(self.words[index]),
            "columns": {name: column[index][:limit] for name, column in self.columns.items()},
        }
        if self.characters is not None:
            item["characters"] = self.characters[index][:limit]
        if self.labels is not None:
            item["labels"] = self.labels[index]
        if self.upos is not None:
            item["upos"] = self.upos[index]
        return item

    @property
    def truncated(self) -> int:
        """How many sentences lose words or labels to ``fixed_length``."""
        if self.fixed_length is None:
            return 0
        return int((self.words * self.labels_per_word > self.fixed_length).sum())

    def collater(self, items: List[dict]) -> dict:
        """A batch: ``net_input`` for the model, ``target`` ``[B, L]``, and what scoring needs."""
        if not items:
            return {}
        read = {
            name: data_utils.collate_tokens([item["columns"][name] for item in items], self.pad)
            for name in items[0]["columns"]
        }
        words = torch.tensor([item["words"] for item in items])
        limit = words.new_tensor(self.fixed_length if self.fixed_length is not None else 10**9)
        lengths = torch.minimum(words * self.labels_per_word, limit)
        net_input = {
            "src_tokens": read.pop(self.source),
            "src_lengths": torch.minimum(words, limit),
            "target_lengths": lengths,
            "columns": read,
            "characters": stack_words([item["characters"] for item in items], self.pad)
            if self.characters is not None
            else None,
        }
        batch = {
            "id": torch.tensor([item["id"] for item in items]),
            "nsentences": len(items),
            "ntokens": int(lengths.sum()) + self.with_end * len(items),
            "net_input": net_input,
            "target": None,
            "words": words,
            "upos": [item.get("upos") for item in items],
        }
        if self.labels is not None:
            cut = [item["labels"].targets[: int(length)] for item, length in zip(items, lengths)]
            if self.with_end:
                end = torch.tensor([self.end])
                net_input["prev_output_tokens"] = data_utils.collate_tokens(
                    [torch.cat([end, t]) for t in cut], self.pad
                )
                cut = [torch.cat([target, end]) for target in cut]
            batch["target"] = data_utils.collate_tokens(cut, self.pad)
            batch["gold"] = [item["labels"] for item in items]
        return batch

    # ---- sizes and order ---------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> np.ndarray:
        return self.words

    def num_tokens(self, index: int) -> int:
        return int(self.words[index]) * self.labels_per_word

    def num_tokens_vec(self, indices) -> np.ndarray:
        return self.words[indices] * self.labels_per_word

    def size(self, index: int) -> int:
        return int(self.words[index])

    def ordered_indices(self) -> np.ndarray:
        """By length, so that batches hold sentences of about the same; equal ones in a random order in training."""
        order = np.arange(len(self))
        if self.shuffle:
            order = np.random.permutation(len(self))  # fairseq has seeded it with --seed and the epoch
        return order[np.argsort(self.words[order], kind="mergesort")]

    def filter_indices_by_size(self, indices, max_sizes):
        """Nothing is too long for a recurrent network."""
        return indices, []

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return not self.shuffle  # the batches of an epoch are its own

    @property
    def supports_prefetch(self) -> bool:
        return False


class WithoutEnd:
    """The sentences of an indexed column without their ``</s>``, their symbols renumbered if *moved* says how."""

    def __init__(self, column: Sequence[Tensor], moved: Optional[Tensor] = None) -> None:
        self.column, self.moved = column, moved

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: int) -> Tensor:
        symbols = self.column[index][:-1].long()
        return symbols if self.moved is None else self.moved[symbols]


class Words:
    """Sentences of characters, cut into words: ``[n, C]`` each, padded on the right."""

    def __init__(self, column: Sequence[Tensor], dictionary: Dictionary) -> None:
        self.column, self.pad = column, dictionary.pad()
        self.end = dictionary.index(WORD_END)

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: int) -> Tensor:
        return cut_words(self.column[index][:-1].long(), self.end, self.pad)


def cut_words(symbols: Tensor, end: int, pad: int) -> Tensor:
    """One row a word, ``[n, C]``: *symbols* has *end* behind each word."""
    words = torch.tensor_split(symbols, (symbols.eq(end).nonzero().squeeze(1) + 1).tolist())[:-1]
    return torch.nn.utils.rnn.pad_sequence([word[:-1] for word in words], batch_first=True, padding_value=pad)


def stack_words(sentences: List[Tensor], pad: int) -> Tensor:
    """``[n, C]`` each to ``[B, S, C]``; at least one character wide."""
    words = max(len(sentence) for sentence in sentences)
    longest = max(1, *(sentence.size(1) for sentence in sentences))
    stacked = torch.full((len(sentences), words, longest), pad)
    for row, sentence in zip(stacked, sentences):
        row[: sentence.size(0), : sentence.size(1)] = sentence
    return stacked
