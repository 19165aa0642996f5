"""Write a picture as DOT text, and render it with Graphviz."""

from __future__ import annotations

import html
import shutil
import subprocess

from .picture import Box, Picture, printable

DASHED = "filled,dashed"
# The Okabe-Ito palette, which readers with any colour vision can tell apart.
STYLES = {
    "parameter": {"shape": "cylinder", "color": "#009E73", "fillcolor": "#DFF3EC"},
    "leaf": {"shape": "folder", "color": "#CC79A7", "fillcolor": "#F9E9F2"},
    "input": {"shape": "note", "color": "#56B4E9", "fillcolor": "#E8F4FC"},
    "constant": {"shape": "box", "color": "#767676", "fillcolor": "#F0F0F0", "style": DASHED},
    "op": {"shape": "box", "color": "#0072B2", "fillcolor": "#FFFFFF", "style": "filled,rounded"},
    "module": {"shape": "box3d", "color": "#E69F00", "fillcolor": "#FCF1DA"},
}
NOT_FINITE = {"color": "#CC0000", "penwidth": "3"}
MOST_DRAWN = 1000  # boxes; Graphviz takes seconds for these, but hours for ten times as many
FONT = '"Verdana,DejaVu Sans,sans-serif"'  # Graphviz computes the same widths on every system
HEAD = f"""digraph "graph" {{
graph [bgcolor=white fontname={FONT} fontsize=11 nodesep=0.25 ranksep=0.3 nslimit=2 nslimit1=2]
node [fontname={FONT} fontsize=10.5 height=0.3 margin="0.12,0.06" style=filled]
edge [fontname={FONT} fontsize=9 color="#555555" arrowsize=0.7]"""


def to_dot(picture: Picture) -> str:
    """Write the picture as DOT text."""
    inside: dict[int | None, list[str]] = {}  # the lines of each frame
    for box in picture.boxes:
        inside.setdefault(box.frame, []).append(f"n{box.number} {_attributes(_look(box))}")
    for i, frame in reversed(list(enumerate(picture.frames))):  # inner frames are complete first
        label = _clean(frame.title)
        if frame.equation:
            label = f'{label}<br align="left"/><i>{_clean(frame.equation)}</i><br align="left"/>'
        look = {"label": f"<{label}>", "id": f"f{i}", "color": "#999999"}
        look |= {"style": "rounded", "margin": "10", "labeljust": "l"}
        lines = [f"graph {_attributes(look)}", *inside.get(i, [])]
        text = "\n  ".join([f"subgraph cluster_{i} {{", *lines])
        inside.setdefault(frame.parent, []).append(text + "\n}")
    lines = [HEAD, *inside.get(None, [])]
    for i, arrow in enumerate(picture.arrows):
        look = {"id": f"e{i}"}
        if arrow.label:
            look["label"] = f"<&#160;{_clean(arrow.label)}>"  # a gap next to the line
        lines.append(f"n{arrow.source} -> n{arrow.target} {_attributes(look)}")
    if picture.notes:
        lines.append(f"label=<{'<br/>'.join(map(_clean, picture.notes))}>")
    return "\n".join(lines).replace("\n", "\n  ") + "\n}\n"


def _look(box: Box) -> dict[str, str]:
    below = "".join(f"<br/>{_clean(line)}" for line in box.below())
    look = {"id": f"n{box.number}", "tooltip": f"<{_clean(box.title)}>"}
    look["label"] = f'<<font point-size="12"><b>{_clean(box.title)}</b></font>{below}>'
    look |= STYLES[box.kind]
    if box.output:
        look |= {"penwidth": "2", "peripheries": "1" if box.kind == "module" else "2"}
    return look | (NOT_FINITE if box.not_finite else {})


def _attributes(look: dict[str, str]) -> str:
    quoted = (f"{k}={x}" if x.startswith("<") else f'{k}="{x}"' for k, x in look.items())
    return f"[{' '.join(quoted)}]"


def _clean(text: str) -> str:
    r"""Escape text for an HTML-like label; Graphviz replaces \N even there."""
    return html.escape(printable(text)).replace("\\", "&#92;&#8203;").replace("]", "&#93;")


def render(picture: Picture, format: str) -> bytes:
    """Draw a picture as "svg", "png" or "pdf" with the `dot` program or pygraphviz."""
    if len(picture.boxes) > MOST_DRAWN:
        raise ValueError(
            f"{len(picture.boxes):,} boxes are too many to draw (at most {MOST_DRAWN:,}). Use "
            ".text() or .dot, or fold modules with a smaller depth=."
        )
    text = to_dot(picture)
    if shutil.which("dot"):
        command = ["dot", f"-T{format}"]
        return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
    try:
        import pygraphviz  # optional; its wheel contains Graphviz's libraries
    except ImportError:
        raise RuntimeError(
            "no Graphviz was found. Install it (apt install graphviz, brew install graphviz, or "
            'from graphviz.org), or pip install "tinygrad_attn[viz]" for pygraphviz. .dot and '
            ".text() work without Graphviz."
        ) from None
    return bytes(pygraphviz.AGraph(string=text).draw(format=format, prog="dot"))


def svg(picture: Picture) -> str:
    """Return the picture as an SVG element, without the XML header."""
    text = render(picture, "svg").decode()
    return text[text.index("<svg") :]


def drawing(picture: Picture) -> str:
    """Return the picture as HTML, or the reason why it cannot be drawn."""
    try:
        return svg(picture)
    except Exception as error:
        return f"<p>{html.escape(str(error))}</p>"
