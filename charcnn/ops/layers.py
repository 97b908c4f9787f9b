"""The table of prepared layers: by which technique each computes a pattern, in which precisions, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from charcnn.aliases import Function
from charcnn.layers import Layer
from charcnn.ops.common.precision import HALF_PRECISIONS, SPARSE_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.operator_row import loaded
from charcnn.ops.table import UNSCALED

FASTEST = (
    "wgmma", "mma", "winograd", "double_buffered", "vectorized", "direct", "coalesced", "naive",
    "winograd_cpu", "winograd_rows_cpu", "cpu_direct", "cpu_gemm", "cpu_vector", "loops",
)  # fmt: skip
"""What takes a pattern where no technique is asked for: the first here that takes it, also as a prepared layer.
Others must be asked for."""


@dataclass(frozen=True)
class LayerRow:
    """Weights prepared once, then applied to features: on a stream, as `charcnn.ops.common.layer` says, or on a CPU."""

    name: str
    home: str
    """Its module under charcnn.ops."""
    precisions: tuple[str, ...]
    """Of PRECISIONS those that it takes, or fp32 alone."""
    hopper: bool = False
    """Needs Hopper's tensor cores."""
    ampere: bool = False
    """Needs tensor cores of compute capability 8.0 or later; of fp16, what l14 and l21 have needs 7.5."""
    device: str = "cuda"
    """cpu or cuda"""
    technique: str = ""
    """Of TECHNIQUES the one by which it computes a pattern; none where it takes no pattern."""

    @property
    def made(self) -> Function:
        """The class; its module is imported here."""
        return loaded(f"charcnn.ops.{self.home}", self.name)

    def takes(self, pattern: Sequence[Layer], precision: str) -> bool:
        """Whether it computes this here, and is meant for it."""
        return precision in self.precisions and cast("bool", self.made.takes(pattern, precision))  # type: ignore[attr-defined]


FLOAT, HALF, ALL = ("fp32",), tuple(HALF_PRECISIONS), tuple(TENSOR_PRECISIONS)
SPARSE = tuple(SPARSE_PRECISIONS)
BETWEEN = (*FLOAT, *UNSCALED)
DOT = ("int8", "bf16")
TOOM_COOK = tuple(name for name in ALL if name != "bf16")
"""In bf16, which has 8 bits, its planes and weights would come too near the tolerance."""

IMAGE_LAYERS = ("Pixels", "ImageLayer")
"""Of images, beside convolutions."""

LAYERS = (
    LayerRow("Launched", "common.layer", FLOAT),
    LayerRow("WgmmaConv", "conv1d.wgmma.layer", ALL, hopper=True, technique="wgmma"),
    LayerRow("MmaConv", "conv1d.mma.layer", ALL, ampere=True, technique="mma"),
    LayerRow("WinogradConv", "conv1d.winograd", FLOAT, technique="winograd"),
    LayerRow("DoubleBufferedConv", "conv1d.double_buffered_layer", FLOAT, technique="double_buffered"),
    LayerRow("CpuWinogradConv", "conv1d.winograd_cpu", FLOAT, device="cpu", technique="winograd_cpu"),
    LayerRow("CpuConv", "common.cpu_conv", FLOAT, device="cpu", technique="cpu_gemm"),
    LayerRow("CpuDotConv", "conv1d.cpu_dot", DOT, device="cpu"),
    LayerRow("SparseConv", "conv1d.wgmma_sparse.layer", SPARSE, hopper=True),
    LayerRow("ToomCookConv", "conv1d.toom_cook.layer", TOOM_COOK, hopper=True),
    LayerRow("SmallBatchConv", "conv1d.small_batch", ALL, hopper=True, technique="small_batch"),
    *(LayerRow(f"Vectorized{name}", "image_layers", BETWEEN) for name in IMAGE_LAYERS),
    LayerRow("Cast", "conv1d.layers", ("tf32", "fp16x3")),
    LayerRow("GatherTokenConvNormReluPool", "token_conv1d.layers", FLOAT),
    LayerRow("TokenConvNormReluPool", "token_conv1d.layers", ALL),
    LayerRow("TokenConvNormReluPoolPlanes", "token_conv1d.layers", TOOM_COOK),
    LayerRow("SmallBatchTokenConvNormReluPool", "token_conv1d.layers", ALL, ampere=True),
    LayerRow("CoalescedConvNormReluPool", "layernorm.layers", FLOAT),
    LayerRow("ConvNormReluPool", "layernorm.layers", ALL, ampere=True),
    LayerRow("SmallBatchConvNormReluPool", "layernorm.layers", ALL, ampere=True),
    LayerRow("FewOutputsLinear", "linear.few_outputs", ("fp16", "bf16", "fp8"), ampere=True),
    LayerRow("SmallBatchLinear", "linear.layers", ALL, ampere=True),
    LayerRow("SplitKLinear", "linear.split_k", HALF, hopper=True),
    LayerRow("MmaStepConv1d", "conv1d.mma.steps.layer", ("fp16",), ampere=True),
    LayerRow("WgmmaStepConv1d", "conv1d.wgmma.steps.layer", ("fp16",), hopper=True),
    LayerRow("CpuTokenConvNormReluPool", "token_conv1d.cpu", FLOAT, device="cpu"),
    LayerRow("CpuDotTokenConvNormReluPool", "token_conv1d.cpu_dot", DOT, device="cpu"),
    LayerRow("NormReluPool", "layernorm.norm_relu_pool", FLOAT, device="cpu"),
)
"""What levels from l11 on and networks of images consist of, and the ladders of steps inside l14 and l15."""


def layer_name(name: str) -> str:
    """What a layer is called today: in release 1.0 those of one technique were several, as WgmmaConv1d and WgmmaLinear.

    Results of that time, and `charcnn show`, may have the former name.
    """
    if name in ("VectorizedMaxPool2d", "VectorizedLocalResponseNorm"):
        return "VectorizedImageLayer"
    stem = next((name.removesuffix(end) for end in ("Conv1d", "Conv2d", "Linear") if name.endswith(end)), "")
    names = {row.name for row in LAYERS}
    return f"{stem}Conv" if name not in names and f"{stem}Conv" in names else name


def prepared_by(technique: str) -> LayerRow | None:
    """The layer that computes patterns by this technique; None where none does."""
    return next((row for row in LAYERS if technique and row.technique == technique), None)


def fastest(pattern: Sequence[Layer], precision: str, techniques: Sequence[str]) -> Function:
    """The class of the fastest of these techniques that takes the pattern, called with the pattern and its weights.

    Raises:
        ValueError: none takes it.
    """
    for technique in sorted(techniques, key=FASTEST.index):
        row = prepared_by(technique)
        if row is not None and row.takes(pattern, precision):
            return row.made
    raise ValueError(f"pattern={list(pattern)}: none of {', '.join(techniques)} takes it in {precision}")
