"""What prepared convolutions share whose windows move over images, or by strides over sequences."""

from __future__ import annotations

from math import prod
from typing import Any

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import windows
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common import epilogues, shapes2d
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.common.shapes import ranked

COLUMNS = 32
"""Output channels that an epilogue stores at a time: a tile has a multiple."""


def columns(c_out: int, groups: int, most: int) -> int:
    """Output channels of the largest tile, of at most so many: all of one group.

    Raises:
        ValueError: a group has no multiple of COLUMNS.
    """
    width = c_out // groups
    tiles = max(1, -(-width // most))
    if groups > 1:
        if width % COLUMNS:
            raise ValueError(
                f"weight has {width} output channels a group: need a multiple of {COLUMNS} for tensor cores; "
                "the naive kernel takes any"
            )
        while width % (tiles * COLUMNS):
            tiles += 1
    return max(1, -(-width // (tiles * COLUMNS))) * COLUMNS


def quarters(size: int) -> int:
    """How many 32 bytes of k blocks of 128 so many bytes of channels fill: in as few blocks as hold them, alike."""
    used = -(-size // 32)
    return -(-used // -(-used // 4))


class Conv2dWeights:
    """The weights of one conv2d on the current GPU. How they lie is a technique's, and `_start`.

    Args:
        weight: float32 (KH, KW, C_in / groups, C_out), and bias (C_out,).
        moves: stride, padding, dilation, as of `reference.conv2d`.
        groups: as there.
        precision, results: of features and weights, and of results.
        together: channels that lie together: a group has a multiple, and a pixel is padded to one.
    """

    nbytes: int
    """Of packed weights and bias."""

    def __init__(
        self, weight: Any, bias: Any, moves: dict[str, Any], groups: int, precision: NumberFormat,
        results: NumberFormat, together: int,
    ) -> None:  # fmt: skip
        rows, taps, width, self.c_out = shapes2d.filters(weight, bias, groups)
        if groups > 1 and width % together:
            raise ValueError(f"weight has C_in/groups={width}: need a multiple of {together} in {precision.name}")
        self._moves, self.kernel, self.groups, self.c_in = moves, (rows, taps), groups, groups * width
        self.precision, self.results, self._together = precision, results, together
        self._y_unit, self.x_terms = 1.0, precision.terms
        self.width = -(-self.c_in // together) * together
        """Channels of a pixel of x, or of each of its terms."""

    def window(self, x: Shape) -> Window:
        """How the window moves over x (N, H, W, C)."""
        return windows.window(x[1], x[2], self.kernel, **self._moves)

    def out_shape(self, x: Shape) -> Shape:
        """The result's, of x (N, H, W, C)."""
        return x[0], *self.window(x).out(x[1], x[2]), self.results.terms * self.c_out

    def conv2d(self, x: Any, *, epilogue: str = "", out: Any = None, stream: Any = None) -> Any:
        """conv2d_nhwc: x (N, H, W, C_in) in the precision's dtype, on the GPU -> (N, H_out, W_out, C_out).

        Args:
            epilogue: applied to each value, a row of `common.epilogues`, or "".
        """
        epilogue = epilogues.check(epilogue, self._y_unit) or "store"
        n, height, width, channels = shape = ranked("x", x, "N, H, W, C_in")
        if channels != self.x_terms * self.width:
            more = " and as many for low terms" if self.x_terms == 2 else ""
            raise ValueError(f"x has shape {shape}: need C_in={self.width}, a multiple of {self._together}{more}")
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        window = self.window(shape)
        call = Call(out, stream, self.out_shape(shape), self.results.dtype, {"x": self.precision.dtype}, x=x)
        pixels = prod(call.out.shape[:3])
        if max(pixels, n * height * width) >= 1 << 31 or n * height * width * channels >= 1 << 40:
            raise ValueError(f"x has shape {shape}: that many pixels in all need a smaller batch")
        if pixels and self.c_out:
            self._start(call, epilogue, window, pixels)
        return call.result()

    def into(self, call: Call, features: Any, shape: Shape, epilogue: str) -> None:
        """Start on features of x of this shape, cast for the call, into its result, of the same many values."""
        features = features.reshape((*shape[:3], features.shape[2]))
        out = call.out.reshape(self.out_shape(features.shape))
        self.conv2d(features, epilogue=epilogue, out=out, stream=call.stream)

    def _start(self, call: Call, epilogue: str, window: Window, pixels: int) -> None:
        """Launch the kernel for so many outputs a channel."""
        raise NotImplementedError
