"""Threads: several cores for NumPy calls that use only one, and how many of them the matrix
products use.

NumPy lets go of Python's global lock while it works on large arrays, so two Python threads that
each add half of an array finish in half the time. `split` hands out ranges of rows and `tasks`
hands out numbered blocks; both run the first share in the calling thread, and both tell the matrix
library (BLAS) to use one thread meanwhile, since the cores are already taken. A hand-off costs 10
to 60 microseconds, depending on the machine, so callers pass `big=False` for small work. Nothing
here changes a result beyond rounding, and importing this module starts no thread and touches
nothing in the process.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from weakref import ref

import numpy as np

from ..messages.signatures import own_names
from .signals import Signals

__all__ = ["get_num_threads", "reuse_memory", "set_num_threads", "split", "tasks"]


# ---- how many threads

_chosen: int | None = None


@own_names
def set_num_threads(n: int) -> None:
    """Use `n` threads from now on: in the matrix products and in the blocks that the fused
    operations work through.

    Speed only: results agree to rounding for every `n`, and repeat exactly while `n` stays the same
    and one thread of the program calculates at a time (of several, one may keep the matrix library
    at one thread for another). Without this call the number is the one BLAS was started with
    (OPENBLAS_NUM_THREADS, OMP_NUM_THREADS, else the number of cores, which is the most). A matrix
    library other than OpenBLAS is told by threadpoolctl, if that is installed and knows it, else
    not at all; the doctor says so. Raises TypeError if `n` is no integer and ValueError if it is
    below 1. As `torch.set_num_threads`.
    """
    global _chosen
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(
            f"set_num_threads takes an integer, got {type(n).__name__}; write set_num_threads(2)"
        )
    if n < 1:
        raise ValueError(
            f"set_num_threads needs at least one thread, got {n}; write set_num_threads(1) for no "
            "threading"
        )
    _chosen = int(n)
    _inside.choose(_chosen)


def get_num_threads() -> int:
    """The number of threads in use. As `torch.get_num_threads`."""
    global _chosen
    if _chosen is None:
        _chosen = _default()
    return _chosen


def _default() -> int:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return min(int(first), len(_cores()))  # OpenBLAS takes no more itself
    return len(_cores())


def _cores() -> set[int]:
    """The cores this process may use; all that the machine has where the system does not tell."""
    return (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )


# ---- BLAS threads


def _library(path: str | None) -> Any:
    """A C library, or with None the process itself; None where the system or a Python without
    ctypes has none.

    Loaded as a PyDLL, since a CDLL would let go of Python's lock for these short calls, and then
    have to queue for it.
    """
    try:
        import ctypes

        return ctypes.PyDLL(path)
    except (ImportError, OSError, TypeError):  # TypeError: to Windows the process is no library
        return None


class _Blas:
    """Gets and sets the number of threads of NumPy's matrix library; does nothing where that
    library cannot be found.
    """

    def __init__(self) -> None:
        self.get: Callable[[], int] = get_num_threads
        self.set: Callable[[int], Any] = lambda n: None
        self.core, self.found = "", True
        extension = np._core._multiarray_umath.__file__  # type: ignore[attr-defined]
        # Windows looks for a name in the extension alone, not in the library beside it that it was
        # linked with.
        beside = sorted(Path(np.__file__).parent.with_name("numpy.libs").glob("*openblas*"))
        for library in map(_library, (extension, *map(str, beside))):
            # As NumPy's wheels name it.
            for prefix, suffix in product(("scipy_", ""), ("64_", "")):
                getter = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if getter and setter:
                    self.get, self.set = getter, setter
                    name = getattr(library, f"{prefix}openblas_get_corename{suffix}", None)
                    if name:
                        from ctypes import c_char_p

                        name.restype = c_char_p
                        self.core = name().decode()
                    return
        try:
            from threadpoolctl import ThreadpoolController
        except ImportError:
            pools = []
        else:
            pools = ThreadpoolController().select(user_api="blas").lib_controllers
        self.found = bool(pools)
        if pools:
            self.get = lambda: max(pool.num_threads for pool in pools)
            self.set = lambda n: [pool.set_num_threads(n) for pool in pools]
            self.core = getattr(pools[0], "architecture", "") or ""


class _Inside:
    """How many `with one_blas_thread():` are open, and how many threads the matrix library had
    before.
    """

    def __init__(self) -> None:
        self.count = self.before = 0
        # Its own thread may come again: a garbage collection may call __del__ below.
        self.lock = threading.RLock()

    def restart(self) -> None:
        """Nobody is inside; a forked child comes here with what its parent's threads left."""
        self.lock = threading.RLock()
        if self.count:
            _blas().set(self.before)
        self.count = 0

    def choose(self, n: int) -> None:
        """Use n threads outside."""
        with self.lock:
            self.before = n
            if not self.count:
                _blas().set(n)


