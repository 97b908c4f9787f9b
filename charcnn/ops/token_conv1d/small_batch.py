"""Block 1 for one input or a few in one kernel: convolution of token ids, LayerNorm, ReLU and pooling.

LayerNorm's moments come from the ids and the tables of `lags`, so that no kernel has to end before the first value is
normalised. Look-ups are shared by the blocks of a cluster, a position a thread, while the rows of their windows are
under way: a block alone would read all of an input's, and all blocks together more bytes than the second-level cache
gives in that time. A warp's sums go to all blocks of its cluster, and each adds up all of them in the same order.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64, types

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import moments, shapes
from charcnn.ops.common.fragments import OCTET, store_octet
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.token_conv1d import in_parts
from charcnn.ops.token_conv1d.cluster_moments import CLUSTER, LOOK_UP_WARPS, SLOT, exchange, look_ups
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.weights import TokenConvWeights

ROW_WARPS = 9
"""Of a block at most, a position each: whole windows of a maximum."""


@cache
def _block_kernel(of: NumberFormat, floats: bool, taps: int, pool: int, cluster: int) -> Any:
    """The kernel (ids, table, bias, singles, pairs, gamma, beta, y, depth, channels, kept, pooled, share, eps).

    Its arguments: token ids; addresses of the table of weights and of the bias; tables of `PairTables`, flat; addresses
    of gamma, beta and y; characters; channels; positions of a result; windows of a maximum; 1 over an input's values;
    eps. Grid: blocks of an input, whole clusters; inputs; runs of 256 channels.
    """
    split, alignment = of.terms == 2, ptx.ALIGNMENT
    unpack, store = ptx.cvt_f32x2("f16"), store_octet(of)
    windows = ROW_WARPS // pool
    row_warps, vectors = windows * pool, 2 if floats else 1  # vectors: of 16 bytes, for an octet
    words, slots, threads = 4 * vectors, cluster * LOOK_UP_WARPS, 32 * (row_warps + LOOK_UP_WARPS)
    best_at, full_at = SLOT * slots, SLOT * slots + 4 * 32 * OCTET * row_warps
    shared_floats, rows_words, slots_of_lane = full_at // 4 + 2, words * taps, -(-slots // 32)
    value_bytes, y_bytes, vector = uint64(4 if floats else 2), uint64(of.itemsize), uint64(16)
    octet = OCTET
    lanes, warps_of_rows, last_tap, blocks_sharing = 31, row_warps, uint32(taps - 1), cluster
    window_warps, block_windows, step = pool, windows, 32 * LOOK_UP_WARPS * cluster
    (character, looked_up), (send, received) = look_ups(taps), exchange(cluster)
    half, rows_meet = 16 * 32 * row_warps, ptx.named_barrier_sync(1, 32 * row_warps)

    @jit(launch_bounds=(threads, 1))
    def kernel(ids, table, bias, singles, pairs, gamma, beta, y, depth, channels, kept, pooled, share, eps):
        smem = cuda.shared.array(shared_floats, float32, alignment)
        scale = cuda.local.array(words, types.uint32)
        offset = cuda.local.array(words, types.uint32)
        rows = cuda.local.array(rows_words, types.uint32)
        own = cuda.local.array(taps, types.uint32)
        sums = cuda.local.array(OCTET, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warp, lane, n = thread >> 5, thread & lanes, block_idx_y()
        rank, end = block_idx_x() % blocks_sharing, extents(ids)[1] - 1
        full = base + uint32(full_at)
        if thread == 0:
            ptx.mbarrier_init(full, 1)
            ptx.fence_mbarrier_init()
            ptx.mbarrier_arrive_expect_tx(full, uint32(SLOT * slots))
        ptx.cluster_arrive_relaxed()
        ptx.griddepcontrol_launch()
        if warp >= warps_of_rows:
            # Look-ups: a lane's positions, then those of its warp, to all blocks of the cluster, which have begun.
            ptx.griddepcontrol_wait()
            warp -= warps_of_rows
            i = (warp * blocks_sharing + rank << 5) + lane
            total, squares = float64(0), float64(0)
            while i <= end:
                for k in range(taps):
                    own[k] = character(ids, n, i + k, end, depth)
                low = uint32(0)
                if i >= kept:
                    low = i - kept + 1
                more, more_squares = looked_up(own, singles, pairs, depth, min(i, last_tap), uint32(0))
                # The last positions meet no taps before `low`.
                before = max(low, uint32(1)) - 1
                less, less_squares = looked_up(own, singles, pairs, depth, before, low)
                total += more - (less if low > 0 else float64(0))
                squares += more_squares - (less_squares if low > 0 else float64(0))
                i += step
            total, squares = moments.warp_sum(total), moments.warp_sum(squares)
            ptx.cluster_wait()
            slot = rank * uint32(LOOK_UP_WARPS) + warp
            send(base + slot * 16, full, lane, total, squares)
        else:
            # What no kernel writes: the bias, and LayerNorm's parameters of eight channels of a position.
            window = block_idx_x() * block_windows + warp // window_warps
            position = window * window_warps + warp % window_warps
            channel = ((block_idx_z() << 5) + lane) * octet
            wanted = uint32(window < pooled and channel < channels)
            at = (uint64(position) * uint64(channels) + uint64(channel)) * value_bytes
            for h in range(vectors):
                here, j = at + uint64(h) * vector, 4 * h
                scale[j], scale[j + 1], scale[j + 2], scale[j + 3] = ptx.ld_nc_no_allocate(gamma + here, wanted)
                offset[j], offset[j + 1], offset[j + 2], offset[j + 3] = ptx.ld_nc_no_allocate(beta + here, wanted)
            for h in range(2):
                read = ptx.ld_nc_no_allocate(bias + uint64(channel) * uint64(4) + uint64(h) * vector, wanted)
                for j in range(4):
                    sums[4 * h + j] = ptx.bitcast_f32(read[j])
            ptx.griddepcontrol_wait()

            # Rows of weights, all under way at once.
            for k in range(taps):
                own[k] = min(uint32(ids[n, min(position + k, end)]), depth)
            for k in range(taps):
                row = k * (depth if floats else depth + 1) + own[k]
                at = table + (uint64(row) * uint64(channels) + uint64(channel)) * value_bytes
                # In float32 this table has no row of zeros.
                present = uint32(0) if floats and own[k] == depth else wanted
                for h in range(vectors):
                    j = words * k + 4 * h
                    rows[j], rows[j + 1], rows[j + 2], rows[j + 3] = ptx.ld_nc_no_allocate(
                        at + uint64(h) * vector, present
                    )
            for k in range(taps):
                for j in range(4):
                    i = words * k
                    if floats:
                        low_value, high_value = ptx.bitcast_f32(rows[i + 2 * j]), ptx.bitcast_f32(rows[i + 2 * j + 1])
                    else:
                        low_value, high_value = unpack(rows[i + j])
                    sums[2 * j] += low_value
                    sums[2 * j + 1] += high_value

            # Moments: a lane has a warp's sums.
            ptx.cluster_wait()
            ptx.mbarrier_wait(full, 0)
            total, squares = float64(0), float64(0)
            for s in range(slots_of_lane):
                slot = 32 * s + lane
                if slot < uint32(slots):
                    more, more_squares = received(base + slot * 16)
                    total += more
                    squares += more_squares
            mean = moments.warp_sum(total) * share
            variance = max(moments.warp_sum(squares) * share - mean * mean, float64(0))
            mean_high = float32(mean)
            mean_low = float32(mean - float64(mean_high))  # what float32 cannot hold of the mean
            rate = float32(1) / math.sqrt(float32(variance) + eps)
            for j in range(4):
                i = 2 * j
                if floats:
                    low_scale, high_scale = ptx.bitcast_f32(scale[i]), ptx.bitcast_f32(scale[i + 1])
                    low_offset, high_offset = ptx.bitcast_f32(offset[i]), ptx.bitcast_f32(offset[i + 1])
                else:
                    low_scale, high_scale = unpack(scale[j])
                    low_offset, high_offset = unpack(offset[j])
                sums[i] = ((sums[i] - mean_high) - mean_low) * rate * low_scale + low_offset
                sums[i + 1] = ((sums[i + 1] - mean_high) - mean_low) * rate * high_scale + high_offset

            # The maximum of a window, by the warp of its first position.
            mine = base + uint32(best_at) + thread * 16
            ptx.st_shared_v4_f32(mine, sums[0], sums[1], sums[2], sums[3])
            ptx.st_shared_v4_f32(mine + half, sums[4], sums[5], sums[6], sums[7])
            rows_meet()
            if wanted != 0 and warp % window_warps == 0:
                for p in range(1, pool):
                    for h in range(2):
                        theirs = ptx.ld_shared_v4_f32(mine + 512 * p + h * half)
                        for j in range(4):
                            sums[4 * h + j] = ptx.max_nan_f32(sums[4 * h + j], theirs[j])
                for c in range(OCTET):
                    sums[c] = ptx.max_nan_f32(sums[c], float32(0))  # ReLU
                place = uint64(n * pooled + window) * uint64(channels)
                if split:
                    place += place
                store(y + (place + uint64(channel)) * y_bytes, uint64(channels) * y_bytes, sums)

    return kernel


def conv_block_1(
    ids: Array,
    weights: TokenConvWeights,
    tables: PairTables,
    pool_size: int,
    *,
    eps: float = 1e-5,
    cluster: int = CLUSTER,
    sums: Array = None,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """Block 1 of a few inputs: `TokenConvWeights.layernorm_relu_maxpool1d`, with the moments taken, too.

    Args:
        ids: uint8 (N, L) on the GPU, C-contiguous; an id >= depth is blank.
        weights: with gamma and beta; C_out a multiple of 8.
        tables: of the same weight and bias.
        pool_size: positions that a maximum is taken of, at most 9.
        eps: added to the variance.
        cluster: blocks that share look-ups, 2 to 8.
        sums: scratch, float64 of `in_parts.sums_shape(N, L)` on the GPU, for a kernel before instead of clusters; None
            for clusters.
        out: where to write, (N, L_out // pool_size, C_out), for fp16x3 2 C_out; made where None.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU; for clusters, none of Hopper's (9.0).
    """
    device.require_tensor_cores("small_batch", hopper=sums is None, turing=True)
    n, length = shapes.ranked("ids", ids, "N, L")
    (taps, depth, channels), of = weights.shape, weights.precision
    if channels % OCTET:
        raise ValueError(f"weights has C_out={channels}: need a multiple of {OCTET}")
    if not weights.affine:
        raise ValueError("weights has no gamma: need LayerNorm's parameters when it is made")
    if (tables.kernel_size, tables.depth, tables.channels) != weights.shape:
        of_tables = tables.kernel_size, tables.depth, tables.channels
        raise ValueError(f"tables is of a weight {of_tables}: need {tuple(weights.shape)}")
    kept, positions = length - taps + 1, tuple(weights.affine[0].shape)[-2]
    if kept != positions:
        raise ValueError(f"ids has {length} positions: need {positions + taps - 1}, as gamma has {positions}")
    if not 2 <= cluster <= CLUSTER:  # `st.async` of a block alone is an illegal instruction on an H100
        raise ValueError(f"{cluster=}: need 2 to {CLUSTER} blocks")
    if not 1 <= pool_size <= min(ROW_WARPS, kept):
        raise ValueError(f"{pool_size=}: need 1 to {min(ROW_WARPS, kept)}, positions and warps of a block")
    windows, pooled = ROW_WARPS // pool_size, kept // pool_size
    call = Call(out, stream, (n, pooled, of.terms * channels), of.dtype, ids=ids)
    table, bias, gamma, beta, y = (
        np.uint64(device.address(a)) for a in (weights.table, weights.bias, *weights.affine, call.out)
    )
    flat = tuple(array.reshape((array.size,)) for array in (tables.singles, tables.pairs))
    if sums is not None:
        shapes.expect("sums", sums, in_parts.sums_shape(n, length))
        addresses = table, bias, gamma, beta, y
        in_parts.launch(call, call.inputs[0], sums, flat, addresses, of, weights.wide, pool_size, windows,
                        weights.shape, eps)  # fmt: skip
        return call.result()
    grid, threads = (-(-pooled // (windows * cluster)), n, -(-channels // (32 * OCTET))), windows * pool_size
    call.launch(
        _block_kernel(of, weights.wide, taps, pool_size, cluster), grid, 32 * (threads + LOOK_UP_WARPS),
        call.inputs[0], table, bias, *flat, gamma, beta, y, *map(np.uint32, (depth, channels, kept, pooled)),
        np.float64(1 / (kept * channels)), np.float32(eps), early=True, cluster=cluster,
    )  # fmt: skip
    return call.result()
