"""References on images (N, C, H, W), and channels-last ones (N, H, W, C)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d
from charcnn.ops.reference.layouts import channels_last
from charcnn.ops.reference.values import Array, leaky_relu, relu, sigmoid, tanh


def conv2d(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation, as deep-learning frameworks define it.

    x (N, C_in, H, W), weight (C_out, C_in / groups, KH, KW), bias (C_out,) -> (N, C_out, H_out, W_out), where
    H_out = (H + top + bottom - dilation (KH - 1) - 1) // stride + 1, and the padding is zeros. stride and dilation are
    an int or (vertical, horizontal), padding also (top, bottom, left, right), "valid", or TensorFlow's "same". Output
    channels of group g see the input channels of group g alone.
    """
    shape = shapes2d.conv2d(x, weight, bias, stride, padding, dilation, groups)
    n, c_out, height, width = shape
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    top, bottom, left, right = window.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    spans = tuple(d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel, strict=True))
    (down, right), (below, beside) = window.stride, window.dilation
    values = sliding_window_view(x, spans, axis=(2, 3))[:, :, ::down, ::right, ::below, ::beside]
    weight = weight.reshape(groups, c_out // groups, -1)
    y = np.empty((n, groups, c_out // groups, height * width), np.result_type(x, weight))
    for image, sums in zip(values, y, strict=True):
        np.matmul(weight, image.transpose(0, 3, 4, 1, 2).reshape(groups, weight.shape[2], height * width), out=sums)
    return y.reshape(shape) + bias[:, None, None]


def conv2d_relu(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """relu(conv2d(...))"""
    return relu(conv2d(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups))


def conv2d_tanh(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """tanh(conv2d(...))"""
    return tanh(conv2d(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups))


def conv2d_sigmoid(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """sigmoid(conv2d(...))"""
    return sigmoid(conv2d(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups))


def conv2d_leaky_relu(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """leaky_relu(conv2d(...))"""
    return leaky_relu(conv2d(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups))


def conv2d_relu_maxpool2d(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
) -> Array:
    """maxpool2d(relu(conv2d(...)), pool_size, stride=pool_stride)"""
    shapes2d.conv2d_maxpool2d(x, weight, bias, pool_size, stride, padding, dilation, groups, pool_stride)
    y = conv2d_relu(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return maxpool2d(y, pool_size, stride=pool_stride)


def conv2d_tanh_maxpool2d(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
) -> Array:
    """maxpool2d(tanh(conv2d(...)), pool_size, stride=pool_stride)"""
    shapes2d.conv2d_maxpool2d(x, weight, bias, pool_size, stride, padding, dilation, groups, pool_stride)
    y = conv2d_tanh(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return maxpool2d(y, pool_size, stride=pool_stride)


def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    pool_size: Pair,
    *,
    pool_stride: Pair | None = None,
    strides: Sequence[Pair] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1),
) -> Array:
    """conv2d_relu_maxpool2d twice: a stride, padding and groups for each, and both poolings alike.

    x (N, C_in, H, W), weight1 and weight2 (C_out, C_in / groups, KH, KW), bias1 and bias2 (C_out,) ->
    (N, C_out, H_out, W_out), where the C_in of weight2 is the C_out before.
    """
    for i, (weight, bias) in enumerate(((weight1, bias1), (weight2, bias2))):
        x = conv2d_relu_maxpool2d(
            x,
            weight,
            bias,
            pool_size,
            stride=strides[i],
            padding=paddings[i],
            groups=groups[i],
            pool_stride=pool_stride,
        )
    return x


def conv2d_relu_global_avgpool2d(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """global_avgpool2d(relu(conv2d(...))): (N, C_out)"""
    return global_avgpool2d(
        conv2d_relu(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    )


def batchnorm2d(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, *, eps: float = 1e-5) -> Array:
    """Each channel less its mean, over the root of its variance + eps, times gamma, plus beta: at inference, all given.

    x (N, C, H, W), the others (C,) -> (N, C, H, W). A negative variance gives NaN, as in PyTorch; TensorFlow's eps is
    1e-3. `fold_batchnorm` puts it into the weights before. Source: Ioffe, Szegedy 2015, arXiv:1502.03167.
    """
    shapes2d.batchnorm2d(x, gamma, beta, mean, variance, eps)
    gamma, beta, mean, variance = (array[:, None, None] for array in (gamma, beta, mean, variance))
    return (x - mean) / np.sqrt(variance + x.dtype.type(eps)) * gamma + beta


def batchnorm2d_relu(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, *, eps: float = 1e-5) -> Array:
    """relu(batchnorm2d(...))"""
    return relu(batchnorm2d(x, gamma, beta, mean, variance, eps=eps))


def _windows(x: Array, window: Window, around: float) -> Array:
    """The windows of x (N, C, H, W), as (N, C, H_out, W_out, KH, KW), with padding of this value."""
    top, bottom, left, right = window.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=around)
    vertical, horizontal = window.stride
    return sliding_window_view(x, window.kernel, axis=(2, 3))[:, :, ::vertical, ::horizontal]


def maxpool2d(x: Array, kernel_size: Pair, *, stride: Pair | None = None, padding: Padding = 0) -> Array:
    """The maximum of each window; stride defaults to kernel_size; padding is -inf, at most half of kernel_size.

    x (N, C, H, W) -> (N, C, H_out, W_out), H_out = (H + top + bottom - KH) // stride + 1; NaN wins. kernel_size and
    stride are an int or (vertical, horizontal), padding is as conv2d's.
    """
    shapes2d.pool2d(x, kernel_size, stride, padding)
    window = shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)
    return _windows(x, window, -np.inf).max(axis=(4, 5))


def avgpool2d(
    x: Array,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
) -> Array:
    """The mean of each window, padding counted as zeros, or, with count_include_pad=False, not at all.

    Arguments and shapes as for `maxpool2d`. PyTorch counts padding where nothing else is said, TensorFlow never does.
    """
    shapes2d.pool2d(x, kernel_size, stride, padding)
    window = shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)
    sums = _windows(x, window, 0).sum(axis=(4, 5), dtype=x.dtype)
    if count_include_pad:
        return sums / x.dtype.type(window.kernel[0] * window.kernel[1])
    return sums / _windows(np.ones((1, 1, *x.shape[2:]), x.dtype), window, 0).sum(axis=(4, 5), dtype=x.dtype)


def global_avgpool2d(x: Array) -> Array:
    """The mean of each channel: (N, C, H, W) -> (N, C)."""
    shapes2d.global_avgpool2d(x)
    return x.mean(axis=(2, 3))


def local_response_norm(x: Array, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Array:
    """Each value over (k + alpha / size * s) ** beta, s the sum of squares of `size` channels about its own.

    x (N, C, H, W) -> (N, C, H, W). Of channel c these are c - size // 2 to c + (size - 1) // 2, as far as there are
    such. This is PyTorch's definition, with its names. AlexNet's paper multiplies alpha by s itself: its n = 5,
    alpha = 1e-4, beta = 0.75, k = 2 are size=5, alpha=5e-4, beta=0.75, k=2.0 here. Source: Krizhevsky, Sutskever,
    Hinton 2012, ImageNet classification with deep convolutional neural networks.
    """
    shapes2d.local_response_norm(x, size, alpha, beta, k)
    squares = np.pad(np.square(x), ((0, 0), (size // 2, (size - 1) // 2), (0, 0), (0, 0)))
    sums = sliding_window_view(squares, size, axis=1).sum(axis=-1, dtype=x.dtype)
    kind = x.dtype.type
    return x / (kind(k) + kind(alpha / size) * sums) ** kind(beta)


def pixels(images: Array, tables: Array, height: int, width: int) -> Array:
    """Rows of bytes as images: what a network of images begins with.

    images uint8 (N, C * height * width), channel after channel, tables (C, 256) -> (N, C, height, width), each byte's
    entry in its channel's table. `pixel_tables` makes those of (byte / 255 - mean) / std.
    """
    n, channels, *size = shapes2d.pixels(images, tables, height, width)
    images = images.reshape(n, channels, *size)
    return np.stack([table[images[:, c]] for c, table in enumerate(tables)], axis=1)


def pixels_nhwc(images: Array, tables: Array, height: int, width: int, *, channels: int | None = None) -> Array:
    """pixels, channels last: (N, height, width, channels), zeros beyond the tables' C, which None stands for."""
    n, *size, channels = shapes2d.pixels_nhwc(images, tables, height, width, channels)
    y = np.zeros((n, *size, channels), tables.dtype)
    y[..., : len(tables)] = pixels(images, tables, height, width).transpose(0, 2, 3, 1)
    return y


conv2d_nhwc, conv2d_relu_nhwc = (channels_last(of, shapes2d.conv2d_nhwc) for of in (conv2d, conv2d_relu))
maxpool2d_nhwc, avgpool2d_nhwc = (channels_last(of, shapes2d.pool2d_nhwc) for of in (maxpool2d, avgpool2d))
global_avgpool2d_nhwc = channels_last(global_avgpool2d, shapes2d.global_avgpool2d_nhwc)
local_response_norm_nhwc = channels_last(local_response_norm, shapes2d.local_response_norm_nhwc)
