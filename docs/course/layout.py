"""Copies the course into a folder of the reader's choice: `python -m tinygrad_attn course DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "marking"))

import _language  # noqa: E402
import _stubs  # noqa: E402


@_language.speaking()
def lay_out(folder: Path) -> str:
    """Copy the stubs, and make notebooks that mark their own exercises. Existing files stay unchanged.
    Returns a text that says what to do next.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stubs = sorted((HERE / "exercises").glob("*.py"))
    for stub in stubs:
        if not (folder / stub.name).exists():
            task = _stubs.in_language(stub.read_text("utf-8"))
            (folder / stub.name).write_text(task, "utf-8")
    said = (
        f"{len(stubs)} exercises are in {folder}. Write your answers in them, and mark one with\n"
    )
    said += f"    python -m tinygrad_attn exercise softmax {folder / 'softmax.py'}"
    sys.path.insert(0, str(HERE))
    try:
        import notebooks
    except SystemExit:  # a package is missing
        return f"{said}\nThe notebooks need two packages: pip install nbformat nbclient"
    finally:
        sys.path.remove(str(HERE))
    out = (folder / "notebooks").resolve()
    for chapter in notebooks.chapters():
        if not (out / f"{chapter.stem}.ipynb").exists():
            notebooks.save(notebooks.notebook(chapter, out, own=True), chapter, out)
    return f"{said}\nThe chapters are notebooks in {folder / 'notebooks'}. The last cells of each contain its exercise and mark it."
