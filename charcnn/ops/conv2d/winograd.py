"""conv2d_nhwc with fewer multiplications, by Winograd's filtering along both axes (`winograd_plan` says which).

Features and weights are transformed, one axis after the other; each point is then a matrix product of tiles by
channels, or where taps are taken in groups a convolution over tiles, by the kernel of `double_buffered`; and outputs
are transformed back. The transforms are passes over memory, a thread 4 channels. A call moves x and y once, and the
features at the points and their products twice each. README.md, beside this file, has what that comes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import windows
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import epilogues, shapes2d
from charcnn.ops.common.keep import Apply
from charcnn.ops.common.shapes import ranked
from charcnn.ops.conv1d.double_buffered import launch, launch_windows
from charcnn.ops.conv1d.tile import filling, vector_width
from charcnn.ops.conv2d.winograd_kernels import QUADS, TILES, features_kernel, outputs_kernel, weights_kernel
from charcnn.ops.conv2d.winograd_plan import Plan
from charcnn.ops.conv2d.winograd_plan import plan as planned

THREADS = device.block_size(256)


class WinogradConv2dWeights:
    """One convolution's weights on the current GPU, transformed once. Needs compute capability 8.0.

    Args:
        weight: float32 (KH, KW, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both
            NumPy arrays, or both device arrays.
        padding: as of `reference.conv2d`.
        plan: how; the best by `winograd_plan.plan` where None.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU; by `conv2d`, one of compute capability below 8.0.
    """

    def __init__(
        self, weight: Any, bias: Any, *, padding: Padding = 0, plan: Plan | None = None, stream: Any = None
    ) -> None:
        rows, columns, c_in, c_out = shapes2d.filters(weight, bias)
        self.kernel, self.c_in, self.c_out, self._padding = (rows, columns), c_in, c_out, padding
        self.plan = found = plan or planned(rows, columns, c_in, c_out)
        down, across, splits = found.down, found.across, found.splits
        shape = found.products * down.groups, across.groups, c_in // splits, c_out
        call = Call(None, stream, shape, weight=weight, bias=bias)
        given, self._bias = call.inputs
        self._weight, self.nbytes = call.out, int(call.out.nbytes)
        blocks = -(-down.groups * across.groups * c_in * c_out // THREADS)
        call.launch(weights_kernel(down, across), blocks, THREADS, given, self._weight, splits)

    def shapes(self, x: Shape) -> tuple[Shape, Shape, Shape]:
        """Of the transformed features, of their products and of the result, for x (N, H, W, C_in)."""
        window = windows.window(x[1], x[2], self.kernel, padding=self._padding)
        down, across, (height, width) = self.plan.down, self.plan.across, window.out(x[1], x[2])
        planes = self.plan.products * x[0]
        features = planes, down.read(height), across.read(width), self.c_in // self.plan.splits
        products = planes, down.tiles(height), across.tiles(width), self.c_out
        return features, products, (x[0], height, width, self.c_out)

    def conv2d(
        self, x: Any, *, epilogue: str = "", out: Any = None, stream: Any = None,
        space: Callable[[Shape], Any] | None = None,
    ) -> Any:  # fmt: skip
        """x float32 (N, H, W, C_in) -> (N, H_out, W_out, C_out).

        Args:
            epilogue: what follows, a row of `common.epilogues`.
            space: a function that gives a float32 device array of a shape, called for the transformed features, their
                products, and, where `out` is None, the result: each is read when the next is written, so two buffers by
                turns will do. Where None, new arrays.
        """
        n, height, width, c_in = shape = ranked("x", x, "N, H, W, C_in")
        if c_in != self.c_in:
            raise ValueError(f"x has shape {shape}: need C_in={self.c_in}")
        *between, result = self.shapes(shape)
        if space is None:
            features, products = (device.empty(size, np.float32, device.as_stream(stream)) for size in between)
        else:
            features, products = (space(size) for size in between)
            out = space(result) if out is None else out
        call, of = Call(out, stream, result, x=x), self.plan
        (x,), window = call.inputs, windows.window(height, width, self.kernel, padding=self._padding)
        (top, _, left, _), across, splits = window.padding, TILES * QUADS, of.splits
        wide = vector_width(x, features)
        blocks = -(-n * features.shape[1] * features.shape[2] // TILES) * -(-c_in // (QUADS * wide))
        arguments = x, features, features.shape[1], features.shape[2], top, left, splits
        call.launch(features_kernel(of.down, of.across, wide), blocks, across * of.most, *arguments)
        self._multiply(call, features, products)
        wide = vector_width(products, call.out)
        blocks = -(-n * products.shape[1] * products.shape[2] // TILES) * -(-self.c_out // (QUADS * wide))
        kernel = outputs_kernel(of.down, of.across, wide, epilogues.check(epilogue))
        threads = across * max(of.across.points, of.down.span)
        call.launch(kernel, blocks, threads, products, self._bias, call.out, splits)
        return call.result()

    def _multiply(self, call, features, products):
        of, tile = self.plan, filling(self.c_out)
        if of.down.groups * of.across.groups > 1:
            window = Window((of.down.groups, of.across.groups), dilation=(of.down.apart, of.across.apart))
            inputs = features, self._weight, self._bias
            launch_windows(call, inputs, products, "several", window, products=of.products, tile=tile)
        else:
            flat = [a.reshape((a.shape[0], a.shape[1] * a.shape[2], a.shape[3])) for a in (features, products)]
            weight = self._weight.reshape((of.products, *self._weight.shape[2:]))
            launch(call, (flat[0], weight, self._bias), flat[1], "several", products=of.products, tile=tile)


def launch_once(
    call: Call, x: Any, weight: Any, bias: Any, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str,
) -> None:  # fmt: skip
    """As few multiplications as float32 allows. Weights are transformed first; `WinogradConv2dWeights` keeps them.

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
    for name, value in {"stride": stride, "dilation": dilation, "groups": groups}.items():
        if value not in (1, (1, 1)):
            raise ValueError(f"{name}={value!r}: Winograd's filtering needs 1; conv2d_nhwc's double_buffered takes any")
    conv = WinogradConv2dWeights(weight, bias, padding=padding, stream=stream)
    return lambda call, x: conv.conv2d(x, epilogue=epilogue, out=call.out, stream=call.stream)


launch_once.prepare = _keep  # type: ignore[attr-defined]
