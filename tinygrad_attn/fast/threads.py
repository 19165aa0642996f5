"""Threads for work that NumPy does in one thread, the number of BLAS threads, and freed memory.

Rows, heads or blocks of parameters are divided among a pool of Python threads, since NumPy releases
the interpreter lock inside large calls. Meanwhile, OpenBLAS uses only one thread, because its own
threads spin for a while after each product and would compete with ours. If the number of BLAS
threads cannot be set, only BLAS uses threads.

Each training step allocates and frees the same arrays. glibc returns large arrays to the system,
which must then clear new pages in the next step. That takes 10 to 40 % of the step's time.
"""

import ctypes
import os
import sys
import threading
from collections import deque
from contextvars import copy_context
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from ..engine.run import new_lock
from ..errors import describe, is_integer
from . import tuning

_chosen: int | None = None


def set_num_threads(n: int) -> None:
    """Use n threads in matrix products and kernels. Like `torch.set_num_threads`.

    Results agree up to rounding for all n, and repeat exactly for the same n. The default is
    OPENBLAS_NUM_THREADS, OMP_NUM_THREADS or the number of cores. This requires a NumPy with
    OpenBLAS. Raises ValueError unless n is an integer of at least 1.
    """
    global _chosen
    if not is_integer(n) or n < 1:
        raise ValueError(f"set_num_threads needs an integer of at least 1, got {describe(n)}.")
    _chosen = int(n)
    if blas := _blas():
        blas[1](_chosen)


def get_num_threads() -> int:
    """Return the number of threads in use. Like `torch.get_num_threads`."""
    global _chosen
    if _chosen is None:  # OpenBLAS has already read the environment and counted the cores
        _chosen = _blas()[0]() if _blas() else 1
    return _chosen


@cache
def _blas():
    """Return the functions that get and set OpenBLAS's number of threads, or None."""
    extension = np._core._multiarray_umath.__file__
    beside = Path(np.__file__).parent.with_name("numpy.libs").glob("*openblas*")
    for path in (extension, *map(str, beside)):
        library = ctypes.PyDLL(path)  # keeps the interpreter lock: these calls are short
        for prefix, suffix in product(("scipy_", ""), ("64_", "")):
            names = (f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set"))
            get, set_ = (getattr(library, name, None) for name in names)
            if get and set_:
                return get, set_
    return None


class _OneBlasThread:
    """A context manager that limits BLAS to one thread, for any thread. It can be nested."""

    def __init__(self):
        self.lock = new_lock()
        self.before = []  # the numbers of threads to restore; all but the first are 1

    def __enter__(self):
        with self.lock:
            self.before.append(_blas()[0]())
            _blas()[1](1)

    def __exit__(self, *_):
        with self.lock:
            _blas()[1](self.before.pop())


one_blas_thread = _OneBlasThread()


def workers(big=True):
    """Return how many threads to use: one, unless the work is big and BLAS can be limited."""
    return get_num_threads() if big and _blas() else 1


def dot(a, b):
    """Return a.dot(b), using one BLAS thread if BLAS would otherwise compete with our threads."""
    if max(a.size, b.size) < tuning.SMALL_DOT or workers() == 1:
        return a.dot(b)
    with one_blas_thread:
        return a.dot(b)


@cache
def _pool(threads: int, process: int):
    """Return a pool of threads, which a forked child process does not share."""
    from concurrent.futures import ThreadPoolExecutor  # takes 10 ms to import

    return ThreadPoolExecutor(threads, "tinygrad_attn")


_taken = threading.Lock()  # held by the call whose tasks run in the pool


def tasks(f, n, big=True):
    """Call f(0), ..., f(n - 1), each in the next free thread, or all in this thread if not big."""
    threads = min(workers(big), n)
    if threads < 2 or not _taken.acquire(blocking=False):
        for i in range(n):
            f(i)
        return
    left = deque([*range(n), *[None] * threads])  # each thread ends at a None

    def run():
        for i in iter(left.popleft, None):
            f(i)

    try:
        with one_blas_thread:
            submit = _pool(threads - 1, os.getpid()).submit
            # In the caller's context, where NumPy keeps errstate.
            others = [submit(copy_context().run, run) for _ in range(threads - 1)]
            try:
                run()
            finally:
                errors = [other.exception() for other in others]  # waits for each
            for error in filter(None, errors):
                raise error
    finally:
        _taken.release()


def split(f, n, big=True):
    """Call f(start, stop) for consecutive parts of range(n), one for each thread."""
    count = max(1, min(workers(big), n))
    cuts = [n * i // count for i in range(count + 1)]
    tasks(lambda i: f(cuts[i], cuts[i + 1]), count, big)


# ---- freed memory is kept for the next array


@cache
def keep_freed():
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
