"""Attention as modules: they own projections and heads; the equation is `functional.attention`.

Shape letters: B batch, H heads, T queries, S keys, E embedding, D head of queries and keys, V head
of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import describe, is_integer
from ..functional import attention
from ..functional.checks import check_probability
from ..tensor import Tensor
from . import init, scopes
from .cache import KeyValueCache
from .layers import Dropout, Linear, floating
from .masks import merge_masks
from .module import Module
from .parameter import Parameter

PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
PARAMETERS = (*PROJECTIONS, "in_proj_weight", "in_proj_bias", "bias_k", "bias_v")
"""PyTorch's names and order; out_proj follows them."""


def _each(f: Callable[[Any], Any], *xs: Any) -> list[Any]:
    """f of each; objects that are one stay one."""
    made = {i: f(x) for i, x in {id(x): x for x in xs}.items()}
    return [made[id(x)] for x in xs]


class MultiheadAttention(Module):
    """y = [head_1 ... head_H] W_o^T, head_h = softmax(Q_h K_h^T / sqrt(D)) V_h, with Q = query
    W_q^T and so on.

    Vaswani et al., 2017; arguments, parameters and initial values as torch.nn.MultiheadAttention.
    Without `kdim` and `vdim` the three projections are one matrix `in_proj_weight`; with them,
    `q_proj_weight`, `k_proj_weight` and `v_proj_weight`. `add_bias_kv` appends a learned key and
    value, `add_zero_attn` one of zeros; every query may look at them.

    Beyond PyTorch: `head_dim` and `value_head_dim` are free, so `embed_dim` need not be a multiple
    of `num_heads`: queries and keys are projected to num_heads * head_dim numbers, values to
    num_heads * value_head_dim, which `out_proj` takes back to embed_dim.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        dtype: Any = None,
    ) -> None:
        sizes = embed_dim, num_heads, 1 if head_dim is None else head_dim
        if not all(is_integer(size) and size > 0 for size in sizes):
            raise ValueError(
                "MultiheadAttention: embed_dim, num_heads and head_dim are whole numbers above 0, "
                f"got {embed_dim!r}, {num_heads!r} and {head_dim!r}."
            )
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} does not divide into num_heads={num_heads} heads of equal "
                "size. Choose another number of heads, or give nn.MultiheadAttention a head size "
                f"of its own: head_dim={embed_dim // num_heads + 1}."
            )
        check_probability(dropout, "MultiheadAttention", "dropout")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.head_dim = head_dim or embed_dim // num_heads
        self.value_head_dim = value_head_dim or self.head_dim
        self.add_zero_attn = add_zero_attn
        wide, value_wide = num_heads * self.head_dim, num_heads * self.value_head_dim

        for name in PARAMETERS:
            self.register_parameter(name, None)  # those of them that are wanted follow
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = Parameter.empty(2 * wide + value_wide, embed_dim, dtype=dtype)
        else:
            self.q_proj_weight = Parameter.empty(wide, embed_dim, dtype=dtype)
            self.k_proj_weight = Parameter.empty(wide, self.kdim, dtype=dtype)
            self.v_proj_weight = Parameter.empty(value_wide, self.vdim, dtype=dtype)
        if bias:
            self.in_proj_bias = Parameter.empty(2 * wide + value_wide, dtype=dtype)
        if add_bias_kv:
            self.bias_k = Parameter.empty(1, 1, wide, dtype=dtype)
            self.bias_v = Parameter.empty(1, 1, value_wide, dtype=dtype)
        self.out_proj = Linear(value_wide, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for the projections, zero for all biases; out_proj's weight has been drawn by
        then, as a Linear's.
        """
        for name in ("in_proj_weight", *PROJECTIONS):
            if (weight := getattr(self, name)) is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(T, B, E), (S, B, kdim), (S, B, vdim) -> output (T, B, E), weights (B, T, S) or None.

        With `batch_first` (B, T, E) and so on; unbatched (T, E) without B. Weights are those
        applied (after dropout), averaged over heads, or (B, H, T, S) with
        average_attn_weights=False; the output is the same numbers whether they are asked for or
        not.

        `attn_mask` (T, S) or (B*H, T, S) and `key_padding_mask` (B, S), unbatched (S,): boolean,
        True = blocked, or float, added to the scores. `is_causal` hides later keys, with or without
        a mask. A query whose every key is blocked has zero weights, and its heads are zero, so its
        output is the bias of out_proj; no gradient flows through it. With a `cache` self-attention
        takes the same object three times, and the memory of cross-attention stays the same; see
        KeyValueCache. Integer input is promoted. Raises ValueError and TypeError for shapes and
        masks that do not fit.
        """
        query, key, value, batched = self._inputs(query, key, value)  # (B, T, E), (B, S, E)
        own = query is key is value
        past = cache.past(self) if own and cache is not None else 0
        extra = (self.bias_k is not None) + self.add_zero_attn
        shape = (query.shape[0], self.num_heads, query.shape[1], past + key.shape[1])

        heads = self._project(query, key, value, cache)
        mask, is_causal = merge_masks(
            attn_mask, key_padding_mask, is_causal, shape, heads[0].dtype, batched, past, extra
        )
        if own and cache is not None:  # not before, for a refused mask must leave no token behind
            heads = heads[0], *cache.extend(self, *heads[1:])
        if extra:
            heads = heads[0], *self._lengthened(*heads[1:])
        dropout_p = self.dropout if self.training else 0.0
        settings = {
            "scale": 1 / math.sqrt(self.head_dim),
            "is_causal": is_causal,
            **attention.drawn((*shape[:3], shape[3] + extra), dropout_p),
        }
        recorders = scopes.recorders()
        attended, weights = self._attend(heads, mask, settings, need_weights or bool(recorders))
        out = self.out_proj(attended)  # (B, T, H V) -> (B, T, E)

        if recorders:
            scopes.record(weights)  # (B, H, T, S)
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = weights.mean(axis=1)  # (B, T, S)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.swapaxes(0, 1), weights

    def _inputs(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any, bool]:
        """Query, key and value as (B, T, E) and so on, and whether they came in a batch.

        One object stays one. Raises ValueError unless they fit the module and each other.
        """
        inputs = query, key, value = _each(lambda x: floating(x, self), query, key, value)
        batched = query.ndim == 3
        batch, time = (0, 1) if batched and self.batch_first else (1, 0)
        widths = self.embed_dim, self.kdim, self.vdim
        problem = ""
        if not (query.ndim == key.ndim == value.ndim and query.ndim in (2, 3)):
            problem = "takes three batched inputs, or three (T, E); x[None] adds a batch of one"
        elif tuple(x.shape[-1] for x in inputs) != widths:
            problem = (
                "was made for a query with last axis {}, a key with {} and a value with {}; for "
                "keys and values of other widths pass kdim= and vdim= to the constructor"
            ).format(*widths)
        elif batched and not query.shape[batch] == key.shape[batch] == value.shape[batch]:
            problem = "needs query, key and value of one batch size"
            if query.shape[time] == key.shape[time] == value.shape[time]:
                problem += f"; did you mean batch_first={not self.batch_first}?"
        elif key.shape[time] != value.shape[time]:
            problem = "needs one value for each key"
        if problem:
            raise ValueError(
                f"MultiheadAttention {problem}. Got query {describe(query)}, key {describe(key)}, "
                f"value {describe(value)}, read as "
                f"{'(B, T, E)' if self.batch_first else '(T, B, E)'} since "
                f"batch_first={self.batch_first}."
            )
        if not batched:
            inputs = _each(lambda x: x.reshape(1, *x.shape), *inputs)
        elif not self.batch_first:
            inputs = _each(lambda x: x.swapaxes(0, 1), *inputs)
        return *inputs, batched

    def _project(self, query: Any, key: Any, value: Any, cache: KeyValueCache | None) -> Any:
        """q (B, H, T, D), k (B, H, S, D), v (B, H, S, V); or the three side by side, (B, T, 3 H D).

        Self-attention takes the packed form, which has a kernel, unless its keys get more.
        """
        own = query is key is value
        if own and self.in_proj_weight is not None and self.head_dim == self.value_head_dim:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            if cache is None and self.bias_k is None and not self.add_zero_attn:
                return (packed,)
            return tuple(attention.unpack_heads(packed, self.num_heads))
        q = self._projected(0, query)
        both = lambda: (self._projected(1, key), self._projected(2, value))
        return q, *(both() if own or cache is None else cache.memory(self, key, value, both))

    def _projected(self, which: int, x: Any) -> Any:
        """x projected to queries (0), keys (1) or values (2): (B, T, E) -> (B, H, T, D)"""
        weight, bias = getattr(self, PROJECTIONS[which]), self.in_proj_bias
        sizes = (self.head_dim, self.head_dim, self.value_head_dim)
        start = self.num_heads * sum(sizes[:which])
        part = slice(start, start + self.num_heads * sizes[which])
        if weight is None:
            weight = self.in_proj_weight[part]
        bias = None if bias is None else bias[part]
        return F.split_heads(F.linear(x, weight, bias), self.num_heads)

    def _lengthened(self, k: Any, v: Any) -> tuple[Any, Any]:
        """The learned key and value and the zero ones after the others."""

        def longer(x: Any, token: Any) -> Any:
            token = np.broadcast_to(token, (*x.shape[:2], 1, x.shape[-1]))
            return np.concatenate([x, token], axis=2)

        if self.bias_k is not None:
            k = longer(k, F.split_heads(self.bias_k, self.num_heads))
            v = longer(v, F.split_heads(self.bias_v, self.num_heads))
        if self.add_zero_attn:
            k, v = (longer(x, np.zeros((), x.dtype)) for x in (k, v))
        return k, v

    def _attend(self, heads: Any, mask: Any, settings: Any, wanted: bool) -> tuple[Any, Any]:
        """(B, T, H V), and the weights (B, H, T, S) if they are wanted."""
        count = self.num_heads
        if len(heads) == 1:
            (packed,) = heads
            attended = attention.packed_attention(packed, mask, num_heads=count, **settings)
            heads = attention.unpack_heads(packed, count) if wanted else None
        else:
            attended = F.merge_heads(attention.attention(*heads, mask, **settings))
        if not wanted:
            return attended, None
        return attended, attention.weights_as_applied(heads[0], heads[1], mask, **settings)

    def extra_repr(self) -> str:
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        if self.head_dim * self.num_heads != self.embed_dim or self.value_head_dim != self.head_dim:
            text += f", head_dim={self.head_dim}, value_head_dim={self.value_head_dim}"
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + ", batch_first=True" * self.batch_first


class SelfAttention(Module):
    """y = softmax(Q K^T / sqrt(d_out)) V with Q = W_query(x), K = W_key(x), V = W_value(x): one
    head, one input.

    `causal` hides later positions; `dropout` drops weights in training.
    (T, d_in) or (B, T, d_in) -> (T, d_out) or (B, T, d_out)
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        qkv_bias: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
        *,
        dtype: Any = None,
    ) -> None:
        self.d_out, self.causal = d_out, causal
        self.W_query = Linear(d_in, d_out, bias=qkv_bias, dtype=dtype)
        self.W_key = Linear(d_in, d_out, bias=qkv_bias, dtype=dtype)
        self.W_value = Linear(d_in, d_out, bias=qkv_bias, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x: Any) -> Tensor:
        """(T, d_in) or (B, T, d_in) -> (T, d_out) or (B, T, d_out). Raises ValueError for other
        shapes.
        """
        x = floating(x, self.W_query.weight)
        if x.ndim not in (2, 3):
            raise ValueError(f"SelfAttention takes (T, d_in) or (B, T, d_in), got {describe(x)}.")
        batch = x if x.ndim == 3 else x[None]  # (B, T, d_in)
        projections = (self.W_query, self.W_key, self.W_value)
        q, k, v = (F.split_heads(W(batch), 1) for W in projections)  # (B, 1, T, d_out)
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        recorders = scopes.recorders()
        out = F.scaled_dot_product_attention(
            q, k, v, None, dropout_p, self.causal, need_weights=bool(recorders)
        )
        if recorders:
            out, weights = out
            scopes.record(weights)
        return out.reshape(*x.shape[:-1], self.d_out)

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


