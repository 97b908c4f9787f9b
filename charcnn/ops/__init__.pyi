"""What `charcnn.ops` offers: a name loads, with its own module alone, when it is first used.

Written by `python bench/report.py` from charcnn/ops/table.py.
"""

from collections.abc import Sequence

import numpy as np

from charcnn.aliases import Array, Function, Stream
from charcnn.layers.windows import Padding, Pair

from . import chain as chain
from . import reference as reference
from .prepared import prepare as prepare

# one_hot

def one_hot_loops(ids: np.ndarray, depth: int = 70, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.one_hot` by the technique `loops`.

    Token ids (N, L) -> (N, depth, L): column t is 1 in row ids[n, t]; an id >= depth is blank, all zero.

    Compiled plain loops on one CPU core.

    Position after position.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        depth: int, default 70: values of a one-hot vector.
        out: where to write, float32 (N, depth, L); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, depth, L).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def one_hot_naive(ids: Array, depth: int = 70, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.one_hot` by the technique `naive`.

    Token ids (N, L) -> (N, depth, L): column t is 1 in row ids[n, t]; an id >= depth is blank, all zero.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads write neighbouring positions.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        depth: int, default 70: values of a one-hot vector.
        out: where to write, float32 (N, depth, L); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, depth, L), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# one_hot_nlc

