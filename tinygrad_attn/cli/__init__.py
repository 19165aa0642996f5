"""The command line: `python -m tinygrad_attn COMMAND`, or `tinygrad-attn COMMAND`.

    demo        train a small Transformer on real images and write a report
    doctor      what is installed, and does it work
    seeds       rebuild the documents this project grew from, number for number
    graph       draw the graph of a tensor that a file of yours computes
    gradcheck   check the gradient of a function of yours
    exercise    mark an exercise of the course

Each command imports what it needs when it runs, so that `--help` is there at once. Exit codes: 0 all is well, 1 a check failed,
2 the command could not be carried out, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import __version__

ROOT = Path(__file__).resolve().parents[2]
"""Where examples/ and docs/ are when the source is: beside the package."""


class UsageError(ValueError):
    """What was asked for cannot be done; the text says why, and what to do instead."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # names and paths have any letters, a pipe on Windows only some
    parser = make_parser()
    try:
        arguments, rest = parser.parse_known_args(argv)
        if rest and (arguments.command != "exercise" or any(word.startswith("-") for word in rest)):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if arguments.run is None:
            parser.print_help()
            return 0
        if rest:  # argparse takes all files at once, and leaves those that come after an option
            arguments.files += rest
    finally:  # --help and --version leave from within; of a full disk Python tells when it ends
        with contextlib.suppress(OSError):
            write_out()
    try:
        require_folder()
        code = arguments.run(arguments)
        write_out()
        return code
    except KeyboardInterrupt as stop:
        write_out()
        print(f"\n{str(stop) or 'Stopped.'}", file=sys.stderr)
        return 130
    except Exception as error:
        if reader_gone(error):
            say_no_more()
            return 0
        if arguments.traceback:
            raise
        where = (
            ""
            if isinstance(error, UsageError)
            else f"\n(`tinygrad-attn --traceback {arguments.command} ...` shows where)"
        )
        print(
            f"tinygrad-attn {arguments.command}: {users_line(error)}{error}{where}", file=sys.stderr
        )
        return 2


def require_folder() -> None:
    """Whoever asks where he is, in a folder that was deleted, hears of no more than a file that is not there."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the folder this runs in has been deleted; go to another one with cd, or into the new one of its name."
        ) from error


def write_out() -> None:
    """Write what was printed now, and not when Python ends, which would complain of a reader that is gone."""
    try:
        if sys.stdout is not None:  # as under pythonw
            sys.stdout.flush()
    except OSError as error:
        if not reader_gone(error):
            raise
        say_no_more()


def say_no_more() -> None:
    """`... | head` has seen enough: what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_gone(error: Exception) -> bool:
    """Whether nobody reads the pipe any more; Windows calls that an invalid argument, but there it belongs to no file's name."""
    return isinstance(error, BrokenPipeError) or (
        os.name == "nt"
        and isinstance(error, OSError)
        and error.errno == errno.EINVAL
        and error.filename is None
    )


def users_line(error: Exception) -> str:
    """`mine.py, line 7: KeyError: ` where an error passed through a file of the user's; else nothing, its text says enough."""
    import sysconfig
    import traceback

    if isinstance(error, SyntaxError):  # names file and line itself
        return "SyntaxError: "
    if isinstance(error, UsageError):
        return ""
    not_theirs = (
        "<",
        str(Path(__file__).parents[1]),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    )
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(not_theirs)
    ]
    return (
        f"{theirs[-1].filename}, line {theirs[-1].lineno}: {type(error).__name__}: "
        if theirs
        else ""
    )


