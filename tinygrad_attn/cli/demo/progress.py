"""How far the training is: a bar on a terminal, a few plain lines in a log."""

from __future__ import annotations

import sys
from typing import Any

from .training import Run

LINES = 4
"""How many lines a run writes into a log."""


class Progress:
    """Shows one run. A context manager; its `on_step` is what `train` calls after each update."""

    def __init__(self, name: str) -> None:
        self.name, self.bar, self.on_terminal = (
            name,
            None,
            sys.stderr is not None and sys.stderr.isatty(),
        )
        self.epochs_told = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_step(self, step: int, steps: int, run: Run) -> None:
        """`step` of `steps` updates are done; 0 before the first."""
        tested = f"{run.accuracies[-1]:.2f} %" if run.accuracies else "-"
        if self.on_terminal:
            if self.bar is None:
                self.bar = _bar(steps, step, self.name)
            if self.bar is not None:
                self.bar.set_postfix_str(
                    f"loss {run.losses[-1]:.3f}, test {tested}" if run.losses else "", refresh=False
                )
                self.bar.update(step - self.bar.n)
                return
        done, epochs = len(run.accuracies), run.settings.epochs
        if done > self.epochs_told and (done % max(1, epochs // LINES) == 0 or done == epochs):
            self.epochs_told = done
            recent = run.losses[-20:]
            loss = sum(recent) / len(recent)
            print(
                f"  {self.name}: epoch {done:2d} of {epochs}, loss {loss:.3f}, test {tested}, "
                f"{run.seconds:.0f} s",
                flush=True,
            )


def _bar(steps: int, done: int, name: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(
        total=steps, initial=done, desc=f"  {name}", unit="step", dynamic_ncols=True, leave=True
    )
