"""A convolution by one of the steps."""

from __future__ import annotations

from charcnn.gpu import device
from charcnn.ops.conv1d.ladder import StepConv1d, by_name
from charcnn.ops.conv1d.mma.steps import large_warp_tiles, ldmatrix, pooled, ring, swizzled, word_loads
from charcnn.ops.conv1d.mma.steps.common import BLOCK_N


class MmaStepConv1d(StepConv1d):
    """A step to `mma`: conv1d_relu_nlc in fp16 with float32 sums; by `pooled`, conv1d_relu_maxpool1d_nlc.

    Args:
        step: a key of `steps`.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: C_in in whole 64s, C_out in
            whole `block_n`.
        bias: float32 (C_out,), NumPy.

    Raises:
        ValueError: there is no such step; an argument's shape, dtype or layout does not fit; shared memory does not
            hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    steps = by_name((word_loads, ldmatrix, swizzled, ring, large_warp_tiles, pooled))
    block_n = BLOCK_N

    def _require(self) -> None:
        device.require_tensor_cores("mma")
