"""What a function reads beside its arguments, and whether it is still as it was.

A compiled program is right as long as everything that was not an argument is what it was when the
program was written: the numbers and functions that the source names, the attributes of modules and
objects, `training`, what a list holds. `Outside` finds all this from the function's bytecode and
from what it refers to. Tensors among it are inputs of the program, read at each call; an array is
compared with a copy; the rest is asked for again at each call. What cannot be asked, a file, a
clock, a generator of random numbers, is a `Refusal`.
"""

from __future__ import annotations

import builtins
import dis
import functools
import operator
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np

from ...engine import Op, Variable
from ...messages.errors import describe, is_module
from ...transforms.programs.symbol import KNOWN

PACKAGE = __name__.partition(".")[0]
LARGEST = 1 << 20
"""Bytes of an array that is compared with a copy at each call."""
MOST = 20_000
"""Values that are looked at."""
OPEN = ("engine", "ops", "tensor", "functional", "transforms", "nn", "messages")
"""The rooms whose functions do nothing but compute."""
STILL = (
    "math cmath operator itertools functools collections typing types numbers abc enum "
    "fractions __future__ contextlib numpy"
)
CALM = set(STILL.split())
"""Modules whose functions answer the same each time."""
NUMPYS = (
    "arange array asanyarray asarray ascontiguousarray asfortranarray bartlett blackman bmat "
    "broadcast_shapes can_cast common_type copyto diag_indices diag_indices_from empty "
    "empty_like eye fill_diagonal fromfunction fromiter full full_like hamming hanning "
    "histogram histogram_bin_edges identity indices iscomplexobj isfortran isrealobj isscalar "
    "issubdtype iterable ix_ kaiser mask_indices may_share_memory min_scalar_type ndim ones "
    "ones_like piecewise place poly polyder polydiv polyfit polyint polymul promote_types put "
    "put_along_axis putmask result_type roots row_stack setxor1d shape size tri tril_indices "
    "triu_indices unique_all unique_counts unique_inverse unique_values zeros zeros_like "
    "linalg.eig linalg.eigvals linalg.lstsq lib.stride_tricks.as_strided s_ index_exp r_ c_ "
    "mgrid ogrid ndarray dtype generic number bool_ errstate finfo iinfo ndindex ndenumerate"
)
PLAIN_NUMPY = {
    id(functools.reduce(lambda x, part: getattr(x, part, None), name.split("."), cast(Any, np)))
    for name in (*KNOWN, *NUMPYS.split())
} - {id(None)}
"""What computes with what it is given, and reads nothing else: no file, clock or setting."""
PLAIN_CLASSES = ("abc", "enum", "typing")
"""Modules of Python's whose classes may be bases of a class whose objects are watched."""
BUILTINS = (
    "abs all any bool bytes callable complex dict divmod enumerate filter float frozenset "
    "getattr hasattr int isinstance issubclass iter len list map max min next object pow "
    "property range repr reversed round set slice sorted staticmethod classmethod str sum super "
    "tuple type zip NotImplemented Ellipsis __build_class__ __debug__ __name__"
)
PLAIN_BUILTINS = set(BUILTINS.split())
CHANGED_BY = (
    "backward zero_grad zero_grad_ retain_grad requires_grad_ manual_seed tofile dump "
    "__setattr__ __delattr__"
)
CHANGES = set(CHANGED_BY.split())
READS = {"grad", "_grad", "name", "is_leaf"}
SAID = (
    "__init__ __new__ __post_init__ __class__ __dict__ __call__ __getattribute__ __setattr__ "
    "__delattr__ __getattr__ __len__ __iter__ __next__ __getitem__ __contains__ __enter__ "
    "__exit__ __name__ __qualname__"
)
DUNDERS = set(SAID.split())
"""Of such names, what may be read: a class, a function or a module has more than is watched."""
ALL_NAMES = {"getattr", "vars", "__dict__", "__getattribute__", "attrgetter"}
VALUES = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, np.dtype)
MAKERS = ("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__")


SPECIAL = (
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __copy__ __deepcopy__ __reduce__ "
    "__reduce_ex__ __getstate__ __setstate__ __repr__ __str__ __del__ __dir__ __sizeof__ "
    "__format__"
)
UNCALLED = set(SPECIAL.split())
"""What no computation reads of a class unless it names it."""


