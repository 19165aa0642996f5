"""The bug zoo: real bugs of published small engines, each one line to switch on in ours.

    from tinygrad_attn.check import zoo
    with zoo.bug("softmax-batch"):
        ta.gradcheck(F.softmax, x)               # what do you see?
    print(zoo.list())

Each bug replaces a rule, a forward text, the sweep or another function by what was published, in
our spelling, and puts the right one back afterwards. They are exercises (find it with gradcheck)
and the proof of our own tests: tests/test_zoo.py must catch every one. Sources were read in their
public repositories; later versions may have mended them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..measuring import Problem
from . import layers, ops, sweeps  # noqa: F401  these put their bugs in
from .bug import Bug, Patches, bugs, keep


@keep(
    "checker-all-ones",
    "the gradient check weighs all results with 1",
    "most small checkers; SmallPebble sums the output, for one",
    "the results of softmax sum to 1 and those of layer norm to 0, so their gradients are checked "
    "as 0 = 0, right or wrong",
)
def _() -> Patches:
    right = Problem.__init__

    def init(self: Any, *given: Any) -> None:
        right(self, *given)
        self.cotangents = [np.ones_like(c) for c in self.cotangents]

    return [(Problem, "__init__", init)]


class Bugs(tuple[Bug, ...]):
    """A tuple of bugs that prints as a catalogue."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


def list() -> Bugs:
    """Every bug there is: name, what it is, where it was found, its symptom."""
    return Bugs(bugs.values())


@contextmanager
def bug(name: str) -> Iterator[Bug]:
    """Switch one bug on inside the `with` block, for the whole process.

    Raises ValueError for an unknown name.
    """
    if name not in bugs:
        raise ValueError(f"there is no bug {name!r} in the zoo; there are {', '.join(bugs)}.")
    patches = bugs[name].patches()
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, value in patches:
            setattr(owner, attribute, value)
        yield bugs[name]
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)
