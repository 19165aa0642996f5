"""Freed memory that is kept for the next array.

Each training step allocates and frees the same arrays. glibc returns large ones to the system, and
the next ones arrive as pages that the system must clear: a tenth to two fifths of a step.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import numpy as np


@cache
def keep_freed() -> None:
    """Free an array of 31 MB once: glibc then keeps freed arrays up to that size.

    See mallopt(3) on M_MMAP_THRESHOLD. The array is never touched, so it takes no memory.
    """
    if sys.platform == "linux":
        np.empty(31 << 20, np.uint8)


def reuse_memory() -> bool:
    """Ask the C library to keep all freed memory for the next array, for the whole process.

    The process then stays at its peak of memory. Without this call up to 64 MB are kept. Returns
    True if it was done, False where the C library is not glibc. Source: mallopt(3).
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    mmap_max, trim_threshold, arena_max = -4, -1, -8
    # No array has pages of its own, nothing is given back, and all threads share one heap.
    settings = [(mmap_max, 0), (trim_threshold, -1), (arena_max, 1)]
    return all([libc.mallopt(*setting) for setting in settings])
