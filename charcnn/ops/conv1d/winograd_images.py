"""conv2d_nhwc with fewer multiplications, by Winograd's filtering along both axes (`winograd_images_plan` says which).

Features and weights are transformed, one axis after the other; each point is then a matrix product of tiles by
channels, or where taps are taken in groups a convolution over tiles, by the kernel of `double_buffered`; and outputs
are transformed back. The transforms are passes over memory, a thread 4 channels. A call moves x and y once, and the
features at the points and their products twice each. README.md, beside this file, has what that comes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.group_rows import vector_width
from charcnn.ops.conv1d.double_buffered import launch, launch_windows
from charcnn.ops.conv1d.tile import filling
from charcnn.ops.conv1d.winograd_images_kernels import QUADS, TILES, features_kernel, outputs_kernel, weights_kernel
from charcnn.ops.conv1d.winograd_images_plan import WinogradPlan

THREADS = device.block_size(256)


def weights_shape(plan: WinogradPlan, c_in: int, c_out: int) -> Shape:
    """Of transformed weights."""
    return plan.products * plan.down.groups, plan.across.groups, c_in // plan.splits, c_out


def transform(call: Call, weight: Array, plan: WinogradPlan, c_in: int, c_out: int) -> None:
    """Start to transform a weight (KH, KW, C_in, C_out) on the GPU, into the call's result."""
    blocks = -(-plan.down.groups * plan.across.groups * c_in * c_out // THREADS)
    call.launch(weights_kernel(plan.down, plan.across), blocks, THREADS, weight, call.out, plan.splits)


def between(plan: WinogradPlan, window: Window, x: Shape, c_in: int, c_out: int) -> tuple[Shape, Shape]:
    """The shapes of the transformed features and of their products, for x (N, H, W, C_in)."""
    down, across, (height, width) = plan.down, plan.across, window.out(x[1], x[2])
    planes = plan.products * x[0]
    features = planes, down.read(height), across.read(width), c_in // plan.splits
    return features, (planes, down.tiles(height), across.tiles(width), c_out)


def launch_all(call: Call, arrays: Sequence[Any], plan: WinogradPlan, window: Window, epilogue: Epilogue) -> None:
    """Start the kernels, into the call's result.

    Args:
        arrays: on the GPU: x (N, H, W, C_in); room for transformed features, and for their products; transformed
            weights, and the bias.
        window: how it moves over x.
    """
    x, features, products, weight, bias = arrays
    (n, _, _, c_in), c_out = x.shape, call.out.shape[3]
    (top, _, left, _), across, splits = window.padding, TILES * QUADS, plan.splits
    wide = vector_width(x, features)
    blocks = -(-n * features.shape[1] * features.shape[2] // TILES) * -(-c_in // (QUADS * wide))
    arguments = x, features, features.shape[1], features.shape[2], top, left, splits
    call.launch(features_kernel(plan.down, plan.across, wide), blocks, across * plan.most, *arguments)
    _multiply(call, features, weight, bias, products, plan)
    wide = vector_width(products, call.out)
    blocks = -(-n * products.shape[1] * products.shape[2] // TILES) * -(-c_out // (QUADS * wide))
    kernel = outputs_kernel(plan.down, plan.across, wide, epilogue.pointwise)
    threads = across * max(plan.across.points, plan.down.span)
    call.launch(kernel, blocks, threads, products, bias, call.out, splits)


def _multiply(call, features, weight, bias, products, plan):
    tile = filling(products.shape[3])
    if plan.down.groups * plan.across.groups > 1:
        window = Window((plan.down.groups, plan.across.groups), dilation=(plan.down.apart, plan.across.apart))
        inputs = features, weight, bias
        launch_windows(call, inputs, products, "several", window, products=plan.products, tile=tile)
    else:
        flat = [a.reshape((a.shape[0], a.shape[1] * a.shape[2], a.shape[3])) for a in (features, products)]
        weight = weight.reshape((plan.products, *weight.shape[2:]))
        launch(call, (flat[0], weight, bias), flat[1], "several", products=plan.products, tile=tile)
