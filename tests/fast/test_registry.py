"""Every quick way says what it replaces: value, gradients and second order, for all samples of the table.

The ways are asked from the package; a new one is drawn from the entries whose key begins with the name of what it
replaces, and a way that no sample takes fails.
"""

import inspect

import numpy as np
import pytest
from enumeration import ops_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optable import TABLE

import tinygrad_attn as ta
from tinygrad_attn import Tensor, ops
from tinygrad_attn import functional as F
from tinygrad_attn.engine import Op
from tinygrad_attn.engine import quick as seam
from tinygrad_attn.fast import equations as quick_equations
from tinygrad_attn.functional import equations

ELSEWHERE = {
    "sweep": "tests/fast/test_sweep.py compares the two sweeps bit for bit",
    "sum_to": "its samples are below: test_the_quick_sum_of_what_was_broadcast",
}


def title(replaced):
    """How the table calls what is replaced."""
    if isinstance(replaced, Op):
        return replaced.__name__
    for prefix, module in (("F", F), ("equations", equations)):
        if vars(module).get(replaced.__name__) is replaced:
            return f"{prefix}.{replaced.__name__}"
    return replaced.__name__


WAYS = {title(way.replaces): way for way in seam.ways if not hasattr(way.replaces, "apply_updates")}


def keys_of(name):
    """The entries that are samples of this: its own, and those of the function of F that calls an equation."""
    bare = name.rpartition(".")[2]
    names = {name, bare, f"F.{bare}", f"equations.{bare}"}
    if bare in ("attention_weights", "packed_attention"):
        names.add("F.scaled_dot_product_attention")
    if bare == "embedding_backward":
        names |= {"F.embedding", "embedding"}
    if bare == "scatter":
        names.add("getitem")
    return [key for key in TABLE if key.split()[0] in names]


def outcome(drawn, order):
    """Value and gradients of <c, y>, and the gradients of their squares."""
    leaves = [Tensor(x, requires_grad=True) for x in drawn.inputs]
    with np.errstate(all="ignore"):
        y = drawn.ours(*leaves)
        if not y.requires_grad:
            return [y.numpy()]
        c = np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)
        found = ta.grad((y * c).sum(), leaves, create_graph=order == 2, allow_unused=True)
        first = [g for g in found if g is not None]
        results = [y.numpy(), *(g.numpy() for g in first)]
        again = [(g * g).sum() for g in first if g.requires_grad] if order == 2 else []
        if again:
            second = ta.grad(sum(again), leaves, allow_unused=True)
            results += [g.numpy() for g in second if g is not None]
    return results


