"""A level that is built when it is needed: a few inputs are computed by NumPy, and wait for no compiler."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from charcnn.model import network
from charcnn.model.params import Params
from charcnn.runtime.run import Run


class NumpyFirst:
    """A run: the plain operators compute in float32, until more inputs have come than `count`.

    From the call that brings them on, the level computes. Calls come one at a time.

    Args:
        build: builds the level.
        params: the weights, as the level has them.
        count: of inputs.
    """

    def __init__(self, build: Callable[[], Run], params: Params, count: int) -> None:
        self._build, self._params, self._count = build, params, count
        self._level: Run | None = None
        self.rows = 0
        """Inputs that NumPy computed."""

    @property
    def alone(self) -> bool:
        """Whether the level is not built yet."""
        return self._level is None

    def waits(self, count: int) -> bool:
        """Whether a call with so many inputs has to wait until the level is built."""
        return self.alone and self.rows + count > self._count

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Token ids (N, L) uint8 -> logits (N, classes) float32."""
        if self.alone and not self.waits(len(ids)):
            self.rows += len(ids)
            with np.errstate(over="ignore", invalid="ignore"):  # whoever called finds what is not finite
                return network.forward(ids, self._params, self._params.config, np.float32).astype(np.float32)
        self._level = self._level or self._build()
        return self._level(ids)
