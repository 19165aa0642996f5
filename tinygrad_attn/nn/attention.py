"""Attention modules: projections and heads around `functional.attention`.

In shapes, B is the batch size, H the number of heads, T the number of queries, S the number of keys
and E the embedding size. D is the size of queries and keys in one head, and V the size of values.
"""

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..engine import heard
from ..errors import describe
from ..functional.attention import attention, drawn, masked_softmax, packed_attention, unpack_heads
from ..functional.checks import check_probability
from ..tensor import Tensor
from . import init, inside
from .cache import KeyValueCache
from .layers import Dropout, Linear, floating
from .masks import merge_masks
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
    ):
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} cannot be divided into num_heads={num_heads} equal heads. "
                "Choose another number of heads, or set head_dim=."
            )
        check_probability(dropout, "MultiheadAttention", "dropout")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.head_dim = head_dim or embed_dim // num_heads
        self.value_head_dim = value_head_dim or self.head_dim
        self.add_zero_attn = add_zero_attn
        keys, values = num_heads * self.head_dim, num_heads * self.value_head_dim
        shapes = (keys, embed_dim), (keys, self.kdim), (values, self.vdim)
        rows, empty = 2 * keys + values, Parameter.empty
        out_proj = Linear(values, embed_dim, bias)  # PyTorch initialises it first
        packed = self.kdim == self.vdim == embed_dim
        for name, shape in zip(PROJECTIONS, shapes):
            setattr(self, name, None if packed else init.xavier_uniform_(empty(*shape)))
        self.in_proj_weight: Any = init.xavier_uniform_(empty(rows, embed_dim)) if packed else None
        self.in_proj_bias: Any = init.zeros_(empty(rows)) if bias else None
        if bias:
            init.zeros_(out_proj.bias)
        learned = lambda rows: init.xavier_normal_(empty(1, 1, rows)) if add_bias_kv else None
        self.bias_k, self.bias_v = learned(keys), learned(values)
        self.out_proj = out_proj

    @property
    def _packs(self):
        """Whether self-attention takes one product, which gives q, k and v of equal sizes."""
        return self.in_proj_weight is not None and self.head_dim == self.value_head_dim

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights: bool = True,
        attn_mask=None,
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
        extra = (self.bias_k is not None) + self.add_zero_attn
        packs = self._packs and query is key is value and cache is None and not extra
        if packs:
            # Without the graph's nodes for q, k and v, a tiny layer is 1.2 times as fast.
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)  # (B, T, 3 H D)
            past, dtype = 0, packed.dtype
        else:
            q, k, v = self._heads(query, key, value, cache)
            past, dtype = k.shape[2] - extra - key.shape[1], q.dtype
        shape = (query.shape[0], self.num_heads, query.shape[1], past + key.shape[1])
        mask, is_causal = merge_masks(
            attn_mask, key_padding_mask, is_causal, shape, dtype, batched, past, extra
        )
        settings = {
            "scale": 1 / math.sqrt(self.head_dim),
            "is_causal": is_causal,
            "need_weights": need_weights or bool(heard("attended")),
            **drawn((*shape[:3], shape[3] + extra), self.dropout if self.training else 0.0),
        }
        if packs:
            attended, weights = packed_attention(packed, mask, num_heads=self.num_heads, **settings)
        else:
            attended, weights = attention(q, k, v, mask, **settings)
            attended = F.merge_heads(attended)
        if weights is not None:
            inside.record(weights)  # (B, H, T, S)
        out = self.out_proj(attended)  # (B, T, H V) -> (B, T, E)
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = weights.mean(axis=1)  # (B, T, S)
        if not batched:
            return out[0], weights if weights is None else weights[0]
        return out if self.batch_first else out.swapaxes(0, 1), weights

    def _inputs(self, *inputs):
        """Return query, key and value with the batch axis first, and whether they were batched."""
        times = 3 if inputs[0] is inputs[1] is inputs[2] else 1  # one object stays one
        distinct = [floating(x, self) for x in inputs[::times]]
        query, key, value = distinct * times
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
            distinct = [x[None] for x in distinct]
        elif not self.batch_first:
            distinct = [x.swapaxes(0, 1) for x in distinct]
        return distinct * times, batched

    def _heads(self, query, key, value, cache):
        """Return q (B, H, T, D), k (B, H, S, D) and v (B, H, S, V), with all cached tokens."""
        memory = lambda: (self._project(1, key), self._project(2, value))
        if not query is key is value:
            q = self._project(0, query)
            k, v = memory() if cache is None else cache.memory(self, key, value, memory)
        else:
            if self._packs:
                packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
                q, k, v = unpack_heads(packed, self.num_heads)
            else:
                q, (k, v) = self._project(0, query), memory()
            if cache is not None:
                k, v = cache.extend(self, k, v)
        return q, self._longer(k, self.bias_k), self._longer(v, self.bias_v)

    def _project(self, which, x):
        """Project x to queries (0), keys (1) or values (2): (B, T, E) -> (B, H, T, D)"""
        keys = self.num_heads * self.head_dim
        rows = slice(which * keys, (which + 1) * keys if which < 2 else None)
        weight, bias = getattr(self, PROJECTIONS[which]), self.in_proj_bias
        weight = self.in_proj_weight[rows] if weight is None else weight
        return F.split_heads(
            F.linear(x, weight, bias if bias is None else bias[rows]), self.num_heads
        )

    def _longer(self, x, token):
        """Append the learned token and the zero token, if any, to keys or values (B, H, S, D)."""
        if token is not None:
            heads = F.split_heads(token, self.num_heads)  # (1, H, 1, D)
            x = np.concatenate([x, np.broadcast_to(heads, (len(x), *heads.shape[1:]))], axis=2)
        return np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0))) if self.add_zero_attn else x


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
    ):
        self.d_out, self.causal = d_out, causal
        project = lambda: Linear(d_in, d_out, bias=qkv_bias)
        self.W_query, self.W_key, self.W_value = project(), project(), project()
        self.dropout = Dropout(dropout)

    def forward(self, x) -> Tensor:
        """(T, d_in) or (B, T, d_in) -> (T, d_out) or (B, T, d_out)"""
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)  # (..., T, d_out)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(self.d_out)  # (..., T, T)
        weights = self.dropout(masked_softmax(scores, is_causal=self.causal))
        inside.record(weights[:, None] if v.ndim == 3 else weights[None, None])
        return weights @ v


