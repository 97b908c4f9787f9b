"""conv2d_nhwc with fewer multiplications, by Winograd's filtering along both axes, on float32 arrays."""

from __future__ import annotations

from typing import Any

from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.keep import Apply
from charcnn.ops.conv1d.winograd import WinogradConv


def launch_once(
    call: Call, x: Any, weight: Any, bias: Any, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str,
) -> None:  # fmt: skip
    """As few multiplications as float32 allows. Weights are transformed first; `WinogradConv` keeps them.

    Stride, dilation and groups are 1. A feature that is not finite may make NaN of all pixels that share a tile with
    one that reads it.

    Raises:
        ValueError: stride, dilation or groups are not 1.
    """
    _keep(weight, bias, stride, padding, dilation, groups, epilogue=epilogue, stream=call.stream)(call, x)


def _keep(
    weight: Any, bias: Any, stride: Pair, padding: Padding, dilation: Pair, groups: int, *, epilogue: str,
    stream: Any = 0,
) -> Apply:  # fmt: skip
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    conv = WinogradConv(pattern_of(weight, epilogue, **moves), {"weight": weight, "bias": bias}, stream=stream)
    return lambda call, x: conv.apply(x, out=call.out, stream=call.stream)


launch_once.prepare = _keep  # type: ignore[attr-defined]
