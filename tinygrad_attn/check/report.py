"""The results of checks, which are true or false and print as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


class Verdict:
    """A result whose truth value is `ok` and whose repr is its text."""

    ok: Any

    def __bool__(self) -> bool:
        return bool(self.ok)

    def __repr__(self) -> str:
        return str(self)


class Diagnosis(str):
    """A text such as "zero: the gradient is zero everywhere", which begins with its `kind`."""

    @property
    def kind(self) -> str:
        """The kind of mistake, such as "zero", or an empty string if there is none."""
        return self.partition(":")[0]


@dataclass
class Entry:
    """The gradient of one input from the VJPs (`analytic`) and from finite differences (`numeric`).

    `numeric` is NaN at elements that were measured only in random projections.
    """

    name: str
    analytic: Array
    numeric: Array
    tolerance: Array
    missing: bool = False
    projections: int = 0
    excuse: str = ""  # why an element has no usable slope: "kink", "domain" or "precision"

    @property
    def error(self) -> Array:
        """|analytic - numeric|, or 0 where an element was not measured or has no slope."""
        unknown = np.isnan(self.numeric) & np.isfinite(self.analytic) | np.isinf(self.tolerance)
        return np.where(unknown, 0, deviation(self.analytic, np.nan_to_num(self.numeric)))

    @property
    def wrong(self) -> Array:
        return self.error > self.tolerance

    @property
    def ok(self) -> bool:
        """Whether every element has a slope that agrees with the gradient."""
        return not self.excuse and not self.wrong.any()

    @property
    def index(self) -> tuple[int, ...]:
        """The index of the largest error."""
        return index_of_largest(self.error)

    def __str__(self) -> str:
        i, name = self.index, f"{self.name} {self.analytic.shape}"
        if self.ok:
            if self.projections:
                return f"{name}: {self.projections} random projections agree"
            error = f"largest error {greatest(self.error):.1e}"
            return f"{name}: {self.analytic.size} elements agree, {error}"
        analytic = "None" if self.missing else f"{self.analytic[i]:.9g}"
        return (
            f"{name} at index {i}: analytic {analytic}, numeric {self.numeric[i]:.9g}, error "
            f"{self.error[i]:.3g}; {self.wrong.sum()} of {np.sum(~np.isnan(self.numeric))} "
            "measured elements are off"
        )


@dataclass(repr=False)
class Report(Verdict):
    """The result of `gradcheck`, which is true if every gradient agrees.

    `entries` has an Entry for each input, and `worst` is the one with the largest error.
    `diagnosis` explains the mistake. `op` names the op whose VJP is wrong. `place` is the user's
    line that called this op, and `scope` is the name of the op's module.
    """

    entries: list[Entry] = field(default_factory=list)
    diagnosis: Diagnosis = Diagnosis()
    op: str | None = None
    place: str = ""
    scope: str = ""
    notes: list[str] = field(default_factory=list)
    order: int = 1

    @property
    def ok(self) -> bool:
        return not self.diagnosis and all(e.ok for e in self.entries)

    @property
    def worst(self) -> Entry | None:
        """The entry with the largest error, or None if all are right."""
        return worst_of(self.entries)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for a program: verdict, kind of mistake, operand, index and texts."""
        worst = self.worst
        return {
            "ok": self.ok,
            "kind": self.diagnosis.kind,
            "operand": worst.name if worst else None,
            "index": list(worst.index) if worst else None,
            "diagnosis": str(self.diagnosis),
            "notes": self.notes,
            "text": str(self),
        }

    def __str__(self) -> str:
        title = "gradcheck" if self.order == 1 else f"gradcheck of order {self.order}"
        worst, rest = self.worst, [e for e in self.entries if e is not self.worst]
        place = f", called at {self.place}" * bool(self.place)
        lines = [
            f"{title}: passed" if self.ok else f"{title}: FAILED" + f" in {worst}" * bool(worst),
            f"diagnosis: {self.diagnosis}" * bool(self.diagnosis),
            f"op: {self.op}{f' in {self.scope}' * bool(self.scope)}{place}" * bool(self.op),
            *(str(e) if self.ok else f"{'fine' if e.ok else 'also off'}: {e}" for e in rest),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n  ".join(filter(None, lines))


def worst_of(entries: list[Entry]) -> Entry | None:
    """Return the entry with the largest error, or None; results come before gradients."""
    off = [e for e in entries if not e.ok]
    off = [e for e in off if e.name.startswith("result")] or off
    return max(off, key=lambda e: greatest(e.error), default=None)


def wrong_among(entries: list[Entry]) -> list[Entry]:
    """Return the entries with a wrong gradient or result."""
    return [e for e in entries if e.wrong.any()]


def deviation(a: Array, b: Array) -> Array:
    """Return |a - b| for each element, with 0 where both are NaN and Inf where only one is."""
    with np.errstate(all="ignore"):
        error = np.abs(np.subtract(a, b, dtype=np.float64))
    error = np.where((a == b) | np.isnan(a) & np.isnan(b), 0, error)
    return np.where(np.isnan(error), np.inf, error)


def near(a: Array, b: Array, rtol: float = 0, atol=0) -> Array:
    """Return a mask of where |a - b| <= atol + rtol |b|."""
    return deviation(a, b) <= atol + rtol * np.abs(np.nan_to_num(b))


def agree(a: Array, b: Array, rtol: float = 0, atol=0) -> bool:
    """Return whether two arrays have the same shape and nearly equal elements."""
    if a.shape != b.shape:
        return False
    return bool((a == b).all() or near(a, b, rtol, atol).all())  # mostly they are equal


def greatest(v: Array) -> float:
    """Return the largest absolute value, or 0 for an empty array."""
    return float(np.abs(v).max(initial=0))


def largest_finite(v: Array) -> float:
    """Return the largest finite absolute value, or 0 if there is none."""
    return greatest(v[np.isfinite(v)])


def index_of_largest(v: Array) -> tuple[int, ...]:
    """Return the index of the largest element, or () for an empty array."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(v)), v.shape)) if v.size else ()
