"""Write the file of a program: the imports, the function with its docstring and checks, `erf`."""

import inspect
import textwrap

import numpy as np

from ..ops import error_function
from ..tree import tree_map
from .ir import Expression, expressions_in, rewrite
from .layout import INDENT, WIDTH, Layout, fitted
from .simplify import Simplifier
from .text import Sizes
from .trace import kind_of


def written(traced, title, what):
    """Return the text of the file, and the constants that its function takes by name."""
    recorded = [traced.outputs, traced.gradients, traced.checks]
    outputs, gradients, checks = rewrite(recorded, Simplifier())
    checks = [e for e in checks if e.operands]
    sizes = Sizes(traced.expressions, traced.inputs)
    results = named_results(outputs, gradients, {*traced.inputs, *sizes.letters})
    layout = Layout(traced, results, checks, sizes)
    positional = [n for n in traced.inputs if n not in traced.tensors]
    body = [*shape_checks(traced, positional, sizes), *layout.body(), *end(traced, results, layout)]
    used = sizes.used(body)
    constants = {layout.names[e]: e.value for e in layout.constants}
    named = [*traced.tensors, *constants]
    words = [*positional, *["*"] * bool(positional and named), *named]
    lines = ["import numpy as np", *(ERF if any("erf(" in line for line in body) else []), "", ""]
    lines += fitted(f"def {title}({', '.join(words)}):", len(f"def {title}("))
    lines += docstring(traced, positional, what)
    if used:
        lines.append(f"    {', '.join(used)} = {', '.join(map(str, used.values()))}")
    return "\n".join([*lines, *body]) + "\n", constants


def named_results(outputs, gradients, taken):
    """Return a dict from names in the program to results."""
    name = "output" if getattr(outputs, "ndim", 1) else "loss"
    results: dict = {}
    for wish, e in [(name, outputs), *((f"d_{n}", g) for n, g in gradients.items())]:
        while wish in taken | results.keys():
            wish += "_"
        results[wish] = e
    return results


ERF = ["", "", *inspect.getsource(error_function.erf).splitlines()]


def docstring(traced, positional, what):
    """Return the docstring of the function: what it computes, and for which arrays."""
    arrays = [f"{n} {kind_of(traced.inputs[n].value)}" for n in positional]
    what += " and its gradients" * bool(traced.gradients)
    text = f'"""{what}{", for " * bool(arrays)}{", ".join(arrays)}."""'
    return textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)


def shape_checks(traced, names, sizes):
    """Write the code that checks the shapes of the arguments."""
    error = '        raise ValueError("written for other shapes")'
    tests = [f"    if {n}.shape != {sizes.shape(traced.inputs[n].shape)}:" for n in names]
    return [line for test in tests for line in (*fitted(test), error)]


FRESH = {
    "method": "sum mean max min prod any all astype copy cumsum argmax dot",
    "call": "where stack concatenate erf",
}
"""Methods and functions, besides ufuncs, that never return a view."""


def fresh(e):
    """Return whether this array is certain to have its own memory."""
    if e.kind == "item":
        return any(x.ndim for x in expressions_in(e.args[1]))  # indexing with an array copies
    is_ufunc = e.kind == "call" and getattr(getattr(np, e.name, None), "nout", 0) == 1
    return e.kind == "update" or is_ufunc or e.name in FRESH.get(e.kind, "").split()


def end(traced, results, layout):
    """Write the return statement, with copies so that the caller owns all returned arrays."""
    text = layout.text
    seen: set[Expression] = set()

    def owned(e):
        if not isinstance(e, Expression) or e.kind == "constant" and not layout.has_name(e):
            return e
        shared = e in seen or not fresh(e)
        seen.add(e)
        return Expression(-1, "method", "copy", (e,), {}, e.value) if shared and e.ndim else e

    first, *rest = tree_map(owned, list(results.values()))
    if traced.gradients:
        known = {n: name for name, n in reversed(traced.parameters.items())}
        keys = (known.get(n, n) for n in traced.gradients)
        start, slopes = f"    return {text.of(first)}, ", dict(zip(keys, rest, strict=True))
        return fitted(start + text.of(slopes), len(start) + 1)
    return fitted(f"    return {text.of(first)}", 12)
