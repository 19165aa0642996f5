"""Hooks, activations, patches and summaries, against PyTorch and against closed forms."""

import copy
import operator
import threading
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
from tinygrad_attn import Tensor, nn
from tinygrad_attn.engine import Listener, context, listening
from tinygrad_attn.nn.calls import dotted_name, hides_tensors
from tinygrad_attn.nn.inside import first
from tinygrad_attn.parallel import DataParallel

torch = require("torch")
RNG = np.random.default_rng(0)


def pair(kind):
    """Return an encoder or decoder of ours and PyTorch's with the same weights, and its inputs."""
    settings = dict(d_model=8, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
    layer = f"Transformer{kind}Layer"
    ours = getattr(nn, f"Transformer{kind}")(getattr(nn, layer)(**settings), 2).astype(np.float64)
    theirs = getattr(torch.nn, f"Transformer{kind}")(
        getattr(torch.nn, layer)(**settings, dtype=torch.float64), 2
    )
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    arrays = [RNG.standard_normal((2, 5, 8)) for _ in range(1 if kind == "Encoder" else 2)]
    return (
        (ours, [Tensor(a, requires_grad=True) for a in arrays]),
        (theirs, [torch.tensor(a, requires_grad=True) for a in arrays]),
    )


def plain(x):
    if isinstance(x, tuple):
        return [plain(part) for part in x]
    return x.detach().numpy().copy() if hasattr(x, "detach") else None


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b if a is None or b is None else a.shape == b.shape and np.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_hooks_see_what_pytorchs_see_in_the_same_order(kind):
    logs = []
    for model, inputs in pair(kind):
        log = []
        for name, module in model.named_modules():
            if name.endswith("out_proj"):
                continue  # PyTorch never calls it as a module

            def after(module, args, output, name=name):
                first = output[0] if isinstance(output, tuple) else output
                log.append(("after", name, plain(tuple(args)[:1]) + plain((first,))))

            def backward(module, grad_input, grad_output, name=name):
                tensors = plain(grad_input), plain(grad_output)[:1]
                if name.endswith("attn"):  # ours has one gradient for an object passed twice
                    tensors = [sum(g for g in tensors[0] if g is not None)], tensors[1]
                log.append(("backward", name, [*tensors[0], *tensors[1]]))

            module.register_forward_pre_hook(lambda m, a, name=name: log.append(("pre", name, [])))
            module.register_forward_hook(after)
            if "dropout" not in name:
                module.register_full_backward_hook(backward)
        (model(*inputs) ** 2).sum().backward()
        logs.append(log)
    ours, theirs = logs
    assert [entry[:2] for entry in ours] == [entry[:2] for entry in theirs]
    for a, b in zip(ours, theirs):
        assert same(a[2], b[2]), a[:2]


def linears():
    ours = nn.Linear(3, 2).astype(np.float64)
    theirs = torch.nn.Linear(3, 2).double()
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize(
    "register, hook",
    [
        ("forward_pre_hook", lambda m, a: a[0] * 2),
        ("forward_pre_hook", lambda m, a: (a[0] + 1,)),
        ("forward_hook", lambda m, a, y: y * 3),
        ("full_backward_hook", lambda m, gi, go: (gi[0] * 5,)),
        ("full_backward_hook", lambda m, gi, go: None),
    ],
)
def test_what_a_hook_returns_replaces(register, hook):
    x = RNG.standard_normal((4, 3))
    results = []
    for module, tensor in zip(
        linears(), (Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True))
    ):
        handle = getattr(module, f"register_{register}")(hook)
        y = module(tensor)
        (y * y).sum().backward()
        results.append((plain(y), plain(tensor.grad), plain(module.weight.grad)))
        handle.remove()
        handle.remove()
        tensor.grad = None
        (module(tensor) ** 2).sum().backward()
        results[-1] += (plain(tensor.grad),)
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_hooks_with_kwargs():
    class Scaled(nn.Module):
        def forward(self, x, *, scale=1.0):
            return x / scale

    module, calls = Scaled(), []
    module.register_forward_pre_hook(
        lambda m, a, k: (a, {"scale": k["scale"] + 1}), with_kwargs=True
    )
    with module.register_forward_hook(lambda m, a, k, y: calls.append(k), with_kwargs=True):
        assert module(Tensor([4.0]), scale=1).tolist() == [2.0]
    assert calls == [{"scale": 2}]


