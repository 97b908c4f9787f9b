"""conv1d on all CPU cores, lowered to a GEMM over overlapping rows of channels-last features."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Function
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply, keeping


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, stride: int, padding: int, dilation: int, *, epilogue: str,
) -> Apply:  # fmt: skip
    """Packs the weights at each call, and each task turns its share of x; `CpuConv` keeps weights.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    weight = weight[:, :, None].transpose(2, 3, 1, 0)  # of images of one row
    pattern = pattern_of(weight, epilogue, stride=(1, stride), padding=(0, padding), dilation=(1, dilation))
    conv = CpuConv(pattern, {"weight": weight, "bias": bias})
    return lambda out, x: conv(x.transpose(0, 2, 1)[:, None], out.transpose(0, 2, 1)[:, None])


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuConv)
