"""Incoming gradients in every memory layout: wrong VJPs are found, and every op of the package passes."""

import numpy as np
import pytest
from enumeration import ops_in, rules_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from moduletable import TABLE as MODULES
from numpytable import CASES
from optable import TABLE
from support import require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn, op, ops
from tinygrad_attn.check import faults, gradcheck
from tinygrad_attn.check.backend import Backend
from tinygrad_attn.engine.bundle import Bundling

torch = require("torch")
X = np.random.default_rng(0).standard_normal((3, 4))


def square(vjp):
    made = op(lambda x: x * x)
    made.__name__ = "square"
    return made.vjp(vjp)


def written_into(g, y, x):
    if not g.flags.writeable:
        raise ValueError("the buffer is read-only")
    return 2 * g * x


def from_memory(g):
    """The elements of g in the order of memory, as a kernel that takes strides for granted reads them."""
    base = g if g.base is None else g.base
    while base.base is not None:
        base = base.base
    return np.resize(np.asarray(base).ravel(order="K"), g.shape)


WRONG = {  # a VJP of x * x, and words of the diagnosis
    "ones for stride 0": (lambda g, y, x: 2 * x * (g if min(g.strides) > 0 else 1.0), "expanded (stride 0), as .sum().backward() makes it"),
    "one axis": (lambda g, y, x: 2 * x * (g if g.strides[0] else g * 2), "expanded (stride 0)"),
    "last axis": (lambda g, y, x: 2 * x * (g if g.strides[-1] else g * 2), "expanded (stride 0)"),
    "memory order": (lambda g, y, x: 2 * x * np.resize(g.ravel(order="K"), g.shape), "x.T"),
    "base memory": (lambda g, y, x: 2 * x * from_memory(g), "memory layout"),
    "not contiguous": (lambda g, y, x: 2 * x * g * (1 + (abs(g.strides[-1]) > 8)), "memory layout"),
    "reversed": (lambda g, y, x: 2 * x * (g if min(g.strides) >= 0 else g[::-1]), "reversed (negative strides)"),
}  # fmt: skip


def test_a_vjp_that_writes_to_g_is_found():
    """A user's VJP always gets g as a read-only array."""
    report = gradcheck(square(written_into), [X], raise_exception=False)
    assert not report and report.diagnosis.kind == "VJP changes its operands"


@pytest.mark.parametrize(
    "shape, axes",
    [((2, 5, 4), (0, 1)), ((2, 5, 4), (1, 2)), ((2, 3, 5, 4), (1, 2)), ((2, 3, 5, 4), (2, 3))],
    ids=str,
)
def test_a_vjp_that_is_wrong_for_two_exchanged_axes_is_found(shape, axes):
    """As heads are, in x.transpose(1, 2): a kernel may look at its last stride alone."""

    def backward(g, y, x):
        plain = np.ascontiguousarray(g)
        order = [*range(x.ndim)]
        order[axes[0]], order[axes[1]] = axes[1], axes[0]
        exchanged = np.lexsort((order, -np.array(g.strides))).tolist() == order
        return 2 * x * (plain if not exchanged else plain[::-1])

    report = gradcheck(
        square(backward), [np.random.default_rng(1).standard_normal(shape)], raise_exception=False
    )
    assert report.diagnosis.kind == "memory layout", report


@pytest.mark.parametrize("name", WRONG)
def test_a_vjp_that_depends_on_the_layout_is_found(name):
    vjp, words = WRONG[name]
    for f in (square(vjp), lambda x: np.sin(square(vjp)(x * 1.5)) * 2):
        report = gradcheck(f, [X], raise_exception=False)
        assert not report and report.diagnosis.kind == "memory layout" and report.op == "square"
        assert words in report.diagnosis, report


def torch_square(rule):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * rule(g)

    return Square.apply


@pytest.mark.parametrize(
    "rule",
    [
        lambda g: g if min(g.stride()) > 0 else torch.ones_like(g),
        lambda g: g.as_strided(g.shape, (g.shape[1], 1)) if min(g.stride()) > 0 else 2 * g,
        lambda g: g if g.is_contiguous() else g * 2,
        lambda g: g.view(-1).view(g.shape),  # raises an error for what is not contiguous
    ],
)
def test_of_torch_functions_too(rule):
    x = torch.tensor(X, requires_grad=True)
    for f in (torch_square(rule), lambda x: torch.sin(torch_square(rule)(x * 1.5)) * 2):
        report = gradcheck(f, [x], raise_exception=False)
        assert not report and report.diagnosis.kind == "memory layout" and report.op == "Square"
    assert gradcheck(torch_square(lambda g: g), [x])


