"""A picture as DOT text, built with the graphviz package; the text is the same on every run."""

from __future__ import annotations

import html
from typing import Any

from .model import KINDS, Box, Picture

# Okabe and Ito's palette, which people with any colour vision tell apart. The fills are pale, so
# that text stays readable, and the shape tells the kind too.
STYLES = {
    "parameter": {
        "shape": "cylinder",
        "color": "#009E73",
        "fillcolor": "#DFF3EC",
        "style": "filled",
        "margin": "0.12,0.1",
    },
    "input": {"shape": "note", "color": "#56B4E9", "fillcolor": "#E8F4FC", "style": "filled"},
    "op": {"shape": "box", "color": "#0072B2", "fillcolor": "#FFFFFF", "style": "filled,rounded"},
    "module": {
        "shape": "box3d",
        "color": "#E69F00",
        "fillcolor": "#FCF1DA",
        "style": "filled",
        "margin": "0.16,0.1",
    },
    "folded": {
        "shape": "folder",
        "color": "#CC79A7",
        "fillcolor": "#F9EBF3",
        "style": "filled,dashed",
    },
}
ALARM = "#CC0000"
NOW = "#D55E00"
HURRY = 100
"""With more boxes than this the layout stops refining early.

Without that, a picture in which one leaf had fifty arrows took half a minute.
"""
LONGEST = 300
"""So many characters of a line are drawn.

Graphviz takes no label of more than 16,384 bytes, and one of our characters may need 14 of them.
"""
FONT = "Verdana,DejaVu Sans,sans-serif"
"""Fonts of the same width, of which nearly every system has one.

A picture laid out on one system is looked at on another. Graphviz measures in whole pixels: 10.5
points are 14 of them, while 10 points are 13 1/3, at which its boxes came out 5 % too narrow.
"""


def _clean(text: str) -> str:
    """Text for an HTML-like label: markup escaped, and no character that XML has no place for.

    Graphviz would read `\\N` as the node's name even here; a space of no width keeps the two
    characters apart.
    """
    text = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(shown).replace("\\", "&#92;&#8203;")


def _label(title: str, lines: list[str]) -> str:
    below = "".join(f"<br/>{_clean(line)}" for line in lines)
    return f'<<font point-size="12"><b>{_clean(title)}</b></font>{below}>'


def package() -> Any:
    """The graphviz package, or an ImportError that says how to get it."""
    try:
        import graphviz  # lazy: an optional package
    except ImportError:
        raise ImportError(
            "DOT text is built with the graphviz package, which is not installed: pip install "
            '"tinygrad_attn[viz]". '
            "The text tree, .text(), needs nothing."
        ) from None
    return graphviz


def _node(box: Box) -> dict[str, str]:
    lines = [
        *box.lines,
        *([f"not finite: {box.alarm}"] if box.alarm else []),
        *(["output"] if box.output else []),
    ]
    look = dict(
        STYLES[box.kind],
        label=_label(box.title, lines),
        id=f"n{box.number}",
        tooltip=_clean(box.title),
    )
    if box.output:
        look["peripheries"] = "2" if box.kind != "module" else "1"
        look["penwidth"] = "2"
    if box.alarm:
        look |= {"color": ALARM, "penwidth": "3"}
    if box.now:
        look |= {"color": NOW, "penwidth": "4"}
    return look


def to_dot(picture: Picture) -> str:
    """The DOT text of a picture."""
    graphviz = package()
    note = "<" + "<br/>".join(map(_clean, picture.notes)) + ">" if picture.notes else ""
    top = graphviz.Digraph(
        "graph",
        graph_attr={
            "bgcolor": "white",
            "fontname": FONT,
            "fontsize": "11",
            "nodesep": "0.25",
            "ranksep": "0.3",
            **({"nslimit": "2", "nslimit1": "2"} if len(picture.boxes) > HURRY else {}),
            **({"label": note, "labelloc": "b"} if note else {}),
        },
        node_attr={"fontname": FONT, "fontsize": "10.5", "margin": "0.12,0.06", "height": "0.3"},
        edge_attr={"fontname": FONT, "fontsize": "9", "color": "#555555", "arrowsize": "0.7"},
    )
    clusters = [
        graphviz.Digraph(
            f"cluster_{g.number}",
            graph_attr={
                "label": f"<{_clean(g.title)}>",
                "id": f"g{g.number}",
                "tooltip": _clean(g.title),
                "labeljust": "l",
                "labelloc": "t",
                "color": "#999999",
                "style": "rounded",
                "margin": "10",
            },
        )
        for g in picture.groups
    ]
    for box in picture.boxes:
        (top if box.group is None else clusters[box.group]).node(f"n{box.number}", **_node(box))
    # A frame is put into the one around it when it is complete, so inner ones go first.
    for cluster, group in reversed(list(zip(clusters, picture.groups, strict=True))):
        (top if group.parent is None else clusters[group.parent]).subgraph(cluster)
    for i, arrow in enumerate(picture.arrows):
        look = {"id": f"e{i}"}
        if arrow.label:
            look["label"] = f"<&#160;{_clean(arrow.label)}>"  # a gap beside the line
        if arrow.now:
            look |= {"color": NOW, "penwidth": "3"}
        top.edge(f"n{arrow.source}", f"n{arrow.target}", **look)
    if picture.legend:
        top.subgraph(_legend(graphviz))
    return str(top.source)


def _legend(graphviz: Any) -> Any:
    legend = graphviz.Digraph(
        "cluster_legend",
        graph_attr={"label": "legend", "labelloc": "t", "color": "#999999", "style": "rounded"},
    )
    entries = [(Box(kind, text), kind) for kind, text in KINDS.items()]
    entries += [
        (Box("op", "the picture's result", output=True), "output"),
        (Box("op", "NaN or Inf inside", alarm="NaN"), "alarm"),
    ]
    for box, name in entries:
        look = _node(box) | {"id": f"legend_{name}", "label": f"<{_clean(box.title)}>"}
        legend.node(f"legend_{name}", **look)
    names = [f"legend_{name}" for _, name in entries]
    for above, below in zip(names, names[1:], strict=False):
        legend.edge(above, below, style="invis")
    return legend
