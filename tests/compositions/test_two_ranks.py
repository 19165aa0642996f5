"""DataParallel on two ranks beside every other way to run a model, in both orders."""

from pathlib import Path

from ranks import passes
from support import require

require("mpi4py")


def test_two_ranks_average_whatever_else_is_done():
    passes(2, Path(__file__).with_name("two_ranks.py"))
