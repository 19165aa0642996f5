"""Watch ops while they run, and call their VJPs one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine import (
    Node,
    Variable,
    Watcher,
    context,
    enable_grad,
    grad,
    history,
    sum_to,
    tensor_of,
    tracked,
    watching,
)
from ..errors import INNER, quoted
from ..nn.scopes import dotted_name

Array = np.ndarray


class Place(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return quoted(self.file, self.line)


def user_place(*libraries: str) -> Place | None:
    """The innermost line on the stack that belongs to no library."""
    frame = sys._getframe(1)
    while frame is not None:
        # "<frozen runpy>" is Python itself, which starts a program at `python -m`.
        if not frame.f_code.co_filename.startswith((*INNER, *libraries, "<frozen ")):
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def array_of(x: Any) -> Array:
    """The values of a tensor, or of anything that NumPy takes."""
    return np.asarray(x._data if isinstance(x, Variable) else x)


def numeric(x: Any) -> bool:
    """Whether this operand holds real numbers."""
    kinds = (Variable, Array, np.generic, float, int)
    return isinstance(x, kinds) and array_of(x).dtype.kind in "fiub"


def module_name(scope: Any) -> str:
    """The dotted name of the module call, from the outermost module; empty outside modules."""
    return "" if scope is None else dotted_name(scope)


Answers = dict[int, Array]
"""Gradients by the number of the input."""


def pull(
    op: Any, g: Any, y: Any, args: Sequence[Any], settings: dict, saved: Any, needs: Sequence[bool]
) -> Answers:
    """The gradients that the VJPs of an op return for these arrays."""
    if not (op.vjps or op.joint_vjp):
        op = op.stands_for
    node = Node(op, (), settings, saved, None)
    answers = enumerate(op.pull(g, y, node, list(args), list(needs)))
    found = {i: array_of(v) for i, v in answers if v is not None and needs[i]}
    if op.broadcasts:
        return {i: array_of(sum_to(v, np.shape(args[i]))) for i, v in found.items()}
    return found


class Step(NamedTuple):
    """One op as it ran."""

    op: Any
    inputs: tuple
    settings: dict[str, Any]
    result: Any
    scope: Any
    place: Place | None

    @property
    def name(self) -> str:
        return self.op.__name__

    @property
    def module(self) -> str:
        return module_name(self.scope)

    @property
    def recorded(self) -> bool:
        return tracked(self.result)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient passes through this op by VJPs of its own."""
        op = self.op
        rules = (op.vjps, op.joint_vjp, op.stands_for.vjps, op.stands_for.joint_vjp)
        return tracked(self.result) and any(rules) and op.__name__ != "checkpoint"

    def call(self) -> OpCall:
        return OpCall(self)

    def run(self, operands: Sequence[Any]) -> Any:
        """The op on other operands."""
        return self.op(*operands, **self.settings)


class OpCall:
    """An op as a function of arrays, with its VJPs."""

    def __init__(self, step: Any, args: Sequence[Any] | None = None, **settings: Any) -> None:
        self.step, self.name, self.settings = step, step.name, {**step.settings, **settings}
        given = [x._data if isinstance(x, Variable) else x for x in step.inputs]
        self.needs = [tracked(x) and array_of(x).dtype.itemsize == 8 for x in step.inputs]
        copied = [a.copy() if isinstance(a, Array) else a for a in given]
        self.args = copied if args is None else list(args)
        self.y, self.saved = self.forward(self.args)

    def forward(self, args: Sequence[Any]) -> tuple[Array, Any]:
        op = self.step.op
        found = op.forward(*args, **self.settings)
        y, saved = found if op.saves else (found, None)
        return array_of(y), saved

    def pull(self, g: Any, y: Any = None, needs: Sequence[bool] | None = None) -> Answers:
        """What the VJPs return for g; `y` replaces the output that they are given."""
        needs = self.needs if needs is None else needs
        y = self.y if y is None else y
        return pull(self.step.op, g, y, self.args, self.settings, self.saved, needs)

    def with_args(self, args: Sequence[Any], **settings: Any) -> Any:
        """The same op on other arrays or settings."""
        new = type(self)(self.step, args, **settings)
        new.needs = self.needs
        return new


