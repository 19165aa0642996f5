"""Attention and its masks.

Shape letters: B batch, H heads, T queries, S keys, E embedding size, D head size, V value size.

Masks: in `scaled_dot_product_attention`, a boolean mask is True where a query *may* look.
`causal_mask` and `padding_mask` make masks for `nn`, where True means *blocked*; `~mask` converts
between the two. A float mask is added to the scores.
"""

import math
from functools import lru_cache

import numpy as np

from .. import ops
from ..engine import array_of, op, reference
from ..errors import describe
from ..tensor import Tensor
from . import checks
from .basic import draw_keep, largest, softmax
from .checks import real

# ---- masks


class BlockedMask(np.ndarray):
    """A boolean array, True where a key is blocked; `causal_mask` and `padding_mask` return it.

    `|`, `&`, indexing and reshaping return a BlockedMask; `~mask` returns a plain array. The class
    lets attention reject a mask that follows the wrong convention.
    """

    __array_priority__ = 1.0

    def __array_wrap__(self, array, context=None, return_scalar=False):
        joins = (np.bitwise_or, np.bitwise_and, np.logical_or, np.logical_and)
        if context is not None and context[0] in joins and array.dtype == bool:
            return array.view(BlockedMask)
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


def causal_mask(length: int) -> BlockedMask:
    """mask[t, s] = s > t, a (length, length) mask for `nn`: True where a key is blocked."""
    return (~np.tri(length, dtype=bool)).view(BlockedMask)


def padding_mask(lengths, max_length: int | None = None) -> BlockedMask:
    """mask[b, s] = s >= lengths[b], for `nn`: True where there is only padding.

    Takes nonnegative integers of shape (B,) and returns booleans of shape (B, max_length). By
    default, max_length is the largest length. Raises ValueError for a length above max_length.
    """
    lengths = checks.integers(lengths, "padding_mask", "lengths")
    longest = int(lengths.max(initial=0))
    max_length = longest if max_length is None else max_length
    if longest > max_length or lengths.min(initial=0) < 0:
        raise ValueError(
            f"padding_mask: lengths must be in [0, max_length = {max_length}], got {lengths}."
        )
    return (np.arange(max_length) >= lengths[..., None]).view(BlockedMask)


# ---- heads


def split_heads(x, num_heads: int) -> Tensor:
    """(B, T, E) -> (B, H, T, E/H): head h gets the h-th part of the last axis.

    Any leading axes are allowed. Raises ValueError if E is not divisible by the number of heads.
    """
    *lead, t, e = x.shape
    return x.reshape(*lead, t, num_heads, e // num_heads).swapaxes(-2, -3)


def merge_heads(x) -> Tensor:
    """(B, H, T, D) -> (B, T, H D): join the heads again. Any leading axes are allowed."""
    *lead, h, t, d = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, t, h * d)


def repeat_heads(x, q, name):
    """Repeat each key or value head to match the number of query heads."""
    *lead, h, s, d = x.shape
    if not h or q.shape[-3] % h:
        raise ValueError(
            "enable_gqa needs the heads on axis -3, and the number of heads of q must be a "
            f"multiple of the number of heads of {name}; got q {describe(q)}, {name} {describe(x)}."
        )
    times = q.shape[-3] // h
    x = ops.broadcast_to(ops.reshape(x, shape=(*lead, h, 1, s, d)), shape=(*lead, h, times, s, d))
    return ops.reshape(x, shape=(*lead, h * times, s, d))


