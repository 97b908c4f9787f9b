"""A network's last layer and its loss, forward and back: a product with few classes, and the cross-entropy of one or
of several labels.

Two kernels. A warp of the first has a row: its logits, its loss, and the gradient of what it read, with the weights
from caches. The second adds up the weight's gradient: a thread has four classes of eight units, of some rows.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common import columns
from charcnn.ops.common.columns import AHEAD, fold_of, lanes_of, placed, placed_factors, slabs_of
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.moments import LANES
from charcnn.ops.conv1d.products import After, make_ending
from charcnn.ops.maxpool1d_training import slope_of

CLASSES = 64
"""The most that four lanes hold the logits of."""

A_LANE = 16
"""The most classes whose logits a lane holds."""

FEW = 8
"""Up to so many classes, a lane asks for AHEAD octets of a row at once."""

QUAD = ptx.VECTOR


@cache
def _quad_of(classes: int) -> tuple[Kernel, Kernel]:
    """(load, store) of four neighbouring classes of a row, `at` its first value; beyond the last class zeros."""
    whole, quad = classes % QUAD == 0, QUAD

    @cuda.jit(device=True, forceinline=True)
    def load(array, at, tile, values, to):
        for c in range(quad):
            values[to + c] = float32(0)
        if whole:
            if tile * quad < classes:
                values[to], values[to + 1], values[to + 2], values[to + 3] = ptx.ld_global_v4_f32(
                    array + (at + uint64(tile * quad)) * uint64(4)
                )
        else:
            for c in range(quad):
                if tile * quad + c < classes:
                    values[to + c] = ptx.ld_global_f32(array + (at + uint64(tile * quad + c)) * uint64(4))

    @cuda.jit(device=True, forceinline=True)
    def store(array, at, tile, values, to):
        for c in range(quad):
            if tile * quad + c < classes:
                ptx.st_global_f32(array + (at + uint64(tile * quad + c)) * uint64(4), values[to + c])

    return load, store


@cache
def _over(first: int, last: int) -> tuple[Kernel, Kernel]:
    """(total, greatest) of a value over lanes that differ by powers of two from `first` down to `last`."""

    @cuda.jit(device=True, forceinline=True)
    def total(value):
        mask = first
        while mask >= last:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, mask)
            mask //= 2
        return value

    @cuda.jit(device=True, forceinline=True)
    def greatest(value):
        mask = first
        while mask >= last:
            value = ptx.max_nan_f32(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, mask))
            mask //= 2
        return value

    return total, greatest


@cache
def _head_kernel(classes: int, groups: int, ahead: int, threads: int, multi_label: bool, ptx_type: str) -> Kernel:
    # Lanes are `groups` times as many as octets that are read at once: each has a part of the classes.
    tiles, lanes, held, octet, quad = -(-classes // (QUAD * groups)), LANES, 4 * ahead, OCTET, QUAD
    padded, unpack, pack = QUAD * tiles, ptx.cvt_f32x2(ptx_type), ptx.cvt_f16x2(ptx_type)
    load, store = _quad_of(classes)
    (over_octets, _), (over_classes, greatest_of) = _over(LANES // 2, groups), _over(groups // 2, 1)
    apart, mean, (_, chosen) = LANES // groups, np.float32(1 / classes), make_ending(After(masked=True))

    @jit(launch_bounds=(threads, 4 if classes <= FEW else 1))
    def kernel(
        h, weight, bias, targets, weights, share, scale, factors, losses, answers, dh, dlogits, rows, units,
    ):  # fmt: skip
        logits, wanted = cuda.local.array(padded, float32), cuda.local.array(padded, float32)
        four, read = cuda.local.array(quad, float32), cuda.local.array(held, types.uint32)
        moved = cuda.local.array(octet, float32)
        thread = thread_idx_x()
        row, lane = block_idx_x() * (threads // lanes) + thread // lanes, thread % lanes
        if row >= rows:
            return
        own_octet, tile = lane // groups, lane % groups * tiles
        begin, octets = uint64(row) * uint64(units), units // octet
        for t in range(tiles):
            load(targets, uint64(row) * uint64(classes), tile + t, wanted, t * quad)
            for c in range(quad):
                logits[t * quad + c] = float32(0)

        # Logits: products of this lane's octets, then the sums of all lanes.
        for first in range(own_octet, octets, apart * ahead):
            for i in range(ahead):
                o, j = first + i * apart, 4 * i
                at = (begin + uint64(o * octet)) * uint64(2)
                read[j], read[j + 1], read[j + 2], read[j + 3] = ptx.ld_cg(h + at, 1 if o < octets else 0)
            for i in range(ahead):
                unit = min(first + i * apart, octets - 1) * octet  # behind the last one h is 0
                for w in range(4):
                    pair = unpack(read[4 * i + w])
                    for s in range(2):
                        value = pair[1] if s else pair[0]
                        for t in range(tiles):
                            load(weight, uint64(unit + 2 * w + s) * uint64(classes), tile + t, four, 0)
                            for c in range(quad):
                                logits[t * quad + c] += value * four[c]
        greatest = float32(-math.inf)
        for t in range(tiles):
            load(bias, uint64(0), tile + t, four, 0)
            for c in range(quad):
                logits[t * quad + c] = over_octets(logits[t * quad + c]) + four[c]
                if (tile + t) * quad + c < classes:
                    greatest = ptx.max_nan_f32(greatest, logits[t * quad + c])
            if own_octet == 0:
                store(answers, uint64(row) * uint64(classes), tile + t, logits, t * quad)
        greatest = greatest_of(greatest)

        # The loss, and the logits' gradient in their place.
        own_weight, loss = ptx.ld_global_f32(weights + uint64(row) * uint64(4)), float32(0)
        factor, total, all_wanted = own_weight * ptx.ld_global_f32(share), float32(0), float32(0)
        factor, logarithm = factor * ptx.ld_global_f32(scale), float32(0)
        if not multi_label:
            for t in range(tiles):
                for c in range(quad):
                    if (tile + t) * quad + c < classes:
                        total += math.exp(logits[t * quad + c] - greatest)
                        all_wanted += wanted[t * quad + c]
            total, all_wanted = over_classes(total), over_classes(all_wanted)
            logarithm = math.log(total)
        for t in range(tiles):
            for c in range(quad):
                if (tile + t) * quad + c < classes:
                    value, target = logits[t * quad + c], wanted[t * quad + c]
                    if multi_label:
                        small = math.exp(-abs(value))
                        loss += (max(value, float32(0)) - value * target + math.log1p(small)) * mean
                        sigmoid = (float32(1) if value >= float32(0) else small) / (float32(1) + small)
                        logits[t * quad + c] = factor * (sigmoid - target) * mean
                    else:
                        below = value - greatest
                        loss += target * (logarithm - below)
                        logits[t * quad + c] = factor * (math.exp(below) / total * all_wanted - target)
            if own_octet == 0:
                store(dlogits, uint64(row) * uint64(classes), tile + t, logits, t * quad)
        loss = over_classes(loss) * own_weight
        if lane == 0:
            ptx.st_global_f32(losses + uint64(row) * uint64(4), loss)

        # Back to the units, and through dropout and leaky ReLU.
        above, under = ptx.ld_global_f32(factors), slope_of(factors)
        for first in range(0, octets, apart):
            o = min(first + own_octet, octets - 1)  # lanes behind the last one help to add up
            at = (begin + uint64(o * octet)) * uint64(2)
            read[0], read[1], read[2], read[3] = ptx.ld_cg(h + at, 1)
            for w in range(4):
                pair = unpack(read[w])
                for s in range(2):
                    value = float32(0)
                    for t in range(tiles):
                        load(weight, uint64(o * octet + 2 * w + s) * uint64(classes), tile + t, four, 0)
                        for c in range(quad):
                            value += logits[t * quad + c] * four[c]
                    value = over_classes(value)
                    moved[2 * w + s] = chosen(value, pair[1] if s else pair[0], above, under)
            if lane % groups == 0 and first + own_octet < octets:
                ptx.st_global_v4_b32(
                    dh + at, pack(moved[0], moved[1]), pack(moved[2], moved[3]), pack(moved[4], moved[5]),
                    pack(moved[6], moved[7]),
                )  # fmt: skip

    return kernel


@cache
def _head_weight_kernel(classes: int, lanes: int, threads: int, ptx_type: str) -> Kernel:
    quad, octet, count, ahead, (load, store) = QUAD, OCTET, QUAD * (OCTET + 1), AHEAD, _quad_of(classes)
    unpack, fold, held, words = ptx.cvt_f32x2(ptx_type), fold_of(count, threads), count * threads, 4 * AHEAD
    bias_at, loss_words, rows_at_once = QUAD * OCTET, QUAD * AHEAD, threads // lanes

    @jit(launch_bounds=threads)
    def kernel(h, dlogits, weight, bias, rows, units):
        smem, sums = cuda.shared.array(held, float32), cuda.local.array(count, float32)
        read, four = cuda.local.array(words, types.uint32), cuda.local.array(loss_words, float32)
        thread, tile, step = thread_idx_x(), block_idx_z(), grid_dim_x() * rows_at_once
        unit = (block_idx_y() * lanes + thread % lanes) * octet
        inside = unit < units
        for u in range(octet + 1):
            for c in range(quad):
                sums[u * quad + c] = float32(0)
        row = block_idx_x() * rows_at_once + thread // lanes
        while row < rows:
            for i in range(ahead):
                at, j = (uint64(row + i * step) * uint64(units) + uint64(unit)) * uint64(2), 4 * i
                there = row + i * step < rows
                wanted = 1 if inside and there else 0
                read[j], read[j + 1], read[j + 2], read[j + 3] = ptx.ld_nc_no_allocate(h + at, wanted)
                load(dlogits, uint64(row + i * step if there else row) * uint64(classes), tile, four, j)
                if not there:
                    for c in range(quad):
                        four[j + c] = float32(0)
            for i in range(ahead):
                for w in range(4):
                    pair = unpack(read[4 * i + w])
                    for s in range(2):
                        for c in range(quad):
                            sums[(2 * w + s) * quad + c] += (pair[1] if s else pair[0]) * four[quad * i + c]
                for c in range(quad):
                    sums[bias_at + c] += four[quad * i + c]
            row += ahead * step
        fold(sums, smem, thread, lanes)
        if thread < lanes and inside:
            for u in range(octet):
                at = (uint64(block_idx_x()) * uint64(units) + uint64(unit + u)) * uint64(classes)
                store(weight, at, tile, sums, u * quad)
            if unit == 0:
                store(bias, uint64(block_idx_x()) * uint64(classes), tile, sums, bias_at)

    return kernel


def head(
    h: Array, weight: Array, bias: Array, targets: Array, weights: Array, share: Array, scale: Array, factors: Array,
    losses: Array, logits: Array, dh: Array, dlogits: Array, dweight: Array, dbias: Array, *,
    multi_label: bool = False, stream: Stream = None, ptx_type: str = "bf16",
) -> None:  # fmt: skip
    """softmax_cross_entropy of linear(h, weight, bias), and its gradients.

    Args:
        h: 16 bits as uint16, (N, U), what leaky ReLU and dropout gave; U a multiple of 8.
        weight: float32 (U, classes), up to CLASSES of them.
        bias: float32 (classes,).
        targets: float32 (N, classes), as the loss takes them.
        weights: float32 (N,): factors of the losses.
        share: float32 (1,): what each loss counts in the sum whose gradients these are.
        scale: float32 (1,) or more, of which the first multiplies all gradients.
        factors: float32 (2,) that each launch reads: by what dh is multiplied where h is above 0, and below.
        losses: float32 (N,), written.
        logits: float32 (N, classes), written.
        dh: likewise, (N, U), written: 0 where h is.
        dlogits: float32 (N, classes), written.
        dweight, dbias: float32 (parts, U, classes) and (parts, classes), written: `columns.Sums` adds them up, and
            `columns.parts_of(N, U)` says how many parts are good.
        multi_label: whether the loss is, instead, the mean over classes of the binary cross-entropy of their sigmoids.
        stream: a CUDA stream.
        ptx_type: of the numbers in 16 bits, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit, or there are too many classes.
    """
    (n, units), classes, parts = h.shape, int(weight.shape[1]), int(dbias.shape[0])
    if not 1 <= classes <= CLASSES:
        raise ValueError(f"weight has {classes} classes: need 1 to {CLASSES}")
    given = (
        placed("h", h, (n, units)),
        placed("weight", weight, (units, classes), np.float32),
        placed("bias", bias, (classes,), np.float32),
        placed("targets", targets, (n, classes), np.float32),
        placed("weights", weights, (n,), np.float32),
        placed("share", share, (1,), np.float32),
        placed("scale", scale, tuple(scale.shape), np.float32),
        placed_factors(factors),
        placed("losses", losses, (n,), np.float32),
        placed("logits", logits, (n, classes), np.float32),
        placed("dh", dh, (n, units)),
    )
    back = placed("dlogits", dlogits, (n, classes), np.float32)
    partial = (
        placed("dweight", dweight, (parts, units, classes), np.float32),
        placed("dbias", dbias, (parts, classes), np.float32),
    )
    lanes, threads, on = lanes_of(units), columns.THREADS, device.as_stream(stream)
    groups, numbers = 1 << (-(-classes // A_LANE) - 1).bit_length(), (*map(np.uint32, (n, units)),)
    kernel = _head_kernel(classes, groups, AHEAD if classes <= FEW else 1, threads, multi_label, ptx_type)
    start(kernel, -(-n * LANES // threads), threads, on, *given, back, *numbers)
    grid = parts, slabs_of(units), -(-classes // QUAD)
    kernel = _head_weight_kernel(classes, lanes, threads, ptx_type)
    start(kernel, grid, threads, on, given[0], back, *partial, *numbers)
