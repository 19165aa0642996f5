"""What a file is that cannot be read as safetensors, and what to do with it."""

from __future__ import annotations

import zipfile

FROM_TORCH = (
    "open it with torch.load in an environment you trust and save it with "
    "safetensors.torch.save_file"
)
FROM_NUMPY = "read it with np.load(path, allow_pickle=False) and save the arrays with ta.save"
PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))

KINDS: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    (
        PICKLES,
        f"is a Python pickle, which can run code when it is read; if it is PyTorch's, {FROM_TORCH}",
    ),
    (b"\x93NUMPY", f"is a NumPy .npy file; {FROM_NUMPY}"),
    (b"\x89HDF", "is an HDF5 file; read it with h5py and save the arrays with ta.save"),
    (b"GGUF", "is a GGUF file; get the model's .safetensors file instead"),
    (b"version ", "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"),
)
"""How files of other kinds begin, and what is said of them."""


def unreadable(path: str, reason: str) -> ValueError:
    """An error that says what the file is, if it can be recognised, and what to do.

    Only its first bytes are read, and of a zip archive the list of its files.
    """
    with open(path, "rb") as file:
        start = file.read(8)
    if not start:
        what = "is empty; a copy or download was cut short"
    elif start.startswith(b"PK\x03\x04"):
        what = _zip_archive(path)
    else:
        other = "is cut short, damaged or no safetensors file; copy or download it again"
        what = next((words for begins, words in KINDS if start.startswith(begins)), other)
    return ValueError(f"{path!r} {what} ({reason})")


def _zip_archive(path: str) -> str:
    names = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else [""]
    if all(name.endswith(".npy") for name in names):
        return f"is a NumPy .npz archive; {FROM_NUMPY}"
    return (
        "is a zip archive, probably a PyTorch .pt file, which is a pickle and can run code; "
        + FROM_TORCH
    )