class Refusal(Exception):
    """Why there is no program."""


class Code(NamedTuple):
    """What is read in a piece of bytecode."""

    chains: tuple[tuple[str, ...], ...]  # a global name, and the attributes behind it
    attributes: frozenset[str]  # of anything else
    inner: tuple[Any, ...]
    imports: tuple[str, ...]
    assigned: frozenset[str]  # variables of an enclosing function
    trouble: str


@functools.lru_cache(maxsize=4096)
def read(code: Any, maker: bool) -> Code:
    """What this code reads and writes that is not its own."""
    chains: list[list[str]] = []
    attributes, imports, assigned, trouble = set[str](), [], set[str](), ""
    chain: list[str] | None = None
    for step in dis.get_instructions(code):
        name = step.opname
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            chain = [step.argval]
            chains.append(chain)
            continue
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            if step.argval[:2] == "__" and step.argval not in DUNDERS:
                trouble = f"reads .{step.argval}"
            if chain is not None:
                chain.append(step.argval)
            else:
                attributes.add(step.argval)
            continue
        if name in ("CACHE", "EXTENDED_ARG"):
            continue
        chain = None
        if name == "LOAD_SUPER_ATTR":
            attributes.add(step.argval)
        elif name == "MATCH_CLASS":
            trouble = "matches the attributes of a class"
        elif name == "IMPORT_NAME":
            imports.append(step.argval)
        elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            trouble = f"assigns the global {step.argval!r}"
        elif name in ("STORE_ATTR", "DELETE_ATTR") and not maker:
            trouble = f"assigns the attribute {step.argval!r}"
        elif name in ("STORE_DEREF", "DELETE_DEREF"):
            assigned.add(step.argval)
    inner = tuple(c for c in code.co_consts if isinstance(c, types.CodeType))
    if code.co_flags & (0x80 | 0x100 | 0x200):
        trouble = "is async"
    found = tuple(map(tuple, chains)), frozenset(attributes), inner, tuple(imports)
    return Code(*found, frozenset(assigned.intersection(code.co_freevars)), trouble)


def home(x: Any) -> str:
    """The name of the module that something is defined in."""
    return getattr(x, "__module__", None) or ""


def ours(module: str) -> bool:
    """Does this module belong to the package?"""
    return module == PACKAGE or module.startswith(PACKAGE + ".")


def calm(module: str) -> bool:
    """A module whose functions compute, and keep nothing?"""
    top, _, rest = module.partition(".")
    if top == PACKAGE:
        return rest.partition(".")[0] in OPEN
    return top in CALM and not module.startswith("numpy.random")


