"""A convolution or linear layer in float32 by the kernel of `double_buffered`, which takes weights as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import Conv1d, Conv2d, Linear
from charcnn.layers.layer import Shape
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.layer import ArraySpec, Space
from charcnn.ops.common.precision import FP32
from charcnn.ops.conv1d import k_splits
from charcnn.ops.conv1d.double_buffered import launch, launch_windows
from charcnn.ops.conv1d.tile import fitting


class DoubleBufferedConv(PreparedConv):
    """A convolution or linear layer in float32 on the current GPU. A linear layer gives (N, C_out).

    Args:
        pattern: `Conv1d`, `Conv2d` or `Linear`; a pointwise function; of a `Conv1d` with ReLU, max-pooling.
        weights: "weight", float32 (K, C_in, C_out), (KH, KW, C_in / groups, C_out) or (C_in, C_out), as `arrays.pack`
            gives it, C-contiguous; "bias", float32 (C_out,); NumPy arrays.
        moments: bool, default False: of sequences, whether `stat` is called, for a LayerNorm that follows.

    Raises:
        ValueError: an argument's shape does not fit.
        DeviceError: no usable GPU; by a call, one of compute capability below 8.0.
    """

    precisions = ("fp32",)

    def __init__(self, pattern: Pattern, weights: Mapping[str, np.ndarray], *, moments: bool = False) -> None:
        _, bias = self._read(pattern, weights, FP32, FP32, 1, moments=moments)
        self._weight, self._bias = device.to_device(weights["weight"]), device.to_device(bias)
        self.nbytes = self._weight.nbytes + self._bias.nbytes

    @classmethod
    def check_pool(cls, product: Product, epilogue: Epilogue) -> None:
        """Of sequences, windows behind ReLU that a tile holds."""
        if not epilogue.pool:
            return
        if not isinstance(product, Conv1d) or not epilogue.rectified:
            raise ValueError(f"{product} with max-pooling: need ReLU of a Conv1d before it")
        if (size := epilogue.pool_size) > (most := fitting(product.channels).rows):
            raise ValueError(f"pool_size={size}: need at most {most}, the positions of a tile")

    def out_shape(self, x: Shape) -> Shape:
        """The result's, of features of this shape."""
        return (x[0], self.c_out) if isinstance(self.product, Linear) else super().out_shape(x)

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result; before it, of a linear layer whose depth has several parts, their sums."""
        if not isinstance(self.product, Linear):
            return super().writes(x)
        splits = k_splits.splits_shape(x[0], self.c_in, self.c_out)
        return [*([ArraySpec(splits)] if splits else []), ArraySpec((x[0], self.c_out))]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features; the result."""
        if not isinstance(self.product, Linear):
            return super().__call__(x, space)
        *splits, y = (space.device(*array) for array in self.writes(x.shape))
        # By parts of the depth, y may lie where x does: the sums of parts are in between.
        call = Call(y, space.stream, y.shape, in_place="x" if splits else "", x=x)
        inputs = x.reshape((x.shape[0], self.c_in)), self._weight, self._bias
        k_splits.start(call, inputs, splits[0] if splits else None, self.epilogue.pointwise)
        return y

    def stat(self, x: Array, moments: Array, space: Space) -> tuple[Array, Array]:
        """Start on features; the result, and its moments, float64 (N, 2)."""
        (y,) = self.writes(x.shape)
        start, out = ops.conv1d_stat_nlc_double_buffered, (space.device(*y), moments)
        found: tuple[Any, Any] = start(x, self._weight, self._bias, out=out, stream=space.stream)
        return found

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        inputs, kind = (call.inputs[0], self._weight, self._bias), self.epilogue.kind
        if isinstance(self.product, Conv2d):
            window = self.window(tuple(inputs[0].shape))
            launch_windows(call, inputs, call.out, kind, window, groups=self.groups)
        elif isinstance(self.product, Linear):
            splits = k_splits.splits_shape(len(call.out), self.c_in, self.c_out)
            sums = call.scratch(splits, np.float32) if splits else None
            k_splits.start(call, inputs, sums, self.epilogue.pointwise)
        else:
            launch(call, inputs, call.out, kind, pool_size=self.epilogue.pool_size)
