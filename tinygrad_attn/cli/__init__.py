"""The command line: `python -m tinygrad_attn COMMAND`, or `tinygrad-attn COMMAND`.

Exit codes: 0 (success), 1 (failed check), 2 (error), 130 (Ctrl-C), 141 (nobody reads the output).
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from .. import __version__
from . import commands
from .commands import load

__all__ = ["load", "main"]
JSON = {
    "dest": "as_json",
    "action": "store_true",
    "help": "print JSON, for Gradescope or a program",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    options = vars(make_parser().parse_args(argv))
    run, command, traceback = (options.pop(key) for key in ("run", "command", "traceback"))
    if language := options.pop("lang"):
        os.environ["TINYGRAD_ATTN_LANG"] = language  # the marker's catalogue is looked up by it
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # its encoding may lack the lines of pictures
    try:
        code = int(run(**options) or 0)
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is not written
        return 141
    except KeyboardInterrupt as stop:  # its text says which exercises were marked
        print(f"\n{str(stop) or 'Stopped.'}", file=sys.stderr)
        return 130
    except Exception as error:
        if traceback:
            raise
        text = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        text += " (--traceback shows where)"
        print(f"tinygrad-attn {command}: {text}", file=sys.stderr)
        return 2


def make_parser():
    """Return the parser for all commands and their options."""
    parser = argparse.ArgumentParser(
        prog="tinygrad-attn", description="Automatic differentiation and attention in NumPy."
    )
    parser.add_argument("--version", action="version", version=f"tinygrad_attn {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=parser.print_help, lang=None)
    group = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def command(run, target="", shaped=False):
        """Add a command, described by its docstring, and return the function that adds options."""
        one = group.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        one.set_defaults(run=run)
        language = "the language of texts that are translated (default: TINYGRAD_ATTN_LANG, or en)"
        one.add_argument("--lang", choices=("en", "zh"), help=language)
        if target:
            one.add_argument("target", metavar="FILE.py[:FUNCTION]|MODULE:FUNCTION", help=target)
        if shaped:
            text = 'shape of an input, or of all: "(4, 64) (64,)" (default: 3,4 for each)'
            one.add_argument(
                "--shape", "--shapes", action="extend", type=shapes, metavar="2,3", help=text
            )
        return one.add_argument

    add = command(commands.demo)
    add("--seed", type=int, default=0, help="the first seed (default 0)")
    add("--epochs", type=count, default=20, help="passes over the data (default 20)")
    add("--runs", type=count, default=3, help="number of seeds (default 3)")
    add("--out", default="demo-report", help="folder for the report (default demo-report)")
    command(commands.doctor)
    add = command(commands.seeds)
    add("name", nargs="?", default="", help="a single document, such as 003 (default: all)")
    add = command(commands.graph, "a function without arguments that returns a Tensor")
    add("-o", "--output", help="a .svg, .png, .pdf, .dot or .txt file (default: text)")
    add("--plain", action="store_true", help="open softmax, attention, layer norm and GELU too")
    add("--depth", type=int, help="how many levels of modules to open (default 1)")
    add("--expand", action="append", default=[], help="a module to open; repeatable")
    add = command(commands.gradcheck, "a function of arrays or Tensors, or an op", shaped=True)
    add("--order", type=int, choices=(1, 2), default=1, help="2 also checks second derivatives")
    add("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    place = "FILE.py:FUNCTION"
    add("--vjp", metavar=place, help="backward(g, y, *inputs), for a function on arrays")
    add("--reference", metavar=place, help="a plain function with the right results")
    add("--dtype", choices=("float64", "float32", "float16", "bfloat16"), help="the precision")
    add("--json", **JSON)
    add = command(commands.source, "a function of arrays, or a module", shaped=True)
    add("-o", "--output", help="a .py file (default: print the text)")
    add("--forward", action="store_true", help="write only the forward pass")
    _add_teaching(command)
    return parser


def _add_teaching(command):
    """Add the commands for exercises, exams and the course."""
    add = command(commands.exercise)
    add("name", nargs="?", help="name or chapter of an exercise, or zoo (default: list all)")
    add("files", nargs="*", help="your solutions; for zoo, a bug and your answer")
    add("--time-limit", type=float, default=60, help="seconds per check (default 60; 0: no limit)")
    add("--csv", help="a file for the table of several solutions")
    add("--hidden", metavar="FILE", help="a teacher's extra checks, by exercise name")
    add("--json", **JSON)
    add("--step", help="the number of a step, for the project `engine`")
    add("--all", dest="everything", action="store_true", help="explain every failed check")
    add = command(commands.exam)
    add("file", metavar="FILE.py", help="an engine, or an adapter for one (see docs/exam.md)")
    add("--only", default="", metavar="GROUP,...", help="examine only these groups of cases")
    add("--need", default="", metavar="GROUP,...", help="groups that the engine must offer")
    add("--time-limit", type=float, default=10, help="seconds per case (default 10)")
    add("--json", **JSON)
    add = command(commands.practice)
    add("target", nargs="?", metavar="TOPIC|FILE.py", help="a topic (default: mixed), or your file")
    add("--level", type=int, default=1, help="number of lines, 1 to 6 (default 1)")
    add("--seed", type=int, help="the same seed gives the same function (default: any)")
    add("--count", type=count, default=1, help="number of functions (default 1)")
    add("--time-limit", type=float, default=60, help="seconds for the marking (default 60)")
    add("--hint", type=int, metavar="1..3", help="1: a derivative, 2: what is wrong, 3: the rule")
    add("--json", **JSON)
    add = command(commands.page)
    add("file", metavar="FILE.py", help="a file that calls exercise(...): docs/own-exercises.md")
    add("-o", "--output", metavar="DIR", required=True, help="the folder of the page")
    add("--offline", action="store_true", help="put Python into the folder too")
    add = command(commands.course)
    add("folder", metavar="DIR", help="existing files stay as they are")
    add("--release", action="store_true", help="for lecturers: autograders, slides, variants")
    add("--students", metavar="FILE.csv", help="a line email,number for each student")


def count(text):
    """Convert a text to an integer that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def shapes(text):
    """Convert `2,3` or "(4, 64) (64,)" to a list of shapes; an empty text is that of a scalar."""
    inner = re.fullmatch(r"\((.*)\)", text.strip())
    parts = re.split(r"\)[\s,]*\(", inner[1]) if inner else [text]
    return [tuple(int(length) for length in part.split(",") if length.strip()) for part in parts]
