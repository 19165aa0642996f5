"""Wrong calls that users make, and the words that tell them what to write instead.

A table: the call, the kind of error, and a pattern that its text matches.  Each text says what happened and what to do.
"""

import copy
import math
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
import types
import warnings
from fractions import Fraction

import numpy as np
import pytest
from support import require

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor, grad, nn, op, optim
from tinygrad_attn.messages.missing_names import MissingName
from tinygrad_attn.messages.other_names import ELSEWHERE as hints

V, T, I, A, R = ValueError, TypeError, IndexError, AttributeError, RuntimeError


def t(*shape, rg=True, dtype=np.float32):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype), requires_grad=rg)


class NoForward(nn.Module):
    pass


class PlainList(nn.Module):
    def __init__(self):
        self.layers = [nn.Linear(2, 2)]

    def forward(self, x):
        return x


class PlainTensor(nn.Module):
    def __init__(self):
        self.weight = t(3)


class Typo(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.liner(x)


class OnTheGraphicsCard:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("Conversion to a NumPy array is not allowed")


def backward_twice():
    loss = (t(3) * 2).sum()
    loss.backward()
    loss.backward()


def grad_of_a_non_leaf():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = t(3) * 2
        y.grad


def grad_of_a_gradient():
    x = t(3)
    (slope,) = grad((x**3).sum(), x)
    grad(slope.sum(), x)


def unused_input():
    a, b = t(3), t(3)
    grad((a * 2).sum(), [a, b])


def changed_in_place():
    y = np.exp(t(3))
    y.data[0] = 1
    y.sum().backward()


def used_up_generator():
    parameters = nn.Linear(2, 2).parameters()
    list(parameters)
    optim.SGD(parameters, lr=0.1)


def twice_in_two_groups():
    p = t(3)
    optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1)


def attention(batch_first=True, **keywords):
    x = t(2, 5, 8)
    return nn.MultiheadAttention(8, 2, batch_first=batch_first)(x, x, x, **keywords)


def setitem():
    t(3)[0] = 1.0


def added_to_rows():
    a = np.zeros((4, 6))
    a[[1, 3]] += t(2, 6)


def with_file(content):
    def call(tmp_path):
        path = tmp_path / "weights.safetensors"
        path.write_bytes(content)
        return ta.load(path)

    return call


