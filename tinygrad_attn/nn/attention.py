"""Attention modules: projections, heads and masks around `functional.attention`.

In shapes, B is the batch size, H the number of heads, T the number of queries, S the number of keys
and E the embedding size. D is the size of queries and keys in one head, and V the size of values.

In the masks of `nn`, True means *blocked*; in `functional.attention`, a query *may* look. In both,
a float mask is added to the scores.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add, or_
from typing import Any

import numpy as np

from .. import functional as F
from ..engine import Symbolic, heard, tracked
from ..errors import describe, warn
from ..functional import attention, checks
from ..tensor import Tensor
from . import init, inside
from .cache import KeyValueCache
from .layers import Dropout, Linear, floating
from .module import Module, Parameter

PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class MultiheadAttention(Module):
    """y = [head_1 ... head_H] W_o^T with head_h = softmax(Q_h K_h^T / sqrt(D)) V_h.

    Vaswani et al., 2017. Arguments, parameters and initial values match
    torch.nn.MultiheadAttention. `add_bias_kv` appends a learned key and value, and `add_zero_attn`
    appends a key and value of zeros. `head_dim` and `value_head_dim` set the sizes of the heads.
    """

    _shown = ("embed_dim", "num_heads", "head_dim", "value_head_dim", "dropout", "batch_first")

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
    ) -> None:
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} cannot be divided into num_heads={num_heads} equal heads. "
                "Choose another number of heads, or set head_dim=."
            )
        checks.check_probability(dropout, "MultiheadAttention", "dropout")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.head_dim = head_dim or embed_dim // num_heads
        self.value_head_dim = value_head_dim or self.head_dim
        self.add_zero_attn = add_zero_attn
        # Rows of in_proj_weight for queries, keys and values.
        self._rows = tuple(num_heads * d for d in (self.head_dim,) * 2 + (self.value_head_dim,))
        widths, empty = (embed_dim, self.kdim, self.vdim), Parameter.empty
        out_proj = Linear(self._rows[2], embed_dim, bias)  # PyTorch initialises it first
        packed = widths == (embed_dim,) * 3
        for name, *shape in zip(PROJECTIONS, self._rows, widths):
            setattr(self, name, None if packed else init.xavier_uniform_(empty(*shape)))
        rows = sum(self._rows)
        self.in_proj_weight: Any = init.xavier_uniform_(empty(rows, embed_dim)) if packed else None
        self.in_proj_bias: Any = init.zeros_(empty(rows)) if bias else None
        if bias:
            init.zeros_(out_proj.bias)
        learned = lambda rows: init.xavier_normal_(empty(1, 1, rows)) if add_bias_kv else None
        self.bias_k, self.bias_v = learned(self._rows[1]), learned(self._rows[2])
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

        With `batch_first`, B comes first; unbatched inputs have no B. The weights include dropout
        and are averaged over the heads; with average_attn_weights=False they are (B, H, T, S).
        `attn_mask` is (T, S) or (B*H, T, S), and `key_padding_mask` is (B, S), or (S,) if
        unbatched. A boolean mask is True where a key is blocked; a float mask is added to the
        scores. `is_causal` hides later keys. A query with all keys blocked has zero weights and no
        gradient; its output is the bias of out_proj. For self-attention with a `cache`, pass the
        same object as query, key and value; see KeyValueCache.
        """
        (query, key, value), batched = self._inputs(query, key, value)  # (B, T, E), (B, S, E)
        own = query is key is value
        past = cache.past(self) if own and cache is not None else 0
        extra = (self.bias_k is not None) + self.add_zero_attn
        shape = (query.shape[0], self.num_heads, query.shape[1], past + key.shape[1])
        heads = self._project(query, key, value, cache)
        mask, is_causal = _merge_masks(
            attn_mask, key_padding_mask, is_causal, shape, heads[0].dtype, batched, past, extra
        )
        if own and cache is not None:  # after _merge_masks, which may raise
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
        wanted = need_weights or bool(heard("attended"))
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

    def _inputs(self, query: Any, key: Any, value: Any) -> tuple[list[Any], bool]:
        """Return query, key and value with the batch axis first, and whether they were batched."""
        own = query is key is value
        given = [query] if own else [query, key, value]  # the same object is converted once
        given = [floating(x, self) for x in given]
        query, key, value = given * 3 if own else given
        batched, batch = query.ndim == 3, 0 if self.batch_first else 1
        if not (
            query.ndim == key.ndim in (2, 3)
            and key.shape[:-1] == value.shape[:-1]
            and (query.shape[-1], key.shape[-1], value.shape[-1])
            == (self.embed_dim, self.kdim, self.vdim)
            and (not batched or query.shape[batch] == key.shape[batch])
        ):
            t, s = ("B, T", "B, S") if self.batch_first else ("T, B", "S, B")
            raise ValueError(
                f"with batch_first={self.batch_first}, MultiheadAttention takes query "
                f"({t}, {self.embed_dim}), key ({s}, kdim={self.kdim}) and value ({s}, "
                f"vdim={self.vdim}), or all three without B. Got query {describe(query)}, key "
                f"{describe(key)}, value {describe(value)}."
            )
        if not batched:
            given = [x[None] for x in given]
        elif not self.batch_first:
            given = [x.swapaxes(0, 1) for x in given]
        if own:
            given = given * 3
        return given, batched

    def _project(self, query: Any, key: Any, value: Any, cache: KeyValueCache | None) -> Any:
        """Return q (B, H, T, D), k (B, H, S, D), v (B, H, S, V), or one tensor (B, T, 3 H D)."""
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
        """Project x to queries (0), keys (1) or values (2): (B, T, E) -> (B, H, T, D)"""
        start = sum(self._rows[:which])
        part = slice(start, start + self._rows[which])
        weight, bias = getattr(self, PROJECTIONS[which]), self.in_proj_bias
        weight = self.in_proj_weight[part] if weight is None else weight
        bias = None if bias is None else bias[part]
        return F.split_heads(F.linear(x, weight, bias), self.num_heads)

    def _longer(self, x: Any, token: Any) -> Any:
        """Append the learned token and the zero token, if any, to keys or values (B, H, S, D)."""
        more: list[Any] = [] if token is None else [F.split_heads(token, self.num_heads)]
        if self.add_zero_attn:
            more.append(np.zeros((), x.dtype))
        shape = (*x.shape[:2], 1, x.shape[-1])
        return np.concatenate([x, *(np.broadcast_to(one, shape) for one in more)], axis=2)

    def _attend(self, heads: Any, mask: Any, settings: Any, wanted: bool) -> tuple[Any, Any]:
        """Return the output (B, T, H V), and the weights (B, H, T, S) if `wanted`, else None."""
        count = self.num_heads
        if len(heads) == 1:
            attended = attention.packed_attention(heads[0], mask, num_heads=count, **settings)
            heads = attention.unpack_heads(heads[0], count) if wanted else heads
        else:
            attended = F.merge_heads(attention.attention(*heads, mask, **settings))
        if not wanted:
            return attended, None
        return attended, attention.weights_as_applied(heads[0], heads[1], mask, **settings)


