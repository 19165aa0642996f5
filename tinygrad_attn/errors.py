"""Helpers for error messages: describe values, suggest fixes and find the user's line of code."""

import contextlib
import difflib
import linecache
import os
import sys
import warnings

import numpy as np

INNER = (  # path prefixes of files that are not user code
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
    contextlib.__file__,  # it calls the functions that a context manager decorates
)

WRITE = {  # PyTorch's names -> what to write instead, for a Tensor t
    # Shapes.
    "unsqueeze": "np.expand_dims(t, axis) or t[:, None]",
    "permute": "t.transpose(1, 0, 2)",
    "expand": "np.broadcast_to(t, shape)",
    "flatten": "t.reshape(len(t), -1) for start_dim=1",
    "transpose": "np.swapaxes(t, axis1, axis2)",
    "t": "t.T",
    "dim": "t.ndim",
    "numel": "t.size",
    "contiguous": "nothing: memory order does not matter here",
    "cat": "np.concatenate([t, other], axis)",
    "split": "np.split(t, range(size, t.shape[axis], size), axis)",
    # Choosing elements.
    "masked_fill": "np.where(mask, value, t)",
    "gather": "np.take_along_axis(t, indices, axis)",
    "one_hot": "np.eye(classes, dtype=np.float32)[np.asarray(labels)]",
    # Arithmetic.
    "clamp": "t.clip(min, max)",
    "norm": "np.linalg.norm(t)",
    "erf": "ta.ops.erf(t)",
    "softmax": "F.softmax(t, axis=-1)",
    "log_softmax": "F.log_softmax(t, axis=-1)",
    "logsumexp": "F.logsumexp(t, axis)",
    "nll_loss": "F.cross_entropy(t, target), which accepts scores or their log_softmax",
    # Dtypes, devices, making tensors.
    "to": "t.astype(dtype) for another dtype; everything is on the CPU",
    "float": "t.astype(np.float32)",
    "double": "t.astype(np.float64)",
    "long": "t.astype(np.int64)",
    "int": "t.astype(np.int32)",
    "bool": "t.astype(bool)",
    "from_numpy": "Tensor(array)",
    "zeros": "Tensor(np.zeros(shape, np.float32))",
    "ones": "Tensor(np.ones(shape, np.float32))",
    "rand_like": "ta.rand(*t.shape, dtype=t.dtype)",
    "randn_like": "ta.randn(*t.shape, dtype=t.dtype)",
    "randint": "ta.random.randint(low, high, size)",
    "Generator": "ta.random.Generator(seed)",
    # Changing a tensor in place.
    "zero_": "t.data[...] = 0, or w.zero_grad() for w.grad.zero_()",
    "fill_": "t.data[...] = value",
    "copy_": "t.data[...] = other.data",
    "add_": "t.data += other.data",
    "normal_": "nn.init.normal_(t, mean, std)",
    "uniform_": "nn.init.uniform_(t, low, high)",
    # Autograd, training.
    "Function": "an op: decorate a function with @ta.op, and register its VJPs with .vjp",
    "grad_fn": "ta.viz.graph(t), which draws how t was made",
    "inference_mode": "ta.no_grad",
    "set_detect_anomaly": "with ta.detect_anomaly():",
    **dict.fromkeys(("jit", "compile"), "ta.source(f, x, params=model), a program to call"),
    "vmap": "leading axes: ops and layers handle all leading axes at once",
    "autocast": "nothing: training in half precision is not supported",
    "lr_scheduler": "optim.Schedule(optimizer, factor), optim.warmup_cosine or optim.noam",
    "CosineAnnealingLR": "optim.warmup_cosine(optimizer, 0, total_steps, min_lr)",
    "DistributedDataParallel": "parallel.DataParallel(model)",
    "register_parameter": "self.name = nn.Parameter(value)",
}
_RECIPES = """
Adagrad AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d Conv1d Conv2d DataLoader ELU
ExponentialLR GRU GRUCell GroupNorm HuberLoss KLDivLoss L1Loss LBFGS LSTM LSTMCell LambdaLR
LeakyReLU MaxPool2d NLLLoss OneCycleLR PReLU RMSprop RNN RNNCell SmoothL1Loss Softplus StepLR
adaptive_avg_pool2d avg_pool2d batch_norm binary_cross_entropy binary_cross_entropy_with_logits
chunk conv1d conv2d cosine_similarity elu group_norm huber_loss kl_div l1_loss leaky_relu max_pool2d
multinomial normalize prelu repeat_interleave rsqrt scatter_add smooth_l1_loss softplus topk unfold
"""
WRITE |= dict.fromkeys(("cpu", "cuda", "device"), "nothing: everything is on the CPU")
WRITE |= dict.fromkeys(_RECIPES.split(), "it as docs/from-pytorch.md shows")

KEYWORDS = {"dim": "axis", "keepdim": "keepdims", "correction": "ddof", "unbiased": "ddof"}
"""PyTorch's names of arguments -> NumPy's."""


def is_number(x):
    """Return whether x is a Python or NumPy real number, excluding booleans."""
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def is_integer(x):
    """Return whether x is a Python or NumPy integer, excluding booleans."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def describe(x):
    """Describe a value, for example as `Tensor (2, 3) float32 'encoder.weight'`."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None or isinstance(x, type):
        text = repr(x)
        return text if len(text) <= 40 and "\n" not in text else f"a {type(x).__name__}"
    kind = "array" if x.__class__ is np.ndarray else type(x).__name__
    name = getattr(x, "name", None)
    return f"{kind} {tuple(shape)} {dtype}" + (f" {name!r}" if name else "")


