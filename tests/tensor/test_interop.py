"""NumPy's functions on Tensors: the same values as on arrays, derivatives to second order, and clear refusals."""

import gc
import inspect
import math
import re
import weakref
from collections import deque, namedtuple

import numpy as np
import pytest
from numpytable import CASES, FLAT, P, R
from support import require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, ops
from tinygrad_attn.check import gradgradcheck
from tinygrad_attn.engine import history
from tinygrad_attn.tensor.names import FUNCTIONS, PLAIN_FUNCTIONS, PLAIN_UFUNCS, UFUNCS

IDS = [f"{i}-{function.__name__}" for i, (_, function, _, _) in enumerate(CASES)]


def floats(tree):
    """The floating-point arrays in nested lists and tuples."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in floats(part)]
    return [tree] if isinstance(tree, np.ndarray) and tree.dtype.kind == "f" else []


def put(tree, values):
    """The tree with the next of the values for each floating-point array."""
    if isinstance(tree, dict):
        return {key: put(part, values) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(put(part, values) for part in tree)
    return next(values) if isinstance(tree, np.ndarray) and tree.dtype.kind == "f" else tree


def results(y):
    return list(y) if isinstance(y, (list, tuple)) else [y]


def call(case, values):
    _, function, args, kwargs = case
    values = iter(values)
    return results(function(*put(args, values), **put(kwargs, values)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.filterwarnings(
    "ignore:numpy.fix is deprecated"
)  # from NumPy 2.5 on; it is there all the same
def test_values_shapes_and_dtypes_are_numpys(case, dtype):
    arrays = [x.astype(dtype) for x in floats([case[2], case[3]])]
    inputs = [Tensor(x, requires_grad=True) for x in arrays]
    mine, numpys = call(case, inputs), call(case, arrays)
    assert len(mine) == len(numpys)
    for a, b in zip(mine, numpys, strict=True):
        assert np.shape(a) == np.shape(b)
        tolerance = 2e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(ta.no_grad()(np.asarray)(a), b, rtol=tolerance, atol=tolerance)
        if isinstance(a, Tensor):
            assert a.dtype in (
                b.dtype,
                dtype,
            )  # a float among float32 tensors does not make float64 of them
    for g in ta.grad(
        [y.sum() for y in mine if isinstance(y, Tensor) and y.requires_grad],
        inputs,
        allow_unused=True,
    ):
        assert g is None or g.dtype == dtype


@pytest.mark.parametrize(
    "case", [c for c in CASES if c[0] not in FLAT], ids=lambda c: c[1].__name__
)
def test_derivatives_to_second_order(case):
    gradgradcheck(
        lambda *xs: tuple(y for y in call(case, xs) if isinstance(y, Tensor)),
        floats([case[2], case[3]]),
    )


@pytest.mark.parametrize("case", [c for c in CASES if c[0] in FLAT], ids=lambda c: c[0].__name__)
def test_what_is_flat_has_zero_gradient(case):
    inputs = [Tensor(x, requires_grad=True) for x in floats([case[2], case[3]])]
    (y,) = call(case, inputs)
    assert isinstance(y, Tensor)  # not a detached array
    for g in ta.grad((y + inputs[0] * 0).sum(), inputs, allow_unused=True, create_graph=True):
        assert g is None or not g.numpy().any()


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if len(floats([c[2], c[3]])) > 1 and c[0] is not np.full_like],
    ids=lambda c: c[1].__name__,
)
def test_arrays_may_stand_for_any_of_the_tensors(case):
    arrays = floats(
        [case[2], case[3]]
    )  # (np.full_like asks only its first argument whether it wants to take over)
    together = [Tensor(x, requires_grad=True) for x in arrays]
    weights = [np.arange(1.0, 1 + np.size(y)).reshape(np.shape(y)) for y in call(case, together)]

    def gradient(inputs, wanted):
        loss = sum(
            np.sum(y * w)
            for y, w in zip(call(case, inputs), weights, strict=True)
            if isinstance(y, Tensor) and y.requires_grad
        )
        return ta.grad(loss, [wanted], allow_unused=True)[0] if isinstance(loss, Tensor) else None

    for i, x in enumerate(arrays):
        alone = Tensor(x, requires_grad=True)
        expected, found = (
            gradient(together, together[i]),
            gradient([*arrays[:i], alone, *arrays[i + 1 :]], alone),
        )
        if expected is not None:
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_the_table_of_cases_covers_every_rule():
    missing = (set(UFUNCS) | set(FUNCTIONS)) - {function for function, *_ in CASES}
    assert not missing, [f.__name__ for f in missing]


# ---- what is not differentiated

T = Tensor(R(3), requires_grad=True)
S = Tensor(0.5, requires_grad=True)


def every_function():
    """All that NumPy lets a Tensor take over."""
    for module in (np, np.linalg, np.fft):
        for name in sorted(dir(module)):
            f = getattr(module, name)
            if (
                isinstance(f, np.ufunc)
                or callable(f)
                and hasattr(f, "__wrapped__")
                or type(f).__name__ == "_ArrayFunctionDispatcher"
            ):
                yield f


@pytest.mark.parametrize(
    "f",
    [
        f
        for f in dict.fromkeys(every_function())
        if f not in UFUNCS
        and f not in FUNCTIONS
        and f not in PLAIN_FUNCTIONS
        and f not in PLAIN_UFUNCS
    ],
    ids=lambda f: f.__name__,
)
def test_a_function_without_a_rule_is_refused_by_name(f):
    for call in (
        lambda: f(T),
        lambda: f(T, T),
        lambda: f(T, T, T),
        lambda: f(T, 1),
        lambda: f([T], T),
    ):
        try:
            y = call()
        except TypeError as error:
            if f"np.{f.__name__}" in str(error) or f".{f.__name__} has no derivative rule" in str(
                error
            ):
                assert "t.numpy()" in str(error) and "@ta.op" in str(error)
                return
        except Exception:  # arguments that the function itself rejects before it asks anybody
            continue
        else:
            assert isinstance(y, (bool, np.bool_, int, str, np.dtype, type(None))) or "int" in str(
                getattr(y, "dtype", "int")
            ), f"{f.__name__} returned {y!r}"


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda: np.array([T, T]), "np.stack"),
        (lambda: np.array([S, S]), "np.stack"),
        (lambda: np.array([[S, 1.0], [2.0, S]]), "np.stack"),
        (lambda: np.asarray(T), "requires a gradient"),
        (lambda: np.array(S), "requires a gradient"),
        (lambda: np.float32(T), "requires a gradient"),
        (lambda: np.array([T, T], dtype=object), "requires a gradient"),
        (lambda: np.mean([S, S]), "np.stack"),
        (lambda: np.r_[T, T], "np.concatenate"),
        (lambda: np.zeros(3).__setitem__(slice(None), T), "requires a gradient"),
        (
            lambda: np.exp(T, out=np.zeros(3)),
            r"np.exp of a Tensor does not take out=.*write y = np.exp",
        ),
        (lambda: np.zeros(3).__iadd__(T), r"write a = a \+ t instead of a \+= t"),
        (lambda: np.exp(T, where=np.array([True, False, True])), r"np.where\(mask, a, b\)"),
        (lambda: np.sum(T, out=np.zeros(())), r"np.sum of a Tensor does not take out="),
        (
            lambda: np.concatenate([T, T], out=np.zeros(6)),
            "np.concatenate of a Tensor does not take out=",
        ),
        (lambda: np.reshape(T, (3, 1), order="F"), "transpose first"),
        (lambda: np.ravel(T, order="F"), "np.ravel .*transpose first"),
        (lambda: np.add.at(np.zeros(3), [0, 1, 1], T), "np.add.at changes an array in place"),
        (
            lambda: np.add.at(np.zeros(3), [0, 1, 1], T),
            r"Write a \+ ta\.ops\.scatter\(t, index=index, shape=a\.shape\)",
        ),
        (
            lambda: np.maximum.at(np.zeros(3), [0, 1, 1], T),
            r"np.maximum.at changes an array.*Write t\[index\]",
        ),
        (lambda: np.hypot.accumulate(T), "np.hypot.accumulate has no derivative rule"),
        (lambda: np.add.reduceat(T, [0, 1]), "np.add.reduceat has no derivative rule"),
        (lambda: np.roots(T), r"np.roots has no derivative rule.*t.numpy\(\).*@ta.op"),
        (
            lambda: np.frompyfunc(math.gamma, 1, 1)(T),
            r"^gamma \(vectorized\) has no derivative rule",
        ),  # no np.gamma
        (lambda: np.fft.fft(T), "np.fft.fft has no derivative rule"),
        (lambda: np.linalg.eig(T), r"np.linalg.eig has no derivative rule.*Did you mean 'eigh'"),
        (lambda: np.nanmedian(T), r"np.nanmedian has no derivative rule.*Write np.sort"),
        (
            lambda: np.trim_zeros(T),
            "np.trim_zeros has no derivative rule for Tensors. Leave",
        ),  # and no word of zeros_like
        (lambda: np.cov(T, fweights=[1.5, 2, 1]), r"fweights must be integer"),
        (lambda: np.linalg.qr(Tensor(R(3, 2), requires_grad=True), "complete"), "mode='complete'"),
        (
            lambda: np.logspace(S, 1.0, 3, base=T),
            r"takes one number as the base.*base \*\* np.linspace",
        ),
        (lambda: np.linalg.svd(Tensor(R(2, 3), requires_grad=True)), "full_matrices=False"),
        (lambda: np.pad(T, 1, "linear_ramp"), "np.pad of a Tensor knows the modes"),
        (lambda: np.copyto(np.zeros(3), T), "np.copyto has no derivative rule"),
        (
            lambda: np.add(T, 1, dtype=int),
            r"np.add of floating Tensors does not take dtype=int64.*the gradient",
        ),
        (lambda: np.exp(T, dtype=bool), "does not take dtype=bool"),
        (
            lambda: np.multiply.outer(2.0, T, dtype=int),
            "np.multiply of floating Tensors does not take dtype=int64",
        ),
        (
            lambda: np.concatenate([R(2), T], dtype=int),
            "np.concatenate of floating Tensors does not take dtype=int64",
        ),
        *[
            (
                lambda join=join: join([T, T], dtype=np.float32, casting="no"),
                "float64 does not become float32 by casting='no'",
            )
            for join in (np.concatenate, np.stack, np.vstack, np.hstack)
        ],
        (
            lambda: np.stack([T, T], dtype=int),
            "np.stack of floating Tensors does not take dtype=int64",
        ),
        (
            lambda: np.clip(T, 0, 1, dtype=int),
            "np.clip of floating Tensors does not take dtype=int64",
        ),
        (lambda: np.mean(T, dtype=int), "np.mean of floating Tensors does not take dtype=int64"),
        (
            lambda: np.nanmean(T, dtype=int),
            "np.nanmean of floating Tensors does not take dtype=int64",
        ),
        (lambda: np.sum(T, dtype=int), "np.sum of floating Tensors does not take dtype=int64"),
        (lambda: np.nansum(T, dtype=int), "floating Tensors does not take dtype=int64"),
        (lambda: np.prod(T, dtype=bool), "np.prod of floating Tensors does not take dtype=bool"),
        (lambda: np.nanprod(T, dtype=int), "floating Tensors does not take dtype=int64"),
        (
            lambda: np.cumsum(T, dtype=int),
            "np.cumsum of floating Tensors does not take dtype=int64",
        ),
        (
            lambda: np.trace(np.outer(T, T), dtype=int),
            "np.trace of floating Tensors does not take dtype=int64",
        ),
        (
            lambda: np.linalg.trace(np.outer(T, T), dtype=int),
            "np.trace of floating Tensors does not take dtype=int64",
        ),
        (
            lambda: np.add.reduce(T, dtype=int),
            "np.add.reduce of floating Tensors does not take dtype=int64",
        ),
        (
            lambda: np.add.accumulate(T, dtype=int),
            "np.add.accumulate of floating Tensors does not take dtype=int64",
        ),
        (lambda: np.var(T, dtype=int), "np.var of floating Tensors does not take dtype=int64"),
        (lambda: np.std(T, dtype=int), "np.std of floating Tensors does not take dtype=int64"),
        (
            lambda: np.nan_to_num(T, copy=False),
            r"np.nan_to_num .*copy=False.*write t = np.nan_to_num\(t\)",
        ),
        (
            lambda: np.linspace(S, 1.0, 3, retstep=True),
            r"np.linspace .*retstep=True.*\(stop - start\)",
        ),
        (
            lambda: np.array([1.0, None, 2.0], dtype=object) * T,
            "multiply cannot take array .* object beside a Tensor",
        ),
        (lambda: np.add(T, np.array(1j)), "add cannot take array .* complex128 beside a Tensor"),
        (lambda: T * 1j, "cannot take 1j"),
    ],
)
def test_what_would_lose_the_gradient_is_a_type_error_with_advice(write, message):
    with pytest.raises(TypeError, match=message):
        write()


@pytest.mark.parametrize(
    "call",
    [
        lambda a, t: np.add.at(a, index, t[:, 0]) or a,
        lambda a, t: np.bincount(index, t[:, 0], n),
        lambda a, t: np.add.reduceat(t, starts),
    ],
    ids=["add.at", "bincount", "add.reduceat"],
)
def test_what_is_advised_for_a_sum_by_groups_is_its_equal(call):
    """As the edges of a graph add to its nodes."""
    messages = Tensor(R(4, 2), requires_grad=True)
    with pytest.raises(TypeError) as error:
        call(np.ones(n), messages)
    text = re.search(r"Write (.*?)( for np\.bincount|, or give|\. Leave)", str(error.value))[1]
    names = {
        "index": index,
        "indices": index,
        "n": n,
        "starts": starts,
        "np": np,
        "ta": ta,
        "a": np.ones(n),
    }
    got = eval(text, {**names, "t": messages if "starts" in text else messages[:, 0]})
    assert got.requires_grad
    np.testing.assert_allclose(got.numpy(), call(np.ones(n), messages.numpy()))


@pytest.mark.parametrize(
    "call",
    [
        np.unique,
        np.bincount,
        lambda k: np.unique(k, return_counts=True),
        lambda k: np.histogram(k, 3)[0],
        lambda k: np.setdiff1d(k, [1]),
        lambda k: np.polyadd(k, k),
        lambda k: np.add.reduceat(k, [0, 2]),
        lambda k: np.bitwise_xor.reduce(k),
        lambda k: np.union1d([k, k], 2),
        lambda k: np.ravel_multi_index((k, k), (5, 5)),
        lambda k: np.bincount(k, np.ones(4)),
        lambda k: np.choose(k, np.ones(5)),
    ],
)
def test_of_integers_alone_numpy_does_what_it_always_does(call):
    """There is no gradient to lose: counting labels needs no rule."""
    labels = np.array([3, 1, 3, 0])
    got, wanted = call(Tensor(labels)), call(labels)
    assert type(got) is type(wanted)
    for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (got, wanted)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_integers_say_where_to_add_and_what_is_written_into_them_is_noticed():
    counts = np.zeros(4)
    np.add.at(counts, Tensor(np.array([3, 1, 3, 0])), 1.0)
    assert counts.tolist() == [1, 1, 0, 2]
    x, k = Tensor(R(2), requires_grad=True), Tensor(np.array([3, 1]))
    y = x * k
    np.put(k, 0, 7)
    assert k.tolist() == [7, 1]
    with pytest.raises(ValueError, match=r"changed in place after it was used .*np\.put"):
        y.sum().backward()


class Several(list):
    pass


@pytest.mark.parametrize("several", [deque, Several, namedtuple("Pair", "first second")._make])
@pytest.mark.parametrize("dtype", [float, int])
def test_any_sequence_of_numpys_may_hold_the_tensors(several, dtype):
    """The last frames of a game are kept in a deque."""
    a, b = (Tensor(np.arange(3, dtype=dtype), requires_grad=dtype is float) for _ in range(2))
    y = np.stack(several([a, b]))
    assert y.tolist() == [[0, 1, 2], [0, 1, 2]] and y.requires_grad is (dtype is float)


index, starts, n = np.array([3, 1, 3, 0]), [0, 1, 3], 5
REFUSED = {"out": np.zeros(3), "where": np.array([True, False, True]), "initial": 1.0, "mean": 0.0}
FIRST = {c[0]: c for c in reversed(CASES) if c[0] in FUNCTIONS}


def refused_by(f):
    """Those of NumPy's arguments that the rule has no place for, or has one to refuse them."""
    taken = inspect.signature(getattr(FUNCTIONS[f], "__wrapped__", FUNCTIONS[f])).parameters
    for name in inspect.signature(FUNCTIONS[f]).parameters.keys() & REFUSED.keys():
        if name == "out" or name not in taken:
            yield name


