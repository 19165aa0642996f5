"""A picture of a graph: boxes, arrows and frames, which contain only text and numbers.

A picture is shown as a text tree or as DOT text, which Graphviz draws.
"""

import html
import os
import shutil
import subprocess
from dataclasses import dataclass, field

from ..files import write_atomically

DEEPEST = 30  # levels of a text tree; deeper parts start again at the left margin
MOST_DRAWN = 1000  # boxes; Graphviz takes seconds for these, but hours for ten times as many
# The Okabe-Ito palette, which readers with any colour vision can tell apart.
STYLED = "shape", "color", "fillcolor", "style"
STYLES = {
    "parameter": ("cylinder", "#009E73", "#DFF3EC"),
    "leaf": ("folder", "#CC79A7", "#F9E9F2"),
    "input": ("note", "#56B4E9", "#E8F4FC"),
    "constant": ("box", "#767676", "#F0F0F0", "filled,dashed"),
    "op": ("box", "#0072B2", "#FFFFFF", "filled,rounded"),
    "module": ("box3d", "#E69F00", "#FCF1DA"),
}
NOT_FINITE = {"color": "#CC0000", "penwidth": "3"}
FONT = '"Verdana,DejaVu Sans,sans-serif"'  # Graphviz computes the same widths on every system
HEAD = f"""digraph "graph" {{
graph [bgcolor=white fontname={FONT} fontsize=11 nodesep=0.25 ranksep=0.3 nslimit=2 nslimit1=2]
node [fontname={FONT} fontsize=10.5 height=0.3 margin="0.12,0.06" style=filled]
edge [fontname={FONT} fontsize=9 color="#555555" arrowsize=0.7]"""


@dataclass
class Box:
    """A leaf, an op with its output, or a folded call. Boxes are numbered in forward order."""

    kind: str  # a key of STYLES
    title: str
    lines: list[str] = field(default_factory=list)
    not_finite: str = ""  # counts of NaN and Inf
    number: int = -1
    frame: int | None = None
    output: bool = False

    def below(self):
        bad = [f"NOT FINITE: {self.not_finite}"] if self.not_finite else []
        return self.lines + bad + ["output"] * self.output

    def attributes(self):
        """Return the attributes of the box in DOT."""
        title = _clean(self.title)
        below = "".join(f"<br/>{_clean(line)}" for line in self.below())
        look = {"id": f"n{self.number}", "tooltip": f"<{title}>"}
        look["label"] = f'<<font point-size="12"><b>{title}</b></font>{below}>'
        look |= zip(STYLED, STYLES[self.kind])
        if self.output:
            look |= {"penwidth": "2", "peripheries": "1" if self.kind == "module" else "2"}
        return _attributes(look | (NOT_FINITE if self.not_finite else {}))


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


