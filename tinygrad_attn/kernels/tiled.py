"""Attention in memory that grows with T and not with T x S: one tile of scores at a time, none of them kept.

Forward walks over tiles of rows x columns scores, adds each tile's share to the output and to the row sums, and keeps only
the logarithm of those sums (lse, one number a row; beside it the maximum, where one was needed).  Backward computes each tile
of weights again, exp(q k^T - lse): that costs one more product, and saves the memory and the traffic of the whole matrix.
Subtracting lse, and subtracting rowsum(g * out) from g v^T, both happen inside the products, by one column more:
[q, -lse] [k, 1]^T.  With a causal mask the tiles above the diagonal are never visited, which halves the work.
The products are cut into pieces (see `pieces`), for which what stands on the right is copied to lie close together.
(Rabe & Staats 2021; Dao et al. 2022.)
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from ..threads import get_num_threads, tasks
from .memory import aligned, empty, empty_rows
from .pieces import multiply, turned
from .scores import QUIET, Mask, accumulate, in_range, ones, row_maximum, scaled, transposed

ROWS, COLUMNS = 256, 512        # COLUMNS is a multiple of ROWS, so the diagonal meets a tile of rows in one tile only


class Tiled(NamedTuple):
    """What backward needs: log(sum(exp(scores - maximum))) and maximum of each row, and which tiles of rows needed the maximum.

    They are not joined into one number: beside a maximum of -1e9, from a row blocked by a finite mask, the logarithm would be lost.
    """

    lse: ndarray                # (..., T), 0 for a row that sees nothing
    maximum: ndarray            # (..., T), 0 where it was not needed; (..., 0) if it was needed nowhere
    shifted: ndarray            # (..., number of row tiles), bool


def _shares(heads: int, tiles: int) -> int:
    """How many tasks to cut each head into, so that no thread stands idle when there are few heads."""
    threads = get_num_threads()
    return 1 if heads >= 2 * threads or heads % threads == 0 else min(threads, tiles)


def _column_tiles(rows: slice, columns: int, causal: bool) -> list[slice]:
    end = min(columns, rows.stop) if causal else columns
    return [slice(j, min(j + COLUMNS, end)) for j in range(0, end, COLUMNS)]


def forward(q: ndarray, k: ndarray, v: ndarray, mask: Mask, scale: float, keep: ndarray | None, keep_scale: float,
            out: ndarray) -> Tiled:
    """out <- attention; q (..., T, D), k (..., S, D), v (..., S, Dv), out (..., T, Dv)."""
    *lead, length, _ = q.shape
    dtype = q.dtype
    row_tiles = [slice(i, min(i + ROWS, length)) for i in range(0, length, ROWS)]
    lse, maxima = np.empty(q.shape[:-1], dtype), np.zeros(q.shape[:-1], dtype)
    shifted = np.zeros((*lead, len(row_tiles)), bool)
    heads = list(np.ndindex(*lead))
    shares = _shares(len(heads), len(row_tiles))

    def run(n: int) -> None:
        at, share = heads[n // shares], n % shares
        keys, values = [turned(k[at][j:j + COLUMNS]) for j in range(0, k.shape[-2], COLUMNS)], aligned(v[at])
        buffer, product = empty(ROWS * COLUMNS, dtype), empty((ROWS, v.shape[-1]), dtype)

        def scores(rows: slice, columns: slice, queries: ndarray) -> ndarray:
            tile = _tile(buffer, rows, columns)
            multiply(queries, keys[columns.start // COLUMNS], tile)
            mask.add(tile, at, rows, columns)
            return tile

        def add_share(rows: slice, columns: slice, tile: ndarray, result: ndarray) -> None:
            if keep is not None:
                tile *= keep[(*at, rows, columns)]
            result += multiply(tile, values[columns], product[:len(result)])

        for index in range(share, len(row_tiles), shares):
            rows = row_tiles[index]
            tiles = [mask.seen(at, rows, columns) for columns in _column_tiles(rows, k.shape[-2], mask.causal)]
            cut = [columns for columns in tiles if columns.stop > columns.start]
            queries = scaled(q[at][rows], scale * mask.unit)
            result = np.zeros((len(queries), v.shape[-1]), dtype)
            total, unmasked = np.zeros((2, len(queries)), dtype)
            for columns in cut:
                tile = scores(rows, columns, queries)
                mask.exp(tile, out=tile)
                one = ones(COLUMNS, dtype)[:tile.shape[1]]
                if mask.multiplies:
                    np.maximum(unmasked, tile @ one, out=unmasked)
                    mask.multiply(tile, at, rows, columns)
                total += tile @ one
                add_share(rows, columns, tile, result)
            if not in_range(total, np.maximum(unmasked, total)):
                shifted[at][index] = True
                queries = scaled(q[at][rows], scale)
                top = np.full((len(queries), 1), -np.inf, dtype)
                for columns in cut:
                    tile = scores(rows, columns, queries)
                    mask.hide(tile, at, rows, columns)
                    np.maximum(top, tile.max(-1, keepdims=True), out=top)
                maximum = maxima[at][rows] = row_maximum(top)[:, 0]
                result[:], total[:] = 0, 0
                for columns in cut:
                    tile = scores(rows, columns, queries)
                    mask.hide(tile, at, rows, columns)
                    tile -= maximum[:, None]
                    np.exp(tile, out=tile)
                    total += tile.sum(-1)
                    add_share(rows, columns, tile, result)
                total[total == 0] = 1                   # a row that sees nothing: 0 / 1, and an lse of 0
            lse[at][rows] = np.log(total)
            np.multiply(result, (dtype.type(keep_scale) / total)[:, None], out=out[at][rows])

    with np.errstate(**QUIET):
        tasks(run, len(heads) * shares)
    return Tiled(lse, maxima if shifted.any() else maxima[..., :0].copy(), shifted)


def _tile(buffer: ndarray, rows: slice, columns: slice) -> ndarray:
    """A contiguous matrix for these scores at the start of a flat buffer: exponentials are slow where rows have gaps."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    return buffer[:height * width].reshape(height, width)


