"""PyTorch's own samples for its modules: outputs and every gradient of ours agree in float64, in training and
evaluation.

The samples are those PyTorch tests itself with (`torch.testing._internal.common_modules`). A sample that is out of
scope is counted by reason and printed; none is dropped.
"""

import inspect
from collections import Counter
from functools import cache

import numpy as np
import pytest
from support import require

torch = require("torch")

from tinygrad_attn import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")

WITHOUT_SAMPLES = {
    *("Module", "ModuleDict", "ModuleList", "Sequential", "Identity"),
    *("Dropout", "TransformerDecoder"),
}
NAMES = [  # whatever both have is compared
    name
    for name in nn.__all__
    if isinstance(getattr(torch.nn, name, None), type)
    and issubclass(getattr(torch.nn, name), torch.nn.Module)
    and name not in WITHOUT_SAMPLES
]
TOLERANCE = 1e-6
EXPECTED = {
    "Linear": 3,
    "Embedding": 2,
    "CrossEntropyLoss": 105,
    "MultiheadAttention": 64,
    "TransformerEncoderLayer": 35,
}
RENAMED = {torch.nn.functional.gelu: "gelu", torch.nn.functional.relu: "relu"}


@cache
def infos():
    """What PyTorch knows of its modules. It takes seconds to import it, in one process of the tests."""
    common_modules = pytest.importorskip("torch.testing._internal.common_modules")
    return {
        info.module_cls.__name__: info
        for info in common_modules.module_db
        if info.module_cls.__module__.startswith("torch.nn.modules")
    }


def samples(name, training):
    """(torch module, its own constructor arguments, forward arguments) of each sample, with known random numbers."""
    torch.manual_seed(0)
    info = infos()[name]
    for sample in info.module_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
    ):
        made = sample.constructor_input
        theirs = info.module_cls(*made.args, **{**made.kwargs, **dtype_for(info.module_cls)}).to(
            torch.float64
        )
        yield theirs.train(training), made, sample.forward_input


def dtype_for(cls):
    return {"dtype": torch.float64} if "dtype" in inspect.signature(cls.__init__).parameters else {}


def translate(x):
    """A constructor's argument for us."""
    if isinstance(x, torch.nn.TransformerEncoderLayer):
        attention = x.self_attn
        layer = nn.TransformerEncoderLayer(
            attention.embed_dim,
            attention.num_heads,
            x.linear1.out_features,
            x.dropout.p,
            RENAMED[x.activation],
            x.norm1.eps,
            attention.batch_first,
            x.norm_first,
            x.linear1.bias is not None,
        )
        layer.load_state_dict(x.state_dict())
        return layer
    if isinstance(x, torch.Tensor):
        return x.detach().numpy()
    return RENAMED.get(x, x) if callable(x) else x


def ours_for(theirs, made):
    module = getattr(nn, type(theirs).__name__)(
        *map(translate, made.args), **{k: translate(v) for k, v in made.kwargs.items()}
    )
    module.astype(np.float64).load_state_dict(theirs.state_dict())
    return module.train(theirs.training)


def both(x):
    """An input as a torch leaf and ours with the same numbers."""
    if not isinstance(x, torch.Tensor):
        return x, x
    x = x.detach().clone().requires_grad_(x.requires_grad)
    return x, Tensor(x.detach().numpy(), requires_grad=x.requires_grad)


def assert_close(ours, theirs, what):
    assert (ours is None) == (theirs is None), f"{what}: {ours} against {theirs}"
    if ours is None:
        return
    ours, theirs = ours.numpy(), theirs.detach().numpy()
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    np.testing.assert_allclose(
        ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, err_msg=what
    )  # NaN where theirs is NaN, and only there


def outputs(y):
    return [t for t in (y if isinstance(y, tuple) else (y,)) if t is not None]


def compare(theirs, made, call):
    """Outputs, then the gradients of a random weighing of all outputs by every input and parameter."""
    ours = ours_for(theirs, made)
    pairs = [both(x) for x in call.args]
    named = {k: both(x) for k, x in call.kwargs.items()}
    y_theirs = outputs(theirs(*[a for a, _ in pairs], **{k: a for k, (a, _) in named.items()}))
    y_ours = outputs(ours(*[b for _, b in pairs], **{k: b for k, (_, b) in named.items()}))
    assert len(y_ours) == len(y_theirs)
    for i, (a, b) in enumerate(zip(y_ours, y_theirs)):
        assert_close(a, b, f"output {i}")
    weigh = [torch.randn_like(y) for y in y_theirs]
    theirs_loss = sum((y * w).sum() for y, w in zip(y_theirs, weigh))
    ours_loss = sum((y * w.numpy()).sum() for y, w in zip(y_ours, weigh))
    theirs_loss.backward()
    ours_loss.backward()
    gradients = 0
    for name, (a, b) in {**{f"input {i}": p for i, p in enumerate(pairs)}, **named}.items():
        if isinstance(a, torch.Tensor) and a.requires_grad:
            assert_close(b.grad, a.grad, f"gradient of {name}")
            gradients += 1
    for (name, a), (same, b) in zip(
        theirs.named_parameters(), ours.named_parameters(), strict=True
    ):
        assert name == same
        assert_close(b.grad, a.grad, f"gradient of {name}")
        gradients += 1
    return gradients


def out_of_scope(made, call):
    """Why a sample asks for something that is not ours to do, or None."""
    given = (*call.args, *call.kwargs.values(), *made.args, *made.kwargs.values())
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    if any(x.is_complex() for x in tensors):
        return "complex numbers"
    if any(x.is_nested for x in tensors):
        return "nested tensors"
    if made.kwargs.get("device") is not None:
        return "devices"
    return None


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_every_gradient_agree_with_torch(name, training):
    seen, skipped, gradients, failed = 0, Counter(), 0, []
    for i, (theirs, made, call) in enumerate(samples(name, training)):
        if reason := out_of_scope(made, call):
            skipped[reason] += 1
            continue
        seen += 1
        try:
            gradients += compare(theirs, made, call)
        except Exception as error:
            failed.append(
                f"sample {i} {made.args} {made.kwargs} called with {list(call.kwargs)}: {error!r}"
            )
    mode = "training" if training else "evaluation"
    print(
        f"\n{name}, {mode}: {seen - len(failed)} of {seen} agree, {gradients} gradients; "
        f"out of scope: {dict(skipped) or 'none'}"
    )
    assert not failed, f"{len(failed)} of {seen} differ\n" + "\n".join(failed[:5])
    assert seen >= EXPECTED.get(name, 1) and gradients


def test_what_is_left_out_has_no_samples():
    assert not WITHOUT_SAMPLES & infos().keys()
