"""A linear layer of few outputs, such as a network's last one: a warp an input, without tensor cores.

Tensor cores multiply tiles of 256 columns, and four classes would leave nearly all of one empty; and where each block
has 128 rows, most of the GPU has none. The layer does little else than read its input. So each warp asks for all of one
row at once, and multiplies in float32 by weights that stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers import Linear
from charcnn.ops.common.cast import WORDS
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.former import of_arrays
from charcnn.ops.common.moments import LANES, warp_sum
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, TENSOR_PRECISIONS, choose

OCTET = 8
"""Features that a lane loads at once."""

THREADS = device.block_size(8 * LANES)

AT_ONCE = 4
"""Octets that a lane asks for before it needs the first."""

MOST = 16
"""Outputs. A warp loads the weights of all, which more of them would make the work; tensor cores share them."""

TAKEN = HALF_PRECISIONS | {"fp8": TENSOR_PRECISIONS["fp8"]}


@cache
def _few_outputs_kernel(ptx_type: str, outputs: int, early: bool) -> Any:
    """The kernel (x, weight, bias, y) for so many outputs; x are the numbers' bits; `early`: `device.begins_early`."""
    eighths = ptx_type == "e4m3"
    unpack, words = ptx.cvt_f32x2("f16" if eighths else ptx_type), 2 if eighths else 4
    held, warps = AT_ONCE * words, THREADS // LANES
    octet, lanes, stretch, four = OCTET, LANES, OCTET * LANES, uint64(ptx.VECTOR)

    @jit(launch_bounds=THREADS)
    def kernel(x, weight, bias, y):
        acc = cuda.local.array(outputs, float32)
        read = cuda.local.array(held, types.uint32)
        values = cuda.local.array(OCTET, float32)
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        thread = thread_idx_x()
        lane, row = thread % lanes, block_idx_x() * warps + thread // lanes
        features = extents(x)[1]
        if row >= extents(x)[0]:
            return
        for c in range(outputs):
            acc[c] = float32(0)
        begin = lane * octet
        while begin < features:
            for s in range(AT_ONCE):
                at, to = begin + s * stretch, s * words
                if at < features:
                    place = uint64(row) * uint64(features) + uint64(at)
                    if eighths:
                        read[to], read[to + 1] = ptx.ld_global_v2_b32(x, place)
                    else:
                        read[to], read[to + 1], read[to + 2], read[to + 3] = ptx.ld_global_v4_b32(x, place)
            for s in range(AT_ONCE):
                at, to = begin + s * stretch, s * words
                if at < features:
                    for w in range(words):
                        if eighths:
                            low, high = ptx.cvt_f16x2_e4m3x4(read[to + w])
                            values[4 * w], values[4 * w + 1] = unpack(low)
                            values[4 * w + 2], values[4 * w + 3] = unpack(high)
                        else:
                            values[2 * w], values[2 * w + 1] = unpack(read[to + w])
                    for c in range(outputs):
                        place = uint64(c) * uint64(features) + uint64(at)
                        e, f, g, h = ptx.ld_global_v4_f32(weight, place)
                        total = (values[0] * e + values[1] * f) + (values[2] * g + values[3] * h)
                        e, f, g, h = ptx.ld_global_v4_f32(weight, place + four)
                        acc[c] += total + ((values[4] * e + values[5] * f) + (values[6] * g + values[7] * h))
            begin += uint32(AT_ONCE) * stretch
        for c in range(outputs):
            total = warp_sum(acc[c])
            if lane == c:
                y[row, c] = total + bias[c]

    return kernel


class FewOutputsLinear(PreparedConv):
    """A linear layer of at most 16 outputs on the current GPU, to float32: weights, sums and results are float32, too.

    Features begin at a multiple of 16 bytes, in fp8 of 8.

    Args:
        pattern: `Linear` alone.
        weights: float32 "weight" (C_in, C_out), as `arrays.pack` gives it, and "bias" (C_out,), NumPy arrays; C_in is a
            multiple of 8.
        precision: of features: "fp16", the default, "bf16" or "fp8".

    Raises:
        ValueError: it does not compute the pattern, there is no such precision, or an argument's shape does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0 for bf16, 8.9 for fp8.
    """

    products, precisions, tensor_cores, writes_host = (Linear,), tuple(TAKEN), False, True

    @of_arrays
    def __init__(self, pattern: Pattern, weights: Mapping[str, Array], *, precision: str = "fp16") -> None:
        of = choose(precision, TAKEN)
        device.require_capability(of.capability, f"few_outputs in {precision}", "use float32")
        weight, bias = self._read(pattern, weights, of, FP32, OCTET)
        self._check_unpadded(weights)
        self._weight = device.to_device(np.ascontiguousarray(weight[0].T, np.float32))
        self._bias = device.to_device(np.ascontiguousarray(bias, np.float32))
        self.nbytes = self._weight.nbytes + self._bias.nbytes

    @classmethod
    def check(cls, pattern: Pattern) -> tuple[Product, Epilogue]:
        """See `PreparedConv`."""
        product, epilogue = super().check(pattern)
        if not isinstance(product, Linear) or not 0 < product.units <= MOST or epilogue.pointwise:
            raise ValueError(f"pattern={list(pattern)}: need Linear of 1 to {MOST} outputs alone for {cls.__name__}")
        return product, epilogue

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        x, of = call.inputs[0], self.precision
        if beyond := device.address(x) % (OCTET * of.itemsize):
            raise ValueError(f"x begins {beyond} bytes past a multiple of {OCTET * of.itemsize}: need one")
        n, early = x.shape[0], device.begins_early()
        bits, y = x.view(WORDS[of.itemsize]).reshape((n, self.c_in)), call.out.reshape((n, self.c_out))
        kernel, blocks = _few_outputs_kernel(of.ptx_type, self.c_out, early), -(-n // (THREADS // LANES))
        call.launch(kernel, blocks, THREADS, bits, self._weight, self._bias, y, early=early)
