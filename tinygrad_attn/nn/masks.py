"""The masks of `nn`: which shapes they may have, and how the masks of one call become one.

In `nn` a boolean mask is True where a key is *blocked*; a float mask is added to the scores. For
`F.scaled_dot_product_attention` they become one mask, True where a query *may* look.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add, or_
from typing import Any, NamedTuple

import numpy as np

from .. import functional as F
from ..engine import Symbolic, array_of, tracked
from ..errors import describe, warn
from ..functional.attention import BlockedMask
from ..functional.checks import warn_of_a_doubtful_mask
from ..tensor import Tensor
from ..tensor.convert import ragged


class Sizes(NamedTuple):
    """The sizes of the scores (B, H, T, S) of one attention call."""

    batch: int
    heads: int
    queries: int
    keys: int


def plain_mask(mask: Any, name: str) -> Any:
    """A boolean array, or a floating array or Tensor."""
    if not isinstance(mask, (Tensor, Symbolic)):
        try:
            mask = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask)
        except ValueError as error:
            raise ValueError(f"{name}: {ragged(error)}") from None
    if mask.dtype.kind not in "bf":
        raise TypeError(
            f"{name} is boolean (True = blocked) or float (added to the scores), got "
            f"{describe(mask)}. Where 1 means blocked write mask.astype(bool), where 1 means may "
            "look write mask == 0."
        )
    return mask._data if isinstance(mask, Tensor) and mask.dtype == bool else mask


def is_causal_mask(mask: Any) -> bool:
    """Is this mask (T, T) the causal one? Then attention need not compute what is hidden."""
    if mask is None or tracked(mask):
        return False
    mask = array_of(mask)
    mask = mask if isinstance(mask, Symbolic) else np.asarray(mask)
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or not len(mask):
        return False
    blocked = F.causal_mask(len(mask))
    return bool(
        (mask == (blocked if mask.dtype == bool else np.where(blocked, -math.inf, 0.0))).all()
    )


def check_attn_mask(mask: Any, sizes: Sizes) -> Any:
    """(T, S) or (B*H, T, S) -> (T, S) or (B, H, T, S), of a good dtype."""
    mask, (batch, heads, queries, keys) = plain_mask(mask, "attn_mask"), sizes
    if mask.shape == (queries, keys):
        warn_of_a_doubtful_mask(mask, "attn_mask", blocked=True)
        return mask
    if mask.shape == (batch * heads, queries, keys):
        return mask.reshape(batch, heads, queries, keys)
    hint = ""
    if mask.shape == (batch, queries, keys):
        hint = f" One mask for each sequence is np.repeat(mask, {heads}, axis=0)."
    elif mask.shape == (batch, keys):
        hint = " A mask (B, S) over keys is key_padding_mask."
    elif mask.shape == (keys, queries):
        hint = " Transposed? Rows are queries, columns are keys."
    raise ValueError(
        f"attn_mask must have the shape (T, S) = {(queries, keys)} or (B*H, T, S) = "
        f"{(batch * heads, queries, keys)}, got {describe(mask)}.{hint}"
    )


def check_key_padding_mask(mask: Any, sizes: Sizes, batched: bool) -> Any:
    """(B, S), or (S,) for an unbatched call -> (B, 1, 1, S), of a good dtype."""
    known = isinstance(mask, BlockedMask)
    mask = plain_mask(mask, "key_padding_mask")
    want = (sizes.batch, sizes.keys) if batched else (sizes.keys,)
    if mask.shape != want:
        letters, kind = ("(B, S)", "batched") if batched else ("(S,)", "unbatched")
        hint = (
            " Transpose it, unless it is the layer's batch_first that is wrong."
            if mask.shape == want[::-1]
            else ""
        )
        raise ValueError(
            f"key_padding_mask must have the shape {letters} = {want} for this {kind} input, one "
            f"entry for each key, got {describe(mask)}.{hint}"
        )
    if not known and isinstance(mask, np.ndarray) and mask.dtype == bool and mask.size:
        if mask.all(axis=-1).any():
            warn(
                "this key_padding_mask blocks every key of a sequence, which then gets zeros. In "
                "nn True means blocked: write ~mask if here it stands for a token. Masks of "
                "F.padding_mask(lengths) may have empty sequences without this warning."
            )
    return mask.reshape(sizes.batch, 1, 1, sizes.keys)


def blocking(mask: Any, dtype: Any) -> Any:
    """The mask as numbers of this dtype to add to scores: -inf where a boolean one is True."""
    if mask.dtype == bool:
        return np.where(mask, -math.inf, 0.0).astype(dtype)
    return mask if mask.dtype == dtype else mask.astype(dtype)


def softmax(scores: Any) -> Any:
    """softmax over the last axis; a row of -inf alone has zero weights and no gradient."""
    blind = (scores._data == -math.inf).all(axis=-1, keepdims=True)
    return np.where(blind, 0.0, F.softmax(np.where(blind, 0.0, scores)))


def merge(
    attn_mask: Any,
    key_padding_mask: Any,
    is_causal: bool,
    sizes: Sizes,
    batched: bool,
    past: int = 0,
    extra: int = 0,
    dtype: Any = np.float32,
) -> tuple[Any, bool]:
    """All masks of one call as (mask or None, is_causal), as F.scaled_dot_product_attention's.

    `past` keys came before the first query (from a cache); `extra` keys at the end, which are no
    tokens, are open to every query.
    """
    parts = []
    repeats_is_causal = (
        is_causal
        and not past
        and np.shape(attn_mask) == (sizes.queries, sizes.keys)
        and is_causal_mask(attn_mask)
    )
    if attn_mask is not None and not repeats_is_causal:
        parts.append(check_attn_mask(attn_mask, sizes))
    if key_padding_mask is not None:
        parts.append(check_key_padding_mask(key_padding_mask, sizes, batched))
    if is_causal and (past or extra):
        if sizes.keys > past + 1:  # a single new query may look at all of them
            parts.append(~np.tri(sizes.queries, sizes.keys, past, dtype=bool))
        is_causal = False
    if not parts:
        return None, is_causal
    if all(part.dtype == bool for part in parts):
        total = ~reduce(or_, parts)
    else:
        total = reduce(add, [blocking(part, dtype) for part in parts])
    if extra:
        shape = (*total.shape[:-1], extra)
        may_look = np.ones(shape, bool) if total.dtype == bool else np.zeros(shape, dtype)
        total = np.concatenate([total, may_look], axis=-1)
    return total, is_causal