def make_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(
        prog="tinygrad-attn", description="Automatic differentiation and attention in NumPy."
    )
    parser.add_argument("--version", action="version", version=f"tinygrad_attn {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=None, command="")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def command(name: str, run: Callable[[Any], int], words: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        one.set_defaults(run=run)
        return one

    demo = command(
        "demo",
        run_demo,
        "train a small Transformer on real images, check its gradients and write a report",
    )
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (default 0)")
    demo.add_argument(
        "--epochs", type=int, default=20, metavar="N", help="rounds through the data (default 20)"
    )
    demo.add_argument(
        "--runs",
        type=int,
        default=None,
        metavar="N",
        help="how many seeds, without the ordered split (default: up to 3 and the ordered split, as long as 85 s last)",
    )
    demo.add_argument(
        "--out",
        default="demo-report",
        metavar="DIR",
        help="where the report and the checkpoints go (default demo-report)",
    )
    demo.add_argument("--resume", action="store_true", help="go on from the checkpoints in DIR")

    command("doctor", run_doctor, "say what is installed and whether it works")

    seeds = command(
        "seeds", run_seeds, "rebuild the documents this project grew from, number for number"
    )
    seeds.add_argument("name", nargs="?", help="one of them, such as 003 (default: all)")

    graph = command("graph", run_graph, "draw the graph of the tensor that a function computes")
    graph.add_argument(
        "target",
        metavar="FILE.py[:FUNCTION] or MODULE:FUNCTION",
        help="a function without arguments that returns a Tensor "
        "(default: the only one in the file, or main)",
    )
    graph.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="a file in .svg .png .pdf .dot .txt or .html (default: text on the terminal)",
    )
    graph.add_argument(
        "--depth", type=int, default=None, help="how many levels of modules are opened (default 1)"
    )
    graph.add_argument(
        "--expand",
        action="append",
        default=[],
        metavar="NAME",
        help="a module to open, such as layers.0; may be repeated",
    )

    check = command(
        "gradcheck", run_gradcheck, "check a function's gradient against finite differences"
    )
    check.add_argument(
        "target",
        metavar="FILE.py[:FUNCTION] or MODULE:FUNCTION",
        help="a function of arrays or Tensors, or an op",
    )
    check.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="2,3",
        help="the shape of an input, once for each (default: 3,4 for all)",
    )
    check.add_argument(
        "--order",
        type=int,
        choices=(1, 2),
        default=1,
        help="2 checks the gradient's own gradient too",
    )
    check.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random inputs (default 0)"
    )

    exercise = command("exercise", run_exercise, "mark an exercise of the course")
    exercise.add_argument(
        "name",
        nargs="?",
        help="the exercise, by name or number of its chapter, or zoo (default: list them)",
    )
    exercise.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="your solution (default: the stub that comes with the course); several, "
        "or a pattern such as handed-in/*.py, make a table; for zoo a bug's number, and the op that is to blame or hint",
    )
    exercise.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="how long each check may take (default 60; 0 for no limit)",
    )
    exercise.add_argument("--csv", metavar="FILE", help="where the table goes as CSV, too")
    return parser


# ---- demo, doctor, seeds, exercise


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
    """Run the scripts examples/seed_*.py, all or the one named: by number (003, 3), file name or a word of it (encoder)."""
    examples = ROOT / "examples"
    scripts = sorted(examples.glob("seed_*.py"))
    if not scripts:
        raise UsageError(
            f"the five documents are scripts in examples/ of the source, and there are none in {examples}. "
            "Get the source (git clone) and run this inside it."
        )
    if arguments.name:
        name = arguments.name.removesuffix(".py")
        number = name.removeprefix("seed_").partition("_")[0].zfill(3)
        chosen = [
            path
            for path in scripts
            if path.stem.startswith(f"seed_{number}_") or name in path.stem and not name.isdigit()
        ]
        if not chosen:
            raise UsageError(
                f"there is no seed {arguments.name!r}; there are {', '.join(path.stem for path in scripts)}."
            )
        scripts = chosen
    path = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )  # the package of this source, installed or not
    failed = []
    for script in scripts:
        print(f"==== {script.stem}", flush=True)
        # A session of its own: Ctrl-C is ours, and run() then ends the script, which would show a traceback.
        if subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        ).returncode:
            failed.append(script.stem)
        print(flush=True)
    print(
        f"{len(scripts) - len(failed)} of {len(scripts)} reproduced"
        + (f"; not {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


def run_exercise(arguments: Any) -> int:
    """Hand over to docs/course/marking/mark.py, whose main(name, *files) returns an exit code."""
    marker = ROOT / "docs" / "course" / "marking" / "mark.py"
    if not marker.exists():
        raise UsageError(
            f"the exercises are in docs/course/exercises of the source, and there are none in {marker.parent.parent}. "
            "Get the source (git clone) and run this inside it."
        )
    options = {
        name: value
        for name in ("time_limit", "csv")
        if (value := getattr(arguments, name)) is not None
    }
    try:
        return int(load(marker).main(arguments.name, *(arguments.files or [None]), **options))
    except ValueError as error:  # no such exercise or file; its text says everything
        raise UsageError(str(error)) from error


# ---- graph, gradcheck: on functions of the user's


def run_graph(arguments: Any) -> int:
    """`graph`: draw the computation behind what a function returns."""
    from ..tensor import Tensor
    from ..viz import graph

    function = find(arguments.target)
    refuse_class(arguments.target, function)
    if callable(function) and inputs_of(function)[0]:
        raise UsageError(
            f"{arguments.target} needs inputs, and what is drawn is the result of a call without any. Write a function that "
            "makes the inputs itself and returns the Tensor."
        )
    result = function() if callable(function) else function
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    if not outputs or not all(isinstance(t, Tensor) for t in outputs):
        raise UsageError(
            f"{arguments.target} must return a Tensor (or several), but it returned {type(result).__name__}."
        )
    picture = graph(
        outputs if len(outputs) > 1 else outputs[0], depth=arguments.depth, expand=arguments.expand
    )
    if arguments.output:
        picture.save(arguments.output)
        print(arguments.output)
    else:
        print(picture.text())
    return 0


def run_gradcheck(arguments: Any) -> int:
    """`gradcheck`: check a function at random inputs; 0 if it is right, else 1."""
    import numpy as np

    from ..check import gradcheck

    function = find(arguments.target)
    if not callable(function):
        raise UsageError(
            f"{arguments.target} is no function but an object of type {type(function).__name__}."
        )
    refuse_class(arguments.target, function)
    least, most = inputs_of(function)
    if most == 0:
        raise UsageError(
            f"{arguments.target} takes no inputs, so there is no gradient to check; name a function of arrays."
        )
    shapes = [shape_of(text) for text in arguments.shape] or [(3, 4)]
    if len(shapes) == 1:
        shapes *= max(1, least)
    if not least <= len(shapes) <= most:
        number = f"{least if least == most else f'{least} to {most}'} input{'s' * (most != 1)}"
        raise UsageError(
            f"{arguments.target} takes {number}, but --shape was given {len(shapes)} times; give it once for each input, or "
            "once for all."
        )
    if arguments.seed < 0:
        raise UsageError(f"--seed is 0 or more, got {arguments.seed}.")
    rng = np.random.default_rng(arguments.seed)
    report = gradcheck(
        function,
        [rng.standard_normal(shape) for shape in shapes],
        order=arguments.order,
        raise_exception=False,
    )
    print(report)
    return 0 if report else 1


def refuse_class(target: str, found: Any) -> None:
    """A class makes objects; what computes is one of these."""
    if isinstance(found, type):
        raise UsageError(
            f"{target} is a class; name a function, or an object of that class, such as model in model = "
            f"{found.__name__}(...)."
        )


def inputs_of(function: Any) -> tuple[int, int]:
    """How many positional arguments a function, op or module must have, and how many it may have."""
    import inspect

    parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return sum(p.default is p.empty for p in positional), sys.maxsize if any_number else len(
        positional
    )


def shape_of(text: str) -> tuple[int, ...]:
    """`2,3` or `2x3` as a shape; nothing at all is a single number's."""
    try:
        shape = (
            tuple(map(int, text.strip().removesuffix(",").replace("x", ",").split(",")))
            if text.strip()
            else ()
        )
    except ValueError:
        shape = (-1,)
    if any(n < 0 for n in shape):
        raise UsageError(f"--shape {text!r} is no shape; write it as 2,3.")
    return shape


def load(path: Path) -> Any:
    """A Python file as a module; its folder can be imported from, as when the file is run."""
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} (looked in {os.getcwd()!r})")
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType(path.stem)
    module.__file__ = os.path.abspath(path)
    sys.modules[path.stem] = module  # dataclasses and pickles of the file look for themselves there
    # From its text: what Python keeps compiled is as old as a second ago, and a notebook writes and checks within one.
    exec(compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True), vars(module))
    return module


