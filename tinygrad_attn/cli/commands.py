"""What each command does. Each imports what it needs, so that `--help` is fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .targets import UsageError, find, load, number_of_inputs, parameters_of

ROOT = Path(__file__).resolve().parents[2]
"""The source folder, with examples/ and docs/ beside the package."""


def demo(arguments: Any) -> int:
    """Train, check the gradients and write the report."""
    from .demo import run_demo

    return run_demo(arguments.out, arguments.seed, arguments.epochs, arguments.runs)


def doctor(arguments: Any) -> int:
    """List what is installed and check that it works."""
    from .doctor import examine

    return examine()


def seeds(arguments: Any) -> int:
    """Run the scripts examples/seed_*.py; 0 if all of them reproduce their numbers."""
    scripts = [
        path for path in _source("examples").glob("seed_*.py") if arguments.name in path.name
    ]
    if not scripts:
        raise UsageError(f"there is no seed {arguments.name!r}; try 000 to 004.")
    failed = []
    for script in sorted(scripts):
        print(f"==== {script.stem}", flush=True)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        command, environment = [sys.executable, str(script)], {**os.environ, "PYTHONPATH": path}
        # In a session of its own, so that Ctrl-C prints no traceback of the script.
        if subprocess.run(command, env=environment, start_new_session=True).returncode:
            failed.append(script.stem)
    not_these = f"; not {', '.join(failed)}" if failed else ""
    print(f"{len(scripts) - len(failed)} of {len(scripts)} reproduced{not_these}")
    return int(bool(failed))


def exercise(arguments: Any) -> int:
    """Mark an exercise by docs/course/marking/mark.py."""
    options = {"csv": arguments.csv, "time_limit": arguments.time_limit}
    options["as_json"] = arguments.json or None
    given = {name: x for name, x in options.items() if x is not None}
    marker = load(_source("docs", "course", "marking") / "mark.py")
    try:
        return int(marker.main(arguments.name, *arguments.files, everything=arguments.all, **given))
    except ValueError as error:  # no such exercise or file
        raise UsageError(str(error)) from error


def course(arguments: Any) -> int:
    """Lay out the exercises and notebooks of the course in a folder."""
    layout = load(_source("docs", "course") / "layout.py")
    print(layout.lay_out(Path(arguments.folder)))
    return 0


def _source(*names: str) -> Path:
    folder = ROOT.joinpath(*names)
    if not folder.is_dir() and names[0] == "docs":  # the package is installed, without its source
        folder = Path(__file__).parents[1].joinpath("_docs", *names[1:])
    if not folder.is_dir():
        raise UsageError(
            f"there is no {folder}. Get the source (git clone) and run this inside it."
        )
    return folder


def graph(arguments: Any) -> int:
    """Draw how the tensor that a function returns was computed."""
    from .. import viz

    found = find(arguments.target)
    if callable(found) and number_of_inputs(found)[0]:
        raise UsageError(
            f"{arguments.target} needs inputs. Write a function without arguments that makes the "
            "inputs itself and returns the Tensor."
        )
    if (arguments.output or "").endswith(".html"):
        picture: Any = viz.graph_html(found, plain=arguments.plain)
    else:
        picture = viz.graph(
            found, depth=arguments.depth, expand=arguments.expand, plain=arguments.plain
        )
    if arguments.output:
        picture.save(arguments.output)
    print(arguments.output or picture)
    return 0


def source(arguments: Any) -> int:
    """Write the program of a function."""
    from .. import source as write

    function, inputs = _function_and_inputs(arguments, 0)
    params = parameters_of(function)
    program = write(function, *inputs, params=params, backward=not arguments.forward)
    if arguments.output:
        print(program.save(arguments.output))
    else:
        print(program, end="")
    return 0


def gradcheck(arguments: Any) -> int:
    """Check a function at random inputs; 0 if its gradient is right, else 1."""
    from ..check import gradcheck as check

    function, inputs = _function_and_inputs(arguments, arguments.seed)
    report = check(function, inputs, order=arguments.order, raise_exception=False)
    print(report)
    return 0 if report else 1


def _function_and_inputs(arguments: Any, seed: int) -> tuple[Any, list[Any]]:
    """The function that is named, and random inputs of the shapes given by `--shape`."""
    function, shapes = find(arguments.target), arguments.shape or [(3, 4)]
    if not callable(function) or number_of_inputs(function)[1] == 0:
        raise UsageError(f"{arguments.target} is not a function of arrays.")
    least, most = number_of_inputs(function)
    shapes = shapes * max(1, least) if len(shapes) == 1 else shapes
    if not least <= len(shapes) <= most:
        raise UsageError(
            f"{arguments.target} takes {least} to {most} inputs, but --shape was given "
            f"{len(shapes)} times; give it once for each input, or once for all."
        )
    rng = np.random.default_rng(seed)
    return function, [rng.standard_normal(shape) for shape in shapes]
