"""The tables of operators, techniques and variants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from charcnn.aliases import Function
from charcnn.ops.common.precision import HALF_PRECISIONS, TENSOR_PRECISIONS

FLOAT32 = 2e-6
"""Tolerance of float32 arithmetic: a few roundings of 6e-8, grown by sums of up to 8,704 terms taken in parts."""

FILTERED = 4e-6
"""Of Winograd's filtering along both axes, whose transforms let roundings grow along each: `ERROR` of its plan."""

EXACT = 0.0
"""Tolerance where values are only moved, picked or counted."""


@dataclass(frozen=True)
class Operator:
    """One operator, or a fused chain of them: what it computes, and how close a variant must come."""

    name: str
    tolerance: float
    """Largest ||out - ref|| / ||ref|| against the float64 reference."""

    @property
    def reference(self) -> Function:
        """In float64."""
        return getattr(import_module("charcnn.ops.reference"), self.name)


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator, in one precision."""

    operator: str
    technique: str
    device: str
    """cpu or cuda"""
    precision: str | None = None
    """What its launcher's argument of that name says; None: it has none, and computes in float32."""
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
    def function(self) -> str:
        """The name in charcnn.ops: the operator, then the technique."""
        return f"{self.operator}_{self.technique}"

    @property
    def label(self) -> str:
        """Technique and precision: naive, wgmma_fp16."""
        return f"{self.technique}_{self.precision}" if self.precision else self.technique

    @property
    def name(self) -> str:
        """Of this row alone: the function, then the precision, where it has one."""
        return f"{self.operator}_{self.label}"

    @property
    def launcher(self) -> Function:
        """The function, in this precision; its module is imported here."""
        launcher: Function = getattr(import_module("charcnn.ops"), self.function)
        return partial(launcher, precision=self.precision) if self.precision else launcher


CHAIN = "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat"
"""The strong fusion of blocks 3 to 6."""

IMAGE_CHAIN = "conv2d_relu_maxpool2d_conv2d_relu_maxpool2d"
"""The strong fusion of AlexNet's first two layers."""

TECHNIQUES = {
    "loops": "compiled plain loops on one CPU core",
    "cpu_gemm": "all CPU cores: a GEMM over overlapping rows by a vector micro-kernel",
    "cpu_direct": "all CPU cores, few input channels: neighbouring positions fill the vector registers",
    "cpu_gather": "all CPU cores, for token ids: of the weights, the rows of the characters are added up",
    "cpu_vector": "all CPU cores, channels last: neighbouring values fill the vector registers",
    "naive": "CUDA, one thread an output (where a row is summed, one block an input), all operands in global memory",
    "direct": "CUDA, few input channels: a block a strip of an image in shared memory, a thread a tile of its outputs",
    "direct_mma": "CUDA, few input channels: an image in shared memory, its weights in registers, by mma.sync",
    "whole": "CUDA, a chain of convolutions in one kernel, one block an input, all features in shared memory",
    "pairs": "CUDA, a chain of convolutions two a kernel, in tiles of positions whose edges are computed twice",
    "tiles": "CUDA, a chain over images in one kernel, one block a tile, whose halo is computed again",
    "rolling": "CUDA, as tiles, by blocks that walk down an image, and keep of each map the rows that are read again",
    "coalesced": "CUDA, one thread an output, neighbouring threads on neighbouring channels",
    "tiled": "CUDA, a matrix product in tiles of shared memory, one thread an output",
    "register_tiled": "CUDA, as tiled, with a tile of sums in each thread's registers",
    "vectorized": "CUDA, as register_tiled, with loads and stores of 128 bits",
    "double_buffered": "CUDA, as vectorized, with the next stage's copies under way (cp.async: compute capability 8.0)",
    "winograd": "CUDA, double_buffered's kernel on transformed features and weights: half to a sixth of the products",
    "winograd_cpu": "all CPU cores: cpu_gemm's kernel on transformed features and weights, about half the products",
    "winograd_rows_cpu": "as cpu_direct, with rows filtered four outputs at a time: two fifths of the products at best",
    "gather": "CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied",
    "warp_gather": "CUDA, as gather, each warp by itself, with sums, LayerNorm and features in the precision",
    "lags": "CUDA, for token ids: sums looked up by character, and by pair of characters and their distance",
    "lag_sums": "CUDA, as lags, with a warp an input, and tables in float32 in shared memory",
    "mma": "CUDA, tensor cores of any GPU since compute capability 8.0, by mma.sync; sums in float32",
    "wgmma": "Hopper's tensor cores, by wgmma, fed by TMA; sums in float32",
    "small_batch": "tensor cores, for a few inputs: small parts over the whole GPU, each loading all at once",
}

