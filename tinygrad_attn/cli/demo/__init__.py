"""`python -m tinygrad_attn demo`: train a Transformer on real images, and write a report."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from ... import get_num_threads, reuse_memory, set_num_threads
from ...check import gradcheck
from .digits import baselines, load_split
from .training import Run, loss_of, train


def run_demo(out: str = "demo-report", seed: int = 0, epochs: int = 20, runs: int = 3) -> int:
    """Train, check the gradients, and write report.html into the folder `out`.

    Trains on random splits with seeds `seed`, `seed` + 1, ..., and with the default of three runs
    on the ordered split. Returns 0, or 1 if a gradient is wrong. Raises ImportError without
    scikit-learn, matplotlib or tqdm.
    """
    needed = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "tqdm": "tqdm"}
    if missing := [name for module, name in needed.items() if not importlib.util.find_spec(module)]:
        raise ImportError(
            f'the demo needs {", ".join(missing)}: pip install "tinygrad_attn[examples,viz]"'
        )
    if epochs < 1 or runs < 1:
        raise ValueError(f"the demo needs one epoch and one run at least, got {epochs} and {runs}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    reuse_memory()
    threads = get_num_threads()
    set_num_threads(1)  # a second thread gains nothing for matrices this small
    try:
        return _train_and_report(folder, seed, epochs, runs)
    finally:
        set_num_threads(threads)


def _train_and_report(folder: Path, seed: int, epochs: int, runs: int) -> int:
    from .report import accuracy_table, write_report

    print(
        "Digits of 8 x 8 pixels, as 16 patches: 1,437 images to train on, 360 to test on.",
        flush=True,
    )
    seeds = [*range(seed, seed + runs)] + ([None] if runs == 3 else [])
    done: list[Run] = []
    for number in seeds:
        run = train(load_split(number), seed if number is None else number, epochs)
        done.append(run)
        text = f"loss {run.losses[-1]:.3f}, test {run.accuracies[-1]:.2f} %, {run.seconds:.0f} s"
        print(f"  {run.split.name}: {epochs} epochs, {text}", flush=True)
    others = [baselines(run.split) for run in done]
    print(f"\nRight answers on the unseen images, in %:\n{accuracy_table(done, others)}")
    check = check_gradients(done[0])
    worst = max(entry.largest for entry in check.entries)
    agree = f"{len(check.entries)} parameter tensors agree with finite differences to {worst:.1e}"
    print(f"\nGradient check of the trained model: {agree if check else check}", flush=True)
    write_report(folder / "report.html", done, others, check)
    print(f"\nThe report, to open in a browser:\n  {(folder / 'report.html').resolve()}")
    return 0 if check else 1


def check_gradients(run: Run, images: int = 8) -> Any:
    """The report of gradcheck on a trained model's loss, in float64 and in random directions."""
    model = copy.deepcopy(run.model).astype(np.float64).eval()
    some = run.split.test_images[:images].astype(np.float64), run.split.test_labels[:images]
    params = dict(model.named_parameters())
    return gradcheck(
        lambda: loss_of(model, *some), params=params, fast_mode=True, raise_exception=False
    )
