"""Masks of the attention modules: checked, and merged into one mask for `functional.attention`.

In the masks of `nn`, True means *blocked*; in `functional.attention`, a query *may* look. In both,
a float mask is added to the scores. B is the batch size, H the number of heads, T the number of
queries and S the number of keys.
"""

import math
from functools import reduce
from operator import add, or_

import numpy as np

from ..engine import Symbolic, array_of, tracked
from ..errors import describe, warn
from ..functional import checks


def _checked(mask, name, shapes, expected):
    """Return the mask as an array, or as a Tensor if it is tracked."""
    array = checks.values(mask)
    if array.dtype.kind not in "bf":
        raise TypeError(
            f"{name} must be boolean (True = blocked) or float (added to the scores), got "
            f"{describe(mask)}. Write mask.astype(bool) if 1 means blocked, otherwise mask == 0."
        )
    if array.shape not in shapes:
        raise ValueError(f"{name} must have the shape {expected}, got {describe(mask)}.")
    return array if tracked(array) else array_of(array)


def _is_causal(mask):
    """Return whether this is the causal mask, for which attention is faster."""
    if tracked(mask) or isinstance(mask, Symbolic) or mask.ndim != 2:
        return False
    blocked = np.tri(*mask.shape) == 0
    return np.array_equal(mask, blocked if mask.dtype == bool else _as_floats(blocked, mask.dtype))


def _as_floats(mask, dtype):
    """Return the mask as floats, with -inf where a boolean mask is True."""
    mask = np.where(mask, -math.inf, 0.0) if mask.dtype == bool else mask
    return mask if mask.dtype == dtype else mask.astype(dtype)


def merge_masks(
    attn_mask, key_padding_mask, is_causal, shape, dtype, batched=True, past=0, extra=0
):
    """Merge the masks of one call into (mask or None, is_causal) for functional.attention.

    `shape` and `dtype` are those of the scores. The shape includes `past` keys from a cache, but
    not the `extra` keys, which are never blocked.
    """
    masks, is_causal = [], bool(is_causal)
    batch, heads, queries, keys = shape
    if attn_mask is not None:
        shapes = (queries, keys), (batch * heads, queries, keys)
        expected = (
            f"(T, S) = {shapes[0]} or (B*H, T, S) = {shapes[1]} (a mask (B, S) is a "
            f"key_padding_mask; for one of shape (B, T, S), write np.repeat(mask, {heads}, axis=0))"
        )
        mask = _checked(attn_mask, "attn_mask", shapes, expected)
        if mask.ndim == 2:
            checks.warn_of_a_doubtful_mask(mask, blocked=True)
        if not past and _is_causal(mask):
            is_causal = True
        else:
            masks.append(mask if mask.ndim == 2 else mask.reshape(shape))
    if key_padding_mask is not None:
        shape = (batch, keys) if batched else (keys,)
        expected = f"(B, S), or (S,) if unbatched; expected {shape}"
        mask = _checked(key_padding_mask, "key_padding_mask", [shape], expected)
        plain = type(mask) is np.ndarray and mask.dtype == bool
        if plain and mask.size and mask.all(axis=-1).any():
            warn(
                "this key_padding_mask blocks every key of a sequence. In nn, True means blocked: "
                "write ~mask if True marks a token in your mask."
            )
        masks.append(mask.reshape(batch, 1, 1, keys))
    if is_causal and (past or extra):
        if keys > past + 1:  # a single new query may look at all keys
            masks.append(~np.tri(queries, keys, past, dtype=bool))
        is_causal = False
    if not masks:
        return None, is_causal
    if all(m.dtype == bool for m in masks):
        total = ~reduce(or_, masks)
    else:
        total = reduce(add, [_as_floats(m, dtype) for m in masks])
    if extra:
        may_look = np.full((*total.shape[:-1], extra), total.dtype == bool, total.dtype)
        total = np.concatenate([total, may_look], axis=-1)
    return total, is_causal
