"""Both attention kernels against the equation in float64, over shapes, masks, dtypes and memory layouts."""

import numpy as np
import pytest

from tinygrad_attn.fast import threads, tuning
from tinygrad_attn.fast.kernels import attention as A
from tinygrad_attn.fast.kernels import elementwise, products, tiled

SHAPES = [
    ((2, 3), 16, 16, 8, 8),
    ((), 1, 1, 4, 4),
    ((3,), 37, 41, 8, 5),
    ((2, 2), 5, 61, 7, 3),
    ((1, 5), 61, 17, 8, 8),
    ((2,), 1, 33, 4, 4),
    ((2,), 33, 1, 4, 4),
]
MASKS = ["none", "padding", "boolean", "blind rows", "float", "float with -inf", "float over keys"]


@pytest.fixture(
    params=[
        "kept",
        "kept, by e^x",
        "tiled",
        "tiled, by e^x",
        "tiled, in pieces",
        "tiled, with room for some weights",
        "tiled, with room for all",
        "tiled, with room for all, by e^x",
    ]
)
def kernel(request, monkeypatch):
    """One kernel or the other, with blocks so small that tiny inputs have many of them; as on processors of this kind and that."""
    if "some" in request.param:
        forward = tiled.forward
        monkeypatch.setattr(
            tiled,
            "forward",
            lambda q, k, *args: forward(q, k, *args[:-1], q[..., 0].size * k.shape[-2] // 3),
        )
    monkeypatch.setattr(tuning, "TILES_ROOM", 1 << 40 if "room" in request.param else 0)
    by_e = "e^x" in request.param
    monkeypatch.setattr(A, "EXP", np.exp if by_e else np.exp2)
    monkeypatch.setattr(A, "UNIT", 1.0 if by_e else elementwise.LOG2E)
    for name, value in (
        ("KEPT_ALWAYS", 1 << 40 if "kept" in request.param else 0),
        ("KEPT_SCORES", 1 << 40 if "kept" in request.param else 0),
        ("TILE_ROWS", 8),
        ("TILE_COLUMNS", 16),
        ("ATTENTION_BLOCK", 300),
        ("SHARED_ATTENTION", 300),
        ("CAUSAL_STRIP", 5),
        ("PIECE_COLUMNS", 5),
    ):
        monkeypatch.setattr(tuning, name, value)
    small = 3 if "pieces" in request.param else 1 << 20
    monkeypatch.setattr(products, "_rows", lambda height, *_: min(height, small))
    return request.param.partition(",")[0]


def make_mask(kind, lead, t, s, dtype, rng):
    return {
        "none": lambda: None,
        "padding": lambda: rng.random((*lead[:1], *(1,) * (len(lead) - 1), 1, s)) > 0.3,
        "boolean": lambda: rng.random((t, s)) > 0.3,
        "blind rows": lambda: (rng.random((*lead, t, s)) > 0.3) & (np.arange(t) % 2 == 1)[:, None],
        "float": lambda: rng.standard_normal((*lead[-1:], t, s)).astype(dtype),
        "float with -inf": lambda: np.where(
            rng.random((t, s)) > 0.5, rng.standard_normal((t, s)), -np.inf
        ).astype(dtype),
        "float over keys": lambda: rng.standard_normal((1, s)).astype(dtype),
    }[kind]()


def composite(g, q, k, v, mask, causal, scale, keep=1.0):
    """Output and gradients as the formulas say, in float64."""
    g, q, k, v = (x.astype(np.float64) for x in (g, q, k, v))
    t, s = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) * scale
    shape = scores.shape
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(t, s, dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    out = (p * keep) @ v
    ds = p * ((g @ v.swapaxes(-1, -2)) * keep - (g * out).sum(-1, keepdims=True))
    dmask = None
    if mask is not None and mask.dtype != bool:
        lead = len(shape) - mask.ndim
        dmask = ds.sum(axis=tuple(range(lead)))
        dmask = dmask.sum(axis=tuple(i for i, n in enumerate(mask.shape) if n == 1), keepdims=True)
    return (
        out,
        ds @ k * scale,
        ds.swapaxes(-1, -2) @ q * scale,
        (p * keep).swapaxes(-1, -2) @ g,
        dmask,
    )


def check(found, expected, dtype, size=1.0):
    for a, b in zip(found, expected, strict=True):
        if b is not None:
            assert a.dtype == dtype and a.shape == b.shape
            assert np.isfinite(a).all()
            np.testing.assert_allclose(
                a,
                b,
                rtol=0,
                atol=(3e-5 if dtype == np.float32 else 1e-12) * (np.abs(b).max() + size),
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", MASKS)
def test_equals_the_equation(kernel, kind, dtype):
    rng = np.random.default_rng(MASKS.index(kind))
    for lead, t, s, d, dv in SHAPES:
        for causal in (False, True):
            for size in (1, 60):  # 60: unshifted exponentials overflow, so the row maximum is taken
                q, k, v, g = (
                    rng.standard_normal((*lead, *x)).astype(dtype)
                    for x in ((t, d), (s, d), (s, dv), (t, dv))
                )
                q *= size
                mask, scale = make_mask(kind, lead, t, s, dtype, rng), d**-0.5
                with np.errstate(all="raise"):
                    out, saved = A.attention(q, k, v, scale=scale, mask=mask, causal=causal)
                    shape = None if mask is None or mask.dtype == bool else mask.shape
                    found = A.attention_backward(
                        g, out, q, k, v, saved, scale=scale, mask_shape=shape
                    )
                assert isinstance(saved.state, A.Kept if kernel == "kept" else tiled.Tiled)
                check((out, *found), composite(g, q, k, v, mask, causal, scale), dtype, size)


def test_dropout_keeps_what_it_is_told(kernel):
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((2, 3, 19, 8)) for _ in range(4))
    keep = rng.random((2, 3, 19, 19)) > 0.3
    out, saved = A.attention(q, k, v, scale=0.3, causal=True, keep=keep, keep_scale=1.4)
    found = A.attention_backward(g, out, q, k, v, saved, scale=0.3, keep=keep, keep_scale=1.4)
    check((out, *found), composite(g, q, k, v, None, True, 0.3, keep * 1.4), np.float64)


@pytest.mark.parametrize("dv", [5, 8, 11])
@pytest.mark.parametrize("dropout", [False, True])
def test_nothing_is_read_that_was_not_written(kernel, monkeypatch, dropout, dv):
    """Blocks of turned keys may be wider than they are, and of keys and values the shorter ones are filled up: with what?"""

    plain = np.empty

    def full_of_large_numbers(shape, dtype=float):
        new = plain(shape, dtype)
        if new.dtype.kind == "f":
            new[...] = np.finfo(dtype).max
        return new

    monkeypatch.setattr(np, "empty", full_of_large_numbers)
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((2, 14, d)) for d in (8, 8, dv, dv))
    keep, keep_scale = (rng.random((2, 14, 14)) > 0.3, 1 / 0.7) if dropout else (None, 1.0)
    with np.errstate(over="raise", invalid="raise"):
        out, saved = A.attention(q, k, v, scale=0.4, keep=keep, keep_scale=keep_scale)
        found = A.attention_backward(
            g, out, q, k, v, saved, scale=0.4, keep=keep, keep_scale=keep_scale
        )
    check(
        (out, *found),
        composite(g, q, k, v, None, False, 0.4, 1.0 if keep is None else keep / 0.7),
        np.float64,
    )


