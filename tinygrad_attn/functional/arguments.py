"""What the functions of `functional`, and the optimisers, ask of their arguments, and the errors that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from ..engine import Variable
from ..messages.errors import describe, nearest, refuse_mask, warn
from ..tensor import Tensor, get_default_dtype

REDUCTIONS = ("none", "mean", "sum")


def plain(x: Any) -> Any:
    """The array of a Tensor; anything else as it is."""
    return (
        x._data if isinstance(x, Variable) else x
    )  # masked arrays and pandas' have a _data too, without their mask


def real(x: Any, function: str) -> Any:
    """A Tensor or array of real numbers; integers become the default dtype, lists a Tensor."""
    if not isinstance(x, (Variable, np.ndarray)):
        x = Tensor(x)
    kind = plain(x).dtype.kind
    if kind == "f":
        return x
    if kind in "iub":
        return x.astype(get_default_dtype())
    raise TypeError(f"{function} needs real numbers, got {describe(x)}.")


def integers(x: Any, function: str, what: str) -> np.ndarray:
    """A plain array of integers; a copy, for the caller may fill the array anew before the backward pass."""
    refuse_mask(function, x)
    array = np.array(plain(x))
    if array.size == 0 and not hasattr(x, "dtype"):
        array = array.astype(np.int64)  # an empty list is a list of no integers
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function} needs integers as {what}, got {describe(x)}; "
            f"write {what}.astype(np.int64) if they are whole numbers."
        )
    return array


def padding_row(padding_idx: Any, rows: int, function: str) -> int | None:
    """The row of a table that gets no gradient, counted from the start."""
    if padding_idx is None:
        return None
    try:
        row = index(padding_idx)
    except TypeError:
        row = rows
    if not -rows <= row < rows:
        raise ValueError(
            f"{function}: padding_idx={padding_idx!r} is not one of the {rows} rows of the table."
        )
    return row % rows


def check_array(x: Any, function: str, name: str) -> None:
    """A Tensor or an array, which has a shape and a dtype."""
    if not hasattr(x, "dtype"):
        raise TypeError(
            f"{function}: {name} is a Tensor or an array, got {describe(x)}; write Tensor({name})."
        )


def first_outside(values: np.ndarray, outside: np.ndarray) -> str:
    """`7 at position (0, 2)`: the first of the values for which `outside` holds."""
    where = tuple(int(i) for i in np.argwhere(outside)[0])
    return f"{values[where]} at position {where}" if where else f"{values[()]}"


def check_axis(x: Any, axis: Any, function: str, several: bool = False) -> None:
    """An existing axis, or a tuple of them if there may be several; a single number counts as a row of one, as in PyTorch."""
    ndim = max(x.ndim, 1)
    for a in axis if several and isinstance(axis, tuple) else (axis,):
        if not isinstance(a, (int, np.integer)) or isinstance(a, bool):
            raise TypeError(f"{function} needs an integer axis, got {a!r}.")
        if not -ndim <= a < ndim:
            raise ValueError(
                f"{function}: axis {a} does not exist in {describe(x)}; it lies in [{-ndim}, {ndim})."
            )


def check_choice(value: str, known: Sequence[str], name: str, function: str) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{function}: {name} is one of {', '.join(map(repr, known))}, got {describe(value)}."
            + nearest(str(value), known)
        )


def check_probability(p: float, function: str, name: str = "p") -> None:
    """A number from 0 to 1."""
    if (
        isinstance(p, bool) or not isinstance(p, (int, float, np.number)) or not 0 <= p <= 1
    ):  # True is meant for the next argument
        raise ValueError(
            f"{function}: {name} is the probability to drop an element and lies in [0, 1], got {p!r}."
        )


def single(value: Any) -> Any:
    """The number in an array of no axes, of NumPy's or PyTorch's; anything else, also a Tensor, as it is."""
    alone = (
        not isinstance(value, Variable)
        and getattr(value, "shape", None) == ()
        and hasattr(value, "item")
    )
    return value.item() if alone else value


def check_number(value: Any, function: str, name: str) -> Any:
    """The number; of a Tensor the op itself says that no derivative reaches it."""
    value = single(value)
    if not isinstance(value, (int, float, np.integer, np.floating, Variable)) or isinstance(
        value, bool
    ):
        raise TypeError(f"{function}: {name} is a number, got {describe(value)}.")
    return value


def sizes_of(normalized_shape: Any) -> tuple[int, ...]:
    """The sizes of the axes to normalise, from one whole number or several."""
    try:
        return tuple(
            map(
                index,
                (normalized_shape,)
                if isinstance(normalized_shape, (int, np.integer))
                else normalized_shape,
            )
        )
    except TypeError:
        raise TypeError(
            f"normalized_shape is the size of the last axis, or a tuple of the last sizes, such as x.shape[-1]; "
            f"got {describe(normalized_shape)}."
        ) from None


def normalized_axes(
    x: Any, normalized_shape: int | Sequence[int], function: str, **parameters: Any
) -> int:
    """How many trailing axes are normalised, after checking that they and the parameters have the shape said."""
    shape = sizes_of(normalized_shape)
    if not shape or plain(x).shape[-len(shape) :] != shape:
        hint = f" Write normalized_shape={x.shape[-1]} for its last axis." if x.ndim else ""
        raise ValueError(
            f"{function}: normalized_shape {shape} must be the last sizes of the input, "
            f"which is {describe(x)}.{hint}"
        )
    for name, parameter in parameters.items():
        if parameter is not None and getattr(plain(parameter), "shape", None) != shape:
            check_array(parameter, function, name)
            raise ValueError(
                f"{function}: {name} must have the shape normalized_shape = {shape}, "
                f"got {describe(parameter)}."
            )
    return len(shape)


def check_linear(x: Any, weight: Any, bias: Any) -> None:
    """x (..., I), weight (O, I) or (I,), bias (O,) or ()."""
    if x.ndim == 0 or weight.ndim not in (1, 2) or x.shape[-1] != weight.shape[-1]:
        turned = weight.ndim == 2 and x.ndim and x.shape[-1] == weight.shape[0]
        raise ValueError(
            "linear: the last size of the input must be the last size of the weight (out, in); got "
            f"{describe(x)} and weight {describe(weight)}."
            + (" It fits the other way round: pass weight.T." if turned else "")
        )
    if bias is not None and tuple(bias.shape) not in (tuple(weight.shape[:-1]), ()):
        raise ValueError(
            "linear: the bias must have one number for each row of the weight, "
            f"{tuple(weight.shape[:-1])}; got {describe(bias)}."
        )


def check_labels(x: Any, labels: np.ndarray, axis: int, ignore_index: int | None) -> None:
    """Class indices of the shape of the scores without the class axis, each a class or `ignore_index`."""
    if (
        isinstance(ignore_index, bool)
        or ignore_index is not None
        and not isinstance(ignore_index, (int, np.integer))
    ):
        raise TypeError(
            f"cross_entropy: ignore_index is one class number, got {describe(ignore_index)}. It says which label does not "
            "count; several need a mask: x[keep], target[keep]."
        )
    classes, expected = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    if labels.shape != expected:
        hint = ""
        if labels.shape == x.shape and x.ndim == 1 and sorted(labels) != [0] * (classes - 1) + [1]:
            hint = " Scores of several samples have a number for each class, (N, C): give it those from before argmax."
        elif labels.shape == x.shape:
            hint = " One-hot targets are probabilities: write target.astype(x.dtype)."
        elif labels.shape == (*expected, 1):
            hint = " Drop the last axis: write target[..., 0]."
        elif labels.shape == x.shape[:-1]:
            hint = f" With the classes on the last axis write np.moveaxis(x, -1, {axis})."
        raise ValueError(
            f"cross_entropy: scores {x.shape} (classes on axis {axis}) need class labels of shape "
            f"{expected}, got {labels.shape}.{hint}"
        )
    if (
        np.count_nonzero(labels.astype(np.uint64) < classes) == labels.size
    ):  # a negative one becomes very large
        return
    outside = ((labels < 0) | (labels >= classes)) & (labels != ignore_index)
    if outside.any():
        raise ValueError(
            f"cross_entropy: class {first_outside(labels, outside)} is not one of the {classes} classes "
            f"0 to {classes - 1} (nor ignore_index, {ignore_index}). Labels start at 0; for padding pass "
            "ignore_index=."
        )
    if not classes:
        raise ValueError(
            f"cross_entropy: {describe(x)} has scores for no class on axis {axis}; what is ignored needs one too."
        )


def check_probabilities(x: Any, target: Any, axis: int, ignore_index: int | None) -> None:
    """Target probabilities have the shape of the scores; float class labels are a common slip."""
    if target.shape == x.shape:
        if ignore_index is not None and ignore_index >= 0:
            raise ValueError(
                f"cross_entropy: ignore_index={ignore_index} is for class labels, and the target holds probabilities. Pick "
                "the samples that count instead: x[keep], target[keep]."
            )
        return
    text = (
        f"cross_entropy: a float target holds probabilities and has the shape of the scores, {x.shape}; "
        f"got {describe(target)}."
    )
    if target.shape == x.shape[:axis] + x.shape[axis + 1 :]:
        raise TypeError(f"{text} Class labels are integers: write target.astype(np.int64).")
    raise ValueError(
        text
        + (" The scores come first: cross_entropy(scores, target)." if target.ndim > x.ndim else "")
    )


def check_attention(q: Any, k: Any, v: Any, mask: Any) -> tuple[int, ...]:
    """The shapes (..., T, D), (..., S, D), (..., S, V) and a mask that broadcasts to (..., T, S), which is returned."""
    qs, ks, vs = plain(q).shape, plain(k).shape, plain(v).shape
    lead = qs[:-2]
    if not (len(qs) >= 2 and lead == ks[:-2] == vs[:-2] and qs[-1] == ks[-1] and ks[-2] == vs[-2]):
        lead = _broadcast_lead(q, k, v)
    scores = (*lead, qs[-2], ks[-2])
    if mask is None:
        return scores
    _check_mask(mask, scores)
    warn_if_counted(mask, "attn_mask")
    if mask.dtype == bool:
        warn_if_upside_down(mask, blocked=False)
    return np.broadcast_shapes(scores, mask.shape)


def _broadcast_lead(q: Any, k: Any, v: Any) -> tuple[int, ...]:
    """What the axes before the last two broadcast to, once it is clear that q, k and v fit together."""
    given = f"got q {describe(q)}, k {describe(k)} and v {describe(v)}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ValueError(
            f"attention needs q (..., T, D), k (..., S, D) and v (..., S, V); {given}."
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"attention compares queries with keys, so their last sizes must be equal; {given}."
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"attention needs one value for each key, so k and v must agree at axis -2; {given}."
        )
    try:
        return np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        heads = q.ndim > 2 and k.ndim > 2 and q.shape[-3] != k.shape[-3]
        raise ValueError(
            f"attention: the axes before the last two must be equal or 1; {given}."
            + (" For fewer key than query heads pass enable_gqa=True." if heads else "")
        ) from None


def _check_mask(mask: Any, scores: tuple[int, ...]) -> None:
    if mask.dtype.kind not in "bf":
        raise TypeError(
            "attn_mask is boolean (True = may look) or float (added to the scores), "
            f"got {describe(mask)}; write mask.astype(bool)."
        )
    try:
        fits = np.broadcast_shapes(mask.shape, scores)[-2:] == scores[-2:]
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"attn_mask {describe(mask)} does not broadcast to the scores {scores} = (..., T, S). "
            "For a mask (B, S) over keys write mask[:, None, None, :]."
        )


def warn_if_upside_down(mask: Any, blocked: bool) -> None:
    """A causal mask in the other convention leaves the last query nothing to look at: almost surely a mistake.

    `blocked` is what stands in the mask for a blocked key.
    """
    mask = plain(mask)
    if (
        mask.ndim == 2
        and mask.shape[0] == mask.shape[1] > 1
        and mask[0, -1] != blocked == mask[-1, -1]
        and np.array_equal(mask, np.tri(len(mask), dtype=bool) == blocked)
    ):
        warn(
            "this attn_mask blocks every earlier position, so each query sees only later ones. In nn True means blocked, in "
            "F.scaled_dot_product_attention True means may look: write ~mask, or is_causal=True."
        )


def warn_if_counted(mask: Any, name: str) -> None:
    """Zeros and ones say which keys are blocked, or open; in a float mask they would be added to the scores, and block nothing."""
    if isinstance(mask, Variable) and mask._tracked:  # learned, and at one or zero by chance
        return
    mask = plain(mask)
    if (
        mask.dtype.kind == "f"
        and mask.size
        and mask.min() == 0
        and mask.max() == 1
        and np.isin(mask, (0, 1)).all()
    ):
        warn(
            f"this {name} holds zeros and ones of dtype {mask.dtype}, which are added to the scores and block nothing. Write "
            "mask.astype(bool) where 1 stands for True, mask == 0 where it stands for False."
        )


def check_grouped(q: Any, x: Any, name: str) -> None:
    """Query heads a multiple of the heads of k or v."""
    if min(q.ndim, x.ndim) < 3 or x.shape[-3] == 0 or q.shape[-3] % x.shape[-3]:
        raise ValueError(
            f"enable_gqa needs heads at axis -3, those of q a multiple of those of {name}; "
            f"got q {describe(q)}, {name} {describe(x)}."
        )


# ---- what an optimiser is told, and what may be trained


class Grouped:
    """An optimiser, whose settings stand in its groups: as attributes, which no step would see, ours have none."""

    def __getattr__(self, name: str) -> Any:
        hint = (
            f" Write optimizer.param_groups[0][{name!r}]."
            if name in vars(self).get("defaults", ())
            else ""
        )
        if name == "state":
            hint = " Write optimizer.state_dict()['state'] to read it; one of your own begins by self.state = defaultdict(dict)."
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("defaults", ()) and type(self).__module__.startswith(
            __package__.partition(".")[0] + "."
        ):
            raise AttributeError(
                f"{type(self).__name__} has its {name} in its groups, and an attribute would change nothing. Write "
                f"optimizer.param_groups[0][{name!r}] = {describe(value)}."
            )
        object.__setattr__(self, name, value)


def check_setting(value: Any, name: str, optimizer: str) -> None:
    """A number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        hint = f"; write {name}=float(...)" if hasattr(value, "dtype") else ""
        raise ValueError(f"{optimizer}: {name} must be 0 or more, got {describe(value)}{hint}")
    if not value >= 0:
        hint = (
            "; to climb instead of descend write maximize=True"
            if name == "lr" and value < 0
            else ""
        )
        raise ValueError(f"{optimizer}: {name} must be 0 or more, got {value!r}{hint}")


