"""`python -m tinygrad_attn doctor`: what is installed, what is missing, and whether it works."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata
from importlib.util import find_spec

import numpy as np

from .. import __version__, get_num_threads

LIBRARIES = (
    ("safetensors", "safetensors", "examples", "ta.save and ta.load"),
    ("tqdm", "tqdm", "examples", "progress bars"),
    ("matplotlib", "matplotlib", "viz", "curves and attention maps"),
    ("pygraphviz", "pygraphviz", "viz", "pictures of the graph without the dot program"),
    ("sklearn", "scikit-learn", "examples", "the demo's images"),
    ("torch", "torch", "torch", "comparison with PyTorch"),
    ("mpi4py", "mpi4py", "parallel", "several processes"),
)
"""(module, distribution, extra, purpose)"""


def examine() -> int:
    """Print what was found; return 0 if every check passes, else 1."""
    print(f"tinygrad_attn {__version__}, {get_num_threads()} threads")
    print(f"Python        {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"NumPy         {np.__version__}, matrix products by {_blas()}")
    print("\nOptional libraries")
    for module, name, extra, purpose in LIBRARIES:
        if find_spec(module) is None:
            print(f'  {name:<14}missing     {purpose}: pip install "tinygrad_attn[{extra}]"')
        else:
            print(f"  {name:<14}{metadata.version(name):<12}{purpose}")
    print(f"  {'dot':<14}{'found' if shutil.which('dot') else 'missing':<12}pictures of the graph")
    print("\nChecks")
    good = True
    for name, check in (("gradients", _gradients), ("agreement with PyTorch", _torch_agreement)):
        if name == "gradients" or find_spec("torch"):
            try:
                passed, text = check()
            except Exception as error:
                passed, text = False, f"{type(error).__name__}: {error}"
            print(f"  {'ok    ' if passed else 'FAILED'}  {name}: {text}")
            good = good and passed
    print("\nEverything that is here works." if good else "\nSomething is wrong: see above.")
    return 0 if good else 1


def _blas() -> str:
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{found.get('name', 'an unknown library')} {found.get('version', '')}"


def _gradients() -> tuple[bool, str]:
    """Every gradient of a small encoder layer against finite differences."""
    from .. import gradcheck, nn

    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, dtype=np.float64)
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    report = gradcheck(layer, [x], fast_mode=True, raise_exception=False)  # type: ignore[operator]
    agree = f"an encoder layer's {len(report.entries)} tensors agree with finite differences"
    return bool(report), agree if report else str(report)


def _torch_agreement() -> tuple[bool, str]:
    """An encoder layer with torch's weights gives torch's numbers."""
    import torch

    from .. import nn

    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()
    ours = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, dtype=np.float64)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    error = float(np.abs(ours(x).numpy() - theirs(torch.from_numpy(x)).detach().numpy()).max())
    return error < 1e-12, f"largest difference {error:.1e} with torch {torch.__version__}"
