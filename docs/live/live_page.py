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
import re
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tinygrad_attn as ta

Emit = Callable[[str, str], Any]
HERE = Path(__file__).resolve().parent
PRINTED = 100_000
"""Characters of a run that are shown."""
FRAME = re.compile(r'<iframe srcdoc="([^"]*)"')

ta.set_num_threads(1)


class Printed(io.TextIOBase):
    """What is printed, in a few large messages."""

    def __init__(self, emit: Emit) -> None:
        self.emit, self.waiting, self.left, self.last = emit, [], PRINTED, time.monotonic()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.left > 0:
            self.waiting.append(text[: self.left])
            self.left -= len(text)
            if self.left <= 0:
                self.waiting.append(f"\n... (more than {PRINTED:,} characters)\n")
        if time.monotonic() > self.last + 0.2:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self.waiting:
            self.emit("text", "".join(self.waiting))
        self.waiting, self.last = [], time.monotonic()


def run(emit: Emit, code: str, name: str, interactive: bool = False, fresh: bool = False) -> bool:
    """Run a block in the namespace that the page's blocks share, or in a `fresh` one; show its last
    expression, or if `interactive` all of them. Returns whether it came to its end.
    """
    namespace = {"__name__": "__main__"} if fresh else vars(sys.modules["__main__"])
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
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
        return right


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
        emit("svg", text)
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
            emit("png", base64.b64encode(picture.getvalue()).decode())
        pyplot.close("all")


def use_graphviz(draw: Callable[[str], str]) -> None:
    """Draw the package's pictures with Graphviz in JavaScript, which stands in for pygraphviz."""

    def graph(string: str) -> SimpleNamespace:
        # It knows the widths of Arial's letters, nearly.
        known = string.replace("Verdana,", "Arial,").replace('margin="0.12,', 'margin="0.2,')
        return SimpleNamespace(draw=lambda format, prog: draw(known).encode())

    sys.modules["pygraphviz"] = SimpleNamespace(AGraph=graph)  # type: ignore[assignment]


def use_marker() -> None:
    """Let the marker's modules be imported."""
    course = HERE / "docs" / "course"
    if str(course / "marking") not in sys.path:
        sys.path[:0] = [str(course / "marking"), str(course / "exercises")]


def mark(emit: Emit, code: str, name: str, known: str, limit: float) -> bool:
    """Mark an exercise and print what the command line prints. `known` are the marks of a worker
    that did not come back from a check within `limit` seconds, or nothing.
    """
    use_marker()
    from _apart import Shortened, mark_here
    from mark import find, outcome

    chosen, path, out = find(name), Path(f"{name}.py"), Printed(emit)
    path.write_text(code, "utf-8")
    with redirect_stdout(Shortened(out)), redirect_stderr(Shortened(out)):
        marks = mark_here(chosen, path, lambda text: emit("told", text), known, limit)
    out.write(outcome(chosen, marks, path) + "\n")
    out.flush()
    return marks.ok


def practice(emit: Emit, topic: str, level: int) -> bool:
    """Make a task of practice: its formulas, and the stub for its rule."""
    use_marker()
    from _practice import make, new_seed, stub
    from latex2mathml.converter import convert

    task = make(topic, level, new_seed())
    rows = [f"<p>{convert(step.formula)}</p>" for step in task.steps]
    emit("formula", "<style>p { margin: 0.5em 0 }</style>" + "".join(rows))
    emit("stub", stub(task))
    return True


def hint(emit: Emit, code: str, number: int) -> bool:
    """Show a hint on a task of practice."""
    use_marker()
    from _practice import hint_for

    path = Path("practice.py")
    path.write_text(code, "utf-8")
    emit("text", hint_for(path, number) + "\n")
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


def digit(emit: Emit, pixels: str) -> bool:
    """Read a digit, 64 numbers from 0 to 1 or "" for any image that the model has not seen:
    probabilities, and the attention of each head.
    """
    from tinygrad_attn.cli.demo import DigitClassifier
    from tinygrad_attn.cli.demo.digits import patches

    if not hasattr(digit, "model"):
        digit.model = DigitClassifier().eval()
        digit.model.load_state_dict(demo_data(weights=True))
    if pixels:
        image = np.array(json.loads(pixels), np.float32).reshape(1, 8, 8)
    else:
        image = own_split(0).test_images[[np.random.default_rng().integers(360)]]
    with ta.no_grad(), ta.record_attention() as seen:
        scores = ta.functional.softmax(digit.model(patches(image)), axis=-1).numpy()[0]
    maps = {
        f"layer {layer + 1}, head {head + 1}": weights.round(4).tolist()
        for layer, calls in enumerate(seen.values())
        for head, weights in enumerate(np.asarray(calls[0])[0])
    }
    emit(
        "digit",
        json.dumps(
            {"scores": scores.round(4).tolist(), "image": image.reshape(-1).tolist(), "maps": maps}
        ),
    )
    return True
