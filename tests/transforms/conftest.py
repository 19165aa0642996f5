"""What the tests of programs share."""

from contextlib import suppress

import numpy as np
import pytest

import tinygrad_attn as ta

MISTAKES = (
    "it could not be written",
    "the program gives other",
    "the program failed where the function did not",
)
"""Reasons for which a function is run as it is although nothing about it is to blame."""


@pytest.fixture
def in_float64():
    """Layers and numbers in float64 for one test, whose random numbers are always the same."""
    before = ta.get_default_dtype()
    ta.set_default_dtype(np.float64)
    ta.manual_seed(0)
    yield
    ta.set_default_dtype(before)


@pytest.fixture(autouse=True)
def no_mistake_of_ours(monkeypatch, request):
    """A program that ta.compile has written wrong is one that a test fails for, and not only a slower call.

    Where the function is to blame, the test says so: `@pytest.mark.usefixtures("mistakes_are_expected")`.
    """
    found: list[str] = []
    with suppress(ImportError):  # where fast/ is deleted, there is nothing to refuse
        from tinygrad_attn.fast.compiling.compiled import Entry

        refused = Entry.refused
        monkeypatch.setattr(
            Entry, "refused", lambda self, reason: (found.append(reason), refused(self, reason))
        )
    yield
    if "mistakes_are_expected" not in request.fixturenames:
        assert not [reason for reason in found if reason.startswith(MISTAKES)]


@pytest.fixture
def mistakes_are_expected():
    """The function of this test leads to one of the MISTAKES."""
