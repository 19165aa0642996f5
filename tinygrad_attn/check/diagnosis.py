"""From the pattern of a wrong gradient to the mistake behind it.

`a` is the gradient by the rules, `n` the numeric one.  Each function below tries one explanation and answers with a Diagnosis or None;
they are tried from the simplest on, and an explanation counts only if it fits to four digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .report import Diagnosis

FIT = 2e-4
"""Relative residual up to which two patterns count as the same."""


class Pattern(NamedTuple):
    """One wrong gradient, and means to ask further."""

    a: np.ndarray  # by the rules
    n: np.ndarray  # numeric
    g: np.ndarray | None  # cotangent, where there is one result
    y: np.ndarray | None  # that result
    x: np.ndarray
    others: dict[str, np.ndarray]  # further operands by name
    jacobians: Callable[
        [], tuple[np.ndarray, np.ndarray] | None
    ]  # (by the rules, numeric), (result, input), flattened
    elsewhere: Callable[
        [], list[tuple[np.ndarray, np.ndarray]]
    ]  # (a, n) at other values of the input
    tolerance: float  # errors up to here mean nothing
    at: list[tuple[int, ...]] | None = (
        None  # of a large input: the indices of the elements that a, n and x list; None: all
    )

    @property
    def everywhere(self) -> str:
        return (
            "everywhere"
            if self.at is None
            else f"at all {len(self.at)} elements that were measured"
        )

    def fits(self, other: np.ndarray) -> bool:
        """Do the rules give this, to the smallest element?  Where all but a few are right, the right gradient nearly fits as well."""
        return alike(self.a, other, self.tolerance)


def same(p: np.ndarray, q: np.ndarray) -> bool:
    """Equal to FIT of the larger norm."""
    if p.shape != q.shape or not (np.isfinite(p).all() and np.isfinite(q).all()):
        return False
    return bool(np.linalg.norm(p - q) <= FIT * max(np.linalg.norm(p), np.linalg.norm(q)))


def apart(p: np.ndarray, q: np.ndarray, tolerance: Any = 0.0) -> np.ndarray:
    """Where the two differ.  A small element is judged by its own size, as the check itself does: beside a large one any would pass."""
    size = np.abs(q).max(initial=0)
    return (
        np.abs(p - q) > np.minimum(FIT * size, 1e-3 * np.abs(q) + 1e-5 * min(1, size)) + tolerance
    )


def alike(p: np.ndarray, q: np.ndarray, tolerance: Any = 0.0) -> bool:
    """The same, and no element apart."""
    return same(p, q) and not apart(p, q, tolerance).any()


def not_finite(p: Pattern) -> Diagnosis | None:
    """The function leaves its domain a step away, or the rule gives NaN or Inf."""
    if not np.isfinite(p.n).all() and p.y is not None and not np.isfinite(p.y).all():
        return Diagnosis(
            "domain",
            "the result itself is NaN or Inf at these inputs, so there is no slope to compare with. Look for an "
            "overflow in exp, 0/0, a log or root outside its domain (ta.detect_anomaly() names the op), or choose "
            "other inputs.",
        )
    if not np.isfinite(p.n).all():
        return Diagnosis(
            "domain",
            "the function is not finite, or raises an error, a step to one side at "
            f"{_where(p, ~np.isfinite(p.n))}: the input lies on the edge of the domain (sqrt, log, arcsin). Check "
            "it at inner points, or with a smaller eps.",
        )
    if not np.isfinite(p.a).all():
        return Diagnosis(
            "nan",
            f"the rule gives NaN or Inf at {_where(p, ~np.isfinite(p.a))}, where the slope is finite. Look for 0/0, "
            "log 0 or 0 x inf in the rule; np.where does not help if the bad value is computed first.",
        )
    return None


def zero(p: Pattern) -> Diagnosis | None:
    """The rule gives nothing but zeros although the input matters."""
    if not p.a.any() and np.abs(p.n).max(initial=0) > p.tolerance:
        return Diagnosis(
            "zero",
            f"the gradient is zero {p.everywhere} although the function does depend on this input. The rule returns "
            "zeros, or there is None in its place, or the value went through detach(), .data, .numpy() or no_grad.",
        )
    return None


def numeric_zero(p: Pattern) -> Diagnosis | None:
    """The rule gives something although the input does not matter."""
    if np.abs(p.n).max(initial=0) <= p.tolerance:
        moves = (
            "this input moves"
            if p.at is None
            else f"any of the {len(p.at)} elements of this input that were tried moves"
        )
        return Diagnosis(
            "numeric zero",
            f"the function does not change at all when {moves} (a step function such as floor, round "
            "or a comparison, a value that is not used, that cancels out as in x - x, or is computed in "
            "float16), yet the rule gives a gradient.",
        )
    return None


def fit_factor(a: np.ndarray, n: np.ndarray, tolerance: Any) -> float | None:
    """c with a = c n to FIT, also at the small elements, if there is one that is neither 0 nor 1."""
    norm = float(np.sum(n * n))
    if not norm or not np.isfinite(a).all():
        return None
    factor = float(np.sum(a * n)) / norm
    return (
        factor
        if factor and abs(factor - 1) > 1e-5 and alike(a, factor * n, abs(factor) * tolerance)
        else None
    )


def _constant_axes(v: np.ndarray) -> set[int]:
    scale = FIT * np.abs(v).max(initial=0)
    return {k for k in range(v.ndim) if v.shape[k] > 1 and np.ptp(v, axis=k).max() <= scale}


def opposite_axis(p: Pattern) -> Diagnosis | None:
    """A gradient that should repeat along one axis repeats along another."""
    right, wrong = _constant_axes(p.n), _constant_axes(p.a)
    if right and wrong and not (right & wrong) and p.a.ndim > 1:
        return Diagnosis(
            "wrong axis",
            f"the gradient is spread (broadcast) along axis {_listed(wrong)} of the input, but it should be "
            "along axis "
            f"{_listed(right)}. Equal sizes hide it: the reduced axis must be put back (keepdims) before "
            "broadcasting.",
        )
    return None


def _in_other_orders(v: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """(axes, v with its axes in that order) for every other order that makes a difference."""
    orders = list(itertools.permutations(range(v.ndim)))[1:] if v.ndim <= 5 else []
    return [(axes, turned) for axes in orders if not same(turned := v.transpose(axes), v)]


def reshaped(p: Pattern) -> Diagnosis | None:
    """The right numbers in the order of other axes."""
    for axes, turned in _in_other_orders(p.n):
        if turned.shape != p.a.shape and p.fits(turned.reshape(p.a.shape)):
            return Diagnosis(
                "transposed",
                "the elements are right but in the wrong order: reshaped where the axes should be transposed "
                f"to {axes}.",
            )
    return None


def transposed(p: Pattern) -> Diagnosis | None:
    """The gradient holds the right numbers at other places: transposed, reversed, shifted."""
    for axes, turned in _in_other_orders(p.n):
        if (
            turned.shape == p.a.shape
            and (factor := 1.0 if p.fits(turned) else fit_factor(p.a, turned, p.tolerance))
            is not None
        ):
            which = (
                "transposed" if p.a.ndim == 2 else f"transposed: the axes are in the order {axes}"
            )
            besides = (
                "" if factor == 1 else f" (and is {factor:.6g} times what it should be besides)"
            )
            return Diagnosis(
                "transposed",
                f"the gradient is right but {which}{besides}. Equal sizes hide it from a shape check.",
            )
    for axis in range(p.a.ndim):
        if p.a.shape[axis] > 1 and p.fits(np.flip(p.n, axis)):
            return Diagnosis("reversed", f"the gradient is right but reversed along axis {axis}.")
        for shift in range(1, p.a.shape[axis]):
            if p.fits(np.roll(p.n, shift, axis)):
                shift -= p.a.shape[axis] * (2 * shift > p.a.shape[axis])
                return Diagnosis(
                    "shifted", f"the gradient is right but shifted by {shift} along axis {axis}."
                )
    return None


def sums_over_axes(p: Pattern) -> Diagnosis | None:
    """An operand that was broadcast: its gradient sums over the axes it was repeated along, and over no other."""
    for axis in range(p.n.ndim):
        for total, how in (
            (p.n.sum(axis, keepdims=True), "summed"),
            (p.n.mean(axis, keepdims=True), "averaged"),
        ):
            if p.n.shape[axis] > 1 and p.fits(np.broadcast_to(total, p.a.shape)):
                return Diagnosis(
                    "wrong axis",
                    f"the gradient is {how} over axis {axis} of the input and spread out again: a sum too "
                    "many, over an axis "
                    "along which it should vary, or a factor that sums to 1 (a softmax) is left out.",
                )
    if p.g is None or p.g.size <= p.x.size or (matrices := p.jacobians()) is None:
        return None
    per_result = (
        (matrices[1] * p.g.reshape(-1, 1)).sum(axis=1).reshape(p.g.shape)
    )  # what each element of the result contributes
    axes = range(p.g.ndim)
    for count in range(1, p.g.ndim + 1):
        for over in itertools.combinations(axes, count):
            total = per_result.sum(axis=over)
            if total.size == p.a.size and p.fits(total.reshape(p.a.shape)):
                return Diagnosis(
                    "wrong axis",
                    f"the gradient is summed over axis {_listed(over)} of the result, which is the wrong axis: "
                    f"an operand of shape {p.x.shape} broadcast to {p.g.shape} sums over the axes it was "
                    "repeated along.",
                )
            rows = np.moveaxis(per_result, over, range(len(over))).reshape(-1, *total.shape)
            for k, what in ((0, "first"), (len(rows) - 1, "last")):
                if rows[k].size == p.a.size and p.fits(rows[k].reshape(p.a.shape)):
                    return Diagnosis(
                        "missing sum",
                        f"the gradient counts only the {what} element along axis {_listed(over)} of the "
                        "result: the sum over "
                        "the broadcast axis is missing.",
                    )
    if p.fits(np.full(p.a.shape, per_result.sum())):
        return Diagnosis(
            "wrong axis",
            "every element has the sum over all axes of the result: the sum goes over too many axes.",
        )
    return None


def _even(v: np.ndarray) -> bool:
    """One number everywhere?"""
    return bool(np.ptp(v) <= FIT * np.abs(v).max())


def constant(p: Pattern) -> Diagnosis | None:
    """The gradient is one number everywhere where the slope is not, be it only a little way off, since all elements of x are equal."""
    if p.a.size < 3 or not _even(p.a):
        return None
    pairs = [(p.a, p.n), *p.elsewhere()]
    if not all(_even(a) for a, _ in pairs) or all(_even(n) for _, n in pairs):
        return None
    where = "at every element" if p.at is None else p.everywhere
    return Diagnosis(
        "constant",
        f"the gradient is {p.a.flat[0]:.6g} {where}: constant, where it should differ from element to element.",
    )


def lost_contributions(p: Pattern) -> Diagnosis | None:
    """Elements used several times (a repeated index) whose gradient holds only one of the contributions."""
    if p.g is None or (matrices := p.jacobians()) is None:
        return None
    each = matrices[1] * p.g.reshape(-1, 1)
    off = elements_off(p)
    kinds = set()
    for i in np.flatnonzero(off):
        parts = each[np.abs(each[:, i]) > 1e-6 * np.abs(each).max(), i]
        hits = np.flatnonzero(np.abs(parts - p.a.flat[i]) <= FIT * np.abs(parts))
        if len(parts) < 2 or not len(hits):
            return None
        kinds.add(
            "the last" if hits[-1] == len(parts) - 1 else "the first" if hits[0] == 0 else "one"
        )
    if not kinds or kinds == {"one"} and off.sum() == 1:
        return None  # any number may happen to be near one of many
    which = kinds.pop() if len(kinds) == 1 else "one"
    return Diagnosis(
        "repeated use",
        f"the input at {_where(p, off)} is used several times (a repeated index, or a reused value), but only "
        f"{which} contribution is counted: the others are missed. Either each overwrites the one "
        "before (use np.add.at, or +=), or a sum is missing.",
    )


def only_small_ones(p: Pattern) -> Diagnosis | None:
    """Right but for elements much smaller than the largest, which a comparison of all together would not show."""
    if not same(p.a, p.n):
        return None
    off = np.abs(p.a - p.n) > 1e-2 * np.maximum(np.abs(p.a), np.abs(p.n))
    return (
        Diagnosis(
            "some elements",
            f"the gradient is wrong only at {_where(p, off)}, whose gradients are small beside the largest one; "
            f"{_others(p)} are right.",
        )
        if off.any()
        else some_elements(p)
    )


def some_elements(p: Pattern) -> Diagnosis | None:
    """The gradient is right except at some elements, which it names."""
    off = elements_off(p)
    if not off.any() or off.all() or p.a.size < 3:
        return None
    a, n = p.a[off], p.n[off]
    factor = fit_factor(a, n, p.tolerance) if len(a) > 1 else None
    if not a.any():
        how = "is zero"
    elif factor is None:
        how = "is wrong"
    else:
        how = (
            "has the wrong sign"
            if abs(factor + 1) < 1e-3
            else f"is {factor:.6g} times what it should be"
        )
    right = ~off
    if p.at is None and right.sum() == 1 and right.flat[0]:
        return Diagnosis(
            "first element only", f"the gradient {how} everywhere except at the first element."
        )
    if off.mean() > 0.7 and (not _region(off) or how == "is wrong"):
        return None  # most elements, and nothing that they have in common
    return Diagnosis(
        "some elements", f"the gradient {how} only at {_where(p, off)}; {_others(p)} are right."
    )


@np.errstate(all="ignore")  # sqrt or exp of what these are not for
def missing_factor(p: Pattern) -> Diagnosis | None:
    """a / n is one of the quantities at hand, element by element."""
    if p.a.size < 2 or not p.n.all() or not p.a.all():
        return None
    known = {"x": p.x, "y": p.y, "g": p.g} | p.others
    for name, value in [(k, v) for k, v in known.items() if v is not None]:
        try:
            value = np.broadcast_to(value, p.a.shape)
        except ValueError:
            continue
        quantities = {
            name: value,
            f"{name}^2": value**2,
            f"(1 - {name})": 1 - value,
            f"(1 + {name})": 1 + value,
            f"(1 - {name}^2)": 1 - value**2,
            f"(1 + {name}^2)": 1 + value**2,
            f"cos {name}": np.cos(value),
            f"sin {name}": np.sin(value),
            f"exp {name}": np.exp(value),
            f"sqrt {name}": np.sqrt(value),
        }
        for text, q in quantities.items():
            if np.isfinite(q).all() and np.ptp(q) > 0:
                hidden = (p.n / p.a - 1) * q
                if (
                    np.ptp(hidden) <= 1e-2 * np.abs(hidden).max()
                    and 0 < abs(hidden.flat[0]) < 0.1 * np.abs(q).max() + 1e-2
                ):
                    return Diagnosis(
                        "hidden eps",
                        f"the rule divides by {text} + {hidden.mean():.3g} instead of {text} ({_is(name)}): a "
                        "hidden eps.",
                    )
                if fit_or_same(p.a, p.n * q, np.abs(q) * p.tolerance):
                    return Diagnosis(
                        "extra factor", f"the gradient has a factor {text} too many ({_is(name)})."
                    )
                if fit_or_same(p.a * q, p.n, p.tolerance):
                    return Diagnosis(
                        "missing factor",
                        f"the gradient lacks a factor {text} ({_is(name)}): the chain rule multiplies by "
                        "it.",
                    )
    return None


def coupling(p: Pattern) -> Diagnosis | None:
    """Which axes does the rule mix, and which does the function mix?  A sum inside the rule over the wrong axis shows here."""
    if p.y is None or p.y.shape != p.x.shape or p.x.ndim < 1 or (matrices := p.jacobians()) is None:
        return None
    by_rule, by_moving = (mixed_axes(m, p.x.shape) for m in matrices)
    if by_rule == by_moving:
        return None
    counted = _depends(matrices[0])
    if by_rule < by_moving:
        left_out = _listed(by_moving - by_rule)
        if not same(
            *(m[counted] for m in matrices)
        ):  # what the rule does count is not right either
            return Diagnosis(
                "missing sum",
                f"results depend on other elements along axis {left_out} as well, but the rule treats them "
                "separately: perhaps a sum over that axis is missing.",
            )
        return Diagnosis(
            "missing sum",
            f"each result depends on all elements along axis {left_out}, but the rule treats them separately: "
            "a sum over that axis is missing.",
        )
    if counted.sum(axis=0).max() < 2:
        return None  # one element of g for each of the input is no sum
    mixes = f"elements along axis {_listed(by_moving)} only" if by_moving else "no elements"
    return Diagnosis(
        "wrong axis",
        f"the rule sums over axis {_listed(by_rule)}, but the function mixes {mixes}: a sum over the wrong "
        "axis.",
    )


def _depends(matrix: np.ndarray) -> np.ndarray:
    """Which entries of a Jacobian are not zero."""
    return np.abs(matrix) > 1e-6 * np.abs(matrix).max()


def mixed_axes(matrix: np.ndarray, shape: tuple[int, ...]) -> set[int]:
    """Along which axes do results depend on other elements than their own?"""
    results, inputs = np.nonzero(_depends(matrix))
    differ = np.array(np.unravel_index(results, shape)) != np.array(np.unravel_index(inputs, shape))
    return {axis for axis in range(len(shape)) if differ[axis].any()}


def missing_term(p: Pattern) -> Diagnosis | None:
    """The error is constant, or proportional to x or y, along an axis: a sum over that axis was left out."""
    if _even(p.a) and _even(p.n):
        return None  # as where all elements of x are equal: then every error is constant
    rest, one = p.a - p.n, np.ones(p.a.shape)
    bases: dict[str, list[Any]] = {
        "constant": [one],
        "proportional to y": [p.y],
        "proportional to x": [p.x],
        "a straight line in x": [p.x, one],
    }
    bases = {
        name: basis
        for name, basis in bases.items()
        if all(b is not None and b.shape == rest.shape for b in basis)
    }
    for axis, size in enumerate(rest.shape):
        lines, slopes, off = (
            np.moveaxis(v, axis, -1).reshape(-1, size) for v in (rest, p.n, elements_off(p))
        )
        if (slopes.any(axis=1) & ~off.any(axis=1)).any():
            continue  # a line that is right lacks no term
        for name, basis in bases.items():
            columns = np.moveaxis(np.stack(basis, -1), axis, -2).reshape(-1, size, len(basis))
            if columns.any(axis=2).sum(axis=1).min(initial=size) < len(basis) + 2:
                continue  # as many unknowns as elements fit anything
            fit = np.array(
                [c @ np.linalg.lstsq(c, line, rcond=None)[0] for line, c in zip(lines, columns)]
            )
            if apart(slopes + lines, slopes + fit, p.tolerance).any():
                continue
            if np.linalg.norm(lines - fit) <= 10 * FIT * np.linalg.norm(rest):
                return Diagnosis(
                    "missing sum",
                    f"the error is {name} along axis {axis}: a term that holds a sum (or mean) over axis "
                    f"{axis} is missing or scaled wrongly.",
                )
    return None


def fit_or_same(p: np.ndarray, q: np.ndarray, tolerance: Any) -> bool:
    """Are the two equal, or one a constant times the other?"""
    return alike(p, q, tolerance) or fit_factor(p, q, tolerance) is not None and p.size > 2


def _is(name: str) -> str:
    known = {
        "x": "x is the operand whose gradient this is",
        "y": "y is the op's result",
        "g": "g is the incoming gradient",
    }
    return known.get(name, f"{name} is an operand of the op")


def elements_off(p: Pattern) -> np.ndarray:
    """Where rule and slope differ by more than may be."""
    return apart(p.a, p.n, p.tolerance)


def _listed(axes: Any) -> str:
    return ", ".join(map(str, sorted(axes)))


def _region(mask: np.ndarray) -> str | None:
    """Words for a set of elements that is a band across one axis, a triangle or the diagonal."""
    for axis in range(mask.ndim):
        others = tuple(k for k in range(mask.ndim) if k != axis)
        some, every = np.asarray(mask.any(axis=others)), np.asarray(mask.all(axis=others))
        if mask.ndim > 1 and np.array_equal(some, every) and 0 < some.sum() < len(some):
            return f"{_numbers(np.flatnonzero(some))} along axis {axis}"
    if mask.ndim == 2 and len(mask) > 2:  # of 2 x 2 a triangle is one element
        lower = np.tri(
            len(mask), dtype=bool
        )  # with the diagonal; a triangle is told the same with it and without
        regions = {
            "the diagonal": [lower & lower.T],
            "the upper triangle": [lower.T, ~lower],
            "the lower triangle": [lower, ~lower.T],
        }
        return next(
            (
                words
                for words, masks in regions.items()
                if any(np.array_equal(mask, m) for m in masks)
            ),
            None,
        )
    return None


def _numbers(which: np.ndarray) -> str:
    return (
        ("index " if len(which) == 1 else "indices ")
        + ", ".join(map(str, which[:6]))
        + (", ..." if len(which) > 6 else "")
    )


def _others(p: Pattern) -> str:
    return (
        "the others"
        if p.at is None
        else f"the others of the {len(p.at)} elements that were measured"
    )


def _where(p: Pattern, mask: np.ndarray) -> str:
    """The elements of a mask in words."""
    if p.at is None and (region := _region(mask)) is not None:
        return region
    listed = [
        tuple(int(i) for i in index)
        for index in (np.argwhere(mask) if p.at is None else np.array(p.at)[mask])
    ]
    if all(len(index) == 1 for index in listed):
        return _numbers(np.array([index[0] for index in listed]))
    return (
        ("index " if len(listed) == 1 else "indices ")
        + ", ".join(map(str, listed[:4]))
        + (", ..." if len(listed) > 4 else "")
    )
