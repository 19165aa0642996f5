"""Checkpoints: everything a training run needs to go on as if it had never been interrupted, in one file.

Weights, the optimiser's state, the schedule's, the random generator's and the number of the step are written together
by one atomic save. A run that is killed and resumed has the same final weights, bit for bit, as one that was not, as
long as the batches are a function of the step or of the generator.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..messages.errors import describe, unmade
from ..random import get_rng_state, set_rng_state
from . import Path, load_with_metadata, save

__all__ = ["Progress", "load_checkpoint", "save_checkpoint"]

NUMBERS = "bool", "int64", "float64"
"""What Python's numbers in an optimiser's state, such as the count of its steps, are saved as; they come back as such."""


class Progress(NamedTuple):
    """How far a run had come: the number of the step, and whatever was saved as `extra`."""

    step: int
    extra: Any


def save_checkpoint(
    path: Path,
    *misplaced: Any,
    model: Any = None,
    optimizer: Any = None,
    schedule: Any = None,
    step: int = 0,
    extra: Any = None,
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Write model, optimiser, schedule, generator and step to one safetensors file, atomically.

    `extra` is anything JSON can hold (losses so far, settings), `beside` are further arrays by
    name, which `ta.load` finds in the file. Raises as `ta.save` does.
    """
    _by_name("save_checkpoint", path, misplaced, model, optimizer, schedule)
    if not hasattr(step, "__index__"):
        raise TypeError(
            f"step= is the number of the step, a whole one, got {describe(step)}; whatever else belongs into extra=."
        )
    arrays = {f"model.{name}": value for name, value in model.state_dict().items()}
    arrays |= {f"generator.{name}": value for name, value in get_rng_state().items()}
    arrays |= beside or {}
    metadata = {"step": str(operator.index(step)), "extra": _json(extra, "extra")}
    if optimizer is not None:
        state = optimizer.state_dict()
        metadata["optimizer"] = _json(
            {"param_groups": state["param_groups"]}, "the optimiser's groups"
        )
        for i, entry in state["state"].items():
            if not isinstance(entry, Mapping):
                raise TypeError(
                    f"the optimiser's state of parameter {i} is {describe(entry)}; make it a dict of arrays and numbers."
                )
        arrays |= {
            f"optimizer.{i}.{name}": np.asarray(value)
            for i, entry in state["state"].items()
            for name, value in entry.items()
        }
    if schedule is not None:
        metadata["schedule"] = _json(schedule.state_dict(), "the schedule's state")
    save(arrays, path, metadata)


def load_checkpoint(
    path: Path, *misplaced: Any, model: Any = None, optimizer: Any = None, schedule: Any = None
) -> Progress:
    """Put model, optimiser, schedule and this thread's generator back; returns (step, extra).

    Raises ValueError if the file is no checkpoint, or was saved without what is to be restored, or if keys or shapes
    differ; and then nothing has changed.
    """
    _by_name("load_checkpoint", path, misplaced, model, optimizer, schedule)
    arrays, metadata = load_with_metadata(path)
    if not {"step", "extra"} <= {*metadata} or not any(
        name.startswith("generator.") for name in arrays
    ):
        raise ValueError(
            f"{os.fsdecode(path)!r} holds weights but no checkpoint; read it with ta.load(path)"
        )
    for name, wanted in (("optimizer", optimizer), ("schedule", schedule)):
        if wanted is not None and name not in metadata:
            raise ValueError(
                f"{os.fsdecode(path)!r} was saved without {name}; load it without {name}= or save it with {name}="
            )
    progress = Progress(int(_parsed("step", metadata, path)), _parsed("extra", metadata, path))
    parts: list[tuple[Any, Any]] = [(model, _under("model.", arrays))]
    if optimizer is not None:
        state: dict[int, dict[str, Any]] = {}
        for name, value in _under("optimizer.", arrays).items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = (
                value.item() if value.shape == () and value.dtype in NUMBERS else value
            )
        parts.append((optimizer, {"state": state, **_parsed("optimizer", metadata, path)}))
    if schedule is not None:
        parts.append((schedule, _parsed("schedule", metadata, path)))
    undo: list[tuple[Any, Any]] = []
    generator = get_rng_state()
    try:
        for part, saved in parts:
            undo.append((part, deepcopy(part.state_dict())))
            part.load_state_dict(saved)
        set_rng_state(_under("generator.", arrays))
    except BaseException:  # also an interrupt: all of it or nothing
        for part, before in reversed(undo):
            part.load_state_dict(before)
        set_rng_state(generator)
        raise
    return progress


def _by_name(
    function: str, path: Any, misplaced: tuple, model: Any, optimizer: Any, schedule: Any
) -> None:
    """Path first, everything else by name: there are too many to remember their order."""
    if misplaced or model is None or isinstance(model, type) or hasattr(path, "state_dict"):
        raise TypeError(
            f"write {function}(path, model=model, optimizer=optimizer): the path first, everything else by name, and always "
            f"the model.{unmade(model)}"
        )
    for name, part in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
        if part is not None and not hasattr(part, "state_dict"):
            raise TypeError(
                f"{function}: {name}= has a state_dict(), but this is {describe(part)}."
            )


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {
        name.removeprefix(prefix): value
        for name, value in arrays.items()
        if name.startswith(prefix)
    }


def _parsed(name: str, metadata: Mapping[str, str], path: Path) -> Any:
    try:
        return json.loads(metadata[name])
    except ValueError as error:
        raise ValueError(
            f"{os.fsdecode(path)!r} is damaged: what it holds as {name} is no JSON ({error}). Nothing was changed"
        ) from error


def _number(value: Any) -> Any:
    """A NumPy number, such as a float32 rate or mean, as Python's; anything else is refused."""
    if isinstance(value, np.generic):
        return (
            float(value) if isinstance(value, np.floating) else value.item()
        )  # for item() leaves a longdouble as it is
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, default=_number)
    except TypeError as error:
        raise TypeError(
            f"{what} must be made of numbers, text, lists and dicts, but {error}"
        ) from error
