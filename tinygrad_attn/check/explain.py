"""Explain a wrong VJP by comparing its Jacobian with the right one.

R is the Jacobian from the VJP, and J is the Jacobian from finite differences. Both have the shape
(elements of the output y, elements of the input x). Each claim of a table says that one matrix is
a multiple of another, for example R of J with its axes swapped. The first claim that fits is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, combinations, permutations, product
from typing import Any

import numpy as np

from .measure import STRICT, Limits, all_entries
from .report import Entry, agree, greatest, index_of_largest, near, worst_of
from .subject import Subject, flatten

Finding = str | None  # the kind of a mistake, a colon and an explanation
Claim = tuple[str, Any, Any]  # a text that applies if the first matrix is a multiple of the second
RTOL = 1e-3
LARGE = 70_000  # elements of the largest Jacobian that is computed
INEXACT = 0.05  # the largest relative error of an approximation
# Common factors of derivatives, as functions of an input, an output or an operand.
MAPS: dict[str, Any] = {
    "{}": np.positive, "{}^2": np.square, "(1 - {})": lambda v: 1 - v,
    "{0} (1 - {0})": lambda v: v - v * v, "(1 - {}^2)": lambda v: 1 - v * v,
    "(1 + {}^2)": lambda v: 1 + v * v, "exp({})": np.exp, "tanh({})": np.tanh,
    "sigmoid({})": lambda v: 1 / (1 + np.exp(-v)),
}  # fmt: skip


def close(a, b, rtol: float = RTOL):
    """Return a mask of where two Jacobians agree up to the error of finite differences."""
    column = np.abs(b).max(axis=0, initial=0)
    return near(a, b, rtol, rtol / 100 * column + 1e-6 * rtol * greatest(b))


def factor(a, b, rtol: float = RTOL) -> float:
    """Return the number c for which a = c b, or 0 if there is none."""
    c = float(np.sum(a * b) / np.sum(b * b)) if a.shape == b.shape else 0.0
    return c if c and np.isfinite(c) and close(a, c * b, rtol).all() else 0.0


class Case:
    """An input x of a function, the output y, R and J, and where R and J are nonzero."""

    def __init__(self, f, which: int) -> None:
        self.f, self.which, self.x = f, which, f.inputs[which]
        self.y = f.values[0] if len(f.values) == 1 else flatten(f.values)
        self.rtol = max(RTOL, 16 * f.precision)
        R, J = f.jacobian_by_vjps(which), f.jacobian(which)
        self.R = np.where(np.isinf(self.y).reshape(-1, 1), 0, R)  # infinite outputs have no slope
        self.J = np.where(np.abs(J) < 1e-8 * greatest(np.nan_to_num(J)), 0, J)
        least = max(1e-7, 8 * f.precision)
        self.in_R, self.in_J = (
            np.abs(M) > least * greatest(np.nan_to_num(M)) for M in (self.R, self.J)
        )
        self.off = ~close(self.R, self.J, self.rtol / 10)
        kinds = [getattr(a, "dtype", None) for a in f.operands]
        self.operands = {k: f.operands[k] for k, kind in enumerate(kinds) if kind == np.float64}
        self.integers = {k: f.operands[k] for k, kind in enumerate(kinds) if kind == np.int64}
        self.position = f.checked[which]  # of x among the operands

    @property
    def relative_error(self) -> float:
        """The largest error of a derivative by an element of x, relative to its derivatives."""
        error, size = (np.abs(M).max(axis=0, initial=0) for M in (self.R - self.J, self.J))
        return greatest(error / (size + 1e-300))

    def mixes(self, nonzero) -> list[int]:
        """Return the axes along which an output depends on elements at other indices."""
        if self.x.shape != self.y.shape:
            return []
        here, there = (np.unravel_index(k, self.x.shape) for k in np.nonzero(nonzero))
        return [k for k, (a, b) in enumerate(zip(here, there)) if (a != b).any()]

    def claim(self, text: str, k: int, value) -> Iterator[Claim]:
        """Yield the claim that R is right for another value of one operand."""
        with suppress(Exception):  # the op may refuse it
            f = self.with_operand(k, value)
            if self.is_plausible(f):
                yield text, self.R, f.jacobian(self.which)

    def is_plausible(self, f) -> bool:
        """Return whether R may be a multiple of f's Jacobian, from its product with one vector."""
        if f.reference is None:
            direction = np.random.default_rng(0).standard_normal(self.x.shape)
            a, b = self.R @ direction.ravel(), f.derivative(self.which, direction)[0]
        else:
            g = self.f.cotangents
            a, b = flatten(g) @ self.R, np.ravel(f.reference.pull(g)[self.which])
        return bool(factor(a.reshape(1, -1), b.reshape(1, -1), 4 * self.rtol))

    def with_operand(self, k: int, value):
        """Return the function with another value of one operand."""
        operands = [*self.f.operands]
        operands[k] = value
        return self.f.replaced(operands)


