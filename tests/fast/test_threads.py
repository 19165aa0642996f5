"""Threads: every part is done once, errors come back, and nothing is left behind."""

import gc
import os
import platform
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from tinygrad_attn.fast import signals as waiting
from tinygrad_attn.fast import threads, tuning


@pytest.fixture(autouse=True)
def three_threads():
    before = threads.get_num_threads()
    threads.set_num_threads(3)
    yield
    threads.set_num_threads(before)


def test_split_covers_the_range_once_in_one_part_per_thread():
    seen, where = np.zeros(10, int), set()

    def part(lo, hi):
        seen[lo:hi] += 1
        where.add(threading.get_ident())
        time.sleep(0.02)

    for _ in range(50):  # on a busy machine the caller may do what a worker has not begun in time
        seen[:] = 0
        where.clear()
        threads.split(part, 10)
        assert (seen == 1).all()
        if len(where) == 3:
            break
    assert len(where) == 3
    parts = []
    threads.split(lambda lo, hi: parts.append((lo, hi)), 2)
    assert sorted(parts) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("call", [threads.split, threads.tasks])
def test_small_work_and_no_work_stay_in_this_thread(call):
    where = []
    call(lambda *range: where.append(threading.get_ident()), 5, big=False)
    assert set(where) == {threading.get_ident()}
    call(lambda *range: where.append(range), 0)
    assert set(where[-1:]) <= {(0, 0), threading.get_ident()}


def test_tasks_does_each_once():
    seen = np.zeros(100, int)

    def task(i):
        seen[i] += 1

    threads.tasks(task, 100)
    assert (seen == 1).all()


@pytest.mark.parametrize("bad", [0, 4])
def test_an_error_in_any_part_reaches_the_caller_and_the_pool_still_works(bad):
    def part(lo, hi):
        if lo <= bad < hi:
            raise ZeroDivisionError("here")

    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="here"):
            threads.split(part, 5)
    test_tasks_does_each_once()


@pytest.mark.parametrize("bad", [{0}, {1}, {0, 1}], ids=["the caller's", "a worker's", "both"])
def test_an_error_keeps_nothing_alive_once_it_is_forgotten(busy_worker, bad):
    """The worker is busy, so the caller does both parts: the longest traceback there is."""
    array = np.ones(3)
    alive = weakref.ref(array)

    def part(lo, hi, array=array):
        if lo in bad:
            raise ZeroDivisionError(array.size)

    del array
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            threads.split(part, 2)
        del caught, part
        assert alive() is None
    finally:
        gc.enable()


def test_an_idle_worker_keeps_no_arrays_alive():
    array, both = np.zeros(10), threading.Barrier(2)
    alive = weakref.ref(array)
    threads.split(lambda lo, hi, array=array: both.wait(20), 2)
    del array
    until = time.monotonic() + 5
    while alive() is not None and time.monotonic() < until:  # the worker answers before it lets go
        time.sleep(0.001)
    assert alive() is None


def test_after_an_error_no_further_task_is_begun():
    begun = []

    def task(i):
        begun.append(i)
        if i == 0:
            raise KeyboardInterrupt
        time.sleep(0.005)

    with pytest.raises(KeyboardInterrupt):
        threads.tasks(task, 1000)
    assert len(begun) < 100
    test_tasks_does_each_once()


def test_errstate_of_the_caller_holds_in_every_part():
    states = []

    def part(lo, hi):
        states.append(np.geterr()["over"])
        time.sleep(0.01)

    with np.errstate(over="raise"):
        threads.split(part, 3)
    assert states == ["raise"] * 3


