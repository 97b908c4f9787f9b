"""Has Numba's caching modules mended (`disk.mend`) when they are imported: importing charcnn imports no Numba."""

from __future__ import annotations

import sys
from typing import Any

MODULES = ("numba.core.caching", "numba.cuda.core.caching")


class _Finder:
    """Finds these modules as the other finders do, and changes each when it has been executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Python's import calls this: None for all other modules."""
        if name not in MODULES:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            from charcnn.caching.disk import mend

            execute(module)
            mend(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Have the modules changed, now or when they are imported."""
    for name in MODULES:
        if name in sys.modules:
            from charcnn.caching.disk import mend

            mend(sys.modules[name])
    if any(name not in sys.modules for name in MODULES):
        sys.meta_path.insert(0, _Finder())
