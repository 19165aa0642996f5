"""Ops that pick elements, and their adjoints, which add them up where they came from."""

from __future__ import annotations

import numpy as np

from ..engine import op


@op
def getitem(x, *, index):
    """y = x[index], basic or advanced."""
    return x[index]


@op
def scatter(g, *, index, shape):
    """Zeros of `shape` with g added at index: repeated indices add up.  The adjoint of getitem.

    `scatter(messages, index=receivers, shape=(nodes, width))` is what np.add.at and PyTorch's
    index_add do, as a result of its own. Raises IndexError for an index that `shape` does not have,
    ValueError for a g of another shape than these places.
    """
    out = np.zeros_like(g, order="C", subok=False, shape=shape)
    places = out[index].shape
    if np.shape(g) != places:
        raise ValueError(
            f"what is added must have the shape of its places, {places} in {shape}, but has "
            f"{np.shape(g)}; np.broadcast_to(g, {places}) repeats a smaller one"
        )
    np.add.at(out, index, g)
    return out


getitem.vjp(lambda g, y, x, *, index: scatter(g, index=index, shape=x.shape))
scatter.vjp(lambda gg, y, g, *, index, shape: gg[index])


# getitem and scatter say the same; as an op of its own it can have a quicker way for rows.
@op
def embedding(weight, *, indices):
    """y = weight[indices]: a row of the table for each index.  (V, E), (...) -> (..., E)"""
    return weight[indices]


@op
def embedding_backward(g, *, indices, rows):
    """The gradient of the table: each row sums the gradients of the places that looked it up. (...,
    E) -> (V, E)
    """
    out = np.zeros_like(g, order="C", shape=(rows, g.shape[-1]))
    np.add.at(out, indices, g)
    return out


embedding.vjp(
    lambda g, y, weight, *, indices: embedding_backward(g, indices=indices, rows=weight.shape[0])
)
embedding_backward.vjp(lambda gg, y, g, *, indices, rows: embedding(gg, indices=indices))


@op
def take_along_axis(x, *, indices, axis=-1):
    """y = np.take_along_axis(x, indices, axis)"""
    return np.take_along_axis(x, indices, axis)


def places_along(indices, axis, shape):
    """The index with which take_along_axis picks its elements: `indices` at the axis, all places at
    the others.
    """
    if axis is None:
        return (indices,)
    axis %= len(shape)
    places = [np.arange(n).reshape(-1, *(1,) * (len(shape) - 1 - i)) for i, n in enumerate(shape)]
    places[axis] = indices
    return tuple(places)


def _put_back_along_axis(g, y, x, *, indices, axis):
    shape = (x.size,) if axis is None else x.shape
    put = scatter(g, index=places_along(indices, axis, x.shape), shape=shape)
    return put.reshape(x.shape)


take_along_axis.vjp(_put_back_along_axis)
