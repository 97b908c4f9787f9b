"""The rows of the catalogue on tensor cores by `mma`: each lays out the weights and encodes the features first.

`MmaConv` keeps the one and takes the other as it is: that is what a level uses.
"""

from __future__ import annotations

from typing import Any

from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import x_unit_of
from charcnn.ops.common.mma_layout import encode
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.mma.layer import MmaConv, compute


class _Prepared:
    """A `one_shot.Prepared`."""

    def __init__(self, call: Call, x: Any, weight: Any, bias: Any, precision: str, pooled: bool) -> None:
        unit = x_unit_of(call, x, choose(precision))
        self._call, self._x, self._unit, self._weights = call, x, unit, {"weight": weight, "bias": bias}
        self._options: dict[str, Any] = {"precision": precision, "results": FP32.name, "x_unit": unit}

    def _conv(self, method: str, *pool: int, moments: bool = False) -> tuple[MmaConv, Any]:
        pattern = one_shot.pattern(method, self._weights["weight"], *pool)
        conv = MmaConv(pattern, self._weights, moments=moments, stream=self._call.stream, **self._options)
        return conv, encode(self._call, self._x, self._x.shape[1], conv.width, conv.precision, self._unit)

    def run(self, method: str, y: Any, *pool: int) -> None:
        conv, x = self._conv(method, *pool)
        conv.apply(x, out=y, stream=self._call.stream)

    def stat(self, y: Any, moments: Any) -> None:
        conv, x = self._conv("", moments=True)
        conv.with_moments(x, out=(y, moments), stream=self._call.stream)


def conv1d_nlc_mma(
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
    """`reference.conv1d_nlc` on tensor cores, with float32 sums.

    Args:
        x: float32 (N, L, C_in), C-contiguous; in fp16 and fp16x3 infinite beyond 65,504, the most that fp16 holds.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one
            side.
        stride, padding, dilation: as of `reference.conv1d_nlc`. Where they are not 1, 0, 1, each tap's features are
            copied apart.
        precision: what is multiplied: "fp16"; "bf16" and "tf32", with 8 and 11 bits and float32's range; "fp16x3",
            each number as the sum of two fp16, of whose four products three are summed: float32's accuracy; or "fp8":
            e4m3, weights and features each scaled to its range as a whole.
        out: where to write, (N, L_out, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L_out, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, precision is none of these, shared
            memory does not hold what so many taps read, or in fp8, a GPU of compute capability below 8.9.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
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


def conv1d_relu_nlc_mma(
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


def conv1d_relu_maxpool1d_nlc_mma(
    x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_relu_maxpool1d_nlc`, pooled in the same kernel: a third is stored.

    Arguments, result and errors as for the convolution alone, and pool_size: 3.
    """
    method = "conv1d_relu_maxpool1d"
    return one_shot.conv1d(_Prepared, method, x, weight, bias, pool_size, precision=precision, out=out, stream=stream)


def conv1d_stat_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_stat_nlc`: also the mean and variance of each input's output, for a LayerNorm that follows.

    Arguments, result and errors as for the technique `double_buffered`; precision, and more errors, as for the
    convolution alone.
    """
    return one_shot.conv1d_stat(_Prepared, x, weight, bias, precision=precision, out=out, stream=stream)


def linear_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.linear_nlc` as a convolution of one position, with the same kernel.

    Args:
        x: float32 (N, C_in), C-contiguous; weight (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,) likewise;
            all on one side.
        out: where to write, (N, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError, DeviceError: as of the convolution.
    """
    return one_shot.linear(_Prepared, "conv1d", x, weight, bias, precision=precision, out=out, stream=stream)


def linear_relu_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`linear_nlc_mma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return one_shot.linear(_Prepared, "conv1d_relu", x, weight, bias, precision=precision, out=out, stream=stream)
