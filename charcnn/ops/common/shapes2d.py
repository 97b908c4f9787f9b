"""What shapes an operator on images takes and gives, as `shapes` says it for sequences: the one place of these checks.

Images are (N, C, H, W), weights (C_out, C_in / groups, KH, KW), as PyTorch has them; with channels last (N, H, W, C)
and (KH, KW, C_in / groups, C_out), as TensorFlow has them. Everything that moves a window goes by `Window`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from charcnn.aliases import Array
from charcnn.gpu.arrays import expect
from charcnn.layers import windows
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window, at_least, pair
from charcnn.ops.common.shapes import ranked

_kept = lru_cache(512, typed=True)(windows.window)


def window_of(
    height: int, width: int, kernel: tuple[int, int], stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1,
    of: str = "weight",
) -> Window:  # fmt: skip
    """`windows.window`, kept: it takes as long as a small convolution."""
    sizes = height, width, (kernel[0], kernel[1])
    moves = (tuple(one) if isinstance(one, list) else one for one in (stride, padding, dilation))
    try:
        return _kept(*sizes, *moves, of=of)
    except TypeError:  # what has no hash is no number either
        return windows.window(*sizes, stride, padding, dilation, of=of)


def conv2d(
    x: Array, weight: Array, bias: Array, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1
) -> Shape:
    """x (N, C_in, H, W), weight (C_out, C_in / groups, KH, KW), bias (C_out,) -> (N, C_out, H_out, W_out)."""
    n, c_in, height, width = ranked("x", x, "N, C_in, H, W")
    c_out, w_in, rows, columns = ranked("weight", weight, "C_out, C_in/groups, KH, KW")
    _channels(x, weight, bias, c_in, w_in, c_out, groups, 2, (3, 2, 0, 1))
    found = window_of(height, width, (rows, columns), stride, padding, dilation)
    return n, c_out, *found.out(height, width)


def conv2d_nhwc(
    x: Array, weight: Array, bias: Array, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1
) -> Shape:
    """x (N, H, W, C_in), weight (KH, KW, C_in / groups, C_out), bias (C_out,) -> (N, H_out, W_out, C_out)."""
    n, height, width, c_in = ranked("x", x, "N, H, W, C_in")
    rows, columns, w_in, c_out = ranked("weight", weight, "KH, KW, C_in/groups, C_out")
    _channels(x, weight, bias, c_in, w_in, c_out, groups, 1, (2, 3, 1, 0))
    found = window_of(height, width, (rows, columns), stride, padding, dilation)
    return n, *found.out(height, width), c_out


def filters(weight: Array, bias: Array, groups: int = 1) -> tuple[int, int, int, int]:
    """(KH, KW, C_in / groups, C_out) of a weight for channels last, before there is an x."""
    rows, columns, w_in, c_out = ranked("weight", weight, "KH, KW, C_in/groups, C_out")
    at_least("groups", groups, 1)
    if min(rows, columns, w_in) < 1 or c_out % groups:
        shape = tuple(weight.shape)
        raise ValueError(f"weight has shape {shape}: need (KH, KW, C_in/groups, C_out), none 0, C_out in {groups=}")
    expect("bias", bias, (c_out,))
    return rows, columns, w_in, c_out


def conv2d_window(x: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair) -> Window:
    """The window of a convolution whose shapes `conv2d` has checked."""
    height, width = x.shape[2:]
    rows, columns = weight.shape[2:]
    return window_of(int(height), int(width), (int(rows), int(columns)), stride, padding, dilation)


def conv2d_global_avgpool2d(
    x: Array, weight: Array, bias: Array, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1
) -> Shape:
    """x (N, C_in, H, W), weight (C_out, C_in / groups, KH, KW), bias (C_out,) -> (N, C_out)."""
    return conv2d(x, weight, bias, stride, padding, dilation, groups)[:2]


def conv2d_maxpool2d(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
) -> Shape:
    """x (N, C_in, H, W), weight (C_out, C_in / groups, KH, KW), bias (C_out,) -> (N, C_out, H_pooled, W_pooled)."""
    n, c_out, height, width = conv2d(x, weight, bias, stride, padding, dilation, groups)
    sizes = pair("pool_size", pool_size)
    steps = sizes if pool_stride is None else pair("pool_stride", pool_stride)
    if height < sizes[0] or width < sizes[1]:
        need = f"need at least {sizes[0]} x {sizes[1]} for {pool_size=}"
        raise ValueError(f"x convolves to {height} x {width} pixels: {need}")
    return n, c_out, *Window(sizes, steps).out(height, width)


def pool2d_window(
    height: int, width: int, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0
) -> Window:
    """The window of a pooling of such images. Each holds a pixel, since no side has more padding than half of it."""
    kernel = pair("kernel_size", kernel_size)
    found = window_of(height, width, kernel, kernel if stride is None else stride, padding, of="kernel_size")
    if any(side > kernel[i // 2] // 2 for i, side in enumerate(found.padding)):
        raise ValueError(f"padding={padding!r}: need at most half of kernel_size={kernel_size!r}")
    return found


def pool2d(x: Array, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0) -> Shape:
    """x (N, C, H, W) -> (N, C, H_out, W_out)."""
    n, channels, height, width = ranked("x", x, "N, C, H, W")
    return n, channels, *pool2d_window(height, width, kernel_size, stride, padding).out(height, width)


def pool2d_nhwc(x: Array, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0) -> Shape:
    """x (N, H, W, C) -> (N, H_out, W_out, C)."""
    n, height, width, channels = ranked("x", x, "N, H, W, C")
    return n, *pool2d_window(height, width, kernel_size, stride, padding).out(height, width), channels


def global_avgpool2d(x: Array) -> Shape:
    """x (N, C, H, W) -> (N, C)."""
    n, channels, *size = ranked("x", x, "N, C, H, W")
    return _averaged(x, n, channels, size)


def global_avgpool2d_nhwc(x: Array) -> Shape:
    """x (N, H, W, C) -> (N, C)."""
    n, *size, channels = ranked("x", x, "N, H, W, C")
    return _averaged(x, n, channels, size)


def _averaged(x, n, channels, size):
    if min(size) < 1:
        raise ValueError(f"x has shape {tuple(x.shape)}: need at least one pixel")
    return n, channels


def batchnorm2d(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, eps: float = 1e-5) -> Shape:
    """x (N, C, H, W), gamma, beta, mean and variance (C,) -> (N, C, H, W)."""
    shape = ranked("x", x, "N, C, H, W")
    for name, array in (("gamma", gamma), ("beta", beta), ("mean", mean), ("variance", variance)):
        expect(name, array, shape[1:2])
    if not eps > 0:
        raise ValueError(f"eps={eps!r}: need a positive number")
    return shape


def local_response_norm(x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Shape:
    """x (N, C, H, W) -> (N, C, H, W)."""
    return normalised(ranked("x", x, "N, C, H, W"), size, alpha, beta, k)


def local_response_norm_nhwc(x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Shape:
    """x (N, H, W, C) -> (N, H, W, C)."""
    return normalised(ranked("x", x, "N, H, W, C"), size, alpha, beta, k)


def normalised(shape: Shape, size: Any, alpha: float, beta: float, k: float) -> Shape:
    """The shape, where that many channels and these numbers make a normalisation."""
    at_least("size", size, 1)
    if not k > 0:
        raise ValueError(f"k={k!r}: need a positive number")
    if not alpha >= 0:
        raise ValueError(f"alpha={alpha!r}: need a number of at least 0")
    if beta != beta:
        raise ValueError(f"beta={beta!r}: need a number")
    return shape


def pixels(images: Array, tables: Array, height: int, width: int, entries: int = 256) -> Shape:
    """images (N, C * height * width), tables (C, entries) -> (N, C, height, width)."""
    n, size = ranked("images", images, "N, C * height * width")
    channels, found = ranked("tables", tables, f"C, {entries}")
    at_least("height", height, 1)
    at_least("width", width, 1)
    if found != entries or channels < 1:
        raise ValueError(f"tables has shape {tuple(tables.shape)}: need (C, {entries}), at least one channel")
    if size != channels * height * width:
        need = f"need (N, {channels * height * width}) for {channels} channels of {height} x {width} pixels"
        raise ValueError(f"images has shape {tuple(images.shape)}: {need}")
    return n, channels, height, width


def pixels_nhwc(images: Array, tables: Array, height: int, width: int, channels: int | None = None) -> Shape:
    """images (N, C * height * width), tables (C, 256) -> (N, height, width, channels), of which C are not padding."""
    n, least, height, width = pixels(images, tables, height, width)
    if channels is not None:
        at_least("channels", channels, least)
    return n, height, width, least if channels is None else channels


def _channels(x, weight, bias, c_in, w_in, c_out, groups, other, turned):
    """Channels fit. `other` is the axis of input channels in the other layout, and `turned` what turns that round."""
    at_least("groups", groups, 1)
    if c_in % groups:
        raise ValueError(f"groups={groups}: need a divisor of C_in={c_in}, of x of shape {tuple(x.shape)}")
    need = c_in // groups
    if w_in != need:
        hint = f"; weight.transpose{turned} has it" if weight.shape[other] == need else ""
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: need C_in/groups={need}, as in x of shape {tuple(x.shape)}{hint}"
        )
    if c_out % groups:
        raise ValueError(f"groups={groups}: need a divisor of C_out={c_out}, of weight of shape {tuple(weight.shape)}")
    expect("bias", bias, (c_out,))
