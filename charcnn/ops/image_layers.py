"""What stands between the convolutions of a network on images, as networks list it: features in a precision throughout.

They take what the convolutions' layers take and give: with `octets`, as `MmaConv` has the two terms of fp16x3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d
from charcnn.ops.common.features import STORED
from charcnn.ops.common.layer import Array, NoScratch, Space
from charcnn.ops.common.precision import choose
from charcnn.ops.local_response_norm_nhwc import normalised_features
from charcnn.ops.pixels_nhwc import features_shape, pixel_features
from charcnn.ops.pixels_to_depth import Blocks, block_features, block_shape
from charcnn.ops.pool2d_nhwc import pooled_features, pooled_shape


class _Features(NoScratch):
    """A layer without weights: features in a precision to such."""

    nbytes = 0

    def __init__(self, precision: str, octets: bool) -> None:
        self._dtype = choose(precision, STORED).dtype
        self._given: dict[str, Any] = {"precision": precision, "octets": octets}

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array(self._shape(x), self._dtype)]

    def _shape(self, x: Shape) -> Shape:
        return x

    def _out(self, x: Any, space: Space) -> dict[str, Any]:
        (y,) = self.writes(x.shape)
        return {**self._given, "out": space.device(*y), "stream": space.stream}


class _Pool2d(_Features):
    """One that moves a window."""

    mean: bool

    def __init__(
        self, kernel_size: Pair, *, stride: Pair | None = None, padding: Padding = 0, precision: str = "fp16",
        octets: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(precision, octets)
        self._moves = kernel_size, stride, padding

    def _window(self, x: Shape) -> Window:
        return shapes2d.pool2d_window(x[1], x[2], *self._moves)

    def _shape(self, x: Shape) -> Shape:
        return pooled_shape(x, self._window(x))

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C)."""
        return pooled_features(x, self._window(x.shape), mean=self.mean, **self._out(x, space))


class VectorizedMaxPool2d(_Pool2d):
    """maxpool2d_nhwc on features in a precision.

    Args:
        kernel_size, stride, padding: as of `reference.maxpool2d`.
        precision: of features, one of `features.STORED`.
        octets: with two terms, whether they lie as `mma_layout` has them.
    """

    mean = False


class VectorizedAvgPool2d(_Pool2d):
    """avgpool2d_nhwc, padding counted as zeros. Arguments as of the maximum's."""

    mean = True


class VectorizedGlobalAvgPool2d(_Features):
    """global_avgpool2d_nhwc on features in a precision: (N, H, W, C) -> (N, C), which a linear layer takes."""

    def __init__(self, *, precision: str = "fp16", octets: bool = False) -> None:
        super().__init__(precision, octets)

    def _shape(self, x: Shape) -> Shape:
        return x[0], x[3]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C)."""
        given = self._out(x, space)
        y, (n, height, width, c) = given.pop("out"), x.shape
        pooled_features(x, Window((height, width)), mean=True, out=y.reshape((n, 1, 1, c)), **given)
        return y


class VectorizedLocalResponseNorm(_Features):
    """local_response_norm_nhwc on features in a precision.

    Args:
        size, alpha, beta, k: as of `reference.local_response_norm`.
        precision, octets: as of `VectorizedMaxPool2d`.
    """

    def __init__(
        self, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, precision: str = "fp16",
        octets: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(precision, octets)
        self._size = size
        self._given |= {"alpha": alpha, "beta": beta, "k": k}

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C)."""
        return normalised_features(x, self._size, **self._out(x, space))


class VectorizedPixels(_Features):
    """pixels_nhwc: a network's entry, from rows of bytes to features in a precision.

    Args:
        tables: float32 (C, 256), as `pixel_tables` gives it, rounded; with blocks also (C, 257), as of `exact_tables`.
        height, width: of an image.
        channels: of the features, those beyond C zero: `conv.width` of a prepared convolution. C where None.
        blocks: of the image that are pixels of the features, as `block_features` has them; None: its own pixels.
        precision, octets: as of `VectorizedMaxPool2d`.
    """

    def __init__(
        self, tables: np.ndarray, height: int, width: int, *, channels: int | None = None, blocks: Blocks | None = None,
        precision: str = "fp16", octets: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(precision, octets)
        if blocks is not None and tables.shape[1] == 256:
            tables = np.pad(tables, ((0, 0), (0, 1)))  # beyond the image lie zeros
        self._tables, self._size, self._channels = device.to_device(tables), (height, width), channels
        self.nbytes, self._blocks = self._tables.nbytes, blocks

    def _shape(self, x: Shape) -> Shape:
        if self._blocks is not None:
            return block_shape(x, self._tables.shape, self._blocks, self._channels, self._given["precision"])
        images = np.broadcast_to(np.uint8(0), x)
        return features_shape(images, self._tables, *self._size, self._channels, self._given["precision"])

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on bytes (N, C * H * W)."""
        given = {"channels": self._channels, **self._out(x, space)}
        if self._blocks is not None:
            return block_features(x, self._tables, *self._size, self._blocks, **given)
        return pixel_features(x, self._tables, *self._size, **given)
