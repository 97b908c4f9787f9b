"""linear on all CPU cores, by the micro-kernel."""

from __future__ import annotations

import math

import numpy as np

from charcnn.aliases import Function
from charcnn.ops.common import cpu_unpacked
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply

UNPACKED = 384
"""Rows of x up to which weights are multiplied as they lie: beyond, the faster product is worth the packing."""


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, epilogue: str,
) -> None:  # fmt: skip
    """Multiplies up to 384 rows with the weights as they lie, and packs weights for more; `CpuConv` packs them once.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    rows, (c_out, c_in) = math.prod(x.shape[:-1]), weight.shape
    if rows > UNPACKED:
        _keep(weight, bias, epilogue=epilogue)(out, x)
    else:
        cpu_unpacked.linear(x.reshape(rows, c_in), weight, bias, epilogue == "relu", out.reshape(rows, c_out))


def _keep(weight: np.ndarray, bias: np.ndarray, *, epilogue: str) -> Apply:
    conv = CpuConv(pattern_of(weight.T, epilogue), {"weight": weight.T, "bias": bias})

    def apply(out: np.ndarray, x: np.ndarray) -> None:
        rows, (c_out, c_in) = math.prod(x.shape[:-1]), weight.shape
        conv(x.reshape(rows, c_in), out.reshape(rows, c_out))

    return apply


launch.prepare = _keep  # type: ignore[attr-defined]


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuConv)
