"""The adapter for PyTorch."""

import torch
import torch.nn.functional as F

functions = (torch, F)


def tensor(x):
    return torch.tensor(x, requires_grad=True)


def overwrite(t, x):
    with torch.no_grad():
        t.fill_(x)


def where(mask, x, y):
    return torch.where(torch.as_tensor(mask), x, y)


def layer_norm(x, w):
    return F.layer_norm(x, (4,), w)


def rms_norm(x, w):
    return F.rms_norm(x, (4,), w, eps=1e-5)


def embedding(indices, w):
    return F.embedding(torch.as_tensor(indices), w)


def cross_entropy(x, target):
    return F.cross_entropy(x, torch.as_tensor(target))


def attention(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.as_tensor(allowed))


def derivative(f, x):
    return torch.autograd.grad(f(x), x, create_graph=True)[0]