REFUSALS = [(c, name) for f, c in FIRST.items() for name in sorted(refused_by(f))]


def test_out_is_refused_wherever_numpy_has_it():
    refusing = {c[0] for c, name in REFUSALS if name == "out"}
    with_out = {f for f in FUNCTIONS if "out" in inspect.signature(f).parameters}
    assert with_out <= refusing


@pytest.mark.parametrize(
    "case, name", REFUSALS, ids=[f"{c[0].__name__}-{name}" for c, name in REFUSALS]
)
def test_an_argument_without_a_meaning_on_tensors_is_refused_not_passed_over(case, name):
    _, function, args, kwargs = case
    tensors = iter([Tensor(x, requires_grad=True) for x in floats([args, kwargs])])
    with pytest.raises(TypeError, match=f"does not take {name}="):
        function(*put(args, tensors), **put(kwargs, tensors), **{name: REFUSED[name]})


@pytest.mark.parametrize(
    "copied",
    [
        lambda t: np.tile(t, 1),
        lambda t: np.tile(t, ()),
        lambda t: np.tile(t, (1, 1)),
        lambda t: np.repeat(t, 1),
        lambda t: np.repeat(t, 1, axis=0),
    ],
)
def test_once_is_a_copy_too_as_numpys(copied):
    t = Tensor(R(2, 3))
    assert not np.shares_memory(copied(t).numpy(), t.numpy())


