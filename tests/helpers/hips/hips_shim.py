"""A pytest plugin that lets the published tests of HIPS autograd run against this package, or against MyGrad
(HIPS_BACKEND=mygrad).

It puts modules named `autograd...` in place whose `numpy` is NumPy itself and whose `grad`, `jacobian`, `check_grads`
... are written here on top of the backend's own backward pass.  Complex arguments are left out of the checks; what
else is out of scope is listed in hips_scope.py.
"""

import inspect
import itertools
import os
import sys
import types

import numpy as np
from hips_scope import FILES, out_of_scope

EPS, TOLERANCE = 1e-6, 1e-6
MAX_ORDER = int(os.environ.get("HIPS_MAX_ORDER", "9"))
depth = 0  # how many differentiated functions we are inside


# ---- trees of arrays: numbers, arrays, tensors, and tuples, lists and dicts of them


def leaves(tree):
    if isinstance(tree, dict):
        return [x for key in sorted(tree) for x in leaves(tree[key])]
    return [x for part in tree for x in leaves(part)] if isinstance(tree, (tuple, list)) else [tree]


def rebuild(tree, values):
    values = iter(values)

    def build(node):
        if isinstance(node, dict):
            return {key: build(node[key]) for key in sorted(node)}
        return type(node)(map(build, node)) if type(node) in (tuple, list) else next(values)

    return build(tree)


def array(x):
    return (
        x
        if isinstance(x, backend.Tensor)
        else np.asarray(x, None if getattr(x, "dtype", None) is not None else float)
    )


def draw(x):
    return np.asarray(np.random.randn(*np.shape(x)))[()]


class Ours:
    """tinygrad_attn; a transform inside another one is recorded."""

    from tinygrad_attn import Tensor, grad

    def start(self, x):
        return (
            x.clone()
            if isinstance(x, self.Tensor) and x.requires_grad
            else self.Tensor(array(x), requires_grad=True)
        )

    def pull(self, f, inputs, y, cotangents, nested):
        """`nested`: the gradients themselves will be differentiated."""
        pairs = [
            (y, g)
            for y, g in zip(y, cotangents, strict=True)
            if isinstance(y, self.Tensor) and y.requires_grad
        ]
        found = (
            Ours.grad(
                [y for y, _ in pairs],
                inputs,
                [g for _, g in pairs],
                create_graph=nested,
                retain_graph=True,
                allow_unused=True,
            )
            if pairs
            else [None] * len(inputs)
        )
        return [
            np.zeros(x.shape, x.dtype) if g is None else g
            for x, g in zip(inputs, found, strict=True)
        ]


class MyGrad:
    """MyGrad 2: first derivatives only, and a graph that can be used once, so every pullback runs the function
    again.
    """

    def __init__(self):
        import mygrad

        self.Tensor, self.new = mygrad.Tensor, mygrad.tensor

    def start(self, x):
        if isinstance(x, self.Tensor):
            raise TypeError("MyGrad has no second derivatives")
        return self.new(array(x))

    def pull(self, f, inputs, y, cotangents, nested):
        if nested:
            raise TypeError("MyGrad has no second derivatives")
        inputs = [self.new(x.data) for x in inputs]
        total = sum(
            np.sum(y * g)
            for y, g in zip(leaves(f(inputs)), cotangents, strict=True)
            if isinstance(y, self.Tensor)
        )
        if isinstance(total, self.Tensor):
            total.backward()
        return [np.zeros(x.shape, x.dtype) if x.grad is None else x.grad for x in inputs]


backend = MyGrad() if os.environ.get("HIPS_BACKEND") == "mygrad" else Ours()


def plain(x):
    return (x.data if x.ndim else x.data[()]) if isinstance(x, backend.Tensor) else x


# ---- autograd.core


def make_vjp(f, x):
    """`(pullback, f(x))`, with trees on both sides."""
    global depth
    nested = depth > 0
    inputs = [backend.start(v) for v in leaves(x)]

    def run(values):
        global depth
        depth += 1
        try:
            return f(rebuild(x, values))
        finally:
            depth -= 1

    y = run(inputs)

    def pullback(g):
        inside = nested or depth > 0
        try:
            found = backend.pull(run, inputs, leaves(y), leaves(g), inside)
        except TypeError as error:
            if "has 0 VJPs" in str(error):
                raise NotImplementedError(str(error)) from error
            raise
        return rebuild(x, found if inside else map(plain, found))

    return pullback, y if nested else rebuild(y, map(plain, leaves(y)))


