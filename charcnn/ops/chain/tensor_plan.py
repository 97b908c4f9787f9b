"""A chain over images on tensor cores: what its plans share, and its weights on a GPU as a function of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.layer import Shape
from charcnn.ops.chain.links import Link, Linked
from charcnn.ops.common.precision import HALF_PRECISIONS, NumberFormat
from charcnn.ops.common.shapes import expect, ranked

if TYPE_CHECKING:
    from charcnn.ops.chain.plan_mma import MmaPlan
    from charcnn.ops.chain.plan_strips import StripPlan


@dataclass(frozen=True)
class TensorPlan(Linked):
    """A chain as one kernel on tensor cores. `describe()` tells what it does; `prepare` gives the function."""

    links: tuple[Link, ...]
    precision: NumberFormat
    """Of maps and weights."""
    shared_limit: int
    """Bytes of shared memory that a block may use."""

    @property
    def result(self) -> tuple[Shape, Any]:
        """Shape of an image's result, and its dtype."""
        return self.out_shape, np.float32

    def looked_up(self, pixels: np.ndarray) -> np.ndarray:
        """What bytes stand for, float32 (C_in, 256), as the kernel reads it."""
        return pixels.ravel()

    def flat(self, y: Array) -> Any:
        """The results as the kernel writes them."""
        return y.reshape((len(y), prod(self.out_shape)))

    def prepare(
        self, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray | None], pixels: np.ndarray | None = None
    ) -> TensorChain:
        """The chain's function, with its weights packed on the current GPU: see `TensorChain`."""
        return TensorChain(self, weights, biases, pixels)  # type: ignore[arg-type]  # it is one of the two


def half_precision(precision: str) -> NumberFormat:
    """The format of this name, of maps and weights.

    Raises:
        ValueError: it is none of 16 bits.
    """
    if precision not in HALF_PRECISIONS:
        raise ValueError(f"{precision=}: method 'mma' needs one of {', '.join(HALF_PRECISIONS)}")
    return HALF_PRECISIONS[precision]


class TensorChain:
    """A planned chain's weights on the current GPU, as a function of images.

    Args:
        plan: whose kernel this is.
        weights: float32 (C_out, C_in / groups, KH, KW) each, as PyTorch has them, NumPy arrays.
        biases: (C_out,) each; None of a convolution that has none.
        pixels: float32 (C_in, 256), what each byte of a channel stands for, of a `StripPlan` at equal distances: then
            images are bytes.

    Raises:
        ValueError: an argument's shape does not fit, or bytes stand for numbers at other distances.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self, plan: MmaPlan | StripPlan, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray | None],
        pixels: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        device.require_tensor_cores("method 'mma'", way_out="use method='whole'")
        shapes = plan.parameter_shapes
        for name, arrays in (("weights", weights), ("biases", biases)):
            if len(arrays) != len(shapes):
                raise ValueError(f"{name}: got {len(arrays)} arrays, need {len(shapes)}, one a convolution")
        offsets = [np.zeros(outputs, np.float32) for outputs in plan.outputs]
        for i, (weight, bias, shape) in enumerate(zip(weights, biases, shapes, strict=True)):
            expect(f"weight{i + 1}", weight, shape)
            if plan.biased[i] != (bias is not None):
                raise ValueError(f"bias{i + 1} is {'missing' if bias is None else 'given'}: the layer says otherwise")
            if bias is not None:
                expect(f"bias{i + 1}", bias, shape[:1])
                offsets[i][: len(bias)] = bias
        table = np.zeros(1, np.float32)
        if pixels is not None:
            expect("pixels", pixels, (plan.in_shape[0], 256))
            table = plan.looked_up(pixels)
        self._plan, self._bytes = plan, pixels is not None
        self._parameters = [device.to_device(array) for array in (plan.packed(weights), np.concatenate(offsets), table)]
        self.nbytes: int = sum(array.nbytes for array in self._parameters)

    def __call__(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """Start on x (N, C_in, H, W), float32, or uint8 with `pixels`: y (N, *shape) of `plan.result`, on its side.

        Maps are held in the precision: in fp16 values from 65,520 on are infinite.

        Args:
            out: where to write; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        plan, (shape, dtype) = self._plan, self._plan.result
        n = ranked("x", x, "N, C_in, H, W")[0]
        expect("x", x, (n, *plan.in_shape))
        call = Call(out, stream, (n, *shape), dtype, {"x": np.uint8 if self._bytes else np.float32}, x=x)
        arrays = call.inputs[0].reshape((n, prod(plan.in_shape))), *self._parameters, plan.flat(call.out)
        call.launch(plan.kernel(self._bytes), plan.blocks(n), plan.threads, *arrays, shared=plan.shared_bytes)
        return call.result()
