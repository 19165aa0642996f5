"""PyTorch's own samples for its operators, put to ours: value, dtype and gradient agree on every sample in scope.

`torch.testing._internal` keeps, for each operator, inputs its authors thought worth testing: empty and 0-d tensors, every axis,
broadcasting both ways, NaN-prone domains, grouped heads.  The table below says which function of ours an operator is,
with PyTorch's argument names, so that a sample can be bound to it.  A sample is out of scope only for a reason that
is written down: an argument we do not have, or a rule where `Tensor` follows NumPy instead.  Reasons are counted and printed
(`pytest -s`), and the number for each operator is held in LEFT_OUT, so that nothing drops out silently.
"""

import inspect
import math
from collections import Counter

import numpy as np
import pytest
from support import require

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, manual_seed, ops

torch = require("torch")
require("expecttest")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

DTYPES = {"float64": (torch.float64, 1e-10), "float32": (torch.float32, 2e-5)}


class OutOfScope(Exception):
    """A sample that we do not claim to answer, with the reason."""


# ---- PyTorch's spelling of an argument in ours


def axes(x, dim):
    """`dim` as NumPy's `axis`."""
    dim = tuple(dim) if isinstance(dim, (list, tuple)) else dim
    if dim == ():
        raise OutOfScope("an empty tuple of axes: all of them in PyTorch, none in NumPy")
    if x.ndim == 0 and dim is not None:
        raise OutOfScope("an axis of a 0-d tensor, which NumPy refuses")
    return dim


def alone(alpha):
    if alpha != 1:
        raise OutOfScope("alpha: write a + alpha * b")


def reduction(function):
    return lambda x, dim=None, keepdim=False: function(x, axis=axes(x, dim), keepdims=keepdim)


def spread(function):
    """var and std: how many degrees of freedom are taken off is ddof."""
    def call(x, dim=None, *, correction=1, unbiased=True, keepdim=False):
        if isinstance(dim, bool):                    # torch.var(x, unbiased)
            dim, unbiased = None, dim
        ddof = (1 if correction is None else correction) if unbiased else 0
        axis = axes(x, dim)
        n = x.size if axis is None else math.prod(x.shape[a] for a in np.atleast_1d(axis))
        if ddof > n:
            raise OutOfScope("more degrees of freedom taken off than there are: clamped at 0 in PyTorch, negative in NumPy")
        return function(x, axis=axis, ddof=ddof, keepdims=keepdim)
    return call


def division(a, b, *, rounding_mode=None):
    if rounding_mode is not None:
        raise OutOfScope("rounding_mode: write // or np.trunc")
    return a / b


def plus(a, b, *, alpha=1):
    alone(alpha)
    return a + b


def minus(a, b, *, alpha=1):
    alone(alpha)
    return a - b


def shape_of(shape):
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape


def squeezed(x, dim=None):
    axis = axes(x, dim)
    if axis is None:
        return x.squeeze()
    if any(x.shape[a] != 1 for a in np.atleast_1d(axis)):
        raise OutOfScope("squeeze of an axis that is not 1: left alone in PyTorch, refused by NumPy")
    return x.squeeze(axis)


def expanded(x, shape):
    lead = len(shape) - x.ndim
    return np.broadcast_to(x, tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(shape)))


def item(x, index):
    return x[index]