CALLS = [
    # ---- shapes
    (lambda: t(2, 3) @ t(2, 3), V, r"matmul of Tensor \(2, 3\).*Did you mean a @ b\.mT"),
    (lambda: t(4, 3) @ t(4, 5), V, r"Did you mean a\.mT @ b"),
    (lambda: t(3) @ t(2, 4), V, r"must equal the second's next-to-last axis \(2\)\.$"),
    (lambda: t(2, 3) @ 2.0, V, r"multiply with \* instead of @"),
    (lambda: t(2, 3, 4) @ t(5, 4, 6), V, r"axes before the last two must broadcast"),
    (lambda: t(2, 3) + t(2, 4), V, r"add of Tensor \(2, 3\).*axis -1 the sizes 3 and 4 differ"),
    (lambda: t(3, 2) * t(3), V, r"x\[:, None\]"),
    (lambda: t(2, 3).reshape(4, 2), V, r"number of elements must stay the same"),
    (lambda: t(2, 4).reshape(-1, -1), V, r"write -1 once"),
    (lambda: t(2, 4).reshape(2, 4 / 2), T, r"divide with // instead of /"),
    (lambda: t(2, 3).transpose(0, 1, 2), V, r"permutation of \(0, 1\)"),
    (lambda: t(2, 3).transpose(0, 0), V, r"each axis of the tensor once"),
    (lambda: t(2, 3).swapaxes(0, 5), I, r"lies in \[-2, 2\)"),
    (lambda: t(2, 3).squeeze(0), V, r"squeeze drops axes of size 1"),
    (lambda: np.squeeze(t(2, 3), 0), V, r"squeeze drops axes of size 1"),
    (lambda: t(1, 3).squeeze(5), I, r"axis 5 is out of bounds.*lies in \[-2, 2\)"),
    (lambda: t(3).mT, V, r"mT exchanges the last two axes"),
    (lambda: np.concatenate([t(2, 3), t(2, 4)]), V, r"concatenate may differ along its axis alone"),
    (lambda: np.stack([t(2, 3), t(2, 4)]), V, r"The shapes are \(2, 3\), \(2, 4\)"),
    (lambda: t(2, 3).sum(axis=2), I, r"An axis of a tensor of shape \(2, 3\) lies in \[-2, 2\)"),
    (lambda: t(2, 3).sum(axis=1.0), T, r"write int\(\.\.\.\)"),
    (lambda: t(2, 3).mean(axis=[0, 1]), T, r"several of them are a tuple, not a list"),
    (
        lambda: np.linalg.norm(t(2, 3), 9, axis=(0, 1)),
        V,
        r"^np\.linalg\.norm of Tensor \(2, 3\).*got 9",
    ),
    (
        lambda: t(1, 3, 1).squeeze([0, 2]),
        T,
        r"np\.squeeze of Tensor \(1, 3, 1\).*several of them are a tuple, not a list",
    ),
    (lambda: t(2, 3).sum(dim=1), T, r"write axis= for dim="),
    (lambda: t(2, 3).mean(axis=1, keepdim=True), T, r"keepdims= for keepdim="),
    (lambda: F.softmax(t(2, 3), dim=-1), T, r"softmax\(\) speaks NumPy here: write axis="),
    (lambda: t(2, 1).squeeze(dim=1), T, r"squeeze\(\) speaks NumPy here: write axis="),
    (lambda: F.softmax(t(2, 3), axis=2), V, r"axis 2 does not exist in Tensor \(2, 3\)"),
    # ---- indexing
    (lambda: t(3)[5], I, r"index 5 is out of bounds.*\[-n, n\)"),
    (lambda: t(3)[1.0], I, r"a slice, or an array of integers or booleans"),
    (lambda: t(3)[np.array([0.0, 1.0])], I, r"write index\.astype\(int\)"),
    (lambda: t(3)[[0.0, 1.0]], I, r"a slice, or an array of integers or booleans"),
    (lambda: t(3)[0, 0], I, r"too many indices.*shape \(3,\)"),
    (lambda: t(3)[np.array([True, False])], I, r"boolean index did not match"),
    (setitem, T, r"np\.where\(mask, value, t\)"),
    (
        added_to_rows,
        T,
        r"For a\[rows\] \+= t, each row once and with a row of t for it, write a = a \+ ta",
    ),
    (
        lambda: np.take_along_axis(t(4, 6), np.zeros(4, int), 1),
        V,
        r"\(4, 6\).*as many axes as the tensor.*indices\[:, None\]",
    ),
    (lambda: len(t()), T, r"0-d tensor has no length"),
    (lambda: list(t()), T, r"use \.item\(\)"),
    # ---- numbers and types
    (lambda: bool(t(3)), V, r"\.all\(\) or .*\.any\(\).*np\.where"),
    (lambda: float(t(3)), V, r"use \.tolist\(\), or reduce it first"),
    (lambda: math.exp(t(3)), V, r"exactly one element"),
    (
        lambda: np.array(t(3)),
        T,
        r"requires a gradient, which a plain array would lose.*t\.numpy\(\)",
    ),
    (lambda: np.array([t(3), t(3)]), T, r"np\.stack / np\.concatenate"),
    (lambda: Tensor([t(3), t(3)]), T, r"Join them with np\.stack or np\.concatenate"),
    (lambda: t(2) * [t(2), t(2)], T, r"list of Tensors; join them first"),
    (lambda: Tensor([[1, 2], [3]]), V, r"rows of this list differ in length.*padding_mask"),
    (lambda: Tensor("abc"), T, r"holds real numbers or booleans"),
    (lambda: Tensor(None), T, r"forget to return its result"),
    (lambda: Tensor(OnTheGraphicsCard()), T, r"^Conversion to a NumPy array is not allowed"),
    (lambda: ta.tensor([1.0, 2.0], requires_grad=True), T, r"Write ta\.Tensor\(data"),
    (
        lambda: Tensor(3, 4),
        T,
        r"requires_grad is True or False, got 4.*Tensor\(np\.zeros\(\(2, 3\)\)\)",
    ),
    (lambda: Tensor([1.0], np.zeros(3)), T, r"requires_grad is True or False, got array \(3,\)"),
    (lambda: Tensor(3, 0), T, r"requires_grad is True or False, got 0"),
    (
        lambda: Tensor(np.arange(3), np.float64),
        T,
        r"requires_grad is True or False, got <class 'numpy\.float64'>",
    ),
    (
        lambda: nn.Parameter([1.0], np.float64),
        T,
        r"requires_grad is True or False, got <class 'numpy\.float64'>.*dtype=",
    ),
    (lambda: setattr(t(3), "requires_grad", None), T, r"requires_grad is True or False, got None"),
    (
        lambda: nn.LayerNorm(8)(nn.MultiheadAttention(8, 2)(t(5, 2, 8), t(5, 2, 8), t(5, 2, 8))),
        T,
        r"a tuple of Tensors.*y, weights =",
    ),
    (lambda: t(2) + (t(2), None), T, r"If one call returned them.*take them apart"),
    (lambda: Tensor([1.0], dtype="floaty"), T, r"no NumPy dtype.*write np\.float32"),
    (
        lambda: Tensor(np.arange(3), requires_grad=True),
        T,
        r"only floating-point tensors can require a gradient.*dtype=np\.float64",
    ),
    (lambda: t(3) + "a", T, r"Text cannot be computed with"),
    (lambda: t(3) + None, T, r"An operand is None: does the function it comes from return"),
    (lambda: t(3) + {1: 2}, T, r"Operands are Tensors, NumPy arrays and numbers"),
    (lambda: t(3).unsqueeze(0), A, r"Write np\.expand_dims"),
    (lambda: nn.functional.relu(t(3)), A, "Write import tinygrad_attn.functional as F"),
    (lambda: nn.utils.clip_grad_norm_([t(3)], 1.0), A, r"Write optim\.clip_grad_norm_"),
    (lambda: t(3).clamp(min=0), A, r"Write t\.clip\(min, max\)"),
    (lambda: t(3).gather(0, [1]), A, r"Write np\.take_along_axis\(t, indices, axis\)"),
    (lambda: t(3).register_hook(print), A, r"Write t\.retain_grad\(\) before backward\(\)"),
    (
        lambda: nn.Linear(2, 2).register_forward_hook(print),
        A,
        "Write a Module of your own around this one",
    ),
    (
        lambda: nn.Linear(2, 2).register_full_backward_hook(print),
        A,
        r"Write t\.retain_grad\(\) on the tensor",
    ),
    (
        lambda: nn.Linear(2, 2).get_submodule("a"),
        A,
        r"Write dict\(module\.named_modules\(\)\)\[name\]",
    ),
    (
        lambda: ta.checkpoint(nn.Linear(2, 2), t(2), use_reentrant=False),
        T,
        "leave use_reentrant= out",
    ),
    (lambda: t(3).permute(0), A, r"Write t\.transpose"),
    (
        lambda: t(3).split(1),
        A,
        r"Write np\.split\(t, range\(size, t\.shape\[axis\], size\), axis\), which takes the places to cut",
    ),
    (lambda: t(3).where(t(3) > 0, 0.0), A, r"Write np\.where\(mask, t, other\)\.$"),
    (lambda: t(3).select(0, 1), A, r"Write np\.take\(t, index, axis\)\.$"),
    (lambda: t(3, 4).max(1).indices, A, r"Write t\.argmax\(axis\)"),
    (lambda: t(3, 4).topk(2), A, r"Write np\.take_along_axis\(t, indices, -1\) with"),
    (lambda: t(3).std(unbiased=False), T, r"write ddof=1 for unbiased=True.*ddof=0"),
    (lambda: t(3).var(0, correction=0), T, r"^var\(\) speaks NumPy.*ddof=0 for .*correction=0"),
    (lambda: t(3).any(dim=0), T, r"^any\(\) speaks NumPy here: write axis="),
    (lambda: t(3).all(0, keepdim=True), T, r"^all\(\) speaks NumPy here.*keepdims="),
    (
        lambda: F.softmax(t(3), -1, dtype=np.float32),
        T,
        r"^softmax\(\) has no dtype= here: write \.astype\(dtype\) on what goes in",
    ),
    (
        lambda: t(3).sum(dtype=np.float64),
        T,
        r"^sum\(\) has no dtype= here: write \.astype\(dtype\)",
    ),
    (
        lambda: ta.grad(t(3).sum(), t(3), only_inputs=True),
        T,
        r"^grad\(\) has no only_inputs=: leave it out",
    ),
    (lambda: ta.randn(2, 3, 4, device="cpu"), T, r"^randn\(\) has no device=: leave it out"),
    (
        lambda: ta.load("no.safetensors", map_location="cpu"),
        T,
        r"^load\(\) has no map_location=: leave it out",
    ),
    (
        lambda: t(2, 3).flatten(start_dim=1),
        T,
        r"^flatten\(\) has no start_dim=: write t\.reshape\(len\(t\), -1\)",
    ),
    (lambda: F.glu(t(4)), A, r"Write np\.split\(t, 2, axis=-1\)\[0\] \* F\.sigmoid"),
    (lambda: t(3).masked_fill(1, 2), A, r"Write np\.where\(mask, value, t\)"),
    (lambda: t(3).softmax(-1), A, r"Write F\.softmax\(t, axis=-1\)"),
    (lambda: t(3).arctan(), A, r"Write np\.arctan\(t\)"),
    (lambda: t(3).degrees(), A, r"Write np\.degrees\(t\)"),
    (lambda: t(3).atan(), A, r"Write np\.atan\(t\)\.$"),
    (lambda: t(3).pi, A, r"has no attribute 'pi'$"),
    (lambda: t(3).clamp_(0, 1), A, r"Write t\.data\[\.\.\.\] = t\.data\.clip\(min, max\)"),
    (lambda: t(3).detach_(), A, r"Write t = t\.detach\(\)"),
    (lambda: ta.inference_mode(), A, r"Write ta\.no_grad\."),
    (
        lambda: ta.optim.lr_scheduler.AnyOther,
        A,
        r"Write optim\.Schedule\(optimizer, factor\), optim\.warmup_cosine or optim\.noam",
    ),
    (lambda: t(3) + 2j, T, r"add cannot take 2j: a Tensor holds real numbers"),
    (
        lambda: np.insert(t(3), 5, 0.0),
        IndexError,
        r"index 5 is out of bounds.*has shape \(3,\); an index along an axis of size n",
    ),
    (
        lambda: nn.MultiheadAttention(4, 2)(t(3, 4), t(3, 4), t(3, 4), cache=True),
        T,
        r"cache= is an nn\.KeyValueCache\(\).*got True",
    ),
    (
        lambda: nn.MultiheadAttention(4, 2)(t(3, 4), t(3, 4), t(3, 4), cache=nn.KeyValueCache),
        T,
        "Make an object of the class first",
    ),
    (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 1, nn.LayerNorm),
        T,
        "norm is a module.*Make an object of the class",
    ),
    (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2), 1, "a"),
        T,
        r"norm is a module such as nn\.LayerNorm\(d_model\)",
    ),
    (lambda: nn.Transformer(4, 2, 1, 1, custom_encoder="a"), T, "custom_encoder is a module"),
    (
        lambda: nn.FeedForward(4, 8, activation=[]),
        ValueError,
        "activation is 'relu', 'gelu' or a function",
    ),
    (
        lambda: nn.Transformer.generate_square_subsequent_mask(-1),
        ValueError,
        "causal_mask takes the length of the sequence",
    ),
    (
        lambda: nn.Transformer.generate_square_subsequent_mask(3, int),
        T,
        "the dtype of a mask of -inf is a floating one",
    ),
    (lambda: ta.op("a"), T, "@op stands above a function on arrays, got"),
    (
        lambda: ta.op(broadcast=True),
        T,
        r"@op has no flag 'broadcast', only broadcasts, .*Did you mean 'broadcasts'",
    ),
    (lambda: ta.func, A, r"Write ta\.functional_call, ta\.vjp"),
    (lambda: ta.vmap(np.sum), A, r"Write leading axes"),
    (
        lambda: t(3).type(np.float64),
        A,
        r"Write t\.dtype, or t\.astype\(dtype\) for t\.type\(dtype\)",
    ),
    (
        lambda: nn.KLDivLoss(reduction="batchmean"),
        A,
        r"np\.sum\(\.\.\.\) / len\(t\) for reduction='batchmean'",
    ),
    (
        lambda: nn.BCELoss(),
        A,
        r"np\.log\(np\.maximum\(t, 1e-30\)\).*at -69 where PyTorch does at -100",
    ),
    (lambda: ta.max(t(3), t(3)), A, r"np\.maximum\(t, other\) of two"),
    (lambda: F.max(t(3), t(3)), A, r"np\.maximum\(t, other\) of two"),
    (
        lambda: t(3).max(t(3)),
        T,
        r"'axis' .* got Tensor \(3,\) float32\. Of two Tensors np\.maximum\(a, b\) takes",
    ),
    (lambda: np.min(t(3), t(3)), T, r"Of two Tensors np\.minimum\(a, b\) takes"),
    (lambda: t(3).sum(t(3)), T, r"'axis' .* got Tensor .* Write whole numbers"),
    (lambda: nn.Flatten(), A, r"Write t\.reshape\(len\(t\), -1\) in forward"),
    (lambda: ta.device("cpu"), A, r"Write nothing: everything is on the CPU"),
    (lambda: nn.Linear(2, 2).weight.device, A, r"Write nothing: everything is on the CPU"),
    (
        lambda: ta.autograd.Function,
        A,
        r"autograd has no 'Function'\. Write an op: @ta\.op on the function, \.vjp under it\.$",
    ),
    (lambda: ta.autograd.detect_anomaly(), A, r"Write ta\.detect_anomaly\(\)\.$"),
    (
        lambda: ta.autograd.functional.jacobian,
        A,
        r"Write ta\.vjp, ta\.jvp, ta\.jacobian, ta\.hessian or ta\.hvp\.$",
    ),
    (lambda: ta.autograd.gard, A, r"Did you mean 'grad'\?$"),
    (lambda: ta.gradchek, A, r"Did you mean 'gradcheck'"),
    (lambda: ta.exp(t(3)), A, r"tinygrad_attn has no 'exp'\. Write np\.exp"),
    (lambda: ta.cat([t(3), t(3)]), A, r"Write np\.concatenate"),
    (lambda: ta.relu(t(3)), A, r"Write F\.relu\(t\)"),
    (lambda: F.sum(t(3)), A, r"functional has no 'sum'\. Write np\.sum"),
    (
        lambda: ta.randint(10, (3,)),
        A,
        r"no 'randint'\. Write ta\.random\.randint\(low, high, size\)\.$",
    ),
    (lambda: ta.randperm(3), A, r"no 'randperm'\. Write ta\.random\.randperm\(n\)\.$"),
    (lambda: ta.get_rng_state(), A, r"Write ta\.random\.get_rng_state\(\)\.$"),
    (lambda: nn.BCELoss(), A, r"Write -np\.mean\("),
    (
        lambda: nn.ParameterList(),
        A,
        r"Write setattr\(self, f'weight_\{i\}', p\) for each parameter",
    ),
    (
        lambda: ta.checkpoint(lambda x: grad(np.sum(x**2), x)[0], t(3)),
        V,
        r"Inside ta\.checkpoint take it with ta\.value_and_grad",
    ),
    (lambda: ta.set_default_dtype(int), T, r"np\.float32 or np\.float64"),
    (lambda: np.fft.fft(t(3)), T, r"np\.fft\.fft has no derivative rule.*@ta\.op"),
    (
        lambda: np.lib.stride_tricks.as_strided(t(3), (2,)),
        T,
        r"requires a gradient, which a plain array would lose",
    ),
    (
        lambda: np.lib.stride_tricks.sliding_window_view(t(3), 2, writeable=True),
        T,
        r"does not take writeable=True\. Leave it out",
    ),
    (
        lambda: np.lib.stride_tricks.sliding_window_view(t(3), 4),
        V,
        r"window shape cannot be larger than input array shape",
    ),
    (lambda: np.add(np.ones(3), t(3), out=np.ones(3)), T, r"does not take out="),
    (
        lambda: np.ones(3).__iadd__(t(3)),
        T,
        r"write a = a \+ t instead of a \+= t, or a \+= t\.data",
    ),
    # ---- differentiating
    (
        lambda: grad(t(3) * 2, t(3)),
        V,
        r"grad\(\) without grad_outputs= needs a single number.*pass grad_outputs= of shape \(3,\)",
    ),
    (grad_of_a_gradient, V, r"create_graph=True"),
    (
        lambda: grad([t(), t()], t(), [1.0]),
        V,
        r"got 2 outputs but 1 grad_outputs; give one for each",
    ),
    (lambda: grad(lambda x: (x * x).sum(), np.ones(2)), T, r"write ta\.value_and_grad\(f\)\(x\)"),
    (lambda: grad(lambda x: (x * x).sum())(np.ones(2)), T, r"write ta\.value_and_grad\(f\)\(x\)"),
    (
        lambda: grad(t(3).sum()),
        V,
        r"input 0 of grad\(\), None, .*Write grad\(y, x\) for the gradient by a tensor x",
    ),
    (
        lambda: ta.gradcheck(nn.Linear, [t(2, 2)]),
        T,
        r"the class Linear: make an object of it first",
    ),
    (lambda: t(3).zero_(), A, r"w\.zero_grad\(\) for w\.grad\.zero_\(\)"),
    (lambda: t(3).sub_(1), A, r"Write t\.data -= other\.data\.$"),
    (
        lambda: F.one_hot([1, 2], 3),
        A,
        r"Write np\.eye\(classes, dtype=np\.int64\)\[np\.asarray\(labels\)\], or dtype=np\.float32",
    ),
    (lambda: t(3).flip(0), A, r"Write np\.flip\(t, axis\)\.$"),
    (lambda: t(3).roll(1), A, r"Write np\.roll\(t, shift, axis\)\.$"),
    (lambda: t(3).quantile(0.5), A, r"Write np\.quantile\(t, q, axis\)\.$"),
    (lambda: t(3).outer(t(3)), A, r"Write np\.outer\(t, other\)\.$"),
    (lambda: t(3).isnan(), A, r"Write np\.isnan\(t\)\.$"),
    (lambda: t(3).seterr(), A, r"has no attribute 'seterr'$"),
    (
        lambda: t(3, 4).max(1).values,
        A,
        r"Write nothing: t\.max\(axis\), np\.sort\(t, axis\) and the like return the values alone\.$",
    ),
    (
        lambda: F.ctc_loss(t(3)),
        A,
        r"has no 'ctc_loss'\. It is not here; its sum over alignments is a loop of np\.logaddexp",
    ),
    (
        lambda: nn.utils.spectral_norm(nn.Linear(2, 2)),
        A,
        r"Write optim\.clip_grad_norm_ or .* for parameters_to_vector; spectral",
    ),
    (lambda: optim.Adagrad([t(3)]), A, r"has no 'Adagrad'\. It is not here; optim\.Adam"),
    (lambda: t(3).grad_fn, A, r"Write ta\.viz\.graph\(t\), which draws how t was made"),
    (
        lambda: ta.utils.data,
        A,
        r"Write for rows in np\.array_split\(.*, for utils\.data; ta\.checkpoint is utils\.checkpoint's",
    ),
    (
        lambda: (t(3) * 2).backward(),
        V,
        r"Reduce it first.*\.sum\(\) or \.mean\(\).*gradient= of shape \(3,\)",
    ),
    (backward_twice, R, r"Pass retain_graph=True"),
    (
        lambda: (t(3, rg=False) * 2).sum().backward(),
        V,
        r"requires_grad=True.*no_grad\(\), detach\(\)",
    ),
    (
        lambda: (t(3) * 2).backward(np.ones(4)),
        V,
        r"gradient has shape \(4,\) but the output has shape \(3,\)",
    ),
    (grad_of_a_non_leaf, UserWarning, r"retain_grad\(\)"),
    (unused_input, V, r"input 1 of grad\(\).*allow_unused=True"),
    (
        lambda: grad((t(3) * 2).sum(), np.ones(3)),
        V,
        r"array \(3,\) float64, does not require a gradient",
    ),
    (
        lambda: grad((t(3) * 2).sum(), None),
        V,
        r"input 0 of grad\(\), None, does not require a gradient",
    ),
    (
        lambda: grad((t(3) * 2).sum(), nn.Linear(2, 2)),
        V,
        r"a Linear, does not.*write list\(model\.parameters\(\)\)",
    ),
    (lambda: grad(3.0, t(3)), T, r"only a Tensor can be differentiated, got 3\.0"),
    (lambda: setattr(t(3) * 2, "requires_grad", False), V, r"use detach\(\)"),
    (
        lambda: setattr(t(3), "data", np.ones(3, int)),
        T,
        r"requires a gradient and cannot hold array \(3,\) int64",
    ),
    (
        lambda: setattr(t(3, rg=False), "data", np.array(["a"])),
        T,
        r"Tensor \(3,\) float32 cannot hold array \(1,\) <U1",
    ),
    (
        lambda: setattr(t(3, rg=False), "data", np.array([1j])),
        T,
        r"cannot hold array \(1,\) complex128",
    ),
    (lambda: setattr(t(3), "grad", np.ones(4)), V, r"a gradient has its tensor's shape"),
    (lambda: t(3, rg=False).retain_grad(), V, r"does not require a gradient"),
    (
        lambda: t(2, 3, 4).flatten(1),
        V,
        r"only order='C', not 1; transpose first.*keep axis 0, reshape\(len\(t\), -1\)",
    ),
    (lambda: copy.deepcopy(t(3) * 2), T, r"use \.detach\(\)"),
    (changed_in_place, V, r"changed in place.*x = x \+ 1, not x\.data \+= 1"),
    (
        lambda: op(lambda a, b: a).vjp(lambda g, y, a, b: g),
        V,
        r"2 positional inputs.*1 rules.*keyword-only",
    ),
    (lambda: op(lambda a: a * 1)(t(3)).sum().backward(), T, r"has no derivative: give it one"),
    (
        lambda: F.layer_norm(t(2, 3), 3, eps=t()),
        T,
        r"'eps' is a keyword argument, which no derivative reaches",
    ),
    (lambda: ta.checkpoint(t(3)), T, r"Write checkpoint\(layer, x\), not checkpoint\(layer\(x\)\)"),
    (lambda: ta.jvp(lambda x: x * 2, [t(3)], [t(4)]), V, r"a tangent has its input's shape"),
    (lambda: ta.hessian(lambda x: x * 2, t(3)), V, r"single number"),
    (lambda: ta.gradcheck(np.exp, t(3)), T, r"precision too low.*x\.astype\(np\.float64\)"),
    (lambda: ta.gradcheck(t(3), t(3)), T, r"gradcheck\(lambda x: \.\.\., \[x\]\)"),
    # ---- settings of the wrong kind
    (
        lambda: F.split_heads([[1.0, 2.0]], 2),
        T,
        r"x is a Tensor or an array, got \[\[1\.0, 2\.0\]\]; write Tensor\(x\)",
    ),
    (lambda: F.merge_heads(None), T, r"merge_heads: x is a Tensor or an array, got None"),
    (lambda: F.split_heads(t(2, 4), None), V, r"cannot be cut into None equal heads"),
    (lambda: F.split_heads(t(2, 4), 2.0), V, r"cannot be cut into 2\.0 equal heads"),
    (lambda: F.softmax(t(2, 3), True), T, r"softmax needs an integer axis, got True"),
    (
        lambda: F.mse_loss(t(3), t(3), t(3)),
        V,
        r"reduction is one of 'none', 'mean', 'sum', got Tensor",
    ),
    (
        lambda: F.cross_entropy(t(2, 3), [0, 1], ignore_index=[0, 1]),
        T,
        r"ignore_index is one class number, got \[0, 1\].*target\[keep\]",
    ),
    (
        lambda: F.cross_entropy(t(2, 3), [0, 1], ignore_index="pad"),
        T,
        r"ignore_index is one class number, got 'pad'",
    ),
    (
        lambda: F.cross_entropy(t(2, 3), [0, 1], label_smoothing=None),
        V,
        r"label_smoothing lies in \[0, 1\], got None",
    ),
    (lambda: F.layer_norm(t(2, 3), 3, eps=None), T, r"layer_norm: eps is a number, got None"),
    (lambda: F.layer_norm(t(2, 3), 3, eps=[1.0, 2.0, 3.0]), T, r"layer_norm: eps is a number"),
    (
        lambda: F.rms_norm(t(2, 3), 3, eps=np.ones(3)),
        T,
        r"rms_norm: eps is a number, got array \(3,\)",
    ),
    (lambda: nn.LayerNorm(8, False), T, r"LayerNorm: eps is a number, got False"),
    (lambda: nn.RMSNorm(8, "small"), T, r"RMSNorm: eps is a number, got 'small'"),
    (
        lambda: F.scaled_dot_product_attention(t(2, 3), t(2, 3), t(2, 3), scale=np.ones(2)),
        T,
        r"scale is a number, got array \(2,\)",
    ),
    (
        lambda: F.scaled_dot_product_attention(t(2, 3), t(2, 3), t(2, 3), scale=True),
        T,
        r"scale is a number, got True",
    ),
    (
        lambda: F.sinusoidal_positions(3, 4, dtype=int),
        T,
        r"a table of positions is a floating one.*got <class 'int'>",
    ),
    (
        lambda: nn.SinusoidalPositionalEncoding(4, 5, dtype=bool),
        T,
        r"a table of positions is a floating one",
    ),
    (
        lambda: F.sinusoidal_positions(3, True),
        V,
        r"whole numbers length >= 0 and d_model >= 1, got 3 and True",
    ),
    (
        lambda: nn.LearnedPositionalEncoding(5, 4)(t(3, 4), None),
        T,
        r"first token's position, a whole number.*, got None",
    ),
    (
        lambda: nn.SinusoidalPositionalEncoding(4)(t(3, 4), 1.5),
        T,
        r"first token's position.*got 1\.5",
    ),
    (lambda: nn.Embedding(None, 2, 0), V, r"sizes of a layer are whole numbers.*got \(None, 2\)"),
    (lambda: nn.Linear(2, 2, dtype=""), T, r"dtype of a layer is a floating one"),
    (lambda: nn.Linear(2, 2).astype(None), T, r"dtype of a module is a floating one.*got None"),
    (
        lambda: nn.Linear(2, 2).apply(None),
        T,
        r"write model\.apply\(f\), not model\.apply\(f\(\.\.\.\)\)",
    ),
    (lambda: ta.set_default_dtype(None), T, r"np\.float32 or np\.float64, got None"),
    (lambda: ta.rand(2, dtype="real"), T, r"random real numbers.*got 'real'"),
    (lambda: Tensor([1.0], dtype=complex), T, r"got dtype=<class 'complex'>\. Write np\.float32"),
    (
        lambda: F.linear(np.float64, t(2, 2)),
        T,
        r"real numbers or booleans; got <class 'numpy\.float64'>",
    ),
    (
        lambda: nn.init.normal_(nn.Linear(2, 2)),
        T,
        r"got a Linear; give it the parameter p itself, such as layer\.weight",
    ),
    (lambda: nn.init.xavier_uniform_(None), T, r"an initialiser writes into a Tensor, got None"),
    (lambda: nn.init.normal_(t(3), None), T, r"mean is a number, got None"),
    (lambda: nn.init.trunc_normal_(t(3), std=0), V, r"needs std > 0 and a < b, got std=0"),
    (lambda: nn.init.trunc_normal_(t(3), a=2, b=-2), V, r"needs std > 0 and a < b.*a=2 and b=-2"),
    (
        lambda: nn.KeyValueCache().reorder(None),
        T,
        r"reorder takes the numbers of the sequences to go on with, or a mask",
    ),
    (lambda: t(2, 3).argmax(1.0), T, r"np\.argmax of Tensor \(2, 3\) float32.*write int\(\.\.\.\)"),
    (
        lambda: t(2, 3).argsort("rows"),
        T,
        r"np\.argsort of Tensor \(2, 3\) float32.*write int\(\.\.\.\)",
    ),
    (lambda: t(2, 3).argmin(2), I, r"An axis of a tensor of shape \(2, 3\) lies in \[-2, 2\)"),
    (
        lambda: t(2, 3).any(axis=2),
        I,
        r"np\.any of Tensor \(2, 3\) float32: axis 2.*lies in \[-2, 2\)",
    ),
    (lambda: t(2, 3).astype("real"), T, r"'real' is no NumPy dtype.*write np\.float32"),
    # ---- losses and tables
    (
        lambda: F.cross_entropy(t(2, 3), np.array([0.0, 1.0])),
        T,
        r"write target\.astype\(np\.int64\)",
    ),
    (
        lambda: F.cross_entropy(t(2, 3), np.array([0, 3])),
        V,
        r"class 3 at position \(1,\).*Labels start at 0.*ignore_index",
    ),
    (
        lambda: F.cross_entropy(t(2, 3), np.eye(3, dtype=int)[:2]),
        V,
        r"One-hot targets are probabilities",
    ),
    (
        lambda: F.cross_entropy(t(2, 5, 7), np.zeros((2, 5), int)),
        V,
        r"labels of shape \(2, 7\), got \(2, 5\).*np\.moveaxis\(x, -1, 1\)",
    ),
    (
        lambda: F.cross_entropy(t(2, 3), np.array([0, 1]), reduction="avg"),
        V,
        r"one of 'none', 'mean', 'sum'",
    ),
    (lambda: F.mse_loss(t(4), t(4, 1)), V, r"shapes differ.*broadcasting would compare"),
    (
        lambda: F.embedding(np.array([0, 3]), t(3, 2)),
        V,
        r"index 3 at position \(1,\).*numbered 0 to 2",
    ),
    (lambda: F.embedding(t(3, 2), np.array([0, 1])), T, r"needs integers as indices"),
    (lambda: F.dropout(t(3), 1.5, True), V, r"lies in \[0, 1\], got 1\.5"),
    # ---- layers
    (lambda: nn.Linear(8, 4)(t(2, 5)), V, r"Linear\(in_features=8.*last axis is not 8 long"),
    (lambda: F.linear(t(2, 8), t(8, 4)), V, r"pass weight\.T"),
    (lambda: nn.Linear(8.5, 4), V, r"whole numbers"),
    (lambda: nn.LayerNorm(8)(t(2, 3)), V, r"Write normalized_shape=3"),
    (
        lambda: nn.MultiheadAttention(10, 3),
        V,
        r"embed_dim=10 does not divide into num_heads=3.*head_dim=4",
    ),
    (
        lambda: nn.TransformerEncoderLayer(10, 3, 16),
        V,
        r"or give nn\.MultiheadAttention a head size of its own: head_dim=4",
    ),
    (lambda: F.split_heads(t(2, 5, 8), 3), V, r"cannot be cut into 3 equal heads"),
    (lambda: nn.MultiheadAttention(8, 2)(t(2, 5, 7), t(2, 5, 7), t(2, 5, 7)), V, r"last axis 8"),
    (
        lambda: nn.MultiheadAttention(8, 2)(*[t(2, 8, 7)] * 3),
        V,
        r"last axis 8",
    ),  # one input thrice, as many steps as features
    (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True)(t(2, 5, 8), t(3, 5, 8), t(3, 5, 8)),
        V,
        r"did you mean batch_first=False",
    ),
    (lambda: attention(attn_mask=np.zeros((4, 4), bool)), V, r"\(T, S\) = \(5, 5\)"),
    (
        lambda: attention(attn_mask=np.zeros((5, 5), int)),
        T,
        r"True = blocked.*mask\.astype\(bool\)",
    ),
    (
        lambda: attention(key_padding_mask=np.zeros((5, 2), bool)),
        V,
        r"\(B, S\) = \(2, 5\).*Transpose it, unless.*batch_first",
    ),
    (
        lambda: F.scaled_dot_product_attention(
            t(2, 5, 8), t(2, 5, 8), t(2, 5, 8), attn_mask=np.ones((5, 5), int)
        ),
        T,
        r"True = may look",
    ),
    (
        lambda: F.scaled_dot_product_attention(t(1, 4, 5, 8), t(1, 2, 5, 8), t(1, 2, 5, 8)),
        V,
        r"enable_gqa=True",
    ),
    (
        lambda: F.padding_mask([3, 7], np.array([8, 8])),
        T,
        r"max_length, a whole number such as x\.shape\[1\]; got array \(2,\) int64",
    ),
    (
        lambda: F.padding_mask([3, 7], 5),
        V,
        r"lengths lie in \[0, max_length\] = \[0, 5\], got \[3, 7\]",
    ),
    (lambda: F.padding_mask([3.0, 5.0], 5), T, r"needs integers as lengths"),
    (lambda: F.padding_mask(5, [3]), T, r"lengths first, then max_length.*got \[3\]"),
    (lambda: F.causal_mask(-1), V, r"whole number such as x\.shape\[1\]"),
    (
        lambda: nn.SinusoidalPositionalEncoding(8, max_len=3)(t(2, 5, 8)),
        V,
        r"max_len=3.*larger max_len",
    ),
    (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="swish"),
        V,
        r"'relu', 'gelu' or a function",
    ),
    (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer, 2),
        T,
        r"make an object of the class first",
    ),
    (lambda: nn.Transformer(8, 2, 1, 1, 16)(t(5, 2, 8), t(5, 3, 8)), V, r"batches of one size"),
    (lambda: nn.Sequential([nn.Linear(2, 2)]), T, r"Sequential\(\*layers\)"),
    (
        lambda: nn.Sequential(nn.Linear(2, 2), np.tanh),
        T,
        r"item 1 of a Sequential.*for a function write a Module",
    ),
    (lambda: nn.ModuleList([nn.Linear(2, 2)])(t(2, 2)), T, r"loop over it"),
    (lambda: NoForward()(t(3)), T, r"defines no forward"),
    (lambda: list(PlainList().parameters()), T, r"Use nn\.ModuleList"),
    (lambda: Typo()(t(2, 2)), A, r"Did you mean 'linear'"),
    (lambda: setattr(nn.Linear(8, 4), "weight", t(4, 8)), T, r"nn\.Parameter\(value\)"),
    (
        lambda: nn.Linear(8, 4).load_state_dict({"weigth": 0}),
        V,
        r"(?s)missing: 'weight'.*missing: 'bias'.*unexpected: 'weigth'\. Did you "
        r"mean 'weight'",
    ),
    (
        lambda: nn.Linear(8, 4).load_state_dict({"weight": np.zeros((8, 4)), "bias": np.zeros(4)}),
        V,
        r"Transpose it: a Linear weight is "
        r"\(out, in\)",
    ),
    (lambda: nn.Linear(8, 4).load_state_dict({"model": {"weight": 0}}), V, r"mapping\['model'\]"),
    (lambda: nn.Linear(8, 4).load_state_dict("weights.safetensors"), T, r"takes a mapping"),
    (lambda: nn.Linear(8, 4).astype(int), T, r"np\.float32 or np\.float64"),
    # ---- optimisers
    (used_up_generator, V, r"list\(model\.parameters\(\)\)"),
    (lambda: optim.SGD(nn.Linear(2, 2), lr=0.1), T, r"SGD\(model\.parameters\(\)\)"),
    (lambda: optim.SGD(t(3), lr=0.1), T, r"SGD\(\[p\]\) for one tensor"),
    (
        lambda: optim.Adam([nn.Linear(2, 2).parameters()]),
        T,
        r"of type generator; the parameters of two modules are \[\*a\.parameters",
    ),
    (
        lambda: optim.Adam([np.ones(3)]),
        T,
        r"trains Tensors, but item 0 is of type ndarray; write nn\.Parameter\(x\)",
    ),
    (
        lambda: optim.Adam(PlainTensor().parameters()),
        V,
        r"a module trains nn\.Parameter, not Tensor",
    ),
    (lambda: optim.Adam(nn.Linear(2, 2).named_parameters()), T, r"write parameters\(\)"),
    (lambda: optim.Adam([t(3) * 2]), V, r"not a leaf"),
    (lambda: optim.SGD([t(3, rg=False)], lr=0.1), V, r"requires_grad = True"),
    (twice_in_two_groups, V, r"in two parameter groups"),
    (lambda: optim.Adam([t(3)], lr=-1), V, r"lr must be 0 or more"),
    (lambda: optim.Adam([t(3)], betas=(1.0, 0.9)), V, r"\[0, 1\)"),
    (
        lambda: optim.SGD([t(3)], lr=0.1).load_state_dict({"weight": 1}),
        V,
        r"no 'param_groups'.*model\.load_state_dict",
    ),
    (lambda: optim.clip_grad_norm_(nn.Linear(2, 2), 1.0), T, r"model\.parameters\(\)"),
    (lambda: optim.clip_grad_norm_([t(3)], "big"), V, r"a number such as 1\.0"),
    (
        lambda: optim.clip_grad_norm_([t(3)], 1.0, math.nan),
        V,
        r"norm_type is a number such as 2\.0 or math\.inf; got nan",
    ),
    (
        lambda: optim.SGD([{"params": None}]),
        T,
        r"'params' of a group are a list of parameters, got None",
    ),
    (lambda: optim.SGD([t(3)]).add_param_group(t(3)), T, r"a parameter group is a dict such as"),
    (
        lambda: optim.SGD([t(3)]).load_state_dict({"state": None, "param_groups": []}),
        V,
        r"no optimiser's state",
    ),
    (
        lambda: optim.SGD([t(3)]).load_state_dict(
            {"state": {"a": {}}, "param_groups": [{"params": [0]}]}
        ),
        V,
        r"state is of parameter 'a'",
    ),
    (
        lambda: optim.Schedule(optim.SGD([t(3)]), lambda n: np.ones(2)),
        T,
        r"factor\(0\) is a number, got array \(2,\) float64",
    ),
    (
        lambda: optim.Schedule(optim.SGD([t(3)]), math.exp).load_state_dict(None),
        V,
        r"this is no schedule's state: it has None",
    ),
    (
        lambda: optim.noam(optim.SGD([t(3)]), math.nan),
        V,
        r"need d_model >= 1 and warmup_steps >= 1, got nan",
    ),
    # ---- random numbers, threads, files
    (
        lambda: require("safetensors") and ta.save({}, "x.safetensors", ["by me"]),
        T,
        r"metadata is a dict of text to text, got list",
    ),
    (
        lambda: ta.save_checkpoint("x", model=t(3)),
        T,
        r"save_checkpoint: model= has a state_dict\(\), but this is Tensor \(3,\)",
    ),
    (
        lambda: ta.save_checkpoint("x", model=nn.Linear(1, 1), optimizer=0.1),
        T,
        r"optimizer= has a state_dict\(\), but this is 0\.1",
    ),
    (
        lambda: ta.save_checkpoint("x", model=nn.Linear(1, 1), step=1.5),
        T,
        r"number of the step, a whole one, got 1\.5",
    ),
    # ---- pictures
    (
        lambda: ta.viz.attention(np.ones((2, 2)), 3),
        T,
        r"labels of the queries are a list with one for each, or None; got 3",
    ),
    (
        lambda: ta.viz.attention(np.ones((2, 2)), ax="here"),
        T,
        r"ax= is a matplotlib Axes, or one for each head, got 'here'",
    ),
    (
        lambda: ta.viz.attention_html(t(2, 3), t(2, 3), t(2, 3), scale="big"),
        T,
        r"scale= is a number, or None.*got 'big'",
    ),
    (
        lambda: ta.viz.graph(t(3).sum(), limit="all"),
        V,
        r"4 or more, or None for no limit; got 'all'",
    ),
    (lambda: ta.viz.graph(t(3).sum(), expand=[0]), V, r"expand='0': it is no module here"),
    (
        lambda: ta.backward_steps((t(3) * 2).sum()).picture(None),
        I,
        r"there are 2 steps, 0 to 1; got None",
    ),
    (lambda: ta.manual_seed("a"), T, r"takes an integer"),
    (lambda: ta.randn(2.5), T, r"integers >= 0"),
    (lambda: ta.rand(True, 2), T, r"integers >= 0"),
    (lambda: ta.random.Generator().normal(-1), T, r"integers >= 0, got \(-1,\)"),
    (lambda: ta.random.Generator().uniform(None), T, r"integers >= 0, got \(None,\)"),
    (lambda: ta.set_num_threads(0), V, r"at least one thread"),
    (
        lambda: require("safetensors") and ta.save([t(3)], "x.safetensors"),
        T,
        r"model\.state_dict\(\)",
    ),
    (
        lambda: require("safetensors") and ta.save(nn.Linear(2, 2), "x.safetensors"),
        T,
        r"ta\.save\(model\.state_dict\(\), path\)",
    ),
    (
        lambda: require("safetensors") and ta.load(os.path.join("nowhere", "no.safetensors")),
        FileNotFoundError,
        r"there is no file",
    ),
]

