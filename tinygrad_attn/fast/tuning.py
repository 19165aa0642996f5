"""Every threshold of this folder. Only time, memory and rounding depend on them.

They were found on an AMD EPYC (Zen 3, AVX2), in float32. Numbers count elements of arrays unless a
line says otherwise.
"""

# blocks.py
BLOCK = 1 << 16  # in a block: five such arrays stay in the cache
BLOCK_OF_THREADS = 1 << 18  # with threads, which queue for the interpreter lock after each call
SECOND_THREAD = 1 << 18  # from where a second thread is worth its start, some 30 us
HALVED_ROWS = 1 << 13  # rows: longer sums of float32 are halved


# layers.py
SUMMED_BY_PRODUCT = 512  # width from where a product with ones would round to one side
SOFTMAX_SUM = 1e-3  # least sum of exponentials from which no maximum is subtracted
SMALLEST_SUM, LARGEST_SUM = 1e-15, 1e15  # the same for attention
LONG_ROW = 1 << 13  # width from where a mean by one product would lose digits
FAR_FROM_ZERO = 2  # standard deviations from where the mean of a row is corrected
SMALL_DOT = 1 << 13  # of the larger operand: below it BLAS starts no threads
BLAS_PRODUCT = 1 << 21  # multiplications from where BLAS may start its threads
SHARED_PRODUCT = 1 << 25  # multiplications from where our threads share a product,
SHARED_ROWS = 384  # if it has so many rows

# attention.py
ATTENTION_BLOCK = 1 << 17  # scores in a block
COLUMNS = 256  # of a block, at most: BLAS adds up longer sums less accurately (AVX-512)
LEAST_ROWS = 128  # of a block
KEPT_SCORES, KEPT_BYTES = 1 << 19, 64 << 20  # of a head, in all: up to which weights are kept
TILES_BYTES = 32 << 20  # else of results, gradients and the weights that are kept
MASK_OF_FLOATS = 1 << 16  # up to which a boolean mask is converted, to multiply faster

# ops.py, adamw.py
LONG_SUM = 1 << 14  # in each sum, from where float32 loses digits
GATHERED = 1 << 14  # in a parameter, up to which it is updated together with others
UPDATED_BLOCK = 1 << 17  # updated at a time
