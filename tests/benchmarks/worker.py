"""A library in a process of its own: reads orders from standard input, one JSON line each, and answers in kind."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import sys
import time
from typing import Any

import numpy as np

from .workloads import WORKLOADS

CLASSES = {
    "ours": "ours.Library",
    "torch": "torch_eager.Library",
    "hips": "functional.Hips",
    "jax": "functional.Jax",
}


def memory(key: str) -> int:
    """A line of /proc/self/status in bytes, 0 where there is none."""
    try:
        with open("/proc/self/status") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith(key)), 0)
    except OSError:
        return 0


def give_back() -> None:
    """Return what the allocator keeps in reserve, so that it does not hide what a step takes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Let the OS's high-water mark start again from here."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass


def main(library: str) -> None:
    """Serve orders until standard input ends."""
    module, _, name = CLASSES[library].partition(".")
    lib: Any = getattr(importlib.import_module(f".libraries.{module}", __package__), name)()
    by_name, step, results = {w.name: w for w in WORKLOADS}, None, None
    answer = lambda **a: print(json.dumps(a), flush=True)
    answer(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "prepare" in order:
            w = by_name[order["prepare"]]
            if not hasattr(lib, w.kind):
                answer(skipped=f"{library} has no {w.kind}")
                continue
            step = results = None
            if (
                w.memory
            ):  # the matrix library's own buffers come with its first product, not with ours
                small = dataclasses.replace(w, sizes={**w.sizes, "T": 64})
                getattr(lib, w.kind)(small.arrays(), **small.sizes)[0]()
            step, results = getattr(lib, w.kind)(w.arrays(), **w.sizes)
            give_back()
            base = memory("VmRSS")
            reset_peak()
            start = time.perf_counter()
            step()
            answer(first=time.perf_counter() - start, peak=memory("VmHWM") - base)
        elif "save" in order:
            np.savez(
                order["save"], **{k.replace("/", "|"): np.asarray(v) for k, v in results().items()}
            )
            answer(saved=True)
        else:
            n = order["time"]
            start = time.perf_counter()
            while (
                time.perf_counter() - start < 0.05
            ):  # untimed: after a pause threads and clocks have to wake up
                step()
            start = time.perf_counter()
            for _ in range(n):
                step()
            answer(seconds=(time.perf_counter() - start) / n)


if __name__ == "__main__":
    main(sys.argv[1])
