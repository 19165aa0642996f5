"""Kernels of other libraries and precisions: no right one is accused, and every mistake is found and named."""

import math
import sys
import types
import warnings
import zlib

import numpy as np
import pytest
from support import require

torch = require("torch")

from kerneltable import KERNELS, pair, tensors

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn.check import GradcheckError, gradcheck

PRECISIONS = ("float32", "float16", "bfloat16")
FINE_ONLY = {("unit", "eps outside the root"): "float32"}  # too small to be seen in others
COARSE_ONLY = "low sums"  # sums in float32 are right in float32


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the references, for axes of length 0
        yield


def check(name, bug, dtype, seed=0):
    *_, plain, inputs, _ = KERNELS[name]
    options = dict(reference=plain, dtype=dtype, seed=seed, raise_exception=False)
    return gradcheck(None, tensors(inputs, torch.float32), vjp=pair(name, bug), **options)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", KERNELS)
def test_no_right_kernel_is_accused(name, dtype):
    report = check(name, None, dtype, seed=zlib.crc32((name + dtype).encode()) % 1000)
    assert report, report


@pytest.mark.parametrize("name, bug", [(name, bug) for name in KERNELS for bug in KERNELS[name][4]])
def test_every_mistake_is_found_and_named(name, bug):
    wanted = KERNELS[name][4][bug].split("|")
    number = zlib.crc32((name + bug).encode())
    dtypes = PRECISIONS[1:] if bug == COARSE_ONLY else PRECISIONS
    dtype = FINE_ONLY.get((name, bug), dtypes[number % len(dtypes)])
    report = check(name, bug, dtype)
    assert not report and any(words in report.diagnosis for words in wanted), report


# ---- the forms of a backward pass, on NumPy arrays


def product(x, w, index):
    return x[index] * w


def product_back(g, y, x, w, index):
    dx = np.zeros_like(x)
    np.add.at(dx, index, g * w)
    return dx, (g * x[index]).sum(axis=0), None


