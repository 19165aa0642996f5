"""Makes a static page of a teacher's exercise, which marks answers in the reader's browser:
`python -m tinygrad_attn page FILE.py -o DIR`. The page holds no solution.
"""

from __future__ import annotations

import html
import sys
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "course" / "marking")]

import _own  # noqa: E402
import make_site  # noqa: E402

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
$scripts
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
<p>Write your answer in place of each <code>return None</code>, and press Mark. Your text stays in this browser.</p>
<ul>
$parts
</ul>
<div class="highlight-sh"><pre>python -m tinygrad_attn exercise $name</pre></div>
</body>
</html>
""")


def write(file: Path, folder: Path, offline: bool = False) -> Path:
    """Write the page of a teacher's file into a folder, and return its address."""
    parts, name = _own.parts_of(file), file.stem
    folder.mkdir(parents=True, exist_ok=True)
    archive = make_site.package(course=False, more={_own.PACKED: _own.packed(parts)})
    make_site.lay_out(folder / "live", offline, archive, {name: _own.stub(parts)})
    rows = [
        f"<li>{html.escape(one.name)} ({one.points:g} point{'s' * (one.points != 1)})</li>"
        for one in parts
    ]
    texts = {"title": html.escape(name), "name": name, "parts": "\n".join(rows)}
    page = folder / "index.html"
    page.write_text(PAGE.substitute(texts, scripts="\n".join(scripts(offline))), "utf-8")
    return page


def scripts(offline: bool) -> list[str]:
    """Return the elements that load what the page needs."""
    texts = []
    for name in ("codemirror.js", "python.js", "codemirror.css"):
        part = make_site.part(name)
        place = f"live/{name}" if offline else part.url
        check = "" if offline else f' integrity="{part.integrity}" crossorigin="anonymous"'
        if name.endswith(".css"):
            texts.append(f'<link rel="stylesheet" href="{place}"{check}>')
        else:
            texts.append(f'<script src="{place}"{check}></script>')
    return [*texts, *(f'<script src="live/{name}.js"></script>' for name in ("settings", "live"))]
