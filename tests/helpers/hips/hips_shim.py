"""A pytest plugin that lets the published tests of HIPS autograd run against this package.

It installs modules named `autograd...`. Their `numpy` is NumPy itself, and their `grad`, `jacobian`, `check_grads` and
so on are implemented here with the package's own backward pass. Complex arguments are not checked; hips_scope.py lists
the other tests that are out of scope.
"""

import inspect
import itertools
import sys
import types

import numpy as np
from hips_scope import FILES, out_of_scope

import tinygrad_attn as ta
from tinygrad_attn import Tensor

EPS, TOLERANCE = 1e-6, 1e-6
depth = 0  # the number of enclosing differentiated functions


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


def mapped(function, *trees):
    """The tree of the function's values at the leaves of all trees."""
    return rebuild(trees[0], map(function, *map(leaves, trees)))


def dot(a, b):
    return sum(np.sum(x * y) for x, y in zip(leaves(a), leaves(b), strict=True))


def shapes(tree):
    return [np.shape(x) for x in leaves(tree)]


def draw(x):
    return np.asarray(np.random.randn(*np.shape(x)))[()]


def start(x):
    """A leaf; a transform inside another one is recorded."""
    if isinstance(x, Tensor) and x.requires_grad:
        return x.clone()
    x = x if isinstance(x, Tensor) or hasattr(x, "dtype") else np.asarray(x, float)
    return Tensor(x, requires_grad=True)


def pull(inputs, outputs, cotangents, nested):
    """`nested`: the gradients themselves will be differentiated."""
    pairs = zip(outputs, cotangents, strict=True)
    pairs = [(y, g) for y, g in pairs if isinstance(y, Tensor) and y.requires_grad]
    found, settings = [None] * len(inputs), dict(retain_graph=True, allow_unused=True)
    if pairs:
        ys, gs = map(list, zip(*pairs))
        found = ta.grad(ys, inputs, gs, create_graph=nested, **settings)
    return [np.zeros(x.shape, x.dtype) if g is None else g for x, g in zip(inputs, found)]


def plain(x):
    return (x.data if x.ndim else x.data[()]) if isinstance(x, Tensor) else x


# ---- autograd.core


def make_vjp(f, x):
    """`(pullback, f(x))`, with trees on both sides."""
    global depth
    nested = depth > 0
    inputs = [start(v) for v in leaves(x)]

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
            found = pull(inputs, leaves(y), leaves(g), inside)
        except TypeError as error:
            if "has 0 VJPs" in str(error):
                raise NotImplementedError(str(error)) from error
            raise
        return rebuild(x, found if inside else map(plain, found))

    return pullback, y if nested else mapped(plain, y)


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
    return mapped(lambda v: np.ones(np.shape(v)), y)


def zeros(y):
    return mapped(lambda v: np.zeros(np.shape(v)), y)


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
    return pullback((ones(y), zeros(aux))), aux


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
    back, _ = make_vjp(lambda g: make_vjp(f, x)[0](g), zeros(f(x)))
    return back(v)


def make_ggnvp(f, g=lambda x: 0.5 * np.sum(x * x)):
    def at(x):
        y = f(x)
        return lambda v: make_vjp(f, x)[0](make_vjp(grad(g), y)[0](pushforward(f, x, v)))

    return at


def contracted(f):
    """Of f's arguments and a v behind them, the sum over f's value times v, or v times it."""
    return lambda *args, **kwargs: np.tensordot(
        args[-1], f(*args[:-1], **kwargs), np.ndim(args[-1])
    )


def hessian_tensor_product(fun, argnum=0):
    return grad(contracted(grad(fun, argnum)), argnum)


def tensor_jacobian_product(fun, argnum=0):
    return jacobian(contracted(fun), argnum)


def primitive(f):
    """A function without a derivative, until defvjp."""
    return ta.op(f)


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
    assert shapes(x) == shapes(y), "different shapes"
    weights = mapped(draw, x)
    assert scalar_close(dot(weights, x), dot(weights, y)), f"values differ: {x} and {y}"


def numerical(f, x, v, g):
    """<g, J v> by a central difference."""
    at = lambda step: f(mapped(lambda a, b: np.asarray(a, float)[()] + step * b, x, v))
    return (dot(at(EPS / 2), g) - dot(at(-EPS / 2), g)) / EPS


@unary_to_nary
def check_grads(f, x, modes=("fwd", "rev"), order=2):
    if any(np.iscomplexobj(v) for v in leaves(x)):
        return
    x = numbers_as_array(x)
    pullback, y = make_vjp(f, x)
    v, g, name = mapped(draw, x), mapped(draw, y), getattr(f, "__name__", "function")
    numeric, found = numerical(f, x, v, g), pullback(g)
    assert shapes(y) == shapes(f(x)) and shapes(found) == shapes(x), (
        "a gradient has its input's shape"
    )
    derivatives = {"VJP": dot(found, v)}
    if "fwd" in modes:
        derivatives["JVP"] = dot(pushforward(f, x, v), g)
    for kind, exact in derivatives.items():
        assert scalar_close(numeric, exact), (
            f"Derivative ({kind}) check of {name} failed: {exact} should be {numeric}"
        )
    if order > 1:

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
        "autograd.tracer": dict(wrapped, isbox=lambda x: isinstance(x, Tensor)),
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
