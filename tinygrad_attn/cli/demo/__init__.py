"""`python -m tinygrad_attn demo`: train a Transformer on images of digits."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ... import reuse_memory, set_num_threads
from ...check import gradcheck
from .digits import baselines, load_split
from .training import Run, loss_of, train


def run_demo(out: str, seed: int, epochs: int, runs: int) -> int:
    """Train on `runs` random splits, check the gradients, and write `out`/report.html.

    With the default of three runs, also trains on the ordered split. Returns 1 if a gradient is
    wrong, else 0.
    """
    if not all(map(find_spec, ("sklearn", "matplotlib", "tqdm"))):
        raise ValueError(
            'the demo needs additional libraries: pip install "tinygrad_attn[examples,viz]"'
        )
    from .report import accuracy_table, write_report

    reuse_memory()
    set_num_threads(1)  # a second thread gains nothing with matrices this small
    print("Digits of 8 x 8 pixels, as 16 patches: 1,437 images to train on, 360 to test on.")
    done: list[Run] = []
    for number in [*range(seed, seed + runs)] + [None] * (runs == 3):
        run = train(load_split(number), seed if number is None else number, epochs)
        text = f"loss {run.losses[-1]:.3f}, test {run.accuracies[-1]:.2f} %, {run.seconds:.0f} s"
        print(f"  {run.split.name}: {epochs} epochs, {text}", flush=True)
        done.append(run)
    others = [baselines(run.split) for run in done]
    print(f"\nRight answers on the unseen images, in %:\n{accuracy_table(done, others)}")
    check = check_gradients(done[0])
    agree = f"{len(check.entries)} parameter tensors agree with finite differences"
    print(f"\nGradient check of the trained model: {agree if check else check}")
    path = Path(out, "report.html").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(path, done, others, check)
    print(f"\nThe report, to open in a browser:\n  {path}")
    return int(not check)


def check_gradients(run: Run, images: int = 8) -> Any:
    """Check the gradients of a trained model's loss, in float64 and along random directions."""
    model = copy.deepcopy(run.model).astype(np.float64).eval()
    some = run.split.test_images[:images].astype(np.float64), run.split.test_labels[:images]
    loss = lambda: loss_of(model, *some)
    return gradcheck(
        loss, params=dict(model.named_parameters()), fast_mode=True, raise_exception=False
    )
