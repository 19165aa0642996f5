"""More wrong calls, each answered with what to write; and random programs that share their parts."""

import inspect
import math
import re

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, op, optim, parallel

torch = require("torch")

V, T, I, A = ValueError, TypeError, IndexError, AttributeError


def t(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)


def shared_part(reuse):
    a = np.sin(t(2, 3))
    b = np.cos(a)
    (a * b).sum().backward(retain_graph=reuse)
    (b + a * 2 + np.exp(a)).sum().backward()


def attend(x, *rest):
    return F.scaled_dot_product_attention(x, x, x, *rest)


def sgd():
    return optim.SGD([t(3)], lr=0.1)


class PlainForward(nn.Module):
    def forward(self, x):
        return x


class NoReturn(nn.Module):
    def forward(self, x):
        x * 2


CALLS = [
    (lambda: t(2, 3).sum(1, 2), T, r"write axis=\(1, 2\)"),
    (
        lambda: np.einsum("ij,jk", t(2, 3), t(2, 3)),
        V,
        r"Every letter stands for one size.*\(2, 3\), \(2, 3\)",
    ),
    (lambda: np.concatenate(t(2), t(2)), T, r"np\.concatenate\(\[a, b\]"),
    (lambda: np.concatenate([t(2, 3), t(2, 3)], axis=2), I, r"lies in \[-2, 2\)"),
    (lambda: np.split(t(5), 2), V, r"np\.split of Tensor \(5,\).*equal division"),
    (lambda: np.where(t(3) > 0, t(3)), T, r"np\.where\(mask, a, b\) takes both"),
    (lambda: np.sort(t(3), axis=2), I, r"np\.sort of Tensor \(3,\).*\[-1, 1\)"),
    (lambda: np.expand_dims(t(3), 5), I, r"np\.expand_dims of Tensor \(3,\)"),
    (lambda: f"{t(3):.2f}", V, r"item\(\) needs exactly one element"),
    (lambda: t(3) == t(4), V, r"cannot be compared.*sizes 3 and 4 differ"),
    (lambda: t(3) < "a", T, r"Compare with numbers"),
    (lambda: ~t(3), T, r"~ works on masks.*~\(t > 0\)"),
    (lambda: t(3) & t(3), T, r"\(t > 0\) & \(t < 1\), with brackets"),
    (lambda: grad(lambda x: x, t(3)), T, r"ta\.value_and_grad\(f\)\(x\)"),
    (lambda: ta.value_and_grad(t(3)), T, r"takes a function and then the values"),
    (lambda: ta.jacobian(t(3), t(3)), T, r"takes a function and then the values"),
    (
        lambda: ta.value_and_grad(lambda x: x.sum().item())(t(3)),
        T,
        r"does not remember how it was computed.*\.item\(\)",
    ),
    (lambda: ta.jacobian(lambda x: (x * 2).numpy(), t(3)), T, r"leave the graph"),
    (lambda: op(lambda x: None)(t(3)), T, r"returned None.*end with return"),
    (lambda: op(lambda x: ["a"])(t(3)), T, r"returns an array"),
    (lambda: op(lambda x: x * 2).vjp(5), T, r"a function \(g, y, \*inputs\)"),
    (
        lambda: op(lambda a, b: a * b).vjp(lambda g, a, b: g * b, lambda g, a, b: g * a),
        V,
        r"Write lambda g, y, a, b",
    ),
    (lambda: F.dropout(t(3), p="a"), V, r"lies in \[0, 1\]"),
    (lambda: nn.Dropout("a"), V, r"lies in \[0, 1\]"),
    (lambda: F.cross_entropy(t(2, 3), ["cat", "dog"]), T, r"classes\.index\(name\)"),
    (lambda: F.cross_entropy(t(2, 3), None), T, r"class numbers or probabilities, got None"),
    (lambda: F.sinusoidal_positions(5.5, 4), V, r"whole numbers.*5\.5"),
    (lambda: nn.LayerNorm("a"), T, r"x\.shape\[-1\]"),
    (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), "2"),
        T,
        r"whole number such as 6",
    ),
    (lambda: nn.ModuleList(nn.Linear(2, 2)), T, r"in \[brackets\]"),
    (lambda: nn.Linear(2, 2).to("cuda"), A, r"Write module\.astype"),
    (lambda: nn.Linear(2, 2).double(), A, r"Write module\.astype\(np\.float64\)"),
    (lambda: optim.SGD([t(3)], lr="a"), V, r"lr must be 0 or more, got 'a'"),
    (lambda: optim.Adam([t(3)], betas=0.9), V, r"two numbers in \[0, 1\)"),
    (
        lambda: optim.Adam([t(3)]).load_state_dict(optim.SGD([t(3)], lr=0.1).state_dict()),
        V,
        r"another kind of optimiser",
    ),
    (lambda: optim.clip_grad_norm_(3, 1.0), T, r"list\(model\.parameters\(\)\)"),
    (lambda: optim.clip_grad_norm_([3], 1.0), T, r"got 3"),
    (lambda: ta.record_attention(5).__enter__(), T, r"the module that names are seen from"),
    (
        lambda: ta.record_attention(nn.Linear).__enter__(),
        T,
        r"got <class.*Make an object of the class first",
    ),
    (
        lambda: ta.viz.graph(t(3), model=nn.Linear),
        T,
        r"got <class.*Make an object of the class first",
    ),
    (
        lambda: ta.compare_with_torch(nn.Linear, torch.nn.Linear(2, 2)),
        T,
        r"got <class.*Make an object of the class first",
    ),
    (
        lambda: ta.compare_with_torch(nn.Linear(2, 2), torch.nn.Linear),
        T,
        r"Make an object of the class first",
    ),
    (
        lambda: ta.save_checkpoint("run", model=nn.Linear),
        T,
        r"always the model\. Make an object of the class first",
    ),
    (lambda: ta.save_checkpoint("run", nn.Linear(2, 2)), T, r"save_checkpoint\(path, model=model"),
    (lambda: ta.save_checkpoint("run"), T, r"save_checkpoint\(path, model=model"),
    (
        lambda: ta.save_checkpoint(nn.Linear(2, 2), model=nn.Linear(2, 2)),
        T,
        r"save_checkpoint\(path, model=model",
    ),
    (
        lambda: ta.load_checkpoint(nn.Linear(2, 2), "run"),
        T,
        r"the path first, everything else by name",
    ),
    (
        lambda: ta.load_checkpoint("run", optimizer=optim.SGD([t(3)], lr=0.1)),
        T,
        r"and always the model",
    ),
    (lambda: ta.set_default_dtype("float31"), T, r"np\.float32 or np\.float64"),
    (lambda: ta.gradcheck(np.exp, [t(3)], eps=0), V, r"a positive number such as 1e-06"),
    (lambda: ta.gradcheck(np.exp, 3), T, r"gradcheck\(f, \[x, y\]\)"),
    (lambda: ta.gradcheck(np.exp, t(3), params=3), T, r"a list of Tensors"),
    (
        lambda: ta.compare_with_torch(torch.nn.Linear(2, 2), nn.Linear(2, 2)),
        T,
        r"the other way round",
    ),
    # ---- one argument that stands in another's place
    (lambda: F.relu(t(3), t(3)), T, r"inplace is True or False, got Tensor \(3,\)"),
    (lambda: F.silu(t(300, 300), 0.01), T, r"inplace is True or False, got 0\.01"),
    (lambda: F.dropout(t(3), 0.5, True, t(3)), T, r"inplace is True or False"),
    (lambda: attend(t(2, 3), True), T, r"fourth argument.*got True\. Write is_causal=True"),
    (lambda: attend(t(2, 3), 0.1), T, r"got 0\.1\. .*dropout_p= for a probability"),
    (lambda: attend(t(2, 3), "causal"), T, r"got 'causal'\. Write is_causal=True"),
    (lambda: nn.LayerNorm(3, 4), V, r"got 4\. .*one tuple: nn\.LayerNorm\(\(rows, columns\)\)"),
    (lambda: nn.RMSNorm(3, 4), V, r"eps is a small number such as 1e-5, got 4"),
    (lambda: nn.Softmax(axis=1, dim=0), T, r"dim= is another name for axis=, got 1 and 0"),
    (lambda: nn.Embedding(5, 2, False), V, r"padding_idx=False is not one of the 5 rows"),
    (lambda: F.embedding([0], t(5, 2), True), V, r"padding_idx=True is not one of the 5 rows"),
    (
        lambda: nn.CrossEntropyLoss(t(4, 3), np.array([0, 1, 2, 1])),
        T,
        r"write nn\.CrossEntropyLoss\(\)\(x\).* as weight",
    ),
    (lambda: nn.CrossEntropyLoss("sum"), T, r"CrossEntropyLoss: weight: .*got 'sum'"),
    (lambda: F.cross_entropy(t(1, 3), [0], "sum"), T, r"cross_entropy's weight: .*got 'sum'"),
    (
        lambda: optim.warmup_cosine(sgd(), 0.1, 100),
        V,
        r"counts updates.*int\(0\.1 \* total_steps\)",
    ),
    (lambda: optim.Schedule(0.1, math.exp), T, r"got float; the optimiser comes first"),
    (lambda: optim.SGD({"params": [t(3)]}), T, r"in a list too, SGD\(\[\{'params': \[p\]\}\]\)"),
    (lambda: ta.vjp(t(3), np.exp), T, r"takes a function and then the values"),
    (
        lambda: op(lambda x: x * 2).vjp(lambda x, y, g: g * 2),
        V,
        r"called with \(g, y, x\), in this order.*Write lambda g, y, x",
    ),
    # ---- what is no array, no size, no module
    (lambda: F.embedding([[0, 1], [2]], t(5, 2)), V, r"^embedding: the rows of this list differ"),
    (lambda: F.cross_entropy(t(2, 3), [[0], [1, 2]]), V, r"^cross_entropy: the rows of this list"),
    (lambda: F.mse_loss(t(3), None), T, r"^mse_loss: a Tensor holds .*got None"),
    (
        lambda: F.embedding([0], nn.Embedding(5, 2)),
        T,
        r"got Embedding\(5, 2\); write layer\.weight",
    ),
    (lambda: F.linear(t(2, 3, 4), t(2, 5, 4)), V, r"one matrix.*write x @ weight\.mT"),
    (lambda: F.softmax(t(2, 3), (0, 1)), T, r"Join several into one first, with x\.reshape"),
    (lambda: F.softmax(t(2, 3), t(2, 3)), T, r"an integer axis, got Tensor \(2, 3\)"),
    (
        lambda: F.logsumexp(t(2, 3), [0, 1]),
        T,
        r"Several are a tuple: axis=tuple\(range\(x\.ndim\)\)",
    ),
    (lambda: F.dropout(None, 0.5, False), T, r"^dropout: a Tensor holds .*got None"),
    (lambda: nn.Sequential(nn.ReLU())[1], I, r"a Sequential of 1 modules has none at 1"),
    (lambda: nn.ModuleList([nn.ReLU()])["0"], T, r"has none at '0': it takes whole numbers"),
    (lambda: nn.ModuleDict({"a": nn.ReLU()})["A"], KeyError, r"has no 'A'. Did you mean 'a'"),
    (lambda: nn.TransformerEncoder(8, 2, 2), T, r"the first argument is one layer.*got 8"),
    (
        lambda: nn.Transformer(8, 2, 1, 1)(np.ones((2, 2), int), np.ones((2, 2), int)),
        V,
        r"\(2, 2\) int64\. Tokens are embedded first",
    ),
    (lambda: nn.Tanh(1), T, r"Tanh\(\) takes no arguments"),
    (lambda: PlainForward(t(3)), T, r"write PlainForward\(\)\(x\)"),
    (lambda: nn.Linear(3, 4) @ t(3), V, r"A module is no operand, it is called: write module\(x\)"),
    (lambda: t(3) @ None, V, r"cannot be multiplied\. An operand is None"),
    (lambda: t(2, 3).sum((0, 0)), V, r"duplicate value in 'axis'\. Each axis is named once"),
    (lambda: np.repeat(t(3), t(3)), T, r"np\.repeat of .*The repeats are one whole number"),
    (lambda: np.repeat(t(3), [1, 2]), V, r"The repeats are one whole number, or one for each"),
    (lambda: np.pad(t(2, 3), (1, 2, 3)), V, r"one pair \(before, after\), or a pair for each axis"),
    (lambda: np.broadcast_to(t(3), (-1, 3)), V, r"The shape is the whole one, .*without -1"),
    (lambda: np.split(t(5), 2), V, r"Give the places to cut instead"),
    (lambda: np.reshape(t(2, 3), 3, 2), T, r"Several sizes are one tuple"),
    (lambda: Tensor(2, 3, 4), T, r"requires_grad is True or False, got 3"),
    (lambda: t(2, 3).view(np.float64), T, r"write t\.astype\(dtype\) for another dtype"),
    (lambda: t(2, 3).view(np.int64), T, r"write t\.astype\(dtype\) for another dtype"),
    (lambda: setattr(t(4), "shape", (2, 2)), A, r"Write t = t\.reshape\(shape\)"),
    (lambda: setattr(t(4), "dtype", np.float64), A, r"Write t = t\.astype\(dtype\)"),
    (lambda: range(t(3).sum()), T, r"got Tensor \(\) float64\. Write int\(t\)"),
    (lambda: t(2, 3).repeat(2, 1, 1), T, r"np\.tile\(t, \(2, 1, 1\)\) for PyTorch's repeat"),
    (lambda: ta.compile(np.exp, fullgraph="yes"), T, r"fullgraph is True or False, got 'yes'"),
    (lambda: ta.compile(np.exp, mode="max-autotune"), T, r"has no mode=: leave it out"),
    (
        lambda: ta.save_checkpoint("c", model=nn.Linear(2, 2), epoch=3),
        T,
        r"has no epoch=: write step=",
    ),
    (
        lambda: ta.save_checkpoint("c", model=nn.Linear(2, 2), optimizer=optim.SGD),
        T,
        r"Make an object of the class first",
    ),
    (
        lambda: grad((t(3) ** 2).sum(), t(3), t(3)),
        V,
        r"Several inputs are a list: grad\(y, \[a, b\]\)",
    ),
    (lambda: t(0, 3).max(0), V, r"which has no identity.*np\.max\(t, axis, initial=-np\.inf\)"),
    (
        lambda: nn.MultiheadAttention(4, 2)(*[t(3, 4)] * 3, attn_mask=[[True], [True, False]]),
        V,
        r"^attn_mask: the rows of this list differ",
    ),
    # ---- several processes, as one
    (lambda: parallel.clip_grad_norm_(nn.Linear(2, 2), 1.0), T, r"write model\.parameters\(\)"),
    (lambda: parallel.clip_grad_norm_([t(3)], "a"), V, r"a number such as 1\.0; got 'a'"),
    (lambda: parallel.manual_seed("a"), T, r"takes an integer, got 'a'"),
    (lambda: parallel.set_time_limit("a"), V, r"a number of seconds above 0, got 'a'"),
    (
        lambda: parallel.DistributedSampler(10, shuffle="no"),
        T,
        r"shuffle is True or False, got 'no'",
    ),
    (lambda: parallel.ColumnParallelLinear(2, 4), T, r"takes an nn\.Linear that is made.*got 2"),
    (lambda: parallel.RowParallelLinear(nn.ReLU()), T, r"takes an nn\.Linear that is made"),
    (lambda: parallel.ParallelAttention(nn.Linear(2, 2)), T, r"takes an nn\.MultiheadAttention"),
    (lambda: parallel.DataParallel(nn.ReLU(), device_ids=[0]), T, r"no device_ids=: leave it out"),
    (lambda: parallel.init_process_group("nccl"), A, r"mpiexec -n 4 python train\.py starts"),
    (lambda: parallel.DistributedDataParallel, A, r"Write parallel\.DataParallel\(model\)"),
    (lambda: ta.viz.graph(t(3)).show(), A, r"Write graph\.save\('graph\.svg'\) or print\(graph\)"),
    (lambda: Tensor.randn(3), A, r"Write ta\.randn\(\*shape\)"),
    (lambda: t(3).cross_entropy(0), A, r"Write F\.cross_entropy\(t, target\)"),
    (lambda: t(3).realize(), A, r"Write nothing: numbers are computed at once"),
    (lambda: shared_part(False), RuntimeError, r"retain_graph=True"),
]


