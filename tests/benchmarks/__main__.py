"""`python -m tests.benchmarks`: run the workloads in turns, print the table, and write it as JSON and Markdown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from . import report
from .workloads import WORKLOADS, Workload


class Worker:
    """A library's process and the pipe to it."""

    def __init__(self, library: str, threads: int) -> None:
        several = "true" if threads > 1 else "false"
        xla = f"--xla_cpu_multi_thread_eigen={several} intra_op_parallelism_threads={threads}"
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(names, str(threads)), "XLA_FLAGS": xla}
        self.library = library
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.worker", library],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.alive = self.ask(None).get("ready", False)

    def ask(self, order: dict[str, Any] | None) -> dict[str, Any]:
        """Send an order, wait for the answer; an empty one if the process has died."""
        try:
            if order is not None:
                print(json.dumps(order), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline() or "{}")  # type: ignore[union-attr]
        except (BrokenPipeError, json.JSONDecodeError):
            return {}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def disagreement(mine: Path, reference: Path) -> float:
    """The worst over all arrays of the 99 % quantile of |difference|, relative to the array's largest entry."""
    errors = [float("inf")]
    with np.load(mine) as a, np.load(reference) as b:
        for k in set(a.files) & set(b.files):
            scale = max(float(np.abs(b[k]).max(initial=0)), 1e-6)
            errors.append(float(np.quantile(np.abs(a[k] - b[k]), 0.99)) / scale)
    return max(errors[1:] or errors)


def peaks(w: Workload, names: Iterable[str], threads: int) -> dict[str, int]:
    """Bytes above the inputs at the highest point of a step, each in a process that has done nothing before."""
    found = {}
    for name in names:
        worker = Worker(name, threads)
        found[name] = worker.ask({"prepare": w.name}).get("peak", 0)
        worker.close()
    return found


def measure(w: Workload, workers: dict[str, Worker], rounds: int, folder: Path) -> dict[str, Any]:
    """Check one workload against PyTorch in every library, then time them in turns."""
    row: dict[str, Any] = {
        "name": w.name,
        "tokens": w.tokens,
        "libraries": {},
    }
    present: dict[str, float] = {}
    for name, worker in workers.items():
        answer = worker.ask({"prepare": w.name})
        if "first" not in answer:
            continue
        worker.ask({"save": str(folder / f"{name}.npz")})
        error = (
            disagreement(folder / f"{name}.npz", folder / "torch.npz") if name != "torch" else 0.0
        )
        row["libraries"][name] = {"error": error}
        if error < 1e-3:
            present[name] = answer["first"]
    if "ours" not in present or "torch" not in present:
        return row
    repeats = {}
    for name in present:
        once = workers[name].ask({"time": 1})["seconds"]
        repeats[name] = max(1, min(2000, int(0.1 / max(once, 1e-7))))
    turns: dict[str, list[float]] = {name: [] for name in present}
    for _ in range(rounds):
        for name in present:
            time.sleep(
                0.4
            )  # OpenMP threads spin for 0.2 s after a turn and would take cores from the next
            turns[name].append(workers[name].ask({"time": repeats[name]})["seconds"])
    for name, seconds in turns.items():
        row["libraries"][name]["seconds"] = statistics.median(seconds)
        row["libraries"][name]["ratio"] = statistics.median(
            a / b for a, b in zip(turns["ours"], seconds, strict=True)
        )
    return row


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, help="default 9, with --docs 5")
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--full", action="store_true", help="also the longest ones")
    parser.add_argument(
        "--rivals",
        action="store_true",
        help="also HIPS autograd and JAX where installed",
    )
    parser.add_argument(
        "--docs",
        metavar="NAME",
        help="measure the table of docs/benchmarks.md, write results/NAME.json and the table",
    )
    parser.add_argument("--title", help="of the table's column (default: the processor)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    rounds = options.rounds or (5 if options.docs else 9)
    chosen = [
        w
        for w in WORKLOADS
        if options.only in w.name and (w.name in report.SHOWN or not options.docs)
        if options.full or not w.full
    ]
    result: dict[str, Any] = {
        "machine": report.machine(),
        "command": f"python -m tests.benchmarks {' '.join(sys.argv[1:])}".rstrip(),
        "python": platform.python_version(),
        "libraries": {"numpy": np.__version__, "torch": version("torch")},
        "rounds": rounds,
        "threads": {},
    }
    print(result["machine"], flush=True)
    for threads in options.threads:
        rows = []
        rivals = sorted({r for w in chosen for r in w.rivals}) if options.rivals else []
        workers = {name: Worker(name, threads) for name in ("torch", "ours", *rivals)}
        workers = {name: worker for name, worker in workers.items() if worker.alive}
        if {"torch", "ours"} - set(workers):
            print(
                'The benchmark needs torch and this package; see pip install ".[test]".',
                file=sys.stderr,
            )
            return 2
        try:
            with tempfile.TemporaryDirectory() as folder:
                for w in chosen:
                    names = ("torch", "ours", *w.rivals)
                    allowed = {n: k for n, k in workers.items() if n in names}
                    rows.append(measure(w, allowed, rounds, Path(folder)))
                    if w.memory and threads == options.threads[0]:
                        for name, peak in peaks(w, rows[-1]["libraries"], threads).items():
                            rows[-1]["libraries"][name]["peak_bytes"] = peak
                    print(report.line(rows[-1], threads), flush=True)
        finally:
            for worker in workers.values():
                worker.close()
        result["threads"][str(threads)] = rows
    report.write(result, options.out)
    print(f"Written to {options.out}")
    if options.docs:
        title = options.title or result["machine"].partition(",")[0]
        path = report.RESULTS / f"{options.docs}.json"
        path.write_text(report.dumps({"title": title, **result}), "utf-8")
        report.write_table()
        print(f"Written to {path} and {report.PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
