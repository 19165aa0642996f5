"""Every Python block in the README and in docs/ runs, in order, in one fresh namespace for each file.

A ```python block is executed; a ```pycon block (with >>> prompts) must print what it shows, and in the course, a ```python
block what a ```text block directly below it shows. An HTML comment on the line
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
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from pages import blocks, run, run_all
from support import ROOT

PAGES = sorted(
    page
    for page in [*ROOT.glob("[A-Z]*.md"), *ROOT.glob("docs/**/*.md")]
    if "_build" not in page.parts
    and page.name != "README.zh-CN.md"  # has the code of README.md
    and blocks(page.read_text("utf-8"))
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
    """A block of a chapter also shows something, and prints what a text block directly below says."""
    ran = run_all(page)
    assert len(ran) + sum(bool(block.skip) for block in blocks(page.read_text("utf-8"))) > 0
    if page.parent.name != "course":
        return
    chapter = re.match(r"\d", page.name)
    silent = [f"{page.name}:{block.line}" for block in ran if chapter and not block.shown]
    assert not silent, f"{silent}: a reader who presses Run sees nothing"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in ran:
        if block.printed:
            same = doctest.OutputChecker().check_output(block.printed, block.shown, flags)
            assert same, f"{page.name}:{block.line} prints\n{block.shown}"


def test_the_chinese_readme_has_the_code_of_the_english_one():
    """Except for its comments."""
    code = lambda name: [
        (block.language, re.sub(" *#.*", "", block.code))
        for block in blocks((ROOT / name).read_text("utf-8"))
    ]
    assert code("README.zh-CN.md") == code("README.md")


def test_the_list_of_names_has_every_public_name():
    import tinygrad_attn as ta

    listed, whole = set(), set()
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    for kind, name, options in re.findall(r"auto(\w+):: (\S+)\n((?:   :.*\n)*)", pages):
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
                and (
                    key in re.findall(r"\w+", chosen[1])
                    if chosen
                    else getattr(thing, "__module__", None) == name
                    or key in getattr(found, "__all__", ())
                )
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
    assert not whole, f"{whole}: a helper of ours is no name for users"


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
        ("Text.\n\n```python\nx = 1\nx / 0\n```\n", r"page\.md:5: ZeroDivisionError"),
        (
            '<!-- raises: ValueError -->\n```python\nint("1")\n```\n',
            r"page\.md:3: raised nothing, where the page promises ValueError",
        ),
        ("```pycon\n>>> 3\n4\n```\n", r"page\.md:2: not what the page shows"),
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