_inside = _Inside()


class one_blas_thread:
    """`with one_blas_thread():` keeps the matrix library at one thread; as it was when the last one
    inside has left.

    Its own threads go on spinning for 0.1 s after a product, each on a core that then does not
    serve our worker: beside products that are shared out over our threads, a small one that is not
    should not wake them.

    Ctrl-C may come between any two calls, also in here. Then what was begun is ended when this
    object goes away.
    """

    entered = False

    def __enter__(self) -> None:
        with _inside.lock:
            if not _inside.count:
                _inside.before = _blas().get()
            self.entered, _inside.count = True, _inside.count + 1
            _blas().set(1)

    def __exit__(self, *_: object) -> None:
        with _inside.lock:
            if self.entered:
                if _inside.count == 1:
                    _blas().set(_inside.before)
                # In a forked child it is 0 already.
                self.entered, _inside.count = False, max(0, _inside.count - 1)

    def __del__(self) -> None:
        if self.entered:
            self.__exit__()


_found_blas: _Blas | None = None


def _blas() -> _Blas:
    global _found_blas
    if _found_blas is None:
        _found_blas = _Blas()
        # Here, since everything that a fork may break begins with it; a child has both.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_new_pool)
    return _found_blas


def blas_core() -> str:
    """The processor that NumPy's matrix library works for, as OpenBLAS names it; "" where nobody
    tells.
    """
    return _blas().core


def blas_found() -> bool:
    """Whether NumPy's matrix library can be told how many threads to use."""
    return _blas().found


# ---- the workers


class _Turn:
    """Held by the call that has the workers, and by nothing else: when it goes away, they are free.

    A lock would stay locked for ever if Ctrl-C came between getting it and whatever is to release
    it.
    """

    __slots__ = ("__weakref__",)


class _Pool:
    """Waiting threads, and a weak reference to the turn of the call that has them, so that there is
    one at a time.

    Should two calls take their turn in the same instant, both have the workers: each gets its own
    results all the same.
    """

    def __init__(self) -> None:
        self.turn: Callable[[], _Turn | None] = lambda: None
        self.calls: SimpleQueue = SimpleQueue()
        self.signals = Signals()
        self.workers = 0
        self.caller: int | None = None  # the core on which the last caller was,
        self.beside: set[int] = set()  # the ones left for the workers,
        self.cores = 0  # and how many there are altogether

    def grow(self, workers: int) -> None:
        """So many workers, or as many as the system grants: at the interpreter's end none. What
        they leave undone the caller does.
        """
        while self.workers < workers:
            try:
                threading.Thread(
                    target=_work, args=(self.calls, self.signals), daemon=True, name="tinygrad_attn"
                ).start()
            except RuntimeError:
                return
            self.workers += 1

    def keep_off(self) -> None:
        """Keep the workers off the caller's core.

        Linux likes to wake a thread on the core of the one that woke it, and then the two take
        turns there, for many milliseconds, while another core idles.
        """
        core = _core_teller()()
        if core != self.caller:
            cores = _cores()
            self.beside, self.cores = cores - {core} if core in cores else set(), len(cores)
            self.caller = core


def _work(calls: SimpleQueue, signals: Signals) -> None:
    mine: set[int] | None = None
    while True:
        run, done, cores = signals.answer_and_get(calls)
        if cores is not mine:
            mine = cores
            _move_to(cores)
        _answer(run, done)
        del run, done  # an idle worker must not keep arrays alive


def _answer(run: Callable[[], Any], done: SimpleQueue) -> None:
    """Do one part, and put into the queue what went wrong with it, or None."""
    try:
        run()
    except BaseException as error:
        done.put(error)
    else:
        done.put(None)


