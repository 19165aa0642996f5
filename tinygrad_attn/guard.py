"""A value that a derivative still needs must not change under it.

NumPy arrays carry no version number, so this module keeps one for the few that can change at all:

- the package's own in-place steps (an optimiser, `t[i] = v`) report themselves with `changed(array)`;
- memory that a user can reach (`t.data`, `t.numpy()`, an ndarray used as an operand) is noted by `hand_out(array)`, which
  takes a checksum; whenever the package looks again and the checksum differs, that too counts as a change.  After a backward
  pass, and before a step of an optimiser, what nobody but its tensor holds any more is taken back.

Either way a change becomes a tick of the same clock that numbers the recorded ops, and `last_change(array) > node.tick`
reads "changed after it was used".  Arrays are known by the array that owns their memory, so views are covered.  Tensors whose
memory was never handed out, which is nearly all of them, cost nothing.
"""

from __future__ import annotations

import os
import sys
import weakref
import zlib
from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np
from numpy import ndarray

from .errors import describe

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

tick = count(1).__next__
"""The clock of the package: every recorded op and every known change takes the next number."""


class Watch:
    """What is known about one piece of memory."""

    __slots__ = ("ref", "changed", "checksum", "place")

    def __init__(self, memory: np.ndarray) -> None:
        key = id(memory)
        known, reachable = watched, handed_out       # held here: at the interpreter's end module globals are gone

        def forget(_: Any) -> None:
            known.pop(key, None)
            reachable.discard(key)

        self.ref = weakref.ref(memory, forget)
        self.changed = 0                             # tick of the last known change
        self.checksum: int | None = None             # None: never handed out, so only the package can change it
        self.place: tuple[str, int] | None = None    # file and line that last got hold of it


watched: dict[int, Watch] = {}     # by id of the array that owns the memory
handed_out: set[int] = set()       # those of them that users can reach
latest = 0                        # tick of the latest known change of any memory


def owner(array: np.ndarray) -> np.ndarray:
    """The array at the end of the chain of views."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _checksum(array: np.ndarray) -> int:
    if array.dtype.hasobject:
        return 0
    return zlib.crc32((array if array.flags.c_contiguous else array.ravel(order="K")).data)


def _watch(array: np.ndarray) -> Watch:
    memory = owner(array)
    watch = watched.get(id(memory))
    if watch is None:
        watch = watched[id(memory)] = Watch(memory)
    return watch


def _place(depth: int) -> tuple[str, int]:
    """The caller `depth` frames above the function that asks, or the first one further up that is outside this package."""
    frame = sys._getframe(depth + 1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def hand_out(array: np.ndarray, depth: int = 2) -> None:
    """Note that the caller `depth` frames up can now change this memory."""
    watch = _watch(array)
    if watch.checksum is None:
        watch.checksum = _checksum(owner(array))
        handed_out.add(id(owner(array)))
    watch.place = _place(depth)


def lend(array: np.ndarray) -> None:
    """Watch an array of the user's that an op needs; where it is watched already, as in a loop, that is quickly said."""
    if (id(array) if array.base is None else id(owner(array))) not in handed_out:
        hand_out(array, depth=3)


def changed(*arrays: np.ndarray, depth: int = 2) -> None:
    """Note that the memory of these arrays has just been changed in place."""
    global latest
    latest, place = tick(), _place(depth)
    for array in arrays:
        watch = _watch(array)
        watch.changed, watch.place = latest, place
        if watch.checksum is not None:
            watch.checksum = _checksum(owner(array))


class _Holder:
    __slots__ = ("_data",)
    _data: np.ndarray


_only = _Holder()
_only._data = np.empty(0)
_ALONE = sys.getrefcount(_only._data)      # of an array that nobody but its tensor holds, counted just as below


def take_back(tensors: Iterable[Any]) -> None:
    """Stop watching memory that was handed out once and that by now nobody but its tensor holds."""
    for t in tensors if handed_out else ():
        if id(t._data) in handed_out and sys.getrefcount(t._data) <= _ALONE and t._data.base is None:
            last_change(t._data)                     # made while it was held: another graph may still need the old values
            handed_out.discard(id(t._data))
            watched[id(t._data)].checksum = None


def last_change(array: Any) -> int:
    """The tick of the last known change of this memory, 0 for none; looks whether it has changed just now."""
    global latest
    if not isinstance(array, np.ndarray):
        return 0
    watch = watched.get(id(array) if array.base is None else id(owner(array)))
    if watch is None:
        return 0
    if watch.checksum is not None:
        now = _checksum(owner(array))
        if now != watch.checksum:
            watch.checksum = now
            watch.changed = latest = tick()
    return watch.changed


def look(arrays: Iterable[Any]) -> None:
    """Notice changes made so far to those of the arrays that users can reach."""
    for array in arrays:
        if array.__class__ is ndarray:
            memory = array
            while memory.base.__class__ is ndarray:
                memory = memory.base
            if id(memory) in handed_out:
                last_change(memory)


def place(array: np.ndarray) -> str:
    """` (last changed or handed out at FILE:LINE)`, or nothing where that is not known."""
    watch = watched.get(id(owner(array)))
    return "" if watch is None or watch.place is None else f" (last reached at {watch.place[0]}:{watch.place[1]})"


def check(t: Any, g: Any) -> None:
    """Raise if a value that the rule behind t reads was changed in place after t was recorded."""
    if not t._record[1].reads:
        return
    since, inputs = t._record[0], t._record[6:]
    values = [t._data]
    for x in inputs:
        values.append(getattr(x, "_data", x))
    look(values)
    if latest <= since:
        return
    for i, value in enumerate(values):
        if last_change(value) <= since:
            continue
        node, holder = t._node, (t, *inputs)[i]
        if _reads(node, getattr(g, "_data", g), values, i):
            role = "its own result" if i == 0 else f"its input {i - 1}"
            raise ValueError(f"{node.op.__name__} needs {role}, {describe(holder)}, to be differentiated, but that was changed in "
                             f"place after it was used{place(value)}. Compute a new tensor instead (x = x + 1, not x.data += 1), "
                             "change a copy, or call backward() before the change.")


def _reads(node: Any, g: Any, values: list[Any], which: int) -> bool:
    """Does the rule depend on this value?  Only then does a change matter; add's rule, say, reads nothing."""
    op, value = node.op, values[which]
    if op.joint is not None or op.saves:
        return True
    for other in (value * 0, ~value if value.dtype.kind == "b" else -value - 1):
        trial = [*values[:which], other.astype(value.dtype), *values[which + 1:]]
        for rule, x in zip(op.partials, node.inputs, strict=False):
            if rule is not None and getattr(x, "_tracked", False):
                with np.errstate(all="ignore"):
                    before, after = (np.asarray(rule(g, *v, **node.static)) for v in (values, trial))
                if not np.array_equal(before, after, equal_nan=True):
                    return True
    return False