def as_close(fast, plain, what):
    assert len(fast) == len(plain), what
    for a, b in zip(fast, plain, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, what
        exact = a.dtype.itemsize > 4
        scale = max(1.0, float(np.max(np.abs(b), initial=0, where=np.isfinite(b))))
        np.testing.assert_allclose(
            a,
            b,
            rtol=1e-9 if exact else 2e-4,
            atol=(1e-10 if exact else 2e-5) * scale,
            err_msg=what,
        )


class Taken:
    """Is the quick way asked, and does it answer?

    Where it raises the engine does without it, so that nobody would notice: that is kept in `raised`.
    """

    def __init__(self, way, monkeypatch):
        self.count, self.raised = 0, []
        op = way.way
        if isinstance(op, Op):
            monkeypatch.setattr(op, "forward", self.watched(op.forward))
        else:
            monkeypatch.setattr(way.replaces, "quick", self.watched(way.replaces.kernel))

    def watched(self, function):
        def watched(*args, **kwargs):
            try:
                answer = function(*args, **kwargs)
            except Exception as error:
                self.raised.append(error)
                raise
            self.count += answer is not NotImplemented
            return answer

        return watched


@pytest.mark.parametrize("name", sorted(set(WAYS) - set(ELSEWHERE)))
def test_a_quick_way_says_what_it_replaces(name, monkeypatch):
    keys = keys_of(name)
    assert keys, (
        f"no entry of tests/helpers/optable.py has a key that begins with {name!r}: add one"
    )
    taken = Taken(WAYS[name], monkeypatch)

    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(data=st.data())
    def run(data):
        for key in keys:
            drawn = TABLE[key](data.draw)
            for dtype in (np.float64, np.float32):
                one = drawn._replace(inputs=[np.asarray(x, dtype) for x in drawn.inputs])
                order = 2 if dtype == np.float64 else 1
                try:
                    with ta.plain():
                        expected = outcome(one, order)
                except (TypeError, ValueError):  # the entry's own constants are of another dtype
                    continue
                as_close(outcome(one, order), expected, f"{key}, {dtype.__name__}")

    run()
    assert not taken.raised
    if not taken.count:
        assert name in LARGE, (
            f"no sample of {keys} takes the quick way of {name!r}: add one that fits"
        )


def defaults(function):
    """The values of a function's parameters that may be left out."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def required(function):
    """How many arguments must be given."""
    function = getattr(function, "forward", function)
    parameters = inspect.signature(function).parameters.values()
    return sum(p.default is p.empty for p in parameters)


@pytest.mark.parametrize("name", sorted(WAYS))
def test_what_a_quick_way_takes_for_an_argument_left_out_is_what_it_replaces_takes(name):
    """Where it has one at all: an op on arrays may be given everything by the function around it."""
    way, replaced = WAYS[name].way, WAYS[name].replaces
    own, theirs = defaults(getattr(way, "forward", way)), defaults(replaced)
    assert {k: own[k] for k in own if k in theirs} == {k: theirs[k] for k in own if k in theirs}


@pytest.mark.parametrize("name", sorted(ops_in(quick_equations)))
def test_the_defaults_of_a_quick_op_are_those_of_its_equation(name):
    one = ops_in(quick_equations)[name]
    own, theirs = defaults(one.forward), defaults(one.reference)
    assert own == {k: theirs[k] for k in own}


OF_ONE = [name for name in sorted(set(WAYS) - set(ELSEWHERE)) if required(WAYS[name].replaces) == 1]
SIZES = [
    1,
    255,
    257,
    (1 << 13) + 1,
    (1 << 15) + 1,
    (1 << 18) + 3,
]  # on both sides of each threshold of tuning.py


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OF_ONE)
def test_a_quick_way_of_one_array_is_right_at_every_size_and_never_raises(name, dtype, monkeypatch):
    taken = Taken(WAYS[name], monkeypatch)
    for size in SIZES:

        class Drawn:
            ours, inputs = staticmethod(WAYS[name].replaces), [(4 * rows(size)).astype(dtype)]

        with ta.plain():
            expected = outcome(Drawn, 1)
        as_close(outcome(Drawn, 1), expected, f"{name} of {size} numbers")
    assert not taken.raised


TAKE_EPS = [name for name in WAYS if "eps" in inspect.signature(WAYS[name].replaces).parameters]


@pytest.mark.parametrize("kind", [float, int, np.float32, np.float64, np.int64, np.asarray])
@pytest.mark.parametrize("name", TAKE_EPS)
def test_a_number_of_any_kind_is_the_number_that_it_is(name, kind, monkeypatch):
    """An eps of 2 is large enough to be seen, and a whole number."""
    f, taken = WAYS[name].replaces, Taken(WAYS[name], monkeypatch)
    with ta.plain():
        expected = f(rows(3, 5), 5, eps=2.0)
    np.testing.assert_allclose(f(rows(3, 5), 5, eps=kind(2)), expected, rtol=1e-12)
    assert taken.count


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TAKE_EPS)
def test_an_eps_left_out_is_the_same_where_it_shows(name, dtype, monkeypatch):
    """In rows so small that it is what they are divided by."""
    f, taken = WAYS[name].replaces, Taken(WAYS[name], monkeypatch)
    for size in (1e-2, 1e-4, 1e-8):
        x = (size * rows(3, 5)).astype(dtype)
        with ta.plain():
            expected = f(x, 5)
        np.testing.assert_allclose(f(x, 5), expected, rtol=1e-5)
    assert taken.count == 3


def rows(*shape):
    return np.random.default_rng(0).standard_normal(shape)


# Ways that only large arrays take: what to call with them.
LARGE = {
    "scatter": lambda dtype: (
        lambda x: ops.scatter(x, index=([2, 0, 2],), shape=(5, 4)),
        rows(3, 4).astype(dtype),
    ),
    "where": lambda dtype: (
        lambda x: ops.where(rows(100, 100) > 0, x, 0.5),
        rows(100, 100).astype(dtype),
    ),
    "clip": lambda dtype: (lambda x: ops.clip(x, -0.5, 0.7), rows(90, 70).astype(dtype)),
    "logaddexp": lambda dtype: (lambda x: ops.logaddexp(x, x[::-1]), rows(40, 50).astype(dtype)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_quick_way_of_large_arrays_says_what_it_replaces(name, dtype, monkeypatch):
    taken = Taken(WAYS[name], monkeypatch)
    f, x = LARGE[name](dtype)

    class Drawn:
        ours, inputs = staticmethod(f), [np.asarray(x)]

    order = 2 if dtype == np.float64 else 1
    with ta.plain():
        expected = outcome(Drawn, order)
    assert not taken.count, "plain mode has asked for a quick way"
    as_close(outcome(Drawn, order), expected, name)
    assert taken.count and not taken.raised


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "large, small",
    [
        ((7, 3), (3,)),
        ((400, 30), (30,)),
        ((400, 30), (400, 1)),
        ((40, 30, 20), (1, 30, 20)),
        ((40, 30, 20), (30, 1)),
        ((3000, 2), ()),
        ((5, 0), (0,)),
        ((3, 1), (1, 1)),
    ],
)
def test_the_quick_sum_of_what_was_broadcast(large, small, dtype):
    g = rows(*large).astype(dtype)
    with ta.plain():
        expected = ta.engine.sum_to(g, small)
    found = ta.engine.sum_to(g, small)
    assert found.shape == small and found.dtype == dtype
    np.testing.assert_allclose(
        found, expected, rtol=1e-4 if dtype == np.float32 else 1e-11, atol=1e-4
    )
