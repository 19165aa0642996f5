"""Pictures of the computation graph: `graph(tensor)`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..files.atomic import write_atomically
from . import dot, tree
from .build import Source
from .picture import Picture

LIMIT = 150
"""Boxes of a picture that can still be read."""


class Graph:
    """A picture of the computation graph. A notebook shows it.

    It holds text and numbers only, so it keeps no tensor alive and does not change afterwards.
    """

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    @property
    def dot(self) -> str:
        """The DOT text, the same on every run."""
        return dot.to_dot(self.picture)

    def svg(self) -> str:
        """The picture as an SVG element.

        Raises RuntimeError without Graphviz, ValueError for more than 1,000 boxes.
        """
        return dot.svg(self.picture)

    def text(self) -> str:
        """The picture as a tree of text, from the output to the inputs. Needs nothing installed."""
        return tree.to_text(self.picture)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as .svg, .png, .pdf, .dot or .txt; the suffix chooses.

        Raises ValueError for another suffix, and what `svg` raises.
        """
        suffix = os.path.splitext(os.fsdecode(path))[1].lower()
        if suffix in (".svg", ".png", ".pdf"):
            write_atomically(dot.render(self.picture, suffix[1:]), path)
        elif suffix in (".dot", ".gv"):
            write_atomically(self.dot, path)
        elif suffix == ".txt":
            write_atomically(self.text() + "\n", path)
        else:
            raise ValueError(
                f"{os.fsdecode(path)!r}: end the name in .svg, .png, .pdf, .dot or .txt. For a "
                "page write ta.viz.graph_html(tensor).save(path)."
            )

    __repr__ = __str__ = text

    def _repr_html_(self) -> str | None:
        try:
            return self.svg()
        except Exception:  # the notebook shows the text
            return None


def graph(
    tensor: Any,
    model: Any = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    *,
    limit: int | None = LIMIT,
    plain: bool = False,
) -> Graph:
    """Draw how a tensor was computed: ops, operands, and modules as frames around them.

    `tensor` is a Tensor, a list of them, or a function without arguments that returns one. Dotted
    names are seen from `model`, or else from the outermost module that was called. `depth` levels
    of modules are opened, 1 by default; `expand=["layers.0.self_attn"]` opens single ones. Where
    there are more than `limit` boxes, the depth falls, and the picture says so.

    `plain=True` runs the function in plain mode: attention is drawn as scores, mask, softmax and
    product, layer norm and GELU as their formulas. Each has a frame with its name, and boxes have
    the names of the variables in the code. All levels are opened, as far as `limit` permits.

    Returns a `Graph` with `.dot`, `.svg()`, `.text()` and `.save(path)`. Raises TypeError for
    something that is no Tensor, ValueError for a name in `expand` of no module that was called.
    """
    return Graph(Source(tensor, model, plain).picture(depth, expand, limit))
