"""conv1d on all CPU cores, lowered to a GEMM over overlapping rows of channels-last features."""

from __future__ import annotations

import numpy as np

from charcnn.ops.common.cpu_gemm import Packed
from charcnn.ops.common.cpu_tile import Tile
from charcnn.ops.common.keep import Apply, keeping


class CpuConv1d:
    """A convolution over channels-last features, its weights packed once.

    Args:
        weight: float32 (C_out, C_in, K); bias (C_out,).
        tile: the micro-kernel's, from `cpu_gemm.choose_tile`; the best for this processor where None.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, tile: Tile | None = None) -> None:
        self._packed = Packed(weight.transpose(0, 2, 1)[:, None], bias, tile)

    def __call__(
        self,
        x: np.ndarray,
        out: np.ndarray,
        *,
        stride: int = 1,
        dilation: int = 1,
        pool_size: int = 1,
        relu: bool = False,
    ) -> np.ndarray:
        """x float32 (N, L, C_in), C-contiguous -> out (N, L_out, C_out), any strides; pooled and ReLU'd where asked."""
        self._packed.multiply(
            x[:, None], out[:, None], stride=(1, stride), dilation=(1, dilation), pool_size=pool_size, relu=relu
        )
        return out


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, stride: int, padding: int, dilation: int, *, epilogue: str,
) -> Apply:  # fmt: skip
    """Transposes x and packs the weights at each call; `CpuConv1d` keeps both as the micro-kernel wants them.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: or the environment's CHARCNN_CPU_TILE does not.
    """

    conv = CpuConv1d(weight, bias)

    def apply(out: np.ndarray, x: np.ndarray) -> None:
        n, c_in, length = x.shape
        features = np.zeros((n, length + 2 * padding, c_in), np.float32)
        features[:, padding : padding + length] = x.transpose(0, 2, 1)
        conv(features, out.transpose(0, 2, 1), stride=stride, dilation=dilation, relu=epilogue == "relu")

    return apply
