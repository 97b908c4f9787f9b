"""Packages that import what they offer when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def names(package: str, offered: Sequence[str], home: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: of the names that it offers, those that it lacks are another module's.

    Args:
        package: its `__name__`.
        offered: its `__all__`.
        home: the module that has the others, in the package; imported when the first of them is used.
    """

    def getattribute(name: str) -> Any:
        if name not in offered:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home}"), name)

    return getattribute, lambda: sorted(offered)
