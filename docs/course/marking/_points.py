"""Counts the points of an answer: each check is about an idea, and has a share of its points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from _compare import HEADER, Line

if TYPE_CHECKING:
    from _marking import Marks


@dataclass
class Points:
    """The points of each check, by its name, and the ideas that the checks are about."""

    possible: dict[str, float] = field(default_factory=dict)
    gained: dict[str, float] = field(default_factory=dict)
    ideas: dict[str, list[str]] = field(default_factory=dict)
    main: set[str] = field(default_factory=set)  # the main ideas
    half: bool = False  # whether the answer gets at most half, because a main idea is missing

    @property
    def most(self) -> float:
        return sum(self.possible.values())

    @property
    def total(self) -> float:
        total = sum(self.gained.values())
        return min(total, self.most / 2) if self.half else total

    def __str__(self) -> str:
        text = f"{short(self.total)} of {short(self.most)} points"
        return f"{text} (at most half, because a main idea is missing)" if self.cut else text

    @property
    def cut(self) -> bool:
        """Whether points are lost because a main idea is missing."""
        return self.half and sum(self.gained.values()) > self.total

    def of_idea(self, idea: str) -> str:
        """Return the points of an idea as text."""
        gained, possible = (
            sum(points[name] for name in self.ideas[idea])
            for points in (self.gained, self.possible)
        )
        return f"{short(gained)} of {short(possible)}"


def short(points: float) -> str:
    """Write points with at most two decimal places."""
    return f"{points:.2f}".rstrip("0").rstrip(".")


def points(marks: Marks, planned: Marks | None = None) -> Points:
    """Count the points. `planned` are the marks of an empty file, if not all checks have been run."""
    planned = planned or marks
    passed = {line.name for line in marks.lines if line.ok}
    result = Points()
    for idea, lines in grouped(planned.lines).items():
        result.ideas[idea] = [line.name for line in lines]
        weights = sum(line.weight for line in lines)
        share = planned.ideas[idea].points / max(weights, 1e-9) if idea else 1.0
        each = not idea or planned.ideas[idea].each
        first: dict[str, Line] = {}
        for line in lines:
            counts = each or first.setdefault(line.of, line).name in passed
            possible = share * line.weight if line.counts else 0.0
            result.possible[line.name] = possible
            result.gained[line.name] = possible if counts and line.name in passed else 0.0
        if idea and planned.ideas[idea].main:
            result.main.add(idea)
            result.half |= not any(result.gained[line.name] for line in lines)
    return result


def grouped(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Return the lines of each idea, in the order of the first ones."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.idea, []).append(line)
    return groups


def table(lines: list[Line], found: Points) -> str:
    """Return a line for each check under the idea that it is about, and the points."""
    groups = grouped(lines)
    indent = "  " * any(groups)
    width = max([4, *(len(indent + line.name) for line in lines)])
    rows = [f"{'name':{width}}  {HEADER}"]
    for idea, members in groups.items():
        if idea:
            main = ", a main idea" * (idea in found.main)
            rows.append(f"{idea}{main}: {found.of_idea(idea)}")
        rows += [f"{indent + line.name:{width}}  {line}" for line in members]
    passed = sum(line.ok for line in lines)
    text = f"{passed} of {len(lines)} checks pass"
    return "\n".join([*rows, "", f"{text}, {found}." if any(groups) else f"{text}."])
