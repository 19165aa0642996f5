"""Finds and runs the Python blocks of a Markdown page. tests/docs/test_pages.py states the rules."""

import ast
import doctest
import io
import re
import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<info>[^`]*)$")
NOTE = re.compile(r"^\s*<!-- *(?P<kind>skip|raises): *(?P<value>.+?) *-->\s*$")
LANGUAGES = {"python": "python", "pycon": "pycon", "{code-cell}": "python"}


@dataclass
class Block:
    language: str
    line: int  # of the code's first line, counted from 1
    code: str
    skip: str = ""
    raises: str = ""
    printed: str = ""  # the text block that directly follows
    shown: str = ""  # what it has shown when it ran


def blocks(text: str) -> list[Block]:
    """Return the Python blocks of a Markdown text. A fence inside a longer fence is not a block."""
    found, lines, here = [], text.splitlines(), 0
    while here < len(lines):
        opening, here = FENCE.match(lines[here]), here + 1
        if not opening:
            continue
        start, ticks = here, opening["ticks"]
        closing = re.compile(rf"^ *{re.escape(ticks[0])}{{{len(ticks)},}} *$")
        while here < len(lines) and not closing.match(lines[here]):
            here += 1
        words = opening["info"].split()
        if words and words[0] in LANGUAGES:
            code = [line.removeprefix(opening["indent"]) for line in lines[start:here]]
            if words[0] == "{code-cell}":  # its options, such as `:tags: [hide-input]`, come first
                code = ["" if re.match(r":[\w-]+:", line) else line for line in code]
            before = [line for line in lines[: start - 1] if line.strip()][-1:]
            note = NOTE.match(before[0]) if before else None
            found.append(
                Block(
                    LANGUAGES[words[0]],
                    start + 1,
                    "\n".join(code) + "\n",
                    printed=printed_below(lines, here),
                    **({note["kind"]: note["value"]} if note else {}),
                )
            )
        here += 1
    return found


def printed_below(lines: list[str], end: int) -> str:
    """Return the ```text block below the fence that ends a block, with one empty line between them."""
    if lines[end + 1 : end + 3] != ["", "```text"]:
        return ""
    start = end + 3
    return "\n".join(lines[start : lines.index("```", start)]) + "\n"


def run(path: Path) -> int:
    """Run the blocks of a file and return their number. A failing block fails the test with file and line."""
    return len(run_all(path))


def run_all(path: Path) -> list[Block]:
    """Run the blocks of a file and return them, with what each has shown."""
    namespace, ran = {"__name__": "__main__"}, []
    for block in blocks(path.read_text("utf-8")):
        if not block.skip:
            (run_pycon if block.language == "pycon" else run_python)(path, block, namespace)
            ran.append(block)
    return ran


def show(block: Block, name: str, namespace: dict) -> None:
    """Run a block as a notebook does: what it prints, its last value and its figures are shown."""
    # leading empty lines make a traceback name the line of the page
    body = ast.parse("\n" * (block.line - 1) + block.code, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
            if value is not None:
                print(repr(value))
    block.shown = out.getvalue()
    if (pyplot := sys.modules.get("matplotlib.pyplot")) and pyplot.get_fignums():
        block.shown += "a figure"
        pyplot.close("all")


def run_python(path: Path, block: Block, namespace: dict) -> None:
    wanted, _, text = block.raises.partition(": ")
    try:
        show(block, str(path), namespace)
    except Exception as error:
        if wanted in [kind.__name__ for kind in type(error).__mro__] and text in str(error):
            block.shown = str(error)
            return
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1]
        promised = f", where the page promises {block.raises}" if wanted else ""
        shown = "".join(traceback.format_exception(error))
        pytest.fail(
            f"{path}:{line}: {type(error).__name__}: {error}{promised}\n\n{shown}", pytrace=False
        )
    if wanted:
        pytest.fail(
            f"{path}:{block.line}: raised nothing, where the page promises {block.raises}",
            pytrace=False,
        )


def run_pycon(path: Path, block: Block, namespace: dict) -> None:
    block.shown = block.code
    test = doctest.DocTestParser().get_doctest(
        block.code, namespace, path.name, str(path), block.line - 1
    )
    if not test.examples:
        pytest.fail(
            f"{path}:{block.line}: a pycon block with no >>> prompt checks nothing", pytrace=False
        )
    # the parser copies the globals, but all blocks of a page share them
    test.globs, said = namespace, []
    doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    ).run(test, out=said.append, clear_globs=False)
    if said:
        shown = "".join(said)
        line = re.search(r"line (\d+), in", shown)
        pytest.fail(
            f"{path}:{line[1] if line else block.line}: not what the page shows\n{shown}",
            pytrace=False,
        )