@pytest.mark.parametrize("result", [(1,), ((1,), {}, 2), {}], ids=str)
def test_a_pre_forward_hook_with_wrong_results_is_named(result):
    def my_hook(module, args, kwargs):
        return result

    layer = nn.ReLU()
    with (
        layer.register_forward_pre_hook(my_hook, with_kwargs=True),
        pytest.raises(ValueError, match="'my_hook' of ReLU"),
    ):
        layer(Tensor([4.0]))
    assert layer(Tensor([4.0])).tolist() == [4.0]


@pytest.mark.parametrize("first", [True, False])
def test_a_hook_s_gradients_for_two_places_of_one_tensor_add_up(first):
    """As in PyTorch, where each place of an argument is a tensor of its own."""

    class Product(nn.Module):
        def forward(self, a, b):
            return a * b

    module, x = Product(), Tensor([2.0, 3.0], requires_grad=True)
    ones = np.ones(2, np.float32)
    result = (ones if first else None, 10 * ones)
    with module.register_full_backward_hook(lambda m, gi, go: result):
        module(x, x).sum().backward()
    assert x.grad.tolist() == [10 + first] * 2


def test_a_hook_may_stop_the_gradient_whoever_listens():
    layer, x = nn.Linear(3, 2), Tensor(np.ones((1, 3)), requires_grad=True)
    layer.astype(np.float64).register_full_backward_hook(lambda m, gi, go: (None,))
    with ta.detect_anomaly():
        layer(x * 1).sum().backward()
    assert x.grad is None and layer.weight.grad.tolist() == [[1.0] * 3] * 2
    program = ta.source(lambda x: layer(x * 1).sum(), x.numpy(), params=layer)
    assert program(x.numpy())[1]["weight"].tolist() == [[1.0] * 3] * 2


class Named(nn.Module):
    """Notes the name of its call, and fails if it is told to."""

    def forward(self, seen):
        seen.append(dotted_name(context.scope))
        if len(seen) == 2:
            raise ValueError("two calls are too many")
        return seen


def test_a_call_has_a_name_which_an_error_inside_another_call_notes():
    for model, name, notes in (
        (Named(), "Named", None),  # the traceback begins with the call itself
        (nn.Sequential(Named()), "0", ["in the module '0'"]),
        (nn.Sequential(nn.Sequential(Named())), "0.0", ["in the module '0.0'"]),
    ):
        seen = model([])
        with pytest.raises(ValueError, match="two calls") as error:
            model(seen)
        assert seen == [name, name] and getattr(error.value, "__notes__", None) == notes


def test_which_outputs_may_hide_tensors():
    tracked, constant = Tensor([1.0], requires_grad=True), Tensor([1.0])
    for output in (constant, (tracked, object()), {"a": [np.ones(2), 1, "b", None]}, np.float32(1)):
        assert not hides_tensors(output)
    for output in (object(), [object()], (constant, object()), dataclass):
        assert hides_tensors(output)


def test_a_patch_replaces_the_first_element_alone_and_names_come_before_patterns():
    class Recurrent(nn.Module):
        def forward(self, x):
            return {"steps": 1, "output": x, "state": [x]}

    model = nn.ModuleDict({"[CLS]": Recurrent(), "C": Recurrent()})
    with ta.patch(model, {"[CLS]": lambda y: y * 0}):
        patched, other = (model[name](Tensor([1.0])) for name in ("[CLS]", "C"))
    assert patched["output"].tolist() == [0.0] and patched["state"][0].tolist() == [1.0]
    assert patched["steps"] == 1  # the first Tensor is the first element
    assert other["output"].tolist() == [1.0]


def test_backward_hooks_without_input_gradient_and_for_second_order():
    module, seen = nn.Linear(2, 2).astype(np.float64), []
    module.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
    module(Tensor(np.ones((1, 2)))).sum().backward()
    assert seen[0][0] == (None,) and seen[0][1][0].shape == (1, 2)
    x = Tensor(np.ones((1, 2)), requires_grad=True)
    (g,) = ta.grad((module(x) ** 3).sum(), x, create_graph=True)
    assert ta.grad(g.sum(), x)[0].shape == (1, 2)
    assert ta.gradcheck(module, [x.numpy()], order=2)


