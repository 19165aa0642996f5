"""gradcheck of PyTorch's own ops: every way in, and the refusal of our Tensors inside torch."""

import numpy as np
import pytest
from support import require

torch = require("torch")

from tinygrad_attn.check import gradcheck, gradgradcheck


def wrong(rule, forward=lambda x: x * x):
    """A torch.autograd.Function named Wrong, with this backward."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return rule(g, *ctx.saved_tensors)

    return Wrong.apply


def rand(*shape):
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()


square = wrong(lambda g, x: 2 * g * x)
MISTAKES = {
    "constant factor": wrong(lambda g, x: g * x),
    "wrong factor": wrong(lambda g, x: -g),
    "zero": wrong(lambda g, x: torch.zeros_like(x)),
    "incoming gradient ignored": wrong(lambda g, x: 2 * x),
    "missing sum": wrong(
        lambda g, x: (lambda y: g * y * (1 - y))(x.softmax(-1)), lambda x: x.softmax(-1)
    ),
    "transposed": wrong(lambda g, x: (2 * g * x).T),
    "VJP changes its operands": wrong(lambda g, x: g.mul_(2 * x)),
    "some elements": wrong(lambda g, x: g * (x > 0), torch.abs),
    "backward fails": wrong(lambda g, x: {}["k"]),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_wrong_function_is_named_with_its_mistake(kind):
    for f in (MISTAKES[kind], lambda x: torch.tanh(MISTAKES[kind](x * 1.5)) + x.sum()):
        report = gradcheck(f, [rand(3, 3)], raise_exception=False)
        assert not report and report.op == "Wrong" and report.diagnosis.kind == kind, report
        assert report.place.startswith(__file__)


WAYS = {
    "inputs": (lambda x: square(x).sum(), [rand(4)], {}),
    "one input": (square, rand(4), {}),
    "a module": (torch.nn.Linear(3, 2).double(), [rand(4, 3)], {}),
    "a module and an array": (torch.nn.Linear(3, 2).double(), [np.ones((4, 3))], {}),
    "params": (lambda x: x @ W, [rand(4, 3).detach()], dict(params=[(W := rand(3, 2))])),
    "params alone": (lambda: (W**3).sum(), [], dict(params={"w": W})),
    "a layer": (torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True).double(), [rand(2, 3, 4)], {}),
    "several results": (lambda x: (x.sin(), {"y": square(x)}), [rand(4)], {}),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in(way):
    f, inputs, options = WAYS[way]
    kept = [p.detach().clone() for p in f.parameters()] if isinstance(f, torch.nn.Module) else []
    report = gradcheck(f, inputs, **options)
    names = [e.name for e in report.entries]
    assert report and (way != "params" or names == ["input 0", "parameter 0"]), report
    assert "module" not in way or names == ["input 0", "parameter 'weight'", "parameter 'bias'"]
    assert not kept or all(torch.equal(a, b) for a, b in zip(kept, f.parameters()))
    assert all(p.grad is None for p in (f.parameters() if kept else [W]))


def test_a_module_that_is_wrong_and_dropout():
    class Bad(torch.nn.Linear):
        def forward(self, x):
            return MISTAKES["constant factor"](super().forward(x))

    report = gradcheck(Bad(3, 2).double(), [rand(4, 3)], raise_exception=False)
    assert report.op == "Wrong" and report.diagnosis.kind == "constant factor", report
    report = gradcheck(torch.nn.Dropout(0.5), [rand(40)], raise_exception=False)
    assert report.diagnosis.kind == "not deterministic"
    detached = gradcheck(lambda x: x * x.detach(), [rand(4)], raise_exception=False)
    assert not detached and "detach()" in detached.diagnosis


def test_a_function_with_several_outputs():
    class Parts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            ctx.mark_non_differentiable(places := x.argmax(-1))
            return x * 2, places, None, x.sum(-1) * 3

        @staticmethod
        def backward(ctx, g, _, __, h):
            return g * 2 + h[:, None] * ctx.factor, None

    both = lambda factor: lambda x: sum(y.sum() for y in Parts.apply(x, factor)[::3])
    assert gradcheck(both(3), [rand(3, 4)])
    report = gradcheck(both(4), [rand(3, 4)], raise_exception=False)
    assert not report and report.op == "Parts", report


def test_the_second_order():
    assert gradgradcheck(square, [rand(4)]) and gradgradcheck(torch.tanh, [rand(4)])
    once = wrong(lambda g, x: 2 * g * x.detach())
    assert gradcheck(once, [rand(4)])
    report = gradgradcheck(once, [rand(4)], raise_exception=False)
    assert report.diagnosis.kind == "second order", report


REFUSED = {  # Functions would run on our Tensors; all else raises an error of its own
    "a Function": lambda x: MISTAKES["wrong factor"](x),
    "deep inside": lambda x: (x * 2 + MISTAKES["wrong factor"](x * 1.0)).sum(),
    "that saves nothing": lambda x: wrong(lambda g, x: -g, lambda x: x * 1.0)(x),
    "a function": lambda x: torch.exp(x),
    "a method of a tensor": lambda x: torch.ones(3, dtype=torch.float64) * x,
    "functional": lambda x: torch.nn.functional.softmax(x, -1),
    "a module": lambda x: torch.nn.Linear(3, 2).double()(x),
    "numbers": lambda x: torch.from_numpy(x.numpy()).exp(),
}


@pytest.mark.parametrize("way", REFUSED)
def test_tensors_of_ours_inside_torch_are_refused(way):
    text = "accepts only PyTorch tensors|cannot take Tensor|must return a floating-point tensor"
    if way in ("a Function", "deep inside", "that saves nothing"):
        text = "Pass torch tensors as inputs"
    with pytest.raises(TypeError, match=text):
        gradcheck(REFUSED[way], [np.array([1.0, 2, 3])])


def test_what_is_too_coarse_is_refused():
    with pytest.raises(TypeError, match=r"precision too low.*x\.double\(\)"):
        gradcheck(torch.exp, [torch.ones(2, requires_grad=True)])
    with pytest.raises(TypeError, match=r"module\.double\(\)"):
        gradcheck(torch.nn.Linear(3, 2), [rand(4, 3)])


# ---- complex numbers


class Both(torch.autograd.Function):
    """x -> 2 x and the complex number x^2 + i x"""

    factor = 2.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x, torch.complex(x * x, x)

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 2 * g + Both.factor * x * h.real + h.imag


def cube(conjugated):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z**3

        @staticmethod
        def backward(ctx, g):
            slope = 3 * ctx.saved_tensors[0] ** 2
            return g * (slope.conj() if conjugated else slope)

    return Cube.apply


def complex_numbers(*shape):
    return torch.view_as_complex(rand(*shape, 2).detach()).requires_grad_()


COMPLEX = {
    "exp": torch.exp,
    "abs": torch.abs,
    "conj": torch.conj,
    "not holomorphic": lambda z: z * z.conj() + z.real,
    "fft": torch.fft.fft,
    "to real": lambda z: torch.fft.ifft(z).real,
    "several": lambda z: {"a": z * 2, "b": (torch.view_as_real(z), z.imag)},
    "a function": cube(True),
}


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("order", [1, 2])
def test_complex_numbers_are_checked_as_pairs(name, order):
    z = complex_numbers(3)
    report = gradcheck(COMPLEX[name], [z], order=order)
    assert report.entries[0].name == "input 0 (real, imaginary)" and z.is_complex()
    assert report.entries[0].analytic.shape == (3, 2)


def test_a_wrong_gradient_of_complex_numbers_is_found():
    report = gradcheck(cube(False), [complex_numbers(3)], raise_exception=False)
    assert not report and report.op == "Cube" and "conj()" in report.diagnosis, report
    assert gradcheck(Both.apply, [rand(3)])
    for Both.factor in (3.0, 100.0):
        report = gradcheck(Both.apply, [rand(3)], raise_exception=False)
        assert not report and report.op == "Both", report
    Both.factor = 2.0
    assert gradcheck(torch.fft.rfft, [rand(4)])
    module = torch.nn.Linear(2, 2, dtype=torch.complex128)
    assert len(gradcheck(module, [complex_numbers(3, 2)]).entries) == 3
    with pytest.raises(TypeError, match="precision too low.*complex128"):
        gradcheck(torch.exp, [complex_numbers(3).to(torch.complex64)])


# ---- hooks


def hooked_tensor(replace):
    def f(x):
        y = x * x
        y.register_hook(lambda g: 3 * g if replace else None)
        return y.sin()

    return f


def hooked_module(replace):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).double()
    module[0].register_full_backward_hook(
        lambda module, g_in, g_out: (2 * g_in[0],) if replace else None
    )
    return module


def hooked_output(replace):
    module = torch.nn.Linear(3, 3).double()
    module.register_full_backward_pre_hook(lambda m, g_out: (2 * g_out[0],) if replace else None)
    return module


@pytest.mark.parametrize("hooked", [hooked_tensor, hooked_module, hooked_output])
def test_a_hook_that_changes_the_gradient_is_named(hooked):
    assert gradcheck(hooked(False), [rand(2, 3)])
    report = gradcheck(hooked(True), [rand(2, 3)], raise_exception=False)
    assert not report and "backward hook returns another" in report.diagnosis, report
    detached = gradcheck(lambda x: hooked(False)(x) + x.detach(), [rand(2, 3)], raise_exception=False)  # fmt: skip
    assert not detached and "backward hook" not in detached.diagnosis, detached


def test_a_hook_of_an_input_is_named_and_stays():
    x = rand(3)
    x.register_hook(lambda g: 2 * g)
    report = gradcheck(torch.sin, [x], raise_exception=False)
    assert "backward hook returns another" in report.diagnosis, report
    x.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0, dtype=torch.float64))
