"""Packages that import what they offer when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: what it offers is all that its file `every` has in `__all__`.

    Args:
        package: its `__name__`.
    """

    def load() -> dict[str, Any]:
        every, here = import_module(f"{package}.every"), vars(sys.modules[package])
        here.update({name: getattr(every, name) for name in ("__all__", *every.__all__)})
        return here

    def getattribute(name: str) -> Any:
        special = name.startswith("__") and name != "__all__"
        if not special and find_spec(f"{package}.{name}") is not None:  # a file of the package: no other is wanted
            return import_module(f"{package}.{name}")
        if special or name not in (here := load()):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return here[name]

    return getattribute, lambda: sorted(load()["__all__"])
