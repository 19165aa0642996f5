"""Every threshold of this room: how many numbers make which way the quicker one.

Only time, memory and rounding depend on them. Unless a line says otherwise, a limit was found by
timing both ways at sizes around it, float32 and one thread, on an AMD EPYC of Zen 3 (AVX2). The
other machines of `tests/benchmarks/results/` were measured with these limits and not tuned for.
*Elements* are numbers in an array; a *width* is the number of elements in a row.
"""

# ---- blocks of rows, which all kernels share (kernels/rows.py)

# Elements in a block: with some five arrays of it, float32, it stays in the cache.
BLOCK = 1 << 16
# Elements in a block with several threads: each NumPy call ends with a queue for Python's lock.
BLOCK_OF_THREADS = 1 << 18
# Elements, from where a second thread is worth its start, some 30 us; two threads on two cores.
SECOND_THREAD = 1 << 18
# Widths for which NumPy's buffer is made as short as a row: x * r[:, None] takes half the time.
SHORT_BUFFER_WIDTHS = range(160, 4097)
# Elements, from where that gain is worth two calls of setbufsize, 0.5 us.
SHORT_BUFFER = 1 << 13
# Elements of a vector of ones, up to which it is kept for the next call: a vector as long as a data
# set would stay when that is gone. For memory, not for speed.
KEPT_VECTOR = 1 << 19

# ---- sums of rows (kernels/rows.py, ops.py)

# Width, from where a product with ones rounds equal numbers to one side too often. For accuracy.
SUMMED_BY_PRODUCT = 512
# Sums of exponentials, between which no maximum is subtracted; softmax begins higher, so as to lose
# no digits. For accuracy.
SMALLEST_SUM, LARGEST_SUM = 1e-15, 1e15
SOFTMAX_SUM = 1e-3
# Width, from where NumPy adds rows that lie side by side sooner than they could be turned.
SIDE_BY_SIDE = 128
# Elements of a gradient, up to which NumPy's sum over repeated axes takes no cast to float64.
SMALL_SUM = 2048
# Elements of which each sum is made, from where float32 loses digits. For accuracy.
LONG_SUM = 1 << 14

# ---- norms (kernels/rows.py)

# Width, from where the error of a product with ones would show, and how many are then added up by
# one product. For accuracy.
LONG_ROW = 1 << 13
LONG_ROW_PART = 1 << 10
# Standard deviations from 0, from where the mean of a row is corrected. For accuracy.
FAR_FROM_ZERO = 2

# ---- products (kernels/products.py)

# Multiplications, from where a second thread of ours is worth its start; two threads.
SHARED_PRODUCT = 1 << 23
# Rows, below which a product is left to the matrix library, whose threads start sooner than ours.
SHARED_PRODUCT_ROWS = 384
# Multiplications of two stacks of matrices, from where a second thread is worth its start.
SHARED_STACKS = 1 << 24
# Multiplications, below which the library's threads gain less than their spinning costs.
LIBRARY_THREADS = 1 << 21
# Multiplications, below which they hardly take part, and keeping them out would cost more.
TINY_PRODUCT = 1 << 19
# Elements of the left matrix, below which `product` does not look further.
SHORT_PRODUCT = 1 << 14
# Rows of a gradient, from twice which they are added up in two halves. For accuracy.
HALVED_ROWS = 1 << 13

# Multiplications in a piece: up to here OpenBLAS takes its kernel without copies (AVX-512 only; the
# limit is written in its source). Columns of a block that pieces read, on the Intel machine.
PIECE = 1_000_000
PIECE_COLUMNS = 128
# Rows of a piece, below which nothing is gained; twice as many where they lie as columns.
PIECE_ROWS = 16
# Numbers that such a kernel may add up one after the other. For accuracy.
SUMMED_AT_ONCE = 256

# ---- attention (kernels/attention.py, kernels/tiled.py)

# Scores in a block of several heads, half a megabyte of float32; with threads half to twice that.
ATTENTION_BLOCK = 1 << 17
# Scores in all, from where a second thread is worth its start.
SHARED_ATTENTION = 1 << 17
# Rows of a strip under a causal mask at least.
CAUSAL_STRIP = 128
# Scores of one head, up to which all weights are kept: its tiles would be small.
KEPT_ALWAYS = ATTENTION_BLOCK
# Scores of one head, beyond which they do not fit the cache and are never all kept; and in between
# so many bytes of all heads together, since more memory is not worth the time.
KEPT_SCORES = 1 << 19
KEPT_BYTES = 64 << 20
# Bytes that results, gradients and kept tiles of one long attention take together. For memory.
TILES_ROOM = 32 << 20
# Rows and columns of a tile; the columns are a multiple of the rows, so the diagonal meets a tile
# of rows in one tile only.
TILE_ROWS, TILE_COLUMNS = 256, 512
# Elements of a boolean mask, up to which it is made one of floats, which multiplies faster.
MASK_OF_FLOATS = 1 << 16

# ---- choices, functions of each element (ops.py, kernels/elementwise.py)

# Elements, up to which np.where is as quick as a product of bits.
WHERE_BY_CALL = 256
# Elements, from where `where` takes longer than several products.
WHERE_BY_BITS = 1 << 13
# Elements, up to which a choice is soonest made in one call for all.
CHOSEN_AT_ONCE = 1 << 14
# Elements, from where several quick NumPy calls beat np.logaddexp.
LOGADDEXP = 512
# Elements, up to which a repeated number is copied sooner than viewed.
COPIED = 4096

# ---- picking elements and putting them back (indexing.py)

# Width, or elements in all rows, up to which rows are added one number after the other.
ADDED_WIDTH = 48
ADDED_ELEMENTS = 1 << 14
# Elements added in one call of np.add.at, since each needs its place in memory.
ADDED_AT_ONCE = 1 << 16
# Elements taken along an axis, from where it pays to work out their places first.
PLACES = 256

# ---- optimisers (optimizers.py)

# Elements of a parameter, from where gathering it costs more than a call of its own.
GATHERED = 2**14
# Elements updated at a time by one thread: with state and scratch some 2.5 MB.
UPDATED_BLOCK = 2**17
# Elements of all parameters, from where a second thread is worth its hand-off.
SHARED_UPDATE = 2**18

# ---- waiting, and memory that is kept (signals.py, allocator.py)

# Looks at a byte in one call, some 0.3 ns each: 0.2 ms, several times the 30 to 60 us that a
# sleeping thread takes to wake.
LOOKS = 1 << 19
# Bytes of the array that is freed once, a little less than the 32 MB that glibc learns from.
FREED = 31 << 20
