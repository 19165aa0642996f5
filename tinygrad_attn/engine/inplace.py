"""Detect values that were changed in place before a VJP reads them.

NumPy arrays have no version number, so this module keeps version numbers for memory that can
change:

- The package reports its own writes (by an optimiser or `t[i] = v`) with `changed(array)`.
- Memory that the user can write to gets a checksum: a tensor's memory when `t.data` or `t.numpy()`
  returns it, and an ndarray when an op takes it as an operand. A node keeps the checksums of such
  operands, and they are compared before its VJPs run.

Both kinds of event take the next sequence number, so comparing numbers shows whether an event came
after the creation of a node. This module never affects a result.
"""

from __future__ import annotations

import zlib
from typing import Any
from weakref import ref

from numpy import ndarray

from ..errors import describe
from .graph import Node, Symbolic, Variable, array_of, next_number


class Memory:
    """What is known about writes to the memory of an array."""

    __slots__ = ("alive", "written", "handed_out", "checksum")

    def __init__(self, base: ndarray) -> None:
        key = id(base)

        def forget(_: Any) -> None:
            known.pop(key, None)
            exposed.discard(key)

        self.alive = ref(base, forget)
        self.written = 0  # the number of the last reported write
        self.handed_out = 0  # the number of the first hand-out to the user, or 0
        self.checksum = 0  # at the first hand-out


known: dict[int, Memory] = {}
"""All Memory objects, by the id of the array that owns the memory."""

exposed: set[int] = set()
"""The ids of memory-owning arrays that the user can write to."""

latest = 0
"""The number of the last event. Newer nodes need no comparison."""


def has_memory(array: Any) -> bool:
    """Return whether this is an array in memory rather than a NumPy scalar, number or symbol."""
    return isinstance(array, ndarray) and not isinstance(array, Symbolic)


def owner(array: ndarray) -> ndarray:
    """Return the array that owns the memory, at the end of the chain of views."""
    while isinstance(array.base, ndarray):
        array = array.base
    return array


def checksum_of(array: ndarray) -> int:
    """Return the CRC-32 of the array's values."""
    return zlib.crc32((array if array.flags.c_contiguous else array.ravel(order="K")).data)


def memory_of(array: ndarray) -> Memory:
    """Return the Memory object of this array, creating it if needed."""
    base = owner(array)
    return known.get(id(base)) or known.setdefault(id(base), Memory(base))


def changed(*arrays: ndarray) -> None:
    """Report that the package has written to these arrays."""
    global latest
    number = latest = next_number()
    for array in arrays:
        if has_memory(array):
            memory_of(array).written = number


def hand_out(array: ndarray) -> None:
    """Record that the user can write to this array from now on."""
    global latest
    if isinstance(array, Symbolic):
        array.lent = True
    if not has_memory(array):
        return
    memory = memory_of(array)
    if not memory.handed_out:
        memory.checksum = checksum_of(owner(array))
        exposed.add(id(owner(array)))
        memory.handed_out = latest = next_number()


def protect(node: Node, reads: frozenset[int] | None) -> None:
    """Store the checksums of the operands that VJPs read and the user can write to.

    `reads` contains the positions of the inputs that are read, counted from 1; None means all.
    """
    for i, x in enumerate(node.inputs, 1):
        if reads is not None and i not in reads:
            continue
        array = array_of(x)
        if not has_memory(array):
            continue
        if isinstance(x, Variable) and id(owner(array)) not in exposed:
            continue
        if node.checksums is None:
            node.checksums = {}
        node.checksums[i] = checksum_of(array)


def check(y: Variable, reads: frozenset[int] | None) -> None:
    """Raise ValueError if a value read by the VJPs of y's op has been changed in place."""
    node = y._node
    for i, holder in enumerate((y, *node.inputs)):
        array = array_of(holder)
        if not has_memory(array) or reads is not None and i not in reads:
            continue
        before = node.checksums and node.checksums.get(i)
        if before is not None:
            different = checksum_of(array) != before
        else:
            memory = known.get(id(owner(array)))
            different = memory is not None and (
                memory.written > node.number
                or memory.handed_out > node.number
                and checksum_of(owner(array)) != memory.checksum
            )
        if different:
            role = f"its input {i - 1}" if i else "its own output"
            raise ValueError(
                f"{node.op.__name__} needs {role}, {describe(holder)}, for its backward pass, but "
                "this value was changed in place after it was used. Compute a new tensor instead "
                "(x = x + 1, not x.data += 1), change a copy, or call backward() before the "
                "change."
            )
