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
from pathlib import Path

import numpy as np

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn.engine import context
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

    def forward(self, x):
        return [self.linear(x), np.tanh(x)]


MODELS = [Layer, Shared, Nested]


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
    seen: list = field(default_factory=list)  # (model, what ta.activations recorded)
    fills_grad: bool = True  # of activations


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


def outcome(make, *ways):
    """Run a new model in these ways, and return all that can be observed."""
    ta.manual_seed(1)
    model = make().astype(np.float64)
    x = Tensor(np.random.default_rng(2).standard_normal((2, 3, 4)), requires_grad=True)
    run = Run(make, model, [x], gradients=by_backward)
    ta.manual_seed(5)
    state, attributes = context.captured(), shape_of(model)
    with ExitStack() as stack:
        for way in ways:
            stack.enter_context(way(run))
        output = run.gradients(run)
    final = core(run.model)
    grads = {name: p.grad for name, p in final.named_parameters()} | {"x": run.inputs[0].grad}
    left = {k: v for k, v in context.captured().items() if v is not state[k]}
    assert not left, f"left in the run: {left}"
    assert shape_of(model) == attributes, "left in the model"
    recorded = [seen for model, seen in run.seen if model is final]
    return {
        "outputs": arrays(output),
        "structure": repr(tree_map(lambda y: None if y is None else type(y).__name__, output)),
        "gradients": {k: None if g is None else np.array(g.numpy()) for k, g in grads.items()},
        "buffers": {name: np.array(b.numpy()) for name, b in final.named_buffers()},
        "fills_grad": run.fills_grad,
        "random": [ta.random.get_rng_state()[k].tolist() for k in ("key", "position")],
        "activations": [
            {
                name: (arrays(a.outputs[-1]), arrays([a.grad]) if run.fills_grad else None)
                for name, a in seen.items()
                if a.outputs
            }
            for seen in recorded
        ],
    }


def shape_of(model):
    """What a run must not change: the attributes of each module, by name and type."""
    return {
        name: {k: type(v) for k, v in vars(module).items() if k != "_hooks"}
        | {"hooks": len(module._hooks)}
        for name, module in model.named_modules()
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
        run.seen.append((core(run.model), seen))
        yield


@way
def record_attention(run):
    with ta.record_attention():
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
            while not stop.is_set():
                with ta.patch(model, {"0": lambda y: y * 2}), ta.activations(model), ta.plain():
                    ta.checkpoint(model, x).sum().backward()
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


def again(tree):
    """The same values in new tensors; one tensor that stands twice stays one."""
    leaves = {id(y): y * 1.0 for y in tree_leaves(tree) if isinstance(y, Tensor)}
    return tree_map(lambda y: leaves.get(id(y), y), tree)


def other_arguments(module, args):
    return again(args)


def another_output(module, args, output):
    return again(output)


def other_gradients(module, grad_input, grad_output):
    return again(grad_input)


@contextmanager
def hooks(run, before, after, backward, on_inputs):
    """Hooks on all modules; they are functions with names, because a pickled model has them too."""
    handles = [x.register_hook(on_inputs) for x in run.inputs]
    for module in core(run.model).modules():
        handles += [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after),
            module.register_full_backward_hook(backward),
        ]
    yield
    for handle in handles:
        handle.remove()


@way
def hooks_that_look(run):
    with hooks(run, look, look, look, look):
        yield


@way
def hooks_that_replace(run):
    with hooks(run, other_arguments, another_output, other_gradients, again):
        yield


@way
def patch(run):
    with ta.patch(core(run.model), {"*": lambda y: y * 1.0}):
        yield


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
        return ta.functional_call(wrapped, dict(wrapped.named_parameters()), inputs)

    run.forward = forward
    yield


@way
def data_parallel(run):
    run.model = DataParallel(run.model)
    yield


# ---- copies


@way
def deepcopy(run):
    run.model = copy.deepcopy(run.model)
    yield


@way
def pickled(run):
    run.model = pickle.loads(pickle.dumps(run.model))
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

    run.gradients = lambda run: through_parameters(run, transform)
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
    """Programs of the outputs and of the loss, which are called in place of the model."""

    def gradients(run):
        model, x = Wrapped(run.model, run.forward), run.inputs
        step = ta.source(lambda *x: loss_of(model(*x)), *x, params=model)
        leaves = dict(zip(step._arguments, x)) | dict(model.named_parameters())
        for name, g in step(*x)[1].items():
            leaves[name].grad = g
        output = ta.source(model, *x, backward=False)(*x)
        for _, seen in run.seen:
            assert seen[""].output  # raises: a program calls no modules
        # A file that imports only NumPy knows no named tuples.
        output = Pair(*output) if type(output) is tuple else output
        return tree_map(lambda y: Tensor(y) if isinstance(y, np.ndarray) else y, output)

    run.gradients = gradients
    yield
