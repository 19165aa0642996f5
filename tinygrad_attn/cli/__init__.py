"""The command line: `python -m tinygrad_attn COMMAND`, or `tinygrad-attn COMMAND`.

    demo        train a small Transformer on real images and write a report
    doctor      what is installed, and does it work
    seeds       rebuild the documents this project grew from, number for number
    graph       draw the graph of a tensor that a file of yours computes
    gradcheck   check the gradient of a function of yours
    source      write both passes of a function of yours as plain NumPy
    exercise    mark an exercise of the course

In reading order: command_line.py (what happens around a command), options.py (what each one takes),
commands.py (what each one does), targets.py (finding a function in a file of the user's), output.py
(a pipe that nobody reads). Each command imports what it needs when it runs, so that `--help` is
there at once.
"""

from .command_line import main
from .targets import UsageError, load

__all__ = ["UsageError", "load", "main"]
