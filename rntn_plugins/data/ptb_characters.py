"""Text as characters in the convention of the PTB character corpus: ``the cat`` is ``t h e _ c a t``."""

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

SPACE = "_"


def to_characters(line: str) -> str:
    """Words to space-separated characters; spaces become ``_``, ``<unk>`` is spelled out (``< u n k >``)."""
    return " ".join(SPACE.join(line.split()))


def to_words(line: str) -> str:
    """The inverse of :func:`to_characters`."""
    return "".join(line.split()).replace(SPACE, " ")


@register_bpe("ptb_characters", dataclass=FairseqDataclass)
class PTBCharacters:
    """``--bpe ptb_characters``: type words, read words, with a character model in between."""

    def __init__(self, *unused) -> None:
        pass

    def encode(self, line: str) -> str:
        return to_characters(line)

    def decode(self, line: str) -> str:
        return to_words(line)
