"""A table of NumPy functions, with arguments at which they are differentiable, for tests/tensor/test_numpy.py.

The tests differentiate with respect to the floating-point arrays among the arguments, including those in lists.
All other arguments are passed unchanged. To cover a new rule, add a line.
"""

import numpy as np

rng = np.random.default_rng(0)


def R(*shape):
    """Numbers of both signs, away from 0, integers and each other, so that no kink or tie is near."""
    n = int(np.prod(shape))
    spread = np.linspace(-1.9, 1.9, n) + 0.13 if n > 1 else np.array([0.7])
    values = spread + rng.uniform(-0.03, 0.03, n)
    near = np.abs(values - np.round(values)) < 0.1
    return rng.permutation(values + near * np.copysign(0.14, values - np.round(values))).reshape(
        shape
    )


def P(*shape):
    """Positive numbers."""
    return rng.uniform(0.3, 2.0, shape)


def U(*shape):
    """Numbers inside (-1, 1)."""
    return rng.uniform(-0.8, 0.8, shape)


def M(*shape):
    """Well-conditioned matrices."""
    return rng.standard_normal(shape) + 3 * np.eye(shape[-1])


def lower(function):
    """Return `function` as a function of a lower triangle, from which it gets a symmetric matrix."""

    def of_lower(a, *args, **kwargs):
        low = np.tril(a)
        return function(
            low @ np.swapaxes(low, -1, -2) + np.diag(np.arange(2, 2 + a.shape[-1])).astype(a.dtype),
            *args,
            **kwargs,
        )

    of_lower.__name__ = function.__name__
    return of_lower


CASES = []


def case(function, *args, of=None, **kwargs):
    """Add a case. If `function` is a wrapper, `of` is the NumPy function that it wraps."""
    CASES.append((of or function, function, args, kwargs))


# ---- ufuncs


def functions(names):
    return [getattr(np, name) for name in names.split()]


UNARY = """
    negative positive conjugate absolute fabs reciprocal square exp exp2 expm1 sin cos tanh sinh cosh arctan arcsinh cbrt degrees rad2deg
    radians deg2rad
"""
BINARY = """
    add subtract multiply divide arctan2 hypot logaddexp logaddexp2 maximum minimum fmax fmin copysign remainder fmod
"""
for f in functions(UNARY):
    case(f, R(2, 3))
for f in functions("sqrt log log2 log10 log1p"):
    case(f, P(2, 3))
for f in functions("tan arcsin arccos arctanh"):
    case(f, U(2, 3))
case(np.arccosh, 1.3 + P(2, 3))
for f in functions(BINARY):
    case(f, R(2, 3), R(3))
    case(f, R(1, 3), R(2, 1))
case(np.power, P(2, 3), R(3))
case(np.power, R(3), 3)
for f in (np.floor, np.ceil, np.trunc, np.sign):
    case(f, R(2, 3))
case(np.floor_divide, R(2, 3), P(3))
case(np.matmul, R(2, 2, 3), R(3, 2))
case(np.matmul, R(3), R(2, 3, 2))
case(np.matmul, R(2, 2, 3), R(3))
case(np.vecdot, R(2, 3), R(3))
case(np.vecdot, R(3, 2), R(3, 2), axis=0)

# ---- reductions

for f in functions("sum mean max min prod var std amax amin"):
    case(f, R(2, 3))
    case(f, R(2, 3), axis=0)
    case(f, R(2, 1, 3), axis=(0, -1), keepdims=True)
case(np.sum, R(2, 3), 1, None, None, True)
case(np.var, R(4), ddof=1)
case(np.std, R(2, 4), axis=1, ddof=1)
case(np.cumsum, R(2, 3))
case(np.cumsum, R(2, 3), axis=1)
case(np.cumprod, R(2, 5), axis=1)
case(np.cumprod, np.array([0.5, 0.0, 2.0, 0.0, 3.0]))

# ---- elementwise, differences

case(np.where, np.array([True, False, True]), R(2, 3), R(3))
case(np.where, np.array([True, False, True]), R(3), 0)
case(np.clip, R(2, 3), -0.6, 0.6)
case(np.clip, R(2, 3), np.array([-0.4, 0.05, -1.1]), np.array([0.45, 0.35, -0.35]))
case(np.clip, R(2, 3), None, np.array([0.1, 0.55, 0.9]))
case(np.round, R(2, 3), 1)
case(np.select, [np.array([True, False, False]), np.array([True, True, False])], [R(3), R(3)], 0.5)
case(np.nan_to_num, np.array([1.0, -2.0, 0.5]))
case(np.sinc, np.array([0.0, 0.01, 0.3, -1.2]))
for f in (np.real, np.real_if_close, np.copy, np.imag, np.angle):
    case(f, R(3))
