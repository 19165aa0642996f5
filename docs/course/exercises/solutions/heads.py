"""Chapter 10: many heads.

The E columns of the embedding are H blocks of D neighbouring ones, one for each head. Write both ways:

    split_heads(x, heads)    (B, T, H * D) -> (B, H, T, D)
    merge_heads(x)           (B, H, T, D)  -> (B, T, H * D)

x is an array or a Tensor; reshape and swapaxes (or transpose) are methods of both. A reshape never changes the order of the
numbers in memory, so it alone cannot do this: the shapes come out right and the numbers wrong.
"""


def split_heads(x, heads):
    batch, length, size = x.shape
    return x.reshape(batch, length, heads, size // heads).swapaxes(1, 2)


def merge_heads(x):
    batch, heads, length, size = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * size)