class AdditiveAttention(Module):
    """y = softmax(scores over the keys) V with score(q, k) = w . tanh(W_query q + W_key k).

    Bahdanau et al., 2015. Queries and keys may have different widths.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, dropout: float = 0.0):
        self.W_key = Linear(key_dim, hidden_dim, bias=False)
        self.W_query = Linear(query_dim, hidden_dim, bias=False)
        self.w_score = Linear(hidden_dim, 1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, query, key, value, key_padding_mask=None) -> tuple[Tensor, Tensor]:
        """(B, T, query_dim), (B, S, key_dim), (B, S, V) -> output (B, T, V), weights (B, T, S)

        `key_padding_mask` (B, S) is True where a key is blocked. If every key is blocked, the
        output is zero.
        """
        query, key, value = (floating(x, self) for x in (query, key, value))
        if not query.ndim == key.ndim == value.ndim == 3 or key.shape[1] != value.shape[1]:
            raise ValueError(
                "AdditiveAttention takes query (B, T, query_dim), key (B, S, key_dim) and "
                f"value (B, S, V), got {describe(query)}, {describe(key)} and {describe(value)}."
            )
        q = self.W_query(query)[:, :, None]  # (B, T, 1, h)
        k = self.W_key(key)[:, None]  # (B, 1, S, h)
        scores = self.w_score(np.tanh(q + k)).squeeze(-1)[:, None]  # (B, 1, T, S)
        mask, _ = merge_masks(None, key_padding_mask, False, scores.shape, scores.dtype)
        weights = self.dropout(masked_softmax(scores, mask))
        inside.record(weights)
        weights = weights.squeeze(1)  # (B, T, S)
        return weights @ value, weights
