"""A value that a derivative still needs must not change under it.

NumPy arrays carry no version number, so this module keeps one for the few that can change at all:

- the package's own in-place steps (an optimiser, `t[i] = v`) report themselves with `changed(array)`;
- memory that a user can reach is noted with a checksum, that of a tensor by `hand_out(array)` (`t.data`, `t.numpy()`) and an
  ndarray used as an operand by `lend(array)`; whenever the package looks again and the checksum differs, that too counts as a
  change.  After a backward pass, and before a step of an optimiser, what nobody but its tensor holds any more is taken back.

Either way a change becomes a tick of the same clock that numbers the recorded ops, and `last_change(array) > node.tick`
reads "changed after it was used".  A tensor's memory is known by the array that owns it, so views are covered; of an operand
only the part that was used is looked at, which may be 64 rows of a large data set.  An op whose operands can be reached is marked
as WATCHED when it is recorded; the others, nearly all, are looked at only if memory was handed out or changed since then.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from bisect import bisect
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy import ndarray

from ..messages.errors import INNER, describe, quoted

LARGE = 1 << 17  # bytes, from where the checksum is made of sums
TURNS = 64  # so many times that a tensor was frozen and thawed are known, the latest

tick = count(1).__next__
"""The clock of the package: every recorded op and every known change takes the next number."""


class Watch:
    """What is known about one piece of memory."""

    __slots__ = ("ref", "changed", "told", "checksum", "place")

    def __init__(self, memory: np.ndarray) -> None:
        self.ref = _forgotten_from(watched, memory)
        self.changed = self.told = (
            0  # tick of the last known change, and of the last one by the package
        )
        self.checksum: int | None = (
            None  # None: never handed out, so only the package can change it
        )
        self.place: tuple[str, int] | None = None  # file and line that last got hold of it


watched: dict[int, Watch] = {}  # by id of the array that owns the memory, or of the operand
handed_out: dict[
    int, Any
] = {}  # those of them that users can reach, each with the weak reference that takes it out
# By id of a tensor: its weak reference, when it was frozen and thawed by turns, and until when that is no longer known.
frozen: dict[int, tuple[Any, tuple[int, ...], int]] = {}
latest = 0  # tick of the latest known change of any memory, of its being handed out, or of a tensor's being thawed


def _forgotten_from(known: dict[int, Any], memory: np.ndarray) -> Any:
    """A weak reference to this memory; when it goes, so does its id here, for the next array may get the same one."""
    # Called with the reference, pop's default. In a function of Python's Ctrl-C would be printed and forgotten there, and the id stay.
    return weakref.ref(memory, partial(known.pop, id(memory)))


def owner(array: np.ndarray) -> np.ndarray:
    """The array at the end of the chain of views."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def lie_apart(tensors: list[Any]) -> bool:
    """Has each of these memory of its own?  By a.data = b.data two parameters are tied, and each changes what the other is."""
    return len({id(a if a.base is None else owner(a)) for t in tensors for a in (t._data,)}) == len(
        tensors
    )


def _checksum(array: np.ndarray) -> int:
    if array.dtype.hasobject:
        return 0
    array = array if array.flags.c_contiguous else array.ravel(order="K")
    if array.nbytes < LARGE:
        return zlib.crc32(array.data)
    # Sums of every 509th word and of every 1,021st take a quarter of the time. Both are prime and 255 rows of 1,021 words are fewer than
    # 509 x 1,021, so two words that were exchanged never stay in their sums both times. 255 is odd: of an even number of float64 the
    # signs, their highest bits, could all turn and leave the sum as it was.
    octets, whole = array.view(ndarray).reshape(-1).view(np.uint8), array.nbytes // 8 * 8
    words, found = octets[:whole].view(np.uint64), zlib.crc32(octets[whole:].data)
    for width in (509, 1021):
        whole = words.size // width * width
        rows = words[:whole].reshape(-1, width)
        for start in range(0, len(rows), 255):
            found = zlib.crc32(np.add.reduce(rows[start : start + 255], axis=0).data, found)
        found = zlib.crc32(words[whole:].data, found)
    return found


def _watch(memory: np.ndarray) -> Watch:
    # setdefault, since another thread may have come to the same array meanwhile: what one of them notes has to be what both find
    return watched.get(id(memory)) or watched.setdefault(id(memory), Watch(memory))


