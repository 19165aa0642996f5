"""Tensors in files: safetensors, written atomically, read without trust.

A safetensors file is a length, a JSON header and raw numbers (huggingface.co/docs/safetensors), so reading one can
never run code. Nothing here unpickles anything. A save writes a temporary file in the same folder, flushes it to disk
and renames it over the old one; a kill at any moment therefore leaves the old file or the new one, whole. A killed save
may leave its temporary file (`.saving-*.part`) behind; no later save or load looks at it, and it may be deleted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..messages.errors import describe
from ..messages.signatures import own_names
from ..tensor import Tensor

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


# ---- saving ---------------------------------------------------------------------------------------------------------


def save(mapping: Mapping[str, Any], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays to one safetensors file, atomically: `ta.save(model.state_dict(), "model.safetensors")`.

    The values are Tensors, ndarrays or torch tensors, of any shape, of bool, integer or real dtype; `metadata` is text.
    Raises TypeError or ValueError for what a file cannot hold, OSError if the disk or the folder refuses; the old file
    is then still there, unchanged.
    """
    library = _safetensors()
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"save takes a mapping of names to arrays, got {type(mapping).__name__}; "
            "write ta.save(model.state_dict(), path) for a module, ta.save({'name': x}, path) for one tensor"
        )
    if not isinstance(metadata, Mapping | None):
        raise TypeError(
            f"metadata is a dict of text to text, got {type(metadata).__name__}; write {{'title': text}}"
        )
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(
                f"metadata is text to text, got {key!r}: {text!r}; write str(...) or json.dumps(...)"
            )
    arrays = {_name(name): _array(name, value) for name, value in mapping.items()}
    _write_atomically(library.numpy.save(arrays, dict(metadata) if metadata else None), _text(path))


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
    return name


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
        hint = (
            "join nested names with a dot"
            if isinstance(value, Mapping)
            else "write np.array(...) around it"
        )
        raise TypeError(f"{name!r} is a {type(value).__name__}, not a Tensor or an array; {hint}")
    known, native = [np.dtype(d) for d in DTYPES.values()], array.dtype.newbyteorder("=")
    if native not in known:  # equal are also two names of one kind of number, as longlong and int64
        raise TypeError(
            f"{name!r} has dtype {array.dtype}, which the file cannot hold; convert it to one of "
            + ", ".join(d.name for d in known)
        )
    return np.array(array, dtype=native, order="C", copy=None)


def _write_atomically(data: bytes, path: str) -> None:
    target = os.path.realpath(
        path
    )  # through a link to the file it stands for, so that the link survives
    folder = os.path.dirname(target)
    mode = _mode_of_old_file(target, path)
    part = os.path.join(folder, f".saving-{secrets.token_hex(8)}.part")
    replacing = False
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(part, mode)
        replacing = mode is not None
        os.replace(part, target)
    except BaseException as error:
        _remove(part)
        if isinstance(error, OSError):
            raise OSError(
                error.errno,
                f"could not save {path!r}: {_reason(error, folder, replacing)}; "
                "an older file of this name is unchanged",
            ) from error
        raise
    _flush_folder(folder)


def _mode_of_old_file(target: str, path: str) -> int | None:
    try:
        status = os.stat(target)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(
            errno.EISDIR,
            f"{path!r} is a folder; name a file in it, as {os.path.join(path, 'model.safetensors')}",
        )
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path!r} is a device or a pipe, and a save replaces what it names; choose an ordinary file"
        )
    return stat.S_IMODE(status.st_mode)


def _reason(error: OSError, folder: str, replacing: bool) -> str:
    if not os.path.isdir(folder):
        return f"there is no folder {folder!r}; make it with os.makedirs"
    if replacing and isinstance(
        error, PermissionError
    ):  # the folder took the new file; Windows keeps an old one that is in use
        return "no permission to replace the old file, which is write-protected or, on Windows, open in some program"
    hints = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "the file is larger than the system allows",
        errno.EACCES: f"no permission to write in {folder!r}",
        errno.EPERM: f"no permission to write in {folder!r}",
        errno.EROFS: f"{folder!r} is read-only",
    }
    return hints.get(error.errno or 0, error.strerror or str(error))


def _remove(part: str) -> None:
    with contextlib.suppress(
        OSError
    ):  # it may have the mode of a write-protected old file, and Windows deletes none such
        os.chmod(part, stat.S_IREAD | stat.S_IWRITE)
    with contextlib.suppress(
        OSError
    ):  # it was never made, or already renamed; the first error is the one to report
        os.unlink(part)


