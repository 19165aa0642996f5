"""Prints how much longer it takes to import tinygrad_attn than NumPy alone.

Each time is the best of five fresh interpreters. Modules are already compiled to bytecode.
"""

import os
import subprocess
import sys

TIMER = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(name: str) -> float:
    return float(
        subprocess.check_output([sys.executable, "-c", TIMER.format(name)], env=ENVIRONMENT)
    )


seconds("tinygrad_attn")
rounds = [(seconds("numpy"), seconds("tinygrad_attn")) for _ in range(5)]
numpy, ours = (min(times) for times in zip(*rounds))
print(
    f"import numpy {numpy:.3f} s, import tinygrad_attn {ours:.3f} s: {ours - numpy:.3f} s more "
    "(goal: at most 0.1 s)"
)
