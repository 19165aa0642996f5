"""Tensors in files: safetensors, written atomically, read without trust.

A safetensors file is a length, a JSON header and raw numbers (huggingface.co/docs/safetensors), so
reading one can never run code, and nothing here unpickles anything. `atomic.py` writes a file so
that no kill leaves half of one; `checkpoints.py` keeps a whole training run in a file.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import describe
from ..tensor import Tensor
from .atomic import write_atomically
from .foreign import unreadable

__all__ = ["load", "load_metadata", "load_with_metadata", "save"]

Path = str | bytes | os.PathLike[str]

DTYPES = {
    "BOOL": np.bool_,
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "U64": np.uint64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "ta.save and ta.load need the safetensors library: pip install safetensors"
        ) from error
    return safetensors


# ---- saving --------------------------------------------------------------------------------------
def save(mapping: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays to one safetensors file: `ta.save(model.state_dict(), "m.safetensors")`.

    The values are Tensors, ndarrays or torch tensors, of any shape, of bool, integer or real dtype;
    `metadata` is text. The file is written atomically: a kill leaves the old one or the new one.
    Raises TypeError or ValueError for what a file cannot hold, OSError if the disk or the folder
    refuses or the old file is write-protected; the old file is then still there, unchanged.
    """
    library = _safetensors()
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"save takes a mapping of names to arrays, got {type(mapping).__name__}; write "
            "ta.save(model.state_dict(), path) for a module, "
            "ta.save({'name': x}, path) for one tensor"
        )
    if not isinstance(metadata, Mapping | None):
        raise TypeError(
            f"metadata is a dict of text to text, got {type(metadata).__name__}; "
            "write {'title': text}"
        )
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(
                f"metadata is text to text, got {key!r}: {text!r}; "
                "write str(...) or json.dumps(...)"
            )
        _check_text(key, "the metadata's name")
        _check_text(text, f"the metadata {key!r}")
    arrays = {_name(name): _array(name, value) for name, value in mapping.items()}
    write_atomically(library.numpy.save(arrays, dict(metadata) if metadata else None), _text(path))


def _text(path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TypeError(
            f"a path is text such as 'model.safetensors', or a pathlib.Path; got {describe(path)}"
        ) from None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name in a file is a string, got {name!r} of type {type(name).__name__}")
    if name == "__metadata__":
        raise ValueError("the name '__metadata__' belongs to the format; choose another")
    _check_text(name, "the name")
    return name


def _check_text(text: str, what: str) -> None:
    """Refuse half of a surrogate pair: no Unicode file can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} {ascii(text)} has a lone surrogate, {ascii(text[error.start])}, at place "
            f"{error.start}, which no file of text can hold; leave it out, or decode the bytes it "
            "came from with the right encoding"
        ) from None


def _array(name: str, value: Any) -> NDArray[Any]:
    """A C-contiguous, native-endian array of a dtype the format has."""
    if isinstance(value, Tensor):
        array = value._data
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif hasattr(value, "detach") and hasattr(value, "cpu"):
        try:
            array = value.detach().cpu().numpy()
        except TypeError as error:
            raise TypeError(
                f"{name!r}: NumPy has no {value.dtype}; save {name}.float() instead"
            ) from error
    else:
        nested = isinstance(value, Mapping)
        hint = "join nested names with a dot" if nested else "write np.array(...) around it"
        raise TypeError(f"{name!r} is a {type(value).__name__}, not a Tensor or an array; {hint}")
    known, native = [np.dtype(d) for d in DTYPES.values()], array.dtype.newbyteorder("=")
    if native not in known:  # two names of one kind of number are equal, as longlong and int64
        raise TypeError(
            f"{name!r} has dtype {array.dtype}, which the file cannot hold; convert it to one of "
            + ", ".join(d.name for d in known)
        )
    return np.asarray(array, dtype=native, order="C")


# ---- loading -------------------------------------------------------------------------------------
def load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file: `model.load_state_dict(ta.load("model.safetensors"))`.

    Returns {name: ndarray}; the arrays are the caller's own, writable. bfloat16, which NumPy lacks,
    becomes float32 without loss. Raises ValueError for a file that is cut short, damaged or of
    another format, OSError if it cannot be read.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the text of one file, even if another process replaces it meanwhile.

    Raises as `load` does.
    """
    library = _safetensors()
    path = _text(path)
    _check_header(path)
    with open(path, "rb") as file:
        data = file.read()
    try:
        entries = library.deserialize(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header.get("__metadata__") or {}
    except Exception as error:  # the library's own class, and whatever a hostile header provokes
        raise unreadable(path, str(error)) from error
    arrays = {name: _decoded(path, name, entry) for name, entry in entries}
    return dict(sorted(arrays.items())), metadata


def load_metadata(path: Path) -> dict[str, str]:
    """The text that was saved beside the arrays, empty if there was none. Raises as `load` does."""
    library = _safetensors()
    path = _text(path)
    _check_header(path)
    try:
        with library.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except Exception as error:
        raise unreadable(path, str(error)) from error


def _check_header(path: str) -> None:
    """Before anything is read into memory: is it a file, and as long as its first 8 bytes say?"""
    if os.path.isdir(path):
        raise IsADirectoryError(
            errno.EISDIR, f"{path!r} is a folder, not a file; name the file in it"
        )
    if not os.path.exists(path):
        raise FileNotFoundError(
            errno.ENOENT, f"there is no file {path!r} (looked in {os.getcwd()!r})"
        )
    if not os.path.isfile(path):
        raise ValueError(f"{path!r} is a device or a pipe, not an ordinary file")
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise unreadable(
            path, f"it has {size} bytes, and its first 8 announce a header of {length}"
        )


def _decoded(path: str, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    """One array of the file, in memory of its own."""
    kind, shape, data = entry["dtype"], tuple(entry["shape"]), entry["data"]
    if kind == "BF16":
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        array = wide.view(np.float32)
    elif kind == "BOOL":  # a byte other than 0 and 1 would make an element neither true nor false
        array = np.frombuffer(data, dtype=np.uint8) != 0
    elif kind in DTYPES:
        memory = data if isinstance(data, bytearray) else bytearray(data)  # bytes are read-only
        stored = np.dtype(DTYPES[kind]).newbyteorder("<")
        array = np.frombuffer(memory, dtype=stored).astype(DTYPES[kind], copy=False)
    else:
        raise ValueError(
            f"{path!r} holds {name!r} as {kind}, which NumPy cannot express; "
            "convert the file with torch"
        )
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:  # [2**62, 0] has no elements, but no array either
        raise unreadable(
            path, f"{name!r} has shape {shape}, which no array can have: {error}"
        ) from error
