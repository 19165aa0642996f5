"""What each command does. Each imports what it needs, so that the others do not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .targets import (
    UsageError,
    find,
    inputs_of,
    load,
    parameters_used_by,
    refuse_class,
    shape_of,
)

ROOT = Path(__file__).resolve().parents[2]
"""Where examples/ and docs/ are when the source is there: beside the package."""


def run_demo(arguments: Any) -> int:
    """`demo`: train, check and write the report."""
    from .demo import run_demo as run

    return run(
        arguments.out,
        seed=arguments.seed,
        epochs=arguments.epochs,
        resume=arguments.resume,
        runs=arguments.runs,
    )


def run_doctor(arguments: Any) -> int:
    """`doctor`: what is installed and what is missing."""
    from .doctor import examine

    return examine()


def run_seeds(arguments: Any) -> int:
    """`seeds`: run the scripts examples/seed_*.py; 0 if all of them reproduce their numbers."""
    scripts = _seed_scripts(arguments.name)
    # Scripts import the package of this source, installed or not.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    failed = []
    for script in scripts:
        print(f"==== {script.stem}", flush=True)
        # In a session of its own the script does not get the Ctrl-C that ends this command, and
        # so shows no traceback.
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        if done.returncode:
            failed.append(script.stem)
        print(flush=True)
    unlike = f"; not {', '.join(failed)}" if failed else ""
    print(f"{len(scripts) - len(failed)} of {len(scripts)} reproduced{unlike}")
    return 1 if failed else 0


def _seed_scripts(name: str | None) -> list[Path]:
    """All of them, or those named: by number (003, 3), file name or a word of it (encoder)."""
    examples = ROOT / "examples"
    scripts = sorted(examples.glob("seed_*.py"))
    if not scripts:
        raise UsageError(
            "the five documents are scripts in examples/ of the source, and there are none in "
            f"{examples}. Get the source (git clone) and run this inside it."
        )
    if not name:
        return scripts
    word = name.removesuffix(".py")
    number = word.removeprefix("seed_").partition("_")[0].zfill(3)
    chosen = [
        path
        for path in scripts
        if path.stem.startswith(f"seed_{number}_") or word in path.stem and not word.isdigit()
    ]
    if not chosen:
        raise UsageError(
            f"there is no seed {name!r}; there are {', '.join(path.stem for path in scripts)}."
        )
    return chosen


def run_exercise(arguments: Any) -> int:
    """`exercise`: the main(name, *files) of docs/course/marking/mark.py returns an exit code."""
    marker = ROOT / "docs" / "course" / "marking" / "mark.py"
    if not marker.exists():
        raise UsageError(
            "the exercises are in docs/course/exercises of the source, and there are none in "
            f"{marker.parent}. Get the source (git clone) and run this inside it."
        )
    options = {
        "time_limit": arguments.time_limit,
        "csv": arguments.csv,
        "everything": arguments.all or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return int(load(marker).main(arguments.name, *(arguments.files or [None]), **given))
    except ValueError as error:  # no such exercise or file; its text says everything
        raise UsageError(str(error)) from error


def run_graph(arguments: Any) -> int:
    """`graph`: draw the computation behind what a function returns."""
    from ..tensor import Tensor
    from ..viz import graph

    function = find(arguments.target)
    refuse_class(arguments.target, function)
    if callable(function) and inputs_of(function)[0]:
        raise UsageError(
            f"{arguments.target} needs inputs, and what is drawn is the result of a call without "
            "any. Write a function that makes the inputs itself and returns the Tensor."
        )
    result = function() if callable(function) else function
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    if not outputs or not all(isinstance(t, Tensor) for t in outputs):
        raise UsageError(
            f"{arguments.target} must return a Tensor (or several), "
            f"but it returned {type(result).__name__}."
        )
    picture = graph(outputs, depth=arguments.depth, expand=arguments.expand)
    if arguments.output:
        picture.save(arguments.output)
        print(arguments.output)
    else:
        print(picture.text())
    return 0


def run_source(arguments: Any) -> int:
    """`source`: write the program of a function."""
    import numpy as np

    from ..program import Program, source

    target, found = arguments.target, find(arguments.target)
    refuse_class(target, found)
    if callable(found) and not isinstance(found, Program):
        if inputs_of(found)[1]:
            shapes = _shapes_of_inputs(arguments, found)
            rng = np.random.default_rng(0)
            inputs = [rng.standard_normal(shape) for shape in shapes]
            params = parameters_used_by(found)
            found = source(found, *inputs, params=params, backward=not arguments.forward)
        else:
            found = found()
    if not isinstance(found, Program):
        raise UsageError(
            f"{target} must take arrays, or return what ta.source returns; it is of type "
            f"{type(found).__name__}."
        )
    if arguments.output:
        print(found.save(arguments.output))
    else:
        print(found, end="")
    return 0


def _shapes_of_inputs(arguments: Any, function: Any) -> list[tuple[int, ...]]:
    """A shape for each input, from `--shape`, which may be given once for all."""
    target = arguments.target
    least, most = inputs_of(function)
    shapes = [shape_of(text) for text in arguments.shape] or [(3, 4)]
    if len(shapes) == 1:
        shapes *= max(1, least)
    if not least <= len(shapes) <= most:
        count = f"{least}" if least == most else f"{least} to {most}"
        raise UsageError(
            f"{target} takes {count} input{'s' * (most != 1)}, but --shape was given {len(shapes)} "
            "times; give it once for each input, or once for all."
        )
    return shapes


def run_gradcheck(arguments: Any) -> int:
    """`gradcheck`: check a function at random inputs; 0 if it is right, else 1."""
    import numpy as np

    from ..check import gradcheck

    target, function = arguments.target, find(arguments.target)
    if not callable(function):
        raise UsageError(
            f"{target} is no function but an object of type {type(function).__name__}."
        )
    refuse_class(target, function)
    if inputs_of(function)[1] == 0:
        raise UsageError(
            f"{target} takes no inputs, so there is no gradient to check; "
            "name a function of arrays."
        )
    shapes = _shapes_of_inputs(arguments, function)
    if arguments.seed < 0:
        raise UsageError(f"--seed is 0 or more, got {arguments.seed}.")
    rng = np.random.default_rng(arguments.seed)
    inputs = [rng.standard_normal(shape) for shape in shapes]
    report = gradcheck(function, inputs, order=arguments.order, raise_exception=False)
    print(report)
    return 0 if report else 1
