"""The equation of an op and its backward rule, as formulas and as source code."""

from __future__ import annotations

import inspect
import linecache
import re
import textwrap
from typing import Any

PACKAGE = __name__.partition(".")[0]
# Equations of ops whose names and docstrings do not show them.
EQUATIONS = {
    "expm1": "y = eˣ − 1", "log1p": "y = log(1 + x)", "getitem": "y = x[index]",
    "transpose": "y = xᵀ (or other axes)", "inv": "y = a^-1", "det": "y = det a",
    "solve": "The solution y of a y = b, where b is (N,) or (..., N, K), as in np.linalg.solve",
    "cross_entropy": "y = −log softmax(x)[target], reduced", "gelu": "y = x Φ(x)",
    "attention": "y = softmax(q kᵀ · scale + mask) v",
    "packed_attention": "y = softmax(q kᵀ · scale + mask) v, with q, k, v side by side",
    "attention_weights": "y = softmax(q kᵀ · scale + mask)",
}  # fmt: skip
_DELTA = "with δ = p ⊙ (g vᵀ − rowsum(p ⊙ g vᵀ)) · scale, p = the weights"
# Gradients for the inputs of ops whose VJPs are longer than the formula.
RULES = {
    "power": "g · b aᵇ⁻¹; g · y log a", "matmul": "g bᵀ; aᵀ g", "relu": "g where x > 0",
    "sum": "g, repeated for each summand", "mean": "g / n, repeated for each of the n",
    "var": "g · 2 (x − mean) / n", "std": "g · (x − mean) / (n y)",
    "max": "g where x is the largest, else 0", "min": "g where x is the smallest, else 0",
    "maximum": "g where a > b, g / 2 at a tie; g where b > a, g / 2 at a tie",
    "minimum": "g where a < b, g / 2 at a tie; g where b < a, g / 2 at a tie",
    "reshape": "g, in the shape of x", "transpose": "g, axes put back",
    "getitem": "g at x[index], 0 elsewhere", "embedding": "the sum of g at each row's uses",
    "concatenate": "its part of g", "stack": "its part of g",
    "take_along_axis": "g at the chosen places, 0 elsewhere",
    "linear": "g weight; gᵀ x; the sum of the rows of g", "softmax": "y ⊙ (g − Σⱼ gⱼ yⱼ)",
    "layer_norm": "(h − mean h − n · mean(h n)) / std, with h = g · weight, n = normalised x; "
    "Σ g · n over the rows, n = normalised x; Σ g over the rows",
    "rms_norm": "(h − n · mean(h n)) / rms, with h = g · weight, n = x / rms; Σ g · n, n = x / rms",
    "gelu": "g · (Φ(x) + x φ(x))",
    "cross_entropy": "g · (softmax(x) − onehot(target)) / N for the mean, not smoothed",
    "attention": f"δ k, {_DELTA}; δᵀ q, {_DELTA}; pᵀ g, p = the weights",
    "packed_attention": f"[δ k, δᵀ q, pᵀ g], {_DELTA}",
}  # fmt: skip
_SIGNS = (("np.", ""), ("math.", ""), (".mT", "ᵀ"), (" * ", " · "), (" @ ", " "), (" - ", " − "),
          ("-g", "−g"), (" ** 2", "²"))  # fmt: skip


def equation_of(function: Any) -> str:
    """Return the equation of a function, from the table or the start of its docstring."""
    line = (function.__doc__ or "").strip().partition("\n")[0]
    clause = re.split(r"(?<!\.)\. |: | over the | along the axis|, n standard", line)[0]
    return EQUATIONS.get(function.__name__, clause.rstrip("."))


def equation(op: Any) -> str:
    of_numpy = not op.input_names and not op.variadic
    known = EQUATIONS.get(op.__name__) if of_numpy else equation_of(op.stands_for)
    letters = ", ".join(letter(op, i) for i in range(op.count))
    return known or f"y = {op.__name__}({letters})"


def letter(op: Any, i: int) -> str:
    """Return the name of input i in formulas."""
    names = op.input_names or ("ab" if op.count == 2 else "x")
    return names[i] if i < len(names) else f"x{i}"


def rule(op: Any, i: int) -> str:
    """Return the gradient for input i as a formula of g, y and the inputs, or "" if unknown."""
    name = op.stands_for.__name__
    if name in RULES and f"{op.__module__}.".startswith(f"{PACKAGE}."):
        known = RULES[name].split("; ")
        return known[min(i, len(known) - 1)]
    vjp = _vjp(op, i)
    if op.joint_vjp is not None or not hasattr(vjp, "__code__"):
        return ""
    line, end, start, stop = list(vjp.__code__.co_positions())[-2]  # the value it returns
    text = linecache.getline(vjp.__code__.co_filename, line or 0).rstrip()[start:stop]
    for code, sign in _SIGNS if line == end else ():
        text = text.replace(code, sign)
    return text if line == end else ""


def code(op: Any, i: int) -> tuple[str, str]:
    """Return the source of the VJP for input i, and its file and line, or two empty strings."""
    try:
        lines, number = inspect.getsourcelines(vjp := inspect.unwrap(_vjp(op, i)))
    except (OSError, TypeError):
        return "", ""
    file = inspect.getfile(vjp)
    if PACKAGE in file:
        file = file[file.rindex(PACKAGE) :]
    return textwrap.dedent("".join(lines)).rstrip(), f"{file}:{number}"


def _vjp(op: Any, i: int) -> Any:
    """Return the VJP for input i, or the one for all inputs at once."""
    return op.joint_vjp or (op.vjps[i] if i < len(op.vjps) else None)