def _with_column(wide: ndarray, x: ndarray, column: ndarray | float) -> ndarray:
    """[x, column], in the first rows of `wide`."""
    wide = wide[:len(x)]
    wide[:, :-1] = x
    wide[:, -1] = column
    return wide


def backward(g: ndarray, out: ndarray, q: ndarray, k: ndarray, v: ndarray, saved: Tiled, mask: Mask, scale: float,
             keep: ndarray | None, keep_scale: float, dq: ndarray, dk: ndarray, dv: ndarray, dmask: ndarray | None) -> None:
    """dq, dk, dv <- gradients; dmask, if given, is added to and has the mask's shape with as many axes as the scores."""
    *lead, length, _ = q.shape
    dtype, width = q.dtype, k.shape[-2]
    heads = list(np.ndindex(*lead))
    starts = range(0, width, COLUMNS)
    shares = _shares(len(heads), len(starts)) if dmask is None else 1
    dqs = [dq] + [np.empty_like(dq) for _ in range(shares - 1)]             # each share adds up its own; one share is usual

    def run(n: int) -> None:
        at, share = heads[n // shares], n % shares
        first, second = empty((2, ROWS * COLUMNS), dtype)
        query_one, cotangent_one = (empty_rows((ROWS, x.shape[-1] + 1), dtype) for x in (k, v))
        key_one, value_one = (np.empty((COLUMNS, x.shape[-1] + 1), dtype) for x in (k, v))
        for_query, for_key, for_value = (empty((n, x.shape[-1]), dtype) for n, x in ((ROWS, k), (COLUMNS, k), (COLUMNS, v)))
        dqueries = np.zeros(q.shape[-2:], dtype)        # sums lie contiguous, because adding to rows with gaps is slow
        minus_lse = saved.lse[at] * dtype.type(-mask.unit)
        minus_delta = -np.vecdot(g[at], out[at])
        head = tuple(slice(i, i + 1) for i in at)
        for j in starts[share::shares]:
            stop = min(j + COLUMNS, width)
            keys = aligned(k[at][j:stop])
            kt = turned(_with_column(key_one, scaled(keys, scale * mask.unit), 1))
            vt = turned(_with_column(value_one, scaled(v[at][j:stop], keep_scale), 1))
            dkeys, dvalues = (np.zeros((stop - j, x.shape[-1]), dtype) for x in (k, v))
            for i in range(j if mask.causal else 0, length, ROWS):
                rows = slice(i, min(i + ROWS, length))
                columns = mask.seen(at, rows, slice(j, min(stop, rows.stop) if mask.causal else stop))
                height, size = rows.stop - i, columns.stop - j
                if size == 0:
                    continue
                tile, ds = _tile(first, rows, columns), _tile(second, rows, columns)

                shifted = saved.shifted[at][i // ROWS]
                query = _with_column(query_one, q[at][rows], 0 if shifted else minus_lse[rows])
                cotangent = _with_column(cotangent_one, g[at][rows], minus_delta[rows])
                multiply(query, kt, tile)
                mask.add(tile, at, rows, columns)
                if shifted:
                    tile *= dtype.type(1 / mask.unit)       # e^x copes with numbers far below 0 faster than 2^x does
                    tile -= saved.maximum[at][rows, None]
                    tile -= saved.lse[at][rows, None]
                    np.minimum(tile, 0, out=tile)           # weights are at most 1; a hidden score might overflow
                    np.exp(tile, out=tile)
                else:
                    mask.exp(tile, out=tile)
                mask.multiply(tile, at, rows, columns)

                if keep is None:
                    multiply(cotangent, vt, ds)
                    kept = tile
                else:
                    chosen = keep[(*at, rows, columns)]
                    kept = tile * chosen
                    multiply(cotangent[:, :-1], vt[:, :-1], ds)
                    ds *= chosen
                    ds += minus_delta[rows, None]
                ds *= tile
                if dmask is not None:
                    accumulate(dmask, ds[(None,) * len(lead)], head, rows, columns)
                dvalues[:size] += multiply(kept.T, cotangent[:, :-1], for_value[:size])
                dkeys[:size] += multiply(ds.T, query[:, :-1], for_key[:size])
                dqueries[rows] += multiply(ds, keys[:size], for_query[:height])
            np.multiply(dkeys, dtype.type(scale), out=dk[at][j:stop])
            np.multiply(dvalues, dtype.type(keep_scale), out=dv[at][j:stop])
        np.multiply(dqueries, dtype.type(scale), out=dqs[share][at])

    with np.errstate(under="ignore"):
        tasks(run, len(heads) * shares, dmask is None)          # heads may add to the same entries of dmask
        for other in dqs[1:]:
            dq += other


def weights(q: ndarray, k: ndarray, saved: Tiled, mask: Mask, scale: float) -> ndarray:
    """The normalised weights, (..., T, S): the one thing here that takes T x S memory."""
    w = np.matmul(scaled(q, scale), transposed(k))
    at = (slice(None),) * (q.ndim - 2)
    mask.add(w, at)
    mask.hide(w, at)
    if saved.maximum.size:
        w -= saved.maximum[..., None]
    w -= saved.lse[..., None]
    np.exp(w, out=w)
    return w
