"""A value that a derivative still needs must not change under it: a watcher beside the engine.

NumPy arrays carry no version number, so this module keeps one for the few that can change at all:

- the package's own steps in place (an optimiser, `t[i] = v`) report themselves with
  `changed(array)`;
- memory that a user can reach is noted with a checksum: that of a tensor by `hand_out(array)`
  (`t.data`, `t.numpy()`), an ndarray used as an operand by `lend(array)`. Where the package looks
  again and the checksum differs, that is a change too. After a backward pass, and before an
  optimiser's step, what nobody but its tensor holds is taken back.

A change gets the next time of the clock that numbers the records, so "changed after it was used"
reads `last_change(array) > record.number`. A tensor's memory is known by the array that owns it, so
views are covered; of an operand only the part that was used is looked at, which may be 64 rows of a
large data set.

The watcher computes nothing that an answer needs: `context.everywhere.remove(inplace.watcher)`
switches it off, and no result changes.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from ..messages.errors import INNER, describe, quoted
from .graph import Node, Variable, array_of, clock
from .modes import Watcher, everywhere
from .operands import Symbolic
from .reading import reads

LARGE = 1 << 17  # bytes, from where the checksum is made of sums


class Watch:
    """What is known about one piece of memory."""

    __slots__ = ("ref", "changed", "told", "checksum", "place")

    def __init__(self, memory: ndarray) -> None:
        self.ref = _forgotten_from(watched, memory)  # kept so that it can call back
        self.changed = 0  # the time of the last known change,
        self.told = 0  # and of the last one that the package has made itself
        self.checksum: int | None = (
            None  # None: never handed out, so only the package can change it
        )
        self.place: tuple[str, int] | None = None  # the file and line that last got hold of it


watched: dict[int, Watch] = {}
"""By the id of the array that owns the memory, or of an operand."""

handed_out: dict[int, Any] = {}
"""Those of them that users can reach, each with the weak reference that takes it out again."""

latest = 0
"""The time of the latest known change of any memory, or of its being handed out."""

reads_nothing: set[Any] = set()
"""Ops whose rules look at no values, so that their operands need not be watched; ops/ fills it."""

reads_inputs: set[Any] = set()
"""Ops whose rule compares the result and computes only with the inputs: checkpoint."""


def _forgotten_from(known: dict[int, Any], memory: ndarray) -> Any:
    """A weak reference to this memory that takes its id out of `known`: the next array may get the
    same id.

    The callback is no function of Python's, in which an interrupt would be printed and forgotten,
    and the id kept.
    """
    return weakref.ref(memory, partial(known.pop, id(memory)))


def owner(array: ndarray) -> ndarray:
    """The array at the end of the chain of views."""
    while isinstance(array.base, ndarray):
        array = array.base
    return array


def lie_apart(tensors: list[Any]) -> bool:
    """Has each of these memory of its own? After a.data = b.data, each of the two changes what the
    other is.
    """
    return len({id(owner(t._data)) for t in tensors}) == len(tensors)


def _checksum(array: ndarray) -> int:
    if array.dtype.hasobject:
        return 0
    array = array if array.flags.c_contiguous else array.ravel(order="K")
    if array.nbytes < LARGE:
        return zlib.crc32(array.data)
    return _checksum_of_sums(array.view(ndarray).reshape(-1).view(np.uint8))


def _checksum_of_sums(octets: ndarray) -> int:
    """The checksum of the sums of every 509th word and of every 1,021st, in a quarter of the time.

    Both widths are prime, and 255 rows of 1,021 words are fewer than 509 x 1,021, so two words that
    were exchanged never stay in their sums both times. 255 is odd: in an even number of float64 all
    signs, which are the highest bits, could turn and leave the sum as it was.
    """
    whole = octets.size // 8 * 8
    words, found = octets[:whole].view(np.uint64), zlib.crc32(octets[whole:].data)
    for width in (509, 1021):
        whole = words.size // width * width
        rows = words[:whole].reshape(-1, width)
        for start in range(0, len(rows), 255):
            found = zlib.crc32(np.add.reduce(rows[start : start + 255], axis=0).data, found)
        found = zlib.crc32(words[whole:].data, found)
    return found


def _watch(memory: ndarray) -> Watch:
    # setdefault: where two threads come to an array at once, both must find what either has noted.
    return watched.get(id(memory)) or watched.setdefault(id(memory), Watch(memory))


def _place() -> tuple[str, int]:
    """File and line of the innermost caller that is not of this package, nor of NumPy."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(INNER) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _note(memory: ndarray) -> None:
    """Take its checksum, unless that was done, and write down who got hold of it."""
    watch = _watch(memory)
    if id(memory) not in handed_out:
        watch.checksum = _checksum(memory)
        handed_out[id(memory)] = _forgotten_from(handed_out, memory)
    watch.place = _place()


def hand_out(array: ndarray) -> None:
    """Note that the user can now change this tensor's memory."""
    global latest
    if isinstance(array, Symbolic):
        array.lent = True
        return
    memory = owner(array)
    fresh = id(memory) not in handed_out
    try:
        _note(memory)
    finally:  # also after an interrupt, so that whoever asks next finds it noted
        if fresh:
            now = clock()  # after the note: ops of other threads from before it are older than this
            if now > latest:
                latest = now


