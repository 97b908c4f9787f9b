"""Arguments to try the operators of gradients on: the layers' sizes, and dy of the shape of their results.

Unless normal, dy and weights are positive: a gradient by features adds up what a forward sum keeps apart.
"""

from __future__ import annotations

from dataclasses import replace

import case_makers as make
import numpy as np
from case_kinds import Case, Cases, values
from image_cases import AVGPOOL2D, CONV2D, IMAGE_CASES, IMAGES, NORM, POINTWISE, POOL2D, TWO_LINEARS
from transformer_cases import ATTENTION, EMBEDDING, ROWNORM

from charcnn.ops.common import shapes, shapes2d
from charcnn.ops.common.arrays import pack

CONV1D = {"n": (0, 2, 9), "c_in": (1, 4, 40), "c_out": (1, 5, 40), "length": (1, 12, 70), "k": (1, 5, 9)}
LEAKY_RELU, BATCHNORM2D = IMAGE_CASES["leaky_relu"], IMAGE_CASES["batchnorm2d"]
MOVES = {"stride": (1, 4, 5), "padding": (0, 5, 9), "dilation": (1, 3, 5)}


def conv1d(rng, normal, n, c_in, c_out, length, k, **options):
    case = make.conv1d(rng, normal, n, c_in, c_out, length, k, **options)
    dy = values(rng, *shapes.conv1d(*case.inputs.values(), **options), normal=normal)
    weight = values(rng, c_out, c_in, k, normal=normal)
    return Case({"dy": dy, "x": case.inputs["x"], "weight": weight}, options)


def conv2d(rng, normal, **sizes):
    case = CONV2D.make(rng, normal, **sizes)
    dy = values(rng, *shapes2d.conv2d(*case.inputs.values(), **case.options), normal=normal)
    x, weight, _ = case.inputs.values()
    return Case({"dy": dy, "x": x, "weight": values(rng, *weight.shape, normal=normal)}, case.options)


def pool2d(forward):
    def made(rng, normal, **sizes):
        case = forward.make(rng, normal, **sizes)
        moves = {name: value for name, value in case.options.items() if name != "count_include_pad"}
        dy = values(rng, *shapes2d.pool2d(**case.inputs, **moves), normal=normal)
        return Case({"dy": dy, **case.inputs}, case.options)

    return made


def global_avgpool2d(rng, normal, n, c, **sizes):
    return Case({"dy": values(rng, n, c, normal=normal), **IMAGES.make(rng, normal, n, c, **sizes).inputs})


def alike(forward):
    """A gradient of the shape of x, where the operator keeps that; all its arrays but biases."""

    def made(rng, normal, **sizes):
        case = forward.make(rng, normal, **sizes)
        arrays = {name: array for name, array in case.inputs.items() if name != "beta"}
        return Case({"dy": values(rng, *case.inputs["x"].shape, normal=normal), **arrays}, case.options)

    return made


def gelu(rng, normal, **sizes):
    """Where the slope is 0, at -0.7518, it has no digits."""
    dy, x = alike(POINTWISE)(rng, normal, **sizes).inputs.values()
    return Case({"dy": dy, "x": x - np.float32(0.2) * (abs(x + np.float32(0.7)) < 0.1)})


def rownorm(forward):
    def made(rng, normal, **sizes):
        inputs = forward(rng, normal, **sizes).inputs
        dy = values(rng, *inputs["x"].shape, normal=True)
        return Case({"dy": dy, **{name: array for name, array in inputs.items() if name != "beta"}})

    return made


def rows_of_some(cases, made):
    """Of few values a row, dx is a difference of nearly equal ones, as layernorm's."""
    _, few, many = cases.draw["h"]
    return replace(cases, make=rownorm(made), draw={**cases.draw, "h": (8, few, many)})


def embedding(rng, normal, n, s, h, **sizes):
    inputs = make.embedding(rng, normal, n, s, h, **sizes).inputs
    return Case({"dy": values(rng, n, s, h, normal=normal), **inputs})