def places(mask) -> str:
    """Write the first indices at which a mask is True."""
    at = [str(i) for i in np.argwhere(mask).tolist()]
    return f"index {', '.join(at[:4])}{', ...' * (len(at) > 4)}"


def simple(R, J, shape: tuple[int, ...], rtol: float = RTOL) -> Finding:
    """Find NaN, zeros or a constant factor. J is NaN at elements that were not measured."""
    finite, known = np.isfinite(R).all(axis=0), ~np.isnan(J).any(axis=0)
    if not finite.all():
        return (
            f"nan: the VJP gives NaN or Inf at {places(~finite.reshape(shape))}, where the slope "
            "is finite. Look for 0/0, log 0 or 0 x inf, and apply np.where before it, not after it."
        )
    R, J = R[:, known], J[:, known]
    if not R.any():
        return (
            "zero: the gradient is zero everywhere, but the function depends on this input. The "
            "VJP returns zeros or is None, or the value left the graph (detach(), .data, .numpy())."
        )
    c = factor(R, J, rtol)
    if not c or abs(c - 1) <= rtol:
        return None
    return f"constant factor: the gradient is {c:.6g} times what it should be."


def inverted(c: Case) -> Finding:
    """Find a gradient that is nonzero exactly where the slope is zero."""
    for_R, for_J = (c.in_R | np.isnan(c.R)).any(axis=0), c.in_J.any(axis=0)
    if for_R.any() and for_J.any() and not (for_R & for_J).any():
        return (
            f"mask or index: the mask is upside down: the slope is zero at "
            f"{places(for_R.reshape(c.x.shape))}, and just there the gradient is not."
        )
    return None


def at_some(R, J, bad) -> Finding:
    """Name the elements with a wrong gradient if most are right."""
    off, known = bad.ravel(), ~np.isnan(J).any(axis=0)
    if off.sum() > 0.7 * known.sum() and R[:, off].any() or not off.any():
        return None
    if not R[:, off].any():
        return f"some elements: the gradient is zero at {places(bad)}, where the slope is not."
    return f"some elements: the gradient is wrong at {places(bad)}, and right elsewhere."


def permuted_axes(axes: int) -> dict[tuple[int, ...], str]:
    """Return the permutations of up to four axes except the identity, and what they are called."""
    names = {}
    for order in list(permutations(range(axes)))[1:] if axes < 5 else []:
        swapped = [k for k, axis in enumerate(order) if k != axis]
        names[order] = f"with its axes in the order {order}"
        if len(swapped) == 2:
            names[order] = f"with axes {swapped[0]} and {swapped[1]} exchanged"
            names[order] += " (.mT)" * (swapped == [axes - 2, axes - 1])
        elif order == (*range(axes)[::-1],):
            names[order] = "with all axes reversed (.T, where .mT exchanges the last two)"
    return names


def displaced(a) -> Iterator[tuple[str, str, Any]]:
    """Yield a kind, what was done, and the operand with its elements at other indices."""
    for axes in chain.from_iterable(combinations(range(a.ndim), n + 1) for n in range(a.ndim)):
        yield "reversed", f"reversed along axis {' and '.join(map(str, axes))}", np.flip(a, axes)
    for axis, by in product(range(a.ndim), (1, -1)):
        yield "shifted by one", f"moved by {by} along axis {axis}", np.roll(a, by, axis)
    if a.dtype.kind == "i":
        for by in (1, -1):
            yield "shifted by one", f"plus {by}", a + by