def one_hot_nlc_coalesced(ids: Array, depth: int = 70, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.one_hot_nlc` by the technique `coalesced`.

    one_hot on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    A block for each 64 positions.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        depth: int, default 70: values of a one-hot vector.
        out: where to write, float32 (N, L, depth); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L, depth), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d

def conv1d_loops(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv1d` by the technique `loops`.

    Cross-correlation, as deep-learning frameworks define it.

    Compiled plain loops on one CPU core.

    Output after output.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, C_out, L_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C_out, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def conv1d_cpu_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv1d` by the technique `cpu_gemm`.

    Cross-correlation, as deep-learning frameworks define it.

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Packs the weights at each call, and each task turns its share of x; `CpuConv` keeps weights.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, C_out, L_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C_out, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def conv1d_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d` by the technique `naive`.

    Cross-correlation, as deep-learning frameworks define it.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    ReLU is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, C_out, L_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d_nlc

def conv1d_nlc_coalesced(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_nlc` by the technique `coalesced`.

    conv1d on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    Neighbouring threads read neighbouring weights, and share a feature.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv1d_nlc_tiled(x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.conv1d_nlc` by the technique `tiled`.

    conv1d on channels-last features.

    CUDA, a matrix product in tiles of shared memory, one thread an output. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    Each operand is read from global memory once a tile.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv1d_nlc_register_tiled(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_nlc` by the technique `register_tiled`.

    conv1d on channels-last features.

    CUDA, as tiled, with a tile of sums in each thread's registers. All arrays are NumPy's, or all lie on the device,
    and then nothing waits for the result.

    A value from shared memory serves several sums.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv1d_nlc_vectorized(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_nlc` by the technique `vectorized`.

    conv1d on channels-last features.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Loads are of 32 bits where C_in or C_out is no multiple of 4, or an array starts at no multiple of 16 bytes.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv1d_nlc_double_buffered(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_nlc` by the technique `double_buffered`.

    conv1d on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Rows of the product follow one another in memory, unless a window leaves some out.

    The copies are of 32 bits where C_in or C_out is no multiple of 4, or an array starts at no multiple of 16 bytes.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_nlc_winograd(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_nlc` by the technique `winograd`.

    conv1d on channels-last features.

    CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Weights are transformed first; `WinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_nlc_winograd_cpu(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.conv1d_nlc` by the technique `winograd_cpu`.

    conv1d on channels-last features.

    All CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products.

    Transforms and packs the weights at each call; `CpuWinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it. The same bits
    for any number of threads.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, L_out, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def conv1d_nlc_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_nlc` by the technique `mma`.

    conv1d on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def conv1d_nlc_wgmma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_nlc` by the technique `wgmma`.

    conv1d on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv1d_nlc_wgmma_sparse(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_nlc` by the technique `wgmma_sparse`.

    conv1d on channels-last features.

    As wgmma, by weights of which two of each four are 0: half of the products (wgmma.mma_async.sp). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    For weights of which two of each four neighbouring input channels are 0: other weights are refused.

    Each call packs them, casts the features and the result; `SparseConv` leaves that out. A pooling takes the maximum
    of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "fp8", e4m3, weights and features each scaled to its range, infinities become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; more than two
            of four weights count, or shared memory does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv1d_nlc_small_batch(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_nlc` by the technique `small_batch`.

    conv1d on channels-last features.

    Tensor cores, for a few inputs: small parts over the whole GPU, each loading all at once. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    For a few inputs: weights are laid out and features rounded first; `SmallBatchConv` keeps the one.

    K is at most 7, and a pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# conv1d_relu

def conv1d_relu_cpu_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv1d_relu` by the technique `cpu_gemm`.

    relu(conv1d(...)).

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Packs the weights at each call, and each task turns its share of x; `CpuConv` keeps weights.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, C_out, L_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C_out, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def conv1d_relu_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu` by the technique `naive`.

    relu(conv1d(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    ReLU is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, C_out, L_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d_relu_nlc

def conv1d_relu_nlc_double_buffered(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_nlc` by the technique `double_buffered`.

    conv1d_relu on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Rows of the product follow one another in memory, unless a window leaves some out.

    The copies are of 32 bits where C_in or C_out is no multiple of 4, or an array starts at no multiple of 16 bytes.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_relu_nlc_winograd(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_relu_nlc` by the technique `winograd`.

    conv1d_relu on channels-last features.

    CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Weights are transformed first; `WinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_relu_nlc_winograd_cpu(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.conv1d_relu_nlc` by the technique `winograd_cpu`.

    conv1d_relu on channels-last features.

    All CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products.

    Transforms and packs the weights at each call; `CpuWinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it. The same bits
    for any number of threads.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, L_out, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def conv1d_relu_nlc_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_nlc` by the technique `mma`.

    conv1d_relu on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def conv1d_relu_nlc_wgmma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_nlc` by the technique `wgmma`.

    conv1d_relu on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv1d_relu_nlc_wgmma_sparse(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_relu_nlc` by the technique `wgmma_sparse`.

    conv1d_relu on channels-last features.

    As wgmma, by weights of which two of each four are 0: half of the products (wgmma.mma_async.sp). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    For weights of which two of each four neighbouring input channels are 0: other weights are refused.

    Each call packs them, casts the features and the result; `SparseConv` leaves that out. A pooling takes the maximum
    of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "fp8", e4m3, weights and features each scaled to its range, infinities become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; more than two
            of four weights count, or shared memory does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv1d_relu_nlc_small_batch(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_relu_nlc` by the technique `small_batch`.

    conv1d_relu on channels-last features.

    Tensor cores, for a few inputs: small parts over the whole GPU, each loading all at once. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    For a few inputs: weights are laid out and features rounded first; `SmallBatchConv` keeps the one.

    K is at most 7, and a pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# layernorm

def layernorm_loops(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, eps: float = 1e-05, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.layernorm` by the technique `loops`.

    Each input of x (N, ...) minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    Compiled plain loops on one CPU core.

    Row after row: an input, or for rownorm the last axis.

    Args:
        x: float32 (N, ...), C-contiguous.
        gamma: float32 (...), C-contiguous.
        beta: float32 (...), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, ...) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (N, ...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def layernorm_naive(
    x: Array, gamma: Array, beta: Array, *, eps: float = 1e-05, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.layernorm` by the technique `naive`.

    Each input of x (N, ...) minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block reads its row, an input or for rownorm the last axis, three times: mean, variance, result.

    Args:
        x: float32 (N, ...), C-contiguous.
        gamma: float32 (...), C-contiguous.
        beta: float32 (...), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, ...) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu

def relu_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.relu` by the technique `loops`.

    max(x, 0); NaN stays NaN.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def relu_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.relu` by the technique `naive`.

    max(x, 0); NaN stays NaN.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# maxpool1d

def maxpool1d_loops(
    x: np.ndarray,
    kernel_size: int,
    *,
    stride: int | None = None,
    padding: int = 0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.maxpool1d` by the technique `loops`.

    The maximum of each window of kernel_size positions; stride defaults to kernel_size; padding is -inf.

    Compiled plain loops on one CPU core.

    NaN wins.

    Args:
        x: float32 (N, C, L), C-contiguous.
        kernel_size: int: positions in a window.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        padding: int, default 0: positions added at both ends, of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, L_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, C, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def maxpool1d_naive(
    x: Array,
    kernel_size: int,
    *,
    stride: int | None = None,
    padding: int = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.maxpool1d` by the technique `naive`.

    The maximum of each window of kernel_size positions; stride defaults to kernel_size; padding is -inf.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    NaN wins. ReLU is in the same kernel.

    Args:
        x: float32 (N, C, L), C-contiguous.
        kernel_size: int: positions in a window.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        padding: int, default 0: positions added at both ends, of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, L_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, L_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# collapse

def collapse_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.collapse` by the technique `loops`.

    (N, C, L) -> (N, C*L), or (N, C, H, W) -> (N, C*H*W), channel-major.

    Compiled plain loops on one CPU core.

    A copy.

    Args:
        x: float32 (N, C, L) or (N, C, H, W), C-contiguous.
        out: where to write, float32 (N, C*L) or (N, C*H*W); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C*L) or (N, C*H*W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def collapse_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.collapse` by the technique `naive`.

    (N, C, L) -> (N, C*L), or (N, C, H, W) -> (N, C*H*W), channel-major.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A copy.

    Args:
        x: float32 (N, C, L) or (N, C, H, W), C-contiguous.
        out: where to write, float32 (N, C*L) or (N, C*H*W); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C*L) or (N, C*H*W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear

def linear_loops(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.linear` by the technique `loops`.

    x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> x @ weight.T + bias, (N, ..., C_out).

    Compiled plain loops on one CPU core.

    Output after output.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, ..., C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def linear_cpu_gemm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.linear` by the technique `cpu_gemm`.

    x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> x @ weight.T + bias, (N, ..., C_out).

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Multiplies up to 384 rows with the weights as they lie, and packs weights for more; `CpuConv` packs them once.

    ReLU and GELU are in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, ..., C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def linear_naive(x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.linear` by the technique `naive`.

    x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> x @ weight.T + bias, (N, ..., C_out).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def linear_cpu_blas(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.linear` by the technique `cpu_blas`.

    x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> x @ weight.T + bias, (N, ..., C_out).

    CPU cores: windows laid out as columns of a matrix, multiplied by NumPy's BLAS.

    A product. Bits may depend on the number of threads.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, ..., C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# linear_nlc

def linear_nlc_double_buffered(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_nlc` by the technique `double_buffered`.

    linear on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums of many inputs' values are split, and joined by a second kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def linear_nlc_mma(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_nlc` by the technique `mma`.

    linear on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def linear_nlc_wgmma(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_nlc` by the technique `wgmma`.

    linear on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def linear_nlc_wgmma_sparse(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_nlc` by the technique `wgmma_sparse`.

    linear on channels-last features.

    As wgmma, by weights of which two of each four are 0: half of the products (wgmma.mma_async.sp). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    For weights of which two of each four neighbouring input channels are 0: other weights are refused.

    Each call packs them, casts the features and the result; `SparseConv` leaves that out. A pooling takes the maximum
    of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "fp8", e4m3, weights and features each scaled to its range, infinities become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; more than two
            of four weights count, or shared memory does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# linear_relu

def linear_relu_cpu_gemm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.linear_relu` by the technique `cpu_gemm`.

    relu(linear(...)).

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Multiplies up to 384 rows with the weights as they lie, and packs weights for more; `CpuConv` packs them once.

    ReLU and GELU are in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, ..., C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def linear_relu_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_relu` by the technique `naive`.

    relu(linear(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_relu_nlc

def linear_relu_nlc_double_buffered(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_relu_nlc` by the technique `double_buffered`.

    linear_relu on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums of many inputs' values are split, and joined by a second kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def linear_relu_nlc_mma(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_relu_nlc` by the technique `mma`.

    linear_relu on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def linear_relu_nlc_wgmma(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_relu_nlc` by the technique `wgmma`.

    linear_relu on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def linear_relu_nlc_wgmma_sparse(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_relu_nlc` by the technique `wgmma_sparse`.

    linear_relu on channels-last features.

    As wgmma, by weights of which two of each four are 0: half of the products (wgmma.mma_async.sp). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    For weights of which two of each four neighbouring input channels are 0: other weights are refused.

    Each call packs them, casts the features and the result; `SparseConv` leaves that out. A pooling takes the maximum
    of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "fp8", e4m3, weights and features each scaled to its range, infinities become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; more than two
            of four weights count, or shared memory does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# conv1d_stat

def conv1d_stat_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """`reference.conv1d_stat` by the technique `naive`.

    (y, stat(y)) of y = conv1d(...).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One block takes the moments of a part of an input as it writes it, and a second kernel joins the parts.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, a pair, float32 (N, C_out, L_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d_stat_nlc

def conv1d_stat_nlc_double_buffered(
    x: Array, weight: Array, bias: Array, *, out: tuple[Array, Array] | None = None, stream: Stream = None
) -> tuple[Array, Array]:
    """`reference.conv1d_stat_nlc` by the technique `double_buffered`.

    (y, stat(y)) of y = conv1d_nlc(...).

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    The moments of a tile are taken before it is stored.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, a pair, float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_stat_nlc_winograd(
    x: Array, weight: Array, bias: Array, *, out: tuple[Array, Array] | None = None, stream: Stream = None
) -> tuple[Array, Array]:
    """`reference.conv1d_stat_nlc` by the technique `winograd`.

    (y, stat(y)) of y = conv1d_nlc(...).

    CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Weights are transformed first; `WinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, a pair, float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_stat_nlc_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """`reference.conv1d_stat_nlc` by the technique `mma`.

    (y, stat(y)) of y = conv1d_nlc(...).

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, a pair, float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def conv1d_stat_nlc_wgmma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """`reference.conv1d_stat_nlc` by the technique `wgmma`.

    (y, stat(y)) of y = conv1d_nlc(...).

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, a pair, float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# layernorm_relu

def layernorm_relu_naive(
    x: Array,
    stat: Array,
    gamma: Array,
    beta: Array,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.layernorm_relu` by the technique `naive`.

    relu(layernorm(...)) with `stat` (N, 2), each input's mean and biased variance, as `stat` gives it.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    The producer of x took its statistics.

    Args:
        x: float32 (N, ...), C-contiguous.
        stat: float64 (N, 2), C-contiguous, each input's mean and biased variance.
        gamma: float32 (...), C-contiguous.
        beta: float32 (...), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, ...) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu_maxpool1d

def relu_maxpool1d_naive(
    x: Array,
    kernel_size: int,
    *,
    stride: int | None = None,
    padding: int = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.relu_maxpool1d` by the technique `naive`.

    maxpool1d(relu(x), ...).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    NaN wins. ReLU is in the same kernel.

    Args:
        x: float32 (N, C, L), C-contiguous.
        kernel_size: int: positions in a window.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        padding: int, default 0: positions added at both ends, of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, L_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, L_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d_relu_maxpool1d

def conv1d_relu_maxpool1d_naive(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    pool_stride: int | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_maxpool1d` by the technique `naive`.

    maxpool1d(relu(conv1d(...)), pool_size, stride=pool_stride).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread computes the convolution of its whole window, and only the maximum is written.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        pool_stride: int | None, default None: from one of these windows to the next, likewise; pool_size where None.
        out: where to write, float32 (N, C_out, L_pooled); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_pooled), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d_relu_maxpool1d_nlc

def conv1d_relu_maxpool1d_nlc_double_buffered(
    x: Array, weight: Array, bias: Array, pool_size: int, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `double_buffered`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Pooled in the same kernel: a pool_size-th is stored.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; or pool_size is more than a tile's
            positions.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_relu_maxpool1d_nlc_winograd(
    x: Array, weight: Array, bias: Array, pool_size: int, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `winograd`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Weights are transformed first; `WinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_relu_maxpool1d_nlc_winograd_cpu(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, pool_size: int, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `winograd_cpu`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    All CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products.

    Pooled in the last pass: a pool_size-th is stored.

    Transforms and packs the weights at each call. The same bits for any number of threads.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.

    Returns:
        float32 (N, L_out // pool_size, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def conv1d_relu_maxpool1d_nlc_mma(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `mma`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def conv1d_relu_maxpool1d_nlc_wgmma(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `wgmma`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv1d_relu_maxpool1d_nlc_wgmma_sparse(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `wgmma_sparse`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    As wgmma, by weights of which two of each four are 0: half of the products (wgmma.mma_async.sp). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    For weights of which two of each four neighbouring input channels are 0: other weights are refused.

    Each call packs them, casts the features and the result; `SparseConv` leaves that out. A pooling takes the maximum
    of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "fp8", e4m3, weights and features each scaled to its range, infinities become its greatest.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; more than two
            of four weights count, or shared memory does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv1d_relu_maxpool1d_nlc_small_batch(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv1d_relu_maxpool1d_nlc` by the technique `small_batch`.

    The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out).

    Tensor cores, for a few inputs: small parts over the whole GPU, each loading all at once. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    For a few inputs: weights are laid out and features rounded first; `SmallBatchConv` keeps the one.

    K is at most 7, and a pooling takes the maximum of 3.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# layernorm_relu_maxpool1d

def layernorm_relu_maxpool1d_naive(
    x: Array,
    stat: Array,
    gamma: Array,
    beta: Array,
    kernel_size: int,
    *,
    eps: float = 1e-05,
    stride: int | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.layernorm_relu_maxpool1d` by the technique `naive`.

    maxpool1d(layernorm_relu(...), kernel_size).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features are read once, and a stride-th is written.

    Args:
        x: float32 (N, C, L), C-contiguous.
        stat: float64 (N, 2), C-contiguous, each input's mean and biased variance.
        gamma: float32 (C, L), C-contiguous.
        beta: float32 (C, L), C-contiguous.
        kernel_size: int: positions in a window.
        eps: float, default 1e-05: added to the variance, greater than 0.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        out: where to write, float32 (N, C, L_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, L_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# layernorm_relu_maxpool1d_nlc

def layernorm_relu_maxpool1d_nlc_coalesced(
    x: Array,
    stat: Array,
    gamma: Array,
    beta: Array,
    kernel_size: int,
    *,
    eps: float = 1e-05,
    stride: int | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.layernorm_relu_maxpool1d_nlc` by the technique `coalesced`.

    layernorm_relu_maxpool1d on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    A block for each pooled position of 8 inputs.

    Args:
        x: float32 (N, L, C), C-contiguous.
        stat: float64 (N, 2), C-contiguous, each input's mean and biased variance.
        gamma: float32 (L, C), C-contiguous.
        beta: float32 (L, C), C-contiguous.
        kernel_size: int: positions in a window.
        eps: float, default 1e-05: added to the variance, greater than 0.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        out: where to write, float32 (N, L_out, C); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def layernorm_relu_maxpool1d_nlc_vectorized(
    x: Array,
    stat: Array,
    gamma: Array,
    beta: Array,
    kernel_size: int,
    *,
    eps: float = 1e-05,
    stride: int | None = None,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.layernorm_relu_maxpool1d_nlc` by the technique `vectorized`.

    layernorm_relu_maxpool1d on channels-last features.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    `normalised_maxima` from float32 to float32, rounded to the precision on the way in and out.

    Args:
        x: float32 (N, L, C), C-contiguous.
        stat: float64 (N, 2), C-contiguous, each input's mean and biased variance.
        gamma: float32 (L, C), C-contiguous.
        beta: float32 (L, C), C-contiguous.
        kernel_size: int: positions in a window.
        eps: float, default 1e-05: added to the variance, greater than 0.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, float32 (N, L_out, C); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat

def conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    weight3: Array,
    bias3: Array,
    weight4: Array,
    bias4: Array,
    *,
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """`reference.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat` by the technique `whole`.

    The convolutions of blocks 3 to 6, and the statistics for block 6's layernorm: (y, stat(y)).

    CUDA, a chain of convolutions in one kernel, one block an input, all features in shared memory. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Four convolutions in one kernel, one block an input, every feature map in shared memory, nothing recomputed.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight1: float32 (C_out, C_in, K), C-contiguous.
        bias1: float32 (C_out,), C-contiguous.
        weight2: float32 (C_out, C_in, K), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        weight3: float32 (C_out, C_in, K), C-contiguous.
        bias3: float32 (C_out,), C-contiguous.
        weight4: float32 (C_out, C_in, K), C-contiguous.
        bias4: float32 (C_out,), C-contiguous.
        out: where to write, a pair, float32 (N, C_out, L_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; the maps do not fit shared memory.
        DeviceError: no usable GPU.
    """

def conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    weight3: Array,
    bias3: Array,
    weight4: Array,
    bias4: Array,
    *,
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """`reference.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat` by the technique `pairs`.

    The convolutions of blocks 3 to 6, and the statistics for block 6's layernorm: (y, stat(y)).

    CUDA, a chain of convolutions two a kernel, in tiles of positions whose edges are computed twice. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Two kernels of two convolutions, a block a tile of positions: the tiles' halos are recomputed.

    One map goes through global memory, and a third kernel joins the statistics of an input's tiles. Each call allocates
    that map: `plan(...).compile()` takes a workspace.

    Args:
        x: float32 (N, C_in, L), C-contiguous.
        weight1: float32 (C_out, C_in, K), C-contiguous.
        bias1: float32 (C_out,), C-contiguous.
        weight2: float32 (C_out, C_in, K), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        weight3: float32 (C_out, C_in, K), C-contiguous.
        bias3: float32 (C_out,), C-contiguous.
        weight4: float32 (C_out, C_in, K), C-contiguous.
        bias4: float32 (C_out,), C-contiguous.
        out: where to write, a pair, float32 (N, C_out, L_out), and float64 (N, 2), each input's mean and biased
            variance; made where None. Or a function that gives the first, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_out), and float64 (N, 2), each input's mean and biased variance, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; the maps do not fit shared memory.
        DeviceError: no usable GPU.
    """

# linear_relu_linear

def linear_relu_linear_naive(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.linear_relu_linear` by the technique `naive`.

    linear(linear_relu(x, weight1, bias1), weight2, bias2).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One block for up to 8 inputs, their middle layer in shared memory; with GELU a transformer's feed-forward block.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight1: float32 (C_mid, C_in), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_out, C_mid), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; C_mid is more than 12,032, which shared
            memory holds.
        DeviceError: no usable GPU.
    """

# one_hot_conv1d

def one_hot_conv1d_cpu_gather(
    ids: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.one_hot_conv1d` by the technique `cpu_gather`.

    conv1d(one_hot(ids, depth), ...) for a weight (C_out, depth, K).

    All CPU cores, for token ids: of the weights, the rows of the characters are added up.

    The same bits for any number of threads.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (C_out, depth, K), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, C_out, L_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C_out, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# one_hot_conv1d_nlc

def one_hot_conv1d_nlc_gather(
    ids: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.one_hot_conv1d_nlc` by the technique `gather`.

    one_hot_conv1d on channels-last features.

    CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One thread an output, which adds up K weights.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, L_out, C_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# one_hot_conv1d_stat_nlc

def one_hot_conv1d_stat_nlc_lags(
    ids: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.one_hot_conv1d_stat_nlc` by the technique `lags`.

    stat(one_hot_conv1d_nlc(...)) alone: (N, 2).

    CUDA, for token ids: sums looked up by character, and by pair of characters and their distance. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    One block an input. It makes the tables of the weights' products first; `PairTables` keeps them.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float64 (N, 2); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float64 (N, 2), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def one_hot_conv1d_stat_nlc_lag_sums(
    ids: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.one_hot_conv1d_stat_nlc` by the technique `lag_sums`.

    stat(one_hot_conv1d_nlc(...)) alone: (N, 2).

    CUDA, as lags, with a warp an input, and tables in float32 in shared memory. All arrays are NumPy's, or all lie on
    the device, and then nothing waits for the result.

    On Hopper's GPUs few inputs take `cluster_moments`. It makes the tables first; `SharedPairTables` keeps them.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float64 (N, 2); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float64 (N, 2), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; as of `SharedPairTables`.
        DeviceError: no usable GPU.
    """

# one_hot_conv1d_relu_maxpool1d_nlc

def one_hot_conv1d_relu_maxpool1d_nlc_gather(
    ids: Array, weight: Array, bias: Array, pool_size: int, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.one_hot_conv1d_relu_maxpool1d_nlc` by the technique `gather`.

    The maximum of each pool_size positions of relu(one_hot_conv1d_nlc(...)): (N, L_out // pool_size, C_out).

    CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    From a table in shared memory: only results are written.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; shared memory does not hold the table of
            four channels, or a window's ids.
        DeviceError: no usable GPU.
    """

def one_hot_conv1d_relu_maxpool1d_nlc_warp_gather(
    ids: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.one_hot_conv1d_relu_maxpool1d_nlc` by the technique `warp_gather`.

    The maximum of each pool_size positions of relu(one_hot_conv1d_nlc(...)): (N, L_out // pool_size, C_out).

    CUDA, as gather, each warp by itself, with sums, LayerNorm and features in the precision. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    Rounds the weights first, and widens the result last; `TokenConvWeights` keeps the one, and leaves that out.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# one_hot_conv1d_layernorm_relu_maxpool1d_nlc

def one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather(
    ids: Array,
    stat: Array,
    weight: Array,
    bias: Array,
    gamma: Array,
    beta: Array,
    pool_size: int,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc` by the technique `gather`.

    layernorm_relu_maxpool1d_nlc(one_hot_conv1d_nlc(...), stat, gamma, beta, pool_size).

    CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    From a table in shared memory, the whole of block 1 in one pass: gamma and beta are read once for many inputs.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        stat: float64 (N, 2), C-contiguous, each input's mean and biased variance.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        gamma: float32 (L_out, C_out), C-contiguous.
        beta: float32 (L_out, C_out), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; shared memory does not hold the table of
            four channels, or a window's ids.
        DeviceError: no usable GPU.
    """

def one_hot_conv1d_layernorm_relu_maxpool1d_nlc_warp_gather(
    ids: Array,
    stat: Array,
    weight: Array,
    bias: Array,
    gamma: Array,
    beta: Array,
    pool_size: int,
    *,
    eps: float = 1e-05,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc` by the technique `warp_gather`.

    layernorm_relu_maxpool1d_nlc(one_hot_conv1d_nlc(...), stat, gamma, beta, pool_size).

    CUDA, as gather, each warp by itself, with sums, LayerNorm and features in the precision. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    Rounds the weights first, and widens the result last; `TokenConvWeights` keeps the one, and leaves that out.

    Args:
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        stat: float64 (N, 2), C-contiguous, each input's mean and biased variance.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        gamma: float32 (L_out, C_out), C-contiguous.
        beta: float32 (L_out, C_out), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        eps: float, default 1e-05: added to the variance, greater than 0.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, float32 (N, L_out // pool_size, C_out); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L_out // pool_size, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# softmax

def softmax_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.softmax` by the technique `loops`.

    Logits (..., C) -> probabilities (..., C), each row summing to 1; the row's maximum is subtracted first.

    Compiled plain loops on one CPU core.

    Row after row.

    Args:
        x: float32 (..., C), C-contiguous.
        out: where to write, float32 (..., C) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (..., C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def softmax_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.softmax` by the technique `naive`.

    Logits (..., C) -> probabilities (..., C), each row summing to 1; the row's maximum is subtracted first.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One block a row.

    Args:
        x: float32 (..., C), C-contiguous.
        out: where to write, float32 (..., C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def softmax_cpu_vector(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.softmax` by the technique `cpu_vector`.

    Logits (..., C) -> probabilities (..., C), each row summing to 1; the row's maximum is subtracted first.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task a row, whose exponentials fill the vector registers.

    Args:
        x: float32 (..., C), C-contiguous.
        out: where to write, float32 (..., C); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (..., C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def softmax_vectorized(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.softmax` by the technique `vectorized`.

    Logits (..., C) -> probabilities (..., C), each row summing to 1; the row's maximum is subtracted first.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A row has as many lanes as it has fours of values, up to a warp; short rows share one.

    Args:
        x: float32 (..., C), C-contiguous.
        out: where to write, float32 (..., C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; more than 2,048 values a row.
        DeviceError: no usable GPU.
    """

# argmax

def argmax_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.argmax` by the technique `loops`.

    Logits (N, ..., C) -> the index of each row's maximum, (N, ...) int64; of equals the first, and NaN wins.

    Compiled plain loops on one CPU core.

    Of equals the first; NaN counts as the greatest.

    Args:
        x: float32 (N, ..., C), C-contiguous.
        out: where to write, int64 (N, ...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        int64 (N, ...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def argmax_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.argmax` by the technique `naive`.

    Logits (N, ..., C) -> the index of each row's maximum, (N, ...) int64; of equals the first, and NaN wins.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Of equals the first; NaN counts as the greatest.

    Args:
        x: float32 (N, ..., C), C-contiguous.
        out: where to write, int64 (N, ...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        int64 (N, ...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def argmax_cpu_vector(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.argmax` by the technique `cpu_vector`.

    Logits (N, ..., C) -> the index of each row's maximum, (N, ...) int64; of equals the first, and NaN wins.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Of equals the first; NaN counts as the greatest.

    Args:
        x: float32 (N, ..., C), C-contiguous.
        out: where to write, int64 (N, ...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        int64 (N, ...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def argmax_vectorized(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.argmax` by the technique `vectorized`.

    Logits (N, ..., C) -> the index of each row's maximum, (N, ...) int64; of equals the first, and NaN wins.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A row has as many lanes as it has fours of values, up to a warp. Of equals the first; NaN is the greatest.

    Args:
        x: float32 (N, ..., C), C-contiguous.
        out: where to write, int64 (N, ...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        int64 (N, ...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# embedding

def embedding_loops(
    tokens: np.ndarray,
    weight: np.ndarray,
    positions: np.ndarray,
    types: np.ndarray,
    type_ids: np.ndarray | None = None,
    *,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.embedding` by the technique `loops`.

    weight[tokens[n, s]] + positions[s] + types[type_ids[n, s]]: what BERT normalises before its first layer.

    Compiled plain loops on one CPU core.

    Token after token.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N, S, H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def embedding_naive(
    tokens: Array,
    weight: Array,
    positions: Array,
    types: Array,
    type_ids: Array | None = None,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.embedding` by the technique `naive`.

    weight[tokens[n, s]] + positions[s] + types[type_ids[n, s]]: what BERT normalises before its first layer.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads read and write neighbouring features.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, S, H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def embedding_cpu_vector(
    tokens: np.ndarray,
    weight: np.ndarray,
    positions: np.ndarray,
    types: np.ndarray,
    type_ids: np.ndarray | None = None,
    *,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.embedding` by the technique `cpu_vector`.

    weight[tokens[n, s]] + positions[s] + types[type_ids[n, s]]: what BERT normalises before its first layer.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task a token.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N, S, H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def embedding_vectorized(
    tokens: Array,
    weight: Array,
    positions: Array,
    types: Array,
    type_ids: Array | None = None,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.embedding` by the technique `vectorized`.

    weight[tokens[n, s]] + positions[s] + types[type_ids[n, s]]: what BERT normalises before its first layer.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A token has as many lanes as its row has fours of features, up to a warp: its id is read once.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, S, H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# embedding_rownorm

def embedding_rownorm_naive(
    tokens: Array,
    weight: Array,
    positions: Array,
    types: Array,
    gamma: Array,
    beta: Array,
    type_ids: Array | None = None,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.embedding_rownorm` by the technique `naive`.

    rownorm(embedding(...), ...).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block a token: it writes the sum to its row, and reads that twice more, for variance and result.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, S, H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def embedding_rownorm_cpu_vector(
    tokens: np.ndarray,
    weight: np.ndarray,
    positions: np.ndarray,
    types: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    type_ids: np.ndarray | None = None,
    *,
    eps: float = 1e-05,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.embedding_rownorm` by the technique `cpu_vector`.

    rownorm(embedding(...), ...).

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task a token: its row is written to `out`, and normalised there.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N, S, H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def embedding_rownorm_vectorized(
    tokens: Array,
    weight: Array,
    positions: Array,
    types: Array,
    gamma: Array,
    beta: Array,
    type_ids: Array | None = None,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.embedding_rownorm` by the technique `vectorized`.

    rownorm(embedding(...), ...).

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A token has as many lanes as its row has fours of features, up to a warp, which keep the sum in registers.

    Args:
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, S, H); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, S, H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; more than 2,048 features.
        DeviceError: no usable GPU.
    """

# rownorm

def rownorm_loops(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, eps: float = 1e-05, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.rownorm` by the technique `loops`.

    Each row of the last axis minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    Compiled plain loops on one CPU core.

    Row after row: an input, or for rownorm the last axis.

    Args:
        x: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (..., H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def rownorm_naive(
    x: Array, gamma: Array, beta: Array, *, eps: float = 1e-05, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.rownorm` by the technique `naive`.

    Each row of the last axis minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block reads its row, an input or for rownorm the last axis, three times: mean, variance, result.

    Args:
        x: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def rownorm_cpu_vector(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, eps: float = 1e-05, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.rownorm` by the technique `cpu_vector`.

    Each row of the last axis minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task a row.

    Args:
        x: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (..., H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def rownorm_vectorized(
    x: Array, gamma: Array, beta: Array, *, eps: float = 1e-05, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.rownorm` by the technique `vectorized`.

    Each row of the last axis minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A warp a row, which it keeps in registers between its sums: x is read once.

    Args:
        x: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; more than 2,048 values a row.
        DeviceError: no usable GPU.
    """

# add_rownorm

def add_rownorm_loops(
    x: np.ndarray,
    residual: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    *,
    eps: float = 1e-05,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.add_rownorm` by the technique `loops`.

    rownorm(x + residual, ...).

    Compiled plain loops on one CPU core.

    Row after row: the sum is written to `out`, and normalised there.

    Args:
        x: float32 (..., H), C-contiguous.
        residual: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (..., H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def add_rownorm_naive(
    x: Array,
    residual: Array,
    gamma: Array,
    beta: Array,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.add_rownorm` by the technique `naive`.

    rownorm(x + residual, ...).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block reads its row of both three times: mean, variance, result.

    Args:
        x: float32 (..., H), C-contiguous.
        residual: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def add_rownorm_cpu_vector(
    x: np.ndarray,
    residual: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    *,
    eps: float = 1e-05,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.add_rownorm` by the technique `cpu_vector`.

    rownorm(x + residual, ...).

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task a row.

    Args:
        x: float32 (..., H), C-contiguous.
        residual: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (..., H).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def add_rownorm_vectorized(
    x: Array,
    residual: Array,
    gamma: Array,
    beta: Array,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.add_rownorm` by the technique `vectorized`.

    rownorm(x + residual, ...).

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A warp a row, whose sums it keeps in registers: x and residual are read once.

    Args:
        x: float32 (..., H), C-contiguous.
        residual: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        beta: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (..., H) (x itself will do); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., H), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; more than 2,048 values a row.
        DeviceError: no usable GPU.
    """

# attention

def attention_loops(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray | None = None,
    causal: bool = False,
    *,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.attention` by the technique `loops`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    Compiled plain loops on one CPU core.

    Query after query: its scores, their softmax, and the sum of the values by these weights.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, heads, S, d).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def attention_cpu_vector(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray | None = None,
    causal: bool = False,
    *,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.attention` by the technique `cpu_vector`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task takes 64 queries along all keys: no score is written to memory.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, heads, S, d).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def attention_naive(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array | None = None,
    causal: bool = False,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.attention` by the technique `naive`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a score, a block a row of the softmax, a thread a result; scores and weights lie in global memory.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, heads, S, d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def attention_row_blocks(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array | None = None,
    causal: bool = False,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.attention` by the technique `row_blocks`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    CUDA, some rows a block: what a row's sum and maximum are needed for follows in the same kernel. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A block has 16 queries of a head: it writes their scores, and each warp turns a row to weights before it ends.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, heads, S, d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def attention_flash(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array | None = None,
    causal: bool = False,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.attention` by the technique `flash`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    CUDA, tiles of keys in shared memory: a running softmax, so that no score leaves the chip. All arrays are NumPy's,
    or all lie on the device, and then nothing waits for the result.

    Products are in float32. Tiles of keys that no query of the block sees are left out.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, heads, S, d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; more than 128 features a head.
        DeviceError: no usable GPU.
    """

def attention_mma(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array | None = None,
    causal: bool = False,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.attention` by the technique `mma`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call casts q, k, v and the results.

    If causal, values that are not finite reach the results of all queries of their tile.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, heads, S, d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; d is not 32, 64
            or 128.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def attention_wgmma(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array | None = None,
    causal: bool = False,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.attention` by the technique `wgmma`.

    softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call casts q, k, v and the results; `WgmmaAttention` leaves that out.

    If causal, values that are not finite reach the results of all queries of their tile.

    Args:
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, heads, S, d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; d is not 32, 64
            or 128.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# packed_attention

def packed_attention_loops(
    qkv: np.ndarray, offsets: np.ndarray, heads: int, causal: bool = False, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.packed_attention` by the technique `loops`.

    attention(...) of inputs that lie one behind another: input n has the rows offsets[n] to offsets[n + 1].

    Compiled plain loops on one CPU core.

    Query after query.

    Args:
        qkv: float32 (T, 3 * heads * d), C-contiguous.
        offsets: int32 (N + 1,), C-contiguous, where each input begins, ascending from 0; the last one is the number of
            rows.
        heads: int: of a row's queries, keys and values alike.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (T, heads * d); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (T, heads * d).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; offsets do not ascend from 0 to the number of
            rows.
    """

def packed_attention_cpu_vector(
    qkv: np.ndarray, offsets: np.ndarray, heads: int, causal: bool = False, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.packed_attention` by the technique `cpu_vector`.

    attention(...) of inputs that lie one behind another: input n has the rows offsets[n] to offsets[n + 1].

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    A task takes 64 queries of a head along its input's keys: no score is written to memory.

    Args:
        qkv: float32 (T, 3 * heads * d), C-contiguous.
        offsets: int32 (N + 1,), C-contiguous, where each input begins, ascending from 0; the last one is the number of
            rows.
        heads: int: of a row's queries, keys and values alike.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (T, heads * d); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (T, heads * d).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; offsets do not ascend from 0 to the number of
            rows.
    """

def packed_attention_naive(
    qkv: Array, offsets: Array, heads: int, causal: bool = False, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.packed_attention` by the technique `naive`.

    attention(...) of inputs that lie one behind another: input n has the rows offsets[n] to offsets[n + 1].

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block a query of a head, with a running softmax over 128 keys at a time. Offsets are not checked.

    Args:
        qkv: float32 (T, 3 * heads * d), C-contiguous.
        offsets: int32 (N + 1,), C-contiguous, where each input begins, ascending from 0; the last one is the number of
            rows.
        heads: int: of a row's queries, keys and values alike.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, float32 (T, heads * d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (T, heads * d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def packed_attention_wgmma(
    qkv: Array,
    offsets: Array,
    heads: int,
    causal: bool = False,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.packed_attention` by the technique `wgmma`.

    attention(...) of inputs that lie one behind another: input n has the rows offsets[n] to offsets[n + 1].

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call casts the rows and the results; `WgmmaAttention.of_rows` leaves that out. Offsets are not checked.

    If causal, values that are not finite reach the results of all queries of their tile.

    Args:
        qkv: float32 (T, 3 * heads * d), C-contiguous.
        offsets: int32 (N + 1,), C-contiguous, where each input begins, ascending from 0; the last one is the number of
            rows.
        heads: int: of a row's queries, keys and values alike.
        causal: bool, default False: whether a query sees no key behind its own position.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, float32 (T, heads * d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (T, heads * d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; d is not 32, 64
            or 128.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# heads_apart

def heads_apart_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.heads_apart` by the technique `loops`.

    (N, S, heads, d) -> (N, heads, S, d): the features of each head one behind another; and back again.

    Compiled plain loops on one CPU core.

    Row after row.

    Args:
        x: float32 (N, S, heads, d), C-contiguous.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, heads, S, d).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def heads_apart_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.heads_apart` by the technique `naive`.

    (N, S, heads, d) -> (N, heads, S, d): the features of each head one behind another; and back again.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring features of a head.

    Args:
        x: float32 (N, S, heads, d), C-contiguous.
        out: where to write, float32 (N, heads, S, d); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, heads, S, d), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# add

def add_loops(x: np.ndarray, residual: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.add` by the technique `loops`.

    x + residual.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        residual: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def add_naive(x: Array, residual: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.add` by the technique `naive`.

    x + residual.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        x: float32 (...), C-contiguous.
        residual: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# collapse_linear

def collapse_linear_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.collapse_linear` by the technique `naive`.

    linear(collapse(x), weight, bias).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, C, L) or (N, C, H, W), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, C_out); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_softmax

def linear_softmax_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_softmax` by the technique `naive`.

    softmax(linear(...)): x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> probabilities (N, ..., C_out).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One block an input: logits are written once, and turned where they lie.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_argmax

def linear_argmax_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_argmax` by the technique `naive`.

    argmax(linear(...)): x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> labels (N, ...) int64.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One block an input: no logit leaves the chip. Of equals the first; NaN counts as the greatest.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, int64 or uint8 (N, ...); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        int64 (N, ...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; `out` is of uint8, a byte a label, and
            there are more than 256 classes.
        DeviceError: no usable GPU.
    """

# conv2d

def conv2d_loops(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d` by the technique `loops`.

    Cross-correlation, as deep-learning frameworks define it.

    Compiled plain loops on one CPU core.

    Output after output.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def conv2d_cpu_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d` by the technique `cpu_gemm`.

    Cross-correlation, as deep-learning frameworks define it.

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Packs the weights at each call, and each task turns its share of x; `CpuConv` keeps weights.

    It takes channels-last features. ReLU is in the last pass, over sums in cache. The same bits for any number of
    threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; a group has one input channel; or the
            environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_cpu_blas(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d` by the technique `cpu_blas`.

    Cross-correlation, as deep-learning frameworks define it.

    CPU cores: windows laid out as columns of a matrix, multiplied by NumPy's BLAS.

    A product an input and group. Bits may depend on the number of threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def conv2d_cpu_direct(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d` by the technique `cpu_direct`.

    Cross-correlation, as deep-learning frameworks define it.

    All CPU cores, few input channels: neighbouring positions fill the vector registers.

    Nothing is lowered to a matrix, and features stay channels first.

    It is meant for few input channels, of which the GEMM over overlapping rows (`cpu_gemm`) has short rows. ReLU is
    applied before sums leave the cache. The same bits for any number of threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; groups are more than 1; or the environment's
            CHARCNN_CPU_TILE does not fit.
    """

def conv2d_winograd_rows_cpu(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d` by the technique `winograd_rows_cpu`.

    Cross-correlation, as deep-learning frameworks define it.

    As cpu_direct, with rows filtered four outputs at a time: two fifths of the products at best.

    Two fifths of the multiplications of 5 columns, or half of those of 3, for few input channels.

    Stride, dilation and groups are 1, and a kernel has 2 to 5 columns. Weights are transformed at each call. A feature
    that is not finite may make NaN of all outputs that share a tile with one that reads it. The same bits for any
    number of threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; stride, dilation, groups or columns are others;
            or the environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d` by the technique `naive`.

    Cross-correlation, as deep-learning frameworks define it.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q). Depthwise convolutions (groups = C_in) are served here.

    What follows is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv2d_direct(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d` by the technique `direct`.

    Cross-correlation, as deep-learning frameworks define it.

    CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and weights are small of up to some six input channels, which it is meant for.

    More work as long as a strip of all of them fits in shared memory.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; groups are more than 1; a strip does not
            fit in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_direct_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d` by the technique `direct_mma`.

    Cross-correlation, as deep-learning frameworks define it.

    CUDA, few input channels: an image in shared memory, its weights in registers, by mma.sync. All arrays are NumPy's,
    or all lie on the device, and then nothing waits for the result.

    All weights of 16 output channels must fit in a thread's registers: it is meant for some six input channels.

    Stride, dilation and groups are 1. In fp16 and fp16x3 x loses digits below 2^-14, as float16 does.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; stride,
            dilation or groups are more than 1; weights do not fit in registers, or an image not in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv2d_nhwc

def conv2d_nhwc_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_nhwc` by the technique `mma`.

    conv2d on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; the layer `MmaConv` leaves all that out.

    With more than one group, each has a multiple of 32 output channels, and of 8 input channels, in fp8 of 16.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; groups have
            other channels; in fp8, a GPU of compute capability below 8.9.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_nhwc_wgmma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_nhwc` by the technique `wgmma`.

    conv2d on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; the layer `WgmmaConv` leaves all that out.

    Strides are up to 8, a window spans up to 128 pixels. With more than one group, each has a multiple of 32 output
    channels, and of 16 bytes of input channels.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; stride,
            dilation or groups are others.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv2d_nhwc_cpu_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_nhwc` by the technique `cpu_gemm`.

    conv2d on channels-last features.

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Packs the weights at each call; `CpuConv` keeps them.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, H_out, W_out, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; a group has one input channel; or the
            environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_nhwc_winograd_cpu(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_nhwc` by the technique `winograd_cpu`.

    conv2d on channels-last features.

    All CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products.

    A half to a quarter of the multiplications. Packs the weights at each call; `CpuWinogradConv` keeps them.

    Stride and dilation are 1, groups too, or of a kernel of 3 to 5 rows and columns any. A feature that is not finite
    may make NaN of all pixels that share a tile with one that reads it. The same bits for any number of threads.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, H_out, W_out, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; Winograd's filtering cannot take these moves; or
            the environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_nhwc_double_buffered(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_nhwc` by the technique `double_buffered`.

    conv2d on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Nothing is copied beforehand: copies from an image leave zeros in shared memory for what lies outside.

    The copies are of 32 bits where C_in or C_out of a group is no multiple of 4, or an array starts at no multiple of
    16 bytes.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_nhwc_winograd(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_nhwc` by the technique `winograd`.

    conv2d on channels-last features.

    CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    As few multiplications as float32 allows. Weights are transformed first; `WinogradConv` keeps them.

    Stride, dilation and groups are 1. A feature that is not finite may make NaN of all pixels that share a tile with
    one that reads it.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; stride, dilation or groups are not 1.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# tanh

def tanh_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.tanh` by the technique `loops`.

    The hyperbolic tangent of each value; NaN stays NaN.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def tanh_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.tanh` by the technique `naive`.

    The hyperbolic tangent of each value; NaN stays NaN.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def tanh_cpu_vector(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.tanh` by the technique `cpu_vector`.

    The hyperbolic tangent of each value; NaN stays NaN.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Tanh is by a rational function, off by at most 3.4e-7 of each value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# gelu

def gelu_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.gelu` by the technique `loops`.

    x times the normal distribution function of x, (1 + erf(x / sqrt(2))) / 2: PyTorch's default, not the tanh form.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def gelu_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.gelu` by the technique `naive`.

    x times the normal distribution function of x, (1 + erf(x / sqrt(2))) / 2: PyTorch's default, not the tanh form.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def gelu_cpu_vector(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.gelu` by the technique `cpu_vector`.

    x times the normal distribution function of x, (1 + erf(x / sqrt(2))) / 2: PyTorch's default, not the tanh form.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Tanh is by a rational function, off by at most 3.4e-7 of each value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# sigmoid

def sigmoid_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.sigmoid` by the technique `loops`.

    1 / (1 + exp(-x)); NaN stays NaN.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def sigmoid_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.sigmoid` by the technique `naive`.

    1 / (1 + exp(-x)); NaN stays NaN.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def sigmoid_cpu_vector(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.sigmoid` by the technique `cpu_vector`.

    1 / (1 + exp(-x)); NaN stays NaN.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Tanh is by a rational function, off by at most 3.4e-7 of each value.

    Args:
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# leaky_relu

def leaky_relu_loops(
    x: np.ndarray, negative_slope: float = 0.01, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.leaky_relu` by the technique `loops`.

    x, or negative_slope times x where x is below 0; NaN stays NaN.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        negative_slope: float, default 0.01: factor of what is below 0, from 0 to 1.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def leaky_relu_naive(
    x: Array, negative_slope: float = 0.01, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.leaky_relu` by the technique `naive`.

    x, or negative_slope times x where x is below 0; NaN stays NaN.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        x: float32 (...), C-contiguous.
        negative_slope: float, default 0.01: factor of what is below 0, from 0 to 1.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def leaky_relu_cpu_vector(
    x: np.ndarray, negative_slope: float = 0.01, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.leaky_relu` by the technique `cpu_vector`.

    x, or negative_slope times x where x is below 0; NaN stays NaN.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Value after value.

    Args:
        x: float32 (...), C-contiguous.
        negative_slope: float, default 0.01: factor of what is below 0, from 0 to 1.
        out: where to write, float32 (...) (x itself will do); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# maxout

def maxout_loops(x: np.ndarray, pieces: int = 2, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.maxout` by the technique `loops`.

    x (N, C, ...) -> (N, C / pieces, ...): the maximum of each `pieces` channels that follow one another; NaN wins.

    Compiled plain loops on one CPU core.

    Group after group; NaN wins.

    Args:
        x: float32 (N, C, ...), C-contiguous.
        pieces: int, default 2: neighbouring channels of which a result is the maximum; divides their number.
        out: where to write, float32 (N, C / pieces, ...); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C / pieces, ...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def maxout_naive(x: Array, pieces: int = 2, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.maxout` by the technique `naive`.

    x (N, C, ...) -> (N, C / pieces, ...): the maximum of each `pieces` channels that follow one another; NaN wins.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    NaN wins.

    Args:
        x: float32 (N, C, ...), C-contiguous.
        pieces: int, default 2: neighbouring channels of which a result is the maximum; divides their number.
        out: where to write, float32 (N, C / pieces, ...); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C / pieces, ...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# batchnorm2d

def batchnorm2d_loops(
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    eps: float = 1e-05,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.batchnorm2d` by the technique `loops`.

    Each channel less its mean, over the root of its variance + eps, times gamma, plus beta: at inference, all given.

    Compiled plain loops on one CPU core.

    Channel after channel.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        gamma: float32 (C,), C-contiguous.
        beta: float32 (C,), C-contiguous.
        mean: float32 (C,), C-contiguous.
        variance: float32 (C,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, C, H, W) (x itself will do); made where None. Or a function that gives it,
            called with a shape and a dtype.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def batchnorm2d_naive(
    x: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.batchnorm2d` by the technique `naive`.

    Each channel less its mean, over the root of its variance + eps, times gamma, plus beta: at inference, all given.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    With ReLU in the same kernel where it follows.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        gamma: float32 (C,), C-contiguous.
        beta: float32 (C,), C-contiguous.
        mean: float32 (C,), C-contiguous.
        variance: float32 (C,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, C, H, W) (x itself will do); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# maxpool2d

def maxpool2d_loops(
    x: np.ndarray,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.maxpool2d` by the technique `loops`.

    The maximum of each window; stride defaults to kernel_size; padding is -inf, at most half of kernel_size.

    Compiled plain loops on one CPU core.

    NaN wins.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, H_out, W_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def maxpool2d_naive(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.maxpool2d` by the technique `naive`.

    The maximum of each window; stride defaults to kernel_size; padding is -inf, at most half of kernel_size.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    NaN wins.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, H_out, W_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# maxpool2d_nhwc

def maxpool2d_nhwc_coalesced(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.maxpool2d_nhwc` by the technique `coalesced`.

    maxpool2d on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    NaN wins.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, H_out, W_out, C); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def maxpool2d_nhwc_vectorized(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.maxpool2d_nhwc` by the technique `vectorized`.

    maxpool2d on channels-last features.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    NaN wins. Features are cast to the precision, the result is cast back; layers leave both out.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        precision: str, default 'fp16': what is multiplied: "fp32", float32 itself; "fp16x3", two fp16 a number and
            three products: float32's accuracy, infinite from 65,536 on; "fp16", 11 bits, infinite beyond 65,504;
            "bf16", 8 bits, float32's range.
        out: where to write, float32 (N, H_out, W_out, C); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def maxpool2d_nhwc_cpu_vector(
    x: np.ndarray,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.maxpool2d_nhwc` by the technique `cpu_vector`.

    maxpool2d on channels-last features.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    NaN wins.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, H_out, W_out, C); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, H_out, W_out, C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# avgpool2d

def avgpool2d_loops(
    x: np.ndarray,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.avgpool2d` by the technique `loops`.

    The mean of each window, padding counted as zeros, or, with count_include_pad=False, not at all.

    Compiled plain loops on one CPU core.

    Sums of a row are taken apart. Without a window, of all of an image.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        out: where to write, float32 (N, C, H_out, W_out); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def avgpool2d_naive(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.avgpool2d` by the technique `naive`.

    The mean of each window, padding counted as zeros, or, with count_include_pad=False, not at all.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums of a row are taken apart. Without a window, of all of an image.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        out: where to write, float32 (N, C, H_out, W_out); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# avgpool2d_nhwc

def avgpool2d_nhwc_coalesced(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.avgpool2d_nhwc` by the technique `coalesced`.

    avgpool2d on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    Sums are float32.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        out: where to write, float32 (N, H_out, W_out, C); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def avgpool2d_nhwc_vectorized(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.avgpool2d_nhwc` by the technique `vectorized`.

    avgpool2d on channels-last features.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums are float32. Features are cast to the precision, the result is cast back; layers leave both out.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        precision: str, default 'fp16': what is multiplied: "fp32", float32 itself; "fp16x3", two fp16 a number and
            three products: float32's accuracy, infinite from 65,536 on; "fp16", 11 bits, infinite beyond 65,504;
            "bf16", 8 bits, float32's range.
        out: where to write, float32 (N, H_out, W_out, C); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def avgpool2d_nhwc_cpu_vector(
    x: np.ndarray,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.avgpool2d_nhwc` by the technique `cpu_vector`.

    avgpool2d on channels-last features.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Sums of a row are taken apart.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        out: where to write, float32 (N, H_out, W_out, C); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, H_out, W_out, C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# global_avgpool2d

def global_avgpool2d_loops(x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.global_avgpool2d` by the technique `loops`.

    The mean of each channel: (N, C, H, W) -> (N, C).

    Compiled plain loops on one CPU core.

    Sums of a row are taken apart. Without a window, of all of an image.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        out: where to write, float32 (N, C); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N, C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def global_avgpool2d_naive(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.global_avgpool2d` by the technique `naive`.

    The mean of each channel: (N, C, H, W) -> (N, C).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums of a row are taken apart. Without a window, of all of an image.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        out: where to write, float32 (N, C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# global_avgpool2d_nhwc

def global_avgpool2d_nhwc_coalesced(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.global_avgpool2d_nhwc` by the technique `coalesced`.

    global_avgpool2d on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    Sums are float32.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        out: where to write, float32 (N, C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def global_avgpool2d_nhwc_vectorized(
    x: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.global_avgpool2d_nhwc` by the technique `vectorized`.

    global_avgpool2d on channels-last features.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums are float32. Features are cast to the precision, the result is cast back; layers leave both out.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp32", float32 itself; "fp16x3", two fp16 a number and
            three products: float32's accuracy, infinite from 65,536 on; "fp16", 11 bits, infinite beyond 65,504;
            "bf16", 8 bits, float32's range.
        out: where to write, float32 (N, C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# local_response_norm

def local_response_norm_loops(
    x: np.ndarray,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.local_response_norm` by the technique `loops`.

    Each value over (k + alpha / size * s) ** beta, s the sum of squares of `size` channels about its own.

    Compiled plain loops on one CPU core.

    AlexNet's alpha of 1e-4 is 5e-4 here, with size 5, beta 0.75 and k 2.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def local_response_norm_naive(
    x: Array,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.local_response_norm` by the technique `naive`.

    Each value over (k + alpha / size * s) ** beta, s the sum of squares of `size` channels about its own.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread sums its channels again. AlexNet's alpha of 1e-4 is 5e-4 here, with size 5, beta 0.75 and k 2.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# local_response_norm_nhwc

def local_response_norm_nhwc_coalesced(
    x: Array,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.local_response_norm_nhwc` by the technique `coalesced`.

    local_response_norm on channels-last features.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    The power of 0.75 is two instructions. AlexNet's alpha of 1e-4 is 5e-4 here, with size 5, beta 0.75 and k 2.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        out: where to write, float32 (N, H, W, C); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H, W, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def local_response_norm_nhwc_vectorized(
    x: Array,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.local_response_norm_nhwc` by the technique `vectorized`.

    local_response_norm on channels-last features.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Features are cast to the precision, the result is cast back; `VectorizedLocalResponseNorm` leaves both out.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        precision: str, default 'fp16': what is multiplied: "fp32", float32 itself; "fp16x3", two fp16 a number and
            three products: float32's accuracy, infinite from 65,536 on; "fp16", 11 bits, infinite beyond 65,504;
            "bf16", 8 bits, float32's range.
        out: where to write, float32 (N, H, W, C); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H, W, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def local_response_norm_nhwc_cpu_vector(
    x: np.ndarray,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.local_response_norm_nhwc` by the technique `cpu_vector`.

    local_response_norm on channels-last features.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Pixel after pixel.

    Args:
        x: float32 (N, H, W, C), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        out: where to write, float32 (N, H, W, C); made where None. Or a function that gives it, called with a shape and
            a dtype.

    Returns:
        float32 (N, H, W, C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# conv2d_relu

def conv2d_relu_cpu_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_relu` by the technique `cpu_gemm`.

    relu(conv2d(...)).

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Packs the weights at each call, and each task turns its share of x; `CpuConv` keeps weights.

    It takes channels-last features. ReLU is in the last pass, over sums in cache. The same bits for any number of
    threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; a group has one input channel; or the
            environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_relu_cpu_direct(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_relu` by the technique `cpu_direct`.

    relu(conv2d(...)).

    All CPU cores, few input channels: neighbouring positions fill the vector registers.

    Nothing is lowered to a matrix, and features stay channels first.

    It is meant for few input channels, of which the GEMM over overlapping rows (`cpu_gemm`) has short rows. ReLU is
    applied before sums leave the cache. The same bits for any number of threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; groups are more than 1; or the environment's
            CHARCNN_CPU_TILE does not fit.
    """

def conv2d_relu_winograd_rows_cpu(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_relu` by the technique `winograd_rows_cpu`.

    relu(conv2d(...)).

    As cpu_direct, with rows filtered four outputs at a time: two fifths of the products at best.

    Two fifths of the multiplications of 5 columns, or half of those of 3, for few input channels.

    Stride, dilation and groups are 1, and a kernel has 2 to 5 columns. Weights are transformed at each call. A feature
    that is not finite may make NaN of all outputs that share a tile with one that reads it. The same bits for any
    number of threads.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; stride, dilation, groups or columns are others;
            or the environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_relu_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu` by the technique `naive`.

    relu(conv2d(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q). Depthwise convolutions (groups = C_in) are served here.

    What follows is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv2d_relu_direct(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu` by the technique `direct`.

    relu(conv2d(...)).

    CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and weights are small of up to some six input channels, which it is meant for.

    More work as long as a strip of all of them fits in shared memory.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; groups are more than 1; a strip does not
            fit in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_relu_direct_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu` by the technique `direct_mma`.

    relu(conv2d(...)).

    CUDA, few input channels: an image in shared memory, its weights in registers, by mma.sync. All arrays are NumPy's,
    or all lie on the device, and then nothing waits for the result.

    All weights of 16 output channels must fit in a thread's registers: it is meant for some six input channels.

    Stride, dilation and groups are 1. In fp16 and fp16x3 x loses digits below 2^-14, as float16 does.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; stride,
            dilation or groups are more than 1; weights do not fit in registers, or an image not in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv2d_relu_nhwc

def conv2d_relu_nhwc_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_nhwc` by the technique `mma`.

    conv2d_relu on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; the layer `MmaConv` leaves all that out.

    With more than one group, each has a multiple of 32 output channels, and of 8 input channels, in fp8 of 16.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; groups have
            other channels; in fp8, a GPU of compute capability below 8.9.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_relu_nhwc_wgmma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_nhwc` by the technique `wgmma`.

    conv2d_relu on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; the layer `WgmmaConv` leaves all that out.

    Strides are up to 8, a window spans up to 128 pixels. With more than one group, each has a multiple of 32 output
    channels, and of 16 bytes of input channels.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; stride,
            dilation or groups are others.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

def conv2d_relu_nhwc_cpu_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_relu_nhwc` by the technique `cpu_gemm`.

    conv2d_relu on channels-last features.

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Packs the weights at each call; `CpuConv` keeps them.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, H_out, W_out, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; a group has one input channel; or the
            environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_relu_nhwc_winograd_cpu(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.conv2d_relu_nhwc` by the technique `winograd_cpu`.

    conv2d_relu on channels-last features.

    All CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products.

    A half to a quarter of the multiplications. Packs the weights at each call; `CpuWinogradConv` keeps them.

    Stride and dilation are 1, groups too, or of a kernel of 3 to 5 rows and columns any. A feature that is not finite
    may make NaN of all pixels that share a tile with one that reads it. The same bits for any number of threads.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.

    Returns:
        float32 (N, H_out, W_out, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; Winograd's filtering cannot take these moves; or
            the environment's CHARCNN_CPU_TILE does not fit.
    """

def conv2d_relu_nhwc_double_buffered(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_nhwc` by the technique `double_buffered`.

    conv2d_relu on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Nothing is copied beforehand: copies from an image leave zeros in shared memory for what lies outside.

    The copies are of 32 bits where C_in or C_out of a group is no multiple of 4, or an array starts at no multiple of
    16 bytes.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_relu_nhwc_winograd(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_nhwc` by the technique `winograd`.

    conv2d_relu on channels-last features.

    CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    As few multiplications as float32 allows. Weights are transformed first; `WinogradConv` keeps them.

    Stride, dilation and groups are 1. A feature that is not finite may make NaN of all pixels that share a tile with
    one that reads it.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, H_out, W_out, C_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; stride, dilation or groups are not 1.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv2d_tanh

def conv2d_tanh_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_tanh` by the technique `naive`.

    tanh(conv2d(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q). Depthwise convolutions (groups = C_in) are served here.

    What follows is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv2d_tanh_direct(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_tanh` by the technique `direct`.

    tanh(conv2d(...)).

    CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and weights are small of up to some six input channels, which it is meant for.

    More work as long as a strip of all of them fits in shared memory.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; groups are more than 1; a strip does not
            fit in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_tanh_direct_mma(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_tanh` by the technique `direct_mma`.

    tanh(conv2d(...)).

    CUDA, few input channels: an image in shared memory, its weights in registers, by mma.sync. All arrays are NumPy's,
    or all lie on the device, and then nothing waits for the result.

    All weights of 16 output channels must fit in a thread's registers: it is meant for some six input channels.

    Stride, dilation and groups are 1. In fp16 and fp16x3 x loses digits below 2^-14, as float16 does.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; stride,
            dilation or groups are more than 1; weights do not fit in registers, or an image not in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv2d_sigmoid

def conv2d_sigmoid_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_sigmoid` by the technique `naive`.

    sigmoid(conv2d(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q). Depthwise convolutions (groups = C_in) are served here.

    What follows is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv2d_leaky_relu

def conv2d_leaky_relu_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_leaky_relu` by the technique `naive`.

    leaky_relu(conv2d(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q). Depthwise convolutions (groups = C_in) are served here.

    What follows is in the same kernel: one write of y less, and one read.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv2d_relu_maxpool2d

def conv2d_relu_maxpool2d_naive(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_maxpool2d` by the technique `naive`.

    maxpool2d(relu(conv2d(...)), pool_size, stride=pool_stride).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread computes the convolution of its whole window, and only the maximum is written.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        out: where to write, float32 (N, C_out, H_pooled, W_pooled); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_pooled, W_pooled), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv2d_relu_maxpool2d_direct(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_maxpool2d` by the technique `direct`.

    maxpool2d(relu(conv2d(...)), pool_size, stride=pool_stride).

    CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread's tile holds whole windows, and stores their maxima alone.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        out: where to write, float32 (N, C_out, H_pooled, W_pooled); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_pooled, W_pooled), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; groups are more than 1; a strip does not
            fit in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv2d_tanh_maxpool2d

def conv2d_tanh_maxpool2d_naive(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_tanh_maxpool2d` by the technique `naive`.

    maxpool2d(tanh(conv2d(...)), pool_size, stride=pool_stride).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread computes the convolution of its whole window, and only the maximum is written.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        out: where to write, float32 (N, C_out, H_pooled, W_pooled); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_pooled, W_pooled), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv2d_tanh_maxpool2d_direct(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_tanh_maxpool2d` by the technique `direct`.

    maxpool2d(tanh(conv2d(...)), pool_size, stride=pool_stride).

    CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread's tile holds whole windows, and stores their maxima alone.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        out: where to write, float32 (N, C_out, H_pooled, W_pooled); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_pooled, W_pooled), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; groups are more than 1; a strip does not
            fit in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# conv2d_relu_global_avgpool2d

def conv2d_relu_global_avgpool2d_naive(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_global_avgpool2d` by the technique `naive`.

    global_avgpool2d(relu(conv2d(...))): (N, C_out).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread computes all of a map, and only its mean is written.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, float32 (N, C_out); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv2d_relu_maxpool2d_conv2d_relu_maxpool2d

def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_whole(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    pool_size: Pair,
    *,
    pool_stride: Pair | None = None,
    strides: Sequence[Pair] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1),
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_maxpool2d_conv2d_relu_maxpool2d` by the technique `whole`.

    conv2d_relu_maxpool2d twice: a stride, padding and groups for each, and both poolings alike.

    CUDA, a chain of convolutions in one kernel, one block an input, all features in shared memory. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A block an image, nothing recomputed.

    Needs cp.async, of compute capability 8.0.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight1: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias1: float32 (C_out,), C-contiguous.
        weight2: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        strides: Sequence[Pair], default (1, 1): of the first convolution and of the second.
        paddings: Sequence[Padding], default (0, 0): of the first convolution and of the second.
        groups: Sequence[int], default (1, 1): of the first convolution and of the second.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; the maps do not fit shared memory.
        DeviceError: no usable GPU.
    """

def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_tiles(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    pool_size: Pair,
    *,
    pool_stride: Pair | None = None,
    strides: Sequence[Pair] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1),
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_maxpool2d_conv2d_relu_maxpool2d` by the technique `tiles`.

    conv2d_relu_maxpool2d twice: a stride, padding and groups for each, and both poolings alike.

    CUDA, a chain over images in one kernel, one block a tile, whose halo is computed again. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    A block a tile of the result: what their halos share is recomputed.

    Needs cp.async, of compute capability 8.0.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight1: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias1: float32 (C_out,), C-contiguous.
        weight2: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        strides: Sequence[Pair], default (1, 1): of the first convolution and of the second.
        paddings: Sequence[Padding], default (0, 0): of the first convolution and of the second.
        groups: Sequence[int], default (1, 1): of the first convolution and of the second.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; the maps do not fit shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_rolling(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    pool_size: Pair,
    *,
    pool_stride: Pair | None = None,
    strides: Sequence[Pair] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1),
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.conv2d_relu_maxpool2d_conv2d_relu_maxpool2d` by the technique `rolling`.

    conv2d_relu_maxpool2d twice: a stride, padding and groups for each, and both poolings alike.

    CUDA, as tiles, by blocks that walk down an image, and keep of each map the rows that are read again. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Blocks walk down the image, and keep of each map the rows that windows share.

    Needs cp.async, of compute capability 8.0.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous.
        weight1: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias1: float32 (C_out,), C-contiguous.
        weight2: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        pool_size: Pair: of a window of the pooling, an int or (vertical, horizontal).
        pool_stride: Pair | None, default None: from one of these windows to the next, likewise; pool_size where None.
        strides: Sequence[Pair], default (1, 1): of the first convolution and of the second.
        paddings: Sequence[Padding], default (0, 0): of the first convolution and of the second.
        groups: Sequence[int], default (1, 1): of the first convolution and of the second.
        out: where to write, float32 (N, C_out, H_out, W_out); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; the maps do not fit shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# batchnorm2d_relu

def batchnorm2d_relu_naive(
    x: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    eps: float = 1e-05,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.batchnorm2d_relu` by the technique `naive`.

    relu(batchnorm2d(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    With ReLU in the same kernel where it follows.

    Args:
        x: float32 (N, C, H, W), C-contiguous.
        gamma: float32 (C,), C-contiguous.
        beta: float32 (C,), C-contiguous.
        mean: float32 (C,), C-contiguous.
        variance: float32 (C,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, float32 (N, C, H, W) (x itself will do); made where None. Or a function that gives it,
            called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_tanh

def linear_tanh_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_tanh` by the technique `naive`.

    tanh(linear(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_sigmoid

def linear_sigmoid_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_sigmoid` by the technique `naive`.

    sigmoid(linear(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_leaky_relu

def linear_leaky_relu_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_leaky_relu` by the technique `naive`.

    leaky_relu(linear(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_gelu

def linear_gelu_cpu_gemm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.linear_gelu` by the technique `cpu_gemm`.

    gelu(linear(...)).

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Multiplies up to 384 rows with the weights as they lie, and packs weights for more; `CpuConv` packs them once.

    ReLU and GELU are in the last pass, over sums in cache. The same bits for any number of threads.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, ..., C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def linear_gelu_naive(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_gelu` by the technique `naive`.

    gelu(linear(...)).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_gelu_nlc

def linear_gelu_nlc_double_buffered(
    x: Array, weight: Array, bias: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_gelu_nlc` by the technique `double_buffered`.

    linear_gelu on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Sums of many inputs' values are split, and joined by a second kernel.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def linear_gelu_nlc_mma(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_gelu_nlc` by the technique `mma`.

    linear_gelu on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def linear_gelu_nlc_wgmma(
    x: Array, weight: Array, bias: Array, *, precision: str = "fp16", out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_gelu_nlc` by the technique `wgmma`.

    linear_gelu on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# linear_maxout

def linear_maxout_naive(
    x: Array, weight: Array, bias: Array, pieces: int = 2, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.linear_maxout` by the technique `naive`.

    maxout(linear(...), pieces): of two pieces max(w1 x + b1, w2 x + b2).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    An output's channels are computed one after another.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        bias: float32 (C_out,), C-contiguous.
        pieces: int, default 2: neighbouring channels of which a result is the maximum; divides their number.
        out: where to write, float32 (N, ..., C_out / pieces); made where None. Or a function that gives it, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out / pieces), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_gelu_linear

def linear_gelu_linear_cpu_gemm(
    x: np.ndarray,
    weight1: np.ndarray,
    bias1: np.ndarray,
    weight2: np.ndarray,
    bias2: np.ndarray,
    *,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.linear_gelu_linear` by the technique `cpu_gemm`.

    linear(linear_gelu(x, weight1, bias1), weight2, bias2).

    All CPU cores: a GEMM over overlapping rows by a vector micro-kernel.

    Two products, as `linear_cpu_gemm` has them, and between them an array of C_mid values a row.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight1: float32 (C_mid, C_in), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_out, C_mid), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.

    Returns:
        float32 (N, ..., C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit; or the environment's CHARCNN_CPU_TILE does not.
    """

def linear_gelu_linear_naive(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.linear_gelu_linear` by the technique `naive`.

    linear(linear_gelu(x, weight1, bias1), weight2, bias2).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    One block for up to 8 inputs, their middle layer in shared memory; with GELU a transformer's feed-forward block.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight1: float32 (C_mid, C_in), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_out, C_mid), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; C_mid is more than 12,032, which shared
            memory holds.
        DeviceError: no usable GPU.
    """

# linear_gelu_linear_nlc

def linear_gelu_linear_nlc_double_buffered(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.linear_gelu_linear_nlc` by the technique `double_buffered`.

    linear_gelu_linear on channels-last features.

    CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0). All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    Two products: what is between them is in the kernel of the first, and its result in global memory.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight1: float32 (C_in, C_mid), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_mid, C_out), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def linear_gelu_linear_nlc_mma(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.linear_gelu_linear_nlc` by the technique `mma`.

    linear_gelu_linear on channels-last features.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight1: float32 (C_in, C_mid), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_mid, C_out), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read; a GPU that does not multiply the precision: compute capability 7.5 has
            fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU; one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """

def linear_gelu_linear_nlc_wgmma(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    *,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.linear_gelu_linear_nlc` by the technique `wgmma`.

    linear_gelu_linear on channels-last features.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Args:
        x: float32 (N, ..., C_in), C-contiguous.
        weight1: float32 (C_in, C_mid), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_mid, C_out), C-contiguous.
        bias2: float32 (C_out,), C-contiguous.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range; "tf32", 11 bits, float32's range; "fp16x3", two fp16 a number and three products: float32's
            accuracy, infinite from 65,536 on; "fp8", e4m3, weights and features each scaled to its range, infinities
            become its greatest.
        out: where to write, float32 (N, ..., C_out); made where None. Or a function that gives it, called with a shape
            and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, ..., C_out), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; shared memory
            does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# pixels

def pixels_loops(
    images: np.ndarray, tables: np.ndarray, height: int, width: int, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.pixels` by the technique `loops`.

    Rows of bytes as images: what a network of images begins with.

    Compiled plain loops on one CPU core.

    Pixel after pixel.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel.
        tables: float32 (C, entries), C-contiguous, what each byte stands for, as `pixel_tables` gives it.
        height: int: of an image.
        width: int: of an image.
        out: where to write, float32 (N, C, height, width); made where None. Or a function that gives it, called with a
            shape and a dtype.

    Returns:
        float32 (N, C, height, width).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def pixels_naive(
    images: Array, tables: Array, height: int, width: int, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.pixels` by the technique `naive`.

    Rows of bytes as images: what a network of images begins with.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads read neighbouring bytes.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel.
        tables: float32 (C, entries), C-contiguous, what each byte stands for, as `pixel_tables` gives it.
        height: int: of an image.
        width: int: of an image.
        out: where to write, float32 (N, C, height, width); made where None. Or a function that gives it, called with a
            shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, height, width), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# pixels_nhwc

def pixels_nhwc_coalesced(
    images: Array,
    tables: Array,
    height: int,
    width: int,
    *,
    channels: int | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.pixels_nhwc` by the technique `coalesced`.

    pixels, channels last: (N, height, width, channels), zeros beyond the tables' C, which None stands for.

    CUDA, one thread an output, neighbouring threads on neighbouring channels. All arrays are NumPy's, or all lie on the
    device, and then nothing waits for the result.

    Neighbouring threads write neighbouring channels.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel.
        tables: float32 (C, 256), C-contiguous, what each byte stands for, as `pixel_tables` gives it.
        height: int: of an image.
        width: int: of an image.
        channels: int | None, default None: of the result; those beyond C are zero; C where None.
        out: where to write, float32 (N, height, width, channels); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, height, width, channels), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def pixels_nhwc_vectorized(
    images: Array,
    tables: Array,
    height: int,
    width: int,
    *,
    channels: int | None = None,
    precision: str = "fp16",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.pixels_nhwc` by the technique `vectorized`.

    pixels, channels last: (N, height, width, channels), zeros beyond the tables' C, which None stands for.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    One thread a pixel. Features are in the precision, and are cast back; `VectorizedPixels` leaves the cast out.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel.
        tables: float32 (C, 256), C-contiguous, what each byte stands for, as `pixel_tables` gives it.
        height: int: of an image.
        width: int: of an image.
        channels: int | None, default None: of the result; those beyond C are zero; C where None.
        precision: str, default 'fp16': what is multiplied: "fp32", float32 itself; "fp16x3", two fp16 a number and
            three products: float32's accuracy, infinite from 65,536 on; "fp16", 11 bits, infinite beyond 65,504;
            "bf16", 8 bits, float32's range.
        out: where to write, float32 (N, height, width, channels); made where None. Or a function that gives it, called
            with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, height, width, channels), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these; there are more
            than 48 channels of images.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def pixels_nhwc_cpu_vector(
    images: np.ndarray,
    tables: np.ndarray,
    height: int,
    width: int,
    *,
    channels: int | None = None,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.pixels_nhwc` by the technique `cpu_vector`.

    pixels, channels last: (N, height, width, channels), zeros beyond the tables' C, which None stands for.

    All CPU cores: neighbouring channels, or values of a row, fill the vector registers.

    Image after image.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel.
        tables: float32 (C, 256), C-contiguous, what each byte stands for, as `pixel_tables` gives it.
        height: int: of an image.
        width: int: of an image.
        channels: int | None, default None: of the result; those beyond C are zero; C where None.
        out: where to write, float32 (N, height, width, channels); made where None. Or a function that gives it, called
            with a shape and a dtype.

    Returns:
        float32 (N, height, width, channels).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# conv1d_backward

def conv1d_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.conv1d_backward` by the technique `loops`.

    Gradients of conv1d(x, weight, bias).

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N, C_out, L_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, a tuple, any of it None: dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def conv1d_backward_naive(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.conv1d_backward` by the technique `naive`.

    Gradients of conv1d(x, weight, bias).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value of the features' and of the weights' gradient, a block a bias.

    Args:
        dy: float32 (N, C_out, L_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, a tuple, any of it None: dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# conv1d_backward_nlc

def conv1d_backward_nlc_mma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.conv1d_backward_nlc` by the technique `mma`.

    Gradients of conv1d_nlc(x, weight, bias), of stride 1 and no padding.

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and their gradient are rounded to 16 bits, dy as well; the weight's gradient is summed in float32.

    What is not finite in x may make all taps of its channel NaN, if windows with it would begin before an input, or end
    behind it.

    Args:
        dy: float32 (N, L_out, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def conv1d_backward_nlc_wgmma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.conv1d_backward_nlc` by the technique `wgmma`.

    Gradients of conv1d_nlc(x, weight, bias), of stride 1 and no padding.

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Tensor maps are encoded at each call, and TMA copies; else it is mma's way.

    What is not finite in x may make all taps of its channel NaN, if windows with it would begin before an input, or end
    behind it.

    Args:
        dy: float32 (N, L_out, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# linear_backward

def linear_backward_loops(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray, *, out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.linear_backward` by the technique `loops`.

    Gradients of linear(x, weight, bias).

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N, ..., C_out), C-contiguous, the gradient of the result.
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        out: where to write, a tuple, any of it None: dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32;
            made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def linear_backward_naive(
    dy: Array, x: Array, weight: Array, *, out: tuple[Array, Array, Array] | None = None, stream: Stream = None
) -> tuple[Array, Array, Array]:
    """`reference.linear_backward` by the technique `naive`.

    Gradients of linear(x, weight, bias).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value of the features' and of the weights' gradient, a block a bias.

    Args:
        dy: float32 (N, ..., C_out), C-contiguous, the gradient of the result.
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        out: where to write, a tuple, any of it None: dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32;
            made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def linear_backward_cpu_blas(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray, *, out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.linear_backward` by the technique `cpu_blas`.

    Gradients of linear(x, weight, bias).

    CPU cores: windows laid out as columns of a matrix, multiplied by NumPy's BLAS.

    Two products, by features and by weights. Bits may depend on the number of threads.

    Args:
        dy: float32 (N, ..., C_out), C-contiguous, the gradient of the result.
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        out: where to write, a tuple, any of it None: dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32;
            made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# linear_backward_nlc

def linear_backward_nlc_mma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.linear_backward_nlc` by the technique `mma`.

    Gradients of linear_nlc(x, weight, bias).

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and their gradient are rounded to 16 bits, dy as well; the weight's gradient is summed in float32.

    Args:
        dy: float32 (N, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32; made
            where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def linear_backward_nlc_wgmma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.linear_backward_nlc` by the technique `wgmma`.

    Gradients of linear_nlc(x, weight, bias).

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Tensor maps are encoded at each call, and TMA copies; else it is mma's way.

    Args:
        dy: float32 (N, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32; made
            where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# relu_conv1d_backward

def relu_conv1d_backward_naive(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.relu_conv1d_backward` by the technique `naive`.

    Gradients of conv1d(relu(z), weight, bias) by z, weight and bias, where x is relu(z).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value of the features' and of the weights' gradient, a block a bias.

    Args:
        dy: float32 (N, C_out, L_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in, L), C-contiguous.
        weight: float32 (C_out, C_in, K), C-contiguous.
        stride: int, default 1: from one window to the next.
        padding: int, default 0: positions added at both ends, of zeros.
        dilation: int, default 1: from one tap to the next.
        out: where to write, a tuple, any of it None: dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu_conv1d_backward_nlc

def relu_conv1d_backward_nlc_mma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.relu_conv1d_backward_nlc` by the technique `mma`.

    Gradients of conv1d_nlc(relu(z), weight, bias) by z, weight and bias, where x is relu(z).

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and their gradient are rounded to 16 bits, dy as well; the weight's gradient is summed in float32.

    What is not finite in x may make all taps of its channel NaN, if windows with it would begin before an input, or end
    behind it.

    Args:
        dy: float32 (N, L_out, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def relu_conv1d_backward_nlc_wgmma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.relu_conv1d_backward_nlc` by the technique `wgmma`.

    Gradients of conv1d_nlc(relu(z), weight, bias) by z, weight and bias, where x is relu(z).

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Tensor maps are encoded at each call, and TMA copies; else it is mma's way.

    What is not finite in x may make all taps of its channel NaN, if windows with it would begin before an input, or end
    behind it.

    Args:
        dy: float32 (N, L_out, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# relu_linear_backward

def relu_linear_backward_naive(
    dy: Array, x: Array, weight: Array, *, out: tuple[Array, Array, Array] | None = None, stream: Stream = None
) -> tuple[Array, Array, Array]:
    """`reference.relu_linear_backward` by the technique `naive`.

    Gradients of linear(relu(z), weight, bias) by z, weight and bias, where x is relu(z).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value of the features' and of the weights' gradient, a block a bias.

    Args:
        dy: float32 (N, ..., C_out), C-contiguous, the gradient of the result.
        x: float32 (N, ..., C_in), C-contiguous.
        weight: float32 (C_out, C_in), C-contiguous.
        out: where to write, a tuple, any of it None: dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32;
            made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu_linear_backward_nlc

def relu_linear_backward_nlc_mma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.relu_linear_backward_nlc` by the technique `mma`.

    Gradients of linear_nlc(relu(z), weight, bias) by z, weight and bias, where x is relu(z).

    CUDA, tensor cores since compute capability 8.0, of sequences in fp16 since 7.5: mma.sync, sums in float32. All
    arrays are NumPy's, or all lie on the device, and then nothing waits for the result.

    Features and their gradient are rounded to 16 bits, dy as well; the weight's gradient is summed in float32.

    Args:
        dy: float32 (N, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32; made
            where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

def relu_linear_backward_nlc_wgmma(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    precision: str = "fp16",
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.relu_linear_backward_nlc` by the technique `wgmma`.

    Gradients of linear_nlc(relu(z), weight, bias) by z, weight and bias, where x is relu(z).

    Hopper's tensor cores, by wgmma, fed by TMA; sums in float32. All arrays are NumPy's, or all lie on the device, and
    then nothing waits for the result.

    Tensor maps are encoded at each call, and TMA copies; else it is mma's way.

    Args:
        dy: float32 (N, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in), C-contiguous.
        weight: float32 (C_in, C_out), C-contiguous, as `arrays.pack` gives it.
        precision: str, default 'fp16': what is multiplied: "fp16", 11 bits, infinite beyond 65,504; "bf16", 8 bits,
            float32's range.
        out: where to write, a tuple, any of it None: dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32; made
            where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in), dweight (C_in, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; precision is none of these.
        DeviceError: no usable GPU, or one of compute capability below 9.0.
    """

# conv2d_backward

def conv2d_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.conv2d_backward` by the technique `loops`.

    Gradients of conv2d(x, weight, bias, ...).

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N, C_out, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, a tuple, any of it None: dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias
            (C_out,), float32; made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def conv2d_backward_naive(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.conv2d_backward` by the technique `naive`.

    Gradients of conv2d(x, weight, bias, ...).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value of the features' and of the weights' gradient, a block a bias.

    Args:
        dy: float32 (N, C_out, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, a tuple, any of it None: dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias
            (C_out,), float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

def conv2d_backward_cpu_blas(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.conv2d_backward` by the technique `cpu_blas`.

    Gradients of conv2d(x, weight, bias, ...).

    CPU cores: windows laid out as columns of a matrix, multiplied by NumPy's BLAS.

    Two products of some inputs and a group. Bits may depend on the number of threads.

    Args:
        dy: float32 (N, C_out, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in, H, W), C-contiguous.
        weight: float32 (C_out, C_in / groups, KH, KW), C-contiguous.
        stride: Pair, default 1: from one window to the next, an int or (vertical, horizontal).
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of zeros.
        dilation: Pair, default 1: from one tap to the next, an int or (vertical, horizontal).
        groups: int, default 1: each group's output channels see only its own input channels.
        out: where to write, a tuple, any of it None: dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias
            (C_out,), float32; made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

# one_hot_conv1d_backward

def one_hot_conv1d_backward_loops(
    dy: np.ndarray, ids: np.ndarray, weight: np.ndarray, *, out: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`reference.one_hot_conv1d_backward` by the technique `loops`.

    Gradients of one_hot_conv1d(ids, weight, bias) by weight and bias: of weight only the shape counts.

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N, C_out, L_out), C-contiguous, the gradient of the result.
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (C_out, depth, K), C-contiguous.
        out: where to write, a tuple, any of it None: dweight (C_out, depth, K), dbias (C_out,), float32; made where
            None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dweight (C_out, depth, K), dbias (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def one_hot_conv1d_backward_naive(
    dy: Array, ids: Array, weight: Array, *, out: tuple[Array, Array] | None = None, stream: Stream = None
) -> tuple[Array, Array]:
    """`reference.one_hot_conv1d_backward` by the technique `naive`.

    Gradients of one_hot_conv1d(ids, weight, bias) by weight and bias: of weight only the shape counts.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a weight looks at all ids, a block adds up a bias.

    Args:
        dy: float32 (N, C_out, L_out), C-contiguous, the gradient of the result.
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (C_out, depth, K), C-contiguous.
        out: where to write, a tuple, any of it None: dweight (C_out, depth, K), dbias (C_out,), float32; made where
            None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dweight (C_out, depth, K), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# layernorm_backward

def layernorm_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    *,
    eps: float = 1e-05,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.layernorm_backward` by the technique `loops`.

    Gradients of layernorm(x, gamma, beta).

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N, ...), C-contiguous, the gradient of the result.
        x: float32 (N, ...), C-contiguous.
        gamma: float32 (...), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (N, ...), dgamma (...), dbeta (...), float32; made where None.
            Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, ...), dgamma (...), dbeta (...), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def layernorm_backward_naive(
    dy: Array,
    x: Array,
    gamma: Array,
    *,
    eps: float = 1e-05,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.layernorm_backward` by the technique `naive`.

    Gradients of layernorm(x, gamma, beta).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block reads its input four times, and keeps mean and deviation; then a thread a parameter goes over all.

    Args:
        dy: float32 (N, ...), C-contiguous, the gradient of the result.
        x: float32 (N, ...), C-contiguous.
        gamma: float32 (...), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (N, ...), dgamma (...), dbeta (...), float32; made where None.
            Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, ...), dgamma (...), dbeta (...), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu_backward

def relu_backward_loops(dy: np.ndarray, x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.relu_backward` by the technique `loops`.

    The gradient of relu(x), nothing where x is 0; relu(x) itself will do for x, and NaN lets dy pass.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def relu_backward_naive(dy: Array, x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.relu_backward` by the technique `naive`.

    The gradient of relu(x), nothing where x is 0; relu(x) itself will do for x, and NaN lets dy pass.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# tanh_backward

def tanh_backward_loops(dy: np.ndarray, x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.tanh_backward` by the technique `loops`.

    The gradient of tanh(x).

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def tanh_backward_naive(dy: Array, x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.tanh_backward` by the technique `naive`.

    The gradient of tanh(x).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# gelu_backward

def gelu_backward_loops(dy: np.ndarray, x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.gelu_backward` by the technique `loops`.

    The gradient of gelu(x), where the slope is the distribution function, plus x times the density.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def gelu_backward_naive(dy: Array, x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.gelu_backward` by the technique `naive`.

    The gradient of gelu(x), where the slope is the distribution function, plus x times the density.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# sigmoid_backward

def sigmoid_backward_loops(dy: np.ndarray, x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.sigmoid_backward` by the technique `loops`.

    The gradient of sigmoid(x).

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def sigmoid_backward_naive(dy: Array, x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.sigmoid_backward` by the technique `naive`.

    The gradient of sigmoid(x).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# leaky_relu_backward

def leaky_relu_backward_loops(
    dy: np.ndarray, x: np.ndarray, negative_slope: float = 0.01, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.leaky_relu_backward` by the technique `loops`.

    The gradient of leaky_relu(x, negative_slope), the slope's where x is 0.

    Compiled plain loops on one CPU core.

    Value after value.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        negative_slope: float, default 0.01: factor of what is below 0, from 0 to 1.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (...).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def leaky_relu_backward_naive(
    dy: Array, x: Array, negative_slope: float = 0.01, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.leaky_relu_backward` by the technique `naive`.

    The gradient of leaky_relu(x, negative_slope), the slope's where x is 0.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Neighbouring threads have neighbouring values.

    Args:
        dy: float32 (...), C-contiguous, the gradient of the result.
        x: float32 (...), C-contiguous.
        negative_slope: float, default 0.01: factor of what is below 0, from 0 to 1.
        out: where to write, float32 (...); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (...), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# maxpool2d_backward

def maxpool2d_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.maxpool2d_backward` by the technique `loops`.

    The gradient of maxpool2d(x, ...): a window's goes to its maximum, of equals the first; NaN wins.

    Compiled plain loops on one CPU core.

    Window after window.

    Args:
        dy: float32 (N, C, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def maxpool2d_backward_naive(
    dy: Array,
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.maxpool2d_backward` by the technique `naive`.

    The gradient of maxpool2d(x, ...): a window's goes to its maximum, of equals the first; NaN wins.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a pixel looks for the maximum of each window that it is in.

    Args:
        dy: float32 (N, C, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# avgpool2d_backward

def avgpool2d_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.avgpool2d_backward` by the technique `loops`.

    The gradient of avgpool2d(x, ...): a window's pixels get equal shares of its own. Of x only the shape counts.

    Compiled plain loops on one CPU core.

    Pixel after pixel.

    Args:
        dy: float32 (N, C, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def avgpool2d_backward_naive(
    dy: Array,
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.avgpool2d_backward` by the technique `naive`.

    The gradient of avgpool2d(x, ...): a window's pixels get equal shares of its own. Of x only the shape counts.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a pixel adds up the shares of all windows that it is in.

    Args:
        dy: float32 (N, C, H_out, W_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        kernel_size: Pair: of a window, an int or (vertical, horizontal).
        stride: Pair | None, default None: from one window to the next, an int or (vertical, horizontal); kernel_size
            where None.
        padding: Padding, default 0: pixels added: an int, (vertical, horizontal), (top, bottom, left, right), "valid",
            "same", of -inf or for a mean zeros, at most half of kernel_size.
        count_include_pad: bool, default True: whether a mean counts padding, as zeros.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# global_avgpool2d_backward

def global_avgpool2d_backward_loops(
    dy: np.ndarray, x: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.global_avgpool2d_backward` by the technique `loops`.

    The gradient of global_avgpool2d(x). Of x only the shape counts.

    Compiled plain loops on one CPU core.

    Pixel after pixel.

    Args:
        dy: float32 (N, C), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def global_avgpool2d_backward_naive(dy: Array, x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.global_avgpool2d_backward` by the technique `naive`.

    The gradient of global_avgpool2d(x). Of x only the shape counts.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a pixel.

    Args:
        dy: float32 (N, C), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# local_response_norm_backward

def local_response_norm_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.local_response_norm_backward` by the technique `loops`.

    The gradient of local_response_norm(x, ...).

    Compiled plain loops on one CPU core.

    Each sum of squares is taken `size` times.

    Args:
        dy: float32 (N, C, H, W), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def local_response_norm_backward_naive(
    dy: Array,
    x: Array,
    size: int,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.local_response_norm_backward` by the technique `naive`.

    The gradient of local_response_norm(x, ...).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread takes the sums of squares of all its neighbours again.

    Args:
        dy: float32 (N, C, H, W), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        size: int: channels that a value is normalised over, its own in the middle.
        alpha: float, default 0.0001: factor of their sum of squares, divided by size.
        beta: float, default 0.75: the power.
        k: float, default 1.0: added to the sum, greater than 0.
        out: where to write, float32 (N, C, H, W); made where None. Or a function that gives it, called with a shape and
            a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# softmax_backward

def softmax_backward_loops(dy: np.ndarray, x: np.ndarray, *, out: np.ndarray | Function | None = None) -> np.ndarray:
    """`reference.softmax_backward` by the technique `loops`.

    The gradient of softmax(x).

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (..., C), C-contiguous, the gradient of the result.
        x: float32 (..., C), C-contiguous.
        out: where to write, float32 (..., C); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (..., C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def softmax_backward_naive(dy: Array, x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.softmax_backward` by the technique `naive`.

    The gradient of softmax(x).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block a row, twice.

    Args:
        dy: float32 (..., C), C-contiguous, the gradient of the result.
        x: float32 (..., C), C-contiguous.
        out: where to write, float32 (..., C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (..., C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# softmax_cross_entropy_backward

def softmax_cross_entropy_backward_loops(
    dy: np.ndarray, x: np.ndarray, targets: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.softmax_cross_entropy_backward` by the technique `loops`.

    The gradient of softmax_cross_entropy(x, targets) by x.

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N,), C-contiguous, the gradient of the result.
        x: float32 (N, C), C-contiguous.
        targets: float32 (N, C), C-contiguous, the share that each class should get: 1 for the label, 0 for all others.
        out: where to write, float32 (N, C); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N, C).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def softmax_cross_entropy_backward_naive(
    dy: Array, x: Array, targets: Array, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.softmax_cross_entropy_backward` by the technique `naive`.

    The gradient of softmax_cross_entropy(x, targets) by x.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread an input.

    Args:
        dy: float32 (N,), C-contiguous, the gradient of the result.
        x: float32 (N, C), C-contiguous.
        targets: float32 (N, C), C-contiguous, the share that each class should get: 1 for the label, 0 for all others.
        out: where to write, float32 (N, C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# maxpool1d_backward

def maxpool1d_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    kernel_size: int,
    *,
    stride: int | None = None,
    padding: int = 0,
    out: np.ndarray | Function | None = None,
) -> np.ndarray:
    """`reference.maxpool1d_backward` by the technique `loops`.

    The gradient of maxpool1d(x, ...): a window's goes to its maximum, of equals the first; NaN wins.

    Compiled plain loops on one CPU core.

    Window after window.

    Args:
        dy: float32 (N, C, L_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, L), C-contiguous.
        kernel_size: int: positions in a window.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        padding: int, default 0: positions added at both ends, of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, L); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N, C, L).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def maxpool1d_backward_naive(
    dy: Array,
    x: Array,
    kernel_size: int,
    *,
    stride: int | None = None,
    padding: int = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.maxpool1d_backward` by the technique `naive`.

    The gradient of maxpool1d(x, ...): a window's goes to its maximum, of equals the first; NaN wins.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a position looks for the maximum of each window that it is in; with ReLU before, it asks x again.

    Args:
        dy: float32 (N, C, L_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, L), C-contiguous.
        kernel_size: int: positions in a window.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        padding: int, default 0: positions added at both ends, of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, L); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, L), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu_maxpool1d_backward

def relu_maxpool1d_backward_naive(
    dy: Array,
    x: Array,
    kernel_size: int,
    *,
    stride: int | None = None,
    padding: int = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """`reference.relu_maxpool1d_backward` by the technique `naive`.

    The gradient of relu_maxpool1d(x, ...): a window's goes to its maximum, the first of equals, if above 0.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a position looks for the maximum of each window that it is in; with ReLU before, it asks x again.

    Args:
        dy: float32 (N, C, L_out), C-contiguous, the gradient of the result.
        x: float32 (N, C, L), C-contiguous.
        kernel_size: int: positions in a window.
        stride: int | None, default None: positions from one window to the next; that window's size where None.
        padding: int, default 0: positions added at both ends, of -inf or for a mean zeros, at most half of kernel_size.
        out: where to write, float32 (N, C, L); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, L), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# relu_maxpool1d_backward_nlc

def relu_maxpool1d_backward_nlc_vectorized(
    dy: Array, x: Array, pool_size: int, *, out: Array | None = None, stream: Stream = None
) -> Array:
    """`reference.relu_maxpool1d_backward_nlc` by the technique `vectorized`.

    The gradient of relu_maxpool1d on (N, L, C), of windows that do not overlap.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread has eight channels of a window, in bf16: of values that are the same there, the first is the maximum.

    Where a window has NaN, its gradient goes to the last position.

    Args:
        dy: float32 (N, L // pool_size, C), C-contiguous, the gradient of the result.
        x: float32 (N, L, C), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        out: where to write, float32 (N, L, C); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L, C), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; pool_size is not 3.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# layernorm_relu_maxpool1d_backward_nlc

def layernorm_relu_maxpool1d_backward_nlc_vectorized(
    dy: Array,
    x: Array,
    gamma: Array,
    beta: Array,
    pool_size: int,
    *,
    eps: float = 1e-05,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.layernorm_relu_maxpool1d_backward_nlc` by the technique `vectorized`.

    Gradients of the maxima of pool_size positions each of relu(layernorm(x, gamma, beta)), by x, gamma and beta.

    CUDA, loads and stores of 128 bits: products as register_tiled, rows in registers of some lanes. All arrays are
    NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread has eight channels of a window; x, what is normalised, and gradients of features are bf16.

    Args:
        dy: float32 (N, L // pool_size, C), C-contiguous, the gradient of the result.
        x: float32 (N, L, C), C-contiguous.
        gamma: float32 (L, C), C-contiguous.
        beta: float32 (L, C), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (N, L, C), dgamma (L, C), dbeta (L, C), float32; made where
            None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, L, C), dgamma (L, C), dbeta (L, C), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; pool_size is not 3, C is no multiple of 8,
            or gamma or beta begins at no multiple of 16 bytes. Or an input of x in bf16 is larger than shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# one_hot_conv1d_relu_maxpool1d_backward_nlc

def one_hot_conv1d_relu_maxpool1d_backward_nlc_warp_gather(
    dy: Array,
    ids: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """`reference.one_hot_conv1d_relu_maxpool1d_backward_nlc` by the technique `warp_gather`.

    Gradients of one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size) by weight and bias.

    CUDA, as gather, each warp by itself, with sums, LayerNorm and features in the precision. All arrays are NumPy's, or
    all lie on the device, and then nothing waits for the result.

    Rows of weights are added up in fp16, and choose the maximum; sums of gradients, in bf16, are by character.

    Args:
        dy: float32 (N, L_out // pool_size, C_out), C-contiguous, the gradient of the result.
        ids: uint8 (N, L), C-contiguous, an id of depth or more is blank.
        weight: float32 (K, depth, C_out), C-contiguous, as `arrays.pack` gives it.
        bias: float32 (C_out,), C-contiguous.
        pool_size: int: positions in a window of the pooling.
        out: where to write, a tuple, any of it None: dweight (K, depth, C_out), dbias (C_out,), float32; made where
            None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dweight (K, depth, C_out), dbias (C_out,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; pool_size is not 3, C_out is no multiple of
            8, depth is above 255, or shared memory does not hold the rows of eight channels.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

# batchnorm2d_backward

def batchnorm2d_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    eps: float = 1e-05,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.batchnorm2d_backward` by the technique `loops`.

    Gradients of batchnorm2d(x, gamma, beta, mean, variance) by x, gamma and beta: mean and variance stay.

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (N, C, H, W), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        gamma: float32 (C,), C-contiguous.
        mean: float32 (C,), C-contiguous.
        variance: float32 (C,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (N, C, H, W), dgamma (C,), dbeta (C,), float32; made where
            None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (N, C, H, W), dgamma (C,), dbeta (C,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def batchnorm2d_backward_naive(
    dy: Array,
    x: Array,
    gamma: Array,
    mean: Array,
    variance: Array,
    *,
    eps: float = 1e-05,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.batchnorm2d_backward` by the technique `naive`.

    Gradients of batchnorm2d(x, gamma, beta, mean, variance) by x, gamma and beta: mean and variance stay.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value, then a block a channel.

    Args:
        dy: float32 (N, C, H, W), C-contiguous, the gradient of the result.
        x: float32 (N, C, H, W), C-contiguous.
        gamma: float32 (C,), C-contiguous.
        mean: float32 (C,), C-contiguous.
        variance: float32 (C,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (N, C, H, W), dgamma (C,), dbeta (C,), float32; made where
            None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C, H, W), dgamma (C,), dbeta (C,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# softmax_cross_entropy

def softmax_cross_entropy_loops(
    x: np.ndarray, targets: np.ndarray, *, out: np.ndarray | Function | None = None
) -> np.ndarray:
    """`reference.softmax_cross_entropy` by the technique `loops`.

    -sum(targets * log(softmax(x))) of each input.

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        x: float32 (N, C), C-contiguous.
        targets: float32 (N, C), C-contiguous, the share that each class should get: 1 for the label, 0 for all others.
        out: where to write, float32 (N,); made where None. Or a function that gives it, called with a shape and a
            dtype.

    Returns:
        float32 (N,).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def softmax_cross_entropy_naive(x: Array, targets: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """`reference.softmax_cross_entropy` by the technique `naive`.

    -sum(targets * log(softmax(x))) of each input.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread an input.

    Args:
        x: float32 (N, C), C-contiguous.
        targets: float32 (N, C), C-contiguous, the share that each class should get: 1 for the label, 0 for all others.
        out: where to write, float32 (N,); made where None. Or a function that gives it, called with a shape and a
            dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N,), where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# rownorm_backward

def rownorm_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    *,
    eps: float = 1e-05,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.rownorm_backward` by the technique `loops`.

    Gradients of rownorm(x, gamma, beta).

    Compiled plain loops on one CPU core.

    Sums are in float64.

    Args:
        dy: float32 (..., H), C-contiguous, the gradient of the result.
        x: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (..., H), dgamma (H,), dbeta (H,), float32; made where None. Or
            a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (..., H), dgamma (H,), dbeta (H,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def rownorm_backward_naive(
    dy: Array,
    x: Array,
    gamma: Array,
    *,
    eps: float = 1e-05,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.rownorm_backward` by the technique `naive`.

    Gradients of rownorm(x, gamma, beta).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A block reads its input four times, and keeps mean and deviation; then a thread a parameter goes over all.

    Args:
        dy: float32 (..., H), C-contiguous, the gradient of the result.
        x: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (..., H), dgamma (H,), dbeta (H,), float32; made where None. Or
            a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (..., H), dgamma (H,), dbeta (H,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# add_rownorm_backward

def add_rownorm_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    residual: np.ndarray,
    gamma: np.ndarray,
    *,
    eps: float = 1e-05,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.add_rownorm_backward` by the technique `loops`.

    Gradients of add_rownorm(x, residual, gamma, beta) by x, gamma and beta. That by residual is that by x.

    Compiled plain loops on one CPU core.

    Sums are in float64; of x and residual, in float32, in the gradient's place.

    Args:
        dy: float32 (..., H), C-contiguous, the gradient of the result.
        x: float32 (..., H), C-contiguous.
        residual: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (..., H), dgamma (H,), dbeta (H,), float32; made where None. Or
            a function that gives any of them, called with a shape and a dtype.

    Returns:
        dx (..., H), dgamma (H,), dbeta (H,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def add_rownorm_backward_naive(
    dy: Array,
    x: Array,
    residual: Array,
    gamma: Array,
    *,
    eps: float = 1e-05,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.add_rownorm_backward` by the technique `naive`.

    Gradients of add_rownorm(x, residual, gamma, beta) by x, gamma and beta. That by residual is that by x.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    The sum lies in global memory.

    Args:
        dy: float32 (..., H), C-contiguous, the gradient of the result.
        x: float32 (..., H), C-contiguous.
        residual: float32 (..., H), C-contiguous.
        gamma: float32 (H,), C-contiguous.
        eps: float, default 1e-05: added to the variance, greater than 0.
        out: where to write, a tuple, any of it None: dx (..., H), dgamma (H,), dbeta (H,), float32; made where None. Or
            a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (..., H), dgamma (H,), dbeta (H,), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# embedding_backward

def embedding_backward_loops(
    dy: np.ndarray,
    tokens: np.ndarray,
    weight: np.ndarray,
    positions: np.ndarray,
    types: np.ndarray,
    type_ids: np.ndarray | None = None,
    *,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.embedding_backward` by the technique `loops`.

    Gradients of embedding(tokens, weight, positions, types, type_ids): of these tables only the shapes count.

    Compiled plain loops on one CPU core.

    Sums are in float64, token after token.

    Args:
        dy: float32 (N, S, H), C-contiguous, the gradient of the result.
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        out: where to write, a tuple, any of it None: dweight (vocabulary, H), dpositions (P, H), dtype_rows (T, H),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dweight (vocabulary, H), dpositions (P, H), dtype_rows (T, H), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def embedding_backward_naive(
    dy: Array,
    tokens: Array,
    weight: Array,
    positions: Array,
    types: Array,
    type_ids: Array | None = None,
    *,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.embedding_backward` by the technique `naive`.

    Gradients of embedding(tokens, weight, positions, types, type_ids): of these tables only the shapes count.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    A thread a value of a table looks at all ids.

    Args:
        dy: float32 (N, S, H), C-contiguous, the gradient of the result.
        tokens: int32 (N, S), C-contiguous, ids; one that is no row of weight gives zeros.
        weight: float32 (vocabulary, H), C-contiguous.
        positions: float32 (P, H), C-contiguous.
        types: float32 (T, H), C-contiguous.
        type_ids: int32 (N, S), C-contiguous, or None, the default: rows of types, all 0 where None; one that is no row
            gives zeros.
        out: where to write, a tuple, any of it None: dweight (vocabulary, H), dpositions (P, H), dtype_rows (T, H),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dweight (vocabulary, H), dpositions (P, H), dtype_rows (T, H), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# attention_backward

def attention_backward_loops(
    dy: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray | None = None,
    causal: bool = False,
    *,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`reference.attention_backward` by the technique `loops`.

    Gradients of attention(q, k, v, lengths, causal). What is not seen has no part in them, even NaN.

    Compiled plain loops on one CPU core.

    Query after query. Sums are in float64.

    Args:
        dy: float32 (N, heads, S, d), C-contiguous, the gradient of the result.
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, a tuple, any of it None: dq (N, heads, S, d), dk (N, heads, S, d), dv (N, heads, S, d),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.

    Returns:
        dq (N, heads, S, d), dk (N, heads, S, d), dv (N, heads, S, d), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def attention_backward_naive(
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    lengths: Array | None = None,
    causal: bool = False,
    *,
    out: tuple[Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """`reference.attention_backward` by the technique `naive`.

    Gradients of attention(q, k, v, lengths, causal). What is not seen has no part in them, even NaN.

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Weights and the scores' gradients lie in global memory; then a thread a result.

    Args:
        dy: float32 (N, heads, S, d), C-contiguous, the gradient of the result.
        q: float32 (N, heads, S, d), C-contiguous.
        k: float32 (N, heads, S, d), C-contiguous.
        v: float32 (N, heads, S, d), C-contiguous.
        lengths: int32 (N,), C-contiguous, or None, the default: how many positions of each input count; all where None,
            or where it is not from 0 to S.
        causal: bool, default False: whether a query sees no key behind its own position.
        out: where to write, a tuple, any of it None: dq (N, heads, S, d), dk (N, heads, S, d), dv (N, heads, S, d),
            float32; made where None. Or a function that gives any of them, called with a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dq (N, heads, S, d), dk (N, heads, S, d), dv (N, heads, S, d), float32, where the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

# linear_gelu_linear_backward

def linear_gelu_linear_backward_loops(
    dy: np.ndarray,
    x: np.ndarray,
    weight1: np.ndarray,
    bias1: np.ndarray,
    weight2: np.ndarray,
    *,
    out: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`reference.linear_gelu_linear_backward` by the technique `loops`.

    Gradients of linear_gelu_linear(x, weight1, bias1, weight2, bias2).

    Compiled plain loops on one CPU core.

    The loops of its parts, one after another.

    Args:
        dy: float32 (N, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in), C-contiguous.
        weight1: float32 (C_mid, C_in), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_out, C_mid), C-contiguous.
        out: where to write, a tuple, any of it None: dx (N, C_in), dweight1 (C_mid, C_in), dbias1 (C_mid,), dweight2
            (C_out, C_mid), dbias2 (C_out,), float32; made where None. Or a function that gives any of them, called with
            a shape and a dtype.

    Returns:
        dx (N, C_in), dweight1 (C_mid, C_in), dbias1 (C_mid,), dweight2 (C_out, C_mid), dbias2 (C_out,), float32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """

def linear_gelu_linear_backward_naive(
    dy: Array,
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    *,
    out: tuple[Array, Array, Array, Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array, Array, Array, Array]:
    """`reference.linear_gelu_linear_backward` by the technique `naive`.

    Gradients of linear_gelu_linear(x, weight1, bias1, weight2, bias2).

    CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory. All arrays
    are NumPy's, or all lie on the device, and then nothing waits for the result.

    Its parts' kernels, which leave what is between them in global memory.

    Args:
        dy: float32 (N, C_out), C-contiguous, the gradient of the result.
        x: float32 (N, C_in), C-contiguous.
        weight1: float32 (C_mid, C_in), C-contiguous.
        bias1: float32 (C_mid,), C-contiguous.
        weight2: float32 (C_out, C_mid), C-contiguous.
        out: where to write, a tuple, any of it None: dx (N, C_in), dweight1 (C_mid, C_in), dbias1 (C_mid,), dweight2
            (C_out, C_mid), dbias2 (C_out,), float32; made where None. Or a function that gives any of them, called with
            a shape and a dtype.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        dx (N, C_in), dweight1 (C_mid, C_in), dbias1 (C_mid,), dweight2 (C_out, C_mid), dbias2 (C_out,), float32, where
            the inputs lie.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
