"""A convolution by one of the steps."""

from __future__ import annotations

from charcnn.gpu import device
from charcnn.ops.conv1d.ladder import StepConv1d, by_name
from charcnn.ops.conv1d.mma.steps import large_warp_tiles, ldmatrix, pooled, ring, swizzled, word_loads
from charcnn.ops.conv1d.mma.steps.common import BLOCK_N


class MmaStepConv1d(StepConv1d):
    """A step to `mma`, which needs compute capability 8.0. Arguments and errors as `StepConv1d`'s."""

    steps = by_name((word_loads, ldmatrix, swizzled, ring, large_warp_tiles, pooled))
    block_n = BLOCK_N

    def _require(self) -> None:
        device.require_tensor_cores("mma")
