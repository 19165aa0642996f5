"""An op: a function on arrays, and rules for its derivative.

Given arrays an op is that function and nothing more. Given tensors it also leaves a record on its
result. A rule is written once and used twice: on arrays in an ordinary backward pass, and on
tensors when that pass is itself recorded, which is how derivatives have derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from . import misuse
from .graph import Node, Variable, clock, tensor_of, tracked
from .kernels import Replaceable
from .modes import context, everywhere
from .operands import as_operands, as_result
from .parameters import Parameters

Function = Callable[..., Any]
Rule = TypeVar("Rule", bound=Function)


class Op(Replaceable):
    """A function on arrays, and for each input a rule: one link of the chain rule.

    A rule `(g, y, *inputs, **settings)` goes from g, the gradient of the loss by the result y, to
    the gradient by its input. Positional arguments are inputs; keyword-only ones are settings,
    which have no derivative. A twin is a function that is differentiated in the op's place where
    derivatives are to be differentiated again.
    """

    kind = "op"
    quick_call: Any = None  # how fast/ calls an op

    def __init__(
        self,
        forward: Function,
        *,
        broadcasts: bool = False,
        saves: bool = False,
        reference: Any = None,
    ) -> None:
        self.parameters = Parameters(forward)
        self.__name__ = self.parameters.function
        self.__doc__, self.__module__ = forward.__doc__, forward.__module__
        self.__wrapped__ = forward  # whose signature `help` shows
        self.forward, self.broadcasts, self.saves, self.reference = (
            forward,
            broadcasts,
            saves,
            reference,
        )
        self.vjps: tuple[Function | None, ...] = ()  # one for each input,
        self.joint_vjp: Function | None = None  # or one for all of them,
        self.asks_needs = False  # which may ask what is needed
        self.stands_for: Op = self  # in an op of fast/, the one that it replaces

    def vjp(self, *rules: Function | None) -> Op:
        """One rule for each input, None for an input that has no derivative."""
        misuse.check_rules(self, rules)
        self.vjps, self.joint_vjp = rules, None
        return self

    def vjp_all(self, rule: Rule) -> Rule:
        """A decorator of one rule for all inputs, which may share work between them.

        It returns a tuple of gradients, and is called as `rule(g, y, *inputs, **settings)`, with
        `saved=` if the op saves and with `needs=`, a tuple of booleans, if it asks for that.
        """
        self.vjps, self.joint_vjp, self.asks_needs = (), rule, misuse.asks_needs(rule)
        return rule

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        """forward(*inputs, **settings); a tensor where one of the inputs is a tensor."""
        if self.quick_call is not None and not context.plain:
            y = self.quick_call(inputs, settings)
            if y is not NotImplemented:
                return y
        inputs, settings = self.parameters.bind(inputs, settings)
        arrays = as_operands(self, inputs)
        with misuse.explained(self, inputs):
            y = self.forward(*arrays, **settings)
        y, saved = misuse.pair(self, y) if self.saves else (y, None)
        if not any(isinstance(x, Variable) for x in inputs):
            return y
        return self.remember(as_result(self, y, inputs), saved, inputs, arrays, settings)

    def remember(self, y: Any, saved: Any, inputs: tuple, arrays: list, settings: dict) -> Any:
        """The tensor around the result y, with a record if a gradient can be asked for."""
        here, record = context, None
        # Only floating numbers have a derivative; a result of integers or booleans has no record.
        if here.recording and any(map(tracked, inputs)) and y.dtype.kind == "f":
            kept = tuple(x if tracked(x) else a for x, a in zip(inputs, arrays, strict=True))
            record = Node(clock(), self, kept, settings, saved, here.scope)
        result = tensor_of(y, record)
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(self, inputs, settings, result)
        return result

    def pull(self, g: Any, y: Any, record: Node, inputs: list, needs: list) -> dict[int, Any]:
        """{i: the gradient by input i}, where needed, from g, the gradient by the result y."""
        if self.joint_vjp is not None:
            extra: dict[str, Any] = {"saved": record.saved} if self.saves else {}
            extra |= {"needs": tuple(needs)} if self.asks_needs else {}
            shares = self.joint_vjp(g, y, *inputs, **record.settings, **extra)
            shares = misuse.one_for_each(self, shares, needs)
            return {i: s for i, s in enumerate(shares) if s is not None and needs[i]}
        misuse.check_derivative(self, needs)
        return {
            i: rule(g, y, *inputs, **record.settings)
            for i, (rule, need) in enumerate(zip(self.vjps, needs, strict=False))
            if need and rule is not None
        }