NAMES = [f"{i}: {pattern[:40]}" for i, (_, _, pattern) in enumerate(CALLS)]


@pytest.mark.parametrize("call, kind, pattern", CALLS, ids=NAMES)
def test_a_wrong_call_says_what_to_write(call, kind, pattern):
    with pytest.raises(kind, match=pattern) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is kind
    assert len(text) > 25 and text[0] != " " and "  " not in text.replace("\n  ", ""), text


@pytest.mark.parametrize(
    "content, pattern",
    [
        (b"hello", "cut short, damaged or no safetensors file"),
        (b"PK\x03\x04abcdefghij", "PyTorch .pt file"),
    ],
)
def test_a_wrong_file_is_said_to_be_one(tmp_path, content, pattern):
    require("safetensors")
    with pytest.raises(ValueError, match=pattern):
        with_file(content)(tmp_path)


def test_there_are_many():
    assert len(CALLS) >= 120


def test_no_bare_assert_is_an_error_message():
    """An assert vanishes with python -O, and says nothing."""
    import ast
    from pathlib import Path

    root = Path(ta.__file__).parent
    allowed = {"locate.py"}  # a fact that mypy cannot see
    for path in root.rglob("*.py"):
        found = [
            node.lineno
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Assert)
        ]
        assert not found or path.name in allowed, (path, found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_what_a_tensor_says_of_numpys_names_is_true():
    """`t.pow` is np.pow(t, other), an alias of np.power, and `t.half` a dtype; what is said to have no derivative gives none."""
    x, said = t(2, 2), {}
    for name in (name for name in vars(np) if not name.startswith("_")):
        try:
            getattr(x, name)
        except AttributeError as error:
            said[name] = str(error)
    assert "test" not in hints and "Write" not in said["seterr"]  # it takes no array
    assert (
        "np.polymul(t.numpy(), other): it has" in said["polymul"]
        and "Write np.compress(condition, t)." in said["compress"]
    )
    assert (
        "Write np.hstack([t, other])." in said["hstack"]
        and "Write np.atleast_2d(t)." in said["atleast_2d"]
    )
    assert (
        "Write np.inner(t, other)." in said["inner"]
        and "Write np.empty_like(t)." in said["empty_like"]
    )
    assert (
        "Write np.pow(t, other)." in said["pow"]
        and "Write np.degrees(t)." in said["degrees"]
        and "Write np.acos(t)." in said["acos"]
    )
    assert (
        "Write t.astype(np.half)." in said["half"]
        and "np.roots(t.numpy()): it has no derivative here" in said["roots"]
    )
    assert "Write" not in said["pi"] + said["linalg"] + said["ndarray"]
    asks = lambda function: (
        isinstance(function, np.ufunc) or hasattr(function, "_implementation")
    )  # it asks its operands
    for name in (
        name
        for name, text in said.items()
        if "no derivative here" in text and asks(getattr(np, name))
    ):
        for operands in ((x,), (x, x), (x, 2)):
            try:
                y = getattr(np, name)(*operands)
            except Exception:
                continue
            assert not any(
                isinstance(part, Tensor) and part.requires_grad
                for part in (y if isinstance(y, (list, tuple)) else [y])
            ), name


@pytest.mark.parametrize(
    "name",
    [
        "softplus",
        "leaky_relu",
        "elu",
        "logsigmoid",
        "normalize",
        "l1_loss",
        "nll_loss",
        "kl_div",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "index_add",
        "repeat_interleave",
        "index_select",
        "masked_select",
        "logsumexp",
        "split",
        "where",
        "select",
        "glu",
        "celu",
        "selu",
        "relu6",
        "hardtanh",
        "hardsigmoid",
        "hardswish",
        "mish",
        "softsign",
        "tanhshrink",
        "softmin",
        "smooth_l1_loss",
        "huber_loss",
        "cosine_similarity",
        "scatter_add",
    ],
)
def test_what_stands_for_a_function_of_pytorchs_is_its_equal(name):
    torch = require("torch")
    text = re.split(", which |, or ", hints[name])[0]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4)).astype(np.float32) * 3
    x[0, 0] = 0  # where the slopes of activations may jump
    target = rng.integers(0, 4, 3) if name == "nll_loss" else rng.random((3, 4)).astype(np.float32)
    if name == "kl_div":
        target[0] = [0, 0, 1, 0]
    probabilities = name == "binary_cross_entropy"
    if probabilities:  # of which float32 rounds some to 0 and to 1
        x[0, :2], target[0, :2] = [-200, 200], [0, 1]
    other = target[::-1].copy() if name == "cosine_similarity" else 0.5
    if name in ("index_add", "scatter_add"):
        other = rng.random((3, 4)).astype(np.float32)
    names = dict(
        np=np,
        ta=ta,
        F=F,
        target=target,
        indices=np.array([2, 0, 2]),
        mask=x > 0,
        axis=1,
        repeats=2,
        size=3,
        other=other,
        index=2,
    )
    there = {
        "t": torch.tensor(x),
        "target": torch.tensor(target),
        "indices": torch.tensor(names["indices"]),
    }
    call = {
        "normalize": lambda t: torch.nn.functional.normalize(t, dim=-1),
        "kl_div": lambda t: torch.nn.functional.kl_div(t, there["target"]),
        "nll_loss": lambda t: torch.nn.functional.nll_loss(t.log_softmax(1), there["target"]),
        "index_add": lambda t: t.index_add(0, there["indices"], torch.tensor(other)),
        "scatter_add": lambda t: t.scatter_add(
            0, there["indices"][:, None].expand(3, 4), torch.tensor(other)
        ),
        "logsumexp": lambda t: t.logsumexp(1),
        "repeat_interleave": lambda t: t.repeat_interleave(2, 1),
        "index_select": lambda t: t.index_select(1, there["indices"]),
        "masked_select": lambda t: t.masked_select(t > 0),
        "where": lambda t: t.where(t > 0, 0.5),
        "select": lambda t: t.select(1, 2),
        "split": lambda t: t.split(3, 1),
        "softmin": lambda t: torch.nn.functional.softmin(t, -1),
        "cosine_similarity": lambda t: torch.nn.functional.cosine_similarity(
            t, torch.tensor(other), -1
        ),
    }
    loss = "_loss" in name or "cross_entropy" in name
    function = call.get(name) or (
        lambda t: getattr(torch.nn.functional, name)(t, *[there["target"]] * loss)
    )
    theirs, ours = there["t"].requires_grad_(), Tensor(x, requires_grad=True)
    wanted = function(theirs.sigmoid() if probabilities else theirs)
    got = eval(text, {**names, "t": F.sigmoid(ours) if probabilities else ours})
    if name == "split":  # the last part, of one column, is what is left over
        assert (
            [part.shape for part in got]
            == [tuple(part.shape) for part in wanted]
            == [(3, 3), (3, 1)]
        )
        wanted, got = wanted[1], got[1]
    assert got.dtype == np.float32 and got.shape == wanted.shape
    np.testing.assert_allclose(got.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    weights = rng.standard_normal(got.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    np.sum(got * weights).backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["std", "var", "median", "max", "min", "GroupNorm"])
def test_what_stands_for_a_function_of_positive_numbers_is_its_equal(name):
    torch = require("torch")
    x = np.random.default_rng(0).random((2, 6, 3))
    call = {
        "max": lambda t: t.max(1).values,
        "min": lambda t: t.min(1).values,
        "std": lambda t: t.std(1),
        "var": lambda t: t.var(1),
        "GroupNorm": torch.nn.GroupNorm(2, 6, affine=False),
    }
    theirs, ours = torch.tensor(x, requires_grad=True), Tensor(x, requires_grad=True)
    wanted = call.get(name, getattr(torch, name, None))(theirs)
    got = eval(
        re.split(", as |, the |, for |, or |, before ", hints[name])[0],
        dict(np=np, F=F, t=ours, axis=1, groups=2),
    )
    np.testing.assert_allclose(got.numpy(), wanted.detach().numpy(), rtol=1e-9)
    if name == "median":
        along = eval(
            re.search(r", or (.*) along an axis", hints[name])[1], dict(np=np, t=ours, axis=1)
        )
        np.testing.assert_array_equal(along.numpy(), theirs.detach().median(1).values.numpy())
    got.backward(g := np.random.default_rng(1).random(got.shape))
    wanted.backward(torch.tensor(g))
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-6, atol=1e-9)


