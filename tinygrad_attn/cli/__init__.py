"""The command line: `python -m tinygrad_attn COMMAND`, or `tinygrad-attn COMMAND`.

demo        train a small Transformer on real images and write a report
doctor      list what is installed and check that it works
seeds       rebuild the documents this project grew from, number for number
graph       draw the graph of a tensor that a file of yours computes
gradcheck   check the gradient of a function of yours
source      write both passes of a function of yours as plain NumPy
exercise    mark an exercise of the course
course      lay out the exercises and notebooks of the course in a folder
"""

from .main import main
from .targets import load

__all__ = ["load", "main"]