def test_weights_are_the_softmax(kernel):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 2, 19, 8))
    out, _ = A.attention(
        q, k, np.eye(19)[None].repeat(2, 0), scale=0.3, causal=True, mask=np.arange(19) > 1
    )
    weights = A.attention_weights(q, k, scale=0.3, causal=True, mask=np.arange(19) > 1)
    np.testing.assert_allclose(weights, out, atol=1e-13)
    assert (out[:, :2] == 0).all()  # the first two rows may look only at what is masked


@pytest.mark.parametrize("size", [3e3, 3e4, 3e8])
def test_weights_of_large_scores_add_up_to_one(kernel, size):
    q, k = np.random.default_rng(0).standard_normal((2, 2, 49, 64)).astype(np.float32)
    weights = A.attention_weights(q * np.float32(size), k, scale=1 / 8)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert weights.max() <= 1


def test_reads_strided_views_and_writes_into_them(kernel):
    rng = np.random.default_rng(0)
    b, t, h, d = 2, 21, 3, 4
    packed, g = (
        rng.standard_normal((b, t, 3, h, d)).astype("f"),
        rng.standard_normal((b, t, h, d)).astype("f").swapaxes(1, 2),
    )
    q, k, v = packed.transpose(2, 0, 3, 1, 4)
    into, dpacked = np.full((b, t, h, d), np.nan, "f"), np.full_like(packed, np.nan)
    dq, dk, dv = dpacked.transpose(2, 0, 3, 1, 4)
    out, saved = A.attention(q, k, v, scale=0.5, out=into.swapaxes(1, 2))
    A.attention_backward(g, out, q, k, v, saved, scale=0.5, dq=dq, dk=dk, dv=dv)
    check(
        (into.swapaxes(1, 2), *dpacked.transpose(2, 0, 3, 1, 4)),
        composite(g, q, k, v, None, False, 0.5)[:4],
        np.float32,
    )