def cross_entropy(x, target, *, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    return F.cross_entropy(x, target, weight, ignore_index, reduction, label_smoothing)


def embedding(weight, indices, *, padding_idx=None, max_norm=None, scale_grad_by_freq=False):
    if max_norm is not None or scale_grad_by_freq:
        raise OutOfScope("embedding: max_norm, scale_grad_by_freq")
    return F.embedding(indices, weight, padding_idx)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def clamp(x, min=None, max=None):
    if any(getattr(bound, "dtype", x.dtype).kind == "i" for bound in (min, max)):
        raise OutOfScope("an int32 array beside a float32 one: float64 in NumPy")
    return np.clip(x, min, max)


def extreme(function):
    def call(x, dim=None, keepdim=False):
        if dim is not None:
            raise OutOfScope("max and min along a dim give indices too; ours are amax and amin")
        return function(x)
    return call


def softmax(function):
    def call(x, dim, dtype=None):
        return function(x.astype(np.dtype(str(dtype).removeprefix("torch."))) if dtype else x, axis=dim)
    return call


def cumsum(x, dim):
    return x if x.ndim == 0 else np.cumsum(x, axis=dim)


def take_along(x, indices, dim=None):
    if dim is None:
        x, indices, dim = x.ravel(), indices.ravel(), 0
    return ops.take_along_axis(x, indices=plain(indices), axis=dim)


def gather(x, dim, index):
    if x.ndim == 0 or index.ndim != x.ndim or any(i != n for a, (i, n) in enumerate(zip(index.shape, x.shape)) if a != dim % x.ndim):
        raise OutOfScope("gather of fewer rows than there are, which np.take_along_axis refuses")
    return ops.take_along_axis(x, indices=plain(index), axis=dim)


def index_select(x, dim, index):
    if x.ndim == 0:
        raise OutOfScope("an axis of a 0-d tensor, which NumPy refuses")
    return x[(slice(None),) * (dim % x.ndim) + (plain(index).reshape(-1),)]


def rolled(x, shifts, dims=None):
    shifts = tuple(shifts) if isinstance(shifts, (list, tuple)) else shifts
    return ops.roll(x, shift=shifts, axis=None if dims in (None, ()) else axes(x, dims))


def joined(function):
    def call(tensors, dim=0):
        shapes = {len(t.shape) for t in tensors}
        if len(shapes) > 1:
            raise OutOfScope("cat with an empty 1-d tensor among others, a relic that NumPy refuses")
        return function(tensors, axis=dim)
    return call


def plain(x):
    return x.numpy() if isinstance(x, Tensor) else x


def unary(function):
    return lambda x: function(x)


def binary(function):
    return lambda a, b: function(a, b)


TABLE = {
    "add": plus, "sub": minus, "rsub": lambda a, b, *, alpha=1: minus(b, a, alpha=alpha), "mul": binary(np.multiply),
    "div/no_rounding_mode": division, "true_divide": division, "pow": lambda a, b: a ** b, "neg": unary(np.negative),
    "__radd__": lambda a, b: b + a, "__rsub__": lambda a, b: b - a, "__rmul__": lambda a, b: b * a,
    "__rdiv__": lambda a, b: b / a, "__rpow__": lambda a, b: b ** a, "__rmatmul__": lambda a, b: b @ a,
    "matmul": lambda a, b: a @ b, "mm": lambda a, b: a @ b, "bmm": lambda a, b: a @ b, "mv": lambda a, b: a @ b,
    "dot": lambda a, b: a @ b, "nn.functional.linear": lambda x, weight, bias=None: F.linear(x, weight, bias),
    "remainder": binary(np.remainder), "__rmod__": lambda a, b: b % a, "fmod": binary(np.fmod),
    "maximum": binary(np.maximum), "minimum": binary(np.minimum), "max/binary": binary(np.maximum),
    "min/binary": binary(np.minimum), "hypot": binary(np.hypot), "atan2": binary(np.arctan2), "logaddexp": binary(np.logaddexp),
    "abs": unary(np.absolute), "exp": unary(np.exp), "exp2": unary(np.exp2), "expm1": unary(np.expm1), "log": unary(np.log),
    "log2": unary(np.log2), "log10": unary(np.log10), "log1p": unary(np.log1p), "sqrt": unary(np.sqrt),
    "square": unary(np.square), "reciprocal": unary(np.reciprocal), "sin": unary(np.sin), "cos": unary(np.cos),
    "tan": unary(np.tan), "asin": unary(np.arcsin), "acos": unary(np.arccos), "atan": unary(np.arctan), "sinh": unary(np.sinh),
    "cosh": unary(np.cosh), "tanh": unary(F.tanh), "asinh": unary(np.arcsinh), "acosh": unary(np.arccosh),
    "atanh": unary(np.arctanh), "sigmoid": unary(F.sigmoid), "erf": unary(ops.erf), "clamp": clamp,
    "clamp_max": lambda x, max: clamp(x, max=max), "clamp_min": lambda x, min: clamp(x, min=min),
    "where": lambda x, condition, other: np.where(condition, x, other),
    "sum": reduction(np.sum), "mean": reduction(np.mean), "amax": reduction(np.max), "amin": reduction(np.min),
    "prod": reduction(np.prod), "var": spread(np.var), "std": spread(np.std), "var/unbiased": spread(np.var),
    "std/unbiased": spread(np.std), "max/reduction_no_dim": extreme(np.max), "min/reduction_no_dim": extreme(np.min),
    "max/reduction_with_dim": extreme(np.max), "min/reduction_with_dim": extreme(np.min), "cumsum": cumsum,
    "logsumexp": lambda x, dim, keepdim=False: F.logsumexp(x, tuple(dim) if isinstance(dim, (list, tuple)) else dim, keepdim),
    "reshape": lambda x, *shape: x.reshape(shape_of(shape)), "view": lambda x, *shape: x.reshape(shape_of(shape)),
    "ravel": lambda x: x.ravel(), "permute": lambda x, dims: x.transpose(dims), "T": lambda x: x.T, "mT": lambda x: x.mT,
    "transpose": lambda x, dim0, dim1: x if x.ndim == 0 else x.swapaxes(dim0, dim1), "squeeze": squeezed, "squeeze/multiple": squeezed,
    "broadcast_to": expanded, "expand": lambda x, *shape: expanded(x, shape_of(shape)), "clone": lambda x: x.clone(),
    "flip": lambda x, dims: np.flip(x, axes(x, dims)), "roll": rolled, "tril": lambda x, diagonal=0: ops.tril(x, k=diagonal),
    "triu": lambda x, diagonal=0: ops.triu(x, k=diagonal), "cat": joined(np.concatenate), "stack": joined(np.stack),
    "__getitem__": item, "take_along_dim": take_along, "gather": gather, "index_select": index_select,
    "softmax": softmax(F.softmax), "log_softmax": softmax(F.log_softmax), "softmax/with_dtype": softmax(F.softmax),
    "log_softmax/with_dtype": softmax(F.log_softmax),
    "nn.functional.layer_norm": lambda x, normalized_shape, weight=None, bias=None, eps=1e-5:
        F.layer_norm(x, normalized_shape, weight, bias, eps),
    "nn.functional.rms_norm": lambda x, normalized_shape, weight=None, eps=None: F.rms_norm(x, normalized_shape, weight, eps),
    "nn.functional.relu": lambda x: F.relu(x), "nn.functional.silu": lambda x: F.silu(x),
    "nn.functional.gelu": lambda x, *, approximate="none": F.gelu(x, approximate), "nn.functional.embedding": embedding,
    "nn.functional.dropout": lambda x, p=0.5, training=True: F.dropout(x, p, training), "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.mse_loss": lambda x, target, *, reduction="mean": F.mse_loss(x, target, reduction),
    "nn.functional.scaled_dot_product_attention": attention,
}
SAMPLES = {f"{op.name}/{op.variant_test_name}".rstrip("/"): op for op in op_db}


def ours(x):
    """A sample's argument for us: tensors become Tensors, whatever holds them keeps its form."""
    if isinstance(x, torch.Tensor):
        array = x.detach().resolve_neg().numpy()
        return Tensor(array, requires_grad=x.requires_grad) if x.dtype.is_floating_point else array
    if isinstance(x, (list, tuple)):
        return type(x)(map(ours, x))
    return {key: ours(value) for key, value in x.items()} if isinstance(x, dict) else x


def leaves(x, kind):
    if isinstance(x, kind):
        return [x] if x.requires_grad else []
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item, kind)]


