"""The commands. Each one imports only what it needs, so that `--help` is fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .targets import find, load, number_of_inputs, parameters_of

ROOT = Path(__file__).resolve().parents[2]  # the source folder, with examples/ and docs/


def demo(arguments: Any) -> int:
    """Train a small Transformer on images of digits and write a report."""
    from .demo import run_demo

    return run_demo(arguments.out, arguments.seed, arguments.epochs, arguments.runs)


def doctor(arguments: Any) -> int:
    """List the installed libraries and check the gradients of a layer."""
    from .doctor import examine

    return examine()


def seeds(arguments: Any) -> bool:
    """Reproduce the numbers of the documents on which this project is based."""
    scripts = sorted(_source("examples").glob(f"seed_{arguments.name}*.py"))
    environment, reproduced = {**os.environ, "PYTHONPATH": str(ROOT)}, 0
    for script in scripts:
        print(f"==== {script.stem}", flush=True)
        reproduced += not subprocess.run([sys.executable, str(script)], env=environment).returncode
    print(f"{reproduced} of {len(scripts)} reproduced")
    return reproduced < len(scripts) or not scripts


def exercise(arguments: Any) -> int:
    """Mark an exercise of the course."""
    if arguments.hidden:
        if not os.path.isfile(arguments.hidden):
            raise ValueError(f"--hidden: the file {arguments.hidden!r} does not exist.")
        os.environ["TINYGRAD_ATTN_HIDDEN"] = os.path.abspath(arguments.hidden)
    marker = load(_source("docs", "course", "marking") / "mark.py")
    return marker.main(
        arguments.name,
        *arguments.files,
        everything=arguments.all,
        csv=arguments.csv,
        time_limit=arguments.time_limit,
        as_json=arguments.json,
    )


def course(arguments: Any) -> None:
    """Copy the exercises and notebooks of the course into a folder."""
    layout = load(_source("docs", "course") / "layout.py")
    print(layout.lay_out(Path(arguments.folder)))


def _source(*names: str) -> Path:
    """Return a folder of the source, or its copy in an installed package."""
    folder = ROOT.joinpath(*names)
    if not folder.is_dir() and names[0] == "docs":
        folder = Path(__file__).parents[1].joinpath("_docs", *names[1:])
    if not folder.is_dir():
        raise ValueError(
            f"{folder} does not exist. Clone the source repository and run this command there."
        )
    return folder


def graph(arguments: Any) -> None:
    """Draw the graph of the tensor that a function computes."""
    from .. import viz

    found, plain, output = find(arguments.target), arguments.plain, arguments.output
    if (output or "").endswith(".html"):
        picture: Any = viz.graph_html(found, plain=plain)
    else:
        picture = viz.graph(found, depth=arguments.depth, expand=arguments.expand, plain=plain)
    if output:
        picture.save(output)
    print(output or picture)


def source(arguments: Any) -> None:
    """Write the forward and backward pass of a function as one NumPy file."""
    from .. import source as write

    function, inputs = _function_and_inputs(arguments, 0)
    params = parameters_of(function)
    program = write(function, *inputs, params=params, backward=not arguments.forward)
    text = f"{program.save(arguments.output)}\n" if arguments.output else str(program)
    print(text, end="")


def gradcheck(arguments: Any) -> bool:
    """Check a function's gradient against finite differences at random inputs."""
    from ..check import gradcheck as check

    function, inputs = _function_and_inputs(arguments, arguments.seed)
    report = check(function, inputs, order=arguments.order, raise_exception=False)
    print(report)
    return not report


def _function_and_inputs(arguments: Any, seed: int) -> tuple[Any, list[Any]]:
    """Return the target, and random inputs with the shapes of `--shape`."""
    function, shapes = find(arguments.target), arguments.shape or [(3, 4)]
    if len(shapes) == 1:
        shapes = shapes * number_of_inputs(function)
    rng = np.random.default_rng(seed)
    return function, [rng.standard_normal(shape) for shape in shapes]
