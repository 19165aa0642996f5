"""Right places, wrong numbers: a factor, a term, one quantity for another, nothing at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...engine import sum_to
from ..records import as_given
from ..report import greatest
from .pattern import FIT, Found, Pattern, apart, even, fit_factor, mixed_axes, nearest, same


def function_is_infinite(p: Pattern) -> Found:
    """The slope is infinite or NaN, and so is the function."""
    y = p.y
    return {} if not _finite(p.n) and y is not None and not _finite(y) else None


def edge_of_the_domain(p: Pattern) -> Found:
    """The slope is infinite or NaN where the function is not."""
    return None if _finite(p.n) else {"where": p.where(~np.isfinite(p.n))}


def rule_is_infinite(p: Pattern) -> Found:
    """The gradient is infinite or NaN where the slope is not."""
    return None if _finite(p.a) else {"where": p.where(~np.isfinite(p.a))}


def _finite(v: np.ndarray) -> bool:
    return bool(np.isfinite(v).all())


def zero(p: Pattern) -> Found:
    """The gradient is zero, and the slope is not."""
    matters = greatest(p.n) > p.tolerance
    return {"everywhere": p.everywhere} if not p.a.any() and matters else None


def function_is_constant(p: Pattern) -> Found:
    """The slope is zero: the input moves nothing."""
    if greatest(p.n) > p.tolerance:
        return None
    several = f"any of the {p.measured} of this input that were tried moves"
    return {"moves": "this input moves" if p.at is None else several}


# ---- a constant factor

USUAL = {
    2.0: "x2: counted twice, or a factor 1/2 is missing",
    0.5: (
        "x1/2: a factor 2 is missing (the derivative of a square?), or one of two equal uses is "
        "not counted"
    ),
    math.pi / 180: "pi / 180: degrees taken for radians",
    180 / math.pi: "180 / pi: degrees taken for radians",
    math.log(2): "log 2, as of a base 2",
    1 / math.log(2): "1 / log 2, as of a base 2",
    math.log(10): "log 10, as of a base 10",
    1 / math.log(10): "1 / log 10, as of a base 10",
}
EXPONENT = ", or a number of the formula, such as an exponent"


def _constant(p: Pattern) -> float | None:
    """c with gradient = c slope, here and at other values of the input."""
    c = p.factor(p.a, p.n)
    if c is None:
        return None
    others = [p.factor(a, n) for a, n in p.elsewhere]
    near = min(1e-3 * abs(c), 0.02 * abs(c - 1))  # of a single number any gradient is a multiple
    return c if all(o is not None and abs(o - c) <= near for o in others) else None


def sign(p: Pattern) -> Found:
    """The right gradient with the other sign."""
    c = _constant(p)
    return {"everywhere": p.everywhere} if c is not None and abs(c + 1) < 1e-3 else None


def constant_factor(p: Pattern) -> Found:
    """The right gradient times one number."""
    c = _constant(p)
    if c is None:
        return None
    also = "; and the sign is wrong" if c < 0 else ""
    return {"factor": f"{c:.6g}", "everywhere": p.everywhere, "hint": _hint(p, abs(c)) + also}


def _hint(p: Pattern, c: float) -> str:
    """What the number may be."""
    words = (f": {words}" for value, words in _numbers(p) if abs(c - value) < 1e-4 * value)
    return next(words, "")


def _numbers(p: Pattern) -> Iterator[tuple[float, str]]:
    """(a factor, what it tells): a size, something usual, a root or a count."""
    sizes = [(n, what) for n, what in _sizes(p).items() if n > 2]
    mixes = _mixes(p)
    formula = "" if mixes else EXPONENT
    for n, what in sizes:
        # Element by element there is no mean; a small number may always be an exponent.
        or_exponent = EXPONENT if n < 6 else formula
        for value, done, mean in (
            (n, "multiplied", "the 1/N of a mean is missing"),
            (1 / n, "divided", "a mean where a sum belongs"),
        ):
            more = EXPONENT if mixes is False else f"; {mean}{or_exponent}"
            yield value, f"{done} by {n}, which is {what}{more}"
    yield from USUAL.items()
    for n, what in sizes:
        which = f"{n} is {what}{formula}"
        for value, done in ((math.sqrt(n), "multiplied"), (1 / math.sqrt(n), "divided")):
            scale = f"{done} by the square root of {n}, a scale that is missing or applied twice"
            yield value, f"{scale}; {which}"
        for power in (1, -1, 0.5, -0.5) if mixes else ():  # the two ways to divide a variance
            count = f"{n} where {n - 1} belongs, or the reverse: a count that is off by one, such"
            yield ((n - 1) / n) ** power, f"{count} as the divisor of a variance (ddof); {which}"


def _sizes(p: Pattern) -> dict[int, str]:
    """What a whole number may stand for."""
    if p.at is not None:  # a list of some elements has no axes
        return {}
    named = [(n, f"the size of axis {k} of the input") for k, n in enumerate(p.x.shape)]
    if p.y is not None:
        named += [(n, f"the size of axis {k} of the result") for k, n in enumerate(p.y.shape)]
    named += [(p.x.size, "the number of elements of the input")]
    if p.y is not None:
        named += [
            (p.y.size, "the number of elements of the result"),
            (p.x.size // p.y.size, "how many elements go into one result"),
            (p.y.size // p.x.size, "how often each element is used"),
        ]
    return dict(reversed(named))  # the first name of a number stands


def _mixes(p: Pattern) -> bool | None:
    """Does a result depend on several elements?  None where that is not known."""
    if p.y is None or p.x.ndim == p.y.ndim == 0:
        return None
    if p.y.shape != p.x.shape:
        return True
    return None if p.jacobians is None else bool(mixed_axes(p.jacobians[1], p.x.shape))


# ---- a factor that differs from element to element, or from row to row


def constant(p: Pattern) -> Found:
    """One number everywhere where the slope is not, at these values or a little way off."""
    if p.a.size < 3 or not even(p.a):
        return None
    pairs = [(p.a, p.n), *p.elsewhere]
    if not all(even(a) for a, _ in pairs) or all(even(n) for _, n in pairs):
        return None
    where = "at every element" if p.at is None else p.everywhere
    return {"value": f"{p.a.flat[0]:.6g}", "where": where}


MEANING = {
    "x": "x is the operand whose gradient this is",
    "y": "y is the op's result",
    "g": "g is the incoming gradient",
}


def _quantities(p: Pattern) -> Iterator[tuple[str, str, np.ndarray]]:
    """(formula, what its letter means, values) of everything a rule may be multiplied by."""
    named: dict[str, Any] = {"x": p.x, "y": p.y, "g": p.g}
    if p.suspect is not None:
        named |= {f"operand {i}": o for i, o in enumerate(as_given(p.suspect.step.inputs))}
        del named[f"operand {p.suspect.position}"]
    for v, value in named.items():
        like_x = isinstance(value, np.ndarray) and value.shape in ((), p.a.shape)
        if not like_x or value.dtype.kind != "f":
            continue
        formulas = {
            v: value,
            f"{v}^2": value**2,
            f"(1 - {v})": 1 - value,
            f"(1 + {v})": 1 + value,
            f"(1 - {v}^2)": 1 - value**2,
            f"(1 + {v}^2)": 1 + value**2,
            f"{v} (1 - {v})": value * (1 - value),
            f"cos {v}": np.cos(value),
            f"sin {v}": np.sin(value),
            f"exp {v}": np.exp(value),
            f"sqrt {v}": np.sqrt(value),
        }
        meaning = MEANING.get(v, f"{v} is an operand of the op")
        usable = p.a.size >= 2 and p.n.all() and p.a.all()
        yield from ((f, f" ({meaning})", q) for f, q in formulas.items() if usable)


def _of_each_row(p: Pattern, axis: int) -> Iterator[tuple[str, np.ndarray]]:
    """(formula, values) of what a whole row along an axis may be divided by."""
    if p.y is not None and p.y.shape == p.x.shape[:axis] + p.x.shape[axis + 1 :]:
        yield "y", np.expand_dims(p.y, axis)
    over: Any = dict(axis=axis, keepdims=True)
    for name, q in {
        "std(x)": p.x.std(**over),
        "norm(x)": np.sqrt((p.x * p.x).sum(**over)),
        "rms(x)": np.sqrt((p.x * p.x).mean(**over)),
        "sum(x)": p.x.sum(**over),
        "max(x)": p.x.max(**over),
        "sum(exp(x))": np.exp(p.x).sum(**over),
    }.items():
        yield from ((name, q), (f"({name})^2", q**2))


def factor(p: Pattern) -> Found:
    """A factor too many or too few, that differs from element to element, or from row to row."""
    for formula, meaning, q in _quantities(p):
        if found := _factor(p, q, formula, formula, meaning, ("extra factor", "missing factor")):
            return found
    for axis in reversed(range(p.a.ndim if p.at is None else 0)):
        for name, q in _of_each_row(p, axis) if p.a.shape[axis] > 1 else ():
            kinds = ("missing factor", "extra factor")
            if found := _factor(p, q, name, f"1/{name}", "", kinds):
                return found | {"rows": f", for each row along axis {axis}"}
    return None


def _factor(
    p: Pattern, q: np.ndarray, name: str, formula: str, meaning: str, kinds: tuple[str, str]
) -> Found:
    """Is the gradient q times the slope, or the slope q times the gradient?"""
    if not (np.isfinite(q).all() and np.ptp(q) > 0):
        return None
    if (eps := _hidden(p.a / p.n, q)) is not None:
        how = f"the rule divides by {name} + {eps} instead of {name}{meaning}: a hidden eps"
        return {"kind": "hidden eps", "how": how, "rows": ""}
    ways = zip(kinds, ((p.a, p.n * q, np.abs(q) * p.tolerance), (p.a * q, p.n, p.tolerance)))
    for kind, (v, of, tolerance) in ways:
        c = fit_factor(v, of, tolerance)
        # One element is a multiple of any other, and two may be by accident.
        if c is not None and (v.size > 2 or abs(c - 1) < 1e-3):
            size = "too" if abs(c) > 1 else "as"
            much = "" if abs(c - 1) < 1e-3 else f" (and is {c:.6g} times {size} large besides)"
            how = {
                "extra factor": f"the gradient has a factor {formula} too many{meaning}{much}",
                "missing factor": f"the gradient lacks a factor {formula}{meaning}{much}",
            }[kind]
            lacks = ": the chain rule multiplies by it" if kind == "missing factor" else ""
            return {"kind": kind, "how": how, "rows": lacks}
    return None


def _hidden(factor: np.ndarray, q: np.ndarray) -> str | None:
    """eps where the factor is q / (q + eps)."""
    hidden = (1 / factor - 1) * q
    small = np.isfinite(hidden).all() and 0 < abs(hidden.flat[0]) < 0.1 * np.abs(q).max() + 1e-2
    return f"{hidden.mean():.3g}" if small and even(hidden, 1e-2) else None


def whole_rows(p: Pattern) -> Found:
    """gradient = slope times one number for each row, whatever that number is."""
    for axis in reversed(range(p.a.ndim)):
        rows, scale = np.sum(p.n * p.n, axis=axis, keepdims=True), np.abs(p.n).max()
        # Of a row with one number alone, any other number is a multiple.
        several = (np.count_nonzero(np.abs(p.n) > FIT * scale, axis=axis) >= 2).all()
        if rows.size < 2 or not several:
            continue
        each = np.sum(p.a * p.n, axis=axis, keepdims=True) / rows
        differ = each.all() and not even(each, 1e-3) and (np.abs(each - 1) > 1e-3).all()
        if differ and not apart(p.a, each * p.n, np.abs(each) * p.tolerance).any():
            return {"axis": axis}
    return None


# ---- a term


def missing_sum(p: Pattern) -> Found:
    """The error is constant along an axis, or proportional to x or y: a sum over it is wrong."""
    if even(p.a) and even(p.n):
        return None  # at equal elements every error is constant
    error, one = p.a - p.n, np.ones(p.a.shape)
    bases: dict[str, list[Any]] = {
        "constant": [one],
        "proportional to y": [p.y],
        "proportional to x": [p.x],
        "a straight line in x": [p.x, one],
    }
    for axis, size in enumerate(error.shape):
        rows = lambda v: np.moveaxis(v, axis, -1).reshape(-1, size)  # noqa: B023
        lines, slopes, off = rows(error), rows(p.n), rows(p.off)
        if (slopes.any(axis=1) & ~off.any(axis=1)).any():
            continue  # a line that is right lacks no term
        for name, basis in bases.items():
            if any(b is None or b.shape != error.shape for b in basis):
                continue
            columns = np.stack([rows(b) for b in basis], -1)
            if columns.any(axis=2).sum(axis=1).min(initial=size) < len(basis) + 2:
                continue  # as many unknowns as elements fit anything
            fit = np.array(
                [c @ np.linalg.lstsq(c, line, rcond=None)[0] for line, c in zip(lines, columns)]
            )
            if apart(slopes + lines, slopes + fit, p.tolerance).any():
                continue
            if np.linalg.norm(lines - fit) <= 10 * FIT * np.linalg.norm(error):
                return {"how": name, "axis": axis, "more": _divisor_of_a_variance(p, axis, error)}
    return None


def _divisor_of_a_variance(p: Pattern, axis: int, error: np.ndarray) -> str:
    """Is the error that of y sum(g y) / n, divided by std, with n - 1 for n or the reverse?"""
    if not p.offers("like x"):
        return ""
    n = error.shape[axis]
    total, std = (f(axis=axis, keepdims=True) for f in ((p.g * p.y).sum, p.x.std))
    share = p.y * total / std / n / (n - 1)
    c = nearest(error, share)
    # The standard deviation may itself be that of n - 1, or hold an eps, so it fits only roughly.
    if not (
        0.75 < abs(c) < 1.25 and np.allclose(error, c * share, atol=1e-2 * np.abs(error).max())
    ):
        return ""
    used, right = (n - 1, n) if c < 0 else (n, n - 1)
    return (
        f" It is as if sum(g y) were divided by {used} where the forward pass has {right} (ddof)."
    )


def inverted(p: Pattern) -> Found:
    """The rule divides by the op's derivative."""
    if p.n.size < 2 or p.g.shape not in ((), p.n.shape) or not p.n.all():
        return None
    product = p.a * p.n / (p.g * p.g)
    if not np.isfinite(product).all() or even(p.n / p.g, 1e-3) or not even(product, 1e-3):
        return None
    c = float(product.mean())
    fits = p.fits(c * p.g * p.g / p.n) and (c > 0 or p.g.ndim == 0)
    return {} if fits and (p.g.ndim == 0 or abs(c - 1) < 1e-3) else None


