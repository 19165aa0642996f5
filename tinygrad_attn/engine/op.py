"""An op: a function on arrays, and under it its derivative.

Given arrays an op is that function and nothing more. Given tensors it also leaves a record on its
result. A rule is written once and used twice: on arrays in an ordinary backward pass, and on
tensors when that pass is itself recorded, which is how derivatives have derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from . import misuse
from .context import everywhere, local
from .graph import Record, Variable, clock, tensor_of, tracked
from .operands import as_operands, as_result
from .parameters import Parameters

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Op:
    """A function on arrays, and for each input a rule: one link of the chain rule.

    A rule `(g, y, *inputs, **settings)` goes from g, the gradient by the result y, to the gradient
    by its input. Positional arguments are inputs; keyword-only ones are settings, which have no
    derivative.
    """

    __name__: str

    def __init__(
        self,
        forward: Callable[..., Any],
        *,
        broadcasts: bool = False,
        saves: bool = False,
        twin: Callable[..., Any] | None = None,
    ) -> None:
        self.parameters = Parameters(forward)
        self.__name__ = self.parameters.function
        self.__doc__, self.__module__ = forward.__doc__, forward.__module__
        self.__wrapped__ = forward  # whose signature `help` shows
        self.forward, self.broadcasts, self.saves, self.twin = forward, broadcasts, saves, twin
        self.rules: tuple[Callable[..., Any] | None, ...] = ()  # one for each input,
        self.joint: Callable[..., Any] | None = None  # or one for all of them
        self.stands_for: Op = self  # in a quick way, the op that it replaces
        self.quick: Any = None  # its quick way, if fast/ has one

    quick_call: Any = None  # how fast/ calls an op

    def __repr__(self) -> str:
        return f"<op {self.__name__}>"

    def __reduce__(self) -> str:
        """Copied and pickled by name, as a function is."""
        return self.__name__

    def vjp(self, *rules: Callable[..., Any] | None) -> Op:
        """One rule `(g, y, *inputs, **settings)` for each input, None for one that has no
        derivative.
        """
        misuse.check_rules(self, rules)
        self.rules, self.joint = rules, None
        return self

    def vjp_all(self, rule: Rule) -> Rule:
        """A decorator of one rule that returns the gradients by all inputs, for rules that share
        work.

        It is called as `rule(g, y, *inputs, **settings)`, with `saved=` if the op saves and with
        `needs=`, a tuple of booleans, if it asks for that.
        """
        self.rules, self.joint = (), rule
        return rule

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        """forward(*inputs, **settings); where an input is a tensor, a tensor, which remembers how
        it was made if a gradient is wanted.
        """
        if self.quick_call is not None and not local.context.plain:
            y = self.quick_call(inputs, settings)
            if y is not NotImplemented:
                return y
        inputs, settings = self.parameters.bind(inputs, settings)
        arrays = as_operands(self, inputs)
        try:
            y = self.forward(*arrays, **settings)
        except Exception as error:
            misuse.failed(self, inputs, error)
        y, saved = misuse.pair(self, y) if self.saves else (y, None)
        if not any(isinstance(x, Variable) for x in inputs):
            return y
        return self.remember(as_result(self, y, inputs), saved, inputs, arrays, settings)

    def remember(
        self, y: Any, saved: Any, inputs: tuple, arrays: Sequence[Any], settings: dict[str, Any]
    ) -> Any:
        """The tensor around the result y, with a record if a gradient can be asked for."""
        here, record = local.context, None
        # Integers and booleans, which are no floating numbers, have no derivative.
        if here.recording and any(map(tracked, inputs)) and y.dtype.kind == "f":
            kept = tuple(x if tracked(x) else a for x, a in zip(inputs, arrays, strict=True))
            record = Record(clock(), self, kept, settings, saved, here.scope)
        result = tensor_of(y, record)
        for watcher in (*everywhere, *here.watchers):
            watcher.computed(self, inputs, settings, result)
        return result

    def pull(
        self, g: Any, y: Any, record: Record, inputs: list, needs: list[bool]
    ) -> dict[int, Any]:
        """{i: the gradient by input i} for the inputs that need one, from g, the gradient by the
        result y.
        """
        if self.joint is not None:
            extra: dict[str, Any] = {"saved": record.saved} if self.saves else {}
            if misuse.takes_needs(self.joint):
                extra["needs"] = tuple(needs)
            shares = self.joint(g, y, *inputs, **record.settings, **extra)
            misuse.check_shares(self, shares, len(inputs))
            return {
                i: s for i, s in enumerate(shares) if s is not None and i < len(needs) and needs[i]
            }
        misuse.check_derivative(self, needs)
        return {
            i: rule(g, y, *inputs, **record.settings)
            for i, (rule, need) in enumerate(zip(self.rules, needs, strict=False))
            if need and rule is not None
        }


@overload
def op(forward: Callable[..., Any], **flags: Any) -> Op: ...
@overload
def op(
    *, broadcasts: bool = False, saves: bool = False, twin: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Op]: ...
def op(forward: Callable[..., Any] | None = None, **flags: Any) -> Any:
    """`@op` makes a function on arrays an op; give it its derivative with `.vjp`.

        @op
        def cube(x):
            return x * x * x
        cube.vjp(lambda g, y, x: g * 3 * x * x)

    Positional arguments are differentiable inputs, keyword-only ones are settings. Each rule gets
    `g`, the gradient of the loss by the result `y`, then `y` and the inputs, and returns the
    gradient of its input, of that input's shape. Write rules with operators, methods and NumPy
    functions and they can be differentiated again.

    Flags: `broadcasts=True`, the op follows NumPy broadcasting and its gradients are summed back to
    the inputs' shapes; `saves=True`, forward returns `(y, saved)`, and the rule for all gets
    `saved=`; `twin=f`, a composite of ops that computes the same and is differentiated in its place
    where a derivative is to be differentiated again.
    """
    misuse.check_flags_of_op(flags)
    return Op(forward, **flags) if forward is not None else lambda f: Op(f, **flags)


@op
def clone(x: Any) -> Any:
    """y = x, in memory of its own."""
    return x.copy()


clone.vjp(lambda g, y, x: g)
