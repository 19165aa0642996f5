"""Build self-contained HTML pages from templates."""

import html
import json
import os
from importlib import resources
from string import Template

from ..files import write_atomically

TEMPLATES = resources.files(__package__).joinpath("templates")


class Page(str):
    """The text of a self-contained HTML page, which notebooks display."""

    def __repr__(self):
        return f"<HTML page of {len(self):,} characters; .save('page.html') writes it>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        write_atomically(self, path)

    def _repr_html_(self):
        look = "width:100%;height:720px;border:1px solid #ccc"
        return f'<iframe srcdoc="{html.escape(self)}" style="{look}"></iframe>'


def page(title, name, folder=TEMPLATES, **fields):
    """Fill the shared template page.* and the template NAME.* in `folder` with HTML fields."""
    (frame, look, tools), (body, style, script) = (
        [place.joinpath(f"{part}.{suffix}").read_text("utf-8") for suffix in ("html", "css", "js")]
        for place, part in ((TEMPLATES, "page"), (folder, name))
    )
    style = TEMPLATES.joinpath("palette.css").read_text("utf-8") + look + style
    parts = {"title": html.escape(title), "style": style, "script": tools + script}
    return Page(Template(frame).substitute(parts, body=Template(body).substitute(fields)))


def as_json(value):
    """Format a value as JSON that is safe inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")