def _place(inside: int) -> tuple[str, int]:
    """File and line of the first caller not in INNER; the innermost `inside` frames are known to lie within."""
    frame = sys._getframe(inside)
    while frame.f_code.co_filename.startswith(INNER) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _note(memory: np.ndarray) -> None:
    """Take its checksum, unless that was done, and write down who got hold of it."""
    watch = _watch(memory)
    if id(memory) not in handed_out:
        watch.checksum = _checksum(memory)
        handed_out[id(memory)] = _forgotten_from(handed_out, memory)
    watch.place = _place(4)  # with hand_out or lend, and the method or op that called it


def hand_out(array: np.ndarray) -> None:
    """Note that the user can now change this tensor's memory."""
    global latest
    memory = owner(array)
    fresh = id(memory) not in handed_out
    try:
        _note(memory)
    finally:  # also where Ctrl-C comes: the next to ask finds it noted
        if fresh:
            now = tick()  # after the note: ops of other threads that came before it are not marked
            if now > latest:
                latest = now


def lend(array: np.ndarray) -> None:
    """Watch an array of the user's that an op needs; where it is watched already, as in a loop, that is quickly said."""
    if id(array) not in handed_out:
        memory = owner(array)
        part = array if array.nbytes < memory.nbytes else memory  # repeated rows are more
        if id(part) not in handed_out:
            _note(part)


def changed(*arrays: np.ndarray) -> None:
    """Note that the memory of these arrays has just been changed in place."""
    global latest
    now, place = tick(), _place(3)
    if now > latest:  # else another thread has told of a later one; below no max(), a call
        latest = now
    for array in arrays:
        memory = owner(array)
        watch = _watch(memory)
        watch.changed = now if now > watch.changed else watch.changed
        watch.told, watch.place = now if now > watch.told else watch.told, place
        if watch.checksum is not None:
            watch.checksum = _checksum(memory)


class _Holder:
    __slots__ = ("_data",)
    _data: np.ndarray


_only = _Holder()
_only._data = np.empty(0)
_ALONE = sys.getrefcount(
    _only._data
)  # of an array that nobody but its tensor holds, counted just as below


def take_back(tensors: Iterable[Any]) -> None:
    """Stop watching memory that was handed out once and that by now nobody but its tensor holds."""
    for t in tensors if handed_out else ():
        if (
            id(t._data) in handed_out
            and sys.getrefcount(t._data) <= _ALONE
            and t._data.base is None
        ):
            last_change(
                t._data
            )  # made while it was held: another graph may still need the old values
            handed_out.pop(id(t._data), None)
            watched[id(t._data)].checksum = None


def last_change(array: Any) -> int:
    """The tick of the last known change of this memory, 0 for none; looks whether it has changed just now."""
    global latest
    if not isinstance(array, np.ndarray):
        return 0
    memory = array if array.base is None else owner(array)
    whole = watched.get(id(memory))
    part = watched.get(id(array)) if memory is not array else None
    watch, seen = (whole, memory) if part is None else (part, array)
    if watch is None:
        return 0
    known = watch.checksum  # once: another thread may take the memory back meanwhile
    if known is not None:
        now = _checksum(seen)
        if now != known:
            at = (
                tick()
            )  # Python changes threads at calls: there is none between here and the last line
            if (
                now != watch.checksum
            ):  # else another thread has found this change too, and may have used the new values
                watch.checksum, watch.changed = now, at
                if at > latest:
                    latest = at
    # What else changed in the memory of an operand does not matter, but what the package did there may have been done to this part.
    return watch.changed if part is None or whole is None else max(watch.changed, whole.told)


def look(arrays: Iterable[Any]) -> bool:
    """Notice changes made so far to those of the arrays that users can reach, and tell whether there are any."""
    found = False
    for array in arrays:
        if isinstance(array, ndarray):
            memory = array
            while id(memory) not in handed_out and isinstance(memory.base, ndarray):
                memory = memory.base
            if id(memory) in handed_out:
                last_change(array)
                found = True
    return found


def place(array: np.ndarray) -> str:
    """The line that last reached this memory, in brackets, or nothing where that is not known."""
    watch = watched.get(id(array)) or watched.get(id(owner(array)))
    return (
        "" if watch is None or watch.place is None else f" (last reached at {quoted(*watch.place)})"
    )


