"""What a wrong VJP looks like: its whole Jacobian beside the right one.

R is the Jacobian that the VJP gives, a unit of g at a time, and J the one of slopes, both of shape
(results, elements of the input). A hypothesis says what R would be, such as c J, or what would make
the VJP right, such as another operand. The first that fits is told; the simplest come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import grad, watching
from .faults import nonlinear
from .report import greatest
from .trace import Backend, Contributions, OpCall

Found = tuple[str, str] | None


def same(a: Any, b: Any, rtol: float = 1e-4) -> bool:
    """Whether two Jacobians are equal but for the error of slopes."""
    if a.shape != b.shape or not np.isfinite(a).all():
        return False
    own = np.abs(b).max(axis=0, initial=0)  # of each element of the input
    limit = rtol * np.abs(b) + rtol / 100 * own + 1e-9 * greatest(b)
    return bool((np.abs(a - b) <= limit).all())


def ratio(a: Any, b: Any) -> float:
    """The c for which c b is nearest to a."""
    square = np.sum(b * b)
    return float(np.sum(a * b) / square) if square and np.isfinite(a).all() else 0.0


class Case:
    """A function, one of its inputs, and the two Jacobians."""

    def __init__(self, f: Any, which: int) -> None:
        self.f, self.which = f, which
        self.call: Any = f.call if hasattr(f, "positions") else None  # of a single op
        one = len(f.values) == 1
        self.x, self.y = (
            f.inputs[which],
            f.values[0] if one else np.hstack([*map(np.ravel, f.values)]),
        )
        R, J = f.jacobian_by_rules(which), f.jacobian(which)
        self.R = np.where(np.isinf(self.y).reshape(-1, 1), 0, R)  # what stays infinite has no slope
        self.J = np.where(np.abs(J) < 1e-8 * greatest(np.nan_to_num(J)), 0, J)
        self.xs, self.ys, self.ny = self.x.shape, self.y.shape, self.y.ndim
        self.J4 = self.J.reshape(self.ys + self.xs)
        with np.errstate(invalid="ignore"):
            self.hr, self.hj = (np.abs(M) > 1e-7 * greatest(M) for M in (self.R, self.J))
            limit: Any = 1e-4 * np.abs(self.J) + 1e-6 * np.abs(self.J).max(axis=0, initial=0)
            self.off: Any = ~(np.abs(self.R - self.J) <= limit)
        self.position = f.positions[which] if self.call else 0  # among all operands of the op

    def is_(self, M: Any, rtol: float = 1e-4) -> float:
        """The c for which R = c M, or 0."""
        M = M.reshape(self.R.shape) if M.size == self.R.size else M
        c = ratio(self.R, M) if M.shape == self.R.shape else 0.0
        return c if c and same(self.R, c * M, rtol) else 0.0

    def right(self, g: Any = lambda g: g, y: Any = None, args: Any = None, **settings: Any) -> bool:
        """Whether the VJP is right with another g, y, operands or settings."""
        call: Any = self.call
        y = call.y if y is None else y
        with suppress(Exception):
            if args is not None or settings:
                call = call.with_args(call.args if args is None else args, **settings)
            pull = lambda gs: {self.which: call.pull(g(gs[0]), y=y)[self.position]}
            return same(self.f.jacobian_by_rules(self.which, pull), self.J, 1e-3)
        return False

    def mixes(self, nonzero: Any) -> set[int]:
        """The axes along which results depend on elements at other places, if shapes are equal."""
        if self.xs != self.ys or not self.xs:
            return set()
        here, there = (np.array(np.unravel_index(k, self.xs)) for k in np.nonzero(nonzero))
        return {k for k in range(len(self.xs)) if (here[k] != there[k]).any()}


def axes(of: Any) -> str:
    return f"ax{'i' if len(of) == 1 else 'e'}s {', '.join(map(str, sorted(of)))}"


def places(shape: tuple[int, ...], flat: Any) -> str:
    """Where elements are: an index along an axis, a triangle, or their indices."""
    mask = flat.reshape(shape)
    for axis, n in enumerate(shape):
        rows = np.moveaxis(mask, axis, 0).reshape(n, -1)
        if len(shape) > 1 and mask.sum() > 1 and rows.any(1).sum() == rows.all(1).sum() == 1 < n:
            return f"index {int(rows.any(1).argmax())} along axis {axis}"
    if len(shape) == 2 and mask.sum() > 1:
        lower, below = np.tri(*shape, dtype=bool), np.tri(*shape, k=-1, dtype=bool)
        for words, all_ in (("diagonal", lower & ~below), ("lower triangle", lower),
                            ("lower triangle", below), ("upper triangle", ~lower),
                            ("upper triangle", ~below)):  # fmt: skip
            if (mask == all_).all():
                return f"the {words}"
    at = [str(tuple(map(int, i)) if len(shape) != 1 else int(i[0])) for i in np.argwhere(mask)]
    several = f"indices {', '.join(at[:4])}{', ...' * (len(at) > 4)}"
    return f"index {at[0]}" if len(at) == 1 else several


# ---- is there something to compare?


def nothing_to_compare(c: Case) -> Found:
    bad = lambda M: places(c.xs, ~np.isfinite(M).all(axis=0))
    if not np.isfinite(c.J).all():
        return "domain", (
            f"the function is not finite, or raises an error, a step to one side at {bad(c.J)}: "
            "the input lies on the edge of the domain (sqrt, log). Check it at inner points."
        )
    if not np.isfinite(c.R).all():
        return "nan", (
            f"the rule gives NaN or Inf at {bad(c.R)}, where the slope is finite. Look for 0/0, "
            "log 0 or 0 x inf in it; np.where does not help if the bad value is computed first."
        )
    if c.call and (found := nonlinear(c.call, c.f.cotangents[0])):
        return found[0], f"the rule {found[1]}"
    if not c.R.any():
        return "zero", (
            "the gradient is zero everywhere although the function does depend on this input. The "
            "rule returns zeros, or there is None in its place, or the value went through "
            "detach(), .data, .numpy() or no_grad."
        )
    if not c.J.any():
        return "numeric zero", (
            "the function does not change at all when the input moves (a step function, a "
            "comparison, a value that is not used or cancels out), yet the rule gives a gradient."
        )
    return None


def one_factor(c: Case) -> Found:
    k = c.is_(c.J)
    if not k or not _elsewhere(c, k):
        return None
    if abs(k + 1) < 1e-3:
        return "sign", "the gradient has the wrong sign everywhere (constant factor -1)."
    hint = number(c, abs(k)) + "; and the sign is wrong" * (k < 0)
    told = f"the gradient is {k:.6g} times what it should be, everywhere (constant factor)"
    return "constant factor", f"{told}: {hint}." if hint else f"{told}."


def _elsewhere(c: Case, k: float) -> bool:
    """Whether it fits at other values too, of which few or equal elements say little."""
    if not c.call or c.x.size > 2 and np.ptp(c.x):
        return True
    rng = np.random.default_rng(1)
    vary = lambda a: a * rng.uniform(0.8, 1.2, a.shape) if a.dtype.kind == "f" else a
    with suppress(Exception):  # the op may refuse these values
        args = [vary(a) if isinstance(a, np.ndarray) else a for a in c.call.args]
        other = Case(type(c.f)(c.call.with_args(args)), c.which)
        return same(other.R, k * other.J, 1e-3)
    return True


def number(c: Case, k: float) -> str:
    """What a factor may be."""
    near = lambda value: abs(k / value - 1) < 1e-4
    sizes = {n: f"the size of axis {a} of the result" for a, n in enumerate(c.ys)}
    sizes |= {n: f"the size of axis {a} of the input" for a, n in enumerate(c.xs)}
    sizes.setdefault(c.x.size, "the number of elements of the input")
    sizes.setdefault(int(c.hj.sum(axis=0).max()), "how often each element is used")
    sizes = {
        n: f"{n}, which is {what}, or a number of the formula" for n, what in sizes.items() if n > 1
    }
    verb = "multiplied" if k > 1 else "divided"
    for n, what in sizes.items():
        if near(n) or near(1 / n):
            sums = "the 1/N of a mean is missing" if k > 1 else "a mean where a sum belongs"
            return f"{verb} by {what}; {sums}"
    if near(2) or near(0.5):
        return "counted twice" if k > 1 else "one half of it is missing, or of a square the 2"
    for n, what in sizes.items():
        if near(n**0.5) or near(n**-0.5):
            return f"{verb} by the square root of {what}, a scale"
        if n > 2 and c.hj.sum() > len(c.J) and (near(n / (n - 1)) or near((n - 1) / n)):
            return f"{n} where {n - 1} belongs, or the reverse, as in the ddof of a variance"
    return ""


# ---- R is J in another place, or times something


def moved(c: Case) -> Iterator[tuple[str, str, Any]]:
    """(kind, text, what R is up to a factor)."""
    nx, ny, J4 = len(c.xs), c.ny, c.J4
    for order in list(itertools.permutations(range(nx)))[1:] if nx < 5 else ():
        turned = J4.transpose(*range(ny), *(ny + k for k in order))
        over = [a for a in range(nx) if order[a] != a]
        if turned.shape != J4.shape:
            yield "transposed", f"reshaped where the axes should be transposed to {order}", turned
        elif ny < nx:
            spread = (
                f"spread (broadcast) along {axes(over[:1])} of the input, but it should be along"
            )
            yield (
                "wrong axis",
                f"{spread} {axes(over[1:])}: put the reduced axis back first",
                turned,
            )
        else:
            why = ": the rule needs the inverse permutation, np.argsort(axes)" * (len(over) > 2)
            yield "transposed", f"right once it is transposed to {order} (.mT){why}", turned
    repeated = nx < ny < 5 and c.hj.sum(axis=0).max() > 1
    for order in list(itertools.permutations(range(ny)))[1:] if repeated else ():
        turned = J4.transpose(*order, *range(ny, ny + nx))
        over = [a for a in range(ny) if order[a] != a and not np.ptp(turned, axis=a).any()]
        told = f"summed over {axes(over or [0])} of the result, which is the wrong axis"
        yield "wrong axis", f"{told}: sum over those along which {c.xs} was repeated", turned
    if c.xs != c.ys and np.ptp(c.J):
        yield "wrong axis", "the sum over all axes of the result: too many axes", np.ones(c.R.shape)
    for at, n in enumerate(J4.shape):
        of = f"axis {at - ny}" if at >= ny else f"axis {at} of the result"
        if n > 1:
            yield "reversed", f"right but reversed along {of}", np.flip(J4, at)
        for k in (k for k in (1, -1, 2, -2) if abs(k) < n):
            cut = np.roll(J4, k, at)
            yield "shifted", f"right but shifted by {k} along {of}: an index is off", cut.copy()
            cut[(slice(None),) * at + (slice(k) if k > 0 else slice(k, None),)] = 0
            yield "shifted", f"right but shifted by {k} along {of}: an index is off", cut
    if not _right_for_ones(c):
        yield "transposed", (
            "what the function does to the input, done to g. It is the transpose of that map: sums "
            "run from the other end, rotations turn back, permutations are undone, matrices are "
            "transposed (.mT)"
        ), c.J.T  # fmt: skip
    for k, other in enumerate(c.f.inputs):
        if k != c.which and other.shape == c.xs:
            told = "the rules stand in the wrong order, or one is a copy of the other's"
            yield "exchanged", f"the gradient of {c.f.names[k]}: {told}", c.f.jacobian(k)


def in_another_place(c: Case) -> Found:
    for kind, text, M in moved(c):
        if k := c.is_(M, 1e-3):
            factor = f" (and {k:.6g} times that)" if abs(k - 1) > 1e-3 else ""
            return kind, f"the gradient is {text}{factor}."
    order = lambda M: M[:, np.lexsort(np.round(M / greatest(c.J), 5)[::-1])]
    whole = c.hr.any(axis=0).all() and c.hj.any(axis=0).all()
    if c.x.size > 1 and whole and same(order(c.R), order(c.J), 1e-3):
        return "permuted", (
            "the numbers are right but stand at the wrong elements: the order is not undone as it "
            "was made. Look at the indices, at argsort (its inverse is argsort of argsort), and at "
            "reshape where swapaxes belongs."
        )
    return None


FACTORS: dict[str, Any] = {
    "{}": lambda v: v, "{}^2": np.square, "(1 - {})": lambda v: 1 - v, "(1 + {})": lambda v: 1 + v,
    "(1 - {}^2)": lambda v: 1 - v * v, "(1 + {}^2)": lambda v: 1 + v * v, "cos {}": np.cos,
    "sin {}": np.sin, "exp {}": np.exp, "sqrt {}": np.sqrt, "{} (1 - {})": lambda v: v * (1 - v),
}  # fmt: skip


def quantities(c: Case) -> Iterator[tuple[str, Any]]:
    """(name, array) of what a factor may be."""
    known = {"x": c.x, "y": c.y}
    known |= {f"operand {k}": a for k, a in floats(c).items() if k != c.position}
    for name, v in known.items():
        yield from ((text.format(name, name), f(v)) for text, f in FACTORS.items())
    for axis in range(c.x.ndim):
        ways: dict[str, Any] = {"std": np.std, "norm": np.linalg.norm}
        for name, f in ways.items():
            v = f(c.x, axis=axis, keepdims=True)
            yield from (
                (f"1/{name}(x)", q) for q in (1 / np.broadcast_to(v, c.xs), 1 / v.squeeze(axis))
            )


def factor(c: Case) -> Found:
    """R has a factor of the input or of the result too many, or lacks one."""
    times = lambda k: f" (and is {k:.6g} times too large besides)" if abs(k - 1) > 1e-3 else ""
    with np.errstate(all="ignore"):
        for name, q in quantities(c):
            for shape, turn in ((c.xs, (1, -1)), (c.ys, (-1, 1))):
                if np.isfinite(q).all() and np.ptp(q) > 1e-9 and np.ndim(q) <= len(shape):
                    with suppress(ValueError):
                        Q = np.broadcast_to(q, shape).reshape(turn)
                        if k := c.is_(c.J * Q, 1e-3):
                            return (
                                "extra factor",
                                f"the gradient has a factor {name} too many{times(k)}.",
                            )
                        if (k := ratio(c.R * Q, c.J)) and same(c.R * Q, k * c.J, 1e-3):
                            return (
                                "missing factor",
                                f"the gradient lacks a factor {name}{times(k)}.",
                            )
    if (c.hr == c.hj).all() and same(c.R, c.hr * 1.0):
        sums = "" if c.xs == c.ys else ", summed over the axes that were broadcast"
        return "missing factor", (
            f"the gradient is g itself{sums}: the op's own derivative, which g is multiplied by, "
            "is left out."
        )
    return None


# ---- which elements count: sums, masks, places


def masks(c: Case) -> Found:
    """R and J are equal where neither is zero, but zero at different elements."""
    both, extra, lost = c.hr & c.hj, c.hr & ~c.hj, c.hj & ~c.hr
    r, j = np.array(c.hr.any(axis=0)), np.array(c.hj.any(axis=0))
    if over := c.mixes(c.hr) - c.mixes(c.hj):
        own = c.mixes(c.hj)
        return "wrong axis", (
            f"the rule sums over {axes(c.mixes(c.hr))}, but the function mixes "
            f"{axes(own) if own else 'no elements'}: a sum over the wrong {axes(over)}."
        )
    if len(r) > 1 and (r == ~j).all():
        return "mask inverted", (
            "the gradient is zero exactly where it should not be, and the other way round: the "
            "rule applies its mask or condition inverted."
        )
    equal = same(np.where(both, c.R, 0), np.where(both, c.J, 0))
    if not extra.any() or lost.any() and not equal:
        return None
    if lost.any():
        return "another mask", (
            "the gradient has the right numbers where neither it nor the slope is zero, but it is "
            "zero at the wrong elements: the rule uses another mask, or other indices, than the "
            "forward pass. Save the mask (a dropout mask is drawn once) and use it in the rule."
        )
    chosen = c.ny < len(c.xs) and (c.hj.sum(axis=1) <= 1).all()
    per = [a for a in range(len(c.xs)) if (c.hr.reshape(-1, *c.xs).sum(axis=1 + a) > 1).any()]
    what = (
        f"along axis {per[0] if per else 0} only one element (the largest, or the one picked) "
        "should get a gradient, but the rule gives it to all of them"
        if chosen
        else f"the slope is zero at {places(c.xs, extra.any(axis=0))} for some results, as behind "
        "a mask, and the gradient is not: the rule forgets the mask, such as the causal one"
    )
    return "mask missing", f"{what}. Multiply by the mask of the forward pass."


def some_elements(c: Case) -> Found:
    """Whole columns are wrong, and the others right."""
    bad = c.off.any(axis=0)
    R, J, hr, hj = (M[:, bad] for M in (c.R, c.J, c.hr, c.hj))
    if len(bad) < 2 or bad.all() or bad.mean() > 0.7 and R.any():
        return None
    if R.any() and (hj.sum(axis=0) > 1).all() and (hr <= hj).all() and same(R, np.where(hr, J, 0)):
        return None  # contributions are left out, which says more
    return some(R, J, places(c.xs, bad))


def some(R: Any, J: Any, at: str) -> Found:
    k = ratio(R, J)
    fits = k and np.allclose(R, k * J, 1e-3, 1e-6 * greatest(J))
    how = "zero" if not R.any() else f"{k:.6g} times what it should be" if fits else "wrong"
    return "some elements", f"the gradient is {how} only at {at}; the others are right."


def left_out(c: Case) -> Found:
    """R is J without some of its elements: contributions are missing."""
    lost = c.hj & ~c.hr
    if not lost.any() or not same(c.R, np.where(c.hr, c.J, 0)):
        return separately(c)
    bad, selects = c.off.any(axis=0), (c.hj.sum(axis=1) <= 1).all()
    kept: Any
    kept, wanted = c.hr.any(axis=1).reshape(c.ys), c.hj.any(axis=1).reshape(c.ys)
    overwrites = selects and (c.hr[:, bad].sum(axis=0) == 1).all()
    for axis, n in enumerate(c.ys):
        along = kept.any(axis=tuple(a for a in range(c.ny) if a != axis), keepdims=True)
        index = np.flatnonzero(along if along.sum() == 1 else ~along)
        if n > 1 and len(index) == 1 and (kept == (wanted & along)).all():
            at = {0: "first", n - 1: "last"}.get(int(index[0]), f"number {index[0]}")
            if along.sum() == 1:
                return "missing sum", (
                    f"only the {at} element along axis {axis} of the result is counted, of {n}: "
                    "the sum over that axis is missing, or each overwrites the one before."
                )
            if overwrites:
                continue
            told = f"of {n} elements of the result along its axis {axis} the {at} is left out"
            return (
                "missed use",
                f"{told}: a loop or a slice that ends too early or starts too late.",
            )
    if c.mixes(lost):
        return separately(c)
    first = all(c.hr[np.argmax(c.hj[:, k]), k] for k in np.flatnonzero(bad))
    return "repeated use", (
        f"the input at {places(c.xs, bad)} is used several times (a repeated index, or a reused "
        f"value), but only the {'first' if first else 'last'} contribution is counted. Either each "
        "overwrites the one before (use np.add.at, or +=), or a sum is missing."
    )


def separately(c: Case) -> Found:
    if over := c.mixes(c.hj) - c.mixes(c.hr):
        return "missing sum", (
            f"each result depends on all elements along {axes(over)}, but the rule treats them "
            "separately: a sum over that axis is missing."
        )
    return None


# ---- one use, operand or quantity in place of another


def missed_use(c: Case) -> Found:
    """The op's own function, run on tensors, uses the input several times: which are counted?"""
    if not isinstance(c.call, OpCall):
        return None
    with suppress(Exception):  # it may not run on tensors
        call, leaf = c.call, Backend().leaf
        leaves = [leaf(a) if need else a for a, need in zip(call.args, call.needs)]
        out, x = call.step.op.forward(*leaves, **call.settings), leaves[c.position]
        out, uses = out[0] if call.step.op.saves else out, list[Any]()
        for e in np.eye(c.y.size):
            with watching(Contributions(x)) as seen:
                grad([out], [x], [e.reshape(c.ys)], retain_graph=True)
            uses.append(seen.found)
        names, parts = (
            [name for name, _ in uses[0]],
            np.array([[v.ravel() for _, v in u] for u in uses]),
        )
        if not same(parts.sum(axis=1), c.J, 1e-3):
            return None
        for k, name in enumerate(names):
            if times := ratio(c.R - c.J, parts[:, k]):
                if same(c.R, c.J + times * parts[:, k], 1e-3):
                    count = f"were counted {1 + times:.4g} times" if times > -0.999 else "is missed"
                    return "missed use", (
                        f"the input is used {len(names)} times in the forward text; it is as if "
                        f"the use in {name} {count}. The gradient is the sum over all uses."
                    )
    return None


