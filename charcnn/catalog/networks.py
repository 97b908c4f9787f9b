"""The tables of networks of images, and of the ways to run them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

from charcnn.aliases import Function
from charcnn.catalog.programs import Program
from charcnn.ops.common.precision import HALF_PRECISIONS


@dataclass(frozen=True)
class NetworkRow:
    """A network: `python -m charcnn.networks.NAME`."""

    name: str
    on_gpu: tuple[str, ...]
    """Techniques where none is asked for and there is a GPU: the first that runs there, in the precision asked for."""

    @property
    def module(self) -> ModuleType:
        """Its page, imported."""
        return import_module(f"charcnn.networks.{self.name}")

    def architecture(self, variant: str | None = None) -> Any:
        """The `charcnn.networks.architecture.Architecture` of a variant of its page's; the first where None."""
        variant = variant or self.module.VARIANTS[0]
        of = import_module("charcnn.networks.architecture").Architecture
        return of(self.name, variant, self.module.layers(variant))


_DENSE = ("wgmma", "mma", "weak")
"""Of networks with channels enough to fill tensor cores."""

_FEW = ("strong_mma", "direct", *_DENSE)
"""Of the others, where products would mostly be by zeros."""

NETWORKS = (
    NetworkRow("mnist", _FEW),
    NetworkRow("ece408", _FEW),
    NetworkRow("fused4", _FEW),
    NetworkRow("alexnet", _DENSE),
    NetworkRow("ffn", _DENSE),
)


@dataclass(frozen=True)
class NetworkTechnique(Program):
    """A way to run networks: `--as NAME`."""

    summary: str
    home: str
    """Its module under charcnn.networks, whose `build` takes its name first."""
    networks: tuple[tuple[str, int], ...] = ()
    """Those that it computes, at their full size, if not all, with the shared memory that a block needs for each."""
    of: str = ""
    """The network that it is to run, where that is known."""

    @property
    def family(self) -> Sequence[NetworkTechnique]:
        """All ways, of the network."""
        return [row for row in NETWORK_TECHNIQUES if not self.of or row.computes(self.of)]

    def computes(self, name: str, shared_limit: int | None = None) -> bool:
        """Whether it computes the network of this name, with so much shared memory a block where that is given."""
        needs = dict(self.networks)
        return not needs or (name in needs and needs[name] <= (shared_limit or sys.maxsize))

    def others(self, name: str) -> str:
        """Names of those of other modules that compute the network."""
        return self.names_of([other for other in self.family if other.home != self.home and other.computes(name)])

    @property
    def graphs(self) -> bool:
        """Whether a batch is one CUDA graph, unless its `build` is told `graph`=False: then layers are timed apart."""
        return self.device == "cuda" and self.name not in ("naive", "weak")

    @property
    def module(self) -> ModuleType:
        """Its module, imported: `rewrites` leads from a network's layers to what the technique computes, and `build`
        is a level's. Both take the technique's name first."""
        return import_module(f"charcnn.networks.{self.home}")

    @property
    def build(self) -> Function:
        """Its module's."""
        made: Function = self.module.build
        return made


TENSOR_CORES = ("fp16", "bf16", "tf32", "fp16x3")
"""Precisions of features that need no scales."""

NETWORK_TECHNIQUES = (
    NetworkTechnique("loops", "cpu", "plain compiled loops on one CPU core", "cpu"),
    NetworkTechnique("cpu_gemm", "cpu", "all CPU cores, convolutions as GEMMs over overlapping rows", "cpu"),
    NetworkTechnique(
        "winograd_cpu", "cpu", "cpu_gemm with half the products, where convolutions move by 1", "cpu", filtered=True
    ),
    NetworkTechnique("naive", "cuda", "an operator a layer, one thread an output", "cuda"),
    NetworkTechnique("weak", "cuda", "naive with what is pointwise, and pooling, in the kernel before", "cuda"),
    NetworkTechnique(
        "strong", "cuda",
        "weak with convolutions that follow one another planned as one chain, and two linear layers as one", "cuda",
    ),
    NetworkTechnique(
        "direct", "cuda", "as weak, with convolutions of few input channels, and linear layers, in tiles of registers",
        "cuda", copies=True,
    ),
    NetworkTechnique(
        "winograd", "cuda", "channels last, with half the products or fewer where convolutions move by 1",
        "channels_last", copies=True, filtered=True,
    ),
    NetworkTechnique(
        "strong_mma", "cuda", "as strong, on tensor cores: a chain is one kernel, its features in shared memory",
        "strong_mma", (("mnist", 26_880), ("ece408", 119_040), ("fused4", 34_080)), ampere=True,
        precisions=("fp16", "bf16"),
    ),
    NetworkTechnique(
        "mma", "cuda", "channels last on tensor cores, one CUDA graph a batch", "channels_last", ampere=True,
        precisions=TENSOR_CORES,
    ),
    NetworkTechnique(
        "wgmma", "cuda", "as mma, on Hopper's tensor cores, with copies by TMA", "channels_last", hopper=True,
        precisions=TENSOR_CORES,
    ),
)  # fmt: skip
"""In the order of the history."""


def fused_technique(precision: str | None) -> NetworkTechnique:
    """The form of `strong` whose first two convolutions are one kernel (`--fuse 2`), for a precision."""
    return replace(
        network_technique("strong"), home="fused", precisions=("fp32", *HALF_PRECISIONS), copies=True, filtered=True,
        ampere=precision in HALF_PRECISIONS,
    )  # fmt: skip


def network(name: str) -> NetworkRow:
    """The network's row."""
    return next(row for row in NETWORKS if row.name == name)


def network_technique(name: str, of: str = "") -> NetworkTechnique:
    """The technique's row, of a network where one is named."""
    return replace(next(row for row in NETWORK_TECHNIQUES if row.name == name), of=of)
