"""A word's vector from its characters. Every distinct word of a batch is computed once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LONG = 32  # characters


class CharacterEncoder(nn.Module):
    """The frame of both encoders.

    Args:
        symbols: size of the character vocabulary.
        pad: index of the padding.
        embed_dim: size of a character's embedding.
        size: of a word's vector.
    """

    def __init__(self, symbols: int, pad: int, embed_dim: int, size: int) -> None:
        super().__init__()
        self.pad, self.size = pad, size
        self.embed = nn.Embedding(symbols, embed_dim, pad)

    def forward(self, characters: Tensor) -> Tensor:
        """``[..., C]`` characters, padded on the right, to ``[..., size]``. A word of nothing but padding is 0."""
        shape = characters.shape[:-1]
        words, places = torch.unique(characters.reshape(-1, characters.size(-1)), dim=0, return_inverse=True)
        lengths = words.ne(self.pad).sum(1)
        found = self.embed.weight.new_zeros(len(words), self.size)
        for group in ((lengths > 0) & (lengths <= LONG), lengths > LONG):
            if group.any():  # apart, so that one endless word does not widen all the others
                found[group] = self.encode(words[group, : int(lengths[group].max())], lengths[group])
        return found[places].view(*shape, -1)

    def encode(self, words: Tensor, lengths: Tensor) -> Tensor:
        """``[U, C]`` characters, ``[U]`` of them in each word, at least 1, to ``[U, size]``."""
        raise NotImplementedError


class CharacterConvolution(CharacterEncoder):
    """Embedding, convolution over the characters, maximum over the positions (as in Santos and
    Zadrozny 2014, Kim et al. 2016).

    Args:
        symbols, pad, embed_dim: as for :class:`CharacterEncoder`.
        size: how many filters.
        width: characters a filter sees.
    """

    def __init__(self, symbols: int, pad: int, embed_dim: int, size: int, width: int) -> None:
        super().__init__(symbols, pad, embed_dim, size)
        self.width = width
        self.convolution = nn.Conv1d(embed_dim, size, width)

    def encode(self, words, lengths):
        side = self.width // 2
        padded = nn.functional.pad(words, (side, self.width - 1 - side), value=self.pad)
        found = self.convolution(self.embed(padded).transpose(1, 2))  # [U, size, C]
        # positions beyond a word's end must not decide, or its vector would depend on the longest word beside it
        return found.masked_fill(words.eq(self.pad).unsqueeze(1), float("-inf")).amax(dim=2)


class CharacterLSTM(CharacterEncoder):
    """The last states of an LSTM (torch's) that reads the word forwards and of one that reads it backwards (Ling et al.
    2015; Plank, Søgaard, Goldberg 2016)."""

    def __init__(self, symbols: int, pad: int, embed_dim: int, size: int) -> None:
        super().__init__(symbols, pad, embed_dim, size)
        if size % 2:
            raise ValueError(f"--char-filters {size} must be even: half of it is for each direction of the LSTM")
        self.lstm = nn.LSTM(embed_dim, size // 2, batch_first=True, bidirectional=True)

    def encode(self, words, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(words), lengths.cpu(), True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)  # [2, U, size / 2]
        return last.transpose(0, 1).flatten(1)
