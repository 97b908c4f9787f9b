"""AdamW over one flat buffer: all that a step does to a weight in one pass, and before it the gradients' norm.

Source: Loshchilov, Hutter 2019, arXiv:1711.05101. Each argument means what it does in torch.optim.AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import cuda, float32, njit, prange

from charcnn.aliases import Array, Record, Stream
from charcnn.gpu import device
from charcnn.gpu.arrays import check, expect
from charcnn.gpu.launch import jit, start
from charcnn.ops.common import threads
from charcnn.ops.common.moments import block_sum

PART = 1 << 14
"""Values that a task has on a CPU. Fixed, so that sums have the same bits on any number of cores."""

BLOCKS, THREADS = 256, device.block_size(256)
"""Of the kernel that sums squares: fixed, for the same reason."""

TINY = 1e-6
"""Added to the norm, as PyTorch's clip_grad_norm_ does."""


@njit(cache=True, nogil=True, parallel=True, fastmath={"reassoc"})
def _squares_kernel(gradients, partial):
    for task in prange(partial.size):
        total = 0.0
        for i in range(task * PART, min((task + 1) * PART, gradients.size)):
            total += float(gradients[i]) * gradients[i]
        partial[task] = total


@njit(error_model="numpy")  # without a branch for a division by zero, so that it is vectorised
def _moved(weight, gradient, first, second, by):
    """A weight after a step, and its moments."""
    decay, beta1, beta2, size, root, eps = by
    first += (float32(1) - beta1) * (gradient - first)
    second = beta2 * second + (float32(1) - beta2) * gradient * gradient
    return decay * weight - size * first / (math.sqrt(second) / root + eps), first, second


_moved_naive = jit(device=True)(_moved.py_func)


@njit(error_model="numpy")
def _step_part(weights, gradients, first, second, factor, by):
    for i in range(weights.size):
        weights[i], first[i], second[i] = _moved(weights[i], factor * gradients[i], first[i], second[i], by)


