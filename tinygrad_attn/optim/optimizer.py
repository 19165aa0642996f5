"""What all optimisers share: parameter groups, the step, saving and loading. Arrays only, no graph.

An optimiser says which arrays it keeps beside each parameter (`_state_names`) and how one step
changes one parameter and them (`_update`). The step collects what is to be updated, and
`apply_updates` calls the rule for one parameter after the other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine import context, enable_grad, inplace
from ..errors import describe, warn
from ..functional.checks import check_number
from ..nn.parameter import zero_gradients
from ..tensor import Tensor
from . import arguments

Array = NDArray[Any]
History = dict[str, Any]
"""What is kept for one parameter: {"step": how many updates it has had, name: array}."""

_ABSTRACT = "use SGD, Adam or AdamW, or subclass Optimizer and give _state_names and _update"
_NO_GRADIENT = (
    "step() changed nothing: no parameter has a gradient. Call loss.backward() before it, and "
    "zero_grad() before that, not between; the loss must depend on the parameters that the "
    "optimiser was given"
)


@dataclass(slots=True)
class Work:
    """What a step is about to do to one group; item i of each list belongs to parameter i."""

    group: Mapping[str, Any]
    parameters: list[Tensor]  # those that have a gradient
    histories: list[History]
    steps: list[int]  # the number that this update has, from 1
    values: list[Array]
    gradients: list[Array]
    states: list[list[Array]]  # for each name of `_state_names` the arrays of all parameters


def apply_updates(optimizer: Optimizer, work: list[Work]) -> None:
    """Change each parameter and its state by the optimiser's rule."""
    for w in work:
        for step, p, g, *state in zip(w.steps, w.values, w.gradients, *w.states, strict=True):
            optimizer._update(w.group, step, p, g, *state)


quick_walk: Callable[[Optimizer, list[Work]], bool] | None = None
"""A quicker `apply_updates`, put here from outside; returns False where it does not fit."""


def _alike(values: list[Array], gradients: list[Array], states: list[list[Array]]) -> bool:
    """Has each parameter its gradient's shape, and what its state was made for? May it be changed?

    All of a parameter's state was made like the first array of it.
    """
    shapes = [p.shape for p in values]
    known = states[0] if states else values
    return (
        shapes == [g.shape for g in gradients]
        and shapes == [a.shape for a in known]
        and [p.dtype for p in values] == [a.dtype for a in known]
        and all([p.flags.writeable for p in values])
    )


