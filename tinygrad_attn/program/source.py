"""`ta.source`: the forward and the backward pass of a function, written as plain NumPy.

Nothing is derived a second time here: `trace` runs the function and its backward pass on symbols,
`simplify` makes the listing plainer, and `layout` and `text` write it as lines with names.
"""

from __future__ import annotations

import html
import os
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Variable, enable_grad, no_grad, plain, sweep
from ..errors import describe
from ..tensor import Tensor
from .ir import BACKWARD, Expression, reached, replaced
from .layout import WIDTH, Layout
from .simplify import simplified
from .text import NO_DTYPE, Sizes, Text
from .trace import NAMED_BY_OP, Trace, trace


def source(f: Callable[..., Any], *args: Any, params: Any = None, backward: bool = True) -> Program:
    """Write the program that computes f(*args) and its gradients, as the text of one NumPy file.

    f is a function or a module that takes these arguments and returns one Tensor, usually the loss;
    arrays of the same shapes and dtypes may take their place later. Gradients are by each floating
    argument, unless it is a Tensor that requires none, and by each parameter that requires one.
    `params` is a module, or a mapping from names to Tensors; where f is a module, or a method of
    one, it is this module. Arguments that are no arrays (numbers, None, True) are constants of the
    program, and so is whatever else f reads beside its arguments, parameters and buffers.

    With `backward=False` the program has the forward pass only, and f may also return several
    tensors in a tuple, list or dict. Where the result is no single number, the program takes the
    gradient by it as one more argument, d_output.

    Raises TypeError where f reads a number from an array in Python (`if loss > 1`, float(x)),
    draws random numbers, leaves NumPy, uses a Tensor that requires a gradient and is not in params,
    or returns another value when it is called again. Where the package itself chooses between
    formulas by the numbers, the program raises ValueError if they call for another choice.
    """
    if not callable(f):
        raise TypeError(f"ta.source takes a function or a module, got {describe(f)}.")
    module = module_of(f, params)
    named, buffers = parameters_of(module, params)
    found = trace(f, args, named, buffers, backward, module)
    title = "forward_backward" if backward else "forward"
    text, constants = written(found, title, what_is_computed(f))
    program = Program(text, title, found.arguments, {**found.parameters, **constants})
    compare(program, f, args, found)
    return program


class Program:
    """A function as one plain NumPy file, forwards and backwards, for arrays of these shapes.

    `text` is the file, which imports NumPy and nothing else. `save(path)` writes it. Called with
    arrays or Tensors in place of those it was written for, `program(*args)` runs it, with the
    parameters as they are now, and returns what the function in the file returns: the value and
    {name: gradient}, or with `backward=False` the value alone. `arrays()` are the parameters and
    the other arrays that the function in the file takes by name.
    """

    def __init__(
        self, text: str, name: str, arguments: Mapping[str, Any], held: Mapping[str, Any]
    ) -> None:
        self.text, self.name = text, name
        self._arguments = dict(arguments)  # name: (shape, dtype), None for what is no array
        self._held = dict(held)  # identifier: a parameter, or a constant array
        self._expected = {name: (x.shape, x.dtype) for name, x in self.arrays().items()}
        space: dict[str, Any] = {}
        exec(compile(text, f"<{name}, written by ta.source>", "exec"), space)
        self.function: Callable[..., Any] = space[name]

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters and constants by the names that the function in the file has for them."""
        return {name: x._data if isinstance(x, Variable) else x for name, x in self._held.items()}

    def __call__(self, *args: Any) -> Any:
        if len(args) != len(self._arguments):
            raise TypeError(
                f"{self.name} takes {len(self._arguments)} arguments, "
                f"{', '.join(self._arguments)}, got {len(args)}."
            )
        given = {
            name: np.asarray(x._data if isinstance(x, Variable) else x)
            for name, x in zip(self._arguments, args, strict=True)
            if self._arguments[name] is not None
        }
        held = self.arrays()
        for name, array in (given | held).items():
            shape, dtype = {**self._arguments, **self._expected}[name]
            if (array.shape, array.dtype) != (shape, dtype):
                raise ValueError(
                    f"this program was written for {name} {shape} {dtype}, got {describe(array)}. "
                    "Write another one with ta.source for other shapes."
                )
        return self.function(*given.values(), **held)

    def save(self, path: str | Path) -> Path:
        """Write the text to a file, atomically; returns its path."""
        path = Path(path)
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        new.write_text(self.text, "utf-8")
        new.replace(path)
        return path

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        lines = self.text.count("\n")
        return f"<{self.name}({', '.join(self._arguments)}), {lines} lines of NumPy>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


def module_of(f: Any, params: Any) -> Any:
    """The module whose parameters are meant, or None."""
    candidates = (params,) if params is not None else (f, getattr(f, "__self__", None))
    return next((x for x in candidates if hasattr(x, "named_buffers")), None)


def parameters_of(module: Any, params: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Parameters and buffers by their dotted names."""
    if module is not None:
        return dict(module.named_parameters()), dict(module.named_buffers())
    try:
        params = dict(params or {})  # also of model.named_parameters()
    except (TypeError, ValueError):
        params = {"": None}
    if not all(isinstance(p, Variable) for p in params.values()):
        raise TypeError(
            "ta.source: params= is a module, or a mapping from names to Tensors, such as "
            "dict(model.named_parameters())."
        )
    return params, {}


