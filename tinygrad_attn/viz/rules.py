"""The equation of an op, and the source of its VJPs."""

import inspect
import linecache
import re
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def stated(function):
    """Return the equation with which a docstring begins: its first line up to a colon."""
    line = (function.__doc__ or "").strip().partition("\n")[0]
    return re.split("[:;] ", line)[0].rstrip(".")


def equation(op):
    """Return the equation from the op's docstring, or else y = NAME(INPUTS)."""
    is_ufunc = not op.input_names and not op.variadic  # NumPy's docstring begins with a signature
    letters = ", ".join(letter(op, i) for i in range(op.count))
    return (not is_ufunc and stated(op.stands_for)) or f"y = {op.__name__}({letters})"


def letter(op, i):
    """Return the name of input i in the equation."""
    names = op.input_names or ("ab" if op.count == 2 else "x")
    return names[i] if i < len(names) else f"x{i}"


def _vjp(op, i):
    """Return the VJP for input i, or the one for all inputs; of an op with a kernel, the op's."""
    op = op.stands_for
    return op.joint_vjp or (op.vjps[i] if i < len(op.vjps) else None)


def rule(op, i):
    """Return the expression that the VJP for input i computes if it is a lambda, else ""."""
    code = getattr(_vjp(op, i), "__code__", None)
    if code is None or code.co_name != "<lambda>" or op.stands_for.joint_vjp:
        return ""
    spans = [span for span in code.co_positions() if span[2] != span[3]]  # without empty ones
    if not spans:  # under python -X no_debug_ranges
        return ""
    line, start = min((line, start) for line, _, start, _ in spans)
    last, end = max((last, end) for _, last, _, end in spans)
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(line, last + 1)]
    lines[-1] = lines[-1][:end]  # positions count bytes
    lines[0] = lines[0][start:]
    return " ".join(text.decode().strip() for text in lines)


def code(op, i):
    """Return the source of the VJP for input i, and its file and line, or two empty strings."""
    try:
        vjp = inspect.unwrap(_vjp(op, i))
        file = Path(inspect.getfile(vjp))
        lines, number = inspect.getsourcelines(vjp)
    except (OSError, TypeError):
        return "", ""
    if file.is_relative_to(PACKAGE):
        file = file.relative_to(PACKAGE.parent)
    return textwrap.dedent("".join(lines)).rstrip(), f"{file.as_posix()}:{number}"
