"""fairseq models built from the cells."""
