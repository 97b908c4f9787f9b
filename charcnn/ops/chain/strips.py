"""A `StripPlan`'s weights on a GPU, as a function of images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops.chain.kernel_half import halves
from charcnn.ops.chain.kernel_strips import make_strip_kernel
from charcnn.ops.chain.octets import OCTET
from charcnn.ops.chain.strip_sizes import ABREAST, DEPTH, Product
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.common.shapes import expect, ranked
from charcnn.ops.pixels_to_depth import to_depth

if TYPE_CHECKING:
    from charcnn.ops.chain.plan_strips import StripPlan


def packed(weight: np.ndarray, of: Product, precision: NumberFormat) -> np.ndarray:
    """(outputs, channels, KH, KW) of one group, or its groups one after another, as warps read it: words.

    By part, product of depth 16, warp beside another, octets of outputs by two, and lane; a word is `mma.sync`'s B of
    m16n8k16.
    """
    octets, own = ABREAST * of.columns, of.octets_in * OCTET
    whole = np.zeros((of.outputs, own, *of.kernel), np.float32)
    whole[: len(weight), : weight.shape[1]] = weight
    # part, warp, two octets, octet of two, column, pair of octets of depth, octet, word, number, row, tap
    parts = whole.reshape(
        of.parts, ABREAST, octets // ABREAST // 2, 2, OCTET, own // OCTET // DEPTH, DEPTH, 4, 2, *of.kernel
    )
    words = parts.transpose(
        0, 9, 10, 5, 1, 2, 4, 7, 3, 6, 8
    )  # lane is column, word; its four octet of two, and depth's
    return halves(np.ascontiguousarray(words), precision).view(np.uint32).ravel()


class StripChain:
    """A planned chain's weights on the current GPU.

    Args:
        plan: whose kernel this is.
        weights, biases: float32 as PyTorch has them, NumPy arrays; None of a convolution that has no bias.
        pixels: float32 (C_in, 256), what each byte of a channel stands for, at equal distances: then images are bytes.

    Raises:
        ValueError: an argument's shape does not fit, or bytes stand for numbers at other distances.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self, plan: StripPlan, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray | None],
        pixels: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        device.require_tensor_cores("method 'mma'", way_out="use precision='fp32'")
        for name, arrays in (("weights", weights), ("biases", biases)):
            if len(arrays) != 2:
                raise ValueError(f"{name}: got {len(arrays)} arrays, need 2, one a convolution")
        words, offsets = [], []
        for number, (weight, bias, of) in enumerate(zip(weights, biases, plan.products, strict=True)):
            link = plan.links[2 * number]
            expect(f"weight{number + 1}", weight, link.weight_shape)
            if link.bias != (bias is not None):
                raise ValueError(f"bias{number + 1} is {'missing' if link.bias else 'given'}: the layer says otherwise")
            offsets.append(np.zeros(of.outputs, np.float32))
            if bias is not None:
                expect(f"bias{number + 1}", bias, link.weight_shape[:1])
                offsets[-1][: len(bias)] = bias
            turned = to_depth(weight, link.window) if number == 0 else dense(weight, link.groups // of.groups)
            words.append(packed(turned, of, plan.precision))
        words.append(np.zeros(max(of.words // (of.parts * of.steps) for of in plan.products), np.uint32))  # read ahead
        linear = np.zeros(1, np.float32) if pixels is None else _linear(pixels, plan.in_shape[0])
        self._plan, self._bytes = plan, pixels is not None
        self._weight = device.to_device(np.concatenate(words))
        self._bias = device.to_device(np.concatenate(offsets))
        self._pixels = device.to_device(linear)
        self.nbytes: int = self._weight.nbytes + self._bias.nbytes + self._pixels.nbytes

    def __call__(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Start on x (N, C_in, H, W), float32, or uint8 with `pixels`: y (N, *plan.result_shape) in the precision.

        Args:
            out: where to write; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        plan = self._plan
        n = ranked("x", x, "N, C_in, H, W")[0]
        expect("x", x, (n, *plan.in_shape))
        kind = np.uint8 if self._bytes else np.float32
        call = Call(out, stream, (n, *plan.result_shape), plan.precision.dtype, {"x": kind}, x=x)
        source = call.inputs[0].reshape((n, prod(plan.in_shape)))
        target = call.out.reshape(call.out.size).view(np.uint32)
        blocks = min(n * plan.tiles, device.multiprocessors())
        arrays = source, self._weight, self._bias, self._pixels, target
        call.launch(make_strip_kernel(plan, self._bytes), blocks, plan.threads, *arrays, shared=plan.shared_bytes)
        return call.result()


def dense(weight: np.ndarray, groups: int) -> np.ndarray:
    """A weight of so many groups as one of a single group, with zeros between them."""
    if groups == 1:
        return weight
    outputs, own = len(weight) // groups, weight.shape[1]
    whole = np.zeros((len(weight), groups * own, *weight.shape[2:]), weight.dtype)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        whole[rows, g * own : (g + 1) * own] = weight[rows]
    return whole


def _linear(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Factor and offset of each channel's table."""
    expect("pixels", pixels, (channels, 256))
    offset = pixels[:, 0].astype(np.float64)
    factor = (pixels[:, 255] - offset) / 255
    if not np.allclose(pixels, offset[:, None] + factor[:, None] * np.arange(256), rtol=1e-5, atol=1e-5):
        raise ValueError("pixels: need what bytes stand for at equal distances")
    return np.concatenate([factor, offset]).astype(np.float32)
