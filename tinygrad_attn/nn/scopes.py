"""The module call that is running, and its name."""

from __future__ import annotations

from typing import Any


class Scope:
    """One call of a module, and the call in which it happened."""

    __slots__ = ("module", "outer")

    def __init__(self, module: Any, outer: Scope | None) -> None:
        self.module, self.outer = module, outer


def dotted_name(scope: Scope | None, root: Any = None) -> str:
    """Return the name of a called module as seen from `root`: `layers.0.self_attn`.

    Without a root it is seen from the outermost module that was called. The root itself gets its
    class name. A module that is not an attribute of the one that calls it gets its class name,
    under the name of its caller.
    """
    chain: list[Any] = []  # from the inside out
    while scope is not None:
        chain.append(scope.module)
        scope = scope.outer
    if not chain:
        return "attention"
    root = chain[-1] if root is None else root
    names = {id(module): name for name, module in root.named_modules()}
    tail: list[str] = []
    for module in chain:
        if id(module) in names:
            return ".".join(filter(None, [names[id(module)], *tail])) or type(module).__name__
        tail.insert(0, type(module).__name__)
    return ".".join(tail)