def test_nested_and_concurrent_calls():
    total = np.zeros((4, 30), int)

    def nested(i):
        threads.split(lambda lo, hi: total[i].__setitem__(slice(lo, hi), total[i, lo:hi] + 1), 30)

    threads.tasks(nested, 4)
    assert (total == 1).all()
    users = [threading.Thread(target=lambda i=i: [nested(i) for _ in range(50)]) for i in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(20)
    assert (total == 51).all()


def test_blas_is_single_threaded_meanwhile_and_as_before_afterwards():
    blas = threads._blas()
    before, inside = blas.get(), []
    threads.split(lambda lo, hi: inside.append(blas.get()), 3)
    assert blas.get() == before
    if blas.found and before > 1:
        assert inside == [1, 1, 1]


def test_one_blas_thread_nests_and_a_number_chosen_inside_holds_afterwards():
    blas, before = threads._blas(), threads.get_num_threads()
    threads.set_num_threads(3)
    chosen, inside = blas.get(), []
    with threads.one_blas_thread(), threads.one_blas_thread():
        pass
    assert blas.get() == chosen
    with threads.one_blas_thread():
        with threads.one_blas_thread():
            inside.append(blas.get())
        threads.split(lambda lo, hi: inside.append(blas.get()), 2)
        threads.set_num_threads(before)
        inside.append(blas.get())
    assert blas.get() == before or chosen != 3  # more than this library may use
    if blas.found and chosen == 3:
        assert set(inside) == {1}


@pytest.mark.parametrize("when", ["entering", "leaving"])
def test_an_interrupt_while_entering_or_leaving_leaves_the_matrix_library_as_it_was(
    when, monkeypatch
):
    blas, number, interrupted = threads._blas(), [2], []

    def told(n):
        number[0] = n
        if (n == 1) == (when == "entering") and not interrupted:
            interrupted.append(n)
            raise KeyboardInterrupt

    monkeypatch.setattr(blas, "get", lambda: number[0])
    monkeypatch.setattr(blas, "set", told)
    with pytest.raises(KeyboardInterrupt), threads.one_blas_thread():
        pass
    gc.collect()
    assert interrupted and number == [2] and threads._inside.count == 0


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores and their choice",
)
def test_the_worker_keeps_off_the_callers_core_and_the_caller_is_left_alone():
    before, worker, caller, both = os.sched_getaffinity(0), [], [], threading.Barrier(2)

    def part(lo, hi):
        both.wait(timeout=10)  # a caller that had ended by then would do the worker's part as well
        (worker if lo else caller).append(os.sched_getaffinity(0))

    for core in sorted(before)[:2]:
        os.sched_setaffinity(0, {core})  # to be there, and then free again
        os.sched_setaffinity(0, before)
        threads.split(part, 2)
        assert worker.pop() == before - {threads._pool.caller} and caller.pop() == before
    with pytest.raises(ZeroDivisionError):
        threads.split(lambda lo, hi: 1 / 0, 2)
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def busy_worker(monkeypatch):
    """Two threads, of which the second is busy with something else until the test has ended."""
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    threads.set_num_threads(2)
    threads._pool.grow(1)
    begun, free = threading.Event(), threading.Event()
    threads._pool.calls.put((lambda: (begun.set(), free.wait(30)), SimpleQueue(), set()))
    assert begun.wait(10)
    yield
    free.set()


@pytest.mark.parametrize(
    "run, parts", [(threads.split, [(0, 2), (2, 4)]), (threads.tasks, [(0,), (1,), (2,), (3,)])]
)
def test_what_no_worker_has_begun_is_done_by_the_caller(busy_worker, run, parts):
    done = []
    caller = threading.Thread(
        target=lambda: run(lambda *part: done.append((part, threading.current_thread())), 4),
        daemon=True,
    )
    caller.start()
    caller.join(10)
    assert not caller.is_alive(), "the caller waits for a worker that is busy"
    assert sorted(part for part, _ in done) == parts and {thread for _, thread in done} == {caller}


def test_an_error_in_a_part_that_the_caller_took_over_reaches_it(busy_worker):
    ended = []

    def part(lo, hi):
        ended.append(lo)
        assert np.geterr()["over"] == "raise"  # the caller's settings hold there as well
        if lo:
            raise ZeroDivisionError

    with np.errstate(over="raise"), pytest.raises(ZeroDivisionError):
        threads.split(part, 4)
    assert ended == [0, 2]
    threads.split(lambda lo, hi: ended.append(hi), 4)
    assert ended == [0, 2, 2, 4]


def test_where_no_thread_can_be_started_the_caller_does_it_all(monkeypatch):
    """As at the interpreter's end since Python 3.12, and where a system allows no more of them."""

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", threads._Pool())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        test_tasks_does_each_once()
        parts = []
        threads.split(lambda lo, hi: parts.append((lo, hi)), 3)
        assert sorted(parts) == [(0, 1), (1, 2), (2, 3)]
    test_split_covers_the_range_once_in_one_part_per_thread()


def test_a_call_that_finds_the_workers_taken_has_one_blas_thread_too(monkeypatch):
    """However the other call ends meanwhile: products would else be rounded now one way, now the other."""
    blas, number, inside, taken = threads._blas(), [3], [], threads._Turn()
    monkeypatch.setattr(blas, "get", lambda: number[0])
    monkeypatch.setattr(blas, "set", lambda n: number.__setitem__(0, n))
    monkeypatch.setattr(threads._pool, "turn", weakref.ref(taken))
    threads.split(lambda lo, hi: inside.append(number[0]), 3)
    assert inside == [1, 1, 1] and number == [3]


