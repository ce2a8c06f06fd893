"""Language modelling over sentences, or contiguous streams whose recurrent state is carried from block to block."""

import logging
import os
from dataclasses import dataclass, field
from typing import Iterator, List, Optional, Tuple

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import II, MISSING, OmegaConf

from rntn_plugins.data.binarised import load_binarised, load_dictionary
from rntn_plugins.data.lm_dataset import BlockDataset, BlockIterator, CarrySlot, Corpus, check_symbols, make_plan
from rntn_plugins.metrics import bits_per_character
from rntn_plugins.symbols import is_filler
from rntn_plugins.tasks.arithmetic import ArithmeticConfig, set_arithmetic
from rntn_plugins.tasks.best_metric import BestMetricConfig, check_best_metric

NO_LIMIT = 36000  # tokens, what fairseq-eval-lm asks for where --max-tokens is not given

logger = logging.getLogger(__name__)


@dataclass
class RNTNLanguageModelingConfig(ArithmeticConfig, BestMetricConfig):
    data: str = field(default=MISSING, metadata={"help": "folder that fairseq-preprocess --only-source wrote"})
    tokens_per_sample: int = field(
        default=35, metadata={"help": "T: block length of truncated back-propagation through time"}
    )
    sample_break_mode: ChoiceEnum(["none", "eos"]) = field(
        default="none",
        metadata={
            "help": "'none': --batch-size contiguous streams, state carried over blocks; "
            "'eos': --batch-size sentences side by side, state reset at every sentence"
        },
    )
    shuffle_blocks: bool = field(
        default=False,
        metadata={
            "help": "with --sample-break-mode none: train on blocks from anywhere in the text, in another order every "
            "epoch, each from a zero state; validation and evaluation read streams all the same"
        },
    )
    unit: ChoiceEnum(["auto", "word", "char"]) = field(
        default="auto",
        metadata={
            "help": "'char' logs bits per character (bpc) as well; 'auto': char if all symbols are one character"
        },
    )
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")