OPERATORS = (
    Operator("one_hot", EXACT),
    Operator("conv1d", FLOAT32),
    Operator("conv1d_relu", FLOAT32),
    Operator("layernorm", FLOAT32),
    Operator("relu", EXACT),
    Operator("maxpool1d", EXACT),
    Operator("collapse", EXACT),
    Operator("linear", FLOAT32),
    Operator("linear_relu", FLOAT32),
    Operator("conv1d_stat", FLOAT32),
    Operator("layernorm_relu", FLOAT32),
    Operator("relu_maxpool1d", EXACT),
    Operator("conv1d_relu_maxpool1d", FLOAT32),
    Operator("layernorm_relu_maxpool1d", FLOAT32),
    Operator(CHAIN, FLOAT32),
    Operator("linear_relu_linear", FLOAT32),
    Operator("one_hot_conv1d", FLOAT32),
    Operator("one_hot_nlc", EXACT),
    Operator("conv1d_nlc", FLOAT32),
    Operator("conv1d_relu_nlc", FLOAT32),
    Operator("conv1d_relu_maxpool1d_nlc", FLOAT32),
    Operator("conv1d_stat_nlc", FLOAT32),
    Operator("layernorm_relu_maxpool1d_nlc", FLOAT32),
    Operator("linear_nlc", FLOAT32),
    Operator("linear_relu_nlc", FLOAT32),
    Operator("one_hot_conv1d_nlc", FLOAT32),
    Operator("one_hot_conv1d_stat_nlc", FLOAT32),
    Operator("one_hot_conv1d_relu_maxpool1d_nlc", FLOAT32),
    Operator("one_hot_conv1d_layernorm_relu_maxpool1d_nlc", FLOAT32),
    Operator("softmax", FLOAT32),
    Operator("argmax", EXACT),
    Operator("collapse_linear", FLOAT32),
    Operator("linear_softmax", FLOAT32),
    Operator("linear_argmax", EXACT),
    Operator("conv2d", FLOAT32),
    Operator("tanh", FLOAT32),
    Operator("gelu", FLOAT32),
    Operator("sigmoid", FLOAT32),
    Operator("leaky_relu", FLOAT32),
    Operator("maxout", EXACT),
    Operator("batchnorm2d", FLOAT32),
    Operator("maxpool2d", EXACT),
    Operator("avgpool2d", FLOAT32),
    Operator("global_avgpool2d", FLOAT32),
    Operator("local_response_norm", FLOAT32),
    Operator("conv2d_relu", FLOAT32),
    Operator("conv2d_tanh", FLOAT32),
    Operator("conv2d_sigmoid", FLOAT32),
    Operator("conv2d_leaky_relu", FLOAT32),
    Operator("conv2d_relu_maxpool2d", FLOAT32),
    Operator("conv2d_tanh_maxpool2d", FLOAT32),
    Operator("conv2d_relu_global_avgpool2d", FLOAT32),
    Operator(IMAGE_CHAIN, FLOAT32),
    Operator("batchnorm2d_relu", FLOAT32),
    Operator("linear_tanh", FLOAT32),
    Operator("linear_gelu", FLOAT32),
    Operator("linear_sigmoid", FLOAT32),
    Operator("linear_leaky_relu", FLOAT32),
    Operator("linear_maxout", FLOAT32),
    Operator("linear_gelu_linear", FLOAT32),
    Operator("conv2d_nhwc", FLOAT32),
    Operator("conv2d_relu_nhwc", FLOAT32),
    Operator("maxpool2d_nhwc", EXACT),
    Operator("avgpool2d_nhwc", FLOAT32),
    Operator("global_avgpool2d_nhwc", FLOAT32),
    Operator("local_response_norm_nhwc", FLOAT32),
    Operator("pixels", EXACT),
    Operator("pixels_nhwc", EXACT),
)

