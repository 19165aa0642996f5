"""Calls that mean something else in PyTorch than in NumPy, whose meaning a Tensor gives them.

Where such a call would go through with another result than its writer expects, it is said.
"""

from __future__ import annotations

import opcode
import sys
import weakref
from typing import Any

from ..messages.errors import describe, warn

_UNCHANGED = {(0, 1), (0, -1), (-2, 1), (-2, -1)}
_UNPACK = opcode.opmap["UNPACK_SEQUENCE"]


def warn_of_no_transpose(t: Any, axes: tuple[Any, ...]) -> None:
    """Warn of the axes of a matrix in the order that they have already.

    `k.transpose(0, 1)` exchanges two axes in PyTorch; in NumPy it says where each axis comes from.
    """
    if t.ndim == 2 and len(axes) == 2 and axes in _UNCHANGED:
        warn(
            f"transpose{axes} of {describe(t)} changes nothing: as in NumPy it names the axes in "
            "their new order, which is the old one. Write t.mT or t.swapaxes(0, 1) to exchange "
            "the two, as PyTorch's transpose does; if nothing is to change, leave the call out."
        )


class _Newest:
    """The newest result of a maximum or minimum along an axis, as long as somebody holds it."""

    result: Any = staticmethod(lambda: None)


def values_alone(y: Any) -> Any:
    """The result y of a maximum or minimum along one axis; in PyTorch it comes with the indices."""
    if hasattr(y, "_record"):
        _Newest.result = weakref.ref(y)
    return y


def check_unpacking(t: Any) -> None:
    """Look whether `values, index = t.max(1)` is taking the rows of a maximum for a pair.

    Called by `__iter__`, it asks what the user's code does at this moment: to unpack something into
    two names is an instruction of its own. Raises ValueError where that cannot succeed.
    """
    if _Newest.result() is not t:
        return
    frame = sys._getframe(2)
    code, at = frame.f_code.co_code, frame.f_lasti
    if not 0 <= at < len(code) - 1 or (code[at], code[at + 1]) != (_UNPACK, 2):
        return
    text = (
        f"values, index = ... unpacks the rows of {describe(t)}: as in NumPy a maximum or minimum "
        "gives the values alone. Write values = t.max(axis) and index = t.argmax(axis)"
    )
    if len(t) != 2:
        raise ValueError(f"{text}.")
    warn(f"{text}; if two rows are meant, a, b = list(t.max(axis)).")


class ElementCount(int):
    """The number of elements, t.size: an integer that knows what PyTorch's t.size(0) is here."""

    __slots__ = ()

    def __call__(self, axis: Any = None) -> Any:
        raise TypeError(
            "t.size is a number here, as in NumPy: how many elements t has. Write t.shape for "
            "t.size() and t.shape[axis] for t.size(axis)."
        )
