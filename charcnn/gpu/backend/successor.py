"""numba-cuda-mlir under numba.cuda's name: it has the same front end, so that kernels' modules need not be changed.

Loads nothing before numba.cuda is imported.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pkgutil import resolve_name
from types import ModuleType

OWN = {"descriptor": "charcnn.gpu.backend.mlir"}
"""Modules of numba.cuda that ours stand for."""


class _Finder:
    """Finds numba.cuda, and the modules in it, as the successor's."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Python's import calls this: None for all other modules."""
        return ModuleSpec(name, self, is_package=True) if f"{name}.".startswith("numba.cuda.") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Python's import calls this."""
        inner = spec.name.removeprefix("numba.cuda").removeprefix(".")
        theirs = f"numba_cuda_mlir.numba_cuda.{inner}" if inner else "numba_cuda_mlir.cuda"
        module: ModuleType = resolve_name(OWN.get(inner, theirs))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Python's import calls this: the module keeps its own name."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Have the successor found as numba.cuda; nothing must have imported numba.cuda before."""
    if "numba.cuda" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
