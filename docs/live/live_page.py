"""What a live page runs in the reader's browser: blocks of code, exercises, a drawn digit.

The first argument of each function is `emit(kind, text)`, which shows something in the page.
"""

from __future__ import annotations

import ast
import base64
import html
import io
import json
import linecache
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np

import tinygrad_attn as ta

Emit = Callable[[str, str], Any]
HERE = Path(__file__).resolve().parent
PRINTED = 100_000
"""Characters of a run that are shown."""
PROMPT = re.compile(r"(>>>|\.\.\.)( |$)", re.M)
FRAME = re.compile(r'<iframe srcdoc="([^"]*)"')

ta.set_num_threads(1)


class Printed(io.TextIOBase):
    """What is printed: the first lines at once, so that nothing is lost before an endless loop, and
    what follows in a few large messages.
    """

    def __init__(self, emit: Emit) -> None:
        self.emit, self.waiting, self.left, self.last = emit, [], PRINTED, time.monotonic()
        self.at_once = 50

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.left > 0:
            self.waiting.append(text[: self.left])
            self.left -= len(text)
            if self.left <= 0:
                self.waiting.append(f"\n... (more than {PRINTED:,} characters)\n")
        soon = self.at_once > 0 and "\n" in text
        if soon or time.monotonic() > self.last + 0.2:
            self.at_once -= soon
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self.waiting:
            self.emit("text", "".join(self.waiting))
        self.waiting, self.last = [], time.monotonic()


def names_of(visit: int) -> dict[str, Any]:
    """Return the namespace that the blocks of a page share; another visit begins with none."""
    names = vars(sys.modules["__main__"])
    if names.get("__visit__") != visit:
        for name in [name for name in names if not name.startswith("__")]:
            del names[name]
    names["__visit__"] = visit
    return names


def run(show_in_page: Emit, code: str, name: str, visit: int) -> bool:
    """Run a block in the namespace of a visit to its page, or for visit 0 in a new one. Show its last
    expression, or all of them if it has prompts; if there is nothing to show, what it has asserted.
    Returns whether it came to its end.
    """
    namespace = names_of(visit) if visit else {"__name__": "__main__"}
    interactive = bool(PROMPT.match(code))
    if interactive:
        code = "\n".join(line[4:] for line in code.splitlines() if PROMPT.match(line))
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    kinds: list[str] = []

    def emit(kind: str, text: str) -> None:
        kinds.append(kind)
        show_in_page(kind, text)

    out = Printed(emit)
    if "load_split" in code:
        from tinygrad_attn.cli.demo import digits

        digits.load_split = own_split
    with redirect_stdout(out), redirect_stderr(out):
        try:
            body = ast.parse(code, name).body
        except SyntaxError as error:
            emit("error", explained(error, name))
            return False
        right = True
        for statement in body:
            shown = isinstance(statement, ast.Expr) and (interactive or statement is body[-1])
            try:
                if shown:
                    value = eval(compile(ast.Expression(statement.value), name, "eval"), namespace)
                    show(emit, value)
                else:
                    exec(compile(ast.Module([statement], []), name, "exec"), namespace)
            except BaseException as error:
                right = False
                out.flush()
                emit("error", explained(error, name))
                if not interactive:
                    break
        figures(emit)
        out.flush()
        if right and not kinds and (holds := asserted(body)):
            emit("text", "".join(f"\u2713 {test}\n" for test in holds))
        return right


def asserted(body: list[ast.stmt]) -> list[str]:
    """Return what the statements of a block have asserted."""
    ran = [s for s in body if not isinstance(s, (ast.FunctionDef, ast.ClassDef))]
    nodes = [node for statement in ran for node in ast.walk(statement)]
    return [ast.unparse(node.test) for node in nodes if isinstance(node, ast.Assert)]


def explained(error: BaseException, name: str) -> str:
    """The lines of the reader's own in a traceback, and what went wrong."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    last = "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_list(frames[-5:])) + last


def show(emit: Emit, value: Any) -> None:
    """Show a value as a notebook does: as HTML or a picture, if it has such a form."""
    if value is None:
        return
    sys.stdout.flush()
    text = value._repr_html_() if hasattr(type(value), "_repr_html_") else None
    if text and text.startswith("<svg"):
        emit("image", f"data:image/svg+xml,{quote(text)}")
    elif text:
        frame = FRAME.match(text)
        emit("page", html.unescape(frame[1]) if frame else text)
    elif "matplotlib" not in type(value).__module__:  # its figure is shown
        print(repr(value))


def figures(emit: Emit) -> None:
    """Show matplotlib's open figures, and close them."""
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        for number in pyplot.get_fignums():
            picture = io.BytesIO()
            pyplot.figure(number).savefig(picture, format="png", bbox_inches="tight")
            data = base64.b64encode(picture.getvalue()).decode()
            emit("image", f"data:image/png;base64,{data}")
        pyplot.close("all")


def use_graphviz(draw: Callable[[str, str], str]) -> None:
    """Draw the package's pictures with Graphviz in JavaScript, which stands in for pygraphviz."""

    def graph(string: str) -> SimpleNamespace:
        known = string.replace("Verdana,", "Arial,")  # the widths of whose letters it knows
        return SimpleNamespace(draw=lambda format, prog: fitted(draw, known).encode())

    sys.modules["pygraphviz"] = SimpleNamespace(AGraph=graph)  # type: ignore[assignment]