UNSCALED = ("fp16", "bf16", "tf32", "fp16x3")
"""Precisions of tensor cores whose features need no scales."""


MULTIPLYING = (
    "conv1d_nlc", "conv1d_relu_nlc", "conv1d_relu_maxpool1d_nlc", "conv1d_stat_nlc", "linear_nlc", "linear_relu_nlc",
)  # fmt: skip
"""Operators that tensor cores compute, by the same kernels."""

STEPPING = (
    "coalesced", "tiled", "register_tiled", "vectorized", "winograd", "winograd_cpu", "small_batch",
)  # fmt: skip
"""Techniques of conv1d_nlc and conv1d_relu_nlc whose window takes each position in turn: no stride, padding, or
dilation."""

IMAGES = ("conv2d_nhwc", "conv2d_relu_nhwc")
"""Operators on images that tensor cores compute."""

DIRECT = ("conv2d", "conv2d_relu", "conv2d_tanh")
"""Operators on images, channels first, that tensor cores compute."""

BETWEEN = (
    "maxpool2d_nhwc", "avgpool2d_nhwc", "global_avgpool2d_nhwc", "local_response_norm_nhwc", "pixels_nhwc",
)  # fmt: skip
"""Operators that stand between convolutions of images, or before them."""

CPU = ("loops", "cpu_gemm", "cpu_direct", "cpu_gather", "winograd_cpu", "winograd_rows_cpu", "cpu_vector")
"""Techniques that run there."""


def _float32(operator: str, *techniques: str) -> Iterator[Variant]:
    """A row a technique."""
    for technique in techniques:
        yield Variant(operator, technique, "cpu" if technique in CPU else "cuda")


def _in(operator: str, technique: str, precisions: Iterable[str], **needs: bool) -> Iterator[Variant]:
    """A row a precision, with its own tolerance."""
    for name in precisions:
        yield Variant(operator, technique, "cuda", name, TENSOR_PRECISIONS[name].tolerance, **needs)


