"""Attention as modules: they own projections and heads; the equation is `functional.attention`.

Shape letters: B batch, H heads, T queries, S keys, E embedding, D head of queries and keys, V head
of values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import describe
from ..functional import attention
from ..functional.checks import check_probability
from ..tensor import Tensor
from . import init, inside
from .cache import KeyValueCache
from .layers import Dropout, Linear, floating
from .masks import merge_masks
from .module import Module
from .parameter import Parameter

PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class MultiheadAttention(Module):
    """y = [head_1 ... head_H] W_o^T, head_h = softmax(Q_h K_h^T / sqrt(D)) V_h, with Q = query
    W_q^T and so on.

    Vaswani et al., 2017; arguments, parameters and initial values as torch.nn.MultiheadAttention.
    Without `kdim` and `vdim` the three projections are one matrix `in_proj_weight`; with them,
    `q_proj_weight`, `k_proj_weight` and `v_proj_weight`. `add_bias_kv` appends a learned key and
    value, `add_zero_attn` one of zeros; every query may look at them.

    Beyond PyTorch, `head_dim` and `value_head_dim` are free, so `embed_dim` need not be a multiple
    of `num_heads`. Queries and keys are projected to num_heads * head_dim numbers, values to
    num_heads * value_head_dim. `out_proj` maps these to embed_dim.
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
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        self.add_zero_attn = add_zero_attn
        # The rows of the three projections, of queries, keys and values.
        self._rows = tuple(num_heads * d for d in (self.head_dim,) * 2 + (self.value_head_dim,))
        widths, rows = (embed_dim, self.kdim, self.vdim), sum(self._rows)

        empty = lambda *shape: Parameter.empty(*shape, dtype=dtype)
        out_proj = Linear(self._rows[2], embed_dim, bias, dtype=dtype)  # PyTorch draws it first
        one_matrix = self.kdim == self.vdim == embed_dim
        for name, *shape in zip(PROJECTIONS, self._rows, widths):
            setattr(self, name, None if one_matrix else init.xavier_uniform_(empty(*shape)))
        self.in_proj_weight: Any = (
            init.xavier_uniform_(empty(rows, embed_dim)) if one_matrix else None
        )
        self.in_proj_bias = init.zeros_(empty(rows)) if bias else None
        if bias:
            init.zeros_(out_proj.bias)
        self.bias_k = init.xavier_normal_(empty(1, 1, self._rows[1])) if add_bias_kv else None
        self.bias_v = init.xavier_normal_(empty(1, 1, self._rows[2])) if add_bias_kv else None
        self.out_proj = out_proj

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

        With `batch_first` (B, T, E) and so on; unbatched (T, E) without B. The weights are those
        after dropout, averaged over the heads. With average_attn_weights=False they are
        (B, H, T, S). The output does not depend on `need_weights`.

        `attn_mask` (T, S) or (B*H, T, S) and `key_padding_mask` (B, S), unbatched (S,): boolean,
        True = blocked, or float, added to the scores. `is_causal` hides later keys, with or without
        a mask. A query whose every key is blocked has zero weights and no gradient; its output is
        the bias of out_proj. With a `cache` self-attention takes the same object three times, and
        the memory of cross-attention stays the same; see KeyValueCache. Integer input is promoted.
        Raises ValueError and TypeError for shapes and masks that do not fit.
        """
        own = query is key is value
        query, key, value, batched = self._inputs(query, key, value, own)  # (B, T, E), (B, S, E)
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
            q, k, v = heads
            heads = q, self._longer(k, self.bias_k), self._longer(v, self.bias_v)
        scores = (*shape[:3], shape[3] + extra)
        settings = {
            "scale": 1 / math.sqrt(self.head_dim),
            "is_causal": is_causal,
            **attention.drawn(scores, self.dropout if self.training else 0.0),
        }
        wanted = need_weights or bool(inside.recorders())
        attended, weights = self._attend(heads, mask, settings, wanted)
        out = self.out_proj(attended)  # (B, T, H V) -> (B, T, E)
        inside.record(weights)  # (B, H, T, S)
        if wanted and average_attn_weights:
            weights = weights.mean(axis=1)  # (B, T, S)
        if not batched:
            out, weights = out[0], weights[0] if wanted else None
        elif not self.batch_first:
            out = out.swapaxes(0, 1)  # (T, B, E)
        return out, weights if need_weights else None

    def _inputs(self, query: Any, key: Any, value: Any, own: bool) -> tuple[Any, Any, Any, bool]:
        """Query, key and value as (B, T, E) and so on, and whether they came in a batch.

        Raises ValueError unless they fit the module and each other.
        """
        query, key, value = (floating(x, self) for x in (query, key, value))
        batched = query.ndim == 3
        widths = (query.shape[-1], key.shape[-1], value.shape[-1])
        batch = 0 if self.batch_first else 1
        if not (
            query.ndim == key.ndim in (2, 3)
            and key.shape[:-1] == value.shape[:-1]
            and widths == (self.embed_dim, self.kdim, self.vdim)
            and (not batched or query.shape[batch] == key.shape[batch])
        ):
            t, s = ("B, T", "B, S") if self.batch_first else ("T, B", "S, B")
            raise ValueError(
                f"MultiheadAttention takes query ({t}, {self.embed_dim}), key ({s}, {self.kdim}) "
                f"and value ({s}, {self.vdim}) since batch_first={self.batch_first}, or all three "
                f"without B. Got query {describe(query)}, key {describe(key)}, value "
                f"{describe(value)}. For keys and values of other widths pass kdim= and vdim= to "
                "the constructor."
            )

        def lay(x: Any) -> Any:
            return x[None] if not batched else x if self.batch_first else x.swapaxes(0, 1)

        query = lay(query)
        key, value = (query, query) if own else (lay(key), lay(value))
        return query, key, value, batched

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
        start = sum(self._rows[:which])
        part = slice(start, start + self._rows[which])
        weight, bias = getattr(self, PROJECTIONS[which]), self.in_proj_bias
        weight = self.in_proj_weight[part] if weight is None else weight
        bias = None if bias is None else bias[part]
        return F.split_heads(F.linear(x, weight, bias), self.num_heads)

    def _longer(self, x: Any, token: Any) -> Any:
        """Keys or values with the learned one and the one of zeros after them."""
        more: list[Any] = [] if token is None else [F.split_heads(token, self.num_heads)]
        if self.add_zero_attn:
            more.append(np.zeros((), x.dtype))
        shape = (*x.shape[:2], 1, x.shape[-1])
        return np.concatenate([x, *(np.broadcast_to(one, shape) for one in more)], axis=2)

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
        project = lambda: Linear(d_in, d_out, bias=qkv_bias, dtype=dtype)
        self.W_query, self.W_key, self.W_value = project(), project(), project()
        self.dropout = Dropout(dropout)

    def forward(self, x: Any) -> Tensor:
        """(T, d_in) or (B, T, d_in) -> (T, d_out) or (B, T, d_out). Raises ValueError for other
        shapes.
        """
        x = floating(x, self.W_query.weight)
        if x.ndim not in (2, 3):
            raise ValueError(f"SelfAttention takes (T, d_in) or (B, T, d_in), got {describe(x)}.")
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)  # (..., T, d_out)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(self.d_out)  # (..., T, T)
        weights = self.dropout(attention.masked_softmax(scores, is_causal=self.causal))
        inside.record(weights[:, None] if x.ndim == 3 else weights[None, None])
        return weights @ v

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
        inside.record(weights)
        weights = weights.squeeze(1)  # (B, T, S)
        return weights @ value, weights
