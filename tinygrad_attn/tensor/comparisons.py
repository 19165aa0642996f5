"""Comparisons and the operators of masks: they have no derivative and give plain arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine import Variable
from ..messages.errors import _broadcast_hint, describe

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "~": lambda a, _: ~a,
}


def compared(sign: str, a: Any, b: Any) -> Any:
    """a sign b of the plain values; raises TypeError or ValueError where NumPy cannot."""
    try:
        # A masked array has a _data too, without its mask, so b is asked what it is.
        return SIGNS[sign](a._data, b._data if isinstance(b, Variable) else b)
    except (ValueError, TypeError) as error:
        raise _incomparable(sign, a, b, error) from None


def _incomparable(sign: str, a: Any, b: Any, error: Exception) -> Exception:
    if sign in "&|^~":
        example = "~(t > 0)" if sign == "~" else f"(t > 0) {sign} (t < 1), with brackets"
        return TypeError(
            f"{sign} works on masks, which are boolean, not on {describe(a)}. Write {example}, or "
            "np.where(mask, a, b) to choose by a mask; a sign is changed with -t."
        )
    text = f"{describe(a)} {sign} {describe(b)}: these cannot be compared."
    if isinstance(error, ValueError):
        shapes = [np.shape(getattr(x, "_data", x)) for x in (a, b)]
        return ValueError(f"{text} {_broadcast_hint(shapes)}")
    return TypeError(f"{text} Compare with numbers, arrays or Tensors.")


def comparison(sign: str) -> Callable[[Any, Any], Any]:
    """The operator as a method."""
    return lambda a, b: compared(sign, a, b)


def no_operator(t: Any, other: Any) -> Any:
    """In place of divmod, << and >>, which have no derivative and no meaning for real numbers."""
    raise TypeError(
        f"{describe(t)} has neither divmod nor << nor >>. Write t // n and t % n for divmod(t, n), "
        "t * 2**n for t << n and t // 2**n for t >> n."
    )
