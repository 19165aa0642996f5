"""What a wrong VJP looks like: its whole Jacobian beside the right one.

R is the Jacobian that the VJP gives, a unit of g at a time, and J the one of slopes. Both have the
shape (elements of the output y, elements of the input x). A row of a table says that one matrix is
a multiple of another, such as R of J, or of J with its axes exchanged. The first that fits is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import permutations, product
from typing import Any

import numpy as np

from ..engine import Op, grad, watching
from .report import greatest, index_of_largest, near
from .slopes import flatten
from .trace import Backend, Contributions

Found = tuple[str, str] | None
"""The kind of a mistake and the text that explains it."""

Row = tuple[str, str, Any, Any]
"""A kind, a text, and two matrices: the row fits if the first is a multiple of the second."""

MAPS: dict[str, Callable[[Any], Any]] = {
    "{}": np.positive, "{}^2": np.square, "1 - {}": lambda v: 1 - v, "exp({})": np.exp,
    "sqrt({})": np.sqrt, "cos({})": np.cos,
}  # fmt: skip
"""What is often put in place of a value, or multiplied in once too often."""


def close(a: Any, b: Any, rtol: float = 1e-3) -> Any:
    """The elements of Jacobians that are equal but for the error of slopes."""
    column = np.abs(b).max(axis=0, initial=0)
    return near(a, b, rtol, rtol / 100 * column + 1e-9 * greatest(b))


def factor(a: Any, b: Any) -> float:
    """The c for which a = c b; 0 if there is none."""
    square = np.sum(b * b) if a.shape == b.shape else 0.0
    c = float(np.sum(a * b) / square) if square else 0.0
    return c if c and np.isfinite(c) and close(a, c * b).all() else 0.0


class Case:
    """One input x of a function, the output y, R and J, and where these are not zero."""

    def __init__(self, f: Any, which: int) -> None:
        self.f, self.which, self.x = f, which, f.inputs[which]
        self.y = f.values[0] if len(f.values) == 1 else flatten(f.values)
        R, J = f.jacobian_by_rules(which), f.jacobian(which)
        self.R = np.where(np.isinf(self.y).reshape(-1, 1), 0, R)  # what stays infinite has no slope
        self.J = np.where(np.abs(J) < 1e-8 * greatest(np.nan_to_num(J)), 0, J)
        self.in_R, self.in_J = (np.abs(M) > 1e-7 * greatest(M) for M in (self.R, self.J))
        self.off = ~close(self.R, self.J, 1e-4)
        self.bad = self.off.any(axis=0).reshape(self.x.shape)

    def mixes(self, nonzero: Any) -> list[int]:
        """The axes along which outputs depend on elements at other places, if shapes are equal."""
        if self.x.shape != self.y.shape:
            return []
        here, there = (np.unravel_index(k, self.x.shape) for k in np.nonzero(nonzero))
        return [k for k, (a, b) in enumerate(zip(here, there)) if (a != b).any()]


def places(mask: Any) -> str:
    """The indices of some elements."""
    at = [str(i) for i in np.argwhere(mask).tolist()]
    return f"index {', '.join(at[:4])}{', ...' * (len(at) > 4)}"


# ---- what shows in any rows of R and J, even of some elements only


def everywhere(R: Any, J: Any, bad: Any, sizes: Any = ()) -> Found:
    """NaN, zero or a factor; NaN in J is not measured, `bad` has the shape of the input."""
    finite, known = np.isfinite(R).all(axis=0), ~np.isnan(J).any(axis=0)
    if not finite.all():
        return "nan", (
            f"the VJP gives NaN or Inf at {places(~finite.reshape(bad.shape))}, where the slope is "
            "finite. Look for 0/0, log 0 or 0 x inf; np.where does not help if the bad value is "
            "computed first."
        )
    if not R[:, known].any():
        return "zero", (
            "the gradient is zero everywhere although the function depends on this input. The VJP "
            "returns zeros or is None, or the value left the graph (detach(), .data, .numpy())."
        )
    if not J[:, known].any():
        return "numeric zero", (
            "the function does not change when the input moves (a step function, a value that is "
            "not used or cancels out), and the VJP gives a gradient."
        )
    if c := factor(R[:, known], J[:, known]):
        text = f"the gradient is {c:.6g} times what it should be"
        for n, power in product(sizes, (1, -1, 0.5, -0.5)):
            if n > 1 and abs(abs(c) / n**power - 1) < 1e-4:
                text += f" ({n}^{power}; {n} is a size of the input or output, as in a mean)"
                break
        return "sign" if abs(c + 1) < 1e-3 else "constant factor", f"{text}."
    return None


def at_some(R: Any, J: Any, bad: Any) -> Found:
    """Some columns are off, and the others right."""
    off, known = bad.ravel(), ~np.isnan(J).any(axis=0)
    R, J = R[:, off], J[:, off]
    if known.sum() < 2 or off.sum() > 0.7 * known.sum() and R.any():
        return None
    c = factor(R, J)
    how = f"{c:.6g} times what it should be" if c else "wrong" if R.any() else "zero"
    return "some elements", f"the gradient is {how} at {places(bad)}; the rest is right."


def of_whole(c: Case) -> Found:
    """The same for whole Jacobians."""
    finite = np.isfinite(c.J).all(axis=0)
    if not finite.all():
        return "domain", (
            "the function is not finite, or raises an error, a step to one side at "
            f"{places(~finite.reshape(c.x.shape))}: the input is on the edge of the domain (sqrt, "
            "log). Check it at inner points."
        )
    return everywhere(c.R, c.J, c.bad, c.y.shape + c.x.shape + (c.x.size,))


# ---- one matrix is a multiple of another


def turns(axes: int) -> list[tuple[int, ...]]:
    """The orders of so many axes, but for the first."""
    return list(permutations(range(axes)))[1:] if axes < 5 else []


def elsewhere(c: Case) -> Iterator[Row]:
    """R has the numbers of J at other places."""
    nx, ny, J4 = c.x.ndim, c.y.ndim, c.J.reshape(c.y.shape + c.x.shape)
    orders = [(*range(ny), *(ny + k for k in q)) for q in turns(nx)]
    orders += [(*p, *range(ny, ny + nx)) for p in turns(ny)]
    for order in orders:
        kind, text = "transposed", f"with the axes of g and x in the order {order}: transpose (.mT)"
        if c.x.size != c.y.size:
            kind, text = "wrong axis", "summed over, or spread along, the wrong axis"
        turned = J4.transpose(order).reshape(c.R.shape)
        yield kind, f"the gradient is the right one {text}", c.R, turned
    yield (
        "transposed",
        "the gradient is what the function does to the input, done to g: it takes the transpose of "
        "that. Transpose the matrix (.mT), sum from the other end, turn back, undo the permutation",
        *(c.R, c.J.T),
    )
    order = lambda M: M[:, np.lexsort(np.round(M / greatest(c.J), 5)[::-1])]
    for R, J in ((c.R, c.J), (c.R.T, c.J.T)):
        yield (
            "permuted",
            "the numbers are right but at the wrong elements. Look for an index that is off by one "
            "or reversed, argsort (its inverse is argsort of argsort), and reshape in place of "
            "swapaxes",
            *(order(R), order(J)),
        )


def factors(c: Case) -> Iterator[Row]:
    """R has a factor that J has not, or lacks one."""
    yield (
        "missing factor",
        "the gradient is g itself: the op's own derivative is left out",
        *(c.R, c.in_J * 1.0),
    )
    yield "wrong axis", "the gradient is the sum over all axes of g", c.R, np.ones(c.J.shape)
    inverse = np.where(c.in_J, 1 / c.J, 0)
    yield "inverted", "g is divided by the op's own derivative, not multiplied", c.R, inverse
    known = values(c) | {"x": c.x}
    quantities = {text.format(n): f(v) for n, v in known.items() for text, f in MAPS.items()}
    for axis, f in product(range(c.x.ndim), (np.std, np.linalg.norm)):
        quantities[f"1/{f.__name__}(x)"] = 1 / f(c.x, axis=axis, keepdims=True)
    for name, v in quantities.items():
        for shape, turn in ((c.x.shape, (1, -1)), (c.y.shape, (-1, 1))):
            with suppress(ValueError):  # it is not of this shape
                q = np.broadcast_to(v, shape).reshape(turn)
                if np.isfinite(q).all() and np.ptp(q):
                    yield "extra factor", f"the gradient has a factor {name} too many", c.R, c.J * q
                    yield "missing factor", f"the gradient lacks a factor {name}", c.R, c.J / q


def values(c: Case) -> dict[Any, Any]:
    """The output, and the operands of an op by number."""
    args = enumerate(c.f.call.args) if hasattr(c.f, "positions") else ()
    arrays = {k: a for k, a in args if isinstance(a, np.ndarray) and a.dtype.kind == "f"}
    return {"y": c.y} | arrays


def changed(c: Case, args: dict[Any, Any], f: Any = None) -> Any:
    """The Jacobian that the VJP gives with another y or other operands."""
    with suppress(Exception):
        call, position = c.f.call, c.f.positions[c.which]
        call = call.with_args([args.get(k, a) for k, a in enumerate(call.args)])
        pull = lambda g: {c.which: call.pull(g[0], y=args.get("y", c.y))[position]}
        return c.f.jacobian_by_rules(c.which, pull)
    return np.zeros(0)


def exchanged(c: Case) -> Iterator[Row]:
    """The VJP is right with another value in place of one."""
    known = values(c)
    for name, v in known.items() if len(known) > 1 else ():
        others = {str(other): w for other, w in known.items() if w.shape == v.shape}
        others |= {text.format(name): f(v) for text, f in MAPS.items()}
        others |= {f"its transpose {order}": v.transpose(order) for order in turns(v.ndim)}
        for text, w in others.items():
            kind = "transposed" if text.startswith("its") else "exchanged"
            text = f"the VJP is right once {name} is replaced by {text} (numbers are operands)"
            yield kind, text, changed(c, {name: w}), c.J


def ones(c: Case) -> Iterator[Row]:
    """The VJP is right where an operand of fewer axes, such as a weight, is all ones."""
    for k, a in values(c).items():
        with suppress(Exception):
            if k != "y" and 0 < a.ndim < c.x.ndim:
                args = [np.ones_like(a) if i == k else b for i, b in enumerate(c.f.call.args)]
                f = type(c.f)(c.f.call.with_args(args))
                yield (
                    "operand misplaced",
                    f"the VJP is right where operand {k} is all ones, and wrong for other values: "
                    "it is multiplied in at the wrong place, such as outside a sum that holds it",
                    *(f.jacobian_by_rules(c.which), f.jacobian(c.which)),
                )


def terms(c: Case) -> Iterator[Row]:
    """R - J is one term, or 1/R - 1/J, what g is divided by."""
    yield from (("missed use", text, c.R - c.J, part) for text, part in uses(c))
    if c.x.shape == c.y.shape and not c.mixes(c.in_J | c.in_R):
        a, b, x, y = np.diag(c.R), np.diag(c.J), c.x.ravel(), c.y.ravel()
        for name, t in {"1": x**0, "x": x, "y": y, "x^2": x * x, "y^2": y * y}.items():
            yield "missing term", f"the gradient is off by a term g times {name}", a - b, t
            text = f"what g is divided by is off by a term {name}"
            yield "missing term", text, 1 / a - 1 / b, t


def uses(c: Case) -> Iterator[tuple[str, Any]]:
    """The Jacobian of each use of x by the op's function, run on tensors."""
    with suppress(Exception):  # it may not run on tensors
        call, rows = c.f.call, list[Any]()
        assert isinstance(call.step.op, Op)
        leaves = [Backend().leaf(a) if n else a for a, n in zip(call.args, call.needs)]
        y, x = call.step.op.forward(*leaves, **call.settings), leaves[c.f.positions[c.which]]
        for e in np.eye(c.y.size):
            with watching(Contributions(x)) as seen:
                grad([y], [x], [e.reshape(c.y.shape)], retain_graph=True)
            rows.append(seen.found)
        for k, (name, _) in enumerate(rows[0]):
            text = f"the gradient is off by one of the {len(rows[0])} uses of x, that in {name}"
            yield text, np.array([row[k][1].ravel() for row in rows])


