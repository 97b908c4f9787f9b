"""Techniques by name, and what they do. A row of `charcnn.ops.table` has one of them."""

TECHNIQUES = {
    "loops": "compiled plain loops on one CPU core",
    "cpu_gemm": "all CPU cores: a GEMM over overlapping rows by a vector micro-kernel",
    "cpu_blas": "CPU cores: windows laid out as columns of a matrix, multiplied by NumPy's BLAS",
    "cpu_direct": "all CPU cores, few input channels: neighbouring positions fill the vector registers",
    "cpu_gather": "all CPU cores, for token ids: of the weights, the rows of the characters are added up",
    "cpu_vector": "all CPU cores: neighbouring channels, or values of a row, fill the vector registers",
    "naive": "CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory",
    "direct": "CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs",
    "direct_mma": "CUDA, few input channels: an image in shared memory, its weights in registers, by mma.sync",
    "whole": "CUDA, a chain of convolutions in one kernel, one block an input, all features in shared memory",
    "pairs": "CUDA, a chain of convolutions two a kernel, in tiles of positions whose edges are computed twice",
    "tiles": "CUDA, a chain over images in one kernel, one block a tile, whose halo is computed again",
    "rolling": "CUDA, as tiles, by blocks that walk down an image, and keep of each map the rows that are read again",
    "coalesced": "CUDA, one thread an output, neighbouring threads on neighbouring channels",
    "tiled": "CUDA, a matrix product in tiles of shared memory, one thread an output",
    "register_tiled": "CUDA, as tiled, with a tile of sums in each thread's registers",
    "vectorized": "CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes",
    "double_buffered": "CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0)",
    "winograd": "CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products",
    "winograd_cpu": "all CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products",
    "winograd_rows_cpu": "as cpu_direct, with rows filtered four outputs at a time: two fifths of the products at best",
    "gather": "CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied",
    "warp_gather": "CUDA, as gather, each warp by itself, with sums, LayerNorm and features in the precision",
    "lags": "CUDA, for token ids: sums looked up by character, and by pair of characters and their distance",
    "lag_sums": "CUDA, as lags, with a warp an input, and tables in float32 in shared memory",
    "mma": "CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32",
    "wgmma": "Hopper's tensor cores, by wgmma, fed by TMA; sums in float32",
    "wgmma_sparse": "as wgmma, by weights of which two of each four are 0: half of the products (wgmma.mma_async.sp)",
    "row_blocks": "CUDA, some rows a block: what a row's sum and maximum are needed for follows in the same kernel",
    "flash": "CUDA, tiles of keys in shared memory: a running softmax, so that no score leaves the chip",
    "small_batch": "tensor cores, for a few inputs: small parts over the whole GPU, each loading all at once",
}

CPU = ("loops", "cpu_gemm", "cpu_blas", "cpu_direct", "cpu_gather", "winograd_cpu", "winograd_rows_cpu", "cpu_vector")
"""Techniques that run there."""

ASYNCHRONOUS = ("double_buffered", "winograd", "direct", "tiles", "rolling")
"""Techniques in float32 that copy to shared memory by cp.async."""