@pytest.mark.parametrize(
    "call, kind, pattern",
    CALLS,
    ids=[f"{i}: {pattern[:30]}" for i, (_, _, pattern) in enumerate(CALLS)],
)
def test_a_wrong_call_says_what_to_write(call, kind, pattern):
    with pytest.raises(kind, match=pattern):
        call()


LOGITS = np.random.default_rng(1).standard_normal((4, 3))
MASK = np.array([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    "call, pattern",
    [
        (lambda: F.cross_entropy(F.softmax(t(4, 3)), LOGITS), r"The scores come first"),
        (lambda: F.cross_entropy(t(4, 1), np.zeros(4, int)), r"0 whatever the scores"),
        (lambda: optim.clip_grad_norm_([t(3)], 1.0), r"no parameter has a gradient"),
        (lambda: optim.clip_grad_value_([Tensor([1.0])], 1.0), r"not with their gradients"),
        (lambda: NoReturn()(t(3)), r"NoReturn returned None: does its forward end with return"),
        (
            lambda: nn.MultiheadAttention(4, 2, batch_first=True)(
                *[t(2, 3, 4)] * 3, key_padding_mask=MASK
            ),
            r"blocks every key of a sequence.*write ~mask",
        ),
        (
            lambda: F.scaled_dot_product_attention(*[t(2, 3, 4)] * 3, scale=np.sqrt(4)),
            r"multiplied by scale, and 2 is the square root of D = 4\. Write 1 / scale",
        ),
        (
            lambda: setattr(nn.Linear(2, 2), "scale", t(2)),
            r"Linear\.scale is a Tensor and no Parameter.*Write nn\.Parameter\(value\)",
        ),
        (lambda: t(2, 3).max(1)[0], r"t\.argmax\(axis\) for the indices"),
        (lambda: t(2, 3).min(-1)[1], r"gives the values alone"),
        (lambda: t(3).repeat(2), r"np\.tile\(t, \(2,\)\) for PyTorch's repeat"),
        (lambda: t(2, 3).repeat(2, 1), r"np\.tile\(t, \(2, 1\)\) for PyTorch's repeat"),
    ],
)
def test_a_call_with_another_reading_is_warned_of_on_its_line(call, pattern):
    with pytest.warns(UserWarning, match=pattern) as seen:
        call()
    assert {w.filename for w in seen} == {__file__}


@pytest.mark.filterwarnings("error")
def test_what_is_not_read_otherwise_is_silent():
    x, empty = t(2, 3, 4), F.padding_mask([0, 2], 3)
    nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x, key_padding_mask=empty)
    nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x, key_padding_mask=~MASK)
    F.cross_entropy(t(4, 3), np.eye(3)[[0, 1, 2, 0]])
    F.dropout(t(3), 0.5, False, inplace=True), F.relu(t(3), True)
    m = t(2, 3)
    found = m.max(1)
    assert found[0].item() == m.numpy()[0].max() == np.max(m, 1)[0].item()
    assert m.max(1)[-1].item() == m.numpy()[1].max() and m.max(1).shape == (2,)
    assert (m.max(1) + 0).shape == (2,) and m.max()[()].size == 1 and len([m.max(0), 0]) == 2
    assert m.repeat(2, axis=0).shape == (4, 3) and m.repeat([1, 2], 0).shape == (3, 3)
    F.scaled_dot_product_attention(x, x, x, scale=0.5), setattr(nn.ReLU(), "seen", m * 2)
    nn.LayerNorm(3, 0), nn.LayerNorm(3, np.float64(1e-5)), nn.Embedding(5, 2, 0)


