"""What a gradient check found: an object that is true or false, reads as text and shows as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np


class Verdict:
    """What is true or false, and shows as its text: at a prompt its fields would be pages of
    arrays."""

    ok: Any

    def __bool__(self) -> bool:
        return bool(self.ok)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class Diagnosis(str):
    """The kind of a mistake, its short name, and the text that explains it; as a string, both."""

    kind: str
    text: str

    def __new__(cls, kind: str, text: str) -> Diagnosis:
        self = super().__new__(cls, f"{kind}: {text}" if kind else text)
        self.kind, self.text = kind, text
        return self

    def __getnewargs__(self) -> Any:  # for a copy, and for a report from another process
        return self.kind, self.text


@dataclass
class Entry:
    """One input: its gradient by the rules (`analytic`) and by central differences (`numeric`).

    `numeric` is NaN at elements that were not measured one by one, which happens for large inputs:
    those were measured in groups, a random projection of each.
    """

    name: str
    analytic: np.ndarray
    numeric: np.ndarray
    tolerance: np.ndarray
    missing: bool = False
    projections: int = 0
    projected_error: float = 0.0

    @property
    def error(self) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.where(
                np.isnan(self.numeric) & ~np.isnan(self.analytic),
                0,
                np.abs(self.analytic - self.numeric),
            )

    @property
    def wrong(self) -> np.ndarray:
        return ~(self.error <= self.tolerance)

    @property
    def measured(self) -> int:
        return int(np.sum(~np.isnan(self.numeric)))

    @property
    def ok(self) -> bool:
        return not self.wrong.any()

    @property
    def index(self) -> tuple[int, ...]:
        """The element with the largest error."""
        return index_of_largest(np.nan_to_num(self.error, nan=np.inf))

    @property
    def largest(self) -> float:
        """The largest error of an element or of a projection; NaN if one is."""
        return float(np.max(self.error, initial=self.projected_error))

    def __str__(self) -> str:
        shape = self.analytic.shape
        if self.ok:
            how = f"{self.projections} random projections of " if self.projections else ""
            agree = f"{how}{self.analytic.size} elements agree"
            return f"{self.name} {shape}: {agree}, largest error {self.largest:.1e}"
        i = self.index
        analytic = "None" if self.missing else f"{self.analytic[i]:.9g}"
        return (
            f"{self.name} {shape} at index {i}: analytic {analytic}, numeric "
            f"{self.numeric[i]:.9g}, error {self.error[i]:.3g}; {int(self.wrong.sum())} of "
            f"{self.measured} measured elements are off"
        )


@dataclass(repr=False)
class Report(Verdict):
    """The result of `gradcheck`: true if every gradient agrees.

    `entries` holds one Entry for each input, `worst` the one with the largest error, `diagnosis`
    what kind of mistake it looks like, `op` the op whose own rule is wrong (with `place`, the
    user's line, and `scope`, the module calls around it), `curve` the error of the worst element
    against eps.
    """

    entries: list[Entry] = field(default_factory=list)
    diagnosis: Diagnosis = field(default_factory=lambda: Diagnosis("", ""))
    op: str | None = None
    place: Any = None
    scope: str = ""
    culprits: list[str] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: int = 1
    better_steps: Sequence[float] = ()

    @property
    def ok(self) -> bool:
        return not self.diagnosis and all(e.ok for e in self.entries)

    def point_at(self, step: Any) -> None:
        """Name an op: what it is called, the module call around it, the user's line."""
        if step is not None:
            self.op, self.place, self.scope = step.name, step.place, step.module

    @property
    def worst(self) -> Entry | None:
        wrong = [e for e in self.entries if not e.ok]
        return max(wrong, key=lambda e: greatest(np.nan_to_num(e.error, nan=np.inf)), default=None)

    @property
    def _title(self) -> str:
        return "gradcheck" if self.order == 1 else f"gradcheck of order {self.order}"

    def _details(self) -> list[str]:
        """What is told after the table in HTML, and after the first line in text."""
        told = []
        if self.op:
            within = f" in {self.scope}" if self.scope else ""
            called = f", called at {self.place}" if self.place else ""
            told.append(f"op: {self.op}{within}{called}")
        if len(self.culprits) > 1:
            told.append(f"ops whose own rule is off: {', '.join(self.culprits)}")
        return told

    def __str__(self) -> str:
        notes = [f"note: {n}" for n in self.notes]
        if self.ok:
            return "\n  ".join([f"{self._title}: passed", *map(str, self.entries), *notes])
        lines = [f"{self._title}: FAILED" + (f" in {self.worst}" if self.worst else "")]
        if self.diagnosis:
            lines.append(f"diagnosis: {self.diagnosis}")
        lines += self._details()
        lines += [f"also off: {e}" for e in self.entries if not e.ok and e is not self.worst]
        lines += [f"fine: {e}" for e in self.entries if e.ok]
        return "\n  ".join([*lines, *_curve_text(self.curve), *notes])

    def _repr_html_(self) -> str:
        colour, verdict = ("#009E73", "passed") if self.ok else ("#D55E00", "FAILED")
        rows = "".join(
            f"<tr><td>{escape(e.name)}</td><td>{escape(str(e.analytic.shape))}</td><td>"
            f"{'ok' if e.ok else f'{int(e.wrong.sum())} of {e.measured} off'}</td>"
            f"<td>{e.largest if e.ok else e.error[e.index]:.2e}</td>"
            f"<td>{'' if e.ok and e.projections else escape(str(e.index))}</td></tr>"
            for e in self.entries
        )
        told = [str(self.worst)] if self.worst else []
        return (
            f"<p>{self._title}: <b style='color:{colour}'>{verdict}</b> {escape(self.diagnosis)}"
            "</p><table><tr><th>input</th><th>shape</th><th>verdict</th><th>largest error</th>"
            f"<th>where</th></tr>{rows}</table>"
            + "".join(f"<p>{escape(line)}</p>" for line in [*told, *self._details()])
            + _curve_svg(self.curve)
            + "".join(f"<p>{escape(n)}</p>" for n in self.notes)
        )


def _curve_text(curve: Sequence[tuple[float, float]]) -> list[str]:
    """A line for each step, or one for all if they make no difference."""
    if not curve:
        return []
    steps, errors = zip(*curve)
    if np.isfinite(errors).all() and max(errors) <= 2 * min(errors):
        text = f"{errors[len(errors) // 2]:.1e} with every eps from {max(steps):.0e}"
        text += f" to {min(steps):.0e}"
        return [f"error of the worst element: {text}, so the step is not to blame"]
    bars = (  # one mark for each decade above 1e-12
        "#" * round(np.log10(max(error, 1e-12)) + 12) if np.isfinite(error) else ""
        for error in errors
    )
    return [
        "error of the worst element against eps:",
        *(f"  {eps:7.0e}  {error:8.1e}  {bar}" for (eps, error), bar in zip(curve, bars)),
    ]


def _curve_svg(curve: Sequence[tuple[float, float]]) -> str:
    """log10 of the error over log10 of eps, a polyline."""
    if not curve:
        return ""
    xs, ys = np.log10(np.clip(np.transpose(curve), 1e-13, 1e3))
    points = " ".join(f"{20 + (x + 13) * 20:.0f},{10 + (3 - y) * 8:.0f}" for x, y in zip(xs, ys))
    return (
        "<svg width='300' height='160' role='img' aria-label='error against eps'><polyline "
        f"fill='none' stroke='#0072B2' stroke-width='2' points='{points}'/><text x='20' y='155' "
        "font-size='11'>log10 eps from -13 to 0; error from 1e-13 to 1e3</text></svg>"
    )


@dataclass
class Line:
    """One compared intermediate: `name, max abs, max rel, worst index, verdict`."""

    name: str
    verdict: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    index: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict in ("ok", "not asked for")


@dataclass(repr=False)
class Comparison(Verdict):
    """The result of `compare`: true if every named array agrees; prints a line for each."""

    lines: list[Line]

    @property
    def ok(self) -> bool:
        return bool(self.lines) and all(line.ok for line in self.lines)

    def __str__(self) -> str:
        width = max([4, *(len(line.name) for line in self.lines)])
        rows = [f"{'name':{width}}  max abs   max rel   worst index   verdict"]
        rows += [
            f"{line.name:{width}}  {line.max_abs:8.1e}  {line.max_rel:8.1e}  {line.index!s:12}  "
            f"{line.verdict}"
            for line in self.lines
        ]
        return "\n".join(rows)


def compare(mine: Any, reference: Any, *, atol: float = 1e-6, rtol: float = 1e-5) -> Comparison:
    """|mine - reference| <= atol + rtol |reference|, for each name of `reference`, in its order.

    Both are mappings from names to arrays, Tensors or numbers, or single ones of these.  Returns a
    Comparison, true if all agree, which prints a line for each name: largest absolute and relative
    error, where it is, and a verdict in words (a wrong shape, a transposed or scaled result and a
    missing name are said so).  Raises nothing for wrong values, so that it can mark an exercise.
    """
    if not isinstance(reference, Mapping):
        mine, reference = {"result": mine}, {"result": reference}
    # In an answer without names each name is missing, and the answer was not asked for.
    elif not isinstance(mine, Mapping):
        mine = {"result": mine}
    lines = []
    for name, expected in reference.items():
        if name not in mine or mine[name] is None:
            lines.append(Line(name, "missing", np.inf, np.inf))
            continue
        lines.append(_compare_one(name, _plain(mine[name]), _plain(expected), atol, rtol))
    lines += [Line(name, "not asked for") for name in mine if name not in reference]
    return Comparison(lines)


def _plain(x: Any) -> np.ndarray:
    x = getattr(x, "_data", x)
    try:
        return np.asarray(x.detach().numpy() if hasattr(x, "detach") else x)
    except (ValueError, TypeError):  # rows of different lengths, a list of Tensors
        return np.array(None)


def deviation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b| by element: 0 where both are the same, NaN too, and Inf where one alone is NaN."""
    with np.errstate(all="ignore"):
        error = np.abs(a - b)
    if np.isfinite(error).all():
        return error
    error = np.where((a == b) | np.isnan(a) & np.isnan(b), 0, error)
    return np.where(np.isnan(error), np.inf, error)


def greatest(v: np.ndarray) -> float:
    """The size of the largest element; 0 if there is none."""
    return float(np.abs(v).max(initial=0))


def index_of_largest(v: np.ndarray) -> tuple[int, ...]:
    """Where the largest element is; () of an empty array."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(v)), v.shape)) if v.size else ()


def _compare_one(name: str, a: np.ndarray, b: np.ndarray, atol: float, rtol: float) -> Line:
    if a.dtype.kind not in "fiub":
        return Line(name, f"holds {a.dtype}, expected numbers", np.inf, np.inf)
    if a.shape != b.shape:
        turned = " (transposed?)" if a.shape == b.shape[::-1] else ""
        return Line(name, f"shape {a.shape}, expected {b.shape}{turned}", np.inf, np.inf)
    a, b = a.astype(np.float64), b.astype(np.float64)
    error = deviation(a, b)
    with np.errstate(all="ignore"):
        relative = np.where(error == 0, 0, error / np.abs(b))
    bad = ~(error <= atol + rtol * np.abs(np.nan_to_num(b)))
    verdict = _in_words(a, b, bad, atol, rtol) if bad.any() else "ok"
    largest, most = (float(np.max(v, initial=0)) for v in (error, relative))
    return Line(name, verdict, largest, most, index_of_largest(error))


def _in_words(a: np.ndarray, b: np.ndarray, bad: np.ndarray, atol: float, rtol: float) -> str:
    """A verdict on a wrong array, with a guess where the pattern is plain."""
    count = f"{int(bad.sum())} of {bad.size} off"
    if not np.isfinite(a).all():
        return f"{count}: NaN or Inf"
    if not a.any():
        return f"{count}: zero everywhere"
    close = lambda p, q: p.shape == q.shape and np.allclose(p, q, atol=atol, rtol=max(rtol, 1e-9))
    if a.ndim == 2 and close(a.T, b):
        return f"{count}: transposed"
    factor = float(np.sum(a * b) / max(np.sum(b * b), 1e-300))
    if factor and close(a, factor * b):
        size = "too large" if abs(factor) > 1 else "as large"
        return f"{count}: {'the sign' if abs(factor + 1) < 1e-6 else f'{factor:.6g} times {size}'}"
    return count
