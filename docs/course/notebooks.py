"""Makes a notebook of each chapter: `python docs/course/notebooks.py`, or `make notebooks`.

    notebooks.py                 all chapters, into docs/_build/notebooks
    notebooks.py 06 softmax      only chapters whose names contain one of the words
    notebooks.py --run           also runs them to include their outputs, which takes some minutes

The chapters are the source, and existing notebooks are overwritten. Python blocks and the command
that marks the exercise become code cells. Everything else becomes text cells. The exit code is 0 for
success, 1 if a cell failed, 2 for wrong use, and 130 if Ctrl-C stopped the program.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
except ImportError as error:
    sys.exit(
        f"{error}: install the missing packages with make notebooks or pip install "
        "'tinygrad_attn[docs]'."
    )

from tinygrad_attn.files import write_atomically

COURSE = Path(__file__).resolve().parent
OUT = COURSE.parent / "_build" / "notebooks"
BLOCK = re.compile(
    r"(?:^<!-- *(?P<note>skip|raises): .*?-->\n+)?"
    r"^(?P<ticks>`{3,})(?P<language>[^`\n]*)\n(?P<code>(?:.*\n)*?)(?P=ticks) *$",
    re.M,
)
SKIPPED = re.compile(r"^<!-- *skip: .*?-->\n", re.M)
MARKING = re.compile(r"python (-m tinygrad_attn exercise \w+)\n")
LINK = re.compile(
    r"(?P<code>`+).*?(?P=code)|\]\((?!\w+:)(?P<path>[^)\s#]+\.\w+)(?P<rest>[^)]*)\)", re.S
)  # f[i](x) in code is not a link
SOLUTIONS = re.compile(r'Path\(ta\.__file__\)\.parents\[1\] / "docs/course/exercises/solutions/?')
DIRECTIVE = re.compile(r"^ *(?:`{3,}|:{3,})\{[\w:-]+\}|(?<![^\s(])\{[a-z][\w:-]*\}`", re.M)


def chapters() -> list[Path]:
    """List the chapters of the course in order."""
    return sorted(COURSE.glob("[0-9][0-9]*.md"))


def notebook(chapter: Path, out: Path = OUT, own: bool = False) -> Any:
    """Make a notebook from a chapter, for the folder `out`. With `own`, a cell contains the stub of the
    exercise, which the reader fills in and the marker reads. Raises ValueError for syntax that only
    Sphinx understands.
    """
    text = chapter.read_text("utf-8")
    if own:  # what a chapter takes from the solutions, a reader has written
        text = SOLUTIONS.sub('Path("', text)
    if found := DIRECTIVE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(
            f"{chapter.name}, line {line}: a notebook cannot show {found[0].strip()!r}; write it in "
            "plain Markdown."
        )
    cells, here = [], 0

    def words(end: int) -> None:
        if part := SKIPPED.sub("", text[here:end]).strip():
            cells.append(new_markdown_cell(links(part, chapter, out)))

    for block in BLOCK.finditer(text):
        code, marking = block["code"], MARKING.fullmatch(block["code"])
        if marking:  # with the Python of the notebook, which may not be the one called python
            name = f"{marking[1].split()[-1]}.py"
            code = f"import sys\n!{{sys.executable}} {marking[1]}{f' {name}' if own else ''}\n"
        elif block["language"] != "python" or block["note"] == "skip":
            continue
        words(block.start())
        here = block.end()
        if own and marking and (stub := COURSE / "exercises" / name).is_file():
            cells.append(new_code_cell(f"%%writefile {name}\n{stub.read_text('utf-8').rstrip()}"))
        tags = (
            {"tags": ["raises-exception"]}
            if block["note"] == "raises"
            else {"tags": ["exercise"]}
            if marking
            else {}
        )
        cells.append(new_code_cell(code.rstrip("\n"), metadata=tags))
    words(len(text))
    for number, cell in enumerate(cells):  # fixed ids, so that the same chapter gives the same file
        cell.id = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )


def links(text: str, chapter: Path, out: Path) -> str:
    """Change the links of the text so that they work from `out`. A link to a chapter leads to its
    notebook, to a picture its copy, and to another page its source.
    """

    def moved(link: re.Match[str]) -> str:
        if link["code"]:
            return link[0]
        target, rest = (chapter.parent / link["path"]).resolve(), link["rest"]
        if target in chapters():
            return f"]({target.stem}.ipynb)"  # without the anchor, because headings have other anchors there
        new = (
            f"images/{target.name}"
            if is_picture(target)
            else Path(os.path.relpath(target, out)).as_posix()
        )
        return f"]({new}{rest})"

    return LINK.sub(moved, text)


def pictures(chapter: Path) -> list[Path]:
    """List the pictures that a chapter shows."""
    links = LINK.finditer(chapter.read_text("utf-8"))
    return [
        target
        for link in links
        if link["path"] and is_picture(target := (chapter.parent / link["path"]).resolve())
    ]


def is_picture(path: Path) -> bool:
    return path.suffix in (".svg", ".png", ".jpg", ".gif")


def save(made: Any, chapter: Path, out: Path) -> None:
    """Write a notebook and its pictures, each under a temporary name first."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    for picture in pictures(chapter):
        write_atomically(picture.read_bytes(), out / "images" / picture.name)
    write_atomically(nbformat.writes(made) + "\n", out / f"{chapter.stem}.ipynb")


