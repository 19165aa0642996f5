"""From a trace to the text of a file."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from .expressions import VIEWS, Expression
from .layout import WIDTH, Layout
from .simplify import simplified
from .symbol import Guard
from .text import NO_DTYPE, Sizes, Text
from .tracing import NAMED_BY_OP, Trace


def written(found: Trace, title: str, what: str) -> tuple[str, dict[str, np.ndarray]]:
    """The text of the file, and the constants that its function takes by name."""
    results, guards = simple(found)
    sizes = Sizes({k: n for k, n in found.letters.items() if k not in found.inputs})
    layout = Layout(results, guards, found.inputs, sizes, found.kinds)
    body = layout.body()
    ending = end(found, results, layout)
    constants = {layout.names[e.id]: e.value for e in layout.constants.values()}
    lines = [*heading(body + ending), ""]
    positional = [n for n in found.inputs if n not in found.parameters]
    named = [n for n in found.inputs if n not in positional] + list(constants)
    lines += signature(title, positional, named)
    lines += docstring(found, positional, what)
    if sizes.used and len(sizes.shown) > 1:  # a single name that only comments use is none
        sizes.used |= sizes.shown
    if sizes.used:
        lines.append(f"    {sizes_line(found, sizes)}")
    lines += checks(found, positional, sizes)
    lines += body + ending
    return "\n".join(lines) + "\n", constants


def simple(found: Trace) -> tuple[dict[str, Any], list[Guard]]:
    """The results by name and the guards, simplified."""
    everything = [found.outputs, found.gradients]
    (outputs, gradients), guards = simplify_all(everything, found.listing.guards)
    taken = {*found.inputs, *found.letters}
    name = value_name(outputs) if isinstance(outputs, Expression) else "value"
    results = {another(name, taken, outputs): outputs}
    for n, g in gradients.items():
        results[another(f"d_{n}", taken | results.keys())] = g
    return results, guards


def simplify_all(outputs: Any, guards: list[Guard]) -> tuple[Any, list[Guard]]:
    """The outputs, and the guards that still ask something, each question once."""
    found, asked = simplified(outputs, [g.asked for g in guards], facts_of(guards))
    made: dict[int, Guard] = {}
    for e, g in zip(asked, guards, strict=True):
        if e.kind not in ("constant", "number"):
            made.setdefault(e.id, Guard(e, g.answer, g.function))
    return found, list(made.values())


def another(name: str, taken: Any, result: Any = None) -> str:
    """The name, or a similar one if it is taken; of a result loss or output first."""
    if name in taken and result is not None:
        name = "output" if np.ndim(result.value) else "loss"
    while name in taken:
        name += "_"
    return name


def facts_of(guards: list[Guard]) -> dict[int, bool]:
    """Of which arrays a guard has made sure that none, or that all, of their elements are true."""
    found = {}
    for guard in guards:
        e = guard.asked
        whole = e.kind in ("method", "call") and e.name in ("any", "all") and not e.settings
        if whole and guard.answer is (e.name == "all") and isinstance(e.args[0], Expression):
            if e.args[0].dtype == bool:
                found[e.args[0].id] = guard.answer
    return found


def value_name(e: Expression) -> str:
    """What the result is called: as in the function or the layer, else loss or output."""
    if e.hint is not None and e.hint[0] > NAMED_BY_OP and e.kind != "input":
        return str(e.hint[1])
    return "output" if np.ndim(e.value) else "loss"


# ---- the lines around the body


ERF = '''
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


def erf(x):
    """2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x, by Gauss's rule; 1 beyond 6."""
    half = np.clip(x, -6, 6, dtype=float) / 2
    terms = (w * np.exp(-((half + half * s) ** 2)) for s, w in zip(NODES, WEIGHTS))
    return 2 / np.sqrt(np.pi) * half * sum(terms)