def lend(array: ndarray) -> None:
    """Watch an array of the user's that an op needs."""
    if id(array) not in handed_out and not isinstance(array, Symbolic):
        memory = owner(array)
        # A broadcast array counts its repeated rows, and so more bytes than its memory has.
        part = array if array.nbytes < memory.nbytes else memory
        if id(part) not in handed_out:
            _note(part)


def changed(*arrays: ndarray) -> None:
    """Note that the memory of these arrays has just been changed in place."""
    global latest
    now, place = clock(), _place()
    if now > latest:  # else another thread has told of a later one
        latest = now
    for array in arrays:
        if isinstance(array, Symbolic):
            continue
        memory = owner(array)
        watch = _watch(memory)
        watch.changed = now if now > watch.changed else watch.changed
        watch.told, watch.place = now if now > watch.told else watch.told, place
        if watch.checksum is not None:
            watch.checksum = _checksum(memory)


class _Holder:
    __slots__ = ("_data",)
    _data: ndarray


_only = _Holder()
_only._data = np.empty(0)
_ALONE = sys.getrefcount(_only._data)
"""The references to an array that nobody but its tensor holds, counted just as `take_back` counts
them.
"""


def take_back(tensors: Iterable[Any]) -> None:
    """Stop watching memory that was handed out once and that by now nobody but its tensor holds."""
    for t in tensors if handed_out else ():
        alone = sys.getrefcount(t._data) <= _ALONE and t._data.base is None
        if id(t._data) in handed_out and alone:
            last_change(t._data)  # another graph may still need to know of one that was made before
            handed_out.pop(id(t._data), None)
            watched[id(t._data)].checksum = None


def last_change(array: Any, at: int | None = None) -> int:
    """The time of the last known change of this memory, 0 for none; looks whether it has changed by
    now.

    A change that is found now was made before the time `at`, or before now.
    """
    global latest
    if not isinstance(array, ndarray) or isinstance(array, Symbolic):
        return 0
    part = watched.get(id(array))
    if part is None and array.base is None:  # as most are
        return 0
    memory = owner(array)
    whole, part = (part, None) if memory is array else (watched.get(id(memory)), part)
    watch, seen = (whole, memory) if part is None else (part, array)
    if watch is None:
        return 0
    known = watch.checksum  # once: another thread may take the memory back meanwhile
    if known is not None:
        now = _checksum(seen)
        if now != known:
            found = clock() if at is None else at
            # Python changes threads at calls, and there is none from here on. If the checksum is
            # already the new one, another thread has found this change too, and may have used the
            # new values since.
            if now != watch.checksum:
                watch.checksum, watch.changed = now, found
                if found > latest:
                    latest = found
    # What else has changed in an operand's memory does not matter, but what the package did there
    # may have been done to this part.
    return watch.changed if part is None or whole is None else max(watch.changed, whole.told)


def place(array: ndarray) -> str:
    """The line that last reached this memory, in brackets, or nothing where that is not known."""
    watch = watched.get(id(array)) or watched.get(id(owner(array)))
    return (
        "" if watch is None or watch.place is None else f" (last reached at {quoted(*watch.place)})"
    )


class Changes(Watcher):
    """Looks at what users can reach when an op takes it, and again before its rules are called."""

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        """Notice what has changed up to here, and watch the user's arrays that a rule will read."""
        record = result._node
        if record is None or op.stands_for in reads_nothing:
            return
        for given, kept in zip(inputs, record.inputs, strict=True):
            if isinstance(given, Variable):
                if handed_out and last_change(given._data, record.number) > record.number:
                    # Another thread has just found the change that this op has already read.
                    record.number = clock()
            elif isinstance(kept, ndarray):
                last_change(kept, record.number)
                lend(kept)

    def pulling(self, y: Any, g: Any) -> None:
        """Raise if a value that the rules of y's op read was changed in place since they were
        recorded.
        """
        record = y._node
        if (handed_out or latest > record.number) and record.op.stands_for not in reads_nothing:
            _check(y, g, record)

    def finished(self, tensors: Any) -> None:
        """Take back what nobody holds any more."""
        take_back(tensors)


def _check(y: Any, g: Any, record: Node) -> None:
    for i, holder in enumerate((y, *record.inputs)):
        value = array_of(holder)
        if last_change(value) <= record.number or i == 0 and record.op in reads_inputs:
            continue
        # A twin that is differentiated in the op's place reads all.
        twin = isinstance(g, Variable) and record.op.stands_for.reference is not None
        if twin or reads(record, array_of(g), y._data, i):
            role = "its own result" if i == 0 else f"its input {i - 1}"
            raise ValueError(
                f"{record.op.__name__} needs {role}, {describe(holder)}, to be differentiated, but "
                f"that was changed in place after it was used{place(value)}. Compute a new tensor "
                "instead (x = x + 1, not x.data += 1), change a copy, or call backward() before "
                "the change."
            )


watcher = Changes()
everywhere.append(watcher)
