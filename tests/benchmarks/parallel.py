"""What several ranks cost and gain: `python -m tests.benchmarks.parallel`.

Measures on this machine, with one thread a rank, the sum of an array over 2 and 4 ranks, training
steps of the base encoder layer on 1, 2 and 4 ranks with the same batch in all, and how much of the
exchange the backward pass hides. All is done three times in turns, and of each number the median is
taken. From three of the numbers it predicts the others:

    t(N) = w (c_0 + c_1 B / N) + (1 - h) E(N)
    E(N) = k 2 (N - 1) a + w 2 (N - 1) / N * bytes / b

c_0 and c_1 are what a step takes without and for each sample, from one rank alone; a and b are
latency and bandwidth of a sum, k the number of buckets; h is the part that is hidden, 0 where the
ranks copy with the very cores that compute; w = max(1, N / cores) counts how many ranks share a
core. With --draw the same formula goes on to 1,024 ranks, which is a prediction: for one rank a
machine and a network whose latency and bandwidth are given, not measured.

What can be hidden is the time in which a network carries data and no core is busy. One machine has
no such time, so the part that is hidden is measured with a wire that is put on: a sum counts as
done only when a network of 2.5 Gbit/s would have carried it after all sums before it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, HIDDEN, BATCH, LENGTH = 384, 12, 1536, 8, 128
"""The encoder layer `base` of the other benchmarks."""
ROUNDS, TURNS = 9, 3
RANKS = 2, 4
SIZES = [2**k for k in range(2, 24, 3)]
BUCKETS_MB = [0.125, 0.5, 1, 2, 4, 8]
NETWORK = 20e-6, 1.25e9
"""Seconds and bytes a second of a network of 10 Gbit/s, for --draw."""
WIRE = 20e-6, 0.3125e9
"""The same of one of 2.5 Gbit/s, slow enough to see what of its time is hidden."""
MINILM = {"bytes": 4 * 22_713_216, "flops": 6 * 10_650_000 * LENGTH}
"""all-MiniLM-L6-v2: parameters, and what a sample of 128 tokens takes in its six layers."""


# ---- on each rank


def slowest(runs: dict[Any, Callable[[], Any]], rounds: int = ROUNDS) -> dict[Any, float]:
    """For each kind of run, the median over the rounds of the slowest rank's seconds. The kinds take
    turns, and the ranks begin together.
    """
    from tinygrad_attn import parallel

    times: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            parallel.barrier()
            begun = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begun)
    every = parallel.group.group().gather("times", np.array([times[name][1:] for name in runs]))
    by_rank = every.reshape(-1, len(runs), rounds)
    return dict(zip(runs, np.median(by_rank.max(axis=0), axis=1).tolist(), strict=True))


class Training:
    """Steps of the base layer on `batch` samples a rank. All are of the same layer and optimiser, so
    that what they change lies in the caches as it does where one is repeated.
    """

    def __init__(self, batch: int) -> None:
        import tinygrad_attn as ta
        from tinygrad_attn import nn, optim, parallel

        ta.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)
        self.optimizer = optim.AdamW(self.layer.parameters())
        x = np.random.default_rng(parallel.rank()).standard_normal((batch, LENGTH, WIDTH))
        self.x = x.astype(np.float32)

    def step(self, bucket_mb: float, sharded: bool = False, average: bool = True) -> Any:
        """One kind of step."""
        from tinygrad_attn import parallel

        model = parallel.DataParallel(self.layer, bucket_cap_mb=bucket_mb)
        optimizer: Any = self.optimizer
        if sharded:
            optimizer = parallel.ShardedAdamW(self.layer.parameters())

        def step() -> None:
            optimizer.zero_grad()
            if average:
                (model(self.x) ** 2).mean().backward()
            else:
                with model.no_sync():
                    (model(self.x) ** 2).mean().backward()
                model._own_gradients = False
            optimizer.step()

        return step


class Wire:
    """While `on`, a sum is done when MPI has done it and a network would have carried its bytes."""

    def __init__(self, latency: float, bandwidth: float) -> None:
        from tinygrad_attn import parallel

        self.on, self.latency, self.bandwidth = False, latency, bandwidth
        self.free = 0.0  # the time from which the wire has nothing left to carry
        ours = parallel.group.group()
        self.size, self.begin, self.finish = ours.size, ours.begin_sum, ours.finish
        ours.begin_sum, ours.finish = self.begin_sum, self.finish_all  # type: ignore[method-assign]

    def begin_sum(self, array: Any) -> Any:
        """As `Group.begin_sum`."""
        turns = 2 * (self.size - 1)
        carried = turns * self.latency + turns / self.size * array.nbytes / self.bandwidth
        self.free = max(self.free, time.perf_counter()) + carried
        return self.begin(array)

    def finish_all(self, call: str, requests: list[Any]) -> None:
        """As `Group.finish`."""
        self.finish(call, requests)
        while self.on and (left := self.free - time.perf_counter()) > 0:
            time.sleep(left)

    def carries(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The same with the wire on."""

        def slower() -> None:
            self.on = True
            run()
            self.on = False

        return slower


