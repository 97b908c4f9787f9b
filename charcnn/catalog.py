"""The table of operators, their variants and the levels. Everything that lists them enumerates this one.

Rows stand in the order of the story. A new variant is a kernel, a launcher and one row of VARIANTS; a new level
is one file under charcnn/levels and one row of LEVELS in `charcnn.steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from charcnn.ops import (
    argmax,
    chain,
    collapse,
    conv1d,
    maxpool1d,
    one_hot,
    one_hot_nlc,
    reference,
    relu,
    softmax,
    spread,
    token_conv1d,
)
from charcnn.ops.common.formats import FORMATS, HALVES
from charcnn.ops.conv1d import mma
from charcnn.ops.conv1d.wgmma import variants
from charcnn.ops.layernorm import layernorm, relu_maxpool1d, relu_maxpool1d_nlc, relu_maxpool1d_nlc_formats
from charcnn.ops.linear import linear, linear_kn, linear_relu_linear
from charcnn.steps import LEVELS, PRECISIONS, Level, level, spoken

__all__ = [
    "CHAIN",
    "EXACT",
    "FLOAT32",
    "LEVELS",
    "OPERATORS",
    "PRECISIONS",
    "TECHNIQUES",
    "VARIANTS",
    "Level",
    "Operator",
    "Variant",
    "level",
    "operator",
    "spoken",
    "tolerance",
]

FLOAT32 = 2e-6
"""Tolerance of float32 arithmetic: a few roundings of 6e-8, grown by sums of up to 8,704 terms taken in parts."""

EXACT = 0.0
"""Tolerance where values are only moved, picked or counted."""


@dataclass(frozen=True)
class Operator:
    """One operator, or a fused chain of them: what it computes, and how close a variant must come."""

    name: str
    reference: Callable[..., Any]
    tolerance: float
    """Largest ||out - ref|| / ||ref|| against the float64 reference."""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator."""

    operator: str
    technique: str
    device: str
    """cpu or cuda"""
    launcher: Callable[..., Any]
    tolerance: float | None = None
    """Overrides the operator's."""
    hopper: bool = False
    """Needs Hopper's tensor cores: neither another GPU nor the simulator will do."""
    ampere: bool = False
    """Needs tensor cores of compute capability 8.0 or later: the simulator will not do."""

    @property
    def tensor_cores(self) -> bool:
        """Whether it needs tensor cores, of some kind."""
        return self.hopper or self.ampere

    @property
    def name(self) -> str:
        """As imported from charcnn.ops: conv1d_naive."""
        return f"{self.operator}_{self.technique}"


CHAIN = "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat"
"""The strong fusion of blocks 3 to 6."""

TECHNIQUES = {
    "loops": "compiled plain loops on one CPU core",
    "lowered": "all CPU cores: a GEMM over overlapping rows by a vector micro-kernel; of one-hot, a gather of weights",
    "naive": "CUDA, one thread an output (layernorm: one block an input), all operands in global memory",
    "whole": "CUDA, a chain of convolutions in one kernel, one block an input, all features in shared memory",
    "pairs": "CUDA, a chain of convolutions two a kernel, in tiles of positions whose edges are computed twice",
    "coalesced": "CUDA, one thread an output, neighbouring threads on neighbouring channels",
    "tiled": "CUDA, a matrix product in tiles of shared memory, one thread an output",
    "register_tiled": "the same with a tile of sums in each thread's registers",
    "vectorized": "the same with loads and stores of 128 bits",
    "double_buffered": "the same with the next stage's copies under way (cp.async: compute capability 8.0)",
    "winograd": "the same on transformed features and weights, with about half the multiplications",
    "winograd_lowered": "all CPU cores: lowered, on transformed features and weights, with about half the products",
    "gather": "CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied",
    "gather_fp16": "the same with sums, LayerNorm and features in half precision",
    "gather_bf16": "the same with features in bf16",
    "lags": "CUDA, for token ids: sums looked up by character, and by pair of characters and their distance",
    "lag_sums": "the same with a warp an input, and tables in float32 in shared memory",
    "fp16": "CUDA, features in half precision, computed in float32",
    "bf16": "the same with features in bf16",
    "mma_fp16": "CUDA, tensor cores of any GPU since compute capability 8.0: fp16, sums in float32",
    "mma_bf16": "the same in bf16",
    "mma_tf32": "the same in TF32: of float32 numbers, 11 bits are multiplied",
    "mma_fp16x3": "the same in fp16, a number as the sum of two: float32's accuracy from three products",
    "wgmma_fp16": "Hopper's tensor cores, fed by its copy engine: fp16, sums in float32",
    "wgmma_bf16": "the same in bf16",
    "wgmma_tf32": "the same in TF32",
    "wgmma_fp16x3": "the same with each number as two of fp16, in three products, for float32's accuracy",
    "wgmma_fp8": "the same in e4m3, weights and features scaled to its range, without infinities",
    "spread_fp16": "tensor cores, for a few inputs: small parts over the whole GPU, each loading all at once: fp16",
    "spread_bf16": "the same in bf16",
}