X = R(2, 3)
METHODS = [
    lambda a: a.argmax(0, keepdims=True),
    lambda a: a.argmin(1, keepdims=True),
    lambda a: a.argmin(),
    lambda a: a.argsort(0),
    lambda a: a.any(0, keepdims=True),
    lambda a: a.all(1, keepdims=True),
    lambda a: a.all(1),
    lambda a: a.any(0),
    lambda a: a.dot(X.T),
    lambda a: a.trace(1),
    lambda a: a.take([0, 0, 2], 1),
    lambda a: a.diagonal(1),
    lambda a: a.flatten(),
    lambda a: a.ravel(),
    lambda a: a.transpose(),
    lambda a: a.transpose(None),
    lambda a: a.transpose(1, 0),
    lambda a: a.repeat(2, 1),
    lambda a: a.cumsum(1),
    lambda a: a.clip(-1, 0.5),
    lambda a: a.round(1),
    lambda a: a.swapaxes(0, 1),
    lambda a: a.prod(1),
    lambda a: a.var(0, ddof=1),
    lambda a: a.std(1),
    lambda a: a.min(0, keepdims=True),
    lambda a: 7.5 % a,
    lambda a: a % 0.7,
    lambda a: 7.5 // a,
    lambda a: a // 0.7,
    lambda a: +a,
    lambda a: a[[]],
]


