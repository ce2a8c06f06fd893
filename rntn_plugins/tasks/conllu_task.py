"""What tagging and parsing of CoNLL-U files share."""

import atexit
import logging
import os
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Dict, List, Optional, Tuple

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from omegaconf import II, MISSING, OmegaConf
from torch import Tensor

from rntn_plugins.data.columns import INPUTS, WORD_END, column_symbols
from rntn_plugins.data.conllu import Sentence
from rntn_plugins.data.conllu_dataset import ConlluDataset, DataBin, Labels, WithoutEnd, Words, cut_words
from rntn_plugins.data.conllu_lines import ConlluLines
from rntn_plugins.data.label_dictionary import LabelDictionary, become
from rntn_plugins.data.predicted_file import PredictedFile
from rntn_plugins.tasks.arithmetic import ArithmeticConfig, set_arithmetic
from rntn_plugins.tasks.best_metric import BestMetricConfig, check_best_metric
from rntn_plugins.tasks.conllu_interactive import Waiting, check_not_read, read_lines_as_they_are
from rntn_plugins.tasks.label_generation import Allowed, LabelGenerator, LabelSequenceGenerator, Scores

logger = logging.getLogger(__name__)


@dataclass
class ConlluConfig(ArithmeticConfig, BestMetricConfig):
    data: str = field(default=MISSING, metadata={"help": "folder that scripts/prepare_conllu.py wrote"})
    input_columns: Optional[str] = field(
        default=None,
        metadata={"help": "comma-separated columns to read, of lemma, form, upos, xpos and char (the characters of "
                  "form); embeddings are concatenated (default: lemma; after training: what the checkpoint read)"},
    )  # fmt: skip
    fixed_length: Optional[int] = field(
        default=None,
        metadata={"help": "N: read N words and put out N labels of every sentence, longer ones cut off, shorter ones "
                  "filled up (E18: 100); default: each sentence as long as it is"},
    )  # fmt: skip
    free_decoding: bool = field(
        default=False,
        metadata={"help": "let a model put out any label anywhere; by default only labels that can stand there (label "
                  "accuracy as in E18 is measured with this flag; what is written is well-formed either way)"},
    )  # fmt: skip
    dbrnn_output: ChoiceEnum(["combined", "forward", "backward"]) = field(
        default="combined", metadata={"help": "which of the DBRNN's three outputs is the prediction"}
    )
    conllu_output: Optional[str] = field(
        default=None,
        metadata={"help": "where fairseq-generate writes the CoNLL-U file with the predictions (default: "
                  "SUBSET.predicted.conllu); fairseq-interactive appends to it instead of printing"},
    )  # fmt: skip
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")


