"""A table of all ops and functions, for the property tests.

An entry draws a sample: inputs, our function with its settings bound, and PyTorch's function. The inputs are float64
arrays in the function's domain. They may have any shape, including 0-d and sizes 0 and 1, and broadcast both ways.
For a new op, add a line here; a test checks that none is missing.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import require

import tinygrad_attn.functional as F
from tinygrad_attn import manual_seed, ops
from tinygrad_attn.functional import attention as attention_module

torch = require("torch")
tF = torch.nn.functional


class Sample(NamedTuple):
    inputs: list[np.ndarray]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]


TABLE: dict[str, Callable[[Callable], Sample]] = {}
"""A function that draws a sample, for each name."""


def entry(name):
    """Put the decorated generator into the table."""

    def put(generator):
        TABLE[name] = generator
        return generator

    return put


# ---- shapes and numbers


def shapes(min_dims=0, max_dims=3, min_side=0, max_side=3):
    return hnp.array_shapes(
        min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side
    )


def generator(draw):
    return np.random.default_rng(draw(st.integers(0, 2**16)))


DOMAINS = {
    "real": lambda n, i: n,
    "positive": lambda n, i: 0.4 + 0.13 * i + np.abs(n),
    "nonzero": lambda n, i: np.copysign(0.4 + np.abs(n), n),
    "inside": lambda n, i: 0.9 * np.tanh(n),  # -1 < x < 1
    "above one": lambda n, i: 1.3 + np.abs(n),
    "apart": lambda n, i: (
        0.3 * (n.ravel().argsort().argsort().reshape(n.shape) - n.size // 2) + 0.05 + 0.1 * i
    ),  # no ties, no kinks
}


def numbers(draw, shape, domain="real", i=0):
    """Draw numbers in a domain. `i` is the operand's index, which prevents ties between operands."""
    return np.asarray(DOMAINS[domain](generator(draw).standard_normal(shape), i))


def an_axis(draw, ndim, several=True):
    """Draw None, an axis or several axes, counted from either end."""
    choices = [st.none()]
    if ndim:
        one = st.integers(-ndim, ndim - 1)
        choices.append(one)
        if several:
            choices.append(
                st.lists(one, min_size=1, max_size=ndim, unique_by=lambda a: a % ndim).map(tuple)
            )
    return draw(st.one_of(choices))


def every(axis, ndim):
    """Return the axes as a tuple of numbers >= 0."""
    return (
        tuple(range(ndim))
        if axis is None
        else tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    )


# ---- one operand, element by element


def elementwise(name, ours, theirs, domain="real"):
    TABLE[name] = lambda draw: Sample([numbers(draw, draw(shapes()), domain)], ours, theirs)


for name, theirs, domain in [
    ("negative", torch.neg, "real"),
    ("absolute", torch.abs, "nonzero"),
    ("exp", torch.exp, "real"),
    ("exp2", torch.exp2, "real"),
    ("expm1", torch.expm1, "real"),
    ("log", torch.log, "positive"),
    ("log2", torch.log2, "positive"),
    ("log10", torch.log10, "positive"),
    ("log1p", torch.log1p, "positive"),
    ("sqrt", torch.sqrt, "positive"),
    ("cbrt", lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3), "nonzero"),
    ("square", torch.square, "real"),
    ("reciprocal", torch.reciprocal, "nonzero"),
    ("sin", torch.sin, "real"),
    ("cos", torch.cos, "real"),
    ("tan", torch.tan, "inside"),
    ("arcsin", torch.asin, "inside"),
    ("arccos", torch.acos, "inside"),
    ("arctan", torch.atan, "real"),
    ("sinh", torch.sinh, "real"),
    ("cosh", torch.cosh, "real"),
    ("tanh", torch.tanh, "real"),
    ("arcsinh", torch.asinh, "real"),
    ("arccosh", torch.acosh, "above one"),
    ("arctanh", torch.atanh, "inside"),
    ("relu", torch.relu, "nonzero"),
    ("sigmoid", torch.sigmoid, "real"),
    ("erf", torch.erf, "real"),
    ("floor", torch.floor, "apart"),
    ("ceil", torch.ceil, "apart"),
    ("trunc", torch.trunc, "apart"),
    ("round", torch.round, "apart"),
    ("sign", torch.sign, "nonzero"),
]:
    elementwise(name, getattr(ops, name), theirs, domain)
