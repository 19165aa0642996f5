"""`python -m tinygrad_attn doctor`: list the installed libraries and check a layer."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

from .. import __version__, compare_with_torch, get_num_threads, gradcheck, nn

LIBRARIES = (  # module, distribution, extra, purpose
    ("safetensors", "safetensors", "examples", "ta.save and ta.load"),
    ("tqdm", "tqdm", "examples", "progress bars"),
    ("matplotlib", "matplotlib", "viz", "curves and attention maps"),
    ("pygraphviz", "pygraphviz", "viz", "pictures of the graph without the dot program"),
    ("sklearn", "scikit-learn", "examples", "the demo's images"),
    ("torch", "torch", "torch", "comparison with PyTorch"),
    ("mpi4py", "mpi4py", "parallel", "several processes"),
)


def examine() -> int:
    """Print the findings; return 0 if every check passes, else 1."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    print(f"tinygrad_attn {__version__}, {get_num_threads()} threads")
    print(f"Python        {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"NumPy         {np.__version__}, matrix products by {blas['name']} {blas['version']}")
    print("\nOptional libraries")
    for module, name, extra, purpose in LIBRARIES:
        if find_spec(module) is None:
            print(f'  {name:<14}missing     {purpose}: pip install "tinygrad_attn[{extra}]"')
        else:
            print(f"  {name:<14}{metadata.version(name):<12}{purpose}")
    print(f"  {'dot':<14}{'found' if shutil.which('dot') else 'missing':<12}pictures of the graph")
    print("\nGradients of an encoder layer")
    reports = check_gradients()
    for name, report in reports.items():
        print(f"  agree with {name}" if report else f"  DISAGREE with {name}: {report}")
    good = all(reports.values())
    print("\nEverything that is installed works." if good else "\nSomething is wrong: see above.")
    return int(not good)


def check_gradients() -> dict[str, Any]:
    """Compare the gradients of a small encoder layer with each reference."""
    settings = (8, 2, 16, 0.0, "gelu")
    layer = nn.TransformerEncoderLayer(*settings, batch_first=True).astype(np.float64)
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    check = gradcheck(layer, [x], fast_mode=True, raise_exception=False)  # type: ignore[operator]
    reports: dict[str, Any] = {"finite differences": check}
    if find_spec("torch"):
        import torch

        theirs = torch.nn.TransformerEncoderLayer(*settings, batch_first=True).double()
        reports["torch"] = compare_with_torch(layer, theirs, x, verbose=False)
    return reports