def test_activations_gradients_weights_and_patches():
    (model, (x,)), _ = pair("Encoder")
    expected = model(x)
    with ta.activations(model, "layers.*.self_attn", "layers.1") as seen:
        y = model(x)
        (y * y).sum().backward()
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn", "layers.1"]
    np.testing.assert_array_equal(y.numpy(), expected.numpy())
    np.testing.assert_array_equal(seen["layers.1"].output.numpy(), y.numpy())
    np.testing.assert_allclose(seen["layers.1"].grad.numpy(), 2 * y.numpy())
    with ta.record_attention(model) as recorded:
        model(x)
    for name, (weights,) in recorded.items():
        np.testing.assert_array_equal(seen[name].weights, weights)
    with pytest.raises(AttributeError, match="not an attention module"):
        seen["layers.1"].weights
    layer, changed = model.layers[0], copy.deepcopy(model)
    with ta.patch(
        model, {"layers.0.self_attn": lambda out: out * 0, "layers.1": np.ones((2, 5, 8))}
    ):
        np.testing.assert_array_equal(model(x).numpy(), np.ones((2, 5, 8)))
        patched = layer(x)
    after = layer.norm1(x)
    by_hand = layer.norm2(after + layer.linear2(layer.linear1(after).relu()))
    np.testing.assert_allclose(patched.numpy(), by_hand.numpy(), atol=1e-12)
    np.testing.assert_array_equal(model(x).numpy(), changed(x).numpy())
    unknown = ta.activations(model, "layer.0")
    with (
        pytest.raises(ValueError, match="no module of TransformerEncoder matches 'layer.0'"),
        unknown,
    ):
        pass
    small = ta.patch(model, {"layers.0": np.ones(2)})
    with (
        pytest.raises(ValueError, match=r"gave shape \(2, 5, 8\), but the new value has \(2,\)"),
        small,
    ):
        model(x)


class Inside(nn.Module):
    """Runs a part in a checkpoint of its own, twice."""

    def __init__(self):
        self.first, self.part = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x, call=lambda f, x: f(x)):
        x = self.first(x)[None]
        attend = lambda x: self.attention(self.part(x), x, x)[0]
        return call(attend, call(attend, call(attend, x)))


@pytest.mark.parametrize("passes", [1, 2])
def test_activations_get_gradients_from_checkpoints_in_checkpoints(passes):
    """And from a second pass, which adds to those of the first."""
    model, x = Inside().astype(np.float64), Tensor(RNG.standard_normal((2, 3)), requires_grad=True)
    nested = lambda x: ta.checkpoint(lambda x: model(x, ta.checkpoint), x)
    results = []
    for run in (
        model,
        lambda x: model(x, ta.checkpoint),
        lambda x: ta.checkpoint(model, x),
        nested,
    ):
        with ta.activations(model, "*?") as seen:
            loss = (run(x) ** 2).sum()
            for left in reversed(range(passes)):
                loss.backward(retain_graph=left > 0)
        tensors = {n: [first(y) for y in a.outputs] for n, a in seen.items() if a.outputs}
        arrays = {n: [(y.numpy(), y.grad.numpy()) for y in ys] for n, ys in tensors.items()}
        arrays["weights"] = seen["attention"].all_weights
        counts = [len(a.outputs) for a in seen.values()]
        results.append((counts, arrays))
    for counts, arrays in results[1:]:
        assert counts == results[0][0] and arrays.keys() == results[0][1].keys()
        for name, expected in results[0][1].items():
            np.testing.assert_allclose(arrays[name], expected, err_msg=name)


@pytest.mark.parametrize("seed", range(20))
def test_flops_equal_the_closed_forms(seed):
    rng = np.random.default_rng(seed)
    B, T, H, D, hidden = (int(n) for n in rng.integers(1, 7, 5))
    E = H * D
    layer = nn.TransformerEncoderLayer(E, H, hidden, batch_first=True)
    x = Tensor(rng.standard_normal((B, T, E)), requires_grad=True, dtype=np.float32)
    before = ta.random.get_rng_state()["key"]
    masks = [{}, {"is_causal": True}, {"src_key_padding_mask": np.zeros((B, T), bool)}][seed % 3]
    summary = layer.summary(x, **masks)
    rows = {row.name: row for row in summary.rows}
    attention = 2 * B * T * E * 3 * E + 2 * 2 * B * T * T * E + 2 * B * T * E * E
    assert rows["self_attn"].forward == attention
    assert rows["linear1"].forward == 2 * B * T * E * hidden
    assert rows[""].forward == attention + 2 * 2 * B * T * E * hidden
    assert rows[""].backward == 2 * rows[""].forward
    assert rows[""].parameters == sum(p.size for p in layer.parameters())
    np.testing.assert_array_equal(ta.random.get_rng_state()["key"], before)
    assert x.grad is None


