"""Right methods for the learner's classes, so that each check judges one method by itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from _marking import Wrong, written

import tinygrad_attn as ta
from tinygrad_attn.engine.backward import sum_to

OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "matmul": operator.matmul,
}
ELEMENTWISE = {f for name, f in OPERATORS.items() if name != "matmul"}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": f for name, f in OPERATORS.items()},
    **{f"__r{name}__": lambda a, b, f=f: f(b, a) for name, f in OPERATORS.items()},
    "__neg__": operator.neg,
    "__pow__": operator.pow,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "tanh": np.tanh,
    "sum": lambda a, axis=None, keepdims=False: np.sum(a, axis=axis, keepdims=keepdims),
    "mean": lambda a, axis=None, keepdims=False: np.mean(a, axis=axis, keepdims=keepdims),
    "reshape": lambda a, *shape: a.reshape(*shape),
    "T": lambda a: a.T,
}
"""The functions that the methods of the learner's classes compute."""
Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def users_first(last: Any) -> list[Any]:
    """List every node that leads to `last`, each user before the nodes that it uses."""
    users, waiting = {id(last): 0}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if id(parent) not in users:
                users[id(parent)] = 0
                waiting.append(parent)
            users[id(parent)] += 1
    found, ready = list[Any](), [last]
    while ready:
        found.append(ready.pop())
        for parent in found[-1].parents:
            users[id(parent)] -= 1
            if not users[id(parent)]:
                ready.append(parent)
    return found


@contextmanager
def right_methods(kind: type, call: Call, but: tuple[str, ...], **more: Any) -> Iterator[None]:
    """Replace the methods of a class that are in FUNCTIONS or in `more`, but for those named.

    `call(f, operands, settings)` computes f and returns an instance of the class.
    """

    def method(f: Callable[..., Any]) -> Any:
        return lambda *operands, **settings: call(f, operands, settings)

    methods = {name: method(f) for name, f in FUNCTIONS.items()} | more
    methods["T"] = property(methods["T"])
    before = {name: vars(kind)[name] for name in methods if name in vars(kind)}
    changed = [name for name in before if name not in but]
    try:
        for name in changed:
            setattr(kind, name, methods[name])
        yield
    finally:
        for name in changed:
            setattr(kind, name, before[name])


def on_arrays(
    f: Callable[..., Any], operands: tuple[Any, ...], settings: Mapping[str, Any], kind: type
) -> tuple[list[int], Callable[..., Any]]:
    """Return which operands are instances of a class, and f as a function of these alone."""
    moving = [k for k, x in enumerate(operands) if isinstance(x, kind)]

    def of_moving(*arrays: Any) -> Any:
        given = dict(zip(moving, arrays))
        return f(*(given.get(k, x) for k, x in enumerate(operands)), **settings)

    return moving, of_moving


def tensor_call(kind: type) -> Call:
    """Return how a right method of a class of Tensors computes and remembers."""

    def call(f: Callable[..., Any], operands: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        moving, g = on_arrays(f, operands, settings, kind)
        parents = tuple(operands[k] for k in moving)
        arrays = [parent.data for parent in parents]
        if f is operator.add:  # as in the chapter, all parents get the same array
            return kind(g(*arrays), parents, (lambda g: g,) * len(parents))
        if f in ELEMENTWISE:  # the learner's backward adds up what was broadcast
            arrays = np.broadcast_arrays(*arrays)
        y, pullback = ta.vjp(g, *arrays, create_graph=False)

        def rule(g: Any, k: int) -> Any:
            if np.shape(g) != y.shape:
                raise Wrong(
                    f"backward passes a gradient of the shape {np.shape(g)} on to a Tensor of the "
                    f"shape {y.shape}"
                )
            return np.asarray(pullback(g)[k])

        rules = tuple(partial(rule, k=k) for k in range(len(parents)))
        return kind(np.asarray(y), parents, rules)

    return call


def dual_call(kind: type) -> Call:
    """Return how a right method of a class of dual numbers computes."""

    def call(f: Callable[..., Any], operands: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        moving, g = on_arrays(f, operands, settings, kind)
        duals = [operands[k] for k in moving]
        value = g(
            *(dual.value for dual in duals)
        )  # NumPy may refuse integers, which jvp does not get
        values, tangents = (
            [np.asarray(x, float) for x in part]
            for part in zip(*((dual.value, dual.tangent) for dual in duals))
        )
        return kind(value, np.asarray(ta.jvp(g, values, tangents)[1]))

    return call


def backward(self: Any, g: Any = None) -> None:
    """Add to the .grad of every tensor that leads to this one."""
    coming = {id(self): np.ones_like(self.data) if g is None else np.asarray(g)}
    for tensor in users_first(self):
        g = coming.pop(id(tensor))
        tensor.grad = np.array(g) if tensor.grad is None else tensor.grad + g
        for parent, rule in zip(tensor.parents, tensor.vjps):
            share = np.asarray(
                sum_to(np.asarray(written(rule(g), "a rule")), np.shape(parent.data))
            )
            coming[id(parent)] = coming.get(id(parent), 0) + share
