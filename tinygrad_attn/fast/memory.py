"""Keep freed memory for the next array.

Each training step allocates and frees the same arrays. glibc returns large arrays to the system,
which must then clear new pages in the next step. Clearing pages takes 10 to 40 % of the step's
time.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import numpy as np


@cache
def keep_freed() -> None:
    """Free one array of 31 MB, after which glibc keeps freed arrays up to that size.

    See mallopt(3) on M_MMAP_THRESHOLD. The array is never touched, so it takes no memory.
    """
    if sys.platform == "linux":
        np.empty(31 << 20, np.uint8)


def reuse_memory() -> bool:
    """Ask the C library to keep all freed memory for the next array, for the whole process.

    The process's memory use then stays at its peak. Without this call, up to 64 MB are kept.
    Returns True on success and False if the C library is not glibc. Source: mallopt(3).
    """
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return False
    # M_MMAP_MAX: no array gets its own pages. M_TRIM_THRESHOLD: no memory is returned.
    # M_ARENA_MAX: all threads share one heap.
    settings = [(-4, 0), (-1, -1), (-8, 1)]
    return all([ctypes.CDLL(None).mallopt(*setting) for setting in settings])
