"""Attention in memory that grows with T and not with T x S: one tile of scores at a time, and not
all of them kept.

Forward walks over tiles of rows x columns scores, adds each tile's share to the output and to the
row sums, and keeps only the logarithm of those sums (lse, one number a row; beside it the maximum,
where one was needed). Backward computes each tile of weights again, exp(q k^T - lse): that costs
one more product, and saves the memory and the traffic of the whole matrix. The first tiles of each
head are kept for it after all, as many as there is room for: a fixed number, which counts in short
sequences. Subtracting lse, and subtracting rowsum(g * out) from g v^T, both happen inside the
products, by one column more: [q, -lse] [k, 1]^T. With a causal mask the tiles above the diagonal
are never visited, which halves the work. The products are cut into pieces (see `products`), for
which what stands on the right is copied to lie close together.

While one thread runs Python another one waits, and falls asleep, which takes longer than the wait.
So what can be prepared is prepared once: the buffers, the views of them for a tile of some shape,
and the products between these. (Rabe & Staats 2021; Dao et al. 2022.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from .. import tuning
from ..threads import get_num_threads, tasks
from .products import Product, room, turn
from .rows import (
    QUIET,
    accumulate,
    in_range,
    ones,
    row_maximum,
    scaled,
)

if TYPE_CHECKING:
    from .attention import Mask


class Tiled(NamedTuple):
    """What backward needs: log(sum(exp(scores - maximum))) and maximum of each row, and which tiles
    of rows needed the maximum.

    They are not joined into one number: beside a maximum of -1e9, from a row blocked by a finite
    mask, the logarithm would be lost.
    """

    lse: ndarray  # (..., T), 0 for a row that sees nothing
    maximum: ndarray  # (..., T), 0 where it was not needed; (..., 0) if it was needed nowhere
    shifted: ndarray  # (..., number of row tiles), bool
    # By head, first row and first column: a tile of exp(scores), rows x columns.
    kept: dict[tuple[tuple[int, ...], int, int], ndarray]


def _shares(heads: int, tiles: int) -> int:
    """How many tasks to cut each head into, so that no thread is idle where heads are few."""
    threads = get_num_threads()
    return 1 if heads >= 2 * threads or heads % threads == 0 else min(threads, tiles)


class Call(NamedTuple):
    """What attention was asked for: q (..., T, D), k (..., S, D), v (..., S, Dv) and the rest."""

    q: ndarray
    k: ndarray
    v: ndarray
    mask: Mask
    scale: float
    keep: ndarray | None
    keep_scale: float


class _Forward(dict[tuple[int, int, int], tuple[ndarray, Product, Product]]):
    """The buffers in which one thread goes forward through a head, and by (rows, first column,
    end): the tile, and the products into and out of it.
    """

    def __init__(self, call: Call) -> None:
        (columns, depth_v), depth, dtype = call.v.shape[-2:], call.q.shape[-1], call.q.dtype
        height, wide = tuning.TILE_ROWS, tuning.TILE_COLUMNS
        self.call, self.dtype = call, dtype
        self.starts = range(0, columns, wide)
        self.turned_keys = [room(min(wide, columns - j), depth, dtype) for j in self.starts]
        self.value_rows = np.empty((columns, depth_v), dtype)
        self.scores = np.empty(height * wide, dtype)
        self.queries = np.empty((height, depth), dtype)
        self.shares = np.empty((height, depth_v), dtype)

    def load(self, at: tuple, left: ndarray) -> None:
        """Begin with a head; there is so much room left for weights that are kept."""
        self.at, self.left = at, left
        for j, blocks in zip(self.starts, self.turned_keys, strict=True):
            turn(self.call.k[at][j : j + tuning.TILE_COLUMNS], blocks)
        self.value_rows[:] = self.call.v[at]

    def __missing__(self, shape: tuple[int, int, int]) -> tuple[ndarray, Product, Product]:
        height, start, stop = shape
        tile = _tile(self.scores, height, stop - start)
        self[shape] = (
            tile,
            Product(self.queries[:height], self.turned_keys[start // tuning.TILE_COLUMNS], tile),
            Product(tile, self.value_rows[start:stop], self.shares[:height]),
        )
        return self[shape]

    def cut(self, rows: slice) -> list[slice]:
        """The tiles of columns that these rows look at."""
        mask, width = self.call.mask, len(self.value_rows)
        end, found = min(width, rows.stop) if mask.causal else width, []
        for j in range(0, end, tuning.TILE_COLUMNS):
            seen = mask.seen(self.at, rows, slice(j, min(j + tuning.TILE_COLUMNS, end)))
            if seen.stop > seen.start:
                found.append(seen)
        return found

    def _load_rows(self, rows: slice, scale: float) -> ndarray:
        """Put scaled queries in place; returns where their results are added up."""
        queries = self.call.q[self.at][rows]
        np.multiply(queries, self.dtype.type(scale), out=self.queries[: len(queries)])
        return np.zeros((len(queries), self.value_rows.shape[-1]), self.dtype)

    def _scores(self, rows: slice, columns: slice) -> ndarray:
        tile, product, _ = self[rows.stop - rows.start, columns.start, columns.stop]
        product()
        self.call.mask.add(tile, self.at, rows, columns)
        return tile

    def _add_share(self, rows: slice, columns: slice, result: ndarray) -> None:
        tile, _, product = self[len(result), columns.start, columns.stop]
        if self.call.keep is not None:
            tile *= self.call.keep[self.at + (rows, columns)]
        product()
        result += self.shares[: len(result)]

    def attend(self, rows: slice, cut: list[slice], kept: dict) -> tuple[ndarray, ndarray, ndarray]:
        """(the sums of exponentials times values, the sums, what bounds each exponential)."""
        mask = self.call.mask
        result = self._load_rows(rows, self.call.scale * mask.unit)
        total, unmasked = np.zeros((2, len(result)), self.dtype)
        for columns in cut:
            tile = self._scores(rows, columns)
            mask.exp(tile, out=tile)
            one = ones(tuning.TILE_COLUMNS, self.dtype)[: tile.shape[1]]
            if mask.multiplies:
                np.maximum(unmasked, tile.dot(one), out=unmasked)
                mask.multiply(tile, self.at, rows, columns)
            total += tile.dot(one)
            if tile.size <= self.left.size:
                copy = kept[self.at, rows.start, columns.start] = _tile(self.left, *tile.shape)
                copy[:], self.left = tile, self.left[tile.size :]
            self._add_share(rows, columns, result)
        return result, total, np.maximum(unmasked, total)

    def attend_shifted(self, rows: slice, cut: list[slice]) -> tuple[ndarray, ndarray, ndarray]:
        """(the sums of exponentials times values, the sums, the row maxima), where the exponentials
        are of what lies below the maximum.
        """
        mask = self.call.mask
        result = self._load_rows(rows, self.call.scale)
        top, total = (
            np.full((len(result), 1), -np.inf, self.dtype),
            np.zeros(len(result), self.dtype),
        )
        for columns in cut:
            tile = self._scores(rows, columns)
            mask.hide(tile, self.at, rows, columns)
            np.maximum(top, tile.max(-1, keepdims=True), out=top)
        maximum = row_maximum(top)
        for columns in cut:
            tile = self._scores(rows, columns)
            mask.hide(tile, self.at, rows, columns)
            tile -= maximum
            np.exp(tile, out=tile)
            total += tile.sum(-1)
            self._add_share(rows, columns, result)
        total[total == 0] = 1  # a row that sees nothing: 0 / 1, and an lse of 0
        return result, total, maximum[:, 0]


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
    """out (..., T, Dv) <- attention; so many weights may be kept."""
    call = Call(q, k, v, mask, scale, keep, keep_scale)
    *lead, length, _ = q.shape
    high, number = tuning.TILE_ROWS, q.dtype.type
    row_tiles = [slice(i, min(i + high, length)) for i in range(0, length, high)]
    lse, maxima = np.empty(q.shape[:-1], q.dtype), np.zeros(q.shape[:-1], q.dtype)
    shifted = np.zeros((*lead, len(row_tiles)), bool)
    heads = list(np.ndindex(*lead))
    shares = _shares(len(heads), len(row_tiles))
    rooms = np.empty((len(heads) * shares, room // (len(heads) * shares)), q.dtype)
    kept: dict[tuple[tuple[int, ...], int, int], ndarray] = {}
    spare: list[_Forward] = []

    def run(n: int) -> None:
        at, share = heads[n // shares], n % shares
        space: _Forward = _taken(spare, lambda: _Forward(call))
        space.load(at, rooms[n])
        for index in range(share, len(row_tiles), shares):
            rows = row_tiles[index]
            cut = space.cut(rows)
            result, total, most = space.attend(rows, cut, kept)
            if not in_range(total, most):
                shifted[at][index] = True
                result, total, maxima[at][rows] = space.attend_shifted(rows, cut)
            lse[at][rows] = np.log(total)
            np.multiply(result, (number(keep_scale) / total)[:, None], out=out[at][rows])
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

    def __init__(self, call: Call, g: ndarray, out: ndarray, saved: Tiled) -> None:
        self.call, self.g, self.out, self.saved = call, g, out, saved
        depth, depth_v, dtype = call.q.shape[-1], call.v.shape[-1], call.q.dtype
        high, broad, wide = tuning.TILE_ROWS, tuning.TILE_COLUMNS, max(depth, depth_v)
        self.scores = np.empty(2 * high * broad, dtype)
        self.rows = np.empty((2, high, wide + 1), dtype)
        self.columns = np.zeros((2, broad, wide + 1), dtype)
        self.rows[:], self.columns[..., -1] = 0, 1
        self.query, self.cotangent = self.rows[0, :, :depth], self.rows[1, :, :depth_v]
        self.key, self.value = self.columns[0, :, :depth], self.columns[1, :, :depth_v]
        self.key_rows, self.dquery = np.empty((broad, depth), dtype), np.empty((high, depth), dtype)
        self.dshares = np.empty((2, broad, wide), dtype)
        self.turned: dict[int, ndarray] = {}
        self.number = dtype.type

    def begin(self, at: tuple) -> None:
        """Begin with a head."""
        self.at, lse = at, self.saved.lse[at]
        self.minus_lse, self.normalizer = lse * self.number(-self.call.mask.unit), np.exp(-lse)
        self.minus_delta = -np.vecdot(self.g[at], self.out[at])
        # Sums lie contiguous, because adding to rows with gaps is slow.
        self.dqueries = np.zeros(self.call.q.shape[-2:], self.call.q.dtype)

    def load(self, columns: slice) -> None:
        """Go on with a tile of columns, all rows of which follow."""
        k, v = self.call.k[self.at][columns], self.call.v[self.at][columns]
        self.loaded = n = len(k)
        self.key_rows[:n] = self.key[:n] = k
        np.multiply(v, self.number(self.call.keep_scale), out=self.value[:n])
        if n not in self.turned:
            self.turned[n] = room(n, self.columns.shape[-1], k.dtype, 2)
        turn(self.columns[:, :n], self.turned[n])
        self.dcolumns = np.zeros((2, n, self.dshares.shape[-1]), k.dtype)

    def __missing__(self, shape: tuple[int, int, int]) -> _Tile:
        loaded, height, width = shape
        pair, rows = _tile(self.scores, 2, height, width), self.rows[:, :height]
        self[shape] = _Tile(
            pair[0],
            pair[1],
            Product(rows, self.turned[loaded], pair),
            Product(rows[1], self.turned[loaded][1], pair[1]),
            Product(pair.mT, rows[::-1, :, :-1], self.dshares[:, :width]),
            Product(pair[1], self.key_rows[:width], self.dquery[:height]),
        )
        return self[shape]

    def _load_rows(self, rows: slice, shifted: bool) -> None:
        """Put a tile of rows in place, and what is subtracted from their scores.

        Scaled just as forward scaled them: rounded otherwise, large scores would not be those of
        which lse is the sum.
        """
        call, n = self.call, rows.stop - rows.start
        scale = call.scale if shifted else call.scale * call.mask.unit
        np.multiply(call.q[self.at][rows], self.number(scale), out=self.query[:n])
        self.cotangent[:n] = self.g[self.at][rows]
        self.rows[0, :n, -1] = 0 if shifted else self.minus_lse[rows]
        self.rows[1, :n, -1] = self.minus_delta[rows] if call.keep is None else 0

    def _weigh(self, tile: _Tile, rows: slice, columns: slice, shifted: bool) -> None:
        """tile.p <- the weights, tile.ds <- their gradients less delta."""
        mask, saved, at, p = self.call.mask, self.saved, self.at, tile.p
        kept = None if shifted else saved.kept.get((at, rows.start, columns.start))
        if kept is not None:
            tile.dweights()
            np.multiply(kept, self.normalizer[rows, None], out=p)
            return
        tile.scores()
        mask.add(p, at, rows, columns)
        if shifted:
            mask.hide(p, at, rows, columns)  # a hidden score may have overflowed, to NaN too
            p -= saved.maximum[at][rows, None]
            p -= saved.lse[at][rows, None]
            np.minimum(p, 0, out=p)  # weights are at most 1, however the score was rounded
            np.exp(p, out=p)  # e^x copes with numbers far below 0 faster than 2^x does
        else:
            mask.exp(p, out=p)
        mask.multiply(p, at, rows, columns)

    def undo(self, rows: slice, columns: slice, dmask: ndarray | None) -> None:
        """Add a tile's shares to the gradients by its queries, keys and values, and by the mask."""
        keep, height, size = self.call.keep, rows.stop - rows.start, columns.stop - columns.start
        shifted = self.saved.shifted[self.at][rows.start // tuning.TILE_ROWS]
        self._load_rows(rows, shifted)
        tile = self[self.loaded, height, size]
        self._weigh(tile, rows, columns, shifted)
        p, ds = tile.p, tile.ds
        if keep is not None:
            chosen = keep[self.at + (rows, columns)]
            ds *= chosen
            ds += self.minus_delta[rows, None]
        ds *= p
        if dmask is not None:
            head = tuple(slice(i, i + 1) for i in self.at)
            accumulate(dmask, ds[(None,) * len(head)], head, rows, columns)
        if keep is not None:
            p *= chosen
        tile.dcolumns()
        if shifted:  # the other tiles' queries have the unit already
            self.dshares[1, :size] *= self.number(self.call.mask.unit)
        self.dcolumns[:, :size] += self.dshares[:, :size]
        tile.dquery()
        self.dqueries[rows] += self.dquery[:height]


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
    call = Call(q, k, v, mask, scale, keep, keep_scale)
    *lead, length, depth = q.shape
    number, (width, depth_v), high = q.dtype.type, v.shape[-2:], tuning.TILE_ROWS
    heads, starts = list(np.ndindex(*lead)), range(0, width, tuning.TILE_COLUMNS)
    shares = _shares(len(heads), len(starts)) if dmask is None else 1
    # Each share adds up its own; one share is usual.
    dqs = [dq] + [np.empty_like(dq) for _ in range(shares - 1)]
    spare: list[_Backward] = []

    def run(n: int) -> None:
        at, share = heads[n // shares], n % shares
        space: _Backward = _taken(spare, lambda: _Backward(call, g, out, saved))
        space.begin(at)
        for j in starts[share::shares]:
            stop = min(j + tuning.TILE_COLUMNS, width)
            space.load(slice(j, stop))
            for i in range(j if mask.causal else 0, length, high):
                rows = slice(i, min(i + high, length))
                end = min(stop, rows.stop) if mask.causal else stop
                columns = mask.seen(at, rows, slice(j, end))
                if columns.stop > j:
                    space.undo(rows, columns, dmask)
            np.multiply(space.dcolumns[0, :, :depth_v], number(keep_scale), out=dv[at][j:stop])
            np.multiply(space.dcolumns[1, :, :depth], number(1 / mask.unit), out=dk[at][j:stop])
        np.multiply(space.dqueries, number(scale), out=dqs[share][at])
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
    w = np.matmul(scaled(q, scale), np.ascontiguousarray(k.mT))
    mask.add(w, at)
    mask.hide(w, at)
    w -= row_maximum(w)
    np.exp(w, out=w)
    total = w.sum(-1, keepdims=True)
    total[total == 0] = 1  # a row that sees nothing
    w /= total
    return w
