"""Compares arrays by name. Each gets a line with the error and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygrad_attn.check.report import Array, Verdict, agree, deviation, index_of_largest, near

HEADER = "max abs   max rel   worst index   verdict"
"""The titles of the columns of a `Line`."""


@dataclass
class Line:
    """One comparison: `name, max abs, max rel, worst index, verdict`."""

    name: str
    verdict: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    index: tuple[int, ...] = ()
    counts: bool = True  # False for a case of the exam that an engine does not offer
    idea: str = ""  # the idea of the exercise that the check is about
    weight: float = 1.0  # its share in the points of the idea
    of: str = ""  # the part of the answer that is judged, if the idea has several
    rank: int = 0  # how much its help text explains

    @property
    def ok(self) -> bool:
        """Whether the arrays agree, or there is no reference to compare with."""
        return self.verdict in ("ok", "RIGHT", "not asked for")

    def __str__(self) -> str:
        if self.max_abs == np.inf and not self.index:  # no numbers were compared
            return f"{'':33}{self.verdict}"
        return f"{self.max_abs:8.1e}  {self.max_rel:8.1e}  {self.index!s:12}  {self.verdict}"


@dataclass(repr=False)
class Comparison(Verdict):
    """The result of `compare`. It is true if every named array agrees, and prints a line for each."""

    lines: list[Line]

    @property
    def ok(self) -> bool:
        """Whether there is at least one line and all lines are ok."""
        return bool(self.lines) and all(line.ok for line in self.lines)

    def __str__(self) -> str:
        width = max([4, *(len(line.name) for line in self.lines)])
        rows = [f"{line.name:{width}}  {line}" for line in self.lines]
        return "\n".join([f"{'name':{width}}  {HEADER}", *rows])


def compare(mine: Any, reference: Any, *, atol: float = 1e-6, rtol: float = 1e-5) -> Comparison:
    """Compare arrays by name: |mine - reference| <= atol + rtol |reference|.

    Each argument is a mapping from names to arrays, Tensors or numbers, or a single one of these.
    Returns a Comparison, which is true if all agree. It has a line for each name, with the largest
    absolute and relative error, the index of the error, and a verdict in words. Wrong values do not
    raise.
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
        unlike = f"has dtype {a.dtype}, expected numbers"
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
    verdict = "ok" if agree(a, b, rtol, atol) else _in_words(a, b, rtol, atol)
    return Line(name, verdict, largest, most, index_of_largest(error))


def _in_words(a: Array, b: Array, rtol: float, atol: float) -> str:
    """Say how many elements are off, and what the difference looks like."""
    bad = ~near(a, b, rtol, atol)
    with np.errstate(all="ignore"):
        factor = np.sum(a * b) / max(np.sum(b * b), 1e-300)
    looks = {
        "NaN or Inf": not np.isfinite(a).all(),
        "zero everywhere": not a.any(),
        "transposed": agree(a.T, b, rtol, atol),
        f"{factor:.6g} times what it should be": agree(a, factor * b, rtol, atol),
    }
    found = [words for words, fits in looks.items() if fits]
    return ": ".join([f"{bad.sum()} of {bad.size} off", *found[:1]])
