"""`ta.source`: write the forward and backward pass of a function as plain NumPy.

`trace` runs the function and its backward pass on symbols, with the ordinary VJPs. `simplify`
shortens the listing, and `layout` and `text` write it as Python.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Variable, array_of, enable_grad, no_grad, plain, sweep
from ..files import write_atomically
from ..ops import error_function
from ..tensor import Tensor
from .ir import Expression, inside, reached, replaced
from .layout import WIDTH, Layout
from .simplify import simplified
from .text import Sizes
from .trace import NAMED_BY_OP, Trace, kind_of, trace


def source(f: Callable[..., Any], *args: Any, params: Any = None, backward: bool = True) -> Program:
    """Write a NumPy file that computes f(*args) and its gradients.

    f is a function or a module that takes these arguments and returns one Tensor, usually the loss.
    The program takes arrays of the same shapes and dtypes. It returns the value of f, and gradients
    with respect to floating-point arrays and to Tensors and parameters that require a gradient.
    `params` is a module or a mapping from names to Tensors, by default f itself or the module that
    f belongs to. Other arguments (numbers, None) and all other values that f reads become
    constants.

    With `backward=False`, the program has only the forward pass, and f may also return several
    tensors in a tuple, list or dict. If the output is not a single number, the program takes its
    gradient as an extra argument, d_output.

    Raises TypeError if f reads a number from an array in Python (`if loss > 1`), draws random
    numbers, uses a library other than NumPy, or returns a different value when called again. Also
    raises TypeError if f uses a Tensor that requires a gradient but is not in `params`. In some
    VJPs, the formula depends on the values of the arrays. The program raises ValueError for values
    that need a different formula.
    """
    is_module = lambda x: hasattr(x, "named_buffers")
    own: Any = next(filter(is_module, (f, getattr(f, "__self__", None))), None)
    params = own if params is None else params
    module = params if is_module(params) else None
    named = {} if params is None else params if module is None else dict(module.named_parameters())
    if not isinstance(named, Mapping) or not all(isinstance(p, Variable) for p in named.values()):
        raise TypeError(
            "ta.source: params= must be a module or a mapping from names to Tensors, such as "
            "dict(model.named_parameters())."
        )
    given = tuple(Tensor(x, requires_grad=True) if is_floating(x) else x for x in args)
    found = trace(f, given, named, backward, module)
    title = "forward_backward" if backward else "forward"
    what = getattr(f, "__name__", type(f).__name__) if own is None else type(own).__name__
    text, constants = written(found, title, "a function" if what == "<lambda>" else what)
    program = Program(text, title, found.arguments, {**found.parameters, **constants})
    compare(program, f, given, found)
    return program


class Program:
    """A function, usually with its backward pass, as a NumPy file for arrays of fixed shapes.

    `text` is the content of the file, which imports only NumPy. `save(path)` writes the file.
    `program(*args)` runs it on arrays or Tensors with the current parameters. It returns the value
    and a dict from names to gradients, or only the value if `backward` was False.
    """

    def __init__(
        self, text: str, name: str, arguments: Mapping[str, Any], held: Mapping[str, Any]
    ) -> None:
        self.text, self.name = text, name
        self._arguments = arguments  # name: shape and dtype, or None if it is not an array
        self._held = held  # identifier: a parameter, or a constant array
        space: dict[str, Any] = {}
        exec(compile(text, f"<{name}, written by ta.source>", "exec"), space)
        self.function: Callable[..., Any] = space[name]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters and constants that the function in the file takes by name."""
        return {name: array_of(x) for name, x in self._held.items()}

    def __call__(self, *args: Any) -> Any:
        known = self._arguments
        arrays = {n: np.asarray(array_of(x)) for n, x in zip(known, args) if known[n]}
        given = {n: kind_of(x) for n, x in arrays.items()}
        if len(args) != len(known) or any(given[n] != known[n] for n in given):
            wanted, got = ([f"{n} {kinds[n]}" for n in kinds] for kinds in (known, given))
            raise ValueError(
                f"{self.name} takes {len(known)} arguments, {', '.join(wanted)}, got {len(args)}, "
                f"{', '.join(got)}. For other shapes, write another program with ta.source."
            )
        return self.function(*arrays.values(), **self.arrays())

    def save(self, path: str | Path) -> Path:
        """Write the text to a file atomically, and return its path."""
        write_atomically(self.text, path)
        return Path(path)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        lines = self.text.count("\n")
        return f"<{self.name}({', '.join(self._arguments)}), {lines} lines of NumPy>"


