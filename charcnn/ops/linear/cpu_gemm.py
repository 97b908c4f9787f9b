"""linear on all CPU cores, by the micro-kernel."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Function
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply, keeping


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, *, epilogue: str,
) -> Apply:  # fmt: skip
    """Packs the weights at each call, which takes longer than to multiply a few inputs; `CpuConv` keeps them packed.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    conv = CpuConv(pattern_of(weight.T, epilogue), {"weight": weight.T, "bias": bias})
    return lambda out, x: conv(x, out)


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuConv)
