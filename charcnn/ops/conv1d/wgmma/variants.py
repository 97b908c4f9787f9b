"""The operators of `WgmmaConv` on float32 arrays: each lays out weights and features, and gives float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import narrow, widen, x_unit_of
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.wgmma.config import POOL
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv, compute


class _Prepared:
    """A `one_shot.Prepared`."""

    def __init__(self, call: Call, x: Any, weight: Any, bias: Any, precision: str, pooled: bool) -> None:
        unit = x_unit_of(call, x, choose(precision))
        results = FP32.name if precision == "fp8" else None
        self._call, self._x, self._unit, self._weights = call, x, unit, {"weight": weight, "bias": bias}
        self._options: dict[str, Any] = {"precision": precision, "results": results, "x_unit": unit}
        self._options |= {"stream": call.stream, "length": x.shape[1] if pooled else None}
        self._padded = -(-x.shape[1] // POOL) * POOL if pooled else x.shape[1]

    def _conv(self, method: str, *pool: int, moments: bool = False) -> tuple[WgmmaConv, Any, bool]:
        pattern = one_shot.pattern(method, self._weights["weight"], *pool)
        conv = WgmmaConv(pattern, self._weights, moments=moments, **self._options)
        x = narrow(self._call, self._x, self._padded, conv.width, conv.precision, 1 / self._unit)
        return conv, x, conv.results.itemsize == np.dtype(np.float32).itemsize

    def run(self, method: str, y: Any, *pool: int) -> None:
        conv, x, direct = self._conv(method, *pool)
        result = conv.apply(x, out=y if direct else None, stream=self._call.stream)
        if not direct:
            widen(self._call, result, y, conv.results)

    def stat(self, y: Any, moments: Any) -> None:
        conv, x, direct = self._conv("", moments=True)
        result, _ = conv.with_moments(x, out=(y if direct else None, moments), stream=self._call.stream)
        if not direct:
            widen(self._call, result, y, conv.results)


def conv1d_nlc_wgmma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv1d_nlc` on Hopper's tensor cores, with float32 sums.

    Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one
            side.
        stride, padding, dilation: as of `reference.conv1d_nlc`. Where they are not 1, 0, 1, TMA gathers each tap's
            features: strides of up to 8, windows that span up to 128 positions.
        precision: what is multiplied. "fp16": features beyond 65,504, the most that it holds, are infinite; "bf16" and
            "tf32" have 8 and 11 bits and float32's range; "fp16x3": two fp16 a number and three products, the fourth is
            below float32's own rounding: float32's accuracy, infinite from 65,536 on; "fp8": e4m3, weights and features
            each scaled to its range as a whole: infinities, which it has not, become the greatest finite value.
        out: where to write, (N, L_out, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L_out, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, precision is none of these, or shared
            memory does not hold what so many taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """
    return one_shot.conv1d_moving(
        _Prepared,
        compute,
        "",
        x,
        weight,
        bias,
        stride,
        padding,
        dilation,
        precision=precision,
        out=out,
        stream=stream,
    )


def conv1d_relu_nlc_wgmma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv1d_relu_nlc`, with ReLU in the same kernel.

    Arguments, result and errors as for the convolution alone.
    """
    return one_shot.conv1d_moving(
        _Prepared,
        compute,
        "relu",
        x,
        weight,
        bias,
        stride,
        padding,
        dilation,
        precision=precision,
        out=out,
        stream=stream,
    )


def conv1d_relu_maxpool1d_nlc_wgmma(
    x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_relu_maxpool1d_nlc`, pooled in the same kernel: a third is stored.

    Arguments, result and errors as for the convolution alone, and pool_size: 3.
    """
    method = "conv1d_relu_maxpool1d"
    return one_shot.conv1d(_Prepared, method, x, weight, bias, pool_size, precision=precision, out=out, stream=stream)


def conv1d_stat_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_stat_nlc`: also the mean and variance of each input's output, for a LayerNorm that follows.

    Arguments, result and errors as for the technique `double_buffered`; precision, and more errors, as for the
    convolution alone.
    """
    return one_shot.conv1d_stat(_Prepared, x, weight, bias, precision=precision, out=out, stream=stream)


def linear_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.linear_nlc` as a convolution of one position, with the same kernel.

    Args:
        x: float32 (N, C_in), C-contiguous.
        weight: float32 (C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one side.
        precision, out, stream: as for the convolution.

    Returns:
        float32 (N, C_out) where the inputs lie; errors as for the convolution.
    """
    return one_shot.linear(_Prepared, "conv1d", x, weight, bias, precision=precision, out=out, stream=stream)


def linear_relu_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`linear_nlc_wgmma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return one_shot.linear(_Prepared, "conv1d_relu", x, weight, bias, precision=precision, out=out, stream=stream)