@pytest.mark.parametrize("call", METHODS, ids=range(len(METHODS)))
def test_methods_are_those_of_arrays(call):
    found, expected = call(Tensor(X, requires_grad=True)), call(X)
    found = ta.no_grad()(np.asarray)(found)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-14, strict=True)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "abs"])
def test_functions_that_are_methods_too(name):
    t = Tensor(P(3), requires_grad=True)
    mine, numpys = getattr(t, name)(), getattr(np, name)(t)
    assert mine.tolist() == numpys.tolist() and mine._node.op is numpys._node.op


def test_einsum_says_which_labels_are_wrong():
    with pytest.raises(ValueError, match="2 groups of labels in 'ij,jk->ik' for 1 operands"):
        np.einsum("ij,jk->ik", T)
    with pytest.raises(ValueError, match="'ij' name 2 axes of an operand that has 1"):
        np.einsum("ij->i", T)
    with pytest.raises(ValueError, match=r"'ij\.\.\.' name 2 axes of an operand that has 1"):
        np.einsum("ij...->...", T)
    square = Tensor(np.ones((3, 3)), requires_grad=True)
    for number in (60, -1, 1.0, "i", True):  # 60 was the letter of 8, and so this the trace
        with pytest.raises(ValueError, match="whole numbers from 0 to 51"):
            np.einsum(square, [number, 8])
    assert (
        np.einsum(square, [np.array(8), np.uint8(8)]).item() == 3
    )  # all that NumPy takes for a whole number


def test_integers_and_booleans_come_back_as_plain_arrays():
    t = Tensor(R(2, 3), requires_grad=True)
    for y in (
        np.argmax(t, axis=1),
        np.argsort(t),
        np.isnan(t),
        np.greater(t, 0),
        t > 0,
        np.shape(t),
        np.nonzero(t)[0],
        np.int64(t),
        np.where(t > 0)[0],
        np.isclose(t, t),
        np.count_nonzero(t),
        np.zeros_like(t),
        np.ones_like(t),
        np.full_like(t, 2.0),
    ):
        assert not isinstance(y, Tensor)
    assert np.allclose(t, t) and np.array_equal(t, t) and not np.any(np.isinf(t))
    np.testing.assert_array_equal(np.int64(t), t.numpy().astype(np.int64))


def test_what_numpy_takes_for_whole_numbers_are_no_fractions():
    table, whole = np.array([10.0, 20.0, 30.0]), Tensor(np.array([0, 2]))
    for places in (Tensor([0.6, 1.4]), Tensor([0.6, 1.4], requires_grad=True)):
        for pick in (np.take, np.ndarray.take, np.repeat, np.ndarray.repeat):
            with pytest.raises(
                TypeError, match="Cannot cast array data"
            ):  # as it says of an array of them
                pick(table, places)
        np.testing.assert_array_equal(
            np.array(places, dtype=int), [0, 1]
        )  # here a cast is asked for
    np.testing.assert_array_equal(np.take(table, whole), [10, 30])


def test_integer_tensors_keep_the_names_of_a_result():
    found = np.linalg.slogdet(Tensor(np.array([[2, 1], [1, 3]])))
    assert (
        isinstance(found.logabsdet, Tensor)
        and found.sign.item() == 1
        and math.isclose(found.logabsdet.item(), math.log(5))
    )


def test_without_a_gradient_at_stake_a_tensor_is_an_array():
    free = Tensor(R(3))
    assert type(np.array([free, free])) is np.ndarray
    with ta.no_grad():
        assert type(np.asarray(T)) is np.ndarray


@pytest.mark.skipif("copy" not in inspect.signature(np.reshape).parameters, reason="NumPy 2.1")
def test_reshape_copies_when_told_to_and_says_when_it_would_have_to():
    t = Tensor(R(2, 3), requires_grad=True)
    y = np.reshape(t, 6, copy=True)
    assert not np.shares_memory(y.data, t.data) and np.shares_memory(
        np.reshape(t, 6, copy=False).data, t.data
    )
    np.testing.assert_array_equal(ta.grad((y * y).sum(), t)[0].numpy(), 2 * t.data)
    with pytest.raises(
        ValueError, match=r"np\.reshape of Tensor \(3, 2\) float64: Unable to avoid creating a copy"
    ):
        np.reshape(t.T, 6, copy=False)


