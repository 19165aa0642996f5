"""How cost grows: `python -m tests.benchmarks.growth` draws time and memory against size, on double-logarithmic axes.

Attention's time should grow as T^2 and its memory as T; a backward pass as the number of nodes; an optimiser's step as the number of
parameters.  Each line carries the slope of a straight fit to its last three points: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, ops, optim

from .worker import memory


def seconds(step: Callable[[], object], least: float = 0.2) -> float:
    """The best of several runs, at least three, until `least` seconds have passed."""
    best, runs, start = float("inf"), 0, time.perf_counter()
    while runs < 3 or time.perf_counter() - start < least:
        before = time.perf_counter()
        step()
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return best


def attention(length: int) -> tuple[float, float]:
    """(seconds, bytes at the highest point) of attention forward and backward, 8 heads of 64: four sequences, with which there is no room
    for weights beside the results from 1,024 tokens on."""
    rng = np.random.default_rng(0)
    q, k, v = (
        Tensor(rng.standard_normal((4, 8, length, 64)).astype(np.float32), requires_grad=True)
        for _ in range(3)
    )
    g = Tensor(np.ones((4, 8, length, 64), np.float32))

    def step() -> None:
        for t in (q, k, v):
            t.zero_grad()
        F.scaled_dot_product_attention(q, k, v).backward(g)

    taken = seconds(step)
    for t in (q, k, v):
        t.zero_grad()
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return taken, peak


def chain(nodes: int) -> float:
    """Seconds of a forward and backward pass through this many ops."""
    x, a = (Tensor(np.full(8, 0.5, np.float32), requires_grad=True) for _ in range(2))

    def step() -> None:
        y = x
        for _ in range(nodes // 2):
            y = ops.tanh(y * a)
        y.sum().backward()

    return seconds(step)


def graph(nodes: int) -> tuple[float, float, float]:
    """(seconds forward, seconds backward, bytes) of each node in a chain of products of eight numbers."""
    x, a = (Tensor(np.full(8, 0.99, np.float32), requires_grad=True) for _ in range(2))
    gc.collect()
    begin, held = time.perf_counter(), memory("VmRSS")
    y = x
    for _ in range(nodes):
        y = y * a
    middle, grown = time.perf_counter(), memory("VmRSS") - held
    y.sum().backward()
    return (middle - begin) / nodes, (time.perf_counter() - middle) / nodes, grown / nodes


def adamw(numbers: int) -> float:
    """Seconds of an AdamW step on this many parameters."""
    p = nn.Parameter(np.zeros(numbers, np.float32))
    p.grad = Tensor(np.ones(numbers, np.float32))
    return seconds(optim.AdamW([p]).step)


def main(path: Path) -> None:
    """Measure, fit, draw."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for nodes in (10**4, 10**5, 10**6):
        forward, backward, size = graph(nodes)
        print(
            f"{nodes:,} nodes: {forward * 1e6:.2f} us forward, {backward * 1e6:.2f} us backward, {size:.0f} bytes each"
        )
    ta.reuse_memory()
    lengths, counts, numbers = (
        [256, 512, 1024, 2048, 4096],
        [10**k for k in (2, 3, 4, 5, 6)],
        [10**k for k in (4, 5, 6, 7)],
    )
    pairs = [attention(t) for t in lengths]
    panels = [
        ("attention: time, s", "T", lengths, [p[0] for p in pairs], 2),
        ("attention: peak memory, MB", "T", lengths, [p[1] / 2**20 for p in pairs], 1),
        ("forward and backward, s", "nodes", counts, [chain(n) for n in counts], 1),
        ("AdamW step, s", "parameters", numbers, [adamw(n) for n in numbers], 1),
    ]
    figure, grid = plt.subplots(2, 2, figsize=(7, 6.8))
    for axes, (title, label, x, y, expected) in zip(grid.flat, panels, strict=True):
        slope, height = np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)
        axes.loglog(x, y, "o-", color="#0072B2")
        axes.loglog(x, np.exp(height) * np.array(x, float) ** slope, ":", color="#E69F00")
        axes.set_title(f"{title}\nslope {slope:.2f} (expected {expected})", fontsize=9)
        axes.set_xticks(x, [f"{v:,}" for v in x], fontsize=6)
        axes.minorticks_off()
        axes.set_xlabel(label)
        print(
            f"{title}: "
            + ", ".join(f"{label} {a:,}: {b:.4g}" for a, b in zip(x, y, strict=True))
            + f"; slope {slope:.2f}"
        )
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "growth.svg"))
