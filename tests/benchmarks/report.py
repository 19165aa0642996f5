"""The table as text, JSON, Markdown and a plot."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from tinygrad_attn.fast.threads import blas_core

LABELS = {
    "torch": "PyTorch",
    "hips": "HIPS autograd",
    "mygrad": "MyGrad",
    "micrograd": "micrograd",
    "jax": "JAX jit",
}


def machine() -> str:
    """The processor, how many cores of it we have, and which processor's kernels NumPy multiplies with."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            model = next(
                (line.split(":")[1].strip() for line in f if line.startswith("model name")), model
            )
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    core, asked = (
        blas_core(),
        os.environ.get("OPENBLAS_CORETYPE"),
    )  # if asked for, they are not those that NumPy's users have
    kernels = (f", OpenBLAS's kernels for {core}" if core else "") + (
        f" (OPENBLAS_CORETYPE={asked} is set)" if asked else ""
    )
    return f"{model}, {cores} cores{kernels}"


def peak(row: dict[str, Any]) -> str:
    """Our peak memory above the inputs and PyTorch's, in MB."""
    return " / ".join(f"{row['libraries'][n]['peak_bytes'] / 2**20:.0f}" for n in ("ours", "torch"))


def rate(row: dict[str, Any]) -> str:
    """Tokens a second, ours and PyTorch's."""
    return " / ".join(
        f"{row['tokens'] / row['libraries'][n]['seconds']:,.0f}" for n in ("ours", "torch")
    )


def line(row: dict[str, Any], threads: int) -> str:
    """One workload: our time, and our time over each rival's."""
    ours = row["libraries"].get("ours", {})
    if "seconds" not in ours:
        return f"{row['name']:32s} {threads} thr   not measured: {row['libraries'] or 'no library ran it'}"
    ratios = "  ".join(
        f"{LABELS[n]} {r['ratio']:.2f}"
        for n, r in row["libraries"].items()
        if n != "ours" and "ratio" in r
    )
    goal = f"   goal {row['goal']}, must {row['must']}" if row["must"] else ""
    memory = f"   peak {peak(row)} MB" if "peak_bytes" in ours else ""
    tokens = f"   {rate(row)} tokens/s" if row["tokens"] else ""
    return f"{row['name']:32s} {threads} thr {ours['seconds'] * 1e3:10.3f} ms   ours / {ratios}{goal}{memory}{tokens}"


def markdown(result: dict[str, Any]) -> str:
    """The table for the documentation."""
    names = [
        n
        for n in LABELS
        if any(n in row["libraries"] for rows in result["threads"].values() for row in rows)
    ]
    head = [
        "workload",
        "threads",
        "ours (ms)",
        *(f"ours / {LABELS[n]}" for n in names),
        "peak MB or tokens/s, ours / PyTorch",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for threads, rows in result["threads"].items():
        for row in rows:
            libraries = row["libraries"]
            if "seconds" not in libraries.get("ours", {}):
                continue
            ratio = lambda n, libraries=libraries: (
                f"{libraries[n]['ratio']:.2f}" if "ratio" in libraries.get(n, {}) else ""
            )
            more = (
                peak(row) + " MB"
                if "peak_bytes" in libraries["ours"]
                else rate(row) + " tokens/s"
                if row["tokens"]
                else ""
            )
            lines.append(
                "| "
                + " | ".join(
                    [
                        row["name"],
                        threads,
                        f"{libraries['ours']['seconds'] * 1e3:.3f}",
                        *map(ratio, names),
                        more,
                    ]
                )
                + " |"
            )
    return "\n".join(lines) + "\n"


def plot(result: dict[str, Any], path: Path) -> None:
    """Our time over PyTorch's, a bar a workload, with the line at 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.26 * sum(map(len, result["threads"].values())) + 1.5))
    labels, values = [], []
    for threads, rows in result["threads"].items():
        for row in rows:
            if "ratio" in row["libraries"].get("torch", {}):
                labels.append(f"{row['name']} ({threads})")
                values.append(row["libraries"]["torch"]["ratio"])
    axes.barh(
        range(len(values)), values, color=["#0072B2" if v <= 1 else "#E69F00" for v in values]
    )
    axes.set_yticks(range(len(values)), labels, fontsize=7)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel(
        f"time / PyTorch eager's, threads in brackets (left is faster), on {result['machine']}",
        fontsize=8,
    )
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def write(result: dict[str, Any], folder: Path) -> None:
    """All three into one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.json").write_text(json.dumps(result, indent=1))
    (folder / "benchmarks.md").write_text(markdown(result))
    plot(result, folder / "benchmarks.svg")
