"""Shows the file with which an exercise begins in another language: its task is translated, and its
code stays as it is.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from _language import catalogue
from _wording import width

LINE = 96  # cells
SIGN = "[\u3000-\u9fff\uff00-\uffef]"
WORD = re.compile(
    rf"[（“《]*(?:{SIGN}|[^\s\u3000-\u9fff\uff00-\uffef]+)[，。：；、？！）”》…]*|\s+"
)


def docstrings(source: str) -> Iterator[tuple[str, int]]:
    """Yield the docstrings of a file as they are written, with their indentation."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0].value  # type: ignore[attr-defined]
            if f'"""{text.value}"""' in source:
                yield text.value, text.col_offset


def comments(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def paragraphs(docstring: str, indent: int) -> list[str]:
    """Return the paragraphs of a docstring without its indentation."""
    plain = docstring.replace("\n" + " " * indent, "\n")
    return [part.strip("\n").rstrip() for part in plain.split("\n\n")]


def in_language(source: str, language: str | None = None) -> str:
    """Return a file with its docstrings and comments in a language, by default the environment's."""
    found = catalogue(language)
    if found is None:
        return source
    for docstring, indent in docstrings(source):
        said = [translated(found.exact, part) for part in paragraphs(docstring, indent)]
        ending = re.search(r"\s*\Z", docstring)[0]  # type: ignore[index]
        text = re.sub(r"\n(?=.)", "\n" + " " * indent, "\n\n".join(said).rstrip()) + ending
        source = source.replace(f'"""{docstring}"""', f'"""{text}"""', 1)
    for comment in comments(source):
        source = source.replace(comment, f"# {translated(found.exact, comment[2:])}", 1)
    return source


def translated(exact: dict[str, str], paragraph: str) -> str:
    """Return the translation of a paragraph, in lines that are not too long."""
    said = exact.get(" ".join(paragraph.split()))
    if said is None:
        return paragraph
    return "\n".join(line if line.startswith(" ") else wrapped(line) for line in said.split("\n"))


def wrapped(text: str) -> str:
    """Break a text into lines, where Chinese may be broken between any two characters."""
    lines = [""]
    for word in WORD.findall(text):
        if width(lines[-1] + word.rstrip()) > LINE:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            word = word.lstrip()
        lines[-1] += word
    return "\n".join(lines)
