"""Convolutions and linear layers of int8 or bf16 on all CPU cores, by dot products of AVX-512 or tiles of AMX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from charcnn.aliases import Function
from charcnn.layers import Conv1d, Linear
from charcnn.ops.common.cpu_conv import PreparedCpuConv
from charcnn.ops.common.cpu_dot_gemm import DotWeights
from charcnn.ops.common.epilogues import Pattern
from charcnn.ops.common.former import former_on_cpu


class CpuDotConv(PreparedCpuConv):
    """A convolution over channels-last features of 8 or 16 bits, or a linear layer, its weights packed once.

    Features and results are C-contiguous: u8, bits of bf16 as uint16, or float32 results.

    Args:
        pattern: `Conv1d` or `Linear`, with ReLU, without which u8 has none below 0 either; behind a `Conv1d`
            max-pooling of 3.
        weights: float32 "weight" as of `CpuConv`, of which int8 keeps 255 steps an output channel, and "bias".
        precision: of features and weights, "int8" or "bf16".
        results: what is stored, "float32", or None, the default: features of that precision.

    Raises:
        ValueError: it does not compute the pattern, the processor lacks the instructions, or int8 cannot hold the
            weights.
    """

    products = Conv1d, Linear
    precisions = "int8", "bf16"

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, np.ndarray], *, precision: str, results: str | None = None
    ) -> None:
        weight, bias = self._read(pattern, weights)
        self._weights = DotWeights(
            weight[:, 0], bias, precision=precision, result=results, relu=self.epilogue.rectified,
            pool_size=self.epilogue.pool_size,
        )  # fmt: skip

    def __call__(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the result of x; out. A linear layer's rows are positions of one input."""
        self._weights.multiply(*(each if each.ndim == 3 else each[None] for each in (x, out)))
        return out


def __getattr__(name: str) -> Function:
    return former_on_cpu(__name__, name, CpuDotConv)