def passed_on(p: Pattern) -> Found:
    """The gradient is the incoming one, as of a sum."""
    if p.g.ndim < p.a.ndim:
        return None
    summed = sum_to(p.g, p.a.shape)
    sums = "" if summed is p.g else ", summed over the axes that the input has not"
    return {"sums": sums} if p.fits(summed) else None


def leftover(p: Pattern) -> Found:
    """What is missing or too many is a multiple of something at hand, element by element."""
    for words, term in _terms(p).items():
        share = p.g * term
        c = nearest(p.a - p.n, share)
        if same(p.a - p.n, c * share) and p.fits(p.n + c * share):
            return {"amount": _amount(c, f"g times {words}" if words else "g")}
    return None


def divisor(p: Pattern) -> Found:
    """Of a slope g / d, or g / sqrt(d), a term of d is wrong: g / (1 - x^2) for arctan's."""
    for what, power in (("", 1), ("the square of ", 2)):
        for words, term in _terms(p).items():
            right, wrong = ((p.g / v) ** power for v in (p.n, p.a))
            c = nearest(wrong - right, term)
            fitting = p.n * (right / (right + c * term)) ** (1 / power)
            if same(wrong - right, c * term) and p.fits(fitting):
                return {"what": what, "amount": _amount(c, words)}
    return None


