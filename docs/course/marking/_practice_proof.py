"""Proves that practice's tasks are sound: `python docs/course/marking/_practice_proof.py [SEEDS]`.

For each seed and level (500 seeds take some minutes), the package's own rule passes and each of eight
usual mistakes fails. Of 200 students, no two have the same function.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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


def held(task: Task) -> str:
    """Return the code with one use of an operand of the last line left out of the gradient."""
    last = task.steps[-1]
    operand = next(iter(last.partials)).partition("_")[0]
    code = re.sub(rf"\b{operand}\b", f"held({operand})", last.code, count=1)
    return task.code.replace(f"y = {last.code}", f"y = {code}")


def mistakes(task: Task) -> dict[str, Rule]:
    """Return eight usual mistakes as rules."""
    right = rule_of(task)
    # Of the last input, whose gradient the last lines make too.
    turned = lambda d: d[::-1] if d.shape[-1] == 1 else d[..., ::-1]

    def itself(g: np.ndarray, y: np.ndarray, *inputs: np.ndarray) -> tuple:
        return tuple(g if g.shape == x.shape else np.full(x.shape, g.sum()) for x in inputs)

    return {
        "zeros": lambda g, y, *xs: tuple(np.zeros(x.shape) for x in xs),
        "g itself": itself,
        "g is left out": lambda g, y, *xs: right(np.ones_like(g), y, *xs),
        "twice": lambda *args: tuple(2 * d for d in right(*args)),
        "the wrong sign": lambda *args: tuple(-d for d in right(*args)),
        "a use is missing": rule_of(task, held(task)),
        "turned round": lambda *args: tuple(map(turned, right(*args))),
        "the slope elsewhere": rule_of(task, at=1.1),
    }


def faults(task: Task) -> list[str]:
    """List what is wrong with a task: nothing, if it is sound."""
    report, texts = checked_rule(rule_of(task), task)
    found = [] if report and not texts else [f"{task}: the right rule fails: {report} {texts}"]
    for name, rule in mistakes(task).items():
        if passes(task, rule):
            found.append(f"{task}: {name} passes")
    return found


def passes(task: Task, rule: Rule) -> bool:
    """Return whether a rule would pass: the marker's first comparison, without a diagnosis."""
    f = task.function()
    g = np.random.default_rng(0).standard_normal(f(*task.inputs).shape)
    for k, mine in enumerate(rule(g, f(*task.inputs), *task.inputs)):
        direction = np.random.default_rng(k).standard_normal(task.inputs[k].shape)
        ends = []
        for sign in (1, -1):
            moved = [*task.inputs]
            moved[k] = moved[k] + sign * 1e-6 * direction
            ends.append((g * f(*moved)).sum())
        slope = (ends[0] - ends[1]) / 2e-6
        if abs((mine * direction).sum() - slope) > 1e-4 * abs(slope) + 1e-6:
            return False
    return True


def alike(topic: str, level: int, seeds: Iterable[int]) -> int:
    """Return how many functions of these seeds are the same as that of another seed."""
    codes = [make(topic, level, seed).code for seed in seeds]
    return len(codes) - len(set(codes))


def main(seeds: Any = 500) -> int:
    found = []
    for level in LEVELS:
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
