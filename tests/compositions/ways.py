"""Ways to run a model, each of which must give what the run without it gives.

A way is a context manager on a `Run`. It may enter a block, replace the model, its forward pass or
the way in which gradients are computed, and it leaves nothing behind. To test a new feature beside
all others, write one more function under `@way`.
"""

import copy
import pickle
import sys
import tempfile
import threading
from collections import namedtuple
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn
from tinygrad_attn.engine import context, tracked
from tinygrad_attn.parallel import DataParallel
from tinygrad_attn.tree import tree_leaves, tree_map

# ---- models


class Layer(nn.TransformerEncoderLayer):
    """An encoder layer with dropout."""

    def __init__(self):
        super().__init__(4, 2, 6, dropout=0.25, batch_first=True)


class Shared(nn.Module):
    """One layer under two names, a tied weight, and a buffer that each call changes."""

    def __init__(self):
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.GELU(), self.first, nn.Dropout(0.25))
        self.out = nn.Linear(4, 4)
        self.out.weight = self.first.weight
        self.register_buffer("mean", np.zeros(4))

    def forward(self, x):
        x = self.second(self.first(x))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(axis=(0, 1))
        return self.out(x - self.mean)


Pair = namedtuple("Pair", "hidden more")


class Nested(nn.Module):
    """A named tuple of a tensor and a dict, from parts that return a tuple and a list."""

    def __init__(self):
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.parts = Parts()
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        y, weights = self.attention(x, x, x)
        one, two = self.parts(y)
        return Pair(one, {"weights": weights, "two": [two, None]})