def test_dtype_converts_the_operands_first():
    for y in (
        np.exp(T, dtype=np.float32),
        np.exp(T, dtype=np.float32, casting="same_kind"),
        np.sum(T, dtype=np.float32),
        np.mean(T, None, np.float32),
        np.nanmean(T, dtype=np.float32),
        np.concatenate([T, T], dtype=np.float32),
    ):
        assert y.dtype == np.float32 and ta.grad(y.sum(), T)[0].dtype == np.float64
    a = np.array([[1.7, 0.0], [0.0, 1.6]])
    trace = np.linalg.trace(Tensor(a), dtype=np.float32)
    assert trace.dtype == np.float32 and trace.item() == np.linalg.trace(a, dtype=np.float32)


def test_whole_numbers_become_what_numpy_makes_of_them():
    for a in (np.array([100, -3], np.int8), np.array([7, 2])):
        for f in (
            lambda x: x**2.0,
            lambda x: x**3.0,
            lambda x: x**2,
            lambda x: np.power(x, 2.0),
            np.rint,
            np.fabs,
        ):
            mine, numpys = f(Tensor(a)).numpy(), f(a)
            assert mine.dtype == numpys.dtype and np.array_equal(mine, numpys)
    assert (Tensor(np.array([True])) ** 2).dtype == np.int8


def test_a_mask_of_where_may_be_a_tensor_if_the_result_is_plain():
    mask, a = np.array([True, False]), np.array([3.0, 1.0])
    for x in (a, Tensor(a, requires_grad=True)):
        assert np.greater(x, 2.0, where=Tensor(mask))[0]
    with pytest.raises(TypeError, match="does not take where=Tensor"):
        np.add(Tensor(a), 2.0, where=Tensor(mask))


def test_methods_of_ufuncs():
    a, b = R(2, 3), P(2)
    t, u = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
    for mine, numpys in (
        (np.add.reduce(t), np.add.reduce(a)),
        (np.multiply.reduce(t, axis=1), np.multiply.reduce(a, axis=1)),
        (np.maximum.reduce(t, axis=None), np.maximum.reduce(a, axis=None)),
        (np.add.accumulate(t, axis=1), np.add.accumulate(a, axis=1)),
        (np.minimum.reduce(t, keepdims=True), np.minimum.reduce(a, keepdims=True)),
        (np.multiply.outer(t, u), np.multiply.outer(a, b)),
        (np.subtract.outer(2.0, u), np.subtract.outer(2.0, b)),
    ):
        assert isinstance(mine, Tensor)
        np.testing.assert_allclose(mine.numpy(), numpys)
    gradgradcheck(lambda x, y: np.multiply.outer(x, y), [a, b])
    gradgradcheck(lambda x: np.add.accumulate(x, axis=1) * np.maximum.reduce(x), [a])


def test_python_scalars_and_numpy_scalars_keep_float32():
    t = Tensor(R(3).astype(np.float32), requires_grad=True)
    for y in (
        np.multiply(2.0, t),
        np.add(t, np.float64(2)),
        np.maximum(0, t),
        np.where([True, False, True], t, 0.0),
        np.stack([t[0], 1.0]),
        np.clip(t, 0.0, 1.0),
        np.power(np.abs(t), 2.5),
        np.linalg.norm(t),
        np.linspace(t[0], 1.0, 3),
        np.einsum("i,i", t, t),
        np.pad(t, 1),
        np.logaddexp2(t, 1.0),
        np.copysign(t, -1.0),
        np.heaviside(t, 0.5),
        np.nan_to_num(t),
        np.sinc(t),
        np.quantile(t, 0.3),
    ):
        assert y.dtype == np.float32, y


# ---- kinks, ties and limits


def test_ties_and_kinks_are_pytorchs():
    from support import require

    torch = require("torch")
    x = np.array([1.0, 3.0, 3.0, 0.0])
    for mine, theirs in (
        (np.max, torch.amax),
        (np.linalg.norm, torch.linalg.vector_norm),
        (np.abs, torch.abs),
        (np.sign, torch.sign),
        (
            lambda x: np.maximum(x, 3.0),
            lambda x: torch.maximum(x, torch.tensor(3.0, dtype=x.dtype)),
        ),
        (lambda x: np.fmax(x, 3.0), lambda x: torch.fmax(x, torch.tensor(3.0, dtype=x.dtype))),
        (lambda x: np.linalg.norm(x * 0), lambda x: torch.linalg.vector_norm(x * 0)),
    ):
        t, u = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        mine(t).sum().backward()
        theirs(u).sum().backward()
        np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy())


def test_fmax_gives_the_gradient_to_the_operand_that_is_a_number():
    a, b = (
        Tensor(np.array(v), requires_grad=True) for v in ([np.nan, 1.0, 2.0], [5.0, np.nan, 3.0])
    )
    np.fmax(a, b).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), [0, 1, 0])
    np.testing.assert_array_equal(b.grad.numpy(), [1, 0, 1])


def test_singular_values_that_coincide_still_have_a_nuclear_norm():
    t = Tensor(np.eye(3), requires_grad=True)
    np.linalg.norm(t, "nuc").backward()
    np.testing.assert_allclose(t.grad.numpy(), np.eye(3), atol=1e-12)


def test_sinc_at_zero_has_its_second_derivative():
    slope = lambda x: ta.grad(np.sinc(x), x, create_graph=True)[0]
    x = Tensor(np.array(0.0), requires_grad=True)
    np.testing.assert_allclose(ta.grad(slope(x), x)[0].numpy(), -(math.pi**2) / 3)


# ---- NumPy code that learns unchanged


