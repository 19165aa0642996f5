"""Chapter 20: the sum over all ranks by a ring (Patarasuk and Yuan, 2009), and the weights of unequal parts.

N ranks sit in a ring. Rank r has an array of its own, and in the end every rank is to have the sum of all. Here all ranks are in one
program: `arrays` is a list, and arrays[r] is rank r's. What a rank gets from another goes through

    got = send(source, target, array)              a copy of the array, as it arrives at rank `target`

Write two functions:

    ring_sum   cut each array into N chunks (np.array_split). In N - 1 rounds every rank sends one chunk to its right-hand neighbour,
               (r + 1) % N, and adds what comes to its own: after that each rank has one chunk that is complete. In N - 1 more rounds
               the complete chunks go round, and replace what was there.
    weights    rank r has counts[r] samples, and the mean of their losses. What must each mean be multiplied by, so that the mean over
               the N ranks is the mean over all samples?

No array that is given may change. The marker looks at what is sent: 2 N (N - 1) messages, each to the right-hand neighbour, and none
longer than a chunk.

Hints: in round i rank r sends chunk (r - i) % N first, and chunk (r + 1 - i) % N in the second half. In a round all ranks send what they
had when it began; go through the ranks twice, or think why once is enough.
"""

import numpy as np


def ring_sum(arrays, send):
    """arrays: N arrays (n,), one of each rank. Returns N arrays (n,), each the sum of all."""
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