OPERATORS = (
    Operator("one_hot", reference.one_hot, EXACT),
    Operator("conv1d", reference.conv1d, FLOAT32),
    Operator("conv1d_relu", reference.conv1d_relu, FLOAT32),
    Operator("layernorm", reference.layernorm, FLOAT32),
    Operator("relu", reference.relu, EXACT),
    Operator("maxpool1d", reference.maxpool1d, EXACT),
    Operator("collapse", reference.collapse, EXACT),
    Operator("linear", reference.linear, FLOAT32),
    Operator("linear_relu", reference.linear_relu, FLOAT32),
    Operator("conv1d_stat", reference.conv1d_stat, FLOAT32),
    Operator("layernorm_relu", reference.layernorm_relu, FLOAT32),
    Operator("relu_maxpool1d", reference.relu_maxpool1d, EXACT),
    Operator("conv1d_relu_maxpool1d", reference.conv1d_relu_maxpool1d, FLOAT32),
    Operator("layernorm_relu_maxpool1d", reference.layernorm_relu_maxpool1d, FLOAT32),
    Operator(CHAIN, reference.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat, FLOAT32),
    Operator("linear_relu_linear", reference.linear_relu_linear, FLOAT32),
    Operator("one_hot_conv1d", reference.one_hot_conv1d, FLOAT32),
    Operator("one_hot_nlc", reference.one_hot_nlc, EXACT),
    Operator("conv1d_nlc", reference.conv1d_nlc, FLOAT32),
    Operator("conv1d_relu_nlc", reference.conv1d_relu_nlc, FLOAT32),
    Operator("conv1d_relu_maxpool1d_nlc", reference.conv1d_relu_maxpool1d_nlc, FLOAT32),
    Operator("conv1d_stat_nlc", reference.conv1d_stat_nlc, FLOAT32),
    Operator("layernorm_relu_maxpool1d_nlc", reference.layernorm_relu_maxpool1d_nlc, FLOAT32),
    Operator("linear_nlc", reference.linear_nlc, FLOAT32),
    Operator("linear_relu_nlc", reference.linear_relu_nlc, FLOAT32),
    Operator("one_hot_conv1d_nlc", reference.one_hot_conv1d_nlc, FLOAT32),
    Operator("one_hot_conv1d_stat_nlc", reference.one_hot_conv1d_stat_nlc, FLOAT32),
    Operator("one_hot_conv1d_relu_maxpool1d_nlc", reference.one_hot_conv1d_relu_maxpool1d_nlc, FLOAT32),
    Operator(
        "one_hot_conv1d_layernorm_relu_maxpool1d_nlc", reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc, FLOAT32
    ),
    Operator("softmax", reference.softmax, FLOAT32),
    Operator("argmax", reference.argmax, EXACT),
)