def unpack_heads(packed, num_heads):
    """Split packed q, k and v into heads: (B, T, 3 H D) -> (3, B, H, T, D), a view."""
    b, t, width = packed.shape
    return packed.reshape(b, t, 3, num_heads, width // (3 * num_heads)).transpose(2, 0, 3, 1, 4)


# ---- positions


@lru_cache(maxsize=8)  # all layers ask for the same turns
def _turns(positions: bytes, half: int, base: float, dtype: np.dtype):
    """Return cos and sin of the angles t base^(-i/half), (number of positions, half)."""
    angles = np.frombuffer(positions)[:, None] * base ** (-np.arange(half) / half)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


@op
def rotate(x, *, positions, base):
    """y = (a cos - b sin, b cos + a sin), where a and b are the halves of x's last axis."""
    half = x.shape[-1] // 2
    turns = _turns(positions.astype(np.float64).tobytes(), half, base, x.dtype)
    cos, sin = (turn.reshape(*positions.shape, half) for turn in turns)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@rotate.vjp
def _(g, _y, _x, *, positions, base):
    return rotate(g, positions=-positions, base=base)  # the transpose of a rotation


def rotary(x, positions, base: float = 10000.0) -> Tensor:
    """Rotate the pair (x[i], x[i + D/2]) at position t by the angle t base^(-2i/D).

    x is (..., T, D), and `positions` is (T,) or broadcasts to (..., T). The pairs are those of
    Llama in Hugging Face's library. Raises ValueError if D is odd. (Su et al. 2021,
    arXiv:2104.09864)
    """
    x, positions = real(x, "rotary"), np.array(positions, ndmin=1)
    if x.ndim < 2 or x.shape[-1] % 2 or (*positions.shape, 1)[-2] not in (1, x.shape[-2]):
        raise ValueError(
            "rotary takes x (..., T, D) with an even D, and positions (T,) or (..., T); got x "
            f"{describe(x)}, positions {describe(positions)}."
        )
    return rotate(x, positions=positions, base=float(base))


# ---- attention


@reference
def attention_weights(q, k, mask=None, *, scale, is_causal=False):
    """softmax(q k^T scale + mask) over the keys; a row with all keys blocked is all zeros.

    q is (..., T, D), k is (..., S, D), and mask broadcasts to (..., T, S). A boolean mask is True
    where a query may look; a float mask is added. `is_causal` limits query t to keys 0 .. t.
    Returns (..., T, S).
    """
    scores = ops.matmul(q, ops.swapaxes(k, a=-1, b=-2)) * scale
    return masked_softmax(scores, mask, is_causal)


def masked_softmax(scores, mask=None, is_causal=False):
    """softmax(scores + mask) over the last axis; masks work as in `attention_weights`."""
    may_look = array_of(mask)  # None: every query may look at every key
    if mask is not None and may_look.dtype != bool:
        scores, may_look = scores + mask, may_look != -math.inf
    if is_causal:
        causal = np.tri(*scores.shape[-2:]).astype(bool)
        may_look = causal if mask is None else causal & may_look
    if may_look is not None:
        scores = ops.where(may_look, scores, -math.inf)
    if mask is None:  # then every query sees at least the first key
        return softmax(scores, axis=-1)
    top = largest(scores, -1)
    blind = top == -math.inf  # rows with all keys blocked: every exponential below is 0
    e = ops.exp(scores - np.where(blind, 0, top))
    totals = e.sum(axis=-1, keepdims=True) + blind  # 0 / 1 = 0
    return e / totals


@reference
def attention(q, k, v, mask=None, *, keep=None, keep_scale=1.0, need_weights=False, **settings):
    """softmax(q k^T scale + mask) v: the output, and the weights or None; without argument checks.

    `settings` are those of `attention_weights`. `keep` (..., T, S) is True for the weights that
    dropout keeps, which are multiplied by `keep_scale` = 1 / (1 - p). (..., T, D), (..., S, D),
    (..., S, V) -> output (..., T, V), and the weights (..., T, S) with `need_weights`, else None.
    """
    weights = attention_weights(q, k, mask, **settings)
    if keep is not None:
        weights = weights * (keep * weights.dtype.type(keep_scale))
    output = ops.matmul(weights, v)
    return output, weights if need_weights else None


@reference
def packed_attention(packed, mask=None, *, num_heads, **settings):
    """Attention on packed queries, keys and values: (B, T, 3 H D) -> (B, T, H D), and weights."""
    heads = unpack_heads(packed, num_heads)
    output, weights = attention(heads[0], heads[1], heads[2], mask, **settings)
    return merge_heads(output), weights


def drawn(shape, p):
    """Return `keep` and `keep_scale` for weights of this shape, dropped with probability p."""
    if p == 0:
        return {"keep": None, "keep_scale": 1.0}
    return {"keep": draw_keep(shape, p), "keep_scale": 1 / (1 - p) if p < 1 else 0.0}


def scaled_dot_product_attention(
    q,
    k,
    v,
    attn_mask=None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    need_weights: bool = False,
):
    """softmax(q k^T scale + mask) v: q (..., T, D), k (..., S, D), v (..., S, V) -> (..., T, V).

    scale is 1 / sqrt(D) by default. attn_mask broadcasts to (..., T, S); a boolean mask is True
    where a query *may* look, and a float mask is added to the scores. `is_causal` restricts query t
    to keys 0 .. t, in addition to a mask. A blocked key has a weight of exactly 0, so no output or
    gradient depends on that key as long as its values are finite. A query with all keys blocked
    gets a zero output and no gradient. dropout_p always applies (pass 0.0 when not training). With
    enable_gqa, k and v have fewer heads than q (on axis -3), and each of their heads serves the
    same number of query heads. With need_weights, the weights after dropout (..., T, S) are also
    returned. (Vaswani et al. 2017, arXiv:1706.03762)
    """
    name = "scaled_dot_product_attention"
    q, k, v = (real(x, name) for x in (q, k, v))
    if enable_gqa:
        k, v = repeat_heads(k, q, "k"), repeat_heads(v, q, "v")
    if isinstance(attn_mask, BlockedMask):
        raise ValueError(
            f"{name}: F.causal_mask and F.padding_mask make masks for nn, True where a key is "
            "blocked. Write ~mask."
        )
    mask = None if attn_mask is None else checks.values(attn_mask)
    shape = checks.check_attention(q, k, v, mask)
    if mask is not None and mask.dtype.kind == "f" and mask.dtype != q.dtype:
        mask = mask.astype(q.dtype)
    settings = {
        "scale": 1 / math.sqrt(q.shape[-1] or 1) if scale is None else float(scale),
        "is_causal": is_causal,
        **drawn(shape, dropout_p),
    }
    output, weights = attention(q, k, v, mask, need_weights=need_weights, **settings)
    return (output, weights) if need_weights else output
