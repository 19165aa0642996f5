"""A picture as a tree of text, from the output down to its inputs, for terminal and browser."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator
from typing import NamedTuple

from .model import Box, Picture

DEEPEST = 30
"""So deep the tree indents; what lies deeper begins again at the left margin."""

PLAIN = str.maketrans("\u2502\u251c\u2514\u2500", "||`-")
"""The tree's lines in ASCII."""


class Line(NamedTuple):
    """One line of the tree: a box as operand `edge` of the one above it.

    `last` says of each box on the way from the top, without the top itself and with this box,
    whether it is the last of its siblings.
    """

    depth: int
    box: Box
    edge: str
    last: tuple[bool, ...]
    seen: bool  # its operands are told at another place
    opens: bool  # its operands follow


def lines(picture: Picture) -> Iterator[Line]:
    """The tree's lines from top to bottom. A box with several uses is told once.

    A loop with a stack of its own, so that the tree may be as deep as it likes.
    """
    operands: dict[int, list[tuple[int, str]]] = {}
    for arrow in picture.arrows:
        operands.setdefault(arrow.target, []).append((arrow.source, arrow.label))
    seen: set[int] = set()
    tops = [(box.number, "", ()) for box in reversed(picture.boxes) if box.output]
    while tops:
        stack: list[tuple[int, str, tuple[bool, ...]]] = [tops.pop(0)]
        while stack:
            number, edge, last = stack.pop()
            box, under = picture.boxes[number], operands.get(number, [])
            if number in seen and (last or not under):
                yield Line(len(last), box, edge, last, True, False)
                continue
            if number in seen:
                continue
            if len(last) >= DEEPEST and under:
                tops.append((number, "", ()))
                yield Line(len(last), box, edge, last, True, False)
                continue
            seen.add(number)
            yield Line(len(last), box, edge, last, False, bool(under))
            for i in range(len(under) - 1, -1, -1):
                stack.append((*under[i], (*last, i == len(under) - 1)))


def words(picture: Picture, box: Box, seen: bool) -> str:
    """What a box says, in one line."""
    if seen:
        return _printable(f"{box.title}  [n{box.number}, see there]")
    group = None if box.group is None else picture.groups[box.group]
    parts = [
        box.title,
        *box.lines,
        *([f"NOT FINITE: {box.alarm}"] if box.alarm else []),
        *(["output"] if box.output else []),
        *([f"in {group.title}"] if group and group.parent is not None else []),
        f"[n{box.number}]",
    ]
    return _printable("  ".join(parts)) + (" <== now" if box.now else "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def to_text(picture: Picture) -> str:
    """The tree for a terminal."""
    out = []
    for line in lines(picture):
        stem = "".join("   " if last else "\u2502  " for last in line.last[:-1])
        branch = ("\u2514\u2500 " if line.last[-1] else "\u251c\u2500 ") if line.last else ""
        edge = f"{line.edge}: " if line.edge else ""
        out.append(stem + branch + edge + words(picture, line.box, line.seen))
    return "\n".join([*out, *map(_printable, picture.notes)])


def as_standard_output_can(text: str) -> str:
    """The text, or what is nearest to it in the characters that standard output has.

    A pipe or a file on Windows has few.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except LookupError:  # an encoding that Python does not know: somebody's own stream
        return text
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def to_html(picture: Picture) -> str:
    """The tree as nested <details>, to open and close in a notebook or a browser."""
    out = ['<div style="font:13px/1.5 monospace">']
    depth = 0
    for line in lines(picture):
        while depth > line.depth:
            out.append("</details>")
            depth -= 1
        edge = f"{line.edge}: " if line.edge else ""
        said = html.escape(edge + words(picture, line.box, line.seen)).replace("  ", " &#160; ")
        text = f'<span class="n{line.box.number}">{said}</span>'
        if line.opens:
            out.append(
                f'<details open style="margin-left:{1.2 * bool(line.depth)}em">'
                f"<summary>{text}</summary>"
            )
            depth += 1
        else:
            out.append(f'<div style="margin-left:{2.4 if line.depth else 1.2}em">{text}</div>')
    out.extend(["</details>"] * depth)
    out.extend(f"<p>{html.escape(_printable(note))}</p>" for note in picture.notes)
    return "\n".join([*out, "</div>"])