case(np.astype, R(3), np.float64)
case(np.diff, R(4, 2), n=2, axis=0)
case(np.diff, R(2, 3), axis=1, prepend=0.5, append=R(2, 1))
case(np.gradient, R(3, 4))
case(np.gradient, R(5), 0.5)
case(np.gradient, R(2, 5), np.array([0.0, 0.5, 2.0, 2.5, 4.0]), axis=1)
case(np.linspace, np.array(0.3), np.array(1.9), 4)
case(np.linspace, R(2), R(2), 3, endpoint=False)

case(np.full_like, R(2, 3), np.array(0.4))

# ---- shapes, joins, splits

case(np.reshape, R(2, 3), (3, 2))
case(np.ravel, R(2, 3))
case(np.transpose, R(2, 3, 1), (1, 2, 0))
case(np.transpose, R(2, 3))
case(np.moveaxis, R(2, 3, 1), (0, 1), (1, 2))
case(np.rollaxis, R(2, 3, 1), 2, 1)
case(np.squeeze, R(2, 1, 3, 1))
case(np.squeeze, R(2, 1, 3, 1), axis=1)
case(np.expand_dims, R(2, 3), (0, 2))
for f in (np.atleast_1d, np.atleast_2d, np.atleast_3d):
    case(f, np.array(0.4))
    case(f, R(2, 3))
case(np.broadcast_to, R(2, 1), (3, 2, 3))
case(np.broadcast_arrays, R(2, 1), R(3))
case(np.meshgrid, R(2), R(3))
case(np.meshgrid, R(2), np.array(0.4), R(3), indexing="ij")
case(np.swapaxes, R(2, 3, 1), 0, 2)
case(np.flip, R(2, 3))
case(np.flip, R(2, 3), 1)
case(np.flipud, R(2, 3))
case(np.fliplr, R(2, 3))
case(np.roll, R(2, 3), (1, 2), axis=(0, 1))
case(np.lib.stride_tricks.sliding_window_view, R(4), 2)
case(np.lib.stride_tricks.sliding_window_view, R(4, 3), (2, 3))
case(np.lib.stride_tricks.sliding_window_view, R(2, 4, 3), [2, 2], axis=(-2, 2))
case(np.lib.stride_tricks.sliding_window_view, R(2, 5), (2, 3), axis=(1, 1))
case(np.tril, R(3, 3))
case(np.triu, R(2, 3), 1)
case(np.concatenate, [R(2, 3), R(1, 3)])
case(np.concatenate, [R(2, 3), R(2)], axis=None)
case(np.stack, [R(2, 3), R(2, 3)], axis=1)
case(np.vstack, [R(3), R(2, 3)])
case(np.hstack, [R(3), R(2)])
case(np.hstack, [R(2, 3), R(2, 1)])
case(np.dstack, [R(2, 3), R(2, 3)])
case(np.column_stack, [R(3), R(3, 2)])
case(np.append, R(2, 3), 4.0)
case(np.append, R(2, 3), R(1, 3), axis=0)
case(np.block, [[R(2, 2), R(2, 1)], [R(1, 3)]])
case(np.block, [R(2), 3.0])
for f in (np.fft.fftshift, np.fft.ifftshift):
    case(f, R(2, 5))
    case(f, R(3, 4), axes=0)
case(np.split, R(2, 5), [1, 1, 3], axis=1)
case(np.array_split, R(5), 2)
case(np.hsplit, R(2, 4), 2)
case(np.vsplit, R(4, 2), 2)
case(np.dsplit, R(2, 1, 4), [1])
case(np.pad, R(2, 3), ((1, 0), (2, 1)), constant_values=0.5)
for mode in ("edge", "reflect", "symmetric", "wrap"):
    case(np.pad, R(2, 3), 1, mode)