def find(target: str) -> Any:
    """What `FILE.py`, `FILE.py:FUNCTION` or `MODULE:FUNCTION` names."""
    from importlib import import_module

    from ..messages.errors import nearest

    place, colon, name = target.rpartition(":")
    if not colon or name.endswith(".py") or os.sep in name:  # a colon may be a drive letter
        place, name = target, ""
    if not place:
        raise UsageError(
            f"{target!r} names no file and no module; write FILE.py:FUNCTION or MODULE:FUNCTION."
        )
    if place.endswith(".py"):
        module = load(Path(place))
    elif Path(place).is_file():
        raise UsageError(f"{place!r} is no Python file; its name should end in .py")
    else:
        sys.path.insert(0, os.getcwd())
        try:
            if place.startswith("."):  # for Python an import within a package
                raise ModuleNotFoundError(name=place)
            module = import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or error.name not in (place, place.partition(".")[0]):
                raise  # the module is there, and imports one that is not
            raise UsageError(
                f"there is no module {place!r}, nor is it a file that ends in .py; write FILE.py:FUNCTION or "
                "MODULE:FUNCTION."
            ) from error
    own = functions_of(module)
    if not name:
        name = own[0] if len(own) == 1 else "main"
        if name not in own:
            some = ", ".join(own[:12]) + (f" and {len(own) - 12} more" if len(own) > 12 else "")
            raise UsageError(
                f"{place} has several functions, {some}: say which, as {place}:NAME"
                if own
                else f"{place} defines no function"
            )
    if not hasattr(module, name):
        raise UsageError(f"{place} has no {name!r}.{nearest(name, own)}")
    return getattr(module, name)


def functions_of(module: Any) -> list[str]:
    """The names of the ops, functions and callable objects that a module makes itself; not of its classes, nor of what it imports."""
    from ..engine import Op

    found = []
    for name, value in vars(module).items():
        home = (
            value.forward.__module__
            if isinstance(value, Op)
            else getattr(value, "__module__", None)
        )
        if (
            callable(value)
            and not isinstance(value, type)
            and home == module.__name__
            and not name.startswith("_")
        ):
            found.append(name)
    return found