for name, ours, theirs in [
    ("F.relu", F.relu, tF.relu),
    ("F.silu", F.silu, tF.silu),
    ("F.sigmoid", F.sigmoid, torch.sigmoid),
    ("F.tanh", F.tanh, torch.tanh),
    ("F.gelu", F.gelu, tF.gelu),
    ("F.gelu tanh", lambda x: F.gelu(x, "tanh"), lambda x: tF.gelu(x, approximate="tanh")),
]:
    elementwise(name, ours, theirs, "nonzero")


# ---- several operands that broadcast


def broadcasting(name, ours, theirs, *domains):
    def sample(draw):
        kinds = draw(
            hnp.mutually_broadcastable_shapes(
                num_shapes=len(domains), min_side=0, max_side=3, max_dims=3
            )
        ).input_shapes
        return Sample(
            [numbers(draw, s, d, i) for i, (s, d) in enumerate(zip(kinds, domains, strict=True))],
            ours,
            theirs,
        )

    TABLE[name] = sample


broadcasting("add", ops.add, torch.add, "real", "real")
broadcasting("subtract", ops.subtract, torch.sub, "real", "real")
broadcasting("multiply", ops.multiply, torch.mul, "real", "real")
broadcasting("divide", ops.divide, torch.div, "real", "nonzero")
broadcasting("power", ops.power, torch.pow, "positive", "real")
broadcasting(
    "floor_divide",
    ops.floor_divide,
    lambda a, b: torch.floor(a.detach() / b.detach()),
    "positive",
    "positive",
)
broadcasting("remainder", ops.remainder, torch.remainder, "positive", "positive")
broadcasting("copysign", ops.copysign, torch.copysign, "nonzero", "nonzero")
broadcasting("fmod", ops.fmod, torch.fmod, "real", "positive")
broadcasting("maximum", ops.maximum, torch.maximum, "apart", "apart")
broadcasting("minimum", ops.minimum, torch.minimum, "apart", "apart")
broadcasting("fmax", ops.fmax, torch.fmax, "apart", "apart")
broadcasting("fmin", ops.fmin, torch.fmin, "apart", "apart")
broadcasting(
    "clip",
    ops.clip,
    lambda x, low, high: torch.clamp(*torch.broadcast_tensors(x, low, high)),
    "apart",
    "apart",
    "apart",
)
broadcasting("arctan2", ops.arctan2, torch.atan2, "nonzero", "nonzero")
broadcasting("hypot", ops.hypot, torch.hypot, "nonzero", "nonzero")
broadcasting("logaddexp", ops.logaddexp, torch.logaddexp, "real", "real")
broadcasting("logaddexp2", ops.logaddexp2, torch.logaddexp2, "real", "real")


@entry("power of a number")
def _(draw):
    n = draw(st.sampled_from([0, 1, 2, 3, 4, -1, -2, 0.5, 2.5]))
    return Sample(
        [numbers(draw, draw(shapes()), "positive")], lambda x: ops.power(x, n), lambda x: x**n
    )


@entry("power of whole numbers, 0 among them")
def _(draw):
    shape = draw(shapes())
    exponents = np.asarray(np.round(numbers(draw, shape)))
    exponents.flat[:1] = 0
    return Sample([numbers(draw, shape, "positive"), exponents], ops.power, torch.pow)


@entry("a number to a power")
def _(draw):
    base = draw(st.sampled_from([1, 2.0, 0.3]))
    return Sample(
        [numbers(draw, draw(shapes()))], lambda x: ops.power(base, x), lambda x: torch.pow(base, x)
    )


@entry("where")
def _(draw):
    kinds = draw(
        hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=3, max_dims=3)
    ).input_shapes
    condition = generator(draw).random(kinds[0]) < 0.5
    return Sample(
        [numbers(draw, s) for s in kinds[1:]],
        lambda a, b: ops.where(condition, a, b),
        lambda a, b: torch.where(torch.from_numpy(np.asarray(condition)), a, b),
    )


@entry("matmul")
def _(draw):
    kinds = draw(
        hnp.mutually_broadcastable_shapes(
            signature="(m?,n),(n,p?)->(m?,p?)", min_side=0, max_side=3, max_dims=2
        )
    ).input_shapes
    return Sample([numbers(draw, s) for s in kinds], ops.matmul, torch.matmul)


