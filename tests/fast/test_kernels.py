"""Every kernel gives the numbers of its reference: values, gradients and second derivatives.

One table of examples is computed with kernels and in plain mode, in float32 and float64, with one and two threads, and
with the thresholds moved, so that small arrays go the way of large ones. A kernel that no example reaches is missed.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import each

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, nn, ops, optim
from tinygrad_attn.engine import kernels
from tinygrad_attn.fast import threads, tuning
from tinygrad_attn.fast.attention import AttentionCall
from tinygrad_attn.functional import attention


class Example(NamedTuple):
    function: Callable[..., Any]
    shapes: list[tuple[int, ...]]
    size: float = 1.0
    prepare: Callable[[np.ndarray], np.ndarray] = lambda x: x

    def leaves(self, dtype: Any) -> list[Tensor]:
        rng = np.random.default_rng(4)
        arrays = [self.prepare(self.size * rng.standard_normal(shape)) for shape in self.shapes]
        return [Tensor(x.astype(dtype), requires_grad=True) for x in arrays]


def whole(high: int, *shape: int, low: int = 0) -> np.ndarray:
    return np.random.default_rng(5).integers(low, high, shape)


def chance(*shape: int, p: float = 0.7) -> np.ndarray:
    return np.random.default_rng(6).random(shape) < p


def seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Draw the same dropout mask each time."""

    def call(*x: Any) -> Any:
        ta.manual_seed(3)
        return function(*x)

    return call


HEADS = [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)]  # (B, H, T, D), (B, H, S, D), (B, H, S, V)
TILES = [(2, 40, 4), (2, 50, 4), (2, 50, 3)]
KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.3},
    "scaled": {"scale": 0.7},
}


def attends(shapes: list[tuple[int, ...]], mask: Any = None, **settings: Any) -> Callable[..., Any]:
    learned = len(shapes) > 3
    return seeded(
        lambda *x: F.scaled_dot_product_attention(
            *x[:3], x[3] if learned else mask, **{"scale": 0.3, **settings}
        )
    )


def packed(x: Any, mask: Any = None, **settings: Any) -> Any:
    return attention.packed_attention(x, mask, num_heads=2, scale=0.3, **settings)[0]