def check(op, function, sample, tolerance):
    """One sample: the same value, the same gradients for a random cotangent."""
    arguments = [sample.input, *sample.args]
    mine, settings = [ours(a) for a in arguments], ours(sample.kwargs)
    try:
        inspect.signature(function).bind(*mine, **settings)
    except TypeError as error:
        raise OutOfScope(str(error)) from None
    manual_seed(42)                                  # PyTorch's samples of random operators seed with 42: masks are equal
    with np.errstate(all="ignore"):
        y = function(*mine, **settings)
    expected = op(*arguments, **sample.kwargs)
    value = y.numpy() if isinstance(y, Tensor) else np.asarray(y)
    close(value, expected.detach().numpy(), tolerance, "value")
    inputs = leaves([arguments, sample.kwargs], torch.Tensor)
    if not expected.requires_grad or not inputs:
        return
    cotangent = np.random.default_rng(1).standard_normal(value.shape).astype(value.dtype)
    theirs = torch.autograd.grad(expected, inputs, torch.from_numpy(np.asarray(cotangent)), allow_unused=True)
    with np.errstate(all="ignore"):
        found = grad(y, leaves([mine, settings], Tensor), Tensor(cotangent), allow_unused=True)
    for i, (g, x, h) in enumerate(zip(found, inputs, theirs, strict=True)):
        g = np.zeros(x.shape, x.detach().numpy().dtype) if g is None else g.numpy()
        h = np.zeros(x.shape, x.detach().numpy().dtype) if h is None else h.numpy()
        close(g, h, 10 * tolerance, f"gradient {i}")


