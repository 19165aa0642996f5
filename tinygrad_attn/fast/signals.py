"""Waiting for another thread awake: without Python's lock, and without the system, which takes long
to wake a sleeper.

A thread that waits in a lock or a queue is asleep, and 30 to 60 microseconds pass between the call
that wakes it and its first step; there and back is as long as a small product takes. A Python loop
that looks again and again would be quicker, if it did not take Python's lock from the thread it
waits for. One call of NumPy can look instead: "is any of these true?" over an array that shows one
byte half a million times. It holds no lock meanwhile and ends as soon as somebody has made the byte
true; if nobody does, it ends after a fifth of a millisecond, and only then does the thread go to
sleep. Longer looks would gain little and keep the core from others. Nothing but time depends on it:
whatever one thread hands to another goes through a queue.
"""

from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from . import tuning

LINE = 64  # bytes of a cache line: what two threads write should not share one


class Signals:
    """Two bytes: the caller raises one when there is work, a worker the other when its part is
    done.
    """

    # False where threads have to share a core: who looks keeps it from the one that is waited for
    looking = True

    def __init__(self) -> None:
        shown, answers = np.zeros(2 * LINE, bool), np.zeros(2 * LINE, bool)
        shown[0] = True  # always; the other row is the caller's byte
        self._called, self._answered = shown[LINE:], answers[:LINE]
        self._rows, self._any_in_row = (
            as_strided(shown, (2, tuning.LOOKS), (LINE, 0)),
            as_strided(answers, (2,), (LINE,)),
        )
        self._answers = as_strided(answers, (tuning.LOOKS,), (0,))

    def call(self) -> None:
        """The caller has put work into the workers' queue."""
        self._called[0] = True

    def answer_and_get(self, calls: SimpleQueue) -> Any:
        """A worker has put a result into its caller's queue; returns the next work, once there is
        some.
        """
        self._called[0] = False
        if self.looking and calls.empty():
            # One call for both.  A second one, to raise the byte before looking, would return into
            # Python and take its lock, just when the caller wants it.  The first row's answer is
            # there at once, the second one's when the caller calls.
            np.logical_or.reduce(self._rows, axis=1, out=self._any_in_row)
        else:
            self._answered[0] = True
        return calls.get()

    def get_answer(self, results: SimpleQueue) -> Any:
        """The next result for the caller, once there is one."""
        self._answered[0] = False
        if self.looking and results.empty():
            np.logical_or.reduce(self._answers)
        return results.get()