def test_what_is_advised_for_another_reading_is_pytorchs_number():
    m = t(2, 3)
    theirs = torch.tensor(m.numpy())
    values, indices = theirs.max(1)
    assert np.array_equal(m.max(1).numpy(), values) and np.array_equal(m.argmax(1), indices)
    for sizes in ((2, 1), (2, 3), (4, 2, 1)):
        assert np.array_equal(np.tile(m, sizes).numpy(), theirs.repeat(*sizes))
    scores, target = t(5, 1), np.array([[0.0], [1], [1], [0], [1]])
    found = np.mean(np.logaddexp(scores, 0) - scores * target).item()
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(scores.numpy()), torch.tensor(target)
    )
    assert abs(found - wanted.item()) < 1e-12
    assert np.max(t(0, 3), 0, initial=-np.inf).tolist() == [-np.inf] * 3
    assert np.min(t(0, 3), 0, initial=np.inf).tolist() == [np.inf] * 3
    assert ta.viz.graph(m.sum()).dot() == ta.viz.graph(m.sum()).dot


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 2, 3, 4)])
def test_the_mask_over_keys_that_is_advised_hides_these_keys(shape):
    x = t(*shape)
    with pytest.raises(ValueError, match="does not broadcast") as error:
        attend(x, MASK)
    mask = eval(re.search(r"write (.*)\.$", str(error.value))[1], {"mask": MASK})
    other = x.numpy().copy()
    other[0, ..., 2, :] += 5
    hidden, seen = ([attend(Tensor(v), m).numpy() for v in (x, other)] for m in (mask, None))
    assert np.allclose(hidden[0][0, ..., :2, :], hidden[1][0, ..., :2, :])
    assert np.allclose(hidden[0][1], attend(x[1], None).numpy())
    assert not np.allclose(seen[0][0, ..., :2, :], seen[1][0, ..., :2, :])


