"""Save Tensors to safetensors files, and load them.

A safetensors file consists of a length, a JSON header and raw data. Files are written atomically,
and reading a file never runs code. See huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import describe
from ..tensor import Tensor
from .atomic import write_atomically

__all__ = ["load", "load_metadata", "load_with_metadata", "save"]

Path = str | bytes | os.PathLike[str]


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
    texts = [*mapping, *(metadata or {}).values()]
    if "__metadata__" in mapping or not all(isinstance(text, str) for text in texts):
        raise TypeError(
            "names and metadata in a file must be strings; write str(...) or json.dumps(...). The "
            "name '__metadata__' is reserved by the format."
        )
    arrays = {name: _array(name, value) for name, value in mapping.items()}
    write_atomically(encode(arrays, dict(metadata) if metadata else None), path)


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


def load_with_metadata(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays and the metadata of a file. Raises the same errors as `load`."""
    with _reading(path) as (library, file):
        data = file.read()  # only once, because another process may replace it
        entries = sorted(library.deserialize(data), key=lambda pair: pair[0])
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return {name: _decoded(name, **x) for name, x in entries}, header.get("__metadata__") or {}


def load_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file. Raises the same errors as `load`."""
    with _reading(path) as (library, file), library.safe_open(file.name, framework="np") as opened:
        return dict(opened.metadata() or {})


@contextmanager
def _reading(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file, and turn the library's errors into a ValueError that names it."""
    import safetensors as library

    with open(os.fsdecode(path), "rb") as file:
        try:
            yield library, file
        except (library.SafetensorError, ValueError, OverflowError) as error:
            file.seek(0)
            what = (
                "is truncated, damaged or not a safetensors file; copy or download the file again"
            )
            if file.read(4).startswith((b"PK", b"\x80")):
                what = (
                    "is a zip archive or a pickle, probably PyTorch's, which can run code; if you "
                    "trust the file, open it with torch.load and save it with "
                    "safetensors.torch.save_file"
                )
            raise ValueError(f"{file.name!r} {what} ({error}).") from error


def _decoded(name: str, dtype: str, shape: list[int], data: bytearray) -> NDArray[Any]:
    """Return the bytes of one tensor as an array."""
    if dtype == "BF16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(shape)
    if dtype == "BOOL":  # bytes other than 0 and 1 would be invalid booleans
        return (np.frombuffer(data, dtype=np.uint8) != 0).reshape(shape)
    letter, size = dtype[0].lower(), dtype[1:]  # such as F32, I8 or U64
    if letter not in "iuf" or size not in ("8", "16", "32", "64"):
        raise ValueError(
            f"{name!r} has dtype {dtype}, which NumPy lacks; convert the value with torch"
        )
    return np.frombuffer(data, dtype=f"<{letter}{int(size) // 8}").reshape(shape)