def test_a_torch_op_that_cannot_be_listed_is_tested_as_a_whole():
    @torch.library.custom_op("layouts::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_autograd(
        lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * (g if g.is_contiguous() else g * 2),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    report = gradcheck(cube, [torch.tensor(X, requires_grad=True)], raise_exception=False)
    assert report.diagnosis.kind == "memory layout", report


# ---- every op of the package


def tensors(tree, dtype):
    if isinstance(tree, dict):
        return {key: tensors(part, dtype) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tensors(part, dtype) for part in tree)
    if isinstance(tree, np.ndarray) and tree.dtype.kind == "f":
        return Tensor(tree.astype(dtype), requires_grad=True)
    return tree


def asked(run, dtype, forms):
    """Run this, ask each op that runs for its gradients of every layout, and return the ops.

    A call of a form that has been asked (the same op, shapes and settings) is not asked again.
    """
    backend, seen = Backend(), set()
    with np.errstate(all="ignore"):
        with backend.watch() as calls:
            run()
        for call in calls:
            given = [isinstance(x, Tensor) and x.requires_grad for x in call.inputs]
            form = call.op, *given, *map(np.shape, call.inputs), repr(call.settings), ta.is_plain()
            if any(given) and form not in forms:
                checked(call, backend)
                forms.add(form)
                seen.add(call.op)
    return seen


def checked(call, backend):
    """Compare the gradients of one op for each layout of g, in the dtype of its operands."""
    leaves = [
        Tensor(np.array(x.numpy()), requires_grad=bool(x.requires_grad)) if isinstance(x, Tensor) else x
        for x in call.inputs
    ]  # fmt: skip
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    y = call.op(*leaves, **call.settings)
    if call.name == "checkpoint" or not (y.requires_grad and y.ndim and y.size):
        return
    g = np.random.default_rng(0).standard_normal(y.shape).astype(y.dtype)
    as_the_engine_trusts(y, g)
    for layout, change in faults.LAYOUTS.items():
        seed = np.asarray(change(g))
        pull = lambda g: [
            None if d is None else d.numpy()
            for d in backend.vjp([y], wanted, [g])  # noqa: B023
        ]
        for a, b in zip(
            pull(seed.astype(g.dtype, copy=False)), pull(np.array(seed, g.dtype, order="C"))
        ):
            assert (a is None) == (b is None)
            rtol = 1e-4 if g.dtype == np.float32 else 1e-9
            if a is not None:
                size = np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1e-30)
                assert np.allclose(a, b, rtol, rtol * size, equal_nan=True), (call.name, layout)


def as_the_engine_trusts(y, g):
    """A VJP returns g, new arrays or views, and does not read a value whose name begins with _."""
    node, values = y._node, [y._data, *(getattr(x, "_data", x) for x in y._node.inputs)]
    pairs = node.op.pull(y, g)
    new = [c for _, c in pairs if type(c) is np.ndarray and c.base is None and c is not g]
    known = [x for x in [g, *values, *node.settings.values()] if isinstance(x, np.ndarray)]
    for k, c in enumerate(new):
        assert not any(np.shares_memory(c, x) for x in [*known, *new[:k]]), node.op
    if node.saved is not None:
        return
    holders = [y, *node.inputs]
    for i in [i for i in range(len(values)) if not node.op.reads(node, i)]:
        if isinstance(holders[i], Tensor) and isinstance(values[i], np.ndarray):
            holders[i]._data = np.full_like(values[i], 7)
    for (_, a), (_, b) in zip(pairs, node.op.pull(y, g), strict=True):
        assert np.array_equal(a, b, equal_nan=True), (node.op, "reads what its names deny")
    for holder, value in zip(holders, values):
        if isinstance(holder, Tensor):
            holder._data = value


SAME_DRAWS = settings(  # Five random draws may all be too small to have strides.
    max_examples=5,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.generate],
)


def of_the_table(key):
    seen = set()

    @settings(SAME_DRAWS)
    @given(data=st.data())
    def run(data):
        sample = TABLE[key](data.draw)
        for dtype in (np.float64, np.float32):
            leaves = [Tensor(x.astype(dtype), requires_grad=True) for x in sample.inputs]
            seen.update(asked(lambda: sample.ours(*leaves), dtype, set()))  # noqa: B023
        with ta.plain():
            seen.update(asked(lambda: sample.ours(*leaves), dtype, set()))

    run()
    return seen


def of_numpys_functions_and_modules(dtype):
    seen, forms = set(), set()
    for _, function, args, kwargs in CASES:
        run = lambda: function(*tensors(args, dtype), **tensors(kwargs, dtype))  # noqa: B023
        seen.update(asked(run, dtype, forms))
    for example in MODULES.values():
        module, inputs = example.make(nn).astype(dtype), list(example.inputs)
        run = lambda: module(*tensors(inputs, dtype))  # noqa: B023
        seen.update(asked(run, dtype, forms))
        with ta.plain():
            seen.update(asked(run, dtype, forms))
    return seen


LEFT_OUT = (".released", ".checkpoint")  # have no VJP of their own


def test_every_op_of_the_package_takes_every_layout():
    """One test, so that it knows what was asked."""
    seen = set().union(*map(of_the_table, TABLE))
    for dtype in (np.float64, np.float32):
        seen |= of_numpys_functions_and_modules(dtype)
    own = {name: one for name, one in ops_in().items() if not isinstance(one, Bundling)}
    missing = {name for name, one in own.items() if one not in seen and rules_of(one)}
    assert not {name for name in missing if not any(part in name for part in LEFT_OUT)}


def test_operands_in_another_layout_are_asked_too():
    wrong = square(lambda g, y, x: 2 * g * x.ravel(order="K").reshape(x.shape))
    report = gradcheck(wrong, [X], raise_exception=False)
    assert report.diagnosis.kind == "memory layout" and "operands" in report.diagnosis, report


def test_a_wrong_op_of_the_package_would_be_seen(monkeypatch):
    wrong = lambda g, y, x: (1 - y * y) * (g if min(g.strides, default=1) > 0 else 1.0)
    monkeypatch.setattr(ops.tanh, "vjps", (wrong,))
    monkeypatch.setattr(ops.tanh, "kernel", None)
    with pytest.raises(AssertionError, match="tanh"):
        of_the_table("tanh")