@pytest.mark.parametrize("before", ["module.", "net.encoder."])
def test_the_names_of_a_module_around_this_one_are_taken_off_as_advised(before):
    ours, other = nn.Linear(2, 3), nn.Linear(2, 3)
    mapping = {before + name: value for name, value in other.state_dict().items()}
    mapping["step"] = np.zeros(())
    with pytest.raises(ValueError, match="does not fit") as error:
        ours.load_state_dict(mapping)
    advice = re.search(r"write load_state_dict\((.*)\)\.$", str(error.value))[1]
    ours.load_state_dict(eval(advice, {"mapping": mapping}))
    assert np.array_equal(ours.weight.numpy(), other.weight.numpy())
    with pytest.raises(ValueError) as error:
        ours.load_state_dict(sgd().state_dict())
    assert "Did you mean" not in str(error.value)


def needing_arguments():
    """Every public function and class that cannot be called without arguments."""
    for place, module in {"ta": ta, "F": F, "nn": nn, "optim": optim}.items():
        for name in sorted(
            {*module.__all__} - {"Program", "Optimizer"}
        ):  # neither is made by its user
            if not callable(made := getattr(module, name)):
                continue
            parameters = inspect.signature(made).parameters.values()
            needed = [p for p in parameters if p.default is p.empty and p.kind < 2]
            if needed:
                yield pytest.param(made, name, id=f"{place}.{name}")


