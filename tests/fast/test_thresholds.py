"""Every threshold of fast/tuning.py moved to both ends: only time and rounding may depend on it.

A branch that only large arrays take is so taken by the small examples of helpers/quicktable.py, whatever it is and
whoever adds it. The thresholds are asked from the module.
"""

import types

import numpy as np
import pytest
from quicktable import TABLE

import tinygrad_attn as ta
from tinygrad_attn import Tensor
from tinygrad_attn.fast import threads, tuning

ENDS = {
    int: {"small": 8, "large": 1 << 40},
    float: {"small": 1e-30, "large": 1e30},
    range: {"small": range(0), "large": range(16, 1 << 40)},
}
DTYPES = (np.float32, np.float64)
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-10}
ALL = {name: value for name, value in vars(tuning).items() if name.isupper()}


def end(name, which):
    """This end of a threshold, as its type has it."""
    return ENDS[type(ALL[name])][which]


MOVED = {
    f"{name} {which}": {name: end(name, which)} for name in ALL for which in ("small", "large")
}
MOVED |= {f"all {which}": {name: end(name, which) for name in ALL} for which in ("small", "large")}
EXAMPLES = [(key, i) for key in TABLE for i in range(len(TABLE[key]))]


def first_order(key, i, dtype):
    """The value and its gradients, which a quick way has for itself; float64 lies column by column."""
    example, order = TABLE[key][i], "C" if dtype == np.float32 else "F"
    arrays = [np.asarray(x, order=order).copy(order) for x in example.arrays(dtype)]
    leaves = [Tensor._of(x, requires_grad=True) for x in arrays]
    y = example.function(*leaves)
    g = np.random.default_rng(7).standard_normal(y.shape).astype(dtype)
    return [one.numpy() for one in (y, *ta.grad([y], leaves, [Tensor._of(g)]))]


class Watched(types.ModuleType):
    """A module that tells which of its thresholds are read."""

    def __getattribute__(self, name):
        if name.isupper():
            read.add(name)
        return super().__getattribute__(name)


read: set[str] = set()


@pytest.fixture(scope="module")
def asked():
    """Which examples read each threshold, as the thresholds are."""
    found = {name: [] for name in ALL}
    tuning.__class__ = Watched
    try:
        for example in EXAMPLES:
            read.clear()
            for dtype in DTYPES:
                first_order(*example, dtype)
            for name in read & set(ALL):
                found[name].append(example)
    finally:
        tuning.__class__ = types.ModuleType
    return found


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def several(request):
    """Threads; what is shared out has to be the same."""
    before = threads.get_num_threads()
    threads.set_num_threads(request.param)
    yield
    threads.set_num_threads(before)


@pytest.fixture(scope="module")
def expected():
    with ta.plain():
        return {
            (key, i, dtype): first_order(key, i, dtype) for key, i in EXAMPLES for dtype in DTYPES
        }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("moved", MOVED)
def test_no_threshold_changes_a_number(moved, dtype, expected, asked, several, monkeypatch):
    for name, value in MOVED[moved].items():
        monkeypatch.setattr(tuning, name, value)
    for key, i in asked.get(moved.partition(" ")[0], EXAMPLES):
        found = first_order(key, i, dtype)
        for place, (a, b) in enumerate(zip(found, expected[key, i, dtype], strict=True)):
            what = f"{key} {i}, {'its gradient' if place else 'the value'}"
            assert (a.dtype, a.shape) == (b.dtype, b.shape), what
            atol = TOLERANCE[dtype] * (0.1 + np.abs(b).max(initial=0))
            np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=what)