X, W, INDEX = (
    np.random.default_rng(0).standard_normal((5, 4)),
    np.arange(1.0, 5),
    np.array([0, 2, 2]),
)
INPUTS = [X, W, INDEX]
FORMS = {
    "g, y, inputs": dict(f=product, vjp=product_back),
    "only floats": dict(f=product, vjp=lambda *a: product_back(*a)[:2]),
    "a pair": dict(
        f=None,
        vjp=(lambda *xs: (product(*xs), xs), lambda xs, g: product_back(g, None, *xs)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_backward_pass(form):
    report = gradcheck(inputs=INPUTS, **FORMS[form])
    assert [e.name for e in report.entries] == ["input 0", "input 1"]
    assert gradcheck(inputs=INPUTS, dtype="float32", reference=product, **FORMS[form])


def test_several_results_and_one_that_is_not_used():
    f = lambda x: (x * x, np.arange(3), x.sum(axis=0))
    vjp = lambda g, y, x: 2 * g[0] * x + g[2]
    assert gradcheck(f, [X], vjp=vjp)
    wrong = gradcheck(f, [X], vjp=lambda g, y, x: 2 * g[0] * x, raise_exception=False)
    assert not wrong and wrong.entries[0].name == "input 0"
    with pytest.raises(ValueError, match="nothing to check"):
        gradcheck(f, [np.arange(3)], vjp=vjp)


WRONG = {  # a VJP of x * w, and the beginning of the diagnosis
    "half": (lambda g, y, x, w: (g * w / 2, (g * x).sum(0)), "constant factor"),
    "ignores g": (lambda g, y, x, w: (w + 0 * g, (g * x).sum(0)), "incoming gradient ignored"),
    "not summed": (lambda g, y, x, w: (g * w, g * x), "backward fails"),
    "too few": (lambda g, y, x, w: (g * w, 0, 0, 0), "backward fails"),
    "overwrites g": (lambda g, y, x, w: (np.multiply(g, w, out=g), (g * x).sum(0)), "VJP changes"),
    "memory order": (
        lambda g, y, x, w: (np.resize(g.ravel(order="K"), g.shape) * w, (g * x).sum(0)),
        "memory layout",
    ),
    "first rows": (lambda g, y, x, w: (g * w, (g * x)[:5].sum(0)), "length"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backward_on_arrays_is_named(name):
    vjp, kind = WRONG[name]
    report = gradcheck(lambda x, w: x * w, [X, W], vjp=vjp, raise_exception=False)
    assert not report and report.diagnosis.startswith(kind), report


def test_sizes_that_a_kernel_refuses_are_not_offered():
    def f(x):
        if x.shape[0] % 4:
            raise ValueError("the number of rows must be a multiple of 4")
        return x * x

    report = gradcheck(f, [X[:4]], vjp=lambda g, y, x: 2 * g * x)
    assert report and any("must be a multiple of 4" in note for note in report.notes)


def test_an_error_that_is_no_refusal_is_a_mistake():
    def vjp(g, y, x):
        return 2 * g * x * (1.0 if len(x) < 9 else {}["tile"])

    for f, x in ((np.square, X), (torch.square, torch.tensor(X))):
        report = gradcheck(f, [x], vjp=vjp, raise_exception=False)
        assert not report and "fails at" in report.diagnosis and "KeyError" in report.diagnosis


def test_one_array_for_two_inputs():
    def vjp(g, y, a, b):
        return g * b, np.zeros_like(b) if a is b else g * a

    report = gradcheck(lambda a, b: a * b, [X, X + 1], vjp=vjp, raise_exception=False)
    assert not report and "inputs 0 and 1 are the same array" in report.diagnosis, report


def test_sums_in_another_order_are_noted_and_no_fault():
    runs = []

    def f(x):
        runs.append(1)
        return x * x * (1 + 1e-16 * (len(runs) % 3)) + (len(runs) % 2) * 1e-16

    report = gradcheck(f, [X], vjp=lambda g, y, x: 2 * g * x)
    assert any("last bits" in note for note in report.notes), report


def norm(x, low, outside):
    """A norm of rows without weights, and what its backward pass needs."""
    v = x.astype(np.float32)
    mean, variance = v.mean(-1, keepdims=True), v.var(-1, keepdims=True)
    if low:
        mean, variance = (a.astype(x.dtype).astype(np.float32) for a in (mean, variance))
    right, wrong = 1 / np.sqrt(variance + 1e-5), 1 / (np.sqrt(variance) + 1e-5)
    return ((v - mean) * right).astype(x.dtype), (v - mean, wrong if outside else right)


def norm_back(saved, g):
    centred, r = saved
    h, mean = centred * r, lambda a: a.astype(np.float32).mean(-1, keepdims=True)
    return (r * (g - mean(g) - h * mean(g * h))).astype(g.dtype)


def plain_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("low, outside, words", [(0, 0, ""), (1, 0, ""), (0, 1, "constant")])
def test_statistics_and_eps_in_float16(low, outside, words):
    """Statistics in float16 are noted, and no mistake: PyTorch keeps them so on a CPU."""
    forward = lambda x: norm(x, low, outside)
    x = (2 + np.random.default_rng(1).standard_normal((6, 24))).astype(np.float16)
    options = dict(reference=plain_norm, dtype="float16", raise_exception=False)
    report = gradcheck(None, [x], vjp=(forward, norm_back), **options)
    assert bool(report) == (not words) and words in report.diagnosis, report
    assert any("such as a mean" in note for note in report.notes) == bool(low), report


def chain(a, b):
    return a @ b


CAUSES = {  # a VJP of a function of two matrices, and words of the diagnosis
    "wrong order": (chain, lambda g, y, a, b: (b.T @ g, a.T @ g), "(input 1).mT @ g, but should be g @ (input 1).mT"),
    "exchanged": (lambda a, b: a * b, lambda g, y, a, b: (g * a, g * b), "is that of input"),
    "g twice": (chain, lambda g, y, a, b: (g @ b.T * g, a.T @ g), "used twice"),
    "sigmoid's slope": (lambda a, b: np.tanh(a) + b, lambda g, y, a, b: (g * (y - b) * (1 - y + b), g), "VJP"),
    "upside down": (
        lambda a, b: np.where(UPPER, a, 0.0) * 2 + b, lambda g, y, a, b: (np.where(UPPER, 0.0, 2 * g), g), "upside down"),
}  # fmt: skip
UPPER = np.triu(np.ones((4, 4), bool))


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named(name):
    f, vjp, words = CAUSES[name]
    report = gradcheck(f, [X[:4], X[1:] * 1.5 + 0.2], vjp=vjp, raise_exception=False)
    assert not report and words in report.diagnosis, report


def weights(q, k):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def flash(q, k, v):
    """Attention that keeps its result in float16 for the backward pass, as fast kernels do."""
    y = (weights(*(a.astype(np.float32) for a in (q, k))) @ v.astype(np.float32)).astype(q.dtype)
    return y, (q, k, v, y)


def flash_back(saved, g):
    q, k, v, y, g = (a.astype(np.float32) for a in (*saved, g))
    p = weights(q, k)
    d = p * (g @ v.mT - (g * y).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return tuple(a.astype(saved[0].dtype) for a in (d @ k, d.mT @ q, p.mT @ g))


def test_a_backward_pass_may_read_the_result_as_it_is_stored():
    """It differs most where one key has nearly all weight, as for equal queries and keys."""
    q = (4 * np.random.default_rng(3).standard_normal((2, 12, 8))).astype(np.float16)
    options = dict(reference=lambda q, k, v: weights(q, k) @ v, dtype="float16", seed=1)
    assert gradcheck(None, [q, q, q[::-1]], vjp=(flash, flash_back), **options)


def attention_by_logsumexp(q, k, v):
    """Attention that keeps the logarithm of the sum, so that saturated weights do not add up to 1."""
    s = q @ k.mT / np.sqrt(q.shape[-1]).astype(q.dtype)
    m = s.max(-1, keepdims=True)
    logsumexp = np.log(np.exp(s - m).sum(-1, keepdims=True)) + m
    return np.exp(s - logsumexp) @ v, (q, k, v, logsumexp)


def attention_by_logsumexp_back(saved, g):
    q, k, v, logsumexp = saved
    scale = 1 / np.sqrt(q.shape[-1]).astype(q.dtype)
    p = np.exp(q @ k.mT * scale - logsumexp)
    d = p * (g @ v.mT - (g * (p @ v)).sum(-1, keepdims=True)) * scale
    return d @ k, d.mT @ q, p.mT @ g


SATURATED = {  # right kernels, and inputs for which little is left of their gradients
    "scores": (None, (attention_by_logsumexp, attention_by_logsumexp_back), lambda q, k, v: weights(q, k) @ v, [8 + N for N in np.random.default_rng(0).standard_normal((3, 2, 7, 6))], "float32"),
    "large results": (np.exp, lambda g, y, x: g * y, np.exp, [np.linspace(8, 9.9, 12).reshape(3, 4)], "float16"),
    "steps to 1": (lambda x: 1 / (1 + np.exp(-x)), lambda g, y, x: g * y * (1 - y), lambda x: 1 / (1 + np.exp(-x)), [np.linspace(6, 9, 24).reshape(4, 6)], "float16"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_function_of_torch_is_its_own_reference(dtype):
    """What it rounds at each step is seen in a run of the reference in that precision."""
    torch = require("torch")

    def attention(q, k, v):
        return (q @ k.T / math.sqrt(q.shape[1])).softmax(-1) @ v

    inputs = [torch.randn(6, 64, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert gradcheck(attention, inputs, reference=attention, dtype=dtype)


@pytest.mark.parametrize("seed", range(3))
def test_the_incoming_gradient_is_not_the_user_s_random_numbers(seed):
    x, w = (r := np.random.default_rng(seed)).standard_normal((5, 4)), r.standard_normal((4, 4))

    def backward(g, y, x, w):
        if x.shape != (5, 4):
            raise ValueError("this kernel is for one shape")
        return g @ w.T, g.T @ x

    report = gradcheck(lambda x, w: x @ w, [x, w], vjp=backward, raise_exception=False, seed=seed)
    assert not report and "transposed" in report.diagnosis, report


def test_a_first_axis_of_one_element_is_tried():
    backward = lambda g, y, x: 2 * g * x if len(x) > 1 else np.zeros_like(x)
    report = gradcheck(lambda x: x * x, [np.ones((3, 6))], vjp=backward, raise_exception=False)
    assert report.diagnosis.startswith("one element: right for the given inputs"), report


def test_a_sum_in_a_lower_precision_is_nearly_right():
    def backward(g, y, x, w):
        dw = np.zeros(4, np.float16)
        for row in g * x:
            dw = dw + row.astype(np.float16)
        return g * w, dw.astype(x.dtype)

    x, w = (r := np.random.default_rng(0)).standard_normal((9, 4)), r.standard_normal(4)
    f = lambda x, w: x * w
    report = gradcheck(f, [x, w], vjp=backward, reference=f, dtype="float32", raise_exception=False)
    assert "a sum is kept in a lower precision" in report.diagnosis, report


@pytest.mark.parametrize("name", SATURATED)
def test_saturated_kernels_are_not_accused(name):
    f, vjp, plain, inputs, dtype = SATURATED[name]
    for seed in range(2):
        assert gradcheck(f, [x.astype(dtype) for x in inputs], vjp=vjp, reference=plain, seed=seed)


def test_a_lost_part_is_no_constant():
    """The other part grows with a second input, so that the error seems to vanish."""
    f = lambda x, w: np.concatenate([x[:3] * w, x[3:]])
    vjp = lambda g, y, x, w: (np.concatenate([g[:3] * w, 0 * g[3:]]), (g[:3] * x[:3]).sum(0))
    report = gradcheck(f, [X, W], vjp=vjp, reference=f, raise_exception=False)
    assert "through 'getitem'" in report.diagnosis, report


def test_a_forward_pass_that_overwrites_its_input_is_named():
    def forward(x):
        y = x * x
        x *= 2
        return y, (x,)

    pair = forward, lambda saved, g: g * saved[0]
    report = gradcheck(None, [X], vjp=pair, reference=np.square, raise_exception=False)
    assert report.diagnosis.kind == "input modified", report


def test_arrays_of_any_library_come_by_dlpack(monkeypatch):
    class Device:
        """An array that NumPy can read only by DLPack."""

        def __init__(self, values):
            self.values, self.dtype, self.shape = values, values.dtype, values.shape

        def __dlpack__(self, **options):
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

        def __mul__(self, other):
            return Device(self.values * getattr(other, "values", other))

    Device.__module__ = "device_arrays"
    library = types.ModuleType("device_arrays")
    library.asarray = lambda x, dtype: Device(np.array(x, dtype))
    monkeypatch.setitem(sys.modules, "device_arrays", library)
    for factor in (2, 1):
        vjp = lambda g, y, x, factor=factor: g * x * factor
        report = gradcheck(lambda x: x * x, [Device(X)], vjp=vjp, raise_exception=False)
        assert bool(report) == (factor == 2), report


def test_strides_that_a_kernel_refuses_are_no_fault():
    def vjp(g, y, x):
        assert g.flags.c_contiguous, "g must be contiguous"
        return 2 * g * x

    assert gradcheck(lambda x: x * x, [X], vjp=vjp)


def test_without_a_reference_the_kernel_in_float64_is_the_reference():
    f, vjp = lambda x: np.tanh(x), lambda g, y, x: g * (1 - y * y)
    assert gradcheck(f, [X], vjp=vjp, dtype="float32")
    coarse = lambda g, y, x: g * (1 - (y * y).astype(np.float16)).astype(g.dtype)
    report = gradcheck(f, [X], vjp=coarse, raise_exception=False)
    assert not report
    single = lambda x: np.tanh(x.astype(np.float32))
    with pytest.raises(TypeError, match="Pass reference="):
        gradcheck(single, [X.astype(np.float32)], vjp=vjp)


def test_what_cannot_be_run_is_said():
    f = lambda x: x * x
    with pytest.raises(ValueError, match="dtype must be one of"):
        gradcheck(f, [X], vjp=lambda g, y, x: 2 * g * x, dtype="float8")
    with pytest.raises(TypeError, match="reference must be"):
        gradcheck(f, [X], vjp=lambda g, y, x: 2 * g * x, reference=lambda x: "text")
    with pytest.raises(GradcheckError, match="constant factor"):
        gradcheck(f, [X], vjp=lambda g, y, x: g * x, reference=f, dtype="float32")


def plain_attention(q, k, v):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


LIBRARY = {  # functions of PyTorch, their plain references, and shapes
    "layer_norm": (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), plain_norm, [(6, 16)]),
    "fused reference": (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), lambda x: F.layer_norm(x, x.shape[-1:]), [(6, 16)]),
    "group_norm": (lambda x: torch.nn.functional.group_norm(x, 2), lambda x: F.layer_norm(x.reshape(len(x), 2, -1), [x[0].size // 2]).reshape(x.shape), [(2, 4, 6)]),
    "tanh": (torch.tanh, torch.tanh, [(6, 16)]),
    "var": (lambda x: x.var(-1), lambda x: x.var(-1, ddof=1), [(6, 16)]),
    "methods that differ": (lambda x: x.var(-1), lambda x: x.var(-1), [(6, 16)]),
    "attention": (torch.nn.functional.scaled_dot_product_attention, plain_attention, [(1, 2, 32, 16)] * 3),
}  # fmt: skip


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", LIBRARY)
def test_a_librarys_own_functions_are_not_accused(name, dtype):
    f, plain, shapes = LIBRARY[name]
    inputs = [
        torch.tensor(np.random.default_rng([1, k]).standard_normal(s)) for k, s in enumerate(shapes)
    ]
    assert gradcheck(f, inputs, reference=plain, dtype=dtype, seed=1)


def test_torch_functions_in_low_precision():
    class Scale(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return Scale.factor * g * ctx.saved_tensors[0]

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for reference in (lambda x: x * x, lambda x: torch.square(x), None):
        Scale.factor = 2.0
        assert gradcheck(Scale.apply, [x], reference=reference, dtype="bfloat16")
        Scale.factor = 2.5
        wrong = gradcheck(
            Scale.apply, [x], reference=reference, dtype="bfloat16", raise_exception=False
        )
        assert "1.25 times" in wrong.diagnosis, wrong


def test_a_report_for_programs():
    report = gradcheck(
        lambda x: x * x, [X], vjp=lambda g, y, x: g * x, raise_exception=False
    ).as_dict()
    assert not report["ok"] and report["kind"] == "constant factor" and len(report["index"]) == 2
    assert report["operand"] == "input 0" and report["text"].startswith("gradcheck: FAILED")
    assert ta.gradcheck(lambda x: x * x, [X], vjp=lambda g, y, x: 2 * g * x).as_dict()["ok"]