def unary_to_nary(unary):
    def nary(fun, argnum=0, *more, **options):
        def derived(*args, **kwargs):
            chosen = (argnum,) if isinstance(argnum, int) else tuple(argnum)

            def of_one(x):
                given = list(args)
                for i, v in zip(chosen, (x,) if isinstance(argnum, int) else x, strict=True):
                    given[i] = v
                return fun(*given, **kwargs)

            of_one.__name__ = getattr(fun, "__name__", "function")
            x = args[argnum] if isinstance(argnum, int) else tuple(args[i] for i in chosen)
            return unary(of_one, x, *more, **options)

        return derived

    return nary


# ---- autograd


def ones(y):
    return rebuild(y, [np.ones(np.shape(v)) for v in leaves(y)])


@unary_to_nary
def value_and_grad(f, x):
    pullback, y = make_vjp(f, x)
    if np.size(y) != 1 or np.result_type(plain(y)).kind != "f":
        raise TypeError(f"grad needs a single real number as the result, got {y}")
    return y, pullback(ones(y))


@unary_to_nary
def elementwise_grad(f, x):
    pullback, y = make_vjp(f, x)
    return pullback(ones(y))


@unary_to_nary
def grad_and_aux(f, x):
    pullback, (y, aux) = make_vjp(f, x)
    return pullback((ones(y), rebuild(aux, [np.zeros(np.shape(v)) for v in leaves(aux)]))), aux


def grad(fun, argnum=0):
    both = value_and_grad(fun, argnum)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


@unary_to_nary
def jacobian(f, x):
    pullback, y = make_vjp(f, x)
    rows = [pullback(np.eye(np.size(y))[i].reshape(np.shape(y))) for i in range(np.size(y))]
    return np.stack(rows).reshape(np.shape(y) + np.shape(x))


def hessian(fun, argnum=0):
    return jacobian(jacobian(fun, argnum), argnum)


@unary_to_nary
def make_hvp(f, x):
    return make_vjp(grad(f), x)


@unary_to_nary
def make_jvp(f, x):
    return lambda v: (f(x), pushforward(f, x, v))


@unary_to_nary
def deriv(f, x):
    return pushforward(f, x, np.ones(np.shape(x)))


def pushforward(f, x, v):
    """J v from two pullbacks, as the pullback is linear in its cotangent."""
    y = f(x)
    if isinstance(backend, MyGrad):
        raise TypeError("MyGrad has neither a forward mode nor second derivatives")
    back, _ = make_vjp(
        lambda g: make_vjp(f, x)[0](g), rebuild(y, [np.zeros(np.shape(z)) for z in leaves(y)])
    )
    return back(v)


def make_ggnvp(f, g=lambda x: 0.5 * np.sum(x * x)):
    def at(x):
        y = f(x)
        return lambda v: make_vjp(f, x)[0](make_vjp(grad(g), y)[0](pushforward(f, x, v)))

    return at


def hessian_tensor_product(fun, argnum=0):
    slope = grad(fun, argnum)
    return grad(
        lambda *args, **kwargs: np.tensordot(
            slope(*args[:-1], **kwargs), args[-1], np.ndim(args[-1])
        ),
        argnum,
    )


def tensor_jacobian_product(fun, argnum=0):
    return jacobian(
        lambda *args, **kwargs: np.tensordot(
            args[-1], fun(*args[:-1], **kwargs), np.ndim(args[-1])
        ),
        argnum,
    )


def primitive(f):
    """A function without a derivative, until defvjp."""
    from tinygrad_attn import op

    return op(f)


def defvjp(op, *makers):
    op.vjp(*(lambda g, y, *args, make=make: make(y, *args)(g) for make in makers))


# ---- autograd.test_util


def numbers_as_array(x):
    """A list of numbers stands for an array, also inside a tuple of arguments."""
    if type(x) is tuple:
        return tuple(map(numbers_as_array, x))
    return (
        np.array(x)
        if type(x) is list and all(isinstance(v, (int, float)) for v in leaves(x))
        else x
    )


def scalar_close(a, b):
    return abs(a - b) < TOLERANCE or abs(a - b) / abs(a + b) < TOLERANCE


