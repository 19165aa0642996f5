"""A picture as a tree of text, from the output to its inputs."""

from __future__ import annotations

from .picture import Box, Picture

DEEPEST = 30
"""Levels of indentation; what is deeper starts again at the left margin."""


def to_text(picture: Picture) -> str:
    """The tree. A box that is used several times has its operands at its first place only."""
    operands: dict[int, list[tuple[int, str]]] = {}
    for arrow in picture.arrows:
        operands.setdefault(arrow.target, []).append((arrow.source, arrow.label))
    lines: list[str] = []
    seen: set[int] = set()
    pending = [box.number for box in picture.boxes if box.output]

    def add(number: int, label: str, branch: str, stem: str) -> None:
        box, under = picture.boxes[number], operands.get(number, [])
        later = number in seen or len(stem) >= 3 * DEEPEST and bool(under)
        text = f"{box.title}  [n{number}, see there]" if later else _words(picture, box)
        lines.append(branch + (f"{label}: " if label else "") + printable(text))
        if later:
            pending.append(number)
            return
        seen.add(number)
        for i, (source, edge) in enumerate(under, 1):
            mark, gap = (
                ("\u251c\u2500 ", "\u2502  ") if i < len(under) else ("\u2514\u2500 ", "   ")
            )
            add(source, edge, stem + mark, stem + gap)

    while pending:
        if (top := pending.pop()) not in seen:
            add(top, "", "", "")
    return "\n".join(lines + picture.notes)


def _words(picture: Picture, box: Box) -> str:
    parts = [box.title, *box.lines]
    parts += [f"NOT FINITE: {box.not_finite}"] if box.not_finite else []
    parts += ["output"] if box.output else []
    frame = None if box.frame is None else picture.frames[box.frame]
    parts += [f"in {frame.title}"] if frame and frame.parent is not None else []
    return "  ".join([*parts, f"[n{box.number}]"])


def printable(text: str) -> str:
    """Replace control characters, which a name may contain."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
