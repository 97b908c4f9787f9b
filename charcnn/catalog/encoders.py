"""The tables of encoders, networks from token ids to vectors, and of the ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from charcnn.catalog.networks import TENSOR_CORES, NetworkRow, NetworkTechnique
from charcnn.layers import Network
from charcnn.model.rounding import FP16, Rounding


@dataclass(frozen=True)
class EncoderRow(NetworkRow):
    """An encoder: `python -m charcnn.networks.NAME`."""

    def architecture(self, variant: str | None = None, tokens: int | None = None) -> Network:
        """The `charcnn.networks.encoder.EncoderNetwork` of a variant, as its page makes it for so many tokens."""
        made: Network = self.module.network(variant, tokens)
        return made


ENCODERS = (EncoderRow("bert", ("wgmma", "mma", "strong", "weak")),)


@dataclass(frozen=True)
class EncoderTechnique(NetworkTechnique):
    """A way to run encoders: `--as NAME`."""

    @property
    def family(self) -> Sequence[NetworkTechnique]:
        """All ways."""
        return ENCODER_TECHNIQUES

    def rounding(self, asked: str | None = None) -> Rounding:
        """What that precision rounds. In fp8 these are products of weights: attention and what is added up are fp16."""
        found = super().rounding(asked)
        return replace(found, stored=(FP16, FP16), heads=FP16) if self.precision(asked) == "fp8" else found


_CPU, _CUDA = "encoder.cpu", "encoder.cuda"

ENCODER_TECHNIQUES = (
    EncoderTechnique("loops", "cpu", "plain compiled loops on one CPU core", _CPU),
    EncoderTechnique(
        "cpu_gemm", "cpu", "all CPU cores, projections as matrix products", _CPU, precisions=("fp32", "bf16", "int8")
    ),
    EncoderTechnique("naive", "cuda", "an operator a step, one thread an output", _CUDA),
    EncoderTechnique("weak", "cuda", "naive with GELU, and softmax, in the kernel before", _CUDA),
    EncoderTechnique(
        "strong", "cuda", "products in tiles of registers, attention that writes no scores", _CUDA, copies=True
    ),
    EncoderTechnique(
        "mma", "cuda", "strong on tensor cores", _CUDA, ampere=True, precisions=("fp16", "bf16", "tf32")
    ),
    EncoderTechnique(
        "wgmma", "cuda", "as mma, on Hopper's tensor cores, attention from a projection's rows", _CUDA, hopper=True,
        precisions=(*TENSOR_CORES, "fp8"),
    ),
    EncoderTechnique(
        "persistent", "cuda", "as wgmma, all blocks of a few texts in one kernel", _CUDA, hopper=True,
        precisions=("fp16", "bf16"),
    ),
)  # fmt: skip
"""In the order of the history."""


def encoder(name: str) -> EncoderRow:
    """The encoder's row."""
    return next(row for row in ENCODERS if row.name == name)


def encoder_technique(name: str) -> EncoderTechnique:
    """The technique's row."""
    return next(row for row in ENCODER_TECHNIQUES if row.name == name)
