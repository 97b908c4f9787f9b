"""conv2d_nhwc on all CPU cores with fewer multiplications: conv1d's filtering, along rows and columns."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Function
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply, keeping
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    *, epilogue: str,
) -> Apply:  # fmt: skip
    """A half to a quarter of the multiplications. Packs the weights at each call; `CpuWinogradConv` keeps them.

    Stride and dilation are 1, groups too, or of a kernel of 3 to 5 rows and columns any. A feature that is not finite
    may make NaN of all pixels that share a tile with one that reads it. The same bits for any number of threads.

    Raises:
        ValueError: Winograd's filtering cannot take these moves; or the environment's CHARCNN_CPU_TILE does not fit.
    """
    pattern = pattern_of(weight, epilogue, stride=stride, padding=padding, dilation=dilation, groups=groups)
    conv = CpuWinogradConv(pattern, {"weight": weight, "bias": bias})
    return lambda out, x: conv(x, out)


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuWinogradConv)
