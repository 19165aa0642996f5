"""A gradient that is a constant times the slope, and what that number may be: a size, a root of one, a count, a number of the formula."""

from __future__ import annotations

import math

from .diagnosis import Pattern, fit_factor, mixed_axes
from .report import Diagnosis

USUAL = {
    2.0: "x2: counted twice, or a factor 1/2 is missing",
    0.5: "x1/2: a factor 2 is missing (the derivative of a square?), or one of two equal uses is not counted",
    math.pi / 180: "pi / 180: degrees taken for radians",
    180 / math.pi: "180 / pi: degrees taken for radians",
    math.log(2): "log 2, as of a base 2",
    1 / math.log(2): "1 / log 2, as of a base 2",
    math.log(10): "log 10, as of a base 10",
    1 / math.log(10): "1 / log 10, as of a base 10",
}


def constant_factor(p: Pattern) -> Diagnosis | None:
    """The gradient is a constant times the slope: -1, a size, 2, 1/2 and the like."""
    factor = fit_factor(p.a, p.n, p.tolerance)
    if factor is None or any(
        (other := fit_factor(a, n, p.tolerance)) is None or abs(other - factor) > 1e-3 * abs(factor)
        for a, n in p.elsewhere()
    ):
        return None
    if abs(factor + 1) < 1e-3:
        return Diagnosis(
            "sign", f"the gradient has the wrong sign {p.everywhere} (constant factor -1)."
        )
    sizes, mixes, sign = _sizes(p), _mixes(p), "; and the sign is wrong" if factor < 0 else ""
    exponent = ", or a number of the formula, such as an exponent"
    formula = "" if mixes else exponent
    text = f"the gradient is {factor:.6g} times what it should be, {p.everywhere} (constant factor)"
    for value, wording in ((abs(factor), "multiplied by"), (1 / abs(factor), "divided by")):
        size = round(value)
        if size > 2 and size in sizes and abs(value - size) < 1e-3 * size:
            mean = (
                "; a mean where a sum belongs"
                if wording == "divided by"
                else "; the 1/N of a mean is missing"
            )
            more = (
                exponent if mixes is False else mean + (exponent if size < 6 else formula)
            )  # element by element there is no mean
            return Diagnosis(
                "constant factor", f"{text}: {wording} {size}, which is {sizes[size]}{more}{sign}."
            )
    hint = next((f": {words}" for value, words in USUAL.items() if _close(abs(factor), value)), "")
    for size in sizes:
        if (
            not hint
            and size > 2
            and (scale := _root(abs(factor), size) or (mixes and _count(abs(factor), size)))
        ):
            hint = f": {scale}; {size} is {sizes[size]}{formula}"
    return Diagnosis("constant factor", f"{text}{hint}{sign}.")


def _sizes(p: Pattern) -> dict[int, str]:
    """What a whole number may stand for."""
    sizes: dict[int, str] = {}
    if p.at is not None:  # a list of some elements has no axes
        return sizes
    for axis, size in enumerate(p.x.shape):
        sizes.setdefault(size, f"the size of axis {axis} of the input")
    if p.y is not None:
        for axis, size in enumerate(p.y.shape):
            sizes.setdefault(size, f"the size of axis {axis} of the result")
    sizes.setdefault(p.x.size, "the number of elements of the input")
    if p.y is not None:
        sizes.setdefault(p.y.size, "the number of elements of the result")
        sizes.setdefault(p.x.size // p.y.size, "how many elements go into one result")
        sizes.setdefault(p.y.size // p.x.size, "how often each element is used")
    return sizes


def _mixes(p: Pattern) -> bool | None:
    """Does a result depend on several elements?  None where that is not known."""
    if p.y is None or p.x.ndim == p.y.ndim == 0:
        return None
    if p.y.shape != p.x.shape:
        return True
    return None if (matrices := p.jacobians()) is None else bool(mixed_axes(matrices[1], p.x.shape))


def _root(factor: float, size: int) -> str:
    """What attention scales by."""
    if _close(factor, math.sqrt(size)) or _close(factor, 1 / math.sqrt(size)):
        return f"{'multiplied' if factor > 1 else 'divided'} by the square root of {size}, a scale that is missing or applied twice"
    return ""


def _count(factor: float, size: int) -> str:
    """The two ways to divide a variance."""
    if _close(factor, (size - 1) / size) or _close(factor, size / (size - 1)):
        return f"{size} where {size - 1} belongs, or the reverse: a count that is off by one, such as the divisor of a variance (ddof)"
    return ""


def _close(factor: float, value: float) -> bool:
    return abs(factor - value) < 1e-4 * value
