"""fairseq tasks of this package."""
