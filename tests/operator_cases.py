"""Arguments to try every operator on: sizes chosen by hand and sizes drawn by hypothesis.

The sizes are named once for each operator. Data are well-conditioned (no sum cancels to near nothing), so that a
handful of outputs can't miss a relative tolerance by bad luck; the large cases hold plain normal data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import case_makers as make
import numpy as np
from case_kinds import Cases, Sizes
from case_kinds import built as built
from chain_cases import CHAIN1D
from direct_mma_cases import DIRECT_MMA
from gradient_cases import GRADIENTS
from image_cases import IMAGE_CASES, TWO_LINEARS, moves_by_one, moves_by_one_in_groups, on_tensor_cores, rows_filtered
from transformer_cases import TRANSFORMER

from charcnn.catalog import CHAIN
from charcnn.ops.common.moments import PART
from charcnn.ops.common.precision import HALF_PRECISIONS, SPARSE_PRECISIONS, TENSOR_PRECISIONS


def _conv1d_fits(s: Sizes) -> bool:
    return s["length"] + 2 * s["padding"] >= s["dilation"] * (s["k"] - 1) + 1


def _maxpool1d_fits(s: Sizes) -> bool:
    return s["padding"] <= s["kernel_size"] // 2 and s["length"] + 2 * s["padding"] >= s["kernel_size"]


def _conv1d_relu_maxpool1d_fits(s: Sizes) -> bool:
    positions = s["length"] + 2 * s["padding"] - s["dilation"] * (s["k"] - 1) - 1
    return positions >= 0 and positions // s["stride"] + 1 >= s["pool_size"]


CONV1D = Cases(
    make.conv1d,
    edges=(
        {"n": 2, "c_in": 3, "c_out": 5, "length": 11, "k": 3},
        {"n": 1, "c_in": 1, "c_out": 1, "length": 1, "k": 1},
        {"n": 0, "c_in": 2, "c_out": 3, "length": 9, "k": 3},
        {"n": 1, "c_in": 2, "c_out": 3, "length": 7, "k": 7},
        {"n": 2, "c_in": 2, "c_out": 3, "length": 10, "k": 3, "stride": 2, "padding": 1},
        {"n": 1, "c_in": 2, "c_out": 2, "length": 13, "k": 3, "dilation": 3},
        {"n": 1, "c_in": 2, "c_out": 2, "length": 3, "k": 7, "padding": 2, "dilation": 1},
        {"n": 1, "c_in": 1, "c_out": 2, "length": 2, "k": 2, "padding": 5, "dilation": 2},  # windows of padding only
        {"n": 3, "c_in": 2, "c_out": 4, "length": 12, "k": 4, "stride": 3, "padding": 4, "dilation": 2},
    ),
    large=(
        {"n": 33, "c_in": 70, "c_out": 65, "length": 31, "k": 7},
        {"n": 3, "c_in": 300, "c_out": 129, "length": 40, "k": 3},
        {"n": 2, "c_in": 256, "c_out": 256, "length": 37, "k": 7},
        {"n": 5, "c_in": 33, "c_out": 300, "length": 67, "k": 5, "stride": 2, "padding": 7, "dilation": 3},
    ),
    draw={
        "n": (0, 2, 9),
        "c_in": (1, 4, 40),
        "c_out": (1, 5, 40),
        "length": (1, 12, 70),
        "k": (1, 5, 9),
        "stride": (1, 4, 5),
        "padding": (0, 5, 9),
        "dilation": (1, 3, 5),
    },
    fits=_conv1d_fits,
    compiled_in=("k",),
)

LINEAR = Cases(
    make.linear,
    edges=(
        {"n": 2, "c_in": 70, "c_out": 5},
        {"n": 1, "c_in": 1, "c_out": 1},
        {"n": 0, "c_in": 3, "c_out": 2},
        {"n": 3, "c_in": 64, "c_out": 4},
        {"n": 1, "c_in": 129, "c_out": 3},
    ),
    large=(
        {"n": 33, "c_in": 300, "c_out": 257},
        {"n": 2, "c_in": 8704, "c_out": 130},
    ),
    draw={"n": (0, 3, 33), "c_in": (1, 140, 300), "c_out": (1, 5, 300)},
)

CLASSES = Cases(
    make.softmax,
    edges=({"n": 3, "c": 4}, {"n": 1, "c": 1}, {"n": 0, "c": 4}, {"n": 33, "c": 5}),
    large=({"n": 33, "c": 300}, {"n": 1030, "c": 4}),
    draw={"n": (0, 9, 300), "c": (1, 7, 60)},
)

CONV1D_STAT = Cases(  # as CONV1D, less what only the taps see: here every value costs the simulator barriers
    make.conv1d,
    edges=(
        {"n": 2, "c_in": 2, "c_out": 3, "length": 7, "k": 3},  # less than a part
        {"n": 1, "c_in": 1, "c_out": 1, "length": 1, "k": 1},  # no deviation
        {"n": 0, "c_in": 2, "c_out": 3, "length": 9, "k": 3},
        {"n": 1, "c_in": 1, "c_out": PART // 8, "length": 18, "k": 3, "stride": 2, "padding": 1, "dilation": 2},  # one
        {"n": 1, "c_in": 1, "c_out": PART // 8 + 1, "length": 17, "k": 2},  # two, and one that is shorter
    ),
    large=(
        *CONV1D.large,
        {"n": 2, "c_in": 70, "c_out": 256, "length": 1014, "k": 7},
    ),
    draw={**CONV1D.draw, "n": (0, 1, 9), "c_in": (1, 2, 40), "c_out": (1, 4, 40)},
    fits=_conv1d_fits,
    compiled_in=("k",),
)

LAYERNORM = Cases(
    make.layernorm,
    edges=(
        {"n": 2, "c": 3, "length": 11},
        {"n": 1, "c": 1, "length": 1},
        {"n": 0, "c": 2, "length": 3},
        {"n": 3, "c": 1, "length": 2},
        {"n": 1, "c": 16, "length": 33},
    ),
    large=({"n": 33, "c": 300, "length": 17}, {"n": 2, "c": 256, "length": 1008}),
    draw={"n": (0, 2, 9), "c": (1, 5, 60), "length": (1, 20, 130)},
)

MAXPOOL1D = Cases(
    make.maxpool1d,
    edges=(
        {"n": 2, "c": 3, "length": 11, "kernel_size": 3},
        {"n": 1, "c": 1, "length": 1, "kernel_size": 1},
        {"n": 0, "c": 2, "length": 5, "kernel_size": 3},
        {"n": 2, "c": 2, "length": 11, "kernel_size": 3, "stride": 2, "padding": 1},
        {"n": 1, "c": 2, "length": 9, "kernel_size": 4, "stride": 1},
        {"n": 1, "c": 2, "length": 9, "kernel_size": 2, "stride": 4},
    ),
    large=(
        {"n": 33, "c": 70, "length": 101, "kernel_size": 3},
        {"n": 5, "c": 300, "length": 67, "kernel_size": 5, "stride": 2, "padding": 2},
    ),
    draw={
        "n": (0, 2, 33),
        "c": (1, 4, 40),
        "length": (1, 15, 130),
        "kernel_size": (1, 6, 9),
        "stride": (1, 4, 9),
        "padding": (0, 3, 4),
    },
    fits=_maxpool1d_fits,
)

LAYERNORM_RELU_MAXPOOL1D = Cases(
    make.layernorm_relu_maxpool1d,
    edges=(
        {"n": 2, "c": 3, "length": 11, "kernel_size": 3},
        {"n": 1, "c": 1, "length": 1, "kernel_size": 1},
        {"n": 0, "c": 2, "length": 5, "kernel_size": 3},
        {"n": 1, "c": 4, "length": 9, "kernel_size": 4, "stride": 1},
        {"n": 1, "c": 4, "length": 9, "kernel_size": 2, "stride": 4},
    ),
    large=(
        {"n": 33, "c": 70, "length": 101, "kernel_size": 3},
        {"n": 2, "c": 256, "length": 1008, "kernel_size": 3},
        {"n": 5, "c": 300, "length": 67, "kernel_size": 5, "stride": 2},
    ),
    draw={
        "n": (0, 2, 33),
        "c": (1, 4, 40),
        "length": (1, 15, 130),
        "kernel_size": (1, 6, 9),
        "stride": (1, 4, 9),
    },
    fits=lambda s: s["length"] >= s["kernel_size"],
    compiled_in=("kernel_size",),
)

LAYERNORM_RELU_MAXPOOL1D_NLC = replace(LAYERNORM_RELU_MAXPOOL1D, make=make.channels_last(make.layernorm_relu_maxpool1d))

LINEAR_NLC = replace(
    LINEAR,
    make=make.channels_last(make.linear),
    edges=(
        {"n": 2, "c_in": 70, "c_out": 5},
        {"n": 1, "c_in": 1, "c_out": 1},
        {"n": 0, "c_in": 3, "c_out": 2},
        {"n": 3, "c_in": 64, "c_out": 4},
    ),
)

CONV1D_NLC = Cases(
    make.channels_last(make.conv1d),
    edges=(
        {"n": 2, "c_in": 3, "c_out": 5, "length": 11, "k": 3},
        {"n": 1, "c_in": 1, "c_out": 1, "length": 1, "k": 1},
        {"n": 0, "c_in": 2, "c_out": 3, "length": 9, "k": 3},
        {"n": 3, "c_in": 4, "c_out": 12, "length": 9, "k": 3},  # vectors; more than one tile, across inputs
        {"n": 1, "c_in": 8, "c_out": 4, "length": 7, "k": 7},
    ),
    large=(
        {"n": 33, "c_in": 70, "c_out": 65, "length": 31, "k": 7},
        {"n": 33, "c_in": 72, "c_out": 68, "length": 31, "k": 7},
        {"n": 3, "c_in": 300, "c_out": 129, "length": 40, "k": 3},
        {"n": 7, "c_in": 256, "c_out": 256, "length": 137, "k": 7},
        {"n": 130, "c_in": 20, "c_out": 4, "length": 5, "k": 5},
    ),
    draw={"n": (0, 2, 9), "c_in": (1, 5, 40), "c_out": (1, 9, 140), "length": (1, 12, 200), "k": (1, 3, 9)},
    fits=lambda s: s["length"] >= s["k"],
    compiled_in=("k",),
)

SMALL_CONV1 = {"n": 3, "depth": 70, "c_out": 256, "length": 1014, "k": 7}
ONE_HOT_CONV1D_NLC = Cases(
    make.one_hot_conv1d_nlc,
    edges=(
        {"n": 2, "length": 9, "k": 3, "depth": 5, "c_out": 6},
        {"n": 1, "length": 1, "k": 1, "depth": 1, "c_out": 1},
        {"n": 0, "length": 5, "k": 3, "depth": 3, "c_out": 4},
        {"n": 3, "length": 7, "k": 7, "depth": 4, "c_out": 3},  # one window
        {"n": 1, "length": 8, "k": 6, "depth": 2, "c_out": 5},  # both ends at once
    ),
    large=(
        {"n": 33, "length": 123, "k": 7, "depth": 70, "c_out": 65},
        {"n": 5, "length": 1014, "k": 7, "depth": 70, "c_out": 256},  # the network's: conv_block_1
        {"n": 2, "length": 40, "k": 5, "depth": 255, "c_out": 300},
    ),
    draw={"n": (0, 3, 33), "length": (1, 16, 130), "k": (1, 6, 9), "depth": (1, 9, 255), "c_out": (1, 9, 140)},
    fits=lambda s: s["length"] >= s["k"],
    compiled_in=("k", "depth"),
    examples=12,
)

ONE_HOT_CONV1D_POOLED_NLC = Cases(
    make.one_hot_conv1d_relu_maxpool1d_nlc,
    edges=(
        {"n": 2, "length": 9, "k": 3, "depth": 5, "c_out": 6, "pool_size": 3},
        {"n": 1, "length": 1, "k": 1, "depth": 1, "c_out": 1, "pool_size": 1},
        {"n": 0, "length": 5, "k": 3, "depth": 3, "c_out": 4, "pool_size": 2},
        {"n": 3, "length": 11, "k": 7, "depth": 4, "c_out": 8, "pool_size": 5},  # one window
    ),
    large=(
        *({**sizes, "pool_size": 3} for sizes in ONE_HOT_CONV1D_NLC.large[:2]),
        {"n": 2, "length": 40, "k": 5, "depth": 255, "c_out": 300, "pool_size": 2},
    ),
    draw={**ONE_HOT_CONV1D_NLC.draw, "pool_size": (1, 4, 6)},
    fits=lambda s: s["length"] >= s["k"] + s["pool_size"] - 1,
    compiled_in=("k", "depth", "pool_size", "c_out"),
    examples=12,
)

CASES = {
    "one_hot_nlc": Cases(
        make.one_hot,
        edges=({"n": 2, "length": 9, "depth": 7}, {"n": 1, "length": 1, "depth": 1}, {"n": 0, "length": 5, "depth": 3}),
        large=({"n": 33, "length": 301, "depth": 72}, {"n": 3, "length": 29, "depth": 300}),
        draw={"n": (0, 3, 33), "length": (0, 9, 300), "depth": (1, 9, 260)},
    ),
    "conv1d_nlc": CONV1D_NLC,
    "conv1d_relu_nlc": CONV1D_NLC,
    "conv1d_stat_nlc": CONV1D_NLC,
    "conv1d_relu_maxpool1d_nlc": Cases(
        make.channels_last(make.conv1d_relu_maxpool1d),
        edges=(
            {"n": 2, "c_in": 3, "c_out": 5, "length": 13, "k": 3, "pool_size": 3},  # 2 positions in no window
            {"n": 1, "c_in": 1, "c_out": 1, "length": 1, "k": 1, "pool_size": 1},
            {"n": 0, "c_in": 2, "c_out": 3, "length": 9, "k": 3, "pool_size": 2},
            {"n": 3, "c_in": 4, "c_out": 12, "length": 17, "k": 2, "pool_size": 5},
        ),
        large=(
            *({**sizes, "pool_size": 3} for sizes in CONV1D_NLC.large[:-1]),
            {"n": 2, "c_in": 20, "c_out": 40, "length": 300, "k": 3, "pool_size": 64},
        ),
        draw={**CONV1D_NLC.draw, "pool_size": (1, 3, 4)},
        fits=lambda s: s["length"] - s["k"] + 1 >= s["pool_size"],
        compiled_in=("k", "pool_size"),
        examples=12,
    ),
    "linear_nlc": LINEAR_NLC,
    "linear_relu_nlc": LINEAR_NLC,
    "one_hot": Cases(
        make.one_hot,
        edges=(
            {"n": 2, "length": 9, "depth": 7},
            {"n": 1, "length": 1, "depth": 1},
            {"n": 0, "length": 5, "depth": 3},
            {"n": 1, "length": 3, "depth": 300},  # deeper than a uint8 counts
        ),
        large=({"n": 33, "length": 301, "depth": 70}, {"n": 5, "length": 129, "depth": 255}),
        draw={"n": (0, 3, 33), "length": (0, 9, 300), "depth": (1, 9, 260)},
    ),
    "one_hot_conv1d": Cases(
        make.one_hot_conv1d,
        edges=(
            {"n": 2, "depth": 7, "c_out": 5, "length": 11, "k": 3},
            {"n": 1, "depth": 1, "c_out": 1, "length": 1, "k": 1},
            {"n": 0, "depth": 3, "c_out": 2, "length": 9, "k": 3},
            {"n": 1, "depth": 3, "c_out": 17, "length": 7, "k": 7},
            {"n": 1, "depth": 300, "c_out": 3, "length": 9, "k": 4},  # deeper than a uint8 counts
        ),
        large=({"n": 33, "depth": 70, "c_out": 65, "length": 31, "k": 7}, SMALL_CONV1),
        draw={"n": (0, 2, 9), "depth": (1, 5, 260), "c_out": (1, 5, 70), "length": (1, 12, 130), "k": (1, 5, 9)},
        fits=lambda s: s["length"] >= s["k"],
    ),
    "conv1d": CONV1D,
    "conv1d_relu": CONV1D,
    "layernorm": LAYERNORM,
    "relu": Cases(
        make.relu,
        edges=(
            {"n": 2, "c": 3, "length": 11},
            {"n": 1, "c": 1, "length": 1},
            {"n": 0, "c": 2, "length": 3},
            {"n": 1, "c": 1, "length": 129},
        ),
        large=({"n": 33, "c": 300, "length": 17},),
        draw={"n": (0, 3, 33), "c": (0, 5, 60), "length": (0, 20, 130)},
    ),
    "maxpool1d": MAXPOOL1D,
    "collapse": Cases(
        make.relu,
        edges=({"n": 2, "c": 3, "length": 11}, {"n": 1, "c": 1, "length": 1}, {"n": 0, "c": 2, "length": 3}),
        large=({"n": 33, "c": 300, "length": 17},),
        draw={"n": (0, 3, 33), "c": (0, 5, 60), "length": (0, 20, 130)},
    ),
    "linear": LINEAR,
    "linear_relu": LINEAR,
    "conv1d_stat": CONV1D_STAT,
    "layernorm_relu": replace(LAYERNORM, make=make.layernorm_relu),
    "relu_maxpool1d": MAXPOOL1D,
    "conv1d_relu_maxpool1d": Cases(
        make.conv1d_relu_maxpool1d,
        edges=(
            {"n": 2, "c_in": 3, "c_out": 5, "length": 12, "k": 3, "pool_size": 3},
            {"n": 1, "c_in": 1, "c_out": 1, "length": 1, "k": 1, "pool_size": 1},
            {"n": 0, "c_in": 2, "c_out": 3, "length": 9, "k": 3, "pool_size": 2},
            {"n": 1, "c_in": 2, "c_out": 3, "length": 11, "k": 7, "pool_size": 3, "pool_stride": 1},  # overlapping
            {"n": 1, "c_in": 2, "c_out": 2, "length": 15, "k": 2, "pool_size": 2, "pool_stride": 5},  # with gaps
            {"n": 2, "c_in": 2, "c_out": 3, "length": 17, "k": 3, "pool_size": 2, "stride": 2, "padding": 1},
            {"n": 1, "c_in": 1, "c_out": 2, "length": 9, "k": 3, "pool_size": 3, "padding": 4, "dilation": 3},
            {"n": 1, "c_in": 1, "c_out": 2, "length": 2, "k": 2, "pool_size": 3, "padding": 5, "dilation": 2},
        ),
        large=(
            {"n": 5, "c_in": 70, "c_out": 65, "length": 100, "k": 7, "pool_size": 3},
            {"n": 2, "c_in": 256, "c_out": 256, "length": 37, "k": 7, "pool_size": 3},
            {"n": 5, "c_in": 33, "c_out": 130, "length": 67, "k": 5, "pool_size": 3, "pool_stride": 2, "stride": 2}
            | {"padding": 7, "dilation": 3},
        ),
        draw={**CONV1D.draw, "k": (1, 4, 7), "pool_size": (1, 3, 4), "pool_stride": (1, 4, 5)},
        fits=_conv1d_relu_maxpool1d_fits,
        compiled_in=("k", "stride", "padding", "dilation", "pool_size", "pool_stride"),
        examples=12,
    ),
    "layernorm_relu_maxpool1d": LAYERNORM_RELU_MAXPOOL1D,
    "layernorm_relu_maxpool1d_nlc": LAYERNORM_RELU_MAXPOOL1D_NLC,
    CHAIN: CHAIN1D,
    "linear_relu_linear": TWO_LINEARS,
    "one_hot_conv1d_nlc": ONE_HOT_CONV1D_NLC,
    "one_hot_conv1d_stat_nlc": replace(ONE_HOT_CONV1D_NLC, dtype=np.float64),
    "one_hot_conv1d_relu_maxpool1d_nlc": ONE_HOT_CONV1D_POOLED_NLC,
    "one_hot_conv1d_layernorm_relu_maxpool1d_nlc": replace(
        ONE_HOT_CONV1D_POOLED_NLC, make=make.one_hot_conv1d_layernorm_relu_maxpool1d_nlc
    ),
    "softmax": CLASSES,
    "argmax": replace(CLASSES, make=make.argmax),
    **TRANSFORMER,
    **IMAGE_CASES,
    **GRADIENTS,
}


LIMITS: dict[str, Callable[[Sizes], bool]] = {
    **dict.fromkeys(("cpu_direct", "direct"), on_tensor_cores),
    **dict.fromkeys((f"{by}_{name}" for by in ("mma", "wgmma") for name in TENSOR_PRECISIONS), on_tensor_cores),
    **{
        f"small_batch_{of}": lambda sizes: sizes.get("pool_size", 3) == 3 and sizes["k"] <= 7
        for of in TENSOR_PRECISIONS
    },
    **{
        f"wgmma_sparse_{of}": lambda sizes: (
            sizes.get("pool_size", 3) == 3
            and all(sizes.get(name, least) == least for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)))
        )
        for of in SPARSE_PRECISIONS
    },
    **DIRECT_MMA,
    # Of a few values beside the given mean, too much may lie in the digits that 16 bits leave out.
    **{
        f"vectorized_{name}": lambda sizes: sizes["c"] > 1 or sizes["n"] * sizes.get("length", 0) == 0
        for name in HALF_PRECISIONS
    },
    "cpu_gemm": lambda sizes: sizes.get("groups", 1) == 1 or sizes["c_in"] > 1,
    **{"winograd": moves_by_one, "winograd_cpu": moves_by_one_in_groups, "winograd_rows_cpu": rows_filtered},
}
"""By label: which sizes it takes, or can be held to its tolerance at, where not all."""


def takes(label: str, sizes: Sizes) -> bool:
    """Whether a variant of that label takes these sizes."""
    return label not in LIMITS or LIMITS[label](sizes)