def multiples(c: Case) -> Found:
    """The first row whose first matrix is a multiple of the second."""
    for table in (ones, elsewhere, factors, exchanged, terms):
        for kind, text, a, b in table(c):
            if k := factor(a, b):
                return kind, f"{text}{f'; times {k:.6g}' * (abs(k - 1) > 1e-3)}."
    return None


# ---- which elements are zero


def zeros(c: Case) -> Found:
    """R and J are zero at different elements, or sum over different axes."""
    extra, lost = c.in_R & ~c.in_J, c.in_J & ~c.in_R
    of_R, of_J = c.mixes(c.in_R), c.mixes(c.in_J)
    if of_R != of_J:
        kind = "wrong axis" if set(of_R) - set(of_J) else "missing sum"
        return kind, f"the VJP sums over axes {of_R}, but the function mixes axes {of_J}."
    if c.x.size > 1 and (c.in_R.any(axis=0) == ~c.in_J.any(axis=0)).all():
        return "mask inverted", (
            "the gradient is zero exactly where it should not be, and the other way round: the VJP "
            "applies its mask or condition inverted."
        )
    if extra.any() and not lost.any():
        return "mask missing", (
            f"the slope is zero at {places(extra.any(axis=0).reshape(c.x.shape))} for some "
            "outputs, and the gradient is not. Multiply by the mask of the forward pass (a causal "
            "mask, or the element that is the maximum)."
        )
    if close(np.where(lost | extra, 0, c.R), np.where(lost | extra, 0, c.J)).all():
        if extra.any():
            return "another mask", (
                "the numbers are right, but zero at the wrong elements: the VJP uses another mask, "
                "or other indices, than the forward pass. Save the mask and use it in the VJP."
            )
        if (c.in_R.any(axis=0) == c.in_J.any(axis=0)).all():
            return left_out(c, lost)
    return at_some(c.R, c.J, c.bad)