def _flush_folder(folder: str) -> None:
    """Put the rename itself on the disk, where the system lets a folder be opened (Windows does not)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(
            OSError
        ):  # some network disks refuse; then only surviving a power cut is not promised
            os.fsync(descriptor)
    finally:  # also after Ctrl-C, which may wait here for a slow disk
        os.close(descriptor)


# ---- loading --------------------------------------------------------------------------------------------------------


@own_names
def load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file into {name: ndarray}: `model.load_state_dict(ta.load("model.safetensors"))`.

    bfloat16, which NumPy lacks, becomes float32 without loss. Raises ValueError for a file that is cut short, damaged
    or of another format, OSError if it cannot be read. The arrays are the caller's own, writable.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the text of one and the same file, even if another process replaces it meanwhile.

    Raises as `load` does.
    """
    library = _safetensors()
    path = _text(path)
    _check_header(path)
    with open(path, "rb") as file:
        data = file.read()
    try:
        entries = library.deserialize(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get(
            "__metadata__", {}
        )
    except (
        Exception
    ) as error:  # the library's own error class, and whatever a hostile header provokes in it
        raise _unreadable(path, str(error)) from error
    arrays = {name: _decoded(path, name, entry) for name, entry in entries}
    return dict(sorted(arrays.items())), metadata


def load_metadata(path: Path) -> dict[str, str]:
    """The text that was saved beside the arrays; empty if there was none. Raises as `load` does."""
    library = _safetensors()
    path = _text(path)
    _check_header(path)
    try:
        with library.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except Exception as error:
        raise _unreadable(path, str(error)) from error


def _check_header(path: str) -> None:
    """Look, before anything is read into memory, whether this is a file and as long as its first 8 bytes say."""
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
        raise _unreadable(
            path, f"it has {size} bytes, and its first 8 announce a header of {length}"
        )


def _decoded(path: str, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    kind, shape, data = entry["dtype"], entry["shape"], entry["data"]
    if kind == "BF16":
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(shape)
    if (
        kind == "BOOL"
    ):  # a byte other than 0 and 1 would make an array that is neither true nor false
        return (np.frombuffer(data, dtype=np.uint8) != 0).reshape(shape)
    if kind not in DTYPES:
        raise ValueError(
            f"{path!r} holds {name!r} as {kind}, which NumPy cannot express; convert the file with torch"
        )
    stored = np.dtype(DTYPES[kind]).newbyteorder("<")
    memory = (
        data if isinstance(data, bytearray) else bytearray(data)
    )  # bytes would make a read-only array
    return np.frombuffer(memory, dtype=stored).astype(DTYPES[kind], copy=False).reshape(shape)


def _unreadable(path: str, reason: str) -> ValueError:
    """Say what the file is, if it can be recognised, and what to do. Only the first bytes and a zip's list are read."""
    with open(path, "rb") as file:
        start = file.read(8)
    from_torch = "open it with torch.load in an environment you trust and save it with safetensors.torch.save_file"
    from_numpy = "read it with np.load(path, allow_pickle=False) and save the arrays with ta.save"
    if not start:
        what = "is empty; a copy or download was cut short"
    elif start.startswith(b"PK\x03\x04"):
        is_npz = zipfile.is_zipfile(path) and all(
            n.endswith(".npy") for n in zipfile.ZipFile(path).namelist()
        )
        what = (
            f"is a NumPy .npz archive; {from_numpy}"
            if is_npz
            else f"is a zip archive, probably a PyTorch .pt file, which is a pickle and can run code; {from_torch}"
        )
    elif start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        what = f"is a Python pickle, which can run code when it is read; if it is PyTorch's, {from_torch}"
    elif start.startswith(b"\x93NUMPY"):
        what = f"is a NumPy .npy file; {from_numpy}"
    elif start.startswith(b"\x89HDF"):
        what = "is an HDF5 file; read it with h5py and save the arrays with ta.save"
    elif start.startswith(b"GGUF"):
        what = "is a GGUF file; get the model's .safetensors file instead"
    elif start.startswith(b"version "):
        what = "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
    else:
        what = "is cut short, damaged or no safetensors file; copy or download it again"
    return ValueError(f"{path!r} {what} ({reason})")
