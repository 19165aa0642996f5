"""Kernels of linear layers, norms, softmax, cross-entropy and GELU.

Each is one op with a VJP of its own, in place of the composite in `functional`, its reference.
Second derivatives differentiate the reference. A kernel handles arrays of one dtype, float32 or
float64, and returns NotImplemented for anything else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from .. import functional as F
from .. import ops
from ..engine import array_of, kernel, op
from ..functional.basic import label_cross_entropy
from . import tuning
from .blocks import (
    QUIET,
    by_elements,
    by_rows,
    filled,
    fits,
    in_range,
    matrix,
    ones,
    row_sums,
    sum_of_rows,
)
from .memory import keep_freed
from .threads import dot, split, workers

# ---- products and linear layers


def product(a: ndarray, b: ndarray, bias: ndarray | None = None) -> ndarray:
    """Return a @ b + bias of two matrices, on several threads if they are large."""
    work = a.size * b.shape[1]
    if work >= tuning.SHARED_PRODUCT and workers() > 1:
        return _shared_product(a, b, bias)
    if a.size == 1 or b.size == 1:
        y = a * b  # dot with a single 0 gives zeros even where b is NaN
    else:
        y = dot(a, b)
    if bias is not None:
        y += bias
    return y


def _shared_product(a: ndarray, b: ndarray, bias: ndarray | None) -> ndarray:
    """Compute rows of the product in each thread, or columns where rows are few."""
    y = np.empty((len(a), b.shape[1]), a.dtype)

    def by_row(i: int, j: int) -> None:
        np.matmul(a[i:j], b, out=y[i:j])
        if bias is not None:
            y[i:j] += bias

    def by_column(i: int, j: int) -> None:
        np.matmul(a, b[:, i:j], out=y[:, i:j])
        if bias is not None:
            y[:, i:j] += bias[i:j]

    split(*((by_row, len(a)) if len(a) >= b.shape[1] else (by_column, b.shape[1])))
    return y


@op(reference=F.linear.function)
def linear(x, weight, bias):
    """y = x weight^T + bias"""
    y = product(matrix(x), weight.T, bias)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], len(weight))


@linear.vjp_all
def _linear_vjp(g, _y, x, weight, _bias, *, needs):
    g = matrix(g)
    dx = product(g, weight).reshape(x.shape) if needs[0] else None
    dweight = product(g.T, matrix(x)) if needs[1] else None
    return dx, dweight, sum_of_rows(g) if needs[2] else None


@kernel(F.linear)
def linear_kernel(x: Any, weight: Any, bias: Any = None) -> Any:
    """x (..., I), weight (O, I), bias (O,) or None."""
    w = array_of(weight)
    if not fits(x, weight, bias) or w.ndim != 2 or array_of(x).shape[-1] != w.shape[1]:
        return NotImplemented
    if bias is not None and array_of(bias).shape != w.shape[:1]:
        return NotImplemented
    keep_freed()
    return linear(x, weight, bias)


# ---- norms: y = (x - mean) / sqrt(var + eps) * weight + bias, or without a mean (Ba et al. 2016,
#      Zhang and Sennrich 2019). The normalised rows are computed again in the backward pass.


def normalise(
    x: ndarray, weight: ndarray | None, bias: ndarray | None, eps: float, center: bool
) -> tuple[ndarray, tuple]:
    """Return (y, (mean, 1 / deviation)) for rows x (rows, n)."""
    rows, n = x.shape
    kind = x.dtype.type
    y, reciprocal = np.empty_like(x), np.empty(rows, x.dtype)
    mean = np.empty(rows, x.dtype) if center else None
    average, root, n_eps = filled(n, 1 / n, x.dtype), kind(math.sqrt(n)), kind(n * eps)

    def deviation(centred: ndarray, r: ndarray) -> None:
        np.vecdot(centred, centred, out=r)
        r += n_eps
        np.divide(root, np.sqrt(r, out=r), out=r)  # sqrt(n) / sqrt(n var + n eps)

    def run(s: slice) -> None:
        block, r, centred = y[s], reciprocal[s], x[s]
        if mean is not None:
            m = np.dot(centred, average, out=mean[s])
            centred = np.subtract(centred, m[:, None], out=block)
        deviation(centred, r)
        if mean is not None and _far_from_zero(m, r):
            # Rounding of the mean shows: subtract the mean of what is left.
            m += centred.dot(ones(n, x.dtype)) / kind(n)
            np.subtract(x[s], m[:, None], out=block)
            deviation(block, r)
        np.multiply(centred, r[:, None], out=block)
        if weight is not None:
            block *= weight
        if bias is not None:
            block += bias

    by_rows(run, rows, n)
    return y, (mean, reciprocal)


def _far_from_zero(mean: ndarray, reciprocal: ndarray) -> bool:
    """Whether the mean of a row is large, measured by its standard deviation."""
    place, far = mean * reciprocal, tuning.FAR_FROM_ZERO
    return bool(np.vdot(place, place) > far * far and np.abs(place).max() > far)


def normalise_vjp(
    g: ndarray, x: ndarray, weight: ndarray | None, saved: tuple, needs: tuple
) -> tuple[ndarray, ndarray | None, ndarray | None]:
    """Return (dx, dweight, dbias); dx = r (d - mean(d) - h mean(d h)) for d = g weight, y = h."""
    (rows, n), dtype = x.shape, x.dtype
    mean, reciprocal = saved
    dx, sums = np.empty_like(x), {}
    average = filled(n, 1 / n, dtype)
    weighted = average if weight is None else average * weight

    def run(s: slice) -> None:
        gs, r, d = g[s], reciprocal[s], dx[s]
        centred = x[s] if mean is None else x[s] - mean[s, None]  # h but for the factor r
        t = gs * centred
        sums[s.start] = (
            r.dot(t) if needs[1] else None,
            ones(len(gs), dtype).dot(gs) if needs[2] else None,
        )
        along = t.dot(weighted)
        along *= r
        along *= r
        np.multiply(centred, along[:, None], out=t)
        if weight is None:
            np.subtract(gs, t, out=d)
        else:
            np.multiply(gs, weight, out=d)
            d -= t
        if mean is not None:
            d -= gs.dot(weighted)[:, None]
        d *= r[:, None]

    by_rows(run, rows, n)
    # In the order of rows, so that results repeat.
    dweight, dbias = (
        sum(parts[1:], start=parts[0]) if needs[i] else None
        for i, parts in enumerate(zip(*(sums[start] for start in sorted(sums))), 1)
    )
    return dx, dweight, dbias


def _flat(weight: ndarray | None) -> ndarray | None:
    return None if weight is None else weight.reshape(-1)


@op(
    saves=True,
    reference=lambda x, weight, bias, *, shape, eps: F.layer_norm.function(
        x, shape, weight, bias, eps
    ),
)
def layer_norm(x, weight, bias, *, shape, eps):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes"""
    y, saved = normalise(matrix(x, math.prod(shape)), _flat(weight), _flat(bias), eps, True)
    return y.reshape(x.shape), saved


