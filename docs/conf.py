"""Sphinx settings: `make docs`. Pages are MyST Markdown; their code blocks are run by
tests/docs/test_pages.py, not here.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

import tinygrad_attn

project = "tinygrad_attn"
author = "The tinygrad_attn authors"
copyright = f"2026, {author}"
release = tinygrad_attn.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_math_renderer = (
    "mathml"  # a browser draws MathML by itself; MathJax would be fetched from the net
)
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"tinygrad_attn {release}"

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_docstring_signature = (
    False  # silu's first line, an equation that ends in ")", was taken for its signature
)
autodoc_member_order = "bysource"


def escaped(text):
    """No character is markup, but for *emphasis*."""
    return re.sub(
        r"(?<!\w)\*\w+\*(?!\w)|[*|\\_]",
        lambda found: found[0] if len(found[0]) > 1 else "\\" + found[0],
        text,
    )


def plain_text(app, what, name, obj, options, lines):
    """Docstrings are written to be read in an editor: plain text, with indented blocks as code and
    names in `backticks`.
    """
    found, inside = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not inside:
            found += ["", "::", ""]
        elif inside and not indented and line.strip():
            found.append("")
        inside = indented or inside and not line.strip()
        parts = line.split("`")
        found.append(
            line
            if inside
            else "".join(
                f"``{part}``" if i % 2 and part.strip() else escaped(part)
                for i, part in enumerate(parts)
            )
        )
    lines[:] = found


def formula(as_block):
    """TeX as MathML, by docutils' own translator. A root or a power is drawn beyond its box: room,
    or the theme shows a scroll bar.
    """

    def visit(self, node):
        spaced = re.sub(
            r"\\(ln|log|tanh) (?=[\w\\])", r"\\\1\\,", node.astext()
        )  # the translator writes ln 10 as ln10,
        spaced = re.sub(r"(?<=[\w}]) \\(ln|log)\b", r"\\,\\\1", spaced)  # x ln 10 as xln 10,
        spaced = re.sub(
            r"(\\(bar|dot) \w)_", r"{\1{}}_", spaced
        )  # and the index of a letter with a bar below it
        mathml = tex2mathml(spaced, as_block=as_block).replace(
            'accent="true"', 'accent="false"'
        )  # an accent's bar touches its letter
        self.body.append(
            f'<div class="formula" style="padding: .5em 0">{mathml}</div>' if as_block else mathml
        )
        raise SkipNode

    return visit


def setup(app):
    app.add_html_math_renderer("mathml", (formula(False), None), (formula(True), None))
    app.connect("autodoc-process-docstring", plain_text)
