"""What levels launch beside the variants, for `offline_build`."""

from __future__ import annotations

from dataclasses import replace

from charcnn.compiling.networks import BuiltLevel, record, runnable
from charcnn.compiling.stand_in import Launched, Target
from charcnn.config import SMALL

FOR_ADA = "l14 fp8"
"""All that this level launches in this precision, for GPUs that have FP8 and no wgmma."""

FEW_PORTABLE = "few inputs of l21"
"""What few inputs launch there, in all precisions that the GPU has."""

OF_LEVELS = FOR_ADA, FEW_PORTABLE


def of_level(name: str, target: Target, launched: Launched) -> None:
    """Hand over what one of OF_LEVELS launches, with LayerNorm and without."""
    rows, sizes = [tuple(FOR_ADA.split())], [4096]
    if name == FEW_PORTABLE:
        rows, sizes = [row for row in runnable(target) if row[0] == "l21"], [1, 16, 64]
    for row in rows:
        for layernorm in (True, False):
            record(BuiltLevel(*row, replace(SMALL, layernorm=layernorm)), target, launched, sizes)