@pytest.mark.parametrize("made, name", needing_arguments())
def test_a_call_without_arguments_says_how_it_is_called(made, name):
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing .*It is {name}\(") as error:
        made()
    assert "quick_" not in str(error.value)


def layers_that_need_sizes():
    for name in nn.__all__:
        made = getattr(nn, name)
        parameters = inspect.signature(made).parameters if isinstance(made, type) else {}
        needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind < 2]
        if needed and issubclass(made, nn.Module):
            yield name, needed


@pytest.mark.parametrize("name, needed", list(layers_that_need_sizes()))
def test_a_layer_that_is_given_its_input_is_told_which_sizes_it_takes(name, needed):
    with pytest.raises(TypeError) as error:
        getattr(nn, name)(*[t(2, 3)] * len(needed))
    assert f"write nn.{name}({', '.join(needed)})(x)" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [name for name in F.__all__ if "inplace" in inspect.signature(getattr(F, name)).parameters],
)
def test_inplace_is_a_flag(name):
    for x in (t(3), t(300, 300)):
        with pytest.raises(TypeError, match="inplace is True or False, got 0.1"):
            getattr(F, name)(x, inplace=0.1)


@pytest.mark.parametrize("wrong", [None, "text", object()])
@pytest.mark.parametrize("name", F.__all__)
def test_a_function_says_its_name_of_what_is_no_array(name, wrong):
    function = getattr(F, name)
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty]
    with pytest.raises((TypeError, ValueError), match=f"^{name}\\b"):
        function(*[wrong] * len(needed))


