"""What the package has, asked from the package itself, and what each table of the tests must hold.

No test module writes down the names that there are: it asks here, and compares with the keys of its
table. What is new is then missed by a test, whose message says where a line has to be added.
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


def modules() -> Iterator[ModuleType]:
    """Every module of the package, except those that are programs."""
    for found in pkgutil.walk_packages(tinygrad_attn.__path__, "tinygrad_attn."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def public(module: ModuleType, kind: Callable[[object], bool]) -> dict[str, object]:
    """The names in a module's `__all__` whose values are of a kind."""
    values = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in values.items() if kind(value)}


def ops_in(*rooms: ModuleType) -> dict[str, Op]:
    """The ops that these modules hold; without any, all ops of the package by their dotted names."""
    if rooms:
        return {
            name: value
            for room in rooms
            for name, value in vars(room).items()
            if isinstance(value, Op)
        }
    every = [value for module in modules() for value in ops_in(module).values()]
    return {f"{one.__module__}.{one.__name__}": one for one in every}


def rules_of(one: Op) -> list[Callable]:
    """The rules of an op, the joint rule among them."""
    return [rule for rule in (*one.vjps, one.joint_vjp) if rule is not None]


def unmet(have: Iterable[str], met: Iterable[str], advice: str) -> list[str]:
    """A line for each name that no test meets, and for each key whose name is gone; empty where all is well.

    The advice says what to add where, with {name} in place of the name.
    """
    have, met = set(have), set(met)
    return [
        *(f"nothing tests {name!r}: {advice.format(name=name)}" for name in sorted(have - met)),
        *(
            f"{name!r} is tested but is not there any more: take it out ({advice.format(name=name)})"
            for name in sorted(met - have)
        ),
    ]


def asserted(complaints: list[str]) -> None:
    """Fails with one complaint a line."""
    assert not complaints, "\n" + "\n".join(complaints)


@contextmanager
def calls() -> Iterator[set[CodeType]]:
    """The code of every Python function that is called inside, of whatever module."""
    seen: set[CodeType] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def code_of(function: Callable) -> CodeType | None:
    """The code that runs when a function is called; None for one that is written in C."""
    function = inspect.unwrap(getattr(function, "func", getattr(function, "function", function)))
    return getattr(function, "__code__", None)


def uncalled(one: Op, seen: set[CodeType]) -> list[str]:
    """The rules of an op that are not among the functions called, by the line where they stand."""
    return [
        f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"
        for code in map(code_of, rules_of(one))
        if code is not None and code not in seen
    ]
