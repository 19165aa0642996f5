"""Chapter 1: numbers that remember.

A Scalar has a number, the Scalars that it was computed from (`parents`), and its slope with respect
to each of them (`slopes`). The sum and the product are already there. Write the difference, the
quotient and tanh in the same way:

    y = a - b         y = a / b         y = tanh(x)

Hint: the derivative of tanh is simplest when you write it in terms of the output.
"""

import math


class Scalar:
    """A number that remembers how it was made."""

    def __init__(self, data, parents=(), slopes=()):
        self.data, self.parents, self.slopes, self.grad = data, parents, slopes, 0.0

    def __add__(self, other):
        return Scalar(self.data + other.data, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        return Scalar(self.data * other.data, (self, other), (other.data, self.data))

    def __sub__(self, other):
        return None

    def __truediv__(self, other):
        return None

    def tanh(self):
        """Return the hyperbolic tangent. math.tanh computes the value."""
        return None

    def backward(self, g=1.0):
        """Add the incoming gradient g to .grad, and pass g times the slope on to each parent."""
        self.grad += g
        for parent, slope in zip(self.parents, self.slopes):
            parent.backward(g * slope)
