"""Lists the contents of the package, for comparison with the tables of the tests.

Tests do not spell out these names. They get them from here and compare them with the keys of their
tables, so that a test fails for each new name. Its message says where to add a line.
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType

import tinygrad_attn
from tinygrad_attn.engine import Op
from tinygrad_attn.engine.op import Gone


def modules() -> Iterator[ModuleType]:
    """Every module of the package, except `__main__` modules."""
    for found in pkgutil.walk_packages(tinygrad_attn.__path__, "tinygrad_attn."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def public(module: ModuleType, kind: Callable[[object], bool]) -> dict[str, object]:
    """The names in a module's `__all__` whose values satisfy `kind`."""
    values = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in values.items() if kind(value)}


def ops_in(*rooms: ModuleType) -> dict[str, Op]:
    """The ops defined in these modules by name, or all ops of the package by dotted name."""
    if rooms:
        return {
            name: value
            for room in rooms
            for name, value in vars(room).items()
            if isinstance(value, Op) and not isinstance(value, Gone)
        }
    every = [value for module in modules() for value in ops_in(module).values()]
    return {f"{one.__module__}.{one.__name__}": one for one in every}


def rules_of(one: Op) -> list[Callable]:
    """The backward rules of an op, including its joint rule."""
    return [rule for rule in (*one.vjps, one.joint_vjp) if rule is not None]


def unmet(have: Iterable[str], met: Iterable[str], advice: str) -> list[str]:
    """Return a complaint for each name without a test, and for each tested name that is gone.

    The advice says what to add and where, with {name} as a placeholder.
    """
    have, met = set(have), set(met)
    return [
        *(f"nothing tests {name!r}: {advice.format(name=name)}" for name in sorted(have - met)),
        *(
            f"{name!r} is tested but no longer exists: remove it ({advice.format(name=name)})"
            for name in sorted(met - have)
        ),
    ]


def asserted(complaints: list[str]) -> None:
    """Fail with one complaint per line."""
    assert not complaints, "\n" + "\n".join(complaints)


@contextmanager
def calls() -> Iterator[set[CodeType]]:
    """Collect the code objects of all Python functions called in the block."""
    seen: set[CodeType] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def code_of(function: Callable) -> CodeType | None:
    """The code that runs when a function is called, or None for a function written in C."""
    function = inspect.unwrap(getattr(function, "func", getattr(function, "function", function)))
    return getattr(function, "__code__", None)


def uncalled(one: Op, seen: set[CodeType]) -> list[str]:
    """The rules of an op that were not called, as file and line."""
    return [
        f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"
        for code in map(code_of, rules_of(one))
        if code is not None and code not in seen
    ]
