"""The commands, with their options as arguments. Each one imports only what it needs."""

import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..engine import tracked
from ..errors import nearest
from ..nn import Module

Shapes = list[tuple[int, ...]] | None
ROOT = Path(__file__).resolve().parents[2]  # the source folder, with examples/ and docs/
LIBRARIES = (  # module, distribution, extra, purpose
    ("safetensors", "safetensors", "examples", "ta.save and ta.load"),
    ("tqdm", "tqdm", "examples", "progress bars"),
    ("matplotlib", "matplotlib", "viz", "curves and attention maps"),
    ("pygraphviz", "pygraphviz", "viz", "pictures of the graph without the dot program"),
    ("sklearn", "scikit-learn", "examples", "the demo's images"),
    ("torch", "torch", "torch", "comparison with PyTorch"),
    ("mpi4py", "mpi4py", "parallel", "several processes"),
)


def demo(**options):
    """Train a small Transformer on images of digits and write a report."""
    from .demo import run_demo

    return run_demo(**options)


def doctor():
    """List the installed libraries and check the gradients of a layer."""
    from .. import __version__, get_num_threads

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
    report = check_layer()
    verdict = "agree with finite differences" if report else f"DISAGREE: {report}"
    print(f"\nGradients of an encoder layer\n  {verdict}")
    print("\nEverything that is installed works." if report else "\nSomething is wrong: see above.")
    return not report


def check_layer():
    """Compare the gradients of a small encoder layer with finite differences."""
    from .. import nn
    from ..check import gradcheck

    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    return gradcheck(layer.astype(np.float64), [x], fast_mode=True, raise_exception=False)


def seeds(name):
    """Reproduce the numbers of the documents on which this project is based."""
    scripts = sorted(_source("examples").glob(f"seed_{name}*.py"))
    environment, reproduced = {**os.environ, "PYTHONPATH": str(ROOT)}, 0
    for script in scripts:
        print(f"==== {script.stem}", flush=True)
        reproduced += not subprocess.run([sys.executable, str(script)], env=environment).returncode
    print(f"{reproduced} of {len(scripts)} reproduced")
    return reproduced < len(scripts) or not scripts


def exercise(name, files, hidden, **options):
    """Mark an exercise of the course."""
    if hidden:
        os.environ["TINYGRAD_ATTN_HIDDEN"] = str(Path(hidden).resolve(strict=True))
    return _marking("mark").main(name, *files, **options)


def page(file, output, offline):
    """Write a page that marks an exercise of your own in the browser."""
    writer = load(_source("docs/live") / "own_page.py")
    print(writer.write(Path(file), Path(output), offline))


def exam(file, **options):
    """Examine the gradients of any engine through an adapter of a few lines."""
    return _marking("_exam").main(file, **options)


def practice(target, **options):
    """Make a function to differentiate by hand, and mark your backward rule."""
    return _marking("_practice").main(target, **options)


def course(folder, release, students):
    """Copy the exercises and notebooks of the course, or make a lecturer's release."""
    place, into = _source("docs/course"), Path(folder)
    if students and not release:
        raise ValueError("--students is for --release, which writes each student's own tasks.")
    if release:
        print(load(place / "release.py").release(into, students))
    else:
        print(load(place / "layout.py").lay_out(into))


def _marking(name):
    """Run a file of the course's marker, and return it as a module."""
    return load(_source("docs/course/marking") / f"{name}.py")


def _source(name):
    """Return a folder of the source, or its copy in an installed package."""
    folders = ROOT / name, Path(__file__).parents[1] / f"_{name}"
    found = [folder for folder in folders if folder.is_dir()]
    if not found:
        raise ValueError(f"{folders[0]} does not exist. Clone the source repository and try again.")
    return found[0]


def graph(target, output, **options):
    """Draw the graph of the tensor that a function computes."""
    from .. import viz

    picture = viz.graph(find(target), **options)
    if output:
        picture.save(output)
    print(output or picture)


