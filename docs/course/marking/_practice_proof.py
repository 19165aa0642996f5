"""Proves that practice's tasks are sound: `python docs/course/marking/_practice_proof.py [SEEDS] [LEVELS]`.

For each seed and level, gradcheck passes the package's own rule and fails each of eight usual mistakes.
Of 200 students, no two have the same function. 500 seeds take some minutes a level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from _practice import MIXED, checked_rule
from _practice_grammar import LEVELS, TOPICS, Task, make

import tinygrad_attn as ta

Rule = Callable[..., tuple]
STUDENTS = [*range(100), *range(20_240_000, 20_240_100)]


def rule_of(task: Task, code: str | None = None, at: float = 1.0) -> Rule:
    """Return the package's rule for a task, or for other code, or at other inputs."""
    f = task.function(code=code)

    def backward(g: np.ndarray, y: np.ndarray, *inputs: np.ndarray) -> tuple:
        tensors = [ta.Tensor(at * x, requires_grad=True) for x in inputs]
        found = ta.grad(f(*tensors), tensors, g, allow_unused=True)
        return tuple(np.zeros(x.shape) if d is None else d.numpy() for x, d in zip(inputs, found))

    return backward


def mistakes(task: Task) -> dict[str, Rule]:
    """Return eight usual mistakes as rules."""
    right = rule_of(task)
    turned = lambda d: d[::-1] if d.shape[-1] == 1 else d[..., ::-1]

    def itself(g: np.ndarray, y: np.ndarray, *inputs: np.ndarray) -> tuple:
        return tuple(g if g.shape == x.shape else np.full(x.shape, g.sum()) for x in inputs)

    return {
        "zeros": lambda g, y, *xs: tuple(np.zeros(x.shape) for x in xs),
        "g itself": itself,
        "g is left out": lambda g, y, *xs: right(np.ones_like(g), y, *xs),
        "twice": lambda *args: tuple(2 * d for d in right(*args)),
        "the wrong sign": lambda *args: tuple(-d for d in right(*args)),
        "a use is missing": rule_of(task, task.code_without_a_use),
        "turned round": lambda *args: tuple(map(turned, right(*args))),
        "the slope elsewhere": rule_of(task, at=1.1),
    }


def faults(task: Task) -> list[str]:
    """List what is wrong with a task: nothing, if it is sound."""
    found = [] if passes(task, rule_of(task)) else [f"{task}: the right rule fails"]
    wrong = mistakes(task).items()
    return found + [f"{task}: {name} passes" for name, rule in wrong if passes(task, rule)]


def passes(task: Task, rule: Rule) -> bool:
    """Return whether gradcheck, as the marker calls it, passes a rule.

    Most of its time goes into the explanation of a failure, which is left out.
    """
    unexplained = lambda report, *_: None if report else "wrong"
    with mock.patch("tinygrad_attn.check.gradcheck._explanation", unexplained):
        report, texts = checked_rule(rule, task)
    return bool(report) and not texts


def alike(topic: str, level: int, seeds: Iterable[int]) -> int:
    """Return how many functions of these seeds are the same as that of another seed."""
    codes = [make(topic, level, seed).code for seed in seeds]
    return len(codes) - len(set(codes))


def main(seeds: Any = 500, levels: str = "".join(map(str, LEVELS))) -> int:
    found = []
    for level in map(int, levels):
        for topic in (MIXED, *TOPICS):
            if same := alike(topic, level, STUDENTS):
                found.append(f"{topic} {level}: {same} of {len(STUDENTS)} students have another's")
        for seed in range(int(seeds)):
            topic = (MIXED, *TOPICS)[seed % (len(TOPICS) + 1)]
            found += faults(make(topic, level, seed))
        print(f"level {level}: {seeds} seeds, {len(found)} faults", flush=True)
    print("\n".join(found) or "Every task is sound.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