def test_what_looks_alike_is_right():
    shared_part(True)
    assert np.array_equal(
        ta.jacobian(lambda x: np.ones(2), t(3)).numpy(), np.zeros((2, 3))
    )  # a constant is no mistake
    mask = Tensor(np.array([True, False]))
    assert (
        (~mask).tolist() == [False, True]
        and (mask & ~mask).any() == 0
        and (mask | ~mask).all()
        and round(Tensor(1.7)).item() == 2
    )


PAIRS = [
    (np.tanh, torch.tanh),
    (np.sin, torch.sin),
    (F.sigmoid, torch.sigmoid),
    (lambda x: x / (x * x + 2), lambda x: x / (x * x + 2)),
    (lambda x: np.cumsum(x, axis=-1), lambda x: torch.cumsum(x, -1)),
    (lambda x: F.softmax(x), lambda x: torch.softmax(x, -1)),
    (lambda x: x.mT @ x, lambda x: x.mT @ x),
    (lambda x: x[::-1], lambda x: x.flip(0)),
    (lambda x: x.T, lambda x: x.mT),
    (lambda x: np.sort(x, axis=0), lambda x: torch.sort(x, 0)[0]),
    (lambda x: F.logsumexp(x, 0, True), lambda x: torch.logsumexp(x, 0, True)),
    (lambda x: ta.checkpoint(lambda z: np.tanh(z * z), x), lambda x: torch.tanh(x * x)),
]


@pytest.mark.parametrize("seed", range(60))
def test_programs_that_reuse_their_parts_agree_with_torch_to_second_order(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 3))
    ours, theirs = [Tensor(x, requires_grad=True)], [torch.tensor(x, requires_grad=True)]
    for _ in range(6):
        i, j, k = rng.integers(len(ours)), rng.integers(len(ours)), rng.integers(len(PAIRS))
        ours.append(PAIRS[k][0](ours[i]) * 0.5 + ours[j])
        theirs.append(PAIRS[k][1](theirs[i]) * 0.5 + theirs[j])
    (g,) = grad(np.cos(ours[-1]).sum() + ours[-2].sum(), ours[0], create_graph=True)
    (h,) = torch.autograd.grad(
        torch.cos(theirs[-1]).sum() + theirs[-2].sum(), theirs[0], create_graph=True
    )
    assert np.allclose(g.numpy(), h.detach().numpy(), rtol=1e-8, atol=1e-9)
    if h.requires_grad:
        (second,) = grad(np.sin(g).sum(), ours[0])
        assert np.allclose(
            second.numpy(),
            torch.autograd.grad(torch.sin(h).sum(), theirs[0])[0].numpy(),
            rtol=1e-7,
            atol=1e-8,
        )
