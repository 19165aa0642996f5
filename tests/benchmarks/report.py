"""The table as text, JSON, Markdown and a plot.

`python -m tests.benchmarks.report` prints the table of docs/benchmarks.md, made from the files in
results/.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
"""What was measured, a file a machine, each as `write` has written it."""

LABELS = {
    "torch": "PyTorch",
    "hips": "HIPS autograd",
    "mygrad": "MyGrad",
    "micrograd": "micrograd",
    "jax": "JAX jit",
    "compiled": "ta.compile",
}


COLUMNS = {
    "intel-xeon-avx512": "Intel Xeon, AVX-512",
    "amd-zen3-avx2": "AMD Zen 3, AVX2",
    "amd-zen4-avx512": "AMD Zen 4, AVX-512",
    "amd-zen5-avx512": "AMD Zen 5, AVX-512",
}
SHOWN = {
    "encoder tiny": "encoder layer tiny (32 wide, 8 x 16 tokens)",
    "encoder small": "encoder layer small (128 wide, 16 x 64)",
    "encoder base": "encoder layer base (384 wide, 8 x 128)",
    "encoder large": "encoder layer large (768 wide, 4 x 256)",
    "decoder base": "decoder layer base",
    "training step base": "training step of base with AdamW",
    "attention T 1024": "attention, 1,024 tokens",
    "attention T 4096 causal": "attention, 4,096 tokens, causal",
    "MLP 64 x 256": "MLP, 64 x 256",
    "chain of 1,000 ops on (8,)": "chain of 1,000 ops on eight numbers",
    "AdamW base": "AdamW, 1.8 million parameters",
    "exact GELU": "exact GELU, 1,024 x 1,536",
    "layer norm": "layer norm, 1,024 x 768",
    "softmax": "softmax, 2,048 x 512",
    "generation, 128 tokens": "generation with a cache",
}


def machine() -> str:
    """The processor, and how many cores we have of it."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            model = next(
                (line.split(":")[1].strip() for line in f if line.startswith("model name")), model
            )
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"


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
        reason = row["libraries"] or "no library ran it"
        return f"{row['name']:32s} {threads} thr   not measured: {reason}"
    ratios = "  ".join(
        f"{LABELS[n]} {r['ratio']:.2f}"
        for n, r in row["libraries"].items()
        if n != "ours" and "ratio" in r
    )
    goal = f"   goal {row['goal']}, must {row['must']}" if row["must"] else ""
    memory = f"   peak {peak(row)} MB" if "peak_bytes" in ours else ""
    tokens = f"   {rate(row)} tokens/s" if row["tokens"] else ""
    time = f"{row['name']:32s} {threads} thr {ours['seconds'] * 1e3:10.3f} ms"
    return f"{time}   ours / {ratios}{goal}{memory}{tokens}"


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
                if row.get("tokens")
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


def summary(folder: Path = RESULTS) -> str:
    """The table of docs/benchmarks.md: ours / PyTorch, one thread and two, a column a machine."""
    measured = {}
    for file in COLUMNS:
        threads = json.loads((folder / f"{file}.json").read_text("utf-8"))["threads"]
        measured[file] = {
            number: {row["name"]: row["libraries"].get("torch", {}).get("ratio") for row in rows}
            for number, rows in threads.items()
        }
    lines = [
        f"| workload | {' | '.join(COLUMNS.values())} |",
        "|" + "---|" * (1 + len(COLUMNS)),
    ]
    for name, label in SHOWN.items():
        cells = [", ".join(f"{measured[file][n][name]:.2f}" for n in "12") for file in COLUMNS]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def dumps(result: dict[str, Any]) -> str:
    """JSON with a workload a line, so that a file can be read and compared line by line."""
    settings = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in result.items() if k != "threads"]
    threads = [
        f"  {json.dumps(number)}: [\n"
        + ",\n".join(f"   {json.dumps(row)}" for row in rows)
        + "\n  ]"
        for number, rows in result["threads"].items()
    ]
    both = [*settings, ' "threads": {\n' + ",\n".join(threads) + "\n }"]
    return "{\n" + ",\n".join(both) + "\n}\n"


def write(result: dict[str, Any], folder: Path) -> None:
    """JSON, Markdown and the plot into one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.json").write_text(dumps(result))
    (folder / "benchmarks.md").write_text(markdown(result))
    plot(result, folder / "benchmarks.svg")


if __name__ == "__main__":
    print(summary(), end="")
