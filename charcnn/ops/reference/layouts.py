"""References on channels-last features, made of those on channels-first ones."""

from __future__ import annotations

import inspect
from functools import wraps

import numpy as np

from charcnn.aliases import Array, Function

TURNED = ("weight", "gamma", "beta")
"""Arrays whose output channels, or features, come last."""


def channels_last(of: Function, check: Function, *, features: bool = True) -> Function:
    """The reference of x (N, ..., C), with weights as `arrays.pack` gives them: (..., C_in, C_out).

    Args:
        of: the reference on channels-first features.
        check: of the arguments, a function of `shapes` or `shapes2d`.
        features: whether x is turned; without, its channels come last for `of`, too.
    """
    signature, checked = inspect.signature(of), inspect.signature(check).parameters

    def first(name: str, value: Array) -> Array:
        if name == "x" and features and np.ndim(value) > 2:
            return np.moveaxis(value, -1, 1)
        return np.moveaxis(value, (-1, -2), (0, 1)) if name.rstrip("12") in TURNED and np.ndim(value) > 1 else value

    @wraps(of)
    def last(*arguments: Array, **options: Array) -> Array:
        given = signature.bind(*arguments, **options).arguments
        check(**{name: value for name, value in given.items() if name in checked})
        y = of(**{name: first(name, value) for name, value in given.items()})
        return np.moveaxis(y, 1, -1) if features and y.ndim > 2 else y

    last.__name__ = last.__qualname__ = f"{of.__name__}_{check.__name__.rpartition('_')[2]}"
    last.__doc__ = f"{of.__name__} on channels-last features.\n\n{inspect.getdoc(check)}"
    return last
