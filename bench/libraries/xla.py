"""The network in JAX, compiled by XLA, channels last."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of a GPU that others share

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, POOLED_BLOCKS, Config

DTYPES = {"tf32": jnp.float32, "bf16": jnp.bfloat16}
"""TF32 is what JAX makes of a float32 product on a GPU unless told otherwise; on a CPU it is float32."""


def arrange(params: Mapping[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    """The parameters as `forward` reads them: convolutions (K, C_in, C_out), norms (L, C), linear layers (in, out)."""
    arranged = {}
    for name, value in params.items():
        if name == "fc1.weight":
            value = value.reshape(len(value), config.channels, -1).swapaxes(1, 2).reshape(value.shape)
        arranged[name] = value.T if value.ndim > 1 else value
        if name.startswith("conv") and value.ndim == 3:
            arranged[name] = value.transpose(2, 1, 0)
    return arranged


@partial(jax.jit, static_argnums=2)
def forward(p: Mapping[str, Any], ids: Any, config: Config) -> Any:
    """Token ids (N, L) uint8 -> logits (N, classes), in the parameters' dtype."""
    dtype = p["fc1.weight"].dtype
    x = jax.nn.one_hot(ids, config.alphabet, dtype=dtype)
    for block in range(1, 7):
        weight, bias = p[f"conv{block}.weight"], p[f"conv{block}.bias"]
        x = lax.conv_general_dilated(x, weight, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")) + bias
        if config.layernorm and block in NORMALISED_BLOCKS:
            wide = x.astype(jnp.float32)
            mean = wide.mean((1, 2), keepdims=True)
            variance = jnp.square(wide - mean).mean((1, 2), keepdims=True)
            normal = (wide - mean) * lax.rsqrt(variance + 1e-5)
            x = (normal * p[f"norm{block}.weight"] + p[f"norm{block}.bias"]).astype(dtype)
        x = jax.nn.relu(x)
        if block in POOLED_BLOCKS:
            window = (1, POOL_SIZE, 1)
            x = lax.reduce_window(x, np.array(-np.inf, dtype), lax.max, window, window, "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ p["fc1.weight"] + p["fc1.bias"])
    x = jax.nn.relu(x @ p["fc2.weight"] + p["fc2.bias"])
    return x @ p["fc3.weight"] + p["fc3.bias"]


class Jax:
    """A `Network`."""

    timed = "device to device"

    def __init__(self, params: Mapping[str, np.ndarray], config: Config, device: Any, precision: str) -> None:
        self._device, self._config = device, config
        self._params = {
            name: jax.device_put(value.astype(DTYPES[precision]), device)
            for name, value in arrange(params, config).items()
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
            self._logits = forward(self._params, self._ids, self._config)
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