class SelfAttention(Module):
    """y = softmax(Q K^T / sqrt(d_out)) V with Q = W_query(x), K = W_key(x), V = W_value(x).

    `causal` hides later positions. `dropout` applies to the attention weights in training.
    """

    _shown = ("causal",)

    def __init__(
        self,
        d_in: int,
        d_out: int,
        qkv_bias: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        self.d_out, self.causal = d_out, causal
        project = lambda: Linear(d_in, d_out, bias=qkv_bias)
        self.W_query, self.W_key, self.W_value = project(), project(), project()
        self.dropout = Dropout(dropout)

    def forward(self, x: Any) -> Tensor:
        """(T, d_in) or (B, T, d_in) -> (T, d_out) or (B, T, d_out)"""
        x = floating(x, self.W_query.weight)
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)  # (..., T, d_out)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(self.d_out)  # (..., T, T)
        weights = self.dropout(attention.masked_softmax(scores, is_causal=self.causal))
        inside.record(weights[:, None] if x.ndim == 3 else weights[None, None])
        return weights @ v


class AdditiveAttention(Module):
    """y = softmax(scores over the keys) V with score(q, k) = w . tanh(W_query q + W_key k).

    Bahdanau et al., 2015. Queries and keys may have different widths.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        self.W_key = Linear(key_dim, hidden_dim, bias=False)
        self.W_query = Linear(query_dim, hidden_dim, bias=False)
        self.w_score = Linear(hidden_dim, 1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any = None
    ) -> tuple[Tensor, Tensor]:
        """(B, T, query_dim), (B, S, key_dim), (B, S, V) -> output (B, T, V), weights (B, T, S)

        `key_padding_mask` (B, S) is True where a key is blocked. If every key is blocked, the
        output is zero.
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
        mask, _ = _merge_masks(None, key_padding_mask, False, scores.shape, scores.dtype)
        weights = self.dropout(attention.masked_softmax(scores, mask))
        inside.record(weights)
        weights = weights.squeeze(1)  # (B, T, S)
        return weights @ value, weights