def explain(op, inputs, error):
    """Add the op, its operands and a hint to NumPy's error; add a note to any other error."""
    place = f"{op} of {', '.join(describe(x) for x in inputs if x is not None)}"
    kinds = (np.linalg.LinAlgError, IndexError, ValueError, TypeError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), None)
    if kind is None or type(error).__module__.partition(".")[0] not in ("builtins", "numpy"):
        error.add_note(f"in {place}")
        return error
    shapes = [np.shape(getattr(x, "_data", x)) for x in inputs if x is not None]
    text, hint = str(error).rstrip("."), ""
    if any(x is None for x in inputs) and ("NoneType" in text or op == "matmul"):
        hint = "An operand is None: check that the function that computed it returns its result."
    elif op == "matmul" and len(shapes) == 2:
        text, hint = "these shapes cannot be multiplied", matmul_hint(*shapes)
    elif "broadcast" in text:
        hint = broadcast_hint(shapes)
    elif "read-only" in text:
        hint = (
            "An op must not change its inputs: write x = x + 1, not x += 1. To code that needs an "
            "array to write to, pass x.copy()."
        )
    elif "unexpected keyword" in text and (word := text.split("'")[1]) in KEYWORDS:
        text = text.partition(". Did you mean")[0]  # Python 3.14 guesses too
        hint = f"Write {KEYWORDS[word]}=, as in NumPy."
    return kind(f"{place}: {text}. {hint}".rstrip())


def broadcast_hint(shapes):
    """Return a hint that names the axis that does not broadcast."""
    for back in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {s[-back] for s in shapes if len(s) >= back and s[-back] != 1}
        if len(sizes) > 1:
            return (
                f"Shapes are aligned on the right; at axis -{back} the sizes "
                f"{' and '.join(map(str, sorted(sizes)))} differ and neither is 1. Transpose an "
                "operand, or insert an axis of size 1 (x[:, None] or x.reshape)."
            )
    return ""


def matmul_hint(a, b):
    """Return a hint that names the sizes that must be equal in a matrix product."""
    if not a or not b:
        return "A number has no rows or columns: multiply with * instead of @."
    inner = b[0] if len(b) == 1 else b[-2]
    if a[-1] == inner:
        return "The axes before the last two are aligned on the right; sizes must be equal or 1."
    which = "only" if len(b) == 1 else "next-to-last"
    hint = (
        f"The first operand's last axis (size {a[-1]}) must be as long as the second operand's "
        f"{which} axis (size {inner})."
    )
    if len(b) > 1 and a[-1] == b[-1]:
        return hint + " Did you mean a @ b.mT?"
    return hint + " Did you mean a.mT @ b?" * (len(a) > 1 and a[-2] == inner)


def nearest(name, known):
    """Return ` Did you mean 'x'?` for the known name with the closest spelling, or ''."""
    public = {x.lower(): x for x in known if name.startswith("_") or not x.startswith("_")}
    close = difflib.get_close_matches(name.lower(), public, 1, cutoff=0.7)
    return f" Did you mean {public[close[0]]!r}?" if close else ""


def written_here(name):
    """Return ` Write ...` if the name is from PyTorch, NumPy or this package, else ''."""
    if name in WRITE:
        return f" Write {WRITE[name]}."
    package = __name__.partition(".")[0]
    for part, short in (("", "ta"), (".nn", "nn"), (".optim", "optim"), (".functional", "F")):
        if name in getattr(sys.modules.get(package + part), "__all__", ()):
            return f" Write {short}.{name}."
    return f" Write np.{name}." if hasattr(np, name) else ""


def missing_names(module, known):
    """Return a `__getattr__` function for a module with the namespace `known`."""

    def missing(name):
        public = known["__all__"]
        slip = name.lower() in map(str.lower, public)
        hint = "" if slip else written_here(name)
        raise AttributeError(f"{module} has no {name!r}.{hint or nearest(name, public)}")

    return missing


class MissingName:
    """A class attribute that raises an AttributeError with a hint when it is read.

    Defining `__getattr__` instead would slow down every attribute lookup on the class.
    """

    def __init__(self, name, hint):
        self.name, self.hint = name, hint

    def __get__(self, t, owner):
        text = f"{owner.__name__!r} object has no attribute {self.name!r}. Write {self.hint}."
        raise AttributeError(text, name=self.name, obj=t)

    @classmethod
    def fill(cls, owner, differentiable):
        """Add a MissingName to the class for each PyTorch or NumPy name that it lacks."""
        rules, hints = set(differentiable), dict[str, str]()
        for name, value in vars(np).items():
            if isinstance(value, np.ufunc) or hasattr(value, "_implementation"):
                hints[name] = f"np.{name}(t, ...)"
                if value not in rules:
                    hints[name] = f"np.{name}(t.numpy(), ...): it has no derivative here"
        for name, hint in (hints | WRITE).items():
            if not hasattr(owner, name):
                setattr(owner, name, cls(name, hint))


def user_frame(*libraries):
    """Return the innermost stack frame outside this package, NumPy and the given libraries."""
    frame, inner = sys._getframe(1), INNER + libraries
    while frame.f_code.co_filename.startswith(inner) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def quoted(file, line):
    """Return a location and its line of code, such as "train.py:7 `y = f(x)`"."""
    linecache.checkcache(file)  # the file may have changed
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f" `{text}`" if text else "")


def warn(text):
    """Issue a UserWarning that points to the user's line of code."""
    frame = user_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    place = (frame.f_code.co_filename, frame.f_lineno, module, registry)
    warnings.warn_explicit(text, UserWarning, *place)