class Graph:
    """A picture of the computation graph. Notebooks display it, and it keeps no tensor alive."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.frames: list[Frame] = []

    def text(self) -> str:
        """Return the graph as a text tree, from the outputs to the inputs."""
        operands: dict[int, list[Arrow]] = {}
        for arrow in self.arrows:
            operands.setdefault(arrow.target, []).append(arrow)
        lines: list[str] = []
        seen: set[int] = set()
        pending = [box.number for box in self.boxes if box.output]

        def add(number, stem, rest):
            box, under = self.boxes[number], operands.get(number, [])
            if number in seen or len(rest) >= 3 * DEEPEST and under:  # listed only once
                lines.append(stem + printable(f"{box.title}  [n{number}, see there]"))
                pending.append(number)
                return
            seen.add(number)
            frame = None if box.frame is None else self.frames[box.frame]
            inside = [f"in {frame.title}"] if frame and frame.parent is not None else []
            words = [box.title, *box.below(), *inside, f"[n{number}]"]
            lines.append(stem + printable("  ".join(words)))
            for arrow in under:
                mark, gap = ("└─ ", "   ") if arrow is under[-1] else ("├─ ", "│  ")
                label = f"{arrow.label}: " if arrow.label else ""
                add(arrow.source, f"{rest}{mark}{label}", rest + gap)

        while pending:
            if (top := pending.pop()) not in seen:
                add(top, "", "")
        return "\n".join(lines)

    __repr__ = __str__ = text

    @property
    def dot(self) -> str:
        """The picture as DOT text, the same on every run."""
        inside: dict[int | None, list[str]] = {}  # the lines of each frame
        for box in self.boxes:
            inside.setdefault(box.frame, []).append(f"n{box.number} {box.attributes()}")
        for i, frame in reversed(list(enumerate(self.frames))):  # inner frames are complete first
            label = _clean(frame.title)
            if frame.equation:
                equation = _clean(frame.equation)
                label = f'{label}<br align="left"/><i>{equation}</i><br align="left"/>'
            look = {"label": f"<{label}>", "id": f"f{i}", "color": "#999999"}
            look |= {"style": "rounded", "margin": "10", "labeljust": "l"}
            lines = [f"graph {_attributes(look)}", *inside.get(i, [])]
            text = "\n  ".join([f"subgraph cluster_{i} {{", *lines])
            inside.setdefault(frame.parent, []).append(text + "\n}")
        lines = [HEAD, *inside.get(None, [])]
        for i, arrow in enumerate(self.arrows):
            look = {"id": f"e{i}"}
            if arrow.label:
                look["label"] = f"<&#160;{_clean(arrow.label)}>"  # a gap next to the line
            lines.append(f"n{arrow.source} -> n{arrow.target} {_attributes(look)}")
        return "\n".join(lines).replace("\n", "\n  ") + "\n}\n"

    def _render(self, format):
        """Draw the picture as "svg", "png" or "pdf" with the `dot` program or pygraphviz."""
        if len(self.boxes) > MOST_DRAWN:
            raise ValueError(
                f"{len(self.boxes):,} boxes are too many to draw (at most {MOST_DRAWN:,}). Use "
                ".text() or .dot, or fold modules with a smaller depth=."
            )
        if shutil.which("dot"):
            command = ["dot", f"-T{format}"]
            run = subprocess.run(command, input=self.dot.encode(), capture_output=True, check=True)
            return run.stdout
        try:
            import pygraphviz  # optional; its wheel contains Graphviz's libraries
        except ImportError:
            raise RuntimeError(
                "no Graphviz was found. Install it (apt install graphviz, brew install graphviz, "
                'or from graphviz.org), or pip install "tinygrad_attn[viz]" for pygraphviz. .dot '
                "and .text() work without Graphviz."
            ) from None
        return bytes(pygraphviz.AGraph(string=self.dot).draw(format=format, prog="dot"))

    def svg(self) -> str:
        """Return the picture as an SVG element.

        Raises RuntimeError without Graphviz, and ValueError for more than 1,000 boxes.
        """
        text = self._render("svg").decode()
        return text[text.index("<svg") :]

    def drawing(self) -> str:
        """Return the picture as HTML, or the reason why it cannot be drawn."""
        try:
            return self.svg()
        except Exception as error:
            return f"<p>{html.escape(str(error))}</p>"

    def _repr_html_(self):
        try:
            return self.svg()
        except Exception:  # the notebook then shows the text
            return None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a .svg, .png, .pdf, .dot or .txt file.

        Raises ValueError for any other suffix, and the same errors as `svg`.
        """
        suffix = os.path.splitext(os.fsdecode(path))[1].lower()
        if suffix not in (".svg", ".png", ".pdf", ".dot", ".txt"):
            raise ValueError(
                f"{os.fsdecode(path)!r}: the file name must end in .svg, .png, .pdf, .dot or .txt."
            )
        texts = {".dot": self.dot, ".txt": self.text() + "\n"}
        write_atomically(texts.get(suffix) or self._render(suffix[1:]), path)


def _attributes(look):
    quoted = (f"{k}={x}" if x.startswith("<") else f'{k}="{x}"' for k, x in look.items())
    return f"[{' '.join(quoted)}]"


def _clean(text):
    r"""Escape text for an HTML-like label; Graphviz replaces \N even there."""
    return html.escape(printable(text)).replace("\\", "&#92;&#8203;").replace("]", "&#93;")


def printable(text):
    """Replace the control characters in a name."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