@entry("einsum")
def _(draw):
    text, letters = draw(
        st.sampled_from(
            [
                ("ij,jk->ik", "ij jk"),
                ("bij,bj->bi", "bij bj"),
                ("ii->i", "ii"),
                ("ij->j", "ij"),
                ("i,j,k->kij", "i j k"),
                ("ij,ij->", "ij ij"),
                ("ijk,k->ji", "ijk k"),
            ]
        )
    )
    sizes = {a: draw(st.integers(1, 3)) for a in "bijk"}
    labels, result = tuple(text.split("->")[0].split(",")), text.split("->")[1]
    return Sample(
        [numbers(draw, tuple(sizes[a] for a in word)) for word in letters.split()],
        lambda *xs: ops.einsum(*xs, labels=labels, result=result),
        lambda *xs: torch.einsum(text, *xs),
    )


# ---- reductions


def reduction(name, ours, theirs, domain="real", min_side=0):
    def sample(draw):
        x = numbers(draw, draw(shapes(min_side=min_side)), domain)
        axis, keepdims = an_axis(draw, x.ndim), draw(st.booleans())
        return Sample(
            [x],
            lambda x: ours(x, axis=axis, keepdims=keepdims),
            lambda x: theirs(x, every(axis, x.ndim), keepdims),
        )

    TABLE[name] = sample


def product(x, axes, keepdims):
    for a in sorted(axes, reverse=True):
        x = x.prod(a, keepdim=keepdims)
    return x


def spread(function, ours):
    def sample(draw):
        x = numbers(draw, draw(shapes(min_side=2)))
        axis, keepdims, ddof = (
            an_axis(draw, x.ndim),
            draw(st.booleans()),
            draw(st.integers(0, 1)) if x.ndim else 0,
        )
        return Sample(
            [x],
            lambda x: ours(x, axis=axis, ddof=ddof, keepdims=keepdims),
            lambda x: function(x, every(axis, x.ndim), correction=ddof, keepdim=keepdims),
        )

    return sample


def std_with_a_slope(x, axes, correction, keepdim):
    """torch.std, except for a single number, for which PyTorch's slope is NaN and ours is 0."""
    return torch.std(x, axes, correction=correction, keepdim=keepdim) if x.ndim else x * 0


reduction("sum", ops.sum, lambda x, axes, keep: torch.sum(x, axes, keep))
reduction("mean", ops.mean, lambda x, axes, keep: torch.mean(x, axes, keep), min_side=1)
reduction("max", ops.max, lambda x, axes, keep: torch.amax(x, axes, keep), "apart", 1)
reduction("min", ops.min, lambda x, axes, keep: torch.amin(x, axes, keep), "apart", 1)
reduction("prod", ops.prod, product)
reduction(
    "l2_norm",
    ops.l2_norm,
    lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keep)),
    "nonzero",
    1,
)
reduction(
    "F.logsumexp",
    lambda x, axis, keepdims: F.logsumexp(x, every(axis, x.ndim) or 0, keepdims),
    lambda x, axes, keep: torch.logsumexp(x, axes or 0, keep),
    min_side=1,
)
TABLE["var"] = spread(torch.var, ops.var)
TABLE["std"] = spread(std_with_a_slope, ops.std)


@entry("prod with zeros")
def _(draw):
    x = numbers(draw, draw(shapes(min_dims=1, min_side=1)))
    x[generator(draw).random(x.shape) < 0.4] = 0
    axis = an_axis(draw, x.ndim)
    return Sample(
        [x], lambda x: ops.prod(x, axis=axis), lambda x: product(x, every(axis, x.ndim), False)
    )


@entry("cumsum")
def _(draw):
    x = numbers(draw, draw(shapes()))
    axis = an_axis(draw, x.ndim, several=False)
    return Sample(
        [x],
        lambda x: ops.cumsum(x, axis=axis),
        lambda x: x.reshape(-1).cumsum(0) if axis is None else x.cumsum(axis),
    )


@entry("cumprod")
def _(draw):
    x = numbers(draw, draw(shapes()))
    if draw(st.booleans()):
        x[generator(draw).random(x.shape) < 0.3] = 0
    axis = an_axis(draw, x.ndim, several=False)
    return Sample(
        [x],
        lambda x: ops.cumprod(x, axis=axis),
        lambda x: x.reshape(-1).cumprod(0) if axis is None else x.cumprod(axis),
    )