@pytest.mark.parametrize("lead, shared", [((3, 5), (3, 1, 13, 4)), ((), (1, 4))])
def test_keys_shared_by_broadcasting(kernel, lead, shared):
    rng = np.random.default_rng(0)
    q, g = rng.standard_normal((2, *lead, 11, 4))
    k, v = (np.broadcast_to(x, (*lead, 13, 4)) for x in rng.standard_normal((2, *shared)))
    out, saved = A.attention(q, k, v, scale=0.5)
    check(
        (out, *A.attention_backward(g, out, q, k, v, saved, scale=0.5)),
        composite(g, q, k, v, None, False, 0.5),
        np.float64,
    )


@pytest.mark.parametrize("t, s, dv", [(0, 3, 4), (3, 0, 4), (3, 5, 0)])
def test_nothing_to_compute(kernel, t, s, dv):
    q, k, v = np.ones((2, t, 4), "f"), np.ones((2, s, 4), "f"), np.ones((2, s, dv), "f")
    out, saved = A.attention(q, k, v, scale=1.0)
    weights = A.attention_weights(q, k, scale=1.0)
    assert (
        out.shape == (2, t, dv)
        and (out == 0).all()
        and weights.shape == (2, t, s)
        and out.dtype == weights.dtype == np.float32
    )
    for x, dx in zip((q, k, v), A.attention_backward(out, out, q, k, v, saved, scale=1.0)):
        assert dx.shape == x.shape and (dx == 0).all()


def test_a_hidden_score_that_overflows_does_no_harm(kernel):
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((1, 20, 4)).astype("f") for _ in range(4))
    k[:, 15:] *= 1e4
    mask = np.arange(20) < 15
    out, saved = A.attention(q, k, v, scale=0.5, mask=mask)
    check(
        (out, *A.attention_backward(g, out, q, k, v, saved, scale=0.5)),
        composite(g, q, k, v, mask, False, 0.5),
        np.float32,
    )


def test_a_hidden_score_that_is_no_number_does_no_harm(kernel):
    """As inf - inf, which products of finite numbers as large as float32 goes may give as well."""
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((1, 20, 4)).astype("f") for _ in range(4))
    k[:, 7] = np.inf, -np.inf, np.inf, -np.inf
    mask = np.arange(20) != 7
    with np.errstate(invalid="ignore"):
        out, saved = A.attention(q, k, v, scale=0.5, mask=mask)
        _, dk, dv, _ = A.attention_backward(g, out, q, k, v, saved, scale=0.5)
        expected = composite(g, q, k, v, mask, False, 0.5)
    check((out, dk, dv), (expected[0], *expected[2:4]), np.float32)


def test_weights_beside_a_hidden_score_that_is_no_number_give_no_warning(kernel):
    q, k = np.random.default_rng(0).standard_normal((2, 1, 20, 4)).astype("f")
    k[:, 7] = np.inf, -np.inf, np.inf, -np.inf
    with np.errstate(all="raise"):
        out, _ = A.attention(q, k, np.eye(20, dtype="f")[None], scale=0.5, mask=np.arange(20) != 7)
        weights = A.attention_weights(q, k, scale=0.5, mask=np.arange(20) != 7)
    np.testing.assert_allclose(weights, out, atol=1e-6)


def test_what_all_keys_share_drops_out_of_the_gradient(kernel):
    """Over the keys the gradients of the scores sum to 0; not so if backward rounds scores of 1e3 otherwise than forward."""
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((2, 40, 32)).astype("f") for _ in range(4))
    q[0] *= 1e-4  # of small scores no maximum is subtracted
    k += 1000
    out, saved = A.attention(q, k, v, scale=32**-0.5)
    found = out, *A.attention_backward(g, out, q, k, v, saved, scale=32**-0.5)[:3]
    for a, b in zip(found, composite(g, q, k, v, None, False, 32**-0.5)):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=3e-3 * np.abs(y).max())


