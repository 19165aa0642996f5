"""`ta.source`: write the forward and backward pass of a function as plain NumPy.

`trace` runs the function and its backward pass on symbols, with the ordinary VJPs. `simplify`
shortens the listing, and `layout`, `text` and `file` write it as Python.
"""

import pickle
from collections.abc import Callable, Mapping
from itertools import repeat

import numpy as np

from ..engine import Variable, array_of, context
from ..engine.run import new_lock
from ..nn.module import Module, Parameter
from ..tensor import Tensor
from ..tree import tree_leaves
from .file import written
from .ir import reached
from .program import Program
from .restore import restored, snapshot
from .trace import gradients_of, stand_in, standing_in, trace

ONE_AT_A_TIME = new_lock()
"""A lock that is held while a function is traced."""


def source(f: Callable, *args, params=None, backward: bool = True) -> Program:
    """Write a NumPy file that computes f(*args) and its gradients.

    f is a function or a module that takes these arguments and returns one Tensor, usually the loss.
    The program takes arrays of the same shapes and dtypes. It returns the value of f, and gradients
    with respect to floating-point arrays and to Tensors and parameters that require a gradient.
    `params` is a module or a mapping from names to Tensors, by default f itself or the module that
    f belongs to. Other arguments (numbers, None, lists of them) and all other values that f reads
    become constants.

    With `backward=False`, the program has only the forward pass, and f may also return several
    tensors in a tuple, list or dict. If the output is not a single number, the program takes its
    gradient as an extra argument, d_output.

    Raises TypeError if f reads a number from an array in Python (`if loss > 1`), draws random
    numbers, uses a library other than NumPy, or returns a different value when called again. Also
    raises TypeError if f changes a buffer or an array of a module, or uses a Tensor that requires a
    gradient but is not in `params`. An argument may not be a list or dict with arrays in it.
    Raises ValueError if a parameter has the name of an argument. In some VJPs, the formula depends
    on the values of the arrays. The program raises ValueError for values that need a different
    formula.

    f is called three times, with random numbers of its own. What it changes is then restored:
    lists, dicts, attributes and arrays of modules. Meanwhile, other threads may draw random numbers
    and use, copy and train the parameters. What they change in lists, dicts and attributes that f
    refers to, such as the state of an optimiser, is restored too.
    """
    owner = getattr(f, "__self__", f)  # of a method
    owner = owner if isinstance(owner, Module) else None
    params = owner if params is None else params
    named = named_tensors(params)
    arguments = tuple(leaf(x) for x in args)
    what = getattr(f, "__name__", type(f).__name__) if owner is None else type(owner).__name__
    with ONE_AT_A_TIME:
        before = snapshot(f, args, params, vars(context))
        with restored(*before):
            traced = trace(
                f, arguments, named, backward, params if isinstance(params, Module) else None
            )
        title = "forward_backward" if backward else "forward"
        text, constants = written(traced, title, "a function" if what == "<lambda>" else what)
        program = Program(text, title, traced, params, constants)
        with restored(*before):
            compare(program, f, arguments, traced)
    return program


def leaf(x):
    """Return a new leaf for a Tensor or an array of real numbers, else x itself."""
    if isinstance(x, Tensor):
        return stand_in(x, x._data)
    return Tensor(x, requires_grad=True) if is_floating(x) else x


def named_tensors(params):
    """Return the Tensors in `params` by name; a shared parameter has several names."""
    if isinstance(params, Module):
        return dict(params._named_parts(Parameter, once=False))
    named = {} if params is None else params
    if not isinstance(named, Mapping) or not all(isinstance(p, Variable) for p in named.values()):
        raise TypeError(
            "ta.source: params= must be a module or a mapping from names to Tensors, such as "
            "dict(model.named_parameters())."
        )
    return named


# ---- the check of a new program


def compare(program, f, arguments, traced):
    """Raise TypeError unless the program agrees with a second call, when state may differ."""
    now = {p: p._data.copy() for p in traced.tensors.values()}
    seeds = [traced.seed.expression.value] if traced.gradients else []
    with standing_in(now), traced.run(), np.errstate(all="ignore"):
        f(*arguments)
        drawn = random_state(traced)
        y = f(*arguments)
        if random_state(traced) != drawn:
            np.random.set_state(traced.before)
            raise TypeError(
                "ta.source: the function draws random numbers (for example, for dropout in "
                "training mode), but a program would use the same numbers in every call. Call "
                "model.eval(), or draw the numbers outside the function and pass them to it."
            )
        found = program(*arguments, *seeds[: len(traced.arguments) - len(arguments)])
        expected = y, *(gradients_of(y, seed, traced.leaves) for seed in seeds)
    steps = reached([traced.outputs, traced.gradients])
    size = max((largest_in(e.value) for e in steps), default=0.0)
    pairs = tree_leaves(found), tree_leaves(expected)
    if len(pairs[0]) != len(pairs[1]) or not all(map(is_close, *pairs, repeat(size))):
        raise TypeError(
            "ta.source: the function returns a different value when it is called again. It may "
            "draw random numbers, keep state between calls (a cache, a counter), or change an "
            "array through a view. Pass random numbers and state as arguments; return new arrays."
        )


def random_state(traced):
    """Return the state of all random numbers that a function can draw by name, to be compared."""
    return pickle.dumps((traced.generator, np.random.get_state()))


def is_floating(x):
    """Return whether x is an array, or a number of NumPy, in floating point."""
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f"


def is_close(found, expected, size):
    """Return whether two arrays have the same shape and dtype and agree up to rounding."""
    expected = array_of(expected)
    if not isinstance(expected, (np.ndarray, np.generic)):
        return bool(found == expected)
    if np.shape(found) != expected.shape or np.result_type(found) != np.result_type(expected):
        return False
    digits = np.finfo(expected.dtype).eps ** 0.6 if is_floating(expected) else 0
    return np.allclose(found, expected, digits, digits * size, equal_nan=True)


def largest_in(array):
    """Return the largest finite absolute value in an array, or 0."""
    finite = np.isfinite(array) if is_floating(array) else False
    return float(np.max(np.abs(array), initial=0, where=finite))
