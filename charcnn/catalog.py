"""The table of operators, their variants and the levels. Everything that lists them enumerates this one.

Rows stand in the order of the story. A new variant is a kernel, a launcher and one row of VARIANTS; a new level
is one file under charcnn/levels and one row of LEVELS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from charcnn.ops import conv1d, reference

FLOAT32 = 2e-6
"""Tolerance of float32 arithmetic: a few roundings of 6e-8, grown by sums of up to 8,704 terms taken in parts."""


@dataclass(frozen=True)
class Operator:
    """One operator, or a fused chain of them: what it computes, and how close a variant must come."""

    name: str
    reference: Callable[..., Any]
    tolerance: float
    """Largest ||out - ref|| / ||ref|| against the float64 reference; 0 where a variant only moves or picks values."""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator."""

    operator: str
    technique: str
    device: str
    """cpu or cuda"""
    launcher: Callable[..., Any]

    @property
    def name(self) -> str:
        """As imported from charcnn.ops: conv1d_naive."""
        return f"{self.operator}_{self.technique}"


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
    tolerance: float = FLOAT32
    """Largest ||logits - ref|| / ||ref|| against the float64 reference of the whole network."""

    @property
    def module(self) -> ModuleType:
        """The level's module, imported."""
        return import_module(f"charcnn.levels.{self.name}")

    @property
    def title(self) -> str:
        """What the step is."""
        return str(self.module.TITLE)


TECHNIQUES = {
    "loops": "compiled plain loops on one CPU core",
    "naive": "CUDA, one thread an output, all operands in global memory",
}

OPERATORS = (
    Operator("conv1d", reference.conv1d, FLOAT32),
    Operator("conv1d_relu", reference.conv1d_relu, FLOAT32),
)

VARIANTS = (
    Variant("conv1d", "loops", "cpu", conv1d.conv1d_loops),
    Variant("conv1d", "naive", "cuda", conv1d.conv1d_naive),
    Variant("conv1d_relu", "naive", "cuda", conv1d.conv1d_relu_naive),
)

LEVELS = (
    Level("l0", "cpu", 2.12),
    Level("l1", "cpu", 8.33),
    Level("l2", "cpu", 7.86),
    Level("l3", "cuda", 12.76, gpus=1),
    Level("l4", "cuda", 165.00, gpus=1),
    Level("l5", "cuda", 555.00),
    Level("l6", "cuda", 727.20),
)


def operator(name: str) -> Operator:
    """The operator's row."""
    return next(row for row in OPERATORS if row.name == name)


def level(name: str) -> Level:
    """The level's row."""
    return next(row for row in LEVELS if row.name == name)
