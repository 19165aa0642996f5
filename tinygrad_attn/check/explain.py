"""What a wrong VJP looks like: its whole Jacobian beside the right one.

R is the Jacobian that the VJP gives, a unit of g at a time, and J the one of slopes. Both have the
shape (elements of the output, elements of the input). A hypothesis says what R is, such as c J, or
what would make the VJP right, such as another operand. The first that fits is reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine import Op, grad, watching
from .faults import inconsistent
from .report import greatest, index_of_largest, near
from .slopes import flatten
from .trace import Backend, Contributions

Found = tuple[str, str] | None
"""The kind of a mistake and the text that explains it."""

MAPS: dict[str, Callable[[Any], Any]] = {
    "{}": lambda v: v, "1/{}": lambda v: 1 / v, "{}^2": np.square, "1 - {}": lambda v: 1 - v,
    "exp({})": np.exp, "sqrt({})": np.sqrt, "cos({})": np.cos,
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
    return c if c and close(a, c * b).all() else 0.0


class Case:
    """A function, one of its inputs x, the output y, the Jacobians and where they are not zero."""

    def __init__(self, f: Any, which: int) -> None:
        self.f, self.which, self.x = f, which, f.inputs[which]
        self.call: Any = f.call if hasattr(f, "positions") else None  # of a single op
        self.position = f.positions[which] if self.call else 0  # among all operands of the op
        self.y = f.values[0] if len(f.values) == 1 else flatten(f.values)
        R, J = f.jacobian_by_rules(which), f.jacobian(which)
        self.R = np.where(np.isinf(self.y).reshape(-1, 1), 0, R)  # what stays infinite has no slope
        self.J = np.where(np.abs(J) < 1e-8 * greatest(np.nan_to_num(J)), 0, J)
        with np.errstate(invalid="ignore"):
            self.hr, self.hj = (np.abs(M) > 1e-7 * greatest(M) for M in (self.R, self.J))
        self.off = ~close(self.R, self.J, 1e-4)
        self.bad = self.off.any(axis=0).reshape(self.x.shape)
        arrays = enumerate(self.call.args if self.call else ())
        self.operands: dict[int, Any] = {
            k: a for k, a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f"
        }

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
        kind, text = "constant factor", f"the gradient is {c:.6g} times what it should be"
        for n, power in itertools.product(sizes, (1, -1, 0.5, -0.5)):
            if n > 1 and abs(abs(c) / n**power - 1) < 1e-4:
                text += f" ({n}^{power}; {n} is a size of the input or output, as in a mean)"
                break
        return "sign" if abs(c + 1) < 1e-3 else kind, f"{text}."
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
    """The same for whole Jacobians, and a VJP that is not linear in g."""
    finite = np.isfinite(c.J).all(axis=0)
    if not finite.all():
        return "domain", (
            "the function is not finite, or raises an error, a step to one side at "
            f"{places(~finite.reshape(c.x.shape))}: the input is on the edge of the domain (sqrt, "
            "log). Check it at inner points."
        )
    if c.call and np.isfinite(c.R).all() and (found := inconsistent(c.call, c.f.cotangents[0])):
        return found[0], f"the VJP {found[1]}"
    return everywhere(c.R, c.J, c.bad, c.y.shape + c.x.shape + (c.x.size,))


# ---- R is another matrix


def matrices(c: Case) -> Iterator[tuple[str, str, Any]]:
    """(kind, text, what R is up to a factor)."""
    nx, ny, J4 = c.x.ndim, c.y.ndim, c.J.reshape(c.y.shape + c.x.shape)
    turns = lambda n: list(itertools.permutations(range(n)))[1:] if n < 5 else []
    orders = [(*range(ny), *(ny + k for k in q)) for q in turns(nx)]
    orders += [(*p, *range(ny, ny + nx)) for p in turns(ny)]
    for order in orders:
        kind, text = "transposed", f"with the axes of g and x in the order {order}: transpose (.mT)"
        if nx != ny:
            kind, text = "wrong axis", "summed over, or spread along, the wrong axis"
        yield kind, f"the right one {text}", J4.transpose(order)
    yield "missing factor", "g itself: the op's own derivative is left out", c.hj * 1.0
    yield "wrong axis", "the sum over all axes of g: too many axes", np.ones(c.J.shape)
    yield (
        "transposed",
        "what the function does to the input, done to g: it takes the transpose of that. Transpose "
        "the matrix (.mT), sum from the other end, turn back, undo the permutation",
        c.J.T,
    )
    inverse = np.divide(1, c.J, out=np.zeros(c.J.shape), where=c.hj)
    yield "inverted", "g divided by the op's own derivative, where it is g times that", inverse
    values = {"x": c.x, "y": c.y} | {f"operand {k}": a for k, a in c.operands.items()}
    for axis in range(c.x.ndim):
        values |= {
            f"{f.__name__}(x)": f(c.x, axis=axis, keepdims=True) for f in (np.std, np.linalg.norm)
        }
    for (name, v), (text, f) in itertools.product(values.items(), MAPS.items()):
        for shape, turn in ((c.x.shape, (1, -1)), (c.y.shape, (-1, 1))):
            with suppress(ValueError):  # it is not of this shape
                q, what = np.broadcast_to(f(v), shape).reshape(turn), text.format(name)
                if text != "1/{}" and np.isfinite(q).all() and np.ptp(q):
                    yield "extra factor", f"the right one times {what}, a factor too many", c.J * q
                    yield "missing factor", f"the right one without its factor {what}", c.J / q


def another_matrix(c: Case) -> Found:
    """R is a known matrix, or has the columns or rows of J in another order."""
    for kind, text, M in matrices(c):
        if k := factor(c.R, M.reshape(c.R.shape) if M.size == c.R.size else M):
            return kind, f"the gradient is {text}{f' (times {k:.6g})' * (abs(k - 1) > 1e-3)}."
    order = lambda M: M[:, np.lexsort(np.round(M / greatest(c.J), 5)[::-1])]
    if any(close(order(R), order(J)).all() for R, J in ((c.R, c.J), (c.R.T, c.J.T))):
        return "permuted", (
            "the numbers are right but at the wrong elements. Look for an index that is off by "
            "one or reversed, argsort (its inverse is argsort of argsort), and reshape in place of "
            "swapaxes."
        )
    return None


# ---- other values in the VJP make it right


def changes(c: Case) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, text, what is changed) of what may make the VJP right."""
    put = lambda new: dict(args=[new.get(k, a) for k, a in enumerate(c.call.args)])
    for k, a in c.operands.items():
        for order in list(itertools.permutations(range(a.ndim)))[1:] if a.ndim < 4 else ():
            moved = put({k: a.transpose(order)})
            yield "transposed", f"operand {k} is transposed to {order} (.mT)", moved
    for k, m in itertools.combinations(c.operands, 2):
        exchanged = put({k: c.operands[m], m: c.operands[k]})
        yield "exchanged", f"operands {k} and {m} change places", exchanged
    if c.x.shape == c.y.shape:
        yield "exchanged", "the output y is replaced by the input x", dict(y=c.x)
        yield "exchanged", "the input x is replaced by the output y", put({c.position: c.y})
    for text, f in MAPS.items():
        yield "exchanged", f"the output y is replaced by {text.format('y')}", dict(y=f(c.y))
        for k, a in c.operands.items():
            name = f"operand {k}"
            yield "exchanged", f"{name} is replaced by {text.format(name)}", put({k: f(a)})