def test_what_stands_for_a_method_of_pytorchs_is_its_equal():
    torch = require("torch")
    x, other = np.random.default_rng(0).random((2, 3, 4)), np.zeros((5, 2, 3, 4), np.float32)
    for name, wanted in {
        "flatten": lambda t: t.flatten(1),
        "rsqrt": lambda t: t.rsqrt(),
        "unbind": lambda t: torch.stack(t.unbind(1)),
        "expand_as": lambda t: t.expand_as(torch.tensor(other)),
        "view_as": lambda t: t.view_as(torch.tensor(other[0])),
        "type_as": lambda t: t.type_as(torch.tensor(other)),
        "from_numpy": lambda t: t,
        "int": lambda t: t.int(),
    }.items():
        names = dict(
            np=np,
            Tensor=Tensor,
            t=Tensor(x),
            array=x,
            axis=1,
            other=other if name != "view_as" else other[0],
        )
        got = eval(hints[name].partition(" for ")[0], names)
        np.testing.assert_array_equal(
            np.stack(got) if name == "unbind" else got, wanted(torch.tensor(x)).numpy(), strict=True
        )


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "ceil",
        "cos",
        "exp",
        "expm1",
        "floor",
        "log",
        "log1p",
        "log2",
        "log10",
        "reciprocal",
        "round",
        "sign",
        "sin",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "trunc",
        "neg",
        "relu",
        "sigmoid",
    ],
)
def test_what_stands_for_changing_a_tensor_itself_is_its_equal(name):
    torch = require("torch")
    x = np.random.default_rng(0).uniform(0.1, 3, (2, 3)).astype(np.float32)
    wanted = getattr(torch.tensor(x), f"{name}_")().numpy()
    apart, itself = re.match(
        r"(t = .*), or (t\.data\[\.\.\.\] = .*) to change t itself$", hints[f"{name}_"]
    ).groups()
    for way in (apart, itself):
        names = dict(np=np, F=F, t=(before := Tensor(x)))
        exec(way, names)
        np.testing.assert_allclose(names["t"].numpy(), wanted, rtol=1e-6)
        assert (names["t"] is before) == (way == itself) and names["t"].dtype == np.float32


def test_what_stands_for_layers_of_nearly_the_same_name_is_their_equal():
    torch, generator = require("torch"), np.random.default_rng(0)
    x, y = (generator.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4, 5), (2, 3)))
    for name, layer in {
        "Dropout1d": torch.nn.Dropout1d(0.5),
        "Dropout2d": torch.nn.Dropout2d(0.5),
    }.items():
        t = Tensor(x[..., 0] if name == "Dropout1d" else x)
        torch.manual_seed(3)
        wanted = layer(torch.tensor(t.numpy()))
        ta.manual_seed(3)
        np.testing.assert_array_equal(
            eval(recipe(name), dict(np=np, F=F, t=t, p=0.5, training=True)).numpy(), wanted.numpy()
        )
    theirs = torch.nn.Bilinear(3, 3, 6)
    weight, bias = (p.detach().numpy() for p in theirs.parameters())
    wanted = theirs(torch.tensor(y), torch.tensor(2 * y)).detach().numpy()
    got = eval(
        recipe("Bilinear"), dict(np=np, t=Tensor(y), other=Tensor(2 * y), weight=weight, bias=bias)
    )
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)
    bag, indices = torch.nn.EmbeddingBag(5, 4), np.array([[0, 2, 2], [4, 1, 0]])
    got = eval(
        recipe("EmbeddingBag"), dict(F=F, t=Tensor(indices), weight=bag.weight.detach().numpy())
    )
    np.testing.assert_allclose(got, bag(torch.tensor(indices)).detach().numpy(), rtol=1e-6)


def recipe(name):
    """The code of a hint, without the words around it."""
    text = hints[name].rpartition("running statistics, or ")[2]
    return re.split(r", (?:an|as|before|for|in|of|or|the|when|where|which|with) |; ", text)[0]


def assert_agree(got, wanted, ours, theirs):
    """Value, dtype and, where PyTorch has one, gradient."""
    assert got.dtype == wanted.detach().numpy().dtype and got.shape == wanted.shape
    np.testing.assert_allclose(
        np.asarray(getattr(got, "data", got)), wanted.detach().numpy(), rtol=2e-5, atol=1e-6
    )
    if wanted.requires_grad:
        weights = np.random.default_rng(1).standard_normal(got.shape).astype(got.dtype)
        got.backward(weights)
        wanted.backward(type(wanted)(weights))
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-5)


