"""What plans of chains over sequences and over images share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.layers.windows import at_least


class Planned:
    """A fused chain: its kernels, in order, and what a call of it takes and gives."""

    steps: tuple[Any, ...]

    @property
    def stat(self) -> bool:
        """Whether the chain ends in Stat."""
        return False

    @property
    def merges(self) -> bool:
        """Whether one more, small kernel joins the statistics of an input's tiles."""
        return False

    @property
    def in_shape(self) -> Shape:
        """Of an input."""
        raise NotImplementedError

    @property
    def out_shape(self) -> Shape:
        """Of an input's result."""
        raise NotImplementedError

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """Shape of each convolution's weight, output channels first."""
        raise NotImplementedError

    @property
    def biased(self) -> tuple[bool, ...]:
        """Which convolutions have a bias."""
        return (True,) * len(self.parameter_shapes)

    @property
    def launches(self) -> int:
        """Kernels that one call starts."""
        return len(self.steps) + self.merges

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, the largest of the kernels."""
        return max(step.shared_bytes for step in self.steps)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all weights and biases: read from DRAM once a launch, then kept in the L2 cache."""
        parameters = zip(self.parameter_shapes, self.biased, strict=True)
        return sum(4 * (math.prod(shape) + biased * shape[0]) for shape, biased in parameters)

    def workspace_shapes(self, n: int) -> tuple[Shape, ...]:
        """Shapes of the float32 arrays that pass between the kernels at n inputs: none where there is one kernel."""
        raise NotImplementedError

    def workspace(self, n: int, stream: Stream = 0) -> tuple[Array, ...]:
        """Device arrays of the `workspace_shapes`, for any number of calls, of up to n inputs, on one stream."""
        return tuple(device.empty(shape, np.float32, stream) for shape in self.workspace_shapes(n))

    def compile(self) -> Any:
        """The chain's function (x, weights, biases, *, out=None, stream=None, workspace=None): see `Fused`."""
        from charcnn.ops.chain.fused import Fused

        return Fused(self)


def limited(shared_limit: int | None) -> int:
    """Bytes of shared memory that a block may use: as given, or the current GPU's where None."""
    if shared_limit is None:
        return device.shared_limit()
    at_least("shared_limit", shared_limit, 1)
    return shared_limit


def tabulated(sections: Iterable[Mapping[str, str]]) -> str:
    """Names and values in two columns, an empty line between sections."""
    return "\n\n".join("\n".join(f"{name:<17}{value}" for name, value in part.items()) for part in sections)