def use_marker() -> None:
    """Let the marker's modules be imported."""
    course = HERE / "docs" / "course"
    if str(course / "marking") not in sys.path:
        sys.path[:0] = [str(course / "marking"), str(course / "exercises")]


def fitted(draw: Callable[[str, str], str], dot: str) -> str:
    """Draw a picture in which each text has the width that Graphviz has laid out for it, whatever
    font the reader's machine has.
    """
    widths: dict[tuple[float, str], float] = {}

    def key(x: float, text: str) -> tuple[float, str]:
        return round(x, 1), " ".join(text.split())

    def note(drawn: dict[str, Any]) -> dict[str, Any]:
        if drawn.get("op") == "T":
            widths[key(drawn["pt"][0], drawn["text"])] = drawn["width"]
        return drawn

    def with_width(text: re.Match[str]) -> str:
        width = widths.get(key(float(text[2]), html.unescape(text[3])))
        fit = f' textLength="{width}" lengthAdjust="spacingAndGlyphs"' if width else ""
        return f"<text {text[1]}{fit}>{text[3]}</text>"

    json.loads(draw(dot, "json"), object_hook=note)
    return re.sub(r'<text ([^>]*\bx="([-\d.]+)"[^>]*)>(.*?)</text>', with_width, draw(dot, "svg"))


def speak(language: str) -> None:
    """Choose the language of what the marker says: that of the page."""
    os.environ["TINYGRAD_ATTN_LANG"] = language


def mark(emit: Emit, code: str, name: str, known: str, limit: float) -> bool:
    """Mark an exercise and print what the command line prints. `known` are the marks of a worker
    that did not come back from a check within `limit` seconds, or nothing.
    """
    use_marker()
    from _apart import Shortened, mark_here
    from _language import in_language
    from mark import find, outcome

    chosen, path, out = find(name), Path(f"{name}.py"), Printed(emit)
    path.write_text(code, "utf-8")
    with redirect_stdout(Shortened(out)), redirect_stderr(Shortened(out)):
        marks = mark_here(chosen, path, lambda text: emit("told", text), known, limit)
    out.write(in_language(outcome(chosen, marks, path)) + "\n")
    out.flush()
    return marks.ok


def practice(emit: Emit, topic: str, level: int) -> bool:
    """Make a task of practice: its formulas, and the stub for its rule."""
    use_marker()
    from _language import in_language
    from _practice import make, new_seed, stub
    from latex2mathml.converter import convert

    task = make(topic, level, new_seed())
    rows = [f"<p>{convert(step.formula)}</p>" for step in task.steps]
    emit("page", "<html><style>p { margin: 0.5em 0 }</style>" + "".join(rows))
    emit("stub", in_language(stub(task)))
    return True


def hint(emit: Emit, code: str, number: int) -> bool:
    """Show a hint on a task of practice."""
    use_marker()
    from _language import in_language
    from _practice import hint_for

    path = Path("practice.py")
    path.write_text(code, "utf-8")
    emit("text", in_language(hint_for(path, number)) + "\n")
    return True


def demo_data(weights: bool) -> dict[str, Any]:
    """The weights of the demo's model, or the images and labels that it has learnt from."""
    with np.load(HERE / "digits.npz") as data:
        return {name: data[name] for name in data if (name in ("images", "labels")) != weights}


def own_split(seed: int | None) -> Any:
    """Stand in for `load_split(0)`, which needs scikit-learn."""
    from tinygrad_attn.cli.demo.digits import TEST_IMAGES, Split

    data = demo_data(weights=False)
    images, labels = data["images"].astype(np.float32) / 16, data["labels"].astype(np.int64)
    cut = -TEST_IMAGES
    return Split("seed 0", images[:cut], labels[:cut], images[cut:], labels[cut:])


def drawn(grey: np.ndarray) -> np.ndarray | None:
    """Return 8 x 8 means of the ink, which fills the height as in the images that the model has
    learnt from; None of an empty drawing.
    """
    places = np.argwhere(grey.reshape(2 * (math.isqrt(grey.size),)) < 128)
    if not len(places):
        return None
    low, high = places.min(axis=0), places.max(axis=0) + 1
    scale = 8 / (high - low).max()
    cells = np.floor((places - (low + high) / 2) * scale + 4).astype(int)
    image = np.zeros((1, 8, 8), np.float32)
    np.add.at(image[0], tuple(cells.T), scale**2)
    return image.clip(0, 1)


def digit(emit: Emit, grey: Any) -> bool:
    """Read a drawing, four bytes a pixel, or for None any image that the model has not seen."""
    from tinygrad_attn.cli.demo import DigitClassifier, views

    if not hasattr(digit, "model"):
        digit.model = DigitClassifier().eval()
        digit.model.load_state_dict(demo_data(weights=True))
    if grey is None:
        image = own_split(0).test_images[[np.random.default_rng().integers(360)]]
    else:
        image = drawn(np.asarray(grey.to_py())[::4])
    if image is None:
        emit("digit", "")
    else:
        (view,) = views(digit.model, image)
        best = np.argsort(view["scores"])[:-4:-1].tolist()
        chances = ", ".join(f"{i}: {view['scores'][i]:.1%}" for i in best).replace("%", " %")
        emit("digit", json.dumps(view | {"best": best[0], "chances": chances}))
    return True
