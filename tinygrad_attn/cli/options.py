"""What each command takes, and what `--help` says of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .. import __version__
from . import commands

TARGET = "FILE.py[:FUNCTION] or MODULE:FUNCTION"


def make_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(
        prog="tinygrad-attn", description="Automatic differentiation and attention in NumPy."
    )
    parser.add_argument("--version", action="version", version=f"tinygrad_attn {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=None, command="")
    group = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def command(name: str, run: Callable[[Any], int], words: str) -> argparse.ArgumentParser:
        one = group.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        one.set_defaults(run=run)
        return one

    demo_options(
        command(
            "demo",
            commands.run_demo,
            "train a small Transformer on real images, check its gradients and write a report",
        )
    )
    command("doctor", commands.run_doctor, "say what is installed and whether it works")
    seeds = command(
        "seeds",
        commands.run_seeds,
        "rebuild the documents this project grew from, number for number",
    )
    seeds.add_argument("name", nargs="?", help="one of them, such as 003 (default: all)")
    graph_options(
        command(
            "graph", commands.run_graph, "draw the graph of the tensor that a function computes"
        )
    )
    gradcheck_options(
        command(
            "gradcheck",
            commands.run_gradcheck,
            "check a function's gradient against finite differences",
        )
    )
    source_options(
        command(
            "source",
            commands.run_source,
            "write the forward and the backward pass of a function as one NumPy file",
        )
    )
    exercise_options(command("exercise", commands.run_exercise, "mark an exercise of the course"))
    return parser


def demo_options(demo: argparse.ArgumentParser) -> None:
    """Seed, length, and where the report goes."""
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (default 0)")
    demo.add_argument(
        "--epochs", type=int, default=20, metavar="N", help="rounds through the data (default 20)"
    )
    demo.add_argument(
        "--runs",
        type=int,
        default=None,
        metavar="N",
        help="how many seeds, without the ordered split "
        "(default: up to 3 and the ordered split, as long as 85 s last)",
    )
    demo.add_argument(
        "--out",
        default="demo-report",
        metavar="DIR",
        help="where the report and the checkpoints go (default demo-report)",
    )
    demo.add_argument("--resume", action="store_true", help="go on from the checkpoints in DIR")


def graph_options(graph: argparse.ArgumentParser) -> None:
    """What is drawn, and where the picture goes."""
    graph.add_argument(
        "target",
        metavar=TARGET,
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


def gradcheck_options(check: argparse.ArgumentParser) -> None:
    """Which function is checked, at which inputs."""
    check.add_argument("target", metavar=TARGET, help="a function of arrays or Tensors, or an op")
    shape_option(check)
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


def shape_option(parser: argparse.ArgumentParser) -> None:
    """The shapes of random inputs."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="2,3",
        help="the shape of an input, once for each (default: 3,4 for all)",
    )


def source_options(source: argparse.ArgumentParser) -> None:
    """Which function is written, for which shapes, and where the text goes."""
    source.add_argument(
        "target",
        metavar=TARGET,
        help="a module or a function of arrays, or a function without arguments that returns "
        "ta.source(...)",
    )
    source.add_argument(
        "-o", "--output", metavar="PATH", help="a file in .py (default: text on the terminal)"
    )
    shape_option(source)
    source.add_argument(
        "--forward", action="store_true", help="the forward pass only, without gradients"
    )


def exercise_options(exercise: argparse.ArgumentParser) -> None:
    """Which exercise, whose solutions, and how long they may take."""
    exercise.add_argument(
        "name",
        nargs="?",
        help="the exercise, by name or number of its chapter, or zoo (default: list them)",
    )
    exercise.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="your solution (default: the stub that comes with the course); several, or a pattern "
        "such as handed-in/*.py, make a table; for zoo a bug's number, and the op that is to blame "
        "or hint",
    )
    exercise.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="how long each check may take (default 60; 0 for no limit)",
    )
    exercise.add_argument("--csv", metavar="FILE", help="where the table goes as CSV, too")
    exercise.add_argument(
        "--all", action="store_true", help="explain every check that fails, not the first alone"
    )
