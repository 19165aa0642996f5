"""PyTorch's own samples for its operators, and our function for each operator, with PyTorch's argument names."""

import math
from functools import cache

import numpy as np
from support import require

import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, ops

torch = require("torch")
require("expecttest")


class OutOfScope(Exception):
    """Raised for a sample that we do not support, with the reason."""


# ---- PyTorch's arguments converted to ours


def axes(x, dim):
    """Convert `dim` to NumPy's `axis`."""
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
    """Adapt var and std: PyTorch's `correction` or `unbiased` becomes `ddof`."""

    def call(x, dim=None, *, correction=1, unbiased=True, keepdim=False):
        if isinstance(dim, bool):  # torch.var(x, unbiased)
            dim, unbiased = None, dim
        ddof = (1 if correction is None else correction) if unbiased else 0
        axis = axes(x, dim)
        n = x.size if axis is None else math.prod(x.shape[a] for a in np.atleast_1d(axis))
        if ddof > n:
            raise OutOfScope(
                "more degrees of freedom taken off than there are: clamped at 0 in PyTorch, negative in NumPy"
            )
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
        raise OutOfScope(
            "squeeze of an axis that is not 1: left alone in PyTorch, refused by NumPy"
        )
    return x.squeeze(axis)


def expanded(x, shape):
    lead = len(shape) - x.ndim
    return np.broadcast_to(
        x, tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(shape))
    )


def item(x, index):
    return x[index]