'''
"""The error function, which NumPy lacks: right to 3e-15, and in twice the time of Python's."""


def heading(body: list[str]) -> list[str]:
    """What comes before the function."""
    needed = ERF.splitlines() if any("erf(" in line for line in body) else []
    return ["import numpy as np", *needed, ""]


def signature(title: str, positional: list[str], named: list[str]) -> list[str]:
    """`def forward_backward(x, target, *, weight, bias):` in lines of a hundred columns."""
    words = [*positional, *(["*"] if named and positional else []), *named]
    start = f"def {title}("
    indent = " " * len(start)
    return packed(start, words, "):", indent)


def packed(start: str, words: list[str], close: str, indent: str) -> list[str]:
    """Words with commas between them, in as few lines as they need."""
    lines, line = [], start
    for i, word in enumerate(words):
        piece = word + (close if i == len(words) - 1 else ",")
        if len(line) + len(piece) > WIDTH and line.strip() and line != indent:
            lines.append(line.rstrip())
            line = indent
        line += piece + " "
    if not words:
        line += close
    return [*lines, line.rstrip()]


def docstring(found: Trace, positional: list[str], what: str) -> list[str]:
    """What is computed, and for which arrays."""
    arrays = ", ".join(
        f"{n} {found.inputs[n].shape} {found.inputs[n].dtype.name}" for n in positional
    )
    gives = f"{what} and its gradients" if found.gradients else what
    text = f"{gives}{', for ' + arrays if arrays else ''}."
    lines = textwrap.wrap(f'"""{text}', WIDTH - 4, break_long_words=False)
    if len(lines) == 1 and len(lines[0]) + 3 <= WIDTH - 4:
        return [f'    {lines[0]}"""']
    return [*(f"    {line}" for line in lines), '    """']


def sizes_line(found: Trace, sizes: Sizes) -> str:
    """`B, T, E = 2, 5, 8`"""
    used = {k: n for k, n in found.letters.items() if k in sizes.used}
    return f"{', '.join(used)} = {', '.join(map(str, used.values()))}"


def checks(found: Trace, positional: list[str], sizes: Sizes) -> list[str]:
    """The shapes of the arguments, without which other arrays would give wrong numbers."""
    if not positional:
        return []
    given = ", ".join(f"{n}.shape" for n in positional)
    wanted = ", ".join(sizes_as_letters(found.inputs[n].shape, sizes) for n in positional)
    if len(positional) > 1:
        given, wanted = f"({given})", f"({wanted})"
    line = f"    if {given} != {wanted}:"
    if len(line) > WIDTH and len(positional) > 1:
        return [line for n in positional for line in checks(found, [n], sizes)]
    return [line, '        raise ValueError("written for other shapes")']


def sizes_as_letters(shape: tuple[int, ...], sizes: Sizes) -> str:
    """A shape, in those letters that the program has anyway."""
    letters = {n: k for k, n in sizes.letters.items() if k in sizes.used}
    inner = ", ".join(letters.get(n, str(n)) for n in shape)
    return f"({inner}{',' * (len(shape) == 1)})"


def end(found: Trace, results: dict[str, Any], layout: Layout) -> list[str]:
    """`return loss, {"weight": d_weight}`, in which each array is the caller's own."""
    text = Text(layout.name_of, layout.sizes)
    seen: set[int] = set()

    def own(e: Any) -> str:
        if isinstance(e, dict):
            return "{" + ", ".join(f"{quoted(k)}: {own(v)}" for k, v in e.items()) + "}"
        if isinstance(e, (tuple, list)):
            inner = ", ".join(map(own, e))
            if isinstance(e, list):
                return f"[{inner}]"
            return f"({inner}{',' * (len(e) == 1)})"
        if not isinstance(e, Expression):
            return text.of(e)
        if e.kind == "constant":
            return f"{text.of(e)}.copy()" if e.id in layout.constants else text.of(e)
        if e.kind == "number":
            return text.of(e, -1, NO_DTYPE)
        shared = e.id in seen or e.kind == "input" or shares_memory(e)
        seen.add(e.id)
        return f"{text.array(e)}.copy()" if shared and np.ndim(e.value) else text.of(e)

    first, *rest = results.values()
    if not found.gradients:
        return returned(first, own)
    keys = [found.originals[n] for n in found.gradients]
    pairs = [f"{quoted(k)}: {own(e)}" for k, e in zip(keys, rest, strict=True)]
    start = f"    return {own(first)}, {{"
    return packed(start, pairs, "}", " " * len(start))


def returned(result: Any, own: Any) -> list[str]:
    """The last lines where there are no gradients."""
    opened, closed = "", ""
    if isinstance(result, dict):
        opened, closed = "{", "}"
        parts = [f"{quoted(k)}: {own(v)}" for k, v in result.items()]
    elif isinstance(result, (tuple, list)):
        opened, closed = ("[", "]") if isinstance(result, list) else ("(", ")")
        parts = [own(v) for v in result]
        closed = f",{closed}" if closed == ")" and len(parts) == 1 else closed
    else:
        parts = [own(result)]
    return packed(f"    return {opened}", parts, closed, " " * len("    return ("))


def quoted(key: Any) -> str:
    """A key of a dict, in double quotes if it is a text."""
    text = repr(key)
    plain = isinstance(key, str) and text[1:-1] == key and '"' not in key
    return f'"{key}"' if plain else text


def shares_memory(e: Expression) -> bool:
    """May this be a view of an array that something else is computed from or returned as?"""
    if e.kind in ("part", "item") or e.name in VIEWS and e.kind != "operator":
        return True
    return e.kind == "call" and getattr(e.value, "base", None) is not None


__all__ = ["written"]