class ConlluTask(FairseqTask):
    """Labels for the words of sentences. A subclass says what the labels are.

    Attributes:
        input_columns: what models read, in order; ``source_column`` is the first that has one symbol a word.
        dictionaries: by column.
        label_kinds: ``[k, V]``, true where a label is of one of the k kinds that a step puts out.
        labels_per_word: 1, or 2 in parsing.
    """

    #: settings that a checkpoint keeps, with the default of each
    SETTINGS: Dict[str, Optional[str]] = {"input_columns": "lemma", "fixed_length": None}
    labels_per_word = 1

    def __init__(self, cfg) -> None:
        set_arithmetic(cfg)
        super().__init__(cfg)
        impl = plain(cfg.dataset_impl)
        # outside of fairseq's own configuration nothing fills the interpolation in
        self.impl = None if impl is None or impl.startswith("${") else impl
        self.given = {name: plain(getattr(cfg, name)) for name in self.SETTINGS}
        if self.given["input_columns"] is not None:
            self.given["input_columns"] = ",".join(part.strip() for part in self.given["input_columns"].split(","))
        folder = os.path.dirname(cfg.conllu_output or "")
        if folder and not os.path.isdir(folder):
            raise ValueError(f"--conllu-output {cfg.conllu_output}: there is no folder {folder}")
        if cfg.conllu_output and os.path.isdir(cfg.conllu_output):
            raise ValueError(f"--conllu-output {cfg.conllu_output} is a folder")
        self.bin = DataBin(utils.split_paths(cfg.data)[0])
        self.check_output(cfg.conllu_output or "", "train", "valid", "test")
        self._source, self._target = Dictionary(), LabelDictionary()
        self._target.scorer = Scores(self)
        self.apply({name: default if self.given[name] is None else self.given[name]
                    for name, default in self.SETTINGS.items()})  # fmt: skip
        self.loaded = False  # whether the settings are those of a checkpoint
        self.model = self.criterion = None
        self.validation_generator = None
        self.totals: Counter = Counter()
        self.output: Optional[PredictedFile] = None
        self.lines = ConlluLines()
        self.waiting = Waiting()
        read_lines_as_they_are()

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        return cls(cfg)

    # ---- settings ----------------------------------------------------------------------------------------------------

    def apply(self, settings: dict) -> None:
        """Read the dictionaries for these settings (the two that fairseq asks for stay the same objects)."""
        self.settings = settings
        self.input_columns = settings["input_columns"].split(",")
        unknown = [column for column in self.input_columns if column not in INPUTS]
        if unknown or len(set(self.input_columns)) < len(self.input_columns):
            raise ValueError(
                f"--input-columns {settings['input_columns']}: give each of {', '.join(INPUTS)} at most once"
            )
        self.fixed_length = settings["fixed_length"]
        if self.fixed_length is not None and self.fixed_length < self.labels_per_word:
            raise ValueError(f"--fixed-length {self.fixed_length} must be at least {self.labels_per_word}")
        self.source_column = next((column for column in self.input_columns if column != "char"), "form")
        wanted = dict.fromkeys([*self.input_columns, self.source_column])
        self.dictionaries = {column: self.bin.dictionary(column) for column in wanted}
        become(self._source, self.dictionaries[self.source_column])
        target = LabelDictionary()
        self.read_labels(target)
        become(self._target, target)

    def read_labels(self, target: LabelDictionary) -> None:
        """Fill the dictionary of labels and set ``label_kinds``."""
        raise NotImplementedError

    def state_dict(self) -> dict:
        return dict(self.settings)

    def load_state_dict(self, state_dict: dict) -> None:
        """Take the settings of a checkpoint (in generation); ``ValueError`` where a flag says something else."""
        for name, value in self.given.items():
            if name in state_dict and value is not None and value != state_dict[name]:
                flag, was = f"--{name.replace('_', '-')}", state_dict[name]
                trained = f"without {flag}" if was is None else f"with {flag} {was}"
                raise ValueError(f"{flag} {value}: the checkpoint was trained {trained}")
        settings = {name: state_dict.get(name, self.settings[name]) for name in self.SETTINGS}
        for name, value in settings.items():
            if self.loaded and value != self.settings[name]:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"the models of an ensemble have to agree: one was trained with {flag} {self.settings[name]}, "
                    f"another with {flag} {value}"
                )
        self.loaded = True
        if settings != self.settings:
            self.apply(settings)

    @property
    def source_dictionary(self) -> Dictionary:
        """The symbols of the first column."""
        return self._source

    @property
    def target_dictionary(self) -> Dictionary:
        """The labels."""
        return self._target

    def vectors(self, column: str):
        """Pretrained vectors of a column, ``[V, D]``, or ``None``."""
        return self.bin.vectors(column)

    def count_source_symbols(self) -> Optional[Tensor]:
        """How often each symbol of the source column occurs in training, ``[V]``; ``None`` without training data."""
        column = self.bin.column(self.source_column, "train", self._source, self.impl)
        if column is None:
            return None
        symbols = torch.cat([column[index][:-1] for index in range(len(column))]).long()
        return torch.bincount(symbols, minlength=len(self._source))

    def count_labels(self) -> Optional[Tensor]:
        """How often each label occurs in training, ``[V]``, the end once a sentence; ``None`` without training data."""
        column = self.bin.column(self.source_column, "train", self._source, self.impl)
        if column is None:
            return None
        counts = torch.tensor(self._target.count)
        counts[: self._target.nspecial] = 0
        counts[self._target.eos()] = len(column)
        return counts

    # ---- models ------------------------------------------------------------------------------------------------------

    def build_model(self, cfg, from_checkpoint=False):
        self.model = super().build_model(cfg, from_checkpoint)
        if not hasattr(self.model, "predicts_end"):
            raise ValueError(f"--task {self.cfg._name} needs one of this package's macro models, e.g. --arch brnn_lstm")
        if str(self.cfg.dbrnn_output) not in self.model.outputs:
            raise ValueError(f"--dbrnn-output {self.cfg.dbrnn_output}: only the DBRNN has that output")
        return self.model

    def build_criterion(self, cfg, from_checkpoint=False):
        """fairseq's default, ``cross_entropy``, is ``label_cross_entropy`` here: the same for models of one output, and
        the sum of all three for the DBRNN."""
        name = str(getattr(cfg, "_name", None))
        if name.startswith(("label_smoothed", "adaptive", "rntn_adaptive")):
            raise ValueError(f"--criterion {name} is not for these models, which give some labels no probability: "
                             "use label_cross_entropy")  # fmt: skip
        if name == "cross_entropy":
            cfg = OmegaConf.create({"_name": "label_cross_entropy", "sentence_avg": cfg.sentence_avg})
        self.criterion = super().build_criterion(cfg, from_checkpoint)
        return self.criterion

    def begin_epoch(self, epoch, model):
        super().begin_epoch(epoch, model)
        check_best_metric(self.cfg, self.criterion, *self.validation_metrics())

    def validation_metrics(self) -> Tuple[List[str], List[str]]:
        """What validation logs: the metrics that are better when lower, and those that are better when higher."""
        branches = [f"loss_{name}" for name in self.model.outputs if name != "combined"]
        higher = [name for name in self.MEASURES if name not in self.LOWER]
        return ["loss", "nll_loss", "ppl", *branches, *self.LOWER], higher

    def max_positions(self):
        """No limit: recurrent networks read sentences of any length."""
        return None

    # ---- reading -----------------------------------------------------------------------------------------------------

    def load_dataset(self, split, epoch=1, combine=False, task_cfg=None, **kwargs):
        """Load a split, and for ``fairseq-generate``, which gives the checkpoint's task as well, its file."""
        impl = self.impl
        columns = {
            name: self.bin.column(name, split, dictionary, impl) for name, dictionary in self.dictionaries.items()
        }
        source = columns[self.source_column]
        if source is None or any(column is None for column in columns.values()):
            raise FileNotFoundError(f"Dataset not found: {split} ({self.bin.folder})")
        if not len(source):
            raise ValueError(f"{self.bin.conllu(split)}: there is not one sentence in it")
        characters = columns.pop("char", None)
        labels = self.load_labels(split)
        if labels is None and task_cfg is None:
            raise ValueError(
                f"{self.bin.conllu(split)}: its sentences have no heads to learn from or to validate on "
                "(--disable-validation trains without)"
            )
        self.datasets[split] = self.make_dataset(
            {name: WithoutEnd(column) for name, column in columns.items()},
            None if characters is None else Words(characters, self.dictionaries["char"]),
            labels, self.load_tags(split), shuffle=split == "train",
        )  # fmt: skip
        self.check_lengths(self.datasets[split], split)
        if task_cfg is not None:
            self.totals.clear()
            path = self.cfg.conllu_output or f"{split}.predicted.conllu"
            self.check_output(path, split)
            self.output = PredictedFile(self.bin.conllu(split), path, len(source))

    def make_dataset(self, columns, characters, labels, upos, shuffle=False) -> ConlluDataset:
        return ConlluDataset(
            columns, characters, labels, upos, source=self.source_column, pad=self._target.pad(),
            end=self._target.eos(), with_end=self.model is not None and self.model.predicts_end,
            labels_per_word=self.labels_per_word, fixed_length=self.fixed_length, shuffle=shuffle,
        )  # fmt: skip

    def check_output(self, path: str, *splits: str) -> None:
        """``ValueError`` where predictions would be written over, or behind, the data."""
        if path and os.path.realpath(path) in (os.path.realpath(self.bin.conllu(split)) for split in splits):
            raise ValueError(f"--conllu-output {path} is a file of the data folder")

    def check_lengths(self, dataset: ConlluDataset, split: str) -> None:
        """Say what ``--fixed-length`` cuts off; refuse what the labels cannot express."""
        if dataset.truncated:
            logger.warning(
                f"{split}: {dataset.truncated:,} of {len(dataset):,} sentences are longer than --fixed-length "
                f"{self.fixed_length} allows and are cut off"
            )

    def load_labels(self, split: str) -> Optional[List[Labels]]:
        """The gold labels of a split, or ``None`` if it has none."""
        raise NotImplementedError

    def load_tags(self, split: str) -> Optional[List[List[str]]]:
        """Parts of speech of a split, where the labels need them."""
        return None

    def get_batch_iterator(
        self, dataset, max_tokens=None, max_sentences=None, *args, num_shards=1, shard_id=0, **kwargs
    ):
        """fairseq's iterator, no remainder dropped; in generation the output learns which sentences will come.

        Raises:
            ValueError: a sentence has more labels than *max_tokens*, or *max_sentences* is not positive.
        """
        if max_sentences is not None and max_sentences < 1:
            raise ValueError(f"--batch-size {max_sentences} must be at least 1")
        if max_tokens is not None and len(dataset):
            longest = int(dataset.words.argmax())
            if dataset.num_tokens(longest) > max_tokens:
                labels = dataset.num_tokens(longest)
                raise ValueError(f"--max-tokens {max_tokens}: sentence {longest + 1} has {labels} labels")
        kwargs["required_batch_size_multiple"] = 1  # fairseq drops a remainder that is no multiple of it
        batches = super().get_batch_iterator(
            dataset, max_tokens, max_sentences, *args, num_shards=num_shards, shard_id=shard_id, **kwargs
        )
        if self.output is not None and num_shards > 1:
            mine = batches.frozen_batches[shard_id::num_shards]
            self.output.only({int(index) for batch in mine for index in batch}, f"{shard_id + 1}-of-{num_shards}")
        return batches

    def eval_lm_dataloader(self, *args, **kwargs):
        """What ``fairseq-eval-lm`` asks for: always a ``ValueError``."""
        raise ValueError(f"fairseq-eval-lm is for language models: score --task {self.cfg._name} by fairseq-generate")

    # ---- generation --------------------------------------------------------------------------------------------------

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        """One pass for labellers, beam search for encoder-decoders."""
        for name, off in (("score_reference", False), ("constraints", None), ("match_source_len", False),
                          ("diverse_beam_groups", -1), ("no_repeat_ngram_size", 0),
                          ("print_alignment", None)):  # fmt: skip
            if getattr(args, name, off) not in (off, None, False):
                raise ValueError(f"--{name.replace('_', '-')} has no meaning for labels")
        if len({model.predicts_end for model in models}) > 1:
            raise ValueError("an ensemble is made of labellers or of encoder-decoders, not of both")
        if not models[0].predicts_end:
            for name, off in (("sampling", False), ("nbest", 1), ("temperature", 1), ("lenpen", 1), ("unkpen", 0)):
                if getattr(args, name, off) != off:
                    raise ValueError(f"--{name} needs an encoder-decoder: a labeller has one prediction and no search")
            return LabelGenerator(models, str(self.cfg.dbrnn_output))
        lengths = {"max_len_a": self.labels_per_word, "max_len_b": 0}  # fairseq: at most 200, however long the sentence
        given = vars(args) if isinstance(args, Namespace) else dict(args)
        return super().build_generator(
            models, Namespace(**{**given, **lengths}), seq_gen_cls or LabelSequenceGenerator, extra_gen_cls_kwargs,
            prefix_allowed_tokens_fn,
        )  # fmt: skip

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """fairseq's hypotheses; on the way the predictions are counted and put into the CoNLL-U file."""
        if "words" not in sample:
            sample = self.waiting.whole(sample)
        hypotheses, predictions = self.predict(generator, models, sample, prefix_tokens, constraints)
        self.totals += self.count(sample, hypotheses, predictions)
        if self.output is not None:
            for index, prediction in zip(sample["id"].tolist(), predictions):
                if self.output.put(index, prediction["columns"]):
                    logger.info(self.summary())
        elif "sentences" in sample:
            if not self.waiting.asked:
                atexit.register(lambda: logger.info(self.summary()))
            self.waiting.answer(sample, [prediction["columns"] for prediction in predictions])
            self.show(self.waiting.ready())
        return hypotheses

    def predict(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Hypotheses in fairseq's form, and for each sentence what its columns become."""
        allowed = [self.allowed_labels(sample, row) for row in range(len(sample["words"]))]
        with torch.no_grad():
            hypotheses = generator.generate(
                models, sample, prefix_tokens=prefix_tokens, constraints=constraints,
                allowed=None if self.cfg.free_decoding else [part.any_of for part in allowed],
            )  # fmt: skip
            scores = generator.log_probabilities(sample, hypotheses).float().cpu()
        predictions = []
        for row, (length, found) in enumerate(zip(sample["net_input"]["target_lengths"].tolist(), hypotheses)):
            tokens = found[0]["tokens"].cpu()[:length]
            predictions.append(self.columns_of(sample, row, tokens, scores[row, :length], allowed[row]))
        return hypotheses, predictions

    def allowed_labels(self, sample, row: int) -> Allowed:
        """The labels that may stand at each position of a sentence."""
        raise NotImplementedError

    def columns_of(self, sample, row: int, tokens: Tensor, scores: Tensor, allowed: Allowed) -> dict:
        """A prediction: ``columns`` of the CoNLL-U file, and what :meth:`count` needs."""
        raise NotImplementedError

    def summary(self) -> str:
        """The scores of all sentences predicted so far, for people."""
        raise NotImplementedError

    # ---- scores ------------------------------------------------------------------------------------------------------

    def count(self, sample, hypotheses, predictions) -> Counter:
        """Numbers to add up over sentences; ``label_accuracy`` is right / labels over the gold labels."""
        found = Counter(dict.fromkeys(self.COUNTS, 0))  # the same keys on all workers, whatever is right
        found["sentences"] = len(predictions)
        for row, gold in enumerate(sample.get("gold", ())):
            tokens = hypotheses[row][0]["tokens"].cpu()
            target = gold.targets[: int(sample["net_input"]["target_lengths"][row])]
            shared = min(len(tokens), len(target))
            right = tokens[:shared].eq(target[:shared]) & target[:shared].ne(self._target.unk())
            found.update(labels=len(target), right_labels=int(right.sum()))
        return found

    def valid_step(self, sample, model, criterion):
        if sample["target"] is None:
            raise ValueError(f"{self.output.original}: its sentences have no heads to compare with")
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if self.validation_generator is None:
            self.validation_generator = self.build_generator([self.model], Namespace(beam=1))
        hypotheses, predictions = self.predict(self.validation_generator, [self.model], sample)
        logging_output.update(self.count(sample, hypotheses, predictions))
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)
        totals: Counter = Counter()
        for log in logging_outputs:
            totals.update({name: int(value) for name, value in log.items() if name in self.COUNTS})
        for name, (right, of) in self.MEASURES.items():
            if totals[of]:
                metrics.log_scalar(name, 100 * totals[right] / totals[of], totals[of], round=2)

    #: what :meth:`count` counts, and the measures in per cent made of them
    COUNTS = ("sentences", "labels", "right_labels")
    MEASURES = {"label_accuracy": ("right_labels", "labels")}
    #: of the measures, those that are better when lower
    LOWER: Tuple[str, ...] = ()

    # ---- fairseq-interactive -----------------------------------------------------------------------------------------

    def get_interactive_tokens_and_lengths(self, lines, encode_fn):
        """The sentences these lines complete: CoNLL-U blocks, or one a line with spaces between its words."""
        sentences = self.lines.read(lines)
        return sentences, [len(sentence.words) for sentence in sentences]

    def build_dataset_for_inference(self, sentences: List[Sentence], lengths, constraints=None, **kwargs):
        """A dataset of sentences."""
        if constraints is not None:
            raise ValueError("--constraints has no meaning for labels")
        if not all(isinstance(sentence, Sentence) for sentence in sentences):
            raise ValueError("labels are for sentences with columns: use fairseq-interactive or fairseq-generate")

        def encode(sentence, column):
            dictionary = self.dictionaries[column]
            return torch.tensor([dictionary.index(symbol) for symbol in column_symbols(sentence, column)])

        columns = {c: [encode(sentence, c) for sentence in sentences] for c in self.dictionaries if c != "char"}
        characters = None
        if "char" in self.input_columns:
            symbols = self.dictionaries["char"]
            end, pad = symbols.index(WORD_END), symbols.pad()
            characters = [cut_words(encode(sentence, "char"), end, pad) for sentence in sentences]
        dataset = self.make_dataset(columns, characters, None, self.tags_of(sentences))
        self.waiting.watch(dataset, sentences)
        if sentences:
            self.check_lengths(dataset, "input")
        return dataset

    def tags_of(self, sentences: List[Sentence]) -> Optional[List[List[str]]]:
        """Parts of speech of sentences, where the labels need them."""
        return None

    def show(self, text: str) -> None:
        if self.cfg.conllu_output:
            check_not_read(self.cfg.conllu_output)
            with open(self.cfg.conllu_output, "a", encoding="utf-8", newline="") as file:
                file.write(text)
        else:
            print(text, end="")


def plain(value):
    """An enumeration's member as the string it stands for; anything else as it is."""
    return str(value) if isinstance(value, Enum) else value
