"""What stands between the convolutions of a network on images, as networks list it: features in a precision throughout.

They take what the convolutions' layers take and give: with `octets`, as `MmaConv` has the two terms of fp16x3.
"""

from __future__ import annotations

import warnings

import numpy as np

from charcnn import layers
from charcnn.aliases import Array, Function, Record
from charcnn.gpu import device
from charcnn.layers.layer import Layer, Shape
from charcnn.layers.windows import Window
from charcnn.ops.common import shapes2d
from charcnn.ops.common.features import STORED
from charcnn.ops.common.layer import ArraySpec, NoScratch, Space
from charcnn.ops.common.precision import choose
from charcnn.ops.local_response_norm_nhwc import normalised_features
from charcnn.ops.pixels_nhwc import features_shape, pixel_features
from charcnn.ops.pixels_to_depth import Blocks, block_features, block_shape
from charcnn.ops.pool2d_nhwc import pooled_features, pooled_shape

OTHERS = (layers.MaxPool2d, layers.AvgPool2d, layers.GlobalAvgPool2d, layers.LocalResponseNorm)
"""What `VectorizedImageLayer` takes."""


class _Features(NoScratch):
    """A layer without weights: features in a precision to such."""

    nbytes = 0

    def __init__(self, precision: str, octets: bool) -> None:
        self._dtype = choose(precision, STORED).dtype
        self._given: Record = {"precision": precision, "octets": octets}

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec(self._shape(x), self._dtype)]

    def _shape(self, x: Shape) -> Shape:
        raise NotImplementedError

    def _out(self, x: Array, space: Space) -> Record:
        (y,) = self.writes(x.shape)
        return {**self._given, "out": space.device(*y), "stream": space.stream}


class VectorizedImageLayer(_Features):
    """A pooling or local response normalisation of channels-last features in a precision.

    Args:
        layer: `MaxPool2d`; `AvgPool2d`, padding counted as zeros; `GlobalAvgPool2d`, (N, H, W, C) -> (N, C), which a
            linear layer takes; or `LocalResponseNorm`.
        precision: of features, one of `features.STORED`.
        octets: with two terms, whether they lie as `mma_layout` has them.

    Raises:
        ValueError: it is another layer, or the precision is none of these.
    """

    def __init__(self, layer: Layer, *, precision: str = "fp16", octets: bool = False) -> None:
        super().__init__(precision, octets)
        if not isinstance(layer, OTHERS):
            raise ValueError(f"layer={layer!r}: need {' or '.join(one.__name__ for one in OTHERS)}")
        self._layer = layer

    def _window(self, x: Shape) -> Window | None:
        match self._layer:
            case layers.MaxPool2d(size, stride, padding) | layers.AvgPool2d(size, stride, padding):
                return shapes2d.pool2d_window(x[1], x[2], size, stride, padding)
            case layers.GlobalAvgPool2d():
                return Window((x[1], x[2]))
        return None

    def _shape(self, x: Shape) -> Shape:
        window = self._window(x)
        pooled = x if window is None else pooled_shape(x, window)
        return (x[0], x[3]) if isinstance(self._layer, layers.GlobalAvgPool2d) else pooled

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features (N, H, W, C)."""
        given, window = self._out(x, space), self._window(x.shape)
        y = given.pop("out")
        if isinstance(self._layer, layers.LocalResponseNorm):
            size, alpha, beta, k = self._layer.size, self._layer.alpha, self._layer.beta, self._layer.k
            return normalised_features(x, size, alpha=alpha, beta=beta, k=k, out=y, **given)
        assert window is not None
        out = y.reshape(pooled_shape(x.shape, window))
        pooled_features(x, window, mean=not isinstance(self._layer, layers.MaxPool2d), out=out, **given)
        return y


class VectorizedPixels(_Features):
    """pixels_nhwc: a network's entry, from rows of bytes to features in a precision.

    Args:
        tables: float32 (C, 256), as `pixel_tables` gives it, rounded; with blocks also (C, 257), as of `exact_tables`.
        height, width: int: of an image.
        channels: int: of the features, those beyond C zero: `conv.width` of a prepared convolution. C where None.
        blocks: of the image that are pixels of the features, as `block_features` has them; None: its own pixels.
        precision: of features, one of `features.STORED`; default "fp16".
        octets: bool, default False: with two terms, whether they lie as `mma_layout` has them.

    Raises:
        ValueError: the precision is none of these.
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

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on bytes (N, C * H * W)."""
        given = {"channels": self._channels, **self._out(x, space)}
        if self._blocks is not None:
            return block_features(x, self._tables, *self._size, self._blocks, **given)
        return pixel_features(x, self._tables, *self._size, **given)


FORMER: dict[str, Function] = {f"Vectorized{one.__name__}": one for one in OTHERS}
"""Names of release 1.0."""


def __getattr__(name: str) -> Function:
    if name not in FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    said = f"{__name__}.{name} is {__name__}.VectorizedImageLayer now, which takes a layer"
    warnings.warn(said, DeprecationWarning, stacklevel=2)

    def prepare(*sizes: object, precision: str = "fp16", octets: bool = False, **more: object) -> VectorizedImageLayer:
        return VectorizedImageLayer(FORMER[name](*sizes, **more), precision=precision, octets=octets)

    return prepare
