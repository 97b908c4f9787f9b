"""A planned chain as a function of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call, pair
from charcnn.ops.chain import kernel, kernel2d
from charcnn.ops.chain.step2d import Step2d
from charcnn.ops.common.arrays import check
from charcnn.ops.common.shapes import expect, ranked

if TYPE_CHECKING:
    from charcnn.ops.chain.planned import Planned

AXES = {2: "N, C_in, L", 3: "N, C_in, H, W"}
"""Of a batch, by those of an input."""


@dataclass(frozen=True)
class Fused:
    """A chain's function; its kernels are compiled at the first call, once a process for equal plans.

    fused(x, weights, biases, *, out=None, stream=None, workspace=None)

    Args:
        x: float32 (N, C_in, L), or (N, C_in, H, W) of images, C-contiguous.
        weights: a sequence of float32 (C_out, C_in, K), or (C_out, C_in / groups, KH, KW), one a convolution, as
            PyTorch has them; biases: of (C_out,), None of a convolution that has none. Errors call them weight1, bias1
            and so on. All arrays NumPy, or all on the device.
        out: where to write y (N, C_out, L_out or H_out, W_out), and with Stat a pair (y, stat); made where None.
        stream: a CUDA stream; the default stream where None.
        workspace: `plan.workspace(n)` of at least N inputs, to allocate nothing in the call; made where None.

    Returns:
        y where the inputs lie; with Stat (y, stat), stat float64 (N, 2): mean and biased variance of each input's y.
        Device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit the plan.
        DeviceError: no usable GPU.
    """

    plan: Planned

    def __call__(
        self,
        x: Array,
        weights: Sequence[Array],
        biases: Sequence[Any],
        *,
        out: Array = None,
        stream: Stream = None,
        workspace: Sequence[Any] | None = None,
    ) -> Array:
        """See the class."""
        plan = self.plan
        n = ranked("x", x, AXES[len(plan.in_shape)])[0]
        expect("x", x, (n, *plan.in_shape))
        inputs = {"x": x}
        shapes = plan.parameter_shapes
        for name, arrays in (("weights", weights), ("biases", biases)):
            if len(arrays) != len(shapes):
                raise ValueError(f"{name}: got {len(arrays)} arrays, need {len(shapes)}, one a convolution")
            for i, (array, shape) in enumerate(zip(arrays, shapes, strict=True), 1):
                label, needed = (f"weight{i}", shape) if name == "weights" else (f"bias{i}", shape[:1])
                if name == "biases" and not plan.biased[i - 1]:
                    if array is not None:
                        raise ValueError(f"{label} is a {type(array).__name__}: need None, as the layer has no bias")
                    continue
                expect(label, array, needed)
                inputs[label] = array
        y, stat = pair(out) if plan.stat else (out, None)
        if stat is not None:
            expect("stat", stat, (n, 2))
            inputs["stat"] = stat
        call = Call(y, stream, (n, *plan.out_shape), **inputs)
        moments = None
        if plan.stat:
            moments = call.inputs[-1] if stat is not None else call.scratch((n, 2), np.float64)
        self._launch(call, n, moments, workspace)
        if not plan.stat:
            return call.result()
        stat = call.second(moments, stat)
        return call.result(), stat

    def _launch(self, call, n, moments, workspace):
        plan, (source, *parameters) = self.plan, call.inputs
        count = len(plan.parameter_shapes)
        weights, rest = tuple(parameters[:count]), iter(parameters[count:])
        # A kernel reads no bias of a convolution that has none, but takes an array of that kind.
        biases = tuple(next(rest) if biased else weight.reshape(weight.size)
                       for weight, biased in zip(weights, plan.biased, strict=True))  # fmt: skip
        workspace = self._workspace(n, workspace, call.stream)
        targets = (*workspace[: len(plan.steps) - 1], call.out)
        first = 0
        for step, target in zip(plan.steps, targets, strict=True):
            last = first + step.convolutions
            arguments = [source, weights[first:last], biases[first:last], target]
            if isinstance(step, Step2d):
                device.require_capability((8, 0), "cp.async", "use the technique naive")
                compiled = kernel2d.make_kernel(step)
            else:
                compiled = kernel.make_kernel(step)
                arguments.append(target if not step.stat else workspace[-1] if plan.merges else moments)
            call.launch(compiled, n * step.tiles, step.threads, *arguments, shared=step.shared_bytes)
            source, first = target, last
        if plan.merges:
            step = plan.steps[-1]
            call.launch(
                kernel.merge_kernel, -(-n // 128), 128,
                workspace[-1], moments, step.tiles, step.tile, step.length_out, step.channels[-1],
            )  # fmt: skip

    def _workspace(self, n, workspace, stream):
        if workspace is None:
            return self.plan.workspace(n, stream)
        needed = self.plan.workspace_shapes(n)
        if len(workspace) != len(needed):
            raise ValueError(f"workspace has {len(workspace)} arrays: need {len(needed)}, as plan.workspace(n) gives")
        for i, (array, shape) in enumerate(zip(workspace, needed, strict=True)):
            check(f"workspace[{i}]", array)
            if len(array.shape) != len(shape) or array.shape[0] < shape[0] or array.shape[1:] != shape[1:]:
                raise ValueError(f"workspace[{i}] has shape {array.shape}: need {shape}, or more rows")
        return tuple(workspace)
