"""Attention as modules: they own projections and heads; the equation itself is
`F.scaled_dot_product_attention`.

Shape letters: B batch, H heads, T queries, S keys, E embedding, D head of queries and keys, V head
of values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..engine import context
from ..errors import describe, is_integer
from ..functional import attention
from ..functional.checks import check_probability
from ..tensor import Tensor
from . import init, masks, scopes
from .cache import KeyValueCache
from .layers import Dropout, Linear, floating
from .module import Module, Parameter


def _caller_lays_it_out() -> bool:
    """Was the running module called by one that sees to the layout itself?"""
    scope = context.scope
    caller = None if scope is None else scope.outer
    return caller is not None and hasattr(type(caller.module), "lays_out_attention")


def as_pytorch_lays_it(out: Any) -> Any:
    """(B, T, E) copied to lie in memory as (T, B, E), as PyTorch's output does: a dropout draws its
    numbers in the order of memory, and so draws the same as PyTorch's.
    """
    return out.swapaxes(0, 1).clone().swapaxes(0, 1)


PARAMETERS = [
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "in_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
]
"""PyTorch's names and order; out_proj follows them."""


def _check_sizes(embed_dim: Any, num_heads: Any, head_dim: Any, value_head_dim: Any) -> None:
    """Whole numbers above 0, and heads that divide the embedding unless their size is given."""
    for name, size, optional in (
        ("embed_dim", embed_dim, False),
        ("num_heads", num_heads, False),
        ("head_dim", head_dim, True),
        ("value_head_dim", value_head_dim, True),
    ):
        whole = is_integer(size) and size > 0
        if not (whole or optional and size is None):
            raise ValueError(f"MultiheadAttention: {name} is a whole number above 0, got {size!r}.")
    if head_dim is None and embed_dim % num_heads:
        raise ValueError(
            f"embed_dim={embed_dim} does not divide into num_heads={num_heads} heads of equal "
            "size. Choose another number of heads, or give nn.MultiheadAttention a head size "
            f"of its own: head_dim={embed_dim // num_heads + 1}."
        )


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
        _check_sizes(embed_dim, num_heads, head_dim, value_head_dim)
        check_probability(dropout, "MultiheadAttention", "dropout")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.kdim, self.vdim = (embed_dim if size is None else size for size in (kdim, vdim))
        self.head_dim = head_dim or embed_dim // num_heads
        self.value_head_dim = value_head_dim or self.head_dim
        self.add_zero_attn = add_zero_attn
        wide, value_wide = num_heads * self.head_dim, num_heads * self.value_head_dim
        self._widths = (wide, wide, value_wide)
        one_matrix = self.kdim == self.vdim == embed_dim
        more_keys = add_bias_kv or add_zero_attn
        self._packs = one_matrix and wide == value_wide and not more_keys  # for `attend_packed`

        for name in PARAMETERS:
            self.register_parameter(name, None)  # those of them that are wanted follow
        if one_matrix:
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
        for weight in (
            self.in_proj_weight,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
        ):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for token in (self.bias_k, self.bias_v):
            if token is not None:
                init.xavier_normal_(token)

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
        masked: Any = (attn_mask, key_padding_mask, is_causal)
        wanted = need_weights or bool(context.watchers) and scopes.weights_wanted()
        if self._packs and query is key is value and cache is None:
            attended, weights = self._attend_packed(query, masked, batched, wanted)
        else:
            attended, weights = self._attend(query, key, value, masked, batched, wanted, cache)
        out = self.out_proj(attended)  # (B, T, H V) -> (B, T, E)
        if self.training and batched and not _caller_lays_it_out():
            out = as_pytorch_lays_it(out)
        if wanted:
            scopes.leave(weights)  # (B, H, T, S)
            weights = weights.mean(axis=1) if average_attn_weights else weights
        if not batched:
            out, weights = out.squeeze(0), weights.squeeze(0) if wanted else None
        elif not self.batch_first:
            out = out.swapaxes(0, 1)  # (T, B, E)
        return out, weights if need_weights else None

    def _inputs(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any, bool]:
        """Query, key and value as (B, T, E) and so on, and whether they came in a batch; one object
        stays one.
        """
        one_input, one_memory = key is query, value is key
        query = floating(query, self)
        key = query if one_input else floating(key, self)
        value = key if one_memory else floating(value, self)
        self._check(query, key, value)
        batched, query = query.ndim == 3, self._batch_first(query)
        key = query if one_input else self._batch_first(key)
        value = key if one_memory else self._batch_first(value)
        return query, key, value, batched

    def _attend_packed(self, x: Any, masked: Any, batched: bool, wanted: bool) -> tuple[Any, Any]:
        """Self-attention by one projection: (B, T, E) -> (B, T, H D), and the weights or None."""
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)  # (B, T, 3 H D)
        sizes = masks.Sizes(packed.shape[0], self.num_heads, packed.shape[1], packed.shape[1])
        mask, is_causal = None, masked[2]
        if masked[0] is not None or masked[1] is not None:
            mask, is_causal = masks.merge(*masked, sizes, batched, dtype=packed.dtype)  # type: ignore
        dropout_p = self.dropout if self.training else 0.0
        shape = (packed.shape[0], self.num_heads, packed.shape[1], packed.shape[1])
        settings: Any = dict(
            scale=1 / math.sqrt(self.head_dim),
            is_causal=is_causal,
            **attention.drawn(shape, dropout_p),
        )
        out = attention.packed_attention(packed, mask, num_heads=self.num_heads, **settings)
        if not wanted:
            return out, None
        heads = attention.unpack_heads(packed, self.num_heads)  # (3, B, H, T, D)
        return out, attention.weights_as_applied(heads[0], heads[1], mask, **settings)

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        masked: Any,
        batched: bool,
        wanted: bool,
        cache: KeyValueCache | None,
    ) -> tuple[Any, Any]:
        """(B, T, E), (B, S, kdim), (B, S, vdim) -> (B, T, H V), and the weights or None."""
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise TypeError(
                "cache= is an nn.KeyValueCache(), one for all tokens of a text, got "
                f"{describe(cache)}."
            )
        own = query is key is value
        q, k, v = self._tokens(query, key, value, own, cache)
        past = cache.past(self) if own and cache is not None else 0
        extra = (self.bias_k is not None) + self.add_zero_attn
        sizes = masks.Sizes(q.shape[0], self.num_heads, q.shape[2], past + k.shape[2])
        mask, is_causal = masks.merge(*masked, sizes, batched, past, extra, q.dtype)  # type: ignore
        if own and cache is not None:  # not before, for a refused mask must leave no token behind
            k, v = cache.extend(self, k, v)
        k, v = self._append(k, v)
        dropout_p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p, is_causal, need_weights=wanted
        )
        out, weights = out if wanted else (out, None)
        return F.merge_heads(out), weights

    def _batch_first(self, x: Any) -> Any:
        """(T, E) or (T, B, E) or (B, T, E) -> (B, T, E)"""
        if x.ndim == 2:
            return x.reshape(1, *x.shape)
        return x if self.batch_first else x.swapaxes(0, 1)

    def _projected(self, which: int, x: Any) -> Any:
        """x projected to queries (0), keys (1) or values (2): (B, T, E) -> (B, H, T, D)"""
        start = sum(self._widths[:which])
        part = slice(start, start + self._widths[which])
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[which]
        weight = apart if self.in_proj_weight is None else self.in_proj_weight[part]
        bias = None if self.in_proj_bias is None else self.in_proj_bias[part]
        return F.split_heads(F.linear(x, weight, bias), self.num_heads)

    def _tokens(
        self, query: Any, key: Any, value: Any, own: bool, cache: KeyValueCache | None
    ) -> tuple[Any, Any, Any]:
        """q (B, H, T, D), k (B, H, S, D), v (B, H, S, V); from the cache the k and v of a memory
        that it has.
        """
        if own and self.in_proj_weight is not None and self.head_dim == self.value_head_dim:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)  # (B, T, 3 H D)
            heads = attention.unpack_heads(packed, self.num_heads)
            return heads[0], heads[1], heads[2]
        q = self._projected(0, query)
        if cache is not None and not own and self in cache:
            return q, *cache.get(self, (key, value))
        k, v = self._projected(1, key), self._projected(2, value)
        if cache is not None and not own:
            cache.keep(self, k, v, (key, value))
        return q, k, v

    def _append(self, k: Any, v: Any) -> tuple[Any, Any]:
        """The learned key and value and the zero ones after the others."""

        def longer(x: Any, token: Any) -> Any:
            return np.concatenate(
                [x, np.broadcast_to(token, (*x.shape[:2], 1, x.shape[-1]))], axis=2
            )

        if self.bias_k is not None:
            tokens = (F.split_heads(token, self.num_heads) for token in (self.bias_k, self.bias_v))
            k, v = map(longer, (k, v), tokens)
        if self.add_zero_attn:
            k, v = (longer(x, np.zeros((), x.dtype)) for x in (k, v))
        return k, v

    def _check(self, query: Any, key: Any, value: Any) -> None:
        """Raise ValueError unless the inputs fit the module and each other."""
        if (
            query is key is value
            and query.ndim in (2, 3)
            and query.shape[-1] == self.embed_dim == self.kdim == self.vdim
        ):
            return  # the usual case, first and quickly
        batched = query.ndim == 3
        batch, time = (0, 1) if batched and self.batch_first else (1, 0)
        if not (query.ndim == key.ndim == value.ndim and query.ndim in (2, 3)):
            problem = (
                "takes three batched inputs, or three unbatched ones (T, E); "
                "x[None] adds a batch of one"
            )
        elif (query.shape[-1], key.shape[-1], value.shape[-1]) != (
            self.embed_dim,
            self.kdim,
            self.vdim,
        ):
            problem = (
                f"was made for a query with last axis {self.embed_dim}, a key with {self.kdim} and "
                f"a value with {self.vdim}; for keys and values of other widths pass kdim= and "
                "vdim= to the constructor"
            )
        elif batched and not query.shape[batch] == key.shape[batch] == value.shape[batch]:
            problem = "needs query, key and value of one batch size"
            if query.shape[time] == key.shape[time] == value.shape[time]:
                problem += (
                    "; they agree on the other axis: did you mean "
                    f"batch_first={not self.batch_first}?"
                )
        elif key.shape[time] != value.shape[time]:
            problem = "needs one value for each key"
        else:
            return
        raise ValueError(
            f"MultiheadAttention {problem}. Got query {describe(query)}, key {describe(key)}, "
            f"value {describe(value)}, read as {'(B, T, E)' if self.batch_first else '(T, B, E)'} "
            f"since batch_first={self.batch_first}."
        )

    def extra_repr(self) -> str:
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        if self.head_dim * self.num_heads != self.embed_dim or self.value_head_dim != self.head_dim:
            text += f", head_dim={self.head_dim}, value_head_dim={self.value_head_dim}"
        return (
            text
            + (f", dropout={self.dropout}" if self.dropout else "")
            + (", batch_first=True" if self.batch_first else "")
        )


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
        wanted = scopes.weights_wanted()
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        out = F.scaled_dot_product_attention(
            q, k, v, None, dropout_p, self.causal, need_weights=wanted
        )
        if wanted:
            out, weights = out
            scopes.leave(weights)
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
        if (
            not query.ndim == key.ndim == value.ndim == 3
            or key.shape[1] != value.shape[1]
            or not query.shape[0] == key.shape[0] == value.shape[0]
        ):
            raise ValueError(
                "AdditiveAttention takes query (B, T, query_dim), key (B, S, key_dim) and "
                f"value (B, S, V), got {describe(query)}, {describe(key)} and {describe(value)}."
            )
        q = self.W_query(query)[:, :, None]  # (B, T, 1, h)
        k = self.W_key(key)[:, None]  # (B, 1, S, h)
        scores = self.w_score(np.tanh(q + k)).squeeze(-1)  # (B, T, S)
        if key_padding_mask is not None:
            sizes = masks.Sizes(query.shape[0], 1, query.shape[1], key.shape[1])
            # (B, 1, 1, S)
            mask = masks.check_key_padding_mask(key_padding_mask, sizes, batched=True)
            scores = scores + masks.blocking(mask[:, 0], scores.dtype)
        weights = self.dropout(masks.softmax(scores))
        if scopes.weights_wanted():
            scopes.leave(weights[:, None])  # as those of one head
        return weights @ value, weights
