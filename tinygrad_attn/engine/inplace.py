"""Detect values that were changed in place before a VJP reads them.

NumPy arrays have no version number, so this module keeps version numbers for memory that can
change:

- The package reports its own writes (by an optimiser or `t[i] = v`) with `changed(array)`.
- Assigning `t.data` gives one tensor another array, with `replace`. No memory is written.
- Memory is **lent** while the user holds `t.data`, `t.numpy()` or a view of it. What the user got
  has a checksum from that moment, which is compared when the last view is gone.
- A node keeps checksums of the values that its VJPs read if the user can write to them when the op
  runs: lent memory, and operands that are ndarrays. (Of arrays among the settings, it has copies.)

All events take the next sequence number, so comparing numbers shows whether an event came after the
creation of a node. This module never affects a result.
"""

import math
import zlib
from dataclasses import dataclass
from weakref import finalize

import numpy as np
from numpy import ndarray

from ..errors import describe
from .graph import Symbolic, array_of, next_number
from .run import new_lock

_lock = new_lock()


@dataclass(slots=True)
class Loan:
    """An array to which the user can write, through views that are in use."""

    array: ndarray
    number: int  # of the event when it was handed out
    checksum: int  # at that event
    views: int = 0


lent: dict[int, dict[int, Loan]] = {}
"""The loans of memory, by the id of the array that owns it and the id of the lent array."""

written: dict[int, int] = {}
"""The number of the last write to memory, by the id of the array that owns it."""

latest: float = 0
"""The number of the last write, or infinity while memory is lent. Newer nodes are not compared."""

last_write = latest_replacement = 0
"""The numbers of the last write, and of the last `replace`."""


def has_memory(array):
    """Return whether this is an array in memory rather than a NumPy scalar, number or symbol."""
    return isinstance(array, ndarray) and not isinstance(array, Symbolic)


def owner(array):
    """Return the array that owns the memory, at the end of the chain of views."""
    base = array
    while base is not None:
        array = base if isinstance(base, ndarray) else array
        # A view may come from `hand_out`, or from `as_strided`, whose own object is in the chain.
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return array


def checksum_of(array):
    """Return a checksum of the array's values, which any change of one element changes."""
    return zlib.crc32((array if array.flags.c_contiguous else array.ravel(order="K")).data)


def _event():
    """Return the number of a write that happens now."""
    global latest, last_write
    with _lock:
        last_write = next_number()
        latest = math.inf if lent else last_write
        return last_write


def changed(*arrays):
    """Report that the package has written to these arrays."""
    now = _event()
    for base in map(owner, filter(has_memory, arrays)):
        if id(base) not in written:
            finalize(base, written.pop, id(base), None).atexit = False  # not when Python ends
        written[id(base)] = now


def replace(tensor, array):
    """Give the tensor another array. Tensors that share the memory of either array keep theirs."""
    global latest_replacement
    old = tensor._data
    same_type = array.shape == old.shape and array.dtype == old.dtype
    with _lock:
        latest_replacement = now = _event()
    tensor._replaced = now, replaced(tensor)[1] if same_type else now
    tensor._data = array


def replaced(x):
    """Return the last events that replaced a tensor's array, and the array's shape or dtype."""
    return getattr(x, "_replaced", (0, 0))


def hand_out(array):
    """Return a view of the array for the user, who can write to it as long as the view exists."""
    global latest
    if isinstance(array, Symbolic):
        array.lent = True
    if not has_memory(array):
        return array
    # NumPy looks through arrays for the base of a view, but not through this memoryview. So this
    # view lives until the last view of it is gone.
    view, base = np.asarray(memoryview(array)), owner(array)
    with _lock:
        loans = lent.get(id(base), {})
        loan = loans.get(id(array)) or Loan(array, next_number(), checksum_of(array))
        loan.views += 1
        loans[id(array)] = loan  # also if the last other view has just been collected
        lent[id(base)], latest = loans, math.inf
    finalize(view, _returned, base, loan).atexit = False
    return view


def _returned(base, loan):
    """Record that an array through which the user could write is gone."""
    global latest
    with _lock:
        loan.views -= 1
        if not loan.views:
            del lent[id(base)][id(loan.array)]
        if not lent[id(base)]:
            del lent[id(base)]
        latest = math.inf if lent else last_write
    if not loan.views and _differs(loan):
        changed(base)


def _differs(loan):
    """Return whether the user has written to a lent array."""
    return checksum_of(loan.array) != loan.checksum


def unshared(array):
    """Return a copy, or the array itself if its memory is that of another tensor."""
    return np.array(array) if has_memory(array) and id(owner(array)) not in lent else array


def is_writeable(x):
    """Return whether x is an array in memory that someone can write to, also without NumPy."""
    return has_memory(x) and ((base := owner(x)).flags.writeable or base.base is not None)


def was_changed(array, since):
    """Return whether the package or the user has written to this array after an event."""
    if not has_memory(array):
        return False
    base = owner(array)
    loans = [loan for loan in lent.get(id(base), {}).values() if loan.number > since]
    return written.get(id(base), 0) > since or any(
        np.may_share_memory(loan.array, array) and _differs(loan) for loan in loans
    )


def protect(node, y, operands):
    """Store the checksums of the values that VJPs read and the user can write to."""
    checksums = {}
    for place, value in enumerate((y, *operands)):
        array = array_of(value)
        can_change = (
            is_writeable(array)
            if place and array is value  # an operand that is no tensor
            else lent and has_memory(array) and id(owner(array)) in lent
        )
        if can_change and node.op.reads(node, place, create_graph=True):
            checksums[place] = checksum_of(array)
    node.checksums = checksums or None


def check(y, create_graph):
    """Raise ValueError if a value that the VJPs of y's op will read has been changed in place.

    VJPs also use the shapes and dtypes of other values.
    """
    node, number, checksums = y._node, y._node.number, y._node.checksums or {}
    for place, value in enumerate((y, *node.inputs)):
        replacement, other_type = replaced(value) if latest_replacement > number else (0, 0)
        different = other_type > number
        if not different and node.op.reads(node, place, create_graph):
            array = array_of(value)
            if place in checksums:
                different = checksum_of(array) != checksums[place]
            else:
                different = replacement > number or was_changed(array, number)
        if different:
            role = f"its input {place - 1}" if place else "its own output"
            raise ValueError(
                f"{node.op.__name__} needs {role}, {describe(value)}, for its backward pass, but "
                "this value was changed in place after it was used. Compute a new tensor instead "
                "(x = x + 1, not x.data += 1), change a copy, or call backward() before the change."
            )
