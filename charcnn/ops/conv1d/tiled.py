"""conv1d_nlc as a matrix product in tiles: what a block reads goes through shared memory."""

from __future__ import annotations

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit

SIDE = 4 if device.SIMULATED else 32
"""Rows, columns and depth of a block's tile, which has a thread an output."""

_THREADS, _SIDE = SIDE * SIDE, SIDE


@jit()
def _kernel(x, weight, bias, y):
    # The product (N * L_out, K * C_in) x (K * C_in, C_out). A row of the first matrix is the run x[n, t : t + K], which
    # lies in one piece: rows overlap in memory, and none is ever copied out. A feature is read from global memory
    # once for 32 output channels, a weight once for 32 positions.
    features = cuda.shared.array(_THREADS, float32)
    weights = cuda.shared.array(_THREADS, float32)
    length, c_in, length_out, c_out = (
        extents(x)[1], extents(x)[2], extents(y)[1], extents(y)[2],
    )  # fmt: skip
    rows, depth = uint32(y.shape[0] * length_out), uint32(weight.shape[0] * c_in)
    across = (c_out + _SIDE - 1) // _SIDE
    ty, tx = thread_idx_x() // _SIDE, thread_idx_x() % _SIDE
    row = block_idx_x() // across * _SIDE + ty
    column = block_idx_x() % across * _SIDE + tx
    inside = min(row, rows - 1)  # a row past the end is computed as the last one, and not stored
    n = inside // length_out
    start = uint64(n * length + inside - n * length_out) * uint64(c_in)
    total = float32(0)
    k0 = uint32(0)
    while k0 < depth:
        feature, value = float32(0), float32(0)
        if k0 + tx < depth:
            feature = x.flat[start + k0 + tx]
        if k0 + ty < depth and column < c_out:
            value = weight.flat[uint64(k0 + ty) * uint64(c_out) + column]
        features[ty * _SIDE + tx] = feature
        weights[ty * _SIDE + tx] = value
        cuda.syncthreads()
        for k in range(_SIDE):
            total += features[ty * _SIDE + k] * weights[k * _SIDE + tx]
        cuda.syncthreads()
        k0 += _SIDE
    if row < rows and column < c_out:
        y.flat[uint64(row) * uint64(c_out) + column] = total + bias[column]


def launch(call: Call, x: Array, weight: Array, bias: Array) -> None:
    """Each operand is read from global memory once a tile."""
    n, length, c_out = call.out.shape
    down, across = (n * length + SIDE - 1) // SIDE, (c_out + SIDE - 1) // SIDE
    call.launch(_kernel, down * across, _THREADS, x, weight, bias, call.out)
