"""Safetensors files and checkpoints, written atomically.

A safetensors file consists of a length, a JSON header and raw data, so reading a file never runs
code. See huggingface.co/docs/safetensors. A checkpoint is a safetensors file with the state of a
run. A run that is killed and resumed ends with the same weights, bit for bit, if its batches depend
only on the step number and the random generator.
"""

import copy
import json
import os
import pathlib
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import describe
from .random import get_rng_state, set_rng_state
from .tensor import Tensor

Path = str | bytes | os.PathLike[str]
ABANDONED = 86_400.0  # seconds; older temporary files were left by killed processes


def save(mapping: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays to one safetensors file: `ta.save(model.state_dict(), "m.safetensors")`.

    Values are Tensors, ndarrays or torch tensors of boolean, integer or real dtype. `metadata` maps
    strings to strings. The file is written atomically; after an error, the old file is unchanged.
    Raises TypeError for values that cannot be saved, and OSError if writing fails.
    """
    from safetensors.numpy import save as encode

    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"save needs a mapping of names to arrays, got {type(mapping).__name__}; write "
            f"ta.save(model.state_dict(), path) for a module, or ta.save({{'name': x}}, path) for "
            "one tensor."
        )
    if "__metadata__" in mapping:
        raise ValueError("the name '__metadata__' is reserved by the format.")
    arrays = {name: _array(name, value) for name, value in mapping.items()}
    write_atomically(encode(arrays, dict(metadata) if metadata else None), path)


def _array(name, value):
    """Return the value as a C-contiguous, native-endian array."""
    if isinstance(value, Tensor):
        value = value._array()
    elif hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu().numpy()
    dtype = getattr(value, "dtype", np.dtype(object))
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise TypeError(
            f"{name!r} is {describe(value)}, which a file cannot contain; use an array of "
            "booleans, integers or real numbers, and join nested names with a dot."
        )
    # The library accepts only one of two equal dtypes such as int64 and longlong.
    return np.asarray(value, dtype=f"{dtype.kind}{dtype.itemsize}", order="C")


def load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file: `model.load_state_dict(ta.load("model.safetensors"))`.

    Returns {name: ndarray} with new, writable arrays. bfloat16, which NumPy lacks, is converted to
    float32 without loss. Raises ValueError for a file that is truncated, damaged or in another
    format, and OSError if the file cannot be read.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path):
    """Return the arrays and the metadata of a file. Raises the same errors as `load`."""
    import safetensors

    with open(os.fsdecode(path), "rb") as file:
        data = file.read()
    try:
        entries = sorted(safetensors.deserialize(data), key=lambda pair: pair[0])
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return {name: _decoded(name, **x) for name, x in entries}, header.get("__metadata__") or {}
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        what = "is truncated, damaged or not a safetensors file; copy or download the file again"
        if data.startswith((b"PK", b"\x80")):
            what = (
                "is a zip archive or a pickle, probably PyTorch's, which can run code; if you "
                "trust the file, open it with torch.load and save it with "
                "safetensors.torch.save_file"
            )
        raise ValueError(f"{os.fsdecode(path)!r} {what} ({error}).") from error


def _decoded(name, dtype, shape, data):
    """Return the bytes of one tensor as an array."""
    if dtype == "BF16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(shape)
    if dtype == "BOOL":  # bytes other than 0 and 1 would be invalid booleans
        return (np.frombuffer(data, dtype=np.uint8) != 0).reshape(shape)
    letter, size = dtype[0].lower(), dtype[1:]  # such as F32, I8 or U64
    if letter not in "iuf" or size not in ("8", "16", "32", "64"):
        raise ValueError(f"{name!r} has dtype {dtype}, which NumPy lacks; convert it with torch")
    return np.frombuffer(data, dtype=f"<{letter}{int(size) // 8}").reshape(shape)


def write_atomically(data, path):
    """Create or replace the file `path` with this content.

    A temporary file in the same folder is flushed to disk and renamed over the old file, so that a
    killed process leaves either the old file or the whole new one. Symbolic links and permissions
    are kept. Raises OSError if writing fails, such as PermissionError for a write-protected file.
    After an error, the old file is unchanged.
    """
    target = pathlib.Path(os.path.realpath(os.fsdecode(path)))
    mode = _mode(target)
    for old in target.parent.glob(".saving-*.part"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > ABANDONED:
                old.unlink()
    part = target.with_name(f".saving-{os.urandom(8).hex()}.part")
    try:
        with open(part, "xb") as file:
            if mode is not None:
                os.chmod(part, mode)
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException as error:
        error.add_note(f"could not save {path!r}; an older file with this name is unchanged.")
        with suppress(OSError):
            os.unlink(part)
        raise


def _mode(target):
    """Return the permissions of the old file, or None for a new file."""
    if not target.exists():
        return None
    if not target.is_file():
        raise IsADirectoryError(
            f"'{target}' is not an ordinary file; choose a file name such as x.safetensors."
        )
    mode = stat.S_IMODE(target.stat().st_mode)
    if not mode & 0o222:  # os.replace would overwrite it
        raise PermissionError(f"'{target}' is write-protected; choose another name, or chmod u+w.")
    return mode


class Progress(NamedTuple):
    """The progress of a run: its step number, and the value saved as `extra`."""

    step: int
    extra: Any


def save_checkpoint(
    path: Path,
    *,
    model,
    optimizer=None,
    schedule=None,
    step: int = 0,
    extra=None,
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Write model, optimiser, schedule, generator and step to one safetensors file, atomically.

    `extra` is any JSON value, such as past losses or settings; an array in it becomes a list.
    `beside` maps names to additional arrays, which `ta.load` also returns. Raises the same errors
    as `ta.save`.
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


def load_checkpoint(path: Path, *, model, optimizer=None, schedule=None) -> Progress:
    """Restore model, optimiser, schedule and generator; return (step, extra).

    Raises ValueError, and changes nothing, if the file is damaged, is not a checkpoint or does not
    match the arguments.
    """
    arrays, metadata = load_with_metadata(path)
    if "extra" not in metadata:  # "step" is also in other programs' files
        raise ValueError(f"{path!r} has weights but no checkpoint; read it with ta.load(path).")
    for name, wanted in (("optimizer", optimizer), ("schedule", schedule)):
        if wanted is not None and name not in metadata:
            raise ValueError(f"{path!r} was saved without {name}; omit {name}= when you load it.")
    saved = {name: json.loads(text) for name, text in metadata.items()}
    progress = Progress(saved["step"], saved["extra"])
    parts: list[tuple[Any, Any]] = [(model, under("model.", arrays))]
    if optimizer is not None:
        parts.append((optimizer, {**saved["optimizer"], "state": _optimizer_state(arrays)}))
    if schedule is not None:
        parts.append((schedule, saved["schedule"]))
    with ExitStack() as undo:  # after an error, also an interrupt, everything is as before
        for part, new in parts:
            undo.callback(part.load_state_dict, copy.deepcopy(part.state_dict()))
            part.load_state_dict(new)
        undo.callback(set_rng_state, get_rng_state())
        set_rng_state(under("generator.", arrays))
        undo.pop_all()
    return progress


def under(prefix, arrays):
    """Return the arrays whose names start with the prefix, with the prefix removed."""
    return {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)}


def _optimizer_state(arrays):
    """Return the optimiser state of each parameter, keyed by the number of the parameter."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in under("optimizer.", arrays).items():
        index, key = name.split(".", 1)
        # A Python number, such as the step count, was saved as a 64-bit array.
        number = value.shape == () and value.dtype in ("bool", "int64", "float64")
        state.setdefault(int(index), {})[key] = value.item() if number else value
    return state


def _json(value):
    """Return the value as JSON, converting arrays to lists and NumPy scalars to plain numbers."""
    try:
        return json.dumps(value, default=lambda x: x.tolist())
    except AttributeError as error:
        raise TypeError(
            f"a checkpoint can contain only numbers, strings, lists and dicts; {error}."
        ) from error
