"""Right numbers in the wrong places: axes, orders, masks, indices; and sums over the wrong ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..report import greatest
from .pattern import (
    FIT,
    Found,
    Pattern,
    alike,
    apart,
    depends,
    even,
    listed,
    mixed_axes,
    region,
    same,
    times,
)


def _long_axes(v: np.ndarray) -> list[int]:
    return [axis for axis in range(v.ndim) if v.shape[axis] > 1]


def _scale(p: Pattern) -> float:
    return FIT * greatest(p.n)


# ---- some elements only


def nearly_right(p: Pattern) -> Found:
    """Nearly all is right: what explains the whole is not asked first."""
    return some_elements(p) if same(p.a, p.n) else None


def some_elements(p: Pattern) -> Found:
    """The gradient is right except at some elements."""
    off = p.off
    if not off.any() or p.a.size < 3:
        return None
    how = _how(p)
    if off.mean() > 0.7 and (not region(off) or how == "is wrong"):
        return None  # most elements, and nothing that they have in common
    return {"how": how, "where": p.where(off), "rest": p.rest}


def first_element_only(p: Pattern) -> Found:
    """Only the first element has its gradient."""
    others = p.a.size >= 3 and (~p.off).sum() == 1 and not p.off.flat[0]
    return {"how": _how(p)} if others else None


def _how(p: Pattern) -> str:
    """What is wrong with the elements that are off."""
    a, n = p.a[p.off], p.n[p.off]
    c = p.factor(a, n) if len(a) > 1 else None
    if not a.any():
        return "is zero"
    if c is None:
        return "is wrong"
    return "has the wrong sign" if abs(c + 1) < 1e-3 else f"is {c:.6g} times what it should be"


# ---- axes


def _constant_axes(v: np.ndarray) -> set[int]:
    scale = FIT * greatest(v)
    return {k for k in _long_axes(v) if np.ptp(v, axis=k).max() <= scale}


def opposite_axis(p: Pattern) -> Found:
    """A gradient that should repeat along one axis repeats along another."""
    right, wrong = _constant_axes(p.n), _constant_axes(p.a)
    if right and wrong and not (right & wrong):
        return {"wrong": listed(wrong), "right": listed(right)}
    return None


def summed_and_spread(p: Pattern) -> Found:
    """Each element has the sum, or the mean, of the right gradient along an axis."""
    for axis in _long_axes(p.n):
        for total, how in ((p.n.sum(axis), "summed"), (p.n.mean(axis), "averaged")):
            if p.fits(np.broadcast_to(np.expand_dims(total, axis), p.a.shape)):
                return {"how": how, "axis": axis}
    return None


def _sums(p: Pattern) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """(axes of the result, its contributions with these in front), for a broadcast operand."""
    if p.g.size <= p.x.size:
        return
    each = p.per_result.sum(axis=1).reshape(p.g.shape)
    for count in range(1, p.g.ndim + 1):
        for over in itertools.combinations(range(p.g.ndim), count):
            rest = [n for k, n in enumerate(p.g.shape) if k not in over]
            rows = np.moveaxis(each, over, range(count)).reshape(-1, *rest)
            if rows[0].size == p.a.size:
                yield over, rows


def sum_over_the_wrong_axis(p: Pattern) -> Found:
    """The gradients of a broadcast input's copies, summed over another axis."""
    for over, rows in _sums(p):
        if p.fits(rows.sum(axis=0).reshape(p.a.shape)):
            return {"over": listed(over), "x": p.x.shape, "g": np.shape(p.g)}
    return None


def sum_over_everything(p: Pattern) -> Found:
    """A broadcast input has the sum over all of g in each element."""
    broadcast = p.g.size > p.x.size
    return {} if broadcast and p.fits(np.full(p.a.shape, p.per_result.sum())) else None


def _mixed(p: Pattern) -> tuple[set[int], set[int]]:
    """Along which axes the rule mixes elements, and along which the function does."""
    if p.y is None or p.y.shape != p.x.shape or p.x.ndim < 1:
        return set(), set()
    by_rule, by_moving = p.jacobians  # type: ignore[misc]
    return mixed_axes(by_rule, p.x.shape), mixed_axes(by_moving, p.x.shape)


def axis_not_mixed(p: Pattern) -> Found:
    """The function mixes elements along an axis along which the rule does not."""
    by_rule, by_moving = _mixed(p)
    if not by_rule < by_moving:
        return None
    counted = depends(p.jacobians[0])  # type: ignore[index]
    rest_is_right = same(*(m[counted] for m in p.jacobians))  # type: ignore[union-attr]
    how = (
        "each result depends on all elements along axis {0}, but the rule treats them separately: "
        "a sum over that axis is missing"
        if rest_is_right
        else "results depend on other elements along axis {0} as well, but the rule treats them "
        "separately: perhaps a sum over that axis is missing"
    )
    return {"how": how.format(listed(by_moving - by_rule))}


