"""What the operators on images are measured on: layers of the networks they come from, filled with random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from case import Case, Layer

from charcnn.catalog import IMAGE_CHAIN
from charcnn.config import SMALL
from charcnn.ops.common import shapes2d
from charcnn.ops.common.arrays import pack

if TYPE_CHECKING:
    from cases import Draw

CUT = 8
"""The most of each size in a try of the harness."""


def _sizes(d: Draw, *sizes: int) -> tuple[int, ...]:
    return sizes if d.config.channels >= SMALL.channels else tuple(min(size, CUT) for size in sizes)


def _images(*sizes: int, extra: tuple[int, ...] = (), **options: Any) -> Callable[[Draw], Case]:
    """Features (C, H, W), or rows (C,)."""
    return lambda d: Case((d.floats(d.n, *_sizes(d, *sizes)),), extra, options=options)


def _conv2d(c_in: int, side: int, c_out: int, kernel: int, extra: tuple[int, ...] = (), **options: Any) -> Any:
    def draw(d: Draw) -> Case:
        channels, size, maps = _sizes(d, c_in, side, c_out)
        weight = d.floats(maps, channels // options.get("groups", 1), kernel, kernel)
        weight /= np.float32(math.sqrt(math.prod(weight.shape[1:])))
        args = d.floats(d.n, channels, size, size), weight, d.floats(maps)
        flops = 2 * math.prod(shapes2d.conv2d(*args, **options)) * math.prod(weight.shape[1:])
        return Case(args, extra, flops=flops, options=options)

    return draw


def _chain(d: Draw) -> Case:
    """LeNet-5's first two layers, which every technique holds in float32; AlexNet's do not fit whole."""
    side, *channels = (28, 1, 6, 16) if d.config.channels >= SMALL.channels else (14, 1, 2, 3)
    flops, shape, parameters = 0, (d.n, 1, side, side), []
    for (c_in, c_out), padding in zip(pairwise(channels), (2, 0), strict=True):
        parameters += [d.floats(c_out, c_in, 5, 5) / np.float32(math.sqrt(25 * c_in)), d.floats(c_out)]
        shape = shapes2d.conv2d(np.broadcast_to(np.float32(0), shape), *parameters[-2:], padding=padding)
        flops += 2 * math.prod(shape) * 25 * c_in
        shape = *shape[:2], shape[2] // 2, shape[3] // 2
    return Case((d.floats(d.n, 1, side, side), *parameters), (2,), flops=flops, options={"paddings": (2, 0)})


def _nhwc(draw: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    def turned(d: Draw) -> Case:
        case = draw(d)
        x, weight, bias = case.args
        return replace(case, args=(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), pack(weight), bias))

    return turned


def _last(*sizes: int, extra: tuple[int, ...] = (), **options: Any) -> Callable[[Draw], Case]:
    """Features (H, W, C), of sizes (C, H, W)."""
    draw = _images(*sizes, extra=extra, **options)

    def turned(d: Draw) -> Case:
        case = draw(d)
        return replace(case, args=(np.ascontiguousarray(case.args[0].transpose(0, 2, 3, 1)),))

    return turned


def _pixels(*sizes: int, **options: Any) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        channels, height, width = _sizes(d, *sizes)
        images = d.bytes(d.n, channels * height * width)
        return Case((images, d.floats(channels, 256)), (height, width), options=options)

    return draw


def _linear(c_out: int, *features: int) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        (maps,), sizes = _sizes(d, c_out), _sizes(d, *features)
        depth = math.prod(sizes)
        weight = d.floats(maps, depth) / np.float32(math.sqrt(depth))
        return Case((d.floats(d.n, *sizes), weight, d.floats(maps)), flops=2 * d.n * maps * depth)

    return draw


def _packed(draw: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    """What draws a linear layer's case, with weights as channels-last operators take them."""

    def turned(d: Draw) -> Case:
        case = draw(d)
        return replace(case, args=(case.args[0], *(pack(one) if one.ndim > 1 else one for one in case.args[1:])))

    return turned


def _two_linears(middle: int, width: int) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        first = _linear(middle, width)(d)
        second = _linear(width, middle)(d)
        return Case((*first.args, *second.args[1:]), flops=first.flops + second.flops)

    return draw


def _two_linears_backward(d: Draw) -> Case:
    case = _two_linears(4096, 1024)(d)
    x, *parameters, last = case.args
    return Case((d.floats(d.n, len(last)), x, *parameters), batched=2, flops=3 * case.flops)


def _batchnorm2d(d: Draw) -> Case:
    c, h, w = _sizes(d, 5, 28, 28)
    return Case((d.floats(d.n, c, h, w), *(d.floats(c) for _ in range(3)), abs(d.floats(c))))


def _backward(forward: Callable[[Draw], Case], result: Callable[..., tuple[int, ...]]) -> Callable[[Draw], Case]:
    """The gradients of a layer, whose shape check says what dy has."""

    def draw(d: Draw) -> Case:
        case = forward(d)
        return d.backward(case, result(*case.args, *case.extra, **case.options)[1:])

    return draw


def _same(x: np.ndarray) -> tuple[int, ...]:
    return x.shape


def _batchnorm2d_backward(d: Draw) -> Case:
    x, gamma, _, mean, variance = _batchnorm2d(d).args
    return Case((d.floats(*x.shape), x, gamma, mean, variance), batched=2)


