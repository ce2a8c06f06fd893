"""Recurrences over all time steps at once, with backward passes of their own."""