@njit(cache=True, nogil=True, parallel=True, error_model="numpy")
def _step_kernel(weights, gradients, first, second, factor, by):
    for task in prange(-(-weights.size // PART)):
        part = slice(task * PART, min((task + 1) * PART, weights.size))
        _step_part(weights[part], gradients[part], first[part], second[part], factor, by)


@jit()
def _squares_naive_kernel(gradients, partial):
    smem = cuda.shared.array(THREADS, float32)
    total = float32(0)
    for i in range(cuda.grid(1), gradients.size, cuda.gridDim.x * cuda.blockDim.x):
        total += gradients[i] * gradients[i]
    total = block_sum(total, smem)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total


@jit()
def _norm_naive_kernel(partial, scale, most, found):
    total = 0.0
    for i in range(partial.size):
        total += partial[i]
    norm = float32(math.sqrt(total) * scale)
    found[0] = norm
    found[1] = scale * (min(float32(1), most / (norm + float32(TINY))) if most > float32(0) else float32(1))


@jit()
def _step_naive_kernel(weights, gradients, first, second, found, by):
    i = cuda.grid(1)
    if i < weights.size:
        gradient = found[1] * gradients[i]
        weights[i], first[i], second[i] = _moved_naive(weights[i], gradient, first[i], second[i], by)


@dataclass(frozen=True)
class ParameterGroup:
    """Neighbouring values of the buffer that a step treats alike.

    Args:
        size: values.
        lr: the learning rate.
        betas: what the means of gradients and of their squares keep at a step.
        eps: added to the root of the latter.
        weight_decay: share of a weight that a step takes away, times lr.
    """

    size: int
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2


@dataclass
class LossScale:
    """By what the loss is multiplied, so that gradients in fp16 do not vanish, as PyTorch's GradScaler has it.

    A step whose gradients are not finite is left out, and `scale` falls to `backoff` of it; after `interval` steps in a
    row that were made, it grows `growth` times.
    """

    scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    made: int = 0
    """Steps in a row."""

    def update(self, finite: bool) -> None:
        """After a step: whether its gradients were finite."""
        self.made = self.made + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.made == self.interval:
            self.scale, self.made = self.scale * self.growth, 0


class AdamW:
    """The optimiser of the weights in one buffer, on a CPU's cores or on a GPU, where the buffer lies.

    Args:
        weights: float32 (size,), NumPy or on the device; each step writes them.
        groups: neighbours of them, from the first on.
        clip: the largest norm of a step's gradients, all together; 0 for no limit.
        loss_scale: by what gradients are too large; None: by nothing, and no step is left out.
        stream: of the steps on a GPU.

    Raises:
        ValueError: an array's dtype or shape does not fit, or the groups have another size; names it.
    """

    def __init__(
        self, weights: Array, groups: Sequence[ParameterGroup], *, clip: float = 0.0,
        loss_scale: LossScale | None = None, stream: Stream = None,
    ) -> None:  # fmt: skip
        expect("weights", weights, (sum(group.size for group in groups),))
        check("weights", weights)
        self.weights, self.groups, self.clip, self.loss_scale = weights, groups, clip, loss_scale
        self.steps, self._cuda = 0, device.on_device(weights)
        if self._cuda:
            self._stream = device.as_stream(stream)
            zeros = np.zeros(weights.size, np.float32)
            self.first, self.second = (device.to_device(zeros, self._stream) for _ in range(2))
            self._partial = device.empty((BLOCKS,), np.float32, self._stream)
            self._found = device.to_device(np.ones(2, np.float32), self._stream)
        else:
            self.first, self.second = np.zeros((2, weights.size), np.float32)
            self._partial = np.empty(-(-weights.size // PART))

    def step(self, gradients: Array, rate: float = 1.0) -> bool:
        """Move the weights, where no loss scale finds that gradients are not finite; whether it was done.

        Args:
            gradients: float32 (size,), where the weights lie; of the loss times the scale, where there is one.
            rate: factor of every group's lr, as a schedule gives it.
        """
        expect("gradients", gradients, tuple(self.weights.shape))
        check("gradients", gradients)
        scaled = 1 / self.loss_scale.scale if self.loss_scale else 1.0
        factor, finite = 1.0, True
        if self.clip or self.loss_scale:
            norm, factor = self._norm(gradients, scaled)
            if self.loss_scale:
                finite = math.isfinite(float(norm[0]) if self._cuda else norm)
                self.loss_scale.update(finite)
        if finite:
            self.steps += 1
            self._move(gradients, factor, rate)
        return finite

    def state(self) -> Record:
        """All that the next step depends on beside weights and gradients, on the host."""
        moments = (array.copy_to_host() if self._cuda else array.copy() for array in (self.first, self.second))
        scale = None if self.loss_scale is None else vars(self.loss_scale).copy()
        return {"steps": self.steps, **dict(zip(("first", "second"), moments, strict=True)), "loss_scale": scale}

    def restore(self, state: Record) -> None:
        """Take what `state` gave."""
        self.steps = state["steps"]
        for array, saved in ((self.first, state["first"]), (self.second, state["second"])):
            expect("state", saved, tuple(array.shape))
            if self._cuda:
                array.copy_to_device(saved)
            else:
                array[:] = saved
        if self.loss_scale is not None:
            vars(self.loss_scale).update(state["loss_scale"])

    def _norm(self, gradients: Array, scaled: float) -> tuple[Array, float]:
        """The norm, and by what gradients are to be multiplied; on a GPU both lie there, and nothing waits."""
        if self._cuda:
            start(_squares_naive_kernel, BLOCKS, THREADS, self._stream, gradients, self._partial)
            limits = np.float32(scaled), np.float32(self.clip)
            start(_norm_naive_kernel, 1, 1, self._stream, self._partial, *limits, self._found)
            return self._found, 1.0
        threads.launch(_squares_kernel, gradients, self._partial)
        norm = math.sqrt(math.fsum(self._partial)) * scaled if np.isfinite(self._partial).all() else math.nan
        return norm, scaled * (min(1.0, self.clip / (norm + TINY)) if self.clip else 1.0)

    def _move(self, gradients: Array, factor: float, rate: float) -> None:
        begin = 0
        for group in self.groups:
            part = slice(begin, begin + group.size)
            begin = part.stop
            lr, (beta1, beta2) = rate * group.lr, group.betas
            size, root = lr / (1 - beta1**self.steps), math.sqrt(1 - beta2**self.steps)
            by = tuple(map(np.float32, (1 - lr * group.weight_decay, beta1, beta2, size, root, group.eps)))
            arrays = [array[part] for array in (self.weights, gradients, self.first, self.second)]
            if self._cuda:
                start(_step_naive_kernel, -(-group.size // 128), 128, self._stream, *arrays, self._found, by)
            else:
                threads.launch(_step_kernel, *arrays, np.float32(factor), by)
