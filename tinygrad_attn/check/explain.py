"""Explain a wrong VJP: try ideas of mistakes, the simplest first, and report the first that fits.

R is the Jacobian from the VJP, and J is the right one. Both have the shape (elements of the output
y, elements of the input x). An idea says what R would be if a certain mistake were made, for
example J with its axes swapped. If no idea fits, the zeros of R and J may show a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, permutations, product
from typing import Any

import numpy as np

from .measure import STRICT, Limits, all_entries
from .report import (
    Array,
    Entry,
    agree,
    greatest,
    index_of_largest,
    near,
    wrong_among,
)
from .steps import Steps, steps_of, wrong_number, wrong_value
from .subject import Subject, flatten
from .values import MAPS, names_of, rearrangements, special_values

Finding = str | None  # the kind of a mistake, a colon and an explanation
RTOL = 1e-3
INEXACT = 0.05  # the largest relative error of an approximation
LARGE = 70_000  # elements of the largest Jacobian that is computed


def close(a, b, rtol: float = RTOL):
    """Return a mask of where two Jacobians agree up to the error of finite differences."""
    column = np.abs(b).max(axis=0, initial=0)
    return near(a, b, rtol, rtol / 100 * column + 1e-6 * rtol * greatest(b))


def factor(a, b, rtol: float = RTOL) -> float:
    """Return the number c for which a = c b, or 0 if there is none."""
    if a.shape != b.shape:
        return 0.0
    both, of_a, of_b = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    parallel = np.abs(both) > 0.9 * np.sqrt(of_a) * np.sqrt(of_b)  # or else it is no multiple
    c = float(both / of_b) if parallel else 0.0
    return c if c and np.isfinite(c) and close(a, c * b, rtol).all() else 0.0


class Case:
    """An input x of a function, the output y, R and J, and where R and J are nonzero."""

    def __init__(self, f, which: int) -> None:
        self.f, self.which, self.own, self.x = f, which, f.checked[which], f.inputs[which]
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
        self.axes_of_R, self.axes_of_J = self.mixes(self.in_R), self.mixes(self.in_J)
        named = zip(names_of(f.operands, f.argument), enumerate(f.operands))
        self.arrays = {name: (k, a) for name, (k, a) in named if isinstance(a, Array)}
        self.operands = {n: (k, a) for n, (k, a) in self.arrays.items() if a.dtype.kind == "f"}

    @cached_property
    def steps(self) -> Steps | None:
        return steps_of(self.f, self.which)

    def mixes(self, nonzero) -> list[int]:
        """Return the axes along which an output depends on elements at other indices."""
        if self.x.shape != self.y.shape:
            return []
        here, there = (np.unravel_index(k, self.x.shape) for k in np.nonzero(nonzero))
        return [k for k, (a, b) in enumerate(zip(here, there)) if (a != b).any()]

    def multiple(self, text: str, b, a=None) -> Finding:
        """Return the text if R, or another matrix a, is a multiple of b."""
        if k := factor(self.R if a is None else a, b, self.rtol):
            return f"{text}." if abs(k - 1) <= self.rtol else f"{text}; times {k:.6g}."
        return None

    def products(self, f, R=None):
        """Return R, or f's own, and f's right Jacobian, each times a random vector."""
        if f.reference is None:
            direction = np.random.default_rng(0).standard_normal(self.x.shape)
            R = f.jacobian_by_vjps(self.which) if R is None else R
            return R @ direction.ravel(), f.derivative(self.which, direction)[0]
        g = self.f.cotangents
        came = np.ravel(f.pull(g)[self.which]) if R is None else flatten(g) @ R
        return came, np.ravel(f.reference.pull(g)[self.which])

    def right_for(self, text: str, values: dict) -> Finding:
        """Return the text if R is a multiple of the right Jacobian at other operands."""
        with suppress(Exception):  # f may refuse them
            f = self.at(values)
            came, right = self.products(f, self.R)
            if factor(came[None], right[None], 4 * self.rtol):
                return self.multiple(text, f.jacobian(self.which))
        return None

    def right_only_for(self, values: dict) -> bool:
        """Return whether the VJP is right at these operands, and wrong at others nearby."""
        nearby = lambda v: v * np.linspace(1, 1.2, v.size).reshape(v.shape) + 0.1
        right = []
        with suppress(Exception):  # f may refuse them
            for change in (np.positive, nearby):
                f = self.at({k: change(v) for k, v in values.items()})
                a, b = self.products(f)
                right.append(b.any() and agree(a, b, self.rtol, self.rtol / 10 * greatest(a)))
        return right == [True, False]

    def factors(self):
        """Return common factors of the rows or columns of a Jacobian, made of operands and y."""
        known = []
        for name, (_, a) in (self.operands | {"y": (None, self.y)}).items():
            for v, shape in ((self.y, (-1, 1)), (self.x, (1, -1))):
                with suppress(ValueError):  # its shape does not fit
                    known.append((name, np.broadcast_to(a, v.shape).reshape(shape)))
        return [(text.format(name), f(v)) for text, f in MAPS.items() for name, v in known]

    def at(self, values: dict):
        """Return the function with other values of some operands."""
        return self.f.replaced([values.get(k, a) for k, a in enumerate(self.f.operands)])


def places(mask: Array) -> str:
    """Write the first indices at which a mask is True, or the first rows or columns."""
    for axis in range(mask.ndim if mask.ndim > 1 and mask.any() else 0):
        rest = tuple(k for k in range(mask.ndim) if k != axis)
        line = mask.any(axis=rest, keepdims=True)
        if (mask == line).all() and not line.all():
            before, after = ":, " * axis, ", :" * (mask.ndim - 1 - axis)
            at = [f"[{before}{k}{after}]" for k in np.flatnonzero(line)]
            break
    else:
        at = [str(i) for i in np.argwhere(mask).tolist()]
    return f"index {', '.join(at[:4])}{', ...' * (len(at) > 4)}"


def index(flat, a: Array) -> list[int]:
    """Return the index of an element of a flattened array."""
    return list(map(int, np.unravel_index(flat, a.shape)))


# ---- ideas of mistakes, each of which yields findings


def simple(R, J, shape: tuple[int, ...], rtol: float = RTOL) -> Finding:
    """Find NaN, zeros or a constant factor. J is NaN at elements that were not measured."""
    finite, known = np.isfinite(R).all(axis=0), ~np.isnan(J).any(axis=0)
    if not finite.all():
        return (
            f"nan: the VJP gives NaN or Inf at {places(~finite.reshape(shape))}, where the slope "
            "is finite. Look for 0/0, log 0 or 0 x inf, and apply np.where before it, not after it."
        )
    if not R[:, known].any():
        return (
            "zero: the gradient is zero everywhere, but the function depends on this input. The "
            "VJP returns zeros or is None, or the value left the graph (detach(), .data, .numpy())."
        )
    c = factor(R[:, known], J[:, known], rtol)
    if c and abs(c - 1) > rtol:
        return f"constant factor: the gradient is {c:.6g} times what it should be."
    return None


def constant_factor(c: Case):
    """Find NaN, zeros or a constant factor, or a gradient exactly where the slope is zero."""
    for_R, for_J = (c.in_R | np.isnan(c.R)).any(axis=0), c.in_J.any(axis=0)
    if for_R.any() and for_J.any() and not (for_R & for_J).any():
        yield (
            f"mask or index: the mask is upside down: the slope is zero at "
            f"{places(for_R.reshape(c.x.shape))}, and just there the gradient is not."
        )
    yield simple(c.R, c.J, c.x.shape, c.rtol)


def wrong_order(c: Case):
    """Find a gradient that is the product of g and an operand, but in the other order."""
    g = c.f.cotangents[0]
    known = {"g": g} | {name: a for name, (_, a) in c.operands.items() if a.ndim > 1}
    known |= {f"({name}).mT": np.swapaxes(a, -1, -2) for name, a in known.items() if a.ndim > 1}
    is_product = lambda M, a, b: agree(
        np.ravel(a @ b), np.ravel(g) @ M, c.rtol, c.rtol * greatest(g)
    )
    for (left, a), (right, b) in permutations(known.items(), 2):
        with suppress(ValueError):  # the shapes do not fit
            if is_product(c.R, a, b) and is_product(c.J, b, a):
                yield (
                    f"wrong order: the gradient is {left} @ {right}, but should be {right} @ "
                    f"{left}."
                )


def of_another_input(c: Case):
    """Find a gradient that is that of another input, or -1 times that."""
    for k, name in enumerate(c.f.names):
        if k != c.which and c.f.inputs[k].shape == c.x.shape:
            times = factor(c.R, c.f.jacobian(k), c.rtol)
            if abs(abs(times) - 1) <= c.rtol:
                of = " times -1" * (times < 0)
                yield f"wrong factor: the gradient is that of {name}{of}: the two may be exchanged."


def rearranged(c: Case):
    """Find a VJP that is right for an operand, g or gradient with elements at other indices."""
    columns, rows = (np.arange(v.size).reshape(v.shape) for v in (c.x, c.y))
    same_size, alike = c.x.size == c.y.size, dict[Any, list[str]]()
    for name, (k, a) in c.arrays.items():  # of one shape, as sines and cosines of a rotation
        alike.setdefault((a.shape, a.dtype, k == c.own), []).append(name)
    for names in [*([name] for name in c.arrays), *(n for n in alike.values() if len(n) > 1)]:
        values = dict(c.arrays[name] for name in names)
        for kind, how, change, _ in rearrangements(c.arrays[names[0]][1]):
            if c.own not in values or kind == "transposed":
                text = f"{kind}: the VJP is right for {' and '.join(names)} {how}"
                yield c.right_for(text, {k: change(a) for k, a in values.items()})
    for kind, how, change, inside in rearrangements(c.x):
        text = f"{kind}: the gradient is right, but {how}{HINTS[kind]}"
        text = text if c.y.size >= c.x.size or kind != "transposed" else WRONG_AXIS
        inside = inside.ravel()
        yield c.multiple(text, c.J[:, change(columns).ravel()][:, inside], c.R[:, inside])
    for kind, how, change, _ in rearrangements(c.y):
        text = f"{kind}: the VJP is right for g {how}" if same_size else WRONG_AXIS
        if kind == "transposed":
            yield c.multiple(text, c.J[change(rows).ravel()])


WRONG_AXIS = (
    "wrong axis: the gradient is summed over, or spread along, the wrong axis. Broadcasting "
    "matches axes from the right, and a sum without keepdims=True moves the others"
)
HINTS = {
    "transposed": ": transpose it back",
    "reversed": "",
    "shifted by one": ": look for an index that is off by one, or a sum that leaves out its own "
    "element",
}


def permuted(c: Case):
    """Find a gradient that has the right numbers at other indices."""
    came, right = (np.argsort(flatten(c.f.cotangents) @ M, kind="stable") for M in (c.R, c.J))
    if close(c.R[:, came], c.J[:, right], c.rtol).all():
        pairs = [pair for pair in sorted(zip(came, right)) if np.ptp(c.J[:, pair], axis=1).any()]
        moves = ", ".join(f"{index(b, c.x)} for {index(a, c.x)}" for a, b in pairs[:4])
        yield moves and (
            f"mask or index: the gradient has the right numbers in another order: that of index "
            f"{moves}{', ...' * (len(pairs) > 4)}. Look for exchanged halves, or for a permutation "
            "that should be inverted (argsort)."
        )


def product_rule(c: Case):
    """Find a term of the derivative of y = x h(x), which is h + x h', with h = y / x."""
    if c.x.shape == c.y.shape and not c.axes_of_J:
        first = c.in_J * (c.y / c.x).reshape(-1, 1)
        yield c.multiple("wrong term: of the product rule, there is only the term g y / x", first)
        yield c.multiple(
            "wrong term: of the product rule, the term g y / x is missing", c.J - first
        )
        text = "wrong term: all but the term g y / x of the product rule has another factor"
        yield c.multiple(text, c.J - first, c.R - first)