class Sums(nn.Module):
    def forward(self, text, *operands):
        return np.einsum(text, *operands)


SIZES = dict(zip("bijklo", (2, 3, 4, 5, 6, 7)))


@pytest.mark.parametrize(
    "text",
    [
        *("ij->ji", "ij->i", "ij->", "ii->i", "iii->", "bij->jb"),  # nothing is multiplied
        *("ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "i,i->", "i,j->ij", "ij,ij->ij", "ij,k->"),
        *("i,j,k->ijk", "ij,jk,kl->il", "ij,jk,kl,lo->io"),
    ],
)
def test_flops_of_einsum_are_torchs(text):
    """Forward and backward: operands are contracted two at a time, as `torch.einsum` does."""
    from torch.utils.flop_counter import FlopCounterMode

    arrays = [RNG.standard_normal([SIZES[a] for a in t]) for t in text.split("->")[0].split(",")]
    ours = [Tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    (row,) = Sums().summary(text, *ours).rows
    with FlopCounterMode(display=False) as counter:
        y = torch.einsum(text, *theirs)
    assert row.forward == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert row.backward == counter.get_total_flops()
    untracked = Sums().summary(text, *arrays[:-1], ours[-1]).rows[0]
    assert untracked.forward == row.forward and untracked.backward <= row.backward


def test_flops_of_einsum_follow_numpys_order():
    a, b, c = (Tensor(np.ones(shape)) for shape in ((2, 50), (50, 50), (50, 3)))
    (row,) = Sums().summary("ij,jk,kl->il", a, b, c).rows
    assert row.forward == 2 * (2 * 50 * 50 + 2 * 50 * 3) and row.backward == 0
    (row,) = Sums().summary("lk,kj,ji->li", c.T, b, a.T).rows
    assert row.forward == 2 * (2 * 50 * 50 + 2 * 50 * 3)  # the last two first
    (row,) = Sums().summary("ij,jk,kl->il", a.requires_grad_(), b, c).rows
    assert row.backward == row.forward
    weight, x, y = (Tensor(np.ones(shape)) for shape in ((4, 5, 6), (3, 5), (3, 6)))
    (row,) = Sums().summary("bi,oij,bj->bo", x, weight, y).rows
    assert row.forward == 2 * 3 * 4 * 5 * 6  # x and y first: they only multiply


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("options", [{}, dict(kdim=6), dict(add_bias_kv=True)], ids=str)
def test_weights_cost_no_second_product(options, train):
    """Not when they are returned, and not when they are recorded."""
    layer = nn.MultiheadAttention(10, 2, 0.3, batch_first=True, **options).train(train)
    x, memory = np.ones((2, 3, 10)), np.ones((2, 3, options.get("kdim", 10)))
    value = np.ones((2, 3, 10)) if "kdim" in options else memory
    inputs = (x, memory, value) if options else (x, x, x)
    counts = [layer.summary(*inputs, need_weights=need).rows[0][5:] for need in (False, True)]
    with ta.record_attention():
        counts += [layer.summary(*inputs, need_weights=False).rows[0][5:]]
    assert counts[0] == counts[1] == counts[2]
    products = []

    class Products(Listener):
        def computed(self, op, inputs, settings, output):
            products.append((op.__name__, output.shape))

    with ta.plain(), listening(Products()), ta.record_attention():
        layer(*inputs)
    scores = (2, 2, 3, 3 + ("add_bias_kv" in options))
    assert products.count(("matmul", scores)) == 1 == products.count(("exp", scores))


def test_a_summary_shows_nested_outputs_and_what_did_not_run():
    class Nested(nn.Module):
        def __init__(self):
            self.used, self.unused = nn.Linear(2, 3), nn.Linear(2, 3)

        def forward(self, x):
            y = self.used(x)
            return Outcome(y, {"more": [y[0], None, (y[0, 0],)]})

    Outcome = namedtuple("Outcome", "first second")
    rows = Nested().summary(np.ones((4, 2))).rows
    assert [row.output for row in rows] == ["(4, 3), (3,), ()", "(4, 3)", "not called"]


def test_a_summary_counts_a_shared_parameter_once():
    class Tied(nn.Module):
        def __init__(self):
            self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens):
            return self.out(self.embed(tokens))

    model = Tied()
    model.embed.weight.requires_grad = False
    summary = model.summary(np.array([[1, 2, 3]]))
    assert [(row.name, row.parameters, row.trainable) for row in summary.rows][0] == ("", 28, 0)
    assert "(1, 3, 7)" in str(summary) and "Linear" in str(summary)


# ---- two features at once


class TwoHeads(nn.Module):
    def __init__(self):
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x), np.sqrt(self.b(x) * 0)