def axis_mixed(p: Pattern) -> Found:
    """The rule mixes elements along an axis along which the function does not."""
    by_rule, by_moving = _mixed(p)
    if by_rule <= by_moving:
        return None
    if depends(p.jacobians[0]).sum(axis=0).max() < 2:  # type: ignore[index]
        return None  # one element of g for each of the input is no sum
    mixes = f"elements along axis {listed(by_moving)} only" if by_moving else "no elements"
    return {"over": listed(by_rule), "mixes": mixes}


# ---- orders


def _in_other_orders(v: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """(axes, v with its axes in that order) for every other order that makes a difference."""
    orders = list(itertools.permutations(range(v.ndim)))[1:] if v.ndim <= 5 else []
    return [(axes, turned) for axes in orders if not same(turned := v.transpose(axes), v)]


def reshaped(p: Pattern) -> Found:
    """The right numbers in the order of other axes."""
    for axes, turned in _in_other_orders(p.n):
        if turned.shape != p.a.shape and p.fits(turned.reshape(p.a.shape)):
            return {"axes": axes}
    return None


def transposed(p: Pattern) -> Found:
    """The axes stand in another order."""
    for axes, turned in _in_other_orders(p.n):
        c = p.factor(p.a, turned) if turned.shape == p.a.shape else None
        if c is None:
            continue
        undoes = tuple(int(k) for k in np.argsort(axes))
        if undoes == axes:
            why = "a transpose (.mT) is missing or too many. Equal sizes hide it from a shape check"
        else:
            # Of three axes or more the order that undoes another is mostly another one.
            why = f"its axes stand in the order {axes}. A permutation is undone by its inverse, "
            why += f"here {undoes}, and not by itself: np.argsort(axes)"
        return {"besides": times(c), "why": why}
    return None


def reversed_order(p: Pattern) -> Found:
    """The right gradient, read backwards along an axis."""
    axes = (axis for axis in _long_axes(p.a) if p.fits(np.flip(p.n, axis)))
    return next(({"axis": axis} for axis in axes), None)


def own_map_for_its_transpose(p: Pattern) -> Found:
    """The rule applies the function's own linear map: a rotation, a running sum, a permutation."""
    by_rule, by_moving = p.jacobians  # type: ignore[misc]
    return {} if same(by_rule, by_moving.T) and not same(by_rule, by_moving) else None


def permuted(p: Pattern) -> Found:
    """The same numbers in another order."""
    different = np.count_nonzero(np.diff(np.sort(p.n, axis=None)) > _scale(p))
    if p.a.size < 4 or different < p.a.size // 2:
        return None  # too few different numbers for their order to mean anything
    # One element alone cannot have changed places: its neighbour in size is merely near.
    off = p.off
    if off.sum() < 2 or apart(np.sort(p.a[off]), np.sort(p.n[off]), p.tolerance).any():
        return None
    return {}


def off_by_one(p: Pattern) -> Found:
    """The same numbers a place or two further on, some lost at the edge."""
    for axis, shift in itertools.product(range(p.a.ndim), (1, -1, 2, -2)):
        size = p.a.shape[axis]
        if size - abs(shift) < 2:
            continue
        here = range(max(shift, 0), size + min(shift, 0))
        ours = p.a.take(here, axis)
        if not apart(ours, p.n.take(here, axis), p.tolerance).any():
            continue  # right in its place, and the same all along the axis
        right = p.n.take(range(max(-shift, 0), size + min(-shift, 0)), axis)
        many = 2 * np.count_nonzero(right) > max(right.size, 2)
        if many and not even(right) and alike(ours, right, p.tolerance):
            return {"shift": shift, "axis": axis, "by": abs(shift)}
    return None


# ---- masks and indices


def _masks(p: Pattern) -> tuple[np.ndarray, np.ndarray] | None:
    """Where the gradient is not zero, and where the slope is not."""
    ours, right = np.abs(p.a) > _scale(p), np.abs(p.n) > _scale(p)
    usable = not right.all() and right.any() and ours.any() and p.a.size >= 3
    return (ours, right) if usable else None


def mask_inverted(p: Pattern) -> Found:
    """Zero where the right gradient is not, and the other way round."""
    masks = _masks(p)
    return {} if masks is not None and np.array_equal(masks[0], ~masks[1]) else None


def another_mask(p: Pattern) -> Found:
    """Right where neither is zero, but zero at other elements."""
    if (masks := _masks(p)) is None:
        return None
    ours, right = masks
    both, differ = ours & right, (ours & ~right).any() and (~ours & right).any()
    if p.a.size <= 4 or not differ:
        return None
    if both.any():
        return {} if same(p.a[both], p.n[both]) else None
    rows = (axis for axis in _long_axes(p.a) if (right.sum(axis) <= 1).all())
    return {} if any(same(p.a.sum(axis), p.n.sum(axis)) for axis in rows) else None


def mask_of_the_chosen(p: Pattern) -> Found:
    """One element along an axis, a maximum say, should get what all of them get."""
    nonzero = np.abs(p.n) > _scale(p)
    for axis in _long_axes(p.a):
        total = np.broadcast_to(p.n.sum(axis, keepdims=True), p.a.shape)
        if (nonzero.sum(axis) <= 1).all() and p.fits(total):
            return {"axis": axis}
    return None


def mask_forgotten(p: Pattern) -> Found:
    """The slope is zero in a triangle; the gradient is not, and the rest is wrong too."""
    if p.a.ndim < 2 or (masks := _masks(p)) is None:
        return None
    ours, right = masks
    forgotten = (ours | ~right).all() and (ours & ~right).any() and (p.off & right).any()
    blocked = np.asarray(~right.any(axis=tuple(range(p.a.ndim - 2))))
    # A row with one open element has no slope either, as the first row behind a causal mask.
    alone = blocked.all(axis=1, keepdims=True)
    upper = np.tri(*blocked.shape) == 0
    for words, triangle in (("upper", upper), ("lower", upper[::-1, ::-1])):
        if forgotten and np.array_equal(blocked, triangle | alone) and not alone.all():
            return {"where": f"the {words} triangle"}
    return None


def causal_mask_forgotten(matrices: Any, x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    """Do results depend on earlier rows of the input only, and in the rule on later ones too?"""
    if len(y) < 2 or len(x) < 2 or x[-2] != y[-2] or y[-2] < 3:
        return False
    ndim = len(y) + len(x)
    rest = tuple(k for k in range(ndim) if k not in (len(y) - 2, ndim - 2))
    rule, moving = (depends(m).reshape(y + x).any(axis=rest) for m in matrices)  # (row, row)
    causal = np.tril(moving, -1).any() and not np.triu(moving, 1).any()
    # A rule of later rows alone is turned round, as that of a running sum.
    return bool(causal and np.triu(rule, 1).any() and np.tril(rule, -1).any())


def lost_contributions(p: Pattern) -> Found:
    """Elements used several times (a repeated index) whose gradient holds only one contribution."""
    each, off, kinds = p.per_result, p.off, set()
    if p.a.ndim and p.g.ndim > p.a.ndim and p.g.shape[-p.a.ndim :] == p.a.shape:
        return None  # broadcast: one element along an axis may be counted
    for i in np.flatnonzero(off):
        parts = each[np.abs(each[:, i]) > 1e-6 * np.abs(each).max(), i]
        hits = np.flatnonzero(np.abs(parts - p.a.flat[i]) <= FIT * np.abs(parts))
        if len(parts) < 2 or not len(hits):
            return None
        last, first = hits[-1] == len(parts) - 1, hits[0] == 0
        kinds.add("the last" if last else "the first" if first else "one")
    if not kinds or kinds == {"one"} and off.sum() == 1:
        return None  # any number may happen to be near one of many
    which = kinds.pop() if len(kinds) == 1 else "one"
    return {"kind": "repeated use", "which": which, "where": f"the input at {p.where(off)}"}


def _along_the_result(p: Pattern) -> Iterator[tuple[dict[str, Any], np.ndarray, bool]]:
    """(which place along an axis, its contribution, of more than two) where several meet."""
    each = p.per_result.reshape(p.g.shape + p.a.shape)
    for axis in _long_axes(p.g):
        size, others = p.g.shape[axis], tuple(k for k in range(p.g.ndim) if k != axis)
        parts = each.sum(axis=others)
        least = FIT * greatest(parts)
        used = [k for k in range(size) if greatest(parts[k]) > least]
        meet = sum((np.abs(parts[k]) > 0).astype(int) for k in used)
        if len(used) < 2 or np.max(meet) < 2:
            continue  # each element of the input goes into one place only
        for k in used:
            which = "first" if k == 0 else "last" if k == size - 1 else f"number {k}"
            yield {"axis": axis, "size": size, "which": which}, parts[k], len(used) > 2


def one_counted(p: Pattern) -> Found:
    """Only one place along an axis of the result has been counted."""
    return next((place for place, part, _ in _along_the_result(p) if p.fits(part)), None)


def one_left_out(p: Pattern) -> Found:
    """One place along an axis of the result has been left out."""
    found = _along_the_result(p)
    return next((place for place, part, more in found if more and p.fits(p.n - part)), None)
