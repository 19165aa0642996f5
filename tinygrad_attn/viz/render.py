"""From DOT text to an image, and HTML pages.

The `dot` program draws where it is installed, else pygraphviz, which carries Graphviz's libraries.
"""

from __future__ import annotations

import html
import os
from importlib import resources
from typing import Any

from ..files.atomic import write_atomically
from .dot import package

NO_RENDERER = (
    "no Graphviz was found to draw with. Install the program (apt install graphviz, "
    'brew install graphviz, or from graphviz.org), or pip install "tinygrad_attn[viz]", '
    "whose pygraphviz carries the libraries. Without either, .dot and .text() still work, "
    "and so does save() with .dot, .txt or .html."
)


class NoRenderer(RuntimeError):
    """Neither the `dot` program nor pygraphviz is there."""


def render(dot: str, format: str) -> bytes:
    """The picture of this DOT text in `format`: "svg", "png" or "pdf".

    Raises NoRenderer where nothing can draw it.
    """
    graphviz = package()
    try:
        return graphviz.Source(dot).pipe(format=format, quiet=True)
    except (graphviz.ExecutableNotFound, graphviz.CalledProcessError, OSError) as error:
        try:
            import pygraphviz  # lazy: an optional package
        except ImportError:
            if isinstance(error, graphviz.CalledProcessError):
                raise RuntimeError(f"Graphviz could not draw this picture: {error}") from error
            raise NoRenderer(NO_RENDERER) from None
    return bytes(pygraphviz.AGraph(string=dot).draw(format=format, prog="dot"))


def svg(dot: str) -> str:
    """The SVG element alone, without the XML prologue, so that it can stand inside HTML."""
    text = render(dot, "svg").decode()
    return text[text.index("<svg") :]


def write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file under a temporary name and then rename it."""
    write_atomically(data.encode() if isinstance(data, str) else data, os.fsdecode(path))


def page(title: str, body: str, name: str = "") -> str:
    """One HTML page with templates/NAME.css and NAME.js written into it, which fetches nothing."""
    # The package may lie in a zip file, so the folder need not be one of the file system.
    folder = resources.files("tinygrad_attn.viz").joinpath("templates")
    style = (
        folder.joinpath(f"{name}.css").read_text("utf-8")
        if name
        else "body { margin: 1em; }\nsvg { max-width: 100%; height: auto; }\n"
    )
    script = (
        f"<script>\n{folder.joinpath(f'{name}.js').read_text('utf-8')}</script>\n" if name else ""
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
{script}</body>
</html>
"""


class Page:
    """A self-contained HTML page: `str(page)` is its text, `save(path)` writes it.

    A notebook shows it in a frame.
    """

    def __init__(self, text: str, height: int = 640) -> None:
        self.text, self.height = text, height

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<HTML page of {len(self.text):,} characters; .save('page.html') writes it>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page; the file opens in any browser, with no network."""
        write(path, self.text)

    def _repr_html_(self) -> Any:
        look = f"width:100%;height:{self.height}px;border:1px solid #ccc"
        return f'<iframe srcdoc="{html.escape(self.text)}" style="{look}"></iframe>'