GIVEN = {
    "roll": (1, 0),
    "rot90": (1, (0, 1)),
    "diff": (1, 0),
    "quantile": (0.3, 1),
    "nanquantile": (0.3, 1),
    "tile": ((2, 3),),
    "broadcast_to": ((2, 3, 3),),
    "moveaxis": (0, 1),
    "diag": (1,),
    "diagflat": (1,),
    "tril": (-1,),
    "triu": (1,),
    "nan_to_num": (0.0,),
    **dict.fromkeys(("hsplit", "vsplit"), (3,)),
    **dict.fromkeys(("amax", "amin", "count_nonzero", "cross", "flip", "nanmean", "nansum"), (1,)),
}
"""What PyTorch's methods are given after the tensor itself, in the order of the words in the hint."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_is_said_of_numpys_functions_does_what_pytorchs_methods_of_that_name_do():
    """Followed to the letter, with PyTorch's arguments in PyTorch's order."""
    torch, rng, compared = require("torch"), np.random.default_rng(0), set()
    others = {
        "bincount",
        "dsplit",
        "histogram",
        "imag",
        "real",
        "resize",
        *hints,
    }  # of other operands, or refused there; or tested below
    for name in sorted(
        {
            name
            for name in dir(torch.Tensor)
            if name in vars(np) and isinstance(vars(Tensor).get(name), MissingName)
        }
        - others
    ):
        with pytest.raises(AttributeError) as error:
            getattr(Tensor, name)
        text, none = re.search(
            r"Write (.*?)(: it has no derivative here)?\.$", str(error.value)
        ).groups()
        whole, axes = (
            name.startswith("bitwise") or name in ("gcd", "lcm"),
            1 if name in ("outer", "vdot") else 2,
        )
        a, b = (
            rng.integers(1, 6, (3,) * axes)
            if whole
            else rng.uniform(0.1, 0.9, (3,) * axes).astype(np.float32)
            for _ in range(2)
        )
        if name in ("acosh", "arccosh"):
            a = a + np.float32(1)
        theirs, ours = torch.tensor(a, requires_grad=not whole), Tensor(a, requires_grad=not whole)
        words = (
            []
            if "astype" in text
            else [
                word.rpartition("=")[0] or word
                for word in text[text.index("(") + 1 : -1].split(", ")[1:]
            ]
        )
        given = (b,) * ("other" in words) + GIVEN.get(name, ())
        got = eval(text, dict(zip(words, given, strict=True), np=np, t=ours))
        wanted = getattr(theirs, name)(*(torch.tensor(x) if x is b else x for x in given))
        try:
            if isinstance(wanted, (tuple, list)):
                assert len(wanted) == len(got)
                got, wanted = got[0], wanted[0]
            if isinstance(wanted, bool):
                assert got == wanted
            else:
                assert_agree(
                    got,
                    wanted.detach() if none or name in ("floor_divide", "heaviside") else wanted,
                    ours,
                    theirs,
                )
        except Exception as wrong:
            wrong.add_note(text)
            raise
        compared.add(name)
    assert len(compared) > 100 and set(GIVEN) <= compared


SIGNS = np.array([1, -1, 1], np.float32)


@pytest.mark.parametrize(
    "name, theirs, shape, named",
    [
        ("sort", "t.sort(1).values", (3, 4), {}),
        ("transpose", "t.transpose(1, 2)", (2, 3, 4), {}),
        ("nanmedian", "t.nanmedian()", (2, 4), {}),
        ("pad", "nn.pad(t, (1, 2))", (2, 3, 4), {}),
        ("row_stack", "torch.row_stack([t, other])", (3, 4), {"other": (2, 4)}),
        ("einsum", "torch.einsum(equation, t, other)", (2, 3), {"other": (3, 4)}),
        ("ldexp", "t.ldexp(other)", (3,), {"other": (3,)}),
        ("sub", "t.sub(other)", (3,), {"other": (3,)}),
        ("mul", "t.mul(other)", (3,), {"other": (3,)}),
        ("div", "t.div(other)", (3,), {"other": (3,)}),
        ("neg", "t.neg()", (3,), {}),
        ("mv", "t.mv(other)", (2, 3), {"other": (3,)}),
        ("det", "t.det()", (3, 3), {}),
        ("logdet", "(t + eye).logdet()", (3, 3), {}),
        ("inverse", "t.inverse()", (3, 3), {}),
        ("pinverse", "t.pinverse()", (3, 2), {}),
        ("cholesky_solve", "t.cholesky_solve(L)", (3, 2), {"L": np.tri(3, dtype=np.float32)}),
        ("cholesky", "torch.linalg.cholesky(t @ t.mT + eye)", (3, 3), {}),
        ("cdist", "torch.cdist(t, other)", (2, 2, 4), {"other": (2, 3, 4)}),
        ("logcumsumexp", "t.logcumsumexp(1)", (3, 4), {}),
        ("logit", "t.logit()", (3, 4), {}),
        ("erf", "t.erf()", (3, 4), {}),
        ("erfc", "t.erfc()", (3, 4), {}),
        ("lgamma", "t.lgamma()", (3, 4), {}),
        ("digamma", "t.digamma()", (3, 4), {}),
        ("narrow", "t.narrow(1, 1, 2)", (3, 4), {}),
        ("movedim", "t.movedim(0, 2)", (2, 3, 4), {}),
        ("unflatten", "t.unflatten(1, (2, 3))", (2, 6, 5), {}),
        (
            "scatter_reduce",
            "t.scatter_reduce(0, indices[:, None].expand(3, 4), other, 'sum')",
            (5, 4),
            {"other": (3, 4)},
        ),
        ("BatchNorm1d", "nn.batch_norm(t, None, None, training=True)", (3, 4), {}),
        ("BatchNorm2d", "nn.batch_norm(t, None, None, training=True)", (2, 3, 4, 5), {}),
        ("InstanceNorm2d", "nn.instance_norm(t)", (2, 3, 4, 5), {}),
        ("group_norm", "nn.group_norm(t, 2)", (2, 6, 3), {}),
        ("pairwise_distance", "nn.pairwise_distance(t, other)", (3, 4), {"other": (3, 4)}),
        (
            "cosine_embedding_loss",
            "nn.cosine_embedding_loss(t, other, target, 0.2)",
            (3, 4),
            {"other": (3, 4), "target": SIGNS},
        ),
        (
            "triplet_margin_loss",
            "nn.triplet_margin_loss(t, positive, negative, 0.2)",
            (3, 4),
            {"positive": (3, 4), "negative": (3, 4)},
        ),
        (
            "margin_ranking_loss",
            "nn.margin_ranking_loss(t, other, target, 0.2)",
            (3,),
            {"other": (3,), "target": SIGNS},
        ),
        (
            "gaussian_nll_loss",
            "nn.gaussian_nll_loss(t, target, var)",
            (3, 4),
            {"target": (3, 4), "var": (3, 4)},
        ),
        ("poisson_nll_loss", "nn.poisson_nll_loss(t, target)", (3, 4), {"target": (3, 4)}),
        ("prelu", "nn.prelu(t, weight)", (3, 4), {"weight": (4,)}),
        ("interpolate", "nn.interpolate(t, scale_factor=2)", (2, 3, 4, 5), {}),
        ("adaptive_avg_pool2d", "nn.adaptive_avg_pool2d(t, 1)", (2, 3, 4, 5), {}),
        (
            "conv_transpose2d",
            "nn.conv_transpose2d(t, weight, stride=2)",
            (2, 3, 4, 6),
            {"weight": (3, 5, 2, 2)},
        ),
        ("fold", "nn.fold(t, (4, 6), 2, stride=2)", (2, 12, 6), {}),
        ("Unfold", "nn.unfold(t, 2)", (2, 3, 4, 6), {}),
    ],
)
def test_what_stands_for_a_function_of_pytorchs_has_its_value_dtype_and_gradient(
    name, theirs, shape, named
):
    torch, rng = require("torch"), np.random.default_rng(0)
    x = rng.uniform(0.1, 0.9, shape).astype(np.float32) - np.float32(name == "prelu") / 2
    if name == "nanmedian":
        x[0, :3] = np.nan
    arrays = {
        key: rng.uniform(0.1, 0.9, y).astype(np.float32) if isinstance(y, tuple) else y
        for key, y in named.items()
    }
    arrays |= {"indices": np.array([2, 0, 2]), "eye": np.eye(3, dtype=np.float32)}
    there = dict(
        torch=torch,
        nn=torch.nn.functional,
        t=torch.tensor(x, requires_grad=True),
        equation="ij,jk->ik",
        **{key: torch.tensor(y) for key, y in arrays.items()},
    )
    here = dict(
        np=np,
        F=F,
        ta=ta,
        t=Tensor(x, requires_grad=True),
        equation="ij,jk->ik",
        axis=1,
        axis1=1,
        axis2=2,
        source=0,
        destination=2,
        left=1,
        right=2,
        margin=0.2,
        start=1,
        length=2,
        sizes=(2, 3),
        groups=2,
        k=2,
        rows=4,
        columns=6,
        **arrays,
    )
    ours = here["t"]
    if name in ("logdet", "cholesky"):
        here["t"] = ours + arrays["eye"] if name == "logdet" else ours @ ours.mT + arrays["eye"]
    if name == "cosine_embedding_loss":
        here["c"] = eval(hints[name].partition("with c = ")[2], here)
    if name in ("lgamma", "digamma"):
        pytest.importorskip("scipy.special")
        exec("import scipy.special; " + hints[name].partition(": ")[2], here)
    assert_agree(eval(recipe(name), here), eval(theirs, there), ours, there["t"])


def test_what_stands_for_a_function_without_a_gradient_is_its_equal():
    torch = require("torch")
    x, other = (
        np.array([[1, 3, 0], [2, 3, 1]], np.float32),
        np.array([[1, 2, 0], [3, 3, 1]], np.float32),
    )
    names = dict(
        np=np,
        ta=ta,
        Tensor=Tensor,
        t=Tensor(x),
        x=Tensor(x),
        p=t(1),
        other=other,
        labels=[2, 0],
        classes=3,
        rows=3,
        columns=4,
        offset=1,
        start=0,
        end=3,
        step=2,
        steps=4,
        shape=(2, 3),
        value=7.0,
        n=3,
        data=[1, 2],
    )
    there = dict(torch=torch, t=torch.tensor(x), other=torch.tensor(other))
    for name, wanted in {
        "one_hot": "torch.nn.functional.one_hot(torch.tensor([2, 0]), 3)",
        "nonzero": "t.nonzero()",
        "byte": "t.byte()",
        "tril_indices": "torch.tril_indices(3, 4, 1)",
        "triu_indices": "torch.triu_indices(3, 4, 1)",
        "arange": "torch.arange(0, 3, 2)",
        "asarray": "torch.asarray([1., 2.])",
        "zeros": "torch.zeros((2, 3))",
        "ones": "torch.ones((2, 3))",
        "full": "torch.full((2, 3), 7.0)",
        "eye": "torch.eye(3)",
        "linspace": "torch.linspace(0, 3, 4)",
        "new_zeros": "t.new_zeros((2, 3))",
        "new_ones": "t.new_ones((2, 3))",
        "new_full": "t.new_full((2, 3), 7.0)",
        "new_tensor": "t.new_tensor([1, 2])",
        **{name: f"t.{name}(other)" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    }.items():
        got = eval(recipe(name), names)
        np.testing.assert_array_equal(
            np.asarray(got), eval(wanted, there).numpy(), strict=True, err_msg=name
        )
    assert eval(recipe("equal"), names) is torch.equal(there["t"], there["other"]) is False
    assert eval(recipe("is_tensor"), names) and eval(recipe("is_grad_enabled"), names)
    with ta.no_grad():
        assert not eval(recipe("is_grad_enabled"), names)
    assert eval(recipe("empty"), names).shape == (2, 3)
    for ours, theirs in zip(
        eval(recipe("meshgrid"), dict(np=np, t=Tensor(x[0]), other=x[1, :2])),
        torch.meshgrid(there["t"][0], there["t"][1, :2], indexing="ij"),
        strict=True,
    ):
        assert np.array_equal(ours, theirs.numpy())
    sign, log = eval(recipe("slogdet"), dict(np=np, t=Tensor([[0.0, 2.0], [1.0, 0.0]])))
    assert sign.item() == -1 and log.item() == pytest.approx(math.log(2))
    exec(recipe("div_"), names | {"other": Tensor(other + 1)})
    assert np.array_equal(names["t"].numpy(), x / (other + 1))
    exec(recipe("put"), names | {"index": [1, 5], "source": [8, 9]})
    assert names["t"].numpy().ravel()[[1, 5]].tolist() == [8, 9]


def test_what_stands_for_a_draw_of_pytorchs_has_its_distribution():
    torch = require("torch")
    ta.manual_seed(0)
    p = Tensor(np.tile(np.array([0, 0.25, 1], np.float32), (4000, 1)))
    draws = eval(recipe("bernoulli"), dict(np=np, ta=ta, t=p))
    assert draws.dtype == np.float32 and np.allclose(draws.mean(0), [0, 0.25, 1], atol=0.03)
    draws = eval(recipe("normal"), dict(ta=ta, mean=3, std=2, shape=(4000,)))
    assert abs(draws.mean().item() - 3) < 0.1 and abs(draws.std().item() - 2) < 0.1
    logits = np.log(np.array([0.2, 0.3, 0.5], np.float32))
    many = Tensor(np.tile(logits, (4000, 1)))
    first = eval(recipe("gumbel_softmax"), dict(np=np, ta=ta, F=F, t=many, tau=0.5)).argmax(-1)
    assert np.allclose(np.bincount(np.asarray(first)) / 4000, np.exp(logits), atol=0.03)
    ta.manual_seed(0)
    torch.manual_seed(0)  # the same numbers, of which PyTorch's own function would draw others
    ours, theirs = Tensor(logits, requires_grad=True), torch.tensor(logits, requires_grad=True)
    noise = -torch.log(-torch.log(torch.rand(3)))
    drawn = eval(recipe("gumbel_softmax"), dict(np=np, ta=ta, F=F, t=ours, tau=0.5))
    assert_agree(drawn, ((theirs + noise) / 0.5).softmax(-1), ours, theirs)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_what_stands_for_a_cell_of_pytorchs_is_its_equal(name):
    torch = require("torch")
    rng, cell = np.random.default_rng(0), getattr(torch.nn, name)(3, 4)
    w, v, b, d = (
        p.detach().numpy() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    )
    x, h, c = (rng.standard_normal((2, size)).astype(np.float32) for size in (3, 4, 4))
    layers = types.SimpleNamespace(
        linear=lambda y: F.linear(y, np.concatenate([w, v], 1), b + d),
        of_x=lambda y: F.linear(y, w, b),
        of_h=lambda y: F.linear(y, v, d),
    )
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    exec(
        hints[name].partition(", in a Module")[0],
        names := dict(np=np, F=F, self=layers, x=ours, h=h, c=c),
    )
    state = (torch.tensor(h), torch.tensor(c)) if name == "LSTMCell" else torch.tensor(h)
    wanted = cell(theirs, state)
    if name == "LSTMCell":
        np.testing.assert_allclose(
            names["c"].numpy(), wanted[1].detach().numpy(), rtol=1e-5, atol=1e-6
        )
        wanted = wanted[0]
    assert_agree(names["h"], wanted, ours, theirs)


def test_what_stands_for_lbfgs_batches_a_plateau_and_a_vector_of_parameters():
    optimize = pytest.importorskip("scipy.optimize")
    loss = lambda x: np.sum((x - [1.0, 2.0]) ** 2)
    found = eval(
        recipe("LBFGS"),
        dict(scipy=types.SimpleNamespace(optimize=optimize), ta=ta, loss=loss, x=np.zeros(2)),
    )
    assert np.allclose(found.x, [1, 2])
    loop = hints["DataLoader"].partition(": and take ")
    seen = []
    exec(
        f"{loop[0]}:\n    seen.append(({loop[2].partition(' in it')[0]}))",
        dict(np=np, x=np.arange(7), y=-np.arange(7), batches=3, seen=seen),
    )
    assert (
        len(seen) == 3
        and sorted(np.concatenate([x for x, _ in seen])) == list(range(7))
        and all((x == -y).all() for x, y in seen)
    )
    optimizer = optim.SGD([t(1)], 0.5)
    exec(recipe("ReduceLROnPlateau"), dict(optimizer=optimizer, factor=0.1))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert (
        eval(
            recipe("OneCycleLR"),
            dict(optim=optim, optimizer=optimizer, warmup_steps=2, total_steps=9),
        ).lr
        < 0.05
    )
    model = nn.Linear(2, 3)
    with pytest.raises(AttributeError) as error:
        nn.utils.parameters_to_vector(model.parameters())
    vector = eval(
        re.search(r"or (np\.concatenate.*) for parameters", str(error.value))[1],
        dict(np=np, model=model),
    )
    assert vector.shape == (9,) and vector.requires_grad


@pytest.mark.parametrize(
    "module, names",
    [
        (
            nn,
            "Dropout2d Bilinear EmbeddingBag Dense PositionalEncoding "
            "LSTMCell GRUCell Upsample ConvTranspose2d AdaptiveAvgPool2d Unflatten Fold CTCLoss TripletMarginLoss PReLU PairwiseDistance",
        ),
        (
            F,
            "dropout2d bilinear embedding_bag log_sigmoid relu_ "
            "gumbel_softmax ctc_loss batch_norm instance_norm group_norm cosine_embedding_loss interpolate fold pairwise_distance prelu "
            "triplet_margin_loss gaussian_nll_loss poisson_nll_loss erf",
        ),
        (
            optim,
            "Adagrad LBFGS OneCycleLR ReduceLROnPlateau NAdam RAdam Adamax Adadelta Rprop ASGD CyclicLR SequentialLR",
        ),
        (ta.viz, "make_dot draw_dot heatmap"),
        (ta.random, "normal uniform seed choice shuffle"),
        (
            ta,
            "normal is_grad_enabled scatter_reduce logcumsumexp cdist cholesky_solve bernoulli distributions utils erf lgamma digamma special "
            "cholesky",
        ),
        (
            t(3),
            "exp_ relu_ neg_ sqrt_ clip_ pow_ unsqueeze_ H mH is_cuda strides "
            "values grad_fn new_zeros narrow det inverse logit slogdet cholesky erf lgamma digamma scatter_reduce",
        ),
    ],
    ids=["nn", "F", "optim", "viz", "random", "ta", "Tensor"],
)
def test_what_pytorchs_users_look_for_is_known(module, names):
    for name in names.split():
        with pytest.raises(AttributeError, match=r"\. (Write .*[^.]|It is not here; .*[^.])\.$"):
            getattr(module, name)


@pytest.mark.parametrize("mode", [True, False])
def test_what_stands_for_set_grad_enabled_is_its_equal(mode):
    found = {}
    exec(
        hints["set_grad_enabled"] + "\n    y = 2 * t",
        names := dict(ta=ta, mode=mode, t=t(3)),
        found,
    )
    assert names["t"].requires_grad and found["y"].requires_grad is mode


@pytest.mark.parametrize("name", ["normal_", "uniform_", "masked_fill_"])
def test_what_stands_for_writing_into_a_tensor_writes_there(name):
    weight, value = t(2, 3), 7.0
    mask = weight.numpy() > 1
    exec(hints[name], dict(nn=nn, t=weight, mean=7, std=0, low=7, high=7, mask=mask, value=value))
    assert np.array_equal(
        weight.numpy(),
        np.full((2, 3), 7) if name != "masked_fill_" else np.where(mask, 7, t(2, 3).numpy()),
    )


@pytest.mark.parametrize(
    "name, make",
    [
        ("StepLR", lambda o, lr: lr.StepLR(o, 2, 0.5)),
        ("ExponentialLR", lambda o, lr: lr.ExponentialLR(o, 0.5)),
        ("MultiStepLR", lambda o, lr: lr.MultiStepLR(o, [1, 3], 0.5)),
        ("LinearLR", lambda o, lr: lr.LinearLR(o, 0.25, 0.75, 3)),
        ("ConstantLR", lambda o, lr: lr.ConstantLR(o, 0.25, 3)),
        ("PolynomialLR", lambda o, lr: lr.PolynomialLR(o, 3, 2.0)),
        ("CosineAnnealingWarmRestarts", lambda o, lr: lr.CosineAnnealingWarmRestarts(o, 3)),
        ("CyclicLR", lambda o, lr: lr.CyclicLR(o, 0.1, 0.3, 2, cycle_momentum=False)),
    ],
)
def test_what_stands_for_a_schedule_of_pytorchs_is_its_equal(name, make):
    torch = require("torch")
    theirs, ours = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.3), optim.SGD([t(1)], 0.3)
    wanted = make(theirs, torch.optim.lr_scheduler)
    schedule = eval(
        recipe(name),
        dict(
            optim=optim,
            optimizer=ours,
            gamma=0.5,
            step_size=2,
            milestones=[1, 3],
            start=0.25,
            end=0.75,
            total=3,
            factor=0.25,
            power=2.0,
            period=3,
            low=0.1 / 0.3,
            size_up=2,
            np=np,
        ),
    )
    with pytest.raises(AttributeError) as caught:
        schedule.get_last_lr()
    first, every = re.search(r"Write (.*), or (.*)\.$", str(caught.value)).groups()
    for _ in range(5):
        assert wanted.get_last_lr() == pytest.approx(eval(every, dict(optimizer=ours)))
        assert wanted.get_last_lr() == pytest.approx([eval(first, dict(schedule=schedule))])
        theirs.step()
        wanted.step()
        schedule.step()


def test_what_stands_for_rmsprop_is_its_equal_once_it_has_run_for_some_steps():
    torch = require("torch")
    theirs, ours = (
        torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True),
        t(3, dtype=np.float64),
    )
    ours.data[...] = 2
    instead = eval(
        hints["RMSprop"].partition(", which ")[0], dict(optim=optim, params=[ours], lr=0.01)
    )
    optimizers = torch.optim.RMSprop([theirs], 0.01), instead
    for step in range(1, 1500):
        before = theirs.detach().numpy().copy(), ours.numpy().copy()
        theirs.grad, ours.grad = (
            torch.full((3,), 1 + 0.1 * (step % 3), dtype=torch.float64),
            np.full(3, 1 + 0.1 * (step % 3)),
        )
        for optimizer in optimizers:
            optimizer.step()
        ratio = (ours.numpy() - before[1]) / (theirs.detach().numpy() - before[0])
        np.testing.assert_allclose(ratio, np.sqrt(1 - 0.99**step), rtol=1e-6)


def test_what_stands_for_topk_is_its_equal():
    torch = require("torch")
    x = np.random.default_rng(0).standard_normal((2, 9))
    theirs, ours = torch.tensor(x, requires_grad=True), Tensor(x, requires_grad=True)
    wanted = theirs.topk(3).values
    wanted.square().sum().backward()
    values, *ways = re.match(r"(.*) with indices = (.*), or, .* fast, (.*)", hints["topk"]).groups()
    for way in ways:
        got = eval(values, dict(np=np, t=ours, indices=eval(way, dict(np=np, t=ours, k=3))))
        assert sorted(got.numpy().ravel()) == sorted(wanted.detach().numpy().ravel())
        assert np.array_equal(grad((got * got).sum(), ours)[0].numpy(), theirs.grad.numpy())
    assert np.array_equal(
        eval(values, dict(np=np, t=x, indices=eval(ways[0], dict(np=np, t=ours, k=3)))),
        wanted.detach().numpy(),
    )


def test_what_stands_for_the_mean_over_a_batch_of_a_divergence_is_its_equal():
    torch = require("torch")
    x, target = (
        np.log(np.random.default_rng(0).dirichlet(np.ones(4), 3)),
        np.random.default_rng(1).dirichlet(np.ones(4), 3),
    )
    each, instead = re.match(
        r"np\.mean\((.*)\), or (np\.sum\(\.\.\.\).*) for", hints["KLDivLoss"]
    ).groups()
    got = eval(instead.replace("...", each), dict(np=np, t=Tensor(x), target=target))
    wanted = torch.nn.KLDivLoss(reduction="batchmean")(torch.tensor(x), torch.tensor(target))
    assert got.item() == pytest.approx(wanted.item())


def test_what_stands_for_adding_rows_takes_memory_for_them_alone_and_differentiates_what_is_added():
    """A matrix of zeros and ones, rows x indices, is a hundred times as slow for the messages of a graph's edges."""
    messages = t(10_000, 2, dtype=np.float64)
    indices = np.random.default_rng(0).integers(0, 2000, len(messages))
    for name in ("index_add", "index_add_", "scatter_add", "scatter_add_"):
        with pytest.raises(AttributeError) as caught:
            getattr(messages, name)
        text = re.search(r"Write (.*?)(, which .*)?\.$", str(caught.value))[1]
        tracemalloc.start()
        y = eval(text, dict(np=np, ta=ta, t=np.ones((2000, 2)), other=messages, indices=indices))
        assert tracemalloc.get_traced_memory()[1] < 1e7
        tracemalloc.stop()
        expected = np.ones((2000, 2))
        np.add.at(expected, indices, messages.numpy())
        np.testing.assert_allclose(y.numpy(), expected)
        (slope,) = grad(y.sum(), messages)
        assert np.array_equal(slope.numpy(), np.ones((10_000, 2)))


