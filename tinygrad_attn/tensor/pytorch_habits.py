"""Calls that mean something else in PyTorch than in NumPy, whose meaning a Tensor gives them.

Where such a call would go through with another result than its writer expects, it is said.
"""

from __future__ import annotations

import opcode
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ..messages.errors import describe, warn

_UNCHANGED = {(0, 1), (0, -1), (-2, 1), (-2, -1)}
_UNPACK = opcode.opmap["UNPACK_SEQUENCE"]
_CACHE, _CONSTANT = opcode.opmap["CACHE"], opcode.opmap["LOAD_CONST"]
_SMALL = opcode.opmap.get("LOAD_SMALL_INT")  # Python 3.14 has this, and a subscript is its 26th
_SUBSCRIPT = (opcode.opmap["BINARY_OP"], 26) if _SMALL else (opcode.opmap["BINARY_SUBSCR"], 0)


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


_newest: Callable[[], Any] = lambda: None
"""The newest result of a maximum or minimum along an axis, as long as somebody holds it."""


def values_alone(y: Any, axis: Any = None) -> Any:
    """The result y of a maximum or minimum along one axis; in PyTorch it comes with the indices."""
    global _newest
    if hasattr(y, "_node"):
        _newest = weakref.ref(y)
    if axis is not None and y.ndim and _is_taken_for_a_pair(sys._getframe(3)):
        warn(
            f"t.max(axis)[0] or [1] is an element of {describe(y)}: as in NumPy a maximum or "
            "minimum gives the values alone. Write t.max(axis) for the values, t.argmax(axis) for "
            "the indices; if an element is meant, np.max(t, axis)[0]."
        )
    return y


def _is_taken_for_a_pair(frame: Any) -> bool:
    """Is `[0]` or `[1]` the next that this frame does with the result of the call it is in?"""
    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while code[at] == _CACHE:
        at += 2
    if code[at] not in (_CONSTANT, _SMALL) or tuple(code[at + 2 : at + 4]) != _SUBSCRIPT:
        return False
    index = frame.f_code.co_consts[code[at + 1]] if code[at] == _CONSTANT else code[at + 1]
    return index.__class__ is int and index in (0, 1)


def times_and_axis(t: Any, given: tuple[Any, ...], axis: Any) -> tuple[Any, Any]:
    """The arguments of np.repeat in those of t.repeat; a warning where PyTorch means others.

    PyTorch's `t.repeat(2, 1)` lays the whole tensor side by side, as np.tile does.
    """
    told = (
        f"t.repeat repeats each element of {describe(t)}, as in NumPy. Write np.repeat(t, repeats, "
        f"axis) for that, and np.tile(t, {given}) for PyTorch's repeat, which lays the whole "
        "tensor side by side."
    )
    if len(given) > 2:
        raise TypeError(told)
    if axis is None and all(n.__class__ is int for n in given):
        warn(told)
    return given[0], axis if len(given) == 1 else given[1]


def check_unpacking(t: Any) -> None:
    """Look whether `values, index = t.max(1)` is taking the rows of a maximum for a pair.

    Called by `__iter__`, it asks what the user's code does at this moment: to unpack something into
    two names is an instruction of its own. Raises ValueError where that cannot succeed.
    """
    if _newest() is not t:
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