def check_closure(closure: Any) -> Callable[[], Any]:
    """What an optimiser calls before its step."""
    if not callable(closure):
        raise TypeError(
            "step() takes nothing, or a function that computes the gradients and returns the loss; got "
            f"{describe(closure)}"
        )
    return closure


def check_betas(betas: Any) -> None:
    """Two numbers in [0, 1)."""
    try:
        fine = (
            isinstance(betas, (tuple, list))
            and len(betas) == 2
            and all(0 <= float(1.0 * b) < 1 for b in betas)
        )
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # by 1.0 no text is multiplied and no Decimal, with which no step could be taken
        fine = False
    if not fine:
        raise ValueError(
            f"betas are two numbers in [0, 1), got {betas}; the usual pair is (0.9, 0.999)"
        )


def check_decay(saved: Mapping[str, Any], decoupled: bool) -> None:
    """PyTorch's Adam goes on with AdamW's decay where the saved group says so; ours is one or the other."""
    if saved.get("decoupled_weight_decay") and saved.get("weight_decay") and not decoupled:
        raise ValueError(
            f"this state was saved with weight_decay={saved['weight_decay']} and decoupled_weight_decay=True, which is "
            "AdamW's decay; load it into optim.AdamW"
        )


def parameter_groups(params: Any) -> list[Mapping[str, Any]]:
    """What an optimiser was given, as a list of groups."""
    if (
        isinstance(params, (Tensor, np.ndarray, Mapping))
        or hasattr(params, "parameters")
        or not isinstance(params, Iterable)
    ):
        raise TypeError(
            f"an optimiser takes a list of parameters, got {type(params).__name__}; "
            "write SGD([p]) for one tensor, SGD(model.parameters()) for a module"
        )
    params = list(params)
    if not params:
        raise ValueError(
            "the optimiser got no parameters; model.parameters() is a generator, and one that has been walked through is "
            "empty: write list(model.parameters()) where it is used twice; and a module trains nn.Parameter, not Tensor"
        )
    return params if isinstance(params[0], Mapping) else [{"params": params}]


