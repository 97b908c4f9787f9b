"""Names of release 1.0 for prepared convolutions and linear layers, made of patterns; each use warns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from charcnn.layers import MaxPool1d, MaxPool2d
from charcnn.ops.common.epilogues import pattern_of

HOMES = {
    "WgmmaConv": "conv1d.wgmma.layer", "MmaConv": "conv1d.mma.layer", "SmallBatchConv": "conv1d.small_batch",
    "ToomCookConv": "conv1d.toom_cook.layer", "WinogradConv": "conv1d.winograd",
    "DoubleBufferedConv": "double_buffered",
}  # fmt: skip
"""Where each class is, under charcnn.ops."""


def former(module: str, name: str) -> Callable[..., Any]:
    """What stands for a class of this name, of a module that had it: a function of its arguments.

    Raises:
        AttributeError: there was none.
    """
    stem = next((name.removesuffix(end) for end in ("Conv1d", "Conv2d", "Linear") if name.endswith(end)), "")
    made = f"{stem}Conv"
    if made not in HOMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home = f"charcnn.ops.{HOMES[made]}"
    warnings.warn(f"{module}.{name} is {home}.{made} now, which takes a pattern", DeprecationWarning, stacklevel=3)

    without = name in ("DoubleBufferedConv1d", "DoubleBufferedLinear")

    def prepare(
        weight: Any, bias: Any, pool_size: int | None = None, *, relu: bool = not without, pool: Any = False,
        epilogue: str | None = None, float32: bool = False, rows: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        weight = weight.reshape(weight.shape[1:]) if rows else weight
        moves = {key: options.pop(key) for key in ("stride", "padding", "dilation", "groups") if key in options}
        pattern = [*pattern_of(weight, ("relu" if relu else "") if epilogue is None else epilogue, **moves)]
        if pool_size or pool or made == "ToomCookConv":
            pattern.append(MaxPool2d(*pool) if isinstance(pool, tuple) else MaxPool1d(pool_size or 3))
        options |= {"results": "float32"} if float32 else {}
        return getattr(import_module(home), made)(pattern, {"weight": weight, "bias": bias}, **options)

    return prepare
