"""Token streams, and the fairseq datasets made from them."""
