"""Pictures of the computation graph: `graph(tensor)`."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from ..messages.errors import MissingName
from ..messages.signatures import own_names
from . import render, tree
from .build import build
from .dot import to_dot
from .model import Picture


class DotText(str):
    """The DOT text of a graph; `graph.dot()` gives it as well as `graph.dot`."""

    def __call__(self) -> str:
        return str(self)


class Graph:
    """A picture: `.dot`, `.svg()`, `.text()`, `.save(path)`; a notebook shows it by itself.

    It holds words and numbers only, so it keeps no tensor alive and stays as it was when the graph
    is released.
    """

    render, view, show = (
        MissingName(name, "graph.save('graph.svg') or print(graph); a notebook shows it by itself")
        for name in ("render", "view", "show")
    )

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    @functools.cached_property
    def dot(self) -> str:
        """The DOT text, the same on every run; raises ImportError without the graphviz package."""
        return DotText(to_dot(self.picture))

    @functools.cached_property
    def _svg(self) -> str:
        return render.svg(self.dot)

    def svg(self) -> str:
        """The picture as one SVG element.

        Raises ImportError without the graphviz package, RuntimeError without a Graphviz to draw it.
        """
        return self._svg

    def text(self) -> str:
        """The picture as a tree of text, from the output down to the inputs.

        It needs nothing installed. The branches are ASCII where standard output has no others.
        """
        return tree.as_standard_output_can(tree.to_text(self.picture))

    def html(self) -> str:
        """A self-contained page with the picture, or with the tree where nothing can draw."""
        try:
            body = self.svg()
        except (ImportError, RuntimeError):
            body = tree.to_html(self.picture)
        return render.page("computation graph", body)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture; the suffix says as what: .svg .png .pdf .dot (or .gv) .txt .html.

        Raises ValueError for another suffix; for what is drawn ImportError without the graphviz
        package and RuntimeError where no Graphviz is there to draw it.
        """
        suffix = os.path.splitext(os.fsdecode(path))[1].lower()
        if suffix == ".svg":
            render.write(
                path, '<?xml version="1.0" encoding="UTF-8" standalone="no"?>\n' + self.svg()
            )
        elif suffix in (".png", ".pdf"):
            render.write(path, render.render(self.dot, suffix[1:]))
        elif suffix in (".dot", ".gv"):
            render.write(path, self.dot)
        elif suffix == ".txt":
            render.write(path, tree.to_text(self.picture) + "\n")
        elif suffix == ".html":
            render.write(path, self.html())
        else:
            raise ValueError(
                f"cannot tell from {os.fsdecode(path)!r} what to write; "
                "end the name in .svg, .png, .pdf, .dot, .txt or .html."
            )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        try:
            return self.text()
        except Exception as error:  # a repr never raises
            return f"<a picture that could not be told: {type(error).__name__}: {error}>"

    def _repr_html_(self) -> str | None:
        try:
            return self.svg()
        except Exception:  # no renderer, or one that failed: the tree says the same
            try:
                return tree.to_html(self.picture)
            except Exception:
                return None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        shown = self._repr_html_()
        return {"text/plain": repr(self)} | ({"text/html": shown} if shown else {})


@own_names
def graph(
    tensor: Any,
    model: Any = None,
    depth: int | None = None,
    expand: Sequence[str] = (),
    *,
    rollup: bool = False,
    legend: bool = False,
    limit: int | None = 150,
) -> Graph:
    """A picture of how a tensor was computed: ops and operands, and modules as frames around them.

    `tensor` is a Tensor or a list of them. `model` gives the dotted names; without it the outermost
    module does. `depth` says how many levels of modules are opened (default 1, and every op of an
    expression outside modules); `expand=["layers.0.self_attn"]` opens single ones. `rollup=True`
    draws neighbours that did the same once, as "x6"; `legend=True` explains the shapes. Past
    `limit` boxes modules are folded further, then the middle of the run, and the picture says so;
    None draws everything.

    Returns a `Graph` with `.dot`, `.svg()`, `.text()` and `.save(path)`. Raises TypeError for
    something that is no Tensor, ValueError for a name in `expand` that no module called here has.
    """
    picture = build(tensor, model, depth, expand, rollup=rollup, limit=limit)
    picture.legend = legend
    return Graph(picture)
