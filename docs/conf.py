"""Sphinx settings: `make docs`. Pages are MyST Markdown; their code blocks are run by
tests/docs/test_pages.py, not here.
"""

import re
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "live"))
import inside_page
from docutils.nodes import SkipNode, math_block
from latex2mathml.converter import convert as tex2mathml
from sphinx.util.logging import getLogger

import tinygrad_attn

logger = getLogger(__name__)

project = "tinygrad_attn"
author = "The tinygrad_attn authors"
copyright = f"2026, {author}"
release = tinygrad_attn.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
html_math_renderer = (
    "mathml"  # a browser draws MathML by itself; MathJax would be fetched from the net
)
exclude_patterns = ["_build", "**/.ipynb_checkpoints", "zh"]

# The Chinese pages are built into zh/ from the catalogues that docs/zh/translate.py keeps.
locale_dirs = ["zh/locale"]
gettext_compact = False
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "language.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme = "furo"
html_favicon = "static/icon.svg"
html_static_path = ["static"]
copybutton_exclude = ".linenos, .gp, .go"
html_title = f"tinygrad_attn {release}"

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

if tags.has("live"):  # noqa: F821  Sphinx gives it: `make site` (docs/live/make_site.py)
    extensions.remove("sphinx.ext.viewcode")  # half of the folder's megabytes
    html_copy_source = False

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
    """Write TeX as MathML, which browsers draw without a script or the network."""

    def visit(self, node):
        try:
            mathml = tex2mathml(node.astext(), display="block" if as_block else "inline")
            unknown = re.findall(r">(\\\w+)<", mathml)
        except Exception as error:
            mathml, unknown = (
                f"<code>{escape(node.astext())}</code>",
                [f"{type(error).__name__} {error}"],
            )
        for name in unknown:
            logger.warning(
                "cannot translate %s in the formula %s", name, node.astext(), location=node
            )
        self.body.append(f'<div class="formula">{mathml}</div>' if as_block else mathml)
        raise SkipNode

    return visit


LIVE = re.compile(r"index|getting-started|practice|(course|engine)/.*")


NOTE = re.compile(
    r'<!-- *(raises|skip|browser): (.*?) *-->\s*<div (?=[^<>]*class="highlight-)', re.S
)


def with_attributes(body):
    """Put the comments above a block of code into its attributes, where live.js reads them."""
    notes = 1
    while notes:  # one comment may stand above another
        body, notes = NOTE.subn(lambda note: f'<div data-{note[1]}="{escape(note[2])}" ', body)
    return body


def without_formulas(app, doctree):
    """Keep formulas, and the second copy of a picture's text, out of the catalogues."""
    if app.builder.name == "gettext":
        for node in [*doctree.findall(math_block)]:
            node.parent.remove(node)


def make_live(app, page, template, context, doctree):
    """Load the scripts that run code on the pages whose code runs."""
    if doctree is not None and LIVE.fullmatch(page):
        live = "../../_static/live" if app.config.language == "zh_CN" else "live"  # once for all
        for name in ("settings", "page", "view", "live", "digit"):
            app.add_js_file(f"{live}/{name}.js")
        for name in ("palette", "live", *(["chinese"] if live != "live" else [])):
            app.add_css_file(f"{live}/{name}.css")
        context["body"] = with_attributes(context["body"])


def add_inside(app, error):
    """Add the page about the inside of a language model, to which the first page leads."""
    if error is None and app.builder.format == "html":
        inside_page.save(Path(app.outdir))


def of_translation(app, config):
    """Prepare a build in Chinese: its search knows the glossary's terms, and English checks links."""
    if config.language != "zh_CN":
        return
    # A translated heading hides the other headings from MyST, though the links are right.
    config.suppress_warnings.append("myst.xref_missing")
    import jieba
    from sphinx.search.zh import SearchChinese

    SearchChinese.language_name = "English"  # the name of the stemmer that Sphinx's script brings
    glossary = (Path(__file__).parent / "zh" / "glossary.md").read_text("utf-8")
    for row in glossary.splitlines():
        if row.startswith("| "):
            for term in re.split(r"[；，（）]", row.split("|")[2]):
                jieba.add_word(term.strip())


def setup(app):
    app.connect("config-inited", of_translation)
    app.connect("build-finished", add_inside)
    if app.tags.has("live"):
        app.connect("html-page-context", make_live)
    app.connect("doctree-read", without_formulas)
    app.add_html_math_renderer("mathml", (formula(False), None), (formula(True), None))
    app.add_css_file("local.css")
    app.connect("autodoc-process-docstring", plain_text)