def test_what_stands_for_multinomial_draws_an_index_as_often_as_it_is_probable():
    names = {"np": np, "t": Tensor([[3, 0, 1], [0, 0, 2]]), "rng": np.random.default_rng(0)}
    draws = np.array([eval(hints["multinomial"].split(", which")[0], names) for _ in range(4000)])
    assert (
        np.allclose([np.mean(draws[:, 0] == i) for i in range(3)], [0.75, 0, 0.25], atol=0.03)
        and (draws[:, 1] == 2).all()
    )


@pytest.mark.parametrize(
    "name, call",
    [
        ("lerp", lambda t, other: t.lerp(other, 0.1)),
        ("lerp_", lambda t, other: t.lerp_(other, 0.1)),
        ("clamp_min", lambda t, _: t.clamp_min(0.3)),
        ("clamp_max", lambda t, _: t.clamp_max(0.3)),
    ],
)
def test_what_stands_for_moving_averages_and_limits_is_its_equal(name, call):
    torch = require("torch")
    a, b = np.random.default_rng(0).random((2, 5))
    ours = Tensor(a.copy())
    text, names = (
        hints[name],
        {"t": ours, "other": Tensor(b), "weight": 0.1, "min": 0.3, "max": 0.3},
    )
    got = exec(text, names) or ours if "=" in text else eval(text, names)
    np.testing.assert_allclose(
        got.numpy(), call(torch.tensor(a), torch.tensor(b)).numpy(), rtol=1e-12
    )


@pytest.mark.parametrize(
    "named",
    [lambda m: dict(m.named_parameters()), lambda m: m.named_parameters()],
    ids=["dict", "pairs"],
)
def test_the_gradient_by_named_parameters_says_to_leave_the_names_out(named):
    model = nn.Linear(2, 2)
    with pytest.raises(
        ValueError,
        match=r"Leave the names out: write list\(model.parameters\(\)\), of a dict list\(params.values\(\)\)",
    ):
        grad(model(np.ones(2)).sum(), named(model))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "conv1d", "conv2d"])
def test_what_stands_for_a_function_of_windows_is_its_equal(name):
    torch = require("torch")
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((2, 3, 4, 6)[: 3 if name == "conv1d" else 4]),
        rng.standard_normal((5, 3, 2, 2)[: int(name[-2]) + 2]),
    )
    theirs, ours = torch.tensor(x, requires_grad=True), Tensor(x, requires_grad=True)
    text = hints[name].partition(", which " if "pool" in name else ", for ")[0]
    got = eval(text, dict(np=np, t=ours, weight=weight, rows=4, columns=6, k=2))
    wanted = getattr(torch.nn.functional, name)(
        theirs, 2 if "pool" in name else torch.tensor(weight)
    )
    np.testing.assert_allclose(got.numpy(), wanted.detach().numpy())
    g = rng.standard_normal(got.shape)
    got.backward(g)
    wanted.backward(torch.tensor(g))
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy())


def test_python_itself_suggests_the_nearest_name_of_a_tensor():
    code = "from tinygrad_attn import Tensor; Tensor([1.0]).detatch()"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "'Tensor' object has no attribute 'detatch'. Did you mean: 'detach'?" in found.stderr


@pytest.mark.parametrize(
    "module, name, meant",
    [
        (F, "atention", ""),
        (F, "sofmax", " Did you mean 'softmax'?"),
        (nn, "Anny", ""),
        (optim, "Adm", " Did you mean 'Adam'?"),
        (optim, "Tenso", ""),
        (nn, "SGD", " Write optim.SGD."),
        (ta, "Linear", " Write nn.Linear."),
        (F, "Softmax", " Did you mean 'softmax'?"),
        (optim, "dropout", " Write F.dropout."),
        (ta.viz, "grap", " Did you mean 'graph'?"),
        (ta.random, "randin", " Did you mean 'randint'?"),
        (ta.check, "gradchek", " Did you mean 'gradcheck'?"),
    ],
)
def test_a_name_is_suggested_only_if_it_is_a_name_of_the_module(module, name, meant):
    """It once was 'annotations', of the first line of every module."""
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value) == f"{module.__name__} has no {name!r}.{meant}"


@pytest.mark.parametrize(
    "call,told",
    [
        (lambda t: t + np.float64, "cannot take"),
        (lambda t: Tensor(np.float64), "class 'numpy.float64'"),
        (lambda t: t == np.float64, "cannot be compared|bool"),
        (lambda t: t * np.ma.masked_array([1.0, 2.0], [True, False]), "masked array.*filled"),
        (lambda t: t.astype(complex), "holds real numbers or booleans, not complex128"),
        (lambda t: t.astype(object), "not object"),
        (lambda t: np.where(np.array([True, False]), t, None), "where|None"),
        (lambda t: t.roots(), r"np.roots\(t.numpy\(\)\)"),
        (lambda t: t.put(0, 1), r"np.put\(t.data, index, source\)"),
        (lambda t: t.var(1, 0), "one axis, or several as a tuple"),
        (lambda t: t.argmin(dim=0), "axis= for dim="),
        (
            lambda t: np.broadcast_to(t, (3,)),
            r"broadcast_to of Tensor \(2,\).*requested shape \(3,\)\.$",
        ),
    ],
    ids=range(12),
)
def test_what_was_once_answered_wrongly_or_not_at_all(call, told):
    try:
        call(Tensor([1.0, 2.0], requires_grad=True))
    except (TypeError, AttributeError, ValueError) as error:
        assert re.search(told, str(error)), error
    else:
        assert "bool" in told  # a comparison with a class is False everywhere, as NumPy's


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_matrix_beside_a_tensor_is_an_array():
    t = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = t * np.matrix([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(y.numpy(), [[1, 4], [9, 16]])
    y.sum().backward()
    assert type(y.numpy()) is np.ndarray and type(t.grad.numpy()) is np.ndarray


def test_a_number_that_is_or_is_not_in_a_tensor():
    assert (
        3.0 in Tensor(3.0)
        and 2.0 in Tensor([[1.0, 2.0]])
        and 5.0 not in Tensor([1.0])
        and 1.0 not in Tensor(np.ones(0))
    )


def test_the_default_dtype_is_for_numbers_and_lists():
    ta.set_default_dtype("float64")
    try:
        assert ta.get_default_dtype() == Tensor(1.0).dtype == Tensor([1, 2]).dtype == np.float64
    finally:
        ta.set_default_dtype(np.float32)
    assert Tensor(1.0).dtype == Tensor([1, 2]).dtype == np.float32
    assert Tensor(True).dtype == bool and Tensor(np.float64(1)).dtype == np.float64
    assert (
        Tensor([np.ones(2), np.zeros(2)]).dtype == Tensor([np.float64(1)]).dtype == np.float64
    )  # arrays keep theirs
    assert (Tensor(np.array([1, 2])) * [1.5, 2.5]).tolist() == [1.5, 5.0]


def test_a_tensor_of_torchs_becomes_one_of_ours():
    torch = require("torch")
    t = Tensor(torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True))
    assert t.tolist() == [1, 2] and t.dtype == np.float64 and not t.requires_grad
    narrow = Tensor(torch.tensor([1.5, 2.0], dtype=torch.bfloat16))
    assert narrow.tolist() == [1.5, 2.0] and narrow.dtype == np.float32


def test_a_tensor_where_python_wants_a_number():
    one = Tensor(np.array(1))
    assert (
        "abc"[one] == "b"
        and Tensor([5.0, 6.0])[one].item() == 6
        and Tensor([5.0, 6.0])[Tensor(np.array([1, 0]))].tolist() == [6, 5]
    )
    assert int(Tensor(2.7)) == 2 and bool(one) and not Tensor([0.0])
    for wrong in (Tensor(1.0), Tensor(np.array([1]))):
        with pytest.raises(TypeError, match="only a single integer can be an index"):
            "abc"[wrong]


def test_copies_and_names():
    t = Tensor([1.0]).requires_grad_()
    t.name = "weight"
    assert (
        t.requires_grad
        and copy.copy(t) is t
        and copy.deepcopy(t).name == "weight"
        and copy.deepcopy(t).requires_grad
    )
    (b := nn.Buffer([1.0])).name = "table"
    assert copy.deepcopy(b).name == "table"
    assert not t.requires_grad_(False).requires_grad
    assert "sum" in dir(t) and "unsqueeze" not in dir(t)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_takes_leaves_only(protocol):
    """A copied graph would lead to copies of its leaves, by ticks of another process's clock."""
    t = nn.Parameter([1.0, 2.0])
    t.name, t.grad = "weight", np.ones(2)
    again = pickle.loads(pickle.dumps(t, protocol))
    assert (
        type(again) is nn.Parameter
        and again.requires_grad
        and again.name == "weight"
        and again.grad.tolist() == [1, 1]
    )
    assert not pickle.loads(pickle.dumps(nn.Buffer(t, persistent=False), protocol)).persistent
    for copied in (copy.deepcopy, lambda x: pickle.dumps(x, protocol)):
        for result in (t * 2, (t * 2).clone()):
            with pytest.raises(
                TypeError,
                match=r"only leaf tensors can be deep-copied or pickled.*use .detach\(\); .clone\(\) stays",
            ):
                copied(result)
    assert pickle.loads(pickle.dumps((t * 2).detach(), protocol)).tolist() == [2, 4]


def test_data_given_as_a_list_keeps_the_dtype():
    t = Tensor([1.0, 2.0], requires_grad=True)
    t.data = [3, 4]
    assert t.dtype == np.float32
    t.data = np.ones(2)
    assert t.dtype == np.float64
    with pytest.raises(TypeError, match="requires a gradient and cannot hold array .* int64"):
        t.data = np.array([1, 2])


def test_data_may_be_given_as_a_tensor_of_a_single_number():
    t, s = Tensor(1.0, requires_grad=True), Tensor(3.0)
    t.data = s
    assert t.item() == 3.0 and t.data.ndim == 0
    with pytest.raises(ValueError, match="changed in place"):
        y = t * t
        t.data = s * 2
        y.backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda t, m: m * t,
        lambda t, m: t * m,
        lambda t, m: m - t,
        lambda t, m: np.ma.multiply(t, m),
        lambda t, m: np.multiply(m, t),
        lambda t, m: np.ma.masked_array(t),
    ],
)
def test_a_masked_array_neither_loses_its_mask_nor_takes_the_gradient(f):
    with pytest.raises(TypeError, match="would lose|masked array, whose mask"):
        f(Tensor([1.0, 2.0], requires_grad=True), np.ma.masked_array([1.0, 2.0], [True, False]))


