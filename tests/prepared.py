"""Prepared convolutions of weights, by what follows the product."""

from __future__ import annotations

from typing import Any

from charcnn.layers import Layer, MaxPool1d
from charcnn.ops.common.epilogues import pattern_of

MOVES = ("stride", "padding", "dilation", "groups")


def prepared(made: Any, weight: Any, bias: Any, pointwise: str = "", pool: Layer | None = None, **options: Any) -> Any:
    """Of a class, with a pointwise function by name, and max-pooling; how a window moves stands among options."""
    moves = {name: options.pop(name) for name in MOVES if name in options}
    pattern = [*pattern_of(weight, pointwise, **moves), *([pool] if pool else [])]
    return made(pattern, {"weight": weight, "bias": bias}, **options)


def of_kind(made: Any, kind: str, weight: Any, bias: Any, **options: Any) -> Any:
    """Of a class, by what tests call it: "pool", "relu", "stat", or another name of a layer with ReLU."""
    if kind == "stat":
        return prepared(made, weight, bias, moments=True, **options)
    return prepared(made, weight, bias, "relu", MaxPool1d(3) if kind.startswith("pool") else None, **options)
