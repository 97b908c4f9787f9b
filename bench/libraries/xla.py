"""A network in JAX, compiled by XLA, channels last."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of a GPU that others share

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Flatten,
    Gelu,
    GlobalAvgPool2d,
    LayerNorm,
    LeakyRelu,
    Linear,
    LocalResponseNorm,
    MaxPool1d,
    MaxPool2d,
    Network,
    Node,
    OneHot,
    Pixels,
    Relu,
    Sigmoid,
    Softmax,
    Tanh,
)
from libraries import Network as Face

DTYPES = {"tf32": jnp.float32, "bf16": jnp.bfloat16}
"""TF32 is what JAX makes of a float32 product on a GPU unless told otherwise; on a CPU it is float32."""


def arrange(params: Mapping[str, np.ndarray], nodes: Sequence[Node]) -> dict[str, np.ndarray]:
    """The parameters as `forward` has them: convolutions (..., C_in, C_out), norms (L, C), linear (in, out)."""
    arranged = {}
    for node in nodes:
        for name in node.parameters:
            value = params[name]
            if node.flattened and value.ndim > 1:
                value = np.moveaxis(value.reshape(-1, *node.flattened), 1, -1).reshape(value.shape)
            arranged[name] = value.T
    return arranged


def forward(nodes: Sequence[Node], p: Mapping[str, Any], x: Any) -> Any:
    """Token ids or pictures' bytes (N, L) uint8 -> logits (N, classes), in the parameters' dtype."""
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
            case Pixels(channels, height, width, mean, std):
                x = x.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).astype(dtype) / 255
                x = (x - jnp.array(mean, dtype)) / jnp.array(std, dtype)
            case Conv2d():
                at = node.layer.window(node.in_shape)
                axes = ("NHWC", "WHIO", "NHWC")  # weights are OIHW, transposed, and JAX takes sizes in their order
                moves = {"window_strides": at.stride[::-1], "rhs_dilation": at.dilation[::-1]}
                groups = node.layer.groups
                x = lax.conv_general_dilated(
                    x, weights[0], **moves, padding=_sides(at)[::-1], dimension_numbers=axes, feature_group_count=groups
                ) + sum(weights[1:])
            case MaxPool2d():
                x = _pooled(x, node.layer.window(node.in_shape), -np.inf, lax.max)
            case AvgPool2d():
                at = node.layer.window(node.in_shape)
                x = _pooled(x, at, 0, lax.add) / np.array(np.prod(at.kernel), dtype)
            case GlobalAvgPool2d():
                x = x.mean((1, 2))
            case BatchNorm2d(eps):
                gamma, beta, mean, variance = weights
                x = (x - mean) * (gamma * lax.rsqrt(variance + eps)) + beta
            case LocalResponseNorm(size, alpha, beta, k):
                near = (size // 2, (size - 1) // 2)
                window = (*(1,) * (x.ndim - 1), size)
                sides = (*((0, 0),) * (x.ndim - 1), near)
                squares = lax.reduce_window(x * x, np.array(0, dtype), lax.add, window, (1,) * x.ndim, sides)
                x = x * (k + alpha / size * squares) ** -beta
            case Tanh():
                x = jnp.tanh(x)
            case Gelu():
                x = jax.nn.gelu(x, approximate=False)
            case Sigmoid():
                x = jax.nn.sigmoid(x)
            case LeakyRelu(slope):
                x = jax.nn.leaky_relu(x, slope)
            case Softmax():
                x = jax.nn.softmax(x)
            case Flatten():
                x = x.reshape(len(x), -1)
            case Linear():
                x = x @ weights[0] + weights[1]
            case other:
                raise TypeError(f"{other!r} is not written in JAX")
    return x


def _sides(at: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    top, bottom, left, right = at.padding
    return (top, bottom), (left, right)


def _pooled(x: Any, at: Any, empty: float, of: Any) -> Any:
    window, strides = ((1, *pair, 1) for pair in (at.kernel, at.stride))
    return lax.reduce_window(x, np.array(empty, x.dtype), of, window, strides, ((0, 0), *_sides(at), (0, 0)))


class Jax(Face):
    """JAX's `Network`."""

    timed = "device to device"

    def __init__(self, params: Mapping[str, np.ndarray], config: Network, device: Any, precision: str) -> None:
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

    def start(self, times: int) -> Callable[[], object]:
        """Queue what computes the logits of the loaded ids."""
        for _ in range(times):
            self._logits = self._forward(self._params, self._ids)
        return self._logits.block_until_ready

    def logits(self) -> np.ndarray:
        """What the last run left."""
        return np.asarray(self._logits.astype(jnp.float32))

    def close(self) -> None:
        """Drop what was compiled."""
        del self._params, self._logits
        jax.clear_caches()


def build(params: Mapping[str, np.ndarray], config: Network, *, device: str, precision: str) -> Jax:
    """The network in JAX.

    Raises:
        RuntimeError: device is cuda, and this JAX sees no GPU.
    """
    return Jax(params, config, jax.devices(device)[0], precision)
