"""What a bug in the zoo is, and how one is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...functional import basic as equations

Patch = tuple[Any, str, Any]
"""(object, attribute, new value)"""

Patches = list[Patch]


class Bug(NamedTuple):
    """One entry of the zoo."""

    name: str
    what: str  # the mistake
    where: str  # the project and place it was found in
    symptom: str  # what a user would see
    patches: Callable[[], Patches]

    def __str__(self) -> str:
        return f"{self.name}: {self.what}\n    found in {self.where}\n    symptom: {self.symptom}"


bugs: dict[str, Bug] = {}


def keep(name: str, what: str, where: str, symptom: str) -> Callable[[Callable[[], Patches]], None]:
    """Put a bug into the zoo; a decorator of the function that says what to replace."""

    def put_in(patches: Callable[[], Patches]) -> None:
        bugs[name] = Bug(name, what, where, symptom, patches)

    return put_in


def rule(op: Any, which: int, new: Callable | None) -> Patches:
    """Another rule for one operand."""
    return [
        (op, "vjps", tuple(new if i == which else r for i, r in enumerate(op.vjps))),
        (op, "kernel", None),
    ]


def joint(op: Any, change: Callable[..., Any]) -> Patches:
    """Another rule for all inputs, `change(right answer, g, y, *inputs, **settings)`."""
    right = op.joint_vjp

    def changed(g: Any, y: Any, *inputs: Any, **settings: Any) -> Any:
        return change(right(g, y, *inputs, **settings), g, y, *inputs, **settings)

    return [(op, "joint_vjp", changed), (op, "kernel", None)]


def in_place_of(function: Any, flawed: Any) -> Patches:
    """Another equation for a function of F, and no quick way for it."""
    return [(equations, function.__name__, flawed), (function, "kernel", None)]