@layer_norm.vjp_all
def _layer_norm_vjp(g, _y, x, weight, _bias, *, shape, eps, saved, needs):
    n = math.prod(shape)
    dx, *rest = normalise_vjp(matrix(g, n), matrix(x, n), _flat(weight), saved, needs)
    return dx.reshape(x.shape), *(None if d is None else d.reshape(shape) for d in rest)


@op(
    saves=True,
    reference=lambda x, weight, *, shape, eps: F.rms_norm.function(x, shape, weight, eps),
)
def rms_norm(x, weight, *, shape, eps):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last axes"""
    y, saved = normalise(matrix(x, math.prod(shape)), _flat(weight), None, eps, False)
    return y.reshape(x.shape), saved


@rms_norm.vjp_all
def _rms_norm_vjp(g, _y, x, weight, *, shape, eps, saved, needs):
    return _layer_norm_vjp(
        g, _y, x, weight, None, shape=shape, eps=eps, saved=saved, needs=(*needs, False)
    )[:2]


def _normalised(norm: Any, x: Any, shape: Any, eps: Any, *parameters: Any) -> Any:
    """Call the op where the parameters have the shape of the last axes."""
    shape = (shape,) if shape.__class__ is int else shape
    if not fits(x, *parameters) or eps.__class__ is not float or shape.__class__ is not tuple:
        return NotImplemented
    a = array_of(x)
    # Sums of longer rows lose digits of float32; the reference adds pairwise.
    if not shape or a.shape[-len(shape) :] != shape or math.prod(shape) >= tuning.LONG_ROW:
        return NotImplemented
    if any([p is not None and array_of(p).shape != shape for p in parameters]):
        return NotImplemented
    return norm(x, *parameters, shape=shape, eps=eps)


@kernel(F.layer_norm)
def layer_norm_kernel(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Any:
    """x (..., *normalized_shape), weight and bias normalized_shape or None."""
    return _normalised(layer_norm, x, normalized_shape, eps, weight, bias)


@kernel(F.rms_norm)
def rms_norm_kernel(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """x (..., *normalized_shape), weight normalized_shape or None."""
    if eps is None and fits(x):
        eps = float(np.finfo(array_of(x).dtype).eps)
    return _normalised(rms_norm, x, normalized_shape, eps, weight)


# ---- softmax along an axis, and cross-entropy


@np.errstate(**QUIET)
def softmax_rows(x: ndarray) -> ndarray:
    """Return the softmax of each row; a row of -inf gives NaN."""
    y = np.empty_like(x)

    def run(s: slice) -> None:
        block = np.exp(x[s], out=y[s])
        total = row_sums(block)
        # The maximum is subtracted only where exponentials leave their range.
        if not in_range(total, tuning.SOFTMAX_SUM, tuning.LARGEST_SUM):
            total = shifted_exponentials(x[s], block)[1]
        block /= total[:, None]  # and not times 1 / total: a row of one number gives 1

    by_rows(run, *x.shape)
    return y


@np.errstate(under="ignore")
def softmax_rows_vjp(g: ndarray, y: ndarray) -> ndarray:
    """Return y (g - rowsum(g y))."""
    dx = np.empty_like(y)

    def run(s: slice) -> None:
        np.subtract(g[s], np.vecdot(g[s], y[s])[:, None], out=dx[s])
        dx[s] *= y[s]

    by_rows(run, *y.shape)
    return dx


def shifted_exponentials(x: ndarray, out: ndarray) -> tuple[ndarray, ndarray]:
    """Write exp(x - maximum) of each row to out; return the maxima and the sums."""
    top = x.max(-1)
    np.exp(np.subtract(x, top[:, None], out=out), out=out)
    return top, out.dot(ones(x.shape[1], x.dtype))


def _along(function: Any, axis: int, *arrays: ndarray) -> ndarray:
    """Apply a function of rows along an axis."""
    shape = arrays[0].swapaxes(axis, -1).shape
    rows = function(*(matrix(a.swapaxes(axis, -1)) for a in arrays))
    return rows.reshape(shape).swapaxes(axis, -1)


@op(reference=F.softmax.function)
def softmax(x, *, axis):
    """softmax(x)_i = e^x_i / sum_j e^x_j"""
    return _along(softmax_rows, axis, x)


softmax.vjp(lambda g, y, _x, *, axis: _along(softmax_rows_vjp, axis, g, y))


@kernel(F.softmax)
def softmax_kernel(x: Any, axis: int = -1) -> Any:
    """x (...), where the axis exists and is not far from the last one."""
    shape = array_of(x).shape if fits(x) else ()
    if axis.__class__ is not int or not -len(shape) <= axis < len(shape):
        return NotImplemented
    if axis != -1 and math.prod(shape[axis % len(shape) + 1 :]) >= tuning.SIDE_BY_SIDE:
        return NotImplemented
    return softmax(x, axis=axis)


@op(
    saves=True,
    reference=lambda x, **settings: label_cross_entropy.function(x, None, **settings),
)
@np.errstate(**QUIET)
def cross_entropy(x, *, target, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """-log_softmax(x)_target: (N, C), (N,) -> (N,), reduced"""
    # No probabilities are stored: backward computes softmax(x) - onehot(target) from the logits.
    rows, classes = x.shape
    loss, sums = np.empty(rows, x.dtype), np.empty((2, rows), x.dtype)
    labels, seen = np.where(target == ignore_index, 0, target), target != ignore_index
    places = labels + np.arange(0, rows * classes, classes)
    flat, smooth = matrix(x).reshape(-1), x.dtype.type(label_smoothing)

    def run(s: slice) -> None:
        block = x[s]
        top, total = shifted_exponentials(block, np.empty_like(block))
        sums[:, s] = top, total
        part = np.log(total) - (flat[places[s]] - top)
        if label_smoothing:
            mean = (block - top[:, None]).dot(ones(classes, x.dtype)) / x.dtype.type(classes)
            part += smooth * (np.log(total) - mean - part)
        loss[s] = np.where(seen[s], part, 0)

    by_rows(run, rows, classes)
    saved = places, seen, sums
    if reduction == "none":
        return loss, saved
    total = loss.sum()
    return total / x.dtype.type(np.count_nonzero(seen)) if reduction == "mean" else total, saved


@cross_entropy.vjp_all
@np.errstate(**QUIET)
def _cross_entropy_vjp(g, _y, x, *, target, ignore_index, reduction, label_smoothing, saved):
    places, seen, (top, total) = saved
    (rows, classes), kind = x.shape, x.dtype.type
    g = g / kind(np.count_nonzero(seen)) if reduction == "mean" else g
    g = np.where(seen, g, 0).astype(x.dtype, copy=False)
    dx = np.empty(x.shape, x.dtype)

    def run(s: slice) -> None:
        block = np.subtract(x[s], top[s, None], out=dx[s])
        np.exp(block, out=block)
        block *= (g[s] / total[s])[:, None]
        if label_smoothing:
            block -= (g[s] * kind(label_smoothing / classes))[:, None]
        dx.reshape(-1)[places[s]] -= g[s] * kind(1 - label_smoothing)
        if not seen[s].all():
            block[~seen[s]] = 0  # also where the logits of an ignored row are not finite

    by_rows(run, rows, classes)
    return (dx,)


@kernel(label_cross_entropy)
def cross_entropy_kernel(x: Any, weight: Any = None, **settings: Any) -> Any:
    """x (N, C), labels (N,), without weights of classes."""
    if not fits(x) or array_of(x).ndim != 2 or weight is not None:
        return NotImplemented
    return cross_entropy(x, **settings)


# ---- GELU: x Phi(x), where Phi is the normal distribution function (Hendrycks and Gimpel 2016)

# erf(x / sqrt 2) = tanh(x p(x^2)) to 1.5e-7, with p(z) = (z + A) (B + C / ((z + D)^2 + E)) fitted.
_A, _B, _C, _D, _E = (
    61.89722289963932,
    0.01861516985655638,
    -1.7816067420920956,
    10.295182129301626,
    205.2234904158317,
)
_T = math.sqrt(2 / math.pi)


def _scaled_p(z: ndarray, scale: float) -> ndarray:
    """Return scale p(z); z is overwritten."""
    kind = z.dtype.type
    p = z + kind(_D)
    np.square(p, out=p)
    p += kind(_E)
    np.divide(kind(scale * _C), p, out=p)
    p += kind(scale * _B)
    z += kind(_A)
    p *= z
    return p


def erf(x: ndarray) -> ndarray:
    """Return the error function, of float32 within 3e-7, of other dtypes by Python's."""
    if x.dtype != np.float32:
        return ops.erf.forward(x)
    with np.errstate(over="ignore"):  # far out it overflows to inf, whose tanh is 1
        return np.tanh(x * _scaled_p(2 * np.square(x), math.sqrt(2)))


