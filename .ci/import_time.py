"""Prints what importing tinygrad_attn costs beside NumPy alone: the best of five fresh interpreters
each, in turns.
"""

import subprocess
import sys

TIMER = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(name: str) -> float:
    return float(subprocess.check_output([sys.executable, "-c", TIMER.format(name)]))


rounds = [(seconds("numpy"), seconds("tinygrad_attn")) for _ in range(5)]
numpy, ours = (min(times) for times in zip(*rounds))
print(
    f"import numpy {numpy:.3f} s, import tinygrad_attn {ours:.3f} s: {ours - numpy:.3f} s more "
    "(goal: under 0.15 s)"
)