def attention(x, w_query, w_key, w_value, w_out):
    """Plain NumPy, with one matrix of each kind for every head."""
    q, k, v = (np.einsum("bte,hed->bhtd", x, w) for w in (w_query, w_key, w_value))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(k.shape[-1])
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    heads = np.transpose(weights @ v, (0, 2, 1, 3))
    return np.reshape(heads, (*x.shape[:2], -1)) @ w_out


def test_attention_in_plain_numpy_learns():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in ((1, 3, 4), (2, 4, 2), (2, 4, 2), (2, 4, 3), (6, 4))]
    tensors = [Tensor(a, requires_grad=True) for a in arrays]
    y = attention(*tensors)
    np.testing.assert_allclose(y.numpy(), attention(*arrays), rtol=1e-12)
    gradgradcheck(attention, arrays, fast_mode=True)
    half = [Tensor(a.astype(np.float32), requires_grad=True) for a in arrays]
    out = attention(*half)
    assert out.dtype == np.float32 and all(g.dtype == np.float32 for g in ta.grad(out.sum(), half))


def test_layer_norm_in_plain_numpy_to_third_order():
    def normalized(x):
        return (x - np.mean(x, axis=-1, keepdims=True)) / np.std(x, axis=-1, keepdims=True)

    x, v = R(2, 4), P(2, 4)
    slope = lambda t: ta.value_and_grad(
        lambda s: np.sum(np.tanh(normalized(s))[:, 0]), create_graph=True
    )(t)[1]
    gradgradcheck(slope, [x])  # the gradient, its gradient, and that one's: third order
    hvp = lambda t: ta.hvp(lambda s: np.sum(np.tanh(normalized(s))[:, 0]), t, v, create_graph=True)
    gradgradcheck(
        hvp, [x]
    )  # a gradient of a Hessian-vector product, and its gradient: fourth order