def compare(program: Program, f: Any, given: tuple, found: Trace) -> None:
    """Raise TypeError unless a second call of the function agrees with the program."""
    seeds = [found.seed.value] if found.gradients else []
    with plain(), enable_grad(), np.errstate(all="ignore"):
        y = f(*given)
        outputs = program(*given, *seeds[: len(found.arguments) - len(given)])
    arrays = [x for x in given if isinstance(x, (Variable, np.ndarray, np.generic))]
    tensors = dict(zip(found.inputs, [*arrays, *found.parameters.values()]))
    slopes = gradients_of([y] * len(seeds), [tensors[n] for n in found.gradients], seeds)
    expected = [*map(array_of, inside(y, object)), *slopes]
    steps = reached([found.outputs, found.gradients])
    size = max((largest_in(e.value) for e in steps), default=0.0)
    if not agree(inside(outputs, object), expected, size):
        raise TypeError(
            "ta.source: the function returns a different value when it is called again. It may "
            "draw random numbers, keep state between calls (a cache, a counter), or change an "
            "array through a view. Pass random numbers and state as arguments; return new arrays."
        )


def is_floating(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f"


def gradients_of(outputs: list[Any], inputs: list[Any], seeds: list[Any]) -> list[Any]:
    """Return the gradients of a weighted sum of the outputs, with zeros for unused inputs."""
    with no_grad(), np.errstate(all="ignore"):
        by = sweep(outputs, seeds, wanted=inputs, retain_graph=True, stop=True)
    return [by.get(x, np.zeros_like(x._data)[()]) for x in inputs]


def agree(mine: list[Any], expected: list[Any], size: float) -> bool:
    """Return whether the values agree up to rounding, for numbers of magnitude `size`."""
    return len(mine) == len(expected) and all(map(same, mine, expected, repeat(size)))


def same(mine: Any, expected: Any, size: float) -> bool:
    """Return whether two arrays have the same shape and dtype and agree up to rounding."""
    if not isinstance(expected, (np.ndarray, np.generic)):
        return bool(mine == expected)
    if np.shape(mine) != expected.shape or mine.dtype != expected.dtype:
        return False
    digits = {2: 1e-2, 4: 1e-4}.get(expected.dtype.itemsize, 1e-9) * is_floating(expected)
    size = max(size, largest_in(expected))
    return np.allclose(mine, expected, digits, digits * size + 1e-300, equal_nan=True)


def largest_in(array: Any) -> float:
    """Return the largest finite absolute value in an array, or 0."""
    finite = np.asarray(array)[np.isfinite(array)] if is_floating(array) else 0
    return float(np.max(np.abs(finite), initial=0))


def written(found: Trace, title: str, what: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return the text of the file, and the constants that its function takes by name."""
    outputs, gradients, checks = simplified([found.outputs, found.gradients, found.checks])
    checks = [e for e in checks if e.operands]
    results = named_results(found, outputs, gradients)
    letters = {k: found.letters.get(k, ()) for k in "BTSEHDF" if k not in found.inputs}
    sizes = Sizes({k: max(n) for k, n in letters.items() if len(n) == 1})
    layout = Layout(found, results, checks, sizes)
    body = layout.body()
    body += end(found, results, layout)
    used = sizes.used(body)
    constants = {layout.names[e.id]: e.value for e in layout.constants.values()}
    positional = [n for n in found.inputs if n not in found.parameters]
    named = [*found.parameters, *constants]
    words = [*positional, *["*"] * bool(positional and named), *named]
    lines = ["import numpy as np", *(ERF if any("erf(" in line for line in body) else []), "", ""]
    lines += packed(f"def {title}(", words, "):")
    lines += docstring(found, positional, what)
    if used:
        lines.append(f"    {', '.join(used)} = {', '.join(map(str, used.values()))}")
    lines += shape_checks(found, positional, Sizes(used))
    return "\n".join([*lines, *body]) + "\n", constants


def named_results(found: Trace, outputs: Any, gradients: Any) -> dict[str, Any]:
    """Return a dict from names in the program to results."""
    name = "value"
    if isinstance(outputs, Expression):
        usual = "output" if outputs.ndim else "loss"
        name = outputs.hint[1] if outputs.hint[0] > NAMED_BY_OP else usual
    results: dict[str, Any] = {}
    for wish, e in [(name, outputs), *((f"d_{n}", g) for n, g in gradients.items())]:
        while wish in {*found.inputs, *found.letters, *results}:
            wish += "_"
        results[wish] = e
    return results


ERF = ["", "", *inspect.getsource(error_function.erf).splitlines()]


def packed(start: str, words: list[str], close: str, indent: int = 0) -> list[str]:
    """Join words with commas in as few lines as possible."""
    whole = [word.replace(" ", "\0") for word in (start, *words)]  # keep each word on one line
    blank = "\0" * (indent or len(start))
    text = whole[0] + ", ".join(whole[1:]) + close
    lines = textwrap.wrap(
        text, WIDTH, subsequent_indent=blank, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def docstring(found: Trace, positional: list[str], what: str) -> list[str]:
    arrays = [f"{n} {kind_of(found.inputs[n].value)}" for n in positional]
    what += " and its gradients" * bool(found.gradients)
    text = f'"""{what}{", for " * bool(arrays)}{", ".join(arrays)}.'
    lines = [*textwrap.wrap(text, WIDTH - 4, break_long_words=False), '"""']
    if len(text) + 3 <= WIDTH - 4:
        lines = [f'{text}"""']
    return [f"    {line}" for line in lines]


def shape_checks(found: Trace, names: list[str], sizes: Sizes) -> list[str]:
    """Write the code that checks the shapes of the arguments."""
    pairs = [(f"{n}.shape", sizes.shape(found.inputs[n].shape)) for n in names]
    tests = [f"    if {given} != {wanted}:" for given, wanted in pairs]
    whole = " != ".join(f"({', '.join(side)})" for side in zip(*pairs))
    if len(pairs) > 1 and len(f"    if {whole}:") <= WIDTH:
        tests = [f"    if {whole}:"]
    error = '        raise ValueError("written for other shapes")'
    return [line for test in tests for line in (test, error)]


FRESH = {
    "method": "sum mean max min prod any all astype copy cumsum argmax dot",
    "call": "where stack concatenate erf",
}
"""Methods and functions, besides ufuncs, that never return a view."""


def fresh(e: Expression) -> bool:
    """Return whether this array is certain to have its own memory."""
    if e.kind == "item":
        return any(x.ndim for x in inside(e.args[1]))  # indexing with an array copies
    is_ufunc = e.kind == "call" and getattr(getattr(np, e.name, None), "nout", 0) == 1
    return e.kind == "update" or is_ufunc or e.name in FRESH.get(e.kind, "").split()


def end(found: Trace, results: dict[str, Any], layout: Layout) -> list[str]:
    """Write the return statement, with copies so that the caller owns all returned arrays."""
    text = layout.text
    seen: set[int] = set()

    def own(e: Any) -> Any:
        if not isinstance(e, Expression) or e.kind == "constant" and not layout.has_name(e):
            return e
        shared = e.id in seen or not fresh(e)
        seen.add(e.id)
        return Expression(-1, "method", "copy", (e,), {}, e.value) if shared and e.ndim else e

    first, *rest = replaced(list(results.values()), own)
    if found.gradients:
        slopes = dict(zip((found.originals[n] for n in found.gradients), rest, strict=True))
        return packed(f"    return {text.of(first)}, {{", text.pairs(slopes), "}")
    return packed("    return ", text.of(first).split(", "), "", 12)