@pytest.mark.parametrize("inputs_need_gradients", [True, False])
def test_a_hook_that_looks_makes_no_gradient_where_there_was_none(inputs_need_gradients):
    model, seen = TwoHeads(), []
    x = Tensor(np.ones((1, 3), np.float32), requires_grad=inputs_need_gradients)
    model.register_full_backward_hook(lambda m, before, after: seen.append((before, after)))
    model(x)[0].sum().backward()
    assert model.b.weight.grad is None and np.isfinite(model.a.weight.grad.numpy()).all()
    ((before, after),) = seen
    assert after[1] is None and (after[0].numpy() == 1).all()
    assert (before[0] is not None) == inputs_need_gradients
    if inputs_need_gradients:
        np.testing.assert_allclose(x.grad.numpy(), model.a.weight.numpy().sum(0)[None], rtol=1e-6)


def test_a_hook_that_looks_lets_a_cache_go_on():
    ta.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    tokens, outputs = ta.randn(1, 3, 8), []
    for hooked in (False, True):
        cache = nn.KeyValueCache()
        handles = [
            m.register_full_backward_hook(lambda *_: None) for m in model.modules() if hooked
        ]
        outputs.append(
            [model(tokens[:, t : t + 1], is_causal=True, cache=cache).numpy() for t in range(3)]
        )
        for handle in handles:
            handle.remove()
    for plain, looked in zip(*outputs):
        np.testing.assert_allclose(plain, looked, rtol=1e-6)


@pytest.mark.parametrize("result", [(), (None, None), (Tensor(np.ones(4)),)])
def test_a_backward_hook_with_wrong_gradients_is_named(result):
    def my_hook(module, grad_input, grad_output):
        return result

    layer, x = nn.Linear(3, 2), Tensor(np.ones((1, 3), np.float32), requires_grad=True)
    with (
        layer.register_full_backward_hook(my_hook),
        pytest.raises(ValueError, match="'my_hook' of Linear"),
    ):
        layer(x).sum().backward()
    layer(x).sum().backward()


@dataclass
class Outputs:
    """An object, whose tensors no function of the package looks for."""

    y: Tensor


@pytest.mark.parametrize("wrap", [Outputs, lambda y: {y}, lambda y: iter([y])])
def test_tensors_that_hooks_and_ranks_would_not_find_are_said_to_be_lost(wrap):
    class Wrapping(nn.Module):
        def __init__(self):
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return wrap(self.inner(x))

    model, x = Wrapping(), ta.randn(1, 3)
    with (
        pytest.raises(TypeError, match="DataParallel cannot average the gradients of"),
        model.register_full_backward_hook(lambda *_: None),
        pytest.warns(UserWarning, match="backward hooks of Wrapping are not called.*lists and dic"),
    ):
        DataParallel(model)(x)
    with ta.no_grad():
        DataParallel(model)(x)


def test_a_module_that_did_not_run_says_so():
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "attention": nn.MultiheadAttention(4, 2)})
    with ta.activations(model) as seen:
        model["used"](ta.randn(2, 3))
    for name in ("output", "weights", "grad"):
        with pytest.raises(AttributeError, match="'attention' .*was not called inside the block"):
            getattr(seen["attention"], name)
    with pytest.raises(AttributeError, match="not an attention module"):
        seen["used"].weights  # noqa: B018


def test_a_copy_made_while_recording_is_a_module_of_its_own():
    model, x = nn.Sequential(nn.Linear(3, 3)), ta.randn(2, 3)
    with ta.activations(model) as seen, ta.patch(model, {"0": lambda y: y * 0}):
        model(x)
        average = copy.deepcopy(model)
        assert average(x).numpy().any(), "not patched"
    assert len(seen["0"].outputs) == 1 and not seen["0"].output.numpy().any()


