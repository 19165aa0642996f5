"""Every page of the documents is reached from the index, what it links to is there, and none of its code is left out."""

import ast
import re
from pathlib import Path

from enumeration import asserted, unmet
from pages import blocks
from support import ROOT, each

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
ALL = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"(?<!\\)\]\(<?([^()\s>]+)>?(?: \"[^\"]*\")?\)")


def names(pages: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


def listed(page: Path) -> set[Path]:
    """The pages in the tables of contents on a page."""
    found = set()
    for tree in TOCTREE.findall(page.read_text("utf-8")):
        for line in tree.splitlines():
            if line and not line.startswith(":"):
                entry = re.search(r"<(.*)>", line)
                name = (entry[1] if entry else line).strip().removesuffix(".md")
                found |= set(page.parent.glob(name + ".md"))
    return found


def reached(start: Path) -> set[Path]:
    found, ahead = {start}, [start]
    while ahead:
        new = listed(ahead.pop()) - found
        found |= new
        ahead += new
    return found


def test_every_page_is_reached_from_the_index():
    advice = "name {name!r} in a toctree, of docs/index.md or of a page that is reached from there"
    pages = [page for page in PAGES if page.parent.name != "zh"]  # the translators' glossary
    asserted(unmet(names(pages), names(sorted(reached(DOCS / "index.md"))), advice))


def headings(text: str) -> set[str]:
    """The anchors that a page has: of its headings, as GitHub and MyST make them, and its own."""
    prose = re.sub(r"(?ms)^(`{3,}).*?^\1", "", text)
    found = set(re.findall(r"^\(([\w-]+)\)=$", text, re.M)) | set(re.findall(r'id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.*)$", prose, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@each("page", ALL)
def test_what_a_page_links_to_is_there(page):
    text = page.read_text("utf-8")
    prose = re.sub(r"(?ms)^(`{3,}).*?^\1", "", text)
    complaints = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose)):
        where, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):  # a page of the web, or a letter
            continue
        target = (page.parent / where).resolve() if where else page
        if not target.exists():
            complaints.append(f"{link}: there is no {target}")
        elif (
            anchor and target.suffix == ".md" and anchor not in headings(target.read_text("utf-8"))
        ):
            complaints.append(f"{link}: {target.name} has no heading #{anchor}")
    asserted(complaints)


@each("page", ALL)
def test_no_python_stands_in_a_block_that_is_not_run(page):
    """A fence without its language, or with one that tests/docs/test_pages.py does not know, would be passed over."""
    text = page.read_text("utf-8")
    run = {block.line for block in blocks(text)}
    for match in re.finditer(r"^ *(`{3,})(.*)\n((?s:.*?))^ *\1 *$", text, re.M):
        line, code = text[: match.start()].count("\n") + 2, match[3]
        if line in run or "import tinygrad_attn" not in code and "from tinygrad_attn" not in code:
            continue
        try:
            ast.parse(code)
        except SyntaxError:
            continue
        raise AssertionError(f"{page}:{line}: write ```python above this block, so that it is run")
