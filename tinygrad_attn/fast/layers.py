"""Kernels for linear layers, norms, softmax, cross-entropy and GELU.

Each kernel is one op with its own VJP, and replaces a function in `functional`, its reference.
Second derivatives differentiate the reference. A kernel handles arrays of one dtype, float32 or
float64, and returns NotImplemented for anything else.
"""

import math

import numpy as np

from .. import functional as F
from ..engine import array_of, kernel, op
from ..functional.basic import label_cross_entropy
from . import tuning
from .blocks import (
    QUIET,
    by_elements,
    by_rows,
    in_range,
    matrix,
    ones,
    ordinary,
    row_sums,
    sum_of_rows,
)
from .threads import dot, keep_freed, split, workers

# ---- products and linear layers


def product(a, b, bias, few):
    """Return a @ b + bias without using our threads; with few rows, BLAS may use its own."""
    if a.size == 1 or b.size == 1:
        y = a * b  # dot with a single 0 gives zeros even where the other operand is NaN
    elif few and a.size * b.shape[1] >= tuning.BLAS_PRODUCT:
        y = a.dot(b)
    else:
        y = dot(a, b)
    if bias is not None:
        y += bias
    return y


def products(rows, *factors):
    """Return a @ b + bias for each (a, b, bias), on several threads if they are large.

    `rows` is the number of rows of the activations. With few rows, no other work is worth a thread.
    BLAS may then use its own threads, which would otherwise compete with ours.
    """
    keep_freed()
    few, n = rows < tuning.SHARED_ROWS, workers()
    if few or n == 1 or max(a.size * b.shape[1] for a, b, _ in factors) < tuning.SHARED_PRODUCT:
        return [product(*factor, few) for factor in factors]
    results = [np.empty((len(a), b.shape[1]), a.dtype) for a, b, _ in factors]

    cuts = n // math.gcd(n, len(factors))  # parts of each product; two threads share two uncut

    def run(start, stop):
        for i in range(start, stop):
            (a, b, bias), y = factors[i // cuts], results[i // cuts]
            rows_cut = slice(len(a) * (i % cuts) // cuts, len(a) * (i % cuts + 1) // cuts)
            np.matmul(a[rows_cut], b, out=y[rows_cut])
            if bias is not None:
                y[rows_cut] += bias

    split(run, cuts * len(factors))
    return results


@op(reference=F.linear.function)
def linear(x, weight, bias):
    """y = x weight^T + bias"""
    rows = matrix(x)
    return products(len(rows), (rows, weight.T, bias))[0].reshape(*x.shape[:-1], len(weight))


@linear.vjp_all
def _linear_vjp(g, _y, x, weight, _bias, *, needs):
    g = matrix(g)
    factors = [(g, weight, None)] * needs[0] + [(g.T, matrix(x), None)] * needs[1]
    gradients = products(len(g), *factors) if factors else []
    dx = gradients[0].reshape(x.shape) if needs[0] else None
    return dx, gradients[-1] if needs[1] else None, sum_of_rows(g) if needs[2] else None


@kernel(F.linear)
def linear_kernel(x, weight, bias=None):
    """The kernel for x (..., I), weight (O, I) and bias (O,) or None."""
    arrays = ordinary(x, weight, bias)
    if not arrays:
        return NotImplemented
    a, w, b = arrays
    if w.ndim != 2 or a.shape[-1] != w.shape[1] or b is not None and b.shape != w.shape[:1]:
        return NotImplemented
    return linear(x, weight, bias)


# ---- norms: y = (x - mean) / sqrt(var + eps) * weight + bias, or without a mean (Ba et al. 2016,
#      Zhang and Sennrich 2019). The backward pass recomputes the normalised rows.


def normalise(x, weight, bias, eps, center):
    """Return the output and a pair: the row means (None without `center`) and 1 / row std."""
    rows, n = matrix(x), x.shape[-1]
    y, reciprocal = np.empty_like(rows), np.empty(len(rows), x.dtype)
    mean = np.empty_like(reciprocal) if center else None
    average = ones(n, x.dtype) / n

    def one_by_deviation(centred):
        return 1 / np.sqrt(np.vecdot(centred, centred) / n + eps)

    def run(s):
        block, centred = y[s], rows[s]
        if center:
            m = np.dot(centred, average, out=mean[s])
            centred = np.subtract(centred, m[:, None], out=block)
        r = one_by_deviation(centred)
        if center and not in_range(m * r, -tuning.FAR_FROM_ZERO, tuning.FAR_FROM_ZERO):
            # The mean has a visible rounding error, so also subtract the mean of the remainder.
            m += centred.dot(ones(n, x.dtype)) / n
            np.subtract(rows[s], m[:, None], out=block)
            r = one_by_deviation(block)
        reciprocal[s] = r
        np.multiply(centred, r[:, None], out=block)
        if weight is not None:
            block *= weight
        if bias is not None:
            block += bias

    by_rows(run, *rows.shape)
    return y.reshape(x.shape), (mean, reciprocal)


def normalise_vjp(g, _y, x, weight, _bias, *, eps, saved):
    """dx = r (d - mean(d) - h mean(d h)) for d = g weight and the normalised rows h"""
    rows, g, (mean, reciprocal) = matrix(x), matrix(g), saved
    n, dx, sums = x.shape[-1], np.empty_like(rows), {}
    weight = ones(n, x.dtype) if weight is None else weight
    average = weight / n

    def run(s):
        gs, r, d = g[s], reciprocal[s], dx[s]
        centred = rows[s] if mean is None else rows[s] - mean[s, None]  # h without the factor r
        t = gs * centred
        sums[s.start] = r.dot(t), ones(len(gs), x.dtype).dot(gs)
        along = t.dot(average)
        along *= r
        along *= r
        np.multiply(gs, weight, out=d)
        d -= np.multiply(centred, along[:, None], out=t)
        if mean is not None:
            d -= gs.dot(average)[:, None]
        d *= r[:, None]

    by_rows(run, *rows.shape)
    # Sum in the order of the rows, so that results are reproducible.
    dweight, dbias = map(sum, zip(*(sums[start] for start in sorted(sums))))
    return dx.reshape(x.shape), dweight, dbias


@op(saves=True, reference=lambda x, w, b, *, eps: F.layer_norm.function(x, x.shape[-1], w, b, eps))
def layer_norm(x, weight, bias, *, eps):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last axis"""
    return normalise(x, weight, bias, eps, True)


@op(saves=True, reference=lambda x, w, _b, *, eps: F.rms_norm.function(x, x.shape[-1], w, eps))
def rms_norm(x, weight, bias, *, eps):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last axis; no bias"""
    return normalise(x, weight, bias, eps, False)


layer_norm.vjp_all(normalise_vjp)
rms_norm.vjp_all(normalise_vjp)


def _over_last_axis(norm, x, shape, weight, bias, eps):
    arrays = ordinary(x, weight, bias)
    if not arrays:
        return NotImplemented
    a, *parameters = arrays
    n = a.shape[-1]
    for p in parameters:
        if p is not None and p.shape != (n,):
            return NotImplemented
    # Sums over longer rows lose digits in float32; the reference adds pairwise.
    if shape in (n, (n,)) and n < tuning.LONG_ROW and type(eps) is float:
        return norm(x, weight, bias, eps=eps)
    return NotImplemented


@kernel(F.layer_norm)
def layer_norm_kernel(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """The kernel for x (..., n), with weight and bias (n,) or None."""
    return _over_last_axis(layer_norm, x, normalized_shape, weight, bias, eps)


@kernel(F.rms_norm)
def rms_norm_kernel(x, normalized_shape, weight=None, eps=None):
    """The kernel for x (..., n), with weight (n,) or None."""
    if eps is None and ordinary(x):
        eps = float(np.finfo(array_of(x).dtype).eps)
    return _over_last_axis(rms_norm, x, normalized_shape, weight, None, eps)


# ---- softmax and cross-entropy


@op(reference=lambda x: F.softmax.function(x, -1))
@np.errstate(**QUIET)
def softmax(x):
    """softmax(x)_i = e^x_i / sum_j e^x_j over the last axis"""
    rows = matrix(x)
    y = np.empty_like(rows)

    def run(s):
        block = np.exp(rows[s], out=y[s])
        total = row_sums(block)
        # The maximum is subtracted only if exponentials leave their range.
        if not in_range(total, tuning.SOFTMAX_SUM, tuning.LARGEST_SUM):
            total = shifted_exponentials(rows[s], block)[1]
        block /= total[:, None]  # not times 1 / total, so that a row of one number gives 1

    by_rows(run, *rows.shape)
    return y.reshape(x.shape)


@softmax.vjp
@np.errstate(under="ignore")
def _softmax_vjp(g, y, _x):
    """y (g - rowsum(g y))"""
    g, y = matrix(g), matrix(y)
    dx = np.empty_like(y)

    def run(s):
        np.subtract(g[s], np.vecdot(g[s], y[s])[:, None], out=dx[s])
        dx[s] *= y[s]

    by_rows(run, *y.shape)
    return dx.reshape(_x.shape)


@kernel(F.softmax)
def softmax_kernel(x, axis=-1):
    """The kernel for x (..., n) and the last axis."""
    return softmax(x) if type(axis) is int and axis == -1 and ordinary(x) else NotImplemented


def shifted_exponentials(x, out):
    """Write exp(x - maximum) of each row to out; return the maxima and the sums."""
    top = x.max(-1)
    np.exp(np.subtract(x, top[:, None], out=out), out=out)
    return top, out.dot(ones(x.shape[1], x.dtype))


@op(saves=True, reference=lambda x, **settings: label_cross_entropy.function(x, **settings))
@np.errstate(**QUIET)
def cross_entropy(x, *, target, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """-log_softmax(x)_target: (N, C), (N,) -> (N,), reduced"""
    # Probabilities are not stored: backward computes softmax(x) - onehot(target) from the logits.
    rows, classes = x.shape
    loss, sums, seen = np.empty(rows, x.dtype), np.empty((2, rows), x.dtype), target != ignore_index
    places = np.where(seen, target, 0) + np.arange(0, rows * classes, classes)
    correct = matrix(x).reshape(-1)[places]

    def run(s):
        top, total = sums[:, s] = shifted_exponentials(x[s], np.empty_like(x[s]))
        score = correct[s] - top
        if label_smoothing:
            mean = np.subtract(x[s], top[:, None]).mean(-1)
            score = score * (1 - label_smoothing) + mean * label_smoothing
        loss[s] = np.where(seen[s], np.log(total) - score, 0)

    by_rows(run, rows, classes)
    divisor = x.dtype.type(np.count_nonzero(seen) if reduction == "mean" else 1)
    return loss if reduction == "none" else loss.sum() / divisor, (places, seen, sums, divisor)


@cross_entropy.vjp_all
@np.errstate(**QUIET)
def _cross_entropy_vjp(g, _y, x, *, label_smoothing, saved, **_settings):
    places, seen, (top, total), divisor = saved
    g = np.where(seen, g / divisor, 0).astype(x.dtype, copy=False)
    dx = np.empty(x.shape, x.dtype)

    def run(s):
        block = np.subtract(x[s], top[s, None], out=dx[s])
        np.exp(block, out=block)
        block *= (g[s] / total[s])[:, None]
        if label_smoothing:
            block -= (g[s] * (label_smoothing / x.shape[1]))[:, None]
        dx.reshape(-1)[places[s]] -= g[s] * (1 - label_smoothing)
        if not seen[s].all():
            block[~seen[s]] = 0  # even if the logits of an ignored row are not finite

    by_rows(run, *x.shape)
    return (dx,)


@kernel(label_cross_entropy)
def cross_entropy_kernel(x, weight=None, **settings):
    """The kernel for x (N, C) and labels (N,), without class weights."""
    quick = ordinary(x) and x.ndim == 2 and weight is None
    return cross_entropy(x, **settings) if quick else NotImplemented


# ---- GELU: x Phi(x), where Phi is the normal distribution function (Hendrycks and Gimpel 2016)

# erf(x / sqrt 2) = tanh(x p(x^2)) to 1.5e-7, with p(z) = (z + A) (B + C / ((z + D)^2 + E)) fitted.
# This is shorter than the float32 polynomials of ops.erf, with which GELU takes 1.4 times as long.
_A, _B, _C = 61.89722289963932, 0.01861516985655638, -1.7816067420920956
_D, _E = 10.295182129301626, 205.2234904158317


@op(saves=True, reference=F.gelu.function)
@np.errstate(**QUIET)
def gelu(x):
    """gelu(x) = x P(n <= x), n standard normal, in float32"""

    def run(x, y, phi):
        z = np.square(x, out=y)
        p = z + np.float32(_D)
        np.square(p, out=p)
        p += np.float32(_E)
        np.divide(np.float32(-2 * _C), p, out=p)
        p -= np.float32(2 * _B)
        z += np.float32(_A)
        p *= z
        p *= x
        np.exp(p, out=p)
        p += 1
        np.reciprocal(p, out=phi)  # Phi = (1 + tanh(w)) / 2 = 1 / (1 + e^(-2 w))
        np.multiply(x, phi, out=y)

    return tuple(by_elements(run, x, results=2))


@gelu.vjp_all
@np.errstate(**QUIET)
def _gelu_vjp(g, _y, x, *, saved):
    """g (Phi + x Phi') with Phi' = exp(-x^2 / 2) / sqrt(2 pi)"""

    def run(g, x, phi, d):
        np.square(x, out=d)
        d *= np.float32(-0.5)
        d += np.float32(-0.5 * math.log(2 * math.pi))
        np.exp(d, out=d)
        d *= x
        d += phi
        d *= g

    return (by_elements(run, g, x, saved)[0],)


@kernel(F.gelu)
def gelu_kernel(x, approximate="none"):
    """The kernel for float32 arrays with at least one axis, without the tanh approximation."""
    quick = approximate == "none" and ordinary(x) and x.dtype == np.float32
    return gelu(x) if quick else NotImplemented
