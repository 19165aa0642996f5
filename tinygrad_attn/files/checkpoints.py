"""Checkpoints: all that a training run needs to go on as if it had never been interrupted.

Weights, the optimiser's state, the schedule's, the random generator's and the number of the step
are written together, by one atomic save to one file. A run that is killed and resumed has the same
final weights, bit for bit, as one that was not, as long as the batches are a function of the step
or of the generator.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import describe
from ..random import get_rng_state, set_rng_state
from . import Path, load_with_metadata, save

__all__ = ["Progress", "load_checkpoint", "save_checkpoint"]

NUMBERS = "bool", "int64", "float64"
"""The dtypes in which Python's numbers in an optimiser's state are saved.

Such a number, the count of the steps for instance, comes back as Python's.
"""


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
            f"step= is the number of the step, a whole one, got {describe(step)}; "
            "whatever else belongs into extra=."
        )
    arrays = {f"model.{name}": value for name, value in model.state_dict().items()}
    arrays |= {f"generator.{name}": value for name, value in get_rng_state().items()}
    arrays |= beside or {}
    metadata = {"step": str(operator.index(step)), "extra": _json(extra, "extra")}
    if optimizer is not None:
        state = optimizer.state_dict()
        groups = {"param_groups": state["param_groups"]}
        metadata["optimizer"] = _json(groups, "the optimiser's groups")
        for i, entry in state["state"].items():
            if not isinstance(entry, Mapping):
                raise TypeError(
                    f"the optimiser's state of parameter {i} is {describe(entry)}; "
                    "make it a dict of arrays and numbers."
                )
            arrays |= {f"optimizer.{i}.{name}": np.asarray(x) for name, x in entry.items()}
    if schedule is not None:
        metadata["schedule"] = _json(schedule.state_dict(), "the schedule's state")
    save(arrays, path, metadata)


def load_checkpoint(
    path: Path, *misplaced: Any, model: Any = None, optimizer: Any = None, schedule: Any = None
) -> Progress:
    """Put model, optimiser, schedule and this thread's generator back; returns (step, extra).

    Raises ValueError if the file is no checkpoint or a damaged one, or was saved without what is to
    be restored, or if keys or shapes differ; and then nothing has changed.
    """
    _by_name("load_checkpoint", path, misplaced, model, optimizer, schedule)
    arrays, metadata = load_with_metadata(path)
    name = os.fsdecode(path)
    generator = _under("generator.", arrays)
    if not {"step", "extra"} <= {*metadata} or not generator:
        raise ValueError(f"{name!r} holds weights but no checkpoint; read it with ta.load(path)")
    for part, wanted in (("optimizer", optimizer), ("schedule", schedule)):
        if wanted is not None and part not in metadata:
            raise ValueError(
                f"{name!r} was saved without {part}; load it without {part}= "
                f"or save it with {part}="
            )
    text = partial(_parsed, name, metadata)
    progress = Progress(
        text("step", "a whole number", lambda value: type(value) is int), text("extra")
    )
    parts: list[tuple[Any, Any]] = [(model, _under("model.", arrays))]
    if optimizer is not None:
        groups = text("optimizer", "an object with a list of param_groups", _has_groups)
        parts.append((optimizer, {**groups, "state": _optimizer_state(arrays, name)}))
    if schedule is not None:
        state = text("schedule", "an object", lambda value: isinstance(value, dict))
        parts.append((schedule, state))
    _restore(parts, generator)
    return progress


def _restore(parts: list[tuple[Any, Any]], generator: Mapping[str, Any]) -> None:
    """Give each part its state, and the thread's generator its own: all of them, or none."""
    undo: list[tuple[Any, Any]] = []
    before = get_rng_state()
    try:
        for part, saved in parts:
            undo.append((part, deepcopy(part.state_dict())))
            part.load_state_dict(saved)
        set_rng_state(generator)
    except BaseException:  # also an interrupt
        for part, old in reversed(undo):
            part.load_state_dict(old)
        set_rng_state(before)
        raise


def _by_name(
    function: str, path: Any, misplaced: tuple, model: Any, optimizer: Any, schedule: Any
) -> None:
    """Path first, everything else by name: there are too many to remember their order."""
    if misplaced or model is None or isinstance(model, type) or hasattr(path, "state_dict"):
        raise TypeError(
            f"write {function}(path, model=model, optimizer=optimizer): the path first, "
            f"everything else by name, and always the model."
        )
    for name, part in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
        if part is not None and (isinstance(part, type) or not hasattr(part, "state_dict")):
            raise TypeError(
                f"{function}: {name}= has a state_dict(), but this is {describe(part)}."
            )


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in arrays.items()
        if name.startswith(prefix)
    }


def _optimizer_state(arrays: Mapping[str, NDArray[Any]], path: str) -> dict[int, dict[str, Any]]:
    """What the optimiser keeps of each parameter, by the parameter's number."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in _under("optimizer.", arrays).items():
        index, dot, key = name.partition(".")
        if not (dot and index.isdecimal() and index.isascii()):
            raise ValueError(
                f"{path!r} is damaged: an array of the optimiser's state is called "
                f"'optimizer.NUMBER.NAME', and one here 'optimizer.{name}'. Nothing was changed"
            )
        is_number = value.shape == () and value.dtype in NUMBERS
        state.setdefault(int(index), {})[key] = value.item() if is_number else value
    return state


def _parsed(
    path: str,
    metadata: Mapping[str, str],
    name: str,
    kind: str = "",
    fits: Callable[[Any], bool] = lambda value: True,
) -> Any:
    """What is saved as text under this name: JSON, but the file may be anybody's. ValueError where
    it is none, or of another kind.
    """
    try:
        value = json.loads(metadata[name])
        wrong = "" if fits(value) else f"is {describe(value)}, and should be {kind}"
    except (ValueError, RecursionError) as error:
        wrong = f"is no JSON ({error})"
    if wrong:
        raise ValueError(
            f"{path!r} is damaged: what it holds as {name} {wrong}. Nothing was changed"
        )
    return value


def _has_groups(value: Any) -> bool:
    groups = value.get("param_groups") if isinstance(value, dict) else None
    return isinstance(groups, list) and all(isinstance(group, dict) for group in groups)


def _number(value: Any) -> Any:
    """A NumPy number, such as a float32 rate or mean, as Python's; anything else is refused."""
    if isinstance(value, np.floating):
        return float(value)  # item() leaves a longdouble as it is
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, default=_number)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{what} must be made of numbers, text, lists and dicts, but {error}"
        ) from error
