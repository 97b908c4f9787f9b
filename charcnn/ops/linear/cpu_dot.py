"""A linear layer of int8 or bf16 on all CPU cores, by the dot-product instructions of AVX-512."""

from __future__ import annotations

import numpy as np

from charcnn.ops.common.cpu_dot_gemm import DotWeights


class CpuDotLinear:
    """A linear layer over features of 8 or 16 bits, its weights packed once.

    Args:
        weight: float32 (C_out, C_in), of which int8 keeps 255 steps an output; bias (C_out,).
        precision: int8 or bf16.
        result: what is stored: features of that precision, or "float32".
        relu: whether what is below 0 becomes 0; in u8 it always does.

    Raises:
        ValueError: the processor lacks the instructions, or int8 cannot hold the weights.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, precision: str, result: str | None = None, relu: bool = True
    ) -> None:
        self._weights = DotWeights(weight[:, None], bias, precision=precision, result=result, relu=relu)

    def __call__(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """x (N, C_in) -> out (N, C_out), both C-contiguous: u8, bits of bf16 as uint16, or float32."""
        self._weights.multiply(x[None], out[None])
        return out