@pytest.mark.parametrize("more", [False, True], ids=["two threads", "one more than cores"])
def test_nobody_looks_out_where_threads_have_to_share_a_core(more):
    parts = len(threads._cores()) + 1 if more else 2
    threads.set_num_threads(parts)
    threads.split(lambda lo, hi: None, parts)
    assert threads._pool.signals.looking == (parts <= len(threads._cores()))


@pytest.mark.parametrize("asleep", [False, True], ids=["looking", "asleep"])
def test_every_hand_off_arrives_once_and_in_order_whether_the_other_side_looks_or_sleeps(
    asleep, monkeypatch
):
    monkeypatch.setattr(
        tuning, "LOOKS", 1 << 12 if asleep else 1 << 34
    )  # ended by the other thread, or several seconds
    signals, calls, results = waiting.Signals(), SimpleQueue(), SimpleQueue()

    def work():
        for number in iter(lambda: signals.answer_and_get(calls), None):
            if asleep:
                time.sleep(0.002)
            results.put(-number)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    answers = []
    for number in range(1, 21):
        calls.put(number)
        signals.call()
        answers.append(signals.get_answer(results))
        time.sleep(0.001)
    calls.put(None)
    signals.call()
    worker.join(3)  # less than a look that nobody ends
    assert answers == [-number for number in range(1, 21)] and not worker.is_alive()


def test_the_number_is_checked():
    with pytest.raises(ValueError, match="at least one thread, got 0"):
        threads.set_num_threads(0)
    for wrong in (2.0, True, "2"):
        with pytest.raises(TypeError, match="takes an integer"):
            threads.set_num_threads(wrong)
    threads.set_num_threads(np.int64(2))
    assert threads.get_num_threads() == 2


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_starts_nothing_and_the_environment_says_how_many():
    code = (
        "import threading, numpy, tinygrad_attn.fast.threads as t; "
        "print(threading.active_count(), t._found_blas, t._pool.workers, t.get_num_threads())"
    )
    assert python(code, OPENBLAS_NUM_THREADS="", OMP_NUM_THREADS="1") == ["1", "None", "0", "1"]
    assert python(code, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="5")[-1] == "1"


@pytest.mark.parametrize(
    "first, second, number",
    [("4,2", "5", 4), ("0", "5", 5), ("many", "3", 3), ("-2", "", 8), ("64", "", 8)],
)
def test_what_the_environment_may_say(monkeypatch, first, second, number):
    monkeypatch.setattr(threads, "_cores", lambda: set(range(8)))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", first)
    monkeypatch.setenv("OMP_NUM_THREADS", second)
    assert threads._default() == number


MISSING = {
    "ctypes": "sys.modules['ctypes'] = None",
    "a library that opens": """
import ctypes
def refuse(name): raise OSError('cannot load library')
ctypes.PyDLL = ctypes.CDLL = refuse""",
    "affinity": """
for name in ('sched_getaffinity', 'sched_setaffinity', 'register_at_fork'):
    vars(os).pop(name, None)""",
}


@pytest.mark.parametrize("what", MISSING)
def test_where_something_is_missing_that_only_speed_needs_all_the_same_is_done(what):
    code = f"""
import os, sys, threading, numpy.random
sys.modules['threadpoolctl'] = None
{MISSING[what]}
import tinygrad_attn.fast.threads as t
t.set_num_threads(3)
seen, all_three = [], threading.Barrier(3)
t.split(lambda lo, hi: (all_three.wait(), seen.append(hi - lo)), 9)
print(*seen, t.get_num_threads(), t.reuse_memory(), t.blas_found())"""
    *told, reused, found = python(code)
    assert told == ["3"] * 4
    assert what == "affinity" or (reused, found) == ("False", "False")


