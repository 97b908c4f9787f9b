"""The table of operators, their variants, layers and levels. Everything that lists them enumerates this one.

Rows stand in the order of the story. A new variant is a kernel, a launcher, its line in `charcnn/ops/__init__.pyi` and
one row of VARIANTS; a new level is a file under charcnn/levels and a row of LEVELS. A kernel loads when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from charcnn.model.rounding import ROUNDINGS, Rounding
from charcnn.ops.common.precision import FORMATS, FP32, HALF_PRECISIONS, NumberFormat

FLOAT32 = 2e-6
"""Tolerance of float32 arithmetic: a few roundings of 6e-8, grown by sums of up to 8,704 terms taken in parts."""

EXACT = 0.0
"""Tolerance where values are only moved, picked or counted."""


@dataclass(frozen=True)
class Operator:
    """One operator, or a fused chain of them: what it computes, and how close a variant must come."""

    name: str
    tolerance: float
    """Largest ||out - ref|| / ||ref|| against the float64 reference."""

    @property
    def reference(self) -> Callable[..., Any]:
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
        """As imported from charcnn.ops: conv1d_naive, conv1d_nlc_wgmma."""
        return f"{self.operator}_{self.technique}"

    @property
    def label(self) -> str:
        """Technique and precision: naive, wgmma_fp16."""
        return f"{self.technique}_{self.precision}" if self.precision else self.technique

    @property
    def name(self) -> str:
        """Of this row alone: conv1d_naive, conv1d_nlc_wgmma_fp16."""
        return f"{self.operator}_{self.label}"

    @property
    def launcher(self) -> Callable[..., Any]:
        """The function, in this precision; its module is imported here."""
        launcher: Callable[..., Any] = getattr(import_module("charcnn.ops"), self.function)
        return partial(launcher, precision=self.precision) if self.precision else launcher


CHAIN = "conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat"
"""The strong fusion of blocks 3 to 6."""

TECHNIQUES = {
    "loops": "compiled plain loops on one CPU core",
    "cpu_gemm": "all CPU cores: a GEMM over overlapping rows by a vector micro-kernel",
    "cpu_gather": "all CPU cores, for token ids: of the weights, the rows of the characters are added up",
    "naive": "CUDA, one thread an output (layernorm: one block an input), all operands in global memory",
    "whole": "CUDA, a chain of convolutions in one kernel, one block an input, all features in shared memory",
    "pairs": "CUDA, a chain of convolutions two a kernel, in tiles of positions whose edges are computed twice",
    "coalesced": "CUDA, one thread an output, neighbouring threads on neighbouring channels",
    "tiled": "CUDA, a matrix product in tiles of shared memory, one thread an output",
    "register_tiled": "the same with a tile of sums in each thread's registers",
    "vectorized": "the same with loads and stores of 128 bits",
    "double_buffered": "the same with the next stage's copies under way (cp.async: compute capability 8.0)",
    "winograd": "the same on transformed features and weights, with about half the multiplications",
    "winograd_cpu": "all CPU cores: the same GEMM, on transformed features and weights, with about half the products",
    "gather": "CUDA, for token ids: of the weights, the rows of the characters are added up, and nothing is multiplied",
    "warp_gather": "the same, each warp by itself, with sums, LayerNorm and features in the precision",
    "lags": "CUDA, for token ids: sums looked up by character, and by pair of characters and their distance",
    "lag_sums": "the same with a warp an input, and tables in float32 in shared memory",
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
)

MMA = ("fp16", "bf16", "tf32", "fp16x3")
"""What mma.sync multiplies."""


MULTIPLYING = (
    "conv1d_nlc", "conv1d_relu_nlc", "conv1d_relu_maxpool1d_nlc", "conv1d_stat_nlc", "linear_nlc", "linear_relu_nlc",
)  # fmt: skip
"""Operators that tensor cores compute, by the same kernels."""

CPU = ("loops", "cpu_gemm", "cpu_gather", "winograd_cpu")
"""Techniques that run there."""


def _float32(operator: str, *techniques: str) -> Iterator[Variant]:
    """A row a technique."""
    for technique in techniques:
        yield Variant(operator, technique, "cpu" if technique in CPU else "cuda")


def _in(operator: str, technique: str, precisions: Iterable[str], **needs: bool) -> Iterator[Variant]:
    """A row a precision, with its own tolerance."""
    for name in precisions:
        yield Variant(operator, technique, "cuda", name, FORMATS[name].tolerance, **needs)


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
    *(row for name in MULTIPLYING for row in _in(name, "mma", MMA, ampere=True)),
    *(row for name in MULTIPLYING for row in _in(name, "wgmma", FORMATS, hopper=True)),
    *(row for name in MULTIPLYING[:3] for row in _in(name, "small_batch", HALF_PRECISIONS, hopper=True)),
    *_float32("softmax", "loops", "naive"),
    *_float32("argmax", "loops", "naive"),
)


def operator(name: str) -> Operator:
    """The operator's row."""
    return next(row for row in OPERATORS if row.name == name)