def wrong_factor(c: Case):
    """Find a factor that appears in only one of R and J, or of their terms with a sum."""
    yield c.multiple(
        "wrong factor: the gradient is g itself: the op's own derivative is missing", c.in_J * 1.0
    )
    yield c.multiple("wrong axis: the gradient is the sum of g over all axes", np.ones(c.J.shape))
    usable = [("1", np.ones((1, 1))), *c.factors()]
    pairs = sorted(permutations(range(len(usable)), 2), key=max)
    terms, mixing = [("", c.J, c.R)], np.eye(*c.J.shape) == 0
    if c.axes_of_J and (c.off & mixing).any():
        inside = f", in the term with the sum over axes {c.axes_of_J}"
        terms.append((inside, mixing * c.J, mixing * c.R))
    for (inside, J, R), (i, j) in product(terms, pairs):
        (name, v), (other, w) = usable[i], usable[j]
        text = (
            f"wrong factor: the gradient has a factor {name} too many, or lacks a division by "
            f"{name}"
        )
        if name == "1":
            text = (
                f"wrong factor: the gradient lacks a factor {other}, or is divided by {other} "
                "once too often"
            )
        elif other != "1":
            text = (
                f"wrong factor: the gradient has a factor {name} / {other} too many: {name} where "
                f"{other} belongs, or a division by {other} where one by {name} belongs"
            )
        if name != other:
            yield c.multiple(text + inside, J * v / w, R)


