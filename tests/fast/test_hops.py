"""Little stands between a call and the arithmetic: how many functions of the package it passes through."""

import re
import subprocess
import sys

import pytest
from support import ROOT

MOST = {"encoder layer": (250, 16), "F.linear": (5, 5), "F.softmax": (10, 6)}  # calls, modules


@pytest.fixture(scope="module")
def counted():
    """In a process of its own: what other tests hold on to would be watched, which takes calls."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.hops"], cwd=ROOT, capture_output=True, text=True
    )
    lines = re.findall(r"(.*): (\d+) calls in (\d+) modules", done.stdout)
    return {name: (int(calls), int(modules)) for name, calls, modules in lines}


def test_what_is_counted_has_a_limit(counted):
    assert counted.keys() == MOST.keys()


@pytest.mark.parametrize("name", MOST)
def test_hops(name, counted):
    calls, modules = counted[name]
    assert 0 < calls <= MOST[name][0] and 0 < modules <= MOST[name][1]
