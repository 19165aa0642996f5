"""What several ranks cost and gain: `python -m tests.benchmarks.parallel`.

Measures on this machine, with one thread a rank, the sum of an array over 2 and 4 ranks and steps
of the base encoder layer with the same batch in all. From these it predicts

    t(N) = w (c_0 + c_1 B / N) + E(N)
    E(N) = 2 (N - 1) a + w 2 (N - 1) / N * bytes / b

c_0 and c_1 are what a step takes without and for each sample, from one rank alone; a and b are
latency and bandwidth of a sum; w = max(1, N / cores) counts how many ranks share a core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, HIDDEN, BATCH, LENGTH = 384, 12, 1536, 8, 128  # the layer `base`
ROUNDS = 9
SIZES = [64, 2**23]  # bytes of the sums: for the latency, for the bandwidth


def slowest(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median over the rounds of the slowest rank's seconds. The ranks begin together."""
    from tinygrad_attn import parallel

    found = {}
    for name, run in runs.items():
        times = []
        for _ in range(ROUNDS + 1):
            parallel.barrier()
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        every = parallel.group.group().gather("times", np.array(times[1:]))
        found[name] = float(np.median(np.max(every, axis=0)))
    return found


def worker(batch: int) -> None:
    """Measure on each rank: steps on `batch` samples in all, and sums."""
    import tinygrad_attn as ta
    from tinygrad_attn import nn, optim, parallel

    ta.set_num_threads(1)
    ta.reuse_memory()
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)
    model, ranks = parallel.DataParallel(layer), parallel.group.group()
    x = np.ones((batch // ranks.size, LENGTH, WIDTH), np.float32)

    def step(optimizer: Any) -> Callable[[], None]:
        def run() -> None:
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()

        return run

    runs: dict[str, Callable[[], Any]] = {"step": step(optim.AdamW(layer.parameters()))}
    if ranks.size > 1:
        runs["sharded"] = step(parallel.ShardedAdamW(layer.parameters()))
        for size in SIZES:
            runs[str(size)] = partial(ranks.sum, "", np.zeros(size // 4, np.float32))
    found = slowest(runs)
    if ranks.rank == 0:
        print(json.dumps(found))


def launched(ranks: int, batch: int = BATCH) -> dict[str, float]:
    """What a run of so many ranks measures, in seconds."""
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else "mpiexec"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [launcher, "-n", str(ranks), sys.executable, "-m", __spec__.name, str(batch)]
    output = subprocess.check_output(command, env={**os.environ, **threads}, text=True)
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Measure, predict, print."""
    cores = os.cpu_count() or 1
    size = 4 * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN + 9 * WIDTH + HIDDEN)
    alone, quarter = (launched(1, batch)["step"] for batch in (BATCH, BATCH // 4))
    each = (alone - quarter) / (BATCH - BATCH // 4)
    fixed = alone - BATCH * each
    print(f"{cores} cores; base layer, {size / 2**20:.1f} MiB of gradients, batch {BATCH} in all")
    print(f"a step alone: {1e3 * fixed:.1f} ms and {1e3 * each:.2f} ms a sample")
    for ranks in (2, 4):
        found, crowd, turns = launched(ranks), max(1.0, ranks / cores), 2 * (ranks - 1)
        latency = found[str(SIZES[0])] / turns
        bandwidth = crowd * turns / ranks * SIZES[1] / (found[str(SIZES[1])] - turns * latency)
        exchange = turns * latency + crowd * turns / ranks * size / bandwidth
        predicted, step = crowd * (fixed + each * BATCH / ranks) + exchange, found["step"]
        print(
            f"{ranks} ranks: {1e3 * step:.1f} ms ({alone / step:.2f} times as fast as one), "
            f"predicted {1e3 * predicted:.1f}; with ShardedAdamW {1e3 * found['sharded']:.1f} ms; "
            f"a sum: latency {1e6 * latency:.1f} us, bandwidth {bandwidth / 1e9:.2f} GB/s"
        )


if __name__ == "__main__":
    worker(int(sys.argv[1])) if len(sys.argv) > 1 else main()
