"""What a case is: the arguments of a call that is timed, and where in a network it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cases import Draw


@dataclass(frozen=True)
class Case:
    """The arguments of one call, in the reference's order."""

    args: tuple[np.ndarray, ...]
    extra: tuple[int, ...] = ()
    """Positional arguments that are no arrays."""
    batched: int = 1
    """How many of the first arguments have N inputs as their leading axis; the others are parameters."""
    dtype: type = np.float32
    """Of the result, where that is no index; in a pair (y, stat), of y."""
    flops: int = 0
    """Floating-point operations of the call by the operator's definition, of which some techniques need fewer, a
    multiply-add counted as two; 0 where moving the data is the work."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments by name."""


@dataclass(frozen=True)
class Layer:
    """One place in the network where an operator stands."""

    name: str
    draw: Callable[[Draw], Case] = field(repr=False)
