"""The operators, importable by name: conv1d_loops, conv1d_naive, ...

A function's name is the operator, then the technique (`charcnn.catalog.TECHNIQUES` says what each is). All
techniques of an operator take the same arguments as its function in `reference`, and `out=`; those on a GPU also
`stream=`. A shape, dtype or layout that does not fit is a ValueError that names the argument.

Names load when they are first used, made of the rows of `charcnn/ops/table.py`: a level for the CPU does not wait for
CUDA. `__init__.pyi` shows them to editors.
"""

from importlib import import_module
from typing import Any

from charcnn.ops.table import VARIANTS

__all__ = [*dict.fromkeys(row.function for row in VARIANTS), "chain", "prepare", "reference"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"chain": "chain", "reference": "reference", "prepare": "prepared"}.get(name, "functions")
    module = import_module(f"{__name__}.{home}")
    if name == home:
        return module
    found = globals()[name] = module.prepare if name == "prepare" else module.make(name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