def check_equivalent(x, y):
    x, y = leaves(x), leaves(y)
    assert [np.shape(v) for v in x] == [np.shape(v) for v in y], "different shapes"
    weights = [draw(v) for v in x]
    a, b = (sum(np.sum(w * v) for w, v in zip(weights, values, strict=True)) for values in (x, y))
    assert scalar_close(a, b), f"values differ: {x} and {y}"


def numerical(f, x, v, g):
    """<g, J v> by a central difference."""
    ends = []
    for sign in (0.5, -0.5):
        y = f(
            rebuild(
                x,
                [
                    np.asarray(a, float)[()] + sign * EPS * b
                    for a, b in zip(leaves(x), leaves(v), strict=True)
                ],
            )
        )
        ends.append(sum(np.sum(a * b) for a, b in zip(leaves(y), leaves(g), strict=True)))
    return (ends[0] - ends[1]) / EPS


@unary_to_nary
def check_grads(f, x, modes=("fwd", "rev"), order=2):
    if any(np.iscomplexobj(v) for v in leaves(x)):
        return
    x = numbers_as_array(x)
    pullback, y = make_vjp(f, x)
    plain_y = f(x)
    v, g = rebuild(x, [draw(a) for a in leaves(x)]), rebuild(y, [draw(a) for a in leaves(y)])
    assert [np.shape(a) for a in leaves(y)] == [np.shape(a) for a in leaves(plain_y)]
    name, numeric, found = getattr(f, "__name__", "function"), numerical(f, x, v, g), pullback(g)
    assert [np.shape(a) for a in leaves(found)] == [np.shape(a) for a in leaves(x)], (
        "a gradient has its input's shape"
    )
    exact = sum(np.sum(a * b) for a, b in zip(leaves(found), leaves(v), strict=True))
    assert scalar_close(numeric, exact), (
        f"Derivative (VJP) check of {name} failed: {exact} should be {numeric}"
    )
    if "fwd" in modes and not isinstance(backend, MyGrad):
        pushed = sum(
            np.sum(a * b) for a, b in zip(leaves(pushforward(f, x, v)), leaves(g), strict=True)
        )
        assert scalar_close(numeric, pushed), (
            f"Derivative (JVP) check of {name} failed: {pushed} should be {numeric}"
        )
    if min(order, MAX_ORDER) > 1:

        def slope(x, g):
            return make_vjp(f, x)[0](g)

        slope.__name__ = f"vjp_{name}"
        check_grads(slope, (0, 1), modes, order=order - 1)(x, g)


def combo_check(fun, *args, **options):
    """Every combination of the arguments and keywords given."""

    def check(*choices, **keywords):
        for chosen in itertools.product(*choices):
            if any(np.iscomplexobj(v) for v in leaves(list(chosen)) if not isinstance(v, str)):
                continue
            for pairs in itertools.product(*([(k, x) for x in xs] for k, xs in keywords.items())):
                check_grads(fun, *args, **options)(*chosen, **dict(pairs))

    return check


def quick_grad_check(fun, x, more=()):
    check_grads(fun, order=1)(x, *more)


# ---- the modules


def install():
    wrapped = {name: value for name, value in globals().items() if inspect.isfunction(value)}
    contents = {
        "autograd": dict(
            wrapped,
            tuple=tuple,
            list=list,
            dict=dict,
            isinstance=isinstance,
            checkpoint=lambda f: f,
            holomorphic_grad=None,
        ),  # imported beside tests that are in scope,
        "autograd.core": dict(wrapped, primitive_vjps={}),
        "autograd.extend": wrapped,
        "autograd.test_util": wrapped,
        "autograd.wrap_util": wrapped,
        "autograd.util": wrapped,
        "autograd.builtins": dict(isinstance=isinstance),
        "autograd.tracer": dict(wrapped, isbox=lambda x: isinstance(x, backend.Tensor)),
    }
    for name, attributes in contents.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        sys.modules[name] = module
    sys.modules["autograd"].numpy = sys.modules["autograd.numpy"] = np
    sys.modules["autograd.numpy.random"] = np.random


install()


def pytest_ignore_collect(collection_path, config):
    return collection_path.stem in FILES or None


def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if not out_of_scope(item)]
    config.hook.pytest_deselected(items=[item for item in items if out_of_scope(item)])
    items[:] = kept
