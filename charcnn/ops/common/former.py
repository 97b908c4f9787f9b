"""Names of release 1.0 for prepared convolutions and linear layers, made of patterns; each use warns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from charcnn.layers import MaxPool1d, MaxPool2d
from charcnn.ops.common.epilogues import pattern_of


def former(module: str, name: str, *classes: type) -> Callable[..., Any]:
    """What stands for a class of this name, of a module that had it: a function of its arguments.

    Args:
        module, name: what is asked for.
        classes: those of techniques today.

    Raises:
        AttributeError: there was none.
    """
    stem = next((name.removesuffix(end) for end in ("Conv1d", "Conv2d", "Linear") if name.endswith(end)), "")
    made = f"{stem}Conv"
    found = next((one for one in classes if one.__name__ == made and name != made), None)
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    said = f"{module}.{name} is {found.__module__}.{made} now, which takes a pattern"
    warnings.warn(said, DeprecationWarning, stacklevel=3)
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
        return found(pattern, {"weight": weight, "bias": bias}, **options)

    return prepare