def floats(c: Case) -> dict[int, Any]:
    args = enumerate(c.call.args if c.call else ())
    return {k: a for k, a in args if isinstance(a, np.ndarray) and a.dtype.kind == "f"}


def changes(c: Case) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, text, what is changed) of what may make the VJP right."""
    args, y, arrays = list(c.call.args), c.call.y, floats(c)
    put = lambda k, v: dict(args=[*args[:k], v, *args[k + 1 :]])
    for k, a in arrays.items():
        for order in list(itertools.permutations(range(a.ndim)))[1:] if a.ndim < 4 else ():
            yield (
                "transposed",
                f"operand {k} is transposed to {order} (.mT)",
                put(k, a.transpose(order)),
            )
    if c.ny > 1:
        yield (
            "transposed",
            "the incoming gradient is transposed (.mT)",
            dict(g=lambda g: g.swapaxes(-1, -2)),
        )
    for k, m in itertools.combinations(arrays, 2):
        swapped = [args[{k: m, m: k}.get(i, i)] for i in range(len(args))]
        yield "exchanged", f"operands {k} and {m} change places", dict(args=swapped)
    if c.xs == y.shape:
        yield "exchanged", "the input x stands where the rule has the result y", dict(y=c.x)
        yield "exchanged", "the result y belongs where the rule has the input x", put(c.position, y)
    axis = c.call.settings.get("axis")
    for other in range(-len(c.xs), len(c.xs)) if isinstance(axis, int) else ():
        if other != axis:
            yield (
                "wrong axis",
                f"it is told axis={other} where the op has axis={axis}",
                dict(axis=other),
            )
    settings = {k: v for k, v in c.call.settings.items() if isinstance(v, np.ndarray)}
    maps: dict[str, Any] = {
        "1 - {}": lambda v: 1 - v, "np.exp({})": np.exp, "{}^2": np.square, "np.sqrt({})": np.sqrt,
    }  # fmt: skip
    for text, f in maps.items():
        values = {"the result y": dict(y=f(y))}
        values |= {f"operand {k}": put(k, f(a)) for k, a in arrays.items()}
        values |= {
            f"the setting {k!r}": {k: f(v)} for k, v in settings.items() if v.dtype.kind == "f"
        }
        for name, change in values.items():
            yield "exchanged", f"{name} is replaced by {text.format(name)} in it", change


def exchanged(c: Case) -> Found:
    with np.errstate(all="ignore"):
        for kind, text, change in changes(c) if c.call else ():
            if c.right(**change):
                return kind, f"the rule is right once {text}."
    return None


def right_for_ones(c: Case) -> Found:
    k = _right_for_ones(c)
    return k and (
        "operand misplaced",
        f"the rule is right where operand {k} is all ones, and wrong for other values: it is "
        "multiplied in at the wrong place, such as outside a sum that holds it, or left out.",
    )  # type: ignore[return-value]


def _right_for_ones(c: Case) -> int | None:
    """The number of an operand of fewer axes, such as a weight, for whose ones the VJP is right."""
    for k, a in floats(c).items():
        with suppress(Exception):
            if 0 < a.ndim < c.x.ndim:
                args = [np.ones_like(a) if i == k else b for i, b in enumerate(c.call.args)]
                f = type(c.f)(c.call.with_args(args))
                if same(f.jacobian_by_rules(c.which), f.jacobian(c.which), 1e-3):
                    return k
    return None


# ---- terms


def terms(c: Case) -> Found:
    """A term of the derivative, or of its divisor, where the shapes of input and result agree."""
    over, wrong = c.mixes(c.hj | c.hr), c.mixes(c.off)
    if c.xs != c.ys or c.x.size < 2 or not np.ptp(c.x):
        return None
    if len(over) == 1 and wrong == over:
        return "missing sum", (
            f"the error mixes elements along {axes(over)}: a term that holds a sum (or mean) over "
            "it is missing, scaled wrongly, or sums something else."
        )
    if len(over) == 1 and not wrong:
        told = f"the sum over {axes(over)} is right, and each element's own term is wrong"
        return "missing term", f"{told}: what g is multiplied by there."
    if over:
        return None
    a, b, x, y = np.diag(c.R), np.diag(c.J), c.x.ravel(), c.y.ravel()
    words = {"": x * 0 + 1, " times x": x, " times y": y, " times x^2": x * x, " times y^2": y * y}
    with np.errstate(all="ignore"):
        for what, d in (("the gradient", a - b), ("what the rule divides g by", 1 / a - 1 / b),
                        ("the square of what the rule divides g by", a**-2 - b**-2)):  # fmt: skip
            for word, t in words.items():
                if (k := ratio(d, t)) and same(d, k * t, 1e-2):
                    size = f"{abs(k):.4g}{word} too {'large' if k > 0 else 'small'}"
                    return "missing term", (
                        f"{what} is {size}: a term is left out, counted too often, or has the "
                        "wrong sign; or it is a hidden eps."
                    )
        if np.ptp(a * b) < 1e-3 * greatest(a * b):
            return "inverted", (
                "the gradient is g divided by the op's own derivative, where it is g times that: a "
                "division stands for a multiplication, or the reverse."
            )
    return None


def no_pattern(c: Case) -> Found:
    """The worst element, and the contributions that it should consist of."""
    worst = int(np.argmax(np.abs(c.R - c.J).max(axis=0)))
    index = lambda k, shape: list(map(int, np.unravel_index(int(k), shape)))

    def told(column: Any) -> str:
        largest = [o for o in np.argsort(-np.abs(column))[:3] if column[o]]
        parts = " + ".join(f"{column[o]:.4g} g{index(o, c.ys)}" for o in largest)
        return (parts or "0") + " + ..." * int(np.count_nonzero(column) > 3)

    return "rule", (
        "the rule disagrees with finite differences in no simple pattern; derive it again. The "
        f"gradient of x{index(worst, c.xs)} should be {told(c.J[:, worst])}, and is "
        f"{told(c.R[:, worst])}."
    )


HYPOTHESES = (
    nothing_to_compare, one_factor, right_for_ones, in_another_place, exchanged, missed_use, masks,
    some_elements, left_out, factor, terms, no_pattern,
)  # fmt: skip


def explanation(c: Case) -> tuple[str, str]:
    """The first hypothesis that fits."""
    return next(found for hypothesis in HYPOTHESES if (found := hypothesis(c)) is not None)
