"""Attention in memory that grows with T and not with T x S: one tile of scores at a time, and not
all of them kept.

Forward walks over tiles of rows x columns scores, adds each tile's share to the output and to the
row sums, and keeps only the logarithm of those sums (lse, one number a row; beside it the maximum,
where one was needed). Backward computes each tile of weights again, exp(q k^T - lse): that costs
one more product, and saves the memory and the traffic of the whole matrix. The first tiles of each
head are kept for it after all, as many as there is room for: a fixed number, which counts in short
sequences. Subtracting lse, and subtracting rowsum(g * out) from g v^T, both happen inside the
products, by one column more: [q, -lse] [k, 1]^T. With a causal mask the tiles above the diagonal
are never visited, which halves the work. The products are cut into pieces (see `pieces`), for which
what stands on the right is copied to lie close together.

While one thread runs Python another one waits, and falls asleep, which takes longer than the wait.
So what can be prepared is prepared once: the buffers, the views of them for a tile of some shape,
and the products between these. (Rabe & Staats 2021; Dao et al. 2022.)
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from ..threads import get_num_threads, tasks
from .memory import empty, empty_rows
from .pieces import Product, room, turn
from .scores import QUIET, Mask, accumulate, in_range, ones, row_maximum, scaled, transposed

ROWS, COLUMNS = (
    256,
    512,
)  # COLUMNS is a multiple of ROWS, so the diagonal meets a tile of rows in one tile only


class Tiled(NamedTuple):
    """What backward needs: log(sum(exp(scores - maximum))) and maximum of each row, and which tiles
    of rows needed the maximum.

    They are not joined into one number: beside a maximum of -1e9, from a row blocked by a finite
    mask, the logarithm would be lost.
    """

    lse: ndarray  # (..., T), 0 for a row that sees nothing
    maximum: ndarray  # (..., T), 0 where it was not needed; (..., 0) if it was needed nowhere
    shifted: ndarray  # (..., number of row tiles), bool
    kept: dict[
        tuple[tuple[int, ...], int, int], ndarray
    ]  # by head, first row and first column: a tile of exp(scores), rows x columns


def _shares(heads: int, tiles: int) -> int:
    """How many tasks to cut each head into, so that no thread is idle where heads are few."""
    threads = get_num_threads()
    return 1 if heads >= 2 * threads or heads % threads == 0 else min(threads, tiles)


def _column_tiles(rows: slice, columns: int, causal: bool) -> list[slice]:
    end = min(columns, rows.stop) if causal else columns
    return [slice(j, min(j + COLUMNS, end)) for j in range(0, end, COLUMNS)]


class _Forward(dict[tuple[int, int, int], tuple[ndarray, Product, Product]]):
    """The buffers in which one thread goes forward, and by (rows, first column, end): the tile, and
    the products into and out of it.
    """

    def __init__(self, depth: int, columns: int, depth_v: int, dtype: np.dtype):
        self.turned_keys = [
            room(min(COLUMNS, columns - j), depth, dtype) for j in range(0, columns, COLUMNS)
        ]
        self.value_rows = empty_rows((columns, depth_v), dtype)
        self.scores = empty(ROWS * COLUMNS, dtype)
        self.queries, self.shares = empty((ROWS, depth), dtype), empty((ROWS, depth_v), dtype)

    def load(self, k: ndarray, v: ndarray) -> None:
        for n, blocks in enumerate(self.turned_keys):
            turn(k[n * COLUMNS : (n + 1) * COLUMNS], blocks)
        self.value_rows[:] = v

    def __missing__(self, shape: tuple[int, int, int]) -> tuple[ndarray, Product, Product]:
        height, start, stop = shape
        tile = _tile(self.scores, height, stop - start)
        self[shape] = (
            tile,
            Product(self.queries[:height], self.turned_keys[start // COLUMNS], tile),
            Product(tile, self.value_rows[start:stop], self.shares[:height]),
        )
        return self[shape]


@np.errstate(**QUIET)
def forward(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    mask: Mask,
    scale: float,
    keep: ndarray | None,
    keep_scale: float,
    out: ndarray,
    room: int = 0,
) -> Tiled:
    """out <- attention; q (..., T, D), k (..., S, D), v (..., S, Dv), out (..., T, Dv); so many
    weights may be kept.
    """
    *lead, length, depth = q.shape
    dtype, (width, depth_v) = q.dtype, v.shape[-2:]
    row_tiles = [slice(i, min(i + ROWS, length)) for i in range(0, length, ROWS)]
    lse, maxima = np.empty(q.shape[:-1], dtype), np.zeros(q.shape[:-1], dtype)
    shifted = np.zeros((*lead, len(row_tiles)), bool)
    heads = list(np.ndindex(*lead))
    shares = _shares(len(heads), len(row_tiles))
    rooms = np.empty((len(heads) * shares, room // (len(heads) * shares)), dtype)
    kept: dict[tuple[tuple[int, ...], int, int], ndarray] = {}
    spare: list[_Forward] = []

    def run(n: int) -> None:
        at, share = heads[n // shares], n % shares
        space: _Forward = _taken(spare, lambda: _Forward(depth, width, depth_v, dtype))
        space.load(k[at], v[at])
        left = rooms[n]

        def scores(rows: slice, columns: slice) -> ndarray:
            tile, product, _ = space[rows.stop - rows.start, columns.start, columns.stop]
            product()
            mask.add(tile, at, rows, columns)
            return tile

        def add_share(rows: slice, columns: slice, result: ndarray) -> None:
            tile, _, product = space[len(result), columns.start, columns.stop]
            if keep is not None:
                tile *= keep[(*at, rows, columns)]
            product()
            result += space.shares[: len(result)]

        for index in range(share, len(row_tiles), shares):
            rows = row_tiles[index]
            tiles = [
                mask.seen(at, rows, columns) for columns in _column_tiles(rows, width, mask.causal)
            ]
            cut = [columns for columns in tiles if columns.stop > columns.start]
            queries = q[at][rows]
            height = len(queries)
            np.multiply(queries, dtype.type(scale * mask.unit), out=space.queries[:height])
            result = np.zeros((height, depth_v), dtype)
            total, unmasked = np.zeros((2, height), dtype)
            for columns in cut:
                tile = scores(rows, columns)
                mask.exp(tile, out=tile)
                one = ones(COLUMNS, dtype)[: tile.shape[1]]
                if mask.multiplies:
                    np.maximum(unmasked, tile.dot(one), out=unmasked)
                    mask.multiply(tile, at, rows, columns)
                total += tile.dot(one)
                if tile.size <= left.size:
                    copy = kept[at, rows.start, columns.start] = _tile(left, *tile.shape)
                    copy[:], left = tile, left[tile.size :]
                add_share(rows, columns, result)
            if not in_range(total, np.maximum(unmasked, total)):
                shifted[at][index] = True
                np.multiply(queries, dtype.type(scale), out=space.queries[:height])
                top = np.full((height, 1), -np.inf, dtype)
                for columns in cut:
                    tile = scores(rows, columns)
                    mask.hide(tile, at, rows, columns)
                    np.maximum(top, tile.max(-1, keepdims=True), out=top)
                maximum = maxima[at][rows] = row_maximum(top)[:, 0]
                result[:], total[:] = 0, 0
                for columns in cut:
                    tile = scores(rows, columns)
                    mask.hide(tile, at, rows, columns)
                    tile -= maximum[:, None]
                    np.exp(tile, out=tile)
                    total += tile.sum(-1)
                    add_share(rows, columns, result)
                total[total == 0] = 1  # a row that sees nothing: 0 / 1, and an lse of 0
            lse[at][rows] = np.log(total)
            np.multiply(result, (dtype.type(keep_scale) / total)[:, None], out=out[at][rows])
        spare.append(space)

    tasks(run, len(heads) * shares)
    return Tiled(lse, maxima if shifted.any() else maxima[..., :0].copy(), shifted, kept)


def _tile(buffer: ndarray, *shape: int) -> ndarray:
    """A contiguous array of this shape at the start of a flat buffer: exponentials are slow where
    rows have gaps.
    """
    return buffer[: math.prod(shape)].reshape(shape)


def _taken(spare: list, make: Any) -> Any:
    """One that an earlier task has done with, or a new one; another thread may take the last one at
    any moment.
    """
    try:
        return spare.pop()
    except IndexError:
        return make()


class _Tile(NamedTuple):
    """A tile of one shape in backward, and the products that fill it and that use it."""

    p: ndarray
    ds: ndarray
    scores: Product
    dweights: Product  # where the weights were kept: the second half of `scores`
    dcolumns: Product
    dquery: Product


class _Backward(dict[tuple[int, int, int], _Tile]):
    """The buffers in which one thread goes backward, and by (columns loaded, rows, columns): a
    tile, and the products between them.

    What stands in pairs, first for the weights p, then for ds, is multiplied in one call:

        [p, ds] <- [[q, -lse], [g, -delta]] [[k, 1], [v, 1]]^T          [dv, dk] <- [p, ds]^T [g, q]

    so the shorter of a key and a value is filled up with zeros.
    """

    def __init__(self, depth: int, depth_v: int, dtype: np.dtype):
        wide = max(depth, depth_v)
        self.scores = empty(2 * ROWS * COLUMNS, dtype)
        self.rows, self.columns = (
            empty_rows((2, ROWS, wide + 1), dtype),
            np.zeros((2, COLUMNS, wide + 1), dtype),
        )
        self.rows[:], self.columns[..., -1] = 0, 1
        self.query, self.cotangent = self.rows[0, :, :depth], self.rows[1, :, :depth_v]
        self.key, self.value = self.columns[0, :, :depth], self.columns[1, :, :depth_v]
        self.key_rows, self.dquery = empty((COLUMNS, depth), dtype), empty((ROWS, depth), dtype)
        self.dcolumns = empty((2, COLUMNS, wide), dtype)
        self.turned: dict[int, ndarray] = {}

    def load(self, k: ndarray, v: ndarray, keep_scale: Any) -> None:
        n = len(k)
        self.key_rows[:n] = self.key[:n] = k
        np.multiply(v, keep_scale, out=self.value[:n])
        if n not in self.turned:
            self.turned[n] = room(n, self.columns.shape[-1], k.dtype, 2)
        turn(self.columns[:, :n], self.turned[n])

    def __missing__(self, shape: tuple[int, int, int]) -> _Tile:
        loaded, height, width = shape
        pair, rows = _tile(self.scores, 2, height, width), self.rows[:, :height]
        self[shape] = _Tile(
            pair[0],
            pair[1],
            Product(rows, self.turned[loaded], pair),
            Product(rows[1], self.turned[loaded][1], pair[1]),
            Product(pair.mT, rows[::-1, :, :-1], self.dcolumns[:, :width]),
            Product(pair[1], self.key_rows[:width], self.dquery[:height]),
        )
        return self[shape]


@np.errstate(under="ignore")
def backward(
    g: ndarray,
    out: ndarray,
    q: ndarray,
    k: ndarray,
    v: ndarray,
    saved: Tiled,
    mask: Mask,
    scale: float,
    keep: ndarray | None,
    keep_scale: float,
    dq: ndarray,
    dk: ndarray,
    dv: ndarray,
    dmask: ndarray | None,
) -> None:
    """dq, dk, dv <- gradients; dmask, if given, is added to and has the mask's shape with as many
    axes as the scores.
    """
    *lead, length, depth = q.shape
    dtype, (width, depth_v) = q.dtype, v.shape[-2:]
    number = dtype.type
    heads = list(np.ndindex(*lead))
    starts = range(0, width, COLUMNS)
    shares = _shares(len(heads), len(starts)) if dmask is None else 1
    dqs = [dq] + [
        np.empty_like(dq) for _ in range(shares - 1)
    ]  # each share adds up its own; one share is usual
    spare: list[_Backward] = []

    def run(n: int) -> None:
        at, share = heads[n // shares], n % shares
        space: _Backward = _taken(spare, lambda: _Backward(depth, depth_v, dtype))
        queries, cotangents, shifted = q[at], g[at], saved.shifted[at]
        dqueries = np.zeros(
            queries.shape, dtype
        )  # sums lie contiguous, because adding to rows with gaps is slow
        minus_lse = saved.lse[at] * number(-mask.unit)
        normalizer = np.exp(-saved.lse[at])
        minus_delta = -np.vecdot(cotangents, out[at])
        head = tuple(slice(i, i + 1) for i in at)
        for j in starts[share::shares]:
            stop = min(j + COLUMNS, width)
            space.load(k[at][j:stop], v[at][j:stop], number(keep_scale))
            dcolumns = np.zeros((2, stop - j, space.dcolumns.shape[-1]), dtype)
            for i in range(j if mask.causal else 0, length, ROWS):
                rows = slice(i, min(i + ROWS, length))
                columns = mask.seen(
                    at, rows, slice(j, min(stop, rows.stop) if mask.causal else stop)
                )
                height, size = rows.stop - i, columns.stop - j
                if size == 0:
                    continue
                needed = shifted[i // ROWS]
                # Scaled just as forward scaled them: rounded otherwise, large scores would not be
                # those of which lse is the sum.
                np.multiply(
                    queries[rows],
                    number(scale if needed else scale * mask.unit),
                    out=space.query[:height],
                )
                space.cotangent[:height] = cotangents[rows]
                space.rows[0, :height, -1] = 0 if needed else minus_lse[rows]
                space.rows[1, :height, -1] = minus_delta[rows] if keep is None else 0
                tile = space[stop - j, height, size]
                p, ds = tile.p, tile.ds
                kept = None if needed else saved.kept.get((at, i, j))
                if kept is not None:
                    tile.dweights()
                    np.multiply(kept, normalizer[rows, None], out=p)
                else:
                    tile.scores()
                    mask.add(p, at, rows, columns)
                    if needed:
                        mask.hide(
                            p, at, rows, columns
                        )  # a hidden score may have overflowed, to NaN too
                        p -= saved.maximum[at][
                            rows, None
                        ]  # and e^x, which copes with numbers far below 0 faster than 2^x does
                        p -= saved.lse[at][rows, None]
                        np.minimum(
                            p, 0, out=p
                        )  # weights are at most 1, however the score was rounded
                        np.exp(p, out=p)
                    else:
                        mask.exp(p, out=p)
                    mask.multiply(p, at, rows, columns)

                if keep is not None:
                    chosen = keep[(*at, rows, columns)]
                    ds *= chosen
                    ds += minus_delta[rows, None]
                ds *= p
                if dmask is not None:
                    accumulate(dmask, ds[(None,) * len(lead)], head, rows, columns)
                if keep is not None:
                    p *= chosen
                tile.dcolumns()
                if needed:
                    space.dcolumns[1, :size] *= number(
                        mask.unit
                    )  # the others' queries have it already
                dcolumns[:, :size] += space.dcolumns[:, :size]
                tile.dquery()
                dqueries[rows] += space.dquery[:height]
            np.multiply(dcolumns[0, :, :depth_v], number(keep_scale), out=dv[at][j:stop])
            np.multiply(dcolumns[1, :, :depth], number(1 / mask.unit), out=dk[at][j:stop])
        np.multiply(dqueries, number(scale), out=dqs[share][at])
        spare.append(space)

    tasks(run, len(heads) * shares, dmask is None)  # heads may add to the same entries of dmask
    for other in dqs[1:]:
        dq += other


@np.errstate(**QUIET)  # as forward: what is hidden may overflow
def weights(q: ndarray, k: ndarray, mask: Mask, scale: float) -> ndarray:
    """The normalised weights, (..., T, S): the one thing here that takes T x S memory.

    By sums of their own: one large product rounds scores otherwise than the tiles of which lse is
    the sum, and large ones by more than 1.
    """
    at = (slice(None),) * (q.ndim - 2)
    w = np.matmul(scaled(q, scale), transposed(k))
    mask.add(w, at)
    mask.hide(w, at)
    w -= row_maximum(w)
    np.exp(w, out=w)
    total = w.sum(-1, keepdims=True)
    total[total == 0] = 1  # a row that sees nothing
    w /= total
    return w
