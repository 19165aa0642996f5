"""Tensor parallelism: the matrix products of one layer are divided among ranks.

Rank r computes f(x A_r^T) B_r^T with its rows of A and columns of B. The sum over the ranks is
y = f(x A^T) B^T. Attention is divided by heads. Shoeybi et al., 2019.

    x -> to_all_ranks -> A_r -> f -> B_r -> sum_of_ranks -> + bias -> y
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..engine import op
from ..nn import Linear, Module, MultiheadAttention, Parameter
from ..tensor import Tensor
from .group import Group, group


@op
def to_all_ranks(x: Any, *, ranks: Group) -> Any:
    """y = x, with the same x on every rank. The VJP sums the cotangents of all ranks."""
    return x.copy()


@op
def sum_of_ranks(x: Any, *, ranks: Group) -> Any:
    """y = sum of x over the ranks. The VJP returns the cotangent unchanged."""
    total = np.array(x, np.result_type(x, np.float32), order="C")
    ranks.sum("sum_of_ranks", total)
    return total.astype(x.dtype, copy=False)


to_all_ranks.vjp(lambda g, y, x, *, ranks: sum_of_ranks(g, ranks=ranks))
sum_of_ranks.vjp(lambda g, y, x, *, ranks: to_all_ranks(g, ranks=ranks))


class ShardedParameter(Parameter):
    """A part of a parameter. The other ranks of `group` have the other parts."""

    __slots__ = ("group",)

    def __init__(self, data: Any, group: Group) -> None:
        super().__init__(data)
        self.group = group


def _mine(array: np.ndarray, ranks: Group, axis: int = 0) -> np.ndarray:
    """Split an array into one equal part per rank, and return this rank's part."""
    return np.split(array, ranks.size, axis)[ranks.rank]


class ColumnParallelLinear(Module):
    """A Linear with its outputs divided among N ranks. Raises ValueError for an uneven split."""

    def __init__(self, linear: Linear, comm: Any = None) -> None:
        ranks = self._ranks = group(comm)
        whole = linear.weight, linear.bias
        self.weight, self.bias = (
            x if x is None else ShardedParameter(_mine(x.numpy(), ranks), ranks) for x in whole
        )

    def forward(self, input: Any) -> Tensor:
        """(..., in) -> (..., out / N)"""
        return F.linear(to_all_ranks(input, ranks=self._ranks), self.weight, self.bias)


class RowParallelLinear(Module):
    """A Linear with its inputs divided among N ranks. Raises ValueError for an uneven split."""

    def __init__(self, linear: Linear, comm: Any = None) -> None:
        ranks = self._ranks = group(comm)
        self.weight = ShardedParameter(_mine(linear.weight.numpy(), ranks, axis=1), ranks)
        self.bias = None if linear.bias is None else Parameter(linear.bias.numpy())

    def forward(self, input: Any) -> Tensor:
        """(..., in / N) -> (..., out)"""
        y = sum_of_ranks(F.linear(input, self.weight), ranks=self._ranks)
        return y if self.bias is None else y + self.bias


class ParallelFeedForward(Module):
    """y = activation(x W_1^T + b_1) W_2^T + b_2, with the hidden units divided among the ranks.

    The two Linear layers must be the same on every rank.
    """

    def __init__(self, linear1: Linear, linear2: Linear, activation: Any, comm: Any = None) -> None:
        self.linear1 = ColumnParallelLinear(linear1, comm)
        self.linear2 = RowParallelLinear(linear2, comm)
        self.activation = activation

    def forward(self, input: Any) -> Tensor:
        """(..., E) -> (..., E)"""
        return self.linear2(self.activation(self.linear1(input)))


class ParallelAttention(Module):
    """Multi-head attention with the heads divided among the ranks.

    `attention` must be the same on every rank. Raises ValueError if the heads cannot be divided
    evenly among the ranks, or if `attention` uses dropout, add_bias_kv or add_zero_attn.
    """

    def __init__(self, attention: MultiheadAttention, comm: Any = None) -> None:
        whole, ranks = attention, group(comm)
        count, rest = divmod(whole.num_heads, ranks.size)
        if rest or whole.dropout or whole.bias_k is not None or whole.add_zero_attn:
            raise ValueError(
                f"ParallelAttention needs a multiple of {ranks.size} heads, and does not support "
                "dropout, add_bias_kv or add_zero_attn."
            )
        names = "kdim", "vdim", "batch_first", "head_dim", "value_head_dim"
        settings: dict[str, Any] = {name: getattr(whole, name) for name in names}
        heads: Any = MultiheadAttention(whole.embed_dim, count, **settings)
        heads.out_proj = RowParallelLinear(whole.out_proj, comm)
        self._ranks, self.heads = ranks, heads
        wide = whole.num_heads * whole.head_dim
        for name in ("in_proj_weight", "in_proj_bias", *(f"{x}_proj_weight" for x in "qkv")):
            p: Any = getattr(whole, name)
            if p is not None:  # the rows of queries, keys and values, head by head
                each = np.split(p.numpy(), [wide, 2 * wide] if name.startswith("in") else [])
                p = ShardedParameter(np.concatenate([_mine(x, ranks) for x in each]), ranks)
            setattr(heads, name, p)

    def forward(self, query: Any, key: Any, value: Any, **masks: Any) -> Tensor:
        """Return the output. Shapes and masks are as in nn.MultiheadAttention."""
        seen = {id(x): to_all_ranks(x, ranks=self._ranks) for x in (query, key, value)}
        given = [seen[id(x)] for x in (query, key, value)]  # one object passed twice stays one
        return self.heads(*given, need_weights=False, **masks)[0]


def grid(data: int, tensor: int, comm: Any = None) -> tuple[Any, Any]:
    """Return communicators of `data` ranks for DataParallel and of `tensor` ranks for layers.

    A collective. Raises ValueError unless data * tensor equals the number of ranks.
    """
    ranks = group(comm)
    if data * tensor != ranks.size:
        raise ValueError(f"data={data} * tensor={tensor} is not the number of ranks, {ranks.size}.")
    if ranks.size == 1:
        return None, None
    row, column = divmod(ranks.rank, tensor)
    return ranks.comm.Split(column, row), ranks.comm.Split(row, column)