def _terms(p: Pattern) -> dict[str, np.ndarray]:
    """What the terms of a derivative may consist of, element by element."""
    if p.a.size < 4 or not np.ptp(p.x):
        return {}  # at equal elements any would fit
    x, y = p.x, p.y
    terms = {"": np.ones(p.a.shape), "y": y, "x": x, "x^2": x**2, "y^2": y**2}
    terms |= {"x y": x * y, "x^3": x**3}
    return {words: term for words, term in terms.items() if not words or np.ptp(term) > 0}


def _amount(c: float, what: str) -> str:
    much = "much" if c > 0 else "little"
    return f"{abs(c):.4g}{f' times {what}' if what else ''} too {much}"


# ---- well-known functions and the slips their derivatives invite


def known_slip(p: Pattern) -> Found:
    """The slope is that of a well-known function, and the gradient a well-known mistake of it."""
    near = lambda v: np.allclose(v, p.n, rtol=1e-3, atol=1e-3 * greatest(p.n))
    right = lambda v, name: p.right(v) or name == "GELU" and near(v)
    return next((slip for slip, wrong in slips(p.g, p.x, p.y, right) if p.fits(wrong)), None)


def slips(
    g: Any, x: Any, y: Any, right: Any, within: bool = False
) -> Iterator[tuple[dict[str, str], np.ndarray]]:
    """Mistakes of the derivative of y by x, of the functions whose own derivative is right."""
    if x.size < 3:
        return
    s = 1 / (1 + np.exp(-x))
    phi = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    # Phi from the op's own result, y = x Phi, so that erf and the tanh formula both do.
    Phi = y / x
    known = [
        (
            "sigmoid",
            g * y * (1 - y),
            {
                "1 + y stands where 1 - y belongs": g * y * (1 + y),
                "y stands where 1 - y belongs": g * y * y,
            },
        ),
        (
            "SiLU",
            g * (s + y * (1 - s)),
            {
                "the first term, g sigmoid(x), is missing": g * y * (1 - s),
                "the second term, g y (1 - sigmoid(x)), is missing": g * s,
                "the factor 1 - sigmoid(x) of the second term is missing": g * (s + y),
                "it is the derivative of sigmoid alone": g * s * (1 - s),
            },
        ),
        (
            "GELU",
            g * (Phi + x * phi),
            {
                "the second term, g x pdf(x), is missing": g * Phi,
                "the first term, g cdf(x), is missing": g * x * phi,
                "pdf(x) is not multiplied by x": g * (Phi + phi),
            },
        ),
    ]
    for axis in range(x.ndim):
        known += _slips_of_rows(g, y, axis, within)
    for name, derivative, mistakes in known:
        if right(derivative, name):
            for words, wrong in mistakes.items():
                yield {"function": name, "words": words}, wrong


