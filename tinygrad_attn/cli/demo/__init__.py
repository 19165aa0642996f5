"""`python -m tinygrad_attn demo`: train a Transformer encoder on real images, and write a report.

The report has the check of its gradients and pictures of what it learned. In reading order:
digits.py (the data), training.py (the model and the loop), progress.py, figures.py, report.py; and
here all of it together.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from ... import get_num_threads, reuse_memory, set_num_threads
from ...check import gradcheck
from .digits import Split, baselines, load_split
from .progress import Progress
from .training import Run, Settings, loss_of, train

BUDGET = 85.0
"""Seconds in which everything should be done; further seeds are left out where they are up."""
REPORT_SECONDS = 8.0
SEEDS = 3
LARGEST_SEED = 2**32 - 1000
"""scikit-learn's splits take seeds below 2^32, and a run has the ones after its first too."""

NEEDED = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "safetensors": "safetensors"}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle, with what to tell the user."""


def require_extras() -> None:
    """Raise one ImportError that names everything missing, before any work is done."""
    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f'the demo needs {", ".join(missing)}: pip install "tinygrad_attn[examples,viz]"'
        )


def check_gradients(run: Run, images: int = 8) -> Any:
    """The report of gradcheck on the loss of a trained model.

    It checks a float64 copy, by all parameters, in random directions.
    """
    model = copy.deepcopy(run.model).astype(np.float64).eval()
    some = run.split.test_images[:images].astype(np.float64), run.split.test_labels[:images]
    return gradcheck(
        lambda: loss_of(model, *some, run.settings.label_smoothing),
        params=dict(model.named_parameters()),
        fast_mode=True,
        raise_exception=False,
    )


def run_demo(
    out: str | Path = "demo-report",
    *,
    seed: int = 0,
    epochs: int = 20,
    resume: bool = False,
    runs: int | None = None,
) -> int:
    """Everything, told in plain lines; returns 0, or 1 if a gradient is wrong.

    Trains on random splits with seeds `seed`, `seed` + 1, ...: `runs` of them, or up to three while
    the time lasts, and then on the ordered split. Checkpoints and report.html go into the folder
    `out`. Raises ImportError without scikit-learn, matplotlib or safetensors, Interrupted on
    Ctrl-C.
    """
    require_extras()
    _check_numbers(seed, epochs, runs)
    checkpoints = _folder_for_checkpoints(out)
    if not resume:
        for old in _saved(checkpoints):
            old.unlink()
    elif not _saved(checkpoints):
        print(f"Nothing to resume in {checkpoints}; beginning afresh.")
    reuse_memory()
    threads = get_num_threads()
    # Matrices this small gain nothing from a second thread, and lose much where cores are busy.
    set_num_threads(1)
    try:
        return _everything(Path(out), seed, epochs, resume, runs)
    except KeyboardInterrupt:
        newest = max(_saved(checkpoints), key=os.path.getmtime, default=None)
        if newest is None:
            raise Interrupted("Stopped. No epoch was finished yet, so nothing is kept.") from None
        # Windows' command line takes '...' for a part of the name.
        quote = shlex.quote if os.name != "nt" else lambda word: subprocess.list2cmdline([word])
        options = f"--seed {seed} --epochs {epochs} --out {quote(str(out))}"
        options += f" --runs {runs}" if runs else ""
        raise Interrupted(
            f"Stopped. The last finished epoch is kept in {newest}.\n"
            f"To go on from there: python -m tinygrad_attn demo --resume {options}"
        ) from None
    finally:
        set_num_threads(threads)


def _check_numbers(seed: int, epochs: int, runs: int | None) -> None:
    if epochs < 1 or runs is not None and runs < 1:
        raise ValueError(
            f"the demo needs at least one epoch and one run, got epochs {epochs}"
            + (f", runs {runs}" if runs is not None else "")
        )
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}")


def _folder_for_checkpoints(out: str | Path) -> Path:
    if not str(out):
        raise ValueError(
            "the name of the folder for the report is empty; write --out DIR, or --out . for the "
            "folder you are in"
        )
    checkpoints = Path(out) / "checkpoints"
    try:
        os.makedirs(checkpoints, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the demo cannot write into {str(out)!r} ({error.strerror}); "
            "name another folder with --out"
        ) from error
    return checkpoints


def _saved(folder: Path) -> list[Path]:
    """The checkpoints of this program in a folder, and none of the user's own files."""
    return [*folder.glob("seed-*.safetensors"), *folder.glob("ordered.safetensors")]