VARIANTS = (
    *_float32("one_hot", "loops", "naive"),
    *_float32("conv1d", "loops", "cpu_gemm", "naive"),
    *_float32("conv1d_relu", "cpu_gemm", "naive"),
    *_float32("layernorm", "loops", "naive"),
    *_float32("relu", "loops", "naive"),
    *_float32("maxpool1d", "loops", "naive"),
    *_float32("collapse", "loops", "naive"),
    *_float32("linear", "loops", "cpu_gemm", "naive"),
    *_float32("linear_relu", "cpu_gemm", "naive"),
    *_float32("conv1d_stat", "naive"),
    *_float32("layernorm_relu", "naive"),
    *_float32("relu_maxpool1d", "naive"),
    *_float32("conv1d_relu_maxpool1d", "naive"),
    *_float32("layernorm_relu_maxpool1d", "naive"),
    *_float32(CHAIN, "whole", "pairs"),
    *_float32("linear_relu_linear", "naive"),
    *_float32("one_hot_conv1d", "cpu_gather"),
    *_float32("one_hot_nlc", "coalesced"),
    *_float32("conv1d_nlc", "coalesced", "tiled", "register_tiled", "vectorized"),
    *_float32("conv1d_nlc", "double_buffered", "winograd", "winograd_cpu"),
    *_float32("conv1d_relu_nlc", "double_buffered", "winograd", "winograd_cpu"),
    *_float32("conv1d_relu_maxpool1d_nlc", "double_buffered", "winograd", "winograd_cpu"),
    *_float32("conv1d_stat_nlc", "double_buffered", "winograd"),
    *_float32("layernorm_relu_maxpool1d_nlc", "coalesced"),
    *_float32("linear_nlc", "double_buffered"),
    *_float32("linear_relu_nlc", "double_buffered"),
    *_float32("one_hot_conv1d_nlc", "gather"),
    *_float32("one_hot_conv1d_stat_nlc", "lags", "lag_sums"),
    *_float32("one_hot_conv1d_relu_maxpool1d_nlc", "gather"),
    *_in("one_hot_conv1d_relu_maxpool1d_nlc", "warp_gather", HALF_PRECISIONS),
    *_float32("one_hot_conv1d_layernorm_relu_maxpool1d_nlc", "gather"),
    *_in("one_hot_conv1d_layernorm_relu_maxpool1d_nlc", "warp_gather", HALF_PRECISIONS),
    *_in("layernorm_relu_maxpool1d_nlc", "vectorized", HALF_PRECISIONS),
    *(row for name in MULTIPLYING for row in _in(name, "mma", TENSOR_PRECISIONS, ampere=True)),
    *(row for name in MULTIPLYING for row in _in(name, "wgmma", TENSOR_PRECISIONS, hopper=True)),
    *(row for name in MULTIPLYING[:3] for row in _in(name, "small_batch", TENSOR_PRECISIONS, hopper=True)),
    *(row for name in IMAGES for row in _in(name, "mma", TENSOR_PRECISIONS, ampere=True)),
    *(row for name in IMAGES for row in _in(name, "wgmma", TENSOR_PRECISIONS, hopper=True)),
    *_float32("softmax", "loops", "naive"),
    *_float32("argmax", "loops", "naive"),
    *_float32("collapse_linear", "naive"),
    *_float32("linear_softmax", "naive"),
    *_float32("linear_argmax", "naive"),
    *_float32("conv2d", "loops", "cpu_gemm", "cpu_direct", "winograd_rows_cpu", "naive", "direct"),
    *_float32("tanh", "loops", "naive"),
    *_float32("gelu", "loops", "naive"),
    *_float32("sigmoid", "loops", "naive"),
    *_float32("leaky_relu", "loops", "naive"),
    *_float32("maxout", "loops", "naive"),
    *_float32("batchnorm2d", "loops", "naive"),
    *_float32("maxpool2d", "loops", "naive"),
    *_float32("avgpool2d", "loops", "naive"),
    *_float32("global_avgpool2d", "loops", "naive"),
    *_float32("local_response_norm", "loops", "naive"),
    *_float32("conv2d_relu", "cpu_gemm", "cpu_direct", "winograd_rows_cpu", "naive", "direct"),
    *_float32("conv2d_tanh", "naive", "direct"),
    *_float32("conv2d_sigmoid", "naive"),
    *_float32("conv2d_leaky_relu", "naive"),
    *(row for name in DIRECT for row in _in(name, "direct_mma", UNSCALED, ampere=True)),
    *_float32("conv2d_relu_maxpool2d", "naive", "direct"),
    *_float32("conv2d_tanh_maxpool2d", "naive", "direct"),
    *_float32("conv2d_relu_global_avgpool2d", "naive"),
    *_float32(IMAGE_CHAIN, "whole", "tiles", "rolling"),
    *_float32("batchnorm2d_relu", "naive"),
    *_float32("linear_tanh", "naive"),
    *_float32("linear_gelu", "naive"),
    *_float32("linear_sigmoid", "naive"),
    *_float32("linear_leaky_relu", "naive"),
    *_float32("linear_maxout", "naive"),
    *_float32("linear_gelu_linear", "naive"),
    *_float32("conv2d_nhwc", "cpu_gemm", "winograd_cpu", "double_buffered"),
    *_float32("conv2d_relu_nhwc", "cpu_gemm", "winograd_cpu", "double_buffered"),
    *(Variant(name, "winograd", "cuda", tolerance=FILTERED) for name in IMAGES),
    *(Variant(name, "coalesced", "cuda") for name in BETWEEN),
    *(Variant(name, "vectorized", "cuda", "fp32") for name in BETWEEN),
    *(row for name in BETWEEN for row in _in(name, "vectorized", ("fp16x3", *HALF_PRECISIONS))),
    *_float32("pixels", "loops", "naive"),
    *(
        row
        for name in ("maxpool2d_nhwc", "avgpool2d_nhwc", "local_response_norm_nhwc", "pixels_nhwc")
        for row in _float32(name, "cpu_vector")
    ),
    *_float32("tanh", "cpu_vector"),
    *_float32("gelu", "cpu_vector"),
    *_float32("sigmoid", "cpu_vector"),
    *_float32("leaky_relu", "cpu_vector"),
)


def operator(name: str) -> Operator:
    """The operator's row."""
    return next(row for row in OPERATORS if row.name == name)


def tolerance(variant: Variant) -> float:
    """Largest ||out - ref|| / ||ref|| of a variant: its own, or its operator's."""
    return operator(variant.operator).tolerance if variant.tolerance is None else variant.tolerance
