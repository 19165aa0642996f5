"""The table as text, JSON and Markdown.

`python -m tests.benchmarks.report` writes the table of docs/benchmarks.md, made from the files in
results/. `python -m tests.benchmarks --docs NAME` measures first.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
"""What was measured, a file a machine, each as `dumps` has written it: a column of the table."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"

LABELS = {
    "torch": "PyTorch",
    "hips": "HIPS autograd",
    "micrograd": "micrograd",
    "jax": "JAX jit",
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
"""The workloads of the table, which `--docs` measures."""


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
    memory = f"   peak {peak(row)} MB" if "peak_bytes" in ours else ""
    tokens = f"   {rate(row)} tokens/s" if row["tokens"] else ""
    time = f"{row['name']:32s} {threads} thr {ours['seconds'] * 1e3:10.3f} ms"
    return f"{time}   ours / {ratios}{memory}{tokens}"


def markdown(result: dict[str, Any]) -> str:
    """The table for the documentation."""
    every = [(threads, row) for threads, rows in result["threads"].items() for row in rows]
    names = [n for n in LABELS if any(n in row["libraries"] for _, row in every)]
    head = ["workload", "threads", "ours (ms)", *(f"ours / {LABELS[n]}" for n in names)]
    table = [[*head, "peak MB or tokens/s, ours / PyTorch"], ["---"] * (len(head) + 1)]
    for threads, row in every:
        libraries = row["libraries"]
        ours = libraries.get("ours", {})
        if "seconds" in ours:
            ratios = [libraries.get(n, {}).get("ratio") for n in names]
            more = f"{peak(row)} MB" if "peak_bytes" in ours else ""
            more = more or f"{rate(row)} tokens/s" if row.get("tokens") else more
            time = f"{ours['seconds'] * 1e3:.3f}"
            cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            table.append([row["name"], threads, time, *cells, more])
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def summary(folder: Path = RESULTS) -> str:
    """The table of docs/benchmarks.md: ours / PyTorch, one thread and two, a column a machine."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    titles = [result["title"] for result in results]
    lines = [f"| workload | {' | '.join(titles)} |", "|" + "---|" * (1 + len(titles))]
    for name, label in SHOWN.items():
        cells = [", ".join(ratios(result, name)) for result in results]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ratios(result: dict[str, Any], name: str) -> list[str]:
    """Ours / PyTorch of a workload, for each number of threads."""
    rows = (row for rows in result["threads"].values() for row in rows if row["name"] == name)
    return [f"{row['libraries']['torch']['ratio']:.2f}" for row in rows]


def write_table() -> None:
    """Replace the table of docs/benchmarks.md."""
    text = PAGE.read_text("utf-8")
    start = text.index("| workload |")
    end = text.index("\n\n", start) + 1
    PAGE.write_text(text[:start] + summary() + text[end:], "utf-8")


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
    """JSON and Markdown into one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.json").write_text(dumps(result))
    (folder / "benchmarks.md").write_text(markdown(result))


if __name__ == "__main__":
    write_table()