def another_value(c: Case) -> Found:
    """The VJP is right with another g, y or operand."""
    for kind, text, change in changes(c) if c.call else ():
        with suppress(Exception):
            call = c.call.with_args(change["args"]) if "args" in change else c.call
            pull = lambda g: {c.which: call.pull(g[0], y=change.get("y", c.call.y))[c.position]}
            if close(c.f.jacobian_by_rules(c.which, pull), c.J).all():
                return kind, f"the VJP is right once {text}."
    return None


def right_for_ones(c: Case) -> Found:
    """An operand of fewer axes, such as a weight, for whose ones the VJP is right."""
    for k, a in c.operands.items():
        with suppress(Exception):
            if 0 < a.ndim < c.x.ndim:
                ones = [np.ones_like(a) if i == k else b for i, b in enumerate(c.call.args)]
                f = type(c.f)(c.call.with_args(ones))
                if close(f.jacobian_by_rules(c.which), f.jacobian(c.which)).all():
                    return "operand misplaced", (
                        f"the VJP is right where operand {k} is all ones, and wrong for other "
                        "values: it is multiplied in at the wrong place, such as outside a sum "
                        "that holds it, or left out."
                    )
    return None


# ---- R lacks something, or has something too many


def uses(c: Case) -> Iterator[tuple[str, str, Any]]:
    """(kind, text, Jacobian of one use) of each use of x by the op's function, run on tensors."""
    if c.call and isinstance(c.call.step.op, Op):
        with suppress(Exception):  # it may not run on tensors
            op, rows = c.call.step.op, list[Any]()
            leaves = [Backend().leaf(a) if n else a for a, n in zip(c.call.args, c.call.needs)]
            y, x = op.forward(*leaves, **c.call.settings), leaves[c.position]
            for e in np.eye(c.y.size):
                with watching(Contributions(x)) as seen:
                    grad([y[0] if op.saves else y], [x], [e.reshape(c.y.shape)], retain_graph=True)
                rows.append(seen.found)
            for k, (name, _) in enumerate(rows[0]):
                part = np.array([row[k][1].ravel() for row in rows])
                yield "missed use", f"the use of x in {name}, of {len(rows[0])} uses", part