def switched(t: Any, on: bool) -> bool:
    """Note that this tensor wants gradients from now on, or none; to the ops that use it meanwhile it is a constant."""
    global latest
    if on is not t._tracked:
        now = tick()
        ref, times, unknown = frozen.get(id(t)) or (
            _forgotten_from(frozen, t),
            (0,) if on else (),
            0,
        )
        if len(times) >= 2 * TURNS:
            times, unknown = times[2:], times[1]
        frozen[id(t)] = ref, (*times, now), unknown
        if on and now > latest:
            latest = now
    return on


def _as_used(x: Any, at: int) -> Any:
    """This input of an op that was recorded at that tick: of a tensor that wanted no gradient then the plain array."""
    _, times, unknown = frozen.get(id(x), (None, (), 0))
    if at < unknown:
        raise ValueError(
            f"{describe(x)} was frozen and thawed more than {TURNS} times since it was used here, and whether it wanted a "
            "gradient then is no longer known. Call backward() sooner, or write x.detach() for a part that wants none."
        )
    turn = bisect(times, at)
    return x._data if turn % 2 and turn < len(times) else x


def check(t: Any, g: Any) -> Any:
    """The record of t as it was made; raise if a value that its rule reads was changed in place since then."""
    if frozen and any(id(x) in frozen for x in t._record[6:]):
        t._record = (*t._record[:6], *[_as_used(x, t._record[0]) for x in t._record[6:]])
    if not t._record[1].reads:
        return t._record
    holders = (t, *t._record[6:])
    values = [getattr(x, "_data", x) for x in holders]
    for i, value in enumerate(values):
        if last_change(value) <= t._record[0] or i == 0 and t._record[1].reads == "inputs":
            continue
        node = t._node
        recorded = hasattr(g, "_data")  # then what is differentiated is the twin, which reads all
        if recorded and node.op.twin is not None or _reads(node, getattr(g, "_data", g), values, i):
            role = "its own result" if i == 0 else f"its input {i - 1}"
            raise ValueError(
                f"{node.op.__name__} needs {role}, {describe(holders[i])}, to be differentiated, but that was changed in "
                f"place after it was used{place(value)}. Compute a new tensor instead (x = x + 1, not x.data += 1), "
                "change a copy, or call backward() before the change."
            )
    return t._record


class _Looked(Exception):
    """Somebody wanted the numbers."""


class _Unseen:
    """Stands for an array whose shape and dtype a rule may know, and tells when it looks at the numbers."""

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype, self.ndim, self.size = (
            array.shape,
            array.dtype,
            array.ndim,
            array.size,
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in (
            np.zeros_like,
            np.ones_like,
            np.empty_like,
            np.full_like,
            np.shape,
            np.ndim,
            np.size,
        ):
            raise _Looked
        return function(
            *(np.broadcast_to(np.zeros((), a.dtype), a.shape) if a is self else a for a in args),
            **kwargs,
        )

    def __getattr__(self, name: str) -> Any:
        raise _Looked

    def _look(self, *_: Any, **__: Any) -> Any:
        raise _Looked

    __array__ = __array_ufunc__ = __getitem__ = __iter__ = __bool__ = __float__ = __int__ = (
        __index__
    ) = _look
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = __abs__ = _look
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        __pow__
    ) = __rpow__ = _look
    __matmul__ = __rmatmul__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _look


def _reads(node: Any, g: Any, values: list[Any], which: int) -> bool:
    """Does the rule look at this value?  Only then does a change matter; the rule of a sum, say, looks at shapes alone."""
    op = node.op
    if op.saves:  # what it saved may be the array itself
        return True
    values = [_Unseen(value) if i == which else value for i, value in enumerate(values)]
    wanted = tuple(getattr(x, "_tracked", False) for x in node.inputs)
    try:
        with np.errstate(all="ignore"):
            if op.joint is not None:
                op.joint(
                    g, *values, **node.static, **({"needs": wanted} if op._joint_asks_needs else {})
                )
            for rule, want in zip(op.partials, wanted, strict=False):
                if (
                    want
                    and rule is not None
                    and isinstance(rule(g, *values, **node.static), _Unseen)
                ):
                    return True
    except Exception:  # it looked, or could not do without
        return True
    return False