class AdditiveAttention(Module):
    """score(q, k) = w . tanh(W_query q + W_key k), weights = softmax of the scores over the keys, y
    = weights V.

    Bahdanau et al., 2015. Queries and keys may have different widths; none of the projections has a
    bias.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden_dim: int,
        dropout: float = 0.0,
        *,
        dtype: Any = None,
    ) -> None:
        self.W_key = Linear(key_dim, hidden_dim, bias=False, dtype=dtype)
        self.W_query = Linear(query_dim, hidden_dim, bias=False, dtype=dtype)
        self.w_score = Linear(hidden_dim, 1, bias=False, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any = None
    ) -> tuple[Tensor, Tensor]:
        """(B, T, query_dim), (B, S, key_dim), (B, S, V) -> output (B, T, V), weights (B, T, S)

        `key_padding_mask` (B, S): True = blocked, or float, added to the scores. With every key
        blocked weights and output are zero. Raises ValueError for shapes that do not fit, TypeError
        for a mask of integers.
        """
        query, key, value = (floating(x, self.w_score.weight) for x in (query, key, value))
        if not query.ndim == key.ndim == value.ndim == 3 or key.shape[1] != value.shape[1]:
            raise ValueError(
                "AdditiveAttention takes query (B, T, query_dim), key (B, S, key_dim) and "
                f"value (B, S, V), got {describe(query)}, {describe(key)} and {describe(value)}."
            )
        q = self.W_query(query)[:, :, None]  # (B, T, 1, h)
        k = self.W_key(key)[:, None]  # (B, 1, S, h)
        scores = self.w_score(np.tanh(q + k)).squeeze(-1)[:, None]  # (B, 1, T, S)
        mask, _ = merge_masks(None, key_padding_mask, False, scores.shape, scores.dtype)
        weights = self.dropout(attention.masked_softmax(scores, mask))
        scopes.record(weights)
        weights = weights.squeeze(1)  # (B, T, S)
        return weights @ value, weights