def other_operands(c: Case) -> Iterator[Claim]:
    """Yield claims for a VJP that is right for another value of one operand."""
    for k, a in c.operands.items():
        name = f"{c.f.argument} {k}"
        for order, how in permuted_axes(a.ndim).items():
            yield from c.claim(
                f"transposed: the VJP is right for {name} {how}", k, a.transpose(order)
            )
        for value in (1, 0) if k != c.position else ():
            text = f"operand forgotten: the VJP is right if all elements of {name} are {value}"
            yield from c.claim(text, k, np.full_like(a, value))
    for k, a in {**c.operands, **c.integers}.items():
        for kind, how, value in displaced(a):
            text = f"{kind}: the VJP is right for {c.f.argument} {k} {how}"
            yield from c.claim(text, k, value)
    for k, a in c.operands.items():
        if 0 < a.ndim < c.x.ndim:
            text = (
                f"operand misplaced: the VJP is right if {c.f.argument} {k} is all ones, and wrong "
                "for other values: the operand is a factor in the wrong place, such as outside a "
                "sum"
            )
            with suppress(Exception):  # the op may refuse it
                f = c.with_operand(k, np.ones_like(a))
                yield text, f.jacobian_by_vjps(c.which), f.jacobian(c.which)


def other_values(c: Case) -> Iterator[Claim]:
    """Yield claims for a VJP that reads y in place of an operand."""
    for k, a in c.operands.items():
        if a.shape == c.y.shape and not c.mixes(c.in_J):
            text = f"wrong value: the VJP uses the result y where {c.f.argument} {k} belongs"
            yield from c.claim(text, k, c.y)


def matrix_products(c: Case) -> Iterator[Claim]:
    """Yield claims for a gradient that is a product of g and an operand in another order."""
    g = flatten(c.f.cotangents)
    known = {"g": c.f.cotangents[0]} | {f"{c.f.argument} {k}": a for k, a in c.operands.items()}
    known = {name: a for name, a in known.items() if a.ndim > 1}
    known |= {f"({name}).mT": np.swapaxes(a, -1, -2) for name, a in known.items()}
    products = {}
    for (left, a), (other, b) in permutations(known.items(), 2):
        with suppress(ValueError):  # the shapes do not fit
            products[left, other] = a @ b
    gradients = [(g @ M).reshape(1, -1) for M in (c.R, c.J)]
    fits = lambda v, of: v.size == of.size and close(of, v.reshape(1, -1), c.rtol).all()
    came, right = ([n for n, v in products.items() if fits(v, of)] for of in gradients)
    for wrong, wanted in product(came, right):
        kind = "wrong order" if wrong == wanted[::-1] else "transposed"
        text = f"{kind}: the gradient is {' @ '.join(wrong)}, but should be {' @ '.join(wanted)}"
        yield text, c.R, c.R


def moved(c: Case) -> Iterator[Claim]:
    """Yield claims for gradients or operands that are reversed, or shifted by one."""
    columns = np.arange(c.x.size).reshape(c.x.shape)
    for axis, n in enumerate(c.x.shape):
        text = f"reversed: the gradient is right, but reversed along axis {axis}"
        yield text, c.R, c.J[:, np.flip(columns, axis).ravel()]
        for by, border in ((1, 0), (-1, n - 1)):  # what comes in at the border is left out
            inside = np.indices(c.x.shape)[axis].ravel() != border
            neighbours = np.roll(columns, by, axis).ravel()[inside]
            text = (
                f"shifted by one: each gradient is that of its neighbour along axis {axis}: look "
                "for an index that is off by one, or a sum that leaves out its own element"
            )
            if n > 2:
                yield text, c.R[:, inside], c.J[:, neighbours]


def elsewhere(c: Case) -> Iterator[Claim]:
    """Yield claims for an R that has the numbers of J at other indices."""
    columns, rows = (np.arange(v.size).reshape(v.shape) for v in (c.x, c.y))
    wrong_axis = (
        "wrong axis: the gradient is summed over, or spread along, the wrong axis. Broadcasting "
        "matches axes from the right, and a sum without keepdims=True moves the others"
    )
    for order, how in permuted_axes(c.x.ndim).items():
        text = wrong_axis
        if c.x.size == c.y.size:
            text = f"transposed: the gradient is right, but {how}: transpose it back"
        yield text, c.R, c.J[:, columns.transpose(order).ravel()]
    for order in permuted_axes(c.y.ndim):
        text = "transposed: the VJP is right for g with its axes in another order"
        text = text if c.x.size == c.y.size else wrong_axis
        yield text, c.R, c.J[rows.transpose(order).ravel()]
    text = (
        "transposed: the VJP applies the function itself to g, not the transposed function: "
        "transpose the matrix (.mT), conjugate a complex factor (.conj()), sum from the other end, "
        "rotate back, or undo the permutation"
    )
    yield text, c.R, c.J.T


