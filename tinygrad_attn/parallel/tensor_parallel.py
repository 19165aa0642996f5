"""Tensor parallelism: one layer's products divided among ranks, each of which sees all samples.

Two products in a row, y = f(x A^T) B^T, need one exchange forwards and one backwards if A is cut by
its outputs (columns) and B by its inputs (rows): rank r computes f(x A_r^T) B_r^T from its parts
alone, and the sum over the ranks is y. In attention the parts are heads. Shoeybi et al., 2019.

    x -> to_all_ranks -> A_r -> f -> B_r -> sum_of_ranks -> + bias -> y

Each of the two ops is the derivative of the other: what every rank uses gets a gradient from every
rank, and what is a sum passes its gradient to every rank.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import functional as F
from ..engine import Variable, op
from ..nn import Linear, Module, MultiheadAttention, Parameter
from ..tensor import Tensor
from .group import Group, group


@op
def to_all_ranks(x: Any, *, ranks: Group) -> Any:
    """y = x, which is the same on every rank; backwards, the gradients of all ranks add up."""
    return x.copy()


@op
def sum_of_ranks(x: Any, *, ranks: Group) -> Any:
    """y = the sum of x over the ranks; backwards, every rank gets the gradient as it is."""
    return ranks.sum("sum_of_ranks", x)


to_all_ranks.vjp(lambda g, y, x, *, ranks: sum_of_ranks(g, ranks=ranks))
sum_of_ranks.vjp(lambda g, y, x, *, ranks: to_all_ranks(g, ranks=ranks))


class ShardedParameter(Parameter):
    """A parameter of which this rank has a part, and the other ranks of `group` have the rest."""

    __slots__ = ("group",)

    def __init__(self, data: Any, group: Group) -> None:
        super().__init__(data)
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedParameter:
        new = memo[id(self)] = ShardedParameter(self.numpy(), self.group)
        new.requires_grad = self.requires_grad
        return new


def _part(size: int, ranks: Group, what: str) -> slice:
    """Return which of `size` things are this rank's."""
    if size % ranks.size:
        raise ValueError(f"{size} {what} do not divide into equal parts for {ranks.size} ranks.")
    each = size // ranks.size
    return slice(ranks.rank * each, (ranks.rank + 1) * each)


class ColumnParallelLinear(Module):
    """This rank's outputs of a Linear that is the same on every rank: (..., in) -> (..., out / N).

    Raises ValueError where the outputs do not divide into N parts.
    """

    def __init__(self, linear: Linear, comm: Any = None) -> None:
        ranks = self._ranks = group(comm)
        mine = _part(linear.weight.shape[0], ranks, "outputs")
        self.weight = ShardedParameter(linear.weight.numpy()[mine], ranks)
        self.bias: Any = None
        if linear.bias is not None:
            self.bias = ShardedParameter(linear.bias.numpy()[mine], ranks)

    def forward(self, input: Any) -> Tensor:
        """(..., in) -> (..., out / N)"""
        return F.linear(to_all_ranks(input, ranks=self._ranks), self.weight, self.bias)


class RowParallelLinear(Module):
    """A Linear of inputs that are divided among the ranks: (..., in / N) -> (..., out), on all.

    The bias is added once, after the sum. Raises ValueError where the inputs do not divide.
    """

    def __init__(self, linear: Linear, comm: Any = None) -> None:
        ranks = self._ranks = group(comm)
        mine = _part(linear.weight.shape[1], ranks, "inputs")
        self.weight = ShardedParameter(linear.weight.numpy()[:, mine], ranks)
        self.bias: Any = None if linear.bias is None else Parameter(linear.bias.numpy())

    def forward(self, input: Any) -> Tensor:
        """(..., in / N) -> (..., out)"""
        y = sum_of_ranks(F.linear(input, self.weight), ranks=self._ranks)
        return y if self.bias is None else y + self.bias