def attention(rng, normal, n, heads, s, d, **sizes):
    case = make.attention(rng, True, n, heads, s, d, **sizes)
    return Case({"dy": values(rng, n, heads, s, d, normal=True), **case.inputs}, case.options)


def two_linears(rng, normal, n, c_in, c_mid, c_out):
    shapes_of = {
        "dy": (n, c_out),
        "x": (n, c_in),
        "weight1": (c_mid, c_in),
        "bias1": (c_mid,),
        "weight2": (c_out, c_mid),
    }
    return Case({name: values(rng, *shape, normal=normal) for name, shape in shapes_of.items()})


def softmax(rng, normal, n, c):
    """Of two neighbours' gradients one is below 0, so that they differ by more than rounding."""
    dy = values(rng, n, c, normal=normal) * np.where(np.arange(c) % 2, -1, 1).astype(np.float32)
    return Case({"dy": dy, "x": values(rng, n, c, normal=normal)})


def one_hot_conv1d(rng, normal, n, depth, c_out, length, k):
    ids, weight, _ = make.one_hot_conv1d(rng, normal, n, depth, c_out, length, k).inputs.values()
    return Case({"dy": values(rng, n, c_out, length - k + 1, normal=normal), "ids": ids, "weight": weight})


def linear(rng, normal, n, c_in, c_out):
    shapes_of = {"dy": (n, c_out), "x": (n, c_in), "weight": (c_out, c_in)}
    return Case({name: values(rng, *shape, normal=normal) for name, shape in shapes_of.items()})


def last(made):
    """On channels-last features and packed weights."""

    def turned(*arguments, **sizes):
        dy, x, weight = made(*arguments, **sizes).inputs.values()
        dy, x = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (dy, x))
        return Case({"dy": dy, "x": x, "weight": pack(weight)})

    return turned


def rectified(made):
    """Where x is what ReLU gave: some zeros."""

    def of(rng, normal, **sizes):
        case = made(rng, normal, **sizes)
        x = case.inputs["x"]
        x *= (rng.random(x.shape) < 0.7).astype(np.float32)
        x[...] = abs(x)
        return case

    return of


def of_both(name, cases, nlc):
    """Of channels-first and of channels-last features, alone and behind ReLU."""
    found = {f"{name}_backward": cases, f"{name}_backward_nlc": replace(nlc, make=last(cases.make))}
    return found | {f"relu_{of}": replace(one, make=rectified(one.make)) for of, one in found.items()}


def layernorm(rng, normal, n, c, length):
    inputs = make.layernorm(rng, normal, n, c, length).inputs
    return Case({"dy": values(rng, n, c, length, normal=True), "x": inputs["x"], "gamma": inputs["gamma"]})


def maxpool1d(rng, normal, n, c, length, kernel_size, **options):
    case = make.maxpool1d(rng, normal, n, c, length, kernel_size, **options)
    dy = values(rng, *shapes.maxpool1d(case.inputs["x"], kernel_size, **options), normal=normal)
    return Case({"dy": dy, **case.inputs}, case.options)


def maxpool1d_last(rng, normal, n, c, length, pool_size):
    """Numbers that bf16 has, as the maximum is one of those."""
    case = maxpool1d(rng, normal, n, c, length, pool_size)
    dy, x = (np.ascontiguousarray(array.swapaxes(1, 2)) for array in case.inputs.values())
    return Case({"dy": dy, "x": (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)}, {"pool_size": pool_size})


def layernorm_pooled_last(rng, normal, n, octets, length, pool_size):
    """x in numbers of bf16, likewise."""
    case = maxpool1d_last(rng, normal, n, 8 * octets, length, pool_size)
    gamma, beta = values(rng, length, 8 * octets, normal=normal), values(rng, length, 8 * octets, normal=True)
    return Case({**case.inputs, "gamma": gamma, "beta": beta}, case.options)


