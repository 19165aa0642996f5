"""What the optimisers ask of their arguments, and the errors that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import describe, is_number, warn
from ..nn.parameter import Parameter, StateValue
from ..tensor import Tensor

TRAINED = (
    "write SGD([p]) for one tensor, SGD(model.parameters()) for a module, "
    "SGD([*a.parameters(), *b.parameters()]) for two"
)

# ---- settings


def check_setting(value: Any, name: str, optimizer: str) -> None:
    """A number, 0 or more."""
    if not is_number(value):
        hint = f"; write {name}=float(...)" if hasattr(value, "dtype") else ""
        raise ValueError(f"{optimizer}: {name} must be 0 or more, got {describe(value)}{hint}")
    if not value >= 0:
        climbs = name == "lr" and value < 0
        hint = "; to climb instead of descend write maximize=True" if climbs else ""
        raise ValueError(f"{optimizer}: {name} must be 0 or more, got {value!r}{hint}")


def check_betas(betas: Any) -> None:
    """Two numbers in [0, 1)."""
    try:
        # The product with 1.0 refuses a text and a Decimal, which float() alone would take.
        fine = (
            isinstance(betas, (tuple, list))
            and len(betas) == 2
            and all(0 <= float(1.0 * b) < 1 for b in betas)
        )
    except (TypeError, ValueError, OverflowError):
        fine = False
    if not fine:
        raise ValueError(
            f"betas are two numbers in [0, 1), got {betas}; the usual pair is (0.9, 0.999)"
        )


def check_closure(closure: Any) -> Callable[[], Any]:
    """What an optimiser calls before its step."""
    if not callable(closure):
        raise TypeError(
            "step() takes nothing, or a function that computes the gradients and returns the loss; "
            f"got {describe(closure)}"
        )
    return closure


# ---- parameters and their groups


def parameter_groups(params: Any) -> list[Mapping[str, Any]]:
    """What an optimiser was given, as a list of groups."""
    if (
        isinstance(params, (Tensor, np.ndarray, Mapping))
        or hasattr(params, "parameters")
        or not isinstance(params, Iterable)
    ):
        group = "; a group of them is in a list too, SGD([{'params': [p]}])"
        raise TypeError(
            f"an optimiser takes a list of parameters, got {type(params).__name__}; {TRAINED}"
            + (group if isinstance(params, Mapping) and "params" in params else "")
        )
    params = list(params)
    if not params:
        raise ValueError(
            "the optimiser got no parameters; model.parameters() is a generator, and one that has "
            "been walked through is empty: write list(model.parameters()) where it is used twice; "
            "and a module trains nn.Parameter, not Tensor"
        )
    return params if isinstance(params[0], Mapping) else [{"params": params}]


def keys_of(group: Any) -> set[Any]:
    """What a parameter group has."""
    if not isinstance(group, Mapping):
        raise TypeError(
            "a parameter group is a dict such as {'params': [p], 'lr': 0.1}, "
            f"got {describe(group)}"
        )
    return set(group)


def parameters_of_group(params: Any, seen: set[int]) -> list[Tensor]:
    """The tensors of one group, each once; `seen` are the ids of those in the other groups."""
    if not isinstance(params, (Tensor, Iterable)) or isinstance(params, np.ndarray):
        raise TypeError(
            f"the 'params' of a group are a list of parameters, got {describe(params)}; "
            "write {'params': [p]} for one tensor"
        )
    params = [params] if isinstance(params, Tensor) else list(params)
    if not params:
        raise ValueError(
            "a parameter group is empty: leave it out; or has the generator in it been walked "
            "through already?"
        )
    found: dict[int, Tensor] = {}
    for i, p in enumerate(params):
        _check_parameter(p, i)
        if id(p) in seen:
            raise ValueError(
                f"{p.name or f'item {i}'} of shape {p.shape} is in two parameter groups; it can "
                "follow only one of them"
            )
        if id(p) in found:
            warn(
                f"{p.name or f'item {i}'} is given twice to the optimiser; it is updated once per "
                "step"
            )
        found[id(p)] = p
    return list(found.values())


def _check_parameter(p: Any, i: int) -> None:
    """Raise for what would never be trained; only a Parameter may be frozen for a time."""
    if not isinstance(p, Tensor):
        raise TypeError(
            f"an optimiser trains Tensors, but item {i} is of type {type(p).__name__}; {_hint(p)}"
        )
    what = f"{p.name or f'item {i}'} of shape {p.shape}"
    if not p.is_leaf:
        raise ValueError(
            f"{what} is the result of a computation, not a leaf, and would never get a .grad; "
            "train what it was computed from, or p = Tensor(x.data, requires_grad=True)"
        )
    if isinstance(p, StateValue):
        raise ValueError(
            f"{what} is a value of a state dict, which never gets a gradient; write "
            "model.parameters() instead of model.state_dict().values()"
        )
    if not p.requires_grad and not isinstance(p, Parameter):
        raise ValueError(
            f"{what} does not require a gradient; set p.requires_grad = True, or leave it out: "
            "[p for p in model.parameters() if p.requires_grad]"
        )


def _hint(p: Any) -> str:
    """What was meant by an item of this type in the list of parameters."""
    if isinstance(p, tuple):
        return "named_parameters() gives pairs, write parameters()"
    if isinstance(p, np.ndarray):
        return "write nn.Parameter(x) for an array x"
    if isinstance(p, str):
        return "the names are the keys of a dict, write model.parameters()"
    if type(p).__module__.partition(".")[0] == "torch":
        return (
            "that is PyTorch's. Copy its weights by "
            "model.load_state_dict(torch_model.state_dict()) and train model.parameters()"
        )
    return "the parameters of two modules are [*a.parameters(), *b.parameters()]"


# ---- saved states


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


def check_sizes(state: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
    """The saved groups have as many parameters as these, and each saved index is one of them."""
    ours, theirs = ([len(g["params"]) for g in some] for some in (groups, state["param_groups"]))
    if ours != theirs:
        raise ValueError(
            f"the saved optimiser has groups of {theirs} parameters, this one of {ours}; make it "
            "from the same model"
        )
    for index in state["state"]:
        if not str(index).isdecimal() or int(index) >= sum(ours):
            raise ValueError(
                f"the saved state is of parameter {index!r}, but there are {sum(ours)} parameters"
            )


def check_kind(saved: list[Mapping[str, Any]], defaults: Mapping[str, Any], optimizer: str) -> None:
    """A state saved by Adam is none for SGD, nor the other way round."""
    if saved and not {*defaults} & {"betas", "momentum"} <= {*saved[0]}:
        raise ValueError(
            f"this state was saved by another kind of optimiser: {optimizer} has the settings "
            f"{sorted(defaults)}, the state {sorted({*saved[0]} - {'params'})}; make the same "
            "kind, or start afresh"
        )


def check_decay(saved: Mapping[str, Any], decoupled: bool) -> None:
    """PyTorch's Adam goes on with AdamW's decay where the saved group says so; ours is one kind."""
    if saved.get("decoupled_weight_decay") and saved.get("weight_decay") and not decoupled:
        raise ValueError(
            f"this state was saved with weight_decay={saved['weight_decay']} and "
            "decoupled_weight_decay=True, which is AdamW's decay; load it into optim.AdamW"
        )


def saved_steps(step: Any, index: int) -> int:
    """How many updates a saved state counts; PyTorch saves the number as a float."""
    if not float(step).is_integer() or step < 0:
        raise ValueError(
            f"the saved state of parameter {index} has step {float(step)}, which counts updates "
            "and so is a whole number"
        )
    return int(step)


def saved_array(value: Any, name: str, index: int, like: np.ndarray) -> np.ndarray:
    """A copy of a saved array, in the parameter's dtype, of the parameter's shape."""
    array = np.asarray(value).astype(like.dtype)
    if array.shape != like.shape:
        raise ValueError(
            f"parameter {index}: {name} was saved as {array.shape}, here it is {like.shape}"
        )
    return array