def _slips_of_rows(
    g: Any, y: Any, axis: int, within: bool
) -> list[tuple[str, Any, dict[str, Any]]]:
    """(function, its derivative, mistakes of it by words) of those that sum over an axis."""
    total = lambda v: v.sum(axis=axis, keepdims=True)
    plain = "y (g - sum(g y))"
    softmax = {
        f"y sum(g) stands where sum(g y) belongs, in {plain}": y * (g - y * total(g)),
        f"the sum is over g alone, in {plain} over g y": y * (g - total(g)),
        f"the outer factor y of {plain} is missing": g - total(g * y),
        "g stands where y g belongs, in y g - y sum(g y)": g - y * total(g * y),
        f"both factors y of {plain} are missing": g - total(g),
    }
    if within:  # at the end of a function other explanations name these more generally
        softmax[f"the sum of {plain} is missing"] = y * g
        softmax[f"only the diagonal is counted, g y (1 - y) for {plain}"] = g * y * (1 - y)
        for other in set(range(y.ndim)) - {axis}:
            words = f"the sum goes over axis {other}, and the function's over axis {axis}"
            softmax[words] = y * (g - (g * y).sum(axis=other, keepdims=True))
    log_softmax = {"the sum is over g y, not over g": g - np.exp(y) * total(g * y)}
    return [
        ("softmax", y * (g - total(g * y)), softmax),
        ("log_softmax", g - np.exp(y) * total(g), log_softmax),
    ]