def tolerance(variant: Variant) -> float:
    """Largest ||out - ref|| / ||ref|| of a variant: its own, or its operator's."""
    return operator(variant.operator).tolerance if variant.tolerance is None else variant.tolerance


PRECISIONS: dict[str, NumberFormat] = {name: FORMATS.get(name, FP32) for name in ROUNDINGS}
"""What levels compute in, by the names that --precision takes."""


@dataclass(frozen=True)
class Layer:
    """A layer as levels list it: weights prepared once, then applied on a stream (`charcnn.ops.common.layer`)."""

    name: str
    home: str
    """Its module under charcnn.ops."""
    precisions: tuple[str, ...]
    """Of PRECISIONS those that it takes, or fp32 alone."""
    hopper: bool = False
    """Needs Hopper's tensor cores."""
    ampere: bool = False
    """Needs tensor cores of compute capability 8.0 or later."""

    @property
    def made(self) -> Callable[..., Any]:
        """The class; its module is imported here."""
        made: Callable[..., Any] = getattr(import_module(f"charcnn.ops.{self.home}"), self.name)
        return made


FLOAT, HALF, ALL = ("fp32",), tuple(HALF_PRECISIONS), tuple(FORMATS)

LAYERS = (
    Layer("Launched", "common.layer", FLOAT),
    Layer("DoubleBufferedConv1d", "conv1d.layers", FLOAT),
    Layer("WinogradConv1d", "conv1d.layers", FLOAT),
    Layer("MmaConv1d", "conv1d.layers", MMA, ampere=True),
    Layer("MmaLinear", "conv1d.layers", MMA, ampere=True),
    Layer("WgmmaConv1d", "conv1d.layers", ALL, hopper=True),
    Layer("WgmmaLinear", "conv1d.layers", ALL, hopper=True),
    Layer("SmallBatchConv1d", "conv1d.layers", HALF, hopper=True),
    Layer("Cast", "conv1d.layers", ("tf32", "fp16x3")),
    Layer("Float32TokenConvNormReluPool", "token_conv1d.layers", FLOAT),
    Layer("TokenConvNormReluPool", "token_conv1d.layers", ALL),
    Layer("SmallBatchTokenConvNormReluPool", "token_conv1d.layers", HALF),
    Layer("Float32ConvNormReluPool", "layernorm.layers", FLOAT),
    Layer("ConvNormReluPool", "layernorm.layers", ALL, ampere=True),
    Layer("SmallBatchConvNormReluPool", "layernorm.layers", HALF, hopper=True),
    Layer("FewOutputsLinear", "linear.few_outputs", ("fp16", "bf16", "fp8"), ampere=True),
    Layer("SmallBatchLinear", "linear.layers", HALF, hopper=True),
    Layer("StepConv1d", "conv1d.wgmma.steps.layer", ("fp16",), hopper=True),
)
"""What levels from l12 on consist of, and the ladder of steps inside l15."""


DIFFERENCE = 60
"""Lines that a step takes away or adds, at most, that a reader follows at a glance."""