CONV3 = Layer("alexnet conv3", _conv2d(256, 13, 384, 3, padding=1))
CONVOLUTIONS = (
    Layer("ece408 conv1", _conv2d(1, 64, 6, 5)),
    Layer("ece408 conv2", _conv2d(6, 30, 16, 5)),
    CONV3,
)
POOLED = (Layer("ece408 conv1", _conv2d(1, 64, 6, 5, (2,))),)
NORMS = (Layer("mnist norm1", _batchnorm2d),)
ANSWERS = (Layer("mnist fc2", _linear(10, 120)), Layer("alexnet fc8", _linear(1000, 4096)))

IMAGE_LAYERS: dict[str, tuple[Layer, ...]] = {
    "conv2d_backward": tuple(replace(row, draw=_backward(row.draw, shapes2d.conv2d)) for row in CONVOLUTIONS[1:]),
    "maxpool2d_backward": (
        Layer("alexnet pool1", _backward(_images(96, 55, 55, extra=(3,), stride=2), shapes2d.pool2d)),
    ),
    "avgpool2d_backward": (Layer("ece408 pool1", _backward(_images(6, 60, 60, extra=(2,)), shapes2d.pool2d)),),
    "global_avgpool2d_backward": (Layer("alexnet conv5", _backward(_images(256, 13, 13), shapes2d.global_avgpool2d)),),
    "local_response_norm_backward": (
        Layer(
            "alexnet norm1",
            _backward(_images(96, 55, 55, extra=(5,), alpha=5e-4, k=2.0), shapes2d.local_response_norm),
        ),
    ),
    "batchnorm2d_backward": (Layer("mnist norm1", _batchnorm2d_backward),),
    **{f"{of}_backward": (Layer("ece408 conv1", _backward(_images(6, 60, 60), _same)),) for of in ("tanh", "sigmoid")},
    "linear_gelu_linear_backward": (Layer("ffn, H 1024", _two_linears_backward),),
    "gelu_backward": (Layer("ffn, H 1024", _backward(_images(4096), _same)),),
    "leaky_relu_backward": (Layer("alexnet conv1", _backward(_images(96, 55, 55), _same)),),
    "conv2d": CONVOLUTIONS,
    "conv2d_relu": CONVOLUTIONS[1:],
    "conv2d_tanh": CONVOLUTIONS[:1],
    "conv2d_sigmoid": CONVOLUTIONS[:1],
    "conv2d_leaky_relu": CONVOLUTIONS[1:],
    "conv2d_relu_maxpool2d": POOLED,
    "conv2d_tanh_maxpool2d": POOLED,
    "conv2d_relu_global_avgpool2d": (CONV3,),
    IMAGE_CHAIN: (Layer("lenet conv1 to pool2", _chain),),
    "conv2d_nhwc": tuple(replace(row, draw=_nhwc(row.draw)) for row in CONVOLUTIONS[1:]),
    "conv2d_relu_nhwc": tuple(replace(row, draw=_nhwc(row.draw)) for row in CONVOLUTIONS[1:]),
    "batchnorm2d": NORMS,
    "batchnorm2d_relu": NORMS,
    "maxpool2d": (
        Layer("ece408 pool1", _images(6, 60, 60, extra=(2,))),
        Layer("alexnet pool1", _images(96, 55, 55, extra=(3,), stride=2)),
    ),
    "avgpool2d": (Layer("ece408 pool1", _images(6, 60, 60, extra=(2,))),),
    "global_avgpool2d": (Layer("alexnet conv5", _images(256, 13, 13)),),
    "local_response_norm": (Layer("alexnet norm1", _images(96, 55, 55, extra=(5,), alpha=5e-4, k=2.0)),),
    "maxpool2d_nhwc": (
        Layer("ece408 pool1", _last(6, 60, 60, extra=(2,))),
        Layer("alexnet pool1", _last(96, 55, 55, extra=(3,), stride=2)),
    ),
    "avgpool2d_nhwc": (Layer("ece408 pool1", _last(6, 60, 60, extra=(2,))),),
    "global_avgpool2d_nhwc": (Layer("alexnet conv5", _last(256, 13, 13)),),
    "local_response_norm_nhwc": (Layer("alexnet norm1", _last(96, 55, 55, extra=(5,), alpha=5e-4, k=2.0)),),
    "pixels": (Layer("alexnet input", _pixels(3, 227, 227)),),
    "pixels_nhwc": (Layer("alexnet input", _pixels(3, 227, 227, channels=8)),),
    "tanh": (Layer("ece408 conv1", _images(6, 60, 60)),),
    "gelu": (Layer("ffn, H 1024", _images(4096)),),
    "sigmoid": (Layer("ece408 conv1", _images(6, 60, 60)),),
    "leaky_relu": (Layer("alexnet conv1", _images(96, 55, 55)),),
    "maxout": (Layer("alexnet conv1", _images(96, 55, 55, extra=(2,))),),
    "linear_tanh": (Layer("ece408 fc1", _linear(140, 10816)),),
    "linear_gelu": (Layer("ffn, H 1024", _linear(4096, 1024)),),
    "linear_sigmoid": (Layer("ece408 fc1", _linear(140, 10816)),),
    "linear_leaky_relu": (Layer("ffn, H 1024", _linear(4096, 1024)),),
    "linear_maxout": (Layer("ffn, H 1024, 2 pieces", _linear(4096, 1024)),),
    "linear_gelu_linear": (Layer("ffn, H 1024", _two_linears(4096, 1024)),),
    "linear_gelu_nlc": (Layer("ffn, H 1024", _packed(_linear(4096, 1024))),),
    "linear_gelu_linear_nlc": (Layer("ffn, H 1024", _packed(_two_linears(4096, 1024))),),
    "linear_softmax": ANSWERS,
    "linear_argmax": ANSWERS,
    "collapse_linear": (Layer("ece408 fc1", _linear(140, 16, 26, 26)),),
}
"""Where each is measured."""
