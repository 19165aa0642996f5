"""Checkpoints: a run that is killed and resumed ends with the same weights, bit for bit.

For identical weights, the batches must depend only on the step number and the random generator.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..random import get_rng_state, set_rng_state
from . import Path, load_with_metadata, save


class Progress(NamedTuple):
    """The progress of a run: its step number, and the value saved as `extra`."""

    step: int
    extra: Any


def save_checkpoint(
    path: Path,
    *,
    model: Any,
    optimizer: Any = None,
    schedule: Any = None,
    step: int = 0,
    extra: Any = None,
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Write model, optimiser, schedule, generator and step to one safetensors file, atomically.

    `extra` is any JSON value, such as past losses or settings. `beside` maps names to additional
    arrays, which `ta.load` also returns. Raises the same errors as `ta.save`.
    """
    arrays = {f"model.{name}": value for name, value in model.state_dict().items()}
    arrays |= {f"generator.{name}": value for name, value in get_rng_state().items()}
    arrays.update(beside or {})
    metadata = {"step": _json(step), "extra": _json(extra)}
    if optimizer is not None:
        state = optimizer.state_dict()
        metadata["optimizer"] = _json({"param_groups": state["param_groups"]})
        for i, entry in state["state"].items():
            arrays |= {f"optimizer.{i}.{name}": np.asarray(x) for name, x in entry.items()}
    if schedule is not None:
        metadata["schedule"] = _json(schedule.state_dict())
    save(arrays, path, metadata)


def load_checkpoint(
    path: Path, *, model: Any, optimizer: Any = None, schedule: Any = None
) -> Progress:
    """Restore model, optimiser, schedule and generator; return (step, extra).

    Raises ValueError, and changes nothing, if the file is damaged, is not a checkpoint or does not
    match the arguments.
    """
    arrays, metadata = load_with_metadata(path)
    if "step" not in metadata:
        raise ValueError(
            f"{path!r} contains weights but no checkpoint; read the file with ta.load(path)."
        )
    for name, wanted in (("optimizer", optimizer), ("schedule", schedule)):
        if wanted is not None and name not in metadata:
            raise ValueError(f"{path!r} was saved without {name}; omit {name}= when you load it.")
    try:
        saved = {name: json.loads(text) for name, text in metadata.items()}
        progress = Progress(int(saved["step"]), saved["extra"])
        parts: list[tuple[Any, Any]] = [(model, under("model.", arrays))]
        if optimizer is not None:
            parts.append((optimizer, {**saved["optimizer"], "state": _optimizer_state(arrays)}))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path!r} is damaged ({error!r}). Nothing was changed.") from error
    if schedule is not None:
        parts.append((schedule, saved["schedule"]))
    changes = [(x.load_state_dict, copy.deepcopy(x.state_dict()), new) for x, new in parts]
    changes.append((set_rng_state, get_rng_state(), under("generator.", arrays)))
    try:
        for change, _, new in changes:
            change(new)
    except BaseException:  # including interrupts
        for change, old, _ in reversed(changes):
            change(old)
        raise
    return progress


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names start with the prefix, with the prefix removed."""
    return {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)}


def _optimizer_state(arrays: Mapping[str, NDArray[Any]]) -> dict[int, dict[str, Any]]:
    """Return the optimiser state of each parameter, keyed by the number of the parameter."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in under("optimizer.", arrays).items():
        index, key = name.split(".", 1)
        # A Python number, such as the step count, was saved as a 64-bit array.
        number = value.shape == () and value.dtype in ("bool", "int64", "float64")
        state.setdefault(int(index), {})[key] = value.item() if number else value
    return state


def _json(value: Any) -> str:
    """Return the value as JSON, with NumPy numbers as plain numbers."""
    try:
        return json.dumps(value, default=lambda x: x.item())
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            "a checkpoint's step, extra and settings may contain only numbers, strings, lists and "
            f"dicts; {error}."
        ) from error
