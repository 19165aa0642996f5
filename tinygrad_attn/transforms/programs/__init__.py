"""`ta.source`: the forward and the backward pass of a function, written out as plain NumPy.

Nothing is derived here a second time. The function is run once with arrays that write down what is
done with them (`symbol`), in plain mode, and so is the sweep after it, which calls the package's
own rules (`tracing`). What comes out is a list of NumPy calls (`expressions`). It is made plainer
(`simplify`) and cut into lines that have names (`layout`, `text`, `writing`): a `program`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ...engine import Variable, context, enable_grad, no_grad, plain, sweep
from ...messages.errors import describe, is_module
from ...messages.signatures import own_names
from ...tensor import Tensor
from .expressions import BACKWARD, Expression, reached
from .program import Program
from .surroundings import Surroundings
from .tracing import names_of, trace
from .writing import written

__all__ = ["Program", "source"]


@own_names
def source(f: Callable[..., Any], *args: Any, params: Any = None, backward: bool = True) -> Program:
    """The program that computes f(*args) and its gradients, as the text of one NumPy file.

    f is a function or a module that takes these arguments and returns one Tensor, usually the loss;
    arrays of the same shapes and dtypes may take their place later. Gradients are by each floating
    argument, unless it is a Tensor that requires none, and by each parameter that requires one.
    `params` is a module, or a mapping from names to Tensors; of an f that is a module, or a method
    of one, it is this module. What is no array (numbers, None, True) is written into the program.

    With `backward=False` the program has the forward pass only, and f may also return several
    tensors in a tuple, list or dict. Where the result is no single number, the program takes the
    gradient by it as one more argument, d_output.

    Raises TypeError where f reads a number from an array in Python (`if loss > 1`, float(x)),
    draws random numbers, leaves NumPy, uses a Tensor that requires a gradient and is not in params,
    or returns another value when it is called again, since it has changed something (a counter, a
    KeyValueCache). What f has kept for itself meanwhile, in attributes or lists, is put back. Where
    the package itself chooses between formulas by the numbers, the program raises ValueError if
    they call for another choice than they did here.
    """
    if not callable(f):
        raise TypeError(f"ta.source takes a function or a module, got {describe(f)}.")
    module = module_of(f, params)
    params, buffers = parameters_of(module, params)
    around = surroundings(f, args, params, module)
    try:
        with unwatched():
            found = trace(f, args, params, buffers, backward, module)
            changed = around.changed()
            around.put_back()
            title = "forward_backward" if backward else "forward"
            text, constants = written(found, title, what_is_computed(f))
            held = {**found.parameters, **constants}
            program = Program(text, title, found.arguments, held)
            compare(program, found)
            compare_with_a_call(f, args, found, changed)
    finally:
        around.put_back()
    return program


def surroundings(f: Any, args: tuple, params: Mapping[str, Any], module: Any) -> Surroundings:
    """What the function may change beside the arrays in whose place symbols stand."""
    given = dict(zip(names_of(f, len(args)), args, strict=True))
    arrays = [x for x in args if isinstance(x, (np.ndarray, np.generic))]
    arrays += [x._data for x in (*args, *params.values()) if isinstance(x, Variable)]
    return Surroundings({what_is_computed(f): f, "params": module, **given}, arrays)


@contextmanager
def unwatched() -> Iterator[None]:
    """Symbols are nothing for those who look on, such as `ta.record_attention`."""
    here = context
    before, here.watchers = here.watchers, ()
    try:
        yield
    finally:
        here.watchers = before


def module_of(f: Any, params: Any) -> Any:
    """The module whose parameters are meant, or None."""
    owner = f if is_module(f) else getattr(f, "__self__", None)
    return params if is_module(params) else owner if params is None and is_module(owner) else None


def parameters_of(module: Any, params: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Parameters and buffers by their dotted names."""
    if module is not None:
        return dict(module.named_parameters()), dict(module.named_buffers())
    if params is None:
        return {}, {}
    if not isinstance(params, Mapping):
        try:
            params = dict(params)  # model.named_parameters()
        except (TypeError, ValueError):
            params = None
    if params is None or not all(isinstance(p, Variable) for p in params.values()):
        raise TypeError(
            "ta.source: params= is a module, or a mapping from names to Tensors, such as "
            "dict(model.named_parameters())."
        )
    return params, {}


def what_is_computed(f: Any) -> str:
    """The name of the function, or of the module's class."""
    owner = getattr(f, "__self__", None)
    if is_module(f) or is_module(owner):
        return type(f if is_module(f) else owner).__name__
    name = getattr(f, "__name__", type(f).__name__)
    return "a function" if name == "<lambda>" else name


def compare(program: Program, found: Any) -> None:
    """Raise unless the program gives, for these arguments, what the function gave."""
    arrays = [e.value for n, e in found.inputs.items() if n not in found.parameters]
    with np.errstate(all="ignore"):
        given = program.function(*arrays, **program.arrays())
    value, gradients = given if found.gradients else (given, {})
    pairs = [(value, found.outputs, 0.0)]
    size = largest_on_the_way(found)
    pairs += [(gradients[found.originals[n]], g, size) for n, g in found.gradients.items()]
    for mine, expected, size in pairs:
        if not same(mine, expected, size=size):
            raise RuntimeError(
                f"ta.source: the program that was written for {program.name} gives other numbers "
                "than the function. This is a mistake in the package; please report it with the "
                "function."
            )


