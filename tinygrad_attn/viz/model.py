"""What a picture consists of: boxes, arrows between them, groups around them.

It holds plain words and numbers, and no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = {
    "parameter": "parameter: learned, a leaf of the graph",
    "input": "input or constant",
    "op": "op and its result",
    "module": "module call, folded",
    "folded": "several boxes, folded",
}


@dataclass
class Box:
    """One box.  Numbers count in forward order; the first line is the title."""

    kind: str
    title: str
    lines: list[str] = field(default_factory=list)
    number: int = -1
    group: int | None = None
    output: bool = False
    alarm: str | None = None  # says what is not finite
    now: bool = False  # it belongs to the step the reader looks at


@dataclass
class Arrow:
    """An operand, from the box that holds it to the one that uses it; `index` is its place."""

    source: int
    target: int
    index: int | None = None
    text: str = ""
    now: bool = False

    @property
    def label(self) -> str:
        return ": ".join(
            part for part in ("" if self.index is None else str(self.index), self.text) if part
        )


@dataclass
class Group:
    """A module call whose inside is drawn."""

    number: int
    parent: int | None
    title: str


@dataclass
class Picture:
    """Boxes and groups by number, arrows in the order of the operands, and notes for the reader.

    `where` has the number of each tensor's box, by the tensor's id, while the tensors live.
    """

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    legend: bool = False
    where: dict[int, int] = field(default_factory=dict)
