"""A mask for `nn` (True = blocked) is never taken for one of `F`'s (True = may look)."""

import copy
import pickle

import numpy as np
import pytest

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import Tensor

BLOCKED = {
    "causal": lambda: F.causal_mask(4),
    "padding": lambda: F.padding_mask([3, 4], 4)[:, None],
    "a part": lambda: F.causal_mask(6)[1:5, :4],
    "either": lambda: F.causal_mask(4) | np.eye(4, dtype=bool),
    "logical_or": lambda: np.logical_or(F.causal_mask(4), False),
    "repeated": lambda: np.repeat(F.padding_mask([3], 4), 4, axis=0),
    "stacked": lambda: np.stack([F.causal_mask(4)] * 2),
    "joined": lambda: np.concatenate([F.causal_mask(4)[:2], F.causal_mask(4)[2:]]),
    "copied": lambda: copy.deepcopy(F.causal_mask(4)),
    "pickled": lambda: pickle.loads(pickle.dumps(F.causal_mask(4))),
    "reshaped": lambda: F.causal_mask(4).reshape(1, 4, 4),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_a_mask_of_blocked_keys_is_not_taken_for_one_of_open_keys(name):
    mask, x = BLOCKED[name](), np.random.default_rng(0).standard_normal((2, 4, 8))
    for call in (
        lambda: F.scaled_dot_product_attention(x, x, x, mask),
        lambda: F.scaled_dot_product_attention(x, x, x, attn_mask=mask, need_weights=True),
        lambda: ta.viz.attention_html(x, x, x, mask),
    ):
        with pytest.raises(ValueError, match="True where a key is blocked. Write ~mask"):
            call()
    out, weights = F.scaled_dot_product_attention(x, x, x, ~mask, need_weights=True)
    blocked = np.broadcast_to(np.asarray(mask), weights.shape)
    assert (weights[blocked] == 0).all() and (weights[~blocked] > 0).all()
    assert type(~mask) is np.ndarray and ta.viz.attention_html(x, x, x, ~mask)


def test_what_else_is_made_of_a_mask_is_a_plain_array():
    mask = F.causal_mask(3)
    for made in (
        lambda m: ~m,
        lambda m: np.logical_not(m),
        lambda m: m == np.eye(3, dtype=bool),
        lambda m: m ^ True,
        lambda m: m * 2,
        lambda m: np.where(m, 1.0, 0.0),
        lambda m: m.sum(axis=0),
        lambda m: np.all(m, axis=1),
        lambda m: np.array(m),
    ):
        got, wanted = made(mask), made(np.array(mask))
        assert type(got) is np.ndarray and got.dtype == wanted.dtype and np.array_equal(got, wanted)


def test_a_mask_beside_a_tensor_is_as_any_array():
    mask, t = F.causal_mask(3), Tensor(np.ones((3, 3)), requires_grad=True)
    for y in (np.where(mask, 0.0, t), t * ~mask, ~mask * t, np.multiply(~mask, t)):
        assert isinstance(y, Tensor) and y.sum().item() == 6
    assert (mask * t).sum().item() == 3 and t[mask].shape == (3,)
    assert isinstance(mask.any(), np.bool_) and bool(mask[0, 1])
    mask |= np.eye(3, dtype=bool)
    with pytest.raises(ValueError, match="Write ~mask"):
        F.scaled_dot_product_attention(t, t, t, mask)


@pytest.mark.parametrize("blocked", ["mask", "float mask", "causal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 40])
def test_whatever_finite_numbers_a_blocked_key_holds_nothing_depends_on_them(blocked, dtype, size):
    r = np.random.default_rng(0)
    q, k, v = (r.standard_normal((2, n, 8)).astype(dtype) for n in (size, size + 1, size + 1))
    open_keys = np.arange(size + 1) < size  # the last key is blocked for all
    masks = {
        "mask": [open_keys],
        "float mask": [np.where(open_keys, 0, -np.inf).astype(dtype)],
        "causal": [None, 0.0, True],  # of S = T + 1 keys the last one is never looked at
    }[blocked]
    found = []
    for number in (0.0, 1e4, np.finfo(dtype).max / 1e6):
        k[:, size], v[:, size] = number, -number
        tensors = [Tensor(x, requires_grad=True) for x in (q, k, v)]
        y = F.scaled_dot_product_attention(*tensors, *masks)
        (y * y).sum().backward()
        found.append([y.numpy(), *(t.grad.numpy() for t in tensors)])
        assert not found[-1][2][:, size].any() and not found[-1][3][:, size].any()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            rounding = 100 * np.finfo(dtype).eps  # the order of sums may be another
            np.testing.assert_allclose(other, one, rtol=rounding, atol=rounding)