def what_is_computed(f: Any) -> str:
    """The name of the function, or of the module's class."""
    for module in (f, getattr(f, "__self__", None)):
        if hasattr(module, "named_buffers"):
            return type(module).__name__
    name = str(getattr(f, "__name__", type(f).__name__))
    return "a function" if name == "<lambda>" else name


# ---- the program and the function give the same


def compare(program: Program, f: Any, args: tuple, found: Trace) -> None:
    """Raise TypeError unless the program gives what the function gives when it is called again."""
    given = [
        Tensor(np.asarray(x), requires_grad=True)
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f"
        else x
        for x in args
    ]
    with plain(), enable_grad(), np.errstate(all="ignore"):
        y = f(*given)
        expected = gradients_of(y, given, found)
        arrays = [e.value for n, e in found.inputs.items() if n not in found.parameters]
        mine = program.function(*arrays, **program.arrays())
    value, slopes = mine if found.gradients else (mine, {})
    steps = [e.value for e in reached(found.gradients) if e.phase == BACKWARD]
    size = max(map(largest_in, steps), default=0.0)
    near = max((largest_in(x.value) for e in reached(found.outputs) for x in e.operands), default=0)
    plain_value = replaced(y, lambda x: x._data if isinstance(x, Variable) else x)
    alike = all(same(slopes[found.originals[n]], g, size) for n, g in expected.items())
    if not (alike and same(value, plain_value, near)):
        raise TypeError(
            "ta.source: the function returns another value when it is called again than it gave "
            "here. Does it draw random numbers, keep something between calls (a cache, a counter), "
            "or change an array through a view of it? Pass what changes as an argument, and return "
            "what it becomes."
        )


def gradients_of(y: Any, args: list[Any], found: Trace) -> dict[str, Any]:
    """The gradients of the function by identifier, computed as usual."""
    if not found.gradients:
        return {}
    names = [n for n in found.inputs if n not in found.parameters and n != found.seed]
    arrays = [x for x in args if isinstance(x, (Variable, np.ndarray, np.generic))]
    leaves = {**found.parameters, **dict(zip(names, arrays, strict=True))}
    wanted = {n: leaves[n] for n in found.gradients}
    seed = found.inputs[found.seed].value if found.seed else y._data.dtype.type(1)
    with no_grad():
        gradients = sweep([y], [seed], wanted=list(wanted.values()), stop=True)
    return {n: gradients[x] for n, x in wanted.items() if x in gradients}