def cross_entropy(
    x, target, *, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    return F.cross_entropy(x, target, weight, ignore_index, reduction, label_smoothing)


def embedding(weight, indices, *, padding_idx=None, max_norm=None, scale_grad_by_freq=False):
    if max_norm is not None or scale_grad_by_freq:
        raise OutOfScope("embedding: max_norm, scale_grad_by_freq")
    return F.embedding(indices, weight, padding_idx)


def attention(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )


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
        return function(
            x.astype(np.dtype(str(dtype).removeprefix("torch."))) if dtype else x, axis=dim
        )

    return call


def along(function):
    """Return a 0-d tensor unchanged, because PyTorch accepts the axes 0 and -1 for it."""

    def call(x, dim=-1, *, dtype=None):
        if dtype is not None:
            raise OutOfScope("dtype: write .astype(dtype) first")
        return x if x.ndim == 0 else function(x, axis=dim)

    return call


def differences(x, n=1, dim=-1, prepend=None, append=None):
    ends = {"prepend": prepend, "append": append}
    return np.diff(x, n, dim, **{name: value for name, value in ends.items() if value is not None})


def slopes(x, *, spacing=None, dim=None, edge_order=1):
    if edge_order != 1:
        raise OutOfScope("gradient with edge_order=2")
    steps = [] if spacing is None else spacing if isinstance(spacing, (list, tuple)) else [spacing]
    found = np.gradient(x, *steps, axis=axes(x, dim), edge_order=edge_order)
    return found if isinstance(found, tuple) else (found,)


def padding(mode):
    def call(x, pad, mode=mode, value=None):
        width = [(0, 0)] * x.ndim
        for i in range(len(pad) // 2):  # the last axis first
            width[-1 - i] = pad[2 * i], pad[2 * i + 1]
        if any(n < 0 for pair in width for n in pair):
            raise OutOfScope("pad: a negative width, which NumPy refuses")
        settings = {"constant_values": value or 0.0} if mode == "constant" else {}
        return np.pad(
            x, width, {"replicate": "edge", "circular": "wrap"}.get(mode, mode), **settings
        )

    return call


def norm(function, ord):
    def call(x, ord=ord, dim=None, keepdim=False, *, dtype=None):
        if dtype is not None:
            raise OutOfScope("dtype: write .astype(dtype) first")
        if function is np.linalg.norm and x.ndim == 0:
            raise OutOfScope("an axis of a 0-d tensor, which NumPy refuses")
        return function(x, ord=ord, axis=axes(x, dim), keepdims=keepdim)

    return call


def pinv(x, *, rtol=None, atol=None, hermitian=False):
    if rtol is not None or atol is not None:
        raise OutOfScope("pinv with a tolerance of one's own")
    return np.linalg.pinv(x)


def solve(a, b, *, left=True):
    if b.shape == a.shape[:-1] and b.ndim > 1:
        raise OutOfScope("solve with a stack of vectors, which for NumPy is a matrix")
    return np.linalg.solve(a, b)


def diagonal(x, *, offset=0, dim1=-2, dim2=-1):
    return np.diagonal(x, offset, dim1, dim2)


def several(*tensors):
    """Flatten the arguments, because in PyTorch's samples the first one is a list."""
    return [x for t in tensors for x in (t if isinstance(t, (list, tuple)) else [t])]


def parts(x, size, dim=0):
    return np.split(
        x,
        range(size, x.shape[dim], size) if isinstance(size, int) else np.cumsum(size)[:-1],
        axis=dim,
    )


def einsum(operands, subscripts):
    if "..." in subscripts.split("->")[0] and "..." not in subscripts.split("->")[1]:
        raise OutOfScope("einsum: a sum over '...', which NumPy refuses")
    return np.einsum(subscripts, *operands)


def tensordot(a, b, dims=2):
    if not isinstance(dims, int) and [a.shape[i] for i in dims[0]] != [b.shape[i] for i in dims[1]]:
        raise OutOfScope("tensordot over an axis of 1 and a longer one, which NumPy refuses")
    return np.tensordot(a, b, dims)


def repeat(x, *times):
    return np.tile(x, shape_of(times))


def masked_select(x, mask):
    x, mask = np.broadcast_arrays(x, mask)
    return x[plain(mask)]


def take_along(x, indices, dim=None):
    if dim is None:
        x, indices, dim = x.ravel(), indices.ravel(), 0
    return ops.take_along_axis(x, indices=plain(indices), axis=dim)


def gather(x, dim, index):
    if (
        x.ndim == 0
        or index.ndim != x.ndim
        or any(i != n for a, (i, n) in enumerate(zip(index.shape, x.shape)) if a != dim % x.ndim)
    ):
        raise OutOfScope("gather of fewer rows than there are, which np.take_along_axis refuses")
    return ops.take_along_axis(x, indices=plain(index), axis=dim)


def index_select(x, dim, index):
    if x.ndim == 0:
        raise OutOfScope("an axis of a 0-d tensor, which NumPy refuses")
    return x[(slice(None),) * (dim % x.ndim) + (plain(index).reshape(-1),)]


def rolled(x, shifts, dims=None):
    shifts = tuple(shifts) if isinstance(shifts, (list, tuple)) else shifts
    return np.roll(x, shifts, None if dims in (None, ()) else axes(x, dims))


def joined(function):
    def call(tensors, dim=0):
        shapes = {len(t.shape) for t in tensors}
        if len(shapes) > 1:
            raise OutOfScope(
                "cat with an empty 1-d tensor among others, a relic that NumPy refuses"
            )
        return function(tensors, axis=dim)

    return call


def plain(x):
    return x.numpy() if isinstance(x, Tensor) else x


def unary(function):
    return lambda x: function(x)


def binary(function):
    return lambda a, b: function(a, b)


TABLE = {
    "add": plus,
    "sub": minus,
    "rsub": lambda a, b, *, alpha=1: minus(b, a, alpha=alpha),
    "mul": binary(np.multiply),
    "div/no_rounding_mode": division,
    "true_divide": division,
    "pow": lambda a, b: a**b,
    "neg": unary(np.negative),
    "__radd__": lambda a, b: b + a,
    "__rsub__": lambda a, b: b - a,
    "__rmul__": lambda a, b: b * a,
    "__rdiv__": lambda a, b: b / a,
    "__rpow__": lambda a, b: b**a,
    "__rmatmul__": lambda a, b: b @ a,
    "matmul": lambda a, b: a @ b,
    "mm": lambda a, b: a @ b,
    "bmm": lambda a, b: a @ b,
    "mv": lambda a, b: a @ b,
    "dot": lambda a, b: a @ b,
    "nn.functional.linear": lambda x, weight, bias=None: F.linear(x, weight, bias),
    "remainder": binary(np.remainder),
    "__rmod__": lambda a, b: b % a,
    "fmod": binary(np.fmod),
    "maximum": binary(np.maximum),
    "minimum": binary(np.minimum),
    "max/binary": binary(np.maximum),
    "min/binary": binary(np.minimum),
    "hypot": binary(np.hypot),
    "atan2": binary(np.arctan2),
    "logaddexp": binary(np.logaddexp),
    "abs": unary(np.absolute),
    "exp": unary(np.exp),
    "exp2": unary(np.exp2),
    "expm1": unary(np.expm1),
    "log": unary(np.log),
    "log2": unary(np.log2),
    "log10": unary(np.log10),
    "log1p": unary(np.log1p),
    "sqrt": unary(np.sqrt),
    "square": unary(np.square),
    "reciprocal": unary(np.reciprocal),
    "sin": unary(np.sin),
    "cos": unary(np.cos),
    "tan": unary(np.tan),
    "asin": unary(np.arcsin),
    "acos": unary(np.arccos),
    "atan": unary(np.arctan),
    "sinh": unary(np.sinh),
    "cosh": unary(np.cosh),
    "tanh": unary(F.tanh),
    "asinh": unary(np.arcsinh),
    "acosh": unary(np.arccosh),
    "atanh": unary(np.arctanh),
    "sigmoid": unary(F.sigmoid),
    "erf": unary(ops.erf),
    "clamp": clamp,
    "clamp_max": lambda x, max: clamp(x, max=max),
    "clamp_min": lambda x, min: clamp(x, min=min),
    "where": lambda x, condition, other: np.where(condition, x, other),
    "sum": reduction(np.sum),
    "mean": reduction(np.mean),
    "amax": reduction(np.max),
    "amin": reduction(np.min),
    "prod": reduction(np.prod),
    "var": spread(np.var),
    "std": spread(np.std),
    "var/unbiased": spread(np.var),
    "std/unbiased": spread(np.std),
    "max/reduction_no_dim": extreme(np.max),
    "min/reduction_no_dim": extreme(np.min),
    "max/reduction_with_dim": extreme(np.max),
    "min/reduction_with_dim": extreme(np.min),
    "cumsum": along(np.cumsum),
    "logsumexp": lambda x, dim, keepdim=False: F.logsumexp(
        x, tuple(dim) if isinstance(dim, (list, tuple)) else dim, keepdim
    ),
    "reshape": lambda x, *shape: x.reshape(shape_of(shape)),
    "view": lambda x, *shape: x.reshape(shape_of(shape)),
    "ravel": lambda x: x.ravel(),
    "permute": lambda x, dims: x.transpose(dims),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "transpose": lambda x, dim0, dim1: x if x.ndim == 0 else x.swapaxes(dim0, dim1),
    "squeeze": squeezed,
    "squeeze/multiple": squeezed,
    "broadcast_to": expanded,
    "expand": lambda x, *shape: expanded(x, shape_of(shape)),
    "clone": lambda x: x.clone(),
    "flip": lambda x, dims: np.flip(x, axes(x, dims)),
    "roll": rolled,
    "tril": lambda x, diagonal=0: ops.tril(x, k=diagonal),
    "triu": lambda x, diagonal=0: ops.triu(x, k=diagonal),
    "cat": joined(np.concatenate),
    "stack": joined(np.stack),
    "__getitem__": item,
    "take_along_dim": take_along,
    "gather": gather,
    "index_select": index_select,
    "softmax": softmax(F.softmax),
    "log_softmax": softmax(F.log_softmax),
    "softmax/with_dtype": softmax(F.softmax),
    "log_softmax/with_dtype": softmax(F.log_softmax),
    "nn.functional.layer_norm": lambda x, normalized_shape, weight=None, bias=None, eps=1e-5: (
        F.layer_norm(x, normalized_shape, weight, bias, eps)
    ),
    "nn.functional.rms_norm": lambda x, normalized_shape, weight=None, eps=None: F.rms_norm(
        x, normalized_shape, weight, eps
    ),
    "nn.functional.relu": lambda x: F.relu(x),
    "nn.functional.silu": lambda x: F.silu(x),
    "nn.functional.gelu": lambda x, *, approximate="none": F.gelu(x, approximate),
    "nn.functional.embedding": embedding,
    "nn.functional.dropout": lambda x, p=0.5, training=True: F.dropout(x, p, training),
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.mse_loss": lambda x, target, *, reduction="mean": F.mse_loss(
        x, target, reduction
    ),
    "nn.functional.scaled_dot_product_attention": attention,
    # Functions with NumPy's names
    "cumprod": along(np.cumprod),
    "diff": differences,
    "gradient": slopes,
    "msort": lambda x: np.sort(x, 0) if x.ndim else x,
    "aminmax": lambda x, *, dim=None, keepdim=False: tuple(
        f(x, axis=axes(x, dim), keepdims=keepdim) for f in (np.min, np.max)
    ),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: np.nan_to_num(
        x, nan=nan or 0.0, posinf=posinf, neginf=neginf
    ),
    "kron": binary(np.kron),
    "outer": binary(np.outer),
    "inner": binary(np.inner),
    "vdot": binary(np.vdot),
    "tensordot": tensordot,
    "linalg.cross": lambda a, b, *, dim=-1: np.cross(a, b, axis=dim),
    "linalg.vecdot": lambda a, b, *, dim=-1: np.vecdot(a, b, axis=dim),
    "einsum": einsum,
    "trace": unary(np.trace),
    "diag": lambda x, diagonal=0: np.diag(x, diagonal),
    "diagflat": lambda x, offset=0: np.diagflat(x, offset),
    "linalg.diagonal": diagonal,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: np.diagonal(x, offset, dim1, dim2),
    "rot90": lambda x, k=1, dims=(0, 1): np.rot90(x, k, dims),
    "fliplr": unary(np.fliplr),
    "flipud": unary(np.flipud),
    "hstack": unary(np.hstack),
    "vstack": unary(np.vstack),
    "dstack": unary(np.dstack),
    "column_stack": unary(np.column_stack),
    "tile": lambda x, dims: np.tile(x, dims),
    "repeat": repeat,
    "movedim": lambda x, source, destination: np.moveaxis(x, source, destination),
    "unsqueeze": lambda x, dim: np.expand_dims(x, dim),
    "unbind": lambda x, dim=0: tuple(np.moveaxis(x, dim, 0)),
    "split": parts,
    "split_with_sizes": parts,
    "tensor_split": lambda x, cut, dim=0: np.array_split(x, plain(cut), axis=dim),
    "hsplit": lambda x, cut: np.hsplit(x, cut),
    "vsplit": lambda x, cut: np.vsplit(x, cut),
    "dsplit": lambda x, cut: np.dsplit(x, cut),
    "masked_select": masked_select,
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "take": lambda x, index: np.take(x, index),
    "narrow": lambda x, dim, start, length: np.take(x, int(start) + np.arange(length), axis=dim),
    "broadcast_tensors": lambda *xs: np.broadcast_arrays(*several(*xs)),
    "meshgrid/variadic_tensors": lambda *xs, indexing="ij": np.meshgrid(*xs, indexing=indexing),
    "atleast_1d": lambda *xs: np.atleast_1d(*several(*xs)),
    "atleast_2d": lambda *xs: np.atleast_2d(*several(*xs)),
    "atleast_3d": lambda *xs: np.atleast_3d(*several(*xs)),
    "deg2rad": unary(np.deg2rad),
    "rad2deg": unary(np.rad2deg),
    "frac": lambda x: x - np.trunc(x),
    "trunc": unary(np.trunc),
    "floor": unary(np.floor),
    "ceil": unary(np.ceil),
    "round": unary(np.round),
    "round/decimals_3": lambda x, *, decimals: np.round(x, decimals),
    "sign": unary(np.sign),
    "copysign": binary(np.copysign),
    "fmax": binary(np.fmax),
    "fmin": binary(np.fmin),
    "logaddexp2": binary(np.logaddexp2),
    "sinc": unary(np.sinc),
    "positive": unary(np.positive),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "dist": lambda a, b, p=2: np.linalg.vector_norm((a - b).reshape(-1), ord=p),
    "nn.functional.tanhshrink": lambda x: x - np.tanh(x),
    "nn.functional.softsign": lambda x: x / (1 + np.abs(x)),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01: np.where(
        x > 0, x, negative_slope * x
    ),
    **{
        f"nn.functional.pad/{mode}": padding(mode)
        for mode in ("constant", "reflect", "replicate", "circular")
    },
    "linalg.det": unary(np.linalg.det),
    "linalg.slogdet": unary(np.linalg.slogdet),
    "linalg.inv": unary(np.linalg.inv),
    "linalg.pinv": pinv,
    "linalg.multi_dot": unary(np.linalg.multi_dot),
    "linalg.solve": solve,
    "linalg.svdvals": unary(np.linalg.svdvals),
    "linalg.qr": lambda x, mode="reduced": np.linalg.qr(x, mode),
    "linalg.norm": norm(np.linalg.norm, None),
    "linalg.norm/subgradients_at_zero": norm(np.linalg.norm, None),
    "linalg.vector_norm": norm(np.linalg.vector_norm, 2),
    "linalg.matrix_norm": lambda x, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None: norm(
        np.linalg.norm, None
    )(x, ord, dim, keepdim, dtype=dtype),
}


@cache
def operators():
    """Return PyTorch's operators by name. It takes seconds to import them, in one process of the tests."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}/{op.variant_test_name}".rstrip("/"): op for op in op_db}


def samples(name, dtype):
    """Return PyTorch's samples for an operator.

    The public `sample_inputs` also looks through the whole stack for the name of a test, which takes most of its time.
    """
    torch.manual_seed(0)
    op = operators()[name]
    return [*op.sample_inputs_func(op, "cpu", dtype, requires_grad=True)]


def ours(x):
    """Convert the tensors in a sample's argument to Tensors, and keep lists, tuples and dicts."""
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
