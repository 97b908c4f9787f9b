"""Names of release 1.0 for prepared convolutions and linear layers, made of patterns; each use warns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, wraps
from typing import Any

import numpy as np

from charcnn.aliases import Array, Function, Record
from charcnn.layers import MaxPool1d, MaxPool2d
from charcnn.layers.windows import Padding
from charcnn.ops.common.cpu_tile import CpuTile
from charcnn.ops.common.epilogues import pattern_of


def former(module: str, name: str, *classes: type) -> Function:
    """What stands for a class of this name, of a module that had it: a function of its arguments.

    Args:
        module, name: what is asked for.
        classes: those of techniques today.

    Raises:
        AttributeError: there was none.
    """
    found = _found(module, name, classes)
    made = found.__name__
    without = name in ("DoubleBufferedConv1d", "DoubleBufferedLinear")

    def prepare(
        weight: Array, bias: Array, pool_size: int | None = None, *, relu: bool = not without, pool: Any = False,
        epilogue: str | None = None, float32: bool = False, rows: bool = False, **options: Any,
    ) -> Array:  # fmt: skip
        weight = weight.reshape(weight.shape[1:]) if rows else weight
        moves = {key: options.pop(key) for key in ("stride", "padding", "dilation", "groups") if key in options}
        pattern = [*pattern_of(weight, ("relu" if relu else "") if epilogue is None else epilogue, **moves)]
        if pool_size or pool or made == "ToomCookConv":
            pattern.append(MaxPool2d(*pool) if isinstance(pool, tuple) else MaxPool1d(pool_size or 3))
        options |= {"results": "float32"} if float32 else {}
        return found(pattern, {"weight": weight, "bias": bias}, **options)

    return prepare


def _found(module: str, name: str, classes: Sequence[type]) -> Function:
    """The class today; warns."""
    stem = next((name.removesuffix(end) for end in ("Conv1d", "Conv2d", "Linear") if name.endswith(end)), "")
    found: Function | None = next((one for one in classes if one.__name__ == f"{stem}Conv" != name), None)
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    said = f"{module}.{name} is {found.__module__}.{found.__name__} now, which takes a pattern"
    warnings.warn(said, DeprecationWarning, stacklevel=4)
    return found


def of_arrays(init: Function) -> Function:
    """A class's `__init__` that takes a pattern, and with a warning what it took in release 1.0: weight and bias."""

    @wraps(init)
    def prepare(self: object, pattern: Array, weights: Array, **options: object) -> None:
        if isinstance(pattern, np.ndarray):
            warnings.warn(f"{type(self).__name__} takes a pattern and its weights", DeprecationWarning, stacklevel=2)
            pattern, weights = (
                pattern_of(pattern, str(options.pop("epilogue", ""))),
                {"weight": pattern, "bias": weights},
            )
            options |= {"results": "float32"} if options.pop("float32", False) else {}
        init(self, pattern, weights, **options)

    return prepare


def former_on_cpu(module: str, name: str, *classes: type) -> Function:
    """What stands for a class of a CPU, whose weights were PyTorch's; arguments and errors are those of `former`."""
    found, dot = _found(module, name, classes), "Dot" in name

    def prepare(
        weight: Array, bias: Array, tile: CpuTile | None = None, *, relu: bool = dot, pool_size: int = 1,
        result: str | None = None, precision: str | None = None, **moves: Padding,
    ) -> Function:  # fmt: skip
        packed = np.moveaxis(weight, (0, 1), (-1, -2))
        options: Record = {"precision": precision, "results": result} if dot else {"tile": tile}

        @cache
        def conv(relu: bool, pool_size: int) -> Function:
            pattern = pattern_of(packed, "relu" if relu else "", pool_size, **moves)
            made: Function = found(pattern, {"weight": packed, "bias": bias}, **options)
            return made

        conv(relu, pool_size)  # errors come now

        def apply(x: Array, out: Array, *, relu: bool = relu, pool_size: int = pool_size) -> Array:
            return conv(relu, pool_size)(x, out)

        return apply

    return prepare
