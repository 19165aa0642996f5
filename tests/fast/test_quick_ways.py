"""Fast equals plain: each quick way that is registered, against what it replaces, to second order.

The package is asked for what there is; helpers/quicktable.py has the examples. They are computed on arrays that lie
row by row and column by column in memory, and with gradients that do, since a kernel may have minded the one.
"""

import numpy as np
import pytest
from enumeration import asserted, calls, code_of, ops_in, uncalled, unmet
from quicktable import TABLE

import tinygrad_attn as ta
from tinygrad_attn import Tensor
from tinygrad_attn.engine import Op
from tinygrad_attn.engine.kernels import ways

ADVICE = "add examples with the key {name!r} to TABLE in tests/helpers/quicktable.py"
TOLERANCE = {np.float32: 3e-4, np.float64: 1e-10}
ROOMS = {"functional": "F", "functional.equations": "equations"}
CASES = [pytest.param(key, i, id=f"{key} {i}") for key in TABLE for i in range(len(TABLE[key]))]


def key_of(replaced) -> str:
    where = replaced.__module__.removeprefix("tinygrad_attn.")
    return f"{ROOMS.get(where, where.split('.')[0])}.{replaced.__name__}"


REPLACED = {key_of(one.replaces): one.replaces for one in ways}


def test_no_quick_way_is_without_an_example():
    asserted(unmet(REPLACED, TABLE, ADVICE))


def test_a_new_quick_way_is_missed():
    (complaint,) = unmet([*REPLACED, "ops.surprise"], TABLE, ADVICE)
    assert "nothing tests 'ops.surprise': add examples" in complaint


def laid(x, order):
    return np.asarray(x, order=order).copy(order=order)


def orders(f, arrays, order):
    """The value, its gradients, and the gradients of a random combination of those, also by the cotangent."""
    rng = np.random.default_rng(7)
    first, second = ([Tensor._of(laid(x, order), requires_grad=True) for x in arrays] for _ in "12")
    y = f(*first)
    g = laid(rng.standard_normal(y.shape).astype(y.dtype), order)
    gradients = ta.grad([y], first, [Tensor._of(g)])
    cotangent = Tensor._of(g, requires_grad=True)
    recorded = ta.grad([f(*second)], second, [cotangent], create_graph=True)
    mixed = sum((d * rng.standard_normal(d.shape).astype(d.dtype)).sum() for d in recorded)
    return [y, *gradients, *ta.grad([mixed], [*second, cotangent], allow_unused=True)]


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("key, i", CASES)
def test_fast_equals_plain(key, i, dtype, order):
    example = TABLE[key][i]
    arrays = example.arrays(dtype)
    fast = orders(example.function, arrays, order)
    with ta.plain():
        plain = orders(example.function, arrays, order)
    for place, (a, b) in enumerate(zip(fast, plain, strict=True)):
        if a is None or b is None:  # no gradient and a gradient of zeros are the same
            assert not any(np.any(one.numpy()) for one in (a, b) if one is not None), place
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), place
        atol = TOLERANCE[dtype] * (0.1 + np.abs(b.numpy()).max(initial=0))
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=atol, err_msg=f"{place}")


SEVERAL = [case for case in CASES if len(TABLE[case.values[0]][case.values[1]].shapes) > 1]


@pytest.mark.parametrize("dtypes", ["fd", "df"])
@pytest.mark.parametrize("key, i", SEVERAL)
def test_inputs_of_two_dtypes_give_what_the_equation_gives(key, i, dtypes):
    """As a kernel for one dtype would not: result and gradients have the dtypes of the equation."""

    def found():
        arrays = [x.astype(dtypes[n > 0]) for n, x in enumerate(TABLE[key][i].arrays(np.float64))]
        leaves = [Tensor._of(x, requires_grad=True) for x in arrays]
        y = TABLE[key][i].function(*leaves)
        return [one.numpy() for one in (y, *ta.grad([y.sum()], leaves))]

    with ta.plain():
        plain = found()
    for a, b in zip(found(), plain, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-4 * (0.1 + np.abs(b).max(initial=0)))


@pytest.mark.parametrize("key", TABLE)
def test_the_quick_way_is_taken(key, monkeypatch):
    replaced, taken = REPLACED[key], []
    way = replaced.kernel

    def told(function, refused):
        def run(*args, **kwargs):
            answer = function(*args, **kwargs)
            taken.append(answer is not refused and answer is not False)
            return answer

        return run

    if isinstance(way, Op):
        monkeypatch.setattr(way, "forward", told(way.forward, False))
    else:
        monkeypatch.setattr(replaced, "quick", told(way, NotImplemented))
    for example in TABLE[key]:
        orders(example.function, example.arrays(np.float32), "C")
    assert any(taken)


@pytest.fixture(scope="module")
def seen():
    """The code that runs for all examples."""
    with calls() as found:
        for examples in TABLE.values():
            for example in examples:
                orders(example.function, example.arrays(np.float32), "C")
    return found


@pytest.mark.parametrize("name", sorted(name for name in ops_in() if ".fast." in name))
def test_every_fused_op_and_each_rule_of_it_is_asked(name, seen):
    one = ops_in()[name]
    assert code_of(one.forward) in seen
    asserted(
        [f"no example in tests/helpers/quicktable.py asks {rule}" for rule in uncalled(one, seen)]
    )


@pytest.mark.parametrize(
    "key", sorted(key for key in TABLE if isinstance(REPLACED[key].kernel, Op))
)
def test_each_rule_of_a_quick_op_is_asked(key, seen):
    way = REPLACED[key].kernel
    advice = "no example in tests/helpers/quicktable.py asks"
    asserted([f"{advice} {rule}" for rule in uncalled(way, seen)])
