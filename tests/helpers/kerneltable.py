"""Kernels with a backward pass by hand, in torch, and three mistakes for each; plain references in NumPy.

A kernel is `forward(*inputs, bug) -> (y, saved)` and `backward(saved, g, bug) -> gradients`. It computes in float32
(in float64 if the inputs are float64), and stores its results in the dtype of its inputs.
"""

import numpy as np
from support import require

torch = require("torch")

rng = np.random.default_rng(11)
normal = lambda *shape: rng.standard_normal(shape)


def up(t):
    return t if t.dtype == torch.float64 else t.float()


def as_contiguous(g):
    """What a kernel reads that takes strides for granted."""
    strides = [int(np.prod(g.shape[k + 1 :])) for k in range(g.ndim)]
    return torch.as_strided(g, g.shape, strides, g.storage_offset())


def one_by_one(t, dtype):
    """The sum over axis 0, accumulated in a dtype."""
    total = torch.zeros(t.shape[1:], dtype=dtype)
    for row in t:
        total = total + row.to(dtype)
    return total


# ---- linear with bias


def linear(x, w, b, bug):
    return (up(x) @ up(w).T + up(b)).to(x.dtype), (x, w)


def linear_back(saved, g, bug):
    x, w = saved
    g = up(as_contiguous(g) if bug == "layout" else g)
    dw = g.T @ up(x)
    db = g.mean(0) if bug == "mean for sum" else g.sum(0)
    if bug == "last row left out":
        dw = g[:-1].T @ up(x)[:-1]
    return (g @ up(w)).to(x.dtype), dw.to(w.dtype), db.to(w.dtype)


# ---- L2 normalisation


def unit(x, bug):
    n = (up(x) ** 2).sum(-1, keepdim=True).add(1e-6).sqrt()
    return (up(x) / n).to(x.dtype), (x, n)


def unit_back(saved, g, bug):
    x, n = saved
    u = up(x) / n
    if bug == "eps outside the root":
        n = (up(x) ** 2).sum(-1, keepdim=True).sqrt() + 1e-3
    along = u * (up(g) * u).sum(-1, keepdim=True)
    dx = (up(g) - (0 if bug == "term missing" else along)) / n
    if bug == "sign":
        dx = (up(g) + along) / n
    return (dx.to(x.dtype),)


# ---- log-softmax


def log_softmax(x, bug):
    y = torch.log_softmax(up(x), -1)
    return y.to(x.dtype), (y, x.dtype)