@pytest.mark.parametrize("n", [3, 10_000])
@pytest.mark.parametrize("other", [None, "a"])
def test_where_with_what_is_no_number(n, other):
    with pytest.raises(TypeError, match="where of .* a Tensor holds real numbers or booleans"):
        np.where(np.ones(n, bool), Tensor(np.ones(n), requires_grad=True), other)


def test_dropout_with_a_probability_of_half_precision():
    x = Tensor(np.ones(100), requires_grad=True)
    assert set(F.dropout(x, np.float16(0.75)).tolist()) == {0.0, 4.0}


class Nullable:
    """As pandas' arrays with missing numbers: what stands in `_data` where one is missing is anything."""

    def __init__(self, numbers):
        self._data = np.where(np.isnan(numbers), 1, numbers).astype(int)
        self.numbers = np.array(numbers)

    def __array__(self, dtype=None, copy=None):
        return self.numbers

    __array_ufunc__ = None  # so that NumPy leaves comparisons to it

    def __lt__(self, other):
        return "asked"


def test_a_missing_label_is_not_the_number_that_stands_in_its_place():
    for call in (lambda i: F.embedding(i, t(3, 2)), F.padding_mask):
        assert call(np.array([1, 2])).shape == (2, 2)
        with pytest.raises(TypeError, match="needs integers"):
            call(Nullable([1, math.nan]))


def test_a_comparison_asks_the_other_array_and_takes_no_memory_of_its_own():
    masked = np.ma.masked_array([0.0, 0.0], [True, False])
    assert np.ma.is_masked(Tensor([1.0, 2.0]) > masked)
    assert (Tensor([1.0, 2.0]) > Nullable([1, math.nan])) == "asked"


@pytest.mark.parametrize(
    "time", [np.timedelta64(3, "ns"), np.datetime64("2020-01-01", "ns"), np.timedelta64(3, "s")]
)
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x * y,
        lambda x, y: y + x,
        lambda x, y: np.where([True, False], x, y),
        np.maximum,
    ],
)
def test_a_time_is_no_number(f, time):
    """item() of one in nanoseconds is a plain number."""
    with pytest.raises(TypeError, match=r"64 \(\).*, a time\. Write x / np\.timedelta64\(1, 's'\)"):
        f(t(2), time)


@pytest.mark.parametrize(
    "x",
    [
        np.array([1j, 2]),
        np.array(["1", "2"]),
        np.array([1.0, 2.0], object),
        np.array([1, 2], "m8[ns]"),
    ],
    ids=["complex", "text", "objects", "times"],
)
def test_what_is_no_real_number_is_no_input_of_a_layer_nor_a_gradient_nor_data(x):
    for call in (
        nn.Linear(2, 3),
        nn.Softmax(-1),
        t(2).clip().backward,
        lambda x: setattr(t(2), "data", x),
    ):
        with pytest.raises(TypeError, match=r"real numbers.*\(2,\)|cannot hold array \(2,\)"):
            call(x)
    with pytest.raises(TypeError, match="real numbers"):
        grad(t(2).clip(), [t(2)], x)


@pytest.mark.parametrize("x", [None, "2.5", [1.0, None], ["1", "2"]])
def test_data_is_made_of_numbers_and_not_of_what_a_number_can_be_made_of(x):
    y = t(2)
    with pytest.raises(TypeError, match="cannot hold array"):
        y.data = x
    if x is not None:
        with pytest.raises(TypeError, match=r"backward\(\) takes real numbers as gradient="):
            y.clip().backward(x)


def test_whole_numbers_that_do_not_fit_are_not_wrapped_around():
    y = Tensor(np.zeros(2, np.uint8))
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        y.data = [300, 1]


@pytest.mark.parametrize(
    "x,error,told",
    [
        ([[1], [1, 2]], V, "the rows of this list differ in length"),
        ([None, 1.0], T, r"got \[None, 1\.0\]\.$"),
        ({1.0, 2.0}, T, r"list\(x\)"),
        ([t(1), t(1)], T, "a list of Tensors does not make a Tensor"),
        (["1", "2"], T, r"got \['1', '2'\]\.$"),
    ],
    ids=["ragged", "None", "set", "Tensors", "text"],
)
def test_what_is_no_gradient_is_named_as_it_was_given(x, error, told):
    y = t(2)
    with pytest.raises(error, match=told):
        y.grad = x


def test_a_gradient_of_torch_may_itself_have_been_recorded():
    torch = require("torch")
    y, slope = t(2), torch.ones(2, dtype=torch.float64, requires_grad=True)
    y.grad = slope
    assert y.grad.dtype == y.dtype and y.grad.tolist() == [1, 1]


def test_data_of_other_libraries():
    torch = require("torch")
    y, numbers = t(2), torch.ones(2, dtype=torch.float64)
    y.data = numbers
    assert y.dtype == np.float64 and np.shares_memory(y.data, numbers.numpy())
    y = t(2)
    y.data = [1, 2]
    assert y.dtype == np.float32


@pytest.mark.parametrize(
    "call",
    [
        Tensor,
        lambda m: F.embedding(m.astype(int), t(3, 2)),
        lambda m: np.einsum("i,i", t(2), m),
        lambda m: np.inner(m, t(2)),
        lambda m: t(2).clip().backward(m),
        lambda m: setattr(t(2), "data", m),
        ta.value_and_grad(np.sum),
        lambda m: nn.LayerNorm(2).load_state_dict({"weight": m}, strict=False),
        lambda m: nn.TransformerEncoderLayer(4, 2, 8)(t(2, 4), src_key_padding_mask=m),
    ],
    ids=[
        "Tensor",
        "embedding",
        "einsum",
        "inner",
        "gradient",
        "data",
        "value_and_grad",
        "state",
        "key_padding_mask",
    ],
)
def test_a_mask_is_not_dropped(call):
    with pytest.raises(
        TypeError, match=r"masked array, whose mask would be lost\. Write x\.filled\(0\)"
    ):
        call(np.ma.masked_array([1.0, 2.0], [True, False]))


@pytest.mark.parametrize(
    "call",
    [
        Tensor,
        lambda m: t(2) * m,
        lambda m: np.vdot(t(2, 2), m),
        lambda m: t(2, 2).clip().backward(m),
        lambda m: F.scaled_dot_product_attention(t(2, 4), t(2, 4), t(2, 4), m),
    ],
    ids=["Tensor", "operand", "vdot", "gradient", "attn_mask"],
)
def test_a_mask_in_a_list_is_not_dropped(call):
    with pytest.raises(TypeError, match="masked array, whose mask would be lost"):
        call([np.ma.masked_array([1.0, 2.0], [True, False])] * 2)


def test_a_masked_array_in_which_nothing_is_masked_is_an_array():
    whole = np.ma.masked_array([1.0, 2.0])
    assert Tensor(whole).tolist() == [1.0, 2.0] and Tensor([whole, whole]).shape == (2, 2)


def test_without_a_gradient_numpys_masked_arrays_take_a_tensor():
    """matplotlib's scatter asks for the mask of what it is given."""
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    assert np.ma.getmask(Tensor([1.0, 2.0])) is np.ma.nomask
    with ta.no_grad():
        for x in (
            Tensor([3.0, 3.0]),
            t(2, rg=False) * 0 + 3,
            Tensor([3.0, 3.0], requires_grad=True),
        ):
            assert (masked * x).tolist() == [None, 6.0]


class Sparse:
    """As scipy.sparse: NumPy makes of it a single object."""

    shape, dtype = (2,), np.dtype(float)

    def toarray(self):
        return np.ones(2)


@pytest.mark.parametrize(
    "x,told",
    [
        (Sparse(), r"x\.toarray\(\)"),
        (np.array([1.0, 2.0], object), r"x\.astype\(np\.float32\)"),
        ({1.0, 2.0}, r"list\(x\)"),
        ((i for i in range(2)), r"list\(x\)"),
        ({"a": 1.0}.values(), r"list\(x\)"),
    ],
    ids=["sparse", "object", "set", "generator", "view"],
)
def test_how_to_get_at_the_numbers(x, told):
    for call in (Tensor, *[lambda x: t(2) * x] * (not isinstance(x, np.ndarray))):
        with pytest.raises(TypeError, match=told + r"[^(]*\.$"):
            call(x)
    for call in (t(2).clip().backward, *[nn.Linear(2, 3)] * isinstance(x, np.ndarray)):
        with pytest.raises(TypeError, match=told):
            call(x)


def test_torch_walks_through_a_tensor_and_is_told_what_to_take_instead():
    with pytest.raises(TypeError, match=r"torch\.tensor\(t\.numpy\(\)\)"):
        require("torch").tensor(Tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    "data, dtype, error, text",
    [
        (
            None,
            np.float32,
            TypeError,
            r"holds real numbers or booleans; got None\. Did a function forget",
        ),
        ([1j], np.float32, TypeError, r"holds real numbers or booleans; got \[1j\]"),
        (
            np.array([1j]),
            np.float32,
            TypeError,
            r"holds real numbers or booleans; got array \(1,\) complex128",
        ),
        (np.complex64(1j), np.float32, TypeError, "holds real numbers or booleans"),
        ("3", np.float32, TypeError, "holds real numbers or booleans; got '3'"),
        (["3"], np.float32, TypeError, "holds real numbers or booleans"),
        ([None, 1], np.float32, TypeError, "holds real numbers or booleans"),
        (np.array(["x"]), np.float32, TypeError, "holds real numbers or booleans"),
        (np.array([1], "m8[s]"), np.float32, TypeError, "holds real numbers or booleans"),
        (10**400, None, TypeError, "cannot hold numbers as large as these"),
        ([10**400], np.float64, TypeError, "cannot hold numbers as large as these"),
        (2**63, np.int64, TypeError, "a Tensor of int64 cannot hold numbers as large as these"),
        (np.nan, np.int64, ValueError, "NaN to integer"),
        (
            np.array(["3", Fraction(1, 2)], object),
            np.float64,
            TypeError,
            "holds real numbers or booleans",
        ),
        ([[1.0], [2.0, 3.0]], np.float32, ValueError, "the rows of this list differ in length"),
        ([1.0], "flaot32", TypeError, "'flaot32' is no NumPy dtype"),
    ],
)
def test_a_dtype_of_ones_own_does_not_hide_what_is_wrong_with_the_numbers(data, dtype, error, text):
    with pytest.raises(error, match=text):
        Tensor(data, dtype=dtype)


def test_fractions_and_long_integers_are_numbers_where_a_dtype_is_given():
    assert Tensor([Fraction(1, 2), 2**70], dtype=np.float64).tolist() == [0.5, 2.0**70]


@pytest.mark.parametrize(
    "value, text",
    [
        (np.array([1j]), "complex128"),
        ([1j], "complex128"),
        ("3", "cannot hold"),
        (None, "cannot hold"),
        (np.ma.masked_array([5.0], [True]), "whose mask would be lost"),
    ],
)
def test_what_is_no_real_number_is_not_put_into_a_tensor(value, text):
    x = Tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=text):
        x[:1] = value
    assert x.tolist() == [1, 2]


def test_a_class_of_dtypes_is_a_dtype_as_in_numpy():
    assert Tensor([1.0, 2.0], dtype=type(np.dtype(np.float64))).dtype == np.float64


@pytest.mark.parametrize("x, ord", [(np.ones(3, "f2"), "fro"), (np.empty(0, "f2"), -np.inf)])
def test_the_norm_of_a_half_names_the_tensor_that_was_given(x, ord):
    with pytest.raises(ValueError, match=f"{len(x)},\\) float16"):
        np.linalg.norm(Tensor(x), ord)


def test_a_list_of_complex_numbers_is_refused_and_keeps_no_half_of_them():
    with pytest.raises(TypeError, match="complex128; a Tensor holds real numbers"):
        Tensor(np.ones(2, np.float32)) + [1j, 2]


@pytest.mark.parametrize("rows", [[3, 1], np.array([False, True, True, False]), slice(1, 3)])
@pytest.mark.parametrize("shape", [(4,), (4, 6), (4, 6, 5)])
def test_what_stands_for_adding_to_rows_is_its_equal(shape, rows):
    a, added = np.ones(shape), t(2, *shape[1:])
    with pytest.raises(TypeError) as error:
        a[rows] += added
    text = re.search(r"each row once .* write a = (.*)\.$", str(error.value))[1]
    got = eval(text, {"ta": ta, "a": a, "t": added, "rows": rows})
    a[rows] += added.numpy()
    assert got.requires_grad and np.array_equal(got.numpy(), a)