def source(target, shape, output, forward):
    """Write the forward and backward pass of a function as one NumPy file."""
    from .. import source as write

    function, inputs = _function_and_inputs(target, shape)
    program = write(function, *inputs, params=parameters_of(function), backward=not forward)
    print(program.save(output) if output else str(program).rstrip("\n"))


def gradcheck(target, shape, seed, vjp, reference, as_json, **options):
    """Check a function's gradient at random inputs, by differences or against a reference."""
    from ..check import gradcheck as check

    function, inputs = _function_and_inputs(target, shape, seed)
    functions = {"vjp": vjp, "reference": reference}
    options |= {name: find(place) for name, place in functions.items() if place}
    if len(options) > 2 or options["dtype"]:
        inputs = [_in_the_library_of(function, x) for x in inputs]
    report = check(function, inputs, seed=seed, raise_exception=False, **options)
    print(json.dumps(report.as_dict(), indent=1) if as_json else in_language(str(report)))
    return not report


def in_language(text):
    """Return a text in the language of --lang, which the marker's catalogue has."""
    if os.environ.get("TINYGRAD_ATTN_LANG", "en") == "en":
        return text
    return str(_marking("_language").in_language(text))


def _in_the_library_of(function, x):
    """Convert an array to the library that the file of a function imports."""
    used = {
        getattr(value, "__name__", "") for value in getattr(function, "__globals__", {}).values()
    }
    if "torch" in used:
        return sys.modules["torch"].as_tensor(x)
    if used & {"jax", "jax.numpy"}:
        return sys.modules["jax.numpy"].asarray(x)
    return x


def _function_and_inputs(target, shapes, seed=0):
    """Return the target and random inputs of these shapes (default: one shape, (3, 4))."""
    function, shapes = find(target), shapes or [(3, 4)]
    if len(shapes) == 1:  # once for all required arguments
        found = inspect.signature(getattr(function, "forward", function)).parameters.values()
        needed = [p for p in found if p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
        shapes = shapes * max(1, len(needed))
    rng = np.random.default_rng(seed)
    return function, [rng.standard_normal(shape) for shape in shapes]


def find(target):
    """Return the function for `FILE.py`, `FILE.py:FUNCTION` or `MODULE:FUNCTION`."""
    place, _, name = target.rpartition(":")
    if not place or name.endswith(".py"):  # no colon, or only the one after a drive letter
        place, name = target, ""
    sys.path.insert(0, os.getcwd())
    module = load(Path(place)) if place.endswith(".py") else import_module(place)
    own = [
        key for key, x in vars(module).items()
        if callable(x) and not isinstance(x, type)
        and getattr(getattr(x, "forward", x), "__module__", None) == module.__name__
    ]  # fmt: skip
    name = name or (own[0] if len(own) == 1 else "main")
    function = getattr(module, name, None)
    if function is None or isinstance(function, type):
        advice = nearest(name, own) or (f" Write {place}:{own[0]}." if own else "")
        raise ValueError(
            f"{place} has no function {name!r}.{advice} Functions in this file: "
            f"{', '.join(own) or 'none'}."
        )
    return function


def load(path):
    """Run a Python file as a module that can import from its folder."""
    path = path.resolve()
    sys.path.insert(0, str(path.parent))
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module  # dataclasses need it
    # Python's cache of compiled files misses a change within the same second.
    try:
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except SystemExit as end:
        raise ValueError(
            f"{path.name} ends Python (code {end.code}). Put what a script does, such as a call of "
            'sys.exit, under `if __name__ == "__main__":`.'
        ) from end
    return module


def parameters_of(function):
    """Return the parameters that a function uses from modules and tensors in its file, by name."""
    if not hasattr(function, "__code__"):
        return None  # a module or an op
    found: dict[str, Any] = {}
    for name in function.__code__.co_names:
        x = function.__globals__.get(name)
        if isinstance(x, Module):
            found |= {f"{name}.{inner}": p for inner, p in x.named_parameters()}
        elif tracked(x):
            found[name] = x
    return found or None