def same(mine: Any, expected: Any, size: float = 0.0) -> bool:
    """Whether values are equal in shape, dtype and, up to the rounding of numbers of this size, in
    numbers.
    """
    if isinstance(expected, dict):
        pairs = [(mine.get(k), v) for k, v in expected.items()]
        return mine.keys() == expected.keys() and all(same(a, b, size) for a, b in pairs)
    if isinstance(expected, (tuple, list)):
        pairs = list(zip(mine, expected))
        return len(mine) == len(expected) and all(same(a, b, size) for a, b in pairs)
    if not isinstance(expected, (np.ndarray, np.generic)):
        return bool(mine is expected or mine == expected)
    if np.shape(mine) != expected.shape or mine.dtype != expected.dtype:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(mine, expected))
    digits = {2: 1e-2, 4: 1e-4}.get(expected.dtype.itemsize, 1e-9)
    size = max(size, largest_in(expected))
    return bool(np.allclose(mine, expected, digits, digits * size + 1e-300, equal_nan=True))


def largest_in(array: Any) -> float:
    """The absolute value of the largest finite number in an array; 0 if there is none."""
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind != "f":
        return 0.0
    return float(np.abs(np.asarray(array)[np.isfinite(array)]).max(initial=0))


# ---- the text of the file


def written(found: Trace, title: str, what: str) -> tuple[str, dict[str, np.ndarray]]:
    """The text of the file, and the constants that its function takes by name."""
    outputs, gradients, checks = simplified([found.outputs, found.gradients, found.checks])
    checks = [e for e in checks if e.args[0].kind not in ("constant", "number")]
    results = named_results(found, outputs, gradients)
    sizes = Sizes({k: n for k, n in found.letters.items() if k not in found.inputs})
    layout = Layout(results, checks, found.inputs, sizes, found.kinds)
    body = layout.body()
    body += end(found, results, layout)
    constants = {layout.names[e.id]: e.value for e in layout.constants.values()}
    positional = [n for n in found.inputs if n not in found.parameters]
    named = [n for n in found.inputs if n in found.parameters] + list(constants)
    lines = ["import numpy as np", *(ERF if any("erf(" in line for line in body) else []), "", ""]
    words = [*positional, *(["*"] if named and positional else []), *named]
    lines += packed(f"def {title}(", words, "):", " " * len(f"def {title}("))
    lines += docstring(found, positional, what)
    if sizes.used and len(sizes.shown) > 1:  # a single letter that only comments use is none
        sizes.used |= sizes.shown
    used = {k: n for k, n in found.letters.items() if k in sizes.used}
    if used:
        lines.append(f"    {', '.join(used)} = {', '.join(map(str, used.values()))}")
    lines += shape_checks(found, positional, {n: k for k, n in used.items()})
    return "\n".join([*lines, *body]) + "\n", constants


def named_results(found: Trace, outputs: Any, gradients: Any) -> dict[str, Any]:
    """The results by the names that they have in the program."""
    taken = {*found.inputs, *found.letters}
    name = "value"
    if isinstance(outputs, Expression):
        name = usual = "output" if np.ndim(outputs.value) else "loss"
        if outputs.hint is not None and outputs.hint[0] > NAMED_BY_OP and outputs.kind != "input":
            name = str(outputs.hint[1])
        name = usual if name in taken else name
    results = {another(name, taken): outputs}
    for n, g in gradients.items():
        results[another(f"d_{n}", taken | results.keys())] = g
    return results


def another(name: str, taken: set[str]) -> str:
    """The name, or a similar one if it is taken."""
    while name in taken:
        name += "_"
    return name


ERF = '''

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


def erf(x):
    """2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x, by Gauss's rule; 1 beyond 6."""
    half = np.clip(x, -6, 6, dtype=float) / 2
    terms = (w * np.exp(-((half + half * s) ** 2)) for s, w in zip(NODES, WEIGHTS))
    return 2 / np.sqrt(np.pi) * half * sum(terms)
'''.splitlines()[1:]
"""The error function, which NumPy lacks: right to 3e-15, and in twice the time of Python's."""


def packed(start: str, words: list[str], close: str, indent: str) -> list[str]:
    """Words with commas between them, in as few lines as they need."""
    lines, line = [], start
    for i, word in enumerate(words):
        piece = word + (close if i == len(words) - 1 else ",")
        if len(line) + len(piece) > WIDTH and line.strip() and line != indent:
            lines.append(line.rstrip())
            line = indent
        line += piece + " "
    return [*lines, (line if words else line + close).rstrip()]


