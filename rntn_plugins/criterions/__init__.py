"""fairseq criterions of this package."""
