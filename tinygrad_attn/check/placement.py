"""Right numbers in the wrong places: a map for its transpose, a permutation, a mask upside down, one index off."""

from __future__ import annotations

import numpy as np

from .diagnosis import FIT, Pattern, alike, apart, elements_off, same
from .report import Diagnosis


def adjoint(p: Pattern) -> Diagnosis | None:
    """The rule applies the function's own linear map where its transpose belongs: a rotation, a running sum, a permutation."""
    if (matrices := p.jacobians()) is None:
        return None
    by_rule, by_moving = matrices
    if (
        by_rule.shape[0] != by_rule.shape[1]
        or same(by_moving, by_moving.T)
        or not same(by_rule, by_moving.T)
    ):
        return None
    return Diagnosis(
        "transposed",
        "the rule does to g what the function does to the input. The gradient does the reverse, the transpose "
        "of that map: sums run from the other end, rotations turn back, permutations are undone, matrices are "
        "transposed (.mT).",
    )


def permuted(p: Pattern) -> Diagnosis | None:
    """The same numbers in another order."""
    scale = FIT * np.abs(p.n).max(initial=0)
    ordered = np.sort(p.n, axis=None)
    if (
        p.a.size < 4
        or np.ptp(p.n) <= scale
        or np.count_nonzero(np.diff(ordered) > scale) < p.a.size // 2
    ):
        return None  # too few different numbers for their order to mean anything
    off = elements_off(
        p
    )  # one alone cannot have changed places: its neighbour in size is merely near
    if off.sum() < 2 or apart(np.sort(p.a[off]), np.sort(p.n[off]), p.tolerance).any():
        return None
    return Diagnosis(
        "permuted",
        "the numbers are right but stand at the wrong elements: the order is not undone as it was made. Look at "
        "the indices, at argsort (its inverse is argsort of argsort), and at reshape where swapaxes belongs.",
    )


def off_by_one(p: Pattern) -> Diagnosis | None:
    """The same numbers a place or two further on, some lost at the edge."""
    for axis in range(p.a.ndim):
        size = p.a.shape[axis]
        for shift in (1, -1, 2, -2):
            if size - abs(shift) < 2:
                continue
            here = range(max(shift, 0), size + min(shift, 0))
            ours = p.a.take(here, axis)
            if not apart(ours, p.n.take(here, axis), p.tolerance).any():
                continue  # what is right in its place, and the same all along the axis
            right = p.n.take(range(max(-shift, 0), size + min(-shift, 0)), axis)
            varied = (
                2 * np.count_nonzero(right) > max(right.size, 2)
                and np.ptp(right) > FIT * np.abs(right).max()
            )
            if varied and alike(ours, right, p.tolerance):
                return Diagnosis(
                    "shifted",
                    f"the gradient is right but shifted by {shift} along axis {axis}: an index or the start of a "
                    f"slice is off by {abs(shift)}.",
                )
    return None


def mask_upside_down(p: Pattern) -> Diagnosis | None:
    """The gradient is zero where the slope is not, and the other way round."""
    scale = FIT * np.abs(p.n).max(initial=0)
    ours, right = np.abs(p.a) > scale, np.abs(p.n) > scale
    if right.all() or not right.any() or not ours.any() or p.a.size < 3:
        return None
    if np.array_equal(ours, ~right):
        return Diagnosis(
            "mask inverted",
            "the gradient is zero exactly where it should not be, and the other way round: the rule applies "
            "its mask or condition inverted.",
        )
    both = ours & right
    if (
        p.a.size > 4
        and (ours & ~right).any()
        and (~ours & right).any()
        and both.any()
        and same(p.a[both], p.n[both])
    ):
        return Diagnosis(
            "another mask",
            "the gradient is right at the elements where neither it nor the slope is zero, but it is zero "
            "at the wrong ones: the rule uses another mask, or other indices, than the forward pass. Save "
            "the mask (a dropout mask is drawn once) and use it in the rule.",
        )
    return None


def mask_missing(p: Pattern) -> Diagnosis | None:
    """One element along an axis, a maximum say, should get what all of them get."""
    nonzero = np.abs(p.n) > FIT * np.abs(p.n).max(initial=0)
    for axis in range(p.a.ndim):
        if (
            p.a.shape[axis] > 1
            and (nonzero.sum(axis) <= 1).all()
            and p.fits(np.broadcast_to(p.n.sum(axis, keepdims=True), p.a.shape))
        ):
            return Diagnosis(
                "mask missing",
                f"along axis {axis} only one element (the largest, or the one picked) should get a "
                "gradient, but the rule gives it to all of them: multiply by a mask of the chosen element.",
            )
    return None


def one_along_an_axis(p: Pattern) -> Diagnosis | None:
    """Of the contributions along one axis of the result, only one is counted, or one is left out."""
    if p.g is None or p.g.ndim < 1 or (matrices := p.jacobians()) is None:
        return None
    each = (matrices[1] * p.g.reshape(-1, 1)).reshape(*p.g.shape, *p.a.shape)
    for axis, size in enumerate(p.g.shape):
        if size < 2:
            continue
        others = tuple(k for k in range(p.g.ndim) if k != axis)
        parts = each.sum(axis=others)
        used = [
            k for k in range(size) if np.abs(parts[k]).max() > FIT * np.abs(parts).max(initial=0)
        ]
        overlap = sum((np.abs(parts[k]) > 0).astype(int) for k in used)
        if len(used) < 2 or np.max(overlap) < 2:
            continue  # each element of the input goes into one place only
        for k in used:
            which = "first" if k == 0 else "last" if k == size - 1 else f"number {k}"
            if p.fits(parts[k]):
                return Diagnosis(
                    "missing sum",
                    f"of {size} elements of the result along its axis {axis} only the {which} is counted: the "
                    "sum over that axis is missing, or each overwrites the one before.",
                )
            if len(used) > 2 and p.fits(p.n - parts[k]):
                return Diagnosis(
                    "missed use",
                    f"of {size} elements of the result along its axis {axis} the {which} is left out: a loop "
                    "or a slice that ends too early or starts too late.",
                )
    return None