def transposed_function(c: Case):
    """Find a VJP that multiplies g by the Jacobian that is not transposed, or has its zeros."""
    text = (
        "transposed: the VJP applies the function itself to g, not the transposed function: "
        "transpose the matrix (.mT), conjugate a complex factor (.conj()), sum from the other "
        "end, rotate back, or undo the permutation"
    )
    yield c.multiple(text, c.J.T)
    if np.array_equal(c.in_R, c.in_J.T) and not np.array_equal(c.in_R, c.in_J):
        yield f"{text}."


def step(c: Case):
    """Find a step of the function whose gradient is missing, or counted more than once."""
    mixes = c.axes_of_R != c.axes_of_J or c.mixes(c.off)
    yield c.steps and wrong_number(c.steps, "missing sum" if mixes else "wrong term")


def wrong_formula(c: Case):
    """Find a step with a wrong factor, transposed and so on, or two with wrong numbers."""
    yield c.steps and (wrong_value(c.steps) or wrong_number(c.steps, weights=2))


def special_value(c: Case, of_kind: str = "wrong value"):
    """Find a VJP that is right only for special operands."""
    elementwise = c.x.shape == c.y.shape and not c.axes_of_J
    for kind, values, what, why in special_values(c.operands, c.own, elementwise):
        if kind == of_kind and c.right_only_for(values):
            yield f"{kind}: the VJP is right if {what}, and wrong for other values: {why}."


