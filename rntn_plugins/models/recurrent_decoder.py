"""From symbols to the scores of the next symbol: embedding, recurrent layers, soft-max."""

import hashlib
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from rntn_plugins.cells.base import Inputs, Rows, carry_tensors, fill_, map_carry, on_gpu
from rntn_plugins.layers.dropout import Dropout
from rntn_plugins.layers.recurrent import RecurrentStack
from rntn_plugins.models.adaptive_softmax import MaskedAdaptiveSoftmax, check_factor
from rntn_plugins.ops.linear_cross_entropy import linear_cross_entropy
from rntn_plugins.symbols import is_filler

#: share of distinct symbols of a batch up to which it is worthwhile to know them
MOST_DISTINCT = 0.75
#: of a vocabulary up to this size, what cells compute of an input may be computed of all symbols
FEW_SYMBOLS = 256
#: what a subclass overrides to score symbols in a way of its own
OUTPUT_METHODS = ("forward", "output_layer", "get_normalized_probs")


class RecurrentDecoder(FairseqIncrementalDecoder):
    """Embedding, recurrent layers, soft-max.

    Args:
        cfg: a ``RecurrentLMConfig``.
        dictionary: the symbols.
        stack: the recurrent layers.
    """

    def __init__(self, cfg, dictionary, stack: RecurrentStack) -> None:
        super().__init__(dictionary)
        size, vocabulary = stack.hidden_size, len(dictionary)

        def dropout(place: Optional[float]) -> Dropout:
            return Dropout(cfg.dropout if place is None else place, self)

        self.embed_tokens = nn.Embedding(vocabulary, cfg.embed_dim, dictionary.pad())
        self.dropout_embedding = dropout(cfg.dropout_embedding)
        self.stack = stack
        self.dropout_output = dropout(cfg.dropout_output)
        never = torch.tensor([is_filler(dictionary, i) for i in range(vocabulary)])
        self.output_projection = None
        if cfg.adaptive_softmax_cutoff:
            cutoff = parse_cutoff(cfg.adaptive_softmax_cutoff, vocabulary)
            check_factor(cfg.adaptive_softmax_factor, len(cutoff), size)
            self.adaptive_softmax = MaskedAdaptiveSoftmax(
                vocabulary, size, cutoff, never, cfg.adaptive_softmax_dropout, factor=cfg.adaptive_softmax_factor
            )
        else:
            self.output_projection = nn.Linear(size, vocabulary)
            if cfg.share_decoder_input_output_embed:
                self.output_projection.weight = self.embed_tokens.weight
            mask = torch.zeros(vocabulary).masked_fill(never, float("-inf"))
            self.register_buffer("never_predicted", mask, persistent=False)
        # "version" in the name keeps averages of weights (EMA) away from it
        self.register_buffer("dictionary_version", torch.tensor(fingerprint(dictionary)))
        self.initialise(str(cfg.init), cfg.init_scale)

    def initialise(self, scheme: str, scale: float) -> None:
        for layer in self.stack.layers:
            layer.cell.initialise(scheme, scale)
        if scheme == "orthogonal":  # of a tall matrix it would make rows near zero, which learn very slowly at first
            scheme, scale = "uniform", 0.1
        fill_(self.embed_tokens.weight, scheme, scale)
        if self.output_projection is not None:
            if self.output_projection.weight is not self.embed_tokens.weight:
                fill_(self.output_projection.weight, scheme, scale)
            nn.init.zeros_(self.output_projection.bias)
        with torch.no_grad():
            self.embed_tokens.weight[self.embed_tokens.padding_idx] = 0

    def predict_unigrams(self, counts: Tensor) -> None:
        """Start the soft-max's bias at log((n + 1) / (N + V)) of a symbol seen n times in N.

        With weights near zero the model then starts at the text's unigram distribution (of the symbols that it may
        predict). Learning that first can cost a recurrent network saturated units.

        Args:
            counts: how often each symbol occurs, ``[V]``.
        """
        with torch.no_grad():
            smoothed = counts.double() + 1
            self.output_projection.bias.copy_((smoothed / smoothed.sum()).log())

    def forward(
        self, prev_output_tokens, encoder_out=None, incremental_state=None, src_lengths=None, stream=None, targets=None
    ):
        """
        Args:
            prev_output_tokens: symbols ``[B, T]``, padded on the right.
            incremental_state: given in generation: only the last symbol is read, the state comes from here.
            src_lengths: valid symbols of each row ``[B]``; counted if left out.
            stream: where the state is kept from block to block: ``stream.get(self)`` is where this one starts (a list
                of tensors, or ``None`` for zeros), ``stream.put(self, ...)`` receives the state after it.
            targets: the symbols to predict ``[B, T]``, ``<pad>`` where there are none. With them the loss comes back
                in place of the logits, which are never all in memory (see :attr:`takes_targets`).
        Returns:
            logits ``[B, T, V]`` (features ``[B, T, H]`` for the adaptive soft-max), or given targets the sum of their
            -log p, and a dict with the ``carry``.
        """
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, src_lengths=src_lengths, stream=stream
        )
        return (self.output_layer(x) if targets is None else self.summed_loss(x, targets)), extra

    def extract_features(
        self, prev_output_tokens, encoder_out=None, incremental_state=None, src_lengths=None, stream=None
    ):
        """As :meth:`forward`, without the output layer: ``[B, T, H]``."""
        stored: Optional[List[Tensor]] = None
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, "carry")
            stored = None if saved is None else [saved[str(i)] for i in range(len(saved))]
            # the first call reads the whole prefix, later ones only the symbol chosen last
            tokens = prev_output_tokens if stored is None else prev_output_tokens[:, -1:]
            lengths = None
        else:
            tokens = prev_output_tokens
            lengths = tokens.ne(self.dictionary.pad()).sum(1) if src_lengths is None else src_lengths
            stored = stream.get(self) if stream is not None else None

        tokens = tokens.t()  # time-major from here: [T, B]
        carry = None if stored is None else self.restore_carry(stored, tokens.size(1))
        x, carry = self.stack(self.embed(tokens), tokens, lengths, carry)
        x = self.dropout_output(x)

        if incremental_state is not None:
            saved = {str(i): tensor for i, tensor in enumerate(carry_tensors(carry))}
            self.set_incremental_state(incremental_state, "carry", saved)
        elif stream is not None:
            stream.put(self, [tensor.detach() for tensor in carry_tensors(carry)])
        return x.transpose(0, 1), {"attn": None, "carry": carry}  # fairseq looks for "attn"

    def embed(self, tokens: Tensor) -> Inputs:
        """The inputs of the recurrent layers from symbols ``[T, B]``: ``[T, B, E]``, or each distinct one once, where
        that saves work.

        Of a small vocabulary it is all symbols in evaluation, for tensor products, and the same ones next time. On a
        GPU, which would have to wait until the host knows how many there are, it is these or none, in training too.
        Not with dropout, which makes two embeddings of the same symbol differ; nor on other accelerators.
        """
        dropout = self.dropout_embedding
        if dropout.p and (self.training or dropout.retained):
            return dropout(self.embed_tokens(tokens))
        plain = type(self.embed_tokens) is nn.Embedding and not self.embed_tokens._forward_hooks
        few = plain and self.embed_tokens.num_embeddings <= FEW_SYMBOLS and self.stack.layers[0].cell.keeps_fixed_inputs
        if on_gpu(tokens) and few and len(tokens) > 1:
            everything = torch.arange(self.embed_tokens.num_embeddings, device=tokens.device)
            return Rows(self.embed_tokens(everything), tokens)
        if on_gpu(tokens) or tokens.device.type != "cpu":
            return self.embed_tokens(tokens)
        if few and not torch.is_grad_enabled():
            return Rows(self.embed_tokens.weight, tokens, fixed=True)
        symbols, index = tokens.unique(return_inverse=True)
        if len(symbols) > MOST_DISTINCT * tokens.numel():
            return self.embed_tokens(tokens)
        return Rows(self.embed_tokens(symbols), index)

    def restore_carry(self, stored: List[Tensor], batch_size: int):
        """The carry from its flat list of tensors; ``ValueError`` where the number of rows differs."""
        template = self.stack.initial_carry(batch_size)
        expected = carry_tensors(template)
        if [tensor.shape for tensor in stored] != [tensor.shape for tensor in expected]:
            raise ValueError(
                f"the stored state has {stored[0].size(0)} rows, this batch {batch_size}: resume with the --batch-size "
                "of the checkpoint, or --reset-dataloader to start the epoch anew"
            )
        tensors = iter([tensor.to(like.device) for tensor, like in zip(stored, expected)])
        return map_carry(lambda _: next(tensors), template)

    def output_layer(self, features: Tensor, **kwargs) -> Tensor:
        """Logits ``[..., V]``, -inf for symbols that never occur; the features for the adaptive soft-max."""
        if self.adaptive_softmax is not None:
            return features
        return F.linear(features, self.output_projection.weight, self.output_bias())

    def output_bias(self) -> Tensor:
        """``[V]``, -inf for symbols that never occur."""
        return self.output_projection.bias + self.never_predicted

    @property
    def takes_targets(self) -> bool:
        """Whether :meth:`forward` computes the loss of targets: with the full soft-max, unless a subclass has its own
        scores or probabilities."""
        own = (getattr(type(self), name) is not getattr(RecurrentDecoder, name) for name in OUTPUT_METHODS)
        return self.output_projection is not None and not any(own)

    def summed_loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """The sum of -log p of all targets ``[B, T]`` but ``<pad>``, from features ``[B, T, H]``: a scalar."""
        rows, symbols = features.transpose(0, 1).flatten(0, 1), targets.t().flatten()  # features are time-major inside
        weight, bias = self.output_projection.weight, self.output_bias()
        return linear_cross_entropy(rows, weight, bias, symbols, self.dictionary.pad())

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Beam search: row i goes on from what was row ``new_order[i]``."""
        saved = self.get_incremental_state(incremental_state, "carry")
        if saved is not None:
            moved: Dict[str, Tensor] = {key: tensor.index_select(0, new_order) for key, tensor in saved.items()}
            self.set_incremental_state(incremental_state, "carry", moved)

    def max_positions(self) -> int:
        """No limit but memory."""
        return int(1e6)

    def upgrade_state_dict_named(self, state_dict, name):
        """Refuse a checkpoint of another dictionary before torch lists every mismatched shape."""
        prefix = f"{name}." if name else ""
        weight = state_dict.get(f"{prefix}embed_tokens.weight")
        stored = state_dict.get(f"{prefix}dictionary_version")
        here = len(self.dictionary)
        if weight is not None and weight.size(0) != here:
            raise ValueError(f"the checkpoint has {weight.size(0)} symbols, the dictionary of the data folder {here}")
        if stored is not None and int(stored) != int(self.dictionary_version):
            raise ValueError(
                f"the checkpoint was trained with another dictionary of {here} symbols than the data folder's"
            )
        return state_dict


def fingerprint(dictionary) -> int:
    """A number that two different dictionaries hardly share (31 bits of SHA-256 of the symbols in order).

    Small enough for the sum of many to fit into 64 bits, as fairseq's checkpoint averaging adds them up.
    """
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def parse_cutoff(text: str, vocabulary: int) -> List[int]:
    """``--adaptive-softmax-cutoff`` as increasing numbers below V."""
    try:
        cutoff = [int(part) for part in str(text).split(",")]
    except ValueError:
        cutoff = []
    if not cutoff or any(a >= b for a, b in zip([0, *cutoff], [*cutoff, vocabulary])):
        raise ValueError(
            f"--adaptive-softmax-cutoff {text} must be increasing numbers below the vocabulary size {vocabulary}"
        )
    return cutoff
