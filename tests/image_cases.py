"""Arguments to try the operators on images, and what ends a classifier; `operator_cases` has the others.

Sizes are ints, of which pairs and sides are put together here. Of a convolution c_in and c_out are those of a group.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from case_kinds import Case, Cases, Sizes, values, weights
from case_makers import two_linears
from chain2d_cases import CHAIN2D

from charcnn.catalog import IMAGE_CHAIN
from charcnn.ops.common.arrays import pack

DEFAULTS = {"groups": 1, "sh": 1, "sw": 1, "top": 0, "bottom": 0, "left": 0, "right": 0, "dh": 1, "dw": 1}


def _options(sizes: Sizes) -> dict[str, object]:
    """What a convolution's sizes say beside its shapes; nothing where they leave all as it is."""
    if not sizes:
        return {}
    s = {**DEFAULTS, **sizes}
    options = {"stride": (s["sh"], s["sw"]), "padding": (s["top"], s["bottom"], s["left"], s["right"])}
    return {**options, "dilation": (s["dh"], s["dw"]), "groups": s["groups"]}


def _conv2d(rng, normal, n, c_in, c_out, h, w, kh, kw, **window):
    groups = window.get("groups", 1)
    weight, bias = weights(rng, groups * c_out, c_in, kh, kw, normal=normal)
    return Case({"x": values(rng, n, groups * c_in, h, w, normal=normal), "weight": weight, "bias": bias},
                _options(window))  # fmt: skip