@register_task("rntn_language_modeling", dataclass=RNTNLanguageModelingConfig)
class RNTNLanguageModelingTask(LanguageModelingTask):
    """Train and evaluate language models on streams, or on sentences; train on blocks from anywhere as well.

    Every token is predicted exactly once: for any ``--batch-size``, ``--tokens-per-sample`` and number of workers no
    remainder is dropped (but for ``--skip-remainder-batch``, which asks for that). ``--batch-size B`` is the number of
    streams (or sentences) of one worker; W workers read W·B disjoint ones. ``--max-tokens N`` allows
    N // tokens-per-sample streams at most.

    The log has ``loss`` in bits per token, ``ppl``, and ``bpc`` for characters.
    """

    def __init__(self, cfg, dictionary: Dictionary) -> None:
        set_arithmetic(cfg)
        super().__init__(cfg, dictionary)
        if cfg.tokens_per_sample < 1:
            raise ValueError(f"--tokens-per-sample {cfg.tokens_per_sample} must be at least 1")
        self.by_character = uses_characters(dictionary) if cfg.unit == "auto" else cfg.unit == "char"
        self.training_slot, self.evaluation_slot = CarrySlot(), CarrySlot()
        self.training_rows: Optional[int] = None  # of a worker's batch, once one was read
        self.iterator: Optional[BlockIterator] = None  # the one made last
        self.criterion = None
        self.drawn_with: Optional[int] = None  # the seed that training's sentences or blocks are shuffled with
        self.carries_of_workers: Optional[List[list]] = None  # in a distributed run, all workers' training states

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        dictionary = load_dictionary(utils.split_paths(cfg.data)[0], "fairseq-preprocess --only-source")
        logger.info(f"dictionary: {len(dictionary)} types")
        return cls(cfg, dictionary)

    # ---- checkpoints, criterion --------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        return {**super().state_dict(), "sample_break_mode": str(self.args.sample_break_mode)}

    def load_state_dict(self, state_dict: dict) -> None:
        """Called for evaluation: say so where the text is read otherwise than in training."""
        trained, here = state_dict.get("sample_break_mode"), str(self.args.sample_break_mode)
        if trained not in (None, here):
            logger.warning(
                f"the model was trained with --sample-break-mode {trained}, this is --sample-break-mode {here}: "
                "its state starts from zero at other places"
            )
        super().load_state_dict(state_dict)

    def build_criterion(self, args):
        """fairseq's default, ``cross_entropy``, is ``rntn_cross_entropy`` here: the same loss with less memory."""
        name = str(getattr(args, "_name", ""))
        if name.startswith("label_smoothed"):
            raise ValueError(
                f"--criterion {name} gives probability to all symbols, these models give none to <s>, <pad> and "
                "fillers; use cross_entropy"
            )
        if name == "cross_entropy":
            args = OmegaConf.create({"_name": "rntn_cross_entropy", "sentence_avg": args.sentence_avg})
        self.criterion = super().build_criterion(args)
        return self.criterion

    def begin_epoch(self, epoch, model):
        super().begin_epoch(epoch, model)
        check_best_metric(self.args, self.criterion, *self.validation_metrics())

    def validation_metrics(self) -> Tuple[List[str], List[str]]:
        """What validation logs: the metrics that are better when lower, and those that are better when higher."""
        return ["loss", "ppl"] + (["bpc"] if self.by_character else []), []

    # ---- reading -----------------------------------------------------------------------------------------------------

    def load_dataset(self, split, epoch=None, combine=False, task_cfg=None, **kwargs):
        """Load a split as one :class:`Corpus`, or for ``fairseq-generate`` as prompts.

        ``fairseq-generate`` is the only caller that gives the checkpoint's task but no epoch; it gets one prompt a
        sentence (``--prefix-size n``: the first n words of each), whatever the break mode.
        """
        paths = utils.split_paths(self.args.data)
        path = os.path.join(paths[((epoch or 1) - 1) % len(paths)], split)
        if os.path.exists(f"{path}.bin") and os.path.getsize(f"{path}.bin") == 0:  # fairseq cannot even open it
            raise ValueError(f"{path}: the corpus is empty, there is not one token to read")
        sentences = load_binarised(path, self.dictionary, self.args.dataset_impl, combine)
        if sentences is None:
            raise FileNotFoundError(f"Dataset not found: {split} ({path})")
        if task_cfg is not None and epoch is None:
            self.datasets[split] = self.build_dataset_for_inference(sentences, sentences.sizes)
        else:
            self.datasets[split] = Corpus(sentences, path, self.dictionary)

    def get_batch_iterator(
        self, dataset, max_tokens=None, max_sentences=None, seed=1, num_shards=1, shard_id=0, num_workers=0, epoch=1,
        data_buffer_size=0, skip_remainder_batch=False, **kwargs,
    ):  # fmt: skip
        """An epoch iterator over blocks of a :class:`Corpus`; other datasets (prompts) batch as fairseq does."""
        if not 0 <= shard_id < num_shards:
            raise ValueError(f"--shard-id {shard_id} must be from 0 to {num_shards - 1} (--num-shards {num_shards})")
        if not isinstance(dataset, Corpus):
            if max_tokens is not None:
                longest = max(map(dataset.num_tokens, range(len(dataset))), default=0)
                if longest > max_tokens:
                    raise ValueError(f"--max-tokens {max_tokens}: a sentence has {longest} symbols")
            kwargs["required_batch_size_multiple"] = 1  # fairseq drops a remainder that is no multiple of it
            return super().get_batch_iterator(
                dataset, max_tokens, max_sentences, seed=seed, num_shards=num_shards, shard_id=shard_id,
                num_workers=num_workers, epoch=epoch, data_buffer_size=data_buffer_size,
                skip_remainder_batch=skip_remainder_batch, **kwargs,
            )  # fmt: skip
        limits = [max_sentences, max_tokens // self.args.tokens_per_sample if max_tokens is not None else None]
        rows = min((limit for limit in limits if limit is not None), default=0)
        if rows < 1:
            flags = {"--batch-size": max_sentences, "--max-tokens": max_tokens}
            said = ", ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
            raise ValueError(f"{said or 'no --batch-size'}: not one block of text fits")
        trains = "grouped_shuffling" in kwargs  # of all that ask, fairseq's trainer alone gives it, to train
        if trains:
            self.drawn_with = seed
        if trains and self.args.shuffle_blocks:
            if self.args.sample_break_mode != "none":
                raise ValueError(
                    "--shuffle-blocks is of --sample-break-mode none; with eos sentences are shuffled without it"
                )
        plan = make_plan(
            dataset, self.args.sample_break_mode, rows, self.args.tokens_per_sample, num_shards, shard_id,
            shuffled=seed if trains and self.args.shuffle_blocks else None,
        )  # fmt: skip
        blocks = BlockDataset(dataset, plan, self.dictionary.eos(), self.dictionary.pad())
        self.iterator = BlockIterator(
            blocks, seed, num_workers=num_workers, epoch=epoch, buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
        )  # fmt: skip
        return self.iterator

    def eval_lm_dataloader(
        self, dataset, max_tokens=None, batch_size=None, num_shards=1, shard_id=0, num_workers=1, data_buffer_size=10,
        context_window=0, **kwargs,
    ):  # fmt: skip
        """Batches for ``fairseq-eval-lm``: by default one stream, so that every token sees all the text before it, or
        64 sentences."""
        if context_window:
            raise ValueError("--context-window has no meaning here: the state carries all the text before a block")
        rows = batch_size if batch_size is not None else 1 if self.args.sample_break_mode == "none" else 64
        batches = self.get_batch_iterator(
            dataset, max_tokens=None if max_tokens == NO_LIMIT else max_tokens, max_sentences=rows,
            num_shards=num_shards, shard_id=shard_id, num_workers=num_workers, data_buffer_size=data_buffer_size,
        )  # fmt: skip
        return WithState(batches.next_epoch_itr(shuffle=False), CarrySlot())

    def build_dataset_for_inference(self, src_tokens, src_lengths, **kwargs):
        """fairseq's, of prompts; ``ValueError`` for one with a symbol that no text can hold."""
        for tokens in src_tokens:
            check_symbols(tokens.numpy(), f"prompt {self.dictionary.string(tokens)!r}", self.dictionary)
        return super().build_dataset_for_inference(src_tokens, src_lengths, **kwargs)

    def build_generator(self, models, args, *more, **settings):
        """fairseq's; ``ValueError`` for what needs a source sentence, or changes what a prompt's own words get."""
        for name in ("constraints", "print_alignment", "match_source_len"):
            if getattr(args, name, None):
                raise ValueError(f"--{name.replace('_', '-')} needs a source sentence: a language model has none")
        for name in ("diverse_beam_groups", "diversity_rate"):
            if getattr(args, name, -1) > 0:
                raise ValueError(f"--{name.replace('_', '-')} would also change the scores of the prompt's own words")
        return super().build_generator(models, args, *more, **settings)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """fairseq's; ``ValueError`` for a prompt with an end within it, where generation ends (scoring does not)."""
        if not isinstance(generator, SequenceScorer):
            given = sample["net_input"]["src_tokens"] if prefix_tokens is None else prefix_tokens
            for tokens in given:
                words = tokens[tokens.ne(self.dictionary.pad())]
                if words[1:-1].eq(self.dictionary.eos()).any():  # before them it is what every text starts from
                    name = f"prompt {self.dictionary.string(words)!r}"
                    raise ValueError(f"{name}: {self.dictionary.eos_word!r} within it ends every hypothesis")
        return super().inference_step(generator, models, sample, prefix_tokens, constraints)

    # ---- the state ---------------------------------------------------------------------------------------------------

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False, **kwargs):
        sample = with_state(sample, self.training_slot)
        self.training_rows = len(sample["target"])
        result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # Only the first worker writes checkpoints, and fairseq tells the others nothing of it; a state is
            # thousands of times smaller than the gradients that are exchanged anyway.
            self.carries_of_workers = gather(self.training_slot.carry)
        return result

    def valid_step(self, sample, model, criterion, **kwargs):
        return super().valid_step(with_state(sample, self.evaluation_slot), model, criterion, **kwargs)

    def get_checkpoint_dict(self) -> dict:
        """The training state, so that resuming in the middle of an epoch goes on exactly."""
        carries = self.carries_of_workers or [self.training_slot.carry]
        return {type(self).__name__: {"carries": carries, "layout": self.layout(self.training_rows)}}

    def layout(self, rows: Optional[int]) -> dict:
        """What decides which text a block holds, by flag; *rows* of a worker's batch, ``None`` if not known."""
        flags = {n: str(getattr(self.args, n)) for n in ("tokens_per_sample", "sample_break_mode", "shuffle_blocks")}
        if self.args.shuffle_blocks or self.args.sample_break_mode == "eos":
            flags["seed"] = str(self.drawn_with)
        return flags if rows is None else {**flags, "batch_size": str(rows)}

    def set_checkpoint_dict(self, state: dict) -> None:
        """Go on from a checkpoint; ``ValueError`` where it stands in mid-epoch and its blocks are not this run's.

        fairseq calls it right after it has put the training iterator where the checkpoint says.
        """
        if self.iterator.iterations_in_epoch == 0:
            return  # between two epochs there is nothing to go on from
        advice = "resume as it was trained, or --reset-dataloader to start the epoch anew"
        layout = self.layout(len(self.iterator.dataset.plan[0].starts))
        for name, was in {"shuffle_blocks": "False", **state["layout"]}.items():  # not in older checkpoints
            if was != layout[name]:
                flag = f"--{name.replace('_', '-')}"
                how = {"True": f"with {flag}", "False": f"without {flag}"}.get(
                    was, f"with {flag} {was}, not {layout[name]}"
                )
                raise ValueError(f"the checkpoint was saved in mid-epoch {how}: {advice}")
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
        workers = len(state["carries"])
        if workers != world:
            raise ValueError(f"the checkpoint was saved in mid-epoch by {workers} workers, not {world}: {advice}")
        self.training_slot.reset(state["carries"][rank])
        self.training_rows = state["layout"].get("batch_size")

    # ---- the log -----------------------------------------------------------------------------------------------------

    def reduce_metrics(self, logging_outputs, criterion):
        """Log ``loss`` in bits per token whatever the criterion divided its gradient by (``--sentence-avg``).

        With five digits, not fairseq's three: what is logged is what ``--lr-scheduler validation_ratio`` and the choice
        of the best checkpoint compare, and 0.001 bits are 0.07 % of a perplexity.
        """
        if sum(log.get("ntokens", 0) for log in logging_outputs) == 0:
            raise ValueError("no token was evaluated")
        super().reduce_metrics([{**log, "sample_size": log["ntokens"]} for log in logging_outputs], criterion)
        for aggregator in metrics.get_active_aggregators():
            if "loss" in aggregator:
                aggregator["loss"].round = 5
        if self.by_character:
            metrics.log_derived("bpc", lambda meters: bits_per_character(float(meters["loss"].avg)))