def close(a, b, tolerance, what):
    assert a.dtype == b.dtype, f"{what}: dtype {a.dtype}, not {b.dtype}"
    assert a.shape == b.shape, f"{what}: shape {a.shape}, not {b.shape}"
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * (1 + finite.max(initial=0)), err_msg=what)


LEFT_OUT = {
    "add": 2, "sub": 2, "rsub": 2, "clamp": 2, "sum": 3, "mean": 3, "amax": 3, "amin": 3, "prod": 6, "cumsum": 1,
    "max/reduction_with_dim": 4, "min/reduction_with_dim": 4, "squeeze": 3, "squeeze/multiple": 3, "flip": 2, "cat": 1,
    "gather": 3, "index_select": 1,
}
"""Samples out of scope, for each dtype."""



@pytest.fixture(scope="module")
def tally():
    """Counts over the whole table, told at the end."""
    passed, left = [], Counter()
    yield passed, left
    print(f"\n{sum(passed)} samples of PyTorch's agree; out of scope: {left.total()}")
    for reason, count in left.most_common():
        print(f"{count:6}  {reason}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TABLE)
def test_pytorchs_samples(name, dtype, tally):
    op, (kind, tolerance) = SAMPLES[name], DTYPES[dtype]
    torch.manual_seed(0)
    failures, left, passed = [], Counter(), 0
    for i, sample in enumerate(op.sample_inputs("cpu", kind, requires_grad=True)):
        try:
            check(op, TABLE[name], sample, tolerance)
            passed += 1
        except OutOfScope as reason:
            left[f"{name}: {reason}"] += 1
        except Exception as error:
            failures.append(f"sample {i}: {sample.summary()}\n    {type(error).__name__}: {error}")
    tally[0].append(passed)
    tally[1].update(left)
    assert not failures, f"{len(failures)} of {len(failures) + passed} samples differ\n" + "\n".join(failures[:6])
    assert left.total() == LEFT_OUT.get(name, 0), f"left out: {left}"