class Series:
    """As those of other libraries: an array inside, of a dtype of its own."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __array__(self, dtype=None, copy=None):
        return np.array(self.numbers, dtype)


def test_arrays_of_other_libraries_keep_their_precision():
    half, x = Tensor(np.ones(2, np.float32), requires_grad=True), np.array([0.1, 0.2])
    assert np.array_equal(np.stack([half, Series(x)])[1].numpy(), x)
    assert np.array_equal(Tensor([Series(x), Series(x)])[0].numpy(), x)
    assert np.stack([half, [0.1, 0.2]]).dtype == Tensor([[0.1, 0.2]]).dtype == np.float32


@pytest.mark.parametrize(
    "ufunc, name",
    [
        (np.maximum, "cummax"),
        (np.minimum, "cummin"),
        (np.logaddexp, "logcumsumexp"),
        (np.multiply, "cumprod"),
        (np.add, "cumsum"),
    ],
)
@pytest.mark.parametrize(
    "values",
    [
        [1.0, 3.0, 3.0, 2.0, 3.0, 5.0],
        [2.0, 2.0, 0.0, -1.0, 0.0, 4.0],
        [1.0, np.nan, 5.0, np.nan, 7.0, -9.0],
    ],
)
def test_running_values_are_pytorchs_with_ties_zeros_and_nan(ufunc, name, values):
    torch = require("torch")
    x, g = np.array([values, values[::-1]]), np.random.default_rng(0).standard_normal((2, 6))
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, wanted = ufunc.accumulate(ours, axis=1), getattr(theirs, name)(1)
    wanted = getattr(wanted, "values", wanted) if name in ("cummax", "cummin") else wanted
    y.backward(g)
    wanted.backward(torch.tensor(g))
    np.testing.assert_allclose(y.numpy(), wanted.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(y.numpy(), ufunc.accumulate(x, axis=1), rtol=1e-12)
    finite = np.isfinite(theirs.grad.numpy())
    np.testing.assert_allclose(ours.grad.numpy()[finite], theirs.grad.numpy()[finite], rtol=1e-12)


def test_a_product_of_many_has_the_slopes_of_the_products_that_are_left():
    """Where one factor is 0 only the slope by that one, and those before it, are not."""
    x = np.random.default_rng(0).standard_normal(100)
    x[40] = 0
    t = Tensor(x, requires_grad=True)
    np.cumprod(t)[60].backward()
    wanted = np.zeros(100)
    wanted[40] = np.prod(np.delete(x[:61], 40))
    np.testing.assert_allclose(t.grad.numpy(), wanted, rtol=1e-12)


def test_a_line_between_points_is_constant_beyond_them_and_takes_the_slope_to_the_right_of_each():
    x = Tensor(
        [-np.inf, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, np.inf], requires_grad=True, dtype=np.float64
    )
    values = Tensor([5.0, 7.0, 4.0], requires_grad=True, dtype=np.float64)
    y = np.interp(x, [0.0, 1.0, 2.0], values)
    np.testing.assert_array_equal(y.numpy(), np.interp(x.numpy(), [0, 1, 2], values.numpy()))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 2, 2, -3, 0, 0, 0])
    assert np.isnan(np.interp(Tensor(np.nan, requires_grad=True), [0.0, 1.0, 2.0], values).item())
    edges = np.interp(Tensor([0.0, 2.0]), [0.0, 1.0, 2.0], values, left=-7.0, right=9.0)
    np.testing.assert_array_equal(edges.numpy(), values.numpy()[[0, -1]])  # still on the knots
    np.testing.assert_array_equal(values.grad.numpy(), [3.5, 1.5, 3])
    for wrong in (([0.0, 1.0], values), ([], []), (np.zeros((2, 2)), np.zeros((2, 2)))):
        with pytest.raises(ValueError, match="two vectors of one length"):
            np.interp(x, *wrong)
    with pytest.raises(ValueError, match="period must not be 0"):
        np.interp(x, [0.0, 1.0, 2.0], values, period=0)


def test_equal_numbers_have_a_standard_deviation_of_slope_0_also_beside_nan():
    x = Tensor([[2.0, np.nan, 2.0], [1.0, 3.0, np.nan]], requires_grad=True)
    np.nanstd(x, axis=1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [[0, 0, 0], [-0.5, 0.5, 0]])


@pytest.mark.parametrize("shape", [(4, 2), (3, 3), (2, 4, 3)])
def test_qr_is_pytorchs(shape):
    torch = require("torch")
    rng = np.random.default_rng(0)
    a = rng.standard_normal(shape)
    ours, theirs = Tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    mine, wanted = np.linalg.qr(ours), torch.linalg.qr(theirs)
    gq, gr = (rng.standard_normal(x.shape) for x in (mine.Q, mine.R))
    ((mine.Q * gq).sum() + (mine.R * gr).sum()).backward()
    ((wanted.Q * torch.tensor(gq)).sum() + (wanted.R * torch.tensor(gr)).sum()).backward()
    np.testing.assert_allclose(mine.Q.numpy(), wanted.Q.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), atol=1e-12)


def test_numbers_beside_an_integer_tensor_keep_their_fractions():
    """What has no dtype of its own takes that of the floating Tensors, never that of the integers."""
    whole, x = Tensor(np.array([0, 1, 2])), Tensor([1.0, -2.0, 3.0], dtype=np.float64)
    assert np.interp(1.5, whole, x).item() == 0.5
    np.testing.assert_array_equal(np.stack([whole, [0.5, 1.5, 2.5], x])[1].numpy(), [0.5, 1.5, 2.5])
    np.testing.assert_allclose(
        np.logspace(whole, x, 3, base=2.5).numpy(),
        np.logspace(whole.numpy(), x.numpy(), 3, base=2.5),
    )
    base = Tensor(3.0, dtype=np.float64)
    np.testing.assert_allclose(
        np.logspace(Tensor(np.array(2)), Tensor(np.array(9)), 5, base=base).numpy(),
        np.logspace(2, 9, 5, base=3.0),
    )


@pytest.mark.parametrize("function", [np.linspace, np.logspace, np.geomspace])
def test_whole_numbers_between_two_are_numpys_to_the_last_one(function):
    for stop, num, endpoint in [(7.0, 8, True), (7.0, 7, False), (5.0, 3, True), (9.0, 10, True)]:
        start = float(function is np.geomspace)
        wanted = function(start, stop, num, endpoint, dtype=int)
        found = function(
            Tensor(start, dtype=np.float64),
            Tensor(stop, dtype=np.float64),
            num,
            endpoint,
            dtype=int,
        )
        np.testing.assert_array_equal(found.numpy(), wanted)
        assert found.dtype == wanted.dtype and not found.requires_grad


def test_a_line_through_infinity_has_the_values_of_its_knots():
    places, values = [0.0, 1.0, 2.0, 3.0, np.inf], [1.0, np.inf, 3.0, np.nan, np.nan]
    x = Tensor([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 4.0], dtype=np.float64)
    np.testing.assert_array_equal(
        np.interp(x, places, values).numpy(), np.interp(x.numpy(), places, values)
    )
    places, values = [-np.inf, 1.0, 2.0, np.inf], [7.0, 1.0, 2.0, 3.0]
    np.testing.assert_array_equal(
        np.interp(x, places, values).numpy(), np.interp(x.numpy(), places, values)
    )


def test_piecewise_takes_a_single_number_an_empty_array_and_only_conditions_of_its_shape():
    square, x = (lambda v: v * v), Tensor(3.0, requires_grad=True)
    y = np.piecewise(x, [x > 0, x <= 0], [square, -1])
    y.backward()
    assert y.shape == () and y.item() == 9 and x.grad.item() == 6
    assert np.piecewise(x, x < 0, [square, -1]).item() == -1
    nothing = Tensor(np.zeros((0, 2)), requires_grad=True)
    assert np.piecewise(nothing, [nothing.numpy() > 0], [square]).shape == (0, 2)
    with pytest.raises(ValueError, match=r"each of the shape \(2,\) of x"):
        np.piecewise(Tensor([1.0, 2.0]), [np.array([True, False, True])], [1.0])


def test_the_middle_of_three_even_places_does_not_count_for_the_slope_there():
    values = np.array([1.0, np.nan, 2.0, 1e30, 3.0, np.inf])
    for spacing in ((), (2.0,), (np.arange(6),)):
        np.testing.assert_array_equal(
            np.gradient(Tensor(values), *spacing).numpy(), np.gradient(values, *spacing)
        )


@pytest.mark.parametrize(
    "write",
    [
        lambda whole, x: np.insert(whole, 0, x),
        lambda whole, x: np.full_like(whole, x[0]),
        lambda whole, x: np.ediff1d(whole, x),
        lambda whole, x: np.piecewise(whole, [whole.numpy() > 1], [lambda v, u: v * u], x[0]),
    ],
)
def test_a_gradient_is_not_lost_among_whole_numbers(write):
    with pytest.raises(TypeError, match=r"keeps the dtype int64, .* Write .astype\(float\)"):
        write(Tensor(np.array([1, 2, 3])), Tensor([1.5, 2.5], requires_grad=True))


def test_the_dtype_is_that_of_the_array_where_numpys_is():
    half, x = Tensor(np.float32([1, 2, 4])), Tensor([0.5, 1.5], dtype=np.float64)
    assert (
        np.ediff1d(half, x).dtype
        == np.gradient(half, x[0]).dtype
        == np.quantile(half, x[0], method="lower").dtype
        == np.float32
    )
    assert np.polyval(x.numpy(), half).dtype == np.float64
    assert np.interp(1.5, half, np.array([1.0, -2.0, 3.0])).dtype == np.float64
    narrow = np.float16([1, 3])
    np.testing.assert_allclose(
        np.geomspace(Tensor(narrow[0]), Tensor(narrow[1]), 3, dtype=np.float32).numpy(),
        [1, 3**0.5, 3],
        rtol=1e-6,
    )


def test_turns_of_another_period_have_a_slope_by_it():
    x, period = (
        Tensor([0.0, 2.5, 0.1, 6.4], dtype=np.float64),
        Tensor(3.0, requires_grad=True, dtype=np.float64),
    )
    y = np.unwrap(x, period=period)
    np.testing.assert_allclose(y.numpy(), np.unwrap(x.numpy(), period=3.0))
    y.sum().backward()
    assert period.grad.item() == np.round((y.numpy() - x.numpy()) / 3).sum() != 0
    np.testing.assert_allclose(
        np.unwrap(Tensor(np.array([0, 9])), discont=Tensor(4.0)).numpy(),
        np.unwrap([0, 9], discont=4.0),
    )


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.logaddexp, np.maximum])
def test_running_values_along_the_only_axis_and_of_whole_numbers_are_numpys(ufunc):
    x = np.array([1.0, 3.0, 2.0])
    for axis in (None, (0,), -1):
        np.testing.assert_allclose(
            ufunc.accumulate(Tensor(x), axis=axis).numpy(), ufunc.accumulate(x, axis=axis)
        )
    for whole in (np.array([2]), np.array([1, 3, 2]), np.array([True, False])):
        found, wanted = ufunc.accumulate(Tensor(whole)), ufunc.accumulate(whole)
        assert isinstance(found, Tensor) and found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("small", [1e-14, 1e-15, 5e-16, 1e-16])
@pytest.mark.parametrize("rcond", [None, -1, 1e-3, 1e-20])
def test_least_squares_count_as_zero_what_numpys_do(small, rcond):
    for a in (np.diag([1.0, small])[[0, 1, 0, 1]], np.eye(30)[:, :2] * [1.0, small]):
        b = np.arange(1.0, len(a) + 1)
        for mine, numpys in zip(
            np.linalg.lstsq(Tensor(a), b, rcond=rcond),
            np.linalg.lstsq(a, b, rcond=rcond),
            strict=True,
        ):
            np.testing.assert_allclose(np.asarray(mine), numpys, rtol=1e-9, atol=1e-9)


def test_the_slope_of_least_squares_that_cut_off_what_is_not_zero_is_refused():
    """Its rule holds where what is cut off is zero up to rounding errors, as it is by default."""
    r = np.random.default_rng(0)
    u, v = (np.linalg.qr(r.standard_normal((n, n)))[0] for n in (4, 3))
    b = r.standard_normal(4)
    solve = lambda rcond: lambda x: np.linalg.lstsq(x, b, rcond=rcond)[0]  # noqa: E731
    for sizes, rcond, right in [
        ([1, 0.5, 0.05], None, True),
        ([1, 0.5, 0.05], 0.01, True),
        ([1, 0.5, 0.05], 0.1, False),
        ([1, 0.5, 5e-14], 0.1, True),  # as small as rounding errors
        ([1, 0.5, 1e-12], 0.1, False),
        ([1, 0.9, 0.5], 0.7, False),
    ]:
        a = u[:, :3] @ np.diag(sizes) @ v
        if right:
            assert ta.gradcheck(solve(rcond), a)
            continue
        x = Tensor(a, requires_grad=True)
        with pytest.raises(ValueError, match="np.linalg.solve") as error:
            solve(rcond)(x).sum().backward()
        penalised = re.search(r"instead: (.*)\.", str(error.value))[1]
        assert ta.gradcheck(lambda a, p=penalised: eval(p, dict(a=a, b=b, c=0.1, n=3, np=np)), a)
    a = u[:, :2] @ v[:2]  # of rank 2: what is cut off is zero
    x = Tensor(a, requires_grad=True)
    solve(0.1)(x).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_least_squares_of_float32_are_solved_in_float64_as_numpys():
    a = np.float32(
        [[1, 2, 3], [0.1, 0.3, 0.4], [0.7, 0.9, 1.6], [0.2, 0.1, 0.3]]
    )  # the last is the sum of the others, nearly
    b = np.float32([1, 2, 3, 4])
    mine, numpys = np.linalg.lstsq(Tensor(a), Tensor(b)), np.linalg.lstsq(a, b)
    assert mine[2] == numpys[2] and mine[0].dtype == mine[3].dtype == np.float32
    np.testing.assert_allclose(mine[0].numpy(), numpys[0], rtol=1e-4)


def test_a_matrix_of_zeros_has_an_infinite_condition_and_an_empty_one_none():
    both = np.stack([np.zeros((2, 2)), np.eye(2)])
    np.testing.assert_array_equal(np.linalg.cond(Tensor(both)).numpy(), np.linalg.cond(both))
    with pytest.raises(ValueError, match="empty matrix"):
        np.linalg.cond(Tensor(np.zeros((0, 0))), 1)


def test_a_product_of_many_matrices_is_bracketed_so_that_little_is_multiplied():
    a, b, c, x = (
        Tensor(np.ones(shape), requires_grad=True) for shape in ((4, 9), (9, 9), (9, 7), (7,))
    )
    y = np.linalg.multi_dot([a, b, c, x])
    assert y._node.inputs[0] is a
    assert [t.shape for t in history([y])] == [(9,), (9,), (4,)]  # always a matrix and a vector
    left_to_right = np.linalg.multi_dot([x, np.ones((7, 4)), a])
    assert [t.shape for t in history([left_to_right])] == [(4,), (9,)]


def test_no_cycle_of_references_keeps_the_operands_of_many_products_or_blocks():
    gc.collect()
    gc.disable()
    try:
        for join in (np.linalg.multi_dot, np.block, np.hstack, np.stack):
            parts = [Tensor(np.ones((2, 2)), requires_grad=True) for _ in range(3)]
            kept = weakref.ref(parts[0])
            join(parts).sum().backward()
            del parts
            assert kept() is None, join
    finally:
        gc.enable()


@pytest.mark.parametrize("power, products", [(1, 0), (2, 1), (13, 5), (-64, 6), (1000, 14)])
def test_a_power_of_a_matrix_takes_as_many_products_as_the_exponent_has_digits(power, products):
    a = Tensor(np.eye(2), requires_grad=True)
    assert (
        sum(
            t._node.op.stands_for is ops.matmul for t in history([np.linalg.matrix_power(a, power)])
        )
        == products
    )
