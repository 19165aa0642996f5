"""Every Python block in the README and in docs/ runs, in order, in one fresh namespace for each file.

A ```python block is executed; a ```pycon block (with >>> prompts) must print what it shows. An HTML comment on the line
before a block changes that:

    <!-- skip: reason -->             not run
    <!-- raises: ValueError -->       must raise it
    <!-- raises: ValueError: text --> must raise it with this text in its message
"""

import ast
import doctest
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


def blocks(text: str) -> list[Block]:
    """The Python blocks of a Markdown text. A fence inside a longer fence is text, not a block."""
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
                    **({note["kind"]: note["value"]} if note else {}),
                )
            )
        here += 1
    return found


def run(path: Path) -> int:
    """Runs the blocks of a file and returns how many; a block that goes wrong fails the test, by file and line."""
    namespace, ran = {"__name__": "__main__"}, 0
    for block in blocks(path.read_text("utf-8")):
        if not block.skip:
            (run_pycon if block.language == "pycon" else run_python)(path, block, namespace)
            ran += 1
    return ran


def run_python(path: Path, block: Block, namespace: dict) -> None:
    wanted, _, text = block.raises.partition(": ")
    try:
        # empty lines in front, so that a traceback names the line of the page
        exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
    except Exception as error:
        if wanted in [kind.__name__ for kind in type(error).__mro__] and text in str(error):
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
    test = doctest.DocTestParser().get_doctest(
        block.code, namespace, path.name, str(path), block.line - 1
    )
    if not test.examples:
        pytest.fail(
            f"{path}:{block.line}: a pycon block with no >>> prompt checks nothing", pytrace=False
        )
    # the globals are the page's, shared with its other blocks, so not the copy the parser makes
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


PAGES = sorted(
    page
    for page in [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")]
    if "_build" not in page.parts and blocks(page.read_text("utf-8"))
)


@pytest.fixture(autouse=True)
def quick_and_tidy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINYGRAD_ATTN_QUICK", "1")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_runs(page):
    assert run(page) + sum(bool(block.skip) for block in blocks(page.read_text("utf-8"))) > 0


def test_the_list_of_names_has_every_public_name():
    import tinygrad_attn as ta

    listed, whole = set(), set()
    for kind, name, options in re.findall(
        r"auto(\w+):: (\S+)\n((?:   :.*\n)*)", (ROOT / "docs" / "api.md").read_text("utf-8")
    ):
        where, _, last = name.rpartition(".")
        found = import_module(name) if kind == "module" else getattr(import_module(where), last)
        listed.add(found)
        if kind == "module":
            chosen = re.search(r":members: (\S.*)", options)
            left_out = re.findall(r"\w+", "".join(re.findall(r":exclude-members:(.*)", options)))
            shown = {
                thing
                for key, thing in vars(found).items()
                if callable(thing)
                and key not in left_out
                and not key.startswith("_")
                and (key in re.findall(r"\w+", chosen[1]) if chosen else thing.__module__ == name)
            }
            listed |= shown
            whole |= set() if chosen or hasattr(found, "__all__") else shown
    parallel = import_module("tinygrad_attn.parallel")
    for module in (ta, ta.functional, ta.nn, ta.nn.init, ta.optim, ta.check, ta.viz, parallel):
        things = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
        assert not [
            name
            for name, thing in things.items()
            if not isinstance(thing, ModuleType) and thing not in listed
        ]
        whole -= {thing for thing in things.values() if isinstance(thing, type)}
    assert not whole, "a helper of ours is no name for users"


def test_a_docstring_that_ends_in_code_has_a_line_of_text_after_it():
    """Sphinx takes the least indented line after the first for the margin, and of code alone that is the code's own."""
    for path in (ROOT / "tinygrad_attn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                text := ast.get_docstring(node, clean=False)
            ):
                margins = [
                    len(line) - len(line.lstrip()) for line in text.splitlines()[1:] if line.strip()
                ]
                assert min(margins, default=0) <= getattr(node, "col_offset", -4) + 4, (
                    f"{path.name}: {text[:60]}"
                )


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            """
     Text.

     ```python
     x = 1
     x / 0
     ```
     """,
            r"page\.md:5: ZeroDivisionError",
        ),
        (
            """
     ```python
     def f():
         return undefined
     ```
     ```python
     f()
     ```
     """,
            r"page\.md:3: NameError",
        ),
        (
            """
     ```python
     x = = 1
     ```
     """,
            r"page\.md:2: SyntaxError",
        ),
        (
            """
     <!-- raises: ValueError -->
     ```python
     int("1")
     ```
     """,
            r"page\.md:3: raised nothing, where the page promises ValueError",
        ),
        (
            """
     <!-- raises: ValueError: no such text -->

     ```python
     int("one")
     ```
     """,
            r"page\.md:4: ValueError: .* promises ValueError: no such text",
        ),
        (
            """
     ```python
     x = 2
     ```
     ```pycon
     >>> x
     2
     >>> x + 1
     4
     ```
     """,
            r"page\.md:7: not what the page shows",
        ),
        (
            """
     ```pycon
     1 + 1
     ```
     """,
            r"page\.md:2: a pycon block with no >>> prompt",
        ),
    ],
)
def test_a_wrong_page_fails_by_file_and_line(tmp_path, text, expected):
    with pytest.raises(pytest.fail.Exception, match=expected):
        run(page(tmp_path, text))


def test_a_right_page_runs_in_order_in_one_namespace(tmp_path):
    assert (
        run(
            page(
                tmp_path,
                """
        ```python
        x = [1]
        ```

        - in a list

          ```{code-cell} python
          :tags: [hide-input]
          x.append(2)
          ```

        ```pycon
        >>> x.append(3)
        >>> x
        [1, ...]
        ```

        <!-- skip: needs a file of the reader's -->
        ```python
        x.clear()
        ```

        <!-- raises: LookupError: out of range -->
        ```python
        x[9]
        ```

        ````markdown
        ```python
        x.clear()
        ```
        ````

        ~~~python
        assert x == [1, 2, 3], "a later block sees what the earlier ones did"
        assert __import__("os").environ["TINYGRAD_ATTN_QUICK"] == "1"
        ~~~
        """,
            )
        )
        == 5
    )
