"""Keeps what the pages quote equal to the source.

    python docs/quotes.py            names the pages whose quotes are out of date; exit code 0: none
    python docs/quotes.py --write    takes the quotes from the source anew

A quote in a page is a comment that names a file and what of it is meant, and below it a block of
code:

    <!-- quote: tinygrad_attn/engine/backward.py sweep -->
    ```py
    ...
    ```

Several names quote several things; `Op.pull` is a method. An op is quoted with the rules under it.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUOTE = re.compile(
    r"^<!-- quote: (?P<file>\S+) (?P<names>[^\n]+?) -->\n```py\n(?P<code>.*?)^```$", re.M | re.S
)


def pages(root: Path = ROOT) -> list[Path]:
    """The Markdown files that may quote."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(page for page in found if "_build" not in page.parts)


def renewed(text: str, root: Path = ROOT) -> str:
    """The page with each quote as the source has it; ValueError for a name that is not there."""

    def quote(found: re.Match[str]) -> str:
        names = found["names"].split()
        code = source(root / found["file"], names)
        return f"<!-- quote: {found['file']} {' '.join(names)} -->\n```py\n{code}```"

    return QUOTE.sub(quote, text)


def source(file: Path, names: Iterable[str]) -> str:
    """The text of these functions, classes, methods and constants, as it stands in the file."""
    if not file.is_file():
        raise ValueError(f"there is no {file} to quote from.")
    text = file.read_text("utf-8")
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    parts = []
    for name in names:
        body: list[ast.stmt] = tree.body
        for outer in name.split(".")[:-1]:
            body = next(
                (
                    node.body
                    for node in body
                    if isinstance(node, ast.ClassDef) and node.name == outer
                ),
                [],
            )
        first, last = place(body, name.rpartition(".")[2], f"{file}: {name}")
        parts.append(textwrap.dedent("".join(lines[first - 1 : last])))
    return "\n\n".join(parts) if all(part.count("\n") > 1 for part in parts) else "".join(parts)


def place(body: list[ast.stmt], name: str, shown: str) -> tuple[int, int]:
    """The first and last line of what is called so, and of the statements about it that follow."""
    for i, node in enumerate(body):
        if not is_called(node, name):
            continue
        decorators = getattr(node, "decorator_list", [])
        first, last = min([node.lineno, *(d.lineno for d in decorators)]), node.end_lineno
        for after in body[i + 1 :]:
            decorator = next(iter(getattr(after, "decorator_list", [])), after)
            if not re.match(rf"{name}\.", ast.unparse(decorator)):
                break
            last = after.end_lineno
        assert last is not None
        return first, last
    raise ValueError(f"{shown} is not there to be quoted.")


def is_called(node: ast.stmt, name: str) -> bool:
    """Is this the definition of the function, class or constant of that name?"""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def main(words: list[str]) -> int:
    """Compare, or with --write renew; returns the exit code."""
    stale = False
    for page in pages():
        text = page.read_text("utf-8")
        new = renewed(text)
        if new != text:
            stale = True
            done = "renewed" if "--write" in words else "not what the source says"
            print(f"{page.relative_to(ROOT)}: {done}")
            if "--write" in words:
                page.write_text(new, "utf-8")
    return int(stale and "--write" not in words)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
