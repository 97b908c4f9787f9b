"""What a row of `charcnn.ops.table` says of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from charcnn.aliases import Function

FLOAT32 = 2e-6
"""Tolerance of float32 arithmetic: a few roundings of 6e-8, grown by sums of up to 8,704 terms taken in parts."""

FILTERED = 4e-6
"""Of Winograd's filtering along both axes, whose transforms let roundings grow along each: `winograd_plan.ERROR`."""

EXACT = 0.0
"""Tolerance where values are only moved, picked or counted."""


def loaded(module: str, name: str) -> Function:
    """What a row names; its module is imported here."""
    found: Function = getattr(import_module(module), name)
    return found


@dataclass(frozen=True)
class Operator:
    """One operator, or a fused chain of them, in one layout: what it computes, and how close a variant must come."""

    computes: str
    """Layers in order, which are these in all layouts."""
    tolerance: float
    """Largest ||out - ref|| / ||ref|| against the float64 reference."""
    shape_check: str | None = ""
    """The function of `ops.common.shapes`, or of a module of that name's beginning, that checks its arguments and gives
    its result's shape, where that is not called as the operator is; None where a launch checks them."""
    epilogue: str | None = None
    """What a launch is told follows the sums, a row of `common.epilogues`; None where it is told nothing."""
    in_place: bool = False
    """Whether `out` may be x itself."""
    dtypes: tuple[str, ...] = ("float32",)
    """What results may be of, first what is made where no `out` is given."""
    stat: bool = False
    """Whether a second result is each input's mean and variance."""
    results: tuple[str, ...] = ()
    """Names of its results where there are several, of float32."""
    axes: str = ""
    """What its name has behind that of what it computes: nlc or nhwc, of channels-last features; else nothing."""

    @property
    def name(self) -> str:
        """Of this row alone."""
        return f"{self.computes}_{self.axes}" if self.axes else self.computes

    @property
    def layout(self) -> str:
        """Of its features: channels_first, (N, C, ...), or channels_last, (N, ..., C)."""
        return "channels_last" if self.axes else "channels_first"

    @property
    def reference(self) -> Function:
        """In float64."""
        return loaded("charcnn.ops.reference", self.name)
