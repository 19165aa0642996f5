"""Positions of tokens: attention is blind to them, so a vector for each is added to the tokens."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from ..errors import describe
from ..tensor import Tensor
from . import init
from .layers import Dropout, floating
from .module import Module
from .parameter import Buffer, Parameter


def _add_positions(x: Any, table: Any, offset: Any, batch_first: bool) -> Any:
    """x + table[offset : offset + T], the same for each sequence of a batch."""
    x = floating(x, table)
    if x.ndim not in (2, 3) or x.shape[-1] != table.shape[1]:
        raise ValueError(
            f"positions are added to (T, E), or to {'(B, T, E)' if batch_first else '(T, B, E)'}, "
            f"with E = {table.shape[1]}; got {describe(x)}."
        )
    time_second = x.ndim == 3 and batch_first
    length = x.shape[1 if time_second else 0]
    if offset < 0 or offset + length > len(table):
        raise ValueError(
            f"there are max_len={len(table)} positions, but this input of length {length} needs "
            f"those from {offset} to {offset + length - 1}; make the layer with a larger max_len."
        )
    rows = table[offset : offset + length]
    return x + (rows if x.ndim == 2 or time_second else rows[:, None])


class SinusoidalPositionalEncoding(Module):
    """y_t = x_t + p_t, then dropout; p[t, 2i] = sin(t / 10000^(2i/E)), p[t, 2i+1] the cosine.

    Not trained and not saved. Vaswani et al., 2017. (B, T, E) -> (B, T, E), with batch_first=False
    (T, B, E); or (T, E).
    """

    def __init__(
        self,
        d_model: int,
        max_len: int = 5000,
        dropout: float = 0.0,
        *,
        batch_first: bool = True,
        dtype: Any = None,
    ) -> None:
        self.pe = Buffer(F.sinusoidal_positions(max_len, d_model, dtype), persistent=False)
        self.dropout, self.batch_first = Dropout(dropout), batch_first

    def forward(self, x: Any, offset: int = 0) -> Tensor:
        """x (B, T, E) -> the same shape; `offset` is the first token's position, as `cache.length`.

        Integer input is promoted. Raises ValueError for another width or beyond max_len positions.
        """
        return self.dropout(_add_positions(x, self.pe, offset, self.batch_first))

    def extra_repr(self) -> str:
        return f"d_model={self.pe.shape[1]}, max_len={self.pe.shape[0]}"


class LearnedPositionalEncoding(Module):
    """y_t = x_t + weight_t, a trained vector for each of `max_len` positions.

    At first they are normal with deviation 0.02.
    (B, T, E) -> (B, T, E), with batch_first=False (T, B, E); or (T, E).
    """

    def __init__(
        self, max_len: int, d_model: int, *, batch_first: bool = True, dtype: Any = None
    ) -> None:
        self.weight = Parameter.empty(max_len, d_model, dtype=dtype)
        self.batch_first = batch_first
        init.normal_(self.weight, std=0.02)

    def forward(self, x: Any, offset: int = 0) -> Tensor:
        """x (B, T, E) -> the same shape; `offset` is the first token's position, as `cache.length`.

        Integer input is promoted. Raises ValueError for another width or beyond max_len positions.
        """
        return _add_positions(x, self.weight, offset, self.batch_first)

    def extra_repr(self) -> str:
        return f"max_len={self.weight.shape[0]}, d_model={self.weight.shape[1]}"