def worker(kind: str, argument: str) -> dict[str, Any]:
    """What one run of mpiexec measures."""
    import tinygrad_attn as ta
    from tinygrad_attn import parallel

    ta.set_num_threads(1)
    ta.reuse_memory()
    ranks = parallel.world_size()
    if kind == "sums":
        ours = parallel.group.group()
        arrays = {size: np.zeros(size // 4, np.float32) for size in SIZES}
        sums = {n: lambda a=a: ours.finish("", [ours.begin_sum(a)]) for n, a in arrays.items()}
        return {"sums": [*slowest(sums).values()]}
    training, wire = Training(int(argument) // ranks), Wire(*WIRE)
    runs = {"step": training.step(1)}
    if kind == "in turns":
        runs["none"] = training.step(1, average=False)
        runs["after"] = training.step(1e6)
        runs |= {f"wire {name}": wire.carries(runs[name]) for name in ("step", "after")}
        runs |= {f"{size} MiB": training.step(size) for size in BUCKETS_MB}
        runs["sharded"] = training.step(1, sharded=True)
    return slowest(runs)


# ---- the launcher and the model


def launched(ranks: int, kind: str, argument: int = 0) -> dict[str, Any]:
    """The numbers of a run of so many ranks."""
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", __spec__.name, "--worker", kind, str(argument)]
    done = subprocess.run(
        [launcher, "-n", str(ranks), *command],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def fitted(ranks: int, sums: list[float], crowd: float) -> tuple[float, float]:
    """Latency (s) and bandwidth (bytes a second) of the ring formula, from sums of SIZES."""
    latency = min(sums[:2]) / (2 * (ranks - 1))
    large = sums[-1] - 2 * (ranks - 1) * latency
    return latency, crowd * 2 * (ranks - 1) / ranks * SIZES[-1] / large


def exchange(ranks: int, size: float, buckets: int, latency: float, bandwidth: float) -> float:
    """E(N): seconds for the sum of `size` bytes over the ranks."""
    turns = 2 * (ranks - 1)
    return buckets * turns * latency + turns / ranks * size / bandwidth


def parameters() -> int:
    """Numbers in the base layer."""
    return 4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN + 4 * WIDTH + HIDDEN + WIDTH + 4 * WIDTH


def measured() -> dict[Any, Any]:
    """All that is measured, once."""
    alone = {batch: launched(1, "step", batch)["step"] for batch in (BATCH, BATCH // 4)}
    found: dict[Any, Any] = {"alone": alone}
    for ranks in RANKS:
        found[ranks] = launched(ranks, "in turns", BATCH) | launched(ranks, "sums")
        found[ranks]["by itself"] = launched(ranks, "step", BATCH)["step"]
    return found


def medians(found: list[Any]) -> Any:
    """The median of each number in things of one form."""
    if isinstance(found[0], dict):
        return {key: medians([one[key] for one in found]) for key in found[0]}
    if isinstance(found[0], list):
        return [medians(list(each)) for each in zip(*found, strict=True)]
    return statistics.median(found)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    ask.add_argument("--draw", metavar="FILE", help="a picture of 1 to 1,024 ranks, as SVG or PNG")
    given = ask.parse_args()
    if given.worker:
        found = worker(*given.worker)
        from tinygrad_attn import parallel

        if parallel.rank() == 0:
            print(json.dumps(found))
        return
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    size = 4 * parameters()
    told = medians([measured() for _ in range(TURNS)])
    alone = told["alone"]
    each = (alone[BATCH] - alone[BATCH // 4]) / (BATCH - BATCH // 4)
    fixed = alone[BATCH] - BATCH * each
    print(f"{cores} cores; base layer, {size / 2**20:.1f} MiB of gradients, batch {BATCH} in all")
    print(f"a step alone: {1e3 * fixed:.1f} ms and {1e3 * each:.2f} ms a sample")
    for ranks in RANKS:
        crowd = max(1.0, ranks / cores)
        latency, bandwidth = fitted(ranks, told[ranks]["sums"], crowd)
        whole = exchange(ranks, crowd * size, -(-size // 2**20), latency, bandwidth)
        predicted = crowd * (fixed + each * BATCH / ranks) + whole
        print_details(ranks, latency, bandwidth, told[ranks], whole)
        step = told[ranks]["by itself"]
        print(
            f"{ranks} ranks: {1e3 * step:.1f} ms, predicted {1e3 * predicted:.1f} "
            f"({100 * (predicted / step - 1):+.0f} %), {alone[BATCH] / step:.2f} times "
            "as fast as one"
        )
    if given.draw:
        draw(given.draw, fixed, each, size)


def print_details(
    ranks: int, latency: float, bandwidth: float, told: dict[str, Any], whole: float
) -> None:
    """How the exchange went."""
    print(f"  a sum: latency {1e6 * latency:.1f} us, bandwidth {bandwidth / 1e9:.2f} GB/s")
    by_size = ", ".join(f"{s} {1e3 * t:.1f}" for s, t in told.items() if s.endswith("MiB"))
    print(f"  a step in ms, in turns with the others, by the size of buckets: {by_size}")
    late, early = told["after"] - told["none"], told["step"] - told["none"]
    print(
        f"  no exchange {1e3 * told['none']:.1f} ms; exchange after the pass +{1e3 * late:.1f}, "
        f"during it +{1e3 * early:.1f} ms; by itself it would take {1e3 * whole:.1f} ms"
    )
    print(f"  with ShardedAdamW {1e3 * told['sharded']:.1f} ms")
    late, early = told["wire after"] - told["none"], told["wire step"] - told["none"]
    carried = exchange(ranks, 4 * parameters(), -(-4 * parameters() // 2**20), *WIRE)
    print(
        f"  with a wire of 2.5 Gbit/s, {1e3 * carried:.1f} ms: exchange after the pass "
        f"+{1e3 * late:.1f}, during it +{1e3 * early:.1f} ms; "
        f"{100 * (late - early) / carried:.0f} % of the wire's time is hidden"
    )


def draw(path: str, fixed: float, each: float, size: int) -> None:
    """Predicted speed-up over one rank at a fixed number of samples a rank, 1 to 1,024 machines."""
    from matplotlib.figure import Figure

    flops = 6 * (parameters() - 9 * WIDTH - HIDDEN) * LENGTH  # of one sample of the base layer
    models = {
        "base layer": (fixed, each, size),
        "MiniLM": (fixed * MINILM["bytes"] / size, each * MINILM["flops"] / flops, MINILM["bytes"]),
    }
    counts = 2 ** np.arange(11)
    axes = (figure := Figure(figsize=(6, 4))).subplots()
    axes.plot(counts, counts, color="0.8", label="N times as fast")
    for name, (start, sample, bytes_) in models.items():
        for batch in (8, 64):
            compute = start + sample * batch
            buckets = -(-bytes_ // 2**20)
            times = [compute + exchange(n, bytes_, buckets, *NETWORK) for n in counts]
            axes.plot(counts, counts * compute / times, label=f"{name}, {batch} samples a rank")
            gain = 1024 * compute / times[-1]
            print(f"predicted, {name}, {batch} samples a rank: 1,024 ranks {gain:.0f} times")
    axes.set(xscale="log", yscale="log", xlabel="ranks, one a machine", ylabel="times as fast")
    axes.set_title("A prediction: 20 us and 10 Gbit/s, nothing hidden", fontsize=9)
    axes.legend(fontsize=7)
    figure.savefig(path)


if __name__ == "__main__":
    main()
