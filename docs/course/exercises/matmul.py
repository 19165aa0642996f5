"""Chapter 5: the product of two matrices, and of stacks of them.

    y = a b         dL/da = g b^T         dL/db = a^T g

Write both backward rules so that they hold for stacks of matrices too: a is (..., N, K), b is
(..., K, M), y and g are (..., N, M). If one operand has fewer axes than the other, it was
broadcast. Leave the sum over the stack to the engine, as in chapter 4.

Hint: swap only the last two axes; `.T` would reverse all of them. For square matrices, the shapes
fit for any order of the factors, so a shape that fits proves nothing.
"""


def matmul(a, b):
    return a @ b


def matmul_vjp_a(g, y, a, b):
    """(..., N, K)"""
    return None


def matmul_vjp_b(g, y, a, b):
    """(..., K, M)"""
    return None
