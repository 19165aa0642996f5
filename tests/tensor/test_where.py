"""Reductions of a part of the elements, `where=`, and those that begin with a number, `initial=`.

They give NumPy's numbers and slopes that finite differences have. Every reduction of NumPy's is
asked.
"""

import functools
import inspect

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import Tensor
from tinygrad_attn.tensor.names import FUNCTIONS
from tinygrad_attn.tensor.names.ufuncs import REDUCTIONS

NAN = np.nan
REDUCING = [f for f in FUNCTIONS if "where" in inspect.signature(FUNCTIONS[f]).parameters]
EXTREMES = {"max", "min", "amax", "amin", "nanmax", "nanmin", "maximum.reduce", "minimum.reduce"}
BEGIN = [f for f in REDUCING if "initial" in inspect.signature(FUNCTIONS[f]).parameters]
METHODS = [ufunc.reduce for ufunc in REDUCTIONS]
X = np.random.default_rng(3).permutation(np.linspace(-2.1, 2.3, 24)).reshape(2, 3, 4)
MASKS = [
    X > -1.2,
    np.array([True, False, True, True]),
    np.array([[True], [False], [True]]),
    np.ones((2, 3, 4), bool),
]


def name_of(f):
    return f"{f.__self__.__name__}.reduce" if hasattr(f, "__self__") else f.__name__


def settings_of(f):
    return {"initial": -9.0 if "max" in name_of(f) else 9.0} if name_of(f) in EXTREMES else {}


def test_every_reduction_of_numpys_with_a_mask_has_a_rule_with_one():
    with_mask = {
        f
        for f in vars(np).values()
        if inspect.isfunction(getattr(f, "_implementation", None))
        and "where" in inspect.signature(f).parameters
        and f in FUNCTIONS
    }
    assert with_mask == set(REDUCING) and len(REDUCING) >= 14 and len(METHODS) == 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Some lines have no element that counts.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mask", MASKS, ids=range(len(MASKS)))
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("f", REDUCING + METHODS, ids=name_of)
def test_of_a_part_of_the_elements_the_numbers_are_numpys(f, axis, mask, dtype):
    x = X.astype(dtype)
    for keepdims in (False, True):
        settings = dict(axis=axis, keepdims=keepdims, where=mask, **settings_of(f))
        found, wanted = f(Tensor(x), **settings), f(x, **settings)
        assert found.dtype == wanted.dtype and found.shape == np.shape(wanted)
        np.testing.assert_allclose(
            found.numpy(), wanted, rtol=1e-5 if dtype == np.float32 else 1e-12
        )


@pytest.mark.parametrize("axis, mask", [(None, MASKS[0]), (1, MASKS[1]), ((0, 2), MASKS[2])])
@pytest.mark.parametrize("f", REDUCING + METHODS, ids=name_of)
def test_of_a_part_of_the_elements_the_slopes_are_right_to_second_order(f, axis, mask):
    mask = np.broadcast_to(mask, X.shape).copy()
    mask[0] = mask[:, 0] = True  # No result is without any element.
    g = functools.partial(f, axis=axis, where=mask, **settings_of(f))
    x = Tensor(X, requires_grad=True)
    ta.gradcheck(g, [x])
    ta.gradgradcheck(g, [x])
    slope = ta.grad(g(x).sum(), x)[0].numpy()
    assert not slope[~np.broadcast_to(mask, X.shape)].any()


@pytest.mark.parametrize("f", BEGIN + METHODS, ids=name_of)
@pytest.mark.parametrize("initial", [0.0, 2, -1.5, True, np.float32(0.5)])
def test_a_reduction_that_begins_with_a_number_is_numpys(f, initial):
    for where in (True, MASKS[0]):
        settings = dict(axis=1, initial=initial, where=where)
        found, wanted = f(Tensor(X), **settings), f(X, **settings)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    empty = np.ones((2, 0))
    np.testing.assert_array_equal(
        f(Tensor(empty), axis=1, initial=initial).numpy(), f(empty, axis=1, initial=initial)
    )


@pytest.mark.parametrize("f", BEGIN, ids=name_of)
def test_the_number_that_a_reduction_begins_with_may_want_a_gradient(f):
    first = Tensor(0.7, requires_grad=True, dtype=np.float64)
    ta.gradcheck(
        lambda x, first: f(x, axis=0, initial=first), [Tensor(X, requires_grad=True), first]
    )


@pytest.mark.parametrize("f", REDUCING, ids=name_of)
def test_a_hidden_nan_or_infinity_has_no_influence(f):
    x, seen = X.copy(), X > -1.2
    x[~seen] = np.resize([NAN, np.inf, -np.inf], (~seen).sum())
    t = Tensor(x, requires_grad=True)
    y = f(t, where=seen, **settings_of(f))
    np.testing.assert_allclose(y.item(), f(X, where=seen, **settings_of(f)), rtol=1e-12)
    y.backward()
    u = Tensor(X, requires_grad=True)
    f(u, where=seen, **settings_of(f)).backward()
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("f", REDUCING, ids=name_of)
def test_where_no_element_is_chosen_the_result_is_numpys(f):
    nothing = np.zeros((2, 3, 4), bool)
    nothing[0] = True
    settings = dict(axis=(1, 2), where=nothing, **settings_of(f))
    np.testing.assert_allclose(f(Tensor(X), **settings).numpy(), f(X, **settings), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("ddof", [1, 3, 4])
@pytest.mark.parametrize("f", [np.var, np.std, np.nanvar, np.nanstd])
def test_as_many_degrees_of_freedom_are_taken_off_as_numpy_takes(f, ddof):
    x = X.copy()
    x[0, 0, :2] = NAN
    for settings in (dict(ddof=ddof), dict(correction=ddof)):
        settings |= dict(axis=-1, where=MASKS[1])
        np.testing.assert_allclose(f(Tensor(x), **settings).numpy(), f(x, **settings), rtol=1e-12)


def test_float16_is_summed_in_float32():
    x = np.full(5000, 3.0, np.float16)
    for f in (np.sum, np.mean, np.var, np.std):
        found = f(Tensor(x), where=x > 0)
        assert found.dtype == np.float16 and found.item() == pytest.approx(
            f(x.astype("f")), rel=1e-3
        )


def test_a_mask_may_be_a_tensor_and_is_refused_if_it_is_none():
    t = Tensor(X, requires_grad=True)
    assert np.sum(t, where=Tensor(X > 0)).item() == pytest.approx(X[X > 0].sum())
    with pytest.raises(TypeError, match="bool"):
        np.sum(t, where=[1, 0, 1, 1])
    with pytest.raises(ValueError, match="broadcast"):
        np.sum(t, where=np.ones((5, 2, 3, 4), bool))
    with pytest.raises(TypeError, match=r"write np\.sum\(t, where=mask\)"):
        t.sum(where=X > 0)


@pytest.mark.parametrize("f", [np.max, np.min, np.nanmax, np.nanmin, np.maximum.reduce])
def test_an_extreme_of_a_part_needs_a_beginning_and_the_advised_one_is_right(f):
    with pytest.raises(ValueError, match=r"needs initial=.*write initial=-?np\.inf") as error:
        f(Tensor(X), where=X > 0)
    advised = str(error.value).partition("write initial=")[2].partition(",")[0]
    found = f(Tensor(X), where=X > 0, initial=eval(advised), axis=None)
    assert found.item() == f(X[X > 0], axis=None)