def g_times(c: Case):
    """Find a gradient that is g times a known value."""
    for name, v in c.factors():
        yield c.multiple(
            f"wrong factor: the gradient is g times {name}, which is not the derivative", c.in_J * v
        )


# ---- patterns of zeros and errors


def zeros(c: Case):
    """Find zeros at different elements of R and J."""
    extra, lost = c.in_R & ~c.in_J, c.in_J & ~c.in_R
    used = c.in_J.any(axis=1)
    unused = used & ~c.in_R.any(axis=1)
    if unused.any() and extra[used].any():
        yield (
            f"missed use: the incoming gradient is not used at {places(unused.reshape(c.y.shape))}:"
            " another element of g may be read instead."
        )
    too_many = set(c.axes_of_R) - set(c.axes_of_J)
    if too_many or c.axes_of_R != c.axes_of_J and not extra.any():
        yield (
            f"{'wrong axis' if too_many else 'missing sum'}: each output depends on the elements "
            f"along axes {c.axes_of_J or 'none'}, but the VJP sums over axes "
            f"{c.axes_of_R or 'none'}."
        )
    others_off = (c.off & ~lost & ~extra).any()
    if extra.any() and not (lost.any() and others_off):
        yield (
            f"mask or index: the slope is zero at {places(extra.any(axis=0).reshape(c.x.shape))} "
            "for some outputs, but the gradient is not. Use the mask or the indices of the forward "
            "pass (a causal mask, the index of the maximum, a shift, the inverse of argsort)."
        )
    if (lost.any(axis=0) & c.in_R.any(axis=0)).any() and not others_off:
        where, cause = "the same index", "a mask or a sum without its diagonal"
        if not np.array_equal(lost, np.eye(*lost.shape)):
            where, cause = places(lost.any(axis=1).reshape(c.y.shape)), OVERWRITTEN
        yield (
            f"missed use: the contribution from the output at {where} is missing. Look for {cause}."
        )


OVERWRITTEN = (
    "a missing sum, a repeated index that overwrites (use np.add.at), or a loop that ends too early"
)


def mixing(c: Case):
    """Find an error that mixes elements."""
    if (axes := c.mixes(c.off)) and axes == c.axes_of_J:
        yield (
            f"VJP: the error mixes elements along axes {axes}, so a term with a sum or mean over "
            "these axes is missing or has a wrong factor."
        )


def at_some(R, J, bad) -> Finding:
    """Name the elements with a wrong gradient if most are right."""
    off, known = bad.ravel(), ~np.isnan(J).any(axis=0)
    if off.sum() > 0.7 * known.sum() and R[:, off].any():
        return None
    if off.any() and not R[:, off].any():
        return f"some elements: the gradient is zero at {places(bad)}, where the slope is not."
    return f"some elements: the gradient is wrong at {places(bad)}, and right elsewhere."


