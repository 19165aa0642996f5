"""Sentences about wrong results that do not depend on the exercise."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

RULE = "rule"
"""The word for a VJP in everything that a marker says."""
Shape = tuple[int, ...]
SMALL = 12
"""The elements of arrays that are written in full."""
TURNED = r"\.T\b|\.transpose\(\)|np\.transpose\(\w+\)"
"""What reverses all axes."""


def plain(x: Any) -> np.ndarray:
    """Return the array of a Tensor, or of anything else."""
    return np.asarray(getattr(x, "_data", x))


def differing(found: Any, expected: Any) -> str:
    """Write two arrays of the same shape, or if they are large, the first number that is off."""
    a, b = plain(found), plain(expected)
    if a.dtype.kind not in "fiub":
        return ""
    if a.size <= SMALL:
        written = [np.array2string(x, precision=5, suppress_small=True) for x in (b, a)]
        return "expected\n{}\nfound\n{}".format(*written)
    index = tuple(map(int, np.argwhere(~np.isclose(a, b, 1e-5, 1e-6))[:1].ravel()))
    if len(index) < a.ndim:  # they differ by less
        return ""
    return (
        f"The first number that is off is at index {list(index)}: it is {a[index]:.6g}, but it "
        f"should be {b[index]:.6g}."
    )


def about_shape(found: Shape, expected: Shape) -> str:
    """Explain how a result may have got the wrong shape; the text may be empty."""
    if len(found) < len(expected):
        for axis in range(len(expected)):
            if found == expected[:axis] + expected[axis + 1 :]:
                return (
                    f"Axis {axis} is missing. A sum, mean or maximum removes its axis, and the "
                    "later axes move to the left; keepdims=True keeps it with length 1."
                )
    if len(found) == len(expected) > 2 and found == expected[::-1]:
        return REVERSED
    if sorted(found) == sorted(expected):
        orders = permutations(range(len(expected)))
        order = next(p for p in orders if found == tuple(expected[axis] for axis in p))
        return f"Its axes are in the order {order}: transpose it."
    if math.prod(found) == math.prod(expected):
        return _regrouped(found, expected)
    pairs = [*zip(found[::-1], expected[::-1])]
    if len(found) == len(expected) and any(b == 1 for _, b in pairs):
        if all(b in (a, 1) for a, b in pairs):
            axis = next(k for k, n in enumerate(expected) if n == 1)
            return f"Its elements are used several times along axis {axis}: sum over it, with keepdims=True."
    if len(found) == len(expected) and all(a in (b, 1) for a, b in pairs):
        return "Something was summed over an axis whose elements should stay apart."
    if len(found) >= len(expected) and found[len(found) - len(expected) :] == expected:
        return "There is one result for each index of the first axes: sum over them, or index them."
    return ""


def _regrouped(found: Shape, expected: Shape) -> str:
    """Explain a shape with as many elements as the right one."""
    for few, many, text in (
        (expected, found, "Axes {} to {} should be one axis: reshape."),
        (found, expected, "Axes {} to {} should be apart, and here they are one: reshape."),
    ):
        for axis in range(len(few)):
            end = axis + 1 + len(many) - len(few)
            if end > axis + 1 and few == (*many[:axis], math.prod(many[axis:end]), *many[end:]):
                if few is found and len(found) == 1:
                    return "Here all axes are one. np.cumsum, for example, joins them unless it is given an axis."
                return text.format(axis, end - 1)
    return "It has the right number of elements: check which axis each of the sizes comes from."


REFLECTED = {
    "+": "__radd__",
    "-": "__rsub__",
    "*": "__rmul__",
    "/": "__rtruediv__",
    "@": "__rmatmul__",
}
"""The methods that Python calls for the right operand."""
REVERSED = ".T reverses all axes of an array with more than two. Swap only the last two: x.swapaxes(-1, -2)."


def reverses(line: str, source: str) -> bool:
    """Return whether a line of a function reverses all axes, or uses a name for the result."""
    names = re.findall(rf"(\w+) *= .*(?:{TURNED})", source)
    return bool(re.search("|".join([TURNED, *(rf"\b{name}\b" for name in names)]), line))


def about_shapes(text: str, line: str = "", source: str = "", shapes_given: str = "") -> str:
    """Explain an error of NumPy about two shapes that do not fit, in a line of a function; the text
    may be empty.
    """
    if "used as indices must be of integer" in text:
        return (
            "An index must be a whole number, and these are not. argmax gives the place of the largest "
            "element, max its value."
        )
    if re.search("'(Scalar|Tensor)' object is not iterable", text):
        return "Parents and what belongs to each of them are tuples, even if there is one: (self,)."
    if found := re.search(r"unsupported operand .* for (\S+): .* and '(Tensor|Dual|Scalar)'", text):
        method = REFLECTED.get(found[1], "")
        return f"The left operand does not support {found[2]}s, so Python calls the method {method} of the {found[2]}."
    if "'float' object cannot be interpreted as an integer" in text:
        return "Sizes and indices are whole numbers: divide with // instead of /."
    if sizes := re.search(r"cannot reshape array of size (\d+) into shape \(([\d,]*)\)", text):
        wanted = [int(n) for n in sizes[2].split(",") if n]
        return f"The new sizes multiply to {math.prod(wanted)}, but there are {sizes[1]} numbers."
    broadcasts = "broadcast together" in text or "broadcast to a single shape" in text
    does_not_fit = broadcasts or "matmul" in text and "mismatch" in text
    if does_not_fit and re.search(r"\d, \d+, \d", shapes_given) and reverses(line, source):
        return REVERSED
    if does_not_fit and (flat := re.search(r"np\.(outer|diag|dot)\b", source)):
        return (
            f"np.{flat[1]} is for vectors and single matrices. With more axes it does something else; "
            "write x[..., :, None] and x[..., None, :], or @."
        )
    shapes = [
        tuple(int(n) for n in re.findall(r"\d+", shape))
        for shape in re.findall(r"\(((?:\d+,?\s*)*)\)", text)
    ]
    if broadcasts and len(shapes) >= 2:
        (small, large) = sorted(shapes[:2], key=len)
        for axis in range(len(large)):
            if small == large[:axis] + large[axis + 1 :]:
                kept = (*large[:axis], 1, *large[axis + 1 :])
                index = ", ".join(["...", "None", *":" * (len(large) - 1 - axis)])
                return (
                    f"NumPy matches axes from the right, so {small} does not fit {large}. {kept} fits: after "
                    f"a sum or a maximum, keepdims=True keeps axis {axis} with length 1, and elsewhere "
                    f"x[{index}] adds it."
                )
        if len(small) == len(large) and small[:-2] == large[:-2] and small[-2:] == large[:-3:-1]:
            return (
                f"{small} and {large} are transposes of each other: in one of the two terms a transpose "
                "is missing, or the factors are in the wrong order."
            )
        return "NumPy matches axes from the right: two lengths must be equal, or one of them 1."
    if "matmul" in text and "mismatch" in text:
        return (
            "In a @ b, the last axis of a must be as long as the second last of b. Write down the "
            "shape of each factor: the order, or a swap of the last two axes, must be another."
        )
    return ""


def cut_off(found: Any, expected: Any) -> str:
    """Say that a result has lost what is after the decimal point; the text may be empty."""
    a, b = plain(found), plain(expected)
    if a.dtype.kind not in "iu" or b.dtype.kind != "f" or np.all(b == np.round(b)):
        return ""
    return (
        f"These are whole numbers ({a.dtype}), so what comes after the decimal point is cut off. Make "
        "an array of floats: np.zeros(shape), without dtype=int and not like an array of whole numbers."
    )


def misplaced(found: Any, expected: Any) -> str:
    """Say that a result has the right numbers in the wrong places; the text may be empty."""
    a, b = plain(found), plain(expected)
    if a.shape != b.shape or a.dtype.kind not in "fiu" or a.size < 3:
        return ""
    if not np.allclose(np.sort(a, axis=None), np.sort(b, axis=None), 1e-9):
        return ""
    for axis in range(a.ndim):
        if equal(np.flip(a, axis), b):
            return f"The numbers are right, but in the reverse order along axis {axis}."
    return (
        "The numbers are right, but in other places. A reshape keeps the order in memory; swapaxes and "
        "transpose change it."
    )


def scaled(found: Any, expected: Any) -> str:
    """Say that each row of a result is a multiple of the right one; the text may be empty."""
    a, b = plain(found), plain(expected)
    if a.shape != b.shape or a.ndim < 2 or a.shape[-1] < 3 or a.dtype.kind != "f" or not a.any():
        return ""
    for axis in reversed(range(a.ndim)):
        squares = (b * b).sum(axis=axis, keepdims=True)
        factor = (a * b).sum(axis=axis, keepdims=True) / np.where(squares, squares, 1)
        if a.shape[axis] > 1 and factor.all() and np.allclose(a, factor * b, 1e-6, 1e-12):
            if np.allclose(factor, factor.flat[0]):  # the verdict says so
                return ""
            return (
                f"Along axis {axis} the proportions are right, but each slice has a factor of its own: "
                f"the first is {factor.flat[0]:.3g}, the second {factor.flat[1]:.3g}. So what they are "
                "divided or multiplied by is wrong: a sum, a mean or a length."
            )
    return ""


def unchanged(name: str, value: Any, arguments: Mapping[str, Any]) -> str:
    """Say that a function returns one of its arguments; the text may be empty."""
    for argument, given in arguments.items():
        if given is not None and not callable(given) and equal(value, given):
            return f"{name} returns its argument {argument} unchanged."
    return ""


def equal(a: Any, b: Any) -> bool:
    """Return whether two arrays of numbers are equal."""
    a, b = (getattr(x, "_data", x) for x in (a, b))
    if not all(isinstance(x, (np.ndarray, np.generic, float, int)) for x in (a, b)):
        return False
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype.kind in "fiub" and a.shape == b.shape and np.allclose(a, b, 1e-12, 0)


def in_stub_words(text: str, names: Sequence[str]) -> str:
    """Rewrite a text of gradcheck with the names of the arguments, and with the word for a VJP."""
    text = re.sub(r"^(VJP: |[^:]*: )?(?:op '[^']*': )", lambda found: found[1] or "", text)
    text = re.sub(r"^VJP: (.)", lambda found: found[1].upper(), text)
    text = re.sub(r"\s*Look at its VJP for .*?\.(?=\s|$)", "", text)
    text = re.sub(r"\((?:Its operands were cut|In a part).*?\)", "", text)
    text = re.sub(r", called at \S+:\d+ `.*?`,", "", text)  # a line of the marker
    by_number = dict(enumerate(names))
    text = re.sub(
        r"(?<!its )\b(?:input|operand|argument) (\d+)",
        lambda found: by_number.get(int(found[1]), found[0]),
        text,
    )
    return re.sub(r"\bVJP(s?)\b", rf"{RULE}\1", text).strip()