# ---- elements that move


def moves(function):
    """Return a PyTorch version of a NumPy function that rearranges elements."""

    def theirs(x):
        places = function(np.arange(x.numel()).reshape(x.shape))
        return x.reshape(-1)[torch.from_numpy(np.array(places))]

    return theirs


@entry("clone")
def _(draw):
    return Sample([numbers(draw, draw(shapes()))], ops.clone, torch.clone)


@entry("reshape")
def _(draw):
    x = numbers(draw, draw(shapes()))
    shape = draw(st.permutations([*x.shape, 1])) if draw(st.booleans()) or not x.size else (-1,)
    return Sample(
        [x], lambda x: ops.reshape(x, shape=tuple(shape)), lambda x: x.reshape(tuple(shape))
    )


@entry("transpose")
def _(draw):
    x = numbers(draw, draw(shapes()))
    order = draw(st.permutations(range(x.ndim)))
    axes = draw(st.sampled_from([None, tuple(order), tuple(a - x.ndim for a in order)]))
    return Sample([x], lambda x: ops.transpose(x, axes=axes), moves(lambda a: a.transpose(axes)))


@entry("swapaxes")
def _(draw):
    x = numbers(draw, draw(shapes(min_dims=1)))
    a, b = (draw(st.integers(-x.ndim, x.ndim - 1)) for _ in "ab")
    return Sample([x], lambda x: ops.swapaxes(x, a=a, b=b), lambda x: x.swapaxes(a, b))


@entry("broadcast_to")
def _(draw):
    shape = draw(shapes())
    narrow = tuple(draw(st.sampled_from([1, n])) for n in shape)[draw(st.integers(0, len(shape))) :]
    return Sample(
        [numbers(draw, narrow)],
        lambda x: ops.broadcast_to(x, shape=shape),
        lambda x: torch.broadcast_to(x, shape),
    )


@entry("flip")
def _(draw):
    x = numbers(draw, draw(shapes()))
    axis = an_axis(draw, x.ndim)
    return Sample(
        [x], lambda x: ops.flip(x, axis=axis), lambda x: torch.flip(x, every(axis, x.ndim))
    )


@entry("windows")
def _(draw):
    x = numbers(draw, draw(shapes(min_dims=1)))
    axes = [a for a in draw(st.lists(st.integers(0, x.ndim - 1), max_size=3)) if x.shape[a]]
    sizes, left = [], list(x.shape)
    for a in axes:
        sizes.append(draw(st.integers(1, left[a])))
        left[a] -= sizes[-1] - 1

    def theirs(x):
        for a, n in zip(axes, sizes, strict=True):
            x = x.unfold(a, n, 1)
        return x

    return Sample([x], lambda x: ops.windows(x, sizes=tuple(sizes), axes=tuple(axes)), theirs)


@entry("overlapped")
def _(draw):
    full, size, axis = (
        list(draw(shapes(min_dims=1))),
        draw(st.integers(1, 3)),
        draw(st.integers(-1, 0)),
    )
    full[axis] = max(full[axis], 1)
    g = numbers(draw, (*full, size))
    full[axis] += size - 1
    axes = (axis % len(full),)

    def theirs(g):
        parts = [
            torch.nn.functional.pad(g[..., k].movedim(axis, -1), (k, size - 1 - k)).movedim(
                -1, axis
            )
            for k in range(size)
        ]
        return sum(parts[1:], parts[0])

    return Sample(
        [g], lambda g: ops.overlapped(g, sizes=(size,), axes=axes, shape=tuple(full)), theirs
    )


for name, ours, theirs in [("tril", ops.tril, torch.tril), ("triu", ops.triu, torch.triu)]:

    @entry(name)
    def _(draw, ours=ours, theirs=theirs):
        k = draw(st.integers(-3, 3))
        return Sample(
            [numbers(draw, draw(shapes(min_dims=2)))],
            lambda x: ours(x, k=k),
            lambda x: theirs(x, k),
        )


@entry("astype")
def _(draw):
    return Sample(
        [numbers(draw, draw(shapes()))], lambda x: ops.astype(x, dtype=x.dtype), lambda x: x.clone()
    )