# ---- masks


def _plain(mask: Any, name: str) -> Any:
    """Return the mask as an array, or as a Tensor if it is tracked."""
    mask = checks.values(mask)
    if mask.dtype.kind not in "bf":
        raise TypeError(
            f"{name} must be boolean (True = blocked) or float (added to the scores), got "
            f"{describe(mask)}. Write mask.astype(bool) if 1 means blocked, otherwise mask == 0."
        )
    return mask._data if isinstance(mask, Tensor) and not tracked(mask) else mask


def _is_causal(mask: Any) -> bool:
    """Return whether this is the causal mask, for which attention is faster."""
    if tracked(mask) or isinstance(mask, Symbolic) or mask.ndim != 2:
        return False
    blocked = np.tri(*mask.shape) == 0
    return np.array_equal(mask, blocked if mask.dtype == bool else _added(blocked, mask.dtype))


def _check_attn_mask(mask: Any, shape: tuple[int, int, int, int]) -> Any:
    """(T, S) or (B*H, T, S) -> (T, S) or (B, H, T, S)."""
    mask, (batch, heads, queries, keys) = _plain(mask, "attn_mask"), shape
    if mask.shape == (queries, keys):
        checks.warn_of_a_doubtful_mask(mask, blocked=True)
        return mask
    if mask.shape == (batch * heads, queries, keys):
        return mask.reshape(shape)
    raise ValueError(
        f"attn_mask must have the shape (T, S) = {(queries, keys)} or (B*H, T, S) = "
        f"{(batch * heads, queries, keys)}, got {describe(mask)}. A mask of shape (B, S) is a "
        f"key_padding_mask; one of shape (B, T, S) needs np.repeat(mask, {heads}, axis=0)."
    )


def _check_key_padding_mask(mask: Any, batch: int, keys: int, batched: bool = True) -> Any:
    """(B, S), or (S,) for an unbatched call -> (B, 1, 1, S)."""
    known = isinstance(mask, attention.BlockedMask)
    mask = _plain(mask, "key_padding_mask")
    shape = (batch, keys) if batched else (keys,)
    if mask.shape != shape:
        raise ValueError(
            f"key_padding_mask must have the shape (B, S), or (S,) if unbatched; expected {shape}, "
            f"got {describe(mask)}."
        )
    if not known and isinstance(mask, np.ndarray) and mask.dtype == bool and mask.size:
        if mask.all(axis=-1).any():
            warn(
                "this key_padding_mask blocks every key of a sequence. In nn, True means blocked: "
                "write ~mask if True marks a token in your mask."
            )
    return mask.reshape(batch, 1, 1, keys)


def _added(mask: Any, dtype: Any) -> Any:
    """Return the mask as floats, with -inf where a boolean mask is True."""
    mask = np.where(mask, -math.inf, 0.0) if mask.dtype == bool else mask
    return mask if mask.dtype == dtype else mask.astype(dtype)


def _merge_masks(
    attn_mask: Any,
    key_padding_mask: Any,
    is_causal: bool,
    shape: tuple[int, int, int, int],
    dtype: Any,
    batched: bool = True,
    past: int = 0,
    extra: int = 0,
) -> tuple[Any, bool]:
    """Merge the masks of one call into (mask or None, is_causal) for functional.attention.

    `shape` is the shape of the scores. It includes `past` keys from a cache, but not the `extra`
    keys that are appended and never blocked.
    """
    parts, is_causal = [], bool(is_causal)
    batch, _, queries, keys = shape
    if attn_mask is not None:
        mask = _check_attn_mask(attn_mask, shape)
        if not past and _is_causal(mask):
            is_causal = True
        else:
            parts.append(mask)
    if key_padding_mask is not None:
        parts.append(_check_key_padding_mask(key_padding_mask, batch, keys, batched))
    if is_causal and (past or extra):
        if keys > past + 1:  # a single new query may look at all keys
            parts.append(~np.tri(queries, keys, past, dtype=bool))
        is_causal = False
    if not parts:
        return None, is_causal
    if all(part.dtype == bool for part in parts):
        total = ~reduce(or_, parts)
    else:
        total = reduce(add, [_added(part, dtype) for part in parts])
    if extra:
        may_look = np.full((*total.shape[:-1], extra), total.dtype == bool, total.dtype)
        total = np.concatenate([total, may_look], axis=-1)
    return total, is_causal