def approximation(c: Case):
    """Find derivatives that are all nearly right."""
    errors, sizes = (np.abs(M).max(axis=0, initial=0) for M in (c.R - c.J, c.J))
    if (error := greatest(errors / (sizes + 1e-300))) < INEXACT:
        yield (
            f"approximation: every derivative is nearly right, with relative errors of up to "
            f"{error:.1g}: the VJP may be that of an approximation (tanh for erf), a constant is "
            "inexact, or a sum is kept in a lower precision."
        )


def some(c: Case):
    """Name the elements with a wrong gradient if most are right."""
    yield at_some(c.R, c.J, c.off.any(axis=0).reshape(c.x.shape))


def largest_error(c: Case):
    """Name the largest error, and the outputs with an error if most are right."""
    at = index_of_largest(np.abs(np.nan_to_num(c.R - c.J)))
    y, x = map(index, at, (c.y, c.x))
    outputs = c.off.any(axis=1).reshape(c.y.shape)
    few = bool(outputs.mean() <= 0.7)
    yield (
        f"VJP: no simple mistake explains the error. The derivative of y{y} with respect to x{x} "
        f"is {c.J[at]:.6g}, but the VJP gives {c.R[at]:.6g}."
        + f" Only the derivatives of y at {places(outputs)} are wrong."
        * few
    )


IDEAS: list[Callable[[Case], Iterator[Finding]]] = [
    constant_factor, of_another_input, wrong_order, rearranged, step, wrong_factor, product_rule,
    wrong_formula, partial(special_value, of_kind="operand misplaced"), transposed_function,
    permuted, zeros, approximation, special_value, some, mixing, g_times, largest_error,
]  # fmt: skip


def of_elements(entry: Entry, kind: str = "VJP") -> str:
    """Explain a wrong gradient from its measured elements, without Jacobians."""
    R, J, at = entry.analytic.reshape(1, -1), entry.numeric.reshape(1, -1), entry.index
    return (
        simple(R, J, entry.analytic.shape)
        or at_some(R, J, entry.wrong)
        or f"{kind}: the gradient is {entry.analytic[at]:.6g} at index {at}, but the slope is "
        f"{entry.numeric[at]:.6g}."
    )


def of_jacobians(f, which: int) -> Finding:
    """Explain the difference between R and J. If they are large, they are not computed."""
    with suppress(Exception):  # f may refuse other values or another g
        if f.inputs[which].size * sum(v.size for v in f.values) > LARGE:
            return wrong_number(steps) if (steps := steps_of(f, which)) else None
        c = Case(f, which)
        if not close(c.R, c.J, 1e-3 * c.rtol).all():
            return next(filter(None, chain.from_iterable(idea(c) for idea in IDEAS)))
    return None


def off_entries(f: Subject, limits: Limits = STRICT) -> list[Entry]:
    """Return the entries of the inputs, without results, if a gradient is wrong."""
    entries = all_entries(f, limits)[-len(f.names) :]
    return entries if wrong_among(entries) else []


def wrong_slope(f, suspect: str = "") -> Finding:
    """Find gradients of an op or a kernel that differ from the slope, and explain them.

    If several are wrong, that of the input `suspect` is explained, or else the worst. If its
    mistake has no name, the next one that has a name is added.
    """
    note, entries, names = "", off_entries(f), f.names
    for length in (5, 4) if entries else ():
        short = [a[(slice(length),) * a.ndim] if isinstance(a, Array) else a for a in f.operands]
        with suppress(Exception):  # a setting may contain a size, or the size must be even
            shorter = f.replaced(short)
            if still_off := off_entries(shorter):
                if any(a.size < b.size for a, b in zip(shorter.inputs, f.inputs)):
                    note = f" (Its operands were cut to {length} elements along each axis.)"
                f, entries = shorter, still_off
                break
    inputs = [n.replace("operand", "input").rpartition(", which is ")[2] for n in names]
    wrong, findings = [k for k, e in enumerate(entries) if e.wrong.any()], list[str]()
    for k in sorted(wrong, key=lambda k: (inputs[k] != suspect, -greatest(entries[k].error))):
        findings.append(of_jacobians(f, k) or of_elements(entries[k]))
        findings[-1] += f" Look at its VJP for {names[k]}." * (len(f.operands) > 1)
        if not findings[-1].startswith(("VJP", "some elements")):
            del findings[1:-1]
            break
    else:
        del findings[1:]
    return " ".join(findings) + note if findings else None