VARIANTS = (
    Variant("one_hot", "loops", "cpu", one_hot.one_hot_loops),
    Variant("one_hot", "naive", "cuda", one_hot.one_hot_naive),
    Variant("conv1d", "loops", "cpu", conv1d.conv1d_loops),
    Variant("conv1d", "lowered", "cpu", conv1d.conv1d_lowered),
    Variant("conv1d", "naive", "cuda", conv1d.conv1d_naive),
    Variant("conv1d_relu", "lowered", "cpu", conv1d.conv1d_relu_lowered),
    Variant("conv1d_relu", "naive", "cuda", conv1d.conv1d_relu_naive),
    Variant("layernorm", "loops", "cpu", layernorm.layernorm_loops),
    Variant("layernorm", "naive", "cuda", layernorm.layernorm_naive),
    Variant("relu", "loops", "cpu", relu.relu_loops),
    Variant("relu", "naive", "cuda", relu.relu_naive),
    Variant("maxpool1d", "loops", "cpu", maxpool1d.maxpool1d_loops),
    Variant("maxpool1d", "naive", "cuda", maxpool1d.maxpool1d_naive),
    Variant("collapse", "loops", "cpu", collapse.collapse_loops),
    Variant("collapse", "naive", "cuda", collapse.collapse_naive),
    Variant("linear", "loops", "cpu", linear.linear_loops),
    Variant("linear", "lowered", "cpu", linear.linear_lowered),
    Variant("linear", "naive", "cuda", linear.linear_naive),
    Variant("linear_relu", "lowered", "cpu", linear.linear_relu_lowered),
    Variant("linear_relu", "naive", "cuda", linear.linear_relu_naive),
    Variant("conv1d_stat", "naive", "cuda", conv1d.conv1d_stat_naive),
    Variant("layernorm_relu", "naive", "cuda", layernorm.layernorm_relu_naive),
    Variant("relu_maxpool1d", "naive", "cuda", maxpool1d.relu_maxpool1d_naive),
    Variant("conv1d_relu_maxpool1d", "naive", "cuda", conv1d.conv1d_relu_maxpool1d_naive),
    Variant("layernorm_relu_maxpool1d", "naive", "cuda", relu_maxpool1d.layernorm_relu_maxpool1d_naive),
    Variant(CHAIN, "whole", "cuda", chain.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole),
    Variant(CHAIN, "pairs", "cuda", chain.conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs),
    Variant("linear_relu_linear", "naive", "cuda", linear_relu_linear.linear_relu_linear_naive),
    Variant("one_hot_conv1d", "lowered", "cpu", token_conv1d.one_hot_conv1d_lowered),
    Variant("one_hot_nlc", "coalesced", "cuda", one_hot_nlc.one_hot_nlc_coalesced),
    Variant("conv1d_nlc", "coalesced", "cuda", conv1d.conv1d_nlc_coalesced),
    Variant("conv1d_nlc", "tiled", "cuda", conv1d.conv1d_nlc_tiled),
    Variant("conv1d_nlc", "register_tiled", "cuda", conv1d.conv1d_nlc_register_tiled),
    Variant("conv1d_nlc", "vectorized", "cuda", conv1d.conv1d_nlc_vectorized),
    Variant("conv1d_nlc", "double_buffered", "cuda", conv1d.conv1d_nlc_double_buffered),
    Variant("conv1d_nlc", "winograd", "cuda", conv1d.conv1d_nlc_winograd),
    Variant("conv1d_nlc", "winograd_lowered", "cpu", conv1d.conv1d_nlc_winograd_lowered),
    Variant("conv1d_relu_nlc", "double_buffered", "cuda", conv1d.conv1d_relu_nlc_double_buffered),
    Variant("conv1d_relu_nlc", "winograd", "cuda", conv1d.conv1d_relu_nlc_winograd),
    Variant("conv1d_relu_nlc", "winograd_lowered", "cpu", conv1d.conv1d_relu_nlc_winograd_lowered),
    Variant("conv1d_relu_maxpool1d_nlc", "double_buffered", "cuda", conv1d.conv1d_relu_maxpool1d_nlc_double_buffered),
    Variant("conv1d_relu_maxpool1d_nlc", "winograd", "cuda", conv1d.conv1d_relu_maxpool1d_nlc_winograd),
    Variant("conv1d_relu_maxpool1d_nlc", "winograd_lowered", "cpu", conv1d.conv1d_relu_maxpool1d_nlc_winograd_lowered),
    Variant("conv1d_stat_nlc", "double_buffered", "cuda", conv1d.conv1d_stat_nlc_double_buffered),
    Variant("conv1d_stat_nlc", "winograd", "cuda", conv1d.conv1d_stat_nlc_winograd),
    Variant(
        "layernorm_relu_maxpool1d_nlc",
        "coalesced",
        "cuda",
        relu_maxpool1d_nlc.layernorm_relu_maxpool1d_nlc_coalesced,
    ),
    Variant("linear_nlc", "double_buffered", "cuda", linear_kn.linear_nlc_double_buffered),
    Variant("linear_relu_nlc", "double_buffered", "cuda", linear_kn.linear_relu_nlc_double_buffered),
    Variant("one_hot_conv1d_nlc", "gather", "cuda", token_conv1d.one_hot_conv1d_nlc_gather),
    Variant("one_hot_conv1d_stat_nlc", "lags", "cuda", token_conv1d.one_hot_conv1d_stat_nlc_lags),
    Variant("one_hot_conv1d_stat_nlc", "lag_sums", "cuda", token_conv1d.one_hot_conv1d_stat_nlc_lag_sums),
    Variant(
        "one_hot_conv1d_relu_maxpool1d_nlc", "gather", "cuda", token_conv1d.one_hot_conv1d_relu_maxpool1d_nlc_gather
    ),
    Variant(
        "one_hot_conv1d_relu_maxpool1d_nlc",
        "gather_fp16",
        "cuda",
        token_conv1d.one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16,
        HALVES["fp16"].tolerance,
    ),
    Variant(
        "one_hot_conv1d_relu_maxpool1d_nlc",
        "gather_bf16",
        "cuda",
        token_conv1d.one_hot_conv1d_relu_maxpool1d_nlc_gather_bf16,
        HALVES["bf16"].tolerance,
    ),
    Variant(
        "one_hot_conv1d_layernorm_relu_maxpool1d_nlc",
        "gather",
        "cuda",
        token_conv1d.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
    ),
    Variant(
        "one_hot_conv1d_layernorm_relu_maxpool1d_nlc",
        "gather_fp16",
        "cuda",
        token_conv1d.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_fp16,
        HALVES["fp16"].tolerance,
    ),
    Variant(
        "one_hot_conv1d_layernorm_relu_maxpool1d_nlc",
        "gather_bf16",
        "cuda",
        token_conv1d.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_bf16,
        HALVES["bf16"].tolerance,
    ),
    Variant(
        "layernorm_relu_maxpool1d_nlc",
        "fp16",
        "cuda",
        relu_maxpool1d_nlc_formats.layernorm_relu_maxpool1d_nlc_fp16,
        HALVES["fp16"].tolerance,
    ),
    Variant(
        "layernorm_relu_maxpool1d_nlc",
        "bf16",
        "cuda",
        relu_maxpool1d_nlc_formats.layernorm_relu_maxpool1d_nlc_bf16,
        HALVES["bf16"].tolerance,
    ),
    *(
        Variant(operator, f"mma_{name}", "cuda", launcher, FORMATS[name].tolerance, ampere=True)
        for operator, row in mma.variants.VARIANTS.items()
        for name, launcher in row.items()
    ),
    *(
        Variant(operator, f"wgmma_{name}", "cuda", launcher, FORMATS[name].tolerance, hopper=True)
        for operator, row in variants.VARIANTS.items()
        for name, launcher in row.items()
    ),
    *(
        Variant(operator, f"spread_{name}", "cuda", launcher, FORMATS[name].tolerance, hopper=True)
        for operator, row in spread.VARIANTS.items()
        for name, launcher in row.items()
    ),
    Variant("softmax", "loops", "cpu", softmax.softmax_loops),
    Variant("softmax", "naive", "cuda", softmax.softmax_naive),
    Variant("argmax", "loops", "cpu", argmax.argmax_loops),
    Variant("argmax", "naive", "cuda", argmax.argmax_naive),
)


def operator(name: str) -> Operator:
    """The operator's row."""
    return next(row for row in OPERATORS if row.name == name)


def tolerance(variant: Variant) -> float:
    """Largest ||out - ref|| / ||ref|| of a variant: its own, or its operator's."""
    return operator(variant.operator).tolerance if variant.tolerance is None else variant.tolerance
