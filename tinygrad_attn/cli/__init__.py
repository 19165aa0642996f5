"""The command line: `python -m tinygrad_attn COMMAND`, or `tinygrad-attn COMMAND`.

Exit codes: 0 (success), 1 (failed check), 2 (error), 130 (Ctrl-C).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from . import commands
from .commands import load

__all__ = ["load", "main"]
LANGUAGE = {"choices": ("en", "zh"), "help": "the language (default: TINYGRAD_ATTN_LANG, or en)"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    options = vars(make_parser().parse_args(argv))
    run, command, traceback = (options.pop(key) for key in ("run", "command", "traceback"))
    if language := options.pop("lang", None):
        os.environ["TINYGRAD_ATTN_LANG"] = language  # the marker's catalogue is looked up by it
    try:
        return int(run(**options) or 0)
    except KeyboardInterrupt as stop:  # its text says which exercises were marked
        print(f"\n{str(stop) or 'Stopped.'}", file=sys.stderr)
        return 130
    except Exception as error:
        if traceback:
            raise
        text = f"{type(error).__name__}: {error} (--traceback shows where)"
        print(f"tinygrad-attn {command}: {text}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """Return the parser for all commands and their options."""
    parser = argparse.ArgumentParser(
        prog="tinygrad-attn", description="Automatic differentiation and attention in NumPy."
    )
    parser.add_argument("--version", action="version", version=f"tinygrad_attn {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=parser.print_help)
    group = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def command(run: Any, target: str = "", shape: bool = False) -> Any:
        """Add a command, described by its docstring, and return the function that adds options."""
        one = group.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        one.set_defaults(run=run)
        if target:
            one.add_argument("target", metavar="FILE.py[:FUNCTION]|MODULE:FUNCTION", help=target)
        if shape:
            text = "shape of an input; once per input, or once for all (default 3,4)"
            one.add_argument("--shape", action="append", type=lengths, metavar="2,3", help=text)
        return one.add_argument

    add = command(commands.demo)
    add("--seed", type=int, default=0, help="the first seed (default 0)")
    add("--epochs", type=int, default=20, help="passes over the data (default 20)")
    add("--runs", type=int, default=3, help="number of seeds (default 3)")
    add("--out", default="demo-report", help="folder for the report (default demo-report)")
    command(commands.doctor)
    add = command(commands.seeds)
    add("name", nargs="?", default="", help="a single document, such as 003 (default: all)")
    add = command(commands.graph, "a function without arguments that returns a Tensor")
    add("-o", "--output", help="a .svg, .png, .pdf, .dot or .txt file (default: text)")
    add("--plain", action="store_true", help="open softmax, attention, layer norm and GELU too")
    add("--depth", type=int, help="how many levels of modules to open (default 1)")
    add("--expand", action="append", default=[], help="a module to open; repeatable")
    add = command(commands.gradcheck, "a function of arrays or Tensors, or an op", shape=True)
    add("--order", type=int, choices=(1, 2), default=1, help="2 also checks second derivatives")
    add("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    place = "FILE.py:FUNCTION"
    add("--vjp", metavar=place, help="backward(g, y, *inputs), for a function on arrays")
    add("--reference", metavar=place, help="a plain function with the right results")
    add("--dtype", choices=("float64", "float32", "float16", "bfloat16"), help="the precision")
    add("--shapes", type=all_lengths, metavar='"(4, 64) (64,)"', help="shapes of all inputs")
    add("--json", dest="as_json", action="store_true", help="print the report for a program")
    add("--lang", **LANGUAGE)
    add = command(commands.source, "a function of arrays, or a module", shape=True)
    add("-o", "--output", help="a .py file (default: print the text)")
    add("--forward", action="store_true", help="write only the forward pass")
    _add_teaching(command)
    return parser


def _add_teaching(command: Any) -> None:
    """Add the commands for exercises, exams and the course."""
    add = command(commands.exercise)
    add("name", nargs="?", help="name or chapter of an exercise, or zoo (default: list all)")
    add("files", nargs="*", help="your solutions; for zoo, a bug and your answer")
    add("--time-limit", type=float, default=60, help="seconds per check (default 60; 0: no limit)")
    add("--csv", help="a file for the table of several solutions")
    add("--hidden", metavar="FILE", help="a teacher's extra checks, by exercise name")
    add("--json", dest="as_json", action="store_true", help="print Gradescope's results.json")
    add("--step", help="the number of a step, for the project `engine`")
    add("--all", dest="everything", action="store_true", help="explain every failed check")
    add("--lang", **LANGUAGE)
    add = command(commands.exam)
    add("file", metavar="FILE.py", help="an engine, or an adapter for one (see docs/exam.md)")
    add("--only", default="", metavar="GROUP,...", help="examine only these groups of cases")
    add("--need", default="", metavar="GROUP,...", help="groups that the engine must offer")
    add("--time-limit", type=float, default=10, help="seconds per case (default 10)")
    add("--json", dest="as_json", action="store_true", help="print Gradescope's results.json")
    add("--lang", **LANGUAGE)
    add = command(commands.practice)
    add("target", nargs="?", metavar="TOPIC|FILE.py", help="a topic (default: mixed), or your file")
    add("--level", type=int, default=1, help="number of lines, 1 to 6 (default 1)")
    add("--seed", type=int, help="the same seed gives the same function (default: any)")
    add("--count", type=int, default=1, help="number of functions (default 1)")
    add("--mark", metavar="FILE.py", help="mark this file, as FILE.py alone does")
    add("--time-limit", type=float, default=60, help="seconds for the marking (default 60)")
    add("--hint", type=int, metavar="1..3", help="1: a derivative, 2: what is wrong, 3: the rule")
    add("--json", dest="as_json", action="store_true", help="print Gradescope's results.json")
    add("--lang", **LANGUAGE)
    add = command(commands.page)
    add("file", metavar="FILE.py", help="a file that calls exercise(...): docs/own-exercises.md")
    add("-o", "--output", metavar="DIR", required=True, help="the folder of the page")
    add("--offline", action="store_true", help="put Python into the folder too")
    add("--lang", **LANGUAGE)
    add = command(commands.course)
    add("folder", metavar="DIR", help="existing files stay as they are")
    add("--release", action="store_true", help="for lecturers: autograders, slides, variants")
    add("--students", metavar="FILE.csv", help="a line email,number for each student")
    add("--lang", **LANGUAGE)


def all_lengths(text: str) -> list[tuple[int, ...]]:
    """Convert "(4, 64) (64,)" to a list of shapes."""
    return [lengths(shape.rstrip(", ")) for shape in re.findall(r"\(([^()]*)\)", text)]


def lengths(text: str) -> tuple[int, ...]:
    """Convert `2,3` to a shape, and an empty text to the shape of a scalar."""
    return tuple(int(length) for length in text.split(",") if length)
