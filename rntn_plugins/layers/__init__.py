"""Layers built from any cell: a cell over time, stacks of them."""
