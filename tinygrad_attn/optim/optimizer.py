"""The base class of the optimisers, and SGD, Adam and AdamW."""

import copy
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..engine import inplace, reference
from ..errors import describe, is_number, nearest, warn
from ..nn.module import Parameter, zero_gradients
from ..tensor import Tensor
from ..tensor.convert import as_array

History = dict[str, Any]
"""The state of one parameter: {"step": number of updates, name: array, ...}."""


def _check_ordered(params):
    """Raise TypeError for a set, because a state dict refers to parameters by their order."""
    if isinstance(params, set | frozenset):
        raise TypeError(
            "the order of parameters in a set differs from run to run, so a saved state would be "
            "loaded into other parameters. Pass a list, such as list(model.parameters())."
        )


@reference
def apply_updates(optimizer, updates):
    """Update each parameter and its state.

    An update is (group, history, [values, gradient, *state]), with the arrays of the state in the
    order of `_state_names`. The step in the history is the number of this update, counted from 1.
    """
    for group, history, arrays in updates:
        optimizer._update(group, history["step"], *arrays)


class Optimizer:
    """The base class of SGD, Adam and AdamW.

    `params` is an iterable of parameters, of pairs (name, parameter), or of groups with their own
    settings, such as {"params": [...], "lr": 1e-4}. A set raises TypeError. A parameter whose
    `.grad` is None is not changed. `state[p]` is the state of parameter p, which `state_dict`
    includes.
    """

    def __init__(self, params, defaults: dict):
        self.defaults = defaults
        self.param_groups: list[dict] = []
        self.state: defaultdict[Tensor, History] = defaultdict(dict)
        if isinstance(params, Tensor) or not isinstance(params, Iterable):
            raise TypeError(
                f"an optimiser takes a list of parameters, got {type(params).__name__}. Write "
                "SGD(model.parameters()) for a module, or SGD([p]) for one tensor."
            )
        _check_ordered(params)
        params = list(params)
        are_groups = params and isinstance(params[0], Mapping)
        for group in params if are_groups else [{"params": params}]:
            self.add_param_group(group)

    def __setattr__(self, name, value):
        if name in vars(self).get("defaults", ()):
            write = f"optimizer.param_groups[0][{name!r}] = {value!r}"
            raise AttributeError(f"to change {name}, write {write}.")
        object.__setattr__(self, name, value)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with their own settings. Raises the same errors as the constructor.

        `group["params"]` may consist of pairs (name, parameter), whose names are then listed under
        "param_names". The group may have other keys, which no optimiser reads.
        """
        for key in {*group} - {*self.defaults, "params"}:
            if hint := nearest(key, self.defaults):
                raise ValueError(f"an optimiser does not read {key!r} in a parameter group.{hint}")
        items = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        _check_ordered(items)
        pairs = [item if isinstance(item, tuple) else (None, item) for item in items]
        if not pairs:
            raise ValueError(
                "the optimiser got no parameters. Parameters of a module are of type nn.Parameter. "
                "To read the generator model.parameters() twice, write list(model.parameters())."
            )
        taken = {*self._parameters()}
        for i, (name, p) in enumerate(pairs):
            if not isinstance(p, Tensor):
                raise TypeError(f"only Tensors can be trained, but item {i} is {describe(p)}.")
            if not p.is_leaf or not p.requires_grad and not isinstance(p, Parameter):
                raise ValueError(
                    f"item {i}, {describe(p)}, never gets a .grad. Pass leaf tensors with "
                    "requires_grad=True."
                )
            if p in taken:
                raise ValueError(f"{name or p.name or f'item {i}'} is in two parameter groups.")
        names = {p: name for name, p in reversed(pairs)}
        distinct = list(dict.fromkeys(p for _, p in pairs))  # a duplicate is updated once
        full = {**self.defaults, **group, "params": distinct}
        if any(names.values()):
            full["param_names"] = [names[p] for p in distinct]
        self._check(full)
        self.param_groups.append(full)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or to zeros."""
        zero_gradients(self._parameters(), set_to_none)

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        updates = [update for group in self.param_groups for update in self._updates(group)]
        if not updates:
            warn("step() changed nothing: no parameter has a gradient. Call loss.backward() first.")
        for _, history, _ in updates:
            history["step"] += 1
        apply_updates(self, updates)
        inplace.changed(*[arrays[0] for _, _, arrays in updates])

    # ---- methods for subclasses

    def _check(self, group):
        for name in ("lr", "weight_decay", "momentum", "dampening", "eps"):
            value = group.get(name, 0.0)
            if not is_number(value) or not value >= 0:
                raise ValueError(f"{name} must be a number >= 0, got {describe(value)}.")

    def _state_names(self, group):
        """Return the names of the arrays kept for each parameter. The arrays start as zeros."""
        return ()

    def _update(self, group, step, p, g, *state):
        """Update the parameter p and its state in place, with the gradient g."""
        raise NotImplementedError

    # ---- the arrays of a step

    def _parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def _updates(self, group):
        """Return the updates of a group. Missing state consists of zeros."""
        updates, names = [], self._state_names(group)
        for p in group["params"]:
            if p._grad is None:
                continue
            value, gradient, history = p._array(), p._grad._array(), self.state[p]
            state = history.get(names[0], value) if names else value
            if not value.shape == gradient.shape == state.shape or value.dtype != state.dtype:
                raise ValueError(
                    f"{describe(p)} has a gradient of shape {gradient.shape} but optimiser state "
                    f"{state.shape} {state.dtype}; create the optimiser after calling "
                    "model.astype(...), and set new values with p.data[...] = values."
                )
            history.setdefault("step", 0)
            arrays = [value, gradient]
            for name in names:
                if name not in history:
                    history[name] = np.zeros_like(value)
                    if name == "momentum_buffer":  # it starts as the first gradient
                        history["step"] = 0
                arrays.append(history[name])
            updates.append((group, history, arrays))
        return updates

    # ---- saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state as {"state": {...}, "param_groups": [...]}, like PyTorch."""
        numbers = {p: i for i, p in enumerate(self._parameters())}
        groups = [{**g, "params": [numbers[p] for p in g["params"]]} for g in self.param_groups]
        kept = {i: copy.deepcopy(self.state[p]) for p, i in numbers.items() if self.state.get(p)}
        return {"state": kept, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict from this package or PyTorch.

        Raises ValueError, and changes nothing, if the optimisers, groups or shapes do not match.
        """
        saved = state_dict["param_groups"]
        ours, theirs = [[len(g["params"]) for g in groups] for groups in (self.param_groups, saved)]
        if ours != theirs:
            raise ValueError(f"the saved groups have {theirs} parameters, the optimiser's {ours}.")
        pairs, params = zip(self.param_groups, saved), self._parameters()
        settings = [self._loaded_settings(*pair) for pair in pairs]
        entries = [(params[int(i)], entry) for i, entry in state_dict["state"].items()]
        self.state = defaultdict(dict, {p: _loaded_history(p, entry) for p, entry in entries})
        for group, new in zip(self.param_groups, settings):
            group.update(new)

    def _loaded_settings(self, group, saved):
        """Return a group's saved settings; raise ValueError for another kind of optimiser."""
        required = {*self.defaults} & {"betas", "momentum"}
        decoupled = saved.get("decoupled_weight_decay") and saved.get("weight_decay")
        if not required <= {*saved} or decoupled and not getattr(self, "decoupled", True):
            raise ValueError(f"{type(self).__name__}: another kind of optimiser saved this state.")
        known = {*self.defaults, *group, "initial_lr"} - {"params"}
        settings = {key: saved[key] for key in saved if key in known}
        self._check({**self.defaults, **settings})
        return settings


def _loaded_history(p, entry):
    """Return a copy of the saved state of p, converted to the dtype of p."""
    arrays = {name: x for name, x in entry.items() if name != "step" and x is not None}
    history: History = {name: np.array(as_array(x), p.dtype) for name, x in arrays.items()}
    for name, array in history.items():
        if array.shape != p.shape:
            raise ValueError(f"{name} of {describe(p)} was saved as {describe(array)}.")
    return history | {"step": int(entry.get("step", 1))}  # PyTorch's SGD does not save the step


class SGD(Optimizer):
    """d = g + wd p;  b = momentum b + (1 - dampening) d, at first b = d;  p = p - lr b.

    With `nesterov`, p = p - lr (d + momentum b). Like `torch.optim.SGD`.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ):
        defaults = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        super().__init__(params, defaults | dict(nesterov=nesterov, maximize=maximize))

    def _check(self, group):
        super()._check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov=True needs momentum > 0 and dampening=0.")

    def _state_names(self, group):
        return ("momentum_buffer",) if group["momentum"] else ()

    def _update(self, group, step, p, g, *state):
        momentum, decay = float(group["momentum"]), float(group["weight_decay"])
        d = -g if group["maximize"] else g
        if decay:
            d = d + decay * p
        if momentum:
            (b,) = state
            b *= momentum
            b += d if step == 1 else (1 - float(group["dampening"])) * d
            d = d + momentum * b if group["nesterov"] else b
        p -= float(group["lr"]) * d


class Adam(Optimizer):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p = p - lr m' / (sqrt(v') + eps).

    In update t, m' = m / (1 - b1^t) and v' = v / (1 - b2^t). `weight_decay` adds wd p to the
    gradient; `amsgrad` uses the largest v so far. Kingma and Ba, 2015; like `torch.optim.Adam`.
    """

    decoupled = False

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults | dict(amsgrad=amsgrad, maximize=maximize))

    def _check(self, group):
        super()._check(group)
        betas = group["betas"]
        if not all(is_number(b) and 0 <= b < 1 for b in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}.")

    def _state_names(self, group):
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def _update(self, group, step, p, g, *state):
        b1, b2 = map(float, group["betas"])
        lr, eps, decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
        m, v, *largest = state
        if group["maximize"]:
            g = -g
        if decay and self.decoupled:
            p *= 1 - lr * decay
        elif decay:
            g = g + decay * p
        m *= b1
        m += (1 - b1) * g
        v *= b2
        square = (1 - b2) * g
        square *= g  # in this order, because g * g would overflow sooner
        v += square
        for top in largest:
            v = np.maximum(top, v, out=top)
        # The corrections are made in numbers: sqrt(v') + eps = (sqrt(v) + eps root) / root.
        root = math.sqrt(1 - b2**step)
        divisor = np.sqrt(v)
        divisor += eps * root
        change = m / divisor
        change *= lr * root / (1 - b1**step)
        p -= change


class AdamW(Adam):
    """Adam with decoupled weight decay: p = (1 - lr wd) p, then Adam's step.

    Loshchilov and Hutter, 2019; like `torch.optim.AdamW`.
    """

    decoupled = True

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **settings,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **settings)