@entry("pad")
def _(draw):
    x = numbers(draw, draw(shapes()))
    width = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in x.shape)
    flat = [n for pair in reversed(width) for n in pair]
    return Sample(
        [x],
        lambda x: ops.pad(x, width=width, value=2.5),
        lambda x: tF.pad(x, flat, value=2.5) if flat else x.clone(),
    )


@entry("concatenate")
def _(draw):
    shape = draw(shapes(min_dims=1))
    axis = an_axis(draw, len(shape), several=False)
    along = 0 if axis is None else axis % len(shape)
    parts = [
        numbers(draw, (*shape[:along], draw(st.integers(0, 3)), *shape[along + 1 :]))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return Sample(
        parts,
        lambda *xs: ops.concatenate(*xs, axis=axis),
        lambda *xs: torch.cat([x.reshape(-1) for x in xs] if axis is None else xs, along),
    )


@entry("stack")
def _(draw):
    shape = draw(shapes(max_dims=2))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    return Sample(
        [numbers(draw, shape) for _ in range(draw(st.integers(1, 3)))],
        lambda *xs: ops.stack(*xs, axis=axis),
        lambda *xs: torch.stack(xs, axis),
    )


# ---- elements picked


@entry("getitem")
def _(draw):
    x = numbers(draw, draw(shapes(min_dims=1)))
    rng = generator(draw)
    basic = hnp.basic_indices(x.shape, allow_newaxis=True, max_dims=5)
    choices = [basic, st.just(rng.random(x.shape) < 0.5)]
    if x.size:
        rows = rng.integers(-x.shape[0], x.shape[0], size=draw(shapes(max_dims=2)))
        choices += [
            st.just(rows),
            st.just((rows, Ellipsis, slice(None, None, -1)) if x.ndim > 1 else rows),
        ]
        if x.ndim > 2:
            choices.append(
                st.just((rows, slice(None), rng.integers(-x.shape[2], x.shape[2], size=rows.shape)))
            )
    index = draw(st.one_of(choices))
    return Sample([x], lambda x: ops.getitem(x, index=index), moves(lambda a: a[index]))


@entry("scatter")
def _(draw):
    shape = draw(shapes(min_dims=1, min_side=1, max_dims=2))
    rows = generator(draw).integers(-shape[0], shape[0], size=draw(shapes(max_dims=2)))
    places = np.arange(math.prod(shape)).reshape(shape)[rows]

    def theirs(g):
        flat = torch.zeros(math.prod(shape), dtype=g.dtype).index_add(
            0, torch.from_numpy(np.array(places).reshape(-1)), g.reshape(-1)
        )
        return flat.reshape(shape)

    return Sample(
        [numbers(draw, places.shape)], lambda g: ops.scatter(g, index=rows, shape=shape), theirs
    )


@entry("take_along_axis")
def _(draw):
    x = numbers(draw, draw(shapes(min_dims=1, min_side=1)))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    shape = [draw(st.sampled_from([1, n])) for n in x.shape]
    shape[axis] = draw(st.integers(0, 4))
    indices = generator(draw).integers(-x.shape[axis], x.shape[axis], size=shape)
    return Sample(
        [x],
        lambda x: ops.take_along_axis(x, indices=indices, axis=axis),
        moves(lambda a: np.take_along_axis(a, indices, axis)),
    )


def a_table(draw):
    rows, width = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    indices = generator(draw).integers(0, rows, size=draw(shapes(max_dims=2)))
    return numbers(draw, (rows, width)), np.asarray(indices)


@entry("embedding")
def _(draw):
    table, indices = a_table(draw)
    indices = np.asarray(indices) - generator(draw).choice(
        [0, len(table)], size=indices.shape
    )  # some counted from the end
    return Sample([table], lambda w: ops.embedding(w, indices=indices), moves(lambda a: a[indices]))


@entry("scatter to rows")
def _(draw):
    table, indices = a_table(draw)
    indices = np.asarray(indices) - generator(draw).choice([0, len(table)], size=indices.shape)
    flat = torch.from_numpy(np.array(indices).reshape(-1)) % len(table)
    return Sample(
        [numbers(draw, (*indices.shape, table.shape[1]))],
        lambda g: ops.scatter(g, index=indices, shape=table.shape),
        lambda g: torch.zeros(table.shape, dtype=g.dtype).index_add(
            0, flat, g.reshape(len(flat), table.shape[1])
        ),
    )


@entry("F.embedding")
def _(draw, paddings=(None,)):
    table, indices = a_table(draw)
    padding = draw(st.sampled_from(paddings))
    return Sample(
        [table],
        lambda w: F.embedding(indices, w, padding),
        lambda w: tF.embedding(torch.from_numpy(indices), w, padding),
    )


TABLE["F.embedding with padding"] = partial(TABLE["F.embedding"], paddings=(0, -1))
BY_CONVENTION = {name for name in TABLE if name.endswith("with padding")}
"""The padding row gets no gradient although the result depends on it."""


# ---- matrices


def matrices(name, ours, theirs, prepare, tall=False, wide=False):
    """Add an op on square matrices, and on tall or wide matrices if it accepts them."""

    def sample(draw):
        m = n = draw(st.integers(1, 3))
        if tall or wide:
            longer = draw(st.integers(0, 2))
            m, n = (n, n + longer) if wide and draw(st.booleans()) else (n + longer, n)
        x = numbers(draw, (*draw(shapes(max_dims=1)), m, n))
        return Sample([x], lambda x: ours(prepare(x)), lambda x: theirs(prepare(x)))

    TABLE[name] = sample


def regular(x):
    """Make a matrix far from singular, with distinct singular values and eigenvalues."""
    m, n = x.shape[-2:]
    diagonal = 3.0 * np.arange(1, n + 1) * np.eye(m, n)
    diagonal = diagonal.astype(str(x.dtype).removeprefix("torch."))
    return 0.3 * x + (torch.from_numpy(diagonal) if isinstance(x, torch.Tensor) else diagonal)


def symmetric(x):
    x = regular(x)
    return x + x.swapaxes(-1, -2)


def pairs(x):
    """Return w + v^2 for each eigenpair, which does not depend on the sign of the eigenvector v."""
    y = ops.eigh(symmetric(x))
    return y[..., 0].reshape(*y.shape[:-1], 1) + y[..., 1:] * y[..., 1:]


def pairs_torch(x):
    w, v = torch.linalg.eigh(symmetric(x))
    return w[..., None] + v.mT**2


def triplets(x):
    """Return u s v^T (..., K, M, N) for each singular triplet, which does not depend on signs."""
    y, m = ops.svd(regular(x)), x.shape[-2]
    u, s, v = y[..., :m], y[..., m], y[..., m + 1 :]
    s = s.reshape(*s.shape, 1, 1)
    return u.reshape(*u.shape, 1) * s * v.reshape(*v.shape[:-1], 1, v.shape[-1])


def triplets_torch(x):
    u, s, v = torch.linalg.svd(regular(x), full_matrices=False)
    return u.mT[..., None] * s[..., None, None] * v[..., None, :]


matrices("inv", ops.inv, torch.linalg.inv, regular)
matrices("det", ops.det, torch.linalg.det, regular)
matrices("logabsdet", ops.logabsdet, torch.logdet, regular)
matrices("pinv", ops.pinv, torch.linalg.pinv, regular, tall=True, wide=True)
matrices("cholesky", ops.cholesky, torch.linalg.cholesky, symmetric)
matrices("eigvalsh", ops.eigvalsh, torch.linalg.eigvalsh, symmetric)
matrices(
    "singular_values", ops.singular_values, torch.linalg.svdvals, regular, tall=True, wide=True
)
matrices("eigh", pairs, pairs_torch, lambda x: x)
matrices("svd", triplets, triplets_torch, lambda x: x, tall=True, wide=True)
matrices("qr", ops.qr, lambda x: torch.cat(torch.linalg.qr(x), -2), regular, tall=True)


@entry("solve")
def _(draw):
    n = draw(st.integers(1, 3))
    lead = draw(shapes(max_dims=1))
    a = numbers(draw, (*lead, n, n))
    b = numbers(draw, (n,) if draw(st.booleans()) else (*lead, n, draw(st.integers(1, 3))))
    return Sample(
        [a, b], lambda a, b: ops.solve(regular(a), b), lambda a, b: torch.linalg.inv(regular(a)) @ b
    )


# ---- functions of neural networks


for name, ours, theirs in [
    ("F.softmax", F.softmax, torch.softmax),
    ("F.log_softmax", F.log_softmax, torch.log_softmax),
]:

    @entry(name)
    def _(draw, ours=ours, theirs=theirs):
        x = np.asarray(numbers(draw, draw(shapes())) * draw(st.sampled_from([1, 1, 200])))
        axis = draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
        return Sample([x], lambda x: ours(x, axis=axis), lambda x: theirs(x, axis))


def normalisation(ours, theirs, parameters, domain):
    def sample(draw):
        shape = draw(shapes(min_dims=1, min_side=1))
        ndim = draw(st.integers(1, len(shape)))
        given = draw(st.integers(0, parameters))
        inner, eps = shape[-ndim:], draw(st.sampled_from([1e-5, 0.1]))
        return Sample(
            [numbers(draw, shape, domain), *(numbers(draw, inner) for _ in range(given))],
            lambda x, *p: ours(x, inner, ndim, p, eps),
            lambda x, *p: theirs(x, inner, *p, eps=eps),
        )

    return sample


TABLE["F.layer_norm"] = normalisation(
    lambda x, inner, ndim, p, eps: F.layer_norm(x, inner, *p, eps=eps), tF.layer_norm, 2, "apart"
)
TABLE["F.rms_norm"] = normalisation(
    lambda x, inner, ndim, p, eps: F.rms_norm(x, inner, *p, eps=eps), tF.rms_norm, 1, "nonzero"
)


@entry("F.linear")
def _(draw):
    rows, columns = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    bias = [numbers(draw, (columns,))] if draw(st.booleans()) else []
    inputs = [numbers(draw, (*draw(shapes()), rows)), numbers(draw, (columns, rows)), *bias]
    return Sample(inputs, F.linear, tF.linear)


@entry("F.dropout")
def _(draw):
    p, training = draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])), draw(st.booleans())

    def ours(x):
        manual_seed(3)
        return F.dropout(x, p, training)

    def theirs(x):
        torch.manual_seed(3)
        return tF.dropout(x, p, training)

    return Sample([numbers(draw, draw(shapes()))], ours, theirs)


