"""A linear layer for up to 64 inputs: all multiprocessors read its weights once; a second kernel adds up the splits.

The product is that of `small_batch`. What follows it, a function of each value, needs whole sums: so a second kernel
adds them. It begins early, and finds them in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import epilogues, shapes
from charcnn.ops.common.layer import Array, Space
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, choose
from charcnn.ops.linear.small_batch import MOST, UNITS, SplitWeights

THREADS = 128
"""Of a block that adds up: each has QUAD neighbouring units of one input."""

QUAD = 4


@cache
def make_join(ptx_type: str, epilogue: str, k_splits: int) -> Any:
    """The kernel (sums, bias, y, n, padded, units): adds up what comes in `k_splits`, and applies the epilogue.

    Its arguments: addresses of the sums, float32 (k_splits, n, padded); of the bias (padded,); of y (n, units); inputs;
    units, padded and not.

    Args:
        ptx_type: of y, as PTX calls it: "f16" or "bf16", of which units are whole quads; or "f32".
        epilogue: of `common.epilogues`.
    """
    apply, wide = epilogues.epilogue(epilogue), ptx_type == "f32"
    pack = None if wide else ptx.cvt_f16x2(ptx_type)
    quad = uint32(QUAD)

    @jit(launch_bounds=(THREADS, 1))
    def join(sums, bias, y, n, padded, units):
        values = cuda.local.array(QUAD, float32)
        unit, row = uint32(quad * uint32(cuda.grid(1))), uint32(cuda.blockIdx.y)
        ptx.griddepcontrol_launch()
        if unit < units:
            at = uint64(unit) * uint64(4)
            values[0], values[1], values[2], values[3] = ptx.ld_global_v4_f32(bias + at)
            ptx.griddepcontrol_wait()
            for split in range(k_splits):
                place = uint64(uint32(uint32(uint32(split) * n) + row)) * uint64(padded) * uint64(4)
                d0, d1, d2, d3 = ptx.ld_cg_v4_f32(sums + place + at)
                values[0] += d0
                values[1] += d1
                values[2] += d2
                values[3] += d3
            for i in range(QUAD):
                values[i] = apply(values[i])
            first = uint64(row) * uint64(units) + uint64(unit)
            if wide:
                for i in range(QUAD):
                    if uint32(unit + uint32(i)) < units:
                        ptx.st_global_f32(y + (first + uint64(i)) * uint64(4), values[i])
            else:
                ptx.st_global_v2_b32(y + first * uint64(2), pack(values[0], values[1]), pack(values[2], values[3]))

    return join


class SplitKLinear:
    """linear_nlc for up to 64 inputs on tensor cores, the depth split over the whole GPU; and a function of each value.

    Args:
        weight: float32 (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,), NumPy arrays; C_in a multiple of 8,
            and C_out of 4, where results are not float32.
        epilogue: what follows, a row of `common.epilogues`.
        float32: whether the result is float32, and not of the precision.
        precision: "fp16" or "bf16", of features and weights; sums are float32.

    Raises:
        ValueError: an argument's shape does not fit, or there is no such epilogue or precision.
        DeviceError: no usable GPU, or none of Hopper's (compute capability 9.0).
    """

    most = MOST

    def __init__(
        self, weight: Any, bias: Any, *, epilogue: str = "", float32: bool = False, precision: str = "fp16"
    ) -> None:
        device.require_hopper("split_k")
        of = choose(precision, HALF_PRECISIONS)
        c_in, c_out = shapes.ranked("weight", weight, "C_in, C_out")
        shapes.linear_nlc(np.empty((0, c_in)), weight, bias)
        if c_in % 8 or not c_in or (c_out % QUAD and not float32):
            raise ValueError(f"weight has shape {weight.shape}: need C_in a multiple of 8, C_out of {QUAD}")
        self._results, self._epilogue, self._dtype = FP32 if float32 else of, epilogues.check(epilogue), of.dtype
        self._weight = SplitWeights(weight, of)
        self._padded = self._weight.tiles * UNITS
        self._bias = device.to_device(np.pad(np.ascontiguousarray(bias, np.float32), (0, self._padded - c_out)))
        self.nbytes = self._weight.nbytes + self._bias.nbytes

    def writes(self, x: shapes.Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], 1, self._weight.c_out), self._results.dtype)]

    def scratch(self, x: shapes.Shape) -> Mapping[str, Array]:
        """Sums of parts of the products."""
        return {"k_splits": Array((self._weight.k_splits * x[0] * self._padded,))}

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features of at most 64 inputs, all of an input in a row."""
        n, weight = x.shape[0], self._weight
        if n > MOST or prod(x.shape[1:]) != weight.c_in:
            raise ValueError(f"x has shape {tuple(x.shape)}: need at most {MOST} inputs of {weight.c_in} features")
        (y,) = self.writes(x.shape)
        call = Call(space.device(*y), space.stream, *y, {"x": self._dtype}, x=x)
        if n == 0:
            return call.out
        sums = device.address(space.scratch(self)["k_splits"])
        weight.multiply(call, n, device.address(x), sums, self._padded)
        addresses = map(np.uint64, (sums, device.address(self._bias), device.address(call.out)))
        sizes = map(np.uint32, (n, self._padded, weight.c_out))
        join = make_join(self._results.ptx_type, self._epilogue, weight.k_splits)
        call.launch(join, (-(-weight.c_out // (QUAD * THREADS)), n), THREADS, *addresses, *sizes, early=True)
        return call.out
