"""This package, with ta.compile."""

import tinygrad_attn as ta

from . import ours


class Library(ours.Library):
    """The workloads of COMPILED, of which one function is compiled."""

    way = staticmethod(ta.compile)
