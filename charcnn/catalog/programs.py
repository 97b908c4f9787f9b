"""What a command runs, whatever it is: where, in what precision, and what it needs of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from charcnn.model import sparsity
from charcnn.model.params import Params
from charcnn.model.rounding import ROUNDINGS, Rounding
from charcnn.ops.common.precision import FP32, INT8, TENSOR_PRECISIONS, NumberFormat

PRECISIONS: dict[str, NumberFormat] = {name: {**TENSOR_PRECISIONS, "int8": INT8}.get(name, FP32) for name in ROUNDINGS}
"""What levels compute in, by the names that --precision takes."""


@dataclass(frozen=True)
class Program:
    """What a command runs: a level of the history, or a technique of the networks."""

    name: str
    device: str
    """cpu or cuda"""
    gpus: int | None = field(default=None, kw_only=True)
    """GPUs that a rank drives at most; None: all of its share."""
    precisions: tuple[str, ...] = field(default=("fp32",), kw_only=True)
    """Of PRECISIONS those that it has, first what it takes where none is asked for."""
    hopper: bool = field(default=False, kw_only=True)
    """Needs Hopper's tensor cores: no other GPU will do; the simulator emulates them."""
    ampere: bool = field(default=False, kw_only=True)
    """Needs tensor cores of compute capability 8.0 or later; the simulator emulates them."""
    turing: bool = field(default=False, kw_only=True)
    """Whether those of compute capability 7.5 will do, in fp16."""
    copies: bool = field(default=False, kw_only=True)
    """Needs asynchronous copies, of compute capability 8.0 or later; the simulator has them."""
    filtered: bool = field(default=False, kw_only=True)
    """Whether it computes convolutions by Winograd's filtering, which rounds more."""
    toom_cook: bool = field(default=False, kw_only=True)
    """Whether it computes conv2 by Toom-Cook's products, which round more."""
    sparse: bool = field(default=False, kw_only=True)
    """Whether it takes 2:4 sparse weights alone (`charcnn.model.sparsity`)."""
    mixed: bool = field(default=False, kw_only=True)
    """Whether each rank takes a Hopper GPU, in bf16, where there are such."""

    @property
    def family(self) -> Sequence[Program]:
        """All of its kind, in order."""
        raise NotImplementedError

    @property
    def tensor_cores(self) -> bool:
        """Whether it needs tensor cores, of some kind."""
        return self.hopper or self.ampere

    def rounding(self, asked: str | None = None) -> Rounding:
        """What that precision rounds, and how far results may be off for it; errors as for `precision`."""
        return replace(ROUNDINGS[self.precision(asked)], filtered=self.filtered, toom_cook=self.toom_cook)

    def precision(self, asked: str | None = None) -> str:
        """Which one it computes in where this one is asked for: its own where that is None.

        Raises:
            ValueError: it has it not; names those that have.
        """
        precision = asked or self.precisions[0]
        if precision not in PRECISIONS:
            raise ValueError(f"{precision=}: need one of {', '.join(PRECISIONS)}")
        if precision not in self.precisions:
            others = self.names_of([row for row in self.family if precision in row.precisions])
            raise ValueError(f"{precision=}: {self.name} has {', '.join(self.precisions)}; {precision} is in {others}")
        return precision

    def number_format(self, asked: str | None = None) -> NumberFormat:
        """What numbers of that precision are; errors likewise."""
        return PRECISIONS[self.precision(asked)]

    def build_options(self, asked: str | None = None) -> dict[str, str]:
        """What its `build` is told of that: nothing where it has one precision alone; errors likewise."""
        precision = self.precision(asked)
        return {"precision": precision} if len(self.precisions) > 1 else {}

    def taken(self, params: Params) -> Params:
        """Random weights in the form that the level takes: pruned, if it takes sparse ones alone."""
        return sparsity.pruned(params) if self.sparse else params

    @staticmethod
    def names_of(rows: Sequence[Any]) -> str:
        """Their names, for a sentence."""
        return ", ".join(row.name for row in rows) or "none"
