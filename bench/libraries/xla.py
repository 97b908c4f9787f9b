"""The network in JAX, compiled by XLA, channels last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of a GPU that others share

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

from charcnn.config import Config
from charcnn.model.layers import Conv1d, Flatten, LayerNorm, Linear, MaxPool1d, Node, OneHot, Relu

DTYPES = {"tf32": jnp.float32, "bf16": jnp.bfloat16}
"""TF32 is what JAX makes of a float32 product on a GPU unless told otherwise; on a CPU it is float32."""


def arrange(params: Mapping[str, np.ndarray], nodes: Sequence[Node]) -> dict[str, np.ndarray]:
    """The parameters as `forward` reads them: convolutions (K, C_in, C_out), norms (L, C), linear layers (in, out)."""
    arranged = {}
    for node in nodes:
        for name in node.parameters:
            value = params[name]
            if node.flattened and value.ndim > 1:
                value = value.reshape(-1, *node.flattened).swapaxes(1, 2).reshape(value.shape)
            arranged[name] = value.T
    return arranged


def forward(nodes: Sequence[Node], p: Mapping[str, Any], x: Any) -> Any:
    """Token ids (N, L) uint8 -> logits (N, classes), in the parameters' dtype."""
    dtype = next(iter(p.values())).dtype
    for node in nodes:
        weights = [p[name] for name in node.parameters]
        match node.layer:
            case OneHot(depth):
                x = jax.nn.one_hot(x, depth, dtype=dtype)
            case Conv1d():
                weight, bias = weights
                x = lax.conv_general_dilated(x, weight, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")) + bias
            case LayerNorm(eps):
                wide, (gamma, beta) = x.astype(jnp.float32), weights
                mean = wide.mean((1, 2), keepdims=True)
                variance = jnp.square(wide - mean).mean((1, 2), keepdims=True)
                x = ((wide - mean) * lax.rsqrt(variance + eps) * gamma + beta).astype(dtype)
            case Relu():
                x = jax.nn.relu(x)
            case MaxPool1d(size):
                window = (1, size, 1)
                x = lax.reduce_window(x, np.array(-np.inf, dtype), lax.max, window, window, "VALID")
            case Flatten():
                x = x.reshape(len(x), -1)
            case Linear():
                x = x @ weights[0] + weights[1]
            case other:
                raise TypeError(f"{other!r} is not written in JAX")
    return x


class Jax:
    """A `Network`."""

    timed = "device to device"

    def __init__(self, params: Mapping[str, np.ndarray], config: Config, device: Any, precision: str) -> None:
        self._device, self._forward = device, jax.jit(partial(forward, config.nodes))
        self._params = {
            name: jax.device_put(value.astype(DTYPES[precision]), device)
            for name, value in arrange(params, config.nodes).items()
        }
        self.versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def load(self, ids: np.ndarray) -> None:
        """Copy the ids to the device."""
        self._ids = jax.device_put(ids, self._device)

    def prepare(self, times: int) -> None:
        """Nothing to set."""

    def run(self, times: int) -> None:
        """Compute the logits of the loaded ids."""
        for _ in range(times):
            self._logits = self._forward(self._params, self._ids)
        self._logits.block_until_ready()

    def logits(self) -> np.ndarray:
        """What the last run left."""
        return np.asarray(self._logits.astype(jnp.float32))

    def close(self) -> None:
        """Drop what was compiled."""
        del self._params, self._logits
        jax.clear_caches()


def build(params: Mapping[str, np.ndarray], config: Config, *, device: str, precision: str) -> Jax:
    """The network in JAX.

    Raises:
        RuntimeError: device is cuda, and this JAX sees no GPU.
    """
    return Jax(params, config, jax.devices(device)[0], precision)
