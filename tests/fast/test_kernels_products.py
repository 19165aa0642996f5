"""Products in pieces are the products, whatever the sizes, and no piece is too large for the kernel it is meant for."""

import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinygrad_attn.fast import threads, tuning
from tinygrad_attn.fast.kernels import products

LENGTHS = st.integers(1, 70)


@contextmanager
def small(cuts):
    """Pieces of at most 6,000 multiplications and blocks of 32 columns, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_cuts", lambda: cuts)
        for name, value in (("PIECE", 6000), ("PIECE_COLUMNS", 32), ("PIECE_ROWS", 2)):
            patch.setattr(tuning, name, value)
        # Smaller layers are not even asked whether they are thin.
        patch.setattr(tuning, "TINY_PRODUCT", 1000)
        products._rows.cache_clear()
        yield
    products._rows.cache_clear()


def numbers(rows, columns, dtype, columns_first=False):
    x = np.random.default_rng(rows * 100 + columns).standard_normal((rows, columns)).astype(dtype)
    return np.asfortranarray(x) if columns_first else x


@given(
    cuts=st.booleans(),
    height=LENGTHS,
    width=LENGTHS,
    shown=LENGTHS,
    depth=st.sampled_from([1, 5, 32, 33, 64]),
    dtype=st.sampled_from(["f4", "f8"]),
    columns_first=st.booleans(),
)
def test_a_product_with_turned_blocks_or_with_their_first_columns(
    cuts, height, width, shown, depth, dtype, columns_first
):
    a, x = numbers(height, depth, dtype, columns_first), numbers(width, depth, dtype)
    for n in (width, min(shown, width)):
        out = np.full((height, n), np.nan, dtype)
        with small(cuts):
            blocks = products.turn(x, products.room(width, depth, x.dtype))
            products.Product(a, blocks, out)()
        assert (len(blocks) > 1) == (cuts and depth >= 32 and width > 32)
        np.testing.assert_allclose(out, a @ x[:n].T, rtol=0, atol=1e-4 if dtype == "f4" else 1e-12)


@given(
    cuts=st.booleans(),
    height=LENGTHS,
    depth=LENGTHS,
    width=st.sampled_from([1, 31, 32, 64]),
    columns_first=st.booleans(),
)
def test_a_product_with_a_matrix(cuts, height, depth, width, columns_first):
    a, b = numbers(height, depth, "f8", columns_first), numbers(depth, width, "f8")
    out = np.full((height, width), np.nan)
    with small(cuts):
        products.Product(a, b, out)()
    np.testing.assert_allclose(out, a @ b, rtol=0, atol=1e-12)


@given(
    cuts=st.booleans(),
    height=LENGTHS,
    width=LENGTHS,
    shown=LENGTHS,
    depth=st.sampled_from([5, 32, 33]),
    turned=st.booleans(),
    pairs=st.sampled_from([(2,), (2, 3)]),
)
def test_pairs_are_multiplied_at_once_and_again_with_what_they_then_hold(
    cuts, height, width, shown, depth, turned, pairs
):
    """Stacks of matrices, written to after they were cut up: as the buffers of a tile are."""
    rng, shown = np.random.default_rng(height), min(shown, width)
    a = np.empty((*pairs, height, depth)) if not turned else np.empty((*pairs, depth, height)).mT
    room = np.full((*pairs, height + 2, shown + 3), np.nan)
    out = room[..., :height, :shown]
    with small(cuts):
        blocks = products.room(width, depth, a.dtype, *pairs)
        product = products.Product(a, blocks, out)
    for _ in range(2):
        a[...], x = rng.standard_normal(a.shape), rng.standard_normal((*pairs, width, depth))
        products.turn(x, blocks)
        product()
        np.testing.assert_allclose(out, a @ x[..., :shown, :].mT, rtol=0, atol=1e-12)
    assert np.isnan(room[..., height:, :]).all() and np.isnan(room[..., shown:]).all()


@given(
    cuts=st.booleans(),
    rows=st.integers(1, 20),
    width=LENGTHS,
    out=LENGTHS,
    bias=st.booleans(),
    dtype=st.sampled_from(["f4", "f8"]),
    columns_first=st.booleans(),
    wants=st.tuples(*[st.booleans()] * 3),
)
@example(
    cuts=True,
    rows=5,
    width=60,
    out=40,
    bias=True,
    dtype="f8",
    columns_first=False,
    wants=(True, True, True),
)
def test_linear_layers_of_few_rows(cuts, rows, width, out, bias, dtype, columns_first, wants):
    x, g, weight = (
        numbers(rows, width, dtype),
        numbers(rows, out, dtype),
        numbers(out, width, dtype, columns_first),
    )
    b = numbers(1, out, dtype)[0] if bias else None
    with small(cuts):
        y = products.linear(x, weight, b)
        found = products.linear_backward(g, x, weight, *wants)
    expected = [
        e if wanted else None
        for e, wanted in zip((g @ weight, g.T @ x, g.sum(0)), wants, strict=True)
    ]
    assert y.dtype == dtype and y.flags.c_contiguous
    for a, e in zip((y, *found), (x @ weight.T + (0 if b is None else b), *expected), strict=True):
        assert a is e is None or np.allclose(a, e, rtol=0, atol=1e-4 if dtype == "f4" else 1e-12)


@pytest.mark.parametrize("depth", [32, 64, 96])
def test_pieces_stay_below_the_limit(monkeypatch, depth):
    """As tiles of attention are multiplied: one multiplication more, and OpenBLAS takes its other kernel for the whole piece."""
    sizes, plain = [], np.matmul

    class Recording:
        def __getattr__(self, name):
            return getattr(np, name)

        def matmul(self, a, b, out):
            sizes.append(a.shape[-2] * a.shape[-1] * b.shape[-1])
            return plain(a, b, out=out)

    monkeypatch.setattr(products, "_cuts", lambda: True)
    products._rows.cache_clear()
    monkeypatch.setattr(products, "np", Recording())
    for high, columns in ((256, 512), (232, 488), (255, 511)):
        tile = np.ones((high, columns), np.float32)
        blocks = products.turn(
            np.ones((columns, depth + 1), np.float32), products.room(columns, depth + 1, tile.dtype)
        )
        products.Product(np.ones((high, depth + 1), np.float32), blocks, tile)()
        products.Product(
            tile, np.ones((columns, depth), np.float32), np.empty((high, depth), np.float32)
        )()
        products.Product(
            tile.T, np.ones((high, depth), np.float32), np.empty((columns, depth), np.float32)
        )()
    products._rows.cache_clear()
    assert len(sizes) > 9 and max(sizes) <= 1_000_000 and np.median(sizes) > 400_000


@pytest.mark.skipif(
    threads.blas_core() not in products.CORES,
    reason="needs OpenBLAS and AVX-512, to play an older processor",
)
def test_the_processor_decides():
    code = "from tinygrad_attn.fast.kernels import products; from tinygrad_attn.fast.threads import blas_core; print(blas_core(), products._cuts())"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, OPENBLAS_CORETYPE="Haswell"),
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == ["Haswell", "False"] and products._cuts()