def _finish(pool: _Pool, done: SimpleQueue, parts: int) -> BaseException | None:
    """Wait until so many parts have ended; returns the last error, if any.

    What no worker has begun by now is done here. Their cores are busy with something else: with
    another library's threads, which may look for work for ten milliseconds after it has ended, or
    with another program.
    """
    with suppress(Empty):
        while True:
            run, whose, _ = pool.calls.get_nowait()
            _answer(run, whose)
    error = None
    try:
        for _ in range(parts):
            error = pool.signals.get_answer(done) or error
        return error
    finally:
        # of a part that was done here the traceback holds this frame: together they would be a
        # cycle
        del error


@cache
def _core_teller() -> Callable[[], int]:
    """The C library's sched_getcpu, found when it is first needed; -1 where nobody tells, or a
    thread cannot be kept off a core.
    """
    return (
        getattr(_library(None), "sched_getcpu", lambda: -1)
        if hasattr(os, "sched_setaffinity")
        else lambda: -1
    )


def _move_to(cores: set[int]) -> None:
    """Let this thread run on these cores only."""
    if cores:
        with suppress(OSError):  # a hint only: a sandbox may forbid it
            os.sched_setaffinity(0, cores)


_pool = _Pool()


def _new_pool() -> None:
    """A forked child has no threads of its parent's, and perhaps a lock nobody will release."""
    global _pool
    _pool = _Pool()
    _inside.restart()


def _together(parts: list[Callable[[], Any]]) -> None:
    """Call every part, the first one here and the others in workers; one after another if the
    workers are taken.
    """
    pool, mine = _pool, _Turn()
    if pool.turn() is not None:  # a nested call, or another thread's: same parts, same results
        # Also when that one has ended, or products would be rounded otherwise.
        with one_blas_thread():
            for part in parts:
                part()
        return
    # Of this call alone: an interrupted call leaves nothing behind.
    done: SimpleQueue = SimpleQueue()
    waiting, error = 0, None
    try:
        pool.turn = ref(mine)
        with one_blas_thread():
            pool.grow(len(parts) - 1)
            pool.keep_off()
            pool.signals.looking = len(parts) <= pool.cores
            try:
                for part in parts[1:]:
                    context = copy_context()  # the caller's, because np.errstate lives there
                    pool.calls.put((partial(context.run, part), done, pool.beside))
                    waiting += 1
                pool.signals.call()
                parts[0]()
            finally:
                error = _finish(pool, done, waiting)
        if error is not None:
            raise error
    finally:
        del mine, error  # as in _finish


def split(f: Callable[[int, int], Any], n: int, big: bool = True) -> None:
    """Call f(lo, hi) for the parts of range(n), one part per thread; in one piece when `big` is
    False.

    An exception in any part reaches the caller after all parts have ended.
    """
    threads = min(get_num_threads(), n) if big else 1
    if threads < 2:
        f(0, n)
        return
    cut = [n * i // threads for i in range(threads + 1)]
    _together([lambda lo=lo, hi=hi: f(lo, hi) for lo, hi in zip(cut[:-1], cut[1:])])  # type: ignore[misc]


def tasks(f: Callable[[int], Any], n: int, big: bool = True) -> None:
    """Call f(0) ... f(n - 1), each taken by the next free thread; in order in this thread when
    `big` is False.

    Tasks must not write to the same place. After an exception no further task is begun, and the
    caller gets it.
    """
    threads = min(get_num_threads(), n) if big else 1
    if threads < 2:
        for i in range(n):
            f(i)
        return
    left = deque(range(n))

    def run() -> None:
        try:
            while True:
                try:
                    i = left.popleft()
                except IndexError:
                    return
                f(i)
        except BaseException:
            left.clear()
            raise

    _together([run] * threads)


# ---- memory


def reuse_memory() -> bool:
    """Ask the C library to keep freed memory for the next array instead of returning it to the
    operating system.

    An array may otherwise arrive as fresh pages that the system must clear. Up to 64 MB are kept
    without this call (see `allocator`); it is for models that take more. It holds for the whole
    process and keeps memory at its peak, which is why it is no default. Returns True if it was
    done, False where the C library is not glibc. Source: mallopt(3).
    """
    libc = _library(None)
    # glibc alone has this name, and these meanings of the numbers.
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    mmap_max, trim_threshold, arena_max = -4, -1, -8
    # No array, however large, has pages of its own, nothing is given back, and all threads draw on
    # one heap. A threshold instead of the first would leave out arrays above 32 MB.
    done = [libc.mallopt(mmap_max, 0), libc.mallopt(trim_threshold, -1), libc.mallopt(arena_max, 1)]
    return all(done)