def docstring(found: Trace, positional: list[str], what: str) -> list[str]:
    """What is computed, and for which arrays."""
    arrays = [f"{n} {found.inputs[n].shape} {found.inputs[n].dtype.name}" for n in positional]
    gives = f"{what} and its gradients" if found.gradients else what
    text = f'"""{gives}{", for " if arrays else ""}{", ".join(arrays)}.'
    lines = textwrap.wrap(text, WIDTH - 4, break_long_words=False)
    if len(lines) == 1 and len(lines[0]) + 3 <= WIDTH - 4:
        return [f'    {lines[0]}"""']
    return [*(f"    {line}" for line in lines), '    """']


def shape_checks(found: Trace, positional: list[str], letters: dict[int, str]) -> list[str]:
    """The check of the arguments' shapes, with the letters that the program has anyway."""
    given, wanted = [], []
    for n in positional:
        sizes = [letters.get(size, str(size)) for size in found.inputs[n].shape]
        given.append(f"{n}.shape")
        wanted.append(f"({', '.join(sizes)}{',' * (len(sizes) == 1)})")
    if not positional:
        return []
    one = len(positional) == 1
    line = f"    if {' '.join(given)} != {' '.join(wanted)}:"
    if not one:
        line = f"    if ({', '.join(given)}) != ({', '.join(wanted)}):"
    if len(line) > WIDTH and not one:
        return [line for n in positional for line in shape_checks(found, [n], letters)]
    return [line, '        raise ValueError("written for other shapes")']


def end(found: Trace, results: dict[str, Any], layout: Layout) -> list[str]:
    """`return loss, {"weight": d_weight}`, in which each array is the caller's own."""
    text = Text(layout.name_of, layout.sizes)
    seen: set[int] = set()

    def own(e: Any) -> str:
        opened, words, closed = parts_of(e, own)
        if opened:
            return f"{opened}{', '.join(words)}{closed}"
        if not isinstance(e, Expression) or e.kind == "constant" and e.id not in layout.constants:
            return text.of(e)
        shared = e.id in seen or e.kind in ("input", "constant") or shares_memory(e)
        seen.add(e.id)
        if e.kind == "number":
            return text.of(e, -1, NO_DTYPE)
        return f"{text.array(e)}.copy()" if shared and np.ndim(e.value) else text.of(e)

    first, *rest = results.values()
    if not found.gradients:
        opened, words, closed = parts_of(first, own)
        words = words if opened else [own(first)]
        return packed(f"    return {opened}", words, closed, " " * len("    return ("))
    keys = [found.originals[n] for n in found.gradients]
    start = f"    return {own(first)}, {{"
    pairs = [f"{quoted(k)}: {own(e)}" for k, e in zip(keys, rest, strict=True)]
    return packed(start, pairs, "}", " " * len(start))


def parts_of(e: Any, own: Callable[[Any], str]) -> tuple[str, list[str], str]:
    """The brackets and the parts of a dict, list or tuple; no brackets for anything else."""
    if isinstance(e, dict):
        return "{", [f"{quoted(k)}: {own(v)}" for k, v in e.items()], "}"
    if isinstance(e, list):
        return "[", list(map(own, e)), "]"
    if isinstance(e, tuple):
        return "(", list(map(own, e)), ",)" if len(e) == 1 else ")"
    return "", [], ""


def quoted(key: Any) -> str:
    """A key of a dict, in double quotes if it is a text."""
    text = repr(key)
    simple = isinstance(key, str) and text[1:-1] == key and '"' not in key
    return f'"{key}"' if simple else text


def shares_memory(e: Expression) -> bool:
    """Whether this may be a view of an array that something else is computed from."""
    view = e.kind == "call" and getattr(e.value, "base", None) is not None
    named = e.name in ("T", "swapaxes", "transpose", "reshape", "broadcast_to")
    return view or e.kind in ("part", "item") or named and e.kind in ("attribute", "method", "call")
