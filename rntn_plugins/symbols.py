"""Which symbols of a fairseq dictionary no text holds."""


def is_filler(dictionary, index: int) -> bool:
    """``<s>``, ``<pad>``, and fairseq's ``madeupword…`` that fill a dictionary up to a multiple of 8.

    Models give them no probability, and a text that holds one is refused.
    """
    return index in (dictionary.bos(), dictionary.pad()) or dictionary[index].startswith("madeupword")
