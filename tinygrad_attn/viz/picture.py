"""The parts of a picture: boxes, arrows between them, and frames around them.

A picture holds text and numbers only. It keeps no tensor alive and does not change when the graph
is released.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Box:
    """A leaf, an op with its output, or a folded module call. Numbers are in forward order."""

    kind: str  # a key of dot.STYLES
    title: str
    lines: list[str] = field(default_factory=list)
    not_finite: str = ""  # counts of NaN and Inf
    number: int = -1
    frame: int | None = None
    output: bool = False


@dataclass
class Arrow:
    """An operand: from the box that holds it to the box that uses it, as input `index`."""

    source: int
    target: int
    index: int | None = None
    label: str = ""


@dataclass
class Frame:
    """A call of a module or function whose ops are drawn."""

    parent: int | None
    title: str
    equation: str = ""


@dataclass
class Picture:
    """Boxes and frames by number, arrows, and notes for the reader."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