class Outside:
    """Everything that a function reads beside its arguments."""

    def __init__(self, function: Any) -> None:
        self.names: set[str] = {"forward"}
        while True:
            before = len(self.names)
            self.tensors: dict[int, tuple[Any, str]] = {}
            self.arrays: dict[int, tuple[Any, Any]] = {}
            self.slots: list[tuple[Any, Any, Any]] = []  # a dict or list, a key, the value
            self.sizes: list[tuple[Any, int]] = []
            self.orders: list[tuple[Any, list[Any]]] = []  # a dict, and its keys
            self.cells: list[tuple[Any, Any]] = []
            self.absent: list[tuple[Any, Any]] = []  # a dict, and a key that it does not have
            self.attributes: list[tuple[Any, str, Any]] = []  # an object, a name, the value
            self.classes: set[Any] = set()
            self.contents: list[tuple[Any, Any]] = []  # containers, as they were
            self.key: list[Any] = []
            self.seen: dict[int, Any] = {}
            self.visit(function, "f")
            if len(self.names) == before:
                return

    # ---- values

    def visit(self, x: Any, name: str) -> None:
        """Write down what x is, and go on to what it refers to."""
        kind = type(x)
        if simple(x):
            self.key.append((kind, repr(x) if isinstance(x, (float, complex, np.generic)) else x))
            return
        self.key.append(kind if kind in (tuple, types.MethodType) else id(x))
        if id(x) in self.seen:
            return
        self.seen[id(x)] = x
        if len(self.seen) > MOST:
            raise Refusal(f"it refers to more than {MOST} values")
        if hasattr(kind, "_programs"):  # compiled itself
            self.visit(x._programs.f, name)
        elif isinstance(x, Variable):
            data = x._data
            self.key.append((data.shape, data.dtype, x._tracked))
            self.tensors[id(x)] = x, name
        elif kind is np.ndarray:
            self.array(x, name)
        elif kind in (tuple, list, dict, set, frozenset):
            self.container(x, name)
        elif isinstance(x, Op):
            self.op(x, name)
        elif isinstance(x, (type, types.FunctionType, types.MethodType, functools.partial)):
            self.callable(x, name)
        elif isinstance(x, (staticmethod, classmethod, functools.cached_property, property)):
            for part in ("__func__", "func", "fget"):
                if getattr(x, part, None) is not None:
                    self.visit(getattr(x, part), name)
        elif not self.harmless(x):
            self.instance(x, name)

    def harmless(self, x: Any) -> bool:
        """A function written in C, or one of the package's, that does nothing but compute?"""
        if isinstance(x, np.ufunc):
            return "vectorized" not in x.__name__
        if isinstance(x, (slice, types.WrapperDescriptorType, types.GenericAlias)):
            return True
        if isinstance(x, types.BuiltinFunctionType):
            owner = x.__self__
            if owner is None or isinstance(owner, types.ModuleType):
                plain = owner is builtins and x.__name__ in PLAIN_BUILTINS - ALL_NAMES
                return plain or calm(home(x)) and not numpys(x)
            self.visit(owner, x.__name__)
            return True
        if isinstance(x, (types.MethodDescriptorType, types.GetSetDescriptorType)):
            return True
        if isinstance(x, (types.MemberDescriptorType, types.ClassMethodDescriptorType)):
            return True
        if hasattr(x, "kernel") or isinstance(x, (operator.itemgetter, type(vars(Code)["inner"]))):
            return True  # the last is what a named tuple has for its fields
        here = home(type(x))
        return ours(here) and calm(here) and callable(x) and not is_module(x)

    def array(self, x: Any, name: str) -> None:
        """An array, which is compared with a copy at each call."""
        if x.nbytes > LARGEST or x.dtype.hasobject:
            raise Refusal(
                f"it reads {name}, {describe(x)}, which is too large to be compared at each call; "
                "pass it as an argument, or make it a buffer of the module"
            )
        self.arrays[id(x)] = x, x.copy()
        self.key.append((x.shape, x.dtype.str, x.tobytes()))

    def container(self, x: Any, name: str) -> None:
        """What is in a tuple, list, dict or set."""
        self.key.append((type(x), len(x)))
        if isinstance(x, dict):
            self.orders.append((x, list(x)))
            self.contents.append((x, dict(x)))
            for k, v in list(x.items()):
                self.visit(k, name)
                self.slots.append((x, k, v))
                self.visit(v, f"{name}[{k!r}]")
            return
        if isinstance(x, (set, frozenset)):
            if not all(type(v) in VALUES for v in x):
                raise Refusal(f"it reads {name}, a set of more than numbers and texts")
            self.key.append(frozenset(x))
            if isinstance(x, set):
                raise Refusal(f"it reads {name}, a set; a frozenset cannot change")
            return
        if isinstance(x, list):
            self.sizes.append((x, len(x)))
            self.contents.append((x, list(x)))
            self.slots += [(x, i, v) for i, v in enumerate(x)]
        for i, v in enumerate(x):
            self.visit(v, f"{name}[{i}]")

    def instance(self, x: Any, name: str) -> None:
        """An object: its class, and those of its attributes that are read."""
        kind = type(x)
        theirs = not ours(home(kind))
        if isinstance(x, types.ModuleType):
            raise Refusal(f"it uses the module {x.__name__} itself, not only what is in it")
        seen = (is_module(x) or theirs) and watchable(kind)  # type: ignore[arg-type]
        if not seen or isinstance(x, BaseException):
            raise Refusal(f"it uses {name}, {described(x)}, which cannot be watched")
        self.klass(kind, name, False)
        if theirs:
            self.attributes.append((x, "__class__", kind))
        has = getattr(x, "__dict__", None)
        if has is not None:
            if theirs or home(kind).endswith("containers"):  # whose code may go through it
                self.orders.append((has, list(has)))
            else:
                self.sizes.append((has, len(has)))
            self.contents.append((has, dict(has)))
            self.key.append(tuple(has))
            every = not theirs or of_ours(kind) or self.names & ALL_NAMES
            for k, v in list(has.items()):
                if every or k in self.names or is_module(v) or isinstance(v, Variable):
                    self.slots.append((has, k, v))
                    self.visit(v, f"{name}.{k}")
        for k in slots_of(kind):
            if not hasattr(x, k):
                raise Refusal(f"it uses {name}, {described(x)}, whose slot {k!r} is empty")
            v = getattr(x, k)
            self.attributes.append((x, k, v))
            self.visit(v, f"{name}.{k}")

    # ---- functions

    def op(self, x: Any, name: str) -> None:
        """An op: of a user's own, its functions."""
        if not ours(home(x.forward)):
            for part in ("forward", "vjps", "joint_vjp", "reference"):
                self.attributes.append((x, part, getattr(x, part)))
            for rule in (x.forward, *x.vjps, x.joint_vjp, x.reference):
                self.visit(rule, name)

    def callable(self, x: Any, name: str) -> None:
        """A function, a method, a class or a partial."""
        if isinstance(x, types.MethodType):
            self.visit(x.__self__, name)
            self.visit(x.__func__, name)
        elif isinstance(x, functools.partial):
            self.visit(x.func, name)
            self.visit(x.args, name)
            self.visit(x.keywords, name)
        elif isinstance(x, type):
            self.klass(x, name, True)
        elif numpys(x):
            raise Refusal(
                f"it calls {home(x)}.{x.__name__}, which may read more than its arguments"
            )
        elif not calm(home(x)):
            self.function(x)
        else:
            self.held(x)

    def function(self, f: Any) -> None:
        """The globals, the closure and the defaults of a function."""
        if ours(home(f)):
            raise Refusal(f"it calls {home(f)}.{f.__name__}, which does more than compute")
        maker = f.__name__ in MAKERS
        self.code(f.__code__, f.__globals__, f, maker)
        for cell, name in zip(f.__closure__ or (), f.__code__.co_freevars, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Refusal(f"{f.__name__} reads {name!r}, which has no value yet") from None
            self.cells.append((cell, value))
            self.visit(value, name)
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            self.attributes.append((f, part, getattr(f, part)))
        for part in (f.__defaults__, f.__kwdefaults__, f.__dict__):
            self.visit(part, f.__name__)

    def held(self, f: Any) -> None:
        """What a function of the package's holds of the user's: that of ta.value_and_grad, say."""
        for cell in getattr(f, "__closure__", None) or ():
            with suppress(ValueError):  # a cell that is empty yet
                v = cell.cell_contents
                function = isinstance(v, (types.FunctionType, types.MethodType, functools.partial))
                theirs = function and (calm(home(v)) or not ours(home(v)))
                if (
                    theirs
                    or hasattr(type(v), "_programs")
                    or is_module(v)
                    or isinstance(v, Variable)
                ):
                    self.visit(v, f.__name__)

    def code(
        self, code: Any, space: dict[str, Any], f: Any, maker: bool, own: frozenset = frozenset()
    ) -> None:
        """The names that are read in bytecode, and in that of functions inside, which may assign
        the variables of those around them.
        """
        found = read(code, maker)
        if found.trouble:
            raise Refusal(f"{f.__name__} {found.trouble}")
        for name in found.assigned - own:
            raise Refusal(f"{f.__name__} assigns {name!r} outside of itself")
        self.attribute_names(found.attributes, f)
        for module in found.imports:
            if not calm(module) and module != PACKAGE or "random" in code.co_names:
                raise Refusal(f"{f.__name__} imports {module} when it is called")
        for chain in found.chains:
            self.chain(chain, space, f)
        for inner in found.inner:
            self.code(inner, space, f, maker, own.union(code.co_cellvars))

    def attribute_names(self, names: Any, f: Any) -> None:
        """Names of attributes that are read of values."""
        for name in names & CHANGES:
            raise Refusal(f"{f.__name__} calls .{name}, which changes more than its result")
        for name in names & READS:
            raise Refusal(f"{f.__name__} reads .{name}")
        self.names.update(names)

    def chain(self, chain: tuple[str, ...], space: dict[str, Any], f: Any) -> None:
        """`name.attribute.attribute`, as far as they are of modules."""
        name, *rest = chain
        self.names.update(ALL_NAMES.intersection(rest))
        if name in space:
            x, place = space[name], space
        elif hasattr(builtins, name):
            self.absent.append((space, name))
            x = getattr(builtins, name)
            raised = isinstance(x, type) and issubclass(x, BaseException)
            if name not in PLAIN_BUILTINS and not raised:
                raise Refusal(f"{f.__name__} calls {name}")
            self.names.update({name} & ALL_NAMES)
            return self.attribute_names(frozenset(rest), f)
        else:
            self.absent.append((space, name))
            return None
        self.slots.append((place, name, x))
        while isinstance(x, types.ModuleType) and rest:
            name, *rest = rest
            if x.__name__.startswith("numpy.random") or x is np and name == "random":
                raise Refusal(f"{f.__name__} draws random numbers with {'.'.join(chain)}")
            inside = x
            if not hasattr(inside, name):
                return None
            x = getattr(inside, name)
            if name in vars(inside):
                self.slots.append((vars(inside), name, x))
        self.attribute_names(frozenset(rest), f)
        return self.visit(x, ".".join(chain[: len(chain) - len(rest)]))

    def klass(self, kind: Any, name: str, made: bool) -> None:
        """The methods and attributes of a class that are read; of one that is called, how it makes
        objects.
        """
        if (kind, made) in self.classes:
            return
        self.classes.add((kind, made))
        raised = issubclass(kind, BaseException)
        if kind.__module__ == "builtins":
            if not raised and kind.__name__ not in PLAIN_BUILTINS:
                raise Refusal(f"it uses {name}, the class {kind.__name__}, which is not watched")
            return
        known = calm(kind.__module__) and kind not in (operator.attrgetter, operator.methodcaller)
        plain = type(kind).__module__ in ("builtins", *PLAIN_CLASSES)
        numbers = raised or issubclass(kind, (np.number, np.bool_))
        if not (known or watchable(kind)) or not plain or numpys(kind) and not numbers:
            raise Refusal(f"it uses {name}, the class {kind.__name__}, which cannot be watched")
        if not calm(kind.__module__):
            self.attributes.append((kind, "__mro__", kind.__mro__))
        for base in kind.__mro__:
            space = vars(base)
            if ours(base.__module__) and "forward" in space:
                self.slots.append((space, "forward", space["forward"]))
            if base is object or calm(base.__module__) or ours(base.__module__) and not made:
                continue
            if ours(base.__module__):
                raise Refusal(f"it makes {kind.__name__}, which does more than compute")
            self.orders.append((space, list(space)))
            for k, v in list(space.items()):
                special = k.startswith("__") and k.endswith("__")
                if k in UNCALLED and k not in self.names:
                    continue
                read = special or k in self.names or self.names & ALL_NAMES
                if k in MAKERS and not made or not read:
                    continue
                called = callable(v) or isinstance(v, (property, classmethod, staticmethod))
                if special and not called:
                    continue
                self.slots.append((space, k, v))
                self.visit(v, f"{base.__name__}.{k}")

    # ---- asking again

    def guard(self) -> Callable[[], Any]:
        """A function that returns the arrays of the Tensors, or None if anything has changed."""
        held: dict[str, Any] = {"same": same_array, "ndarray": np.ndarray, "MISSING": object()}
        names: dict[int, str] = {}

        def name_of(x: Any) -> str:
            if id(x) not in names:
                names[id(x)] = f"v{len(names)}"
                held[names[id(x)]] = x
            return names[id(x)]

        lines = ["def guard():", "  try:"]
        test = lambda condition: lines.append(f"    if not ({condition}): return None")
        for x, n in self.sizes:
            test(f"len({name_of(x)}) == {n}")
        for x, keys in self.orders:
            test(f"[*{name_of(x)}] == {name_of(keys)}")
            if any(type(k) is not str for k in keys):  # for 1 == True
                test(f"[*map(type, {name_of(x)})] == {name_of([*map(type, keys)])}")
        for x, k, v in self.slots:
            key = repr(k) if type(k) in (str, int) else name_of(k)
            test(f"{name_of(x)}[{key}] is {name_of(v)}")
        for cell, v in self.cells:
            test(f"{name_of(cell)}.cell_contents is {name_of(v)}")
        for x, k in self.absent:
            test(f"{k!r} not in {name_of(x)}")
        for x, k, v in self.attributes:
            test(f"{name_of(x)}.{k} is {name_of(v)}")
        for x, copy in self.arrays.values():
            test(f"same({name_of(x)}, {name_of(copy)})")
        for i, (t, _) in enumerate(self.tensors.values()):
            data = t._data
            lines.append(f"    d{i} = {name_of(t)}._data")
            test(
                f"type(d{i}) is {name_of(type(data))} and d{i}.shape == {data.shape} and "
                f"d{i}.dtype is {name_of(data.dtype)} and {name_of(t)}._tracked is {t._tracked}"
            )
        lines.append(f"    return [{', '.join(f'd{i}' for i in range(len(self.tensors)))}]")
        lines.append("  except (KeyError, IndexError, AttributeError, ValueError): return None")
        exec(compile("\n".join(lines), "<what ta.compile asks at each call>", "exec"), held)
        return held["guard"]

    def put_back(self) -> None:
        """The containers and arrays as they were before the function was run."""
        for x, copy in self.arrays.values():
            if not same_array(x, copy):
                x[...] = copy
        for x, before in self.contents:
            if isinstance(x, list):
                if len(x) != len(before) or any(a is not b for a, b in zip(x, before)):
                    x[:] = before
            elif len(x) != len(before) or any(x.get(k, x) is not v for k, v in before.items()):
                x.clear()
                x.update(before)


def same_array(x: Any, copy: Any) -> bool:
    """Has the array the numbers that it had?"""
    return x.shape == copy.shape and x.dtype == copy.dtype and x.tobytes() == copy.tobytes()


@functools.lru_cache(maxsize=4096)
def watchable(kind: Any) -> bool:
    """A class that the user, or the package, has written in Python, and whose bases are such? Of
    others nobody knows what they keep.
    """
    return all(base in (object, tuple) or in_python(base) for base in kind.__mro__)


def in_python(base: type) -> bool:
    """A class without methods that were written in C, and not of Python's or NumPy's?"""
    top = base.__module__.partition(".")[0]
    if top in PLAIN_CLASSES or issubclass(base, BaseException):
        return True
    if top in sys.stdlib_module_names or top == "numpy":
        return False
    c_code = types.MethodDescriptorType
    return bool(base.__flags__ & (1 << 9)) and not any(
        isinstance(v, c_code) for v in vars(base).values()
    )


def simple(x: Any) -> bool:
    """A value without parts, or one of NumPy's functions that do nothing but compute?"""
    number = isinstance(x, (np.generic, np.dtype)) and type(x) is not np.void
    return type(x) in VALUES or number or id(x) in PLAIN_NUMPY


def numpys(x: Any) -> bool:
    """NumPy's, but none of what is known to do nothing but compute?"""
    return home(x).partition(".")[0] == "numpy" and id(x) not in PLAIN_NUMPY


def of_ours(kind: type) -> bool:
    """A user's layer that goes on from one of the package's, whose code reads its attributes?"""
    bases = [base for base in kind.__mro__[1:] if ours(base.__module__)]
    return any(base.__name__ != "Module" for base in bases)


def slots_of(kind: type) -> list[str]:
    """The names of attributes that do not lie in a __dict__."""
    slot = types.MemberDescriptorType
    return [k for base in kind.__mro__ for k, v in vars(base).items() if isinstance(v, slot)]


def described(x: Any) -> str:
    """`a Random of random`, for a message."""
    return f"a {type(x).__name__} of {home(type(x))}"


__all__ = ["Outside", "Refusal"]
