"""NumPy's own names for our ops: `np.exp(t)`, `np.sum(t, axis=-1)`, `np.concatenate([...])`.

They work on tensors and are differentiated. NumPy asks the operands of its functions whether one of
them wants to take over (`__array_ufunc__`, `__array_function__`; NEP 13 and 18). A Tensor says yes
and looks the function up: `UFUNCS` in ufuncs.py and `FUNCTIONS`, which the other modules fill, are
the whole table. Functions whose results are booleans, integers or fresh constants (`PLAIN_...`) get
the arrays, and so does any function of integers alone. Anything else is a TypeError that names it;
no result ever loses its graph in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine import Variable
from ...messages.errors import ELSEWHERE, explain, nearest
from . import linear, reductions, shapes
from .common import (
    FUNCTIONS,
    cast,
    floating,
    full_name,
    handed,
    plain,
    refuse,
    refuse_whole,
    wrapped,
)
from .functions import PLAIN_FUNCTIONS
from .running import RUNNING, accumulate
from .ufuncs import CALLS, PLAIN_UFUNCS, REDUCTIONS, UFUNCS, outer, reduce


def array_ufunc(ufunc: Any, method: str, inputs: tuple, kwargs: dict[str, Any]) -> Any:
    """What Tensor.__array_ufunc__ answers where it is not simply `UFUNCS[ufunc](*inputs)`."""
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if kwargs.get("out") is not None:
        _refuse_out(name, kwargs["out"][0], inputs)
    if method == "__call__" and ufunc in PLAIN_UFUNCS:
        return ufunc(*map(plain, inputs), **{k: plain(v) for k, v in kwargs.items()})
    if (ufunc not in UFUNCS or method in ("at", "reduceat")) and not any(map(floating, inputs)):
        # There is no gradient to lose.
        handed_on = {k: handed(v) for k, v in kwargs.items()}
        return getattr(ufunc, method)(*map(handed, inputs), **handed_on)
    if ufunc in UFUNCS:
        if method == "__call__":
            return _called(name, ufunc, inputs, kwargs)
        if method == "reduce" and ufunc in REDUCTIONS:
            return reduce(ufunc, *inputs, **kwargs)
        if method == "accumulate" and ufunc in RUNNING:
            if floating(inputs):
                return accumulate(ufunc, *inputs, **kwargs)
            return wrapped(ufunc.accumulate(*plain(inputs), **kwargs))
        if method == "outer":
            return outer(ufunc, *inputs, **kwargs)
        if method == "at":
            instead = "t[index] on the right-hand side"
            if ufunc is np.add:
                instead = "a + ta.ops.scatter(t, index=index, shape=a.shape)"
            raise TypeError(
                f"np.{name} changes an array in place, which cannot be differentiated. Write "
                f"{instead}, or give it t.numpy() if no gradient is meant."
            )
    if any(name == f.__name__ for f in FUNCTIONS):  # The ufunc behind an array's own method.
        raise TypeError(f"a.{name}(...) of an array a takes no Tensors: write np.{name}(a, ...).")
    # SciPy's functions are ufuncs too, and so may be a user's own.
    raise no_rule(name, "np." if getattr(np, ufunc.__name__, None) is ufunc else "")


def _called(name: str, ufunc: Any, inputs: tuple, settings: dict[str, Any]) -> Any:
    """A ufunc that has a rule, called with settings such as dtype."""
    dtype, along = settings.pop("dtype", None), {}
    if ufunc is np.vecdot and "axis" in settings:
        along["axis"] = settings.pop("axis")
    refuse(name, **settings)
    if not any(map(floating, inputs)):  # NumPy knows best what it makes of integers.
        return wrapped(ufunc(*map(plain, inputs), dtype=dtype, **along))
    refuse_whole(name, dtype, *inputs)
    return UFUNCS[ufunc](*(cast(x, dtype) for x in inputs), **along)


def _refuse_out(name: str, out: Any, inputs: tuple) -> None:
    if isinstance(out, np.ndarray) and any(x is out for x in inputs):
        raise TypeError(
            f"np.{name} would write a Tensor's values into an array, which keeps no gradient: "
            "write a = a + t instead of a += t, or a += t.data where none is wanted. For "
            "a[rows] += t, each row once and with a row of t for it, write "
            "a = a + ta.ops.scatter(t, index=rows, shape=a.shape)."
        )
    refuse(name, out=out)


def array_function(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What Tensor.__array_function__ answers."""
    rule, any_floating = FUNCTIONS.get(function), any(map(floating, (*args, *kwargs.values())))
    # The rule also refuses out=, and of np.where(mask) with one argument it gives plain places.
    if rule is not None and (function is np.where or "out" in kwargs or any_floating):
        return rule(*args, **kwargs)
    if rule is not None or function in PLAIN_FUNCTIONS:
        y = function(*plain(args), **{k: plain(v) for k, v in kwargs.items()})
        # Of integers and booleans NumPy knows best what it makes; there is no gradient.
        return y if rule is None else wrapped(y)
    if not any_floating:  # Labels that are counted, say: there is no gradient to lose.
        return function(*handed(args), **{k: handed(v) for k, v in kwargs.items()})
    raise no_rule(full_name(function))


INSTEAD = {
    "bincount": "ta.ops.scatter(t, index=indices, shape=n) for np.bincount(indices, t, n)",
    "add.reduceat": "np.stack([part.sum(0) for part in np.split(t, starts)[1:]])",
    "expit": "F.sigmoid(t)",
}
"""How functions without a rule are written so that they can be differentiated.

These are sums by groups and SciPy's name for the sigmoid; `ELSEWHERE` may know of others.
"""


def no_rule(name: str, home: str = "np.") -> TypeError:
    """The error for a function that is not in the tables."""
    # NumPy has the name, so it is no slip: only its kin are named, as eigh for eig.
    short = name.rpartition(".")[2]
    known = [f.__name__ for f in (*UFUNCS, *FUNCTIONS)]
    kin = [k for k in known if k.startswith(short) or short.endswith(k)]
    written = INSTEAD.get(name) or ELSEWHERE.get(name)
    instead = f" Write {written}." if written else nearest(short, kin)
    return TypeError(
        f"{home}{name} has no derivative rule for Tensors.{instead} Leave the graph on purpose "
        "with t.numpy(), compose it from functions that have one, or write it as an op: @ta.op on "
        "the function, its partial derivatives with .vjp under it."
    )


def in_terms_of(function: Any, args: Sequence[Any], error: Exception) -> Exception:
    """NumPy's own complaint about a call of its function, with the operands; ours as it is."""
    text = str(error)
    whole = "interpreted as an integer" in text or "according to the rule" in text
    names_an_operand = "Tensor" in text or "array " in text and "(" in text and not whole
    if text.startswith("np.") or names_an_operand or not any(isinstance(x, Variable) for x in args):
        return error
    if isinstance(error, TypeError) and not whole:
        return error
    name = f"{function.__module__.replace('numpy', 'np')}.{function.__name__}"
    return explain(name, [x for x in args if hasattr(x, "shape")], error)