@entry("F.mse_loss")
def _(draw):
    shape, how = draw(shapes(min_side=1)), draw(st.sampled_from(["none", "mean", "sum"]))
    return Sample(
        [numbers(draw, shape), numbers(draw, shape)],
        lambda x, y: F.mse_loss(x, y, reduction=how),
        lambda x, y: tF.mse_loss(x, y, reduction=how),
    )


@entry("F.cross_entropy of labels")
def _(draw, soft=False):
    """The class axis of the scores is axis 1, or axis 0 for a single sample."""
    classes, rng = draw(st.integers(1, 4)), generator(draw)
    samples = draw(st.sampled_from([(), (1,), (3,), (2, 2), (2, 1, 3)]))
    shape, labels = (*samples[:1], classes, *samples[1:]), rng.integers(0, classes, size=samples)
    if samples and draw(st.booleans()):
        labels[rng.random(samples) < 0.4] = -100
        labels[0] = 0  # or the mean would be NaN
    weight = rng.random(classes) + 0.5 if draw(st.booleans()) else None
    target = [] if soft else [np.asarray(labels)]

    def called(function, convert):
        def call(x, *soft):
            named = str(x.dtype).removeprefix("torch.")
            weights = None if weight is None else convert(weight.astype(named))
            return function(x, *soft, *map(convert, target), weights, **settings)

        return call

    settings = dict(
        reduction=draw(st.sampled_from(["none", "mean", "sum"])),
        label_smoothing=draw(st.sampled_from([0.0, 0.2, 1.0])),
    )
    inputs = [numbers(draw, shape), *([rng.random(shape)] if soft else [])]
    theirs = called(tF.cross_entropy, torch.from_numpy)
    return Sample(inputs, called(F.cross_entropy, lambda a: a), theirs)


