"""Chapter 10: many heads.

The E columns of the embedding are H blocks of D neighbouring columns, one block for each head.
Write both directions:

    split_heads(x, heads)    (B, T, H * D) -> (B, H, T, D)
    merge_heads(x)           (B, H, T, D)  -> (B, T, H * D)

x is an array or a Tensor; both have the methods reshape and swapaxes (or transpose). A reshape
never changes the order of the numbers in memory, so it is not enough on its own. The shape of its
result is right, but the numbers are in the wrong places.
"""


def split_heads(x, heads):
    return None


def merge_heads(x):
    return None