def compare_with_a_call(f: Any, args: tuple, found: Any, changed: list[str]) -> None:
    """Raise unless the function, called with arrays, gives what it gave to the tracer; also the
    second time, if it changes something.
    """
    if gives_the_same(f, args, found) and not (changed and differs_again(f, args, found)):
        return
    if changed:
        raise TypeError(
            f"ta.source: the function changes {listed_names(changed)}, and returns another value "
            "when it is called again, but a program keeps nothing between calls. Pass what changes "
            "as an argument, and return what it becomes. (For a step with a KeyValueCache that "
            "grows there is ta.compile.)"
        )
    raise TypeError(
        "ta.source: the function returns another value when it is called again, so a program "
        "would be right only once. Does it draw random numbers, or keep something between "
        "calls (a cache, a counter)? Pass what changes as an argument."
    )


def differs_again(f: Any, args: tuple, found: Any) -> bool:
    """Does it return something else the next time?"""
    with plain(), enable_grad(), np.errstate(all="ignore"):
        return not same(arrays_in(f(*as_given(args))), found.outputs)


def listed_names(names: list[str]) -> str:
    """The first names, without what is private in the things that they are of."""
    public = dict.fromkeys(name.partition("._")[0] for name in names if name)
    return ", ".join([*public][:3])


def gives_the_same(f: Any, args: tuple, found: Any) -> bool:
    """Does the function give once more what it gave to the tracer?"""
    given = as_given(args)
    with plain(), enable_grad(), np.errstate(all="ignore"):
        again, gradients = f(*given), dict[str, Any]()
        with suppress(ValueError):  # of an array that was changed since, which a trace has copied
            gradients = gradients_of(again, given, found) if found.gradients else {}
    size = largest_on_the_way(found)
    alike = [same(g, found.gradients[n], size=size) for n, g in gradients.items()]
    return same(arrays_in(again), found.outputs) and all(alike)


def largest_on_the_way(found: Any) -> float:
    """The largest number of the backward pass: where gradients cancel, its rounding is left."""
    steps = reached(found.gradients.values())
    return max((largest_in(e.value) for e in steps if e.phase == BACKWARD), default=0.0)


def gradients_of(y: Any, args: list[Any], found: Any) -> dict[str, Any]:
    """The gradients by the same arguments and parameters, as usual."""
    names = [n for n in found.inputs if n not in found.parameters and n != found.seed]
    arrays = [x for x in args if isinstance(x, (Variable, np.ndarray, np.generic))]
    leaves = {**found.parameters, **dict(zip(names, arrays, strict=True))}
    wanted = {n: leaves[n] for n in found.gradients}
    seed = found.inputs[found.seed].value if found.seed else y._data.dtype.type(1)
    with no_grad():
        gradients = sweep([y], [seed], wanted=list(wanted.values()), stop=True)
    return {n: gradients[x] for n, x in wanted.items() if x in gradients}


def as_given(args: tuple) -> list[Any]:
    """The arguments as the function has been given them, floating arrays as Tensors."""
    floating = lambda x: isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f"
    return [Tensor(np.asarray(x), requires_grad=True) if floating(x) else x for x in args]


def arrays_in(y: Any) -> Any:
    """Arrays in place of tensors."""
    if isinstance(y, dict):
        return {k: arrays_in(v) for k, v in y.items()}
    if isinstance(y, (tuple, list)):
        return [arrays_in(v) for v in y]
    return y._data if isinstance(y, Variable) else y


def same(mine: Any, expected: Any, digits: float = 1e-9, size: float = 0.0) -> bool:
    """Equal up to the rounding of the largest, or of numbers of this size, in shape and dtype?

    For an expression, also up to the rounding of what it was made of: where numbers cancel, as in
    a mean, nothing but rounding may be left.
    """
    if isinstance(expected, dict):
        return mine.keys() == expected.keys() and all(
            same(mine[k], expected[k], digits, size) for k in mine
        )
    if isinstance(expected, (tuple, list)):
        return len(mine) == len(expected) and all(
            same(a, b, digits, size) for a, b in zip(mine, expected)
        )
    if isinstance(expected, Expression):
        size = max(size, *(largest_in(x.value) for x in expected.operands), 0.0)
        expected = expected.value
    if not isinstance(expected, (np.ndarray, np.generic)):
        return mine is expected or mine == expected
    if np.shape(mine) != expected.shape or mine.dtype != expected.dtype:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(mine, expected))
    digits = max(digits, {2: 1e-2, 4: 1e-4}.get(expected.dtype.itemsize, 0.0))
    size = max(size, largest_in(expected))
    return bool(np.allclose(mine, expected, digits, digits * size + 1e-300, equal_nan=True))


def largest_in(array: Any) -> float:
    """The absolute value of the largest finite number in an array; 0 if there is none."""
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind != "f":
        return 0.0
    return float(np.abs(np.asarray(array)[np.isfinite(array)]).max(initial=0))