@pytest.mark.skipif(
    not list(Path(np.__file__).parent.with_name("numpy.libs").glob("*openblas*")),
    reason="NumPy's wheel only",
)
def test_the_matrix_library_is_found_beside_numpy_where_names_are_not_looked_for_in_what_an_extension_uses(
    monkeypatch,
):
    """As on Windows."""
    library = threads._library
    monkeypatch.setattr(
        threads, "_library", lambda path: None if "_multiarray_umath" in path else library(path)
    )
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    blas, before = threads._Blas(), threads._blas().get()
    try:
        blas.set(1)
        assert blas.found and threads._blas().get() == 1 and blas.core == threads.blas_core()
    finally:
        threads._blas().set(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_threads_of_its_own():
    code = """
import os, tinygrad_attn.fast.threads as t
t.set_num_threads(2)
seen = []
t.split(lambda lo, hi: seen.append(lo), 2)
child = os.fork()
if child == 0:
    t.split(lambda lo, hi: seen.append(lo), 2)
    os._exit(0 if len(seen) == 4 else 1)
print(os.waitpid(child, 0)[1])
"""
    assert python(code) == ["0"]


def test_reuse_memory_says_whether_it_did_and_changes_no_result():
    code = (
        "import numpy as np, tinygrad_attn.fast.threads as t; a = np.arange(1e6).sum(); done = t.reuse_memory(); "
        "print(done, np.arange(1e6).sum() == a)"
    )
    done, same = python(code)
    assert done in ("True", "False") and same == "True"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts Linux's page faults")
@pytest.mark.parametrize("megabytes", [8, 100])
def test_memory_that_is_reused_is_not_cleared_again_however_large_the_array(megabytes):
    code = f"""
import resource, numpy as np, tinygrad_attn.fast.threads as t
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    before = faults()
    np.ones({megabytes} << 20, np.int8)
    return faults() - before
use()
fresh = use()
print(t.reuse_memory(), fresh, (use(), use())[1])"""
    done, fresh, again = python(code)
    if done == "False":
        pytest.skip("this C library is not glibc")
    assert int(again) < 3 <= int(fresh)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc learns how large arrays are"
)
@pytest.mark.parametrize(
    "first", ["nn.Linear(1, 1)(np.ones((1, 1), np.float32))", "x.backward()", "ta.grad(x * x, x)"]
)
def test_from_the_first_layer_or_backward_pass_on_freed_memory_is_kept_but_not_from_import_on(
    first,
):
    code = f"""
import ctypes
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)              # PR_SET_THP_DISABLE: with large pages there would be few to count anyway
import resource, numpy as np, tinygrad_attn as ta
from tinygrad_attn import functional, nn, optim, ops, viz, check, cli
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
x = ta.Tensor(1.0, requires_grad=True)
def use():
    before = faults()
    [np.ones(1 << 20, np.int8) for _ in range(8)]
    return faults() - before
imported = (use(), use())[1]
{first}
print(imported, (use(), use())[1])"""
    imported, kept = map(int, python(code))
    assert kept < 50 < 500 < imported


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_where_memory_is_scarce_one_can_still_differentiate():
    code = """
import resource, tinygrad_attn as ta
from tinygrad_attn.fast import tuning
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (tuning.FREED >> 1), -1))
x = ta.Tensor(2.0, requires_grad=True)
(x * x).backward()
print(x.grad.item())"""
    assert python(code) == ["4.0"]


@pytest.mark.parametrize("nth", range(1, 40))
def test_an_interrupt_at_any_line_of_a_call_leaves_the_workers_free(nth, monkeypatch):
    """`nth` line of _together, counted as it runs; later ones than there are interrupt nothing."""
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    threads.split(lambda lo, hi: None, 3)  # so that the workers are there
    seen = 0

    def trace(frame, event, arg):
        nonlocal seen
        if frame.f_code is not threads._together.__code__:
            return None
        seen += event == "line"
        if event == "line" and seen == nth:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        threads.split(lambda lo, hi: None, 3)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert threads._pool.turn() is None
    test_split_covers_the_range_once_in_one_part_per_thread()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_thread_keeps_the_matrix_library_at_one_has_all_of_it():
    code = """
import os, threading, tinygrad_attn.fast.threads as t
t.set_num_threads(2)
blas, inside, leave, told = t._blas(), threading.Event(), threading.Event(), []
handlers, register = [], os.register_at_fork
def hold():
    with t.one_blas_thread():
        inside.set()
        leave.wait(10)
thread = threading.Thread(target=hold)
thread.start()
inside.wait(10)
child = os.fork()
if child == 0:
    os.register_at_fork = lambda **_: handlers.append(1)
    t.split(lambda lo, hi: None, 2)
    t._blas()
    os._exit(0 if t._inside.count == 0 and blas.get() == 2 and not handlers else 1)
print(os.waitpid(child, 0)[1])
leave.set()
"""
    assert python(code, OPENBLAS_NUM_THREADS="2") == ["0"]