def _everything(folder: Path, seed: int, epochs: int, resume: bool, runs: int | None) -> int:
    from .report import write_report

    begun = time.perf_counter()
    done: list[Run] = []
    others: list[dict[str, float]] = []

    def train_on(split: Split, number: int) -> Run:
        settings = Settings(seed=number, split=split.name, epochs=epochs)
        checkpoint = folder / "checkpoints" / f"{split.name.replace(' ', '-')}.safetensors"
        with Progress(split.name) as progress:
            return train(settings, split, checkpoint, resume=resume, on_step=progress.on_step)

    def time_for_another() -> bool:
        return time.perf_counter() - begun + done[-1].seconds + REPORT_SECONDS < BUDGET

    print(
        "Digits of 8 x 8 pixels, 1,437 to learn from and 360 to be judged by; an image is 16 "
        "tokens, its patches of 2 x 2.",
        flush=True,
    )
    for k in range(SEEDS if runs is None else runs):
        if k and runs is None and not time_for_another():
            print(
                f"  (no time for seed {seed + k} within {BUDGET:.0f} s; "
                f"--runs {SEEDS} trains it all the same)"
            )
            break
        split = load_split(seed + k)
        others.append(baselines(split))
        done.append(train_on(split, seed + k))
    ordered = None
    if runs is None and time_for_another():
        split = load_split(None)
        ordered = train_on(split, seed), baselines(split)

    _tell_accuracy(done, others, ordered)
    check = check_gradients(done[0])
    print(f"\n{_verdict(check)}", flush=True)
    page = folder / "report.html"
    write_report(page, done, others, check, ordered=ordered)
    seconds = time.perf_counter() - begun
    print(f"\nDone in {seconds:.0f} s. The report, to open in a browser:\n  {page.resolve()}")
    return 0 if check else 1


def _tell_accuracy(
    done: list[Run],
    others: list[dict[str, float]],
    ordered: tuple[Run, dict[str, float]] | None,
) -> None:
    """The right answers of the model and of the other methods, in lines."""
    from .report import accuracy_table

    print(f"\nRight answers on 360 unseen images, random stratified split, {_seeds(done)}:")
    for name, values in accuracy_table(done, others):
        each = "  ".join(f"{value:6.2f}" for value in values) + (
            f"   mean {np.mean(values):6.2f} %" if len(values) > 1 else " %"
        )
        print(f"  {name:<28}{each}")
    if ordered:
        listed = ", ".join(f"{name} {value:.2f} %" for name, value in ordered[1].items())
        print(
            "Ordered split (the last 360 images, by other writers): Transformer "
            f"{ordered[0].accuracy:.2f} %, {listed}"
        )


def _verdict(check: Any) -> str:
    if not check:
        return str(check)
    worst = max(e.largest for e in check.entries)
    numbers = sum(e.analytic.size for e in check.entries)
    return (
        f"Gradient check of the trained model's loss: all {len(check.entries)} parameter tensors "
        f"({numbers:,} numbers) agree with "
        f"finite differences, largest error {worst:.1e}"
    )


def _seeds(runs: list[Run]) -> str:
    numbers = [run.settings.seed for run in runs]
    return (
        f"seeds {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"one seed ({numbers[0]})"
    )
