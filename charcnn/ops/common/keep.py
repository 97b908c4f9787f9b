"""Launches that prepare weights first: for one call, or for all that follow."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from charcnn.aliases import Array

Apply = Callable[[Any, Any], object]
"""Called with a `Call`, or on a CPU with where to write, and x: starts what weights were prepared for."""


def keeping(prepare: Callable[..., Apply]) -> Any:
    """A launch by what prepares its weights, called with its arguments beside x; `launch.prepare` keeps them."""

    @wraps(prepare)
    def launch(target: Any, x: Array, *arguments: Any, **options: Any) -> None:
        prepare(*arguments, **options)(target, x)

    launch.prepare = prepare  # type: ignore[attr-defined]
    return launch
