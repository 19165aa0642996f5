"""Fixtures for the tests of programs."""

import numpy as np
import pytest

import tinygrad_attn as ta


@pytest.fixture
def in_float64():
    """Layers and numbers in float64 for one test, whose random numbers are always the same."""
    before = ta.get_default_dtype()
    ta.set_default_dtype(np.float64)
    ta.manual_seed(0)
    yield
    ta.set_default_dtype(before)
