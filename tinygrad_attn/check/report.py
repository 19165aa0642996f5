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
    """A text that explains a mistake, and begins with its kind, which `kind` holds alone."""

    kind: str

    def __new__(cls, kind: str = "", text: str = "") -> Diagnosis:
        self = super().__new__(cls, f"{kind}: {text}" if kind and text else kind + text)
        self.kind = kind
        return self


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
    floor: float = 0.0  # the size of rounding errors
    unmeasurable: list[int] = field(default_factory=list)

    @property
    def error(self) -> Array:
        """|analytic - numeric|, and 0 where nothing was measured or nothing is expected."""
        unknown = np.isnan(self.numeric) & np.isfinite(self.analytic) | np.isinf(self.tolerance)
        with np.errstate(invalid="ignore"):
            return np.where(unknown, 0, np.abs(self.analytic - self.numeric))

    @property
    def wrong(self) -> Array:
        """The elements whose error is larger than the tolerance."""
        return ~(self.error <= self.tolerance)

    @property
    def ok(self) -> bool:
        """Whether every element was measured and is right."""
        return not self.unmeasurable and not self.wrong.any()

    @property
    def index(self) -> tuple[int, ...]:
        """The element with the largest error."""
        return index_of_largest(np.nan_to_num(self.error, nan=np.inf))

    @property
    def largest(self) -> float:
        """The largest error of an element or of a projection."""
        return float(np.max(self.error, initial=self.projected_error))

    def __str__(self) -> str:
        i, name = self.index, f"{self.name} {self.analytic.shape}"
        if self.ok:
            how = f"{self.projections} random projections of " if self.projections else ""
            return (
                f"{name}: {how}{self.analytic.size} elements agree, largest error "
                f"{self.largest:.1e}"
            )
        analytic = "None" if self.missing else f"{self.analytic[i]:.9g}"
        return (
            f"{name} at index {i}: analytic {analytic}, numeric {self.numeric[i]:.9g}, error "
            f"{self.error[i]:.3g}; {self.wrong.sum()} of {np.sum(~np.isnan(self.numeric))} "
            "measured elements are off"
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
        """Whether there is no diagnosis and every entry is right."""
        return not self.diagnosis and all(e.ok for e in self.entries)

    def point_at(self, step: Any) -> None:
        """Name an op, the module around it and the user's line."""
        if step is not None:
            self.op, self.place, self.scope = step.name, step.place, step.module

    @property
    def worst(self) -> Entry | None:
        """The entry with the largest error; None if all are right."""
        off = [e for e in self.entries if not e.ok]
        return max(off, key=lambda e: greatest(np.nan_to_num(e.error, nan=np.inf)), default=None)

    def __str__(self) -> str:
        title = "gradcheck" if self.order == 1 else f"gradcheck of order {self.order}"
        worst, rest = self.worst, [e for e in self.entries if e is not self.worst]
        if self.ok:
            lines = [f"{title}: passed", *map(str, rest)]
        else:
            lines = [f"{title}: FAILED" + (f" in {worst}" if worst else "")]
            if self.diagnosis:
                lines.append(f"diagnosis: {self.diagnosis}")
            if self.op:
                within = f" in {self.scope}" if self.scope else ""
                called = f", called at {self.place}" if self.place else ""
                lines.append(f"op: {self.op}{within}{called}")
            if len(self.culprits) > 1:
                lines.append(f"ops whose own VJP is off: {', '.join(self.culprits)}")
            lines += [f"{'fine' if e.ok else 'also off'}: {e}" for e in rest]
        return "\n  ".join([*lines, *(f"note: {note}" for note in self.notes)])


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
        """Whether the arrays agree, or there is nothing to compare with."""
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
        """Whether every line is right, and there is one."""
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
        reference, mine = {"result": reference}, {"result": mine}
    elif not isinstance(mine, Mapping):
        mine = {"result": mine}
    lines = [_line(name, mine.get(name), b, rtol, atol) for name, b in reference.items()]
    return Comparison(lines + [Line(n, "not asked for") for n in mine if n not in reference])


def _plain(x: Any) -> Array:
    return np.asarray(x.detach() if hasattr(x, "detach") else x)


def _line(name: str, mine: Any, reference: Any, rtol: float, atol: float) -> Line:
    a, b = _plain(mine), _plain(reference)
    unlike = ""
    if mine is None:
        unlike = "missing"
    elif a.dtype.kind not in "fiub":
        unlike = f"holds {a.dtype}, expected numbers"
    elif a.shape != b.shape:
        turned = " (transposed?)" if a.shape == b.shape[::-1] else ""
        unlike = f"shape {a.shape}, expected {b.shape}{turned}"
    if unlike:
        return Line(name, unlike, np.inf, np.inf)
    a, b = a.astype(np.float64), b.astype(np.float64)
    error = deviation(a, b)
    with np.errstate(all="ignore"):
        relative = np.where(error == 0, 0, error / np.abs(b))
    largest, most = (float(np.max(v, initial=0)) for v in (error, relative))
    verdict = "ok" if same(a, b, rtol, atol) else _in_words(a, b, rtol, atol)
    return Line(name, verdict, largest, most, index_of_largest(error))


def _in_words(a: Array, b: Array, rtol: float, atol: float) -> str:
    """How many elements are off, and what the difference looks like."""
    bad = ~near(a, b, rtol, atol)
    factor = np.sum(a * b) / max(np.sum(b * b), 1e-300)
    looks = {
        "NaN or Inf": not np.isfinite(a).all(),
        "zero everywhere": not a.any(),
        "transposed": same(a.T, b, rtol, atol),
        f"{factor:.6g} times what it should be": same(a, factor * b, rtol, atol),
    }
    found = [words for words, fits in looks.items() if fits]
    return ": ".join([f"{bad.sum()} of {bad.size} off", *found[:1]])


def deviation(a: Array, b: Array) -> Array:
    """|a - b| by element: 0 where both are the same, NaN too, and Inf where one alone is NaN."""
    with np.errstate(all="ignore"):
        error = np.abs(np.subtract(a, b, dtype=np.float64))
    error = np.where((a == b) | np.isnan(a) & np.isnan(b), 0, error)
    return np.where(np.isnan(error), np.inf, error)


def near(a: Array, b: Array, rtol: float = 0, atol: Any = 0) -> Array:
    """Where |a - b| <= atol + rtol |b|."""
    return deviation(a, b) <= atol + rtol * np.abs(np.nan_to_num(b))


def same(a: Array, b: Array, rtol: float = 0, atol: Any = 0) -> bool:
    """Whether two arrays have one shape and are near everywhere."""
    return a.shape == b.shape and bool(near(a, b, rtol, atol).all())


def greatest(v: Array) -> float:
    """The size of the largest element; 0 if there is none."""
    return float(np.abs(v).max(initial=0))


def index_of_largest(v: Array) -> tuple[int, ...]:
    """Where the largest element is; () of an empty array."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(v)), v.shape)) if v.size else ()
