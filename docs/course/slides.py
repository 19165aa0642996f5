"""Makes slides of each chapter from its own text: `python docs/course/slides.py [DIR]`.

Each bold lead-in and each heading begins a slide. It shows the first sentence of each paragraph,
formulas, pictures, code and tables. The whole paragraphs are the speaker's notes: press S.

The slides are shown by reveal.js (MIT licence). It is copied into the folder if `npm` is there, so
that a lecture needs no network. Otherwise a browser fetches it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tinygrad_attn.files import write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parent))

import notebooks

REVEAL = "reveal.js@5.2.1"
FILES = {  # with their SHA-256
    "dist/reset.css": "1aa8e84c9cabcbfe4d95b19879fe48b9c2c5e6d54574cbe679bc22edb9fe12b6",
    "dist/reveal.css": "68f915a11ebf7203c0446576b7e952ff61c5dd02134a8a226ffaf62ed42136d2",
    "dist/theme/white.css": "97f64970ffd6c745ffab96ad26c504950f665e18fa851ac8864fc1851ce99780",
    "dist/reveal.js": "46538b52db48724192f59bf46f5e851a18e302777c46f4a34c32709d010d6a29",
    "plugin/notes/notes.js": "df1201d19d03241a2897d39c3d38768177df1cbd4bde06327b321cb83461ae89",
}
STYLE = """
.reveal { font-size: 26px; font-family: sans-serif; }
.reveal h1, .reveal h2 { text-transform: none; font-family: sans-serif; }
.reveal h2 { font-size: 1.4em; }
.reveal section { text-align: left; }
.reveal pre { width: 100%; font-size: 0.6em; box-shadow: none; background: #f4f4f4; padding: 0.5em; box-sizing: border-box; }
.reveal pre code { max-height: none; }
.reveal section img { max-height: 420px; margin: 0.2em auto; display: block; }
.reveal .long pre { font-size: 0.45em; }
.reveal table { font-size: 0.7em; }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
{styles}
<style>{style}</style>
</head>
<body>
<div class="reveal"><div class="slides">
{slides}
</div></div>
{scripts}
<script>Reveal.initialize({{ hash: true, width: 1120, height: 700, plugins: [RevealNotes] }});</script>
</body>
</html>
"""
FULL = 13
"""How many lines a slide holds, about; a longer one goes on below."""
LONG = 22
"""A block of more lines is set in small letters."""
LEAD = re.compile(r"\*\*(?P<title>[^*]+?)\.?\*\*\s*(?P<text>.*)", re.S)
SENTENCE = re.compile(r".*?[.!?](?=\s+[A-Z*`$]|\s*$)", re.S)


def write_all(folder: Path) -> str:
    """Write the slides of all chapters and an index. Return a text about reveal.js."""
    (folder / "images").mkdir(parents=True)
    offline = bring_reveal(folder)
    rows = []
    for chapter in notebooks.chapters():
        for picture in notebooks.pictures(chapter):
            shutil.copyfile(picture, folder / "images" / picture.name)
        title, page = page_of(chapter, offline)
        write_atomically(page, folder / f"{chapter.stem}.html")
        rows.append(f'<li><a href="{chapter.stem}.html">{html.escape(title)}</a></li>')
    text = "<!doctype html><meta charset=utf-8><title>Slides</title><ul>{}</ul>\n"
    write_atomically(text.format("\n".join(rows)), folder / "index.html")
    return "they need no network" if offline else "without npm, they fetch reveal.js when shown"


def bring_reveal(folder: Path) -> bool:
    """Copy reveal.js into the folder, if npm can fetch it. Raises ValueError for another content."""
    with tempfile.TemporaryDirectory() as place:
        try:
            command = ["npm", "pack", "--silent", REVEAL]
            subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
            (kept,) = Path(place).iterdir()
        except (OSError, ValueError, subprocess.SubprocessError):
            return False
        with tarfile.open(kept) as archive:
            for name, sha256 in FILES.items():
                content = archive.extractfile(f"package/{name}").read()
                if hashlib.sha256(content).hexdigest() != sha256:
                    raise ValueError(f"{name} of {REVEAL} is not the file that is expected.")
                into = folder / "reveal" / name
                into.parent.mkdir(parents=True, exist_ok=True)
                if name.endswith("white.css"):  # its font would be fetched
                    content = content.replace(
                        b"@import url(./fonts/source-sans-pro/source-sans-pro.css);", b""
                    )
                into.write_bytes(content)
    return True


def page_of(chapter: Path, offline: bool) -> tuple[str, str]:
    """Return the title and the slides of a chapter."""
    title, sections = sections_of(chapter.read_text("utf-8"))
    slides = [f"<section><h1>{inline(title)}</h1></section>"]
    for heading, blocks in sections:
        slides += slides_of(heading, blocks)
    tags = {"styles": [], "scripts": []}
    for name, sha256 in FILES.items():
        digest = base64.b64encode(bytes.fromhex(sha256)).decode()
        where = f"https://cdn.jsdelivr.net/npm/{REVEAL}/{name}"
        end = "" if offline else f' integrity="sha256-{digest}" crossorigin="anonymous"'
        where = f"reveal/{name}" if offline else where
        if name.endswith(".css"):
            tags["styles"].append(f'<link rel="stylesheet" href="{where}"{end}>')
        else:
            tags["scripts"].append(f'<script src="{where}"{end}></script>')
    texts = {name: "\n".join(lines) for name, lines in tags.items()}
    return title, PAGE.format(
        title=html.escape(title), style=STYLE, slides="\n".join(slides), **texts
    )


def sections_of(text: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """Return the title of a chapter, and its blocks of Markdown by heading or bold lead-in."""
    title, sections = "", [("", [])]
    for block in blocks_of(text):
        lead = LEAD.fullmatch(block)
        if block.startswith("# "):
            title = block[2:].strip()
        elif block.startswith("#"):
            sections.append((block.lstrip("# ").strip(), []))
        elif lead and not lead["title"][0].isdigit() and len(lead["title"]) < 70:
            sections.append((lead["title"], [lead["text"]] if lead["text"] else []))
        else:
            sections[-1][1].append(block)
    return title, [(heading or title, blocks) for heading, blocks in sections if blocks]


def blocks_of(text: str) -> Iterator[str]:
    """Split Markdown at empty lines outside code, without comments."""
    text = re.sub(r"<!--.*?-->\n*", "", text, flags=re.S)
    for part in re.split(r"(^```[^\n]*\n.*?^```$)", text, flags=re.M | re.S):
        if part.startswith("```"):
            yield part
        else:
            yield from (block.strip() for block in re.split(r"\n{2,}", part) if block.strip())


def slides_of(heading: str, blocks: list[str]) -> Iterator[str]:
    """Return the slides of a section: one under another, if they are several."""
    pages, size = [([], [])], 0
    for block in blocks:
        shown, notes, height = shown_of(block)
        if size and size + height > FULL:
            pages.append(([], []))
            size = 0
        size += height
        pages[-1][0].append(shown)
        pages[-1][1].append(notes)
    inner = [
        f"<section><h2>{inline(heading)}</h2>{''.join(shown)}"
        f'<aside class="notes">{"".join(notes)}</aside></section>'
        for shown, notes in pages
    ]
    yield inner[0] if len(inner) == 1 else f"<section>{''.join(inner)}</section>"


def shown_of(block: str) -> tuple[str, str, int]:
    """Return what a slide shows of a block, its notes, and about how many lines it takes."""
    if block.startswith("!["):
        return rendered(block), "", 10
    if block.startswith(("```", "$$", "|")):
        lines, html_text = block.count("\n") + 1, rendered(block)
        if lines > LONG:
            html_text = f'<div class="long">{html_text}</div>'
        return html_text, "", lines if block.startswith("|") else max(2, lines * 2 // 3)
    if re.match(r"[-*] |\d+\. ", block):
        return rendered(block), "", block.count("\n") + 1
    first = SENTENCE.match(block)
    shown = block if "$$" in block or not first else first[0]
    return rendered(shown), rendered(block), 2 if "$$" not in block else 5


def rendered(text: str) -> str:
    """Return Markdown as HTML, with formulas as MathML and pictures from the folder `images`."""
    from latex2mathml.converter import convert
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def formula(content: str, options: dict) -> str:
        return convert(content, display="block" if options.get("display_mode") else "inline")

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    parser.use(dollarmath_plugin, renderer=formula)
    text = re.sub(r"\]\((?:\.\./)*images/", "](images/", text)
    text = re.sub(r"(?<!!)\[([^]]*)\]\((?!\w+:)[^)]*\)", r"\1", text)  # other pages are not here
    return parser.render(text)


def inline(text: str) -> str:
    """Return a heading as HTML."""
    return re.sub(r"^<p>|</p>\n?$", "", rendered(text))


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else notebooks.OUT.parent / "slides"
    print(f"{out}: {write_all(out)}")
