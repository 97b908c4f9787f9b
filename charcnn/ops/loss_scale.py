"""By what a step on a GPU multiplies gradients, for their norm and the loss scale, which changes without the host."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numba import cuda, float32

from charcnn.aliases import KernelArgument, Record, Stream
from charcnn.gpu import device
from charcnn.ops.adamw_cpu import TINY
from charcnn.ops.adamw_options import LossScale


@cuda.jit(device=True)
def settle(squares, most, rule, scaling, found):
    """Of one thread: from the sum of gradients' squares what a step needs, to `found`; and the next step's scale.

    A step whose gradients are not finite has a factor below 0, which leaves it out. So all ranks that have the same sum
    do the same, and nobody asks the host.
    """
    growth, backoff, interval = rule
    scale = float32(1) / scaling[0]
    norm = float32(math.sqrt(squares) * scale)
    found[0] = norm
    found[1] = scale * (min(float32(1), most / (norm + float32(TINY))) if most > float32(0) else float32(1))
    if interval > float32(0):
        if norm < float32(math.inf):  # of NaN false
            scaling[1] += float32(1)
            if scaling[1] == interval:
                scaling[0], scaling[1] = scaling[0] * growth, float32(0)
        else:
            found[1] = float32(-1)
            scaling[0], scaling[1], scaling[2] = scaling[0] * backoff, float32(0), scaling[2] + float32(1)


class GradientFactor:
    """On the current GPU.

    Attributes:
        scaling: float32 (3,): the loss scale, steps in a row that were made, and how many were left out.
        found: float32 (2,): the gradients' norm, and by what they are multiplied, below 0 where the step is left out.

    Args:
        loss_scale: to begin with; None: there is none, and no step is left out.
        stream: on which steps write them.
    """

    def __init__(self, loss_scale: LossScale | None, stream: Stream) -> None:
        self._scale, self._stream, one = loss_scale, stream, loss_scale or LossScale(1.0)
        rule = (one.growth, one.backoff, one.interval) if loss_scale else (0, 0, 0)
        self._rule = tuple(map(np.float32, rule))
        self.scaling = device.to_device(_values(one), stream)
        self.found = device.to_device(np.ones(2, np.float32), stream)

    @property
    def given(self) -> tuple[KernelArgument, ...]:
        """The last arguments of `settle`."""
        return self._rule, self.scaling, self.found

    @property
    def loss_scale(self) -> LossScale | None:
        """The current one; it waits for the steps."""
        if self._scale is None:
            return None
        scale, made, left_out = device.to_host(self.scaling, self._stream).tolist()
        return replace(self._scale, scale=scale, made=int(made), left_out=int(left_out))

    def restore(self, saved: Record | None) -> None:
        """Take what `saved` gave, where there is a loss scale."""
        if self._scale is not None and saved is not None:
            self.scaling.copy_to_device(_values(replace(self._scale, **saved)), stream=self._stream)


def _values(scale: LossScale) -> np.ndarray:
    return np.array([scale.scale, scale.made, scale.left_out], np.float32)