def log_softmax_back(saved, g, bug):
    y, dtype = saved
    total = up(g).sum(-1, keepdim=True)
    if bug == "y for exp(y)":
        return ((up(g) - y * total).to(dtype),)
    if bug == "sum term missing":
        return (g.to(dtype),)
    if bug == "sum of a block":
        total = up(g)[..., : g.shape[-1] // 8 * 8].sum(-1, keepdim=True)
    return ((up(g) - y.exp() * total).to(dtype),)


# ---- binary cross-entropy of logits, a mean


def bce(x, t, bug):
    v = up(x)
    y = (torch.nn.functional.softplus(v) - v * up(t)).mean()
    return y.to(x.dtype), (x, t)


def bce_back(saved, g, bug):
    x, t = saved
    d = torch.sigmoid(up(x)) - up(t)
    scale = 1 if bug == "no 1/N" else 1 / x.numel()
    dx = d * scale * (1 if bug == "g ignored" else up(g))
    if bug == "targets forgotten":
        dx = torch.sigmoid(up(x)) * scale * up(g)
    return dx.to(x.dtype), (-up(x) * up(g) / x.numel()).to(t.dtype)


# ---- mish: x tanh(softplus(x))


def mish(x, bug):
    v = up(x)
    return (v * torch.tanh(torch.nn.functional.softplus(v))).to(x.dtype), (x,)


def mish_back(saved, g, bug):
    v = up(saved[0])
    t, s = torch.tanh(torch.nn.functional.softplus(v)), torch.sigmoid(v)
    d = t + v * s * (1 - (t if bug == "(1 - t)" else t * t))
    if bug == "product rule":
        d = t
    dx = up(g) * d
    if bug == "threshold":
        dx = torch.where(dx.abs() < 1e-2, torch.zeros_like(dx), dx)
    return (dx.to(saved[0].dtype),)


# ---- a recurrence h_t = a h_(t-1) + x_t over the first axis


def scan(x, a, bug):
    rows, h = [], torch.zeros(x.shape[1:], dtype=up(x).dtype)
    for row in up(x):
        h = up(a) * h + row
        rows.append(h)
    h = torch.stack(rows) if rows else up(x)
    return h.to(x.dtype), (h, a, x.dtype)


def scan_back(saved, g, bug):
    h, a, dtype = saved
    d, da, rows = torch.zeros_like(h[:1]).sum(0), torch.zeros_like(up(a)), []
    for t in range(len(h))[::-1]:
        if bug == "carry lost" and t % 16 == 15:
            d = torch.zeros_like(d)
        d = up(g)[t] + (d if bug == "decay forgotten" else up(a) * d)
        before = h[t] if bug == "state off by one" else h[t - 1] if t else torch.zeros_like(d)
        da = da + d * before
        rows.insert(0, d)
    dx = torch.stack(rows) if rows else torch.zeros_like(h)
    return dx.to(dtype), da.to(a.dtype)


# ---- row maximum minus mean


def peak(x, bug):
    y, at = up(x).max(-1)
    return (y - up(x).mean(-1)).to(x.dtype), (x, at)


def peak_back(saved, g, bug):
    x, at = saved
    hot = torch.nn.functional.one_hot(at, x.shape[-1]).to(up(x).dtype)
    if bug == "to all":
        hot = torch.ones_like(hot)
    if bug == "index off by one":
        hot = hot.roll(1, -1)
    mean = 0 if bug == "mean term missing" else 1 / x.shape[-1]
    return (((hot - mean) * up(g)[..., None]).to(x.dtype),)


# ---- a bilinear form x_i w_ij y_j


def bilinear(x, w, z, bug):
    return torch.einsum("bi,ij,bj->b", up(x), up(w), up(z)).to(x.dtype), (x, w, z)


def bilinear_back(saved, g, bug):
    x, w, z = map(up, saved)
    g = up(g)[:, None]
    right = w if bug == "w not transposed" else w.T
    dw = (g * x).T @ z
    if bug == "dw transposed":
        dw = dw.T
    if bug == "low sums":
        dw = one_by_one(g[..., None] * x[:, :, None] * z[:, None], saved[0].dtype)
    dz = g * (x @ w)
    if bug == "g twice":
        dz = g * dz
    return tuple(d.to(s.dtype) for d, s in zip((g * (z @ right), dw, dz), saved))


# ---- group norm without weights: x (N, G, C)


def group_norm(x, w, bug):
    v = up(x)
    c = v - v.mean((1, 2), keepdim=True)
    r = torch.rsqrt((c * c).mean((1, 2), keepdim=True) + 1e-5)
    return (c * r * up(w)).to(x.dtype), (x, w, r)


def group_norm_back(saved, g, bug):
    x, w, r = saved
    v, axes = up(x), ((2,) if bug == "one axis" else (1, 2))
    h = (v - v.mean((1, 2), keepdim=True)) * r
    gw = up(g) * up(w)
    mean = lambda t: t.mean(axes, keepdim=True)
    dx = r * (gw - mean(gw) - h * mean(gw * h))
    if bug == "w outside the mean":
        dx = r * up(w) * (up(g) - mean(up(g)) - h * mean(up(g) * h))
    dw = (up(g) * h).sum((0, 1))
    if bug == "dw by one row":
        dw = (up(g) * h)[0].sum(0)
    return dx.to(x.dtype), dw.to(w.dtype)


# ---- pick elements of each row


def pick(x, i, bug):
    return x.gather(1, i), (i, x)


def pick_back(saved, g, bug):
    i, x = saved
    dx = torch.zeros(x.shape, dtype=up(x).dtype)
    if bug == "overwrites":
        dx = dx.scatter(1, i, up(g))
    elif bug == "neighbour":
        dx = dx.scatter_add(1, (i + 1).clamp(max=x.shape[1] - 1), up(g))
    else:
        dx = dx.scatter_add(1, i, up(g))
    if bug == "changes g":
        g.zero_()
    return dx.to(x.dtype), None


# ---- PReLU, one slope for each channel


def prelu(x, a, bug):
    return torch.where(x > 0, up(x), up(a) * up(x)).to(x.dtype), (x, a)


def prelu_back(saved, g, bug):
    x, a = map(up, saved)
    g = up(g)
    dx = g * torch.where(x > 0, torch.ones_like(a), torch.ones_like(a) if bug == "branch" else a)
    da = (g * x * (1 if bug == "mask forgotten" else x <= 0)).sum(0)
    if bug == "low sums":
        da = one_by_one(g * x * (x <= 0), saved[0].dtype)
    return dx.to(saved[0].dtype), da.to(saved[1].dtype)


# ---- cosine scores q k^T / sqrt(d), causal, then softmax


def scores(q, k, bug):
    s = up(q) @ up(k).mT / q.shape[-1] ** 0.5
    mask = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    p = torch.softmax(s.masked_fill(mask, -1e30), -1)
    return p.to(q.dtype), (q, k, p)


def scores_back(saved, g, bug):
    q, k, p = saved
    ds = p * (up(g) - (up(g) * p).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    if bug == "sum over queries":
        ds = p * (up(g) - (up(g) * p).sum(-2, keepdim=True)) / q.shape[-1] ** 0.5
    dq, dk = ds @ up(k), ds.mT @ up(q)
    if bug == "dk not transposed":
        dk = ds @ up(q)
    if bug == "scale twice":
        dq = dq / q.shape[-1] ** 0.5
    return dq.to(q.dtype), dk.to(k.dtype)


# ---- a plain reference for each, on NumPy arrays


def plain_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def plain_scan(x, a):
    rows, h = [], 0.0
    for t in range(x.shape[0]):
        h = a * h + x[t]
        rows.append(h)
    return np.stack(rows)


def plain_group_norm(x, w):
    c = x - x.mean((1, 2), keepdims=True)
    return c / np.sqrt((c * c).mean((1, 2), keepdims=True) + 1e-5) * w


def plain_mish(x):
    return x * np.tanh(np.logaddexp(0, x))


def plain_scores(q, k):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    return plain_softmax(np.where(np.triu(np.ones(s.shape[-2:]), 1) > 0, -1e30, s))


KERNELS = {  # forward, backward, plain, inputs, {mistake: words of the diagnosis, one of which suffices}
    "linear": (linear, linear_back, lambda x, w, b: x @ w.T + b, [normal(8, 12), normal(6, 12), normal(6)], {
        "layout": "memory layout", "mean for sum": "times what it should be", "last row left out": "missed use"}),
    "unit": (unit, unit_back, lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), [normal(6, 16)], {
        "eps outside the root": "constant", "term missing": "is missing", "sign": "of the wrong sign"}),
    "log-softmax": (log_softmax, log_softmax_back, lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)), [normal(6, 16)], {
        "y for exp(y)": "VJP|missing sum|wrong", "sum term missing": "is missing", "sum of a block": "multiple of"}),
    "bce": (bce, bce_back, lambda x, t: (np.logaddexp(0, x) - x * t).mean(), [normal(6, 8), rng.random((6, 8))], {
        "no 1/N": "times what it should be", "g ignored": "ignored", "targets forgotten": "VJP|wrong"}),
    "mish": (mish, mish_back, plain_mish, [normal(8, 16)], {
        "(1 - t)": "VJP|wrong", "product rule": "is missing", "threshold": "small gradients|not linear"}),
    "scan": (scan, scan_back, plain_scan, [normal(12, 6), rng.random(6)], {
        "carry lost": "length", "decay forgotten": "VJP|missed|wrong|operand", "state off by one": "VJP|shift|wrong|mask"}),
    "peak": (peak, peak_back, lambda x: x.max(-1) - x.mean(-1), [normal(8, 16)], {
        "to all": "VJP|mask|missing|wrong", "index off by one": "shifted|VJP|mask", "mean term missing": "is missing"}),
    "bilinear": (bilinear, bilinear_back, lambda x, w, z: (x @ w * z).sum(-1), [normal(6, 8), normal(8, 8), normal(6, 8)], {
        "w not transposed": "transposed", "dw transposed": "transposed|wrong axis", "low sums": "precision", "g twice": "incoming gradient"}),
    "group norm": (group_norm, group_norm_back, plain_group_norm, [normal(4, 3, 8), 1 + normal(8) / 3], {
        "one axis": "axis|axes|missing", "w outside the mean": "operand misplaced|missing sum", "dw by one row": "missed use"}),
    "pick": (pick, pick_back, lambda x, i: np.take_along_axis(x, i, 1), [normal(5, 9), rng.integers(0, 9, (5, 12))], {
        "overwrites": "missed use", "neighbour": "shifted|mask", "changes g": "changes"}),
    "prelu": (prelu, prelu_back, lambda x, a: np.where(x > 0, x, a * x), [normal(12, 8), rng.random(8)], {
        "branch": "VJP|some|mask|wrong", "mask forgotten": "mask|VJP|some", "low sums": "precision"}),
    "scores": (scores, scores_back, plain_scores, [normal(2, 9, 8), normal(2, 9, 8)], {
        "sum over queries": "axis|missing|VJP", "dk not transposed": "transposed|VJP|wrong", "scale twice": "constant factor"}),
}  # fmt: skip


def tensors(inputs, dtype):
    """The inputs as torch tensors."""
    return [
        torch.as_tensor(x).to(dtype) if x.dtype.kind == "f" else torch.as_tensor(x) for x in inputs
    ]


def pair(name, bug=None):
    """The kernel as vjp=(forward, backward)."""
    forward, backward, *_ = KERNELS[name]
    return lambda *xs: forward(*xs, bug), lambda saved, g: backward(saved, g, bug)