@op(saves=True, reference=F.gelu.function)
@np.errstate(**QUIET)
def gelu(x, *, approximate):
    """gelu(x) = x P(n <= x), n standard normal"""

    def run(x: ndarray, y: ndarray, phi: ndarray) -> None:
        if approximate == "none" and x.dtype == np.float64:
            np.multiply(erf(x * math.sqrt(0.5)) + 1, 0.5, out=phi)
        else:  # Phi = (1 + tanh(w)) / 2 = 1 / (1 + e^(-2 w))
            kind = x.dtype.type
            z = np.square(x, out=y)
            if approximate == "tanh":
                w = z * kind(-2 * _T * 0.044715)
                w += kind(-2 * _T)
            else:
                w = _scaled_p(z, -2)
            w *= x
            np.exp(w, out=w)
            w += 1
            np.divide(kind(1), w, out=phi)
        np.multiply(x, phi, out=y)

    y, phi = by_elements(run, x, results=2)
    return y, phi


@gelu.vjp_all
@np.errstate(**QUIET)
def _gelu_vjp(g, _y, x, *, approximate, saved):
    """Return g (Phi + x Phi')."""
    kind = x.dtype.type

    def run(g: ndarray, x: ndarray, phi: ndarray, d: ndarray) -> None:
        np.square(x, out=d)
        if approximate == "tanh":  # Phi' = Phi (1 - Phi) 2 w'
            d *= kind(6 * _T * 0.044715)
            d += kind(2 * _T)
            d *= phi
            d *= 1 - phi
        else:  # Phi' = exp(-x^2 / 2) / sqrt(2 pi)
            d *= kind(-0.5)
            d += kind(-0.5 * math.log(2 * math.pi))
            np.exp(d, out=d)
        d *= x
        d += phi
        d *= g

    return (by_elements(run, g, x, saved)[0],)


@kernel(F.gelu)
def gelu_kernel(x: Any, approximate: str = "none") -> Any:
    """Any shape with axes."""
    if not fits(x) or approximate not in ("none", "tanh"):
        return NotImplemented
    return gelu(x, approximate=approximate)
