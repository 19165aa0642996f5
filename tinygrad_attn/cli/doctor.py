"""`python -m tinygrad_attn doctor`: what is here, what is missing, and does the engine work?

What is missing is named with the command that installs it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

from .. import __version__

LIBRARIES = (
    ("safetensors", "safetensors", "examples", "ta.save and ta.load"),
    ("tqdm", "tqdm", "examples", "progress bars"),
    ("matplotlib", "matplotlib", "viz", "curves and attention maps"),
    ("pygraphviz", "pygraphviz", "viz", "drawing them without the dot program"),
    ("sklearn", "scikit-learn", "examples", "the demo's images"),
    ("torch", "torch", "torch", "comparing with PyTorch"),
)
"""(module, distribution, extra, what it is for)"""

INDENT = " " * 14
"""Under the second column."""

AVX2, AVX512 = {"Haswell", "Zen"}, "SkylakeX"
"""Sets of kernels, as OpenBLAS names them: those without AVX-512, and the first with it."""


def examine() -> int:
    """Print what was found; 0 if everything that is there works, 1 if a check fails."""
    print(f"tinygrad_attn {__version__}")
    print(f"Python        {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"NumPy         {np.__version__}, matrix products by {blas()}")
    for line in threads():
        print(line)
    print("\nOptional libraries")
    for module, name, extra, purpose in LIBRARIES:
        if find_spec(module) is None:
            print(f'  {name:<14}missing     {purpose}: pip install "tinygrad_attn[{extra}]"')
        else:
            print(f"  {name:<14}{version(name):<12}{purpose}")
    print(f"  pictures are drawn by {renderer()}")
    print("\nChecks")
    results = [one(*check) for check in checks()]
    good = all(results)
    print("\nEverything that is here works." if good else "\nSomething is wrong: see above.")
    return 0 if good else 1


def threads() -> list[str]:
    """How many threads the matrix products use, and with which kernels."""
    try:
        from ..fast.threads import (  # lazy: the room may have been deleted
            blas_core,
            blas_found,
            get_num_threads,
        )
    except ModuleNotFoundError:
        return ["threads       unknown: this installation is without tinygrad_attn/fast"]
    lines = [f"threads       {get_num_threads()}"]
    if not blas_found():
        lines += [
            f"{INDENT}The matrix products use as many as they like: "
            "their library cannot be told here.",
            f"{INDENT}For MKL: pip install threadpoolctl. For Apple's Accelerate set "
            "VECLIB_MAXIMUM_THREADS",
            f"{INDENT}before Python starts.",
        ]
    features = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    return lines + kernels(blas_core(), features)


def one(name: str, check: Callable[[], tuple[bool, str]]) -> bool:
    """Run one check; whatever goes wrong in it is its result, not the end of the examination."""
    try:
        good, words = check()
    except Exception as error:
        good, words = False, f"{type(error).__name__}: {error}"
    print(f"  {'ok    ' if good else 'FAILED'}  {name}: {words}")
    return good


def checks() -> list[tuple[str, Callable[[], tuple[bool, str]]]]:
    """What can be tried here, quickest first."""
    found = [("gradients", gradients)]
    if find_spec("torch"):
        found.append(("agreement with PyTorch", torch_agreement))
    return found


def gradients() -> tuple[bool, str]:
    """Every gradient of a small encoder layer against finite differences."""
    from .. import nn
    from ..check import gradcheck

    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, dtype=np.float64
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    report = gradcheck(layer, [x], fast_mode=True, raise_exception=False)
    return (
        bool(report),
        f"an encoder layer's {len(report.entries)} tensors agree with finite differences"
        if report
        else str(report),
    )


def torch_agreement() -> tuple[bool, str]:
    """An encoder layer with torch's weights gives torch's numbers."""
    import torch

    from .. import nn

    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    ours = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=np.float64)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    error = float(np.abs(ours(x).numpy() - theirs(torch.from_numpy(x)).detach().numpy()).max())
    return error < 1e-12, f"largest difference {error:.1e} with torch {torch.__version__}"


def blas() -> str:
    """The library behind NumPy's matrix products."""
    config: Any = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {})
    return (
        " ".join(str(found[key]) for key in ("name", "version") if found.get(key))
        or "an unknown library"
    )


def kernels(core: str, features: dict[str, bool]) -> list[str]:
    """Which processor OpenBLAS takes this one for, and what AVX-512 would gain where it is unused.

    It is unused where the environment asks for other kernels, or where an OpenBLAS older than the
    processor falls back on those for an older one. The choice is made when NumPy is imported, so
    the other kernels are timed in a process of their own.
    """
    if not core:
        return []
    asked = os.environ.get("OPENBLAS_CORETYPE")
    lines = [
        f"kernels       OpenBLAS's for {core}"
        + (f": the environment has OPENBLAS_CORETYPE={asked}" if asked else "")
    ]
    if core in AVX2 and (features.get("AVX512_SKX") or features.get("X86_V4")):
        try:
            ratio = product_time(OPENBLAS_CORETYPE=None if asked else AVX512) / product_time()
        except (OSError, ValueError, subprocess.SubprocessError):
            return lines
        asking = f"With OPENBLAS_CORETYPE={AVX512} in the environment"
        lines.append(
            f"{INDENT}This processor has AVX-512, which those do not use. "
            f"{'Without that variable' if asked else asking}\n"
            f"{INDENT}a matrix product takes {ratio:.2f} of the time here "
            "(float32, 768 x 768, one thread)."
        )
    return lines


def product_time(**environment: str | None) -> float:
    """Seconds of a matrix product in a new process with these variables; None removes one."""
    code = """
import time, numpy as np
a, times = np.ones((768, 768), np.float32), []
for _ in range(20):
    start = time.perf_counter()
    a @ a
    times.append(time.perf_counter() - start)
print(min(times))"""
    alone = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    variables = {**os.environ, **alone, **environment}
    given = {name: value for name, value in variables.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, check=True, capture_output=True, encoding="utf-8"
    )
    return float(done.stdout)


def renderer() -> str:
    """Who turns DOT text into a picture."""
    import shutil

    if shutil.which("dot"):
        return "the dot program"
    return (
        "pygraphviz's own libraries"
        if find_spec("pygraphviz")
        else "nobody (no dot program, no pygraphviz); text trees still work"
    )


def version(name: str) -> str:
    """The installed version of a distribution, or ?."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"
