"""Work is shared out over threads; BLAS uses one meanwhile, and as many as before afterwards."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.fast import threads


@pytest.fixture(autouse=True)
def two():
    before = threads.get_num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 100])
def test_each_part_is_done_once(n):
    done = np.zeros(n, int)
    threads.split(lambda i, j: np.add(done[i:j], 1, out=done[i:j]), n)
    threads.tasks(lambda i: np.add.at(done, i, 1), n)
    assert (done == 2).all()


@pytest.mark.parametrize("bad", range(4))
def test_an_error_in_a_task_reaches_the_caller_and_the_next_call_works(bad):
    def task(i):
        if i == bad:
            raise IndexError("mine")

    with pytest.raises(IndexError, match="mine"):
        threads.tasks(task, 4)
    test_each_part_is_done_once(5)


def test_nested_and_concurrent_calls():
    found = []
    threads.tasks(lambda i: threads.tasks(lambda j: found.append((i, j)), 3), 3)
    others = [threading.Thread(target=test_each_part_is_done_once, args=(5,)) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert sorted(found) == [(i, j) for i in range(3) for j in range(3)]


def test_parts_run_with_the_errstate_of_the_caller():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        threads.split(lambda i, j: np.divide(1.0, np.zeros(2)), 2)


def test_blas_has_one_thread_meanwhile():
    get, _ = threads._blas()
    before, inside = get(), []
    threads.split(lambda i, j: inside.append(get()), 2)
    with threads.one_blas_thread, threads.one_blas_thread:
        inside.append(get())
    assert inside == [1, 1, 1] and get() == before


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_the_number_is_checked(wrong):
    with pytest.raises(ValueError, match="integer of at least 1"):
        ta.set_num_threads(wrong)


@pytest.mark.parametrize("given", ["", "1", "nonsense"])
def test_importing_starts_no_thread_and_the_environment_tells_how_many(given):
    code = "import threading, tinygrad_attn as ta; print(threading.active_count(), ta.get_num_threads())"
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment["OPENBLAS_NUM_THREADS"] = given
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    number = 1 if given == "1" else len(os.sched_getaffinity(0))
    assert done.stdout.split() == ["1", str(number)], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_pool_of_its_own():
    test_each_part_is_done_once(5)
    child = os.fork()
    if not child:
        threads.split(lambda i, j: None, 4)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_lock_is_held_in_a_forked_child():
    """Whichever thread held it: a child would wait for ever."""
    end, x = threading.Event(), ta.Tensor([1.0], requires_grad=True)

    def busy():
        while not end.is_set():
            ta.rand(2)
            x.sum().backward()

    other = threading.Thread(target=busy)
    other.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                signal.alarm(20)  # a child that waits dies of it
                ta.rand(2)
                x.sum().backward()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        end.set()
        other.join()


def test_reuse_memory_tells_whether_it_did():
    code = "import tinygrad_attn as ta; print(ta.reuse_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(sys.platform == "linux"), done.stderr
