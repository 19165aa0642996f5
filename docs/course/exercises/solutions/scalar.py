"""Chapter 1: numbers that remember.

A Scalar holds a number, the Scalars it was computed from (`parents`), and its slope with respect to each of them (`slopes`). Sum and product
are there. Write difference, quotient and tanh in the same way:

    y = a - b         y = a / b         y = tanh(x)

Hint: the derivative of tanh is shortest if it uses the result.
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
        return Scalar(self.data - other.data, (self, other), (1.0, -1.0))

    def __truediv__(self, other):
        return Scalar(
            self.data / other.data, (self, other), (1 / other.data, -self.data / other.data**2)
        )

    def tanh(self):
        """math.tanh computes the value."""
        y = math.tanh(self.data)
        return Scalar(y, (self,), (1 - y**2,))

    def backward(self, g=1.0):
        """Add g, the gradient that comes in, and pass it on to the parents, times the slope."""
        self.grad += g
        for parent, slope in zip(self.parents, self.slopes):
            parent.backward(g * slope)
