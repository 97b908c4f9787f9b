"""The table of levels, and the precisions that they compute in. `charcnn.catalog` has it, too, and the operators.

Rows stand in the order of the story. A new level is one file under charcnn/levels and one row of LEVELS. This file
imports no kernel, so that a level starts without those of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType

from charcnn.model.rounding import ROUNDINGS, Rounding
from charcnn.ops.common.formats import FORMATS, PLAIN, Format

PRECISIONS: dict[str, Format] = {name: FORMATS.get(name, PLAIN) for name in ROUNDINGS}
"""What levels compute in, by the names that --precision takes."""


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

    def format(self, asked: str | None = None) -> Format:
        """What numbers of that precision are; errors likewise."""
        return PRECISIONS[self.precision(asked)]

    def build_options(self, asked: str | None = None) -> dict[str, str]:
        """What its `build` is told of that: nothing where it has one precision alone; errors likewise."""
        precision = self.precision(asked)
        return {"precision": precision} if len(self.precisions) > 1 else {}

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
    Level("l5", "cuda", 555.00),
    Level("l6", "cuda", 727.20),
    Level("l7", "cuda"),
    Level("l8", "cuda"),
    Level("l9", "cuda"),
    Level("l10", "cuda"),
    Level("l11", "cpu"),
    Level("l12", "cuda"),
    Level("l13", "cuda", filtered=True),
    Level("l14", "cuda", precisions=("fp16", "bf16", "tf32", "fp16x3"), ampere=True),
    Level("l15", "cuda", precisions=("fp16", "bf16", "tf32", "fp16x3"), hopper=True),
    Level("l16", "cuda", precisions=("fp16", "bf16", "tf32", "fp16x3"), hopper=True),
    Level("l17", "cuda", precisions=("fp8",), hopper=True),
    Level("l18", "cpu", filtered=True),
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
