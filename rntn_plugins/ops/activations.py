"""Nonlinearities in place, and their derivatives from their values."""

from __future__ import annotations

from torch import Tensor, relu_, sigmoid_, tanh_

ACTIVATE = {"tanh": tanh_, "sigmoid": sigmoid_, "relu": relu_}


def slope(activation: str, value: Tensor) -> Tensor:
    """f'(a) from f(a)."""
    if activation == "tanh":
        return 1 - value * value
    if activation == "sigmoid":
        return value - value * value
    return (value > 0).to(value.dtype)
