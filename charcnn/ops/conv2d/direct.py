"""conv2d of few input channels on a GPU, as it is defined: no matrix product, features read once, and NCHW throughout.

Its kernel reads weights as PyTorch has them, so there is nothing to prepare: the technique is a launch, and no class.

Source of the tiles: a value from shared memory feeds as many multiply-adds as the tile has maps, as in a matrix product
by register tiles; but neighbouring positions share the values under their windows, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx import VECTOR
from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.conv2d.direct_kernel import make_kernel
from charcnn.ops.conv2d.direct_plan import ITEMS_AHEAD, NO_POOL, Sizes, plan


def start(call: Call, inputs: Sequence[Array], y: Array, window: Window, epilogue: Epilogue) -> None:
    """Start the kernel on the call's stream, for arrays on the device.

    Args:
        inputs: x (N, C_in, H, W), weight (C_out, C_in, KH, KW) and bias (C_out,).
        y: (N, C_out, H_out, W_out).
        window: how the kernel moves over x.
        epilogue: what becomes of the sums: a pointwise function, then max-pooling.

    Raises:
        ValueError: as of `direct_plan.plan`.
        DeviceError: the GPU's compute capability is below 8.0.
    """
    device.require_capability((8, 0), "cp.async", "use the technique naive")
    if not y.size:
        return
    x, weight, bias = inputs
    (n, c_in, *_), (c_out, _, rows, _) = x.shape, weight.shape
    shape = tuple(int(extent) for extent in x.shape)
    found = plan(shape, int(c_out), window, epilogue.pool or NO_POOL, device.address(x) % (4 * VECTOR) == 0)
    blocks = found.blocks(n, c_in, rows)
    shared = found.shared_bytes(c_in, rows, ITEMS_AHEAD if found.items(n) > blocks else 1)
    exact = found.exact(int(c_out), tuple(y.shape[2:]))
    kernel = make_kernel(found.tile, epilogue.pointwise, found.width, _store_width(found, y), exact)
    arguments = x, weight, bias, y, Sizes.of(found, n, c_in, window)
    call.launch(kernel, (blocks, found.parts), found.threads, *arguments, shared=shared)


def _store_width(found, y):
    """Floats: rows of outputs, and tiles in them, begin at multiples of it."""
    aligned = device.address(y) % (4 * VECTOR) == 0
    fits = (store for store in (4, 2) if aligned and y.shape[3] % store == 0 and found.tile.columns % store == 0)
    return next(fits, 1)


def pooling(size: Pair, step: Pair | None = None) -> Window:
    """How max-pooling moves; ValueError where a number is less than 1."""
    kernel = windows.pair("pool_size", size)
    return Window(kernel, kernel if step is None else windows.pair("pool_stride", step))


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str, pool: Window | None = None,
) -> None:  # fmt: skip
    """Features and weights are small of up to some six input channels, which it is meant for.

    More work as long as a strip of all of them fits in shared memory.

    Raises:
        ValueError: groups are more than 1; a strip does not fit in shared memory.
    """
    if groups != 1:
        raise ValueError(f"{groups=}: the technique direct needs 1; conv2d's naive takes any")
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    start(call, (x, weight, bias), call.out, window, Epilogue(epilogue, pool))


def launch_pooled(
    call: Call, x: Array, weight: Array, bias: Array, pool_size: Pair, stride: Pair, padding: Padding, dilation: Pair,
    groups: int, pool_stride: Pair | None, *, epilogue: str,
) -> None:  # fmt: skip
    """A thread's tile holds whole windows, and stores their maxima alone.

    Raises:
        ValueError: groups are more than 1; a strip does not fit in shared memory.
    """
    pool = pooling(pool_size, pool_stride)
    launch(call, x, weight, bias, stride, padding, dilation, groups, epilogue=epilogue, pool=pool)
