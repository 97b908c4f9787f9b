"""conv2d_nhwc on all CPU cores with fewer multiplications: conv1d's filtering, along rows and columns."""

from __future__ import annotations

import numpy as np

from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.cpu_tile import Tile
from charcnn.ops.common.keep import Apply, keeping
from charcnn.ops.conv1d.winograd_cpu import Filtered, nested
from charcnn.ops.conv2d.cpu_gemm import window


class CpuWinogradConv2d:
    """A convolution over channels-last images on the CPU, its weights transformed and packed once.

    Args:
        weight: float32 (C_out, C_in / groups, KH, KW); bias (C_out,).
        padding, groups: as `charcnn.ops.reference.conv2d` takes them; several groups only of 3 to 5 rows and columns.
        tile: the micro-kernel's, from `cpu_gemm.choose_tile`; the best for this processor where None.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, padding: Padding = 0, groups: int = 1, tile: Tile | None = None
    ) -> None:
        self._kernel, self._padding = weight.shape[2:], padding
        self._filtered = Filtered(weight.transpose(0, 2, 3, 1), bias, tile, groups)

    @staticmethod
    def takes(kernel: Pair, stride: Pair, dilation: Pair, groups: int) -> bool:
        """Whether such a convolution can be filtered."""
        sizes = windows.pair("kernel", kernel)
        return all(one in (1, (1, 1)) for one in (stride, dilation)) and (groups == 1 or nested(*sizes))

    def __call__(self, x: np.ndarray, out: np.ndarray, *, relu: bool = False) -> np.ndarray:
        """x float32 (N, H, W, C_in), C-contiguous -> out (N, H_out, W_out, C_out), any strides; ReLU'd where asked.

        The same bits for any number of threads.
        """
        top, _, left, _ = window(*x.shape[1:3], self._kernel, 1, self._padding).padding
        return self._filtered(x, out, corner=(top, left), relu=relu)


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    *, epilogue: str,
) -> Apply:  # fmt: skip
    """A half to a quarter of the multiplications. Packs the weights at each call; `CpuWinogradConv2d` keeps them.

    Stride and dilation are 1, groups too, or of a kernel of 3 to 5 rows and columns any. A feature that is not finite
    may make NaN of all pixels that share a tile with one that reads it. The same bits for any number of threads.

    Raises:
        ValueError: Winograd's filtering cannot take these moves; or the environment's CHARCNN_CPU_TILE does not fit.
    """

    if not CpuWinogradConv2d.takes(weight.shape[:2], stride, dilation, groups):
        raise ValueError(
            f"{stride=}, {dilation=}, {groups=}: Winograd's filtering needs 1, of 3 to 5 rows and columns any groups; "
            "conv2d_nhwc's cpu_gemm takes any"
        )
    conv = CpuWinogradConv2d(weight.transpose(3, 2, 0, 1), bias, padding=padding, groups=groups)
    return lambda out, x: conv(x, out, relu=epilogue == "relu")