class Parts(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(4, 4)
        self.grouped = nn.GroupedQueryAttention(4, 2, 1, rotary_base=10.0, bias=True)

    def forward(self, x):
        return [self.linear(x), np.tanh(self.grouped(x))]


class Inside(nn.Module):
    """Parts that are checkpointed inside the model, one of them in another checkpoint."""

    part = staticmethod(ta.checkpoint)

    def __init__(self):
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.GELU(), self.first, nn.Dropout(0.25))
        self.scale = nn.Parameter(np.linspace(0.5, 2, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.register_buffer("mean", np.zeros(4))
        self.register_buffer("calls", np.zeros(1))

    def changes_buffers(self, x):
        if self.training:
            self.calls.data += 1  # in place
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(axis=(0, 1))
        return self.second(x * self.scale) - self.mean

    def forward(self, x):
        x = self.part(self.changes_buffers, self.first(x))
        y, weights = self.part(self.attention, x, x, x)
        bias = lambda: self.attention.in_proj_bias[:4]  # of a module that is not called then
        again = lambda x: self.part(self.second, x * 2) * self.scale + bias()
        return Pair(self.part(again, x + y), {"weights": weights})


class Unchecked(Inside):
    """The same model without checkpoints."""

    part = staticmethod(lambda f, *inputs: f(*inputs))


MODELS = [Layer, Shared, Nested, Inside]
WITHOUT = {Inside: Unchecked}
"""Models whose outcome without a way is that of another model."""


class SureLayer(Layer):
    """An encoder layer that draws no random numbers."""

    def __init__(self):
        super().__init__()
        self.eval()


class SureShared(Shared):
    """Shared and tied parts that draw no random numbers and change no buffer."""

    def __init__(self):
        super().__init__()
        self.eval()


SURE = [SureLayer, SureShared]
"""More models, for the ways that refuse random numbers."""

# ---- a run


@dataclass
class Run:
    """A model and how to run it."""

    make: type
    model: nn.Module
    inputs: list
    forward: object = lambda model, *inputs: model(*inputs)
    gradients: object = None
    calls: int = 1  # how often the model runs
    seen: list = field(default_factory=list)  # (model, what ta.activations recorded, of one call)
    attended: list = field(default_factory=list)  # what ta.record_attention recorded
    changes: list = field(default_factory=list)  # (model, name of a way that changes its numbers)
    fills_grad: bool = True  # of activations

    def copied_to(self, model):
        """Go on with a copy, which has the hooks of the modules too, but no patches."""
        hooked = [name for of, name in self.changes if of is core(self.model) and "hook" in name]
        self.model = model
        self.changes += [(core(model), name) for name in hooked]


def loss_of(output):
    """The sum of all numbers in the output, with weights that tell them apart."""
    draw = np.random.default_rng(3).standard_normal
    floats = [y for y in tree_leaves(output) if isinstance(y, Tensor)]
    return sum((y * draw(y.shape)).sum() for y in floats)


def by_backward(run):
    """Return outputs, and fill .grad."""
    output = run.forward(run.model, *run.inputs)
    loss_of(output).backward()
    return output


def core(model):
    """The model itself, without a wrapper."""
    return core(model.module) if isinstance(model, DataParallel) else model


def arrays(tree):
    return [np.array(y.numpy()) for y in tree_leaves(tree) if isinstance(y, Tensor)]


@cache
def made(make):
    """A new model, of which each run has a copy: drawing its weights takes longer."""
    ta.manual_seed(1)
    return make().astype(np.float64)


def new_run(make, rank=0):
    """A run of a new model. Each rank has inputs and dropout masks of its own."""
    model = copy.deepcopy(made(make))
    x = Tensor(np.random.default_rng(2 + rank).standard_normal((2, 3, 4)), requires_grad=True)
    ta.manual_seed(5 + rank)
    return Run(make, model, [x], gradients=by_backward)


def outcome(make, *ways, rank=0, by_hand=()):
    """Run a new model in these ways, and return all that can be observed."""
    run = new_run(make, rank)
    if by_hand:
        change_by_hand(run, by_hand)
    with nothing_left(run.model), ExitStack() as stack:
        for way in ways:
            stack.enter_context(way(run))
        output = run.gradients(run)
    final = core(run.model)
    grads = {name: p.grad for name, p in final.named_parameters()} | {"x": run.inputs[0].grad}
    state = ta.random.get_rng_state()
    return {
        "outputs": arrays(output),
        "structure": repr(tree_map(lambda y: None if y is None else type(y).__name__, output)),
        "gradients": {k: None if g is None else np.array(g.numpy()) for k, g in grads.items()},
        "buffers": {name: np.array(b.numpy()) for name, b in final.named_buffers()},
        "random": {name: np.nan_to_num(value) for name, value in state.items()},
        "activations": [
            {name: activation_of(a, run) for name, a in seen.items() if a.outputs}
            for model, seen, _ in run.seen
            if model is final
        ],
        "of_one_call": [of_one_call for model, _, of_one_call in run.seen if model is final],
        "attention": [[*seen.values()] for seen in run.attended],
        "calls": run.calls,
        "fills_grad": run.fills_grad,
        "changes": sorted(name for model, name in run.changes if model in (final, None)),
    }


def activation_of(activation, run):
    """The outputs, gradients and attention weights of all calls of a module."""
    tensors = [tree_leaves(output)[0] for output in activation.outputs]
    grads = [y.grad for y in tensors] if run.fills_grad else []
    return {
        "outputs": [arrays(output) for output in activation.outputs],
        "grads": [None if g is None else np.array(g.numpy()) for g in grads],
        "weights": activation.all_weights,
    }


@contextmanager
def nothing_left(model):
    """Raise AssertionError if the block leaves a change in the run or in the model."""
    state, attributes = context.captured(), shape_of(model)
    try:
        yield
    finally:
        left = {k: v for k, v in context.captured().items() if v is not state[k]}
        assert not left, f"left in the run: {left}"
        assert shape_of(model) == attributes, "left in the model"


def shape_of(model):
    """What a run must not change: each module's attributes, their types, and its hooks and parts."""
    return {
        name: {k: type(v) for k, v in vars(module).items() if k != "_hooks"}
        | {"hooks": len(module._hooks), "parts": [id(p) for p in module.parameters()]}
        for name, module in model.named_modules()
    }


# ---- comparison


def differences(a, b, path=""):
    """Describe where two outcomes differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [line for key in a for line in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [
            line for i, (x, y) in enumerate(zip(a, b)) for line in differences(x, y, f"{path}/{i}")
        ]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape
        same = same and (np.array_equal(a, b) or np.allclose(a, b, rtol=1e-9, atol=1e-11))
        return [] if same else [f"{path} {a.shape} is not as without them {b.shape}"]
    return [] if type(a) is type(b) and a == b else [f"{path}: {a!r:.80} is not {b!r:.80}"]


@cache
def without(make, changes=(), rank=0):
    """The outcome without ways, and what is recorded. Changes of numbers are made by hand."""
    ways, make = (WAYS["activations"], WAYS["record_attention"]), WITHOUT.get(make, make)
    expected = outcome(make, rank=rank, by_hand=changes)
    recorded = outcome(make, *ways, rank=rank, by_hand=changes)
    return expected, recorded["activations"][0], recorded["attention"][0]


def wanted(make, result, rank=0):
    """The outcome without the ways, with recordings as often as they were made."""
    expected, activations, attention = without(make, tuple(result["changes"]), rank)
    calls, fills = result["calls"], result["fills_grad"]

    def repeated(calls):
        return {
            name: {
                "outputs": a["outputs"] * calls,
                "grads": a["grads"] if fills else [],
                "weights": a["weights"] * calls,
            }
            for name, a in activations.items()
            if calls
        }

    return expected | {
        "activations": [repeated(1 if once else calls) for once in result["of_one_call"]],
        "attention": [[w * calls for w in attention if calls]] * len(result["attention"]),
        **{name: result[name] for name in ("calls", "fills_grad", "changes", "of_one_call")},
    }


WAYS = {}


def way(function):
    WAYS[function.__name__] = contextmanager(function)
    return function


# ---- modes and listeners


@way
def plain(run):
    with ta.plain():
        yield


@way
def no_grad(run):
    inner = run.forward

    def forward(model, *inputs):
        with ta.no_grad():
            sum((x * 2).sum() for x in inputs)  # a part without a graph
            with ta.enable_grad():
                return inner(model, *inputs)

    run.forward = forward
    yield


@way
def activations(run):
    with ta.activations(core(run.model)) as seen:
        run.seen.append((core(run.model), seen, False))
        yield


@way
def activations_only_forward(run):
    """The last block records; it has ended before the second run of a checkpoint around it."""
    last = []

    @contextmanager
    def block(model):
        with ta.activations(model) as seen:
            last[:] = [(model, seen, True)]
            yield

    only_forward(run, block)
    yield
    run.seen += last


@way
def record_attention(run):
    with ta.record_attention() as seen:
        run.attended.append(seen)
        yield


@way
def detect_anomaly(run):
    with ta.detect_anomaly():
        yield


@way
def second_thread(run):
    """Another thread trains a model of its own with hooks, patches, checkpoints and modes."""
    stop, failures, state = threading.Event(), [], ta.random.get_rng_state()
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Tensor(np.ones((2, 4), np.float32))
    ta.random.set_rng_state(state)

    def work():
        try:
            model[0].register_full_backward_hook(lambda module, before, after: None)
            doubled = np.maximum(2 * F.linear(x, model[0].weight, model[0].bias).numpy(), 0)
            while not stop.is_set():
                with ta.patch(model, {"0": lambda y: y * 2}), ta.activations(model), ta.plain():
                    y = ta.checkpoint(model, x)
                    y.sum().backward()
                np.testing.assert_allclose(y.numpy(), doubled, rtol=1e-6)
                with ta.no_grad():
                    assert not model(x).requires_grad
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not failures, failures


# ---- hooks and patches


def look(*values):
    """A hook that only looks."""


def scaled(factor, tree):
    """The tensors times a factor; one tensor that stands twice stays one."""
    leaves = {id(y): y * factor for y in tree_leaves(tree) if isinstance(y, Tensor)}
    return tree_map(lambda y: leaves.get(id(y), y), tree)


ARGUMENTS, OUTPUT, GRADIENT = 0.75, 1.5, 0.5  # what hooks of modules multiply by,
PATCH, TENSOR, PARAMETERS = 1.25, 3.0, 1.125  # and patches, hooks of tensors, functional calls


def other_arguments(module, args):
    return scaled(ARGUMENTS, args)


def another_output(module, args, output):
    return scaled(OUTPUT, output)


def other_gradients(module, grad_input, grad_output):
    return scaled(GRADIENT, grad_input)


@contextmanager
def hooks(model, before, after, backward):
    """Hooks on all modules; they are functions with names, because a pickled model has them too."""
    with ExitStack() as stack:
        for module in model.modules():
            stack.enter_context(module.register_forward_pre_hook(before))
            stack.enter_context(module.register_forward_hook(after))
            stack.enter_context(module.register_full_backward_hook(backward))
        yield


@way
def hooks_that_look(run):
    handles = [x.register_hook(look) for x in run.inputs]
    with hooks(core(run.model), look, look, look), ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield


@way
def hooks_that_replace(run):
    run.changes.append((core(run.model), "hooks_that_replace"))
    with hooks(core(run.model), other_arguments, another_output, other_gradients):
        yield


def only_forward(run, block):
    """Run forward passes inside block(model), which has ended when the backward pass begins."""
    inner = run.forward

    def forward(model, *inputs):
        with block(core(model)):
            return inner(model, *inputs)

    run.forward = forward


@way
def hooks_only_forward(run):
    functions = other_arguments, another_output, other_gradients
    run.changes.append((None, "hooks_that_replace"))
    only_forward(run, lambda model: hooks(model, *functions))
    yield


@way
def patch(run):
    run.changes.append((None, "patch"))
    only_forward(run, lambda model: ta.patch(model, {"*": lambda y: y * PATCH}))
    yield


@way
def tensor_hook(run):
    inner = run.forward

    def forward(model, x):
        x = x * 1.0
        x.register_hook(lambda g: g * TENSOR)
        return inner(model, x)

    run.changes.append((None, "tensor_hook"))
    run.forward = forward
    yield


scaled_back = ta.op(lambda x, *, factor: x * 1.0)
scaled_back.vjp(lambda g, y, x, *, factor: g * factor)


def change_by_hand(run, changes):
    """Write into the forward pass of each module what hooks and patches do."""
    hooked, patched, back = map(changes.count, ("hooks_that_replace", "patch", "tensor_hook"))

    def hooked_tensor(x):
        return scaled_back(x * ARGUMENTS**hooked, factor=GRADIENT**hooked) if tracked(x) else x

    def changed(inner):
        def forward(*args, **kwargs):
            new = {id(x): hooked_tensor(x) for x in args}  # one tensor passed twice stays one
            output = scaled(OUTPUT**hooked, inner(*[new[id(x)] for x in args], **kwargs))
            first, *others = tree_leaves(output)
            leaves = iter([first * PATCH**patched, *others])
            return tree_map(lambda _: next(leaves), output)

        return forward

    for module in run.model.modules():
        module.forward = changed(module.forward)
    factor = PARAMETERS ** changes.count("functional_call")
    for p in run.model.parameters():
        p.data *= factor
        p.register_hook(lambda g: g * factor)
    run.forward = lambda model, x: model(scaled_back(x, factor=TENSOR**back))


# ---- other forward passes


@way
def checkpoint(run):
    inner = run.forward
    run.forward = lambda model, *inputs: ta.checkpoint(lambda *xs: inner(model, *xs), *inputs)
    yield


class Wrapped(nn.Module):
    """A forward pass as a module, whose parameters a functional call can replace."""

    def __init__(self, inner, forward):
        self.inner, self.run = inner, forward

    def forward(self, *inputs):
        return self.run(self.inner, *inputs)


@way
def functional_call(run):
    inner = run.forward

    def forward(model, *inputs):
        wrapped = Wrapped(model, inner)
        larger = {name: p * PARAMETERS for name, p in wrapped.named_parameters()}
        return ta.functional_call(wrapped, larger, inputs)

    run.changes.append((None, "functional_call"))
    run.forward = forward
    yield


@way
def data_parallel(run):
    run.model = DataParallel(run.model)
    yield


# ---- copies


@way
def deepcopy(run):
    run.copied_to(copy.deepcopy(run.model))
    yield


@way
def pickled(run):
    run.copied_to(pickle.loads(pickle.dumps(run.model)))
    yield


@way
def saved(run):
    state = ta.random.get_rng_state()
    new = run.make().astype(np.float64)
    with tempfile.TemporaryDirectory() as folder:
        ta.save(core(run.model).state_dict(), Path(folder, "model.safetensors"))
        new.load_state_dict(ta.load(Path(folder, "model.safetensors")))
    ta.random.set_rng_state(state)
    run.model = DataParallel(new) if isinstance(run.model, DataParallel) else new
    yield


# ---- other backward passes


def through_parameters(run, transform):
    """Compute gradients by a transform of a function of the inputs and all parameters."""
    run.fills_grad = False
    wrapped = Wrapped(run.model, run.forward)
    names, weights = zip(*wrapped.named_parameters())
    count, outputs = len(run.inputs), []

    def f(*values):
        output = ta.functional_call(wrapped, dict(zip(names, values[count:])), values[:count])
        outputs[:] = [output]
        return loss_of(output)

    values = [*run.inputs, *weights]
    for x, g in zip(values, transform(f, values)):
        if np.any(g.numpy()) or x.grad is not None:  # a transform gives zeros where none arrives
            x.grad = g.detach() if x.grad is None else x.grad + g.detach()
    return outputs[0]


@way
def vjp(run):
    run.gradients = lambda run: through_parameters(run, lambda f, xs: ta.vjp(f, *xs)[1](1.0))
    yield


@way
def value_and_grad(run):
    every = lambda f, xs: ta.value_and_grad(f, argnums=range(len(xs)))(*xs)[1]
    run.gradients = lambda run: through_parameters(run, every)
    yield


@way
def jvp(run):
    """The slope along one direction, from a forward pass of its own, is that of the gradients."""

    def transform(f, xs):
        state, buffers = (
            ta.random.get_rng_state(),
            {n: b.numpy().copy() for n, b in run.model.named_buffers()},
        )
        vs = [np.random.default_rng(i).standard_normal(x.shape) for i, x in enumerate(xs)]
        slope = ta.jvp(f, xs, vs)[1]
        ta.random.set_rng_state(state)
        for name, b in run.model.named_buffers():
            b.data[...] = buffers[name]
        gradients = ta.vjp(f, *xs)[1](1.0)
        expected = sum((g.numpy() * v).sum() for g, v in zip(gradients, vs))
        np.testing.assert_allclose(slope.numpy(), expected)
        return gradients

    run.gradients, run.calls = lambda run: through_parameters(run, transform), 2
    yield


@way
def backward_steps(run):
    def gradients(run):
        output = run.forward(run.model, *run.inputs)
        assert ta.backward_steps(loss_of(output))
        return output

    run.gradients = gradients
    yield


@way
def create_graph(run):
    def gradients(run):
        output = run.forward(run.model, *run.inputs)
        loss_of(output).backward(create_graph=True)
        return output

    run.gradients = gradients
    yield
    for x in (*run.inputs, *run.model.parameters()):  # ends the cycle of x and its gradient
        x.grad = None if x.grad is None else x.grad.detach()


@way
def program(run):
    """Programs of the outputs and of the loss, which are called in place of the model.

    They run no module, so nothing is recorded.
    """
    run.calls, run.fills_grad = 0, False

    def gradients(run):
        model, x = Wrapped(run.model, run.forward), run.inputs
        step = ta.source(lambda *x: loss_of(model(*x)), *x, params=model)
        leaves = dict(zip(step._arguments, x)) | dict(model.named_parameters())
        for name, g in step(*x)[1].items():
            leaves[name].grad = g
        output = ta.source(model, *x, backward=False)(*x)
        # A file that imports only NumPy knows no named tuples.
        output = Pair(*output) if type(output) is tuple else output
        return tree_map(lambda y: Tensor(y) if isinstance(y, np.ndarray) else y, output)

    run.gradients = gradients
    yield