def both(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the output and the weights as one tensor, so that both are compared."""

    def call(*x: Any) -> Any:
        return np.concatenate([result.ravel() for result in function(*x)])

    return call


def blind(*shape: int) -> np.ndarray:
    """A mask with a row that sees nothing, and keys that no row sees."""
    mask = chance(*shape)
    mask[..., 2, :] = False
    mask[..., -3:] = False
    return mask


def padding(*shape: int) -> np.ndarray:
    mask = np.ones(shape, bool)
    mask[..., -shape[-1] // 2 :] = False
    return mask


def attention_examples() -> dict[str, Example]:
    found = {}
    for name, shapes in {
        "heads": HEADS,
        "tiles": TILES,
        "one query": [(2, 3, 1, 4), *HEADS[1:]],
    }.items():
        scores = (*shapes[0][:-1], shapes[1][-2])
        for kind, settings in KINDS.items():
            found[f"attention, {name}, {kind}"] = Example(attends(shapes, **settings), shapes)
        masks = {
            "boolean mask": chance(*scores[-2:]),
            "padding": padding(scores[0], *(1,) * (len(scores) - 2), scores[-1]),
            "floats": np.where(chance(*scores[-2:]), 0, -np.inf),
        }
        if scores[-2] > 1:
            masks["blind rows"] = blind(*scores)
        for kind, mask in masks.items():
            f = attends(shapes, mask)
            found[f"attention, {name}, {kind}"] = Example(f, shapes)
            found[f"attention, {name}, {kind}, far"] = Example(f, shapes, 10)
            f = attends(shapes, mask, is_causal=True, dropout_p=0.2)
            found[f"attention, {name}, {kind}, causal, dropout"] = Example(f, shapes)
        found[f"attention, {name}, far"] = Example(attends(shapes), shapes, 10)
        for learned in (scores, scores[-2:], (1, 1, *scores[-1:])[-len(scores) :]):
            full = [*shapes, learned]
            found[f"attention, {name}, learned mask {learned}"] = Example(attends(full), full)
    shared = [(2, 4, 5, 4), (2, 2, 7, 4), (2, 2, 7, 6)]
    found["attention, grouped"] = Example(attends(shared, enable_gqa=True), shared)
    turned = attends(HEADS)
    found["attention, transposed"] = Example(
        lambda q, k, v: turned(q.mT, k.mT, v.mT), [(2, 3, 4, 5), (2, 3, 4, 7), (2, 3, 6, 7)]
    )
    for kind, settings in {
        "all": {},
        "causal": {"is_causal": True},
        "mask": {"mask": chance(5, 5)},
    }.items():
        found[f"packed, {kind}"] = Example(lambda x, s=settings: packed(x, **s), [(2, 5, 24)])
    for kind, settings in {**KINDS, "mask": {"mask": blind(5, 7)}}.items():
        f = both(attends(HEADS, need_weights=True, **settings))
        found[f"attention, weights, {kind}"] = Example(f, HEADS)
        found[f"attention, weights, {kind}, far"] = Example(f, HEADS, 10)
    f = both(attends(TILES, need_weights=True, is_causal=True))
    found["attention, weights, tiles"] = Example(f, TILES)
    for kind, settings in {
        "all": {},
        "causal": {"is_causal": True},
        "dropout": {"keep": chance(2, 2, 5, 5), "keep_scale": 2.0},
    }.items():
        f = both(
            lambda x, s=settings: attention.packed_attention(
                x, num_heads=2, scale=0.3, need_weights=True, **s
            )
        )
        found[f"packed, weights, {kind}"] = Example(f, [(2, 5, 24)])
    found["packed, learned mask"] = Example(lambda x, m: packed(x, m), [(2, 5, 24), (2, 5, 5)])
    return found


def layer_examples() -> dict[str, Example]:
    norm, rms = F.layer_norm, F.rms_norm
    found = {
        "layer norm": Example(lambda x: norm(x, 7), [(3, 7)]),
        "layer norm, weight": Example(lambda x, w: norm(x, 7, w), [(3, 7), (7,)]),
        "layer norm, bias": Example(lambda x, b: norm(x, (7,), None, b, 0.1), [(2, 3, 7), (7,)]),
        "layer norm, far": Example(
            lambda x, w, b: norm(x + 9, 40, w, b), [(300, 40), (40,), (40,)]
        ),
        "rms norm": Example(lambda x: rms(x, 7), [(3, 7)]),
        "rms norm, weight": Example(lambda x, w: rms(x, 7, w, 1e-3), [(2, 3, 7), (7,)]),
        "linear, vector": Example(F.linear, [(7,), (3, 7)]),
        "linear, one": Example(F.linear, [(1, 1), (1, 1), (1,)]),
    }
    for shape in [(5, 7), (2, 5, 7), (90, 7), (1, 7)]:
        found[f"linear, {shape}"] = Example(F.linear, [shape, (30, 7), (30,)])
    for size in (1, 30):
        found[f"gelu, {size}"] = Example(F.gelu, [(5, 70)], size)
        for shape in [(9, 7), (9, 530), (2, 5, 3)]:
            found[f"softmax, {shape}, {size}"] = Example(F.softmax, [shape], size)
        for how in ("mean", "sum", "none"):
            for ignored in (-100, 1):
                found[f"cross-entropy, {how}, {ignored}, {size}"] = Example(
                    lambda x, how=how, ignored=ignored: F.cross_entropy(
                        x, whole(5, 40), None, ignored, how, max(0, ignored) / 4
                    ),
                    [(40, 5)],
                    size,
                )
    return found


def op_examples() -> dict[str, Example]:
    ties = {"prepare": lambda x: np.round(2 * x) / 2}
    found = {
        "relu": Example(ops.relu, [(130, 7)], **ties),
        "embedding": Example(lambda w: F.embedding(whole(5, 2, 7), w), [(5, 3)]),
        "embedding, wide": Example(lambda w: F.embedding(whole(40, 600), w), [(40, 60)]),
        "embedding, one row": Example(lambda w: F.embedding(np.zeros(200, int), w), [(3, 130)]),
        "embedding, from the end": Example(
            lambda w: ops.embedding(w, indices=whole(5, 9, low=-5)), [(5, 3)]
        ),
    }
    for a, b in [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 5, 1), (1, 3)),
        ((1, 1), (1, 1)),
        ((130, 20), (20, 7)),
        ((3, 20), (20, 70)),
    ]:
        found[f"matmul, {a}, {b}"] = Example(ops.matmul, [a, b])
    for b in [(4,), (5, 4), (1, 4), ()]:
        found[f"sum to {b}"] = Example(lambda x, b: x * b, [(30, 5, 4), b])
    return found


TABLE = attention_examples() | layer_examples() | op_examples()
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-10}
DTYPES = list(TOLERANCE)


def outcome(example: Example, dtype: Any, order: int) -> list[np.ndarray]:
    """The value, its gradients by all inputs, and the gradients of their squares."""
    leaves = example.leaves(dtype)
    y = example.function(*leaves)
    g = Tensor(np.random.default_rng(7).standard_normal(y.shape).astype(dtype))
    first = ta.grad([y], leaves, [g], create_graph=order > 1)
    found = [y, *first]
    if order > 1 and any(x.requires_grad for x in first):
        square = sum((x * x).sum() for x in first)
        found += [x for x in ta.grad(square, leaves, allow_unused=True) if x is not None]
    return [x.numpy() for x in found]


def same(found: list[np.ndarray], expected: list[np.ndarray], dtype: Any, size: float) -> None:
    assert len(found) == len(expected)
    for place, (a, b) in enumerate(zip(found, expected)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), place
        atol = TOLERANCE[dtype] * (0.5 * size + np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"output {place}")


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def several(request):
    before = threads.get_num_threads()
    threads.set_num_threads(request.param)
    yield
    threads.set_num_threads(before)


@each("dtype", DTYPES)
@pytest.mark.parametrize("name", TABLE)
def test_kernels_equal_their_references_to_second_order(name, dtype):
    with ta.plain():
        expected = outcome(TABLE[name], dtype, 2)
    same(outcome(TABLE[name], dtype, 2), expected, dtype, TABLE[name].size)


SMALL: dict[type, Any] = {int: 8, float: 1e-30}
LARGE: dict[type, Any] = {int: 1 << 40, float: 1e30}
THRESHOLDS = {name: value for name, value in vars(tuning).items() if name.isupper()}
TILED = {"ATTENTION_BLOCK": 8, "LEAST_ROWS": 16, "COLUMNS": 16}
MOVED: dict[str, dict[str, Any]] = {
    "as it is": {},
    "small": {
        name: SMALL[type(value)] for name, value in THRESHOLDS.items() if type(value) in SMALL
    },
    "large": {
        name: LARGE[type(value)] for name, value in THRESHOLDS.items() if type(value) in SMALL
    },
    "tiles": TILED,
    "tiles that are computed again": {**TILED, "KEPT_SCORES": 0, "TILES_BYTES": 0},
    "shared products": {
        name: 8
        for name in ("SHARED_PRODUCT", "SHARED_ROWS", "BLOCK", "SECOND_THREAD", "BLOCK_OF_THREADS")
    },
    "products of BLAS": {"BLAS_PRODUCT": 8},
}


@functools.cache
def plain_outcome(name, dtype):
    with ta.plain():
        return outcome(TABLE[name], dtype, 1)


@pytest.mark.parametrize("moved", MOVED)
def test_no_threshold_and_no_thread_changes_a_number(moved, several, monkeypatch):
    for name, value in MOVED[moved].items():
        monkeypatch.setattr(tuning, name, value)
    for name, example in TABLE.items():
        for dtype in DTYPES:
            try:
                same(outcome(example, dtype, 1), plain_outcome(name, dtype), dtype, example.size)
            except AssertionError as error:
                raise AssertionError(f"{name}, {dtype.__name__}") from error


def test_every_kernel_is_reached_by_an_example(monkeypatch):
    importlib.import_module("tinygrad_attn.optim")
    taken = set()
    for replaced, kernel in kernels.kernels:

        def watched(*args, kernel=kernel, **settings):
            y = kernel(*args, **settings)
            if y is not NotImplemented:
                taken.add(kernel)
            return y

        monkeypatch.setattr(replaced, "kernel", watched)
    for example in TABLE.values():
        outcome(example, np.float32, 1)
    missed = {kernel for _, kernel in kernels.kernels} - taken
    assert not {k for k in missed if not k.__module__.endswith("adamw")}


# ---- what a table of finite numbers does not show


def attend(q, k, v, *mask, **settings):
    leaves = [Tensor(np.asarray(x), requires_grad=True) for x in (q, k, v)]
    y = F.scaled_dot_product_attention(*leaves, *mask, **settings)
    y.sum().backward()
    return [y.numpy(), *(x.grad.numpy() for x in leaves)]


@pytest.mark.parametrize("length", [5, 900])
@pytest.mark.parametrize("score", [1e30, -1e30, 80.0])
def test_hidden_scores_do_no_harm_however_large(length, score):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, length, 4)).astype("f") for _ in range(3))
    visible = np.ones(length, bool)
    visible[-2:] = False
    q[..., 0], k[:, -2:, 0] = 1, score
    found = attend(q, k, v, visible)
    few = attend(q, k[:, :-2], v[:, :-2])
    for a, b in zip(found[:2], few[:2]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not found[2][:, -2:].any() and not found[3][:, -2:].any()
    np.testing.assert_allclose(found[2][:, :-2], few[2], rtol=1e-4, atol=1e-5)


def test_outputs_beside_weights_may_be_changed_before_the_backward_pass():
    """The kernel reads its own arrays on the way back."""
    gradients = []
    for change in (False, True):
        leaves = TABLE["attention, heads, all"].leaves(np.float64)
        results = F.scaled_dot_product_attention(*leaves, need_weights=True)
        loss = sum((y[0] + y[1]).sum() for y in results)  # reads no values on the way back
        for y in results if change else ():
            y.data[...] = 7
        gradients.append([g.numpy() for g in ta.grad(loss, leaves)])
    for ours, expected in zip(*gradients):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", TABLE)
def test_an_output_that_is_changed_before_the_backward_pass_does_no_harm(name):
    """A kernel that reads its output must say so, also if it keeps the memory in its settings."""
    gradients = []
    for change in (False, True):
        leaves = TABLE[name].leaves(np.float64)
        y = TABLE[name].function(*leaves)
        loss = y.sum()  # reads no values on the way back
        if change:
            y.data[...] += 1
        try:
            found = ta.grad(loss, leaves, allow_unused=True)
        except ValueError as error:
            assert change and "its own output" in str(error)
            return
        gradients.append([g.numpy() for g in found if g is not None])
    for ours, expected in zip(*gradients):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("length", [40, 900])
def test_attention_keeps_nothing_without_a_graph(length):
    x = np.ones((1, 1, length, 8), "f")
    for way, kept in [(ta.no_grad, False), (ta.enable_grad, True)]:
        with way():
            call = AttentionCall(x, x, x, None, scale=0.5)
            call.forward()
        assert bool(call.kept) is kept


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("size", [3, 200])
def test_adamw_equals_its_reference_in_any_memory_order(size, order):
    """And after the state has been replaced, as by loading."""
    start, found = np.random.default_rng(0).standard_normal((3, size, size)).astype("f"), []
    for way in (ta.enable_grad, ta.plain):
        parameters = [nn.Parameter(x.copy(order=order)) for x in start]
        optimizer = optim.AdamW(parameters, lr=0.1, amsgrad=True)
        for step in range(6):
            if step == 3:
                optimizer.load_state_dict(optimizer.state_dict())
            for p, x in zip(parameters[step % 2 :], start):  # the first has fewer updates
                p.grad = Tensor(x * step)
            with way():
                optimizer.step()
            optimizer.zero_grad()
        found.append([p.numpy() for p in parameters])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_no_number_at_all_sums_to_zero():
    x, b = Tensor(np.ones((0, 3)), requires_grad=True), Tensor(np.ones(3), requires_grad=True)
    (x * b).sum().backward()
    np.testing.assert_array_equal(b.grad.numpy(), np.zeros(3))


def test_zero_times_nan_is_nan():
    for a, b in [((2, 1), (1, 3)), ((1, 1), (1, 1)), ((4, 1), (1, 1))]:
        y = ops.matmul(Tensor(np.zeros(a, "f")), Tensor(np.full(b, np.nan, "f")))
        assert np.isnan(y.numpy()).all()


def test_relu_of_nan_and_infinite_gradients():
    x = Tensor(np.array([[np.nan, -1.0, 2.0]], "f"), requires_grad=True)
    y = F.relu(x)
    y.backward(Tensor(np.full((1, 3), np.inf, "f")))
    np.testing.assert_array_equal(y.numpy(), [[np.nan, 0, 2]])
    np.testing.assert_array_equal(x.grad.numpy(), [[np.inf, 0, np.inf]])


def test_cross_entropy_with_ignored_rows_of_infinite_logits():
    x = Tensor(np.array([[np.inf, 1.0], [0.5, 1.0]], "f"), requires_grad=True)
    loss = F.cross_entropy(x, np.array([-100, 1]))
    loss.backward()
    assert np.isfinite(loss.numpy()) and not x.grad.numpy()[0].any()
    assert np.isnan(F.cross_entropy(Tensor([[1.0, 2.0]]), np.array([-100])).numpy())


@pytest.mark.parametrize("offset", [0, 1e3, 1e5])
def test_layer_norm_keeps_its_digits_far_from_zero(offset):
    x = np.random.default_rng(0).integers(-8, 8, (6, 300)).astype("f") + np.float32(offset)
    wide = x.astype(float)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(F.layer_norm(x, 300), expected, atol=3e-5 + 2e-8 * offset)
    np.testing.assert_array_equal(
        F.layer_norm(np.full((2, 3), 1e5 + 0.1, "f"), 3), np.zeros((2, 3))
    )


def test_gelu_is_exact_to_rounding_and_finite_far_out():
    from math import erf, sqrt

    x = np.linspace(-6, 6, 2001)
    exact = np.array([v * (1 + erf(v / sqrt(2))) / 2 for v in x])
    for dtype, tolerance in [(np.float32, 1e-6), (np.float64, 1e-14)]:
        np.testing.assert_allclose(F.gelu(x.astype(dtype)), exact, rtol=0, atol=tolerance)
    far = np.array([-1e30, -200.0, 200.0, 1e30], "f")
    np.testing.assert_array_equal(F.gelu(far), np.maximum(far, 0))