def left_out(c: Case, lost: Any) -> Found:
    """R is J without some of the contributions to an element."""
    kept = np.argwhere(c.in_R.any(axis=1).reshape(c.y.shape))
    for axis, n in enumerate(c.y.shape):
        if n > 1 and not np.ptp(kept[:, axis]):
            return "missing sum", (
                f"of {n} elements along axis {axis} of the output only number {kept[0, axis]} is "
                "counted: the sum over that axis is missing, or each overwrites the one before."
            )
    if (c.in_R[:, c.bad.ravel()].sum(axis=0) == 1).all():
        return "repeated use", (
            f"the input at {places(c.bad)} is used several times, such as by a repeated index, but "
            "only one use is counted: each overwrites the one before (use np.add.at)."
        )
    at = places(lost.any(axis=1).reshape(c.y.shape))
    return "missed use", f"what comes from the output at {at} is left out. Does a loop end early?"


def no_pattern(c: Case) -> Found:
    """A sum over an axis, or else the element of the Jacobian that is off most."""
    if (axes := c.mixes(c.off)) and axes == c.mixes(c.in_J):
        return "missing sum", (
            f"the error mixes elements along axes {axes}: a term that holds a sum or mean over "
            "them is missing, scaled wrongly, or sums something else."
        )
    at = index_of_largest(c.R - c.J)
    y, x = (list(map(int, np.unravel_index(k, v.shape))) for k, v in zip(at, (c.y, c.x)))
    return "VJP", (
        f"no simple mistake explains it. The derivative of y{y} by x{x} is {c.J[at]:.6g}, and the "
        f"VJP gives {c.R[at]:.6g}."
    )


def explanation(f: Any, which: int) -> tuple[str, str]:
    """The kind of mistake in the gradient of one input, and a text that explains it."""
    with np.errstate(all="ignore"):
        c = Case(f, which)
        return of_whole(c) or multiples(c) or zeros(c) or no_pattern(c)