def test_threads_change_rounding_at_most_and_results_repeat(kernel):
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((1, 3, 70, 8)).astype("f") for _ in range(4))
    before = threads.get_num_threads()

    def run(n):
        threads.set_num_threads(n)
        out, saved = A.attention(q, k, v, scale=0.3, causal=True)
        return out, *A.attention_backward(g, out, q, k, v, saved, scale=0.3)[:3]

    try:
        one, two, again = run(1), run(2), run(2)
    finally:
        threads.set_num_threads(before)
    for a, b, c in zip(one, two, again, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_array_equal(b, c)


def test_the_choice_of_kernel_bounds_what_is_kept():
    q = np.ones((1, 8, 1024, 4), "f")
    assert isinstance(A.attention(q, q, q, scale=1.0)[1].state, tiled.Tiled)
    assert isinstance(
        A.attention(q[:, :, :128], q[:, :, :128], q[:, :, :128], scale=1.0)[1].state, A.Kept
    )
    *state, kept = A.attention(q, q, q, scale=1.0)[1].state
    assert sum(x.nbytes for x in state) < 8 * 1024 * 8
    assert 0 < sum(x.nbytes for x in kept.values()) <= tuning.TILES_ROOM - 4 * q.nbytes
    *state, kept = A.attention(q, q, q, scale=1.0, recorded=False)[1].state
    assert sum(x.nbytes for x in state) < 8 * 1024 * 8 and not kept


@pytest.mark.parametrize(
    "room, kept",
    [
        (0, []),
        (50, []),
        (127, [(0, 16)]),
        (128, [(0, 0)]),
        (300, [(0, 0), (0, 16), (16, 16)]),
        (600, [(0, 0), (0, 16), (8, 0), (8, 16), (16, 0), (16, 16)]),
    ],
)
def test_tiles_are_kept_while_there_is_room(monkeypatch, room, kept):
    """20 rows and 30 columns make tiles of 8, 8 and 4 rows and 16 and 14 columns."""
    monkeypatch.setattr(tuning, "TILE_ROWS", 8)
    monkeypatch.setattr(tuning, "TILE_COLUMNS", 16)
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((2, n, 8)) for n in (20, 30, 30, 20))
    out, mask = np.empty_like(q), A.Mask(None, False, (2, 20, 30), q.dtype)
    state = tiled.forward(q, k, v, mask, 0.5, None, 1.0, out, 2 * room)
    assert sorted(state.kept) == [((head,), *at) for head in (0, 1) for at in kept]
    for _ in range(2):  # a retained graph goes backward again
        found = A.attention_backward(g, out, q, k, v, A.Saved(state, mask), scale=0.5)
        check((out, *found), composite(g, q, k, v, None, False, 0.5), np.float64)


@pytest.mark.parametrize(
    "heads, length, recorded, room",
    [
        (8, 4096, True, 0),
        (8, 8192, True, 0),
        (8, 1024, True, 6 << 20),
        (1, 4096, True, 7 << 20),
        (8, 1024, False, 0),
    ],
)
def test_weights_take_what_results_and_gradients_leave(monkeypatch, heads, length, recorded, room):
    q = np.broadcast_to(np.float32(0), (heads, length, 64))
    monkeypatch.setattr(tiled, "forward", lambda *args: args[-1])
    assert A.attention(q, q, q, scale=1.0, recorded=recorded)[1].state == room


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (4, 1, 6), (7, 2)])
@pytest.mark.parametrize("most", [1, 2, 4, 12, 1000])
def test_blocks_cover_every_item_once(lead, most):
    seen = np.zeros(lead, int)
    for at in A.blocks(lead, most):
        assert seen[at].size <= most
        seen[at] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(
    "heads, rows, columns, causal, expected",
    [
        (
            4096,
            64,
            64,
            False,
            A.Kept,
        ),  # short: however many heads there are, tiles would take longer
        (512, 362, 362, False, A.Kept),
        (512, 363, 363, False, tiled.Tiled),
        (64, 363, 363, False, A.Kept),
        (8, 724, 724, False, A.Kept),
        (8, 725, 725, False, tiled.Tiled),
        (8, 961, 961, True, A.Kept),
        (8, 962, 962, True, tiled.Tiled),  # half of the scores and half a strip
        (512, 1, 4096, True, A.Kept),  # one token more, with a cache
    ],
)
def test_which_kernel_runs(heads, rows, columns, causal, expected):
    q, k = (np.broadcast_to(np.float32(0), (heads, n, 1)) for n in (rows, columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(A, "keep_weights", lambda *_: A.Kept)
        patch.setattr(tiled, "forward", lambda *_: tiled.Tiled)
        out, saved = A.attention(q, k, k, scale=1.0, causal=causal)
    assert saved.state is expected


@pytest.mark.parametrize(
    "batch, heads, length, depth, projected, expected",
    [
        (
            1,
            4,
            256,
            16,
            True,
            False,
        ),  # one sequence: its projections are left to the matrix library's threads
        (2, 8, 190, 8, True, False),
        (2, 8, 192, 8, True, True),  # 380 rows in all, and 384
        (1, 4, 256, 8, True, True),  # so narrow that the library's threads do not run
        (1, 4, 256, 16, False, True),  # heads that no projection has made
        (1, 1, 256, 64, True, False),
    ],
)  # few scores
def test_heads_are_shared_out_unless_the_matrix_library_is_at_work(
    batch, heads, length, depth, projected, expected
):
    shape = (batch, length, heads, depth) if projected else (batch, heads, length, depth)
    q = np.zeros(shape, np.float32)
    q = q.swapaxes(1, 2) if projected else q
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(2)
        assert A._cut(q, q, causal=False).shared is expected
        threads.set_num_threads(1)
        assert not A._cut(q, q, causal=False).shared
    finally:
        threads.set_num_threads(before)
