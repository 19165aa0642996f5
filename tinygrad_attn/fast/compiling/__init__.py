"""`ta.compile`: a function that runs as a flat NumPy program where it can, and as it is elsewhere.

What the function does is written down by the tracer of `ta.source`. `outside` finds what it reads
beside its arguments, `lowering` and `flat` write the program, `compiled` calls it. `caching` is for
decoding steps, whose key/value cache grows.
"""

from .compiled import Compiled, Signature, compile

__all__ = ["Compiled", "Signature", "compile"]
