"""Training steps in JAX: bf16 forward and back by the layers of `xla.py`, AdamW in float32 written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from libraries.training import Task
from libraries.xla import arrange, forward


class Jax:
    """`Steps` of two compiled functions: loss and gradients; clipping and AdamW, which writes over what it reads."""

    clips_always = False

    def __init__(self, task: Task) -> None:
        self._task, self._device = task, jax.devices(task.device)[0]
        arranged = arrange(task.params, task.config.nodes)
        self._params = {name: jax.device_put(np.ascontiguousarray(a), self._device) for name, a in arranged.items()}
        self._moments = [{name: jnp.zeros_like(a) for name, a in self._params.items()} for _ in range(2)]
        self._made, self._clip = 0, True

        def mean(params: Any, ids: Any, targets: Any) -> Any:
            half = {name: array.astype(jnp.bfloat16) for name, array in params.items()}
            logits = forward(task.config.nodes, half, ids).astype(jnp.float32)
            return -(targets * jax.nn.log_softmax(logits)).sum(1).mean()

        def move(params: Any, moments: Any, gradients: Any, made: Any, clip: bool) -> Any:
            group, each = task.group, jax.tree.map
            if clip:
                norm = jnp.sqrt(sum(jnp.square(gradient).sum() for gradient in gradients.values()))
                gradients = each(lambda g: g * jnp.minimum(1, task.clip / (norm + 1e-6)), gradients)
            lr, (beta1, beta2), eps = group.lr * task.rate, group.betas, group.eps
            first = each(lambda m, g: beta1 * m + (1 - beta1) * g, moments[0], gradients)
            second = each(lambda v, g: beta2 * v + (1 - beta2) * g * g, moments[1], gradients)
            size, root = lr / (1 - beta1**made), jnp.sqrt(1 - beta2**made)

            def moved(p: Any, m: Any, v: Any) -> Any:
                return p * (1 - lr * group.weight_decay) - size * m / (jnp.sqrt(v) / root + eps)

            return each(moved, params, first, second), [first, second]

        self._backward = jax.jit(jax.value_and_grad(mean))
        self._move = jax.jit(move, static_argnames="clip", donate_argnums=(0, 1))
        self.versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def load(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Copy both to the device."""
        self._ids, self._targets = (jax.device_put(array, self._device) for array in (rows, targets))

    def loss_and_gradients(self) -> tuple[float, dict[str, np.ndarray]]:
        """Of what is loaded."""
        loss, found = self._backward(self._params, self._ids, self._targets)
        arrays = {}
        for node in self._task.config.nodes:
            for name in node.parameters:
                value = np.asarray(found[name]).T
                if node.flattened and value.ndim > 1:  # what `arrange` did
                    value = np.moveaxis(value.reshape(-1, *node.flattened[::-1]), -1, 1).reshape(value.shape)
                arrays[name] = value
        return float(loss), arrays

    def start(self, clip: bool) -> int:
        """Nothing to make ready: the first step compiles."""
        self._clip = clip
        return 0

    def step(self) -> None:
        """Queue a step."""
        self._made += 1
        self._last, gradients = self._backward(self._params, self._ids, self._targets)
        self._params, self._moments = self._move(
            self._params, self._moments, gradients, float(self._made), clip=self._clip
        )

    def queued(self) -> Callable[[], object]:
        """What waits for the last step's loss: JAX has streams of its own, for which no event of ours waits."""
        return self._last.block_until_ready

    def loss(self) -> float:
        """The loss before the last step, when that is done."""
        jax.block_until_ready(self._params)
        return float(self._last)

    def memory(self) -> int | None:
        """The most that JAX had allocated."""
        said = self._device.memory_stats()
        return int(said["peak_bytes_in_use"]) if said else None

    def close(self) -> None:
        """Drop what was compiled."""
        vars(self).clear()
        jax.clear_caches()
