"""A picture as a tree of text, from the output to its inputs."""

from __future__ import annotations

from .picture import Box, Picture

DEEPEST = 30
"""Levels of indentation; what is deeper starts again at the left margin."""


def to_text(picture: Picture) -> str:
    """The tree. A box that is used several times has its operands at its first place only.

    A loop with its own stack, so that a long chain does not recurse.
    """
    operands: dict[int, list[tuple[int, str]]] = {}
    for arrow in picture.arrows:
        operands.setdefault(arrow.target, []).append((arrow.source, arrow.label))
    lines: list[str] = []
    seen: set[int] = set()
    pending = [box.number for box in picture.boxes if box.output]
    for top in iter(lambda: pending.pop() if pending else None, None):
        stack: list[tuple[int, str, str, str]] = [] if top in seen else [(top, "", "", "")]
        while stack:
            number, edge, branch, stem = stack.pop()
            box, under = picture.boxes[number], operands.get(number, [])
            later = len(stem) >= 3 * DEEPEST and bool(under)
            if later and number not in seen:
                pending.append(number)
            again = later or number in seen
            text = f"{box.title}  [n{number}, see there]" if again else _words(picture, box)
            lines.append(branch + (f"{edge}: " if edge else "") + printable(text))
            if again:
                continue
            seen.add(number)
            for i, (source, label) in reversed(list(enumerate(under))):
                last = i == len(under) - 1
                inner = stem + ("   " if last else "\u2502  ")
                stack.append(
                    (source, label, stem + ("\u2514\u2500 " if last else "\u251c\u2500 "), inner)
                )
    return "\n".join(lines + picture.notes)


def _words(picture: Picture, box: Box) -> str:
    parts = [box.title, *box.lines]
    parts += [f"NOT FINITE: {box.not_finite}"] if box.not_finite else []
    parts += ["output"] if box.output else []
    frame = None if box.frame is None else picture.frames[box.frame]
    parts += [f"in {frame.title}"] if frame and frame.parent is not None else []
    return "  ".join([*parts, f"[n{box.number}]"]) + ("  <== now" if box.current else "")


def printable(text: str) -> str:
    """Replace control characters, which a name may contain."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
