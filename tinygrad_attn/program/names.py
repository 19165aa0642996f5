"""Name the values of a program after the variables, modules and functions that compute them.

While a function is traced, `Names` notes for each value what names its variables, module and op
suggest. When the program is written, `name_of` chooses among them.
"""

import functools
from keyword import iskeyword

from .. import functional
from ..engine import FunctionCall, Listener, array_of, context, tracked
from ..errors import is_number
from ..nn import attention, transformer
from ..nn.calls import calls, dotted_name
from .ir import is_
from .symbol import FUNCTIONS, PACKAGE, Symbol, frames, is_in

USER, MODULE, VARIABLE, OP, USE = SOURCES = "user", "module", "variable", "op", "use"
"""Where a name comes from, best first: a variable of the user's code, the module that returns the
value, a variable of the package, the op, or the module that takes the value."""
NAMING_FILES = (FUNCTIONS, transformer.__file__, attention.__file__)
"""Files of the package whose variable names are good names for values."""
GENERAL = (
    "x y z a b g t n out input inputs output outputs args arg kwargs result self value array "
    "part parts total weight bias query key target src tgt memory given found made losses wide "
    "tensor operands"
)
"""Variable names that do not describe a value."""
NAMES_OF_RESULTS = {
    "sqrt": "root", "sum": "total", "mean": "mean", "max": "largest", "exp": "exponentials",
    "log": "logarithm", "stack": "stacked", "concatenate": "joined", "where": "chosen",
    "greater": "above", "matmul": "product", "subtract": "difference", "negative": "difference",
}  # fmt: skip
"""Names for the results of functions."""
LONGEST = 70
"""The length of a dotted name, in characters, from which only its last parts are written."""


def name_of(e):
    """Return the best name of a value. Nameless gradients are called g, other nameless values h."""
    for source in SOURCES:
        if source in e.names:
            return e.names[source]
    if e.backward and "keepdims" not in e.settings:
        return "g"
    if is_(e, "call", "multiply") and is_number(e.args[0]):
        return "scaled"
    return NAMES_OF_RESULTS.get(e.name, "h")


def name_giver(e):
    """Return the value whose gradient e is if e has no name of its own, else e."""
    return e.by if e.by and not e.names else e


def deserves_a_line(e):
    """Return whether the name of e tells the reader more than its op."""
    giver = name_giver(e)
    return giver.kind != "input" and not giver.names.keys().isdisjoint((USER, MODULE, VARIABLE))


def shortened(name):
    """Return the last parts of a dotted name if the whole name would fill a line."""
    while len(name) > LONGEST and "." in name:
        name = name.partition(".")[2]
    return name


def identifier(name):
    """Turn a name such as `layers.0.weight` into an identifier such as `layers_0_weight`."""
    made = "".join(c if f"_{c}".isidentifier() else "_" for c in shortened(name))
    if not made or made[0].isdigit():
        made = "layer" + made
    return made + "_" if iskeyword(made) or made in ("np", "erf") else made


def note(x, source, name):
    """Note a name of a Tensor or a symbol. Of several names from one source, the first counts."""
    array = array_of(x)
    if isinstance(array, Symbol) and name[:1] not in ("", "_"):
        array.expression.names.setdefault(source, identifier(name))


def note_function(output, function):
    """Note the name of a function of F, or of an op with such a name, that returned the output."""
    if function.__name__ in functional.__all__:
        note(output, OP, function.__name__)


class Names(Listener):
    """Watches a traced function, and notes the names of its values."""

    def __init__(self, listing, root):
        self.listing, self.root = listing, root  # dotted names of modules start from the root
        self.kinds: dict = {}  # class names of modules with a number for a name
        self.last: dict = {}  # the last output of each call, outer calls first
        self.dotted_name = functools.cache(lambda scope: dotted_name(scope, root))

    def of_scope(self, scope):
        """Return the dotted name of a module call, or an empty string for the root."""
        return "" if scope is None or scope.module is self.root else self.dotted_name(scope)

    def computed(self, op, inputs, settings, output):
        """Name the input of modules that begin with it. Note what may be the outputs of calls."""
        note_function(output, op)
        running = [*calls(context.scope)]
        for scope in running:
            if scope not in self.last and not isinstance(scope, FunctionCall):
                note(inputs[0], USE, f"{self.of_scope(scope).rpartition('.')[2]}_input")
        self.last.update(dict.fromkeys(reversed(running), output))

    def note_outputs(self):
        """Name the outputs of modules and functions, when all of them have returned."""
        for scope, output in self.last.items():
            if isinstance(scope, FunctionCall):
                note_function(output, scope.function)
                continue
            path = self.of_scope(scope)
            *outer, name = path.split(".")
            if name.isdigit():
                self.kinds[path] = f" ({type(scope.module).__name__})"
                name = "_".join([*outer[-1:], name])
            note(output, MODULE, name)

    def pulling(self, y, g):
        """Assign the VJPs that follow to the module call in which y was computed."""
        self.listing.scope = self.of_scope(y._node.scope)

    def pulled(self, y, node, g, i, x, contribution, total):
        """Name a gradient after its value, or after the only input that it is passed on to."""
        if not (isinstance(total, Symbol) and isinstance(x._data, Symbol)):
            return
        e, by = total.expression, x._data.expression
        better = e.nameless
        if not e.names and e.by is not None and e.by.nameless:
            better = not by.nameless and by.kind != "input"
        if isinstance(g, Symbol) and g.expression is e and not by.nameless:
            better |= sum(map(tracked, node.inputs)) == 1
        if better:
            e.names, e.by = {}, by

    def look(self):
        """Note the names of values from the variables of the running functions."""
        general = GENERAL.split()
        for frame in frames():
            users = not is_in(frame, PACKAGE)
            for name, x in frame.f_locals.items() if users or is_in(frame, *NAMING_FILES) else ():
                if users or name not in general:
                    note(x, USER if users else VARIABLE, name)
                if origin := self.listing.origins.get(id(array_of(x))):
                    origin[1].names.setdefault(VARIABLE, identifier(name))