class Optimizer:
    """What SGD, Adam and AdamW share: parameter groups, the step, saving and loading.

    `params` is a list of parameters (`model.parameters()`), or of dicts such as {"params": [...],
    "lr": 1e-4}, whose settings replace the common ones. A parameter whose `.grad` is None is left
    alone, its step count too.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self._histories: dict[Tensor, History] = {}
        for group in arguments.parameter_groups(params):
            self.add_param_group(group)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Train more parameters, with settings of their own. Raises as the constructor does."""
        unknown = arguments.keys_of(group) - set(self.defaults) - {"params", "initial_lr"}
        if unknown or "params" not in group:
            raise ValueError(
                f"a parameter group has 'params' and any of {sorted(self.defaults)}; got "
                f"{sorted(group)}. Write optimizer.param_groups[i][key] = value afterwards for a "
                "key of your own"
            )
        seen = {id(p) for p, _ in self._parameters()}
        params = arguments.parameters_of_group(group["params"], seen)
        full = {**self.defaults, **group, "params": params}
        self._check(full)
        self.param_groups.append(full)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients (or fill them with zeros). Call it before each backward pass."""
        zero_gradients((p for p, _ in self._parameters()), set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        A `closure`, a function that computes the gradients and returns the loss, is called before,
        and its loss returned. Ctrl-C in the middle may leave some parameters, or only their state,
        updated and others not: go on from a checkpoint.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = arguments.check_closure(closure)()
        work = self._collected()  # raises, if at all, before anything has changed
        for w in work:
            if self._counts(w.group):
                for history, step in zip(w.histories, w.steps, strict=True):
                    history["step"] = step
        if not any(w.parameters for w in work):
            warn(_NO_GRADIENT)
        try:
            plain = quick_walk is None or context.plain
            if plain or not quick_walk(self, work):  # type: ignore[misc]
                apply_updates(self, work)
        finally:  # a step that was broken off has changed some
            inplace.changed(*[array for w in work for array in w.values])
        return loss

    # ---- what an optimiser says of itself

    def _check(self, group: Mapping[str, Any]) -> None:
        """Raise for settings of a group that make no sense."""
        for name in ("lr", "weight_decay", "momentum", "dampening", "eps"):
            if name in group:
                arguments.check_setting(group[name], name, type(self).__name__)

    def _state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The arrays kept beside each parameter, zeros at first."""
        raise TypeError(_ABSTRACT)

    def _counts(self, group: Mapping[str, Any]) -> bool:
        """Does `step` count this update? SGD counts those with momentum, as the first differs."""
        return True

    def _update(
        self, group: Mapping[str, Any], step: int, p: Array, g: Array, *state: Array
    ) -> None:
        """The equation: change parameter and state in place, by the gradient g, which is read."""
        raise TypeError(_ABSTRACT)

    # ---- the parameters and what is kept beside them

    def _parameters(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Each parameter with its group, in the order in which a saved state numbers them."""
        for group in self.param_groups:
            for p in group["params"]:
                yield p, group

    def _history(self, p: Tensor, names: tuple[str, ...]) -> History:
        """What is kept for p; these names at least, for momentum, say, may be switched on later."""
        history = self._histories.setdefault(p, {"step": 0})
        for name in names:
            if name not in history:
                history[name] = np.zeros(p._data.shape, p._data.dtype)
        return history

    def _collected(self) -> list[Work]:
        """What there is to do for the parameters that have a gradient, in each group."""
        work = []
        for group in self.param_groups:
            check_number(group.get("lr", 0.0), type(self).__name__, "lr")  # it may be set by hand
            names = self._state_names(group)
            params = [p for p in group["params"] if p._grad is not None]
            values: list[Any] = [
                p._data if p._data.__class__ is np.ndarray else p._array() for p in params
            ]
            gradients = [
                g if (g := p._grad).__class__ is np.ndarray else p.grad._array() for p in params
            ]
            try:
                histories = list(map(self._histories.__getitem__, params))
                states = [[history[name] for history in histories] for name in names]
            except KeyError:  # a new parameter, or a new name
                histories = [self._history(p, names) for p in params]
                states = [[history[name] for history in histories] for name in names]
            if not _alike(values, gradients, states):
                for arrays in zip(params, values, gradients, *states[:1], strict=True):
                    self._check_arrays(*arrays)
            steps = [history["step"] + 1 for history in histories]
            work.append(Work(group, params, histories, steps, values, gradients, states))
        return work

    def _check_arrays(self, p: Tensor, values: Array, gradient: Array, *state: Array) -> None:
        """Raise where the parameter has got another shape or dtype, or may not be written to."""
        known, whose = state[0] if state else values, "the optimiser has its state for"
        if known.shape == values.shape and known.dtype == values.dtype:
            if gradient.shape == values.shape and values.flags.writeable:
                return
            known, whose = gradient, "its gradient is for"
        index = [id(q) for q, _ in self._parameters()].index(id(p))
        if not values.flags.writeable:
            raise ValueError(
                f"parameter {index}, {p.shape}, is read-only and cannot be updated; write p.data = "
                "p.numpy().copy()"
            )
        raise ValueError(
            f"parameter {index} is now {p.shape} {p.dtype}, but {whose} {known.shape} "
            f"{known.dtype}; make the optimiser after model.astype(...), and put new numbers in by "
            "p.data[...] = values"
        )

    # ---- saving and loading

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: {"step": n, name: array}}, "param_groups": [...]}, PyTorch's form.

        The arrays are copies.
        """
        state, own = {}, self._own_state() or {}
        for index, (p, group) in enumerate(self._parameters()):
            if p in own:
                state[index] = copy.deepcopy(own[p])
            elif p in self._histories and self._histories[p]["step"]:
                history = self._history(p, self._state_names(group))
                state[index] = {name: np.array(value) for name, value in history.items()}
        numbers = count()
        groups = [
            {**group, "params": [next(numbers) for _ in group["params"]]}
            for group in self.param_groups
        ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises ValueError if groups, indices, names, shapes or the kind differ.
        """
        arguments.check_state(state_dict)
        arguments.check_sizes(state_dict, self.param_groups)
        saved_groups = state_dict["param_groups"]
        arguments.check_kind(saved_groups, self.defaults, type(self).__name__)
        renewed = [
            self._renewed(*groups) for groups in zip(self.param_groups, saved_groups, strict=True)
        ]
        state = {int(index): entry for index, entry in state_dict["state"].items()}
        loaded = self._loaded(state, renewed)
        # Ctrl-C comes before or after a call, not in it: so all is as it was, or all is loaded.
        any(map(dict.update, [*self.param_groups, vars(self)], [*renewed, loaded]))

    def _renewed(self, group: dict[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
        """The group with the saved settings, as far as this kind of optimiser has them."""
        arguments.check_decay(saved, getattr(self, "decoupled", True))
        settings = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in saved.items()
            if name in self.defaults or name == "initial_lr"
        }
        renewed = {**group, **settings}
        self._check(renewed)
        return renewed

    def _loaded(
        self, state: Mapping[int, Mapping[str, Any]], groups: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The attribute that keeps what was saved beside the parameters, by its name."""
        numbered = [(p, group) for group in groups for p in group["params"]]
        if (own := self._own_state()) is not None:
            loaded = copy.copy(own)  # a defaultdict stays one
            loaded.clear()
            loaded.update(
                {p: copy.deepcopy(state[i]) for i, (p, _) in enumerate(numbered) if i in state}
            )
            return {"state": loaded}
        histories = {}
        for index, entry in state.items():
            p, group = numbered[index]
            histories[p] = self._loaded_history(p, group, entry, index)
        return {"_histories": histories}

    def _loaded_history(
        self, p: Tensor, group: Mapping[str, Any], entry: Mapping[str, Any], index: int
    ) -> History:
        names = self._state_names(group)
        needed = (*names, "step") if "exp_avg" in names else names  # PyTorch's SGD saves no step
        if lacking := [name for name in needed if name not in entry]:
            raise ValueError(
                f"the saved state of parameter {index} lacks {lacking[0]!r}; it has {sorted(entry)}"
            )
        if entry.get("momentum_buffer") is not None:  # kept where momentum is off for now
            names = (*dict.fromkeys((*names, "momentum_buffer")),)
        steps = arguments.saved_steps(entry.get("step", 1), index)
        history: History = {"step": steps if names or self._counts(group) else 0}
        for name in names:
            history[name] = arguments.saved_array(entry[name], name, index, p._array())
        return history

    def _own_state(self) -> dict[Tensor, Any] | None:
        """self.state of an optimiser with a step() of its own, if that keeps it by parameter."""
        own = vars(self).get("state") if type(self)._update is Optimizer._update else None
        by_parameter = isinstance(own, dict) and all(isinstance(p, Tensor) for p in own)
        return own if by_parameter else None

    # ---- settings stand in the groups: as attributes no step would see them

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if name in vars(self).get("defaults", ()):
            hint = f" Write optimizer.param_groups[0][{name!r}]."
        if name == "state":
            hint = (
                " Write optimizer.state_dict()['state'] to read it; one of your own begins by "
                "self.state = defaultdict(dict)."
            )
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> None:
        ours = type(self).__module__.startswith(__name__.partition(".")[0] + ".")
        if ours and name in vars(self).get("defaults", ()):
            raise AttributeError(
                f"{type(self).__name__} has its {name} in its groups, and an attribute would "
                f"change nothing. Write optimizer.param_groups[0][{name!r}] = {describe(value)}."
            )
        object.__setattr__(self, name, value)
