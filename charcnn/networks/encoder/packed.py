"""A batch of packed texts under way on a GPU: where its inputs begin, and the room that its steps write to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from charcnn.aliases import Array, DType, Stream
from charcnn.layers.layer import Shape
from charcnn.networks.encoder.exchange import Exchange
from charcnn.networks.encoder.workers import PackedSizes
from charcnn.ops.encoder.persistent.launch import KeysRoom
from charcnn.ops.encoder.rows import Eighths
from charcnn.runtime.stream import StreamBuffers


@dataclass
class PackedBatch:
    """A batch under way: where its inputs begin, and room for features, on a stream."""

    sizes: PackedSizes
    offsets: Array
    lengths: Array
    buffers: StreamBuffers
    narrow: list[Array]
    """Two places, used by turns, for rows that a later step reads again."""
    heads: list[Array]
    """Places for the heads of queries, keys and values, and for those of results."""
    results: Array
    """The embeddings of the inputs."""
    exchange: Exchange | None = None
    """How GPUs that share layers exchange many rows."""
    eighths: Array | None = None
    """In fp8, room for normalised rows as products read them."""
    keys: KeysRoom | None = None
    """Of the persistent kernel, room for keys and values."""

    @property
    def stream(self) -> Stream:
        """The stream of all kernels."""
        return self.buffers.stream

    def wide(self, units: int, dtype: DType) -> Array:
        """New room for rows of so many features; what was given before stays as it is."""
        return self.buffers.device((self.sizes.rows, units), dtype)

    def kept(self, units: int, dtype: DType) -> Array:
        """Room for rows that is taken again by the next but one call."""
        self.narrow.reverse()
        return _view(self.narrow[0], (self.sizes.rows, units), dtype)

    def in_eighths(self, units: int, unit: float) -> Eighths | None:
        """In fp8, where normalised rows are stored for the next product."""
        if self.eighths is None:
            return None
        return Eighths(_view(self.eighths, (self.sizes.rows, units), np.uint8), unit)

    def read(self, x: Array, kept: Array) -> Array:
        """What a product reads of a step's result: in fp8, normalised rows as they were stored for it."""
        return x if self.eighths is None or x is not kept else _view(self.eighths, x.shape, np.uint8)

    def apart(self, heads: int, depth: int, dtype: DType) -> list[Array]:
        """Room for heads apart: of queries, keys, values and results."""
        shape = self.sizes.inputs, heads, self.sizes.most, depth
        return [_view(one, shape, dtype) for one in self.heads]


def _view(array: Array, shape: Shape, dtype: DType) -> Array:
    return array[: math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
