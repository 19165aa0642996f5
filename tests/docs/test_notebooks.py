"""The notebooks made of the course: all of its code in its order, every picture and link there, and Run All goes through."""

import re
import sys
from pathlib import Path

import pytest
from pages import blocks
from support import ROOT, installed, require

nbformat = require("nbformat")
installed("nbclient", "ipykernel")

from tinygrad_attn import cli

CHAPTERS = sorted((ROOT / "docs" / "course").glob("[0-9]*.md"))


@pytest.fixture(scope="module")
def notebooks():
    path = list(sys.path)
    yield cli.load(ROOT / "docs" / "course" / "notebooks.py")
    sys.path[:] = path
    sys.modules.pop("notebooks", None)


@pytest.fixture(scope="module")
def made(notebooks, tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    assert notebooks.main(["--out", str(out)]) == 0
    return out


def read(path):
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    return found


def test_each_chapter_has_a_notebook(made):
    assert (
        sorted(path.stem for path in made.glob("*.ipynb")) == [path.stem for path in CHAPTERS]
        and len(CHAPTERS) == 25
    )


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_notebook_holds_what_its_chapter_holds(made, chapter):
    cells = read(made / f"{chapter.stem}.ipynb").cells
    text = chapter.read_text("utf-8")
    code = [
        cell.source + "\n"
        for cell in cells
        if cell.cell_type == "code" and "exercise" not in cell.metadata.get("tags", [])
    ]
    run = [one for one in blocks(text) if one.language == "python" and not one.skip]
    assert code == [block.code for block in run] and code
    marking = [cell.source for cell in cells if "exercise" in cell.metadata.get("tags", [])]
    calls = re.findall(r"^python (-m tinygrad_attn exercise \w+)$", text, re.M)
    assert marking == [f"import sys\n!{{sys.executable}} {call}" for call in calls] and calls
    words = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert (
        words.startswith("# ")
        and words.count("```python") == sum(bool(one.skip) for one in blocks(text))
        and "\n{" not in words
        and "<!--" not in words
    )
    for path in re.findall(r"\]\((?!https?:)([^)#\s]+)", re.sub(r"(?s)(`+).*?\1", "", words)):
        assert (made / path).exists(), path
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (made / "images" / Path(path).name).read_bytes() == (
            chapter.parent / path
        ).read_bytes()


def test_the_course_is_laid_out_with_notebooks_that_mark_themselves(tmp_path, capsys):
    """What is there already stays."""
    (tmp_path / "softmax.py").write_text("mine = 1")
    assert cli.main(["course", str(tmp_path)]) == 0 and "25 exercises" in capsys.readouterr().out
    assert (tmp_path / "softmax.py").read_text() == "mine = 1"
    stub, marking = read(tmp_path / "notebooks" / "05-matmul.ipynb").cells[-3:-1]
    assert stub.source == "%%writefile matmul.py\n" + (tmp_path / "matmul.py").read_text(
        "utf-8"
    ).rstrip("\n")
    assert marking.source.endswith("exercise matmul matmul.py")


@pytest.fixture
def course(notebooks, tmp_path, monkeypatch):
    """A course of two chapters and a page."""
    monkeypatch.setattr(notebooks, "COURSE", tmp_path / "course")
    (tmp_path / "course").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "page.md").write_text("# Page\n")
    (tmp_path / "images" / "p.svg").write_text("<svg/>")
    (tmp_path / "course" / "01-next.md").write_text("# Next\n\n```python\nprint('there')\n```\n")
    (tmp_path / "course" / "00-first.md").write_text(
        """# First

Go on to [the next](01-next.md#next), see [a page](../page.md#there) or [the web](https://example.org/a.md); `f[i](x.md)` is code.

![A picture](../images/p.svg "with a title")

<!-- raises: ZeroDivisionError -->

```python
1 / 0
```

<!-- skip: no such file -->
```python
open("no such file")
```

```pycon
>>> a[0](b.md)
1
```

```sh
ls
```

````markdown
```python
1 / 0
```
````

```python
print("after the error")
```
""",
        "utf-8",
    )
    return tmp_path


def test_links_errors_and_text(notebooks, course):
    out = course / "made"
    assert notebooks.main(["first", "--out", str(out)]) == 0
    first, error, text, last = read(out / "00-first.ipynb").cells
    assert (
        "[the next](01-next.ipynb), see [a page](../page.md#there) or [the web](https://example.org/a.md);"
        in first.source
    )
    assert "`f[i](x.md)` is code" in first.source
    assert (
        '![A picture](images/p.svg "with a title")' in first.source
        and (out / "images" / "p.svg").exists()
    )
    assert error.source == "1 / 0" and error.metadata.tags == ["raises-exception"]
    for part in (
        '```python\nopen("no',
        ">>> a[0](b.md)",
        "```sh\nls\n```",
        "````markdown\n```python\n1 / 0",
    ):
        assert part in text.source
    assert last.source == 'print("after the error")' and not last.metadata
    before = (out / "00-first.ipynb").read_bytes()
    assert (
        notebooks.main(["first", "--out", str(out)]) == 0
        and (out / "00-first.ipynb").read_bytes() == before
    )
    assert not (out / "01-next.ipynb").exists() and not list(out.rglob(".saving*"))


@pytest.mark.parametrize("text", ["```{math}\nx\n```", ":::{note}\nx\n:::", "see {func}`f`"])
def test_what_only_sphinx_knows_is_refused(notebooks, course, text):
    (course / "course" / "00-first.md").write_text(f"# First\n\n{text}\n")
    with pytest.raises(
        ValueError,
        match=r"00-first\.md, line 3: a notebook cannot show .* write it in plain Markdown",
    ):
        notebooks.main(["--out", str(course / "made")])


def test_run_all_goes_through_and_keeps_what_is_printed(notebooks, course, capsys):
    """A promised error does not stop it; one that is not promised is named, with its chapter and cell, and the others go on."""
    out = course / "made"
    assert notebooks.main(["first", "--run", "--out", str(out)]) == 0
    *_, last = read(out / "00-first.ipynb").cells
    assert last.outputs[0].text == "after the error\n"
    path = course / "course" / "00-first.md"
    path.write_text(path.read_text("utf-8").replace("raises: ", "none: "))
    assert notebooks.main(["--run", "--out", str(out)]) == 1
    printed, errors = capsys.readouterr()
    assert "00-first, cell 2, which begins\n1 / 0\nZeroDivisionError: division by zero" in errors
    assert "2 notebooks in" in printed and "a cell failed in 00-first" in printed
    assert read(out / "01-next.ipynb").cells[-1].outputs[0].text == "there\n"
