"""What a check found: objects that are true or false and print as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


class Verdict:
    """True or false, and shown as its text."""

    ok: Any

    def __bool__(self) -> bool:
        return bool(self.ok)

    def __repr__(self) -> str:
        return str(self)


class Diagnosis(str):
    """The kind of a mistake and the text that explains it; as a string, both."""

    kind: str
    text: str

    def __new__(cls, kind: str = "", text: str = "") -> Diagnosis:
        self = super().__new__(cls, f"{kind}: {text}" if kind else text)
        self.kind, self.text = kind, text
        return self

    def __getnewargs__(self) -> Any:  # for copy and pickle
        return self.kind, self.text


@dataclass
class Entry:
    """One input: its gradient by the VJPs (`analytic`) and by finite differences (`numeric`).

    `numeric` is NaN at elements that were not measured one by one: large inputs are measured in
    random projections.
    """

    name: str
    analytic: Array
    numeric: Array
    tolerance: Array
    missing: bool = False
    projections: int = 0
    projected_error: float = 0.0
    floor: float = 0.0  # what rounding makes
    unmeasurable: list[int] = field(default_factory=list)

    @property
    def error(self) -> Array:
        with np.errstate(invalid="ignore"):
            unknown = np.isnan(self.numeric) & np.isfinite(self.analytic)
            return np.where(unknown, 0, np.abs(self.analytic - self.numeric))

    @property
    def wrong(self) -> Array:
        return ~(self.error <= self.tolerance)

    @property
    def ok(self) -> bool:
        return not self.unmeasurable and not self.wrong.any()

    @property
    def measured(self) -> int:
        return int(np.sum(~np.isnan(self.numeric)))

    @property
    def index(self) -> tuple[int, ...]:
        """The element with the largest error."""
        return index_of_largest(np.nan_to_num(self.error, nan=np.inf))

    @property
    def largest(self) -> float:
        """The largest error of an element or of a projection."""
        return float(np.max(self.error, initial=self.projected_error))

    def __str__(self) -> str:
        shape = self.analytic.shape
        if self.ok:
            how = f"{self.projections} random projections of " if self.projections else ""
            size = f"{how}{self.analytic.size} elements agree"
            return f"{self.name} {shape}: {size}, largest error {self.largest:.1e}"
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
    the kind of mistake, `op` the op whose own VJP is wrong, with `place`, the user's line, and
    `scope`, the modules around it; `culprits` names all ops that are wrong.
    """

    entries: list[Entry] = field(default_factory=list)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    op: str | None = None
    place: Any = None
    scope: str = ""
    culprits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: int = 1

    @property
    def ok(self) -> bool:
        return not self.diagnosis and all(e.ok for e in self.entries)

    def point_at(self, step: Any) -> None:
        """Name an op, the module around it and the user's line."""
        if step is not None:
            self.op, self.place, self.scope = step.name, step.place, step.module

    @property
    def worst(self) -> Entry | None:
        off = [e for e in self.entries if not e.ok]
        return max(off, key=lambda e: greatest(np.nan_to_num(e.error, nan=np.inf)), default=None)

    def __str__(self) -> str:
        title = "gradcheck" if self.order == 1 else f"gradcheck of order {self.order}"
        notes = [f"note: {n}" for n in self.notes]
        if self.ok:
            return "\n  ".join([f"{title}: passed", *map(str, self.entries), *notes])
        lines = [f"{title}: FAILED" + (f" in {self.worst}" if self.worst else "")]
        if self.diagnosis:
            lines.append(f"diagnosis: {self.diagnosis}")
        if self.op:
            within = f" in {self.scope}" if self.scope else ""
            called = f", called at {self.place}" if self.place else ""
            lines.append(f"op: {self.op}{within}{called}")
        if len(self.culprits) > 1:
            lines.append(f"ops whose own VJP is off: {', '.join(self.culprits)}")
        lines += [f"also off: {e}" for e in self.entries if not e.ok and e is not self.worst]
        lines += [f"fine: {e}" for e in self.entries if e.ok]
        return "\n  ".join([*lines, *notes])


# ---- arrays beside arrays


@dataclass
class Line:
    """One comparison: `name, max abs, max rel, worst index, verdict`."""

    name: str
    verdict: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    index: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict in ("ok", "not asked for")

    def __str__(self) -> str:
        if self.max_abs == np.inf and not self.index:  # there are no numbers to compare
            return f"{'':33}{self.verdict}"
        return f"{self.max_abs:8.1e}  {self.max_rel:8.1e}  {self.index!s:12}  {self.verdict}"


@dataclass(repr=False)
class Comparison(Verdict):
    """The result of `compare`: true if every named array agrees; prints a line for each."""

    lines: list[Line]

    @property
    def ok(self) -> bool:
        return bool(self.lines) and all(line.ok for line in self.lines)

    def __str__(self) -> str:
        width = max([4, *(len(line.name) for line in self.lines)])
        rows = [f"{line.name:{width}}  {line}" for line in self.lines]
        return "\n".join([f"{'name':{width}}  max abs   max rel   worst index   verdict", *rows])


def compare(mine: Any, reference: Any, *, atol: float = 1e-6, rtol: float = 1e-5) -> Comparison:
    """Compare arrays by name: |mine - reference| <= atol + rtol |reference|.

    Both are mappings from names to arrays, Tensors or numbers, or single ones of these. Returns a
    Comparison, true if all agree, with a line for each name: the largest absolute and relative
    error, where it is, and a verdict in words. Wrong values raise nothing.
    """
    if not isinstance(reference, Mapping):
        mine, reference = {"result": mine}, {"result": reference}
    elif not isinstance(mine, Mapping):
        mine = {"result": mine}
    lines = []
    for name, expected in reference.items():
        if name not in mine or mine[name] is None:
            lines.append(Line(name, "missing", np.inf, np.inf))
        else:
            lines.append(_compare_one(name, _plain(mine[name]), _plain(expected), atol, rtol))
    return Comparison(lines + [Line(n, "not asked for") for n in mine if n not in reference])


def _plain(x: Any) -> Array:
    x = getattr(x, "_data", x)
    try:
        return np.asarray(x.detach().numpy() if hasattr(x, "detach") else x)
    except (ValueError, TypeError):  # rows of different lengths, a list of Tensors
        return np.array(None)


def _compare_one(name: str, a: Array, b: Array, atol: float, rtol: float) -> Line:
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


def _in_words(a: Array, b: Array, bad: Array, atol: float, rtol: float) -> str:
    """How many elements are off, and what the difference looks like."""
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
        if abs(factor + 1) < 1e-6:
            return f"{count}: the sign"
        return f"{count}: {factor:.6g} times {'too large' if abs(factor) > 1 else 'as large'}"
    return count


def deviation(a: Array, b: Array) -> Array:
    """|a - b| by element: 0 where both are the same, NaN too, and Inf where one alone is NaN."""
    with np.errstate(all="ignore"):
        error = np.abs(a - b)
    error = np.where((a == b) | np.isnan(a) & np.isnan(b), 0, error)
    return np.where(np.isnan(error), np.inf, error)


def greatest(v: Array) -> float:
    """The size of the largest element; 0 if there is none."""
    return float(np.abs(v).max(initial=0))


def index_of_largest(v: Array) -> tuple[int, ...]:
    """Where the largest element is; () of an empty array."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(v)), v.shape)) if v.size else ()