def _conv2d_nhwc(*arguments, **sizes):
    case = _conv2d(*arguments, **sizes)
    x, weight, bias = case.inputs.values()
    return Case({"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "weight": pack(weight), "bias": bias},
                case.options)  # fmt: skip


def _conv2d_pool(rng, normal, n, c_in, c_out, h, w, kh, kw, ph, pw, psh=0, psw=0, **window):
    case = _conv2d(rng, normal, n, c_in, c_out, h, w, kh, kw, **window)
    steps = {"pool_stride": (psh, psw)} if psh else {}
    return Case(case.inputs, {**case.options, "pool_size": (ph, pw), **steps})


def _batchnorm2d(rng, normal, n, c, h, w):
    gamma, beta = weights(rng, c, normal=normal)
    mean, variance = values(rng, c, normal=normal), values(rng, c, normal=False)
    x = values(rng, n, c, h, w, normal=normal) + np.float32(1.5)  # more than the mean
    return Case({"x": x, "gamma": gamma, "beta": beta, "mean": mean, "variance": variance})


def _images(rng, normal, n, c, h, w):
    return Case({"x": values(rng, n, c, h, w, normal=normal)})


def _pool2d(rng, normal, n, c, h, w, kh, kw, sh=0, sw=0, top=0, bottom=0, left=0, right=0):
    case, kh, kw = _images(rng, normal, n, c, h, w), min(kh, h), min(kw, w)
    steps = {"stride": (sh, sw)} if sh else {}
    padding = min(top, kh // 2), min(bottom, kh // 2), min(left, kw // 2), min(right, kw // 2)
    return Case(case.inputs, {"kernel_size": (kh, kw), **steps, "padding": padding})


def _maxpool2d(rng, normal, **sizes):
    return _pool2d(rng, True, **sizes)


def _avgpool2d(rng, normal, counted=1, **sizes):
    case = _pool2d(rng, normal, **sizes)
    return Case(case.inputs, {**case.options, "count_include_pad": bool(counted)})


def _local_response_norm(rng, normal, n, c, h, w, size):
    return Case(_images(rng, True, n, c, h, w).inputs, {"size": size, "alpha": 0.5, "k": 2.0})


def _nhwc(make):
    """The case on channels-last features."""

    def turned(*arguments, **sizes):
        case = make(*arguments, **sizes)
        return Case({"x": np.ascontiguousarray(case.inputs["x"].transpose(0, 2, 3, 1))}, case.options)

    return turned


def _pixels(rng, normal, n, c, h, w):
    images = rng.integers(0, 256, (n, c * h * w), dtype=np.uint8)
    return Case({"images": images, "tables": values(rng, c, 256, normal=normal)}, {"height": h, "width": w})


def _pixels_nhwc(rng, normal, n, c, h, w, more=0):
    case = _pixels(rng, normal, n, c, h, w)
    return Case(case.inputs, {**case.options, **({"channels": c + more} if more else {})})


def _pointwise(rng, normal, n, c, length):
    return Case({"x": values(rng, n, c, length, normal=True)})


def _leaky_relu(*arguments, slope, **sizes):
    return Case(_pointwise(*arguments, **sizes).inputs, {"negative_slope": slope / 10})


def _maxout(rng, normal, n, c, pieces, **size):
    return Case({"x": values(rng, n, c * pieces, *size.values(), normal=True)}, {"pieces": pieces})


def _linear(rng, normal, n, c_in, c_out):
    """So scaled that a logit is around 1: of greater ones softmax, and of lesser ones GELU, show each rounding."""
    weight, bias = weights(rng, c_out, c_in, normal=normal)
    scale = np.float32(c_in ** (-0.5 if normal else -1) / 2)
    return Case({"x": values(rng, n, c_in, normal=normal), "weight": weight * scale, "bias": bias / np.float32(2)})


def _linear_maxout(*arguments, c_out, pieces, **sizes):
    case = _linear(*arguments, c_out=c_out * pieces, **sizes)
    return Case(case.inputs, {"pieces": pieces})


def _linear_argmax(rng, normal, n, c_in, c_out):
    """Whole numbers: sums are exact, and some equal."""
    shapes = {"x": (n, c_in), "weight": (c_out, c_in), "bias": (c_out,)}
    return Case({name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()})


def _collapse_linear(rng, normal, n, c, h, c_out, w=0):
    weight, bias = weights(rng, c_out, c * h * max(w, 1), normal=normal)
    return Case({"x": values(rng, n, c, h, *[w] * (w > 0), normal=normal), "weight": weight, "bias": bias})


def _fits(s: Sizes) -> bool:
    s = {**DEFAULTS, **s}
    return (
        s["h"] + s["top"] + s["bottom"] > s["dh"] * (s["kh"] - 1)
        and s["w"] + s["left"] + s["right"] > s["dw"] * (s["kw"] - 1)
    )  # fmt: skip


def _conv2d_pool_fits(s: Sizes) -> bool:
    s = {**DEFAULTS, **s}
    rows = s["h"] + s["top"] + s["bottom"] - s["dh"] * (s["kh"] - 1) - 1
    columns = s["w"] + s["left"] + s["right"] - s["dw"] * (s["kw"] - 1) - 1
    return min(rows, columns) >= 0 and rows // s["sh"] + 1 >= s["ph"] and columns // s["sw"] + 1 >= s["pw"]


def moves_by_one(s: Sizes) -> bool:
    """Whether Winograd's filtering takes the window."""
    return all(s.get(name, 1) == 1 for name in ("groups", "sh", "sw", "dh", "dw"))


def moves_by_one_in_groups(s: Sizes) -> bool:
    """Whether that of CPUs does, which takes groups of 3 to 5 rows and columns."""
    rows, columns = s.get("kh", 1), s.get("kw", 1)
    groups = 1 if min(rows, columns) >= 3 and max(rows, columns) <= 5 else s.get("groups", 1)
    return moves_by_one({**s, "groups": groups})


def rows_filtered(s: Sizes) -> bool:
    """Whether that of rows on CPUs does, of 2 to 5 columns."""
    return moves_by_one(s) and 2 <= s.get("kw", 2) <= 5


def on_tensor_cores(s: Sizes) -> bool:
    """Windows of 3 to pool, and of several groups none so narrow as these cases have; `direct` has one group alone.

    Heads of 32, 64 or 128 features.
    """
    if "heads" in s:
        return s["d"] in (32, 64, 128)
    return s.get("pool_size", 3) == 3 and s.get("groups", 1) == 1


SIDES = dict.fromkeys(("top", "bottom", "left", "right"), (0, 2, 4))
SMALL = {"n": 1, "c_in": 1, "c_out": 1, "h": 1, "w": 1, "kh": 1, "kw": 1}
NONE = {"n": 0, "c_in": 2, "c_out": 3, "h": 4, "w": 5, "kh": 3, "kw": 3}

CONV2D = Cases(
    _conv2d,
    edges=(
        {"n": 2, "c_in": 2, "c_out": 3, "h": 5, "w": 6, "kh": 3, "kw": 2},
        SMALL,
        NONE,
        {"n": 1, "c_in": 2, "c_out": 2, "h": 3, "w": 9, "kh": 1, "kw": 5},  # of one row
        {"n": 2, "c_in": 1, "c_out": 1, "h": 6, "w": 5, "kh": 5, "kw": 5, "top": 1, "bottom": 2, "left": 2, "sh": 2},
        {"n": 1, "c_in": 2, "c_out": 2, "h": 7, "w": 8, "kh": 3, "kw": 2, "dh": 2, "dw": 3, "sw": 2, "right": 1},
        {"n": 1, "c_in": 2, "c_out": 1, "h": 4, "w": 4, "kh": 3, "kw": 3, "groups": 3},
        {"n": 1, "c_in": 1, "c_out": 2, "h": 5, "w": 4, "kh": 3, "kw": 3, "groups": 4, "top": 1},  # depthwise
        {"n": 1, "c_in": 1, "c_out": 2, "h": 1, "w": 2, "kh": 2, "kw": 2, "top": 3, "left": 3},  # only padding
    ),
    large=(
        {"n": 9, "c_in": 6, "c_out": 16, "h": 30, "w": 30, "kh": 5, "kw": 5},
        {"n": 3, "c_in": 33, "c_out": 65, "h": 17, "w": 35, "kh": 3, "kw": 3, "top": 1, "bottom": 1, "groups": 2},
        {"n": 2, "c_in": 3, "c_out": 96, "h": 67, "w": 67, "kh": 11, "kw": 11, "sh": 4, "sw": 4},
        {"n": 5, "c_in": 1, "c_out": 1, "h": 19, "w": 41, "kh": 3, "kw": 3, "groups": 70, "dh": 2, "dw": 2, "right": 3},
    ),
    draw={
        "n": (0, 1, 5), "groups": (1, 2, 4), "c_in": (1, 2, 12), "c_out": (1, 2, 12), "h": (1, 5, 40), "w": (1, 6, 40),
        "kh": (1, 3, 6), "kw": (1, 3, 6), "sh": (1, 3, 4), "sw": (1, 3, 4), "dh": (1, 2, 3), "dw": (1, 2, 3), **SIDES,
    },
    fits=_fits,
    compiled_in=("kh", "kw"),
    examples=20,
)  # fmt: skip

CONV2D_POOL = replace(
    CONV2D,
    make=_conv2d_pool,
    edges=(
        {**CONV2D.edges[0], "ph": 2, "pw": 2},
        {**SMALL, "ph": 1, "pw": 1},
        {**NONE, "ph": 2, "pw": 1},
        {"n": 1, "c_in": 1, "c_out": 2, "h": 7, "w": 6, "kh": 2, "kw": 2, "ph": 3, "pw": 3, "psh": 2, "psw": 1},
        {"n": 1, "c_in": 1, "c_out": 1, "h": 8, "w": 9, "kh": 3, "kw": 1, "ph": 1, "pw": 2, "psh": 3, "psw": 3}
        | {"groups": 2, "sw": 2, "dh": 2, "top": 2},  # with gaps
    ),
    large=(
        *({**sizes, "ph": 2, "pw": 2} for sizes in CONV2D.large[:2]),
        {**CONV2D.large[2], "ph": 3, "pw": 3, "psh": 2, "psw": 2},
    ),
    draw={
        **CONV2D.draw, "h": (4, 7, 40), "w": (4, 7, 40),
        "ph": (1, 2, 3), "pw": (1, 2, 3), "psh": (1, 2, 3), "psw": (1, 2, 3),
    },
    fits=_conv2d_pool_fits,
    examples=12,
)  # fmt: skip

IMAGES = Cases(
    _images,
    edges=(
        {"n": 2, "c": 3, "h": 4, "w": 5},
        {"n": 1, "c": 1, "h": 1, "w": 1},
        {"n": 0, "c": 2, "h": 3, "w": 2},
        {"n": 1, "c": 5, "h": 3, "w": 11},
    ),
    large=({"n": 5, "c": 70, "h": 27, "w": 29}, {"n": 33, "c": 3, "h": 13, "w": 13}),
    draw={"n": (0, 2, 9), "c": (1, 4, 40), "h": (1, 4, 40), "w": (1, 5, 40)},
    examples=20,
)

POOL2D = Cases(
    _maxpool2d,
    edges=(
        {"n": 2, "c": 2, "h": 5, "w": 7, "kh": 2, "kw": 3},
        {"n": 1, "c": 1, "h": 1, "w": 1, "kh": 1, "kw": 1},
        {"n": 0, "c": 2, "h": 4, "w": 4, "kh": 2, "kw": 2},
        {"n": 1, "c": 2, "h": 7, "w": 6, "kh": 3, "kw": 3, "sh": 2, "sw": 2},  # overlapping
        {"n": 1, "c": 1, "h": 6, "w": 9, "kh": 1, "kw": 2, "sh": 3, "sw": 4},  # with gaps
        {"n": 1, "c": 2, "h": 4, "w": 5, "kh": 3, "kw": 4, "sh": 1, "sw": 2, "top": 1, "left": 1, "right": 2},
    ),
    large=(
        {"n": 5, "c": 96, "h": 55, "w": 55, "kh": 3, "kw": 3, "sh": 2, "sw": 2},
        {"n": 33, "c": 7, "h": 28, "w": 31, "kh": 5, "kw": 2, "sh": 2, "sw": 1, "top": 2, "bottom": 1, "right": 1},
    ),
    draw={**IMAGES.draw, "kh": (1, 3, 6), "kw": (1, 3, 6), "sh": (1, 3, 5), "sw": (1, 3, 5), **SIDES},
    examples=20,
)

AVGPOOL2D = replace(
    POOL2D,
    make=_avgpool2d,
    edges=(*POOL2D.edges, {**POOL2D.edges[-1], "counted": 0}),
    large=(POOL2D.large[0], {**POOL2D.large[1], "counted": 0}),
    draw={**POOL2D.draw, "counted": (0, 1, 1)},
)

POINTWISE = Cases(
    _pointwise,
    edges=(
        {"n": 2, "c": 3, "length": 11},
        {"n": 1, "c": 1, "length": 1},
        {"n": 0, "c": 2, "length": 3},
    ),
    large=({"n": 33, "c": 300, "length": 17},),
    draw={"n": (0, 3, 33), "c": (0, 5, 60), "length": (0, 20, 130)},
    examples=20,
)

TWO_LINEARS = Cases(
    two_linears,
    edges=(
        {"n": 2, "c_in": 70, "c_mid": 5, "c_out": 3},
        {"n": 1, "c_in": 1, "c_mid": 1, "c_out": 1},
        {"n": 0, "c_in": 3, "c_mid": 2, "c_out": 2},
        {"n": 9, "c_in": 2, "c_mid": 33, "c_out": 2},  # more inputs than a block takes
    ),
    large=(
        {"n": 33, "c_in": 300, "c_mid": 257, "c_out": 130},
        {"n": 13, "c_in": 1024, "c_mid": 1024, "c_out": 4},  # the network's: fc_block_2 and 3
        {"n": 3, "c_in": 64, "c_mid": 5000, "c_out": 5},  # so wide that a block takes fewer
    ),
    draw={"n": (0, 2, 33), "c_in": (1, 70, 300), "c_mid": (1, 5, 300), "c_out": (1, 3, 40)},
)
LINEAR = Cases(
    _linear,
    edges=(
        {"n": 2, "c_in": 9, "c_out": 5},
        {"n": 1, "c_in": 1, "c_out": 1},
        {"n": 0, "c_in": 3, "c_out": 2},
        {"n": 1, "c_in": 3, "c_out": 40},  # more than a block has threads
    ),
    large=(
        {"n": 33, "c_in": 300, "c_out": 257},
        {"n": 3, "c_in": 4096, "c_out": 1000},  # AlexNet's last
    ),
    draw={"n": (0, 2, 33), "c_in": (1, 20, 300), "c_out": (1, 5, 300)},
    examples=20,
)

NORM = replace(
    IMAGES,
    make=_local_response_norm,
    edges=tuple({**sizes, "size": size} for sizes, size in zip(IMAGES.edges, (3, 1, 5, 4), strict=True)),
    large=tuple({**sizes, "size": 5} for sizes in IMAGES.large),
    draw={**IMAGES.draw, "size": (1, 6, 9)},
)


def with_sizes(cases, make, **more):
    """Cases with more sizes: those of the first edge, the least and the most."""
    first = {name: size for name, (size, *_) in more.items()}
    draw = {name: (least, size, most) for name, (size, least, most) in more.items()}
    edges = tuple({**sizes, **first} for sizes in cases.edges)
    odd = {**edges[0], **{name: most for name, (_, _, most) in more.items()}}
    large = tuple({**sizes, **first} for sizes in cases.large)
    return replace(cases, make=make, edges=(*edges, odd), large=large, draw={**cases.draw, **draw})


def last(cases, make):
    """Cases on channels-last features, of channels that fill vectors, too."""
    edges = (*cases.edges, {**cases.edges[3], "c": 8, "h": 5}, {**cases.edges[-1], "c": 12})
    compiled_in = tuple({"kh", "kw", "size"} & set(cases.draw))
    return replace(cases, make=_nhwc(make), edges=edges, large=({**cases.large[0], "c": 96}, cases.large[1]),
                   compiled_in=compiled_in)  # fmt: skip


IMAGE_CASES = {
    "conv2d": CONV2D,
    "conv2d_relu": CONV2D,
    "conv2d_tanh": CONV2D,
    "conv2d_sigmoid": CONV2D,
    "conv2d_leaky_relu": CONV2D,
    "conv2d_relu_maxpool2d": CONV2D_POOL,
    "conv2d_tanh_maxpool2d": CONV2D_POOL,
    "conv2d_relu_global_avgpool2d": CONV2D,
    IMAGE_CHAIN: CHAIN2D,
    "conv2d_nhwc": replace(CONV2D, make=_conv2d_nhwc),
    "conv2d_relu_nhwc": replace(CONV2D, make=_conv2d_nhwc),
    "batchnorm2d": replace(IMAGES, make=_batchnorm2d),
    "batchnorm2d_relu": replace(IMAGES, make=_batchnorm2d),
    "maxpool2d": POOL2D,
    "avgpool2d": AVGPOOL2D,
    "global_avgpool2d": IMAGES,
    "local_response_norm": NORM,
    "maxpool2d_nhwc": last(POOL2D, _maxpool2d),
    "avgpool2d_nhwc": last(AVGPOOL2D, _avgpool2d),
    "global_avgpool2d_nhwc": last(IMAGES, _images),
    "local_response_norm_nhwc": last(NORM, _local_response_norm),
    "pixels": replace(IMAGES, make=_pixels),
    "pixels_nhwc": replace(
        IMAGES,
        make=_pixels_nhwc,
        edges=(*IMAGES.edges, {"n": 2, "c": 3, "h": 5, "w": 3, "more": 5}, {"n": 1, "c": 1, "h": 2, "w": 5, "more": 1}),
        large=({"n": 5, "c": 3, "h": 27, "w": 29, "more": 5}, {"n": 33, "c": 1, "h": 13, "w": 13, "more": 7}),
        draw={**IMAGES.draw, "more": (0, 4, 16)},
        compiled_in=("c", "more"),
    ),
    "tanh": POINTWISE,
    "gelu": POINTWISE,
    "linear_tanh": LINEAR,
    "linear_gelu": LINEAR,
    "sigmoid": POINTWISE,
    "leaky_relu": with_sizes(POINTWISE, _leaky_relu, slope=(1, 0, 10)),
    "maxout": with_sizes(POINTWISE, _maxout, pieces=(2, 1, 3)),
    "linear_sigmoid": LINEAR,
    "linear_leaky_relu": LINEAR,
    "linear_maxout": with_sizes(LINEAR, _linear_maxout, pieces=(2, 1, 3)),
    "linear_gelu_linear": TWO_LINEARS,
    "linear_softmax": LINEAR,
    "linear_argmax": replace(LINEAR, make=_linear_argmax),
    "collapse_linear": Cases(
        _collapse_linear,
        edges=(
            {"n": 2, "c": 3, "h": 11, "c_out": 2},
            {"n": 1, "c": 1, "h": 1, "c_out": 1},
            {"n": 0, "c": 2, "h": 3, "c_out": 2},
            {"n": 2, "c": 3, "h": 3, "w": 2, "c_out": 5},
        ),
        large=({"n": 33, "c": 16, "h": 26, "w": 26, "c_out": 140},),
        draw={"n": (0, 2, 9), "c": (1, 4, 20), "h": (1, 5, 20), "w": (0, 3, 20), "c_out": (1, 5, 60)},
        examples=20,
    ),
}
