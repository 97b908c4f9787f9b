"""Linear layers that are no convolution of one position, as levels list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from charcnn.aliases import Array
from charcnn.layers.layer import Shape
from charcnn.ops.common.layer import ArraySpec, Space
from charcnn.ops.linear.small_batch import FINAL_THREADS, SmallBatchMlp


class SmallBatchLinear:
    """Three linear layers with ReLU between them, for up to `MOST` inputs, spread over the whole GPU, to float32.

    Args:
        layers: weight and bias of each, as of `SmallBatchMlp`.
        precision: as there.
    """

    writes_host = True
    MOST_CLASSES = FINAL_THREADS

    def __init__(self, layers: Sequence[tuple[np.ndarray, np.ndarray]], *, precision: str) -> None:
        self._linear = SmallBatchMlp(*zip(*layers, strict=True), precision=precision)
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