class Trace(Watcher):
    """A watcher that lists every op."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def computed(self, op: Any, inputs: tuple, settings: dict[str, Any], result: Any) -> None:
        refuse_torch_frames()
        self.steps.append(Step(op, inputs, settings, result, context.scope, user_place()))


TAKES_TORCH = (
    "Tensors of this package were given to PyTorch, which checks nothing of them. Pass torch "
    "tensors as inputs: gradcheck(f, [torch.randn(3, dtype=torch.float64, requires_grad=True)])."
)


def refuse_torch_frames() -> None:
    """Raise TypeError for an op that runs inside forward() of a torch.autograd.Function."""
    if (torch := sys.modules.get("torch")) is None or not hasattr(torch, "autograd"):
        return
    apply, frame = torch.autograd.Function.apply.__func__.__code__, sys._getframe(1)
    while frame is not None:
        if frame.f_code is apply:
            raise TypeError(TAKES_TORCH)
        frame = frame.f_back  # type: ignore[assignment]


class Backend:
    """What gradcheck needs to know of this package's Tensors; check/torch_ops.py has PyTorch's."""

    ours = True
    kind: Any = Variable
    double = "Tensor(data, dtype=np.float64) or x.astype(np.float64)"
    double_module = "module.astype(np.float64)"
    writes = "operators, methods and np.* functions on g, y and the inputs"

    def leaf(self, array: Array, tracked: bool = True) -> Any:
        t = tensor_of(array)
        t._tracked = tracked
        return t

    def dtype(self, t: Any) -> np.dtype:
        return t._data.dtype.newbyteorder("=")

    def wants_gradient(self, t: Any) -> bool:
        return t._tracked

    def value(self, t: Any) -> Array:
        return array_of(t)

    def put(self, t: Any, array: Array) -> None:
        t._data = array

    def name(self, t: Any) -> str | None:
        return t.name

    def keep(self, t: Any) -> Any:
        """What `give_back` needs; until then the tensor is tracked and its values may change."""
        before, t._tracked = (t._data, t._tracked), True
        return before

    def give_back(self, t: Any, kept: Any) -> None:
        t._data, t._tracked = kept

    def returns(self, found: Any) -> str:
        """What to write in a function that returned no tensor."""
        if any(type(t).__module__.startswith("torch") for t in nested(found)):
            return TAKES_TORCH
        return (
            "Compute with tensor methods or np.* functions, which keep the graph; .numpy(), "
            ".item() and .data leave it."
        )

    def vjp(self, outputs: Any, inputs: Any, cotangents: Any, create_graph: bool = False) -> Any:
        """d(sum of cotangent * output)/d(input) for each input, None where no path leads there."""
        return grad(
            outputs, inputs, cotangents, retain_graph=True, create_graph=create_graph,
            allow_unused=True,
        )  # fmt: skip

    recording = staticmethod(enable_grad)

    def watch(self) -> Any:
        """A context manager in which every op is listed in `.steps`."""
        return watching(Trace())


class Contributions(Watcher):
    """A watcher that lists the contributions to the gradient of one tensor, by op."""

    def __init__(self, x: Any) -> None:
        self.x, self.found = x, list[tuple[str, Array]]()

    def pulled(self, y: Any, node: Any, g: Any, i: int, x: Any, share: Any, total: Any) -> None:
        if x is self.x:
            self.found.append((node.op.__name__, array_of(share).copy()))


def contributions(t: Any, g: Any) -> list[tuple[Any, Array]]:
    """(input, contribution) for each use by the op that computed t."""
    node, args = t._node, [x._data if isinstance(x, Variable) else x for x in t._node.inputs]
    needs = [tracked(x) for x in node.inputs]
    found = pull(node.op, np.array(g), t._data, args, node.settings, node.saved, needs)
    return [(node.inputs[i], share) for i, share in found.items()]


def plain_sweep(roots: Sequence[Any], seeds: Sequence[Array]) -> tuple[dict, dict]:
    """Gradients, and their uses by op, from a sweep that shares only VJPs with the engine."""
    grads: dict[Any, Array] = {}
    uses: dict[Any, list[str]] = {}
    for t, seed in zip(roots, seeds):
        grads[t] = grads.get(t, 0) + seed
    for t in reversed(history(roots)):
        for x, share in contributions(t, grads[t]) if t in grads else ():
            grads[x] = grads.get(x, 0) + share
            uses.setdefault(x, []).append(t._node.op.__name__)
    return grads, uses


def nested(found: Any) -> Iterator[Any]:
    """What lies in tuples, lists and dicts, however deep."""
    if isinstance(found, (dict, tuple, list)):
        for part in found.values() if isinstance(found, dict) else found:
            yield from nested(part)
    else:
        yield found
