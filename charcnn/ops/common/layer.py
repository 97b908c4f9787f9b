"""Layers: weights prepared once on the current GPU, then applied to features on a stream. Levels from l12 on list them.

A layer says what it writes before it runs, so that whoever runs it (`charcnn.runtime.sequence`) has the room. It
allocates nothing when it is applied, which a CUDA graph needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from charcnn.aliases import Array, DType, Function, Record, Stream
from charcnn.gpu import device
from charcnn.layers.layer import Shape


class ArraySpec(NamedTuple):
    """An array on the GPU that there will be."""

    shape: Shape
    dtype: DType = np.float32

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return prod(self.shape) * int(np.dtype(self.dtype).itemsize)


class Space(Protocol):
    """Where layers write: of one worker, on its stream."""

    stream: Stream

    def device(self, shape: Shape, dtype: DType = ...) -> Any:
        """Room for features, in two buffers by turns: what is read stays while the next is written."""

    def scratch(self, layer: PreparedLayer) -> Record:
        """The arrays that `layer.scratch` asked for, at the most inputs that come."""


class PreparedLayer(Protocol):
    """A prepared layer."""

    nbytes: int
    """Of its weights on the GPU."""

    def writes(self, x: Shape) -> list[ArraySpec]:
        """What it takes of `Space.device` for x of this shape, in order; the result last."""

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """What else it writes for x of this shape, by name."""

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on x, which lies on the GPU; the result, there."""


def writes_host(layer: PreparedLayer) -> bool:
    """Whether the result may lie in mapped memory of the host: it is float32, and each value written once.

    Layers say so by `writes_host`.
    """
    return bool(getattr(layer, "writes_host", False))


class NoScratch:
    """For layers that write only features."""

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Nothing."""
        return {}


class Launched(NoScratch):
    """An operator in float32, with its parameters on the GPU.

    Args:
        launcher: a function of `charcnn.ops` for CUDA, whose first argument is x.
        shape: the check in `charcnn.ops.common.shapes` that gives the shape of its result from its arguments.
        arguments: those behind x: NumPy arrays, which are copied to the GPU once, and numbers.
        rows: bool, default False: whether x is given as (N, the product of its other sizes), for a linear layer.

    Raises:
        DeviceError: no usable GPU.
    """

    def __init__(self, launcher: Function, shape: Callable[..., Shape], *arguments: Any, rows: bool = False) -> None:
        self._launcher, self._shape, self._rows = launcher, shape, rows
        self.arguments = [device.to_device(one) if isinstance(one, np.ndarray) else one for one in arguments]
        self.nbytes = sum(getattr(one, "nbytes", 0) for one in self.arguments)
        self._written: dict[Shape, ArraySpec] = {}

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        if self._rows:
            x = x[0], prod(x[1:])
        if x not in self._written:
            self._written[x] = ArraySpec(self._shape(np.broadcast_to(np.float32(0), x), *self.arguments))
        return [self._written[x]]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features, or token ids."""
        (y,) = self.writes(x.shape)
        if self._rows and x.ndim > 2:
            x = x.reshape((x.shape[0], prod(x.shape[1:])))
        return self._launcher(x, *self.arguments, out=space.device(*y), stream=space.stream)


@dataclass(frozen=True)
class ByBatch:
    """Some layers for a small batch, and others for a larger one, as `by_batch` gives it."""

    small: Sequence[PreparedLayer | ByBatch]
    large: Sequence[PreparedLayer | ByBatch]
    upto: int

    def of(self, n: int) -> Sequence[PreparedLayer | ByBatch]:
        """The layers for n inputs."""
        return self.small if n <= self.upto else self.large


def by_batch(
    small: Sequence[PreparedLayer | ByBatch], large: Sequence[PreparedLayer | ByBatch], *, upto: int
) -> ByBatch:
    """Layers `small` for at most `upto` inputs, and `large` for more."""
    return ByBatch(small, large, upto)


def held_bytes(layers: Sequence[PreparedLayer | ByBatch]) -> int:
    """Of what layers keep on the GPU: a layer that stands in several choices counts once."""

    def each(layers: Sequence[PreparedLayer | ByBatch]) -> Iterator[PreparedLayer]:
        for layer in layers:
            if isinstance(layer, ByBatch):
                yield from each([*layer.small, *layer.large])
            else:
                yield layer

    return sum(layer.nbytes for layer in {id(layer): layer for layer in each(layers)}.values())


def bounds(layers: Sequence[PreparedLayer | ByBatch]) -> Iterator[int]:
    """The most inputs of each choice by batch among layers, and of those inside it."""
    for layer in layers:
        if isinstance(layer, ByBatch):
            yield layer.upto
            yield from bounds(layer.small)
            yield from bounds(layer.large)


def flat(layers: Sequence[PreparedLayer | ByBatch], n: int) -> list[PreparedLayer]:
    """The layers that n inputs go through."""
    found: list[PreparedLayer] = []
    for layer in layers:
        found += flat(layer.of(n), n) if isinstance(layer, ByBatch) else [layer]
    return found