def permuted(c: Case) -> Finding:
    """Find a gradient that has the right numbers at other indices, or those of g."""
    random = np.random.default_rng(0).standard_normal
    for of, v, R, J in (("the gradient", c.x, c.R, c.J), ("g", c.y, c.R.T, c.J.T)):
        keys = random(len(R))
        came, right = (np.argsort(keys @ M, kind="stable") for M in (R, J))
        if close(R[:, came], J[:, right], c.rtol).all():
            moves = [
                f"{list(map(int, np.unravel_index(b, v.shape)))} for "
                f"{list(map(int, np.unravel_index(a, v.shape)))}"
                for a, b in sorted(zip(came, right))
                if (J[:, a] != J[:, b]).any()
            ]
            return (
                f"mask or index: {of} has the right numbers in another order: that of index "
                f"{', '.join(moves[:4])}{', ...' * (len(moves) > 4)}. Look for exchanged halves, "
                "or for a permutation that should be inverted (argsort)."
            )
    return None


def factors(c: Case) -> Iterator[Claim]:
    """Yield claims for a factor that appears in only one of R and J."""
    text = "wrong factor: the gradient is g itself: the op's own derivative is missing"
    yield text, c.R, c.in_J * 1.0
    yield "wrong axis: the gradient is the sum of g over all axes", c.R, np.ones(c.J.shape)
    if c.x.shape == c.y.shape and not c.mixes(c.in_J):
        first = c.in_J * (c.y / c.x).reshape(-1, 1)
        text = "wrong term: of the product rule, the gradient has only the term g y / x"
        yield text, c.R, first
        yield "wrong term: of the product rule, the term g y / x is missing", c.R, c.J - first
        yield "wrong term: all but the term g y / x has another factor", c.R - first, c.J - first
    known = [("x", c.x.reshape(1, -1)), ("y", c.y.reshape(-1, 1))]
    for k, a in c.operands.items():
        with suppress(ValueError):  # its shape does not fit
            known.append((f"{c.f.argument} {k}", np.broadcast_to(a, c.y.shape).reshape(-1, 1)))
    usable = [("1", np.ones((1, 1)))]
    usable += [(text.format(n), f(v)) for (n, v), (text, f) in product(known, MAPS.items())]
    for (name, v), (other, w) in permutations(usable, 2):
        yield (
            f"wrong factor: the gradient has a factor {name} where {other} belongs",
            c.R,
            c.J * v / w,
        )


def multiples(c: Case, *claims: Callable[[Case], Iterator[Claim]]) -> Finding:
    """Find the first claim whose first matrix is a multiple of its second."""
    for text, a, b in chain.from_iterable(claim(c) for claim in claims):
        if k := factor(a, b, c.rtol):
            return f"{text}." if abs(k - 1) <= c.rtol else f"{text}; times {k:.6g}."
    return None


def zeros(c: Case) -> Finding:
    """Find zeros at different elements of R and J, or sums over different axes."""
    extra, lost = c.in_R & ~c.in_J, c.in_J & ~c.in_R
    used, unused = c.in_J.any(axis=1), c.in_J.any(axis=1) & ~c.in_R.any(axis=1)
    if unused.any() and extra[used].any():
        return (
            "missed use: the incoming gradient is not used at "
            f"{places(unused.reshape(c.y.shape))}: another element of g may be read instead."
        )
    of_R, of_J = c.mixes(c.in_R), c.mixes(c.in_J)
    more = set(of_R) - set(of_J)
    if of_R != of_J and (more or not extra.any()):
        return (
            f"{'wrong axis' if more else 'missing sum'}: each output depends on the elements along "
            f"axes {of_J or 'none'}, but the VJP sums over axes {of_R or 'none'}."
        )
    others_off = (c.off & ~lost & ~extra).any()
    if extra.any() and not (lost.any() and others_off):
        return (
            f"mask or index: the slope is zero at {places(extra.any(axis=0).reshape(c.x.shape))} "
            "for some outputs, but the gradient is not. Use the mask or the indices of the forward "
            "pass (a causal mask, the index of the maximum, a shift, the inverse of argsort)."
        )
    if (c.in_R.any(axis=0) == c.in_J.any(axis=0)).all() and not others_off:
        return (
            "missed use: the contribution from the output at "
            f"{places(lost.any(axis=1).reshape(c.y.shape))} is missing. Look for a missing sum, a "
            "repeated index that overwrites (use np.add.at), or a loop that ends too early."
        )
    return None


