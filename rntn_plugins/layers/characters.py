"""A word's vector from its characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LONG = 32  # characters


class CharacterConvolution(nn.Module):
    """Embedding, convolution over the characters, maximum over the positions (as in Santos and
    Zadrozny 2014, Kim et al. 2016).

    Args:
        symbols: size of the character vocabulary.
        pad: index of the padding.
        embed_dim: size of a character's embedding.
        filters: size of a word's vector.
        width: characters a filter sees.
    """

    def __init__(self, symbols: int, pad: int, embed_dim: int, filters: int, width: int) -> None:
        super().__init__()
        self.pad, self.width = pad, width
        self.embed = nn.Embedding(symbols, embed_dim, pad)
        self.convolution = nn.Conv1d(embed_dim, filters, width)

    def forward(self, characters: Tensor) -> Tensor:
        """``[..., C]`` characters, padded on the right, to ``[..., filters]``. A word of nothing but padding is 0.

        Every word is computed once, however often it occurs.
        """
        shape = characters.shape[:-1]
        words, places = torch.unique(characters.reshape(-1, characters.size(-1)), dim=0, return_inverse=True)
        lengths = words.ne(self.pad).sum(1)
        found = self.embed.weight.new_zeros(len(words), self.convolution.out_channels)
        for group in (lengths <= LONG, lengths > LONG):  # so that one endless word does not widen all the others
            if group.any():
                found[group] = self.encode(words[group, : max(1, int(lengths[group].max()))])
        return found[places].view(*shape, -1)

    def encode(self, words: Tensor) -> Tensor:
        """``[U, C]`` characters to ``[U, filters]``."""
        side = self.width // 2
        padded = nn.functional.pad(words, (side, self.width - 1 - side), value=self.pad)
        found = self.convolution(self.embed(padded).transpose(1, 2))  # [U, filters, C]
        # positions beyond a word's end must not decide, or its vector would depend on the longest word beside it
        found = found.masked_fill(words.eq(self.pad).unsqueeze(1), float("-inf")).amax(dim=2)
        return torch.where(words.ne(self.pad).any(1, keepdim=True), found, found.new_zeros(()))
