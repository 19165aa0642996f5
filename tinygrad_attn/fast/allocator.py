"""What becomes of memory that is given back: it had better be kept for the next array.

A training step makes and frees the same arrays again and again. The C library of Linux gives them
back to the system, and each one that comes next arrives as pages that the system must clear, a
tenth to two fifths of a step. But it learns: once a program has freed an array of some size, up to
32 MB, that counts as usual. What is smaller is then cut from one heap, of whose end up to twice as
much stays when it is free (mallopt(3), on M_MMAP_THRESHOLD). So a program that has happened to load
and free a large array would train faster than one that has not; with `keep_freed` it is the same
for all.
"""

import sys
from contextlib import suppress
from functools import cache

import numpy as np

from . import tuning


@cache
def keep_freed() -> None:
    """Free a large array, once; nobody has touched it, so it took no memory. On Linux only:
    elsewhere there is nothing to learn.
    """
    if sys.platform == "linux":
        with suppress(MemoryError):  # of so little memory nothing need be kept
            np.empty(tuning.FREED, np.uint8)