class ParallelFeedForward(Module):
    """y = activation(x W_1^T + b_1) W_2^T + b_2, the hidden units divided among the ranks.

    Made from two Linear layers that are the same on every rank. Without dropout, which would need a
    stream of its own on each rank.
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

    Made from a MultiheadAttention that is the same on every rank; masks as there (True = blocked).
    Raises ValueError where the heads do not divide, and for what is not supported: dropout,
    add_bias_kv, add_zero_attn.
    """

    def __init__(self, attention: MultiheadAttention, comm: Any = None) -> None:
        ranks = group(comm)
        if attention.dropout or attention.bias_k is not None or attention.add_zero_attn:
            raise ValueError(
                "ParallelAttention takes attention without dropout, add_bias_kv and add_zero_attn."
            )
        _part(attention.num_heads, ranks, "heads")
        self.heads: int = attention.num_heads // ranks.size
        self.batch_first: bool = attention.batch_first
        query, key, value = _projections(attention)
        self.query: ColumnParallelLinear = ColumnParallelLinear(query, comm)
        self.key: ColumnParallelLinear = ColumnParallelLinear(key, comm)
        self.value: ColumnParallelLinear = ColumnParallelLinear(value, comm)
        self.out_proj: RowParallelLinear = RowParallelLinear(attention.out_proj, comm)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        attn_mask: Any = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(B, T, E), (B, S, E), (B, S, E) -> (B, T, E); without batch_first (T, B, E) and so on."""
        given = query, key, value
        if not self.batch_first:
            given = tuple(x.swapaxes(0, 1) for x in given)
        q, k, v = (
            F.split_heads(project(x), self.heads)  # (B, H / N, T, D)
            for project, x in zip((self.query, self.key, self.value), given, strict=True)
        )
        allowed = _allowed(attn_mask, key_padding_mask)
        heads = F.scaled_dot_product_attention(q, k, v, allowed, is_causal=is_causal)
        y = self.out_proj(F.merge_heads(heads))  # (B, T, E)
        return y if self.batch_first else y.swapaxes(0, 1)


def _allowed(attn_mask: Any, key_padding_mask: Any) -> Any:
    """Turn masks of `nn`, True = blocked or added to scores, into one of F's, True = allowed."""
    if isinstance(attn_mask, Variable) and key_padding_mask is None:
        return attn_mask
    blocked: Any = np.False_
    if key_padding_mask is not None:
        blocked = np.asarray(key_padding_mask)[:, None, None, :]  # (B, 1, 1, S)
        if blocked.dtype != bool:
            raise ValueError("ParallelAttention takes a boolean key_padding_mask, True = blocked.")
    if attn_mask is None:
        return None if key_padding_mask is None else ~blocked
    mask = np.asarray(attn_mask)
    return ~(mask | blocked) if mask.dtype == bool else np.where(blocked, -np.inf, mask)


def _projections(attention: MultiheadAttention) -> list[Any]:
    """Return query's, key's and value's weight and bias, each as the layer it would be."""
    values = attention.out_proj.weight.shape[1]  # the rows of value's projection

    def split(packed: Any) -> list[Any]:
        width = (len(packed) - values) // 2
        return [packed[:width], packed[width : 2 * width], packed[2 * width :]]

    if attention.in_proj_weight is not None:
        weights = split(attention.in_proj_weight.detach())
    else:
        weights = [getattr(attention, f"{name}_proj_weight") for name in "qkv"]
    biases: list[Any] = [None] * 3
    if attention.in_proj_bias is not None:
        biases = split(attention.in_proj_bias.detach())
    return [SimpleNamespace(weight=w, bias=b) for w, b in zip(weights, biases, strict=True)]


def grid(data: int, tensor: int, comm: Any = None) -> tuple[Any, Any]:
    """Return two communicators for data x tensor ranks: for DataParallel, and for layers here.

    Neighbouring ranks share a layer, since they talk most. A collective. Raises ValueError unless
    data * tensor is the number of ranks. With one rank both are None.
    """
    ranks = group(comm)
    if data * tensor != ranks.size:
        raise ValueError(f"data={data} times tensor={tensor} is not the {ranks.size} ranks.")
    if ranks.size == 1:
        return None, None
    row, column = divmod(ranks.rank, tensor)
    return ranks.small.Split(column, row), ranks.small.Split(row, column)