@pytest.mark.parametrize("kind", [np.array, np.float32, np.float64])
def test_a_number_may_be_an_array_without_axes_as_in_pytorch(kind):
    x, p = t(2, 3), ta.nn.Parameter(np.zeros((2, 2)))
    np.testing.assert_allclose(
        F.layer_norm(x, 3, eps=kind(0.5)).numpy(), F.layer_norm(x, 3, eps=0.5).numpy()
    )
    np.testing.assert_allclose(
        F.rms_norm(x, 3, eps=kind(0.5)).numpy(), F.rms_norm(x, 3, eps=0.5).numpy()
    )
    q = x.reshape(1, 2, 3)
    np.testing.assert_allclose(
        F.scaled_dot_product_attention(q, q, q, scale=kind(0.5)).numpy(),
        F.scaled_dot_product_attention(q, q, q, scale=0.5).numpy(),
    )
    assert isinstance(ta.nn.LayerNorm(3, eps=kind(0.5)).eps, float) and isinstance(
        ta.nn.RMSNorm(3, eps=kind(0.5)).eps, float
    )
    settings = {"label_smoothing": kind(0.5), "ignore_index": np.array(1)}
    assert (
        F.cross_entropy(x, np.array([0, 1]), **settings).item()
        == F.cross_entropy(x[:1], np.array([0]), label_smoothing=0.5).item()
    )
    assert (ta.nn.init.constant_(p, kind(0.5)).numpy() == 0.5).all()
    assert ta.nn.init.calculate_gain("leaky_relu", kind(0.5)) == ta.nn.init.calculate_gain(
        "leaky_relu", 0.5
    )
    for wrong in (np.array([0.5]), np.array(True), "0.5"):
        with pytest.raises(TypeError, match="eps is a number"):
            F.layer_norm(x, 3, eps=wrong)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda m: optim.Adam(m.parameters(), fused=True),
            T,
            r"Adam\(\) has no fused=: leave it out",
        ),
        (
            lambda m: optim.SGD(m.parameters(), 0.1, True),
            V,
            "SGD: momentum must be 0 or more, got True",
        ),
        (lambda m: optim.SGD(m.parameters(), math.nan), V, "got nan$"),
        (
            lambda m: optim.clip_grad_norm_(m.parameters(), 1.0, foreach=True),
            T,
            "has no foreach=: leave it out",
        ),
        (
            lambda m: nn.Parameter(t(2), device="cpu"),
            T,
            r"^Parameter\(\) has no device=: leave it out",
        ),
        (
            lambda m: F.cross_entropy(t(3, 4).argmax(1), np.array([0, 1, 3])),
            V,
            r"a number for each class, \(N, C\): .* before argmax",
        ),
        (lambda m: ta.long, A, r"has no 'long'\. Write np\.int64\.$"),
        (lambda m: nn.Relu, A, "Did you mean 'ReLU'?"),
        (lambda m: m.sav, A, "has no attribute 'sav'[^_]*$"),
        (
            lambda m: m.sum(),
            A,
            r"'Linear' object has no attribute 'sum'\. A Tensor has it: module\(x\)\.sum, if that is meant",
        ),
        (
            lambda m: nn.init.normal_(t(2), generator=0),
            T,
            r"generator is a ta\.random\.Generator, got 0; write ta\.random\.Generator\(seed\)",
        ),
        (
            lambda m: nn.init.trunc_normal_(t(2), generator=np.random.default_rng()),
            T,
            r"got Generator\(PCG64\).*write ta\.random\.Generator",
        ),
        (lambda m: setattr(m, "requires_grad", False), A, r"Write module.requires_grad_\(False\)"),
        (lambda m: nn.Linear(3, 4, device="cpu"), T, r"Linear\(\) has no device=: leave it out"),
        (lambda m: nn.Linear(3, 4, "relu"), T, "Linear: bias is True or False, got 'relu'"),
        (lambda m: nn.MultiheadAttention(8, 2, True), V, "dropout is the probability"),
        (lambda m: nn.Dropout(True), V, r"lies in \[0, 1\], got True"),
        (
            lambda m: F.scaled_dot_product_attention(t(2, 3), t(2, 3), t(2, 3), None, True),
            V,
            "dropout_p is the probability",
        ),
        (
            lambda m: nn.ReLU(t(2, 3)),
            T,
            r"write nn.ReLU\(\)\(x\), .* got Tensor \(2, 3\) float32 as inplace",
        ),
        (lambda m: nn.MSELoss(t(2, 3), t(2, 3)), T, r"write nn.MSELoss\(\)\(x\)"),
        (
            lambda m: F.mse_loss(t(3), t(3), size_average=False),
            T,
            "write reduction='mean', 'sum' or 'none'",
        ),
        (lambda m: F.gelu(t(3), inplace=True), T, "has no inplace=: leave it out"),
        (lambda m: Tensor([1.0], device="cpu"), T, r"Tensor\(\) has no device=: leave it out"),
        (lambda m: divmod(t(3), 2), T, "Write t // n and t % n"),
        (lambda m: 1 << t(3), T, r"t \* 2\*\*n for t << n"),
        (lambda m: t(3) ^ 1, T, r"\^ works on masks"),
        (lambda m: 1 & t(3), T, "& works on masks"),
        (
            lambda m: t(3).__delitem__(0),
            A,
            r"Write np\.delete\(t, index, axis\), which gives a new one",
        ),
        (
            lambda m: require("safetensors") and ta.load(3),
            T,
            r"a path is text such as 'model\.safetensors', or a pathlib\.Path; got 3",
        ),
        (lambda m: require("safetensors") and ta.save({}, None), T, "a path is text .*; got None"),
        (lambda m: exec("with ta.no_grad: pass"), T, r"Write `with no_grad\(\):`, with brackets"),
        (
            lambda m: t(2, 3, rg=False).__setitem__(0, [1, 2]),
            V,
            r"setitem of Tensor \(2, 3\) .*, array \(2,\) .* shape \(3,\)\.$",
        ),
        (
            lambda m: t(2, 3, rg=False).__setitem__(5, 1),
            I,
            r"setitem of Tensor \(2, 3\).* lies in \[-n, n\)",
        ),
        (
            lambda m: m.load_state_dict("model.safetensors"),
            T,
            r"got 'model\.safetensors'\. Write ta\.load\(path\) for a file",
        ),
        (lambda m: m.load_state_dict(m), T, r"got a Linear\. .*other\.state_dict\(\) for a module"),
        (
            lambda m: F.cross_entropy(t(2, 3), np.array([[0], [1]])),
            V,
            r"\(2,\), got \(2, 1\)\. Drop .*: write target\[\.\.\., 0\]",
        ),
        (
            lambda m: F.cross_entropy(np.array([0, 1]), t(2, 3)),
            V,
            r"The scores come first: cross_entropy\(scores, target\)",
        ),
        (lambda m: ta.viz.graph(m), T, r"Write ta\.viz\.graph\(module\(x\), model=module\)"),
        (
            lambda m: F.softmax(t(3), axes=0),
            T,
            r"keyword argument 'axes'\. Did you mean 'axis'\? It is softmax\(x, axis=-1\)\.$",
        ),
        (
            lambda m: F.dropout(t(3), 0.5, train=False),
            T,
            r"'train'\. Did you mean 'training'\? It is dropout\(x, p=0\.5, training=True",
        ),
        (
            lambda m: F.embedding([1], t(3, 2), max_norm=1),
            T,
            r"'max_norm'\. It is embedding\(indices, weight, padding_idx=None\)",
        ),
        (lambda m: F.silu(input=t(3)), T, r"'input'\. It is silu\(x, inplace=False\)"),
        (lambda m: F.layer_norm(t(3), 3, epsilon=1), T, r"'epsilon'\. Did you mean 'eps'\?"),
        (
            lambda m: F.rms_norm(t(3), 3, bias=1),
            T,
            r"'bias'.* It is rms_norm\(x, normalized_shape, weight=None, eps=None\)",
        ),
        (
            lambda m: F.cross_entropy(input=t(1, 3), target=[0]),
            T,
            r"'input'\. It is cross_entropy\(x, target, weight=None",
        ),
        (
            lambda m: F.scaled_dot_product_attention(t(2, 3), t(2, 3), t(2, 3), is_casual=True),
            T,
            r"Did you mean 'is_causal'\?",
        ),
        (
            lambda m: t(3).sum().backward(inputs=[t(3)]),
            T,
            r"backward\(\) has no inputs=: write ta\.grad\(loss, inputs\)",
        ),
        (
            lambda m: t(3).sum().backward(True),
            T,
            r"real numbers as gradient=, got True\. Write retain_graph=True",
        ),
        (
            lambda m: ta.gradcheck(np.exp, t(3), tol=1),
            T,
            r"'tol'.* It is gradcheck\(f, inputs=\(\), \*, eps=1e-06",
        ),
        (
            lambda m: nn.init.constant_(Tensor(np.array([1, 2])), 0.5),
            T,
            r"Tensor \(2,\) int64 has no place for fractions, got 0\.5",
        ),
        (
            lambda m: nn.init.constant_(Tensor(np.array([1, 2])), math.nan),
            T,
            "no place for fractions, got nan",
        ),
        (lambda m: nn.init.constant_(t(2), True), T, "val is a number, got True"),
        (lambda m: nn.init.xavier_uniform_(t(2, 2), True), T, "gain is a number, got True"),
        (
            lambda m: F.cross_entropy(t(1, 3), [0], label_smoothing=True),
            V,
            r"label_smoothing lies in \[0, 1\], got True",
        ),
        (
            lambda m: F.cross_entropy(t(1, 3), [0], ignore_index=True),
            T,
            "ignore_index is one class number, got True",
        ),
        (lambda m: F.causal_mask(True), V, "takes the length of the sequence, .* got True"),
        (lambda m: F.split_heads(t(2, 3), True), V, "cannot be cut into True equal heads"),
    ],
)
def test_what_pytorchs_users_write_is_not_taken_for_something_else(call, error, text):
    with pytest.raises(error, match=text):
        call(nn.Linear(3, 4))


@pytest.mark.parametrize("wrong", ["no", 0.5, 3, np.zeros(1)])
@pytest.mark.parametrize(
    "name, call",
    [
        ("training", lambda wrong: F.dropout(t(3), 0.5, wrong)),
        ("keepdims", lambda wrong: F.logsumexp(t(3), 0, keepdims=wrong)),
        (
            "is_causal",
            lambda wrong: F.scaled_dot_product_attention(
                t(2, 3), t(2, 3), t(2, 3), None, 0.0, wrong
            ),
        ),
        (
            "enable_gqa",
            lambda wrong: F.scaled_dot_product_attention(
                t(1, 2, 3), t(1, 2, 3), t(1, 2, 3), enable_gqa=wrong
            ),
        ),
        (
            "need_weights",
            lambda wrong: F.scaled_dot_product_attention(
                t(2, 3), t(2, 3), t(2, 3), need_weights=wrong
            ),
        ),
        (
            "need_weights",
            lambda wrong: nn.MultiheadAttention(4, 2)(t(3, 4), t(3, 4), t(3, 4), None, wrong),
        ),
        (
            "average_attn_weights",
            lambda wrong: nn.MultiheadAttention(4, 2)(
                t(3, 4), t(3, 4), t(3, 4), average_attn_weights=wrong
            ),
        ),
        ("is_causal", lambda wrong: nn.TransformerEncoderLayer(4, 2)(t(3, 4), is_causal=wrong)),
        ("retain_graph", lambda wrong: (t(3) * 2).sum().backward(None, wrong)),
        ("create_graph", lambda wrong: (t(3) * 2).sum().backward(create_graph=wrong)),
        ("allow_unused", lambda wrong: grad((x := t(3)).sum(), x, allow_unused=wrong)),
        ("set_to_none", lambda wrong: nn.Linear(2, 2).zero_grad(wrong)),
        (
            "strict",
            lambda wrong: nn.Linear(2, 2).load_state_dict(nn.Linear(2, 2).state_dict(), wrong),
        ),
        (
            "raise_exception",
            lambda wrong: ta.gradcheck(np.exp, t(3, dtype=np.float64), raise_exception=wrong),
        ),
        ("fast_mode", lambda wrong: ta.gradcheck(np.exp, t(3, dtype=np.float64), fast_mode=wrong)),
        ("nesterov", lambda wrong: optim.SGD([t(3)], momentum=0.9, nesterov=wrong)),
        ("maximize", lambda wrong: optim.Adam([t(3)], maximize=wrong)),
        ("amsgrad", lambda wrong: optim.Adam([t(3)], amsgrad=wrong)),
        ("error_if_nonfinite", lambda wrong: optim.clip_grad_norm_([t(3)], 1.0, 2.0, wrong)),
    ],
)
def test_a_flag_is_true_or_false_and_no_text_that_would_count_as_true(name, call, wrong):
    with pytest.raises(T, match=f"^\\w+: {name} is True or False, got "):
        call(wrong)
    call(False)
    call(np.bool_(False))


@pytest.mark.parametrize("kind", [np.asarray, Tensor])
@pytest.mark.parametrize(
    "name, call",
    [
        ("attn_mask", lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask)),
        (
            "attn_mask",
            lambda q, mask: nn.MultiheadAttention(4, 2, batch_first=True)(q, q, q, attn_mask=mask),
        ),
        (
            "key_padding_mask",
            lambda q, mask: nn.MultiheadAttention(4, 2, batch_first=True)(
                q, q, q, key_padding_mask=mask[:2]
            ),
        ),
    ],
)
def test_zeros_and_ones_that_are_added_to_the_scores_are_most_likely_a_mask(name, call, kind):
    q, ones = t(2, 3, 4), np.tri(3, dtype=np.float32)
    with pytest.warns(
        UserWarning,
        match=f"this {name} holds zeros and ones of dtype float32, .* Write mask.astype\\(bool\\)",
    ):
        call(q, kind(ones))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mask in (
            np.zeros((3, 3)),
            np.ones((3, 3)),
            ones - 1,
            0.5 * ones,
            np.where(ones, 0, -np.inf),
        ):
            call(q, kind(mask))
        if name == "attn_mask":
            call(q, Tensor(ones, requires_grad=True))  # a bias that is learned


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: nn.Linear(2, 2)(t(3, 2), mask=None), r"it is called as module\(input\)"),
        (
            lambda: nn.MultiheadAttention(4, 2)(t(3, 4)),
            r"it is called as module\(query, key, value, key_padding_mask=None, need_weights=True",
        ),
        (lambda: nn.Sequential(nn.ReLU())(t(3), t(3)), r"it is called as module\(input\)"),
    ],
)
def test_a_module_that_is_called_with_other_arguments_than_it_has_says_how_it_is_called(call, text):
    with pytest.raises(T) as caught:
        call()
    assert any(re.search(text, note) for note in caught.value.__notes__)


def test_where_numbers_are_asked_an_array_without_axes_is_one():
    p = nn.Parameter(np.zeros(2))
    p.grad = np.array([3.0, 4.0])
    optim.clip_grad_norm_([p], np.array(1.0))
    assert abs(np.linalg.norm(p.grad.numpy()) - 1) < 1e-6 and nn.Dropout(np.array(0.5)).p == 0.5
    mask = Tensor(np.array([True, False]))
    assert (True ^ mask).tolist() == [False, True] and (True & mask).tolist() == [True, False]
