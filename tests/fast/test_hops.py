"""Little stands between a call and the arithmetic: how many functions of the package it passes through."""

import pytest

from tests.benchmarks.hops import MEASURED, hops

MOST = {"encoder layer": (250, 16), "F.linear": (5, 5), "F.softmax": (10, 6)}  # calls, modules


@pytest.mark.parametrize("name", MEASURED)
def test_hops(name):
    found = hops(*MEASURED[name]())
    calls, modules = MOST[name]
    assert 0 < found.total() <= calls, found
    assert len({file for file, _ in found}) <= modules, found
