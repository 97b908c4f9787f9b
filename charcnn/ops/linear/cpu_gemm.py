"""linear on all CPU cores, by the micro-kernel."""

from __future__ import annotations

import math

import numpy as np

from charcnn.aliases import Function
from charcnn.ops.common import cpu_unpacked
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.cpu_gemm import GELU, RELU
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.former import former_on_cpu
from charcnn.ops.common.keep import Apply

AFTER = {"": 0, "relu": RELU, "gelu": GELU}
"""What follows a product, as the micro-kernels are told."""

UNPACKED = 384
"""Rows of x up to which weights are multiplied as they lie: beyond, the faster product is worth the packing."""


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, epilogue: str,
) -> None:  # fmt: skip
    """Multiplies up to 384 rows with the weights as they lie, and packs weights for more; `CpuConv` packs them once.

    ReLU and GELU are in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    rows, (c_out, c_in) = math.prod(x.shape[:-1]), weight.shape
    if rows > UNPACKED:
        _keep(weight, bias, epilogue=epilogue)(out, x)
    else:
        cpu_unpacked.linear(x.reshape(rows, c_in), weight, bias, AFTER[epilogue], out.reshape(rows, c_out))


def launch_two(
    out: np.ndarray, x: np.ndarray, weight1: np.ndarray, bias1: np.ndarray, weight2: np.ndarray, bias2: np.ndarray, *,
    epilogue: str,
) -> None:  # fmt: skip
    """Two products, as `linear_cpu_gemm` has them, and between them an array of C_mid values a row.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """
    hidden = np.empty((*x.shape[:-1], len(bias1)), np.float32)
    launch(hidden, x, weight1, bias1, epilogue=epilogue)
    launch(out, hidden, weight2, bias2, epilogue="")


def _keep(weight: np.ndarray, bias: np.ndarray, *, epilogue: str) -> Apply:
    conv = CpuConv(pattern_of(weight.T, epilogue), {"weight": weight.T, "bias": bias})

    def apply(out: np.ndarray, x: np.ndarray) -> None:
        rows, (c_out, c_in) = math.prod(x.shape[:-1]), weight.shape
        conv(x.reshape(rows, c_in), out.reshape(rows, c_out))

    return apply


launch.prepare = _keep  # type: ignore[attr-defined]


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuConv)
