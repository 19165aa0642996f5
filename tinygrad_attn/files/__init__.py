"""Tensors in files: safetensors, written atomically, read without trust.

A safetensors file is a length, a JSON header and raw numbers (huggingface.co/docs/safetensors).
Reading one never runs code, and nothing here unpickles anything. `atomic.py` writes files so that a
kill leaves the old one or the new one; `checkpoints.py` keeps a whole training run in a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import describe
from ..tensor import Tensor
from .atomic import write_atomically

__all__ = ["load", "load_metadata", "load_with_metadata", "save"]

Path = str | bytes | os.PathLike[str]


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "ta.save and ta.load need the safetensors library: pip install safetensors"
        ) from error
    return safetensors


def save(mapping: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays to one safetensors file: `ta.save(model.state_dict(), "m.safetensors")`.

    The values are Tensors, ndarrays or torch tensors, of bool, integer or real dtype; `metadata` is
    text. The file is written atomically. Raises TypeError or ValueError for what a file cannot
    hold, OSError if the system refuses; then the old file is unchanged.
    """
    library = _safetensors()
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"save takes a mapping of names to arrays, got {type(mapping).__name__}; write "
            "ta.save(model.state_dict(), path) for a module, ta.save({'name': x}, path) for one "
            "tensor."
        )
    if "__metadata__" in mapping:
        raise ValueError("the name '__metadata__' belongs to the format; choose another.")
    if not all(isinstance(text, str) for text in [*mapping, *(metadata or {}).values()]):
        raise TypeError("names and metadata in a file are text; write str(...) or json.dumps(...).")
    arrays = {name: _array(name, value) for name, value in mapping.items()}
    try:
        data = library.numpy.save(arrays, dict(metadata) if metadata else None)
    except (KeyError, library.SafetensorError) as error:
        names = ", ".join(
            f"{name!r} {a.dtype}" for name, a in arrays.items() if a.dtype.kind == "c"
        )
        raise TypeError(f"a safetensors file cannot hold {names or error}.") from error
    write_atomically(data, os.fsdecode(path))


def _array(name: str, value: Any) -> NDArray[Any]:
    """Return the value as a C-contiguous, native-endian array."""
    if isinstance(value, Tensor):
        value = value._array()
    elif hasattr(value, "detach") and hasattr(value, "cpu"):
        try:
            value = value.detach().cpu().numpy()
        except TypeError as error:
            raise TypeError(
                f"{name!r}: NumPy has no {value.dtype}; save {name}.float() instead."
            ) from error
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "biuf":
        raise TypeError(
            f"{name!r} is {describe(value)}, which a file cannot hold; write an array of booleans, "
            "integers or real numbers, and join nested names with a dot."
        )
    # Of two names for one kind of number, such as int64 and longlong, the library knows one.
    kind = np.dtype(f"{value.dtype.kind}{value.dtype.itemsize}")
    return np.asarray(value, dtype=kind, order="C")


def load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file: `model.load_state_dict(ta.load("model.safetensors"))`.

    Returns {name: ndarray}; the arrays are the caller's own, writable. bfloat16, which NumPy lacks,
    becomes float32 without loss. Raises ValueError for a file that is cut short, damaged or of
    another format, OSError if it cannot be read.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays and the text of one file. Raises as `load` does."""
    library = _safetensors()
    name = _existing(path)
    try:
        with open(name, "rb") as file:
            data = file.read()  # once: another process may replace the file
        entries = sorted(library.deserialize(data), key=lambda pair: pair[0])
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        arrays = {key: _decoded(key, entry) for key, entry in entries}
        return arrays, header.get("__metadata__") or {}
    except (library.SafetensorError, ValueError, OverflowError) as error:
        raise _unreadable(name, error) from error


def load_metadata(path: Path) -> dict[str, str]:
    """Return the text that was saved beside the arrays. Raises as `load` does."""
    library = _safetensors()
    name = _existing(path)
    try:
        with library.safe_open(name, framework="np") as file:
            return dict(file.metadata() or {})
    except (library.SafetensorError, ValueError) as error:
        raise _unreadable(name, error) from error


def _existing(path: Path) -> str:
    """Return the path as text; the library's own errors for other things are hard to read."""
    name = os.fsdecode(path)
    if not os.path.isfile(name):
        kind = "is no ordinary file" if os.path.exists(name) else "does not exist"
        error = IsADirectoryError if os.path.isdir(name) else FileNotFoundError
        raise error(f"{name!r} {kind} (looked in {os.getcwd()!r}).")
    return name


def _unreadable(name: str, error: Exception) -> ValueError:
    """Return the error for a file that is no safetensors file."""
    with open(name, "rb") as file:
        start = file.read(4)
    what = "is cut short, damaged or no safetensors file; copy or download it again"
    if start.startswith((b"PK", b"\x80")):
        what = (
            "is a zip archive or a pickle, probably PyTorch's, which can run code; open it with "
            "torch.load where you trust it, and save it with safetensors.torch.save_file"
        )
    return ValueError(f"{name!r} {what} ({error}).")


def _decoded(name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    """Return one array of the file, in memory of its own."""
    kind, data = entry["dtype"], entry["data"]
    if kind == "BF16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(entry["shape"])
    if kind == "BOOL":  # a byte other than 0 and 1 would be neither true nor false
        return (np.frombuffer(data, dtype=np.uint8) != 0).reshape(entry["shape"])
    letter, size = kind[0].lower(), kind[1:]  # of F32, I8, U64 and the like
    if letter not in "iuf" or size not in ("8", "16", "32", "64"):
        raise ValueError(f"{name!r} has dtype {kind}, which NumPy lacks; convert it with torch")
    stored = np.dtype(f"<{letter}{int(size) // 8}")
    return np.frombuffer(bytearray(data), dtype=stored).reshape(entry["shape"])
