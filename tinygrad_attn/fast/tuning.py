"""All thresholds of this folder. They affect only time, memory and rounding.

They were measured on an AMD EPYC (Zen 3, AVX2) in float32. They count array elements unless a
comment says otherwise.
"""

# blocks.py
BLOCK = 1 << 16  # size of a block: five arrays of this size stay in the cache
BLOCK_OF_THREADS = 1 << 18  # the same with threads, which queue for the interpreter lock
SECOND_THREAD = 1 << 18  # size from which a second thread is worth its start-up time, 30 us
HALVED_ROWS = 1 << 13  # a float32 sum is computed in halves if each half has this many rows

# layers.py
SUMMED_BY_PRODUCT = 512  # width beyond which a product with ones would have biased rounding
SOFTMAX_SUM = 1e-3  # smallest sum of exponentials for which no maximum is subtracted
SMALLEST_SUM, LARGEST_SUM = 1e-15, 1e15  # the same for attention
LONG_ROW = 1 << 13  # width from which a mean computed by one product would lose digits
FAR_FROM_ZERO = 2  # standard deviations from 0 beyond which the mean of a row is corrected
SMALL_DOT = 1 << 13  # size of the larger operand below which BLAS starts no threads
BLAS_PRODUCT = 1 << 21  # multiplications from which BLAS may start its threads
SHARED_PRODUCT = 1 << 25  # multiplications from which our threads share a product
SHARED_ROWS = 384  # rows of the activations from which our threads do so

# attention.py
ATTENTION_BLOCK = 1 << 17  # scores in a block
COLUMNS = 256  # most columns in a block: BLAS adds longer sums less accurately (AVX-512)
LEAST_ROWS = 128  # fewest rows in a block
KEPT_SCORES, KEPT_BYTES = 1 << 19, 64 << 20  # limits per head and in total for kept weights
TILES_BYTES = 32 << 20  # otherwise, the limit for results, gradients and kept weights together

# ops.py, adamw.py
LONG_SUM = 1 << 14  # terms in a sum beyond which float32 loses digits
GATHERED = 1 << 13  # parameters smaller than this are updated together
UPDATED_BLOCK = 1 << 16  # size of a block that is updated at once
