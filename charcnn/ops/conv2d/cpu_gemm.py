"""conv2d on all CPU cores, by the GEMM over overlapping rows: conv1d's, with a run of taps a kernel row."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Function
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply, keeping


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    *, epilogue: str,
) -> Apply:  # fmt: skip
    """Packs the weights at each call, and each task turns its share of x; `CpuConv` keeps weights.

    It takes channels-last features. ReLU is in the last pass, over sums in cache. The same bits for any number of
    threads.

    Raises:
        ValueError: a group has one input channel; or the environment's CHARCNN_CPU_TILE does not fit.
    """
    apply = launch_nhwc.prepare(
        weight.transpose(2, 3, 1, 0), bias, stride, padding, dilation, groups, epilogue=epilogue
    )
    return lambda out, x: apply(out.transpose(0, 2, 3, 1), x.transpose(0, 2, 3, 1))


@keeping
def launch_nhwc(
    weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    *, epilogue: str,
) -> Apply:  # fmt: skip
    """Packs the weights at each call; `CpuConv` keeps them.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: a group has one input channel; or the environment's CHARCNN_CPU_TILE does not fit.
    """
    pattern = pattern_of(weight, epilogue, stride=stride, padding=padding, dilation=dilation, groups=groups)
    conv = CpuConv(pattern, {"weight": weight, "bias": bias})
    return lambda out, x: conv(x, out)


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuConv)
