"""Which keys a query may not look at: masks for `nn`, where True means *blocked*.

`scaled_dot_product_attention` has the other convention, True = may look. So that neither is taken
for the other, what is made here is a `BlockedMask`: an array that knows what its True means.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..messages.errors import describe, is_integer
from ..messages.signatures import own_names
from .arguments import integers

_KEEP_MEANING = (np.bitwise_or, np.bitwise_and, np.logical_or, np.logical_and)


class BlockedMask(np.ndarray):
    """A boolean array, True where a key is blocked; an ndarray in every other respect.

    Parts of one, reshaped ones, copies and what `|` and `&` make of one and another mask are
    blocked masks too. `~mask` is a plain array, True where a query may look, and so is what all
    other operations give.
    """

    __array_priority__ = 1.0  # what is joined with a plain array stays a mask

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """NumPy asks what the result of one of its functions is to be."""
        plain = array.view(np.ndarray)
        if context is not None and context[0] in _KEEP_MEANING and plain.dtype == bool:
            return plain.view(BlockedMask)
        return plain[()] if return_scalar else plain

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.broadcast_to:  # it would forget the class
            kwargs = {"subok": True, **kwargs}
        return super().__array_function__(function, types, args, kwargs)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """A copy as numbers, which is a plain array; as booleans it stays what it is."""
        copy = super().astype(dtype, *args, **kwargs)
        return copy if copy.dtype == bool else copy.view(np.ndarray)

    def __reduce__(self) -> Any:
        return np.ndarray.view, (np.asarray(self), BlockedMask)


def refuse_blocked(mask: Any, function: str, name: str) -> None:
    """Raise for a mask that is True where a key is blocked, where True means that it is not."""
    if isinstance(mask, BlockedMask) and mask.dtype == bool:
        raise ValueError(
            f"{function}: {name} is True where a query may look, but this mask, {describe(mask)}, "
            "was made by F.causal_mask or F.padding_mask, which make masks for nn: True where a "
            "key is blocked. Write ~mask."
        )


@own_names
def causal_mask(length: int) -> BlockedMask:
    """mask[t, s] = s > t, for `nn`: True where a query must not look, at later positions.

    A boolean array (length, length). Raises ValueError for a length that is no whole number >= 0.
    """
    if not is_integer(length) or length < 0:
        raise ValueError(
            "causal_mask takes the length of the sequence, a whole number such as x.shape[1]; got "
            f"{describe(length)}."
        )
    return (~np.tri(length, dtype=bool)).view(BlockedMask)


@own_names
def padding_mask(lengths: Any, max_length: int | None = None) -> BlockedMask:
    """mask[b, s] = s >= lengths[b], for `nn`: True where there is only padding.

    A boolean array (B, max_length) of lengths (B,), integers >= 0; max_length is the largest of
    them unless given. Raises ValueError for a length beyond it, TypeError for lengths or a
    max_length that are no integers.
    """
    lengths = integers(lengths, "padding_mask", "lengths")
    longest = int(lengths.max(initial=0))
    try:
        max_length = longest if max_length is None else operator.index(max_length)
    except TypeError:
        raise TypeError(
            "padding_mask takes the lengths first, then max_length, a whole number such as "
            f"x.shape[1]; got {describe(max_length)}."
        ) from None
    if longest > max_length or lengths.min(initial=0) < 0:
        raise ValueError(
            f"padding_mask: lengths lie in [0, max_length] = [0, {max_length}], got "
            f"{lengths.tolist()}."
        )
    return (np.arange(max_length) >= lengths[..., None]).view(BlockedMask)
