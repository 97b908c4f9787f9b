"""The tables of encoders, networks from token ids to vectors, and of the ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from charcnn.catalog.networks import NetworkTechnique
from charcnn.ops.common.precision import HALF_PRECISIONS


@dataclass(frozen=True)
class EncoderRow:
    """An encoder: `python -m charcnn.networks.NAME`."""

    name: str
    on_gpu: tuple[str, ...]
    """Techniques where none is asked for and there is a GPU: the first that runs there, in the precision asked for."""

    @property
    def module(self) -> ModuleType:
        """Its page, imported."""
        return import_module(f"charcnn.networks.{self.name}")

    def network(self, variant: str | None = None, tokens: int | None = None) -> Any:
        """The `charcnn.networks.encoder.Encoder` of a variant, the first where None, for inputs of so many tokens.

        Where `tokens` is None, they are the page's, or as many as the variant has positions, where those are fewer.
        """
        variant = variant or self.module.VARIANTS[0]
        of, layers = import_module("charcnn.networks.encoder").Encoder, self.module.layers(variant)
        return of(self.name, variant, layers, tokens or min(self.module.TOKENS, layers[0].positions))


ENCODERS = (EncoderRow("bert", ("wgmma", "mma", "strong", "weak")),)


@dataclass(frozen=True)
class EncoderTechnique(NetworkTechnique):
    """A way to run encoders: `--as NAME`."""

    @property
    def family(self) -> Sequence[NetworkTechnique]:
        """All ways."""
        return ENCODER_TECHNIQUES


_CPU, _CUDA, _HALF = "encoder.cpu", "encoder.cuda", tuple(HALF_PRECISIONS)

ENCODER_TECHNIQUES = (
    EncoderTechnique("loops", "cpu", "plain compiled loops on one CPU core", _CPU),
    EncoderTechnique("cpu_gemm", "cpu", "all CPU cores, projections as matrix products", _CPU),
    EncoderTechnique("naive", "cuda", "an operator a step, one thread an output", _CUDA),
    EncoderTechnique("weak", "cuda", "naive with GELU, and softmax, in the kernel before", _CUDA),
    EncoderTechnique(
        "strong", "cuda", "products in tiles of registers, attention that writes no scores", _CUDA, copies=True
    ),
    EncoderTechnique("mma", "cuda", "strong on tensor cores, in 16 bits", _CUDA, ampere=True, precisions=_HALF),
    EncoderTechnique(
        "wgmma", "cuda", "as mma, on Hopper's tensor cores, attention from a projection's rows", _CUDA, hopper=True,
        precisions=_HALF,
    ),
)  # fmt: skip
"""In the order of the history."""


def encoder(name: str) -> EncoderRow:
    """The encoder's row."""
    return next(row for row in ENCODERS if row.name == name)


def encoder_technique(name: str) -> EncoderTechnique:
    """The technique's row."""
    return next(row for row in ENCODER_TECHNIQUES if row.name == name)
