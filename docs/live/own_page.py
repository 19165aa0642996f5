"""Makes a static page of a teacher's exercise, which marks answers in the reader's browser:
`python -m tinygrad_attn page FILE.py -o DIR`. The page holds no solution.
"""

from __future__ import annotations

import html
import json
import os
import sys
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "course" / "marking")]

import _language  # noqa: E402
import _own  # noqa: E402
import make_site  # noqa: E402

PAGE = Template("""<!doctype html>
<html lang="$language">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<script src="live/settings.js"></script>
<script src="live/page.js"></script>
<script src="live/live.js"></script>
<link rel="stylesheet" href="live/palette.css">
<link rel="stylesheet" href="live/live.css">
<style>
:root { color-scheme: light dark; --color-foreground-primary: CanvasText; --color-foreground-secondary: GrayText;
  --color-background-primary: Canvas; --color-background-secondary: ButtonFace; --color-background-hover: Highlight;
  --color-background-border: GrayText; --color-foreground-border: GrayText; --color-brand-content: LinkText; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
.highlight-sh { display: none; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$task</p>
<ul>
$parts
</ul>
<div class="highlight-sh"><pre>python -m tinygrad_attn exercise $name</pre></div>
</body>
</html>
""")
TASK = (
    "Write your answer in place of each return None, and press Mark. Your text stays in this "
    "browser."
)


def write(file: Path, folder: Path, offline: bool = False) -> Path:
    """Write the page of a teacher's file into a folder, and return its address."""
    if offline and (missing := make_site.missing_tool()):
        raise ValueError(missing)
    parts, name = _own.parts_of(file), file.stem
    folder.mkdir(parents=True, exist_ok=True)
    archive = make_site.package(course=False, more={_own.PACKED: _own.packed(parts)})
    stubs = {name: _own.stub(parts)}
    make_site.lay_out(folder / "live", offline, archive, stubs, _language.in_language)
    language = os.environ.get(_language.VARIABLE, "en")
    rows = [f"<li>{html.escape(one.name)}: {points(one.points, language)}</li>" for one in parts]
    texts = {"title": html.escape(name), "name": name, "parts": "\n".join(rows)}
    code = next((code for code, short in make_site.LANGUAGES.items() if short == language), "en")
    task = said(TASK, language).replace("return None", "<code>return None</code>")
    page = folder / "index.html"
    page.write_text(PAGE.substitute(texts, language=code, task=task), "utf-8")
    return page


def points(count: float, language: str) -> str:
    """Return a number of points in words."""
    text = "{} point" if count == 1 else "{} points"
    return said(text, language).replace("{}", f"{count:g}")


def said(text: str, language: str) -> str:
    """Return a text of the page in a language."""
    if language not in make_site.LANGUAGES.values():
        return text
    words = json.loads((make_site.DOCS / language / "live.json").read_text("utf-8"))
    return str(words[text])