TABLE["F.cross_entropy of probabilities"] = partial(TABLE["F.cross_entropy of labels"], soft=True)


def weights_times_values(q, k, v, mask=None, **settings):
    """Return the attention weights from scaled_dot_product_attention, times the values."""
    weights = F.scaled_dot_product_attention(q, k, v, mask, need_weights=True, **settings)[1]
    return weights @ (attention_module.repeat_heads(v, q, "v") if settings["enable_gqa"] else v)


@entry("F.scaled_dot_product_attention")
def _(draw, ours=F.scaled_dot_product_attention):
    rng, lead = generator(draw), draw(st.sampled_from([(), (2,), (2, 4), (1, 2)]))
    t, s, d, v = (draw(st.integers(1, 4)) for _ in "tsdv")
    grouped = len(lead) == 2 and draw(st.booleans())
    key_lead = (*lead[:-1], lead[-1] // 2) if grouped else lead
    sizes = (*lead, t, d), (*key_lead, s, d), (*key_lead, s, v)
    inputs = [numbers(draw, size) for size in sizes]
    shape = draw(st.sampled_from([(t, s), (1, s), (*lead, t, s), (*lead, 1, s)]))
    seen = rng.random(shape) < 0.6  # some rows may have no visible key
    kind, causal = draw(st.sampled_from(["none", "boolean", "float"])), draw(st.booleans())
    if kind == "float":
        low = draw(st.sampled_from([-np.inf, 0.5]))
        inputs.append(np.where(seen, rng.standard_normal(shape), low))
    settings = dict(scale=draw(st.sampled_from([None, 0.3, 1.7])), enable_gqa=grouped)
    mine = [seen] if kind == "boolean" else []

    def theirs(*xs):
        """PyTorch's function takes a mask or is_causal; ours takes both."""
        mask = torch.from_numpy(seen) if kind == "boolean" else (*xs, None)[3]
        if causal:
            past = torch.ones(t, s, dtype=torch.bool).tril()
            if kind == "float":
                mask = torch.where(past, mask, -math.inf)
            else:
                mask = past if mask is None else past & mask
        return tF.scaled_dot_product_attention(*xs[:3], mask, **settings)

    return Sample(inputs, lambda *xs: ours(*xs, *mine, is_causal=causal, **settings), theirs)


TABLE["F.scaled_dot_product_attention and its weights"] = partial(
    TABLE["F.scaled_dot_product_attention"], ours=weights_times_values
)


@entry("F.split_heads")
def _(draw):
    heads, width = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    x = numbers(draw, (*draw(shapes(max_dims=2, min_dims=1)), heads * width))
    return Sample(
        [x],
        lambda x: F.split_heads(x, heads),
        moves(lambda a: a.reshape(*a.shape[:-1], heads, width).swapaxes(-2, -3)),
    )


@entry("F.merge_heads")
def _(draw):
    x = numbers(draw, (*draw(shapes(max_dims=1)), *draw(shapes(min_dims=3))))
    *lead, h, t, d = x.shape
    return Sample([x], F.merge_heads, moves(lambda a: a.swapaxes(-2, -3).reshape(*lead, t, h * d)))


@entry("F.rotary")
def _(draw):
    x = numbers(draw, (*draw(shapes(min_dims=1, max_dims=3)), 2 * draw(st.integers(0, 3))))
    t, half, base = np.arange(x.shape[-2]) - 1, x.shape[-1] // 2, draw(st.sampled_from([3.0, 1e4]))
    turns = np.exp(1j * t[:, None] * base ** (-np.arange(half) / max(half, 1)))

    def theirs(x):  # pairs are complex numbers
        z = torch.complex(x[..., :half], x[..., half:]) * torch.from_numpy(turns)
        return torch.cat([z.real, z.imag], dim=-1)

    return Sample([x], lambda x: F.rotary(x, t, base), theirs)


# ---- functions without derivatives


def positions(length, width):
    t, j = np.arange(length)[:, None], np.arange(width)
    angles = t / 10000 ** ((j - j % 2) / width)
    return np.where(j % 2, np.cos(angles), np.sin(angles))


CONSTANTS: dict[str, list[tuple[tuple[Any, ...], Callable[..., np.ndarray]]]] = {
    "causal_mask": [((n,), lambda n: np.arange(n) > np.arange(n)[:, None]) for n in (0, 1, 4)],
    "padding_mask": [
        (([2, 0, 3],), lambda n: np.arange(3) >= np.array(n)[:, None]),
        (([[1, 2]], 4), lambda n, most: np.arange(most) >= np.array(n)[..., None]),
    ],
    "sinusoidal_positions": [((4, 6), positions), ((3, 5), positions)],
}
"""For each function of `F` without a derivative: arguments, and a function for the result in plain NumPy."""