@dataclass(frozen=True)
class Level:
    """One step of the history: `python -m charcnn.levels.NAME`."""

    name: str
    device: str
    """cpu or cuda"""
    original: float | None = None
    """Inputs/s of the C++ project at this step, on 4 hosts of 4 TITAN RTX; None where it had none."""
    gpus: int | None = None
    """GPUs that a rank drives at most; None: all of its share."""
    precisions: tuple[str, ...] = ("fp32",)
    """Of PRECISIONS those that it has, first what it takes where none is asked for."""
    hopper: bool = False
    """Needs Hopper's tensor cores: neither another GPU nor the simulator will do."""
    ampere: bool = False
    """Needs tensor cores of compute capability 8.0 or later: the simulator will not do."""
    filtered: bool = False
    """Whether it computes convolutions by Winograd's filtering, which rounds more."""
    after: str | None = None
    """The level that it builds on; None: that of the row before."""
    differs: str | None = None
    """Why its file differs from that level's by more than DIFFERENCE lines."""
    tuned: tuple[str, str] | None = None
    """Techniques of its convolutions and of its linear layers, of those whose tiles can be chosen."""

    @property
    def tensor_cores(self) -> bool:
        """Whether it needs tensor cores, of some kind."""
        return self.hopper or self.ampere

    def rounding(self, asked: str | None = None) -> Rounding:
        """What that precision rounds, and how far logits may be off for it; errors as for `precision`."""
        return replace(ROUNDINGS[self.precision(asked)], filtered=self.filtered)

    def precision(self, asked: str | None = None) -> str:
        """Which one it computes in where this one is asked for: its own where that is None.

        Raises:
            ValueError: it has it not; names the levels that have.
        """
        precision = asked or self.precisions[0]
        if precision not in PRECISIONS:
            raise ValueError(f"{precision=}: need one of {', '.join(PRECISIONS)}")
        if precision not in self.precisions:
            others = spoken([row for row in LEVELS if precision in row.precisions])
            raise ValueError(f"{precision=}: {self.name} has {', '.join(self.precisions)}; {precision} is in {others}")
        return precision

    def format(self, asked: str | None = None) -> NumberFormat:
        """What numbers of that precision are; errors likewise."""
        return PRECISIONS[self.precision(asked)]

    def build_options(self, asked: str | None = None) -> dict[str, str]:
        """What its `build` is told of that: nothing where it has one precision alone; errors likewise."""
        precision = self.precision(asked)
        return {"precision": precision} if len(self.precisions) > 1 else {}

    @property
    def predecessor(self) -> Level | None:
        """The level that it builds on; None of the first."""
        if self.after is not None:
            return level(self.after)
        place = LEVELS.index(self)
        return LEVELS[place - 1] if place else None

    def difference(self) -> list[str]:
        """Its file beside its predecessor's, as a unified diff, without line ends; nothing of the first."""
        if self.predecessor is None:
            return []
        files = [Path(__file__).parent / "levels" / f"{name}.py" for name in (self.predecessor.name, self.name)]
        old, new = (file.read_text(encoding="utf-8").splitlines() for file in files)
        return list(unified_diff(old, new, files[0].name, files[1].name, lineterm=""))

    @property
    def module(self) -> ModuleType:
        """The level's module, imported."""
        return import_module(f"charcnn.levels.{self.name}")

    @property
    def title(self) -> str:
        """What the step is."""
        return str(self.module.TITLE)


LEVELS = (
    Level("l0", "cpu", 2.12),
    Level("l1", "cpu", 8.33),
    Level("l2", "cpu", 7.86),
    Level("l3", "cuda", 12.76, gpus=1),
    Level("l4", "cuda", 165.00, gpus=1),
    Level("l5", "cuda", 555.00, differs="a class for what each GPU holds, where one GPU needed none"),
    Level("l6", "cuda", 727.20),
    Level("l7", "cuda", differs="streams, pinned buffers and threads come at once: each alone overlaps nothing"),
    Level("l8", "cuda", differs="all that ran on the CPU goes to the GPU, and with it the CPU's stages"),
    Level("l9", "cuda"),
    Level("l10", "cuda", differs="blocks 3 to 6 become one planned kernel, and the plan its own code"),
    Level("l11", "cpu", after="l2", differs="every operator is another one"),
    Level(
        "l12",
        "cuda",
        after="l10",
        differs="from here on a level lists layers, and no longer spells each call",
        tuned=("double_buffered",) * 2,
    ),
    Level("l13", "cuda", filtered=True, tuned=("winograd", "double_buffered")),
    Level("l14", "cuda", precisions=MMA, ampere=True, tuned=("mma", "mma")),
    Level("l15", "cuda", precisions=MMA, hopper=True, tuned=("wgmma", "wgmma")),
    Level("l16", "cuda", precisions=MMA, hopper=True, tuned=("wgmma", "wgmma")),
    Level(
        "l17",
        "cuda",
        precisions=("fp8",),
        hopper=True,
        differs="the small batches of level 16 go, as they have no FP8",
        tuned=("wgmma", "wgmma"),
    ),
    Level("l18", "cpu", filtered=True, after="l11"),
)


def level(name: str) -> Level:
    """The level's row."""
    return next(row for row in LEVELS if row.name == name)


def spoken(levels: Sequence[Level]) -> str:
    """Their names, those that follow each other as a range: "l0 to l13, l15"; "no level" of none."""
    places = [LEVELS.index(row) for row in levels]
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    names = [[LEVELS[place].name for place in run] for run in runs]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in names) or "no level"
