"""conv2d of few input channels on a GPU, as it is defined: no matrix product, features read once, and NCHW throughout.

Source of the tiles: a value from shared memory feeds as many multiply-adds as the tile has maps, as in a matrix product
by register tiles; but neighbouring positions share the values under their windows, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx import VECTOR
from charcnn.layers import windows
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d
from charcnn.ops.conv2d.direct_kernel import make_kernel
from charcnn.ops.conv2d.direct_plan import ITEMS_AHEAD, NO_POOL, Sizes, plan


def start(call: Call, inputs: Sequence[Any], y: Any, name: str, window: Window, pool: Window = NO_POOL) -> None:
    """Start the kernel on the call's stream, for arrays on the device.

    Args:
        inputs: x (N, C_in, H, W), weight (C_out, C_in, KH, KW) and bias (C_out,).
        y: (N, C_out, H_out, W_out).
        name: the epilogue's, of `common.epilogues`.
        window, pool: how the kernel moves over x, and pooling over the convolution's results.

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
    found = plan(shape, int(c_out), window, pool, device.address(x) % (4 * VECTOR) == 0)
    blocks = found.blocks(n, c_in, rows)
    shared = found.shared_bytes(c_in, rows, ITEMS_AHEAD if found.items(n) > blocks else 1)
    exact = found.exact(int(c_out), tuple(y.shape[2:]))
    kernel = make_kernel(found.tile, name, found.width, _store_width(found, y), exact)
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


def result_shape(
    x: Any, weight: Any, bias: Any, pool: Window | None = None, *, stride: Pair = 1, padding: Padding = 0,
    dilation: Pair = 1, groups: int = 1,
) -> Shape:  # fmt: skip
    """The result's, with pooling where there is one.

    Raises:
        ValueError: an argument's shape does not fit, or groups are more than 1.
    """
    if groups != 1:
        raise ValueError(f"{groups=}: the technique direct needs 1; conv2d's naive takes any")
    if pool is None:
        return shapes2d.conv2d(x, weight, bias, stride, padding, dilation)
    return shapes2d.conv2d_maxpool2d(x, weight, bias, pool.kernel, stride, padding, dilation, 1, pool.stride)


def convolved(
    name: str, x: Any, weight: Any, bias: Any, pool: Window | None = None, *, stride: Pair = 1, padding: Padding = 0,
    dilation: Pair = 1, groups: int = 1, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The operators below, by the epilogue's name, and with max-pooling behind it where `pool` is not None."""
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    shape = result_shape(x, weight, bias, pool, groups=groups, **moves)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    start(call, call.inputs, call.out, name, shapes2d.conv2d_window(x, weight, **moves), pool or NO_POOL)
    return call.result()


def conv2d_direct(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d` on a GPU: a block a strip of an image in shared memory, a tile of its outputs in registers.

    It is meant for up to some six input channels, of which features and weights are small. More input channels work as
    long as a strip of all of them fits in shared memory. Needs compute capability 8.0.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous; weight (C_out, C_in, KH, KW) and bias (C_out,) likewise. All NumPy
            arrays, or all device arrays (Numba's, or any with __cuda_array_interface__).
        stride, dilation: an int, or (vertical, horizontal).
        padding: zeros: an int, (vertical, horizontal), (top, bottom, left, right), "valid", or "same" as TensorFlow's.
        groups: 1.
        out: where to write, (N, C_out, H_out, W_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; groups are more than 1; a strip does not
            fit in shared memory.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("", x, weight, bias, **moves, out=out, stream=stream)


def conv2d_relu_direct(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`conv2d_direct` with ReLU in the same kernel. Arguments, result and errors as there."""
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("relu", x, weight, bias, **moves, out=out, stream=stream)


def conv2d_tanh_direct(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with tanh in place of ReLU."""
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("tanh", x, weight, bias, **moves, out=out, stream=stream)


def conv2d_relu_maxpool2d_direct(
    x: Any,
    weight: Any,
    bias: Any,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d_relu_maxpool2d` likewise: a thread's tile holds whole windows, and stores their maxima alone.

    Args:
        x, weight, bias, stride, padding, dilation, groups, stream: as where nothing follows.
        pool_size: of a pooling window, an int, or (vertical, horizontal).
        pool_stride: from one window to the next, likewise; pool_size where None.
        out: where to write, (N, C_out, H_pooled, W_pooled), on the same side; made where None.

    Returns:
        float32 (N, C_out, H_pooled, W_pooled) where the inputs lie; device results are not waited for.

    Raises:
        ValueError, DeviceError: as there.
    """
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("relu", x, weight, bias, pooling(pool_size, pool_stride), **moves, out=out, stream=stream)


def conv2d_tanh_maxpool2d_direct(
    x: Any,
    weight: Any,
    bias: Any,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with tanh in place of ReLU."""
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("tanh", x, weight, bias, pooling(pool_size, pool_stride), **moves, out=out, stream=stream)