case(np.take, R(2, 3), [0, 0, 4])
case(np.take, R(2, 3), np.array([[0, 2], [2, 2]]), axis=1)
case(np.take_along_axis, R(2, 3), np.array([[0, 0], [2, 1]]), axis=1)
case(np.sort, R(2, 4))
case(np.partition, R(2, 4), 1)
case(np.partition, R(2, 3), 2, axis=None)
case(np.diagonal, R(3, 2, 3), 1, 0, 2)
case(np.trace, R(3, 4), 1)
case(np.diag, R(3), -1)
case(np.diag, R(2, 3))
case(np.diagflat, R(2, 2), 1)
case(np.tile, R(2, 3), (2, 1, 2))
case(np.tile, R(2, 3), 3)
case(np.tile, R(2, 3), (0, 2))
case(np.repeat, R(2, 3), 2)
case(np.repeat, R(2, 3), 3, axis=0)
case(np.repeat, R(2, 3), 0, axis=1)
case(np.repeat, R(2, 3), [1, 2], axis=0)
case(np.rot90, R(2, 3))
case(np.delete, R(2, 3), 1, axis=1)

# ---- products and np.linalg

case(np.dot, R(2, 3), R(3, 2))
case(np.dot, R(2, 3), R(3))
case(np.dot, R(2, 3), R(2, 3, 2))
case(np.dot, R(2), 2.5)
case(np.inner, R(2, 3), R(2, 3))
case(np.vdot, R(2, 3), R(2, 3))
case(np.outer, R(2), R(3))
case(np.tensordot, R(2, 3), R(2, 3))
case(np.tensordot, R(2, 3, 2), R(3, 2), ([1, 0], [0, 1]))
case(np.tensordot, R(2), R(3), 0)
for subscripts, *shapes in (
    ("ij,jk->ik", (2, 3), (3, 2)),
    ("ij->ji", (2, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("ij,ij", (2, 3), (2, 3)),
    ("...ij,...jk->...ik", (2, 2, 3), (3, 2)),
    ("bhtd,bhsd->bhts", (1, 2, 2, 3), (1, 2, 3, 3)),
    ("i,j,k", (2,), (3,), (2,)),
    ("ij->", (2, 3)),
    ("k,nk->", (3,), (2, 3)),
    ("ij,ij->ij", (1, 3), (2, 3)),
    ("iji->j", (2, 3, 2)),
):
    case(np.einsum, subscripts, *(R(*s) for s in shapes))
case(np.einsum, R(2, 3), [0, 1], R(3, 2), [1, 2], [0, 2])
case(np.einsum, R(2, 3), [Ellipsis, 0], R(3), [0])
case(np.kron, R(2, 1), R(3))
case(np.cross, R(2, 3), R(3))
case(np.cross, R(3, 2), R(3, 2), axis=0)
for options in ({}, {"ord": 1}, {"ord": 3}, {"ord": np.inf}, {"ord": -np.inf}, {"ord": 0}):
    case(np.linalg.norm, R(4), **options)
for options in (
    {},
    {"axis": 1},
    {"axis": (0, 1), "keepdims": True},
    {"ord": "nuc"},
    {"ord": 2},
    {"ord": -2},
    {"ord": 1},
    {"ord": np.inf},
    {"ord": -1},
):
    case(np.linalg.norm, R(3, 2), **options)
case(np.linalg.norm, R(2, 3, 2), "fro", (0, 2))
case(np.linalg.vector_norm, R(2, 3), axis=1)
case(np.linalg.inv, M(2, 3, 3))
case(np.linalg.pinv, R(3, 2))
case(np.linalg.pinv, R(2, 2, 3))
case(np.linalg.det, M(2, 3, 3))
case(np.linalg.slogdet, M(3, 3))
case(np.linalg.solve, M(2, 3, 3), R(3, 2))
case(np.linalg.solve, M(2, 3, 3), R(3))
case(lower(np.linalg.cholesky), R(3, 3), of=np.linalg.cholesky)
case(lower(np.linalg.cholesky), R(3, 3), of=np.linalg.cholesky, upper=True)
case(np.linalg.eigh, R(3, 3))
case(np.linalg.eigh, R(2, 3, 3), "U")
case(np.linalg.eigvalsh, R(2, 3, 3), "U")
for shape in ((3, 2), (2, 3), (2, 2, 2)):
    case(np.linalg.svd, R(*shape), full_matrices=False)
case(np.linalg.svd, R(2, 2))
case(np.linalg.svd, R(3, 2), compute_uv=False)
case(np.linalg.svdvals, R(2, 3))
case(np.linalg.qr, M(2, 3, 3))
case(np.linalg.qr, R(2, 2, 4))
case(np.linalg.qr, R(2, 3, 2), "r")
case(np.linalg.multi_dot, [R(3), R(3, 2), R(2, 4), R(4, 1), R(1, 3)])
case(np.linalg.diagonal, R(2, 3, 3))

FLAT = set(functions("floor ceil trunc sign round fix floor_divide imag angle"))
"""Functions with slope 0 wherever they are differentiable."""
