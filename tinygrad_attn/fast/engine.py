"""Ops of this folder, until each is a kernel of its own."""

from __future__ import annotations

from typing import Any

from ..engine import Op, array_of


def always(*_: Any, **__: Any) -> bool:
    """Accept all arguments."""
    return True


class QuickOp(Op):
    """An op that computes what another op or a reference computes, faster, where `fits` holds."""

    def __init__(self, plain: Any, forward: Any, fits: Any = None, **flags: Any) -> None:
        super().__init__(forward, stands_for=plain if isinstance(plain, Op) else None, **flags)
        self.__name__ = plain.__name__
        self.fits = fits

    def pull(self, *arguments: Any) -> Any:
        own = self.vjps or self.joint_vjp is not None
        return super().pull(*arguments) if own else self.stands_for.pull(*arguments)


def kernel_of(plain: Op, op: QuickOp) -> Any:
    """Return what is registered as the kernel of `plain`."""

    def call(*inputs: Any, **settings: Any) -> Any:
        settings = {**plain.defaults, **settings}
        try:
            fits = op.fits(*map(array_of, inputs), **settings)
        except TypeError:
            return NotImplemented
        return op(*inputs, **settings) if fits else NotImplemented

    return call


def run(op: Op, inputs: tuple, arrays: Any, settings: dict[str, Any], y: Any = None) -> Any:
    """Return op(*inputs, **settings)."""
    return op(*inputs, **settings)
