"""Chapter 20: the sum over a ring of ranks (Patarasuk and Yuan, 2009), and the weights of unequal parts.

N ranks form a ring. Each rank starts with its own array, and in the end every rank must have the sum of all arrays. Here, all ranks
are in one program: `arrays` is a list, and arrays[r] belongs to rank r. Every transfer from one rank to another goes through

    got = send(source, target, array)              returns a copy of the array, as it arrives at rank `target`

Write two functions:

    ring_sum   cut each array into N chunks (np.array_split). In N - 1 rounds every rank sends one chunk to its right-hand neighbour,
               (r + 1) % N, and adds the chunk that it receives to its own. Then each rank has one complete chunk. In N - 1 more rounds
               the complete chunks go around and replace the incomplete ones.
    weights    rank r has counts[r] samples and the mean of their losses. Return the factor for each mean, so that the mean over
               the N ranks is the mean over all samples.

The given arrays must not change. The marker checks what is sent: 2 N (N - 1) messages, each to the right-hand neighbour, and none
longer than a chunk.

Hints: in round i, rank r sends chunk (r - i) % N in the first half, and chunk (r + 1 - i) % N in the second half. All ranks send
what they had at the beginning of the round. So loop over the ranks twice in each round, or work out why one loop is enough.
"""

import numpy as np


def ring_sum(arrays, send):
    """arrays: N arrays (n,), one for each rank. Returns N arrays (n,), each the sum of all."""
    N = len(arrays)
    chunks = [[chunk.copy() for chunk in np.array_split(array, N)] for array in arrays]
    for i in range(N - 1):
        for r in range(N):  # the chunk that r sends is not the one that comes to it in this round
            k = (r - i) % N
            chunks[(r + 1) % N][k] += send(r, (r + 1) % N, chunks[r][k])
    for i in range(N - 1):
        for r in range(N):
            k = (r + 1 - i) % N
            chunks[(r + 1) % N][k] = send(r, (r + 1) % N, chunks[r][k])
    return [np.concatenate(row) for row in chunks]


def weights(counts):
    """counts: N whole numbers, not all 0. Returns N numbers."""
    return [len(counts) * n / sum(counts) for n in counts]
