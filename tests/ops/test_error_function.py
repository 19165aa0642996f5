"""The error function, which NumPy lacks, against Python's."""

import math
import warnings

import numpy as np
import pytest

from tinygrad_attn import Tensor, ops
from tinygrad_attn.ops import error_function

DENSE = np.concatenate([np.linspace(-7, 7, 100_001), np.logspace(-300, 0, 10_001)])
FAR = np.array([6.0, 30.0, 1e30, np.inf])


@pytest.mark.parametrize(
    "dtype, error, relative", [(np.float64, 1e-15, 2e-15), (np.float32, 3e-7, 6e-7)]
)
def test_erf_is_accurate_on_a_dense_grid(dtype, error, relative):
    x = DENSE.astype(dtype)
    expected = np.array([math.erf(v) for v in x.tolist()])
    y = ops.erf(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, expected, rtol=0, atol=error)
    normal = np.abs(expected) > np.finfo(dtype).tiny
    np.testing.assert_allclose(y[normal], expected[normal], rtol=relative, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erf_far_out_and_of_nan(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = FAR[[0, 1, 3]].astype(dtype)
        np.testing.assert_array_equal(ops.erf(far), np.ones(3, dtype))
        np.testing.assert_array_equal(ops.erf(-far), -np.ones(3, dtype))
        assert ops.erf(FAR[2]) == 1 and np.isnan(ops.erf(np.full((2, 1), np.nan, dtype))).all()


def test_erf_of_numbers_of_other_kinds():
    for x in (1, True, np.array(1), np.array(1.0), Tensor(1.0, dtype=np.float64), np.float64(1)):
        assert math.isclose(ops.erf(x), math.erf(1.0), rel_tol=1e-15)
    assert ops.erf(np.zeros((0, 2), np.float32)).shape == (0, 2)
    assert type(error_function.erf(np.float32(0.5))) is np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_of_large_arrays_in_blocks(dtype):
    x = np.linspace(-4, 4, 70_001 * 3, dtype=dtype)
    for large in (x.reshape(3, -1), np.asfortranarray(x.reshape(-1, 3)), x[::-2]):
        y = ops.erf(large)
        assert y.shape == large.shape and y.dtype == dtype
        places = np.s_[::500] if large.ndim == 1 else np.s_[::2, ::500]
        expected = np.vectorize(math.erf)(large[places])
        np.testing.assert_allclose(y[places], expected, rtol=0, atol=4 * np.finfo(dtype).eps)