def one_hot_pooled_last(rng, normal, n, depth, octets, length, k, pool_size):
    """Sums that fp16 has, as they choose the maximum."""
    case = make.one_hot_conv1d_relu_maxpool1d_nlc(rng, normal, n, length, k, depth, 8 * octets, pool_size)
    ids, weight, bias = case.inputs.values()
    weight, bias = (rng.integers(-40, 60, of.shape).astype(np.float32) / 8 for of in (weight, bias))
    dy = values(rng, n, (length - k + 1) // pool_size, 8 * octets, normal=normal)
    return Case({"dy": dy, "ids": ids, "weight": weight, "bias": bias}, case.options)


def cross_entropy(rng, normal, n, c):
    return Case({"x": 4 * values(rng, n, c, normal=True), "targets": rng.random((n, c), np.float32)})


def cross_entropy_backward(rng, normal, n, c):
    """Each class's target far from its probability: their difference is what is asked for."""
    case = cross_entropy(rng, normal, n, c)
    return Case({"dy": values(rng, n, normal=False), **case.inputs})


def _conv1d_fits(s):
    return s["length"] + 2 * s["padding"] >= s["dilation"] * (s["k"] - 1) + 1


CONV1D_CASES = Cases(
    conv1d,
    edges=(
        {"n": 2, "c_in": 3, "c_out": 5, "length": 11, "k": 3},
        {"n": 1, "c_in": 1, "c_out": 1, "length": 1, "k": 1},
        {"n": 0, "c_in": 2, "c_out": 3, "length": 9, "k": 3},
        {"n": 1, "c_in": 2, "c_out": 3, "length": 7, "k": 7},
        {"n": 2, "c_in": 2, "c_out": 3, "length": 10, "k": 3, "stride": 2, "padding": 1},
        {"n": 1, "c_in": 2, "c_out": 2, "length": 13, "k": 3, "dilation": 3},
        {"n": 1, "c_in": 2, "c_out": 2, "length": 9, "k": 2, "stride": 4},  # positions in no window
        {"n": 1, "c_in": 1, "c_out": 2, "length": 2, "k": 2, "padding": 5, "dilation": 2},  # of padding only
        {"n": 3, "c_in": 2, "c_out": 4, "length": 12, "k": 4, "stride": 3, "padding": 4, "dilation": 2},
    ),
    large=(
        {"n": 33, "c_in": 70, "c_out": 65, "length": 31, "k": 7},
        {"n": 2, "c_in": 64, "c_out": 40, "length": 337, "k": 7},
        {"n": 5, "c_in": 33, "c_out": 300, "length": 67, "k": 5, "stride": 2, "padding": 7, "dilation": 3},
    ),
    draw={**CONV1D, **MOVES},
    fits=_conv1d_fits,
)
CONV1D_LAST = replace(
    CONV1D_CASES,
    edges=tuple(sizes for sizes in CONV1D_CASES.edges if not MOVES.keys() & sizes.keys()),
    large=(*CONV1D_CASES.large[:2], {"n": 33, "c_in": 40, "c_out": 264, "length": 31, "k": 3}),
    draw=CONV1D,
    fits=lambda s: s["length"] >= s["k"],
)

LINEAR_CASES = Cases(
    linear,
    edges=(
        {"n": 2, "c_in": 70, "c_out": 5},
        {"n": 1, "c_in": 1, "c_out": 1},
        {"n": 0, "c_in": 3, "c_out": 2},
        {"n": 3, "c_in": 64, "c_out": 4},
        {"n": 1, "c_in": 129, "c_out": 3},
    ),
    large=({"n": 33, "c_in": 300, "c_out": 257}, {"n": 2, "c_in": 8704, "c_out": 130}),
    draw={"n": (0, 3, 33), "c_in": (1, 140, 300), "c_out": (1, 5, 300)},
)

MAXPOOL1D = Cases(
    maxpool1d,
    edges=(
        {"n": 2, "c": 3, "length": 11, "kernel_size": 3},
        {"n": 1, "c": 1, "length": 1, "kernel_size": 1},
        {"n": 0, "c": 2, "length": 5, "kernel_size": 3},
        {"n": 2, "c": 2, "length": 11, "kernel_size": 3, "stride": 2, "padding": 1},
        {"n": 1, "c": 2, "length": 9, "kernel_size": 4, "stride": 1},  # a position in many windows
        {"n": 1, "c": 2, "length": 9, "kernel_size": 2, "stride": 4},
    ),
    large=(
        {"n": 33, "c": 70, "length": 101, "kernel_size": 3},
        {"n": 5, "c": 300, "length": 67, "kernel_size": 5, "stride": 2, "padding": 2},
    ),
    draw={"n": (0, 2, 33), "c": (1, 4, 40), "length": (1, 15, 130), "kernel_size": (1, 6, 9)}
    | {"stride": (1, 4, 9), "padding": (0, 3, 4)},
    fits=lambda s: s["padding"] <= s["kernel_size"] // 2 and s["length"] + 2 * s["padding"] >= s["kernel_size"],
)

CLASSES = {
    "edges": ({"n": 3, "c": 4}, {"n": 1, "c": 2}, {"n": 0, "c": 4}, {"n": 33, "c": 5}),
    "large": ({"n": 33, "c": 300}, {"n": 1030, "c": 4}),
    "draw": {"n": (0, 9, 300), "c": (2, 7, 60)},
}

GRADIENTS = {
    **of_both("conv1d", CONV1D_CASES, CONV1D_LAST),
    "one_hot_conv1d_backward": Cases(
        one_hot_conv1d,
        edges=(
            {"n": 2, "depth": 7, "c_out": 5, "length": 11, "k": 3},
            {"n": 1, "depth": 1, "c_out": 1, "length": 1, "k": 1},
            {"n": 0, "depth": 3, "c_out": 2, "length": 9, "k": 3},
            {"n": 1, "depth": 3, "c_out": 17, "length": 7, "k": 7},
            {"n": 1, "depth": 300, "c_out": 3, "length": 9, "k": 4},  # deeper than a uint8 counts
        ),
        large=(
            {"n": 33, "depth": 70, "c_out": 65, "length": 31, "k": 7},
            {"n": 3, "depth": 70, "c_out": 64, "length": 1014, "k": 7},
        ),
        draw={"n": (0, 2, 9), "depth": (1, 5, 260), "c_out": (1, 5, 70), "length": (1, 12, 130), "k": (1, 5, 9)},
        fits=lambda s: s["length"] >= s["k"],
    ),
    **of_both("linear", LINEAR_CASES, LINEAR_CASES),
    # Of few values, dx is the difference of nearly equal ones: two that are normalised have no gradient but by eps.
    "layernorm_backward": Cases(
        layernorm,
        edges=(
            {"n": 2, "c": 3, "length": 11},
            {"n": 1, "c": 1, "length": 1},
            {"n": 0, "c": 2, "length": 8},
            {"n": 3, "c": 1, "length": 12},
            {"n": 1, "c": 16, "length": 33},
        ),
        large=({"n": 33, "c": 300, "length": 17}, {"n": 2, "c": 256, "length": 1008}),
        draw={"n": (0, 2, 9), "c": (1, 5, 60), "length": (8, 20, 130)},
    ),
    "relu_backward": replace(
        POINTWISE, make=alike(POINTWISE), edges=(*POINTWISE.edges, {"n": 1, "c": 1, "length": 129})
    ),
    **dict.fromkeys(("tanh_backward", "sigmoid_backward"), replace(POINTWISE, make=alike(POINTWISE))),
    "gelu_backward": replace(POINTWISE, make=gelu),
    "leaky_relu_backward": replace(LEAKY_RELU, make=alike(LEAKY_RELU)),
    **dict.fromkeys(("maxpool1d_backward", "relu_maxpool1d_backward"), MAXPOOL1D),
    "relu_maxpool1d_backward_nlc": Cases(
        maxpool1d_last,
        edges=(
            {"n": 2, "c": 3, "length": 11, "pool_size": 3},
            {"n": 0, "c": 2, "length": 5, "pool_size": 3},
            {"n": 1, "c": 16, "length": 3, "pool_size": 3},
        ),
        large=({"n": 33, "c": 70, "length": 101, "pool_size": 3},),
        draw={"n": (0, 2, 33), "c": (1, 4, 40), "length": (3, 15, 130), "pool_size": (3, 3, 3)},
    ),
    "one_hot_conv1d_relu_maxpool1d_backward_nlc": Cases(
        one_hot_pooled_last,
        edges=(
            {"n": 2, "depth": 7, "octets": 1, "length": 11, "k": 3, "pool_size": 3},
            {"n": 0, "depth": 3, "octets": 1, "length": 9, "k": 3, "pool_size": 3},
            {"n": 1, "depth": 1, "octets": 3, "length": 3, "k": 1, "pool_size": 3},
        ),
        large=({"n": 33, "depth": 70, "octets": 9, "length": 131, "k": 7, "pool_size": 3},),
        draw={"n": (0, 2, 9), "depth": (1, 5, 100), "octets": (1, 2, 9), "length": (11, 12, 130), "k": (1, 5, 7)}
        | {"pool_size": (3, 3, 3)},
        fits=lambda s: s["length"] >= s["k"] + 2,
        compiled_in=("k", "depth"),
    ),
    "layernorm_relu_maxpool1d_backward_nlc": Cases(
        layernorm_pooled_last,
        edges=(
            {"n": 2, "octets": 3, "length": 11, "pool_size": 3},
            {"n": 0, "octets": 1, "length": 5, "pool_size": 3},
            {"n": 1, "octets": 1, "length": 3, "pool_size": 3},
        ),
        large=({"n": 33, "octets": 9, "length": 101, "pool_size": 3},),
        draw={"n": (0, 2, 33), "octets": (1, 3, 40), "length": (3, 15, 130), "pool_size": (3, 3, 3)},
    ),
    "conv2d_backward": replace(CONV2D, make=conv2d, compiled_in=()),
    "maxpool2d_backward": replace(POOL2D, make=pool2d(POOL2D)),
    "avgpool2d_backward": replace(AVGPOOL2D, make=pool2d(AVGPOOL2D)),
    "global_avgpool2d_backward": replace(IMAGES, make=global_avgpool2d),
    "local_response_norm_backward": replace(NORM, make=alike(NORM)),
    "batchnorm2d_backward": replace(IMAGES, make=alike(BATCHNORM2D)),
    "softmax_backward": Cases(softmax, **CLASSES),
    "rownorm_backward": rows_of_some(ROWNORM, make.rownorm),
    "add_rownorm_backward": rows_of_some(ROWNORM, make.add_rownorm),
    "embedding_backward": replace(EMBEDDING, make=embedding),
    "attention_backward": replace(
        ATTENTION,
        make=attention,
        draw={**ATTENTION.draw, "n": (0, 2, 3), "heads": (1, 2, 3), "s": (1, 9, 50)},
        compiled_in=(),
    ),
    "linear_gelu_linear_backward": replace(TWO_LINEARS, make=two_linears),
    "softmax_cross_entropy": Cases(cross_entropy, **CLASSES),
    "softmax_cross_entropy_backward": Cases(cross_entropy_backward, **CLASSES),
}
EXAMPLES = 12
"""Sizes drawn for compiled code: gradients are many, and their layers' operators have more."""
GRADIENTS = {name: replace(cases, examples=min(cases.examples, EXAMPLES)) for name, cases in GRADIENTS.items()}
