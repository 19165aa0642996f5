"""Measure the slope of a function of one step by finite differences.

The central difference (F(h) - F(-h)) / 2h has an error of about h^2, and rounding adds about
1e-16 |F| / h. Ridders' extrapolation shrinks h, and estimates the slope at step 0 and its error.
F returns an array, whose elements are measured separately.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from .report import Array, greatest

ROUNDING = 2.0**-52


class Curve:
    """A function of one step h, its central differences and its curvature, each computed once."""

    def __init__(self, f: Callable[[float], Array]) -> None:
        self.at = f = cache(f)
        # The slope is 0 where both sides are the same infinity.
        self.slope = cache(lambda h: np.where(f(h) == f(-h), 0, f(h) - f(-h)) / (2 * h))
        self.curvature = cache(lambda h: f(h) - 2 * f(0.0) + f(-h))  # / 16 at h / 4, if smooth


def noise(f: Curve, h: float) -> Array:
    """Return the error of the slope that makes the curvature fall by a factor other than 16."""
    rough = lambda h: np.abs(f.curvature(h) - f.curvature(4 * h) / 16)
    return np.fmax(rough(h), rough(4 * h) / 16) / h


def has_kink(f: Curve, h: float, rounding: Array) -> Array:
    """Return where the slopes to the left and right differ by as much at h as at 4h."""

    def bend(h: float) -> Array:
        change = np.abs(f.slope(h) - f.slope(4 * h))
        return np.fmax(np.abs(f.curvature(h)) / (2 * h), change)

    return (bend(h) > bend(4 * h) / 2) & (bend(h) > 1e-3 * np.abs(f.slope(h)) + 8 * rounding)


def ridders(f: Curve, largest: float, smallest: float) -> tuple[Array, Array]:
    """Return the slope of F at 0 by extrapolation from steps that shrink, and its error.

    The error is infinite where the slopes to the left and to the right differ at every step.
    The slope is NaN where the left or the right slope does not exist.

    Source: C. J. F. Ridders, Accurate computation of F'(x) and F'(x) F''(x), Advances in
    Engineering Software 4 (1982).
    """
    h, previous = largest, list[Array]()
    slope, error, score = (np.full(f.at(0.0).shape, v) for v in (np.nan, np.inf, np.inf))
    while h > smallest:
        moves = (f.slope(h) != 0) | (f.slope(largest) != 0)
        rounding = np.where(moves | ~moves.any(), ROUNDING * np.abs(f.at(0.0)) / h, 0)
        uncertain = rounding + noise(f, h)
        kink = has_kink(f, h, rounding) & bool(previous)
        row = [np.where(kink, np.nan, f.slope(h))]
        for j, earlier in enumerate(previous, 1):
            row.append((16**j * row[-1] - earlier) / (16**j - 1))
            spread = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - earlier))
            e = spread + uncertain
            relative = e / (np.abs(row[j]) + rounding + 1e-300)
            better = relative < score
            slope, error = np.where(better, row[j], slope), np.where(better, e, error)
            score = np.fmin(relative, score)
        if np.all(error <= np.maximum(1e-8 * greatest(np.nan_to_num(slope)), 2 * rounding)):
            break
        previous, h = row[:6], h / 4
    return np.where(np.isinf(error), f.slope(4 * h), slope), error