def keys_of(group: Any) -> set[Any]:
    """What a parameter group has."""
    if not isinstance(group, Mapping):
        raise TypeError(
            f"a parameter group is a dict such as {{'params': [p], 'lr': 0.1}}, got {describe(group)}"
        )
    return set(group)


def check_state(state: Any) -> None:
    """What `Optimizer.state_dict()` returns, as far as its form goes."""
    fine = (
        isinstance(state, Mapping)
        and isinstance(state.get("state"), Mapping)
        and isinstance(state.get("param_groups"), (list, tuple))
    )
    if not fine or not all(
        isinstance(group, Mapping) and "params" in group for group in state["param_groups"]
    ):
        raise ValueError(
            "this is no optimiser's state: it has no 'param_groups' or no 'state'. Give it what "
            "optimiser.state_dict() returned; a model's weights go to model.load_state_dict"
        )


def parameters_of_group(params: Any, seen: set[int]) -> list[Tensor]:
    """The tensors of one group, each once, all of them leaves that want a gradient; a Parameter may be frozen for a time."""
    if not isinstance(params, (Tensor, Iterable)) or isinstance(params, np.ndarray):
        raise TypeError(
            f"the 'params' of a group are a list of parameters, got {describe(params)}; write {{'params': [p]}} for one tensor"
        )
    params = [params] if isinstance(params, Tensor) else list(params)
    if not params:
        raise ValueError(
            "a parameter group is empty: leave it out; or has the generator in it been walked through already?"
        )
    found: dict[int, Tensor] = {}
    for i, p in enumerate(params):
        if not isinstance(p, Tensor):
            hint = {
                tuple: "named_parameters() gives pairs, write parameters()",
                np.ndarray: "write nn.Parameter(x) for an array x",
            }.get(type(p), "the parameters of two modules are [*a.parameters(), *b.parameters()]")
            raise TypeError(
                f"an optimiser trains Tensors, but item {i} is of type {type(p).__name__}; {hint}"
            )
        name = p.name or f"item {i}"
        if p._record is not None:
            raise ValueError(
                f"{name} of shape {p.shape} is the result of a computation, not a leaf, and would never "
                "get a .grad; train what it was computed from, or p = Tensor(x.data, requires_grad=True)"
            )
        if not p.requires_grad and type(p) is Tensor:  # forgotten, most likely
            raise ValueError(
                f"{name} of shape {p.shape} does not require a gradient; set p.requires_grad = True, or "
                "leave it out: [p for p in model.parameters() if p.requires_grad]"
            )
        if id(p) in seen:
            raise ValueError(
                f"{name} of shape {p.shape} is in two parameter groups; it can follow only one of them"
            )
        if id(p) in found:
            warn(f"{name} is given twice to the optimiser; it is updated once per step")
        found[id(p)] = p
    return list(found.values())