def terms(c: Case) -> Found:
    """R - J is a multiple of one term, or 1/R - 1/J, what g is divided by."""
    found, D = list(uses(c)), c.R - c.J
    if c.x.shape == c.y.shape and not c.mixes(c.hj | c.hr):
        values = {"1": c.x**0, "x": c.x, "y": c.y, "x^2": c.x**2, "y^2": c.y**2}
        found += [("missing term", f"a term {t}", np.diag(v.ravel())) for t, v in values.items()]
    divisor = np.divide(1, c.R, where=c.hr, out=0 * D) - np.divide(1, c.J, where=c.hj, out=0 * D)
    for what, M in {"the gradient": D, "what the VJP divides g by": divisor}.items():
        for kind, text, term in found:
            if k := factor(M, term):
                much = f"{abs(k):.4g} times too {'often' if k > 0 else 'little'}"
                return kind, f"{text} is counted {much} in {what}."
    return None


def zeros(c: Case) -> Found:
    """R and J are zero at different elements, or sum over different axes."""
    extra, lost = c.hr & ~c.hj, c.hj & ~c.hr
    of_r, of_j = c.mixes(c.hr), c.mixes(c.hj)
    if of_r != of_j:
        kind = "wrong axis" if set(of_r) - set(of_j) else "missing sum"
        return kind, f"the VJP sums over axes {of_r}, but the function mixes axes {of_j}."
    if c.x.size > 1 and (c.hr.any(axis=0) == ~c.hj.any(axis=0)).all():
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
        if (c.hr.any(axis=0) == c.hj.any(axis=0)).all():
            return left_out(c, lost)
    return at_some(c.R, c.J, c.bad)


def left_out(c: Case, lost: Any) -> Found:
    """R is J without some of the contributions to an element."""
    kept = np.argwhere(c.hr.any(axis=1).reshape(c.y.shape))
    for axis, n in enumerate(c.y.shape):
        if n > 1 and not np.ptp(kept[:, axis]):
            return "missing sum", (
                f"of {n} elements along axis {axis} of the output only number {kept[0, axis]} is "
                "counted: the sum over that axis is missing, or each overwrites the one before."
            )
    if (c.hr[:, c.bad.ravel()].sum(axis=0) == 1).all():
        return "repeated use", (
            f"the input at {places(c.bad)} is used several times, such as by a repeated index, but "
            "only one use is counted: each overwrites the one before (use np.add.at)."
        )
    at = places(lost.any(axis=1).reshape(c.y.shape))
    return "missed use", f"what comes from the output at {at} is left out. Does a loop end early?"


def no_pattern(c: Case) -> Found:
    """A sum over an axis, or else the element of the Jacobian that is off most."""
    if (axes := c.mixes(c.off)) and axes == c.mixes(c.hj):
        return "missing sum", (
            f"the error mixes elements along axes {axes}: a term that holds a sum or mean over "
            "them is missing, scaled wrongly, or sums something else."
        )
    at = index_of_largest(c.R - c.J)
    y, x = (list(map(int, np.unravel_index(k, v.shape))) for v, k in zip((c.y, c.x), at))
    return "VJP", (
        f"no simple mistake explains it; derive the VJP again. The derivative of y{y} by x{x} is "
        f"{c.J[at]:.6g}, and the VJP gives {c.R[at]:.6g} there."
    )


HYPOTHESES = (
    of_whole, right_for_ones, another_matrix, another_value, terms, zeros, no_pattern,
)  # fmt: skip


def explanation(c: Case) -> tuple[str, str]:
    """The first hypothesis that fits."""
    with np.errstate(all="ignore"):
        return next(found for hypothesis in HYPOTHESES if (found := hypothesis(c)) is not None)
