"""A picture of a graph, made of boxes, arrows and frames that contain only text and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

DEEPEST = 30  # levels of indentation; deeper parts start again at the left margin


@dataclass
class Box:
    """A leaf, an op with its output, or a folded call. Boxes are numbered in forward order."""

    kind: str  # a key of dot.STYLES
    title: str
    lines: list[str] = field(default_factory=list)
    not_finite: str = ""  # counts of NaN and Inf
    number: int = -1
    frame: int | None = None
    output: bool = False

    def below(self) -> list[str]:
        bad = [f"NOT FINITE: {self.not_finite}"] if self.not_finite else []
        return self.lines + bad + ["output"] * self.output


@dataclass
class Arrow:
    """An operand: box `target` uses box `source` as its input `index`."""

    source: int
    target: int
    index: int | None = None
    label: str = ""


@dataclass
class Frame:
    """A frame around the ops of a module or function call."""

    parent: int | None
    title: str
    equation: str = ""


@dataclass
class Picture:
    """Boxes, arrows and frames, and notes for the reader."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return a text tree from outputs to inputs. Each box lists its operands only once."""
        operands: dict[int, list[Arrow]] = {}
        for arrow in self.arrows:
            operands.setdefault(arrow.target, []).append(arrow)
        lines: list[str] = []
        seen: set[int] = set()
        pending = [box.number for box in self.boxes if box.output]

        def add(number: int, stem: str, rest: str) -> None:
            under = operands.get(number, [])
            later = number in seen or len(rest) >= 3 * DEEPEST and bool(under)
            lines.append(stem + printable(self._words(self.boxes[number], later)))
            if later:
                pending.append(number)
                return
            seen.add(number)
            for arrow in under:
                mark, gap = ("└─ ", "   ") if arrow is under[-1] else ("├─ ", "│  ")
                label = f"{arrow.label}: " if arrow.label else ""
                add(arrow.source, f"{rest}{mark}{label}", rest + gap)

        while pending:
            if (top := pending.pop()) not in seen:
                add(top, "", "")
        return "\n".join(lines + self.notes)

    def _words(self, box: Box, later: bool) -> str:
        if later:
            return f"{box.title}  [n{box.number}, see there]"
        frame = None if box.frame is None else self.frames[box.frame]
        inside = [f"in {frame.title}"] if frame and frame.parent is not None else []
        return "  ".join([box.title, *box.below(), *inside, f"[n{box.number}]"])


def printable(text: str) -> str:
    """Replace the control characters in a name."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
