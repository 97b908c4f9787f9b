"""AdamW over one flat buffer: all that a step does to a weight in one pass, and before it the gradients' norm.

Source: Loshchilov, Hutter 2019, arXiv:1711.05101. Each argument means what it does in torch.optim.AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np
from numba import cuda, float32, float64

from charcnn.aliases import Array, Kernel, Record, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.arrays import check, expect
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.adamw_cpu import clipped, move, moved, squares, tasks
from charcnn.ops.adamw_options import MOMENTS, check_scale, check_state
from charcnn.ops.adamw_options import LossScale as LossScale
from charcnn.ops.adamw_options import ParameterGroup as ParameterGroup
from charcnn.ops.common.moments import block_sum
from charcnn.ops.loss_scale import GradientFactor, settle

BLOCKS, THREADS = 1024, device.block_size(256)
"""Of the kernel that sums squares, fewer of a small buffer. Fixed, so that sums have the same bits on any GPU."""

QUAD = ptx.VECTOR
"""Values of a thread on a GPU, 16 bytes of each array."""

_moved_naive = jit(device=True)(moved.py_func)


@jit()
def _squares_quads_kernel(gradients, address, partial, quads):
    smem = cuda.shared.array(THREADS, float32)
    total, first, step = float32(0), block_idx_x() * block_dim_x() + thread_idx_x(), grid_dim_x() * block_dim_x()
    for i in range(first, quads, step):
        a, b, c, d = ptx.ld_global_v4_f32(address + uint64(i) * uint64(16))
        total += (a * a + b * b) + (c * c + d * d)
    for i in range(QUAD * quads + first, gradients.size, step):
        total += gradients[i] * gradients[i]
    total = block_sum(total, smem)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total


@jit()
def _norm_kernel(partial, most, rule, scaling, found):
    smem = cuda.shared.array(THREADS, float64)
    total = 0.0
    for i in range(cuda.threadIdx.x, partial.size, cuda.blockDim.x):
        total += partial[i]
    total = block_sum(total, smem)
    if cuda.threadIdx.x == 0:
        settle(total, most, rule, scaling, found)


@jit()
def _rate_kernel(rate, value):
    rate[0] = value


@jit()
def _scalars_kernel(options, rate, steps, found, by):
    """What `moved` takes of each group, in float64 as on the host; counts the step, where it is not left out."""
    step = steps[0] + 1
    for i in range(cuda.threadIdx.x, options.shape[0], cuda.blockDim.x):
        lr, beta1, beta2 = rate[0] * options[i, 0], options[i, 1], options[i, 2]
        by[i, 0] = float32(1.0 - lr * options[i, 4])
        by[i, 1] = float32(beta1)
        by[i, 2] = float32(beta2)
        by[i, 3] = float32(lr / (1.0 - beta1 ** float64(step)))
        by[i, 4] = float32(math.sqrt(1.0 - beta2 ** float64(step)))
        by[i, 5] = float32(options[i, 3])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and not found[1] < float32(0):
        steps[0] = step


@cache
def _shadow_kernel(ptx_type: str) -> Kernel:
    rounded = ptx.cvt_f16x2(ptx_type)

    @jit()
    def kernel(weights, shadow):
        i = cuda.grid(1)
        if i < weights.size:
            shadow[i] = rounded(weights[i], float32(0)) & 0xFFFF

    return kernel


@cache
def _step_quads_kernel(shadowed: bool, ptx_type: str) -> Kernel:
    # A thread has four neighbours of the buffer; at a group's ends, or where arrays are not aligned, one by one.
    moved, rounded, quad = _moved_naive, ptx.cvt_f16x2(ptx_type), QUAD

    @jit()
    def kernel(weights, gradients, first, second, shadow, places, found, scalars, group, begin, end, aligned):
        at, factor = (begin // quad + block_idx_x() * block_dim_x() + thread_idx_x()) * quad, found[1]
        by = (
            scalars[group, 0], scalars[group, 1], scalars[group, 2], scalars[group, 3], scalars[group, 4],
            scalars[group, 5],
        )  # fmt: skip
        if factor < float32(0):
            return
        if aligned != 0 and at >= begin and at + quad <= end:
            here = uint64(at) * uint64(4)
            w0, w1, w2, w3 = ptx.ld_cg_v4_f32(places[0] + here)
            g0, g1, g2, g3 = ptx.ld_cg_v4_f32(places[1] + here)
            m0, m1, m2, m3 = ptx.ld_cg_v4_f32(places[2] + here)
            v0, v1, v2, v3 = ptx.ld_cg_v4_f32(places[3] + here)
            w0, m0, v0 = moved(w0, factor * g0, m0, v0, by)
            w1, m1, v1 = moved(w1, factor * g1, m1, v1, by)
            w2, m2, v2 = moved(w2, factor * g2, m2, v2, by)
            w3, m3, v3 = moved(w3, factor * g3, m3, v3, by)
            ptx.st_global_v4_f32(places[0] + here, w0, w1, w2, w3)
            ptx.st_global_v4_f32(places[2] + here, m0, m1, m2, m3)
            ptx.st_global_v4_f32(places[3] + here, v0, v1, v2, v3)
            if shadowed:
                ptx.st_global_v2_b32(places[4] + uint64(at) * uint64(2), rounded(w0, w1), rounded(w2, w3))
            return
        for i in range(max(at, begin), min(at + quad, end)):
            weight, mean, square = moved(weights[i], factor * gradients[i], first[i], second[i], by)
            weights[i], first[i], second[i] = weight, mean, square
            if shadowed:
                shadow[i] = rounded(weight, float32(0)) & 0xFFFF

    return kernel


class AdamW:
    """The optimiser of the weights in one buffer, on a CPU's cores or on a GPU, where the buffer lies.

    On a GPU all that changes from step to step lies there, so that a CUDA graph may have a step: `made`, int64 (1,),
    the number of steps, and what `factor` has.

    Args:
        weights: float32 (size,), NumPy or on the device; each step writes them.
        groups: neighbours of them, from the first on. Those that are alike, side by side, count as one.
        clip: the largest norm of a step's gradients, all together; 0 for no limit.
        loss_scale: by what gradients are too large, to begin with, and when that changes; None: by nothing, and no
            step is left out.
        stream: of the steps on a GPU.
        shadow: uint16 (size,), on the GPU: the weights rounded, written now and by each step.
        ptx_type: of the shadow's numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype or shape does not fit, the groups have another size, or a shadow is on the host;
            names it.
    """

    def __init__(
        self, weights: Array, groups: Sequence[ParameterGroup], *, clip: float = 0.0,
        loss_scale: LossScale | None = None, stream: Stream = None, shadow: Array = None,
        ptx_type: str = "bf16",
    ) -> None:  # fmt: skip
        expect("weights", weights, (sum(group.size for group in groups),))
        check("weights", weights)
        like = groupby(groups, lambda group: replace(group, size=0))
        self.groups = [replace(one, size=sum(group.size for group in run)) for one, run in like]
        self.weights, self.shadow, self.clip, self.ptx_type = weights, shadow, clip, ptx_type
        self._scale = None if loss_scale is None else replace(loss_scale)
        self._cuda = device.on_device(weights)
        if shadow is not None:
            expect("shadow", shadow, tuple(weights.shape))
            check("shadow", shadow, np.uint16)
            if not (self._cuda and device.on_device(shadow)):
                raise ValueError("shadow needs a GPU: need weights and shadow on the device, or None")
        if self._cuda:
            self._stream = on = device.as_stream(stream)
            zeros = np.zeros(weights.size, np.float32)
            self.first, self.second = (device.to_device(zeros, on) for _ in range(2))
            blocks = min(BLOCKS, -(-weights.size // (THREADS * QUAD)))
            self._partial = device.to_device(np.zeros(max(1, blocks), np.float32), on)
            options = [(group.lr, *group.betas, group.eps, group.weight_decay) for group in self.groups]
            self._options = device.to_device(np.array(options, np.float64).reshape(-1, 5), on)
            self._by = device.to_device(np.empty((len(options), 6), np.float32), on)
            self._rate = device.to_device(np.ones(1, np.float64), on)
            self.made = device.to_device(np.zeros(1, np.int64), on)
            self.factor = GradientFactor(loss_scale, on)
            self.refresh()
        else:
            self._stream, (self.first, self.second) = None, np.zeros((2, weights.size), np.float32)
            self._partial, self.made = np.empty(tasks(weights.size)), np.zeros(1, np.int64)

    @property
    def steps(self) -> int:
        """Steps that were made; on a GPU it waits for them."""
        return int((device.to_host(self.made, self._stream) if self._cuda else self.made)[0])

    @property
    def loss_scale(self) -> LossScale | None:
        """The current one; on a GPU it waits for the steps."""
        return self.factor.loss_scale if self._cuda else self._scale

    def refresh(self) -> None:
        """Write the shadow anew, where there is one: after somebody else wrote the weights."""
        if self.shadow is not None:
            round_to(self.weights, self.shadow, self._stream, self.ptx_type)

    def step(self, gradients: Array, rate: float | Array = 1.0, *, stream: Stream = None) -> None:
        """Move the weights, where no loss scale finds that gradients are not finite.

        Args:
            gradients: float32 (size,), where the weights lie; of the loss times the scale, where there is one.
            rate: factor of every group's lr, as a schedule gives it; on a GPU also float64 (1,) there, which a graph
                reads anew each time.
            stream: of this step on a GPU; that of the steps where None.

        Raises:
            ValueError: an array's dtype or shape does not fit.
        """
        expect("gradients", gradients, tuple(self.weights.shape))
        check("gradients", gradients)
        on = device.as_stream(stream) if self._cuda and stream is not None else self._stream
        if self._cuda:
            if self.clip or self._scale:
                self._norm_on_gpu(gradients, on)
            self._move_on_gpu(gradients, rate, on)
            return
        factor, finite = 1.0, True
        if self.clip or self._scale:
            squares(gradients, self._partial)
            norm, factor = clipped(self._partial, self.clip, 1 / self._scale.scale if self._scale else 1.0)
            if self._scale:
                finite = math.isfinite(norm)
                self._scale.update(finite)
        if finite:
            self._move(gradients, factor, rate)

    def state(self) -> Record:
        """All that the next step depends on beside weights and gradients, on the host."""
        moments = (
            device.to_host(array, self._stream) if self._cuda else array.copy() for array in (self.first, self.second)
        )
        saved = None if (scale := self.loss_scale) is None else scale.saved
        return {"steps": self.steps, **dict(zip(MOMENTS, moments, strict=True)), "loss_scale": saved}

    def check(self, state: Record) -> None:
        """Look at all that `restore` takes.

        Raises:
            ValueError: as of `check_state`, or a loss scale is missing or damaged.
        """
        check_state(state, self.weights.size, MOMENTS)
        if self._scale is not None:
            check_scale(state.get("loss_scale"))

    def restore(self, state: Record) -> None:
        """Take what `state` gave; the shadow becomes that of the weights as they are.

        Raises:
            ValueError: as of `check`; nothing was taken then.
        """
        self.check(state)
        steps = np.array([state["steps"]], np.int64)
        for array, saved in ((self.first, state["first"]), (self.second, state["second"]), (self.made, steps)):
            if self._cuda:
                array.copy_to_device(saved, stream=self._stream)
            else:
                array[:] = saved
        if self._cuda:
            self.factor.restore(state.get("loss_scale"))
        elif self._scale is not None:
            self._scale = replace(self._scale, **state["loss_scale"])
        self.refresh()

    def _norm_on_gpu(self, gradients: Array, on: Stream) -> None:
        """The norm, and by what gradients are to be multiplied, to `found`."""
        address = device.address(gradients)
        quads = 0 if address % 16 else gradients.size // QUAD
        given = gradients, np.uint64(address), self._partial, *map(np.uint32, (quads,))
        start(_squares_quads_kernel, self._partial.size, THREADS, on, *given)
        start(_norm_kernel, 1, THREADS, on, self._partial, np.float32(self.clip), *self.factor.given)

    def _move(self, gradients: Array, factor: float, rate: float | Array) -> None:
        self.made += 1
        begin, steps = 0, self.steps
        for group in self.groups:
            part = slice(begin, begin + group.size)
            begin = part.stop
            weights, slopes, *moments = (array[part] for array in (self.weights, gradients, self.first, self.second))
            move(weights, slopes, moments[0], moments[1], group, steps, factor, rate)

    def _move_on_gpu(self, gradients: Array, rate: float | Array, on: Stream) -> None:
        if device.on_device(rate):
            expect("rate", rate, (1,))
            check("rate", rate, np.float64)
        else:
            start(_rate_kernel, 1, 1, on, self._rate, np.float64(rate))
            rate = self._rate
        self.count(rate, on)
        shadow, begin = self.weights if self.shadow is None else self.shadow, 0
        arrays = self.weights, gradients, self.first, self.second, shadow
        for i, group in enumerate(self.groups):
            numbers, shadowed = (i, begin, begin + group.size), self.shadow is not None
            _move_on_gpu(arrays, self.factor.found, self._by, numbers, shadowed, on, self.ptx_type)
            begin += group.size

    def count(self, rate: Array, on: Stream) -> None:
        """Begin a step on a GPU whose parts `move_part` moves; the rate is float64 (1,) there."""
        start(_scalars_kernel, 1, 32, on, self._options, rate, self.made, self.factor.found, self._by)

    def move_part(self, at: slice, gradients: Array, shadow: Array | None, on: Stream) -> None:
        """Move some of the weights, on a GPU, by their gradients times what `factor` has; all are of the first group.

        Args:
            at: which of them.
            gradients: theirs.
            shadow: where they go rounded; None: nowhere.
            on: the stream.
        """
        weights, *moments = (array[at] for array in (self.weights, self.first, self.second))
        arrays = weights, gradients, *moments, weights if shadow is None else shadow
        numbers, shadowed = (0, 0, weights.size), shadow is not None
        _move_on_gpu(arrays, self.factor.found, self._by, numbers, shadowed, on, self.ptx_type)


def _move_on_gpu(
    arrays: Sequence[Array], found: Array, by: Array, numbers: tuple[int, int, int], shadowed: bool, on: Stream,
    ptx_type: str,
) -> None:  # fmt: skip
    """Start the kernel of a step for a group's number, begin and end."""
    _, begin, end = numbers
    places = tuple(np.uint64(device.address(array)) for array in arrays)
    aligned = not any(place % 16 for place in places)
    blocks = -(-(-(-end // QUAD) - begin // QUAD) // THREADS)
    if end > begin:
        more = map(np.uint32, (*numbers, aligned))
        start(_step_quads_kernel(shadowed, ptx_type), blocks, THREADS, on, *arrays, places, found, by, *more)


def round_to(weights: Array, shadow: Array, stream: Stream, ptx_type: str = "bf16") -> None:
    """Weights in 16 bits, on the GPU: float32 (n,) to uint16 (n,)."""
    if weights.size:
        start(_shadow_kernel(ptx_type), -(-weights.size // 128), 128, stream, weights, shadow)