def run(made: Any, folder: Path) -> str:
    """Run the cells and keep their outputs. Return an error message, or an empty string."""
    client = NotebookClient(
        made,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        extra_arguments=["--log-level=CRITICAL"],
    )
    with client.setup_kernel():
        for number, cell in enumerate(made.cells):
            try:
                client.execute_cell(cell, number)
            except (CellExecutionError, DeadKernelError, TimeoutError) as error:
                first = "\n".join(cell.source.splitlines()[:3])
                return (
                    f"cell {number + 1}, which "
                    f"begins\n{first}\n{getattr(error, 'ename', type(error).__name__)}: "
                    f"{getattr(error, 'evalue', error)}"
                )
    return ""


def shown(paths: Sequence[Path]) -> Iterable[Path]:
    """Show progress: a bar on a terminal, a line for each chapter in a log."""
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from tqdm import tqdm

            yield from tqdm(paths, unit="chapter", dynamic_ncols=True, leave=False)
            return
        except ImportError:
            pass
    for number, path in enumerate(paths, 1):
        print(f"{number} of {len(paths)}: {path.stem}", flush=True)
        yield path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="notebooks.py", description="Make a notebook of each chapter."
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="only chapters whose names contain one of these (default: all)",
    )
    parser.add_argument(
        "--run", action="store_true", help="run the notebooks to include their outputs"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="DIR",
        help="where to save them (default docs/_build/notebooks)",
    )
    arguments = parser.parse_args(argv)
    chosen = [
        chapter
        for chapter in chapters()
        if any(word in chapter.stem for word in arguments.words or [""])
    ]
    if not chosen:
        parser.error(
            "no chapter has such a name; the chapters are "
            f"{', '.join(chapter.stem for chapter in chapters())}."
        )
    out, failed = arguments.out.resolve(), []
    try:
        for chapter in shown(chosen):
            made = notebook(chapter, out)
            out.mkdir(parents=True, exist_ok=True)
            if arguments.run and (wrong := run(made, out)):
                failed.append(chapter.stem)
                print(f"{chapter.stem}, {wrong}", file=sys.stderr)
            save(made, chapter, out)
    except KeyboardInterrupt:
        print(f"\nStopped. The notebooks in {out} are complete.", file=sys.stderr)
        return 130
    print(
        f"{len(chosen)} notebook{'s' * (len(chosen) > 1)} in {out}"
        + (f"; a cell failed in {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError) as error:  # their messages suffice
        print(f"notebooks.py: {error}", file=sys.stderr)
        sys.exit(2)
