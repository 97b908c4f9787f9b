"""Linear layers that are no convolution of one position, as levels list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from charcnn.aliases import Array
from charcnn.layers.layer import Shape
from charcnn.ops.common.layer import ArraySpec, Space
from charcnn.ops.linear.small_batch import FINAL_THREADS, MOST, SmallBatchMlp


class SmallBatchLinear:
    """Three linear layers with ReLU between them, for a few inputs, spread over the whole GPU, to float32.

    It takes no pattern, which has one product: its kernels pass sums of parts of the depth on, and it is one layer for
    the sake of their scratch.

    Args:
        layers: of each the weight, float32 (C_in, C_out), as `arrays.pack` gives it, and the bias (C_out,), NumPy
            arrays; all C_in are multiples of 8, in fp8 of 16, and the last C_out is at most 256.
        precision: of features and of the first two layers' weights, one of `precision.TENSOR_PRECISIONS`.
        most: int, default 64: inputs of a call at most.

    Raises:
        ValueError: an argument's shape does not fit, there is no such precision, or the GPU does not multiply it:
            compute capability 7.5 has fp16 alone.
        DeviceError: no usable GPU.
    """

    writes_host = True
    MOST_CLASSES = FINAL_THREADS

    def __init__(self, layers: Sequence[tuple[np.ndarray, np.ndarray]], *, precision: str, most: int = MOST) -> None:
        self._linear = SmallBatchMlp(*zip(*layers, strict=True), precision=precision, most=most)
        self.nbytes = self._linear.nbytes

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], self._linear.sizes[-1]))]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Sums of parts of the products."""
        return {"k_splits": ArraySpec(self._linear.k_splits_shape(x[0]))}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features, all of an input in a row."""
        (y,) = self.writes(x.shape)
        x = x.reshape((x.shape[0], prod(x.shape[1:])))
        return self._linear(x, space.scratch(self)["k_splits"], out=space.device(*y), stream=space.stream)
