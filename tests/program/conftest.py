"""Fixtures for the tests of programs."""

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.program.program import Program


@pytest.fixture(autouse=True)
def no_line_is_too_long(monkeypatch):
    """No program that a test writes has a line of more than 100 columns."""
    made = Program.__init__

    def written(program, text, *rest):
        made(program, text, *rest)
        assert not [line for line in text.splitlines() if len(line) > 100]

    monkeypatch.setattr(Program, "__init__", written)


@pytest.fixture
def in_float64():
    """Layers and numbers in float64 for one test, whose random numbers are always the same."""
    before = ta.get_default_dtype()
    ta.set_default_dtype(np.float64)
    ta.manual_seed(0)
    yield
    ta.set_default_dtype(before)
