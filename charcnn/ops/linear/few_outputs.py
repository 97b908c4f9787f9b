"""A linear layer of few outputs, such as a network's last one: a warp an input, without tensor cores.

Tensor cores multiply tiles of 256 columns, and four classes would leave nearly all of one empty; and where each block
has 128 rows, most of the GPU has none. The layer does little else than read its input. So each warp asks for all of one
row at once, and multiplies in float32 by weights that stay in the first cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import WORDS
from charcnn.ops.common.layer import ArraySpec, NoScratch, Space
from charcnn.ops.common.moments import LANES, warp_sum
from charcnn.ops.common.precision import HALF_PRECISIONS, TENSOR_PRECISIONS, choose

OCTET = 8
"""Features that a lane loads at once."""

THREADS = device.block_size(8 * LANES)

AT_ONCE = 4
"""Octets that a lane asks for before it needs the first."""

MOST = 16
"""Outputs. A warp loads the weights of all, which more of them would make the work; tensor cores share them."""

TAKEN = HALF_PRECISIONS | {"fp8": TENSOR_PRECISIONS["fp8"]}


def takes(precision: str, outputs: int) -> bool:
    """Whether `FewOutputsLinear` is for a layer of so many outputs, from features of this precision."""
    return precision in TAKEN and outputs <= MOST


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


class FewOutputsLinear(NoScratch):
    """linear_nlc for products with few columns, to float32: a linear layer's weights on the current GPU.

    Args:
        weight: float32 (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,), NumPy arrays; C_in a multiple of 8,
            C_out at most 16.
        precision: of the features: "fp16", "bf16" or "fp8"; weights, sums and results are float32.

    Raises:
        ValueError: an argument's shape does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0, for fp8 8.9.
    """

    writes_host = True

    def __init__(self, weight: Array, bias: Array, *, precision: str = "fp16") -> None:
        self.precision = choose(precision, TAKEN)
        eighths = self.precision.ptx_type == "e4m3"
        device.require_capability((8, 9) if eighths else (8, 0), f"few_outputs in {precision}", "use float32")
        c_in, c_out = shapes.ranked("weight", weight, "C_in, C_out")
        shapes.linear_nlc(np.empty((0, c_in)), weight, bias)
        if c_in % OCTET or not c_in or not 0 < c_out <= MOST:
            raise ValueError(f"weight has shape {weight.shape}: need C_in a multiple of {OCTET}, C_out 1 to {MOST}")
        self.c_in, self.c_out = c_in, c_out
        self._weight = device.to_device(np.ascontiguousarray(weight.T, np.float32))
        self._bias = device.to_device(np.ascontiguousarray(bias, np.float32))
        self.nbytes: int = self._weight.nbytes + self._bias.nbytes

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], 1, self.c_out))]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features (N, 1, C_in)."""
        (y,) = self.writes(x.shape)
        return self.linear(x, out=space.device(*y), stream=space.stream)

    def linear(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """Each position's features by the weights.

        Args:
            x: (N, L, C_in) in the precision's dtype, on the GPU; begins at a multiple of 16 bytes, of 8 in fp8.
            out: where to write, (N, L, C_out); made where None.
            stream: a CUDA stream; the default stream where None.

        Returns:
            float32 (N, L, C_out) on the GPU, not waited for.

        Raises:
            ValueError: an argument's shape, dtype, layout, side or place does not fit.
        """
        of = self.precision
        n, length, c_in = shapes.ranked("x", x, "N, L, C_in")
        if c_in != self.c_in:
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={self.c_in}")
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        if beyond := device.address(x) % (OCTET * of.itemsize):
            raise ValueError(f"x begins {beyond} bytes past a multiple of {OCTET * of.itemsize}: need one")
        call = Call(out, stream, (n, length, self.c_out), dtypes={"x": of.dtype}, x=x)
        rows = n * length
        bits, y = call.inputs[0].view(WORDS[of.itemsize]).reshape((rows, c_in)), call.out.reshape((rows, self.c_out))
        early, blocks = device.begins_early(), -(-rows // (THREADS // LANES))
        kernel = _few_outputs_kernel(of.ptx_type, self.c_out, early)
        call.launch(kernel, blocks, THREADS, bits, self._weight, self._bias, y, early=early)
        return call.result()