def test_another_thread_is_neither_patched_nor_recorded():
    model, x, results = nn.Sequential(nn.Linear(3, 3)), ta.randn(2, 3), []
    with ta.activations(model) as seen, ta.patch(model, {"0": lambda y: y * 0}):
        thread = threading.Thread(target=lambda: results.append(model(x).numpy()))
        thread.start()
        thread.join()
    assert results[0].any() and not seen["0"].outputs


def test_a_checkpoint_repeats_a_patch_whose_block_has_ended():
    model, gradients = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), []
    for call in (model, lambda x: ta.checkpoint(model, x)):
        x = Tensor(np.ones((1, 3), np.float32), requires_grad=True)
        with ta.patch(model, {"0": lambda y: y.detach() + x * 2}):
            loss = call(x).sum()
        with ta.patch(model, {"0": lambda y: y * 0}):  # is not the first run's
            gradients.append(ta.grad(loss, x)[0].numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_a_tensor_that_leaves_a_checkpoint_by_the_side_is_refused():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), ta.randn(2, 3, requires_grad=True)
    with ta.activations(model) as seen:
        y = ta.checkpoint(model, x)
    for use in (
        lambda: (y.sum() + (seen["0"].output ** 2).sum()).backward(),
        lambda: ta.grad((seen["0"].output ** 2).sum(), x),
    ):
        with pytest.raises(RuntimeError, match="computed inside a checkpoint.*Return the tensor"):
            use()


class Twice(nn.Module):
    def __init__(self):
        self.a = self.b = nn.Identity()

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize("keys", [("a", "b"), ("a", "*a"), ("[ab]",)])
def test_a_patch_of_two_names_of_one_module_is_one(keys):
    model, x, double = Twice(), np.ones(1), lambda y: y * 2
    with ta.patch(model, dict.fromkeys(keys, double)):
        assert model(x).tolist() == [4.0]
    if len(keys) > 1:
        two = ta.patch(model, {keys[0]: double, keys[1]: lambda y: y * 2})
        with pytest.raises(ValueError, match="'a' and '.*' are the same Identity"), two:
            pass
    assert model(x).tolist() == [1.0]


@pytest.mark.parametrize("output", [None, "text", (1, "text"), []], ids=repr)
def test_an_output_without_a_tensor_names_the_module(output):
    model = nn.Sequential(nn.Identity())
    with ta.patch(model, {"*0": lambda y: y}), pytest.raises(ValueError, match=r"'\*0' returned"):
        model(output)
    with ta.activations(model) as seen:
        model(output)
    with pytest.raises(ValueError, match="'0' returned .* no Tensor"):
        seen["0"].grad  # noqa: B018


def test_a_summary_leaves_buffers_as_they_were():
    class Running(nn.Module):
        def __init__(self):
            self.mean, self.count = nn.Buffer(np.zeros(2)), nn.Buffer(0)

        def forward(self, x):
            self.mean = self.mean + x.mean(0)
            self.count[...] = self.count + 1
            self.late = nn.Identity()
            return self.late(x - self.mean)

    model = nn.Sequential(Running())
    before = model[0].mean, model[0].count, model[0].count._data
    assert [row.name for row in model.summary(np.ones((3, 2))).rows] == ["", "0", "0.late"]
    after = model[0].mean, model[0].count, model[0].count._data
    assert all(map(operator.is_, before, after)) and model[0].count.item() == 0


@pytest.mark.parametrize("root", [lambda model: None, lambda model: model])
def test_names_are_collected_once_a_call(root, monkeypatch):
    """And not once for each of the layers."""
    layer = nn.TransformerEncoderLayer(8, 1, 8, batch_first=True)
    model, walks = nn.TransformerEncoder(layer, 5).eval(), []
    walk = nn.Module.named_modules
    monkeypatch.setattr(
        nn.Module, "named_modules", lambda *args, **kw: walks.append(1) or walk(*args, **kw)
    )
    with ta.record_attention(root(model)) as seen:
        model(ta.randn(1, 2, 8))
        assert len(walks) == 1
    assert list(seen) == [f"layers.{i}.self_attn" for i in range(5)]


def test_a_layer_that_its_first_call_makes_has_its_name():
    class Late(nn.Module):
        def __init__(self):
            self.first = nn.GroupedQueryAttention(4, 2, 1)

        def forward(self, x):
            x = self.first(x)
            self.second = nn.GroupedQueryAttention(4, 2, 1)
            return self.second(x)

    model = Late()
    with ta.record_attention() as seen:
        model(ta.randn(1, 2, 4))
    assert list(seen) == ["first", "second"]
