"""Masks of the attention modules: checked, and merged into one mask for `functional.attention`.

In the masks of `nn`, True means *blocked*; in `functional.attention`, a query *may* look. In both,
a float mask is added to the scores. B is the batch size, H the number of heads, T the number of
queries and S the number of keys.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add, or_

import numpy as np

from ..engine import Symbolic, tracked
from ..errors import describe, warn
from ..functional import checks
from ..functional.attention import BlockedMask
from ..tensor import Tensor


def _checked(mask, name):
    """Return the mask as an array, or as a Tensor if it is tracked."""
    mask = checks.values(mask)
    if mask.dtype.kind not in "bf":
        raise TypeError(
            f"{name} must be boolean (True = blocked) or float (added to the scores), got "
            f"{describe(mask)}. Write mask.astype(bool) if 1 means blocked, otherwise mask == 0."
        )
    return mask._data if isinstance(mask, Tensor) and not tracked(mask) else mask


def _is_causal(mask):
    """Return whether this is the causal mask, for which attention is faster."""
    if tracked(mask) or isinstance(mask, Symbolic) or mask.ndim != 2:
        return False
    blocked = np.tri(*mask.shape) == 0
    return np.array_equal(mask, blocked if mask.dtype == bool else _as_floats(blocked, mask.dtype))


def _check_attn_mask(mask, shape):
    """(T, S) or (B*H, T, S) -> (T, S) or (B, H, T, S)."""
    mask, (batch, heads, queries, keys) = _checked(mask, "attn_mask"), shape
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


def _check_key_padding_mask(mask, batch, keys, batched=True):
    """(B, S), or (S,) for an unbatched call -> (B, 1, 1, S)."""
    intended = isinstance(mask, BlockedMask)
    mask = _checked(mask, "key_padding_mask")
    shape = (batch, keys) if batched else (keys,)
    if mask.shape != shape:
        raise ValueError(
            f"key_padding_mask must have the shape (B, S), or (S,) if unbatched; expected {shape}, "
            f"got {describe(mask)}."
        )
    if not intended and isinstance(mask, np.ndarray) and mask.dtype == bool and mask.size:
        if mask.all(axis=-1).any():
            warn(
                "this key_padding_mask blocks every key of a sequence. In nn, True means blocked: "
                "write ~mask if True marks a token in your mask."
            )
    return mask.reshape(batch, 1, 1, keys)


def _as_floats(mask, dtype):
    """Return the mask as floats, with -inf where a boolean mask is True."""
    mask = np.where(mask, -math.inf, 0.0) if mask.dtype == bool else mask
    return mask if mask.dtype == dtype else mask.astype(dtype)


def merge_masks(
    attn_mask, key_padding_mask, is_causal, shape, dtypes, batched=True, past=0, extra=0
):
    """Merge the masks of one call into (mask or None, is_causal) for functional.attention.

    `shape` is the shape of the scores, and `dtypes` are the dtypes that they are computed from. The
    shape includes `past` keys from a cache, but not the `extra` keys, which are never blocked.
    """
    masks, is_causal = [], bool(is_causal)
    batch, _, queries, keys = shape
    if attn_mask is not None:
        mask = _check_attn_mask(attn_mask, shape)
        if not past and _is_causal(mask):
            is_causal = True
        else:
            masks.append(mask)
    if key_padding_mask is not None:
        masks.append(_check_key_padding_mask(key_padding_mask, batch, keys, batched))
    if is_causal and (past or extra):
        if keys > past + 1:  # a single new query may look at all keys
            masks.append(~np.tri(queries, keys, past, dtype=bool))
        is_causal = False
    if not masks:
        return None, is_causal
    if all(m.dtype == bool for m in masks):
        total = ~reduce(or_, masks)
    else:
        dtype = np.result_type(*dtypes)
        total = reduce(add, [_as_floats(m, dtype) for m in masks])
    if extra:
        may_look = np.full((*total.shape[:-1], extra), total.dtype == bool, total.dtype)
        total = np.concatenate([total, may_look], axis=-1)
    return total, is_causal