def no_pattern(c: Case) -> str:
    """Report a small error, a missing sum over an axis, or else the largest error."""
    if (error := c.relative_error) < INEXACT:
        return (
            f"approximation: every derivative is nearly right, with relative errors of up to "
            f"{error:.1g}: the VJP may be that of an approximation (tanh for erf), or a constant "
            "is inexact."
        )
    if (axes := c.mixes(c.off)) and axes == c.mixes(c.in_J):
        return (
            f"missing sum: the error mixes elements along axes {axes}, so a term with a sum or "
            "mean over these axes is missing or wrong."
        )
    at = index_of_largest(np.abs(np.nan_to_num(c.R - c.J)))
    y, x = (list(map(int, np.unravel_index(k, v.shape))) for k, v in zip(at, (c.y, c.x)))
    return (
        f"VJP: no simple mistake explains the error. The derivative of y{y} with respect to x{x} "
        f"is {c.J[at]:.6g}, but the VJP gives {c.R[at]:.6g}."
    )


def of_elements(entry: Entry) -> str:
    """Explain a wrong gradient from its measured elements, without Jacobians."""
    R, J, at = entry.analytic.reshape(1, -1), entry.numeric.reshape(1, -1), entry.index
    return (
        simple(R, J, entry.analytic.shape)
        or at_some(R, J, entry.wrong)
        or f"VJP: the gradient is {entry.analytic[at]:.6g} at index {at}, but the slope is "
        f"{entry.numeric[at]:.6g}."
    )


def off_entries(f: Subject, limits: Limits = STRICT) -> list[Entry]:
    """Return the entries of the inputs, without results, if a gradient is wrong."""
    entries = all_entries(f, limits)[-len(f.names) :]
    return entries if any(e.wrong.any() for e in entries) else []


def wrong_slope(f) -> Finding:
    """Find a gradient of an op or a kernel that differs from the slope, and explain it."""
    note, entries = "", off_entries(f)
    for length in (5, 4) if entries else ():
        short = [
            a[(slice(length),) * a.ndim] if isinstance(a, np.ndarray) else a for a in f.operands
        ]
        with suppress(Exception):  # a setting may contain a size, or the size must be even
            shorter = f.replaced(short)
            if still_off := off_entries(shorter):
                if any(a.size < b.size for a, b in zip(shorter.inputs, f.inputs)):
                    note = f" (Its operands were cut to {length} elements along each axis.)"
                f, entries = shorter, still_off
                break
    if not (entry := worst_of(entries)):
        return None
    which = entries.index(entry)
    finding = of_elements(entry)
    if f.inputs[which].size * sum(v.size for v in f.values) <= LARGE:
        with suppress(Exception):  # f may refuse other values or another g
            finding = exchanged(f, which, entries) or of_jacobians(Case(f, which)) or finding
    if len(f.operands) > 1:
        finding += f" Look at its VJP for {f.names[which]}."
    return finding + note


def exchanged(f, which: int, entries: list[Entry]) -> Finding:
    """Find a gradient that is the right one of another input."""
    for name, e in zip(f.names, entries):
        if name != f.names[which] and agree(entries[which].analytic, e.numeric, RTOL, 1e-9):
            return f"wrong factor: the gradient is that of {name}: the two may be exchanged."
    return None


def explanations(c: Case) -> Iterator[Finding]:
    """Yield explanations, the simplest first."""
    yield inverted(c)
    yield simple(c.R, c.J, c.x.shape, c.rtol)
    yield multiples(c, matrix_products, other_operands, elsewhere, factors, moved)
    yield permuted(c)
    yield zeros(c)
    yield multiples(c, other_values)
    if c.relative_error >= INEXACT:
        yield at_some(c.R, c.J, c.off.any(axis=0).reshape(c.x.shape))
    yield no_pattern(c)


def of_jacobians(c: Case) -> str:
    """Explain the difference between R and J."""
    if close(c.R, c.J, 1e-3 * c.rtol).all():
        return ""
    return next(filter(None, explanations(c))) or ""