def uses_characters(dictionary: Dictionary) -> bool:
    """Whether every symbol that text can hold is one character long."""
    symbols = [
        symbol
        for i, symbol in enumerate(dictionary.symbols)
        if i >= dictionary.nspecial and not is_filler(dictionary, i)
    ]
    return bool(symbols) and all(len(symbol) == 1 for symbol in symbols)


def with_state(sample: dict, slot: CarrySlot) -> dict:
    """The sample with a place for the state, emptied where the streams start."""
    if "first" not in sample:
        return sample
    if sample["first"]:
        slot.reset()
    return {**sample, "net_input": {**sample["net_input"], "stream": slot}}


def gather(carry: List[torch.Tensor]) -> List[list]:
    """Every worker's state, in the order of their ranks, on the CPU."""
    gathered = [[] for _ in range(torch.distributed.get_world_size())]
    for tensor in carry:
        parts = [torch.empty_like(tensor) for _ in gathered]
        torch.distributed.all_gather(parts, tensor.contiguous())
        for found, part in zip(gathered, parts):
            found.append(part.cpu())
    return gathered


class WithState:
    """An iterator of batches that gives each its state (for loops of fairseq that know nothing of it)."""

    def __init__(self, batches, slot: CarrySlot) -> None:
        self.batches, self.slot, self.n = batches, slot, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict]:
        for sample in self.batches:
            self.n += 1
            yield with_state(sample, self.slot)
